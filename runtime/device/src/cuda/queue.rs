//! Kernel launches, in order.

use super::arguments::Arguments;
use super::aside::Aside;
use super::driver::{Stream, check};
use super::fault::Fault;
use super::kv_offload::Pass;
use super::module::Kernel;
use super::nccl::Communicator;
use super::pointer::Pointer;
use super::times::LaunchTimes;
use super::wire::{Header, SampledRow};
use cudarc::driver::sys;
use std::ffi::c_void;
use std::ops::Range;
use std::ptr::null_mut;

/// Numbers of rows of a step, which grids depend on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Extents {
    /// Token rows.
    pub tokens: u32,
    /// Number of sequences in the step.
    pub sequences: u32,
    /// Rows that need logits.
    pub outputs: u32,
}

/// An image of a tower's step.
#[derive(Clone, Debug)]
pub struct Kept {
    /// Its rows among those that the step makes.
    pub rows: Range<usize>,
    /// The first of those that are kept of it.
    pub first: usize,
}

/// Addresses of a step's metadata.
#[derive(Clone, Copy, Debug)]
pub struct StepTables {
    /// Headers of draft passes, written by the device.
    pub passes: Pointer,
    /// The header, followed by the block table.
    pub header: Pointer,
    /// Token rows of a prefill.
    pub tokens: Pointer,
    /// What images are in these, of a stack with a tower.
    pub images: Pointer,
    /// Token histories for penalties, followed by biases and masks.
    pub history: Pointer,
    /// Token ids: the last one sampled for each slot, and those of a step that drafts.
    pub ids: Pointer,
    /// One sampled row for each output row, in pinned memory of the host.
    pub sampled: Pointer,
    /// Drafted rows, by pass and sequence, in pinned memory of the host.
    pub drafted: Pointer,
    /// Number of accepted drafts of each sequence, in pinned memory of the host.
    pub held: Pointer,
}

impl StepTables {
    /// The metadata of no step.
    pub(crate) const NONE: StepTables = StepTables {
        passes: Pointer::NULL,
        header: Pointer::NULL,
        tokens: Pointer::NULL,
        images: Pointer::NULL,
        history: Pointer::NULL,
        ids: Pointer::NULL,
        sampled: Pointer::NULL,
        drafted: Pointer::NULL,
        held: Pointer::NULL,
    };

    /// The header of draft pass `pass`, counted from 0.
    pub fn pass(&self, pass: usize) -> Pointer {
        self.passes.offset((pass * size_of::<Header>()) as u64)
    }

    /// The ids from index `at` on.
    pub fn ids_from(&self, at: usize) -> Pointer {
        self.ids.offset(4 * at as u64)
    }

    /// The drafted rows from `row` on.
    pub fn drafted_from(&self, row: usize) -> Pointer {
        self.drafted.offset((row * size_of::<SampledRow>()) as u64)
    }
}

/// The portion of a program to launch. A program is split where it begins to sample: nothing before that
/// depends on the sampling inputs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Portion {
    Whole,
    /// Everything up to the logits.
    Logits,
    /// Everything from sampling on.
    Sampling,
}

/// The target of a program's launches: a stream that runs them, or one that records a graph. The first error
/// is kept, and nothing is launched after it.
#[derive(Debug)]
pub struct Queue<'a> {
    stream: &'a Stream,
    program: &'static str,
    portion: Portion,
    /// Whether the program has reached its sampling.
    samples: bool,
    /// Whether kernels start before their predecessors end and wait for them on their own (programmatic
    /// dependent launch).
    dependent: bool,
    /// Whether the work in front is a kernel of this program, which the next may start before the end of.
    follows: bool,
    /// The stream of launches that run beside the others, if there is one.
    aside: Option<&'a Aside>,
    /// Whether the work in front on that stream is a kernel of this program.
    follows_aside: bool,
    launched: usize,
    /// What processes gather through.
    collective: Option<&'a Communicator>,
    /// The step's numbers of rows.
    pub extents: Extents,
    /// The step's metadata.
    pub step: StepTables,
    /// Stages blocks from disk, for a step that has some.
    offload: Option<Pass<'a>>,
    /// Takes the times of launches; of a profiling build alone.
    times: Option<&'a mut LaunchTimes>,
    outcome: Result<(), Fault>,
}

