//! The forward thread: the loop that carries the scheduler's decisions out.
//!
//! One turn: take what arrived, drop cancelled requests, plan and submit a step, collect the oldest in flight
//! and hand its tokens out. With [`Model::STEPS_IN_FLIGHT`] at 1 that is the step just submitted; with 2 the
//! device works on the next one meanwhile, planned as if no row of the step before it ended its sequence. The
//! row of a sequence that did end is discarded with its token.
//!
//! Each part owns what it changes, and no field of one is seen outside it: `inbox` what handles send, `queue`
//! the sequences that wait, `batch` those that run, `memory` blocks, slots and snapshots, `swap` the copies
//! of pre-empted sequences, `kept` the files of kept prefixes, `pipeline` the steps in flight, `step` the
//! one being built; `outputs` sends events and counters. [`Forward`] connects them: `plan` decides a step,
//! `apply` updates sequences from its output, which `contract` checks; `offload` sends blocks to disk between
//! steps; `tower` has images seen.
//! Only [`Forward::run`], [`Forward::turn`] and what they call with the model are compiled for each. An
//! engine with nothing to do sleeps on its inbox.

mod apply;
mod batch;
mod contract;
mod in_flight;
mod inbox;
mod kept;
mod memory;
mod offload;
mod outputs;
mod plan;
mod queue;
mod row;
mod sliding;
mod states;
mod step;
mod swap;
mod tower;
#[cfg(test)]
mod walk;

use crate::options::EngineOptions;
use crate::request::{EngineError, Event};
use crate::sequence::Sequence;
use crate::shared::{Health, Shared};
use batch::Batch;
use contract::Contract;
use in_flight::{InFlight, Pipeline};
pub(crate) use inbox::Command;
use inbox::Inbox;
pub(crate) use kept::Keeper;
use memory::Memory;
use monomorph_model::{Model, ModelSpec};
use outputs::{Outputs, Turn};
use plan::{Planned, Planner};
use queue::Queue;
pub(crate) use sliding::SlidingWindows;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::mpsc::Receiver;
use std::time::Instant;
use step::StepBuilder;
pub(crate) use swap::Images;
use tower::{Tower, TowerCounts};

/// Everything the forward thread owns but the model.
pub(crate) struct Forward {
    inbox: Inbox,
    queue: Queue,
    batch: Batch,
    planner: Planner,
    memory: Memory,
    images: Images,
    kept: Option<Keeper>,
    tower: Tower,
    step: StepBuilder,
    pipeline: Pipeline,
    contract: Contract,
    outputs: Outputs,
}

impl Forward {
    pub fn new(
        spec: &'static ModelSpec,
        options: &EngineOptions,
        (images, kept): (Images, Option<Keeper>),
        commands: Receiver<Command>,
        shared: Arc<Shared>,
    ) -> Forward {
        let planner = Planner::new(spec, options.sequences, options.schedule);
        let sequences = planner.limits().running();
        Forward {
            inbox: Inbox::new(commands),
            queue: Queue::default(),
            batch: Batch::new(sequences),
            planner,
            memory: Memory::new(spec, options, sequences),
            images,
            kept,
            tower: Tower::new(options.vision.map_or(0, |vision| vision.slots)),
            step: StepBuilder::default(),
            pipeline: Pipeline::default(),
            contract: Contract::new(spec),
            outputs: Outputs::new(shared),
        }
    }

    /// Sequences that run at a time, at most.
    pub fn most_running(&self) -> usize {
        self.planner.limits().running()
    }

    /// Tokens of an image that every step has room for.
    pub fn most_whole(&self) -> usize {
        self.planner.limits().most_whole()
    }

    /// Runs the forward thread until the engine stops.
    pub fn serve<M: Model>(mut self, mut model: M) {
        // After a panic the model is not used again, and of the engine only the client channels are.
        let fault = match guarded(|| self.run(&mut model)) {
            Ok(outcome) => outcome.err(),
            Err(message) => Some(format!("the forward thread panicked: {message}")),
        };
        let end = match fault {
            Some(fault) => {
                // Health first: a client that hears of the failure and asks again must not be accepted.
                let poisoned = self.inbox.condemned().is_some();
                let health = if poisoned { Health::Poisoned } else { Health::Dead };
                self.outputs.set_health(health(fault.clone()));
                self.fail_all(&EngineError::Fault(fault));
                None
            }
            None => Some(Health::Stopped),
        };
        // A model that panicked may panic again when dropped.
        if let Err(message) = guarded(|| drop(model)) {
            self.outputs.set_health(Health::Dead(format!("the model panicked when dropped: {message}")));
        }
        if let Some(end) = end {
            self.outputs.set_health(end);
            self.fail_all(&EngineError::Stopped);
        }
    }

    /// Steps until there is nothing more to do.
    ///
    /// # Errors
    /// When the model breaks its contract, or its answers are known to be wrong.
    fn run<M: Model>(&mut self, model: &mut M) -> Result<(), String> {
        while self.wait_for_work()? {
            self.turn(model)?;
        }
        self.keep_last(model);
        Ok(())
    }

