// Times of the tensor-core products: prefill in TFLOP/s, small batches in GB/s of weights (from memory: the launches of a graph
// go round copies of the matrix larger than the second-level cache), and all products of an 8B model's step.
#include "products/gemm_case.cuh"

static cudaStream_t stream;
static char* weights;   // random codes
static size_t weight_bytes = size_t(10) << 30;
static test::Buffer<float>* vectors;   // scales of any kind
static char *x, *out;
static test::Buffer<Step>* step;

// Codes without infinities and of harmless size, whatever the format: bytes with the exponent's upper bits 0b011.
__global__ void fill(unsigned* words, size_t count, unsigned mask, unsigned set) {
    for (size_t i = blockIdx.x * size_t(blockDim.x) + threadIdx.x; i < count; i += size_t(gridDim.x) * blockDim.x) {
        unsigned long long z = (i + 1) * 0x9e3779b97f4a7c15ull;
        z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
        words[i] = (unsigned(z >> 29) & mask) | set;
    }
}

static void set_tokens(int tokens) {
    std::vector<Step> host(1);
    std::memset(host.data(), 0, sizeof(Step));
    host[0].tokens = host[0].outputs = tokens;
    step->upload(host);
}

template <class C>
constexpr size_t code_bytes() {
    return (size_t(GemmShape<C>::TILES) * GemmShape<C>::UNITS * (UNIT_BYTES + Unit<C::FORMAT>::SCALE_BYTES) + 1023) / 1024 * 1024;
}

template <class C>
void enqueue(size_t offset) {
    const char* codes = weights + offset;
    const char* scales = C::SCALES == ScaleForm::BLOCK128 ? reinterpret_cast<const char*>(vectors->pointer)
                                                          : codes + size_t(GemmShape<C>::TILES) * GemmShape<C>::UNITS * UNIT_BYTES;
    launch_product<C>(132, stream, step->pointer, x, codes, scales, *vectors, *vectors, *vectors, reinterpret_cast<float*>(out));
}

template <class C>
void prefill(const char* name, int tokens) {
    set_tokens(tokens);
    const float ms = test::time_graph(stream, [] { enqueue<C>(0); }, 7);
    const double flops = 2.0 * tokens * C::INPUTS * double(C::OUTPUTS) * (C::EPILOGUE == Epilogue::GATED ? 2 : 1);
    std::printf("%-44s T %5d  %8.1f us  %6.1f TFLOP/s  (shared %d)\n", name, tokens, ms * 1e3, flops / ms * 1e-9, GemmShape<C>::SHARED_BYTES);
}

template <class C>
void batch(const char* name) {
    set_tokens(C::CAPACITY);
    const int copies = int((size_t(400) << 20) / code_bytes<C>()) + 2;
    const float ms = test::time_graph(stream, [=] { for (int i = 0; i < copies; i++) enqueue<C>(i * code_bytes<C>()); }, 9) / copies;
    std::printf("%-44s T %5d  %8.2f us  %6.0f GB/s  (grid %d shared %d)\n", name, C::CAPACITY, ms * 1e3, code_bytes<C>() / ms * 1e-6,
                GemmShape<C>::CLUSTER * gemm_clusters<C>(132), GemmShape<C>::SHARED_BYTES);
}

// How many clusters the card holds at a time: those of 8 must fit a group of multiprocessors.
template <class C>
void clusters(const char* name) {
    using S = typename Build<C>::Shape;
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3(S::CLUSTER * gemm_clusters<C>(132));
    config.blockDim = dim3(S::THREADS);
    config.dynamicSmemBytes = S::SHARED_BYTES;
    cudaLaunchAttribute attribute[1];
    attribute[0].id = cudaLaunchAttributeClusterDimension;
    attribute[0].val.clusterDim.x = S::CLUSTER;
    attribute[0].val.clusterDim.y = attribute[0].val.clusterDim.z = 1;
    config.attrs = attribute;
    config.numAttrs = 1;
    int held = 0;
    CHECK(cudaOccupancyMaxActiveClusters(&held, Build<C>::KERNEL, &config));
    std::printf("%s: %d clusters of %d wanted, %d held at a time\n", name, gemm_clusters<C>(132), S::CLUSTER, held);
}

template <int ROWS>
struct StageOf {
    static constexpr int WIDTH = 4096, CAPACITY = ROWS;
    static constexpr Norm NORM = Norm::PLAIN;
    static constexpr float EPS = 1e-5f;
    static constexpr Limit LIMIT = Limit::TOKENS;
};

