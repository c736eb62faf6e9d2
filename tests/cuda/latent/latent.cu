// Attention over latents against its definition in double precision, in which keys and values are made:
// decode (parts, formats, odd widths, uneven batches, heads of a rank), prefill (mixed sequences, cached
// prefixes). nvcc as in common.cuh; PARTs 1, 3 and 5 have the kernels of warpgroups, 0, 2 and 4 the others; 2 and
// 3 those of latents that are kept in fp8, 4 and 5 in formats of groups.
#include "latent/latent_case.cuh"

using namespace test;

template <class C>
constexpr double limit_of() { return C::TERMS == 2 ? 1e-3 : std::is_same_v<typename C::Kv, __half> ? 1.5e-3 : 8e-3; }

// What the reference reads otherwise; a wrong sign of the rotation, and scales of two groups in each other's place.
enum class Planted { NONE, KEY, VALUE, ROTATED, SIGN, SCALES };

// decode: a row each sequence.
template <class C, By BY = By::MMA>
void check(const char* name, std::vector<Fed> fed, uint64_t seed, bool decode, Planted planted = Planted::NONE) {
    Problem<C> problem(fed, seed);
    Device<C, BY> device(problem, decode);
    device.run();
    const auto raw = device.result(problem.table.rows);
    auto after = device.cache.download();
    problem.check_cache(after);
    const double limit = limit_of<C>();
    if (planted != Planted::NONE) {  // in what the reference reads, so that the device is what is wrong
        const int half = (fed[0].position + fed[0].count) / 2;
        if (planted == Planted::KEY) problem.made[3 * C::LATENT + 1] += 8.0f;
        if (planted == Planted::VALUE) problem.made[(size_t(C::KEY_DIM) + 3) * C::LATENT + 1] += 8.0f;
        if (planted == Planted::ROTATED)
            for (int e = 0; e < C::ROTATED; e++) problem.write_key(after, 0, half, e, -4.0f * problem.stored(after, 0, half)[C::LATENT + e]);
        if (planted == Planted::SIGN)
            for (size_t i = 1; i < problem.made.size(); i += C::LATENT) problem.made[i] = -problem.made[i];
        if (planted == Planted::SCALES)
            for (int p = 0; p < fed[0].position; p++) {
                uint8_t* scales = problem.bytes(after, problem.places(0, p)[1]);
                std::swap(scales[0], scales[1]);
            }
        const auto difference = compare(raw, problem.reference(after));
        const bool seen = difference.relative > limit;
        std::printf("%s %-58s relative %.2e (must exceed %.0e)\n", seen ? "ok  " : "FAIL", name, difference.relative, limit);
        failures += !seen;
        return;
    }
    report(name, compare(raw, problem.reference(after)), limit, device.intact());
    device.out.poison();
    device.partials.poison();
    device.queries.poison();
    device.run();
    const auto again = device.result(problem.table.rows);
    if (std::memcmp(again.data(), raw.data(), raw.size() * sizeof raw[0]) != 0) std::printf("FAIL %s: second run differs\n", name), failures++;
}

// A row's bits alone in the step, and among others that differ.
template <class C, By BY = By::MMA>
void check_alone(const char* name, std::vector<Fed> fed, int which, uint64_t seed) {
    Problem<C> problem(fed, seed);
    Device<C, BY> together(problem, true);
    together.run();
    const auto all = together.result(problem.table.rows);
    Problem<C> alone = problem;
    Step header = problem.table.header();
    header.sequence[0] = header.sequence[which];
    header.sequence[0].first_token = 0;
    header.sequences = header.tokens = 1;
    std::memcpy(alone.table.step.data(), &header, sizeof header);
    std::copy_n(problem.q.begin() + size_t(which) * LatentShape<C>::Q_WIDTH, LatentShape<C>::Q_WIDTH, alone.q.begin());
    std::copy_n(problem.kv.begin() + size_t(which) * LatentShape<C>::WIDTH, LatentShape<C>::WIDTH, alone.kv.begin());
    Device<C, BY> single(alone, true);
    single.run();
    const auto one = single.result(1);
    const bool same = std::memcmp(one.data(), &all[one.size() * which], one.size() * sizeof one[0]) == 0;
    std::printf("%s %-58s\n", same ? "ok  " : "FAIL", name);
    failures += !same;
}

