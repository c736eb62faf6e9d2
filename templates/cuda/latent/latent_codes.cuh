// Latents that a cache keeps as codes, on their way to what tensor cores multiply: bf16, which holds an e4m3
// times a static scale, a power of two, exactly. Eight threads share a token's row: a thread has 16 codes of each
// 128, and 8 elements of each 64 of the rotated key.
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

// Where a token's codes and rotated key are.
template <class C>
struct KeptLatent {
    const unsigned char *codes, *rotated;
    __device__ __forceinline__ KeptLatent(const typename C::Kv* layer, int block, int token) {
        using S = LatentShape<C>;
        const auto* from = reinterpret_cast<const unsigned char*>(layer) + block * S::BLOCK_STRIDE;
        codes = from + token * C::LATENT, rotated = from + S::LATENTS + token * (2 * C::ROTATED);
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

// The static scale of a layer's latents.
template <class C>
__device__ __forceinline__ float latent_scale(const typename C::Kv* layer) { return static_scale<OfLatent<C>>(layer, Side::Keys, 0); }

}  // namespace monomorph
