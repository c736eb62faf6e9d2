//! Token lists through a model's steps, for verbs that want its logits.

use crate::start::sliding::SlidingTables;
use monomorph_model::{
    BlockId, Model, ModelSpec, Output, RowOutput, SequenceStep, Slot, Step, Tokens, chunk,
};

/// A list, how much of it was fed, and the logits after those tokens that are not written yet.
pub(crate) struct Fed<'a> {
    tokens: &'a [u32],
    position: usize,
    /// `[rows, vocabulary]`.
    pub(crate) rows: Vec<f32>,
}

impl<'a> Fed<'a> {
    /// Of which nothing is fed.
    pub(crate) fn new(tokens: &'a [u32]) -> Fed<'a> {
        Fed { tokens, position: 0, rows: Vec::new() }
    }
}

/// How lists are cut.
#[derive(Clone, Copy)]
pub(crate) struct Cut {
    /// Token by token, as what was generated is fed; else as prompts are.
    pub(crate) decode: bool,
    /// Where they are decoded, tokens that go before as a prompt.
    pub(crate) prompt: usize,
}

impl Cut {
    /// Of the `left` tokens from `position` on, how many a step with `room` for so many is fed, and whether
    /// as generated ones.
    fn next(self, spec: &ModelSpec, position: usize, left: usize, room: usize) -> (usize, bool) {
        if self.decode && (position > 0 || self.prompt == 0) {
            return (left.min(room).min(1), true);
        }
        let left = if self.decode { left.min(self.prompt) } else { left };
        (chunk(position, left, room, spec.chunk_alignment()), false)
    }
}

/// One step of lists side by side: of each the next tokens, as far as a step takes them. Says whether there
/// was anything left to feed.
pub(crate) fn feed<M: Model>(
    model: &mut M,
    spec: &ModelSpec,
    lists: &mut [Fed],
    tables: &mut SlidingTables,
    blocks_each: usize,
    cut: Cut,
) -> Result<bool, String> {
    let (mut step, mut fed, mut room) = (Step::default(), Vec::new(), spec.step_tokens);
    for (number, list) in lists.iter().enumerate() {
        let position = list.position;
        let (count, generated) = cut.next(spec, position, list.tokens.len() - position, room);
        let tokens = &list.tokens[position..position + count];
        if tokens.is_empty() {
            continue;
        }
        room -= tokens.len();
        let first = number * blocks_each;
        let blocks = first..first + (position + tokens.len()).div_ceil(spec.block_tokens);
        step.sequences.push(SequenceStep {
            drafts: 0,
            generated,
            following: None,
            slot: Slot(number as u32),
            position,
            begins: position == 0,
            tokens: Tokens::Known(tokens.to_vec()),
            blocks: blocks.map(|block| BlockId(block as u32)).collect(),
            output: Output::Logits,
        });
        fed.push((number, tokens.len()));
    }
    if fed.is_empty() {
        return Ok(false);
    }
    step.sliding = tables.of(&step.sequences)?;
    let ticket = model.submit(&step);
    let rows = model.collect(ticket).rows;
    if rows.len() != fed.len() {
        return Err(format!("the stack answered {} sequences of {}", rows.len(), fed.len()));
    }
    for ((number, tokens), row) in fed.into_iter().zip(rows) {
        let RowOutput::Logits(logits) = row else {
            return Err("the stack did not return the logits that were asked for".to_owned());
        };
        if logits.len() != tokens * spec.vocabulary {
            let expected = tokens * spec.vocabulary;
            return Err(format!("the stack returned {} logits, and {expected} were asked for", logits.len()));
        }
        lists[number].position += tokens;
        lists[number].rows.extend(logits);
    }
    Ok(true)
}

/// Feeds a list alone, from nothing on, and hands over the logits behind each of its tokens.
///
/// # Errors
/// When the stack returns other than what it was asked for.
pub(crate) fn feed_alone<M: Model>(
    model: &mut M,
    tokens: &[u32],
    decode: bool,
    mut judge: impl FnMut(usize, &[f32]),
) -> Result<(), String> {
    let (spec, cut) = (M::SPEC, Cut { decode, prompt: 0 });
    let (mut lists, mut tables) = ([Fed::new(tokens)], SlidingTables::new(model, 1));
    let mut at = 0;
    while feed(model, spec, &mut lists, &mut tables, 0, cut)? {
        for logits in lists[0].rows.chunks_exact(spec.vocabulary) {
            judge(at, logits);
            at += 1;
        }
        lists[0].rows.clear();
    }
    Ok(())
}

/// The logarithm of a token's probability, all sums in f64.
pub(crate) fn log_probability(logits: &[f32], token: usize) -> f64 {
    let largest = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let sum: f64 = logits.iter().map(|it| f64::from(it - largest).exp()).sum();
    f64::from(logits[token] - largest) - sum.ln()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_probability_is_the_softmax_of_its_row() {
        let logits = [1.0f32, 2.0, 0.5];
        let whole: f64 = logits.iter().map(|it| f64::from(*it).exp()).sum();
        for (token, logit) in logits.into_iter().enumerate() {
            let expected = f64::from(logit) - whole.ln();
            assert!((log_probability(&logits, token) - expected).abs() < 1e-9);
        }
        assert_eq!(log_probability(&[f32::NEG_INFINITY, 3.0], 1), 0.0);
    }
}
