// Quantises activations for products in fp8: f32 rows [T, WIDTH], normed first where a norm precedes them, to quantised rows (quantised.cuh).
// HALVES: the same rows staged in f16 as well (staged.cuh), for the narrow products of them whose weights are not fp8.
//
// As stage.cuh: a block owns a row, and thread i holds chunks i, i + THREADS, … of eight columns. Sixteen threads have a group.
//
// Config: WIDTH (a multiple of 128), CAPACITY (rows of `out`), NORM (Norm), EPS (float), LIMIT (Limit), HALVES.
// Launch: grid = rows (blocks beyond the step's rows do nothing), block = StageShape<C>::THREADS, no dynamic shared memory.
#pragma once

#include "core/quantised.cuh"
#include "products/stage.cuh"

namespace monomorph {

// Eight columns of a row from 8 chunk on, divided by the group's scale; all lanes of the warp, neighbours of neighbouring chunks.
template <int CAPACITY>
__device__ __forceinline__ void quantise_store(char* out, int row, int chunk, const float (&v)[8], float inverse, bool exists) {
    // A pair of columns goes to each of four chunks of 16 bytes, two pairs of neighbouring threads side by side: the even thread of two
    // writes the first two of the four chunks, the odd one the others.
    unsigned pairs[4];
#pragma unroll
    for (int c = 0; c < 4; c++) pairs[c] = pack_e4m3_pair(__fmul_rn(v[2 * c], inverse), __fmul_rn(v[2 * c + 1], inverse));
    const bool odd = chunk % 2 == 1;
    const unsigned first = pairs[0] | pairs[1] << 16, last = pairs[2] | pairs[3] << 16;
    const unsigned kept = odd ? last : first, other = __shfl_xor_sync(0xffffffff, odd ? first : last, 1);
    const unsigned even_pairs = odd ? other : kept, odd_pairs = odd ? kept : other;
    if (!exists) return;
    const int panel = chunk / 16, to = chunk / 8 % 2 * 4 + (odd ? 2 : 0), word = chunk % 8 / 2 * 4;
    *reinterpret_cast<unsigned*>(out + quantised_chunk<CAPACITY>(panel, row, to) + word) = (even_pairs & 0xffff) | odd_pairs << 16;
    *reinterpret_cast<unsigned*>(out + quantised_chunk<CAPACITY>(panel, row, to + 1) + word) = even_pairs >> 16 | (odd_pairs & 0xffff0000u);
}

template <class C>
__device__ __forceinline__ void quantise(const Step* step, const float* x, const float* norm, void* out, void* halves) {
    using S = StageShape<C>;
    static_assert(C::WIDTH % GROUP_COLUMNS == 0, "whole groups");
    constexpr int WARPS = S::THREADS / 32;
    constexpr bool NORMED = C::NORM != Norm::NONE;
    launch_dependents();
    float weights[NORMED ? S::EACH : 1][8];
    if constexpr (NORMED) {
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
        stage_load<C>(values[i], x + size_t(row) * C::WIDTH, (threadIdx.x + i * S::THREADS) * 8, [](const auto* from) { return load_activation(from); });
        if constexpr (NORMED) {
#pragma unroll
            for (int j = 0; j < 8; j++) {
                sum += values[i][j] * values[i][j];
                values[i][j] *= C::NORM == Norm::ONE_PLUS ? 1.0f + weights[i][j] : weights[i][j];
            }
        }
        if constexpr (C::HALVES) largest = largest_of(values[i], largest);
    }
    float inverse = 1.0f;
    if constexpr (NORMED || C::HALVES) {
        MONOMORPH_SHARED(of_warps, float[2 * WARPS]);   // sums of squares, largest magnitudes
#pragma unroll
        for (int distance = 16; distance > 0; distance /= 2) sum += __shfl_xor_sync(0xffffffff, sum, distance);
        if constexpr (C::HALVES) largest = __uint_as_float(__reduce_max_sync(0xffffffff, __float_as_uint(largest)));   // magnitudes compare as their bits
        if (threadIdx.x % 32 == 0) of_warps[threadIdx.x / 32] = sum, of_warps[WARPS + threadIdx.x / 32] = largest;
        __syncthreads();
        sum = 0;
#pragma unroll
        for (int i = 0; i < WARPS; i++) sum += of_warps[i], largest = fmaxf(largest, of_warps[WARPS + i]);
        if constexpr (NORMED) inverse = 1.0f / sqrtf(sum / C::WIDTH + C::EPS);
    }
    char* const codes = static_cast<char*>(out);
    float* const scales = reinterpret_cast<float*>(codes + quantised_scales_at(C::CAPACITY, C::WIDTH));
    const HalfScale half(largest * inverse);
    if constexpr (C::HALVES) {
        if (threadIdx.x == 0) stage_unscale<C>(halves)[row] = half.unscale;
    }
#pragma unroll
    for (int i = 0; i < S::EACH; i++) {
        const int chunk = threadIdx.x + i * S::THREADS;
        const bool exists = chunk < S::CHUNKS;
        if constexpr (NORMED) {
#pragma unroll
            for (int j = 0; j < 8; j++) values[i][j] *= inverse;
        }
        if constexpr (C::HALVES) {
            if (exists) stage_store<C::CAPACITY>(halves, row, chunk * 8, values[i], half.scale);
        }
        float of_group = largest_of(values[i], 0.0f);
#pragma unroll
        for (int distance = 1; distance < 16; distance *= 2) of_group = fmaxf(of_group, __shfl_xor_sync(0xffffffff, of_group, distance));
        const GroupScale by(of_group);
        quantise_store<C::CAPACITY>(codes, row, chunk, values[i], by.inverse, exists);
        if (exists && chunk % 16 == 0) scales[size_t(chunk / 16) * C::CAPACITY + row] = by.scale;
    }
}

}  // namespace monomorph
