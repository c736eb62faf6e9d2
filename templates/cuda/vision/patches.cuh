// What the kernels of towers share: the images and the places of patches, sums of a block, norms of a patch's row.
//
// Rows are the patches of one image after another, each in merge order: the merge blocks of a frame from left to
// right and top to bottom, and so the patches in each. So a patch's place follows from its number and its image's
// sides (PatchGrid), and rows that are merged are adjacent. No row depends on another image's.
#pragma once

#include "products/gemm.cuh"
#include "vision/images.cuh"

namespace monomorph {

// The images of a tower's step.
__device__ __forceinline__ const PatchGrid* patch_grids(const Step* step) { return reinterpret_cast<const PatchGrids*>(step + 1)->image; }

// The image of a patch of the step. A step of one image asks once.
__device__ __forceinline__ const PatchGrid& grid_of(const Step* step, int patch) {
    const PatchGrid* grid = patch_grids(step);
    const PatchGrid* const last = grid + PASS_IMAGES - 1;
    while (grid < last && patch >= grid[1].first) ++grid;
    return *grid;
}

struct PatchPlace {
    int row, column;
};

// The place in its image of a patch of the step, of blocks of MERGE a side.
template <int MERGE>
__device__ __forceinline__ PatchPlace place_of(const PatchGrid& grid, int patch) {
    const int of_frame = (patch - grid.first) % (grid.rows * grid.columns), block = of_frame / (MERGE * MERGE), within = of_frame % (MERGE * MERGE);
    const int across = grid.columns / MERGE;
    return {block / across * MERGE + within / MERGE, block % across * MERGE + within % MERGE};
}

// The sum over a block's threads, known to all of them: of warps by shuffles, then of warps in their order. Behind a barrier `of_warps`
// may be used again.
template <int WARPS>
__device__ __forceinline__ float block_sum(float v, float (&of_warps)[WARPS]) {
#pragma unroll
    for (int distance = 16; distance > 0; distance /= 2) v += __shfl_xor_sync(0xffffffffu, v, distance);
    if (threadIdx.x % 32 == 0) of_warps[threadIdx.x / 32] = v;
    __syncthreads();
    float all = 0.0f;
#pragma unroll
    for (int w = 0; w < WARPS; w++) all += of_warps[w];
    return all;
}

// What norms a patch's row.
enum class PatchNorm {
    NONE,
    LAYER,     // (x - mean) / sqrt(variance + EPS) * w + b
    PLAIN,     // x / sqrt(mean square + EPS) * w
    ONE_PLUS,  // the same with 1 + w
};

// A row that a block holds, EACH columns a thread, `live(i)` those of the row: what norms it. Variances are of differences from the mean:
// squares of the numbers themselves would cancel.
template <PatchNorm NORM, int WIDTH, int WARPS, int EACH, class Live>
__device__ __forceinline__ void norm_row(float (&x)[EACH], const float (&weight)[EACH], const float (&bias)[EACH], float epsilon, Live live,
                                         float (&of_warps)[2][WARPS]) {
    if constexpr (NORM == PatchNorm::NONE) return;
    float mean = 0.0f;
    if constexpr (NORM == PatchNorm::LAYER) {
        float sum = 0.0f;
#pragma unroll
        for (int i = 0; i < EACH; i++) sum += x[i];
        mean = block_sum(sum, of_warps[0]) / WIDTH;
    }
    float squares = 0.0f;
#pragma unroll
    for (int i = 0; i < EACH; i++) {
        if (live(i)) x[i] -= mean;
        squares += x[i] * x[i];
    }
    const float inverse = 1.0f / sqrtf(block_sum(squares, of_warps[1]) / WIDTH + epsilon);
#pragma unroll
    for (int i = 0; i < EACH; i++) {
        const float w = NORM == PatchNorm::ONE_PLUS ? 1.0f + weight[i] : weight[i];
        x[i] = NORM == PatchNorm::LAYER ? fmaf(x[i] * inverse, w, bias[i]) : x[i] * inverse * w;
    }
}

}  // namespace monomorph
