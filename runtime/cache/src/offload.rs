//! K/V offload: which blocks of a sequence are on disk, and their slots there.
//!
//! A sequence with more blocks than its share of the device sends its oldest to disk, in groups of
//! consecutive ones. The first few blocks stay, and only those are indexed. Full blocks never change, so a
//! group is written once; its slot belongs to the sequence until that ends.

use crate::admission::blocks_for;
use crate::pool::Block;

/// A slot on disk for a group of blocks, below the number of slots.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct OffloadPlace(pub u32);

/// Where a block of a sequence is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum BlockPlace {
    /// On the device.
    Device(Block),
    /// On disk: the group's slot, and the block's index in the group.
    Disk(OffloadPlace, usize),
}

/// How much of a sequence is on the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Share {
    /// Most blocks that one sequence has on the device.
    pub resident: usize,
    /// Blocks of a group; at least 1.
    pub group: usize,
    /// Its first blocks, which stay on the device.
    pub kept: usize,
}

impl Share {
    /// The whole device: no offload.
    pub const WHOLE: Share = Share { resident: usize::MAX, group: 1, kept: usize::MAX };

    /// A share of `resident` blocks of `block_tokens` tokens, for steps that feed a sequence up to `fed`
    /// tokens and write up to `reach` positions behind them. The first blocks that such steps do not need
    /// stay on the device.
    pub fn new(resident: usize, group: usize, block_tokens: usize, fed: usize, reach: usize) -> Share {
        Share {
            resident,
            group,
            kept: resident.saturating_sub(Share::least(group, block_tokens, fed, reach)),
        }
    }

    /// The smallest share that lets a step feed `fed` tokens: less than a group that cannot be sent yet, the
    /// block that is not full, and those that the step writes.
    pub fn least(group: usize, block_tokens: usize, fed: usize, reach: usize) -> usize {
        group - 1 + blocks_for(fed + reach + block_tokens - 1, block_tokens)
    }

    /// Blocks on the device of a sequence with `blocks` in all, `offloaded` of them on disk.
    pub fn held(&self, blocks: usize, offloaded: usize) -> usize {
        blocks.saturating_sub(offloaded).min(self.resident)
    }

    /// Groups to send before a sequence can have all of its `blocks`, `offloaded` of which are on disk.
    pub fn due(&self, blocks: usize, offloaded: usize) -> usize {
        blocks.saturating_sub(offloaded).saturating_sub(self.resident).div_ceil(self.group)
    }

    /// Most blocks of a sequence, with so many slots on disk.
    pub fn most(&self, places: usize) -> usize {
        self.resident.saturating_add(places.saturating_mul(self.group))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whether a sequence with this share of the device can always send a group when one is due, whatever its
    /// steps feed; and how many blocks it sent.
    fn goes_on(share: &Share, block: usize, fed: usize, reach: usize) -> (bool, usize) {
        let (mut offloaded, mut tokens) = (0, 0);
        for step in 0..500 {
            // It offloads as long as it can; what it then holds is enough for any step.
            let needed = blocks_for(tokens + fed + reach, block);
            while share.due(needed, offloaded) > 0 {
                if share.kept + offloaded + share.group > tokens / block {
                    return (false, offloaded);
                }
                offloaded += share.group;
            }
            tokens += 1 + step % fed;
        }
        (true, offloaded)
    }

    #[test]
    fn the_least_share_lets_every_step_be_fed_and_a_smaller_one_does_not() {
        for (group, block, fed, reach) in [(1, 16, 1, 0), (4, 16, 64, 0), (3, 4, 24, 5), (8, 16, 1, 3)] {
            let least = Share::least(group, block, fed, reach);
            let share = Share::new(least, group, block, fed, reach);
            assert_eq!(share.kept, 0);
            let (fits, offloaded) = goes_on(&share, block, fed, reach);
            assert!(fits && offloaded > 0, "{group} {block} {fed} {reach}");
            let smaller = Share { resident: least - 1, ..share };
            assert!(!goes_on(&smaller, block, fed, reach).0, "{group} {block} {fed} {reach}");
            // What is beyond the least share stays on the device for good.
            let larger = Share::new(least + 5, group, block, fed, reach);
            assert_eq!(larger.kept, 5);
            assert!(goes_on(&larger, block, fed, reach).0, "{group} {block} {fed} {reach}");
        }
    }
}
