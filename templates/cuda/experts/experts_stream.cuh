// The chosen experts for few tokens in one launch: what experts_stream_up.cuh and experts_stream_down.cuh do, one after the other, in the same blocks.
//
//   route (kernel before)   logits, the shared expert's inner row; fills `inner` with NOT_YET
//   up                      every block chooses, streams its granules and stores its part of `inner`, each value its own flag
//   down                    every block stages all of `inner` as it arrives, streams its tiles of all chosen experts and adds to the residual
//
// Between the two there is neither a launch nor a barrier of the grid: a block waits for the values that it reads and for nothing else. The rings stand
// side by side in shared memory, so that down's weights are asked for behind the last of up's, while products and the exchange go on; the shared
// expert's are there before the kernel's wait, and its product fills the time in which the others' values travel.
//
// All blocks must be on the card together, at most one a multiprocessor: blocks of the kernel behind begin when all of these have, and blocks of the
// kernels before end without them. The residual is also up's x: it is written by blocks that have met all of `inner`, hence after every block
// that had granules has staged its x.
//
// A warp of its own asks for first weights of what follows (the next layer's first matrix, or the head): the chain from logits to sums leaves memory
// idle most of its time, and what follows is bound by it.
//
// Config U as experts_stream_up.cuh says, D as experts_stream_down_shape.cuh says; both with the same rows, experts, consumer warps and blocks. And of U:
//     static constexpr int AHEAD;   // bytes of what follows that are asked for ahead
// Arguments: as of those two; following .. following_end: the weights that follow, or nothing; residual f32 [ROWS, OUTPUTS] is x of the one and residual of the other.
// world: of an epilogue that sums over ranks.
#pragma once

#include "core/ahead.cuh"
#include "experts/experts_stream_down.cuh"
#include "experts/experts_stream_up.cuh"

namespace monomorph {

template <class U, class D, class Epilogue = DownEpilogue<D>>
struct ExpertsStream {
    using Up = UpShape<U>;
    using Down = DownShape<D>;
    using Experts = typename Down::Experts;
    using Shared = typename Down::Shared;
    static constexpr int WARPS = Up::WARPS, THREADS = Up::THREADS + (U::AHEAD > 0 ? 32 : 0), ROWS = U::ROWS, ACTIVE = U::ACTIVE, SLOTS = ROWS * ACTIVE, WIDTH = U::WIDTH;
    static constexpr int DOWN_AT = round_up(Up::SHARED, 128), SHARED = DOWN_AT + Down::SHARED;
    static_assert(!Up::EXACT && !Down::EXACT && !FEW<U>, "16-bit products of one row or two");
    static_assert(U::BLOCKS == D::BLOCKS && WARPS == Down::WARPS && ROWS == D::ROWS && ACTIVE == D::ACTIVE && WIDTH == D::WIDTH, "one grid, one list");
    static_assert(WIDTH * ACTIVE * ROWS % 4 == 0, "the kernel before fills vectors");

