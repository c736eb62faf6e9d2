//! Second half of the experts' feed-forward blocks: down projections, and the sum over a row's experts.

use super::super::epilogue::{Add, Epilogue, Store, sigmoid_times};
use super::super::format::{Input, WeightFormat};
use super::super::linear::{Single, multiply_tile};
use super::super::loader::Matrix;
use super::super::normalise::NoNorm;
use super::super::rows::Rows;
use super::super::simd::{F32s, LANES, PARTS, TILE, at};
use super::super::team::Lane;
use super::{ExpertScratch, Experts};
use std::ops::Range;

/// `residual += sum over slots of weight * (down · inner)` for the first `rows` rows, plus the shared
/// expert's term.
///
/// `inner` has a row per slot, and so has `products`. For each element, in f32: the routed sum starts from
/// zero and adds `weight * product` slot by slot, each rounded once where the machine can ([`Shared`] then
/// adds `sigmoid(gate) * output` in the same way); the total is added to the residual.
///
/// # Panics
/// When `routing` names an expert that does not exist.
#[expect(clippy::too_many_arguments, reason = "one phase is one call; a structure would only rename them")]
pub fn expert_down<
    F,
    S,
    const EXPERTS: usize,
    const HIDDEN: usize,
    const WIDTH: usize,
    const ROUTING: usize,
>(
    lane: &Lane,
    rows: usize,
    inner: &Rows<WIDTH>,
    routing: &Rows<ROUTING>,
    weights: &Experts<F, EXPERTS, HIDDEN, WIDTH>,
    scratch: &ExpertScratch<F, WIDTH>,
    products: &Rows<HIDDEN>,
    shared: S,
    residual: &Rows<HIDDEN>,
) where
    F: WeightFormat,
    S: SharedTerm<HIDDEN>,
{
    multiply(lane, rows, inner, routing, weights, scratch, products);
    combine(lane, rows, routing, products, &shared, &Add(residual));
}

/// As [`expert_down`] without a shared expert, but the sum takes the place of what `out` holds.
///
/// # Panics
/// When `routing` names an expert that does not exist.
#[expect(clippy::too_many_arguments, reason = "one phase is one call; a structure would only rename them")]
pub fn expert_sum<F, const EXPERTS: usize, const HIDDEN: usize, const WIDTH: usize, const ROUTING: usize>(
    lane: &Lane,
    rows: usize,
    inner: &Rows<WIDTH>,
    routing: &Rows<ROUTING>,
    weights: &Experts<F, EXPERTS, HIDDEN, WIDTH>,
    scratch: &ExpertScratch<F, WIDTH>,
    products: &Rows<HIDDEN>,
    out: &Rows<HIDDEN>,
) where
    F: WeightFormat,
{
    multiply(lane, rows, inner, routing, weights, scratch, products);
    combine(lane, rows, routing, products, &NoShared, &Store(out));
}

/// The products of each slot; ends with a barrier.
fn multiply<F, const EXPERTS: usize, const HIDDEN: usize, const WIDTH: usize, const ROUTING: usize>(
    lane: &Lane,
    rows: usize,
    inner: &Rows<WIDTH>,
    routing: &Rows<ROUTING>,
    weights: &Experts<F, EXPERTS, HIDDEN, WIDTH>,
    scratch: &ExpertScratch<F, WIDTH>,
    products: &Rows<HIDDEN>,
) where
    F: WeightFormat,
{
    let gather = |input: &F::Input<WIDTH>, place, slot| {
        // SAFETY: the lane's own input; no lane writes `inner` in this phase.
        unsafe { input.fill(place, inner.padded(slot), &NoNorm) };
    };
    let tiles = Matrix::<F, HIDDEN, WIDTH>::TILES;
    let multiply = |expert, input: &F::Input<WIDTH>, slots: &[usize], tiles: Range<usize>| {
        let epilogue = Slots { slots, to: Store(products) };
        let product = Single::<F, _, HIDDEN, WIDTH> { input, weights: weights.packed(expert), epilogue };
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
struct Slots<'a, const HIDDEN: usize> {
    slots: &'a [usize],
    to: Store<'a, HIDDEN>,
}

impl<const HIDDEN: usize> Epilogue<HIDDEN> for Slots<'_, HIDDEN> {
    #[inline(always)]
    unsafe fn apply(&self, token: usize, from: usize, sums: F32s) {
        // SAFETY: the caller's promise.
        unsafe { self.to.apply(self.slots[token], from, sums) }
    }
}

