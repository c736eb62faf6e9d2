//! The shapes of a mixture's kernels whose warps have rings of their own: the Rust side of
//! templates/cuda/experts/{experts_few,experts_few_up,experts_stream_down_shape,experts_rings}.cuh.

use super::shape::{Lists, Ring, choices_bytes};
use crate::blocks::products::cuda::gemm;
use crate::blocks::products::cuda::stream::{self, Stream, consumer_warps};
use crate::passes::launch::{Matrix, alone, fits};
use crate::plan::packed::{TILE_ROWS, UNIT_BYTES, unit_columns, unit_scale_bytes};
use crate::spec::types::{Cuda, Knobs};
use monomorph_formats::{Format, ScaleForm};

/// `FewUpShape<C>::TEAM`: warps that share a granule.
const TEAM: usize = 2;
/// Stages of a warp's ring. Three were up to 4 % slower on an H200 and four up to 11 %, whatever their
/// length.
const STAGES: usize = 2;

/// `Pieces<…>::ROUND`: units that share a scale of 128 columns.
fn round(matrix: &Matrix) -> usize {
    if matrix.scales == Some(ScaleForm::Block128) { 2 } else { 1 }
}

/// `Pieces<…>::STAGE`: the bytes of a piece of a slice of so many units, at most `capacity`.
fn stage(matrix: &Matrix, slice: usize, capacity: usize) -> usize {
    piece(matrix, slice, capacity, matrix.halves()).next_multiple_of(128)
}

/// `Pieces<…>::CODES` and `SCALE_BYTES`. `of_rows`: the scales of the tile's rows come with it.
fn piece(matrix: &Matrix, slice: usize, capacity: usize, of_rows: bool) -> usize {
    let round = round(matrix);
    let count = slice.div_ceil(capacity.min(slice).next_multiple_of(round));
    let piece = slice.div_ceil(count).next_multiple_of(round);
    let scales = if of_rows {
        TILE_ROWS * 4
    } else if matrix.scales == Some(ScaleForm::Block128) {
        (piece * 2 + 12).next_multiple_of(16)
    } else {
        piece * unit_scale_bytes(matrix.format)
    };
    piece * UNIT_BYTES + scales
}

/// `WarpRing<…>::BARRIERS` of all warps.
fn barriers(warps: usize) -> usize {
    8 * warps * 2 * STAGES
}

/// Rings of the longest pieces, of `capacities` units at most, that fit the card. `shared` gives the bytes.
fn rings(
    warps: usize,
    card: &Cuda,
    granules: usize,
    capacities: &[usize],
    shared: impl Fn(usize) -> usize,
) -> Option<Ring> {
    let blocks = (card.multiprocessors as usize).min(granules);
    capacities.iter().find_map(|&capacity| {
        let (shared, stage_bytes) = (shared(capacity).max(alone(card)), capacity * UNIT_BYTES);
        let ring = Ring { warps, stages: STAGES, stage_bytes, blocks, resident: 1, shared };
        fits(card, shared, 1).then_some(ring)
    })
}

/// `FewUpShape<C>`: gate and up of the chosen experts.
pub(super) fn up(matrix: &Matrix, active: usize, rows: usize, knobs: &Knobs, card: &Cuda) -> Option<Ring> {
    let (experts, granules) = (matrix.experts?, matrix.outputs().div_ceil(TILE_ROWS));
    let warps = consumer_warps(knobs);
    let units = matrix.columns.div_ceil(unit_columns(matrix.format));
    let slice = units.div_ceil(TEAM).next_multiple_of(round(matrix));
    let product = Stream {
        split: 0,
        rows,
        warps,
        stages: 1,
        stage_bytes: UNIT_BYTES * warps,
        blocks: granules,
        resident: 1,
        shared: 0,
    };
    let x = stream::parts(matrix, &product).x_bytes;
    let partials = warps / TEAM * 2 * (2 * TEAM * rows * TILE_ROWS) * 4;
    let who = choices_bytes(experts, active, rows).next_multiple_of(16);
    let scales = if matrix.halves() { 0 } else { (8 * (rows * active).min(experts)).next_multiple_of(16) };
    let rest = x + partials + stream::squares(rows, warps) + who + scales + (4 * rows).next_multiple_of(16);
    rings(warps, card, granules * active, &[16, 8, 4], |capacity| {
        warps * STAGES * stage(matrix, slice, capacity) + rest + barriers(warps)
    })
}

