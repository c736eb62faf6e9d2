// Stream products of eight rows, two tiles of weights at a time.
//
// A product of tensor cores takes 16 rows of A and eight columns of B: the 8 rows of two tiles, and eight rows of x. A warp decodes the same unit of both
// tiles, reads x of that unit once from shared memory for them, and no half of a product goes unused, as it does where a tile is by itself (stream.cuh).
//
// Warps share the units of a pair: unit u of pair p goes to warp (u + p * units) % WARPS, in runs of SCALED, so that all have as much to do whatever a pair or
// a stage has of them. A warp leaves its sums in shared memory; those of a group of pairs are added behind one barrier.
//
// SPLIT: the blocks of a cluster have the same range and a share of K each: x is read in as many shares, which is what a product of many columns and few
// outputs waits for. A block's sums wait in shared memory; behind the last one the blocks add up and store every SPLIT-th group.
#pragma once

#include "core/cluster.cuh"
#include "core/mma.cuh"
#include "core/step.cuh"
#include "products/stream_epilogue.cuh"
#include "products/stream_pairs_stage.cuh"

namespace monomorph {

// The stages of a block's pairs in order, and the ring position of each.
template <class C>
struct PairFeeder {
    using S = StreamShape<C>;
    const char* codes;
    const char* scales;
    char* ring;
    Barrier* full;
    int share, tile, end, part = 0, stage = 0;
    unsigned long long policy;
    int left = (end - tile) / 2 * S::PARTS;   // stages

    __device__ __forceinline__ bool more() const { return left > 0; }

    __device__ __forceinline__ void fill() {
        const int within = part * S::PART_UNITS, first = share * S::UNITS + within, units = least(S::PART_UNITS, S::UNITS - within);
        char* const at = ring + stage * S::STAGE;
        int scale_bytes = units * S::U::SCALE_BYTES;
        if constexpr (S::BLOCK_SCALES) scale_bytes = block_scale_bytes(tile, first, units) + block_scale_bytes(tile + 1, first, units);
        else scale_bytes *= 2;
        barrier_expect(full + stage, 2 * units * UNIT_BYTES + scale_bytes);
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const long long unit = static_cast<long long>(tile + i) * S::TILE_UNITS + first;
            copy(at + i * S::PART_UNITS * UNIT_BYTES, codes + unit * UNIT_BYTES, units * UNIT_BYTES);
            char* const scales_to = at + S::STAGE_CODES + i * S::TILE_SCALES;
            if constexpr (S::BLOCK_SCALES) copy(scales_to, scales + (block_scale_at(tile + i, first) & ~15ll), block_scale_bytes(tile + i, first, units));
            else if constexpr (S::STAGE_SCALES > 0) copy(scales_to, scales + unit * S::U::SCALE_BYTES, units * S::U::SCALE_BYTES);
        }
        if (++stage == C::STAGES) stage = 0;
        if (++part == S::PARTS) part = 0, tile += 2;
        left--;
    }
    __device__ __forceinline__ static long long block_scale_at(int tile, int first) { return (static_cast<long long>(tile) * S::SCALE_COLUMNS + first / 2) * 4; }
    __device__ __forceinline__ static int block_scale_bytes(int tile, int first, int units) {
        return ((static_cast<int>(block_scale_at(tile, first)) & 15) + ceil_div(units, 2) * 4 + 15) & ~15;
    }
    __device__ __forceinline__ void copy(void* to, const void* from, int bytes) const {
        if constexpr (C::EVICT_FIRST) bulk_copy(to, from, bytes, full + stage, policy);
        else bulk_copy(to, from, bytes, full + stage);
    }
};

// One warp's sums over its units of a pair: lane (g, c) has row g of both tiles and the rows 2c and 2c + 1 of x.
template <class C>
struct PairSum {
    using S = StreamShape<C>;
    using U = typename S::U;
    float chain[2][4] = {};   // in turn, so that a product does not wait for the one before it
    float local[2][4];        // BLOCK_SCALES: under one scale

