//! Transfer of packed matrices to the device, in pieces.
//!
//! Threads take pieces of matrices in turn. A thread reads the files, packs into one of its two pinned
//! buffers, and packs the other while the first is copied to the device. Disk, packing and PCIe overlap.
//!
//! Experts' matrices are small, often 1 or 2 MB, and there are tens of thousands of them. They need no
//! special path: a plane holds all experts of a layer back to back, so they are cut as one long matrix, and a
//! piece may span several. 20 GB are 2,500 pieces of 8 MiB, each with one to three copies and an event: about
//! 20 us of driver time each, 50 ms in all; one piece per expert would cost ten times that. The copies take
//! 0.4 s at PCIe 5's 50 GB/s. Per piece, a thread reads its rows (256 KiB at a time, those of the next piece
//! meanwhile) and moves 16 bytes at a time within 64: an estimated 1.5 to 3 GB/s. One thread of sixteen could
//! pack 20 GB in 15 s, and with cached files, packing bounds the load. Uncached files load at the disk's pace
//! if each thread's 8 MiB are mostly adjacent in them. They are: a layer's experts follow one another, or one
//! stacked tensor holds them.

use super::driver::{Event, Stream};
use super::fault::Fault;
use super::host::Pinned;
use super::pack::{NotANumber, PackError, Planes, Source, pack_tiles, reads};
use super::pointer::Pointer;
use super::shape::MatrixShape;
use super::sources::mismatch;
use super::weights::Matrix;
use monomorph_abi::serve::PACKING_BYTES;
use monomorph_model::LoadError;
use monomorph_weights::{Checkpoint, READING_BYTES, Windows};
use std::ops::Range;

/// A matrix to pack, or all experts of one back to back, with their sources in the same order.
#[derive(Debug)]
pub(crate) struct Job<'a> {
    pub(crate) shape: &'static MatrixShape,
    pub(crate) sources: Vec<Source<'a>>,
    pub(crate) matrix: Matrix,
}

/// A range of tiles of a matrix, counted over all experts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Piece {
    pub(crate) job: usize,
    tiles: Range<usize>,
}

impl Piece {
    /// Bytes of all planes of the piece.
    pub(crate) fn bytes(&self, jobs: &[Job]) -> usize {
        let shape = jobs[self.job].shape;
        self.tiles.len()
            * (shape.matrix().tile_codes() + shape.matrix().tile_scales() + shape.matrix().tile_row_scales())
    }

    /// The piece's share of the matrix's bytes, for the progress.
    pub(crate) fn share(&self, job: &Job) -> u64 {
        job.shape.bytes() * self.tiles.len() as u64 / job.shape.all_tiles().max(1) as u64
    }
}

pub(crate) fn pieces(jobs: &[Job]) -> Vec<Piece> {
    let mut pieces = Vec::new();
    for (job, Job { shape, .. }) in jobs.iter().enumerate() {
        let each = (PACKING_BYTES / shape.matrix().tile_codes()).max(1);
        let tiles = shape.all_tiles();
        pieces.extend(
            (0..tiles).step_by(each).map(|first| Piece { job, tiles: first..tiles.min(first + each) }),
        );
    }
    pieces
}

/// The pinned buffers and the stream of one thread.
pub(crate) struct Worker<'a> {
    // Waited for in `drop`, before the buffers are freed.
    pub(crate) stream: Stream,
    buffers: [(Pinned, Event); 2],
    turn: usize,
    windows: Windows<'a>,
}

/// Why a piece could not be packed or copied.
pub(crate) enum Trouble {
    Device(Fault),
    Pack(PackError),
}

