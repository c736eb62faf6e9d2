//! Runs steps on the device: uploads, launches, and results.
//!
//! Steps run in order on one stream. The host fills pinned memory and returns. There are two slots of pinned
//! memory and step metadata, so that the second step is uploaded, on a stream of its own, while the first
//! runs. Kernels write the sampled tokens to pinned memory themselves, so there is no copy between the last
//! kernel of a step and the first of the next.
//!
//! The sampling inputs may depend on tokens of the step before, or take the host a while (split sampling).
//! The step then starts with everything before sampling, as a graph of its own, and the rest is launched when
//! the host is ready. The host works while the device does.
//!
//! Some stacks run a step in two parts, each with its own set: see `parts`.

mod exchange;
mod images;
mod in_flight;
mod kv_offload;
mod parts;
mod swap;
mod transfer;

use super::aside::Aside;
use super::driver::Stream;
use super::fault::Fault;
use super::gpu::{Gpu, settle};
use super::host::Pinned;
use super::kv_offload::KvOffload;
use super::memory::Memory;
use super::nccl::{Communicator, wait};
use super::pointer::Pointer;
use super::queue::{Extents, Graph, Kept, Portion, Queue, StepTables};
use super::ring::SlotRing;
use super::states::Places;
use super::times::LaunchTimes;
use super::wire::{MAX_SEQUENCES, SampledRow, StepBuffer, StepLimits, Tables};
use super::world::{Exchange, fail};
use images::Sight;
pub(crate) use images::Tower;
use in_flight::{StepSlot, Want};
use monomorph_model::{
    ModelSpec, OffloadSlot, Output, ProfileSpec, SlidingSpec, Step, StepOutput, Ticket, TimedRow, Tokens,
};
use parts::{Kind, PROMPTS, StepPart, parts};
use std::ops::Range;

/// The launches of a layer stack, by program.
pub trait Programs: Send + 'static {
    /// Most rows of logits that one [`Programs::head`] computes.
    const HEAD_ROWS: usize;

    /// The steps whose launches it times, of a profiling build.
    const PROFILE: Option<&'static ProfileSpec> = None;

    /// Decode program `program`, followed by its draft passes. Recorded as a graph, and launched directly for
    /// steps with blocks on disk, which no recording can stage.
    fn decode(&self, program: usize, queue: &mut Queue);

    /// The draft passes alone, to be recorded; nothing for a stack that does not draft.
    fn draft(&self, _program: usize, _queue: &mut Queue) {}

    /// From `tokens` token rows to the last layer's residual stream.
    fn prefill(&self, tokens: usize, queue: &mut Queue);

    /// From the residual stream of the header's output rows to their logits and sampled tokens.
    fn head(&self, queue: &mut Queue);

    /// Draft prefill: feeds the token rows of a prefill to the draft head and writes the headers of draft
    /// passes; nothing for a stack without one.
    fn learn(&self, _queue: &mut Queue) {}

    /// Layers of a vision tower over so many patches, which begin with embedding them and end with keeping
    /// the rows of these images; nothing for a stack without one.
    fn see(&self, _patches: usize, _images: &[Kept], _layers: Range<usize>, _queue: &mut Queue) {}

    /// A sum over ranks alone, to be timed; nothing for a stack that sums nothing.
    fn exchange(&self, _queue: &mut Queue) {}
}

/// The steps of a loaded stack.
#[derive(Debug)]
pub struct Executor {
    // Dropped first: a copy in flight would write to freed pinned memory.
    quiet: Quiet,
    uploads: Stream,
    /// Decode programs in ascending order of sequences; those that verify drafts have an order of their own.
    graphs: Vec<Recorded>,
    /// Draft passes after a prefill, in ascending order of sequences.
    passes: Vec<(usize, Graph)>,
    ring: SlotRing,
    flights: Vec<StepSlot>,
    buffer: StepBuffer,
    states: Places,
    /// The vision tower, if the stack has one.
    sight: Option<Sight>,
    /// Staging of blocks on disk, with K/V offload.
    offload: Option<KvOffload>,
    /// Pinned memory for copies of blocks and states to the host and back; grown on demand.
    staged: Option<Pinned>,
    /// What the rank exchanges with others, if it has some.
    exchange: Option<Exchange>,
    logits: Pointer,
    vocabulary: usize,
    sequences: usize,
    /// Drafts of a sequence to verify.
    drafts: usize,
    /// The part of `drafts` that the stack makes itself.
    drafted: usize,
    /// Whether drafts are accepted whatever was sampled.
    forced: bool,
    /// Parts of the step submitted last that wait for their sampling inputs; the first has started.
    unsampled: Vec<StepPart>,
    submitted: u64,
    collected: u64,
    /// Times of launches; of a profiling build alone.
    times: LaunchTimes,
}

