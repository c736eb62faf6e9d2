//! Phases of towers, and of a text model's rows of images: rules, operands, cost.

use super::super::{Kind, PhaseKind, products};
use super::graph::{self, MergePatches as MergeOp, Merged, PatchTurn, PositionTable};
use crate::emit::call::Call;
use crate::emit::names::Scratch;
use crate::graph::Op;
use crate::passes::launch::{Launcher, Site};
use crate::passes::lower::{Fusion, Lowering, Slice};
use crate::passes::{PassError, pass_error};
use crate::plan::Packing::Stacked;
use crate::plan::cuda::Launch;
use crate::plan::{BufferId, FieldId, Plan, Work};
use crate::spec::types::Activation;
use proc_macro2::TokenStream;

/// The fields of a layer norm, and what is added to its variance.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LayerNorm {
    /// Multiplies what is normed.
    pub weight: FieldId,
    /// Added behind that.
    pub bias: FieldId,
    /// Added to the variance.
    pub eps: f32,
}

impl LayerNorm {
    fn of(it: &Lowering, value: &str) -> LayerNorm {
        let [weight, bias] = it.own(value);
        LayerNorm { weight, bias, eps: it.block_op::<graph::LayerNorm>(value).eps }
    }
}

/// `out = place(matrix * round(pixels) + bias)`: a patch's row with what says where it is.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct EmbedPatches {
    /// Rows of pixels.
    pub pixels: BufferId,
    /// Matrix of the product.
    pub matrix: FieldId,
    /// Its bias, if it has one.
    pub bias: Option<FieldId>,
    /// What follows.
    pub place: Place,
    /// The tower's residual stream.
    pub out: BufferId,
}

/// What follows the product with pixels.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Place {
    /// Entries of a table of positions are added.
    Table(FieldId, PositionTable),
    /// An RMS norm: positions are those of the rotation alone.
    Norm(FieldId),
}

/// `out = activation(matrix * round(layer-norm(x)) + bias)`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ProjectPatches {
    /// Input, before the norm.
    pub x: BufferId,
    /// Norm before the product.
    pub norm: LayerNorm,
    /// One or more matrices stacked.
    pub matrix: FieldId,
    /// Biases of all of them.
    pub bias: Option<FieldId>,
    /// Activation of the results, if there is one.
    pub activation: Option<Activation>,
    /// Results side by side.
    pub out: BufferId,
}

/// `out = activation(matrix * round(x) + bias)`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Activate {
    /// Input of the product.
    pub x: BufferId,
    /// Matrix of the product.
    pub matrix: FieldId,
    /// Its bias, if it has one.
    pub bias: Option<FieldId>,
    /// Activation of the results.
    pub activation: Activation,
    /// Where they go.
    pub out: BufferId,
}

/// Norms of heads, rotation by the places of patches, attention within segments.
#[derive(Clone, Debug, PartialEq)]
pub struct AttendPatches {
    /// q, k and v side by side.
    pub qkv: BufferId,
    /// Norms of the query heads and of the key heads.
    pub norms: Option<[FieldId; 2]>,
    /// Added to the mean square in a norm of value heads without a weight, if they are normed.
    pub v_norm: Option<f32>,
    /// Every pair of a head.
    pub turns: Vec<PatchTurn>,
    /// Heads in the row.
    pub heads: usize,
    /// Width of one head.
    pub head_dim: usize,
    /// Multiplies the scores.
    pub scale: f32,
    /// One context vector a head.
    pub out: BufferId,
}

/// `out = the rows of a block's patches, normed, in one row`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MergePatches {
    /// Rows of patches.
    pub x: BufferId,
    /// Norm of each.
    pub norm: MergeNorm,
    /// How they stand in the row: anything but their mean.
    pub form: Merged,
    /// Rows of image tokens.
    pub out: BufferId,
}

/// What norms a patch's row before it is merged.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum MergeNorm {
    /// It is merged as it is.
    None,
    /// A layer norm.
    Layer(LayerNorm),
    /// An RMS norm.
    Rms(FieldId),
}

/// `out = normalise(standardise(factor * mean of a block's patches))`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PoolPatches {
    /// Rows of patches.
    pub x: BufferId,
    /// Multiplies the mean.
    pub factor: f32,
    /// Bias and scale by which the product is standardised, if it is.
    pub standard: Option<[FieldId; 2]>,
    /// Added to the mean square.
    pub eps: f32,
    /// Rows of image tokens.
    pub out: BufferId,
}

