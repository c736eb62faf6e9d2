//! Steps on their way through the device: what is uploaded, what is launched, what comes back.
//!
//! Steps run in order on one stream. The host fills pinned memory and returns; there are two sets of it and of the tables
//! on the device, so that a second step is uploaded, on a stream of its own, while the first runs. What was sampled the
//! kernels write into pinned memory themselves. So between the last kernel of a step and the first of the next there is no
//! copy.

use super::driver::{Event, Stream};
use super::fault::Fault;
use super::gpu::{Gpu, settle};
use super::host::Pinned;
use super::memory::{Memory, Pointer};
use super::queue::{Extents, Graph, Queue, StepTables};
use super::step::{Header, Limits, MAX_SEQUENCES, SampledRow, StepBuffer, Tables, bytes_of};
use monomorph_model::{ModelSpec, Output, RowOutput, Step, StepOutput, Ticket};
use monomorph_sampling::Sampled;
use std::ops::Range;

/// Steps that may be submitted and not collected.
pub const STEPS_IN_FLIGHT: usize = 2;

/// The programs of a layer stack that are not recorded.
pub trait Programs: Send + 'static {
    /// Most rows of logits that [`Programs::head`] computes at once.
    const HEAD_ROWS: usize;

    /// From token rows to the last layer's residual stream.
    fn prefill(&self, queue: &mut Queue);

    /// From the residual stream to the logits, and the tokens sampled from them, of the header's output rows.
    fn head(&self, queue: &mut Queue);
}

/// What a sequence of a step in flight will be given.
#[derive(Debug)]
enum Want {
    None,
    /// The row of [`Flight::sampled`], and whether log-probabilities were asked for.
    Sampled(usize, bool),
    Logits(Vec<f32>),
}

/// What one step in flight has of its own.
#[derive(Debug)]
struct Flight {
    /// On the device, and the pinned `sampled`.
    tables: StepTables,
    header: Pinned,
    /// Headers of the second and further groups of output rows.
    groups: Pinned,
    tokens: Pinned,
    history: Pinned,
    sampled: Pinned,
    uploaded: Event,
    done: Event,
    program: &'static str,
    wants: Vec<Want>,
}

/// The steps of a loaded stack.
#[derive(Debug)]
pub struct Steps {
    // Dropped first: a copy under way would write to pinned memory that is gone.
    quiet: Quiet,
    uploads: Stream,
    /// By rows, ascending; each for the tables of each flight.
    graphs: Vec<(usize, [Graph; STEPS_IN_FLIGHT])>,
    flights: [Flight; STEPS_IN_FLIGHT],
    buffer: StepBuffer,
    logits: Pointer,
    vocabulary: usize,
    submitted: u64,
    collected: u64,
}

/// Waits for the device when the steps go.
#[derive(Debug)]
struct Quiet(Gpu);

impl Drop for Quiet {
    fn drop(&mut self) {
        // A device that failed has nothing under way.
        let _ = self.0.enter().and_then(|()| settle(&self.0));
    }
}

impl Steps {
    /// Steps whose tables are taken from `memory`; `logits` is where the head leaves its rows.
    ///
    /// # Errors
    /// When pinned memory is short.
    pub fn new(
        gpu: &Gpu,
        spec: &ModelSpec,
        memory: &mut Memory,
        logits: Pointer,
        head_rows: usize,
    ) -> Result<Steps, Fault> {
        let sizes = Tables::of(spec, memory.context());
        let groups = spec.step_tokens.div_ceil(head_rows);
        let sampled_ids = memory.take(sizes.sampled_ids)?;
        let mut flight = || -> Result<Flight, Fault> {
            let sampled = Pinned::zeroed(groups * head_rows * size_of::<SampledRow>())?;
            Ok(Flight {
                tables: StepTables {
                    header: memory.take(sizes.header)?,
                    tokens: memory.take(sizes.tokens)?,
                    history: memory.take(sizes.history)?,
                    sampled_ids,
                    sampled: sampled.address()?,
                },
                header: Pinned::zeroed(sizes.header as usize)?,
                groups: Pinned::zeroed(groups * size_of::<Header>())?,
                tokens: Pinned::zeroed(sizes.tokens as usize)?,
                // Grown when penalties first ask for it: at its largest it is rarely needed.
                history: Pinned::zeroed(0)?,
                sampled,
                uploaded: Event::new()?,
                done: Event::new()?,
                program: "",
                wants: Vec::new(),
            })
        };
        let flights = [flight()?, flight()?];
        let limits = Limits {
            tokens: spec.step_tokens,
            sequences: spec.step_sequences.min(MAX_SEQUENCES),
            vocabulary: spec.vocabulary,
            context: memory.context(),
            block_tokens: spec.block_tokens,
            blocks: memory.blocks(),
        };
        Ok(Steps {
            quiet: Quiet(gpu.clone()),
            uploads: Stream::new()?,
            graphs: Vec::new(),
            flights,
            buffer: StepBuffer::new(limits),
            logits,
            vocabulary: spec.vocabulary,
            submitted: 0,
            collected: 0,
        })
    }

