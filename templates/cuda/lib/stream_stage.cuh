// The prologue of a stream product: f32 rows of x, normed if asked, rounded as the compute format says, into shared memory in the
// order in which lanes meet them. See stream_shape.cuh for the layout.
//
// bf16: a warp stages exactly the columns of the units it will multiply (unit u of warp u % WARPS), so that no block barrier stands
// between the wait and the stream unless warps also split tiles. The norm's 1 / rms is one factor a row: it is left out here and
// multiplied into the sums at the end, off the path between two kernels; norm weights are read before the wait.
// exact: the reference interpreter's steps, in its precisions, with block barriers.
#pragma once

#include "async.cuh"
#include "stream_shape.cuh"

namespace monomorph {

template <class C>
struct Bf16Stage {
    using S = StreamShape<C>;
    using U = typename S::U;
    using F = Streamed<C::FORMAT>;
    // An item is what one lane stages of one row at a time: columns 4q..4q+4 of each 8 of a 16-column step (two lanes' c), of one
    // step or, where pairs reach across two steps, of both steps of a chunk.
    static constexpr int STEPS = F::PAIRING == Pairing::BY_FOUR ? 2 : 1, VECTORS = 2 * STEPS;
    static constexpr int CHUNK_ITEMS = 4 / STEPS;
    static constexpr int WARP_ITEMS = ceil_div(S::UNITS, S::WARPS) * S::CHUNKS * CHUNK_ITEMS;
    static constexpr int ITERATIONS = ceil_div(WARP_ITEMS, 32);
    static constexpr bool NORMED = C::NORM != Norm::NONE;
    static constexpr bool KEPT = NORMED && ITERATIONS * VECTORS <= 4;   // norm weights wait in registers

    float4 weights[KEPT ? ITERATIONS * VECTORS : 1];

    struct Item {
        int unit, chunk, q, step, column;
        bool live;
        __device__ __forceinline__ Item(int iteration, int warp, int lane) {
            const int n = iteration * 32 + lane, in_chunk = n % CHUNK_ITEMS;
            unit = warp + S::WARPS * (n / (CHUNK_ITEMS * S::CHUNKS));
            chunk = n / CHUNK_ITEMS % S::CHUNKS;
            q = in_chunk % 2;
            step = in_chunk / 2;
            column = unit * U::COLUMNS + chunk * 32 + step * 16 + q * 4;
            live = n < WARP_ITEMS && unit < S::UNITS;
        }
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
    __device__ __forceinline__ static float4 norm_at(const float* norm, const Item& item, int vector) {
        return vector_at(norm, item.column + 8 * vector, item.live, [](auto* p) { return load_constant(p); });
    }

    __device__ __forceinline__ void before_wait(const float* norm, int warp, int lane) {
        if constexpr (KEPT) {
#pragma unroll
            for (int i = 0; i < ITERATIONS; i++) {
                const Item item(i, warp, lane);
#pragma unroll
                for (int v = 0; v < VECTORS; v++) weights[i * VECTORS + v] = norm_at(norm, item, v);
            }
        }
    }

    // `rows` of x exist (the others are staged as zeros). Leaves the warp's sums of squares in squares[row][warp].
    __device__ __forceinline__ void run(const float* x, const float* norm, int rows, char* staged, float* squares, int warp, int lane) {
        constexpr int PASSES = ITERATIONS * C::ROWS, BATCH = PASSES < 4 / STEPS ? PASSES : 4 / STEPS;   // loads in flight: BATCH * VECTORS
        float sums[C::ROWS] = {};
#pragma unroll
        for (int from = 0; from < PASSES; from += BATCH) {
            float4 values[BATCH][VECTORS];
#pragma unroll
            for (int b = 0; b < BATCH; b++) {
                const int pass = from + b, row = pass % C::ROWS;
                const Item item(pass / C::ROWS, warp, lane);
#pragma unroll
                for (int v = 0; v < VECTORS; v++)
                    values[b][v] = vector_at(x + row * C::INPUTS, item.column + 8 * v, item.live && pass < PASSES && row < rows,
                                             [](auto* p) { return load_activation(p); });
            }
#pragma unroll
            for (int b = 0; b < BATCH; b++) {
                const int pass = from + b, row = pass % C::ROWS;
                if (pass >= PASSES) continue;
                const Item item(pass / C::ROWS, warp, lane);
                if constexpr (NORMED) {
#pragma unroll
                    for (int v = 0; v < VECTORS; v++) {
                        float4& x4 = values[b][v];
                        sums[row] += x4.x * x4.x + x4.y * x4.y + x4.z * x4.z + x4.w * x4.w;
                        float4 w = KEPT ? weights[KEPT ? pass / C::ROWS * VECTORS + v : 0] : norm_at(norm, item, v);
                        constexpr float ONE = C::NORM == Norm::ONE_PLUS ? 1.0f : 0.0f;
                        x4.x *= ONE + w.x, x4.y *= ONE + w.y, x4.z *= ONE + w.z, x4.w *= ONE + w.w;
                    }
                }
                if (item.live) store(values[b], staged, item, row);
            }
        }
        if constexpr (NORMED) {
#pragma unroll
            for (int row = 0; row < C::ROWS; row++) {
#pragma unroll
                for (int step = 16; step > 0; step /= 2) sums[row] += __shfl_xor_sync(~0u, sums[row], step);
                if (lane == 0) squares[row * S::WARPS + warp] = sums[row];
            }
        }
        if constexpr (S::TILE_WARPS == 1) __syncwarp();
        else named_barrier(1, S::CONSUMERS);
    }

    __device__ __forceinline__ static unsigned pair(float low, float high) {
        constexpr float SCALE = F::ACTIVATION_EXPONENT == 0 ? 1.0f : 0x1p60f;
        return pack_bf16(low * SCALE, high * SCALE);
    }
    __device__ __forceinline__ static void store(const float4 (&v)[VECTORS], char* staged, const Item& item, int row) {
        char* at = staged + (item.unit * S::CHUNKS + item.chunk) * S::CHUNK_BYTES + row * 64 + item.q * 32;
        if constexpr (F::PAIRING == Pairing::BY_FOUR) {
            *reinterpret_cast<uint4*>(at) = {pair(v[0].x, v[2].x), pair(v[0].y, v[2].y), pair(v[1].x, v[3].x), pair(v[1].y, v[3].y)};
            *reinterpret_cast<uint4*>(at + 16) = {pair(v[0].z, v[2].z), pair(v[0].w, v[2].w), pair(v[1].z, v[3].z), pair(v[1].w, v[3].w)};
        } else if constexpr (F::PAIRING == Pairing::BY_TWO) {
            *reinterpret_cast<uint2*>(at + item.step * 8) = {pair(v[0].x, v[1].x), pair(v[0].y, v[1].y)};
            *reinterpret_cast<uint2*>(at + 16 + item.step * 8) = {pair(v[0].z, v[1].z), pair(v[0].w, v[1].w)};
        } else {
            *reinterpret_cast<uint2*>(at + item.step * 8) = {pair(v[0].x, v[0].y), pair(v[1].x, v[1].y)};
            *reinterpret_cast<uint2*>(at + 16 + item.step * 8) = {pair(v[0].z, v[0].w), pair(v[1].z, v[1].w)};
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
struct StageOf { using Type = Bf16Stage<C>; };
template <class C>
struct StageOf<C, Compute::EXACT> { using Type = ExactStage<C>; };

}  // namespace monomorph
