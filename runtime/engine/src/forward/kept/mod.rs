//! Kept prefixes: what the index of prefixes comes to know is written to files, and comes back from them when
//! a prompt begins so and the device does not have it any more, or not yet. Of models with recurrent state
//! these are blocks and the snapshots behind them.
//!
//! Blocks are copied while no step is in flight. What comes back waits for the steps in flight, as a sequence
//! that was swapped out does; what goes out waits for a moment without one, unless much of it has gathered.

mod keeper;
mod state;

pub(crate) use keeper::Keeper;

use super::Forward;
use crate::sequence::Sequence;
use keeper::Asked;
use monomorph_model::Model;
use std::time::{Duration, Instant};

/// How long the end of an engine waits for what is not written yet.
const LAST: Duration = Duration::from_secs(2);
const LOOK: Duration = Duration::from_millis(20);

impl Forward {
    /// Copies blocks out and back where that can be done now. False when a step in flight must be collected
    /// first.
    ///
    /// # Errors
    /// On an accounting error.
    pub(super) fn keep<M: Model>(&mut self, model: &mut M) -> Result<bool, String> {
        let Some(keeper) = &mut self.kept else { return Ok(true) };
        keeper.poll();
        let (arrived, fresh) = (keeper.has_arrived(), self.memory.fresh());
        if !arrived && (fresh == 0 || !keeper.may_write()) {
            return Ok(true);
        }
        if !self.pipeline.is_empty() {
            // Before the device needs their blocks for others.
            let enough = keeper.room().min(self.memory.cache().most_fresh() / 8).max(1);
            let many = fresh >= enough && !keeper.under_way();
            return Ok(!(arrived || many));
        }
        if arrived {
            let number = keeper.comes_for();
            let replays = self.memory.replays();
            match self.queue.iter_mut().find(|one| Some(one.number) == number) {
                None => keeper.give_up(),
                Some(one) => {
                    let over = keeper.bring_in(model, &mut self.memory, one.sought(replays))?;
                    one.asked_files |= over;
                }
            }
        }
        keeper.copy_out(model, &mut self.memory);
        Ok(true)
    }

    /// Whether a waiting sequence, of which so many tokens were found in memory, waits for more from the
    /// files. Each is asked for once, so that what goes again meanwhile is computed.
    pub(super) fn comes_from_files(&mut self, at: usize, found: usize) -> bool {
        let Some(keeper) = &mut self.kept else { return false };
        let one = self.queue.get_mut(at);
        if one.asked_files {
            return false;
        }
        let (number, found) = (one.number, found / self.memory.block_tokens());
        let prompt = one.sought(self.memory.replays());
        // A token is fed in any case.
        let prompt = prompt.first(prompt.len().saturating_sub(1));
        let known = self.memory.known_blocks(prompt);
        let asked = keeper.ask(number, prompt, [found, known], self.memory.share().kept);
        one.asked_files = asked == Asked::Nothing;
        asked == Asked::Comes
    }

    /// Counts what a sequence was admitted with as used, in the files too.
    pub(super) fn touch_kept(&mut self, sequence: &Sequence, found: usize) {
        if let Some(keeper) = &mut self.kept {
            keeper.touch(sequence.content().first(found));
        }
    }

    /// Whether there is something to write that no request waits for.
    pub(super) fn keeps(&self) -> bool {
        self.kept.as_ref().is_some_and(|keeper| keeper.under_way() || self.memory.fresh() > 0)
    }

    /// Writes what is not written yet, as far as there is time, before an engine ends.
    pub(super) fn keep_last<M: Model>(&mut self, model: &mut M) {
        let began = Instant::now();
        while let Some(keeper) = &mut self.kept
            && began.elapsed() < LAST
        {
            keeper.poll();
            keeper.copy_out(model, &mut self.memory);
            if !keeper.under_way() {
                return;
            }
            keeper.wait(LOOK);
        }
    }

    /// What was computed is wrong: nobody finds it after the end.
    pub(super) fn forget_kept(&mut self) {
        if let Some(keeper) = &mut self.kept {
            keeper.forget_all();
        }
    }
}
