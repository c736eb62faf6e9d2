//! Kernel operands: device addresses, typed by what they point to.

use super::argument::{Argument, Edge};
use crate::graph::BodyId;
use crate::plan::{BufferId, FieldId};
use monomorph_abi::packed::Plane;

/// A device address with a declared use.
pub trait Operand: Copy {
    /// C++ type of a parameter that the kernel only reads.
    const READ: &'static str;
    /// C++ type of a parameter that the kernel writes, or reads and writes.
    const WRITE: &'static str;

    /// Converts it to a launch argument.
    fn argument(self) -> Argument;

    /// Wraps an argument that the caller knows to be of this type.
    fn new(argument: Argument) -> Self;
}

/// Declares operand types: a description, and the element type in C++.
macro_rules! operands {
    ($($(#[$doc:meta])* $name:ident: $element:literal;)*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub struct $name($crate::kernels::Argument);

        impl $name {
            /// A null pointer, for an instantiation that does not use it.
            pub const NULL: $name = $name($crate::kernels::Argument::Null);
        }

        impl $crate::kernels::Operand for $name {
            const READ: &'static str = concat!("const ", $element, "*");
            const WRITE: &'static str = concat!($element, "*");

            fn argument(self) -> $crate::kernels::Argument {
                self.0
            }

            fn new(argument: $crate::kernels::Argument) -> $name {
                $name(argument)
            }
        }
    )*};
}
pub(crate) use operands;

operands! {
    /// The header of a step or of a draft pass.
    Header: "Step";
    /// Token rows of a prefill; null in decode, where row i belongs to sequence i.
    Tokens: "TokenRow";
    /// Images among the tokens of a prefill.
    Images: "ImageRow";
    /// Token ids.
    Ids: "int";
    /// Token history for penalties, followed by masks.
    History: "TokenUse";
    /// Sampled or drafted rows.
    Sampled: "Sampled";
    /// Number of accepted drafts of each sequence.
    Held: "int";
    /// Rows of f32: activations, and intermediate values.
    Rows: "float";
    /// Rows staged as f16, or as f32 if nothing is rounded.
    Staged: "void";
    /// Rows quantised to e4m3, and the scales of their groups.
    Quantised: "void";
    /// A norm's weights, a bias, or another vector of f32.
    Vector: "float";
    /// Codes of a packed matrix.
    Codes: "void";
    /// Scales of blocks of a packed matrix.
    Scales: "void";
    /// Scales of rows of a packed matrix.
    RowScales: "float";
    /// An address within the codes of the next layer's weights.
    Following: "void";
    /// A table of rotary cosines and sines.
    Rotary: "float";
    /// One layer's K/V cache.
    Cache: "{config}::Kv";
    /// Counters that kernels reset to zero.
    Counters: "int";
    /// Pairs of token and expert, sorted by expert.
    Lists: "char";
    /// Products of the chosen experts.
    Products: "void";
    /// Scratch through which the blocks of sampling communicate.
    SampleScratch: "void";
    /// A rank's inboxes and turns of exchanges (`monomorph_abi::world`).
    World: "World";
}

impl Header {
    /// The step's header.
    pub const STEP: Header = Header(Argument::Step);

    /// The header of a draft pass; passes count from 0.
    pub fn pass(pass: usize) -> Header {
        Header(Argument::Pass(pass))
    }
}

impl Tokens {
    /// The step's token rows.
    pub const STEP: Tokens = Tokens(Argument::Tokens);
}

impl Images {
    /// The step's.
    pub const STEP: Images = Images(Argument::Images);
}

impl Ids {
    /// The ids sampled last, by slot.
    pub const SAMPLED: Ids = Ids(Argument::SampledIds);

    /// The ids from an offset on.
    pub fn from(place: usize) -> Ids {
        Ids(Argument::Ids(place))
    }
}

impl History {
    /// The step's history.
    pub const STEP: History = History(Argument::History);
}

impl Sampled {
    /// The step's sampled rows.
    pub const STEP: Sampled = Sampled(Argument::SampledOut);

    /// The drafted rows, from a row on.
    pub fn drafted(row: usize) -> Sampled {
        Sampled(Argument::DraftedOut(row))
    }
}

impl Held {
    /// The step's counts.
    pub const STEP: Held = Held(Argument::Held);
}

impl Rows {
    /// An activation buffer.
    pub fn buffer(id: BufferId) -> Rows {
        Rows(Argument::Buffer(id))
    }
}

impl Vector {
    /// A field, or null if there is none.
    pub fn field(id: Option<FieldId>) -> Vector {
        Vector(id.map_or(Argument::Null, |id| Argument::Field(id, Plane::Codes)))
    }
}

impl Following {
    /// First and end address of the codes that the schedule reads after this layer.
    pub const EDGES: [Following; 2] =
        [Following(Argument::Following(Edge::Begin)), Following(Argument::Following(Edge::End))];
}

impl Rotary {
    /// The table of a body.
    pub fn of(body: BodyId) -> Rotary {
        Rotary(Argument::Rotary(body))
    }
}

impl Cache {
    /// The cache of a body's current layer.
    pub fn of(body: BodyId) -> Cache {
        Cache(Argument::Cache(body))
    }
}

/// The planes of a packed matrix (`monomorph_abi::packed`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Planes {
    /// Codes of the weights.
    pub codes: Codes,
    /// Scales of blocks, or null.
    pub scales: Scales,
    /// Scales of rows, or null.
    pub row_scales: RowScales,
}

impl Planes {
    /// No matrix: all planes are null.
    pub const NULL: Planes = Planes { codes: Codes::NULL, scales: Scales::NULL, row_scales: RowScales::NULL };

    /// The planes of a field; the flags say which scales it has.
    pub fn of(id: FieldId, [scales, row_scales]: [bool; 2]) -> Planes {
        let of = |there: bool, plane| if there { Argument::Field(id, plane) } else { Argument::Null };
        Planes {
            codes: Codes(of(true, Plane::Codes)),
            scales: Scales(of(scales, Plane::Scales)),
            row_scales: RowScales(of(row_scales, Plane::RowScales)),
        }
    }
}
