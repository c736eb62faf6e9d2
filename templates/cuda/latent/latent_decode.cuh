// latent_decode: scores, softmax and sums of latents for every row of a step, over its sequence's cache (its
// own latent included), after latent_queries. All heads read the same rows of the cache: each comes from
// memory once for up to 32 of them.
//
// Work: block (row, group of 32 heads, part of the context), LATENT_WARPS warps. A part is walked in tiles of
// TILE tokens, gathered from their blocks with cp.async STAGES tiles deep. Of a tile, a warp multiplies 16
// heads with its share of the tokens (keys are B as they lie), the warps agree on the heads' maxima, weights
// go to shared memory as A, and then a warp multiplies all heads' weights with its share of the latent's
// columns (values are the same rows, B transposed on the way from shared memory). Online softmax in f32, to
// base 2; rows of the cache behind the row's own position are read as zeros and weigh nothing. A part leaves
// its sums (f16, PartScale), maxima and weights' sums in `partials`, for latent_values to add up in the order
// of the parts. A row's bits depend on SPLITS and on its own sequence only.
//
// Products: per token and 32 heads (WIDTH + LATENT) 64 operations times TERMS: 36,864 for 640 bytes, 261
// TFLOP/s at 4.54 TB/s. Shared memory moves, per token: the row written once, keys read twice (by both halves
// of the heads), queries WIDTH 4, values LATENT 2, weights 512: 4.3 KB.
//
// Shared memory (LatentShared): STAGES x keys [panels of 64 columns][TILE][128 bytes], q and weights alike,
// the rows of 8 swizzled (panel_chunk). Codes come through registers, a tile ahead of the copies. Barriers:
// three a tile, one more at the end. Registers are to allow two blocks an SM.
#pragma once

#include "latent/latent_codes.cuh"

