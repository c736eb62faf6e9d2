// What the tests and the bench of products in fp8 share: configurations, kernels, packed random weights.
#pragma once

#include "core/quantised_host.cuh"

#include "kernels/gemm_fp8.cuh"
#include "kernels/quantise.cuh"

using namespace monomorph;

template <ScaleForm SCALE_FORM, int N, int K, int ROWS, Epilogue E, int STAGE_COUNT = 4, bool HAS_BIAS = false, Activation A = Activation::SILU, Limit L = Limit::TOKENS>
struct Case {
    static constexpr Format FORMAT = Format::FP8_E4M3;
    static constexpr ScaleForm SCALES = SCALE_FORM;
    static constexpr int OUTPUTS = N, INPUTS = K, CAPACITY = ROWS, STAGES = STAGE_COUNT;
    static constexpr Epilogue EPILOGUE = E;
    static constexpr bool BIAS = HAS_BIAS;
    static constexpr Activation ACTIVATION = A;
    static constexpr Limit LIMIT = L;
};

template <class C>
void launch_product(int multiprocessors, cudaStream_t stream, const Step* step, const void* x, const void* codes, const void* scales, const float* row_scales,
                    const float* bias, const float* up_bias, float* out) {
    using S = GemmFp8<C>;
    test::launch(gemm_fp8_kernel<C, S::THREADS, S::SHARED_BYTES>, dim3(gemm_fp8_blocks<C>(multiprocessors)), S::THREADS, S::SHARED_BYTES, stream, step, x, codes,
                 scales, row_scales, bias, up_bias, out);
}

// Packed weights of S, a GemmFp8, or of several of them one behind the other.
template <class C>
struct Weights {
    using S = GemmFp8<C>;
    using U = Unit<C::FORMAT>;
    static constexpr int ROWS = S::TILES * 8;
    int matrices;
    std::vector<uint8_t> codes;
    std::vector<float> row_scales, block_scales;

    explicit Weights(test::Random& r, int matrices = 1)
        : matrices(matrices), codes(size_t(matrices) * S::TILES * S::UNITS * UNIT_BYTES), row_scales(size_t(matrices) * ROWS),
          block_scales(size_t(matrices) * S::TILES * S::PANELS) {
        for (auto& code : codes) code = uint8_t((r.bits() & 0x80) | r.below(0x7f));
        for (auto& scale : row_scales) scale = float(0.5 + r.uniform()) * 0.01f;
        // 128 rows of the matrix, or of each of the two that are interleaved, have one.
        for (int m = 0; m < matrices; m++)
            for (int tile = 0; tile < S::TILES; tile++)
                for (int panel = 0; panel < S::PANELS; panel++) {
                    float& scale = block_scales[(size_t(m) * S::TILES + tile) * S::PANELS + panel];
                    const int first = S::GATED ? tile / 32 * 32 + tile % 2 : tile / 16 * 16;
                    scale = first == tile ? float(0.01 + 0.02 * r.uniform()) : block_scales[(size_t(m) * S::TILES + first) * S::PANELS + panel];
                }
    }
    float value(int matrix, int row, int k) const {
        const int tile = matrix * S::TILES + row / 8;
        const uint8_t code = codes[(size_t(tile) * S::UNITS + k / 64) * UNIT_BYTES + (row % 8 * 4 + U::lane_of(k % 64)) * 16 + U::element_of(k % 64)];
        return test::e4m3_to_float(code) * (S::BLOCK_SCALED ? block_scales[size_t(tile) * S::PANELS + k / 128] : 1.0f);
    }
    float scale(int matrix, int row) const { return row_scales[size_t(matrix) * ROWS + row]; }
};

inline double activation(Activation kind, double x) {
    switch (kind) {
        case Activation::SILU: return x / (1 + std::exp(-x));
        case Activation::GELU: return 0.5 * x * (1 + std::erf(x / std::sqrt(2.0)));
        case Activation::GELU_TANH: return 0.5 * x * (1 + std::tanh(std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)));
        case Activation::RELU2: return x > 0 ? x * x : 0;
        default: return std::max(x, 0.0);
    }
}
