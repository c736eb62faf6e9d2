// Checks of the tensor-core products: random packed weights, the reference in double precision, the comparison.
#pragma once

#include "products/gemm_case.cuh"

static bool plant_defect = false;
static cudaStream_t stream = nullptr;

struct Header {
    test::Buffer<Step> step{1};
    Header(int tokens, int outputs) {
        std::vector<Step> host(1);
        std::memset(host.data(), 0, sizeof(Step));
        host[0].tokens = tokens;
        host[0].outputs = outputs;
        step.upload(host);
    }
};

// [rows][K] decoded weights, and their packed form.
struct Weights {
    std::vector<float> decoded;
    std::vector<uint8_t> codes, scales;
    std::vector<float> row_scales, block_scales;
};

template <class C>
struct PackedWeights {
    using S = GemmShape<C>;
    using U = Unit<C::FORMAT>;
    static constexpr int ROWS = S::TILES * 8;
    static constexpr bool GATED = S::GATED;
    // The output a packed row belongs to.
    static int output(int row) { return GATED ? row / 16 * 8 + row % 8 : row; }
    static bool is_up(int row) { return GATED && row / 8 % 2 == 1; }

    static Weights random(test::Random& r) {
        Weights w;
        w.decoded.assign(size_t(ROWS) * C::INPUTS, 0.0f);
        w.codes.assign(size_t(S::TILES) * S::UNITS * UNIT_BYTES, 0);
        w.scales.assign(size_t(S::TILES) * S::UNITS * U::SCALE_BYTES + 16, 0);
        w.row_scales.assign(ROWS, 0.0f);
        const int blocks = ceil_div(C::INPUTS, 128);
        w.block_scales.assign(size_t(S::TILES) * blocks, 0.0f);
        for (auto& s : w.block_scales) s = float(0.01 + 0.02 * r.uniform());
        for (int row = 0; row < ROWS; row++) {
            if (output(row) >= C::OUTPUTS) continue;
            w.row_scales[row] = float(0.5 + r.uniform()) * 0.01f;
            for (int unit = 0; unit < S::UNITS; unit++) {
                const size_t at = size_t(row / 8) * S::UNITS + unit;
                if (U::SCALE_BYTES) {
                    for (int group = 0; group < 8; group++) w.scales[at * U::SCALE_BYTES + row % 8 * 8 + group] = uint8_t(0x28 + r.below(0x20));
                }
                for (int column = 0; column < U::COLUMNS; column++) {
                    const int k = unit * U::COLUMNS + column;
                    if (k >= C::INPUTS) break;
                    const int element = U::element_of(column);
                    uint8_t* lane = &w.codes[at * UNIT_BYTES + (row % 8 * 4 + U::lane_of(column)) * 16];
                    float& value = w.decoded[size_t(row) * C::INPUTS + k];
                    if (C::FORMAT == Format::F16) {
                        const uint16_t code = uint16_t((r.bits() & 0x83ff) | (r.below(16) == 0 ? 0 : 12 + r.below(5)) << 10);  // subnormals too
                        std::memcpy(lane + element * 2, &code, 2);
                        value = test::f16_to_float(code);
                    } else if (C::FORMAT == Format::FP8_E4M3) {
                        const uint8_t code = uint8_t((r.bits() & 0x80) | r.below(0x7f));
                        lane[element] = code;
                        value = test::e4m3_to_float(code);
                        if (C::SCALES == ScaleForm::BLOCK128) value = test::round_f16(value * test::round_f16(w.block_scales[size_t(row / 8) * blocks + k / 128]));
                    } else {
                        const uint8_t code = uint8_t(r.below(16));
                        reinterpret_cast<uint32_t*>(lane)[element / 8] |= U::place(element, code);
                        value = test::e2m1_to_float(code) * test::e4m3_to_float(w.scales[at * U::SCALE_BYTES + row % 8 * 8 + column / 16]);
                    }
                }
            }
        }
        return w;
    }
};

__device__ inline void reference_sum(const float* w, const float* x, double* sums, int rows, int columns, int i) {
    double sum = 0;
    for (int k = 0; k < columns; k++) sum += double(w[size_t(i % rows) * columns + k]) * double(x[size_t(i / rows) * columns + k]);
    sums[i] = sum;
}
#ifdef MONOMORPH_HOST
inline void reference_sums(const float* w, const float* x, double* sums, int rows, int columns, int tokens) {
    for (int i = 0; i < rows * tokens; i++) reference_sum(w, x, sums, rows, columns, i);
}
#else
__global__ void reference_sums_kernel(const float* w, const float* x, double* sums, int rows, int columns, int tokens) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < rows * tokens) reference_sum(w, x, sums, rows, columns, i);
}
inline void reference_sums(const float* w, const float* x, double* sums, int rows, int columns, int tokens) {
    reference_sums_kernel<<<tokens * rows / 128 + 1, 128, 0, stream>>>(w, x, sums, rows, columns, tokens);
}
#endif