// Llama-3.1-8B's products and stagings of one step, every layer its own weights. QKV, O, GATE_UP, DOWN, HEAD: tilings.
template <class QKV, class O, class GU, class D, class HEAD, Format F, ScaleForm S, int ROWS>
void step_of_8b(const char* name) {
    using A = Case<QKV, F, S, 6144, 4096, ROWS, Epilogue::STORE>;
    using B = Case<O, F, S, 4096, 4096, ROWS, Epilogue::ADD>;
    using C = Case<GU, F, S, 14336, 4096, ROWS, Epilogue::GATED>;
    using E = Case<D, F, S, 4096, 14336, ROWS, Epilogue::ADD>;
    using L = Case<HEAD, Format::F16, ScaleForm::ROWS, 128256, 4096, ROWS, Epilogue::STORE, false, Activation::SILU, Limit::OUTPUTS>;
    set_tokens(ROWS);
    const auto staging = [] {
        test::launch(stage_kernel<StageOf<ROWS>, StageShape<StageOf<ROWS>>::THREADS>, dim3(ROWS), StageShape<StageOf<ROWS>>::THREADS, 0, stream, step->pointer,
                     reinterpret_cast<const float*>(out), vectors->pointer, static_cast<void*>(x));
    };
    const size_t layer = code_bytes<A>() + code_bytes<B>() + code_bytes<C>() + code_bytes<E>();
    const int layers = int(std::min<size_t>(32, (weight_bytes - code_bytes<L>()) / layer));
    const float ms = test::time_graph(stream, [&] {
        for (int i = 0; i < layers; i++) {
            size_t at = i * layer;
            staging();
            enqueue<A>(at);
            at += code_bytes<A>();
            enqueue<B>(at);
            at += code_bytes<B>();
            staging();
            enqueue<C>(at);
            at += code_bytes<C>();
            enqueue<E>(at);
        }
        staging();
        enqueue<L>(layers * layer);
    }, 9);
    const double bytes = double(layer) * layers + code_bytes<L>();
    std::printf("step of 8B, %-32s T %5d  %8.3f ms  %6.0f GB/s  (%d layers)\n", name, ROWS, ms, bytes / ms * 1e-6, layers);
}

constexpr auto F16 = Format::F16;
constexpr auto FP8 = Format::FP8_E4M3;
constexpr auto FP4 = Format::NVFP4;
constexpr auto ROWS = ScaleForm::ROWS;
constexpr auto BLOCK = ScaleForm::BLOCK128;
template <int T, int S, int P, int W, int N, int M = 1, int K = 1, int R = 1>
using G = Tiling<Engine::WGMMA, T, S, P, W, N, M, K, R>;
template <int T, int S, int P, int W, int N, int R = 1>
using H = Tiling<Engine::MMA, T, S, P, W, N, 1, 1, R>;

#define PREFILL(tiling, format, scales, n, k, epilogue) \
    prefill<Case<tiling, format, scales, n, k, 8192, Epilogue::epilogue>>(#format " " #n " x " #k " " #epilogue " " #tiling, 8192)
#define BATCH(tiling, format, scales, n, k, rows, epilogue) \
    batch<Case<tiling, format, scales, n, k, rows, Epilogue::epilogue>>(#format " " #n " x " #k " " #epilogue " " #tiling)

int main() {
    CHECK(cudaStreamCreate(&stream));
    CHECK(cudaMalloc(&weights, weight_bytes));
    CHECK(cudaMalloc(&x, staged_bytes(8192, 14336) + 1024));
    CHECK(cudaMalloc(&out, size_t(8192) * 14336 * 4));
    // 0x3c..0x3f / 0xbc..0xbf in the upper byte of each half: f16 and fp8 alike moderate.
    fill<<<1024, 256, 0, stream>>>(reinterpret_cast<unsigned*>(weights), weight_bytes / 4, 0x83ff83ff, 0x3c003c00);
    fill<<<1024, 256, 0, stream>>>(reinterpret_cast<unsigned*>(x), staged_bytes(8192, 14336) / 4, 0x83ff83ff, 0x3c003c00);
    CHECK(cudaMemset(out, 0, size_t(8192) * 14336 * 4));
    test::Buffer<float> scale_values(std::vector<float>(1 << 20, 0.01f));
    vectors = &scale_values;
    test::Buffer<Step> header(1);
    step = &header;
#include "products/gemm_bench_table.cuh"
    CHECK(cudaStreamSynchronize(stream));
    return 0;
}
