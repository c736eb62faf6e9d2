// Grouped products of experts (experts_batch.cuh) for up to 128 tokens, by warps that each have a ring of weights of their own
// (experts_few.cuh): out[row] = epilogue(W_e x[row]) over work tiles of at most eight rows.
//
// Few rows of every expert make its weights the work, and they come from memory at its pace only if nothing but them is waited for. A piece of work, a
// *granule*, is two tiles of an expert's matrix (gate and up, or 16 rows) against a work tile's rows, over all of K, by one warp: the two tiles are
// the sixteen rows of mma.m16n8k16, the work tile's rows its eight columns, so that no weight is decoded twice, no sum meets another, and gate and up
// of one feature end in the same lane. Codes go from the ring to registers as they stand (formats.cuh: e(4j + 2i), e(4j + 2i + 1) of a lane are columns
// 16j + 8i + 2c, + 1).
//
// Who does what. Block b of B has the granules b/B .. (b + 1)/B of all, which are those of two or three work tiles; its warps take them in turns. One
// more warp reads the list, asks for the first piece of every ring, and brings the rows of the block's work tiles into shared memory, a work tile a slot:
// it waits until all warps have left the tile that stood there.
//
// A row's sum runs over K in one order, whatever stands in the tile's other rows; those that are not there are multiplied as they stand in
// shared memory, and their sums, columns of their own, are left.
//
// Config, besides what experts_batch.cuh lists (TOKENS is 8, and the epilogue GATED, ACTIVATED or STORE):
//   GATHER               x is staged, and a row is its pair's token (gate and up); else x is f32 [CAPACITY, INPUTS], and rounded here (down)
//   CONSUMER_WARPS       of a block
//   STAGES, STAGE_BYTES  of a warp's ring; codes of either tile that a stage holds at most
//   BLOCKS               grid.x
// Barriers: full[slot] (the copying warp), empty[slot] (one arrival a consumer warp), those of rings; named barrier 1, the list.
#pragma once

#include "core/mma.cuh"
#include "experts/experts_batch.cuh"
#include "experts/experts_few.cuh"
#include "products/stage.cuh"

namespace monomorph {

template <class C>
struct RingsShape {
    using U = Unit<C::FORMAT>;
    using Lists = ListsOf<C>;
    static constexpr bool GATED = C::EPILOGUE == Epilogue::GATED, BLOCK_SCALES = C::SCALES == ScaleForm::BLOCK128;
    static constexpr int WARPS = C::CONSUMER_WARPS, THREADS = 32 * (WARPS + 1);
    static constexpr int TILES = ceil_div(C::OUTPUTS, TILE_ROWS) * (GATED ? 2 : 1), GRANULES = ceil_div(TILES, 2);   // of an expert
    static constexpr int UNITS = ceil_div(C::INPUTS, U::COLUMNS), CHUNKS = U::ELEMENTS / 8;                          // of a tile; of a unit, 32 columns each
    static constexpr int SCALE_COLUMNS = ceil_div(C::INPUTS, 128);
    using P = Pieces<C::FORMAT, C::SCALES, false, UNITS, C::STAGE_BYTES / UNIT_BYTES>;   // of one tile
    static constexpr int TILE_BYTES = P::CODES + P::SCALE_BYTES;
    // What a ring holds.
    struct Both {
        static constexpr int STAGE = round_up(2 * TILE_BYTES, 128);
    };
    using Ring = WarpRing<Both, C::STAGES, true>;

    // A block's range of granules touches so many work tiles at most.
    static constexpr int MOST_GRANULES = ceil_div(Lists::TILES * GRANULES, C::BLOCKS), MOST_TILES = ceil_div(MOST_GRANULES, GRANULES) + 1;

    // ---- x: [panel][8 rows][64 columns of f16], swizzled (staged.cuh), then what sums of the rows are multiplied by ----
    static constexpr int PANELS = staged_panels(C::INPUTS), READ_PANELS = ceil_div(UNITS * U::COLUMNS, STAGED_PANEL);
    static constexpr int PANEL_BYTES = 8 * STAGED_ROW_BYTES, X_BYTES = READ_PANELS * PANEL_BYTES, SLOTS = 2;

    // ---- Shared memory, in this order ----
    static constexpr int X_AT = WARPS * C::STAGES * Both::STAGE;
    static constexpr int UNSCALES_AT = X_AT + SLOTS * X_BYTES;             // f32 [slot][8]
    static constexpr int LIST_AT = UNSCALES_AT + SLOTS * 32;               // int2 [MOST_TILES]: as in ExpertLists
    static constexpr int RANGE_AT = LIST_AT + round_up(8 * MOST_TILES, 16);   // int [4]: first and last granule, of all
    static constexpr int BARRIERS_AT = RANGE_AT + 16;                      // full[SLOTS], empty[SLOTS], rings
    static constexpr int SHARED = BARRIERS_AT + 8 * (2 * SLOTS + WARPS * Ring::BARRIERS);

