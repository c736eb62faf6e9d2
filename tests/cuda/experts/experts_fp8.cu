// Tests of the experts' products in fp8 (experts_gemm_fp8.cuh) against a reference in double precision: gate and up with what they quantise, down in f32 and
// in f16, each on operands of its own, so that every difference is that kernel's.
// With the argument `defect` one weight code of the first case is wrong: the program must then fail. Built with BENCH it measures instead.
#include "products/gemm_fp8_case.cuh"

#include "kernels/experts_gemm_fp8.cuh"

static bool plant_defect = false;
static cudaStream_t stream;

// GATHER: gate and up. N, K: outputs and inputs of the product.
template <ScaleForm SCALE_FORM, int EXPERT_COUNT, int ACTIVE_COUNT, int ROWS, bool GATHERS, int N, int K, Epilogue E, bool NARROW_PRODUCTS = false,
          Activation A = Activation::SILU>
struct Grouped : Case<SCALE_FORM, N, K, ExpertLists<EXPERT_COUNT, ACTIVE_COUNT, ROWS, 128>::ROWS, E, 4, false, A> {
    static constexpr int EXPERTS = EXPERT_COUNT, ACTIVE = ACTIVE_COUNT, STEP_ROWS = ROWS, TOKENS = 128;
    static constexpr bool GATHER = GATHERS, NARROW = NARROW_PRODUCTS;
    static constexpr int X_ROWS = GATHERS ? round_up(ROWS, 8) : ExpertLists<EXPERT_COUNT, ACTIVE_COUNT, ROWS, 128>::ROWS;
};

// What sorting leaves behind of tokens that choose `skewed` experts: all any, or most the first.
template <class C>
std::vector<char> lists_of(test::Random& r, int tokens, bool skewed, std::vector<int>& expert_of, std::vector<int>& pair_of) {
    using Lists = ListsOf<C>;
    std::vector<int> expert(tokens * C::ACTIVE);
    for (int t = 0; t < tokens; t++)
        for (int s = 0; s < C::ACTIVE; s++) {
            const auto chosen = [&](int e) { return std::find(&expert[t * C::ACTIVE], &expert[t * C::ACTIVE + s], e) != &expert[t * C::ACTIVE + s]; };
            int e = skewed && r.below(8) != 0 ? s : r.below(C::EXPERTS);
            while (chosen(e)) e = (e + 1) % C::EXPERTS;
            expert[t * C::ACTIVE + s] = e;
        }
    std::vector<char> raw(Lists::BYTES, char(0xff));
    const auto ints = [&](int at) { return reinterpret_cast<int*>(raw.data() + at); };
    expert_of.assign(Lists::ROWS, -1), pair_of.assign(Lists::ROWS, -1);
    int next = 0, tiles = 0;
    for (int e = 0; e < C::EXPERTS; e++) {
        const int first = next;
        for (size_t pair = 0; pair < expert.size(); pair++)
            if (expert[pair] == e) expert_of[next] = e, pair_of[next] = int(pair), ints(Lists::PAIR_OF_ROW_AT)[next++] = int(pair);
        for (int at = first; at < next; at += 128) {
            ints(Lists::TILES_AT)[2 * tiles] = at, ints(Lists::TILES_AT)[2 * tiles + 1] = e * 256 + std::min(128, next - at);
            tiles++;
        }
        next = (next + 7) / 8 * 8;
    }
    ints(Lists::COUNT_AT)[0] = tiles;
    return raw;
}

