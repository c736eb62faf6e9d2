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

// The values of all codes: kernels read far more of them than there are.
struct E4m3Values {
    float of[256];
    E4m3Values() {
        for (unsigned code = 0; code < 256; code++) {
            const int exponent = code >> 3 & 15, mantissa = code & 7;
            const float magnitude = exponent == 0 ? std::ldexp(float(mantissa), -9) : std::ldexp(float(8 + mantissa), exponent - 10);
            of[code] = (code & 0x7f) == 0x7f ? NAN : code & 0x80 ? -magnitude : magnitude;
        }
    }
};
inline const E4m3Values E4M3_VALUES;
inline float e4m3_value(unsigned code) { return E4M3_VALUES.of[code & 0xff]; }
inline void unpack_e4m3(unsigned codes, unsigned& low, unsigned& high) {
    low = pack_f16(e4m3_value(codes & 0xff), e4m3_value(codes >> 8 & 0xff));
    high = pack_f16(e4m3_value(codes >> 16 & 0xff), e4m3_value(codes >> 24));
}
inline unsigned unpack_e4m3_pair(unsigned codes) { return pack_f16(e4m3_value(codes & 0xff), e4m3_value(codes >> 8 & 0xff)); }
// The nearest of the finite codes, of two equally near the even one. Codes count steps: 8 of each power of two, and as many below 2^-6.
inline unsigned char pack_e4m3(float value) {
    if (value != value) return 0x7f;
    const float magnitude = std::fabs(value);
    unsigned code = 0x7e;
    if (magnitude < 464.0f) {
        int exponent = -5;
        if (magnitude >= 0x1p-6f) std::frexp(magnitude, &exponent);   // magnitude in [0.5, 1) * 2^exponent
        code = 8 * (exponent + 5) + static_cast<unsigned>(std::nearbyint(std::ldexp(magnitude, 4 - exponent)));
    }
    return static_cast<unsigned char>(code | (std::signbit(value) ? 0x80 : 0));
}
inline unsigned pack_e4m3_pair(float low, float high) { return pack_e4m3(low) | unsigned(pack_e4m3(high)) << 8; }

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
