// Tests of a mixture of experts for many tokens (experts_sort.cuh, experts_gemm*.cuh, experts_rings.cuh, experts_batch_combine.cuh) against a reference in
// double precision: each kernel by itself on what the one before it left, so that every difference is that kernel's own.
// With the argument `defect` one weight code of the first case is wrong: the program must then fail.
// Built with BENCH it measures instead (experts_batch_bench.cuh). NO_WGMMA: for cards without. SMALL: without the larger shapes.
#include "experts/experts_batch_case.cuh"

bool plant_defect = false;
static cudaStream_t stream;

struct Header {
    test::Buffer<Step> step{1};
    explicit Header(int tokens) {
        std::vector<Step> host(1);
        std::memset(host.data(), 0, sizeof(Step));
        host[0].tokens = tokens;
        step.upload(host);
    }
};

// What sorting must leave behind, by plain means.
struct Routing {
    std::vector<int> expert;      // [pairs]
    std::vector<double> weight;   // [pairs]
    std::vector<int> tiles;       // first row, expert, rows
    std::vector<int> row, pair;   // of a pair; of a row, or -1
};

template <class M>
Routing route(const std::vector<float>& logits, int tokens, int tile, int rows) {
    Routing out;
    for (int t = 0; t < tokens; t++) {
        const float* own = &logits[size_t(t) * M::LOGITS];
        std::vector<int> order(M::EXPERTS);
        for (int e = 0; e < M::EXPERTS; e++) order[e] = e;
        std::stable_sort(order.begin(), order.end(), [&](int a, int b) { return own[a] > own[b]; });
        double total = 0, chosen = 0;
        for (int e = 0; e < M::EXPERTS; e++) total += std::exp(double(own[e]) - own[order[0]]);
        for (int s = 0; s < M::ACTIVE; s++) chosen += std::exp(double(own[order[s]]) - own[order[0]]);
        for (int s = 0; s < M::ACTIVE; s++) {
            out.expert.push_back(order[s]);
            const double share = std::exp(double(own[order[s]]) - own[order[0]]) / (M::RENORMALISE ? chosen : total);
            out.weight.push_back(share * (M::EXPERT_SCALES ? own[M::EXPERTS + order[s]] : 1.0f));
        }
    }
    out.row.assign(out.expert.size(), -1);
    out.pair.assign(rows, -1);
    int next = 0;
    for (int e = 0; e < M::EXPERTS; e++) {
        const int first = next;
        for (size_t pair = 0; pair < out.expert.size(); pair++) {
            if (out.expert[pair] == e) out.row[pair] = next, out.pair[next++] = int(pair);
        }
        for (int at = first; at < next; at += tile) out.tiles.insert(out.tiles.end(), {at, e, std::min(tile, next - at)});
        next = (next + 7) / 8 * 8;
    }
    return out;
}

template <class Lists>
bool same_lists(const std::vector<char>& raw, const Routing& want) {
    const auto ints = [&](int at) { return reinterpret_cast<const int*>(raw.data() + at); };
    bool same = ints(Lists::COUNT_AT)[0] * 3 == int(want.tiles.size()) && ints(Lists::ARRIVED_AT)[0] == 0;
    for (size_t i = 0; same && i < want.tiles.size(); i += 3) {
        const int* tile = ints(Lists::TILES_AT) + i / 3 * 2;
        same = tile[0] == want.tiles[i] && tile[1] == want.tiles[i + 1] * 256 + want.tiles[i + 2];
    }
    for (size_t pair = 0; same && pair < want.row.size(); pair++) {
        same = ints(Lists::ROW_OF_PAIR_AT)[pair] == want.row[pair] && ints(Lists::PAIR_OF_ROW_AT)[want.row[pair]] == int(pair) &&
               ints(Lists::EXPERTS_AT)[pair] == want.expert[pair];
    }
    return same;
}

enum class Draw { RANDOM, TIES, ONE_SET };  // of experts: any, with many equal logits, all tokens the same

