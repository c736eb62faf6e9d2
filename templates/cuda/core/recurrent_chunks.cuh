// The sequential part of a recurrent layer's prefill, chunk after chunk (recurrent_chunk.cuh): with S the state before a chunk,
//   V' = U - W S (U itself where it is not CORRECTED),  O = SCALE diag(growth) Q S + P V',  S <- growth_63 S + K^T diag(left) V'
//
// Work: a block owns COLUMNS of a head's values, a warp 16 of them for good, as S transposed in the sums of mma m16n8k16: 16 values x
// KEY_DIM keys. So S is never in memory between chunks, and no warp waits for another: S^T rounded to f16 is the A operand of
// (W S)^T = S^T W^T and (Q S)^T without moving a register, V'^T comes out as the A operand of O^T = V'^T P^T and of S^T += V'^T K. All B
// operands are a chunk's matrices, the same for all warps: bulk copies bring them into a ring of SLOTS pieces, in the order of use W, Q, P
// with the factors, K.
//
// Where a block has a part of a head, a warp besides brings them (BRINGER), and U with P: what a warp waits for is then asked for whatever
// the others do. A block of all 128 columns has eight warps of 255 registers and no room for a ninth: there thread 0 brings, between its own
// products, and each warp loads its U.
#pragma once

#include "core/recurrent_chunk.cuh"

