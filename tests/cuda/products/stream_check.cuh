// Host side of the stream product's checks: random packed weights, the reference, the comparison.
#pragma once
#include "core/common.cuh"
#include "kernels/stream_beside.cuh"
#include "kernels/stream_product.cuh"

struct CheckDefaults {
    static constexpr monomorph::Format FORMAT = monomorph::Format::F16;
    static constexpr monomorph::Compute COMPUTE = monomorph::Compute::F16;
    static constexpr monomorph::Rounding ROUNDING = monomorph::Rounding::NONE;
    static constexpr int OUTPUTS = 520, INPUTS = 1088, ROWS = 4, ALL_ROWS = 0;   // ALL_ROWS: of x, where grid.y > 1
    static constexpr monomorph::Norm NORM = monomorph::Norm::NONE;
    static constexpr float EPS = 1e-5f;
    static constexpr monomorph::Epilogue EPILOGUE = monomorph::Epilogue::STORE;
    static constexpr monomorph::Activation ACTIVATION = monomorph::Activation::SILU;
    static constexpr bool BIAS = false;
    static constexpr monomorph::ScaleForm SCALES = monomorph::ScaleForm::ROWS;
    static constexpr monomorph::Limit LIMIT = monomorph::Limit::NONE;
    static constexpr int STAGES = 4, STAGE_BYTES = 16384, CONSUMER_WARPS = 8, BLOCKS = 132, MULTIPROCESSORS = 132;
    static constexpr bool EVICT_FIRST = false;
    static constexpr int PACE = 2, LOOKAHEAD = 65536;
};

// Random codes of a packed matrix with its planes, and the values they mean.
template <class C>
struct HostMatrix {
    using S = monomorph::StreamShape<C>;
    using U = typename S::U;
    static constexpr int TILES = S::GRANULES * S::GRANULE, PACKED_ROWS = TILES * 8;
    std::vector<unsigned char> codes, scales;
    std::vector<float> row_scales, values;   // values [packed rows][K], row scales not applied

