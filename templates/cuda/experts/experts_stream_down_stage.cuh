// Rows of f32 activations into shared memory for the down products, a warp a row: rounded as the compute format says, in the order in which
// lanes meet them (stream_stage.cuh): scaled by the power of two that brings its largest into [2^14, 2^15). ARRIVING: other blocks of the launch write
// them meanwhile, and a warp waits for its row.
#pragma once

#include "experts/experts_stream_down_shape.cuh"
#include "products/stream_stage.cuh"

namespace monomorph {

template <class D, bool ARRIVING = false>
struct DownRow {
    using U = typename D::U;
    using F = Streamed<D::FORMAT>;
    // An item is what a lane stages at a time: four columns of both steps of a chunk of 32 columns.
    static constexpr int ITEMS = D::UNITS * D::CHUNKS * 4, ITERATIONS = most(1, ceil_div(ITEMS, 32)), SLICE = least(ITERATIONS, 4);
    static constexpr bool WHOLE = ITERATIONS == SLICE;   // registers hold the row; otherwise it is read again to be staged
    float4 values[SLICE][2];

    __device__ __forceinline__ static int column_of(int item) {
        return item / (4 * D::CHUNKS) * U::COLUMNS + item / 4 % D::CHUNKS * 32 + item / 2 % 2 * 8 + item % 2 * 4;
    }
    template <class Load>
    __device__ __forceinline__ static float4 vector_at(const float* row, int column, const Load& load) {
        float4 v = {0.0f, 0.0f, 0.0f, 0.0f};
        if constexpr (D::WIDTH % 4 == 0) {
            if (column < D::WIDTH) v = load(reinterpret_cast<const float4*>(row + column));
        } else {   // rows are not aligned to vectors
            if (column < D::WIDTH) v.x = load(row + column);
            if (column + 1 < D::WIDTH) v.y = load(row + column + 1);
            if (column + 2 < D::WIDTH) v.z = load(row + column + 2);
            if (column + 3 < D::WIDTH) v.w = load(row + column + 3);
        }
        return v;
    }
    __device__ __forceinline__ void load(const float* row, int from, int lane) {
        bool all;
        do {
            all = true;
#pragma unroll
            for (int i = 0; i < SLICE; i++) {
                const int item = (from + i) * 32 + lane;
#pragma unroll
                for (int step = 0; step < 2; step++) {
                    values[i][step] = {0.0f, 0.0f, 0.0f, 0.0f};
                    if (item >= ITEMS) continue;
                    values[i][step] = vector_at(row, column_of(item) + 16 * step, [](auto* at) {
                        if constexpr (ARRIVING) return load_arriving(at);
                        else return load_activation(at);
                    });
                }
            }
            if constexpr (ARRIVING) {
#pragma unroll
                for (int i = 0; i < SLICE; i++) all = all && arrived(values[i][0]) && arrived(values[i][1]);
            }
        } while (ARRIVING && !__all_sync(~0u, all));
    }
    __device__ __forceinline__ void begin(const float* row, int lane) { load(row, 0, lane); }

    __device__ __forceinline__ void finish(const float* row, char* staged, float* unscale, int lane) {
        float largest = 0.0f;
#pragma unroll 1
        for (int from = 0; from < ITERATIONS; from += SLICE) {
            if (from > 0) load(row, from, lane);
#pragma unroll
            for (int i = 0; i < SLICE; i++)
#pragma unroll
                for (int step = 0; step < 2; step++) {
                    const float4 v = values[i][step];
                    largest = fmaxf(fmaxf(fmaxf(largest, fabsf(v.x)), fmaxf(fabsf(v.y), fabsf(v.z))), fabsf(v.w));
                }
        }
        const HalfScale by(__uint_as_float(__reduce_max_sync(~0u, __float_as_uint(largest))));   // magnitudes compare as their bits
        const float scale = by.scale;
        if (lane == 0) *unscale = by.unscale * F::SUM_SCALE;
#pragma unroll 1
        for (int from = 0; from < ITERATIONS; from += SLICE) {
            if (!WHOLE) load(row, from, lane);
#pragma unroll
            for (int i = 0; i < SLICE; i++) {
                const int item = (from + i) * 32 + lane;
                if (item < ITEMS) store(values[i][0], values[i][1], scale, staged, item);
            }
        }
    }

    __device__ __forceinline__ static void store(float4 v, float4 w, float scale, char* staged, int item) {
        v.x *= scale, v.y *= scale, v.z *= scale, v.w *= scale;
        w.x *= scale, w.y *= scale, w.z *= scale, w.w *= scale;
        const int unit = item / (4 * D::CHUNKS), chunk = item / 4 % D::CHUNKS, half = item / 2 % 2, q = item % 2;
        char* at = staged + (unit * D::CHUNKS + chunk / D::PAIR * D::PAIR) * D::CHUNK_BYTES + (half * 4 + q * 2) * 8 * D::PAIR + chunk % D::PAIR * 8;
        const uint2 even = {pack_f16(v.x, v.y), pack_f16(w.x, w.y)}, odd = {pack_f16(v.z, v.w), pack_f16(w.z, w.w)};
        *reinterpret_cast<uint2*>(at) = even;
        *reinterpret_cast<uint2*>(at + 8 * D::PAIR) = odd;
    }
};

// Exact: a lane an element, a warp a block of int8 rounding.
template <class C, class D>
struct DownRowExact {
    using U = typename D::U;
    __device__ __forceinline__ void begin(const float*, int) {}
    __device__ __forceinline__ void finish(const float* row, char* staged, float* unscale, int lane) {
        if (lane == 0) *unscale = 1.0f;
        for (int column = lane; column < round_up(D::UNITS * U::COLUMNS, 32); column += 32) {
            float v = column < D::WIDTH ? load_activation(row + column) : 0.0f;
            if constexpr (C::ROUNDING == Rounding::INT8_BLOCK32) v = through_int8(v);
            const int within = column % U::COLUMNS, element = U::element_of(within);
            if (column < D::UNITS * U::COLUMNS)
                *reinterpret_cast<float*>(staged + (column / U::COLUMNS * D::CHUNKS + element / 4) * D::CHUNK_BYTES + U::lane_of(within) * 16 + element % 4 * 4) = v;
        }
    }
    // As ExactStage does: scale = max|x| / 127, q = round_ties_even(x * (127 / max|x|)), value = scale * q.
    __device__ __forceinline__ static float through_int8(float v) {
        const float largest = __uint_as_float(__reduce_max_sync(~0u, __float_as_uint(fabsf(v))));
        if (largest == 0.0f) return 0.0f;
        return __fmul_rn(__fdiv_rn(largest, 127.0f), rintf(__fmul_rn(v, __fdiv_rn(127.0f, largest))));
    }
};
template <class C, class D, bool EXACT>
struct DownRowOf { using Type = DownRow<D>; };
template <class C, class D>
struct DownRowOf<C, D, true> { using Type = DownRowExact<C, D>; };

}  // namespace monomorph
