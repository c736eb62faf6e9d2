// What the Mamba-2 kernels share: the constants they are instantiated with, the layer's tensors, a token's time step.
//
// Per head h of group h / RATIO, all in f32 (S: [STATE, HEAD_DIM], zero at position 0):
//   u = silu(sum_i w[c, i] xbc[c, t - TAPS + 1 + i] + bias[c]) of every channel c of [all x | all B | all C]; zeros before the sequence
//   D_t = ln(1 + e^(dt + dt_bias)),  decay = exp(-exp(a_log) D_t)
//   S <- decay S + B (D_t x)^T,  y = S^T C + d x,  out = g / rms(g of the group) * norm with g = y silu(z)
//
// A kernel's Config is a struct with those of these `static constexpr` members that its declaration names (tests derive from Mamba2Defaults):
//   int HEADS, HEAD_DIM, GROUPS, STATE, TAPS   HEADS a multiple of GROUPS
//   float NORM_EPS           of the norm of a group
//   int PROJECTED            floats of a row of `projected`: [z | x | B | C | dt | anything]
//   int DRAFTS               most tokens of a sequence in a step that may be taken back; 0: no step is, there is no journal
//   int WINDOW               rows of the window, at least TAPS - 1 + max(DRAFTS, 1)
//   bool EXACT               mamba2_plain and mamba2_gate: sums in f64, rounded once, and the accurate functions
//   int SPLIT, THREADS, TOKENS; bool STATE_BEFORE_WAIT   mamba2_decode's (a sequence feeds at most TOKENS); int SLOTS   mamba2_chunks'
//   bool APART               the step names every row as a sequence of its own: TOKENS adjacent entries are one (step.cuh)
//
// The state is a recurrent layer's (core/recurrent.cuh): k is B of a group, the update of a head D_t x.
#pragma once

#include "core/recurrent.cuh"

namespace monomorph {

struct Mamba2Defaults {
    static constexpr float NORM_EPS = 1e-5f;
    static constexpr int DRAFTS = 0, TAPS = 4, WINDOW = 4;
    static constexpr bool EXACT = false, STATE_BEFORE_WAIT = false, APART = false;
    static constexpr int SPLIT = 1, THREADS = 256, TOKENS = 1;
    static constexpr int SLOTS = 6;
};

// Constants that follow from a Config.
template <class C>
struct Mamba2Shape : RecurrentShape<C::HEADS, C::STATE, C::HEAD_DIM, C::GROUPS * C::STATE,
                                    C::HEADS * C::HEAD_DIM + 2 * C::GROUPS * C::STATE, C::WINDOW, C::DRAFTS> {
    static_assert(C::HEADS % C::GROUPS == 0, "heads share groups evenly");
    static_assert(C::WINDOW >= C::TAPS - 1 + (C::DRAFTS > 1 ? C::DRAFTS : 1), "no token overwrites an input it needs");
    static constexpr int RATIO = C::HEADS / C::GROUPS, WIDTH = RATIO * C::HEAD_DIM;           // heads and columns of a group
    static constexpr int INPUTS = Mamba2Shape::VALUES, TIMES = INPUTS + Mamba2Shape::CHANNELS;  // where a row's xbc and dt begin
    static_assert(C::PROJECTED >= TIMES + C::HEADS, "a row holds z, x, B, C and dt");
};

// The tensors of a layer, as every Mamba-2 kernel takes them.
struct Mamba2Weights {
    const float* convolution;       // [CHANNELS, TAPS], the current token's tap last
    const float* convolution_bias;  // [CHANNELS]
    const float* a_log;             // [HEADS]
    const float* dt_bias;           // [HEADS]
    const float* d;                 // [HEADS]
    const float* norm;              // [HEADS * HEAD_DIM]
};

// The log decay of a token whose time step is this, <= 0.
__device__ __forceinline__ float mamba2_log_decay(float time, float a_log) { return -expf(a_log) * time; }

}  // namespace monomorph