    /// Submits the next step if there is one, and collects the oldest if no further one may or can be
    /// submitted.
    ///
    /// # Errors
    /// When the model breaks its contract.
    fn turn<M: Model>(&mut self, model: &mut M) -> Result<(), String> {
        const { assert!(M::STEPS_IN_FLIGHT > 0, "a model that takes no step") };
        const { assert!(M::DRAFTS == M::SPEC.drafts(), "a model that drafts otherwise than it says") };
        // With drafts, what to feed next is known only when the step is collected.
        const { assert!(M::DRAFTS == 0 || M::STEPS_IN_FLIGHT == 1, "drafts with two steps in flight") };
        // Sampling inputs may also depend on the previous token.
        const {
            assert!(
                M::SPLIT_SAMPLING || M::STEPS_IN_FLIGHT == 1,
                "two steps in flight, and none is told later"
            )
        };
        self.images.poll();
        let began = Instant::now();
        // A failed write to disk ends its sequence, which may have been the only one.
        let ready = self.make_room(model)? && self.keep(model)?;
        let may_plan = ready && self.has_sequences() && !self.step.awaits_sampling();
        if may_plan && self.see(model) {
            if self.pipeline.len() < M::STEPS_IN_FLIGHT {
                return Ok(());
            }
            return self.collect(model).map(drop);
        }
        let planned = if may_plan { self.plan(M::SPLIT_SAMPLING)? } else { Planned::Nothing };
        let submitted = Instant::now();
        self.outputs.planned(submitted - began);
        if planned != Planned::Nothing || self.pipeline.is_empty() {
            self.tower.rests();
        }
        if planned == Planned::Admitted {
            // What they were admitted with is copied now: the step that feeds them comes behind the tower's.
            self.images.carry(model, self.memory.copies());
            return Ok(());
        }
        if planned == Planned::Step {
            if self.pipeline.is_empty() {
                self.outputs.counters().step_began = Some(submitted);
            }
            self.images.carry(model, self.memory.copies());
            let ticket = model.submit(self.step.with_copies(self.memory.copies()));
            let rows = self.step.submitted();
            self.pipeline.push(InFlight { ticket, submitted, rows, sees: false });
            self.sample(model)?;
            if self.pipeline.len() < M::STEPS_IN_FLIGHT {
                return Ok(());
            }
        }
        if !self.collect(model)? && planned == Planned::Nothing {
            self.wait_for_pages();
        }
        Ok(())
    }

    /// Collects the oldest step in flight and applies its output; false where none is.
    ///
    /// # Errors
    /// When the model breaks its contract.
    fn collect<M: Model>(&mut self, model: &mut M) -> Result<bool, String> {
        let Some(InFlight { ticket, submitted, rows, sees }) = self.pipeline.pop() else { return Ok(false) };
        let output = model.collect(ticket);
        let collected = Instant::now();
        let began = self.pipeline.collected(submitted, collected);
        if !sees {
            self.planner.observe(rows.iter().map(|row| row.prefilled).sum(), collected - began);
        }
        self.apply(&rows, output, collected)?;
        self.pipeline.recycle(rows);
        self.sample(model)?;
        self.publish(Some(Turn { began, collected }));
        Ok(true)
    }

    /// Binds the sampling inputs of the step submitted last, if it waits for them and the tokens of all steps
    /// before it are known. Masks are computed here, while the device runs the step.
    ///
    /// # Errors
    /// See [`Forward::free`].
    fn sample<M: Model>(&mut self, model: &mut M) -> Result<(), String> {
        if self.step.awaits_sampling() && self.pipeline.len() == 1 {
            self.bind_sampling()?;
            model.sample(self.step.step());
            self.step.sampling_bound();
        }
        Ok(())
    }

    /// Takes in new requests and drops cancelled ones; sleeps while there is nothing to do. False when there
    /// never will be.
    ///
    /// # Errors
    /// See [`Forward::free`]; and when answers are known to be wrong.
    fn wait_for_work(&mut self) -> Result<bool, String> {
        loop {
            self.take_arrivals();
            if let Some(cause) = self.inbox.condemned() {
                let cause = cause.to_owned();
                self.forget_kept();
                return Err(cause);
            }
            self.sweep()?;
            if self.has_work() {
                return Ok(true);
            }
            if self.inbox.is_closed() {
                return Ok(false);
            }
            self.outputs.sleeps(true);
            let arrived = self.inbox.sleep();
            self.outputs.sleeps(false);
            arrived.into_iter().for_each(|sequence| self.queue.push(sequence));
        }
    }

    fn has_work(&self) -> bool {
        // Pending writes of dropped images do not delay a drain.
        let writes = !self.inbox.is_closed() && (self.images.under_way() || self.keeps());
        self.has_sequences() || !self.pipeline.is_empty() || writes
    }

    fn has_sequences(&self) -> bool {
        !(self.batch.is_empty() && self.queue.is_empty())
    }

