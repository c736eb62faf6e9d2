// Asynchronous copies, their barriers, and programmatic dependent launch (PTX ISA: mbarrier, cp.async.bulk, cp.async, griddepcontrol).
// Everything here exists on sm_90a and on sm_121a; nothing needs a cluster of more than one block.
#pragma once

#include <cstdint>

namespace monomorph {

// The block's dynamic shared memory. Kernels of one module that align it differently give it names of their own.
#define MONOMORPH_DYNAMIC_SHARED(name, alignment) extern __shared__ __align__(alignment) unsigned char name[]
// A variable of the block's, of any type.
#define MONOMORPH_SHARED(name, ...)    \
    using name##_shared = __VA_ARGS__; \
    __shared__ name##_shared name

__device__ __forceinline__ unsigned shared_address(const void* pointer) {
    return static_cast<unsigned>(__cvta_generic_to_shared(pointer));
}

// ---- Registers ----

// threadIdx.x, read anew at each call: what is computed from it is not kept in a register from one part of a kernel to the next.
__device__ __forceinline__ int thread_index() {
    int thread;
    asm volatile("mov.u32 %0, %%tid.x;" : "=r"(thread));
    return thread;
}

// ---- Programmatic dependent launch ----

// The next kernel of the stream may start its blocks once every block of this one has said so (or exited): say it first.
__device__ __forceinline__ void launch_dependents() { asm volatile("griddepcontrol.launch_dependents;"); }

// Returns when the kernels this one depends on have completed and their writes are visible. Every block must pass here
// before it ends, or completion would not be transitive along the chain.
__device__ __forceinline__ void wait_for_predecessors() { asm volatile("griddepcontrol.wait;" ::: "memory"); }

// ---- Barriers in shared memory ----

using Barrier = unsigned long long;   // 8 bytes, 8-byte aligned

__device__ __forceinline__ void barrier_init(Barrier* barrier, unsigned arrivals) {
    asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(shared_address(barrier)), "r"(arrivals) : "memory");
}

// After the inits, by the thread that made them: makes them visible to the copy engine (other threads still need a block barrier).
__device__ __forceinline__ void barrier_init_fence() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }

__device__ __forceinline__ void barrier_arrive(Barrier* barrier) {
    asm volatile("mbarrier.arrive.shared.b64 _, [%0];" ::"r"(shared_address(barrier)) : "memory");
}

// What a warp does when it has read a stage: one lane arrives for all. compute-sanitizer's racecheck follows the arrivals of threads,
// but not what __syncwarp hands to the lane that arrives, and then calls every refill of a ring a race with the other 31 lanes' reads;
// for it, programs are built with MONOMORPH_EVERY_LANE_ARRIVES.
#ifdef MONOMORPH_EVERY_LANE_ARRIVES
constexpr unsigned WARP_ARRIVALS = 32;
#else
constexpr unsigned WARP_ARRIVALS = 1;
#endif
__device__ __forceinline__ void warp_arrive(Barrier* barrier, int lane) {
    __syncwarp();
    if (WARP_ARRIVALS == 32 || lane == 0) barrier_arrive(barrier);
}

// One arrival, and `bytes` more that copies have yet to deliver before the phase can complete.
__device__ __forceinline__ void barrier_expect(Barrier* barrier, unsigned bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;" ::"r"(shared_address(barrier)), "r"(bytes) : "memory");
}

// Waits until the phase of the given parity has completed; parity 1 of a fresh barrier counts as completed.
__device__ __forceinline__ void barrier_wait(Barrier* barrier, unsigned parity) {
    asm volatile(
        "{\n\t.reg .pred done;\n"
        "again:\n\tmbarrier.try_wait.parity.shared.b64 done, [%0], %1;\n\t@!done bra again;\n\t}"
        ::"r"(shared_address(barrier)), "r"(parity) : "memory");
}

// Whether that phase has completed, without waiting.
__device__ __forceinline__ bool barrier_passed(Barrier* barrier, unsigned parity) {
    unsigned passed;
    asm volatile("{\n\t.reg .pred done;\n\tmbarrier.test_wait.parity.shared.b64 done, [%1], %2;\n\tselp.u32 %0, 1, 0, done;\n\t}"
                 : "=r"(passed) : "r"(shared_address(barrier)), "r"(parity) : "memory");
    return passed != 0;
}

