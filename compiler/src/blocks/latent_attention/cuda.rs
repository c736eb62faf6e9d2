//! Attention over latents on a CUDA device: three launches, in decode and in prefill. Keys and values of heads
//! are never made (templates/cuda/latent/latent.cuh).

use super::LatentAttention;
use super::graph::Shape;
use super::kernels::{AbsorbedQueries, LatentDecode, LatentQueries, LatentValues};
use super::spec::QueryScale;
use crate::graph::BodyId;
use crate::kernels::{Cache, Planes, Rotary, Rows, Tokens, Vector};
use crate::passes::PassError;
use crate::passes::launch::{Instance, Launcher, Member, Site, count, integer, no_kernel, value};
use crate::plan::FieldKind;
use crate::plan::cuda::{Constant, Extent, Launch, Regime};
use crate::spec::types::{Cuda, NormWeight, RotaryPairs};
use monomorph_abi::kv::Layout;
use monomorph_formats::Format;

/// Tiles of 16 rows that a block of latent_queries takes of a prompt: it reads a key matrix once for all.
const PROMPT_TILES: usize = 8;
/// Warps of latent_decode and of latent_values.
const DECODE_WARPS: usize = 8;
const VALUES_WARPS: usize = 16;
/// Heads of a block of latent_decode.
const GROUP: usize = 32;

/// Tokens of a tile of latent_decode, tiles on their way, and blocks that share a multiprocessor.
#[derive(Clone, Copy)]
struct Division {
    tile: usize,
    stages: usize,
    resident: usize,
}

/// Divisions by preference.
const DIVISIONS: [Division; 3] = [
    Division { tile: 64, stages: 2, resident: 2 },
    Division { tile: 32, stages: 3, resident: 1 },
    Division { tile: 32, stages: 2, resident: 1 },
];
/// 16-bit terms of queries and softmax weights.
const TERMS: usize = 1;

impl Shape {
    /// Rows of a tile of heads.
    fn head_rows(&self) -> usize {
        if self.heads <= 16 { 16 } else { GROUP }
    }

    /// `sizeof(LatentShared<C>)`.
    fn decode_shared(&self, division: Division) -> usize {
        let (panels, rows) = (self.width().div_ceil(64), self.head_rows());
        let keys = division.stages * panels * division.tile * 128;
        let meeting = 2 * (DECODE_WARPS * 16 / rows) * rows * 4;
        (keys + TERMS * (panels + 1) * rows * 128 + meeting).next_multiple_of(128)
    }

    fn division(&self, card: &Cuda) -> Option<Division> {
        DIVISIONS.into_iter().find(|it| {
            let shared = self.decode_shared(*it);
            shared <= card.shared_per_block as usize
                && it.resident * (shared + 1024) <= card.shared_per_multiprocessor as usize
        })
    }

    /// `latent_query_row<C>()`, for a cache of 16-bit elements.
    fn query_row(&self) -> usize {
        2 * TERMS * self.heads * self.width()
    }

    /// `latent_partials_bytes<C>()`.
    fn partials(&self, splits: usize, rows: usize) -> usize {
        4 * rows * self.heads * (splits * (self.latent + 2)).next_multiple_of(4)
    }

    /// Parts of a context in a decode step: a block for every place on the card.
    fn splits(&self, rows: usize, context: usize, division: Division, card: &Cuda) -> usize {
        let places = card.multiprocessors as usize * division.resident;
        let whole = places / (self.heads.div_ceil(GROUP) * rows);
        whole.clamp(1, context.div_ceil(division.tile))
    }
}

/// Rows of a tile of latent_values.
fn values_rows(rows: usize) -> usize {
    (1 << rows.ilog2()).min(16)
}

