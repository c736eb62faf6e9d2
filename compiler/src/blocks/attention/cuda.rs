//! Attention on a CUDA device: one launch in decode, two in prefill and wherever the arithmetic is exact.
//! Where keys and values are narrow, prefill on warpgroups has a third between these two, which widens them.

mod images;

use super::Attention;
use crate::blocks::attention::kernels::{
    AttentionDecode, AttentionExact, AttentionNorm, AttentionNormRanks, AttentionPrefill,
    AttentionPrefillWgmma, AttentionPrefillWidened, AttentionWiden, AttentionWrite, Queries, Widened,
};
use crate::graph::BodyId;
use crate::kernels::{Cache, Counters, Rotary, Rows, Tokens, Vector};
use crate::passes::PassError;
use crate::passes::launch::{
    Instance, Launcher, Member, Outline, Site, count, fixed, integer, no_kernel, value,
};
use crate::plan::cuda::{Constant, Extent, Launch, Regime};
use crate::plan::{BufferId, FieldId, FieldKind};
use crate::spec::types::{Cuda, NormWeight, RotaryPairs, TensorClass};
use monomorph_abi::kv::Layout;
use monomorph_formats::cached::{Cached, GROUP, KvFormats};

/// Smallest chunk of cached tokens of attention_decode. Its loads are in flight before the kernel waits, so a
/// second block gains little.
const MIN_CHUNK: usize = 256;
/// Most splits of a context: the last block reads the results of all of them.
const MAX_SPLITS: usize = 64;
/// Rows and threads of a block of attention_write.
const WRITE_TOKENS: usize = 4;
const WRITE_THREADS: usize = 256;
/// Threads of attention_norm, and blocks a multiprocessor where ranks exchange sums: all run together.
const NORM_THREADS: usize = 512;
const NORM_RESIDENT: usize = 2;
/// Warps of attention_exact.
const EXACT_WARPS: usize = 8;
/// Keys and threads of attention_prefill.
const PREFILL_KEYS: [usize; 3] = [64, 32, 16];
const PREFILL_THREADS: usize = 128;
/// Keys, stages and threads of attention_prefill_wgmma.
const WGMMA_STAGES: usize = 2;
const WGMMA_THREADS: usize = 384;
/// Threads of attention_widen, and blocks a multiprocessor: their loads are what hides its latency.
const WIDEN_THREADS: usize = 256;
const WIDEN_RESIDENT: usize = 4;

/// The dimensions of an attention phase.
#[derive(Clone, Copy)]
struct Shape {
    heads: usize,
    kv_heads: usize,
    head_dim: usize,
    /// Formats of the cache.
    kv: KvFormats,
}

/// The type that kernels know a cache by: an element, or a format whose elements share scales.
pub(in crate::blocks) fn cache_type(formats: KvFormats) -> Option<String> {
    let one = |format: Cached| match format {
        Cached::F32 => "float",
        Cached::Bf16 => "__nv_bfloat16",
        Cached::F16 => "__half",
        Cached::Fp8 => "E4m3",
        Cached::Nvfp4 => "Nvfp4",
        Cached::Turbo8 => "Turbo8",
        Cached::Turbo4 => "Turbo4",
        Cached::Turbo3 => "Turbo3",
    };
    let KvFormats { keys, values } = formats;
    match formats.same() {
        Some(both) => Some(one(both).to_owned()),
        None => (is_grouped(keys) && is_grouped(values))
            .then(|| format!("GroupedPair<{}, {}>", one(keys), one(values))),
    }
}

/// Widths of what is kept in formats with scales of groups (`KeptRow`).
pub(in crate::blocks) const GROUPED_WIDTHS: [usize; 4] = [64, 128, 256, 512];

/// Whether elements share scales.
fn is_grouped(format: Cached) -> bool {
    format.scales().is_some()
}

impl Shape {
    fn group(&self) -> usize {
        self.heads / self.kv_heads
    }

    fn head_dim_16(&self) -> usize {
        self.head_dim.next_multiple_of(16)
    }

