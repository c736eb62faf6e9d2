// Router logits of more than a few tokens: logits[T, OUTPUTS] = norm(x)[T, K] router[OUTPUTS, K]^T, as exact as sums in f32 are, on tensor cores.
//
// Which experts are nearest may hang on the last bits, so x is not rounded: a value of f32 is the sum of three of bf16 (8 bits of its 24 each), router
// weights are bf16 as stored, and products of bf16 are exact in the f32 of the sums. Three mma where one would do for rounded x.
//
// A block has TILES times 16 rows of the router and TOKENS tokens. K goes by chunks through shared memory, as [buffer][term][token][CHUNK + 8] bf16 (the eight
// keep lanes of a fragment in banks of their own): while warps multiply a chunk, the next is on its way to registers. Weights go from memory (the second-level
// cache, mostly) to registers: lane (g, c) of a tile's unit has the fragments of row g (formats.cuh). The norm's weights multiply x before it is cut in three;
// 1 / rms, common to a row, multiplies the sums.
//
// Work of a block is shared out in *items*, 16 rows by ITEM_TOKENS tokens: to M_WARPS warps in turn, and of each K_WARPS warps take a part of every chunk.
// Their sums meet in shared memory in the order of warps. So a row's sums run in one order whatever stands in other rows.
//
// struct Config:
//     static constexpr int OUTPUTS, INPUTS;    // rows of the packed matrix in use, also the stride of the logits (SCORED, EXPERT_SCALES: rows as route_scores.cuh says); K, a multiple of 4
//     static constexpr float FACTOR;           // optional: multiplies normed x (core/factor.cuh)
//     static constexpr Norm NORM; static constexpr float EPS;
//     static constexpr Limit LIMIT;            // the field of the step that bounds the rows written
//     static constexpr int TOKENS, TILES;      // of a block: a multiple of 16; m16 tiles
//     static constexpr int K_WARPS;            // 1, 2, 4 or 8
//     static constexpr int BLOCKS;             // grid.x
// Launch: grid (BLOCKS, tokens / TOKENS), block THREADS, dynamic shared memory SHARED.
#pragma once

#include "core/factor.cuh"
#include "core/formats.cuh"
#include "core/mma.cuh"
#include "core/step.cuh"
#include "experts/route_scores.cuh"
#include "products/gemm.cuh"

