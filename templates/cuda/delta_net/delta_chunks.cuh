// delta_chunks: the sequential part of a delta-net prefill, chunk after chunk (delta_chunk.cuh). delta_prepare goes before, delta_gate after.
//
// Work: block (part of a value head, sequence) of the grid (CHUNK_SPLIT VALUE_HEADS, sequences) owns COLUMNS = 128 / CHUNK_SPLIT columns of S. A warp
// owns 16 of them for good, as S transposed in the sums of mma m16n8k16: 16 values x 128 keys. So S is never in memory between
// chunks, and no warp waits for another: S^T rounded to f16 is the A operand of (W S)^T = S^T W^T and (Q S)^T without moving
// a register, V'^T comes out as the A operand of O^T = V'^T P^T and of S^T += V'^T K. All B operands are a chunk's matrices, the same for all warps:
// bulk copies bring them into a ring of SLOTS pieces of 16 KiB, in the order of use W, Q, P with the factors, K. Thread 0 issues them:
// a warp for that alone would be the third of its quarter of the SM, where two have 255 registers each.
//
// Predicted, H200, 8,192 tokens, 32 value heads: a chunk costs a warp 212 products of 8 clocks of its quarter of the SM, and 112 reads of 512 bytes
// of shared memory, 4 clocks of the SM: CHUNK_SPLIT 2 (64 blocks of 4 warps): 1,700 clocks of products beside 1,800 of reads, with
// what does not overlap 2,400: 128 chunks in 0.17 ms. CHUNK_SPLIT 1 (32 blocks of 8 warps) 0.27 ms, 4 (128 blocks) 0.16 ms but
// 1.5 us of the second-level cache a chunk: 0.2 ms. With many sequences or heads: 1.
// Ring: 5 pieces fit a GB10's 99 KiB, 8 or more an H200.
#pragma once

#include "delta_net/delta_chunk.cuh"

