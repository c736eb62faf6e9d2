// Chains of the products of one decode step, in one graph with dependent launch on every edge, over random weights that are each
// read once: what the step would take if attention and sampling were free (a copy stands for attention).
#pragma once
#include "core/common.cuh"
#include "kernels/stream_product.cuh"

constexpr double READ_RATE = 4540e9;   // bytes a second, one uninterrupted stream on an H200

template <class C>
constexpr auto timed_kernel = monomorph::stream_product_kernel<C, monomorph::StreamShape<C>::THREADS, monomorph::StreamShape<C>::SHARED,
                                                               monomorph::StreamShape<C>::RESIDENT * C::BLOCKS / C::MULTIPROCESSORS>;

// In the place of attention: copies, `nanoseconds` after it may.
__global__ void copy_kernel(const float* from, float* to, int count, unsigned nanoseconds) {
    monomorph::launch_dependents();
    monomorph::wait_for_predecessors();
    if (nanoseconds > 0) {
        unsigned long long start, now;
        asm volatile("mov.u64 %0, %globaltimer;" : "=l"(start));
        do asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
        while (now < start + nanoseconds);
    }
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < count) to[i] = from[i];
}

// bf16: magnitudes 2^-7..2^-5; fp8: below 2.
__global__ void fill_weights(unsigned* at, size_t words, bool fp8) {
    for (size_t i = blockIdx.x * size_t(blockDim.x) + threadIdx.x; i < words; i += size_t(gridDim.x) * blockDim.x) {
        unsigned h = unsigned(i) * 2654435761u ^ unsigned(i >> 32) * 0x9e3779b9u;
        h = (h ^ h >> 15) * 0x85ebca6bu;
        h = (h ^ h >> 13) * 0xc2b2ae35u;
        h ^= h >> 16;
        at[i] = fp8 ? h & 0xbfbfbfbfu : (h & 0x80ff80ffu) | 0x3c003c00u;
    }
}

template <int STAGES_, int STAGE_BYTES_ = 16384, int WARPS_ = 8, int PACE_ = 2, int LOOKAHEAD_ = 0, bool EVICT_ = true, int A_MULTIPROCESSOR_ = 1>
struct Variant {
    static constexpr int STAGES = STAGES_, STAGE_BYTES = STAGE_BYTES_, CONSUMER_WARPS = WARPS_, BLOCKS = 132 * A_MULTIPROCESSOR_, MULTIPROCESSORS = 132;
    static constexpr bool EVICT_FIRST = EVICT_;
    static constexpr int PACE = PACE_, LOOKAHEAD = LOOKAHEAD_;
    static void print(const char* what) {
        std::printf("%-16s %2d x %2d KB, %2d warps, %d blocks, pace %2d, ahead %3d KB%s ", what, STAGES, STAGE_BYTES / 1024, CONSUMER_WARPS, BLOCKS, PACE, LOOKAHEAD / 1024, EVICT_FIRST ? "" : ", normal");
    }
};

template <class V, monomorph::Format F, int N, int K, int T, monomorph::Norm NORM_, monomorph::Epilogue E>
struct Timed : V {
    static constexpr monomorph::Format FORMAT = F;
    static constexpr bool BLOCKED = monomorph::Unit<F>::BLOCKED;
    static constexpr monomorph::Compute COMPUTE = BLOCKED ? monomorph::Compute::EXACT : monomorph::Compute::F16;
    static constexpr monomorph::Rounding ROUNDING = BLOCKED ? monomorph::Rounding::INT8_BLOCK32 : monomorph::Rounding::NONE;
    static constexpr int OUTPUTS = N, INPUTS = K, ROWS = T;
    static constexpr monomorph::Norm NORM = NORM_;
    static constexpr float EPS = 1e-5f;
    static constexpr monomorph::Epilogue EPILOGUE = E;
    static constexpr monomorph::Activation ACTIVATION = monomorph::Activation::SILU;
    static constexpr bool BIAS = false;
    static constexpr monomorph::ScaleForm SCALES = F == monomorph::Format::FP8_E4M3 || F == monomorph::Format::NVFP4 ? monomorph::ScaleForm::ROWS : monomorph::ScaleForm::NONE;
    static constexpr monomorph::Limit LIMIT = monomorph::Limit::NONE;
};

