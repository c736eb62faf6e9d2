//! What a CUDA target runs: programs of kernel launches, each with its geometry and the memory it is handed.

use super::{BufferId, FieldId};
use crate::graph::BodyId;
use crate::kernels::Signature;

pub use monomorph_abi::packed::Plane;
pub use monomorph_abi::step::MAX_SEQUENCES;

/// Sequences that decode programs are made for.
pub const DECODE_BUCKETS: [usize; 8] = [1, 2, 4, 8, 16, 32, 64, MAX_SEQUENCES];

/// Everything the CUDA emitters need besides the phases.
#[derive(Clone, Debug, Default)]
pub struct CudaPlan {
    /// Decode by bucket, ascending, and where drafts are verified that are not made here, those that verify
    /// by bucket; then prefill, then the head over the rows whose logits are wanted; of a target that drafts
    /// what its draft head learns from a prefill, and its passes by bucket, ascending.
    pub programs: Vec<Program>,
    /// Cubins, one emitted `.cu` each.
    pub modules: Vec<Module>,
    /// Device memory besides weights, K/V and [`super::Buffer`]s.
    pub scratch: Vec<Scratch>,
    /// Module and kernel that make each field's dummy weights on the device (templates/cuda/core/fill.cuh
    /// says with which arguments), by [`FieldId`].
    pub fills: Vec<(usize, usize)>,
    /// Tokens whose multiples a prompt may be cut at with every row's bits as they are of the whole prompt.
    pub piece_tokens: usize,
}

impl CudaPlan {
    /// The kernel at a place.
    pub fn kernel(&self, (module, kernel): (usize, usize)) -> &Kernel {
        &self.modules[module].kernels[kernel]
    }
}

/// One emitted `.cu` file.
#[derive(Clone, Debug)]
pub struct Module {
    /// File stem, such as `decode_1`.
    pub name: String,
    /// Percent of what shared memory and L1 share that is to be shared memory while its kernels run; `None`
    /// leaves it to the driver.
    pub shared_part: Option<u32>,
    /// Kernels in it.
    pub kernels: Vec<Kernel>,
}

/// One `extern "C"` kernel.
#[derive(Clone, Debug, PartialEq)]
pub struct Kernel {
    /// Unique in its module.
    pub name: String,
    /// Its declaration.
    pub signature: &'static Signature,
    /// Members of the instantiation's `Config`, in order.
    pub constants: Vec<(&'static str, Constant)>,
    /// Threads a block.
    pub block: u32,
    /// Blocks that are to fit one multiprocessor at a time, as far as registers go.
    pub resident: u32,
    /// Blocks of a cluster, in x; the kernel's own attribute says so too, so that a launch need not.
    pub cluster: u32,
    /// Dynamic shared memory in bytes. Every kernel wants the largest carve-out of shared memory
    /// (`CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT` 100): blocks of kernels whose carve-outs differ
    /// cannot stand on one multiprocessor at a time. Above 48 KiB it must be allowed before the first launch
    /// (`CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES`).
    pub shared: u32,
    /// Whether a spill or local memory fails the build.
    pub decode: bool,
}

impl Kernel {
    /// Whether it is another but for its name and what becomes of spills.
    pub fn is_like(&self, other: &Kernel) -> bool {
        let Kernel { name: _, signature, constants, block, resident, cluster, shared, decode: _ } = self;
        *signature == other.signature
            && [block, resident, cluster, shared]
                == [&other.block, &other.resident, &other.cluster, &other.shared]
            && *constants == other.constants
    }

    /// The kind of kernel it is: the function it instantiates.
    pub fn function(&self) -> &'static str {
        self.signature.function
    }
}

/// A member of a `Config`.
#[derive(Clone, Debug, PartialEq)]
pub enum Constant {
    /// An `int`.
    Integer(i64),
    /// A `float`.
    Float(f32),
    /// A `bool`.
    Flag(bool),
    /// A C++ expression, such as an enumerator.
    Value(String),
    /// A type.
    Type(String),
}

/// Device memory of some purpose.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Scratch {
    /// Field name in the generated struct.
    pub name: String,
    /// Bytes.
    pub bytes: u64,
    /// Whether it must be zero before the first launch.
    pub zeroed: bool,
}

/// A sequence of launches.
#[derive(Clone, Debug)]
pub struct Program {
    /// `decode_1`, `prefill`, …: also the function's name in the generated stack.
    pub name: String,
    /// Most rows of activations: sequences, or of a target that drafts at least as many as they feed with
    /// their drafts (decode); tokens (prefill, learn); rows of logits (head).
    pub rows: usize,
    /// Most sequences.
    pub sequences: usize,
    /// Rows of each sequence where it decodes: the token sampled last, and drafts behind it in a program that
    /// verifies.
    pub tokens: usize,
    /// What it is for.
    pub regime: Regime,
    /// Launches of each body it runs, in the plan's body order; empty for a body outside the program.
    pub bodies: Vec<Vec<Launch>>,
    /// After the last body: sampling, and which drafts hold.
    pub tail: Vec<Launch>,
    /// After that, bodies of passes that draft, in order. Of a pass through the model's layers each of their
    /// bodies once: all its layers run, in the schedule's order.
    pub passes: Vec<(BodyId, Vec<Launch>)>,
}