// `multiprocessors` bounds the grid, so that few make blocks work repeatedly.
template <class C>
void check(const char* name, int tokens, bool skewed, int multiprocessors = 132) {
    static uint64_t seed = 1;
    test::Random r(seed++);
    using S = ExpertsFp8<C>;
    Weights<C> w(r, C::EXPERTS);
    const Weights<C> right = w;
    if (plant_defect) w.codes[UNIT_BYTES / 2 + 1] ^= 0x40;
    plant_defect = false;
    std::vector<int> expert_of, pair_of;
    test::Buffer<char> lists(lists_of<C>(r, tokens, skewed, expert_of, pair_of));
    std::vector<float> x(size_t(C::GATHER ? tokens : C::CAPACITY) * C::INPUTS);
    for (auto& v : x) v = r.normal();
    const std::vector<uint8_t> quantised = test::quantised(x, C::INPUTS, C::X_ROWS);
    test::Buffer<uint8_t> d_x(quantised), codes(w.codes), out(experts_fp8_bytes<C>());
    test::Buffer<float> row_scales(w.row_scales), block_scales(w.block_scales);
    test::launch(experts_gemm_fp8_kernel<C, S::THREADS, S::SHARED_BYTES>, dim3(experts_fp8_blocks<C>(multiprocessors)), S::THREADS, S::SHARED_BYTES, stream,
                 lists.pointer, d_x.pointer, codes.pointer, block_scales.pointer, row_scales.pointer, out.pointer);
    CHECK(cudaDeviceSynchronize());
    const std::vector<uint8_t> raw = out.download();
    bool intact = out.intact();
    std::vector<double> expected;
    std::vector<float> got;
    const auto result = [&](int row, int f) -> float {
        if (C::GATHER) return test::from_quantised(raw, C::CAPACITY, C::OUTPUTS, row, f);
        const size_t at = size_t(row) * C::OUTPUTS + f;
        if (!C::NARROW) return reinterpret_cast<const float*>(raw.data())[at];
        using Narrow = NarrowProducts<C::CAPACITY, C::OUTPUTS>;
        const uint16_t code = reinterpret_cast<const uint16_t*>(raw.data())[at];
        const float scale = reinterpret_cast<const float*>(raw.data() + Narrow::SCALES_AT)[size_t(row) * Narrow::SCALES + f / Narrow::SPAN];
        return (code & 0x7c00) == 0x7c00 ? NAN : test::f16_to_float(code) * scale;
    };
    for (int row = 0; row < C::CAPACITY; row++) {
        if (pair_of[row] < 0) {
            for (int f = 0; f < C::OUTPUTS; f++) intact &= std::isnan(result(row, f));
            continue;
        }
        std::vector<float> own(C::INPUTS);
        for (int k = 0; k < C::INPUTS; k++) own[k] = test::from_quantised(quantised, C::X_ROWS, C::INPUTS, C::GATHER ? pair_of[row] / C::ACTIVE : row, k);
        const auto sum = [&](int packed) {
            double value = 0;
            for (int k = 0; k < C::INPUTS; k++) value += double(right.value(expert_of[row], packed, k)) * own[k];
            return value * right.scale(expert_of[row], packed);
        };
        for (int f = 0; f < C::OUTPUTS; f++) {
            const int packed = S::GATED ? f / 8 * 16 + f % 8 : f;
            double value = sum(packed);
            if (S::GATED || C::EPILOGUE == Epilogue::ACTIVATED) value = activation(C::ACTIVATION, value);
            if (S::GATED) value *= sum(packed + 8);
            expected.push_back(value);
            got.push_back(result(row, f));
        }
    }
    char line[160];
    std::snprintf(line, sizeof line, "%s, %d tokens%s", name, tokens, skewed ? " of a few experts" : "");
    // Rounding to e4m3 alone costs 2.5e-2; what stands in a wrong place costs about 1.
    test::report(line, test::compare(got, expected), C::GATHER ? 3.7e-2 : C::NARROW ? test::OF_SUMS + 3e-4 : test::OF_SUMS, intact);
    if (!C::GATHER) return;
    // Codes and scales are those of what was made, but where sums that differ by so little change one.
    std::vector<float> values(size_t(C::CAPACITY) * C::OUTPUTS, 0.0f);
    size_t at = 0;
    for (int row = 0; row < C::CAPACITY; row++)
        for (int f = 0; f < C::OUTPUTS && pair_of[row] >= 0; f++) values[size_t(row) * C::OUTPUTS + f] = float(expected[at++]);
    const std::vector<uint8_t> want = test::quantised(values, C::OUTPUTS, C::CAPACITY);
    std::vector<double> exact;
    for (int row = 0; row < C::CAPACITY; row++)
        for (int f = 0; f < C::OUTPUTS && pair_of[row] >= 0; f++) exact.push_back(test::from_quantised(want, C::CAPACITY, C::OUTPUTS, row, f));
    test::report("  against the reference quantised", test::compare(got, exact), std::sqrt(test::OF_SUMS), true);
}

constexpr auto ROWS = ScaleForm::ROWS;
constexpr auto BLOCK = ScaleForm::BLOCK128;
constexpr auto STORE = Epilogue::STORE;
constexpr auto GATED = Epilogue::GATED;
constexpr auto ACTIVATED = Epilogue::ACTIVATED;

#ifdef BENCH
// Bytes of the masked words' bits beside those that are set.
__global__ void fill(unsigned* words, size_t count, unsigned mask, unsigned set) {
    for (size_t i = blockIdx.x * size_t(blockDim.x) + threadIdx.x; i < count; i += size_t(gridDim.x) * blockDim.x) {
        unsigned long long z = (i + 1) * 0x9e3779b97f4a7c15ull;
        z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
        words[i] = (unsigned(z >> 29) & mask) | set;
    }
}

