//! What of a sequence is on disk: arithmetic on blocks, and places.
//!
//! A sequence that has more blocks than its share of the device sends its oldest to disk, in groups of
//! consecutive ones, behind the first few: those stay, and are the ones that others may find. Full blocks
//! never change, so a group is written once; its place is the sequence's until that is over.

use crate::admission::blocks_for;
use crate::pool::Block;

/// A place on disk for a group of blocks, below the number of places.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FarPlace(pub u32);

/// Where a block of a sequence is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Place {
    /// On the device.
    Here(Block),
    /// On disk: which of the group's.
    Far(FarPlace, usize),
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
    /// All of it.
    pub const WHOLE: Share = Share { resident: usize::MAX, group: 1, kept: usize::MAX };

    /// A share of `resident` blocks of `block_tokens` tokens for sequences that are fed up to `fed` tokens in
    /// a step and written up to `reach` positions behind them. Of it as much as steps of that size leave is
    /// kept.
    pub fn new(resident: usize, group: usize, block_tokens: usize, fed: usize, reach: usize) -> Share {
        Share {
            resident,
            group,
            kept: resident.saturating_sub(Share::least(group, block_tokens, fed, reach)),
        }
    }

    /// The smallest share with which sequences are fed `fed` tokens in a step. What cannot be sent at that
    /// time is less than a group, the block that is not full, and those that the step writes.
    pub fn least(group: usize, block_tokens: usize, fed: usize, reach: usize) -> usize {
        group - 1 + blocks_for(fed + reach + block_tokens - 1, block_tokens)
    }

    /// Blocks that a sequence holds on the device which has `blocks` in all, `far` of them on disk.
    pub fn held(&self, blocks: usize, far: usize) -> usize {
        blocks.saturating_sub(far).min(self.resident)
    }

    /// Groups that it has to send before it can have all of its `blocks`, `far` of which are on disk.
    pub fn due(&self, blocks: usize, far: usize) -> usize {
        blocks.saturating_sub(far).saturating_sub(self.resident).div_ceil(self.group)
    }

    /// Most blocks of a sequence, with so many places on disk.
    pub fn most(&self, places: usize) -> usize {
        self.resident.saturating_add(places.saturating_mul(self.group))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_least_share_lets_every_step_be_fed() {
        for (group, block, fed, reach) in [(1, 16, 1, 0), (4, 16, 64, 0), (3, 4, 24, 5), (8, 16, 1, 3)] {
            let share = Share::new(Share::least(group, block, fed, reach), group, block, fed, reach);
            assert_eq!(share.kept, 0);
            let (mut far, mut tokens) = (0, 0);
            for step in 0..500 {
                // As long as it can, it sends; then what it holds is enough for any step.
                let needed = blocks_for(tokens + fed + reach, block);
                while share.due(needed, far) > 0 {
                    assert!(far + group <= tokens / block, "{group} {block} {fed} {reach}: step {step}");
                    far += group;
                }
                tokens += 1 + step % fed;
            }
            assert!(far > 0);
        }
    }
}
