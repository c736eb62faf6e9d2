// The prologue of a stream product of eight rows (stream_pairs.cuh): f32 rows of x, normed if asked, scaled and rounded to f16, into shared memory in the order
// of the B operands of mma.m16n8k16: of every 32 columns, lane (g, c) has row g, columns 2c, 2c + 1, 2c + 8, 2c + 9 of both steps: 16 bytes.
//
// A lane has one row: of each 32 columns that its warp stages, four of a step's eight, of both steps. So a warp's loads are 64 bytes of eight rows, a row's sum of
// squares and largest magnitude are of four lanes of every warp, met behind one barrier, and all of x is under way at once where registers hold it. Two lanes
// exchange half of what they have, and the stores of a warp are 512 bytes in a row.
#pragma once

#include "core/async.cuh"
#include "core/staged.cuh"
#include "products/stream_shape.cuh"

namespace monomorph {

template <class C>
struct PairStage {
    using S = StreamShape<C>;
    using U = typename S::U;
    static constexpr int CHUNKS = S::UNITS * S::CHUNKS;   // of 32 columns
    static constexpr int EACH = ceil_div(CHUNKS, S::WARPS);
    // Registers hold up to HELD of a lane's parts; more wait as they are where others will be, or, of very wide rows, are read again to be staged.
    static constexpr int HELD = least(EACH, 96 / S::WARPS), PARKED = 2 * (EACH - HELD) <= EACH ? EACH - HELD : 0;
    static constexpr bool AGAIN = HELD + PARKED < EACH;
    static constexpr int ROUND = AGAIN ? ceil_div(EACH, ceil_div(EACH, HELD)) : HELD;   // parts at a time
    static constexpr bool NORMED = C::NORM != Norm::NONE;
    // The feeder copies the norm weights to where sums will be, which no thread waits for before it needs them; or they are read with x.
    static constexpr bool KEPT = NORMED && C::INPUTS % 4 == 0 && C::INPUTS <= 2 * S::GROUP_TILES * S::TILE_PARTIALS;

    struct Part {
        float4 step[2];
    };
    const int first;   // column of the lane in the warp's first chunk
    float unscale;     // of the lane's row

    __device__ __forceinline__ PairStage(int warp, int lane) : first(warp * 32 + lane / 2 % 2 * 8 + lane % 2 * 4) {}

    __device__ __forceinline__ static int column_of(int i, int first) { return first + i * S::WARPS * 32; }

    template <class Load>
    __device__ __forceinline__ static float4 vector_at(const float* row, int column, bool live, Load load) {
        float4 v = {0.0f, 0.0f, 0.0f, 0.0f};
        if constexpr (C::INPUTS % 4 == 0) {
            if (live && column < C::INPUTS) v = load(reinterpret_cast<const float4*>(row + column));
        } else {   // rows are not aligned to vectors
            if (live && column < C::INPUTS) v.x = load(row + column);
            if (live && column + 1 < C::INPUTS) v.y = load(row + column + 1);
            if (live && column + 2 < C::INPUTS) v.z = load(row + column + 2);
            if (live && column + 3 < C::INPUTS) v.w = load(row + column + 3);
        }
        return v;
    }

