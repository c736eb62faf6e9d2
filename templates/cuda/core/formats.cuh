// Weight formats: the geometry of a packed unit and the decoding of one lane's 16 bytes of it.
//
// A packed matrix is [tiles of 8 output rows][units][32 lanes][16 bytes]; lane 4*g + c holds ELEMENTS codes of row g at the columns
// `Unit<F>::column(j, c)`. Scale planes follow the same order, SCALE_BYTES a unit:
//   q8_0   f16 d        [2 blocks of 32 columns][8 rows]          value = d * q
//   q4_1   f16 d, f16 m [4 blocks of 32 columns][8 rows]          value = d * q + m
//   nvfp4  e4m3         [8 rows][8 groups of 16 columns]          value = e2m1 * scale (exact in f16), times row_scales f32 at the end
//   fp8, f16  none in the unit: `ScaleForm::ROWS` row_scales f32 at the end; fp8 also `BLOCK128` f32 [tiles][ceil(K / 128)], below 2^7, and
//             row_scales. Floats of products in f16 are held so: each row times a power of two that brings its largest into [2^14, 2^15)
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include "core/convert.cuh"
#include "core/packed.cuh"

namespace monomorph {

enum class ScaleForm { NONE, ROWS, BLOCK128 };

template <Format F>
struct Unit {
    static constexpr bool BLOCKED = F == Format::Q8_0 || F == Format::Q4_1;   // blocks of 32 columns, 8 adjacent a lane
    static constexpr int BITS = Packed<F>::BITS;
    static constexpr int ELEMENTS = 128 / BITS;        // of a lane
    static constexpr int COLUMNS = 4 * ELEMENTS;       // of the unit
    static constexpr int SCALE_BYTES = Packed<F>::SCALE_BYTES;

    // A code where it stands in its word, and the code taken from there. Two adjacent nvfp4 codes have their bits at equal places of the
    // word's halves, so that one operation or two bring both to the places of f16: see decode_nvfp4.
    __host__ __device__ static constexpr unsigned place(int j, unsigned code) {
        if constexpr (F == Format::NVFP4) {
            const int pair = j % 8 / 2, half = j % 2 * 16;
            const int magnitude = 9 - 3 * pair, sign = pair == 0 ? 15 : pair == 1 ? 12 : pair == 2 ? 14 : 13;
            return (code & 7) << (half + magnitude) | (code >> 3) << (half + sign);
        } else {
            return code << (j % (ELEMENTS / 4) * BITS % 32);
        }
    }
    __host__ __device__ static constexpr unsigned taken(int j, unsigned word) {
        if constexpr (F == Format::NVFP4) {
            const int pair = j % 8 / 2, half = j % 2 * 16;
            const int magnitude = 9 - 3 * pair, sign = pair == 0 ? 15 : pair == 1 ? 12 : pair == 2 ? 14 : 13;
            return (word >> (half + magnitude) & 7) | (word >> (half + sign) & 1) << 3;
        } else {
            return word >> (j % (ELEMENTS / 4) * BITS % 32);   // the bits above are others'
        }
    }

