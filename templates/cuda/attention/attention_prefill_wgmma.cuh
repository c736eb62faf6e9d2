// attention_prefill_wgmma: what attention_prefill computes, on the warpgroup products of sm_90a. For a cache of bf16, fp8 or a format of
// groups, and heads of 64, 128 or 256; everything else is attention_prefill's.
//
// Work: units and windows as in attention_prefill (128 rows of one sequence and one K/V head), but a block holds a whole SM and takes a unit
// a round: launch min(units, SMs) blocks; any grid is correct. Warpgroup 0 gathers K/V tiles of KEYS keys into
// WGMMA_STAGES stages of shared memory; warpgroups 1 and 2 own 64 rows each. q stays in registers (A), keys are B as they lie, values are
// B transposed by the descriptor (their rows are the summed dimension), weights go from the scores' registers into A's. The sums of heads of
// 256 leave no registers for q, which then stands in shared memory, and for the scores of 64 keys only.
//
// Overlap within a warpgroup: the next tile's scores are issued before this tile's values are multiplied, and the next softmax runs
// while they are; between the two warpgroups, one's softmax hides behind the other's products.
//
// Shared memory (WgmmaShared): per stage keys and values, [HEAD_DIM / 64 panels][KEYS][128 bytes] in the 128-byte swizzle; q likewise, 64 rows
// a warpgroup.
// Barriers: per stage and operand, full (each gathering thread's copies arrive when they have landed) and empty (one arrival a
// consumer warpgroup). The copies are ordinary writes to the async proxy, so consumers fence between the barrier and their products.
// Codes of fp8 and of groups become f16 in the gathering threads' registers (a turbo8's bf16), and all products are of that. Those of fp8
// are copied to shared memory a tile ahead: each thread copies what it converts. What is widened already (attention_prefill_widened) is
// copied as bf16 is. Context vectors of rotated values pass through shared memory, where a warp rotates them back.
#pragma once

#include "attention/attention_prefill.cuh"
#include "attention/widened.cuh"
#include "core/wgmma.cuh"