    explicit HostMatrix(test::Random& random)
        : codes(size_t(TILES) * S::TILE_UNITS * 512), scales(size_t(TILES) * (S::BLOCK_SCALES ? S::SCALE_COLUMNS * 4 : S::TILE_UNITS * U::SCALE_BYTES)),
          row_scales(PACKED_ROWS), values(size_t(PACKED_ROWS) * C::INPUTS) {
        using monomorph::Format;
        for (auto& s : row_scales) s = S::ROW_SCALES ? float(0.5 + random.uniform()) : 1.0f;
        for (int row = 0; row < PACKED_ROWS; row++) {
            const int tile = row / 8, g = row % 8, real = S::GATED ? tile / 2 * 8 + g : row;
            if (real >= C::OUTPUTS) continue;
            float d = 1.0f, m = 0.0f;
            for (int k = 0; k < C::INPUTS; k++) {
                const int unit = k / U::COLUMNS, within = k % U::COLUMNS, j = U::element_of(within), lane = g * 4 + U::lane_of(within);
                if (U::column(j, lane % 4) != within) std::printf("FAIL column formula\n"), std::exit(3);
                unsigned char* at = &codes[((size_t(tile) * S::TILE_UNITS + unit) * 32 + lane) * 16];
                unsigned char* unit_scales = scales.data() + (size_t(tile) * S::TILE_UNITS + unit) * U::SCALE_BYTES;
                float& value = values[size_t(row) * C::INPUTS + k];
                const float normal = random.normal();
                const unsigned bits = unsigned(random.bits());
                if constexpr (C::FORMAT == Format::F32) {
                    value = normal;
                    std::memcpy(at + 4 * j, &value, 4);
                } else if constexpr (C::FORMAT == Format::BF16 || C::FORMAT == Format::F16) {
                    uint16_t code = C::FORMAT == Format::BF16 ? test::float_to_bf16(normal) : uint16_t((bits & 0x83ff) | (8 + bits / 1024 % 10) << 10);
                    value = C::FORMAT == Format::BF16 ? test::bf16_to_float(code) : test::f16_to_float(code);
                    std::memcpy(at + 2 * j, &code, 2);
                } else if constexpr (C::FORMAT == Format::FP8_E4M3) {
                    unsigned char code = bits & 0xff;
                    if ((code & 0x7f) == 0x7f) code ^= 1;   // not NaN; every other code, subnormals too
                    at[j] = code;
                    if constexpr (S::BLOCK_SCALES) {
                        const size_t index = size_t(tile) * S::SCALE_COLUMNS + k / 128;
                        if (g == 0 && k % 128 == 0) {
                            const float s = float(0.5 + random.uniform());
                            std::memcpy(&scales[index * 4], &s, 4);
                        }
                        std::memcpy(&d, &scales[index * 4], 4);
                    }
                    value = d * test::e4m3_to_float(code);
                } else if constexpr (C::FORMAT == Format::NVFP4) {
                    if (k % 16 == 0) unit_scales[g * 8 + within / 16] = (bits >> 8 & 0x7f) == 0x7f ? 0x38 : bits >> 8 & 0x7f;
                    d = test::e4m3_to_float(unit_scales[g * 8 + within / 16]);
                    reinterpret_cast<uint32_t*>(at)[j / 8] |= U::place(j, bits & 15);
                    value = test::e2m1_to_float(bits & 15) * d;
                } else {
                    const int block = within / 32, width = C::FORMAT == Format::Q8_0 ? 2 : 4;
                    if (k % 32 == 0) {
                        const uint16_t dm[2] = {uint16_t((bits & 0x3ff) | 0x2400), uint16_t((bits >> 10 & 0x83ff) | 0x2800)};
                        std::memcpy(unit_scales + (block * 8 + g) * width, dm, width);
                        d = test::f16_to_float(dm[0]);
                        m = test::f16_to_float(dm[1]);
                    }
                    if (C::FORMAT == Format::Q8_0) {
                        at[j] = bits >> 24;
                        value = d * float(static_cast<signed char>(bits >> 24));
                    } else {
                        at[j / 2] |= (bits >> 28) << (j % 2 * 4);
                        const volatile float product = d * float(bits >> 28);   // volatile: two roundings, never an fma
                        value = product + m;
                    }
                }
            }
        }
    }
};

inline double host_activate(monomorph::Activation a, double x) {
    switch (a) {
        case monomorph::Activation::SILU: return x / (1 + std::exp(-x));
        case monomorph::Activation::GELU: return 0.5 * x * (1 + std::erf(x / std::sqrt(2.0)));
        case monomorph::Activation::GELU_TANH: return 0.5 * x * (1 + std::tanh(std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)));
        case monomorph::Activation::RELU2: return std::max(x, 0.0) * std::max(x, 0.0);
        default: return std::max(x, 0.0);
    }
}

// One row of x as the product sees it. (Warps scale a row's parts each: what is subnormal in one scale and not in the other is 2^-29 below
// the largest.)
template <class C>
std::vector<double> host_stage(const float* x, const std::vector<float>& norm) {
    const int K = C::INPUTS;
    std::vector<double> staged(K);
    double squares = 0;
    for (int k = 0; k < K; k++) squares += double(x[k]) * x[k];
    const double inverse = 1 / std::sqrt(squares / K + double(C::EPS));
    for (int k = 0; k < K; k++) {
        const float w = C::NORM == monomorph::Norm::ONE_PLUS ? 1.0f + norm[k] : norm[k];
        if (C::COMPUTE == monomorph::Compute::F16)
            staged[k] = C::NORM == monomorph::Norm::NONE ? x[k] : x[k] * w * float(inverse);
        else
            staged[k] = C::NORM == monomorph::Norm::NONE ? x[k] : float(double(x[k]) * inverse * w);
    }
    if (C::COMPUTE == monomorph::Compute::F16) {
        const std::vector<float> row(staged.begin(), staged.end());
        const float scale = test::half_scale(row.data(), K);
        for (int k = 0; k < K; k++) staged[k] = test::round_f16(row[k] * scale) / scale;
    }
    if (C::ROUNDING == monomorph::Rounding::INT8_BLOCK32)
        for (int block = 0; block < K; block += 32) {
            float largest = 0;
            for (int i = 0; i < 32; i++) largest = std::max(largest, std::fabs(float(staged[block + i])));
            const float inverse = 127.0f / largest, scale = largest / 127.0f;
            for (int i = 0; i < 32; i++) staged[block + i] = largest == 0 ? 0.0f : scale * std::nearbyint(float(staged[block + i]) * inverse);
        }
    return staged;
}

