//! Driving a model's steps without an engine: as many in flight as the model takes.

use crate::start::sliding::SlidingTables;
use monomorph_model::{
    BlockId, Model, ModelSpec, Output, RowOutput, SequenceStep, Slot, Step, StepOutput, Ticket, Tokens,
    Verified, chunk,
};
use std::collections::VecDeque;
use std::time::Instant;

/// Feeds a prompt into an empty sequence, as many tokens at once as a step takes, and samples the token after
/// it.
pub(crate) fn feed<M: Model>(model: &mut M, prompt: &[u32]) -> Result<(), String> {
    let blocks = block_range(M::SPEC, 0, prompt.len());
    let mut position = 0;
    let mut output = StepOutput::default();
    let mut tables = SlidingTables::new(model, 1);
    while position < prompt.len() {
        let (room, chunk_alignment) = (M::SPEC.step_tokens, M::SPEC.chunk_alignment());
        let end = position + chunk(position, prompt.len() - position, room, chunk_alignment);
        let row = prompt_row(M::SPEC, 0, prompt, position..end, &blocks);
        let sequences = vec![row];
        let sliding = tables.of(&sequences)?;
        let ticket = model.submit(&Step { sequences, sliding, ..Step::default() });
        output = model.collect(ticket);
        position = end;
    }
    match output.rows.as_slice() {
        [RowOutput::Sampled(_)] if M::DRAFTS == 0 => Ok(()),
        [RowOutput::Verified(_)] if M::DRAFTS > 0 => Ok(()),
        _ => Err("the stack did not return the token that the step asked for".to_owned()),
    }
}

/// Sequences side by side, their prompts fed and one token of each sampled.
pub(crate) struct Steps<'a, M> {
    model: &'a mut M,
    step: Step,
    /// Most blocks of each sequence.
    blocks: Vec<Vec<BlockId>>,
    tables: SlidingTables,
    in_flight: VecDeque<Ticket>,
    /// The last step's tokens and drafts by slot, if the model drafts.
    verified: Vec<Verified>,
}

/// The time and yield of decoding.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Decoded {
    /// Wall time.
    pub(crate) seconds: f64,
    /// Steps of all sequences together.
    pub(crate) steps: usize,
    /// Tokens of all sequences.
    pub(crate) tokens: usize,
}

impl<'a, M: Model> Steps<'a, M> {
    /// Feeds the prompts, several of them in a step where they fit. `most` is how many tokens a sequence will
    /// have.
    pub(crate) fn after(model: &'a mut M, prompts: Vec<Vec<u32>>, most: usize) -> Result<Self, String> {
        let blocks: Vec<Vec<BlockId>> =
            (0..prompts.len()).map(|index| block_range(M::SPEC, index, most)).collect();
        let verified = vec![Verified::default(); prompts.len()];
        let tables = SlidingTables::new(model, prompts.len());
        let (step, in_flight) = (Step::default(), VecDeque::new());
        let mut steps = Steps { model, step, blocks, tables, in_flight, verified };
        let mut room = M::SPEC.step_tokens;
        for (index, prompt) in prompts.iter().enumerate() {
            let mut position = 0;
            while position < prompt.len() {
                let fed = chunk(position, prompt.len() - position, room, M::SPEC.chunk_alignment());
                if fed == 0 {
                    steps.flush()?;
                    room = M::SPEC.step_tokens;
                    continue;
                }
                let range = position..position + fed;
                steps.step.sequences.push(prompt_row(M::SPEC, index, prompt, range, &steps.blocks[index]));
                room -= fed;
                position += fed;
            }
        }
        steps.flush()?;
        steps.drain()?;
        if M::DRAFTS > 0 && steps.verified.iter().any(|verified| verified.sampled.is_empty()) {
            return Err("the stack did not return a token that the step asked for".to_owned());
        }
        for (index, prompt) in prompts.iter().enumerate() {
            let row = SequenceStep {
                drafts: M::SPEC.drafted(),
                generated: true,
                following: None,
                slot: Slot(index as u32),
                position: prompt.len(),
                begins: false,
                tokens: Tokens::Sampled,
                blocks: Vec::new(),
                output: Output::greedy(1),
            };
            steps.step.sequences.push(row);
            steps.go_on(index);
        }
        Ok(steps)
    }

    /// The model, whose steps have all been collected.
    pub(super) fn model(&mut self) -> &mut M {
        self.model
    }

