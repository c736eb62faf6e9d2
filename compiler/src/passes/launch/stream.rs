//! The shape of a streaming product: templates/cuda/lib/stream_shape.cuh in Rust.

use super::{Matrix, fits};
use crate::plan::Packing;
use crate::plan::packed::{TILE_ROWS, UNIT_BYTES, unit_columns};
use crate::spec::types::{Cuda, Knobs};
use monomorph_formats::{Format, ScaleForm};

/// Warps that multiply; one more feeds them.
const CONSUMER_WARPS: usize = 8;

/// A streaming product that fits the card.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Stream {
    /// Rows of activations of one block.
    pub rows: usize,
    pub warps: usize,
    pub stages: usize,
    pub stage_bytes: usize,
    /// Blocks in x.
    pub blocks: usize,
    /// Blocks of this kernel and the next one's that a multiprocessor holds: what its registers must allow.
    pub resident: usize,
    pub shared: usize,
}

impl Stream {
    pub fn threads(&self) -> usize {
        32 * (self.warps + 1)
    }
}

/// Fewest stages a ring is cut down to for the sake of the next kernel's beside it. Measured: 5 of 6 stages beside the next
/// kernel's ring beat 6 alone by 11 %, 3 beside it lose to 6 alone by 2 %.
const STAGES_BESIDE: usize = 4;

/// The largest shape up to what the knobs ask for that fits the card, and fits it beside the next kernel's, which fills its ring while this
/// one works, if it can. First fewer stages, then fewer blocks a multiprocessor, then alone, and where `rows` may be cut, then fewer rows.
pub(super) fn shape(
    matrix: &Matrix,
    rows: usize,
    may_cut: bool,
    knobs: &Knobs,
    card: &Cuda,
) -> Option<Stream> {
    let mut rows = rows.min(8);
    let most = knobs.ring_stages as usize;
    loop {
        for (kernels, least) in [(2, STAGES_BESIDE.min(most)), (1, 2)] {
            for a_multiprocessor in (1..=knobs.blocks_per_multiprocessor as usize).rev() {
                for stages in (least..=most).rev() {
                    let granules = matrix.outputs().div_ceil(TILE_ROWS);
                    let stage_bytes =
                        (knobs.stage_bytes as usize).next_multiple_of(UNIT_BYTES * CONSUMER_WARPS);
                    let resident = kernels * a_multiprocessor;
                    let mut stream = Stream {
                        rows,
                        warps: CONSUMER_WARPS,
                        stages,
                        stage_bytes,
                        blocks: (a_multiprocessor * card.multiprocessors as usize).min(granules),
                        resident,
                        shared: 0,
                    };
                    stream.shared = shared_bytes(matrix, &stream);
                    if fits(card, stream.shared, resident) {
                        return Some(stream);
                    }
                }
            }
        }
        if !may_cut || rows == 1 {
            return None;
        }
        rows = rows.div_ceil(2);
    }
}

/// `StreamShape<C>::SHARED`.
fn shared_bytes(matrix: &Matrix, stream: &Stream) -> usize {
    let Stream { rows, warps, stages, stage_bytes, blocks, .. } = *stream;
    let columns = unit_columns(matrix.format);
    let units = matrix.columns.div_ceil(columns);
    let granule = if matrix.packing == Packing::Gated { 2 } else { 1 };
    let granules = matrix.outputs().div_ceil(TILE_ROWS);
    let block_tiles = granules.div_ceil(blocks) * granule;
    let capacity = stage_bytes / UNIT_BYTES;
    let whole = units <= capacity;
    let stage_tiles = if whole {
        let least = if granule == 2 && capacity / units > 1 { 2 } else { 1 };
        least.max((capacity / units).min(block_tiles) / granule * granule)
    } else {
        1
    };
    // Products in f16 keep all warps along K: their scales are a warp's own.
    let half = matches!(matrix.format, Format::F16 | Format::Fp8E4m3);
    let divide = whole && (matrix.exact || !half);
    let k_warps = if divide { k_warps(warps, units, stage_tiles) } else { warps };
    let part_units =
        if whole { units } else { units.div_ceil(units.div_ceil(capacity)).next_multiple_of(warps) };
    let stage_units = if whole { stage_tiles * units } else { part_units };
    let scale_columns = matrix.columns.div_ceil(128);
    let scales = if matrix.scales == Some(ScaleForm::Block128) {
        ((if whole { stage_tiles * scale_columns } else { part_units / 2 }) * 4 + 32).next_multiple_of(128)
    } else {
        (stage_units * unit_scale_bytes(matrix.format)).next_multiple_of(128)
    };
    let stage = stage_units * UNIT_BYTES + scales;
    let sum = if matrix.exact { 8 } else { 4 };
    let tile_partials = k_warps * rows * TILE_ROWS;
    let step_tiles = if stage_tiles % granule == 0 { stage_tiles } else { granule };
    let group_tiles = block_tiles
        .next_multiple_of(step_tiles)
        .min((2048 / (tile_partials * sum * step_tiles)).max(1) * step_tiles);
    let chunk = if matrix.exact { 4 } else { 8 };
    let x_bytes = units * (columns / 4 / chunk) * rows * 64;
    stages * stage + x_bytes + 2 * group_tiles * tile_partials * sum + rows * warps * sum + 16 * stages + 16
}

/// Warps that share a tile's units: the division with the least work for the busiest warp.
fn k_warps(warps: usize, units: usize, stage_tiles: usize) -> usize {
    let (mut best, mut cost) = (warps, units.div_ceil(warps) * stage_tiles);
    let mut k = warps / 2;
    while k >= 1 {
        let work = units.div_ceil(k) * stage_tiles.div_ceil(warps / k);
        if warps.is_multiple_of(k) && work < cost {
            (best, cost) = (k, work);
        }
        k /= 2;
    }
    best
}

/// Bytes of block scales that travel with a unit of a tile.
pub(super) fn unit_scale_bytes(format: Format) -> usize {
    match format {
        Format::Q8_0 => 32,
        Format::Q4_1 => 128,
        Format::Nvfp4 => 64,
        Format::F32 | Format::Bf16 | Format::F16 | Format::Fp8E4m3 => 0,
    }
}
