// What the experts' down product is (its Config) and the arithmetic of its shape: pieces of the ring's stages, staged rows, shared memory.
//
// struct Config {
//     static constexpr Compute COMPUTE;  static constexpr Rounding ROUNDING;   // as in stream_shape.cuh
//     static constexpr Format FORMAT;  static constexpr ScaleForm SCALES;      // of the experts: packed rows, one matrix behind the other
//     static constexpr int EXPERTS, ACTIVE, WIDTH;
//     static constexpr int ROUTED;                                             // optional, as in experts_stream_up.cuh
//     static constexpr bool REPLACES;                                          // optional: the sum takes the place of what there was
//     static constexpr Format SHARED_FORMAT;  static constexpr ScaleForm SHARED_SCALES;
//     static constexpr int SHARED_WIDTH;                                       // 0: no shared expert
//     static constexpr int OUTPUTS;                                            // hidden size
//     static constexpr int ROWS;                                               // rows of the step's bucket: 1, 2, 4, 8 (EXACT: 1..8)
//     static constexpr Limit LIMIT;                                            // NONE: all ROWS rows are in use; TOKENS: the step's count of them
//     static constexpr int STAGES, STAGE_BYTES, CONSUMER_WARPS, BLOCKS;  static constexpr bool EVICT_FIRST;
// };
#pragma once

#include "experts/experts_few.cuh"

namespace monomorph {

// One of the two products: the experts', or the shared expert's. TILES: of its output that a block keeps together.
template <class C, Format F, ScaleForm SCALES, int WIDTH_, int MOST_TILES, bool OF_EXPERTS>
struct DownProduct {
    using U = Unit<F>;
    static constexpr Format FORMAT = F;
    static constexpr bool EXACT = C::COMPUTE == Compute::EXACT;
    static constexpr bool BLOCK_SCALES = SCALES == ScaleForm::BLOCK128, ROW_SCALES = SCALES != ScaleForm::NONE;
    // Floats held in f16 have a scale a row, which comes with the codes; the other scales of rows are one an expert.
    static constexpr bool SCALED_ROWS = OF_EXPERTS && F == Format::F16 && ROW_SCALES;
    static constexpr int WIDTH = WIDTH_, UNITS = ceil_div(WIDTH, U::COLUMNS), CAPACITY = C::STAGE_BYTES / UNIT_BYTES;
    static constexpr int TILES = most(1, least(MOST_TILES, CAPACITY / most(UNITS, 1)));   // of a piece
    static constexpr int SCALE_COLUMNS = ceil_div(WIDTH, 128);

    // A stage holds a tile's units of some tiles (a piece) for as many experts as fit.
    static constexpr int PIECE_UNITS = TILES * UNITS;
    static constexpr int PIECE_SCALES = BLOCK_SCALES ? round_up(TILES * SCALE_COLUMNS * 4 + 16, 16) : SCALED_ROWS ? TILES * TILE_ROWS * 4
                                                     : PIECE_UNITS * U::SCALE_BYTES;
    static constexpr int PIECES = most(1, least(C::ACTIVE, CAPACITY / most(PIECE_UNITS, 1)));
    static constexpr int stage_bytes(int pieces) { return round_up(pieces * (PIECE_UNITS * UNIT_BYTES + PIECE_SCALES), 128); }

    // Warps split the units of a tile K_WARPS ways and the tiles TILE_WARPS ways, least work for the busiest first, then fewest sums.
    // Exact: a warp has whole sums, which are rounded before they are weighted.
    static constexpr int k_warps() {
        int best = C::CONSUMER_WARPS, cost = ceil_div(UNITS, best) * TILES;
        for (int k = best / 2; k >= 1; k /= 2) {
            const int c = ceil_div(UNITS, k) * ceil_div(TILES, C::CONSUMER_WARPS / k);
            if (c <= cost) { best = k; cost = c; }
        }
        return best;
    }
    static constexpr int K_WARPS = EXACT ? 1 : k_warps(), TILE_WARPS = C::CONSUMER_WARPS / K_WARPS;
    static constexpr int WARP_TILES = ceil_div(TILES, TILE_WARPS);

    // A staged row: as stream_shape.cuh says of ROWS == 1, and half a line more, so that neighbouring rows stand in other banks.
    static constexpr int CHUNK = EXACT ? 4 : 8, CHUNKS = U::ELEMENTS / CHUNK, PAIR = EXACT ? 1 : least(2, CHUNKS), CHUNK_BYTES = 64;
    static constexpr int ROW_BYTES = UNITS * CHUNKS * CHUNK_BYTES + 64;

    static_assert(FEW<C> || WIDTH == 0 || UNITS <= CAPACITY, "a stage holds a tile");
    static_assert(WIDTH == 0 || F != Format::FP8_E4M3 || SCALES != ScaleForm::NONE, "fp8 has scales of rows or blocks");
    static_assert(EXACT || (F != Format::F32 && F != Format::BF16 && !U::BLOCKED), "f32, bf16, q8_0 and q4_1 weights are computed exactly");
    static_assert(!(EXACT && BLOCK_SCALES), "block scales are applied in f16 compute only");
    static_assert(C::ROUNDING == Rounding::NONE || (EXACT && WIDTH % 32 == 0), "int8 blocks are of 32 columns");
};

template <class C>
struct DownShape {
    static constexpr bool EXACT = C::COMPUTE == Compute::EXACT, COMMON = C::SHARED_WIDTH > 0;
    using Sum = typename SumOf<C::COMPUTE>::Type;
    using Who = Choices<C::EXPERTS, C::ACTIVE, C::ROWS, SHARED_OUT<C>>;
    static constexpr int WARPS = C::CONSUMER_WARPS, CONSUMERS = 32 * WARPS, THREADS = CONSUMERS + 32;
    static constexpr int GROUPS = EXACT ? 1 : ceil_div(C::ROWS, 4);

