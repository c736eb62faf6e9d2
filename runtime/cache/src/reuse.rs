//! What the next sequence may reuse of an earlier one.

/// A place for a saved recurrent state, below the number of places.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Snapshot(pub u32);

/// What is cached of sequences, for others with the same beginning.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reuse {
    /// Nothing is cached.
    Nothing,
    /// Blocks: for models with attention alone. A sequence takes the full blocks of its prompt's beginning.
    Blocks,
    /// Blocks below snapshots: for models with recurrent state, which can go on only from a saved state.
    /// Blocks without a snapshot above them are useless and not kept.
    Snapshots {
        /// States that can be saved at a time.
        places: usize,
    },
}

/// What the cache has of a prompt.
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

/// A prefix that was evicted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Evicted {
    /// Blocks of the prefix. Only the last was evicted.
    pub depth: usize,
    /// Whether that block was evicted, or only the snapshot behind it.
    pub block: bool,
    /// The snapshot that was evicted.
    pub snapshot: Option<Snapshot>,
}
