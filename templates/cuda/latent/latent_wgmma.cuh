// What latent_decode_wgmma and latent_prefill_wgmma share: 64 rows (token, head) of a warpgroup over tiles of
// the cache's rows, which are keys, and in their leading columns values. For a cache of bf16, or of latents as
// codes, latents of 256 and rows of whole panels of 64 columns.
//
// One or more warps gather tiles into STAGES stages, [WIDTH / 64 panels][KEYS][128 bytes] in the 128-byte
// swizzle. A consumer warpgroup issues a tile's scores before the values of the tile before are multiplied,
// so it holds two tiles. Queries stand in shared memory likewise, Q_ROWS rows of 64: a product's other rows
// are whatever follows (of the last panel, the first stage's rows), and nobody reads what comes of them.
// Barriers of a stage: full (each gathering thread's copies arrive when they have landed) and empty (an
// arrival a consumer warpgroup). Codes are copied ahead, AHEAD tiles of them, into shared memory that is the
// gathering thread's own, from where it converts them into stages.
#pragma once

#include "attention/attention_prefill_wgmma.cuh"
#include "latent/latent_codes.cuh"

namespace monomorph {

// The K/V head that WgmmaRows sees. Its scores have their scale already.
template <class C>
struct OfPrompt : AttentionDefaults {
    static constexpr int HEADS = 1, KV_HEADS = 1, HEAD_DIM = C::LATENT, BLOCK_TOKENS = C::BLOCK_TOKENS;
    using Kv = typename LatentShape<C>::Operand;
    static constexpr float SCALE = 0.6931471805599453f;   // WgmmaRows multiplies by log2(e)
};

// Bytes of a row of codes and its rotated key in the memory of gathering threads.
template <class C>
constexpr int coded_row_bytes() {
    if constexpr (LatentShape<C>::GROUPS) return 8 * StagedGroups<C, 128>::BYTES;
    else return C::LATENT + 2 * C::ROTATED;
}

template <class C>
struct LatentWgmma {
    using P = WgmmaPrefill<OfPrompt<C>>;
    static_assert(C::LATENT == 256 && LatentShape<C>::WIDTH % 64 == 0 && C::TERMS == 1, "else latent_decode");
    static constexpr int KEYS = P::KEYS, PANELS = LatentShape<C>::WIDTH / 64;
    static constexpr int TILE_BYTES = PANELS * P::PANEL_BYTES;
    // Bytes of a tile as codes, with its rotated keys.
    static constexpr int CODED_BYTES = LatentShape<C>::CODES ? KEYS * coded_row_bytes<C>() : 0;
};

template <class C, int GROUPS, int STAGES, int AHEAD_, int ROWS = 64>
struct LatentWgmmaShared {
    using Place = RingPlace<STAGES>;
    static constexpr int AHEAD = AHEAD_;
    static constexpr int Q_ROWS = ROWS, Q_PANEL_BYTES = ROWS * 128;
    static_assert(ROWS == 64 || GROUPS == 1, "the rows that follow are there");
    alignas(1024) unsigned char q[GROUPS][LatentWgmma<C>::PANELS * Q_PANEL_BYTES];
    unsigned char keys[STAGES][LatentWgmma<C>::TILE_BYTES];
    Barrier full[STAGES], empty[STAGES];
    alignas(16) unsigned char coded[AHEAD][LatentWgmma<C>::CODED_BYTES > 0 ? LatentWgmma<C>::CODED_BYTES : 8];

