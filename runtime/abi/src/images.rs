//! Images on a CUDA device: what stands behind the header of a tower's step, and beside the tokens of a text
//! model's. Only steps of builds with a vision tower have any of it. `templates/cuda/vision/images.cuh` is
//! printed from here ([`header`]).

use crate::step::MAX_SEQUENCES;
use crate::wire::{header_of, wire};

/// Most images of a pass of the tower.
pub const PASS_IMAGES: usize = 8;

wire! {
    /// The patches of an image that a tower's step is about.
    PatchGrid as "PatchGrid" {
        /// Each of rows * columns patches, which see each other and no others; 0 where there is no image.
        frames: i32,
        /// From top to bottom, whole merge blocks.
        rows: i32,
        /// From left to right, whole merge blocks.
        columns: i32,
        /// Its first patch among those of the step, which no patch reaches where there is no image.
        first: i32,
    }

    /// The images of a tower's step, right behind its header, in the order of their patches: those of all are
    /// `Step::tokens`, and the tokens that these become `Step::outputs`.
    PatchGrids as "PatchGrids" {
        image: [PatchGrid; PASS_IMAGES],
    }

    /// A token of a prefill, beside its `TokenRow`.
    ImageRow as "ImageRow" {
        /// The row that it takes of those kept of images, or -1.
        row: i32,
        /// The position of the last token that it attends to where images see all of themselves.
        last: i32,
        /// Time, height and width, by which it is rotated.
        position: [i32; 3],
    }

    /// By sequence of a decode step, what is added to its index for its position: right before the block
    /// table.
    PositionShifts as "PositionShifts" {
        shift: [i32; MAX_SEQUENCES],
    }

    /// What the draft passes behind a step read of images: right before its `PositionShifts`, of a build
    /// whose passes draft.
    DraftImages as "DraftImages" {
        /// By place among the sequences that are drafted for, what is added to an index for its position.
        shift: [i32; MAX_SEQUENCES],
        /// By sequence of a prefill, the row of those kept of images that the token behind its last takes, or
        /// -1.
        following: [i32; MAX_SEQUENCES],
    }
}

impl PatchGrids {
    /// Images of so many frames, rows and columns of patches.
    ///
    /// # Panics
    /// When these are more than a pass has.
    pub fn new(images: impl IntoIterator<Item = [i32; 3]>) -> PatchGrids {
        let none = PatchGrid { frames: 0, rows: 0, columns: 0, first: i32::MAX };
        let (mut image, mut first) = ([none; PASS_IMAGES], 0);
        for (at, [frames, rows, columns]) in images.into_iter().enumerate() {
            image[at] = PatchGrid { frames, rows, columns, first };
            first += frames * rows * columns;
        }
        PatchGrids { image }
    }
}

impl PositionShifts {
    /// Of sequences without images.
    pub const NONE: PositionShifts = PositionShifts { shift: [0; MAX_SEQUENCES] };
}

impl DraftImages {
    /// Of sequences without images.
    pub const NONE: DraftImages = DraftImages { shift: [0; MAX_SEQUENCES], following: [-1; MAX_SEQUENCES] };
}

/// What a stack whose step feeds images has before its block table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BeforeBlocks {
    /// There is no tower, or positions are indices.
    Nothing,
    /// [`PositionShifts`], of positions that images shift.
    Shifts,
    /// [`DraftImages`], then [`PositionShifts`], of passes that draft.
    Drafts,
}

impl BeforeBlocks {
    /// Of a stack with a tower whose positions have three axes or one, and whose passes draft or none do.
    pub const fn of(grid_positions: bool, drafts: bool) -> BeforeBlocks {
        match (grid_positions, drafts) {
            (_, true) => BeforeBlocks::Drafts,
            (true, false) => BeforeBlocks::Shifts,
            (false, false) => BeforeBlocks::Nothing,
        }
    }

    /// How far the block table stands behind where it would without.
    pub const fn bytes(self) -> usize {
        match self {
            BeforeBlocks::Nothing => 0,
            BeforeBlocks::Shifts => size_of::<PositionShifts>(),
            BeforeBlocks::Drafts => size_of::<DraftImages>() + size_of::<PositionShifts>(),
        }
    }
}

/// Bytes of token rows, and of what stands behind them of a build with a tower: the same number of
/// [`ImageRow`]s.
pub const fn images_at(tokens: usize) -> usize {
    tokens * size_of::<crate::step::TokenRow>()
}

/// The text of `templates/cuda/vision/images.cuh`.
pub fn header() -> String {
    let most =
        format!("// Most images of a pass of the tower.\nconstexpr int PASS_IMAGES = {PASS_IMAGES};\n");
    header_of("images.rs", "\"core/step.cuh\"", &most, DECLARATIONS)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::step::Header;

    #[test]
    fn what_stands_behind_others_is_aligned() {
        assert!(size_of::<Header>().is_multiple_of(align_of::<PatchGrids>()));
        assert!(images_at(1).is_multiple_of(align_of::<ImageRow>()));
        let before = [(false, false), (true, false), (false, true), (true, true)];
        let bytes = before.map(|(grid, drafts)| BeforeBlocks::of(grid, drafts).bytes());
        assert_eq!(bytes, [0, 512, 1536, 1536]);
        assert_eq!((size_of::<PatchGrids>(), size_of::<ImageRow>()), (128, 20));
        assert!(header().contains("    int position[3];"), "{}", header());
    }

    #[test]
    fn images_of_a_pass_follow_each_other_and_no_patch_is_of_one_that_is_not_there() {
        let grids = PatchGrids::new([[1, 4, 6], [2, 2, 2], [1, 6, 4]]);
        let first = grids.image.map(|it| (it.frames, it.first));
        let none = (0, i32::MAX);
        assert_eq!(first, [(1, 0), (2, 24), (1, 32), none, none, none, none, none]);
    }
}
