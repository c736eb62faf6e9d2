// The kernels of towers and of a text model's images (templates/cuda/vision) against double precision, at widths and heads that vectors,
// warps and tiles do not divide, over one image and several, of one frame and of several; rows beyond the step are left alone.
// Planted, and caught: a segment that begins as if all images were one.
// With the argument "planted" one number of each check differs on the host, which must be seen. PART 0: all but attention of patches on
// warpgroups, which is PART 1.
#include <climits>

#include "core/common.cuh"

#ifndef PART
#error "compile with -DPART=0 and 1"
#endif

#include "kernels/attend_patches.cuh"
#include "kernels/attend_patches_exact.cuh"
#if PART == 1
#include "kernels/attend_patches_wgmma.cuh"
#endif
#include "kernels/image_rows.cuh"
#include "kernels/norm_patches.cuh"
#include "kernels/place_patches.cuh"
#include "kernels/pool_patches.cuh"
#include "kernels/stage_patches.cuh"
#include "kernels/turn_heads.cuh"
#include "kernels/turn_patches.cuh"

using namespace monomorph;

static bool planted = false;
static int unseen = 0;  // planted defects

static std::vector<float> normals(size_t count, double size, double centre, test::Random& random) {
    std::vector<float> values(count);
    for (auto& v : values) v = float(centre + size * random.normal());
    return values;
}

// The images of a step, whose first patches are not told yet.
using Grids = std::vector<PatchGrid>;
static int patches_of(const Grids& grids) {
    int patches = 0;
    for (const PatchGrid& it : grids) patches += it.frames * it.rows * it.columns;
    return patches;
}
// The header of a tower's step, with the images' sides behind it.
struct Seen {
    Step step;
    PatchGrids grids;
};
static test::Buffer<Seen> header(const Grids& grids, int merged) {
    Seen host = {};
    for (PatchGrid& it : host.grids.image) it = {0, 0, 0, INT_MAX};
    for (size_t i = 0; i < grids.size(); i++) host.grids.image[i] = grids[i], host.grids.image[i].first = patches_of({grids.begin(), grids.begin() + i});
    host.step.tokens = patches_of(grids), host.step.outputs = host.step.tokens / merged;
    return test::Buffer<Seen>(std::vector<Seen>{host});
}
static const Step* step_of(const test::Buffer<Seen>& header) { return &header.pointer->step; }

// Compares the first numbers; those behind must be as they were.
static void judge(const std::string& name, const std::vector<float>& out, std::vector<double> expected, double limit, bool intact, const std::vector<float>& before = {}) {
    const std::vector<float> used(out.begin(), out.begin() + expected.size());
    if (!before.empty()) intact = intact && std::memcmp(out.data() + used.size(), before.data() + used.size(), (out.size() - used.size()) * 4) == 0;
    if (planted) expected[expected.size() / 2] += 1.0;
    const auto difference = test::compare(used, expected);
    if (!planted) return (void)test::report(name.c_str(), difference, limit, intact);
    const bool seen = difference.relative > limit || difference.largest > 8 * limit;
    std::printf("%s %s: relative %.2e, planted\n", seen ? "FAIL" : "ok  ", name.c_str(), difference.relative);
    unseen += !seen;
}

// A patch: where it stands in its image, that, and the first patch of those that it sees.
struct Place {
    int row, column;
    PatchGrid grid;
    int first;
    int segment() const { return grid.rows * grid.columns; }
};
// Places by definition: merge blocks from left to right and top to bottom, and so the patches in each.
static std::vector<Place> places(const Grids& grids, int merge) {
    std::vector<Place> all;
    for (const PatchGrid& grid : grids)
        for (int f = 0; f < grid.frames; f++) {
            const int first = int(all.size());
            for (int top = 0; top < grid.rows; top += merge)
                for (int left = 0; left < grid.columns; left += merge)
                    for (int r = 0; r < merge; r++)
                        for (int c = 0; c < merge; c++) all.push_back({top + r, left + c, grid, first});
        }
    return all;
}

template <int W, PatchNorm N, int M = 1>
struct Norms {
    static constexpr int WIDTH = W, MERGED = M, CAPACITY = 32;
    static constexpr PatchNorm NORM = N;
    static constexpr float EPS = 1e-6f;
    static constexpr bool BY_CHANNEL = M > 1;
};

