// convert.cuh of the library for a processor: the same roundings; power_of_two correctly rounded but for subnormal results, which are 0.
#pragma once

#include "../builtin.h"

namespace monomorph {

inline float bf16_low(unsigned pair) { return __uint_as_float(pair << 16); }
inline float bf16_high(unsigned pair) { return __uint_as_float(pair & 0xffff0000u); }

// To nearest even; every not-a-number is one.
inline unsigned bf16_bits(float value) {
    const unsigned bits = __float_as_uint(value);
    if ((bits & 0x7fffffff) > 0x7f800000) return 0x7fff;
    return (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
}
inline unsigned pack_bf16(float low, float high) { return bf16_bits(low) | bf16_bits(high) << 16; }

inline unsigned f16_bits(float value) { return card_bits<unsigned short>(static_cast<_Float16>(value)); }
inline float f16_value(unsigned bits) { return static_cast<float>(card_bits<_Float16>(static_cast<unsigned short>(bits))); }
inline unsigned pack_f16(float low, float high) { return f16_bits(low) | f16_bits(high) << 16; }
inline float f16_finite(float value) { return value > 65504.0f ? 65504.0f : value < -65504.0f ? -65504.0f : value; }
inline unsigned pack_f16_finite(float low, float high) { return pack_f16(f16_finite(low), f16_finite(high)); }
inline float2 unpack_f16(unsigned pair) { return make_float2(f16_value(pair & 0xffff), f16_value(pair >> 16)); }

inline float e4m3_value(unsigned code) {
    const int exponent = code >> 3 & 15, mantissa = code & 7;
    if ((code & 0x7f) == 0x7f) return NAN;
    const float magnitude = exponent == 0 ? std::ldexp(float(mantissa), -9) : std::ldexp(float(8 + mantissa), exponent - 10);
    return code & 0x80 ? -magnitude : magnitude;
}
inline void unpack_e4m3(unsigned codes, unsigned& low, unsigned& high) {
    low = pack_f16(e4m3_value(codes & 0xff), e4m3_value(codes >> 8 & 0xff));
    high = pack_f16(e4m3_value(codes >> 16 & 0xff), e4m3_value(codes >> 24));
}
inline unsigned unpack_e4m3_pair(unsigned codes) { return pack_f16(e4m3_value(codes & 0xff), e4m3_value(codes >> 8 & 0xff)); }
// The nearest of the finite codes, of two equally near the even one.
inline unsigned char pack_e4m3(float value) {
    if (value != value) return 0x7f;
    const double magnitude = std::fabs(double(value));
    unsigned best = 0;
    for (unsigned code = 1; code < 0x7f; code++) {
        const double before = std::fabs(magnitude - e4m3_value(best)), here = std::fabs(magnitude - e4m3_value(code));
        if (here < before || (here == before && code % 2 == 0)) best = code;
    }
    return static_cast<unsigned char>(best | (std::signbit(value) ? 0x80 : 0));
}

inline unsigned multiply_f16_pairs(unsigned a, unsigned b) {
    const float2 x = unpack_f16(a), y = unpack_f16(b);
    return pack_f16(x.x * y.x, x.y * y.y);   // exact in f32
}
inline unsigned twice_low(unsigned pair) { return (pair & 0xffff) * 0x10001; }
inline unsigned twice_high(unsigned pair) { return (pair >> 16) * 0x10001; }

inline float power_of_two(float v) {
    const float result = std::exp2(v);
    return result < 0x1p-126f ? 0.0f : result;
}

}  // namespace monomorph
