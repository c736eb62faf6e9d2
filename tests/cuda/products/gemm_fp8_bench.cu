// Times of products in fp8 and of quantising their rows, at the shapes of prompts of an 8B and of a 35B with delta-nets: microseconds a launch, and TFLOP/s.
#include "products/gemm_fp8_case.cuh"

static cudaStream_t stream;
static char *weights, *x, *out;
static float* values;   // rows in f32
static test::Buffer<float>* vectors;   // scales of any kind
static test::Buffer<Step>* step;
constexpr size_t WEIGHT_BYTES = size_t(256) << 20, OUT_BYTES = size_t(8192) * 14336 * 4;

// Bytes whose exponent's upper bits are 0b011: moderate codes of either sign.
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

// Rows of codes, and scales that are numbers behind them.
template <int K>
void fill_x(int tokens) {
    fill<<<1024, 256, 0, stream>>>(reinterpret_cast<unsigned*>(x), size_t(K) * tokens / 4, 0x8f8f8f8f, 0x30303030);
    fill<<<1024, 256, 0, stream>>>(reinterpret_cast<unsigned*>(x + quantised_scales_at(tokens, K)), size_t(K) / 128 * tokens, 0x000fffff, 0x3c000000);
}

template <ScaleForm SCALES, int N, int K, int ROWS, Epilogue E, int STAGES = 4>
void product(const char* name) {
    using C = Case<SCALES, N, K, ROWS, E, STAGES>;
    static_assert(size_t(GemmFp8<C>::TILES) * GemmFp8<C>::UNITS * UNIT_BYTES <= WEIGHT_BYTES, "there are so many weights");
    set_tokens(ROWS);
    fill_x<K>(ROWS);
    const float ms = test::time_graph(stream, [] { launch_product<C>(132, stream, step->pointer, x, weights, *vectors, *vectors, *vectors, *vectors, reinterpret_cast<float*>(out)); }, 9);
    const double flops = 2.0 * ROWS * K * double(N) * (E == Epilogue::GATED ? 2 : 1);
    std::printf("%-52s T %5d  %8.1f us  %7.1f TFLOP/s\n", name, ROWS, ms * 1e3, flops / ms * 1e-9);
}

template <int W, Norm N, bool HALF>
struct QuantiseCase {
    static constexpr int WIDTH = W, CAPACITY = 8192;
    static constexpr Norm NORM = N;
    static constexpr float EPS = 1e-5f;
    static constexpr Limit LIMIT = Limit::TOKENS;
    static constexpr bool HALVES = HALF;
};

template <class C>
void quantising(const char* name) {
    set_tokens(C::CAPACITY);
    const float ms = test::time_graph(stream, [] {
        test::launch(quantise_kernel<C, StageShape<C>::THREADS>, dim3(C::CAPACITY), StageShape<C>::THREADS, 0, stream, step->pointer, static_cast<const float*>(values),
                     static_cast<const float*>(vectors->pointer), static_cast<void*>(x), static_cast<void*>(out));
    }, 9);
    const double bytes = size_t(C::CAPACITY) * C::WIDTH * (C::HALVES ? 7.0 : 5.0);
    std::printf("%-52s T %5d  %8.1f us  %7.0f GB/s\n", name, C::CAPACITY, ms * 1e3, bytes / ms * 1e-6);
}

#define PRODUCT(scales, n, k, rows, epilogue, ...) \
    product<ScaleForm::scales, n, k, rows, Epilogue::epilogue __VA_OPT__(, ) __VA_ARGS__>(#scales " " #n " x " #k " " #epilogue " " #__VA_ARGS__)

int main() {
    CHECK(cudaStreamCreate(&stream));
    CHECK(cudaMalloc(&weights, WEIGHT_BYTES));
    CHECK(cudaMalloc(&x, quantised_bytes(8192, 14336) + 1024));
    CHECK(cudaMalloc(&out, OUT_BYTES));
    CHECK(cudaMalloc(&values, size_t(8192) * 14336 * 4));
    fill<<<1024, 256, 0, stream>>>(reinterpret_cast<unsigned*>(weights), WEIGHT_BYTES / 4, 0x8f8f8f8f, 0x30303030);
    fill<<<1024, 256, 0, stream>>>(reinterpret_cast<unsigned*>(values), size_t(8192) * 14336, 0x807fffff, 0x3f000000);
    CHECK(cudaMemset(out, 0, OUT_BYTES));
    test::Buffer<float> scale_values(std::vector<float>(1 << 20, 0.01f));
    vectors = &scale_values;
    test::Buffer<Step> header(1);
    step = &header;
    // The 35B's: q, k, v, z; q, gate, k, v; o; the shared expert's.
    PRODUCT(BLOCK128, 12288, 2048, 8192, STORE);
    PRODUCT(BLOCK128, 12288, 2048, 8192, STORE, 3);
    PRODUCT(BLOCK128, 9216, 2048, 8192, STORE);
    PRODUCT(BLOCK128, 2048, 4096, 8192, ADD);
    PRODUCT(BLOCK128, 512, 2048, 8192, GATED);
    PRODUCT(BLOCK128, 2048, 512, 8192, STORE);
    PRODUCT(BLOCK128, 12288, 2048, 1024, STORE);
    PRODUCT(BLOCK128, 2048, 4096, 1024, ADD);
    // The 8B's.
    PRODUCT(BLOCK128, 14336, 4096, 8192, GATED);
    PRODUCT(ROWS, 14336, 4096, 8192, GATED);
    PRODUCT(BLOCK128, 6144, 4096, 8192, STORE);
    PRODUCT(BLOCK128, 4096, 4096, 8192, ADD);
    PRODUCT(BLOCK128, 4096, 14336, 8192, ADD);
    quantising<QuantiseCase<2048, Norm::ONE_PLUS, false>>("quantise 2048, normed");
    quantising<QuantiseCase<2048, Norm::ONE_PLUS, true>>("quantise 2048, normed, and stage");
    quantising<QuantiseCase<4096, Norm::NONE, false>>("quantise 4096");
    quantising<QuantiseCase<512, Norm::NONE, false>>("quantise 512");
    CHECK(cudaStreamSynchronize(stream));
    return 0;
}
