// attention_exact: attention with the arithmetic of the reference interpreter, for any tokens of a step (decode and prefill
// alike), after attention_write with EXACT has left q in `qkv` and K/V in the cache.
//
// Scores, softmax and weighted sums are f64 over the f32 q and the cache's values, rounded to f32 once: what the interpreter
// computes, in another order of summation, so that results agree but for ties in the last rounding. The softmax is online (the
// running maximum rescales), which in f64 changes nothing that f32 could show.
//
// Work: block (row, query head), EXACT_WARPS warps. A warp takes every EXACT_WARPS-th tile of 32 positions: for the scores a
// lane is a position, for the weighted sum a lane is elements lane, lane + 32 … of the head. A tile's values are copied to shared
// memory while its scores are computed, and the next tile's rows come into the second-level cache. The warps' maxima, sums
// and vectors meet in shared memory, in the order of the warps.
// Context vectors of values that are kept rotated are rotated back by one warp.
// Shared memory: ExactShared. Barriers: two, and one before that. Grid: (rows, HEADS), rows >= step->tokens.
#pragma once

#include "attention/attention.cuh"

namespace monomorph {

constexpr int EXACT_WARPS = 8, EXACT_THREADS = 32 * EXACT_WARPS;

// Wide rows of values are read where they are: eight warps' tiles of them would not fit. So are codes of groups.
template <class C>
constexpr bool EXACT_STAGES_VALUES = !GROUPED<typename C::Kv> && C::HEAD_DIM * sizeof(typename C::Kv) <= 256;

template <class C>
struct ExactShared {
    double q[C::HEAD_DIM];
    double maximum[EXACT_WARPS], sum[EXACT_WARPS];
    double context[EXACT_WARPS][C::HEAD_DIM];
    alignas(16) typename C::Kv values[EXACT_WARPS][EXACT_STAGES_VALUES<C> ? 32 : 1][C::HEAD_DIM];  // of a warp's tile
};

// A row of the cache to shared memory, by one thread; complete after copy_wait.
template <class C>
__device__ __forceinline__ void stage_row(typename C::Kv* to, const typename C::Kv* from) {
    constexpr int CHUNK = 16 / sizeof(typename C::Kv);
    if constexpr (C::HEAD_DIM % CHUNK == 0) {
#pragma unroll
        for (int e = 0; e < C::HEAD_DIM; e += CHUNK) copy_16(to + e, from + e);
    } else {
        for (int e = 0; e < C::HEAD_DIM; ++e) to[e] = from[e];
    }
}

template <class C>
constexpr size_t exact_shared_bytes() { return sizeof(ExactShared<C>); }

template <class C>
__device__ __forceinline__ void attention_exact(const Step* step, const TokenRow* tokens, const float* qkv,
                                                const typename C::Kv* layer, float* out) {
    using A = AttentionShape<C>;
    using Kv = typename C::Kv;
    constexpr int D = C::HEAD_DIM, N = HeadVector<C>::N;
    MONOMORPH_DYNAMIC_SHARED(shared_bytes, 16);
    ExactShared<C>& shared = *reinterpret_cast<ExactShared<C>*>(shared_bytes);
    launch_dependents();
    wait_for_predecessors();
    const int thread = threadIdx.x, lane = thread % 32, warp = thread / 32;
    const int row = blockIdx.x, head = blockIdx.y, kv_head = head / A::GROUP;
    if (row >= step->tokens) return;
    const int index = tokens ? tokens[row].sequence : row;
    const Sequence& sequence = step->sequence[index];
    const int position = sequence.position + row - sequence.first_token;
    const int* blocks = step->blocks() + table_start<C>(step, index);
    const float key_scale = static_scale<C>(layer, Side::Keys, kv_head), value_scale = static_scale<C>(layer, Side::Values, kv_head);
    for (int e = thread; e < D; e += EXACT_THREADS) shared.q[e] = qkv[static_cast<size_t>(row) * A::QKV_WIDTH + head * D + e];
    __syncthreads();

    const int first = Window<C>::first(position);
    double maximum = -INFINITY, sum = 0.0, context[N] = {};
    for (int tile = first / 32 + warp; tile * 32 <= position; tile += EXACT_WARPS) {
        const int mine = max(first, min(tile * 32 + lane, position));   // what is not seen has a weight of zero, and a row that is
        const int block = blocks[mine / C::BLOCK_TOKENS];
        const Kv* keys = cached_row<C>(layer, block, kv_head, mine % C::BLOCK_TOKENS);  // not of groups
        if constexpr (EXACT_STAGES_VALUES<C>) stage_row<C>(shared.values[warp][lane], keys + A::VALUES);
        copy_commit();
        const int later = (tile + EXACT_WARPS) * 32 + lane;
        if (!GROUPED<Kv> && later <= position) {
            const Kv* row = cached_row<C>(layer, blocks[later / C::BLOCK_TOKENS], kv_head, later % C::BLOCK_TOKENS);
            for (int e = 0; e < D; e += 128 / sizeof(Kv)) {
                prefetch(row + e);
                prefetch(row + A::VALUES + e);
            }
        }
        double dot[4] = {};
        if constexpr (GROUPED<Kv>) {
            const KeptPlace place = kept_place<C, Side::Keys>(layer, block, kv_head, mine % C::BLOCK_TOKENS);
            for (int e = 0; e < D; ++e) dot[0] += shared.q[e] * static_cast<double>(kept_element<C, Side::Keys>(place, e, key_scale));
        } else if constexpr (D * sizeof(Kv) % 16 == 0) {
            constexpr int V = 16 / sizeof(Kv);
#pragma unroll 8
            for (int e = 0; e < D; e += V) {
                const uint4 chunk = *reinterpret_cast<const uint4*>(keys + e);
#pragma unroll
                for (int i = 0; i < V; ++i)
                    dot[i % 4] += shared.q[e + i] * static_cast<double>(kept(reinterpret_cast<const Kv*>(&chunk)[i], key_scale));
            }
        } else {
            for (int e = 0; e < D; ++e) dot[0] += shared.q[e] * static_cast<double>(kept(keys[e], key_scale));
        }
        const double score = tile * 32 + lane == mine ? static_cast<double>(C::SCALE) * ((dot[0] + dot[1]) + (dot[2] + dot[3])) : -INFINITY;
        double largest = fmax(maximum, score);
#pragma unroll
        for (int mask = 16; mask > 0; mask >>= 1) largest = fmax(largest, __shfl_xor_sync(0xffffffffu, largest, mask));
        const double shrink = exp(maximum - largest), weight = exp(score - largest);
        maximum = largest;
        sum = sum * shrink + weight;
#pragma unroll
        for (int j = 0; j < N; ++j) context[j] *= shrink;
        const int here = min(32, position + 1 - tile * 32);
        copy_wait<0>();
        __syncwarp();
#pragma unroll 8
        for (int token = 0; token < here; ++token) {
            const double w = __shfl_sync(0xffffffffu, weight, token);
            if constexpr (GROUPED<Kv>) {
                const int there = max(first, tile * 32 + token);
                const KeptPlace place = kept_place<C, Side::Values>(layer, blocks[there / C::BLOCK_TOKENS], kv_head, there % C::BLOCK_TOKENS);
#pragma unroll
                for (int j = 0; j < N; ++j) context[j] += w * static_cast<double>(kept_element<C, Side::Values>(place, lane + 32 * j, value_scale));
            } else {
                const Kv* values;
                if constexpr (EXACT_STAGES_VALUES<C>)
                    values = shared.values[warp][token];
                else
                    values = reinterpret_cast<const Kv*>(__shfl_sync(0xffffffffu, reinterpret_cast<unsigned long long>(keys), token)) + A::VALUES;
#pragma unroll
                for (int j = 0; j < N; ++j)
                    if (lane + 32 * j < D) context[j] += w * static_cast<double>(kept(values[lane + 32 * j], value_scale));
            }
        }
        __syncwarp();  // before the next tile's values
    }
    sum = warp_sum(sum);
    if (lane == 0) shared.maximum[warp] = maximum, shared.sum[warp] = sum;
#pragma unroll
    for (int j = 0; j < N; ++j)
        if (lane + 32 * j < D) shared.context[warp][lane + 32 * j] = context[j];
    __syncthreads();
    double largest = -INFINITY, total = 0.0;
    for (int w = 0; w < EXACT_WARPS; ++w) largest = fmax(largest, shared.maximum[w]);
    for (int w = 0; w < EXACT_WARPS; ++w) total += exp(shared.maximum[w] - largest) * shared.sum[w];
    const auto store = [&](int e, float context) {
        if constexpr (C::GATED) {
            const float gate = qkv[static_cast<size_t>(row) * A::QKV_WIDTH + A::WIDTH + head * D + e];
            context = static_cast<float>(static_cast<double>(context) / (1.0 + exp(-static_cast<double>(gate))));
        }
        out[static_cast<size_t>(row) * A::WIDTH + head * D + e] = context;
    };
    constexpr bool ROTATED = is_rotated<Kv, Side::Values>();
    float* rotated = reinterpret_cast<float*>(shared.q);  // the query is done with
    for (int e = thread; e < D; e += EXACT_THREADS) {
        double mixed = 0.0;
        for (int w = 0; w < EXACT_WARPS; ++w) mixed += exp(shared.maximum[w] - largest) * shared.context[w][e];
        const float context = static_cast<float>(mixed / total);
        if constexpr (ROTATED) rotated[e] = context;
        else store(e, context);
    }
    if constexpr (ROTATED) {
        __syncthreads();
        if (warp > 0) return;
        HeadVector<C> vector;
        vector.load(rotated, lane);
        rotate_back(vector, lane);
        vector.each(lane, store);
    }
}

}  // namespace monomorph
