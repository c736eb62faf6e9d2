// Philox4x32-10: the counter-based generator of every random number on the device (Salmon et al., "Parallel random numbers: as
// easy as 1, 2, 3", 2011). runtime/sampling/src/random.rs is its definition; the two agree to the bit.
#pragma once

namespace monomorph {

__device__ __forceinline__ uint4 philox(uint4 counter, uint2 key) {
#pragma unroll
    for (int round = 0; round < 10; ++round) {
        const unsigned first_high = __umulhi(0xD2511F53u, counter.x), first_low = 0xD2511F53u * counter.x;
        const unsigned second_high = __umulhi(0xCD9E8D57u, counter.z), second_low = 0xCD9E8D57u * counter.z;
        counter = make_uint4(second_high ^ counter.y ^ key.x, second_low, first_high ^ counter.w ^ key.y, first_low);
        key.x += 0x9E3779B9u;
        key.y += 0xBB67AE85u;
    }
    return counter;
}

// The words of number `draw` of the stream of `seed`.
__device__ __forceinline__ uint4 random_words(unsigned long long seed, unsigned long long draw) {
    return philox(make_uint4(static_cast<unsigned>(draw), static_cast<unsigned>(draw >> 32), 0, 0),
                  make_uint2(static_cast<unsigned>(seed), static_cast<unsigned>(seed >> 32)));
}

// Uniform in [0, 1), a multiple of 2^-53: number `draw` of the stream of `seed`.
__device__ __forceinline__ double uniform(unsigned long long seed, unsigned long long draw) {
    const uint4 words = random_words(seed, draw);
    const unsigned long long bits = static_cast<unsigned long long>(words.x) << 32 | words.y;
    return static_cast<double>(bits >> 11) * (1.0 / 9007199254740992.0);
}

}  // namespace monomorph
