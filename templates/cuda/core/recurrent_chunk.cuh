// Prefill of recurrent layers in chunks of 64 tokens: which chunk is where, the scratch between the kernel that prepares all chunks
// at once and the one that goes through them in order (recurrent_chunks.cuh), and what preparing them takes.
//
// Scratch: [chunks of the step][KEY_HEADS of {Q, K} | HEADS of {W, P, factors, U}], each as the B operand (U: the sums) of mma m16n8k16 that
// recurrent_chunks reads it as: 16 bytes a lane, lane = 4 g + c, words as fragments of n-tile `n` (8 columns), steps 2i and 2i + 1:
//   Q, W  [KEY_DIM / 32: i][8: n][32]   word j: token 8n + g, keys 32i + 8j + 2c, + 1
//   K     [2: i][KEY_DIM / 8: n][32]    word j: tokens 32i + 8j + 2c, + 1 of key 8n + g
//   P     [2: i][8: n][32]              word j: token 8n + g, source tokens 32i + 8j + 2c, + 1
//   U     [VALUE_DIM / 16: m][4: i][32] words 2j, 2j + 1: values 16m + g and 16m + g + 8, tokens 8 (2i + j) + 2c, + 1
//   factors  f32 [64] growth of S since the chunk's start, [64] by which a token's U enters S at the chunk's end
// W only where the state corrects what a token adds (CORRECTED).
#pragma once

#include "core/mma.cuh"
#include "core/recurrent.cuh"

namespace monomorph {

constexpr int RECURRENT_CHUNK = 64;

template <int KEY_HEADS_, int HEADS, int KEY_DIM_, int VALUE_DIM_, bool CORRECTED_>
struct RecurrentScratch {
    static_assert(KEY_DIM_ % 32 == 0 && VALUE_DIM_ % 16 == 0, "whole fragments");
    static constexpr int KEY_DIM = KEY_DIM_, VALUE_DIM = VALUE_DIM_;
    static constexpr bool CORRECTED = CORRECTED_;
    static constexpr int MATRIX = RECURRENT_CHUNK * KEY_DIM * 2, P = RECURRENT_CHUNK * RECURRENT_CHUNK * 2, FACTORS = 2 * RECURRENT_CHUNK * 4;
    static constexpr int W = CORRECTED ? MATRIX : 0, U = RECURRENT_CHUNK * VALUE_DIM * 2;
    static constexpr int KEY_HEAD = 2 * MATRIX, HEAD = W + P + FACTORS + U;
    static constexpr size_t CHUNK = size_t(KEY_HEADS_) * KEY_HEAD + size_t(HEADS) * HEAD;

