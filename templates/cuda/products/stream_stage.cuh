// The prologue of a stream product: f32 rows of x, normed if asked, rounded as the compute format says, into shared memory in the
// order in which lanes meet them.
//
// 16-bit products. A weight operand A has the 8 rows of a tile twice: rows g hold columns 0..8 of each 16-column step, rows g + 8
// columns 8..16 (formats.cuh). So column t of B is x[t] at columns 0..8 of the steps, column t + 4 is x[t] at columns 8..16, and
// out[t] = D[g][t] + D[g + 8][t + 4]: one mma multiplies 32 columns of a tile for up to four rows of x (of eight, two do), and no register of either operand is moved.
// Lane (g, c) therefore meets, of row t = g % 4 (none where t >= ROWS) and half h = g / 4, columns 8h + 2c, + 1 of both steps: 8 bytes.
// A warp stages exactly the columns of the units it will multiply (unit u: warp u / SCALED % WARPS), so that without a norm no block barrier
// stands between the wait and the stream unless warps also split tiles. A norm is whole before x is rounded, as the compute format
// says: the warps exchange their sums of squares behind one barrier. Norm weights are read before the wait. The power of two that
// scales a row is of the warp's own part of it; where warps split tiles, and so read what others staged, of the whole row.
//
// exact: the reference interpreter's steps, in its precisions, with block barriers.
#pragma once

#include "core/async.cuh"
#include "core/staged.cuh"
#include "products/stream_shape.cuh"

namespace monomorph {

// Whether all of a row has one scale although each warp multiplies what it staged: where Config says
//     static constexpr bool ONE_SCALE;   // optional
template <class C, class = void>
constexpr bool HAS_ONE_SCALE = false;
template <class C>
constexpr bool HAS_ONE_SCALE<C, decltype(void(C::ONE_SCALE))> = C::ONE_SCALE;

template <class C>
struct HalfStage {
    using S = StreamShape<C>;
    using U = typename S::U;
    using F = Streamed<C::FORMAT>;
    // An item is what one lane stages of one row at a time: four columns of both steps of a chunk, 4q.. of half h.
    static constexpr int CHUNK_ITEMS = 4;
    static constexpr int WARP_ITEMS = S::units_each(S::UNITS, S::WARPS) * S::CHUNKS * CHUNK_ITEMS;
    static constexpr int ITERATIONS = ceil_div(WARP_ITEMS, 32);
    static constexpr int SLICE = least(ITERATIONS, 8);                         // iterations whose loads are in flight together
    static constexpr bool NORMED = C::NORM != Norm::NONE;
    static constexpr bool KEPT = NORMED && ITERATIONS <= 3;                    // norm weights wait in registers, or are read with x
    // Rows whose loads are, likewise: each that is not costs its way to memory. Eight rows leave the products room for more of them, a power of two.
    static constexpr int AT_ONCE = (C::ROWS > 4 ? NORMED ? 8 : 12 : NORMED && ITERATIONS > 2 ? 4 : 8) / SLICE;
    static constexpr int TOGETHER = most(1, least(C::ROWS, AT_ONCE >= 8 ? 8 : AT_ONCE >= 4 ? 4 : AT_ONCE >= 2 ? 2 : 1));
    static constexpr bool LOOPED = C::ROWS > 4 && TOGETHER < C::ROWS;   // unrolled, addresses of eight rows would spill
    static_assert(C::ROWS % TOGETHER == 0, "rows are powers of two");

    float4 weights[KEPT ? ITERATIONS : 1][2];
    static constexpr bool COMMON = S::TILE_WARPS > 1 || HAS_ONE_SCALE<C>;   // scales
    float unscale[C::ROWS];        // of this warp's sums

