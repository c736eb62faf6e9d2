// Tests of products in fp8 (gemm_fp8.cuh) and of quantising their input (quantise.cuh) against a reference in double precision of the same codes: both
// forms of scales, every epilogue, shapes that fill no block, and blocks that do several pieces of work.
// With the argument `defect` one weight code of the first case is wrong: the program must then fail.
#include "core/staged_host.cuh"
#include "products/gemm_fp8_case.cuh"

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

// `multiprocessors` bounds the grid, so that few make blocks work repeatedly.
template <class C>
void check(const char* name, std::vector<int> token_counts, int multiprocessors = 132) {
    static uint64_t seed = 1;
    test::Random r(seed++);
    using S = GemmFp8<C>;
    Weights<C> w(r);
    std::vector<float> bias(C::OUTPUTS), up_bias(C::OUTPUTS), values(size_t(S::TILES) * 8 * C::INPUTS);
    for (auto& b : bias) b = r.normal();
    for (auto& b : up_bias) b = r.normal();
    for (int row = 0; row < S::TILES * 8; row++)
        for (int k = 0; k < C::INPUTS; k++) values[size_t(row) * C::INPUTS + k] = w.value(0, row, k);
    if (plant_defect) w.codes[UNIT_BYTES / 2 + 1] ^= 0x40;
    plant_defect = false;
    test::Buffer<uint8_t> codes(w.codes);
    test::Buffer<float> row_scales(w.row_scales), block_scales(w.block_scales), d_bias(bias), d_up_bias(up_bias);
    for (int tokens : token_counts) {
        std::vector<float> x(size_t(tokens) * C::INPUTS);
        for (auto& v : x) v = r.normal() * (r.below(50) == 0 ? 8.0f : 1.0f);
        const std::vector<uint8_t> quantised = test::quantised(x, C::INPUTS, C::CAPACITY);
        test::Buffer<uint8_t> d_x(quantised);
        const size_t out_count = size_t(C::CAPACITY) * C::OUTPUTS;
        test::Buffer<float> out(out_count);
        std::vector<float> before(out_count);
        if (C::EPILOGUE == Epilogue::ADD) {
            for (auto& v : before) v = r.normal();
            out.upload(before);
        }
        const Header header(C::LIMIT == Limit::OUTPUTS ? 1 << 20 : tokens, C::LIMIT == Limit::OUTPUTS ? tokens : 1 << 20);
        launch_product<C>(multiprocessors, stream, header.step, d_x, codes, block_scales, row_scales, d_bias, d_up_bias, out);
        CHECK(cudaDeviceSynchronize());

        std::vector<double> expected;
        std::vector<float> got;
        bool intact = out.intact();
        const std::vector<float> raw = out.download();
        for (int t = 0; t < C::CAPACITY; t++) {
            std::vector<float> own(C::INPUTS);
            for (int k = 0; k < C::INPUTS && t < tokens; k++) own[k] = test::from_quantised(quantised, C::CAPACITY, C::INPUTS, t, k);
            const auto sum = [&](int row, const std::vector<float>& biases, int feature) {
                double value = 0;
                for (int k = 0; k < C::INPUTS; k++) value += double(values[size_t(row) * C::INPUTS + k]) * own[k];
                return value * w.scale(0, row) + (C::BIAS ? biases[feature] : 0.0);
            };
            for (int f = 0; f < C::OUTPUTS; f++) {
                const size_t i = size_t(t) * C::OUTPUTS + f;
                if (t >= tokens) {
                    intact &= C::EPILOGUE == Epilogue::ADD ? raw[i] == before[i] : std::isnan(raw[i]);
                    continue;
                }
                const int row = S::GATED ? f / 8 * 16 + f % 8 : f;
                double value = sum(row, bias, f);
                if (S::GATED || C::EPILOGUE == Epilogue::ACTIVATED) value = activation(C::ACTIVATION, value);
                if (S::GATED) value *= sum(row + 8, up_bias, f);
                if (C::EPILOGUE == Epilogue::ADD) value += before[i];
                expected.push_back(value);
                got.push_back(raw[i]);
            }
        }
        char line[160];
        std::snprintf(line, sizeof line, "%s, %d tokens", name, tokens);
        test::report(line, test::compare(got, expected), test::OF_SUMS * (S::GATED ? 2 : 1), intact);
    }
}

template <int W, int ROWS, Norm N, bool HALF>
struct QuantiseCase {
    static constexpr int WIDTH = W, CAPACITY = ROWS;
    static constexpr Norm NORM = N;
    static constexpr float EPS = 1e-5f;
    static constexpr Limit LIMIT = Limit::TOKENS;
    static constexpr bool HALVES = HALF;
};

