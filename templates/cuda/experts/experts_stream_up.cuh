// The chosen experts' gate and up products for few tokens, at the pace of reading those experts once:
//   inner[t, slot * WIDTH ..] = activation(gate_e n_t) * up_e n_t, n = rounded norm(x), e = the expert of slot `slot` of token t;
//   UNGATED: activation(up_e n_t).
//
// It is the stream product of stream.cuh (its stages, its fragments, its paces) over a list of matrices that only the routing tells. Every block
// chooses the experts anew from the router's logits (one warp a token) and so knows the list; block b of B takes the granules (a tile of gate
// rows and its tile of up rows; UNGATED, two tiles of up rows) b/B .. (b + 1)/B of the list's. The feeder starts then: nothing it reads is known before the wait.
// With one token the feeder's warp chooses, while the others stage x; with more, consumer warp t chooses for token t, and all meet the feeder.
//
// Products are computed for all ROWS rows of a group of four (a row of x has its column of B, whoever chose the expert), and stored for
// those that chose it. An output's sum depends on its own row and the shape, never on which other experts are in the list.
//
// struct Config {
//     static constexpr Format FORMAT;              // of the experts: packed gate and up pairs (Packing::Gated), one matrix behind the other
//     static constexpr bool UNGATED;               // optional: they have no gates, and whole pairs of tiles
//     static constexpr Compute COMPUTE;  static constexpr Rounding ROUNDING;  static constexpr ScaleForm SCALES;   // as in stream_shape.cuh
//     static constexpr int EXPERTS, ACTIVE;        // in all; chosen by a token, at most 32
//     static constexpr int ROUTED;                 // optional: what a router chooses from, where EXPERTS are the rank's (route_choose.cuh)
//     static constexpr bool RENORMALISE;           // weights divided by their sum
//     static constexpr int WIDTH, INPUTS;          // features of an expert; hidden size
//     static constexpr int ROWS;                   // rows of the step's bucket: 1, 2, 4, 8 (EXACT: 1..8)
//     static constexpr Norm NORM;  static constexpr float EPS;  static constexpr Activation ACTIVATION;
//     static constexpr Limit LIMIT;                // NONE: all ROWS rows are in use; TOKENS: the step's count of them
//     static constexpr int STAGES, STAGE_BYTES, CONSUMER_WARPS, BLOCKS;  static constexpr bool EVICT_FIRST;
// };
//
// Arguments: x f32 [ROWS, INPUTS], 16-byte aligned; norm f32 [INPUTS]; logits f32 [ROWS, what is chosen from], 16-byte aligned; codes and scales: the planes of
// the experts' matrices, expert e's at e times one matrix's bytes; row_scales f32 [EXPERTS][tiles * 8]: but for f16 one value for an expert's
// gate rows and one for its up rows; inner f32 [ROWS, ACTIVE * WIDTH]; routing f32 [ROWS, 2 * ACTIVE]: written for the phases
// that follow; world: of ROUTED.
#pragma once

#include "experts/experts_few_up.cuh"
#include "experts/experts_stream_sum.cuh"
#include "experts/route_choose.cuh"

namespace monomorph {

template <class C>
struct RingUpShape {
    static constexpr bool EXACT = C::COMPUTE == Compute::EXACT, UNGATED = IS_UNGATED<C>;
    static_assert(!UNGATED || C::WIDTH % (2 * TILE_ROWS) == 0, "pairs of tiles");
    // One expert's matrix as a stream product of which a block has one granule. Without gates two tiles of up rows are read as a gate's and an up's.
    struct Product {
        static constexpr Format FORMAT = C::FORMAT;
        static constexpr Compute COMPUTE = C::COMPUTE;
        static constexpr Rounding ROUNDING = C::ROUNDING;
        static constexpr ScaleForm SCALES = C::SCALES;
        static constexpr int OUTPUTS = UNGATED ? C::WIDTH / 2 : C::WIDTH, INPUTS = C::INPUTS, ROWS = EXACT ? C::ROWS : least(C::ROWS, 4);
        static constexpr Norm NORM = C::NORM;
        static constexpr float EPS = C::EPS;
        static constexpr Epilogue EPILOGUE = Epilogue::GATED;
        static constexpr Activation ACTIVATION = C::ACTIVATION;
        static constexpr bool BIAS = false, EVICT_FIRST = C::EVICT_FIRST;
        static constexpr Limit LIMIT = Limit::NONE;
        static constexpr int STAGES = C::STAGES, STAGE_BYTES = C::STAGE_BYTES, CONSUMER_WARPS = C::CONSUMER_WARPS;
        static constexpr int BLOCKS = ceil_div(OUTPUTS, TILE_ROWS), MULTIPROCESSORS = BLOCKS, LOOKAHEAD = 0, PACE = 1;
    };
    using S = StreamShape<Product>;
    using Sum = typename S::Sum;
    using Who = Choices<C::EXPERTS, C::ACTIVE, C::ROWS, SHARED_OUT<C>>;
    static constexpr int WARPS = C::CONSUMER_WARPS, CONSUMERS = S::CONSUMERS, THREADS = S::THREADS;
    static constexpr int GROUPS = ceil_div(C::ROWS, Product::ROWS);
    static constexpr int PAIRS = S::GRANULES, TILES = 2 * PAIRS;                    // granules and tiles of an expert
    static constexpr int STEPS = S::WHOLE ? 2 / S::STAGE_TILES : 2 * S::PARTS;      // stages of a granule

