//! The forward thread: the loop that carries the scheduler's decisions out.
//!
//! One turn: take what arrived, drop what nobody wants, plan and submit a step, collect the oldest in flight
//! and hand its tokens out. With [`Model::STEPS_IN_FLIGHT`] at 1 that is the step just submitted; with 2 the
//! device works on the next one meanwhile, planned as if no row of the step before it ended its sequence. A
//! row whose sequence did end is surplus: its token is dropped.
//!
//! The cut: `plan` decides a step and writes it down, `contract` checks what came of one and `apply` books
//! it, `flights` knows what steps in flight hold; `endings` counts what ends and fails what is left. Only
//! [`Forward::run`] and [`Forward::turn`] are compiled for each model. An engine with nothing to do sleeps on
//! its channel.

mod apply;
mod contract;
mod endings;
mod far;
mod flights;
#[cfg(test)]
mod order;
mod plan;
mod prefix;
mod swap;
#[cfg(test)]
mod walk;

use crate::handle::{EngineOptions, FarShare, ScheduleOptions};
use crate::request::{EngineError, Event};
use crate::scheduler::{Candidate, Clients, Limits, Pace, Running, Turns, Waiting};
use crate::sequence::{Client, Sequence};
use crate::shared::{Health, Shared};
use contract::Contract;
use endings::guarded;
use flights::{Flight, Flights, Row};
use monomorph_cache::{PoolError, PrefixCache, Reuse, SavePoints, Share};
use monomorph_model::{Model, ModelSpec, SequenceStep, Slot, Step};
use prefix::Evictions;
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, TryRecvError};
use std::time::{Duration, Instant};
pub(crate) use swap::Images;

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
    /// Stop now: answers are wrong, for the reason given.
    Condemn(String),
}

/// Everything the forward thread owns but the model.
pub(crate) struct Forward {
    inbox: Receiver<Command>,
    shared: Arc<Shared>,
    limits: Limits,
    /// Whether a sequence that was pre-empted is fed what it had generated as it was at first, a token a
    /// step.
    replays: bool,
    contract: Contract,
    /// Whether blocks are found as soon as they are computed, and at the multiples of how many tokens.
    shares: bool,
    granule: usize,
    cache: PrefixCache,
    /// What went for others since the counters heard of it last.
    evictions: Evictions,
    /// Where states are saved; `None` where they are not.
    saves: Option<SavePoints>,
    free_slots: Vec<Slot>,
    schedule: ScheduleOptions,
    /// When a step is planned in the scheduler's order, which pre-empts the last; otherwise in any.
    running: Vec<Sequence>,
    /// In the order of their arrival.
    waiting: VecDeque<Sequence>,
    /// Which of them are next, and who asks for how much.
    picked: Vec<usize>,
    candidates: Vec<Candidate>,
    turns: Turns,
    clients: Clients,
    /// Which of them was looked up last, only to order them.
    looked: usize,
    pace: Pace,
    /// Set when no request will come any more.
    closing: bool,
    deadline: Option<Instant>,
    /// Why answers are wrong, once that is known.
    condemned: Option<String>,
    flights: Flights,
    /// What was computed of those that wait to go on.
    images: Images,
    /// Whether the next that waits does so for its copy's pages.
    awaits_pages: bool,
    /// The next step, and what to remember of it until it is collected.
    step: Step,
    rows: Vec<Row>,
    /// Rows of earlier steps and their token lists, kept for the memory they hold.
    spare: Vec<SequenceStep>,
    spare_ids: Vec<Vec<u32>>,
    /// Index among the running by slot, while a step is worked off.
    places: Vec<Option<usize>>,
    /// When the step collected last was.
    collected: Option<Instant>,
    /// Time spent on planning since the counters heard of it last.
    planning: Duration,
    running_view: Vec<Running>,
    waiting_view: Vec<Waiting>,
    /// Last words, said after the counters are up to date: who hears them sees their blocks returned, but for
    /// those that a step in flight holds.
    farewells: Vec<(Client, Event)>,
}

