// Clusters of thread blocks (sm_90a): one block's shared memory and barriers seen from another (PTX ISA: barrier.cluster, mapa,
// cp.async.bulk with .multicast::cluster).
#pragma once

#include "core/async.cuh"

namespace monomorph {

__device__ __forceinline__ unsigned cluster_rank() {
    unsigned rank;
    asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    return rank;
}

// All threads of all blocks of the cluster; what they wrote before, to shared memory too, is seen by all after.
__device__ __forceinline__ void cluster_sync() {
    asm volatile("barrier.cluster.arrive.release;\n\tbarrier.cluster.wait.acquire;" ::: "memory");
}

// The same without the memory: a fence of the whole card less. Enough for barriers initialised before barrier_init_fence.
__device__ __forceinline__ void cluster_meet() {
    asm volatile("barrier.cluster.arrive.relaxed;\n\tbarrier.cluster.wait;" ::: "memory");
}

// cluster_meet in two halves: this block has started; the others have, so their shared memory may be written to.
__device__ __forceinline__ void cluster_start() { asm volatile("barrier.cluster.arrive.relaxed;" ::: "memory"); }
__device__ __forceinline__ void cluster_started() { asm volatile("barrier.cluster.wait;" ::: "memory"); }

// The cluster-wide address of what this block has at `shared_address`, in block `rank`.
__device__ __forceinline__ unsigned cluster_address(unsigned shared_address, unsigned rank) {
    unsigned address;
    asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(address) : "r"(shared_address), "r"(rank));
    return address;
}

__device__ __forceinline__ float4 load_cluster(unsigned cluster_address) {
    float4 value;
    asm volatile("ld.shared::cluster.v4.f32 {%0, %1, %2, %3}, [%4];"
                 : "=f"(value.x), "=f"(value.y), "=f"(value.z), "=f"(value.w) : "r"(cluster_address) : "memory");
    return value;
}

__device__ __forceinline__ float load_cluster_one(unsigned cluster_address) {
    float value;
    asm volatile("ld.shared::cluster.f32 %0, [%1];" : "=f"(value) : "r"(cluster_address) : "memory");
    return value;
}

__device__ __forceinline__ void store_cluster(unsigned cluster_address, float value) {
    asm volatile("st.shared::cluster.f32 [%0], %1;" ::"r"(cluster_address), "f"(value) : "memory");
}

// An arrival at the barrier which block `rank` has where this one has `barrier`. It says that this thread's reads are done; it does not
// publish its writes to the other block (that, .release.cluster, would cost a fence of the whole card).
__device__ __forceinline__ void barrier_arrive_at(Barrier* barrier, unsigned rank) {
    asm volatile("mbarrier.arrive.shared::cluster.b64 _, [%0];"
                 ::"r"(cluster_address(shared_address(barrier), rank)) : "memory");
}

// The bytes arrive at the same place, and count at the same barrier, in every block of the cluster whose bit is set.
__device__ __forceinline__ void bulk_copy_multicast(void* shared, const void* global, unsigned bytes, Barrier* barrier,
                                                    unsigned short blocks) {
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [%0], [%1], %2, [%3], %4;"
                 ::"r"(shared_address(shared)), "l"(global), "r"(bytes), "r"(shared_address(barrier)), "h"(blocks) : "memory");
}

}  // namespace monomorph
