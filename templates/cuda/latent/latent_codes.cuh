// Latents that a cache keeps as codes, on their way to what tensor cores multiply: bf16, which holds an e4m3
// times a static scale, a power of two, exactly; and so a level times the scale of its group, but a turbo8's, whose
// products have twelve bits. Those are rounded, as queries and weights are that they are multiplied by (TERMS): that is
// a 20th of what the format's codes are off, and a second term would double all products.
// Eight threads share a token's row: a thread has 16 codes of each 128, of formats of groups 8 of each 64, and 8
// elements of each 64 of the rotated key.
#pragma once

#include "latent/latent.cuh"

namespace monomorph {

// Eight codes times the scale.
__device__ __forceinline__ uint4 latent_operands(uint32_t first, uint32_t second, float scale) {
    const auto pair = [&](uint32_t codes) {
        const float2 v = unpack_f16(codes);
        return pack_bf16(v.x * scale, v.y * scale);
    };
    uint32_t words[4];
    unpack_e4m3(first, words[0], words[1]);
    unpack_e4m3(second, words[2], words[3]);
    return make_uint4(pair(words[0]), pair(words[1]), pair(words[2]), pair(words[3]));
}

// Where a token's codes and rotated key are, and scales of groups.
template <class C, bool = LatentShape<C>::GROUPS>
struct KeptLatent {
    const unsigned char *codes, *rotated;
    __device__ __forceinline__ KeptLatent(const typename C::Kv* layer, int block, int token) {
        using S = LatentShape<C>;
        const auto* from = reinterpret_cast<const unsigned char*>(layer) + block * S::BLOCK_STRIDE;
        codes = from + token * C::LATENT, rotated = from + S::LATENTS + token * (2 * C::ROTATED);
    }
};
template <class C>
struct KeptLatent<C, true> : KeptPlace {
    unsigned char* rotated;
    // Layers are written through this too.
    __device__ __forceinline__ KeptLatent(const typename C::Kv* layer, int block, int token) {
        using Row = LatentGroups<C>;
        auto* from = reinterpret_cast<unsigned char*>(const_cast<typename C::Kv*>(layer)) + block * LatentShape<C>::BLOCK_STRIDE;
        codes = from + token * Row::CODES, scales = from + C::BLOCK_TOKENS * Row::CODES + token * Row::SCALES;
        rotated = from + Row::UNIT + token * (2 * C::ROTATED);
    }
};

// A thread's part of a row.
template <class C>
struct LatentPart {
    static constexpr int PIECES = C::LATENT / 16, EACH = (PIECES + 7) / 8;  // of 16 codes; a thread's
    static constexpr int KEY_CHUNKS = C::ROTATED / 8, KEY_EACH = (KEY_CHUNKS + 7) / 8;
    __device__ __forceinline__ static bool has(int piece) { return PIECES % 8 == 0 || piece < PIECES; }
    __device__ __forceinline__ static bool has_key(int chunk) { return KEY_CHUNKS % 8 == 0 || chunk < KEY_CHUNKS; }
};

// The codes of groups of thread `part` of the eight, in registers.
template <class C>
struct HeldGroups {
    using Row = LatentGroups<C>;
    Lot<Row, Row::STEPS> lot;

