// latent_prefill_wgmma: what latent_decode computes, for a prompt, on the warpgroup products of sm_90a
// (latent_wgmma.cuh says for which shapes).
//
// Work: as attention_prefill_wgmma's, with all heads the queries of one K/V head. A unit is 128 rows (token,
// head) of a sequence: 128 / HEADS tokens. A block holds a whole SM and takes every (number of blocks)-th
// unit, later ones of a sequence first. Warpgroup 0 gathers tiles, warpgroups 1 and 2 own 64 rows each.
// Operations: 2 (WIDTH + LATENT) a pair of tokens and a head, 36,864 for 32 heads; making keys and values of
// heads first would need 16,384, and 16 KB of memory a token of the context.
#pragma once

#include "latent/latent_wgmma.cuh"

namespace monomorph {

constexpr int LATENT_PROMPT_STAGES = 3, LATENT_PROMPT_AHEAD = 1;
template <class C>
constexpr int LATENT_PROMPT_TOKENS = 128 / C::HEADS;   // of a unit
template <class C>
using LatentPromptShared = LatentWgmmaShared<C, 2, LATENT_PROMPT_STAGES, LATENT_PROMPT_AHEAD>;
template <class C>
constexpr size_t latent_prefill_shared_bytes() { return sizeof(LatentPromptShared<C>); }

template <class C>
__device__ __forceinline__ void gather_prompt(LatentPromptShared<C>& shared, const Step* step, const typename C::Kv* layer, int units) {
    typename LatentPromptShared<C>::Place at;
    for (int unit = blockIdx.x; unit < units; unit += gridDim.x) {
        const PrefillTile tile = find_tile<C, LATENT_PROMPT_TOKENS<C>>(step, units - 1 - unit, threadIdx.x % 32);
        const int end = tile.position + tile.tokens;
        if constexpr (LatentShape<C>::CODES) {
            bool waited = true;
            gather_codes<C, 128>(shared, at, threadIdx.x, step->blocks() + tile.block_start, layer, 0, end, end, waited);
        } else {
            for (int first = 0; first < end; first += LatentWgmma<C>::KEYS)
                gather_latents<C, 128>(shared, at, threadIdx.x, step->blocks() + tile.block_start, layer, first, end);
        }
    }
    copy_commit();
    copy_wait<0>();
}

template <class C>
__device__ __forceinline__ void attend_prompt(LatentPromptShared<C>& shared, const Step* step, const typename LatentShape<C>::Operand* queries, float* partials,
                                              int units) {
    using S = LatentShape<C>;
    constexpr int HEADS = C::HEADS, CHUNKS = S::WIDTH / 8;
    const int thread = threadIdx.x % 128, group = threadIdx.x / 128 - 1, lane = thread % 32, g = lane / 4;
    const int first_row = group * 64 + thread / 32 * 16;   // of the warp
    LatentRows<C> rows;
    typename LatentPromptShared<C>::Place at;
    for (int unit = blockIdx.x; unit < units; unit += gridDim.x) {
        const PrefillTile tile = find_tile<C, LATENT_PROMPT_TOKENS<C>>(step, units - 1 - unit, lane);
        const int live_rows = tile.tokens * HEADS;
        int position[2];   // rows beyond repeat the last: finite, and not stored
#pragma unroll
        for (int i = 0; i < 2; ++i) position[i] = tile.position + min(first_row + g + 8 * i, live_rows - 1) / HEADS;
        named_barrier(2 + group, 128);   // products of the unit before have read the queries
#pragma unroll 4
        for (int i = thread; i < 64 * CHUNKS; i += 128) {
            const int row = i / CHUNKS, chunk = i % CHUNKS, from = min(group * 64 + row, live_rows - 1);
            *reinterpret_cast<uint4*>(shared.q[group] + panel_chunk<64>(row, chunk)) =
                load_activation(reinterpret_cast<const uint4*>(queries + (static_cast<size_t>(tile.row) * HEADS + from) * S::WIDTH + chunk * 8));
        }
        fence_async_shared();
        named_barrier(2 + group, 128);
        rows.begin(shared_address(shared.q[group]));
        rows.attend(shared, at, 0, (tile.position + tile.tokens + LatentWgmma<C>::KEYS - 1) / LatentWgmma<C>::KEYS, position,
                    tile.position + first_row / HEADS, thread);
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            const int row = first_row + g + 8 * i;
            float* const to = partials + (static_cast<size_t>(tile.row) * HEADS + row) * S::PARTIAL;
            rows.store(row < live_rows, to, to + S::PART_FLOATS, i, lane);
        }
    }
}

// Arguments as latent_decode's. Launch bounds (WGMMA_THREADS, 1). Grid: as many blocks as SMs, or fewer.
template <class C>
__device__ __forceinline__ void latent_prefill_wgmma(const Step* step, const typename C::Kv* queries, const typename C::Kv* layer, float* partials) {
    static_assert(C::SPLITS == 1 && C::HEADS <= 128, "a prompt's context is not divided");
    MONOMORPH_DYNAMIC_SHARED(latent_swizzled_bytes, 1024);
    LatentPromptShared<C>& shared = *reinterpret_cast<LatentPromptShared<C>*>(latent_swizzled_bytes);
    launch_dependents();
    if (threadIdx.x == 0) shared.begin(128);
    __syncthreads();
    wait_for_predecessors();
    const int units = count_tiles<LATENT_PROMPT_TOKENS<C>>(step, threadIdx.x % 32);
    if (threadIdx.x < 128) {
        registers_release<40>();
        gather_prompt<C>(shared, step, layer, units);
    } else {
        registers_acquire<232>();
        attend_prompt<C>(shared, step, reinterpret_cast<const typename LatentShape<C>::Operand*>(queries), partials, units);
    }
}

}  // namespace monomorph
