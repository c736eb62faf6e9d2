// place_patches: adds to each patch's row what a table says of its place in the image.
//
// SQUARE: a table of SIDE x SIDE entries, row by row, of which four are interpolated: corners of the image lie on corners of the square.
// Else a table of SIDE entries for columns, then as many for rows: the sum of one of each.
//
// Config: HIDDEN, THREADS; FORMAT and SCALES of the table; SIDE, SQUARE, MERGE. Grid: (embed_blocks(), patches); patches beyond the
// step's are passed over. A thread decodes the 16 bytes of one lane of one unit of each entry, as embed does. No shared memory.
#pragma once

#include "ends/embed.cuh"
#include "vision/patches.cuh"

namespace monomorph {

// The entries on both sides of a place `at` of `of` on a side of a square, and the part of the second.
struct PatchBetween {
    int low, high;
    float part;
};
template <int SIDE>
__device__ __forceinline__ PatchBetween between(int at, int of) {
    // Quotients in whole numbers: as exact as the interpreter's, which are f64.
    const int steps = max(of - 1, 1), low = at * (SIDE - 1) / steps, rest = at * (SIDE - 1) % steps;
    return {low, min(low + 1, SIDE - 1), static_cast<float>(rest) / static_cast<float>(steps)};
}

// x f32 [patches, HIDDEN].
template <class C>
__device__ __forceinline__ void place_patches(const Step* step, const void* codes, const void* scales, const float* row_scales, float* x) {
    using U = Unit<C::FORMAT>;
    launch_dependents();
    wait_for_predecessors();
    const int patch = blockIdx.y, piece = blockIdx.x * C::THREADS + threadIdx.x;
    if (patch >= step->tokens || piece >= EmbedShape<C>::PIECES) return;
    const PatchGrid& grid = grid_of(step, patch);
    const PatchPlace place = place_of<C::MERGE>(grid, patch);
    constexpr int PARTS = C::SQUARE ? 4 : 2;
    int entries[PARTS];
    float parts[PARTS];
    if constexpr (C::SQUARE) {
        const PatchBetween row = between<C::SIDE>(place.row, grid.rows), column = between<C::SIDE>(place.column, grid.columns);
#pragma unroll
        for (int i = 0; i < 4; i++) {
            entries[i] = (i < 2 ? row.low : row.high) * C::SIDE + (i % 2 == 0 ? column.low : column.high);
            parts[i] = (i < 2 ? 1.0f - row.part : row.part) * (i % 2 == 0 ? 1.0f - column.part : column.part);
        }
    } else {
        entries[0] = place.column, entries[1] = C::SIDE + place.row;
        parts[0] = parts[1] = 1.0f;
    }
    float sums[U::ELEMENTS] = {};
#pragma unroll
    for (int i = 0; i < PARTS; i++) {
        float values[U::ELEMENTS];
        embed_piece<C>(codes, scales, row_scales, entries[i], piece, values);
#pragma unroll
        for (int j = 0; j < U::ELEMENTS; j++) sums[j] += parts[i] * values[j];
    }
    const int unit = piece / 4, c = piece % 4;
    float* const to = x + static_cast<size_t>(patch) * C::HIDDEN;
#pragma unroll
    for (int j = 0; j < U::ELEMENTS; j++) {
        const int column = unit * U::COLUMNS + U::column(j, c);
        if (column < C::HIDDEN) to[column] = load_activation(to + column) + sums[j];
    }
}

}  // namespace monomorph
