//! The shapes of a mixture's kernels: the Rust side of
//! templates/cuda/experts/{route,experts_stream_up,experts_stream_down_shape,experts_batch}.cuh.
//! Of three to eight rows: `few`.

use crate::blocks::products::cuda::gemm::{self, Gemm};
use crate::blocks::products::cuda::stream::{self, STAGES_BESIDE, Stream, consumer_warps};
use crate::passes::launch::{Matrix, Member, STREAM_SHARED_PART, alone, fits, routed_by};
use crate::plan::packed::{TILE_ROWS, UNIT_BYTES, unit_columns, unit_scale_bytes};
use crate::spec::types::{Cuda, Knobs};
use monomorph_formats::{Format, ScaleForm};

/// `FEW<C>`: whether a step of these rows streams its experts by warps.
pub(super) fn is_few(matrix: &Matrix, rows: usize) -> bool {
    !matrix.exact && rows > 2
}

/// Tiling of a streaming kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ring {
    pub warps: usize,
    pub stages: usize,
    pub stage_bytes: usize,
    /// Blocks in x.
    pub blocks: usize,
    /// Blocks of this kernel and the next that share a multiprocessor: what its registers must allow.
    pub resident: usize,
    pub shared: usize,
}

/// The deepest ring within the knobs that fits the card beside the next kernel's ring, or alone. `granules`
/// is the most blocks there is work for; `shared` gives the bytes for a number of stages.
fn ring(
    knobs: &Knobs,
    card: &Cuda,
    granules: usize,
    rows: usize,
    shared: impl Fn(usize, usize, usize) -> Option<usize>,
) -> Option<Ring> {
    let most = knobs.ring_stages as usize;
    let warps = consumer_warps(knobs);
    let stage_bytes = (knobs.stage_bytes as usize).next_multiple_of(UNIT_BYTES * warps);
    let company = [(2, STAGES_BESIDE.min(most)), (1, 2)].into_iter();
    company.filter(|(kernels, _)| *kernels <= knobs.stream_kernels as usize).find_map(|(kernels, least)| {
        let each = (1..=knobs.blocks_per_multiprocessor as usize).rev();
        each.into_iter().find_map(|each| {
            let blocks = (each * card.multiprocessors as usize).min(granules);
            (least..=most).rev().find_map(|stages| {
                let mut shared = shared(stages, stage_bytes, blocks)?;
                if kernels * each == 1 {
                    shared = shared.max(alone(card));
                }
                // With more than two rows, no registers are left for the next kernel's block.
                let resident = if rows <= 2 { kernels } else { 1 };
                let ring = Ring { warps, stages, stage_bytes, blocks, resident, shared };
                fits(card, shared, kernels * each).then_some(ring)
            })
        })
    })
}

/// The choices of all rows: `sizeof(Choices<EXPERTS, ACTIVE, ROWS>)`.
pub(super) fn choices_bytes(experts: usize, active: usize, rows: usize) -> usize {
    let slots = rows * active;
    let most = slots.min(experts);
    (4 * (1 + slots + 2 * most) + most * rows).next_multiple_of(4) + 2 * 4 * experts.div_ceil(32)
}

/// Upper bound of `RouteShape<C>::SHARED` for a router block: two passes' sums of at most 32 values a warp,
/// and squares.
pub(crate) fn route_shared(rows: usize, warps: usize) -> usize {
    4 * warps * (2 * 32 + rows)
}

/// Few rows of a mixture, each with the same number of chosen experts.
#[derive(Clone, Copy)]
struct Few {
    active: usize,
    rows: usize,
    warps: usize,
}

/// `RingUpShape<C>`: gate and up of the chosen experts of one row or two.
pub(crate) fn up(matrix: &Matrix, active: usize, rows: usize, knobs: &Knobs, card: &Cuda) -> Option<Ring> {
    let granules = matrix.outputs().div_ceil(TILE_ROWS);
    let few = Few { active, rows, warps: consumer_warps(knobs) };
    let shared = |stages: usize, stage_bytes: usize, blocks: usize| {
        up_shared(matrix, few, stages, stage_bytes, blocks)
    };
    ring(knobs, card, granules * active, rows, shared)
}

