// One problem of attention over latents, on the host and on the device: sequences over a scattered block
// table, a cache whose unwritten places are poison, random projections and matrices, and the reference in
// double precision, in which every head's keys and values are made. Used by latent.cu and latent_bench.cu.
#pragma once

#include "core/common.cuh"
#include "core/kept.cuh"

#include "kernels/latent_decode.cuh"
#include "kernels/latent_decode_wgmma.cuh"
#include "kernels/latent_prefill_wgmma.cuh"
#include "kernels/latent_queries.cuh"
#include "kernels/latent_values.cuh"

namespace test {

using namespace monomorph;

template <class C>
constexpr auto* queries_kernel = latent_queries_kernel<C, LATENT_QUERY_THREADS<C>>;
template <class C, int RESIDENT = 2>
constexpr auto* decode_kernel = latent_decode_kernel<C, LATENT_THREADS, latent_decode_shared_bytes<C>(), RESIDENT>;
template <class C>
constexpr auto* decode_wgmma_kernel = latent_decode_wgmma_kernel<C, LATENT_WGMMA_THREADS, latent_decode_wgmma_shared_bytes<C>()>;
template <class C>
constexpr auto* prefill_wgmma_kernel = latent_prefill_wgmma_kernel<C, WGMMA_THREADS, latent_prefill_shared_bytes<C>()>;
template <class C>
constexpr auto* values_kernel = latent_values_kernel<C, VALUES_THREADS>;

template <int HEADS_, int KEY_, int ROTATED_, int VALUE_, int LATENT_, class Kv_ = __nv_bfloat16>
struct Latents : LatentDefaults {
    static constexpr int HEADS = HEADS_, KEY_DIM = KEY_, ROTATED = ROTATED_, VALUE_DIM = VALUE_, LATENT = LATENT_, BLOCK_TOKENS = 16;
    using Kv = Kv_;
    static constexpr float SCALE = KEY_ + ROTATED_ >= 64 ? 0.0883883f : 0.2f, GROWTH = 0.3f;
    static constexpr int ORIGINAL = 40;
};

// What a sequence feeds and what it has cached.
struct Fed {
    int count, position;
};

template <class Kv>
Kv host_round(float v) {
    if constexpr (std::is_same_v<Kv, __half>)
        return __float2half_rn(v);
    else
        return __float2bfloat16_rn(v);
}
// The static scale of latents that are kept as codes.
constexpr float LATENT_SCALE = 0.5f;
inline float host_widen(__half v) { return __half2float(v); }
inline float host_widen(__nv_bfloat16 v) { return __bfloat162float(v); }

// A step's header and block table; blocks of the cache in any order.
struct Table {
    std::vector<char> step;
    std::vector<TokenRow> tokens;
    int rows = 0, blocks = 0, longest = 0;
    Table(const std::vector<Fed>& fed, int block_tokens, uint64_t seed, int spare = 3) {
        Random random(seed);
        std::vector<int> table;
        Step header = {};
        header.sequences = int(fed.size());
        for (size_t s = 0; s < fed.size(); s++) {
            const int length = fed[s].position + fed[s].count;
            header.sequence[s] = {rows, fed[s].count, fed[s].position, int(table.size()), 0, -1, -1, 0};
            for (int b = 0; b * block_tokens < length; b++) table.push_back(int(table.size()));
            for (int t = 0; t < fed[s].count; t++) tokens.push_back({0, int(s)});
            rows += fed[s].count;
            longest = std::max(longest, length);
        }
        header.tokens = rows;
        header.blocks_at = sizeof(Step);
        blocks = int(table.size()) + spare;
        std::vector<int> ids(blocks);
        for (int i = 0; i < blocks; i++) ids[i] = i;
        for (int i = blocks - 1; i > 0; i--) std::swap(ids[i], ids[random.below(i + 1)]);
        for (auto& entry : table) entry = ids[entry];
        step.assign(reinterpret_cast<char*>(&header), reinterpret_cast<char*>(&header + 1));
        step.insert(step.end(), reinterpret_cast<char*>(table.data()), reinterpret_cast<char*>(table.data() + table.size()));
    }
    const Step& header() const { return *reinterpret_cast<const Step*>(step.data()); }
    // The cache's row of a token.
    size_t at(int sequence, int position, int block_tokens) const {
        const int* ids = reinterpret_cast<const int*>(step.data() + sizeof(Step)) + header().sequence[sequence].block_start;
        return size_t(ids[position / block_tokens]) * block_tokens + position % block_tokens;
    }
};

// Rows of `columns` floats as packed f16 with a power of two a row (formats.cuh).
inline void pack_halves(const std::vector<float>& rows, int columns, std::vector<uint16_t>& codes, std::vector<float>& scales) {
    const int units = (columns + 31) / 32, count = int(rows.size()) / columns;
    codes.assign(size_t(count / 8) * units * 256, 0);
    scales.resize(count);
    for (int row = 0; row < count; row++) {
        const float scale = half_scale(&rows[size_t(row) * columns], columns);
        scales[row] = 1.0f / scale;
        for (int k = 0; k < columns; k++) {
            using U = Unit<Format::F16>;
            const int lane = row % 8 * 4 + U::lane_of(k % 32), element = U::element_of(k % 32);
            codes[((size_t(row / 8) * units + k / 32) * 32 + lane) * 8 + element] = float_to_f16(rows[size_t(row) * columns + k] * scale);
        }
    }
}

template <class C>
struct Problem {
    using S = LatentShape<C>;
    using Kv = typename C::Kv;
    static constexpr int W = S::WIDTH, L = C::LATENT, PAIRS = C::ROTATED / 2;
    std::vector<Fed> fed;
    Table table;
    std::vector<float> q, kv, norm, rotary, made, row_scales;
    std::vector<uint16_t> codes;
    std::vector<Kv> cache;   // before the step; what stands in front of a layer with a static scale is its first AHEAD elements
    static constexpr size_t AHEAD = STATIC_SCALES<Kv> ? 256 : 0;

