// The copying warp of the tensor-core products (gemm.cuh).
#pragma once

#include "cluster.cuh"
#include "gemm.cuh"

namespace monomorph {

template <class C>
struct GemmCopier {
    using S = GemmShape<C>;
    static constexpr int SCALE_BYTES = Unit<C::FORMAT>::SCALE_BYTES;
    const GemmArguments& arguments;
    char* ring;
    Barrier* full;   // two arrivals a phase, each with the bytes it expects: weights, x
    Barrier* empty;  // an arrival of each consumer warp of the blocks that share x
    const GemmPlace<C>& place;
    int lane;
    unsigned long long policy;

    // Each lane fetches its tile of eight packed rows: `units` units of codes, and their block scales.
    __device__ __forceinline__ void weights(int row_block, int step, int stage) {
        const int first_unit = step * S::STAGE_UNITS;
        const int units = min(S::STAGE_UNITS, S::UNITS - first_unit);
        const int tiles = max(0, min(S::BLOCK_TILES, S::TILES - row_block * S::BLOCK_TILES));
        if (lane == 0) barrier_expect(full + stage, tiles * units * (UNIT_BYTES + SCALE_BYTES));
        __syncwarp();
        if (lane < tiles) {
            const size_t unit = size_t(row_block * S::BLOCK_TILES + lane) * S::UNITS + first_unit;
            char* codes = ring + stage * S::STAGE_BYTES + S::X_BYTES;
            fetch(codes + lane * S::TILE_BYTES, arguments.codes + unit * UNIT_BYTES, units * UNIT_BYTES, full + stage);
            if constexpr (SCALE_BYTES > 0) {
                fetch(codes + S::CODE_BYTES + lane * S::TILE_SCALE_BYTES, arguments.scales + unit * SCALE_BYTES,
                      units * SCALE_BYTES, full + stage);
            }
        }
    }

    // Weights that are read once need not stay in the second-level cache.
    __device__ __forceinline__ void fetch(char* to, const char* from, int bytes, Barrier* barrier) {
        if constexpr (S::ONE_TOKEN_BLOCK) {
            bulk_copy(to, from, bytes, barrier, policy);
        } else {
            bulk_copy(to, from, bytes, barrier);
        }
    }

    // Each lane fetches this block's share of a panel. `tokens`: rows of x from the block's first on.
    __device__ __forceinline__ void x(int first_token, int tokens, int step, int stage) {
        constexpr int SHARE = C::TOKENS / C::MULTICAST;
        const int panels = min(C::STAGE_PANELS, S::PANELS - step * C::STAGE_PANELS);
        const int share_start = place.row_part * SHARE;
        const int share = min(SHARE, tokens - share_start);
        if (lane == 0) barrier_expect(full + stage, tokens * panels * STAGED_ROW_BYTES);
        __syncwarp();
        if (lane < panels && share > 0) {
            const size_t row = size_t(step * C::STAGE_PANELS + lane) * C::CAPACITY + first_token + share_start;
            char* to = ring + stage * S::STAGE_BYTES + (lane * C::TOKENS + share_start) * STAGED_ROW_BYTES;
            const char* from = arguments.x + row * STAGED_ROW_BYTES;
            if constexpr (C::MULTICAST > 1) {
                const unsigned short blocks = ((1u << C::MULTICAST) - 1) << (place.split_part * C::MULTICAST);
                bulk_copy_multicast(to, from, share * STAGED_ROW_BYTES, full + stage, blocks);
            } else {
                bulk_copy(to, from, share * STAGED_ROW_BYTES, full + stage);
            }
        }
    }

    __device__ __forceinline__ void run() {
        int filled = 0;  // stages whose weights are under way before the predecessor has finished
        if constexpr (S::ONE_TOKEN_BLOCK) {
            if (place.cluster < gemm_work<C>(1)) {
                const GemmWork<C> work(place.cluster, 1, place.row_part);
                filled = min(C::STAGES, place.last_step - place.first_step);
                for (int i = 0; i < filled; i++) weights(work.row_block, place.first_step + i, i);
            }
        }
        wait_for_predecessors();
        const int rows = S::ONE_TOKEN_BLOCK ? C::CAPACITY : gemm_rows<C>(arguments.step);
        const int token_blocks = ceil_div(rows, C::TOKENS);
        RingPosition<C::STAGES> at;
        for (int piece = place.cluster; piece < gemm_work<C>(token_blocks); piece += place.clusters) {
            const GemmWork<C> work(piece, token_blocks, place.row_part);
            const int first_token = work.token_block * C::TOKENS;
            const int tokens = min(C::TOKENS, rows - first_token);
            for (int step = place.first_step; step < place.last_step; step++) {
                barrier_wait(empty + at.stage, at.parity ^ 1);
                if (filled > 0) {
                    filled--;
                } else {
                    weights(work.row_block, step, at.stage);
                }
                x(first_token, tokens, step, at.stage);
                at.advance();
            }
        }
    }
};

}  // namespace monomorph