    // Zeros where the token is not live: what stands there may be no number.
    __device__ __forceinline__ void load(bool live, const KeptPlace& from, int part) {
        lot = {};
        lot.template load<false>(live, from, Row::chunk(part), Row::scale(part / 2));
    }
    // Calls put(chunk, operands) for every 8 columns; `scale`: the static one.
    template <class Put>
    __device__ __forceinline__ void each(int part, float scale, Put put) const {
#pragma unroll
        for (int i = 0; i < Row::STEPS; ++i) {
            uint32_t codes[2];
            lot.eight(i, Row::chunk(part), codes);
            const float group = PairScale<typename Row::E>::both(lot.scale_bits(i, Row::scale(part / 2))).low();
            put(part + 8 * i, latent_operands(codes[0], codes[1], group * scale));
        }
    }
};

// The same of a latent of 256, and the thread's chunk of the rotated key, in shared memory that is the thread's own.
// THREADS threads share a `row` of it: pieces of 16 bytes of all of them, then pieces of 8. Two or four adjacent
// threads share 8 bytes of signs or scales in the cache, and each has a copy; but of turbo8, for which there is no
// room beside a prompt's tiles: the even one of two has them, and hands them to the other.
template <class C, int THREADS>
struct StagedGroups {
    using Row = LatentGroups<C>;
    using E = typename Row::E;
    static constexpr int CODES = E::FIRST * Row::STEPS, SIGNS = E::SECOND * Row::STEPS;
    static constexpr bool HANDED = E::SCALE == 2;
    static_assert(Row::STEPS == 4, "scales of two threads are 4 bytes, or 8");
    static constexpr int WIDE = CODES / 16 + 1, NARROW = CODES % 16 / 8 + SIGNS / 4 + 1;   // pieces; the key and scales are last
    static constexpr int BYTES = 16 * WIDE + (HANDED ? 4 : 8 * NARROW);
    unsigned char *own, *own_8;
    __device__ __forceinline__ StagedGroups(unsigned char* row, int thread)
        : own(row + thread * 16), own_8(row + WIDE * THREADS * 16 + (HANDED ? thread / 2 : thread) * 8) {}

    __device__ __forceinline__ unsigned char* codes() const { return CODES >= 16 ? own : own_8; }
    __device__ __forceinline__ unsigned char* signs() const { return own_8 + (NARROW - 2) * THREADS * 8; }
    __device__ __forceinline__ unsigned char* scales() const { return own_8 + (NARROW - 1) * THREADS * 8; }
    __device__ __forceinline__ unsigned char* key() const { return own + (WIDE - 1) * THREADS * 16; }
    __device__ __forceinline__ void copy(bool live, const KeptLatent<C>& from, int part) const {
        const int sixteen = live ? 16 : 0, eight = live ? 8 : 0;
        if constexpr (CODES >= 16) {
#pragma unroll
            for (int i = 0; i < CODES; i += 16) copy_16(codes() + i * THREADS, from.codes + part * CODES + i, sixteen);
        } else {
            copy_8(shared_address(codes()), from.codes + part * 8, eight);
        }
        if constexpr (SIGNS > 0) copy_8(shared_address(signs()), from.codes + Row::SECOND_PLANE + part / 2 * 8, eight);
        if constexpr (!HANDED) copy_8(shared_address(scales()), from.scales + part / 4 * 8, eight);
        else if (part % 2 == 0) copy_8(shared_address(scales()), from.scales + part / 2 * 8, eight);
        copy_16(key(), from.rotated + 16 * part, sixteen);
    }
    __device__ __forceinline__ HeldGroups<C> read(int part) const {
        HeldGroups<C> held;
        if constexpr (CODES == 32) {
#pragma unroll
            for (int i = 0; i < 2; ++i) {
                const uint4 words = *reinterpret_cast<const uint4*>(codes() + i * 16 * THREADS);
                held.lot.first.word[4 * i] = words.x, held.lot.first.word[4 * i + 1] = words.y;
                held.lot.first.word[4 * i + 2] = words.z, held.lot.first.word[4 * i + 3] = words.w;
            }
        } else {
            held.lot.first.template load<false>(true, codes(), 0);
        }
        if constexpr (SIGNS > 0) held.lot.second.template load<false>(true, signs() + part % 2 * 4, 0);
        if constexpr (HANDED) {
            held.lot.scale = {};
            held.lot.scale.template load<false>(part % 2 == 0, scales(), 0);
#pragma unroll
            for (int i = 0; i < 2; ++i) held.lot.scale.word[i] = __shfl_sync(0xffffffffu, held.lot.scale.word[i], threadIdx.x % 32 & ~1u);
        } else {
            held.lot.scale.template load<false>(true, scales() + part / 2 % 2 * 4, 0);
        }
        return held;
    }
};

// The static scale of a layer's latents.
template <class C>
__device__ __forceinline__ float latent_scale(const typename C::Kv* layer) { return static_scale<OfLatent<C>>(layer, Side::Keys, 0); }

}  // namespace monomorph
