// attend_patches: attention of each patch to all patches of its segment (a frame of an image), before it and behind,
// after turn_patches.
//
// Work: a unit is a head and a tile of 128 queries of a segment. Four warps; a warp owns 32 queries and all keys (mma m16n8k16 of f16, f32
// sums, online softmax in f32; weights rounded to f16). Keys and values come in tiles of 64 patches with cp.async, two tiles deep. It is
// attention_prefill's way, whose tiles and products it takes, without blocks, groups or an end that moves. Units are
// numbered over all images and blocks take every (number of blocks)-th, so any grid is correct. A unit asks once
// whose patches it has.
//
// Config: HEADS, HEAD_DIM (up to 128), SCALE. Shared memory: attend_shared_bytes(). Barriers: one a key tile, one a unit.
#pragma once

#include "attention/attention_prefill.cuh"
#include "vision/patches.cuh"

namespace monomorph {

// Patches as attention_prefill's products take them: every head is alone with its keys, which are f16.
template <class C>
struct PatchAttention : AttentionDefaults {
    static constexpr int HEADS = C::HEADS, KV_HEADS = C::HEADS, HEAD_DIM = (C::HEAD_DIM + 15) / 16 * 16, BLOCK_TOKENS = 64, PREFILL_KEYS = 64;
    static constexpr int ROTARY_PAIRS = 0;
    static constexpr bool ROTARY_HALVES = true;
    static constexpr float SCALE = C::SCALE;
    using Kv = __half;
    static_assert(C::HEAD_DIM <= 128, "a warp's registers hold the sums of 32 queries");
};

template <class C>
constexpr size_t attend_shared_bytes() { return sizeof(PrefillShared<PatchAttention<C>>); }
template <class C>
constexpr int ATTEND_THREADS = PrefillShape<PatchAttention<C>>::THREADS;

// A unit: its head, its first query among its segment's patches, and these: the first of them, and how many they are.
template <int HEADS, int QUERIES>
struct PatchUnit {
    int head, first_query, first_patch, segment;