namespace monomorph {

// L: a RecurrentScratch with the factor SCALE of Q S.
template <class L, int COLUMNS_, int SLOTS_, bool BRINGER_ = false>
struct RecurrentChunks {
    static constexpr bool BRINGER = BRINGER_;
    static constexpr int COLUMNS = COLUMNS_, WARPS = COLUMNS / 16, THREADS = 32 * (WARPS + BRINGER), SLOTS = SLOTS_;
    static constexpr int PIECES = L::CORRECTED ? 4 : 3, P_PIECE = L::P + L::FACTORS, U_PIECE = BRINGER ? RECURRENT_CHUNK * COLUMNS * 2 : 0;
    static constexpr int PIECE = L::MATRIX > P_PIECE + U_PIECE ? L::MATRIX : P_PIECE + U_PIECE;
    static_assert(COLUMNS % 16 == 0 && L::VALUE_DIM % COLUMNS == 0, "a warp owns 16 columns");
    static_assert(P_PIECE <= PIECE && SLOTS > PIECES, "a chunk's pieces are on their way when it begins");
};

template <class S>
struct RecurrentChunksShared {
    alignas(128) unsigned char pieces[S::SLOTS][S::PIECE];
    Barrier full[S::SLOTS], empty[S::SLOTS];
};

// A place in the ring.
template <class S>
struct RecurrentRing {
    int slot = 0;
    unsigned parity = 0;
    __device__ __forceinline__ void advance() {
        if (++slot == S::SLOTS) slot = 0, parity ^= 1;
    }
};

// R, S: the layer's RecurrentShape and RecurrentChunks. The block has columns part COLUMNS .. of value head `head`, which reads key head
// `key_head`, of sequence blockIdx.y. scratch: as prepared; state: of the layer; o f32 [rows, VALUES].
template <class R, class L, class S>
__device__ __forceinline__ void recurrent_chunks(const Step* step, const unsigned char* scratch, RecurrentState state, float* o,
                                                 RecurrentChunksShared<S>& shared, int head, int part, int key_head) {
    constexpr int KEY_TILES = L::KEY_DIM / 8, CHUNK = RECURRENT_CHUNK;
    constexpr float SCALE = L::SCALE;
    launch_dependents();
    const int thread = threadIdx.x, lane = thread % 32, warp = thread / 32, g = lane / 4, c = lane % 4;
    if (thread == 0) {
        for (int i = 0; i < S::SLOTS; ++i) {
            barrier_init(&shared.full[i], 1);
            barrier_init(&shared.empty[i], S::WARPS * WARP_ARRIVALS);
        }
        barrier_init_fence();
    }
    __syncthreads();
    wait_for_predecessors();
    if (int(blockIdx.y) >= step->sequences) return;
    const Sequence& sequence = step->sequence[blockIdx.y];
    const int count = sequence.count, position = sequence.position, slot = sequence.slot;
    const int first = recurrent_chunks_before(step, blockIdx.y, lane), chunks = (count + CHUNK - 1) / CHUNK;

    // One thread brings pieces as far ahead as the ring allows: PIECES i, … of chunk i. Where that is thread 0, a piece takes the place of
    // one that its warp was done with a while ago, so that it hardly waits for the others.
    RecurrentRing<S> behind, ahead;
    int brought = 0;
    auto bring = [&](int end) {
        if (thread != (S::BRINGER ? 32 * S::WARPS : 0)) return;
        for (; brought < min(end, S::PIECES * chunks); ++brought, ahead.advance()) {
            const int chunk = first + brought / S::PIECES, which = brought % S::PIECES + 4 - S::PIECES;
            const unsigned char* from = which == 0 ? L::w(scratch, chunk, head) : which == 1 ? L::q(scratch, chunk, key_head)
                                      : which == 2 ? L::p(scratch, chunk, head) : L::k(scratch, chunk, key_head);
            const unsigned bytes = which == 2 ? S::P_PIECE : L::MATRIX;
            barrier_wait(&shared.empty[ahead.slot], ahead.parity ^ 1);
            barrier_expect(&shared.full[ahead.slot], bytes + (which == 2 ? S::U_PIECE : 0));
            bulk_copy(shared.pieces[ahead.slot], from, bytes, &shared.full[ahead.slot]);
            if (S::BRINGER && which == 2)
                bulk_copy(shared.pieces[ahead.slot] + S::P_PIECE, L::u(scratch, chunk, head) + part * S::U_PIECE, S::U_PIECE, &shared.full[ahead.slot]);
        }
    };
    if (S::BRINGER && warp == S::WARPS) {
        bring(S::PIECES * chunks);
        return;
    }
    auto bring_some = [&](int end) {
        if constexpr (!S::BRINGER) bring(end);
    };
    bring_some(S::SLOTS);

    // S: [tile of 8 keys][value g, keys 2c, 2c + 1; value g + 8, those].
    const int tile = part * S::WARPS + warp, column = tile * 16 + g;
    float* own = recurrent_state<R>(state.states, slot, head) + column;
    const int base = recurrent_base<R>(state.journals, slot, position, head);
    float s[KEY_TILES][4];
    auto place = [&](int n, int i) { return (8 * n + 2 * c + i % 2) * L::VALUE_DIM + i / 2 * 8; };
#pragma unroll
    for (int n = 0; n < KEY_TILES; ++n)
#pragma unroll
        for (int i = 0; i < 4; ++i) s[n][i] = base > 0 ? load_streamed(own + place(n, i)) : 0.0f;
    if constexpr (R::DRAFTS > 0) {
        for (int p = base; p < position; ++p) {
            const float* entry = recurrent_journal<R>(state.journals, slot, p);
            const float* k = entry + key_head * L::KEY_DIM + 2 * c;
            const float* delta = entry + R::KEYS + head * L::VALUE_DIM + column;
            const float decay = entry[R::JOURNAL_DECAY + head], deltas[2] = {delta[0], delta[8]};
#pragma unroll
            for (int n = 0; n < KEY_TILES; ++n)
#pragma unroll
                for (int i = 0; i < 4; ++i) s[n][i] = recurrent_update(s[n][i], decay, k[8 * n + i % 2], deltas[i / 2]);
        }
    }

    RecurrentRing<S> place_of;  // of the next piece
    auto piece = [&] {
        const int slot = place_of.slot;
        barrier_wait(&shared.full[slot], place_of.parity);
        place_of.advance();
        return reinterpret_cast<const uint4*>(shared.pieces[slot]) + lane;
    };
    auto release = [&] {
        warp_arrive(&shared.empty[behind.slot], lane);
        behind.advance();
    };

    for (int chunk = 0; chunk < chunks; ++chunk) {
        uint4 u[4];
        if constexpr (!S::BRINGER) {
            const uint4* u_from = reinterpret_cast<const uint4*>(L::u(scratch, first + chunk, head)) + tile * 4 * 32 + lane;
#pragma unroll
            for (int i = 0; i < 4; ++i) u[i] = load_activation(u_from + i * 32);
        }
        bring_some(S::PIECES * chunk - 1 + S::SLOTS);

        // (W S)^T and (Q S)^T: 16 values x 64 tokens.
        [[maybe_unused]] float predicted[8][4] = {};
        float context[8][4] = {};
        const uint4* w = nullptr;
        if constexpr (L::CORRECTED) w = piece();
        const uint4* q = piece();
#pragma unroll
        for (int i = 0; i < L::KEY_DIM / 32; ++i) {
            unsigned a[2][4];
#pragma unroll
            for (int j = 0; j < 8; ++j)
                a[j / 4][j % 4] = pack_f16_finite(s[4 * i + j / 2][j % 2 * 2], s[4 * i + j / 2][j % 2 * 2 + 1]);
#pragma unroll
            for (int n = 0; n < 8; ++n) {
                const uint4 by_w = L::CORRECTED ? w[(i * 8 + n) * 32] : uint4(), by_q = q[(i * 8 + n) * 32];
                if constexpr (L::CORRECTED) mma_f16(predicted[n], a[0][0], a[0][1], a[0][2], a[0][3], by_w.x, by_w.y);
                mma_f16(context[n], a[0][0], a[0][1], a[0][2], a[0][3], by_q.x, by_q.y);
                if constexpr (L::CORRECTED) mma_f16(predicted[n], a[1][0], a[1][1], a[1][2], a[1][3], by_w.z, by_w.w);
                mma_f16(context[n], a[1][0], a[1][1], a[1][2], a[1][3], by_q.z, by_q.w);
            }
        }
        release();
        if constexpr (L::CORRECTED) release();
        bring_some(S::PIECES * chunk + S::SLOTS);

        // V' as the A operand, plain and decayed to the chunk's end: step i is tokens 16i ...
        const uint4* p = piece();
        const float* all_factors = reinterpret_cast<const float*>(reinterpret_cast<const unsigned char*>(p - lane) + L::P);
        const float* factors = all_factors + 2 * c;
        if constexpr (S::BRINGER) {
#pragma unroll
            for (int i = 0; i < 4; ++i) u[i] = p[S::P_PIECE / 16 + (warp * 4 + i) * 32];
        }
        unsigned corrections[4][4], decayed[4][4];
#pragma unroll
        for (int n = 0; n < 8; ++n) {
            const float2 grown = *reinterpret_cast<const float2*>(factors + 8 * n), left = *reinterpret_cast<const float2*>(factors + CHUNK + 8 * n);
            const unsigned words[2] = {n % 2 ? u[n / 2].z : u[n / 2].x, n % 2 ? u[n / 2].w : u[n / 2].y};
#pragma unroll
            for (int i = 0; i < 2; ++i) {
                const float2 pair = unpack_f16(words[i]);
                float low = pair.x, high = pair.y;
                if constexpr (L::CORRECTED) low -= predicted[n][2 * i], high -= predicted[n][2 * i + 1];
                corrections[n / 2][n % 2 * 2 + i] = L::CORRECTED ? pack_f16_finite(low, high) : words[i];
                decayed[n / 2][n % 2 * 2 + i] = pack_f16_finite(low * left.x, high * left.y);
                context[n][2 * i] *= SCALE * grown.x, context[n][2 * i + 1] *= SCALE * grown.y;
            }
        }
        const float decay = all_factors[CHUNK - 1];
#pragma unroll
        for (int i = 0; i < 2; ++i)
#pragma unroll
            for (int n = 4 * i; n < 8; ++n) {  // tokens before the sources see nothing of them
                const uint4 b = p[(i * 8 + n) * 32];
                mma_f16(context[n], corrections[2 * i][0], corrections[2 * i][1], corrections[2 * i][2], corrections[2 * i][3], b.x, b.y);
                if (n >= 4 * i + 2)
                    mma_f16(context[n], corrections[2 * i + 1][0], corrections[2 * i + 1][1], corrections[2 * i + 1][2], corrections[2 * i + 1][3], b.z, b.w);
            }
        release();
        bring_some(S::PIECES * (chunk + 1) - 2 + S::SLOTS);

        const uint4* k = piece();
#pragma unroll
        for (int n = 0; n < KEY_TILES; ++n) {
#pragma unroll
            for (int i = 0; i < 4; ++i) s[n][i] *= decay;
#pragma unroll
            for (int i = 0; i < 2; ++i) {
                const uint4 b = k[(i * KEY_TILES + n) * 32];
                mma_f16(s[n], decayed[2 * i][0], decayed[2 * i][1], decayed[2 * i][2], decayed[2 * i][3], b.x, b.y);
                mma_f16(s[n], decayed[2 * i + 1][0], decayed[2 * i + 1][1], decayed[2 * i + 1][2], decayed[2 * i + 1][3], b.z, b.w);
            }
        }
        release();

        float* to = o + size_t(sequence.first_token + chunk * CHUNK) * R::VALUES + head * L::VALUE_DIM + column;
#pragma unroll
        for (int n = 0; n < 8; ++n)
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                const int token = 8 * n + 2 * c + i % 2;
                if (chunk * CHUNK + token < count) to[size_t(token) * R::VALUES + i / 2 * 8] = context[n][i];
            }
    }
#pragma unroll
    for (int n = 0; n < KEY_TILES; ++n)
#pragma unroll
        for (int i = 0; i < 4; ++i) own[place(n, i)] = s[n][i];
    if (part == 0 && thread == 0) recurrent_set_base<R>(state.journals, slot, position + count - 1, head, position + count);
}

}  // namespace monomorph