// Without a norm all bits are the reference's; with one a value near the middle of two codes may become the other.
template <class C>
void check_quantise(const char* name, int tokens) {
    test::Random r(C::WIDTH + tokens);
    std::vector<float> x(size_t(C::CAPACITY) * C::WIDTH), norm(C::WIDTH);
    for (auto& v : x) v = 3 * r.normal();
    for (int k = 0; k < 128; k++) x[k] = 0;                               // a group of zeros
    for (int k = 0; k < 128; k++) x[C::WIDTH + k] *= 1e-35f;               // and one of less than codes are made of
    for (auto& v : norm) v = r.normal();
    test::Buffer<float> d_x(x), d_norm(norm);
    test::Buffer<uint8_t> out(quantised_bytes(C::CAPACITY, C::WIDTH));
    test::Buffer<uint16_t> halves(staged_bytes(C::CAPACITY, C::WIDTH) / 2);
    const Header header(tokens, 0);
    test::launch(quantise_kernel<C, StageShape<C>::THREADS>, dim3(C::CAPACITY), StageShape<C>::THREADS, 0, stream, header.step.pointer, d_x.pointer, d_norm.pointer,
                 out.pointer, C::HALVES ? halves.pointer : nullptr);
    CHECK(cudaDeviceSynchronize());
    std::vector<float> y(size_t(tokens) * C::WIDTH);
    for (int t = 0; t < tokens; t++) {
        double squares = 0;
        for (int k = 0; k < C::WIDTH; k++) squares += double(x[size_t(t) * C::WIDTH + k]) * x[size_t(t) * C::WIDTH + k];
        const double inverse = C::NORM == Norm::NONE ? 1.0 : 1 / std::sqrt(squares / C::WIDTH + C::EPS);
        for (int k = 0; k < C::WIDTH; k++)
            y[size_t(t) * C::WIDTH + k] = float(x[size_t(t) * C::WIDTH + k] * inverse * (C::NORM == Norm::NONE ? 1.0 : C::NORM == Norm::ONE_PLUS ? 1.0 + norm[k] : norm[k]));
    }
    const std::vector<uint8_t> raw = out.download(), want = test::quantised(y, C::WIDTH, C::CAPACITY);
    const std::vector<uint16_t> raw_halves = halves.download();
    std::vector<float> got, got_halves;
    std::vector<double> expected, expected_halves;
    bool intact = out.intact() && halves.intact() && (C::NORM != Norm::NONE || raw == want);
    for (int t = 0; t < C::CAPACITY; t++)
        for (int k = 0; k < C::WIDTH; k++) {
            if (t >= tokens) {
                intact &= raw[test::quantised_at(C::CAPACITY, t, k)] == 0xff;
                continue;
            }
            expected.push_back(test::from_quantised(want, C::CAPACITY, C::WIDTH, t, k));
            got.push_back(test::from_quantised(raw, C::CAPACITY, C::WIDTH, t, k));
            expected_halves.push_back(y[size_t(t) * C::WIDTH + k]);
            got_halves.push_back(test::from_staged(raw_halves, C::CAPACITY, C::WIDTH, t, k));
        }
    // A code that became its neighbour is an eighth away at most: 2e-3 is one of some thousand.
    test::report(name, test::compare(got, expected), C::NORM == Norm::NONE ? 0 : 4e-3, intact);
    if (C::HALVES) test::report("  and in f16", test::compare(got_halves, expected_halves), 3e-4, intact);
}

constexpr auto ROWS = ScaleForm::ROWS;
constexpr auto BLOCK = ScaleForm::BLOCK128;
constexpr auto STORE = Epilogue::STORE;
constexpr auto ADD = Epilogue::ADD;
constexpr auto GATED = Epilogue::GATED;
constexpr auto ACTIVATED = Epilogue::ACTIVATED;

int main(int count, char** arguments) {
    plant_defect = count > 1 && std::strcmp(arguments[1], "defect") == 0;
#ifndef MONOMORPH_HOST
    CHECK(cudaStreamCreate(&stream));
#endif
    check<Case<BLOCK, 128, 128, 136, STORE>>("block 128x128 store", {1, 136});
    check<Case<ROWS, 40, 256, 200, STORE, 3, true>>("rows 40x256 store bias", {65, 200});
    check<Case<BLOCK, 384, 640, 200, ADD>>("block 384x640 add", {200, 64, 0}, 2);
    check<Case<BLOCK, 640, 384, 300, STORE, 4, true, Activation::SILU, Limit::OUTPUTS>>("block 640x384 store bias, outputs", {300, 129}, 3);
    check<Case<BLOCK, 256, 768, 300, GATED>>("block 256x768 gated", {290}, 3);
    check<Case<BLOCK, 384, 384, 136, GATED, 3, true, Activation::GELU_TANH>>("block 384x384 gated gelu-tanh bias", {136}, 2);
    check<Case<ROWS, 72, 256, 136, GATED>>("rows 72x256 gated", {130});
    check<Case<ROWS, 256, 256, 136, ACTIVATED, 4, false, Activation::RELU2>>("rows 256x256 relu2", {131});
    check<Case<BLOCK, 2304, 256, 264, STORE>>("block 2304x256 store, two groups of rows", {264}, 5);
    check_quantise<QuantiseCase<128, 8, Norm::NONE, false>>("quantise 128", 5);
    check_quantise<QuantiseCase<640, 12, Norm::NONE, true>>("quantise 640, and staged", 12);
    check_quantise<QuantiseCase<2048, 40, Norm::ONE_PLUS, true>>("quantise 2048 norm one-plus, and staged", 37);
    check_quantise<QuantiseCase<4352, 9, Norm::PLAIN, false>>("quantise 4352 norm", 9);
    std::printf("%d failures\n", test::failures);
    return test::failures != 0;
}
