// attention_norm: RMS norms over all query heads of a row together, and over all its key heads, in place. Models
// that norm so do it before they take heads apart; what follows (rotary, K/V write, attention) has no norms then.
//
// Work: block (row, 0) the queries, (row, 1) the keys. A thread reads its elements twice: the 24 KB of 48 heads are
// in the first-level cache meanwhile. Bits of a row depend on no other: sums of threads, of warps by shuffles, then
// of warps in their order. EXACT: sums in f64, rounded once, as the interpreter's.
// Grid: (rows, 2); more are harmless.
#pragma once

#include "attention/attention.cuh"

namespace monomorph {

constexpr int ATTENTION_NORM_THREADS = 512;

// The norm of what stands together, or of a rank's part of it, by a block.
template <class C>
struct RowNorm {
    static_assert(C::Q_NORM != HeadNorm::None && C::Q_NORM == C::K_NORM && C::Q_EPS == C::K_EPS, "one norm, over queries and over keys");
    using Sum = std::conditional_t<C::EXACT, double, float>;
    static constexpr int WARPS = ATTENTION_NORM_THREADS / 32;

    // The sum of squares, known to all threads; behind a barrier `of_warps` may be used again.
    __device__ static __forceinline__ Sum squares(const float* x, int width, Sum (&of_warps)[WARPS]) {
        Sum sum = 0;
        for (int i = threadIdx.x; i < width; i += ATTENTION_NORM_THREADS) {
            const Sum v = x[i];
            sum += v * v;
        }
        sum = warp_sum(sum);
        if (threadIdx.x % 32 == 0) of_warps[threadIdx.x / 32] = sum;
        __syncthreads();
        Sum all = 0;
#pragma unroll
        for (int w = 0; w < WARPS; w++) all += of_warps[w];
        return all;
    }

    // In place, by the mean of the squares of all that is normed together.
    __device__ static __forceinline__ void scale(float* x, const float* weight, int width, Sum mean) {
        mean += static_cast<Sum>(C::Q_EPS);
        Sum inverse;
        if constexpr (C::EXACT) inverse = 1.0 / sqrt(mean);
        else inverse = rsqrtf(mean);
        for (int i = threadIdx.x; i < width; i += ATTENTION_NORM_THREADS) {
            const float w = load_constant(weight + i), factor = C::Q_NORM == HeadNorm::OnePlus ? 1.0f + w : w;
            x[i] = static_cast<float>(static_cast<Sum>(x[i]) * inverse * static_cast<Sum>(factor));
        }
    }
};

// qkv f32 [rows, QKV_WIDTH]; q_norm f32 [HEADS * HEAD_DIM], k_norm f32 [KV_HEADS * HEAD_DIM].
template <class C>
__device__ __forceinline__ void attention_norm(const Step* step, float* qkv, const float* q_norm, const float* k_norm) {
    using A = AttentionShape<C>;
    using Sum = typename RowNorm<C>::Sum;
    MONOMORPH_SHARED(of_warps, Sum[RowNorm<C>::WARPS]);
    launch_dependents();
    const bool keys = blockIdx.y == 1;
    const float* const weight = keys ? k_norm : q_norm;
    const int width = (keys ? C::KV_HEADS : C::HEADS) * C::HEAD_DIM;
    wait_for_predecessors();
    const int row = blockIdx.x;
    if (row >= step->tokens) return;
    float* const x = qkv + static_cast<size_t>(row) * A::QKV_WIDTH + (keys ? A::FIRST_KEY * C::HEAD_DIM : 0);
    const Sum mean = RowNorm<C>::squares(x, width, of_warps) / static_cast<Sum>(width);
    RowNorm<C>::scale(x, weight, width, mean);
}

}  // namespace monomorph