impl Forward {
    pub fn new(
        spec: &'static ModelSpec,
        options: &EngineOptions,
        images: Images,
        inbox: Receiver<Command>,
        shared: Arc<Shared>,
    ) -> Forward {
        let EngineOptions { blocks, sequences, ref prefix, schedule, far, .. } = *options;
        let limits = plan::limits(spec, sequences, schedule.prefill_tokens);
        let reuse = match (prefix.enabled, spec.state_bytes, prefix.snapshots) {
            (true, 0, _) => Reuse::Blocks,
            (true, _, 1..) => Reuse::Snapshots { places: prefix.snapshots },
            (false, ..) | (true, _, 0) => Reuse::Nothing,
        };
        // What is gone on from holds whole blocks, and ends where pieces of prompts may.
        let granule = spec.block_tokens * spec.piece_tokens() / gcd(spec.block_tokens, spec.piece_tokens());
        let points = SavePoints { granule, interval: prefix.snapshot_interval };
        let slots = u32::try_from(limits.running()).unwrap_or(u32::MAX);
        let cache = PrefixCache::new(blocks, spec.block_tokens, granule, reuse);
        Forward {
            inbox,
            shared,
            limits,
            replays: spec.batch_invariant.is_some(),
            contract: Contract::new(spec),
            shares: matches!(reuse, Reuse::Blocks),
            granule,
            cache: match far {
                None => cache,
                Some(FarShare { room, resident }) => {
                    let (fed, reach) = (spec.step_tokens, spec.reach());
                    let share = Share::new(resident, room.group, spec.block_tokens, fed, reach);
                    cache.with_far(share, room.places)
                }
            },
            evictions: Evictions::default(),
            saves: matches!(reuse, Reuse::Snapshots { .. }).then_some(points),
            free_slots: (0..slots).rev().map(Slot).collect(),
            schedule,
            running: Vec::new(),
            waiting: VecDeque::new(),
            picked: Vec::new(),
            candidates: Vec::new(),
            turns: Turns::default(),
            clients: Clients::default(),
            looked: 0,
            pace: Pace::default(),
            closing: false,
            deadline: None,
            condemned: None,
            flights: Flights::default(),
            images,
            awaits_pages: false,
            step: Step::default(),
            rows: Vec::new(),
            spare: Vec::new(),
            spare_ids: Vec::new(),
            places: vec![None; slots as usize],
            collected: None,
            planning: Duration::ZERO,
            running_view: Vec::new(),
            waiting_view: Vec::new(),
            farewells: Vec::new(),
        }
    }

