// Times of products in fp8 and of quantising their rows, at the shapes of prompts of an 8B and of a 35B with delta-nets: microseconds a launch, and TFLOP/s.
#include "products/gemm_fp8_case.cuh"
#include "products/gemm_fp8_wide.cuh"

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

template <class C, int CL>
void launch_w() {
    using S = GemmW<C, CL>;
    auto kernel = gemm_fp8w_kernel<C, CL>;
    CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, S::SHARED_BYTES));
    cudaLaunchAttribute attributes[1];
    attributes[0].id = cudaLaunchAttributeClusterDimension;
    attributes[0].val.clusterDim = {CL, 1, 1};
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3(132), config.blockDim = dim3(384), config.dynamicSmemBytes = S::SHARED_BYTES, config.stream = stream, config.attrs = attributes, config.numAttrs = CL > 1 ? 1 : 0;
    CHECK(cudaLaunchKernelEx(&config, kernel, (const Step*)step->pointer, (const void*)x, (const void*)weights, (const void*)vectors->pointer, (const float*)vectors->pointer, (const float*)vectors->pointer, (const float*)vectors->pointer, reinterpret_cast<float*>(out)));
}

template <ScaleForm SCALES, int N, int K, int ROWS, Epilogue E, int CL>
void product_w(const char* name) {
    using C = Case<SCALES, N, K, ROWS, E, 4>;
    set_tokens(ROWS);
    fill_x<K>(ROWS);
    const size_t bytes = size_t(ROWS) * N * 4, some = std::min(bytes, size_t(64) << 20);
    std::vector<float> a(some / 4), b(some / 4);
    CHECK(cudaMemsetAsync(out, 0, bytes, stream));
    launch_product<C>(132, stream, step->pointer, x, weights, *vectors, *vectors, *vectors, *vectors, reinterpret_cast<float*>(out));
    CHECK(cudaMemcpyAsync(a.data(), out + bytes - some, some, cudaMemcpyDeviceToHost, stream));
    CHECK(cudaMemsetAsync(out, 0, bytes, stream));
    launch_w<C, CL>();
    CHECK(cudaMemcpyAsync(b.data(), out + bytes - some, some, cudaMemcpyDeviceToHost, stream));
    CHECK(cudaStreamSynchronize(stream));
    size_t unequal = 0; for (size_t i = 0; i < a.size(); i++) unequal += !(a[i] == b[i]);
    const float ms = test::time_graph(stream, [] { launch_w<C, CL>(); }, 9);
    const double flops = 2.0 * ROWS * K * double(N) * (E == Epilogue::GATED ? 2 : 1);
    std::printf("%-52s T %5d  %8.1f us  %7.1f TFLOP/s unequal %zu first %g\n", name, ROWS, ms * 1e3, flops / ms * 1e-9, unequal, a[0]);
}
#define PRODUCT_W(scales, n, k, rows, epilogue) \
    product_w<ScaleForm::scales, n, k, rows, Epilogue::epilogue, 1>("W1 " #scales " " #n " x " #k " " #epilogue); \
    product_w<ScaleForm::scales, n, k, rows, Epilogue::epilogue, 2>("W2 " #scales " " #n " x " #k " " #epilogue)

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
    for (int i = 0; i < 2; i++) {
    product_w<ScaleForm::BLOCK128, 12288, 2048, 8192, Epilogue::STORE, 1>("W1 12288 x 2048");
    product_w<ScaleForm::BLOCK128, 4096, 14336, 8192, Epilogue::ADD, 1>("W1 4096 x 14336");
    product_w<ScaleForm::BLOCK128, 14336, 4096, 8192, Epilogue::GATED, 1>("W1 14336 x 4096 gated");
    product_w<ScaleForm::BLOCK128, 28672, 4096, 4096, Epilogue::STORE, 1>("W1 28672 x 4096");
    }
    CHECK(cudaStreamSynchronize(stream));
    return 0;
}