    Problem(std::vector<Fed> fed_, uint64_t seed) : fed(std::move(fed_)), table(fed, C::BLOCK_TOKENS, seed) {
        Random random(seed + 1000);
        for (size_t i = 0; i < size_t(table.rows) * S::Q_WIDTH; i++) q.push_back(1.5f * random.normal());
        for (size_t i = 0; i < size_t(table.rows) * W; i++) kv.push_back(random.normal());
        for (int i = 0; i < L; i++) norm.push_back(1.0f + 0.3f * random.normal());
        for (int i = 0; i < C::HEADS * S::MADE * L; i++) made.push_back(round_bf16(random.normal() * std::exp2(float(random.below(5) - 2)) / std::sqrt(float(L))));
        pack_halves(made, L, codes, row_scales);
        rotary.resize(size_t(table.longest) * PAIRS * 2);
        for (int p = 0; p < table.longest; p++)
            for (int i = 0; i < PAIRS; i++) {
                const float angle = float(p) * std::pow(10000.0f, -float(i) / float(PAIRS));
                rotary[(size_t(p) * PAIRS + i) * 2] = std::cos(angle), rotary[(size_t(p) * PAIRS + i) * 2 + 1] = std::sin(angle);
            }
        cache.resize(AHEAD + size_t(table.blocks) * S::BLOCK_STRIDE);
        std::memset(static_cast<void*>(cache.data()), 0xff, cache.size() * sizeof(Kv));
        if (AHEAD > 0) {  // nothing is measured; values have no scale
            std::memset(static_cast<void*>(cache.data()), 0, AHEAD);
            put_ahead(cache, {0, {0, 0}, {LATENT_SCALE, NAN}});
        }
        for (size_t s = 0; s < fed.size(); s++)
            for (int p = 0; p < fed[s].position; p++) {
                std::vector<float> x(W);
                for (auto& v : x) v = random.normal();
                write(cache, int(s), p, x);
            }
    }
    // Where a token is kept: all of it; or codes, and scales if there are such, and the rotated key behind them.
    struct Range {
        size_t from, length;
    };
    std::vector<Range> places(int sequence, int position) const {
        const size_t row = table.at(sequence, position, C::BLOCK_TOKENS), token = row % C::BLOCK_TOKENS;
        if (!S::CODES) return {{row * W, W}};
        const size_t block = AHEAD + row / C::BLOCK_TOKENS * S::BLOCK_STRIDE, key = 2 * C::ROTATED;
        const Range tail = {block + S::LATENTS + token * key, key};
        if constexpr (S::GROUPS) {
            using Row = LatentGroups<C>;
            return {{block + token * Row::CODES, Row::CODES}, {block + C::BLOCK_TOKENS * Row::CODES + token * Row::SCALES, Row::SCALES}, tail};
        }
        return {{block + token * L, L}, tail};
    }
    static uint8_t* bytes(const std::vector<Kv>& of, const Range& range) { return reinterpret_cast<uint8_t*>(const_cast<Kv*>(of.data()) + range.from); }
    // Keeps a latent and its rotated key.
    void write(std::vector<Kv>& to, int sequence, int position, const std::vector<float>& x) const {
        const auto ranges = places(sequence, position);
        std::vector<float> latent(x.begin(), x.begin() + L);
        if constexpr (S::GROUPS) {
            if (S::STORED_ROTATED) rotate_host(latent, false);
            for (int group = 0; group < L / 16; group++) {
                HostGroup it = encode_host<typename LatentGroups<C>::E>(&latent[16 * group], scale());
                place_group<LatentGroups<C>>(bytes(to, ranges[0]), bytes(to, ranges[1]), group, it, true);
            }
        } else if constexpr (S::CODES) {
            for (int e = 0; e < L; e++) to[ranges[0].from + e].code = float_to_e4m3(x[e] / scale());
        } else {
            for (int e = 0; e < W; e++) to[ranges[0].from + e] = host_round<Kv>(x[e]);
        }
        for (int e = 0; S::CODES && e < C::ROTATED; e++) write_key(to, sequence, position, e, x[L + e]);
    }
    // Element e of a rotated key.
    void write_key(std::vector<Kv>& to, int sequence, int position, int e, float v) const {
        const Range place = places(sequence, position).back();
        if constexpr (S::CODES) {
            const uint16_t bits = float_to_bf16(v);
            std::memcpy(bytes(to, place) + 2 * e, &bits, 2);
        } else {
            to[place.from + L + e] = host_round<Kv>(v);
        }
    }
    // They, the latent as it is stored: rotated, if it is.
    std::vector<float> stored(const std::vector<Kv>& from, int sequence, int position) const {
        const auto ranges = places(sequence, position);
        std::vector<float> x(W);
        if constexpr (S::GROUPS) {
            for (int group = 0; group < L / 16; group++) {
                HostGroup it;
                place_group<LatentGroups<C>>(bytes(from, ranges[0]), bytes(from, ranges[1]), group, it, false);
                decode_host<typename LatentGroups<C>::E>(it, scale(), &x[16 * group]);
            }
        } else if constexpr (S::CODES) {
            for (int e = 0; e < L; e++) x[e] = e4m3_to_float(from[ranges[0].from + e].code) * scale();
        } else {
            for (int e = 0; e < W; e++) x[e] = host_widen(from[ranges[0].from + e]);
        }
        for (int e = 0; S::CODES && e < C::ROTATED; e++) {
            uint16_t bits;
            std::memcpy(&bits, bytes(from, ranges.back()) + 2 * e, 2);
            x[L + e] = bf16_to_float(bits);
        }
        return x;
    }
    std::vector<double> read(const std::vector<Kv>& from, int sequence, int position) const {
        const std::vector<float> x = stored(from, sequence, position);
        std::vector<double> latent(x.begin(), x.begin() + L);
        if (S::STORED_ROTATED) rotate_host(latent, true);
        latent.insert(latent.end(), x.begin() + L, x.end());
        return latent;
    }
    static float scale() { return STATIC_SCALES<Kv> ? LATENT_SCALE : 1.0f; }