/// `out = table[tokens]`, or that multiplied by a number, and the rows of images where tokens stand for them.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct EmbedImages {
    /// Embedding table.
    pub table: FieldId,
    /// Multiplies embeddings.
    pub scale: Option<f32>,
    /// Residual stream.
    pub out: BufferId,
}

/// `residual += the rows that a tap gave of images`, where tokens stand for them.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AddImageRows {
    /// Residual stream, read and written.
    pub residual: BufferId,
    /// Whose rows are added.
    pub tap: usize,
}

impl Kind for EmbedPatches {
    fn name(&self) -> &'static str {
        "embed-patches"
    }

    fn buffers(&self) -> (Vec<BufferId>, Vec<BufferId>) {
        (vec![self.pixels], vec![self.out])
    }

    fn fields(&self) -> Vec<FieldId> {
        let (Place::Table(placed, _) | Place::Norm(placed)) = self.place;
        std::iter::once(self.matrix).chain(self.bias).chain([placed]).collect()
    }

    fn streams(&self) -> Option<FieldId> {
        Some(self.matrix)
    }

    fn work(&self, work: &mut Work) {
        work.product(self.matrix, work.rows(self.out));
    }

    fn cpu(&self, call: &Call) -> TokenStream {
        self.call(call)
    }

    fn cuda(&self, launcher: &mut Launcher, site: Site, launches: &mut Vec<Launch>) -> Result<(), PassError> {
        self.launch(launcher, site, launches)
    }
}

impl Kind for ProjectPatches {
    fn name(&self) -> &'static str {
        "project-patches"
    }

    fn buffers(&self) -> (Vec<BufferId>, Vec<BufferId>) {
        (vec![self.x], vec![self.out])
    }

    fn fields(&self) -> Vec<FieldId> {
        [self.norm.weight, self.norm.bias, self.matrix].into_iter().chain(self.bias).collect()
    }

    fn streams(&self) -> Option<FieldId> {
        Some(self.matrix)
    }

    fn work(&self, work: &mut Work) {
        work.product(self.matrix, work.rows(self.out));
    }

    fn cpu(&self, call: &Call) -> TokenStream {
        self.call(call)
    }

    fn cuda(&self, launcher: &mut Launcher, site: Site, launches: &mut Vec<Launch>) -> Result<(), PassError> {
        self.launch(launcher, site, launches)
    }
}

impl Kind for Activate {
    fn name(&self) -> &'static str {
        "activate"
    }

    fn buffers(&self) -> (Vec<BufferId>, Vec<BufferId>) {
        (vec![self.x], vec![self.out])
    }

    fn fields(&self) -> Vec<FieldId> {
        std::iter::once(self.matrix).chain(self.bias).collect()
    }

    fn streams(&self) -> Option<FieldId> {
        Some(self.matrix)
    }

    fn work(&self, work: &mut Work) {
        work.product(self.matrix, work.rows(self.out));
    }

    fn cpu(&self, call: &Call) -> TokenStream {
        self.call(call)
    }

    fn cuda(&self, launcher: &mut Launcher, site: Site, launches: &mut Vec<Launch>) -> Result<(), PassError> {
        self.launch(launcher, site, launches)
    }
}

impl Kind for AttendPatches {
    fn name(&self) -> &'static str {
        "attend-patches"
    }

    fn buffers(&self) -> (Vec<BufferId>, Vec<BufferId>) {
        (vec![self.qkv], vec![self.out])
    }

    fn fields(&self) -> Vec<FieldId> {
        self.norms.into_iter().flatten().collect()
    }

    fn work(&self, work: &mut Work) {
        let patches = work.rows(self.out);
        let products = (2 * patches * patches * self.heads * self.head_dim) as f64;
        match work
            .target
            .tower
            .as_ref()
            .map(|vision| vision.compute)
            .filter(|_| work.target.hardware.cuda().is_some())
        {
            None => work.cost.f32_products = products,
            Some(compute) if compute.is_exact() => work.cost.f64_products = products,
            Some(_) => work.cost.bf16_products = products,
        }
    }

    fn scratch(&self, _: &Plan) -> Option<Scratch> {
        Some(AttendPatches::scratch(self))
    }

    fn cpu(&self, call: &Call) -> TokenStream {
        self.call(call)
    }

    fn cuda(&self, launcher: &mut Launcher, site: Site, launches: &mut Vec<Launch>) -> Result<(), PassError> {
        self.launch(launcher, site, launches)
    }
}