namespace monomorph {

constexpr int WGMMA_THREADS = 384, WGMMA_STAGES = 2;

// A place in a ring of stages: which stage, and the parity of its use.
template <int STAGES = WGMMA_STAGES>
struct RingPlace {
    int stage = 0;
    unsigned parity = 0;
    __device__ __forceinline__ void advance() {
        if (++stage == STAGES) stage = 0, parity ^= 1;
    }
};

template <class C>
struct WgmmaPrefill {
    using Kv = typename C::Kv;
    static constexpr int D = C::HEAD_DIM, KEYS = D == 256 ? 64 : 128, PANELS = (D + 63) / 64, PANEL_BYTES = KEYS * 128, TILE_BYTES = PANELS * PANEL_BYTES;
    static constexpr bool Q_SHARED = D == 256;
    static constexpr int Q_PANEL_BYTES = 64 * 128, Q_BYTES = PANELS * Q_PANEL_BYTES;   // of a warpgroup
    static constexpr int TOKENS = 128 / AttentionShape<C>::GROUP;                       // of a unit
    static_assert(KEYS % C::BLOCK_TOKENS == 0, "a key tile is whole blocks");
    // Context vectors that a warp rotates back at a time, as far apart as meets no bank conflict. Registers of a gathering thread that
    // decodes, and of the others.
    static constexpr bool ROTATED_VALUES = is_rotated<Kv, Side::Values>();
    static constexpr int ROTATED_ROWS = D == 256 ? 4 : 8, ROTATED_STRIDE = D + 8, ROTATED = ROTATED_VALUES ? ROTATED_ROWS * ROTATED_STRIDE : 1;
    // Bytes of a tile's codes of fp8, copied ahead.
    static constexpr int STAGED_BYTES = std::is_same_v<Kv, E4m3> ? KEYS * D : 0;
    static constexpr int GATHER_REGISTERS = GROUPED<Kv> ? 56 : 40, REGISTERS = GROUPED<Kv> ? 224 : 232;
};

template <class C>
struct WgmmaShared {
    alignas(1024) unsigned char keys[WGMMA_STAGES][WgmmaPrefill<C>::TILE_BYTES];
    unsigned char values[WGMMA_STAGES][WgmmaPrefill<C>::TILE_BYTES];
    unsigned char q[2][WgmmaPrefill<C>::Q_SHARED ? WgmmaPrefill<C>::Q_BYTES : 8];
    unsigned char staged[2][WgmmaPrefill<C>::STAGED_BYTES > 0 ? WgmmaPrefill<C>::STAGED_BYTES : 8];  // of keys, of values
    Barrier keys_full[WGMMA_STAGES], keys_empty[WGMMA_STAGES], values_full[WGMMA_STAGES], values_empty[WGMMA_STAGES];
    alignas(16) float rotated[WgmmaPrefill<C>::ROTATED_VALUES ? 8 : 1][WgmmaPrefill<C>::ROTATED];  // of a warp that multiplies
};

template <class C>
constexpr size_t wgmma_prefill_shared_bytes() { return sizeof(WgmmaShared<C>); }

// For all threads, before the first of them waits.
template <class C>
__device__ __forceinline__ void init_barriers(WgmmaShared<C>& shared) {
    if (threadIdx.x == 0) {
#pragma unroll
        for (int stage = 0; stage < WGMMA_STAGES; ++stage) {
            barrier_init(&shared.keys_full[stage], 128);
            barrier_init(&shared.values_full[stage], 128);
            barrier_init(&shared.keys_empty[stage], 2);
            barrier_init(&shared.values_empty[stage], 2);
        }
        barrier_init_fence();
    }
    __syncthreads();
}

// The units of a block, round after round: longer ones come first, so every other round deals them out in reverse.
__device__ __forceinline__ int unit_of_round(int round) {
    const int blocks = gridDim.x * gridDim.y, own = blockIdx.x + gridDim.x * blockIdx.y;
    return round * blocks + (round % 2 == 0 ? own : blocks - 1 - own);
}

// What a thread of the gathering warpgroup copies of a tile: 16 bytes of every (128 / CHUNKS)-th row, 16 rows from one block of the cache
// at a time. Addresses are computed once for 16 rows; within them they are constants apart.
template <class C>
struct TileGatherer {
    using P = WgmmaPrefill<C>;
    static constexpr int CHUNKS = C::HEAD_DIM / 8, ROWS = 128 / CHUNKS, PIECES = P::KEYS / 16;
    int own_row, from_own, to_own;  // the thread's row of ROWS; elements and bytes from the start of a piece
    int block[PIECES];

    __device__ __forceinline__ TileGatherer() {
        const int chunk = threadIdx.x % CHUNKS;
        own_row = static_cast<int>(threadIdx.x) / CHUNKS;
        from_own = own_row * C::HEAD_DIM + chunk * 8;
        to_own = chunk / 8 * P::PANEL_BYTES + own_row * 128 + ((chunk % 8) ^ (own_row % 8)) * 16;
    }

    // Blocks of the tile at key `first` by find(number among the sequence's), of which a key is among begin .. end.
    template <class Find>
    __device__ __forceinline__ void find_blocks(Find find, int first, int begin, int end) {
#pragma unroll
        for (int i = 0; i < PIECES; ++i) {
            const int key = first + 16 * i;
            const bool wanted = key < end && (!Window<C>::THERE || key + 15 >= begin);
            block[i] = wanted ? find(key / C::BLOCK_TOKENS) : 0;
        }
    }