/// `UpShape<C>::SHARED`.
fn up_shared(matrix: &Matrix, few: Few, stages: usize, stage_bytes: usize, blocks: usize) -> Option<usize> {
    let Few { active, rows, warps } = few;
    let experts = matrix.experts?;
    let granules = matrix.outputs().div_ceil(TILE_ROWS);
    let group_rows = if matrix.exact { rows } else { rows.min(4) };
    let product = Stream {
        rows: group_rows,
        warps,
        stages,
        stage_bytes,
        blocks: granules,
        split: 0,
        resident: 1,
        shared: 0,
    };
    let parts = stream::parts(matrix, &product);
    let (groups, sum) = (rows.div_ceil(group_rows), stream::sum_bytes(matrix));
    let partials = 2 * (2 * parts.k_warps * rows * TILE_ROWS) * sum;
    let squares = stream::squares(groups * group_rows, warps);
    let who = choices_bytes(experts, active, rows).next_multiple_of(16);
    // Gate and up of every expert, or of every row of the most granules a block takes.
    let most = (rows * active).min(experts);
    let scales = match matrix.scales {
        Some(_) => (8 * most).next_multiple_of(16),
        None if matrix.halves() => 2 * TILE_ROWS * 4 * (most * granules).div_ceil(blocks),
        None => 0,
    };
    let unscales = (4 * warps * rows).next_multiple_of(16);
    let rest = groups * parts.x_bytes + partials + squares + who + scales + unscales + 16 * stages;
    Some(stages * parts.stage + rest)
}

/// `DownProduct<C, …>`.
struct DownProduct {
    tiles: usize,
    pieces: usize,
    stage: usize,
    k_warps: usize,
    row_bytes: usize,
}

/// `None` if a stage cannot hold a tile.
fn down_product(
    matrix: &Matrix,
    most_tiles: usize,
    most_pieces: usize,
    stage_bytes: usize,
    warps: usize,
    of_experts: bool,
) -> Option<DownProduct> {
    let columns = unit_columns(matrix.format);
    let (units, capacity) = (matrix.columns.div_ceil(columns), stage_bytes / UNIT_BYTES);
    if units > capacity {
        return None;
    }
    let tiles = most_tiles.min(capacity / units).max(1);
    let piece_units = tiles * units;
    let piece_scales = if matrix.scales == Some(ScaleForm::Block128) {
        (tiles * matrix.columns.div_ceil(128) * 4 + 16).next_multiple_of(16)
    } else if of_experts && matrix.halves() {
        tiles * TILE_ROWS * 4
    } else {
        piece_units * unit_scale_bytes(matrix.format)
    };
    let pieces = most_pieces.min(capacity / piece_units).max(1);
    let (mut k_warps, mut cost) = (warps, units.div_ceil(warps) * tiles);
    let mut k = warps / 2;
    while k >= 1 {
        let work = units.div_ceil(k) * tiles.div_ceil(warps / k);
        if work <= cost {
            (k_warps, cost) = (k, work);
        }
        k /= 2;
    }
    let chunk = if matrix.exact { 4 } else { 8 };
    Some(DownProduct {
        tiles,
        pieces,
        stage: (pieces * (piece_units * UNIT_BYTES + piece_scales)).next_multiple_of(128),
        k_warps: if matrix.exact { 1 } else { k_warps },
        row_bytes: units * (columns / 4 / chunk) * 64 + 64,
    })
}

/// `DownShape<C>`: down of the chosen experts and of the shared one, of one row or two.
pub(crate) fn down(
    matrix: &Matrix,
    common: Option<&Matrix>,
    active: usize,
    rows: usize,
    knobs: &Knobs,
    card: &Cuda,
) -> Option<Ring> {
    let few = Few { active, rows, warps: consumer_warps(knobs) };
    let shared = |stages: usize, stage_bytes: usize, blocks: usize| {
        Some(down_shape(matrix, common, few, stages, stage_bytes, blocks)?.shared)
    };
    ring(knobs, card, matrix.rows.div_ceil(TILE_ROWS), rows, shared)
}

struct DownShape {
    /// `DownShape<C>::SHARED`.
    shared: usize,
    /// Stages that a block fills in all if no two rows choose the same expert.
    fills: usize,
}