impl Kind for MergePatches {
    fn name(&self) -> &'static str {
        "merge-patches"
    }

    fn buffers(&self) -> (Vec<BufferId>, Vec<BufferId>) {
        (vec![self.x], vec![self.out])
    }

    fn fields(&self) -> Vec<FieldId> {
        match self.norm {
            MergeNorm::None => vec![],
            MergeNorm::Layer(norm) => vec![norm.weight, norm.bias],
            MergeNorm::Rms(norm) => vec![norm],
        }
    }

    fn work(&self, _: &mut Work) {}

    fn cpu(&self, call: &Call) -> TokenStream {
        self.call(call)
    }

    fn cuda(&self, launcher: &mut Launcher, site: Site, launches: &mut Vec<Launch>) -> Result<(), PassError> {
        launches.push(self.launch(launcher, site));
        Ok(())
    }
}

impl Kind for PoolPatches {
    fn name(&self) -> &'static str {
        "pool-patches"
    }

    fn buffers(&self) -> (Vec<BufferId>, Vec<BufferId>) {
        (vec![self.x], vec![self.out])
    }

    fn fields(&self) -> Vec<FieldId> {
        self.standard.into_iter().flatten().collect()
    }

    fn work(&self, _: &mut Work) {}

    fn cpu(&self, call: &Call) -> TokenStream {
        self.call(call)
    }

    fn cuda(&self, launcher: &mut Launcher, site: Site, launches: &mut Vec<Launch>) -> Result<(), PassError> {
        launches.push(self.launch(launcher, site));
        Ok(())
    }
}

impl Kind for EmbedImages {
    fn name(&self) -> &'static str {
        "embed-images"
    }

    fn buffers(&self) -> (Vec<BufferId>, Vec<BufferId>) {
        (vec![], vec![self.out])
    }

    fn fields(&self) -> Vec<FieldId> {
        vec![self.table]
    }

    fn work(&self, work: &mut Work) {
        work.rows_of(self.table);
    }

    fn cpu(&self, call: &Call) -> TokenStream {
        self.call(call)
    }

    fn cuda(&self, launcher: &mut Launcher, site: Site, launches: &mut Vec<Launch>) -> Result<(), PassError> {
        self.launch(launcher, site, launches);
        Ok(())
    }
}

impl Kind for AddImageRows {
    fn name(&self) -> &'static str {
        "add-image-rows"
    }

    fn buffers(&self) -> (Vec<BufferId>, Vec<BufferId>) {
        (vec![self.residual], vec![self.residual])
    }

    fn fields(&self) -> Vec<FieldId> {
        vec![]
    }

    fn work(&self, _: &mut Work) {}

    fn cpu(&self, call: &Call) -> TokenStream {
        self.call(call)
    }

    fn cuda(&self, launcher: &mut Launcher, site: Site, launches: &mut Vec<Launch>) -> Result<(), PassError> {
        self.launch(launcher, site, launches);
        Ok(())
    }
}

/// A rule without matrices or buffers of its own.
const fn plain(
    name: &'static str,
    pattern: &'static str,
    lower: fn(&Lowering) -> Result<PhaseKind, PassError>,
) -> Fusion {
    Fusion { name, pattern, matrices: &[], buffers: &[], lower }
}

