// latent_values: the parts that latent_decode left of a row's context, added up, and each head's value matrix
// V_h times them.
//
// Work: block (ROW_TILES tiles of up to 16 rows, head), VALUES_WARPS warps. A warp asks for its rows of V_h
// before the wait (tiles of 8 values, as packed: B of the products). Then the warps share out the tile's
// rows, and each row's parts where rows are fewer than warps: a lane has 8 columns of every 256 of the latent
// (PartScale says which), parts come BATCH at a time, and are added in their order, warps' shares in the order
// of the warps. The sum, rotated back where the cache keeps latents rotated, over the total weight goes to f16 as
// staged activations do (staged.cuh), a row scaled by itself.
// Bytes: V_h once a block (64 KB of 128 values), and partials once: 66 KB a head of 128 parts, which is what
// one SM takes in in 0.6 us.
// Shared memory: 16 rows of latents as f16, a warp's share of a sum or its sum that is rotated. Barriers: two a tile, three where more
// follow. Grid: (ceil(rows / (TILE_ROWS ROW_TILES)), HEADS); more are harmless.
#pragma once

#include "latent/latent.cuh"

namespace monomorph {

constexpr int VALUES_WARPS = 16, VALUES_THREADS = 32 * VALUES_WARPS;

template <class C>
struct LatentValues {
    using S = LatentShape<C>;
    static constexpr int TILE_ROWS = C::ROWS >= 16 ? 16 : C::ROWS >= 8 ? 8 : C::ROWS >= 4 ? 4 : C::ROWS >= 2 ? 2 : 1;
    static constexpr int SHARES = VALUES_WARPS / TILE_ROWS;               // warps of a row
    static constexpr int CHUNKS = (S::UNITS * 4 + 31) / 32;               // of 8 columns of a part, a lane's
    static constexpr int WARP_TILES = (C::VALUE_DIM / 8 + VALUES_WARPS - 1) / VALUES_WARPS;
    static constexpr int STRIDE = 32 * S::UNITS + 8;                      // of a row in shared memory
    static constexpr int BATCH = 8 / CHUNKS < 1 ? 1 : 8 / CHUNKS;         // parts on their way
    static constexpr int ENDS = (C::SPLITS + 31) / 32;                    // a lane's
};

// A row's sums in a warp, rotated back. column(j, n): of sum[j][2n]; row: shared memory of the warp's own.
template <class C, int CHUNKS, class Column>
__device__ __forceinline__ void rotate_sums(float (&sum)[CHUNKS][8], float* row, int lane, Column column) {
    const auto each = [&](auto&& move) {
#pragma unroll
        for (int j = 0; j < CHUNKS; ++j)
#pragma unroll
            for (int n = 0; n < 4; ++n)
                if (column(j, n) < C::LATENT) move(*reinterpret_cast<float2*>(row + column(j, n)), sum[j][2 * n], sum[j][2 * n + 1]);
        __syncwarp();
    };
    each([](float2& pair, float first, float second) { pair = make_float2(first, second); });
    HeadVector<OfLatent<C>> latent;
    latent.load(row, lane);
    rotate_back(latent, lane);
    latent.each(lane, [&](int e, float v) { row[e] = v; });
    __syncwarp();
    each([](const float2& pair, float& first, float& second) { first = pair.x, second = pair.y; });
}

// step; partials: latent_decode's; codes, row_scales: `made`; out f32 [rows, HEADS * VALUE_DIM].
template <class C>
__device__ __forceinline__ void latent_values(const Step* step, const TokenRow* tokens, const float* partials, const void* codes,
                                              const float* row_scales, float* out) {
    using S = LatentShape<C>;
    using V = LatentValues<C>;
    MONOMORPH_SHARED(staged, __half[16][V::STRIDE]);
    MONOMORPH_SHARED(shares, float[VALUES_WARPS][V::CHUNKS * 256]);
    MONOMORPH_SHARED(unscales, float[16]);
    launch_dependents();
    const int thread = threadIdx.x, lane = thread % 32, warp = thread / 32, g = lane / 4, c = lane % 4, head = blockIdx.y;

    uint4 values[V::WARP_TILES][S::UNITS];
    const uint4* packed = static_cast<const uint4*>(codes) + (static_cast<size_t>(head) * S::MADE + C::KEY_DIM) / 8 * S::UNITS * 32;
#pragma unroll
    for (int j = 0; j < V::WARP_TILES; ++j)
#pragma unroll
        for (int u = 0; u < S::UNITS; ++u) {
            const int tile = warp + VALUES_WARPS * j;
            values[j][u] = tile < C::VALUE_DIM / 8 ? __ldg(packed + (tile * S::UNITS + u) * 32 + lane) : make_uint4(0, 0, 0, 0);
        }
    for (int i = thread; i < 16 * V::STRIDE / 2; i += VALUES_THREADS) reinterpret_cast<unsigned*>(staged)[i] = 0;
    const int own_row = blockIdx.x * (C::ROW_TILES * V::TILE_ROWS) + warp / V::SHARES, share = warp % V::SHARES;   // of the first tile
    int rows, used = 1;
    const auto look_up = [&](int row) {
        if (C::SPLITS > 1 && row < rows) used = LatentSplits<C>(LatentRow(step, tokens, row).position).used;
    };
    wait_with_header<C>([&] {
        rows = step->tokens;
        look_up(own_row);
    });
    for (int at = 0; at < C::ROW_TILES; ++at) {
        const int first = (blockIdx.x * C::ROW_TILES + at) * V::TILE_ROWS, row = own_row + at * V::TILE_ROWS;
        if (first >= rows) return;
        if (at > 0) look_up(row);
        const bool live = row < rows;
        float total = 0.0f, sum[V::CHUNKS][8] = {};
        if (live) {
            const float* from = partials + (static_cast<size_t>(row) * C::HEADS + head) * S::PARTIAL;
            const float2* ends = reinterpret_cast<const float2*>(from + C::SPLITS * S::PART_FLOATS);   // maximum, sum of weights
            float2 own[V::ENDS];   // all asked for at once
#pragma unroll
            for (int j = 0; j < V::ENDS; ++j) own[j] = lane + 32 * j < used ? load_activation(ends + lane + 32 * j) : make_float2(-INFINITY, 0.0f);
            float largest = -INFINITY;
#pragma unroll
            for (int j = 0; j < V::ENDS; ++j) largest = fmaxf(largest, own[j].x);
#pragma unroll
            for (int mask = 16; mask > 0; mask >>= 1) largest = fmaxf(largest, __shfl_xor_sync(0xffffffffu, largest, mask));
#pragma unroll
            for (int j = 0; j < V::ENDS; ++j) total += power_of_two(own[j].x - largest) * own[j].y;
            total = warp_sum(total);
            const int each = (used + V::SHARES - 1) / V::SHARES, begin = share * each, end = min(used, begin + each);
#pragma unroll 1
            for (int s = begin; s < end; s += V::BATCH) {
                uint4 v[V::BATCH][V::CHUNKS];
                float maximum[V::BATCH];
#pragma unroll
                for (int b = 0; b < V::BATCH; ++b) {
                    if (s + b >= end) break;
                    maximum[b] = load_activation(ends + s + b).x;
#pragma unroll
                    for (int j = 0; j < V::CHUNKS; ++j) {
                        const int chunk = 32 * j + lane;
                        v[b][j] = chunk < S::UNITS * 4 ? load_activation(reinterpret_cast<const uint4*>(from + (s + b) * S::PART_FLOATS) + chunk) : uint4{};
                    }
                }
#pragma unroll
                for (int b = 0; b < V::BATCH; ++b) {
                    if (s + b >= end) break;
                    const float weight = power_of_two(maximum[b] - largest);
#pragma unroll
                    for (int j = 0; j < V::CHUNKS; ++j) {
                        const unsigned pairs[4] = {v[b][j].x, v[b][j].y, v[b][j].z, v[b][j].w};
#pragma unroll
                        for (int n = 0; n < 4; ++n) {
                            const float2 pair = unpack_f16(pairs[n]);
                            sum[j][2 * n] += weight * pair.x, sum[j][2 * n + 1] += weight * pair.y;
                        }
                    }
                }
            }
        }
        if constexpr (V::SHARES > 1) {
#pragma unroll
            for (int j = 0; j < V::CHUNKS; ++j)
#pragma unroll
                for (int half = 0; half < 2; ++half)   // 16 bytes a lane: no bank twice
                    *reinterpret_cast<float4*>(&shares[warp][256 * j + 128 * half + 4 * lane]) =
                        make_float4(sum[j][4 * half], sum[j][4 * half + 1], sum[j][4 * half + 2], sum[j][4 * half + 3]);
        }
        __syncthreads();
        if (share == 0 && live) {
            if constexpr (V::SHARES > 1) {
                for (int w = 1; w < V::SHARES; ++w)
#pragma unroll
                    for (int j = 0; j < V::CHUNKS; ++j)
#pragma unroll
                        for (int i = 0; i < 8; ++i) sum[j][i] += shares[warp + w][256 * j + i / 4 * 128 + 4 * lane + i % 4];
            }
            const auto column = [&](int j, int n) { return (32 * j + lane) / 4 * 32 + 8 * n + lane % 4 * 2; };   // first of pair n
            if constexpr (S::STORED_ROTATED) rotate_sums<C>(sum, shares[warp], lane, column);
            float largest = 0.0f;
#pragma unroll
            for (int j = 0; j < V::CHUNKS; ++j)
#pragma unroll
                for (int i = 0; i < 8; ++i) {
                    sum[j][i] = column(j, i / 2) < C::LATENT ? sum[j][i] * (1.0f / total) : 0.0f;   // what is behind the last was never written
                    largest = fmaxf(largest, fabsf(sum[j][i]));
                }
#pragma unroll
            for (int mask = 16; mask > 0; mask >>= 1) largest = fmaxf(largest, __shfl_xor_sync(0xffffffffu, largest, mask));
            const HalfScale half(largest);
            const int place = warp / V::SHARES;
#pragma unroll
            for (int j = 0; j < V::CHUNKS; ++j)
#pragma unroll
                for (int n = 0; n < 4; ++n)
                    if (column(j, n) < C::LATENT)
                        *reinterpret_cast<unsigned*>(&staged[place][column(j, n)]) = pack_f16(sum[j][2 * n] * half.scale, sum[j][2 * n + 1] * half.scale);
            if (lane == 0) unscales[place] = half.unscale;
        }
        __syncthreads();

#pragma unroll
        for (int j = 0; j < V::WARP_TILES; ++j) {
            const int tile = warp + VALUES_WARPS * j;
            if (tile >= C::VALUE_DIM / 8) break;
            float products[2][4] = {};
#pragma unroll
            for (int u = 0; u < S::UNITS; ++u) {
                const unsigned b[4] = {values[j][u].x, values[j][u].y, values[j][u].z, values[j][u].w};
#pragma unroll
                for (int half = 0; half < 2; ++half) {
                    unsigned a[4];
                    ldmatrix_4(a, shared_address(&staged[lane % 16][32 * u + 16 * half + lane / 16 * 8]));
                    mma_f16(products[half], a[0], a[1], a[2], a[3], b[2 * half], b[2 * half + 1]);
                }
            }
            const int column = 8 * tile + 2 * c;
            const float2 scales = {load_constant(row_scales + head * S::MADE + C::KEY_DIM + column), load_constant(row_scales + head * S::MADE + C::KEY_DIM + column + 1)};
#pragma unroll
            for (int i = 0; i < 2; ++i) {
                const int place = g + 8 * i;
                if (place < V::TILE_ROWS && first + place < rows) {
                    float* to = out + static_cast<size_t>(first + place) * (C::HEADS * C::VALUE_DIM) + head * C::VALUE_DIM + column;
                    *reinterpret_cast<float2*>(to) = make_float2((products[0][2 * i] + products[1][2 * i]) * unscales[place] * scales.x,
                                                                 (products[0][2 * i + 1] + products[1][2 * i + 1]) * unscales[place] * scales.y);
                }
            }
        }
        if (C::ROW_TILES > 1) __syncthreads();   // nobody reads this tile's rows any longer
    }
}

}  // namespace monomorph
