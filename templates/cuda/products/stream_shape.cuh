// What a stream product is (its Config) and the arithmetic of its shape: tiles of a block, stages of the ring, shared memory.
//
// struct Config {
//     static constexpr Format FORMAT;                 // of the packed weights
//     static constexpr Compute COMPUTE;               // F16: tensor-core products of f16, f32 sums; EXACT: f64 of exactly decoded f32
//     static constexpr Rounding ROUNDING;             // of activations, EXACT only: NONE or INT8_BLOCK32
//     static constexpr int OUTPUTS;                   // real output columns N (GATED: features, half the packed rows)
//     static constexpr int INPUTS;                    // real K
//     static constexpr int ROWS;                      // activation rows a block computes: 1, 2, 4, 8 (F16), 1..8 (EXACT); grid.y covers more
//     static constexpr Norm NORM;                     // of x: NONE, PLAIN (w), ONE_PLUS (1 + w); weights f32 [K]
//     static constexpr float EPS;
//     static constexpr Epilogue EPILOGUE;             // STORE, ADD (to out), GATED (activation(gate) * up), ACTIVATED, SUM (over ranks, added to out)
//     static constexpr Activation ACTIVATION;         // of GATED and ACTIVATED
//     static constexpr bool BIAS;                     // bias f32 [N]; GATED: up_bias too
//     static constexpr ScaleForm SCALES;              // F16: ROWS, fp8 also BLOCK128; EXACT: nvfp4 and fp8 ROWS, others NONE
//     static constexpr Limit LIMIT;                   // NONE: all ROWS rows exist; else rows beyond the step's count are neither read nor stored
//     static constexpr int STAGES, STAGE_BYTES;       // of the ring of weight codes; STAGE_BYTES a multiple of 512 * CONSUMER_WARPS
//     static constexpr int CONSUMER_WARPS;            // 4..16
//     static constexpr int BLOCKS, MULTIPROCESSORS;   // grid.x, and of the card: adjacent ranges of tiles go to blocks i, i + MULTIPROCESSORS, ...
//     static constexpr bool EVICT_FIRST;              // weights leave the second-level cache first
//     static constexpr int LOOKAHEAD;                 // bytes of codes a block may ask into the second-level cache beyond its ring while it waits
//     static constexpr int PACE;                      // stages under way at a time while the ring is filled first (1..STAGES)
//     static constexpr int SPLIT;                     // optional: of eight rows in pairs of tiles (0: one by one), the blocks of a cluster, each with a share of K
// };
#pragma once

#include "core/formats.cuh"

namespace monomorph {

enum class Compute { F16, EXACT };
enum class Rounding { NONE, INT8_BLOCK32 };
enum class Norm { NONE, PLAIN, ONE_PLUS };
enum class Epilogue { STORE, ADD, GATED, SUM, ACTIVATED };
enum class Activation { SILU, GELU, GELU_TANH, RELU, RELU2 };
enum class Limit { NONE, TOKENS, OUTPUTS };

__host__ __device__ constexpr int ceil_div(int a, int b) { return (a + b - 1) / b; }
__host__ __device__ constexpr int round_up(int a, int b) { return ceil_div(a, b) * b; }
__host__ __device__ constexpr int least(int a, int b) { return a < b ? a : b; }
__host__ __device__ constexpr int most(int a, int b) { return a > b ? a : b; }

template <Compute>
struct SumOf { using Type = float; };
template <>
struct SumOf<Compute::EXACT> { using Type = double; };

template <class C, class = void>
constexpr int SPLIT_OF = 0;
template <class C>
constexpr int SPLIT_OF<C, decltype(void(C::SPLIT))> = C::SPLIT;

template <class C>
struct StreamShape {
    using U = Unit<C::FORMAT>;
    static constexpr bool EXACT = C::COMPUTE == Compute::EXACT;
    static constexpr bool GATED = C::EPILOGUE == Epilogue::GATED;
    static constexpr bool BLOCK_SCALES = C::SCALES == ScaleForm::BLOCK128;
    static constexpr bool ROW_SCALES = C::SCALES != ScaleForm::NONE;

