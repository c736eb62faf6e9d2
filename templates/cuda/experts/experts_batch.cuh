// Mixtures of experts for more than a few tokens: what sorting, the grouped products and the sum share.
//
// A *pair* is a token and one of its ACTIVE slots: pair = token * ACTIVE + slot. Sorting (experts_sort.cuh) gives every pair a *row*: the
// pairs of an expert have adjacent rows in the order of their tokens, from a multiple of eight on (staged rows are swizzled by row & 7, and
// a piece that starts at one is a plain copy). A *work tile* is up to TOKENS adjacent rows of one expert. Then
//   experts_gemm*.cuh, GATED:  inner[row] = act(gate_e x[token]) * (up_e x[token])   rows of x gathered by token, inner f32
//          or, ACTIVATED:      inner[row] = act(up_e x[token])
//   experts_stage.cuh:         inner, staged
//   experts_gemm*.cuh, STORE:  product[row] = down_e inner[row]                      f32, or f16 (NarrowProducts) [rows][hidden]
//   experts_batch_combine.cuh: out[token] += sum over slots, in their order, of weight * product[row] (+ the shared expert's part)
// All of an expert's rows go through one stream of its weights, tile by tile; nothing is added by two blocks, so there are no atomics on
// floats, and a row's sums run over K in one order whatever stands in the tile's other rows.
//
// The expert e of a packed matrix: an experts' weight is EXPERTS packed matrices (docs/adr/0009) one behind the other, plane by plane,
// each of whole tiles.
//
// Config, besides that of gemm.cuh (OUTPUTS and INPUTS are one expert's, TOKENS is the height of a work tile, MULTICAST and SPLIT are 1):
//   EXPERTS, ACTIVE   of the mixture
//   ROUTED            optional: what a router chooses from, where EXPERTS are the rank's (route_choose.cuh). Ids count from the rank's first
//   STEP_ROWS         token rows of a step, at most
//   CAPACITY          ExpertLists::ROWS: rows of inner, and its stride where it is staged
//   GATHER            x holds tokens, and a row is its pair's token (gate and up); else x holds rows (down)
//   X_ROWS            the stride of x: the staged capacity of the tokens, or CAPACITY
//   NARROW            products are stored as NarrowProducts, not f32 (STORE)
#pragma once

#include "core/async.cuh"
#include "products/gemm.cuh"

namespace monomorph {

// What sorting leaves behind, one buffer: offsets in bytes. `TILE`: TOKENS of the products. The buffer is zeroed once, before the first
// launch.
template <int EXPERTS_, int ACTIVE_, int STEP_ROWS_, int TILE_>
struct ExpertLists {
    static constexpr int EXPERTS = EXPERTS_, ACTIVE = ACTIVE_, STEP_ROWS = STEP_ROWS_, TILE = TILE_;
    static_assert(ACTIVE >= 1 && ACTIVE <= 32, "one lane a slot");
    static_assert(TILE % 8 == 0 && TILE <= 128, "a tile's count is seven bits and one value");
    static constexpr int PAIRS = STEP_ROWS * ACTIVE;
    static constexpr int TOUCHED = least(EXPERTS, PAIRS);                  // experts that can have pairs
    static constexpr int ROWS = round_up(PAIRS + 7 * TOUCHED, 8);          // every expert's part rounded up to eight
    static constexpr int TILES = TOUCHED + PAIRS / TILE;                   // sum of ceil(n_e / TILE) <= touched + (pairs - touched) / TILE
    // Pairs are counted by chunks of tokens: all of them by one block, or CHUNK a block.
    static constexpr bool ONE_CHUNK = STEP_ROWS <= 128;
    static constexpr int CHUNK = ONE_CHUNK ? round_up(STEP_ROWS, 32) : 64;
    static constexpr int CHUNKS = ceil_div(STEP_ROWS, CHUNK);

