// Times of attention over latents, cold: launches walk over enough layers that the second-level cache never
// holds the next one. Division by -DSPLIT_COUNT=n (of a batch of 1; larger batches have as many fewer)
// -DTILE_TOKENS=n -DSTAGE_COUNT=n -DTERM_COUNT=n -DRESIDENT_COUNT=n.
#include "latent/latent_case.cuh"

using namespace test;

using Base = Latents<32, 64, 64, 128, 256>;

template <int ROWS_, int SPLITS_, int ROW_TILES_ = 1>
struct Config : Base {
    static constexpr int ROWS = ROWS_, SPLITS = SPLITS_, TILE = TILE_TOKENS, STAGES = STAGE_COUNT, TERMS = TERM_COUNT, ROW_TILES = ROW_TILES_, ORIGINAL = 8192;
    static constexpr bool CONTEXT_BEFORE_WAIT = ROW_TILES_ == 1;
};

__global__ void fill(__nv_bfloat16* to, size_t count) {
    for (size_t i = blockIdx.x * size_t(blockDim.x) + threadIdx.x; i < count; i += size_t(gridDim.x) * blockDim.x) {
        const unsigned mixed = (unsigned(i) * 2654435761u) ^ (unsigned(i >> 7) * 2246822519u);
        to[i] = __float2bfloat16_rn((int(mixed >> 8 & 0xffff) - 32768) / 16384.0f);
    }
}
__global__ void fill(float* to, size_t count) {
    for (size_t i = blockIdx.x * size_t(blockDim.x) + threadIdx.x; i < count; i += size_t(gridDim.x) * blockDim.x)
        to[i] = (int(unsigned(i) * 2654435761u >> 8 & 0xffff) - 32768) / 16384.0f;
}
__global__ void fill(uint16_t* to, size_t count) {
    for (size_t i = blockIdx.x * size_t(blockDim.x) + threadIdx.x; i < count; i += size_t(gridDim.x) * blockDim.x)
        to[i] = __half_as_ushort(__float2half_rn((int(unsigned(i) * 2654435761u >> 8 & 0xffff) - 32768) * 1.0f));
}

// What stands before and after in a model: a projection whose weights are read on all multiprocessors, as
// many before the wait as threads have at once.
__global__ void __launch_bounds__(512, 1) projection(const uint4* weights, size_t count, float* out) {
    launch_dependents();
    uint4 v[4];
    unsigned sum = 0;
    const size_t own = blockIdx.x * 512 + threadIdx.x, stride = size_t(gridDim.x) * 512;
    for (int i = 0; i < 4; i++) v[i] = own + i * stride < count ? __ldg(weights + own + i * stride) : uint4{};
    wait_for_predecessors();
    for (int i = 0; i < 4; i++) sum += v[i].x ^ v[i].y ^ v[i].z ^ v[i].w;
    if (sum == 0x12345678u) out[threadIdx.x] = 1.0f;
}

#ifdef WGMMA
constexpr By STEP = By::DECODE_WGMMA, PROMPT = By::PREFILL_WGMMA;
#else
constexpr By STEP = By::MMA, PROMPT = By::MMA;
#endif