    static constexpr int WARPS = C::CONSUMER_WARPS, CONSUMERS = 32 * WARPS;
    static constexpr int THREADS = CONSUMERS + 32;   // one more warp, whose first thread feeds the ring

    // ---- The work: granules (a tile, a gate and up pair, or of eight rows any pair) in contiguous ranges, one a block or cluster ----
    static constexpr int OUTPUT_TILES = ceil_div(C::OUTPUTS, TILE_ROWS), OUTPUT_PARTS = GATED ? 2 : 1;
    static constexpr bool PAIRED = SPLIT_OF<C> > 0 && !EXACT && C::ROWS == 8 && (GATED || OUTPUT_TILES % 2 == 0);   // stream_pairs.cuh
    static constexpr int SPLIT = PAIRED ? SPLIT_OF<C> : 1;
    static constexpr int TILE_UNITS = ceil_div(C::INPUTS, U::COLUMNS), UNITS = ceil_div(TILE_UNITS, SPLIT);   // of a tile, and of a block's share
    static constexpr int GRANULE = PAIRED ? 2 : OUTPUT_PARTS;
    static constexpr int GRANULES = OUTPUT_TILES * OUTPUT_PARTS / GRANULE;
    static constexpr int RANGES = C::BLOCKS / SPLIT;
    static constexpr int BLOCK_TILES = ceil_div(GRANULES, RANGES) * GRANULE;   // at most

    // Blocks i and i + MULTIPROCESSORS usually share a multiprocessor: adjacent ranges there differ in the remainder's favour.
    __host__ __device__ static constexpr int range_of(int block) {
        constexpr int SHARING = SPLIT == 1 && C::BLOCKS % C::MULTIPROCESSORS == 0 ? C::BLOCKS / C::MULTIPROCESSORS : 1;
        constexpr int ACROSS = RANGES / SHARING;
        return block % ACROSS * SHARING + block / ACROSS;
    }
    __device__ static int first_tile(int range) { return static_cast<int>(static_cast<long long>(GRANULES) * range / RANGES) * GRANULE; }

    // ---- Stages: whole tiles where one fits, parts of one tile where not; PAIRED: the same part of both tiles of a pair ----
    static constexpr int CAPACITY = C::STAGE_BYTES / UNIT_BYTES;   // units
    static constexpr bool WHOLE = !PAIRED && UNITS <= CAPACITY;
    static constexpr int STAGE_TILES = PAIRED ? 2 : !WHOLE ? 1 : most(GRANULE == 2 && CAPACITY / UNITS > 1 ? 2 : 1,
        least(CAPACITY / UNITS, BLOCK_TILES) / GRANULE * GRANULE);

    // Of eight rows a warp has both units of a block of 128 columns, so that their sums are scaled once: SCALED adjacent units. Its i-th of K_WARPS:
    static constexpr int SCALED = BLOCK_SCALES && C::ROWS > 4 ? 2 : 1;
    __host__ __device__ static constexpr int unit_of(int k_warp, int i, int k_warps) { return (i / SCALED * k_warps + k_warp) * SCALED + i % SCALED; }
    __host__ __device__ static constexpr int units_each(int units, int k_warps) { return ceil_div(ceil_div(units, SCALED), k_warps) * SCALED; }

