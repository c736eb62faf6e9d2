// Products of many rows in fp8 on sm_90a, out[T, OUTPUTS] = epilogue(x[T, K] W[OUTPUTS, K]^T): codes of weights by codes of activations (quantised.cuh),
// both in shared memory. What gemm_fp8 and the experts' products (experts_gemm_fp8.cuh) share, and gemm_fp8 itself.
//
// Tokens are the row operand, so that a thread has few rows of x and few scales a group of columns. A block owns 128 rows of x by 256 packed
// rows at a time: two consumer warpgroups have 64 rows of x each, by all 256 in two halves. TALL, it owns 256 rows of x by 128 packed rows,
// and the halves are those of a warpgroup's 128 rows of x: half the copies of 16 bytes, 5 to 14 % less time. GATED, a gate's scales and its up's
// are two numbers a row, and four rows a thread have no registers for them; experts have few rows each. Either way bits are the same.
// K goes by panels of 128 columns through a ring of STAGES panels of both operands:
//   full[stage]: completes when all copying warps have seen their bytes arrive, and a bulk copy's have;
//   empty[stage]: when every consumer warp has used them.
// Weights come from the packed tiles as they are: copying warps put each 16 bytes where the swizzle wants them, and x has its columns in the
// order of a unit.
//
// The tensor cores add products of e4m3 with about 14 bits, cut off (not f32's 24, whatever the type of the sums): over thousands of columns
// that would be seen. So they add 128 columns, and what comes of these is multiplied by the scales of the group and of the weights' block
// and added to the sums in f32 by the threads. While one warpgroup does that, the other's products run.
//
// Config:
//   FORMAT, SCALES   Format::FP8_E4M3 and ScaleForm::ROWS or BLOCK128. With BLOCK128 every 128 packed rows (GATED: 128 features) from a multiple
//                    of 128 on have one block's scale; row_scales as gemm.cuh
//   OUTPUTS, INPUTS, CAPACITY, EPILOGUE (STORE, ADD, ACTIVATED or GATED), ACTIVATION, BIAS, LIMIT   as gemm.cuh. INPUTS % 128 == 0, OUTPUTS % 8 == 0
//   STAGES           panels the ring holds
// Launch: block = GemmFp8<C>::THREADS, dynamic shared memory = SHARED_BYTES, grid = gemm_fp8_blocks<C>(multiprocessors), launch bounds (THREADS, 1).
#pragma once

#include "core/quantised.cuh"
#include "core/wgmma.cuh"
#include "products/gemm.cuh"