static double normed(PatchNorm form, const float* row, int width, double epsilon, const std::vector<float>& w, const std::vector<float>& b, int k) {
    if (form == PatchNorm::NONE) return row[k];
    double mean = 0, squares = 0;
    if (form == PatchNorm::LAYER) {
        for (int i = 0; i < width; i++) mean += row[i];
        mean /= width;
    }
    for (int i = 0; i < width; i++) squares += (row[i] - mean) * (row[i] - mean);
    const double unit = (row[k] - mean) / std::sqrt(squares / width + epsilon);
    return form == PatchNorm::LAYER ? unit * w[k] + b[k] : unit * (form == PatchNorm::ONE_PLUS ? 1.0 + w[k] : double(w[k]));
}

template <class C>
void check_norm(const char* name, const Grids& grids) {
    constexpr int W = C::WIDTH;
    test::Random random(W);
    const int patches = patches_of(grids), all = patches + 4;
    const auto x = normals(size_t(all) * W, 3, 5, random), w = normals(W, 0.3, 1, random), b = normals(W, 0.5, 0, random), before = normals(size_t(all) * W, 1, 0, random);
    auto step = header(grids, C::MERGED);
    test::Buffer<float> x_at(x), w_at(w), b_at(b), out(before);
    test::launch(norm_patches_kernel<C, PATCH_THREADS>, dim3(all), PATCH_THREADS, 0, nullptr, step_of(step), static_cast<const float*>(x_at.pointer), static_cast<const float*>(w_at.pointer),
                 static_cast<const float*>(b_at.pointer), out.pointer);
    CHECK(cudaDeviceSynchronize());
    std::vector<double> expected(size_t(patches) * W);
    for (int p = 0; p < patches; p++)
        for (int k = 0; k < W; k++) {
            const size_t at = C::BY_CHANNEL ? size_t(p / C::MERGED) * C::MERGED * W + k * C::MERGED + p % C::MERGED : size_t(p) * W + k;
            expected[at] = normed(C::NORM, &x[size_t(p) * W], W, double(C::EPS), w, b, k);
        }
    judge(name, out.download(), expected, 3e-7, out.intact(), before);
}

template <class C>
void check_stage(const char* name, const Grids& grids) {
    constexpr int W = C::WIDTH, CAPACITY = C::CAPACITY;
    test::Random random(W + 1);
    const int patches = patches_of(grids);
    const auto x = normals(size_t(patches) * W, 3, 5, random), w = normals(W, 0.3, 1, random), b = normals(W, 0.5, 0, random);
    auto step = header(grids, 1);
    test::Buffer<float> x_at(x), w_at(w), b_at(b);
    test::Buffer<unsigned char> out(staged_bytes(CAPACITY, W));
    using S = StageShape<C>;
    test::launch(stage_patches_kernel<C, S::THREADS>, dim3(CAPACITY), S::THREADS, 0, nullptr, step_of(step), static_cast<const float*>(x_at.pointer), static_cast<const float*>(w_at.pointer),
                 static_cast<const float*>(b_at.pointer), static_cast<void*>(out.pointer));
    CHECK(cudaDeviceSynchronize());
    const auto bytes = out.download();
    const auto half = [&](size_t i) { uint16_t bits; std::memcpy(&bits, &bytes[2 * i], 2); return double(test::f16_to_float(bits)); };
    std::vector<float> found;
    std::vector<double> expected;
    for (int p = 0; p < patches; p++) {
        float unscale;
        std::memcpy(&unscale, &bytes[staged_unscale_at(CAPACITY, W) + 4 * p], 4);
        for (int k = 0; k < staged_panels(W) * 64; k++) {
            found.push_back(float(half(staged_index<CAPACITY>(p, k)) * unscale));
            expected.push_back(k < W ? normed(PatchNorm::LAYER, &x[size_t(p) * W], W, double(C::EPS), w, b, k) : 0.0);
        }
    }
    judge(name, found, expected, 3e-4, out.intact());
}

template <int S, bool Q, int M>
struct Table {
    static constexpr int HIDDEN = 44, THREADS = 128, SIDE = S, MERGE = M;
    static constexpr bool SQUARE = Q;
    static constexpr Format FORMAT = Format::F32;
    static constexpr ScaleForm SCALES = ScaleForm::NONE;
};

