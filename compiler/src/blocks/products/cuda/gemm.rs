//! The shape of a tensor-core product: the Rust side of templates/cuda/products/gemm.cuh.

use crate::blocks::products::cuda::{Operands, epilogue, limit};
use crate::blocks::products::kernels::{GemmMma, GemmMmaSum, GemmWgmma, GemmWgmmaEven, GemmWgmmaSum};
use crate::graph::BodyId;
use crate::kernels::{Planes, Rows, Staged, Vector};
use crate::passes::PassError;
use crate::passes::launch::{Instance, Launcher, Matrix, Member, Site, fits, fixed, integer, no_kernel};
use crate::plan::Packing;
use crate::plan::cuda::{Launch, Regime};
use crate::plan::packed::{UNIT_BYTES, unit_columns, unit_scale_bytes};
use crate::spec::types::{Cuda, Knobs};
use monomorph_formats::Format;

/// A tensor-core product that fits the card.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Gemm {
    /// Staged rows of activations, and their stride.
    pub capacity: usize,
    /// Rows of activations of a block's tile.
    pub tokens: usize,
    /// Strips of 128 packed rows.
    pub strips: usize,
    pub stage_panels: usize,
    /// Stages of the weights' ring.
    pub weight_stages: usize,
    /// Stages of the activations' ring.
    pub stages: usize,
    pub resident: usize,
    pub multicast: usize,
    /// Splits of K, one per block of a cluster.
    pub split: usize,
    pub threads: usize,
    pub shared: usize,
    /// Blocks of the grid.
    pub grid: usize,
    /// Whether blocks have even shares of the work, and add what others computed of their rows.
    pub even: bool,
}

/// The shape that fits the card: as many tokens per block as the knobs allow, then two blocks per
/// multiprocessor, then deep rings.
pub(crate) fn shape(matrix: &Matrix, rows: usize, knobs: &Knobs, card: &Cuda) -> Option<Gemm> {
    let capacity = rows.next_multiple_of(8);
    let widest = if card.wgmma { 256 } else { 128 };
    let most = capacity.next_power_of_two().min(knobs.gemm_rows as usize).min(widest).max(8);
    std::iter::successors(Some(most), |tokens| (*tokens > 8).then_some(tokens / 2))
        .find_map(|tokens| shape_of_tokens(matrix, capacity, tokens, knobs, card))
}

/// `GemmShape<C>::TILES`: tiles of eight packed rows.
pub(crate) fn tiles(matrix: &Matrix) -> usize {
    matrix.outputs().div_ceil(8) * if matrix.packing == Packing::Gated { 2 } else { 1 }
}

fn shape_of_tokens(
    matrix: &Matrix,
    capacity: usize,
    tokens: usize,
    knobs: &Knobs,
    card: &Cuda,
) -> Option<Gemm> {
    let multiprocessors = card.multiprocessors as usize;
    let tiles = tiles(matrix);
    // 128 tokens take one block per multiprocessor anyway. Twice the rows halve the traffic of activations,
    // if they fill the card.
    let fills = tiles.div_ceil(32) * 4 >= multiprocessors * 3;
    let strips = if card.wgmma && tokens == 128 && fills {
        2
    } else {
        (knobs.gemm_outputs as usize / 128).clamp(1, 2)
    };
    let strips = if tokens * strips > 256 { 1 } else { strips };
    let row_blocks = tiles.div_ceil(16 * strips);
    // Narrow formats take two panels a step: as many bytes, half the waits. (Scale blocks are two panels
    // wide.)
    let least_step = (unit_columns(matrix.format) / 64).max(1);
    let widest_step = (knobs.gemm_inputs as usize / 64 * unit_columns(matrix.format) / 32).clamp(1, 2);
    let widest_step = if strips == 2 { least_step } else { widest_step };
    // The sums of many tokens take the registers of a second block; without wgmma, those of its fragments.
    // (Except with fp8, 64 tokens need four bytes per thread too many.)
    let most_tokens = if matrix.format == Format::Fp8E4m3 { 64 } else { 32 };
    let most_resident = if card.wgmma && tokens * strips <= most_tokens { 2 } else { 1 };
    for (resident, least_ring, stage_panels) in
        [(2, 4, 2), (2, 4, 1), (2, 2, 1), (1, 4, 2), (1, 4, 1), (1, 2, 2), (1, 2, 1)]
    {
        if resident > most_resident || !(least_step..=widest_step).contains(&stage_panels) {
            continue;
        }
        let steps = matrix.columns.div_ceil(64).div_ceil(stage_panels);
        let split = split(row_blocks, steps, capacity <= tokens && card.clusters, multiprocessors * resident);
        for stages in (2..=knobs.gemm_stages as usize).rev() {
            for weight_stages in (least_ring..=knobs.gemm_stages as usize).rev() {
                let mut gemm = Gemm {
                    capacity,
                    tokens,
                    strips,
                    stage_panels,
                    weight_stages,
                    stages,
                    resident,
                    multicast: 1,
                    split,
                    // With 256 columns of sums the copying warp gives its registers away, which takes a whole
                    // warpgroup: three more warps are idle.
                    threads: if card.wgmma && tokens * strips == 256 { 384 } else { 288 },
                    shared: 0,
                    grid: 0,
                    even: false,
                };
                gemm.shared = shared_bytes(matrix, &gemm);
                let work = row_blocks.div_ceil(gemm.multicast) * capacity.div_ceil(tokens);
                let cluster = gemm.multicast * split;
                gemm.grid =
                    cluster * if split > 1 { work } else { work.min(multiprocessors * resident / cluster) };
                if fits(card, gemm.shared, resident) {
                    return Some(gemm);
                }
            }
        }
    }
    None
}