    // The tile's keys (or values: `from` shifted) into a stage, zeros for those not among begin .. end. `from`: of the K/V head, BLOCK
    // elements from block to block.
    template <size_t BLOCK, class E>
    __device__ __forceinline__ void copy(unsigned char* to, const E* from, int first, int begin, int end) const {
        const unsigned base = shared_address(to) + to_own;
        const auto each = [&](auto&& copy_row) {
#pragma unroll
            for (int i = 0; i < PIECES; ++i) {
                const E* piece = from + block[i] * BLOCK + ((first + 16 * i) % C::BLOCK_TOKENS * C::HEAD_DIM + from_own);
#pragma unroll
                for (int row = 0; row < 16; row += ROWS) {
                    // Where ROWS is 4, every other row of the thread is in the other half of its eight rows.
                    copy_row((row % 8 == 0 ? base : base ^ 64) + (16 * i + row) * 128, piece + row * C::HEAD_DIM, first + 16 * i + row + own_row);
                }
            }
        };
        if (first + P::KEYS <= end && (!Window<C>::THERE || first >= begin)) {
            each([](unsigned there, const E* row, int) { copy_16(there, row); });
        } else {
            each([&](unsigned there, const E* row, int key) {
                const bool live = key < end && (!Window<C>::THERE || key >= begin);
                copy_16(there, live ? row : from, live ? 16 : 0);
            });
        }
    }

    // The place of a thread's 16 bytes of every ROWS-th row, as far from the start of a tile.
    __device__ __forceinline__ int to_row(int row) const { return (row % 8 == 0 ? to_own : to_own ^ 64) + row * 128; }

    // The copies of a thread's codes of fp8, eight of every ROWS-th row, which it alone reads. One group.
    __device__ __forceinline__ void stage(unsigned char* staged, const E4m3* from, int first, int begin, int end) const {
        const unsigned own = shared_address(staged) + threadIdx.x * 8;
        const int column = from_own % C::HEAD_DIM;
#pragma unroll
        for (int row = 0; row < P::KEYS; row += ROWS) {
            const int piece = row / 16, key = first + row + own_row, token = (first + 16 * piece) % C::BLOCK_TOKENS + row % 16 + own_row;
            const bool live = key < end && (!Window<C>::THERE || key >= begin);
            copy_8(own + row / ROWS * 1024, live ? from + block[piece] * AttentionShape<C>::BLOCK_STRIDE + (token * C::HEAD_DIM + column) : from, live ? 8 : 0);
        }
        copy_commit();
    }
    // They as a tile.
    __device__ __forceinline__ void fill_staged(unsigned char* to, Barrier* full, const unsigned char* staged) const {
#pragma unroll
        for (int row = 0; row < P::KEYS; row += ROWS)
            *reinterpret_cast<uint4*>(to + to_row(row)) = widen_eight(*reinterpret_cast<const uint2*>(staged + threadIdx.x * 8 + row / ROWS * 1024));
        fence_async_shared();
        barrier_arrive(full);
    }

    // The same of codes of groups: a thread's eight become 16 bytes. load(held, live, block, token) reads them where they are wanted, and
    // operands(held) converts them. The loads of BATCH rows are under way before the first is converted.
    template <class Held, class Load, class Operands>
    __device__ __forceinline__ void convert(unsigned char* to, int first, int begin, int end, Load load, Operands operands) const {
        constexpr int BATCH = 8;
        static_assert(P::KEYS % (ROWS * BATCH) == 0, "batches are whole");
#pragma unroll
        for (int i = 0; i < P::KEYS; i += ROWS * BATCH) {
            Held held[BATCH] = {};
#pragma unroll
            for (int j = 0; j < BATCH; ++j) {
                const int row = i + j * ROWS, piece = row / 16, key = first + row + own_row;
                const bool live = key < end && (!Window<C>::THERE || key >= begin);
                load(held[j], live, block[piece], (first + 16 * piece) % C::BLOCK_TOKENS + row % 16 + own_row);
            }
#pragma unroll
            for (int j = 0; j < BATCH; ++j) {
                *reinterpret_cast<uint4*>(to + to_row(i + j * ROWS)) = operands(held[j]);
            }
        }
    }

