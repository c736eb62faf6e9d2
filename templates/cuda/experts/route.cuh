// The first phase of a mixture of experts: router logits, the shared expert's gated product and the logit of its scale, all of n = norm(x).
//
// Blocks have roles, for each of the products is far too small for all of them, and each alone would cost a phase's boundary:
//   0 .. BLOCKS                      the shared expert's gate and up, streamed as any gated product (stream.cuh): it is a stream product's Config
//   BLOCKS .. + ROUTER_BLOCKS        the router's rows, an equal number a block
//   one more                         the row of the shared expert's scale
// Without a shared expert (BLOCKS == 0) there are router blocks only.
//
// Router rows are held in registers before the wait. A thread owns the columns of its lane in the packed units and meets them in every row, so
// that x and the norm go from memory to its registers and nowhere else; n is not rounded, and 1 / rms, common to a row, multiplies the sums. They meet
// by shuffles within a warp and then in the order of warps. Exact: n as the reference interpreter rounds it, sums in f64.
//
// struct Config: a stream product's (stream_shape.cuh: GATED, of the shared expert; ROWS of a block, grid.y covers more), and
//     static constexpr Format ROUTER, SCALE;       // BF16, F16 or F32; SCALE means nothing without a shared expert
//     static constexpr int EXPERTS, ROUTER_BLOCKS;
//     static constexpr int ARRIVING;               // values of `arriving` that a kernel behind this one hands from block to block (experts_stream.cuh)
//
// Arguments: x f32 [rows, INPUTS], 16-byte aligned; norm f32 [INPUTS]; router, scale_row: codes of packed matrices of EXPERTS rows and of 1; codes, scales,
// row_scales: of the shared expert's gate and up; logits f32 [rows, EXPERTS]; scale f32 [rows]; inner f32 [rows, OUTPUTS];
// arriving f32 [ARRIVING], 16-byte aligned: filled with NOT_YET. SCORED, and Configs that say EXPERT_SCALES: logits are rows as route_scores.cuh says, of what
// experts have of their own. Configs that say FACTOR (core/factor.cuh): it multiplies n.
#pragma once

#include "core/factor.cuh"
#include "experts/route_scores.cuh"
#include "products/stream.cuh"

namespace monomorph {

// Rows of a packed matrix of format F against the block's rows of x.
template <class C, Format F, int BLOCK_ROWS, class Row = RouterRow<>>
struct RouteRows {
    using U = Unit<F>;
    using Sum = typename SumOf<C::COMPUTE>::Type;
    static constexpr bool EXACT = C::COMPUTE == Compute::EXACT, NORMED = C::NORM != Norm::NONE;
    static constexpr int WARPS = C::CONSUMER_WARPS, CONSUMERS = 32 * WARPS;
    static constexpr int UNITS = ceil_div(C::INPUTS, U::COLUMNS), PLACES = 4 * UNITS, TURNS = ceil_div(PLACES, CONSUMERS);   // of threads to places
    static constexpr int TOGETHER = TURNS == 1 && !EXACT ? C::ROWS : least(C::ROWS, 4);   // rows of x whose loads are in flight together
    // Rows of the matrix that are held at a time: what is left of the registers by the norm's weights and x, in passes of equal length.
    static constexpr int REGISTERS = (C::ROWS <= 2 ? 72 : 128) - U::ELEMENTS * (TURNS + TOGETHER);
    static constexpr int HELD = most(1, least(least(BLOCK_ROWS, REGISTERS / (4 * TURNS + C::ROWS)), 32 / C::ROWS));
    static constexpr int PASS = ceil_div(BLOCK_ROWS, ceil_div(BLOCK_ROWS, HELD));
    static constexpr int SUMS = PASS * C::ROWS;
    static_assert(F == Format::BF16 || F == Format::F16 || F == Format::F32, "router weights are plain floats");
    static_assert(C::ROWS % TOGETHER == 0, "rows are powers of two, or at most four");

    // Shared memory: sums of warps, two passes in turn, then sums of squares.
    static constexpr int SQUARES_AT = 2 * WARPS * SUMS * static_cast<int>(sizeof(Sum));
    static constexpr int SHARED = SQUARES_AT + WARPS * C::ROWS * static_cast<int>(sizeof(Sum));

    uint4 codes[TURNS][PASS];
    float weights[TURNS][U::ELEMENTS];   // of the norm

