// mamba2_plain: convolution and recurrence of any number of tokens a sequence, for heads of any width; mamba2_gate follows. In decode
// and in prefill, of shapes that the fast kernels do not take, and wherever the arithmetic is exact (sums in f64, rounded once).
//
// Work: block (head, sequence), MAMBA2_PLAIN_THREADS threads, tokens one after another. S is in shared memory, a thread owns every
// THREADS-th column of it and no barrier stands between its reads and writes. A token costs two barriers.
// VERIFY (TOKENS > 1): S stays as it was before the step and the tokens are journalled (core/recurrent.cuh).
//
// Launch: mamba2_plain_shared_bytes of dynamic shared memory.
#pragma once

#include "mamba2/mamba2.cuh"

namespace monomorph {

constexpr int MAMBA2_PLAIN_THREADS = 128;

template <class C>
constexpr size_t mamba2_plain_shared_bytes() { return sizeof(float) * (Mamba2Shape<C>::HEAD_STATE + 2 * C::STATE + C::HEAD_DIM); }

// step; projected f32 [rows, PROJECTED]; weights, state: of the layer; y f32 [rows, VALUES].
// The windows are read here and written by mamba2_gate.
template <class C>
__device__ __forceinline__ void mamba2_plain(const Step* step, const float* projected, Mamba2Weights weights, RecurrentState state, float* y) {
    using M = Mamba2Shape<C>;
    using Sum = std::conditional_t<C::EXACT, double, float>;
    constexpr int N = C::STATE, V = C::HEAD_DIM, INPUTS = 2 * N + V;
    constexpr bool VERIFY = C::TOKENS > 1;
    MONOMORPH_DYNAMIC_SHARED(mamba2_shared, 128);
    float* s = reinterpret_cast<float*>(mamba2_shared);
    float* inputs = s + M::HEAD_STATE;  // B, C, x after convolution and silu
    launch_dependents();
    wait_for_predecessors();
    const RecurrentSequence sequence = recurrent_sequence<C>(step, blockIdx.y);
    const int first_row = sequence.row, count = sequence.count, position = sequence.position, slot = sequence.slot;
    if (count == 0) return;
    const int thread = threadIdx.x, head = blockIdx.x, group = head / M::RATIO;
    const int base = recurrent_base<M>(state.journals, slot, position, head);
    float* own = recurrent_state<M>(state.states, slot, head);

    auto channel = [&](int input) {
        return input < N ? M::VALUES + group * N + input : input < 2 * N ? M::VALUES + M::KEYS + group * N + input - N : head * V + input - 2 * N;
    };
    for (int v = thread; v < V; v += MAMBA2_PLAIN_THREADS)
        for (int n = 0; n < N; ++n) {
            float element = base > 0 ? own[n * V + v] : 0.0f;
            for (int p = base; p < position; ++p) {
                const float* entry = recurrent_journal<M>(state.journals, slot, p);
                element = recurrent_update(element, entry[M::JOURNAL_DECAY + head], entry[group * N + n], entry[M::KEYS + head * V + v]);
            }
            s[n * V + v] = element;
            if (VERIFY) own[n * V + v] = element;
        }
    const float a_log = weights.a_log[head], dt_bias = weights.dt_bias[head], d = weights.d[head];

    for (int t = 0; t < count; ++t) {
        const float* from = projected + size_t(first_row + t) * C::PROJECTED + M::INPUTS;
        for (int input = thread; input < INPUTS; input += MAMBA2_PLAIN_THREADS) {
            Sum sum = weights.convolution_bias[channel(input)];
            for (int j = 0; j < C::TAPS; ++j) {
                const int back = C::TAPS - 1 - j;
                const float x = back <= t ? load_activation(from - size_t(back) * C::PROJECTED + channel(input))
                                          : recurrent_history<M>(state.windows, slot, position, back - t, channel(input));
                sum += Sum(weights.convolution[channel(input) * C::TAPS + j]) * Sum(x);
            }
            inputs[input] = recurrent_silu<C::EXACT>(float(sum));
        }
        __syncthreads();
        const float time = recurrent_softplus(load_activation(from + M::CHANNELS + head) + dt_bias);
        const float decay = expf(mamba2_log_decay(time, a_log));
        float* entry = VERIFY ? recurrent_journal<M>(state.journals, slot, position + t) : nullptr;
        for (int v = thread; v < V; v += MAMBA2_PLAIN_THREADS) {
            const float x = inputs[2 * N + v], update = time * x;
            Sum read = Sum(d) * Sum(x);
            for (int n = 0; n < N; ++n) {
                const float updated = recurrent_update(s[n * V + v], decay, inputs[n], update);
                s[n * V + v] = updated;
                read += Sum(updated) * Sum(inputs[N + n]);
            }
            y[size_t(first_row + t) * M::VALUES + head * V + v] = float(read);
            if (VERIFY) entry[M::KEYS + head * V + v] = update;
        }
        if (VERIFY && head % M::RATIO == 0)
            for (int n = thread; n < N; n += MAMBA2_PLAIN_THREADS) entry[group * N + n] = inputs[n];
        if (thread == 0) {
            if (VERIFY) entry[M::JOURNAL_DECAY + head] = decay;
            if (VERIFY || t == count - 1)
                recurrent_set_base<M>(state.journals, slot, position + t, head, VERIFY ? position : position + count);
        }
        __syncthreads();
    }
    if (!VERIFY)
        for (int v = thread; v < V; v += MAMBA2_PLAIN_THREADS)
            for (int n = 0; n < N; ++n) own[n * V + v] = s[n * V + v];
}

}  // namespace monomorph
