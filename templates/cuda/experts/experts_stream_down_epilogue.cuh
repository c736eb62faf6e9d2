// The end of the experts' down products: sums of a block's tiles become outputs.
#pragma once

#include "core/async.cuh"
#include "experts/experts_stream_down_shape.cuh"

namespace monomorph {

// What an expert's sums are multiplied by beside its weight. Volatile, so that it is asked for here, while the ring fills, and waited for where it is used.
template <class P>
__device__ __forceinline__ float down_scale(const float* row_scales, int expert) {
    using Experts = typename P::Experts;
    return Experts::ROW_SCALES && !Experts::SCALED_ROWS ? load_activation(row_scales + static_cast<long long>(expert) * P::TILES * TILE_ROWS) : 1.0f;
}

// What an output needs from memory, loaded before its weights are streamed, and its end. ADDS: to `out`, where nothing else adds meanwhile.
template <class C, bool ADDS = !REPLACED<C>>
struct DownEpilogue {
    using P = DownShape<C>;
    using Sum = typename P::Sum;
    static constexpr int EACH = ceil_div(P::GROUP_TILES * TILE_ROWS * C::ROWS, P::CONSUMERS);
    float residual[EACH], scale[EACH], row_scale[EACH];

    __device__ __forceinline__ explicit DownEpilogue(World*) {}
    __device__ __forceinline__ void begin() {}   // behind the wait

    struct Output {
        int tile, row, column;
        bool live;
        __device__ __forceinline__ Output(int i, int first, int tiles, int tokens) {
            tile = i / (TILE_ROWS * C::ROWS), row = i / TILE_ROWS % C::ROWS, column = (first + tile) * TILE_ROWS + i % TILE_ROWS;
            live = tile < tiles && row < tokens && column < C::OUTPUTS;
        }
    };
    __device__ __forceinline__ void load(int first, int tiles, int tokens, const float* out, const float* scales, const float* row_scales) {
#pragma unroll
        for (int e = 0; e < EACH; e++) {
            const Output o(threadIdx.x + e * P::CONSUMERS, first, tiles, tokens);
            residual[e] = ADDS && o.live ? load_activation(out + o.row * C::OUTPUTS + o.column) : 0.0f;
            if constexpr (P::COMMON) {
                scale[e] = o.live ? load_activation(scales + o.row) : 0.0f;
                row_scale[e] = P::Shared::ROW_SCALES && o.live ? load_constant(row_scales + o.column) : 1.0f;
            }
        }
    }
    // `partials` of the group's tiles, `common` of the block's from its first tile `block_first` on.
    __device__ __forceinline__ void store(int first, int tiles, int tokens, const Sum* partials, const Sum* common, int block_first, float* out) const {
#pragma unroll
        for (int e = 0; e < EACH; e++) {
            const int i = threadIdx.x + e * P::CONSUMERS;
            const Output o(i, first, tiles, tokens);
            if (o.live) out[o.row * C::OUTPUTS + o.column] = __fadd_rn(residual[e], finished(e, i, o, partials, common + (first - block_first) * P::SHARED_TILE_PARTIALS));
        }
    }
    // A live output, the i-th of its group and this thread's e-th, before it is added. `common`: of the group's tiles.
    __device__ __forceinline__ float finished(int e, int i, const Output& o, const Sum* partials, const Sum* common) const {
        const int at = o.row * TILE_ROWS + i % TILE_ROWS;
        Sum routed = 0, shared = 0;
#pragma unroll
        for (int w = 0; w < P::SUMS; w++) routed += partials[o.tile * P::TILE_PARTIALS + w * C::ROWS * TILE_ROWS + at];
        float y = static_cast<float>(routed);
        if constexpr (P::COMMON) {
#pragma unroll
            for (int w = 0; w < P::SHARED_SUMS; w++) shared += common[o.tile * P::SHARED_TILE_PARTIALS + w * C::ROWS * TILE_ROWS + at];
            if constexpr (P::EXACT) {
                const double value = static_cast<float>(shared * static_cast<double>(row_scale[e]));
                y = __fadd_rn(y, static_cast<float>(value * (1.0 / (1.0 + exp(-static_cast<double>(scale[e]))))));
            } else {
                y += shared * row_scale[e] * __fdividef(1.0f, 1.0f + expf(-scale[e]));
            }
        }
        return y;
    }
    // Behind the last group.
    __device__ __forceinline__ void end(float*) const {}
};

}  // namespace monomorph