    /// Warps of attention_decode. Eight, one block a multiprocessor, while there are few blocks. Four once
    /// there are more, so that several share a multiprocessor, or where the sums of eight warps do not fit.
    fn decode_warps(&self, rows: usize, splits: usize, tokens: usize, card: &Cuda) -> usize {
        let few = rows * self.kv_heads <= card.multiprocessors as usize;
        if few && self.decode_shared(splits, 8, tokens) <= card.shared_per_block as usize { 8 } else { 4 }
    }

    /// `sizeof(DecodeShared<C>)`.
    fn decode_shared(&self, splits: usize, warps: usize, tokens: usize) -> usize {
        let Shape { head_dim, kv, .. } = *self;
        let (key_steps, value_steps) = (head_dim.div_ceil(32), head_dim.div_ceil(64));
        let row =
            |format: Cached, columns: usize| (columns / GROUP * format.group_bytes()).next_multiple_of(16);
        let arrays = [
            // Fragments of q; heads are padded to a multiple of eight.
            self.group().div_ceil(8) * 2 * key_steps * 32 * 8 * 2,
            tokens * row(kv.keys, key_steps * 32),
            tokens * row(kv.values, value_steps * 64),
            warps * self.group() * head_dim * 4,
        ];
        let aligned: usize = arrays[..3].iter().map(|bytes| bytes.next_multiple_of(16)).sum();
        let rest = 2 * warps * self.group() * 4 + 2 * splits * self.group() * 4 + 4;
        (aligned + arrays[3] + rest).next_multiple_of(16)
    }

    /// Bytes of a row of queries after norm and rotary: 16 bits an element.
    fn query_row(&self) -> usize {
        2 * self.heads * self.head_dim_16()
    }

    /// `decode_partials_bytes<C>(rows)`.
    fn partials(&self, splits: usize, rows: usize) -> usize {
        let partial = (self.group() * (self.head_dim + 2)).next_multiple_of(4);
        if splits == 1 { 0 } else { 4 * rows * self.kv_heads * splits * partial }
    }

    /// Whether decode kernels have registers for the sums of a K/V head's queries.
    fn decodes(&self) -> bool {
        self.head_dim.div_ceil(64) * self.group().div_ceil(8) <= 8
    }

    /// Warps of attention_prefill that share rows, if they can share out the columns of their sums.
    fn column_warps(&self) -> Option<usize> {
        match self.head_dim_16() {
            ..=256 => Some(1),
            width => (width <= 512 && width.is_multiple_of(32)).then_some(2),
        }
    }

    /// `sizeof(PrefillShared<C>)`.
    fn prefill_shared(&self, keys: usize, block_tokens: usize) -> usize {
        let width = self.head_dim_16();
        let (tiles, shared_by) = (if width <= 128 { 2 } else { 1 }, self.column_warps().unwrap_or(1));
        let (rows, stride) = (16 * tiles * 4 / shared_by, width + 8);
        let blocks = if keys > block_tokens { keys / block_tokens } else { 1 };
        (2 * rows * stride + 4 * 2 * keys * stride + 4 * 2 * blocks).next_multiple_of(16)
    }

    /// Keys of attention_prefill's tile, which divides a block of the cache or is a multiple of it: as many
    /// as leave room for two blocks on a multiprocessor, else for one.
    fn prefill_keys(&self, block_tokens: usize, card: &Cuda) -> Option<usize> {
        let nests = |keys: usize| keys.is_multiple_of(block_tokens) || block_tokens.is_multiple_of(keys);
        let small = |keys: usize, most: usize| nests(keys) && self.prefill_shared(keys, block_tokens) <= most;
        let fits = |most: usize| PREFILL_KEYS.into_iter().find(|keys| small(*keys, most));
        let half = (card.shared_per_multiprocessor as usize / 2).saturating_sub(1024);
        let whole = card.shared_per_block as usize;
        fits(half.min(whole)).or_else(|| fits(whole))
    }