    struct Item {
        int unit, chunk, half, q, column;
        bool live;
        __device__ __forceinline__ Item(int iteration, int warp, int lane) {
            const int n = iteration * 32 + lane;
            unit = S::unit_of(warp, n / (CHUNK_ITEMS * S::CHUNKS), S::WARPS);
            chunk = n / CHUNK_ITEMS % S::CHUNKS;
            half = n / 2 % 2;
            q = n % 2;
            column = unit * U::COLUMNS + chunk * 32 + half * 8 + q * 4;
            live = n < WARP_ITEMS && unit < S::UNITS;
        }
    };
    struct Values {
        float4 step[2];
    };

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
    __device__ __forceinline__ static float4 norm_at(const float* norm, const Item& item, int step) {
        return vector_at(norm, item.column + 16 * step, item.live, [](auto* p) { return load_constant(p); });
    }

    __device__ __forceinline__ void before_wait(const float* norm, int warp, int lane) {
        if constexpr (KEPT) {
#pragma unroll
            for (int i = 0; i < ITERATIONS; i++)
#pragma unroll
                for (int step = 0; step < 2; step++) weights[i][step] = norm_at(norm, Item(i, warp, lane), step);
        }
    }

    // `rows` of x exist (the others are staged as zeros). squares: [ROWS][WARPS] in shared memory.
    __device__ __forceinline__ void run(const float* x, const float* norm, int rows, char* staged, float* squares, int warp, int lane) {
        float own = 0.0f;   // LOOPED: unscale of the row that is the lane
        constexpr bool WHOLE = ITERATIONS == SLICE;   // registers hold the warp's part of a row; otherwise it is read again to be staged
#pragma unroll(LOOPED ? 1 : C::ROWS)
        for (int first = 0; first < C::ROWS; first += TOGETHER) {
            float sums[TOGETHER] = {}, largest[TOGETHER] = {}, inverse[TOGETHER], scale[TOGETHER];
            Values values[SLICE][TOGETHER];
            for (int from = 0; from < ITERATIONS; from += SLICE) {
                load(values, sums, x, norm, first, rows, from, warp, lane);
                find_largest(values, largest);
            }
            if constexpr (NORMED || COMMON) exchange(sums, largest, inverse, squares, first, warp, lane);
            set_scales(largest, inverse, scale, first, lane, own);
#pragma unroll
            for (int from = 0; from < ITERATIONS; from += SLICE) {
                if constexpr (!WHOLE) load(values, sums, x, norm, first, rows, from, warp, lane);
#pragma unroll
                for (int i = 0; i < SLICE; i++) {
                    const Item item(from + i, warp, lane);
#pragma unroll
                    for (int r = 0; r < TOGETHER; r++)
                        if (item.live) store(values[i][r], NORMED ? inverse[r] : 1.0f, scale[r], staged, item, first + r);
                }
            }
        }
        if constexpr (LOOPED) {
#pragma unroll
            for (int row = 0; row < C::ROWS; row++) unscale[row] = __shfl_sync(~0u, own, row);
        }
        if constexpr (S::TILE_WARPS == 1) __syncwarp();
        else named_barrier(1, S::CONSUMERS);
    }

    // 1 / rms of rows `first` .. from every warp's sum of squares; COMMON: and their largest of all warps.
    __device__ __forceinline__ static void exchange(const float (&sums)[TOGETHER], float (&largest)[TOGETHER], float (&inverse)[TOGETHER], float* squares, int first,
                                                    int warp, int lane) {
        float* const largest_at = squares + C::ROWS * S::WARPS;
#pragma unroll
        for (int r = 0; r < TOGETHER; r++) {
            const int at = (first + r) * S::WARPS + warp;
            if constexpr (NORMED) {
                float sum = sums[r];
#pragma unroll
                for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(~0u, sum, step);
                if (lane == 0) squares[at] = sum;
            }
            if constexpr (COMMON) {
                const unsigned most = __reduce_max_sync(~0u, __float_as_uint(largest[r]));   // magnitudes compare as their bits
                if (lane == 0) largest_at[at] = __uint_as_float(most);
            }
        }
        named_barrier(1, S::CONSUMERS);
#pragma unroll
        for (int r = 0; r < TOGETHER; r++) {
            float sum = 0.0f;
#pragma unroll
            for (int w = 0; w < S::WARPS; w++) {
                if constexpr (NORMED) sum += squares[(first + r) * S::WARPS + w];
                if constexpr (COMMON) largest[r] = fmaxf(largest[r], largest_at[(first + r) * S::WARPS + w]);
            }
            if constexpr (NORMED) inverse[r] = rsqrtf(sum * (1.0f / C::INPUTS) + C::EPS);
        }
    }