    // `own`: the lane's first column of its row, whose parts are at constant distances.
    __device__ __forceinline__ void load(Part& part, const float* own, bool live, int i) const {
        constexpr bool EVEN = C::INPUTS % 4 == 0 && (S::SPLIT > 1 || C::INPUTS == CHUNKS * 32);   // a chunk is there whole or not at all
#pragma unroll
        for (int step = 0; step < 2; step++) {
            const int column = column_of(i, first) + 16 * step;
            const bool there = live && i < EACH && (CHUNKS % S::WARPS == 0 || column < CHUNKS * 32);
            if constexpr (EVEN) {
                part.step[step] = {0.0f, 0.0f, 0.0f, 0.0f};
                if (there) part.step[step] = load_activation(reinterpret_cast<const float4*>(own + i * S::WARPS * 32 + 16 * step));
            } else {
                part.step[step] = vector_at(own - first, column, there, [](auto* p) { return load_activation(p); });
            }
        }
    }
    // What a row has in common, of four columns each, so that no addition waits for the one before it.
    struct Row {
        float4 sums = {0.0f, 0.0f, 0.0f, 0.0f}, largest = {0.0f, 0.0f, 0.0f, 0.0f};
        __device__ __forceinline__ void add(float4 v) { sums.x += v.x * v.x, sums.y += v.y * v.y, sums.z += v.z * v.z, sums.w += v.w * v.w; }
        __device__ __forceinline__ void compare(float4 v) {
            largest.x = fmaxf(largest.x, fabsf(v.x)), largest.y = fmaxf(largest.y, fabsf(v.y));
            largest.z = fmaxf(largest.z, fabsf(v.z)), largest.w = fmaxf(largest.w, fabsf(v.w));
        }
        __device__ __forceinline__ static float largest_of(float4 v) { return fmaxf(fmaxf(v.x, v.y), fmaxf(v.z, v.w)); }
    };
    // Multiplies by the norm weights, and adds to what the row has in common.
    __device__ __forceinline__ void weigh(Part& part, Row& row, const float* norm, const float* weights, int i) const {
        constexpr float ONE = C::NORM == Norm::ONE_PLUS ? 1.0f : 0.0f;
#pragma unroll
        for (int step = 0; step < 2; step++) {
            float4& v = part.step[step];
            if constexpr (NORMED) {
                const int column = column_of(i, first) + 16 * step;
                float4 w = {0.0f, 0.0f, 0.0f, 0.0f};
                if constexpr (KEPT) {
                    if (column < C::INPUTS) w = *reinterpret_cast<const float4*>(weights + column);
                } else {
                    w = vector_at(norm, column, true, [](auto* p) { return load_constant(p); });
                }
                row.add(v);
                v.x *= ONE + w.x, v.y *= ONE + w.y, v.z *= ONE + w.z, v.w *= ONE + w.w;
            }
            row.compare(v);
        }
    }
    // Where the warp's i-th chunk is staged.
    __device__ __forceinline__ static char* chunk_at(char* staged, int i, int warp) { return staged + (i * S::WARPS + warp) * S::CHUNK_BYTES; }