template <class C>
void check_places(const char* name, const Grids& grids) {
    constexpr int W = C::HIDDEN, SIDE = C::SIDE, ENTRIES = C::SQUARE ? SIDE * SIDE : 2 * SIDE;
    using U = Unit<C::FORMAT>;
    test::Random random(SIDE);
    const auto all = places(grids, C::MERGE);
    const int patches = int(all.size());
    const auto table = normals(size_t(ENTRIES) * W, 1, 0, random), x = normals(size_t(patches + 4) * W, 1, 0, random);
    constexpr int UNITS = EmbedShape<C>::UNITS;
    std::vector<float> packed(size_t((ENTRIES + 7) / 8) * UNITS * 128);
    for (int e = 0; e < ENTRIES; e++)
        for (int k = 0; k < W; k++) {
            const int unit = k / U::COLUMNS, c = U::lane_of(k % U::COLUMNS), j = U::element_of(k % U::COLUMNS);
            packed[((size_t(e / 8) * UNITS + unit) * 32 + e % 8 * 4 + c) * 4 + j] = table[size_t(e) * W + k];
        }
    auto step = header(grids, 1);
    test::Buffer<float> codes(packed), out(x);
    test::launch(place_patches_kernel<C, C::THREADS>, dim3(embed_blocks<C>(), patches + 4), C::THREADS, 0, nullptr, step_of(step), static_cast<const void*>(codes.pointer),
                 static_cast<const void*>(nullptr), static_cast<const float*>(nullptr), out.pointer);
    CHECK(cudaDeviceSynchronize());
    std::vector<double> expected;
    for (int p = 0; p < patches; p++)
        for (int k = 0; k < W; k++) {
            const auto entry = [&](int e) { return double(table[size_t(e) * W + k]); };
            double sum = x[size_t(p) * W + k];
            if (C::SQUARE) {
                const double y = all[p].row * (SIDE - 1) / double(std::max(all[p].grid.rows - 1, 1)), z = all[p].column * (SIDE - 1) / double(std::max(all[p].grid.columns - 1, 1));
                const int top = int(y), left = int(z), low = std::min(top + 1, SIDE - 1), right = std::min(left + 1, SIDE - 1);
                const double v = y - top, h = z - left;
                sum += (1 - v) * ((1 - h) * entry(top * SIDE + left) + h * entry(top * SIDE + right)) + v * ((1 - h) * entry(low * SIDE + left) + h * entry(low * SIDE + right));
            } else {
                sum += entry(all[p].column) + entry(SIDE + all[p].row);
            }
            expected.push_back(sum);
        }
    judge(name, out.download(), expected, 3e-7, out.intact(), x);
}

template <int H, int D, int M, PatchPairs P, bool ROWS, HeadNorm N, bool X>
struct Heads {
    static constexpr int HEADS = H, HEAD_DIM = D, MERGE = M;
    static constexpr PatchPairs PAIRS = P;
    static constexpr bool ROWS_FIRST = ROWS, EXACT = X;
    static constexpr HeadNorm Q_NORM = N, K_NORM = N;
    static constexpr float Q_EPS = 1e-6f, K_EPS = 1e-6f, SCALE = 0.3f;
};
template <class C>
struct Valued : C {
    static constexpr float V_EPS = 1e-6f;
};

