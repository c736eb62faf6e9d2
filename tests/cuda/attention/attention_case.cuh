// One attention problem on the host and on the device: sequences of given lengths over a scattered block table, a cache whose
// unwritten places and blocks behind the window are poison, random q/k/v, and the double-precision reference. Formats that have static
// scales have other ones for every head. With SLIDES the blocks are in tables that begin where the window does, before those of other
// layers, whose blocks are poison. Used by the programs of this folder.
#pragma once

#include "core/common.cuh"
#include "core/kept.cuh"

#include <array>
#include <map>

#include "kernels/attention_decode.cuh"
#include "kernels/attention_exact.cuh"
#include "kernels/attention_prefill.cuh"
#include "kernels/attention_prefill_wgmma.cuh"
#include "kernels/attention_prefill_widened.cuh"
#include "kernels/attention_widen.cuh"
#include "kernels/attention_write.cuh"

namespace test {

using namespace monomorph;

// A decode step's instantiation for a bucket of rows.
template <class C, int BUCKET>
struct Bucket : C {
    static constexpr int ROWS = BUCKET;
    static constexpr size_t PARTIALS_BYTES = decode_partials_bytes<C>(BUCKET);
};
template <class C, int RESIDENT = 8 / C::DECODE_WARPS>
constexpr auto* decode_kernel = attention_decode_kernel<C, DecodeShape<C>::THREADS, decode_shared_bytes<C>(), RESIDENT>;
template <class C>
constexpr auto* write_kernel = attention_write_kernel<C, WRITE_THREADS>;
template <class C>
constexpr auto* prefill_kernel = attention_prefill_kernel<C, PrefillShape<C>::THREADS, prefill_shared_bytes<C>(), 2>;
template <class C>
constexpr auto* wgmma_prefill_kernel = attention_prefill_wgmma_kernel<C, WGMMA_THREADS, wgmma_prefill_shared_bytes<C>()>;
template <class C>
constexpr auto* widen_kernel = attention_widen_kernel<C, WIDEN_THREADS, 0, 4>;
template <class C>
constexpr auto* widened_prefill_kernel = attention_prefill_widened_kernel<C, WGMMA_THREADS, wgmma_prefill_shared_bytes<C>()>;
template <class C>
constexpr auto* exact_kernel = attention_exact_kernel<C, EXACT_THREADS, exact_shared_bytes<C>()>;

template <int HEADS_, int KV_HEADS_, int HEAD_DIM_, class Kv_, int PAIRS, bool HALVES, HeadNorm NORM = HeadNorm::None>
struct Heads : AttentionDefaults {
    static constexpr int HEADS = HEADS_, KV_HEADS = KV_HEADS_, HEAD_DIM = HEAD_DIM_, BLOCK_TOKENS = 16;
    using Kv = Kv_;
    static constexpr int ROTARY_PAIRS = PAIRS;
    static constexpr bool ROTARY_HALVES = HALVES;
    static constexpr HeadNorm Q_NORM = NORM, K_NORM = NORM;
    static constexpr float Q_EPS = 1e-6f, K_EPS = 1e-5f;
    static constexpr float SCALE = HEAD_DIM >= 128 ? 0.0883883f : HEAD_DIM >= 64 ? 0.125f : 0.3f;
};

// What Gemma's heads have besides.
template <class Base, int TOKENS>
struct Windowed : Base {
    static constexpr int WINDOW = TOKENS;
};
template <class Base>
struct Slides : Base {
    static constexpr bool SLIDES = true;
};
template <class Base>
struct ValuesNormed : Base {
    static constexpr float V_EPS = 1e-4f;
};
template <class Base>
struct KeysAsValues : Base {
    static constexpr bool KEYS_AS_VALUES = true;
};

// What a sequence feeds and what it has cached. Of a Config of several TOKENS: one row, and as many are of one sequence.
struct Fed {
    int count, position;
};

template <class Kv>
Kv host_round(float v) {
    if constexpr (std::is_same_v<Kv, float>)
        return v;
    else if constexpr (std::is_same_v<Kv, __half>)
        return __float2half_rn(v);
    else if constexpr (std::is_same_v<Kv, E4m3>) {
        E4m3 e;
        e.code = float_to_e4m3(v);
        return e;
    } else
        return __float2bfloat16_rn(v);
}
inline float host_widen(E4m3 v) { return e4m3_to_float(v.code); }
inline float host_widen(float v) { return v; }
inline float host_widen(__half v) { return __half2float(v); }
inline float host_widen(__nv_bfloat16 v) { return __bfloat162float(v); }

template <class C>
struct Problem {
    using A = AttentionShape<C>;
    using Kv = typename C::Kv;
    static constexpr int D = C::HEAD_DIM;
    static constexpr size_t SCALES = STATIC_SCALES<Kv> ? 2 * C::KV_HEADS : 0, AHEAD = SCALES == 0 ? 0 : (2 * SCALES * sizeof(float) + 4 + 255) / 256 * 256;   // bytes, and codes
    std::vector<Fed> fed;
    int rows = 0, cache_blocks = 0;
    std::vector<char> step;  // Step, SlidingStarts, with SLIDES the table of layers with a window, and block table
    std::vector<TokenRow> tokens;
    std::vector<float> qkv, q_norm, k_norm, rotary;
    std::vector<Kv> cache;  // before the step; AHEAD elements in front of the first block

