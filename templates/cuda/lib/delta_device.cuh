// What the delta-net kernels need of the card beyond async.cuh, mma.cuh and cluster.cuh. All PTX of the delta-net stands behind these
// functions: tests/cuda/delta_host.cuh implements them, threads and barriers on a processor, and runs the same kernels there.
#pragma once

#ifdef MONOMORPH_HOST
// In angle brackets: no part of the library, and so of no cubin.
#include <delta_host.cuh>
#else
#include <cstdint>
#include <type_traits>

#include <cuda_bf16.h>

#include "async.cuh"
#include "cluster.cuh"
#include "mma.cuh"

namespace monomorph {

// One name for all delta kernels: other kernels of a module align theirs otherwise.
#define MONOMORPH_DYNAMIC_SHARED(name) extern __shared__ __align__(128) unsigned char name[]

// What an earlier step left: read once, so not kept in the first-level cache. Volatile: it stays where it stands, before the wait.
__device__ __forceinline__ float4 load_streamed(const float4* pointer) {
    float4 value;
    asm volatile("ld.global.L1::no_allocate.v4.f32 {%0, %1, %2, %3}, [%4];"
                 : "=f"(value.x), "=f"(value.y), "=f"(value.z), "=f"(value.w) : "l"(pointer));
    return value;
}
__device__ __forceinline__ float load_streamed(const float* pointer) {
    float value;
    asm volatile("ld.global.L1::no_allocate.f32 %0, [%1];" : "=f"(value) : "l"(pointer));
    return value;
}
__device__ __forceinline__ uint4 load_words(const uint4* pointer) {
    uint4 value;
    asm volatile("ld.global.cg.v4.b32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(value.x), "=r"(value.y), "=r"(value.z), "=r"(value.w) : "l"(pointer));
    return value;
}

// Two f32 to a pair of f16, to nearest even, at most the largest finite one; `low` in the lower half.
__device__ __forceinline__ unsigned pack_f16_finite(float low, float high) {
    unsigned pair;
    asm("cvt.rn.satfinite.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
    return pair;
}
__device__ __forceinline__ float2 unpack_f16(unsigned pair) {
    float2 value;
    asm("{\n\t.reg .b16 low, high;\n\tmov.b32 {low, high}, %2;\n\tcvt.f32.f16 %0, low;\n\tcvt.f32.f16 %1, high;\n\t}"
        : "=f"(value.x), "=f"(value.y) : "r"(pair));
    return value;
}

// This block has started: whoever waits for it in cluster_started may write to its shared memory.
__device__ __forceinline__ void cluster_start() { asm volatile("barrier.cluster.arrive.relaxed;" ::: "memory"); }
__device__ __forceinline__ void cluster_started() { asm volatile("barrier.cluster.wait;" ::: "memory"); }
__device__ __forceinline__ void store_cluster(unsigned cluster_address, float value) {
    asm volatile("st.shared::cluster.f32 [%0], %1;" ::"r"(cluster_address), "f"(value) : "memory");
}

}  // namespace monomorph
#endif
