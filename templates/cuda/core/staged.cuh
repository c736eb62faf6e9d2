// Staged activations: f16 rows in the layout the tensor-core products read, each scaled by a power of two of its own.
//
// A staged buffer of `CAPACITY` rows and `width` columns is [ceil(width / 64) panels][CAPACITY rows][64 columns] of f16, then f32
// [CAPACITY]: what sums of a row are to be multiplied by. A row's largest magnitude is in [2^14, 2^15), as far as its scale and the
// inverse of that are normal numbers: nothing overflows, and nothing that bf16 would keep is lost above 2^-31 of the largest.
// Within the 128 bytes of a row of a panel, the 16-byte chunk j (columns 8j .. 8j + 8) stands at chunk j ^ (row & 7):
// the 128-byte swizzle that wgmma descriptors and ldmatrix read without bank conflicts. So the rows t .. t + n of one panel
// are one contiguous piece of memory that a plain bulk copy brings into shared memory, and no tensor map is needed.
// Columns from `width` to the end of the last panel hold zeros. The buffer is aligned to 128 bytes.
#pragma once

#include <cstddef>

namespace monomorph {

constexpr int STAGED_PANEL = 64;       // columns of a panel
constexpr int STAGED_ROW_BYTES = 128;  // bytes of a row of a panel

__host__ __device__ constexpr int staged_panels(int width) { return (width + STAGED_PANEL - 1) / STAGED_PANEL; }

// Where the multipliers of sums begin, in bytes, and bytes of a staged buffer.
__host__ __device__ constexpr std::size_t staged_unscale_at(int capacity, int width) { return std::size_t(staged_panels(width)) * capacity * STAGED_ROW_BYTES; }
constexpr std::size_t staged_bytes(int capacity, int width) { return staged_unscale_at(capacity, width) + std::size_t(4) * capacity; }

// The power of two that brings a largest magnitude into [2^14, 2^15), as far as it and its inverse are normal numbers.
struct HalfScale {
    float scale, unscale;
    __device__ __forceinline__ explicit HalfScale(float largest) {
        const int field = min(253, 127 + 14 + 127 - static_cast<int>(__float_as_uint(largest) >> 23));
        scale = __uint_as_float(field << 23), unscale = __uint_as_float((254 - field) << 23);
    }
};

// Where column `column` of row `row` is, in elements. Eight columns from a multiple of 8 on are contiguous.
template <int CAPACITY>
__host__ __device__ constexpr std::size_t staged_index(int row, int column) {
    const std::size_t panel_row = std::size_t(column / STAGED_PANEL) * CAPACITY + row;
    const int chunk = (column % STAGED_PANEL / 8) ^ (row & 7);
    return panel_row * STAGED_PANEL + chunk * 8 + column % 8;
}

}  // namespace monomorph