// The whole mixture on a step of `tokens`. `multiprocessors` bounds the grid, so that few make blocks work repeatedly.
template <class M, class T>
struct Case {
    using G = Product<M, T, true>;
    using D = Product<M, T, false>;
    using Lists = ListsOf<G>;
    test::Random r;
    Weights<G> gate_up;
    Weights<D> down;
    test::Buffer<uint8_t> gate_up_codes, gate_up_scales, down_codes, down_scales;
    test::Buffer<float> gate_up_rows, down_rows, gate_up_blocks, down_blocks;
    // Of the last run.
    std::vector<float> logits, x, residual, shared, out;

    explicit Case(uint64_t seed)
        : r(seed), gate_up(r), down(r), gate_up_codes(spoilt(gate_up.codes)), gate_up_scales(gate_up.scales), down_codes(down.codes),
          down_scales(down.scales), gate_up_rows(gate_up.row_scales), down_rows(down.row_scales), gate_up_blocks(gate_up.block_scales),
          down_blocks(down.block_scales) {}
    static std::vector<uint8_t> spoilt(std::vector<uint8_t> codes) {
        if (plant_defect) codes[UNIT_BYTES / 2 + 1] ^= 0x10;  // f16: a sixteenth, or sixteen times as much
        plant_defect = false;
        return codes;
    }

    void draw(int tokens, Draw choice) {
        logits.resize(size_t(tokens) * M::LOGITS);
        for (auto& v : logits) v = choice == Draw::TIES ? float(r.below(3)) - 1.0f : 2 * r.normal();
        if (choice == Draw::ONE_SET) {
            for (size_t i = M::LOGITS; i < logits.size(); i++) logits[i] = logits[i % M::LOGITS];
        }
        x.resize(size_t(tokens) * M::HIDDEN);
        for (auto& v : x) v = test::round_bf16(r.normal());
        residual.resize(x.size());
        for (auto& v : residual) v = r.normal();
        shared.resize(x.size());
        for (auto& v : shared) v = r.normal();
    }

    // Runs what `draw` drew; with `name`, checks it.
    void run(const char* name, int tokens, int multiprocessors) {
        Workspace<M, T> space;
        const Header header(tokens);
        test::Buffer<float> d_logits(logits.size() + 1), d_out(size_t(M::STEP_ROWS) * M::HIDDEN), d_shared(shared.size() + 1);
        d_logits.upload(logits);
        d_out.upload(residual);
        d_shared.upload(shared);
        test::Buffer<uint16_t> d_x(test::staged(x, M::HIDDEN, G::X_ROWS));
        launch_sort<G>(stream, header.step, d_logits, space.lists);
        launch_product<G>(multiprocessors, stream, space.lists, d_x, gate_up_codes, gate_up.scale_plane(gate_up_blocks, gate_up_scales),
                          gate_up_rows, space.inner);
        launch_stage<D>(stream, space.lists, space.inner, space.staged);
        launch_product<D>(multiprocessors, stream, space.lists, input<D>(space), down_codes, down.scale_plane(down_blocks, down_scales), down_rows,
                          space.products);
        launch_combine<G>(stream, header.step, space.lists, space.products, d_shared, d_logits, d_out);
        CHECK(cudaStreamSynchronize(stream));
        out = d_out.download();
        if (name == nullptr) return;

        const Routing want = route<M>(logits, tokens, T::TOKENS, Lists::ROWS);
        const std::vector<char> lists = space.lists.download();
        const float* weights = reinterpret_cast<const float*>(lists.data() + Lists::WEIGHTS_AT);
        report(name, tokens, "routing", test::compare({weights, weights + want.weight.size()}, want.weight), 1e-6,
               same_lists<Lists>(lists, want) && space.lists.intact());
        if (!same_lists<Lists>(lists, want)) return;
        check_inner(name, tokens, want, space.inner);
        check_stage(name, tokens, want, space.inner.download(), space.staged);
        check_products(name, tokens, want, space.staged.download(), space.products);
        check_out(name, tokens, want, space.products.download(), d_out.intact());
    }

    static void report(const char* name, int tokens, const char* part, const test::Difference& difference, double limit, bool intact) {
        char line[160];
        std::snprintf(line, sizeof line, "%s, %d tokens: %s", name, tokens, part);
        test::report(line, difference, limit, intact);
    }

