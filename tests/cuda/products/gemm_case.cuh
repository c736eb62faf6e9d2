// What the tests and the bench of the tensor-core products share: configurations, kernels, packing.
#pragma once

#include "core/common.cuh"
#include "core/staged_host.cuh"

#include "products/gemm_mma.cuh"
#include "products/gemm_wgmma.cuh"
#include "products/stage.cuh"

using namespace monomorph;

enum class Engine { WGMMA, MMA };

// Tiling: how the work is cut; the rest of a Config: what is computed.
template <Engine E, int T, int S, int PANELS, int W, int N, int M = 1, int K = 1, int R = 1>
struct Tiling {
    static constexpr Engine ENGINE = E;
    static constexpr int TOKENS = T, STRIPS = S, STAGE_PANELS = PANELS, WEIGHT_STAGES = W, STAGES = N, MULTICAST = M, SPLIT = K, RESIDENT = R;
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
    static constexpr int THREADS = Shape::THREADS;
};
template <class C>
struct Build<C, Engine::MMA> {
    using Shape = GemmMma<C>;
    static constexpr int THREADS = Shape::THREADS;
};

template <class C>
__global__ void __launch_bounds__(Build<C>::THREADS, C::RESIDENT)
    product(const Step* step, const void* x, const void* codes, const void* scales, const float* row_scales, const float* bias,
            const float* up_bias, float* out) {
    if constexpr (C::ENGINE == Engine::WGMMA) {
        gemm_wgmma<C>(step, x, codes, scales, row_scales, bias, up_bias, out);
    } else {
        gemm_mma<C>(step, x, codes, scales, row_scales, bias, up_bias, out);
    }
}

template <class C>
__global__ void __launch_bounds__(StageShape<C>::THREADS) stage_kernel(const Step* step, const float* x, const float* norm, void* out) {
    stage<C>(step, x, norm, out);
}

// As test::launch, with the cluster dimension the emitted kernel would carry as an attribute.
template <class C>
void launch_product(int multiprocessors, cudaStream_t stream, const Step* step, const void* x, const void* codes, const void* scales,
                    const float* row_scales, const float* bias, const float* up_bias, float* out) {
    using S = typename Build<C>::Shape;
    CHECK(cudaFuncSetAttribute(reinterpret_cast<const void*>(product<C>), cudaFuncAttributeMaxDynamicSharedMemorySize, S::SHARED_BYTES));
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3(S::CLUSTER * gemm_clusters<C>(multiprocessors));
    config.blockDim = dim3(S::THREADS);
    config.dynamicSmemBytes = S::SHARED_BYTES;
    config.stream = stream;
    cudaLaunchAttribute attributes[2];
    attributes[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attributes[0].val.programmaticStreamSerializationAllowed = 1;
    attributes[1].id = cudaLaunchAttributeClusterDimension;
    attributes[1].val.clusterDim.x = S::CLUSTER;
    attributes[1].val.clusterDim.y = 1;
    attributes[1].val.clusterDim.z = 1;
    config.attrs = attributes;
    config.numAttrs = S::CLUSTER > 1 ? 2 : 1;
    CHECK(cudaLaunchKernelEx(&config, product<C>, step, x, codes, scales, row_scales, bias, up_bias, out));
}
