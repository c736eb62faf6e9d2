//! How a scripted model drafts and verifies, and what it may do wrong about it.

use super::controls::Breach;
use super::{Scripted, Shape, mix};
use monomorph_model::{ModelSpec, RowOutput, SequenceStep, Verified};
use monomorph_sampling::{Sampling, TokenBias, TokenMask};
use std::sync::Arc;

impl<S: Shape> Scripted<S> {
    /// Samples after the last token of `context` that is no draft, and after every draft that is the token
    /// sampled before it.
    pub(super) fn sample_row(
        &mut self,
        row: &SequenceStep,
        context: &[u32],
        sampling: &Sampling,
        draw: u64,
        biases: &[Arc<[TokenBias]>],
        masks: &[TokenMask],
    ) -> RowOutput {
        let (mut known, mut sampled) = (context.len() - row.drafts, Vec::new());
        let last = loop {
            let at = sampled.len();
            let biases = biases.get(at).map_or(&[][..], |biases| biases);
            let next = self.next(&context[..known], sampling, draw + at as u64, biases, masks.get(at));
            let id = next.id;
            sampled.push(next);
            if self.memory.ids(&context[known..]).first() != Some(&id) {
                break id;
            }
            known += 1;
        };
        let drafts = self.draft(&context[..known], last, sampling, draw + sampled.len() as u64);
        self.memory.sample(row, known, last, &drafts);
        match S::SPEC.drafts() {
            0 => RowOutput::Sampled(sampled.pop().expect("a token was sampled")),
            _ => RowOutput::Verified(Verified { sampled, drafts }),
        }
    }

    /// Drafts what comes after `context` and the token `last`, each draft as if those before it were right.
    fn draft(&self, context: &[u32], last: u32, sampling: &Sampling, draw: u64) -> Vec<u32> {
        let mut context = context.to_vec();
        context.push(self.memory.behind(&context, last));
        let known = context.len();
        for place in 0..S::SPEC.drafted() as u64 {
            let right = self.script.tokens.next(&context, sampling, draw + place, S::SPEC);
            let hash = context.iter().fold(place, |hash, &id| mix(hash, u64::from(id)));
            let chance = (hash >> 11) as f64 / (1u64 << 53) as f64;
            let wrong = (right + 1) % S::SPEC.vocabulary as u32;
            let draft = if chance < self.script.right_drafts { right } else { wrong };
            context.push(self.memory.behind(&context, draft));
        }
        self.memory.ids(&context[known..]).into_owned()
    }
}

/// Breaks the contract in the first of `rows` where that can be, each of which was fed so many `drafts`;
/// whether it was.
pub(super) fn commit(breach: Breach, rows: &mut [RowOutput], drafts: &[usize], spec: &ModelSpec) -> bool {
    let stranger = spec.vocabulary as u32;
    for (row, &fed) in rows.iter_mut().zip(drafts) {
        match (breach, &mut *row) {
            (Breach::AcceptsTooMany, RowOutput::Verified(it)) if fed > 0 => {
                it.sampled.extend_from_within(..1)
            }
            (Breach::SamplesNothing, RowOutput::Verified(it)) if fed > 0 => it.sampled.clear(),
            (Breach::SamplesStranger, RowOutput::Verified(it)) if fed > 0 => {
                it.sampled.iter_mut().next_back().expect("a token was sampled").id = stranger;
            }
            (Breach::DraftsTooFew, RowOutput::Verified(it)) => drop(it.drafts.pop()),
            (Breach::DraftsTooMany, RowOutput::Verified(it)) => it.drafts.push(0),
            (Breach::DraftsStranger, RowOutput::Verified(it)) if !it.drafts.is_empty() => {
                it.drafts[0] = stranger
            }
            (Breach::DoesNotVerify, RowOutput::Verified(it)) => {
                *row = RowOutput::Sampled(it.sampled.remove(0))
            }
            (Breach::Verifies, RowOutput::Sampled(sampled)) => {
                *row = RowOutput::Verified(Verified { sampled: vec![sampled.clone()], drafts: Vec::new() });
            }
            _ => continue,
        }
        return true;
    }
    false
}
