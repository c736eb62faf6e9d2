// Host side of the checks: random packed weights, the reference in double precision, each phase alone, both products in one launch behind the
// router's against the two launches, rows whose neighbours change, defects planted in experts that were chosen (they must be seen) and in others (they must not).
#pragma once
#include <memory>
#include <numeric>
#include "experts/experts_stream_case.cuh"
#include "products/stream_check.cuh"

// A packed matrix of plain floats and what it means.
struct PlainMatrix {
    std::vector<unsigned char> codes;
    std::vector<float> values;   // [rows][columns]
    template <monomorph::Format F>
    void fill(int rows, int columns, float size, test::Random& random) {
        using U = monomorph::Unit<F>;
        const int units = (columns + U::COLUMNS - 1) / U::COLUMNS;
        codes.assign(size_t(rows + 7) / 8 * units * 512, 0);
        values.resize(size_t(rows) * columns);
        for (int row = 0; row < rows; row++)
            for (int k = 0; k < columns; k++) {
                float& value = values[size_t(row) * columns + k];
                value = size * random.normal();
                const int within = k % U::COLUMNS;
                unsigned char* at = &codes[((size_t(row / 8) * units + k / U::COLUMNS) * 32 + row % 8 * 4 + U::lane_of(within)) * 16 + U::element_of(within) * U::BITS / 8];
                if (F == monomorph::Format::F32) {
                    std::memcpy(at, &value, 4);
                } else {
                    const uint16_t code = test::float_to_bf16(value);
                    value = test::bf16_to_float(code);
                    std::memcpy(at, &code, 2);
                }
            }
    }
};

template <class K>
struct DownMatrix : CheckDefaults {
    static constexpr monomorph::Format FORMAT = K::FORMAT;
    static constexpr monomorph::Compute COMPUTE = K::COMPUTE;
    static constexpr monomorph::Rounding ROUNDING = K::ROUNDING;
    static constexpr monomorph::ScaleForm SCALES = K::SCALES;
    static constexpr int OUTPUTS = K::HIDDEN, INPUTS = K::WIDTH;
};
template <class K>
struct SharedDownMatrix : DownMatrix<K> {
    static constexpr monomorph::Format FORMAT = K::SHARED_FORMAT;
    static constexpr monomorph::ScaleForm SCALES = K::SHARED_SCALES;
    static constexpr int INPUTS = K::SHARED_WIDTH;
};

// The planes of some matrices one behind the other, on the device.
template <class M>
struct DevicePlanes {
    std::vector<unsigned char> codes, scales;
    std::vector<float> row_scales;
    std::unique_ptr<test::Buffer<unsigned char>> codes_at, scales_at;
    std::unique_ptr<test::Buffer<float>> row_scales_at;
    void add(const HostMatrix<M>& matrix) {
        codes.insert(codes.end(), matrix.codes.begin(), matrix.codes.end());
        scales.insert(scales.end(), matrix.scales.begin(), matrix.scales.end());
        row_scales.insert(row_scales.end(), matrix.row_scales.begin(), matrix.row_scales.end());
    }
    Planes upload() {
        while (scales.size() % 16) scales.push_back(0);
        codes_at = std::make_unique<test::Buffer<unsigned char>>(codes);
        scales_at = std::make_unique<test::Buffer<unsigned char>>(scales);
        row_scales_at = std::make_unique<test::Buffer<float>>(row_scales);
        return {codes_at->pointer, scales_at->pointer, row_scales_at->pointer};
    }
};

// As compiler/src/blocks/experts/reference.rs: [weights | ids], of a row of the router's.
template <class K>
std::vector<float> host_route(const float* logits) {
    std::vector<int> order(K::EXPERTS);
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(), [&](int a, int b) { return logits[a] > logits[b]; });
    double all = 0;
    for (int i = 0; i < (K::RENORMALISE ? K::ACTIVE : K::EXPERTS); i++) all += std::exp(double(logits[order[i]]) - logits[order[0]]);
    std::vector<float> row(2 * K::ACTIVE);
    for (int i = 0; i < K::ACTIVE; i++) {
        const float scale = K::EXPERT_SCALES ? logits[K::EXPERTS + order[i]] : 1.0f;
        row[i] = float(std::exp(double(logits[order[i]]) - logits[order[0]]) / all) * scale, row[K::ACTIVE + i] = float(order[i]);
    }
    return row;
}

