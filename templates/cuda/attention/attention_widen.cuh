// attention_widen: keys and values that prefill attention reads from the area of widened.cuh, after
// attention_write.
//
// Work: a unit is 16 tokens of one K/V head's keys or values, and a warp's; units are numbered over the whole
// grid, so any grid is correct. A lane has a chunk of eight elements of every few tokens, and loads all of
// its codes and scales, or eight tokens', before it stores the first. Memory-bound: reads codes once, writes
// 16 bits an element once. No shared memory, no barriers. A step that widens nothing is passed over.
//
// Tokens that the sequence does not have are zeros: their places in the cache may never have been written.
#pragma once

#include "attention/attention_prefill.cuh"
#include "attention/widened.cuh"

namespace monomorph {

constexpr int WIDEN_THREADS = 256;

// A chunk's codes, and scale, as they are kept.
template <class C, Side SIDE, bool = GROUPED<typename C::Kv>>
struct KeptChunk {
    using Row = KeptRow<C, SIDE>;
    Lot<Row, 1> lot;

    __device__ __forceinline__ void load(bool live, const typename C::Kv* layer, int block, int kv_head, int token, int chunk) {
        lot.template load<false>(live, kept_place<C, SIDE>(layer, block, kv_head, token), Row::chunk(chunk), Row::scale(chunk / 2));
    }
    __device__ __forceinline__ uint4 operands(int chunk) const { return chunk_operands<C>(lot, Row::chunk(chunk), Row::scale(chunk / 2)); }
};
template <class C, Side SIDE>
struct KeptChunk<C, SIDE, false> {
    uint2 codes;

    __device__ __forceinline__ void load(bool live, const typename C::Kv* layer, int block, int kv_head, int token, int chunk) {
        const typename C::Kv* row = cached_row<C, const typename C::Kv*>(layer, block, kv_head, token) + (SIDE == Side::Values ? AttentionShape<C>::VALUES : 0);
        if (live) codes = *reinterpret_cast<const uint2*>(row + chunk * 8);
    }
    __device__ __forceinline__ uint4 operands(int) const { return widen_eight(codes); }
};

// 16 tokens from `token` of a block on, of which `live` are there.
template <class C, Side SIDE>
__device__ __forceinline__ void widen_tokens(typename AttentionShape<C>::Operand* to, const typename C::Kv* layer, int block, int kv_head,
                                             int token, int live, int lane) {
    constexpr int CHUNKS = C::HEAD_DIM / 8, ROWS = 32 / CHUNKS, BATCH = 16 / ROWS < 8 ? 16 / ROWS : 8;
    static_assert(CHUNKS <= 32 && 32 % CHUNKS == 0, "a warp has whole rows");
    const int chunk = lane % CHUNKS, own = lane / CHUNKS;
#pragma unroll 1
    for (int first = own; first < 16; first += ROWS * BATCH) {
        KeptChunk<C, SIDE> kept[BATCH] = {};
#pragma unroll
        for (int i = 0; i < BATCH; ++i) kept[i].load(first + i * ROWS < live, layer, block, kv_head, token + first + i * ROWS, chunk);
#pragma unroll
        for (int i = 0; i < BATCH; ++i) *reinterpret_cast<uint4*>(to + (first + i * ROWS) * C::HEAD_DIM + chunk * 8) = kept[i].operands(chunk);
    }
}

// step; layer: the cache's base of this layer; widened: the area.
template <class C>
__device__ __forceinline__ void attention_widen(const Step* step, const typename C::Kv* layer, typename AttentionShape<C>::Operand* widened) {
    using W = Widening<C>;
    constexpr int PIECES = C::BLOCK_TOKENS / 16, HEADS = 2 * C::KV_HEADS, WARPS = WIDEN_THREADS / 32;
    launch_dependents();
    wait_for_predecessors();
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int units = count_widened<C>(step, lane) * PIECES * HEADS;
    for (int unit = blockIdx.x * WARPS + warp; unit < units; unit += gridDim.x * WARPS) {
        const int head = unit % HEADS, token = unit / HEADS % PIECES * 16, at = unit / (HEADS * PIECES);
        const WidenedBlock it = find_widened_block<C>(step, at, lane);
        const Sequence& sequence = step->sequence[it.sequence];
        const int block = step->blocks()[table_start<C>(step, it.sequence) + it.number];
        const int live = sequence.position + sequence.count - it.number * C::BLOCK_TOKENS - token;
        auto* to = widened + at * W::BLOCK + head * W::HEAD + token * C::HEAD_DIM;
        if (head < C::KV_HEADS) widen_tokens<C, Side::Keys>(to, layer, block, head, token, live, lane);
        else widen_tokens<C, Side::Values>(to, layer, block, head - C::KV_HEADS, token, live, lane);
    }
}

}  // namespace monomorph
