//! K/V offload: sequences that have more blocks than their share of the device send their oldest to disk
//! before a step is planned.
//!
//! Only full blocks go, and only while no step is in flight: nothing writes them any more, and nobody reads
//! them meanwhile. A sequence that could not be given its blocks otherwise sends as many groups as it has and
//! needs to; where there are no places for them the last of the running makes room. To the scheduler a
//! sequence looks as long as the blocks reach that it may have in this step.

use super::Forward;
use crate::request::EngineError;
use crate::scheduler::{Limits, Running, Waiting};
use monomorph_cache::admission::blocks_for;
use monomorph_cache::{OffloadPlace, Share};
use monomorph_model::{BlockId, Model, OffloadSlot};

/// What has to be done before the next step is planned.
#[derive(Debug, PartialEq, Eq)]
enum Next {
    Nothing,
    /// A step in flight has to be collected.
    Collect,
    /// The last of the running has to go.
    PreEmpt,
    /// A group of a sequence's blocks has to go to a place.
    Send(usize, Vec<BlockId>, OffloadPlace),
}

impl Forward {
    /// Sends to disk what has to go there before the next step can be planned. False when a step in flight
    /// has to be collected first. What cannot be sent ends its sequence.
    ///
    /// # Errors
    /// When the books do not balance.
    pub(super) fn make_room<M: Model>(&mut self, model: &mut M) -> Result<bool, String> {
        loop {
            match self.next_departure() {
                Next::Nothing => return Ok(true),
                Next::Collect => return Ok(false),
                Next::PreEmpt => {
                    if let Some(mut sequence) = self.batch.pop() {
                        self.free(&mut sequence)?;
                        self.queue.push(sequence);
                        self.outputs.counters().stats.preemptions += 1;
                    }
                }
                Next::Send(at, blocks, place) => match model.offload_blocks(&blocks, OffloadSlot(place.0)) {
                    Ok(()) => {
                        self.memory.sent(&mut self.batch[at])?;
                        self.outputs.counters().stats.blocks_offloaded += blocks.len() as u64;
                    }
                    Err(why) => {
                        let sequence = self.batch.remove(at);
                        self.fail(sequence, EngineError::Lost(why))?;
                        self.publish(None);
                    }
                },
            }
        }
    }

    fn next_departure(&self) -> Next {
        let offload = Offload::new(self.memory.share(), self.planner.limits());
        for (at, one) in self.batch.iter().enumerate().filter(|(_, one)| one.is_ready()) {
            if offload.due(one.length(), one.lease.offloaded_blocks()) == 0 {
                continue;
            }
            if !self.pipeline.is_empty() {
                return Next::Collect;
            }
            match self.memory.departing(&one.lease, one.fed()) {
                Some((blocks, Some(place))) => return Next::Send(at, blocks, place),
                Some((_, None)) => return Next::PreEmpt,
                // Of a prompt that is not fed yet.
                None => {}
            }
        }
        Next::Nothing
    }
}

/// What a sequence's share of the device lets it have, and what of it has to be on disk.
#[derive(Clone, Copy, Debug)]
pub(super) struct Offload {
    share: Share,
    limits: Limits,
}

impl Offload {
    pub fn new(share: Share, limits: &Limits) -> Offload {
        Offload { share, limits: *limits }
    }

    /// Most tokens that a sequence can come to have in a step with so many blocks on disk.
    fn most(&self, on_disk: usize) -> usize {
        let blocks = self.share.resident.saturating_add(on_disk);
        blocks.saturating_mul(self.limits.block_tokens).saturating_sub(self.limits.reach)
    }

    /// A running sequence with so many blocks on disk, as the scheduler is to see it.
    pub fn running(&self, on_disk: usize, one: Running) -> Running {
        let most = self.most(on_disk);
        let (tokens, limit) = (one.tokens.min(most), one.limit.min(most));
        Running { tokens, prefill: one.prefill.min(most), limit, blocks: one.blocks + on_disk, ..one }
    }

    /// A waiting sequence as the scheduler is to see it.
    pub fn waiting(&self, one: Waiting) -> Waiting {
        let most = self.most(0);
        let (tokens, limit) = (one.tokens.min(most), one.limit.min(most));
        Waiting { tokens, prefill: one.prefill.min(most), limit, ..one }
    }

    /// Places on disk that a sequence with so many tokens, and blocks there, is still going to need for
    /// those.
    pub fn due(&self, tokens: usize, on_disk: usize) -> usize {
        self.share.due(blocks_for(tokens + self.limits.reach, self.limits.block_tokens), on_disk)
    }
}