/// The fusion rules of towers and of rows of images.
pub const FUSIONS: &[Fusion] = &[
    Fusion {
        name: "embed-patches",
        pattern: "e = linear(x); out = patch-positions(e)",
        matrices: &[(&["e"], Stacked)],
        buffers: &[],
        lower: |it| {
            let [table] = it.own("out");
            let form = it.block_op::<graph::PatchPositions>("out").form;
            embed_patches(it, Place::Table(table, form))
        },
    },
    Fusion {
        name: "embed-patches-normed",
        pattern: "e = linear(x); out = rms-norm(e) where x is not taps, out is handed on",
        matrices: &[(&["e"], Stacked)],
        buffers: &[],
        lower: |it| embed_patches(it, Place::Norm(it.norm("out"))),
    },
    Fusion {
        name: "project-patches",
        pattern: "n = layer-norm(x); q = linear(n); k = linear(n); v = linear(n) \
                  where v feeds segment-attention",
        matrices: &[(&["q", "k", "v"], Stacked)],
        buffers: &[],
        lower: |it| project(it, "q", None, "q"),
    },
    Fusion {
        name: "project-patches-by-rms-norm",
        pattern: "n = rms-norm(x); q = linear(n); k = linear(n); v = linear(n) \
                  where v feeds segment-attention",
        matrices: &[(&["q", "k", "v"], Stacked)],
        buffers: &[],
        lower: |it| products::project(it, "q"),
    },
    Fusion {
        name: "activated-behind-a-layer-norm",
        pattern: "n = layer-norm(x); u = linear(n); out = activate(u)",
        matrices: &[(&["u"], Stacked)],
        buffers: &[],
        lower: |it| project(it, "u", Some(activation(it, "out")), "out"),
    },
    Fusion {
        name: "activated-merged",
        pattern: "u = linear(x); out = activate(u) where x is merge-patches",
        matrices: &[(&["u"], Stacked)],
        buffers: &[],
        lower: activate,
    },
    Fusion {
        name: "activated-product",
        pattern: "u = linear(x); out = activate(u) where x is linear",
        matrices: &[(&["u"], Stacked)],
        buffers: &[],
        lower: activate,
    },
    Fusion {
        name: "linear-of-merged",
        pattern: "out = linear(x) where x is merge-patches, out feeds linear",
        matrices: &[(&["out"], Stacked)],
        buffers: &[],
        lower: products::stored,
    },
    Fusion {
        name: "linear-of-activated",
        pattern: "out = linear(x) where x is activate, out is handed on",
        matrices: &[(&["out"], Stacked)],
        buffers: &[],
        lower: products::stored,
    },
    Fusion {
        name: "linear-of-pooled",
        pattern: "out = linear(x) where x is normalise, out is handed on",
        matrices: &[(&["out"], Stacked)],
        buffers: &[],
        lower: products::stored,
    },
    // What is normed before it is added to the residual stream.
    Fusion {
        name: "linear-of-segment-attention",
        pattern: "out = linear(x) where x is segment-attention, out feeds rms-norm",
        matrices: &[(&["out"], Stacked)],
        buffers: &[],
        lower: products::stored,
    },
    plain(
        "attend-patches",
        "qr = patch-rotary(q); kr = patch-rotary(k); out = segment-attention(qr, kr, v) \
         where q is linear, k is linear",
        |it| attend(it, None, None),
    ),
    plain(
        "attend-patches-normed",
        "qn = rms-norm(q); kn = rms-norm(k); vn = normalise(v); qr = patch-rotary(qn); \
         kr = patch-rotary(kn); out = segment-attention(qr, kr, vn)",
        |it| {
            let Op::Normalise { eps, .. } = *it.op("vn") else { unreachable!("the rule says normalise") };
            attend(it, Some([it.norm("qn"), it.norm("kn")]), Some(eps))
        },
    ),
    plain("merge-patches", "out = merge-patches(x) where out feeds layer-norm", |it| {
        merge(it, MergeNorm::None)
    }),
    plain("merge-patches-behind-a-layer-norm", "n = layer-norm(x); out = merge-patches(n)", |it| {
        merge(it, MergeNorm::Layer(LayerNorm::of(it, "n")))
    }),
    plain("merge-patches-behind-an-rms-norm", "n = rms-norm(x); out = merge-patches(n)", |it| {
        merge(it, MergeNorm::Rms(it.norm("n")))
    }),
    plain("pool-patches", "m = merge-patches(x); s = scale(m); out = normalise(s)", |it| pool(it, None)),
    plain(
        "pool-patches-standardised",
        "m = merge-patches(x); s = scale(m); d = standardise(s); out = normalise(d)",
        |it| pool(it, Some(it.own("d"))),
    ),
    Fusion {
        name: "embed-images",
        pattern: "e = embedding(); out = image-rows(e) where out is handed on",
        matrices: &[(&["e"], Stacked)],
        buffers: &[],
        lower: |it| Ok(EmbedImages { table: it.matrix("e"), scale: None, out: it.whole("out")? }.into()),
    },
    Fusion {
        name: "embed-images-scaled",
        pattern: "e = embedding(); s = scale(e); out = image-rows(s)",
        matrices: &[(&["e"], Stacked)],
        buffers: &[],
        lower: |it| {
            let scale = Some(factor(it, "s"));
            Ok(EmbedImages { table: it.matrix("e"), scale, out: it.whole("out")? }.into())
        },
    },
    plain("add-image-rows", "out = add-image-rows(residual)", |it| {
        let tap = it.block_op::<graph::AddImageRows>("out").tap;
        Ok(AddImageRows { residual: it.whole("residual")?, tap }.into())
    }),
];