    // `rows` of x exist (the others are staged as zeros). KEPT: `weights` are those of the norm behind `weights_there`. squares: [rows][warps] of sums, then of
    // largest magnitudes.
    __device__ __forceinline__ void run(const float* x, const float* norm, const float* weights, Barrier* weights_there, int rows, char* staged, float* squares, int warp,
                                        int lane) {
        float* const row_squares = squares + lane / 4 * S::WARPS;
        float* const row_largest = row_squares + C::ROWS * S::WARPS;
        const float* const own = x + lane / 4 * C::INPUTS + first;
        const bool live = lane / 4 < rows;
        Part values[ROUND];
        Row row;
        if constexpr (PARKED > 0) {
            if constexpr (KEPT) barrier_wait(weights_there, 0);   // behind the loads it would keep the compiler from putting those in order
            constexpr int BATCH = ceil_div(PARKED, 2), BESIDE = HELD / 2;
#pragma unroll
            for (int batch = 0; batch < 2; batch++) {
                Part parked[BATCH];
#pragma unroll
                for (int i = 0; i < BATCH; i++) load(parked[i], own, live, HELD + batch * BATCH + i);
#pragma unroll
                for (int i = batch * BESIDE; i < (batch == 0 ? BESIDE : HELD); i++) load(values[i], own, live, i);
#pragma unroll
                for (int i = 0; i < BATCH; i++) {
                    const int n = batch * BATCH + i;
                    if (n >= PARKED) break;
                    weigh(parked[i], row, norm, weights, HELD + n);
#pragma unroll
                    for (int step = 0; step < 2; step++) *reinterpret_cast<float4*>(chunk_at(staged, 2 * n + step, warp) + lane * 16) = parked[i].step[step];
                }
                asm volatile("" ::: "memory");   // the registers of what is parked are free before more is asked for
            }
#pragma unroll
            for (int i = 0; i < HELD; i++) weigh(values[i], row, norm, weights, i);
        } else {
#pragma unroll 1
            for (int from = 0; from < EACH; from += ROUND) {
#pragma unroll
                for (int i = 0; i < ROUND; i++) load(values[i], own, live, from + i);
                if constexpr (KEPT) barrier_wait(weights_there, 0);
#pragma unroll
                for (int i = 0; i < ROUND; i++) weigh(values[i], row, norm, weights, from + i);
            }
        }
        float sum = (row.sums.x + row.sums.y) + (row.sums.z + row.sums.w), largest = Row::largest_of(row.largest);
#pragma unroll
        for (int step = 1; step < 4; step *= 2) {
            sum += __shfl_xor_sync(~0u, sum, step);
            largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, step));
        }
        if (lane % 4 == 0) row_squares[warp] = sum, row_largest[warp] = largest;
        named_barrier(1, S::CONSUMERS);
        sum = 0.0f;
#pragma unroll
        for (int w = 0; w < S::WARPS; w += 4) {
            const float4 squares_of = *reinterpret_cast<const float4*>(row_squares + w);
            sum += (squares_of.x + squares_of.y) + (squares_of.z + squares_of.w);
            largest = fmaxf(largest, Row::largest_of(*reinterpret_cast<const float4*>(row_largest + w)));
        }
        const float inverse = NORMED ? rsqrtf(sum * (1.0f / C::INPUTS) + C::EPS) : 1.0f;
        const HalfScale by(NORMED ? largest * inverse : largest);
        unscale = by.unscale * Streamed<C::FORMAT>::SUM_SCALE;
        if constexpr (AGAIN) {
#pragma unroll 1
            for (int from = 0; from < EACH; from += ROUND) {
                Row again;
#pragma unroll
                for (int i = 0; i < ROUND; i++) load(values[i], own, live, from + i);
#pragma unroll
                for (int i = 0; i < ROUND; i++) {
                    weigh(values[i], again, norm, weights, from + i);
                    if (from + i < EACH) store(values[i], inverse, by.scale, staged, from + i, warp, lane);
                }
            }
        } else {
            // From the last one on: what a chunk replaces has been read.
#pragma unroll
            for (int i = PARKED - 1; i >= 0; i--) {
                Part parked;
#pragma unroll
                for (int step = 0; step < 2; step++) parked.step[step] = *reinterpret_cast<const float4*>(chunk_at(staged, 2 * i + step, warp) + lane * 16);
                __syncwarp();
                store(parked, inverse, by.scale, staged, HELD + i, warp, lane);
            }
#pragma unroll
            for (int i = 0; i < HELD; i++) store(values[i], inverse, by.scale, staged, i, warp, lane);
        }
        named_barrier(1, S::CONSUMERS);
    }

    // All lanes of the warp.
    __device__ __forceinline__ static void store(const Part& values, float inverse, float scale, char* staged, int i, int warp, int lane) {
        float4 v = values.step[0], w = values.step[1];
        if constexpr (NORMED) {
            v.x *= inverse, v.y *= inverse, v.z *= inverse, v.w *= inverse;
            w.x *= inverse, w.y *= inverse, w.z *= inverse, w.w *= inverse;
        }
        v.x *= scale, v.y *= scale, v.z *= scale, v.w *= scale;
        w.x *= scale, w.y *= scale, w.z *= scale, w.w *= scale;
        // Columns 4q, 4q + 1 are of lane c = 2q, the others of 2q + 1: the lane of the lower eight columns keeps the former of both halves of a step.
        const bool high = lane / 2 % 2 != 0;
        const unsigned even[2] = {pack_f16(v.x, v.y), pack_f16(w.x, w.y)}, odd[2] = {pack_f16(v.z, v.w), pack_f16(w.z, w.w)};
        unsigned other[2];
#pragma unroll
        for (int step = 0; step < 2; step++) other[step] = __shfl_xor_sync(~0u, high ? even[step] : odd[step], 2);
        const uint4 all = high ? uint4{other[0], odd[0], other[1], odd[1]} : uint4{even[0], other[0], even[1], other[1]};
        const int c = lane % 2 * 2 + high;
        if (CHUNKS % S::WARPS == 0 || i * S::WARPS + warp < CHUNKS) *reinterpret_cast<uint4*>(chunk_at(staged, i, warp) + (lane / 4 * 4 + c) * 16) = all;
    }
};

}  // namespace monomorph
