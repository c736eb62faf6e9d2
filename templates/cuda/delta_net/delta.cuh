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
// State of a layer, f32 throughout; `slot` is the sequence's, below the number of slots, and never -1:
//   states   [slots][VALUE_HEADS][KEY_DIM][VALUE_DIM]
//   windows  [slots][WINDOW][CHANNELS]: the raw input of position p in row p % WINDOW. A ring by position, not a shifted list: a
//            token overwrites nothing that a block of the same launch still reads, and taking tokens back takes nothing but a position.
//   journals [slots][JOURNAL_ROWS][JOURNAL_WIDTH], position p in row p % JOURNAL_ROWS: [k, normalised | delta | decay by value head |
//            base by value head (int)]. None where DRAFTS is 0.
// Layers lie behind one another in each of the three. A snapshot of a sequence is its part of all of them, at a position.
//
// Taking back. A step that may be taken back (TOKENS > 1) leaves S as it was before the step's tokens, and journals what each token
// does to it: k, delta and decay, 24 KiB a token where S has 2 MiB (16 key and 32 value heads of 128). The next step's kernel, at
// whatever position, first repeats tokens base .. position - 1 in registers, with the very operations that the step did; base
// stands in the journal's row position - 1. So S is read once and written once a step whatever happens, where keeping a copy
// after each of T tokens would write it T times, and a rejected token leaves no trace. A step that stays (TOKENS = 1, prefill) leaves S after its last token, base = position behind it.
#pragma once

#include <cstdint>
#include <type_traits>

#include <cuda_bf16.h>

#include "core/async.cuh"
#include "core/cluster.cuh"
#include "core/convert.cuh"
#include "core/mma.cuh"
#include "core/step.cuh"

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
struct DeltaShape {
    static_assert(C::VALUE_HEADS % C::KEY_HEADS == 0, "value heads share key heads evenly");
    static_assert(C::WINDOW >= C::TAPS - 1 + (C::DRAFTS > 1 ? C::DRAFTS : 1), "no token overwrites an input it needs");
    static constexpr int RATIO = C::VALUE_HEADS / C::KEY_HEADS;
    static constexpr int KEYS = C::KEY_HEADS * C::KEY_DIM, VALUES = C::VALUE_HEADS * C::VALUE_DIM;
    static constexpr int CHANNELS = 2 * KEYS + VALUES;
    static constexpr int PROJECTED = CHANNELS + VALUES;  // what C::PROJECTED is at least
    static constexpr size_t HEAD_STATE = size_t(C::KEY_DIM) * C::VALUE_DIM, STATE = C::VALUE_HEADS * HEAD_STATE;
    static constexpr size_t WINDOW_STRIDE = size_t(C::WINDOW) * CHANNELS;
    static constexpr int JOURNAL_ROWS = 2 * C::DRAFTS;  // a step reads up to DRAFTS rows and writes up to DRAFTS others
    static constexpr int JOURNAL_DECAY = KEYS + VALUES, JOURNAL_BASE = JOURNAL_DECAY + C::VALUE_HEADS;
    static constexpr int JOURNAL_WIDTH = (JOURNAL_BASE + C::VALUE_HEADS + 3) / 4 * 4;
    static_assert(C::PROJECTED >= PROJECTED, "a row holds q, k, v and z");
};

constexpr float DELTA_L2_EPS = 1e-6f;

// The tensors of a layer, as every delta kernel takes them.
struct DeltaWeights {
    const float* convolution;  // [CHANNELS, TAPS], the current token's tap last
    const float* a_log;        // [VALUE_HEADS]
    const float* dt_bias;      // [VALUE_HEADS]
    const float* norm;         // [VALUE_DIM]
};
struct DeltaState {
    float *states, *windows, *journals;  // of the layer
};

