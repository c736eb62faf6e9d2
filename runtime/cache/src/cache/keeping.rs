//! What the index and a file of kept prefixes have of each other's: blocks and snapshots that the file does
//! not have yet, and those that come back from it.

use super::{Lease, PrefixCache};
use crate::content::Content;
use crate::index::Unkept;
use crate::kept::KeptIndex;
use crate::pool::PoolError;
use crate::reuse::{Evicted, Reuse, Snapshot};

impl PrefixCache {
    /// The same, remembering which blocks or snapshots the index comes to know, for [`Self::unkept`].
    #[must_use]
    pub fn with_keeping(mut self) -> PrefixCache {
        self.index.remember_fresh(matches!(self.reuse, Reuse::Snapshots { .. }));
        self
    }

    /// Most blocks, or snapshots where only these can be gone on from, that the index has come to know and
    /// that [`Self::unkept`] has not passed over.
    pub fn fresh(&self) -> usize {
        self.index.fresh()
    }

    /// As many as [`Self::fresh`] can be of: all blocks, or all places of snapshots.
    pub fn most_fresh(&self) -> usize {
        match self.reuse {
            Reuse::Snapshots { places } => places,
            Reuse::Nothing | Reuse::Blocks => self.capacity(),
        }
    }

    /// What to write to a file of kept prefixes next: the first that the file does not have on the path of
    /// what the index came to know. Nothing of it changes until it is added to `file`, or
    /// [passed over](Self::skip_unkept).
    pub fn unkept(&mut self, file: &KeptIndex) -> Option<Unkept> {
        self.index.unkept(file)
    }

    /// Passes over what [`Self::unkept`] looks at: it is not kept.
    pub fn skip_unkept(&mut self) {
        self.index.skip_fresh();
    }

    /// A lease of the first `blocks` blocks of a content, to be written to from where the index ends
    /// ([`Lease::indexed_blocks`]), with what was evicted for it. `None`, and nothing is held, where the
    /// index does not know the first `known`, or there are too few blocks.
    ///
    /// The caller fills the blocks and then ends the lease with [`Self::bring_back`], before anything else is
    /// planned.
    ///
    /// # Errors
    /// On an accounting error.
    pub fn take_back(
        &mut self,
        content: Content<'_>,
        known: usize,
        blocks: usize,
    ) -> Result<Option<(Lease, Vec<Evicted>)>, PoolError> {
        let (mut lease, _) = self.admit_blocks(content.first(blocks * self.block_tokens))?;
        let grown = match lease.indexed_blocks() >= known {
            true => self.grow(&mut lease, blocks * self.block_tokens).ok(),
            false => None,
        };
        match grown {
            Some(evicted) if lease.blocks().len() == blocks => Ok(Some((lease, evicted))),
            _ => {
                self.release(&mut lease)?;
                Ok(None)
            }
        }
    }

    /// Ends a lease of [`Self::take_back`] whose blocks are filled: the index knows them, and nobody holds
    /// them. A `snapshot` is [reserved](Self::reserve) and filled with the state behind them. Blocks that
    /// only a snapshot could be gone on from stay without one, until sequences need them, so that the rest of
    /// a prefix can follow; [`Self::give_up_back`] ends that.
    ///
    /// # Errors
    /// On an accounting error.
    pub fn bring_back(
        &mut self,
        mut lease: Lease,
        content: Content<'_>,
        snapshot: Option<Snapshot>,
    ) -> Result<(), PoolError> {
        let content = content.first(lease.blocks().len() * self.block_tokens);
        self.index_blocks(&mut lease, content)?;
        if let Some(place) = snapshot {
            self.keep(&mut lease, content, place)?;
        }
        self.let_go(&mut lease).map(drop)
    }

    /// No more follows of a prefix that came back up to here: its blocks go, as far as nothing can be gone on
    /// from behind them.
    ///
    /// # Errors
    /// On an accounting error.
    pub fn give_up_back(&mut self, content: Content<'_>) -> Result<(), PoolError> {
        let (mut lease, _) = self.admit_blocks(content)?;
        self.release(&mut lease)
    }
}
