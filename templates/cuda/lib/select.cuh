// Row selection: the residual rows whose logits are wanted, side by side.
//
// Config: HIDDEN (a multiple of 4), THREADS. Grid: (select_blocks(), outputs); rows beyond step->outputs are passed over. One thread
// copies 16 bytes. No shared memory.
#pragma once

#include "async.cuh"
#include "step.cuh"

namespace monomorph {

template <class C>
constexpr int select_blocks() {
    return (C::HIDDEN / 4 + C::THREADS - 1) / C::THREADS;
}

template <class C>
__device__ __forceinline__ void select(const Step* step, const float* residual, float* out) {
    static_assert(C::HIDDEN % 4 == 0, "rows are copied in 16-byte vectors");
    launch_dependents();
    wait_for_predecessors();
    const int output = blockIdx.y, at = blockIdx.x * C::THREADS + threadIdx.x;
    if (output >= step->outputs || at >= C::HIDDEN / 4) return;
    const float4* const from = reinterpret_cast<const float4*>(residual + static_cast<size_t>(step->output_rows[output]) * C::HIDDEN);
    reinterpret_cast<float4*>(out + static_cast<size_t>(output) * C::HIDDEN)[at] = from[at];
}

}  // namespace monomorph
