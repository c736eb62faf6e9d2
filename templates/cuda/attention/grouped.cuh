// Keys and values of formats with a scale for every 16 elements (nvfp4, turbo8, turbo4, turbo3), and how they are read.
//
// An element is a magnitude of few levels and its sign, or an e4m3; times the scale of its group; times the static scale of its head, if
// the format has some. Magnitudes are numbers of e4m3 too. So eight codes of any such format become two words of e4m3 (Lot::eight),
// and a product takes those as it takes codes of an fp8 cache, once they are multiplied by the scales of groups (PairScale): level and scale
// have four significant bits each, so that this is exact in f16 and in bf16. A turbo8's bf16 scale has eight: two terms of bf16.
//
// A head's keys, or values, in a block are a unit: codes [BLOCK_TOKENS][CODES bytes], then scales [BLOCK_TOKENS][SCALES bytes]. Eight adjacent
// elements are a chunk. The chunks of a token stand in the order in which attention_decode's lanes want them (KeptRow::chunk),
// so that a lane reads all of its own at once, and its scales. Codes of a chunk:
//   turbo8          eight bytes
//   nvfp4, turbo4   a word: magnitudes are nibbles' lower three bits, so a byte permute looks four of them up; signs of elements 0 to 3
//                   are bits 7, 15, 23 and 31, as in the words that they become, and those of 4 to 7 are bits 3, 11, 19 and 27
//   turbo3          two bytes: magnitudes of elements 0 to 3 at bits 0, 4, 8 and 12, those of 4 to 7 at 2, 6, 10 and 14; in a second
//                   plane behind that of all chunks, a byte of signs
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "attention/levels.cuh"
#include "core/async.cuh"
#include "core/convert.cuh"

namespace monomorph {

enum class Side { Keys, Values };

// A format: bytes of a chunk's codes in the first plane and in the second, bytes of a scale. Caches of one are addressed in bytes.
struct GroupedFormat {};
template <class Levels_, int FIRST_, int SECOND_, int SCALE_, bool ROTATED_>
struct GroupsOf : GroupedFormat {
    using Levels = Levels_;  // void of e4m3
    static constexpr int FIRST = FIRST_, SECOND = SECOND_, SCALE = SCALE_, TERMS = SCALE_;
    static constexpr bool ROTATED = ROTATED_, STATIC_SCALES = !std::is_void_v<Levels_>;
};
struct Nvfp4 : GroupsOf<Nvfp4Levels, 4, 0, 1, false> {
    unsigned char byte;
};
struct Turbo8 : GroupsOf<void, 8, 0, 2, true> {
    unsigned char byte;
};
struct Turbo4 : GroupsOf<Turbo4Levels, 4, 0, 1, true> {
    unsigned char byte;
};
struct Turbo3 : GroupsOf<Turbo3Levels, 2, 1, 1, true> {
    unsigned char byte;
};
// Keys of one such format, values of another.
template <class Keys_, class Values_>
struct GroupedPair : GroupedFormat {
    using Keys = Keys_;
    using Values = Values_;
    unsigned char byte;
};

template <class Kv>
constexpr bool GROUPED = std::is_base_of_v<GroupedFormat, Kv>;

// The format of keys, or of values.
template <class Kv, Side SIDE>
struct FormatOf {
    using Type = Kv;
};
template <class Keys, class Values, Side SIDE>
struct FormatOf<GroupedPair<Keys, Values>, SIDE> {
    using Type = std::conditional_t<SIDE == Side::Keys, Keys, Values>;
};

// What a format says, false where the cache has another kind of elements.
template <class Kv, Side SIDE>
__host__ __device__ constexpr bool is_rotated() {
    if constexpr (GROUPED<Kv>) return FormatOf<Kv, SIDE>::Type::ROTATED;
    else return false;
}
template <class Kv>
__host__ __device__ constexpr bool groups_have_static_scales() {
    if constexpr (GROUPED<Kv>) return FormatOf<Kv, Side::Keys>::Type::STATIC_SCALES || FormatOf<Kv, Side::Values>::Type::STATIC_SCALES;
    else return false;
}
template <class Kv>
__host__ __device__ constexpr bool groups_need_two_terms() {
    if constexpr (GROUPED<Kv>) return FormatOf<Kv, Side::Keys>::Type::TERMS > 1 || FormatOf<Kv, Side::Values>::Type::TERMS > 1;
    else return false;
}

// A token's codes and scales, of one head's keys or values.
struct KeptPlace {
    unsigned char *codes, *scales;
};

template <class C, Side SIDE>
struct KeptRow {
    using E = typename FormatOf<typename C::Kv, SIDE>::Type;
    static_assert(C::HEAD_DIM == 64 || C::HEAD_DIM == 128 || C::HEAD_DIM == 256 || C::HEAD_DIM == 512, "lanes read whole chunks");
    static constexpr int CHUNKS = C::HEAD_DIM / 8, CODES = CHUNKS * (E::FIRST + E::SECOND), SCALES = CHUNKS / 2 * E::SCALE;
    static constexpr int SECOND_PLANE = CHUNKS * E::FIRST;
    static constexpr int SHARED = (CODES + SCALES + 15) / 16 * 16;  // of a token's own in shared memory
    static constexpr size_t UNIT = static_cast<size_t>(C::BLOCK_TOKENS) * (CODES + SCALES);
    // Lanes that share a token out in attention_decode, and the chunks that each has.
    static constexpr int LANES = SIDE == Side::Keys ? 4 : 8, STEPS = CHUNKS / LANES;

