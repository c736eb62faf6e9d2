// Tensor-core products of many rows on sm_90a: gemm.cuh with wgmma, weights in registers, tokens in swizzled shared memory.
//
// While the products of a panel of 64 columns run, a warp loads and decodes its fragments of the next one into a second set of
// registers. With 256 tokens the sums take 128 registers a thread, so the copying warp gives most of its registers away.
#pragma once

#include "core/wgmma.cuh"
#include "products/gemm_copy.cuh"
#include "products/gemm_epilogue.cuh"
#include "products/gemm_weights.cuh"

namespace monomorph {

template <class C>
struct GemmWgmma : GemmShape<C> {
    using S = GemmShape<C>;
    // Registers move between warpgroups only, so the copying warp then has three idle ones beside it: 40 and 232 of 168 a thread.
    static constexpr bool MOVES_REGISTERS = C::TOKENS * C::STRIPS == 256;
    static constexpr int THREADS = MOVES_REGISTERS ? 384 : 288;
    static_assert(C::RESIDENT == 1 || C::TOKENS * C::STRIPS < 128, "the sums do not fit the registers of two blocks");
    static_assert(C::TOKENS * C::STRIPS <= 256, "the sums do not fit the registers");
    static_assert(S::SHARED_BYTES <= (C::RESIDENT == 1 ? 227 : 113) * 1024, "the ring does not fit shared memory");
};

template <class C>
struct GemmWgmmaConsumer {
    using S = GemmShape<C>;
    using Sums = typename GemmEpilogue<C>::Sums;
    GemmWeights<C>& weights;
    char* ring;
    Barrier *full, *empty;
    int lane;
    RingPosition<C::STAGES> at;
    int finished_stage = -1;                      // read by products still under way
    // Of the panel being decoded, and of the one being multiplied. With two blocks a multiprocessor there are registers for one
    // panel and the codes of the next only; other warps work meanwhile. (Codes of 16 bits are fragments already.)
    static constexpr int SETS = C::RESIDENT == 1 || Unit<C::FORMAT>::BITS == 16 ? 2 : 1;
    PanelFragments fragments[SETS][C::STRIPS];
    typename GemmWeights<C>::Raw raw;  // codes of the panel decoded next; one set: read while the products before it run

    __device__ __forceinline__ void release() {
        if (finished_stage < 0) return;
        if constexpr (C::MULTICAST > 1) {
            const unsigned first = cluster_rank() / C::MULTICAST * C::MULTICAST;
            if (lane < C::MULTICAST) barrier_arrive_at(empty + finished_stage, first + lane);
        } else {
            if (lane == 0) barrier_arrive(empty + finished_stage);
        }
    }

    // After all but the last PENDING panels' products: their fragments, and at a step's first panel the stage before, are free.
    template <int PENDING>
    __device__ __forceinline__ void products_done(int panel) {
        wgmma_wait<PENDING>();
        if (panel == 0) release();
    }

    // One step of K. PARITY: which fragments its first panel uses. PANELS: of the step.
    template <int PARITY, int PANELS>
    __device__ __forceinline__ void step(Sums& sums, int step, int last_step, bool& accumulate) {
        const char* stage = ring + at.stage * S::STAGE_BYTES;
#pragma unroll
        for (int panel = 0; panel < PANELS; panel++) {
            PanelFragments(&own)[C::STRIPS] = fragments[(PARITY + panel) % SETS];
            if constexpr (SETS == 1) {
                products_done<0>(panel);
            } else {
                if (panel == 0) weights.await_step();
                weights.read(panel, raw);
            }
#pragma unroll
            for (int s = 0; s < C::STRIPS; s++) weights.decode(raw, s, step * C::STAGE_PANELS + panel, own[s]);
            if (panel == 0) barrier_wait(full + at.stage, at.parity);
            const uint64_t tokens = wgmma_descriptor(shared_address(stage + panel * C::TOKENS * STAGED_ROW_BYTES));
            wgmma_fence();
#pragma unroll
            for (int k = 0; k < 4; k++) {
#pragma unroll
                for (int s = 0; s < C::STRIPS; s++) {
                    WgmmaShape<C::TOKENS>::multiply(sums[s], own[s][k], tokens + 2 * k, accumulate || k > 0);
                }
            }
            wgmma_commit();
            accumulate = true;
            if constexpr (SETS == 2) {
                products_done<1>(panel);
            } else if (panel + 1 < PANELS) {
                weights.read(panel + 1, raw);
            } else if (step + 1 < last_step) {
                weights.leave_step();
                weights.await_step();
                weights.read(0, raw);
            }
            if (panel == 0) finished_stage = at.stage;
        }
        if (SETS == 2 || step + 1 == last_step) weights.leave_step();
        at.advance();
    }

