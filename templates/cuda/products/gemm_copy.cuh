// The copying warp of the tensor-core products (gemm.cuh): panels of x into shared memory.
#pragma once

#include "core/cluster.cuh"
#include "products/gemm_sum.cuh"

namespace monomorph {

template <class C>
struct GemmCopier {
    using S = GemmShape<C>;
    const GemmArguments& arguments;
    char* ring;
    Barrier* full;   // one arrival a phase, with the bytes it expects
    Barrier* empty;  // an arrival of each consumer warp of the blocks that share x
    const GemmPlace<C>& place;
    int lane;

    // Each lane fetches this block's share of a panel. `tokens`: rows of x from the block's first on.
    __device__ __forceinline__ void fetch(int first_token, int tokens, int step, int stage) {
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
        wait_for_predecessors();
        const int rows = S::ONE_TOKEN_BLOCK ? C::CAPACITY : gemm_rows<C>(arguments.step);
        const int token_blocks = ceil_div(rows, C::TOKENS);
        RingPosition<C::STAGES> at;
        if constexpr (EVEN<C>) {
            const int end = GemmCut<C>::first(place.cluster + 1, place.clusters);
            for (int step = GemmCut<C>::first(place.cluster, place.clusters); step < end; step++) {
                barrier_wait(empty + at.stage, at.parity ^ 1);
                fetch(0, min(C::TOKENS, rows), step % S::STEPS, at.stage);
                at.advance();
            }
            return;
        }
        // The step of the first piece of work that fills the ring, or its last.
        const int last_of_first = min(place.first_step + C::STAGES, place.last_step) - 1;
        for (int piece = place.cluster; piece < gemm_work<C>(token_blocks); piece += place.clusters) {
            const int first_token = GemmWork<C>(piece, token_blocks, place.row_part).token_block * C::TOKENS;
            const int tokens = min(C::TOKENS, rows - first_token);
            for (int step = place.first_step; step < place.last_step; step++) {
                barrier_wait(empty + at.stage, at.parity ^ 1);
                fetch(first_token, tokens, step, at.stage);
                at.advance();
                if (piece == place.cluster && step == last_of_first) GemmTurn<C>::tell(arguments, ring, lane);
            }
        }
        GemmTurn<C>::end(arguments, lane);
    }
};

}  // namespace monomorph
