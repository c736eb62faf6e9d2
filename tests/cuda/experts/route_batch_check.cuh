// Router logits of many tokens (templates/cuda/experts/route_batch.cuh) against double precision: the divisions for few and for many tokens, steps that
// fill no block, rows with scales of experts and a factor, and a planted weight.
#pragma once
#include "experts/experts_stream_check.cuh"
#include "kernels/route_batch.cuh"
#include "kernels/route_batch_scales.cuh"

template <int OUTPUTS_, int INPUTS_, monomorph::Norm N, int TOKENS_, int TILES_, int K_WARPS_>
struct RouteOfMany {
    static constexpr int OUTPUTS = OUTPUTS_, INPUTS = INPUTS_, TOKENS = TOKENS_, TILES = TILES_, K_WARPS = K_WARPS_;
    static constexpr int BLOCKS = (OUTPUTS + 16 * TILES - 1) / (16 * TILES);
    static constexpr monomorph::Norm NORM = N;
    static constexpr float EPS = 1e-6f;
    static constexpr monomorph::Limit LIMIT = monomorph::Limit::TOKENS;
};
// With scales of experts behind the logits, and a factor of what is read.
template <class Base>
struct ScaledRoute : Base {
    static constexpr bool SCORED = false, EXPERT_SCALES = true;
    static constexpr float FACTOR = 0.0221f;
};

template <class C>
void check_route_batch(const char* name, int capacity, std::vector<int> token_counts) {
    using S = monomorph::RouteBatchShape<C>;
    using Row = monomorph::RouterRow<false, monomorph::EXPERTS_SCALED<C>>;
    constexpr int ROW = Row::floats(C::OUTPUTS);
    test::Random random(C::OUTPUTS + capacity);
    PlainMatrix router;
    router.fill<monomorph::Format::BF16>(C::OUTPUTS, C::INPUTS, 1 / std::sqrt(float(C::INPUTS)), random);
    std::vector<float> norm(C::INPUTS), x(size_t(capacity) * C::INPUTS);
    for (auto& v : norm) v = 0.3f * random.normal() + (C::NORM == monomorph::Norm::PLAIN ? 1.0f : 0.0f);
    for (auto& v : x) v = 2 * random.normal();
    test::Buffer<unsigned char> router_at(router.codes);
    std::vector<float> scales(C::OUTPUTS);
    for (auto& v : scales) v = float(0.25 + random.uniform());
    test::Buffer<float> norm_at(norm), x_at(x), scales_at(scales), rows(size_t(capacity) * ROW);
    std::vector<double> reference;
    for (int t = 0; t < capacity; t++) {
        const float* row = &x[size_t(t) * C::INPUTS];
        double squares = 0;
        for (int k = 0; k < C::INPUTS; k++) squares += double(row[k]) * row[k];
        for (int e = 0; e < C::OUTPUTS; e++) {
            double sum = 0;
            for (int k = 0; k < C::INPUTS; k++) sum += double(row[k]) * (C::NORM == monomorph::Norm::ONE_PLUS ? 1.0f + norm[k] : norm[k]) * router.values[size_t(e) * C::INPUTS + k];
            reference.push_back(sum / std::sqrt(squares / C::INPUTS + double(C::EPS)) * double(monomorph::FACTOR_OF<C>));
        }
    }
    const auto run = [&](int tokens) {
        monomorph::Step header = {};
        header.tokens = tokens;
        test::Buffer<monomorph::Step> step(std::vector<monomorph::Step>{header});
        rows.poison();
        const dim3 grid(C::BLOCKS, (capacity + C::TOKENS - 1) / C::TOKENS);
        if constexpr (Row::SCALED)
            test::launch(monomorph::route_batch_scales_kernel<C, S::THREADS, S::SHARED>, grid, S::THREADS, S::SHARED, 0, step.pointer, x_at.pointer, norm_at.pointer, router_at.pointer,
                         rows.pointer, static_cast<const float*>(nullptr), scales_at.pointer);
        else
            test::launch(monomorph::route_batch_kernel<C, S::THREADS, S::SHARED>, grid, S::THREADS, S::SHARED, 0, step.pointer, x_at.pointer, norm_at.pointer, router_at.pointer, rows.pointer);
        CHECK(cudaDeviceSynchronize());
        // The logits; scales must stand behind those of rows that are written.
        std::vector<float> out;
        const auto all = rows.download();
        for (int t = 0; t < capacity; t++) {
            const float* row = &all[size_t(t) * ROW];
            out.insert(out.end(), row, row + C::OUTPUTS);
            if (Row::SCALED && !(t < tokens ? std::equal(scales.begin(), scales.end(), row + C::OUTPUTS) : std::isnan(row[C::OUTPUTS])))
                std::printf("FAIL %s: scales of row %d\n", name, t), test::failures++;
        }
        return out;
    };
    const double limit = 2e-6 * std::max(1.0, C::INPUTS / 500.0);   // as products on tensor cores
    const auto expected = [&](int tokens) { return std::vector<double>(reference.begin(), reference.begin() + size_t(tokens) * C::OUTPUTS); };
    const auto whole = run(capacity);
    for (int tokens : token_counts) {
        const auto out = run(tokens);
        const size_t used = size_t(tokens) * C::OUTPUTS;
        // Rows beyond the step are not written, and the others do not depend on how many there are.
        bool intact = rows.intact() && std::memcmp(out.data(), whole.data(), used * 4) == 0;
        for (size_t i = used; i < out.size(); i++) intact = intact && std::isnan(out[i]);
        test::report((std::string(name) + ", " + std::to_string(tokens) + " tokens").c_str(), test::compare(out, expected(tokens)), limit, intact);
    }
    router.codes[1] ^= 0x40;
    router_at.upload(router.codes);
    const auto planted = test::compare(run(capacity), reference);
    if (planted.relative <= limit && planted.not_finite == 0) std::printf("FAIL %s: a planted weight was not seen\n", name), test::failures++;
}

inline void check_route_batches() {
    using monomorph::Norm;
    check_route_batch<RouteOfMany<264, 2048, Norm::ONE_PLUS, 16, 1, 8>>("route, 264 rows of 2048, K shared out", 64, {64, 17, 1});
    check_route_batch<RouteOfMany<45, 100, Norm::PLAIN, 16, 1, 8>>("route, 45 rows of 100, K shared out", 32, {20, 0});
    check_route_batch<ScaledRoute<RouteOfMany<45, 100, Norm::PLAIN, 16, 1, 8>>>("route, 45 rows of 100 and scales, K shared out", 32, {20, 0});
    check_route_batch<ScaledRoute<RouteOfMany<128, 704, Norm::PLAIN, 64, 8, 1>>>("route, 128 rows of 704 and scales, one block", 128, {128, 65});
    check_route_batch<RouteOfMany<264, 2048, Norm::PLAIN, 64, 17, 1>>("route, 264 rows of 2048, one block", 320, {320, 129});
    check_route_batch<RouteOfMany<520, 1028, Norm::ONE_PLUS, 64, 17, 1>>("route, 520 rows of 1028, two blocks", 128, {128, 65});
}
