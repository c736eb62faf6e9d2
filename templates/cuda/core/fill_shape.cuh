// Printed from runtime/abi/src/fill.rs: `cargo xtask test --bless` does it again.
#pragma once

#include <cstddef>

namespace monomorph {

// What a matrix is filled with.
struct FillShape {
    int rows;  // Output rows of the matrix; with `gated`, of one of its two parts
    int columns;
    int gated;  // 1: tiles of 8 rows alternate between the parts
    float deviation;  // Standard deviation of the weights
    unsigned long long seed;
};
static_assert(sizeof(FillShape) == 24, "as the host has it");
static_assert(offsetof(FillShape, rows) == 0, "as the host has it");
static_assert(offsetof(FillShape, columns) == 4, "as the host has it");
static_assert(offsetof(FillShape, gated) == 8, "as the host has it");
static_assert(offsetof(FillShape, deviation) == 12, "as the host has it");
static_assert(offsetof(FillShape, seed) == 16, "as the host has it");

}  // namespace monomorph