    __host__ __device__ static constexpr int first_granule(int granules, int block) {
        return static_cast<int>(static_cast<long long>(granules) * block / C::BLOCKS);
    }
    static_assert(C::TOKENS == 8, "the columns of a product");
    static_assert(!C::NARROW && C::SCALES != ScaleForm::NONE, "f32 products of scaled rows");
    static_assert(C::CAPACITY == Lists::ROWS, "rows of pairs");
    static_assert(!C::GATHER || (C::X_ROWS >= C::STEP_ROWS && C::X_ROWS % 8 == 0), "the stride of x");
    static_assert(MOST_TILES <= 32, "a lane a tile");
    static_assert(WARPS <= 32, "a lane a ring");
};

// The pieces of a warp's granules in order.
template <class C>
struct RingsPlace {
    using S = RingsShape<C>;
    int granule, end, part = 0;   // of all

    __device__ __forceinline__ bool exists() const { return granule < end; }
    __device__ __forceinline__ void next_piece() {
        if (S::P::COUNT > 1 && ++part < S::P::COUNT) return;
        part = 0, granule += S::WARPS;
    }
};

// What the block's threads share.
template <class C>
struct RingsBlock {
    using S = RingsShape<C>;
    using P = typename S::P;
    using Ring = typename S::Ring;
    char* shared;
    const char* codes;
    const char* scales;
    int2* const list = reinterpret_cast<int2*>(shared + S::LIST_AT);
    int* const range = reinterpret_cast<int*>(shared + S::RANGE_AT);
    float* const unscales = reinterpret_cast<float*>(shared + S::UNSCALES_AT);
    Barrier* const full = reinterpret_cast<Barrier*>(shared + S::BARRIERS_AT);
    Barrier* const empty = full + S::SLOTS;
    Barrier* const rings = empty + S::SLOTS;

    __device__ __forceinline__ Ring ring_of(int warp) const { return Ring(shared + warp * C::STAGES * S::Both::STAGE, rings + warp * Ring::BARRIERS); }
    __device__ __forceinline__ int first_tile() const { return range[0] / S::GRANULES; }
    __device__ __forceinline__ int tiles() const { return range[1] > range[0] ? (range[1] - 1) / S::GRANULES - first_tile() + 1 : 0; }
    __device__ __forceinline__ char* x_of(int tile) const { return shared + S::X_AT + tile % S::SLOTS * S::X_BYTES; }   // tile: of the block

    // Asks for a piece: by one lane.
    __device__ __forceinline__ void fill(const Ring& ring, const RingsPlace<C>& place) const {
        const int expert = list[place.granule / S::GRANULES - first_tile()].y >> 8, first = place.part * P::PIECE;
        const int tile = place.granule % S::GRANULES * 2, units = least(P::PIECE, S::UNITS - first), tiles = least(2, S::TILES - tile);
        char* const at = ring.ring + ring.stage * S::Both::STAGE;
        const auto scales_from = [&](long long of_tile, int& bytes) {
            if constexpr (S::BLOCK_SCALES) {
                const long long from = (of_tile * S::SCALE_COLUMNS + first / 2) * 4;
                bytes = (static_cast<int>(from & 15) + ceil_div(units, 2) * 4 + 15) & ~15;
                return scales + (from & ~15ll);
            } else {
                bytes = units * P::U::SCALE_BYTES;
                return scales + (of_tile * S::UNITS + first) * P::U::SCALE_BYTES;
            }
        };
        const long long of_all = static_cast<long long>(expert) * S::TILES + tile;
        int bytes[2] = {}, all = tiles * units * UNIT_BYTES;
        const char* from[2];
#pragma unroll
        for (int t = 0; t < 2; t++) {
            if (t < tiles) from[t] = scales_from(of_all + t, bytes[t]);
            all += bytes[t];
        }
        barrier_expect(ring.full + ring.stage, all);
#pragma unroll
        for (int t = 0; t < 2; t++) {
            if (t >= tiles) continue;
            if (bytes[t] > 0) ring.copy(at + t * S::TILE_BYTES + P::CODES, from[t], bytes[t]);
            ring.copy(at + t * S::TILE_BYTES, codes + ((of_all + t) * S::UNITS + first) * UNIT_BYTES, units * UNIT_BYTES);
        }
    }
};

// The warp that brings x: rows of a work tile to their slot, eight lanes a row and so four rows at a time.
template <class C>
struct RingsCopier {
    using S = RingsShape<C>;
    const RingsBlock<C>& block;
    const char* lists;
    const char* x;
    const int lane, row = lane / 8, chunk = lane % 8;

