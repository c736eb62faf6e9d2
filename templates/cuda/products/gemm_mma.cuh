// Tensor-core products of many rows without wgmma (sm_121a; runs on any card with bulk copies): gemm.cuh with mma.m16n8k16.
//
// A warp multiplies its 16 rows of each strip with all tokens of the block: fragments of the weights as in gemm_wgmma, of the
// tokens by ldmatrix from the swizzled panels (eight rows of 128 bytes, chunks exchanged: no bank conflicts).
#pragma once

#include "core/mma.cuh"
#include "products/gemm_copy.cuh"
#include "products/gemm_epilogue.cuh"
#include "products/gemm_weights.cuh"

namespace monomorph {

template <class C>
struct GemmMma : GemmShape<C> {
    using S = GemmShape<C>;
    static constexpr int THREADS = 288;
    static_assert(S::CLUSTER == 1, "clusters are for gemm_wgmma");
    static_assert(C::TOKENS * C::STRIPS <= 256, "the sums do not fit the registers");
    static_assert(S::SHARED_BYTES <= 99 * 1024, "the ring does not fit shared memory");
};

template <class C>
struct GemmMmaConsumer {
    using S = GemmShape<C>;
    using Sums = typename GemmEpilogue<C>::Sums;
    GemmWeights<C>& weights;
    char* ring;
    Barrier *full, *empty;
    int lane;
    RingPosition<C::STAGES> at;

    // Products of one panel. ldmatrix brings eight tokens x 32 columns: the column operand of two steps of 16.
    __device__ __forceinline__ void panel(Sums& sums, const char* tokens, const PanelFragments (&own)[C::STRIPS]) {
        const unsigned row = shared_address(tokens) + lane % 8 * STAGED_ROW_BYTES;
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const unsigned chunk = ((half * 4 + lane / 8) ^ (lane % 8)) * 16;
#pragma unroll
            for (int j = 0; j < C::TOKENS / 8; j++) {
                unsigned columns[4];
                ldmatrix_4(columns, row + j * 8 * STAGED_ROW_BYTES + chunk);
#pragma unroll
                for (int s = 0; s < C::STRIPS; s++) {
                    float(&d)[4] = *reinterpret_cast<float(*)[4]>(&sums[s][4 * j]);
                    const unsigned(&first)[4] = own[s][2 * half];
                    const unsigned(&second)[4] = own[s][2 * half + 1];
                    mma_f16(d, first[0], first[1], first[2], first[3], columns[0], columns[1]);
                    mma_f16(d, second[0], second[1], second[2], second[3], columns[2], columns[3]);
                }
            }
        }
    }

    __device__ __forceinline__ void multiply(Sums& sums, int row_block) {
#pragma unroll
        for (int s = 0; s < C::STRIPS; s++) {
#pragma unroll
            for (int i = 0; i < C::TOKENS / 2; i++) sums[s][i] = 0.0f;
        }
        weights.begin_product(row_block * S::BLOCK_TILES + weights.first_tile, 0);
        for (int step = 0; step < S::STEPS; step++) {
            const char* stage = ring + at.stage * S::STAGE_BYTES;
            weights.await_step();
#pragma unroll
            for (int p = 0; p < C::STAGE_PANELS; p++) {
                if (S::PANELS % C::STAGE_PANELS != 0 && step * C::STAGE_PANELS + p >= S::PANELS) break;
                typename GemmWeights<C>::Raw raw;
                PanelFragments own[C::STRIPS];
                weights.read(p, raw);
#pragma unroll
                for (int s = 0; s < C::STRIPS; s++) weights.decode(raw, s, step * C::STAGE_PANELS + p, own[s]);
                if (p == 0) barrier_wait(full + at.stage, at.parity);
                panel(sums, stage + p * C::TOKENS * STAGED_ROW_BYTES, own);
            }
            warp_arrive(empty + at.stage, lane);
            at.advance();
            weights.leave_step();
        }
    }
};

template <class C>
__device__ __forceinline__ void gemm_mma(const Step* step, const void* x, const void* codes, const void* scales, const float* row_scales,
                                         const float* bias, const float* up_bias, float* out, World* world = nullptr, float* own = nullptr) {
    using S = GemmMma<C>;
    MONOMORPH_DYNAMIC_SHARED(gemm_shared, 1024);
    char* const shared = reinterpret_cast<char*>(gemm_shared);
    launch_dependents();
    const GemmArguments arguments = {step, static_cast<const char*>(x), gemm_unscale<C>(x, C::CAPACITY), static_cast<const char*>(codes),
                                     static_cast<const char*>(scales), row_scales, bias, up_bias, out, world, own, nullptr};
    Barrier* full = reinterpret_cast<Barrier*>(shared + S::BARRIERS_OFFSET);
    Barrier* empty = full + C::STAGES;
    const GemmPlace<C> place(0);
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    if (threadIdx.x == 0) {
        for (int i = 0; i < C::STAGES; i++) {
            barrier_init(full + i, 1);
            barrier_init(empty + i, S::CONSUMER_WARPS * WARP_ARRIVALS);
        }
        barrier_init_fence();
    }
    __syncthreads();
    if (warp == S::CONSUMER_WARPS) {
        GemmCopier<C>{arguments, shared, full, empty, place, lane}.run();
        return;
    }
    const int warpgroup = warp / 4;
    GemmWeights<C> weights(arguments, place, shared + S::WEIGHTS_OFFSET, warpgroup, warp % 4, lane);
    GemmMmaConsumer<C> consumer = {weights, shared, full, empty, lane};
    GemmEpilogue<C> epilogue = {arguments, reinterpret_cast<float*>(shared + S::SUMS_OFFSET), place, warpgroup, warp % 4, lane};
    if constexpr (S::ONE_TOKEN_BLOCK) weights.begin(1);
    wait_for_predecessors();
    const int rows = gemm_rows<C>(step);
    const int token_blocks = ceil_div(rows, C::TOKENS);
    if constexpr (!S::ONE_TOKEN_BLOCK) weights.begin(token_blocks);
    typename GemmEpilogue<C>::Sums sums;
    for (int piece = place.cluster; piece < gemm_work<C>(token_blocks); piece += place.clusters) {
        const GemmWork<C> work(piece, token_blocks, 0);
        epilogue.begin(work.token_block * C::TOKENS, rows);
        consumer.multiply(sums, work.row_block);
        if (piece == place.cluster) epilogue.ranks.begin();
        epilogue.run(sums, work.row_block, work.token_block * C::TOKENS, rows);
        epilogue.ranks.add(epilogue, work.row_block, work.token_block * C::TOKENS, rows);
    }
}

}  // namespace monomorph