/// A decode program.
#[derive(Debug)]
struct Recorded {
    program: &'static str,
    /// Most sequences it takes.
    sequences: usize,
    /// Rows of each sequence: 1, or 1 and the drafts to verify.
    tokens: usize,
    extents: Extents,
    /// One graph a slot of the ring.
    graphs: Vec<Portions>,
}

/// A program as one graph, and split in two at its sampling.
#[derive(Debug)]
struct Portions {
    whole: Graph,
    logits: Graph,
    sampling: Graph,
}

impl Portions {
    fn portion(&self, portion: Portion) -> &Graph {
        match portion {
            Portion::Whole => &self.whole,
            Portion::Logits => &self.logits,
            Portion::Sampling => &self.sampling,
        }
    }
}

/// What steps are launched on. Waits for the device when it is dropped.
#[derive(Debug)]
struct Quiet {
    /// The stream beside the GPU's own. Dropped before the GPU is let go.
    aside: Aside,
    gpu: Gpu,
    /// What programs exchange values with other processes through, once that is joined.
    collective: Option<Communicator>,
}

impl Quiet {
    /// Where a program's launches go.
    fn queue(&self, program: &'static str, dependent: bool, extents: Extents, step: StepTables) -> Queue<'_> {
        let queue =
            Queue::new(self.gpu.stream(), program, dependent, extents, step, self.collective.as_ref());
        queue.with_aside(&self.aside)
    }
}

impl Drop for Quiet {
    fn drop(&mut self) {
        // A device that failed has no work in flight.
        let _ = self.gpu.enter().and_then(|()| settle(&self.gpu)).and_then(|()| self.aside.stream().wait());
    }
}

/// Where the head writes logits, and the rows that it computes at once.
#[derive(Clone, Copy)]
pub(crate) struct Head {
    pub logits: Pointer,
    pub rows: usize,
}

impl Executor {
    /// Takes the steps' tables from `memory`, after all state. `sliding` are the layers with a sliding
    /// window and `tower` is the vision tower, if there are some.
    ///
    /// # Errors
    /// When pinned memory is short.
    pub fn new(
        gpu: &Gpu,
        spec: &ModelSpec,
        memory: &mut Memory,
        head: Head,
        ranks: usize,
        (sliding, tower): (Option<SlidingSpec>, Option<Tower>),
        exchange: Option<Exchange>,
    ) -> Result<Executor, Fault> {
        let vision = tower.map(|tower| tower.vision);
        let sizes = Tables::of(spec, sliding, vision, memory.context());
        let groups = spec.step_tokens.div_ceil(head.rows);
        let ids = memory.take(sizes.ids)?;
        let ring = SlotRing::of(spec);
        // Locking memory waits for the device, which may be waiting for another rank.
        let history = if ranks > 1 { sizes.history } else { 0 };
        let flight = |_| StepSlot::new(memory, &sizes, ids, history, groups, head.rows);
        let flights = (0..ring.count()).map(flight).collect::<Result<_, _>>()?;
        let offload = memory.offload(sizes.blocks as usize)?;
        let limits = StepLimits {
            tokens: spec.step_tokens,
            sequences: spec.step_sequences.min(MAX_SEQUENCES),
            vocabulary: spec.vocabulary,
            context: memory.context(),
            block_tokens: spec.block_tokens,
            blocks: memory.blocks(),
            slides: sliding.map(|it| (it.of(spec), memory.sliding())),
            vision,
            offloaded: offload.as_ref().map_or(0, KvOffload::blocks),
            drafts: spec.drafts(),
            drafted: spec.drafted(),
            ahead: spec.ahead(spec.drafts()),
        };
        Ok(Executor {
            quiet: Quiet { aside: Aside::new()?, gpu: gpu.clone(), collective: None },
            uploads: Stream::new()?,
            graphs: Vec::new(),
            passes: Vec::new(),
            ring,
            flights,
            buffer: StepBuffer::new(limits),
            states: memory.places().clone(),
            sight: tower.map(|tower| Sight::new(tower, ranks > 1)).transpose()?,
            offload,
            staged: None,
            exchange,
            logits: head.logits,
            vocabulary: spec.vocabulary,
            sequences: spec.step_sequences,
            drafts: spec.drafts(),
            drafted: spec.drafted(),
            forced: spec.draft.is_some_and(|draft| draft.forced_acceptance.is_some()),
            unsampled: Vec::new(),
            submitted: 0,
            collected: 0,
            times: LaunchTimes::default(),
        })
    }

