// Printed from runtime/abi/src/sliding.rs: `cargo xtask test --bless` does it again.
#pragma once

#include "core/step.cuh"

namespace monomorph {

// Where the table of a sequence begins that layers with a sliding window read. Steps of models with such
// layers have it right behind their header, which is that of all models: other kernels do not know of
// it.
struct SlidingStarts {
    // Entry i of sequence s at `blocks()[start[s] + i]`. What lies before the first block that its rows
    // attend to has no entry, so a start may be negative.
    int start[MAX_SEQUENCES];
};
static_assert(sizeof(SlidingStarts) == 512, "as the host has it");
static_assert(offsetof(SlidingStarts, start) == 0, "as the host has it");

}  // namespace monomorph
