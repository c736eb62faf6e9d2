//! Launching kernels, one after the other.

use super::arguments::Arguments;
use super::driver::{Stream, check};
use super::far::Pass;
use super::fault::Fault;
use super::memory::Pointer;
use super::module::Kernel;
use super::step::{Header, SampledRow};
use cudarc::driver::sys;
use std::ffi::c_void;
use std::ptr::null_mut;

/// How many rows of each sort a step has: what grids are made of.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Extents {
    /// Token rows.
    pub tokens: u32,
    /// Sequences.
    pub sequences: u32,
    /// Rows whose logits are wanted.
    pub outputs: u32,
}

/// Where the tables of a step stand.
#[derive(Clone, Copy, Debug)]
pub struct StepTables {
    /// Headers of the passes that draft, made by the device.
    pub passes: Pointer,
    /// Header and block table.
    pub header: Pointer,
    /// Token rows of a prefill.
    pub tokens: Pointer,
    /// Tokens that penalties look at, and masks behind them.
    pub history: Pointer,
    /// Ids: by slot the one sampled last, and those of a step that drafts.
    pub ids: Pointer,
    /// What was sampled, one an output row: pinned memory of the host.
    pub sampled: Pointer,
    /// The same of what was drafted, by pass and sequence.
    pub drafted: Pointer,
    /// How many drafts of each sequence hold: pinned memory of the host.
    pub held: Pointer,
}

impl StepTables {
    /// Of no step.
    pub(crate) const NONE: StepTables = StepTables {
        passes: Pointer::NULL,
        header: Pointer::NULL,
        tokens: Pointer::NULL,
        history: Pointer::NULL,
        ids: Pointer::NULL,
        sampled: Pointer::NULL,
        drafted: Pointer::NULL,
        held: Pointer::NULL,
    };

    /// The header of a pass, from 0.
    pub fn pass(&self, pass: usize) -> Pointer {
        self.passes.offset((pass * size_of::<Header>()) as u64)
    }

    /// Ids from place `at` on.
    pub fn ids_from(&self, at: usize) -> Pointer {
        self.ids.offset(4 * at as u64)
    }

    /// Drafted rows from `row` on.
    pub fn drafted_from(&self, row: usize) -> Pointer {
        self.drafted.offset((row * size_of::<SampledRow>()) as u64)
    }
}

/// What of a program is launched. It is cut where it begins to sample: up to there nothing depends on what
/// rows are sampled by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Portion {
    Whole,
    /// Up to the logits.
    Logits,
    /// From what is sampled on.
    Sampling,
}

/// Where a program puts its launches: a stream that runs them, or one that records a graph. The first error
/// is kept, and nothing is launched after it.
#[derive(Debug)]
pub struct Queue<'a> {
    stream: &'a Stream,
    program: &'static str,
    portion: Portion,
    /// Whether the program has come to what it samples.
    samples: bool,
    /// Whether kernels begin before their predecessors have ended, and wait for them by themselves.
    dependent: bool,
    launched: usize,
    /// Rows of the step.
    pub extents: Extents,
    /// Tables of the step.
    pub step: StepTables,
    /// What brings blocks on disk to the layers of a step that has some.
    far: Option<Pass<'a>>,
    outcome: Result<(), Fault>,
}