    /// From now on programs exchange values with other processes through this.
    pub(crate) fn join(&mut self, collective: Communicator) {
        self.quiet.collective = Some(collective);
    }

    /// What was joined.
    pub(crate) fn collective(&self) -> Option<&Communicator> {
        self.quiet.collective.as_ref()
    }

    /// Records the decode program for up to `sequences` sequences of `tokens` rows. Programs are recorded in
    /// ascending order of sequences.
    ///
    /// # Errors
    /// When a launch or the graph is refused.
    pub fn record(
        &mut self,
        program: &'static str,
        sequences: usize,
        tokens: usize,
        record: impl Fn(&mut Queue),
    ) -> Result<(), Fault> {
        let rows = (sequences * tokens) as u32;
        let extents = Extents { tokens: rows, sequences: sequences as u32, outputs: rows };
        // The first set of each step: with two parts, that of the part which decodes.
        let flights = self.flights.iter().step_by(self.ring.parts);
        let portions = |flight: &StepSlot| {
            let graph = |portion| {
                let queue = self.quiet.queue(program, true, extents, flight.tables);
                Graph::record(queue.portion(portion), &record)
            };
            let [whole, logits, sampling] =
                [graph(Portion::Whole)?, graph(Portion::Logits)?, graph(Portion::Sampling)?];
            Ok(Portions { whole, logits, sampling })
        };
        let graphs = flights.map(portions).collect::<Result<_, _>>()?;
        self.graphs.push(Recorded { program, sequences, tokens, extents, graphs });
        Ok(())
    }

    /// Records the draft passes after a prefill for up to `sequences` sequences, in ascending order.
    ///
    /// # Errors
    /// When a launch or the graph is refused.
    pub fn record_drafts(
        &mut self,
        program: &'static str,
        sequences: usize,
        record: impl Fn(&mut Queue),
    ) -> Result<(), Fault> {
        let each = sequences as u32;
        let extents = Extents { tokens: each, sequences: each, outputs: each };
        let tables = self.flights[PROMPTS].tables;
        let graph = Graph::record(self.quiet.queue(program, true, extents, tables), record)?;
        self.passes.push((sequences, graph));
        Ok(())
    }

    /// Starts a step. It waits for the device only if logits are wanted.
    ///
    /// # Panics
    /// When the step breaks its contract, or too many are in flight. Unwinds when the device has failed.
    pub fn submit<P: Programs>(&mut self, programs: &P, step: &Step) -> Ticket {
        let in_flight = self.submitted - self.collected;
        assert!(in_flight < self.ring.steps as u64, "{in_flight} steps are in flight already");
        assert!(self.unsampled.is_empty(), "a step is not sampled in, and another is submitted");
        if P::PROFILE.is_some() {
            self.read_times();
        }
        let flight = self.ring.of_step(self.submitted).start;
        let parts = parts(step, flight, self.ring.parts > 1, self.drafts, self.drafted);
        let started = self.copy(step).and_then(|()| match step.sampling_follows {
            true => self.begin(programs, &parts[0], step),
            false => parts.iter().try_for_each(|part| self.start(programs, part, step)),
        });
        if let Err(fault) = started {
            fail(self.exchange.as_ref(), fault);
        }
        if step.sampling_follows {
            self.unsampled = parts;
        }
        self.submitted += 1;
        Ticket(self.submitted)
    }

