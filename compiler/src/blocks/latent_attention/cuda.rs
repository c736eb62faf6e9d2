//! Attention over latents on a CUDA device: three launches, in decode and in prefill. Keys and values of
//! heads are never made (templates/cuda/latent/latent.cuh).

use super::LatentAttention;
use super::graph::Shape;
use super::kernels::{
    AbsorbedQueries, LatentDecode, LatentDecodeWgmma, LatentPrefillWgmma, LatentQueries, LatentValues,
};
use super::spec::QueryScale;
use crate::blocks::attention::cuda::cache_type;
use crate::graph::BodyId;
use crate::kernels::{Cache, Planes, Rotary, Rows, Tokens, Vector};
use crate::passes::PassError;
use crate::passes::launch::{Instance, Launcher, Member, Site, count, fixed, integer, no_kernel, value};
use crate::plan::FieldKind;
use crate::plan::cuda::{Constant, Extent, Launch, Regime};
use crate::spec::types::{Cuda, NormWeight, RotaryPairs};
use monomorph_abi::kv::Layout;
use monomorph_formats::Format;
use monomorph_formats::cached::{Cached, KvFormats};

/// Tiles of 16 rows that a block of latent_queries or latent_values takes of a prompt: it reads a head's
/// matrix once for all.
const PROMPT_TILES: usize = 8;
/// Warps of latent_decode and of latent_values.
const DECODE_WARPS: usize = 8;
const VALUES_WARPS: usize = 16;
/// Threads of the kernels of warpgroups.
const DECODE_WGMMA_THREADS: usize = 256;
const PREFILL_WGMMA_THREADS: usize = 384;
/// 16-bit terms of queries and softmax weights.
const TERMS: usize = 1;

/// How a context is walked.
#[derive(Clone, Copy)]
struct Walk {
    /// Whether warpgroups multiply.
    wgmma: bool,
    /// Heads of a block in decode.
    group: usize,
    /// Tokens of a tile, and tiles in flight in decode.
    tile: usize,
    stages: usize,
    /// Blocks that share a multiprocessor.
    resident: usize,
}

/// Walks of latent_decode, by preference.
const WALKS: [Walk; 3] = [
    Walk { wgmma: false, group: 32, tile: 64, stages: 2, resident: 2 },
    Walk { wgmma: false, group: 32, tile: 32, stages: 3, resident: 1 },
    Walk { wgmma: false, group: 32, tile: 32, stages: 2, resident: 1 },
];
const BY_WARPGROUPS: Walk = Walk { wgmma: true, group: 64, tile: 64, stages: 4, resident: 1 };
/// The same of latents that are kept as codes: tiles converted, beside [`STEP_AHEAD`] in flight.
const CODED_STAGES: usize = 3;
/// Tiles in flight in prompts.
const PROMPT_STAGES: usize = 3;
/// Tiles of codes that gathering threads copy ahead, in decode and in prompts.
const STEP_AHEAD: usize = 2;
const PROMPT_AHEAD: usize = 1;
/// Bytes of a row of groups in gathering threads' memory: eight have 16 of codes, 16 of a rotated key and 8
/// of scales each; of turbo8 32, 16 and 4 (`StagedGroups`).
const GROUPED_ROW: usize = 8 * (16 + 16 + 8);
const TURBO8_ROW: usize = 8 * (32 + 16 + 4);
/// Parts whose ends latent_values reads at once.
const ENDS: usize = 32;

impl Shape {
    /// Columns of a row of the cache, in panels of 64.
    fn panels(&self) -> usize {
        self.width().div_ceil(64)
    }

    /// `latent_decode_shared_bytes<C>()`.
    fn decode_shared(&self, walk: Walk) -> usize {
        let rows = if self.heads <= 16 { 16 } else { 32 };
        let keys = walk.stages * self.panels() * walk.tile * 128;
        let sharing = (DECODE_WARPS * 16 / rows).min(walk.tile / 8);
        let agreed = (2 * sharing + DECODE_WARPS) * rows * 4;
        (keys + TERMS * (self.panels() + 1) * rows * 128 + agreed).next_multiple_of(128)
    }

