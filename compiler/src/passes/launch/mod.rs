//! Turns phases into kernel launches: kernel, constants, grid and operands of each.
//!
//! A target has a decode program for every bucket, a prefill program, and one for the head after a prefill. A
//! product over few rows streams its weights past f32 activations (`stream`); over more rows its input is
//! staged as f16 and multiplied on tensor cores (`gemm`). Exact products always stream. The target's tuning
//! chooses the tiling of kernels; if its figures do not fit the card's shared memory, the nearest that do are
//! taken.
//!
//! Kernels are declared in [`crate::kernels`]. A launch is built from one of their structs of arguments,
//! which also determines the kernel.
//!
//! The arithmetic of shapes (threads, grids, bytes of shared memory and scratch) exists twice, in the
//! kernels' headers and here. Every emitted kernel asserts that the two agree.

mod draft;
mod matrix;
mod outline;
mod streams;
mod tower;

use super::{PassError, pass_error};
pub(crate) use matrix::{Matrix, routed_by};
pub(crate) use outline::{Outline, Site};

use crate::graph::{BodyId, Rows};
use crate::kernels::{
    Arguments, FILL_MATRIX, FILL_VECTOR, Header, Operand, Planes, Rows as RowsOf, Signature, World,
};
use crate::plan::cuda::{
    Argument, Constant, CudaPlan, Extent, Kernel, Launch, Module, Program, Regime, Scratch,
};
use crate::plan::{
    Boundaries, Buckets, BufferId, FieldId, FieldKind, Launched, Lowered, LoweredPhase, NO_HEADS, PlanBody,
    TowerPlan, packed,
};
use crate::spec::types::{Cuda, Knobs, Tuning};
use monomorph_formats::{E4M3_GROUP, Format};
use std::collections::BTreeSet;

/// Percentage of shared memory while weights are streamed past few rows. All kernels of a program share one
/// value: a multiprocessor must be empty to change it, so no kernel could start beside its predecessor. It is
/// less than all, so that the next kernel does not fill its ring with weights too early. Measured on an H200
/// with a Llama of 1B, microseconds a step at 1, 2 and 4 rows: 688, 709, 750; with all of it 710, 686, 832;
/// left to the driver 710, 754, 831. From 16 rows on the driver's choice is as good or better (995 against
/// 1,024 at 32).
pub(crate) const STREAM_SHARED_PART: u32 = 75;