    /// Records the decode program of up to `rows` sequences; programs come in ascending order of rows.
    ///
    /// # Errors
    /// When a launch or the graph is refused.
    pub fn record(
        &mut self,
        program: &'static str,
        rows: usize,
        record: impl Fn(&mut Queue),
    ) -> Result<(), Fault> {
        let each = rows as u32;
        let extents = Extents { tokens: each, sequences: each, outputs: each };
        let stream = self.quiet.0.stream();
        let graph = |flight: &Flight| Graph::record(stream, program, extents, flight.tables, &record);
        self.graphs.push((rows, [graph(&self.flights[0])?, graph(&self.flights[1])?]));
        Ok(())
    }

    /// Starts a step. It does not wait for the device, unless logits themselves are wanted.
    ///
    /// # Panics
    /// When the step breaks its contract, or two are in flight. Unwinds when the device has failed.
    pub fn submit<P: Programs>(&mut self, programs: &P, step: &Step) -> Ticket {
        let in_flight = self.submitted - self.collected;
        assert!(in_flight < STEPS_IN_FLIGHT as u64, "{in_flight} steps are in flight already");
        self.buffer.fill(step);
        self.want(step);
        let started = if self.buffer.decodes { self.decode(step) } else { self.prefill(programs, step) };
        if let Err(fault) = started {
            fault.raise();
        }
        self.submitted += 1;
        Ticket(self.submitted)
    }

    /// Waits for the step submitted first of those in flight.
    ///
    /// # Panics
    /// When tickets are not collected in the order they were handed out. Unwinds when the device has failed.
    pub fn collect(&mut self, ticket: Ticket) -> StepOutput {
        assert_eq!(ticket.0, self.collected + 1, "tickets are collected in order");
        let index = self.flight_of(self.collected);
        let flight = &mut self.flights[index];
        if let Err(fault) = self.quiet.0.enter().and_then(|()| flight.done.wait()) {
            fault.at(&format!("{} (or a step before it)", flight.program)).raise();
        }
        self.collected += 1;
        let bytes = flight.sampled.bytes();
        let rows = flight.wants.drain(..).map(|want| match want {
            Want::None => RowOutput::None,
            Want::Logits(logits) => RowOutput::Logits(logits),
            Want::Sampled(row, logprobs) => RowOutput::Sampled(sampled(
                &SampledRow::read(&bytes[row * size_of::<SampledRow>()..]),
                logprobs,
            )),
        });
        StepOutput { rows: rows.collect() }
    }

    fn flight_of(&self, step: u64) -> usize {
        (step % STEPS_IN_FLIGHT as u64) as usize
    }

    /// Notes what each sequence will be given. Its row among the outputs is also its row among those that come back.
    fn want(&mut self, step: &Step) {
        let index = self.flight_of(self.submitted);
        let wants = &mut self.flights[index].wants;
        wants.clear();
        for (sequence, row) in step.sequences.iter().zip(&self.buffer.header.sequence) {
            wants.push(match &sequence.output {
                Output::None => Want::None,
                Output::Logits => Want::Logits(Vec::with_capacity(sequence.tokens.len() * self.vocabulary)),
                Output::Sample { sampling, .. } => {
                    Want::Sampled(row.output as usize, sampling.top_logprobs.is_some())
                }
            });
        }
    }

    /// One token a sequence: the smallest recorded program that takes them.
    fn decode(&mut self, step: &Step) -> Result<(), Fault> {
        let rows = step.sequences.len();
        let gpu = self.quiet.0.clone();
        gpu.enter()?;
        self.buffer.select(0..rows);
        self.upload(false)?;
        let Some((_, graphs)) = self.graphs.iter().find(|(most, _)| *most >= rows) else {
            return Err(Fault::new(format!("no decode program takes {rows} sequences")));
        };
        let graph = &graphs[self.flight_of(self.submitted)];
        graph.launch(gpu.stream())?;
        let program = graph.program();
        self.fetch_logits(0..rows)?;
        self.end(program)
    }