template <class K>
struct ExpertsCheck {
    using UpMatrix = typename monomorph::UpShape<UpOf<K>>::Product;
    using SharedUp = RouteOf<K>;
    static constexpr bool EXACT = K::COMPUTE == monomorph::Compute::EXACT, COMMON = K::SHARED_WIDTH > 0;
    static constexpr int T = K::ROWS, H = K::HIDDEN, SLOTS = K::ACTIVE * K::WIDTH;
    const char* name;
    test::Random random;
    PlainMatrix router, scale_row;
    std::vector<std::unique_ptr<HostMatrix<UpMatrix>>> ups;
    std::vector<std::unique_ptr<HostMatrix<DownMatrix<K>>>> downs;
    DevicePlanes<UpMatrix> up_planes;
    DevicePlanes<DownMatrix<K>> down_planes;
    std::vector<float> norm, expert_scales;
    std::vector<int> header;
    std::unique_ptr<test::Buffer<unsigned char>> router_at, scale_row_at;
    std::unique_ptr<test::Buffer<float>> norm_at, expert_scales_at;
    std::unique_ptr<test::Buffer<int>> step;
    Layer layer;

    ExpertsCheck(const char* name, uint64_t seed) : name(name), random(seed), norm(H), header(sizeof(monomorph::Step) / 4) {
        router.fill<K::ROUTER>(K::EXPERTS, H, 1.0f / std::sqrt(float(H)), random);
        scale_row.fill<monomorph::Format::BF16>(1, H, 1.0f / std::sqrt(float(H)), random);
        for (auto& v : norm) v = 0.3f * random.normal() + (K::NORM == monomorph::Norm::PLAIN ? 1.0f : 0.0f);
        for (int e = 0; e < K::EXPERTS; e++) {
            ups.push_back(std::make_unique<HostMatrix<UpMatrix>>(random));
            downs.push_back(std::make_unique<HostMatrix<DownMatrix<K>>>(random));
            // Codes have one scale an expert and part, as checkpoints have them; floats in f16 one a row.
            if (K::FORMAT != monomorph::Format::F16) {
                auto& up = ups.back()->row_scales;
                auto& down = downs.back()->row_scales;
                for (size_t row = 16; row < up.size(); row++) up[row] = up[row / 8 % 2 * 8];
                for (size_t row = 0; row < 16; row++) up[row] = up[row / 8 * 8];
                for (auto& s : down) s = down[0];
            }
            up_planes.add(*ups.back());
            down_planes.add(*downs.back());
        }
        layer.up = up_planes.upload();
        layer.down = down_planes.upload();
        router_at = std::make_unique<test::Buffer<unsigned char>>(router.codes);
        scale_row_at = std::make_unique<test::Buffer<unsigned char>>(scale_row.codes);
        norm_at = std::make_unique<test::Buffer<float>>(norm);
        for (int e = 0; e < K::EXPERTS; e++) expert_scales.push_back(float(0.25 + 2 * random.uniform()));
        expert_scales_at = std::make_unique<test::Buffer<float>>(expert_scales);
        layer.router = router_at->pointer, layer.scale_row = scale_row_at->pointer, layer.norm = norm_at->pointer, layer.expert_scales = expert_scales_at->pointer;
        header[0] = K::TOKENS;
        step = std::make_unique<test::Buffer<int>>(header);
    }
    std::vector<float> normals(size_t rows, int width, double scale) {   // rows not in use hold NaN
        std::vector<float> values(size_t(T) * width, NAN);
        for (size_t i = 0; i < rows * width; i++) values[i] = float(scale * random.normal());
        return values;
    }
    void done() {
        CHECK(cudaGetLastError());
        CHECK(cudaDeviceSynchronize());
    }
    void expect(bool right, const char* what) {
        if (right) return;
        std::printf("FAIL %s: %s\n", name, what);
        test::failures++;
    }
    // Compares the rows in use; those that are not must be as they were.
    bool compare(const char* what, const std::vector<float>& out, const std::vector<double>& reference, int width, double limit, bool intact, bool quiet = false) {
        const std::vector<float> used(out.begin(), out.begin() + size_t(K::TOKENS) * width);
        const test::Difference d = test::compare(used, reference);
        if (quiet) return d.relative <= limit && d.largest <= 8 * limit && d.not_finite == 0;
        for (size_t i = used.size(); i < out.size(); i++) intact = intact && std::isnan(out[i]);
        if (EXACT && d.unequal * 200 > reference.size()) expect(false, "f32 results differ from the reference's");
        return test::report((std::string(name) + " " + what).c_str(), d, limit, intact);
    }
    static double dot(const std::vector<double>& x, const float* w, int columns) {
        double sum = 0;
        for (int k = 0; k < columns; k++) sum += x[k] * w[k];
        return sum;
    }
    static double kept(double value) { return EXACT ? double(float(value)) : value; }   // where the exact reference rounds to f32
    template <class M>
    static double gated(const HostMatrix<M>& matrix, const std::vector<double>& x, int feature) {
        double value[2];
        for (int part = 0; part < 2; part++) {
            const size_t row = size_t(feature / 8 * 2 + part) * 8 + feature % 8;
            value[part] = kept(dot(x, &matrix.values[row * M::INPUTS], M::INPUTS) * matrix.row_scales[row]);
        }
        return host_activate(K::ACTIVATION, value[0]) * value[1];
    }
    template <class M>
    static double ungated(const HostMatrix<M>& matrix, const std::vector<double>& x, int feature) {
        return host_activate(K::ACTIVATION, kept(dot(x, &matrix.values[size_t(feature) * M::INPUTS], M::INPUTS) * matrix.row_scales[feature]));
    }
    // A row that a product without a norm reads.
    template <class M>
    static std::vector<double> rounded(const float* x) { return host_stage<M>(x, std::vector<float>(M::INPUTS)); }