impl Program {
    /// All launches.
    pub fn launches(&self) -> impl Iterator<Item = &Launch> {
        let passes = self.passes.iter().flat_map(|(_, launches)| launches);
        self.bodies.iter().flatten().chain(&self.tail).chain(passes)
    }

    /// All launches, to change.
    pub fn launches_mut(&mut self) -> impl Iterator<Item = &mut Launch> {
        let passes = self.passes.iter_mut().flat_map(|(_, launches)| launches);
        self.bodies.iter_mut().flatten().chain(&mut self.tail).chain(passes)
    }
}

/// What a program is for. A decode program computes the logits of every row: `output_rows[i]` is `i` there,
/// and a sequence whose output nobody wants is sampled all the same. It has no launch for the phase that
/// selects rows.
///
/// Where drafts are verified, a decode program may verify: a sequence feeds a token and its drafts, in
/// adjacent rows. All of them are sampled after. Where the engine makes the drafts, it also decides which
/// hold, and there are decode programs of both kinds. Where the stack does, all verify, the device decides
/// which drafts hold, and a draft head's first pass takes all rows; a program of passes follows. So it does
/// behind a prefill, its heads, and what a draft head learns from it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Regime {
    /// One token a sequence, or one and its drafts; captured as a graph, launched with programmatic
    /// dependence.
    Decode,
    /// Any number of tokens a sequence, up to the residual stream after the last layer.
    Prefill,
    /// Logits and sampling of selected rows after a prefill.
    Head,
    /// Which sequences of a prefill are drafted for, and the first pass of a draft head over its tokens.
    Learn,
    /// What is left of that pass, and the others, or all, for one row a sequence; captured as
    /// [`Regime::Decode`] is, and behind its launches.
    Draft,
}

impl Regime {
    /// Whether the first launch of its programs' tails samples.
    pub const fn samples(self) -> bool {
        match self {
            Regime::Decode | Regime::Head => true,
            Regime::Prefill | Regime::Learn | Regime::Draft => false,
        }
    }
}

/// One kernel launch.
#[derive(Clone, Debug)]
pub struct Launch {
    /// The phase it carries out (part of); index into the body's phases.
    pub phase: usize,
    /// Module and kernel. A kernel that several programs instantiate alike stands in the first one's module.
    pub kernel: (usize, usize),
    /// Blocks in x, y, z, whole clusters of them.
    pub grid: [Extent; 3],
    /// In the order of the kernel's parameters.
    pub arguments: Vec<Argument>,
}

/// Blocks in one dimension.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Extent {
    /// Always so many.
    Fixed(u32),
    /// One for each so many token rows of the step.
    Tokens(u32),
    /// One for each so many sequences of the step.
    Sequences(u32),
    /// One for each so many output rows of the step.
    Outputs(u32),
}

/// A pointer a kernel is handed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Argument {
    /// The step header.
    Step,
    /// The header of a draft head's pass, from 0: made on the device.
    Pass(usize),
    /// Token rows of a prefill.
    Tokens,
    /// Ids last sampled, by slot.
    SampledIds,
    /// The ids from a place on (templates/cuda/draft/accept.cuh).
    Ids(usize),
    /// Token uses of the penalties.
    History,
    /// Where sampled rows go.
    SampledOut,
    /// Where drafted rows go, from a row on.
    DraftedOut(usize),
    /// Where it goes how many drafts of each sequence hold.
    Held,
    /// An activation buffer.
    Buffer(BufferId),
    /// A plane of a weight; where experts have a matrix each, expert 0's, with the others' behind it at
    /// [`super::packed::Planes::expert_stride`].
    Field(FieldId, Plane),
    /// This layer's K/V cache; the body's layers count from 0.
    Cache(BodyId),
    /// A [part](super::StatePart) of this layer's recurrent state, by its name: that of slot 0, with the
    /// other slots' behind it; the body's layers count from 0.
    State(BodyId, &'static str),
    /// Where the codes begin, or end, of the first matrix that the schedule reads behind this layer.
    Following(Edge),
    /// The rotary table of a body.
    Rotary(BodyId),
    /// Index into [`CudaPlan::scratch`].
    Scratch(usize),
    /// Not used by this instantiation.
    Null,
}

/// An end of a range of bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Edge {
    /// Its first byte.
    Begin,
    /// What stands behind its last.
    End,
}
