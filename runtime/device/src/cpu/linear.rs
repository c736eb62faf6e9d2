//! Matrix products. Decode streams the weights past one or a few tokens; prefill keeps a tile of weights in
//! the nearest cache for all tokens.

use super::epilogue::{Epilogue, GatedEpilogue};
use super::format::{Input, WeightFormat};
use super::loader::{GatedMatrix, Matrix};
use super::normalise::{NoNorm, Normalise};
use super::rows::Rows;
use super::simd::{LANES, MAX_TOKENS, PARTS, TILE};
use super::team::Lane;

/// Up to this many rows, each lane prepares the activations for itself, which costs less than a barrier.
const PRIVATE_ROWS: usize = 2;

/// Scratch for activations `[capacity, N]` in the form that products with format `F` take: one shared by the
/// lanes for many rows, and a private one per lane for few. Products may share it, since each ends with a
/// barrier.
pub struct Staging<F: WeightFormat, const N: usize> {
    shared: F::Input<N>,
    private: Vec<F::Input<N>>,
}

impl<F: WeightFormat, const N: usize> Staging<F, N> {
    /// Scratch for `capacity` rows and a team of `lanes`.
    pub fn new(lanes: usize, capacity: usize) -> Self {
        let private = (0..lanes).map(|_| F::Input::with_capacity(PRIVATE_ROWS)).collect();
        Staging { shared: F::Input::with_capacity(capacity), private }
    }
}

impl<F: WeightFormat, const N: usize> std::fmt::Debug for Staging<F, N> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Staging({}, {N})", F::FORMAT)
    }
}

/// `epilogue(weights · norm(x))` for the first `rows` rows of `x`.
pub fn norm_linear<F, P, E, const ROWS: usize, const COLS: usize>(
    lane: &Lane,
    rows: usize,
    x: &Rows<COLS>,
    norm: &P,
    staging: &Staging<F, COLS>,
    weights: &Matrix<F, ROWS, COLS>,
    epilogue: E,
) where
    F: WeightFormat,
    P: Normalise<COLS>,
    E: Epilogue<ROWS>,
{
    let input = stage(lane, rows, x, norm, staging);
    multiply(lane, rows, &Single::<F, _, ROWS, COLS> { input, weights: weights.packed(), epilogue });
}

/// `epilogue(weights · norm(x))` with the first `TOP` rows of the weights, for the first `rows` rows of `x`.
pub fn norm_linear_top<F, P, E, const ROWS: usize, const COLS: usize, const TOP: usize>(
    lane: &Lane,
    rows: usize,
    x: &Rows<COLS>,
    norm: &P,
    staging: &Staging<F, COLS>,
    weights: &Matrix<F, ROWS, COLS>,
    epilogue: E,
) where
    F: WeightFormat,
    P: Normalise<COLS>,
    E: Epilogue<TOP>,
{
    const { assert!(TOP <= ROWS, "the weights have these rows") };
    let input = stage(lane, rows, x, norm, staging);
    multiply(lane, rows, &Single::<F, _, TOP, COLS> { input, weights: weights.packed(), epilogue });
}

/// `epilogue(weights · x)` for the first `rows` rows of `x`.
pub fn linear<F, E, const ROWS: usize, const COLS: usize>(
    lane: &Lane,
    rows: usize,
    x: &Rows<COLS>,
    staging: &Staging<F, COLS>,
    weights: &Matrix<F, ROWS, COLS>,
    epilogue: E,
) where
    F: WeightFormat,
    E: Epilogue<ROWS>,
{
    let input = stage(lane, rows, x, &NoNorm, staging);
    multiply(lane, rows, &Single::<F, _, ROWS, COLS> { input, weights: weights.packed(), epilogue });
}

/// `epilogue(gate · norm(x), up · norm(x))` for the first `rows` rows of `x`.
pub fn norm_gated<F, P, E, const WIDTH: usize, const COLS: usize>(
    lane: &Lane,
    rows: usize,
    x: &Rows<COLS>,
    norm: &P,
    staging: &Staging<F, COLS>,
    weights: &GatedMatrix<F, WIDTH, COLS>,
    epilogue: E,
) where
    F: WeightFormat,
    P: Normalise<COLS>,
    E: GatedEpilogue<WIDTH>,
{
    let input = stage(lane, rows, x, norm, staging);
    multiply(lane, rows, &Paired::<F, _, WIDTH, COLS> { input, weights: weights.packed(), epilogue });
}

/// Converts the activations to the form that products with `F` take.
#[inline(always)]
pub(crate) fn stage<'a, F: WeightFormat, P: Normalise<N>, const N: usize>(
    lane: &Lane,
    rows: usize,
    x: &'a Rows<N>,
    norm: &P,
    staging: &'a Staging<F, N>,
) -> &'a F::Input<N> {
    if P::IDENTITY
        && let Some(x) = F::Input::direct(x)
    {
        return x;
    }
    if rows <= PRIVATE_ROWS {
        let input = &staging.private[lane.index()];
        for row in 0..rows {
            // SAFETY: no lane writes `x` in this phase, and only this lane uses its private input.
            unsafe { input.fill(row, x.padded(row), norm) };
        }
        input
    } else {
        for row in lane.share(rows) {
            // SAFETY: no lane writes `x` in this phase, and the shares of the lanes are disjoint.
            unsafe { staging.shared.fill(row, x.padded(row), norm) };
        }
        lane.barrier();
        &staging.shared
    }
}