    /// Sequences that run at a time, at most.
    pub fn most_running(&self) -> usize {
        self.limits.running()
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
                let poisoned = self.condemned.is_some();
                let health = if poisoned { Health::Poisoned } else { Health::Dead };
                self.shared.set_health(health(fault.clone()));
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
    /// When the model breaks its contract, or its answers are known to be wrong.
    fn run<M: Model>(&mut self, model: &mut M) -> Result<(), String> {
        while self.wait_for_work()? {
            self.turn(model)?;
        }
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
        // What to feed next is known when a step is collected, and not before.
        const { assert!(M::DRAFTS == 0 || M::STEPS_IN_FLIGHT == 1, "drafts with two steps in flight") };
        // Nor what to sample by, of answers that the host has a hand in.
        const {
            assert!(
                M::SAMPLES_APART || M::STEPS_IN_FLIGHT == 1,
                "two steps in flight, and none is told later"
            )
        };
        self.images.poll();
        let began = Instant::now();
        // What is sent to disk and cannot be ends its sequence, which may have been all there was.
        let ready = self.make_room(model)?;
        let idle = self.running.is_empty() && self.waiting.is_empty();
        let planned = ready && !idle && !self.step.sampling_follows && self.plan(M::SAMPLES_APART)?;
        let submitted = Instant::now();
        self.planning += submitted - began;
        if planned {
            if self.flights.is_empty() {
                self.shared.counters().step_began = Some(submitted);
            }
            self.carry(model);
            let ticket = model.submit(&self.step);
            self.step.copies.clear();
            let rows = std::mem::take(&mut self.rows);
            self.flights.push(Flight { ticket, submitted, rows });
            self.sample(model)?;
            if self.flights.len() < M::STEPS_IN_FLIGHT {
                return Ok(());
            }
        }
        if let Some(Flight { ticket, submitted, rows }) = self.flights.pop() {
            let output = model.collect(ticket);
            let collected = Instant::now();
            // The device turns to a step when it is there and the one before it is done.
            let began = self.collected.map_or(submitted, |before| before.max(submitted));
            self.collected = Some(collected);
            let prefilled = rows.iter().map(|row| row.prefilled).sum();
            self.pace.observe(prefilled, u64::try_from((collected - began).as_micros()).unwrap_or(u64::MAX));
            self.apply(&rows, output, collected)?;
            self.flights.recycle(rows);
            self.sample(model)?;
            self.publish(Some(Turn { began, collected }));
        } else if !planned {
            self.wait_for_pages();
        }
        Ok(())
    }

    /// Tells the step submitted last what its rows are sampled by, if it waits for that and the tokens of all
    /// before it are known. Masks are computed here: the device has begun the step.
    ///
    /// # Errors
    /// See [`Forward::free`].
    fn sample<M: Model>(&mut self, model: &mut M) -> Result<(), String> {
        if self.step.sampling_follows && self.flights.len() == 1 {
            self.tell()?;
            model.sample(&self.step);
            self.step.sampling_follows = false;
        }
        Ok(())
    }

    /// Takes in what has arrived and drops what nobody wants; sleeps while there is nothing to do. False when
    /// there never will be.
    ///
    /// # Errors
    /// See [`Forward::free`]; and when answers are known to be wrong.
    fn wait_for_work(&mut self) -> Result<bool, String> {
        loop {
            self.take_arrivals();
            if let Some(cause) = &self.condemned {
                return Err(cause.clone());
            }
            self.sweep()?;
            if self.has_work() {
                return Ok(true);
            }
            if self.closing {
                return Ok(false);
            }
            self.shared.sleeps(true);
            let command = self.inbox.recv();
            self.shared.sleeps(false);
            match command {
                Ok(command) => self.take(command),
                Err(_) => self.closing = true,
            }
        }
    }

    fn has_work(&self) -> bool {
        // What a disk is still writing for nobody does not keep a drained engine.
        self.has_sequences() || !self.flights.is_empty() || (!self.closing && self.images.under_way())
    }

    fn has_sequences(&self) -> bool {
        !(self.running.is_empty() && self.waiting.is_empty())
    }

    fn take_arrivals(&mut self) {
        loop {
            match self.inbox.try_recv() {
                Ok(command) => self.take(command),
                Err(TryRecvError::Empty) => return,
                Err(TryRecvError::Disconnected) => {
                    self.closing = true;
                    return;
                }
            }
        }
    }

    fn take(&mut self, command: Command) {
        match command {
            Command::Submit(sequence) => self.wait(*sequence),
            Command::Condemn(cause) => self.condemned = Some(cause),
            Command::Drain { deadline } => {
                self.closing = true;
                self.deadline = match (self.deadline, deadline) {
                    (Some(one), Some(other)) => Some(one.min(other)),
                    (one, other) => one.or(other),
                };
            }
        }
    }

    /// Lets a sequence wait for its turn.
    fn wait(&mut self, sequence: Sequence) {
        let at = self.waiting.partition_point(|one| one.number < sequence.number);
        self.waiting.insert(at, sequence);
    }

    /// Ends the sequences whose client is gone, and all of them after the deadline of a drain.
    ///
    /// # Errors
    /// See [`Forward::free`].
    fn sweep(&mut self) -> Result<(), String> {
        let late = self.deadline.is_some_and(|deadline| Instant::now() >= deadline);
        let gone = |sequence: &Sequence| late || sequence.client.gone().is_some();
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
        let event = match sequence.client.gone() {
            Some(reason) => {
                self.count_end(&sequence, reason, now);
                Event::Finished(sequence.finished(reason, now))
            }
            None => self.failed(&sequence, EngineError::DrainDeadline),
        };
        self.free(&mut sequence)?;
        self.farewells.push((sequence.client, event));
        Ok(())
    }

    /// Takes blocks and slot of a sequence back, from when no step in flight holds them.
    ///
    /// # Errors
    /// When the cache does not know its blocks: the books do not balance, and going on would mix tokens up.
    fn free(&mut self, sequence: &mut Sequence) -> Result<(), String> {
        if let Some(image) = sequence.image {
            self.images.drop(image);
        }
        sequence.forget();
        self.give_back(sequence)
    }

    /// The same of one that keeps what it knows.
    ///
    /// # Errors
    /// See [`Forward::free`].
    fn give_back(&mut self, sequence: &mut Sequence) -> Result<(), String> {
        let Some(slot) = sequence.slot.take() else { return Ok(()) };
        let (lease, last_step) = (sequence.lease.take(), sequence.last_step);
        self.flights
            .give_back(lease, slot, last_step, &mut self.cache, &mut self.free_slots)
            .map_err(unbalanced)
    }

    /// Brings the counters up to date, then says the last words that waited for them.
    fn publish(&mut self, turn: Option<Turn>) {
        let preempted =
            self.waiting.iter().filter(|one| one.clock.admitted.is_some() && !one.is_canary()).count();
        let mut counters = self.shared.counters();
        counters.preempted = preempted;
        counters.awake = Some(Instant::now());
        counters.stats.running = self.running.iter().filter(|one| !one.is_canary()).count();
        counters.stats.free_blocks = self.cache.available();
        let Evictions { blocks, snapshots } = std::mem::take(&mut self.evictions);
        counters.stats.blocks_evicted += blocks;
        counters.stats.snapshots_evicted += snapshots;
        counters.stats.cached_blocks = self.cache.cached();
        counters.stats.snapshots = self.cache.snapshots();
        counters.stats.free_far_places = self.cache.free_far();
        counters.stats.swap = self.images.count();
        if let Some(Turn { began, collected }) = turn {
            let now = Instant::now();
            counters.stepped(collected - began);
            counters.stats.host_time += std::mem::take(&mut self.planning) + (now - collected);
            counters.step_began = (!self.flights.is_empty()).then_some(collected);
            counters.step_ended = Some(now);
        }
        drop(counters);
        for (client, event) in self.farewells.drain(..) {
            client.tell(event);
        }
    }
}

/// When the device turned to a step, and when it was collected.
struct Turn {
    began: Instant,
    collected: Instant,
}

/// What to say when the cache does not know the blocks of a sequence.
fn unbalanced(error: PoolError) -> String {
    format!("the blocks of a sequence cannot come back: {error}")
}

/// The greatest common divisor of two numbers above 0.
fn gcd(a: usize, b: usize) -> usize {
    if b == 0 { a } else { gcd(b, a % b) }
}