// A sequence of the step, as the recurrence sees it; no tokens behind the last sequence.
struct DeltaSequence {
    int row, count, position, slot;
};
template <class C>
__device__ __forceinline__ DeltaSequence delta_sequence(const Step* step, int index) {
    const int entry = C::APART ? index * C::TOKENS : index;
    if (entry >= step->sequences) return {0, 0, 0, 0};
    const Sequence& sequence = step->sequence[entry];
    return {sequence.first_token, C::APART ? C::TOKENS : sequence.count, sequence.position, sequence.slot};
}

template <bool EXACT = false>
__device__ __forceinline__ float delta_silu(float x) {
    if constexpr (EXACT)
        return x / (1.0f + expf(-x));
    else
        return __fdividef(x, 1.0f + __expf(-x));  // a denominator beyond 2^126 gives 0, which is right
}

// The log decay of a token, <= 0.
__device__ __forceinline__ float delta_log_decay(float a, float a_log, float dt_bias) {
    const float x = a + dt_bias;
    return -expf(a_log) * (x > 20.0f ? x : log1pf(expf(x)));
}
__device__ __forceinline__ float delta_beta(float b) { return 1.0f / (1.0f + expf(-b)); }

// One element of S after a token, from the same operations wherever it is computed, so that a repetition has the same bits.
__device__ __forceinline__ float delta_update(float s, float decay, float k, float delta) {
    return fmaf(k, delta, __fmul_rn(decay, s));
}
__device__ __forceinline__ float4 delta_update(float4 s, float decay, float k, float4 delta) {
    return make_float4(delta_update(s.x, decay, k, delta.x), delta_update(s.y, decay, k, delta.y),
                       delta_update(s.z, decay, k, delta.z), delta_update(s.w, decay, k, delta.w));
}

template <class C>
__device__ __forceinline__ float* delta_state(float* states, int slot, int head) {
    return states + (size_t(slot) * C::VALUE_HEADS + head) * DeltaShape<C>::HEAD_STATE;
}
template <class C>
__device__ __forceinline__ float* delta_window(float* windows, int slot, int position) {
    return windows + slot * DeltaShape<C>::WINDOW_STRIDE + size_t(position % C::WINDOW) * DeltaShape<C>::CHANNELS;
}
template <class C>
__device__ __forceinline__ float* delta_journal(float* journals, int slot, int position) {
    using D = DeltaShape<C>;
    constexpr int ROWS = D::JOURNAL_ROWS > 0 ? D::JOURNAL_ROWS : 1;
    return journals + (size_t(slot) * ROWS + position % ROWS) * D::JOURNAL_WIDTH;
}

// The position that a head's S in memory stands at: tokens from there to `position` are in the journal.
template <class C>
__device__ __forceinline__ int delta_base(float* journals, int slot, int position, int head) {
    if constexpr (C::DRAFTS == 0) return position;
    if (position == 0) return 0;
    const float* row = delta_journal<C>(journals, slot, position - 1) + DeltaShape<C>::JOURNAL_BASE + head;
    return *reinterpret_cast<const int*>(row);
}
// Says that a head's S stands at `base` for whoever comes at position `position` + 1.
template <class C>
__device__ __forceinline__ void delta_set_base(float* journals, int slot, int position, int head, int base) {
    if constexpr (C::DRAFTS > 0) {
        float* row = delta_journal<C>(journals, slot, position) + DeltaShape<C>::JOURNAL_BASE + head;
        *reinterpret_cast<int*>(row) = base;
    }
}

// Raw input of a channel `back` tokens before a sequence's first of the step, zero before the sequence's start.
template <class C>
__device__ __forceinline__ float delta_history(const float* windows, int slot, int position, int back, int channel) {
    if (position < back) return 0.0f;
    return load_streamed(delta_window<C>(const_cast<float*>(windows), slot, position - back) + channel);
}

// Elements column .. column + 4 of a row of `out`, column a multiple of 4.
template <class C>
__device__ __forceinline__ void delta_store(float* out, int row, int column, float4 v) {
    *reinterpret_cast<float4*>(out + size_t(row) * DeltaShape<C>::VALUES + column) = v;
}

}  // namespace monomorph