    /// Decodes until a sequence has `count` tokens more, which without drafts all come to have at once. The
    /// next call goes on from there.
    pub(crate) fn decode(&mut self, count: usize) -> Result<Decoded, String> {
        let sequences = self.step.sequences.len();
        let (mut steps, mut tokens) = (0, 0);
        let mut each = vec![0; sequences];
        let started = Instant::now();
        while each.iter().all(|&generated| generated < count) {
            self.submit()?;
            steps += 1;
            for (index, generated) in each.iter_mut().enumerate() {
                let more = if M::DRAFTS > 0 { self.verified[index].sampled.len() } else { 1 };
                *generated += more;
                tokens += more;
                let row = &mut self.step.sequences[index];
                row.position += more;
                if let Output::Sample { draw, .. } = &mut row.output {
                    *draw += more as u64;
                }
                self.go_on(index);
            }
        }
        self.drain()?;
        Ok(Decoded { seconds: started.elapsed().as_secs_f64(), steps, tokens })
    }

    /// Gives a sequence's row the tokens to go on with at its position, and the blocks they need.
    fn go_on(&mut self, index: usize) {
        let row = &mut self.step.sequences[index];
        if let (Some(last), drafts) = (self.verified[index].sampled.last(), &self.verified[index].drafts) {
            row.tokens = Tokens::Known([&[last.id], drafts.as_slice()].concat());
        }
        let needed = blocks_needed(M::SPEC, row.position + row.tokens.len(), true);
        let (held, all) = (row.blocks.len(), &self.blocks[index]);
        row.blocks.extend_from_slice(&all[held..needed.min(all.len()).max(held)]);
    }

    /// Submits the step gathered so far, if there is one, and begins another.
    fn flush(&mut self) -> Result<(), String> {
        if !self.step.sequences.is_empty() {
            self.submit()?;
            self.step.sequences.clear();
        }
        Ok(())
    }

    fn submit(&mut self) -> Result<(), String> {
        if self.in_flight.len() == M::STEPS_IN_FLIGHT {
            self.collect()?;
        }
        self.step.sliding = self.tables.of(&self.step.sequences)?;
        let ticket = self.model.submit(&self.step);
        self.in_flight.push_back(ticket);
        // With drafts, the next tokens are known only when the step is collected.
        if M::DRAFTS > 0 {
            self.collect()?;
        }
        Ok(())
    }

    fn drain(&mut self) -> Result<(), String> {
        while !self.in_flight.is_empty() {
            self.collect()?;
        }
        Ok(())
    }

    fn collect(&mut self) -> Result<(), String> {
        let Some(ticket) = self.in_flight.pop_front() else { return Ok(()) };
        let output = self.model.collect(ticket);
        for (at, row) in output.rows.into_iter().enumerate() {
            match row {
                RowOutput::None => {}
                RowOutput::Sampled(_) if M::DRAFTS == 0 => {}
                // Only one step is in flight, the current one.
                RowOutput::Verified(verified)
                    if !verified.sampled.is_empty() && verified.drafts.len() == M::SPEC.drafted() =>
                {
                    self.verified[self.step.sequences[at].slot.0 as usize] = verified;
                }
                RowOutput::Sampled(_) | RowOutput::Verified(_) => {
                    return Err("the stack returned other drafts than it makes".to_owned());
                }
                RowOutput::Lost(why) => return Err(why),
                RowOutput::Logits(_) => {
                    return Err("the stack returned logits that were not requested".to_owned());
                }
            }
        }
        Ok(())
    }
}

/// The row that feeds `range` of the prompt of sequence `index`, which has `blocks`; it samples at the
/// prompt's end.
fn prompt_row(
    spec: &ModelSpec,
    index: usize,
    prompt: &[u32],
    range: std::ops::Range<usize>,
    blocks: &[BlockId],
) -> SequenceStep {
    let samples = range.end == prompt.len();
    SequenceStep {
        drafts: 0,
        generated: false,
        following: prompt.get(range.end).copied(),
        slot: Slot(index as u32),
        position: range.start,
        begins: range.start == 0,
        tokens: Tokens::Known(prompt[range.clone()].to_vec()),
        blocks: blocks[..blocks_needed(spec, range.end, samples)].to_vec(),
        output: if samples { Output::greedy(0) } else { Output::None },
    }
}

/// The blocks of a row whose tokens end before position `end`.
fn blocks_needed(spec: &ModelSpec, end: usize, samples: bool) -> usize {
    // There is no n-gram lookup here: only the stack's own drafts are fed.
    let ahead = if samples { spec.ahead(spec.drafted()) } else { 0 };
    (end + ahead).div_ceil(spec.block_tokens)
}

/// The blocks of sequence `index` when each has `tokens` tokens.
fn block_range(spec: &ModelSpec, index: usize, tokens: usize) -> Vec<BlockId> {
    let each = (tokens + spec.reach()).div_ceil(spec.block_tokens) as u32;
    (0..each).map(|block| BlockId(index as u32 * each + block)).collect()
}
