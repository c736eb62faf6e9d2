// Stream product: out[T, N] = epilogue(W[N, K] * round(prologue(x[T, K]))) for few rows T, at the pace of reading W.
//
// Who does what. grid.x blocks own contiguous ranges of weight tiles (8 output rows x K), as even as can be; grid.y blocks own groups
// of ROWS rows of x. In a block the feeder, one thread, copies its range through a ring of stages in shared memory with bulk copies,
// beginning before the kernels ahead have finished: weights are constants. The consumer warps wait for those kernels, stage x (see
// stream_stage.cuh), and then meet the ring: a lane takes its 16 bytes of a unit as (after decoding) the A operand of mma.m16n8k16, against
// x as B. Exact compute: the codes decoded to f32, as B of f64 m8n8k4, against x as A.
//
// The ring's first filling is paced: it happens while the kernel before is still at work or its successor's x is on the way, and a whole
// ring asked for at once would stand in the queue before that x.
//
// Warp w takes the units u with u / SCALED % K_WARPS == w % K_WARPS of every tile. Partial sums go to shared memory, and a group of tiles later
// (one barrier of the consumers) they are added in the order of warps and stored: sums depend on the shape alone, never on timing.
//
// Barriers: full[s] (the feeder's arrival + the copied bytes), empty[s] (one arrival a consumer warp), named barrier 1 (consumers).
// Shared memory: see the map in stream_shape.cuh; StreamShape<C>::shared_bytes() of it, dynamic, THREADS threads.
//
// Arguments: x f32 [rows, K], 16-byte aligned; norm f32 [K]; codes and scales as formats.cuh says (BLOCK128: readable up to a multiple
// of 16 bytes); row_scales f32 [tiles * 8] in packed order; bias, up_bias f32 [N]; out f32 [rows, N]. `block` is the block's number
// among C::BLOCKS: a launch may have blocks of another product of the same x behind them. world: of an epilogue that sums over ranks.
#pragma once

#include "core/mma.cuh"
#include "core/step.cuh"
#include "products/stream_epilogue.cuh"
#include "products/stream_pairs.cuh"
#include "products/stream_stage.cuh"

namespace monomorph {

// The stages of a block's range in order, and the ring position of each.
template <class C>
struct Feeder {
    using S = StreamShape<C>;
    const char* codes;
    const char* scales;
    char* ring;
    Barrier* full;
    int tile, end, part = 0, stage = 0;
    unsigned long long policy;
    int left = S::WHOLE ? ceil_div(end - tile, S::STAGE_TILES) : (end - tile) * S::PARTS;   // stages

    __device__ __forceinline__ bool more() const { return left > 0; }

    __device__ __forceinline__ void fill() {
        const int tiles = S::WHOLE ? least(S::STAGE_TILES, end - tile) : 1, first = part * S::PART_UNITS;
        const int units = S::WHOLE ? tiles * S::UNITS : least(S::PART_UNITS, S::UNITS - first);
        const long long unit = static_cast<long long>(tile) * S::UNITS + first;
        char* at = ring + stage * S::STAGE;
        const char* scales_from = scales + unit * S::U::SCALE_BYTES;
        int scale_bytes = units * S::U::SCALE_BYTES;
        if constexpr (S::BLOCK_SCALES) {
            const long long from = (static_cast<long long>(tile) * S::SCALE_COLUMNS + first / 2) * 4;
            const int bytes = (S::WHOLE ? tiles * S::SCALE_COLUMNS : ceil_div(units, 2)) * 4;
            scales_from = scales + (from & ~15ll);
            scale_bytes = (static_cast<int>(from & 15) + bytes + 15) & ~15;
        }
        barrier_expect(full + stage, units * UNIT_BYTES + scale_bytes);
        copy(at, codes + unit * UNIT_BYTES, units * UNIT_BYTES);
        if (S::STAGE_SCALES > 0) copy(at + S::STAGE_CODES, scales_from, scale_bytes);
        if (++stage == C::STAGES) stage = 0;
        if (S::WHOLE) tile += S::STAGE_TILES;
        else if (++part == S::PARTS) part = 0, tile++;
        left--;
    }
    // While the kernels ahead keep this one waiting and the ring is full: more of the range into the second-level cache, at about the
    // pace of memory, so that what the kernels ahead ask for meanwhile finds no queue.
    __device__ __forceinline__ void look_ahead(Barrier* wait_over) const {
        constexpr int PIECE = 8192, CLOCKS = 440;
        const long long from = (static_cast<long long>(tile) * S::UNITS + part * S::PART_UNITS) * UNIT_BYTES;
        const long long last = static_cast<long long>(end) * S::UNITS * UNIT_BYTES, to = from + C::LOOKAHEAD < last ? from + C::LOOKAHEAD : last;
        long long next = clock64();
        for (long long at = from; at < to && !barrier_passed(wait_over, 0);) {
            if (clock64() < next) continue;
            next += CLOCKS;
            bulk_prefetch(codes + at, static_cast<unsigned>(to - at < PIECE ? to - at : PIECE));
            at += PIECE;
        }
    }

