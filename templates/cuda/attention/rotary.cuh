// A warp's work on one head's vector: RMS norm, rotary. Used by every kernel that turns q or k.
//
// Layout: lane l of the warp holds elements l, l + 32, l + 64 … of the head (HeadVector<C>), zero beyond the head: reads and
// writes of a head are then coalesced whatever its width is. No shared memory and no barrier is needed.
//
// Arithmetic: the rotation is (a cos - b sin, b cos + a sin) with every operation rounded to f32 and none contracted, as the
// reference interpreter does it; the norm sums in f32, or with EXACT in f64 and rounds once, as the interpreter does.
#pragma once

namespace monomorph {

// What stands before the rotation of a head.
enum class HeadNorm {
    None,
    Plain,    // x / rms(x) * w
    OnePlus,  // x / rms(x) * (1 + w)
    Bare,     // x / rms(x)
};

constexpr int head_registers(int head_dim) { return (head_dim + 31) / 32; }

// One head's elements in a warp. Also used for norm weights.
template <class C>
struct HeadVector {
    static constexpr int N = head_registers(C::HEAD_DIM);
    float x[N];

    // row: HEAD_DIM floats.
    __device__ __forceinline__ void load(const float* row, int lane) {
#pragma unroll
        for (int j = 0; j < N; ++j) x[j] = lane + 32 * j < C::HEAD_DIM ? row[lane + 32 * j] : 0.0f;
    }

    // Calls f(element, value) for every element that this lane holds.
    template <class F>
    __device__ __forceinline__ void each(int lane, F f) const {
#pragma unroll
        for (int j = 0; j < N; ++j)
            if (lane + 32 * j < C::HEAD_DIM) f(lane + 32 * j, x[j]);
    }
};

// Cosine and sine for each of the lane's elements: row `position` of the table [positions][ROTARY_PAIRS][cos, sin].
template <class C>
struct Rotation {
    static constexpr int N = head_registers(2 * C::ROTARY_PAIRS);
    static_assert(2 * C::ROTARY_PAIRS <= C::HEAD_DIM, "a rotary op turns pairs of a head's own dimensions");
    float cos[N > 0 ? N : 1], sin[N > 0 ? N : 1];

    __device__ __forceinline__ void load(const float* table, int position, int lane) {
        const float2* row = reinterpret_cast<const float2*>(table) + static_cast<size_t>(position) * C::ROTARY_PAIRS;
#pragma unroll
        for (int j = 0; j < N; ++j) {
            int element = lane + 32 * j;
            int pair = C::ROTARY_HALVES ? (element < C::ROTARY_PAIRS ? element : element - C::ROTARY_PAIRS) : element / 2;
            float2 turn = element < 2 * C::ROTARY_PAIRS ? row[pair] : make_float2(1.0f, 0.0f);
            cos[j] = turn.x;
            sin[j] = turn.y;
        }
    }
};

__device__ __forceinline__ float warp_sum(float v) {
#pragma unroll
    for (int mask = 16; mask > 0; mask >>= 1) v += __shfl_xor_sync(0xffffffffu, v, mask);
    return v;
}

__device__ __forceinline__ double warp_sum(double v) {
#pragma unroll
    for (int mask = 16; mask > 0; mask >>= 1) v += __shfl_xor_sync(0xffffffffu, v, mask);
    return v;
}

// RMS norm of a head over its HEAD_DIM elements; `weight` of a norm that has one.
template <class C, HeadNorm NORM, bool EXACT>
__device__ __forceinline__ void norm_head(HeadVector<C>& head, const HeadVector<C>& weight, float epsilon) {
    if constexpr (NORM != HeadNorm::None) {
        using Sum = std::conditional_t<EXACT, double, float>;
        Sum squares = 0;
#pragma unroll
        for (int j = 0; j < head.N; ++j) squares += static_cast<Sum>(head.x[j]) * static_cast<Sum>(head.x[j]);
        Sum mean = warp_sum(squares) / static_cast<Sum>(C::HEAD_DIM) + static_cast<Sum>(epsilon);
        Sum inverse;
        if constexpr (EXACT)
            inverse = 1.0 / sqrt(mean);
        else
            inverse = rsqrtf(mean);
#pragma unroll
        for (int j = 0; j < head.N; ++j) {
            if constexpr (NORM == HeadNorm::Bare) {
                head.x[j] = static_cast<float>(static_cast<Sum>(head.x[j]) * inverse);
            } else {
                float w = NORM == HeadNorm::OnePlus ? 1.0f + weight.x[j] : weight.x[j];
                head.x[j] = static_cast<float>(static_cast<Sum>(head.x[j]) * inverse * static_cast<Sum>(w));
            }
        }
    }
}

// Turns the leading 2 * ROTARY_PAIRS elements of a head. Every lane of the warp must call it.
template <class C>
__device__ __forceinline__ void rotate_head(HeadVector<C>& head, const Rotation<C>& rotation, int lane) {
    if constexpr (C::ROTARY_PAIRS > 0) {
        constexpr int PAIRS = C::ROTARY_PAIRS, N = Rotation<C>::N;
        float other[N];
#pragma unroll
        for (int j = 0; j < N; ++j) {
            if constexpr (!C::ROTARY_HALVES) {
                other[j] = __shfl_xor_sync(0xffffffffu, head.x[j], 1);
            } else if constexpr (PAIRS % 32 == 0) {  // both of a pair are in this lane
                other[j] = head.x[j < PAIRS / 32 ? j + PAIRS / 32 : j - PAIRS / 32];
            } else {
                int partner = lane + 32 * j < PAIRS ? lane + 32 * j + PAIRS : lane + 32 * j - PAIRS;
                other[j] = 0.0f;
#pragma unroll
                for (int from = 0; from < N; ++from) {
                    float value = __shfl_sync(0xffffffffu, head.x[from], partner & 31);
                    if (partner >> 5 == from) other[j] = value;
                }
            }
        }
#pragma unroll
        for (int j = 0; j < N; ++j) {
            int element = lane + 32 * j;
            bool first = C::ROTARY_HALVES ? element < PAIRS : element % 2 == 0;
            float straight = __fmul_rn(head.x[j], rotation.cos[j]), crossed = __fmul_rn(other[j], rotation.sin[j]);
            float turned = first ? __fsub_rn(straight, crossed) : __fadd_rn(straight, crossed);
            if (element < 2 * PAIRS) head.x[j] = turned;
        }
    }
}

}  // namespace monomorph
