// What the kernels of attention over latents share: the constants they are instantiated with, the cache's
// addresses, rows of a step.
//
// Attention is absorbed: head h's query q times its key matrix K_h is multiplied by latents as they are
// cached, and what is summed of latents by its value matrix V_h. A step is three launches, in decode and in
// prefill: latent_queries (norm, rotary, cache write, q K_h), latent_decode or a kernel of warpgroups
// (scores, softmax, sums of latents), latent_values (splits added up, V_h).
//
// Bytes that a decode step must move, a layer: the cache, context * WIDTH * 2 (32,768 tokens of 320: 21.0 MB,
// 4.6 us at 4.54 TB/s; times 36 layers 755 MB, 166 us), and K_h and V_h of all heads, HEADS (KEY_DIM +
// VALUE_DIM) LATENT * 2 (32 heads of 64 + 128: 3.1 MB, 0.7 us).
//
// A kernel's Config is a struct with those of these `static constexpr` members that its declaration names
// (tests derive from LatentDefaults):
//   int HEADS, KEY_DIM, VALUE_DIM, LATENT, ROTATED   heads, and widths: of a head's key and value, of a latent, of the rotated key;
//                                                    multiples of 8, ROTATED of 2 with LATENT + ROTATED a multiple of 8
//   int BLOCK_TOKENS                                 tokens a block of the cache holds
//   using Kv                                         element of the cache: __nv_bfloat16 or __half, also what tensor cores multiply; or
//                                                    E4m3 or a format of groups (grouped.cuh), of latents alone, which are gathered
//                                                    as bf16 (latent_codes.cuh)
//   bool ROTARY_HALVES                               pairs are (i, i + ROTATED / 2), or (2i, 2i + 1)
//   HeadNorm NORM; float EPS                         norm of latents
//   float SCALE                                      multiplies scores
//   float GROWTH; int ORIGINAL                       queries are multiplied by 1 + GROWTH ln(1 + floor(position / ORIGINAL)); 0 = they are not
//   int ROWS                                         rows of the step's buffers
//   int ROW_TILES                                    tiles of 16 rows that a block of latent_queries or latent_values takes
//   int SPLITS, TILE, STAGES                         latent_decode's division of the context: parts, tokens of a tile, tiles on their way
//   int TERMS                                        16-bit terms of a query and of a softmax weight: 1, or 2 (16 bits of mantissa)
//   int TOKENS                                       rows of a sequence that a decode step has
//   bool CONTEXT_BEFORE_WAIT                         kernels read the step header, and latent_decode earlier steps' cache, before they wait (attention.cuh)
//
// Cache of a layer: [blocks][BLOCK_TOKENS][WIDTH] of Kv, a row the normed latent and behind it the rotated
// key. Of a Kv of codes a block is a plane of the latents' codes [BLOCK_TOKENS][LATENT], and one of the rotated
// keys as bf16 [BLOCK_TOKENS][ROTATED]; the latents' static scale stands in front of the first block as that of
// a head's keys (attention.cuh). Of a format of groups codes and scales are a unit of grouped.cuh, in the order of
// a head's values, which eight lanes read. Where it keeps latents rotated, queries are rotated too, and sums of
// latents back. Queries are of what tensor cores multiply (Operand), whatever the cache keeps.
// made: packed f16 (formats.cuh) of HEADS (KEY_DIM + VALUE_DIM) rows, K_h above V_h, of LATENT columns;
// row_scales multiplies its rows.
#pragma once

#include "attention/attention.cuh"
#include "core/formats.cuh"
#include "core/staged.cuh"