/// Builds the launches of a CUDA target's phases, and counts the launches of each phase and the rows of each
/// buffer. On any other target a phase is one loop nest.
///
/// # Errors
/// When no kernel takes a phase's formats, or none fits the card.
/// When a phase has no kernel for its formats, or none that fits the card.
pub(crate) fn launch(lowered: Lowered) -> Result<Launched, PassError> {
    let (Some(card), Some(tuning)) = (lowered.target.hardware.cuda(), &lowered.target.tuning) else {
        let one = Boundaries { decode: 1.0, verify: 1.0, prefill: 1.0 };
        let boundaries = lowered.bodies.iter().map(|body| vec![one; body.phases.len()]).collect();
        let Buckets { tokens, sequences, .. } = lowered.buckets;
        let rows = lowered.buffers.iter().map(|buffer| match buffer.rows {
            Rows::Tokens => tokens,
            Rows::Outputs => sequences,
            Rows::Slots(slots) => slots * tokens,
            Rows::Patches => lowered.tower.as_ref().map_or(0, |tower| tower.most_patches),
            Rows::ImageTokens => lowered.tower.as_ref().map_or(0, TowerPlan::most_tokens),
        });
        return Ok(Launched { rows: rows.collect(), lowered, cuda: None, boundaries });
    };
    let mut launcher = Launcher {
        plan: &lowered,
        card,
        tuning,
        modules: Vec::new(),
        scratch: Vec::new(),
        most: vec![0; lowered.buffers.len()],
        chunk_alignment: 1,
    };
    let (buckets, tokens) = (lowered.buckets, 1 + lowered.drafts());
    let decode = buckets.decode.iter().copied().filter(|sequences| *sequences <= buckets.sequences);
    // Every step has a draft head's drafts; looked-up drafts may be missing.
    let mut outlines: Vec<Outline> = match lowered.draft.is_some() || tokens == 1 {
        true => decode.map(|sequences| Outline::decode(sequences, tokens)).collect(),
        false => {
            let plain = decode.clone().map(|sequences| Outline::decode(sequences, 1));
            plain.chain(decode.map(|sequences| Outline::verify(sequences, tokens))).collect()
        }
    };
    let short = buckets.prefill.iter().copied().filter(|tokens| *tokens < buckets.tokens);
    let prefill = short.map(|tokens| (format!("prefill_{tokens}"), Regime::Prefill, tokens));
    let rest = [("prefill", Regime::Prefill, buckets.tokens), ("head", Regime::Head, buckets.sequences)];
    for (name, regime, rows) in
        prefill.chain(rest.map(|(name, regime, rows)| (name.to_owned(), regime, rows)))
    {
        outlines.push(Outline { name, regime, rows, sequences: buckets.sequences, tokens: 1 });
    }
    let mut programs: Vec<Program> =
        outlines.iter().map(|outline| launcher.program(outline)).collect::<Result<_, _>>()?;
    programs.extend(launcher.draft_programs()?);
    programs.extend(launcher.tower_programs()?);
    let mut fills = launcher.fills();
    let Launcher { mut modules, scratch, most, chunk_alignment, .. } = launcher;
    // A program whose kernels are all in earlier modules leaves an empty module: drop it.
    let kept: Vec<usize> = (0..modules.len()).filter(|at| !modules[*at].kernels.is_empty()).collect();
    let renumber = |place: &mut (usize, usize)| {
        place.0 = kept.iter().position(|at| *at == place.0).expect("a module with this kernel");
    };
    let launches = programs.iter_mut().flat_map(Program::launches_mut);
    launches.map(|launch| &mut launch.kernel).chain(&mut fills).for_each(renumber);
    modules.retain(|module| !module.kernels.is_empty());
    streams::divide(&mut programs, &modules);
    let boundaries = boundaries(&lowered, &programs);
    let cuda = Some(CudaPlan { programs, modules, scratch, fills, chunk_alignment });
    Ok(Launched { lowered, rows: most, cuda, boundaries })
}

/// Launches of each phase, for one token and for a prompt.
fn boundaries(plan: &Lowered, programs: &[Program]) -> Vec<Vec<Boundaries>> {
    let launches = |program: &Program, body: usize, phase: usize| {
        program.bodies[body].iter().filter(|launch| launch.phase == phase).count() as f64
    };
    let decode = programs.iter().find(|program| program.regime == Regime::Decode).expect("one of each");
    let last = |regime| programs.iter().rfind(|program| program.regime == regime).expect("one of each");
    let (prefill, head) = (last(Regime::Prefill), last(Regime::Head));
    let of_body = |(index, body): (usize, &PlanBody<LoweredPhase>)| {
        if plan.in_tower(BodyId(index)) {
            return tower::boundaries(programs, BodyId(index), body.phases.len());
        }
        let of_drafts = draft::boundaries(plan, programs, BodyId(index));
        let of_phase = |at: usize| {
            // Sampling follows the last phase.
            let samples = index == plan.head().0 && at + 1 == body.phases.len();
            let tail = |program: &Program| if samples { program.tail.len() as f64 } else { 0.0 };
            let decoding = launches(decode, index, at) + tail(decode);
            let prefilling = launches(prefill, index, at) + launches(head, index, at) + tail(head);
            Boundaries { decode: decoding, verify: decoding, prefill: prefilling }
        };
        of_drafts.unwrap_or_else(|| (0..body.phases.len()).map(of_phase).collect())
    };
    plan.bodies.iter().enumerate().map(of_body).collect()
}