    // Named barriers: 1 consumers, 2 choices, 3 the list and x, 4 what slots are multiplied by.
    __device__ __forceinline__ static void run(const Step* step, const float* norm, const float* logits, const float* shared_inner, const float* scale, const void* codes, const void* scales,
                                               const float* row_scales, const void* down_codes, const void* down_scales, const float* down_row_scales, const void* shared_codes,
                                               const void* shared_scales, const float* shared_row_scales, const void* following, const void* following_end, float* inner,
                                               float* residual, World* world = nullptr) {
        launch_dependents();
        MONOMORPH_DYNAMIC_SHARED(experts_shared, 128);
        const UpBlock<U> up{reinterpret_cast<char*>(experts_shared)};
        DownBlock<D> down{reinterpret_cast<char*>(experts_shared) + DOWN_AT};
        const int warp = up.warp, lane = up.lane;
        const int first = first_expert<U>(world);
        // A slot's weight, until the feeder has multiplied it by its expert's scale.
        const auto choose = [&](int row) {
            constexpr int ROUTED = Routed<U>::COUNT;
            const Choice choice = choose_experts<ROUTED, ACTIVE, U::RENORMALISE, false, Scored<U>>(logits + row * Scored<U>::Row::floats(ROUTED), lane);
            if (lane < ACTIVE) up.who.chosen[row * ACTIVE + lane] = choice.expert - first, down.factors[row * ACTIVE + lane] = choice.weight;
        };
        const auto rows_in_use = [&] { return U::LIMIT == Limit::NONE ? ROWS : least(step->tokens, ROWS); };   // after the wait only

        if (U::AHEAD > 0 && warp == WARPS + 1) {
            __syncthreads();
            if (lane == 0) fetch_ahead<U::AHEAD>(following, following_end, blockIdx.x, U::BLOCKS);
            wait_for_predecessors();
            return;
        }
        if (warp == WARPS) {
            DownFeeder<D> down_feeder = down.feeder(down_codes, down_scales, down_row_scales, shared_codes, shared_scales, up.who.experts);
            if (lane == 0) {
                up.init();
                down.init();
                barrier_init_fence();
                while (down_feeder.more_common() && down_feeder.filled < D::STAGES) down_feeder.fill();
            }
            up.who.clear(lane);
            __syncwarp();
            __syncthreads();
            wait_for_predecessors();
            if constexpr (ROWS == 1) choose(0);
            else named_barrier(2, Up::THREADS);
            __syncwarp();
            const int tokens = rows_in_use();
            up.who.gather(tokens, lane);
            named_barrier_arrive(3, Up::THREADS);
            constexpr int EACH = ceil_div(SLOTS, 32);
            float expert_scale[EACH];
#pragma unroll
            for (int i = 0; i < EACH; i++) expert_scale[i] = down.scale_of(down_row_scales, i * 32 + lane < tokens * ACTIVE && up.who.holds(i * 32 + lane) ? up.who.chosen[i * 32 + lane] : 0);
            down_feeder.count = up.who.count;
            UpFeeder<U> up_feeder = up.feeder(codes, scales);
            if (lane == 0) up.fill(up_feeder);
            __syncwarp();
#pragma unroll
            for (int i = 0; i < EACH; i++)
                if (i * 32 + lane < SLOTS) down.set_factor(i * 32 + lane, down.factors[i * 32 + lane], expert_scale[i]);
            __syncwarp();
            named_barrier_arrive(4, Up::THREADS);
            if (lane == 0) {
                up.refill(up_feeder);
                while (down_feeder.more()) down_feeder.fill_when_empty(down.empty);
            }
            return;
        }

        typename UpBlock<U>::Stage stager;
        stager.before_wait(norm, warp, lane);
        Epilogue epilogue(world);
        __syncthreads();
        wait_for_predecessors();
        epilogue.begin();
        if constexpr (ROWS > 1) {
            for (int row = warp; row < ROWS; row += WARPS) choose(row);
            named_barrier_arrive(2, Up::THREADS);
        }
        const int tokens = rows_in_use();
        const auto rows_of_x = up.stage(stager, residual, norm);
        if constexpr (Down::COMMON) {
#pragma unroll 1
            for (int t = warp; t < ROWS; t += WARPS) {
                DownRow<Shared> row;
                row.begin(shared_inner + t * D::SHARED_WIDTH, lane);
                row.finish(shared_inner + t * D::SHARED_WIDTH, down.shared + Down::SHARED_X_AT + t * Shared::ROW_BYTES, down.unscales + SLOTS + t, lane);
            }
        }
        named_barrier(3, Up::THREADS);
        up.multiply(rows_of_x, row_scales, [&](int at, float value) { store_arriving(inner + at, value); });

        epilogue.load(down.from, least(Down::GROUP_TILES, down.end - down.from), tokens, residual, scale, shared_row_scales);
        down.multiply_common();
#pragma unroll 1
        for (int slot = warp; slot < tokens * ACTIVE; slot += WARPS) {
            if (!up.who.holds(slot)) continue;   // no block of this rank writes it
            DownRow<Experts, true> row;
            row.begin(inner + slot * WIDTH, lane);
            row.finish(inner + slot * WIDTH, down.shared + Down::X_AT + slot * Experts::ROW_BYTES, down.unscales + slot, lane);
        }
        named_barrier(4, Up::THREADS);   // the staged rows, and what their sums are multiplied by
        down.multiply_all(up.who, epilogue, tokens, residual, scale, shared_row_scales);
    }
};

}  // namespace monomorph
