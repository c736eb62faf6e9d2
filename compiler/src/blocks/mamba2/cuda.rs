//! Mamba-2 on a CUDA device. Decode is one launch. Prefill is three: the part that needs no state, the chunks
//! in sequence, then gate and norm. Heads of other widths and exact arithmetic take two.

use super::Mamba2;
use super::kernels::{Mamba2Chunks, Mamba2Decode, Mamba2Gate, Mamba2Plain, Mamba2Prepare};
use super::spec::Shape;
use crate::blocks::recurrent::{CHUNK, Chunks, CudaState, FACTORS, Journals, States, Windows, chunks_shared};
use crate::graph::BodyId;
use crate::kernels::{Rows, Vector};
use crate::passes::PassError;
use crate::passes::launch::{Instance, Launcher, Member, Site, count, fits, fixed, integer, no_kernel};
use crate::plan::cuda::{Constant, Extent, Launch, Regime};
use crate::plan::{BufferId, FieldId};
use crate::spec::types::{Cuda, TensorClass};

/// Width of the state that the chunked kernels take, and of the heads that they prepare together.
const CHUNK_DIM: usize = 128;
/// Threads of mamba2_prepare, mamba2_gate, mamba2_plain and mamba2_decode.
const PREPARE_THREADS: usize = 128;
const GATE_THREADS: usize = 256;
const PLAIN_THREADS: usize = 128;
const DECODE_THREADS: usize = 256;
/// Registers per thread of mamba2_decode.
const DECODE_REGISTERS: usize = 128;
/// Most slots in the ring of mamba2_chunks, and the fewest that work.
const SLOTS: usize = 8;
const LEAST_SLOTS: usize = 4;

/// How mamba2_decode divides a group of heads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Division {
    /// Blocks of a cluster that share a group.
    split: usize,
    /// Threads of a block.
    threads: usize,
}

impl Division {
    /// The division for this many sequences of `tokens` each; `None` for shapes the kernel does not take. Few
    /// groups leave most of the card idle, so a cluster shares one; two blocks fit a multiprocessor.
    /// Predictions are in mamba2_decode.cuh.
    fn new(shape: &Shape, sequences: usize, tokens: usize, card: &Cuda) -> Option<Division> {
        let (blocks, places) = (sequences * shape.groups, 2 * card.multiprocessors as usize);
        let most = if card.clusters { 8 } else { 1 };
        let splits = std::iter::successors(Some(most), |split| (*split > 1).then_some(split / 2));
        // Narrow heads with a short state have fewer rows than threads of a large block.
        let threads = || std::iter::successors(Some(DECODE_THREADS), |it| (*it > 32).then_some(it / 2));
        splits
            .filter(|split| *split == 1 || blocks * split <= places)
            .flat_map(|split| threads().map(move |threads| Division { split, threads }))
            .find(|division| division.takes(shape, tokens, card))
    }

    /// The conditions of `Mamba2Decode<C>`.
    fn takes(self, shape: &Shape, tokens: usize, card: &Cuda) -> bool {
        let Division { split, threads } = self;
        let heads = shape.heads / shape.groups / split;
        if !(shape.heads / shape.groups).is_multiple_of(split) || !shape.head_dim.is_multiple_of(4) {
            return false;
        }
        let quads = shape.head_dim / 4;
        if !32usize.is_multiple_of(quads) || !shape.state.is_multiple_of(threads / quads) {
            return false;
        }
        let rows = shape.state / (threads / quads);
        let items = (heads * shape.head_dim + 2 * shape.state).div_ceil(threads);
        let registers = (4 * rows + 8 * items + 40).max(8 * rows + 40);
        let together = tokens * heads.max(split) <= threads;
        registers <= DECODE_REGISTERS && together && fits(card, self.shared(shape, tokens), 1)
    }

    /// `sizeof(Mamba2DecodeShared<C>)`.
    fn shared(self, shape: &Shape, tokens: usize) -> usize {
        let heads = shape.heads / shape.groups / self.split;
        let columns = heads * shape.head_dim;
        let buffers = if tokens == 1 { 2 } else { 1 };
        let inputs = (4 * tokens * (columns + 2 * shape.state)).next_multiple_of(16);
        let sums = 4 * buffers * tokens * self.threads / 32 * shape.head_dim;
        let floats = tokens * columns + columns + 2 * tokens * heads + heads + tokens + tokens * self.split;
        (inputs + sums + 4 * floats).next_multiple_of(16)
    }
}

/// The operands of the phase.
struct Operands {
    shape: Shape,
    constants: Vec<Member>,
    /// z, x, B, C and dt.
    projected: Rows,
    convolution: Vector,
    convolution_bias: Vector,
    a_log: Vector,
    dt_bias: Vector,
    d: Vector,
    norm: Vector,
    states: States,
    windows: Windows,
    journals: Journals,
    /// The layout of the recurrent state.
    state: CudaState,
    out: Rows,
}

