// What the kernels of recurrent layers share: where the state of a sequence stands, what is done to it, and a step's sequences.
//
// State of a layer, f32 throughout; `slot` is the sequence's, below the number of slots, and never -1:
//   states   [slots][HEADS][KEY_DIM][VALUE_DIM]
//   windows  [slots][WINDOW][CHANNELS]: the raw input of position p in row p % WINDOW. A ring by position, not a shifted list: a
//            token overwrites nothing that a block of the same launch still reads, and taking tokens back takes nothing but a position.
//   journals [slots][JOURNAL_ROWS][JOURNAL_WIDTH], position p in row p % JOURNAL_ROWS: [k of all key heads | update by head |
//            decay by head | base by head (int)]. None where DRAFTS is 0.
// Layers lie behind one another in each of the three. A snapshot of a sequence is its part of all of them, at a position.
// A token changes a head's S by S <- decay S + k update^T, whatever k and update are computed from.
//
// Taking back. A step that may be taken back (TOKENS > 1) leaves S as it was before the step's tokens, and journals what each token
// does to it: k, update and decay, 24 KiB a token where S has 2 MiB (16 key and 32 value heads of 128). The next step's kernel, at
// whatever position, first repeats tokens base .. position - 1 in registers, with the very operations that the step did; base
// stands in the journal's row position - 1. So S is read once and written once a step whatever happens, where keeping a copy
// after each of T tokens would write it T times, and a rejected token leaves no trace. A step that stays (TOKENS = 1, prefill) leaves
// S after its last token, base = position behind it.
#pragma once

#include <cstdint>
#include <type_traits>

#include "core/async.cuh"
#include "core/step.cuh"

namespace monomorph {

// The state's dimensions. KEYS: floats of all k. DRAFTS: most tokens of a sequence in a step that may be taken back; 0: none ever is.
template <int HEADS_, int KEY_DIM, int VALUE_DIM, int KEYS_, int CHANNELS_, int WINDOW_, int DRAFTS_>
struct RecurrentShape {
    static constexpr int HEADS = HEADS_, KEYS = KEYS_, VALUES = HEADS_ * VALUE_DIM, CHANNELS = CHANNELS_, WINDOW = WINDOW_, DRAFTS = DRAFTS_;
    static constexpr size_t HEAD_STATE = size_t(KEY_DIM) * VALUE_DIM, STATE = HEADS_ * HEAD_STATE;
    static constexpr size_t WINDOW_STRIDE = size_t(WINDOW_) * CHANNELS_;
    static constexpr int JOURNAL_ROWS = 2 * DRAFTS_;  // a step reads up to DRAFTS rows and writes up to DRAFTS others
    static constexpr int JOURNAL_DECAY = KEYS + VALUES, JOURNAL_BASE = JOURNAL_DECAY + HEADS_;
    static constexpr int JOURNAL_WIDTH = (JOURNAL_BASE + HEADS_ + 3) / 4 * 4;
};

struct RecurrentState {
    float *states, *windows, *journals;  // of the layer
};

// A sequence of the step, as the recurrence sees it; no tokens behind the last sequence.
// C::APART: the step names every row as a sequence of its own, and C::TOKENS adjacent entries are one (step.cuh).
struct RecurrentSequence {
    int row, count, position, slot;
};
template <class C>
__device__ __forceinline__ RecurrentSequence recurrent_sequence(const Step* step, int index) {
    const int entry = C::APART ? index * C::TOKENS : index;
    if (entry >= step->sequences) return {0, 0, 0, 0};
    const Sequence& sequence = step->sequence[entry];
    return {sequence.first_token, C::APART ? C::TOKENS : sequence.count, sequence.position, sequence.slot};
}

// The sequence that a row belongs to; every lane of the warp calls it.
__device__ __forceinline__ int recurrent_sequence_of(const Step* step, int row, int lane) {
    for (int first = 0; first < step->sequences; first += 32) {
        const bool mine = first + lane < step->sequences && row < step->sequence[first + lane].first_token + step->sequence[first + lane].count;
        const unsigned found = __ballot_sync(0xffffffffu, mine);
        if (found != 0) return first + __ffs(int(found)) - 1;
    }
    return step->sequences - 1;
}

// Added to the square of a vector that is brought to length 1.
constexpr float RECURRENT_L2_EPS = 1e-6f;

// EXACT: the accurate functions.
template <bool EXACT = false>
__device__ __forceinline__ float recurrent_silu(float x) {
    if constexpr (EXACT)
        return x / (1.0f + expf(-x));
    else
        return __fdividef(x, 1.0f + __expf(-x));  // a denominator beyond 2^126 gives 0, which is right
}

// ln(1 + e^x)
__device__ __forceinline__ float recurrent_softplus(float x) { return x > 20.0f ? x : log1pf(expf(x)); }

// One element of S after a token, from the same operations wherever it is computed, so that a repetition has the same bits.
__device__ __forceinline__ float recurrent_update(float s, float decay, float k, float update) {
    return fmaf(k, update, __fmul_rn(decay, s));
}
__device__ __forceinline__ float4 recurrent_update(float4 s, float decay, float k, float4 update) {
    return make_float4(recurrent_update(s.x, decay, k, update.x), recurrent_update(s.y, decay, k, update.y),
                       recurrent_update(s.z, decay, k, update.z), recurrent_update(s.w, decay, k, update.w));
}

template <class R>
__device__ __forceinline__ float* recurrent_state(float* states, int slot, int head) {
    return states + (size_t(slot) * R::HEADS + head) * R::HEAD_STATE;
}
template <class R>
__device__ __forceinline__ float* recurrent_window(float* windows, int slot, int position) {
    return windows + slot * R::WINDOW_STRIDE + size_t(position % R::WINDOW) * R::CHANNELS;
}
template <class R>
__device__ __forceinline__ float* recurrent_journal(float* journals, int slot, int position) {
    constexpr int ROWS = R::JOURNAL_ROWS > 0 ? R::JOURNAL_ROWS : 1;
    return journals + (size_t(slot) * ROWS + position % ROWS) * R::JOURNAL_WIDTH;
}

// The position that a head's S in memory stands at: tokens from there to `position` are in the journal.
template <class R>
__device__ __forceinline__ int recurrent_base(float* journals, int slot, int position, int head) {
    if constexpr (R::DRAFTS == 0) return position;
    if (position == 0) return 0;
    const float* row = recurrent_journal<R>(journals, slot, position - 1) + R::JOURNAL_BASE + head;
    return *reinterpret_cast<const int*>(row);
}
// Says that a head's S stands at `base` for whoever comes at position `position` + 1.
template <class R>
__device__ __forceinline__ void recurrent_set_base(float* journals, int slot, int position, int head, int base) {
    if constexpr (R::DRAFTS > 0) {
        float* row = recurrent_journal<R>(journals, slot, position) + R::JOURNAL_BASE + head;
        *reinterpret_cast<int*>(row) = base;
    }
}

// Raw input of a channel `back` tokens before a sequence's first of the step, zero before the sequence's start.
template <class R>
__device__ __forceinline__ float recurrent_history(const float* windows, int slot, int position, int back, int channel) {
    if (position < back) return 0.0f;
    return load_streamed(recurrent_window<R>(const_cast<float*>(windows), slot, position - back) + channel);
}

// A row's raw inputs `from` into the window, if they are among the step's last of their sequence. By THREADS threads of a block whose
// predecessor has read the window.
template <class R, int THREADS>
__device__ __forceinline__ void recurrent_keep_inputs(const Step* step, int row, const float* from, float* windows, int thread) {
    const Sequence& sequence = step->sequence[recurrent_sequence_of(step, row, thread % 32)];
    const int token = row - sequence.first_token;
    if (token < sequence.count - R::WINDOW) return;
    float* to = recurrent_window<R>(windows, sequence.slot, sequence.position + token);
    for (int channel = thread; channel < R::CHANNELS; channel += THREADS) to[channel] = load_activation(from + channel);
}

// The convolution of a decode step: up to ITEMS channels a thread, which `channel(i)` names, -1 behind the last.
template <class R, int TAPS, int ITEMS>
struct RecurrentInputs {
    float taps[ITEMS][TAPS], past[ITEMS][TAPS];  // the last is the current token's

