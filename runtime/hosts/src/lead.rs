//! The model of a head: every call is sent to the workers, then carried out here.

use crate::call::{Answer, Call, RowAnswer, digest};
use crate::duties::{Duties, Share, perform};
use crate::ended::Ended;
use crate::head::Head;
use crate::hello::{Hello, Room};
use crate::hub::{Hub, Leaving};
use crate::meet;
use crate::message::{Effect, Task};
use crate::offload::local_blocks;
use crate::options::{MOST_RANKS, Options, most_bytes};
use crate::slots::{Limits, Slots, place, sampled_by};
use monomorph_model::{
    BlockId, LoadError, LoadOptions, Model, ModelSpec, OffloadRoom, OffloadSlot, Progress, RankMeter,
    RowOutput, SlidingId, SlidingSpec, StatePlace, Step, StepOutput, Ticket, Weights, set_device_fault,
};
use std::collections::VecDeque;
use std::net::TcpListener;
use std::panic::resume_unwind;
use std::sync::Arc;
use std::time::Instant;

/// A model whose calls all processes of a world carry out, in one order. A process that is gone, late or of
/// another opinion is a fault: what waits panics with the reason, and the process has to end.
pub struct Lead<M: Model> {
    model: M,
    hub: Arc<Hub<Head>>,
    slots: Slots,
    room: Room,
    share: Share,
    ranks: usize,
    /// Of steps in flight: the command that submitted each, and this process's own ticket.
    tickets: VecDeque<(u64, Ticket)>,
    /// Whether a call of the model here did not return: it panicked.
    calling: bool,
}

impl<M: Model> std::fmt::Debug for Lead<M> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Lead").field("room", &self.room).field("ranks", &self.ranks).finish_non_exhaustive()
    }
}

/// What no step exceeds where all agreed on this room.
pub(crate) fn limits<M: Model>(room: Room) -> Limits {
    let spec = M::SPEC;
    let number = |count: u64| usize::try_from(count).unwrap_or(usize::MAX);
    Limits {
        sequences: number(room.sequences),
        snapshots: number(room.snapshots),
        blocks: number(room.blocks),
        sliding: M::SLIDING.map(|layers| (layers.of(spec), number(room.sliding))),
        block_tokens: spec.block_tokens,
        group: number(room.group),
        vocabulary: spec.vocabulary,
        step_sequences: spec.step_sequences,
        step_tokens: spec.step_tokens,
    }
}

/// What is compared of a step's output.
pub(crate) fn answer(output: &StepOutput) -> Answer {
    let rows = output.rows.iter().map(|row| match row {
        RowOutput::None => RowAnswer::None,
        RowOutput::Sampled(sampled) => RowAnswer::Sampled(sampled.id),
        RowOutput::Verified(verified) => RowAnswer::verified(&verified.sampled, &verified.drafts),
        RowOutput::Logits(logits) => {
            RowAnswer::Logits(digest(logits.iter().map(|logit| logit.to_bits().into())))
        }
        RowOutput::Lost(_) => RowAnswer::Lost,
    });
    Answer::Collected(rows.collect())
}

impl<M: Model> Lead<M> {
    /// Waits for all workers at `listener`, goes through the start with them, and returns when all are ready.
    ///
    /// # Errors
    /// When one of them does not come, differs in what must be equal, is late, fails or is gone.
    pub fn start<D: Duties<Model = M>>(
        listener: TcpListener,
        hello: Hello,
        options: &Options,
        mut duties: D,
    ) -> Result<Lead<M>, Ended> {
        let ranks = hello.ranks;
        if !(1..=MOST_RANKS).contains(&ranks) {
            return Err(Ended::Refused(format!("--world-size {ranks} is not from 1 to {MOST_RANKS}")));
        }
        let Options { token, deadlines, say, .. } = options.clone();
        let (began, most) = (Instant::now(), most_bytes(M::SPEC));
        let head = Head::new(hello, deadlines);
        let hub =
            Hub::new(head, began, most, deadlines.silence, Arc::clone(&say), Arc::clone(&options.on_end));
        let leaving = Leaving::new(&hub);
        hub.tell(Head::start);
        hub.tick(deadlines.heartbeat, Arc::clone(&options.loaded)).map_err(Ended::Refused)?;
        meet::listen(listener, Arc::clone(&hub), token, deadlines.challenge, say).map_err(Ended::Refused)?;
        let mut model = None;
        loop {
            match hub.local()? {
                Effect::Begin(Task::Serve(_)) => break,
                Effect::Begin(task) => match perform(&mut duties, &mut model, &task) {
                    Ok(done) => hub.tell(|head, now| head.done(now, done)),
                    Err(why) => hub.tell(|head, _| head.fail(format!("the head cannot go on: {why}"))),
                },
                _ => {}
            }
        }
        let room = hub.tell(|head, _| head.room());
        let (Some(model), Some(room)) = (model, room) else {
            return Err(Ended::Refused("all are ready, and nothing is loaded".to_owned()));
        };
        leaving.goes_on();
        Ok(Lead {
            model,
            hub,
            slots: Slots::new(limits::<M>(room)),
            room,
            share: options.share,
            ranks: ranks as usize,
            tickets: VecDeque::new(),
            calling: false,
        })
    }

