// Grouped products of experts without wgmma: experts_gemm.cuh with mma.m16n8k16 (every card). Up to 128 tokens a step the weights are
// the work, and work tiles of 8 or 16 rows take them through once.
#pragma once

#include "experts/experts_gemm.cuh"
#include "products/gemm_mma.cuh"

namespace monomorph {

template <class C>
struct ExpertsMma : ExpertShape<C> {
    static constexpr int THREADS = GemmMma<C>::THREADS, COPIERS = 1;
};

// Launch: block THREADS, grid expert_blocks<C>(multiprocessors), dynamic shared memory SHARED_BYTES.
template <class C>
__device__ __forceinline__ void experts_gemm_mma(const char* lists, const void* x, const void* codes, const void* scales, const float* row_scales,
                                                 void* out) {
    using S = ExpertsMma<C>;
    using G = Grouped<C>;
    using Copier = ExpertCopier<C, S::COPIERS>;
    MONOMORPH_DYNAMIC_SHARED(gemm_shared, 1024);
    char* const shared = reinterpret_cast<char*>(gemm_shared);
    launch_dependents();
    const ExpertPlanes planes = {static_cast<const char*>(codes), static_cast<const char*>(scales), row_scales};
    Barrier* full = reinterpret_cast<Barrier*>(shared + S::BARRIERS_OFFSET);
    Barrier* empty = full + C::STAGES;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    if (threadIdx.x == 0) {
        for (int i = 0; i < C::STAGES; i++) {
            barrier_init(full + i, Copier::ARRIVALS);
            barrier_init(empty + i, S::CONSUMER_WARPS * WARP_ARRIVALS);
        }
        barrier_init_fence();
    }
    __syncthreads();
    if (warp >= S::CONSUMER_WARPS) {
        Copier{lists, static_cast<const char*>(x), shared, full, empty, warp - S::CONSUMER_WARPS, lane}.run();
        return;
    }
    const int warpgroup = warp / 4;
    const GemmPlace<C> place(0);
    GemmArguments current = {};
    current.out = static_cast<float*>(out);
    current.unscale = gemm_unscale<C>(x, C::X_ROWS);
    wait_for_predecessors();
    GemmWeights<G> weights(current, planes, place, lists, shared + S::WEIGHTS_OFFSET, warpgroup, warp % 4, lane);
    GemmMmaConsumer<G> consumer = {weights, shared, full, empty, lane};
    ExpertEpilogue<C> epilogue(current, lists, reinterpret_cast<float*>(shared + S::SUMS_OFFSET), place, warpgroup, warp % 4, lane);
    typename GemmEpilogue<C>::Sums sums;
    expert_products<C>(lists, planes, current, weights, epilogue, sums, [&](int row_block) { consumer.multiply(sums, row_block); });
}

}  // namespace monomorph
