//! Shared by recurrent layers: the state of sequences, the causal convolution before it, column tiles of a
//! matrix.

mod convolution;
mod state;
pub(super) mod tile;

use super::batch::Batch;
use super::memory::Memory;
use super::rows::Rows;
use super::shape::Sequence;
use super::simd::{F32s, LANES, at, at_mut};
pub use convolution::Convolution;
pub use state::RecurrentState;
use std::ops::Range;

/// The inputs under the convolution's taps for row `row`: those of the step from column `from` of `projected`
/// on, those before it from `state`, and `zeros` before the first token.
///
/// # Safety
/// No lane writes any of them while the results live.
#[inline(always)]
pub(super) unsafe fn inputs<
    'a,
    const HEADS: usize,
    const ROWS: usize,
    const COLUMNS: usize,
    const CHANNELS: usize,
    const TAPS: usize,
    const DRAFTS: usize,
    const PROJECTED: usize,
>(
    batch: &Batch,
    row: usize,
    projected: &'a Rows<PROJECTED>,
    from: usize,
    (state, layer): (&'a RecurrentState<HEADS, ROWS, COLUMNS, CHANNELS, TAPS, DRAFTS>, usize),
    zeros: &'a Memory<f32>,
) -> [&'a [f32]; TAPS] {
    let sequence = batch.sequence_of(row);
    let position = batch.positions()[row] as usize;
    std::array::from_fn(|tap| {
        let back = TAPS - 1 - tap;
        // SAFETY: the caller's promise, three times.
        unsafe {
            if back > position {
                zeros.slice(0, CHANNELS)
            } else if position - back >= sequence.position {
                projected.part(row - back, from, CHANNELS)
            } else {
                state.inputs(layer, sequence.slot, position - back)
            }
        }
    })
}

/// Calls `each` with rows of a sequence and the position whose version of the matrix they end in. Accepted
/// tokens all go through the version after the last of them, each draft through its own. A version is
/// overwritten only when the sequence can no longer return to its position.
///
/// # Safety
/// No other lane reads or writes this head's matrices of the sequence meanwhile.
#[inline(always)]
pub(super) unsafe fn through_versions<
    const HEADS: usize,
    const ROWS: usize,
    const COLUMNS: usize,
    const CHANNELS: usize,
    const TAPS: usize,
    const DRAFTS: usize,
>(
    state: &RecurrentState<HEADS, ROWS, COLUMNS, CHANNELS, TAPS, DRAFTS>,
    layer: usize,
    sequence: &Sequence,
    head: usize,
    mut each: impl FnMut(Range<usize>, usize),
) {
    let (slot, rows) = (sequence.slot, &sequence.rows);
    let held = rows.len() - sequence.drafts;
    let last = sequence.position + held - 1;
    if sequence.position > 0 {
        // SAFETY: the caller's promise.
        unsafe { state.copy_matrix(layer, slot, head, sequence.position - 1, last) };
    }
    each(rows.start..rows.start + held, last);
    for draft in 0..sequence.drafts {
        let (row, position) = (rows.start + held + draft, last + 1 + draft);
        // SAFETY: as above.
        unsafe { state.copy_matrix(layer, slot, head, position - 1, position) };
        each(row..row + 1, position);
    }
}

/// Keeps some channels of the convolution's last inputs, which begin at a column of `projected`, for the
/// sequence's next step.
///
/// # Safety
/// No lane writes `projected`, and none accesses these channels of the kept inputs, meanwhile.
pub(super) unsafe fn keep<
    const HEADS: usize,
    const ROWS: usize,
    const COLUMNS: usize,
    const CHANNELS: usize,
    const TAPS: usize,
    const DRAFTS: usize,
    const PROJECTED: usize,
>(
    state: &RecurrentState<HEADS, ROWS, COLUMNS, CHANNELS, TAPS, DRAFTS>,
    layer: usize,
    sequence: &Sequence,
    (projected, from): (&Rows<PROJECTED>, usize),
    channels: Range<usize>,
) {
    let count = sequence.rows.len();
    let kept = RecurrentState::<HEADS, ROWS, COLUMNS, CHANNELS, TAPS, DRAFTS>::KEPT;
    for i in count.saturating_sub(kept)..count {
        // SAFETY: the caller's promise.
        let x = unsafe { projected.part(sequence.rows.start + i, from + channels.start, channels.len()) };
        // SAFETY: as above.
        unsafe { state.keep(layer, sequence.slot, sequence.position + i, channels.start, x) };
    }
}

/// The vector at `from`, zero past the end of `x`: heads need not be whole vectors.
#[inline(always)]
pub(super) fn load(x: &[f32], from: usize) -> F32s {
    if from + LANES <= x.len() {
        return F32s::load(at(x, from));
    }
    let mut lanes = [0.0; LANES];
    lanes[..x.len() - from].copy_from_slice(&x[from..]);
    F32s::load(&lanes)
}

/// Writes a vector at `from`, up to the end of `out`.
#[inline(always)]
pub(super) fn store(x: F32s, out: &mut [f32], from: usize) {
    if from + LANES <= out.len() {
        x.store(at_mut(out, from));
    } else {
        let count = out.len() - from;
        out[from..].copy_from_slice(&x.to_array()[..count]);
    }
}