    std::vector<double> reference_up(const std::vector<float>& x, const std::vector<float>& routing) const {
        std::vector<double> out;
        for (int t = 0; t < K::TOKENS; t++) {
            const auto staged = host_stage<UpMatrix>(&x[size_t(t) * H], norm);
            for (int s = 0; s < K::ACTIVE; s++)
                for (int i = 0; i < K::WIDTH; i++) {
                    const auto& matrix = *ups[size_t(routing[(t * 2 + 1) * K::ACTIVE + s])];
                    out.push_back(K::UNGATED ? ungated(matrix, staged, i) : gated(matrix, staged, i));
                }
        }
        return out;
    }
    std::vector<double> reference_down(const std::vector<float>& inner, const std::vector<float>& routing, const HostMatrix<SharedDownMatrix<K>>* shared,
                                       const std::vector<float>& shared_inner, const std::vector<float>& scale, const std::vector<float>& residual) const {
        std::vector<double> out;
        for (int t = 0; t < K::TOKENS; t++) {
            std::vector<double> sums(H);
            for (int s = 0; s < K::ACTIVE; s++) {
                const auto x = rounded<DownMatrix<K>>(&inner[size_t(t) * SLOTS + s * K::WIDTH]);
                const auto& matrix = *downs[size_t(routing[(t * 2 + 1) * K::ACTIVE + s])];
                for (int i = 0; i < H; i++) sums[i] += routing[t * 2 * K::ACTIVE + s] * kept(dot(x, &matrix.values[size_t(i) * K::WIDTH], K::WIDTH) * matrix.row_scales[i]);
            }
            if constexpr (COMMON) {
                const auto x = rounded<SharedDownMatrix<K>>(&shared_inner[size_t(t) * K::SHARED_WIDTH]);
                for (int i = 0; i < H; i++) {
                    const double y = kept(dot(x, &shared->values[size_t(i) * K::SHARED_WIDTH], K::SHARED_WIDTH) * shared->row_scales[i]);
                    sums[i] = kept(kept(sums[i]) + kept(y / (1 + std::exp(-double(scale[t])))));
                }
            }
            for (int i = 0; i < H; i++) out.push_back(kept((K::REPLACES ? 0.0 : residual[size_t(t) * H + i]) + kept(sums[i])));
        }
        return out;
    }
    // Flips bits of one expert's codes on the device, and back.
    template <class M>
    void plant(DevicePlanes<M>& planes, int expert) {
        const size_t bytes = planes.codes.size() / K::EXPERTS;
        for (size_t i = 0; i < 512; i++) planes.codes[expert * bytes + i] ^= 0x44;
        planes.codes_at->upload(planes.codes);
    }
    void run();
    void check_route(const std::vector<float>& x);
    void check_up(const std::vector<float>& x);
    void check_down();
    void check_both(const std::vector<float>& x);
};

