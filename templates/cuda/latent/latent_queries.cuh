// latent_queries: what stands before attention over latents, for all rows of a step. Norm of the latent and
// rotary of its key, both into the cache; for each head the query's key matrix K_h multiplied into it, and
// rotary of its rotated part.
//
// Work: block (group of ROW_TILES tiles of 16 rows, head), a warp for each 32 latents: it holds its KEY_DIM x
// 32 part of K_h, asked for before the wait, as packed: a fragment of rows of K_h becomes one of columns by a
// transposition between lanes (movmatrix). A query is scaled to f16 as staged activations are (staged.cuh),
// times the row scales of K_h: it is these rows' sum. Blocks behind the last head take the latents, a warp a
// row.
// queries: Operand [rows][TERMS][HEADS][WIDTH], times SCALE log2(e) and the query scale: latent_decode's weights
// are powers of two.
// The step header, and rotations by it, are read before the wait where they may be.
// A cache that keeps latents rotated has queries rotated: what warps have of the tile's queries goes to shared
// memory as f32, where a warp takes whole ones.
// Bytes: K_h once a block; q and kv once; queries once.
// Shared memory: 16 queries; of formats of groups 16 latents as f32 too, of rotated queries or of a warp's to be
// encoded. Barriers: two a tile, three where queries are rotated. Grid: (ceil(rows / (16 ROW_TILES)), HEADS + 1);
// more are harmless.
#pragma once

#include "latent/latent_codes.cuh"