namespace monomorph {

constexpr int LATENT_WARPS = 8, LATENT_THREADS = 32 * LATENT_WARPS;

template <class C>
struct LatentTile {
    using S = LatentShape<C>;
    static constexpr int GROUPS = (C::HEADS + 31) / 32;                    // of heads
    static constexpr int HEAD_TILES = C::HEADS <= 16 ? 1 : 2;              // of 16 heads
    static constexpr int ROWS = 16 * HEAD_TILES;
    static constexpr int PANELS = (S::WIDTH + 63) / 64, KEY_PAIRS = (S::WIDTH + 31) / 32;  // steps of 32 columns
    // Warps that share a tile's tokens: the others have none where heads are few and tiles small.
    static constexpr int TOKEN_WARPS = LATENT_WARPS / HEAD_TILES < C::TILE / 8 ? LATENT_WARPS / HEAD_TILES : C::TILE / 8;
    static constexpr bool ALL_SCORE = TOKEN_WARPS * HEAD_TILES == LATENT_WARPS;
    static constexpr int EIGHTS = C::TILE / (8 * TOKEN_WARPS);             // of tokens, a warp
    static_assert(C::TILE == 32 || C::TILE == 64, "a row of weights is at most 128 bytes");
    static constexpr int COLUMN_TILES = (C::LATENT + 15) / 16;             // of 16 latents
    static constexpr int WARP_TILES = (COLUMN_TILES + LATENT_WARPS - 1) / LATENT_WARPS;
    static constexpr int PANEL_BYTES = C::TILE * 128, STAGE_BYTES = PANELS * PANEL_BYTES, Q_BYTES = PANELS * ROWS * 128;
    static_assert(sizeof(typename S::Operand) == 2, "tensor cores read what is gathered as it lies");
};

template <class C>
struct LatentShared {
    using T = LatentTile<C>;
    alignas(128) unsigned char keys[C::STAGES][T::STAGE_BYTES];
    unsigned char q[C::TERMS][T::Q_BYTES];
    unsigned char weights[C::TERMS][T::ROWS * 128];
    float maximum[T::TOKEN_WARPS][T::ROWS], sum[T::TOKEN_WARPS][T::ROWS], largest[LATENT_WARPS][T::ROWS];
};

// Dynamic shared memory of the launch.
template <class C>
constexpr size_t latent_decode_shared_bytes() { return sizeof(LatentShared<C>); }

// step; tokens: null in decode; queries: latent_queries'; layer: the cache's base of this layer; partials:
// LatentShape.
template <class C>
__device__ __forceinline__ void latent_decode(const Step* step, const TokenRow* tokens, const typename C::Kv* queries_,
                                              const typename C::Kv* layer, float* partials) {
    using S = LatentShape<C>;
    using T = LatentTile<C>;
    using Kv = typename S::Operand;
    const Kv* const queries = reinterpret_cast<const Kv*>(queries_);
    constexpr int TILE = C::TILE, ROWS = T::ROWS, THREADS = LATENT_THREADS, TERMS = C::TERMS, TILES = T::HEAD_TILES;
    constexpr int CHUNKS = S::WIDTH / 8, HALVES = TILE / 32;
    MONOMORPH_DYNAMIC_SHARED(latent_shared_bytes, 128);
    LatentShared<C>& shared = *reinterpret_cast<LatentShared<C>*>(latent_shared_bytes);

    launch_dependents();
    const int thread = threadIdx.x, lane = thread % 32, warp = thread / 32, g = lane / 4, c = lane % 4;
    const int row = blockIdx.x, group = blockIdx.y, split = blockIdx.z;
    const unsigned keys_at = shared_address(shared.keys), q_at = shared_address(shared.q), weights_at = shared_address(shared.weights);

    if constexpr (!C::CONTEXT_BEFORE_WAIT) wait_for_predecessors();
    if (row >= step->tokens) {
        if constexpr (C::CONTEXT_BEFORE_WAIT) wait_for_predecessors();
        return;
    }
    const LatentRow at(step, tokens, row);
    const int position = at.position;
    const LatentSplits<C> parts(position);
    if (split >= parts.used) {
        if constexpr (C::CONTEXT_BEFORE_WAIT) wait_for_predecessors();
        return;
    }
    const int first = parts.begin(split), last = parts.begin(split + 1);
    const int* blocks = step->blocks() + at.block_start;

    // Copies: a thread has the token thread / 8 of each 32 of the tile, and the chunk thread % 8 of each
    // panel. Blocks are looked up a tile ahead.
    const int own_token = thread / 8, own_chunk = thread % 8;
    int next_block[HALVES];
    auto look_up = [&](int tile) {
#pragma unroll
        for (int h = 0; h < HALVES; ++h) {
            const int key = tile * TILE + own_token + 32 * h;
            next_block[h] = tile < last && key <= position ? blocks[key / C::BLOCK_TOKENS] : 0;
        }
    };
    auto copy_tile = [&](int tile, int stage) {
        if (tile < last) {
#pragma unroll
            for (int h = 0; h < HALVES; ++h) {
                const int token = own_token + 32 * h, key = tile * TILE + token;
                const int valid = key <= position ? 16 : 0;
                const auto* from = layer + next_block[h] * S::BLOCK_STRIDE + key % C::BLOCK_TOKENS * S::WIDTH + own_chunk * 8;
                unsigned char* to = shared.keys[stage] + token * 128 + (own_chunk ^ (token % 8)) * 16;
#pragma unroll
                for (int p = 0; p < T::PANELS; ++p)
                    if (CHUNKS % 8 == 0 || own_chunk + 8 * p < CHUNKS) copy_16(to + p * T::PANEL_BYTES, from + 64 * p, valid);
            }
        }
        copy_commit();
    };

    // Of codes: a tile's in registers, and what they and the rotated keys become in a stage.
    using Part = LatentPart<C>;
    using Held = std::conditional_t<S::GROUPS, HeldGroups<C>, uint4[S::CODES ? Part::EACH : 1]>;
    Held held[S::CODES ? HALVES : 1];
    int held_block[HALVES];
    float scale = 1.0f;
    auto hold = [&](int tile) {
#pragma unroll
        for (int h = 0; h < HALVES; ++h) {
            const int key = tile * TILE + own_token + 32 * h;
            const KeptLatent<C> from(layer, held_block[h] = next_block[h], key % C::BLOCK_TOKENS);
            if constexpr (S::GROUPS) {
                held[h].load(tile < last && key <= position, from, own_chunk);
            } else {
#pragma unroll
                for (int i = 0; i < Part::EACH; ++i) {
                    const int piece = own_chunk + 8 * i;
                    const bool live = tile < last && key <= position && Part::has(piece);
                    held[h][i] = live ? *reinterpret_cast<const uint4*>(from.codes + 16 * piece) : make_uint4(0, 0, 0, 0);
                }
            }
        }
    };
    auto place = [&](int tile, int stage) {
        if (tile < last) {
#pragma unroll
            for (int h = 0; h < HALVES; ++h) {
                const int token = own_token + 32 * h, key = tile * TILE + token;
                const KeptLatent<C> from(layer, held_block[h], key % C::BLOCK_TOKENS);
                unsigned char* const to = shared.keys[stage];
#pragma unroll
                for (int i = 0; i < Part::KEY_EACH; ++i) {
                    const int chunk = own_chunk + 8 * i;
                    if (Part::has_key(chunk))
                        copy_16(to + panel_chunk<TILE>(token, C::LATENT / 8 + chunk), from.rotated + 16 * chunk, key <= position ? 16 : 0);
                }
                if constexpr (S::GROUPS) {
                    held[h].each(own_chunk, scale, [&](int chunk, const uint4& operands) { *reinterpret_cast<uint4*>(to + panel_chunk<TILE>(token, chunk)) = operands; });
                } else {
#pragma unroll
                    for (int i = 0; i < Part::EACH; ++i) {
                        const int piece = own_chunk + 8 * i;
                        if (!Part::has(piece)) continue;
                        *reinterpret_cast<uint4*>(to + panel_chunk<TILE>(token, 2 * piece)) = latent_operands(held[h][i].x, held[h][i].y, scale);
                        *reinterpret_cast<uint4*>(to + panel_chunk<TILE>(token, 2 * piece + 1)) = latent_operands(held[h][i].z, held[h][i].w, scale);
                    }
                }
            }
        }
        copy_commit();
    };

    // Columns that no copy fills but products read.
    if constexpr (S::WIDTH % 32 != 0) {
        constexpr int PADDING = T::KEY_PAIRS * 4 - CHUNKS;   // chunks of a row
        for (int i = thread; i < PADDING * (C::STAGES * TILE + TERMS * ROWS); i += THREADS) {
            const int of = i / PADDING, chunk = CHUNKS + i % PADDING;
            const bool key = of < C::STAGES * TILE;
            const int q_row = of - C::STAGES * TILE;
            unsigned char* const to = key ? shared.keys[of / TILE] + panel_chunk<TILE>(of % TILE, chunk)
                                          : shared.q[q_row / ROWS] + panel_chunk<ROWS>(q_row % ROWS, chunk);
            *reinterpret_cast<uint4*>(to) = make_uint4(0, 0, 0, 0);
        }
    }
    // The first tiles: those of earlier steps at once, where the header is known.
    const int cached = tokens == nullptr ? position - (C::TOKENS == 1 ? 0 : row % C::TOKENS) : 0;
    bool waited = !C::CONTEXT_BEFORE_WAIT;
    look_up(first);
    if constexpr (S::CODES) {
        scale = latent_scale<C>(layer);
#pragma unroll
        for (int s = 0; s < C::STAGES; ++s) {
            if (!waited && (first + s + 1) * TILE > cached && first + s < last) wait_for_predecessors(), waited = true;
            if (s > 0) place(first + s - 1, s - 1);
            hold(first + s);
            look_up(first + s + 1);
        }
    } else {
#pragma unroll
        for (int s = 0; s < C::STAGES - 1; ++s) {
            if (!waited && (first + s + 1) * TILE > cached && first + s < last) wait_for_predecessors(), waited = true;
            copy_tile(first + s, s);
            look_up(first + s + 1);
        }
    }
    if (!waited) wait_for_predecessors();

    // Queries of the group's heads; those beyond the last are zeros.
    {
        const Kv* from = queries + (static_cast<size_t>(row) * TERMS * C::HEADS + group * 32) * S::WIDTH;
        const int heads = min(ROWS, C::HEADS - group * 32);
        for (int i = thread; i < TERMS * ROWS * CHUNKS; i += THREADS) {
            const int term = i / (ROWS * CHUNKS), head = i / CHUNKS % ROWS, chunk = i % CHUNKS;
            const bool live = head < heads;
            copy_16(shared.q[term] + panel_chunk<ROWS>(head, chunk), live ? from + (static_cast<size_t>(term) * C::HEADS + head) * S::WIDTH + chunk * 8 : from,
                    live ? 16 : 0);
        }
        copy_commit();
        copy_wait<0>();
    }

    const int head_tile = warp % TILES, token_warp = warp / TILES;
    const bool scores_tokens = T::ALL_SCORE || token_warp < T::TOKEN_WARPS;
    const int first_token = token_warp * 8 * T::EIGHTS;   // of the tile, this warp's
    float sums[TILES][T::WARP_TILES][2][4] = {};          // of 16 heads and twice 8 columns
    float maximum[TILES][2], sum[2] = {};                 // of heads g and g + 8; the sum is of this lane's tokens
#pragma unroll
    for (int t = 0; t < TILES; ++t) maximum[t][0] = maximum[t][1] = -INFINITY;

    int stage = 0;
    for (int tile = first; tile < last; ++tile) {
        copy_wait<C::STAGES - 2>();
        __syncthreads();   // the tile is there, and nobody reads the one before
        if constexpr (S::CODES) {
            place(tile + C::STAGES - 1, stage == 0 ? C::STAGES - 1 : stage - 1);
            hold(tile + C::STAGES);
            look_up(tile + C::STAGES + 1);
        } else {
            copy_tile(tile + C::STAGES - 1, stage == 0 ? C::STAGES - 1 : stage - 1);
            look_up(tile + C::STAGES);
        }

        // Scores of 16 heads and the warp's tokens.
        const unsigned keys = keys_at + stage * T::STAGE_BYTES;
        float scores[T::EIGHTS][4] = {};
#pragma unroll 2
        for (int k = 0; k < (scores_tokens ? T::KEY_PAIRS : 0); ++k) {
            unsigned b[T::EIGHTS][4];   // of 8 tokens, the columns 32k .. 32k + 32
#pragma unroll
            for (int n = 0; n < T::EIGHTS; ++n) ldmatrix_4(b[n], keys + panel_chunk<TILE>(first_token + 8 * n + lane % 8, 4 * k + lane / 8));
#pragma unroll
            for (int term = 0; term < TERMS; ++term)
#pragma unroll
                for (int half = 0; half < 2; ++half) {
                    unsigned a[4];
                    ldmatrix_4(a, q_at + term * T::Q_BYTES + panel_chunk<ROWS>(16 * head_tile + lane % 16, 4 * k + 2 * half + lane / 16));
#pragma unroll
                    for (int n = 0; n < T::EIGHTS; ++n) mma_16<Kv>(scores[n], a, b[n][2 * half], b[n][2 * half + 1]);
                }
        }
        const int own = position - tile * TILE - first_token - 2 * c;   // the row's token, from this lane's first
        if ((tile + 1) * TILE > position) {
#pragma unroll
            for (int n = 0; n < T::EIGHTS; ++n)
#pragma unroll
                for (int i = 0; i < 4; ++i)
                    if (8 * n + i % 2 > own) scores[n][i] = -INFINITY;
        }
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            float largest = -INFINITY;
#pragma unroll
            for (int n = 0; n < T::EIGHTS; ++n) largest = fmaxf(largest, fmaxf(scores[n][2 * i], scores[n][2 * i + 1]));
            largest = fmaxf(largest, __shfl_xor_sync(0xffffffffu, largest, 1));
            largest = fmaxf(largest, __shfl_xor_sync(0xffffffffu, largest, 2));
            if (c == 0 && scores_tokens) shared.maximum[token_warp][16 * head_tile + g + 8 * i] = largest;
        }
        __syncthreads();

        // The heads' maxima so far, in every warp; weights of this warp's scores.
        float shrink[TILES][2];
        bool larger = false;
#pragma unroll
        for (int t = 0; t < TILES; ++t)
#pragma unroll
            for (int i = 0; i < 2; ++i) {
                float largest = maximum[t][i];
#pragma unroll
                for (int w = 0; w < T::TOKEN_WARPS; ++w) largest = fmaxf(largest, shared.maximum[w][16 * t + g + 8 * i]);
                larger = larger || largest > maximum[t][i];
                shrink[t][i] = power_of_two(maximum[t][i] - largest);
                maximum[t][i] = largest;
            }
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            const float largest = TILES == 1 || head_tile == 0 ? maximum[0][i] : maximum[TILES - 1][i];
            sum[i] *= TILES == 1 || head_tile == 0 ? shrink[0][i] : shrink[TILES - 1][i];
#pragma unroll
            for (int n = 0; n < (scores_tokens ? T::EIGHTS : 0); ++n) {
                const float even = power_of_two(scores[n][2 * i] - largest), odd = power_of_two(scores[n][2 * i + 1] - largest);
                sum[i] += even + odd;
                unsigned terms[2];
                split_pair<Kv>(even, odd, terms[0], terms[1]);
#pragma unroll
                for (int term = 0; term < TERMS; ++term)
                    *reinterpret_cast<unsigned*>(shared.weights[term] + panel_chunk<ROWS>(16 * head_tile + g + 8 * i, first_token / 8 + n) + 4 * c) = terms[term];
            }
        }
        __syncthreads();

