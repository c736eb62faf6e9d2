// Times of the attention kernels. One division a binary: -DSPLIT_COUNT=n -DWARP_COUNT=n -DCHUNK_TOKENS=n -DRESIDENT_COUNT=blocks of an SM [-DBEFORE_WAIT] for decode (cold caches:
// launches walk over enough layers that the second-level cache never holds the next one), -DPREFILL -DKEY_COUNT=n [-DWGMMA] for prefill, -DWIDE with it for
// gated heads of 256, -DWIDEN for a narrow cache that is widened first, -DEXACTLY for exact. -DKV=Turbo4 for another cache than one of bf16; its static scales are 0, which costs as much.
#include "attention/attention_case.cuh"

using namespace test;

#ifndef KV
#define KV __nv_bfloat16
#endif
using Kv = KV;

#ifdef EXACTLY
using Base = Heads<9, 3, 64, Kv, 32, true>;
#else
#ifdef WIDE
struct Base : Heads<16, 2, 256, Kv, 32, true> {
    static constexpr bool GATED = true;
};
#else
using Base = Heads<32, 8, 128, Kv, 64, true>;
#endif
#endif

struct Config : Base {
#if defined(EXACTLY)
    static constexpr bool EXACT = true;
#elif defined(PREFILL)
    static constexpr int PREFILL_KEYS = KEY_COUNT;
#ifdef WIDEN
    static constexpr int WIDENED_BLOCKS = 2048;
#endif
#else
    static constexpr int SPLITS = SPLIT_COUNT, DECODE_WARPS = WARP_COUNT, MIN_CHUNK = CHUNK_TOKENS;
#ifdef BEFORE_WAIT
    static constexpr bool CONTEXT_BEFORE_WAIT = true;
#endif
#endif
};
using Shape = AttentionShape<Config>;
constexpr size_t AHEAD = STATIC_SCALES<Kv> ? 1024 : 0;  // in front of the blocks of a layer, zero

// A step of `fed`.
struct Bench {
    std::vector<char> step;
    int blocks = 0, rows = 0;
    std::vector<TokenRow> tokens;
    explicit Bench(const std::vector<Fed>& fed) {
        Step header = {};
        std::vector<int> table;
        for (size_t s = 0; s < fed.size(); s++) {
            header.sequence[s] = {rows, fed[s].count, fed[s].position, int(table.size()), 0, -1, -1, 0};
            for (int b = 0; b * Base::BLOCK_TOKENS < fed[s].position + fed[s].count; b++) table.push_back(0);
            for (int t = 0; t < fed[s].count; t++) tokens.push_back({0, int(s)});
            rows += fed[s].count;
        }
        blocks = int(table.size());
        Random random(5);
        for (int i = 0; i < blocks; i++) table[i] = i;
        for (int i = blocks - 1; i > 0; i--) std::swap(table[i], table[random.below(i + 1)]);
        header.tokens = rows;
        header.blocks_at = sizeof(Step);
        header.sequences = int(fed.size());
        step.assign(reinterpret_cast<char*>(&header), reinterpret_cast<char*>(&header + 1));
        step.insert(step.end(), reinterpret_cast<char*>(table.data()), reinterpret_cast<char*>(table.data() + blocks));
    }
    size_t layer_elements() const { return AHEAD + size_t(blocks) * Shape::BLOCK_STRIDE; }
};

// Numbers of ordinary size: of 16 bits, or codes and scales whose exponents are small.
template <class T>
__global__ void fill(T* to, size_t count) {
    for (size_t i = blockIdx.x * size_t(blockDim.x) + threadIdx.x; i < count; i += size_t(gridDim.x) * blockDim.x) {
        const unsigned mixed = (unsigned(i) * 2654435761u) ^ (unsigned(i >> 7) * 2246822519u);
        if constexpr (sizeof(T) == 1) reinterpret_cast<unsigned char*>(to)[i] = mixed >> 8 & 0xbf;
        else to[i] = round_to<T>((int(mixed >> 8 & 0xffff) - 32768) / 16384.0f);
    }
}

// Caches of some layers.
struct Caches {
    Buffer<Kv> all;
    size_t each;
    Caches(const Bench& b, int layers) : all(b.layer_elements() * layers), each(b.layer_elements()) {
        fill<<<2048, 256>>>(all.pointer, all.count);
        for (int l = 0; AHEAD > 0 && l < layers; l++) CHECK(cudaMemset(static_cast<void*>(all.pointer + l * each), 0, AHEAD * sizeof(Kv)));
    }
    Kv* layer(int number) const { return all.pointer + number * each + AHEAD; }
};