    /// `coded_row_bytes<C>()`; 0 of a cache without codes.
    fn coded_row(&self, kv: Cached) -> usize {
        match kv {
            Cached::F32 | Cached::Bf16 | Cached::F16 => 0,
            Cached::Fp8 => self.latent + 2 * self.rotated,
            Cached::Nvfp4 | Cached::Turbo4 | Cached::Turbo3 => GROUPED_ROW,
            Cached::Turbo8 => TURBO8_ROW,
        }
    }

    /// `sizeof(LatentWgmmaShared<C, GROUPS, STAGES, AHEAD, ROWS>)`, with `queries` rows of all groups.
    fn wgmma_shared(&self, queries: usize, stages: usize, ahead: usize, kv: Cached) -> usize {
        let tile = BY_WARPGROUPS.tile;
        let coded = ahead * tile * self.coded_row(kv);
        (self.panels() * 128 * (stages * tile + queries) + stages * 2 * 8 + coded).next_multiple_of(1024)
    }

    /// `latent_decode_wgmma_shared_bytes<C>()`.
    fn step_shared(&self, kv: Cached) -> usize {
        let stages = if kv.is_narrow() { CODED_STAGES } else { BY_WARPGROUPS.stages };
        self.wgmma_shared(if self.heads <= 32 { 32 } else { 64 }, stages, STEP_AHEAD, kv)
    }

    /// `latent_prefill_shared_bytes<C>()`.
    fn prompt_shared(&self, kv: Cached) -> usize {
        self.wgmma_shared(2 * 64, PROMPT_STAGES, PROMPT_AHEAD, kv)
    }

    /// The walk that the card is best at; `None` if not even the smallest fits it.
    fn walk(&self, kv: Cached, block_tokens: usize, card: &Cuda) -> Option<Walk> {
        let most = card.shared_per_block as usize;
        let elements = match kv {
            Cached::Bf16 => self.width().is_multiple_of(64),
            Cached::F32 | Cached::F16 => false,
            _ => self.rotated == 64,
        };
        let takes = elements && self.latent == 256 && self.heads <= 128 && TERMS == 1;
        let nests = BY_WARPGROUPS.tile.is_multiple_of(block_tokens);
        let fits = self.step_shared(kv).max(self.prompt_shared(kv)) <= most;
        if card.wgmma && takes && nests && fits {
            return Some(BY_WARPGROUPS);
        }
        WALKS.into_iter().find(|walk| {
            let shared = self.decode_shared(*walk);
            shared <= most && walk.resident * (shared + 1024) <= card.shared_per_multiprocessor as usize
        })
    }

    /// `latent_query_row<C>()`: 16 bits an element, whatever the cache keeps.
    fn query_row(&self) -> usize {
        2 * TERMS * self.heads * self.width()
    }

    /// `latent_partials_bytes<C>()`.
    fn partials(&self, splits: usize, rows: usize) -> usize {
        4 * rows * self.heads * (splits * (self.latent.div_ceil(32) * 16 + 2)).next_multiple_of(4)
    }

    /// Parts of a context in a decode step: a block for every place on the card, but for a few where their
    /// ends are then read in fewer rounds.
    fn splits(&self, rows: usize, context: usize, walk: Walk, card: &Cuda) -> usize {
        let places = card.multiprocessors as usize * walk.resident;
        let whole = places / (self.heads.div_ceil(walk.group) * rows);
        let rounds = whole / ENDS * ENDS;
        let parts = if rounds * 16 >= whole * 15 { rounds } else { whole };
        parts.clamp(1, context.div_ceil(walk.tile))
    }
}

/// Rows of a tile of latent_values.
fn values_rows(rows: usize) -> usize {
    (1 << rows.ilog2()).min(16)
}