template <class C>
void measure(const char* name, int tokens) {
    using S = ExpertsFp8<C>;
    test::Random r(7);
    std::vector<int> expert_of, pair_of;
    test::Buffer<char> lists(lists_of<C>(r, tokens, false, expert_of, pair_of)), out(experts_fp8_bytes<C>());
    const size_t x_bytes = quantised_bytes(C::X_ROWS, C::INPUTS), codes_at = quantised_scales_at(C::X_ROWS, C::INPUTS);
    test::Buffer<char> x(x_bytes), codes(C::EXPERTS * S::CODE_BYTES);
    fill<<<1024, 256, 0, stream>>>(reinterpret_cast<unsigned*>(x.pointer), codes_at / 4, 0x8f8f8f8f, 0x30303030);
    fill<<<1024, 256, 0, stream>>>(reinterpret_cast<unsigned*>(x.pointer + codes_at), (x_bytes - codes_at) / 4, 0x000fffff, 0x3c000000);
    fill<<<1024, 256, 0, stream>>>(reinterpret_cast<unsigned*>(codes.pointer), codes.count / 4, 0x8f8f8f8f, 0x30303030);
    test::Buffer<float> scales(std::vector<float>(size_t(C::EXPERTS) * S::TILES * most(S::PANELS, 8), 0.01f));
    const float ms = test::time_graph(stream, [&] {
        test::launch(experts_gemm_fp8_kernel<C, S::THREADS, S::SHARED_BYTES>, dim3(experts_fp8_blocks<C>(132)), S::THREADS, S::SHARED_BYTES, stream, lists.pointer,
                     x.pointer, codes.pointer, scales.pointer, scales.pointer, out.pointer);
    }, 9);
    const double flops = 2.0 * tokens * C::ACTIVE * double(S::TILES * 8) * C::INPUTS;
    std::printf("%-40s %5d tokens  %8.1f us  %7.1f TFLOP/s\n", name, tokens, ms * 1e3, flops / ms * 1e-9);
}
#endif

int main(int count, char** arguments) {
#ifdef BENCH
    (void)count, (void)arguments;
    CHECK(cudaStreamCreate(&stream));
    // The 35B's, of 256 experts.
    measure<Grouped<BLOCK, 256, 8, 8192, true, 512, 2048, GATED>>("gate and up 512 x 2048", 8192);
    measure<Grouped<BLOCK, 256, 8, 8192, false, 2048, 512, STORE, true>>("down 2048 x 512, f16", 8192);
    measure<Grouped<BLOCK, 256, 8, 1024, true, 512, 2048, GATED>>("gate and up 512 x 2048", 1024);
    measure<Grouped<BLOCK, 256, 8, 1024, false, 2048, 512, STORE, true>>("down 2048 x 512, f16", 1024);
    return 0;
#endif
    plant_defect = count > 1 && std::strcmp(arguments[1], "defect") == 0;
#ifndef MONOMORPH_HOST
    CHECK(cudaStreamCreate(&stream));
#endif
    check<Grouped<BLOCK, 2, 1, 136, false, 128, 128, STORE>>("block down 128x128", 7, false);
    check<Grouped<BLOCK, 5, 2, 200, true, 128, 256, GATED>>("block gate and up 128x256", 190, false);
    check<Grouped<BLOCK, 5, 2, 200, true, 256, 384, GATED>>("block gate and up 256x384", 200, true, 3);
    check<Grouped<ROWS, 4, 2, 136, true, 128, 128, GATED, false, Activation::GELU_TANH>>("rows gate and up 128x128", 131, true, 2);
    check<Grouped<BLOCK, 4, 2, 136, true, 384, 128, ACTIVATED, false, Activation::RELU2>>("block up 384x128, no gates", 131, false, 2);
    check<Grouped<BLOCK, 5, 2, 200, false, 384, 256, STORE>>("block down 384x256", 200, true, 3);
    check<Grouped<BLOCK, 5, 2, 200, false, 384, 256, STORE, true>>("block down 384x256, f16", 193, true, 3);
    check<Grouped<ROWS, 5, 2, 200, false, 200, 128, STORE, true>>("rows down 200x128, f16", 66, false);
    check<Grouped<BLOCK, 5, 2, 200, false, 640, 512, STORE, true>>("block down 640x512, f16", 0, false);
    std::printf("%d failures\n", test::failures);
    return test::failures != 0;
}