    // By thread 0, before a barrier of the block.
    __device__ __forceinline__ void begin(int gathering) {
#pragma unroll
        for (int stage = 0; stage < STAGES; ++stage) barrier_init(&full[stage], gathering), barrier_init(&empty[stage], GROUPS);
        barrier_init_fence();
    }
};

// A chunk of each panel of a row of the cache, `key` of its block `block`, into a stage as its row `token`;
// zeros where the row is not live.
template <class C>
__device__ __forceinline__ void copy_latent(unsigned char* stage, int chunk, int token, const typename C::Kv* layer, int block, int key, bool live) {
    using S = LatentShape<C>;
    using L = LatentWgmma<C>;
    const typename C::Kv* row = live ? layer + block * S::BLOCK_STRIDE + key % C::BLOCK_TOKENS * S::WIDTH + chunk * 8 : layer;
    unsigned char* const to = stage + token * 128 + (chunk ^ (token % 8)) * 16;
#pragma unroll
    for (int p = 0; p < L::PANELS; ++p) copy_16(to + p * L::P::PANEL_BYTES, row + (live ? 64 * p : 0), live ? 16 : 0);
}

// A tile of the cache's rows into a stage by THREADS threads: a thread has a token of each THREADS / 8, and a
// chunk of each panel. Rows from `end` on are zeros.
template <class C, int THREADS, class Shared>
__device__ __forceinline__ void gather_latents(Shared& shared, typename Shared::Place& at, int thread, const int* blocks, const typename C::Kv* layer, int first,
                                               int end) {
    barrier_wait(&shared.empty[at.stage], at.parity ^ 1);
#pragma unroll 4
    for (int i = 0; i < LatentWgmma<C>::KEYS; i += THREADS / 8) {
        const int token = i + thread / 8, key = first + token;
        copy_latent<C>(shared.keys[at.stage], thread % 8, token, layer, key < end ? blocks[key / C::BLOCK_TOKENS] : 0, key, key < end);
    }
    copies_arrive(&shared.full[at.stage]);
    at.advance();
}

// The same, of which the rows from `cached` on come after the wait.
template <class C, int THREADS, class Shared>
__device__ __forceinline__ void gather_and_wait(Shared& shared, typename Shared::Place& at, int thread, const int* blocks, const typename C::Kv* layer, int first,
                                                int cached, int end) {
    constexpr int BETWEEN = THREADS / 8, EACH = LatentWgmma<C>::KEYS / BETWEEN;
    int block[EACH];
#pragma unroll
    for (int i = 0; i < EACH; ++i) {
        const int key = first + i * BETWEEN + thread / 8;
        block[i] = key < end ? blocks[key / C::BLOCK_TOKENS] : 0;
    }
    const auto copy = [&](bool own) {
#pragma unroll
        for (int i = 0; i < EACH; ++i) {
            const int token = i * BETWEEN + thread / 8, key = first + token;
            if ((key >= cached) == own) copy_latent<C>(shared.keys[at.stage], thread % 8, token, layer, block[i], key, key < end);
        }
    };
    barrier_wait(&shared.empty[at.stage], at.parity ^ 1);
    copy(false);
    wait_for_predecessors();
    copy(true);
    copies_arrive(&shared.full[at.stage]);
    at.advance();
}

// The same of codes by THREADS threads, tile after tile from `first` on, up to row `end`. Rows from `cached` on
// come after the wait, if that has not been `waited` for.
template <class C, int THREADS, class Shared>
__device__ __forceinline__ void gather_codes(Shared& shared, typename Shared::Place& at, int thread, const int* blocks, const typename C::Kv* layer, int first,
                                             int end, int cached, bool& waited) {
    using L = LatentWgmma<C>;
    using Part = LatentPart<C>;
    constexpr int KEYS = L::KEYS, BETWEEN = THREADS / 8, ROWS = KEYS / BETWEEN, EACH = Part::EACH + 1, AHEAD = Shared::AHEAD;
    constexpr int ROW_BYTES = L::CODED_BYTES / ROWS;   // of all threads
    constexpr bool GROUPS = LatentShape<C>::GROUPS;
    static_assert(Part::PIECES % 8 == 0 && Part::KEY_CHUNKS == 8 && (GROUPS || ROWS * EACH * THREADS * 16 == L::CODED_BYTES), "threads have whole rows");
    const int chunk = thread % 8;
    const float scale = latent_scale<C>(layer);
    // A thread's own places are THREADS of 16 bytes apart.
    const auto own = [&](int slot, int row, int i) { return shared.coded[slot] + ((row * EACH + i) * THREADS + thread) * 16; };
    const auto copy = [&](int tile, int slot) {
        if (tile < end) {
            if (!waited && tile + KEYS > cached) wait_for_predecessors(), waited = true;
#pragma unroll
            for (int row = 0; row < ROWS; ++row) {
                const int key = tile + row * BETWEEN + thread / 8, live = key < end ? 16 : 0;
                const KeptLatent<C> from(layer, live ? blocks[key / C::BLOCK_TOKENS] : 0, key % C::BLOCK_TOKENS);
                if constexpr (GROUPS) {
                    StagedGroups<C, THREADS>(shared.coded[slot] + row * ROW_BYTES, thread).copy(live, from, chunk);
                } else {
#pragma unroll
                    for (int i = 0; i < Part::EACH; ++i) copy_16(own(slot, row, i), from.codes + 16 * (chunk + 8 * i), live);
                    copy_16(own(slot, row, Part::EACH), from.rotated + 16 * chunk, live);
                }
            }
        }
        copy_commit();
    };
#pragma unroll
    for (int slot = 0; slot < AHEAD; ++slot) copy(first + slot * KEYS, slot);
    int slot = 0;
#pragma unroll 1
    for (int tile = first; tile < end; tile += KEYS) {
        copy_wait<AHEAD - 1>();
        barrier_wait(&shared.empty[at.stage], at.parity ^ 1);
        unsigned char* const to = shared.keys[at.stage];
#pragma unroll 1   // what other rows would want of registers is not there
        for (int row = 0; row < ROWS; ++row) {
            const int token = row * BETWEEN + thread / 8;
            if constexpr (GROUPS) {
                const StagedGroups<C, THREADS> staged(shared.coded[slot] + row * ROW_BYTES, thread);
                staged.read(chunk).each(chunk, scale, [&](int at, const uint4& operands) { *reinterpret_cast<uint4*>(to + panel_chunk<KEYS>(token, at)) = operands; });
                *reinterpret_cast<uint4*>(to + panel_chunk<KEYS>(token, C::LATENT / 8 + chunk)) = *reinterpret_cast<const uint4*>(staged.key());
            } else {
#pragma unroll
                for (int i = 0; i < Part::EACH; ++i) {
                    const int piece = chunk + 8 * i;
                    // Four of a row's eight threads begin with the second half, so that no bank is met twice.
#pragma unroll
                    for (int j = 0; j < 2; ++j) {
                        const int half = j ^ chunk / 4;
                        const uint2 codes = *reinterpret_cast<const uint2*>(own(slot, row, i) + 8 * half);
                        *reinterpret_cast<uint4*>(to + panel_chunk<KEYS>(token, 2 * piece + half)) = latent_operands(codes.x, codes.y, scale);
                    }
                }
                *reinterpret_cast<uint4*>(to + panel_chunk<KEYS>(token, C::LATENT / 8 + chunk)) = *reinterpret_cast<const uint4*>(own(slot, row, Part::EACH));
            }
        }
        fence_async_shared();
        barrier_arrive(&shared.full[at.stage]);
        at.advance();
        copy(tile + AHEAD * KEYS, slot);
        if (++slot == AHEAD) slot = 0;
    }
}

// A consumer warpgroup's rows.
template <class C>
struct LatentRows : WgmmaRows<OfPrompt<C>> {
    using L = LatentWgmma<C>;
    using P = typename L::P;