impl Trouble {
    pub(crate) fn into_load(self, checkpoint: &Checkpoint) -> LoadError {
        match self {
            Trouble::Device(fault) => fault.into(),
            Trouble::Pack(PackError::Read(error)) => error.into(),
            Trouble::Pack(PackError::NotANumber(NotANumber { name, row })) => {
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

impl<'a> Worker<'a> {
    pub(crate) fn new(bytes: usize) -> Result<Self, Fault> {
        // `Worker::bytes` accounts for this.
        let buffer = || Ok((Pinned::zeroed(bytes)?, Event::new()?));
        Ok(Worker {
            stream: Stream::new()?,
            buffers: [buffer()?, buffer()?],
            turn: 0,
            windows: Windows::default(),
        })
    }

    /// Bytes of host memory that a worker takes for pieces of `piece` bytes.
    pub(crate) const fn bytes(piece: usize) -> usize {
        2 * piece + READING_BYTES
    }

    /// Begins to read a piece, which will be packed after those that were announced before.
    pub(crate) fn announce(&mut self, job: &Job<'a>, piece: &Piece) {
        self.windows.announce(reads(job.shape, &job.sources, piece.tiles.clone()));
    }

    /// Packs a piece and starts its copy to the device.
    pub(crate) fn carry(&mut self, job: &Job<'a>, piece: &Piece) -> Result<(), Trouble> {
        let (buffer, copied) = &mut self.buffers[self.turn];
        self.turn = 1 - self.turn;
        copied.wait()?;
        let (shape, matrix, tiles) = (job.shape, &job.matrix, piece.tiles.len());
        let (codes, rest) = buffer.bytes_mut().split_at_mut(tiles * shape.matrix().tile_codes());
        let (scales, rest) = rest.split_at_mut(tiles * shape.matrix().tile_scales());
        let row_scales = &mut rest[..tiles * shape.matrix().tile_row_scales()];
        let mut planes = Planes { codes, scales, row_scales };
        pack_tiles(shape, &job.sources, &mut self.windows, piece.tiles.clone(), &mut planes)
            .map_err(Trouble::Pack)?;
        let to = matrix.starting_at_tile(shape, piece.tiles.start);
        for (Pointer(to), bytes) in
            [(to.codes, &*planes.codes), (to.scales, &*planes.scales), (to.row_scales, &*planes.row_scales)]
        {
            // SAFETY: `to` points at these tiles in a plane allocated for all of them; the buffer is not
            // written before the event.
            unsafe { self.stream.upload(to, bytes) }?;
        }
        Ok(copied.record(&self.stream)?)
    }
}

impl Drop for Worker<'_> {
    fn drop(&mut self) {
        // After an error, a copy in flight must end before its buffer is freed. If it cannot, the process is
        // ending.
        let _ = self.stream.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::super::shape::Packing;
    use super::*;
    use monomorph_formats::Format;

    #[test]
    fn pieces_cover_every_tile_once() {
        static WIDE: MatrixShape = MatrixShape {
            stored: Format::Bf16,
            halves: false,
            scales: None,
            parts: &[8 * 1000 + 3],
            columns: 4096,
            packing: Packing::Stacked,
            experts: 1,
        };
        static SMALL: MatrixShape = MatrixShape {
            stored: Format::F32,
            halves: false,
            scales: None,
            parts: &[5],
            columns: 16,
            packing: Packing::Stacked,
            experts: 1,
        };
        static EXPERTS: MatrixShape = MatrixShape {
            stored: Format::Nvfp4,
            halves: false,
            scales: Some(monomorph_formats::ScaleForm::Modelopt),
            parts: &[768, 768],
            columns: 2048,
            packing: Packing::Gated,
            experts: 128,
        };
        let null = Matrix { codes: Pointer::NULL, scales: Pointer::NULL, row_scales: Pointer::NULL };
        let job = |shape| Job { shape, sources: Vec::new(), matrix: null };
        let jobs = [job(&WIDE), job(&SMALL), job(&EXPERTS)];
        let pieces = pieces(&jobs);
        let codes = |piece: &Piece| piece.tiles.len() * jobs[piece.job].shape.matrix().tile_codes();
        assert!(pieces.iter().all(|piece| codes(piece) <= PACKING_BYTES));
        let tiles = |job| pieces.iter().filter(move |it| it.job == job).flat_map(|it| it.tiles.clone());
        assert!(tiles(0).eq(0..1001) && tiles(1).eq(0..1) && tiles(2).eq(0..128 * 192));
        // Several experts per piece: each has 1.5 MiB of codes.
        let of_experts = pieces.iter().filter(|it| it.job == 2);
        assert_eq!(of_experts.clone().count(), 24);
        let shares = of_experts.map(|piece| piece.share(&jobs[2])).sum::<u64>();
        assert!(EXPERTS.bytes().abs_diff(shares) <= 24, "what is reported is what is loaded: {shares}");
    }
}
