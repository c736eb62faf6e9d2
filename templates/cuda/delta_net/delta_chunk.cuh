// Prefill of the delta-net in chunks of 64 tokens: what delta_prepare leaves for delta_chunks, and which chunk is where.
//
// The chunk form (rows are tokens of a chunk, G the running sum of log decays in it, D_ts = e^(G_t - G_s) for s <= t, else 0):
//   A = strictly lower part of (diag(beta) K K^T) .* D,   T = (I + A)^-1
//   U = T diag(beta) V,  W = T diag(beta e^G) K,  P = (Q K^T) .* D / sqrt(KEY_DIM)          delta_prepare, all chunks at once
//   V' = U - W S,  O = diag(e^G) Q S / sqrt(KEY_DIM) + P V',  S <- e^(G_63) S + K^T diag(e^(G_63 - G)) V'    delta_chunks, in order
// The last chunk's missing tokens have beta, log decay, q, k and v of 0 and change nothing. Q and K are normalised to length 1.
//
// Precision. Sums, S, G and T's solve are f32. Operands of products are f16: 11 bits, against bf16's 8 at the same price, and the
// range is there: rows of Q, K are of length 1, T's entries and W's rows are at most 1 in size because products of (I - beta k k^T) only shrink, P's
// too; U, V' and S are of v's size (silu of a convolution) and are limited to 65,504 where they are rounded. S itself is never rounded: a rounded
// copy of it predicts, and the prediction's error (2^-12 of W S) is corrected by later tokens like any other.
//
// Scratch: [chunks of the step][KEY_HEADS of {Q, K} | VALUE_HEADS of {W, P, factors, U}], each as the B operand (U: the sums) of mma m16n8k16 that
// delta_chunks reads it as: 16 bytes a lane, lane = 4 g + c, words as fragments of n-tile `n` (8 columns), steps 2i and 2i + 1:
//   Q, W  [KEY_DIM / 32: i][8: n][32]   word j: token 8n + g, keys 32i + 8j + 2c, + 1
//   K     [2: i][KEY_DIM / 8: n][32]    word j: tokens 32i + 8j + 2c, + 1 of key 8n + g
//   P     [2: i][8: n][32]              word j: token 8n + g, source tokens 32i + 8j + 2c, + 1
//   U     [VALUE_DIM / 16: m][4: i][32] words 2j, 2j + 1: values 16m + g and 16m + g + 8, tokens 8 (2i + j) + 2c, + 1
//   factors  f32 [64] e^G, [64] e^(G_63 - G)
#pragma once

#include "delta_net/delta.cuh"

namespace monomorph {

constexpr int DELTA_CHUNK = 64;

template <class C>
struct DeltaScratch {
    static_assert(C::KEY_DIM == 128 && C::VALUE_DIM == 128, "other heads are delta_plain's");
    static constexpr int MATRIX = DELTA_CHUNK * 128 * 2, P = DELTA_CHUNK * DELTA_CHUNK * 2, FACTORS = 2 * DELTA_CHUNK * 4;
    static constexpr int KEY_HEAD = 2 * MATRIX, VALUE_HEAD = 2 * MATRIX + P + FACTORS;
    static constexpr size_t CHUNK = size_t(C::KEY_HEADS) * KEY_HEAD + size_t(C::VALUE_HEADS) * VALUE_HEAD;

    // A chunk's part of a head.
    template <class Pointer>
    __device__ __forceinline__ static Pointer q(Pointer scratch, int chunk, int key_head) { return scratch + chunk * CHUNK + size_t(key_head) * KEY_HEAD; }
    template <class Pointer>
    __device__ __forceinline__ static Pointer k(Pointer scratch, int chunk, int key_head) { return q(scratch, chunk, key_head) + MATRIX; }
    template <class Pointer>
    __device__ __forceinline__ static Pointer w(Pointer scratch, int chunk, int head) {
        return scratch + chunk * CHUNK + size_t(C::KEY_HEADS) * KEY_HEAD + size_t(head) * VALUE_HEAD;
    }
    template <class Pointer>
    __device__ __forceinline__ static Pointer p(Pointer scratch, int chunk, int head) { return w(scratch, chunk, head) + MATRIX; }  // factors behind it
    template <class Pointer>
    __device__ __forceinline__ static Pointer u(Pointer scratch, int chunk, int head) { return p(scratch, chunk, head) + P + FACTORS; }
};

// Bytes of scratch for any step of so many rows and sequences; aligned to 128.
template <class C>
constexpr size_t delta_scratch_bytes(int rows, int sequences) { return (rows / DELTA_CHUNK + sequences) * DeltaScratch<C>::CHUNK; }

__device__ __forceinline__ int delta_chunks_of(const Step* step, int sequence) {
    return sequence < step->sequences ? (step->sequence[sequence].count + DELTA_CHUNK - 1) / DELTA_CHUNK : 0;
}

// Chunks of the sequences before `end`; every lane of the warp calls it.
__device__ __forceinline__ int delta_chunks_before(const Step* step, int end, int lane) {
    int chunks = 0;
    for (int s = lane; s < end; s += 32) chunks += delta_chunks_of(step, s);
#pragma unroll
    for (int distance = 16; distance > 0; distance /= 2) chunks += __shfl_xor_sync(0xffffffffu, chunks, distance);
    return chunks;
}

// The sequence of a chunk and the chunk's number in it.
struct DeltaPlace {
    int sequence, number;
};
__device__ __forceinline__ DeltaPlace delta_find_chunk(const Step* step, int chunk, int lane) {
    for (int base = 0;; base += 32) {
        const int own = delta_chunks_of(step, base + lane);
        int ends = own;
#pragma unroll
        for (int distance = 1; distance < 32; distance *= 2) {
            const int before = __shfl_up_sync(0xffffffffu, ends, distance);
            if (lane >= distance) ends += before;
        }
        const int all = __shfl_sync(0xffffffffu, ends, 31);
        if (chunk < all) {
            const int at = __popc(__ballot_sync(0xffffffffu, ends <= chunk));
            return {base + at, chunk - __shfl_sync(0xffffffffu, ends - own, at)};
        }
        chunk -= all;
    }
}

}  // namespace monomorph