    void check_inner(const char* name, int tokens, const Routing& want, const test::Buffer<float>& buffer) {
        const std::vector<float> raw = buffer.download();
        bool intact = buffer.intact();
        std::vector<double> expected;
        std::vector<float> got;
        for (int row = 0; row < Lists::ROWS; row++) {
            for (int f = 0; f < M::WIDTH; f++) {
                const float value = raw[size_t(row) * M::WIDTH + f];
                if (want.pair[row] < 0) {
                    intact &= std::isnan(value);
                    continue;
                }
                const int expert = want.expert[want.pair[row]];
                const float* own = &x[size_t(want.pair[row] / M::ACTIVE) * M::HIDDEN];
                double sums[2] = {0, 0};
                for (int part = 0; part < 2; part++) {
                    const int packed = f / 8 * 16 + part * 8 + f % 8;
                    for (int k = 0; k < M::HIDDEN; k++) sums[part] += double(gate_up.value(expert, packed, k)) * own[k];
                    sums[part] *= gate_up.scale(expert, packed);
                }
                const double cubic = std::sqrt(8 / std::acos(-1.0)) * (sums[0] + 0.044715 * sums[0] * sums[0] * sums[0]);   // twice what tanh is of
                expected.push_back(sums[0] / (1 + std::exp(M::ACTIVATION == Activation::GELU_TANH ? -cubic : -sums[0])) * sums[1]);
                got.push_back(value);
            }
        }
        report(name, tokens, "gate and up", test::compare(got, expected), 1e-5 * std::max(1.0, M::HIDDEN / 500.0), intact);
    }

    void check_stage(const char* name, int tokens, const Routing& want, const std::vector<float>& inner, const test::Buffer<uint16_t>& buffer) {
        const std::vector<uint16_t> raw = buffer.download();
        std::vector<double> expected;
        std::vector<float> got;
        for (int row = 0; row < Lists::ROWS; row++) {
            if (want.pair[row] < 0) continue;   // whatever it is, nobody reads it
            const float* own = &inner[size_t(row) * M::WIDTH];
            const float scale = test::half_scale(own, M::WIDTH);
            for (int f = 0; f < staged_panels(M::WIDTH) * 64; f++) {
                expected.push_back(f < M::WIDTH ? test::round_f16(own[f] * scale) / scale : 0.0);
                got.push_back(test::from_staged(raw, Lists::ROWS, M::WIDTH, row, f));
            }
        }
        report(name, tokens, "staging", test::compare(got, expected), 0, buffer.intact());
    }

    static float product_of(const std::vector<char>& products, int row, int h) {
        const size_t at = size_t(row) * M::HIDDEN + h;
        if (!T::NARROW) return reinterpret_cast<const float*>(products.data())[at];
        using Narrow = NarrowProducts<Lists::ROWS, M::HIDDEN>;
        const uint16_t code = reinterpret_cast<const uint16_t*>(products.data())[at];
        const float scale = reinterpret_cast<const float*>(products.data() + Narrow::SCALES_AT)[size_t(row) * Narrow::SCALES + h / Narrow::SPAN];
        return (code & 0x7c00) == 0x7c00 ? NAN : test::f16_to_float(code) * scale;
    }

    void check_products(const char* name, int tokens, const Routing& want, const std::vector<uint16_t>& inner, const test::Buffer<char>& buffer) {
        const std::vector<char> raw = buffer.download();
        bool intact = buffer.intact();
        std::vector<double> expected;
        std::vector<float> got, own(M::WIDTH);
        for (int row = 0; row < Lists::ROWS; row++) {
            for (int k = 0; k < M::WIDTH; k++) own[k] = test::from_staged(inner, Lists::ROWS, M::WIDTH, row, k);
            for (int h = 0; h < M::HIDDEN; h++) {
                if (want.pair[row] < 0) {
                    intact &= std::isnan(product_of(raw, row, h));
                    continue;
                }
                const int expert = want.expert[want.pair[row]];
                double sum = 0;
                for (int k = 0; k < M::WIDTH; k++) sum += double(down.value(expert, h, k)) * own[k];
                expected.push_back(sum * down.scale(expert, h));
                got.push_back(product_of(raw, row, h));
            }
        }
        report(name, tokens, "down", test::compare(got, expected), T::NARROW ? 3e-4 : 2e-6 * std::max(1.0, M::WIDTH / 500.0), intact);
    }