    // The column within the unit of element j of a lane with the given c.
    __host__ __device__ static constexpr int column(int j, int c) {
        if (F == Format::F32) return 4 * c + j;
        if (BLOCKED) return 32 * (j / 8) + 8 * c + j % 8;
        return j / 4 * 16 + j % 4 / 2 * 8 + 2 * c + j % 2;   // the B fragment of m16n8k16, step j / 4
    }
    // Its inverse: which lane column c, and which element of it, hold a column of the unit.
    __host__ __device__ static constexpr int lane_of(int column) {
        if (F == Format::F32) return column / 4;
        return BLOCKED ? column % 32 / 8 : column % 8 / 2;
    }
    __host__ __device__ static constexpr int element_of(int column) {
        if (F == Format::F32) return column % 4;
        if (BLOCKED) return column / 32 * 8 + column % 8;
        return column / 16 * 4 + column % 16 / 8 * 2 + column % 2;
    }
};

// ---- Single values ----

__device__ __forceinline__ float half_bits_to_float(unsigned bits) { return __half2float(__ushort_as_half(static_cast<unsigned short>(bits))); }

// Seven magnitude bits placed at the top of an f32 mantissa and exponent have the right value but for a power of two: the
// product restores it, subnormals included. Finite codes only (0x7f, NaN in e4m3, decodes to 480).
__device__ __forceinline__ float e4m3_to_float(unsigned code) {
    float magnitude = __uint_as_float((code & 0x7f) << 20) * 0x1p120f;
    return code & 0x80 ? -magnitude : magnitude;
}
__device__ __forceinline__ float e2m1_to_float(unsigned code) {
    float magnitude = __uint_as_float((code & 7) << 22) * 0x1p126f;
    return code & 8 ? -magnitude : magnitude;
}

// ---- Exact values: f32 as the reference interpreter decodes ----

// `scales`: the unit's SCALE_BYTES (shared or global memory), or null for formats without. Each operation rounds by itself: a
// contraction to fma would differ from the interpreter.
template <Format F>
__device__ __forceinline__ void decode_floats(uint4 codes, const unsigned char* scales, int g, float (&values)[Unit<F>::ELEMENTS]) {
    const unsigned words[4] = {codes.x, codes.y, codes.z, codes.w};
    constexpr int A_WORD = Unit<F>::ELEMENTS / 4;
#pragma unroll
    for (int j = 0; j < Unit<F>::ELEMENTS; j++) {
        const unsigned bits = Unit<F>::taken(j, words[j / A_WORD]);
        if constexpr (F == Format::F32) {
            values[j] = __uint_as_float(bits);
        } else if constexpr (F == Format::BF16) {
            values[j] = __uint_as_float(bits << 16);
        } else if constexpr (F == Format::F16) {
            values[j] = half_bits_to_float(bits & 0xffff);
        } else if constexpr (F == Format::FP8_E4M3) {
            values[j] = e4m3_to_float(bits & 0xff);
        } else if constexpr (F == Format::NVFP4) {
            values[j] = __fmul_rn(e2m1_to_float(bits & 0xf), e4m3_to_float(scales[g * 8 + j / 4]));
        } else if constexpr (F == Format::Q8_0) {
            const float d = half_bits_to_float(reinterpret_cast<const unsigned short*>(scales)[j / 8 * 8 + g]);
            values[j] = __fmul_rn(d, static_cast<float>(static_cast<signed char>(bits & 0xff)));
        } else {
            const unsigned pair = reinterpret_cast<const unsigned*>(scales)[j / 8 * 8 + g];
            const float d = half_bits_to_float(pair & 0xffff), m = half_bits_to_float(pair >> 16);
            values[j] = __fadd_rn(__fmul_rn(d, static_cast<float>(bits & 0xf)), m);
        }
    }
}

// ---- f16 operands ----

// Eight e2m1, in natural order, times the e4m3 scales of their two steps of 16 columns (the lower 16 bits of `scales`), times 2^-14: pairs of
// f16, exact. A magnitude whose exponent and mantissa stand at bits 11..10 and 9 of f16 is its value times 2^-14, as subnormals too; a
// product of the two is a multiple of 2^-24 of at most six bits. No bit of a shifted or multiplied word reaches a place that the mask keeps
// but those meant for it.
constexpr float NVFP4_UNSCALE = 0x1p14f;
__device__ __forceinline__ void decode_nvfp4(unsigned word, unsigned scales, unsigned (&pairs)[4]) {
    constexpr unsigned KEPT = 0x8e008e00;
    const unsigned both = unpack_e4m3_pair(scales), first = twice_low(both), second = twice_high(both);
    pairs[0] = multiply_f16_pairs(word & KEPT, first);
    pairs[1] = multiply_f16_pairs(word << 3 & KEPT, first);
    pairs[2] = multiply_f16_pairs((word & 0x40384038) * 0x0042 & KEPT, second);
    pairs[3] = multiply_f16_pairs((word & 0x20072007) * 0x0204 & KEPT, second);
}

// A lane's 8 elements e0..e7 of 32 columns (two k16 steps of one weight row) fill the four registers of one m16n8k16 A operand of a stream product:
//   a0: e0 e1   a1: e2 e3 (as "row g + 8")   a2: e4 e5   a3: e6 e7
// The sums of a1 and a3 then stand in rows 8..16 against other columns of B: see stream_stage.cuh, which lays out B.
// All are f16, against activations in f16 that are scaled by a power of two to a largest magnitude in [2^14, 2^15); sums are to be
// multiplied by SUM_SCALE.
template <Format F>
struct Streamed {
    static_assert(F == Format::F16 || F == Format::FP8_E4M3 || F == Format::NVFP4, "no f16 fragments of this format");
    static constexpr float SUM_SCALE = F == Format::NVFP4 ? NVFP4_UNSCALE : 1.0f;

    __device__ __forceinline__ static void decode(uint4 codes, uint2 scales, unsigned (&a)[Unit<F>::ELEMENTS / 8][4]) {
        const unsigned words[4] = {codes.x, codes.y, codes.z, codes.w};
#pragma unroll
        for (int i = 0; i < 4; i++) {
            if constexpr (F == Format::FP8_E4M3) {
                unpack_e4m3(words[i], a[i / 2][i % 2 * 2], a[i / 2][i % 2 * 2 + 1]);
            } else if constexpr (F == Format::NVFP4) {
                decode_nvfp4(words[i], (i < 2 ? scales.x : scales.y) >> (i % 2 * 16), a[i]);
            } else {
                a[0][i] = words[i];
            }
        }
    }
};

}  // namespace monomorph