    // A tile of groups and its arrival.
    template <Side SIDE>
    __device__ __forceinline__ void fill_decoded(unsigned char* to, Barrier* full, const typename C::Kv* layer, int kv_head, int first, int begin, int end) const {
        using Row = KeptRow<C, SIDE>;
        using Held = Lot<Row, 1>;
        const int chunk = threadIdx.x % CHUNKS, at = Row::chunk(chunk), scale_at = Row::scale(chunk / 2);
        const auto load = [&](Held& held, bool live, int block, int token) {
            held.template load<false>(live, kept_place<C, SIDE>(layer, block, kv_head, token), at, scale_at);
        };
        convert<Held>(to, first, begin, end, load, [&](const Held& held) { return chunk_operands<C>(held, at, scale_at); });
        fence_async_shared();
        barrier_arrive(full);
    }

    // A tile and its arrival.
    template <size_t BLOCK, class E>
    __device__ __forceinline__ void fill(unsigned char* to, Barrier* full, const E* from, int first, int begin, int end) const {
        copy<BLOCK>(to, from, first, begin, end);
        copies_arrive(full);
    }
};

// The tiles of a unit whose sequence is widened: its block 0 would be number `zero` of the area. keys: there, of the K/V head.
template <class C>
__device__ __forceinline__ void gather_widened(WgmmaShared<C>& shared, TileGatherer<C>& gatherer, RingPlace<>& at,
                                               const typename AttentionShape<C>::Operand* keys, int zero, int begin, int end) {
    using W = Widening<C>;
    constexpr int KEYS = WgmmaPrefill<C>::KEYS;
    for (int first = begin / KEYS * KEYS; first < end; first += KEYS, at.advance()) {
        gatherer.find_blocks([&](int number) { return zero + number; }, first, begin, end);
        barrier_wait(&shared.keys_empty[at.stage], at.parity ^ 1);
        gatherer.template fill<W::BLOCK>(shared.keys[at.stage], &shared.keys_full[at.stage], keys, first, begin, end);
        barrier_wait(&shared.values_empty[at.stage], at.parity ^ 1);
        gatherer.template fill<W::BLOCK>(shared.values[at.stage], &shared.values_full[at.stage], keys + W::VALUES, first, begin, end);
    }
}

template <class C>
__device__ __forceinline__ void gather_units(WgmmaShared<C>& shared, const Step* step, const typename C::Kv* layer,
                                             const typename AttentionShape<C>::Operand* widened, int all_tiles) {
    using A = AttentionShape<C>;
    constexpr int KEYS = WgmmaPrefill<C>::KEYS;
    constexpr bool STAGED = WgmmaPrefill<C>::STAGED_BYTES > 0;
    const int lane = threadIdx.x % 32;
    RingPlace<> at;
    TileGatherer<C> gatherer;
    for (int round = 0, unit; (unit = unit_of_round(round)) < all_tiles * C::KV_HEADS; ++round) {
        const int kv_head = unit % C::KV_HEADS;
        const PrefillTile tile = find_tile<C, WgmmaPrefill<C>::TOKENS>(step, all_tiles - 1 - unit / C::KV_HEADS, lane);
        const int begin = Window<C>::first(tile.position), end = tile.position + tile.tokens;
        const auto blocks = [table = step->blocks() + tile.block_start](int number) { return table[number]; };
        const typename C::Kv* keys = layer + kv_head * AttentionShape<C>::HEAD_STRIDE;
        const typename C::Kv* values = keys + AttentionShape<C>::VALUES;
        const int first_tile = begin / KEYS * KEYS;
        if constexpr (Widening<C>::THERE) {
            const int zero = find_widened<C>(step, tile.sequence, lane);
            if (zero != NOT_WIDENED) {
                gather_widened<C>(shared, gatherer, at, widened + kv_head * Widening<C>::HEAD, zero, begin, end);
                continue;
            }
        }
        if constexpr (STAGED) {
            gatherer.find_blocks(blocks, first_tile, begin, end);
            gatherer.stage(shared.staged[0], keys, first_tile, begin, end);
        }
        for (int first = first_tile; first < end; first += KEYS, at.advance()) {
            Barrier *keys_empty = &shared.keys_empty[at.stage], *values_empty = &shared.values_empty[at.stage];
            Barrier *keys_full = &shared.keys_full[at.stage], *values_full = &shared.values_full[at.stage];
            unsigned char *to_keys = shared.keys[at.stage], *to_values = shared.values[at.stage];
            if constexpr (STAGED) {
                gatherer.stage(shared.staged[1], values, first, begin, end);
                copy_wait<1>();
            } else {
                gatherer.find_blocks(blocks, first, begin, end);
            }
            barrier_wait(keys_empty, at.parity ^ 1);
            if constexpr (STAGED) {
                gatherer.fill_staged(to_keys, keys_full, shared.staged[0]);
                if (first + KEYS < end) {
                    gatherer.find_blocks(blocks, first + KEYS, begin, end);
                    gatherer.stage(shared.staged[0], keys, first + KEYS, begin, end);
                } else {
                    copy_commit();  // a group as everywhere else
                }
                copy_wait<1>();
            } else if constexpr (GROUPED<typename C::Kv>) {
                gatherer.template fill_decoded<Side::Keys>(to_keys, keys_full, layer, kv_head, first, begin, end);
            } else {
                gatherer.template fill<A::BLOCK_STRIDE>(to_keys, keys_full, keys, first, begin, end);
            }
            barrier_wait(values_empty, at.parity ^ 1);
            if constexpr (STAGED) gatherer.fill_staged(to_values, values_full, shared.staged[1]);
            else if constexpr (GROUPED<typename C::Kv>) gatherer.template fill_decoded<Side::Values>(to_values, values_full, layer, kv_head, first, begin, end);
            else gatherer.template fill<A::BLOCK_STRIDE>(to_values, values_full, values, first, begin, end);
        }
    }
    copy_commit();
    copy_wait<0>();
}

// A consumer warpgroup's rows: scores, softmax, context.
template <class C>
struct WgmmaRows {
    using A = AttentionShape<C>;
    using P = WgmmaPrefill<C>;
    static constexpr int D = C::HEAD_DIM, KEYS = P::KEYS;
    static constexpr float SCALE_2 = C::SCALE * 1.4426950408889634f;
    static constexpr bool F16 = std::is_same_v<typename A::Operand, __half>;
    float key_scale;   // of a cache with static scales
    uint32_t q[P::Q_SHARED ? 1 : D / 16][4];
    uint64_t q_at;   // the descriptor of those in shared memory
    float scores[KEYS / 2], context[D / 2];
    uint32_t weights[KEYS / 16][4];
    float maximum[2], sum[2], shrink[2];

