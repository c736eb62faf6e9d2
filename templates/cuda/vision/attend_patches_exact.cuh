// attend_patches_exact: attend_patches with the arithmetic of the reference interpreter, after turn_patches with EXACT: scores, softmax and
// sums in f64 over f32, rounded once.
//
// Work: block (patch, head), eight warps. A warp takes every eighth tile of 32 patches: for scores a lane is a key, for sums its lanes are
// elements lane, lane + 32, … of the head. The warps' maxima, sums and vectors meet in shared memory, in the order of the warps.
//
// Config: HEADS, HEAD_DIM. SCALE. Grid: (patches, HEADS), patches beyond the step's are passed over; block = ATTEND_EXACT_THREADS.
#pragma once

#include "attention/rotary.cuh"
#include "vision/patches.cuh"

namespace monomorph {

constexpr int ATTEND_EXACT_WARPS = 8, ATTEND_EXACT_THREADS = 32 * ATTEND_EXACT_WARPS;

// qkv f32 [patches, 3 HEADS HEAD_DIM]; out f32 [patches, HEADS HEAD_DIM].
template <class C>
__device__ __forceinline__ void attend_patches_exact(const Step* step, const float* qkv, float* out) {
    constexpr int D = C::HEAD_DIM, N = HeadVector<C>::N, WARPS = ATTEND_EXACT_WARPS, ROW = 3 * C::HEADS * D;
    MONOMORPH_SHARED(query, double[D]);
    MONOMORPH_SHARED(of_warps, double[2][WARPS]);  // maxima, sums
    MONOMORPH_SHARED(contexts, double[WARPS][D]);
    launch_dependents();
    wait_for_predecessors();
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, patch = blockIdx.x, head = blockIdx.y;
    if (patch >= step->tokens) return;
    const PatchGrid& grid = grid_of(step, patch);
    const int segment = grid.rows * grid.columns, first_patch = patch - (patch - grid.first) % segment;
    const float* const keys = qkv + static_cast<size_t>(first_patch) * ROW + (C::HEADS + head) * D;
    for (int e = threadIdx.x; e < D; e += ATTEND_EXACT_THREADS) query[e] = qkv[static_cast<size_t>(patch) * ROW + head * D + e];
    __syncthreads();

    double maximum = -INFINITY, sum = 0.0, context[N] = {};
    for (int first = 32 * warp; first < segment; first += 32 * WARPS) {
        const int here = min(32, segment - first), mine = first + min(lane, here - 1);
        double dot = 0.0;
        for (int e = 0; e < D; ++e) dot += query[e] * static_cast<double>(keys[static_cast<size_t>(mine) * ROW + e]);
        const double score = lane < here ? static_cast<double>(C::SCALE) * dot : -INFINITY;
        double largest = fmax(maximum, score);
#pragma unroll
        for (int mask = 16; mask > 0; mask >>= 1) largest = fmax(largest, __shfl_xor_sync(0xffffffffu, largest, mask));
        const double shrink = exp(maximum - largest), weight = exp(score - largest);
        maximum = largest;
        sum = sum * shrink + weight;
#pragma unroll
        for (int j = 0; j < N; ++j) context[j] *= shrink;
        for (int key = 0; key < here; ++key) {
            const double w = __shfl_sync(0xffffffffu, weight, key);
            const float* const values = keys + static_cast<size_t>(first + key) * ROW + C::HEADS * D;
#pragma unroll
            for (int j = 0; j < N; ++j)
                if (lane + 32 * j < D) context[j] += w * static_cast<double>(values[lane + 32 * j]);
        }
    }
    sum = warp_sum(sum);
    if (lane == 0) of_warps[0][warp] = maximum, of_warps[1][warp] = sum;
#pragma unroll
    for (int j = 0; j < N; ++j)
        if (lane + 32 * j < D) contexts[warp][lane + 32 * j] = context[j];
    __syncthreads();
    double largest = -INFINITY, total = 0.0;
    for (int w = 0; w < WARPS; ++w) largest = fmax(largest, of_warps[0][w]);
    for (int w = 0; w < WARPS; ++w) total += exp(of_warps[0][w] - largest) * of_warps[1][w];
    for (int e = threadIdx.x; e < D; e += ATTEND_EXACT_THREADS) {
        double mixed = 0.0;
        for (int w = 0; w < WARPS; ++w) mixed += exp(of_warps[0][w] - largest) * contexts[w][e];
        out[(static_cast<size_t>(patch) * C::HEADS + head) * D + e] = static_cast<float>(mixed / total);
    }
}

}  // namespace monomorph
