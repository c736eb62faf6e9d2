// Weights that the next phases stream, asked for into the second-level cache by a kernel that leaves memory idle.
#pragma once

#include "core/async.cuh"

namespace monomorph {

// By one thread of each of `blocks` blocks: the first BYTES of `begin` .. `end`, or all, a piece a block in turn, at half the pace of memory (4.54 TB/s at
// 1.98 GHz are 2,293 bytes a clock), so that what the kernel itself asks for finds no queue.
template <int BYTES>
__device__ __forceinline__ void fetch_ahead(const void* begin, const void* end, int block, int blocks) {
    constexpr int PIECE = 4096;
    const char* const from = static_cast<const char*>(begin);
    const long long all = static_cast<const char*>(end) - from, bytes = all < BYTES ? all : BYTES;
    const int clocks = PIECE * blocks / 1147;
    long long next = clock64();
    for (long long at = static_cast<long long>(block) * PIECE; at < bytes;) {
        if (clock64() < next) continue;
        next += clocks;
        bulk_prefetch(from + at, static_cast<unsigned>(bytes - at < PIECE ? bytes - at : PIECE));
        at += static_cast<long long>(blocks) * PIECE;
    }
}

}  // namespace monomorph