    // ---- Shared memory, in this order ----
    static constexpr int X_AT = C::STAGES * S::STAGE;
    static constexpr int PARTIALS_AT = X_AT + GROUPS * S::X_BYTES;                                              // two granules, used in turn
    static constexpr int GRANULE_PARTIALS = 2 * S::K_WARPS * C::ROWS * TILE_ROWS;                              // [tile][K warp][row][8 outputs]
    static constexpr int SQUARES_AT = PARTIALS_AT + 2 * GRANULE_PARTIALS * static_cast<int>(sizeof(Sum));      // [rows][warps]
    static constexpr int WHO_AT = SQUARES_AT + GROUPS * S::SQUARES;
    static constexpr int SCALES_AT = WHO_AT + round_up(static_cast<int>(sizeof(Who)), 16);                     // f32 [list][gate, up]
    static constexpr int MOST_GRANULES = ceil_div(Who::MOST * PAIRS, C::BLOCKS);                               // of a block
    static constexpr bool SCALED_ROWS = S::ROW_SCALES && C::FORMAT == Format::F16;                             // SCALED_ROWS: f32 [granule][16 rows]
    static constexpr int SCALES = !S::ROW_SCALES ? 0 : SCALED_ROWS ? 64 * MOST_GRANULES : round_up(8 * Who::MOST, 16);
    static constexpr int UNSCALES_AT = SCALES_AT + SCALES;                                                     // f32 [warps][rows]: each has scaled its own part
    static constexpr int BARRIERS_AT = UNSCALES_AT + round_up(4 * WARPS * C::ROWS, 16);                                // full[STAGES], empty[STAGES]
    static constexpr int SHARED = BARRIERS_AT + 16 * C::STAGES;
    static constexpr int shared_bytes() { return SHARED; }
    // For __launch_bounds__: what more than two rows need leaves the next kernel's block no registers.
    static constexpr int RESIDENT = WARPS <= 8 && C::ROWS <= 2 && SHARED <= 114 * 1024 ? 2 : 1;

    static_assert(EXACT || C::ROWS == 1 || C::ROWS == 2 || C::ROWS == 4 || C::ROWS == 8, "16-bit products: 1, 2, 4 or 8 rows");
    static_assert(C::ROWS <= 8, "at most 8 rows");

    // Where granule ranges of blocks begin, of `granules` in all.
    __host__ __device__ static constexpr int first_granule(int granules, int block) {
        return static_cast<int>(static_cast<long long>(granules) * block / C::BLOCKS);
    }
};

// Of what a step's rows take.
template <class C, bool IS_FEW = FEW<C>>
struct UpShapeOf { using Type = RingUpShape<C>; };
template <class C>
struct UpShapeOf<C, true> { using Type = FewUpShape<C>; };
template <class C>
using UpShape = typename UpShapeOf<C>::Type;

// The stages of a block's granules in order, and the ring position of each.
template <class C>
struct UpFeeder {
    using P = RingUpShape<C>;
    using S = typename P::S;
    const char* codes;
    const char* scales;
    char* ring;
    Barrier* full;
    const int* experts;
    int at, pair, left;   // place in the list, granule of the expert, stages to come
    unsigned long long policy;
    int step = 0, stage = 0;

    __device__ __forceinline__ bool more() const { return left > 0; }