    __device__ __forceinline__ void copy(void* to, const void* from, int bytes) const {
        if constexpr (C::EVICT_FIRST) bulk_copy(to, from, bytes, full + stage, policy);
        else bulk_copy(to, from, bytes, full + stage);
    }
};

// B of a warp's units, as stage left it in shared memory. Of eight rows it is read once, where registers have room for it: from shared memory at
// every tile it would be twice the bytes of the weights.
template <class C>
struct StagedX {
    using S = StreamShape<C>;
    static constexpr int UNITS = S::HELD ? S::HELD_UNITS : 1, CHUNKS = S::HELD ? S::CHUNKS : 1, GROUPS = S::HELD ? S::GROUPS : 1;
    const char* at;   // of the warp's lane
    uint2 held[UNITS][CHUNKS][GROUPS];

    // Those of one unit: `i`-th of the warp.
    __device__ __forceinline__ void hold(int unit, int i) {
        const char* from = at + unit * S::CHUNKS * S::CHUNK_BYTES;
#pragma unroll
        for (int m = 0; m < CHUNKS; m++)
#pragma unroll
            for (int group = 0; group < GROUPS; group++)
                held[i][m][group] = *reinterpret_cast<const uint2*>(from + m / S::PAIR * S::PAIR * S::CHUNK_BYTES + m % S::PAIR * 8 + group * S::GROUP_BYTES);
    }
};

// One warp's sum over its units of a tile. Exact: lane (g, c) ends with row g, outputs 2c and 2c + 1. 16-bit: see stream_stage.cuh.
template <class C>
struct TileSum {
    using S = StreamShape<C>;
    using U = typename S::U;
    using Sum = typename S::Sum;
    double exact[2] = {};
    float chain[S::GROUPS][2][4] = {};   // two of each group of four rows, so that a product does not wait for the one before it
    float local[S::GROUPS][2][4];        // BLOCK_SCALES: under one scale

