// attend_patches_wgmma: attend_patches on the warpgroup products of sm_90a, for heads that are 64 or 80 wide with their padding.
//
// Work: a unit is a head and a tile of 128 queries of a segment, dealt out as attend_patches does; a block holds a whole SM. Warpgroup 0
// gathers tiles of 128 patches' keys and values with cp.async, warpgroups 1 and 2 own 64 queries each. Tiles, barriers and the order of
// products and softmax are attention_prefill_wgmma's. Of the second panel of 64 columns of heads of 80 the first 16 are filled and read.
//
// Config: HEADS, HEAD_DIM, SCALE. Shared memory: wgmma_prefill_shared_bytes() of PatchAttention. Launch bounds (WGMMA_THREADS, 1).
#pragma once

#include "attention/attention_prefill_wgmma.cuh"
#include "vision/attend_patches.cuh"

namespace monomorph {

template <class C>
constexpr size_t attend_wgmma_shared_bytes() { return wgmma_prefill_shared_bytes<PatchAttention<C>>(); }

enum class PatchVectors { QUERIES, KEYS, VALUES };

constexpr int WGMMA_QUERIES = 128;
template <class P>
using WgmmaUnit = PatchUnit<P::HEADS, WGMMA_QUERIES>;

// A patch of a unit's segment.
template <class P, PatchVectors OF>
__device__ __forceinline__ const __half* row_of(const __half* turned, const WgmmaUnit<P>& unit, int patch) {
    return turned + ((static_cast<size_t>(unit.first_patch + patch) * 3 + static_cast<int>(OF)) * P::HEADS + unit.head) * P::HEAD_DIM;
}

// Keys or values of a tile of patches, zeros behind the segment, and their arrival. Two threads have a row, and every other 16 bytes of it, so
// that they read whole sectors and that all but two addresses are constants apart.
template <class P, PatchVectors OF>
__device__ __forceinline__ void gather_patches(unsigned char* to, Barrier* full, const __half* turned, const WgmmaUnit<P>& unit, int first) {
    constexpr int CHUNKS = P::HEAD_DIM / 8, KEYS = WgmmaPrefill<P>::KEYS, PANEL_BYTES = WgmmaPrefill<P>::PANEL_BYTES;
    const int own = threadIdx.x / 2, odd = threadIdx.x % 2;
    const unsigned base = shared_address(to) + own * 128, swizzle = own % 8 * 16;
#pragma unroll
    for (int row = 0; row < KEYS; row += 64) {
        const bool live = first + row + own < unit.segment;
        const __half* const from = row_of<P, OF>(turned, unit, live ? first + row + own : 0) + odd * 8;
#pragma unroll
        for (int chunk = 0; chunk < CHUNKS; chunk += 2)
            copy_16(base + chunk / 8 * PANEL_BYTES + row * 128 + ((chunk % 8 + odd) * 16 ^ swizzle), from + chunk * 8, live ? 16 : 0);
    }
    copies_arrive(full);
}

// turned f16 [patches][3][HEADS][HEAD_DIM padded to 16]; out f32 [patches, HEADS HEAD_DIM].
template <class C>
__device__ __forceinline__ void attend_patches_wgmma(const Step* step, const __half* turned, float* out) {
    using P = PatchAttention<C>;
    using W = WgmmaPrefill<P>;
    constexpr int D = P::HEAD_DIM, KEYS = W::KEYS;
    static_assert(D == 64 || D == 80, "else attend_patches");
    MONOMORPH_DYNAMIC_SHARED(swizzled_shared_bytes, 1024);
    WgmmaShared<P>& shared = *reinterpret_cast<WgmmaShared<P>*>(swizzled_shared_bytes);
    launch_dependents();
    init_barriers(shared);
    wait_for_predecessors();
    const PatchGrid* const images = patch_grids(step);
    const int units = WgmmaUnit<P>::count(images);
    RingPlace<> at;
    if (threadIdx.x < 128) {
        registers_release<W::GATHER_REGISTERS>();
        for (int number = blockIdx.x; number < units; number += gridDim.x) {
            const WgmmaUnit<P> unit(number, images);
            const int key_tiles = ceil_div(unit.segment, KEYS);
            for (int tile = 0; tile < key_tiles; ++tile, at.advance()) {
                barrier_wait(&shared.keys_empty[at.stage], at.parity ^ 1);
                gather_patches<P, PatchVectors::KEYS>(shared.keys[at.stage], &shared.keys_full[at.stage], turned, unit, tile * KEYS);
                barrier_wait(&shared.values_empty[at.stage], at.parity ^ 1);
                gather_patches<P, PatchVectors::VALUES>(shared.values[at.stage], &shared.values_full[at.stage], turned, unit, tile * KEYS);
            }
        }
        copy_commit();
        copy_wait<0>();
        return;
    }
    registers_acquire<W::REGISTERS>();
    const int thread = threadIdx.x % 128, lane = thread % 32, g = lane / 4, c = lane % 4;
    const int first_row = (threadIdx.x / 128 - 1) * 64 + thread / 32 * 16;  // of the warp
    WgmmaRows<P> rows;
    for (int number = blockIdx.x; number < units; number += gridDim.x) {
        const WgmmaUnit<P> unit(number, images);
        const int key_tiles = ceil_div(unit.segment, KEYS), live_rows = min(WGMMA_QUERIES, unit.segment - unit.first_query);
        const int last[2] = {unit.segment - 1, unit.segment - 1};
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            // Rows beyond repeat the last: finite, and not stored.
            const __half* const from = row_of<P, PatchVectors::QUERIES>(turned, unit, unit.first_query + min(first_row + g + 8 * i, live_rows - 1));
#pragma unroll
            for (int k = 0; k < D; k += 8) rows.q[k / 16][k / 8 % 2 * 2 + i] = *reinterpret_cast<const uint32_t*>(from + k + 2 * c);
            rows.maximum[i] = -INFINITY, rows.sum[i] = 0.0f;
        }
#pragma unroll
        for (auto& v : rows.context) v = 0.0f;
        attend_tiles<P>(shared, rows, at, 0, key_tiles, [&](int tile) { rows.softmax((tile + 1) * KEYS > unit.segment, tile * KEYS, last, c); });
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            float total = rows.sum[i];
            total += __shfl_xor_sync(0xffffffffu, total, 1);
            total += __shfl_xor_sync(0xffffffffu, total, 2);
            const int row = first_row + g + 8 * i;
            if (row >= live_rows) continue;
            const float inverse = 1.0f / total;
            float* const to = out + (static_cast<size_t>(unit.first_patch + unit.first_query + row) * C::HEADS + unit.head) * C::HEAD_DIM + 2 * c;
#pragma unroll
            for (int n = 0; n < D / 8; ++n)
                if (8 * n + 2 * c < C::HEAD_DIM)
                    *reinterpret_cast<float2*>(to + 8 * n) = make_float2(rows.context[4 * n + 2 * i] * inverse, rows.context[4 * n + 2 * i + 1] * inverse);
        }
    }
}

}  // namespace monomorph
