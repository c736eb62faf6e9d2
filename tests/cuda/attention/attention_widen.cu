// Keys and values of narrow caches, widened: what attention_widen leaves in its area, to the bit and against
// a decision written apart from the kernels' (widened.cuh); and attention over it, with the bits of attention
// over the cache. nvcc as in common.cuh.
#include "attention/attention_checks.cuh"

using namespace test;

template <class Kv>
using LlamaIn = Heads<32, 8, 128, Kv, 64, true>;
template <class Kv>
using QwenIn = Heads<16, 2, 128, Kv, 64, true, HeadNorm::Plain>;
template <class Kv>
using WideIn = Heads<16, 2, 256, Kv, 32, true, HeadNorm::OnePlus>;
template <class Kv>
using SmallIn = Heads<9, 3, 64, Kv, 32, true>;
template <class Kv>
using SlidingIn = ValuesNormed<Heads<16, 8, 256, Kv, 128, true, HeadNorm::Plain>>;
using Turbo84 = GroupedPair<Turbo8, Turbo4>;

// An area of so many blocks.
template <class Base, int BLOCKS>
struct Area : Base {
    static constexpr int WIDENED_BLOCKS = BLOCKS;
};

// What is broken while keys and values are widened: nothing, or each block has the scales of the next one.
enum class Broken { None, Scales };

// Where each sequence's blocks stand in the area; -1 of those that are not widened.
template <class C>
std::vector<int> places(const std::vector<Fed>& fed) {
    std::vector<int> all;
    int next = 0;
    bool full = false;
    for (const Fed& it : fed) {
        const int from = Window<C>::first(it.position) / C::BLOCK_TOKENS;
        const int blocks = (it.position + it.count - from * C::BLOCK_TOKENS + C::BLOCK_TOKENS - 1) / C::BLOCK_TOKENS;
        const bool several = it.count > 128 / (C::HEADS / C::KV_HEADS);
        full = full || (several && next + blocks > C::WIDENED_BLOCKS);
        all.push_back(several && !full ? next : -1);
        if (several && !full) next += blocks;
    }
    return all;
}

template <class Operand>
uint16_t host_bits(float v) {
    return std::is_same_v<Operand, __half> ? float_to_f16(v) : float_to_bf16(v);
}

