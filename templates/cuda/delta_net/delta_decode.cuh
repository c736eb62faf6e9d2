// delta_decode: the delta-net of a step whose sequences have one token each (or, with TOKENS > 1, up to TOKENS that may be taken
// back), from the raw projections to the normed and gated output, in one launch. Heads whose columns are not whole 32s: delta_plain.
//
// Work: block (part, value head, sequence) of the grid (SPLIT, VALUE_HEADS, sequences of the bucket) owns COLUMNS = VALUE_DIM / SPLIT
// columns of S, in registers: a warp has 8 x 4 columns and every 4 ROW_WARPS-th row from its own on, so that one load of a warp
// reads 128 bytes of four rows. S is read once, before the kernels that this one depends on have finished (STATE_BEFORE_WAIT: the
// step header and the state of earlier steps are complete before any kernel of the step starts, as in attention.cuh), and written once.
// One pass over S gives both S^T k and S^T q: o = decay S^T q + (k . q) delta, so a token costs two block barriers, one more
// where several warps share the norm. SPLIT blocks of a head are a cluster (sm_90a) and tell one another their sums of squares through
// shared memory, after S's stores are on their way; elsewhere SPLIT is 1.
//
// The convolution of q and k is computed by every block of their key head. Exactly one writes a channel's new input into the window.
//
// Predicted, one H200, 16 key and 32 value heads of 128, one sequence (2 MiB of S), from the wait's return on:
//   SPLIT 4, 128 blocks of 128 threads: projections 0.8 us, two barriers 0.1, stores of 16 KiB an SM (64 bytes a clock) 0.15 behind a cluster
//     barrier of 0.4: 1.3 us. The loads want 16 KiB an SM, 0.15 us and a latency, long before that.
//   SPLIT 2: stores 0.3 us behind the same barrier: 1.3 us.    SPLIT 1, 32 blocks of 512: no cluster, stores 0.55 us: 1.5 us, and a
//     block of 512 threads finds room beside the predecessor's later than one of 128.
//   From 8 sequences on every SM has blocks enough: SPLIT 1 with 256 threads (two blocks, 128 KiB of S under way an SM), bytes over bandwidth, 4 MiB a sequence: 0.95 us each.
// gb10: 4 MiB at 273 GB/s are 15 us a sequence whatever the division.
//
// Launch: cluster (SPLIT, 1, 1), block THREADS, RESIDENT of them a multiprocessor, delta_decode_shared_bytes of dynamic shared memory. S takes 4 ROWS registers.
#pragma once

#include "delta_net/delta.cuh"