    /// Samples in the step submitted last, whose first part has started, then starts its other parts, which
    /// use the same scratch memory.
    ///
    /// # Panics
    /// When that step does not wait for its sampling inputs. Unwinds when the device has failed.
    pub fn sample<P: Programs>(&mut self, programs: &P, step: &Step) {
        let parts = std::mem::take(&mut self.unsampled);
        let Some((first, others)) = parts.split_first() else {
            panic!("no step waits for what it samples by")
        };
        let sampled = self.finish(programs, first, step);
        let started =
            sampled.and_then(|()| others.iter().try_for_each(|part| self.start(programs, part, step)));
        if let Err(fault) = started {
            fail(self.exchange.as_ref(), fault);
        }
    }

    /// Copies states, after the steps in flight.
    fn copy(&self, step: &Step) -> Result<(), Fault> {
        if step.copies.is_empty() {
            return Ok(());
        }
        self.quiet.gpu.enter()?;
        step.copies.iter().try_for_each(|copy| self.states.copy(self.quiet.gpu.stream(), copy))
    }

    /// Starts a part of a step.
    fn start<P: Programs>(&mut self, programs: &P, part: &StepPart, step: &Step) -> Result<(), Fault> {
        self.fill(part, step);
        self.record_results(part, step);
        match part.kind {
            Kind::Decode | Kind::Verify => self.decode(programs, part, &step.offloaded, Portion::Whole)?,
            Kind::Prefill => {
                self.layers(programs, part, &step.offloaded)?;
                self.head(programs, part)?;
            }
        }
        self.end(part, step)
    }

    /// Starts the portion of a part that does not depend on sampling inputs.
    fn begin<P: Programs>(&mut self, programs: &P, part: &StepPart, step: &Step) -> Result<(), Fault> {
        self.fill(part, step);
        self.record_results(part, step);
        match part.kind {
            Kind::Decode | Kind::Verify => self.decode(programs, part, &step.offloaded, Portion::Logits),
            Kind::Prefill => self.layers(programs, part, &step.offloaded),
        }
    }

    /// Starts the rest of a part, from sampling on.
    fn finish<P: Programs>(&mut self, programs: &P, part: &StepPart, step: &Step) -> Result<(), Fault> {
        self.quiet.gpu.enter()?;
        self.fill(part, step);
        let rows = self.buffer.outputs.len();
        self.buffer.select(0..rows.min(if part.kind == Kind::Prefill { P::HEAD_ROWS } else { rows }));
        self.upload_sampling(part.flight)?;
        match part.kind {
            Kind::Decode | Kind::Verify => self.decode(programs, part, &[], Portion::Sampling)?,
            Kind::Prefill => self.head(programs, part)?,
        }
        self.end(part, step)
    }

    /// Flattens a part into the step buffer.
    fn fill(&mut self, part: &StepPart, step: &Step) {
        let (sequences, tables) = (part.sequences(step), part.tables(step));
        match part.kind {
            Kind::Verify => self.buffer.verify(&sequences, &tables),
            Kind::Decode | Kind::Prefill => {
                self.buffer.fill(&sequences, &tables, part.kind == Kind::Decode);
            }
        }
        self.buffer.fill_images(&part.images(step));
    }

    /// Waits for the oldest step in flight.
    ///
    /// # Panics
    /// When tickets are not collected in the order in which they were handed out. Unwinds when the device has
    /// failed.
    pub fn collect(&mut self, ticket: Ticket) -> StepOutput {
        assert_eq!(ticket.0, self.collected + 1, "tickets are collected in order");
        let flights = self.ring.of_step(self.collected);
        let mut rows = Vec::new();
        for flight in &mut self.flights[flights] {
            if flight.wants.is_empty() && !std::mem::take(&mut flight.sees) {
                continue;
            }
            let place = flight.program;
            if let Err(fault) =
                self.quiet.gpu.enter().and_then(|()| wait(&flight.done, self.quiet.collective.as_ref()))
            {
                fail(self.exchange.as_ref(), fault.at(&format!("{place} (or a step before it)")));
            }
            let results = flight.results(self.drafted, self.sequences, self.forced);
            rows.extend(results.unwrap_or_else(|fault| fail(self.exchange.as_ref(), fault.at(place))));
        }
        self.collected += 1;
        rows.sort_by_key(|(at, _)| *at);
        StepOutput { rows: rows.into_iter().map(|(_, row)| row).collect() }
    }