    // Warps split the units of a tile K_WARPS ways (unit u goes to u / SCALED % K_WARPS) and the tiles of a stage TILE_WARPS ways: the
    // division with the least work for the busiest warp. It depends on the shape alone, so the order of every sum is fixed.
    static constexpr int k_warps() {
        int best = WARPS, cost = ceil_div(UNITS, WARPS) * STAGE_TILES;
        for (int k = WARPS / 2; k >= 1; k /= 2) {
            const int c = ceil_div(UNITS, k) * ceil_div(STAGE_TILES, WARPS / k);
            if (WARPS % k == 0 && c < cost) { best = k; cost = c; }
        }
        return best;
    }
    static constexpr int K_WARPS = WHOLE ? k_warps() : WARPS, TILE_WARPS = WARPS / K_WARPS;
    static constexpr int PART_UNITS = PAIRED ? round_up(ceil_div(UNITS, ceil_div(UNITS, most(1, CAPACITY / 2 / SCALED) * SCALED)), SCALED)
                                    : WHOLE ? UNITS : round_up(ceil_div(UNITS, ceil_div(UNITS, CAPACITY)), WARPS);
    static constexpr int PARTS = ceil_div(UNITS, PART_UNITS);
    static constexpr int STAGE_UNITS = WHOLE ? STAGE_TILES * UNITS : PAIRED ? 2 * PART_UNITS : PART_UNITS;
    static constexpr int SCALE_COLUMNS = ceil_div(C::INPUTS, 128);   // BLOCK128: f32 of a tile
    static constexpr int STAGE_CODES = STAGE_UNITS * UNIT_BYTES;
    // BLOCK128: a stage's scales begin anywhere, a copy at a multiple of 16 bytes. PAIRED: of each tile of the pair.
    static constexpr int TILE_SCALES = BLOCK_SCALES ? round_up((WHOLE ? STAGE_TILES * SCALE_COLUMNS : PART_UNITS / 2) * 4 + 32, PAIRED ? 16 : 128)
                                                    : round_up(STAGE_UNITS / (PAIRED ? 2 : 1) * U::SCALE_BYTES, PAIRED ? 16 : 128);
    static constexpr int STAGE_SCALES = round_up(TILE_SCALES * (PAIRED ? 2 : 1), 128);
    static constexpr int STAGE = STAGE_CODES + STAGE_SCALES;

    // ---- Groups: tiles whose sums are reduced and stored together, one barrier a group ----
    using Sum = typename SumOf<C::COMPUTE>::Type;
    static constexpr int TILE_PARTIALS = K_WARPS * C::ROWS * TILE_ROWS;   // sums of one tile, all K warps
    static constexpr int STEP_TILES = STAGE_TILES % GRANULE == 0 ? STAGE_TILES : GRANULE;
    static constexpr int GROUP_TILES = least(round_up(BLOCK_TILES, STEP_TILES),
        most(1, (PAIRED ? 16384 : 2048) / (TILE_PARTIALS * static_cast<int>(sizeof(Sum)) * STEP_TILES)) * STEP_TILES);
    static constexpr int GROUP_OUTPUTS = GROUP_TILES / OUTPUT_PARTS * TILE_ROWS * C::ROWS;

    // ---- Activations in shared memory, in the order in which lanes meet them ----
    // EXACT: [unit][4 elements][row][c][4 f32]. F16: [unit][PAIR chunks of 32 columns][half][row][c][PAIR x 8 bytes]: see stream_stage.cuh.
    static constexpr int CHUNK = EXACT ? 4 : 8;          // elements of a lane
    static constexpr int CHUNKS = U::ELEMENTS / CHUNK;   // of a unit
    static constexpr int PAIR = EXACT ? 1 : least(2, CHUNKS);
    static constexpr int CHUNK_BYTES = C::ROWS * 64;
    static constexpr int GROUPS = EXACT ? 1 : ceil_div(C::ROWS, 4);   // of rows that one product of tensor cores takes
    static constexpr int GROUP_BYTES = 128 * PAIR;                    // F16: from a group's rows to the next one's
    static constexpr int X_BYTES = UNITS * CHUNKS * CHUNK_BYTES;
    // Of eight rows a warp reads x once and holds it in registers, where they have room: HELD_UNITS, of which the i-th of a part is any warp's, or none's.
    static constexpr int PART_EACH = units_each(PART_UNITS, K_WARPS);
    static constexpr int HELD_UNITS = PARTS * PART_EACH;
    __host__ __device__ static constexpr bool held(int part, int i) { return part * PART_UNITS + unit_of(0, i, K_WARPS) < UNITS; }
    static constexpr int held_registers() {
        int units = 0;
        for (int part = 0; part < PARTS; part++)
            for (int i = 0; i < PART_EACH; i++) units += held(part, i);
        return units * CHUNKS * 2 * GROUPS;
    }
    static constexpr bool HELD = !EXACT && !PAIRED && C::ROWS > 4 && WARPS <= 8 && held_registers() <= 96;