    __device__ __forceinline__ void fill() {
        const int within = S::WHOLE ? step * S::STAGE_TILES : step / S::PARTS, first = S::WHOLE ? 0 : step % S::PARTS * S::PART_UNITS;
        const int units = S::WHOLE ? S::STAGE_UNITS : least(S::PART_UNITS, S::UNITS - first);
        const long long tile = static_cast<long long>(experts[at]) * P::TILES + pair * 2 + within, unit = tile * S::UNITS + first;
        char* to = ring + stage * S::STAGE;
        const char* scales_from = scales + unit * S::U::SCALE_BYTES;
        int scale_bytes = units * S::U::SCALE_BYTES;
        if constexpr (S::BLOCK_SCALES) {
            const long long from = (tile * S::SCALE_COLUMNS + first / 2) * 4;
            const int bytes = (S::WHOLE ? S::STAGE_TILES * S::SCALE_COLUMNS : ceil_div(units, 2)) * 4;
            scales_from = scales + (from & ~15ll);
            scale_bytes = (static_cast<int>(from & 15) + bytes + 15) & ~15;
        }
        barrier_expect(full + stage, units * UNIT_BYTES + scale_bytes);
        copy(to, codes + unit * UNIT_BYTES, units * UNIT_BYTES);
        if constexpr (S::STAGE_SCALES > 0) copy(to + S::STAGE_CODES, scales_from, scale_bytes);
        if (++stage == C::STAGES) stage = 0;
        left--;
        if (++step < P::STEPS) return;
        step = 0;
        if (++pair == P::PAIRS) pair = 0, at++;
    }
    __device__ __forceinline__ void copy(void* to, const void* from, int bytes) const {
        if constexpr (C::EVICT_FIRST) bulk_copy(to, from, bytes, full + stage, policy);
        else bulk_copy(to, from, bytes, full + stage);
    }
};

// A warp's sum over its units of one tile, in either compute.
template <class C>
struct UpTile {
    using P = RingUpShape<C>;
    using S = typename P::S;
    ExpertSum<C::FORMAT, S::BLOCK_SCALES, P::GROUPS, S::CHUNK_BYTES> sum;

    template <class Which>
    __device__ __forceinline__ void add(Which live, const char* codes, const char* scales, float block_scale, const RowsOfX<P::GROUPS>& x, int unit, int index, int lane) {
        sum.add(live, codes, scales, block_scale, x, unit, index, lane);
    }
    __device__ __forceinline__ void leave(typename P::Sum* tile, const float* unscale, int k_warp, int lane) const {
        const int g = lane / 4, c = lane % 4;
#pragma unroll
        for (int group = 0; group < P::GROUPS; group++)
#pragma unroll
            for (int i = 0; i < least(2, C::ROWS); i++) {
                const float value = halves(sum.half(group, i, lane));
                const int row = 4 * group + 2 * c + i;
                if (c < 2 && row < C::ROWS) tile[(k_warp * C::ROWS + row) * TILE_ROWS + g] = value * unscale[row];
            }
    }
};
template <class C>
struct UpTileExact {
    using P = RingUpShape<C>;
    using S = typename P::S;
    TileSum<typename P::Product> sum;

    __device__ __forceinline__ void add(Live<1>, const char* codes, const char* scales, float, const RowsOfX<1>& x, int unit, int index, int lane) {
        StagedX<typename P::Product> of_x;
        of_x.at = x.at[0];
        sum.add(codes, scales, 1.0f, of_x, unit, index, lane);
    }
    __device__ __forceinline__ void leave(double* tile, const float*, int k_warp, int lane) const {
        const float none[1][2] = {{1.0f, 1.0f}};
        sum.leave(tile, none, k_warp, lane);
    }
};
template <class C, bool EXACT>
struct UpTileOf { using Type = UpTile<C>; };
template <class C>
struct UpTileOf<C, true> { using Type = UpTileExact<C>; };

// One block: its shared memory, and what its feeder and its consumers do with it.
template <class C>
struct UpBlock {
    using P = RingUpShape<C>;
    using S = typename P::S;
    using Sum = typename P::Sum;
    using Tile = typename UpTileOf<C, P::EXACT>::Type;
    using Stage = typename StageOf<typename P::Product, C::COMPUTE>::Type;
    char* const shared;
    Barrier* const full = reinterpret_cast<Barrier*>(shared + P::BARRIERS_AT);
    Barrier* const empty = full + C::STAGES;
    typename P::Who& who = *reinterpret_cast<typename P::Who*>(shared + P::WHO_AT);
    float* const scale_of = reinterpret_cast<float*>(shared + P::SCALES_AT);
    float* const unscale = reinterpret_cast<float*>(shared + P::UNSCALES_AT) + threadIdx.x / 32 * C::ROWS;   // of this warp's sums
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;