    fn take_arrivals(&mut self) {
        while let Some(sequence) = self.inbox.next() {
            self.queue.push(sequence);
        }
    }

    /// Ends the sequences whose client is gone, and all of them after the deadline of a drain.
    ///
    /// # Errors
    /// See [`Forward::free`].
    fn sweep(&mut self) -> Result<(), String> {
        let late = self.inbox.is_overdue();
        let gone = |sequence: &Sequence| late || sequence.gone().is_some();
        if !self.batch.iter().any(gone) && !self.queue.iter().any(gone) {
            return Ok(());
        }
        let now = Instant::now();
        for at in (0..self.batch.len()).rev() {
            if gone(&self.batch[at]) {
                let sequence = self.batch.remove(at);
                self.give_up(sequence, now)?;
            }
        }
        while let Some(sequence) = self.queue.pop_gone(gone) {
            self.give_up(sequence, now)?;
        }
        self.publish(None);
        Ok(())
    }

    /// Ends an incomplete sequence whose client left or whose deadline passed.
    ///
    /// # Errors
    /// See [`Forward::free`].
    fn give_up(&mut self, mut sequence: Sequence, now: Instant) -> Result<(), String> {
        let Some(reason) = sequence.gone() else {
            return self.fail(sequence, EngineError::DrainDeadline);
        };
        self.outputs.count_end(&sequence, reason, now);
        let event = Event::Finished(sequence.finished(reason, now));
        self.free(&mut sequence)?;
        self.outputs.end(sequence.into_client(), event);
        Ok(())
    }

    /// Ends a sequence that cannot go on.
    ///
    /// # Errors
    /// See [`Forward::free`].
    fn fail(&mut self, mut sequence: Sequence, why: EngineError) -> Result<(), String> {
        let event = self.outputs.failed(&sequence, why);
        self.free(&mut sequence)?;
        self.outputs.end(sequence.into_client(), event);
        Ok(())
    }

    /// Fails every request, running, waiting or still in the inbox.
    fn fail_all(&mut self, error: &EngineError) {
        self.take_arrivals();
        self.pipeline.abandon(&mut self.memory);
        for mut sequence in self.batch.drain().chain(self.queue.drain()) {
            self.memory.abandon(&mut sequence.lease);
            let event = self.outputs.failed(&sequence, error.clone());
            self.outputs.end(sequence.into_client(), event);
        }
        self.outputs.counters().step_began = None;
        self.publish(None);
        self.outputs.sleeps(true);
    }

    /// Returns a sequence's blocks and slot to their pools once no step in flight holds them.
    ///
    /// # Errors
    /// On an accounting error: its blocks are not known, and to go on would mix up tokens.
    fn free(&mut self, sequence: &mut Sequence) -> Result<(), String> {
        if let Some(image) = sequence.image {
            self.images.drop(image);
        }
        sequence.forget();
        self.give_back(sequence)
    }

    /// As [`Forward::free`], without forgetting what was computed.
    ///
    /// # Errors
    /// See [`Forward::free`].
    fn give_back(&mut self, sequence: &mut Sequence) -> Result<(), String> {
        self.tower.release(sequence, usize::MAX);
        let Some(slot) = sequence.slot.take() else { return Ok(()) };
        self.pipeline.give_back(sequence.lease.take(), slot, sequence.last_step(), &mut self.memory)
    }

    /// Saves the state of a sequence that is over, unless a step in flight still feeds it.
    ///
    /// # Errors
    /// See [`Forward::free`].
    fn save_last(&mut self, sequence: &mut Sequence) -> Result<(), String> {
        if !self.pipeline.is_collected(sequence.last_step()) {
            return Ok(());
        }
        self.memory.save_last(sequence)
    }

    /// Brings the counters up to date, then sends the last events that waited for them.
    fn publish(&mut self, turn: Option<Turn>) {
        let turn = turn.map(|turn| (turn, self.outputs.take_planning()));
        let mut counters = self.outputs.counters();
        counters.preempted = self.queue.preempted();
        counters.awake = Some(Instant::now());
        counters.stats.running = self.batch.answering();
        counters.stats.swap = self.images.count();
        counters.stats.kept = self.kept.as_ref().map_or_else(Default::default, Keeper::count);
        let TowerCounts { seen, passes, found } = self.tower.count();
        counters.stats.images_seen += seen;
        counters.stats.image_passes += passes;
        counters.stats.images_found += found;
        self.memory.count(&mut counters.stats);
        if let Some((turn, planning)) = turn {
            turn.count(&mut counters, planning, !self.pipeline.is_empty());
        }
        drop(counters);
        self.outputs.deliver();
    }
}

/// Runs `work`; what it says when it panics is the error.
fn guarded<T>(work: impl FnOnce() -> T) -> Result<T, String> {
    catch_unwind(AssertUnwindSafe(work)).map_err(|panic| {
        let text = panic.downcast_ref::<&str>().copied();
        let text = text.or_else(|| panic.downcast_ref::<String>().map(String::as_str));
        text.unwrap_or("no message").to_owned()
    })
}
