// attention_decode's shape constants, and its products of one tile of 16 tokens (8 for keys): registers in, registers out.
#pragma once

#include "attention/attention.cuh"

namespace monomorph {

// Eight elements of a K/V row in registers.
template <class E>
struct Chunk {
    uint32_t word[2 * sizeof(E)];
    __device__ __forceinline__ E* elements() { return reinterpret_cast<E*>(word); }
};

// What a lane holds of a key in one piece, and of a value: chunks, or lots of all chunks with their scales.
template <class C, Side SIDE, int STEPS, bool = GROUPED<typename C::Kv>>
struct Held {
    using Type = Chunk<typename C::Kv>;
    static constexpr int COUNT = STEPS, REGISTERS = STEPS * 2 * sizeof(typename C::Kv);
    static constexpr int ROW = (C::HEAD_DIM + (SIDE == Side::Keys ? 31 : 63)) / (SIDE == Side::Keys ? 32 : 64) * (SIDE == Side::Keys ? 32 : 64);
};
template <class C, Side SIDE, int STEPS>
struct Held<C, SIDE, STEPS, true> {
    using Type = Lot<KeptRow<C, SIDE>, STEPS>;
    static constexpr int COUNT = 1, REGISTERS = Type::REGISTERS, ROW = KeptRow<C, SIDE>::SHARED;
};

template <class C>
struct DecodeShape {
    using Kv = typename C::Kv;
    static constexpr int GROUP = AttentionShape<C>::GROUP, WARPS = C::DECODE_WARPS, THREADS = 32 * WARPS;
    static constexpr int KEY_STEPS = (C::HEAD_DIM + 31) / 32;    // a lane reads 8 of 32 columns of a key row at a time
    static constexpr int VALUE_STEPS = (C::HEAD_DIM + 63) / 64;  // and 8 of 64 columns of a value row
    static constexpr int HEAD_SETS = (GROUP + 7) / 8;            // query heads in eights
    static constexpr int Q_FRAGMENTS = 2 * KEY_STEPS;            // m16n8k16 steps over the columns of a key
    static constexpr int ITEMS = (GROUP + 2 * C::TOKENS + WARPS - 1) / WARPS;  // prologue heads of a warp: q heads, then k and v of a token
    // Whether the prologue has all its heads in registers at once, and what turns them, which differs from token to token.
    static constexpr int ITEM_REGISTERS = head_registers(C::HEAD_DIM) + (C::TOKENS == 1 ? 0 : 2 * head_registers(2 * C::ROTARY_PAIRS));
    static constexpr bool TOGETHER = ITEMS * ITEM_REGISTERS <= 160;
    static constexpr int PARTIAL = (GROUP * (C::HEAD_DIM + 2) + 3) / 4 * 4;  // floats: context vectors, maxima, sums
    // Whether a lane reads two steps of a row at once, 16 bytes of codes: eight at a time, of a key's four lanes, are 32 bytes of memory's 64.
    static constexpr bool CODES = sizeof(Kv) == 1 && !GROUPED<Kv>;
    static constexpr bool KEY_PAIRS = CODES && C::HEAD_DIM % 64 == 0, VALUE_PAIRS = CODES && C::HEAD_DIM % 128 == 0;
    // The first of a lane's eight columns of a step: of key lane c, of value lane g; and back, the step and the lane of a column of a key.
    static __device__ __forceinline__ int key_column(int step, int c) { return KEY_PAIRS ? step / 2 * 64 + c * 16 + step % 2 * 8 : step * 32 + c * 8; }
    static __device__ __forceinline__ int value_column(int step, int g) { return VALUE_PAIRS ? step / 2 * 128 + g * 16 + step % 2 * 8 : step * 64 + g * 8; }
    static __device__ __forceinline__ int key_step(int column) { return KEY_PAIRS ? column / 64 * 2 + column / 8 % 2 : column / 32; }
    static __device__ __forceinline__ int key_lane(int column) { return KEY_PAIRS ? column / 16 % 4 : column / 8 % 4; }
    // What a warp loads ahead, as registers allow. EARLY: the next tile's keys and values, each as soon as its registers are
    // free. Else a tile's values once its keys are multiplied, the next keys after that. PIECEWISE: nothing ahead.
    static constexpr int KEY_REGISTERS = 2 * Held<C, Side::Keys, KEY_STEPS>::REGISTERS, CONTEXT_REGISTERS = 16 * VALUE_STEPS * HEAD_SETS;
    static constexpr bool EARLY = CONTEXT_REGISTERS + 2 * KEY_REGISTERS < (CODES ? 129 : 128);
    static constexpr bool PIECEWISE = CONTEXT_REGISTERS + KEY_REGISTERS > 160;
    // Steps of a key whose loads are in flight together. Wide heads' sums leave registers for half of a key.
    static constexpr int KEY_PIECE = PIECEWISE && KEY_STEPS > 8 && KEY_STEPS % 8 == 0 ? 8 : KEY_STEPS;
    using HeldKey = Held<C, Side::Keys, KEY_PIECE>;
    // Steps of a value that are loaded at once: of groups all, where there are registers.
    static constexpr int VALUE_PIECE = PIECEWISE || !GROUPED<Kv> ? 1 : VALUE_STEPS;
    using HeldValue = Held<C, Side::Values, VALUE_PIECE>;
    static constexpr int SCORES = PIECEWISE ? 1 : 2;  // sums of a score that do not wait for each other, where there are registers
    static constexpr int ROW_BYTES = C::HEAD_DIM * sizeof(typename C::Kv);
    static constexpr int VECTOR = C::HEAD_DIM % 4 == 0 ? 4 : 1;
    static_assert(C::MIN_CHUNK % 16 == 0, "a chunk is whole tiles");
};

// Columns column .. column + 8 of a row of the cache, those beyond HEAD_DIM zero. from: the first of them. Where `live` is false
// nothing is read and the chunk stays as it is.
template <class C>
__device__ __forceinline__ void load_chunk(Chunk<typename C::Kv>& chunk, const typename C::Kv* from, int column, bool live) {
    using E = typename C::Kv;
    if constexpr (C::HEAD_DIM % 8 == 0) {
        live = live && column < C::HEAD_DIM;
        if constexpr (sizeof(E) == 1) {
            load_streamed_if(live, chunk.word, reinterpret_cast<const uint32_t*>(from));
        } else {
#pragma unroll
            for (int i = 0; i < 2 * sizeof(E); i += 4)
                load_streamed_if(live, reinterpret_cast<uint32_t(&)[4]>(chunk.word[i]), reinterpret_cast<const uint32_t*>(from) + i);
        }
    } else if (live) {
        E element[8];
#pragma unroll
        for (int j = 0; j < 8; ++j) element[j] = column + j < C::HEAD_DIM ? from[j] : E(0.0f);
#pragma unroll
        for (int i = 0; i < 2 * sizeof(E); ++i) {
            if constexpr (sizeof(E) == 4)
                chunk.word[i] = __float_as_uint(element[i]);
            else if constexpr (sizeof(E) == 1)
                chunk.word[i] = element[4 * i].code | element[4 * i + 1].code << 8 | element[4 * i + 2].code << 16 |
                                static_cast<uint32_t>(element[4 * i + 3].code) << 24;
            else
                chunk.word[i] = static_cast<uint32_t>(*reinterpret_cast<uint16_t*>(&element[2 * i])) |
                                static_cast<uint32_t>(*reinterpret_cast<uint16_t*>(&element[2 * i + 1])) << 16;
        }
    }
}

// The same of two steps of codes side by side.
template <class C>
__device__ __forceinline__ void load_pair(Chunk<typename C::Kv>& first, Chunk<typename C::Kv>& second, const typename C::Kv* from, bool live) {
    uint32_t words[4] = {first.word[0], first.word[1], second.word[0], second.word[1]};
    load_streamed_if(live, words, reinterpret_cast<const uint32_t*>(from));
    first.word[0] = words[0], first.word[1] = words[1], second.word[0] = words[2], second.word[1] = words[3];
}

// The same of the token's own row in shared memory, which is padded.
template <class E>
__device__ __forceinline__ void load_own(Chunk<E>& chunk, const E* from) {
    if constexpr (sizeof(E) == 1) {
        const uint2 words = *reinterpret_cast<const uint2*>(from);
        chunk.word[0] = words.x, chunk.word[1] = words.y;
    } else {
#pragma unroll
        for (int i = 0; i < 2 * sizeof(E); i += 4) {
            const uint4 words = *reinterpret_cast<const uint4*>(reinterpret_cast<const uint32_t*>(from) + i);
            chunk.word[i] = words.x, chunk.word[i + 1] = words.y, chunk.word[i + 2] = words.z, chunk.word[i + 3] = words.w;
        }
    }
}

// Scores of 8 tokens += q * keys for one step of 16 columns; the lane's words of token g are b0 and b1.
template <class C>
__device__ __forceinline__ void multiply_keys(float (&scores)[4], const uint4 (&q)[DecodeShape<C>::HEAD_SETS], uint32_t b0, uint32_t b1) {
#pragma unroll
    for (int i = 0; i < DecodeShape<C>::HEAD_SETS; ++i)
        mma_16<typename AttentionShape<C>::Operand>(scores, {q[i].x, q[i].y, q[i].z, q[i].w}, b0, b1);
}

// Context vectors += the sum of terms of values, each a fragment, * weights.
template <class C, int TERMS>
__device__ __forceinline__ void multiply_weights(float (&context)[DecodeShape<C>::HEAD_SETS][4],
                                                 const uint32_t (&weights)[DecodeShape<C>::HEAD_SETS][2][2], const uint32_t (&values)[TERMS][4]) {
#pragma unroll
    for (int r = 0; r < DecodeShape<C>::HEAD_SETS; ++r)
#pragma unroll
        for (int term = 0; term < 2; ++term)
#pragma unroll
            for (int t = 0; t < TERMS; ++t)
                mma_16<typename AttentionShape<C>::Operand>(context[r], values[t], weights[r][term][0], weights[r][term][1]);
}

// Context vectors += values * weights for the lane's columns 2m, 2m + 1 of its chunks; values are tokens 2c, 2c+1, 2c+8, 2c+9,
// weights two terms of two pairs of those tokens.
template <class C>
__device__ __forceinline__ void multiply_values(float (&context)[DecodeShape<C>::HEAD_SETS][4],
                                                const uint32_t (&weights)[DecodeShape<C>::HEAD_SETS][2][2],
                                                const Chunk<typename C::Kv> (&values)[4], int m) {
    using Operand = typename AttentionShape<C>::Operand;
    constexpr int TERMS = sizeof(typename C::Kv) == 4 ? 2 : 1;
    uint32_t a[TERMS][4];
    if constexpr (sizeof(typename C::Kv) == 1) {
#pragma unroll
        for (int pair = 0; pair < 2; ++pair)  // the codes of both columns, those of two tokens side by side
            unpack_e4m3(__byte_perm(values[2 * pair].word[m / 2], values[2 * pair + 1].word[m / 2], m % 2 ? 0x7362 : 0x5140), a[0][2 * pair], a[0][2 * pair + 1]);
    } else {
#pragma unroll
        for (int i = 0; i < 4; ++i) {  // columns 2m, 2m + 1 of the first two tokens, then of the others
            if constexpr (TERMS == 1)
                a[0][i] = __byte_perm(values[i / 2 * 2].word[m], values[i / 2 * 2 + 1].word[m], i % 2 ? 0x7632 : 0x5410);
            else
                split_pair<Operand>(__uint_as_float(values[i / 2 * 2].word[2 * m + i % 2]),
                                    __uint_as_float(values[i / 2 * 2 + 1].word[2 * m + i % 2]), a[0][i], a[TERMS - 1][i]);
        }
    }
    multiply_weights<C>(context, weights, a);
}

// The same of codes of a grouped format, as e4m3, and of the scales of two pairs of tokens.
template <class C>
__device__ __forceinline__ void multiply_codes(float (&context)[DecodeShape<C>::HEAD_SETS][4],
                                               const uint32_t (&weights)[DecodeShape<C>::HEAD_SETS][2][2], const uint32_t (&codes)[4][2],
                                               const PairScale<typename KeptRow<C, Side::Values>::E> (&by)[2], int m) {
    using A = AttentionShape<C>;
    constexpr int TERMS = KeptRow<C, Side::Values>::E::TERMS;
    uint32_t a[TERMS][4];
#pragma unroll
    for (int pair = 0; pair < 2; ++pair) {
        uint32_t columns[2], terms[TERMS];
        unpack_e4m3(__byte_perm(codes[2 * pair][m / 2], codes[2 * pair + 1][m / 2], m % 2 ? 0x7362 : 0x5140), columns[0], columns[1]);
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            multiply_pair<A::F16>(columns[i], by[pair], terms);
#pragma unroll
            for (int t = 0; t < TERMS; ++t) a[t][2 * pair + i] = terms[t];
        }
    }
    multiply_weights<C>(context, weights, a);
}

}  // namespace monomorph
