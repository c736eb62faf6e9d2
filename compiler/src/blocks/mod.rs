//! The blocks that layers are made of, one folder each: keys in MODEL.toml and tensors (`spec.rs`), keys and
//! names of Hugging Face (`import.rs`), ops and the layers built from them (`graph.rs`), the reference
//! (`reference.rs`), phases (`phases.rs`), and the phases' calls, launches and kernels (`cpu.rs`, `cuda.rs`,
//! `kernels.rs`).
//!
//! Nothing outside this folder lists blocks: the list at the end of this file generates [`Mixer`], [`Ffn`],
//! [`BlockOp`] and [`PhaseKind`].

pub mod attention;
pub mod delta_net;
pub mod dflash;
pub mod draft;
pub mod ends;
pub mod exchange;
pub mod experts;
pub mod latent_attention;
pub mod mamba2;
pub mod products;
pub mod recurrent;
pub mod rows;
pub mod vision;

pub use attention::{Attention, KeepContext};
pub use delta_net::{Delta, ProjectDelta};
pub use dflash::FuseTaps;
pub use draft::{DraftEmbed, Propose};
pub use ends::{Embed, Select};
pub use exchange::{Gather, Sum, Zeros};
pub use experts::{Chosen, Combine, Experts, Judge, Latent, SharedDown, SharedUp};
pub use latent_attention::LatentAttention;
pub use mamba2::Mamba2;
pub use products::{Accumulate, Gated, Linear, Project, ProjectApart};
pub use rows::{AddNormed, Cap, Scale, SumNormed};
pub use vision::{
    Activate, AddImageRows, AttendPatches, EmbedImages, EmbedPatches, MergePatches, PoolPatches,
    ProjectPatches,
};

use crate::emit::call::Call;
use crate::emit::names::{Scratch, Working};
use crate::graph::{
    Body, BodyBuilder, Builder, Op, RankPart, RotaryFrequencies, ValueId, VisionGraph, Weight, WeightId,
};
use crate::import::names::LayerTensor;
use crate::kernels::Signature;
use crate::passes::PassError;
use crate::passes::launch::{Launcher, Site};
use crate::passes::lower::Fusion;
use crate::plan::cuda::{Cut, Launch};
use crate::plan::{BufferId, FieldId, Keeps, KvHeads, Plan, Work};
use crate::reference::Evaluation;
use crate::spec::LayerTensors;
use crate::spec::diagnostic::Source;
use crate::spec::reader::Table;
use crate::spec::types::{Activation, FileTensor, Model, Ranks, Target, Vision};
use monomorph_abi::cut::Segment;
use monomorph_formats::cached::KvFormats;
use proc_macro2::TokenStream;

/// A kind of phase: its operands and how each backend runs them.
pub(crate) trait Kind {
    /// Name in reports.
    fn name(&self) -> &'static str;

    /// Buffers read, then buffers written; the last one written is the phase's result.
    fn buffers(&self) -> (Vec<BufferId>, Vec<BufferId>);

    /// Fields read.
    fn fields(&self) -> Vec<FieldId>;

    /// The matrix it streams, which reports name the phase after.
    fn streams(&self) -> Option<FieldId> {
        None
    }

    /// The buffer whose rows it selects, and the buffer that has those rows afterwards.
    fn selects(&self) -> Option<(BufferId, BufferId)> {
        None
    }

    /// Values of a row that it sends to every other rank.
    fn sends(&self, _: &Plan) -> Option<usize> {
        None
    }

    /// The matrix of experts that it multiplies by, and how many of them a token chooses.
    fn chooses(&self) -> Option<(FieldId, usize)> {
        None
    }

    /// Adds the bytes and products of the phase beyond its activations.
    fn work(&self, work: &mut Work);

    /// Matrices whose input is staged on a CPU.
    fn staged(&self) -> Vec<FieldId> {
        self.streams().into_iter().collect()
    }

    /// Matrices that would be one, were their formats alike, with a product each: of CPUs only.
    fn apart(&self) -> Vec<FieldId> {
        Vec::new()
    }

    /// Further scratch buffers on a CPU.
    fn working(&self, _: &Plan) -> Vec<Working> {
        Vec::new()
    }

    /// Scratch on a CPU that phases of other bodies do not share.
    fn scratch(&self, _: &Plan) -> Option<Scratch> {
        None
    }

    /// State its layers keep of a sequence from step to step.
    fn keeps(&self, _: &Target) -> Option<Keeps> {
        None
    }

