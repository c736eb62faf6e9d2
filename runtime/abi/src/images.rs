//! Images on a CUDA device: what stands behind the header of a tower's step, and beside the tokens of a text
//! model's. Only steps of builds with a vision tower have any of it. `templates/cuda/vision/images.cuh` is
//! printed from here ([`header`]).

use crate::step::MAX_SEQUENCES;
use crate::wire::{header_of, wire};

wire! {
    /// The patches of the image that a tower's step is about, right behind its header. `Step::tokens` are its
    /// patches, `Step::outputs` the tokens that these become.
    PatchGrid as "PatchGrid" {
        /// Each of rows * columns patches, which see each other and no others.
        frames: i32,
        /// From top to bottom, whole merge blocks.
        rows: i32,
        /// From left to right, whole merge blocks.
        columns: i32,
        reserved: i32,
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
    header_of("images.rs", "\"core/step.cuh\"", DECLARATIONS)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::step::Header;

    #[test]
    fn what_stands_behind_others_is_aligned() {
        assert!(size_of::<Header>().is_multiple_of(align_of::<PatchGrid>()));
        assert!(images_at(1).is_multiple_of(align_of::<ImageRow>()));
        let before = [(false, false), (true, false), (false, true), (true, true)];
        let bytes = before.map(|(grid, drafts)| BeforeBlocks::of(grid, drafts).bytes());
        assert_eq!(bytes, [0, 512, 1536, 1536]);
        assert_eq!((size_of::<PatchGrid>(), size_of::<ImageRow>()), (16, 20));
        assert!(header().contains("    int position[3];"), "{}", header());
    }
}
