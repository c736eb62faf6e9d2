//! From a checkpoint's tensors, or from nothing, to matrices packed on the device.
//!
//! Threads take pieces of matrices in turn: they read the mapped file, pack into one of their two pinned buffers, and
//! start its copy to the device while they pack the other. So disk, packing and PCIe overlap.

use super::driver::{Event, Stream};
use super::fault::Fault;
use super::fill::{Centre, Filler};
use super::gpu::Gpu;
use super::host::{self, Pinned};
use super::memory::{Memory, Pointer};
use super::module::Kernel;
use super::pack::{NotANumber, Planes, Source, SourceScales, pack_tiles};
use super::shape::{MatrixShape, vector_bytes};
use super::sources::{load_check_blocks, load_source, mismatch};
use super::weights::{Matrix, Part, Vector};
use monomorph_formats::{Format, decode};
use monomorph_model::{LoadError, LoadOptions, ModelSpec, Progress, Weights};
use monomorph_weights::Checkpoint;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// Bytes of codes a thread packs at a time: large enough for PCIe, small enough to share out evenly.
const PIECE_BYTES: usize = 8 << 20;
/// Threads that pack: more would wait for memory.
const MOST_THREADS: usize = 16;
/// Memory that the machine keeps: loading stops before the system begins to end processes.
const HOST_RESERVE: u64 = 512 << 20;

/// Gathers what a stack wants and loads it.
#[derive(Debug)]
pub struct Loader<'a> {
    gpu: &'a Gpu,
    memory: &'a mut Memory,
    weights: &'a Weights,
    progress: &'a Progress,
    threads: usize,
    jobs: Vec<Job<'a>>,
    filler: Filler,
}

/// A matrix to be packed.
#[derive(Debug)]
struct Job<'a> {
    shape: &'static MatrixShape,
    sources: Vec<Source<'a>>,
    matrix: Matrix,
}

impl<'a> Loader<'a> {
    /// A loader into `memory`; a checkpoint with tensors that the stack does not know is refused at once.
    ///
    /// # Errors
    /// When there are such tensors.
    pub fn new(
        gpu: &'a Gpu,
        memory: &'a mut Memory,
        weights: &'a Weights,
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
        progress.expect(spec.weight_bytes);
        let threads = options.threads.clamp(1, MOST_THREADS);
        Ok(Loader { gpu, memory, weights, progress, threads, jobs: Vec::new(), filler: Filler::new(seed) })
    }