    // `same_as`: share blocks' contents, norms and rotary with an earlier problem's seed.
    Problem(std::vector<Fed> fed_, uint64_t seed, int spare_blocks = 3) : fed(std::move(fed_)) {
        Random random(seed);
        int longest = 0;
        std::vector<int> table, sliding;
        Step header = {};
        SlidingStarts starts = {};
        header.sequences = int(fed.size());
        for (size_t s = 0; s < fed.size(); s++) {
            const int length = fed[s].position + fed[s].count;
            const bool begins = s % C::TOKENS == 0;   // rows that follow it are of the same sequence
            header.sequence[s] = {rows, fed[s].count, fed[s].position, begins ? int(table.size()) : header.sequence[s - 1].block_start, 0, -1, -1, 0};
            const int first = Window<C>::first(fed[s].position) / C::BLOCK_TOKENS;
            starts.start[s] = begins ? int(sliding.size()) - first : starts.start[s - 1];
            for (int b = 0; begins && b * C::BLOCK_TOKENS < length + C::TOKENS - 1; b++) {
                table.push_back(0);
                if (HAS_SLIDING_TABLE<C> && b >= first) sliding.push_back(0);
            }
            for (int t = 0; t < fed[s].count; t++) tokens.push_back({0, int(s)});
            rows += fed[s].count;
            longest = std::max(longest, length);
        }
        header.tokens = rows;
        header.blocks_at = sizeof(Step) + sizeof(SlidingStarts);
        for (size_t s = 0; s < fed.size(); s++) header.sequence[s].block_start += int(sliding.size());
        table.insert(table.begin(), sliding.begin(), sliding.end());
        cache_blocks = int(table.size()) + spare_blocks;
        std::vector<int> ids(cache_blocks);
        for (int i = 0; i < cache_blocks; i++) ids[i] = i;
        for (int i = cache_blocks - 1; i > 0; i--) std::swap(ids[i], ids[random.below(i + 1)]);
        std::copy_n(ids.begin(), table.size(), table.begin());
        const auto append = [&](const void* from, size_t bytes) { step.insert(step.end(), static_cast<const char*>(from), static_cast<const char*>(from) + bytes); };
        append(&header, sizeof header);
        append(&starts, sizeof starts);
        append(table.data(), table.size() * sizeof(int));

        rotary.resize(size_t(longest) * C::ROTARY_PAIRS * 2);
        for (int p = 0; p < longest; p++)
            for (int i = 0; i < C::ROTARY_PAIRS; i++) {
                const float angle = float(p) * std::pow(10000.0f, -float(i) / float(C::ROTARY_PAIRS));
                rotary[(size_t(p) * C::ROTARY_PAIRS + i) * 2] = std::cos(angle);
                rotary[(size_t(p) * C::ROTARY_PAIRS + i) * 2 + 1] = std::sin(angle);
            }
        for (int e = 0; e < D; e++) {
            q_norm.push_back(1.0f + 0.3f * random.normal());
            k_norm.push_back(1.0f + 0.3f * random.normal());
        }
        for (size_t i = 0; i < size_t(rows) * A::QKV_WIDTH; i++) qkv.push_back(1.5f * random.normal());
        cache.resize(AHEAD + size_t(cache_blocks) * A::BLOCK_STRIDE);
        std::memset(static_cast<void*>(cache.data()), 0xff, cache.size() * sizeof(Kv));
        for (int part = 0; SCALES > 0 && part < 2; part++)
            for (int h = 0; h < C::KV_HEADS; h++) {
                const float own = scale(part, h);
                std::memcpy(static_cast<void*>(&cache[scale_at(part, h)]), &own, sizeof own);
            }
        measure(false);
        for (size_t s = 0; s < fed.size(); s += C::TOKENS)
            for (int p = Window<C>::first(fed[s].position) / C::BLOCK_TOKENS * C::BLOCK_TOKENS; p < fed[s].position; p++)
                for (int part = 0; part < 2; part++)
                    for (int h = 0; h < C::KV_HEADS; h++)
                    {
                        std::vector<float> x(D);
                        for (auto& v : x) v = random.normal();
                        write(cache, int(s), p, part, h, x);
                    }
    }