/// `DownShape<C>`: down of the chosen experts and of the shared one.
pub(super) fn down(
    matrix: &Matrix,
    common: Option<&Matrix>,
    active: usize,
    rows: usize,
    knobs: &Knobs,
    card: &Cuda,
) -> Option<Ring> {
    let (experts, tiles) = (matrix.experts?, matrix.rows.div_ceil(TILE_ROWS));
    // A warp's share of an expert is short, and decoding it is long: 16.0 us of eight rows of a 35B for 17.7.
    let warps = if matrix.format == Format::Nvfp4 { 16 } else { consumer_warps(knobs) };
    let slots = rows * active;
    let units = |matrix: &Matrix| matrix.columns.div_ceil(unit_columns(matrix.format));
    let row_bytes = |matrix: &Matrix| units(matrix) * (unit_columns(matrix.format) / 32) * 64 + 64;
    let block_tiles = tiles.div_ceil((card.multiprocessors as usize).min(tiles));
    let of_common = common.map_or(0, |common| {
        let scales = if common.scales == Some(ScaleForm::Block128) {
            (block_tiles * common.columns.div_ceil(128) * 4 + 12).next_multiple_of(16)
        } else {
            block_tiles * units(common) * unit_scale_bytes(common.format)
        };
        block_tiles * units(common) * UNIT_BYTES + scales
    });
    let staged = slots * row_bytes(matrix) + common.map_or(0, |common| rows * row_bytes(common));
    let sums_of = if common.is_some() { active + warps } else { active };
    let sums = block_tiles * sums_of * rows * TILE_ROWS * 4;
    let factors = 4 * slots + 4 * (slots + rows);
    let who = choices_bytes(experts, active, rows).next_multiple_of(16);
    rings(warps, card, tiles, &[8, 4], |capacity| {
        let rings = warps * STAGES * stage(matrix, units(matrix), capacity);
        let partials_at = ((rings + of_common).next_multiple_of(128) + staged).next_multiple_of(16);
        (partials_at + sums + factors).next_multiple_of(16) + who + barriers(warps) + 8
    })
}

/// Pairs for each expert that a router chooses from, at most, of a step whose grouped products go this way.
/// Of more, many experts have several work tiles, whose products would each read the weights.
const PAIRS_EACH: usize = 4;

/// `RingsShape<C>`: a grouped product over work tiles of at most eight rows. `None` where larger tiles are
/// better, or rings do not fit.
pub(super) fn grouped(matrix: &Matrix, lists: &Lists, card: &Cuda) -> Option<Ring> {
    /// `RingsShape<C>::SLOTS`, the bytes of a panel in one, and of what the slot's sums are multiplied by.
    const SLOTS: usize = 2;
    const PANEL: usize = 8 * 128;
    const UNSCALES: usize = 8 * 4;
    if lists.tile != 8 || lists.pairs() > PAIRS_EACH * lists.routed {
        return None;
    }
    let granules = gemm::tiles(matrix).div_ceil(2);
    let units = matrix.columns.div_ceil(unit_columns(matrix.format));
    let x = SLOTS * ((units * unit_columns(matrix.format)).div_ceil(64) * PANEL + UNSCALES);
    let work = lists.tiles() * granules;
    let blocks = (card.multiprocessors as usize).min(work);
    let most_tiles = work.div_ceil(blocks).div_ceil(granules) + 1;
    // nvfp4 is decoded for so long that warps must fill each other's waits.
    let shapes: &[(usize, &[usize])] =
        if matrix.format == Format::Nvfp4 { &[(16, &[4, 2]), (8, &[4, 2])] } else { &[(8, &[8, 4, 2])] };
    let ring = shapes.iter().find_map(|&(warps, capacities)| {
        rings(warps, card, work, capacities, |capacity| {
            let stage = (2 * piece(matrix, units, capacity, false)).next_multiple_of(128);
            let list = (8 * most_tiles).next_multiple_of(16) + 16;
            warps * STAGES * stage + x + list + 8 * 2 * SLOTS + barriers(warps)
        })
    });
    ring.filter(|_| most_tiles <= 32)
}