namespace monomorph {

template <class C, bool IS_TALL = C::EPILOGUE != Epilogue::GATED>
struct GemmFp8 {
    static constexpr bool TALL = IS_TALL;
    static_assert(!TALL || C::EPILOGUE != Epilogue::GATED, "registers hold no scales of a gate and its up");
    static_assert(C::FORMAT == Format::FP8_E4M3, "weights are e4m3");
    static_assert(C::SCALES == ScaleForm::ROWS || C::SCALES == ScaleForm::BLOCK128, "weights have scales of rows or of blocks");
    static_assert(C::LIMIT != Limit::NONE, "the step bounds the rows");
    static_assert(C::INPUTS % GROUP_COLUMNS == 0 && C::OUTPUTS % 8 == 0, "whole groups of columns, and tiles of rows");
    static_assert(C::EPILOGUE != Epilogue::SUM, "no sum over ranks");
    static constexpr bool GATED = C::EPILOGUE == Epilogue::GATED, BLOCK_SCALED = C::SCALES == ScaleForm::BLOCK128;
    static constexpr int CONSUMER_WARPS = 8, COPYING_WARPS = 4, THREADS = 32 * (CONSUMER_WARPS + COPYING_WARPS);
    // Work.
    static constexpr int ROWS = TALL ? 256 : 128, WARPGROUP_ROWS = ROWS / 2;  // of x, of a block and of its consumers
    static constexpr int THREAD_ROWS = TALL ? 4 : 2;                          // row 8 (r % 2) + 64 (r / 2) of the thread's first
    static constexpr int TILES = C::OUTPUTS / 8 * (GATED ? 2 : 1);            // of eight packed rows
    static constexpr int BLOCK_TILES = TALL ? 16 : 32, ROW_BLOCKS = ceil_div(TILES, BLOCK_TILES);
    static constexpr int TOKEN_BLOCKS = ceil_div(C::CAPACITY, ROWS);
    // K.
    static constexpr int PANELS = C::INPUTS / GROUP_COLUMNS, UNITS = 2 * PANELS;
    // Shared memory: stages of x and then weights, barriers.
    static constexpr int X_BYTES = ROWS * GROUP_COLUMNS, STAGE_BYTES = X_BYTES + BLOCK_TILES * 8 * GROUP_COLUMNS;
    static constexpr int BARRIERS_OFFSET = C::STAGES * STAGE_BYTES;
    static constexpr int SHARED_BYTES = BARRIERS_OFFSET + 16 * C::STAGES;
    static_assert(SHARED_BYTES <= 227 * 1024, "the ring does not fit shared memory");
};

template <class C>
constexpr int gemm_fp8_blocks(int multiprocessors) {
    const int work = GemmFp8<C>::ROW_BLOCKS * GemmFp8<C>::TOKEN_BLOCKS;
    return work < multiprocessors ? work : multiprocessors;
}

// Which rows of weights and of x a piece of work is, in the order of GemmWork.
template <class C>
struct Fp8Work {
    int row_block, token_block;
    __device__ __forceinline__ Fp8Work(int piece, int token_blocks) {
        constexpr int GROUP = 256 / GemmFp8<C>::BLOCK_TILES;   // 2,048 packed rows
        const int group = piece / (GROUP * token_blocks), within = piece - group * GROUP * token_blocks;
        const int height = min(GROUP, GemmFp8<C>::ROW_BLOCKS - group * GROUP);
        token_block = within / height;
        row_block = group * GROUP + within % height;
    }
};

// What the copying warps do in common: weights, and telling the consumers. A warp waits for its own copies before it says that they are
// there, LAG panels after it asked for them: wgmma reads by way of the async proxy, and only who has seen the bytes arrive can hand them over.
template <class C, class S>
struct Fp8Copier {
    static constexpr int LAG = C::STAGES - 2;
    static_assert(C::STAGES >= 3, "a stage is announced before its place in the ring is wanted again");

    char* ring;
    Barrier *full, *empty;
    int warp, lane;  // of the copying warps
    RingPosition<C::STAGES> at, announced;
    int unannounced = 0;

    __device__ __forceinline__ char* stage() const { return ring + at.stage * S::STAGE_BYTES; }

    // A warp has a quarter of the block's tiles: half a tile at a time, eight lanes a row.
    __device__ __forceinline__ void weights(const char* codes, int first_tile, int panel) const {
        constexpr int OWN = S::BLOCK_TILES / S::COPYING_WARPS;
        const int row = lane / 8, chunk = lane % 8, first = first_tile + warp * OWN;
        const char* from = codes + (size_t(first) * S::UNITS + 2 * panel) * UNIT_BYTES + chunk / 4 * UNIT_BYTES + row * 64 + chunk % 4 * 16;
        const unsigned to = shared_address(stage()) + S::X_BYTES + warp * OWN * 8 * GROUP_COLUMNS;
#pragma unroll
        for (int tile = 0; tile < OWN; tile++) {
            if (S::TILES % S::BLOCK_TILES != 0 && first + tile >= S::TILES) break;
#pragma unroll
            for (int half = 0; half < 2; half++) {
                const int own = half * 4 + row;
                copy_16(to + tile * 8 * GROUP_COLUMNS + own * GROUP_COLUMNS + (chunk ^ own) * 16, from + size_t(tile) * S::UNITS * UNIT_BYTES + half * 256);
            }
        }
    }

    // Rows of x that stand side by side, from `row` on; one lane of all copying warps.
    __device__ __forceinline__ void rows(const char* x, int capacity, int row, int count, int panel) const {
        barrier_expect(full + at.stage, count * GROUP_COLUMNS);
        bulk_copy(stage(), x + (size_t(panel) * capacity + row) * GROUP_COLUMNS, count * GROUP_COLUMNS, full + at.stage);
    }

