// What is done to every element of a row by itself: cap_rows, x = CAP tanh(x / CAP); scale_rows, x = factor x, a stored number.
//
// Config: WIDTH, THREADS, LIMIT; cap_rows: CAP. Grid: (each_blocks(), rows); rows beyond the step's are passed over. A thread has four
// columns, one vector where rows are aligned to it. No shared memory.
#pragma once

#include "products/gemm.cuh"

namespace monomorph {

template <class C>
constexpr int each_blocks() {
    return ceil_div(ceil_div(C::WIDTH, 4), C::THREADS);
}

// Behind the wait; x f32 [rows, WIDTH].
template <class C, class F>
__device__ __forceinline__ void each_element(const Step* step, float* x, F f) {
    const int row = blockIdx.y, column = 4 * (blockIdx.x * C::THREADS + threadIdx.x);
    if (row >= gemm_rows<C>(step) || column >= C::WIDTH) return;
    float* const at = x + static_cast<size_t>(row) * C::WIDTH + column;
    if constexpr (C::WIDTH % 4 == 0) {
        const float4 v = load_activation(reinterpret_cast<const float4*>(at));
        *reinterpret_cast<float4*>(at) = make_float4(f(v.x), f(v.y), f(v.z), f(v.w));
    } else {
        for (int i = 0; i < 4 && column + i < C::WIDTH; i++) at[i] = f(load_activation(at + i));
    }
}

template <class C>
__device__ __forceinline__ void cap_rows(const Step* step, float* x) {
    launch_dependents();
    wait_for_predecessors();
    each_element<C>(step, x, [](float v) { return C::CAP * tanhf(v / C::CAP); });
}

template <class C>
__device__ __forceinline__ void scale_rows(const Step* step, const float* factor, float* x) {
    launch_dependents();
    const float by = load_constant(factor);
    wait_for_predecessors();
    each_element<C>(step, x, [&](float v) { return v * by; });
}

}  // namespace monomorph