    void turn(std::vector<double>& x, int position) const {
        for (int i = 0; i < PAIRS; i++) {
            const int a = C::ROTARY_HALVES ? i : 2 * i, b = C::ROTARY_HALVES ? i + PAIRS : 2 * i + 1;
            const double cos = rotary[(size_t(position) * PAIRS + i) * 2], sin = rotary[(size_t(position) * PAIRS + i) * 2 + 1], first = x[a];
            x[a] = first * cos - x[b] * sin;
            x[b] = x[b] * cos + first * sin;
        }
    }

    // A row's latent after its norm.
    std::vector<double> normed(int row) const {
        const float* mine = &kv[size_t(row) * W];
        double squares = 0;
        for (int e = 0; e < L; e++) squares += double(mine[e]) * mine[e];
        const double inverse = 1 / std::sqrt(squares / L + double(C::EPS));
        std::vector<double> x;
        for (int e = 0; e < L; e++) x.push_back(mine[e] * inverse * norm[e]);
        return x;
    }

    // What stands in front of a layer with a static scale: whether a step measures, the largest magnitudes and
    // the scales of keys and of values.
    struct Ahead {
        uint32_t measures;
        float largest[2], scales[2];
    };
    static Ahead ahead(const std::vector<Kv>& from) {
        Ahead it;
        std::memcpy(&it, reinterpret_cast<const char*>(from.data()) + AHEAD - sizeof it, sizeof it);
        return it;
    }
    static void put_ahead(std::vector<Kv>& to, const Ahead& it) { std::memcpy(reinterpret_cast<char*>(to.data()) + AHEAD - sizeof it, &it, sizeof it); }