struct Arena {
    char *weights = nullptr, *scales = nullptr;
    size_t size, used = 0, scales_used = 0, scales_size;
    float *x, *qkv, *attention, *gated, *logits, *norm, *row_scales;
    unsigned attention_nanoseconds = 0;
    cudaStream_t stream;
    Arena(size_t bytes, bool fp8, size_t head_bytes) : size(bytes) {
        CHECK(cudaStreamCreate(&stream));
        scales_size = bytes / 4;
        CHECK(cudaMalloc(&weights, bytes));
        CHECK(cudaMalloc(&scales, scales_size));
        CHECK(cudaMemset(scales, 0x24, scales_size));   // e4m3 0.19, f16 0.016
        fill_weights<<<1024, 256>>>(reinterpret_cast<unsigned*>(weights), (bytes - head_bytes) / 4, fp8);
        fill_weights<<<1024, 256>>>(reinterpret_cast<unsigned*>(weights + bytes - head_bytes), head_bytes / 4, false);
        float** buffers[] = {&x, &qkv, &attention, &gated, &logits, &norm, &row_scales};
        const std::vector<float> ones(1 << 20, 1.0f);
        for (float** b : buffers) {
            CHECK(cudaMalloc(b, ones.size() * 4));
            CHECK(cudaMemcpy(*b, ones.data(), ones.size() * 4, cudaMemcpyHostToDevice));
        }
        CHECK(cudaDeviceSynchronize());
    }
    ~Arena() {
        for (void* p : {static_cast<void*>(weights), static_cast<void*>(scales), static_cast<void*>(x), static_cast<void*>(qkv), static_cast<void*>(attention), static_cast<void*>(gated),
                        static_cast<void*>(logits), static_cast<void*>(norm), static_cast<void*>(row_scales)})
            CHECK(cudaFree(p));
        CHECK(cudaStreamDestroy(stream));
    }
    template <class C>
    static size_t bytes_of() { return size_t(monomorph::StreamShape<C>::GRANULES) * monomorph::StreamShape<C>::GRANULE * monomorph::StreamShape<C>::TILE_UNITS * 512; }
    // The same phase over and over, each time over other weights: its pace, and what a boundary costs it.
    template <class C>
    void alone(const char* name) {
        using S = monomorph::StreamShape<C>;
        const int times = int(std::min<size_t>(24, size / bytes_of<C>()));
        const float ms = test::time_graph(stream, [&] {
            used = scales_used = 0;
            for (int i = 0; i < times; i++) product<C>(x, qkv);
        });
        int blocks;
        CHECK(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, timed_kernel<C>, S::THREADS, S::shared_bytes()));
        const double limit = bytes_of<C>() / READ_RATE * 1e6;
        C::print(name);
        std::printf("%7.2f us, limit %7.2f, over %5.2f; shared %d, %d resident\n", ms * 1e3 / times, limit, ms * 1e3 / times - limit, S::shared_bytes(), blocks);
    }
    template <class C>
    void product(const float* from, float* to) {
        using S = monomorph::StreamShape<C>;
        const size_t bytes = bytes_of<C>();
        const size_t scale_bytes = bytes / 512 * S::U::SCALE_BYTES;
        if (used + bytes > size || scales_used + scale_bytes > scales_size) std::printf("FAIL arena too small\n"), std::exit(3);
        test::launch_clusters(timed_kernel<C>, dim3(C::BLOCKS), S::SPLIT, S::THREADS, S::shared_bytes(), stream, nullptr, from, norm, weights + used, scales + scales_used, row_scales, nullptr,
                     nullptr, to);
        used += bytes;
        scales_used += scale_bytes;
    }
    void copy(const float* from, float* to, int count) { test::launch(copy_kernel, dim3((count + 127) / 128), 128, 0, stream, from, to, count, attention_nanoseconds); }
};