    /// `sizeof(WgmmaShared<C>)`, if warpgroup products take this shape.
    fn wgmma_prefill_shared(&self, block_tokens: usize, card: &Cuda) -> Option<usize> {
        // Heads of 256 leave registers for the scores of 64 keys, but none for q.
        let (keys, q): (usize, usize) =
            if self.head_dim == 256 { (64, 128 * self.head_dim * 2) } else { (128, 0) };
        let takes = card.wgmma
            && (is_grouped(self.kv.keys)
                || [Cached::Bf16, Cached::Fp8].map(KvFormats::both).contains(&self.kv))
            && [64, 128, 256].contains(&self.head_dim)
            && keys.is_multiple_of(block_tokens);
        // Context vectors that warps rotate back: eight at a time, or as many as fit.
        let rotated = match self.head_dim {
            _ if !self.kv.values.is_rotated() => 0,
            256 => 8 * 4 * (256 + 8) * 4,
            width => 8 * 8 * (width + 8) * 4,
        };
        // Codes of fp8 that are copied ahead.
        let staged = if self.kv == KvFormats::both(Cached::Fp8) { 2 * keys * self.head_dim } else { 0 };
        let bytes = WGMMA_STAGES * (2 * keys * self.head_dim * 2 + 4 * 8) + q + staged + rotated;
        takes.then_some(bytes.next_multiple_of(1024))
    }

    /// `widened_bytes<C>()`: blocks of 16 bits an element.
    fn widened(&self, blocks: usize, block_tokens: usize) -> usize {
        let wide = KvFormats::both(Cached::Bf16);
        blocks * Layout::cuda(self.kv_heads, self.head_dim, block_tokens, wide).block_bytes()
    }

    /// `sizeof(ExactShared<C>)`.
    fn exact_shared(&self) -> usize {
        let sums = 8 * (self.head_dim + 2 * EXACT_WARPS + EXACT_WARPS * self.head_dim);
        let grouped = is_grouped(self.kv.values);
        let row = self.head_dim * if grouped { 1 } else { self.kv.values.code_bits() / 8 };
        // A warp's tile of values; wide rows, and codes of groups, are read in place.
        let tile = if row <= 256 && !grouped { 32 * row } else { row };
        (sums.next_multiple_of(16) + EXACT_WARPS * tile).next_multiple_of(16)
    }

    /// Enough splits to give every multiprocessor a block; `seen` tokens at most are attended to.
    fn splits(&self, rows: usize, seen: usize, card: &Cuda) -> usize {
        let whole = card.multiprocessors as usize / (self.kv_heads * rows);
        whole.min(seen.div_ceil(MIN_CHUNK)).clamp(1, MAX_SPLITS)
    }
}

/// The operands that all launches of the phase share.
struct Operands {
    shape: Shape,
    qkv: BufferId,
    norms: [Option<FieldId>; 2],
    rotary: Rotary,
    out: BufferId,
    gated: bool,
    /// Tokens of the tiles that a query attends to, at most.
    seen: usize,
    /// Tokens that the queries of a sequence's step attend to, at most.
    widest: usize,
    constants: Vec<Member>,
    /// Bytes of a block of the cache, by its name in the kernels' declarations.
    kv_block: (&'static str, usize),
}

/// Where keys and values of prompts are widened, one layer's at a time.
struct Area {
    widened: Widened,
    bytes: usize,
}

impl Operands {
    /// The norms of heads, which a launch before does: the operands are without them from here on.
    fn normed(&mut self) -> [Vector; 2] {
        for (name, member) in &mut self.constants {
            match *name {
                "Q_NORM" | "K_NORM" => *member = value("HeadNorm::None"),
                "Q_EPS" | "K_EPS" => *member = Constant::Float(0.0),
                _ => {}
            }
        }
        std::mem::take(&mut self.norms).map(Vector::field)
    }
}

impl Launcher<'_> {
    pub(crate) fn attention(
        &mut self,
        site: Site,
        phase: &Attention,
        launches: &mut Vec<Launch>,
    ) -> Result<(), PassError> {
        let exact = self
            .plan
            .target
            .quant
            .compute
            .classes
            .get(&TensorClass::Attention)
            .is_none_or(|it| it.is_exact());
        let mut operands = self.attention_operands(site, phase)?;
        if phase.norm_rows {
            launches.push(self.norm_rows(site, phase, &mut operands, exact)?);
        }
        launches.extend(self.turn_heads(site, phase, &mut operands, exact)?);
        // No image is decoded.
        let sees = phase.image_spans && site.program.regime == Regime::Prefill;
        let spans = sees.then(|| self.spans(site, &operands, exact)).transpose()?;
        if exact {
            launches.push(self.write(site, &operands, true));
            launches.push(self.exact(site, &operands));
        } else if site.program.regime == Regime::Decode {
            launches.push(self.decode(site, operands)?);
        } else {
            launches.push(self.write(site, &operands, false));
            let area = self.widen(site, &mut operands, launches);
            launches.push(self.prefill(site, operands, area)?);
        }
        launches.extend(spans);
        Ok(())
    }