    __device__ __forceinline__ void issue_scores(uint32_t keys) {
        const uint64_t tile = wgmma_descriptor(keys);
        wgmma_fence();
#pragma unroll
        for (int k = 0; k < D; k += 16) {
            const uint64_t b = wgmma_further(tile, k / 64 * P::PANEL_BYTES + k % 64 * 2);
            if constexpr (P::Q_SHARED) {
                const uint64_t a = wgmma_further(q_at, k / 64 * P::Q_PANEL_BYTES + k % 64 * 2);
                if constexpr (F16) multiply_f16(scores, a, b, k > 0);
                else multiply_bf16(scores, a, b, k > 0);
            } else {
                if constexpr (F16) WgmmaShape<KEYS>::multiply(scores, q[k / 16], b, k > 0);
                else multiply_bf16(scores, q[k / 16], b, k > 0);
            }
        }
        wgmma_commit();
    }
    __device__ __forceinline__ void issue_context(uint32_t values) {
        const uint64_t tile = wgmma_rows_descriptor(values, P::PANEL_BYTES);
        wgmma_fence();
#pragma unroll
        for (int k = 0; k < KEYS; k += 16) {
            const uint64_t b = wgmma_further(tile, k * 128);
            if constexpr (F16) multiply_rows_f16(context, weights[k / 16], b);
            else multiply_rows(context, weights[k / 16], b);
        }
        wgmma_commit();
    }
    // first_key: of the tile; position: of rows g and g + 8.
    __device__ __forceinline__ void softmax(bool masked, int first_key, const int (&position)[2], int c) {
        float scale_2 = SCALE_2;
        if constexpr (STATIC_SCALES<typename C::Kv>) scale_2 *= key_scale;
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            if (masked) {
                const int last_key = position[i] - first_key, seen = Window<C>::first(position[i]) - first_key;
#pragma unroll
                for (int n = 0; n < KEYS / 8; ++n)
#pragma unroll
                    for (int j = 0; j < 2; ++j) {
                        const int key = 8 * n + 2 * c + j;
                        if (key > last_key || (Window<C>::THERE && key < seen)) scores[4 * n + 2 * i + j] = -INFINITY;
                    }
            }
            float largest = maximum[i];
#pragma unroll
            for (int n = 0; n < KEYS / 8; ++n) largest = fmaxf(largest, fmaxf(scores[4 * n + 2 * i], scores[4 * n + 2 * i + 1]));
            largest = fmaxf(largest, __shfl_xor_sync(0xffffffffu, largest, 1));
            largest = fmaxf(largest, __shfl_xor_sync(0xffffffffu, largest, 2));
            const float origin = Window<C>::finite(largest), offset = -origin * scale_2;
            shrink[i] = power_of_two((maximum[i] - origin) * scale_2);
            maximum[i] = largest;
            float added = 0.0f;
#pragma unroll
            for (int n = 0; n < KEYS / 8; ++n)
#pragma unroll
                for (int j = 4 * n + 2 * i; j < 4 * n + 2 * i + 2; ++j) {
                    scores[j] = power_of_two(fmaf(scores[j], scale_2, offset));
                    added += scores[j];
                }
            sum[i] = sum[i] * shrink[i] + added;
        }
    }
    // Once the products before are done: their sums to the new maximum, the scores' weights in A's place.
    __device__ __forceinline__ void take_weights() {
        // Few tiles bring a row a larger score than all before; sums of narrower heads are multiplied as quickly as that is found out.
        if (!P::Q_SHARED || !__all_sync(0xffffffffu, shrink[0] == 1.0f && shrink[1] == 1.0f)) {
#pragma unroll
            for (int d = 0; d < D / 2; ++d) context[d] *= shrink[d / 2 % 2];
        }
#pragma unroll
        for (int k = 0; k < KEYS / 16; ++k)
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                const float first = scores[8 * k + 2 * i], second = scores[8 * k + 2 * i + 1];
                weights[k][i] = F16 ? pack_f16(first, second) : pack_bf16(first, second);
            }
    }
    __device__ __forceinline__ void pin_scores() {
#pragma unroll
        for (auto& v : scores) pin(v);
    }
    __device__ __forceinline__ void pin_context() {
#pragma unroll
        for (auto& v : context) pin(v);
    }
};