    // Codes of columns that are none are multiplied too.
    __device__ __forceinline__ void clear_padding() const {
        constexpr int OF_SLOT = (S::READ_PANELS - S::PANELS) * S::PANEL_BYTES / 16;
#pragma unroll 1
        for (int i = lane; i < S::SLOTS * OF_SLOT; i += 32) {
            *reinterpret_cast<uint4*>(block.x_of(i / OF_SLOT) + S::PANELS * S::PANEL_BYTES + i % OF_SLOT * 16) = {0, 0, 0, 0};
        }
    }
    __device__ __forceinline__ void await_slot(int tile) const {
        if (tile >= S::SLOTS) barrier_wait(block.empty + tile % S::SLOTS, (tile / S::SLOTS - 1) & 1);
    }

    // Staged rows of tokens, as they stand.
    __device__ __forceinline__ void copy(int tile, int first, int rows) const {
        const float* const unscale = reinterpret_cast<const float*>(x + staged_unscale_at(C::X_ROWS, C::INPUTS));
        const int* const pairs = reinterpret_cast<const int*>(lists + S::Lists::PAIR_OF_ROW_AT) + first;
        int from[2];
#pragma unroll
        for (int i = 0; i < 2; i++) from[i] = row + 4 * i < rows ? load_activation(pairs + row + 4 * i) / C::ACTIVE : -1;
        await_slot(tile);
        const unsigned to = shared_address(block.x_of(tile));
#pragma unroll
        for (int i = 0; i < 2; i++) {
            if (from[i] < 0) continue;
            const int own = row + 4 * i;
            const char* const at = x + static_cast<size_t>(from[i]) * STAGED_ROW_BYTES + (chunk ^ (from[i] & 7)) * 16;
            const unsigned there = to + own * STAGED_ROW_BYTES + (chunk ^ own) * 16;
            for (int panel = 0; panel < S::PANELS; panel++) copy_16(there + panel * S::PANEL_BYTES, at + static_cast<size_t>(panel) * C::X_ROWS * STAGED_ROW_BYTES);
            if (chunk == 0) block.unscales[tile % S::SLOTS * 8 + own] = load_activation(unscale + from[i]);
        }
        copy_commit();
        copy_wait<0>();
    }

    // f32 rows of pairs, rounded as staging does (products/stage.cuh).
    struct Row {
        static constexpr int WIDTH = C::INPUTS;
    };
    __device__ __forceinline__ void stage(int tile, int first, int rows) const {
        constexpr int HELD = least(S::PANELS, 8);   // chunks of eight columns that are on the way at a time
        await_slot(tile);
        char* const to = block.x_of(tile);
        for (int own = row; own - row < rows; own += 4) {
            const float* const from = reinterpret_cast<const float*>(x) + static_cast<size_t>(first + least(own, rows - 1)) * C::INPUTS;
            float values[HELD][8], largest = 0;
            const auto load = [&](int panel) {
#pragma unroll
                for (int i = 0; i < HELD; i++)
                    stage_load<Row>(values[i], from, ((panel + i) * 8 + chunk) * 8, [](const auto* at) { return load_activation(at); });
            };
#pragma unroll 1
            for (int panel = 0; panel < S::PANELS; panel += HELD) {
                load(panel);
#pragma unroll
                for (int i = 0; i < HELD; i++) largest = largest_of(values[i], largest);
            }
#pragma unroll
            for (int distance = 1; distance < 8; distance *= 2) largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, distance));
            const HalfScale scale(largest);
            if (own < rows && chunk == 0) block.unscales[tile % S::SLOTS * 8 + own] = scale.unscale;
#pragma unroll 1
            for (int panel = 0; panel < S::PANELS; panel += HELD) {
                if (S::PANELS > HELD) load(panel);
#pragma unroll
                for (int i = 0; i < HELD; i++)
                    if (own < rows && panel + i < S::PANELS) stage_store<8>(to, own, ((panel + i) * 8 + chunk) * 8, values[i], scale.scale);
            }
        }
    }

    __device__ __forceinline__ void run() const {
        if constexpr (S::READ_PANELS > S::PANELS) clear_padding();
        const int tiles = block.tiles();
#pragma unroll 1
        for (int tile = 0; tile < tiles; tile++) {
            const int first = block.list[tile].x, rows = block.list[tile].y & 255;
            if constexpr (C::GATHER) copy(tile, first, rows);
            else stage(tile, first, rows);
            warp_arrive(block.full + tile % S::SLOTS, lane);
        }
    }
};