/// The same product with its work cut evenly, where blocks of rows leave more than a tenth of the card idle:
/// those of one round too many, or of too few. All of x is one block of tokens.
///
/// A block of rows that several blocks have costs 16 KB of sums for every 32 tokens, written and read.
fn evened(gemm: &Gemm, matrix: &Matrix, card: &Cuda) -> Option<Gemm> {
    let places = card.multiprocessors as usize * gemm.resident;
    let row_blocks = tiles(matrix).div_ceil(16 * gemm.strips);
    let steps = matrix.columns.div_ceil(64).div_ceil(gemm.stage_panels);
    let busy = row_blocks * gemm.split;
    let idle = busy * 10 < busy.div_ceil(places) * places * 9;
    if !card.wgmma || gemm.capacity > gemm.tokens || gemm.multicast > 1 || !idle {
        return None;
    }
    let mut even = Gemm { split: 1, grid: places, even: true, ..*gemm };
    even.shared = shared_bytes(matrix, &even);
    (row_blocks * steps >= LEAST_STEPS * places && fits(card, even.shared, even.resident)).then_some(even)
}

/// Fewest steps of K that are worth a block.
const LEAST_STEPS: usize = 4;

/// `gemm_parts_bytes<C>()`: sums and a flag of every block.
fn parts_bytes(gemm: &Gemm) -> usize {
    gemm.grid * (gemm.strips * gemm.tokens / 8 * 256 * 16 + 4)
}

/// Most rows of a block's tile for a product of up to `rows` rows that is launched for fewer, too: of the
/// widths that fit, the one with which the card is done first with five to eight eighths of them.
///
/// All multiprocessors work on tiles of a kind in rounds, and a last round takes as long as a full one. A
/// tile takes 3 us, and for every 64 columns 0.2 us and 2 ns a row: measured of towers on an H200 (tiles of
/// 64, 128 and 256 rows, 1,152 and 4,304 columns), and here in rows of one column.
pub(crate) fn rows_of_fewest_rounds(matrix: &Matrix, rows: usize, knobs: &Knobs, card: &Cuda) -> u32 {
    const START: usize = 98_000;
    const START_OF_COLUMN: usize = 106;
    let cost = |most: u32| {
        let gemm = shape(matrix, rows, &Knobs { gemm_rows: most, ..*knobs }, card)?;
        let row_blocks = tiles(matrix).div_ceil(16 * gemm.strips);
        let places = card.multiprocessors as usize * gemm.resident;
        let tile = (gemm.strips * gemm.tokens + START_OF_COLUMN) * matrix.columns + START;
        let rounds = |rows: usize| (row_blocks * rows.div_ceil(gemm.tokens)).div_ceil(places);
        // Two blocks of a multiprocessor share it.
        Some((5..=8).map(|eighths| rounds(rows * eighths / 8)).sum::<usize>() * tile * gemm.resident)
    };
    let widths = [64, 128, 256].into_iter().filter(|most| *most <= knobs.gemm_rows);
    // Of equals the widest, which reads weights least often.
    widths.rev().min_by_key(|most| cost(*most).unwrap_or(usize::MAX)).unwrap_or(knobs.gemm_rows)
}

/// With few blocks of rows most of the card is idle, so the blocks of a cluster share K. All blocks of a
/// cluster lie in one group of multiprocessors, so some places stay empty (of 264 an H200 fills 248 with
/// clusters of 4, 235 of 5, 234 of 6, 224 of 7, 240 of 8), and one cluster too many would be a second wave.
fn split(row_blocks: usize, steps: usize, possible: bool, places: usize) -> usize {
    let held = places * 86 / 100;
    (2..=8).rev().find(|split| possible && row_blocks * split <= held && *split <= steps).unwrap_or(1)
}

/// `GemmShape<C>::SHARED_BYTES`.
pub(crate) fn shared_bytes(matrix: &Matrix, gemm: &Gemm) -> usize {
    let Gemm { tokens, strips, stage_panels, weight_stages, stages, split, resident, .. } = *gemm;
    let stage_units = stage_panels * 64 / unit_columns(matrix.format);
    let weights = 16 * strips * stage_units * (UNIT_BYTES + unit_scale_bytes(matrix.format));
    let rings = stages * stage_panels * tokens * 128 + weight_stages * weights;
    let sum_tokens = if split > 1 { tokens } else { tokens.min(if resident == 1 { 32 } else { 16 }) };
    let sums = sum_tokens * 68 * 4 * 2 * if split > 1 { strips } else { 1 };
    let sums_end = sums + if split > 1 { 0 } else { rings };
    sums_end.max(rings) + 16 * stages
}