    // ---- Shared-memory map, in this order ----
    static constexpr int X_AT = C::STAGES * STAGE;
    static constexpr int PARTIALS_AT = X_AT + X_BYTES;                                     // two groups, used in turn
    static constexpr int SQUARES_AT = PARTIALS_AT + 2 * GROUP_TILES * TILE_PARTIALS * static_cast<int>(sizeof(Sum));   // [rows][warps]
    static constexpr int SQUARES = C::ROWS * WARPS * 8;   // f64, or f32 and the largest magnitudes
    static constexpr int SUMS_AT = SQUARES_AT + SQUARES;   // SPLIT: of the block's share of K, [tile of the range][row][8]
    static constexpr int SUMS = SPLIT > 1 ? BLOCK_TILES * C::ROWS * TILE_ROWS * 4 : 0;
    static constexpr int BARRIERS_AT = SUMS_AT + SUMS;   // full[STAGES], empty[STAGES]
    static constexpr int SHARED = BARRIERS_AT + 16 * C::STAGES + 16;   // and the barrier at which the wait is over
    static constexpr int shared_bytes() { return SHARED; }
    // For __launch_bounds__: registers must let the next kernel's block stand beside this one's.
    static constexpr int RESIDENT = WARPS <= 8 && C::ROWS <= 4 && SHARED <= 114 * 1024 ? 2 : 1;

    static_assert(C::ROWS >= 1 && C::ROWS <= 8, "a block computes 1 to 8 rows");
    static_assert(EXACT || (C::ROWS & (C::ROWS - 1)) == 0, "16-bit products: 1, 2, 4 or 8 rows");
    static_assert(WARPS >= 4 && WARPS <= 16 && (WARPS & (WARPS - 1)) == 0, "4, 8 or 16 consumer warps");
    static_assert(C::STAGE_BYTES % (UNIT_BYTES * WARPS) == 0, "a stage gives every consumer warp whole units");
    static_assert(SPLIT == 1 || (PAIRED && C::NORM == Norm::NONE && C::BLOCKS % SPLIT == 0 && C::INPUTS % (SPLIT * SCALED * U::COLUMNS) == 0), "shares of K are whole and not normed");
    static_assert(C::SCALES == ScaleForm::NONE || C::FORMAT == Format::FP8_E4M3 || C::FORMAT == Format::NVFP4 || C::FORMAT == Format::F16,
                  "scales are of f16, fp8 and nvfp4");
    static_assert(C::FORMAT != Format::FP8_E4M3 || C::SCALES != ScaleForm::NONE, "fp8 has scales of rows or blocks");
    static_assert(C::FORMAT != Format::NVFP4 || C::SCALES == ScaleForm::ROWS, "nvfp4 has row scales");
    static_assert(EXACT || C::ROUNDING == Rounding::NONE, "f16 compute rounds activations to f16");
    static_assert(EXACT || (C::FORMAT != Format::F32 && C::FORMAT != Format::BF16 && !U::BLOCKED), "f32, bf16, q8_0 and q4_1 weights are computed exactly");
    static_assert(!(EXACT && BLOCK_SCALES), "block scales are applied in f16 compute only");
    static_assert(C::ROUNDING == Rounding::NONE || C::INPUTS % 32 == 0, "int8 blocks are of 32 columns");
};

}  // namespace monomorph