    /// Any tokens: all layers, then the head over the rows whose logits are wanted, as many at once as it takes.
    fn prefill<P: Programs>(&mut self, programs: &P, step: &Step) -> Result<(), Fault> {
        let gpu = self.quiet.0.clone();
        gpu.enter()?;
        let outputs = self.buffer.outputs.len();
        let group = |first: usize| first..outputs.min(first + P::HEAD_ROWS);
        self.buffer.select(group(0));
        self.upload(true)?;
        let mut extents = Extents {
            tokens: self.buffer.tokens.len() as u32,
            sequences: step.sequences.len() as u32,
            outputs: group(0).len() as u32,
        };
        let mut tables = self.flights[self.flight_of(self.submitted)].tables;
        let sampled = tables.sampled;
        let mut queue = Queue::new(gpu.stream(), "prefill", false, extents, tables);
        programs.prefill(&mut queue);
        queue.finish()?;
        for first in (0..outputs).step_by(P::HEAD_ROWS) {
            if first > 0 {
                self.upload_group(group(first), first / P::HEAD_ROWS)?;
            }
            extents.outputs = group(first).len() as u32;
            tables.sampled = sampled.offset((first * size_of::<SampledRow>()) as u64);
            let mut queue = Queue::new(gpu.stream(), "head", false, extents, tables);
            programs.head(&mut queue);
            queue.finish()?;
            self.fetch_logits(group(first))?;
        }
        self.end("prefill")
    }

    /// Header, block table and history of the step at hand, and its token rows where kernels read them; the steps' stream
    /// waits for them.
    fn upload(&mut self, tokens: bool) -> Result<(), Fault> {
        let index = self.flight_of(self.submitted);
        let (flight, buffer) = (&mut self.flights[index], &self.buffer);
        let header = bytes_of(std::slice::from_ref(&*buffer.header));
        let history = bytes_of(&buffer.history);
        if history.len() > flight.history.bytes().len() {
            flight.history = Pinned::zeroed(history.len().next_power_of_two())?;
        }
        let tokens = if tokens { bytes_of(&buffer.tokens) } else { &[] };
        let none: &[u8] = &[];
        for (to, pinned, parts) in [
            (flight.tables.header, &mut flight.header, [header, bytes_of(&buffer.blocks)]),
            (flight.tables.history, &mut flight.history, [history, none]),
            (flight.tables.tokens, &mut flight.tokens, [tokens, none]),
        ] {
            let pinned = &mut pinned.bytes_mut()[..parts[0].len() + parts[1].len()];
            pinned[..parts[0].len()].copy_from_slice(parts[0]);
            pinned[parts[0].len()..].copy_from_slice(parts[1]);
            // SAFETY: the tables were taken for the largest step. They and the pinned bytes are this flight's, whose last
            // step was collected before: nothing reads or copies them any more.
            unsafe { self.uploads.upload(to.0, pinned) }?;
        }
        flight.uploaded.record(&self.uploads)?;
        self.quiet.0.stream().wait_for(&flight.uploaded)
    }

    /// The header again, with other output rows, when the steps' stream has come so far.
    fn upload_group(&mut self, rows: Range<usize>, number: usize) -> Result<(), Fault> {
        self.buffer.select(rows);
        let index = self.flight_of(self.submitted);
        let flight = &mut self.flights[index];
        let header = bytes_of(std::slice::from_ref(&*self.buffer.header));
        let pinned = &mut flight.groups.bytes_mut()[number * header.len()..][..header.len()];
        pinned.copy_from_slice(header);
        // SAFETY: as in `upload`; each group has its own pinned bytes.
        unsafe { self.quiet.0.stream().upload(flight.tables.header.0, pinned) }
    }

    /// Brings back the logits of output rows `rows`, where they are wanted themselves. For comparison with other
    /// implementations, not for speed: copies as large as this are waited for.
    fn fetch_logits(&mut self, rows: Range<usize>) -> Result<(), Fault> {
        if !self.buffer.outputs[rows.clone()].iter().any(|output| output.logits) {
            return Ok(());
        }
        let index = self.flight_of(self.submitted);
        let (flight, stream) = (&mut self.flights[index], self.quiet.0.stream());
        let mut bytes = vec![0; rows.len() * self.vocabulary * 4];
        // SAFETY: the buffer holds that many rows; the bytes are not pinned, and looked at after the wait.
        unsafe { stream.download(self.logits.0, &mut bytes) }?;
        stream.wait()?;
        let values = bytes.chunks_exact(self.vocabulary * 4);
        for (output, row) in self.buffer.outputs[rows].iter().zip(values) {
            if let (true, Want::Logits(logits)) = (output.logits, &mut flight.wants[output.sequence]) {
                logits.extend(row.as_chunks::<4>().0.iter().map(|value| f32::from_le_bytes(*value)));
            }
        }
        Ok(())
    }

    fn end(&mut self, program: &'static str) -> Result<(), Fault> {
        let index = self.flight_of(self.submitted);
        let flight = &mut self.flights[index];
        flight.program = program;
        flight.done.record(self.quiet.0.stream())
    }
}

/// A sampled row as the engine knows it.
fn sampled(row: &SampledRow, logprobs: bool) -> Sampled {
    let count = if logprobs { usize::try_from(row.top_count).unwrap_or(0) } else { 0 };
    let top = row.top_id.iter().zip(row.top_logprob).take(count);
    Sampled {
        id: row.id as u32,
        logprob: logprobs.then_some(row.logprob),
        top: top.map(|(id, logprob)| (*id as u32, logprob)).collect(),
    }
}