        // Sums of latents: all heads, this warp's columns.
        if (__any_sync(0xffffffffu, larger)) {
#pragma unroll
            for (int t = 0; t < TILES; ++t)
#pragma unroll
                for (int j = 0; j < T::WARP_TILES; ++j)
#pragma unroll
                    for (int n = 0; n < 2; ++n)
#pragma unroll
                        for (int i = 0; i < 4; ++i) sums[t][j][n][i] *= shrink[t][i / 2];
        }
#pragma unroll
        for (int k = 0; k < TILE / 16; ++k) {
            unsigned a[TERMS][TILES][4];
#pragma unroll
            for (int term = 0; term < TERMS; ++term)
#pragma unroll
                for (int t = 0; t < TILES; ++t)
                    ldmatrix_4(a[term][t], weights_at + term * ROWS * 128 + panel_chunk<ROWS>(16 * t + lane % 16, 2 * k + lane / 16));
#pragma unroll
            for (int j = 0; j < T::WARP_TILES; ++j) {
                const int column_tile = warp * T::WARP_TILES + j;
                if (T::COLUMN_TILES % (LATENT_WARPS * T::WARP_TILES) != 0 && column_tile >= T::COLUMN_TILES) break;
                unsigned b[4];   // tokens 16k .. 16k + 16 of twice eight columns
                ldmatrix_4_transposed(b, keys + panel_chunk<TILE>(16 * k + lane % 16, 2 * column_tile + lane / 16));
#pragma unroll
                for (int term = 0; term < TERMS; ++term)
#pragma unroll
                    for (int t = 0; t < TILES; ++t)
#pragma unroll
                        for (int n = 0; n < 2; ++n) mma_16<Kv>(sums[t][j][n], a[term][t], b[2 * n], b[2 * n + 1]);
            }
        }
        if (++stage == C::STAGES) stage = 0;
    }

    // What the part leaves.
