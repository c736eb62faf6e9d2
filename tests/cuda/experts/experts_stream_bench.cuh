// Times of the mixture of experts for few tokens at the shapes of real models: each phase over and over, every time with other experts of
// other layers, and the chain of the three, in graphs with dependent launch on every edge. "limit" is what must be read over READ_RATE.
//
// Predicted for 35B-A3B (hidden 2048, 256 experts of 512, 8 chosen, one shared), one token, by docs/performance-h200-kernels.md: a boundary with
// dependent launch costs 0.9 us until the next kernel passes its wait, its x 0.7 us more; a phase whose ring cannot be filled before the wait
// pays a memory latency of about 1 us on top, and choosing 8 of 256 in a warp about 0.4 us. Bytes over the rate: route 0.5 (nvfp4), 0.7 (fp8),
// 1.2 us (bf16); up 2.1, 3.7, 7.4; down 1.2, 2.1, 4.2.
//   three phases (these kernels)                      nvfp4 2.4 + 4.6 + 3.4 = 10.4 us, fp8 2.5 + 6.2 + 4.3 = 13.0, bf16 2.6 + 9.9 + 6.4 = 18.9
//   router in the phase before (o product)            a row's logits need the whole norm, so a counter all blocks meet: 1.0 us for 2.4, saves 1.4
//   up and down in one kernel, inner as its own flag  saves a boundary (0.9) and the fill of the second ring (1.0): 8.5, 11.1, 17.0
//   all three in one, logits as flags too             6.5, 9.1, 15.0 at the best, as resident blocks of all three must share the ring
// Four times the tokens choose up to four times the experts: up and down grow by the bytes alone (T = 4, fp8: 6.2 + 3 x 3.6 = 17 us).
#pragma once
#include <set>
#include "experts/experts_stream_case.cuh"
#include "products/stream_bench.cuh"

// Real shapes. F of the experts and the shared one; block scales with fp8.
template <monomorph::Format F, int E, int A, int W, int SHARED, int H, int T, int STAGES_>
struct RealExperts : ExpertsDefaults {
    static constexpr monomorph::Format FORMAT = F, SHARED_FORMAT = F;
    static constexpr monomorph::ScaleForm SCALES = F == monomorph::Format::FP8_E4M3 ? monomorph::ScaleForm::BLOCK128
                                                 : F == monomorph::Format::NVFP4 ? monomorph::ScaleForm::ROWS : monomorph::ScaleForm::NONE;
    static constexpr monomorph::ScaleForm SHARED_SCALES = SCALES;
    static constexpr int EXPERTS = E, ACTIVE = A, WIDTH = W, SHARED_WIDTH = SHARED, HIDDEN = H, ROWS = T, TOKENS = T, STAGES = STAGES_;
    static constexpr int ROUTER_BLOCKS = SHARED > 0 ? 67 : 128;
};

// Bytes of the planes of one matrix as the stream config M has it.
template <class M>
struct MatrixBytes {
    using S = monomorph::StreamShape<M>;
    static constexpr size_t TILES = size_t(S::GRANULES) * S::GRANULE, CODES = TILES * S::UNITS * 512;
    static constexpr size_t SCALES = TILES * (S::BLOCK_SCALES ? S::SCALE_COLUMNS * 4 : S::UNITS * S::U::SCALE_BYTES);
};

template <class K>
struct ExpertsBench {
    static constexpr int LAYERS = 4, LAUNCHES = 24, T = K::ROWS;
    using Up = MatrixBytes<typename monomorph::UpShape<UpOf<K>>::Product>;
    struct DownConfig : Timed<Variant<4>, K::FORMAT, K::HIDDEN, K::WIDTH, 1, monomorph::Norm::NONE, monomorph::Epilogue::STORE> {
        static constexpr monomorph::ScaleForm SCALES = K::SCALES;
    };
    struct SharedUpConfig : Timed<Variant<4>, K::SHARED_FORMAT, K::SHARED_WIDTH, K::HIDDEN, 1, monomorph::Norm::NONE, monomorph::Epilogue::GATED> {
        static constexpr monomorph::ScaleForm SCALES = K::SHARED_SCALES;
    };
    using Down = MatrixBytes<DownConfig>;
    static constexpr size_t ROUTER = size_t(K::EXPERTS + 7) / 8 * 8 * K::HIDDEN * 2;
    static size_t shared_up_bytes() {
        if constexpr (K::SHARED_WIDTH > 0) return MatrixBytes<SharedUpConfig>::CODES + MatrixBytes<SharedUpConfig>::SCALES;
        else return 0;
    }
    char* weights = nullptr;   // one pool: each plane of a layer a slice of it
    char* scales = nullptr;    // likewise
    float* row_scales = nullptr;
    size_t layer_codes, layer_scales;
    Layer layers[LAYERS];
    float *x, *norm, *logits, *routing, *scale, *inner, *shared_inner;
    int* step;
    cudaStream_t stream;