    /// Rotary frequencies of its heads: their cosines and sines are computed before the layers.
    fn frequencies(&self) -> Option<&RotaryFrequencies> {
        None
    }

    /// Whether its decode kernel takes all registers of a multiprocessor.
    fn fills_registers(&self) -> bool {
        false
    }

    /// Whether its kernel in this program sums over all ranks what the ranks have parts of.
    ///
    /// # Errors
    /// When no kernel takes its formats.
    fn sums(&self, _: &Launcher, _: Site) -> Result<bool, PassError> {
        Ok(false)
    }

    /// What cuts one of its kernels, if a tuning may; by default a product's.
    fn cut(&self, kernel: &Signature) -> Option<Cut> {
        products::cut(kernel)
    }

    /// Its call on a CPU.
    fn cpu(&self, call: &Call) -> TokenStream;

    /// Its launches in a program of a CUDA device.
    ///
    /// # Errors
    /// When no kernel takes its formats, or none fits the card.
    fn cuda(&self, launcher: &mut Launcher, site: Site, launches: &mut Vec<Launch>) -> Result<(), PassError>;
}

/// An op that belongs to one block. It computes row by row unless stated otherwise, in f32.
pub(crate) trait Operation {
    /// Name in rules and reports.
    const NAME: &'static str;
    /// What of it the CUDA backend has no kernels for yet, if anything.
    fn unbuilt(&self) -> Option<&'static str> {
        None
    }

    /// Heads and formats of the keys and values that it keeps of a token, where it reads those of earlier
    /// ones.
    fn kv(&self) -> Option<(usize, KvFormats)> {
        None
    }

    /// The weights it reads: those of its fields, unless it has others.
    fn weights(&self) -> Vec<WeightId> {
        self.fields().into_iter().map(|(weight, _)| weight).collect()
    }

    /// Weights that are stored as fields of their own, outside any stacked matrix, and in what form.
    fn fields(&self) -> Vec<(WeightId, FieldForm)> {
        Vec::new()
    }

    /// Whether the buffer of its result holds nothing else, ever.
    const ALONE: bool = false;

    /// What one of these ranks does of it. By default every rank does all of it.
    ///
    /// # Errors
    /// Says why it cannot be shared out.
    fn share(&self, _weights: &[Weight], _ranks: Ranks) -> Result<Share<Self>, String>
    where
        Self: Clone,
    {
        Ok(Share { op: self.clone(), inputs: Vec::new(), output: Split::Whole, cuts: Vec::new() })
    }
}

/// A rank's share of an op.
pub(crate) struct Share<T> {
    /// The op, with the rank's own sizes.
    pub(crate) op: T,
    /// The operands' splits, in order; those left out are whole.
    pub(crate) inputs: Vec<Split>,
    /// The result's split.
    pub(crate) output: Split,
    /// The parts of its weights that a rank holds; those left out are whole.
    pub(crate) cuts: Vec<(WeightId, RankPart)>,
}

/// What a rank has of a value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Split {
    /// All of it, with the same bits as every other rank.
    Whole,
    /// These columns.
    Columns(Vec<Segment>),
    /// The rows of the chosen experts that it holds.
    Chosen,
    /// A part of a sum: the value is the sum over all ranks.
    Partial,
}

impl Split {
    /// Columns shared out by equal units.
    pub(crate) fn units(units: usize, unit: usize) -> Split {
        Split::Columns(vec![Segment { units, unit }])
    }
}

/// The reference of an op.
pub(crate) trait Computed {
    /// Computes its result.
    fn run(&self, it: &mut Evaluation) -> Vec<f32>;
}

/// Form of a weight that an op reads directly.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FieldForm {
    /// As stored, a vector of f32.
    Vector,
    /// As stored, rows of a table that nothing multiplies.
    Table,
    /// `[channels, taps]`.
    Convolution,
    /// What makes keys and values of a latent: the rows of each head's keys, then those of its values.
    Heads {
        /// Number of heads.
        heads: usize,
        /// Rows of a head's keys.
        key_dim: usize,
    },
}

/// A token mixer, as MODEL.toml declares it.
pub(crate) trait MixerSpec: Sized {
    /// Value of `kind`.
    const KIND: &'static str;
    /// Whether there is anything to mix: with a norm before it, and added to the residual stream.
    const MIXES: bool = true;
    /// Whether its state decays, by a rate of each head.
    const DECAYS: bool = false;