fn activation(it: &Lowering, value: &str) -> Activation {
    let Op::Activate { activation } = *it.op(value) else { unreachable!("the rule says activate") };
    activation
}

fn factor(it: &Lowering, value: &str) -> f32 {
    let Op::Scale { factor } = *it.op(value) else { unreachable!("the rule says scale") };
    factor
}

fn embed_patches(it: &Lowering, place: Place) -> Result<PhaseKind, PassError> {
    let (pixels, out) = (it.whole("x")?, it.whole("out")?);
    Ok(EmbedPatches { pixels, matrix: it.matrix("e"), bias: it.bias("e"), place, out }.into())
}

/// The projections behind a layer norm, the first of which is `first`; `out` is where they go.
fn project(
    it: &Lowering,
    first: &str,
    activation: Option<Activation>,
    out: &str,
) -> Result<PhaseKind, PassError> {
    let (x, norm, out) = (it.whole("x")?, LayerNorm::of(it, "n"), it.whole(out)?);
    Ok(ProjectPatches { x, norm, matrix: it.matrix(first), bias: it.bias(first), activation, out }.into())
}

fn activate(it: &Lowering) -> Result<PhaseKind, PassError> {
    let (x, out, activation) = (it.whole("x")?, it.whole("out")?, activation(it, "out"));
    Ok(Activate { x, matrix: it.matrix("u"), bias: it.bias("u"), activation, out }.into())
}

fn attend(it: &Lowering, norms: Option<[FieldId; 2]>, v_norm: Option<f32>) -> Result<PhaseKind, PassError> {
    let graph::SegmentAttention { heads, head_dim, scale } = *it.block_op("out");
    let [turns, of_keys] = ["qr", "kr"].map(|value| &it.block_op::<graph::PatchRotary>(value).turns);
    if turns != of_keys {
        return Err(pass_error!("q and k of `{}` turn by different angles", it.body.name));
    }
    let qkv = it.whole("q")?;
    let side_by_side = [("k", 1), ("v", 2)]
        .into_iter()
        .all(|(value, at)| it.slice(value) == Slice { buffer: qkv, column: at * heads * head_dim });
    if !side_by_side {
        return Err(pass_error!("q, k and v of `{}` do not stand side by side", it.body.name));
    }
    let (turns, out) = (turns.clone(), it.whole("out")?);
    Ok(AttendPatches { qkv, norms, v_norm, turns, heads, head_dim, scale, out }.into())
}

fn merge(it: &Lowering, norm: MergeNorm) -> Result<PhaseKind, PassError> {
    let (x, out, form) = (it.whole("x")?, it.whole("out")?, it.block_op::<MergeOp>("out").form);
    if form == Merged::Mean {
        return Err(pass_error!("a mean of patches of `{}` is not scaled and normed", it.body.name));
    }
    Ok(MergePatches { x, norm, form, out }.into())
}

fn pool(it: &Lowering, standard: Option<[FieldId; 2]>) -> Result<PhaseKind, PassError> {
    let (x, out, factor) = (it.whole("x")?, it.whole("out")?, factor(it, "s"));
    let Op::Normalise { eps, groups: 1 } = *it.op("out") else {
        return Err(pass_error!("pooled patches of `{}` are normed in parts", it.body.name));
    };
    if it.block_op::<MergeOp>("m").form != Merged::Mean {
        return Err(pass_error!("merged patches of `{}` are normed and no mean", it.body.name));
    }
    Ok(PoolPatches { x, factor, standard, eps, out }.into())
}
