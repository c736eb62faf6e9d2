//! The CUDA part of a plan: programs of kernel launches, each with its grid and arguments.

use crate::graph::BodyId;
use crate::kernels::Signature;

pub use crate::kernels::{Argument, Constant, Edge};
pub use monomorph_abi::packed::Plane;
pub use monomorph_abi::step::MAX_SEQUENCES;

/// Everything the CUDA emitters need besides the phases.
#[derive(Clone, Debug, Default)]
pub struct CudaPlan {
    /// Decode programs by bucket, ascending. If drafts from elsewhere are verified, the verifying programs
    /// follow by bucket. Then prefill, and the head over the rows that need logits. A target that drafts
    /// itself adds its draft prefill, and its draft passes by bucket, ascending. Those of a vision tower, by
    /// bucket of patches, are the last.
    pub programs: Vec<Program>,
    /// Cubins, one per emitted `.cu` file.
    pub modules: Vec<Module>,
    /// Device memory besides weights, K/V and [`super::Buffer`]s.
    pub scratch: Vec<Scratch>,
    /// Module and kernel that generate each field's dummy weights on the device, by
    /// [`FieldId`](super::FieldId). (templates/cuda/core/fill.cuh documents the arguments.)
    pub fills: Vec<(usize, usize)>,
    /// Chunk alignment in tokens: a prompt cut at its multiples gives every row the same bits as the whole
    /// prompt.
    pub chunk_alignment: usize,
}

impl CudaPlan {
    /// The kernel at an index.
    pub fn kernel(&self, (module, kernel): (usize, usize)) -> &Kernel {
        &self.modules[module].kernels[kernel]
    }
}

/// One emitted `.cu` file.
#[derive(Clone, Debug)]
pub struct Module {
    /// File stem, such as `decode_1`.
    pub name: String,
    /// Percentage of the memory shared with L1 that is shared memory while its kernels run; `None` leaves it
    /// to the driver.
    pub shared_part: Option<u32>,
    /// Kernels in it.
    pub kernels: Vec<Kernel>,
}

/// One `extern "C"` kernel.
#[derive(Clone, Debug, PartialEq)]
pub struct Kernel {
    /// Name, unique in its module.
    pub name: String,
    /// Its declaration.
    pub signature: &'static Signature,
    /// Members of the instantiation's `Config`, in order.
    pub constants: Vec<(&'static str, Constant)>,
    /// Figures that C++ computes too, each with its expression: blocks of the grid, and bytes of the memory
    /// that the kernel reads and writes.
    pub figures: Vec<(&'static str, u64)>,
    /// Threads per block.
    pub block: u32,
    /// Blocks per multiprocessor that registers must allow.
    pub resident: u32,
    /// Blocks of a cluster, in x. The kernel's own attribute states it too, so a launch need not.
    pub cluster: u32,
    /// Dynamic shared memory in bytes. Every kernel asks for the largest carve-out of shared memory
    /// (`CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT` 100): blocks of kernels whose carve-outs differ
    /// cannot share a multiprocessor. More than 48 KiB must be allowed before the first launch
    /// (`CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES`).
    pub shared: u32,
    /// Whether a register spill or local memory fails the build.
    pub decode: bool,
}

impl Kernel {
    /// Whether the two differ only in name and in the treatment of spills.
    pub fn is_like(&self, other: &Kernel) -> bool {
        let Kernel { name: _, signature, constants, figures, block, resident, cluster, shared, decode: _ } =
            self;
        *signature == other.signature
            && [block, resident, cluster, shared]
                == [&other.block, &other.resident, &other.cluster, &other.shared]
            && *constants == other.constants
            && *figures == other.figures
    }

    /// The function it instantiates.
    pub fn function(&self) -> &'static str {
        self.signature.function
    }
}

/// Device scratch memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Scratch {
    /// Field name in the generated struct.
    pub name: String,
    /// Size in bytes.
    pub bytes: u64,
    /// Whether it must be zero before the first launch.
    pub zeroed: bool,
}

/// A sequence of launches.
#[derive(Clone, Debug)]
pub struct Program {
    /// `decode_1`, `prefill`, …: also the name of the function in the generated stack.
    pub name: String,
    /// Most rows of activations. Decode: sequences, or in a target that drafts, at least as many rows as they
    /// feed with their drafts. Prefill and learn: tokens. Head: rows of logits. See: patches.
    pub rows: usize,
    /// Most sequences.
    pub sequences: usize,
    /// Rows of each sequence in decode: the token sampled last, followed by its drafts in a program that
    /// verifies.
    pub tokens: usize,
    /// Purpose of the program.
    pub regime: Regime,
    /// Launches of each body it runs, in the plan's body order; empty for a body outside the program.
    pub bodies: Vec<Vec<Launch>>,
    /// After the last body: sampling and draft acceptance.
    pub tail: Vec<Launch>,
    /// Bodies of draft passes that follow, in order. A pass through the model's layers lists each of their
    /// bodies once: all their layers run, in the schedule's order. A tower's are all here, each once.
    pub passes: Vec<(BodyId, Vec<Launch>)>,
}