    __device__ __forceinline__ static int tiles_of(const PatchGrid& grid) { return grid.frames * ceil_div(grid.rows * grid.columns, QUERIES); }
    __device__ __forceinline__ static int count(const PatchGrid* images) {
        int tiles = 0;
#pragma unroll
        for (int i = 0; i < PASS_IMAGES; ++i) tiles += tiles_of(images[i]);
        return tiles * HEADS;
    }
    __device__ __forceinline__ PatchUnit(int unit, const PatchGrid* image) : head(unit % HEADS) {
        int tile = unit / HEADS;
        for (int tiles; tile >= (tiles = tiles_of(*image)); ++image) tile -= tiles;
        segment = image->rows * image->columns;
        const int tiles = ceil_div(segment, QUERIES);
        first_query = tile % tiles * QUERIES, first_patch = image->first + tile / tiles * segment;
    }
};

// Keys and values of patches first .. of the segment from `patches` on, of which there are `end`; zeros behind.
template <class P>
__device__ __forceinline__ void stage_patch_keys(PrefillShared<P>& shared, int stage, const __half* patches, int head, int first, int end) {
    using S = PrefillShape<P>;
    for (int item = threadIdx.x; item < S::KEYS * S::CHUNKS; item += S::THREADS) {
        const int key = item / S::CHUNKS, chunk = item % S::CHUNKS, to = key * S::STRIDE + chunk * 8;
        const bool live = first + key < end;
        const size_t row = static_cast<size_t>(live ? first + key : 0) * 3;
        const __half* const from = patches + ((row + 1) * P::HEADS + head) * S::D + chunk * 8;
        copy_16(&shared.stage[stage].keys[to], from, live ? 16 : 0);
        copy_16(&shared.stage[stage].values[to], from + P::HEADS * S::D, live ? 16 : 0);
    }
}

// turned f16 [patches][3][HEADS][HEAD_DIM padded to 16]; out f32 [patches, HEADS HEAD_DIM].
template <class C>
__device__ __forceinline__ void attend_patches(const Step* step, const __half* turned, float* out) {
    using P = PatchAttention<C>;
    using S = PrefillShape<P>;
    constexpr int TILES = S::WARP_TILES, WARP_ROWS = 16 * TILES;
    constexpr float SCALE_2 = C::SCALE * 1.4426950408889634f;  // scores to powers of two
    static_assert(S::COLUMN_WARPS == 1 && S::ASYNCHRONOUS, "heads are narrow, and whole chunks");
    MONOMORPH_DYNAMIC_SHARED(shared_bytes, 16);
    PrefillShared<P>& shared = *reinterpret_cast<PrefillShared<P>*>(shared_bytes);
    launch_dependents();
    wait_for_predecessors();
    const int thread = threadIdx.x, lane = thread % 32, warp = thread / 32, g = lane / 4, c = lane % 4;
    const int first_row = warp * WARP_ROWS;
    const unsigned q_lane = shared_address(&shared.q[(first_row + lane % 16) * S::STRIDE + lane / 16 * 8]);
    const unsigned key_lane = (lane / 16 * 8 + lane % 8) * S::STRIDE * 2 + lane / 8 % 2 * 16;
    const unsigned value_lane = (lane / 8 % 2 * 8 + lane % 8) * S::STRIDE * 2 + lane / 16 * 16;

    using Units = PatchUnit<C::HEADS, S::ROWS>;
    const PatchGrid* const images = patch_grids(step);
    const int units = Units::count(images);
    for (int number = blockIdx.x; number < units; number += gridDim.x) {
        const Units unit(number, images);
        const int head = unit.head, first_query = unit.first_query, first_patch = unit.first_patch, segment = unit.segment;
        const int key_tiles = ceil_div(segment, S::KEYS);
        const __half* const patches = turned + static_cast<size_t>(first_patch) * 3 * C::HEADS * S::D;
        const int live_rows = min(S::ROWS, segment - first_query);
        for (int i = thread; i < S::ROWS * S::CHUNKS; i += S::THREADS) {
            const int row = i / S::CHUNKS, chunk = i % S::CHUNKS;
            const bool live = row < live_rows;
            const size_t from = static_cast<size_t>(first_query + (live ? row : 0)) * 3 * C::HEADS + head;
            copy_16(&shared.q[row * S::STRIDE + chunk * 8], patches + from * S::D + chunk * 8, live ? 16 : 0);
        }
        stage_patch_keys<P>(shared, 0, patches, head, 0, segment);
        copy_commit();

        float context[TILES][S::COLUMNS / 8][4] = {};
        float maximum[TILES][2], sum[TILES][2];
#pragma unroll
        for (int t = 0; t < TILES; ++t)
#pragma unroll
            for (int i = 0; i < 2; ++i) maximum[t][i] = -INFINITY, sum[t][i] = 0.0f;
        for (int key_tile = 0; key_tile < key_tiles; ++key_tile) {
            const int stage = key_tile % 2, first_key = key_tile * S::KEYS;
            copy_wait<0>();
            __syncthreads();  // the tile has arrived, and everyone is done with the one before, whose place the next one takes
            if (key_tile + 1 < key_tiles) stage_patch_keys<P>(shared, 1 - stage, patches, head, first_key + S::KEYS, segment);
            copy_commit();
            if (first_row >= live_rows) continue;
            float scores[TILES][S::KEYS / 8][4];
            multiply_scores<P>(scores, q_lane, shared_address(shared.stage[stage].keys) + key_lane);
            if (first_key + S::KEYS > segment) {
#pragma unroll
                for (int t = 0; t < TILES; ++t)
#pragma unroll
                    for (int n = 0; n < S::KEYS / 8; ++n)
#pragma unroll
                        for (int i = 0; i < 4; ++i)
                            if (first_key + 8 * n + 2 * c + i % 2 >= segment) scores[t][n][i] = -INFINITY;
            }
#pragma unroll
            for (int t = 0; t < TILES; ++t)
#pragma unroll
                for (int i = 0; i < 2; ++i) {
                    float largest = maximum[t][i];
#pragma unroll
                    for (int n = 0; n < S::KEYS / 8; ++n) largest = fmaxf(largest, fmaxf(scores[t][n][2 * i], scores[t][n][2 * i + 1]));
                    largest = fmaxf(largest, __shfl_xor_sync(0xffffffffu, largest, 1));
                    largest = fmaxf(largest, __shfl_xor_sync(0xffffffffu, largest, 2));
                    const float shrink = power_of_two((maximum[t][i] - largest) * SCALE_2), offset = -largest * SCALE_2;
                    maximum[t][i] = largest;
                    float added = 0.0f;
#pragma unroll
                    for (int n = 0; n < S::KEYS / 8; ++n)
#pragma unroll
                        for (int j = 2 * i; j < 2 * i + 2; ++j) {
                            scores[t][n][j] = power_of_two(fmaf(scores[t][n][j], SCALE_2, offset));
                            added += scores[t][n][j];
                        }
                    sum[t][i] = sum[t][i] * shrink + added;
#pragma unroll
                    for (int d = 0; d < S::COLUMNS / 8; ++d) context[t][d][2 * i] *= shrink, context[t][d][2 * i + 1] *= shrink;
                }
            multiply_context<P>(context, scores, shared_address(shared.stage[stage].values) + value_lane);
        }
#pragma unroll
        for (int t = 0; t < TILES; ++t)
#pragma unroll
            for (int i = 0; i < 2; ++i) {
                float total = sum[t][i];
                total += __shfl_xor_sync(0xffffffffu, total, 1);
                total += __shfl_xor_sync(0xffffffffu, total, 2);
                const int row = first_row + 16 * t + g + 8 * i;
                if (row >= live_rows) continue;
                const float inverse = 1.0f / total;
                float* const to = out + (static_cast<size_t>(first_patch + first_query + row) * C::HEADS + head) * C::HEAD_DIM + 2 * c;
#pragma unroll
                for (int d = 0; d < S::COLUMNS / 8; ++d)
                    if (8 * d + 2 * c < C::HEAD_DIM)
                        *reinterpret_cast<float2*>(to + 8 * d) = make_float2(context[t][d][2 * i] * inverse, context[t][d][2 * i + 1] * inverse);
            }
        __syncthreads();  // before the next unit's q
    }
}

}  // namespace monomorph
