//! What the index and a file of kept prefixes have of each other's: blocks that the file does not have yet,
//! and blocks that come back from it.

use super::{Lease, PrefixCache};
use crate::content::Content;
use crate::index::Unkept;
use crate::kept::KeptIndex;
use crate::pool::PoolError;
use crate::reuse::Evicted;

impl PrefixCache {
    /// The same, remembering which blocks the index comes to know, for [`Self::unkept`].
    #[must_use]
    pub fn with_keeping(mut self) -> PrefixCache {
        self.index.remember_fresh();
        self
    }

    /// Most blocks that the index has come to know and that [`Self::unkept`] has not passed over.
    pub fn fresh(&self) -> usize {
        self.index.fresh()
    }

    /// The block to write to a file of kept prefixes next: the first that the file does not have on the path
    /// of a block that the index came to know. Nothing of it changes until it is added to `file`, or
    /// [passed over](Self::skip_unkept).
    pub fn unkept(&mut self, file: &KeptIndex) -> Option<Unkept> {
        self.index.unkept(file)
    }

    /// Passes over the block whose path [`Self::unkept`] looks at: it is not kept.
    pub fn skip_unkept(&mut self) {
        self.index.skip_fresh();
    }

    /// A lease of the first `blocks` blocks of a content, to be written to from where the index ends
    /// ([`Lease::indexed_blocks`]), with what was evicted for it. `None`, and nothing is held, where the
    /// index does not know the first `known`, or there are too few blocks.
    ///
    /// The caller fills the blocks, tells the index of them with [`Self::extend`], and releases the lease,
    /// all before anything else is planned.
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
}
