//! Sequences that have more blocks than their share of the device: their oldest go to disk before a step is
//! planned.
//!
//! Only full blocks go, and only while no step is in flight: nothing writes them any more, and nobody reads
//! them meanwhile. A sequence that could not be given its blocks otherwise sends as many groups as it has and
//! needs to; where there are no places for them the last of the running makes room. To the scheduler a
//! sequence looks as long as the blocks reach that it may have in this step.

use super::{Forward, unbalanced};
use crate::request::EngineError;
use crate::scheduler::{Limits, Running, Waiting};
use crate::sequence::Sequence;
use monomorph_cache::admission::blocks_for;
use monomorph_cache::{FarPlace, Share};
use monomorph_model::{BlockId, FarId, Model};

/// What has to be done before the next step is planned.
#[derive(Debug, PartialEq, Eq)]
enum Next {
    Nothing,
    /// A step in flight has to be collected.
    Collect,
    /// The last of the running has to go.
    PreEmpt,
    /// A group of a sequence's blocks has to go to a place.
    Send(usize, Vec<BlockId>, FarPlace),
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
                    if let Some(mut sequence) = self.running.pop() {
                        self.free(&mut sequence)?;
                        self.wait(sequence);
                        self.shared.counters().stats.preemptions += 1;
                    }
                }
                Next::Send(at, blocks, place) => match model.send_far(&blocks, FarId(place.0)) {
                    Ok(()) => {
                        self.cache.sent(&mut self.running[at].lease).map_err(unbalanced)?;
                        self.shared.counters().stats.blocks_sent_far += blocks.len() as u64;
                    }
                    Err(why) => {
                        let sequence = self.running.remove(at);
                        self.lose(sequence, EngineError::Lost(why))?;
                        self.publish(None);
                    }
                },
            }
        }
    }

    fn next_departure(&self) -> Next {
        let share = self.cache.share();
        for (at, one) in self.running.iter().enumerate().filter(|(_, one)| one.is_ready()) {
            if due(share, &self.limits, one.length(), one.lease.far_blocks()) == 0 {
                continue;
            }
            if !self.flights.is_empty() {
                return Next::Collect;
            }
            match self.cache.departing(&one.lease, one.fed) {
                Some((blocks, Some(place))) => {
                    return Next::Send(at, blocks.iter().map(|block| BlockId(block.0)).collect(), place);
                }
                Some((_, None)) => return Next::PreEmpt,
                // Of a prompt that is not fed yet.
                None => {}
            }
        }
        Next::Nothing
    }

    /// Ends a sequence that cannot go on.
    ///
    /// # Errors
    /// See [`Forward::free`].
    pub(super) fn lose(&mut self, mut sequence: Sequence, why: EngineError) -> Result<(), String> {
        let event = self.failed(&sequence, why);
        self.free(&mut sequence)?;
        self.farewells.push((sequence.client, event));
        Ok(())
    }
}

/// Most tokens that a sequence can come to have in a step with so many blocks on disk.
fn most(share: &Share, limits: &Limits, far: usize) -> usize {
    let blocks = share.resident.saturating_add(far);
    blocks.saturating_mul(limits.block_tokens).saturating_sub(limits.reach)
}

/// A running sequence with so many blocks on disk, as the scheduler is to see it.
pub(super) fn shown(share: &Share, limits: &Limits, far: usize, one: Running) -> Running {
    let most = most(share, limits, far);
    let (tokens, limit) = (one.tokens.min(most), one.limit.min(most));
    Running { tokens, prefill: one.prefill.min(most), limit, blocks: one.blocks + far, ..one }
}

/// A waiting sequence as the scheduler is to see it.
pub(super) fn shown_waiting(share: &Share, limits: &Limits, one: Waiting) -> Waiting {
    let most = most(share, limits, 0);
    Waiting {
        tokens: one.tokens.min(most),
        prefill: one.prefill.min(most),
        limit: one.limit.min(most),
        ..one
    }
}

/// Places on disk that a sequence with so many tokens, and blocks there, is still going to need for those.
pub(super) fn due(share: &Share, limits: &Limits, tokens: usize, far: usize) -> usize {
    share.due(blocks_for(tokens + limits.reach, limits.block_tokens), far)
}