    // convolution: [channels, TAPS]; may go before the wait.
    template <class Channel>
    __device__ __forceinline__ void load_taps(const float* convolution, Channel channel) {
#pragma unroll
        for (int i = 0; i < ITEMS; ++i) {
            const float* from = convolution + (channel(i) < 0 ? 0 : channel(i)) * TAPS;
            if constexpr (TAPS == 4) {
                const float4 four = load_constant(reinterpret_cast<const float4*>(from));
                taps[i][0] = four.x, taps[i][1] = four.y, taps[i][2] = four.z, taps[i][3] = four.w;
            } else {
#pragma unroll
                for (int j = 0; j < TAPS; ++j) taps[i][j] = load_constant(from + j);
            }
        }
    }
    template <class Channel>
    __device__ __forceinline__ void load_history(const float* windows, int slot, int position, Channel channel) {
#pragma unroll
        for (int i = 0; i < ITEMS; ++i)
#pragma unroll
            for (int j = 0; j < TAPS - 1; ++j)
                past[i][j] = channel(i) < 0 ? 0.0f : recurrent_history<R>(windows, slot, position, TAPS - 1 - j, channel(i));
    }
    // from: the channels of the token's row.
    template <class Channel>
    __device__ __forceinline__ void load_token(const float* from, Channel channel) {
#pragma unroll
        for (int i = 0; i < ITEMS; ++i) past[i][TAPS - 1] = channel(i) < 0 ? 0.0f : load_activation(from + channel(i));
    }
    __device__ __forceinline__ float convolved(int i, float sum) const {
#pragma unroll
        for (int j = 0; j < TAPS; ++j) sum = fmaf(taps[i][j], past[i][j], sum);
        return sum;
    }
    __device__ __forceinline__ void advance(int i) {
#pragma unroll
        for (int j = 0; j + 1 < TAPS; ++j) past[i][j] = past[i][j + 1];
    }
};

template <class Sum>
__device__ __forceinline__ Sum recurrent_warp_sum(Sum v) {
#pragma unroll
    for (int distance = 16; distance > 0; distance /= 2) v += __shfl_xor_sync(0xffffffffu, v, distance);
    return v;
}

// Sum over the lanes that differ in `first`, 2 `first`, … below `end`.
__device__ __forceinline__ float recurrent_reduce(float v, int first, int end) {
#pragma unroll
    for (int distance = first; distance < end; distance *= 2) v += __shfl_xor_sync(0xffffffffu, v, distance);
    return v;
}
__device__ __forceinline__ float4 recurrent_reduce(float4 v, int first, int end) {
    return make_float4(recurrent_reduce(v.x, first, end), recurrent_reduce(v.y, first, end), recurrent_reduce(v.z, first, end),
                       recurrent_reduce(v.w, first, end));
}

}  // namespace monomorph