    fn attention_operands(&self, site: Site, phase: &Attention) -> Result<Operands, PassError> {
        let Attention {
            qkv,
            q_norm,
            k_norm,
            v_norm,
            keys_as_values,
            window,
            kv: formats,
            frequencies,
            heads,
            kv_heads,
            head_dim,
            scale,
            out,
            gated,
            norm_rows: _,
            norm_ranks: _,
            image_spans: _,
            of_drafter: _,
        } = phase;
        let quant = &self.plan.target.quant;
        let Some(kv) = cache_type(*formats) else {
            let what = format!("no kernel keeps keys and values as {formats}");
            return Err(no_kernel(site, self.plan, &what));
        };
        if is_grouped(formats.keys) && !GROUPED_WIDTHS.contains(head_dim) {
            let what = format!(
                "no kernel keeps heads of {head_dim} as {formats}, only those of 64, 128, 256 and 512"
            );
            return Err(no_kernel(site, self.plan, &what));
        }
        if self.plan.target.ranks > 1 && formats.keys == Cached::Fp8 && quant.fp8_scales().is_some() {
            let what = "static scales of keys and values are those of all heads, of which a rank has a part";
            return Err(no_kernel(site, self.plan, what));
        }
        if heads / kv_heads > 16 {
            return Err(no_kernel(site, self.plan, "more than 16 query heads share a key head"));
        }
        if !quant.kv_block.is_multiple_of(16) {
            let what = format!("K/V blocks of {} tokens are not whole tiles of 16", quant.kv_block);
            return Err(no_kernel(site, self.plan, &what));
        }
        let halves = frequencies.as_ref().is_none_or(|it| it.pairs == RotaryPairs::Halves);
        let mut constants = vec![
            ("HEADS", integer(*heads)),
            ("KV_HEADS", integer(*kv_heads)),
            ("HEAD_DIM", integer(*head_dim)),
            ("BLOCK_TOKENS", integer(quant.kv_block)),
            ("Kv", Constant::Type(kv)),
            ("ROTARY_PAIRS", integer(frequencies.as_ref().map_or(0, |it| it.inverse.len()))),
            ("ROTARY_HALVES", Constant::Flag(halves)),
            ("SCALE", Constant::Float(*scale)),
            ("GATED", Constant::Flag(*gated)),
        ];
        for (id, name, eps_name) in [(q_norm, "Q_NORM", "Q_EPS"), (k_norm, "K_NORM", "K_EPS")] {
            let (form, eps) = match id.map(|id| &self.plan.field(id).kind) {
                Some(FieldKind::Norm { eps, form: NormWeight::Plain, .. }) => ("HeadNorm::Plain", *eps),
                Some(FieldKind::Norm { eps, form: NormWeight::OnePlus, .. }) => ("HeadNorm::OnePlus", *eps),
                _ => ("HeadNorm::None", 0.0),
            };
            constants.extend([(name, value(form)), (eps_name, Constant::Float(eps))]);
        }
        constants.extend(v_norm.map(|eps| ("V_EPS", Constant::Float(eps))));
        constants.extend(keys_as_values.then_some(("KEYS_AS_VALUES", Constant::Flag(true))));
        constants.extend(window.map(|window| ("WINDOW", integer(window))));
        let slides = phase.behind(&self.plan.target).is_some();
        constants.extend(slides.then_some(("SLIDES", Constant::Flag(true))));
        let context = self.plan.target.model.context;
        let shape = Shape { heads: *heads, kv_heads: *kv_heads, head_dim: *head_dim, kv: *formats };
        let layout = Layout::cuda(*kv_heads, *head_dim, quant.kv_block, *formats);
        let kv_block = ("kv_block", layout.block_bytes());
        Ok(Operands {
            shape,
            qkv: *qkv,
            norms: [*q_norm, *k_norm],
            rotary: frequencies.as_ref().map_or(Rotary::NULL, |_| Rotary::of(BodyId(site.body))),
            out: *out,
            gated: *gated,
            // A window begins anywhere in a tile of 16.
            seen: window.map_or(context, |window| context.min(window + 15)),
            widest: window.map_or(context, |window| context.min(window + self.plan.buckets.tokens)),
            constants,
            kv_block,
        })
    }

