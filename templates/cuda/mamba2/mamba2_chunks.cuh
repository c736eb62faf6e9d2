// mamba2_chunks: the sequential part of a Mamba-2 prefill (core/recurrent_chunks.cuh). mamba2_prepare goes before, mamba2_gate after.
//
// Work: block (head, sequence) of the grid (HEADS, sequences) owns a head's columns, a warp 16 of them: four warps for a head of 64, which
// is the block that measured fastest for the delta-net.
//
// Predicted, H200, 8,192 tokens, heads of 64 with a state of 128: a chunk costs a warp 148 products of 8 clocks of its quarter of the SM,
// and 80 reads of 512 bytes of shared memory, 4 clocks of the SM: 1,200 clocks of products beside 1,300 of reads, with what does not
// overlap 1,800: 128 chunks in 0.13 ms, for 64 heads (64 SMs busy) as for 128.
// Ring: six pieces of 16 KiB, twice on an SM of an H200, once on one of a GB10.
#pragma once

#include "core/recurrent_chunks.cuh"
#include "mamba2/mamba2_chunk.cuh"

namespace monomorph {

template <class C>
struct Mamba2Chunks : RecurrentChunks<Mamba2Scratch<C>, C::HEAD_DIM, C::SLOTS> {};

template <class C>
constexpr size_t mamba2_chunks_shared_bytes() { return sizeof(RecurrentChunksShared<Mamba2Chunks<C>>); }

// step; scratch: mamba2_prepare's; state: of the layer; y f32 [rows, VALUES].
template <class C>
__device__ __forceinline__ void mamba2_chunks(const Step* step, const unsigned char* scratch, RecurrentState state, float* y) {
    MONOMORPH_DYNAMIC_SHARED(mamba2_shared, 128);
    auto& shared = *reinterpret_cast<RecurrentChunksShared<Mamba2Chunks<C>>*>(mamba2_shared);
    const int head = blockIdx.x;
    recurrent_chunks<Mamba2Shape<C>, Mamba2Scratch<C>, Mamba2Chunks<C>>(step, scratch, state, y, shared, head, 0, head / Mamba2Shape<C>::RATIO);
}

}  // namespace monomorph