impl<'a> Queue<'a> {
    pub(crate) fn new(
        stream: &'a Stream,
        program: &'static str,
        dependent: bool,
        extents: Extents,
        step: StepTables,
    ) -> Queue<'a> {
        let (portion, samples) = (Portion::Whole, false);
        Queue {
            stream,
            program,
            portion,
            samples,
            dependent,
            launched: 0,
            extents,
            step,
            far: None,
            outcome: Ok(()),
        }
    }

    /// The same for a portion of the program.
    pub(crate) fn portion(self, portion: Portion) -> Queue<'a> {
        Queue { portion, ..self }
    }

    /// The same with blocks on disk, if there are any.
    pub(crate) fn streaming(self, far: Option<Pass<'a>>) -> Queue<'a> {
        Queue { far, ..self }
    }

    /// Before the kernels that attend to a part of K/V blocks: what of it is on disk is brought to where they
    /// find it.
    pub fn stage(&mut self, part: usize) {
        if let (Some(pass), Ok(())) = (&mut self.far, &self.outcome) {
            self.outcome = pass.stage(self.stream, part);
        }
    }

    /// What is launched from here on depends on what rows are sampled by.
    pub fn begin_sampling(&mut self) {
        self.samples = true;
    }

    /// Launches `kernel` on `grid` blocks with these arguments.
    pub fn launch<A: Arguments>(&mut self, kernel: &Kernel<A>, grid: [u32; 3], arguments: A) {
        arguments.handed(|addresses| self.launch_raw(kernel, grid, addresses));
    }

    fn launch_raw<A>(&mut self, kernel: &Kernel<A>, grid: [u32; 3], parameters: &mut [*mut c_void]) {
        let due = match self.portion {
            Portion::Whole => true,
            Portion::Logits => !self.samples,
            Portion::Sampling => self.samples,
        };
        if !due || self.outcome.is_err() {
            return;
        }
        let mut attribute = sys::CUlaunchAttribute {
            id: sys::CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION,
            pad: [0; 4],
            value: sys::CUlaunchAttributeValue { programmaticStreamSerializationAllowed: 1 },
        };
        // The first kernel of a program follows a copy or another program, which end before it begins.
        let attributes = u32::from(self.dependent && self.launched > 0);
        let config = sys::CUlaunchConfig {
            gridDimX: grid[0],
            gridDimY: grid[1],
            gridDimZ: grid[2],
            blockDimX: kernel.block,
            blockDimY: 1,
            blockDimZ: 1,
            sharedMemBytes: kernel.shared,
            hStream: self.stream.handle,
            attrs: &raw mut attribute,
            numAttrs: attributes,
        };
        // SAFETY: the driver copies the parameters, whose number was checked when the kernel was looked up,
        // before it returns. What the kernel does with them was planned and emitted together with this call.
        let result = unsafe {
            sys::cuLaunchKernelEx(&raw const config, kernel.function, parameters.as_mut_ptr(), null_mut())
        };
        self.outcome = check("the launch", result).map_err(|fault| fault.at(kernel.name).at(self.program));
        self.launched += 1;
    }

    /// The first error.
    pub(crate) fn finish(self) -> Result<(), Fault> {
        self.outcome?;
        match self.far {
            Some(pass) => pass.finish(self.stream),
            None => Ok(()),
        }
    }
}

/// A recorded program.
#[derive(Debug)]
pub(crate) struct Graph {
    program: &'static str,
    handle: sys::CUgraphExec,
}

// SAFETY: a handle that one thread at a time uses.
unsafe impl Send for Graph {}

impl Graph {
    /// Records what `record` launches of a portion of a program.
    pub(crate) fn record(
        stream: &Stream,
        program: &'static str,
        portion: Portion,
        extents: Extents,
        step: StepTables,
        record: impl FnOnce(&mut Queue),
    ) -> Result<Graph, Fault> {
        let mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
        // SAFETY: the stream is alive and idle; what this thread launches on it is recorded instead of run.
        check("recording a graph", unsafe { sys::cuStreamBeginCapture_v2(stream.handle, mode) })?;
        let mut queue = Queue::new(stream, program, true, extents, step).portion(portion);
        record(&mut queue);
        let launched = queue.launched;
        let recorded = queue.finish();
        let mut graph = null_mut();
        // SAFETY: ends what was begun above, also after an error: the stream must not stay in this state.
        let ended = check("recording a graph", unsafe { sys::cuStreamEndCapture(stream.handle, &mut graph) });
        recorded?;
        if launched == 0 {
            // One without its sampler would sample before it is told by what.
            return Err(Fault::new(
                "it launches nothing before it samples, or nothing from there on".to_owned(),
            )
            .at(program));
        }
        ended.map_err(|fault| fault.at(program))?;
        let mut handle = null_mut();
        // SAFETY: a graph that was just recorded; destroyed once it is instantiated.
        let made =
            check("making a graph", unsafe { sys::cuGraphInstantiateWithFlags(&mut handle, graph, 0) });
        // SAFETY: made by the end of the recording, destroyed once.
        unsafe { sys::cuGraphDestroy(graph) };
        made.map_err(|fault| fault.at(program))?;
        let graph = Graph { program, handle };
        // SAFETY: both handles are alive.
        check("uploading a graph", unsafe { sys::cuGraphUpload(graph.handle, stream.handle) })
            .map_err(|fault| fault.at(program))?;
        Ok(graph)
    }

    /// Runs it.
    pub(crate) fn launch(&self, stream: &Stream) -> Result<(), Fault> {
        // SAFETY: both handles are alive.
        check("launching the graph", unsafe { sys::cuGraphLaunch(self.handle, stream.handle) })
            .map_err(|fault| fault.at(self.program))
    }
}

impl Drop for Graph {
    fn drop(&mut self) {
        // SAFETY: made by `record`, destroyed once.
        unsafe { sys::cuGraphExecDestroy(self.handle) };
    }
}