template <class C>
void check(const char* name) {
    using S = monomorph::StreamShape<C>;
    constexpr bool exact = C::COMPUTE == monomorph::Compute::EXACT;
    static uint64_t seed = 1;
    test::Random random(seed++);
    const int rows = C::ALL_ROWS ? C::ALL_ROWS : C::ROWS, N = C::OUTPUTS, K = C::INPUTS;
    HostMatrix<C> matrix(random);
    std::vector<float> x(size_t(rows) * K), norm(K), bias(N), up_bias(N), before(size_t(rows) * N);
    for (auto& v : x) v = random.normal();
    for (auto& v : norm) v = 0.3f * random.normal() + (C::NORM == monomorph::Norm::PLAIN ? 1.0f : 0.0f);
    for (auto& v : bias) v = random.normal();
    for (auto& v : up_bias) v = random.normal();
    for (auto& v : before) v = random.normal() * 10;

    std::vector<double> reference(size_t(rows) * N);
    for (int t = 0; t < rows; t++) {
        const auto staged = host_stage<C>(&x[size_t(t) * K], norm);
        for (int n = 0; n < N; n++) {
            double value[2] = {};
            for (int p = 0; p < S::OUTPUT_PARTS; p++) {
                const int row = S::GATED ? (n / 8 * 2 + p) * 8 + n % 8 : n;
                double sum = 0;
                for (int k = 0; k < K; k++) sum += staged[k] * matrix.values[size_t(row) * K + k];
                value[p] = sum * matrix.row_scales[row] + (C::BIAS ? (p == 0 ? bias : up_bias)[n] : 0.0);
                if (exact) value[p] = float(value[p]);
            }
            reference[size_t(t) * N + n] = C::EPILOGUE == monomorph::Epilogue::GATED ? host_activate(C::ACTIVATION, value[0]) * value[1]
                                           : C::EPILOGUE == monomorph::Epilogue::ADD ? before[size_t(t) * N + n] + value[0] : value[0];
        }
    }

    while (matrix.scales.size() % 16) matrix.scales.push_back(0);
    test::Buffer<unsigned char> codes(matrix.codes), scales(matrix.scales);
    test::Buffer<float> x_at(x), norm_at(norm), row_scales(matrix.row_scales), bias_at(bias), up_at(up_bias), out(size_t(rows) * N);
    std::vector<int> header(sizeof(monomorph::Step) / 4);
    header[0] = header[2] = rows;
    test::Buffer<int> step(header);
    const auto run = [&] {
        out.poison();
        if (C::EPILOGUE == monomorph::Epilogue::ADD) out.upload(before);
        test::launch_clusters(monomorph::stream_product_kernel<C, S::THREADS, S::SHARED>, dim3(C::BLOCKS, (rows + C::ROWS - 1) / C::ROWS), S::SPLIT, S::THREADS, S::shared_bytes(), 0,
                     reinterpret_cast<const monomorph::Step*>(step.pointer), x_at.pointer, norm_at.pointer, codes.pointer, scales.pointer,
                     row_scales.pointer, bias_at.pointer, up_at.pointer, out.pointer);
        CHECK(cudaDeviceSynchronize());
        return test::compare(out.download(), reference);
    };
    // exact: f32's own rounding of gate and sum. With a norm, an f32 error of 1e-7 in 1 / rms takes one element in tens of thousands to the
    // neighbouring f16.
    const double limit = exact ? 6e-8 : C::NORM == monomorph::Norm::NONE ? 2e-5 : 1e-4;
    const auto first = run();
    const auto bits = out.download();
    test::report(name, first, limit, out.intact());
    run();
    if (std::memcmp(bits.data(), out.download().data(), out.bytes()) != 0) std::printf("FAIL %s: a second run differs\n", name), test::failures++;
    if (exact && first.unequal * 200 > reference.size()) std::printf("FAIL %s: %zu f32 results differ\n", name, first.unequal), test::failures++;
    // The defect: 16 bytes of every unit of the last real row.
    const int row = S::GATED ? ((N - 1) / 8 * 2 + 1) * 8 + (N - 1) % 8 : N - 1;
    for (int unit = 0; unit < S::TILE_UNITS; unit++)
        for (int i = 0; i < 16; i++) matrix.codes[((size_t(row / 8) * S::TILE_UNITS + unit) * 32 + row % 8 * 4) * 16 + i] ^= 0xc4;
    codes.upload(matrix.codes);
    const auto planted = run();
    if (planted.relative <= limit && planted.largest <= 8 * limit && planted.not_finite == 0) std::printf("FAIL %s: a planted defect was not seen\n", name), test::failures++;
}

