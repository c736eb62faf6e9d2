// image_rows: rows of images where tokens of a prefill stand for them: in place of what there was, or ADDS: added to it.
//
// Config: HIDDEN, THREADS, ADDS, BEHIND: rows from the tower's of an image to those that are meant, of a tap. Grid: (image_row_blocks(),
// rows); rows beyond step->tokens are passed over. One thread has four columns, as one vector where rows are aligned to it. No shared
// memory.
#pragma once

#include "core/async.cuh"
#include "vision/images.cuh"

namespace monomorph {

template <class C>
constexpr int image_row_blocks() { return ((C::HIDDEN + 3) / 4 + C::THREADS - 1) / C::THREADS; }

// images: one a row of the step; kept, x f32 [.., HIDDEN].
template <class C>
__device__ __forceinline__ void image_rows(const Step* step, const ImageRow* images, const float* kept, float* x) {
    launch_dependents();
    wait_for_predecessors();
    const int row = blockIdx.y, column = 4 * (blockIdx.x * C::THREADS + threadIdx.x);
    if (row >= step->tokens || column >= C::HIDDEN || images[row].row < 0) return;
    const float* const from = kept + static_cast<size_t>(images[row].row + C::BEHIND) * C::HIDDEN + column;
    float* const to = x + static_cast<size_t>(row) * C::HIDDEN + column;
    if constexpr (C::HIDDEN % 4 == 0) {
        float4 v = load_activation(reinterpret_cast<const float4*>(from));
        if constexpr (C::ADDS) {
            const float4 there = load_activation(reinterpret_cast<const float4*>(to));
            v = make_float4(there.x + v.x, there.y + v.y, there.z + v.z, there.w + v.w);
        }
        *reinterpret_cast<float4*>(to) = v;
    } else {
        for (int i = 0; i < 4 && column + i < C::HIDDEN; i++) to[i] = (C::ADDS ? load_activation(to + i) : 0.0f) + load_activation(from + i);
    }
}

}  // namespace monomorph
