// Keys and values of a narrow cache (fp8, formats of groups), widened: as prefill attention multiplies them,
// in an area outside of the cache, so that its tiles are copied and not decoded. Which sequences of a step
// that is done for, and where they stand.
//
// The area is one for all layers: attention_widen fills it, and attention_prefill_widened reads it before the
// next layer's is written. It has the layout of a cache of 16 bits, [WIDENED_BLOCKS][2: keys,
// values][KV_HEADS][BLOCK_TOKENS][HEAD_DIM] of AttentionShape::Operand. Blocks of a sequence are adjacent,
// those of the first sequence first. An element is what a tile in shared memory would have: codes times
// scales of groups, not times static scales, and not rotated back. So a result has the same bits whether it
// is read from here or not.
//
// Keys and values of a sequence with one tile of queries are decoded once by each K/V head as they are:
// widening is for more. What the area has no room for is decoded in tiles too, with all sequences that
// follow. Both are decided here, by the step's header alone.
#pragma once

#include "attention/attention.cuh"

namespace monomorph {

template <class C, class = void>
struct Widening {
    static constexpr bool THERE = false;
};
template <class C>
struct Widening<C, decltype(void(C::WIDENED_BLOCKS))> {
    static constexpr bool THERE = true;
    static_assert(sizeof(typename C::Kv) == 1 && C::WIDENED_BLOCKS > 0, "codes are widened");
    static constexpr size_t HEAD = static_cast<size_t>(C::BLOCK_TOKENS) * C::HEAD_DIM, VALUES = C::KV_HEADS * HEAD, BLOCK = 2 * VALUES;
    static constexpr int TILE = 128 / AttentionShape<C>::GROUP;  // tokens of a tile of queries

    // The first block that a sequence's rows attend to.
    __host__ __device__ static constexpr int first(int position) { return Window<C>::first(position) / C::BLOCK_TOKENS; }
    // Blocks of a sequence that are to be widened: those that its rows attend to, or none.
    __host__ __device__ static constexpr int wanted(int position, int count) {
        return count <= TILE ? 0 : (position + count + C::BLOCK_TOKENS - 1) / C::BLOCK_TOKENS - first(position);
    }
    // Whether they are, behind so many of the sequences before: there is room for all of them.
    __host__ __device__ static constexpr bool fits(int before, int blocks) { return before + blocks <= C::WIDENED_BLOCKS; }
};

template <class C>
constexpr size_t widened_bytes() { return sizeof(typename AttentionShape<C>::Operand) * C::WIDENED_BLOCKS * Widening<C>::BLOCK; }

// Blocks that sequences base .. base + lane want.
template <class C>
__device__ __forceinline__ int scan_wanted(const Step* step, int base, int lane) {
    int blocks = 0;
    if (base + lane < step->sequences) {
        const Sequence& sequence = step->sequence[base + lane];
        blocks = Widening<C>::wanted(sequence.position, sequence.count);
    }
#pragma unroll
    for (int distance = 1; distance < 32; distance *= 2) {
        const int before = __shfl_up_sync(0xffffffffu, blocks, distance);
        if (lane >= distance) blocks += before;
    }
    return blocks;
}

// Blocks that are widened in a step.
template <class C>
__device__ __forceinline__ int count_widened(const Step* step, int lane) {
    int blocks = 0;
    for (int base = 0; base < step->sequences; base += 32) {
        const int ends = scan_wanted<C>(step, base, lane);
        const int fit = __popc(__ballot_sync(0xffffffffu, Widening<C>::fits(blocks, ends)));
        if (fit > 0) blocks += __shfl_sync(0xffffffffu, ends, fit - 1);
        if (fit < 32) break;
    }
    return blocks;
}

// A widened block: whose it is, and its number among the sequence's.
struct WidenedBlock {
    int sequence, number;
};
template <class C>
__device__ __forceinline__ WidenedBlock find_widened_block(const Step* step, int block, int lane) {
    for (int base = 0;; base += 32) {
        const int ends = scan_wanted<C>(step, base, lane), all = __shfl_sync(0xffffffffu, ends, 31);
        if (block < all) {
            const int before = __popc(__ballot_sync(0xffffffffu, ends <= block));
            const int start = before == 0 ? 0 : __shfl_sync(0xffffffffu, ends, before - 1);
            return {base + before, Widening<C>::first(step->sequence[base + before].position) + block - start};
        }
        block -= all;
    }
}

// Where in the area block 0 of a sequence would be, if its blocks are widened.
constexpr int NOT_WIDENED = -0x7fffffff;
template <class C>
__device__ __forceinline__ int find_widened(const Step* step, int sequence, int lane) {
    int before = 0;
    for (int base = 0;; base += 32) {
        const int ends = scan_wanted<C>(step, base, lane);
        if (sequence < base + 32) {
            const int at = sequence - base, end = __shfl_sync(0xffffffffu, ends, at), begin = __shfl_sync(0xffffffffu, ends, at == 0 ? 0 : at - 1);
            const int start = at == 0 ? 0 : begin;
            return end > start && Widening<C>::fits(before, end) ? before + start - Widening<C>::first(step->sequence[sequence].position) : NOT_WIDENED;
        }
        before += __shfl_sync(0xffffffffu, ends, 31);
    }
}

}  // namespace monomorph
