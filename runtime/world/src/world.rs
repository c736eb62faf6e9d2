//! All ranks as one model.

use crate::Rank;
use crate::agree::{agree, merge};
use crate::call::{Answer, Call};
use crate::line::{Ended, Lines};
use crate::load::{check_rooms, load};
use monomorph_model::{
    BlockId, LoadError, LoadOptions, Model, ModelSpec, OffloadRoom, OffloadSlot, Progress, RankMeter, Shown,
    SlidingId, SlidingSpec, StatePlace, Step, StepOutput, Ticket, VisionSpec, Weights, set_device_fault,
};
use std::marker::PhantomData;
use std::ops::Range;
use std::sync::Arc;

/// A rank on each of several devices, as one model.
///
/// A rank that panics, ends, or comes to other ids than rank 0 is a device fault: nothing that the ranks hold
/// can be trusted to belong together any more.
#[derive(Debug)]
pub struct World<R: Rank> {
    lines: Lines,
    meters: Vec<Arc<RankMeter>>,
    room: Room,
    /// Steps submitted, and those collected.
    submitted: u64,
    collected: u64,
    /// The first fault. No call is made after it.
    fault: Option<String>,
    ranks: PhantomData<fn() -> R>,
}

/// What every rank has room for.
#[derive(Clone, Copy, Debug)]
struct Room {
    blocks: usize,
    /// Blocks of layers with a sliding window.
    sliding: usize,
    sequences: usize,
    snapshots: usize,
    offload: Option<OffloadRoom>,
}

impl<R: Rank> World<R> {
    /// Makes a call of every rank.
    fn all<'a>(&mut self, call: impl FnMut(usize) -> Call<'a>) -> Vec<Answer> {
        self.refuse_after_fault();
        let answers = self.lines.carry_out(call);
        self.or_fault(answers)
    }

    /// Each rank's part of the bytes of a block or state of all, in the order of ranks.
    fn parts(bytes: &[u8], whole: usize) -> impl Iterator<Item = &[u8]> {
        assert_eq!(bytes.len(), whole, "the bytes of all ranks");
        (0..R::RANKS).map(move |rank| &bytes[rank * (whole / R::RANKS)..][..whole / R::RANKS])
    }

    /// The same, to be written.
    fn parts_mut(bytes: &mut [u8], whole: usize) -> impl Iterator<Item = &mut [u8]> {
        assert_eq!(bytes.len(), whole, "the bytes of all ranks");
        let mut rest = bytes;
        (0..R::RANKS).map(move |_| {
            let (part, others) = std::mem::take(&mut rest).split_at_mut(whole / R::RANKS);
            rest = others;
            part
        })
    }

    /// Bytes of a block of layers with a sliding window over all ranks.
    fn sliding_bytes() -> usize {
        <Self as Model>::SLIDING.map_or(0, |layers| layers.block_bytes)
    }

    /// The ticket of a step that every rank has started.
    fn started(&mut self, answers: Vec<Answer>) -> Ticket {
        self.submitted += 1;
        for (rank, answer) in answers.into_iter().enumerate() {
            match answer {
                Answer::Ticket(Ticket(number)) if number == self.submitted => {}
                other => {
                    let submitted = self.submitted;
                    self.raise(format!("rank {rank} answered {other:?} to step {submitted}"))
                }
            }
        }
        Ticket(self.submitted)
    }

    fn or_fault<T>(&mut self, answers: Result<T, Ended>) -> T {
        answers.unwrap_or_else(|Ended { rank, why }| self.raise(format!("rank {rank} failed: {why}")))
    }

    fn refuse_after_fault(&self) {
        if let Some(fault) = &self.fault {
            std::panic::resume_unwind(Box::new(fault.clone()));
        }
    }

    /// Records a fault and unwinds to the forward thread, which tells the clients.
    fn raise(&mut self, fault: String) -> ! {
        set_device_fault(&fault);
        self.fault = Some(fault.clone());
        // Not a panic: there is no program error whose place to print.
        std::panic::resume_unwind(Box::new(fault))
    }
}

