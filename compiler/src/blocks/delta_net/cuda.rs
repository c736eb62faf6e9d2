//! The gated delta-net on a CUDA device. Decode is one launch. Prefill is three: the part that needs no
//! state, the chunks in sequence, then norm and gate. Heads of other widths and exact arithmetic take two.

use super::Delta;
use super::kernels::{DeltaChunks, DeltaDecode, DeltaGate, DeltaPlain, DeltaPrepare};
use super::state::DeltaShape;
use crate::blocks::recurrent::{CHUNK, Chunks, CudaState, FACTORS, Journals, States, Windows, chunks_shared};
use crate::graph::BodyId;
use crate::kernels::{Rows, Vector};
use crate::passes::PassError;
use crate::passes::launch::{Instance, Launcher, Member, Site, count, fits, fixed, integer, no_kernel};
use crate::plan::cuda::{Constant, Extent, Launch, Regime};
use crate::plan::{FieldId, FieldKind};
use crate::spec::types::{Activation, Cuda, NormWeight, TensorClass, ValueHeads};

/// Width of the heads that the chunked kernels take.
const CHUNK_DIM: usize = 128;
/// Threads of delta_prepare, delta_gate and delta_plain.
const PREPARE_THREADS: usize = 256;
const GATE_THREADS: usize = 256;
const PLAIN_THREADS: usize = 128;
/// Most blocks of delta_prepare that share a multiprocessor: three would leave a thread too few registers.
const PREPARE_RESIDENT: usize = 2;
/// Slots in the ring of delta_chunks: the fastest measured, and the fewest that work.
const SLOTS: usize = 8;
const LEAST_SLOTS: usize = 5;
/// Registers per thread of delta_decode.
const DECODE_REGISTERS: usize = 128;

/// `delta_prepare_shared_bytes<C>()`: k, q and v of two heads, the matrices of the solve, the heads' gates.
fn prepare_shared(shape: &DeltaShape) -> usize {
    let ratio = shape.value_heads / shape.key_heads;
    3 * CHUNK * 136 * 2 + CHUNK * 68 * 4 + 2 * CHUNK * 72 * 2 + 2 * ratio * CHUNK * 4
}

/// How delta_decode divides a value head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Division {
    /// Blocks of a cluster that share a head.
    split: usize,
    threads: usize,
}

impl Division {
    /// The division for this many rows; `None` for heads the kernel does not take. Few heads leave most of
    /// the card idle, so a cluster shares one. Measurements and reasoning are in delta_decode.cuh.
    fn new(shape: &DeltaShape, rows: usize, card: &Cuda) -> Option<Division> {
        let (heads, places) = (rows * shape.value_heads, card.multiprocessors as usize);
        let split = if card.clusters { 4 } else { 1 };
        let splits = std::iter::successors(Some(split), |split| (*split > 1).then_some(split / 2));
        let wanted = splits.filter(|split| *split == 1 || heads * split <= places);
        let threads = |split: usize| {
            let alone = if heads <= places { [512, 256] } else { [256, 512] };
            alone.map(|threads| Division { split, threads: threads / split })
        };
        wanted.flat_map(threads).find(|division| division.takes(shape))
    }

    /// The conditions of `DeltaDecode<C>`.
    fn takes(self, shape: &DeltaShape) -> bool {
        let whole = shape.value_dim.is_multiple_of(32 * self.split) && self.threads >= 64;
        let sets = shape.value_dim / self.split / 32;
        if !whole || !(self.threads / 32).is_multiple_of(sets) {
            return false;
        }
        let groups = 4 * (self.threads / 32 / sets);
        shape.key_dim.is_multiple_of(groups) && 4 * (shape.key_dim / groups) + 32 <= DECODE_REGISTERS
    }

