// cluster.cuh of the library for a processor.
#pragma once

#include "core/async.cuh"

namespace monomorph {

inline unsigned cluster_rank() { return card::cluster_rank(); }
inline void cluster_start() { card::cluster_arrive(); }
inline void cluster_started() { card::cluster_wait(); }
inline void cluster_sync() { card::cluster_arrive(), card::cluster_wait(); }
inline void cluster_meet() { cluster_sync(); }
inline unsigned cluster_address(unsigned shared_address, unsigned rank) { return (shared_address & 0xffffff) | rank << 24; }
inline float4 load_cluster(unsigned cluster_address) { return load_aligned(static_cast<const float4*>(card::shared_at(cluster_address, 16))); }
inline float load_cluster_one(unsigned cluster_address) { return *static_cast<const float*>(card::shared_at(cluster_address, 4)); }
inline void store_cluster(unsigned cluster_address, float value) { *static_cast<float*>(card::shared_at(cluster_address, 4)) = value; }
inline void barrier_arrive_at(Barrier* barrier, unsigned rank) { card::phase_arrive(card::at_rank(barrier, rank), 0); }
inline void bulk_copy_multicast(void* shared, const void* global, unsigned bytes, Barrier* barrier, unsigned short blocks) {
    for (unsigned rank = 0; rank < 16; rank++)
        if (blocks >> rank & 1) card::bulk_copy(card::at_rank(shared, rank), global, bytes, card::at_rank(barrier, rank));
}

}  // namespace monomorph
