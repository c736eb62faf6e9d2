//! Driving a model's steps without an engine: as many in flight as the model takes.

use monomorph_model::{
    BlockId, Model, ModelSpec, Output, RowOutput, SequenceStep, Slot, Step, StepOutput, Ticket, Tokens,
};
use monomorph_sampling::Sampling;
use std::collections::VecDeque;
use std::time::Instant;

/// Feeds a prompt into an empty sequence, as many tokens at once as a step takes; the token sampled after it.
pub(crate) fn feed<M: Model>(model: &mut M, prompt: &[u32]) -> Result<u32, String> {
    let blocks = block_range(M::SPEC, 0, prompt.len());
    let mut first = 0;
    let mut output = StepOutput::default();
    for chunk in prompt.chunks(M::SPEC.step_tokens) {
        let end = first + chunk.len();
        let row = SequenceStep {
            drafts: 0,
            following: None,
            slot: Slot(0),
            position: first,
            tokens: Tokens::Known(chunk.to_vec()),
            blocks: blocks[..end.div_ceil(M::SPEC.block_tokens)].to_vec(),
            output: if end == prompt.len() { greedy(0) } else { Output::None },
        };
        let ticket = model.submit(&Step { sequences: vec![row] });
        output = model.collect(ticket);
        first = end;
    }
    match output.rows.as_slice() {
        [RowOutput::Sampled(sampled)] => Ok(sampled.id),
        _ => Err("the stack did not return the token that the step asked for".to_owned()),
    }
}

/// Sequences side by side, their prompts fed and one token of each sampled.
pub(crate) struct Steps<'a, M> {
    model: &'a mut M,
    step: Step,
    /// Blocks each sequence may come to use.
    blocks: Vec<Vec<BlockId>>,
    in_flight: VecDeque<Ticket>,
}

impl<'a, M: Model> Steps<'a, M> {
    /// Feeds the prompts, several of them in a step where they fit. `most` is how many tokens a sequence will have.
    pub(crate) fn after(model: &'a mut M, prompts: Vec<Vec<u32>>, most: usize) -> Result<Self, String> {
        let blocks: Vec<Vec<BlockId>> =
            (0..prompts.len()).map(|index| block_range(M::SPEC, index, most)).collect();
        let mut steps = Steps { model, step: Step::default(), blocks, in_flight: VecDeque::new() };
        let mut room = M::SPEC.step_tokens;
        for (index, prompt) in prompts.iter().enumerate() {
            let mut position = 0;
            while position < prompt.len() {
                let end = prompt.len().min(position + room);
                let output = if end == prompt.len() { greedy(0) } else { Output::None };
                let row = steps.row(index, position, Tokens::Known(prompt[position..end].to_vec()), output);
                steps.step.sequences.push(row);
                room -= end - position;
                position = end;
                if room == 0 {
                    steps.flush()?;
                    room = M::SPEC.step_tokens;
                }
            }
        }
        steps.flush()?;
        steps.drain()?;
        for (index, prompt) in prompts.iter().enumerate() {
            let row = steps.row(index, prompt.len(), Tokens::Sampled, greedy(1));
            steps.step.sequences.push(row);
        }
        Ok(steps)
    }

    /// Decodes `count` tokens of every sequence, each from the one before; the seconds that takes.
    pub(crate) fn decode(mut self, count: usize) -> Result<f64, String> {
        let started = Instant::now();
        for _ in 0..count {
            self.submit()?;
            for index in 0..self.step.sequences.len() {
                let position = self.step.sequences[index].position + 1;
                let next = match self.step.sequences[index].output {
                    Output::Sample { draw, .. } => greedy(draw + 1),
                    Output::None | Output::Logits => Output::None,
                };
                let needed = (position + 1).div_ceil(M::SPEC.block_tokens).min(self.blocks[index].len());
                let row = &mut self.step.sequences[index];
                row.position = position;
                row.output = next;
                row.blocks.extend_from_slice(&self.blocks[index][row.blocks.len()..needed]);
            }
        }
        self.drain()?;
        Ok(started.elapsed().as_secs_f64())
    }

    fn row(&self, index: usize, position: usize, tokens: Tokens, output: Output) -> SequenceStep {
        let needed = (position + tokens.len()).div_ceil(M::SPEC.block_tokens);
        let blocks = self.blocks[index][..needed].to_vec();
        SequenceStep {
            drafts: 0,
            following: None,
            slot: Slot(index as u32),
            position,
            tokens,
            blocks,
            output,
        }
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
        let ticket = self.model.submit(&self.step);
        self.in_flight.push_back(ticket);
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
        if output.rows.iter().any(|row| matches!(row, RowOutput::Logits(_))) {
            return Err("the stack returned logits that nobody asked for".to_owned());
        }
        Ok(())
    }
}

/// The blocks of sequence `index` when each has `tokens` tokens.
fn block_range(spec: &ModelSpec, index: usize, tokens: usize) -> Vec<BlockId> {
    let each = tokens.div_ceil(spec.block_tokens) as u32;
    (0..each).map(|block| BlockId(index as u32 * each + block)).collect()
}

fn greedy(draw: u64) -> Output {
    Output::Sample { sampling: Sampling::default(), draw, history: Vec::new() }
}
