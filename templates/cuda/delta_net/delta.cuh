// What the gated delta-net kernels share: the constants they are instantiated with, the state's addresses, gates and convolution.
//
// Per value head j with key head j / RATIO, all in f32 (S: [KEY_DIM, VALUE_DIM], zero at position 0):
//   u = silu(sum_i w[c, i] x[c, t - TAPS + 1 + i]) of every channel c of [all q | all k | all v]; zeros before the sequence
//   q = u_q / sqrt(sum u_q^2 + 1e-6) / sqrt(KEY_DIM),  k = u_k / sqrt(sum u_k^2 + 1e-6)
//   decay = exp(-exp(a_log) ln(1 + e^(a + dt_bias))),  beta = 1 / (1 + e^-b)
//   delta = beta (v - decay S^T k),  S <- decay S + k delta^T,  o = S^T q,  y = o / rms(o) * norm * silu(z)
//
// A kernel's Config is a struct with those of these `static constexpr` members that its declaration names (tests derive from DeltaDefaults):
//   int KEY_HEADS, VALUE_HEADS, KEY_DIM, VALUE_DIM, TAPS   VALUE_HEADS a multiple of KEY_HEADS, dimensions even
//   float NORM_EPS           of the norm of o
//   int PROJECTED            floats of a row of `projected`: [q | k | v | z | anything], at least CHANNELS + VALUES
//   int DRAFTS               most tokens of a sequence in a step that may be taken back; 0: no step is, there is no journal
//   int WINDOW               rows of the window, at least TAPS - 1 + max(DRAFTS, 1)
//   bool EXACT               delta_plain and delta_gate: sums in f64, rounded once, and the accurate functions
//   int SPLIT, THREADS, TOKENS; bool STATE_BEFORE_WAIT   delta_decode's (a sequence feeds at most TOKENS); int CHUNK_SPLIT, SLOTS   delta_chunks'
//   bool APART               the step names every row as a sequence of its own: TOKENS adjacent entries are one (step.cuh)
//
// The state is a recurrent layer's (core/recurrent.cuh), with delta for the update.
#pragma once

#include <cstdint>
#include <type_traits>

#include <cuda_bf16.h>

#include "core/async.cuh"
#include "core/cluster.cuh"
#include "core/convert.cuh"
#include "core/mma.cuh"
#include "core/recurrent.cuh"

namespace monomorph {

struct DeltaDefaults {
    static constexpr float NORM_EPS = 1e-6f;
    static constexpr int DRAFTS = 0, TAPS = 4, WINDOW = 4;
    static constexpr bool EXACT = false, STATE_BEFORE_WAIT = false, APART = false;
    static constexpr int SPLIT = 1, THREADS = 256, TOKENS = 1;
    static constexpr int CHUNK_SPLIT = 1, SLOTS = 5;
};

// Constants that follow from a Config.
template <class C>
struct DeltaShape : RecurrentShape<C::VALUE_HEADS, C::KEY_DIM, C::VALUE_DIM, C::KEY_HEADS * C::KEY_DIM,
                                   2 * C::KEY_HEADS * C::KEY_DIM + C::VALUE_HEADS * C::VALUE_DIM, C::WINDOW, C::DRAFTS> {
    static_assert(C::VALUE_HEADS % C::KEY_HEADS == 0, "value heads share key heads evenly");
    static_assert(C::WINDOW >= C::TAPS - 1 + (C::DRAFTS > 1 ? C::DRAFTS : 1), "no token overwrites an input it needs");
    static constexpr int RATIO = C::VALUE_HEADS / C::KEY_HEADS;
    static constexpr int PROJECTED = DeltaShape::CHANNELS + DeltaShape::VALUES;  // what C::PROJECTED is at least
    static_assert(C::PROJECTED >= PROJECTED, "a row holds q, k, v and z");
};

// The tensors of a layer, as every delta kernel takes them.
struct DeltaWeights {
    const float* convolution;  // [CHANNELS, TAPS], the current token's tap last
    const float* a_log;        // [VALUE_HEADS]
    const float* dt_bias;      // [VALUE_HEADS]
    const float* norm;         // [VALUE_DIM]
};

// The log decay of a token, <= 0.
__device__ __forceinline__ float delta_log_decay(float a, float a_log, float dt_bias) {
    return -expf(a_log) * recurrent_softplus(a + dt_bias);
}
__device__ __forceinline__ float delta_beta(float b) { return 1.0f / (1.0f + expf(-b)); }

// Elements column .. column + 4 of a row of `out`, column a multiple of 4.
template <class C>
__device__ __forceinline__ void delta_store(float* out, int row, int column, float4 v) {
    *reinterpret_cast<float4*>(out + size_t(row) * DeltaShape<C>::VALUES + column) = v;
}

}  // namespace monomorph