/// Sums the products of a row's experts; ends with a barrier.
fn combine<S: SharedTerm<HIDDEN>, E: Epilogue<HIDDEN>, const HIDDEN: usize, const ROUTING: usize>(
    lane: &Lane,
    rows: usize,
    routing: &Rows<ROUTING>,
    products: &Rows<HIDDEN>,
    shared: &S,
    epilogue: &E,
) {
    let active = const { super::active(ROUTING) };
    let tiles = HIDDEN.div_ceil(TILE);
    let mine = lane.share(rows * tiles);
    let mut unit = mine.start;
    while unit < mine.end {
        let (row, first) = (unit / tiles, unit % tiles);
        let last = tiles.min(first + mine.end - unit);
        // SAFETY: no lane writes `routing` in this phase.
        let weights = unsafe { routing.part(row, 0, active) };
        // SAFETY: no lane writes the shared expert's output in this phase.
        let scale = unsafe { shared.scale(row) };
        for from in (first * PARTS..last * PARTS).map(|vector| vector * LANES) {
            let mut sum = F32s::zero();
            for (slot, weight) in weights.iter().enumerate() {
                // SAFETY: products were written before a barrier, and are not written after it.
                let product = unsafe { products.part(row * active + slot, from, LANES) };
                sum = F32s::load(at(product, 0)).mul_add(F32s::splat(*weight), sum);
            }
            // SAFETY: as for the scale.
            sum = unsafe { shared.add(row, from, scale, sum) };
            // SAFETY: the shares of the lanes are disjoint.
            unsafe { epilogue.apply(row, from, sum) };
        }
        unit += last - first;
    }
    lane.barrier();
}

/// The shared expert's term of the sum over a row's experts.
pub trait SharedTerm<const HIDDEN: usize>: Sync {
    /// The factor of a row's term.
    ///
    /// # Safety
    /// No lane writes the shared expert's output meanwhile.
    #[doc(hidden)]
    unsafe fn scale(&self, row: usize) -> F32s;

    /// Adds elements `from ..` (a vector of them) to `sum`.
    ///
    /// # Safety
    /// As for the scale.
    #[doc(hidden)]
    unsafe fn add(&self, row: usize, from: usize, scale: F32s, sum: F32s) -> F32s;
}

/// No shared expert.
#[derive(Clone, Copy, Debug)]
pub struct NoShared;

/// The shared expert's output, times the sigmoid of its gate, element `gate` of a row's logits.
#[derive(Clone, Copy, Debug)]
pub struct Shared<'a, const HIDDEN: usize, const LOGITS: usize> {
    /// The shared expert's output for each row.
    pub output: &'a Rows<HIDDEN>,
    /// The gate's logits, or the router's, which include it.
    pub logits: &'a Rows<LOGITS>,
    /// Index of the gate among a row's logits.
    pub gate: usize,
}

impl<const HIDDEN: usize> SharedTerm<HIDDEN> for NoShared {
    #[inline(always)]
    unsafe fn scale(&self, _: usize) -> F32s {
        F32s::zero()
    }

    #[inline(always)]
    unsafe fn add(&self, _: usize, _: usize, _: F32s, sum: F32s) -> F32s {
        sum
    }
}

impl<const HIDDEN: usize, const LOGITS: usize> SharedTerm<HIDDEN> for Shared<'_, HIDDEN, LOGITS> {
    #[inline(always)]
    unsafe fn scale(&self, row: usize) -> F32s {
        // SAFETY: the caller's promise.
        let logit = unsafe { self.logits.part(row, self.gate, 1) }[0];
        sigmoid_times(F32s::splat(1.0), F32s::splat(logit))
    }

    #[inline(always)]
    unsafe fn add(&self, row: usize, from: usize, scale: F32s, sum: F32s) -> F32s {
        // SAFETY: the caller's promise.
        let output = unsafe { self.output.part(row, from, LANES) };
        F32s::load(at(output, 0)).mul_add(scale, sum)
    }
}