// A decoder of Llama's kind. Variants may differ by phase: qkv and o, gate and up, down, head.
template <monomorph::Format F, int LAYERS, int HIDDEN, int QKV, int FFN, int VOCABULARY, monomorph::Format HEAD, int T, class Mixer, class Up, class Down, class Head>
void chain(Arena& arena, const char* name) {
    using namespace monomorph;
    using Qkv = Timed<Mixer, F, QKV, HIDDEN, T, Norm::PLAIN, Epilogue::STORE>;
    using Out = Timed<Mixer, F, HIDDEN, HIDDEN, T, Norm::NONE, Epilogue::ADD>;
    using GateUp = Timed<Up, F, FFN, HIDDEN, T, Norm::PLAIN, Epilogue::GATED>;
    using DownP = Timed<Down, F, HIDDEN, FFN, T, Norm::NONE, Epilogue::ADD>;
    using HeadP = Timed<Head, HEAD, VOCABULARY, HIDDEN, T, Norm::PLAIN, Epilogue::STORE>;
    const std::vector<float> ones(HIDDEN * T, 1.0f);
    CHECK(cudaMemcpy(arena.x, ones.data(), ones.size() * 4, cudaMemcpyHostToDevice));
    const float ms = test::time_graph(arena.stream, [&] {
        arena.used = arena.scales_used = 0;
        for (int layer = 0; layer < LAYERS; layer++) {
            arena.product<Qkv>(arena.x, arena.qkv);
            arena.copy(arena.qkv, arena.attention, HIDDEN * T);
            arena.product<Out>(arena.attention, arena.x);
            arena.product<GateUp>(arena.x, arena.gated);
            arena.product<DownP>(arena.gated, arena.x);
        }
        arena.product<HeadP>(arena.x, arena.logits);
    });
    float logit;
    CHECK(cudaMemcpy(&logit, arena.logits, 4, cudaMemcpyDeviceToHost));
    Mixer::print(name);
    std::printf("T=%d  %.4f ms  %.0f tok/s  %.1f %% of limit (%.4f)%s\n", T, ms, T * 1e3 / ms, (arena.used + arena.scales_used) / READ_RATE * 1e5 / ms, (arena.used + arena.scales_used) / READ_RATE * 1e3,
                std::isfinite(logit) ? "" : "  NOT FINITE");
    std::fflush(stdout);
}
template <monomorph::Format F, int HIDDEN, int QKV, int FFN, class V>
void phases(Arena& arena) {
    using namespace monomorph;
    arena.alone<Timed<V, F, QKV, HIDDEN, 1, Norm::PLAIN, Epilogue::STORE>>("qkv");
    arena.alone<Timed<V, F, HIDDEN, HIDDEN, 1, Norm::NONE, Epilogue::STORE>>("o");
    arena.alone<Timed<V, F, FFN, HIDDEN, 1, Norm::PLAIN, Epilogue::GATED>>("gate up");
    arena.alone<Timed<V, F, HIDDEN, FFN, 1, Norm::NONE, Epilogue::STORE>>("down");
    arena.alone<Timed<V, Format::F16, 128256, HIDDEN, 1, Norm::PLAIN, Epilogue::STORE>>("head");
}
using monomorph::Format;
template <class V, int T = 1, class Up = V, class Down = V>
void llama_1b(Arena& arena) {
    chain<Format::F16, 16, 2048, 3072, 8192, 128256, Format::F16, T, V, Up, Down, V>(arena, "1B bf16");
}
template <Format F, class V, class Down, int T = 1>
void llama_8b(Arena& arena) {
    chain<F, 32, 4096, 6144, 14336, 128256, Format::F16, T, V, V, Down, V>(arena, F == Format::NVFP4 ? "8B nvfp4" : "8B fp8");
}

