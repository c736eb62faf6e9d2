//! What kernels are handed: device addresses, by what stands there.

use crate::graph::BodyId;
use crate::plan::cuda::{Argument, Edge, Plane};
use crate::plan::{BufferId, FieldId};

/// A device address of a certain use.
pub trait Operand: Copy {
    /// A parameter through which the kernel reads, in C++.
    const READ: &'static str;
    /// One through which it writes, or does both.
    const WRITE: &'static str;

    /// As a launch's argument.
    fn argument(self) -> Argument;

    /// An argument of which the caller knows that it is one of these.
    fn new(argument: Argument) -> Self;
}

/// Declares operands: what each is, and its element in C++.
macro_rules! operands {
    ($($(#[$doc:meta])* $name:ident: $element:literal;)*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub struct $name($crate::plan::cuda::Argument);

        impl $name {
            /// Not used by the instantiation.
            pub const NULL: $name = $name($crate::plan::cuda::Argument::Null);
        }

        impl $crate::kernels::Operand for $name {
            const READ: &'static str = concat!("const ", $element, "*");
            const WRITE: &'static str = concat!($element, "*");

            fn argument(self) -> $crate::plan::cuda::Argument {
                self.0
            }

            fn new(argument: $crate::plan::cuda::Argument) -> $name {
                $name(argument)
            }
        }
    )*};
}
pub(crate) use operands;

operands! {
    /// The header of a step, or of a pass that drafts.
    Header: "Step";
    /// Token rows of a prefill; null in decode, where row i is of sequence i.
    Tokens: "TokenRow";
    /// Ids of tokens.
    Ids: "int";
    /// Tokens that penalties look at, and masks behind them.
    History: "TokenUse";
    /// Rows that were sampled or drafted.
    Sampled: "Sampled";
    /// How many drafts of each sequence hold.
    Held: "int";
    /// Rows of f32: activations, and what kernels hand on in f32.
    Rows: "float";
    /// Rows staged as f16, or as f32 where nothing is rounded.
    Staged: "void";
    /// A norm's weights, a bias, or another vector of f32.
    Vector: "float";
    /// Codes of a packed matrix.
    Codes: "void";
    /// Its scales of blocks.
    Scales: "void";
    /// Its scales of rows.
    RowScales: "float";
    /// A place among the codes of the weights that follow a layer.
    Following: "void";
    /// A table of angles.
    Rotary: "float";
    /// One layer's K/V cache.
    Cache: "{config}::Kv";
    /// Counters that kernels leave at zero.
    Counters: "int";
    /// Pairs of a token and an expert, sorted by expert.
    Lists: "char";
    /// Products of the chosen experts.
    Products: "void";
    /// What sampling's blocks tell each other.
    SampleScratch: "void";
}

impl Header {
    /// The step's.
    pub const STEP: Header = Header(Argument::Step);

    /// That of a pass that drafts, from 0.
    pub fn pass(pass: usize) -> Header {
        Header(Argument::Pass(pass))
    }
}

impl Tokens {
    /// The step's.
    pub const STEP: Tokens = Tokens(Argument::Tokens);
}

impl Ids {
    /// Those sampled last, by slot.
    pub const SAMPLED: Ids = Ids(Argument::SampledIds);

    /// Those from a place on.
    pub fn from(place: usize) -> Ids {
        Ids(Argument::Ids(place))
    }
}

impl History {
    /// The step's.
    pub const STEP: History = History(Argument::History);
}

impl Sampled {
    /// The step's.
    pub const STEP: Sampled = Sampled(Argument::SampledOut);

    /// What is drafted, from a row on.
    pub fn drafted(row: usize) -> Sampled {
        Sampled(Argument::DraftedOut(row))
    }
}

impl Held {
    /// The step's.
    pub const STEP: Held = Held(Argument::Held);
}

impl Rows {
    /// An activation buffer.
    pub fn buffer(id: BufferId) -> Rows {
        Rows(Argument::Buffer(id))
    }
}

impl Vector {
    /// A field, where there is one.
    pub fn field(id: Option<FieldId>) -> Vector {
        Vector(id.map_or(Argument::Null, |id| Argument::Field(id, Plane::Codes)))
    }
}

impl Following {
    /// Where the codes begin that the schedule reads behind this layer, and where they end.
    pub const EDGES: [Following; 2] =
        [Following(Argument::Following(Edge::Begin)), Following(Argument::Following(Edge::End))];
}

impl Rotary {
    /// A body's.
    pub fn of(body: BodyId) -> Rotary {
        Rotary(Argument::Rotary(body))
    }
}

impl Cache {
    /// A body's layer's.
    pub fn of(body: BodyId) -> Cache {
        Cache(Argument::Cache(body))
    }
}

/// The planes of a packed matrix (`monomorph_abi::packed`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Planes {
    /// Codes.
    pub codes: Codes,
    /// Scales of blocks, where there are some.
    pub scales: Scales,
    /// Scales of rows, where there are some.
    pub row_scales: RowScales,
}

impl Planes {
    /// Of no matrix.
    pub const NULL: Planes = Planes { codes: Codes::NULL, scales: Scales::NULL, row_scales: RowScales::NULL };

    /// A field's; the flags say which scales it has.
    pub fn of(id: FieldId, [scales, row_scales]: [bool; 2]) -> Planes {
        let of = |there: bool, plane| if there { Argument::Field(id, plane) } else { Argument::Null };
        Planes {
            codes: Codes(of(true, Plane::Codes)),
            scales: Scales(of(scales, Plane::Scales)),
            row_scales: RowScales(of(row_scales, Plane::RowScales)),
        }
    }
}
