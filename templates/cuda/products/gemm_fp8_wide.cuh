// Experiment: tiles of 256 rows of x by 128 packed rows, in clusters of CL blocks that share x.
#pragma once
#include "core/cluster.cuh"
#include "products/gemm_fp8.cuh"
namespace monomorph {
template <class C, int CL>
struct GemmW {
    static constexpr bool GATED = C::EPILOGUE == Epilogue::GATED, BLOCK_SCALED = C::SCALES == ScaleForm::BLOCK128;
    static constexpr int CONSUMER_WARPS = 8, COPYING_WARPS = 4, THREADS = 384;
    static constexpr int ROWS = 256, TILES = C::OUTPUTS / 8 * (GATED ? 2 : 1), BLOCK_TILES = 16, ROW_BLOCKS = ceil_div(TILES, BLOCK_TILES);
    static constexpr int PANELS = C::INPUTS / GROUP_COLUMNS, UNITS = 2 * PANELS;
    static constexpr int X_BYTES = ROWS * GROUP_COLUMNS, STAGE_BYTES = X_BYTES + BLOCK_TILES * 8 * GROUP_COLUMNS;
    static constexpr int BARRIERS_OFFSET = C::STAGES * STAGE_BYTES, SHARED_BYTES = BARRIERS_OFFSET + 16 * C::STAGES;
    #ifndef LAGS
#define LAGS C::STAGES - 2
#endif
    static constexpr int LAG = LAGS;
    static_assert(ROW_BLOCKS % CL == 0);
};

template <class C, int CL>
__device__ __forceinline__ void gemm_fp8w(const Step* step, const void* x, const void* codes, const void* scales, const float* row_scales, const float* bias,
                                          const float* up_bias, float* out) {
    using S = GemmW<C, CL>;
    MONOMORPH_DYNAMIC_SHARED(gemm_shared, 1024);
    char* const ring = reinterpret_cast<char*>(gemm_shared);
    launch_dependents();
    Barrier* full = reinterpret_cast<Barrier*>(ring + S::BARRIERS_OFFSET);
    Barrier* empty = full + C::STAGES;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int rank = CL > 1 ? int(cluster_rank()) : 0;
    if (threadIdx.x == 0) {
        if (shared_address(ring) % 1024 != 0) __trap();
        for (int i = 0; i < C::STAGES; i++) {
            barrier_init(full + i, S::COPYING_WARPS * WARP_ARRIVALS + 1);
            barrier_init(empty + i, CL * S::CONSUMER_WARPS * WARP_ARRIVALS);
        }
        barrier_init_fence();
    }
    __syncthreads();
    if constexpr (CL > 1) cluster_sync();
    const char* const own = static_cast<const char*>(x);
    wait_for_predecessors();
    const int rows = gemm_rows<C>(step), token_blocks = ceil_div(rows, S::ROWS);
    constexpr int GROUP = 16 / CL, HIGH = S::ROW_BLOCKS / CL;
    const auto work = [&](int piece, int& row_block, int& token_block) {
        const int group = piece / (GROUP * token_blocks), within = piece - group * GROUP * token_blocks, height = min(GROUP, HIGH - group * GROUP);
        token_block = within / height;
        row_block = (group * GROUP + within % height) * CL + rank;
    };
    const int begin = blockIdx.x / CL, stride = gridDim.x / CL, pieces = HIGH * token_blocks;
    if (warp >= S::CONSUMER_WARPS) {
        registers_release<40>();
        const int copier = warp - S::CONSUMER_WARPS;
        RingPosition<C::STAGES> at, announced;
        int unannounced = 0;
        const auto announce = [&] {
            fence_async_shared();
            warp_arrive(full + announced.stage, lane);
            announced.advance();
        };
        for (int piece = begin; piece < pieces; piece += stride) {
            int row_block, token_block;
            work(piece, row_block, token_block);
            const int first = token_block * S::ROWS, count = min(S::ROWS, rows - first);
            for (int panel = 0; panel < S::PANELS; panel++) {
                barrier_wait(empty + at.stage, at.parity ^ 1);
                char* const stage = ring + at.stage * S::STAGE_BYTES;
                if (copier == 0 && lane == 0) {
                    #ifdef NO_X
                    barrier_arrive(full + at.stage);
#else
                    barrier_expect(full + at.stage, count * GROUP_COLUMNS);
                    const char* from = own + (size_t(panel) * C::CAPACITY + first) * GROUP_COLUMNS;
                    if constexpr (CL == 1) {
                        bulk_copy(stage, from, count * GROUP_COLUMNS, full + at.stage);
                    } else {
                        constexpr int PART = S::ROWS / CL;
                        const int part = min(PART, count - rank * PART);
                        if (part > 0) bulk_copy_multicast(stage + rank * PART * GROUP_COLUMNS, from + rank * PART * GROUP_COLUMNS, part * GROUP_COLUMNS, full + at.stage, (1 << CL) - 1);
                    }
#endif
                }
#ifndef NO_COPY
                {
                    constexpr int OWN = S::BLOCK_TILES / S::COPYING_WARPS;
                    const int row = lane / 8, chunk = lane % 8, first_tile = row_block * S::BLOCK_TILES + copier * OWN;
                    const char* from = static_cast<const char*>(codes) + (size_t(first_tile) * S::UNITS + 2 * panel) * UNIT_BYTES + chunk / 4 * UNIT_BYTES + row * 64 + chunk % 4 * 16;
                    const unsigned to = shared_address(stage) + S::X_BYTES + copier * OWN * 8 * GROUP_COLUMNS;
#pragma unroll
                    for (int tile = 0; tile < OWN; tile++) {
                        if (S::TILES % S::BLOCK_TILES != 0 && first_tile + tile >= S::TILES) break;
#pragma unroll
                        for (int half = 0; half < 2; half++) {
                            const int o = half * 4 + row;
                            copy_16(to + tile * 8 * GROUP_COLUMNS + o * GROUP_COLUMNS + (chunk ^ o) * 16, from + size_t(tile) * S::UNITS * UNIT_BYTES + half * 256);
                        }
                    }
                }
#endif
                copy_commit();
                at.advance();
                if (unannounced == S::LAG) {
                    copy_wait<S::LAG>();
                    announce();
                } else unannounced++;
            }
        }
        copy_wait<0>();
        for (; unannounced > 0; unannounced--) announce();
    } else {
        registers_acquire<232>();
        const int warpgroup = warp / 4, row = warpgroup * 128 + warp % 4 * 16 + lane / 4;
        RingPosition<C::STAGES> at;
        const float* const x_scales = reinterpret_cast<const float*>(own + quantised_scales_at(C::CAPACITY, C::INPUTS));
        float sums[2][64];
        const auto release = [&] {
            __syncwarp();
            if (WARP_ARRIVALS == 32 || lane == 0) {
                if constexpr (CL == 1) barrier_arrive(empty + at.stage);
                else for (int r = 0; r < CL; r++) barrier_arrive_at(empty + at.stage, r);
            }
        };
        for (int piece = begin; piece < pieces; piece += stride) {
            int row_block, token_block;
            work(piece, row_block, token_block);
            const int first = token_block * S::ROWS;
            const bool live = first + warpgroup * 128 < rows;
            const float* block_scales[2];
#pragma unroll
            for (int p = 0; p < 2; p++) block_scales[p] = reinterpret_cast<const float*>(scales) + size_t(min(row_block * S::BLOCK_TILES + (S::GATED ? p : 0), S::TILES - 1)) * S::PANELS;
            float of_rows[4], of_blocks[2];
            const auto load = [&](int panel) {
#pragma unroll
                for (int i = 0; i < 4; i++) of_rows[i] = load_activation(x_scales + size_t(panel) * C::CAPACITY + min(first + row + i / 2 * 64 + i % 2 * 8, rows - 1));
#pragma unroll
                for (int p = 0; p < (S::GATED ? 2 : 1); p++)
                    if constexpr (S::BLOCK_SCALED) of_blocks[p] = load_constant(block_scales[p] + panel);
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
                    const uint64_t tiles = wgmma_descriptor(stage + S::X_BYTES);
                    float factor[4][2];
#pragma unroll
                    for (int half = 0; half < 2; half++) {
                        const uint64_t of_x = wgmma_descriptor(stage + (warpgroup * 128 + half * 64) * GROUP_COLUMNS);
                        float part[64];
                        wgmma_fence();
#pragma unroll
                        for (int k = 0; k < 4; k++) multiply_e4m3(part, of_x + 2 * k, tiles + 2 * k, k > 0);
                        wgmma_commit();
                        if (half == 0) {
#pragma unroll
                            for (int r = 0; r < 4; r++)
#pragma unroll
                                for (int p = 0; p < (S::GATED ? 2 : 1); p++) factor[r][p] = S::BLOCK_SCALED ? of_rows[r] * of_blocks[p] : of_rows[r];
                            if (panel + 1 < S::PANELS) load(panel + 1);
                        }
                        wgmma_wait<0>();
                        if (half == 1) release();
#pragma unroll
                        for (int i = 0; i < 64; i++) {
#ifdef NO_SCALE
                            asm volatile("" :: "f"(part[i])); if (i % 16 != 0) continue;
#endif
                            pin(part[i]);
                            const int r = half * 2 + i / 2 % 2, p = S::GATED ? i / 4 % 2 : 0;
                            sums[half][i] = fmaf(part[i], factor[r][p], sums[half][i]);
                        }
                    }
                } else release();
                at.advance();
            }
            if (live) {
#pragma unroll
                for (int n = 0; n < 16; n += S::GATED ? 2 : 1) {
                    const int tile = row_block * S::BLOCK_TILES + n, feature = (S::GATED ? tile / 2 : tile) * 8 + lane % 4 * 2;
                    if (S::TILES % S::BLOCK_TILES != 0 && tile >= S::TILES) continue;
                    const float2 s0 = make_float2(load_constant(row_scales + tile * 8 + lane % 4 * 2), load_constant(row_scales + tile * 8 + lane % 4 * 2 + 1));
                    float2 s1 = s0;
                    if constexpr (S::GATED) s1 = make_float2(load_constant(row_scales + tile * 8 + 8 + lane % 4 * 2), load_constant(row_scales + tile * 8 + 9 + lane % 4 * 2));
#pragma unroll
                    for (int h = 0; h < 2; h++)
#pragma unroll
                        for (int r = 0; r < 2; r++) {
                            const int token = first + row + h * 64 + r * 8;
                            float2 v = make_float2(sums[h][4 * n + 2 * r] * s0.x, sums[h][4 * n + 2 * r + 1] * s0.y);
                            if constexpr (S::GATED) {
                                v.x = activate<C::ACTIVATION, float>(v.x) * (sums[h][4 * n + 4 + 2 * r] * s1.x);
                                v.y = activate<C::ACTIVATION, float>(v.y) * (sums[h][4 * n + 5 + 2 * r] * s1.y);
                            }
                            if (token >= rows) continue;
                            float2* to = reinterpret_cast<float2*>(out + size_t(token) * C::OUTPUTS + feature);
                            if constexpr (C::EPILOGUE == Epilogue::ADD) add_global(to, v);
                            else *to = v;
                        }
                }
            }
        }
    }
    if constexpr (CL > 1) cluster_sync();
}

template <class C, int CL>
__global__ void __launch_bounds__(384, 1) gemm_fp8w_kernel(const Step* step, const void* x, const void* codes, const void* scales, const float* row_scales, const float* bias, const float* up_bias, float* out) {
    gemm_fp8w<C, CL>(step, x, codes, scales, row_scales, bias, up_bias, out);
}
}  // namespace monomorph