    // Where a chunk stands among the token's, and where the scale of a group does.
    __device__ __forceinline__ static int chunk(int chunk) { return chunk % LANES * STEPS + chunk / LANES; }
    __device__ __forceinline__ static int scale(int group) { return group % (LANES / 2) * STEPS + group / (LANES / 2); }
    __device__ __forceinline__ static KeptPlace shared(unsigned char* row) { return {row, row + CODES}; }
};

// Bytes of a block of a layer: the units of keys, then those of values.
template <class C>
constexpr size_t GROUPED_BLOCK = C::KV_HEADS * (KeptRow<C, Side::Keys>::UNIT + KeptRow<C, Side::Values>::UNIT);

// Where a token is kept. Layers are written through this too.
template <class C, Side SIDE, class Kv>
__device__ __forceinline__ KeptPlace kept_place(Kv* layer, int block, int kv_head, int token_in_block) {
    using Keys = KeptRow<C, Side::Keys>;
    using Row = KeptRow<C, SIDE>;
    unsigned char* unit = reinterpret_cast<unsigned char*>(const_cast<std::remove_const_t<Kv>*>(layer)) + static_cast<size_t>(block) * GROUPED_BLOCK<C> +
                          (SIDE == Side::Keys ? 0 : C::KV_HEADS * Keys::UNIT) + kv_head * Row::UNIT;
    return {unit + token_in_block * Row::CODES, unit + C::BLOCK_TOKENS * Row::CODES + token_in_block * Row::SCALES};
}

// STEPS adjacent entries of BYTES bytes each of a row, in registers. Of less than a word, the word is read that they are in.
template <int BYTES, int STEPS>
struct Plane {
    static constexpr int ALL = BYTES * STEPS, WORDS = (ALL + 3) / 4;
    uint32_t word[WORDS];

    // Entries from `at` on; where `live` is false nothing is read. STREAMED: as load_streamed_if.
    template <bool STREAMED>
    __device__ __forceinline__ void load(bool live, const unsigned char* row, int at) {
        constexpr int V = WORDS % 4 == 0 ? 4 : WORDS % 2 == 0 ? 2 : 1;
        const auto* from = reinterpret_cast<const uint32_t*>(row + (ALL < 4 ? at * BYTES & ~3 : at * BYTES));
#pragma unroll
        for (int i = 0; i < WORDS; i += V) {
            if constexpr (STREAMED) {
                load_streamed_if(live, reinterpret_cast<uint32_t(&)[V]>(word[i]), from + i);
            } else if (live) {
                if constexpr (V == 4) {
                    const uint4 words = *reinterpret_cast<const uint4*>(from + i);
                    word[i] = words.x, word[i + 1] = words.y, word[i + 2] = words.z, word[i + 3] = words.w;
                } else if constexpr (V == 2) {
                    const uint2 words = *reinterpret_cast<const uint2*>(from + i);
                    word[i] = words.x, word[i + 1] = words.y;
                } else {
                    word[i] = from[i];
                }
            }
        }
    }
    // Entry `step` of those from `at` on in the lower bits, of up to a word; what is above them is of others.
    __device__ __forceinline__ uint32_t entry(int step, int at) const {
        if constexpr (ALL < 4) return word[0] >> (at * BYTES % 4 + step * BYTES) * 8;
        else return word[step * BYTES / 4] >> step * BYTES % 4 * 8;
    }
};
template <int STEPS>
struct Plane<0, STEPS> {
    static constexpr int WORDS = 0;
};

// STEPS adjacent chunks of a token's row, and the scales that stand at the same places among those of all groups.
template <class Row, int STEPS>
struct Lot {
    using E = typename Row::E;
    static constexpr int REGISTERS = Plane<E::FIRST, STEPS>::WORDS + Plane<E::SECOND, STEPS>::WORDS + Plane<E::SCALE, STEPS>::WORDS;
    Plane<E::FIRST, STEPS> first;
    Plane<E::SECOND, STEPS> second;
    Plane<E::SCALE, STEPS> scale;

