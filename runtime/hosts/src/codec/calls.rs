//! Calls and their answers as bytes.

use crate::call::{
    Answer, Call, Feed, Mask, Place, Row, RowAnswer, Run, SampledBy, SamplingBits, StepCall, Want,
};
use crate::wire::{Malformed, Reader, Writer};

/// Fewest bytes of a row, and of what one is sampled by.
const LEAST_ROW: usize = 4 + 8 + 8 + 1 + 1 + 4 + 1 + 1 + 4 + 4 + 1 + 1;
const LEAST_SAMPLED_BY: usize = 7 * 4 + 4 + 8 + 1 + 3 * 4;

pub(super) fn write_call(to: &mut Writer, call: &Call) {
    match call {
        Call::Submit(step) => {
            to.u8(0);
            write_step(to, step);
        }
        Call::Sample(rows) => {
            to.u8(1);
            to.list(rows, write_sampled_by);
        }
        Call::Collect(step) => {
            to.u8(2);
            to.u64(*step);
        }
        Call::Offload { blocks, to: place } => {
            to.u8(3);
            to.u32s(blocks);
            to.u32(*place);
        }
        Call::ReadBlock(block) => {
            to.u8(4);
            to.u32(*block);
        }
        Call::WriteBlock(block, bytes) => {
            to.u8(5);
            to.u32(*block);
            to.bytes(bytes);
        }
        Call::ReadState(place) => {
            to.u8(6);
            write_place(to, *place);
        }
        Call::WriteState(place, bytes) => {
            to.u8(7);
            write_place(to, *place);
            to.bytes(bytes);
        }
        Call::ReadSliding(block) => {
            to.u8(8);
            to.u32(*block);
        }
        Call::WriteSliding(block, bytes) => {
            to.u8(9);
            to.u32(*block);
            to.bytes(bytes);
        }
    }
}

pub(super) fn read_call(from: &mut Reader<'_>) -> Result<Call, Malformed> {
    Ok(match from.u8()? {
        0 => Call::Submit(read_step(from)?),
        1 => Call::Sample(from.list(LEAST_SAMPLED_BY, read_sampled_by)?),
        2 => Call::Collect(from.u64()?),
        3 => Call::Offload { blocks: from.u32s()?, to: from.u32()? },
        4 => Call::ReadBlock(from.u32()?),
        5 => Call::WriteBlock(from.u32()?, from.bytes()?),
        6 => Call::ReadState(read_place(from)?),
        7 => Call::WriteState(read_place(from)?, from.bytes()?),
        8 => Call::ReadSliding(from.u32()?),
        9 => Call::WriteSliding(from.u32()?, from.bytes()?),
        _ => return Err("a call is none that is known"),
    })
}

fn write_place(to: &mut Writer, place: Place) {
    let (kind, at) = match place {
        Place::Slot(at) => (0, at),
        Place::Snapshot(at) => (1, at),
    };
    to.u8(kind);
    to.u32(at);
}

fn read_place(from: &mut Reader<'_>) -> Result<Place, Malformed> {
    match (from.u8()?, from.u32()?) {
        (0, at) => Ok(Place::Slot(at)),
        (1, at) => Ok(Place::Snapshot(at)),
        _ => Err("a state is in no place that is known"),
    }
}

fn write_step(to: &mut Writer, step: &StepCall) {
    let StepCall { copies, offloaded, sampling_follows, rows } = step;
    to.list(copies, |to, (a, b)| {
        write_place(to, *a);
        write_place(to, *b);
    });
    to.u32s(offloaded);
    to.flag(*sampling_follows);
    to.list(rows, write_row);
}

fn read_step(from: &mut Reader<'_>) -> Result<StepCall, Malformed> {
    Ok(StepCall {
        copies: from.list(10, |from| Ok((read_place(from)?, read_place(from)?)))?,
        offloaded: from.u32s()?,
        sampling_follows: from.flag()?,
        rows: from.list(LEAST_ROW, read_row)?,
    })
}

fn write_row(to: &mut Writer, row: &Row) {
    let Row {
        slot,
        generation,
        position,
        begins,
        tokens,
        drafts,
        generated,
        following,
        kept,
        added,
        sliding,
        output,
    } = row;
    to.u32(*slot);
    to.u64(*generation);
    to.u64(*position);
    to.flag(*begins);
    to.option(
        match tokens {
            Feed::Sampled => None,
            Feed::Known(ids) => Some(ids),
        },
        |to, ids| to.u32s(ids),
    );
    to.u32(*drafts);
    to.flag(*generated);
    to.option(*following, Writer::u32);
    to.u32(*kept);
    to.u32s(added);
    to.option(sliding.as_ref(), |to, (first, blocks)| {
        to.u64(*first);
        to.u32s(blocks);
    });
    match output {
        Want::None => to.u8(0),
        Want::Logits => to.u8(1),
        Want::Sample(draw, by) => {
            to.u8(2);
            to.u64(*draw);
            write_sampled_by(to, by);
        }
    }
}