/// Strategy of a product.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Style {
    /// Streams weights past f32 activations.
    Stream,
    /// Stages activations as f16 and multiplies tiles on tensor cores.
    Gemm,
    /// Quantises activations to e4m3 and multiplies codes by codes.
    Codes,
}

pub(crate) struct Launcher<'a> {
    pub(crate) plan: &'a Lowered,
    pub(crate) card: &'a Cuda,
    tuning: &'a Tuning,
    modules: Vec<Module>,
    scratch: Vec<Scratch>,
    /// Most rows of each buffer.
    pub(crate) most: Vec<usize>,
    /// [`CudaPlan::chunk_alignment`] of the launches so far.
    chunk_alignment: usize,
}

impl<'a> Launcher<'a> {
    /// Starts the module of a program.
    pub(crate) fn begin(&mut self, outline: &Outline) {
        let streams =
            outline.regime == Regime::Decode && outline.rows <= self.tuning.knobs.stream_rows as usize;
        let shared_part = streams.then_some(STREAM_SHARED_PART);
        self.modules.push(Module { name: outline.name.clone(), shared_part, kernels: Vec::new() });
    }

    pub(crate) fn program(&mut self, outline: &Outline) -> Result<Program, PassError> {
        self.begin(outline);
        let last = self.plan.head().0;
        let mut bodies = Vec::new();
        for (index, body) in self.plan.bodies.iter().enumerate() {
            let runs = match outline.regime {
                Regime::Decode => index <= last,
                Regime::Prefill => index < last,
                Regime::Head => index == last,
                Regime::Learn | Regime::Draft | Regime::See => false,
            };
            let mut launches = Vec::new();
            for phase in (0..body.phases.len()).filter(|_| runs) {
                self.phase(
                    Site { program: outline, body: index, phase, pass: None, header: Header::STEP },
                    &mut launches,
                )?;
            }
            bodies.push(launches);
        }
        let mut tail = if outline.regime.samples() { vec![self.sample(outline)?] } else { Vec::new() };
        let mut passes = Vec::new();
        if outline.regime == Regime::Decode && self.plan.draft.is_some() {
            tail.push(self.accept(outline));
            passes = self.first_pass(outline)?;
        }
        let Outline { name, regime, rows, sequences, tokens } = outline;
        Ok(Program {
            name: name.clone(),
            rows: *rows,
            sequences: *sequences,
            tokens: *tokens,
            regime: *regime,
            bodies,
            tail,
            passes,
        })
    }

    pub(crate) fn phase(&mut self, site: Site, launches: &mut Vec<Launch>) -> Result<(), PassError> {
        self.at(site).kind.kind().cuda(self, site, launches)
    }

    /// The kernels that generate dummy weights, in a module of their own: one per format, and one for
    /// vectors.
    pub(crate) fn fills(&mut self) -> Vec<(usize, usize)> {
        self.modules.push(Module { name: "fill".to_owned(), shared_part: None, kernels: Vec::new() });
        let (name, regime) = ("fill".to_owned(), Regime::Prefill);
        let outline = Outline { name, regime, rows: 0, sequences: 0, tokens: 1 };
        let fields = (0..self.plan.fields.len()).map(FieldId);
        let fill = |id: FieldId| {
            let (signature, name, constants) = match self.plan.field(id).kind {
                FieldKind::Matrix { .. } => {
                    let matrix = self.matrix(id);
                    let name = format!("fill_{}", matrix.format.name().replace('-', "_"));
                    (FILL_MATRIX, name, matrix.names().to_vec())
                }
                FieldKind::Vector { .. } | FieldKind::Norm { .. } | FieldKind::Convolution { .. } => {
                    (FILL_VECTOR, "fill_vectors".to_owned(), Vec::new())
                }
                FieldKind::Heads { .. } => unreachable!("{NO_HEADS}"),
            };
            self.kernel(&outline, signature, Instance::new(name, constants, 256), &[])
        };
        fields.map(fill).collect()
    }