namespace monomorph {

template <class C>
struct RouteBatchShape {
    using U = Unit<Format::BF16>;
    static constexpr int WARPS = 8, THREADS = 32 * WARPS, M_WARPS = WARPS / C::K_WARPS, TERMS = 3;
    static constexpr int UNITS = ceil_div(C::INPUTS, U::COLUMNS);                 // of a row of tiles
    static constexpr int PACKED_TILES = ceil_div(C::OUTPUTS, TILE_ROWS);
    static constexpr int CHUNK = 64 * C::K_WARPS, CHUNKS = ceil_div(C::INPUTS, CHUNK);
    static constexpr int STEPS = CHUNK / 16 / C::K_WARPS, STEP_UNITS = STEPS / 2; // of 16 columns, of a warp in a chunk
    static constexpr int ITEM_TILES = least(C::TOKENS / 8, 4);                    // tiles of eight tokens
    static constexpr int PARTS = C::TOKENS / 8 / ITEM_TILES;                      // items that share rows
    static constexpr int ITEMS = C::TILES * PARTS, EACH = ceil_div(ITEMS, M_WARPS);
    // Loading: a thread has four columns of every LOADS-th token.
    static constexpr int ROW_THREADS = CHUNK / 4, AT_ONCE = THREADS / ROW_THREADS, LOADS = C::TOKENS / AT_ONCE;
    // Shared memory.
    static constexpr int STRIDE = CHUNK + 8;                                      // of a token, bf16
    static constexpr int TERM_BYTES = C::TOKENS * STRIDE * 2, BUFFER_BYTES = TERMS * TERM_BYTES;
    static constexpr int PARTIALS_AT = 0;                                         // once the chunks are done
    static constexpr int PARTIAL_FLOATS = ITEMS * ITEM_TILES * 128;               // of one of the K_WARPS
    static constexpr int SQUARES_AT = most(2 * BUFFER_BYTES, C::K_WARPS > 1 ? C::K_WARPS * PARTIAL_FLOATS * 4 : 0);
    static constexpr int SQUARE_PARTS = ceil_div(ROW_THREADS, 32);                // of a token, one a warp
    static constexpr int SHARED = SQUARES_AT + C::TOKENS * SQUARE_PARTS * 4;
    static_assert(C::TOKENS % 16 == 0 && C::TOKENS % AT_ONCE == 0, "tokens are dealt out evenly");
    static_assert(C::INPUTS % 4 == 0, "rows of x are aligned to vectors");
    static_assert(C::BLOCKS * C::TILES * 2 >= PACKED_TILES, "every row has a block");
    static_assert(C::TOKENS * SQUARE_PARTS <= 2 * THREADS, "a few sums a thread");
};

// A pair of values as three pairs of bf16 that add up to them.
__device__ __forceinline__ void cut_in_three(float low, float high, unsigned (&terms)[3]) {
#pragma unroll
    for (int i = 0; i < 3; i++) {
        terms[i] = pack_bf16(low, high);
        low -= bf16_low(terms[i]), high -= bf16_high(terms[i]);
    }
}

template <class C>
struct RouteBatch {
    using S = RouteBatchShape<C>;
    char* shared;
    const uint4* router;   // of the block's first tile, this lane's
    int first_tile, warp, lane;
    uint4 upcoming[2][S::STEP_UNITS];
    float4 loaded[S::LOADS], weight;
    float squares[S::LOADS] = {};
    float sums[S::EACH][S::ITEM_TILES][4] = {};

    __device__ __forceinline__ static int load_column() { return threadIdx.x % S::ROW_THREADS * 4; }
    __device__ __forceinline__ static int load_token(int i) { return threadIdx.x / S::ROW_THREADS + i * S::AT_ONCE; }

    __device__ __forceinline__ void load_weight(const float* norm, int chunk) {
        if constexpr (C::NORM != Norm::NONE) {
            const int column = chunk * S::CHUNK + load_column();
            weight = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
            if (column < C::INPUTS) {
                weight = load_constant(reinterpret_cast<const float4*>(norm + column));
                if constexpr (C::NORM == Norm::ONE_PLUS) weight.x += 1.0f, weight.y += 1.0f, weight.z += 1.0f, weight.w += 1.0f;
            }
        }
    }
    // `tokens` of the block's exist.
    __device__ __forceinline__ void load(const float* x, int chunk, int tokens) {
        const int column = chunk * S::CHUNK + load_column();
#pragma unroll
        for (int i = 0; i < S::LOADS; i++) {
            loaded[i] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
            if (column < C::INPUTS && load_token(i) < tokens) {
                loaded[i] = load_activation(reinterpret_cast<const float4*>(x + size_t(load_token(i)) * C::INPUTS + column));
            }
        }
    }
    __device__ __forceinline__ void leave(int buffer) {
#pragma unroll
        for (int i = 0; i < S::LOADS; i++) {
            float4 v = loaded[i];
            if constexpr (C::NORM != Norm::NONE) {
                squares[i] += v.x * v.x + v.y * v.y + v.z * v.z + v.w * v.w;
                v.x *= weight.x, v.y *= weight.y, v.z *= weight.z, v.w *= weight.w;
            }
            unsigned low[3], high[3];
            cut_in_three(v.x, v.y, low);
            cut_in_three(v.z, v.w, high);
            char* to = shared + buffer * S::BUFFER_BYTES + (load_token(i) * S::STRIDE + load_column()) * 2;
#pragma unroll
            for (int term = 0; term < S::TERMS; term++) *reinterpret_cast<uint2*>(to + term * S::TERM_BYTES) = make_uint2(low[term], high[term]);
        }
    }

