//! First half of the experts' feed-forward blocks: gate and up projections, or up projections alone.

use super::super::epilogue::{Epilogue, GatedEpilogue};
use super::super::format::{Input, WeightFormat};
use super::super::linear::{Paired, Single, Staging, multiply_tile, stage};
use super::super::loader::{GatedMatrix, Matrix};
use super::super::norm::{NormWeight, RmsNorm};
use super::super::normalise::Normalise;
use super::super::rows::Rows;
use super::super::simd::F32s;
use super::super::team::Lane;
use super::{ExpertScratch, Experts, GatedExperts};
use std::ops::Range;

/// `epilogue(gate · norm(x), up · norm(x))` for each slot of the first `rows` rows of `x`, with the matrices
/// of the slot's expert. To the epilogue, slot `s` of row `t` is token `t * ACTIVE + s`:
/// [`super::super::Gated`] writes to rows `[slots, WIDTH]`.
///
/// # Panics
/// When `routing` names an expert that does not exist.
#[expect(clippy::too_many_arguments, reason = "one phase is one call; a structure would only rename them")]
pub fn expert_gated<
    F,
    K,
    E,
    const EXPERTS: usize,
    const WIDTH: usize,
    const COLS: usize,
    const ROUTING: usize,
>(
    lane: &Lane,
    rows: usize,
    x: &Rows<COLS>,
    norm: &RmsNorm<K, COLS>,
    staging: &Staging<F, COLS>,
    routing: &Rows<ROUTING>,
    weights: &GatedExperts<F, EXPERTS, WIDTH, COLS>,
    scratch: &ExpertScratch<F, COLS>,
    epilogue: E,
) where
    F: WeightFormat,
    K: NormWeight,
    E: GatedEpilogue<WIDTH>,
{
    let active = const { super::active(ROUTING) };
    let staged = stage(lane, rows, x, norm, staging);
    let gather = |input: &F::Input<COLS>, place, slot| {
        // SAFETY: the lane's own input; rows were staged before a barrier, or by this lane.
        unsafe { input.copy(place, staged, slot / active) };
    };
    let tiles = GatedMatrix::<F, WIDTH, COLS>::TILES;
    let multiply = |expert, input: &F::Input<COLS>, slots: &[usize], tiles: Range<usize>| {
        let epilogue = Slots { slots, epilogue: &epilogue };
        let product = Paired::<F, _, WIDTH, COLS> { input, weights: weights.packed(expert), epilogue };
        for tile in tiles {
            // SAFETY: each tile of an expert belongs to one lane, and so do its elements of the expert's
            // slots.
            unsafe { multiply_tile(tile, slots.len(), &product) };
        }
    };
    // SAFETY: no lane writes `routing` in this phase.
    unsafe { scratch.each::<EXPERTS, ROUTING>(lane, rows, routing, tiles, gather, multiply) };
    lane.barrier();
}

/// `epilogue(up · norm(x))` for each slot, as [`expert_gated`] has it: experts without a gate.
///
/// # Panics
/// When `routing` names an expert that does not exist.
#[expect(clippy::too_many_arguments, reason = "one phase is one call; a structure would only rename them")]
pub fn expert_up<F, P, E, const EXPERTS: usize, const WIDTH: usize, const COLS: usize, const ROUTING: usize>(
    lane: &Lane,
    rows: usize,
    x: &Rows<COLS>,
    norm: &P,
    staging: &Staging<F, COLS>,
    routing: &Rows<ROUTING>,
    weights: &Experts<F, EXPERTS, WIDTH, COLS>,
    scratch: &ExpertScratch<F, COLS>,
    epilogue: E,
) where
    F: WeightFormat,
    P: Normalise<COLS>,
    E: Epilogue<WIDTH>,
{
    let active = const { super::active(ROUTING) };
    let staged = stage(lane, rows, x, norm, staging);
    let gather = |input: &F::Input<COLS>, place, slot| {
        // SAFETY: the lane's own input; rows were staged before a barrier, or by this lane.
        unsafe { input.copy(place, staged, slot / active) };
    };
    let tiles = Matrix::<F, WIDTH, COLS>::TILES;
    let multiply = |expert, input: &F::Input<COLS>, slots: &[usize], tiles: Range<usize>| {
        let epilogue = Slots { slots, epilogue: &epilogue };
        let product = Single::<F, _, WIDTH, COLS> { input, weights: weights.packed(expert), epilogue };
        for tile in tiles {
            // SAFETY: each tile of an expert belongs to one lane, and so do its elements of the expert's
            // slots.
            unsafe { multiply_tile(tile, slots.len(), &product) };
        }
    };
    // SAFETY: no lane writes `routing` in this phase.
    unsafe { scratch.each::<EXPERTS, ROUTING>(lane, rows, routing, tiles, gather, multiply) };
    lane.barrier();
}

/// Maps the sums of gathered rows to their slots.
struct Slots<'a, E> {
    slots: &'a [usize],
    epilogue: &'a E,
}

impl<E: Epilogue<WIDTH>, const WIDTH: usize> Epilogue<WIDTH> for Slots<'_, E> {
    #[inline(always)]
    unsafe fn apply(&self, token: usize, from: usize, sums: F32s) {
        // SAFETY: the caller's promise.
        unsafe { self.epilogue.apply(self.slots[token], from, sums) }
    }
}

impl<E: GatedEpilogue<WIDTH>, const WIDTH: usize> GatedEpilogue<WIDTH> for Slots<'_, E> {
    #[inline(always)]
    unsafe fn apply(&self, token: usize, from: usize, gate: F32s, up: F32s) {
        // SAFETY: the caller's promise.
        unsafe { self.epilogue.apply(self.slots[token], from, gate, up) }
    }
}