// A unit's key tiles first_tile .. key_tiles, in the order in which they arrive from `at` on. softmax(tile): of the rows' scores.
template <class C, class Softmax>
__device__ __forceinline__ void attend_tiles(WgmmaShared<C>& shared, WgmmaRows<C>& rows, RingPlace<>& at, int first_tile, int key_tiles, Softmax softmax) {
    const int thread = threadIdx.x % 128;
    auto wait_full = [](Barrier* barrier, unsigned parity) {
        barrier_wait(barrier, parity);
        fence_async_shared();
    };
    RingPlace<> next = at;
    next.advance();
    wait_full(&shared.keys_full[at.stage], at.parity);
    rows.issue_scores(shared_address(shared.keys[at.stage]));
    wgmma_wait<0>();
    rows.pin_scores();
    if (thread == 0) barrier_arrive(&shared.keys_empty[at.stage]);
    softmax(first_tile);
    RingPlace<> before;
    auto finish_context = [&](bool was_issued) {
        wgmma_wait<0>();
        rows.pin_context();
        if (was_issued && thread == 0) barrier_arrive(&shared.values_empty[before.stage]);
    };
    // The wait for a tile's values stands at the head of the next round: the compiler would move the softmax behind it.
    for (int key_tile = first_tile + 1; key_tile < key_tiles; ++key_tile) {
        finish_context(key_tile > first_tile + 1);
        rows.take_weights();
        wait_full(&shared.keys_full[next.stage], next.parity);
        rows.issue_scores(shared_address(shared.keys[next.stage]));
        wait_full(&shared.values_full[at.stage], at.parity);
        rows.issue_context(shared_address(shared.values[at.stage]));
        wgmma_wait<1>();
        rows.pin_scores();
        if (thread == 0) barrier_arrive(&shared.keys_empty[next.stage]);
        softmax(key_tile);
        before = at;
        at = next;
        next.advance();
    }
    finish_context(key_tiles > first_tile + 1);
    rows.take_weights();
    wait_full(&shared.values_full[at.stage], at.parity);
    rows.issue_context(shared_address(shared.values[at.stage]));
    before = at;
    finish_context(true);
    at.advance();
}