    /// Reads `[mixer.*]`.
    fn read(source: &Source, table: Table) -> Option<Self>;

    /// Prints the table without its kind; `table` is the name of the section.
    fn write(&self, table: &str) -> String;

    /// Adds its tensors, in order of use.
    fn tensors(&self, list: &mut LayerTensors);

    /// Heads of the K/V cache it keeps, if any.
    fn kv(&self) -> Option<KvHeads> {
        None
    }
}

/// The feed-forward part after a mixer, as MODEL.toml declares it; methods as in [`MixerSpec`].
pub(crate) trait FfnSpec: Sized {
    const KIND: &'static str;
    /// Whether there is anything after the mixer: with a norm before it, and added to the residual stream.
    const FOLLOWS: bool = true;
    fn read(source: &Source, table: Table) -> Option<Self>;
    fn write(&self) -> String;
    fn tensors(&self, list: &mut LayerTensors);
}

/// A mixer or a feed-forward part in checkpoints of Hugging Face.
pub(crate) trait Placed {
    /// Finds one of its tensors; `None` if the tensor is not its own.
    fn place(&self, tensor: &LayerTensor) -> Option<FileTensor>;
}

/// A mixer or a feed-forward part as ops.
pub(crate) trait Built {
    /// Adds its ops. `x` is normed; the results are added to the residual stream, one after another.
    fn build(&self, graph: &mut Builder, body: &mut BodyBuilder, x: ValueId) -> Vec<ValueId>;
}

/// An enum with one variant per type.
macro_rules! closed {
    ($(#[$attribute:meta])* $enum:ident: $($name:ident($type:ty),)*) => {
        $(#[$attribute])*
        #[derive(Clone, Debug, PartialEq)]
        #[expect(missing_docs, reason = "the types say what each is")]
        pub enum $enum {
            $($name($type),)*
        }

        $(
            impl From<$type> for $enum {
                fn from(it: $type) -> $enum {
                    $enum::$name(it)
                }
            }
        )*
    };
}

/// The enum of all kinds of `[mixer.*]` or `[ffn]`.
macro_rules! kinds {
    ($enum:ident: $($name:ident($type:ty),)*) => {
        impl $enum {
            /// Readers of all kinds, by name.
            pub(crate) const KINDS: &'static [(&'static str, fn(&Source, Table) -> Option<$enum>)] =
                &[$((<$type>::KIND, |source, table| <$type>::read(source, table).map($enum::$name))),*];

            /// Value of `kind` in MODEL.toml.
            pub(crate) fn kind(&self) -> &'static str {
                match self {
                    $($enum::$name(_) => <$type>::KIND,)*
                }
            }

            /// See [`MixerSpec`].
            pub(crate) fn tensors(&self, list: &mut LayerTensors) {
                match self {
                    $($enum::$name(it) => it.tensors(list),)*
                }
            }

            /// See [`Placed`].
            pub(crate) fn place(&self, tensor: &LayerTensor) -> Option<FileTensor> {
                match self {
                    $($enum::$name(it) => it.place(tensor),)*
                }
            }

            /// See [`Built`].
            pub(crate) fn build(
                &self,
                graph: &mut Builder,
                body: &mut BodyBuilder,
                x: ValueId,
            ) -> Vec<ValueId> {
                match self {
                    $($enum::$name(it) => it.build(graph, body, x),)*
                }
            }
        }
    };
}

