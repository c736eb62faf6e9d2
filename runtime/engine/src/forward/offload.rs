//! K/V offload: sequences that have more blocks than their share of the device send their oldest to disk
//! before a step is planned.
//!
//! Only full blocks are offloaded, and only while no step is in flight: nothing writes or reads them then. A
//! sequence that could not get its blocks otherwise offloads as many groups as it must; if the disk has no
//! places for them, the last running sequence is pre-empted. The scheduler sees a sequence as no longer than
//! the blocks that it may have in this step.

use super::Forward;
use crate::request::EngineError;
use crate::scheduler::{Running, SchedulerLimits, Waiting};
use monomorph_cache::admission::blocks_for;
use monomorph_cache::{OffloadPlace, Share};
use monomorph_model::{BlockId, Model, OffloadSlot};

/// What to do before the next step is planned.
#[derive(Debug, PartialEq, Eq)]
enum Next {
    Nothing,
    /// Collect a step in flight.
    Collect,
    /// Pre-empt the last running sequence.
    PreEmpt,
    /// Offload a group of a sequence's blocks to a place.
    Send(usize, Vec<BlockId>, OffloadPlace),
}

impl Forward {
    /// Offloads what must go to disk before the next step can be planned. False when a step in flight must be
    /// collected first. A failed write ends its sequence.
    ///
    /// # Errors
    /// On an accounting error.
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
                // The blocks of a prompt that is not fed yet.
                None => {}
            }
        }
        Next::Nothing
    }
}

/// What fits a sequence's share of the device, and how much of it must be on disk.
#[derive(Clone, Copy, Debug)]
pub(super) struct Offload {
    share: Share,
    limits: SchedulerLimits,
}

impl Offload {
    pub fn new(share: Share, limits: &SchedulerLimits) -> Offload {
        Offload { share, limits: *limits }
    }

    /// Most tokens that a sequence can have after a step with so many blocks on disk.
    fn most(&self, on_disk: usize) -> usize {
        let blocks = self.share.resident.saturating_add(on_disk);
        blocks.saturating_mul(self.limits.block_tokens).saturating_sub(self.limits.reach)
    }

    /// The scheduler's view of a running sequence with so many blocks on disk.
    pub fn running(&self, on_disk: usize, one: Running) -> Running {
        let most = self.most(on_disk);
        let (tokens, limit) = (one.tokens.min(most), one.limit.min(most));
        Running { tokens, prefill: one.prefill.min(most), limit, blocks: one.blocks + on_disk, ..one }
    }

    /// The scheduler's view of a waiting sequence.
    pub fn waiting(&self, one: Waiting) -> Waiting {
        let most = self.most(0);
        let (tokens, limit) = (one.tokens.min(most), one.limit.min(most));
        Waiting { tokens, prefill: one.prefill.min(most), limit, ..one }
    }

    /// Places on disk that a sequence with so many tokens and offloaded blocks will still need.
    pub fn due(&self, tokens: usize, on_disk: usize) -> usize {
        self.share.due(blocks_for(tokens + self.limits.reach, self.limits.block_tokens), on_disk)
    }
}