    __device__ __forceinline__ static int place(int turn) { return turn * CONSUMERS + threadIdx.x; }
    __device__ __forceinline__ static int column(int turn, int element) { return place(turn) / 4 * U::COLUMNS + U::column(element, place(turn) % 4); }

    // Rows `first` .. of `end` rows.
    __device__ __forceinline__ void load(const uint4* matrix, int first, int end) {
#pragma unroll
        for (int turn = 0; turn < TURNS; turn++)
#pragma unroll
            for (int r = 0; r < PASS; r++) {
                const int row = first + r;
                codes[turn][r] = {0, 0, 0, 0};
                if (row < end && place(turn) < PLACES)
                    codes[turn][r] = __ldg(matrix + (static_cast<long long>(row / TILE_ROWS) * UNITS + place(turn) / 4) * 32 + row % TILE_ROWS * 4 + place(turn) % 4);
            }
    }
    __device__ __forceinline__ void before_wait(const uint4* matrix, const float* norm, int first, int end) {
        load(matrix, first, end);
        if constexpr (NORMED) {
#pragma unroll
            for (int turn = 0; turn < TURNS; turn++)
#pragma unroll
                for (int e = 0; e < U::ELEMENTS; e++) {
                    const float weight = column(turn, e) < C::INPUTS ? load_constant(norm + column(turn, e)) : 0.0f;
                    weights[turn][e] = C::NORM == Norm::ONE_PLUS ? __fadd_rn(1.0f, weight) : weight;
                }
        }
    }

    // A thread's columns of some rows of x: pairs of neighbours.
    __device__ __forceinline__ static void read(float (&values)[TOGETHER][U::ELEMENTS], const float* x, int turn) {
#pragma unroll
        for (int t = 0; t < TOGETHER; t++)
#pragma unroll
            for (int e = 0; e < U::ELEMENTS; e += 2) {
                const float* at = x + t * C::INPUTS + column(turn, e);
                float2 v = {0.0f, 0.0f};
                if constexpr (C::INPUTS % 2 == 0) {
                    if (column(turn, e) < C::INPUTS) v = load_activation(reinterpret_cast<const float2*>(at));
                } else {
                    if (column(turn, e) < C::INPUTS) v.x = load_activation(at);
                    if (column(turn, e) + 1 < C::INPUTS) v.y = load_activation(at + 1);
                }
                values[t][e] = v.x, values[t][e + 1] = v.y;
            }
    }

    // The warp's totals of N values a lane, N a power of two: total i ends in the lanes i * (32 / N) ..; STEP lanes apart are those that meet next.
    template <int N, int STEP = 16>
    __device__ __forceinline__ static Sum totals(const Sum (&v)[N], int lane) {
        if constexpr (N > 1) {
            Sum half[N / 2];
            const bool upper = lane & STEP;
#pragma unroll
            for (int i = 0; i < N / 2; i++) {
                const Sum sent = upper ? v[i] : v[i + N / 2], kept = upper ? v[i + N / 2] : v[i];
                half[i] = kept + __shfl_xor_sync(~0u, sent, STEP);
            }
            return totals<N / 2, STEP / 2>(half, lane);
        } else {
            Sum sum = v[0];
#pragma unroll
            for (int step = STEP; step > 0; step /= 2) sum += __shfl_xor_sync(~0u, sum, step);
            return sum;
        }
    }
    // Writes a warp's totals of N values to `at`.
    template <int N>
    __device__ __forceinline__ static void leave(const Sum (&values)[N], Sum* at, int lane) {
        static_assert(N <= 32, "a value a lane");
        constexpr int N2 = N > 16 ? 32 : N > 8 ? 16 : N > 4 ? 8 : N > 2 ? 4 : N, EACH = 32 / N2;
        Sum v[N2] = {};
#pragma unroll
        for (int i = 0; i < N; i++) v[i] = values[i];
        const Sum total = totals(v, lane);
        if (lane % EACH == 0 && lane / EACH < N) at[lane / EACH] = total;
    }
    __device__ __forceinline__ static Sum inverse_rms(const Sum* squares, int t) {
        if constexpr (!NORMED) return 1;
        Sum sum = 0;
#pragma unroll
        for (int w = 0; w < WARPS; w++) sum += squares[w * C::ROWS + t];
        if constexpr (EXACT) return 1.0 / sqrt(sum / C::INPUTS + static_cast<double>(C::EPS));
        else return rsqrtf(sum * (1.0f / C::INPUTS) + C::EPS);
    }

