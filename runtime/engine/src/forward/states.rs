//! Copies of recurrent states that cannot wait for the next step.

use monomorph_model::{Model, StateCopy};

/// Makes copies of states now, in their order, through `state`, which has the bytes of one. No step is in
/// flight, so what they read is what the next step would have read.
pub(super) fn copy_now<M: Model>(model: &mut M, copies: impl Iterator<Item = StateCopy>, state: &mut [u8]) {
    for StateCopy { from, to } in copies {
        model.read_state(from, state);
        model.write_state(to, state);
    }
}
