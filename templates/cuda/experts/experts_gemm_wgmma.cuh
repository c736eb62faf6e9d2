// Grouped products of experts on sm_90a: experts_gemm.cuh with wgmma.
#pragma once

#include "experts/experts_gemm.cuh"
#include "products/gemm_wgmma.cuh"

namespace monomorph {

template <class C>
struct ExpertsWgmma : ExpertShape<C> {
    static constexpr bool MOVES_REGISTERS = GemmWgmma<C>::MOVES_REGISTERS;
    static constexpr int THREADS = GemmWgmma<C>::THREADS;
    // The warpgroup that gives its registers away is there anyway.
    static constexpr int COPIERS = MOVES_REGISTERS && C::GATHER ? 4 : 1;
};

// Launch: block THREADS, grid expert_blocks<C>(multiprocessors), dynamic shared memory SHARED_BYTES.
template <class C>
__device__ __forceinline__ void experts_gemm_wgmma(const char* lists, const void* x, const void* codes, const void* scales,
                                                   const float* row_scales, void* out) {
    using S = ExpertsWgmma<C>;
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
        if (shared_address(shared) % 1024 != 0) __trap();  // the swizzle is a function of the address
        for (int i = 0; i < C::STAGES; i++) {
            barrier_init(full + i, Copier::ARRIVALS);
            barrier_init(empty + i, S::CONSUMER_WARPS);
        }
        barrier_init_fence();
    }
    __syncthreads();
    if (warp >= S::CONSUMER_WARPS) {
        if constexpr (S::MOVES_REGISTERS) registers_release<40>();
        if (warp < S::CONSUMER_WARPS + S::COPIERS) {
            Copier{lists, static_cast<const char*>(x), shared, full, empty, warp - S::CONSUMER_WARPS, lane}.run();
        }
        return;
    }
    if constexpr (S::MOVES_REGISTERS) registers_acquire<232>();
    const int warpgroup = warp / 4;
    const GemmPlace<C> place(0);
    GemmArguments current = {};
    current.out = static_cast<float*>(out);
    current.unscale = gemm_unscale<C>(x, C::X_ROWS);
    wait_for_predecessors();
    GemmWeights<G> weights(current, planes, place, lists, shared + S::WEIGHTS_OFFSET, warpgroup, warp % 4, lane);
    GemmWgmmaConsumer<G> consumer = {weights, shared, full, empty, lane};
    ExpertEpilogue<C> epilogue(current, lists, reinterpret_cast<float*>(shared + S::SUMS_OFFSET), place, warpgroup, warp % 4, lane);
    typename GemmEpilogue<C>::Sums sums;
    expert_products<C>(lists, planes, current, weights, epilogue, sums, [&](int row_block) { consumer.multiply(sums, row_block, 0, S::STEPS); });
}

}  // namespace monomorph