    // What multiplies the codes of a head's keys (part 0) or values (part 1).
    static float scale(int part, int kv_head) {
        if constexpr (GROUPED<Kv>) {
            const bool there = part == 0 ? KeptRow<C, Side::Keys>::E::STATIC_SCALES : KeptRow<C, Side::Values>::E::STATIC_SCALES;
            return there ? std::ldexp(1.0f, part == 0 ? -1 - kv_head % 3 : 1 + kv_head % 2) : 1.0f;
        }
        return SCALES == 0 ? 1.0f : part == 0 ? 0.011f * float(1 + kv_head) : 0.3f + float(kv_head);
    }
    static size_t scale_at(int part, int kv_head) { return AHEAD - (SCALES - size_t(part) * C::KV_HEADS - kv_head) * sizeof(float); }
    // Whether a step measures; what it has measured so far is nothing.
    void measure(bool measures) {
        if (SCALES == 0) return;
        std::vector<unsigned> words(1 + SCALES);
        words[0] = measures;
        std::memcpy(static_cast<void*>(&cache[AHEAD - (2 * SCALES + 1) * sizeof(float)]), words.data(), words.size() * sizeof words[0]);
    }
    static float measured(const std::vector<Kv>& after, int part, int kv_head) {
        float largest;
        std::memcpy(&largest, &after[scale_at(part, kv_head) - SCALES * sizeof(float)], sizeof largest);
        return largest;
    }
    static Kv stored(float v, int part, int kv_head) { return host_round<Kv>(SCALES == 0 ? v : v / scale(part, kv_head)); }  // not of groups

    const Step& header() const { return *reinterpret_cast<const Step*>(step.data()); }

