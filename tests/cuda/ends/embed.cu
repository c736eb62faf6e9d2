// Embedding, row selection and dummy weights: every format's table is filled on the device and checked for padding, spread and
// repeatability; embedded rows, with and without a factor, must equal, to the bit, what the host decodes by the packed layout's
// definition. With the argument "planted" the host reads every row's neighbour, which must fail.
#include "core/filled.cuh"
#include "kernels/embed.cuh"
#include "kernels/fill_vector.cuh"
#include "kernels/select.cuh"

using namespace monomorph;

template <int H, Format F, ScaleForm S, bool D>
struct Table {
    static constexpr int HIDDEN = H, THREADS = 128;
    static constexpr Format FORMAT = F;
    static constexpr ScaleForm SCALES = S;
    static constexpr bool DECODE = D;
};

// With a factor of what is looked up.
template <class Base>
struct Multiplied : Base {
    static constexpr float FACTOR = 53.065997f;
};

static bool planted = false;

static void expect(bool good, const char* what, const char* name) {
    if (good) return;
    std::printf("FAIL %s: %s\n", name, what);
    test::failures++;
}

// Mean, deviation, largest; what lies in the padding.
template <Format F, ScaleForm S>
void check_fill(test::FilledMatrix<F, S>& table, const char* name, float deviation) {
    double sum = 0, squares = 0, largest = 0;
    size_t count = 0, outside = 0;
    for (int row = 0; row < table.tiles * 8; row++) {
        const bool inside = row / 8 / table.parts * 8 + row % 8 < table.rows;
        for (int column = 0; column < table.units * Unit<F>::COLUMNS; column++) {
            if (inside && column < table.columns) {
                const double v = table.value(row, column);
                sum += v, squares += v * v, largest = std::max(largest, std::fabs(v)), count++;
            } else if (column < table.columns || S != ScaleForm::BLOCK128) {
                outside += table.value(row, column) != 0;
            }
        }
    }
    const double mean = sum / count, spread = std::sqrt(squares / count - mean * mean);
    std::printf("     %-18s %d x %d: mean %.1e, deviation %.5f (asked %.5f), largest %.4f\n", name, table.rows, table.columns, mean, spread, deviation, largest);
    // Four standard errors of each, and what a format's codes add: signed bytes reach one further down than up.
    const double error = 4 / std::sqrt(double(count));
    expect(std::fabs(spread / deviation - 1) < 0.02 + error && std::fabs(mean) < (0.01 + error) * deviation, "the spread of the weights", name);
    expect(outside == 0, "padding is not zero", name);
    expect(table.codes.intact() && table.scales.intact() && table.row_scales.intact(), "wrote behind the end", name);
    const auto first = table.host_codes;
    table.codes.poison();
    table.fill(17, 128, deviation);
    expect(table.codes.download() == first && table.scales.download() == table.host_scales, "another grid gives other weights", name);
}