    template <bool STREAMED>
    __device__ __forceinline__ void load(bool live, const KeptPlace& from, int chunk, int group) {
        first.template load<STREAMED>(live, from.codes, chunk);
        if constexpr (E::SECOND > 0) second.template load<STREAMED>(live, from.codes + Row::SECOND_PLANE, chunk);
        scale.template load<STREAMED>(live, from.scales, group);
    }

    // The codes of a chunk as e4m3.
    __device__ __forceinline__ void eight(int step, int chunk, uint32_t (&codes)[2]) const {
        using Levels = typename E::Levels;
        constexpr uint32_t SIGNS = 0x80808080u;
        if constexpr (E::FIRST == 8) {
            codes[0] = first.word[2 * step], codes[1] = first.word[2 * step + 1];
        } else if constexpr (E::FIRST == 4) {
            const uint32_t word = first.word[step], magnitudes = word & 0x77777777u;
            codes[0] = __byte_perm(Levels::LOW, Levels::HIGH, magnitudes) | (word & SIGNS);
            codes[1] = __byte_perm(Levels::LOW, Levels::HIGH, magnitudes >> 16) | (word << 4 & SIGNS);
        } else {
            const uint32_t magnitudes = first.entry(step, chunk), signs = second.entry(step, chunk);
            constexpr uint32_t APART = 1u << 7 | 1u << 14 | 1u << 21 | 1u << 28;  // bits 0 to 3 to where signs are
            codes[0] = __byte_perm(Levels::LOW, Levels::HIGH, magnitudes & 0x3333u) | ((signs & 15) * APART & SIGNS);
            codes[1] = __byte_perm(Levels::LOW, Levels::HIGH, magnitudes >> 2 & 0x3333u) | ((signs >> 4 & 15) * APART & SIGNS);
        }
    }
    // The scale of a chunk in the lower bits; what is above them is of others.
    __device__ __forceinline__ uint32_t scale_bits(int step, int group) const { return scale.entry(step, group); }
};

// The scales of two elements: a pair of f16, or two f32.
template <class E>
struct PairScale {
    uint32_t pair;
    __device__ __forceinline__ static PairScale both(uint32_t bits) { return {twice_low(unpack_e4m3_pair(bits))}; }
    __device__ __forceinline__ static PairScale of(uint32_t low, uint32_t high) { return {unpack_e4m3_pair(__byte_perm(low, high, 0x5540))}; }
    __device__ __forceinline__ float low() const { return unpack_f16(pair).x; }
};
template <>
struct PairScale<Turbo8> {
    float2 pair;
    __device__ __forceinline__ static PairScale both(uint32_t bits) { return {make_float2(bf16_low(bits), bf16_low(bits))}; }
    __device__ __forceinline__ static PairScale of(uint32_t low, uint32_t high) { return {make_float2(bf16_low(low), bf16_low(high))}; }
    __device__ __forceinline__ float low() const { return pair.x; }
};

// A pair of e4m3, as f16, times its scales: the sum of TERMS pairs of what products take, of which the first alone is its rounding.
template <bool F16, class E>
__device__ __forceinline__ void multiply_pair(uint32_t pair, const PairScale<E>& by, uint32_t (&terms)[E::TERMS]) {
    if constexpr (E::TERMS == 2) {
        static_assert(!F16, "exact in two terms of bf16");
        const float2 codes = unpack_f16(pair);
        const float x = codes.x * by.pair.x, y = codes.y * by.pair.y;
        terms[0] = pack_bf16(x, y);
        terms[1] = pack_bf16(x - bf16_low(terms[0]), y - bf16_high(terms[0]));
    } else {
        terms[0] = multiply_f16_pairs(pair, by.pair);
        if constexpr (!F16) {
            const float2 product = unpack_f16(terms[0]);
            terms[0] = pack_bf16(product.x, product.y);
        }
    }
}

// One element, rounded as the reference's is; `scale`: its head's static one.
template <class C, Side SIDE>
__device__ __forceinline__ float kept_element(const KeptPlace& from, int element, float scale) {
    using Row = KeptRow<C, SIDE>;
    using E = typename Row::E;
    const int chunk = Row::chunk(element / 8), group = Row::scale(element / 16);
    Lot<Row, 1> lot;
    lot.template load<false>(true, from, chunk, group);
    uint32_t codes[2];
    lot.eight(0, chunk, codes);
    const uint32_t code = (element % 8 < 4 ? codes[0] : codes[1]) >> element % 4 * 8;
    const float by = __fmul_rn(PairScale<E>::both(lot.scale_bits(0, group)).low(), scale);
    return __fmul_rn(unpack_f16(unpack_e4m3_pair(code)).x, by);
}

}  // namespace monomorph