    fn decode(&mut self, site: Site, operands: Operands) -> Result<Launch, PassError> {
        let Operands { shape, qkv, norms, rotary, out, seen, mut constants, kv_block, .. } = operands;
        if !shape.decodes() {
            let Shape { head_dim, .. } = shape;
            let what = format!("{} query heads of {head_dim} share a key head", shape.group());
            return Err(no_kernel(site, self.plan, &what));
        }
        let Outline { sequences, tokens, .. } = *site.program;
        let rows = sequences * tokens;
        // What was tuned was tuned with the spec's own formats: others have other bytes to wait for.
        let tuned = self.plan.target.kv.is_none().then(|| self.knobs(site).attention_splits as usize);
        let splits = match tuned.unwrap_or_default() {
            0 => shape.splits(rows, seen, self.card),
            splits => splits.min(MAX_SPLITS),
        };
        let out = self.buffer(site, out);
        let warps = shape.decode_warps(rows, splits, tokens, self.card);
        constants.extend([
            ("SPLITS", integer(splits)),
            ("DECODE_WARPS", integer(warps)),
            ("MIN_CHUNK", integer(MIN_CHUNK)),
            // Header and older K/V are complete before a step's graph starts: there is one stream, and it
            // waits for the upload's event.
            ("CONTEXT_BEFORE_WAIT", Constant::Flag(self.context_is_there(site))),
            ("ROWS", integer(rows)),
            ("TOKENS", integer(tokens)),
        ]);
        let [q_norm, k_norm] = norms.map(Vector::field);
        let [of_partials, of_counters] = [shape.partials(splits, rows), 4 * rows * shape.kv_heads];
        let (partials, counters) = if splits == 1 {
            (Rows::NULL, Counters::NULL)
        } else {
            (
                self.scratch("attention_partials", of_partials as u64, false),
                self.scratch("attention_counters", of_counters as u64, true),
            )
        };
        let body = BodyId(site.body);
        let arguments = AttentionDecode {
            step: site.header,
            qkv: self.buffer(site, qkv),
            q_norm,
            k_norm,
            rotary,
            layer: Cache::of(body),
            partials,
            counters,
            out,
        };
        let instance = Instance {
            shared: shape.decode_shared(splits, warps, tokens),
            bytes: vec![kv_block, ("partials", of_partials), ("counters", of_counters)],
            ..Instance::new(self.kernel_name(site, ""), constants, 32 * warps)
        };
        Ok(self.launch(site, instance, fixed(splits, shape.kv_heads, rows), arguments))
    }