#if defined(EXACTLY)
void bench(const char* name, std::vector<Fed> fed) {
    Bench b(fed);
    Buffer<char> step(b.step);
    Buffer<TokenRow> tokens(b.tokens);
    Caches caches(b, 1);
    std::vector<float> random(size_t(b.rows) * Shape::QKV_WIDTH);
    for (size_t i = 0; i < random.size(); i++) random[i] = float(i * 2654435761u % 1000) / 500.0f - 1.0f;
    Buffer<float> qkv(random), rotary(size_t(8192) * 64), out(size_t(b.rows) * Shape::WIDTH);
    rotary.zero();
    cudaStream_t stream;
    CHECK(cudaStreamCreate(&stream));
    const int layers = 20;
    const float total = time_graph(stream, [&] {
        for (int l = 0; l < layers; l++) {
            launch(write_kernel<Config>, dim3((b.rows + WRITE_TOKENS - 1) / WRITE_TOKENS), WRITE_THREADS, 0, stream,
                   reinterpret_cast<const Step*>(step.pointer), tokens.pointer, qkv.pointer, nullptr, nullptr, rotary.pointer, caches.layer(0), nullptr);
            launch(exact_kernel<Config>, dim3(b.rows, Base::HEADS), EXACT_THREADS, exact_shared_bytes<Config>(), stream,
                   reinterpret_cast<const Step*>(step.pointer), tokens.pointer, qkv.pointer, static_cast<const Kv*>(caches.layer(0)), out.pointer);
        }
    }, 5);
    std::printf("exact 9/3x64 %-20s write and attention %.1f us\n", name, total / layers * 1e3);
}

int main() {
    bench("1 at 128", {{1, 127}});
    bench("1 at 1024", {{1, 1023}});
    bench("1 at 8192", {{1, 8191}});
    bench("8 at 1024", std::vector<Fed>(8, {1, 1023}));
    bench("1 x 512", {{512, 0}});
    bench("1 x 2048", {{2048, 0}});
}
#elif defined(PREFILL)
#ifdef WGMMA
constexpr int THREADS = WGMMA_THREADS;
constexpr size_t SHARED = wgmma_prefill_shared_bytes<Config>();
#ifndef WIDEN
constexpr auto* KERNEL = wgmma_prefill_kernel<Config>;
#endif
#else
constexpr int THREADS = 128;
constexpr size_t SHARED = prefill_shared_bytes<Config>();
constexpr auto* KERNEL = prefill_kernel<Config>;
#endif

void bench(const char* name, std::vector<Fed> fed) {
    Bench b(fed);
    Buffer<char> step(b.step);
    Buffer<TokenRow> tokens(b.tokens);
    Caches caches(b, 1);
    Buffer<Shape::Operand> q(size_t(b.rows) * Shape::WIDTH);
    Buffer<float> out(size_t(b.rows) * Shape::WIDTH);
    std::vector<float> random(size_t(b.rows) * Shape::QKV_WIDTH);
    for (size_t i = 0; i < random.size(); i++) random[i] = float(i * 2654435761u % 1000) / 500.0f - 1.0f;
    Buffer<float> qkv(random), rotary(size_t(32768) * 128);
    rotary.zero();
    cudaStream_t stream;
    CHECK(cudaStreamCreate(&stream));
    const auto* header = reinterpret_cast<const Step*>(step.pointer);
    const float write = time_graph(stream, [&] {
        launch(write_kernel<Config>, dim3((b.rows + WRITE_TOKENS - 1) / WRITE_TOKENS), WRITE_THREADS, 0, stream, header, tokens.pointer, qkv.pointer,
               nullptr, nullptr, rotary.pointer, caches.layer(0), q.pointer);
    });
    fill<<<1024, 256>>>(q.pointer, q.count);
    constexpr int TOKENS = THREADS == 128 ? PREFILL_TOKENS<Config> : 128 / Shape::GROUP;
    const int tiles = (b.rows + TOKENS - 1) / TOKENS + int(fed.size());
    const dim3 grid = THREADS == 128 ? dim3(tiles, Base::KV_HEADS) : dim3(std::min(tiles * Base::KV_HEADS, 132));
    const auto* layer = static_cast<const Kv*>(caches.layer(0));
#ifdef WIDEN
    Buffer<Shape::Operand> area(widened_bytes<Config>() / sizeof(Shape::Operand));
    const float widen = time_graph(stream, [&] { launch(widen_kernel<Config>, dim3(4 * 132), WIDEN_THREADS, 0, stream, header, layer, area.pointer); });
    std::printf("widen %.4f ms; ", widen);
    const float prefill = time_graph(stream, [&] {
        launch(widened_prefill_kernel<Config>, grid, THREADS, SHARED, stream, header, q.pointer, layer, area.pointer, out.pointer, qkv.pointer);
    });
#else
    const float prefill = time_graph(stream, [&] { launch(KERNEL, grid, THREADS, SHARED, stream, header, q.pointer, layer, out.pointer, qkv.pointer); });
#endif
    double pairs = 0;
    for (auto f : fed) pairs += double(f.count) * f.position + double(f.count) * (f.count + 1) / 2;
    std::printf("prefill threads %d keys %d %-24s write %.3f ms, attention %.3f ms, %.0f TFLOP/s\n", THREADS, Config::PREFILL_KEYS, name, write, prefill,
                4.0 * Shape::WIDTH * pairs / prefill / 1e9);
}