    // A slice of x for some rows, times the norm weights; adds to the rows' sums of squares.
    __device__ __forceinline__ void load(Values (&values)[SLICE][TOGETHER], float (&sums)[TOGETHER], const float* x, const float* norm, int first, int rows,
                                         int from, int warp, int lane) {
        float4 w[NORMED ? SLICE : 1][2];
#pragma unroll
        for (int i = 0; i < SLICE; i++) {
            const Item item(from + i, warp, lane);
#pragma unroll
            for (int step = 0; step < 2; step++) {
#pragma unroll
                for (int r = 0; r < TOGETHER; r++)
                    values[i][r].step[step] = vector_at(x + (first + r) * C::INPUTS, item.column + 16 * step, item.live && first + r < rows,
                                                        [](auto* p) { return load_activation(p); });
                if constexpr (NORMED) w[i][step] = KEPT ? weights[KEPT ? i : 0][step] : norm_at(norm, item, step);
            }
        }
        if constexpr (NORMED) {
            constexpr float ONE = C::NORM == Norm::ONE_PLUS ? 1.0f : 0.0f;
#pragma unroll
            for (int i = 0; i < SLICE; i++)
#pragma unroll
                for (int step = 0; step < 2; step++)
#pragma unroll
                    for (int r = 0; r < TOGETHER; r++) {
                        float4& v = values[i][r].step[step];
                        const float4 k = w[i][step];
                        sums[r] += v.x * v.x + v.y * v.y + v.z * v.z + v.w * v.w;
                        v.x *= ONE + k.x, v.y *= ONE + k.y, v.z *= ONE + k.z, v.w *= ONE + k.w;
                    }
        }
    }

    __device__ __forceinline__ static void find_largest(const Values (&values)[SLICE][TOGETHER], float (&largest)[TOGETHER]) {
#pragma unroll
        for (int i = 0; i < SLICE; i++)
#pragma unroll
            for (int r = 0; r < TOGETHER; r++)
#pragma unroll
                for (int step = 0; step < 2; step++) {
                    const float4 v = values[i][r].step[step];
                    largest[r] = fmaxf(fmaxf(fmaxf(largest[r], fabsf(v.x)), fmaxf(fabsf(v.y), fabsf(v.z))), fabsf(v.w));
                }
    }
    __device__ __forceinline__ void set_scales(const float (&largest)[TOGETHER], const float (&inverse)[TOGETHER], float (&scale)[TOGETHER], int first, int lane, float& own) {
#pragma unroll
        for (int r = 0; r < TOGETHER; r++) {
            const float whole = NORMED ? largest[r] * inverse[r] : largest[r];
            const HalfScale by(__uint_as_float(__reduce_max_sync(~0u, __float_as_uint(whole))));   // magnitudes compare as their bits
            scale[r] = by.scale;
            if (LOOPED && lane == first + r) own = by.unscale * F::SUM_SCALE;
            if (!LOOPED) unscale[first + r] = by.unscale * F::SUM_SCALE;
        }
    }

    __device__ __forceinline__ static void store(const Values& values, float inverse, float scale, char* staged, const Item& item, int row) {
        float4 v = values.step[0], w = values.step[1];
        if constexpr (NORMED) {
            v.x *= inverse, v.y *= inverse, v.z *= inverse, v.w *= inverse;
            w.x *= inverse, w.y *= inverse, w.z *= inverse, w.w *= inverse;
        }
        v.x *= scale, v.y *= scale, v.z *= scale, v.w *= scale;
        w.x *= scale, w.y *= scale, w.z *= scale, w.w *= scale;
        const int of_unit = item.chunk / S::PAIR * S::PAIR * S::CHUNK_BYTES + ((item.half * C::ROWS + row) * 4 + item.q * 2) * 8 * S::PAIR + item.chunk % S::PAIR * 8;
        char* at = staged + item.unit * S::CHUNKS * S::CHUNK_BYTES + of_unit;
        const uint2 even = {pack_f16(v.x, v.y), pack_f16(w.x, w.y)}, odd = {pack_f16(v.z, v.w), pack_f16(w.z, w.w)};
        if constexpr (S::PAIR == 1) {
            *reinterpret_cast<uint4*>(at) = {even.x, even.y, odd.x, odd.y};
        } else {
            *reinterpret_cast<uint2*>(at) = even;
            *reinterpret_cast<uint2*>(at + 16) = odd;
        }
    }
};

template <class C>
struct ExactStage {
    using S = StreamShape<C>;
    using U = typename S::U;