    // A chunk's part of a head.
    template <class Pointer>
    __device__ __forceinline__ static Pointer q(Pointer scratch, int chunk, int key_head) { return scratch + chunk * CHUNK + size_t(key_head) * KEY_HEAD; }
    template <class Pointer>
    __device__ __forceinline__ static Pointer k(Pointer scratch, int chunk, int key_head) { return q(scratch, chunk, key_head) + MATRIX; }
    template <class Pointer>
    __device__ __forceinline__ static Pointer w(Pointer scratch, int chunk, int head) {
        return scratch + chunk * CHUNK + size_t(KEY_HEADS_) * KEY_HEAD + size_t(head) * HEAD;
    }
    template <class Pointer>
    __device__ __forceinline__ static Pointer p(Pointer scratch, int chunk, int head) { return w(scratch, chunk, head) + W; }  // factors behind it
    template <class Pointer>
    __device__ __forceinline__ static Pointer u(Pointer scratch, int chunk, int head) { return p(scratch, chunk, head) + P + FACTORS; }
};

// Bytes of scratch for any step of so many rows and sequences; aligned to 128.
template <class L>
constexpr size_t recurrent_scratch_bytes(int rows, int sequences) { return (rows / RECURRENT_CHUNK + sequences) * L::CHUNK; }

__device__ __forceinline__ int recurrent_chunks_of(const Step* step, int sequence) {
    return sequence < step->sequences ? (step->sequence[sequence].count + RECURRENT_CHUNK - 1) / RECURRENT_CHUNK : 0;
}

// Chunks of the sequences before `end`; every lane of the warp calls it.
__device__ __forceinline__ int recurrent_chunks_before(const Step* step, int end, int lane) {
    int chunks = 0;
    for (int s = lane; s < end; s += 32) chunks += recurrent_chunks_of(step, s);
#pragma unroll
    for (int distance = 16; distance > 0; distance /= 2) chunks += __shfl_xor_sync(0xffffffffu, chunks, distance);
    return chunks;
}

// Where a chunk's rows come from.
struct RecurrentChunk {
    int row, start, tokens, position, slot;  // row of its first token; that token's number in the step's part of the sequence; the part's position
};
// Every lane of the warp calls it.
__device__ __forceinline__ RecurrentChunk recurrent_find_chunk(const Step* step, int chunk, int lane) {
    for (int base = 0;; base += 32) {
        const int own = recurrent_chunks_of(step, base + lane);
        int ends = own;
#pragma unroll
        for (int distance = 1; distance < 32; distance *= 2) {
            const int before = __shfl_up_sync(0xffffffffu, ends, distance);
            if (lane >= distance) ends += before;
        }
        const int all = __shfl_sync(0xffffffffu, ends, 31);
        if (chunk < all) {
            const int at = __popc(__ballot_sync(0xffffffffu, ends <= chunk));
            const Sequence& sequence = step->sequence[base + at];
            const int start = (chunk - __shfl_sync(0xffffffffu, ends - own, at)) * RECURRENT_CHUNK;
            return {sequence.first_token + start, start, min(RECURRENT_CHUNK, sequence.count - start), sequence.position, sequence.slot};
        }
        chunk -= all;
    }
}

// ---- WARPS warps that prepare a chunk: matrices of 64 rows and 128 columns in shared memory ----

constexpr int RECURRENT_STRIDE = 136;  // halves of a row: an odd number of 16-byte chunks, so that ldmatrix meets no bank conflict

// 128 channels from `channel` on of a warp's tokens, AT_ONCE of them asked for at once, after convolution and silu, NORM: as a vector of length 1; f16 rows in `to`.
// inputs: the channels of a step's rows, PROJECTED apart; convolution [channels, TAPS], the current token's tap last; BIASED: bias [channels].
template <class R, int WARPS, int AT_ONCE, int TAPS, int PROJECTED, bool NORM, bool BIASED>
__device__ __forceinline__ void recurrent_convolve(unsigned short* to, const float* inputs, const float* windows, const float* convolution,
                                                   const float* bias, const RecurrentChunk& chunk, int channel, int warp, int lane) {
    constexpr int TOKENS = RECURRENT_CHUNK / WARPS;
    static_assert(TOKENS % AT_ONCE == 0, "a warp's tokens");
    const int own = channel + 4 * lane;
    float4 taps[TAPS], past[TAPS + AT_ONCE - 1];
    {  // four channels' taps stand side by side
        float flat[4 * TAPS];
#pragma unroll
        for (int j = 0; j < TAPS; ++j) {
            const float4 four = load_constant(reinterpret_cast<const float4*>(convolution + own * TAPS) + j);
            flat[4 * j] = four.x, flat[4 * j + 1] = four.y, flat[4 * j + 2] = four.z, flat[4 * j + 3] = four.w;
        }
#pragma unroll
        for (int j = 0; j < TAPS; ++j) taps[j] = make_float4(flat[j], flat[TAPS + j], flat[2 * TAPS + j], flat[3 * TAPS + j]);
    }
    float4 shift = {0.0f, 0.0f, 0.0f, 0.0f};
    if constexpr (BIASED) shift = load_constant(reinterpret_cast<const float4*>(bias + own));
    auto input = [&](int token) {  // of the chunk
        const int number = chunk.start + token;
        if (token >= chunk.tokens || chunk.position + number < 0) return make_float4(0.0f, 0.0f, 0.0f, 0.0f);
        const float* row = number >= 0 ? inputs + size_t(chunk.row + token) * PROJECTED
                                       : recurrent_window<R>(const_cast<float*>(windows), chunk.slot, chunk.position + number);
        return load_activation(reinterpret_cast<const float4*>(row + own));
    };
#pragma unroll
    for (int j = 0; j < TAPS - 1; ++j) past[j] = input(TOKENS * warp - (TAPS - 1) + j);
#pragma unroll 1
    for (int first = TOKENS * warp; first < TOKENS * warp + TOKENS; first += AT_ONCE) {
#pragma unroll
        for (int i = 0; i < AT_ONCE; ++i) past[TAPS - 1 + i] = input(first + i);
#pragma unroll
        for (int i = 0; i < AT_ONCE; ++i) {
            float4 u = shift;
#pragma unroll
            for (int j = 0; j < TAPS; ++j) {
                u.x = fmaf(taps[j].x, past[i + j].x, u.x), u.y = fmaf(taps[j].y, past[i + j].y, u.y);
                u.z = fmaf(taps[j].z, past[i + j].z, u.z), u.w = fmaf(taps[j].w, past[i + j].w, u.w);
            }
            u.x = recurrent_silu(u.x), u.y = recurrent_silu(u.y), u.z = recurrent_silu(u.z), u.w = recurrent_silu(u.w);
            float scale = first + i < chunk.tokens ? 1.0f : 0.0f;
            if constexpr (NORM) {
                float sum = u.x * u.x + u.y * u.y + u.z * u.z + u.w * u.w;
#pragma unroll
                for (int distance = 16; distance > 0; distance /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, distance);
                scale *= rsqrtf(sum + RECURRENT_L2_EPS);
            }
            *reinterpret_cast<uint2*>(to + (first + i) * RECURRENT_STRIDE + 4 * lane) =
                make_uint2(pack_f16_finite(u.x * scale, u.y * scale), pack_f16_finite(u.z * scale, u.w * scale));
        }
#pragma unroll
        for (int j = 0; j < TAPS - 1; ++j) past[j] = past[AT_ONCE + j];
    }
}

// Q and K of a chunk and key head, from shared memory to scratch.
template <class L, int WARPS>
__device__ __forceinline__ void recurrent_store_keys(unsigned char* scratch, int chunk, int key_head, const unsigned short* q, const unsigned short* k,
                                                     int warp, int lane) {
    static_assert(L::KEY_DIM == 128, "the columns of a matrix in shared memory");
    constexpr int OWN = 8 / WARPS;
    const int b_column = lane / 8 % 2 * 8;
    auto at = [](const unsigned short* matrix, int row, int column) { return shared_address(matrix + row * RECURRENT_STRIDE + column); };
    uint4* q_out = reinterpret_cast<uint4*>(L::q(scratch, chunk, key_head)) + lane;
    uint4* k_out = reinterpret_cast<uint4*>(L::k(scratch, chunk, key_head)) + lane;
#pragma unroll
    for (int i = 0; i < 4; ++i)
#pragma unroll
        for (int n = OWN * warp; n < OWN * warp + OWN; ++n) {
            unsigned r[4];
            ldmatrix_4(r, at(q, 8 * n + lane % 8, 32 * i + lane / 8 * 8));
            q_out[(i * 8 + n) * 32] = make_uint4(r[0], r[1], r[2], r[3]);
        }
#pragma unroll
    for (int i = 0; i < 2; ++i)
#pragma unroll
        for (int n = OWN * warp; n < OWN * warp + OWN; ++n) {  // pairs of n-tiles
            unsigned low[4], high[4];
            ldmatrix_4_transposed(low, at(k, 32 * i + b_column + lane % 8, 16 * n + lane / 16 * 8));
            ldmatrix_4_transposed(high, at(k, 32 * i + 16 + b_column + lane % 8, 16 * n + lane / 16 * 8));
            k_out[(i * 16 + 2 * n) * 32] = make_uint4(low[0], low[1], high[0], high[1]);
            k_out[(i * 16 + 2 * n + 1) * 32] = make_uint4(low[2], low[3], high[2], high[3]);
        }
}

}  // namespace monomorph
