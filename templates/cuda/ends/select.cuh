// Row selection: the residual rows whose logits are wanted, side by side.
//
// Config: HIDDEN, THREADS. Grid: (select_blocks(), outputs); rows beyond step->outputs are passed over. One thread copies four columns,
// as one vector where rows are aligned to it. No shared memory.
#pragma once

#include "core/async.cuh"
#include "core/step.cuh"

namespace monomorph {

template <class C>
constexpr int select_blocks() {
    return ((C::HIDDEN + 3) / 4 + C::THREADS - 1) / C::THREADS;
}

template <class C>
__device__ __forceinline__ void select(const Step* step, const float* residual, float* out) {
    launch_dependents();
    wait_for_predecessors();
    const int output = blockIdx.y, column = 4 * (blockIdx.x * C::THREADS + threadIdx.x);
    if (output >= step->outputs || column >= C::HIDDEN) return;
    const float* const from = residual + static_cast<size_t>(step->output_rows[output]) * C::HIDDEN + column;
    float* const to = out + static_cast<size_t>(output) * C::HIDDEN + column;
    if constexpr (C::HIDDEN % 4 == 0) {
        *reinterpret_cast<float4*>(to) = *reinterpret_cast<const float4*>(from);
    } else {
        for (int i = 0; i < 4 && column + i < C::HIDDEN; i++) to[i] = from[i];
    }
}

}  // namespace monomorph