    // `codes`, `scales`: of the unit in the first tile, and `S::PART_UNITS` units on in the second. `begins`, `ends`: those under its block scales.
    __device__ __forceinline__ void add(const char* codes, const char* scales, const float (&block_scales)[2], const char* x, int lane, bool begins, bool ends) {
        unsigned a[2][S::CHUNKS][4];
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const uint4 words = *reinterpret_cast<const uint4*>(codes + i * S::PART_UNITS * UNIT_BYTES + lane * 16);
            uint2 scales_at = {0, 0};
            if constexpr (C::FORMAT == Format::NVFP4) scales_at = *reinterpret_cast<const uint2*>(scales + i * S::TILE_SCALES + lane / 4 * 8);
            Streamed<C::FORMAT>::decode(words, scales_at, a[i]);
        }
        float (&sum)[2][4] = S::BLOCK_SCALES ? local : chain;
        if (S::BLOCK_SCALES && begins) {
#pragma unroll
            for (int i = 0; i < 8; i++) sum[i / 4][i % 4] = 0.0f;
        }
#pragma unroll
        for (int m = 0; m < S::CHUNKS; m++) {
            const uint4 b = *reinterpret_cast<const uint4*>(x + m * S::CHUNK_BYTES);
            mma_f16(sum[0], a[0][m][0], a[1][m][0], a[0][m][1], a[1][m][1], b.x, b.y);
            mma_f16(sum[1], a[0][m][2], a[1][m][2], a[0][m][3], a[1][m][3], b.z, b.w);
        }
        if (S::BLOCK_SCALES && ends) {
#pragma unroll
            for (int i = 0; i < 4; i++) chain[0][i] += block_scales[i / 2] * (sum[0][i] + sum[1][i]);
        }
    }

    // To partials[tile of the pair][K warp][row][8 outputs]; `unscale`: of rows 2c and 2c + 1.
    __device__ __forceinline__ void leave(float* partials, const float (&unscale)[2], int k_warp, int lane) const {
        const int g = lane / 4, c = lane % 4;
#pragma unroll
        for (int i = 0; i < 4; i++)
            partials[i / 2 * S::TILE_PARTIALS + (k_warp * C::ROWS + 2 * c + i % 2) * TILE_ROWS + g] = (chain[0][i] + chain[1][i]) * unscale[i % 2];
    }
};