// Norms, rotation, then attention, in both arithmetics.
template <class C, bool VALUES_NORMED>
void check_attention(const std::string& name, const Grids& grids, double limit) {
    constexpr int H = C::HEADS, D = C::HEAD_DIM, D_16 = TurnShape<C>::D_16, ROW = 3 * H * D;
    test::Random random(D + grids[0].rows);
    const auto all = places(grids, C::MERGE);
    const int patches = int(all.size());
    int sides = 0;
    for (const PatchGrid& it : grids) sides = std::max({sides, it.rows, it.columns});
    const auto qkv = normals(size_t(patches + 2) * ROW, 1, 0.2, random), q_w = normals(D, 0.3, 1, random), k_w = normals(D, 0.3, 1, random);
    std::vector<float> inverse(D / 2), angles;
    for (auto& f : inverse) f = float(random.uniform());
    for (int at = 0; at < sides; at++)
        for (float f : inverse) angles.push_back(std::cos(float(at) * f)), angles.push_back(std::sin(float(at) * f));
    auto step = header(grids, 1);
    test::Buffer<float> rows(qkv), q_at(q_w), k_at(k_w), angles_at(angles), out(size_t(patches) * H * D);
    test::Buffer<__half> turned(size_t(patches) * 3 * H * D_16);
    test::launch(turn_patches_kernel<C, TURN_THREADS>, dim3(ceil_div(patches + 2, TURN_WARPS), TURN_SHARES<C>), TURN_THREADS, 0, nullptr, step_of(step), rows.pointer, static_cast<const float*>(q_at.pointer),
                 static_cast<const float*>(k_at.pointer), static_cast<const float*>(angles_at.pointer), turned.pointer);
    if constexpr (C::EXACT)
        test::launch(attend_patches_exact_kernel<C, ATTEND_EXACT_THREADS>, dim3(patches, H), ATTEND_EXACT_THREADS, 0, nullptr, step_of(step), static_cast<const float*>(rows.pointer), out.pointer);
    else
#if PART == 1
        test::launch(attend_patches_wgmma_kernel<C, WGMMA_THREADS, int(attend_wgmma_shared_bytes<C>())>, dim3(7), WGMMA_THREADS, attend_wgmma_shared_bytes<C>(), nullptr, step_of(step),
                     static_cast<const __half*>(turned.pointer), out.pointer);
#else
        test::launch(attend_patches_kernel<C, ATTEND_THREADS<C>, int(attend_shared_bytes<C>())>, dim3(7), ATTEND_THREADS<C>, attend_shared_bytes<C>(), nullptr, step_of(step),
                     static_cast<const __half*>(turned.pointer), out.pointer);
#endif
    CHECK(cudaDeviceSynchronize());

    std::vector<double> host(size_t(patches) * ROW), expected(size_t(patches) * H * D);
    for (int p = 0; p < patches; p++)
        for (int part = 0; part < 3; part++)
            for (int h = 0; h < H; h++) {
                const float* from = &qkv[size_t(p) * ROW + (part * H + h) * D];
                double* to = &host[size_t(p) * ROW + (part * H + h) * D];
                double squares = 0;
                for (int e = 0; e < D; e++) squares += double(from[e]) * from[e];
                const bool norm = part < 2 ? C::Q_NORM != HeadNorm::None : VALUES_NORMED;
                const double unit = norm ? 1 / std::sqrt(squares / D + 1e-6) : 1;
                for (int e = 0; e < D; e++) to[e] = from[e] * unit * (norm && part < 2 ? (part == 0 ? q_w : k_w)[e] : 1.0f);
                for (int i = 0; i < D / 2 && part < 2; i++) {
                    const int quarter = D / 4;
                    const int a = C::PAIRS == PatchPairs::ADJACENT ? 2 * i : C::PAIRS == PatchPairs::HALVES ? i : i / quarter * 2 * quarter + i % quarter;
                    const int b = C::PAIRS == PatchPairs::ADJACENT ? a + 1 : C::PAIRS == PatchPairs::HALVES ? a + D / 2 : a + quarter;
                    const int place = (i < quarter) == C::ROWS_FIRST ? all[p].row : all[p].column;
                    const double cosine = angles[(size_t(place) * D / 2 + i) * 2], sine = angles[(size_t(place) * D / 2 + i) * 2 + 1], x = to[a], y = to[b];
                    to[a] = x * cosine - y * sine, to[b] = y * cosine + x * sine;
                }
            }
    for (int p = 0; p < patches; p++)
        for (int h = 0; h < H; h++) {
            const int first = all[p].first, segment = all[p].segment();
            std::vector<double> weights(segment);
            double top = -INFINITY, total = 0;
            for (int k = 0; k < segment; k++) {
                double dot = 0;
                for (int e = 0; e < D; e++) dot += host[size_t(p) * ROW + h * D + e] * host[size_t(first + k) * ROW + (H + h) * D + e];
                weights[k] = C::SCALE * dot, top = std::max(top, weights[k]);
            }
            for (auto& w : weights) w = std::exp(w - top), total += w;
            for (int k = 0; k < segment; k++)
                for (int e = 0; e < D; e++) expected[(size_t(p) * H + h) * D + e] += weights[k] / total * host[size_t(first + k) * ROW + (2 * H + h) * D + e];
        }
    judge(name, out.download(), expected, limit, out.intact() && turned.intact() && rows.intact());
}

