// Quantised activations: rows of e4m3 in the layout that wgmma reads, with an f32 scale for every group of 128 columns of a row.
//
// A quantised buffer of `CAPACITY` rows and `width` columns, a multiple of 128, is [width / 128 panels][CAPACITY rows][128 codes], then f32
// [width / 128][CAPACITY]: an element is its code times its group's scale. Of the 128 bytes of a row of a panel, the 16-byte chunk j stands
// at chunk j ^ (row & 7): the 128-byte swizzle. So the rows t .. t + n of a panel are one piece for a plain bulk copy, as in staged.cuh.
//
// Codes of 64 columns are in the order of a packed unit (formats.cuh): chunk c of four holds what lane c of a unit's row does. A product
// adds over columns in any order that both operands have, so the units need not be reordered; and what lane c of a quad has of the
// fragments of 64 outputs of a product is such a chunk, in order.
#pragma once

#include <cstddef>

#include "core/formats.cuh"

namespace monomorph {

constexpr int GROUP_COLUMNS = 128;   // that share a scale; of a panel, whose rows have as many bytes

__host__ __device__ constexpr std::size_t quantised_scales_at(int capacity, int width) { return std::size_t(width) * capacity; }
constexpr std::size_t quantised_bytes(int capacity, int width) { return quantised_scales_at(capacity, width) + std::size_t(4) * capacity * (width / GROUP_COLUMNS); }

// Where chunk `chunk` of eight of a row of a panel is, in bytes.
template <int CAPACITY>
__host__ __device__ constexpr std::size_t quantised_chunk(int panel, int row, int chunk) {
    return (std::size_t(panel) * CAPACITY + row) * GROUP_COLUMNS + (chunk ^ (row & 7)) * 16;
}

// runtime/formats/src/activation.rs, e4m3_scale: the largest magnitude of a group becomes the largest code. A group of nothing but zeros, or
// of so little that the scale or its inverse would not be a normal number, is zeros under the scale 0.
struct GroupScale {
    float scale, inverse;
    __device__ __forceinline__ explicit GroupScale(float largest) {
        const bool some = largest > 0x1p-100f;
        scale = some ? __fdiv_rn(largest, 448.0f) : 0.0f;
        inverse = some ? __fdiv_rn(448.0f, largest) : 0.0f;
    }
};

}  // namespace monomorph
