//! Which pieces of which files a thread reads ahead: a plan, made of the reads that it announces, in their
//! order.
//!
//! A file lies in cells of [`PIECE`] bytes. The reads that touch a cell while few others are in use become
//! one piece: from the first block of them to the last, so that heads and tails cost a block and not a cell.
//! A piece is wanted from its first read to its last; at most [`LIVE`] pieces are wanted at a time, so that
//! a thread with as many buffers, which begins pieces in their order, never waits for a buffer in vain.

use std::ops::Range;

/// What addresses, offsets and lengths of direct I/O are multiples of.
pub(crate) const BLOCK: u64 = monomorph_store::ALIGN as u64;
/// Most bytes of a piece.
pub(crate) const PIECE: u64 = 256 << 10;
/// Most pieces that are wanted at a time: codes and scales of several parts of a matrix, and what straddles.
pub(crate) const LIVE: usize = 8;

/// A part of a file that is read at once, and the reads that want it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Piece {
    /// The file's number.
    pub(crate) file: usize,
    /// Whole blocks, within a cell. The last may reach past the end of the file.
    pub(crate) place: Range<u64>,
    /// The first and the last read that want it, by their numbers.
    pub(crate) first: u64,
    pub(crate) last: u64,
}

impl Piece {
    /// Whether a read wants it, by the read's number. Of those wanted by one, one holds each of its parts;
    /// others may overlap it.
    pub(crate) fn is_wanted(&self, number: u64) -> bool {
        (self.first..=self.last).contains(&number)
    }

    /// Whether it holds these bytes.
    pub(crate) fn holds(&self, file: usize, bytes: &Range<u64>) -> bool {
        self.file == file && self.place.start <= bytes.start && bytes.end <= self.place.end
    }
}

/// The parts of a range that lie in one cell each.
pub(crate) fn by_cells(bytes: Range<u64>) -> impl Iterator<Item = Range<u64>> {
    let cells = bytes.start / PIECE..bytes.end.div_ceil(PIECE);
    cells.map(move |cell| bytes.start.max(cell * PIECE)..bytes.end.min((cell + 1) * PIECE))
}

/// Whether a read of these bytes can be planned: none of nothing, or of more cells than may be wanted.
pub(crate) fn is_planned(bytes: &Range<u64>) -> bool {
    bytes.start < bytes.end && (bytes.end.div_ceil(PIECE) - bytes.start / PIECE) <= LIVE as u64
}

/// Makes pieces of reads.
#[derive(Debug)]
pub(crate) struct Planner {
    /// The next read's number.
    next: u64,
    pieces: Vec<Piece>,
    /// Those that later reads may still extend.
    open: Vec<usize>,
}

impl Planner {
    /// For reads from this number on.
    pub(crate) fn new(next: u64) -> Planner {
        Planner { next, pieces: Vec::new(), open: Vec::with_capacity(LIVE) }
    }

    /// The next read; only those that [are planned](is_planned) are.
    pub(crate) fn read(&mut self, file: usize, bytes: Range<u64>) {
        if !is_planned(&bytes) {
            return;
        }
        let number = self.next;
        self.next += 1;
        for part in by_cells(bytes) {
            let place = part.start / BLOCK * BLOCK..part.end.next_multiple_of(BLOCK);
            let cell = place.start / PIECE;
            let same = |piece: &Piece| piece.file == file && piece.place.start / PIECE == cell;
            if let Some(at) = self.open.iter().find(|at| same(&self.pieces[**at])) {
                let piece = &mut self.pieces[*at];
                piece.place = piece.place.start.min(place.start)..piece.place.end.max(place.end);
                piece.last = number;
                continue;
            }
            if self.open.len() == LIVE {
                let oldest = (0..LIVE).min_by_key(|at| self.pieces[self.open[*at]].last);
                self.open.swap_remove(oldest.unwrap_or(0));
            }
            self.open.push(self.pieces.len());
            self.pieces.push(Piece { file, place, first: number, last: number });
        }
    }

