// delta_chunks: the sequential part of a delta-net prefill, chunk after chunk (delta_chunk.cuh). delta_prepare goes before, delta_gate after.
//
// Work: block (part of a value head, sequence) of the grid (CHUNK_SPLIT VALUE_HEADS, sequences) owns COLUMNS = 128 / CHUNK_SPLIT columns
// of S, a warp 16 of them for good (core/recurrent_chunks.cuh).
//
// Predicted, H200, 8,192 tokens, 32 value heads: a chunk costs a warp 212 products of 8 clocks of its quarter of the SM, and 112 reads of 512 bytes
// of shared memory, 4 clocks of the SM: CHUNK_SPLIT 2 (64 blocks of 4 warps): 1,700 clocks of products beside 1,800 of reads, with
// what does not overlap 2,400: 128 chunks in 0.17 ms. Measured there: CHUNK_SPLIT 1 0.45 ms, 2 0.23 ms, 4 (128 blocks) 0.18 ms; with thread 0
// bringing 2 took 0.39 ms and 4 0.33 ms (docs/performance-h200-kernels.md). With many sequences or heads: 1.
// Ring: 5 pieces fit a GB10's 99 KiB, 8 or more an H200.
#pragma once

#include "core/recurrent_chunks.cuh"
#include "delta_net/delta_chunk.cuh"

namespace monomorph {

template <class C>
struct DeltaChunks : RecurrentChunks<DeltaScratch<C>, C::VALUE_DIM / C::CHUNK_SPLIT, C::SLOTS, (C::CHUNK_SPLIT > 1)> {};

template <class C>
constexpr size_t delta_chunks_shared_bytes() { return sizeof(RecurrentChunksShared<DeltaChunks<C>>); }

// step; scratch: delta_prepare's; state: of the layer; o f32 [rows, VALUES].
template <class C>
__device__ __forceinline__ void delta_chunks(const Step* step, const unsigned char* scratch, RecurrentState state, float* o) {
    MONOMORPH_DYNAMIC_SHARED(delta_shared, 128);
    auto& shared = *reinterpret_cast<RecurrentChunksShared<DeltaChunks<C>>*>(delta_shared);
    const int head = blockIdx.x / C::CHUNK_SPLIT, part = blockIdx.x % C::CHUNK_SPLIT;
    recurrent_chunks<DeltaShape<C>, DeltaScratch<C>, DeltaChunks<C>>(step, scratch, state, o, shared, head, part, head / DeltaShape<C>::RATIO);
}

}  // namespace monomorph