    __device__ __forceinline__ void announce() {
        fence_async_shared();
        warp_arrive(full + announced.stage, lane);
        announced.advance();
    }
    __device__ __forceinline__ void begin_panel() const { barrier_wait(empty + at.stage, at.parity ^ 1); }
    __device__ __forceinline__ void end_panel() {
        copy_commit();
        at.advance();
        if (unannounced == LAG) {
            copy_wait<LAG>();
            announce();
        } else {
            unannounced++;
        }
    }
    __device__ __forceinline__ void end() {
        copy_wait<0>();
        for (; unannounced > 0; unannounced--) announce();
    }
};

// A consumer thread's place: lane (g, c) of the warp has rows g and g + 8 of the warp's 16 rows of x (TALL: of both halves), and of every tile
// of eight packed rows 2c and 2c + 1.
template <class C, class S>
struct Fp8Consumer {
    // Of half h of the packed rows (TALL: of x), tile n of 16: [h][4n + 2r + i] is of row g + 8r and packed row 2c + i of the tile.
    using Sums = float[2][64];
    char* ring;
    Barrier *full, *empty;
    int warpgroup, lane;
    RingPosition<C::STAGES> at;
    // Scales of the panel multiplied next: of the thread's rows of x, and of the weights' blocks: of the halves (TALL: of the one) or, GATED,
    // of gate and up.
    static constexpr int BLOCKS = S::TALL ? 1 : 2;
    float of_rows[S::THREAD_ROWS], of_blocks[BLOCKS];

    // `x_scales`: of the thread's row r in panel 0. `block_scales`: of the weights, tile by tile. `live`: whether the warpgroup has rows.
    template <class Scale>
    __device__ __forceinline__ void multiply(Sums& sums, int row_block, const char* block_scales, bool live, const Scale& x_scale) {
        const float* scales[BLOCKS];
#pragma unroll
        for (int p = 0; p < BLOCKS; p++) {
            const int tile = row_block * S::BLOCK_TILES + (S::GATED ? p : p * 16);
            scales[p] = reinterpret_cast<const float*>(block_scales) + size_t(min(tile, S::TILES - 1)) * S::PANELS;
        }
        const auto load = [&](int panel) {
#pragma unroll
            for (int r = 0; r < S::THREAD_ROWS; r++) of_rows[r] = x_scale(r, panel);
#pragma unroll
            for (int p = 0; p < BLOCKS; p++)
                if constexpr (S::BLOCK_SCALED) of_blocks[p] = load_constant(scales[p] + panel);
        };
#pragma unroll
        for (int half = 0; half < 2; half++)
#pragma unroll
            for (int i = 0; i < 64; i++) sums[half][i] = 0.0f;
        if (live) load(0);
#pragma unroll 1
        for (int panel = 0; panel < S::PANELS; panel++) {
            barrier_wait(full + at.stage, at.parity);
            if (live) {
                const unsigned stage = shared_address(ring) + at.stage * S::STAGE_BYTES;
                const uint64_t rows = wgmma_descriptor(stage + warpgroup * S::WARPGROUP_ROWS * GROUP_COLUMNS), tiles = wgmma_descriptor(stage + S::X_BYTES);
                float factor[S::THREAD_ROWS][BLOCKS];   // of row r; of half or part p
#pragma unroll
                for (int half = 0; half < 2; half++) {
                    const uint64_t own_rows = wgmma_further(rows, S::TALL ? half * 64 * GROUP_COLUMNS : 0);
                    const uint64_t own_tiles = wgmma_further(tiles, S::TALL ? 0 : half * 128 * GROUP_COLUMNS);
                    float part[64];
                    wgmma_fence();
#pragma unroll
                    for (int k = 0; k < 4; k++) multiply_e4m3(part, own_rows + 2 * k, own_tiles + 2 * k, k > 0);
                    wgmma_commit();
                    if (half == 0) {
#pragma unroll
                        for (int r = 0; r < S::THREAD_ROWS; r++)
#pragma unroll
                            for (int p = 0; p < BLOCKS; p++) factor[r][p] = S::BLOCK_SCALED ? of_rows[r] * of_blocks[p] : of_rows[r];
                        if (panel + 1 < S::PANELS) load(panel + 1);
                    }
                    wgmma_wait<0>();
                    if (half == 1) release();
#pragma unroll
                    for (int i = 0; i < 64; i++) {
                        pin(part[i]);
                        const int r = i / 2 % 2 + (S::TALL ? 2 * half : 0), p = S::GATED ? i / 4 % 2 : S::TALL ? 0 : half;
                        sums[half][i] = fmaf(part[i], factor[r][p], sums[half][i]);
                    }
                }
            } else {
                release();
            }
            at.advance();
        }
    }