template <int W, int M, bool S>
struct Pooled {
    static constexpr int WIDTH = W, MERGED = M;
    static constexpr float FACTOR = 12.0f, EPS = 1e-6f;
    static constexpr bool STANDARD = S;
};
template <class C>
void check_pool(const char* name, const Grids& grids) {
    constexpr int W = C::WIDTH, M = C::MERGED;
    test::Random random(W + 2);
    const int tokens = patches_of(grids) / M;
    const auto x = normals(size_t(tokens) * M * W, 1, 0.5, random), b = normals(W, 1, 0, random), s = normals(W, 0.3, 1, random), before = normals(size_t(tokens + 2) * W, 1, 0, random);
    auto step = header(grids, M);
    test::Buffer<float> x_at(x), b_at(b), s_at(s), out(before);
    test::launch(pool_patches_kernel<C, PATCH_THREADS>, dim3(tokens + 2), PATCH_THREADS, 0, nullptr, step_of(step), static_cast<const float*>(x_at.pointer), static_cast<const float*>(b_at.pointer),
                 static_cast<const float*>(s_at.pointer), out.pointer);
    CHECK(cudaDeviceSynchronize());
    std::vector<double> expected;
    for (int t = 0; t < tokens; t++) {
        std::vector<double> row(W);
        double squares = 0;
        for (int k = 0; k < W; k++) {
            for (int p = 0; p < M; p++) row[k] += x[(size_t(t) * M + p) * W + k];
            row[k] *= double(C::FACTOR) / M;
            if (C::STANDARD) row[k] = (row[k] - b[k]) * s[k];
            squares += row[k] * row[k];
        }
        for (double v : row) expected.push_back(v / std::sqrt(squares / W + double(C::EPS)));
    }
    judge(name, out.download(), expected, 3e-7, out.intact(), before);
}

template <int W, bool A, int B>
struct Images {
    static constexpr int HIDDEN = W, THREADS = 128, BEHIND = B;
    static constexpr bool ADDS = A;
};
template <class C>
void check_rows(const char* name) {
    constexpr int W = C::HIDDEN, ROWS = 5;
    test::Random random(W + 3);
    const auto kept = normals(size_t(12) * W, 1, 0, random), x = normals(size_t(ROWS + 1) * W, 1, 0, random);
    const int at[ROWS] = {-1, 3, 0, -1, 5};
    std::vector<ImageRow> images(ROWS + 1, ImageRow{1, 0, {0, 0, 0}});  // the last is beyond the step
    Step host = {};
    host.tokens = ROWS;
    std::vector<double> expected;
    for (int t = 0; t < ROWS; t++) {
        images[t].row = at[t];
        for (int k = 0; k < W; k++) {
            const double there = x[size_t(t) * W + k];
            expected.push_back(at[t] < 0 ? there : (C::ADDS ? there : 0.0) + kept[size_t(at[t] + C::BEHIND) * W + k]);
        }
    }
    test::Buffer<Step> step(std::vector<Step>{host});
    test::Buffer<ImageRow> images_at(images);
    test::Buffer<float> kept_at(kept), out(x);
    test::launch(image_rows_kernel<C, C::THREADS>, dim3(image_row_blocks<C>(), ROWS + 1), C::THREADS, 0, nullptr, static_cast<const Step*>(step.pointer), static_cast<const ImageRow*>(images_at.pointer),
                 static_cast<const float*>(kept_at.pointer), out.pointer);
    CHECK(cudaDeviceSynchronize());
    judge(name, out.download(), expected, 1e-7, out.intact(), x);
}

