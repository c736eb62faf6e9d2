//! The forward thread: the loop that carries the scheduler's decisions out.
//!
//! One turn: take what arrived, drop what nobody wants, plan, submit, collect, hand out. Only [`Forward::run`]
//! is compiled for each model. An engine with nothing to do sleeps on its channel.

use crate::request::{EngineError, Event, FinishReason, Finished};
use crate::scheduler::{Limits, Plan, Row, Running, View, Waiting, schedule};
use crate::sequence::{Client, Sequence};
use crate::shared::{Health, Shared};
use monomorph_cache::BlockPool;
use monomorph_model::{
    BlockId, Model, ModelSpec, Output, RowOutput, SequenceStep, Slot, Step, StepOutput, Tokens,
};
use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, TryRecvError};
use std::time::Instant;

/// What handles send to the forward thread.
#[derive(Debug)]
pub(crate) enum Command {
    /// A new sequence.
    Submit(Box<Sequence>),
    /// Stop when all accepted sequences are finished, or at the deadline; `None` is never.
    Drain {
        /// When to give up what is not finished.
        deadline: Option<Instant>,
    },
}

/// Everything the forward thread owns but the model.
pub(crate) struct Forward {
    inbox: Receiver<Command>,
    shared: Arc<Shared>,
    limits: Limits,
    vocabulary: usize,
    pool: BlockPool,
    free_slots: Vec<Slot>,
    /// Oldest first.
    running: Vec<Sequence>,
    /// Next first; all younger than the running.
    waiting: VecDeque<Sequence>,
    /// Set when no request will come any more.
    closing: bool,
    deadline: Option<Instant>,
    /// The step in flight and the rows it was made of.
    step: Step,
    rows: Vec<Row>,
    /// Rows of earlier steps, kept for the memory they hold.
    spare: Vec<SequenceStep>,
    running_view: Vec<Running>,
    waiting_view: Vec<Waiting>,
    /// Last words, said after the counters are up to date: who hears them sees their blocks returned.
    farewells: Vec<(Client, Event)>,
}

impl Forward {
    pub fn new(spec: &ModelSpec, blocks: usize, inbox: Receiver<Command>, shared: Arc<Shared>) -> Forward {
        let limits = Limits {
            block_tokens: spec.block_tokens,
            step_tokens: spec.step_tokens,
            step_sequences: spec.step_sequences,
        };
        let slots = u32::try_from(limits.running()).unwrap_or(u32::MAX);
        Forward {
            inbox,
            shared,
            limits,
            vocabulary: spec.vocabulary,
            pool: BlockPool::new(blocks),
            free_slots: (0..slots).rev().map(Slot).collect(),
            running: Vec::new(),
            waiting: VecDeque::new(),
            closing: false,
            deadline: None,
            step: Step::default(),
            rows: Vec::new(),
            spare: Vec::new(),
            running_view: Vec::new(),
            waiting_view: Vec::new(),
            farewells: Vec::new(),
        }
    }

    /// The life of the forward thread.
    pub fn serve<M: Model>(mut self, mut model: M) {
        // After a panic nothing of the model is used again, and of the engine only the clients.
        let fault = match guarded(|| self.run(&mut model)) {
            Ok(outcome) => outcome.err(),
            Err(message) => Some(format!("the forward thread panicked: {message}")),
        };
        let end = match fault {
            Some(fault) => {
                // Health first: a client that hears of the failure and asks again must not be accepted.
                self.shared.set_health(Health::Dead(fault.clone()));
                self.fail_all(&EngineError::Fault(fault));
                None
            }
            None => Some(Health::Stopped),
        };
        // A model that broke may break again on its way out.
        if let Err(message) = guarded(|| drop(model)) {
            self.shared.set_health(Health::Dead(format!("the model panicked when dropped: {message}")));
        }
        if let Some(end) = end {
            self.shared.set_health(end);
            self.fail_all(&EngineError::Stopped);
        }
    }

    /// Steps until there is nothing more to do.
    ///
    /// # Errors
    /// When the model breaks its contract.
    fn run<M: Model>(&mut self, model: &mut M) -> Result<(), String> {
        while self.wait_for_work()? {
            let began = Instant::now();
            self.plan()?;
            let submitted = Instant::now();
            self.shared.counters().step_began = Some(submitted);
            let ticket = model.submit(&self.step);
            let output = model.collect(ticket);
            let collected = Instant::now();
            self.apply(output, collected)?;
            self.publish(Some(Turn { began, submitted, collected }));
        }
        Ok(())
    }

    /// Takes in what has arrived and drops what nobody wants; sleeps while there is nothing to do. False when
    /// there never will be.
    ///
    /// # Errors
    /// See [`Forward::free`].
    fn wait_for_work(&mut self) -> Result<bool, String> {
        loop {
            loop {
                match self.inbox.try_recv() {
                    Ok(command) => self.take(command),
                    Err(TryRecvError::Empty) => break,
                    Err(TryRecvError::Disconnected) => {
                        self.closing = true;
                        break;
                    }
                }
            }
            self.sweep()?;
            if !self.running.is_empty() || !self.waiting.is_empty() {
                return Ok(true);
            }
            if self.closing {
                return Ok(false);
            }
            match self.inbox.recv() {
                Ok(command) => self.take(command),
                Err(_) => self.closing = true,
            }
        }
    }