    // By one thread.
    __device__ __forceinline__ void init() const {
        for (int s = 0; s < C::STAGES; s++) {
            barrier_init(full + s, 1);
            barrier_init(empty + s, P::WARPS * WARP_ARRIVALS);
        }
    }
    // By one thread, when the list is known.
    __device__ __forceinline__ UpFeeder<C> feeder(const void* codes, const void* scales) const {
        const int granules = who.count * P::PAIRS, from = P::first_granule(granules, blockIdx.x);
        const int left = (P::first_granule(granules, blockIdx.x + 1) - from) * P::STEPS;
        UpFeeder<C> feeder{static_cast<const char*>(codes), static_cast<const char*>(scales), shared, full, who.experts, from / P::PAIRS, from % P::PAIRS, left};
        if constexpr (C::EVICT_FIRST) feeder.policy = evict_first_policy();
        return feeder;
    }
    // The ring's first stages, one after the other: asked for at once, by a lane each, the first arrives a microsecond later.
    __device__ __forceinline__ void fill(UpFeeder<C>& feeder) const {
        for (int s = 0; s < C::STAGES && feeder.more(); s++) feeder.fill();
    }
    __device__ __forceinline__ void refill(UpFeeder<C>& feeder) const {
        for (unsigned parity = 0; feeder.more();) {
            barrier_wait(empty + feeder.stage, parity);
            feeder.fill();
            if (feeder.stage == 0) parity ^= 1;
        }
    }

    // Consumers: x of all rows, whatever those beyond the step's count hold: no other row's sums meet them.
    __device__ __forceinline__ RowsOfX<P::GROUPS> stage(Stage& stager, const float* x, const float* norm) const {
        Sum* const squares = reinterpret_cast<Sum*>(shared + P::SQUARES_AT);
        RowsOfX<P::GROUPS> rows_of_x;
#pragma unroll
        for (int group = 0; group < P::GROUPS; group++) {
            char* const here = shared + P::X_AT + group * S::X_BYTES;
            stager.run(x + group * P::Product::ROWS * C::INPUTS, norm, least(C::ROWS - group * P::Product::ROWS, P::Product::ROWS), here,
                       squares + group * (S::SQUARES / static_cast<int>(sizeof(Sum))), warp, lane);
            if constexpr (P::EXACT) {
                rows_of_x.at[group] = here + lane * 16;
            } else {
                rows_of_x.at[group] = here + ((lane / 16 * P::Product::ROWS + lane / 4 % 4) * 4 + lane % 4) * 8 * S::PAIR;
                rows_of_x.live[group] = lane / 4 % 4 < P::Product::ROWS;
#pragma unroll
                for (int row = 0; row < P::Product::ROWS; row++)
                    if (lane == 0 && group * P::Product::ROWS + row < C::ROWS) unscale[group * P::Product::ROWS + row] = stager.unscale[row];
            }
        }
        return rows_of_x;
    }