// Heads of a text model by three axes. DECODE: by an index and a shift, which rows of a draft pass have elsewhere.
template <bool D, bool G>
struct Turned : AttentionDefaults {
    static constexpr int HEADS = 3, KV_HEADS = 1, HEAD_DIM = 40, BLOCK_TOKENS = 16, ROTARY_PAIRS = 8;
    static constexpr bool ROTARY_HALVES = true, GATED = G, DECODE = D;
    static constexpr HeadNorm Q_NORM = HeadNorm::OnePlus, K_NORM = HeadNorm::OnePlus;
    static constexpr float Q_EPS = 1e-6f, K_EPS = 1e-6f, SCALE = 1.0f;
    static constexpr auto HEIGHT_PAIRS = 0x12ull, WIDTH_PAIRS = 0x24ull;
    using Kv = float;
};
template <class C>
struct Passed : C {
    static constexpr bool PASS = true;
};
struct Decoded {
    Step step;
    DraftImages drafts;
    PositionShifts shifts;
};
template <class C>
void check_turn(const char* name) {
    using A = AttentionShape<C>;
    constexpr int D = C::HEAD_DIM, W = A::QKV_WIDTH, ROWS = 6, POSITIONS = 40, PAIRS = C::ROTARY_PAIRS;
    test::Random random(D + C::DECODE);
    const auto qkv = normals(size_t(ROWS + 1) * W, 1, 0, random), q_w = normals(D, 0.3, 0, random), k_w = normals(D, 0.3, 0, random), table = normals(size_t(POSITIONS) * PAIRS * 2, 1, 0, random);
    std::vector<ImageRow> images(ROWS + 1);
    Decoded host = {};
    host.step.tokens = host.step.sequences = ROWS, host.step.blocks_at = sizeof(Decoded);
    for (int t = 0; t < ROWS; t++) {
        host.step.sequence[t].position = 20 + t, host.shifts.shift[t] = OF_PASS<C> ? 1 : -3 * t, host.drafts.shift[t] = OF_PASS<C> ? -3 * t : 1;
        for (int& axis : images[t].position) axis = C::DECODE ? 20 + t - 3 * t : random.below(POSITIONS);
    }
    test::Buffer<Decoded> step(std::vector<Decoded>{host});
    test::Buffer<ImageRow> images_at(images);
    test::Buffer<float> q_at(q_w), k_at(k_w), table_at(table), out(qkv);
    test::launch(turn_heads_kernel<C, TURN_HEADS_THREADS>, dim3(ceil_div(ROWS + 1, TURN_ROWS)), TURN_HEADS_THREADS, 0, nullptr, static_cast<const Step*>(&step.pointer->step),
                 static_cast<const ImageRow*>(C::DECODE ? nullptr : images_at.pointer), out.pointer, static_cast<const float*>(q_at.pointer), static_cast<const float*>(k_at.pointer),
                 static_cast<const float*>(table_at.pointer));
    CHECK(cudaDeviceSynchronize());
    std::vector<double> expected(qkv.begin(), qkv.begin() + size_t(ROWS) * W);
    for (int t = 0; t < ROWS; t++)
        for (int h = 0; h < C::HEADS + C::KV_HEADS; h++) {
            double* head = &expected[size_t(t) * W + (h < C::HEADS ? h : A::FIRST_KEY + h - C::HEADS) * D];
            double squares = 0;
            for (int e = 0; e < D; e++) squares += head[e] * head[e];
            const double unit = 1 / std::sqrt(squares / D + 1e-6);
            for (int e = 0; e < D; e++) head[e] *= unit * (1.0 + (h < C::HEADS ? q_w : k_w)[e]);
            for (int i = 0; i < PAIRS; i++) {
                const int axis = C::HEIGHT_PAIRS >> i & 1 ? 1 : C::WIDTH_PAIRS >> i & 1 ? 2 : 0;
                const float* turn = &table[(size_t(images[t].position[axis]) * PAIRS + i) * 2];
                const double x = head[i], y = head[i + PAIRS];
                head[i] = x * turn[0] - y * turn[1], head[i + PAIRS] = y * turn[0] + x * turn[1];
            }
        }
    judge(name, out.download(), expected, 5e-7, out.intact(), qkv);
}

