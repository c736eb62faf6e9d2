// attention_decode's shared memory and scratch, and how the splits of a context become one context vector.
#pragma once

#include "attention/attention_decode_tile.cuh"

namespace monomorph {

template <class C>
struct DecodeShared {
    using S = DecodeShape<C>;
    using Operand = typename AttentionShape<C>::Operand;
    // q scaled by SCALE log2(e) as A fragments, a lane's four words side by side. Rows g and g + 8 of a fragment are the two terms
    // of head g; with more than eight heads they are heads g and g + 8, and the terms are two fragments.
    alignas(16) Operand q[S::HEAD_SETS][S::Q_FRAGMENTS][32][8];
    alignas(16) typename C::Kv key[C::TOKENS][S::HeldKey::ROW];  // the step's own, rounded to the cache's format, zero beyond the head
    alignas(16) typename C::Kv value[C::TOKENS][S::HeldValue::ROW];
    alignas(16) float context[S::WARPS][S::GROUP * C::HEAD_DIM];
    float maximum[S::WARPS][S::GROUP], sum[S::WARPS][S::GROUP];
    float split_maximum[C::SPLITS][S::GROUP], split_sum[C::SPLITS][S::GROUP];
    int last;
};

// Dynamic shared memory of the launch.
template <class C>
constexpr size_t decode_shared_bytes() { return sizeof(DecodeShared<C>); }
// Bytes of `partials` for a bucket of `rows`.
template <class C>
constexpr size_t decode_partials_bytes(int rows) {
    return C::SPLITS == 1 ? 0 : sizeof(float) * rows * C::KV_HEADS * C::SPLITS * DecodeShape<C>::PARTIAL;
}
// Number of ints in `counters`.
template <class C>
constexpr int decode_counters(int rows) { return rows * C::KV_HEADS; }

// A warp's results to shared memory, as attention_decode's lanes hold them. A warp without tiles leaves zeros with a maximum of
// minus infinity.
template <class C>
__device__ __forceinline__ void leave_warp(DecodeShared<C>& shared,
                                           const float (&context)[DecodeShape<C>::VALUE_STEPS][4][DecodeShape<C>::HEAD_SETS][4],
                                           const float (&maximum)[DecodeShape<C>::HEAD_SETS], float (&sum)[DecodeShape<C>::HEAD_SETS]) {
    using S = DecodeShape<C>;
    const int warp = threadIdx.x / 32, g = threadIdx.x % 32 / 4, c = threadIdx.x % 4;
#pragma unroll
    for (int r = 0; r < S::HEAD_SETS; ++r) {
        sum[r] += __shfl_xor_sync(0xffffffffu, sum[r], 1);
        sum[r] += __shfl_xor_sync(0xffffffffu, sum[r], 2);
        if (8 * r + g < S::GROUP && c == 0) shared.maximum[warp][8 * r + g] = maximum[r], shared.sum[warp][8 * r + g] = sum[r];
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            const int head_row = 8 * r + 2 * c + i;
            if (head_row < S::GROUP) {
#pragma unroll
                for (int h = 0; h < S::VALUE_STEPS; ++h)
#pragma unroll
                    for (int j = 0; j < 8; ++j) {
                        const int e = S::value_column(h, g) + j;
                        if (e < C::HEAD_DIM) shared.context[warp][head_row * C::HEAD_DIM + e] = context[h][j / 2][r][j % 2 * 2 + i];
                    }
            }
        }
    }
}

// The row's context vectors in shared.context[0], of values that are kept rotated: rotated back, a warp a head.
template <class C>
__device__ __forceinline__ void store_rotated_heads(DecodeShared<C>& shared, const float* qkv, int row, int kv_head, float* out) {
    using S = DecodeShape<C>;
    const int lane = threadIdx.x % 32;
    __syncthreads();
#pragma unroll 1
    for (int head = threadIdx.x / 32; head < S::GROUP; head += S::WARPS) {
        HeadVector<C> vector;
        vector.load(shared.context[0] + head * C::HEAD_DIM, lane);
        store_rotated<C>(out, qkv, row, (kv_head * S::GROUP + head) * C::HEAD_DIM, vector, lane);
    }
}

// Adds up what the splits left in `partials` and writes the row's context vectors of this K/V head, times `value_scale`. All reads of a thread are
// under way at once: the second-level cache's latency is paid once for up to BATCH splits.
template <class C>
__device__ __forceinline__ void combine_splits(DecodeShared<C>& shared, const float* qkv, const float* partials, int used, int row, int kv_head,
                                               float value_scale, float* out) {
    using S = DecodeShape<C>;
    constexpr int V = S::VECTOR, BATCH = C::SPLITS < 16 ? C::SPLITS : 16;
    constexpr bool ROTATED = is_rotated<typename C::Kv, Side::Values>();
    for (int i = threadIdx.x; i < used * S::GROUP; i += S::THREADS) {
        const float* from = partials + i / S::GROUP * S::PARTIAL + S::GROUP * C::HEAD_DIM + i % S::GROUP;
        shared.split_maximum[0][i] = __ldcg(from);
        shared.split_sum[0][i] = __ldcg(from + S::GROUP);
    }
    constexpr int ELEMENTS = S::GROUP * C::HEAD_DIM;
    float v[BATCH][V];
    auto load = [&](int e, int first) {
#pragma unroll
        for (int b = 0; b < BATCH; ++b) {
            const float* from = partials + min(first + b, used - 1) * S::PARTIAL + e;
            if constexpr (V == 4)
                *reinterpret_cast<float4*>(v[b]) = __ldcg(reinterpret_cast<const float4*>(from));
            else
                v[b][0] = __ldcg(from);
        }
    };
    const int own = threadIdx.x * V;
    load(min(own, ELEMENTS - V), 0);
    __syncthreads();
    for (int e = own; e < ELEMENTS; e += S::THREADS * V) {
        const int head = e / C::HEAD_DIM;
        float mixed[V] = {}, total = 0.0f, largest = -INFINITY;
        ContextGates<C, V> gates;
        if constexpr (!ROTATED) gates.load(qkv, row, kv_head * S::GROUP * C::HEAD_DIM + e);
        for (int s = 0; s < used; ++s) largest = fmaxf(largest, shared.split_maximum[s][head]);
        for (int first = 0; first < used; first += BATCH) {
            if (first > 0 || e != own) load(e, first);
#pragma unroll
            for (int b = 0; b < BATCH; ++b) {
                const int s = min(first + b, used - 1);
                const float weight = first + b < used ? power_of_two(shared.split_maximum[s][head] - largest) : 0.0f;
                total += weight * shared.split_sum[s][head];
#pragma unroll
                for (int i = 0; i < V; ++i) mixed[i] += weight * v[b][i];
            }
        }
#pragma unroll
        for (int i = 0; i < V; ++i) mixed[i] *= value_scale / total;
        if constexpr (ROTATED) {
#pragma unroll
            for (int i = 0; i < V; ++i) shared.context[0][e + i] = mixed[i];
        } else {
            gates.apply(mixed);
            store_context<C>(out, row, kv_head * S::GROUP * C::HEAD_DIM + e, mixed);
        }
    }
    if constexpr (ROTATED) store_rotated_heads<C>(shared, qkv, row, kv_head, out);
}

}  // namespace monomorph
