// mamba2_decode: Mamba-2 of a step whose sequences have one token each (or, with TOKENS > 1, up to TOKENS that may be taken back), from
// the raw projections to the gated and normed output, in one launch. Shapes it does not take: mamba2_plain.
//
// Work: block (part, group, sequence) of the grid (SPLIT, GROUPS, sequences of the bucket) owns 1 / SPLIT of a group's heads, one after
// another: S of a head is in registers, a thread has 4 columns and every GROUPS-th row, and a warp's load is 512 bytes in a row. S is read
// once and written once, the first head's before the kernels that this one depends on have finished (STATE_BEFORE_WAIT: the step header
// and the state of earlier steps are complete before any kernel of the step starts, as in attention.cuh), the next head's while one
// is computed. The update needs nothing of S, so a token costs no barrier; a head costs one, for the sum over rows that is y. The norm is
// over the group: SPLIT blocks of it are a cluster (sm_90a) and tell one another their sums of squares through shared memory, after S's
// stores are on their way; elsewhere SPLIT is 1.
//
// The convolution of B and C is computed by every block of their group. Exactly one writes a channel's new input into the window.
//
// Floor: bytes of S over bandwidth, read and written: 4 MiB a layer and sequence of 64 heads of 64 with a state of 128 (Nano), 8 MiB of 128
// heads (Super). At 4.5 TB/s 0.93 and 1.9 us; at 273 GB/s 15.4 and 31 us. Projections are 41 and 74 KiB beside it, the window twice that.
// Predicted, one H200, 8 groups:
//   one sequence, SPLIT 8, 64 blocks of 32 (64) KiB of S: loads are done before the wait's return or hide a latency; from there projections
//     0.8 us, convolution and time steps 0.2, a head 0.3, stores of 32 KiB an SM (64 bytes a clock) 0.3 behind a cluster barrier of 0.4: 2 us.
//   From 32 sequences on every SM has two blocks: SPLIT 1, two heads of 32 KiB under way in each: bytes over bandwidth.
// GB10, one sequence: 8 blocks that have 64 KiB under way each, 512 KiB in all, where bandwidth times latency is 270.
//
// Launch: cluster (SPLIT, 1, 1), block THREADS, RESIDENT of them a multiprocessor, mamba2_decode_shared_bytes of dynamic shared memory.
#pragma once

#include "core/cluster.cuh"
#include "mamba2/mamba2.cuh"

