// Times of a mixture of experts for many tokens: each kernel, all four in a row, the bytes of the experts touched over the time of the
// products against what one H200 reads (4,540 GB/s), and their arithmetic against what its dense products reach (790 TFLOP/s).
// Launches of a graph go round copies of the weights, so that these come from memory.
#pragma once

#include "experts/experts_batch_case.cuh"

static char* pool;  // random codes
static size_t pool_bytes = size_t(6) << 30;
static test::Buffer<float>* vectors;  // scales of blocks and rows

// Bytes 0x3c..0x3f and 0xbc..0xbf in every second place: moderate in every format.
__global__ void fill(unsigned* words, size_t count) {
    for (size_t i = blockIdx.x * size_t(blockDim.x) + threadIdx.x; i < count; i += size_t(gridDim.x) * blockDim.x) {
        unsigned long long z = (i + 1) * 0x9e3779b97f4a7c15ull;
        z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
        words[i] = (unsigned(z >> 29) & 0x83ff83ff) | 0x3c003c00;
    }
}

template <class C>
constexpr size_t plane_bytes() {
    using S = ExpertShape<C>;
    return (C::EXPERTS * (S::CODE_BYTES + (S::BLOCK_SCALED ? 0 : S::SCALE_BYTES)) + 1023) / 1024 * 1024;
}

template <class C>
void enqueue_product(int multiprocessors, const char* at, const char* lists, const void* x, void* out) {
    using S = ExpertShape<C>;
    const void* scales = S::BLOCK_SCALED ? static_cast<const void*>(vectors->pointer) : at + C::EXPERTS * S::CODE_BYTES;
    launch_product<C>(multiprocessors, stream, lists, x, at, scales, *vectors, out);
}

template <class M, class T>
void measure(const char* name, int tokens, int multiprocessors) {
    using A = Product<M, T, true>;
    using D = Product<M, T, false>;
    using Lists = ListsOf<A>;
    Workspace<M, T> space;
    const Header header(tokens);
    test::Random r(tokens);
    std::vector<float> logits(size_t(M::STEP_ROWS) * M::LOGITS), rows(size_t(M::STEP_ROWS) * M::HIDDEN);
    for (auto& v : logits) v = r.normal();
    for (auto& v : rows) v = r.normal();
    test::Buffer<float> d_logits(logits), d_shared(rows), d_out(rows);
    test::Buffer<uint16_t> d_x(test::staged(rows, M::HIDDEN, A::X_ROWS));
    constexpr size_t LAYER = plane_bytes<A>() + plane_bytes<D>();
    const int copies = int(pool_bytes / LAYER), repeats = std::max(2, std::min(copies, 8));
    const auto sort = [&](int) { launch_sort<A>(stream, header.step, d_logits, space.lists); };
    const auto gate_up = [&](int i) { enqueue_product<A>(multiprocessors, pool + i % copies * LAYER, space.lists, d_x, space.inner); };
    const auto down = [&](int i) {   // staging its rows first
        if constexpr (!Build<D>::ROUNDS) launch_stage<D>(stream, space.lists, space.inner, space.staged);
        enqueue_product<D>(multiprocessors, pool + i % copies * LAYER + plane_bytes<A>(), space.lists, input<D>(space), space.products);
    };
    const auto sum = [&](int) { launch_combine<A>(stream, header.step, space.lists, space.products, d_shared, d_logits, d_out); };
    const auto time = [&](const std::function<void(int)>& launch) {
        return 1e3 * test::time_graph(stream, [&] { for (int i = 0; i < repeats; i++) launch(i); }, 9) / repeats;
    };
    const double sort_us = time(sort), gate_up_us = time(gate_up), down_us = time(down), sum_us = time(sum);
    const double all_us = time([&](int i) { sort(i), gate_up(i), down(i), sum(i); });

    const std::vector<char> lists = space.lists.download();
    const int tiles = *reinterpret_cast<const int*>(lists.data() + Lists::COUNT_AT);
    std::vector<bool> touched(M::EXPERTS);
    for (int i = 0; i < tiles; i++) touched[reinterpret_cast<const int*>(lists.data() + Lists::TILES_AT)[2 * i + 1] >> 8] = true;
    const double part = double(std::count(touched.begin(), touched.end(), true)) / M::EXPERTS;
    const double up_bytes = part * plane_bytes<A>(), down_bytes = part * plane_bytes<D>();
    const double pair_flops = 2.0 * tokens * M::ACTIVE * M::HIDDEN * M::WIDTH;
    const auto line = [](const char* what, double us, double bytes, double flops) {
        std::printf("    %-12s %9.2f us  %8.1f MB %6.0f GB/s (%3.0f %%)  %7.2f GFLOP %6.1f TFLOP/s (%3.0f %%)\n", what, us, bytes * 1e-6, bytes / us * 1e-3,
                    bytes / us / 4.54e6 * 100, flops * 1e-9, flops / us * 1e-6, flops / us / 790e6 * 100);
    };
    std::printf("%s, %d tokens, %d tiles of %d, %.0f experts touched, shared %d and %d bytes\n", name, tokens, tiles, T::TOKENS, part * M::EXPERTS,
                Build<A>::SHARED_BYTES, Build<D>::SHARED_BYTES);
    line("gate and up", gate_up_us, up_bytes, 2 * pair_flops);
    line("down", down_us, down_bytes, pair_flops);
    line("all four", all_us, up_bytes + down_bytes, 3 * pair_flops);
    std::printf("    sort %.2f us, sum %.2f us\n", sort_us, sum_us);
}

// Shapes of published models. The third has 512 experts, the fourth no shared one.
template <Format F, ScaleForm S, int ROWS> using Qwen35 = Mixture<F, S, 256, 8, 2048, 512, ROWS>;
template <Format F, ScaleForm S, int ROWS> using Qwen122 = Mixture<F, S, 256, 8, 3072, 1024, ROWS>;
template <Format F, ScaleForm S, int ROWS> using Next = Mixture<F, S, 512, 10, 2048, 512, ROWS>;
template <Format F, ScaleForm S, int ROWS> using Qwen30 = Mixture<F, S, 128, 8, 2048, 768, ROWS, true, false>;

#define MEASURE(model, format, scales, rows, cut, tokens) measure<model<format, scales, rows>, cut>(#model " " #format " " #cut, tokens, multiprocessors)
// Up to 128 tokens: weights are the work. Prefill: a program for 8,192 tokens, given fewer too.
#define BATCHES(model, format, scales, cut) \
    MEASURE(model, format, scales, 16, cut, 16); \
    MEASURE(model, format, scales, 32, cut, 32); \
    MEASURE(model, format, scales, 64, cut, 64); \
    MEASURE(model, format, scales, 128, cut, 128)
#define PREFILLS(model, format, scales, cut) \
    MEASURE(model, format, scales, 8192, cut, 128); \
    MEASURE(model, format, scales, 8192, cut, 2048); \
    MEASURE(model, format, scales, 8192, cut, 8192)

static int bench() {
    cudaDeviceProp properties;
    CHECK(cudaGetDeviceProperties(&properties, 0));
    const int multiprocessors = properties.multiProcessorCount;
    CHECK(cudaMalloc(&pool, pool_bytes));
    fill<<<1024, 256, 0, stream>>>(reinterpret_cast<unsigned*>(pool), pool_bytes / 4);
    CHECK(cudaStreamSynchronize(stream));
    test::Buffer<float> scale_values(std::vector<float>(size_t(4) << 20, 0.01f));
    vectors = &scale_values;
#include "experts/experts_batch_bench_table.cuh"
    return 0;
}