impl Launcher<'_> {
    pub(crate) fn mamba2(
        &mut self,
        site: Site,
        phase: &Mamba2,
        launches: &mut Vec<Launch>,
    ) -> Result<(), PassError> {
        let operands = self.mamba2_operands(site, phase);
        let shape = operands.shape;
        let exact =
            self.plan.target.quant.compute.classes.get(&TensorClass::Mamba2).is_none_or(|it| it.is_exact());
        let decode = site.program.regime == Regime::Decode;
        if decode && !exact {
            let (sequences, tokens) = (site.program.sequences, site.program.tokens);
            if let Some(division) = Division::new(&shape, sequences, tokens, self.card) {
                launches.push(self.mamba2_decode(site, operands, division));
                return Ok(());
            }
        }
        let y: Rows = self.scratch("mamba2_y", (4 * site.program.rows * shape.inner()) as u64, false);
        let chunked = !exact && !decode && chunked(&shape, self.plan.buffer(phase.projected).width);
        match self.mamba2_slots().filter(|_| chunked) {
            Some(slots) => self.mamba2_chunks(site, &operands, slots, y, launches),
            None => launches.push(self.mamba2_plain(site, &operands, exact, y)?),
        }
        launches.push(self.mamba2_gate(site, operands, exact, y));
        Ok(())
    }

    fn mamba2_operands(&mut self, site: Site, phase: &Mamba2) -> Operands {
        let shape = phase.shape;
        let state = CudaState::new(&shape.recurrence(), shape.keys(), self.plan.drafts());
        let (states, windows, journals) = state.places(BodyId(site.body));
        let constants = vec![
            ("HEADS", integer(shape.heads)),
            ("HEAD_DIM", integer(shape.head_dim)),
            ("GROUPS", integer(shape.groups)),
            ("STATE", integer(shape.state)),
            ("TAPS", integer(shape.taps)),
            ("WINDOW", integer(state.window)),
            ("NORM_EPS", Constant::Float(phase.eps)),
            ("PROJECTED", integer(self.plan.buffer(phase.projected).width)),
            ("DRAFTS", integer(state.drafts)),
        ];
        let weight = |field: FieldId| Vector::field(Some(field));
        let mut buffer = |id: BufferId| self.buffer(site, id);
        Operands {
            shape,
            constants,
            projected: buffer(phase.projected),
            convolution: weight(phase.convolution),
            convolution_bias: weight(phase.convolution_bias),
            a_log: weight(phase.a_log),
            dt_bias: weight(phase.dt_bias),
            d: weight(phase.d),
            norm: weight(phase.norm),
            states,
            windows,
            journals,
            state,
            out: buffer(phase.out),
        }
    }

    fn mamba2_decode(&mut self, site: Site, operands: Operands, division: Division) -> Launch {
        let Operands { shape, state, mut constants, .. } = operands;
        let Division { split, threads } = division;
        constants.extend([
            ("SPLIT", integer(split)),
            ("THREADS", integer(threads)),
            // Header and older state are complete before a step's graph starts, as in attention.
            ("STATE_BEFORE_WAIT", Constant::Flag(true)),
        ]);
        constants.extend(self.verified(site));
        let Operands { projected, convolution, convolution_bias, a_log, dt_bias, d, norm, .. } = operands;
        let Operands { states, windows, journals, out, .. } = operands;
        let arguments = Mamba2Decode {
            step: site.header,
            projected,
            convolution,
            convolution_bias,
            a_log,
            dt_bias,
            d,
            norm,
            states,
            windows,
            journals,
            out,
        };
        let instance = Instance {
            resident: 65_536 / (threads * DECODE_REGISTERS),
            cluster: split,
            shared: division.shared(&shape, site.program.tokens),
            bytes: vec![state.matrices(), state.windows(), state.journals()],
            ..Instance::new(self.kernel_name(site, ""), constants, threads)
        };
        let grid = fixed(split, shape.groups, site.program.sequences);
        self.launch(site, instance, grid, arguments)
    }

    /// Slots of mamba2_chunks' ring: as many as leave room for two blocks on a multiprocessor, or else for
    /// one; `None` if even the fewest do not fit the card.
    fn mamba2_slots(&self) -> Option<usize> {
        let slots = |resident| {
            let all = (LEAST_SLOTS..=SLOTS).rev();
            all.into_iter().find(|slots| fits(self.card, chunks_shared(*slots, CHUNK_DIM, 0), resident))
        };
        slots(2).or_else(|| slots(1))
    }

    fn mamba2_chunks(
        &mut self,
        site: Site,
        operands: &Operands,
        slots: usize,
        y: Rows,
        launches: &mut Vec<Launch>,
    ) {
        let shape = operands.shape;
        let places = self.card.multiprocessors as usize;
        let chunks = site.program.rows / CHUNK + self.plan.buckets.sequences;
        let bytes = chunks * chunk_bytes(&shape);
        let scratch: Chunks = self.scratch("mamba2_chunks", bytes as u64, false);
        let Operands { projected, convolution, convolution_bias, a_log, dt_bias, d, .. } = *operands;
        let Operands { states, windows, journals, .. } = *operands;
        let step = site.header;

        let mut constants = operands.constants.clone();
        constants.extend([
            ("ROWS", integer(site.program.rows)),
            ("SEQUENCES", integer(self.plan.buckets.sequences)),
        ]);
        let shared = prepare_shared(&shape);
        let resident = (1..=3).rev().find(|it| fits(self.card, shared, *it)).unwrap_or(1);
        let instance = Instance {
            resident,
            shared,
            bytes: vec![operands.state.windows(), ("chunks", bytes)],
            ..Instance::new(self.kernel_name(site, "_prepare"), constants, PREPARE_THREADS)
        };
        let arguments = Mamba2Prepare {
            step,
            projected,
            convolution,
            convolution_bias,
            a_log,
            dt_bias,
            d,
            windows,
            scratch,
        };
        // Blocks loop over chunks, so the grid is as many as can be resident.
        launches.push(self.launch(site, instance, fixed(resident * places, 1, 1), arguments));

        let mut constants = operands.constants.clone();
        constants.push(("SLOTS", integer(slots)));
        let threads = 32 * (shape.head_dim / 16);
        let instance = Instance {
            shared: chunks_shared(slots, CHUNK_DIM, 0),
            bytes: vec![operands.state.matrices(), operands.state.journals()],
            ..Instance::new(self.kernel_name(site, "_chunks"), constants, threads)
        };
        let grid = [Extent::Fixed(count(shape.heads)), Extent::Sequences(1), Extent::Fixed(1)];
        let arguments = Mamba2Chunks { step, scratch, states, journals, y };
        // A recurrence chunk never crosses a prefill chunk.
        self.cut_prompts_at(CHUNK);
        launches.push(self.launch(site, instance, grid, arguments));
    }

    fn mamba2_plain(
        &mut self,
        site: Site,
        operands: &Operands,
        exact: bool,
        y: Rows,
    ) -> Result<Launch, PassError> {
        let shape = operands.shape;
        let shared = 4 * (shape.state * shape.head_dim + 2 * shape.state + shape.head_dim);
        if !fits(self.card, shared, 1) {
            let what = format!(
                "the state of a head, {} x {}, does not fit the card's shared memory",
                shape.state, shape.head_dim
            );
            return Err(no_kernel(site, self.plan, &what));
        }
        let mut constants = operands.constants.clone();
        constants.push(("EXACT", Constant::Flag(exact)));
        constants.extend(self.verified(site));
        let Operands { projected, convolution, convolution_bias, a_log, dt_bias, d, .. } = *operands;
        let Operands { states, windows, journals, .. } = *operands;
        let arguments = Mamba2Plain {
            step: site.header,
            projected,
            convolution,
            convolution_bias,
            a_log,
            dt_bias,
            d,
            states,
            windows,
            journals,
            y,
        };
        let mut grid = fixed(shape.heads, site.program.sequences, 1);
        if site.program.regime != Regime::Decode {
            grid[1] = Extent::Sequences(1);
        }
        let state = &operands.state;
        let bytes = vec![state.matrices(), state.windows(), state.journals()];
        let name = self.kernel_name(site, "_plain");
        let instance = Instance { shared, bytes, ..Instance::new(name, constants, PLAIN_THREADS) };
        Ok(self.launch(site, instance, grid, arguments))
    }

    /// Launches gate and norm after the recurrence of all tokens.
    fn mamba2_gate(&mut self, site: Site, operands: Operands, exact: bool, y: Rows) -> Launch {
        let Operands { mut constants, projected, norm, windows, state, out, .. } = operands;
        constants.push(("EXACT", Constant::Flag(exact)));
        let arguments = Mamba2Gate { step: site.header, projected, y, norm, windows, out };
        let name = self.kernel_name(site, "_gate");
        let instance =
            Instance { bytes: vec![state.windows()], ..Instance::new(name, constants, GATE_THREADS) };
        self.launch(site, instance, self.grid_of_rows(site, 1), arguments)
    }
}

/// The conditions of `Mamba2PrepareShared<C>`, for rows of `projected` floats.
fn chunked(shape: &Shape, projected: usize) -> bool {
    let together = CHUNK_DIM / shape.head_dim.max(1);
    shape.state == CHUNK_DIM
        && shape.head_dim.is_multiple_of(16)
        && together * shape.head_dim == CHUNK_DIM
        && (shape.heads / shape.groups).is_multiple_of(together)
        && projected.is_multiple_of(4)
}

/// `sizeof(Mamba2PrepareShared<C>)`: B, then C or x; sums and time steps of the heads that x holds.
fn prepare_shared(shape: &Shape) -> usize {
    2 * CHUNK * (CHUNK_DIM + 8) * 2 + 2 * CHUNK_DIM / shape.head_dim * CHUNK * 4
}

/// `Mamba2Scratch<C>::CHUNK`.
fn chunk_bytes(shape: &Shape) -> usize {
    let head = CHUNK * CHUNK * 2 + FACTORS + CHUNK * shape.head_dim * 2;
    shape.groups * 2 * CHUNK * shape.state * 2 + shape.heads * head
}
