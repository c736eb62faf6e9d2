// attention_decode: one token a sequence. Norm and rotary of its q and k heads, its K/V into the cache, attention over the
// context, all in one launch.
//
// Work: block (split, K/V head, row) of the grid (SPLITS, KV_HEADS, rows of the bucket), DECODE_WARPS warps. The context of
// n tokens is cut into chunks of whole warp tiles, as many as SPLITS but none below MIN_CHUNK; blocks without a chunk end. All
// query heads of the K/V head are one tile of 16 rows, so K and V are read once. A warp takes every DECODE_WARPS-th tile of 16
// tokens of the chunk and keeps its own running maximum, sum and context vector; the block's warps meet in shared memory, the
// blocks of a (row, K/V head) in `partials`: the last to arrive at the counter adds all of them up in the order of the splits
// and sets the counter back to zero. A chunk that is the whole context goes to `out` at once.
//
// Products run on the tensor cores straight from registers: a lane's 16-byte load of a key row is the B fragment of two
// m16n8k16 steps if q's columns (A, a row a head) are permuted alike; value rows become A fragments (a row a column of V) by
// pairing two tokens' halves with one byte permute, and the scores' fragment is the B fragment of their weights. Nothing passes
// through shared memory, no element is converted, and the products of a tile take a tenth of the time its bytes do. Therefore q
// and the softmax weights enter as two terms, rounded to 16 bits plus what that lost: 16 bits of mantissa. With up to 8
// query heads q's second term fills the tile's other 8 rows. An f32 cache is multiplied as two bf16 terms.
//
// The token's own K/V row is never read from memory: the block whose chunk holds its position (the last) computes it, writes it
// to the cache, and puts it into the registers of the tile it belongs to.
//
// Latency: header, block table and K/V are a chain of three reads; the first tile's loads are issued before the prologue's
// arithmetic, each tile's before the previous tile's products that do not need the registers.
//
// Barriers: one after the prologue, one before the warps meet; two more where blocks meet. Shared memory: DecodeShared.
// Scratch: partials decode_partials_bytes, counters decode_counters (ints, zero before the first launch, left zero).
#pragma once

#include "attention.cuh"