namespace monomorph {

struct LatentDefaults {
    static constexpr HeadNorm NORM = HeadNorm::Plain;
    static constexpr float EPS = 1e-6f, GROWTH = 0.0f;
    static constexpr int ORIGINAL = 1, ROWS = 16, ROW_TILES = 1, SPLITS = 1, TILE = 64, STAGES = 2, TERMS = 1, TOKENS = 1;
    static constexpr bool CONTEXT_BEFORE_WAIT = false, ROTARY_HALVES = false;
};

// What rotary.cuh turns and norms, and grouped.cuh keeps: the latent of a row, and a rotated part.
template <class C>
struct OfLatent {
    static constexpr int HEAD_DIM = C::LATENT, ROTARY_PAIRS = 0, KV_HEADS = 1, BLOCK_TOKENS = C::BLOCK_TOKENS;
    using Kv = typename C::Kv;
    static constexpr bool ROTARY_HALVES = C::ROTARY_HALVES;
};
template <class C>
struct OfRotated {
    static constexpr int HEAD_DIM = C::ROTATED, ROTARY_PAIRS = C::ROTATED / 2;
    static constexpr bool ROTARY_HALVES = C::ROTARY_HALVES;
};

// A token's latent in groups: eight lanes have a chunk of each panel of 64 columns.
template <class C>
using LatentGroups = KeptRow<OfLatent<C>, Side::Values>;

// Elements, of groups bytes, of a block's latents.
template <class C>
constexpr size_t latent_plane() {
    if constexpr (GROUPED<typename C::Kv>) return LatentGroups<C>::UNIT;
    else return static_cast<size_t>(C::BLOCK_TOKENS) * C::LATENT;
}

// Constants that follow from a Config.
template <class C>
struct LatentShape {
    static_assert(C::KEY_DIM % 8 == 0 && C::VALUE_DIM % 8 == 0 && C::LATENT % 8 == 0, "whole tiles of 8");
    static constexpr int WIDTH = C::LATENT + C::ROTATED;
    static_assert(C::ROTATED % 2 == 0 && WIDTH % 8 == 0, "rows of the cache are whole 16-byte chunks");
    static constexpr int MADE = C::KEY_DIM + C::VALUE_DIM;                // rows of a head in `made`
    static constexpr int UNITS = (C::LATENT + 31) / 32;                   // of a packed row of `made`
    static constexpr int Q_WIDTH = C::HEADS * (C::KEY_DIM + C::ROTATED);  // of a row of q: all heads' queries, then their rotated parts
    using Kv = typename C::Kv;
    static constexpr bool CODES = sizeof(Kv) == 1, GROUPS = GROUPED<Kv>, STORED_ROTATED = is_rotated<Kv, Side::Values>();
    using Operand = std::conditional_t<CODES, __nv_bfloat16, Kv>;
    // Elements of Kv of a block; of codes bytes, up to the rotated keys and of all.
    static constexpr size_t LATENTS = latent_plane<C>();
    static constexpr size_t BLOCK_STRIDE = CODES ? LATENTS + static_cast<size_t>(C::BLOCK_TOKENS) * C::ROTATED * 2 : static_cast<size_t>(C::BLOCK_TOKENS) * WIDTH;
    static_assert(!CODES || (C::LATENT % 16 == 0 && C::ROTATED % 8 == 0), "a thread reads 16 codes at once");
    static_assert(!GROUPS || C::BLOCK_TOKENS % 16 == 0, "planes begin where 16 bytes do");
    // Floats of a (row, head) of partials: SPLITS sums of latents (PartScale), then SPLITS pairs of (maximum,
    // sum of weights).
    static constexpr int PART_FLOATS = UNITS * 16, PARTIAL = (C::SPLITS * (PART_FLOATS + 2) + 3) / 4 * 4;
};

// Bytes of a row of `queries`: Operand [TERMS][HEADS][WIDTH], and of `partials` for ROWS rows.
template <class C>
constexpr size_t latent_query_row() { return sizeof(typename LatentShape<C>::Operand) * C::TERMS * C::HEADS * LatentShape<C>::WIDTH; }
template <class C>
constexpr size_t latent_partials_bytes() { return sizeof(float) * C::ROWS * C::HEADS * LatentShape<C>::PARTIAL; }

// Where a row of the step stands. Without token rows (decode) row i is the one token of sequence i.
struct LatentRow {
    int position, block_start;
    LatentRow() = default;
    __device__ __forceinline__ LatentRow(const Step* step, const TokenRow* tokens, int row) {
        const Sequence& sequence = step->sequence[tokens ? tokens[row].sequence : row];
        position = sequence.position + row - sequence.first_token;
        block_start = sequence.block_start;
    }
};

// The wait, with what `read` asks of the step header before it where it may: the header is some hundred
// nanoseconds away, twice where one number says where the next is.
template <class C, class Read>
__device__ __forceinline__ void wait_with_header(const Read& read) {
    if constexpr (C::CONTEXT_BEFORE_WAIT) read();
    wait_for_predecessors();
    if constexpr (!C::CONTEXT_BEFORE_WAIT) read();
}

// A part's sums of latents are kept as f16, as products leave them: the chunk 4k + c of 16 bytes has of the
// columns from 32k on 2c and 2c + 1 of each eight. They are multiplied by a power of two that brings the
// largest near 2^15; maximum and sum of weights are those of sums so multiplied.
struct PartScale {
    float scale;
    __device__ __forceinline__ PartScale(float largest, float total) : scale(HalfScale(fmaxf(largest, total * 0x1p-40f)).scale) {}
    __device__ __forceinline__ float2 ends(float maximum, float total) const {
        return make_float2(maximum - static_cast<float>(static_cast<int>(__float_as_uint(scale) >> 23) - 127), total * scale);
    }
};

// How a context is divided: every part but the last has `each` tiles, and `used` parts have any.
template <class C>
struct LatentSplits {
    int tiles, each, used;
    __device__ __forceinline__ explicit LatentSplits(int position) {
        tiles = position / C::TILE + 1;
        each = (tiles + C::SPLITS - 1) / C::SPLITS;
        used = (tiles + each - 1) / each;
    }
    // The first tile of a part, and so the end of the one before.
    __device__ __forceinline__ int begin(int split) const { return min(tiles, split * each); }
};

// Where a row's 16-byte chunk is in a tile in shared memory that ldmatrix reads without bank conflicts, in
// bytes: panels of 64 columns, rows of 128 bytes, the chunk j of a row at chunk j ^ (row & 7).
template <int ROWS>
__device__ __forceinline__ unsigned panel_chunk(int row, int chunk) {
    return chunk / 8 * (ROWS * 128) + row * 128 + ((chunk % 8) ^ (row % 8)) * 16;
}

}  // namespace monomorph