    // Every place but the fed tokens' must be bit for bit what it was, theirs within half a unit of the cache's
    // format of the reference: of fp8 each, of others rows. Codes of groups are the reference's, but for another
    // code or scale where the last bit of a norm decides.
    void check_cache(const std::vector<Kv>& after) const {
        std::vector<Kv> expected = cache;
        size_t wrong = 0, groups = 0, others = 0;
        for (size_t s = 0; s < fed.size(); s++)
            for (int t = 0; t < fed[s].count; t++) {
                const int row = table.header().sequence[s].first_token + t, position = fed[s].position + t;
                const float* mine = &kv[size_t(row) * W];
                double error = 0, size = 0;
                std::vector<double> x = normed(row), key(mine + L, mine + W);
                turn(key, position);
                x.insert(x.end(), key.begin(), key.end());
                const std::vector<float> got = stored(after, int(s), position);
                bool coded = true;
                if (S::GROUPS) {
                    write(expected, int(s), position, std::vector<float>(x.begin(), x.end()));
                    const std::vector<float> kept = stored(expected, int(s), position);
                    for (int e = 0; e < L; e += 16) groups++, others += !std::equal(&kept[e], &kept[e] + 16, &got[e]);
                    std::copy_n(kept.begin(), L, x.begin());
                    double off = 0, all = 0;
                    for (int e = 0; e < L; e++) off += (got[e] - x[e]) * (got[e] - x[e]), all += x[e] * x[e];
                    coded = std::sqrt(off) <= 0.2 * std::sqrt(all);
                }
                for (int e = 0; e < W; e++) {
                    const bool code = S::CODES && e < L;
                    if (code && !S::GROUPS) coded = coded && std::abs(got[e] - x[e]) <= 1.001 * std::max(std::abs(x[e]) / 16, LATENT_SCALE / 1024.0);
                    if (!code) error += (got[e] - x[e]) * (got[e] - x[e]), size += x[e] * x[e];
                }
                if (!coded || !(std::sqrt(error) <= 3e-3 * std::sqrt(size))) wrong++;
                for (const Range& it : places(int(s), position)) std::copy_n(after.begin() + it.from, it.length, expected.begin() + it.from);
            }
        if (others * 100 > groups) wrong += others;
        const bool elsewhere = std::memcmp(expected.data(), after.data(), after.size() * sizeof(Kv)) != 0;
        if (wrong || elsewhere) std::printf("FAIL cache: %zu rows wrong%s\n", wrong, elsewhere ? ", written elsewhere" : ""), failures++;
    }