template <int H, Format F, ScaleForm S, bool MULTIPLIED = false>
void check(const char* name) {
    constexpr int V = 1003;  // not a multiple of 8
    test::FilledMatrix<F, S> table(V, H, false, 0.02f), gated(37, H, true, 0.05f);
    check_fill(table, name, 0.02f);
    check_fill(gated, (std::string(name) + " gated").c_str(), 0.05f);

    cudaStream_t stream;
    CHECK(cudaStreamCreate(&stream));
    test::Buffer<Step> step(1);
    test::Random random(H);
    std::vector<int> sampled(300);
    for (int& id : sampled) id = random.below(V);
    test::Buffer<int> sampled_ids(sampled);
    for (bool decode : {true, false}) {
        Step host = {};
        const int rows = decode ? 117 : 300, grid_rows = decode ? 128 : 300;
        std::vector<TokenRow> tokens(rows);
        std::vector<int> expected(rows);
        host.tokens = rows;
        host.sequences = decode ? rows : 5;
        for (int i = 0; i < MAX_SEQUENCES; i++) host.sequence[i] = {i, 1, 0, 0, i % 3 ? random.below(V) : -1, (i * 7) % 300, -1, 0};
        for (int i = 0; i < rows; i++) {
            tokens[i] = {i % 4 ? random.below(V) : -1, i % 5};
            const Sequence& sequence = host.sequence[decode ? i : tokens[i].sequence];
            const int id = decode ? sequence.token : tokens[i].id;
            expected[i] = id < 0 ? sampled[sequence.slot] : id;
        }
        step.upload({host});
        test::Buffer<TokenRow> device_tokens(tokens);
        test::Buffer<float> residual(size_t(grid_rows) * H);
        using D = std::conditional_t<MULTIPLIED, Multiplied<Table<H, F, S, true>>, Table<H, F, S, true>>;
        using P = std::conditional_t<MULTIPLIED, Multiplied<Table<H, F, S, false>>, Table<H, F, S, false>>;
        const dim3 grid(embed_blocks<D>(), grid_rows);
        if (decode) {
            test::launch(embed_kernel<D, D::THREADS>, grid, D::THREADS, 0, stream, step.pointer, static_cast<const TokenRow*>(nullptr), sampled_ids.pointer, table.codes.pointer,
                         table.scales.pointer, table.row_scales.pointer, residual.pointer);
        } else {
            test::launch(embed_kernel<P, P::THREADS>, grid, P::THREADS, 0, stream, step.pointer, device_tokens.pointer, sampled_ids.pointer, table.codes.pointer, table.scales.pointer,
                         table.row_scales.pointer, residual.pointer);
        }
        CHECK(cudaStreamSynchronize(stream));
        const auto out = residual.download();
        size_t unequal = 0, written = 0;
        for (int i = 0; i < grid_rows; i++) {
            for (int column = 0; column < H; column++) {
                const float found = out[size_t(i) * H + column];
                if (i < rows) unequal += !(found == table.value((expected[i] + planted) % V, column) * FACTOR_OF<D>);
                else written += found == found;
            }
        }
        const bool passed = unequal == 0 && written == 0 && residual.intact();
        std::printf("%s embed %-18s %s: %zu of %d values differ%s\n", passed ? "ok  " : "FAIL", name, decode ? "decode" : "prefill", unequal, rows * H,
                    written ? "  WROTE ROWS BEYOND THE STEP" : residual.intact() ? "" : "  WROTE BEHIND THE END");
        if (!passed) test::failures++;
    }
}

template <int H>
void check_select() {
    using C = Table<H, Format::F32, ScaleForm::NONE, true>;
    test::Random random(7);
    std::vector<float> rows(size_t(200) * H);
    for (float& x : rows) x = random.normal();
    Step host = {};
    host.outputs = 61;
    for (int i = 0; i < host.outputs; i++) host.output_rows[i] = random.below(200);
    test::Buffer<Step> step(std::vector<Step>{host});
    test::Buffer<float> from(rows), to(size_t(64) * H);
    test::launch(select_kernel<C, C::THREADS>, dim3(select_blocks<C>(), 64), C::THREADS, 0, nullptr, step.pointer, from.pointer, to.pointer);
    CHECK(cudaDeviceSynchronize());
    const auto out = to.download();
    size_t wrong = 0;
    for (int i = 0; i < 64; i++) {
        for (int column = 0; column < H; column++) {
            const float found = out[size_t(i) * H + column];
            wrong += i < host.outputs ? found != rows[size_t(host.output_rows[i] + planted) % 200 * H + column] : found == found;
        }
    }
    std::printf("%s select, hidden %d: %zu wrong\n", wrong == 0 && to.intact() ? "ok  " : "FAIL", H, wrong);
    if (wrong != 0 || !to.intact()) test::failures++;
}