impl<R: Rank> Model for World<R> {
    const SPEC: &'static ModelSpec = &ModelSpec {
        block_bytes: R::RANKS * R::SPEC.block_bytes,
        state_bytes: R::RANKS as u64 * R::SPEC.state_bytes,
        weight_bytes: R::RANKS as u64 * R::SPEC.weight_bytes,
        scratch_bytes: R::RANKS as u64 * R::SPEC.scratch_bytes,
        ..*R::SPEC
    };
    const VISION: Option<VisionSpec> = R::VISION;
    const SLIDING: Option<SlidingSpec> = SlidingSpec::over(R::RANKS, R::SLIDING);
    const STEPS_IN_FLIGHT: usize = R::STEPS_IN_FLIGHT;
    const SPLIT_SAMPLING: bool = R::SPLIT_SAMPLING;
    const DRAFTS: usize = R::DRAFTS;
    const RANKS: usize = R::RANKS;

    fn check_hardware(ordinals: &[usize]) -> Result<(), LoadError> {
        R::check_hardware(ordinals)
    }

    fn ordinal_of(uuid: &str) -> Result<usize, LoadError> {
        R::ordinal_of(uuid)
    }

    fn load(weights: &Weights, options: &LoadOptions, progress: &Progress) -> Result<Self, LoadError> {
        let ranks = load::<R>(weights, options, progress)?;
        check_rooms(&ranks)?;
        let first = &ranks[0];
        let room = Room {
            blocks: first.blocks(),
            sliding: first.sliding_blocks(),
            sequences: first.sequences(),
            snapshots: first.snapshots(),
            offload: first.offload(),
        };
        let meters: Vec<_> = ranks.iter().map(Rank::meter).collect();
        let work = |(mut rank, meter): (R, Arc<RankMeter>)| {
            move |call: Call| call.carry_out_metered(&mut rank, &meter)
        };
        let lines = Lines::start(ranks.into_iter().zip(meters.clone()).map(work));
        let lines = lines.map_err(LoadError::Threads)?;
        Ok(World { lines, meters, room, submitted: 0, collected: 0, fault: None, ranks: PhantomData })
    }

    fn blocks(&self) -> usize {
        self.room.blocks
    }

    fn sliding_blocks(&self) -> usize {
        self.room.sliding
    }

    fn sequences(&self) -> usize {
        self.room.sequences
    }

    fn snapshots(&self) -> usize {
        self.room.snapshots
    }

    fn meters(&self) -> Vec<Arc<RankMeter>> {
        self.meters.clone()
    }

    fn offload(&self) -> Option<OffloadRoom> {
        self.room.offload
    }

    fn offload_blocks(&mut self, blocks: &[BlockId], to: OffloadSlot) -> Result<(), String> {
        let answers = self.all(|_| Call::OffloadBlocks(blocks, to));
        let outcomes = answers.into_iter().enumerate().map(|(rank, answer)| match answer {
            Answer::Offloaded(outcome) => outcome.map_err(|error| format!("rank {rank}: {error}")),
            other => panic!("offload_blocks was answered {other:?}"),
        });
        outcomes.collect()
    }

    fn read_block(&mut self, block: BlockId, into: &mut [u8]) {
        let mut parts = Self::parts_mut(into, Self::SPEC.block_bytes);
        self.all(|_| Call::ReadBlock(block, parts.next().expect("a part for each rank")));
    }

    fn write_block(&mut self, block: BlockId, from: &[u8]) {
        let mut parts = Self::parts(from, Self::SPEC.block_bytes);
        self.all(|_| Call::WriteBlock(block, parts.next().expect("a part for each rank")));
    }

    fn read_sliding(&mut self, block: SlidingId, into: &mut [u8]) {
        let mut parts = Self::parts_mut(into, Self::sliding_bytes());
        self.all(|_| Call::ReadSliding(block, parts.next().expect("a part for each rank")));
    }

    fn write_sliding(&mut self, block: SlidingId, from: &[u8]) {
        let mut parts = Self::parts(from, Self::sliding_bytes());
        self.all(|_| Call::WriteSliding(block, parts.next().expect("a part for each rank")));
    }

    fn read_state(&mut self, place: StatePlace, into: &mut [u8]) {
        let mut parts = Self::parts_mut(into, Self::SPEC.state_bytes as usize);
        self.all(|_| Call::ReadState(place, parts.next().expect("a part for each rank")));
    }

    fn write_state(&mut self, place: StatePlace, from: &[u8]) {
        let mut parts = Self::parts(from, Self::SPEC.state_bytes as usize);
        self.all(|_| Call::WriteState(place, parts.next().expect("a part for each rank")));
    }

    /// Every rank sees whole images: what is left of them is as wide as the residual stream, which all have.
    fn see(&mut self, images: &[Shown], layers: Range<usize>) -> Ticket {
        let answers = self.all(|_| Call::See(images, layers.clone()));
        self.started(answers)
    }

    fn submit(&mut self, step: &Step) -> Ticket {
        let answers = self.all(|_| Call::Submit(step));
        self.started(answers)
    }

    fn sample(&mut self, step: &Step) {
        self.all(|_| Call::Sample(step));
    }

    fn collect(&mut self, ticket: Ticket) -> StepOutput {
        self.refuse_after_fault();
        assert_eq!(ticket.0, self.collected + 1, "tickets are collected in order");
        let answers = self.lines.collect(ticket.0);
        let mut outputs = self.or_fault(answers).into_iter().map(|answer| match answer {
            Answer::Output(output) => output,
            other => panic!("collect was answered {other:?}"),
        });
        let first = outputs.next().expect("rank 0");
        let others: Vec<StepOutput> = outputs.collect();
        for (other, rank) in others.iter().zip(1..) {
            if let Err(difference) = agree(rank, &first, other) {
                self.raise(format!("ranks differ in step {}: {difference}", ticket.0));
            }
        }
        self.collected += 1;
        merge(first, others)
    }
}