macro_rules! blocks {
    ($($block:ident {
        $(mixer $mixer:ident;)?
        $(ffns $($ffn:ident),*;)?
        $(ops $($op:ident),*;)?
        phases $($phase:ident),*;
    })*) => {
        /// The fusion rules of all blocks.
        pub fn fusions() -> impl Iterator<Item = &'static Fusion> {
            [$($block::FUSIONS),*].into_iter().flatten()
        }

        /// The kernels that all blocks declare.
        pub(crate) fn kernels() -> impl Iterator<Item = &'static Signature> {
            [$($block::kernels::KERNELS),*].into_iter().flatten().copied()
        }

        closed! {
            /// A token mixer: a kind of `[mixer.*]`.
            Mixer: $($($mixer($block::spec::$mixer),)?)*
        }

        kinds!(Mixer: $($($mixer($block::spec::$mixer),)?)*);

        impl Mixer {
            /// See [`MixerSpec::write`].
            pub(crate) fn write(&self, table: &str) -> String {
                match self {
                    $($(Mixer::$mixer(it) => it.write(table),)?)*
                }
            }

            /// Heads of the K/V cache it keeps, if any.
            pub fn kv(&self) -> Option<KvHeads> {
                match self {
                    $($(Mixer::$mixer(it) => it.kv(),)?)*
                }
            }

            /// See [`MixerSpec::MIXES`].
            pub fn mixes(&self) -> bool {
                match self {
                    $($(Mixer::$mixer(_) => <$block::spec::$mixer>::MIXES,)?)*
                }
            }

            /// See [`MixerSpec::DECAYS`].
            pub(crate) fn decays(&self) -> bool {
                match self {
                    $($(Mixer::$mixer(_) => <$block::spec::$mixer>::DECAYS,)?)*
                }
            }
        }

        closed! {
            /// The feed-forward part after a mixer: a kind of `[ffn]`.
            Ffn: $($($($ffn($block::spec::$ffn),)*)?)*
        }

        kinds!(Ffn: $($($($ffn($block::spec::$ffn),)*)?)*);

        impl Ffn {
            /// See [`FfnSpec`].
            pub(crate) fn write(&self) -> String {
                match self {
                    $($($(Ffn::$ffn(it) => it.write(),)*)?)*
                }
            }

            /// See [`FfnSpec::FOLLOWS`].
            pub fn follows(&self) -> bool {
                match self {
                    $($($(Ffn::$ffn(_) => <$block::spec::$ffn>::FOLLOWS,)*)?)*
                }
            }
        }

        closed! {
            /// The ops that belong to a single block.
            BlockOp: $($($($op($block::graph::$op),)*)?)*
        }

        impl BlockOp {
            /// The names that rules may use.
            pub(crate) const NAMES: &'static [&'static str] = &[$($($($block::graph::$op::NAME,)*)?)*];

            /// Name in rules and reports.
            pub fn name(&self) -> &'static str {
                match self {
                    $($($(BlockOp::$op(_) => $block::graph::$op::NAME,)*)?)*
                }
            }

            /// See [`Operation::kv`].
            pub(crate) fn kv(&self) -> Option<(usize, KvFormats)> {
                match self {
                    $($($(BlockOp::$op(it) => it.kv(),)*)?)*
                }
            }

            /// Whether it reads keys and values of earlier tokens.
            pub fn attends(&self) -> bool {
                self.kv().is_some()
            }

            /// See [`Operation::unbuilt`].
            pub(crate) fn unbuilt(&self) -> Option<&'static str> {
                match self {
                    $($($(BlockOp::$op(it) => it.unbuilt(),)*)?)*
                }
            }

            /// Weights it reads.
            pub fn weights(&self) -> Vec<WeightId> {
                match self {
                    $($($(BlockOp::$op(it) => it.weights(),)*)?)*
                }
            }

            /// See [`Operation::fields`].
            pub(crate) fn fields(&self) -> Vec<(WeightId, FieldForm)> {
                match self {
                    $($($(BlockOp::$op(it) => it.fields(),)*)?)*
                }
            }

            /// See [`Operation::ALONE`].
            pub(crate) fn alone(&self) -> bool {
                match self {
                    $($($(BlockOp::$op(_) => $block::graph::$op::ALONE,)*)?)*
                }
            }

            /// See [`Operation::share`].
            pub(crate) fn share(&self, weights: &[Weight], ranks: Ranks) -> Result<Share<BlockOp>, String> {
                match self {
                    $($($(BlockOp::$op(it) => it.share(weights, ranks).map(|share| Share {
                        op: share.op.into(),
                        inputs: share.inputs,
                        output: share.output,
                        cuts: share.cuts,
                    }),)*)?)*
                }
            }

            /// See [`Computed::run`].
            pub(crate) fn run(&self, it: &mut Evaluation) -> Vec<f32> {
                match self {
                    $($($(BlockOp::$op(op) => op.run(it),)*)?)*
                }
            }
        }

        $($($(
            impl From<$block::graph::$op> for Op {
                fn from(op: $block::graph::$op) -> Op {
                    Op::Block(op.into())
                }
            }

            impl<'a> TryFrom<&'a Op> for &'a $block::graph::$op {
                type Error = &'static str;

                fn try_from(op: &'a Op) -> Result<Self, Self::Error> {
                    match op {
                        Op::Block(BlockOp::$op(it)) => Ok(it),
                        other => Err(other.name()),
                    }
                }
            }
        )*)?)*

        closed! {
            /// All kinds of phase, with their operands.
            PhaseKind: $($($phase($phase),)*)*
        }

        impl PhaseKind {
            /// The implementation of the variant.
            pub(crate) fn kind(&self) -> &dyn Kind {
                match self {
                    $($(PhaseKind::$phase(it) => it,)*)*
                }
            }
        }
    };
}

