//! Mamba-2: from the projections of a token to its gated and normalised heads.
//!
//! Each head has a matrix `S [STATE][HEAD_DIM]`, zero at the start of a sequence. A token with input `x`, `B`
//! and `C` (after the convolution) and step `D_t` decays it, adds to it, and reads it:
//!
//! ```text
//! S <- a S + B (D_t x)^T;   y = S^T C + d x;   a = exp(-exp(a_log) D_t);   D_t = softplus(dt + dt_bias)
//! ```
//!
//! (Dao, Gu, "Transformers are SSMs", 2024.) Tokens are processed one at a time, in prefill too, as in a
//! delta net, so a row's result depends on its sequence alone.

mod recurrence;
mod scratch;

use super::batch::Batch;
use super::loader::Vector;
use super::recurrent::{Convolution, RecurrentState};
use super::rows::Rows;
use super::team::Lane;
use recurrence::Work;
pub use scratch::Mamba2Scratch;

/// One Mamba-2 of a layer: convolution, recurrence, gate, norm of each group.
///
/// A row of `projected` holds `[z | x | B | C | dt]`: gates and inputs in `HEADS` heads of `HEAD_DIM`, `B` of
/// each of `GROUPS` groups in `STATE` elements, `C` likewise, then a number for each head. Head `h` uses
/// group `h / (HEADS / GROUPS)`. `x`, `B` and `C` go through `convolution`, whose channels have the same
/// order, `bias` and SiLU. A row of `out` receives `norm(y * silu(z))`; each group's part of the row is
/// divided by the root of its own mean square plus `eps`.
///
/// Each sequence continues from its slot's state of `layer` in `state`; a sequence at position 0 starts from
/// zeros. If its last tokens are drafts, it can later continue after any of them, or before the first.
///
/// # Panics
/// When the batch admits more slots than the state has or more tokens than the scratch has room for, two of
/// its sequences have the same slot, or there is no such layer.
#[expect(clippy::too_many_arguments, reason = "one phase is one call; a structure would only rename them")]
pub fn mamba2<
    const HEADS: usize,
    const HEAD_DIM: usize,
    const GROUPS: usize,
    const STATE: usize,
    const TAPS: usize,
    const CHANNELS: usize,
    const PROJECTED: usize,
    const INNER: usize,
    const DRAFTS: usize,
>(
    lane: &Lane,
    batch: &Batch,
    layer: usize,
    projected: &Rows<PROJECTED>,
    convolution: &Convolution<CHANNELS, TAPS>,
    bias: &Vector<CHANNELS>,
    a_log: &Vector<HEADS>,
    dt_bias: &Vector<HEADS>,
    d: &Vector<HEADS>,
    norm: &Vector<INNER>,
    eps: f32,
    state: &RecurrentState<HEADS, STATE, HEAD_DIM, CHANNELS, TAPS, DRAFTS>,
    scratch: &Mamba2Scratch<HEADS, HEAD_DIM, GROUPS, STATE>,
    out: &Rows<INNER>,
) {
    const {
        assert!(INNER == HEADS * HEAD_DIM, "a row of results holds all heads");
        assert!(CHANNELS == INNER + 2 * GROUPS * STATE, "x, B and C are what is convolved");
        assert!(PROJECTED == INNER + CHANNELS + HEADS, "a row of projections holds z, x, B, C and dt");
        assert!(GROUPS > 0 && HEADS.is_multiple_of(GROUPS), "heads are a multiple of groups");
    }
    state.check(batch, layer, scratch.capacity);

    let work = Work {
        batch,
        layer,
        projected,
        convolution,
        bias,
        a_log,
        dt_bias,
        d,
        norm,
        eps,
        state,
        scratch,
        out,
    };
    work.prepare(lane);
    work.recur(lane);
    work.finish(lane);
}
