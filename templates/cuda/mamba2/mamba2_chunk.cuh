// Prefill of Mamba-2 in chunks of 64 tokens: what mamba2_prepare leaves for mamba2_chunks.
//
// The chunk form (rows are tokens of a chunk, G the running sum of log decays in it, E_ts = e^(G_t - G_s) for s <= t, else 0):
//   U = X,  P = ((C B^T) .* E) diag(D) + diag(d),  left = e^(G_63 - G) D          mamba2_prepare, all chunks at once
//   Y = diag(e^G) C S + P U,  S <- e^(G_63) S + B^T diag(left) U                  mamba2_chunks, in order
// Time steps and the skip connection are folded into P and `left`, so that U needs no scale. The last chunk's missing tokens have time
// step, log decay, x, B and C of 0 and change nothing.
//
// Precision. Sums, S, G and the factors are f32. Operands of products are f16, rounded once and at most 65,504; S itself is never
// rounded: a rounded copy of it is read.
#pragma once

#include "core/recurrent_chunk.cuh"
#include "mamba2/mamba2.cuh"

namespace monomorph {

template <class C>
struct Mamba2Scratch : RecurrentScratch<C::GROUPS, C::HEADS, C::STATE, C::HEAD_DIM, false> {
    static constexpr float SCALE = 1.0f;
};

template <class C>
constexpr size_t mamba2_scratch_bytes(int rows, int sequences) { return recurrent_scratch_bytes<Mamba2Scratch<C>>(rows, sequences); }

}  // namespace monomorph
