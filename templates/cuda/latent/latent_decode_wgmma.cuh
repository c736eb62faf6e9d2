// latent_decode_wgmma: what latent_decode computes, in decode, on the warpgroup products of sm_90a
// (latent_wgmma.cuh says for which shapes).
//
// Work: block (row, group of 64 heads, part of the context); rows beyond the grid follow, so any grid is
// right in x. One warpgroup multiplies, its 64 rows the heads (32 heads use half of each product, which is
// still less than the time of their bytes); a second gathers, before it waits where it may
// (CONTEXT_BEFORE_WAIT), all but the step's own rows. A tile of 64 rows of the cache takes 1,152 clocks of
// the tensor cores and 2,090 of an SM's share of memory. With 64 gathering threads a step of 8 and 32
// sequences is 5 % slower.
// The loop over rows is also what keeps the sums in registers: without one, ptxas serialises the products
// (C7514) and leaves them in memory.
// Shared memory: 20 KB of queries of up to 32 heads (40 KB of more) and four tiles of 40 KB: two are
// multiplied while two arrive. A fifth gains nothing. Barriers: latent_wgmma.cuh. Registers: 224, an SM's for
// one block.
#pragma once

#include "latent/latent_wgmma.cuh"

namespace monomorph {

constexpr int LATENT_GATHERING = 128, LATENT_WGMMA_THREADS = 128 + LATENT_GATHERING;
// Of codes two tiles are on their way, and three converted.
template <class C>
constexpr int LATENT_STEP_STAGES = LatentShape<C>::CODES ? 3 : 4;
constexpr int LATENT_STEP_AHEAD = 2;

template <class C>
using LatentDecodeShared = LatentWgmmaShared<C, 1, LATENT_STEP_STAGES<C>, LATENT_STEP_AHEAD, C::HEADS <= 32 ? 32 : 64>;
template <class C>
constexpr size_t latent_decode_wgmma_shared_bytes() { return sizeof(LatentDecodeShared<C>); }

// Arguments as latent_decode's.
template <class C>
__device__ __forceinline__ void latent_decode_wgmma(const Step* step, const TokenRow* tokens, const typename C::Kv* queries_,
                                                    const typename C::Kv* layer, float* partials) {
    using S = LatentShape<C>;
    using Operand = typename S::Operand;
    const Operand* const queries = reinterpret_cast<const Operand*>(queries_);
    static_assert(C::TILE == LatentWgmma<C>::KEYS, "parts are whole tiles");
    constexpr int CHUNKS = S::WIDTH / 8, Q_ROWS = LatentDecodeShared<C>::Q_ROWS;
    MONOMORPH_DYNAMIC_SHARED(latent_swizzled_bytes, 1024);
    LatentDecodeShared<C>& shared = *reinterpret_cast<LatentDecodeShared<C>*>(latent_swizzled_bytes);
    launch_dependents();
    const int thread = threadIdx.x, group = blockIdx.y, split = blockIdx.z;
    if (thread == 0) shared.begin(LATENT_GATHERING);
    __syncthreads();
    if constexpr (!C::CONTEXT_BEFORE_WAIT) wait_for_predecessors();
    bool waited = !C::CONTEXT_BEFORE_WAIT;
    typename LatentDecodeShared<C>::Place place;
    if (thread >= 128) {
        for (int row = blockIdx.x; row < step->tokens; row += gridDim.x) {
            const LatentRow at(step, tokens, row);
            const LatentSplits<C> parts(at.position);
            const int cached = at.position - (C::TOKENS == 1 ? 0 : row % C::TOKENS), last = parts.begin(split + 1);
            const int* blocks = step->blocks() + at.block_start;
            if constexpr (S::CODES) {
                const int start = parts.begin(split) * C::TILE, end = min(at.position + 1, last * C::TILE);
                gather_codes<C, LATENT_GATHERING>(shared, place, thread - 128, blocks, layer, start, end, cached, waited);
            } else {
                for (int tile = parts.begin(split); tile < last; ++tile) {
                    const int start = tile * C::TILE, end = at.position + 1;
                    if (waited || start + C::TILE <= cached) {
                        gather_latents<C, LATENT_GATHERING>(shared, place, thread - 128, blocks, layer, start, end);
                    } else {
                        gather_and_wait<C, LATENT_GATHERING>(shared, place, thread - 128, blocks, layer, start, cached, end);
                        waited = true;
                    }
                }
            }
        }
        if (!waited) wait_for_predecessors();
        copy_commit();
        copy_wait<0>();
        return;
    }
    const int lane = thread % 32, g = lane / 4, heads = min(64, C::HEADS - group * 64);
    LatentRows<C> rows;
    for (int row = blockIdx.x; row < step->tokens; row += gridDim.x) {
        const LatentRow at(step, tokens, row);
        const LatentSplits<C> parts(at.position);
        const int first = parts.begin(split), last = parts.begin(split + 1);
        if (!waited) wait_for_predecessors(), waited = true;
        if (first >= last) continue;
        const Operand* from = queries + (static_cast<size_t>(row) * C::HEADS + group * 64) * S::WIDTH;
        named_barrier(1, 128);   // products of the row before have read the queries
#pragma unroll 4
        for (int i = thread; i < Q_ROWS * CHUNKS; i += 128) {
            const int head = i / CHUNKS, chunk = i % CHUNKS;
            copy_16(shared.q[0] + panel_chunk<Q_ROWS>(head, chunk), head < heads ? from + head * S::WIDTH + chunk * 8 : from, head < heads ? 16 : 0);
        }
        copy_commit();
        copy_wait<0>();
        fence_async_shared();
        named_barrier(1, 128);
        rows.begin(shared_address(shared.q[0]));
        const int position[2] = {at.position, at.position};
        rows.attend(shared, place, first * C::TILE, last - first, position, at.position, thread);
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            const int head = thread / 32 * 16 + g + 8 * i;
            float* const to = partials + (static_cast<size_t>(row) * C::HEADS + group * 64 + head) * S::PARTIAL;
            rows.store(head < heads, to + split * S::PART_FLOATS, to + C::SPLITS * S::PART_FLOATS + 2 * split, i, lane);
        }
    }
    if (!waited) wait_for_predecessors();
}

}  // namespace monomorph