template <class K>
void ExpertsCheck<K>::check_route(const std::vector<float>& x) {
    const double limit = EXACT ? 6e-8 : 5e-6;
    constexpr int ROW = ROUTER_ROW<K>;
    test::Buffer<float> x_at(x), logits(size_t(T) * ROW), scale(T), inner(size_t(T) * std::max(K::SHARED_WIDTH, 1));
    std::unique_ptr<HostMatrix<SharedUp>> shared;
    DevicePlanes<SharedUp> planes;
    if constexpr (COMMON) {
        shared = std::make_unique<HostMatrix<SharedUp>>(random);
        planes.add(*shared);
        layer.shared_up = planes.upload();
    }
    test::Buffer<float> arriving(size_t(T) * SLOTS);
    const auto launch = [&] {
        logits.poison(), scale.poison(), inner.poison(), arriving.poison();
        launch_route<K>(0, step->pointer, x_at, layer, logits, scale, inner, arriving);
        done();
    };
    launch();
    if (ExpertsTogether<K>) {
        bool none = arriving.intact();
        for (const float value : arriving.download()) none = none && std::memcmp(&value, &monomorph::NOT_YET, 4) == 0;
        expect(none, "values that have not arrived do not say so");
    }
    std::vector<double> logits_reference, scale_reference, inner_reference;
    for (int t = 0; t < K::TOKENS; t++) {
        const float* row = &x[size_t(t) * H];
        double squares = 0;
        for (int k = 0; k < H; k++) squares += double(row[k]) * row[k];
        std::vector<double> n(H);
        for (int k = 0; k < H; k++) n[k] = kept(row[k] / std::sqrt(squares / H + double(K::EPS)) * (K::NORM == monomorph::Norm::ONE_PLUS ? 1.0f + norm[k] : norm[k]));
        std::vector<double> read(n);
        for (auto& v : read) v = kept(v * double(K::FACTOR));
        for (int e = 0; e < K::EXPERTS; e++) logits_reference.push_back(dot(read, &router.values[size_t(e) * H], H));
        scale_reference.push_back(dot(n, scale_row.values.data(), H));
        if constexpr (COMMON) {
            const auto staged = host_stage<SharedUp>(row, norm);
            for (int i = 0; i < K::SHARED_WIDTH; i++) inner_reference.push_back(gated(*shared, staged, i));
        }
    }
    // All rows of a bucket are computed where a block has them all.
    const auto used = [&](std::vector<float> out, int width) { return RouteOf<K>::LIMIT == monomorph::Limit::NONE ? std::fill(out.begin() + size_t(K::TOKENS) * width, out.end(), NAN), out : out; };
    // An array of all rows: keys, or the scales behind them.
    const auto array = [&](const std::vector<float>& rows, int which) {
        std::vector<float> out;
        for (int t = 0; t < T; t++) out.insert(out.end(), rows.begin() + size_t(t) * ROW + which * K::EXPERTS, rows.begin() + size_t(t) * ROW + (which + 1) * K::EXPERTS);
        return out;
    };
    compare("logits", used(array(logits.download(), 0), K::EXPERTS), logits_reference, K::EXPERTS, limit, logits.intact());
    if (K::EXPERT_SCALES) {
        const auto scales = array(logits.download(), 1);
        for (int t = 0; t < K::TOKENS; t++) expect(std::equal(expert_scales.begin(), expert_scales.end(), scales.begin() + size_t(t) * K::EXPERTS), "scales of experts behind their logits");
    }
    if (COMMON) {
        compare("scale", used(scale.download(), 1), scale_reference, 1, 4 * limit, scale.intact());
        compare("shared gate-up", used(inner.download(), K::SHARED_WIDTH), inner_reference, K::SHARED_WIDTH, EXACT ? 6e-8 : 3e-4, inner.intact());
    }
    router.codes[3] ^= 0x10;
    router_at->upload(router.codes);
    launch();
    expect(!compare("", array(logits.download(), 0), logits_reference, K::EXPERTS, limit, true, true), "a planted router weight was not seen");
    router.codes[3] ^= 0x10;
    router_at->upload(router.codes);
}