    fn take(&mut self, command: Command) {
        match command {
            Command::Submit(sequence) => self.waiting.push_back(*sequence),
            Command::Drain { deadline } => {
                self.closing = true;
                self.deadline = match (self.deadline, deadline) {
                    (Some(one), Some(other)) => Some(one.min(other)),
                    (one, other) => one.or(other),
                };
            }
        }
    }

    /// Ends the sequences whose client is gone, and all of them after the deadline of a drain.
    ///
    /// # Errors
    /// See [`Forward::free`].
    fn sweep(&mut self) -> Result<(), String> {
        let late = self.deadline.is_some_and(|deadline| Instant::now() >= deadline);
        let gone = |sequence: &Sequence| late || sequence.client.is_gone();
        if !self.running.iter().any(gone) && !self.waiting.iter().any(gone) {
            return Ok(());
        }
        let now = Instant::now();
        for at in (0..self.running.len()).rev() {
            if gone(&self.running[at]) {
                let sequence = self.running.remove(at);
                self.give_up(sequence, now)?;
            }
        }
        for at in (0..self.waiting.len()).rev() {
            if gone(&self.waiting[at])
                && let Some(sequence) = self.waiting.remove(at)
            {
                self.give_up(sequence, now)?;
            }
        }
        self.publish(None);
        Ok(())
    }

    /// Ends a sequence that is not complete.
    ///
    /// # Errors
    /// See [`Forward::free`].
    fn give_up(&mut self, mut sequence: Sequence, now: Instant) -> Result<(), String> {
        let event = if sequence.client.is_gone() {
            self.shared.counters().stats.cancelled += 1;
            Event::Finished(sequence.finished(FinishReason::Cancelled, now))
        } else {
            Event::Failed(EngineError::DrainDeadline)
        };
        self.free(&mut sequence)?;
        self.farewells.push((sequence.client, event));
        Ok(())
    }

    /// Takes blocks and slot of a sequence back.
    ///
    /// # Errors
    /// When the pool does not know its blocks: the books do not balance, and going on would mix tokens up.
    fn free(&mut self, sequence: &mut Sequence) -> Result<(), String> {
        let released = sequence.table.release(&mut self.pool);
        released.map_err(|error| format!("the blocks of a sequence cannot come back: {error}"))?;
        self.free_slots.extend(sequence.slot.take());
        sequence.cached = 0;
        Ok(())
    }

    /// Decides the next step and makes it ready in `self.step`.
    ///
    /// # Errors
    /// When there is nothing to run, or the blocks promised are not there: both would be mistakes in here.
    fn plan(&mut self) -> Result<(), String> {
        self.running_view.clear();
        self.running_view.extend(self.running.iter().map(Sequence::as_running));
        self.waiting_view.clear();
        let most = self.limits.running();
        self.waiting_view.extend(self.waiting.iter().take(most).map(Sequence::as_waiting));
        let view =
            View { free_blocks: self.pool.free(), running: &self.running_view, waiting: &self.waiting_view };
        let Plan { preempt, admit, rows } = schedule(&view, &self.limits);
        if rows.is_empty() {
            return Err(format!(
                "no step for {} running and {} waiting sequences with {} free blocks",
                self.running.len(),
                self.waiting.len(),
                self.pool.free()
            ));
        }
        for _ in 0..preempt {
            if let Some(mut sequence) = self.running.pop() {
                self.free(&mut sequence)?;
                self.waiting.push_front(sequence);
            }
        }
        if admit > 0 {
            let now = Instant::now();
            for _ in 0..admit {
                let Some(mut sequence) = self.waiting.pop_front() else { break };
                sequence.clock.admitted.get_or_insert(now);
                sequence.place = None;
                sequence.slot = self.free_slots.pop();
                self.running.push(sequence);
            }
        }
        for sequence in &mut self.running {
            let tokens = sequence.tokens.len();
            sequence.table.grow(tokens, &mut self.pool).map_err(|error| format!("planned, but {error}"))?;
        }
        if preempt > 0 || admit > 0 {
            self.shared.counters().stats.preemptions += preempt as u64;
            self.publish(None);
        }
        self.rows = rows;
        self.build()
    }

