//! The shape of a streaming product: the Rust side of templates/cuda/products/stream_shape.cuh.

use crate::blocks::products::cuda::{Operands, epilogue, limit};
use crate::blocks::products::kernels::{StreamBeside, StreamPairs, StreamProduct, StreamSum};
use crate::kernels::{Planes, Rows, Vector};
use crate::passes::PassError;
use crate::passes::launch::{
    Instance, Launcher, Matrix, Member, Site, alone, count, fits, fixed, integer, no_kernel, value,
};
use crate::plan::cuda::{Constant, Extent, Launch, Regime};
use crate::plan::packed::{TILE_ROWS, UNIT_BYTES, unit_columns, unit_scale_bytes};
use crate::plan::{FieldId, Packing};
use crate::spec::types::{Compute, Cuda, Knobs};
use monomorph_formats::{Format, ScaleForm};

/// Consumer warps; one more warp feeds them.
pub(crate) fn consumer_warps(knobs: &Knobs) -> usize {
    1 << knobs.stream_warps.clamp(4, 16).ilog2()
}

/// Most rows of one block.
const MOST_ROWS: usize = 8;
/// Most warps of a block that leave registers for the next kernel's block in any format.
pub(crate) const WARPS_BESIDE: u32 = 8;
/// Stages in flight while a ring is first filled.
pub(crate) const PACE: usize = 2;

/// Bytes beyond its ring that a streaming product prefetches into L2 while it waits. Measured: 1 % faster
/// with fp8, 3 % slower with bf16.
pub(crate) fn lookahead(format: Format) -> usize {
    if format == Format::Fp8E4m3 { 65_536 } else { 0 }
}

/// A streaming product that fits the card.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Stream {
    /// Rows of activations of one block.
    pub rows: usize,
    pub warps: usize,
    pub stages: usize,
    pub stage_bytes: usize,
    /// Blocks in x.
    pub blocks: usize,
    /// Blocks of a cluster that share K, if tiles go in pairs; 0 if they do not.
    pub split: usize,
    /// Blocks of this kernel and the next that share a multiprocessor: what its registers must allow.
    pub resident: usize,
    pub shared: usize,
}

impl Stream {
    pub fn threads(&self) -> usize {
        32 * (self.warps + 1)
    }
}

/// Fewest stages of a ring that makes room for the next kernel's. Measured: 5 of 6 stages beside the next
/// kernel's ring beat 6 alone by 11 %; 3 beside it lose to 6 alone by 2 %.
pub(crate) const STAGES_BESIDE: usize = 4;