// A warp's sums of a granule: lane (g, c) has rows 2c and 2c + 1 against row g of the first tile, then of the second.
template <class C>
struct RingsSum {
    using S = RingsShape<C>;
    float chain[2][4] = {};   // two, so that a product does not wait for the one before it
    float local[2][4];        // BLOCK_SCALES: under one scale

    // `codes`, `scales`: of a unit of either tile; `x`: shared address of this lane's row of the work tile; `column`: the unit's first, by 32.
    __device__ __forceinline__ void add(const char* const (&codes)[2], const char* const (&scales)[2], const float (&block_scale)[2], unsigned x, int column, int lane,
                                        bool begins, bool ends) {
        unsigned a[2][S::CHUNKS][4];
#pragma unroll
        for (int t = 0; t < 2; t++) {
            uint2 scales_at = {0, 0};
            if constexpr (C::FORMAT == Format::NVFP4) scales_at = *reinterpret_cast<const uint2*>(scales[t] + lane / 4 * 8);
            Streamed<C::FORMAT>::decode(*reinterpret_cast<const uint4*>(codes[t] + lane * 16), scales_at, a[t]);
        }
        float (&sum)[2][4] = S::BLOCK_SCALES ? local : chain;
        if (S::BLOCK_SCALES && begins) {
#pragma unroll
            for (int i = 0; i < 8; i++) sum[i / 4][i % 4] = 0.0f;
        }
#pragma unroll
        for (int m = 0; m < S::CHUNKS; m++) {
            const int at = column + m;
            unsigned b[4];
            ldmatrix_4(b, x + at / 2 * S::PANEL_BYTES + ((at % 2 * 4 + lane / 8) ^ (lane % 8)) * 16);
            mma_f16(sum[0], a[0][m][0], a[1][m][0], a[0][m][1], a[1][m][1], b[0], b[1]);
            mma_f16(sum[1], a[0][m][2], a[1][m][2], a[0][m][3], a[1][m][3], b[2], b[3]);
        }
        if (S::BLOCK_SCALES && ends) {
#pragma unroll
            for (int i = 0; i < 4; i++) chain[0][i] += block_scale[i / 2] * (sum[0][i] + sum[1][i]);
        }
    }
    __device__ __forceinline__ float of(int tile, int row) const { return chain[0][2 * tile + row] + chain[1][2 * tile + row]; }
};

