//! Loading: checkpoint tensors, or dummy weights, to packed matrices on the device.

use super::carry::{Job, Worker, pieces};
use super::fill::{FillMatrix, FillVector, Filler, Purpose};
use super::gpu::Gpu;
use super::memory::Memory;
use super::module::Kernel;
use super::pack::Source;
use super::shape::{MatrixShape, vector_bytes};
use super::slice::Share;
use super::sources::{load_sources, load_values};
use super::weights::{Matrix, Part, Vector};
use monomorph_abi::serve::PACKING_THREADS;
use monomorph_formats::Format;
use monomorph_model::{LoadError, LoadOptions, ModelSpec, Progress, Watch, Weights};
use monomorph_weights::{Checkpoint, WeightsError};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// Collects the weights a stack asks for and loads them.
#[derive(Debug)]
pub struct Loader<'a> {
    gpu: &'a Gpu,
    memory: &'a mut Memory,
    weights: &'a Weights,
    share: Share,
    progress: &'a Progress,
    threads: usize,
    watch: Watch,
    jobs: Vec<Job<'a>>,
    filler: Filler,
}

impl<'a> Loader<'a> {
    /// A loader into `memory` of a rank's `share`. It refuses a checkpoint with tensors that the stack does
    /// not know.
    ///
    /// # Errors
    /// When there are such tensors.
    pub(crate) fn new(
        gpu: &'a Gpu,
        memory: &'a mut Memory,
        (weights, share): (&'a Weights, Share),
        spec: &ModelSpec,
        options: &LoadOptions,
        progress: &'a Progress,
    ) -> Result<Loader<'a>, LoadError> {
        let seed = match weights {
            Weights::Checkpoint(checkpoint) => {
                checkpoint.refuse_surplus(|name| spec.knows(name))?;
                0
            }
            Weights::Dummy { seed } => *seed,
        };
        progress.expect(share.ranks as u64 * spec.weight_bytes);
        let threads = options.threads.clamp(1, PACKING_THREADS);
        let (watch, jobs, filler) = (options.guard.watch(), Vec::new(), Filler::new(seed));
        Ok(Loader { gpu, memory, weights, share, progress, threads, watch, jobs, filler })
    }

    /// A matrix of these parts; `fill` makes its dummy weights.
    ///
    /// # Errors
    /// When a tensor is missing or has another shape or format.
    ///
    /// # Panics
    /// When the shape has another number of parts, or several experts.
    pub fn matrix(
        &mut self,
        shape: &'static MatrixShape,
        fill: &Kernel<FillMatrix>,
        parts: &[Part],
    ) -> Result<Matrix, LoadError> {
        assert_eq!(shape.experts, 1, "experts have parts each");
        let share = self.share;
        self.packed(shape, fill, |checkpoint, _| load_sources(checkpoint, shape, parts, share))
    }

    /// One matrix per expert, made of what `parts` returns for it.
    ///
    /// # Errors
    /// As [`Loader::matrix`].
    ///
    /// # Panics
    /// When the shape has another number of parts.
    pub fn experts<const PARTS: usize>(
        &mut self,
        shape: &'static MatrixShape,
        fill: &Kernel<FillMatrix>,
        parts: impl Fn(usize) -> [Part; PARTS],
    ) -> Result<Matrix, LoadError> {
        let share = self.share;
        self.packed(shape, fill, |checkpoint, expert| load_sources(checkpoint, shape, &parts(expert), share))
    }

    /// The same of the experts that this rank holds: as many as any other rank, those of rank 0 first.
    ///
    /// # Errors
    /// As [`Loader::matrix`].
    ///
    /// # Panics
    /// When the shape has another number of parts.
    pub fn own_experts<const PARTS: usize>(
        &mut self,
        shape: &'static MatrixShape,
        fill: &Kernel<FillMatrix>,
        parts: impl Fn(usize) -> [Part; PARTS],
    ) -> Result<Matrix, LoadError> {
        let first = self.share.rank * shape.experts;
        self.experts(shape, fill, |expert| parts(first + expert))
    }

