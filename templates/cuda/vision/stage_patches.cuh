// stage_patches: a layer norm of each patch's row, staged as f16 for the tensor-core products (staged.cuh): what stage.cuh does with RMS
// norms.
//
// Work: a block a row, whose threads hold it in chunks of eight columns; bits of a row depend on no other.
//
// Config: WIDTH, CAPACITY (rows of `out`), EPS. Launch: grid = rows (blocks beyond the step's rows do nothing), block =
// StageShape<C>::THREADS, no dynamic shared memory.
#pragma once

#include "products/stage.cuh"
#include "vision/patches.cuh"

namespace monomorph {

// x f32 [patches, WIDTH]; weight, bias f32 [WIDTH].
template <class C>
__device__ __forceinline__ void stage_patches(const Step* step, const float* x, const float* weight, const float* bias, void* out) {
    using S = StageShape<C>;
    constexpr int WARPS = S::THREADS / 32, EACH = 8 * S::EACH;
    MONOMORPH_SHARED(of_warps, float[2][WARPS]);
    MONOMORPH_SHARED(largest_of_warps, float[WARPS]);
    launch_dependents();
    const auto chunk = [](int i) { return (static_cast<int>(threadIdx.x) + i * S::THREADS) * 8; };
    const auto live = [&](int i) { return chunk(i / 8) + i % 8 < C::WIDTH; };
    const auto constant = [](const auto* from) { return load_constant(from); };
    float weights[EACH], biases[EACH], values[EACH];
    const auto eight = [](float(&all)[EACH], int i) -> float(&)[8] { return *reinterpret_cast<float(*)[8]>(&all[8 * i]); };
#pragma unroll
    for (int i = 0; i < S::EACH; i++) stage_load<C>(eight(weights, i), weight, chunk(i), constant), stage_load<C>(eight(biases, i), bias, chunk(i), constant);
    wait_for_predecessors();
    const int row = blockIdx.x;
    if (row >= step->tokens) return;

#pragma unroll
    for (int i = 0; i < S::EACH; i++)
        stage_load<C>(eight(values, i), x + static_cast<size_t>(row) * C::WIDTH, chunk(i), [](const auto* from) { return load_activation(from); });
    norm_row<PatchNorm::LAYER, C::WIDTH, WARPS>(values, weights, biases, C::EPS, live, of_warps);
    float largest = 0.0f;
#pragma unroll
    for (int i = 0; i < S::EACH; i++) largest = largest_of(eight(values, i), largest);
    largest = __uint_as_float(__reduce_max_sync(0xffffffff, __float_as_uint(largest)));  // magnitudes compare as their bits
    if (threadIdx.x % 32 == 0) largest_of_warps[threadIdx.x / 32] = largest;
    __syncthreads();
#pragma unroll
    for (int w = 0; w < WARPS; w++) largest = fmaxf(largest, largest_of_warps[w]);
    const HalfScale scale(largest);
    if (threadIdx.x == 0) stage_unscale<C>(out)[row] = scale.unscale;
#pragma unroll
    for (int i = 0; i < S::EACH; i++)
        if (chunk(i) < S::CHUNKS * 8) stage_store<C::CAPACITY>(out, row, chunk(i), eight(values, i), scale.scale);
}

}  // namespace monomorph
