// Dummy weights: random planes of every packed format, made on the device. Number i of a plane depends on the seed and i alone, so every
// run has the same weights. Values have mean 0 and the standard deviation asked for (uniform or nearly), so that activations of a deep model stay
// finite when the deviation is about 1 / sqrt(columns). Padding holds zero codes and zero scales, as the loader packs it.
//
// These kernels run once at load and take their shapes at run time: grids are strided over, any grid and block will do (1024 blocks of
// 256 threads fill the card). No shared memory, no PDL.
#pragma once

#include "core/fill_shape.cuh"
#include "core/formats.cuh"
#include "core/philox.cuh"

namespace monomorph {

// The streams of a seed: its upper bits tell the planes apart.
__device__ __forceinline__ unsigned long long plane_seed(unsigned long long seed, unsigned plane) {
    return seed ^ static_cast<unsigned long long>(plane + 1) << 56;
}

// Uniform in (-1, 1) from the upper BITS bits of a word.
template <int BITS>
__device__ __forceinline__ float symmetric(unsigned bits) {
    return (static_cast<float>(bits) + 0.5f) / static_cast<float>(1u << (BITS - 1)) - 1.0f;
}

constexpr float SQRT_3 = 1.7320508f;  // half the width of a uniform distribution of deviation 1

// Scales that give codes drawn evenly the deviation 1.
template <Format F>
__host__ __device__ constexpr float code_scale() {
    return F == Format::F16 ? SQRT_3 / 32768.0f              // codes spread evenly over +-2^15
           : F == Format::FP8_E4M3 ? SQRT_3 / 448.0f       // codes round numbers spread evenly over +-448
           : F == Format::NVFP4  ? 1.0f / (2.926f * 187.6f)  // sixteen codes alike; block scales 128 .. 240, eight alike
           : F == Format::Q8_0   ? 1.0f / 74.67f         // codes -127 .. 127; d spread over +-25 %
           : F == Format::Q4_1   ? 1.0f / 4.66f          // codes 0 .. 15 about 7.5; d as before
                                 : SQRT_3;
}

// One element's code, in the lowest bits.
template <Format F, ScaleForm S>
__device__ __forceinline__ unsigned random_code(unsigned bits, float deviation) {
    if constexpr (F == Format::F16 && S == ScaleForm::ROWS) return __half_as_ushort(__float2half_rn(symmetric<16>(bits) * 32768.0f));
    if constexpr (F == Format::F32) return __float_as_uint(symmetric<24>(bits >> 8) * (SQRT_3 * deviation));
    if constexpr (F == Format::BF16) return __bfloat16_as_ushort(__float2bfloat16_rn(symmetric<16>(bits) * (SQRT_3 * deviation)));
    if constexpr (F == Format::F16) return __half_as_ushort(__float2half_rn(symmetric<16>(bits) * (SQRT_3 * deviation)));
    if constexpr (F == Format::FP8_E4M3) return pack_e4m3(symmetric<8>(bits) * 448.0f);  // never a NaN
    if constexpr (F == Format::Q8_0) return bits == 0x80 ? 0x81 : bits;                  // -128 is no code of the encoder's
    return bits;
}

// Codes, scales and row_scales of one packed matrix. Planes that the format does not have are null.
template <Format F, ScaleForm S>
__device__ __forceinline__ void fill_matrix(void* codes, void* scales, float* row_scales, FillShape shape) {
    using U = Unit<F>;
    const int parts = shape.gated ? 2 : 1;
    const long long tiles = static_cast<long long>((shape.rows + TILE_ROWS - 1) / TILE_ROWS) * parts;
    const long long units = (shape.columns + U::COLUMNS - 1) / U::COLUMNS;
    const long long start = static_cast<long long>(blockIdx.x) * blockDim.x + threadIdx.x, stride = static_cast<long long>(gridDim.x) * blockDim.x;
    auto is_row = [&](long long tile, int g) { return tile / parts * TILE_ROWS + g < shape.rows; };

    for (long long i = start; i < tiles * units * 32; i += stride) {
        const int g = static_cast<int>(i % 32) / 4, c = static_cast<int>(i % 4);
        const long long unit = i / 32 % units;
        const uint4 random = random_words(plane_seed(shape.seed, 0), i);
        const unsigned words[4] = {random.x, random.y, random.z, random.w};
        unsigned out[4] = {0, 0, 0, 0};
        constexpr int A_WORD = U::ELEMENTS / 4;
        constexpr unsigned MASK = static_cast<unsigned>((1ull << U::BITS) - 1);
#pragma unroll
        for (int j = 0; j < U::ELEMENTS; ++j) {
            const unsigned code = random_code<F, S>(words[j / A_WORD] >> (j % A_WORD * U::BITS % 32) & MASK, shape.deviation);
            if (is_row(i / 32 / units, g) && unit * U::COLUMNS + U::column(j, c) < shape.columns) out[j / A_WORD] |= U::place(j, code);
        }
        static_cast<uint4*>(codes)[i] = make_uint4(out[0], out[1], out[2], out[3]);
    }

    const float unit_scale = code_scale<F>() * shape.deviation;
    if constexpr (F == Format::Q8_0 || F == Format::Q4_1) {
        constexpr int BLOCKS = U::COLUMNS / 32;  // of 32 columns, in a unit
        for (long long i = start; i < tiles * units * BLOCKS * TILE_ROWS; i += stride) {
            const int g = static_cast<int>(i % TILE_ROWS);
            const long long unit_at = i / TILE_ROWS / BLOCKS, column = (unit_at % units * BLOCKS + i / TILE_ROWS % BLOCKS) * 32;
            const bool inside = is_row(unit_at / units, g) && column < shape.columns;
            const float spread = 1.0f + 0.25f * symmetric<24>(random_words(plane_seed(shape.seed, 1), i).x >> 8);
            const __half d = __float2half_rn(inside ? unit_scale * spread : 0.0f);
            if constexpr (F == Format::Q8_0) {
                static_cast<__half*>(scales)[i] = d;
            } else {
                static_cast<__half2*>(scales)[i] = __halves2half2(d, __float2half_rn(-7.5f * __half2float(d)));
            }
        }
    }
    if constexpr (F == Format::NVFP4) {
        for (long long i = start; i < tiles * units * U::SCALE_BYTES; i += stride) {
            const long long unit_at = i / U::SCALE_BYTES, column = unit_at % units * U::COLUMNS + i % 8 * 16;
            const bool inside = is_row(unit_at / units, static_cast<int>(i / 8 % TILE_ROWS)) && column < shape.columns;
            const unsigned mantissa = random_words(plane_seed(shape.seed, 1), i).x >> 29;
            static_cast<unsigned char*>(scales)[i] = inside ? 0x70 | mantissa : 0;  // 2^7 * (1 + mantissa / 8)
        }
    }
    if constexpr (F == Format::FP8_E4M3 && S == ScaleForm::BLOCK128) {
        const long long blocks = (shape.columns + 127) / 128;
        for (long long i = start; i < tiles * blocks; i += stride) {
            static_cast<float*>(scales)[i] = 64.0f / 1.0104f * (1.0f + 0.25f * symmetric<24>(random_words(plane_seed(shape.seed, 1), i).x >> 8));
        }
    }
    if constexpr (S != ScaleForm::NONE) {
        const float row_scale = S == ScaleForm::BLOCK128 ? unit_scale / 64.0f : unit_scale;
        for (long long i = start; i < tiles * TILE_ROWS; i += stride) {
            row_scales[i] = is_row(i / TILE_ROWS, static_cast<int>(i % TILE_ROWS)) ? row_scale : 0.0f;
        }
    }
}

// Norm weights and biases: f32, uniform about `centre`.
__device__ __forceinline__ void fill_vector(float* values, long long count, float centre, float deviation, unsigned long long seed) {
    for (long long i = static_cast<long long>(blockIdx.x) * blockDim.x + threadIdx.x; i < count; i += static_cast<long long>(gridDim.x) * blockDim.x) {
        values[i] = centre + SQRT_3 * deviation * symmetric<24>(random_words(plane_seed(seed, 2), i).x >> 8);
    }
}

}  // namespace monomorph