namespace monomorph {

template <class C>
constexpr int LATENT_QUERY_THREADS = 32 * LatentShape<C>::UNITS;

// An element of `queries` as its terms.
template <class C>
__device__ __forceinline__ void store_query(typename LatentShape<C>::Operand* to, float value) {
    using Operand = typename LatentShape<C>::Operand;
    const Operand high = round_to<Operand>(value);
    to[0] = high;
    if constexpr (C::TERMS == 2) to[C::HEADS * LatentShape<C>::WIDTH] = round_to<Operand>(value - widen(high));
}

// A row's latent and key into the cache. values: of formats of groups LATENT floats of shared memory, the warp's own.
template <class C>
__device__ __forceinline__ void write_latent(const LatentRow& at, const int* blocks, const float* kv, const HeadVector<OfLatent<C>>& weight,
                                             const float* rotary, typename C::Kv* layer, float* values, int lane) {
    using S = LatentShape<C>;
    using Kv = typename C::Kv;
    HeadVector<OfLatent<C>> latent;
    HeadVector<OfRotated<C>> key;
    Rotation<OfRotated<C>> rotation;
    latent.load(kv, lane);
    key.load(kv + C::LATENT, lane);
    rotation.load(rotary, at.position, lane);
    norm_head<OfLatent<C>, C::NORM, false>(latent, weight, C::EPS);
    rotate_head<OfRotated<C>>(key, rotation, lane);
    if constexpr (S::GROUPS) {
        if constexpr (S::STORED_ROTATED) rotate_kept(latent, lane);
        measure_head<OfLatent<C>>(layer, Side::Keys, 0, latent, lane);
        const KeptLatent<C> to(layer, blocks[at.block_start + at.position / C::BLOCK_TOKENS], at.position % C::BLOCK_TOKENS);
        keep_groups<OfLatent<C>, Side::Values>(latent, latent_scale<C>(layer), values, lane, to);
        key.each(lane, [&](int e, float v) { reinterpret_cast<__nv_bfloat16*>(to.rotated)[e] = round_to<__nv_bfloat16>(v); });
    } else if constexpr (S::CODES) {
        measure_head<OfLatent<C>>(layer, Side::Keys, 0, latent, lane);
        const float scale = static_scale<OfLatent<C>>(layer, Side::Keys, 0);
        const int token = at.position % C::BLOCK_TOKENS;
        Kv* block = layer + blocks[at.block_start + at.position / C::BLOCK_TOKENS] * S::BLOCK_STRIDE;
        auto* rotated = reinterpret_cast<__nv_bfloat16*>(block + S::LATENTS) + token * C::ROTATED;
        latent.each(lane, [&](int e, float v) { block[token * C::LATENT + e] = keep<Kv>(v, scale); });
        key.each(lane, [&](int e, float v) { rotated[e] = round_to<__nv_bfloat16>(v); });
    } else {
        Kv* to = layer + blocks[at.block_start + at.position / C::BLOCK_TOKENS] * S::BLOCK_STRIDE + at.position % C::BLOCK_TOKENS * S::WIDTH;
        latent.each(lane, [&](int e, float v) { to[e] = round_to<Kv>(v); });
        key.each(lane, [&](int e, float v) { to[C::LATENT + e] = round_to<Kv>(v); });
    }
}

// step; tokens: null in decode; q f32 [rows, Q_WIDTH]; kv f32 [rows, WIDTH]; norm f32 [LATENT] or null;
// rotary f32 [positions][ROTATED / 2][2]; codes, row_scales: `made`; layer: the cache's base of this layer.
template <class C>
__device__ __forceinline__ void latent_queries(const Step* step, const TokenRow* tokens, const float* q, const float* kv, const float* norm,
                                               const float* rotary, const void* codes, const float* row_scales, typename C::Kv* layer,
                                               typename C::Kv* queries_) {
    using S = LatentShape<C>;
    using Operand = typename S::Operand;
    Operand* const queries = reinterpret_cast<Operand*>(queries_);
    constexpr int KEY_TILES = C::KEY_DIM / 8, STEPS = (KEY_TILES + 1) / 2, STRIDE = 16 * STEPS + 8, WARPS = S::UNITS;
    constexpr int EACH = (16 + WARPS - 1) / WARPS;   // rows of a tile that a warp has
    MONOMORPH_SHARED(staged, __half[16][STRIDE]);
    MONOMORPH_SHARED(factors, float[16]);
    float* whole = nullptr;   // of formats of groups 16 latents, WHOLE floats apart
    constexpr int WHOLE = 32 * WARPS + 8;
    if constexpr (S::GROUPS) {
        static_assert(WARPS <= 16, "a warp has a latent");
        MONOMORPH_SHARED(latents, float4[16][WHOLE / 4]);
        whole = reinterpret_cast<float*>(latents);
    }
    launch_dependents();
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, c = lane % 4, head = blockIdx.y;
    const int first = blockIdx.x * (16 * C::ROW_TILES);

    if (head == C::HEADS) {
        HeadVector<OfLatent<C>> weight;
        if constexpr (C::NORM != HeadNorm::None) weight.load(norm, lane);
        int end;
        LatentRow at;
        wait_with_header<C>([&] {
            end = min(first + 16 * C::ROW_TILES, step->tokens);
            if (first + warp < end) at = LatentRow(step, tokens, first + warp);
        });
        for (int row = first + warp; row < end; row += WARPS)
            write_latent<C>(row < first + WARPS ? at : LatentRow(step, tokens, row), step->blocks(), kv + static_cast<size_t>(row) * S::WIDTH, weight, rotary, layer,
                            whole + warp * WHOLE, lane);
        return;
    }

    // This warp's part of K_h: of 8 rows, each lane has row g, columns 2c, 2c + 1 of each eight of the 32.
    uint4 keys[KEY_TILES];
    const uint4* packed = static_cast<const uint4*>(codes) + static_cast<size_t>(head) * (S::MADE / 8) * S::UNITS * 32;
#pragma unroll
    for (int t = 0; t < KEY_TILES; ++t) keys[t] = __ldg(packed + (t * S::UNITS + warp) * 32 + lane);
    float scales[(C::KEY_DIM + 31) / 32];
#pragma unroll
    for (int j = 0; j < (C::KEY_DIM + 31) / 32; ++j)
        scales[j] = lane + 32 * j < C::KEY_DIM ? load_constant(row_scales + head * S::MADE + lane + 32 * j) : 0.0f;
    int rows, position[EACH];
    Rotation<OfRotated<C>> rotation[EACH];
    const auto look_up = [&](int from) {
#pragma unroll
        for (int i = 0; i < EACH; ++i) {
            const int row = from + warp + i * WARPS;
            if (row < rows) position[i] = LatentRow(step, tokens, row).position, rotation[i].load(rotary, position[i], lane);
        }
    };
    wait_with_header<C>([&] {
        rows = step->tokens;
        look_up(first);
    });

    for (int tile = 0; tile < C::ROW_TILES; ++tile) {
        const int from = first + 16 * tile;
        if (from >= rows) break;
        if (tile > 0) look_up(from);
        // Queries to f16, rotated parts to their places.
#pragma unroll
        for (int j = 0; j < EACH; ++j) {
            const int i = warp + j * WARPS, row = from + i;
            if (i >= 16) break;
            if (row >= rows) {
                for (int e = lane; e < 16 * STEPS; e += 32) staged[i][e] = __float2half_rn(0.0f);
                continue;
            }
            const float* mine = q + static_cast<size_t>(row) * S::Q_WIDTH;
            float factor = C::SCALE * 1.4426950408889634f;
            if constexpr (C::GROWTH != 0.0f) factor *= 1.0f + C::GROWTH * logf(1.0f + static_cast<float>(position[j] / C::ORIGINAL));
            float x[(C::KEY_DIM + 31) / 32], largest = 0.0f;
#pragma unroll
            for (int k = 0; k < (C::KEY_DIM + 31) / 32; ++k) {
                x[k] = lane + 32 * k < C::KEY_DIM ? load_activation(mine + head * C::KEY_DIM + lane + 32 * k) * scales[k] : 0.0f;
                largest = fmaxf(largest, fabsf(x[k]));
            }
#pragma unroll
            for (int mask = 16; mask > 0; mask >>= 1) largest = fmaxf(largest, __shfl_xor_sync(0xffffffffu, largest, mask));
            const HalfScale half(largest);
#pragma unroll
            for (int k = 0; k < (C::KEY_DIM + 31) / 32; ++k)
                if (lane + 32 * k < C::KEY_DIM) staged[i][lane + 32 * k] = __float2half_rn(x[k] * half.scale);
            if (C::KEY_DIM + lane < 16 * STEPS) staged[i][C::KEY_DIM + lane] = __float2half_rn(0.0f);
            if (lane == 0) factors[i] = half.unscale * factor;

            HeadVector<OfRotated<C>> turned;
            turned.load(mine + C::HEADS * C::KEY_DIM + head * C::ROTATED, lane);
            rotate_head<OfRotated<C>>(turned, rotation[j], lane);
            Operand* to = queries + (static_cast<size_t>(row) * C::TERMS * C::HEADS + head) * S::WIDTH + C::LATENT;
            turned.each(lane, [&](int e, float v) { store_query<C>(to + e, v * factor); });
        }
        __syncthreads();

        float sums[4][4] = {};   // of each eight latents
#pragma unroll
        for (int s = 0; s < STEPS; ++s) {
            unsigned a[4];
            ldmatrix_4(a, shared_address(&staged[lane % 16][16 * s + lane / 16 * 8]));
            const unsigned low[4] = {keys[2 * s].x, keys[2 * s].y, keys[2 * s].z, keys[2 * s].w};
            const uint4& second = keys[2 * s + 1 < KEY_TILES ? 2 * s + 1 : 2 * s];   // beyond the last, queries are zero
            const unsigned high[4] = {second.x, second.y, second.z, second.w};
#pragma unroll
            for (int n = 0; n < 4; ++n) mma_f16(sums[n], a[0], a[1], a[2], a[3], transpose_8x8(low[n]), transpose_8x8(high[n]));
        }
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            const int row = from + g + 8 * i;
            if (row < rows) {
                const float factor = factors[g + 8 * i];
                if constexpr (S::STORED_ROTATED) {
#pragma unroll
                    for (int n = 0; n < 4; ++n)
                        *reinterpret_cast<float2*>(whole + (g + 8 * i) * WHOLE + 32 * warp + 8 * n + 2 * c) = make_float2(sums[n][2 * i] * factor, sums[n][2 * i + 1] * factor);
                    continue;
                }
                Operand* to = queries + (static_cast<size_t>(row) * C::TERMS * C::HEADS + head) * S::WIDTH;
#pragma unroll
                for (int n = 0; n < 4; ++n) {
                    const int column = 32 * warp + 8 * n + 2 * c;
                    if (column < C::LATENT) {
                        unsigned high, low;
                        split_pair<Operand>(sums[n][2 * i] * factor, sums[n][2 * i + 1] * factor, high, low);
                        *reinterpret_cast<unsigned*>(to + column) = high;
                        if constexpr (C::TERMS == 2) *reinterpret_cast<unsigned*>(to + C::HEADS * S::WIDTH + column) = low;
                    }
                }
            }
        }
        if constexpr (S::STORED_ROTATED) {
            __syncthreads();
            for (int i = warp; i < 16 && from + i < rows; i += WARPS) {
                HeadVector<OfLatent<C>> query;
                query.load(whole + i * WHOLE, lane);
                rotate_kept(query, lane);
                Operand* to = queries + (static_cast<size_t>(from + i) * C::TERMS * C::HEADS + head) * S::WIDTH;
                query.each(lane, [&](int e, float v) { store_query<C>(to + e, v); });
            }
        }
        __syncthreads();
    }
}

}  // namespace monomorph