namespace monomorph {

template <class C>
struct Mamba2Decode {
    using M = Mamba2Shape<C>;
    static constexpr int HEADS = M::RATIO / C::SPLIT, COLUMNS = HEADS * C::HEAD_DIM;  // of a block
    static constexpr int QUADS = C::HEAD_DIM / 4, WARPS = C::THREADS / 32;
    static constexpr int GROUPS = C::THREADS / QUADS, ROWS = C::STATE / GROUPS;  // of S in a thread
    static constexpr int INPUTS = COLUMNS + 2 * C::STATE;                        // channels a block convolves
    static constexpr int ITEMS = (INPUTS + C::THREADS - 1) / C::THREADS;         // of a thread
    static constexpr int BUFFERS = C::TOKENS == 1 ? 2 : 1;                       // of y: two save a barrier a head
    // Registers a thread is to have, and so the blocks of a multiprocessor.
    static constexpr int REGISTERS = 128;
    static constexpr int RESIDENT = 65536 / (C::THREADS * REGISTERS);
    static_assert(M::RATIO % C::SPLIT == 0 && C::HEAD_DIM % 4 == 0 && 32 % QUADS == 0, "a warp has whole rows");
    static_assert(C::THREADS % 32 == 0 && C::STATE % GROUPS == 0 && C::STATE % 2 == 0, "S divides evenly");
    static_assert(REGISTERS >= 4 * ROWS + 8 * ITEMS + 40 && REGISTERS >= 8 * ROWS + 40, "two heads of S fit in registers");
    static_assert(C::TOKENS == 1 || C::TOKENS <= C::DRAFTS, "what may be taken back is journalled");
    static_assert(C::TOKENS * C::SPLIT <= C::THREADS && C::TOKENS * HEADS <= C::THREADS, "a thread for each");
};

template <class C>
struct Mamba2DecodeShared {
    using S = Mamba2Decode<C>;
    alignas(16) float inputs[C::TOKENS][S::INPUTS];           // x, B, C after convolution and silu
    alignas(16) float sums[S::BUFFERS][C::TOKENS][S::WARPS][C::HEAD_DIM];  // y of a warp's rows
    float gated[C::TOKENS][S::COLUMNS];                       // silu(z), then y silu(z)
    float norm[S::COLUMNS];
    float time[C::TOKENS][S::HEADS], decay[C::TOKENS][S::HEADS], d[S::HEADS];
    float squares[C::TOKENS], parts[C::TOKENS][C::SPLIT];     // sums of the block's squares, and those by block of the cluster
};

template <class C>
constexpr size_t mamba2_decode_shared_bytes() { return sizeof(Mamba2DecodeShared<C>); }

// step; projected f32 [rows, PROJECTED]; weights, state: of the layer; out f32 [rows, VALUES].
template <class C>
__device__ __forceinline__ void mamba2_decode(const Step* step, const float* projected, Mamba2Weights weights, RecurrentState state, float* out) {
    using M = Mamba2Shape<C>;
    using S = Mamba2Decode<C>;
    constexpr int TOKENS = C::TOKENS, ROWS = S::ROWS;
    MONOMORPH_DYNAMIC_SHARED(mamba2_shared, 128);
    Mamba2DecodeShared<C>& shared = *reinterpret_cast<Mamba2DecodeShared<C>*>(mamba2_shared);
    launch_dependents();
    const int thread = threadIdx.x, lane = thread % 32, warp = thread / 32;
    const int part = blockIdx.x, group = blockIdx.y, first_head = group * M::RATIO + part * S::HEADS;
    const int quad = thread % S::QUADS, first_row = thread / S::QUADS;

    // The channel of item i: -1 behind the last.
    auto channel = [&](int i) {
        const int input = thread + i * C::THREADS, key = input - S::COLUMNS;
        if (key < 0) return first_head * C::HEAD_DIM + input;
        if (key < C::STATE) return M::VALUES + group * C::STATE + key;
        return input < S::INPUTS ? M::VALUES + M::KEYS + group * C::STATE + key - C::STATE : -1;
    };
    RecurrentInputs<M, C::TAPS, S::ITEMS> inputs;
    inputs.load_taps(weights.convolution, channel);
    for (int column = thread; column < S::COLUMNS; column += C::THREADS)
        shared.norm[column] = load_constant(weights.norm + first_head * C::HEAD_DIM + column);
    if (thread < S::HEADS) shared.d[thread] = load_constant(weights.d + first_head + thread);
    const int timed_head = first_head + thread % S::HEADS, timed_token = thread / S::HEADS;  // of the time step that a thread computes
    const float a_log = load_constant(weights.a_log + timed_head), dt_bias = load_constant(weights.dt_bias + timed_head);

    if constexpr (!C::STATE_BEFORE_WAIT) wait_for_predecessors();
    const RecurrentSequence sequence = recurrent_sequence<C>(step, blockIdx.z);
    const int position = sequence.position, slot = sequence.slot, row = sequence.row;
    if (sequence.count == 0) {
        if constexpr (C::STATE_BEFORE_WAIT) wait_for_predecessors();
        return;
    }
    if constexpr (C::SPLIT > 1) cluster_start();
    const int count = TOKENS == 1 ? 1 : C::APART ? TOKENS : min(sequence.count, TOKENS);

    // Every head's S stands at the same position.
    const int base = recurrent_base<M>(state.journals, slot, position, first_head);
    float* own = recurrent_state<M>(state.states, slot, first_head) + first_row * C::HEAD_DIM + 4 * quad;
    float4 s[ROWS];
    auto load_state = [&](float4 (&to)[ROWS], int head) {
#pragma unroll
        for (int i = 0; i < ROWS; ++i) {
            to[i] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
            if (base > 0) to[i] = load_streamed(reinterpret_cast<const float4*>(own + head * M::HEAD_STATE + i * S::GROUPS * C::HEAD_DIM));
        }
    };
    auto store_state = [&](int head) {
#pragma unroll
        for (int i = 0; i < ROWS; ++i) *reinterpret_cast<float4*>(own + head * M::HEAD_STATE + i * S::GROUPS * C::HEAD_DIM) = s[i];
    };
    load_state(s, 0);
    inputs.load_history(state.windows, slot, position, channel);
    if constexpr (C::STATE_BEFORE_WAIT) wait_for_predecessors();

    // Gates, convolution of all tokens, and their time steps. Gates of several tokens wait, for registers are dear.
    auto gate = [&](int t) {
        const float* from = projected + size_t(row + t) * C::PROJECTED + first_head * C::HEAD_DIM;
        for (int column = thread; column < S::COLUMNS; column += C::THREADS)
            shared.gated[t][column] = recurrent_silu(load_activation(from + column));
    };
#pragma unroll 1
    for (int t = 0; t < count; ++t) {
        const float* from = projected + size_t(row + t) * C::PROJECTED;
        inputs.load_token(from + M::INPUTS, channel);
        if (TOKENS == 1) gate(t);
#pragma unroll
        for (int i = 0; i < S::ITEMS; ++i) {
            const int input = thread + i * C::THREADS;
            if (input < S::INPUTS) {
                // Read here, beside the token's own inputs, and not before the wait: that would take a register.
                const float bias = load_constant(weights.convolution_bias + channel(i));
                shared.inputs[t][input] = recurrent_silu(inputs.convolved(i, bias));
                if (part == 0 || input < S::COLUMNS)
                    recurrent_window<M>(state.windows, slot, position + t)[channel(i)] = inputs.past[i][C::TAPS - 1];
            }
            inputs.advance(i);
        }
    }
    if constexpr (TOKENS > 1) {
#pragma unroll 1
        for (int t = 0; t < count; ++t) gate(t);
    }
    if (timed_token < count) {
        const float dt = load_activation(projected + size_t(row + timed_token) * C::PROJECTED + M::TIMES + timed_head);
        const float time = recurrent_softplus(dt + dt_bias), decay = expf(mamba2_log_decay(time, a_log));
        shared.time[timed_token][timed_head - first_head] = time, shared.decay[timed_token][timed_head - first_head] = decay;
        if constexpr (TOKENS > 1)
            recurrent_journal<M>(state.journals, slot, position + timed_token)[M::JOURNAL_DECAY + timed_head] = decay;
        recurrent_set_base<M>(state.journals, slot, position + timed_token, timed_head, TOKENS == 1 ? position + 1 : position);
    }
    __syncthreads();
    if constexpr (TOKENS > 1) {
        for (int i = thread; part == 0 && i < count * C::STATE; i += C::THREADS)
            recurrent_journal<M>(state.journals, slot, position + i / C::STATE)[group * C::STATE + i % C::STATE] =
                shared.inputs[i / C::STATE][S::COLUMNS + i % C::STATE];
    }

#pragma unroll 1
    for (int head = 0; head < S::HEADS; ++head) {
        float4 next[ROWS];
        if (head + 1 < S::HEADS) load_state(next, head + 1);
        if constexpr (C::DRAFTS > 0) {
#pragma unroll 1
            for (int p = base; p < position; ++p) {
                const float* entry = recurrent_journal<M>(state.journals, slot, p);
                const float decay = load_streamed(entry + M::JOURNAL_DECAY + first_head + head);
                const float* update = entry + M::KEYS + (first_head + head) * C::HEAD_DIM + 4 * quad;
                const float4 updates = load_streamed(reinterpret_cast<const float4*>(update));
#pragma unroll
                for (int i = 0; i < ROWS; ++i)
                    s[i] = recurrent_update(s[i], decay, load_streamed(entry + group * C::STATE + first_row + i * S::GROUPS), updates);
            }
            if (TOKENS > 1 && base < position) store_state(head);
        }
#pragma unroll 1
        for (int t = 0; t < count; ++t) {
            const float *keys = shared.inputs[t] + S::COLUMNS + first_row, *queries = keys + C::STATE;
            const float decay = shared.decay[t][head], time = shared.time[t][head];
            const float4 x = *reinterpret_cast<const float4*>(&shared.inputs[t][head * C::HEAD_DIM + 4 * quad]);
            const float4 update = make_float4(time * x.x, time * x.y, time * x.z, time * x.w);
            float4 y = {0.0f, 0.0f, 0.0f, 0.0f};
#pragma unroll
            for (int i = 0; i < ROWS; ++i) {
                const float query = queries[i * S::GROUPS];
                s[i] = recurrent_update(s[i], decay, keys[i * S::GROUPS], update);
                y.x = fmaf(s[i].x, query, y.x), y.y = fmaf(s[i].y, query, y.y);
                y.z = fmaf(s[i].z, query, y.z), y.w = fmaf(s[i].w, query, y.w);
            }
            y = recurrent_reduce(y, S::QUADS, 32);
            if (lane < S::QUADS) *reinterpret_cast<float4*>(&shared.sums[head % S::BUFFERS][t][warp][4 * quad]) = y;
            if constexpr (TOKENS > 1) {
                float* entry = recurrent_journal<M>(state.journals, slot, position + t) + M::KEYS + (first_head + head) * C::HEAD_DIM;
                if (first_row == 0) *reinterpret_cast<float4*>(entry + 4 * quad) = update;
            }
        }
        if constexpr (TOKENS == 1) store_state(head);
        __syncthreads();
        for (int i = thread; i < count * C::HEAD_DIM; i += C::THREADS) {
            const int t = i / C::HEAD_DIM, v = i % C::HEAD_DIM, column = head * C::HEAD_DIM + v;
            float y = shared.d[head] * shared.inputs[t][column];
#pragma unroll
            for (int w = 0; w < S::WARPS; ++w) y += shared.sums[head % S::BUFFERS][t][w][v];
            shared.gated[t][column] *= y;
        }
        if constexpr (S::BUFFERS == 1) __syncthreads();
        if (head + 1 < S::HEADS) {
#pragma unroll
            for (int i = 0; i < ROWS; ++i) s[i] = next[i];
        }
    }
    __syncthreads();

    for (int t = warp; t < count; t += S::WARPS) {
        float sum = 0.0f;
        for (int column = lane; column < S::COLUMNS; column += 32) sum = fmaf(shared.gated[t][column], shared.gated[t][column], sum);
        sum = recurrent_warp_sum(sum);
        if (lane == 0) shared.squares[t] = sum;
    }
    __syncthreads();
    if constexpr (C::SPLIT > 1) {
        cluster_started();
        if (thread < count * C::SPLIT)
            store_cluster(cluster_address(shared_address(&shared.parts[thread / C::SPLIT][part]), thread % C::SPLIT), shared.squares[thread / C::SPLIT]);
        cluster_sync();
    }
    for (int t = 0; t < count; ++t) {
        float sum = 0.0f;
        if constexpr (C::SPLIT > 1) {
#pragma unroll
            for (int i = 0; i < C::SPLIT; ++i) sum += shared.parts[t][i];
        } else {
            sum = shared.squares[t];
        }
        const float inverse = rsqrtf(sum * (1.0f / M::WIDTH) + C::NORM_EPS);
        float* to = out + size_t(row + t) * M::VALUES + first_head * C::HEAD_DIM;
        for (int column = thread; column < S::COLUMNS; column += C::THREADS) to[column] = shared.gated[t][column] * inverse * shared.norm[column];
    }
}

}  // namespace monomorph