    void check_out(const char* name, int tokens, const Routing& want, const std::vector<char>& products, bool intact) {
        std::vector<double> expected;
        for (int t = 0; t < tokens; t++) {
            const double gate = 1 / (1 + std::exp(-double(logits[size_t(t) * M::LOGITS + M::EXPERTS])));
            for (int h = 0; h < M::HIDDEN; h++) {
                double sum = residual[size_t(t) * M::HIDDEN + h] + (M::SHARED ? gate * shared[size_t(t) * M::HIDDEN + h] : 0.0);
                for (int s = 0; s < M::ACTIVE; s++) {
                    sum += want.weight[t * M::ACTIVE + s] * product_of(products, want.row[t * M::ACTIVE + s], h);
                }
                expected.push_back(sum);
            }
        }
        for (size_t i = expected.size(); i < out.size(); i++) intact &= std::isnan(out[i]);
        report(name, tokens, "sum", test::compare(out, expected), 1e-6, intact);
    }
};

template <class M, class T>
void check(const char* name, std::vector<int> token_counts, int multiprocessors = 132) {
    static uint64_t seed = 1;
    Case<M, T> mixture(seed++);
    for (int tokens : token_counts) {
        const Draw choices[] = {Draw::RANDOM, Draw::TIES, Draw::ONE_SET};
        mixture.draw(tokens, choices[(seed + tokens) % 3]);
        mixture.run(name, tokens, multiprocessors);
    }
    // A row's bits do not depend on its neighbours: the last token stays, all others change.
    const int tokens = token_counts[0], last = tokens - 1;
    mixture.draw(tokens, Draw::RANDOM);
    mixture.run(nullptr, tokens, multiprocessors);
    const auto logits = mixture.logits, x = mixture.x, residual = mixture.residual, shared = mixture.shared, out = mixture.out;
    mixture.draw(tokens, Draw::RANDOM);
    const auto keep = [&](std::vector<float>& to, const std::vector<float>& from, int width) {
        std::copy(from.begin() + size_t(last) * width, from.begin() + size_t(tokens) * width, to.begin() + size_t(last) * width);
    };
    keep(mixture.logits, logits, M::LOGITS);
    keep(mixture.x, x, M::HIDDEN);
    keep(mixture.residual, residual, M::HIDDEN);
    keep(mixture.shared, shared, M::HIDDEN);
    mixture.run(nullptr, tokens, multiprocessors);
    const size_t at = size_t(last) * M::HIDDEN;
    const bool same = std::memcmp(&out[at], &mixture.out[at], M::HIDDEN * sizeof(float)) == 0 && (tokens == 1 || out[0] != mixture.out[0]);
    std::printf("%s %s, %d tokens: a row among other neighbours\n", same ? "ok  " : "FAIL", name, tokens);
    if (!same) test::failures++;
}

constexpr auto F16 = Format::F16;
constexpr auto FP8 = Format::FP8_E4M3;
constexpr auto FP4 = Format::NVFP4;
constexpr auto ROWS = ScaleForm::ROWS;
constexpr auto BLOCK = ScaleForm::BLOCK128;
template <int T, int S, int P, int W, int N, int R, bool NARROW = false>
using G = Cut<Engine::WGMMA, T, S, P, W, N, R, NARROW>;
template <int T, int S, int P, int W, int N, int R, bool NARROW = false>
using H = Cut<Engine::MMA, T, S, P, W, N, R, NARROW>;
template <int W, int N, int U, int B = 132>
using R = RingsCut<W, N, U, B>;

#ifdef BENCH
#include "experts/experts_batch_bench.cuh"
#endif

int main(int count, char** arguments) {
    CHECK(cudaStreamCreate(&stream));
#ifdef BENCH
    (void)count, (void)arguments;
    return bench();
#else
    plant_defect = count > 1 && std::strcmp(arguments[1], "defect") == 0;
#include "experts/experts_batch_table.cuh"
    std::printf("%d failures\n", test::failures);
    return test::failures > 0 ? 1 : 0;
#endif
}
