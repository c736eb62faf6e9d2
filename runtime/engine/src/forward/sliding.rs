//! Layers with a sliding window: how many of their blocks running sequences may come to hold.
//!
//! A sequence takes these blocks as it is fed and gives them back as its window moves on, so it never holds
//! more than [`Sliding::most`], and all of a step together [`Sliding::fed`] more. Where there are fewer of
//! them than of the other layers' blocks, a sequence is admitted only if there is room for the most that it
//! and all that run may come to hold: then none is ever pre-empted for want of them. Where there are as many,
//! the others are short first.
//!
//! Blocks are given back when the step is collected that moved the window on. While steps are in flight there
//! may be too few for another step; then one is collected first.

use super::Forward;
use crate::options::SlidingPool;
use crate::scheduler::Row;
use crate::sequence::Sequence;
use monomorph_abi::sliding::Sliding;
use monomorph_cache::admission::blocks_for;
use monomorph_cache::{PrefixCache, SlidingBlock};
use monomorph_model::ModelSpec;

/// What sequences may hold of these blocks.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SlidingWindows {
    pool: Option<(Sliding, usize)>,
    reach: usize,
    /// Blocks that may be held between steps, where they may come to be short.
    room: Option<usize>,
}

impl SlidingWindows {
    /// Those of a pool beside `blocks` of the other layers, all of a sequence's on the device unless it
    /// `offloads`.
    pub fn new(spec: &ModelSpec, pool: Option<SlidingPool>, blocks: usize, offloads: bool) -> SlidingWindows {
        let pool = pool.map(|pool| (pool.spec.of(spec), pool.blocks));
        let short = pool.filter(|(_, there)| offloads || *there < blocks);
        let room = short.map(|(it, there)| there.saturating_sub(it.fed(spec.step_tokens)));
        SlidingWindows { pool, reach: spec.reach(), room }
    }

    /// Checks that a lone sequence of so many tokens can always be fed.
    ///
    /// # Errors
    /// When it cannot: the most blocks that it comes to hold, and those that it may.
    pub fn check(&self, context: usize) -> Result<(), (usize, usize)> {
        match self.room {
            Some(room) if self.most(context) > room => Err((self.most(context), room)),
            _ => Ok(()),
        }
    }

    /// The cache with these blocks.
    pub fn of(&self, cache: PrefixCache) -> PrefixCache {
        match self.pool {
            Some((it, blocks)) => cache.with_sliding(it, blocks),
            None => cache,
        }
    }

    /// Whether the model has such layers.
    pub fn are_there(&self) -> bool {
        self.pool.is_some()
    }

    /// The first block that a row at this position attends to.
    pub fn first(&self, position: usize) -> usize {
        self.pool.map_or(0, |(it, _)| it.first(position))
    }

    /// Blocks that sequences may come to hold; without bound where they are never short.
    pub fn room(&self) -> usize {
        self.room.unwrap_or(usize::MAX)
    }

    /// Most blocks that a sequence of at most so many tokens comes to hold; 0 where they are never short.
    pub fn most(&self, limit: usize) -> usize {
        match (self.pool, self.room) {
            (Some((it, _)), Some(_)) => it.most(limit, self.reach),
            _ => 0,
        }
    }

    /// Blocks that a sequence holds which was fed `fed` tokens, as it is copied out and comes back.
    pub fn live(&self, sequence: &Sequence) -> Vec<SlidingBlock> {
        let Some((it, _)) = self.pool else { return Vec::new() };
        let ((first, blocks), fed) = (sequence.lease.sliding(), sequence.fed());
        let from = it.first(fed).saturating_sub(first).min(blocks.len());
        let end = blocks_for(fed, it.block_tokens).saturating_sub(first).min(blocks.len());
        blocks[from..end].to_vec()
    }

    /// Blocks that a waiting sequence takes which begins behind `cached` tokens and is fed so many; those
    /// that the cache keeps too, for they may be counted as free.
    fn begins(&self, cached: usize, fed: usize) -> usize {
        let Some((it, _)) = self.pool else { return 0 };
        blocks_for(cached + fed + self.reach, it.block_tokens) - it.first(cached)
    }
}

impl Forward {
    /// Whether the blocks of layers with a sliding window suffice for a step of these rows that admits so
    /// many, as they are now: what steps in flight will give back is not counted.
    pub(super) fn has_windows_for(&self, rows: &[Row], admit: usize) -> bool {
        let (windows, cache) = (self.memory.windows(), self.memory.cache());
        let running = self.batch.len();
        let fed = |at: usize| rows.iter().find(|row| row.sequence == at).map_or(0, |row| row.tokens);
        let due = rows.iter().filter(|row| row.sequence < running).map(|row| {
            let one = &self.batch[row.sequence];
            cache.sliding_due(&one.lease, one.fed() + row.tokens + windows.reach)
        });
        let begin = self.planner.waiting()[..admit].iter().enumerate();
        let begin = begin.map(|(at, one)| windows.begins(one.cached, fed(running + at)));
        due.chain(begin).sum::<usize>() <= cache.sliding_available()
    }
}