    /// Records the kind of result of each sequence, and its index in the step. Its first row among the
    /// outputs is also its first among the results.
    fn record_results(&mut self, part: &StepPart, step: &Step) {
        let wants = &mut self.flights[part.flight].wants;
        wants.clear();
        let mut place = 0;
        for (at, row) in part.rows.iter().zip(&self.buffer.first_outputs) {
            let sequence = &step.sequences[*at];
            let want = match &sequence.output {
                Output::None => Want::None,
                Output::Logits => Want::Logits(Vec::with_capacity(sequence.tokens.len() * self.vocabulary)),
                Output::Sample { sampling, .. } => {
                    let logprobs = sampling.top_logprobs.is_some();
                    let fed = match &sequence.tokens {
                        Tokens::Known(ids) if sequence.drafts > 0 => ids[1..].to_vec(),
                        _ => Vec::new(),
                    };
                    place += 1;
                    if self.drafts > 0 {
                        Want::Verified { row: *row, logprobs, place: place - 1, fed }
                    } else {
                        Want::Sampled { row: *row, logprobs }
                    }
                }
            };
            wants.push((*at, want));
        }
    }

    /// Runs a portion of the smallest recorded program that takes the part's sequences and their rows: one
    /// each, or one and its drafts. If the step has blocks on disk, `offloaded`, the kernels are launched
    /// layer by layer instead.
    fn decode<P: Programs>(
        &mut self,
        programs: &P,
        part: &StepPart,
        offloaded: &[OffloadSlot],
        portion: Portion,
    ) -> Result<(), Fault> {
        let gpu = self.quiet.gpu.clone();
        gpu.enter()?;
        let (flight, rows, sequences) = (part.flight, self.buffer.outputs.len(), part.rows.len());
        let tokens = if part.kind == Kind::Verify { 1 + self.drafts } else { 1 };
        if portion != Portion::Sampling {
            self.buffer.select(0..rows);
            self.upload(flight, false)?;
        }
        let takes = |it: &Recorded| it.sequences >= sequences && it.tokens == tokens;
        let Some(at) = self.graphs.iter().position(takes) else {
            return Err(Fault::new(format!(
                "no decode program takes {sequences} sequences of {tokens} rows"
            )));
        };
        let Recorded { extents, graphs, program, .. } = &self.graphs[at];
        let graph = graphs[flight / self.ring.parts].portion(portion);
        self.flights[flight].program = program;
        let tables = self.flights[flight].tables;
        if portion != Portion::Sampling {
            self.count(|traffic| traffic.layers, rows);
            self.count(|traffic| traffic.head, rows);
        }
        if portion != Portion::Logits {
            self.count(|traffic| traffic.drafts, sequences);
        }
        let table = tables.header.offset(self.buffer.header.blocks_at as u64);
        // Behind the logits nothing attends: servers whose drafts do keep no blocks on disk.
        let offload = self.offload.as_mut().filter(|_| portion != Portion::Sampling);
        let pass = offload.and_then(|it| it.begin(offloaded, &self.buffer.blocks, table));
        let timed = P::PROFILE.is_some() && self.times.are_taken();
        match pass {
            None if !timed => graph.launch(gpu.stream())?,
            pass => {
                let queue = self.quiet.queue(program, false, *extents, tables);
                let queue = queue.portion(portion).streaming(pass);
                let mut queue = queue.timed_by(P::PROFILE.is_some().then_some(&mut self.times));
                programs.decode(at, &mut queue);
                queue.finish()?;
            }
        }
        match portion {
            Portion::Logits => Ok(()),
            Portion::Whole | Portion::Sampling => self.fetch_logits(flight, 0..rows),
        }
    }