impl Launcher<'_> {
    pub(super) fn latent_attention(
        &mut self,
        site: Site,
        phase: &LatentAttention,
        launches: &mut Vec<Launch>,
    ) -> Result<(), PassError> {
        let LatentAttention { q, kv, norm, made, ref frequencies, shape, scale, query_scale, out } = *phase;
        let refuse = |launcher: &Launcher, what: &str| Err(no_kernel(site, launcher.plan, what));
        let matrix = self.matrix(made);
        if matrix.exact || matrix.format != Format::F16 {
            return refuse(self, "latents are attended to in f16 only: set `latent-heads` to it in [compute]");
        }
        let quant = &self.plan.target.quant;
        let element = match quant.kv_format {
            Format::Bf16 => "__nv_bfloat16",
            Format::F16 => "__half",
            other => return refuse(self, &format!("no kernel keeps latents as {other}, but as bf16 and f16")),
        };
        let Some(division) = shape.division(self.card) else {
            return refuse(self, "two tiles of latents do not fit the card's shared memory");
        };
        let decode = site.program.regime == Regime::Decode;
        let rows = site.program.rows;
        let splits = match (decode, self.knobs(site).attention_splits as usize) {
            (false, _) => 1,
            (true, 0) => shape.splits(rows, self.plan.target.model.context, division, self.card),
            (true, splits) => splits,
        };
        let FieldKind::Norm { eps, form, .. } = self.plan.field(norm).kind else {
            unreachable!("latents are normed")
        };
        let form = match form {
            NormWeight::Plain => "HeadNorm::Plain",
            NormWeight::OnePlus => "HeadNorm::OnePlus",
        };
        let QueryScale { growth, original } =
            query_scale.unwrap_or(QueryScale { growth: 0.0, original: 1 });
        let layout = Layout::cuda(1, shape.width(), quant.kv_block, quant.kv_format).without_values();
        let kv_block = ("kv_block", layout.block_bytes());
        let query_row = ("query_row", shape.query_row());
        let partials_bytes = ("partials", shape.partials(splits, rows));

        let constants: Vec<Member> = vec![
            ("HEADS", integer(shape.heads)),
            ("KEY_DIM", integer(shape.key_dim)),
            ("VALUE_DIM", integer(shape.value_dim)),
            ("LATENT", integer(shape.latent)),
            ("ROTATED", integer(shape.rotated)),
            ("BLOCK_TOKENS", integer(quant.kv_block)),
            ("Kv", Constant::Type(element.to_owned())),
            ("TERMS", integer(TERMS)),
            ("ROWS", integer(rows)),
            ("SPLITS", integer(splits)),
            ("TILE", integer(division.tile)),
        ];
        let with = |more: &[Member]| constants.iter().chain(more).cloned().collect::<Vec<Member>>();
        let body = BodyId(site.body);
        let (step, layer) = (site.header, Cache::of(body));
        let tokens = if decode { Tokens::NULL } else { Tokens::STEP };
        let planes = self.planes(made);
        let [q, kv, out] = [q, kv, out].map(|id| self.buffer(site, id));
        let queries: AbsorbedQueries =
            self.scratch("latent_queries", (rows * query_row.1) as u64, false);
        let partials: Rows = self.scratch("latent_partials", partials_bytes.1 as u64, false);
        let grid = |launcher: &Launcher, tile: usize, y: usize, z: usize| {
            let [x, ..] = launcher.grid_of_rows(site, tile);
            [x, Extent::Fixed(count(y)), Extent::Fixed(count(z))]
        };

        let tiles = if decode { 1 } else { PROMPT_TILES };
        let more = [
            ("ROTARY_HALVES", Constant::Flag(frequencies.pairs == RotaryPairs::Halves)),
            ("NORM", value(form)),
            ("EPS", Constant::Float(eps)),
            ("SCALE", Constant::Float(scale)),
            ("GROWTH", Constant::Float(growth)),
            ("ORIGINAL", integer(original)),
            ("QUERY_TILES", integer(tiles)),
        ];
        let instance = Instance {
            bytes: vec![kv_block, query_row],
            ..Instance::new(self.kernel_name(site, "_queries"), with(&more), 32 * shape.latent.div_ceil(32))
        };
        let arguments = LatentQueries {
            step,
            tokens,
            q,
            kv,
            norm: Vector::field(Some(norm)),
            rotary: Rotary::of(body),
            codes: planes.codes,
            row_scales: planes.row_scales,
            layer,
            queries,
        };
        let over = grid(self, 16 * tiles, shape.heads + 1, 1);
        launches.push(self.launch(site, instance, over, arguments));

        let more = [
            ("STAGES", integer(division.stages)),
            ("TOKENS", integer(site.program.tokens)),
            ("CONTEXT_BEFORE_WAIT", Constant::Flag(decode && self.context_is_there(site))),
        ];
        let instance = Instance {
            resident: division.resident,
            shared: shape.decode_shared(division),
            bytes: vec![kv_block, query_row, partials_bytes],
            ..Instance::new(self.kernel_name(site, ""), with(&more), 32 * DECODE_WARPS)
        };
        let over = grid(self, 1, shape.heads.div_ceil(GROUP), splits);
        let arguments = LatentDecode { step, tokens, queries, layer, partials };
        launches.push(self.launch(site, instance, over, arguments));

        let instance = Instance {
            bytes: vec![partials_bytes],
            ..Instance::new(self.kernel_name(site, "_values"), constants, 32 * VALUES_WARPS)
        };
        let over = grid(self, values_rows(rows), shape.heads, 1);
        let Planes { codes, row_scales, .. } = planes;
        let arguments = LatentValues { step, tokens, partials, codes, row_scales, out };
        launches.push(self.launch(site, instance, over, arguments));
        Ok(())
    }
}