// widened: how many of the sequences are. blocks: of the launch that widens.
template <class Base, int BLOCKS>
void check_widened(const char* name, std::vector<Fed> fed, int widened, uint64_t seed, int blocks = 5, Broken broken = Broken::None) {
    using C = Area<Base, BLOCKS>;
    using A = AttentionShape<C>;
    using Operand = typename A::Operand;
    constexpr int D = C::HEAD_DIM;
    Problem<C> problem(fed, seed);
    Device<C> device(problem, problem.rows);
    Buffer<Operand> q(size_t(problem.rows) * C::HEADS * A::HEAD_DIM_16), area(widened_bytes<C>() / sizeof(Operand));
    launch(write_kernel<C>, dim3((problem.rows + WRITE_TOKENS - 1) / WRITE_TOKENS), WRITE_THREADS, 0, 0, device.header(), device.tokens.pointer,
           device.qkv.pointer, device.q_norm.pointer, device.k_norm.pointer, device.rotary.pointer, device.layer(), q.pointer);
    CHECK(cudaDeviceSynchronize());
    const auto after = device.cache.download();
    if (broken == Broken::Scales) {
        auto wrong = after;
        if constexpr (GROUPED<typename C::Kv>) {
            using Keys = KeptRow<C, Side::Keys>;
            const size_t codes = C::BLOCK_TOKENS * Keys::CODES, scales = C::BLOCK_TOKENS * Keys::SCALES;
            for (size_t at = Problem<C>::AHEAD + codes; at + A::BLOCK_STRIDE + scales <= after.size(); at += A::BLOCK_STRIDE)
                std::copy_n(after.begin() + at + A::BLOCK_STRIDE, scales, wrong.begin() + at);
        }
        device.cache.upload(wrong);
    }
    launch(widen_kernel<C>, dim3(blocks), WIDEN_THREADS, 0, 0, device.header(), static_cast<const typename C::Kv*>(device.layer()), area.pointer);
    CHECK(cudaDeviceSynchronize());
    device.cache.upload(after);

    // The area, all of it: what is not widened is as it was, and behind a sequence are zeros.
    const auto places = ::places<C>(fed);
    std::vector<uint16_t> expected(area.count, 0xffff), found(area.count);
    std::memcpy(found.data(), area.download().data(), area.bytes());
    int count = 0;
    for (size_t s = 0; s < fed.size(); s++) {
        if (places[s] < 0) continue;
        count++;
        const int from = Window<C>::first(fed[s].position) / C::BLOCK_TOKENS * C::BLOCK_TOKENS, end = fed[s].position + fed[s].count;
        for (int p = from; p < (end + C::BLOCK_TOKENS - 1) / C::BLOCK_TOKENS * C::BLOCK_TOKENS; p++)
            for (int part = 0; part < 2; part++)
                for (int h = 0; h < C::KV_HEADS; h++) {
                    const size_t block = size_t(places[s]) + (p - from) / C::BLOCK_TOKENS;
                    uint16_t* to = &expected[((block * 2 + part) * C::KV_HEADS + h) * C::BLOCK_TOKENS * D + size_t(p % C::BLOCK_TOKENS) * D];
                    const std::vector<float> row = p < end ? problem.read_scaled(after, int(s), p, part, h, 1.0f) : std::vector<float>(D);
                    for (int e = 0; e < D; e++) to[e] = host_bits<Operand>(row[e]);
                }
    }
    size_t other = 0;
    for (size_t i = 0; i < expected.size(); i++) other += expected[i] != found[i];

    const int tiles = (problem.rows + PREFILL_TOKENS<C> - 1) / PREFILL_TOKENS<C> + int(fed.size());
    const dim3 grid((tiles + 2) / 3, C::KV_HEADS);
    const auto run = [&](auto&& launch_it) {
        device.out.poison();
        launch_it();
        CHECK(cudaDeviceSynchronize());
        return read_out<C>(device.out.download(), problem.rows);
    };
    const auto direct = run([&] {
        launch(wgmma_prefill_kernel<Base>, grid, WGMMA_THREADS, wgmma_prefill_shared_bytes<C>(), 0, device.header(), q.pointer, device.layer(),
               device.out.pointer, device.qkv.pointer);
    });
    const auto out = run([&] {
        launch(widened_prefill_kernel<C>, grid, WGMMA_THREADS, wgmma_prefill_shared_bytes<C>(), 0, device.header(), q.pointer, device.layer(),
               area.pointer, device.out.pointer, device.qkv.pointer);
    });
    const size_t differ = std::memcmp(direct.data(), out.data(), out.size() * sizeof(float)) != 0;
    if (broken != Broken::None) {
        const bool seen = other > 0 && differ;
        std::printf("%s %-58s %zu elements of the area, results %s\n", seen ? "ok  " : "FAIL", name, other, differ ? "differ" : "do not");
        failures += !seen;
        return;
    }
    report(name, compare(out, problem.reference(after, true)), 6e-3, device.intact() && q.intact() && area.intact());
    const bool right = count == widened && other == 0 && !differ;
    if (!right) std::printf("FAIL %s: %d sequences widened, %zu elements of the area wrong, results %s\n", name, count, other, differ ? "differ" : "do not"), failures++;
}

int main() {
    check_widened<LlamaIn<E4m3>, 32>("widened 32/8x128 fp8, two of five, the others short", {{1, 0}, {70, 20}, {32, 100}, {64, 0}, {5, 3}}, 2, 400);
    check_widened<QwenIn<Turbo4>, 14>("widened 16/2x128 turbo4, one of three fits", {{70, 100}, {17, 40}, {60, 0}}, 1, 401);
    check_widened<Blocks<QwenIn<Nvfp4>, 32>, 9>("widened 16/2x128 nvfp4, blocks of 32", {{60, 90}, {17, 0}, {100, 0}}, 2, 402, 1);
    check_widened<Blocks<SmallIn<Turbo3>, 64>, 3>("widened 9/3x64 turbo3, blocks of 64", {{130, 0}, {1, 64}}, 1, 403);
    check_widened<Gated<WideIn<Turbo84>>, 12>("widened 16/2x256 turbo8/turbo4 one-plus gated", {{90, 0}, {1, 64}, {33, 100}}, 1, 404);
    check_widened<SmallIn<Turbo8>, 40>("widened 9/3x64 turbo8, 13 of 40 sequences", std::vector<Fed>(40, {45, 0}), 13, 405, 3);
    check_widened<Windowed<SlidingIn<Turbo4>, 100>, 60>("widened 16/8x256 turbo4, a window of 100", {{190, 0}, {1, 64}, {70, 500}, {5, 95}}, 2, 406);
    check_widened<Slides<Windowed<SmallIn<Nvfp4>, 40>>, 9>("widened 9/3x64 nvfp4, a table of a window of 40", {{60, 300}, {45, 77}}, 1, 407);
    check_widened<SmallIn<Turbo4>, 2>("widened 9/3x64 turbo4, no room", {{60, 0}}, 0, 408);
    check_widened<SmallIn<Turbo4>, 40>("planted: scales of the next block must be seen", {{60, 100}}, 1, 409, 5, Broken::Scales);
    std::printf(failures ? "%d FAILED\n" : "all passed\n", failures);
    return failures != 0;
}