impl<'a> Queue<'a> {
    pub(crate) fn new(
        stream: &'a Stream,
        program: &'static str,
        dependent: bool,
        extents: Extents,
        step: StepTables,
        collective: Option<&'a Communicator>,
    ) -> Queue<'a> {
        let (portion, samples) = (Portion::Whole, false);
        Queue {
            stream,
            program,
            portion,
            samples,
            dependent,
            follows: false,
            aside: None,
            follows_aside: false,
            launched: 0,
            collective,
            extents,
            step,
            offload: None,
            times: None,
            outcome: Ok(()),
        }
    }

    /// The queue, with a second stream.
    pub(crate) fn with_aside(self, aside: &'a Aside) -> Queue<'a> {
        Queue { aside: Some(aside), ..self }
    }

    /// The queue, restricted to a portion of the program.
    pub(crate) fn portion(self, portion: Portion) -> Queue<'a> {
        Queue { portion, ..self }
    }

    /// The queue, staging blocks from disk if there are any.
    pub(crate) fn streaming(self, offload: Option<Pass<'a>>) -> Queue<'a> {
        Queue { offload, ..self }
    }

    /// The queue, the times of whose launches are taken, if any are.
    pub(crate) fn timed_by(self, times: Option<&'a mut LaunchTimes>) -> Queue<'a> {
        Queue { times: times.filter(|times| times.are_taken()), ..self }
    }

    /// Stages a part's blocks from disk. Called before the kernels that attend to it.
    pub fn stage(&mut self, part: usize) {
        if let (Some(pass), Ok(())) = (&mut self.offload, &self.outcome) {
            self.outcome = pass.stage(self.stream, part);
        }
    }

    /// Launches after this call depend on the sampling inputs.
    pub fn begin_sampling(&mut self) {
        self.samples = true;
    }

    /// Launches `kernel` on `grid` blocks.
    pub fn launch<A: Arguments>(&mut self, kernel: &Kernel<A>, grid: [u32; 3], arguments: A) {
        arguments.handed(|addresses| self.launch_raw(kernel, grid, addresses));
    }

    /// Lets launches run beside what comes next: they wait for all that stands in front of this call.
    pub fn fork(&mut self) {
        self.streams(Aside::fork);
        self.follows_aside = false;
    }

    /// Launches `kernel` on `grid` blocks, behind [`Queue::fork`] and what was launched beside since.
    pub fn beside<A: Arguments>(&mut self, kernel: &Kernel<A>, grid: [u32; 3], arguments: A) {
        arguments.handed(|addresses| self.beside_raw(kernel, grid, addresses));
    }

    /// Of a profiling build: [`Queue::launch`], with its time taken as that of a row, if times are taken.
    pub fn timed<A: Arguments>(&mut self, row: usize, kernel: &Kernel<A>, grid: [u32; 3], arguments: A) {
        if self.times.is_none() || !self.is_due() {
            return self.launch(kernel, grid, arguments);
        }
        self.mark(|times, stream| times.begin(row, stream));
        self.launch(kernel, grid, arguments);
        self.mark(|times, stream| times.end(stream));
    }

    /// Of a profiling build: [`Queue::beside`]; if times are taken, [`Queue::timed`].
    pub fn timed_beside<A: Arguments>(
        &mut self,
        row: usize,
        kernel: &Kernel<A>,
        grid: [u32; 3],
        arguments: A,
    ) {
        match self.times {
            None => self.beside(kernel, grid, arguments),
            Some(_) => self.timed(row, kernel, grid, arguments),
        }
    }

    /// Of a profiling build: [`Queue::fork`], unless times are taken and all runs in one stream.
    pub fn fork_if_untimed(&mut self) {
        if self.times.is_none() {
            self.fork();
        }
    }

    /// Of a profiling build: [`Queue::join`], unless times are taken and all runs in one stream.
    pub fn join_if_untimed(&mut self) {
        if self.times.is_none() {
            self.join();
        }
    }

    fn mark(&mut self, mark: impl FnOnce(&mut LaunchTimes, &Stream) -> Result<(), Fault>) {
        if let (Some(times), Ok(())) = (&mut self.times, &self.outcome) {
            self.outcome = mark(times, self.stream).map_err(|fault| fault.at(self.program));
        }
    }

    fn beside_raw<A>(&mut self, kernel: &Kernel<A>, grid: [u32; 3], parameters: &mut [*mut c_void]) {
        if !self.is_due() {
            return;
        }
        let Some(aside) = self.aside else { return self.lacks_aside() };
        let dependent = self.dependent && self.follows_aside;
        let launched = launch(aside.stream(), kernel, grid, parameters, dependent);
        self.outcome = launched.map_err(|fault| fault.at(self.program));
        self.launched += 1;
        self.follows_aside = true;
    }

    /// Makes what comes next wait for all that was launched beside.
    pub fn join(&mut self) {
        self.streams(Aside::join);
    }

    fn streams(&mut self, meet: impl FnOnce(&Aside, &Stream) -> Result<(), Fault>) {
        if !self.is_due() {
            return;
        }
        let Some(aside) = self.aside else { return self.lacks_aside() };
        self.outcome = meet(aside, self.stream).map_err(|fault| fault.at(self.program));
    }

    fn lacks_aside(&mut self) {
        let fault = Fault::new("there is no second stream to launch beside on".to_owned());
        self.outcome = Err(fault.at(self.program));
    }

    fn launch_raw<A>(&mut self, kernel: &Kernel<A>, grid: [u32; 3], parameters: &mut [*mut c_void]) {
        if !self.is_due() {
            return;
        }
        // The first kernel of a program follows a copy or another program, which ends before it starts.
        let dependent = self.dependent && self.follows;
        let launched = launch(self.stream, kernel, grid, parameters, dependent);
        self.outcome = launched.map_err(|fault| fault.at(self.program));
        self.launched += 1;
        self.follows = true;
    }

    /// Gathers `rows` rows of `width` values from all processes: those of rank r lie `r * rows * width`
    /// values behind `to`.
    pub fn all_gather(&mut self, from: Pointer, to: Pointer, rows: u32, width: usize) {
        if !self.is_due() {
            return;
        }
        let gathered = match self.collective {
            Some(collective) => collective.all_gather(self.stream, from, to, rows as usize * width),
            None => Err(Fault::new("no collective is joined to gather rows through".to_owned())),
        };
        self.outcome = gathered.map_err(|fault| fault.at(self.program));
        // Whatever NCCL launched, the kernel behind waits for all of it.
        self.follows = false;
    }

    /// Copies the rows of `width` values that a tower's step has of each image, to its rows of `to` or
    /// `behind` rows behind these.
    pub fn keep_rows(&mut self, from: Pointer, to: Pointer, images: &[Kept], behind: usize, width: usize) {
        let bytes_of = |rows: usize| (4 * rows * width) as u64;
        for Kept { rows, first } in images {
            if !self.is_due() {
                return;
            }
            let (from, to) = (from.offset(bytes_of(rows.start)), to.offset(bytes_of(first + behind)));
            // SAFETY: both were planned for the step's rows, and are different parts of the arena.
            let kept = unsafe { self.stream.copy(from.0, to.0, bytes_of(rows.len())) };
            self.outcome = kept.map_err(|fault| fault.at(self.program));
            self.follows = false;
        }
    }

    /// Whether what comes next belongs to this portion of the program, which has not failed.
    fn is_due(&self) -> bool {
        let due = match self.portion {
            Portion::Whole => true,
            Portion::Logits => !self.samples,
            Portion::Sampling => self.samples,
        };
        due && self.outcome.is_ok()
    }

    /// The first error, if any.
    pub(crate) fn finish(self) -> Result<(), Fault> {
        self.outcome?;
        match self.offload {
            Some(pass) => pass.finish(self.stream),
            None => Ok(()),
        }
    }
}

/// Launches a kernel on a stream; with `dependent` it may start before the work in front of it has ended.
pub(crate) fn launch<A>(
    stream: &Stream,
    kernel: &Kernel<A>,
    grid: [u32; 3],
    parameters: &mut [*mut c_void],
    dependent: bool,
) -> Result<(), Fault> {
    let mut attribute = sys::CUlaunchAttribute {
        id: sys::CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION,
        pad: [0; 4],
        value: sys::CUlaunchAttributeValue { programmaticStreamSerializationAllowed: 1 },
    };
    let config = sys::CUlaunchConfig {
        gridDimX: grid[0],
        gridDimY: grid[1],
        gridDimZ: grid[2],
        blockDimX: kernel.block,
        blockDimY: 1,
        blockDimZ: 1,
        sharedMemBytes: kernel.shared,
        hStream: stream.handle,
        attrs: &raw mut attribute,
        numAttrs: u32::from(dependent),
    };
    // SAFETY: the driver copies the parameters before it returns; their number was checked when the kernel
    // was looked up. The kernel's use of them was planned and emitted together with this call.
    let result = unsafe {
        sys::cuLaunchKernelEx(&raw const config, kernel.function, parameters.as_mut_ptr(), null_mut())
    };
    check("the launch", result).map_err(|fault| fault.at(kernel.name))
}

/// A recorded program.
#[derive(Debug)]
pub(crate) struct Graph {
    program: &'static str,
    handle: sys::CUgraphExec,
}

// SAFETY: a handle that only one thread at a time uses.
unsafe impl Send for Graph {}

impl Graph {
    /// Records the launches that `record` makes on a queue.
    pub(crate) fn record(mut queue: Queue, record: impl FnOnce(&mut Queue)) -> Result<Graph, Fault> {
        let (stream, program) = (queue.stream, queue.program);
        Graph::capture(stream, program, || {
            record(&mut queue);
            let launched = queue.launched;
            queue.finish()?;
            if launched == 0 {
                // Such a program would sample before its inputs are bound.
                return Err(Fault::new(
                    "it launches nothing before it samples, or nothing from there on".to_owned(),
                )
                .at(program));
            }
            Ok(())
        })
    }

    /// Records the launches that `record` makes on the stream.
    pub(crate) fn capture(
        stream: &Stream,
        program: &'static str,
        record: impl FnOnce() -> Result<(), Fault>,
    ) -> Result<Graph, Fault> {
        let mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
        // SAFETY: the stream is alive and idle; launches of this thread on it are recorded, not run.
        check("recording a graph", unsafe { sys::cuStreamBeginCapture_v2(stream.handle, mode) })?;
        let recorded = record();
        let mut graph = null_mut();
        // SAFETY: ends the capture begun above, also after an error, because the stream must not stay in
        // capture mode.
        let ended = check("recording a graph", unsafe { sys::cuStreamEndCapture(stream.handle, &mut graph) });
        recorded?;
        ended.map_err(|fault| fault.at(program))?;
        let mut handle = null_mut();
        // SAFETY: the graph was just recorded; it is destroyed once it is instantiated.
        let made =
            check("making a graph", unsafe { sys::cuGraphInstantiateWithFlags(&mut handle, graph, 0) });
        // SAFETY: made by the capture, destroyed once.
        unsafe { sys::cuGraphDestroy(graph) };
        made.map_err(|fault| fault.at(program))?;
        let graph = Graph { program, handle };
        // SAFETY: both handles are alive.
        check("uploading a graph", unsafe { sys::cuGraphUpload(graph.handle, stream.handle) })
            .map_err(|fault| fault.at(program))?;
        Ok(graph)
    }

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