/// A product, tile by tile.
pub(crate) trait Product {
    /// Number of tiles of the result.
    const TILES: usize;

    /// Computes tile `tile` for rows `first .. first + M` and hands it to the epilogue.
    ///
    /// # Safety
    /// The tile belongs to this lane, and no lane writes the input.
    unsafe fn tile<const M: usize>(&self, tile: usize, first: usize);
}

/// Computes all tiles: each lane takes a contiguous share, and each tile its tokens in groups.
#[inline(always)]
fn multiply<P: Product>(lane: &Lane, rows: usize, product: &P) {
    for tile in lane.share(P::TILES) {
        // SAFETY: the shares of the lanes are disjoint; inputs were written before a barrier, or by this
        // lane.
        unsafe { multiply_tile(tile, rows, product) };
    }
    lane.barrier();
}

/// Computes one tile, in groups of tokens.
///
/// # Safety
/// The tile belongs to this lane, and no lane writes the input.
#[inline(always)]
pub(crate) unsafe fn multiply_tile<P: Product>(tile: usize, rows: usize, product: &P) {
    let mut row = 0;
    while rows - row >= MAX_TOKENS {
        // SAFETY: the caller's promise.
        unsafe { product.tile::<MAX_TOKENS>(tile, row) };
        row += MAX_TOKENS;
    }
    if MAX_TOKENS > 8 && rows - row >= 8 {
        // SAFETY: as above.
        unsafe { product.tile::<8>(tile, row) };
        row += 8;
    }
    if MAX_TOKENS > 4 && rows - row >= 4 {
        // SAFETY: as above.
        unsafe { product.tile::<4>(tile, row) };
        row += 4;
    }
    if rows - row >= 2 {
        // SAFETY: as above.
        unsafe { product.tile::<2>(tile, row) };
        row += 2;
    }
    if rows - row >= 1 {
        // SAFETY: as above.
        unsafe { product.tile::<1>(tile, row) };
    }
}

/// Weights `[ROWS, COLS]` times the input.
pub(crate) struct Single<'a, F: WeightFormat, E, const ROWS: usize, const COLS: usize> {
    /// Rows to multiply.
    pub(crate) input: &'a F::Input<COLS>,
    /// All tiles.
    pub(crate) weights: &'a [u8],
    /// Consumes the sums.
    pub(crate) epilogue: E,
}

impl<F: WeightFormat, E: Epilogue<ROWS>, const ROWS: usize, const COLS: usize> Product
    for Single<'_, F, E, ROWS, COLS>
{
    const TILES: usize = Matrix::<F, ROWS, COLS>::TILES;

    #[inline]
    unsafe fn tile<const M: usize>(&self, tile: usize, first: usize) {
        let bytes = F::tile_bytes(COLS);
        let weights = &self.weights[tile * bytes..][..bytes];
        // SAFETY: the caller's promise.
        let input = unsafe { self.input.elements(first, M) };
        for part in 0..PARTS {
            let sums = F::product::<M, COLS>(weights, part, input);
            for (t, sums) in sums.into_iter().enumerate() {
                // SAFETY: the tile belongs to this lane.
                unsafe { self.epilogue.apply(first + t, tile * TILE + part * LANES, sums) };
            }
        }
    }
}

/// A gate and an up projection `[WIDTH, COLS]` times the input.
pub(crate) struct Paired<'a, F: WeightFormat, E, const WIDTH: usize, const COLS: usize> {
    /// Rows to multiply.
    pub(crate) input: &'a F::Input<COLS>,
    /// All pairs of tiles.
    pub(crate) weights: &'a [u8],
    /// Consumes the sums.
    pub(crate) epilogue: E,
}

impl<F: WeightFormat, E: GatedEpilogue<WIDTH>, const WIDTH: usize, const COLS: usize> Product
    for Paired<'_, F, E, WIDTH, COLS>
{
    const TILES: usize = GatedMatrix::<F, WIDTH, COLS>::TILES;

    #[inline]
    unsafe fn tile<const M: usize>(&self, tile: usize, first: usize) {
        let bytes = F::tile_bytes(COLS);
        let (gate, up) = self.weights[2 * tile * bytes..][..2 * bytes].split_at(bytes);
        // SAFETY: the caller's promise.
        let input = unsafe { self.input.elements(first, M) };
        for part in 0..PARTS {
            let gates = F::product::<M, COLS>(gate, part, input);
            let ups = F::product::<M, COLS>(up, part, input);
            for (t, (gate, up)) in gates.into_iter().zip(ups).enumerate() {
                // SAFETY: the tile belongs to this lane.
                unsafe { self.epilogue.apply(first + t, tile * TILE + part * LANES, gate, up) };
            }
        }
    }
}