    /// Writes the planned rows into `self.step`, reusing the memory of earlier steps: nothing is allocated
    /// once the rows have seen their longest sequence.
    fn build(&mut self) -> Result<(), String> {
        self.spare.append(&mut self.step.sequences);
        for &Row { sequence, tokens } in &self.rows {
            let sequence = &self.running[sequence];
            let slot = sequence.slot.ok_or("a sequence runs without a slot")?;
            let mut row = self.spare.pop().unwrap_or_else(|| SequenceStep {
                slot,
                position: 0,
                tokens: Tokens::Known(Vec::new()),
                blocks: Vec::new(),
                output: Output::None,
            });
            let end = sequence.cached + tokens;
            row.slot = slot;
            row.position = sequence.cached;
            row.tokens = Tokens::Known(sequence.tokens[sequence.cached..end].to_vec());
            row.blocks.clear();
            row.blocks.extend(sequence.table.prefix(end).iter().map(|block| BlockId(block.0)));
            let mut history = match std::mem::replace(&mut row.output, Output::None) {
                Output::Sample { history, .. } => history,
                Output::None | Output::Logits => Vec::new(),
            };
            if end == sequence.tokens.len() {
                history.clear();
                if let Some(known) = &sequence.history {
                    history.extend_from_slice(known.uses());
                }
                let draw = sequence.generated() as u64;
                row.output = Output::Sample { sampling: sequence.sampling.clone(), draw, history };
            }
            self.step.sequences.push(row);
        }
        Ok(())
    }

    /// Books what a step produced and hands it out.
    ///
    /// # Errors
    /// When the output is not what was asked for.
    fn apply(&mut self, output: StepOutput, now: Instant) -> Result<(), String> {
        let (asked, got) = (self.rows.len(), output.rows.len());
        if asked != got {
            return Err(format!("the model answered a step of {asked} sequences with {got} rows"));
        }
        let mut finished: Vec<(usize, Finished)> = Vec::new();
        let (mut prefilled, mut generated) = (0, 0);
        for (at, (&Row { sequence: index, tokens }, output)) in self.rows.iter().zip(output.rows).enumerate()
        {
            let sequence = &mut self.running[index];
            if !sequence.decodes() {
                prefilled += tokens as u64;
            }
            sequence.cached += tokens;
            let samples = sequence.cached == sequence.tokens.len();
            match output {
                RowOutput::None if !samples => {}
                RowOutput::Sampled(sampled) if samples => {
                    if sampled.id as usize >= self.vocabulary {
                        let (id, vocabulary) = (sampled.id, self.vocabulary);
                        return Err(format!("the model sampled token {id} of a vocabulary of {vocabulary}"));
                    }
                    generated += 1;
                    finished.extend(sequence.push(sampled, now).map(|finished| (index, finished)));
                }
                other => {
                    let asked = if samples { "a sampled token" } else { "nothing" };
                    let got = match other {
                        RowOutput::None => "nothing",
                        RowOutput::Sampled(_) => "a sampled token",
                        RowOutput::Logits(_) => "logits",
                    };
                    return Err(format!("row {at} asked the model for {asked} and got {got}"));
                }
            }
        }
        // Rows are in the order of the running, so from the end no index moves before its turn.
        for (index, finished) in finished.into_iter().rev() {
            let mut sequence = self.running.remove(index);
            self.free(&mut sequence)?;
            self.shared.counters().stats.finished += 1;
            self.farewells.push((sequence.client, Event::Finished(finished)));
        }
        let mut counters = self.shared.counters();
        counters.stats.tokens_prefilled += prefilled;
        counters.stats.tokens_generated += generated;
        Ok(())
    }

    /// Brings the counters up to date, then says the last words that waited for them.
    fn publish(&mut self, turn: Option<Turn>) {
        let preempted = self.waiting.iter().take_while(|one| one.clock.admitted.is_some()).count();
        let mut counters = self.shared.counters();
        counters.preempted = preempted;
        counters.stats.running = self.running.len();
        counters.stats.free_blocks = self.pool.free();
        if let Some(Turn { began, submitted, collected }) = turn {
            let now = Instant::now();
            counters.stats.steps += 1;
            counters.stats.device_time += collected - submitted;
            counters.stats.host_time += (submitted - began) + (now - collected);
            counters.step_began = None;
            counters.step_ended = Some(now);
        }
        drop(counters);
        for (client, event) in self.farewells.drain(..) {
            client.tell(event);
        }
    }

    /// Ends everything, accepted or still on its way.
    fn fail_all(&mut self, error: &EngineError) {
        while let Ok(command) = self.inbox.try_recv() {
            self.take(command);
        }
        let sequences: Vec<Sequence> = self.running.drain(..).chain(self.waiting.drain(..)).collect();
        for mut sequence in sequences {
            // After a panic the books need not balance, and nobody will allocate from them again.
            let _ = sequence.table.release(&mut self.pool);
            self.farewells.push((sequence.client, Event::Failed(error.clone())));
        }
        self.shared.counters().step_began = None;
        self.publish(None);
    }
}

/// The moments of one turn of the loop.
struct Turn {
    began: Instant,
    submitted: Instant,
    collected: Instant,
}

/// Runs `work`; what it says when it panics is the error.
fn guarded<T>(work: impl FnOnce() -> T) -> Result<T, String> {
    catch_unwind(AssertUnwindSafe(work)).map_err(|panic| {
        let text = panic.downcast_ref::<&str>().copied();
        let text = text.or_else(|| panic.downcast_ref::<String>().map(String::as_str));
        text.unwrap_or("no message").to_owned()
    })
}