    /// Sends a call to all workers.
    fn command(&mut self, call: Call) -> u64 {
        match self.hub.tell(|head, now| head.command(now, call)) {
            Some(number) => number,
            None => self.fault(),
        }
    }

    /// Waits for all workers' answers to a command, which agree with this process's own.
    fn answers(&mut self, number: u64, own: Answer) -> Vec<Answer> {
        self.hub.tell(|head, _| head.carried(number, own));
        match self.hub.wait(|head| head.answers(number)) {
            Ok(answers) => answers,
            Err(_) => self.fault(),
        }
    }

    /// Carries a call out here. A panic in it ends the world when this is dropped.
    fn here<T>(&mut self, call: impl FnOnce(&mut M) -> T) -> T {
        self.calling = true;
        let done = call(&mut self.model);
        self.calling = false;
        done
    }

    /// Notes that the world broke, as a device's fault is noted, and unwinds to the engine, which tells all
    /// clients.
    fn fault(&self) -> ! {
        let why = self.hub.ended().map_or("the world ended".to_owned(), |ended| ended.to_string());
        set_device_fault(&why);
        resume_unwind(Box::new(why))
    }

    /// Notes a bug of the caller, which ends the world.
    fn bug(&self, why: String) -> ! {
        self.hub.tell(|head, _| head.fail(why));
        self.fault()
    }

    /// Reads a block or a state: here, and where others have a part of it, there.
    fn read(&mut self, call: Call, into: &mut [u8], read: impl FnOnce(&mut M, &mut [u8])) {
        // What all have is not compared: rows that were never written may hold anything.
        if self.share == Share::Whole {
            return self.here(|model| read(model, into));
        }
        let number = self.command(call);
        let own = self.share.range(into.len(), 0, self.ranks);
        self.here(|model| read(model, &mut into[own]));
        let own = Answer::Bytes(Vec::new());
        for (at, answer) in self.answers(number, own).into_iter().enumerate() {
            let Answer::Bytes(bytes) = answer else { continue };
            let part = self.share.range(into.len(), at + 1, self.ranks);
            if bytes.len() != part.len() {
                let (got, due) = (bytes.len(), part.len());
                self.bug(format!("rank {} read {got} bytes, and its part is {due}", at + 1));
            }
            into[part].copy_from_slice(&bytes);
        }
    }
}

impl<M: Model> Model for Lead<M> {
    const SPEC: &'static ModelSpec = M::SPEC;
    const SLIDING: Option<SlidingSpec> = M::SLIDING;
    const STEPS_IN_FLIGHT: usize = M::STEPS_IN_FLIGHT;
    const SPLIT_SAMPLING: bool = M::SPLIT_SAMPLING;
    const DRAFTS: usize = M::DRAFTS;
    const RANKS: usize = M::RANKS;
    const PROCESSES: &'static [usize] = M::PROCESSES;

    fn check_hardware(ordinals: &[usize]) -> Result<(), LoadError> {
        M::check_hardware(ordinals)
    }

    fn ordinal_of(uuid: &str) -> Result<usize, LoadError> {
        M::ordinal_of(uuid)
    }

    fn load(_: &Weights, _: &LoadOptions, _: &Progress) -> Result<Self, LoadError> {
        Err(LoadError::Device("the model of a world is started with its workers, not loaded".to_owned()))
    }

    fn blocks(&self) -> usize {
        limits::<M>(self.room).blocks
    }

    fn sliding_blocks(&self) -> usize {
        limits::<M>(self.room).sliding.map_or(0, |(_, blocks)| blocks)
    }