    ExpertsBench() {
        CHECK(cudaStreamCreate(&stream));
        const size_t shared_codes = size_t(K::SHARED_WIDTH + 8) * 2 * K::HIDDEN * 2 + 4096, shared_scales = shared_codes / 4;   // enough for any format
        layer_codes = K::EXPERTS * (Up::CODES + Down::CODES) + 2 * shared_codes + ROUTER + 8 * K::HIDDEN * 2;
        layer_scales = (K::EXPERTS * (Up::SCALES + Down::SCALES) + 2 * shared_scales + 255) / 256 * 256;
        const size_t rows = size_t(K::EXPERTS) * 2 * (K::WIDTH + 8 + K::HIDDEN);
        CHECK(cudaMalloc(&weights, LAYERS * layer_codes));
        CHECK(cudaMalloc(&scales, LAYERS * layer_scales));
        CHECK(cudaMalloc(&row_scales, rows * 4));
        CHECK(cudaMemset(scales, 0x3c, LAYERS * layer_scales));   // e4m3 1.5, f32 0.0115
        CHECK(cudaMemset(row_scales, 0x3c, rows * 4));
        for (int i = 0; i < LAYERS; i++) {
            char *at = weights + i * layer_codes, *scale_at = scales + i * layer_scales;
            Layer& layer = layers[i];
            fill_weights<<<1024, 256>>>(reinterpret_cast<unsigned*>(at), (layer_codes - ROUTER - 8 * K::HIDDEN * 2) / 4, K::FORMAT != monomorph::Format::F16);
            const auto next = [&](size_t codes, size_t scale_bytes) {
                const Planes planes{at, scale_at, row_scales};
                at += codes, scale_at += scale_bytes;
                return planes;
            };
            layer.up = next(K::EXPERTS * Up::CODES, K::EXPERTS * Up::SCALES);
            layer.down = next(K::EXPERTS * Down::CODES, K::EXPERTS * Down::SCALES);
            layer.shared_up = next(shared_codes, shared_scales / 256 * 256);
            layer.shared_down = next(shared_codes, shared_scales / 256 * 256);
            // The router: bf16 of another layer's pattern, so that layers choose differently.
            test::Random random(i + 1);
            std::vector<uint16_t> router(ROUTER / 2 + 8 * K::HIDDEN);
            for (auto& v : router) v = test::float_to_bf16(random.normal() * 0.03f);
            CHECK(cudaMemcpy(at, router.data(), router.size() * 2, cudaMemcpyHostToDevice));
            layer.router = at, layer.scale_row = at + ROUTER;
        }
        const size_t sizes[] = {size_t(T) * K::HIDDEN, K::HIDDEN, size_t(LAUNCHES) * T * K::EXPERTS, size_t(LAUNCHES) * T * 2 * K::ACTIVE, size_t(T), size_t(T) * K::ACTIVE * K::WIDTH,
                                size_t(T) * (K::SHARED_WIDTH + 1)};
        float** buffers[] = {&x, &norm, &logits, &routing, &scale, &inner, &shared_inner};
        for (int b = 0; b < 7; b++) {
            test::Random random(b + 10);
            std::vector<float> values(sizes[b]);
            for (auto& v : values) v = random.normal();
            CHECK(cudaMalloc(buffers[b], values.size() * 4));
            CHECK(cudaMemcpy(*buffers[b], values.data(), values.size() * 4, cudaMemcpyHostToDevice));
        }
        for (int i = 0; i < LAYERS; i++) layers[i].norm = norm;
        std::vector<int> header(sizeof(monomorph::Step) / 4);
        header[0] = T;
        CHECK(cudaMalloc(&step, header.size() * 4));
        CHECK(cudaMemcpy(step, header.data(), header.size() * 4, cudaMemcpyHostToDevice));
        CHECK(cudaDeviceSynchronize());
    }
    ~ExpertsBench() {
        for (void* p : {static_cast<void*>(weights), static_cast<void*>(scales), static_cast<void*>(row_scales), static_cast<void*>(x), static_cast<void*>(norm), static_cast<void*>(logits),
                        static_cast<void*>(routing), static_cast<void*>(scale), static_cast<void*>(inner), static_cast<void*>(shared_inner), static_cast<void*>(step)})
            CHECK(cudaFree(p));
        CHECK(cudaStreamDestroy(stream));
    }
    // Distinct experts of all launches, by what the device wrote.
    size_t chosen() const {
        std::vector<float> rows(size_t(LAUNCHES) * T * 2 * K::ACTIVE);
        CHECK(cudaMemcpy(rows.data(), routing, rows.size() * 4, cudaMemcpyDeviceToHost));
        size_t count = 0;
        for (int i = 0; i < LAUNCHES; i++) {
            std::set<int> experts;
            for (int t = 0; t < T; t++)
                for (int s = 0; s < K::ACTIVE; s++) experts.insert(int(rows[((size_t(i) * T + t) * 2 + 1) * K::ACTIVE + s]));
            count += experts.size();
        }
        return count;
    }
    template <class F>
    void time(const char* model, const char* phase, double up, double down, bool route, F enqueue) {
        const float ms = test::time_graph(stream, [&] {
            for (int i = 0; i < LAUNCHES; i++) enqueue(i);
        });
        const double experts = double(chosen()) / LAUNCHES, shared = shared_up_bytes();
        const double bytes = experts * (up * (Up::CODES + Up::SCALES) + down * (Down::CODES + Down::SCALES)) + (route ? ROUTER + shared : 0) + (down > 0 ? shared / 2 : 0);
        float value;
        CHECK(cudaMemcpy(&value, x, 4, cudaMemcpyDeviceToHost));
        const double us = ms * 1e3 / LAUNCHES, limit = bytes / READ_RATE * 1e6;
        std::printf("%-10s %-5s T=%d  %-6s %7.2f us  %6.2f MB  %5.1f experts  limit %6.2f us  %5.1f %%  over %5.2f%s\n", model,
                    K::FORMAT == monomorph::Format::F16 ? "f16" : K::FORMAT == monomorph::Format::FP8_E4M3 ? "fp8" : "nvfp4", T, phase, us, bytes / 1e6, experts, limit, 100 * limit / us,
                    us - limit, std::isfinite(value) ? "" : "  NOT FINITE");
        std::fflush(stdout);
    }
    float* logits_of(int i) const { return logits + size_t(i) * T * K::EXPERTS; }
    float* routing_of(int i) const { return routing + size_t(i) * T * 2 * K::ACTIVE; }