inline double activation(Activation kind, double x) {
    switch (kind) {
        case Activation::SILU: return x / (1 + std::exp(-x));
        case Activation::GELU: return 0.5 * x * (1 + std::erf(x / std::sqrt(2.0)));
        case Activation::GELU_TANH: return 0.5 * x * (1 + std::tanh(std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)));
        default: return std::max(x, 0.0);
    }
}

// `multiprocessors` bounds the grid, so that few make blocks work repeatedly.
template <class C>
void check(const char* name, std::vector<int> token_counts, int multiprocessors = 132) {
    static uint64_t seed = 1;
    test::Random r(seed++);
    using P = PackedWeights<C>;
    Weights w = P::random(r);
    std::vector<float> bias(C::OUTPUTS), up_bias(C::OUTPUTS);
    for (auto& b : bias) b = r.normal();
    for (auto& b : up_bias) b = r.normal();
    test::Buffer<float> decoded(w.decoded), row_scales(w.row_scales), block_scales(w.block_scales), d_bias(bias), d_up_bias(up_bias);
    if (plant_defect) {
        w.codes[UNIT_BYTES / 2 + 1] ^= 0x10;
        plant_defect = false;
    }
    test::Buffer<uint8_t> codes(w.codes), scales(w.scales);
    const void* scale_plane = C::SCALES == ScaleForm::BLOCK128 ? static_cast<const void*>(block_scales) : static_cast<const void*>(scales);
    for (int tokens : token_counts) {
        std::vector<float> x(size_t(tokens) * C::INPUTS);
        for (auto& v : x) v = test::round_bf16(r.normal());
        test::Buffer<float> d_x(x.size() + 1);
        d_x.upload(x);
        test::Buffer<uint16_t> d_staged(test::staged(x, C::INPUTS, C::CAPACITY));
        test::Buffer<double> d_sums(size_t(tokens) * P::ROWS + 1);
        reference_sums(decoded, d_x, d_sums, P::ROWS, C::INPUTS, tokens);
        CHECK(cudaDeviceSynchronize());
        const std::vector<double> sums = d_sums.download();
        const auto sum = [&](int t, int row) {
            double value = sums[size_t(t) * P::ROWS + row];
            value *= w.row_scales[row];
            if (C::BIAS) value += P::is_up(row) ? up_bias[P::output(row)] : bias[P::output(row)];
            return value;
        };
        const size_t out_count = size_t(C::CAPACITY) * C::OUTPUTS;
        test::Buffer<float> out(out_count);
        std::vector<float> before(out_count);
        if (C::EPILOGUE == Epilogue::ADD) {
            for (auto& v : before) v = r.normal();
            out.upload(before);
        }
        const Header header(C::LIMIT == Limit::OUTPUTS ? 1 << 20 : tokens, C::LIMIT == Limit::OUTPUTS ? tokens : 1 << 20);
        launch_product<C>(multiprocessors, stream, header.step, d_staged, codes, scale_plane, row_scales, d_bias, d_up_bias, out);
        CHECK(cudaDeviceSynchronize());

        std::vector<double> expected;
        std::vector<float> got;
        bool intact = out.intact();
        const std::vector<float> raw = out.download();
        for (int t = 0; t < C::CAPACITY; t++) {
            for (int f = 0; f < C::OUTPUTS; f++) {
                const size_t i = size_t(t) * C::OUTPUTS + f;
                if (t >= tokens) {
                    intact &= C::EPILOGUE == Epilogue::ADD ? raw[i] == before[i] : std::isnan(raw[i]);
                    continue;
                }
                const int row = f / 8 * 16 + f % 8;  // of the gate
                expected.push_back(P::GATED ? activation(C::ACTIVATION, sum(t, row)) * sum(t, row + 8)
                                            : sum(t, f) + (C::EPILOGUE == Epilogue::ADD ? double(before[i]) : 0.0));
                got.push_back(raw[i]);
            }
        }
        char line[160];
        std::snprintf(line, sizeof line, "%s, %d tokens", name, tokens);
        // Tensor cores cut off what does not fit their f32 sums: an error that grows with K.
        test::report(line, test::compare(got, expected), (P::GATED ? 1e-5 : 2e-6) * std::max(1.0, C::INPUTS / 500.0), intact);
    }
}

constexpr auto F16 = Format::F16;
constexpr auto FP8 = Format::FP8_E4M3;
constexpr auto FP4 = Format::NVFP4;
constexpr auto ROWS = ScaleForm::ROWS;
constexpr auto BLOCK = ScaleForm::BLOCK128;
constexpr auto STORE = Epilogue::STORE;
constexpr auto ADD = Epilogue::ADD;
constexpr auto GATED = Epilogue::GATED;

template <int T, int S, int P, int W, int N, int M = 1, int K = 1, int R = 1>
using G = Tiling<Engine::WGMMA, T, S, P, W, N, M, K, R>;