    __device__ __forceinline__ void before_wait(const float*, int, int) {}

    // A row at a time; a warp takes 32 columns at a time, one a lane: loads are whole lines and an int8 block is a warp.
    __device__ __forceinline__ void run(const float* x, const float* norm, int rows, char* staged, double* squares, int warp, int lane) {
        constexpr int COLUMNS = S::UNITS * U::COLUMNS;
#pragma unroll 1
        for (int row = 0; row < C::ROWS && C::NORM != Norm::NONE; row++) {
            double sum = 0.0;
            for (int column = warp * 32 + lane; column < C::INPUTS && row < rows; column += S::CONSUMERS) {
                const double v = load_activation(x + row * C::INPUTS + column);
                sum += v * v;
            }
#pragma unroll
            for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(~0u, sum, step);
            if (lane == 0) squares[row * S::WARPS + warp] = sum;
        }
        if constexpr (C::NORM != Norm::NONE) named_barrier(1, S::CONSUMERS);
#pragma unroll 1
        for (int row = 0; row < C::ROWS; row++) {
            double inverse = 1.0;
            if constexpr (C::NORM != Norm::NONE) {
                double sum = 0.0;
                for (int w = 0; w < S::WARPS; w++) sum += squares[row * S::WARPS + w];
                inverse = 1.0 / sqrt(sum / C::INPUTS + static_cast<double>(C::EPS));
            }
#pragma unroll 4
            for (int column = warp * 32 + lane; column < round_up(COLUMNS, 32); column += S::CONSUMERS) {
                float v = column < C::INPUTS && row < rows ? load_activation(x + row * C::INPUTS + column) : 0.0f;
                if constexpr (C::NORM != Norm::NONE) {
                    float weight = column < C::INPUTS ? load_constant(norm + column) : 0.0f;
                    if constexpr (C::NORM == Norm::ONE_PLUS) weight = __fadd_rn(1.0f, weight);
                    v = static_cast<float>(static_cast<double>(v) * inverse * static_cast<double>(weight));
                }
                if constexpr (C::ROUNDING == Rounding::INT8_BLOCK32) v = through_int8(v);
                const int unit = column / U::COLUMNS, within = column % U::COLUMNS, element = U::element_of(within);
                if (column < COLUMNS)
                    *reinterpret_cast<float*>(staged + (unit * S::CHUNKS + element / 4) * S::CHUNK_BYTES + row * 64 + U::lane_of(within) * 16 + element % 4 * 4) = v;
            }
        }
        named_barrier(1, S::CONSUMERS);
    }

    // runtime/formats/src/activation.rs: scale = max|x| / 127, q = round_ties_even(x * (127 / max|x|)), value = scale * q.
    __device__ __forceinline__ static float through_int8(float v) {
        float largest = fabsf(v);
#pragma unroll
        for (int step = 16; step > 0; step /= 2) largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, step));
        if (largest == 0.0f) return 0.0f;
        const float q = rintf(__fmul_rn(v, __fdiv_rn(127.0f, largest)));
        return __fmul_rn(__fdiv_rn(largest, 127.0f), q);
    }
};

template <class C, Compute>
struct StageOf { using Type = HalfStage<C>; };
template <class C>
struct StageOf<C, Compute::EXACT> { using Type = ExactStage<C>; };

}  // namespace monomorph
