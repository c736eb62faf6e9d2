//! What of a sequence the next one may go on from.

/// A place for a saved recurrent state, below the number of places.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Snapshot(pub u32);

/// What is kept of sequences that are over, for others that begin alike.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reuse {
    /// Nothing.
    Nothing,
    /// Blocks: for models that remember in keys and values alone. Whoever begins with the tokens of full
    /// blocks takes these.
    Blocks,
    /// Blocks below snapshots: for models with recurrent state, which can go on only from where a state was
    /// saved. What no snapshot stands above is of no use to anybody and not kept.
    Snapshots {
        /// States that can be saved at a time.
        places: usize,
    },
}

/// What is there of a prompt.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Match {
    /// Tokens that need not be fed: whole blocks, and at least one token less than there are.
    pub tokens: usize,
    /// How many of their blocks sequences use now. The others count among
    /// [`PrefixCache::available`](crate::PrefixCache::available) until they are taken.
    pub in_use: usize,
    /// The state after these tokens, of models that need it.
    pub snapshot: Option<Snapshot>,
}

/// A prefix that had to go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Evicted {
    /// Blocks of the prefix. Only the last of them went.
    pub depth: usize,
    /// Whether that block went, or only the snapshot behind it.
    pub block: bool,
    /// The snapshot that went.
    pub snapshot: Option<Snapshot>,
}