    __device__ __forceinline__ void release() const { warp_arrive(empty + at.stage, lane); }
};

// What becomes of a block's sums.
template <class C, class S>
struct Fp8Epilogue {
    using Sums = typename Fp8Consumer<C, S>::Sums;
    const float *row_scales, *bias, *up_bias;
    int lane;

    // Two neighbouring features of tile `tile` of eight packed rows, finished but for the activation; `biases` of its outputs.
    __device__ __forceinline__ float2 finished(float first, float second, int tile, int feature, const float* biases) const {
        const float2 scale = load_pair(row_scales + tile * 8 + lane % 4 * 2);
        float2 v = make_float2(first * scale.x, second * scale.y);
        if constexpr (C::BIAS) {
            const float2 b = load_pair(biases + feature);
            v.x += b.x, v.y += b.y;
        }
        return v;
    }
    static __device__ __forceinline__ float2 load_pair(const float* from) { return make_float2(load_constant(from), load_constant(from + 1)); }

    // Features `feature` and + 1 of row r: of half h, tile n of 16 (GATED: a gate's; its up is the next).
    __device__ __forceinline__ float2 pair(const Sums& sums, int row_block, int h, int n, int r) const {
        const int tile = tile_of(row_block, h, n), feature = feature_of(row_block, h, n), at = 4 * n + 2 * r;
        float2 v = finished(sums[h][at], sums[h][at + 1], tile, feature, bias);
        if constexpr (S::GATED) {
            const float2 up = finished(sums[h][at + 4], sums[h][at + 5], tile + 1, feature, up_bias);
            v.x = activate<C::ACTIVATION, float>(v.x) * up.x, v.y = activate<C::ACTIVATION, float>(v.y) * up.y;
        } else if constexpr (C::EPILOGUE == Epilogue::ACTIVATED) {
            v.x = activate<C::ACTIVATION, float>(v.x), v.y = activate<C::ACTIVATION, float>(v.y);
        }
        return v;
    }
    __device__ __forceinline__ int feature_of(int row_block, int h, int n) const {
        const int tile = tile_of(row_block, h, n);
        return (S::GATED ? tile / 2 : tile) * 8 + lane % 4 * 2;
    }
    static __device__ __forceinline__ int tile_of(int row_block, int h, int n) { return row_block * S::BLOCK_TILES + (S::TALL ? 0 : h * 16) + n; }
    static constexpr int EVERY = S::GATED ? 2 : 1;   // tile of packed rows begins features