template <class C>
__device__ __forceinline__ void attend_units(WgmmaShared<C>& shared, const Step* step, const typename AttentionShape<C>::Operand* q,
                                             const typename C::Kv* layer, float* out, const float* qkv, int all_tiles) {
    using A = AttentionShape<C>;
    using P = WgmmaPrefill<C>;
    constexpr int D = C::HEAD_DIM, GROUP = A::GROUP, KEYS = P::KEYS;
    const int thread = threadIdx.x % 128, group = threadIdx.x / 128 - 1, lane = thread % 32, g = lane / 4, c = lane % 4;
    const int first_row = group * 64 + thread / 32 * 16;  // of the warp
    WgmmaRows<C> rows;
    if constexpr (P::Q_SHARED) rows.q_at = wgmma_descriptor(shared_address(shared.q[group]));
    RingPlace<> at;
    const auto q_row = [&](const PrefillTile& tile, int kv_head, int row) {
        return q + ((static_cast<size_t>(tile.row) + row / GROUP) * C::HEADS + kv_head * GROUP + row % GROUP) * D;
    };
    for (int round = 0, unit; (unit = unit_of_round(round)) < all_tiles * C::KV_HEADS; ++round) {
        const int kv_head = unit % C::KV_HEADS;
        const PrefillTile tile = find_tile<C, WgmmaPrefill<C>::TOKENS>(step, all_tiles - 1 - unit / C::KV_HEADS, lane);
        const int live_rows = tile.tokens * GROUP, end = tile.position + tile.tokens;
        rows.key_scale = static_scale<C>(layer, Side::Keys, kv_head);
        const float value_scale = static_scale<C>(layer, Side::Values, kv_head);
        const int first_tile = Window<C>::first(tile.position) / KEYS, key_tiles = (end + KEYS - 1) / KEYS;
        int position[2];
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            const int row = min(first_row + g + 8 * i, live_rows - 1);  // rows beyond repeat the last, unstored
            position[i] = tile.position + row / GROUP;
            if constexpr (!P::Q_SHARED) {
                const typename A::Operand* from = q_row(tile, kv_head, row);
#pragma unroll
                for (int k = 0; k < D; k += 8) rows.q[k / 16][k / 8 % 2 * 2 + i] = *reinterpret_cast<const uint32_t*>(from + k + 2 * c);
            }
            rows.maximum[i] = -INFINITY, rows.sum[i] = 0.0f;
        }
        if constexpr (P::Q_SHARED) {
            named_barrier(2 + group, 128);  // the unit before has read it
#pragma unroll 4
            for (int i = thread; i < 64 * D / 8; i += 128) {
                const int row = i / (D / 8), chunk = i % (D / 8);
                const uint4 eight = *reinterpret_cast<const uint4*>(q_row(tile, kv_head, min(group * 64 + row, live_rows - 1)) + chunk * 8);
                *reinterpret_cast<uint4*>(shared.q[group] + chunk / 8 * P::Q_PANEL_BYTES + row * 128 + ((chunk % 8) ^ (row % 8)) * 16) = eight;
            }
            fence_async_shared();
            named_barrier(2 + group, 128);
        }
#pragma unroll
        for (auto& v : rows.context) v = 0.0f;
        const int first_position = tile.position + first_row / GROUP, last_position = tile.position + (first_row + 15) / GROUP;
        auto softmax = [&](int key_tile) {
            const int first_key = key_tile * KEYS;
            const bool is_cut = Window<C>::THERE && first_key < Window<C>::first(last_position);
            rows.softmax(first_key + KEYS - 1 > first_position || is_cut, first_key, position, c);
        };

        attend_tiles<C>(shared, rows, at, first_tile, key_tiles, softmax);

#pragma unroll
        for (int i = 0; i < 2; ++i) {
            float total = rows.sum[i];
            total += __shfl_xor_sync(0xffffffffu, total, 1);
            total += __shfl_xor_sync(0xffffffffu, total, 2);
            const float inverse = value_scale / total;
            const int row = first_row + g + 8 * i;
            if constexpr (P::ROTATED_VALUES) {
                float* vectors = shared.rotated[group * 4 + thread / 32];
#pragma unroll 1
                for (int part = 0; part < 8; part += P::ROTATED_ROWS) {
                    __syncwarp();
                    if (g / P::ROTATED_ROWS * P::ROTATED_ROWS == part) {
#pragma unroll
                        for (int n = 0; n < D / 8; ++n)
                            *reinterpret_cast<float2*>(vectors + g % P::ROTATED_ROWS * P::ROTATED_STRIDE + 8 * n + 2 * c) =
                                make_float2(rows.context[4 * n + 2 * i] * inverse, rows.context[4 * n + 2 * i + 1] * inverse);
                    }
                    __syncwarp();
                    const int first = first_row + 8 * i + part;
#pragma unroll 1
                    for (int at_once = 0; at_once < min(P::ROTATED_ROWS, live_rows - first); ++at_once) {
                        HeadVector<C> vector;
                        vector.load(vectors + at_once * P::ROTATED_STRIDE, lane);
                        const int from = first + at_once;
                        store_rotated<C>(out, qkv, tile.row + from / GROUP, (kv_head * GROUP + from % GROUP) * D, vector, lane);
                    }
                }
            } else if (row < live_rows) {
                const int column = (kv_head * GROUP + row % GROUP) * D + 2 * c;
#pragma unroll
                for (int n = 0; n < D / 8; ++n) {
                    float pair[2] = {rows.context[4 * n + 2 * i] * inverse, rows.context[4 * n + 2 * i + 1] * inverse};
                    gate_context<C>(qkv, tile.row + row / GROUP, column + 8 * n, pair);
                    store_context<C>(out, tile.row + row / GROUP, column + 8 * n, pair);
                }
            }
        }
    }
}

