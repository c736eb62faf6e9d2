// The checks of attention's programs: a problem's buffers, a launch of each kernel, and what comes out compared with the reference; and what
// Configs are made of.
#pragma once

#include "attention/attention_case.cuh"

namespace test {

// A problem's buffers on the device.
template <class C>
struct Device {
    using A = AttentionShape<C>;
    Buffer<char> step;
    Buffer<TokenRow> tokens;
    Buffer<float> qkv, q_norm, k_norm, rotary;
    Buffer<typename C::Kv> cache;
    Buffer<float> out;
    Device(const Problem<C>& p, int rows)
        : step(p.step), tokens(p.tokens), qkv(size_t(rows) * A::QKV_WIDTH), q_norm(p.q_norm), k_norm(p.k_norm), rotary(p.rotary), cache(p.cache),
          out(out_elements<C>(rows)) {
        qkv.upload(p.qkv);
    }
    const Step* header() const { return reinterpret_cast<const Step*>(step.pointer); }
    typename C::Kv* layer() const { return cache.pointer + Problem<C>::AHEAD; }
    bool intact() const { return out.intact() && cache.intact() && qkv.intact(); }
};

constexpr double tolerance_of_cache(bool exact) { return exact ? 1e-12 : 2e-3; }

// A result that must be wrong, or what is left in the cache.
void must_exceed(const char* name, const test::Difference& difference, double limit, bool right_cache = true) {
    const bool seen = difference.relative > limit || difference.not_finite > 0 || !right_cache;
    std::printf("%s %-58s relative %.2e (must exceed %.0e)%s\n", seen ? "ok  " : "FAIL", name, difference.relative, limit, right_cache ? "" : ", cache wrong");
    failures += !seen;
}

// What is broken in the cache.
enum class Plant { None, Key, Scales };

// BUCKET rows of buffers, of which the problem uses TOKENS a sequence; `positions` are of the first of each. Run: what the kernel is
// built for, if not for the problem: then the result must be wrong.
template <class C, int BUCKET, class Run = C>
void check_decode(const char* name, std::vector<int> positions, uint64_t seed, Plant planted = Plant::None) {
    const bool plant = planted != Plant::None;
    std::vector<Fed> fed;
    for (int position : positions)
        for (int token = 0; token < C::TOKENS; token++) fed.push_back({1, position + token});
    Problem<C> problem(fed, seed);
    Device<C> device(problem, BUCKET);
    Buffer<float> partials(decode_partials_bytes<C>(BUCKET) / 4 + 1);
    Buffer<int> counters(decode_counters<C>(BUCKET));
    counters.zero();
    auto run = [&] {
        launch(decode_kernel<Bucket<Run, BUCKET>>, dim3(C::SPLITS, C::KV_HEADS, BUCKET), 32 * C::DECODE_WARPS, decode_shared_bytes<C>(), 0, device.header(),
               device.qkv.pointer, device.q_norm.pointer, device.k_norm.pointer, device.rotary.pointer, reinterpret_cast<typename Run::Kv*>(device.layer()), partials.pointer,
               counters.pointer, device.out.pointer);
        CHECK(cudaDeviceSynchronize());
        return device.out.download();
    };
    if (plant) {
        auto broken = problem.cache;
        if (planted == Plant::Key) {  // one key of one head, half way, with its sign turned
            auto key = problem.read(broken, 0, positions[0] / 2, 0, C::KV_HEADS - 1);
            for (auto& v : key) v *= -2.0f;
            problem.write(broken, 0, positions[0] / 2, 0, C::KV_HEADS - 1, key);
        } else {  // each head has the scales of the other side
            for (int h = 0; h < C::KV_HEADS; h++)
                for (size_t byte = 0; byte < sizeof(float); byte++)
                    std::swap(broken[problem.scale_at(0, h) + byte], broken[problem.scale_at(1, h) + byte]);
        }
        device.cache.upload(broken);
    }
    const auto raw = run();
    const auto after = plant ? problem.cache : device.cache.download();
    constexpr bool WRONG = !std::is_same_v<C, Run>;
    const bool right_cache = plant || problem.check_cache(after, tolerance_of_cache(false), WRONG);
    auto known = after;
    if (plant) {
        const auto written = device.cache.download();
        for (int h = 0; h < C::KV_HEADS; h++)
            for (int part = 0; part < 2; part++)
                for (size_t s = 0; s < fed.size(); s++) problem.copy(written, known, int(s), positions[s], part, h);
    }
    const auto difference = compare(read_out<C>(raw, problem.rows), problem.reference(known, false));
    const double limit = 3e-5;
    if (plant || WRONG) return must_exceed(name, difference, limit, right_cache);
    report(name, difference, limit, device.intact() && partials.intact() && counters.intact());
    const auto again = run();
    if (std::memcmp(again.data(), raw.data(), raw.size() * sizeof raw[0]) != 0) std::printf("FAIL %s: second run differs\n", name), failures++;
    for (int counter : counters.download())
        if (counter != 0) std::printf("FAIL %s: a counter is left at %d\n", name, counter), failures++;
}

template <class C, bool WGMMA = false, class Run = C>
void check_prefill(const char* name, std::vector<Fed> fed, uint64_t seed, int grid_divisor = 1) {
    Problem<C> problem(fed, seed);
    Device<C> device(problem, problem.rows);
    Buffer<typename AttentionShape<C>::Operand> q(size_t(problem.rows) * C::HEADS * AttentionShape<C>::HEAD_DIM_16);
    launch(write_kernel<C>, dim3((problem.rows + WRITE_TOKENS - 1) / WRITE_TOKENS), WRITE_THREADS, 0, 0, device.header(), device.tokens.pointer,
           device.qkv.pointer, device.q_norm.pointer, device.k_norm.pointer, device.rotary.pointer, device.layer(), q.pointer);
    const int tiles = (problem.rows + PREFILL_TOKENS<C> - 1) / PREFILL_TOKENS<C> + int(fed.size());
    const dim3 grid((tiles + grid_divisor - 1) / grid_divisor, C::KV_HEADS);
    if constexpr (WGMMA)
        launch(wgmma_prefill_kernel<Run>, grid, WGMMA_THREADS, wgmma_prefill_shared_bytes<C>(), 0, device.header(), q.pointer,
               device.layer(), device.out.pointer, device.qkv.pointer);
    else
        launch(prefill_kernel<Run>, grid, 128, prefill_shared_bytes<C>(), 0, device.header(), q.pointer, device.layer(),
               device.out.pointer, device.qkv.pointer);
    CHECK(cudaDeviceSynchronize());
    const auto after = device.cache.download();
    problem.check_cache(after, tolerance_of_cache(false));
    const auto difference = compare(read_out<C>(device.out.download(), problem.rows), problem.reference(after, true));
    if (!std::is_same_v<C, Run>) return must_exceed(name, difference, 6e-3);
    report(name, difference, 6e-3, device.intact() && q.intact());
}

template <class C>
void check_exact(const char* name, std::vector<Fed> fed, uint64_t seed, bool decode = false) {
    Problem<C> problem(fed, seed);
    Device<C> device(problem, problem.rows);
    const TokenRow* tokens = decode ? nullptr : device.tokens.pointer;
    launch(write_kernel<C>, dim3((problem.rows + WRITE_TOKENS - 1) / WRITE_TOKENS), WRITE_THREADS, 0, 0, device.header(), tokens,
           device.qkv.pointer, device.q_norm.pointer, device.k_norm.pointer, device.rotary.pointer, device.layer(),
           static_cast<typename AttentionShape<C>::Operand*>(nullptr));
    launch(exact_kernel<C>, dim3(problem.rows, C::HEADS), EXACT_THREADS, exact_shared_bytes<C>(), 0, device.header(), tokens,
           device.qkv.pointer, device.layer(), device.out.pointer);
    CHECK(cudaDeviceSynchronize());
    const auto after = device.cache.download();
    problem.check_cache(after, tolerance_of_cache(true));
    const auto difference = compare(read_out<C>(device.out.download(), problem.rows), problem.reference(after, false));
    // Half a unit in the last place of f32, and hardly ever another value than the reference's rounded one.
    report(name, difference, 6e-8, device.intact());
    if (difference.unequal * 1000 > problem.rows * AttentionShape<C>::WIDTH) std::printf("FAIL %s: %zu unequal\n", name, difference.unequal), failures++;
}

// The largest magnitudes of what a step keeps, before it is rounded.
template <class C>
void check_measured(const char* name, std::vector<Fed> fed, uint64_t seed) {
    Problem<C> problem(fed, seed);
    problem.measure(true);
    Device<C> device(problem, problem.rows);
    launch(write_kernel<C>, dim3((problem.rows + WRITE_TOKENS - 1) / WRITE_TOKENS), WRITE_THREADS, 0, 0, device.header(), device.tokens.pointer,
           device.qkv.pointer, device.q_norm.pointer, device.k_norm.pointer, device.rotary.pointer, device.layer(),
           static_cast<typename AttentionShape<C>::Operand*>(nullptr));
    CHECK(cudaDeviceSynchronize());
    const auto after = device.cache.download();
    std::vector<float> found;
    std::vector<double> expected;
    for (int part = 0; part < 2; part++)
        for (int h = 0; h < C::KV_HEADS; h++) {
            float largest = 0;
            for (size_t s = 0; s < fed.size(); s++)
                for (int t = 0; t < fed[s].count; t++) {
                    const int row = problem.header().sequence[s].first_token + t;
                    for (float v : part == 0 ? problem.turned(row, fed[s].position + t, C::HEADS + h) : problem.value(row, h)) largest = std::max(largest, std::fabs(v));
                }
            found.push_back(problem.measured(after, part, h));
            expected.push_back(largest);
        }
    const auto difference = compare(found, expected);
    report(name, difference, 0, device.intact() && difference.unequal == 0);
}

// What is no number is kept as one.
template <class C>
void check_kept_numbers(const char* name, uint64_t seed) {
    Problem<C> problem({{3, 20}}, seed);
    constexpr int D = C::HEAD_DIM;
    for (int head : {AttentionShape<C>::FIRST_KEY, AttentionShape<C>::FIRST_VALUE}) problem.qkv[size_t(head) * D + 5] = NAN;
    Device<C> device(problem, problem.rows);
    launch(write_kernel<C>, dim3(1), WRITE_THREADS, 0, 0, device.header(), device.tokens.pointer, device.qkv.pointer, device.q_norm.pointer,
           device.k_norm.pointer, device.rotary.pointer, device.layer(), static_cast<typename AttentionShape<C>::Operand*>(nullptr));
    CHECK(cudaDeviceSynchronize());
    const auto after = device.cache.download();
    int none = 0;
    for (int part = 0; part < 2; part++)
        for (float v : problem.read(after, 0, 20, part, 0)) none += std::isnan(v) || std::fabs(v) > 1e5f;
    std::printf("%s %-58s %d not numbers\n", none ? "FAIL" : "ok  ", name, none);
    failures += none > 0;
}

// The last token of a prompt by prefill, and by decode after a prefill of the others: the same context vector, the same cache.
template <class C>
void check_continuation(const char* name, int length, uint64_t seed) {
    auto prefill = [&](Device<C>& device, int rows) {
        Buffer<typename AttentionShape<C>::Operand> q(size_t(rows) * C::HEADS * AttentionShape<C>::HEAD_DIM_16);
        launch(write_kernel<C>, dim3((rows + WRITE_TOKENS - 1) / WRITE_TOKENS), WRITE_THREADS, 0, 0, device.header(), device.tokens.pointer,
               device.qkv.pointer, device.q_norm.pointer, device.k_norm.pointer, device.rotary.pointer, device.layer(), q.pointer);
        launch(prefill_kernel<C>, dim3(64, C::KV_HEADS), 128, prefill_shared_bytes<C>(), 0, device.header(), q.pointer, device.layer(),
               device.out.pointer, device.qkv.pointer);
        CHECK(cudaDeviceSynchronize());
    };
    Problem<C> whole({{length, 0}}, seed);
    Device<C> device(whole, length);
    prefill(device, length);
    const auto all = read_out<C>(device.out.download(), length);
    const auto expected = device.cache.download();

    device.cache.upload(whole.cache);
    auto edit = [&](int tokens, Sequence sequence) {
        auto bytes = whole.step;
        Step header;
        std::memcpy(&header, bytes.data(), sizeof header);
        header.tokens = tokens;
        header.sequence[0] = sequence;
        std::memcpy(bytes.data(), &header, sizeof header);
        device.step.upload(bytes);
    };
    edit(length - 1, {0, length - 1, 0, 0, 0, -1, -1, 0});
    prefill(device, length - 1);
    edit(1, {0, 1, length - 1, 0, 0, -1, -1, 0});
    device.out.poison();
    Buffer<float> partials(decode_partials_bytes<C>(1) / 4 + 1);
    Buffer<int> counters(decode_counters<C>(1));
    counters.zero();
    launch(decode_kernel<Bucket<C, 1>>, dim3(C::SPLITS, C::KV_HEADS, 1), 32 * C::DECODE_WARPS, decode_shared_bytes<C>(), 0, device.header(),
           static_cast<const float*>(device.qkv.pointer + size_t(length - 1) * AttentionShape<C>::QKV_WIDTH), device.q_norm.pointer,
           device.k_norm.pointer, device.rotary.pointer, device.layer(), partials.pointer, counters.pointer, device.out.pointer);
    CHECK(cudaDeviceSynchronize());
    const auto cache = device.cache.download();
    if (std::memcmp(cache.data(), expected.data(), cache.size() * sizeof cache[0]) != 0) std::printf("FAIL %s: caches differ\n", name), failures++;
    const auto last = read_out<C>(device.out.download(), 1);
    const std::vector<double> reference(all.end() - AttentionShape<C>::WIDTH, all.end());
    report(name, compare(last, reference), 1e-2, device.intact());
}

using bf16 = __nv_bfloat16;
using f16 = __half;

template <class Base, int SPLITS_, int MIN_CHUNK_, int WARPS = 4>
struct Decode : Base {
    static constexpr int SPLITS = SPLITS_, MIN_CHUNK = MIN_CHUNK_, DECODE_WARPS = WARPS;
};
template <class Base, int TOKENS_>
struct Verify : Base {
    static constexpr int TOKENS = TOKENS_;
};
template <class Base>
struct BeforeWait : Base {
    static constexpr bool CONTEXT_BEFORE_WAIT = true;
};
template <class Base, int KEYS, int BLOCK = 16>
struct Prefill : Base {
    static constexpr int PREFILL_KEYS = KEYS, BLOCK_TOKENS = BLOCK;
};
template <class Base>
struct Exact : Base {
    static constexpr bool EXACT = true;
};
template <class Base, int BLOCK>
struct Blocks : Base {
    static constexpr int BLOCK_TOKENS = BLOCK;
};
template <class Base>
struct Gated : Base {
    static constexpr bool GATED = true;
};

}  // namespace test
