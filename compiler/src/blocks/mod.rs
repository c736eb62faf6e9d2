//! What layers are made of, a folder a block: its words in MODEL.toml and its tensors (`spec.rs`), the keys
//! and names of Hugging Face (`import.rs`), its ops and the layers made of them (`graph.rs`), what these
//! compute (`reference.rs`), the phases they become (`phases.rs`), and the calls and launches of those
//! (`cpu.rs`, `cuda.rs`, `kernels.rs`).
//!
//! Nothing outside this folder lists blocks: [`Mixer`], [`Ffn`], [`BlockOp`] and [`PhaseKind`] are made from
//! the list at the end of this file.

pub mod attention;
pub mod delta_net;
pub mod draft;
pub mod ends;
pub mod experts;
pub mod mamba2;
pub mod products;

pub use attention::Attention;
pub use delta_net::{Delta, ProjectDelta};
pub use draft::{DraftEmbed, Propose};
pub use ends::{Embed, Select};
pub use experts::{Combine, Experts, SharedDown, SharedUp};
pub use mamba2::Mamba2;
pub use products::{Accumulate, Gated, Linear, Project};

use crate::emit::call::Call;
use crate::emit::cpu::{Scratch, Working};
use crate::graph::{BodyBuilder, Builder, Op, RotaryFrequencies, ValueId, WeightId};
use crate::import::names::Place;
use crate::kernels::Signature;
use crate::passes::PassError;
use crate::passes::launch::{Launcher, Site};
use crate::passes::rules::Fusion;
use crate::plan::cuda::Launch;
use crate::plan::{BufferId, FieldId, Keeps, KvHeads, Plan, Work};
use crate::reference::Evaluation;
use crate::spec::LayerTensors;
use crate::spec::diagnostic::Source;
use crate::spec::reader::Table;
use crate::spec::types::{FileTensor, Target};
use proc_macro2::TokenStream;

/// A kind of phase: its operands, and what is done with them.
pub(crate) trait Kind {
    /// What reports call it.
    fn name(&self) -> &'static str;

    /// Buffers read, then buffers written; the last of these is what the phase is for.
    fn buffers(&self) -> (Vec<BufferId>, Vec<BufferId>);

    /// Fields read.
    fn fields(&self) -> Vec<FieldId>;

    /// The matrix it streams, which names the phase.
    fn streams(&self) -> Option<FieldId> {
        None
    }

    /// Adds what it moves and computes besides activations.
    fn work(&self, work: &mut Work);

    /// Matrices whose input a CPU stages.
    fn staged(&self) -> Vec<FieldId> {
        self.streams().into_iter().collect()
    }

    /// What else it works in on a CPU.
    fn working(&self, _: &Plan) -> Vec<Working> {
        Vec::new()
    }

    /// What it works in on a CPU that no other body's phases do.
    fn scratch(&self, _: &Plan) -> Option<Scratch> {
        None
    }

    /// What its layers keep of a sequence from step to step.
    fn keeps(&self, _: &Target) -> Option<Keeps> {
        None
    }

    /// Angles by which heads turn with their positions: their cosines and sines are there before the layers.
    fn frequencies(&self) -> Option<&RotaryFrequencies> {
        None
    }

    /// Whether its decode kernel takes a multiprocessor's registers alone.
    fn fills_registers(&self) -> bool {
        false
    }

    /// Its call on a CPU.
    fn cpu(&self, call: &Call) -> TokenStream;

    /// Its launches in a program of a CUDA device.
    ///
    /// # Errors
    /// When there is no kernel for its formats, or none that fits the card.
    fn cuda(&self, launcher: &mut Launcher, site: Site, launches: &mut Vec<Launch>) -> Result<(), PassError>;
}

/// An op of one block: what it computes, row by row unless said otherwise, in f32.
pub(crate) trait Operation {
    /// What rules and reports call it.
    const NAME: &'static str;
    /// Whether it reads keys and values of the tokens before.
    const ATTENDS: bool = false;

    /// The weights it reads.
    fn weights(&self) -> Vec<WeightId> {
        Vec::new()
    }

    /// Of these those that no matrix of products holds, and as what they are held.
    fn fields(&self) -> Vec<(WeightId, FieldForm)> {
        Vec::new()
    }

    /// Its result: the reference.
    fn run(&self, it: &mut Evaluation) -> Vec<f32>;
}

/// What a weight is held as that an op reads by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FieldForm {
    /// As it is.
    Vector,
    /// `[channels, taps]`.
    Convolution,
}

/// What mixes tokens, as MODEL.toml has it.
pub(crate) trait MixerSpec: Sized {
    /// What `kind` is.
    const KIND: &'static str;

    /// Reads `[mixer.*]`.
    fn read(source: &Source, table: Table) -> Option<Self>;

    /// What is read, but for the kind; `table` is where it will stand.
    fn write(&self, table: &str) -> String;

    /// Adds its tensors, in the order they are used.
    fn tensors(&self, list: &mut LayerTensors);