template <class K>
void ExpertsCheck<K>::check_up(const std::vector<float>& x) {
    const double limit = EXACT ? 6e-8 : 3e-4;
    constexpr int ROW = ROUTER_ROW<K>;
    std::vector<float> logits = normals(K::TOKENS, ROW, 1.5);
    logits[K::EXPERTS - 1] = logits[0] = logits[1] = 5.0f;   // equals: the lowest ids first
    if (K::TOKENS > 1) std::copy_n(logits.begin(), ROW, logits.begin() + ROW);
    test::Buffer<float> x_at(x), logits_at(logits), inner(size_t(T) * SLOTS), routing(size_t(T) * 2 * K::ACTIVE);
    const auto launch = [&] {
        inner.poison(), routing.poison();
        launch_up<K>(0, step->pointer, x_at, logits_at, layer, inner, routing);
        done();
        return inner.download();
    };
    const auto first = launch();
    const auto routed = routing.download();
    std::vector<double> reference;
    std::vector<float> weights(size_t(T) * K::ACTIVE, NAN);
    bool ids = true;
    for (int t = 0; t < K::TOKENS; t++) {
        const auto row = host_route<K>(&logits[size_t(t) * ROW]);
        for (int i = 0; i < 2 * K::ACTIVE; i++) {
            const float is = routed[size_t(t) * 2 * K::ACTIVE + i];
            if (i < K::ACTIVE) reference.push_back(row[i]), weights[size_t(t) * K::ACTIVE + i] = is;
            else ids = ids && is == row[i];
        }
    }
    for (size_t i = size_t(K::TOKENS) * 2 * K::ACTIVE; i < routed.size(); i++) ids = ids && std::isnan(routed[i]);
    expect(ids, "experts or their order");
    if (!ids) return;
    compare("weights", weights, reference, K::ACTIVE, EXACT ? 6e-8 : 1e-6, routing.intact());
    const auto expected = reference_up(x, routed);
    compare("gate-up", first, expected, SLOTS, limit, inner.intact());
    expect(std::memcmp(first.data(), launch().data(), first.size() * 4) == 0, "a second run of gate-up differs");

    const int chosen = int(routed[K::ACTIVE]);
    int other = -1;
    for (int e = 0; e < K::EXPERTS; e++) {
        bool met = false;
        for (int t = 0; t < K::TOKENS; t++)
            for (int s = 0; s < K::ACTIVE; s++) met = met || routed[(t * 2 + 1) * K::ACTIVE + s] == float(e);
        if (!met) other = e;
    }
    plant(up_planes, chosen);
    expect(!compare("", launch(), expected, SLOTS, limit, true, true), "a defect planted in a chosen expert was not seen");
    plant(up_planes, chosen);
    if (other >= 0) {
        plant(up_planes, other);
        expect(std::memcmp(first.data(), launch().data(), first.size() * 4) == 0, "an expert that nobody chose changed the result");
        plant(up_planes, other);
    }
    if (K::TOKENS > 1) {   // row 0's neighbours change
        auto x2 = normals(K::TOKENS, H, 1.0), logits2 = normals(K::TOKENS, ROW, 1.5);
        std::copy_n(x.begin(), H, x2.begin());
        std::copy_n(logits.begin(), ROW, logits2.begin());
        x_at.upload(x2), logits_at.upload(logits2);
        expect(std::memcmp(first.data(), launch().data(), SLOTS * 4) == 0, "gate-up of a row depends on its neighbours");
    }
}

