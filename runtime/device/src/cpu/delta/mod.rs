//! The gated delta rule of linear attention layers: from the projections of a token to its normed and gated
//! heads.
//!
//! Each value head has a matrix `S [KEY_DIM][VALUE_DIM]`, zero at the start of a sequence. A token with key
//! `k`, query `q` and value `v` (after the convolution; `k` and `q` have length one, and `q` is divided by
//! the root of their width) decays it, corrects its prediction for `k`, and reads it:
//!
//! ```text
//! S <- exp(g) S;  S <- S + k (beta (v - S^T k))^T;  o = S^T q
//! ```
//!
//! (Yang, Kautz, Hatamizadeh, "Gated Delta Networks", 2024.) Tokens are processed one at a time, in prefill
//! too, each on a tile of `S` that stays in the nearest cache. So a row's result depends on its sequence
//! alone, not on the other rows of the step, the split of the prompt into prefill chunks, or the number of
//! lanes.

mod recurrence;
mod scratch;

use super::batch::Batch;
use super::epilogue::Activation;
use super::loader::Vector;
use super::norm::{NormWeight, RmsNorm};
use super::recurrent::{Convolution, RecurrentState};
use super::rows::Rows;
use super::team::Lane;
use recurrence::Work;
pub use scratch::DeltaScratch;
use std::marker::PhantomData;

/// One gated delta net of a layer: convolution, recurrence, norm of each value head, gate.
///
/// A row of `qkvz` holds the raw projections
/// `[KEY_HEADS queries | KEY_HEADS keys | VALUE_HEADS values | VALUE_HEADS gates]`, the first two in heads of
/// `KEY_DIM`, the others of `VALUE_DIM`; which key head a value head uses is in the type of `scratch`.
/// Queries, keys and values go through `convolution`, whose channels have the same order, and SiLU. A row of
/// `ba` holds a `b` for every value head, followed by an `a` for each: `beta = sigmoid(b)` and
/// `g = -exp(a_log) * softplus(a + dt_bias)`. A row of `out` receives `activation(gate) * norm(o)` of every
/// value head.
///
/// Each sequence continues from its slot's state of `layer` in `state`; a sequence at position 0 starts from
/// zeros. If its last tokens are drafts, it can later continue after any of them, or before the first.
///
/// # Panics
/// When the batch admits more slots than the state has or more tokens than the scratch has room for, two of
/// its sequences have the same slot, or there is no such layer.
#[expect(clippy::too_many_arguments, reason = "one phase is one call; a structure would only rename them")]
pub fn delta<
    A: Activation,
    K: NormWeight,
    const KEY_HEADS: usize,
    const VALUE_HEADS: usize,
    const KEY_DIM: usize,
    const VALUE_DIM: usize,
    const TAPS: usize,
    const CHANNELS: usize,
    const QKVZ: usize,
    const BA: usize,
    const OUT: usize,
    const DRAFTS: usize,
    const TILED: bool,
>(
    lane: &Lane,
    batch: &Batch,
    layer: usize,
    qkvz: &Rows<QKVZ>,
    ba: &Rows<BA>,
    convolution: &Convolution<CHANNELS, TAPS>,
    a_log: &Vector<VALUE_HEADS>,
    dt_bias: &Vector<VALUE_HEADS>,
    norm: &RmsNorm<K, VALUE_DIM>,
    _: A,
    state: &RecurrentState<VALUE_HEADS, KEY_DIM, VALUE_DIM, CHANNELS, TAPS, DRAFTS>,
    scratch: &DeltaScratch<KEY_HEADS, VALUE_HEADS, KEY_DIM, VALUE_DIM, TILED>,
    out: &Rows<OUT>,
) {
    const {
        assert!(
            CHANNELS == 2 * KEY_HEADS * KEY_DIM + VALUE_HEADS * VALUE_DIM,
            "queries, keys and values are what is convolved"
        );
        assert!(QKVZ == CHANNELS + VALUE_HEADS * VALUE_DIM, "a row of qkvz holds all heads");
        assert!(BA == 2 * VALUE_HEADS, "a row of ba holds two numbers a value head");
        assert!(OUT == VALUE_HEADS * VALUE_DIM, "a row of results holds the value heads");
    }
    state.check(batch, layer, scratch.capacity);

    let work = Work {
        batch,
        layer,
        qkvz,
        ba,
        convolution,
        a_log,
        dt_bias,
        norm,
        activation: PhantomData::<A>,
        state,
        scratch,
        out,
    };
    work.prepare(lane);
    work.recur(lane);
}