#pragma unroll
    for (int i = 0; i < 2; ++i) {
        sum[i] += __shfl_xor_sync(0xffffffffu, sum[i], 1);
        sum[i] += __shfl_xor_sync(0xffffffffu, sum[i], 2);
        if (c == 0 && scores_tokens) shared.sum[token_warp][16 * head_tile + g + 8 * i] = sum[i];
    }
    const int first_column = warp * T::WARP_TILES * 16;
#pragma unroll
    for (int t = 0; t < TILES; ++t)
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            float largest = 0.0f;
#pragma unroll
            for (int j = 0; j < T::WARP_TILES; ++j)
#pragma unroll
                for (int n = 0; n < 2; ++n)
                    if (first_column + 16 * j + 8 * n < C::LATENT) largest = fmaxf(largest, fmaxf(fabsf(sums[t][j][n][2 * i]), fabsf(sums[t][j][n][2 * i + 1])));
            largest = fmaxf(largest, __shfl_xor_sync(0xffffffffu, largest, 1));
            largest = fmaxf(largest, __shfl_xor_sync(0xffffffffu, largest, 2));
            if (c == 0) shared.largest[warp][16 * t + g + 8 * i] = largest;
        }
    __syncthreads();
    float* const left = partials + (static_cast<size_t>(row) * C::HEADS + group * 32) * S::PARTIAL;