    // `unit`: of the tile, `index`: of the warp's. Lanes of rows that are not computed hold zeros. `begins`, `ends`: those under its scale.
    __device__ __forceinline__ void add(const char* codes_at, const char* scales, float block_scale, const StagedX<C>& of_x, int unit, int index, int lane, bool begins = true, bool ends = true) {
        const char* const x = of_x.at + unit * S::CHUNKS * S::CHUNK_BYTES;
        const uint4 codes = *reinterpret_cast<const uint4*>(codes_at + lane * 16);
        if constexpr (S::EXACT) {
            float values[U::ELEMENTS];
            decode_floats<C::FORMAT>(codes, reinterpret_cast<const unsigned char*>(scales), lane / 4, values);
#pragma unroll
            for (int m = 0; m < S::CHUNKS; m++) {
                float4 a = {0.0f, 0.0f, 0.0f, 0.0f};
                if (lane / 4 < C::ROWS) a = *reinterpret_cast<const float4*>(x + m * S::CHUNK_BYTES);
                mma_f64(exact, a.x, values[4 * m]);
                mma_f64(exact, a.y, values[4 * m + 1]);
                mma_f64(exact, a.z, values[4 * m + 2]);
                mma_f64(exact, a.w, values[4 * m + 3]);
            }
        } else {
            uint2 scales_at = {0, 0};
            if constexpr (C::FORMAT == Format::NVFP4) scales_at = *reinterpret_cast<const uint2*>(scales + lane / 4 * 8);
            unsigned a[S::CHUNKS][4];
            Streamed<C::FORMAT>::decode(codes, scales_at, a);
            const bool active = lane / 4 % 4 < C::ROWS;
#pragma unroll
            for (int group = 0; group < S::GROUPS; group++) {
                float (&sum)[2][4] = S::BLOCK_SCALES ? local[group] : chain[group];
                if (S::BLOCK_SCALES && begins) {
#pragma unroll
                    for (int i = 0; i < 8; i++) sum[i / 4][i % 4] = 0.0f;
                }
#pragma unroll
                for (int m = 0; m < S::CHUNKS; m += S::PAIR) {
                    const char* at = x + m * S::CHUNK_BYTES + group * S::GROUP_BYTES;
                    uint4 b = {0, 0, 0, 0};
                    if constexpr (S::HELD) {
                        const uint2 (&own)[S::CHUNKS][S::GROUPS] = of_x.held[index];
                        b.x = own[m][group].x, b.y = own[m][group].y;
                        if constexpr (S::PAIR == 2) b.z = own[m + 1][group].x, b.w = own[m + 1][group].y;
                    } else if constexpr (S::PAIR == 2) {
                        if (active) b = *reinterpret_cast<const uint4*>(at);
                    } else if (active) {
                        const uint2 one = *reinterpret_cast<const uint2*>(at);
                        b.x = one.x, b.y = one.y;
                    }
                    multiply(sum[(index * S::CHUNKS + m) % 2], a[m], b.x, b.y);
                    if constexpr (S::PAIR == 2) multiply(sum[(index * S::CHUNKS + m + 1) % 2], a[m + 1], b.z, b.w);
                }
                if (S::BLOCK_SCALES && ends) {
#pragma unroll
                    for (int i = 0; i < 4; i++) chain[group][0][i] += block_scale * (sum[0][i] + sum[1][i]);
                }
            }
        }
    }
    __device__ __forceinline__ static void multiply(float (&sum)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
        mma_f16(sum, a[0], a[1], a[2], a[3], b0, b1);
    }