    /// `sizeof(DeltaDecodeShared<C>)`.
    fn shared(self, shape: &DeltaShape, tokens: usize) -> usize {
        let columns = shape.value_dim / self.split;
        let warps = self.threads / 32;
        let inputs = (4 * tokens * (2 * shape.key_dim + columns)).next_multiple_of(16) + 4 * tokens * columns;
        let squares = 4 * tokens * (columns / 32 + self.split);
        (inputs + 2 * warps * 8 * 2 * 16 + 2 * warps * 16 + squares).next_multiple_of(16)
    }
}

/// How delta_chunks divides a value head, and the ring of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Ring {
    /// Blocks that share a head.
    split: usize,
    slots: usize,
}

impl Ring {
    /// As many blocks a head as leave each block of one sequence a multiprocessor, and the deepest ring that
    /// fits the card; `None` if even the shallowest does not.
    fn new(shape: &DeltaShape, card: &Cuda) -> Option<Ring> {
        let places = card.multiprocessors as usize;
        let split = [4, 2].into_iter().find(|split| split * shape.value_heads <= places).unwrap_or(1);
        let rings = (LEAST_SLOTS..=SLOTS).rev().map(|slots| Ring { split, slots });
        rings.into_iter().find(|ring| fits(card, ring.shared(), 1))
    }

    /// Whether a warp besides brings what the others multiply, U included.
    const fn brings(self) -> bool {
        self.split > 1
    }

    /// `DeltaChunks<C>::THREADS`.
    fn threads(self) -> usize {
        32 * (CHUNK_DIM / self.split / 16 + usize::from(self.brings()))
    }

    /// `delta_chunks_shared_bytes<C>()`.
    fn shared(self) -> usize {
        let columns = if self.brings() { CHUNK_DIM / self.split } else { 0 };
        chunks_shared(self.slots, CHUNK_DIM, columns)
    }
}

/// The operands of the phase.
struct Operands {
    shape: DeltaShape,
    constants: Vec<Member>,
    /// q, k, v and z.
    projected: Rows,
    /// b and a.
    gates: Rows,
    convolution: Vector,
    a_log: Vector,
    dt_bias: Vector,
    norm: Vector,
    states: States,
    windows: Windows,
    journals: Journals,
    /// The layout of the recurrent state.
    state: CudaState,
    out: Rows,
}

