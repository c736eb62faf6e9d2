//! The shape of a tensor-core product: templates/cuda/lib/gemm.cuh in Rust.

use super::stream::unit_scale_bytes;
use super::{Matrix, fits};
use crate::plan::Packing;
use crate::plan::packed::{UNIT_BYTES, unit_columns};
use crate::spec::types::{Cuda, Knobs};
use monomorph_formats::ScaleForm;

/// A tensor-core product that fits the card.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Gemm {
    /// Rows of activations and their staged stride.
    pub capacity: usize,
    /// Rows of activations of a block's piece of work.
    pub tokens: usize,
    /// Strips of 128 packed rows.
    pub strips: usize,
    pub stage_panels: usize,
    /// Steps of each of the two rings: weights, activations.
    pub stages: usize,
    pub resident: usize,
    pub multicast: usize,
    /// Parts of K, each of one block of a cluster.
    pub split: usize,
    pub threads: usize,
    pub shared: usize,
    /// All blocks.
    pub grid: usize,
}

/// The largest shape up to what the knobs ask for that fits the card.
pub(super) fn shape(matrix: &Matrix, rows: usize, knobs: &Knobs, card: &Cuda) -> Option<Gemm> {
    let capacity = rows.next_multiple_of(8);
    let widest = if card.wgmma { 256 } else { 128 };
    let tokens = capacity.next_power_of_two().min(knobs.gemm_rows as usize).min(widest).max(8);
    let strips = (knobs.gemm_outputs as usize / 128).clamp(1, 2);
    let strips = if tokens * strips > 256 { 1 } else { strips };
    let unit_panels = (unit_columns(matrix.format) / 64).max(1);
    let stage_panels = (knobs.gemm_inputs as usize / 64).clamp(1, 32).next_multiple_of(unit_panels);
    // Scale blocks are two panels wide: a step is half of one or whole ones.
    let stage_panels = if stage_panels > 1 { stage_panels.next_multiple_of(2) } else { 1 };
    let tiles = matrix.outputs().div_ceil(8) * if matrix.packing == Packing::Gated { 2 } else { 1 };
    let row_blocks = tiles.div_ceil(16 * strips);
    let steps = matrix.columns.div_ceil(64).div_ceil(stage_panels);
    // Sums of many tokens take the registers of a second block.
    let most_resident = if tokens * strips <= 32 { 2 } else { 1 };
    for resident in (1..=most_resident).rev() {
        // Few blocks of rows leave most of the card idle: then the blocks of a cluster share K.
        let held = card.multiprocessors as usize * resident;
        let may_split = card.clusters && capacity <= tokens;
        let split = [8, 4, 2].into_iter().find(|split| may_split && row_blocks * split <= held && *split <= steps);
        let split = split.unwrap_or(1);
        for stages in (2..=knobs.gemm_stages as usize).rev() {
            let mut gemm = Gemm {
                capacity,
                tokens,
                strips,
                stage_panels,
                stages,
                resident,
                multicast: 1,
                split,
                // With 256 columns of sums the copying warp gives its registers away, and three idle warps keep it company.
                threads: if card.wgmma && tokens * strips == 256 { 384 } else { 288 },
                shared: 0,
                grid: 0,
            };
            gemm.shared = shared_bytes(matrix, &gemm);
            let work = row_blocks.div_ceil(gemm.multicast) * capacity.div_ceil(tokens);
            let cluster = gemm.multicast * split;
            gemm.grid = cluster * if split > 1 { work } else { work.min(held / cluster) };
            if fits(card, gemm.shared, resident) {
                return Some(gemm);
            }
        }
    }
    None
}

/// `GemmShape<C>::SHARED_BYTES`.
fn shared_bytes(matrix: &Matrix, gemm: &Gemm) -> usize {
    let Gemm { tokens, strips, stage_panels, stages, split, resident, .. } = *gemm;
    let stage_units = stage_panels * 64 / unit_columns(matrix.format);
    let lane_scales = if matrix.scales == Some(ScaleForm::Block128) {
        4 * stage_panels.div_ceil(2)
    } else {
        stage_units * unit_scale_bytes(matrix.format) / 8
    };
    let weights = 16 * strips * (stage_units * UNIT_BYTES + 32 * lane_scales);
    let rings = stages * (stage_panels * tokens * 128 + weights);
    let sum_tokens = if split > 1 { tokens } else { tokens.min(if resident == 1 { 32 } else { 16 }) };
    let sums = sum_tokens * 68 * 4 * 2 * if split > 1 { strips } else { 1 };
    let sums_end = sums + if split > 1 { 0 } else { rings };
    sums_end.max(rings) + 16 * stages
}
