//! What processes of one world must have in common, and what memory they agree on.

/// Version of the protocol: of all that is sent, and of what it means.
pub const PROTOCOL: u32 = 3;

/// What must be equal in all processes of a world. Texts are compared, never interpreted.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Hello {
    /// Digest of the plan.
    pub plan: String,
    /// Digest of the compiled kernels.
    pub cubins: String,
    /// Digest of the checkpoint.
    pub checkpoint: String,
    /// Processes of the world.
    pub ranks: u32,
    /// Longest sequence, in tokens.
    pub context: u64,
    /// Format of cached keys and values.
    pub kv_format: String,
    /// Tokens of a K/V block.
    pub block_tokens: u64,
    /// Bytes of a K/V block, over all layers.
    pub block_bytes: u64,
    /// Bytes of a sequence's recurrent state, over all layers.
    pub state_bytes: u64,
    /// K/V blocks that were asked for; `None` where memory decides.
    pub blocks: Option<u64>,
    /// Sequences that were asked for; `None` where memory decides.
    pub sequences: Option<u64>,
    /// Snapshots that were asked for; `None` where memory decides.
    pub snapshots: Option<u64>,
    /// Version of the device's driver.
    pub driver: String,
    /// Version of NCCL.
    pub nccl: String,
}

impl Hello {
    /// Its fields by the names that a refusal calls them.
    fn fields(&self) -> [(&'static str, String); 14] {
        let asked = |count: Option<u64>| count.map_or("as many as fit".to_owned(), |count| count.to_string());
        [
            ("plan", self.plan.clone()),
            ("cubins", self.cubins.clone()),
            ("checkpoint", self.checkpoint.clone()),
            ("world size", self.ranks.to_string()),
            ("context", self.context.to_string()),
            ("K/V format", self.kv_format.clone()),
            ("tokens of a K/V block", self.block_tokens.to_string()),
            ("bytes of a K/V block", self.block_bytes.to_string()),
            ("bytes of a recurrent state", self.state_bytes.to_string()),
            ("K/V blocks asked for", asked(self.blocks)),
            ("sequences asked for", asked(self.sequences)),
            ("snapshots asked for", asked(self.snapshots)),
            ("driver", self.driver.clone()),
            ("NCCL", self.nccl.clone()),
        ]
    }

    /// What differs between this process and `who`, by name and with both values; `None` if nothing does.
    pub fn difference(&self, other: &Hello, who: &str) -> Option<String> {
        let pairs = self.fields().into_iter().zip(other.fields());
        let differing = pairs.filter(|(here, there)| here != there);
        let said: Vec<String> = differing
            .map(|((name, here), (_, there))| format!("{name} is {here:?} here and {there:?} on {who}"))
            .collect();
        (!said.is_empty()).then(|| format!("{}; all processes of a world need the same", said.join(", ")))
    }
}

/// Memory for sequences: what a process has room for, or what all agree on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Room {
    /// K/V blocks.
    pub blocks: u64,
    /// Those of layers with a sliding window.
    pub sliding: u64,
    /// Sequences at a time.
    pub sequences: u64,
    /// Saved states.
    pub snapshots: u64,
    /// Places on disk for groups of blocks.
    pub places: u64,
    /// Blocks of such a group.
    pub group: u64,
}

impl Room {
    /// Of a process that knows no bounds before it claims memory.
    pub const ANY: Room = Room {
        blocks: u64::MAX,
        sliding: u64::MAX,
        sequences: u64::MAX,
        snapshots: u64::MAX,
        places: u64::MAX,
        group: 0,
    };

    /// The least of each. Groups on disk that differ in size cannot be used together, so that there are none.
    pub fn least(self, other: Room) -> Room {
        Room {
            blocks: self.blocks.min(other.blocks),
            sliding: self.sliding.min(other.sliding),
            sequences: self.sequences.min(other.sequences),
            snapshots: self.snapshots.min(other.snapshots),
            places: if self.group == other.group { self.places.min(other.places) } else { 0 },
            group: if self.group == other.group { self.group } else { 0 },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_differs_is_named_with_both_values() {
        let here = Hello { plan: "12ab".into(), context: 8192, ..Hello::default() };
        assert_eq!(here.difference(&here, "rank 1"), None);
        let there = Hello { plan: "34cd".into(), blocks: Some(7), ..here.clone() };
        assert_eq!(
            here.difference(&there, "rank 1").as_deref(),
            Some(
                "plan is \"12ab\" here and \"34cd\" on rank 1, K/V blocks asked for is \"as many as fit\" here and \
                 \"7\" on rank 1; all processes of a world need the same"
            )
        );
    }

    #[test]
    fn the_least_room_is_agreed_on() {
        let a = Room { blocks: 9, sliding: 6, sequences: 2, snapshots: 4, places: 5, group: 8 };
        let b = Room { blocks: 7, sliding: 8, sequences: 3, snapshots: 1, places: 6, group: 8 };
        let least = Room { blocks: 7, sliding: 6, sequences: 2, snapshots: 1, places: 5, group: 8 };
        assert_eq!(a.least(b), least);
        assert_eq!(a.least(Room { group: 4, ..b }).places, 0);
    }
}