fn read_row(from: &mut Reader<'_>) -> Result<Row, Malformed> {
    Ok(Row {
        slot: from.u32()?,
        generation: from.u64()?,
        position: from.u64()?,
        begins: from.flag()?,
        tokens: from.option(Reader::u32s)?.map_or(Feed::Sampled, Feed::Known),
        drafts: from.u32()?,
        generated: from.flag()?,
        following: from.option(Reader::u32)?,
        kept: from.u32()?,
        added: from.u32s()?,
        sliding: from.option(|from| Ok((from.u64()?, from.u32s()?)))?,
        output: match from.u8()? {
            0 => Want::None,
            1 => Want::Logits,
            2 => Want::Sample(from.u64()?, read_sampled_by(from)?),
            _ => return Err("a row wants nothing that is known"),
        },
    })
}

fn write_sampled_by(to: &mut Writer, by: &SampledBy) {
    let SampledBy { sampling, history, biases, masks } = by;
    let SamplingBits { reals, top_k, seed, top_logprobs } = sampling;
    reals.iter().for_each(|bits| to.u32(*bits));
    to.u32(*top_k);
    to.u64(*seed);
    to.option(*top_logprobs, Writer::u8);
    to.pairs(history);
    to.list(biases, |to, biases| to.pairs(biases));
    to.list(masks, |to, Mask(runs)| {
        to.list(runs, |to, run| match run {
            Run::Nothing(count) => {
                to.u8(0);
                to.u32(*count);
            }
            Run::All(count) => {
                to.u8(1);
                to.u32(*count);
            }
            Run::Words(words) => {
                to.u8(2);
                to.u32s(words);
            }
        });
    });
}

fn read_sampled_by(from: &mut Reader<'_>) -> Result<SampledBy, Malformed> {
    let mut reals = SamplingBits::default().reals;
    for real in &mut reals {
        *real = from.u32()?;
    }
    let (top_k, seed, top_logprobs) = (from.u32()?, from.u64()?, from.option(Reader::u8)?);
    Ok(SampledBy {
        sampling: SamplingBits { reals, top_k, seed, top_logprobs },
        history: from.pairs()?,
        biases: from.list(4, Reader::pairs)?,
        masks: from.list(4, |from| from.list(5, read_run).map(Mask))?,
    })
}

fn read_run(from: &mut Reader<'_>) -> Result<Run, Malformed> {
    Ok(match from.u8()? {
        0 => Run::Nothing(from.u32()?),
        1 => Run::All(from.u32()?),
        2 => Run::Words(from.u32s()?),
        _ => return Err("a run of a mask is none that is known"),
    })
}

pub(super) fn write_answer(to: &mut Writer, answer: &Answer) {
    match answer {
        Answer::Collected(rows) => {
            to.u8(0);
            to.list(rows, write_row_answer);
        }
        Answer::Offloaded(outcome) => {
            to.u8(1);
            to.option(outcome.as_ref().err(), |to, why| to.text(why));
        }
        Answer::Bytes(bytes) => {
            to.u8(2);
            to.bytes(bytes);
        }
    }
}

pub(super) fn read_answer(from: &mut Reader<'_>) -> Result<Answer, Malformed> {
    Ok(match from.u8()? {
        0 => Answer::Collected(from.list(1, read_row_answer)?),
        1 => Answer::Offloaded(from.option(Reader::text)?.map_or(Ok(()), Err)),
        2 => Answer::Bytes(from.bytes()?),
        _ => return Err("an answer is none that is known"),
    })
}

fn write_row_answer(to: &mut Writer, row: &RowAnswer) {
    match row {
        RowAnswer::None => to.u8(0),
        RowAnswer::Sampled(id) => {
            to.u8(1);
            to.u32(*id);
        }
        RowAnswer::Verified(sampled, drafts) => {
            to.u8(2);
            to.u32s(sampled);
            to.u32s(drafts);
        }
        RowAnswer::Logits(digest) => {
            to.u8(3);
            to.u64(*digest);
        }
        RowAnswer::Lost => to.u8(4),
    }
}

fn read_row_answer(from: &mut Reader<'_>) -> Result<RowAnswer, Malformed> {
    Ok(match from.u8()? {
        0 => RowAnswer::None,
        1 => RowAnswer::Sampled(from.u32()?),
        2 => RowAnswer::Verified(from.u32s()?, from.u32s()?),
        3 => RowAnswer::Logits(from.u64()?),
        4 => RowAnswer::Lost,
        _ => return Err("an answer to a row is none that is known"),
    })
}