    /// Launches the norms of whole rows, in place, and leaves operands without norms.
    ///
    /// # Errors
    /// When ranks of several processes have a part each.
    fn norm_rows(
        &mut self,
        site: Site,
        phase: &Attention,
        operands: &mut Operands,
        exact: bool,
    ) -> Result<Launch, PassError> {
        let mut constants = operands.constants.clone();
        constants.push(("EXACT", Constant::Flag(exact)));
        let [q_norm, k_norm] = operands.normed();
        let (step, qkv, name) =
            (site.header, self.buffer(site, operands.qkv), self.kernel_name(site, "_norm"));
        let [1, 1] = phase.norm_ranks else {
            let residual = self.summed(site.body).filter(|_| self.plan.target.hosts == 1);
            let what = "sums of squares are exchanged by ranks of one process, beside the sums of a layer";
            let residual = residual.ok_or_else(|| no_kernel(site, self.plan, what))?;
            let (rows, width) = (site.program.rows, self.plan.buffer(residual).width);
            let blocks = rows.min(NORM_RESIDENT * self.card.multiprocessors as usize);
            constants.extend([
                ("INBOX_WIDTH", integer(width)),
                ("ROWS", integer(rows)),
                ("BLOCKS", integer(blocks)),
                ("KEYS_SHARED", Constant::Flag(phase.norm_ranks[1] > 1)),
            ]);
            let instance = Instance::new(name, constants, NORM_THREADS);
            let mut instance = Instance { resident: NORM_RESIDENT, ..instance };
            let world = instance.summing(self.summing(residual));
            let arguments = AttentionNormRanks { step, world, qkv, q_norm, k_norm };
            return Ok(self.launch(site, instance, fixed(blocks, 1, 1), arguments));
        };
        let arguments = AttentionNorm { step, qkv, q_norm, k_norm };
        let mut grid = self.grid_of_rows(site, 1);
        grid[1] = Extent::Fixed(2);
        Ok(self.launch(site, Instance::new(name, constants, NORM_THREADS), grid, arguments))
    }

    /// Launches norm, rotary and the K/V write for every token of a step.
    fn write(&mut self, site: Site, operands: &Operands, exact: bool) -> Launch {
        let mut constants = operands.constants.clone();
        constants.push(("EXACT", Constant::Flag(exact)));
        let [q_norm, k_norm] = operands.norms.map(Vector::field);
        let q_out = if exact { Queries::NULL } else { self.q_rows(site, operands.shape) };
        let body = BodyId(site.body);
        let arguments = AttentionWrite {
            step: site.header,
            tokens: token_rows(site),
            qkv: self.buffer(site, operands.qkv),
            q_norm,
            k_norm,
            rotary: operands.rotary,
            layer: Cache::of(body),
            q_out,
        };
        let bytes = vec![operands.kv_block, ("query_row", operands.shape.query_row())];
        let name = self.kernel_name(site, "_write");
        let instance = Instance { bytes, ..Instance::new(name, constants, WRITE_THREADS) };
        self.launch(site, instance, self.grid_of_rows(site, WRITE_TOKENS), arguments)
    }

    /// The queries after norm and rotary that attention_prefill reads.
    fn q_rows(&mut self, site: Site, shape: Shape) -> Queries {
        self.scratch("attention_q", (site.program.rows * shape.query_row()) as u64, false)
    }

    /// Launches the widening of narrow keys and values, where prefill attention reads them so. It does not
    /// for heads and cards that have no kernel of warpgroups.
    fn widen(&mut self, site: Site, operands: &mut Operands, launches: &mut Vec<Launch>) -> Option<Area> {
        let block_tokens = self.plan.target.quant.kv_block;
        let Operands { shape, widest, kv_block, .. } = *operands;
        shape.wgmma_prefill_shared(block_tokens, self.card).filter(|_| shape.kv.keys.is_narrow())?;
        let blocks = widest.div_ceil(block_tokens);
        operands.constants.push(("WIDENED_BLOCKS", integer(blocks)));
        let bytes = shape.widened(blocks, block_tokens);
        let area = Area { widened: self.scratch("attention_widened", bytes as u64, false), bytes };
        let instance = Instance {
            resident: WIDEN_RESIDENT,
            bytes: vec![kv_block, ("widened", bytes)],
            ..Instance::new(self.kernel_name(site, "_widen"), operands.constants.clone(), WIDEN_THREADS)
        };
        let layer = Cache::of(BodyId(site.body));
        let arguments = AttentionWiden { step: site.header, layer, widened: area.widened };
        let places = WIDEN_RESIDENT * self.card.multiprocessors as usize;
        launches.push(self.launch(site, instance, fixed(places, 1, 1), arguments));
        Some(area)
    }