// The last token of a prompt by decode, after a prefill of the others, and by prefill of all: the same cache,
// bit for bit, and nearly the same row.
template <class P, class D, By PROMPT = By::MMA, By STEP = By::MMA>
void check_continuation(const char* name, int length, uint64_t seed) {
    Problem<P> whole({{length, 0}}, seed);
    Device<P, PROMPT> prefill(whole, false);
    prefill.run();
    const auto all = prefill.result(length);
    const auto expected = prefill.cache.download();
    Problem<P> start = whole;
    Step header = whole.table.header();
    header.tokens = length - 1, header.sequence[0].count = length - 1;
    std::memcpy(start.table.step.data(), &header, sizeof header);
    Device<P, PROMPT> most(start, false);
    most.run();
    CHECK(cudaDeviceSynchronize());
    Problem<D> last({{1, length - 1}}, seed);
    last.table.step = whole.table.step;
    header.tokens = 1, header.sequence[0].count = 1, header.sequence[0].position = length - 1;
    std::memcpy(last.table.step.data(), &header, sizeof header);
    last.made = whole.made, last.codes = whole.codes, last.row_scales = whole.row_scales, last.norm = whole.norm, last.rotary = whole.rotary;
    last.q.assign(whole.q.end() - LatentShape<P>::Q_WIDTH, whole.q.end());
    last.kv.assign(whole.kv.end() - LatentShape<P>::WIDTH, whole.kv.end());
    last.cache = most.cache.download();
    Device<D, STEP> decode(last, true);
    decode.run();
    const auto row = decode.result(1);
    const auto cache = decode.cache.download();
    if (std::memcmp(cache.data() + Problem<P>::AHEAD, expected.data() + Problem<P>::AHEAD, (cache.size() - Problem<P>::AHEAD) * sizeof cache[0]) != 0) std::printf("FAIL %s: caches differ\n", name), failures++;
    report(name, compare(row, std::vector<double>(all.end() - row.size(), all.end())), limit_of<P>());
}

// The largest magnitude of what is to be kept, which is rotated if the cache keeps it so; nothing else is measured.
template <class C>
void check_measured(const char* name, std::vector<Fed> fed, uint64_t seed) {
    Problem<C> problem(fed, seed);
    auto before = Problem<C>::ahead(problem.cache);
    before.measures = 1;
    Problem<C>::put_ahead(problem.cache, before);
    Device<C> device(problem, false);
    device.run();
    CHECK(cudaDeviceSynchronize());
    const auto after = Problem<C>::ahead(device.cache.download());
    double largest = 0;
    for (int row = 0; row < problem.table.rows; row++) {
        auto latent = problem.normed(row);
        if (LatentShape<C>::STORED_ROTATED) rotate_host(latent, false);
        for (double v : latent) largest = std::max(largest, std::abs(v));
    }
    const bool right = std::abs(after.largest[0] - largest) <= 1e-5 * largest && after.largest[1] == 0 && after.scales[0] == before.scales[0];
    std::printf("%s %-58s %.6f of %.6f\n", right ? "ok  " : "FAIL", name, after.largest[0], largest);
    failures += !right;
}

using bf16 = __nv_bfloat16;
using f16 = __half;

template <class Base, int ROWS_, int SPLITS_, int TILE_ = 64, int STAGES_ = 2, int TERMS_ = 1, bool BEFORE = false>
struct Decode : Base {
    static constexpr int ROWS = ROWS_, SPLITS = SPLITS_, TILE = TILE_, STAGES = STAGES_, TERMS = TERMS_;
    static constexpr bool CONTEXT_BEFORE_WAIT = BEFORE;
};
template <class Base, int ROWS_, int TILES>
struct Prefill : Base {
    static constexpr int ROWS = ROWS_, ROW_TILES = TILES;
};
template <class Base, int BLOCK>
struct Blocks : Base {
    static constexpr int BLOCK_TOKENS = BLOCK;
};
template <class Base>
struct Halves : Base {
    static constexpr bool ROTARY_HALVES = true;
    static constexpr float GROWTH = 0.0f;
};

