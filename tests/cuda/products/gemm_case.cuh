// What the tests and the bench of the tensor-core products share: configurations, kernels, packing.
#pragma once

#include "core/common.cuh"
#include "core/staged_host.cuh"

#include "kernels/gemm_mma.cuh"
#include "kernels/gemm_wgmma.cuh"
#include "kernels/stage.cuh"

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
    static constexpr auto* KERNEL = gemm_wgmma_kernel<C, Shape::THREADS, Shape::SHARED_BYTES, C::RESIDENT, Shape::CLUSTER>;
};
template <class C>
struct Build<C, Engine::MMA> {
    using Shape = GemmMma<C>;
    static constexpr auto* KERNEL = gemm_mma_kernel<C, Shape::THREADS, Shape::SHARED_BYTES, C::RESIDENT, Shape::CLUSTER>;
};

// As test::launch, with the cluster dimension the emitted kernel would carry as an attribute.
template <class C>
void launch_product(int multiprocessors, cudaStream_t stream, const Step* step, const void* x, const void* codes, const void* scales,
                    const float* row_scales, const float* bias, const float* up_bias, float* out) {
    using S = typename Build<C>::Shape;
    CHECK(cudaFuncSetAttribute(reinterpret_cast<const void*>(Build<C>::KERNEL), cudaFuncAttributeMaxDynamicSharedMemorySize, S::SHARED_BYTES));
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
    CHECK(cudaLaunchKernelEx(&config, Build<C>::KERNEL, step, x, codes, scales, row_scales, bias, up_bias, out));
}