    /// The number of the read after the last, and all pieces, by their first reads.
    pub(crate) fn finish(self) -> (u64, Vec<Piece>) {
        (self.next, self.pieces)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn planned(reads: &[(usize, Range<u64>)]) -> Vec<Piece> {
        let mut planner = Planner::new(0);
        reads.iter().for_each(|(file, bytes)| planner.read(*file, bytes.clone()));
        planner.finish().1
    }

    /// What every plan is to be.
    fn check(reads: &[(usize, Range<u64>)]) -> Vec<Piece> {
        let pieces = planned(reads);
        for piece in &pieces {
            let Range { start, end } = piece.place;
            assert!(start % BLOCK == 0 && end % BLOCK == 0 && start < end, "{piece:?}");
            assert!(start / PIECE == (end - 1) / PIECE, "{piece:?} is within a cell");
        }
        assert!(pieces.is_sorted_by_key(|piece| piece.first));
        let reads = reads.iter().filter(|(_, bytes)| is_planned(bytes));
        for (number, (file, bytes)) in (0..).zip(reads) {
            let wanted: Vec<&Piece> = pieces.iter().filter(|it| it.is_wanted(number)).collect();
            assert!(wanted.len() <= LIVE, "{wanted:?} at {number}");
            for part in by_cells(bytes.clone()) {
                assert_eq!(
                    wanted.iter().filter(|it| it.holds(*file, &part)).count(),
                    1,
                    "{number}: {part:?}"
                );
            }
        }
        pieces
    }

    /// To be caught: ends rounded down to blocks; pieces not cut at cells; a piece closed while it is read.
    #[test]
    fn heads_tails_and_straddling_reads_are_whole_blocks_of_cells() {
        let piece = |place, first, last| Piece { file: 0, place, first, last };
        assert_eq!(check(&[(0, 5000..5001)]), [piece(4096..8192, 0, 0)]);
        assert_eq!(check(&[(0, 4096..8192)]), [piece(4096..8192, 0, 0)]);
        assert_eq!(check(&[(0, 4095..8193)]), [piece(0..12288, 0, 0)]);
        // Rows back to back are one piece.
        let rows: Vec<_> = (0..100u64).map(|row| (0, 100 + row * 1000..100 + (row + 1) * 1000)).collect();
        assert_eq!(check(&rows), [piece(0..102_400, 0, 99)]);
        // One that straddles wants two.
        let straddling = check(&[(0, PIECE - 10..PIECE + 10), (0, PIECE + 10..PIECE + 20)]);
        assert_eq!(straddling, [piece(PIECE - BLOCK..PIECE, 0, 0), piece(PIECE..PIECE + BLOCK, 0, 1)]);
        assert_eq!(check(&[]), []);
        assert_eq!(check(&[(0, 7..7)]), []);
    }

    /// To be caught: the newest piece closed instead of the oldest.
    #[test]
    fn many_files_and_tensors_in_turn_want_no_more_buffers_than_there_are() {
        for tensors in 1..=2 * LIVE as u64 {
            for row in [1, 33, 4096, 5000, PIECE - 1, PIECE, 3 * PIECE + 5] {
                let reads: Vec<_> = (0..40)
                    .flat_map(|at| {
                        (0..tensors).map(move |tensor| {
                            let start = tensor * 100 * PIECE + 13 + at * row;
                            ((tensor % 3) as usize, start..start + row)
                        })
                    })
                    .collect();
                let pieces = check(&reads);
                if tensors * (row.div_ceil(PIECE) + 1) <= LIVE as u64 {
                    // Every cell is read once.
                    let mut cells: Vec<_> =
                        pieces.iter().map(|it| (it.file, it.place.start / PIECE)).collect();
                    cells.sort_unstable();
                    cells.dedup();
                    assert_eq!(cells.len(), pieces.len(), "{tensors} tensors of rows of {row}");
                }
            }
        }
        // Backwards, and more than may be wanted at a time, which is left out.
        check(&[
            (0, 90_000..90_100),
            (0, 0..LIVE as u64 * PIECE + 1),
            (0, 10..20),
            (0, 0..LIVE as u64 * PIECE),
        ]);
    }
}
