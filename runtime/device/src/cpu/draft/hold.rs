//! What of a sequence's tokens holds once they are sampled.

use super::super::outputs::{Outputs, drafts};
use super::super::shape::Sequence;
use super::accept::Acceptance;
use monomorph_model::{RowOutput, SequenceStep};
use monomorph_sampling::Sampled;

/// The tokens of sequence `index` sampled after accepted drafts. The rest is discarded, and the last becomes
/// its slot's token.
pub(super) fn hold<A: Acceptance, const DRAFTS: usize>(
    index: usize,
    sequence: &SequenceStep,
    outputs: &mut Outputs<DRAFTS>,
) -> Vec<u32> {
    let RowOutput::Verified(verified) = &mut outputs.rows[index] else { return Vec::new() };
    accept::<A>(sequence, &mut verified.sampled);
    let sampled: Vec<u32> = verified.sampled.iter().map(|token| token.id).collect();
    if let Some(last) = sampled.last() {
        outputs.note(sequence.slot, *last);
    }
    sampled
}

/// The position of the last of these tokens that hold, which comes after the accepted tokens that were fed.
pub(super) fn last_position(sequence: &SequenceStep, rows: &Sequence, sampled: &[u32]) -> usize {
    rows.position + rows.rows.len() - sequence.drafts + sampled.len() - 1
}

/// Cuts a sequence's sampled tokens after the first rejected draft.
pub(in super::super) fn accept<A: Acceptance>(sequence: &SequenceStep, sampled: &mut Vec<Sampled>) {
    let first = sequence.position + sequence.tokens.len() - sequence.drafts;
    let mut held = 0;
    for (draft, token) in drafts(sequence).iter().zip(&mut *sampled) {
        if !A::holds(sequence.slot, first + held, *draft, token) {
            break;
        }
        held += 1;
    }
    sampled.truncate(held + 1);
}