/// A gated feed-forward part without biases.
pub(crate) fn gated(width: usize, activation: Activation) -> Ffn {
    products::spec::Gated { width, activation, bias: false }.into()
}

/// The graph of a vision tower of `model`.
pub(crate) fn tower(graph: &mut Builder, model: &Model, vision: &Vision) -> VisionGraph {
    vision::tower::build(graph, model, vision)
}

/// Puts the rows of images in place of embeddings; the result is called `name`.
pub(crate) fn image_rows(body: &mut BodyBuilder, name: &str, x: ValueId) -> ValueId {
    vision::tower::image_rows(body, name, x)
}

/// The body behind a layer of the text model that adds what a tap of its tower gives.
pub(crate) fn add_image_rows(model: &Model, tap: usize) -> Body {
    vision::tower::add_image_rows(model, tap)
}

impl Mixer {
    /// Whether it keeps a recurrent state.
    pub fn recurs(&self) -> bool {
        self.mixes() && self.kv().is_none()
    }
}

impl PhaseKind {
    /// Name in reports.
    pub fn name(&self) -> &'static str {
        self.kind().name()
    }

    /// Buffers read, then buffers written; the last one written is the phase's result.
    pub fn buffers(&self) -> (Vec<BufferId>, Vec<BufferId>) {
        self.kind().buffers()
    }

    /// Fields read.
    pub fn fields(&self) -> Vec<FieldId> {
        self.kind().fields()
    }

    /// State its layers keep of a sequence from step to step.
    pub fn keeps(&self, target: &Target) -> Option<Keeps> {
        self.kind().keeps(target)
    }

    /// Whether its work grows with the number of earlier tokens.
    pub fn looks_back(&self, target: &Target) -> bool {
        matches!(self.keeps(target), Some(Keeps::Blocks(..)))
    }

    /// Whether it adds to what a buffer holds.
    pub fn adds(&self) -> bool {
        let (reads, writes) = self.buffers();
        writes.iter().any(|id| reads.contains(id))
    }

    /// Values of a row that it sends to every other rank.
    pub fn sends(&self, plan: &Plan) -> Option<usize> {
        self.kind().sends(plan)
    }

    /// What cuts one of its kernels, if a tuning may.
    pub fn cut(&self, kernel: &Signature) -> Option<Cut> {
        self.kind().cut(kernel)
    }

    /// The buffer of its result.
    pub fn result(&self) -> BufferId {
        *self.buffers().1.last().expect("every phase writes something")
    }
}

blocks! {
    ends {
        phases Embed, Select;
    }
    products {
        mixer NoMixer;
        ffns Gated, Ungated, Nothing;
        phases Project, ProjectApart, Accumulate, Gated, Linear;
    }
    attention {
        mixer Attention;
        ops Attention, KeepContext;
        phases Attention, KeepContext;
    }
    delta_net {
        mixer DeltaNet;
        ops DeltaNet;
        phases ProjectDelta, Delta;
    }
    latent_attention {
        mixer LatentAttention;
        ops LatentAttention;
        phases LatentAttention;
    }
    mamba2 {
        mixer Mamba2;
        ops Mamba2;
        phases Mamba2;
    }
    experts {
        ffns Experts;
        ops Route, ExpertGate, ExpertUp, ExpertDown;
        phases Experts, Judge, Chosen, Combine;
    }
    rows {
        phases AddNormed, SumNormed, Scale, Cap;
    }
    dflash {
        ops Taps;
        phases FuseTaps;
    }
    draft {
        phases DraftEmbed, Propose;
    }
    vision {
        ops LayerNorm, PatchPositions, PatchRotary, SegmentAttention, MergePatches, Standardise, ImageRows,
            AddImageRows;
        phases EmbedPatches, ProjectPatches, Activate, AttendPatches, MergePatches, PoolPatches, EmbedImages,
            AddImageRows;
    }
    exchange {
        ops Zeros, Sum, Total, Gather;
        phases Zeros, Sum, Gather;
    }
}