    __device__ __forceinline__ int item(int i) const { return warp % S::M_WARPS + i * S::M_WARPS; }
    // This lane's codes for an item and a chunk, zeros beyond the matrix: asked for while the item before is multiplied.
    __device__ __forceinline__ void fetch(int i, int chunk) {
        const int tile = item(i) / S::PARTS * 2, unit = (chunk * C::K_WARPS + warp / S::M_WARPS) * S::STEP_UNITS;
#pragma unroll
        for (int half = 0; half < 2; half++) {
#pragma unroll
            for (int u = 0; u < S::STEP_UNITS; u++) {
                upcoming[half][u] = make_uint4(0, 0, 0, 0);
                if (tile + half < 2 * C::TILES && first_tile + tile + half < S::PACKED_TILES && unit + u < S::UNITS) {
                    upcoming[half][u] = __ldg(router + (size_t(tile + half) * S::UNITS + unit + u) * 32);
                }
            }
        }
    }

    // The products of this warp's part of a chunk.
    __device__ __forceinline__ void multiply(int buffer, int chunk) {
        const int k_warp = warp / S::M_WARPS, g = lane / 4, c = lane % 4;
#pragma unroll
        for (int i = 0; i < S::EACH; i++) {
            if (S::ITEMS % S::M_WARPS != 0 && item(i) >= S::ITEMS) {   // the last of some warps: its codes are not there
                fetch(0, chunk + 1);
                break;
            }
            const int first_token = item(i) % S::PARTS * S::ITEM_TILES * 8;
            uint4 rows[2][S::STEP_UNITS];
#pragma unroll
            for (int half = 0; half < 2; half++) {
#pragma unroll
                for (int u = 0; u < S::STEP_UNITS; u++) rows[half][u] = upcoming[half][u];
            }
            if (i + 1 < S::EACH) fetch(i + 1, chunk);
            else fetch(0, chunk + 1);
#pragma unroll
            for (int step = 0; step < S::STEPS; step++) {
                const uint4 upper = rows[0][step / 2], lower = rows[1][step / 2];
                const bool second = step % 2;
                const unsigned a[4] = {second ? upper.z : upper.x, second ? lower.z : lower.x, second ? upper.w : upper.y, second ? lower.w : lower.y};
                const char* from = shared + buffer * S::BUFFER_BYTES + ((first_token + g) * S::STRIDE + (k_warp * S::STEPS + step) * 16 + 2 * c) * 2;
#pragma unroll
                for (int n = 0; n < S::ITEM_TILES; n++) {
#pragma unroll
                    for (int term = 0; term < S::TERMS; term++) {
                        const char* at = from + term * S::TERM_BYTES + n * 8 * S::STRIDE * 2;
                        mma_bf16(sums[i][n], a[0], a[1], a[2], a[3], *reinterpret_cast<const unsigned*>(at), *reinterpret_cast<const unsigned*>(at + 16));
                    }
                }
            }
        }
    }

    // Sums of squares of the block's tokens, in the order of warps, to 1 / rms.
    __device__ __forceinline__ float inverse_rms(int token) const {
        if constexpr (C::NORM == Norm::NONE) return 1.0f;
        const float* at = reinterpret_cast<const float*>(shared + S::SQUARES_AT) + token * S::SQUARE_PARTS;
        float sum = 0.0f;
#pragma unroll
        for (int part = 0; part < S::SQUARE_PARTS; part++) sum += at[part];
        return rsqrtf(sum * (1.0f / C::INPUTS) + C::EPS);
    }
    __device__ __forceinline__ void leave_squares() {
        if constexpr (C::NORM != Norm::NONE) {
            constexpr int MEET = least(S::ROW_THREADS, 32);   // adjacent lanes of a token
#pragma unroll
            for (int i = 0; i < S::LOADS; i++) {
                float sum = squares[i];
#pragma unroll
                for (int step = MEET / 2; step > 0; step /= 2) sum += __shfl_xor_sync(~0u, sum, step);
                if (lane % MEET == 0) {
                    reinterpret_cast<float*>(shared + S::SQUARES_AT)[load_token(i) * S::SQUARE_PARTS + threadIdx.x % S::ROW_THREADS / 32] = sum;
                }
            }
        }
    }