    // Consumers, when the list and x stand in shared memory: `store(place of the output in inner, value)` for each of the block's.
    template <class Store>
    __device__ __forceinline__ void multiply(const RowsOfX<P::GROUPS>& rows_of_x, const float* row_scales, const Store& store) const {
        const int granules = who.count * P::PAIRS, from = P::first_granule(granules, blockIdx.x), end = P::first_granule(granules, blockIdx.x + 1);
        if (from == end) return;
        load_scales(row_scales, from, end);
        Sum* const partials = reinterpret_cast<Sum*>(shared + P::PARTIALS_AT);
        const int k_warp = warp % S::K_WARPS, tile_warp = warp / S::K_WARPS;
        int stage = 0;
        unsigned parity = 0;
        const auto release = [&] {
            warp_arrive(empty + stage, lane);
            if (++stage == C::STAGES) stage = 0, parity ^= 1;
        };
        const auto multiply = [&](Tile& sum, const char* at, const char* scales_at, unsigned groups, int first, int units) {
            constexpr bool EVEN = S::PART_UNITS % S::K_WARPS == 0 && S::UNITS % S::PART_UNITS == 0;
            for_live<C::FORMAT, P::GROUPS>(groups, [&](auto live) {
#pragma unroll
                for (int i = 0; i < ceil_div(S::PART_UNITS, S::K_WARPS); i++) {
                    const int unit = k_warp + i * S::K_WARPS;
                    if (!EVEN && unit >= units) break;
                    float block_scale = 1.0f;
                    if constexpr (S::BLOCK_SCALES) block_scale = reinterpret_cast<const float*>(scales_at)[unit / 2];
                    sum.add(live, at + unit * UNIT_BYTES, scales_at + unit * S::U::SCALE_BYTES, block_scale, rows_of_x, first + unit, i, lane);
                }
            });
        };

        int place = from / P::PAIRS, pair = from % P::PAIRS;
        for (int granule = from, odd = 0; granule < end; granule++, odd ^= 1) {
            const int expert = who.experts[place];
            const unsigned rows = who.rows[place], groups = (rows & 15 ? 1 : 0) | (rows >> 4 ? 2 : 0);
            Sum* const here = partials + odd * P::GRANULE_PARTIALS;
            const auto tile_partials = [&](int tile) { return here + tile * S::K_WARPS * C::ROWS * TILE_ROWS; };
            const auto stage_scales = [&](int tile, int first) {
                const char* at = shared + stage * S::STAGE + S::STAGE_CODES;
                return S::BLOCK_SCALES ? at + ((expert * P::TILES + pair * 2 + tile) * S::SCALE_COLUMNS + first / 2) % 4 * 4 : at;
            };
            for (int base = 0; base < 2; base += S::STAGE_TILES) {
                if constexpr (S::WHOLE) {
                    barrier_wait(full + stage, parity);
                    const char* scales_at = stage_scales(base, 0);
                    for (int t = tile_warp; t < S::STAGE_TILES; t += S::TILE_WARPS) {
                        Tile sum;
                        multiply(sum, shared + stage * S::STAGE + t * S::UNITS * UNIT_BYTES,
                                 scales_at + (S::BLOCK_SCALES ? t * S::SCALE_COLUMNS * 4 : t * S::UNITS * S::U::SCALE_BYTES), groups, 0, S::UNITS);
                        sum.leave(tile_partials(base + t), unscale, k_warp, lane);
                    }
                    release();
                } else {
                    Tile sum;
                    for (int first = 0; first < S::UNITS; first += S::PART_UNITS) {
                        barrier_wait(full + stage, parity);
                        multiply(sum, shared + stage * S::STAGE, stage_scales(base, first), groups, first, least(S::PART_UNITS, S::UNITS - first));
                        release();
                    }
                    sum.leave(tile_partials(base), unscale, k_warp, lane);
                }
            }
            named_barrier(1, P::CONSUMERS);
            // Warps take turns with the ends of granules, which are long for the few threads that have one: the others are at the next meanwhile.
            const int output = (threadIdx.x + P::CONSUMERS - (granule - from) % P::WARPS * 32) % P::CONSUMERS;
            if (output < C::ROWS * TILE_ROWS) {
                const int row = output / TILE_ROWS, feature = pair * (P::UNGATED ? 2 : 1) * TILE_ROWS + output % TILE_ROWS;
                if ((rows >> row & 1) && feature < C::WIDTH) {
                    Sum value[2];
#pragma unroll
                    for (int part = 0; part < 2; part++) {
                        Sum sum = 0;
#pragma unroll
                        for (int w = 0; w < S::K_WARPS; w++) sum += tile_partials(part)[w * C::ROWS * TILE_ROWS + output];
                        if constexpr (S::ROW_SCALES) sum *= static_cast<Sum>(scale_of[P::SCALED_ROWS ? (granule - from) * 16 + part * TILE_ROWS + output % TILE_ROWS : 2 * place + part]);
                        value[part] = P::EXACT ? static_cast<Sum>(static_cast<float>(sum)) : sum;
                    }
                    const int at = (row * C::ACTIVE + who.slot[place * C::ROWS + row]) * C::WIDTH + feature;
                    if constexpr (P::UNGATED) {
#pragma unroll
                        for (int part = 0; part < 2; part++) store(at + part * TILE_ROWS, static_cast<float>(activate<C::ACTIVATION>(value[part])));
                    } else {
                        store(at, static_cast<float>(activate<C::ACTIVATION>(value[0]) * value[1]));
                    }
                }
            }
            if (++pair == P::PAIRS) pair = 0, place++;
        }
    }