// Launch: block THREADS, grid BLOCKS, dynamic shared memory SHARED.
template <class C>
__device__ __forceinline__ void experts_rings(const char* lists, const void* x, const void* codes, const void* scales, const float* row_scales, void* out) {
    using S = RingsShape<C>;
    using P = typename S::P;
    using Ring = typename S::Ring;
    launch_dependents();
    MONOMORPH_DYNAMIC_SHARED(experts_shared, 1024);
    const RingsBlock<C> block{reinterpret_cast<char*>(experts_shared), static_cast<const char*>(codes), static_cast<const char*>(scales)};
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;

    if (warp == S::WARPS) {
        if (lane == 0) {
            for (int slot = 0; slot < S::SLOTS; slot++) {
                barrier_init(block.full + slot, WARP_ARRIVALS);
                barrier_init(block.empty + slot, S::WARPS * WARP_ARRIVALS);
            }
            for (int w = 0; w < S::WARPS; w++) Ring::init(block.rings + w * Ring::BARRIERS);
            barrier_init_fence();
        }
        __syncthreads();
        wait_for_predecessors();
        const int granules = load_activation(reinterpret_cast<const int*>(lists + S::Lists::COUNT_AT)) * S::GRANULES;
        const int first = S::first_granule(granules, blockIdx.x), end = S::first_granule(granules, blockIdx.x + 1), tile = first / S::GRANULES;
        if (lane == 0) block.range[0] = first, block.range[1] = end;
        if (first < end && lane <= (end - 1) / S::GRANULES - tile) block.list[lane] = load_activation(reinterpret_cast<const int2*>(lists + S::Lists::TILES_AT) + tile + lane);
        __syncwarp();
        if (lane < S::WARPS && first + lane < end) block.fill(block.ring_of(lane), {first + lane, end});
        __syncwarp();
        named_barrier_arrive(1, S::THREADS);
        RingsCopier<C>{block, lists, static_cast<const char*>(x), lane}.run();
        return;
    }

    __syncthreads();
    wait_for_predecessors();
    named_barrier(1, S::THREADS);
    const int first_tile = block.first_tile();
    Ring ring = block.ring_of(warp);
    RingsPlace<C> place{block.range[0] + warp, block.range[1]}, ahead = place;
    if (!place.exists()) ahead.granule = ahead.end;
    else ahead.next_piece();
    ring.fill_others([&] {
        if (!ahead.exists()) return false;
        if (lane == 0) block.fill(ring, ahead);
        ahead.next_piece();
        return true;
    });

    int tile = 0;   // of the block
    // Leaves work tiles up to `next`: whatever their slots held, this warp has read.
    const auto leave_tiles = [&](int next) {
        for (; tile < next; tile++) {
            barrier_wait(block.full + tile % S::SLOTS, tile / S::SLOTS & 1);   // arrivals are of one phase
            warp_arrive(block.empty + tile % S::SLOTS, lane);
        }
    };
    for (; place.exists(); place.granule += S::WARPS) {
        const int first = place.granule % S::GRANULES * 2;
        leave_tiles(place.granule / S::GRANULES - first_tile);
        const int2 entry = block.list[tile];
        const int expert = entry.y >> 8, rows = entry.y & 255;
        const long long of_all = static_cast<long long>(expert) * S::TILES + first;
        float row_scale[2];
#pragma unroll
        for (int t = 0; t < 2; t++) row_scale[t] = first + t < S::TILES ? load_constant(row_scales + (of_all + t) * TILE_ROWS + lane / 4) : 0.0f;
        barrier_wait(block.full + tile % S::SLOTS, tile / S::SLOTS & 1);
        const unsigned x_at = shared_address(block.x_of(tile)) + lane % 8 * STAGED_ROW_BYTES;

        RingsSum<C> sum;
#pragma unroll
        for (int part = 0; part < P::COUNT; part++) {
            const int from = part * P::PIECE;
            const char* const at = ring.wait();
            const char* scales_at[2];
#pragma unroll
            for (int t = 0; t < 2; t++) {
                scales_at[t] = at + t * S::TILE_BYTES + P::CODES;
                if constexpr (S::BLOCK_SCALES) scales_at[t] += ((of_all + t) * S::SCALE_COLUMNS + from / 2) % 4 * 4;
            }
#pragma unroll
            for (int i = 0; i < P::PIECE; i++) {
                if (S::UNITS % P::PIECE != 0 && from + i >= S::UNITS) break;
                const char* const unit[2] = {at + i * UNIT_BYTES, at + S::TILE_BYTES + i * UNIT_BYTES};
                const char* const unit_scales[2] = {scales_at[0] + i * P::U::SCALE_BYTES, scales_at[1] + i * P::U::SCALE_BYTES};
                float block_scale[2] = {1.0f, 1.0f};
                if constexpr (S::BLOCK_SCALES) {
#pragma unroll
                    for (int t = 0; t < 2; t++) block_scale[t] = reinterpret_cast<const float*>(scales_at[t])[i / 2];
                }
                sum.add(unit, unit_scales, block_scale, x_at, (from + i) * S::CHUNKS, lane, P::begins(i), P::ends(i) || from + i + 1 >= S::UNITS);
            }
            ring.release(lane, [&] {
                if (ahead.exists()) block.fill(ring, ahead);
            });
            ahead.next_piece();
        }

        constexpr float SUM_SCALE = Streamed<C::FORMAT>::SUM_SCALE;
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const int row = lane % 4 * 2 + i;
            if (row >= rows) continue;
            const float unscale = block.unscales[tile % S::SLOTS * 8 + row] * SUM_SCALE;
            const float value[2] = {sum.of(0, i) * unscale * row_scale[0], sum.of(1, i) * unscale * row_scale[1]};
            float* const to = static_cast<float*>(out) + static_cast<size_t>(entry.x + row) * C::OUTPUTS;
            if constexpr (S::GATED) {
                const int feature = first / 2 * TILE_ROWS + lane / 4;
                if (feature < C::OUTPUTS) to[feature] = activate<C::ACTIVATION, float>(value[0]) * value[1];
            } else {
#pragma unroll
                for (int t = 0; t < 2; t++) {
                    const int feature = (first + t) * TILE_ROWS + lane / 4;
                    if (feature < C::OUTPUTS) to[feature] = C::EPILOGUE == Epilogue::ACTIVATED ? activate<C::ACTIVATION, float>(value[t]) : value[t];
                }
            }
        }
    }
    leave_tiles(block.tiles());
}

}  // namespace monomorph
