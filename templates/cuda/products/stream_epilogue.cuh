// The end of a stream product: the warps' partial sums of a group of tiles become outputs.
// Output i of a group belongs to consumer thread i % CONSUMERS; what its epilogue needs from memory is loaded before the group's
// weights are streamed, and used after.
#pragma once

#include "core/async.cuh"
#include "products/stream_shape.cuh"

namespace monomorph {

// T float (f16 compute) or double (exact: compiler/src/reference/ops.rs, activate).
template <Activation A, class T>
__device__ __forceinline__ T activate(T x) {
    if constexpr (A == Activation::SILU && sizeof(T) == 4) return __fdividef(x, 1.0f + expf(-x));   // 0 where exp overflows
    else if constexpr (A == Activation::SILU) return x / (T(1) + exp(-x));
    else if constexpr (A == Activation::GELU) return T(0.5) * x * (T(1) + erf(x * T(0.70710678118654752440)));
    else if constexpr (A == Activation::GELU_TANH) return T(0.5) * x * (T(1) + tanh(T(0.79788456080286535588) * (x + T(0.044715) * x * x * x)));
    else if constexpr (A == Activation::RELU2) return x > T(0) ? x * x : T(0);
    else return x > T(0) ? x : T(0);
}

struct World;   // exchange/world.cuh

template <class C>
struct StreamEpilogue {
    using S = StreamShape<C>;
    using Sum = typename S::Sum;
    static constexpr int EACH = ceil_div(S::GROUP_OUTPUTS, S::CONSUMERS);   // outputs of a thread
    static constexpr int PARTS = S::OUTPUT_PARTS;                                // sums of an output: one, or gate and up

    float scale[EACH][PARTS], bias[EACH][PARTS], residual[EACH];

    __device__ __forceinline__ explicit StreamEpilogue(World*) {}
    __device__ __forceinline__ void begin() {}   // behind the wait

    struct Output {
        int slot, row, column;   // first tile within the group; row within the block's; output column
        bool live;
        __device__ __forceinline__ Output(int i, int first_tile, int tiles, int rows) {
            slot = i / (TILE_ROWS * C::ROWS) * PARTS;
            row = i / TILE_ROWS % C::ROWS;
            column = (first_tile + slot) / PARTS * TILE_ROWS + i % TILE_ROWS;
            live = slot < tiles && row < rows && column < C::OUTPUTS;
        }
    };

    __device__ __forceinline__ void load(int first_tile, int tiles, int rows, const float* row_scales, const float* bias_at,
                                         const float* up_bias, const float* out, int thread) {
#pragma unroll
        for (int e = 0; e < EACH; e++) {
            const int i = thread + e * S::CONSUMERS;
            const Output o(i, first_tile, tiles, rows);
#pragma unroll
            for (int p = 0; p < PARTS; p++) {
                scale[e][p] = 1.0f, bias[e][p] = 0.0f;
                if constexpr (S::ROW_SCALES)
                    if (o.live) scale[e][p] = load_constant(row_scales + (first_tile + o.slot + p) * TILE_ROWS + i % TILE_ROWS);
                if constexpr (C::BIAS)
                    if (o.live) bias[e][p] = load_constant((p == 0 ? bias_at : up_bias) + o.column);
            }
            residual[e] = 0.0f;
            if constexpr (C::EPILOGUE == Epilogue::ADD)
                if (o.live) residual[e] = load_activation(out + o.row * C::OUTPUTS + o.column);
        }
    }

    // `partials`: [tile of the group][K warp][row][8 outputs]; behind a barrier.
    __device__ __forceinline__ void store(int first_tile, int tiles, int rows, const Sum* partials, float* out, int thread) const {
        store_sums(first_tile, tiles, rows, out, thread, [&](int tile, int within) { return sum_of(partials, tile, within); });
    }

    // The same of sums that are there: `sum(tile of the group, row * 8 + output)`.
    template <class SumAt>
    __device__ __forceinline__ void store_sums(int first_tile, int tiles, int rows, float* out, int thread, SumAt sum) const {
#pragma unroll
        for (int e = 0; e < EACH; e++) {
            const int i = thread + e * S::CONSUMERS;
            const Output o(i, first_tile, tiles, rows);
            if (!o.live) continue;
            const float value = finished(e, i, o, sum);
            float* at = out + o.row * C::OUTPUTS + o.column;
            if constexpr (C::EPILOGUE == Epilogue::ADD) *at = __fadd_rn(residual[e], value);
            else *at = value;
        }
    }

    // Of all K warps.
    __device__ __forceinline__ static Sum sum_of(const Sum* partials, int tile, int within) {
        Sum sum = 0;
#pragma unroll
        for (int w = 0; w < S::K_WARPS; w++) sum += partials[(tile * S::K_WARPS + w) * C::ROWS * TILE_ROWS + within];
        return sum;
    }

    // A live output, the i-th of its group and this thread's e-th, from its tiles' sums.
    template <class SumAt>
    __device__ __forceinline__ float finished(int e, int i, const Output& o, SumAt sum_at) const {
        Sum value[PARTS];
#pragma unroll
        for (int p = 0; p < PARTS; p++) {
            const Sum sum = sum_at(o.slot + p, o.row * TILE_ROWS + i % TILE_ROWS);
            if constexpr (S::EXACT) {
                value[p] = static_cast<float>(sum * static_cast<Sum>(scale[e][p]) + static_cast<Sum>(bias[e][p]));
            } else {
                value[p] = sum * scale[e][p] + bias[e][p];
            }
        }
        if constexpr (S::GATED) return static_cast<float>(activate<C::ACTIVATION>(value[0]) * value[1]);
        else if constexpr (C::EPILOGUE == Epilogue::ACTIVATED) return static_cast<float>(activate<C::ACTIVATION>(value[0]));
        else return static_cast<float>(value[0]);
    }

    // Behind the last group.
    __device__ __forceinline__ void end(float*) const {}
};

}  // namespace monomorph