// One kind of launch, all three, or all three between projections, over `layers` layers.
template <class C, By BY>
void bench(const std::vector<Fed>& fed, bool decode) {
    using S = LatentShape<C>;
    Table table(fed, C::BLOCK_TOKENS, 5, 0);
    double tokens = 0;
    for (const Fed& it : fed) tokens += decode ? it.position + 1 : it.count;
    const double bytes = tokens * S::WIDTH * 2;
    const int layers = decode ? std::max(2, int(std::min(36.0, 800e6 / bytes))) : 2;
    const size_t layer = size_t(table.blocks) * S::BLOCK_STRIDE, codes_layer = size_t(C::HEADS) * S::MADE / 8 * S::UNITS * 256;
    Buffer<char> step(table.step);
    Buffer<TokenRow> rows(table.tokens);
    Buffer<__nv_bfloat16> cache(layer * layers), queries(latent_query_row<C>() / 2 * C::ROWS);
    Buffer<float> q(size_t(C::ROWS) * S::Q_WIDTH), kv(size_t(C::ROWS) * S::WIDTH), norm(C::LATENT), rotary(size_t(table.longest) * C::ROTATED),
        row_scales(C::HEADS * S::MADE), partials(latent_partials_bytes<C>() / 4), out(size_t(C::ROWS) * C::HEADS * C::VALUE_DIM);
    Buffer<uint16_t> codes(codes_layer * layers);
    constexpr size_t PROJECTION = 4 << 20;   // bytes
    Buffer<char> weights(PROJECTION * layers * 2);
    fill<<<2048, 256>>>(cache, cache.count);
    fill<<<2048, 256>>>(codes, codes.count);
    for (auto* it : {&q, &kv, &norm, &rotary}) fill<<<256, 256>>>(it->pointer, it->count);
    std::vector<float> small(row_scales.count, 1.0f / 32768 / 16);
    row_scales.upload(small);
    CHECK(cudaDeviceSynchronize());
    cudaStream_t stream;
    CHECK(cudaStreamCreate(&stream));
    const Step* header = reinterpret_cast<const Step*>(step.pointer);
    const TokenRow* token_rows = decode ? nullptr : rows.pointer;
    const int tile = 16 * C::ROW_TILES, values = LatentValues<C>::TILE_ROWS * C::ROW_TILES;
    auto project = [&](int number) {
        launch(projection, dim3(132), 512, 0, stream, reinterpret_cast<const uint4*>(weights.pointer + number * PROJECTION), PROJECTION / 16, out.pointer);
    };
    auto time = [&](bool first, bool second, bool third, bool around = false) {
        return time_graph(stream, [&] {
            for (int l = 0; l < layers; l++) {
                if (around) project(2 * l);
                if (first)
                    launch(queries_kernel<C>, dim3((C::ROWS + tile - 1) / tile, C::HEADS + 1), LATENT_QUERY_THREADS<C>, 0, stream, header, token_rows, q.pointer,
                           kv.pointer, norm.pointer, rotary.pointer, codes.pointer + l * codes_layer, row_scales.pointer, cache.pointer + l * layer, queries.pointer);
                if (second)
                    attend<C, BY, RESIDENT_COUNT>(stream, header, token_rows, queries.pointer, cache.pointer + l * layer, partials.pointer);
                if (third)
                    launch(values_kernel<C>, dim3((C::ROWS + values - 1) / values, C::HEADS), VALUES_THREADS, 0, stream, header, token_rows, partials.pointer,
                           codes.pointer + l * codes_layer, row_scales.pointer, out.pointer);
                if (around) project(2 * l + 1);
            }
        }, decode ? 40 : 20) / layers * 1e3;
    };
    const double all = time(true, true, true), queried = time(true, false, false), decoded = time(false, true, false), valued = time(false, false, true);
    const double projected = decode ? time(true, true, true, true) : 0.0;
    CHECK(cudaStreamDestroy(stream));
    if (decode)
        std::printf("| %zu | %d | %d x %d of %d, %d terms, %d | %.2f | %.2f | %.2f us | %.0f GB/s, %.0f %% | all %.2f us | %.0f GB/s, %.0f %% | with projections %.2f us |\n",
                    fed.size(), fed[0].position + 1, C::SPLITS, C::STAGES, C::TILE, C::TERMS, RESIDENT_COUNT, queried, valued, decoded, bytes / decoded / 1e3,
                    bytes / decoded / 45.4e3, all, bytes / all / 1e3, bytes / all / 45.4e3, projected);
    else
        std::printf("| prompt %d after %d | %d x %d of %d, %d terms, %d | %.0f | %.0f | %.0f us | all %.0f us |\n", fed[0].count, fed[0].position, C::SPLITS, C::STAGES, C::TILE, C::TERMS,
                    RESIDENT_COUNT, queried, valued, decoded, all);
}

int main() {
    constexpr int SPLITS = SPLIT_COUNT;
    auto batch = [](int count, int context) { return std::vector<Fed>(count, {1, context - 1}); };
    bench<Config<1, SPLITS>, STEP>(batch(1, 128), true);
    bench<Config<1, SPLITS>, STEP>(batch(1, 4096), true);
    bench<Config<1, SPLITS>, STEP>(batch(1, 8192), true);
    bench<Config<1, SPLITS>, STEP>(batch(1, 32768), true);
    bench<Config<1, SPLITS>, STEP>(batch(1, 131072), true);
    bench<Config<8, SPLITS / 8>, STEP>(batch(8, 1024), true);
    bench<Config<8, SPLITS / 8>, STEP>(batch(8, 32768), true);
    bench<Config<32, SPLITS / 32>, STEP>(batch(32, 1024), true);
    bench<Config<32, SPLITS / 32>, STEP>(batch(32, 32768), true);
#ifdef WITH_PREFILL
    bench<Config<1024, 1, 4>, PROMPT>({{1024, 0}}, false);
    bench<Config<8192, 1, 8>, PROMPT>({{8192, 0}}, false);
#endif
}
