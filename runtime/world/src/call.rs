//! The calls of a model, as ranks are given them.

use crate::Rank;
use monomorph_model::{
    BlockId, OffloadSlot, RankMeter, Shown, SlidingId, StatePlace, Step, StepOutput, Ticket,
};
use std::ops::Range;
use std::time::Instant;

/// A call of [`Model`](monomorph_model::Model) that every rank carries out. Bytes are the rank's own.
#[derive(Debug)]
pub(crate) enum Call<'a> {
    See(&'a [Shown<'a>], Range<usize>),
    Submit(&'a Step),
    Sample(&'a Step),
    Collect(u64),
    OffloadBlocks(&'a [BlockId], OffloadSlot),
    ReadBlock(BlockId, &'a mut [u8]),
    WriteBlock(BlockId, &'a [u8]),
    ReadSliding(SlidingId, &'a mut [u8]),
    WriteSliding(SlidingId, &'a [u8]),
    ReadState(StatePlace, &'a mut [u8]),
    WriteState(StatePlace, &'a [u8]),
}

/// What a rank returned.
#[derive(Debug)]
pub(crate) enum Answer {
    Done,
    Ticket(Ticket),
    Output(StepOutput),
    Offloaded(Result<(), String>),
}

impl Call<'_> {
    /// The name of the call, for faults.
    pub(crate) fn name(&self) -> &'static str {
        match self {
            Call::See(..) => "see",
            Call::Submit(_) => "submit",
            Call::Sample(_) => "sample",
            Call::Collect(_) => "collect",
            Call::OffloadBlocks(..) => "offload_blocks",
            Call::ReadBlock(..) => "read_block",
            Call::WriteBlock(..) => "write_block",
            Call::ReadSliding(..) => "read_sliding",
            Call::WriteSliding(..) => "write_sliding",
            Call::ReadState(..) => "read_state",
            Call::WriteState(..) => "write_state",
        }
    }

    /// Carries it out and counts the time that it took: of a launch, or waiting for the device.
    pub(crate) fn carry_out_metered<R: Rank>(self, rank: &mut R, meter: &RankMeter) -> Answer {
        let launches = matches!(self, Call::See(..) | Call::Submit(_) | Call::Sample(_));
        let collects = matches!(self, Call::Collect(_));
        let begun = Instant::now();
        let answer = self.carry_out(rank);
        if launches {
            meter.launched(begun.elapsed());
        } else if collects {
            meter.collected(begun.elapsed());
        }
        answer
    }

    fn carry_out<R: Rank>(self, rank: &mut R) -> Answer {
        match self {
            Call::See(images, layers) => return Answer::Ticket(rank.see(images, layers)),
            Call::Submit(step) => return Answer::Ticket(rank.submit(step)),
            Call::Sample(step) => rank.sample(step),
            Call::Collect(ticket) => return Answer::Output(rank.collect(Ticket(ticket))),
            Call::OffloadBlocks(blocks, to) => return Answer::Offloaded(rank.offload_blocks(blocks, to)),
            Call::ReadBlock(block, into) => rank.read_block(block, into),
            Call::WriteBlock(block, from) => rank.write_block(block, from),
            Call::ReadSliding(block, into) => rank.read_sliding(block, into),
            Call::WriteSliding(block, from) => rank.write_sliding(block, from),
            Call::ReadState(place, into) => rank.read_state(place, into),
            Call::WriteState(place, from) => rank.write_state(place, from),
        }
        Answer::Done
    }
}