    /// Where one of its tensors stands in a Hugging Face checkpoint; `None` where it is not its own.
    fn place(&self, place: &Place) -> Option<FileTensor>;

    /// Adds its ops; `x` is normed. What is added to the residual stream.
    fn build(&self, graph: &mut Builder, body: &mut BodyBuilder, x: ValueId) -> ValueId;

    /// The keys and values that it keeps of every token.
    fn kv(&self) -> Option<KvHeads> {
        None
    }
}

/// What follows a mixer, as MODEL.toml has it; methods as those of [`MixerSpec`].
pub(crate) trait FfnSpec: Sized {
    const KIND: &'static str;
    /// Whether anything follows: with a norm before it, and added to the residual stream.
    const FOLLOWS: bool = true;
    fn read(source: &Source, table: Table) -> Option<Self>;
    fn write(&self) -> String;
    fn tensors(&self, list: &mut LayerTensors);
    fn place(&self, place: &Place) -> Option<FileTensor>;
    fn build(&self, graph: &mut Builder, body: &mut BodyBuilder, x: ValueId) -> ValueId;
}

/// An enum with a variant a type.
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

/// What `[mixer.*]` or `[ffn]` may be.
macro_rules! kinds {
    ($enum:ident: $($name:ident($type:ty),)*) => {
        impl $enum {
            /// By their names.
            pub(crate) const KINDS: &'static [(&'static str, fn(&Source, Table) -> Option<$enum>)] =
                &[$((<$type>::KIND, |source, table| <$type>::read(source, table).map($enum::$name))),*];

            /// What `kind` is in MODEL.toml.
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

            /// See [`MixerSpec`].
            pub(crate) fn place(&self, place: &Place) -> Option<FileTensor> {
                match self {
                    $($enum::$name(it) => it.place(place),)*
                }
            }

            /// See [`MixerSpec`].
            pub(crate) fn build(&self, graph: &mut Builder, body: &mut BodyBuilder, x: ValueId) -> ValueId {
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

            /// The keys and values that it keeps of every token.
            pub fn kv(&self) -> Option<KvHeads> {
                match self {
                    $($(Mixer::$mixer(it) => it.kv(),)?)*
                }
            }
        }

        closed! {
            /// What follows a mixer: a kind of `[ffn]`.
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
            /// The ops that belong to one block.
            BlockOp: $($($($op($block::graph::$op),)*)?)*
        }

        impl BlockOp {
            /// The names rules may use.
            pub(crate) const NAMES: &'static [&'static str] = &[$($($($block::graph::$op::NAME,)*)?)*];

            /// The name rules and reports use.
            pub fn name(&self) -> &'static str {
                match self {
                    $($($(BlockOp::$op(_) => $block::graph::$op::NAME,)*)?)*
                }
            }

            /// Whether it reads keys and values of the tokens before.
            pub fn attends(&self) -> bool {
                match self {
                    $($($(BlockOp::$op(_) => $block::graph::$op::ATTENDS,)*)?)*
                }
            }

            /// The weights it reads.
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

            /// See [`Operation::run`].
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
            /// The kinds of phase there are, with their operands.
            PhaseKind: $($($phase($phase),)*)*
        }

        impl PhaseKind {
            /// What is asked for anything else.
            pub(crate) fn kind(&self) -> &dyn Kind {
                match self {
                    $($(PhaseKind::$phase(it) => it,)*)*
                }
            }
        }
    };
}

impl PhaseKind {
    /// The name reports use.
    pub fn name(&self) -> &'static str {
        self.kind().name()
    }

    /// Buffers read, then buffers written; the last of these is what the phase is for.
    pub fn buffers(&self) -> (Vec<BufferId>, Vec<BufferId>) {
        self.kind().buffers()
    }

    /// Fields read.
    pub fn fields(&self) -> Vec<FieldId> {
        self.kind().fields()
    }

    /// What its layers keep of a sequence from step to step.
    pub fn keeps(&self, target: &Target) -> Option<Keeps> {
        self.kind().keeps(target)
    }

    /// Whether its work grows with the tokens before those at hand.
    pub fn looks_back(&self, target: &Target) -> bool {
        matches!(self.keeps(target), Some(Keeps::Blocks(_)))
    }

    /// The buffer the phase is for.
    pub fn result(&self) -> BufferId {
        *self.buffers().1.last().expect("every phase writes something")
    }
}

blocks! {
    ends {
        phases Embed, Select;
    }
    products {
        ffns Gated, Nothing;
        phases Project, Accumulate, Gated, Linear;
    }
    attention {
        mixer Attention;
        ops Attention;
        phases Attention;
    }
    delta_net {
        mixer DeltaNet;
        ops DeltaNet;
        phases ProjectDelta, Delta;
    }
    mamba2 {
        mixer Mamba2;
        ops Mamba2;
        phases Mamba2;
    }
    experts {
        ffns Experts;
        ops Route, ExpertGate, ExpertDown;
        phases Experts, Combine;
    }
    draft {
        phases DraftEmbed, Propose;
    }
}