impl Program {
    /// All launches.
    pub fn launches(&self) -> impl Iterator<Item = &Launch> {
        let passes = self.passes.iter().flat_map(|(_, launches)| launches);
        self.bodies.iter().flatten().chain(&self.tail).chain(passes)
    }

    /// All launches, mutably.
    pub fn launches_mut(&mut self) -> impl Iterator<Item = &mut Launch> {
        let passes = self.passes.iter_mut().flat_map(|(_, launches)| launches);
        self.bodies.iter_mut().flatten().chain(&mut self.tail).chain(passes)
    }
}

/// Purpose of a program. A decode program computes the logits of every row: its `output_rows[i]` is `i`, and
/// a sequence is sampled even if its output is discarded. It has no launch for the phase that selects rows.
///
/// If drafts are verified, a decode program may verify: a sequence feeds a token and its drafts in adjacent
/// rows, and every row is sampled. If the engine makes the drafts, it also accepts or rejects them, and there
/// are decode programs of both kinds. If the stack makes them, all decode programs verify, the device accepts
/// or rejects drafts, the first pass of a draft head takes all rows, and a program of draft passes follows.
/// That program also follows a prefill, its heads and its draft prefill.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Regime {
    /// One token per sequence, or one and its drafts; captured as a graph, launched with programmatic
    /// dependence.
    Decode,
    /// Any number of tokens per sequence, up to the residual stream after the last layer.
    Prefill,
    /// Logits and sampling of selected rows after a prefill.
    Head,
    /// Draft prefill: selects the sequences of a prefill to draft for, and runs the first pass of a draft
    /// head over its tokens.
    Learn,
    /// The rest of that pass and the others, or all passes, with one row per sequence; captured as
    /// [`Regime::Decode`] is, and launched after it.
    Draft,
    /// A vision tower over the patches of images.
    See,
}

impl Regime {
    /// Whether the first launch of its programs' tails samples.
    pub const fn samples(self) -> bool {
        match self {
            Regime::Decode | Regime::Head => true,
            Regime::Prefill | Regime::Learn | Regime::Draft | Regime::See => false,
        }
    }
}

/// One kernel launch.
#[derive(Clone, Debug)]
pub struct Launch {
    /// The phase it carries out, or a part of it; index into the body's phases.
    pub phase: usize,
    /// Module and kernel. A kernel that several programs instantiate alike is in the module of the first.
    pub kernel: (usize, usize),
    /// Blocks in x, y, z; a multiple of the cluster.
    pub grid: [Extent; 3],
    /// Arguments in the order of the kernel's parameters.
    pub arguments: Vec<Argument>,
    /// What all processes gather before it, in a build for several.
    pub gathers: Option<AllGather>,
    /// Whether it runs on the second stream, beside launches of the first.
    pub beside: bool,
    /// Whether its stream first waits for all that the other was given so far.
    pub waits: bool,
}

impl Launch {
    /// A launch in the first stream.
    pub fn new(phase: usize, kernel: (usize, usize), grid: [Extent; 3], arguments: Vec<Argument>) -> Launch {
        Launch { phase, kernel, grid, arguments, gathers: None, beside: false, waits: false }
    }

    /// The launch, beside those of its body that neither need it nor are needed by it
    /// (`passes::launch::streams`).
    #[must_use]
    pub fn aside(self) -> Launch {
        Launch { beside: true, ..self }
    }
}

/// Rows of all ranks, gathered on each of them through NCCL: `[ranks][rows][width]` of f32.
#[derive(Clone, Debug)]
pub struct AllGather {
    /// This rank's rows.
    pub from: Argument,
    /// Where those of all ranks go.
    pub to: Argument,
    /// Their number.
    pub rows: Extent,
    /// Values of each.
    pub width: usize,
}

/// Figures of a phase's kernels that a tuning may change, as a whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cut {
    /// A ring of weights in shared memory.
    Stream,
    /// Tiles on tensor cores.
    Gemm,
    /// Splits of the context over blocks.
    Attention {
        /// Blocks of one row and one split.
        kv_heads: u32,
    },
}

/// Blocks in one dimension.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Extent {
    /// A constant number.
    Fixed(u32),
    /// One per this many token rows of the step.
    Tokens(u32),
    /// One per this many sequences of the step.
    Sequences(u32),
    /// One per this many output rows of the step.
    Outputs(u32),
}
