//! Router logits of more than a few tokens, on tensor cores (templates/cuda/experts/route_batch.cuh).

use crate::blocks::Judge;
use crate::blocks::experts::kernels::{RouteBatch, RouteBatchScales, RouteBatchScores};
use crate::blocks::products::cuda::limit;
use crate::kernels::{Rows, Vector};
use crate::passes::launch::{Instance, Launcher, Site, count, fits, fixed, integer};
use crate::plan::cuda::{Constant, Extent, Launch, Regime};
use crate::plan::packed::TILE_ROWS;
use crate::spec::types::Cuda;
use monomorph_formats::Format;

const WARPS: usize = 8;
/// Bytes of bf16.
const HALF: usize = 2;
/// bf16 terms that an f32 value is split into.
const TERMS: usize = 3;

#[derive(Clone, Copy, Debug)]
struct Shape {
    /// Tokens, and tiles of 16 router rows, of one block.
    tokens: usize,
    tiles: usize,
    /// Warps that share a block's K.
    k_warps: usize,
    blocks: usize,
    shared: usize,
}

/// Few tokens: one block per tile, whose warps share K. Many: blocks that read x once, or twice if the router
/// has more rows than a block's registers hold sums for.
fn shape(rows: usize, outputs: usize, card: &Cuda) -> Option<Shape> {
    const MOST_TILES: usize = 18;
    let all = outputs.div_ceil(2 * TILE_ROWS);
    let (tokens, k_warps) = if rows <= 256 { (16, WARPS) } else { (64, 1) };
    let tiles = if k_warps > 1 { 1 } else { all.div_ceil(all.div_ceil(MOST_TILES)) };
    let chunk = 64 * k_warps;
    let buffers = 2 * TERMS * tokens * (chunk + 8) * HALF;
    let square_parts = (chunk / 4).div_ceil(32);
    let partials = if k_warps > 1 { k_warps * tiles * tokens * 16 * 4 } else { 0 };
    let shared = buffers.max(partials) + tokens * square_parts * 4;
    let shape = Shape { tokens, tiles, k_warps, blocks: all.div_ceil(tiles), shared };
    fits(card, shared, 1).then_some(shape)
}

impl Launcher<'_> {
    /// The launch that makes rows of `outputs` logits per token, padding rows included; `None` if no such
    /// kernel takes the router's format or width.
    pub(crate) fn route_batch(
        &mut self,
        site: Site,
        operands: &Judge,
        outputs: usize,
        logits: Rows,
    ) -> Option<Launch> {
        let router = self.matrix(operands.router);
        if router.format != Format::Bf16 || !router.columns.is_multiple_of(4) {
            return None;
        }
        let Shape { tokens, tiles, k_warps, blocks, shared } = shape(site.program.rows, outputs, self.card)?;
        let (norm, eps) = self.norm(Some(operands.norm));
        let mut constants = vec![
            ("OUTPUTS", integer(outputs)),
            ("INPUTS", integer(router.columns)),
            ("NORM", norm),
            ("EPS", Constant::Float(eps)),
            ("LIMIT", limit(site, false)),
            ("TOKENS", integer(tokens)),
            ("TILES", integer(tiles)),
            ("K_WARPS", integer(k_warps)),
            ("BLOCKS", integer(blocks)),
        ];
        let choice = operands.choice;
        constants.extend(operands.factor());
        constants.extend(choice.scales.iter().flat_map(|_| choice.row_constants()));
        let (step, x) = (site.header, self.buffer(site, operands.x));
        let (norm, router) = (Vector::field(Some(operands.norm)), self.planes(operands.router).codes);
        let mut grid = fixed(blocks, site.program.rows.div_ceil(tokens), 1);
        if site.program.regime == Regime::Prefill {
            grid[1] = Extent::Tokens(count(tokens));
        }
        let name = self.kernel_name(site, "_route");
        let instance = Instance { shared, ..Instance::new(name, constants, 32 * WARPS) };
        let [correction, scales] = [choice.correction(), choice.scales].map(Vector::field);
        Some(if choice.scales.is_some() {
            let arguments = RouteBatchScales { step, x, norm, router, logits, correction, scales };
            self.launch(site, instance, grid, arguments)
        } else if choice.correction().is_some() {
            let arguments = RouteBatchScores { step, x, norm, router, logits, correction };
            self.launch(site, instance, grid, arguments)
        } else {
            self.launch(site, instance, grid, RouteBatch { step, x, norm, router, logits })
        })
    }
}
