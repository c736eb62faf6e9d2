// What the tests and the bench of the tensor-core products share: configurations, kernels, packing.
#pragma once

#include "core/common.cuh"
#include "core/staged_host.cuh"

#include "kernels/gemm_mma.cuh"
#include "kernels/gemm_wgmma.cuh"
#include "kernels/gemm_wgmma_even.cuh"
#include "kernels/stage.cuh"

using namespace monomorph;

enum class Engine { WGMMA, MMA };

// Tiling: how the work is cut; the rest of a Config: what is computed.
template <Engine E, int T, int S, int PANELS, int W, int N, int M = 1, int K = 1, int R = 1>
struct Tiling {
    static constexpr Engine ENGINE = E;
    static constexpr int TOKENS = T, STRIPS = S, STAGE_PANELS = PANELS, WEIGHT_STAGES = W, STAGES = N, MULTICAST = M, SPLIT = K, RESIDENT = R;
};

// Among so many blocks.
template <class T, int BLOCKS>
struct Evened : T {
    static constexpr int EVEN = BLOCKS;
};

template <class T, Format F, ScaleForm SCALE_FORM, int N, int K, int ROWS, Epilogue E, bool HAS_BIAS = false,
          Activation A = Activation::SILU, Limit L = Limit::TOKENS>
struct Case : T {
    static constexpr Format FORMAT = F;
    static constexpr ScaleForm SCALES = SCALE_FORM;
    static constexpr int OUTPUTS = N, INPUTS = K, CAPACITY = ROWS;
    static constexpr Epilogue EPILOGUE = E;
    static constexpr bool BIAS = HAS_BIAS;
    static constexpr Activation ACTIVATION = A;
    static constexpr Limit LIMIT = L;
};

template <class C, Engine E = C::ENGINE>
struct Build {
    using Shape = GemmWgmma<C>;
    static constexpr auto* KERNEL = gemm_wgmma_kernel<C, Shape::THREADS, Shape::SHARED_BYTES, C::RESIDENT, Shape::CLUSTER>;
};
template <class C>
struct Build<C, Engine::MMA> {
    using Shape = GemmMma<C>;
    static constexpr auto* KERNEL = gemm_mma_kernel<C, Shape::THREADS, Shape::SHARED_BYTES, C::RESIDENT, Shape::CLUSTER>;
};

template <class C>
void launch_product(int multiprocessors, cudaStream_t stream, const Step* step, const void* x, const void* codes, const void* scales,
                    const float* row_scales, const float* bias, const float* up_bias, float* out) {
    using S = typename Build<C>::Shape;
    if constexpr (EVEN<C>) {
        static test::Buffer<float> parts(std::vector<float>(gemm_parts_bytes<C>() / 4));   // which a launch leaves as it finds them
        test::launch(gemm_wgmma_even_kernel<C, S::THREADS, S::SHARED_BYTES, C::RESIDENT>, dim3(C::EVEN), S::THREADS, S::SHARED_BYTES, stream, step, x, codes, scales, row_scales,
                     bias, up_bias, out, parts.pointer);
        return;
    }
    test::launch_clusters(Build<C>::KERNEL, dim3(S::CLUSTER * gemm_clusters<C>(multiprocessors)), S::CLUSTER, S::THREADS, S::SHARED_BYTES, stream, step, x,
                          codes, scales, row_scales, bias, up_bias, out);
}