    pub(crate) fn at(&self, site: Site) -> &'a LoweredPhase {
        &self.plan.bodies[site.body].phases[site.phase]
    }

    pub(crate) fn knobs(&self, site: Site) -> Knobs {
        let mut knobs = self.tuning.of(&self.at(site).name, site.program.bucket());
        if knobs.stream_kernels == 0 {
            knobs.stream_kernels = if self.fills_registers() { 1 } else { 2 };
        }
        knobs
    }

    /// Whether a decode kernel takes all registers of a multiprocessor. Where its grid ends, no other block
    /// shares the multiprocessor, and as many blocks of the next kernel start there as fit: two on some
    /// multiprocessors and none on others, which persists for the rest of a step. Measured on an H200: every
    /// launch of a 35B after such a kernel had 68 of 132 multiprocessors.
    pub(crate) fn fills_registers(&self) -> bool {
        let mut kinds = self.plan.bodies.iter().flat_map(|body| &body.phases).map(|phase| &phase.kind);
        kinds.any(|kind| kind.kind().fills_registers())
    }

    /// Aligns prefill chunks to multiples of `tokens`, the chunk of a kernel's recurrence.
    pub(crate) fn cut_prompts_at(&mut self, tokens: usize) {
        let (mut common, mut rest) = (self.chunk_alignment, tokens);
        while rest > 0 {
            (common, rest) = (rest, common % rest);
        }
        self.chunk_alignment *= tokens / common;
    }

    /// Rows of a buffer in a program.
    pub(crate) fn rows(&self, outline: &Outline, buffer: BufferId) -> usize {
        match self.plan.buffer(buffer).rows {
            Rows::Tokens => outline.rows,
            Rows::Outputs => outline.rows,
            Rows::Slots(slots) => slots * outline.rows,
            // Of a tower the outline says what are counted: patches, or the tokens that they become.
            Rows::Patches if outline.outputs() => outline.rows * self.merged(),
            Rows::ImageTokens if !outline.outputs() => outline.rows / self.merged(),
            Rows::Patches | Rows::ImageTokens => outline.rows,
        }
    }

    /// An activation buffer as an argument; makes it large enough for the program's rows. A program without a
    /// selection reads in place what would have been selected.
    pub(crate) fn buffer(&mut self, site: Site, id: BufferId) -> RowsOf {
        let id = self.unselected(site, id);
        // A selection reads a buffer that other programs filled.
        let rows = if site.program.outputs() && self.plan.buffer(id).rows == Rows::Tokens {
            self.most[id.0]
        } else {
            self.rows(site.program, id)
        };
        self.most[id.0] = self.most[id.0].max(rows);
        RowsOf::buffer(id)
    }

    /// Scratch of this name, of at least `bytes`.
    pub(crate) fn scratch<T: Operand>(&mut self, name: &str, bytes: u64, zeroed: bool) -> T {
        let index = self.scratch.iter().position(|scratch| scratch.name == name).unwrap_or_else(|| {
            self.scratch.push(Scratch { name: name.to_owned(), bytes: 0, zeroed });
            self.scratch.len() - 1
        });
        let scratch = &mut self.scratch[index];
        scratch.bytes = scratch.bytes.max(bytes.next_multiple_of(256));
        T::new(Argument::Scratch(index))
    }

    /// A phase's launch of an instance of the kernel with these arguments.
    pub(crate) fn launch<A: Arguments>(
        &mut self,
        site: Site,
        instance: Instance,
        grid: [Extent; 3],
        arguments: A,
    ) -> Launch {
        let kernel = self.kernel(site.program, A::SIGNATURE, instance, &grid);
        Launch::new(site.phase, kernel, grid, arguments.list())
    }

    /// Module and index of a kernel: of an equal one from an earlier program, or of a new one in this
    /// program's module.
    ///
    /// # Panics
    /// When the instance's constants or the names of its bytes are not those of the kernel's declaration.
    pub(crate) fn kernel(
        &mut self,
        outline: &Outline,
        signature: &'static Signature,
        instance: Instance,
        grid: &[Extent],
    ) -> (usize, usize) {
        signature.check(&instance.constants).unwrap_or_else(|why| panic!("{why}"));
        let figures = figures(signature, &instance, grid);
        let Instance { name, constants, threads, resident, cluster, shared, bytes: _ } = instance;
        let [block, resident, cluster, shared] = [threads, resident, cluster, shared].map(count);
        let decode = outline.regime == Regime::Decode;
        let mut kernel =
            Kernel { name, signature, constants, figures, block, resident, cluster, shared, decode };
        for (module, earlier) in self.modules.iter_mut().enumerate() {
            if let Some(index) = earlier.kernels.iter().position(|known| known.is_like(&kernel)) {
                earlier.kernels[index].decode |= decode;
                return (module, index);
            }
        }
        let module = self.modules.len() - 1;
        let kernels = &mut self.modules[module].kernels;
        if kernels.iter().any(|known| known.name == kernel.name) {
            let free = (2..).map(|i| format!("{}_{i}", kernel.name));
            kernel.name = free
                .into_iter()
                .find(|name| kernels.iter().all(|known| known.name != *name))
                .expect("there are enough numbers");
        }
        kernels.push(kernel);
        (module, kernels.len() - 1)
    }

    /// A phase's name as a kernel name, prefixed with its body's if several kinds of layer have a phase of
    /// that name.
    pub(crate) fn kernel_name(&self, site: Site, suffix: &str) -> String {
        let (body, phase) = (&self.plan.bodies[site.body], self.at(site));
        let name = phase.name.replace('-', "_");
        let others =
            self.plan.bodies.iter().filter(|other| other.phases.iter().any(|it| it.name == phase.name));
        // A tied head is named after the embedding; the embedding's phase is not.
        let name = if others.count() > 1 { format!("{}_{name}", body.name.replace('-', "_")) } else { name };
        format!("{name}{suffix}")
    }

    /// The matrix behind a product or the embedding.
    pub(crate) fn matrix(&self, id: FieldId) -> Matrix {
        let field = self.plan.field(id);
        let FieldKind::Matrix { format, scales, compute, rows, columns, packing, experts } = field.kind
        else {
            unreachable!("products and embeddings have matrices")
        };
        let format = if packed::halves(format, compute) { Format::F16 } else { format };
        let (exact, routed) = (compute.is_exact(), field.all_experts(self.plan.target.ranks));
        Matrix { format, scales, exact, compute, rows, columns, packing, experts, routed }
    }

    /// One block per `rows_a_block` rows of the step in x; in a captured graph, of the bucket.
    pub(crate) fn grid_of_rows(&self, site: Site, rows_a_block: usize) -> [Extent; 3] {
        let mut grid = fixed(site.program.rows.div_ceil(rows_a_block), 1, 1);
        match site.program.regime {
            Regime::Decode | Regime::Draft | Regime::See => {}
            Regime::Prefill | Regime::Learn => grid[0] = Extent::Tokens(count(rows_a_block)),
            Regime::Head => grid[0] = Extent::Outputs(count(rows_a_block)),
        }
        grid
    }

    /// The planes of a matrix as arguments.
    pub(crate) fn planes(&self, id: FieldId) -> Planes {
        let planes = self.plan.field(id).planes().expect("a matrix has planes");
        Planes::of(id, [planes.scales > 0, planes.row_scales > 0])
    }
}

