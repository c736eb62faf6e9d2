// Conversions between number formats, and arithmetic of 16-bit pairs, that the instruction set has and C++ has not (PTX ISA: cvt, mul,
// prmt, ex2). "pair" = two 16-bit elements in one register.
#pragma once

namespace monomorph {

// Two f32 to a pair of bf16, to nearest even; `low` in the lower half.
__device__ __forceinline__ unsigned pack_bf16(float low, float high) {
    unsigned pair;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
    return pair;
}
__device__ __forceinline__ unsigned pack_f16(float low, float high) {
    unsigned pair;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
    return pair;
}

// The same, at most the largest finite one.
__device__ __forceinline__ unsigned pack_f16_finite(float low, float high) {
    unsigned pair;
    asm("cvt.rn.satfinite.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
    return pair;
}
__device__ __forceinline__ float2 unpack_f16(unsigned pair) {
    float2 value;
    asm("{\n\t.reg .b16 low, high;\n\tmov.b32 {low, high}, %2;\n\tcvt.f32.f16 %0, low;\n\tcvt.f32.f16 %1, high;\n\t}"
        : "=f"(value.x), "=f"(value.y) : "r"(pair));
    return value;
}

// Four e4m3 to two pairs of f16, exactly.
__device__ __forceinline__ void unpack_e4m3(unsigned codes, unsigned& low, unsigned& high) {
    asm("{\n\t.reg .b16 low, high;\n\tmov.b32 {low, high}, %2;\n\tcvt.rn.f16x2.e4m3x2 %0, low;\n\tcvt.rn.f16x2.e4m3x2 %1, high;\n\t}"
        : "=r"(low), "=r"(high) : "r"(codes));
}
// The lower 16 bits: two e4m3.
__device__ __forceinline__ unsigned unpack_e4m3_pair(unsigned codes) {
    unsigned pair;
    asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(pair) : "h"(static_cast<unsigned short>(codes)));
    return pair;
}
// To e4m3, to nearest even, at most the largest finite one.
__device__ __forceinline__ unsigned char pack_e4m3(float value) {
    unsigned short pair;
    asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(pair) : "f"(0.0f), "f"(value));
    return static_cast<unsigned char>(pair);
}

// Two of them, `low` in the lower byte.
__device__ __forceinline__ unsigned pack_e4m3_pair(float low, float high) {
    unsigned short pair;
    asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(pair) : "f"(high), "f"(low));
    return pair;
}

__device__ __forceinline__ unsigned multiply_f16_pairs(unsigned a, unsigned b) {
    unsigned product;
    asm("mul.rn.f16x2 %0, %1, %2;" : "=r"(product) : "r"(a), "r"(b));
    return product;
}
// One half of a pair in both. Written so, it costs nothing where it goes into a product: the instruction chooses halves.
__device__ __forceinline__ unsigned twice_low(unsigned pair) {
    unsigned both;
    asm("{\n\t.reg .b16 low, high;\n\tmov.b32 {low, high}, %1;\n\tmov.b32 %0, {low, low};\n\t}" : "=r"(both) : "r"(pair));
    return both;
}
__device__ __forceinline__ unsigned twice_high(unsigned pair) {
    unsigned both;
    asm("{\n\t.reg .b16 low, high;\n\tmov.b32 {low, high}, %1;\n\tmov.b32 %0, {high, high};\n\t}" : "=r"(both) : "r"(pair));
    return both;
}

// 2 to the power of v, by the special function unit (2 units in the last place); 0 at minus infinity.
__device__ __forceinline__ float power_of_two(float v) {
    float result;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(v));
    return result;
}

__device__ __forceinline__ float bf16_low(unsigned pair) { return __uint_as_float(pair << 16); }
__device__ __forceinline__ float bf16_high(unsigned pair) { return __uint_as_float(pair & 0xffff0000u); }

}  // namespace monomorph
