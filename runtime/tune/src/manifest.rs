//! What `cargo xtask tune` compiled, as its `manifest.json` says it.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Everything about one target that is measured.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Manifest {
    /// `hardware/model/quant`.
    pub target: String,
    /// The command that made it.
    pub command: String,
    /// The card it was compiled for.
    pub card: Hardware,
    /// Most sequences of a step.
    pub max_sequences: usize,
    /// The K/V cache.
    pub kv: Kv,
    /// Weights, by their number.
    pub fields: Vec<Field>,
    /// Bytes of the activations.
    pub buffers: BTreeMap<String, u64>,
    /// Bytes of what kernels work in. No name is of both.
    pub scratch: BTreeMap<String, u64>,
    /// Bodies of layers.
    pub bodies: Vec<Body>,
    /// The model as `(body, layer of it)`, in order.
    pub schedule: Vec<(usize, usize)>,
    /// Programs to measure.
    pub programs: Vec<Program>,
    /// Kernels, by their number.
    pub kernels: Vec<Kernel>,
    /// Whether clocks are in the kernels.
    pub trace: bool,
}

/// The card that kernels were compiled for.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Hardware {
    /// Architecture of the machine code.
    pub architecture: String,
    /// Compute capability.
    pub capability: (u32, u32),
    /// Multiprocessors it was planned for.
    pub multiprocessors: u32,
    /// Bytes of the second-level cache.
    pub l2_bytes: u64,
}

/// The K/V cache.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Kv {
    /// Number of tokens that a K/V block holds.
    pub block_tokens: usize,
    /// `bf16`, `f16` or `f32`.
    pub format: String,
}

/// A weight of a body's layers, or of the whole model.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Field {
    /// Name of the weight.
    pub name: String,
    /// How many there are.
    pub instances: usize,
    /// The kernel that makes it up.
    pub fill: usize,
    /// Its size.
    pub shape: Shape,
}

/// The size of a weight.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(untagged, deny_unknown_fields)]
pub enum Shape {
    /// A matrix, its experts one behind the other, and the bytes of its planes.
    Matrix {
        /// Rows of one part.
        rows: usize,
        /// Columns of the matrix.
        columns: usize,
        /// Whether tiles of two parts alternate.
        gated: bool,
        /// Bytes of the plane of codes.
        codes: u64,
        /// Bytes of the plane of scales.
        scales: u64,
        /// Bytes of the plane of row scales.
        row_scales: u64,
    },
    /// So many f32 values around `centre`.
    Vector {
        /// Number of values.
        length: usize,
        /// Their mean.
        centre: f32,
    },
}

/// A kind of layer.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Body {
    /// Name of the kind of layer.
    pub name: String,
    /// Layers of it; 0 for the ends of the model.
    pub layers: usize,
    /// Its K/V cache.
    pub attention: Option<Attention>,
    /// Bytes of one slot of its recurrent state, by part.
    pub state: Option<BTreeMap<String, u64>>,
    /// Its first matrix, which the body in front of it fetches ahead.
    pub first: Option<usize>,
}

/// What attention of a body needs.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Attention {
    /// Angle of a position, by pair.
    pub inverse: Vec<f32>,
    /// What cosines and sines are scaled by.
    pub factor: f32,
    /// Bytes of a block of a layer.
    pub block_bytes: u64,
    /// Bytes in front of the first block of a layer, which end with static scales.
    pub ahead_bytes: u64,
    /// Number of these scales.
    pub static_scales: usize,
}

/// One program with the variants of its phases.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Program {
    /// Name of the program.
    pub name: String,
    /// Its bucket in a tuning file.
    pub bucket: String,
    /// Most rows.
    pub rows: usize,
    /// Whether it decodes; prefill otherwise.
    pub decode: bool,
    /// Launches of each body.
    pub bodies: Vec<Vec<Entry>>,
    /// Launches behind the layers.
    pub tail: Vec<Launch>,
    /// Phases with variants.
    pub units: Vec<Unit>,
}

/// A launch of a phase of a body.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Entry {
    /// Number of the phase in its body.
    pub phase: usize,
    /// What to launch, and with which arguments.
    pub launch: Launch,
}

/// A kernel launch: grid, threads, shared memory and arguments.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Launch {
    /// Number of its kernel.
    pub kernel: usize,
    /// Its blocks.
    pub grid: [Extent; 3],
    /// An argument for each parameter.
    pub arguments: Vec<Argument>,
}

/// A dimension of a grid: its unit, and a number of blocks or of units a block.
pub type Extent = (ExtentOf, u32);

/// What a dimension of a grid follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ExtentOf {
    /// So many blocks.
    Fixed,
    /// A block for so many tokens.
    Tokens,
    /// A block for so many sequences.
    Sequences,
    /// A block for so many outputs.
    Outputs,
}

/// An argument of a launch.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(rename_all = "snake_case", tag = "of", content = "at")]
pub enum Argument {
    /// The step's header.
    Step,
    /// The header of a draft pass.
    Pass(usize),
    /// Token rows.
    Tokens,
    /// The ids last sampled, by slot.
    SampledIds,
    /// These from a place on.
    Ids(usize),
    /// Drafted ids from a row on.
    Drafted(usize),
    /// What was held of drafts.
    Held,
    /// Tokens that penalties look at.
    History,
    /// Sampled rows.
    Sampled,
    /// An activation.
    Buffer(String),
    /// What kernels work in.
    Scratch(String),
    /// A plane of a weight, by the number of the weight.
    Field(usize, Plane),
    /// A body's K/V cache.
    Cache(usize),
    /// A part of a body's state.
    State(usize, String),
    /// The first matrix of what follows: where it begins, or ends.
    Following(usize),
    /// A body's table of angles.
    Rotary(usize),
    /// A null pointer.
    Null,
}

/// A plane of a weight.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Plane {
    /// Its codes, or values.
    Codes,
    /// Its block scales.
    Scales,
    /// One scale a row.
    RowScales,
}

/// A phase with its variants; the first is the default.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Unit {
    /// Name of the phase.
    pub phase: String,
    /// `(body, phase)` of each of its places.
    pub places: Vec<(usize, usize)>,
    /// Whether it adds to what it finds.
    pub in_place: bool,
    /// What could not be planned.
    pub refused: Vec<Refused>,
    /// What is measured.
    pub variants: Vec<Variant>,
}

/// Knobs of a variant, by name.
pub type Settings = BTreeMap<String, u32>;

/// A variant without a plan.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Refused {
    /// Its knobs.
    pub settings: Settings,
    /// Why it could not be planned.
    pub why: String,
}

/// A variant of a phase.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Variant {
    /// Its knobs, where they differ from the defaults.
    pub settings: Settings,
    /// Its launches, by place.
    pub launches: Vec<Vec<Launch>>,
}

/// A compiled kernel, or one that was not.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Kernel {
    /// Name of the kernel.
    pub name: String,
    /// Its cubin, without `.cubin`; none where it did not compile.
    pub module: Option<String>,
    /// Threads of a block.
    pub block: u32,
    /// Bytes of dynamic shared memory.
    pub shared: u32,
    /// Percentage of a multiprocessor's memory that is shared memory.
    pub shared_part: Option<u32>,
    /// Why it must not be used.
    pub defects: Vec<String>,
}