// Two products of the same rows in one launch leave the bits of two launches, each of which is compared with the reference.
template <class C>
void check_beside(const char* name) {
    using namespace monomorph;
    using S = StreamShape<C>;
    using Beside = typename StreamBesideKernel<C, S::THREADS, 227 * 1024, 1>::CBeside;
    constexpr int SHARED = most(S::SHARED, StreamShape<Beside>::SHARED);
    check<C>(name), check<Beside>((std::string(name) + ", second").c_str());
    test::Random random(C::OUTPUTS);
    HostMatrix<C> first(random);
    HostMatrix<Beside> second(random);
    for (auto* scales : {&first.scales, &second.scales}) scales->resize((scales->size() + 15) / 16 * 16);
    std::vector<float> x(size_t(C::ROWS) * C::INPUTS), norm(C::INPUTS);
    for (auto& v : x) v = random.normal();
    for (auto& v : norm) v = random.normal();
    test::Buffer<float> x_at(x), norm_at(norm), row_scales(first.row_scales), second_row_scales(second.row_scales);
    test::Buffer<unsigned char> codes(first.codes), scales(first.scales), second_codes(second.codes), second_scales(second.scales);
    test::Buffer<float> out(size_t(C::ROWS) * C::OUTPUTS), second_out(size_t(C::ROWS) * Beside::OUTPUTS);
    test::Buffer<Step> step(1);
    const float* none = nullptr;
    test::launch(stream_product_kernel<C, S::THREADS, S::SHARED>, dim3(C::BLOCKS), S::THREADS, S::SHARED, 0, step.pointer, x_at.pointer, norm_at.pointer, codes.pointer, scales.pointer,
                 row_scales.pointer, none, none, out.pointer);
    test::launch(stream_product_kernel<Beside, S::THREADS, SHARED>, dim3(Beside::BLOCKS), S::THREADS, SHARED, 0, step.pointer, x_at.pointer, norm_at.pointer, second_codes.pointer,
                 second_scales.pointer, second_row_scales.pointer, none, none, second_out.pointer);
    CHECK(cudaDeviceSynchronize());
    const auto apart = out.download(), second_apart = second_out.download();
    out.poison(), second_out.poison();
    test::launch(stream_beside_kernel<C, S::THREADS, SHARED>, dim3(C::BLOCKS + Beside::BLOCKS), S::THREADS, SHARED, 0, step.pointer, x_at.pointer, norm_at.pointer, codes.pointer,
                 scales.pointer, row_scales.pointer, second_codes.pointer, second_scales.pointer, second_row_scales.pointer, out.pointer, second_out.pointer);
    CHECK(cudaDeviceSynchronize());
    const bool same = std::memcmp(apart.data(), out.download().data(), out.bytes()) == 0 && std::memcmp(second_apart.data(), second_out.download().data(), second_out.bytes()) == 0;
    std::printf("%s %s: one launch as two\n", same && out.intact() && second_out.intact() ? "ok  " : "FAIL", name);
    test::failures += !(same && out.intact() && second_out.intact());
}