/// The largest shape within the knobs that fits the card, if possible beside the next kernel's ring, which is
/// filled while this kernel works. It gives up stages first, then blocks per multiprocessor, then the room
/// for the next kernel, and finally rows, if `rows` may be split.
pub(crate) fn shape(
    matrix: &Matrix,
    rows: usize,
    may_cut: bool,
    knobs: &Knobs,
    card: &Cuda,
) -> Option<Stream> {
    let asked = rows;
    let mut rows = rows.min(MOST_ROWS);
    let (most, warps) = (knobs.ring_stages as usize, consumer_warps(knobs));
    let beside = knobs.stream_kernels >= 2 && warps <= WARPS_BESIDE as usize;
    let company: &[(usize, usize)] = if beside { &[(2, STAGES_BESIDE.min(most)), (1, 2)] } else { &[(1, 2)] };
    loop {
        for &(kernels, least) in company {
            for a_multiprocessor in (1..=knobs.blocks_per_multiprocessor as usize).rev() {
                for stages in (least..=most).rev() {
                    let granules = matrix.outputs().div_ceil(TILE_ROWS);
                    let stage_bytes = (knobs.stage_bytes as usize).next_multiple_of(UNIT_BYTES * warps);
                    let resident = kernels * a_multiprocessor;
                    let mut stream = Stream {
                        rows,
                        warps,
                        stages,
                        stage_bytes,
                        blocks: (a_multiprocessor * card.multiprocessors as usize).min(granules),
                        split: 0,
                        resident,
                        shared: 0,
                    };
                    stream.shared = shared_bytes(matrix, &stream);
                    if resident == 1 && rows >= asked {
                        stream.shared = stream.shared.max(alone(card));
                    }
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

/// Rows of activations of a product whose tiles go in pairs.
const PAIRED_ROWS: usize = 8;
/// Its warps: more have no registers for their part of x.
const PAIRED_WARPS: usize = 8;
/// Fewest units of a tile that a warp of a block has a share of K for.
const SHARE_UNITS: usize = 8;

/// A product of eight rows whose tiles go in pairs, if it fits the card: `StreamShape<C>::PAIRED`.
///
/// Staging x takes as long as reading it, once a block, from L2: 4 us of 8 rows of 5,120 columns on an H200.
/// The blocks of a cluster read a share each, unless a norm needs all of a row.
fn pairs(matrix: &Matrix, rows: usize, normed: bool, knobs: &Knobs, card: &Cuda) -> Option<Stream> {
    let tiles = matrix.outputs().div_ceil(TILE_ROWS);
    let gated = matrix.packing == Packing::Gated;
    if matrix.exact || rows != PAIRED_ROWS || !(gated || tiles.is_multiple_of(2)) {
        return None;
    }
    let granules = if gated { tiles } else { tiles / 2 };
    let (units, scaled) = (matrix.columns.div_ceil(unit_columns(matrix.format)), scaled(matrix));
    let whole = |split: usize| {
        matrix.columns.is_multiple_of(split * scaled * unit_columns(matrix.format))
            && units / split >= SHARE_UNITS
    };
    let multiprocessors = card.multiprocessors as usize;
    let warps = consumer_warps(knobs).min(PAIRED_WARPS);
    // A narrower format fills a stage with more columns, and few parts of a tile suit eight warps best.
    let stage_bytes = knobs.stage_bytes as usize * if matrix.format == Format::Nvfp4 { 3 } else { 2 } / 2;
    let splits = [4, 2].into_iter().filter(|split| card.clusters && !normed && whole(*split)).chain([1]);
    for split in splits {
        let ranges = if split == 1 { multiprocessors } else { clusters_at_a_time(multiprocessors, split) };
        for stages in (2..=knobs.ring_stages as usize).rev() {
            let mut stream = Stream {
                rows,
                warps,
                stages,
                stage_bytes: stage_bytes.next_multiple_of(UNIT_BYTES * warps),
                blocks: ranges.min(granules) * split,
                split,
                resident: 1,
                shared: 0,
            };
            stream.shared = shared_bytes(matrix, &stream).max(alone(card));
            if fits(card, stream.shared, 1) {
                return Some(stream);
            }
        }
    }
    None
}

/// Clusters that are on the card together, a block a multiprocessor. All blocks of a cluster lie in one group
/// of multiprocessors, so some stay empty (an H200 of 132 has 30 clusters of 4 at a time, 66 of 2), and one
/// cluster too many would be a second wave.
fn clusters_at_a_time(multiprocessors: usize, blocks: usize) -> usize {
    if blocks == 2 { multiprocessors / 2 } else { multiprocessors * 22 / 25 / blocks }
}

/// `StreamShape<C>::SCALED` of eight rows.
fn scaled(matrix: &Matrix) -> usize {
    if matrix.scales == Some(ScaleForm::Block128) { 2 } else { 1 }
}

/// What `StreamShape<C>` derives about a stage and the memory after the ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Parts {
    /// Bytes of a stage, its scales included.
    pub stage: usize,
    /// Bytes of staged activations.
    pub x_bytes: usize,
    pub k_warps: usize,
    group_tiles: usize,
    /// Most tiles of a block.
    block_tiles: usize,
}

/// `StreamShape<C>::SHARED`.
fn shared_bytes(matrix: &Matrix, stream: &Stream) -> usize {
    let Stream { rows, warps, stages, split, .. } = *stream;
    let Parts { stage, x_bytes, k_warps, group_tiles, block_tiles } = parts(matrix, stream);
    let sum = sum_bytes(matrix);
    let partials = 2 * group_tiles * k_warps * rows * TILE_ROWS * sum;
    let sums = if split > 1 { block_tiles * rows * TILE_ROWS * sum } else { 0 };
    stages * stage + x_bytes + partials + squares(rows, warps) + sums + 16 * stages + 16
}

/// `StreamShape<C>::SQUARES`: sums of squares in f64, or in f32 with the largest magnitudes.
pub(crate) fn squares(rows: usize, warps: usize) -> usize {
    rows * warps * 8
}

/// Shared memory of the same stream with another number of blocks in x.
pub(crate) fn shared_of_blocks(matrix: &Matrix, stream: &Stream, blocks: usize) -> usize {
    shared_bytes(matrix, &Stream { blocks, ..*stream })
}

/// `sizeof(SumOf<COMPUTE>::Type)`.
pub(crate) fn sum_bytes(matrix: &Matrix) -> usize {
    if matrix.exact { 8 } else { 4 }
}

/// The parts of `StreamShape<C>` that `stream` does not state.
pub(crate) fn parts(matrix: &Matrix, stream: &Stream) -> Parts {
    let Stream { rows, warps, stage_bytes, blocks, split, .. } = *stream;
    let columns = unit_columns(matrix.format);
    let paired = split > 0;
    let units = matrix.columns.div_ceil(columns).div_ceil(split.max(1));
    let output_parts = if matrix.packing == Packing::Gated { 2 } else { 1 };
    let granule = if paired { 2 } else { output_parts };
    let granules = matrix.outputs().div_ceil(TILE_ROWS) * output_parts / granule;
    let block_tiles = granules.div_ceil(blocks / split.max(1)) * granule;
    let capacity = stage_bytes / UNIT_BYTES;
    let whole = !paired && units <= capacity;
    let stage_tiles = if paired {
        2
    } else if whole {
        let least = if granule == 2 && capacity / units > 1 { 2 } else { 1 };
        least.max((capacity / units).min(block_tiles) / granule * granule)
    } else {
        1
    };
    let k_warps = if whole { k_warps(warps, units, stage_tiles) } else { warps };
    let part_units = if whole {
        units
    } else if paired {
        let most = (capacity / 2 / scaled(matrix)).max(1) * scaled(matrix);
        units.div_ceil(units.div_ceil(most)).next_multiple_of(scaled(matrix))
    } else {
        units.div_ceil(units.div_ceil(capacity)).next_multiple_of(warps)
    };
    // Stages of pairs hold the same part of two tiles.
    let halves = if paired { 2 } else { 1 };
    let stage_units = if whole { stage_tiles * units } else { halves * part_units };
    let scale_columns = matrix.columns.div_ceil(128);
    let scales = if matrix.scales == Some(ScaleForm::Block128) {
        (if whole { stage_tiles * scale_columns } else { part_units / 2 }) * 4 + 32
    } else {
        stage_units / halves * unit_scale_bytes(matrix.format)
    };
    let tile_scales = scales.next_multiple_of(if paired { 16 } else { 128 });
    let stage = stage_units * UNIT_BYTES + (halves * tile_scales).next_multiple_of(128);
    let sum = sum_bytes(matrix);
    let tile_partials = k_warps * rows * TILE_ROWS;
    let step_tiles = if stage_tiles % granule == 0 { stage_tiles } else { granule };
    let most_partials = if paired { 16_384 } else { 2048 };
    let group_tiles = block_tiles
        .next_multiple_of(step_tiles)
        .min((most_partials / (tile_partials * sum * step_tiles)).max(1) * step_tiles);
    let chunk = if matrix.exact { 4 } else { 8 };
    let x_bytes = units * (columns / 4 / chunk) * rows * 64;
    Parts { stage, x_bytes, k_warps, group_tiles, block_tiles }
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

/// `COMPUTE` and `ROUNDING`.
pub(crate) fn arithmetic(matrix: &Matrix) -> [(&'static str, Constant); 2] {
    let compute = if matrix.exact { "EXACT" } else { "F16" };
    let rounding = if matrix.compute == Compute::Int8Block32 { "INT8_BLOCK32" } else { "NONE" };
    [("COMPUTE", value(format!("Compute::{compute}"))), ("ROUNDING", value(format!("Rounding::{rounding}")))]
}

impl Launcher<'_> {
    /// Launches a streaming product.
    pub(crate) fn stream(
        &mut self,
        site: Site,
        suffix: &str,
        operands: &Operands,
        matrix: &Matrix,
    ) -> Result<Launch, PassError> {
        let x = self.buffer(site, operands.x);
        self.stream_of(site, suffix, operands, matrix, x)
    }

    /// The same of other rows than `operands` says, which are as wide.
    pub(crate) fn stream_of(
        &mut self,
        site: Site,
        suffix: &str,
        operands: &Operands,
        matrix: &Matrix,
        x: Rows,
    ) -> Result<Launch, PassError> {
        let rows = site.program.rows;
        let shape = self
            .stream_shape(site, operands, matrix)
            .ok_or_else(|| no_kernel(site, self.plan, "no block of it fits the card's shared memory"))?;
        let row_groups = rows.div_ceil(shape.rows);
        let constants = self.stream_constants(site, operands, matrix, &shape);
        let Planes { codes, scales, row_scales } = self.planes(operands.matrix);
        let [bias, up_bias] = operands.biases.map(Vector::field);
        let arguments = StreamProduct {
            step: site.header,
            x,
            norm: Vector::field(operands.norm),
            codes,
            scales,
            row_scales,
            bias,
            up_bias,
            out: self.buffer(site, operands.out),
        };
        let mut instance = Instance {
            resident: residents(matrix, &shape),
            shared: shape.shared,
            ..Instance::new(self.kernel_name(site, suffix), constants, shape.threads())
        };
        if operands.sums() {
            let world = instance.summing(self.summing(operands.out));
            let arguments = StreamSum { of: arguments, world };
            return Ok(self.launch(site, instance, fixed(shape.blocks, 1, 1), arguments));
        }
        if shape.split > 0 {
            instance.cluster = shape.split;
            let StreamProduct { step, x, norm, codes, scales, row_scales, bias, up_bias, out } = arguments;
            let arguments = StreamPairs { step, x, norm, codes, scales, row_scales, bias, up_bias, out };
            return Ok(self.launch(site, instance, fixed(shape.blocks, 1, 1), arguments));
        }
        let mut grid = fixed(shape.blocks, row_groups, 1);
        if site.program.regime == Regime::Prefill {
            grid[1] = Extent::Tokens(count(shape.rows));
        } else if site.program.outputs() {
            grid[1] = Extent::Outputs(count(shape.rows));
        }
        Ok(self.launch(site, instance, grid, arguments))
    }

    /// The shape of a streaming product whose tiles go in pairs, if they can.
    pub(super) fn paired(&self, site: Site, operands: &Operands, matrix: &Matrix) -> Option<Stream> {
        let (rows, knobs) = (site.program.rows, self.knobs(site));
        let few = site.program.regime == Regime::Decode && rows <= knobs.stream_rows as usize;
        let normed = operands.norm.is_some();
        (few && !operands.sums()).then(|| pairs(matrix, rows, normed, &knobs, self.card)).flatten()
    }

    /// The shape of a streaming product.
    fn stream_shape(&self, site: Site, operands: &Operands, matrix: &Matrix) -> Option<Stream> {
        let paired = self.paired(site, operands, matrix);
        paired.or_else(|| shape(matrix, site.program.rows, matrix.exact, &self.knobs(site), self.card))
    }

    /// Constants of `StreamShape<C>` and `stream_product<C>`.
    fn stream_constants(
        &self,
        site: Site,
        operands: &Operands,
        matrix: &Matrix,
        shape: &Stream,
    ) -> Vec<Member> {
        let row_groups = site.program.rows.div_ceil(shape.rows);
        let mut constants: Vec<Member> = matrix.names().into();
        let (norm, eps) = self.norm(operands.norm);
        constants.extend(arithmetic(matrix));
        constants.extend([
            ("OUTPUTS", integer(matrix.outputs())),
            ("INPUTS", integer(matrix.columns)),
            ("ROWS", integer(shape.rows)),
            ("NORM", norm),
            ("EPS", Constant::Float(eps)),
        ]);
        constants.extend(epilogue(operands));
        constants.extend([
            // Every row of a bucket has its place, in use or not: a block that computes them all need not
            // read the step's header.
            ("LIMIT", limit(site, row_groups == 1 && site.program.regime == Regime::Decode)),
            ("STAGES", integer(shape.stages)),
            ("STAGE_BYTES", integer(shape.stage_bytes)),
            ("CONSUMER_WARPS", integer(shape.warps)),
            ("BLOCKS", integer(shape.blocks)),
            ("MULTIPROCESSORS", integer(self.card.multiprocessors as usize)),
            // Weights that several groups of rows read should stay in the cache.
            ("EVICT_FIRST", Constant::Flag(row_groups == 1)),
            ("LOOKAHEAD", integer(lookahead(matrix.format))),
            ("PACE", integer(PACE.min(shape.stages))),
        ]);
        if shape.split > 0 {
            constants.push(("SPLIT", integer(shape.split)));
        }
        constants
    }

    /// Two products of the same normed x in one launch. The narrow second one takes a share of the first
    /// one's blocks in proportion to its bytes. `None` if they do not fit together. A launch of its own would
    /// add a boundary and gain nothing.
    pub(crate) fn stream_beside(
        &mut self,
        site: Site,
        [wide, narrow]: [&Operands; 2],
        [matrix, beside]: [&Matrix; 2],
    ) -> Option<Launch> {
        if matrix.exact || beside.exact {
            return None;
        }
        let (rows, knobs) = (site.program.rows, self.knobs(site));
        let by_tiles = |matrix: &Matrix| shape(matrix, rows, false, &knobs, self.card);
        // The narrow one goes by tiles: two products in pairs have no registers to share. Nor has this launch
        // clusters.
        let paired = self.paired(site, wide, matrix).filter(|pairs| pairs.split == 1);
        let (whole, second) = (paired.or_else(|| by_tiles(matrix))?, by_tiles(beside)?);
        if whole.warps != second.warps {
            return None;
        }
        let bytes = |id: FieldId| self.plan.field(id).planes().map_or(0, |planes| planes.total());
        let (many, few) = (bytes(wide.matrix), bytes(narrow.matrix));
        let share = usize::try_from((few * whole.blocks as u64).div_ceil(many + few)).ok()?;
        let blocks = share.min(beside.outputs().div_ceil(TILE_ROWS));
        let first = Stream { blocks: whole.blocks.checked_sub(blocks).filter(|left| *left > 0)?, ..whole };
        let second = Stream { blocks, stages: second.stages.min(first.stages), ..second };
        let mut shared = shared_bytes(matrix, &first).max(shared_bytes(beside, &second));
        if whole.resident == 1 {
            shared = shared.max(alone(self.card));
        }
        if !fits(self.card, shared, whole.resident) {
            return None;
        }
        let mut constants = self.stream_constants(site, wide, matrix, &Stream { split: 0, ..first });
        constants.push(("SPLIT", integer(first.split)));
        let [(_, format), (_, scales)] = beside.names();
        constants.extend([
            ("BESIDE_FORMAT", format),
            ("BESIDE_SCALES", scales),
            ("BESIDE_OUTPUTS", integer(beside.outputs())),
            ("BESIDE_BLOCKS", integer(blocks)),
            ("BESIDE_STAGES", integer(second.stages)),
            ("BESIDE_PACE", integer(PACE.min(second.stages))),
        ]);
        let first_planes = self.planes(wide.matrix);
        let second_planes = self.planes(narrow.matrix);
        let arguments = StreamBeside {
            step: site.header,
            x: self.buffer(site, wide.x),
            norm: Vector::field(wide.norm),
            codes: first_planes.codes,
            scales: first_planes.scales,
            row_scales: first_planes.row_scales,
            beside_codes: second_planes.codes,
            beside_scales: second_planes.scales,
            beside_row_scales: second_planes.row_scales,
            out: self.buffer(site, wide.out),
            beside_out: self.buffer(site, narrow.out),
        };
        let grid = fixed(first.blocks + blocks, 1, 1);
        let instance = Instance {
            resident: residents(matrix, &whole),
            shared,
            ..Instance::new(self.kernel_name(site, ""), constants, first.threads())
        };
        Some(self.launch(site, instance, grid, arguments))
    }
}

/// Whether one group of rows is all, and its blocks are on the card together.
pub(crate) fn together(matrix: &Matrix, rows: usize, knobs: &Knobs, card: &Cuda) -> bool {
    shape(matrix, rows, matrix.exact, knobs, card).is_some_and(|shape| {
        rows <= shape.rows && shape.blocks <= card.multiprocessors as usize * residents(matrix, &shape)
    })
}

/// Blocks of a launch and the next that registers must allow: the sums of more than two rows, and f64 sums,
/// take the registers of the next kernel's block.
fn residents(matrix: &Matrix, shape: &Stream) -> usize {
    if matrix.exact || shape.rows > 2 { 1 } else { shape.resident }
}