    fn packed(
        &mut self,
        shape: &'static MatrixShape,
        fill: &Kernel<FillMatrix>,
        sources: impl Fn(&'a Checkpoint, usize) -> Result<Vec<Source<'a>>, WeightsError>,
    ) -> Result<Matrix, LoadError> {
        let matrix = Matrix::take(self.memory, shape)?;
        match self.weights {
            Weights::Dummy { .. } => {
                self.filler.matrix(self.gpu.stream(), fill, shape, &matrix)?;
                self.progress.advance(shape.bytes());
            }
            Weights::Checkpoint(checkpoint) => {
                let mut all = Vec::with_capacity(shape.experts * shape.parts.len());
                for expert in 0..shape.experts {
                    all.extend(sources(checkpoint, expert)?);
                }
                self.jobs.push(Job { shape, sources: all, matrix });
            }
        }
        Ok(matrix)
    }

    /// A bias of `lengths` values, stored as `format`.
    ///
    /// # Errors
    /// As [`Loader::matrix`].
    pub fn vector(
        &mut self,
        format: Format,
        lengths: &[usize],
        fill: &Kernel<FillVector>,
        parts: &[Part],
    ) -> Result<Vector, LoadError> {
        self.values(format, (lengths, 1), fill, parts, Purpose::Bias)
    }

    /// The weights of a convolution: `taps` per channel, the current token's last.
    ///
    /// # Errors
    /// As [`Loader::matrix`].
    pub fn convolution(
        &mut self,
        format: Format,
        channels: usize,
        taps: usize,
        fill: &Kernel<FillVector>,
        part: Part,
    ) -> Result<Vector, LoadError> {
        self.values(format, (&[channels], taps), fill, &[part], Purpose::Convolution(taps))
    }

    /// The weights of a norm that multiplies by them as they are.
    ///
    /// # Errors
    /// As [`Loader::matrix`].
    pub fn norm(
        &mut self,
        format: Format,
        length: usize,
        fill: &Kernel<FillVector>,
        part: Part,
    ) -> Result<Vector, LoadError> {
        self.values(format, (&[length], 1), fill, &[part], Purpose::Norm)
    }

    /// The weights of a norm that multiplies by one plus each; the kernels add the one.
    ///
    /// # Errors
    /// As [`Loader::matrix`].
    pub fn norm_one_plus(
        &mut self,
        format: Format,
        length: usize,
        fill: &Kernel<FillVector>,
        part: Part,
    ) -> Result<Vector, LoadError> {
        self.values(format, (&[length], 1), fill, &[part], Purpose::Bias)
    }

    /// The rows of each part as f32 values on the device; all parts have the same width.
    fn values(
        &mut self,
        format: Format,
        (rows, width): (&[usize], usize),
        fill: &Kernel<FillVector>,
        parts: &[Part],
        purpose: Purpose,
    ) -> Result<Vector, LoadError> {
        let length = width * rows.iter().sum::<usize>();
        let at = self.memory.take(vector_bytes(length))?;
        let zeros = self.share.rank > 0 && !parts.is_empty() && parts.iter().all(|it| it.first_rank_only);
        match self.weights {
            // The arena is zero.
            Weights::Dummy { .. } if zeros => self.filler.skip(),
            Weights::Dummy { .. } => self.filler.vector(self.gpu.stream(), fill, at, length, purpose)?,
            Weights::Checkpoint(checkpoint) => {
                let mut bytes = Vec::with_capacity(4 * length);
                for (part, rows) in parts.iter().zip(rows) {
                    let values = load_values(checkpoint, format, part, *rows, width, self.share)?;
                    bytes.extend(values.into_iter().flat_map(f32::to_le_bytes));
                }
                // SAFETY: just taken from the arena, large enough; the driver has copied these pageable bytes
                // once the stream has been waited for.
                unsafe { self.gpu.stream().upload(at.0, &bytes) }?;
                self.gpu.stream().wait()?;
            }
        }
        self.progress.advance(4 * length as u64);
        Ok(Vector { codes: at })
    }

    /// Loads everything that was collected.
    ///
    /// # Errors
    /// When the device fails, host memory runs out, or a weight is not a number.
    pub fn run(self) -> Result<(), LoadError> {
        self.gpu.stream().wait()?;
        let Weights::Checkpoint(checkpoint) = self.weights else { return Ok(()) };
        let pieces = pieces(&self.jobs);
        let largest = pieces.iter().map(|piece| piece.bytes(&self.jobs)).max().unwrap_or(0);
        let (next, stop) = (AtomicUsize::new(0), AtomicBool::new(false));
        let buffers = (self.threads.min(pieces.len()) * Worker::bytes(largest)) as u64;
        self.watch.take(buffers)?;
        let work = || -> Result<(), LoadError> {
            self.gpu.enter()?;
            let mut worker = Worker::new(largest)?;
            let take = |worker: &mut Worker<'a>| {
                let piece = pieces.get(next.fetch_add(1, Ordering::Relaxed))?;
                worker.announce(&self.jobs[piece.job], piece);
                Some(piece)
            };
            // The next piece is read while this one is packed.
            let mut taken = take(&mut worker);
            while !stop.load(Ordering::Relaxed)
                && let Some(piece) = taken
            {
                // Other processes may have taken memory since it was planned.
                self.watch.look()?;
                taken = take(&mut worker);
                let job = &self.jobs[piece.job];
                worker.carry(job, piece).map_err(|error| error.into_load(checkpoint))?;
                self.progress.advance(piece.share(job));
            }
            Ok(worker.stream.wait()?)
        };
        std::thread::scope(|scope| {
            let spawn = |_| {
                scope.spawn(|| {
                    let outcome = work();
                    if outcome.is_err() {
                        stop.store(true, Ordering::Relaxed);
                    }
                    outcome
                })
            };
            let threads: Vec<_> = (0..self.threads.min(pieces.len())).map(spawn).collect();
            let joined = threads
                .into_iter()
                .map(|thread| thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)));
            joined.collect::<Vec<_>>().into_iter().collect::<Result<(), LoadError>>()
        })?;
        Ok(())
    }
}