    fn prefill(&mut self, site: Site, operands: Operands, area: Option<Area>) -> Result<Launch, PassError> {
        let Operands { shape, qkv, out, mut constants, gated, kv_block, .. } = operands;
        let mut bytes = vec![kv_block];
        let out = self.buffer(site, out);
        let qkv = if gated { self.buffer(site, qkv) } else { Rows::NULL };
        let quant = &self.plan.target.quant;
        let (step, layer, card) = (site.header, Cache::of(BodyId(site.body)), self.card);
        let name = self.kernel_name(site, "");
        // Blocks loop over tiles, so the grid is as many as can be resident.
        let places = card.multiprocessors as usize;
        if let Some(shared) = shape.wgmma_prefill_shared(quant.kv_block, card) {
            let q = self.q_rows(site, shape);
            if let Some(Area { widened, bytes: of_area }) = area {
                bytes.push(("widened", of_area));
                let arguments = AttentionPrefillWidened { step, q, layer, widened, out, qkv };
                let instance = Instance { shared, bytes, ..Instance::new(name, constants, WGMMA_THREADS) };
                return Ok(self.launch(site, instance, fixed(places, 1, 1), arguments));
            }
            let arguments = AttentionPrefillWgmma { step, q, layer, out, qkv };
            let instance = Instance { shared, bytes, ..Instance::new(name, constants, WGMMA_THREADS) };
            return Ok(self.launch(site, instance, fixed(places, 1, 1), arguments));
        }
        let Some(keys) = shape.column_warps().and_then(|_| shape.prefill_keys(quant.kv_block, card)) else {
            let what = format!("heads of {} do not fit the card's shared memory", shape.head_dim);
            return Err(no_kernel(site, self.plan, &what));
        };
        constants.push(("PREFILL_KEYS", integer(keys)));
        let shared = shape.prefill_shared(keys, quant.kv_block);
        let at_a_time = (card.shared_per_multiprocessor as usize / (shared + 1024)).clamp(1, 2);
        let q = self.q_rows(site, shape);
        let arguments = AttentionPrefill { step, q, layer, out, qkv };
        let instance = Instance { shared, bytes, ..Instance::new(name, constants, PREFILL_THREADS) };
        Ok(self.launch(site, instance, fixed(at_a_time * places, 1, 1), arguments))
    }

    fn exact(&mut self, site: Site, operands: &Operands) -> Launch {
        let mut constants = operands.constants.clone();
        constants.push(("EXACT", Constant::Flag(true)));
        let shape = operands.shape;
        let arguments = AttentionExact {
            step: site.header,
            tokens: token_rows(site),
            qkv: self.buffer(site, operands.qkv),
            layer: Cache::of(BodyId(site.body)),
            out: self.buffer(site, operands.out),
        };
        let mut grid = self.grid_of_rows(site, 1);
        grid[1] = Extent::Fixed(count(shape.heads));
        let instance = Instance {
            shared: shape.exact_shared(),
            bytes: vec![operands.kv_block],
            ..Instance::new(self.kernel_name(site, ""), constants, 32 * EXACT_WARPS)
        };
        self.launch(site, instance, grid, arguments)
    }
}

/// Maps rows to sequences. In decode, row i is sequence i.
fn token_rows(site: Site) -> Tokens {
    if site.program.regime == Regime::Decode { Tokens::NULL } else { Tokens::STEP }
}
