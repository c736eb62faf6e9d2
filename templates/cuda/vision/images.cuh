// Printed from runtime/abi/src/images.rs: `cargo xtask test --bless` does it again.
#pragma once

#include "core/step.cuh"

namespace monomorph {

// Most images of a pass of the tower.
constexpr int PASS_IMAGES = 8;
// The patches of an image that a tower's step is about.
struct PatchGrid {
    int frames;  // Each of rows * columns patches, which see each other and no others; 0 where there is no image
    int rows;  // From top to bottom, whole merge blocks
    int columns;  // From left to right, whole merge blocks
    int first;  // Its first patch among those of the step, which no patch reaches where there is no image
};
static_assert(sizeof(PatchGrid) == 16, "as the host has it");
static_assert(offsetof(PatchGrid, frames) == 0, "as the host has it");
static_assert(offsetof(PatchGrid, rows) == 4, "as the host has it");
static_assert(offsetof(PatchGrid, columns) == 8, "as the host has it");
static_assert(offsetof(PatchGrid, first) == 12, "as the host has it");
// The images of a tower's step, right behind its header, in the order of their patches: those of all are
// `Step::tokens`, and the tokens that these become `Step::outputs`.
struct PatchGrids {
    PatchGrid image[PASS_IMAGES];
};
static_assert(sizeof(PatchGrids) == 128, "as the host has it");
static_assert(offsetof(PatchGrids, image) == 0, "as the host has it");
// A token of a prefill, beside its `TokenRow`.
struct ImageRow {
    int row;  // The row that it takes of those kept of images, or -1
    int last;  // The position of the last token that it attends to where images see all of themselves
    int position[3];  // Time, height and width, by which it is rotated
};
static_assert(sizeof(ImageRow) == 20, "as the host has it");
static_assert(offsetof(ImageRow, row) == 0, "as the host has it");
static_assert(offsetof(ImageRow, last) == 4, "as the host has it");
static_assert(offsetof(ImageRow, position) == 8, "as the host has it");
// By sequence of a decode step, what is added to its index for its position: right before the block
// table.
struct PositionShifts {
    int shift[MAX_SEQUENCES];
};
static_assert(sizeof(PositionShifts) == 512, "as the host has it");
static_assert(offsetof(PositionShifts, shift) == 0, "as the host has it");
// What the draft passes behind a step read of images: right before its `PositionShifts`, of a build
// whose passes draft.
struct DraftImages {
    int shift[MAX_SEQUENCES];  // By place among the sequences that are drafted for, what is added to an index for its position
    int following[MAX_SEQUENCES];  // By sequence of a prefill, the row of those kept of images that the token behind its last takes, or -1
};
static_assert(sizeof(DraftImages) == 1024, "as the host has it");
static_assert(offsetof(DraftImages, shift) == 0, "as the host has it");
static_assert(offsetof(DraftImages, following) == 512, "as the host has it");

}  // namespace monomorph