// Named barrier among `threads` threads of the block (a multiple of 32); id 0 is __syncthreads.
__device__ __forceinline__ void named_barrier(int id, int threads) {
    asm volatile("barrier.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

// Arrive without waiting; the others wait with named_barrier. Both count `threads` in all.
__device__ __forceinline__ void named_barrier_arrive(int id, int threads) {
    asm volatile("barrier.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

// ---- Bulk copies, global to shared: addresses and size multiples of 16 bytes ----

// Where the copied bytes stand in the second-level cache: weights of a decode step are read once and should leave first.
__device__ __forceinline__ unsigned long long evict_first_policy() {
    unsigned long long policy;
    asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
    return policy;
}

__device__ __forceinline__ void bulk_copy(void* shared, const void* global, unsigned bytes, Barrier* barrier) {
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];"
                 ::"r"(shared_address(shared)), "l"(global), "r"(bytes), "r"(shared_address(barrier)) : "memory");
}

__device__ __forceinline__ void bulk_copy(void* shared, const void* global, unsigned bytes, Barrier* barrier,
                                          unsigned long long policy) {
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1], %2, [%3], %4;"
                 ::"r"(shared_address(shared)), "l"(global), "r"(bytes), "r"(shared_address(barrier)), "l"(policy) : "memory");
}

// Asks for global bytes into the second-level cache; nothing waits for it.
__device__ __forceinline__ void bulk_prefetch(const void* global, unsigned bytes) {
    asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(global), "r"(bytes) : "memory");
}

// Ordinary stores to shared memory by this thread before, copy engine or wgmma reads of them after (then a barrier).
__device__ __forceinline__ void fence_async_shared() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

// ---- Per-thread 16-byte copies, global to shared ----

// The bytes beyond `valid` (0..16) are filled with zeros and not read.
__device__ __forceinline__ void copy_16(void* shared, const void* global, int valid = 16) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;"
                 ::"r"(shared_address(shared)), "l"(global), "r"(valid) : "memory");
}

// All 16 bytes, to a shared address.
__device__ __forceinline__ void copy_16(unsigned shared_address, const void* global) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(shared_address), "l"(global) : "memory");
}
// `valid` bytes and zeros behind them, to a shared address.
__device__ __forceinline__ void copy_16(unsigned shared_address, const void* global, int valid) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address), "l"(global), "r"(valid) : "memory");
}
// The same of eight bytes.
__device__ __forceinline__ void copy_8(unsigned shared_address, const void* global, int valid) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 8, %2;" ::"r"(shared_address), "l"(global), "r"(valid) : "memory");
}

__device__ __forceinline__ void copy_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }

// Waits until at most `PENDING` of this thread's committed groups are unfinished.
template <int PENDING>
__device__ __forceinline__ void copy_wait() { asm volatile("cp.async.wait_group %0;" ::"n"(PENDING) : "memory"); }

// This thread's copies so far arrive at the barrier when they have landed: one of the arrivals it expects.
__device__ __forceinline__ void copies_arrive(Barrier* barrier) {
    asm volatile("cp.async.mbarrier.arrive.noinc.shared.b64 [%0];" ::"r"(shared_address(barrier)) : "memory");
}

// ---- Loads that mean something ----

// Constants of the whole run (weights, norms, biases): may go through the read-only cache, and may be read before the wait.
__device__ __forceinline__ float load_constant(const float* pointer) { return __ldg(pointer); }
__device__ __forceinline__ float4 load_constant(const float4* pointer) { return __ldg(pointer); }