fn down_shape(
    matrix: &Matrix,
    common: Option<&Matrix>,
    few: Few,
    stages: usize,
    stage_bytes: usize,
    blocks: usize,
) -> Option<DownShape> {
    let Few { active, rows, warps } = few;
    let experts = matrix.experts?;
    let block_tiles = matrix.rows.div_ceil(TILE_ROWS).div_ceil(blocks);
    let of_experts = down_product(matrix, block_tiles.min(8), active, stage_bytes, warps, true)?;
    let of_common = match common {
        Some(common) => Some(down_product(common, block_tiles, 1, stage_bytes, warps, false)?),
        None => None,
    };
    let (sum, slots) = (stream::sum_bytes(matrix), rows * active);
    let stage = of_experts.stage.max(of_common.as_ref().map_or(0, |it| it.stage));
    let partials = |product: &DownProduct| product.k_warps * rows * TILE_ROWS * sum;
    let staged = slots * of_experts.row_bytes + of_common.as_ref().map_or(0, |it| rows * it.row_bytes);
    let sums = 2 * of_experts.tiles * partials(&of_experts)
        + of_common.as_ref().map_or(0, |it| block_tiles * partials(it));
    let factors = 4 * slots + 4 * (slots + rows) + if matrix.exact { 4 * slots } else { 0 };
    let before = ((stages * stage + staged).next_multiple_of(16) + sums + factors).next_multiple_of(16);
    let list = slots.min(experts).div_ceil(of_experts.pieces);
    Some(DownShape {
        shared: before + choices_bytes(experts, active, rows).next_multiple_of(16) + 16 * stages,
        fills: block_tiles.div_ceil(of_experts.tiles) * list
            + of_common.as_ref().map_or(0, |it| block_tiles.div_ceil(it.tiles)),
    })
}

/// The ring of gate and up and the ring of down side by side in one block
/// (templates/cuda/experts/experts_stream.cuh).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Together {
    /// In both rings, `shared` is the whole block's.
    pub up: Ring,
    pub down: Ring,
}

/// `ExpertsStream<U, D>`: one block per multiprocessor, all resident. Gate and up have as many stages as the
/// knobs ask for; down has as many as it fills, or as fit beside them. `None` if two of each do not fit into
/// the shared memory a program keeps.
pub(crate) fn together(
    [matrix, of_sum]: [&Matrix; 2],
    common: Option<&Matrix>,
    active: usize,
    rows: usize,
    knobs: &Knobs,
    card: &Cuda,
) -> Option<Together> {
    let few = Few { active, rows, warps: consumer_warps(knobs) };
    let Few { warps, .. } = few;
    let blocks = card.multiprocessors as usize;
    let granules = matrix.outputs().div_ceil(TILE_ROWS) * active;
    let tiles = of_sum.rows.div_ceil(TILE_ROWS);
    if rows > knobs.experts_together as usize
        || matrix.exact
        || of_sum.exact
        || is_few(matrix, rows)
        || granules < blocks
        || tiles < blocks
        // The router's kernel fills the handed-over rows in vectors.
        || !(rows * active * matrix.outputs()).is_multiple_of(4)
    {
        return None;
    }
    let stage_bytes = (knobs.stage_bytes as usize).next_multiple_of(UNIT_BYTES * warps);
    let most = card.shared_per_multiprocessor as usize * STREAM_SHARED_PART as usize / 100 - 1024;
    let fills = down_shape(of_sum, common, few, 2, stage_bytes, blocks)?.fills;
    (2..=knobs.ring_stages as usize).rev().find_map(|stages| {
        let of_up = up_shared(matrix, few, stages, stage_bytes, blocks)?.next_multiple_of(128);
        (2..=fills.max(2)).rev().find_map(|down_stages| {
            let of_down = down_shape(of_sum, common, few, down_stages, stage_bytes, blocks)?.shared;
            let shared = (of_up + of_down).max(alone(card));
            let ring = |stages| Ring { warps, stages, stage_bytes, blocks, resident: 1, shared };
            (shared <= most && fits(card, shared, 1))
                .then(|| Together { up: ring(stages), down: ring(down_stages) })
        })
    })
}