    __device__ __forceinline__ void multiply(Sums& sums, int row_block, int first_step, int last_step) {
        bool accumulate = false;
        weights.begin_product(row_block * S::BLOCK_TILES + weights.first_tile, first_step);
        if constexpr (SETS == 1) {
            weights.await_step();
            weights.read(0, raw);
        }
        // The last step of K may be a part of one.
        constexpr int REST = S::PANELS % C::STAGE_PANELS;
        const int whole = REST != 0 && last_step == S::STEPS ? last_step - 1 : last_step;
        int k = first_step;
        for (; k + 1 < whole; k += 2) {
            step<0, C::STAGE_PANELS>(sums, k, last_step, accumulate);
            step<C::STAGE_PANELS % 2, C::STAGE_PANELS>(sums, k + 1, last_step, accumulate);
        }
        // Fragments written on two paths into one product would make the compiler wait after every product: wait here.
        if (k < whole) {
            wgmma_wait<0>();
            step<0, C::STAGE_PANELS>(sums, k, last_step, accumulate);
        }
        if constexpr (REST != 0) {
            if (whole < last_step) {
                wgmma_wait<0>();
                step<0, REST>(sums, whole, last_step, accumulate);
            }
        }
        wgmma_wait<0>();
        release();
        finished_stage = -1;
#pragma unroll
        for (int s = 0; s < C::STRIPS; s++) {
#pragma unroll
            for (int i = 0; i < C::TOKENS / 2; i++) pin(sums[s][i]);
        }
    }
};

template <class C>
__device__ __forceinline__ void gemm_wgmma(const Step* step, const void* x, const void* codes, const void* scales, const float* row_scales,
                                           const float* bias, const float* up_bias, float* out, World* world = nullptr, float* own = nullptr, float* parts = nullptr) {
    using S = GemmWgmma<C>;
    MONOMORPH_DYNAMIC_SHARED(gemm_shared, 1024);
    char* const shared = reinterpret_cast<char*>(gemm_shared);
    launch_dependents();
    const GemmArguments arguments = {step, static_cast<const char*>(x), gemm_unscale<C>(x, C::CAPACITY), static_cast<const char*>(codes),
                                     static_cast<const char*>(scales), row_scales, bias, up_bias, out, world, own, parts};
    Barrier* full = reinterpret_cast<Barrier*>(shared + S::BARRIERS_OFFSET);
    Barrier* empty = full + C::STAGES;
    const GemmPlace<C> place(S::CLUSTER > 1 ? cluster_rank() : 0);
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    if (threadIdx.x == 0) {
        if (shared_address(shared) % 1024 != 0) __trap();  // the swizzle is a function of the address
        for (int i = 0; i < C::STAGES; i++) {
            barrier_init(full + i, 1);
            barrier_init(empty + i, S::CONSUMER_WARPS * C::MULTICAST);
        }
        barrier_init_fence();
    }
    if constexpr (S::CLUSTER > 1) {
        cluster_meet();  // no block multicasts into barriers that are not there yet
    } else {
        __syncthreads();
    }

    if (warp >= S::CONSUMER_WARPS) {
        if constexpr (S::MOVES_REGISTERS) registers_release<40>();
        if (warp == S::CONSUMER_WARPS) {
            GemmCopier<C>{arguments, shared, full, empty, place, lane}.run();
        }
        if constexpr (C::SPLIT > 1) cluster_sync();
    } else {
        if constexpr (S::MOVES_REGISTERS) registers_acquire<232>();
        const int warpgroup = warp / 4;
        GemmWeights<C> weights(arguments, place, shared + S::WEIGHTS_OFFSET, warpgroup, warp % 4, lane);
        GemmWgmmaConsumer<C> consumer = {weights, shared, full, empty, lane};
        GemmEpilogue<C> epilogue = {arguments, reinterpret_cast<float*>(shared + S::SUMS_OFFSET), place, warpgroup, warp % 4, lane};
        if constexpr (S::ONE_TOKEN_BLOCK) weights.begin(1);
        wait_for_predecessors();
        const int rows = gemm_rows<C>(step);
        const int token_blocks = ceil_div(rows, C::TOKENS);
        if constexpr (!S::ONE_TOKEN_BLOCK) weights.begin(token_blocks);
        typename GemmEpilogue<C>::Sums sums;
        if constexpr (C::SPLIT > 1) {
            const GemmWork<C> work(place.cluster, 1, place.row_part);
            consumer.multiply(sums, work.row_block, place.first_step, place.last_step);
            named_barrier(3, 32 * S::CONSUMER_WARPS);
            epilogue.leave(sums);
            cluster_sync();
            epilogue.ranks.begin();
            epilogue.gather(work.row_block, rows);
            epilogue.ranks.add(epilogue, work.row_block, 0, rows);
        } else if constexpr (EVEN<C>) {
            const int end = GemmCut<C>::first(place.cluster + 1, place.clusters);
            for (int at = GemmCut<C>::first(place.cluster, place.clusters); at < end;) {
                const int row_block = at / S::STEPS, first = at % S::STEPS, last = least(S::STEPS, first + end - at);
                at += last - first;
                if (first == 0) epilogue.begin(0, rows);
                consumer.multiply(sums, row_block, first, last);
                if (first > 0) {
                    epilogue.leave_part(sums);
                } else {
                    if (last < S::STEPS) epilogue.add_parts(sums, row_block);
                    epilogue.run(sums, row_block, 0, rows);
                }
            }
        } else {
            for (int piece = place.cluster; piece < gemm_work<C>(token_blocks); piece += place.clusters) {
                const GemmWork<C> work(piece, token_blocks, place.row_part);
                epilogue.begin(work.token_block * C::TOKENS, rows);
                consumer.multiply(sums, work.row_block, 0, S::STEPS);
                if (piece == place.cluster) epilogue.ranks.begin();
                epilogue.run(sums, work.row_block, work.token_block * C::TOKENS, rows);
                epilogue.ranks.add(epilogue, work.row_block, work.token_block * C::TOKENS, rows);
            }
        }
    }
    // No block leaves while another may still read its sums, multicast to it or arrive at its barriers.
    if constexpr (S::CLUSTER > 1) cluster_meet();
}

}  // namespace monomorph
