// attend_spans: attention of a prefill's image tokens to all of their image, where images see all of themselves, over what the launch
// before left for these rows, which saw no further than themselves. Other rows, and the last token of an image, are left alone.
//
// Keys from the window's first, of the token's own position, to its image's last: those were written by this step. Sums are f32, with
// EXACT f64, of which q is f32 in `qkv`; else `q` has it as attention_write leaves it.
//
// Work: block (row, query head), SPAN_WARPS warps. A warp takes every SPAN_WARPS-th tile of 32 positions: for scores a lane is a position,
// for sums its lanes are elements lane, lane + 32, … of the head. The warps' maxima, sums and vectors meet in shared memory, in the order
// of the warps. Context vectors of values that are kept rotated are rotated back by one warp.
//
// Config: attention's, without gates, and EXACT. Grid: (rows, HEADS), rows >= step->tokens; block = SPAN_THREADS.
#pragma once

#include "attention/attention.cuh"
#include "vision/images.cuh"

namespace monomorph {

constexpr int SPAN_WARPS = 8, SPAN_THREADS = 32 * SPAN_WARPS;

// An element of a token's key or value, with its scale.
template <class C, Side SIDE>
__device__ __forceinline__ float span_element(const typename C::Kv* layer, int block, int kv_head, int token, int e, float scale) {
    if constexpr (GROUPED<typename C::Kv>)
        return kept_element<C, SIDE>(kept_place<C, SIDE>(layer, block, kv_head, token), e, scale);
    else
        return kept(cached_row<C>(layer, block, kv_head, token)[(SIDE == Side::Values ? AttentionShape<C>::VALUES : 0) + e], scale);
}

template <class C>
__device__ __forceinline__ void attend_spans(const Step* step, const TokenRow* tokens, const ImageRow* images, const float* qkv,
                                             const typename AttentionShape<C>::Operand* q, const typename C::Kv* layer, float* out) {
    using A = AttentionShape<C>;
    using Sum = std::conditional_t<C::EXACT, double, float>;
    static_assert(!C::GATED, "context vectors are stored as they are");
    constexpr int D = C::HEAD_DIM, N = HeadVector<C>::N;
    MONOMORPH_SHARED(query, Sum[D]);
    MONOMORPH_SHARED(of_warps, Sum[2][SPAN_WARPS]);  // maxima, sums
    MONOMORPH_SHARED(contexts, Sum[SPAN_WARPS][D]);
    launch_dependents();
    wait_for_predecessors();
    const int thread = threadIdx.x, lane = thread % 32, warp = thread / 32;
    const int row = blockIdx.x, head = blockIdx.y, kv_head = head / A::GROUP;
    if (row >= step->tokens) return;
    const int index = tokens[row].sequence;
    const Sequence& sequence = step->sequence[index];
    const int position = sequence.position + row - sequence.first_token, last = images[row].last;
    if (last == position) return;
    const int* blocks = step->blocks() + table_start<C>(step, index);
    const float key_scale = static_scale<C>(layer, Side::Keys, kv_head), value_scale = static_scale<C>(layer, Side::Values, kv_head);
    for (int e = thread; e < D; e += SPAN_THREADS) {
        if constexpr (C::EXACT) query[e] = qkv[static_cast<size_t>(row) * A::QKV_WIDTH + head * D + e];
        else query[e] = widen(q[(static_cast<size_t>(row) * C::HEADS + head) * A::HEAD_DIM_16 + e]);
    }
    __syncthreads();

    const int first = Window<C>::first(position);
    Sum maximum = -INFINITY, sum = 0, context[N] = {};
    for (int tile = first / 32 + warp; tile * 32 <= last; tile += SPAN_WARPS) {
        const int mine = max(first, min(tile * 32 + lane, last));
        Sum dot = 0;
        const int block = blocks[mine / C::BLOCK_TOKENS];
        for (int e = 0; e < D; ++e) dot += query[e] * static_cast<Sum>(span_element<C, Side::Keys>(layer, block, kv_head, mine % C::BLOCK_TOKENS, e, key_scale));
        const Sum score = tile * 32 + lane == mine ? static_cast<Sum>(C::SCALE) * dot : static_cast<Sum>(-INFINITY);
        Sum largest = maximum > score ? maximum : score;
#pragma unroll
        for (int mask = 16; mask > 0; mask >>= 1) {
            const Sum other = __shfl_xor_sync(0xffffffffu, largest, mask);
            largest = other > largest ? other : largest;
        }
        const Sum shrink = exp(maximum - largest), weight = exp(score - largest);
        maximum = largest;
        sum = sum * shrink + weight;
#pragma unroll
        for (int j = 0; j < N; ++j) context[j] *= shrink;
        for (int token = max(0, first - tile * 32); token < min(32, last + 1 - tile * 32); ++token) {
            const Sum w = __shfl_sync(0xffffffffu, weight, token);
            const int there = tile * 32 + token, of = blocks[there / C::BLOCK_TOKENS];
#pragma unroll
            for (int j = 0; j < N; ++j)
                if (lane + 32 * j < D)
                    context[j] += w * static_cast<Sum>(span_element<C, Side::Values>(layer, of, kv_head, there % C::BLOCK_TOKENS, lane + 32 * j, value_scale));
        }
    }
    sum = warp_sum(sum);
    if (lane == 0) of_warps[0][warp] = maximum, of_warps[1][warp] = sum;
#pragma unroll
    for (int j = 0; j < N; ++j)
        if (lane + 32 * j < D) contexts[warp][lane + 32 * j] = context[j];
    __syncthreads();
    Sum largest = -INFINITY, total = 0;
    for (int w = 0; w < SPAN_WARPS; ++w) largest = of_warps[0][w] > largest ? of_warps[0][w] : largest;
    for (int w = 0; w < SPAN_WARPS; ++w) total += exp(of_warps[0][w] - largest) * of_warps[1][w];
    constexpr bool ROTATED = is_rotated<typename C::Kv, Side::Values>();
    float* const to = out + static_cast<size_t>(row) * A::WIDTH + head * D;
    float* const rotated = reinterpret_cast<float*>(query);  // the query is done with
    for (int e = thread; e < D; e += SPAN_THREADS) {
        Sum mixed = 0;
        for (int w = 0; w < SPAN_WARPS; ++w) mixed += exp(of_warps[0][w] - largest) * contexts[w][e];
        (ROTATED ? rotated : to)[e] = static_cast<float>(mixed / total);
    }
    if constexpr (ROTATED) {
        __syncthreads();
        if (warp > 0) return;
        HeadVector<C> vector;
        vector.load(rotated, lane);
        rotate_back(vector, lane);
        vector.each(lane, [&](int e, float v) { to[e] = v; });
    }
}

}  // namespace monomorph