namespace monomorph {

template <class C>
struct DecodeShape {
    static constexpr int GROUP = AttentionShape<C>::GROUP, WARPS = C::DECODE_WARPS, THREADS = 32 * WARPS;
    static constexpr int KEY_STEPS = (C::HEAD_DIM + 31) / 32;    // a lane reads 8 of 32 columns of a key row at a time
    static constexpr int VALUE_STEPS = (C::HEAD_DIM + 63) / 64;  // and 8 of 64 columns of a value row
    static constexpr int HEAD_SETS = (GROUP + 7) / 8;            // query heads in eights
    static constexpr int Q_FRAGMENTS = 2 * KEY_STEPS;            // m16n8k16 steps over the columns of a key
    static constexpr int ITEMS = (GROUP + 2 + WARPS - 1) / WARPS;  // prologue heads of a warp: q heads, then k, then v
    static constexpr int PARTIAL = (GROUP * (C::HEAD_DIM + 2) + 3) / 4 * 4;  // floats: context vectors, maxima, sums
    // What a warp loads ahead, as registers allow. EARLY: the next tile's keys and values, each as soon as its registers are
    // free. Else a tile's values once its keys are multiplied, the next keys after that. PIECEWISE: nothing ahead.
    static constexpr int KEY_REGISTERS = 4 * sizeof(typename C::Kv) * KEY_STEPS, CONTEXT_REGISTERS = 16 * VALUE_STEPS * HEAD_SETS;
    static constexpr bool EARLY = CONTEXT_REGISTERS + 2 * KEY_REGISTERS < 128;
    static constexpr bool PIECEWISE = CONTEXT_REGISTERS + KEY_REGISTERS > 160;
    static constexpr int ROW_BYTES = C::HEAD_DIM * sizeof(typename C::Kv);
    static constexpr int VECTOR = C::HEAD_DIM % 4 == 0 ? 4 : 1;
    static_assert(C::MIN_CHUNK % 16 == 0, "a chunk is whole tiles");
};

template <class C>
struct DecodeShared {
    using S = DecodeShape<C>;
    using Operand = typename AttentionShape<C>::Operand;
    // q scaled by SCALE log2(e) as A fragments, a lane's four words side by side. Rows g and g + 8 of a fragment are the two terms
    // of head g; with more than eight heads they are heads g and g + 8, and the terms are two fragments.
    alignas(16) Operand q[S::HEAD_SETS][S::Q_FRAGMENTS][32][8];
    alignas(16) typename C::Kv key[S::KEY_STEPS * 32];     // the token's own, rounded to the cache's format, zero beyond the head
    alignas(16) typename C::Kv value[S::VALUE_STEPS * 64];
    alignas(16) float context[S::WARPS][S::GROUP * C::HEAD_DIM];
    float maximum[S::WARPS][S::GROUP], sum[S::WARPS][S::GROUP];
    float split_maximum[C::SPLITS][S::GROUP], split_sum[C::SPLITS][S::GROUP];
    int last;
};

// Dynamic shared memory of the launch.
template <class C>
constexpr size_t decode_shared_bytes() { return sizeof(DecodeShared<C>); }
// Bytes of `partials` for a bucket of `rows`.
template <class C>
constexpr size_t decode_partials_bytes(int rows) {
    return C::SPLITS == 1 ? 0 : sizeof(float) * rows * C::KV_HEADS * C::SPLITS * DecodeShape<C>::PARTIAL;
}
// Number of ints in `counters`.
template <class C>
constexpr int decode_counters(int rows) { return rows * C::KV_HEADS; }

// Eight elements of a K/V row in registers.
template <class E>
struct Chunk {
    uint32_t word[2 * sizeof(E)];
    __device__ __forceinline__ E* elements() { return reinterpret_cast<E*>(word); }
};

// Columns column .. column + 8 of a row of the cache, those beyond HEAD_DIM zero. from: the first of them. Where `live` is false
// nothing is read and the chunk stays as it is.
template <class C>
__device__ __forceinline__ void load_chunk(Chunk<typename C::Kv>& chunk, const typename C::Kv* from, int column, bool live) {
    using E = typename C::Kv;
    if constexpr (C::HEAD_DIM % 8 == 0) {
        live = live && column < C::HEAD_DIM;
#pragma unroll
        for (int i = 0; i < 2 * sizeof(E); i += 4)
            asm volatile(
                "{.reg .pred live; setp.ne.b32 live, %5, 0; @live ld.global.L1::no_allocate.v4.b32 {%0, %1, %2, %3}, [%4];}"
                : "+r"(chunk.word[i]), "+r"(chunk.word[i + 1]), "+r"(chunk.word[i + 2]), "+r"(chunk.word[i + 3])
                : "l"(reinterpret_cast<const uint32_t*>(from) + i), "r"(static_cast<int>(live)));
    } else if (live) {
        E element[8];
#pragma unroll
        for (int j = 0; j < 8; ++j) element[j] = column + j < C::HEAD_DIM ? from[j] : E(0.0f);
#pragma unroll
        for (int i = 0; i < 2 * sizeof(E); ++i) {
            if constexpr (sizeof(E) == 4)
                chunk.word[i] = __float_as_uint(element[i]);
            else
                chunk.word[i] = static_cast<uint32_t>(*reinterpret_cast<uint16_t*>(&element[2 * i])) |
                                static_cast<uint32_t>(*reinterpret_cast<uint16_t*>(&element[2 * i + 1])) << 16;
        }
    }
}

// The same of the token's own row in shared memory, which is padded.
template <class E>
__device__ __forceinline__ void load_own(Chunk<E>& chunk, const E* from) {
#pragma unroll
    for (int i = 0; i < 2 * sizeof(E); i += 4) {
        const uint4 words = *reinterpret_cast<const uint4*>(reinterpret_cast<const uint32_t*>(from) + i);
        chunk.word[i] = words.x, chunk.word[i + 1] = words.y, chunk.word[i + 2] = words.z, chunk.word[i + 3] = words.w;
    }
}

// Scores of 8 tokens += q * keys for one step of 16 columns; the lane's words of token g are b0 and b1.
template <class C>
__device__ __forceinline__ void multiply_keys(float (&scores)[4], const uint4 (&q)[DecodeShape<C>::HEAD_SETS], uint32_t b0, uint32_t b1) {
#pragma unroll
    for (int i = 0; i < DecodeShape<C>::HEAD_SETS; ++i)
        mma_16<typename AttentionShape<C>::Operand>(scores, {q[i].x, q[i].y, q[i].z, q[i].w}, b0, b1);
}

// Context vectors += values * weights for the lane's columns 2m, 2m + 1 of its chunks; values are tokens 2c, 2c+1, 2c+8, 2c+9,
// weights two terms of two pairs of those tokens.
template <class C>
__device__ __forceinline__ void multiply_values(float (&context)[DecodeShape<C>::HEAD_SETS][4],
                                                const uint32_t (&weights)[DecodeShape<C>::HEAD_SETS][2][2],
                                                const Chunk<typename C::Kv> (&values)[4], int m) {
    using Operand = typename AttentionShape<C>::Operand;
    constexpr int TERMS = sizeof(typename C::Kv) / 2;
    uint32_t a[TERMS][4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {  // columns 2m, 2m + 1 of the first two tokens, then of the others
        if constexpr (TERMS == 1)
            a[0][i] = __byte_perm(values[i / 2 * 2].word[m], values[i / 2 * 2 + 1].word[m], i % 2 ? 0x7632 : 0x5410);
        else
            split_pair<Operand>(__uint_as_float(values[i / 2 * 2].word[2 * m + i % 2]),
                                __uint_as_float(values[i / 2 * 2 + 1].word[2 * m + i % 2]), a[0][i], a[TERMS - 1][i]);
    }
#pragma unroll
    for (int r = 0; r < DecodeShape<C>::HEAD_SETS; ++r)
#pragma unroll
        for (int term = 0; term < 2; ++term)
#pragma unroll
            for (int t = 0; t < TERMS; ++t) mma_16<Operand>(context[r], a[t], weights[r][term][0], weights[r][term][1]);
}

// Adds up what the splits left in `partials` and writes the row's context vectors of this K/V head. All reads of a thread are
// under way at once: the second-level cache's latency is paid once for up to BATCH splits.
template <class C>
__device__ __forceinline__ void combine_splits(DecodeShared<C>& shared, const float* partials, int used, int row, int kv_head,
                                               typename AttentionShape<C>::Out* out) {
    using S = DecodeShape<C>;
    constexpr int V = S::VECTOR, BATCH = C::SPLITS < 16 ? C::SPLITS : 16;
    for (int i = threadIdx.x; i < used * S::GROUP; i += S::THREADS) {
        const float* from = partials + i / S::GROUP * S::PARTIAL + S::GROUP * C::HEAD_DIM + i % S::GROUP;
        shared.split_maximum[0][i] = __ldcg(from);
        shared.split_sum[0][i] = __ldcg(from + S::GROUP);
    }
    constexpr int ELEMENTS = S::GROUP * C::HEAD_DIM;
    float v[BATCH][V];
    auto load = [&](int e, int first) {
#pragma unroll
        for (int b = 0; b < BATCH; ++b) {
            const float* from = partials + min(first + b, used - 1) * S::PARTIAL + e;
            if constexpr (V == 4)
                *reinterpret_cast<float4*>(v[b]) = __ldcg(reinterpret_cast<const float4*>(from));
            else
                v[b][0] = __ldcg(from);
        }
    };
    const int own = threadIdx.x * V;
    load(min(own, ELEMENTS - V), 0);
    __syncthreads();
    for (int e = own; e < ELEMENTS; e += S::THREADS * V) {
        const int head = e / C::HEAD_DIM;
        float mixed[V] = {}, total = 0.0f, largest = -INFINITY;
        for (int s = 0; s < used; ++s) largest = fmaxf(largest, shared.split_maximum[s][head]);
        for (int first = 0; first < used; first += BATCH) {
            if (first > 0 || e != own) load(e, first);
#pragma unroll
            for (int b = 0; b < BATCH; ++b) {
                const int s = min(first + b, used - 1);
                const float weight = first + b < used ? power_of_two(shared.split_maximum[s][head] - largest) : 0.0f;
                total += weight * shared.split_sum[s][head];
#pragma unroll
                for (int i = 0; i < V; ++i) mixed[i] += weight * v[b][i];
            }
        }
#pragma unroll
        for (int i = 0; i < V; ++i) mixed[i] *= 1.0f / total;
        store_context<C>(out, row, kv_head * S::GROUP * C::HEAD_DIM + e, mixed);
    }
}

// step; qkv f32 [rows, (HEADS + 2 KV_HEADS) HEAD_DIM]; q_norm, k_norm f32 [HEAD_DIM] or null; rotary f32 [positions][pairs][2];
// layer: the cache's base of this layer; partials, counters: see above (null if SPLITS is 1); out: STAGED_ROWS says what.
template <class C>
__device__ __forceinline__ void attention_decode(const Step* step, const float* qkv, const float* q_norm, const float* k_norm,
                                                 const float* rotary, typename C::Kv* layer, float* partials, int* counters,
                                                 typename AttentionShape<C>::Out* out) {
    using A = AttentionShape<C>;
    using S = DecodeShape<C>;
    using Kv = typename C::Kv;
    using Operand = typename A::Operand;
    constexpr int D = C::HEAD_DIM, GROUP = S::GROUP, WARPS = S::WARPS;
    extern __shared__ __align__(16) unsigned char shared_bytes[];
    DecodeShared<C>& shared = *reinterpret_cast<DecodeShared<C>*>(shared_bytes);

    launch_dependents();
    const int thread = threadIdx.x, lane = thread % 32, warp = thread / 32, g = lane / 4, c = lane % 4;
    const int split = blockIdx.x, kv_head = blockIdx.y, row = blockIdx.z;

    // Constants of the model, and the parts of shared memory that stay zero.
    HeadVector<C> q_weight, k_weight;
    if constexpr (C::Q_NORM != HeadNorm::None) q_weight.load(q_norm, lane);
    if constexpr (C::K_NORM != HeadNorm::None) k_weight.load(k_norm, lane);
    for (int i = thread; i < S::HEAD_SETS * S::Q_FRAGMENTS * 32; i += S::THREADS)
        reinterpret_cast<uint4*>(shared.q)[i] = make_uint4(0, 0, 0, 0);
    for (int i = D + thread; i < S::KEY_STEPS * 32; i += S::THREADS) shared.key[i] = Kv(0.0f);
    for (int i = D + thread; i < S::VALUE_STEPS * 64; i += S::THREADS) shared.value[i] = Kv(0.0f);
    __syncthreads();  // q's zeros stand before q

    if constexpr (!C::CONTEXT_BEFORE_WAIT) wait_for_predecessors();
    const int sequences = step->sequences;
    const int position = step->sequence[row].position, block_start = step->sequence[row].block_start;
    HeadVector<C> head[S::ITEMS];
    auto load_heads = [&] {
#pragma unroll
        for (int i = 0; i < S::ITEMS; ++i) {
            const int item = warp + i * WARPS;
            const int from = item < GROUP ? kv_head * GROUP + item : C::HEADS + kv_head + (item == GROUP ? 0 : C::KV_HEADS);
            if (item < GROUP + 2) head[i].load(qkv + static_cast<size_t>(row) * A::QKV_WIDTH + from * D, lane);
        }
    };
    if constexpr (!C::CONTEXT_BEFORE_WAIT) load_heads();

    // This block's chunk, in tiles of 16 tokens: first .. last of the sequence's.
    const int tiles = position / 16 + 1;
    const int even_share = (tiles + C::SPLITS - 1) / C::SPLITS;
    const int chunk = C::SPLITS == 1 ? tiles : max(C::MIN_CHUNK / 16, (even_share + WARPS - 1) / WARPS * WARPS);
    const int used = (tiles + chunk - 1) / chunk;
    const int first = split * chunk, last = min(tiles, first + chunk);
    if (row >= sequences || split >= used) {
        if constexpr (C::CONTEXT_BEFORE_WAIT) wait_for_predecessors();
        return;
    }
    const bool owner = split == used - 1;

    // The warp's first tile: its loads are under way while the prologue computes.
    constexpr int TILES = C::BLOCK_TOKENS / 16;  // of a block
    const int* blocks = step->blocks() + block_start;
    int tile = first + warp;
    int block = tile < last ? blocks[tile / TILES] : 0;
    int next_block = tile + WARPS < last ? blocks[(tile + WARPS) / TILES] : 0;
    Rotation<C> rotation;
    rotation.load(rotary, position, lane);
    Chunk<Kv> keys[2][S::KEY_STEPS] = {}, values[S::VALUE_STEPS][4] = {};
    // Chunks of rows that are not cached keep what they hold: the token's own row is put in later, the rest never counts.
    auto load_keys = [&](int tile, int block, int n) {
        const Kv* rows = cached_row<C, const Kv*>(layer, block, kv_head, tile % TILES * 16) + (g * D + 8 * c);
        const int cached = tile < last ? position - tile * 16 : 0;
#pragma unroll
        for (int s = 0; s < S::KEY_STEPS; ++s) {
            if constexpr (!S::EARLY) keys[n][s] = {};  // so that the registers are free in between
            load_chunk<C>(keys[n][s], rows + (8 * n * D + 32 * s), 8 * c + 32 * s, g + 8 * n < cached);
        }
    };
    auto load_values = [&](int tile, int block, int h) {
        const Kv* rows = cached_row<C, const Kv*>(layer, block, kv_head, tile % TILES * 16) + (A::VALUES + 2 * c * D + 8 * g);
        const int cached = tile < last ? position - tile * 16 : 0;
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const int token = 2 * c + i % 2 + i / 2 * 8;
            if constexpr (!S::EARLY) values[h][i] = {};
            load_chunk<C>(values[h][i], rows + ((i % 2 + i / 2 * 8) * D + 64 * h), 8 * g + 64 * h, token < cached);
        }
    };
    auto load_all_keys = [&](int tile, int block) {
        load_keys(tile, block, 0);
        load_keys(tile, block, 1);
    };
    auto load_all_values = [&](int tile, int block) {
#pragma unroll
        for (int h = 0; h < S::VALUE_STEPS; ++h) load_values(tile, block, h);
    };
    if constexpr (!S::PIECEWISE) load_all_keys(tile, block);
    if constexpr (S::EARLY) load_all_values(tile, block);
    // The warp's second tile comes into the second-level cache meanwhile: short contexts end with it. (Doing so for every tile
    // costs long contexts a tenth of their bandwidth.) A tile's keys of a head are contiguous, as are its values.
    if (tile + WARPS < last) {
        const Kv* rows = cached_row<C, const Kv*>(layer, next_block, kv_head, (tile + WARPS) % TILES * 16);
        for (int byte = lane * 128; byte < 16 * S::ROW_BYTES; byte += 32 * 128) {
            asm volatile("prefetch.global.L2 [%0];" ::"l"(reinterpret_cast<const char*>(rows) + byte));
            asm volatile("prefetch.global.L2 [%0];" ::"l"(reinterpret_cast<const char*>(rows + A::VALUES) + byte));
        }
    }
    const int own_block = owner ? blocks[position / C::BLOCK_TOKENS] : 0;
    if constexpr (C::CONTEXT_BEFORE_WAIT) {
        wait_for_predecessors();
        load_heads();
    }

    // Prologue: q to shared memory in the precision of the products; the token's own K/V to shared memory and to the cache.
#pragma unroll
    for (int i = 0; i < S::ITEMS; ++i) {
        const int item = warp + i * WARPS;
        if (item < GROUP) {
            norm_head<C, C::Q_NORM, false>(head[i], q_weight, C::Q_EPS);
            rotate_head<C>(head[i], rotation, lane);
            head[i].each(lane, [&](int e, float v) {
                const float scaled = v * (C::SCALE * 1.4426950408889634f);
                const Operand high = round_to<Operand>(scaled);
                // Column e is of the lane's chunk (e / 8 % 4), of pair (e / 2 % 4) there: two pairs a fragment.
                auto place = [&](int fragments, int row_half) -> Operand& {
                    return shared.q[fragments][e / 32 * 2 + e / 4 % 2][item % 8 * 4 + e / 8 % 4][e / 2 % 2 * 4 + row_half * 2 + e % 2];
                };
                const Operand low = round_to<Operand>(scaled - widen(high));
                place(0, S::HEAD_SETS == 1 ? 0 : item / 8) = high;
                place(S::HEAD_SETS - 1, S::HEAD_SETS == 1 ? 1 : item / 8) = low;
            });
        } else if (item < GROUP + 2 && owner) {
            const bool is_key = item == GROUP;
            if (is_key) {
                norm_head<C, C::K_NORM, false>(head[i], k_weight, C::K_EPS);
                rotate_head<C>(head[i], rotation, lane);
            }
            Kv* to = cached_row<C>(layer, own_block, kv_head, position % C::BLOCK_TOKENS) + (is_key ? 0 : A::VALUES);
            head[i].each(lane, [&](int e, float v) {
                const Kv rounded = round_to<Kv>(v);
                (is_key ? shared.key : shared.value)[e] = rounded;
                to[e] = rounded;
            });
        }
    }
    __syncthreads();

    float context[S::VALUE_STEPS][4][S::HEAD_SETS][4] = {};  // column 64h + 8g + 2m + i / 2 of head 8r + 2c + i % 2
    float maximum[S::HEAD_SETS], sum[S::HEAD_SETS];          // of head 8r + g; the sum is of this lane's tokens
#pragma unroll
    for (int r = 0; r < S::HEAD_SETS; ++r) maximum[r] = -INFINITY, sum[r] = 0.0f;
    for (; tile < last; tile += WARPS) {
        const int own = position - tile * 16;  // below 16 only in the sequence's last tile: the token's own row in it
        float scores[2][2][4] = {};  // of two times 8 tokens, each as two sums that do not wait for each other
#pragma unroll
        for (int n = 0; n < 2; ++n) {
            if constexpr (S::PIECEWISE) load_keys(tile, block, n);
            if (g + 8 * n == own) {
#pragma unroll
                for (int s = 0; s < S::KEY_STEPS; ++s) load_own(keys[n][s], &shared.key[8 * c + 32 * s]);
            }
#pragma unroll
            for (int s = 0; s < S::KEY_STEPS; ++s) {
#pragma unroll
                for (int half = 0; half < 2; ++half) {
                    uint4 q[S::HEAD_SETS];
#pragma unroll
                    for (int i = 0; i < S::HEAD_SETS; ++i) q[i] = *reinterpret_cast<const uint4*>(shared.q[i][2 * s + half][lane]);
                    const uint32_t* words = &keys[n][s].word[sizeof(Kv) * half];
                    if constexpr (sizeof(Kv) == 2) {
                        multiply_keys<C>(scores[n][half], q, words[0], words[1]);
                    } else {
                        uint32_t first[2], second[2];
#pragma unroll
                        for (int i = 0; i < 2; ++i)
                            split_pair<Operand>(__uint_as_float(words[2 * i]), __uint_as_float(words[2 * i + 1]), first[i], second[i]);
                        multiply_keys<C>(scores[n][half], q, first[0], first[1]);
                        multiply_keys<C>(scores[n][half], q, second[0], second[1]);
                    }
                }
            }
        }
        const int following = next_block;
        if (tile + 2 * WARPS < last) next_block = blocks[(tile + 2 * WARPS) / TILES];
        if constexpr (S::EARLY)
            load_all_keys(tile + WARPS, following);
        else if constexpr (!S::PIECEWISE)
            load_all_values(tile, block);

        // Softmax over the tile; lane (g, c) has tokens 2c, 2c+1 of both halves of heads 8r + g.
        uint32_t weights[S::HEAD_SETS][2][2];
        float shrink[S::HEAD_SETS];
        bool larger = false;
#pragma unroll
        for (int r = 0; r < S::HEAD_SETS; ++r) {
            float weight[2][2], largest = maximum[r];
#pragma unroll
            for (int n = 0; n < 2; ++n)
#pragma unroll
                for (int i = 0; i < 2; ++i) {
                    float score = scores[n][0][2 * r + i] + scores[n][1][2 * r + i];
                    if constexpr (S::HEAD_SETS == 1) score += scores[n][0][2 + i] + scores[n][1][2 + i];
                    weight[n][i] = 8 * n + 2 * c + i > own ? -INFINITY : score;
                    largest = fmaxf(largest, weight[n][i]);
                }
            largest = fmaxf(largest, __shfl_xor_sync(0xffffffffu, largest, 1));
            largest = fmaxf(largest, __shfl_xor_sync(0xffffffffu, largest, 2));
            larger = larger || largest > maximum[r];
            shrink[r] = power_of_two(maximum[r] - largest);
            maximum[r] = largest;
            sum[r] *= shrink[r];
#pragma unroll
            for (int n = 0; n < 2; ++n) {
#pragma unroll
                for (int i = 0; i < 2; ++i) {
                    weight[n][i] = power_of_two(weight[n][i] - largest);
                    sum[r] += weight[n][i];
                }
                split_pair<Operand>(weight[n][0], weight[n][1], weights[r][0][n], weights[r][1][n]);
            }
        }
        if (__any_sync(0xffffffffu, larger)) {
#pragma unroll
            for (int r = 0; r < S::HEAD_SETS; ++r) {
                const float even = __shfl_sync(0xffffffffu, shrink[r], 8 * c), odd = __shfl_sync(0xffffffffu, shrink[r], 8 * c + 4);
#pragma unroll
                for (int h = 0; h < S::VALUE_STEPS; ++h)
#pragma unroll
                    for (int m = 0; m < 4; ++m) {
                        context[h][m][r][0] *= even, context[h][m][r][2] *= even;
                        context[h][m][r][1] *= odd, context[h][m][r][3] *= odd;
                    }
            }
        }
#pragma unroll
        for (int h = 0; h < S::VALUE_STEPS; ++h) {
            if constexpr (S::PIECEWISE) load_values(tile, block, h);
            if (own < 16) {  // what lies behind the token in its block may be NaN, which a weight of zero would not remove
#pragma unroll
                for (int i = 0; i < 4; ++i) {
                    const int token = 2 * c + i % 2 + i / 2 * 8;
                    if (token == own) load_own(values[h][i], &shared.value[8 * g + 64 * h]);
                    if (token > own) values[h][i] = {};
                }
            }
#pragma unroll
            for (int m = 0; m < 4; ++m) multiply_values<C>(context[h][m], weights, values[h], m);
        }
        if constexpr (S::EARLY)
            load_all_values(tile + WARPS, following);
        else if constexpr (!S::PIECEWISE)
            load_all_keys(tile + WARPS, following);
        block = following;
    }

    // The warps meet. Those without tiles bring zeros with a maximum of minus infinity.
#pragma unroll
    for (int r = 0; r < S::HEAD_SETS; ++r) {
        sum[r] += __shfl_xor_sync(0xffffffffu, sum[r], 1);
        sum[r] += __shfl_xor_sync(0xffffffffu, sum[r], 2);
        if (8 * r + g < GROUP && c == 0) shared.maximum[warp][8 * r + g] = maximum[r], shared.sum[warp][8 * r + g] = sum[r];
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            const int head_row = 8 * r + 2 * c + i;
            if (head_row < GROUP) {
#pragma unroll
                for (int h = 0; h < S::VALUE_STEPS; ++h)
#pragma unroll
                    for (int j = 0; j < 8; ++j) {
                        const int e = 64 * h + 8 * g + j;
                        if (e < D) shared.context[warp][head_row * D + e] = context[h][j / 2][r][j % 2 * 2 + i];
                    }
            }
        }
    }
    __syncthreads();
    const bool whole = used == 1;
    float* partial = partials + (static_cast<size_t>(row) * C::KV_HEADS + kv_head) * C::SPLITS * S::PARTIAL;
    constexpr int V = S::VECTOR;
    for (int e = thread * V; e < GROUP * D; e += S::THREADS * V) {
        const int head_row = e / D;
        float largest = -INFINITY, total = 0.0f, v[V] = {};
#pragma unroll
        for (int w = 0; w < WARPS; ++w) largest = fmaxf(largest, shared.maximum[w][head_row]);
#pragma unroll
        for (int w = 0; w < WARPS; ++w) {
            const float weight = power_of_two(shared.maximum[w][head_row] - largest);
            total += weight * shared.sum[w][head_row];
#pragma unroll
            for (int i = 0; i < V; ++i) v[i] += weight * shared.context[w][e + i];
        }
        if (whole) {
            const float inverse = 1.0f / total;
#pragma unroll
            for (int i = 0; i < V; ++i) v[i] *= inverse;
            store_context<C>(out, row, kv_head * GROUP * D + e, v);
        } else {
            float* to = partial + split * S::PARTIAL;
            if constexpr (V == 4)
                *reinterpret_cast<float4*>(to + e) = make_float4(v[0], v[1], v[2], v[3]);
            else
                to[e] = v[0];
            if (e % D == 0) to[GROUP * D + head_row] = largest, to[GROUP * D + GROUP + head_row] = total;
        }
    }
    if (whole) {
        if (kv_head == C::KV_HEADS - 1) store_padding<C>(out, row, thread);
        return;
    }
    if constexpr (C::SPLITS > 1) {
        // The barrier orders the block's partials before thread 0's release, which makes them visible to whoever acquires the
        // counter after it; the last block acquires all of them.
        __syncthreads();
        if (thread == 0) {
            int* counter = counters + row * C::KV_HEADS + kv_head;
            int before;
            asm volatile("atom.add.acq_rel.gpu.global.s32 %0, [%1], 1;" : "=r"(before) : "l"(counter) : "memory");
            shared.last = before == used - 1;
            if (shared.last) *counter = 0;
        }
        __syncthreads();
        if (!shared.last) return;
        combine_splits<C>(shared, partial, used, row, kv_head, out);
        if (kv_head == C::KV_HEADS - 1) store_padding<C>(out, row, thread);
    }
}

}  // namespace monomorph