namespace monomorph {

template <class C>
struct DeltaDecode {
    static constexpr int COLUMNS = C::VALUE_DIM / C::SPLIT, SETS = COLUMNS / 32;  // sets of 8 x 4 columns
    static constexpr int WARPS = C::THREADS / 32, ROW_WARPS = WARPS / SETS;
    static constexpr int GROUPS = 4 * ROW_WARPS, ROWS = C::KEY_DIM / GROUPS;  // of S in a thread
    static constexpr int INPUTS = 2 * C::KEY_DIM + COLUMNS;                  // channels a block convolves
    static constexpr int ITEMS = (INPUTS + C::THREADS - 1) / C::THREADS;     // of a thread
    // Registers a thread is to have, and so the blocks of a multiprocessor. 64 (twice as many blocks of 512) end in local memory.
    static constexpr int REGISTERS = 128;
    static constexpr int RESIDENT = 65536 / (C::THREADS * REGISTERS);
    static_assert(C::VALUE_DIM % (32 * C::SPLIT) == 0 && WARPS % SETS == 0 && C::KEY_DIM % GROUPS == 0, "S divides evenly");
    static_assert(C::TOKENS == 1 || C::TOKENS <= C::DRAFTS, "what may be taken back is journalled");
    static_assert(REGISTERS >= 4 * ROWS + 32, "S fits in registers");
    static_assert(C::TOKENS <= GROUPS && C::TOKENS * C::SPLIT <= C::THREADS, "a thread for each of the last steps");
};

template <class C>
struct DeltaDecodeShared {
    using S = DeltaDecode<C>;
    alignas(16) float inputs[C::TOKENS][S::INPUTS];  // q, k, v after convolution and silu
    alignas(16) float gate[C::TOKENS][S::COLUMNS];  // silu(z) times the norm's weight
    float4 sums[2][S::WARPS][8][2];      // S^T k and S^T q of a warp's rows; two tokens' worth, so that one barrier a token is enough
    float4 dots[2][S::WARPS];            // of a warp's rows: k k, q q, k q
    float squares[C::TOKENS][S::SETS];
    float parts[C::TOKENS][C::SPLIT];    // sums of squares, by block of the cluster
};

template <class C>
constexpr size_t delta_decode_shared_bytes() { return sizeof(DeltaDecodeShared<C>); }

__device__ __forceinline__ void delta_add(float4& sum, float4 v) { sum.x += v.x, sum.y += v.y, sum.z += v.z, sum.w += v.w; }

// step; projected f32 [rows, PROJECTED]; gates f32 [rows, 2 VALUE_HEADS]: b, then a; weights, state: of the layer; out f32 [rows, VALUES].
template <class C>
__device__ __forceinline__ void delta_decode(const Step* step, const float* projected, const float* gates, DeltaWeights weights,
                                             RecurrentState state, float* out) {
    using D = DeltaShape<C>;
    using S = DeltaDecode<C>;
    constexpr int TOKENS = C::TOKENS, ROWS = S::ROWS;
    MONOMORPH_DYNAMIC_SHARED(delta_shared, 128);
    DeltaDecodeShared<C>& shared = *reinterpret_cast<DeltaDecodeShared<C>*>(delta_shared);
    launch_dependents();
    const int thread = threadIdx.x, lane = thread % 32, warp = thread / 32;
    const int part = blockIdx.x, head = blockIdx.y, key_head = head / D::RATIO;
    const int set = warp / S::ROW_WARPS, quad = lane % 8, group = warp % S::ROW_WARPS * 4 + lane / 8;
    const int column = part * S::COLUMNS + set * 32 + quad * 4;  // of the head

    // The channel of item i: -1 behind the last.
    auto channel = [&](int i) {
        const int input = thread + i * C::THREADS;
        if (input < C::KEY_DIM) return key_head * C::KEY_DIM + input;
        if (input < 2 * C::KEY_DIM) return D::KEYS + key_head * C::KEY_DIM + input - C::KEY_DIM;
        return input < S::INPUTS ? 2 * D::KEYS + head * C::VALUE_DIM + part * S::COLUMNS + input - 2 * C::KEY_DIM : -1;
    };
    RecurrentInputs<D, C::TAPS, S::ITEMS> inputs;
    inputs.load_taps(weights.convolution, channel);
    const float a_log = load_constant(weights.a_log + head), dt_bias = load_constant(weights.dt_bias + head);
    const bool gates_column = thread < S::COLUMNS;  // thread i prepares column i's gate
    const float norm = gates_column ? load_constant(weights.norm + part * S::COLUMNS + thread) : 0.0f;

    if constexpr (!C::STATE_BEFORE_WAIT) wait_for_predecessors();
    const RecurrentSequence sequence = recurrent_sequence<C>(step, blockIdx.z);
    const int position = sequence.position, slot = sequence.slot, row = sequence.row;
    if (sequence.count == 0) {
        if constexpr (C::STATE_BEFORE_WAIT) wait_for_predecessors();
        return;
    }
    if constexpr (C::SPLIT > 1) cluster_start();
    const int count = TOKENS == 1 ? 1 : C::APART ? TOKENS : min(sequence.count, TOKENS);

    const int base = recurrent_base<D>(state.journals, slot, position, head);
    float* own = recurrent_state<D>(state.states, slot, head) + group * C::VALUE_DIM + column;
    float4 s[ROWS];
#pragma unroll
    for (int i = 0; i < ROWS; ++i) {
        const float4* from = reinterpret_cast<const float4*>(own + i * S::GROUPS * C::VALUE_DIM);
        s[i] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
        if (base > 0) s[i] = load_streamed(from);
    }
    auto store_state = [&] {
#pragma unroll
        for (int i = 0; i < ROWS; ++i) *reinterpret_cast<float4*>(own + i * S::GROUPS * C::VALUE_DIM) = s[i];
    };
    inputs.load_history(state.windows, slot, position, channel);
    if constexpr (C::DRAFTS > 0) {
        for (int p = base; p < position; ++p) {
            const float* entry = recurrent_journal<D>(state.journals, slot, p);
            const float decay = load_streamed(entry + D::JOURNAL_DECAY + head);
            const float4 delta = load_streamed(reinterpret_cast<const float4*>(entry + D::KEYS + head * C::VALUE_DIM + column));
#pragma unroll
            for (int i = 0; i < ROWS; ++i)
                s[i] = recurrent_update(s[i], decay, load_streamed(entry + key_head * C::KEY_DIM + group + i * S::GROUPS), delta);
        }
        if (TOKENS > 1 && base < position) store_state();
    }
    if constexpr (C::STATE_BEFORE_WAIT) wait_for_predecessors();

    // Convolution of all tokens, and their gates.
    float decay[TOKENS], beta[TOKENS];
    const bool writes_keys = head % D::RATIO == 0 && part == 0;
#pragma unroll
    for (int t = 0; t < TOKENS; ++t) {
        if (t < count) {
            const float* from = projected + size_t(row + t) * C::PROJECTED;
            inputs.load_token(from, channel);
            beta[t] = load_activation(gates + size_t(row + t) * 2 * C::VALUE_HEADS + head);
            decay[t] = load_activation(gates + size_t(row + t) * 2 * C::VALUE_HEADS + C::VALUE_HEADS + head);
            const float z = gates_column ? load_activation(from + D::CHANNELS + head * C::VALUE_DIM + part * S::COLUMNS + thread) : 0.0f;
#pragma unroll
            for (int i = 0; i < S::ITEMS; ++i) {
                const int input = thread + i * C::THREADS;
                const float sum = inputs.convolved(i, 0.0f);
                if (input < S::INPUTS) {
                    shared.inputs[t][input] = recurrent_silu(sum);
                    if (writes_keys || input >= 2 * C::KEY_DIM)
                        recurrent_window<D>(state.windows, slot, position + t)[channel(i)] = inputs.past[i][C::TAPS - 1];
                }
                inputs.advance(i);
            }
            if (gates_column) shared.gate[t][thread] = recurrent_silu(z) * norm;
            beta[t] = delta_beta(beta[t]);
            decay[t] = expf(delta_log_decay(decay[t], a_log, dt_bias));
        }
    }
    __syncthreads();

    float4 o[TOKENS];
#pragma unroll
    for (int t = 0; t < TOKENS; ++t) {
        if (t < count) {
            const float* q = shared.inputs[t];
            const float* k = q + C::KEY_DIM;
            float4 by_k = {}, by_q = {}, dots = {};
#pragma unroll
            for (int i = 0; i < ROWS; ++i) {
                const float q_i = q[group + i * S::GROUPS], k_i = k[group + i * S::GROUPS];
                by_k.x = fmaf(s[i].x, k_i, by_k.x), by_k.y = fmaf(s[i].y, k_i, by_k.y);
                by_k.z = fmaf(s[i].z, k_i, by_k.z), by_k.w = fmaf(s[i].w, k_i, by_k.w);
                by_q.x = fmaf(s[i].x, q_i, by_q.x), by_q.y = fmaf(s[i].y, q_i, by_q.y);
                by_q.z = fmaf(s[i].z, q_i, by_q.z), by_q.w = fmaf(s[i].w, q_i, by_q.w);
                dots.x = fmaf(k_i, k_i, dots.x), dots.y = fmaf(q_i, q_i, dots.y), dots.z = fmaf(k_i, q_i, dots.z);
            }
            by_k = recurrent_reduce(by_k, 8, 32), by_q = recurrent_reduce(by_q, 8, 32), dots = recurrent_reduce(dots, 8, 32);
            if (lane < 8) shared.sums[t % 2][warp][quad][0] = by_k, shared.sums[t % 2][warp][quad][1] = by_q;
            if (lane == 0) shared.dots[t % 2][warp] = dots;
            __syncthreads();
            by_k = {}, by_q = {}, dots = {};
#pragma unroll
            for (int w = 0; w < S::ROW_WARPS; ++w) {
                const int from = set * S::ROW_WARPS + w;
                delta_add(by_k, shared.sums[t % 2][from][quad][0]);
                delta_add(by_q, shared.sums[t % 2][from][quad][1]);
                delta_add(dots, shared.dots[t % 2][from]);
            }
            const float k_scale = rsqrtf(dots.x + RECURRENT_L2_EPS);
            const float q_scale = rsqrtf((dots.y + RECURRENT_L2_EPS) * C::KEY_DIM);
            const float4 v = *reinterpret_cast<const float4*>(&shared.inputs[t][2 * C::KEY_DIM + set * 32 + quad * 4]);
            const float predicted = decay[t] * k_scale, crossed = dots.z * k_scale;
            const float4 delta = {beta[t] * (v.x - predicted * by_k.x), beta[t] * (v.y - predicted * by_k.y),
                                  beta[t] * (v.z - predicted * by_k.z), beta[t] * (v.w - predicted * by_k.w)};
            o[t] = make_float4(q_scale * fmaf(decay[t], by_q.x, crossed * delta.x), q_scale * fmaf(decay[t], by_q.y, crossed * delta.y),
                               q_scale * fmaf(decay[t], by_q.z, crossed * delta.z), q_scale * fmaf(decay[t], by_q.w, crossed * delta.w));
            float* entry = nullptr;
            if constexpr (TOKENS > 1) entry = recurrent_journal<D>(state.journals, slot, position + t);
#pragma unroll
            for (int i = 0; i < ROWS; ++i) {
                const float k_i = __fmul_rn(k[group + i * S::GROUPS], k_scale);
                s[i] = recurrent_update(s[i], decay[t], k_i, delta);
                if constexpr (TOKENS > 1) {
                    if (writes_keys && set == 0 && quad == 0) entry[key_head * C::KEY_DIM + group + i * S::GROUPS] = k_i;
                }
            }
            if constexpr (TOKENS > 1) {
                if (group == 0) *reinterpret_cast<float4*>(entry + D::KEYS + head * C::VALUE_DIM + column) = delta;
                if (thread == 0 && part == 0) entry[D::JOURNAL_DECAY + head] = decay[t];
            }
            const float square = recurrent_reduce(o[t].x * o[t].x + o[t].y * o[t].y + o[t].z * o[t].z + o[t].w * o[t].w, 1, 8);
            if (group == 0 && quad == 0) shared.squares[t][set] = square;
        }
    }
    if constexpr (TOKENS == 1) store_state();
    if (thread < count && part == 0)
        recurrent_set_base<D>(state.journals, slot, position + thread, head, TOKENS == 1 ? position + 1 : position);
    __syncthreads();

    if constexpr (C::SPLIT > 1) {
        cluster_started();
        if (thread < count * C::SPLIT) {
            const int t = thread / C::SPLIT;
            float sum = 0.0f;
#pragma unroll
            for (int i = 0; i < S::SETS; ++i) sum += shared.squares[t][i];
            store_cluster(cluster_address(shared_address(&shared.parts[t][part]), thread % C::SPLIT), sum);
        }
        cluster_sync();
    }
#pragma unroll
    for (int t = 0; t < TOKENS; ++t) {
        if (t < count && group == t) {
            float sum = 0.0f;
            if constexpr (C::SPLIT > 1) {
#pragma unroll
                for (int i = 0; i < C::SPLIT; ++i) sum += shared.parts[t][i];
            } else {
#pragma unroll
                for (int i = 0; i < S::SETS; ++i) sum += shared.squares[t][i];
            }
            const float inverse = rsqrtf(sum * (1.0f / C::VALUE_DIM) + C::NORM_EPS);
            const float4 gate = *reinterpret_cast<const float4*>(&shared.gate[t][set * 32 + quad * 4]);
            delta_store<C>(out, row + t, head * C::VALUE_DIM + column,
                           make_float4(o[t].x * inverse * gate.x, o[t].y * inverse * gate.y, o[t].z * inverse * gate.z, o[t].w * inverse * gate.w));
        }
    }
}

}  // namespace monomorph
