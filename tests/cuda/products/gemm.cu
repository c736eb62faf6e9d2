// Tests of the tensor-core products (gemm_wgmma.cuh, gemm_mma.cuh) and of staging (stage.cuh) against a double-precision reference:
// every format, every epilogue, shapes that fill no tile, clusters, split K, and blocks that do several pieces of work.
// With the argument `defect` one weight code of the first case is wrong: the program must then fail.
#include "products/gemm_case.cuh"

static bool plant_defect = false;
static cudaStream_t stream;

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

__global__ void reference_sums(const float* w, const float* x, double* sums, int rows, int columns, int tokens) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= rows * tokens) return;
    double sum = 0;
    for (int k = 0; k < columns; k++) sum += double(w[size_t(i % rows) * columns + k]) * double(x[size_t(i / rows) * columns + k]);
    sums[i] = sum;
}

double activation(Activation kind, double x) {
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
        reference_sums<<<tokens * P::ROWS / 128 + 1, 128, 0, stream>>>(decoded, d_x, d_sums, P::ROWS, C::INPUTS, tokens);
        CHECK(cudaStreamSynchronize(stream));
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
        CHECK(cudaStreamSynchronize(stream));

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

template <int W, int ROWS, Norm N>
struct StageCase {
    static constexpr int WIDTH = W, CAPACITY = ROWS;
    static constexpr Norm NORM = N;
    static constexpr float EPS = 1e-5f;
    static constexpr Limit LIMIT = Limit::TOKENS;
};

template <class C>
void check_stage(const char* name, int tokens) {
    test::Random r(C::WIDTH + tokens);
    std::vector<float> x(size_t(C::CAPACITY) * C::WIDTH), norm(C::WIDTH);
    for (auto& v : x) v = 3 * r.normal();
    for (auto& v : norm) v = r.normal();
    test::Buffer<float> d_x(x), d_norm(norm);
    test::Buffer<uint16_t> out(staged_bytes(C::CAPACITY, C::WIDTH) / 2);
    const Header header(tokens, 0);
    test::launch(stage_kernel<C, StageShape<C>::THREADS>, dim3(C::CAPACITY), StageShape<C>::THREADS, 0, stream, header.step.pointer, d_x.pointer, d_norm.pointer, out.pointer);
    CHECK(cudaStreamSynchronize(stream));
    const std::vector<uint16_t> raw = out.download();
    bool intact = out.intact();
    std::vector<double> expected;
    std::vector<float> got;
    for (int t = 0; t < C::CAPACITY; t++) {
        double squares = 0;
        for (int k = 0; k < C::WIDTH; k++) squares += double(x[size_t(t) * C::WIDTH + k]) * x[size_t(t) * C::WIDTH + k];
        const double inverse = 1 / std::sqrt(squares / C::WIDTH + C::EPS);
        for (int k = 0; k < staged_panels(C::WIDTH) * 64; k++) {
            const float value = test::from_staged(raw, C::CAPACITY, C::WIDTH, t, k);
            if (t >= tokens) {
                intact &= std::isnan(value);
                continue;
            }
            double y = 0;
            if (k < C::WIDTH) {
                y = x[size_t(t) * C::WIDTH + k];
                if (C::NORM != Norm::NONE) y *= inverse * (C::NORM == Norm::ONE_PLUS ? 1.0 + norm[k] : norm[k]);
            }
            expected.push_back(y);
            got.push_back(k < C::WIDTH || value == 0.0f ? value : NAN);
        }
    }
    test::report(name, test::compare(got, expected), 3e-4, intact);
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
template <int T, int S, int P, int W, int N>
using H = Tiling<Engine::MMA, T, S, P, W, N>;

int main(int count, char** arguments) {
    plant_defect = count > 1 && std::strcmp(arguments[1], "defect") == 0;
    CHECK(cudaStreamCreate(&stream));
    // Shapes that fill nothing.
    check<Case<G<8, 1, 2, 3, 3>, F16, ROWS, 45, 57, 8, STORE, true>>("wgmma f16 45x57 store bias", {1, 5, 8});
    check<Case<G<16, 1, 2, 3, 3>, F16, ROWS, 45, 57, 16, GATED, true, Activation::GELU>>("wgmma f16 45x57 gated gelu bias", {13});
    check<Case<G<32, 1, 2, 3, 3>, F16, ROWS, 57, 70, 100, ADD>>("wgmma f16 57x70 add, blocks of 32", {77, 100, 0});
    check<Case<G<32, 2, 1, 3, 3>, F16, ROWS, 300, 96, 100, ADD>>("wgmma f16 300x96 add, strips 2", {77});
    check<Case<G<64, 1, 2, 3, 3>, FP8, ROWS, 57, 200, 64, STORE, false, Activation::SILU, Limit::OUTPUTS>>("wgmma fp8 57x200 store, outputs", {3, 64});
    check<Case<G<8, 1, 2, 4, 4, 1, 2, 2>, FP4, ROWS, 200, 320, 8, GATED, false, Activation::GELU_TANH>>("wgmma nvfp4 200x320 gated, split 2", {7});
    check<Case<G<16, 1, 2, 4, 4, 1, 4, 2>, FP8, BLOCK, 200, 600, 16, ADD, true>>("wgmma fp8 block 200x600 add bias, split 4", {16, 9});
    check<Case<G<64, 1, 2, 3, 3, 2, 2, 2>, FP8, ROWS, 640, 576, 64, STORE>>("wgmma fp8 640x576 store, multicast 2 split 2", {64, 33});
    check<Case<G<64, 1, 2, 3, 3, 2, 1, 2>, FP4, ROWS, 640, 576, 64, GATED>>("wgmma nvfp4 640x576 gated, multicast 2", {64, 33}, 1);
    check<Case<G<64, 2, 2, 4, 4>, FP4, ROWS, 700, 576, 64, GATED>>("wgmma nvfp4 700x576 gated, strips 2", {64, 33});
    check<Case<G<128, 1, 2, 4, 4>, FP8, BLOCK, 700, 576, 128, GATED>>("wgmma fp8 block 700x576 gated", {128, 100}, 2);
    check<Case<G<128, 1, 1, 4, 4>, F16, ROWS, 700, 576, 128, STORE>>("wgmma f16 700x576 store", {128, 100}, 2);
    check<Case<G<128, 1, 2, 3, 3, 1, 2>, F16, ROWS, 700, 576, 128, ADD>>("wgmma f16 700x576 add, split 2", {128, 100}, 2);
    check<Case<G<16, 1, 2, 4, 3, 1, 7, 2>, FP8, ROWS, 200, 2000, 16, ADD>>("wgmma fp8 200x2000 add, split 7", {16, 9});
    check<Case<G<32, 1, 2, 4, 3, 1, 1, 2>, FP8, BLOCK, 900, 4500, 32, GATED>>("wgmma fp8 block 900x4500 gated, two resident", {32, 5}, 3);
    check<Case<G<64, 1, 1, 4, 4, 1, 1, 2>, F16, ROWS, 900, 576, 64, STORE, true>>("wgmma f16 900x576 store bias, two resident", {64, 5}, 3);
    check<Case<G<128, 2, 1, 4, 4>, F16, ROWS, 900, 576, 128, ADD>>("wgmma f16 900x576 add, strips 2", {128, 77}, 2);
    check<Case<G<128, 2, 2, 4, 2>, FP8, BLOCK, 900, 4500, 128, GATED>>("wgmma fp8 block 900x4500 gated, strips 2", {128, 77}, 2);
    // Prefill.
    check<Case<G<256, 1, 1, 4, 4>, F16, ROWS, 960, 576, 1000, STORE, true>>("wgmma f16 960x576 store", {1000, 700}, 5);
    check<Case<G<256, 1, 1, 4, 4, 2>, F16, ROWS, 1100, 576, 1000, ADD>>("wgmma f16 1100x576 add, multicast 2", {1000, 257, 1}, 6);
    check<Case<G<256, 1, 1, 4, 4, 2>, F16, ROWS, 1500, 600, 1000, GATED>>("wgmma f16 1500x600 gated, multicast 2", {1000, 300}, 6);
    check<Case<G<256, 1, 1, 4, 4, 2>, FP8, BLOCK, 1500, 576, 1000, GATED>>("wgmma fp8 block 1500x576 gated, multicast 2", {999}, 6);
    check<Case<G<256, 1, 2, 5, 2>, FP8, BLOCK, 900, 4500, 600, ADD>>("wgmma fp8 block 900x4500 add", {600}, 6);
    check<Case<G<256, 1, 2, 5, 2>, FP4, ROWS, 900, 1024, 600, GATED>>("wgmma nvfp4 900x1024 gated", {600}, 6);
    check<Case<G<256, 1, 2, 2, 2, 2>, FP4, ROWS, 1500, 576, 600, ADD>>("wgmma nvfp4 1500x576 add, multicast 2", {599}, 6);
    // Without wgmma.
    check<Case<H<8, 1, 2, 2, 2>, F16, ROWS, 45, 57, 8, STORE, true>>("mma f16 45x57 store bias", {1, 5, 8});
    check<Case<H<16, 1, 2, 2, 2>, F16, ROWS, 45, 57, 16, GATED, true, Activation::RELU>>("mma f16 45x57 gated relu bias", {13});
    check<Case<H<32, 1, 2, 2, 2>, F16, ROWS, 57, 70, 100, ADD>>("mma f16 57x70 add", {77});
    check<Case<H<64, 2, 1, 2, 2>, F16, ROWS, 700, 576, 300, GATED>>("mma f16 700x576 gated, strips 2", {300, 129}, 3);
    check<Case<H<64, 1, 2, 2, 2>, FP4, ROWS, 700, 576, 64, GATED>>("mma nvfp4 700x576 gated", {64, 33}, 3);
    check<Case<H<128, 1, 1, 2, 2>, FP8, BLOCK, 700, 576, 300, ADD>>("mma fp8 block 700x576 add", {300, 129}, 3);
    check<Case<H<128, 1, 1, 3, 3>, FP8, ROWS, 700, 600, 300, STORE>>("mma fp8 700x600 store", {300, 129}, 3);
    check_stage<StageCase<45, 8, Norm::PLAIN>>("stage 45 norm", 5);
    check_stage<StageCase<576, 8, Norm::ONE_PLUS>>("stage 576 norm one-plus", 8);
    check_stage<StageCase<4096, 33, Norm::PLAIN>>("stage 4096 norm", 31);
    check_stage<StageCase<14336, 4, Norm::NONE>>("stage 14336", 4);
    std::printf("%d failures\n", test::failures);
    return test::failures != 0;
}