namespace monomorph {

template <class C>
struct DeltaChunks {
    static constexpr int COLUMNS = C::VALUE_DIM / C::CHUNK_SPLIT, WARPS = COLUMNS / 16, THREADS = 32 * WARPS;
    static constexpr int PIECE = DeltaScratch<C>::MATRIX, P_PIECE = DeltaScratch<C>::P + DeltaScratch<C>::FACTORS;
    static_assert(COLUMNS % 16 == 0 && P_PIECE <= PIECE && C::SLOTS >= 5, "a warp owns 16 columns; a chunk's pieces are on their way when it begins");
};

template <class C>
struct DeltaChunksShared {
    alignas(128) unsigned char pieces[C::SLOTS][DeltaChunks<C>::PIECE];
    Barrier full[C::SLOTS], empty[C::SLOTS];
};
template <class C>
constexpr size_t delta_chunks_shared_bytes() { return sizeof(DeltaChunksShared<C>); }

// A place in the ring.
template <class C>
struct DeltaRing {
    int slot = 0;
    unsigned parity = 0;
    __device__ __forceinline__ void advance() {
        if (++slot == C::SLOTS) slot = 0, parity ^= 1;
    }
};

// step; scratch: delta_prepare's; state: of the layer; o f32 [rows, VALUES].
template <class C>
__device__ __forceinline__ void delta_chunks(const Step* step, const unsigned char* scratch, DeltaState state, float* o) {
    using D = DeltaShape<C>;
    using L = DeltaScratch<C>;
    using S = DeltaChunks<C>;
    constexpr int KEY_TILES = C::KEY_DIM / 8;
    constexpr float SCALE = 0.08838834764831845f;  // 1 / sqrt(128)
    MONOMORPH_DYNAMIC_SHARED(delta_shared, 128);
    DeltaChunksShared<C>& shared = *reinterpret_cast<DeltaChunksShared<C>*>(delta_shared);
    launch_dependents();
    const int thread = threadIdx.x, lane = thread % 32, warp = thread / 32, g = lane / 4, c = lane % 4;
    const int head = blockIdx.x / C::CHUNK_SPLIT, part = blockIdx.x % C::CHUNK_SPLIT, key_head = head / D::RATIO;
    if (thread == 0) {
        for (int i = 0; i < C::SLOTS; ++i) {
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
    const int first = delta_chunks_before(step, blockIdx.y, lane), chunks = (count + DELTA_CHUNK - 1) / DELTA_CHUNK;

    // Thread 0 brings pieces as far ahead as the ring allows: 4 i, … of chunk i. A piece takes the place of one that this warp was done
    // with a while ago, so that it hardly waits for the others.
    DeltaRing<C> behind, ahead;
    int brought = 0;
    auto bring = [&](int end) {
        if (thread != 0) return;
        for (; brought < min(end, 4 * chunks); ++brought, ahead.advance()) {
            const int chunk = first + brought / 4, which = brought % 4;
            const unsigned char* from = which == 0 ? L::w(scratch, chunk, head) : which == 1 ? L::q(scratch, chunk, key_head)
                                      : which == 2 ? L::p(scratch, chunk, head) : L::k(scratch, chunk, key_head);
            const unsigned bytes = which == 2 ? S::P_PIECE : S::PIECE;
            barrier_wait(&shared.empty[ahead.slot], ahead.parity ^ 1);
            barrier_expect(&shared.full[ahead.slot], bytes);
            bulk_copy(shared.pieces[ahead.slot], from, bytes, &shared.full[ahead.slot]);
        }
    };
    bring(C::SLOTS);

    // S: [tile of 8 keys][value g, keys 2c, 2c + 1; value g + 8, those].
    const int tile = part * S::WARPS + warp, column = tile * 16 + g;
    float* own = delta_state<C>(state.states, slot, head) + column;
    const int base = delta_base<C>(state.journals, slot, position, head);
    float s[KEY_TILES][4];
    auto place = [&](int n, int i) { return (8 * n + 2 * c + i % 2) * C::VALUE_DIM + i / 2 * 8; };
#pragma unroll
    for (int n = 0; n < KEY_TILES; ++n)
#pragma unroll
        for (int i = 0; i < 4; ++i) s[n][i] = base > 0 ? load_streamed(own + place(n, i)) : 0.0f;
    if constexpr (C::DRAFTS > 0) {
        for (int p = base; p < position; ++p) {
            const float* entry = delta_journal<C>(state.journals, slot, p);
            const float* k = entry + key_head * C::KEY_DIM + 2 * c;
            const float* delta = entry + D::KEYS + head * C::VALUE_DIM + column;
            const float decay = entry[D::JOURNAL_DECAY + head], deltas[2] = {delta[0], delta[8]};
#pragma unroll
            for (int n = 0; n < KEY_TILES; ++n)
#pragma unroll
                for (int i = 0; i < 4; ++i) s[n][i] = delta_update(s[n][i], decay, k[8 * n + i % 2], deltas[i / 2]);
        }
    }

    DeltaRing<C> place_of;  // of the next piece
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
        const uint4* u_from = reinterpret_cast<const uint4*>(L::u(scratch, first + chunk, head)) + tile * 4 * 32 + lane;
        uint4 u[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) u[i] = load_activation(u_from + i * 32);
        bring(4 * chunk - 1 + C::SLOTS);

        // (W S)^T and (Q S)^T: 16 values x 64 tokens.
        float predicted[8][4] = {}, context[8][4] = {};
        const uint4* w = piece();
        const uint4* q = piece();
#pragma unroll
        for (int i = 0; i < C::KEY_DIM / 32; ++i) {
            unsigned a[2][4];
#pragma unroll
            for (int j = 0; j < 8; ++j)
                a[j / 4][j % 4] = pack_f16_finite(s[4 * i + j / 2][j % 2 * 2], s[4 * i + j / 2][j % 2 * 2 + 1]);
#pragma unroll
            for (int n = 0; n < 8; ++n) {
                const uint4 by_w = w[(i * 8 + n) * 32], by_q = q[(i * 8 + n) * 32];
                mma_f16(predicted[n], a[0][0], a[0][1], a[0][2], a[0][3], by_w.x, by_w.y);
                mma_f16(context[n], a[0][0], a[0][1], a[0][2], a[0][3], by_q.x, by_q.y);
                mma_f16(predicted[n], a[1][0], a[1][1], a[1][2], a[1][3], by_w.z, by_w.w);
                mma_f16(context[n], a[1][0], a[1][1], a[1][2], a[1][3], by_q.z, by_q.w);
            }
        }
        release();
        release();
        bring(4 * chunk + C::SLOTS);

        // V' as the A operand, plain and decayed to the chunk's end: step i is tokens 16i ...
        const uint4* p = piece();
        const float* all_factors = reinterpret_cast<const float*>(reinterpret_cast<const unsigned char*>(p - lane) + L::P);
        const float* factors = all_factors + 2 * c;
        unsigned corrections[4][4], decayed[4][4];
#pragma unroll
        for (int n = 0; n < 8; ++n) {
            const float2 grown = *reinterpret_cast<const float2*>(factors + 8 * n), left = *reinterpret_cast<const float2*>(factors + DELTA_CHUNK + 8 * n);
            const unsigned words[2] = {n % 2 ? u[n / 2].z : u[n / 2].x, n % 2 ? u[n / 2].w : u[n / 2].y};
#pragma unroll
            for (int i = 0; i < 2; ++i) {
                const float2 pair = unpack_f16(words[i]);
                const float low = pair.x - predicted[n][2 * i], high = pair.y - predicted[n][2 * i + 1];
                corrections[n / 2][n % 2 * 2 + i] = pack_f16_finite(low, high);
                decayed[n / 2][n % 2 * 2 + i] = pack_f16_finite(low * left.x, high * left.y);
                context[n][2 * i] *= SCALE * grown.x, context[n][2 * i + 1] *= SCALE * grown.y;
            }
        }
        const float decay = all_factors[DELTA_CHUNK - 1];
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
        bring(4 * chunk + 2 + C::SLOTS);

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

        float* to = o + size_t(sequence.first_token + chunk * DELTA_CHUNK) * D::VALUES + head * C::VALUE_DIM + column;
#pragma unroll
        for (int n = 0; n < 8; ++n)
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                const int token = 8 * n + 2 * c + i % 2;
                if (chunk * DELTA_CHUNK + token < count) to[size_t(token) * D::VALUES + i / 2 * 8] = context[n][i];
            }
    }
#pragma unroll
    for (int n = 0; n < KEY_TILES; ++n)
#pragma unroll
        for (int i = 0; i < 4; ++i) own[place(n, i)] = s[n][i];
    if (part == 0 && thread == 0) delta_set_base<C>(state.journals, slot, position + count - 1, head, position + count);
}

}  // namespace monomorph