    // Rows first .. end of `matrix`, `stride` apart in `out` from one row of x to the next. `rows` of x are in use.
    __device__ __forceinline__ void run(const uint4* matrix, const float* x, int first, int end, char* shared, float* out, int stride, int rows, const OfExperts& own = {}) {
        const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
        Sum* const sums_at = reinterpret_cast<Sum*>(shared);
        Sum* const squares_at = reinterpret_cast<Sum*>(shared + SQUARES_AT);
        if constexpr (EXACT && NORMED) {   // 1 / rms is part of n, which is rounded
            Sum squares[C::ROWS] = {};
#pragma unroll 1
            for (int turn = 0; turn < TURNS; turn++) add_squares(squares, x, turn);
            leave(squares, squares_at + warp * C::ROWS, lane);
            named_barrier(1, CONSUMERS);
        }
#pragma unroll 1
        for (int pass = 0; first + pass * PASS < end; pass++) {
            const int from = first + pass * PASS;
            if (pass > 0) load(matrix, from, end);
            Sum sums[SUMS] = {}, squares[C::ROWS] = {};
#pragma unroll
            for (int turn = 0; turn < TURNS; turn++)
#pragma unroll
                for (int t0 = 0; t0 < C::ROWS; t0 += TOGETHER) {
                    float values[TOGETHER][U::ELEMENTS];
                    read(values, x + t0 * C::INPUTS, turn);
                    if constexpr (NORMED && !EXACT) {
#pragma unroll
                        for (int t = 0; t < TOGETHER; t++)
#pragma unroll
                            for (int e = 0; e < U::ELEMENTS; e++) squares[t0 + t] += values[t][e] * values[t][e], values[t][e] *= weights[turn][e];
                    }
                    if constexpr (NORMED && EXACT) {
#pragma unroll
                        for (int t = 0; t < TOGETHER; t++) {
                            const Sum inverse = inverse_rms(squares_at, t0 + t);
#pragma unroll
                            for (int e = 0; e < U::ELEMENTS; e++)
                                values[t][e] = static_cast<float>(static_cast<double>(values[t][e]) * inverse * static_cast<double>(weights[turn][e])) * FACTOR_OF<C>;
                        }
                    }
#pragma unroll
                    for (int r = 0; r < PASS; r++) {
                        float w[U::ELEMENTS];
                        decode_floats<F>(codes[turn][r], nullptr, 0, w);
#pragma unroll
                        for (int t = 0; t < TOGETHER; t++)
#pragma unroll
                            for (int e = 0; e < U::ELEMENTS; e++) sums[r * C::ROWS + t0 + t] += static_cast<Sum>(w[e]) * static_cast<Sum>(values[t][e]);
                    }
                }
            Sum* const here = sums_at + pass % 2 * WARPS * SUMS;
            leave(sums, here + warp * SUMS, lane);
            if constexpr (NORMED && !EXACT)
                if (pass == 0) leave(squares, squares_at + warp * C::ROWS, lane);
            named_barrier(1, CONSUMERS);
            if (threadIdx.x < SUMS) {
                const int row = from + threadIdx.x / C::ROWS, t = threadIdx.x % C::ROWS;
                Sum sum = 0;
#pragma unroll
                for (int w = 0; w < WARPS; w++) sum += here[w * SUMS + threadIdx.x];
                if constexpr (!EXACT) sum *= inverse_rms(squares_at, t) * FACTOR_OF<C>;
                if (row < end && t < rows) Row::store(out + t * stride, C::EXPERTS, row, static_cast<float>(sum), own);
            }
        }
    }
    __device__ __forceinline__ static void add_squares(Sum (&squares)[C::ROWS], const float* x, int turn) {
#pragma unroll
        for (int t0 = 0; t0 < C::ROWS; t0 += TOGETHER) {
            float values[TOGETHER][U::ELEMENTS];
            read(values, x + t0 * C::INPUTS, turn);
#pragma unroll
            for (int t = 0; t < TOGETHER; t++)
#pragma unroll
                for (int e = 0; e < U::ELEMENTS; e++) squares[t0 + t] += static_cast<Sum>(values[t][e]) * static_cast<Sum>(values[t][e]);
        }
    }
};

template <class C, bool SCORED = false>
struct RouteShape {
    static constexpr bool COMMON = C::BLOCKS > 0;   // there is a shared expert
    static constexpr int THREADS = 32 * (C::CONSUMER_WARPS + 1);
    static constexpr int BLOCK_ROWS = ceil_div(C::EXPERTS, C::ROUTER_BLOCKS);
    static constexpr int GRID = C::BLOCKS + C::ROUTER_BLOCKS + (COMMON ? 1 : 0);
    using Row = RouterRow<SCORED, EXPERTS_SCALED<C>>;
    using Router = RouteRows<C, C::ROUTER, BLOCK_ROWS, Row>;
    static constexpr int shared_bytes() {
        if constexpr (COMMON) return most(StreamShape<C>::SHARED, most(Router::SHARED, RouteRows<C, C::SCALE, 1>::SHARED));
        else return Router::SHARED;
    }
    static constexpr int SHARED = shared_bytes();
    // For __launch_bounds__: what more than two rows need leaves the next kernel's block no registers.
    static constexpr int RESIDENT = C::CONSUMER_WARPS <= 8 && C::ROWS <= 2 && SHARED <= 114 * 1024 ? 2 : 1;
    static_assert(C::CONSUMER_WARPS >= 4 && C::CONSUMER_WARPS <= 16, "4 to 16 consumer warps");
    static_assert(C::NORM != Norm::NONE || FACTOR_OF<C> == 1.0f, "what is multiplied is normed");
};

template <class C, bool SCORED = false>
__device__ __forceinline__ void route(const Step* step, const float* x, const float* norm, const void* router, const void* scale_row, const void* codes, const void* scales,
                                      const float* row_scales, float* logits, float* scale, float* inner, float* arriving, const float* correction = nullptr,
                                      const float* expert_scales = nullptr) {
    using P = RouteShape<C, SCORED>;
    if constexpr (P::COMMON) {
        if (blockIdx.x < C::BLOCKS) {
            stream_product<C>(step, x, norm, codes, scales, row_scales, nullptr, nullptr, inner);
            return;
        }
    }
    launch_dependents();
    MONOMORPH_DYNAMIC_SHARED(route_shared, 128);
    if (threadIdx.x >= 32 * C::CONSUMER_WARPS) {   // completion goes through the waits of all
        wait_for_predecessors();
        return;
    }
    const int first_row = blockIdx.y * C::ROWS;
    const auto rows_here = [&] {   // after the wait only
        if constexpr (C::LIMIT == Limit::NONE) return C::ROWS;
        else return least(step->tokens - first_row, C::ROWS);
    };
    const auto run = [&](auto rows, const void* matrix, int first, int end, float* out, int stride) {
        const uint4* const packed = static_cast<const uint4*>(matrix);
        rows.before_wait(packed, norm, first, end);
        wait_for_predecessors();
        if constexpr (C::ARRIVING > 0) {   // nobody reads the last layer's any more
            static_assert(C::ARRIVING % 4 == 0, "vectors");
            const int first = (blockIdx.y * (gridDim.x - C::BLOCKS) + blockIdx.x - C::BLOCKS) * 32 * C::CONSUMER_WARPS + threadIdx.x;
            const int stride = gridDim.y * (gridDim.x - C::BLOCKS) * 32 * C::CONSUMER_WARPS;
            const float4 none = {not_yet(), not_yet(), not_yet(), not_yet()};
            for (int i = first; i < C::ARRIVING / 4; i += stride) reinterpret_cast<float4*>(arriving)[i] = none;
        }
        rows.run(packed, x + static_cast<long long>(first_row) * C::INPUTS, first, end, reinterpret_cast<char*>(route_shared), out + static_cast<long long>(first_row) * stride, stride, rows_here(), OfExperts{correction, expert_scales});
    };
    const int block = blockIdx.x - C::BLOCKS;
    if constexpr (P::COMMON) {
        if (block == C::ROUTER_BLOCKS) {
            run(RouteRows<C, C::SCALE, 1>(), scale_row, 0, 1, scale, 1);
            return;
        }
    }
    run(typename P::Router(), router, block * P::BLOCK_ROWS, least(C::EXPERTS, (block + 1) * P::BLOCK_ROWS), logits, P::Row::floats(C::EXPERTS));
}

}  // namespace monomorph