// What another kernel of this step wrote: never through the non-coherent cache, since this kernel started before it was written.
// Volatile keeps them behind the wait; no memory clobber, so that stores of one batch may pass the loads of the next.
__device__ __forceinline__ float load_activation(const float* pointer) {
    float value;
    asm volatile("ld.global.cg.f32 %0, [%1];" : "=f"(value) : "l"(pointer));
    return value;
}
__device__ __forceinline__ float4 load_activation(const float4* pointer) {
    float4 value;
    asm volatile("ld.global.cg.v4.f32 {%0, %1, %2, %3}, [%4];"
                 : "=f"(value.x), "=f"(value.y), "=f"(value.z), "=f"(value.w) : "l"(pointer));
    return value;
}
__device__ __forceinline__ float2 load_activation(const float2* pointer) {
    float2 value;
    asm volatile("ld.global.cg.v2.f32 {%0, %1}, [%2];" : "=f"(value.x), "=f"(value.y) : "l"(pointer));
    return value;
}
__device__ __forceinline__ int load_activation(const int* pointer) {
    int value;
    asm volatile("ld.global.cg.s32 %0, [%1];" : "=r"(value) : "l"(pointer));
    return value;
}
__device__ __forceinline__ int2 load_activation(const int2* pointer) {
    int2 value;
    asm volatile("ld.global.cg.v2.s32 {%0, %1}, [%2];" : "=r"(value.x), "=r"(value.y) : "l"(pointer));
    return value;
}
__device__ __forceinline__ uint2 load_activation(const uint2* pointer) {
    uint2 value;
    asm volatile("ld.global.cg.v2.u32 {%0, %1}, [%2];" : "=r"(value.x), "=r"(value.y) : "l"(pointer));
    return value;
}
__device__ __forceinline__ uint4 load_activation(const uint4* pointer) {
    uint4 value;
    asm volatile("ld.global.cg.v4.b32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(value.x), "=r"(value.y), "=r"(value.z), "=r"(value.w) : "l"(pointer));
    return value;
}
__device__ __forceinline__ unsigned short load_activation(const unsigned short* pointer) {
    unsigned short value;
    asm volatile("ld.global.cg.u16 %0, [%1];" : "=h"(value) : "l"(pointer));
    return value;
}

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
// The same where `live`; else nothing is read, and the words keep what they hold.
__device__ __forceinline__ void load_streamed_if(bool live, uint32_t (&words)[4], const uint32_t* pointer) {
    asm volatile("{.reg .pred live; setp.ne.b32 live, %5, 0; @live ld.global.L1::no_allocate.v4.b32 {%0, %1, %2, %3}, [%4];}"
                 : "+r"(words[0]), "+r"(words[1]), "+r"(words[2]), "+r"(words[3]) : "l"(pointer), "r"(static_cast<int>(live)));
}

__device__ __forceinline__ void load_streamed_if(bool live, uint32_t (&words)[2], const uint32_t* pointer) {
    asm volatile("{.reg .pred live; setp.ne.b32 live, %3, 0; @live ld.global.L1::no_allocate.v2.b32 {%0, %1}, [%2];}"
                 : "+r"(words[0]), "+r"(words[1]) : "l"(pointer), "r"(static_cast<int>(live)));
}
__device__ __forceinline__ void load_streamed_if(bool live, uint32_t (&words)[1], const uint32_t* pointer) {
    asm volatile("{.reg .pred live; setp.ne.b32 live, %2, 0; @live ld.global.L1::no_allocate.b32 %0, [%1];}"
                 : "+r"(words[0]) : "l"(pointer), "r"(static_cast<int>(live)));
}

// Asks for a line of global memory into the second-level cache.
__device__ __forceinline__ void prefetch(const void* global) { asm volatile("prefetch.global.L2 [%0];" ::"l"(global)); }

// ---- What blocks of one launch tell each other ----

// Counts an arrival and returns how many were before; what the thread's block wrote before a __syncthreads is visible to who sees it.
__device__ __forceinline__ unsigned arrive(unsigned* counter) {
    unsigned before;
    asm volatile("atom.acq_rel.gpu.global.add.u32 %0, [%1], 1;" : "=r"(before) : "l"(counter) : "memory");
    return before;
}
// The same where nobody needs the number, and nothing that others wrote is read after.
__device__ __forceinline__ void arrive_release(unsigned* counter) {
    asm volatile("red.release.gpu.global.add.u32 [%0], 1;" ::"l"(counter) : "memory");
}
// To be asked again and again until others have arrived: what they wrote before is then visible.
__device__ __forceinline__ unsigned arrivals(const unsigned* counter) {
    unsigned arrived;
    asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(arrived) : "l"(counter) : "memory");
    return arrived;
}
// A value that is its own flag: its place holds NOT_YET, a NaN that no arithmetic gives, until another block of this launch stores it. A kernel
// before this one fills such places. Loads are asked again until they have arrived; one value says nothing about any other.
constexpr unsigned NOT_YET = 0xffffffffu;
__device__ __forceinline__ float not_yet() { return __uint_as_float(NOT_YET); }
__device__ __forceinline__ bool arrived(float value) { return __float_as_uint(value) != NOT_YET; }
__device__ __forceinline__ bool arrived(float4 value) { return arrived(value.x) && arrived(value.y) && arrived(value.z) && arrived(value.w); }
__device__ __forceinline__ void store_arriving(float* to, float value) {
    if (value != value) value = __uint_as_float(0x7fffffffu);   // any other NaN
    asm volatile("st.relaxed.gpu.global.f32 [%0], %1;" ::"l"(to), "f"(value) : "memory");
}
__device__ __forceinline__ float load_arriving(const float* pointer) {
    float value;
    asm volatile("ld.relaxed.gpu.global.f32 %0, [%1];" : "=f"(value) : "l"(pointer));
    return value;
}
__device__ __forceinline__ float4 load_arriving(const float4* pointer) {
    float4 value;
    asm volatile("ld.relaxed.gpu.global.v4.f32 {%0, %1, %2, %3}, [%4];"
                 : "=f"(value.x), "=f"(value.y), "=f"(value.z), "=f"(value.w) : "l"(pointer));
    return value;
}
// Adds four values that other blocks add to as well, in any order.
__device__ __forceinline__ void add_global(float4* to, float4 value) {
    asm volatile("red.relaxed.gpu.global.add.v4.f32 [%0], {%1, %2, %3, %4};"
                 ::"l"(to), "f"(value.x), "f"(value.y), "f"(value.z), "f"(value.w) : "memory");
}
__device__ __forceinline__ void add_global(float2* to, float2 value) {
    asm volatile("red.relaxed.gpu.global.add.v2.f32 [%0], {%1, %2};" ::"l"(to), "f"(value.x), "f"(value.y) : "memory");
}

}  // namespace monomorph
