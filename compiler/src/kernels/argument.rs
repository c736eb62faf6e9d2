//! Arguments of launches, by what they refer to, and the constants of a kernel.

use crate::graph::BodyId;
use crate::plan::{BufferId, FieldId};
use monomorph_abi::packed::Plane;

/// A pointer passed to a kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Argument {
    /// The step header.
    Step,
    /// The header of a draft pass, from 0; made on the device.
    Pass(usize),
    /// Token rows of a prefill.
    Tokens,
    /// Images among the tokens of a prefill, a row each; of a build with a tower.
    Images,
    /// Ids sampled last, by slot.
    SampledIds,
    /// Ids from an offset on (templates/cuda/draft/accept.cuh).
    Ids(usize),
    /// Token history for penalties.
    History,
    /// Output for sampled rows.
    SampledOut,
    /// Output for drafted rows, from a row on.
    DraftedOut(usize),
    /// Output for the number of accepted drafts of each sequence.
    Held,
    /// An activation buffer.
    Buffer(BufferId),
    /// A plane of a weight. If experts have a matrix each, this is expert 0's; the others follow without
    /// gaps.
    Field(FieldId, Plane),
    /// This layer's K/V cache; the body's layers count from 0.
    Cache(BodyId),
    /// A named [part](crate::plan::StatePart) of this layer's recurrent state: that of slot 0, followed by
    /// the other slots; the body's layers count from 0.
    State(BodyId, &'static str),
    /// Begin or end of the codes of the first matrix that the schedule reads after this layer.
    Following(Edge),
    /// The rotary table of a body.
    Rotary(BodyId),
    /// Index into [`CudaPlan::scratch`](crate::plan::cuda::CudaPlan::scratch).
    Scratch(usize),
    /// Not used by this instantiation.
    Null,
}

/// An end of a range of bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Edge {
    /// First byte.
    Begin,
    /// One past the last byte.
    End,
}

/// A member of a `Config`.
#[derive(Clone, Debug, PartialEq)]
pub enum Constant {
    /// An `int`.
    Integer(i64),
    /// A constant `float`.
    Float(f32),
    /// A `bool`.
    Flag(bool),
    /// A C++ expression, such as an enumerator.
    Value(String),
    /// A C++ type, as written.
    Type(String),
}

impl Constant {
    /// Its type in C++: that of an enumerator is before its `::`, and `auto` is any other expression's. A
    /// type is of kind `type`.
    pub fn kind(&self) -> &str {
        match self {
            Constant::Integer(_) => "int",
            Constant::Float(_) => "float",
            Constant::Flag(_) => "bool",
            Constant::Value(text) => text.split_once("::").map_or("auto", |(kind, _)| kind),
            Constant::Type(_) => "type",
        }
    }
}