// Arguments as attention_prefill's; widened: attention_prefill_widened's area. Launch bounds (WGMMA_THREADS, 1): the registers of a whole
// SM are dealt out unevenly.
template <class C>
__device__ __forceinline__ void attention_prefill_wgmma(const Step* step, const typename AttentionShape<C>::Operand* q,
                                                        const typename C::Kv* layer, float* out, const float* qkv = nullptr,
                                                        const typename AttentionShape<C>::Operand* widened = nullptr) {
    using Kv = typename C::Kv;
    static_assert((std::is_same_v<Kv, __nv_bfloat16> || std::is_same_v<Kv, E4m3> || GROUPED<Kv>) && (C::HEAD_DIM == 64 || C::HEAD_DIM == 128 || C::HEAD_DIM == 256), "else attention_prefill");
    MONOMORPH_DYNAMIC_SHARED(swizzled_shared_bytes, 1024);
    WgmmaShared<C>& shared = *reinterpret_cast<WgmmaShared<C>*>(swizzled_shared_bytes);
    launch_dependents();
    init_barriers(shared);
    wait_for_predecessors();
    const int all_tiles = count_tiles<WgmmaPrefill<C>::TOKENS>(step, threadIdx.x % 32);
    if (threadIdx.x < 128) {
        registers_release<WgmmaPrefill<C>::GATHER_REGISTERS>();
        gather_units<C>(shared, step, layer, widened, all_tiles);
    } else {
        registers_acquire<WgmmaPrefill<C>::REGISTERS>();
        attend_units<C>(shared, step, q, layer, out, qkv, all_tiles);
    }
}

}  // namespace monomorph