    void run(const char* model) {
        std::printf("%s: shared %d / %d / %d bytes\n", model, monomorph::RouteShape<RouteOf<K>>::SHARED, monomorph::UpShape<UpOf<K>>::SHARED, monomorph::DownShape<DownOf<K>>::SHARED);
        // Random logits choose at first; the chain overwrites them.
        time(model, "up", 1, 0, false, [&](int i) { launch_up<K>(stream, step, x, logits_of(i), layers[i % LAYERS], inner, routing_of(i)); });
        const std::vector<float> zeros(size_t(T) * K::HIDDEN);
        time(model, "down", 0, 1, false, [&](int i) { launch_down<K>(stream, step, inner, routing_of(i), shared_inner, scale, layers[i % LAYERS], x); });
        std::vector<float> fresh(size_t(T) * K::HIDDEN);
        test::Random random(99);
        for (auto& v : fresh) v = random.normal();
        CHECK(cudaMemcpy(x, fresh.data(), fresh.size() * 4, cudaMemcpyHostToDevice));
        time(model, "route", 0, 0, true, [&](int i) { launch_route<K>(stream, step, x, layers[i % LAYERS], logits_of(i), scale, shared_inner, inner); });
        time(model, "chain", 1, 1, true, [&](int i) {
            launch_route<K>(stream, step, x, layers[i % LAYERS], logits_of(i), scale, shared_inner, inner);
            launch_up<K>(stream, step, x, logits_of(i), layers[i % LAYERS], inner, routing_of(i));
            launch_down<K>(stream, step, inner, routing_of(i), shared_inner, scale, layers[i % LAYERS], x);
        });
        using Least = Shallower<K, 2>;
        if constexpr (T <= 2)
            time(model, "both", 1, 1, true, [&](int i) {
                launch_route<K>(stream, step, x, layers[i % LAYERS], logits_of(i), scale, shared_inner, inner);
                launch_both<K>(stream, step, logits_of(i), shared_inner, scale, layers[i % LAYERS], inner, x);
            });
    }
};

template <monomorph::Format F, int T>
void bench_models() {
    using namespace monomorph;
    // Stages: two kernels beside each other on a multiprocessor where rows leave the room.
    constexpr int STAGES = T <= 2 ? 5 : T == 4 ? 4 : 3;
    ExpertsBench<RealExperts<F, 256, 8, 512, 512, 2048, T, STAGES>>().run("35B-A3B");
    ExpertsBench<RealExperts<F, 512, 10, 512, 512, 2048, T, STAGES>>().run("Next-80B");
    ExpertsBench<RealExperts<F, 128, 8, 768, 0, 2048, T, STAGES>>().run("30B-A3B");
    ExpertsBench<RealExperts<F, 256, 8, 1024, 1024, 3072, T, least(STAGES, 4)>>().run("122B-A10B");
}
template <monomorph::Format F>
void bench_tokens() {
    bench_models<F, 1>();
    bench_models<F, 2>();
    bench_models<F, 4>();
    bench_models<F, 8>();
}
inline void bench_experts() {
    bench_tokens<monomorph::Format::NVFP4>();
    bench_tokens<monomorph::Format::FP8_E4M3>();
    bench_tokens<monomorph::Format::F16>();
}
