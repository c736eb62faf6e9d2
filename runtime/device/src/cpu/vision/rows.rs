//! The rows that a tower works on, and where its results are kept.

use super::super::rows::Rows;
use super::super::team::Lane;
use monomorph_model::Grid;

/// The patches of an image, or of a video of some frames, as rows in merge order: the merge blocks of a frame
/// from left to right and top to bottom, and so the patches in each.
#[derive(Debug)]
pub struct Patches {
    /// Patches of a side of a merge block.
    merge: usize,
    /// Most patches.
    most: usize,
    grid: Grid,
    /// Row and column of each patch of a frame.
    places: Vec<[u32; 2]>,
}

impl Patches {
    /// Room for `most` patches, of which blocks of `merge` a side become a token.
    pub fn new(merge: usize, most: usize) -> Patches {
        let grid = Grid { frames: 0, rows: 0, columns: 0 };
        Patches { merge, most, grid, places: Vec::with_capacity(most) }
    }

    /// Takes the patches of an image. Kernels index by them without further checks.
    ///
    /// # Panics
    /// When they are none, more than there is room for, or not whole merge blocks.
    pub fn fill(&mut self, grid: Grid) {
        let Grid { frames, rows, columns } = grid;
        let count = rows.checked_mul(columns).and_then(|frame| frame.checked_mul(frames));
        assert!(
            count.is_some_and(|count| (1..=self.most).contains(&count)),
            "an image of {frames} x {rows} x {columns} patches, and the limit is {}",
            self.most
        );
        let merge = self.merge;
        assert!(
            rows.is_multiple_of(merge) && columns.is_multiple_of(merge),
            "{rows} x {columns} patches are no whole blocks of {merge} a side"
        );
        self.grid = grid;
        self.places.clear();
        for (top, left) in
            (0..rows).step_by(merge).flat_map(|top| (0..columns).step_by(merge).map(move |left| (top, left)))
        {
            for (row, column) in (0..merge).flat_map(|row| (0..merge).map(move |column| (row, column))) {
                self.places.push([(top + row) as u32, (left + column) as u32]);
            }
        }
    }

    /// Number of patches.
    pub fn count(&self) -> usize {
        self.grid.patches()
    }

    /// Number of tokens that they become.
    pub fn tokens(&self) -> usize {
        self.count() / (self.merge * self.merge)
    }

    /// Patches of a segment, one after another, which see each other and no others: those of a frame.
    pub(super) fn segment(&self) -> usize {
        self.places.len()
    }

    /// Row and column of a patch in its image.
    #[inline(always)]
    pub(super) fn place(&self, patch: usize) -> [usize; 2] {
        self.places[patch % self.places.len()].map(|axis| axis as usize)
    }

    /// Patches of the image from top to bottom, and from left to right.
    pub(super) fn sides(&self) -> [usize; 2] {
        [self.grid.rows, self.grid.columns]
    }
}

/// Copies the rows of the image's tokens to `kept`, from row `first` on.
///
/// # Panics
/// When `kept` has no such rows.
pub fn keep_image_rows<const N: usize>(
    lane: &Lane,
    patches: &Patches,
    rows: &Rows<N>,
    kept: &Rows<N>,
    first: usize,
) {
    assert!(first + patches.tokens() <= kept.capacity(), "there is room for the rows of an image");
    for token in lane.share(patches.tokens()) {
        // SAFETY: no lane writes `rows` in this phase, and the shares of the lanes are disjoint.
        unsafe { kept.padded_mut(first + token).copy_from_slice(rows.padded(token)) };
    }
    lane.barrier();
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::panic::{AssertUnwindSafe, catch_unwind};

    #[test]
    fn patches_stand_block_by_block_and_frame_by_frame() {
        let mut patches = Patches::new(2, 16);
        patches.fill(Grid { frames: 2, rows: 2, columns: 4 });
        let places: Vec<_> = (0..patches.count()).map(|at| patches.place(at)).collect();
        let frame = [[0, 0], [0, 1], [1, 0], [1, 1], [0, 2], [0, 3], [1, 2], [1, 3]];
        assert_eq!(places, [frame, frame].concat());
        assert_eq!((patches.tokens(), patches.segment()), (4, 8));
    }

    #[test]
    fn images_that_are_too_large_or_not_whole_are_refused() {
        let grid = |frames, rows, columns| Grid { frames, rows, columns };
        for (grid, message) in [
            (grid(1, 4, 6), "1 x 4 x 6 patches, and the limit is 16"),
            (grid(1, 0, 6), "1 x 0 x 6 patches, and the limit is 16"),
            (grid(usize::MAX, 4, 4), "patches, and the limit is 16"),
            (grid(1, 3, 4), "3 x 4 patches are no whole blocks of 2 a side"),
        ] {
            let fill = || Patches::new(2, 16).fill(grid);
            let panic = catch_unwind(AssertUnwindSafe(fill)).unwrap_err();
            let text = panic.downcast_ref::<String>().cloned().unwrap_or_default();
            assert!(text.contains(message), "{text:?} lacks {message:?}");
        }
    }
}