#if SUITE == 0 || SUITE == 3
inline void bench_llama_1b() {
    Arena arena(2500ull << 20, false, 1 << 20);
    phases<Format::F16, 2048, 3072, 8192, Variant<6>>(arena);
    llama_1b<Variant<6>>(arena);
    llama_1b<Variant<6, 16384, 8, 1>>(arena);
    llama_1b<Variant<6, 16384, 8, 3>>(arena);
    llama_1b<Variant<6, 16384, 8, 6>>(arena);                        // not paced
    llama_1b<Variant<6, 16384, 8, 2, 65536>>(arena);                 // lookahead
    llama_1b<Variant<6, 16384, 8, 2, 0, false>>(arena);              // no evict-first
    llama_1b<Variant<6, 16384, 16>>(arena);
    llama_1b<Variant<6, 16384, 4>>(arena);
    llama_1b<Variant<4>>(arena);                                     // three kernels deep
    llama_1b<Variant<12, 8192, 8, 4>>(arena);
    llama_1b<Variant<6, 8192, 4, 2, 0, true, 2>, 1, Variant<6, 8192, 4, 2, 0, true, 2>, Variant<4, 8192, 4, 2, 0, true, 2>>(arena);
    llama_1b<Variant<6>, 2, Variant<6>, Variant<4>>(arena);
    llama_1b<Variant<6>, 4, Variant<6>, Variant<3>>(arena);
    llama_1b<Variant<6>, 4>(arena);
    arena.attention_nanoseconds = 3000;
    std::printf("attention 3 us longer\n");
    llama_1b<Variant<6>>(arena);
    llama_1b<Variant<6, 16384, 8, 2, 65536>>(arena);
    llama_1b<Variant<6>, 1, Variant<6, 16384, 8, 2, 65536>>(arena);
    llama_1b<Variant<6>, 1, Variant<6, 16384, 8, 2, 131072>>(arena);
    arena.attention_nanoseconds = 0;
    chain<Format::Q4_1, 30, 576, 960, 1536, 49152, Format::Q8_0, 1, Variant<4, 8192>, Variant<4, 8192>, Variant<4, 8192>, Variant<4, 8192>>(arena, "135M q4_1 exact");
    chain<Format::Q4_1, 30, 576, 960, 1536, 49152, Format::Q8_0, 8, Variant<4, 8192>, Variant<4, 8192>, Variant<4, 8192>, Variant<4, 8192>>(arena, "135M q4_1 exact");
}
#endif
#if SUITE == 0 || SUITE == 4
inline void bench_llama_8b() {
    Arena arena(8100ull << 20, true, 1060ull << 20);
    using Ahead = Variant<6, 16384, 8, 2, 65536>;
    phases<Format::FP8_E4M3, 4096, 6144, 14336, Variant<6>>(arena);
    llama_8b<Format::FP8_E4M3, Variant<6>, Variant<5>>(arena);
    llama_8b<Format::FP8_E4M3, Ahead, Variant<5, 16384, 8, 2, 65536>>(arena);
    llama_8b<Format::FP8_E4M3, Ahead, Variant<5>>(arena);
    llama_8b<Format::FP8_E4M3, Variant<6>, Variant<6>>(arena);       // down alone on its multiprocessor
    llama_8b<Format::FP8_E4M3, Variant<12, 8192, 8, 4>, Variant<10, 8192, 8, 4>>(arena);
    llama_8b<Format::FP8_E4M3, Variant<6>, Variant<3>, 2>(arena);
    llama_8b<Format::FP8_E4M3, Variant<5>, Variant<6>, 4>(arena);
    llama_8b<Format::NVFP4, Variant<6>, Variant<5>>(arena);
    llama_8b<Format::NVFP4, Ahead, Variant<5, 16384, 8, 2, 65536>>(arena);
    llama_8b<Format::NVFP4, Variant<5, 16384, 16>, Variant<4, 16384, 16>>(arena);
}
#endif
