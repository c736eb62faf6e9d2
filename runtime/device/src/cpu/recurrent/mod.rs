//! Shared by recurrent layers: the state of sequences, the causal convolution before it, column tiles of a
//! matrix.

mod convolution;
mod state;
pub(super) mod tile;

use super::simd::{F32s, LANES, at, at_mut};
pub use convolution::Convolution;
pub use state::RecurrentState;

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