    // [rows, HEADS * VALUE_DIM] over the cache that the device left, expanded: keys and values of every head
    // are made.
    std::vector<double> reference(const std::vector<Kv>& after) const {
        constexpr int K = C::KEY_DIM, V = C::VALUE_DIM;
        std::vector<double> out(size_t(table.rows) * C::HEADS * V);
        for (size_t s = 0; s < fed.size(); s++) {
            const int length = fed[s].position + fed[s].count;
            std::vector<std::vector<double>> rows;
            for (int p = 0; p < length; p++) rows.push_back(read(after, int(s), p));
            for (int head = 0; head < C::HEADS; head++) {
                std::vector<double> expanded(size_t(length) * S::MADE);
                for (int p = 0; p < length; p++)
                    for (int m = 0; m < S::MADE; m++) {
                        const float* weights = &made[(size_t(head) * S::MADE + m) * L];
                        double dot = 0;
                        for (int e = 0; e < L; e++) dot += double(weights[e]) * rows[p][e];
                        expanded[size_t(p) * S::MADE + m] = dot;
                    }
                for (int t = 0; t < fed[s].count; t++) {
                    const int row = table.header().sequence[s].first_token + t, position = fed[s].position + t;
                    const float* mine = &q[size_t(row) * S::Q_WIDTH];
                    std::vector<double> turned(mine + C::HEADS * K + head * C::ROTATED, mine + C::HEADS * K + (head + 1) * C::ROTATED);
                    turn(turned, position);
                    const double factor = C::SCALE * (1 + double(C::GROWTH) * std::log(1.0 + position / C::ORIGINAL));
                    std::vector<double> weights(position + 1);
                    double largest = -INFINITY, total = 0;
                    for (int p = 0; p <= position; p++) {
                        double dot = 0;
                        for (int e = 0; e < K; e++) dot += double(mine[head * K + e]) * expanded[size_t(p) * S::MADE + e];
                        for (int e = 0; e < C::ROTATED; e++) dot += turned[e] * rows[p][L + e];
                        weights[p] = factor * dot;
                        largest = std::max(largest, weights[p]);
                    }
                    for (auto& w : weights) w = std::exp(w - largest), total += w;
                    double* to = &out[(size_t(row) * C::HEADS + head) * V];
                    for (int p = 0; p <= position; p++)
                        for (int e = 0; e < V; e++) to[e] += weights[p] / total * expanded[size_t(p) * S::MADE + K + e];
                }
            }
        }
        return out;
    }
};

// What attends: latent_decode, or a kernel of warpgroups.
enum class By { MMA, DECODE_WGMMA, PREFILL_WGMMA };
template <class C, By BY, int RESIDENT = 1>
void attend(cudaStream_t stream, const Step* header, const TokenRow* rows, const typename C::Kv* queries, const typename C::Kv* layer, float* partials) {
    if constexpr (BY == By::MMA)
        launch(decode_kernel<C, RESIDENT>, dim3(C::ROWS, LatentTile<C>::GROUPS, C::SPLITS), LATENT_THREADS, latent_decode_shared_bytes<C>(), stream, header, rows,
               queries, layer, partials);
    else if constexpr (BY == By::DECODE_WGMMA)
        launch(decode_wgmma_kernel<C>, dim3(C::ROWS, (C::HEADS + 63) / 64, C::SPLITS), LATENT_WGMMA_THREADS, latent_decode_wgmma_shared_bytes<C>(), stream,
               header, rows, queries, layer, partials);
    else
        launch(prefill_wgmma_kernel<C>, dim3(132), WGMMA_THREADS, latent_prefill_shared_bytes<C>(), stream, header, queries, layer, partials);
}

// A problem's buffers on the device, and the three launches of a step over them. ROWS: rows of the buffers.
template <class C, By BY = By::MMA>
struct Device {
    using S = LatentShape<C>;
    using Kv = typename C::Kv;
    Buffer<char> step;
    Buffer<TokenRow> tokens;
    Buffer<float> q, kv, norm, rotary, row_scales, partials, out;
    Buffer<uint16_t> codes;
    Buffer<Kv> cache, queries;
    bool decode;
    explicit Device(const Problem<C>& p, bool decode_)
        : step(p.table.step), tokens(p.table.tokens), q(size_t(C::ROWS) * S::Q_WIDTH), kv(size_t(C::ROWS) * S::WIDTH), norm(p.norm), rotary(p.rotary),
          row_scales(p.row_scales), partials(latent_partials_bytes<C>() / 4), out(size_t(C::ROWS) * C::HEADS * C::VALUE_DIM), codes(p.codes),
          cache(p.cache), queries(latent_query_row<C>() / sizeof(Kv) * C::ROWS), decode(decode_) {
        q.upload(p.q);
        kv.upload(p.kv);
    }
    Kv* layer() const { return cache.pointer + Problem<C>::AHEAD; }
    void run(cudaStream_t stream = 0) {
        const Step* header = reinterpret_cast<const Step*>(step.pointer);
        const TokenRow* rows = decode ? nullptr : tokens.pointer;
        const int tile = 16 * C::ROW_TILES, values = LatentValues<C>::TILE_ROWS * C::ROW_TILES;
        launch(queries_kernel<C>, dim3((C::ROWS + tile - 1) / tile, C::HEADS + 1), LATENT_QUERY_THREADS<C>, 0, stream, header, rows, q.pointer, kv.pointer,
               norm.pointer, rotary.pointer, codes.pointer, row_scales.pointer, layer(), queries.pointer);
        attend<C, BY>(stream, header, rows, queries.pointer, layer(), partials.pointer);
        launch(values_kernel<C>, dim3((C::ROWS + values - 1) / values, C::HEADS), VALUES_THREADS, 0, stream, header, rows, partials.pointer, codes.pointer,
               row_scales.pointer, out.pointer);
    }
    std::vector<float> result(int rows) {
        CHECK(cudaDeviceSynchronize());
        auto all = out.download();
        all.resize(size_t(rows) * C::HEADS * C::VALUE_DIM);
        return all;
    }
    bool intact() const { return out.intact() && cache.intact() && queries.intact() && partials.intact() && q.intact() && kv.intact(); }
};

}  // namespace test