    fn sequences(&self) -> usize {
        limits::<M>(self.room).sequences
    }

    fn snapshots(&self) -> usize {
        limits::<M>(self.room).snapshots
    }

    fn meters(&self) -> Vec<Arc<RankMeter>> {
        self.model.meters()
    }

    fn offload(&self) -> Option<OffloadRoom> {
        let (places, group) = (self.room.places as usize, self.room.group as usize);
        (places > 0).then_some(OffloadRoom { places, group })
    }

    fn offload_blocks(&mut self, blocks: &[BlockId], to: OffloadSlot) -> Result<(), String> {
        let ids = blocks.iter().map(|block| block.0).collect();
        let number = self.command(Call::Offload { blocks: ids, to: to.0 });
        let here = self.here(|model| model.offload_blocks(blocks, to));
        // A place holds a group only where all have written their part of it.
        let answers = self.answers(number, Answer::Offloaded(here.clone())).into_iter().enumerate();
        let there = answers.map(|(at, answer)| match answer {
            Answer::Offloaded(Err(why)) => Err(format!("on rank {}: {why}", at + 1)),
            _ => Ok(()),
        });
        std::iter::once(here).chain(there).collect()
    }

    fn read_block(&mut self, block: BlockId, into: &mut [u8]) {
        self.read(Call::ReadBlock(block.0), into, |model, into| model.read_block(block, into));
    }

    fn write_block(&mut self, block: BlockId, from: &[u8]) {
        self.command(Call::WriteBlock(block.0, from.to_vec()));
        let own = self.share.range(from.len(), 0, self.ranks);
        self.here(|model| model.write_block(block, &from[own]));
    }

    fn read_sliding(&mut self, block: SlidingId, into: &mut [u8]) {
        self.read(Call::ReadSliding(block.0), into, |model, into| model.read_sliding(block, into));
    }

    fn write_sliding(&mut self, block: SlidingId, from: &[u8]) {
        self.command(Call::WriteSliding(block.0, from.to_vec()));
        let own = self.share.range(from.len(), 0, self.ranks);
        self.here(|model| model.write_sliding(block, &from[own]));
    }

    fn read_state(&mut self, at: StatePlace, into: &mut [u8]) {
        if !into.is_empty() {
            self.read(Call::ReadState(place(at)), into, |model, into| model.read_state(at, into));
        }
    }

    fn write_state(&mut self, at: StatePlace, from: &[u8]) {
        if !from.is_empty() {
            self.command(Call::WriteState(place(at), from.to_vec()));
            let own = self.share.range(from.len(), 0, self.ranks);
            self.here(|model| model.write_state(at, &from[own]));
        }
    }

    fn submit(&mut self, step: &Step) -> Ticket {
        let call = match self.slots.send(step) {
            Ok(call) => call,
            Err(why) => self.bug(format!("the head's engine submits a wrong step: {why}")),
        };
        let number = self.command(Call::Submit(call));
        let (agreed, own) = (self.blocks(), self.model.blocks());
        let ticket = self.here(|model| match local_blocks(step, agreed, own) {
            Some(step) => model.submit(&step),
            None => model.submit(step),
        });
        self.tickets.push_back((number, ticket));
        Ticket(number)
    }

    fn sample(&mut self, step: &Step) {
        let rows = step.sequences.iter().filter_map(|row| sampled_by(&row.output)).collect();
        self.command(Call::Sample(rows));
        let (agreed, own) = (self.blocks(), self.model.blocks());
        self.here(|model| match local_blocks(step, agreed, own) {
            Some(step) => model.sample(&step),
            None => model.sample(step),
        });
    }

    fn collect(&mut self, ticket: Ticket) -> StepOutput {
        let Some((step, own)) = self.tickets.pop_front().filter(|(step, _)| *step == ticket.0) else {
            self.bug(format!("the head's engine collects {ticket:?}, which is not the oldest in flight"));
        };
        let number = self.command(Call::Collect(step));
        let output = self.here(|model| model.collect(own));
        let answer = answer(&output);
        self.slots.collected(&answer);
        self.answers(number, answer);
        output
    }
}

impl<M: Model> Drop for Lead<M> {
    fn drop(&mut self) {
        let panicked = self.calling;
        self.hub.tell(|head, _| match panicked {
            true => head.fail("the head's model panicked".to_owned()),
            false => head.stop(),
        });
    }
}