int main() {
    bench("1 x 8192", {{8192, 0}});
    bench("1 x 2048", {{2048, 0}});
    bench("1 x 512", {{512, 0}});
    bench("1 x 128", {{128, 0}});
    bench("16 x 512", std::vector<Fed>(16, {512, 0}));
    bench("1 x 1024 at 31744", {{1024, 31744}});
    bench("64 x 1 at 1024, 1 x 2048", [] {
        std::vector<Fed> fed(64, {1, 1023});
        fed.push_back({2048, 0});
        return fed;
    }());
}
#else
// `active` false: a step without sequences, what a launch costs before it does anything.
void bench(int batch, int context, bool active = true) {
    Bench b(std::vector<Fed>(batch, {1, context - 1}));
    if (!active) reinterpret_cast<Step*>(b.step.data())->sequences = 0;
    const double bytes = double(batch) * context * (Shape::BLOCK_STRIDE / Base::BLOCK_TOKENS) * sizeof(Kv);
    const int layers = std::max(4, int(std::min(256.0, 400e6 / bytes)));
    Buffer<char> step(b.step);
    Caches caches(b, layers);
    std::vector<float> random(size_t(batch) * Shape::QKV_WIDTH);
    for (size_t i = 0; i < random.size(); i++) random[i] = float(i * 2654435761u % 1000) / 500.0f - 1.0f;
    Buffer<float> qkv(random), rotary(size_t(context) * 128), out(out_elements<Config>(batch)),
        partials(decode_partials_bytes<Config>(batch) / 4 + 1);
    Buffer<int> counters(decode_counters<Config>(batch));
    rotary.zero();
    counters.zero();
    cudaStream_t stream;
    CHECK(cudaStreamCreate(&stream));
    const float total = time_graph(stream, [&] {
        for (int l = 0; l < layers; l++)
            launch(decode_kernel<Bucket<Config, 1>, RESIDENT_COUNT>, dim3(Config::SPLITS, Base::KV_HEADS, batch), 32 * WARP_COUNT, decode_shared_bytes<Config>(), stream,
                   reinterpret_cast<const Step*>(step.pointer), qkv.pointer, nullptr, nullptr, rotary.pointer, caches.layer(l),
                   partials.pointer, counters.pointer, out.pointer);
    });
    const double each = total / layers;
    std::printf("| %d | %d | %d | %d | %d | %d | %d | %.2f us | %.0f GB/s | %.0f %% |\n", active ? batch : 0, context, Config::SPLITS, WARP_COUNT, Config::MIN_CHUNK, RESIDENT_COUNT,
                int(Config::CONTEXT_BEFORE_WAIT), each * 1e3,
                bytes / each / 1e6, bytes / each / 1e6 / 45.4);
}

int main() {
    if (Config::SPLITS == 1 || Config::SPLITS >= 8) {
        bench(1, 128, false);
        for (int context : {64, 128, 256, 512, 1024}) bench(1, context);
    }
    if (Config::SPLITS >= 8)
        for (int context : {4096, 32768, 131072}) bench(1, context);
    if (Config::SPLITS <= 2) {
        bench(64, 1024);
        bench(64, 128);
    }
    if (Config::SPLITS <= 4) bench(16, 1024);
}
#endif
