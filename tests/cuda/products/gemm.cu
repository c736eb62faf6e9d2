// Tests of the tensor-core products (gemm_wgmma.cuh, gemm_mma.cuh) and of staging (stage.cuh) against a double-precision reference:
// every format, every epilogue, shapes that fill no tile, clusters, split K, and blocks that do several pieces of work.
// With the argument `defect` one weight code of the first case is wrong: the program must then fail.
#include "products/gemm_check.cuh"

template <int W, int ROWS, Norm N>
struct StageCase {
    static constexpr int WIDTH = W, CAPACITY = ROWS;
    static constexpr Norm NORM = N;
    static constexpr float EPS = 1e-5f;
    static constexpr Limit LIMIT = Limit::TOKENS;
};

template <class C>
void check_stage(const char* name, int tokens) {
    test::Random r(C::WIDTH + tokens);
    std::vector<float> x(size_t(C::CAPACITY) * C::WIDTH), norm(C::WIDTH);
    for (auto& v : x) v = 3 * r.normal();
    for (auto& v : norm) v = r.normal();
    test::Buffer<float> d_x(x), d_norm(norm);
    test::Buffer<uint16_t> out(staged_bytes(C::CAPACITY, C::WIDTH) / 2);
    const Header header(tokens, 0);
    test::launch(stage_kernel<C, StageShape<C>::THREADS>, dim3(C::CAPACITY), StageShape<C>::THREADS, 0, stream, header.step.pointer, d_x.pointer, d_norm.pointer, out.pointer);
    CHECK(cudaDeviceSynchronize());
    const std::vector<uint16_t> raw = out.download();
    bool intact = out.intact();
    std::vector<double> expected;
    std::vector<float> got;
    for (int t = 0; t < C::CAPACITY; t++) {
        double squares = 0;
        for (int k = 0; k < C::WIDTH; k++) squares += double(x[size_t(t) * C::WIDTH + k]) * x[size_t(t) * C::WIDTH + k];
        const double inverse = 1 / std::sqrt(squares / C::WIDTH + C::EPS);
        for (int k = 0; k < staged_panels(C::WIDTH) * 64; k++) {
            const float value = test::from_staged(raw, C::CAPACITY, C::WIDTH, t, k);
            if (t >= tokens) {
                intact &= std::isnan(value);
                continue;
            }
            double y = 0;
            if (k < C::WIDTH) {
                y = x[size_t(t) * C::WIDTH + k];
                if (C::NORM != Norm::NONE) y *= inverse * (C::NORM == Norm::ONE_PLUS ? 1.0 + norm[k] : norm[k]);
            }
            expected.push_back(y);
            got.push_back(k < C::WIDTH || value == 0.0f ? value : NAN);
        }
    }
    test::report(name, test::compare(got, expected), 3e-4, intact);
}

template <int T, int S, int P, int W, int N>
using H = Tiling<Engine::MMA, T, S, P, W, N>;