using Mistral = Latents<32, 64, 64, 128, 256>;
using Rank = Latents<8, 64, 64, 128, 256>;
using One = Latents<1, 16, 8, 24, 40>;          // a row of 48: half a panel, and no whole unit
using Five = Latents<5, 24, 16, 40, 72, f16>;   // an odd number of key tiles
using Seek = Latents<40, 128, 64, 128, 512>;    // two groups of heads, the second of 8
using Many = Latents<40, 64, 64, 128, 256>;
using Coded = Latents<32, 64, 64, 128, 256, E4m3>;
using CodedRank = Latents<8, 64, 64, 128, 256, E4m3>;
using CodedFive = Latents<5, 24, 24, 40, 80, E4m3>;   // neither panels nor pieces of a token are whole
using CodedMany = Latents<40, 64, 64, 128, 256, E4m3>;

template <class Kv>
using In = Latents<32, 64, 64, 128, 256, Kv>;
template <class Kv>
using FewIn = Latents<5, 24, 24, 40, 64, Kv>;     // a chunk a thread
template <class Kv>
using SeekIn = Latents<40, 128, 64, 128, 512, Kv>;

#ifndef PART
#error "compile with -DPART=0 to 5"
#endif

int main() {
    using Whole = Decode<Mistral, 8, 16, 64, 2, 1, true>;
#if PART == 0
    check<Decode<Mistral, 1, 1>>("decode 32 x 64+64/128 of 256, 1 part, 128 tokens", {{1, 127}}, 1, true);
    check<Whole>("decode, 16 parts, 0..1500 tokens, 7 of 8 rows", {{1, 0}, {1, 1}, {1, 15}, {1, 63}, {1, 64}, {1, 300}, {1, 1500}}, 2, true);
    check<Decode<Mistral, 1, 132, 64, 4>>("decode, 132 parts, 4 stages, 9,000 tokens", {{1, 8999}}, 3, true);
    check<Decode<Mistral, 2, 16, 32, 3, 2>>("decode, 2 terms, tiles of 32", {{1, 1000}, {1, 31}}, 4, true);
    check<Decode<Blocks<Mistral, 64>, 2, 3, 32, 4>>("decode, blocks of 64, tiles of 32", {{1, 1000}, {1, 32}}, 5, true);
    check<Decode<Rank, 2, 4>>("decode, 8 heads of a rank", {{1, 700}, {1, 5}}, 6, true);
    check<Decode<Halves<Rank>, 2, 4, 64, 3, 2>>("decode, 8 heads, pairs of halves, 2 terms", {{1, 100}, {1, 64}}, 7, true);
    check<Decode<One, 4, 2>>("decode 1 x 16+8/24 of 40", {{1, 300}, {1, 0}, {1, 64}}, 8, true);
    check<Decode<Five, 3, 5, 64, 2, 2>>("decode 5 x 24+16/40 of 72 f16, 2 terms", {{1, 500}, {1, 63}, {1, 128}}, 9, true);
    check<Decode<Five, 3, 5, 32, 3>>("decode 5 x 24+16/40 of 72 f16", {{1, 500}, {1, 63}, {1, 128}}, 10, true);
    check<Decode<Seek, 2, 4, 32, 2>>("decode 40 x 128+64/128 of 512", {{1, 200}, {1, 31}}, 11, true);
    check<Decode<Whole, 1, 4>>("planted: a wrong element of a key matrix", {{1, 300}}, 12, true, Planted::KEY);
    check<Decode<Whole, 1, 4>>("planted: a wrong element of a value matrix", {{1, 300}}, 13, true, Planted::VALUE);
    check<Decode<Whole, 1, 4>>("planted: a wrong rotated key", {{1, 300}}, 14, true, Planted::ROTATED);
    check_alone<Whole>("a row's bits are its own", {{1, 700}, {1, 63}, {1, 999}, {1, 64}}, 2, 15);
    check_alone<Decode<Five, 4, 3, 32, 2, 2>>("a row's bits are its own, 5 heads", {{1, 700}, {1, 63}, {1, 999}, {1, 64}}, 1, 16);
    check<Prefill<Mistral, 200, 4>>("prefill, one prompt of 200", {{200, 0}}, 20, false);
    check<Prefill<Mistral, 128, 2>>("prefill, mixed", {{1, 0}, {1, 77}, {33, 100}, {64, 0}, {5, 3}}, 21, false);
    check<Prefill<Five, 160, 8>>("prefill 5 heads, long prefix", {{90, 700}, {1, 255}, {40, 31}}, 22, false);
    check<Prefill<One, 70, 1>>("prefill 1 head", {{33, 0}, {37, 100}}, 23, false);
    check_continuation<Prefill<Mistral, 300, 4>, Decode<Mistral, 1, 8>>("decode after prefill", 300, 24);
#elif PART == 2
    check<Decode<Coded, 1, 1>>("fp8 decode 32 x 64+64/128 of 256, 1 part, 128 tokens", {{1, 127}}, 50, true);
    check<Decode<Coded, 8, 16, 64, 2, 1, true>>("fp8 decode, 16 parts, 0..1500 tokens, 7 of 8 rows", {{1, 0}, {1, 1}, {1, 15}, {1, 63}, {1, 64}, {1, 300}, {1, 1500}}, 51, true);
    check<Decode<Blocks<Coded, 64>, 2, 3, 32, 3>>("fp8 decode, blocks of 64, tiles of 32", {{1, 1000}, {1, 32}}, 52, true);
    check<Decode<CodedFive, 3, 5, 32, 2, 2>>("fp8 decode 5 x 24+24/40 of 80, 2 terms", {{1, 500}, {1, 63}, {1, 128}}, 53, true);
    check<Decode<Coded, 1, 4, 64, 2, 1, true>>("planted: a wrong rotated key, fp8", {{1, 300}}, 54, true, Planted::ROTATED);
    check_alone<Decode<Coded, 8, 16, 64, 2, 1, true>>("a row's bits are its own, fp8", {{1, 700}, {1, 63}, {1, 999}, {1, 64}}, 2, 55);
    check<Prefill<Coded, 128, 2>>("fp8 prefill, mixed", {{1, 0}, {1, 77}, {33, 100}, {64, 0}, {5, 3}}, 56, false);
    check_measured<Prefill<CodedFive, 70, 1>>("measured, fp8", {{33, 0}, {37, 100}}, 58);
    check_continuation<Prefill<CodedFive, 150, 4>, Decode<CodedFive, 1, 8>>("fp8 decode after prefill", 150, 57);
#elif PART == 3
    constexpr By STEP = By::DECODE_WGMMA, PROMPT = By::PREFILL_WGMMA;
    check<Decode<Coded, 1, 1>, STEP>("fp8 wgmma decode 32 x 64+64/128 of 256, 1 part, 128 tokens", {{1, 127}}, 60, true);
    check<Decode<Coded, 8, 16, 64, 2, 1, true>, STEP>("fp8 wgmma decode, 16 parts, 0..1500 tokens, 7 of 8 rows", {{1, 0}, {1, 1}, {1, 15}, {1, 63}, {1, 64}, {1, 300}, {1, 1500}}, 61, true);
    check<Decode<CodedMany, 2, 3, 64, 2, 1, true>, STEP>("fp8 wgmma decode, 40 heads, 6 tiles a part", {{1, 1100}, {1, 128}}, 62, true);
    check<Decode<Blocks<CodedRank, 64>, 2, 2>, STEP>("fp8 wgmma decode, 8 heads of a rank, blocks of 64", {{1, 1000}, {1, 32}}, 63, true);
    check<Decode<Coded, 1, 4, 64, 2, 1, true>, STEP>("planted: a wrong rotated key, fp8 wgmma", {{1, 300}}, 64, true, Planted::ROTATED);
    check_alone<Decode<Coded, 8, 1, 64, 2, 1, true>, STEP>("a row's bits are its own, fp8 wgmma, 1 part", {{1, 640}, {1, 0}, {1, 320}}, 2, 65);
    check<Prefill<Coded, 128, 2>, PROMPT>("fp8 wgmma prefill, mixed", {{1, 0}, {1, 77}, {33, 100}, {64, 0}, {5, 3}}, 66, false);
    check<Prefill<CodedRank, 300, 8>, PROMPT>("fp8 wgmma prefill, 8 heads of a rank, long prefix", {{90, 700}, {1, 255}, {200, 31}}, 67, false);
    check_continuation<Prefill<Coded, 300, 4>, Decode<Coded, 1, 8>, PROMPT, STEP>("fp8 wgmma decode after wgmma prefill", 300, 68);
#elif PART == 4
    check<Decode<In<Nvfp4>, 8, 16, 64, 2, 1, true>>("nvfp4 decode, 16 parts, 0..1500 tokens, 7 of 8 rows", {{1, 0}, {1, 1}, {1, 15}, {1, 63}, {1, 64}, {1, 300}, {1, 1500}}, 70, true);
    check<Decode<Blocks<In<Turbo4>, 64>, 2, 3, 32, 3>>("turbo4 decode, blocks of 64, tiles of 32", {{1, 1000}, {1, 32}}, 71, true);
    check<Decode<In<Turbo3>, 2, 4>>("turbo3 decode, 4 parts", {{1, 300}, {1, 64}}, 72, true);
    check<Decode<In<Turbo8>, 2, 4>>("turbo8 decode, 4 parts", {{1, 300}, {1, 64}}, 73, true);
    check<Decode<FewIn<Nvfp4>, 3, 5, 32, 2, 2>>("nvfp4 decode 5 x 24+24/40 of 64, 2 terms", {{1, 500}, {1, 63}, {1, 128}}, 74, true);
    check<Decode<FewIn<Turbo3>, 3, 5, 32, 2, 2>>("turbo3 decode 5 x 24+24/40 of 64, 2 terms", {{1, 500}, {1, 63}, {1, 128}}, 75, true);
    check<Decode<SeekIn<Turbo4>, 2, 4, 32, 2>>("turbo4 decode 40 x 128+64/128 of 512", {{1, 200}, {1, 31}}, 76, true);
    check<Decode<In<Nvfp4>, 1, 4>>("planted: scales of two groups, nvfp4", {{1, 300}}, 77, true, Planted::SCALES);
    check<Decode<In<Turbo4>, 1, 4>>("planted: a wrong sign of the rotation, turbo4", {{1, 300}}, 78, true, Planted::SIGN);
    check<Decode<In<Turbo4>, 1, 4>>("planted: a wrong rotated key, turbo4", {{1, 300}}, 79, true, Planted::ROTATED);
    check_alone<Decode<In<Turbo4>, 8, 16, 64, 2, 1, true>>("a row's bits are its own, turbo4", {{1, 700}, {1, 63}, {1, 999}, {1, 64}}, 2, 80);
    check<Prefill<In<Turbo4>, 128, 2>>("turbo4 prefill, mixed", {{1, 0}, {1, 77}, {33, 100}, {64, 0}, {5, 3}}, 81, false);
    check_measured<Prefill<FewIn<Turbo4>, 70, 1>>("measured, turbo4", {{33, 0}, {37, 100}}, 84);
    check_measured<Prefill<FewIn<Nvfp4>, 70, 1>>("measured, nvfp4", {{33, 0}, {37, 100}}, 85);
    check_continuation<Prefill<FewIn<Turbo8>, 150, 4>, Decode<FewIn<Turbo8>, 1, 8>>("turbo8 decode after prefill", 150, 82);
    check_continuation<Prefill<FewIn<Nvfp4>, 150, 4>, Decode<FewIn<Nvfp4>, 1, 8>>("nvfp4 decode after prefill", 150, 83);
#elif PART == 5
    constexpr By STEP = By::DECODE_WGMMA, PROMPT = By::PREFILL_WGMMA;
    check<Decode<In<Nvfp4>, 8, 16, 64, 2, 1, true>, STEP>("nvfp4 wgmma decode, 16 parts, 0..1500 tokens, 7 of 8 rows", {{1, 0}, {1, 1}, {1, 15}, {1, 63}, {1, 64}, {1, 300}, {1, 1500}}, 90, true);
    check<Decode<Latents<40, 64, 64, 128, 256, Turbo4>, 2, 3, 64, 2, 1, true>, STEP>("turbo4 wgmma decode, 40 heads, 6 tiles a part", {{1, 1100}, {1, 128}}, 91, true);
    check<Decode<Blocks<Latents<8, 64, 64, 128, 256, Turbo3>, 64>, 2, 2>, STEP>("turbo3 wgmma decode, 8 heads of a rank, blocks of 64", {{1, 1000}, {1, 32}}, 92, true);
    check<Decode<In<Turbo4>, 1, 4, 64, 2, 1, true>, STEP>("planted: a wrong sign of the rotation, turbo4 wgmma", {{1, 300}}, 93, true, Planted::SIGN);
    check<Decode<In<Nvfp4>, 1, 4, 64, 2, 1, true>, STEP>("planted: scales of two groups, nvfp4 wgmma", {{1, 300}}, 94, true, Planted::SCALES);
    check_alone<Decode<In<Turbo4>, 8, 1, 64, 2, 1, true>, STEP>("a row's bits are its own, turbo4 wgmma, 1 part", {{1, 640}, {1, 0}, {1, 320}}, 2, 95);
    check<Prefill<In<Nvfp4>, 128, 2>, PROMPT>("nvfp4 wgmma prefill, mixed", {{1, 0}, {1, 77}, {33, 100}, {64, 0}, {5, 3}}, 96, false);
    check<Prefill<Latents<8, 64, 64, 128, 256, Turbo3>, 300, 8>, PROMPT>("turbo3 wgmma prefill, 8 heads of a rank, long prefix", {{90, 700}, {1, 255}, {200, 31}}, 97, false);
    check<Decode<In<Turbo8>, 2, 3, 64, 2, 1, true>, STEP>("turbo8 wgmma decode, 3 parts", {{1, 700}, {1, 128}}, 99, true);
    check<Prefill<In<Turbo8>, 128, 2>, PROMPT>("turbo8 wgmma prefill, mixed", {{1, 0}, {1, 77}, {33, 100}, {17, 0}, {5, 3}}, 100, false);
    check_continuation<Prefill<In<Turbo4>, 300, 4>, Decode<In<Turbo4>, 1, 8>, PROMPT, STEP>("turbo4 wgmma decode after wgmma prefill", 300, 98);
#else
    constexpr By STEP = By::DECODE_WGMMA, PROMPT = By::PREFILL_WGMMA;
    check<Decode<Mistral, 1, 1>, STEP>("wgmma decode 32 x 64+64/128 of 256, 1 part, 128 tokens", {{1, 127}}, 30, true);
    check<Whole, STEP>("wgmma decode, 16 parts, 0..1500 tokens, 7 of 8 rows", {{1, 0}, {1, 1}, {1, 15}, {1, 63}, {1, 64}, {1, 300}, {1, 1500}}, 31, true);
    check<Decode<Mistral, 1, 132, 64, 2, 1, true>, STEP>("wgmma decode, 132 parts, 9,000 tokens", {{1, 8999}}, 32, true);
    check<Decode<Rank, 2, 4>, STEP>("wgmma decode, 8 heads of a rank", {{1, 700}, {1, 5}}, 33, true);
    check<Decode<Blocks<Mistral, 64>, 2, 2>, STEP>("wgmma decode, blocks of 64", {{1, 1000}, {1, 32}}, 34, true);
    check<Decode<Many, 2, 3, 64, 2, 1, true>, STEP>("wgmma decode, 40 heads, 6 tiles a part", {{1, 1100}, {1, 128}}, 42, true);
    check_alone<Decode<Mistral, 8, 1, 64, 2, 1, true>, STEP>("a row's bits are its own, wgmma, 1 part", {{1, 640}, {1, 0}, {1, 320}}, 2, 43);
    check<Decode<Whole, 1, 4>, STEP>("planted: a wrong rotated key, wgmma", {{1, 300}}, 35, true, Planted::ROTATED);
    check_alone<Whole, STEP>("a row's bits are its own, wgmma", {{1, 700}, {1, 63}, {1, 999}, {1, 64}}, 2, 36);
    check<Prefill<Mistral, 200, 4>, PROMPT>("wgmma prefill, one prompt of 200", {{200, 0}}, 37, false);
    check<Prefill<Mistral, 128, 2>, PROMPT>("wgmma prefill, mixed", {{1, 0}, {1, 77}, {33, 100}, {64, 0}, {5, 3}}, 38, false);
    check<Prefill<Rank, 300, 8>, PROMPT>("wgmma prefill, 8 heads of a rank, long prefix", {{90, 700}, {1, 255}, {200, 31}}, 39, false);
    check_continuation<Prefill<Mistral, 300, 4>, Decode<Mistral, 1, 8>, PROMPT, STEP>("wgmma decode after wgmma prefill", 300, 40);
    check_continuation<Prefill<Mistral, 300, 4>, Decode<Mistral, 1, 8>, PROMPT, By::MMA>("decode after wgmma prefill", 300, 41);
#endif
    std::printf("%s: %d failures\n", failures ? "FAIL" : "PASS", failures);
    return failures != 0;
}