    // `logits` of the block's first token.
    template <class Row>
    __device__ __forceinline__ void store(float* logits, int tokens, const OfExperts& own) {
        const int g = lane / 4, c = lane % 4;
        const auto write = [&](int tile_row, int token, float sum) {
            const int row = first_tile * TILE_ROWS + tile_row;
            if (row < C::OUTPUTS && token < tokens) Row::store(logits + size_t(token) * Row::floats(C::OUTPUTS), C::OUTPUTS, row, sum * (inverse_rms(token) * FACTOR_OF<C>), own);
        };
        // Every sum of this lane, by its item, and its row and token in that.
        const auto each_sum = [&](const auto& take) {
#pragma unroll
            for (int i = 0; i < S::EACH; i++) {
                if (item(i) >= S::ITEMS) break;
#pragma unroll
                for (int n = 0; n < S::ITEM_TILES; n++)
#pragma unroll
                    for (int v = 0; v < 4; v++) take(item(i), v / 2 * 8 + g, n * 8 + 2 * c + v % 2, sums[i][n][v]);
            }
        };
        const auto write_of = [&](int item, int row, int token, float sum) { write(item / S::PARTS * 16 + row, item % S::PARTS * S::ITEM_TILES * 8 + token, sum); };
        if constexpr (C::K_WARPS == 1) {
            each_sum(write_of);
        } else {
            float* partials = reinterpret_cast<float*>(shared + S::PARTIALS_AT);   // [K warp][item][token][row]
            each_sum([&](int item, int row, int token, float sum) {
                partials[warp / S::M_WARPS * S::PARTIAL_FLOATS + (item * S::ITEM_TILES * 8 + token) * 16 + row] = sum;
            });
            __syncthreads();
            for (int at = threadIdx.x; at < S::PARTIAL_FLOATS; at += S::THREADS) {
                float sum = 0.0f;
#pragma unroll
                for (int k = 0; k < C::K_WARPS; k++) sum += partials[k * S::PARTIAL_FLOATS + at];
                write_of(at / (S::ITEM_TILES * 128), at % 16, at % (S::ITEM_TILES * 128) / 16, sum);
            }
        }
    }
};

template <class C, bool SCORED = false>
__device__ __forceinline__ void route_batch(const Step* step, const float* x, const float* norm, const void* router, float* logits, const float* correction = nullptr, const float* expert_scales = nullptr) {
    using S = RouteBatchShape<C>;
    using Row = RouterRow<SCORED, EXPERTS_SCALED<C>>;
    MONOMORPH_DYNAMIC_SHARED(route_batch_shared, 16);
    launch_dependents();
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, first_tile = blockIdx.x * C::TILES * 2;
    RouteBatch<C> work = {reinterpret_cast<char*>(route_batch_shared), static_cast<const uint4*>(router) + size_t(first_tile) * S::UNITS * 32 + lane, first_tile, warp, lane};
    work.load_weight(norm, 0);
    work.fetch(0, 0);
    wait_for_predecessors();
    const int first_token = blockIdx.y * C::TOKENS, tokens = least(gemm_rows<C>(step) - first_token, C::TOKENS);
    if (tokens <= 0) return;
    x += size_t(first_token) * C::INPUTS;
    work.load(x, 0, tokens);
    for (int chunk = 0; chunk < S::CHUNKS; chunk++) {
        work.leave(chunk % 2);
        __syncthreads();   // also: all have multiplied the chunk before last of this buffer's, which was the one before
        if (chunk + 1 < S::CHUNKS) {
            work.load_weight(norm, chunk + 1);
            work.load(x, chunk + 1, tokens);
        }
        work.multiply(chunk % 2, chunk);
    }
    work.leave_squares();
    __syncthreads();
    work.template store<Row>(logits + size_t(first_token) * Row::floats(C::OUTPUTS), tokens, OfExperts{correction, expert_scales});
}

}  // namespace monomorph
