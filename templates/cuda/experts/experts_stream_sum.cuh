// One warp's sums over its units of a tile for up to eight rows of x, in groups of four: the weights are decoded once. 16-bit products;
// the fragments are those that stream_stage.cuh describes, and a lane's sums of a group (rows 2c % 4 and 2c % 4 + 1 of it) are halves until `halves` have met.
#pragma once

#include "products/stream.cuh"

namespace monomorph {

// Which rows of x a lane meets, of every group: where its bytes of the row's unit 0 stand, and whether there is such a row at all.
template <int GROUPS>
struct RowsOfX {
    const char* at[GROUPS];
    bool live[GROUPS];
};

// Whether any row of group g is wanted, the same in all lanes: bit g of `groups`.
template <unsigned GROUPS>
struct Live {
    __device__ __forceinline__ static constexpr bool of(int g) { return GROUPS >> g & 1; }
};
struct AllLive {
    __device__ __forceinline__ static constexpr bool of(int) { return true; }
};
// How many groups a loop is compiled for.
template <int N>
struct Groups {
    static constexpr int GROUPS = N;
};
struct AnyLive {
    unsigned groups;
    __device__ __forceinline__ bool of(int g) const { return groups >> g & 1; }
};
// Runs `body`, a loop over units. Compiled once for every choice of groups, one unit's instructions fill the waits of another's: fp8 gains
// 3 to 11 % at 8 rows. nvfp4 decodes too long for that to matter, and loses 3 to 7 %.
template <Format F, int GROUPS, class Body>
__device__ __forceinline__ void for_live(unsigned groups, const Body& body) {
    if constexpr (GROUPS == 1) body(Live<1>());
    else if constexpr (F == Format::NVFP4) body(AnyLive{groups});
    else if (groups == 1) body(Live<1>());
    else if (groups == 2) body(Live<2>());
    else body(Live<3>());
}

// CHUNK_BYTES: from one chunk of 32 columns of a row to the next.
template <Format F, bool BLOCK_SCALES, int GROUPS, int CHUNK_BYTES>
struct ExpertSum {
    using U = Unit<F>;
    static constexpr int CHUNKS = U::ELEMENTS / 8, PAIR = least(2, CHUNKS);
    float chain[GROUPS][2][4] = {};   // two, so that a product does not wait for the one before it
    float local[GROUPS][2][4];        // BLOCK_SCALES: under one scale

    // `unit`: of the row; `begins`, `ends`: those under its scale.
    template <class Which>
    __device__ __forceinline__ void add(Which live, const char* codes_at, const char* scales, float block_scale, const RowsOfX<GROUPS>& x, int unit, int index, int lane,
                                        bool begins = true, bool ends = true) {
        const uint4 codes = *reinterpret_cast<const uint4*>(codes_at + lane * 16);
        uint2 scales_at = {0, 0};
        if constexpr (F == Format::NVFP4) scales_at = *reinterpret_cast<const uint2*>(scales + lane / 4 * 8);
        unsigned a[CHUNKS][4];
        Streamed<F>::decode(codes, scales_at, a);
#pragma unroll
        for (int g = 0; g < GROUPS; g++) {
            if (!live.of(g)) continue;
            float (&sum)[2][4] = BLOCK_SCALES ? local[g] : chain[g];
            if (BLOCK_SCALES && begins) {
#pragma unroll
                for (int i = 0; i < 8; i++) sum[i / 4][i % 4] = 0.0f;
            }
#pragma unroll
            for (int m = 0; m < CHUNKS; m += PAIR) {
                uint4 b = {0, 0, 0, 0};
                const char* at = x.at[g] + (unit * CHUNKS + m) * CHUNK_BYTES;
                if constexpr (PAIR == 2) {
                    if (x.live[g]) b = *reinterpret_cast<const uint4*>(at);
                } else if (x.live[g]) {
                    const uint2 one = *reinterpret_cast<const uint2*>(at);
                    b.x = one.x, b.y = one.y;
                }
                multiply(sum[(index * CHUNKS + m) % 2], a[m], b.x, b.y);
                if constexpr (PAIR == 2) multiply(sum[(index * CHUNKS + m + 1) % 2], a[m + 1], b.z, b.w);
            }
            if (BLOCK_SCALES && ends) {
#pragma unroll
                for (int i = 0; i < 4; i++) chain[g][0][i] += block_scale * (sum[0][i] + sum[1][i]);
            }
        }
    }
    __device__ __forceinline__ static void multiply(float (&sum)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
        mma_f16(sum, a[0], a[1], a[2], a[3], b0, b1);
    }

    // This lane's half of output row lane / 4 against row (2 * (lane % 4) + i) % 4 of group g: D[row][t] in lanes c < 2, D[row + 8][t + 4] in the others.
    __device__ __forceinline__ float half(int g, int i, int lane) const {
        const float low = chain[g][0][i] + chain[g][1][i], high = chain[g][0][2 + i] + chain[g][1][2 + i];
        return lane % 4 < 2 ? low : high;
    }
};

// The other half of a sum stands two lanes on.
__device__ __forceinline__ float halves(float half) { return half + __shfl_xor_sync(~0u, half, 2); }

}  // namespace monomorph
