// Arithmetic of the sampler that must round as runtime/sampling/src/numeric.rs does: every product and sum is written with its
// rounding, so that no compiler contracts two of them into one.
#pragma once

namespace monomorph {

constexpr unsigned INFINITY_BITS = 0x7F800000u;

__device__ __forceinline__ float negative_infinity() { return __uint_as_float(0x80000000u | INFINITY_BITS); }

// e^x for x <= 0, within 2 units in the last place; below -87 and for NaN it is 0. Cody and Waite's reduction, Cephes' polynomial.
__device__ __forceinline__ float exp_nonpositive(float x) {
    constexpr float ROUND = 12582912.0f;  // 1.5 * 2^23: adding it rounds to an integer in the low bits of the mantissa
    const float clamped = x >= -87.0f ? x : -87.0f;
    const float shifted = __fadd_rn(__fmul_rn(clamped, 1.44269504088896340736f), ROUND);
    const float n = __fsub_rn(shifted, ROUND);
    const float r = __fsub_rn(__fsub_rn(clamped, __fmul_rn(n, 0.6933594f)), __fmul_rn(n, -2.1219444e-4f));
    float p = 1.9875691e-4f;
    p = __fadd_rn(__fmul_rn(p, r), 1.3981999e-3f);
    p = __fadd_rn(__fmul_rn(p, r), 8.333452e-3f);
    p = __fadd_rn(__fmul_rn(p, r), 4.1665796e-2f);
    p = __fadd_rn(__fmul_rn(p, r), 1.6666665e-1f);
    p = __fadd_rn(__fmul_rn(p, r), 0.5f);
    const float mantissa = __fadd_rn(__fadd_rn(__fmul_rn(__fmul_rn(p, r), r), r), 1.0f);
    const unsigned exponent = (__float_as_uint(shifted) - __float_as_uint(ROUND) + 127u) << 23;
    return x >= -87.0f ? __fmul_rn(mantissa, __uint_as_float(exponent)) : 0.0f;
}

// What a logit weighs against the largest one: 1 for the largest itself (also where it is infinite), 0 for NaN.
__device__ __forceinline__ float weight(float logit, float largest, float inverse_temperature) {
    const float relative = exp_nonpositive(__fmul_rn(__fsub_rn(logit, largest), inverse_temperature));
    return logit == largest ? 1.0f : relative;
}

// NaN counts as minus infinity.
__device__ __forceinline__ float without_nan(float logit) { return logit == logit ? logit : negative_infinity(); }

// Maps floats to unsigned integers in IEEE 754's total order (Rust's total_cmp): -0 comes before +0.
__device__ __forceinline__ unsigned total_order(float value) {
    const unsigned bits = __float_as_uint(value);
    return bits ^ (static_cast<unsigned>(static_cast<int>(bits) >> 31) | 0x80000000u);
}

__device__ __forceinline__ float from_total_order(unsigned order) {
    return __uint_as_float(order & 0x80000000u ? order ^ 0x80000000u : ~order);
}

// A token as one integer: value << 32 | ~id, so that the larger entry has the larger value, or the smaller id among equals.
__device__ __forceinline__ unsigned long long token_entry(unsigned value, unsigned id) { return static_cast<unsigned long long>(value) << 32 | ~id; }
__device__ __forceinline__ unsigned entry_value(unsigned long long entry) { return static_cast<unsigned>(entry >> 32); }
__device__ __forceinline__ unsigned entry_id(unsigned long long entry) { return ~static_cast<unsigned>(entry); }

// The entry of a logit in the search for the largest: zeros of both signs are equal.
__device__ __forceinline__ unsigned long long best_key(float logit, unsigned id) { return token_entry(total_order(__fadd_rn(logit, 0.0f)), id); }

// 2^exponent for -1022 <= exponent <= 1023.
__device__ __forceinline__ double power_of_two(int exponent) { return __hiloint2double((exponent + 1023) << 20, 0); }

}  // namespace monomorph