    // Where the cache has a token's key or value: all of it, or codes and scales. Index and length.
    struct Range {
        size_t from, length;
    };
    std::vector<Range> places(int sequence, int position, int part, int kv_head) const {
        if constexpr (GROUPED<Kv>) {
            using Keys = KeptRow<C, Side::Keys>;
            using Values = KeptRow<C, Side::Values>;
            const size_t codes = part == 0 ? Keys::CODES : Values::CODES, scales = part == 0 ? Keys::SCALES : Values::SCALES;
            const size_t unit = at(sequence, position, 0, 0) + (part == 0 ? 0 : C::KV_HEADS * Keys::UNIT) + kv_head * (part == 0 ? Keys::UNIT : Values::UNIT);
            const size_t token = position % C::BLOCK_TOKENS;
            return {{unit + token * codes, codes}, {unit + C::BLOCK_TOKENS * codes + token * scales, scales}};
        } else {
            return {{at(sequence, position, part, kv_head), D}};
        }
    }
    void copy(const std::vector<Kv>& from, std::vector<Kv>& to, int sequence, int position, int part, int kv_head) const {
        for (const Range& it : places(sequence, position, part, kv_head)) std::copy_n(from.begin() + it.from, it.length, to.begin() + it.from);
    }
    template <class F>
    void each_group(const std::vector<Kv>& cache_, int sequence, int position, int part, int kv_head, F f) const {
        const auto ranges = places(sequence, position, part, kv_head);
        auto* bytes = reinterpret_cast<uint8_t*>(const_cast<Kv*>(cache_.data()));
        for (int group = 0; group < D / 16; group++) f(group, bytes + ranges[0].from, bytes + ranges[1].from);
    }
    // The row that the cache keeps, as it is kept: rotated, if it is.
    std::vector<float> read(const std::vector<Kv>& from, int sequence, int position, int part, int kv_head) const {
        return read_scaled(from, sequence, position, part, kv_head, scale(part, kv_head));
    }
    // The same with another static scale.
    std::vector<float> read_scaled(const std::vector<Kv>& from, int sequence, int position, int part, int kv_head, float by) const {
        std::vector<float> x(D);
        if constexpr (GROUPED<Kv>) {
            each_group(from, sequence, position, part, kv_head, [&](int group, uint8_t* codes, uint8_t* scales) {
                HostGroup it;
                const auto decode = [&](auto row) {
                    using Row = decltype(row);
                    place_group<Row>(codes, scales, group, it, false);
                    decode_host<typename Row::E>(it, by, &x[16 * group]);
                };
                if (part == 0) decode(KeptRow<C, Side::Keys>());
                else decode(KeptRow<C, Side::Values>());
            });
        } else {
            for (int e = 0; e < D; e++) x[e] = host_widen(from[at(sequence, position, part, kv_head) + e]) * by;
        }
        return x;
    }
    // Keeps a row, of which `x` is what is kept, rotated already if it is.
    void write(std::vector<Kv>& to, int sequence, int position, int part, int kv_head, const std::vector<float>& x) const {
        if constexpr (GROUPED<Kv>) {
            each_group(to, sequence, position, part, kv_head, [&](int group, uint8_t* codes, uint8_t* scales) {
                const auto encode = [&](auto row) {
                    using Row = decltype(row);
                    HostGroup it = encode_host<typename Row::E>(&x[16 * group], scale(part, kv_head));
                    place_group<Row>(codes, scales, group, it, true);
                };
                if (part == 0) encode(KeptRow<C, Side::Keys>());
                else encode(KeptRow<C, Side::Values>());
            });
        } else {
            for (int e = 0; e < D; e++) to[at(sequence, position, part, kv_head) + e] = stored(x[e], part, kv_head);
        }
    }
    // Index of a cached key's (part 0) or value's (part 1) first element; of grouped formats that of the block's first byte, for key head 0.
    size_t at(int sequence, int position, int part, int kv_head) const {
        const auto* starts = reinterpret_cast<const SlidingStarts*>(&header() + 1);
        const int start = HAS_SLIDING_TABLE<C> ? starts->start[sequence] : header().sequence[sequence].block_start;
        const int block = reinterpret_cast<const int*>(starts + 1)[start + position / C::BLOCK_TOKENS];
        if (GROUPED<Kv>) return AHEAD + size_t(block) * A::BLOCK_STRIDE;
        return AHEAD + size_t(block) * A::BLOCK_STRIDE + part * A::VALUES + kv_head * A::HEAD_STRIDE +
               size_t(position % C::BLOCK_TOKENS) * D;
    }