    // In f32, those of the thread's rows that exist, at `out` (of feature 0 of its first row).
    __device__ __forceinline__ void write(const Sums& sums, int row_block, float* out, const bool (&exists)[S::THREAD_ROWS]) const {
#pragma unroll
        for (int n = 0; n < 16; n += EVERY) {
            // All of a tile before the first addition, which loads of scales do not pass: they would be waited for one by one.
            float2 values[2][2];
#pragma unroll
            for (int h = 0; h < 2; h++)
#pragma unroll
                for (int r = 0; r < 2; r++)
                    if (S::TILES % S::BLOCK_TILES == 0 || feature_of(row_block, h, n) < C::OUTPUTS) values[h][r] = pair(sums, row_block, h, n, r);
#pragma unroll
            for (int h = 0; h < 2; h++) {
                const int feature = feature_of(row_block, h, n);
                if (S::TILES % S::BLOCK_TILES != 0 && feature >= C::OUTPUTS) continue;
#pragma unroll
                for (int r = 0; r < 2; r++) {
                    float2* to = reinterpret_cast<float2*>(out + size_t((S::TALL ? 64 * h : 0) + 8 * r) * C::OUTPUTS + feature);
                    if (!exists[S::TALL ? 2 * h + r : r]) continue;
                    if constexpr (C::EPILOGUE == Epilogue::ADD) add_global(to, values[h][r]);   // one addition an element in a launch: no order to depend on
                    else *to = values[h][r];
                }
            }
        }
    }
};

// Launch: see above.
template <class C>
__device__ __forceinline__ void gemm_fp8(const Step* step, const void* x, const void* codes, const void* scales, const float* row_scales, const float* bias,
                                         const float* up_bias, float* out) {
    using S = GemmFp8<C>;
    MONOMORPH_DYNAMIC_SHARED(gemm_shared, 1024);
    char* const shared = reinterpret_cast<char*>(gemm_shared);
    launch_dependents();
    Barrier* full = reinterpret_cast<Barrier*>(shared + S::BARRIERS_OFFSET);
    Barrier* empty = full + C::STAGES;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    if (threadIdx.x == 0) {
        if (shared_address(shared) % 1024 != 0) __trap();  // the swizzle is a function of the address
        for (int i = 0; i < C::STAGES; i++) {
            barrier_init(full + i, S::COPYING_WARPS * WARP_ARRIVALS + 1);
            barrier_init(empty + i, S::CONSUMER_WARPS * WARP_ARRIVALS);
        }
        barrier_init_fence();
    }
    __syncthreads();
    const char* const own = static_cast<const char*>(x);
    if (warp >= S::CONSUMER_WARPS) {
        registers_release<40>();
        Fp8Copier<C, S> copier = {shared, full, empty, warp - S::CONSUMER_WARPS, lane};
        wait_for_predecessors();
        const int rows = gemm_rows<C>(step), token_blocks = ceil_div(rows, S::ROWS);
        for (int piece = blockIdx.x; piece < S::ROW_BLOCKS * token_blocks; piece += gridDim.x) {
            const Fp8Work<C> work(piece, token_blocks);
            const int first = work.token_block * S::ROWS;
            for (int panel = 0; panel < S::PANELS; panel++) {
                copier.begin_panel();
                if (copier.warp == 0 && lane == 0) copier.rows(own, C::CAPACITY, first, min(S::ROWS, rows - first), panel);
                copier.weights(static_cast<const char*>(codes), work.row_block * S::BLOCK_TILES, panel);
                copier.end_panel();
            }
        }
        copier.end();
        return;
    }
    registers_acquire<232>();
    const int warpgroup = warp / 4, row = warpgroup * S::WARPGROUP_ROWS + warp % 4 * 16 + lane / 4;   // the thread's first
    const auto row_of = [&](int r) { return row + r / 2 * 64 + r % 2 * 8; };
    Fp8Consumer<C, S> consumer = {shared, full, empty, warpgroup, lane};
    const Fp8Epilogue<C, S> epilogue = {row_scales, bias, up_bias, lane};
    wait_for_predecessors();
    const int rows = gemm_rows<C>(step), token_blocks = ceil_div(rows, S::ROWS);
    const float* const x_scales = reinterpret_cast<const float*>(own + quantised_scales_at(C::CAPACITY, C::INPUTS));
    typename Fp8Consumer<C, S>::Sums sums;
    for (int piece = blockIdx.x; piece < S::ROW_BLOCKS * token_blocks; piece += gridDim.x) {
        const Fp8Work<C> work(piece, token_blocks);
        const int first = work.token_block * S::ROWS;
        consumer.multiply(sums, work.row_block, static_cast<const char*>(scales), first + warpgroup * S::WARPGROUP_ROWS < rows, [&](int r, int panel) {
            return load_activation(x_scales + size_t(panel) * C::CAPACITY + min(first + row_of(r), rows - 1));
        });
        bool exists[S::THREAD_ROWS];
#pragma unroll
        for (int r = 0; r < S::THREAD_ROWS; r++) exists[r] = first + row_of(r) < rows;
        epilogue.write(sums, work.row_block, out + size_t(first + row) * C::OUTPUTS, exists);
    }
}

}  // namespace monomorph