#pragma unroll
    for (int t = 0; t < TILES; ++t)
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            const int head = 16 * t + g + 8 * i;
            if (group * 32 + head >= C::HEADS) continue;
            float largest = 0.0f, total = 0.0f;
#pragma unroll
            for (int w = 0; w < LATENT_WARPS; ++w) largest = fmaxf(largest, shared.largest[w][head]);
#pragma unroll
            for (int w = 0; w < T::TOKEN_WARPS; ++w) total += shared.sum[w][head];
            const PartScale part(largest, total);
            float* const to = left + static_cast<size_t>(head) * S::PARTIAL + split * S::PART_FLOATS;
#pragma unroll
            for (int j = 0; j < T::WARP_TILES; ++j) {
                const int tile = warp * T::WARP_TILES + j;   // half of each of four chunks
                const float(&of)[2][4] = sums[t][j];
                if (tile < T::COLUMN_TILES)
                    reinterpret_cast<uint2*>(to)[(tile / 2 * 4 + c) * 2 + tile % 2] =
                        make_uint2(pack_f16(of[0][2 * i] * part.scale, of[0][2 * i + 1] * part.scale), pack_f16(of[1][2 * i] * part.scale, of[1][2 * i + 1] * part.scale));
            }
            if (warp == 0 && c == 0)
                *reinterpret_cast<float2*>(left + static_cast<size_t>(head) * S::PARTIAL + C::SPLITS * S::PART_FLOATS + 2 * split) = part.ends(maximum[t][i], total);
        }
}

}  // namespace monomorph