template <class K>
void ExpertsCheck<K>::check_down() {
    const double limit = EXACT ? 6e-8 : 2e-5;
    std::vector<float> routing(size_t(T) * 2 * K::ACTIVE, NAN);
    const auto route = [&](int t) {
        std::vector<float> logits(ROUTER_ROW<K>);
        for (auto& v : logits) v = 1.5f * random.normal();
        const auto row = host_route<K>(logits.data());
        std::copy(row.begin(), row.end(), routing.begin() + size_t(t) * 2 * K::ACTIVE);
    };
    for (int t = 0; t < K::TOKENS; t++) route(t);
    auto inner = normals(K::TOKENS, SLOTS, 1.0), shared_inner = normals(K::TOKENS, std::max(K::SHARED_WIDTH, 1), 3.0), scale = normals(K::TOKENS, 1, 1.0);
    auto residual = normals(K::TOKENS, H, 1.0);
    std::unique_ptr<HostMatrix<SharedDownMatrix<K>>> shared;
    DevicePlanes<SharedDownMatrix<K>> planes;
    if constexpr (COMMON) {
        shared = std::make_unique<HostMatrix<SharedDownMatrix<K>>>(random);
        planes.add(*shared);
        layer.shared_down = planes.upload();
    }
    test::Buffer<float> inner_at(inner), routing_at(routing), shared_at(shared_inner), scale_at(scale), out(size_t(T) * H);
    const auto launch = [&] {
        out.poison();
        out.upload(residual);
        launch_down<K>(0, step->pointer, inner_at, routing_at, shared_at, scale_at, layer, out);
        done();
        return out.download();
    };
    const auto first = launch();
    const auto expected = reference_down(inner, routing, shared.get(), shared_inner, scale, residual);
    compare("down", first, expected, H, limit, out.intact());
    expect(std::memcmp(first.data(), launch().data(), first.size() * 4) == 0, "a second run of down differs");
    const int chosen = int(routing[K::ACTIVE]);
    plant(down_planes, chosen);
    expect(!compare("", launch(), expected, H, limit, true, true), "a defect planted in a chosen expert's down was not seen");
    plant(down_planes, chosen);
    if (COMMON) {
        const auto plant_shared = [&] {
            for (size_t i = 0; i < 512; i++) planes.codes[i] ^= 0x44;
            planes.codes_at->upload(planes.codes);
        };
        plant_shared();
        expect(!compare("", launch(), expected, H, limit, true, true), "a defect planted in the shared expert's down was not seen");
        plant_shared();
    }
    if (K::TOKENS > 1) {
        auto inner2 = normals(K::TOKENS, SLOTS, 0.5);
        std::copy_n(inner.begin(), SLOTS, inner2.begin());
        for (int t = 1; t < K::TOKENS; t++) route(t);
        inner_at.upload(inner2), routing_at.upload(routing);
        expect(std::memcmp(first.data(), launch().data(), H * 4) == 0, "down of a row depends on its neighbours");
    }
}

// Behind the router's kernel, some times over: the same bits as from the two launches, whatever stood in `inner` before.
template <class K>
void ExpertsCheck<K>::check_both(const std::vector<float>& x) {
    std::unique_ptr<HostMatrix<SharedUp>> shared_up;
    std::unique_ptr<HostMatrix<SharedDownMatrix<K>>> shared_down;
    DevicePlanes<SharedUp> up;
    DevicePlanes<SharedDownMatrix<K>> down;
    if constexpr (COMMON) {
        shared_up = std::make_unique<HostMatrix<SharedUp>>(random);
        up.add(*shared_up);
        layer.shared_up = up.upload();
        shared_down = std::make_unique<HostMatrix<SharedDownMatrix<K>>>(random);
        down.add(*shared_down);
        layer.shared_down = down.upload();
    }
    test::Buffer<float> logits(size_t(T) * ROUTER_ROW<K>), scale(T), shared_inner(size_t(T) * std::max(K::SHARED_WIDTH, 1)), inner(size_t(T) * SLOTS), routing(size_t(T) * 2 * K::ACTIVE);
    test::Buffer<float> out(size_t(T) * H);
    const auto run = [&](bool together) {
        out.poison(), inner.poison();
        out.upload(x);
        for (int again = 0; again < 3; again++) {   // the residual is the next x
            launch_route<K>(0, step->pointer, out, layer, logits, scale, shared_inner, inner);
            if (together) {
                launch_both<K>(0, step->pointer, logits, shared_inner, scale, layer, inner, out);
            } else {
                launch_up<K>(0, step->pointer, out, logits, layer, inner, routing);
                launch_down<K>(0, step->pointer, inner, routing, shared_inner, scale, layer, out);
            }
        }
        done();
        return out.download();
    };
    const auto same = [&](const std::vector<float>& a, const std::vector<float>& b) { return std::memcmp(a.data(), b.data(), size_t(K::TOKENS) * H * 4) == 0; };
    const auto apart = run(false), together = run(true);
    expect(same(apart, together), "both products in one launch differ from two launches");
    expect(std::memcmp(together.data() + size_t(K::TOKENS) * H, apart.data() + size_t(K::TOKENS) * H, size_t(T - K::TOKENS) * H * 4) == 0 && out.intact(), "one launch wrote beyond its rows");
    const int chosen = int(routing.download()[K::ACTIVE]);
    plant(down_planes, chosen);
    expect(!same(apart, run(true)), "a defect planted in a chosen expert's down was not seen in one launch");
    plant(down_planes, chosen);
}

template <class K>
void ExpertsCheck<K>::run() {
    const auto x = normals(K::TOKENS, H, 1.0);
    check_route(x);
    check_up(x);
    check_down();
    if constexpr (ExpertsTogether<K>) check_both(x);
}

template <class K>
void check_experts(const char* name) {
    static uint64_t seed = 100;
    ExpertsCheck<K>(name, seed++).run();
}