    // A head of a row after its norm, as the interpreter computes it; `at` is its place in the row.
    std::vector<float> normed(int row, int at, HeadNorm norm, float epsilon, const std::vector<float>& weights) const {
        const float* from = &qkv[size_t(row) * A::QKV_WIDTH + at * D];
        std::vector<float> x(from, from + D);
        if (norm == HeadNorm::None) return x;
        double squares = 0;
        for (float v : x) squares += double(v) * double(v);
        const double inverse = 1.0 / std::sqrt(squares / D + double(epsilon));
        for (int e = 0; e < D; e++) {
            const float w = norm == HeadNorm::Bare ? 1.0f : norm == HeadNorm::OnePlus ? 1.0f + weights[e] : weights[e];
            x[e] = float(double(x[e]) * inverse * double(w));
        }
        return x;
    }
    // A value head of a row, as the cache keeps it.
    std::vector<float> value(int row, int head) const {
        std::vector<float> x = normed(row, A::FIRST_VALUE + head, ValueNorm<C>::NORM, ValueNorm<C>::EPS, {});
        if (is_rotated<Kv, Side::Values>()) rotate_host(x, false);
        return x;
    }

    // A head of a row (queries, then keys) after norm and rotary, as the interpreter computes it.
    std::vector<float> turned(int row, int position, int head) const {
        const bool is_key = head >= C::HEADS;
        std::vector<float> x = is_key ? normed(row, head - C::HEADS + A::FIRST_KEY, C::K_NORM, C::K_EPS, k_norm) : normed(row, head, C::Q_NORM, C::Q_EPS, q_norm);
        for (int i = 0; i < C::ROTARY_PAIRS; i++) {
            const int a = C::ROTARY_HALVES ? i : 2 * i, b = C::ROTARY_HALVES ? i + C::ROTARY_PAIRS : 2 * i + 1;
            const float* turn = &rotary[(size_t(position) * C::ROTARY_PAIRS + i) * 2];
            volatile float ac = x[a] * turn[0], bs = x[b] * turn[1], bc = x[b] * turn[0], as = x[a] * turn[1];
            x[a] = ac - bs;
            x[b] = bc + as;
        }
        if (is_rotated<Kv, Side::Keys>()) rotate_host(x, false);
        return x;
    }

    // Cache after the step: every place but the fed tokens' must be bit for bit what it was, theirs within `tolerance` of the
    // reference (relative to the row's size). A code of fp8 may be the next one where a norm's last bit decides, of hardly any element; and so
    // may codes of groups, of few.
    bool check_cache(const std::vector<Kv>& after, double tolerance, bool quiet = false) const {
        std::vector<Kv> expected = cache;
        size_t wrong = 0, written = 0, next = 0;
        for (size_t s = 0; s < fed.size(); s++)
            for (int t = 0; t < fed[s].count; t++)
                for (int h = 0; h < C::KV_HEADS; h++)
                    for (int part = 0; part < 2; part++) {
                        const int row = header().sequence[s].first_token + t, position = fed[s].position + t;
                        const std::vector<float> x = part == 0 ? turned(row, position, C::HEADS + h) : value(row, h);
                        double error = 0, size = 0, most = tolerance;
                        if constexpr (GROUPED<Kv>) {
                            write(expected, int(s), position, part, h, x);
                            const std::vector<float> kept = read(expected, int(s), position, part, h), got = read(after, int(s), position, part, h);
                            for (int group = 0; group < D / 16; group++) next += !std::equal(&kept[16 * group], &kept[16 * group] + 16, &got[16 * group]);
                            written += D / 16;
                            for (int e = 0; e < D; e++) error += double(got[e] - kept[e]) * double(got[e] - kept[e]), size += double(kept[e]) * double(kept[e]);
                            most = 0.2;  // another code here and there, or another scale that is as good
                        } else {
                            const size_t to = at(int(s), position, part, h);
                            for (int e = 0; e < D; e++) {
                                const Kv code = stored(x[e], part, h);
                                const double v = host_widen(code), got = host_widen(after[to + e]);
                                if constexpr (STATIC_SCALES<Kv>) {
                                    written++;
                                    if (std::abs(int(code.code) - int(after[to + e].code)) == 1) {
                                        next++;
                                        continue;
                                    }
                                }
                                error += (got - v) * (got - v), size += v * v;
                            }
                        }
                        if (!(std::sqrt(error) <= most * std::sqrt(size))) wrong++;
                        copy(after, expected, int(s), position, part, h);
                    }
        if (next * (GROUPED<Kv> ? 100 : 1000) > written || (C::EXACT && next > 0)) wrong += next;
        const bool elsewhere = std::memcmp(expected.data(), after.data(), after.size() * sizeof(Kv)) != 0;
        if (!quiet && (wrong || elsewhere)) std::printf("FAIL cache: %zu rows wrong%s\n", wrong, elsewhere ? ", written elsewhere" : ""), failures++;
        return !wrong && !elsewhere;
    }