template <int H, Format F, ScaleForm S>
void speed(const char* name) {
    using C = Table<H, F, S, true>;
    test::FilledMatrix<F, S> table(8192, H, false, 0.02f);
    Step host = {};
    test::Buffer<Step> step(1);
    test::Buffer<int> sampled_ids(std::vector<int>(1, 0));
    test::Buffer<float> residual(size_t(128) * H), selected(size_t(128) * H);
    cudaStream_t stream;
    CHECK(cudaStreamCreate(&stream));
    std::printf("     %-12s hidden %d, microseconds a launch:", name, H);
    for (int rows : {1, 128}) {
        host.tokens = host.sequences = host.outputs = rows;
        for (int i = 0; i < rows; i++) host.sequence[i] = {i, 1, 0, 0, i * 61, 0, i, 0}, host.output_rows[i] = i;
        step.upload({host});
        const float embedded = 10 * test::time_graph(stream, [&] {
            for (int i = 0; i < 100; i++)
                test::launch(embed_kernel<C, C::THREADS>, dim3(embed_blocks<C>(), rows), C::THREADS, 0, stream, step.pointer, static_cast<const TokenRow*>(nullptr), sampled_ids.pointer,
                             table.codes.pointer, table.scales.pointer, table.row_scales.pointer, residual.pointer);
        });
        const float copied = 10 * test::time_graph(stream, [&] {
            for (int i = 0; i < 100; i++) test::launch(select_kernel<C, C::THREADS>, dim3(select_blocks<C>(), rows), C::THREADS, 0, stream, step.pointer, residual.pointer, selected.pointer);
        });
        std::printf("  %d rows: embed %.2f, select %.2f", rows, embedded, copied);
    }
    std::printf("\n");
}

int main(int arguments, char** argument) {
    planted = arguments > 1 && !std::strcmp(argument[1], "planted");
    check<576, Format::F32, ScaleForm::NONE>("f32");
    check<576, Format::BF16, ScaleForm::NONE>("bf16");
    check<100, Format::BF16, ScaleForm::NONE>("bf16");
    check<576, Format::F16, ScaleForm::ROWS>("f16 with scales of rows");
    check<45, Format::BF16, ScaleForm::NONE>("bf16");
    check<63, Format::F32, ScaleForm::NONE>("f32");
    check<2048, Format::F16, ScaleForm::NONE>("f16");
    check<576, Format::FP8_E4M3, ScaleForm::ROWS>("fp8 tensor");
    check<1056, Format::FP8_E4M3, ScaleForm::BLOCK128>("fp8 block128");
    check<2880, Format::NVFP4, ScaleForm::ROWS>("nvfp4");
    check<576, Format::Q8_0, ScaleForm::NONE>("q8_0");
    check<576, Format::Q4_1, ScaleForm::NONE>("q4_1");
    check<2816, Format::BF16, ScaleForm::NONE, true>("bf16 multiplied");
    check<45, Format::NVFP4, ScaleForm::ROWS, true>("nvfp4 multiplied");
    check_select<576>();
    check_select<45>();
    check_select<4096>();
    test::Buffer<float> vector(100001);
    test::launch(fill_vector_kernel<void, test::FILL_THREADS>, dim3(13), test::FILL_THREADS, 0, nullptr, vector.pointer, 100001, 1.0f, 0.1f, 9);
    CHECK(cudaDeviceSynchronize());
    double sum = 0, squares = 0;
    for (float v : vector.download()) sum += v, squares += double(v - 1) * (v - 1);
    std::printf("     vector: mean %.4f, deviation %.4f\n", sum / 100001, std::sqrt(squares / 100001));
    expect(std::fabs(sum / 100001 - 1) < 0.01 && std::fabs(std::sqrt(squares / 100001) - 0.1) < 0.002 && vector.intact(), "the spread of a vector", "vector");
    if (test::failures == 0) {
        speed<4096, Format::BF16, ScaleForm::NONE>("bf16");
        speed<4096, Format::NVFP4, ScaleForm::ROWS>("nvfp4");
    }
    std::printf("%s\n", test::failures == 0 ? "all passed" : "FAILED");
    return test::failures != 0;
}