    // One value a part, or one a row: read for all of the block's range at once, long before the first sum is whole.
    __device__ __forceinline__ void load_scales(const float* row_scales, int from, int end) const {
        if constexpr (S::ROW_SCALES && !P::SCALED_ROWS) {
            for (int i = from / P::PAIRS * 2 + threadIdx.x; i < (end - 1) / P::PAIRS * 2 + 2; i += P::CONSUMERS)
                scale_of[i] = load_constant(row_scales + (static_cast<long long>(who.experts[i / 2]) * P::TILES + i % 2) * TILE_ROWS);
        }
        if constexpr (P::SCALED_ROWS) {
            for (int i = threadIdx.x; i < (end - from) * 16; i += P::CONSUMERS) {
                const int granule = from + i / 16;
                const long long tile = static_cast<long long>(who.experts[granule / P::PAIRS]) * P::TILES + granule % P::PAIRS * 2;
                scale_of[i] = load_constant(row_scales + tile * TILE_ROWS + i % 16);
            }
        }
    }
};

template <class C>
__device__ __forceinline__ void experts_ring_up(const Step* step, const float* x, const float* norm, const float* logits, const void* codes, const void* scales,
                                                const float* row_scales, float* inner, float* routing, const World* world) {
    using P = RingUpShape<C>;
    constexpr bool ONE = C::ROWS == 1;
    launch_dependents();
    MONOMORPH_DYNAMIC_SHARED(experts_shared, 128);
    const UpBlock<C> block{reinterpret_cast<char*>(experts_shared)};
    const int warp = block.warp, lane = block.lane;
    const int first = first_expert<C>(world);
    const auto choose = [&](int row) {
        constexpr int ROUTED = Routed<C>::COUNT;
        Choice choice = choose_experts<ROUTED, C::ACTIVE, C::RENORMALISE, P::EXACT, Scored<C>>(logits + row * Scored<C>::Row::floats(ROUTED), lane);
        choice.expert -= first;
        if (lane < C::ACTIVE) block.who.chosen[row * C::ACTIVE + lane] = choice.expert;
        // Rows that are not in use are left alone: nobody reads them.
        if (blockIdx.x == 0 && (C::LIMIT == Limit::NONE || row < step->tokens)) store_routing<C::ACTIVE>(routing + row * 2 * C::ACTIVE, choice, lane);
    };

    if (warp == P::WARPS) {
        if (lane == 0) {
            block.init();
            barrier_init_fence();
        }
        block.who.clear(lane);
        __syncwarp();
        __syncthreads();
        wait_for_predecessors();
        const int tokens = C::LIMIT == Limit::NONE ? C::ROWS : least(step->tokens, C::ROWS);
        if constexpr (ONE) choose(0);
        else named_barrier(2, P::THREADS);
        __syncwarp();
        block.who.gather(tokens, lane);
        named_barrier_arrive(3, P::THREADS);
        if (lane == 0) {
            auto feeder = block.feeder(codes, scales);
            block.fill(feeder);
            block.refill(feeder);
        }
        return;
    }

    typename UpBlock<C>::Stage stager;
    stager.before_wait(norm, warp, lane);
    __syncthreads();
    wait_for_predecessors();
    if constexpr (!ONE) {
        for (int row = warp; row < C::ROWS; row += P::WARPS) choose(row);
        named_barrier_arrive(2, P::THREADS);
    }
    const auto rows_of_x = block.stage(stager, x, norm);
    named_barrier(3, P::THREADS);   // the list and the scales of x
    block.multiply(rows_of_x, row_scales, [&](int at, float value) { inner[at] = value; });
}

// Which of the two a step's rows take.
template <class C>
__device__ __forceinline__ void experts_stream_up(const Step* step, const float* x, const float* norm, const float* logits, const void* codes, const void* scales,
                                                  const float* row_scales, float* inner, float* routing, const World* world = nullptr) {
    if constexpr (FEW<C>) experts_few_up<C>(step, x, norm, logits, codes, scales, row_scales, inner, routing, world);
    else experts_ring_up<C>(step, x, norm, logits, codes, scales, row_scales, inner, routing, world);
}

}  // namespace monomorph