    /// A matrix of these parts; `fill` makes its dummy weights.
    ///
    /// # Errors
    /// When a tensor is missing or not of this shape and format.
    pub fn matrix(
        &mut self,
        shape: &'static MatrixShape,
        fill: &Kernel,
        parts: &[Part],
    ) -> Result<Matrix, LoadError> {
        let matrix = Matrix::take(self.memory, shape)?;
        match self.weights {
            Weights::Dummy { .. } => {
                self.filler.matrix(self.gpu.stream(), fill, shape, &matrix)?;
                self.progress.advance(shape.bytes());
            }
            Weights::Checkpoint(checkpoint) => {
                let source = |(part, rows): (&Part, &usize)| load_source(checkpoint, shape, part, *rows);
                let sources = parts.iter().zip(shape.parts).map(source).collect::<Result<Vec<_>, _>>()?;
                load_check_blocks(checkpoint, shape, &sources)?;
                self.jobs.push(Job { shape, sources, matrix });
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
        fill: &Kernel,
        parts: &[Part],
    ) -> Result<Vector, LoadError> {
        self.values(format, lengths, fill, parts, Centre::Zero)
    }

    /// The weights of a norm whose formula multiplies by them as they are.
    ///
    /// # Errors
    /// As [`Loader::matrix`].
    pub fn norm(
        &mut self,
        format: Format,
        length: usize,
        fill: &Kernel,
        part: Part,
    ) -> Result<Vector, LoadError> {
        self.values(format, &[length], fill, &[part], Centre::One)
    }

    /// The weights of a norm whose formula multiplies by one more than they are; kernels add the one.
    ///
    /// # Errors
    /// As [`Loader::matrix`].
    pub fn norm_one_plus(
        &mut self,
        format: Format,
        length: usize,
        fill: &Kernel,
        part: Part,
    ) -> Result<Vector, LoadError> {
        self.values(format, &[length], fill, &[part], Centre::Zero)
    }

    fn values(
        &mut self,
        format: Format,
        lengths: &[usize],
        fill: &Kernel,
        parts: &[Part],
        centre: Centre,
    ) -> Result<Vector, LoadError> {
        let length = lengths.iter().sum();
        let at = self.memory.take(vector_bytes(length))?;
        match self.weights {
            Weights::Dummy { .. } => self.filler.vector(self.gpu.stream(), fill, at, length, centre)?,
            Weights::Checkpoint(checkpoint) => {
                let mut bytes = Vec::with_capacity(4 * length);
                for (part, rows) in parts.iter().zip(lengths) {
                    let tensor = checkpoint.expect(&part.name, &[*rows], format)?;
                    let mut values = vec![0.0; *rows];
                    decode(format, tensor.bytes, &mut values);
                    let order = Source {
                        name: tensor.name,
                        bytes: &[],
                        rows: *rows,
                        rotary: part.rotary,
                        scales: SourceScales::Own,
                    };
                    bytes.extend((0..*rows).flat_map(|row| values[order.file_row(row)].to_le_bytes()));
                }
                // SAFETY: just taken from the arena, not smaller; pageable bytes, which the driver has copied when
                // the stream was waited for.
                unsafe { self.gpu.stream().upload(at.0, &bytes) }?;
                self.gpu.stream().wait()?;
            }
        }
        self.progress.advance(4 * length as u64);
        Ok(Vector { codes: at })
    }

    /// Carries out what was gathered.
    ///
    /// # Errors
    /// When the device fails, the machine's memory runs out, or a weight is not a number.
    pub fn run(self) -> Result<(), LoadError> {
        self.gpu.stream().wait()?;
        let Weights::Checkpoint(checkpoint) = self.weights else { return Ok(()) };
        let pieces = pieces(&self.jobs);
        let largest = pieces.iter().map(|piece| piece.bytes(&self.jobs)).max().unwrap_or(0);
        let (next, stop) = (AtomicUsize::new(0), AtomicBool::new(false));
        let work = || -> Result<(), LoadError> {
            self.gpu.enter()?;
            let mut worker = Worker::new(largest)?;
            while !stop.load(Ordering::Relaxed)
                && let Some(piece) = pieces.get(next.fetch_add(1, Ordering::Relaxed))
            {
                if let Some(available) = host::available().filter(|available| *available < HOST_RESERVE) {
                    return Err(LoadError::HostMemory { available });
                }
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
        checkpoint.release();
        Ok(())
    }
}

/// Some tiles of a matrix.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Piece {
    job: usize,
    tiles: Range<usize>,
}

impl Piece {
    /// Bytes of all its planes.
    fn bytes(&self, jobs: &[Job]) -> usize {
        let shape = jobs[self.job].shape;
        self.tiles.len() * (shape.tile_codes() + shape.tile_scales() + shape.tile_row_scales())
    }

    /// Its share of the matrix's bytes, for the progress.
    fn share(&self, job: &Job) -> u64 {
        job.shape.bytes() * self.tiles.len() as u64 / job.shape.tiles().max(1) as u64
    }
}

/// Cuts all matrices.
fn pieces(jobs: &[Job]) -> Vec<Piece> {
    let mut pieces = Vec::new();
    for (job, Job { shape, .. }) in jobs.iter().enumerate() {
        let each = (PIECE_BYTES / shape.tile_codes()).max(1);
        let tiles = shape.tiles();
        pieces.extend(
            (0..tiles).step_by(each).map(|first| Piece { job, tiles: first..tiles.min(first + each) }),
        );
    }
    pieces
}

/// One thread's buffers and stream.
struct Worker {
    // Waited for before the buffers go.
    stream: Stream,
    buffers: [(Pinned, Event); 2],
    turn: usize,
}

/// Why a piece could not be carried over.
enum Trouble {
    Device(Fault),
    NotANumber(NotANumber),
}

impl Trouble {
    fn into_load(self, checkpoint: &Checkpoint) -> LoadError {
        match self {
            Trouble::Device(fault) => fault.into(),
            Trouble::NotANumber(NotANumber { name, row }) => {
                mismatch(checkpoint, format!("tensor `{name}`: row {row} holds a code that is not a number"))
                    .into()
            }
        }
    }
}

impl From<Fault> for Trouble {
    fn from(fault: Fault) -> Trouble {
        Trouble::Device(fault)
    }
}

impl Worker {
    fn new(bytes: usize) -> Result<Worker, Fault> {
        let buffer = || Ok((Pinned::zeroed(bytes)?, Event::new()?));
        Ok(Worker { stream: Stream::new()?, buffers: [buffer()?, buffer()?], turn: 0 })
    }

    /// Packs a piece and starts its way to the device.
    fn carry(&mut self, job: &Job, piece: &Piece) -> Result<(), Trouble> {
        let (buffer, copied) = &mut self.buffers[self.turn];
        self.turn = 1 - self.turn;
        copied.wait()?;
        let (shape, matrix, tiles) = (job.shape, &job.matrix, piece.tiles.len());
        let (codes, rest) = buffer.bytes_mut().split_at_mut(tiles * shape.tile_codes());
        let (scales, rest) = rest.split_at_mut(tiles * shape.tile_scales());
        let row_scales = &mut rest[..tiles * shape.tile_row_scales()];
        let mut planes = Planes { codes, scales, row_scales };
        pack_tiles(shape, &job.sources, piece.tiles.clone(), &mut planes).map_err(Trouble::NotANumber)?;
        let first = piece.tiles.start;
        for (plane, each, bytes) in [
            (matrix.codes, shape.tile_codes(), &*planes.codes),
            (matrix.scales, shape.tile_scales(), &*planes.scales),
            (matrix.row_scales, shape.tile_row_scales(), &*planes.row_scales),
        ] {
            let Pointer(to) = plane.offset((first * each) as u64);
            // SAFETY: the tiles of a plane that was taken for all of them; the buffer is left alone until the event.
            unsafe { self.stream.upload(to, bytes) }?;
        }
        Ok(copied.record(&self.stream)?)
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        // A copy under way after an error must end before its buffer is freed; if it cannot, the process is ending.
        let _ = self.stream.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::super::shape::Packing;
    use super::*;

    #[test]
    fn pieces_cover_every_tile_once() {
        static WIDE: MatrixShape = MatrixShape {
            format: Format::Bf16,
            scales: None,
            parts: &[8 * 1000 + 3],
            columns: 4096,
            packing: Packing::Stacked,
        };
        static SMALL: MatrixShape = MatrixShape {
            format: Format::F32,
            scales: None,
            parts: &[5],
            columns: 16,
            packing: Packing::Stacked,
        };
        let null = Matrix { codes: Pointer::NULL, scales: Pointer::NULL, row_scales: Pointer::NULL };
        let job = |shape| Job { shape, sources: Vec::new(), matrix: null };
        let jobs = [job(&WIDE), job(&SMALL)];
        let pieces = pieces(&jobs);
        assert!(pieces.iter().all(|piece| piece.bytes(&jobs) <= PIECE_BYTES));
        let tiles = |job| pieces.iter().filter(move |it| it.job == job).flat_map(|it| it.tiles.clone());
        assert!(tiles(0).eq(0..1001) && tiles(1).eq(0..1));
    }
}