int main(int arguments, char** argument) {
    planted = arguments > 1 && !std::strcmp(argument[1], "planted");
    const Grids small = {{1, 4, 6, 0}}, video = {{2, 4, 4, 0}}, large = {{1, 12, 14, 0}};
    // As many as a pass has, of different sides, one of several frames, and tiles of queries and keys that end with none.
    const Grids several = {{1, 12, 14, 0}, {1, 14, 12, 0}, {2, 4, 6, 0}, {1, 2, 2, 0}, {1, 8, 16, 0}, {1, 2, 8, 0}, {1, 6, 2, 0}, {1, 4, 4, 0}};
    const Grids two = {{1, 3, 6, 0}, {1, 6, 9, 0}};
    constexpr HeadNorm NONE = HeadNorm::None, PLAIN = HeadNorm::Plain;
#if PART == 0
    check_norm<Norms<1152, PatchNorm::LAYER>>("layer norm of 1152", small);
    check_norm<Norms<144, PatchNorm::LAYER>>("layer norm of 144", small);
    check_norm<Norms<57, PatchNorm::PLAIN>>("rms norm of 57", small);
    check_norm<Norms<300, PatchNorm::ONE_PLUS, 4>>("rms norm of 300, by channel", video);
    check_norm<Norms<64, PatchNorm::NONE, 4>>("64, by channel", small);
    check_stage<Norms<1152, PatchNorm::LAYER>>("staged layer norm of 1152", small);
    check_stage<Norms<100, PatchNorm::LAYER>>("staged layer norm of 100", small);
    check_places<Table<7, true, 2>>("places of a square of 7", small);
    check_places<Table<48, true, 2>>("places of a square of 48", video);
    check_places<Table<7, true, 1>>("places of one row", {{1, 1, 5, 0}});
    check_places<Table<20, false, 3>>("places of two axes", {{1, 6, 9, 0}});
    check_places<Table<48, true, 2>>("places of eight images in a square", several);
    check_places<Table<20, false, 3>>("places of two images on two axes", two);
    check_attention<Heads<2, 72, 2, PatchPairs::HALVES, true, NONE, true>, false>("heads of 72, exact", small, 3e-7);
    check_attention<Heads<1, 64, 2, PatchPairs::ADJACENT, true, NONE, true>, false>("heads of 64, neighbours, exact", video, 3e-7);
    check_attention<Valued<Heads<3, 72, 3, PatchPairs::QUARTERS, false, PLAIN, true>>, true>("heads of 72, normed, quarters, exact", {{1, 3, 6, 0}}, 3e-7);
    check_attention<Heads<2, 72, 2, PatchPairs::HALVES, true, NONE, true>, false>("heads of 72, eight images, exact", several, 3e-7);
#endif
    check_attention<Heads<2, 72, 2, PatchPairs::HALVES, true, NONE, false>, false>("heads of 72", small, 1e-3);
    check_attention<Heads<2, 72, 2, PatchPairs::HALVES, true, NONE, false>, false>("heads of 72, 168 patches", large, 1e-3);
    check_attention<Heads<2, 64, 2, PatchPairs::ADJACENT, true, NONE, false>, false>("heads of 64, neighbours, two frames", video, 1e-3);
    check_attention<Heads<1, 64, 2, PatchPairs::ADJACENT, true, NONE, false>, false>("heads of 64, 520 patches", {{1, 26, 20, 0}}, 1e-3);
    check_attention<Heads<2, 72, 2, PatchPairs::HALVES, true, NONE, false>, false>("heads of 72, eight images", several, 1e-3);
    check_attention<Valued<Heads<3, 72, 3, PatchPairs::QUARTERS, false, PLAIN, false>>, true>("heads of 72, normed, quarters", {{1, 6, 12, 0}}, 2e-3);
    check_attention<Valued<Heads<3, 72, 3, PatchPairs::QUARTERS, false, PLAIN, false>>, true>("heads of 72, normed, quarters, two images", two, 2e-3);
#if PART == 0
    check_pool<Pooled<1152, 9, true>>("pool of 1152", {{1, 6, 9, 0}});
    check_pool<Pooled<145, 9, false>>("pool of 145", {{1, 3, 6, 0}});
    check_rows<Images<44, false, 0>>("rows of images in place");
    check_rows<Images<44, true, 6>>("rows of a tap, added");
    check_rows<Images<45, true, 6>>("rows of a tap of 45, added");
    check_turn<Turned<false, true>>("heads by three axes, with gates");
    check_turn<Turned<true, false>>("heads by shifted indices");
    check_turn<Passed<Turned<true, false>>>("heads of a draft pass by shifted indices");
#endif
    if (planted) return unseen == 0;
    std::printf("%s\n", test::failures == 0 ? "all passed" : "FAILED");
    return test::failures != 0;
}
