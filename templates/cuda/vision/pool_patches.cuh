// pool_patches: the mean of a merge block's patches, times FACTOR, standardised, over the root of its mean square: a row a token.
//
// Work: a block a token, whose threads hold its row; bits of a row depend on no other.
//
// Config: WIDTH, MERGED (patches of a block), FACTOR, STANDARD ((x - bias) * scale), EPS. Launch: grid = tokens (blocks beyond the step's
// outputs do nothing), block = PATCH_THREADS, no dynamic shared memory.
#pragma once

#include "vision/norm_patches.cuh"

namespace monomorph {

// x f32 [patches, WIDTH]; bias, scale f32 [WIDTH], null if not STANDARD; out f32 [tokens, WIDTH].
template <class C>
__device__ __forceinline__ void pool_patches(const Step* step, const float* x, const float* bias, const float* scale, float* out) {
    constexpr int EACH = ceil_div(C::WIDTH, PATCH_THREADS), WARPS = PATCH_THREADS / 32;
    MONOMORPH_SHARED(of_warps, float[WARPS]);
    launch_dependents();
    wait_for_predecessors();
    const int token = blockIdx.x;
    if (token >= step->outputs) return;
    const float* const from = x + static_cast<size_t>(token) * C::MERGED * C::WIDTH;
    float pooled[EACH], squares = 0.0f;
#pragma unroll
    for (int i = 0; i < EACH; i++) {
        const int column = threadIdx.x + i * PATCH_THREADS;
        pooled[i] = 0.0f;
        if (column >= C::WIDTH) continue;
        float sum = 0.0f;
        for (int patch = 0; patch < C::MERGED; patch++) sum += load_activation(from + static_cast<size_t>(patch) * C::WIDTH + column);
        pooled[i] = sum * (C::FACTOR / C::MERGED);
        if constexpr (C::STANDARD) pooled[i] = (pooled[i] - load_constant(bias + column)) * load_constant(scale + column);
        squares += pooled[i] * pooled[i];
    }
    const float inverse = 1.0f / sqrtf(block_sum(squares, of_warps) / C::WIDTH + C::EPS);
#pragma unroll
    for (int i = 0; i < EACH; i++) {
        const int column = threadIdx.x + i * PATCH_THREADS;
        if (column < C::WIDTH) out[static_cast<size_t>(token) * C::WIDTH + column] = pooled[i] * inverse;
    }
}

}  // namespace monomorph