/// What a kernel needs that sums over the ranks what it computes.
pub(crate) struct Summing {
    pub(crate) world: World,
    /// Ranks, and rows of their inboxes.
    pub(crate) constants: [Member; 2],
    /// Memory, by the names of the kernel's declaration.
    pub(crate) bytes: Vec<(&'static str, usize)>,
}

/// A kernel as a program uses it: its constants and its block.
pub(crate) struct Instance {
    pub(crate) name: String,
    pub(crate) constants: Vec<Member>,
    /// Threads of a block.
    pub(crate) threads: usize,
    /// Blocks per multiprocessor that registers must allow.
    pub(crate) resident: usize,
    /// Blocks of a cluster.
    pub(crate) cluster: usize,
    /// Bytes of dynamic shared memory.
    pub(crate) shared: usize,
    /// Bytes of memory, by the names of the kernel's declaration.
    pub(crate) bytes: Vec<(&'static str, usize)>,
}

impl Instance {
    /// Makes it sum over ranks: the world that it takes.
    pub(crate) fn summing(&mut self, summing: Summing) -> World {
        let Summing { world, constants, bytes } = summing;
        self.constants.extend(constants);
        self.bytes.extend(bytes);
        world
    }

    pub(crate) fn new(name: String, constants: Vec<Member>, threads: usize) -> Instance {
        Instance { name, constants, threads, resident: 1, cluster: 1, shared: 0, bytes: Vec::new() }
    }
}

/// The figures of a launch that C++ computes too, with their expressions.
fn figures(signature: &Signature, instance: &Instance, grid: &[Extent]) -> Vec<(&'static str, u64)> {
    let given: BTreeSet<&str> = instance.bytes.iter().map(|(name, _)| *name).collect();
    let declared: BTreeSet<&str> = signature.bytes.iter().map(|(name, _)| *name).collect();
    assert_eq!(given, declared, "the bytes that `{}` declares", signature.function);
    let blocks = signature.grid.iter().filter_map(|(axis, blocks)| match grid.get(*axis) {
        Some(Extent::Fixed(planned)) => Some((*blocks, u64::from(*planned))),
        _ => None,
    });
    let bytes = signature.bytes.iter().flat_map(|(name, bytes)| {
        let planned = instance.bytes.iter().filter(move |(it, _)| it == name);
        planned.map(|(_, planned)| (*bytes, *planned as u64))
    });
    blocks.chain(bytes).collect()
}

/// A member of a kernel's struct of constants.
pub(crate) type Member = (&'static str, Constant);

/// The member of a kernel whose sum takes the place of what there was.
pub(crate) const REPLACING: Member = ("REPLACES", Constant::Flag(true));

pub(crate) fn count(number: usize) -> u32 {
    u32::try_from(number).expect("figures of a launch are far below 2^32")
}

pub(crate) fn value(text: impl Into<String>) -> Constant {
    Constant::Value(text.into())
}

pub(crate) fn integer(number: usize) -> Constant {
    Constant::Integer(i64::try_from(number).expect("dimensions are far below 2^63"))
}

pub(crate) fn fixed(x: usize, y: usize, z: usize) -> [Extent; 3] {
    [x, y, z].map(|n| Extent::Fixed(u32::try_from(n).expect("grids are far below 2^32")))
}

/// Bytes of a staged buffer (templates/cuda/core/staged.cuh).
pub(crate) fn staged_bytes(capacity: usize, width: usize) -> usize {
    (width.div_ceil(64) * 128 + 4) * capacity
}

/// Bytes of a quantised buffer (templates/cuda/core/quantised.cuh).
pub(crate) fn quantised_bytes(capacity: usize, width: usize) -> usize {
    (width + 4 * (width / E4M3_GROUP)) * capacity
}

/// Whether a block of `shared` bytes fits, and `resident` of them fit a multiprocessor.
pub(crate) fn fits(card: &Cuda, shared: usize, resident: usize) -> bool {
    // The system reserves 1 KiB for each resident block.
    shared <= card.shared_per_block as usize
        && resident * (shared + 1024) <= card.shared_per_multiprocessor as usize
}

/// Shared memory that keeps a second block of the same kernel off a multiprocessor.
pub(crate) fn alone(card: &Cuda) -> usize {
    (card.shared_per_multiprocessor as usize / 2 - 1024 + 16).next_multiple_of(16)
}

pub(crate) fn no_kernel(site: Site, plan: &Lowered, what: &str) -> PassError {
    let body = &plan.bodies[site.body];
    pass_error!("`{}` of `{}` in `{}`: {what}", body.phases[site.phase].name, body.name, site.program.name)
}