    /// Runs all layers as a prefill, for any number of tokens.
    fn layers<P: Programs>(
        &mut self,
        programs: &P,
        part: &StepPart,
        offloaded: &[OffloadSlot],
    ) -> Result<(), Fault> {
        let gpu = self.quiet.gpu.clone();
        gpu.enter()?;
        let outputs = self.buffer.outputs.len().min(P::HEAD_ROWS);
        self.buffer.select(0..outputs);
        self.upload(part.flight, true)?;
        self.flights[part.flight].program = "prefill";
        let (extents, tables) = (self.extents(outputs), self.flights[part.flight].tables);
        let table = tables.header.offset(self.buffer.header.blocks_at as u64);
        let pass = self.offload.as_mut().and_then(|it| it.begin(offloaded, &self.buffer.blocks, table));
        let queue = self.quiet.queue("prefill", false, extents, tables).streaming(pass);
        let mut queue = queue.timed_by(P::PROFILE.is_some().then_some(&mut self.times));
        programs.prefill(self.buffer.tokens.len(), &mut queue);
        queue.finish()?;
        self.count(|traffic| traffic.layers, self.buffer.tokens.len());
        Ok(())
    }

    /// Runs the head, after the layers, over the rows that need logits, as many at a time as it takes; then
    /// the draft head, if there is one.
    fn head<P: Programs>(&mut self, programs: &P, part: &StepPart) -> Result<(), Fault> {
        let (gpu, flight) = (self.quiet.gpu.clone(), part.flight);
        let outputs = self.buffer.outputs.len();
        let group = |first: usize| first..outputs.min(first + P::HEAD_ROWS);
        let mut extents = self.extents(group(0).len());
        let mut tables = self.flights[flight].tables;
        let sampled = tables.sampled;
        for first in (0..outputs).step_by(P::HEAD_ROWS) {
            if first > 0 {
                self.upload_group(flight, group(first), first / P::HEAD_ROWS)?;
            }
            extents.outputs = group(first).len() as u32;
            tables.sampled = sampled.offset((first * size_of::<SampledRow>()) as u64);
            let queue = self.quiet.queue("head", false, extents, tables);
            let mut queue = queue.timed_by(P::PROFILE.is_some().then_some(&mut self.times));
            programs.head(&mut queue);
            queue.finish()?;
            self.count(|traffic| traffic.head, group(first).len());
            self.fetch_logits(flight, group(first))?;
        }
        if self.drafted > 0 {
            let mut queue = self.quiet.queue("learn", false, extents, tables);
            programs.learn(&mut queue);
            queue.finish()?;
            self.count(|traffic| traffic.learn, self.buffer.tokens.len());
            let sequences = self.buffer.drafted;
            if sequences > 0 {
                self.count(|traffic| traffic.drafts, sequences);
            }
            let takes = |(most, _): &&(usize, Graph)| *most >= sequences;
            match self.passes.iter().find(takes) {
                Some((_, graph)) if sequences > 0 => graph.launch(gpu.stream())?,
                Some(_) => {}
                None => return Err(Fault::new(format!("no passes draft for {sequences} sequences"))),
            }
        }
        Ok(())
    }

    /// Begins to take the times of launches, or ends that. Returns those taken since the last call.
    ///
    /// # Panics
    /// Unwinds when the device has failed.
    pub fn time_launches(&mut self, on: bool) -> Vec<TimedRow> {
        self.read_times();
        let gpu = &self.quiet.gpu;
        let taken = gpu.enter().and_then(|()| self.times.take(on, gpu.stream()));
        taken.unwrap_or_else(|fault| fail(self.exchange.as_ref(), fault))
    }

    /// Waits for the launches whose times were taken, and reads these.
    fn read_times(&mut self) {
        if !self.times.are_taken() {
            return;
        }
        let gpu = &self.quiet.gpu;
        let read = gpu.enter().and_then(|()| gpu.stream().wait()).and_then(|()| self.times.read());
        if let Err(fault) = read {
            fail(self.exchange.as_ref(), fault);
        }
    }

    /// The row counts of the step at hand, with `outputs` output rows.
    fn extents(&self, outputs: usize) -> Extents {
        Extents {
            tokens: self.buffer.tokens.len() as u32,
            sequences: self.buffer.header.sequences as u32,
            outputs: outputs as u32,
        }
    }

    /// Called after the last launch of a part.
    fn end(&mut self, part: &StepPart, step: &Step) -> Result<(), Fault> {
        self.flights[part.flight].done.record(self.quiet.gpu.stream())?;
        self.lose(part, step);
        Ok(())
    }
}
