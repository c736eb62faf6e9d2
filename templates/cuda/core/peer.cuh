// What GPUs of one host tell each other (PTX ISA: ld.relaxed.sys, st.relaxed.sys), and the end of waiting for one of them.
#pragma once

namespace monomorph {

// Four values, each by itself: a peer may see some of them before the others.
__device__ __forceinline__ void store_peer(float4* to, float4 value) {
    asm volatile("st.relaxed.sys.global.v4.f32 [%0], {%1, %2, %3, %4};"
                 ::"l"(to), "f"(value.x), "f"(value.y), "f"(value.z), "f"(value.w) : "memory");
}

__device__ __forceinline__ void store_peer(float* to, float value) {
    asm volatile("st.relaxed.sys.global.f32 [%0], %1;" ::"l"(to), "f"(value) : "memory");
}

// The same where `live`, without a branch: what is loaded for it is asked for before it is known whether it is live.
__device__ __forceinline__ void store_peer_if(bool live, float4* to, float4 value) {
    asm volatile("{.reg .pred live; setp.ne.b32 live, %5, 0; @live st.relaxed.sys.global.v4.f32 [%0], {%1, %2, %3, %4};}"
                 ::"l"(to), "f"(value.x), "f"(value.y), "f"(value.z), "f"(value.w), "r"(static_cast<int>(live)) : "memory");
}

// What this GPU or a peer stored there last; to be asked again and again until it is what is waited for.
__device__ __forceinline__ float4 load_peer(const float4* from) {
    float4 value;
    asm volatile("ld.relaxed.sys.global.v4.f32 {%0, %1, %2, %3}, [%4];"
                 : "=f"(value.x), "=f"(value.y), "=f"(value.z), "=f"(value.w) : "l"(from));
    return value;
}

__device__ __forceinline__ float load_peer(const float* from) {
    float value;
    asm volatile("ld.relaxed.sys.global.f32 %0, [%1];" : "=f"(value) : "l"(from));
    return value;
}

// Nanoseconds; the clock of GPUs of one host, which are not exactly together.
__device__ __forceinline__ unsigned long long clock_ns() {
    unsigned long long now;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
    return now;
}

// Sets a flag in host memory, behind all that this thread wrote there, and ends the kernel with an error.
__device__ __forceinline__ void fail(unsigned* flag) {
    asm volatile("st.release.sys.global.u32 [%0], 1;\n\tfence.acq_rel.sys;\n\ttrap;" ::"l"(flag) : "memory");
}

}  // namespace monomorph