    static constexpr int COUNT_AT = 0;                                     // int: work tiles
    static constexpr int ARRIVED_AT = 4;                                   // int: blocks of the sort that are done; zero between launches
    static constexpr int TILES_AT = 16;                                    // int2 [TILES]: first row, expert * 256 + rows
    static constexpr int PAIR_OF_ROW_AT = TILES_AT + 8 * TILES;            // int [ROWS]; undefined where no pair is
    static constexpr int ROW_OF_PAIR_AT = PAIR_OF_ROW_AT + 4 * ROWS;       // int [PAIRS]; -1 where another rank holds the expert
    static constexpr int WEIGHTS_AT = ROW_OF_PAIR_AT + 4 * PAIRS;          // f32 [PAIRS]
    static constexpr int EXPERTS_AT = WEIGHTS_AT + 4 * PAIRS;              // int [PAIRS]
    static constexpr int COUNTS_AT = EXPERTS_AT + 4 * PAIRS;               // int [CHUNKS][EXPERTS]: pairs; then the row of the first
    static constexpr int BYTES = COUNTS_AT + (ONE_CHUNK ? 0 : 4 * CHUNKS * EXPERTS);
};
template <class C>
using ListsOf = ExpertLists<C::EXPERTS, C::ACTIVE, C::STEP_ROWS, C::TOKENS>;

// Products in half the bytes: f16 [ROWS][WIDTH], each SPAN features of a row scaled by a power of two (staged.cuh, HalfScale), then f32 [ROWS][SCALES],
// what they are to be multiplied by.
template <int ROWS, int WIDTH>
struct NarrowProducts {
    static constexpr int SPAN = 64, SCALES = ceil_div(WIDTH, SPAN);
    static constexpr size_t SCALES_AT = size_t(2) * ROWS * WIDTH, BYTES = SCALES_AT + size_t(4) * ROWS * SCALES;
};

// Bytes of rows of pairs, WIDTH wide.
template <class C, int WIDTH>
constexpr size_t products_bytes() {
    constexpr int ROWS = ListsOf<C>::ROWS;
    return C::NARROW ? NarrowProducts<ROWS, WIDTH>::BYTES : size_t(4) * ROWS * WIDTH;
}

template <class C>
struct ExpertShape : GemmShape<C> {
    using S = GemmShape<C>;
    using Lists = ListsOf<C>;
    static_assert(S::CLUSTER == 1 && !C::BIAS, "experts have neither clusters nor biases");
    static_assert(C::CAPACITY == Lists::ROWS, "rows of pairs");
    static_assert(C::GATHER ? C::X_ROWS >= C::STEP_ROWS && C::X_ROWS % 8 == 0 : C::X_ROWS == C::CAPACITY, "the stride of x");
    static_assert(C::GATHER == (S::GATED || C::EPILOGUE == Epilogue::ACTIVATED), "gate and up read tokens, down reads rows");
    static_assert(C::EPILOGUE != Epilogue::ADD, "pairs are summed in the order of their slots");
    // Planes of one expert.
    static constexpr size_t CODE_BYTES = size_t(S::TILES) * S::UNITS * UNIT_BYTES;
    static constexpr size_t SCALE_BYTES = S::BLOCK_SCALED ? size_t(4) * S::TILES * ceil_div(C::INPUTS, 128)
                                                          : size_t(S::TILES) * S::UNITS * Unit<C::FORMAT>::SCALE_BYTES;
    static constexpr int SCALED_ROWS = S::TILES * 8;
};

// Blocks to launch: at most all work that there can be.
template <class C>
constexpr int expert_blocks(int multiprocessors) {
    const int work = ListsOf<C>::TILES * GemmShape<C>::ROW_BLOCKS, held = multiprocessors * C::RESIDENT;
    return work < held ? work : held;
}

// A block's pieces of work, in their order: block of rows r of work tile t is piece t * ROW_BLOCKS + r, and tiles of one expert are
// neighbours, so that those that read the same weights do so at about the same time. The next piece's tile is asked for one ahead.
template <class C, class S = GemmShape<C>>
struct ExpertPieces {
    using Lists = ListsOf<C>;
    const char* lists;
    int piece, pieces;
    int2 tile, next;

    // Behind the wait for the predecessors.
    __device__ __forceinline__ explicit ExpertPieces(const char* lists) : lists(lists), piece(blockIdx.x) {
        tile = load(piece);
        next = load(piece + gridDim.x);
        pieces = load_activation(reinterpret_cast<const int*>(lists + Lists::COUNT_AT)) * S::ROW_BLOCKS;
    }
    __device__ __forceinline__ int2 load(int piece) const {
        return load_activation(reinterpret_cast<const int2*>(lists + Lists::TILES_AT) + min(piece / S::ROW_BLOCKS, Lists::TILES - 1));
    }
    __device__ __forceinline__ bool exists() const { return piece < pieces; }
    __device__ __forceinline__ void advance() {
        piece += gridDim.x;
        tile = next;
        next = load(piece + gridDim.x);
    }
    __device__ __forceinline__ int row_block() const { return piece % S::ROW_BLOCKS; }
    __device__ __forceinline__ int first_row() const { return tile.x; }
    __device__ __forceinline__ int rows() const { return tile.y & 255; }
    __device__ __forceinline__ int expert() const { return tile.y >> 8; }
};

}  // namespace monomorph
