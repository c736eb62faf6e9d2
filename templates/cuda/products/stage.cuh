// Stages activations for the tensor-core products: f32 rows [T, WIDTH], optionally RMS-normalised, to staged f16 (staged.cuh),
// rounded to nearest even, zeros from WIDTH to the end of the last panel.
//
//   norm:  y = x / sqrt(mean(x^2) + EPS) * w   (ONE_PLUS: * (1 + w)), f32 throughout
//
// A block owns a row; thread i holds chunks i, i + THREADS, ... of eight columns in registers between the sum of squares and largest magnitude and
// the store. The norm's weights are constants of the run and are fetched before the predecessor has finished.
//
// Config: WIDTH, CAPACITY (rows of `out`), NORM (Norm), EPS (float), LIMIT (Limit).
// Launch: grid = rows (blocks beyond the step's rows do nothing), block = StageShape<C>::THREADS, no dynamic shared memory.
#pragma once

#include "core/async.cuh"
#include "core/mma.cuh"
#include "core/staged.cuh"
#include "core/step.cuh"
#include "products/gemm.cuh"

namespace monomorph {

template <class C>
struct StageShape {
    static constexpr int CHUNKS = staged_panels(C::WIDTH) * 8;  // of eight columns
    static constexpr int THREADS = CHUNKS >= 256 ? 256 : ceil_div(CHUNKS, 32) * 32;
    static constexpr int EACH = ceil_div(CHUNKS, THREADS);
};

// Eight values from column `column` on, zeros beyond WIDTH.
template <class C, class Load>
__device__ __forceinline__ void stage_load(float (&values)[8], const float* row, int column, Load load) {
    if constexpr (C::WIDTH % 8 == 0) {
        float4 low = {0, 0, 0, 0}, high = low;
        if (column < C::WIDTH) {
            low = load(reinterpret_cast<const float4*>(row + column));
            high = load(reinterpret_cast<const float4*>(row + column + 4));
        }
        const float loaded[8] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
#pragma unroll
        for (int i = 0; i < 8; i++) values[i] = loaded[i];
    } else {
#pragma unroll
        for (int i = 0; i < 8; i++) values[i] = column + i < C::WIDTH ? load(row + column + i) : 0.0f;
    }
}

__device__ __forceinline__ float largest_of(const float (&values)[8], float largest) {
#pragma unroll
    for (int j = 0; j < 8; j++) largest = fmaxf(largest, fabsf(values[j]));
    return largest;
}

// Eight columns of a row, `factor` in them.
template <int CAPACITY>
__device__ __forceinline__ void stage_store(void* out, int row, int column, const float (&v)[8], float factor) {
    const uint4 packed = {pack_f16(v[0] * factor, v[1] * factor), pack_f16(v[2] * factor, v[3] * factor), pack_f16(v[4] * factor, v[5] * factor),
                          pack_f16(v[6] * factor, v[7] * factor)};
    *reinterpret_cast<uint4*>(static_cast<__half*>(out) + staged_index<CAPACITY>(row, column)) = packed;
}

template <class C>
__device__ __forceinline__ float* stage_unscale(void* out) {
    return reinterpret_cast<float*>(static_cast<char*>(out) + staged_unscale_at(C::CAPACITY, C::WIDTH));
}

template <class C>
__device__ __forceinline__ void stage(const Step* step, const float* x, const float* norm, void* out) {
    using S = StageShape<C>;
    constexpr int WARPS = S::THREADS / 32;
    MONOMORPH_SHARED(of_warps, float[2 * WARPS]);   // sums of squares, largest magnitudes
    launch_dependents();
    float weights[C::NORM != Norm::NONE ? S::EACH : 1][8];
    if constexpr (C::NORM != Norm::NONE) {
#pragma unroll
        for (int i = 0; i < S::EACH; i++) {
            stage_load<C>(weights[i], norm, (threadIdx.x + i * S::THREADS) * 8, [](const auto* from) { return load_constant(from); });
        }
    }
    wait_for_predecessors();
    const int row = blockIdx.x;
    if (row >= gemm_rows<C>(step)) return;

    float values[S::EACH][8];
    float sum = 0, largest = 0;
#pragma unroll
    for (int i = 0; i < S::EACH; i++) {
        stage_load<C>(values[i], x + size_t(row) * C::WIDTH, (threadIdx.x + i * S::THREADS) * 8,
                      [](const auto* from) { return load_activation(from); });
        if constexpr (C::NORM != Norm::NONE) {
#pragma unroll
            for (int j = 0; j < 8; j++) {
                sum += values[i][j] * values[i][j];
                values[i][j] *= C::NORM == Norm::ONE_PLUS ? 1.0f + weights[i][j] : weights[i][j];
            }
        }
        largest = largest_of(values[i], largest);
    }
#pragma unroll
    for (int distance = 16; distance > 0; distance /= 2) sum += __shfl_xor_sync(0xffffffff, sum, distance);
    largest = __uint_as_float(__reduce_max_sync(0xffffffff, __float_as_uint(largest)));   // magnitudes compare as their bits
    if (threadIdx.x % 32 == 0) of_warps[threadIdx.x / 32] = sum, of_warps[WARPS + threadIdx.x / 32] = largest;
    __syncthreads();
    sum = 0;
#pragma unroll
    for (int i = 0; i < WARPS; i++) sum += of_warps[i], largest = fmaxf(largest, of_warps[WARPS + i]);
    const float inverse = C::NORM == Norm::NONE ? 1.0f : 1.0f / sqrtf(sum / C::WIDTH + C::EPS);
    const HalfScale scale(largest * inverse);
    if (threadIdx.x == 0) stage_unscale<C>(out)[row] = scale.unscale;
#pragma unroll
    for (int i = 0; i < S::EACH; i++) {
        const int column = (threadIdx.x + i * S::THREADS) * 8;
        if constexpr (C::NORM != Norm::NONE) {
#pragma unroll
            for (int j = 0; j < 8; j++) values[i][j] *= inverse;
        }
        if (column < S::CHUNKS * 8) stage_store<C::CAPACITY>(out, row, column, values[i], scale.scale);
    }
}

}  // namespace monomorph
