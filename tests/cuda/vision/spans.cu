// attend_spans (templates/cuda/vision) against double precision: images that begin and end anywhere in a step, reach over several blocks
// and begin before their window does, of caches in f32, f16, e4m3 and groups. Rows of text, the last of an image and rows beyond the step
// are left alone, bit for bit. With the argument "planted" an image is taken to end a token early, which must be seen.
#include "attention/attention_case.cuh"

#include "kernels/attend_spans.cuh"

using namespace monomorph;

static bool planted = false;
static int unseen = 0;  // planted defects

template <class Base>
struct Exactly : Base {
    static constexpr bool EXACT = true;
};

template <class C>
void check(const char* name, double limit) {
    using A = AttentionShape<C>;
    using P = test::Problem<C>;
    using Kv = typename C::Kv;
    using Operand = typename A::Operand;
    constexpr int D = C::HEAD_DIM, BEYOND = 2;
    struct Image {
        int sequence, first, last;  // positions
    };
    const std::vector<Image> shown = {{0, 23, 60}, {0, 62, 62}, {0, 63, 66}, {1, 0, 4}, {1, 5, 11}, {2, 40, 45}};
    P p({{50, 20}, {12, 0}, {6, 40}, {1, 33}}, 11);
    test::Random random(D);

    // Keys and values of this step are there already; what every row of it sees for itself is not asked.
    std::vector<ImageRow> images(p.rows + BEYOND, ImageRow{0, 1000, {0, 0, 0}});
    std::vector<double> expected(size_t(p.rows) * A::WIDTH);
    std::vector<float> qkv(size_t(p.rows + BEYOND) * A::QKV_WIDTH), before(size_t(p.rows + BEYOND) * A::WIDTH);
    std::vector<Operand> q(size_t(p.rows + BEYOND) * C::HEADS * A::HEAD_DIM_16);
    for (auto& v : qkv) v = random.normal();
    for (auto& v : before) v = random.normal();
    for (int s = 0; s < int(p.fed.size()); s++)
        for (int t = 0; t < p.fed[s].count; t++) {
            const int row = p.header().sequence[s].first_token + t, position = p.fed[s].position + t;
            images[row] = {-1, position, {position, position, position}};
            for (const Image& image : shown)
                if (image.sequence == s && image.first <= position && position <= image.last) images[row].last = image.last;
            for (int part = 0; part < 2; part++)
                for (int h = 0; h < C::KV_HEADS; h++) {
                    std::vector<float> x(D);
                    for (auto& v : x) v = random.normal();
                    p.write(p.cache, s, position, part, h, x);
                }
            for (int h = 0; h < C::HEADS; h++)
                for (int e = 0; e < D; e++) q[(size_t(row) * C::HEADS + h) * A::HEAD_DIM_16 + e] = test::host_round<Operand>(qkv[size_t(row) * A::QKV_WIDTH + h * D + e]);
        }
    for (int s = 0; s < int(p.fed.size()); s++)
        for (int t = 0; t < p.fed[s].count; t++)
            for (int h = 0; h < C::HEADS; h++) {
                const int row = p.header().sequence[s].first_token + t, position = p.fed[s].position + t, kv_head = h / A::GROUP;
                const size_t at = size_t(row) * A::WIDTH + h * D;
                if (images[row].last == position) {
                    std::copy_n(before.begin() + at, D, expected.begin() + at);
                    continue;
                }
                std::vector<double> scores, context(D);
                const int first = Window<C>::first(position), last = images[row].last - (planted && position + 1 < images[row].last);
                double largest = -INFINITY, sum = 0;
                for (int other = first; other <= last; other++) {
                    const auto key = p.read(p.cache, s, other, 0, kv_head);
                    double dot = 0;
                    for (int e = 0; e < D; e++) {
                        const float exact = qkv[size_t(row) * A::QKV_WIDTH + h * D + e];
                        dot += double(C::EXACT ? exact : test::host_widen(test::host_round<Operand>(exact))) * key[e];
                    }
                    scores.push_back(C::SCALE * dot), largest = std::max(largest, scores.back());
                }
                for (int other = first; other <= last; other++) {
                    const double weight = std::exp(scores[other - first] - largest);
                    const auto value = p.read(p.cache, s, other, 1, kv_head);
                    sum += weight;
                    for (int e = 0; e < D; e++) context[e] += weight * value[e];
                }
                if (is_rotated<Kv, Side::Values>()) test::rotate_host(context, true);
                for (int e = 0; e < D; e++) expected[at + e] = context[e] / sum;
            }

    test::Buffer<char> step(p.step);
    test::Buffer<TokenRow> tokens(p.tokens);
    test::Buffer<ImageRow> images_at(images);
    test::Buffer<float> qkv_at(qkv), out(before);
    test::Buffer<Operand> q_at(q);
    test::Buffer<Kv> cache(p.cache);
    test::launch(attend_spans_kernel<C, SPAN_THREADS>, dim3(p.rows + BEYOND, C::HEADS), SPAN_THREADS, 0, nullptr, reinterpret_cast<const Step*>(step.pointer),
                 static_cast<const TokenRow*>(tokens.pointer), static_cast<const ImageRow*>(images_at.pointer), static_cast<const float*>(qkv_at.pointer),
                 static_cast<const Operand*>(q_at.pointer), static_cast<const Kv*>(cache.pointer + P::AHEAD), out.pointer);
    CHECK(cudaDeviceSynchronize());

    const std::vector<float> found = out.download();
    bool intact = out.intact() && cache.intact();
    for (int row = 0; row < p.rows + BEYOND; row++) {
        const bool alone = row >= p.rows || images[row].last == p.fed[p.tokens[row].sequence].position + row - p.header().sequence[p.tokens[row].sequence].first_token;
        if (alone) intact = intact && std::memcmp(&found[size_t(row) * A::WIDTH], &before[size_t(row) * A::WIDTH], A::WIDTH * 4) == 0;
    }
    const auto difference = test::compare(std::vector<float>(found.begin(), found.begin() + expected.size()), expected);
    if (!planted) return (void)test::report(name, difference, limit, intact);
    const bool seen = difference.relative > limit || difference.largest > 8 * limit;
    std::printf("%s %s: relative %.2e, planted\n", seen ? "FAIL" : "ok  ", name, difference.relative);
    unseen += !seen;
}

template <class Base>
using Sliding = test::Slides<test::Windowed<Base, 24>>;

int main(int arguments, char** argument) {
    planted = arguments > 1 && !std::strcmp(argument[1], "planted");
    using Turbo43 = GroupedPair<Turbo4, Turbo3>;
    check<Exactly<Sliding<test::Heads<4, 2, 40, float, 0, true>>>>("f32, heads of 40, exact", 3e-7);
    check<Exactly<test::Heads<3, 1, 64, float, 0, true>>>("f32, heads of 64, no window, exact", 3e-7);
    check<Sliding<test::Heads<4, 2, 64, __half, 0, true>>>("f16, heads of 64", 1e-6);
    check<Sliding<test::Heads<8, 2, 256, __nv_bfloat16, 0, true>>>("bf16, heads of 256", 1e-6);
    check<Sliding<test::Heads<4, 2, 128, E4m3, 0, true>>>("e4m3, heads of 128", 1e-6);
    check<Sliding<test::Heads<4, 4, 128, Turbo43, 0, true>>>("groups of 4 and 3 bits, heads of 128", 1e-6);
    if (planted) return unseen == 0;
    std::printf("%s\n", test::failures == 0 ? "all passed" : "FAILED");
    return test::failures != 0;
}