    __device__ __forceinline__ void begin(uint32_t q) {
        this->q_at = q;
#pragma unroll
        for (int i = 0; i < 2; ++i) this->maximum[i] = -INFINITY, this->sum[i] = 0.0f;
#pragma unroll
        for (auto& v : this->context) v = 0.0f;
        this->pin_context();   // not known to be zeros: the first round is the same code as the others
    }
    template <int Q_PANEL_BYTES>
    __device__ __forceinline__ void issue_scores(uint32_t keys) {
        wgmma_fence();
#pragma unroll
        for (int k = 0; k < LatentShape<C>::WIDTH; k += 16)
            multiply_bf16(this->scores, wgmma_descriptor(this->q_at + k / 64 * Q_PANEL_BYTES + k % 64 * 2),
                          wgmma_descriptor(keys + k / 64 * P::PANEL_BYTES + k % 64 * 2), k > 0);
        wgmma_commit();
    }
    // The tiles from token `first` on, `tiles` of them. position: of rows g and g + 8; first_position: of the
    // warp's first row.
    template <class Shared>
    __device__ __forceinline__ void attend(Shared& shared, typename Shared::Place& at, int first, int tiles, const int (&position)[2], int first_position, int thread) {
        constexpr int KEYS = L::KEYS;
        const auto wait_full = [&](const typename Shared::Place& place) {
            barrier_wait(&shared.full[place.stage], place.parity);
            fence_async_shared();
        };
        const auto softmax_of = [&](int first_key) {
            this->softmax(first_key + KEYS - 1 > first_position, first_key, position, thread % 4);
        };
        typename Shared::Place next = at, before;
        next.advance();
        wait_full(at);
        this->template issue_scores<Shared::Q_PANEL_BYTES>(shared_address(shared.keys[at.stage]));
        wgmma_wait<0>();
        this->pin_scores();
        softmax_of(first);
        const auto finish_context = [&](bool was_issued) {
            wgmma_wait<0>();
            this->pin_context();
            if (was_issued && thread == 0) barrier_arrive(&shared.empty[before.stage]);
        };
        // The wait for a tile's values stands at the head of the next round: the compiler would move the
        // softmax behind it.
#pragma unroll 1
        for (int tile = 1; tile < tiles; ++tile) {
            finish_context(tile > 1);
            this->take_weights();
            wait_full(next);
            this->template issue_scores<Shared::Q_PANEL_BYTES>(shared_address(shared.keys[next.stage]));
            this->issue_context(shared_address(shared.keys[at.stage]));
            wgmma_wait<1>();
            this->pin_scores();
            softmax_of(first + tile * KEYS);
            before = at;
            at = next;
            next.advance();
        }
        finish_context(tiles > 1);
        this->take_weights();
        this->issue_context(shared_address(shared.keys[at.stage]));
        before = at;
        finish_context(true);
        at.advance();
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            this->sum[i] += __shfl_xor_sync(0xffffffffu, this->sum[i], 1);
            this->sum[i] += __shfl_xor_sync(0xffffffffu, this->sum[i], 2);
        }
    }
    // Row i's (g or g + 8) part goes to `to`, and what belongs to it to `ends`, where the row is live.
    __device__ __forceinline__ void store(bool live, float* to, float* ends, int i, int lane) const {
        float largest = 0.0f;
#pragma unroll
        for (int j = 2 * i; j < C::LATENT / 2; j += 4) largest = fmaxf(largest, fmaxf(fabsf(this->context[j]), fabsf(this->context[j + 1])));
        largest = fmaxf(largest, __shfl_xor_sync(0xffffffffu, largest, 1));
        largest = fmaxf(largest, __shfl_xor_sync(0xffffffffu, largest, 2));
        if (!live) return;
        const PartScale part(largest, this->sum[i]);
#pragma unroll
        for (int k = 0; k < C::LATENT / 32; ++k) {
            unsigned pair[4];
#pragma unroll
            for (int n = 0; n < 4; ++n) {
                const int j = 4 * (4 * k + n) + 2 * i;
                pair[n] = pack_f16(this->context[j] * part.scale, this->context[j + 1] * part.scale);
            }
            reinterpret_cast<uint4*>(to)[4 * k + lane % 4] = make_uint4(pair[0], pair[1], pair[2], pair[3]);
        }
        if (lane % 4 == 0) *reinterpret_cast<float2*>(ends) = part.ends(this->maximum[i], this->sum[i]);
    }
};

}  // namespace monomorph
