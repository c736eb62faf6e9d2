// Weight formats: the geometry of a packed unit and the decoding of one lane's 16 bytes of it.
//
// A packed matrix is [tiles of 8 output rows][units][32 lanes][16 bytes]; lane 4*g + c holds ELEMENTS codes of row g at the columns
// `Unit<F>::column(j, c)`. Scale planes follow the same order, SCALE_BYTES a unit:
//   q8_0   f16 d        [2 blocks of 32 columns][8 rows]          value = d * q
//   q4_1   f16 d, f16 m [4 blocks of 32 columns][8 rows]          value = d * q + m
//   nvfp4  e4m3         [8 rows][8 groups of 16 columns]          value = e2m1 * scale (exact in bf16), times row_scales f32 at the end
//   fp8    none in the unit: `ScaleForm::TENSOR` row_scales f32 at the end, `BLOCK128` f32 [tiles][ceil(K / 128)]
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include "convert.cuh"

namespace monomorph {

enum class Format { F32, BF16, F16, FP8_E4M3, NVFP4, Q8_0, Q4_1 };
enum class ScaleForm { NONE, TENSOR, BLOCK128 };

constexpr int UNIT_BYTES = 512;   // 32 lanes of 16 bytes
constexpr int TILE_ROWS = 8;

template <Format F>
struct Unit {
    static constexpr bool BLOCKED = F == Format::Q8_0 || F == Format::Q4_1;   // blocks of 32 columns, 8 adjacent a lane
    static constexpr int BITS = F == Format::F32 ? 32 : F == Format::BF16 || F == Format::F16 ? 16 : F == Format::NVFP4 || F == Format::Q4_1 ? 4 : 8;
    static constexpr int ELEMENTS = 128 / BITS;        // of a lane
    static constexpr int COLUMNS = 4 * ELEMENTS;       // of the unit
    static constexpr int SCALE_BYTES = F == Format::Q8_0 ? 32 : F == Format::Q4_1 ? 128 : F == Format::NVFP4 ? 64 : 0;

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

constexpr unsigned BF16_PAIR_2_120 = 0x7b807b80, BF16_PAIR_2_126 = 0x7e807e80, BF16_PAIR_2_66 = 0x60806080;

// ---- Exact values: f32 as the reference interpreter decodes ----

// `scales`: the unit's SCALE_BYTES (shared or global memory), or null for formats without. Each operation rounds by itself: a
// contraction to fma would differ from the interpreter.
template <Format F>
__device__ __forceinline__ void decode_floats(uint4 codes, const unsigned char* scales, int g, float (&values)[Unit<F>::ELEMENTS]) {
    const unsigned words[4] = {codes.x, codes.y, codes.z, codes.w};
    constexpr int A_WORD = Unit<F>::ELEMENTS / 4;
#pragma unroll
    for (int j = 0; j < Unit<F>::ELEMENTS; j++) {
        const unsigned bits = words[j / A_WORD] >> (j % A_WORD * Unit<F>::BITS % 32);
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

// ---- bf16 fragments in natural order: pair p = elements 2p, 2p + 1 ----
// Exact for bf16, fp8 (its scales are not applied) and nvfp4 (block scales applied); f16 is rounded to bf16.
template <Format F>
__device__ __forceinline__ void decode_bf16_pairs(uint4 codes, uint2 scales, unsigned (&pairs)[Unit<F>::ELEMENTS / 2]) {
    static_assert(F == Format::BF16 || F == Format::F16 || F == Format::FP8_E4M3 || F == Format::NVFP4, "no bf16 fragments of this format");
    const unsigned words[4] = {codes.x, codes.y, codes.z, codes.w};
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const unsigned w = words[i];
        if constexpr (F == Format::BF16) {
            pairs[i] = w;
        } else if constexpr (F == Format::F16) {
            pairs[i] = pack_bf16(half_bits_to_float(w & 0xffff), half_bits_to_float(w >> 16));
        } else if constexpr (F == Format::FP8_E4M3) {
#pragma unroll
            for (int p = 0; p < 2; p++) {
                const unsigned spread = __byte_perm(w, 0, p == 0 ? 0x1404 : 0x3424);   // each code in the upper byte of its half
                pairs[2 * i + p] = multiply_bf16_pairs((spread >> 4 & 0x07f007f0) | (spread & 0x80008000), BF16_PAIR_2_120);
            }
        } else {
            const unsigned group = __byte_perm(i < 2 ? scales.x : scales.y, 0, i % 2 == 0 ? 0x1404 : 0x3424);
            const unsigned pair = multiply_bf16_pairs(group >> 4 & 0x07f007f0, BF16_PAIR_2_120);   // scales of steps 2i, 2i + 1
#pragma unroll
            for (int p = 0; p < 4; p++) {
                const unsigned two = w >> (8 * p);
                const unsigned bits = (two << 6 & 0x1c0) | (two << 12 & 0x8000) | (two << 18 & 0x1c00000) | (two << 24 & 0x80000000);
                const unsigned scale = __byte_perm(pair, 0, p < 2 ? 0x1010 : 0x3232);
                pairs[4 * i + p] = multiply_bf16_pairs(multiply_bf16_pairs(bits, BF16_PAIR_2_126), scale);
            }
        }
    }
}

// ---- A fragments of a stream product ----
// A lane's 8 elements e0..e7 of 32 columns (two k16 steps of one weight row) fill the four registers of one m16n8k16 A operand:
//   a0: e0 e1   a1: e2 e3 (as "row g + 8")   a2: e4 e5   a3: e6 e7         (nvfp4: e0 e4 | e2 e6 | e1 e5 | e3 e7)
// The sums of a1 and a3 then stand in rows 8..16 against other columns of B: see stream_stage.cuh, which lays out B.
// bf16 and nvfp4 weights multiply bf16 activations. nvfp4 values come times 2^-60 (exact in bf16; the block scale's multiplication then
// needs no product more) against activations times 2^60. fp8 becomes f16, one conversion a pair where bf16 would take seven logic
// operations for two; f16 stays as it is: their activations are f16 too, each warp's part of a row scaled by a power of two to a largest
// magnitude in [2^14, 2^15), which loses nothing that bf16 would keep above 2^-39 of that largest.
template <Format F>
struct Streamed {
    static constexpr bool HALF = F == Format::FP8_E4M3 || F == Format::F16;   // f16 products
    static constexpr bool CROSSED = F == Format::NVFP4;                       // pairs reach across the two steps
    static constexpr float ACTIVATION_FACTOR = F == Format::NVFP4 ? 0x1p60f : 1.0f;

    __device__ __forceinline__ static void decode(uint4 codes, uint2 scales, unsigned (&a)[Unit<F>::ELEMENTS / 8][4]) {
        const unsigned words[4] = {codes.x, codes.y, codes.z, codes.w};
        if constexpr (F == Format::FP8_E4M3) {
#pragma unroll
            for (int i = 0; i < 4; i++) unpack_e4m3(words[i], a[i / 2][i % 2 * 2], a[i / 2][i % 2 * 2 + 1]);
        } else if constexpr (F == Format::NVFP4) {
#pragma unroll
            for (int i = 0; i < 4; i++) {
                // Sign and magnitude of a nibble to their places in both halves with one product by two powers of two.
                const unsigned w = words[i], upper = w >> 8;
                const unsigned group = __byte_perm(i < 2 ? scales.x : scales.y, 0, i % 2 == 0 ? 0x1404 : 0x3424);
                const unsigned scale = multiply_bf16_pairs(multiply_bf16_pairs(group >> 4 & 0x07f007f0, BF16_PAIR_2_120), BF16_PAIR_2_66);
                a[i][0] = multiply_bf16_pairs((w & 0x000f000f) * 0x1040 & 0x81c081c0, scale);
                a[i][2] = multiply_bf16_pairs((w & 0x00f000f0) * 0x0104 & 0x81c081c0, scale);
                a[i][1] = multiply_bf16_pairs((upper & 0x000f000f) * 0x1040 & 0x81c081c0, scale);
                a[i][3] = multiply_bf16_pairs((upper & 0x00f000f0) * 0x0104 & 0x81c081c0, scale);
            }
        } else {
            static_assert(F == Format::BF16 || F == Format::F16, "no 16-bit fragments of this format");
#pragma unroll
            for (int i = 0; i < 4; i++) a[0][i] = words[i];
        }
    }
};

}  // namespace monomorph