// As stream_product (stream.cuh).
template <class C, class Epilogue = StreamEpilogue<C>>
__device__ __forceinline__ void stream_pairs(const Step* step, const float* x, const float* norm, const void* codes, const void* scales,
                                             const float* row_scales, const float* bias, const float* up_bias, float* out, int block = blockIdx.x) {
    using S = StreamShape<C>;
    launch_dependents();
    MONOMORPH_DYNAMIC_SHARED(stream_shared, 128);
    char* const shared = reinterpret_cast<char*>(stream_shared);
    Barrier* full = reinterpret_cast<Barrier*>(shared + S::BARRIERS_AT);
    Barrier* empty = full + C::STAGES;
    Barrier* weights_there = empty + C::STAGES;
    float* const partials = reinterpret_cast<float*>(shared + S::PARTIALS_AT);
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, range = S::range_of(block / S::SPLIT), share = block % S::SPLIT;
    const int from = S::first_tile(range), end = S::first_tile(range + 1), first_row = blockIdx.y * C::ROWS;
    const auto rows_here = [&] {   // after the wait only
        if constexpr (C::LIMIT == Limit::NONE) return C::ROWS;
        else return least((C::LIMIT == Limit::TOKENS ? step->tokens : step->outputs) - first_row, C::ROWS);
    };

    if (warp == S::WARPS) {
        PairFeeder<C> feeder{static_cast<const char*>(codes), static_cast<const char*>(scales), shared, full, share, from, end};
        if (lane == 0) {
            for (int s = 0; s < C::STAGES; s++) {
                barrier_init(full + s, 1);
                barrier_init(empty + s, S::WARPS * WARP_ARRIVALS);
            }
            if constexpr (PairStage<C>::KEPT) barrier_init(weights_there, 1);
            barrier_init_fence();
            if constexpr (C::EVICT_FIRST) feeder.policy = evict_first_policy();
            if constexpr (C::LIMIT != Limit::NONE) {   // whether there is work depends on the step
                wait_for_predecessors();
                if (rows_here() <= 0) feeder.left = 0;
            }
            if (PairStage<C>::KEPT && feeder.more()) {
                barrier_expect(weights_there, C::INPUTS * 4);
                bulk_copy(partials, norm, C::INPUTS * 4, weights_there);
            }
            for (int s = 0; s < C::PACE && feeder.more(); s++) feeder.fill();
        }
        __syncwarp();
        __syncthreads();
        if (lane == 0) {
            for (int s = C::PACE; s < C::STAGES && feeder.more(); s++) {
                barrier_wait(full + s - C::PACE, 0);
                feeder.fill();
            }
            for (unsigned parity = 0; feeder.more();) {
                barrier_wait(empty + feeder.stage, parity);
                feeder.fill();
                if (feeder.stage == 0) parity ^= 1;
            }
        }
        if constexpr (S::SPLIT > 1) {
            __syncwarp();
            cluster_sync();
            cluster_sync();
        }
        return;
    }

    float* const squares = reinterpret_cast<float*>(shared + S::SQUARES_AT);
    float* const sums = reinterpret_cast<float*>(shared + S::SUMS_AT);
    char* const staged = shared + S::X_AT;
    x += static_cast<long long>(first_row) * C::INPUTS + share * S::UNITS * S::U::COLUMNS;
    out += static_cast<long long>(first_row) * C::OUTPUTS;
    PairStage<C> stager(warp, lane);
    Epilogue epilogue(nullptr);
    __syncthreads();
    wait_for_predecessors();
    const int rows = from < end ? rows_here() : 0;
    if (rows > 0) stager.run(x, norm, partials, weights_there, rows, staged, squares, warp, lane);

    const char* const own_x = staged + lane * 16;
    float unscale[2];
#pragma unroll
    for (int i = 0; i < 2; i++) unscale[i] = __shfl_sync(~0u, stager.unscale, (lane % 4 * 2 + i) * 4);
    int stage = 0;
    unsigned parity = 0;

    for (int group = from, odd = 0; group < end && rows > 0; group += S::GROUP_TILES, odd ^= 1) {
        const int tiles = least(S::GROUP_TILES, end - group);
        float* const group_partials = partials + odd * S::GROUP_TILES * S::TILE_PARTIALS;
        if constexpr (S::SPLIT == 1) epilogue.load(group, tiles, rows, row_scales, bias, up_bias, out, threadIdx.x);
#pragma unroll 1
        for (int tile = group; tile < group + tiles; tile += 2) {
            PairSum<C> sum;
#pragma unroll 1
            for (int part = 0; part < S::PARTS; part++) {
                const int first = part * S::PART_UNITS, units = least(S::PART_UNITS, S::UNITS - first);
                const char* const codes_at = shared + stage * S::STAGE;
                const char* const scales_at = codes_at + S::STAGE_CODES;
                const int before = (tile / 2 * ceil_div(S::UNITS, S::SCALED) + first / S::SCALED) % S::WARPS;
                barrier_wait(full + stage, parity);
                for (int run = (warp - before + S::WARPS) % S::WARPS * S::SCALED; run < units; run += S::WARPS * S::SCALED) {
                    float block_scales[2] = {1.0f, 1.0f};
                    if constexpr (S::BLOCK_SCALES) {
#pragma unroll
                        for (int i = 0; i < 2; i++) {
                            const int skipped = (static_cast<int>(PairFeeder<C>::block_scale_at(tile + i, share * S::UNITS + first)) & 15) / 4;
                            block_scales[i] = reinterpret_cast<const float*>(scales_at + i * S::TILE_SCALES)[skipped + run / 2];
                        }
                    }
#pragma unroll
                    for (int i = 0; i < S::SCALED; i++) {
                        const int unit = run + i;
                        if (S::UNITS % S::SCALED != 0 && unit >= units) break;
                        sum.add(codes_at + unit * UNIT_BYTES, scales_at + unit * S::U::SCALE_BYTES, block_scales, own_x + (first + unit) * S::CHUNKS * S::CHUNK_BYTES, lane, i == 0,
                                i + 1 == S::SCALED || (S::UNITS % S::SCALED != 0 && unit + 1 >= units));
                    }
                }
                warp_arrive(empty + stage, lane);
                if (++stage == C::STAGES) stage = 0, parity ^= 1;
            }
            sum.leave(group_partials + (tile - group) * S::TILE_PARTIALS, unscale, warp, lane);
        }
        named_barrier(1, S::CONSUMERS);
        if constexpr (S::SPLIT == 1) {
            epilogue.store(group, tiles, rows, group_partials, out, threadIdx.x);
        } else {
            for (int i = threadIdx.x; i < tiles * C::ROWS * TILE_ROWS; i += S::CONSUMERS)
                sums[(group - from) * C::ROWS * TILE_ROWS + i] = Epilogue::sum_of(group_partials, i / (C::ROWS * TILE_ROWS), i % (C::ROWS * TILE_ROWS));
        }
    }
    if constexpr (S::SPLIT > 1) {
        cluster_sync();
        // Every SPLIT-th group is this block's to store.
        for (int group = from + share * S::GROUP_TILES; group < end && rows > 0; group += S::SPLIT * S::GROUP_TILES) {
            const int tiles = least(S::GROUP_TILES, end - group);
            epilogue.load(group, tiles, rows, row_scales, bias, up_bias, out, threadIdx.x);
            const unsigned at = shared_address(sums + (group - from) * C::ROWS * TILE_ROWS);
            epilogue.store_sums(group, tiles, rows, out, threadIdx.x, [&](int tile, int within) {
                float total = 0.0f;
#pragma unroll
                for (int r = 0; r < S::SPLIT; r++) total += load_cluster_one(cluster_address(at + 4 * (tile * C::ROWS * TILE_ROWS + within), r));
                return total;
            });
        }
        cluster_sync();
    }
    epilogue.end(out);
}

}  // namespace monomorph