/// What the launches of the phase share.
struct Operands {
    shape: Shape,
    kv: Cached,
    walk: Walk,
    splits: usize,
    tokens: Tokens,
    queries: AbsorbedQueries,
    partials: Rows,
    made: Planes,
    constants: Vec<Member>,
    /// Bytes by their names in the kernels' declarations.
    kv_block: (&'static str, usize),
    query_row: (&'static str, usize),
    partials_bytes: (&'static str, usize),
    /// Tiles of rows that a block takes.
    row_tiles: usize,
    /// Whether kernels read the step header, and the context, before they wait.
    before_wait: Member,
}

impl Operands {
    fn with(&self, more: &[Member]) -> Vec<Member> {
        self.constants.iter().chain(more).cloned().collect()
    }
}

impl Launcher<'_> {
    pub(super) fn latent_attention(
        &mut self,
        site: Site,
        phase: &LatentAttention,
        launches: &mut Vec<Launch>,
    ) -> Result<(), PassError> {
        let operands = self.latent_operands(site, phase)?;
        launches.push(self.latent_queries(site, phase, &operands));
        launches.push(self.latent_context(site, &operands));
        launches.push(self.latent_values(site, phase, &operands));
        Ok(())
    }

    fn latent_operands(&mut self, site: Site, phase: &LatentAttention) -> Result<Operands, PassError> {
        let shape = phase.shape;
        let refusal = |launcher: &Launcher, what: &str| no_kernel(site, launcher.plan, what);
        let matrix = self.matrix(phase.made);
        if matrix.exact || matrix.format != Format::F16 {
            let what = "latents are attended to in f16 only: say `latent-heads = \"f16\"` in [compute]";
            return Err(refusal(self, what));
        }
        let quant = &self.plan.target.quant;
        if phase.format == Cached::F32 {
            return Err(refusal(self, "no kernel keeps latents as f32: bf16 or f16 is the nearest"));
        }
        let kv = KvFormats::both(phase.format);
        let element = cache_type(kv).expect("there is a type for one format of both");
        if phase.format.scales().is_some() && !quant.kv_block.is_multiple_of(16) {
            return Err(refusal(self, "groups of latents are in blocks of whole 16 tokens"));
        }
        let Some(walk) = shape.walk(phase.format, quant.kv_block, self.card) else {
            return Err(refusal(self, "two tiles of 32 latents do not fit the card's shared memory"));
        };
        let decode = site.program.regime == Regime::Decode;
        let rows = site.program.rows;
        let splits = match (decode, self.knobs(site).attention_splits as usize) {
            (false, _) => 1,
            (true, 0) => shape.splits(rows, self.plan.target.model.context, walk, self.card),
            (true, splits) => splits,
        };
        let row_tiles = if decode { 1 } else { PROMPT_TILES };
        let layout = Layout::cuda(1, shape.width(), quant.kv_block, kv).of_latents(shape.latent);
        let constants = vec![
            ("HEADS", integer(shape.heads)),
            ("KEY_DIM", integer(shape.key_dim)),
            ("VALUE_DIM", integer(shape.value_dim)),
            ("LATENT", integer(shape.latent)),
            ("ROTATED", integer(shape.rotated)),
            ("BLOCK_TOKENS", integer(quant.kv_block)),
            ("Kv", Constant::Type(element)),
            ("TERMS", integer(TERMS)),
            ("ROWS", integer(rows)),
            ("ROW_TILES", integer(row_tiles)),
            ("SPLITS", integer(splits)),
            ("TILE", integer(walk.tile)),
        ];
        let (query_row, partials) = (shape.query_row(), shape.partials(splits, rows));
        Ok(Operands {
            shape,
            kv: phase.format,
            walk,
            splits,
            tokens: if decode { Tokens::NULL } else { Tokens::STEP },
            queries: self.scratch("latent_queries", (rows * query_row) as u64, false),
            partials: self.scratch("latent_partials", partials as u64, false),
            made: self.planes(phase.made),
            constants,
            kv_block: ("kv_block", layout.block_bytes()),
            query_row: ("query_row", query_row),
            partials_bytes: ("partials", partials),
            row_tiles,
            before_wait: ("CONTEXT_BEFORE_WAIT", Constant::Flag(decode && self.context_is_there(site))),
        })
    }

    /// A block for every `tile` rows of the step in x.
    fn latent_grid(&self, site: Site, tile: usize, y: usize, z: usize) -> [Extent; 3] {
        let [x, ..] = self.grid_of_rows(site, tile);
        [x, Extent::Fixed(count(y)), Extent::Fixed(count(z))]
    }

    fn latent_queries(&mut self, site: Site, phase: &LatentAttention, operands: &Operands) -> Launch {
        let (shape, body) = (operands.shape, BodyId(site.body));
        let FieldKind::Norm { eps, form, .. } = self.plan.field(phase.norm).kind else {
            unreachable!("the rule has a norm of latents")
        };
        let form = match form {
            NormWeight::Plain => "HeadNorm::Plain",
            NormWeight::OnePlus => "HeadNorm::OnePlus",
        };
        let QueryScale { growth, original } =
            phase.query_scale.unwrap_or(QueryScale { growth: 0.0, original: 1 });
        let halves = phase.frequencies.pairs == RotaryPairs::Halves;
        let constants = operands.with(&[
            operands.before_wait.clone(),
            ("ROTARY_HALVES", Constant::Flag(halves)),
            ("NORM", value(form)),
            ("EPS", Constant::Float(eps)),
            ("SCALE", Constant::Float(phase.scale)),
            ("GROWTH", Constant::Float(growth)),
            ("ORIGINAL", integer(original)),
        ]);
        let arguments = LatentQueries {
            step: site.header,
            tokens: operands.tokens,
            q: self.buffer(site, phase.q),
            kv: self.buffer(site, phase.kv),
            norm: Vector::field(Some(phase.norm)),
            rotary: Rotary::of(body),
            codes: operands.made.codes,
            row_scales: operands.made.row_scales,
            layer: Cache::of(body),
            queries: operands.queries,
        };
        let threads = 32 * shape.latent.div_ceil(32);
        let instance = Instance {
            bytes: vec![operands.kv_block, operands.query_row],
            ..Instance::new(self.kernel_name(site, "_queries"), constants, threads)
        };
        let grid = self.latent_grid(site, 16 * operands.row_tiles, shape.heads + 1, 1);
        self.launch(site, instance, grid, arguments)
    }

    fn latent_context(&mut self, site: Site, operands: &Operands) -> Launch {
        let Operands { shape, walk, splits, tokens, queries, partials, .. } = *operands;
        let (step, layer) = (site.header, Cache::of(BodyId(site.body)));
        let bytes = vec![operands.kv_block, operands.query_row, operands.partials_bytes];
        let name = self.kernel_name(site, "");
        let decode = site.program.regime == Regime::Decode;
        if walk.wgmma && !decode {
            let arguments = LatentPrefillWgmma { step, queries, layer, partials };
            let instance = Instance {
                shared: shape.prompt_shared(operands.kv),
                bytes,
                ..Instance::new(name, operands.with(&[]), PREFILL_WGMMA_THREADS)
            };
            // Blocks loop over what is to be done.
            return self.launch(site, instance, fixed(self.card.multiprocessors as usize, 1, 1), arguments);
        }
        let mut more = vec![operands.before_wait.clone(), ("TOKENS", integer(site.program.tokens))];
        let grid = self.latent_grid(site, 1, shape.heads.div_ceil(walk.group), splits);
        if walk.wgmma {
            let arguments = LatentDecodeWgmma { step, tokens, queries, layer, partials };
            let instance = Instance {
                shared: shape.step_shared(operands.kv),
                bytes,
                ..Instance::new(name, operands.with(&more), DECODE_WGMMA_THREADS)
            };
            return self.launch(site, instance, grid, arguments);
        }
        more.push(("STAGES", integer(walk.stages)));
        let arguments = LatentDecode { step, tokens, queries, layer, partials };
        let instance = Instance {
            resident: walk.resident,
            shared: shape.decode_shared(walk),
            bytes,
            ..Instance::new(name, operands.with(&more), 32 * DECODE_WARPS)
        };
        self.launch(site, instance, grid, arguments)
    }

    fn latent_values(&mut self, site: Site, phase: &LatentAttention, operands: &Operands) -> Launch {
        let arguments = LatentValues {
            step: site.header,
            tokens: operands.tokens,
            partials: operands.partials,
            codes: operands.made.codes,
            row_scales: operands.made.row_scales,
            out: self.buffer(site, phase.out),
        };
        let constants = operands.with(std::slice::from_ref(&operands.before_wait));
        let instance = Instance {
            bytes: vec![operands.partials_bytes],
            ..Instance::new(self.kernel_name(site, "_values"), constants, 32 * VALUES_WARPS)
        };
        let tile = values_rows(site.program.rows) * operands.row_tiles;
        let grid = self.latent_grid(site, tile, operands.shape.heads, 1);
        self.launch(site, instance, grid, arguments)
    }
}
