// add_normed: out = out + norm(x) row by row, OWN: out = own norm(out) + norm(x); SCALED: that times a stored number.
//
//   norm:  y = x / sqrt(mean(x^2) + EPS) * w   (ONE_PLUS: * (1 + w)), f32 throughout
//
// Work: a block a row, whose threads hold all of it between the sums of squares and the store. Bits of a row depend on no other: sums
// of threads, of warps by shuffles, then of warps in their order. Weights are constants of the run and are fetched before the wait.
//
// Config: WIDTH; NORM, EPS; OWN, OWN_EPS (Norm::NONE: there is no norm of `out`); SCALED; LIMIT.
// Launch: grid = rows (blocks beyond the step's rows do nothing), block = AddNormedShape<C>::THREADS, no dynamic shared memory.
#pragma once

#include "products/gemm.cuh"

namespace monomorph {

template <class C>
struct AddNormedShape {
    static constexpr int VECTOR = C::WIDTH % 4 == 0 ? 4 : 1;   // columns of a thread
    static constexpr int PLACES = ceil_div(C::WIDTH, VECTOR);
    static constexpr int THREADS = PLACES >= 512 ? 512 : round_up(PLACES, 32), WARPS = THREADS / 32;
    static constexpr int EACH = ceil_div(PLACES, THREADS);
    static_assert(C::NORM != Norm::NONE, "what is added is normed");
};

// A thread's columns of a row, or of weights; zeros beyond the row.
template <class C>
struct RowPart {
    using S = AddNormedShape<C>;
    float v[S::EACH][S::VECTOR];

    __device__ __forceinline__ static int column(int i) { return (threadIdx.x + i * S::THREADS) * S::VECTOR; }

    template <class Load>
    __device__ __forceinline__ void load(const float* from, Load load) {
#pragma unroll
        for (int i = 0; i < S::EACH; i++) {
            const bool there = column(i) < C::WIDTH;
            if constexpr (S::VECTOR == 4) {
                const float4 four = there ? load(reinterpret_cast<const float4*>(from + column(i))) : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
                v[i][0] = four.x, v[i][1] = four.y, v[i][2] = four.z, v[i][3] = four.w;
            } else {
                v[i][0] = there ? load(from + column(i)) : 0.0f;
            }
        }
    }
    __device__ __forceinline__ void store(float* to) const {
#pragma unroll
        for (int i = 0; i < S::EACH; i++) {
            if (column(i) >= C::WIDTH) continue;
            if constexpr (S::VECTOR == 4) *reinterpret_cast<float4*>(to + column(i)) = make_float4(v[i][0], v[i][1], v[i][2], v[i][3]);
            else to[column(i)] = v[i][0];
        }
    }
    template <class F>
    __device__ __forceinline__ void each(F f) {
#pragma unroll
        for (int i = 0; i < S::EACH; i++)
#pragma unroll
            for (int j = 0; j < S::VECTOR; j++) f(v[i][j], i, j);
    }
    __device__ __forceinline__ float squares() const {
        float sum = 0.0f;
#pragma unroll
        for (int i = 0; i < S::EACH; i++)
#pragma unroll
            for (int j = 0; j < S::VECTOR; j++) sum += v[i][j] * v[i][j];
#pragma unroll
        for (int distance = 16; distance > 0; distance /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, distance);
        return sum;
    }
    // Norms it, given 1 / rms.
    template <Norm NORM>
    __device__ __forceinline__ void norm(const RowPart& weights, float inverse) {
        each([&](float& value, int i, int j) {
            const float weight = weights.v[i][j];
            value = value * inverse * (NORM == Norm::ONE_PLUS ? 1.0f + weight : weight);
        });
    }
};

// x, out f32 [rows, WIDTH]; norm, own f32 [WIDTH], own null without such a norm; factor: one number, null if not SCALED.
template <class C>
__device__ __forceinline__ void add_normed(const Step* step, const float* x, const float* norm, const float* own, const float* factor, float* out) {
    using S = AddNormedShape<C>;
    constexpr bool TWO = C::OWN != Norm::NONE;
    MONOMORPH_SHARED(squares, float[2 * S::WARPS]);
    launch_dependents();
    const auto constant = [](const auto* from) { return load_constant(from); };
    const auto activation = [](const auto* from) { return load_activation(from); };
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    RowPart<C> weights, own_weights, part, sum;
    weights.load(norm, constant);
    if constexpr (TWO) own_weights.load(own, constant);
    float scale = 1.0f;
    if constexpr (C::SCALED) scale = load_constant(factor);
    wait_for_predecessors();
    const int row = blockIdx.x;
    if (row >= gemm_rows<C>(step)) return;

    float* const to = out + static_cast<size_t>(row) * C::WIDTH;
    part.load(x + static_cast<size_t>(row) * C::WIDTH, activation);
    sum.load(to, activation);
    const float of_part = part.squares(), of_sum = TWO ? sum.squares() : 0.0f;
    if (lane == 0) squares[warp] = of_part, squares[S::WARPS + warp] = of_sum;
    __syncthreads();
    const auto inverse_rms = [&](int first, float epsilon) {
        float all = 0.0f;
#pragma unroll
        for (int w = 0; w < S::WARPS; w++) all += squares[first + w];
        return 1.0f / sqrtf(all / C::WIDTH + epsilon);
    };
    part.template norm<C::NORM>(weights, inverse_rms(0, C::EPS));
    if constexpr (TWO) sum.template norm<C::OWN>(own_weights, inverse_rms(S::WARPS, C::OWN_EPS));
    sum.each([&](float& value, int i, int j) {
        value += part.v[i][j];
        if constexpr (C::SCALED) value *= scale;
    });
    sum.store(to);
}

}  // namespace monomorph