    // To partials[K warp][row][8 outputs] of the tile; `unscale`: of rows 2c and 2c + 1 of every group.
    __device__ __forceinline__ void leave(Sum* tile_partials, const float (&unscale)[S::GROUPS][2], int k_warp, int lane) const {
        const int g = lane / 4, c = lane % 4;
        Sum* at = tile_partials + k_warp * C::ROWS * TILE_ROWS;
        if constexpr (S::EXACT) {
            if (g < C::ROWS) at[g * TILE_ROWS + 2 * c] = exact[0], at[g * TILE_ROWS + 2 * c + 1] = exact[1];
        } else {
#pragma unroll
            for (int group = 0; group < S::GROUPS; group++)
#pragma unroll
                for (int i = 0; i < least(2, C::ROWS); i++) {
                    const float(&own)[2][4] = chain[group];
                    const float low = own[0][i] + own[1][i], high = own[0][2 + i] + own[1][2 + i];
                    const float sum = (low + __shfl_xor_sync(~0u, high, 2)) * unscale[group][i];   // D[g][t] and, two lanes on, D[g + 8][t + 4]
                    if (2 * c + i < least(4, C::ROWS)) at[(4 * group + 2 * c + i) * TILE_ROWS + g] = sum;
                }
        }
    }
};

template <class C, class Epilogue = StreamEpilogue<C>>
__device__ __forceinline__ void stream_product(const Step* step, const float* x, const float* norm, const void* codes, const void* scales,
                                               const float* row_scales, const float* bias, const float* up_bias, float* out, int block = blockIdx.x,
                                               World* world = nullptr) {
    using S = StreamShape<C>;
    using Sum = typename S::Sum;
    if constexpr (S::PAIRED) {
        stream_pairs<C, Epilogue>(step, x, norm, codes, scales, row_scales, bias, up_bias, out, block);
        return;
    }
    launch_dependents();
    MONOMORPH_DYNAMIC_SHARED(stream_shared, 128);
    char* const shared = reinterpret_cast<char*>(stream_shared);
    Barrier* full = reinterpret_cast<Barrier*>(shared + S::BARRIERS_AT);
    Barrier* empty = full + C::STAGES;
    Barrier* wait_over = empty + C::STAGES;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, range = S::range_of(block);
    const int from = S::first_tile(range), end = S::first_tile(range + 1), first_row = blockIdx.y * C::ROWS;
    const auto rows_here = [&] {   // after the wait only
        if constexpr (C::LIMIT == Limit::NONE) return C::ROWS;
        else return least((C::LIMIT == Limit::TOKENS ? step->tokens : step->outputs) - first_row, C::ROWS);
    };

    if (warp == S::WARPS) {
        Feeder<C> feeder{static_cast<const char*>(codes), static_cast<const char*>(scales), shared, full, from, end};
        if (lane == 0) {
            for (int s = 0; s < C::STAGES; s++) {
                barrier_init(full + s, 1);
                barrier_init(empty + s, S::WARPS * WARP_ARRIVALS);
            }
            barrier_init(wait_over, 1);
            barrier_init_fence();
            if constexpr (C::EVICT_FIRST) feeder.policy = evict_first_policy();
            if constexpr (C::LIMIT != Limit::NONE) {   // whether there is work depends on the step
                wait_for_predecessors();
                if (rows_here() <= 0) feeder.left = 0;
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
            if (C::LOOKAHEAD > 0) feeder.look_ahead(wait_over);
            for (unsigned parity = 0; feeder.more();) {
                barrier_wait(empty + feeder.stage, parity);
                feeder.fill();
                if (feeder.stage == 0) parity ^= 1;
            }
        }
        return;
    }

    Sum* partials = reinterpret_cast<Sum*>(shared + S::PARTIALS_AT);
    Sum* squares = reinterpret_cast<Sum*>(shared + S::SQUARES_AT);
    char* staged = shared + S::X_AT;
    x += static_cast<long long>(first_row) * C::INPUTS;
    out += static_cast<long long>(first_row) * C::OUTPUTS;
    typename StageOf<C, C::COMPUTE>::Type stager;
    stager.before_wait(norm, warp, lane);
    Epilogue epilogue(world);
    __syncthreads();
    wait_for_predecessors();
    if (C::LOOKAHEAD > 0 && threadIdx.x == 0) barrier_arrive(wait_over);
    const int rows = rows_here();
    if (from == end || rows <= 0) return;

    epilogue.begin();
    epilogue.load(from, end - from, rows, row_scales, bias, up_bias, out, threadIdx.x);
    stager.run(x, norm, rows, staged, squares, warp, lane);

    const int k_warp = warp % S::K_WARPS, tile_warp = warp / S::K_WARPS;
    StagedX<C> of_x;
    of_x.at = staged + (S::EXACT ? lane * 16 : ((lane / 16 * C::ROWS + lane / 4 % 4) * 4 + lane % 4) * 8 * S::PAIR);
    if constexpr (S::HELD) {
#pragma unroll
        for (int part = 0; part < S::PARTS; part++)
#pragma unroll
            for (int i = 0; i < S::PART_EACH; i++) {
                if (!S::held(part, i)) continue;
                const int unit = part * S::PART_UNITS + S::unit_of(k_warp, i, S::K_WARPS);
                if (unit < S::UNITS) of_x.hold(unit, part * S::PART_EACH + i);
            }
    }
    float unscale[S::GROUPS][2] = {};
    if constexpr (!S::EXACT) {
#pragma unroll
        for (int row = 0; row < C::ROWS; row++)
            if (lane % 4 == row % 4 / 2) unscale[row / 4][row % 2] = stager.unscale[row];
    }
    int stage = 0;
    unsigned parity = 0;
    const auto release = [&] {
        warp_arrive(empty + stage, lane);
        if (++stage == C::STAGES) stage = 0, parity ^= 1;
    };
    // Adds this warp's units of `first` .. `first + units` of a tile, whose codes begin at `at` and scales at `scales_at`.
    const auto multiply = [&](TileSum<C>& sum, const char* at, const char* scales_at, int part, int units) {
        const int first = part * S::PART_UNITS;
        constexpr bool EVEN = S::PART_UNITS % (S::SCALED * S::K_WARPS) == 0 && S::UNITS % S::PART_UNITS == 0;
#pragma unroll
        for (int i = 0; i < S::PART_EACH; i++) {
            const int unit = S::unit_of(k_warp, i, S::K_WARPS);
            if (S::HELD && !S::held(part, i)) continue;
            if (!EVEN && unit >= units) break;
            float block_scale = 1.0f;
            if constexpr (S::BLOCK_SCALES) block_scale = reinterpret_cast<const float*>(scales_at)[unit / 2];
            sum.add(at + unit * UNIT_BYTES, scales_at + unit * S::U::SCALE_BYTES, block_scale, of_x, first + unit, (S::HELD ? part * S::PART_EACH : 0) + i, lane,
                    i % S::SCALED == 0, (i + 1) % S::SCALED == 0 || (!EVEN && unit + 1 >= units));
        }
    };
    const auto stage_scales = [&](int tile, int first) {
        const char* at = shared + stage * S::STAGE + S::STAGE_CODES;
        return S::BLOCK_SCALES ? at + (tile * S::SCALE_COLUMNS + first / 2) % 4 * 4 : at;
    };

    for (int group = from, odd = 0; group < end; group += S::GROUP_TILES, odd ^= 1) {
        const int tiles = least(S::GROUP_TILES, end - group);
        Sum* group_partials = partials + odd * S::GROUP_TILES * S::TILE_PARTIALS;
        if (group != from) epilogue.load(group, tiles, rows, row_scales, bias, up_bias, out, threadIdx.x);
        for (int base = 0; base < tiles; base += S::STAGE_TILES) {
            if constexpr (S::WHOLE) {
                barrier_wait(full + stage, parity);
                const char* scales_at = stage_scales(group + base, 0);
                for (int t = tile_warp; t < least(S::STAGE_TILES, tiles - base); t += S::TILE_WARPS) {
                    TileSum<C> sum;
                    multiply(sum, shared + stage * S::STAGE + t * S::UNITS * UNIT_BYTES,
                             scales_at + (S::BLOCK_SCALES ? t * S::SCALE_COLUMNS * 4 : t * S::UNITS * S::U::SCALE_BYTES), 0, S::UNITS);
                    sum.leave(group_partials + (base + t) * S::TILE_PARTIALS, unscale, k_warp, lane);
                }
                release();
            } else {
                TileSum<C> sum;
                const auto one = [&](int part) {
                    const int first = part * S::PART_UNITS;
                    barrier_wait(full + stage, parity);
                    multiply(sum, shared + stage * S::STAGE, stage_scales(group + base, first), part, least(S::PART_UNITS, S::UNITS - first));
                    release();
                };
                if constexpr (S::HELD) {
#pragma unroll
                    for (int part = 0; part < S::PARTS; part++) one(part);
                } else {
                    for (int part = 0; part < S::PARTS; part++) one(part);
                }
                sum.leave(group_partials + base * S::TILE_PARTIALS, unscale, k_warp, lane);
            }
        }
        named_barrier(1, S::CONSUMERS);
        epilogue.store(group, tiles, rows, group_partials, out, threadIdx.x);
    }
    epilogue.end(out);
}

}  // namespace monomorph