int main(int count, char** arguments) {
    plant_defect = count > 1 && std::strcmp(arguments[1], "defect") == 0;
    CHECK(cudaStreamCreate(&stream));
    // Shapes that fill nothing.
    check<Case<G<8, 1, 2, 3, 3>, F16, ROWS, 45, 57, 8, STORE, true>>("wgmma f16 45x57 store bias", {1, 5, 8});
    check<Case<G<16, 1, 2, 3, 3>, F16, ROWS, 45, 57, 16, GATED, true, Activation::GELU>>("wgmma f16 45x57 gated gelu bias", {13});
    check<Case<G<32, 1, 2, 3, 3>, F16, ROWS, 57, 70, 100, ADD>>("wgmma f16 57x70 add, blocks of 32", {77, 100, 0});
    check<Case<G<32, 2, 1, 3, 3>, F16, ROWS, 300, 96, 100, ADD>>("wgmma f16 300x96 add, strips 2", {77});
    check<Case<G<64, 1, 2, 3, 3>, FP8, ROWS, 57, 200, 64, STORE, false, Activation::SILU, Limit::OUTPUTS>>("wgmma fp8 57x200 store, outputs", {3, 64});
    check<Case<G<8, 1, 2, 4, 4, 1, 2, 2>, FP4, ROWS, 200, 320, 8, GATED, false, Activation::GELU_TANH>>("wgmma nvfp4 200x320 gated, split 2", {7});
    check<Case<G<16, 1, 2, 4, 4, 1, 4, 2>, FP8, BLOCK, 200, 600, 16, ADD, true>>("wgmma fp8 block 200x600 add bias, split 4", {16, 9});
    check<Case<G<64, 1, 2, 3, 3, 2, 2, 2>, FP8, ROWS, 640, 576, 64, STORE>>("wgmma fp8 640x576 store, multicast 2 split 2", {64, 33});
    check<Case<G<64, 1, 2, 3, 3, 2, 1, 2>, FP4, ROWS, 640, 576, 64, GATED>>("wgmma nvfp4 640x576 gated, multicast 2", {64, 33}, 1);
    check<Case<G<64, 2, 2, 4, 4>, FP4, ROWS, 700, 576, 64, GATED>>("wgmma nvfp4 700x576 gated, strips 2", {64, 33});
    check<Case<G<128, 1, 2, 4, 4>, FP8, BLOCK, 700, 576, 128, GATED>>("wgmma fp8 block 700x576 gated", {128, 100}, 2);
    check<Case<G<128, 1, 1, 4, 4>, F16, ROWS, 700, 576, 128, STORE>>("wgmma f16 700x576 store", {128, 100}, 2);
    check<Case<G<128, 1, 2, 3, 3, 1, 2>, F16, ROWS, 700, 576, 128, ADD>>("wgmma f16 700x576 add, split 2", {128, 100}, 2);
    check<Case<G<16, 1, 2, 4, 3, 1, 7, 2>, FP8, ROWS, 200, 2000, 16, ADD>>("wgmma fp8 200x2000 add, split 7", {16, 9});
    check<Case<G<32, 1, 2, 4, 3, 1, 1, 2>, FP8, BLOCK, 900, 4500, 32, GATED>>("wgmma fp8 block 900x4500 gated, two resident", {32, 5}, 3);
    check<Case<G<64, 1, 1, 4, 4, 1, 1, 2>, F16, ROWS, 900, 576, 64, STORE, true>>("wgmma f16 900x576 store bias, two resident", {64, 5}, 3);
    check<Case<G<128, 2, 1, 4, 4>, F16, ROWS, 900, 576, 128, ADD>>("wgmma f16 900x576 add, strips 2", {128, 77}, 2);
    check<Case<G<128, 2, 2, 4, 2>, FP8, BLOCK, 900, 4500, 128, GATED>>("wgmma fp8 block 900x4500 gated, strips 2", {128, 77}, 2);
    // Prefill.
    check<Case<G<256, 1, 1, 4, 4>, F16, ROWS, 960, 576, 1000, STORE, true>>("wgmma f16 960x576 store", {1000, 700}, 5);
    check<Case<G<256, 1, 1, 4, 4, 2>, F16, ROWS, 1100, 576, 1000, ADD>>("wgmma f16 1100x576 add, multicast 2", {1000, 257, 1}, 6);
    check<Case<G<256, 1, 1, 4, 4, 2>, F16, ROWS, 1500, 600, 1000, GATED>>("wgmma f16 1500x600 gated, multicast 2", {1000, 300}, 6);
    check<Case<G<256, 1, 1, 4, 4, 2>, FP8, BLOCK, 1500, 576, 1000, GATED>>("wgmma fp8 block 1500x576 gated, multicast 2", {999}, 6);
    check<Case<G<256, 1, 2, 5, 2>, FP8, BLOCK, 900, 4500, 600, ADD>>("wgmma fp8 block 900x4500 add", {600}, 6);
    check<Case<G<256, 1, 2, 5, 2>, FP4, ROWS, 900, 1024, 600, GATED>>("wgmma nvfp4 900x1024 gated", {600}, 6);
    check<Case<G<256, 1, 2, 2, 2, 2>, FP4, ROWS, 1500, 576, 600, ADD>>("wgmma nvfp4 1500x576 add, multicast 2", {599}, 6);
    // Without wgmma.
    check<Case<H<8, 1, 2, 2, 2>, F16, ROWS, 45, 57, 8, STORE, true>>("mma f16 45x57 store bias", {1, 5, 8});
    check<Case<H<16, 1, 2, 2, 2>, F16, ROWS, 45, 57, 16, GATED, true, Activation::RELU>>("mma f16 45x57 gated relu bias", {13});
    check<Case<H<32, 1, 2, 2, 2>, F16, ROWS, 57, 70, 100, ADD>>("mma f16 57x70 add", {77});
    check<Case<H<64, 2, 1, 2, 2>, F16, ROWS, 700, 576, 300, GATED>>("mma f16 700x576 gated, strips 2", {300, 129}, 3);
    check<Case<H<64, 1, 2, 2, 2>, FP4, ROWS, 700, 576, 64, GATED>>("mma nvfp4 700x576 gated", {64, 33}, 3);
    check<Case<H<128, 1, 1, 2, 2>, FP8, BLOCK, 700, 576, 300, ADD>>("mma fp8 block 700x576 add", {300, 129}, 3);
    check<Case<H<128, 1, 1, 3, 3>, FP8, ROWS, 700, 600, 300, STORE>>("mma fp8 700x600 store", {300, 129}, 3);
    check_stage<StageCase<45, 8, Norm::PLAIN>>("stage 45 norm", 5);
    check_stage<StageCase<576, 8, Norm::ONE_PLUS>>("stage 576 norm one-plus", 8);
    check_stage<StageCase<4096, 33, Norm::PLAIN>>("stage 4096 norm", 31);
    check_stage<StageCase<14336, 4, Norm::NONE>>("stage 14336", 4);
    std::printf("%d failures\n", test::failures);
    return test::failures != 0;
}
