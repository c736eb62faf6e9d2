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
#pragma once

#include "core/recurrent_chunk.cuh"
#include "delta_net/delta.cuh"

namespace monomorph {

constexpr int DELTA_CHUNK = RECURRENT_CHUNK;

template <class C>
struct DeltaScratch : RecurrentScratch<C::KEY_HEADS, C::VALUE_HEADS, C::KEY_DIM, C::VALUE_DIM, true> {
    static_assert(C::KEY_DIM == 128 && C::VALUE_DIM == 128, "other heads are delta_plain's");
    static constexpr float SCALE = 0.08838834764831845f;  // 1 / sqrt(128)
};

template <class C>
constexpr size_t delta_scratch_bytes(int rows, int sequences) { return recurrent_scratch_bytes<DeltaScratch<C>>(rows, sequences); }

}  // namespace monomorph
