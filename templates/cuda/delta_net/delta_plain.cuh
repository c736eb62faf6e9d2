// delta_plain: the recurrence of any number of tokens a sequence, for heads of any width; delta_gate follows. In decode and in
// prefill, of shapes that the fast kernels do not take, and wherever the arithmetic is exact (sums in f64, rounded once).
//
// Work: block (value head, sequence), DELTA_PLAIN_THREADS threads, tokens one after another. S is in shared memory, a thread owns
// every THREADS-th column of it and no barrier stands between its reads and writes. A token costs two barriers.
// VERIFY (TOKENS > 1): S stays as it was before the step and the tokens are journalled (delta.cuh).
//
// Launch: delta_plain_shared_bytes of dynamic shared memory.
#pragma once

#include "delta_net/delta.cuh"

namespace monomorph {

constexpr int DELTA_PLAIN_THREADS = 128;

template <class C>
constexpr size_t delta_plain_shared_bytes() { return sizeof(float) * (DeltaShape<C>::HEAD_STATE + 2 * C::KEY_DIM + C::VALUE_DIM); }

// step; projected f32 [rows, PROJECTED]; gates f32 [rows, 2 VALUE_HEADS]: b, then a; weights, state: of the layer; o f32 [rows, VALUES].
// The windows are read here and written by delta_gate.
template <class C>
__device__ __forceinline__ void delta_plain(const Step* step, const float* projected, const float* gates, DeltaWeights weights,
                                            RecurrentState state, float* o) {
    using D = DeltaShape<C>;
    using Sum = std::conditional_t<C::EXACT, double, float>;
    constexpr int K = C::KEY_DIM, V = C::VALUE_DIM, INPUTS = 2 * K + V;
    constexpr bool VERIFY = C::TOKENS > 1;
    MONOMORPH_DYNAMIC_SHARED(delta_shared, 128);
    float* s = reinterpret_cast<float*>(delta_shared);
    float* inputs = s + D::HEAD_STATE;  // q, k, v after convolution and silu
    launch_dependents();
    wait_for_predecessors();
    const RecurrentSequence sequence = recurrent_sequence<C>(step, blockIdx.y);
    const int first_row = sequence.row, count = sequence.count, position = sequence.position, slot = sequence.slot;
    if (count == 0) return;
    const int thread = threadIdx.x, head = blockIdx.x, key_head = head / D::RATIO;
    const int base = recurrent_base<D>(state.journals, slot, position, head);
    float* own = recurrent_state<D>(state.states, slot, head);

    auto channel = [&](int input) {
        return input < K ? key_head * K + input : input < 2 * K ? D::KEYS + key_head * K + input - K : 2 * D::KEYS + head * V + input - 2 * K;
    };
    for (int v = thread; v < V; v += DELTA_PLAIN_THREADS)
        for (int k = 0; k < K; ++k) {
            float element = base > 0 ? own[k * V + v] : 0.0f;
            for (int p = base; p < position; ++p) {
                const float* entry = recurrent_journal<D>(state.journals, slot, p);
                element = recurrent_update(element, entry[D::JOURNAL_DECAY + head], entry[key_head * K + k], entry[D::KEYS + head * V + v]);
            }
            s[k * V + v] = element;
            if (VERIFY) own[k * V + v] = element;
        }
    const float a_log = weights.a_log[head], dt_bias = weights.dt_bias[head];

    for (int t = 0; t < count; ++t) {
        const float* from = projected + size_t(first_row + t) * C::PROJECTED;
        for (int input = thread; input < INPUTS; input += DELTA_PLAIN_THREADS) {
            Sum sum = 0;
            for (int j = 0; j < C::TAPS; ++j) {
                const int back = C::TAPS - 1 - j;
                const float x = back <= t ? load_activation(from - size_t(back) * C::PROJECTED + channel(input))
                                          : recurrent_history<D>(state.windows, slot, position, back - t, channel(input));
                sum += Sum(weights.convolution[channel(input) * C::TAPS + j]) * Sum(x);
            }
            inputs[input] = recurrent_silu<C::EXACT>(float(sum));
        }
        __syncthreads();
        Sum kk = 0, qq = 0;
        for (int i = 0; i < K; ++i) {
            qq += Sum(inputs[i]) * Sum(inputs[i]);
            kk += Sum(inputs[K + i]) * Sum(inputs[K + i]);
        }
        const Sum k_scale = Sum(1) / sqrt(kk + Sum(RECURRENT_L2_EPS)), q_scale = Sum(1) / sqrt((qq + Sum(RECURRENT_L2_EPS)) * Sum(K));
        const float* gate = gates + size_t(first_row + t) * 2 * C::VALUE_HEADS + head;
        const float beta = delta_beta(load_activation(gate));
        const float decay = expf(delta_log_decay(load_activation(gate + C::VALUE_HEADS), a_log, dt_bias));
        float* entry = VERIFY ? recurrent_journal<D>(state.journals, slot, position + t) : nullptr;
        for (int v = thread; v < V; v += DELTA_PLAIN_THREADS) {
            Sum predicted = 0, read = 0;
            for (int i = 0; i < K; ++i) predicted += Sum(s[i * V + v]) * Sum(decay) * (Sum(inputs[K + i]) * k_scale);
            const float delta = float(Sum(beta) * (Sum(inputs[2 * K + v]) - predicted));
            for (int i = 0; i < K; ++i) {
                const float k = float(Sum(inputs[K + i]) * k_scale);
                const float updated = recurrent_update(s[i * V + v], decay, k, delta);
                s[i * V + v] = updated;
                read += Sum(updated) * (Sum(inputs[i]) * q_scale);
                if (VERIFY && v == 0 && head % D::RATIO == 0) entry[key_head * K + i] = k;
            }
            o[size_t(first_row + t) * D::VALUES + head * V + v] = float(read);
            if (VERIFY) entry[D::KEYS + head * V + v] = delta;
        }
        if (thread == 0) {
            if (VERIFY) entry[D::JOURNAL_DECAY + head] = decay;
            if (VERIFY || t == count - 1)
                recurrent_set_base<D>(state.journals, slot, position + t, head, VERIFY ? position : position + count);
        }
        __syncthreads();
    }
    if (!VERIFY)
        for (int v = thread; v < V; v += DELTA_PLAIN_THREADS)
            for (int k = 0; k < K; ++k) own[k * V + v] = s[k * V + v];
}

}  // namespace monomorph