impl Launcher<'_> {
    pub(crate) fn delta(
        &mut self,
        site: Site,
        phase: &Delta,
        launches: &mut Vec<Launch>,
    ) -> Result<(), PassError> {
        let operands = self.delta_operands(site, phase)?;
        let shape = operands.shape;
        let exact =
            self.plan.target.quant.compute.classes.get(&TensorClass::DeltaNet).is_none_or(|it| it.is_exact());
        let decode = site.program.regime == Regime::Decode;
        let division = if exact { None } else { Division::new(&shape, site.program.sequences, self.card) };
        match division {
            Some(division) if decode => {
                launches.push(self.delta_decode(site, operands, division));
                return Ok(());
            }
            _ => {}
        }
        let o: Rows = self.scratch("delta_o", (4 * site.program.rows * shape.value_width()) as u64, false);
        let chunked = !exact && !decode && (shape.key_dim, shape.value_dim) == (CHUNK_DIM, CHUNK_DIM);
        match Ring::new(&shape, self.card).filter(|_| chunked) {
            Some(ring) => self.delta_chunks(site, &operands, ring, o, launches),
            None => launches.push(self.delta_plain(site, &operands, exact, o)?),
        }
        launches.push(self.delta_gate(site, operands, exact, o));
        Ok(())
    }

    fn delta_operands(&mut self, site: Site, phase: &Delta) -> Result<Operands, PassError> {
        let Delta { qkvz, ba, convolution, a_log, dt_bias, norm, activation, shape, order, out } = *phase;
        if order != ValueHeads::Grouped {
            return Err(no_kernel(
                site,
                self.plan,
                "its kernels take the value heads of a key head together",
            ));
        }
        if activation != Activation::Silu {
            return Err(no_kernel(site, self.plan, "its kernels gate by silu"));
        }
        let eps = match self.plan.field(norm).kind {
            FieldKind::Norm { eps, form: NormWeight::Plain, .. } => eps,
            _ => return Err(no_kernel(site, self.plan, "its kernels take the plain weight of a norm")),
        };
        let state = CudaState::new(&shape.recurrence(), shape.key_width(), self.plan.drafts());
        let (states, windows, journals) = state.places(BodyId(site.body));
        let out = self.buffer(site, out);
        let constants = vec![
            ("KEY_HEADS", integer(shape.key_heads)),
            ("VALUE_HEADS", integer(shape.value_heads)),
            ("KEY_DIM", integer(shape.key_dim)),
            ("VALUE_DIM", integer(shape.value_dim)),
            ("TAPS", integer(shape.taps)),
            ("WINDOW", integer(state.window)),
            ("NORM_EPS", Constant::Float(eps)),
            ("PROJECTED", integer(self.plan.buffer(qkvz).width)),
            ("DRAFTS", integer(state.drafts)),
        ];
        let weight = |field: FieldId| Vector::field(Some(field));
        Ok(Operands {
            shape,
            constants,
            projected: self.buffer(site, qkvz),
            gates: self.buffer(site, ba),
            convolution: weight(convolution),
            a_log: weight(a_log),
            dt_bias: weight(dt_bias),
            norm: weight(norm),
            states,
            windows,
            journals,
            state,
            out,
        })
    }

    fn delta_decode(&mut self, site: Site, operands: Operands, division: Division) -> Launch {
        let Operands { shape, state, mut constants, .. } = operands;
        let Division { split, threads } = division;
        constants.extend([
            ("SPLIT", integer(split)),
            ("THREADS", integer(threads)),
            // Header and older state are complete before a step's graph starts, as in attention.
            ("STATE_BEFORE_WAIT", Constant::Flag(true)),
        ]);
        constants.extend(self.verified(site));
        let tokens = site.program.tokens;
        let Operands { projected, gates, convolution, a_log, dt_bias, norm, .. } = operands;
        let Operands { states, windows, journals, out, .. } = operands;
        let arguments = DeltaDecode {
            step: site.header,
            projected,
            gates,
            convolution,
            a_log,
            dt_bias,
            norm,
            states,
            windows,
            journals,
            out,
        };
        let instance = Instance {
            resident: 65_536 / (threads * DECODE_REGISTERS),
            cluster: split,
            shared: division.shared(&shape, tokens),
            bytes: vec![state.matrices(), state.windows(), state.journals()],
            ..Instance::new(self.kernel_name(site, ""), constants, threads)
        };
        let grid = fixed(split, shape.value_heads, site.program.sequences);
        self.launch(site, instance, grid, arguments)
    }

    fn delta_chunks(
        &mut self,
        site: Site,
        operands: &Operands,
        ring: Ring,
        o: Rows,
        launches: &mut Vec<Launch>,
    ) {
        let shape = operands.shape;
        let places = self.card.multiprocessors as usize;
        let chunks = site.program.rows / CHUNK + self.plan.buckets.sequences;
        let bytes = chunks * chunk_bytes(&shape);
        let scratch: Chunks = self.scratch("delta_chunks", bytes as u64, false);
        let Operands { projected, gates, convolution, a_log, dt_bias, .. } = *operands;
        let Operands { states, windows, journals, .. } = *operands;

        let mut constants = operands.constants.clone();
        constants.extend([
            ("ROWS", integer(site.program.rows)),
            ("SEQUENCES", integer(self.plan.buckets.sequences)),
        ]);
        let shared = prepare_shared(&shape);
        let resident = (1..=PREPARE_RESIDENT).rev().find(|it| fits(self.card, shared, *it)).unwrap_or(1);
        let name = self.kernel_name(site, "_prepare");
        let instance = Instance {
            resident,
            shared,
            bytes: vec![operands.state.windows(), ("chunks", bytes)],
            ..Instance::new(name, constants, PREPARE_THREADS)
        };
        let step = site.header;
        let arguments =
            DeltaPrepare { step, projected, gates, convolution, a_log, dt_bias, windows, scratch };
        // Blocks loop over chunks, so the grid is as many as can be resident.
        launches.push(self.launch(site, instance, fixed(resident * places, 1, 1), arguments));

        let Ring { split, slots } = ring;
        let mut constants = operands.constants.clone();
        constants.extend([("CHUNK_SPLIT", integer(split)), ("SLOTS", integer(slots))]);
        let name = self.kernel_name(site, "_chunks");
        let instance = Instance {
            shared: ring.shared(),
            bytes: vec![operands.state.matrices(), operands.state.journals()],
            ..Instance::new(name, constants, ring.threads())
        };
        let grid = [Extent::Fixed(count(split * shape.value_heads)), Extent::Sequences(1), Extent::Fixed(1)];
        let arguments = DeltaChunks { step, scratch, states, journals, o };
        // A recurrence chunk never crosses a prefill chunk.
        self.cut_prompts_at(CHUNK);
        launches.push(self.launch(site, instance, grid, arguments));
    }

    fn delta_plain(
        &mut self,
        site: Site,
        operands: &Operands,
        exact: bool,
        o: Rows,
    ) -> Result<Launch, PassError> {
        let shape = operands.shape;
        let shared = 4 * (shape.key_dim * shape.value_dim + 2 * shape.key_dim + shape.value_dim);
        if !fits(self.card, shared, 1) {
            let what = format!(
                "the state of a head, {} x {}, does not fit the card's shared memory",
                shape.key_dim, shape.value_dim
            );
            return Err(no_kernel(site, self.plan, &what));
        }
        let mut constants = operands.constants.clone();
        constants.push(("EXACT", Constant::Flag(exact)));
        constants.extend(self.verified(site));
        let Operands { projected, gates, convolution, a_log, dt_bias, .. } = *operands;
        let Operands { states, windows, journals, .. } = *operands;
        let step = site.header;
        let arguments =
            DeltaPlain { step, projected, gates, convolution, a_log, dt_bias, states, windows, journals, o };
        let mut grid = fixed(shape.value_heads, site.program.sequences, 1);
        if site.program.regime != Regime::Decode {
            grid[1] = Extent::Sequences(1);
        }
        let name = self.kernel_name(site, "_plain");
        let state = &operands.state;
        let bytes = vec![state.matrices(), state.windows(), state.journals()];
        let instance = Instance { shared, bytes, ..Instance::new(name, constants, PLAIN_THREADS) };
        Ok(self.launch(site, instance, grid, arguments))
    }

    /// Launches norm and gate after the recurrence of all tokens.
    fn delta_gate(&mut self, site: Site, operands: Operands, exact: bool, o: Rows) -> Launch {
        let Operands { mut constants, projected, norm, windows, state, out, .. } = operands;
        constants.push(("EXACT", Constant::Flag(exact)));
        let arguments = DeltaGate { step: site.header, projected, o, norm, windows, out };
        let bytes = vec![state.windows()];
        let name = self.kernel_name(site, "_gate");
        let instance = Instance { bytes, ..Instance::new(name, constants, GATE_THREADS) };
        self.launch(site, instance, self.grid_of_rows(site, 1), arguments)
    }
}

/// `DeltaScratch<C>::CHUNK`.
fn chunk_bytes(shape: &DeltaShape) -> usize {
    let matrix = CHUNK * CHUNK_DIM * 2;
    shape.key_heads * 2 * matrix + shape.value_heads * (2 * matrix + CHUNK * CHUNK * 2 + FACTORS)
}