/// Result of the sort: `ExpertLists<EXPERTS, ACTIVE, STEP_ROWS, TILE>`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Lists {
    pub experts: usize,
    /// Experts that the router chooses from: those of all ranks.
    pub routed: usize,
    pub active: usize,
    /// Most token rows of a step.
    pub rows: usize,
    /// Height of a work tile.
    pub tile: usize,
}

impl Lists {
    /// See [`routed_by`].
    pub fn shared_out(&self) -> Option<Member> {
        routed_by(self.experts, self.routed)
    }

    pub fn pairs(&self) -> usize {
        self.rows * self.active
    }

    fn touched(&self) -> usize {
        self.experts.min(self.pairs())
    }

    /// Rows of pairs; each expert's are rounded up to a multiple of eight.
    pub fn pair_rows(&self) -> usize {
        (self.pairs() + 7 * self.touched()).next_multiple_of(8)
    }

    /// Most work tiles there can be.
    pub fn tiles(&self) -> usize {
        self.touched() + self.pairs() / self.tile
    }

    /// Whether one block counts all pairs.
    pub fn one_chunk(&self) -> bool {
        self.rows <= 128
    }

    /// Chunks, each counted by one block.
    pub fn chunks(&self) -> usize {
        if self.one_chunk() { 1 } else { self.rows.div_ceil(64) }
    }

    /// Bytes of rows of pairs: f32, or narrow, halves and one f32 scale for every 64 of them.
    pub fn product_bytes(&self, width: usize, narrow: bool) -> usize {
        self.pair_rows() * if narrow { 2 * width + 4 * width.div_ceil(64) } else { 4 * width }
    }

    pub fn bytes(&self) -> usize {
        let counts = if self.one_chunk() { 0 } else { 4 * self.chunks() * self.experts };
        16 + 8 * self.tiles() + 4 * self.pair_rows() + 3 * 4 * self.pairs() + counts
    }
}

/// Tiling of a grouped product over work tiles of `tokens` rows. Up to 128 rows a step, reading the weights
/// dominates, and tiles of 8 stream them once. A prefill's tiles are as high as the card's products are
/// efficient. Rings shrink until they fit.
pub(crate) fn grouped(matrix: &Matrix, tokens: usize, card: &Cuda) -> Option<Gemm> {
    let narrow = unit_columns(matrix.format) > 32;
    let few = tokens == 8;
    let weight_stages = match (few, card.wgmma) {
        (true, true) if matrix.format == Format::Nvfp4 => 8,
        (true, false) if matrix.format == Format::Nvfp4 => 6,
        (true, _) => 4,
        (false, true) => 3,
        (false, false) => 2,
    };
    let strips = if tokens == 128 { 2 } else { 1 };
    let of = |resident: usize, weight_stages: usize| Gemm {
        capacity: tokens,
        tokens,
        strips,
        stage_panels: if narrow && (few || card.wgmma || matrix.format == Format::Nvfp4) { 2 } else { 1 },
        weight_stages,
        // Of a long prompt's tiles rows of x come late more often than weights do.
        stages: if few || (card.wgmma && (!narrow || tokens == 128)) { 4 } else { 3 },
        resident,
        multicast: 1,
        split: 1,
        threads: if card.wgmma && tokens * strips == 256 { 384 } else { 288 },
        shared: 0,
        grid: 0,
        even: false,
    };
    let residents = if few { 2..=2 } else { 1..=1 };
    residents.chain(1..=1).find_map(|resident| {
        (2..=weight_stages).rev().find_map(|weight_stages| {
            let mut gemm = of(resident, weight_stages);
            gemm.shared = gemm::shared_bytes(matrix, &gemm);
            fits(card, gemm.shared, resident).then_some(gemm)
        })
    })
}

/// Blocks of a grouped product: no more than there can be work for.
pub(crate) fn grouped_blocks(matrix: &Matrix, gemm: &Gemm, lists: &Lists, card: &Cuda) -> usize {
    let work = lists.tiles() * gemm::tiles(matrix).div_ceil(16 * gemm.strips);
    work.min(card.multiprocessors as usize * gemm.resident)
}