/// `GemmPieces<C>::BYTES` of a kernel that sums over ranks: two pointers, two numbers, and a pointer to a
/// slot at each rank.
const fn pieces_bytes(ranks: usize) -> usize {
    24 + 8 * ranks
}

impl Gemm {
    /// Shared memory of the kernel that also sums over ranks.
    const fn summing_bytes(&self, ranks: usize) -> usize {
        self.shared + pieces_bytes(ranks)
    }
}

impl Launcher<'_> {
    /// The shape of a phase's product with this matrix, if one fits.
    fn gemm_shape(&self, site: Site, matrix: &Matrix) -> Option<Gemm> {
        let (rows, mut knobs) = (site.program.rows, self.knobs(site));
        // A prompt's matrices have rounds enough for any tile; a tower's have few outputs.
        if self.plan.in_tower(BodyId(site.body)) {
            knobs.gemm_rows = rows_of_fewest_rounds(matrix, rows, &knobs, self.card);
        }
        shape(matrix, rows, &knobs, self.card)
    }

    /// Whether a kernel of this product that sums over ranks fits the card.
    pub(super) fn gemm_may_sum(&self, site: Site, matrix: &Matrix) -> bool {
        let fits = |gemm: Gemm| fits(self.card, gemm.summing_bytes(self.plan.target.ranks), gemm.resident);
        self.gemm_shape(site, matrix).is_some_and(fits)
    }

    /// Launches a tensor-core product over staged rows `x`; their stride is the program's rows rounded up to
    /// a multiple of eight.
    pub(crate) fn gemm(
        &mut self,
        site: Site,
        suffix: &str,
        operands: &Operands,
        matrix: &Matrix,
        x: Staged,
        out: Rows,
    ) -> Result<Launch, PassError> {
        let shape = self
            .gemm_shape(site, matrix)
            .ok_or_else(|| no_kernel(site, self.plan, "no block of it fits the card's shared memory"))?;
        let may_even = site.program.regime == Regime::Decode && !operands.sums();
        let evened = may_even.then(|| evened(&shape, matrix, self.card)).flatten();
        let shape = evened.unwrap_or(shape);
        let Gemm {
            capacity,
            tokens,
            strips,
            stage_panels,
            weight_stages,
            stages,
            resident,
            multicast,
            split,
            ..
        } = shape;
        let mut constants: Vec<Member> = matrix.names().into();
        constants.extend([
            ("OUTPUTS", integer(matrix.outputs())),
            ("INPUTS", integer(matrix.columns)),
            ("CAPACITY", integer(capacity)),
            ("TOKENS", integer(tokens)),
            ("STRIPS", integer(strips)),
            ("STAGE_PANELS", integer(stage_panels)),
            ("WEIGHT_STAGES", integer(weight_stages)),
            ("STAGES", integer(stages)),
            ("RESIDENT", integer(resident)),
            ("MULTICAST", integer(multicast)),
            ("SPLIT", integer(split)),
        ]);
        constants.extend(epilogue(operands));
        constants.push(("LIMIT", limit(site, false)));
        if shape.even {
            constants.push(("EVEN", integer(shape.grid)));
        }
        let Planes { codes, scales, row_scales } = self.planes(operands.matrix);
        let [bias, up_bias] = operands.biases.map(Vector::field);
        let (grid, step) = (fixed(shape.grid, 1, 1), site.header);
        let mut instance = Instance {
            resident,
            cluster: multicast * split,
            shared: shape.shared,
            ..Instance::new(self.kernel_name(site, suffix), constants, shape.threads)
        };
        let sums = operands.sums().then(|| {
            instance.shared = shape.summing_bytes(self.plan.target.ranks);
            let world = instance.summing(self.summing(operands.out));
            let bytes = 4 * capacity * matrix.outputs();
            (world, self.scratch::<Rows>("own_part", bytes as u64, false))
        });
        Ok(if self.card.wgmma {
            let of = GemmWgmma { step, x, codes, scales, row_scales, bias, up_bias, out };
            match sums {
                Some((world, own)) => self.launch(site, instance, grid, GemmWgmmaSum { of, world, own }),
                None if shape.even => {
                    // What runs beside it may be cut as well: each phase has parts of its own.
                    let bytes = parts_bytes(&shape);
                    let name = format!("parts_{}", instance.name);
                    instance.bytes = vec![("parts", bytes)];
                    let parts: Rows = self.scratch(&name, bytes as u64, true);
                    let GemmWgmma { step, x, codes, scales, row_scales, bias, up_bias, out } = of;
                    let of = GemmWgmmaEven { step, x, codes, scales, row_scales, bias, up_bias, out, parts };
                    self.launch(site, instance, grid, of)
                }
                None => self.launch(site, instance, grid, of),
            }
        } else {
            let of = GemmMma { step, x, codes, scales, row_scales, bias, up_bias, out };
            match sums {
                Some((world, own)) => self.launch(site, instance, grid, GemmMmaSum { of, world, own }),
                None => self.launch(site, instance, grid, of),
            }
        })
    }
}