    // Context vectors [rows, HEADS * D] over the K/V that the device left in `after`; `round_q`: q in the operand format.
    std::vector<double> reference(const std::vector<Kv>& after, bool round_q) const {
        std::vector<double> out(size_t(rows) * A::WIDTH);
        std::map<std::array<int, 4>, std::vector<float>> rows_read;
        const auto row_of = [&](int part, int sequence, int position, int kv_head) -> const std::vector<float>& {
            auto& row = rows_read[{part, sequence, position, kv_head}];
            if (row.empty()) row = read(after, sequence, position, part, kv_head);
            return row;
        };
        for (size_t s = 0; s < fed.size(); s++)
            for (int t = 0; t < fed[s].count; t++)
                for (int head = 0; head < C::HEADS; head++) {
                    const int row = header().sequence[s].first_token + t, position = fed[s].position + t, kv_head = head / A::GROUP;
                    std::vector<float> q = turned(row, position, head);
                    if (round_q)
                        for (auto& v : q) v = host_widen(host_round<typename A::Operand>(v));
                    std::vector<double> weights(position + 1, -INFINITY);
                    double largest = -INFINITY, total = 0;
                    for (int p = Window<C>::first(position); p <= position; p++) {
                        const std::vector<float>& key = row_of(0, int(s), p, kv_head);
                        double dot = 0;
                        for (int e = 0; e < D; e++) dot += double(q[e]) * double(key[e]);
                        weights[p] = double(C::SCALE) * dot;
                        largest = std::max(largest, weights[p]);
                    }
                    for (auto& w : weights) w = std::exp(w - largest), total += w;
                    double* mixed = &out[size_t(row) * A::WIDTH + head * D];
                    for (int p = Window<C>::first(position); p <= position; p++) {
                        const std::vector<float>& value = row_of(1, int(s), p, kv_head);
                        for (int e = 0; e < D; e++) mixed[e] += weights[p] * double(value[e]);
                    }
                    for (int e = 0; e < D; e++) mixed[e] /= total;
                    if (is_rotated<Kv, Side::Values>()) {
                        using Number = std::conditional_t<C::EXACT, float, double>;   // exact arithmetic rounds sums before, and each operation
                        std::vector<Number> vector(D);
                        for (int e = 0; e < D; e++) vector[e] = Number(mixed[e]);
                        rotate_host(vector, true);
                        std::copy(vector.begin(), vector.end(), mixed);
                    }
                    for (int e = 0; e < D; e++) {
                        if constexpr (C::GATED) {
                            const double gate = qkv[size_t(row) * A::QKV_WIDTH + A::WIDTH + head * D + e];
                            mixed[e] = (C::EXACT ? double(float(mixed[e])) : mixed[e]) / (1 + std::exp(-gate));
                        }
                    }
                }
        return out;
    }
};

// What a kernel left in `out`.
template <class C>
std::vector<float> read_out(const std::vector<float>& raw, int rows) {
    return {raw.begin(), raw.begin() + size_t(rows) * AttentionShape<C>::WIDTH};
}

template <class C>
size_t out_elements(int rows) {
    return size_t(rows) * AttentionShape<C>::WIDTH;
}

}  // namespace test