    static constexpr int TILES = ceil_div(C::OUTPUTS, TILE_ROWS), BLOCK_TILES = ceil_div(TILES, C::BLOCKS);   // in all; of a block at most
    using Experts = DownProduct<C, C::FORMAT, C::SCALES, C::WIDTH, least(BLOCK_TILES, 8), true>;
    using Shared = DownProduct<C, C::SHARED_FORMAT, C::SHARED_SCALES, C::SHARED_WIDTH, BLOCK_TILES, false>;
    static constexpr int GROUP_TILES = FEW<C> ? BLOCK_TILES : Experts::TILES;   // tiles whose experts are met together: the list is gone through once a group
    // Sums that an output is of: warps' or, FEW, slots'; and of the shared expert.
    static constexpr int SUMS = FEW<C> ? C::ACTIVE : Experts::K_WARPS, SHARED_SUMS = FEW<C> ? WARPS : Shared::K_WARPS;
    // FEW: how a warp's tile comes through its ring, and the shared expert's tiles, which stand by themselves.
    using P = Pieces<C::FORMAT, C::SCALES, Experts::SCALED_ROWS, Experts::UNITS, Experts::CAPACITY>;
    using Ring = WarpRing<P, C::STAGES, C::EVICT_FIRST>;
    static constexpr int COMMON_CODES = BLOCK_TILES * Shared::UNITS * UNIT_BYTES;
    static constexpr int COMMON_BYTES = !COMMON ? 0 : COMMON_CODES + (Shared::BLOCK_SCALES ? round_up(BLOCK_TILES * Shared::SCALE_COLUMNS * 4 + 12, 16)
                                                                                           : BLOCK_TILES * Shared::UNITS * Shared::U::SCALE_BYTES);

    static constexpr int STAGE = most(Experts::stage_bytes(Experts::PIECES), COMMON ? Shared::stage_bytes(1) : 0);
    static constexpr int SLOTS = C::ROWS * C::ACTIVE;

    // ---- Shared memory, in this order ----
    static constexpr int COMMON_AT = WARPS * C::STAGES * P::STAGE;                         // FEW, behind the warps' rings
    static constexpr int X_AT = FEW<C> ? round_up(COMMON_AT + COMMON_BYTES, 128) : C::STAGES * STAGE;   // rows of slots
    static constexpr int SHARED_X_AT = X_AT + SLOTS * Experts::ROW_BYTES;
    static constexpr int TILE_PARTIALS = SUMS * C::ROWS * TILE_ROWS;                       // [sum][row][8 outputs]
    static constexpr int SHARED_TILE_PARTIALS = SHARED_SUMS * C::ROWS * TILE_ROWS;
    static constexpr int PARTIALS_AT = round_up(SHARED_X_AT + (COMMON ? C::ROWS * Shared::ROW_BYTES : 0), 16);   // two groups, used in turn
    static constexpr int SHARED_PARTIALS_AT = PARTIALS_AT + (FEW<C> ? 1 : 2) * GROUP_TILES * TILE_PARTIALS * static_cast<int>(sizeof(Sum));
    static constexpr int FACTORS_AT = SHARED_PARTIALS_AT + (COMMON ? BLOCK_TILES * SHARED_TILE_PARTIALS * static_cast<int>(sizeof(Sum)) : 0);
    static constexpr int UNSCALES_AT = FACTORS_AT + 4 * SLOTS;                             // f32 [slots], then [rows] of the shared expert's
    static constexpr int WEIGHTS_AT = UNSCALES_AT + 4 * (SLOTS + C::ROWS);                 // exact: the slots' weights
    static constexpr int WHO_AT = round_up(WEIGHTS_AT + (EXACT ? 4 * SLOTS : 0), 16);
    static constexpr int BARRIERS_AT = WHO_AT + round_up(static_cast<int>(sizeof(Who)), 16);   // full[STAGES], empty[STAGES]
    static constexpr int SHARED = BARRIERS_AT + (FEW<C> ? 8 * WARPS * Ring::BARRIERS + 8 : 16 * C::STAGES);
    static constexpr int shared_bytes() { return SHARED; }
    // For __launch_bounds__: what more than two rows need leaves the next kernel's block no registers.
    static constexpr int RESIDENT = WARPS <= 8 && C::ROWS <= 2 && SHARED <= 114 * 1024 ? 2 : 1;

    __host__ __device__ static constexpr int first_tile(int block) { return static_cast<int>(static_cast<long long>(TILES) * block / C::BLOCKS); }

    static_assert(EXACT || C::ROWS == 1 || C::ROWS == 2 || C::ROWS == 4 || C::ROWS == 8, "16-bit products: 1, 2, 4 or 8 rows");
    static_assert(C::ROWS <= 8, "at most 8 rows");
    static_assert(WARPS >= 4 && WARPS <= 16 && (WARPS & (WARPS - 1)) == 0, "4, 8 or 16 consumer warps");
};

}  // namespace monomorph
