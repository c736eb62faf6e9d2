// The chosen experts' gate and up products for a few tokens: what experts_stream_up.cuh computes, with its Config and arguments, by
// teams of warps (experts_few.cuh).
//
// Who does what. Block b of B has the granules (a tile of gate rows and its tile of up rows) b/B .. (b + 1)/B of the list's, and its teams take them in
// turn: a warp multiplies its slice of K, and the two warps of a team meet at the end of each granule to add up and store. x, in f16 under one
// power of two a row, stands once in the block for all of them. A warp beside them gathers the list and begins the rings.
//
// A row's sum is over its own x in the order of K within a slice and then of slices: it depends on the shape alone.
//
// Named barriers: 1 scales, 2 choices, 3 the list and x, 4.. teams.
#pragma once

#include "experts/experts_few.cuh"
#include "experts/experts_stream_sum.cuh"

namespace monomorph {

template <class C, class = void>
constexpr bool IS_UNGATED = false;
template <class C>
constexpr bool IS_UNGATED<C, decltype(void(C::UNGATED))> = C::UNGATED;

template <class C>
struct FewUpShape {
    static constexpr bool UNGATED = IS_UNGATED<C>;
    static_assert(!UNGATED || C::WIDTH % (2 * TILE_ROWS) == 0, "pairs of tiles");
    // The product whose x the block stages: all of the warps' together.
    struct Product {
        static constexpr Format FORMAT = C::FORMAT;
        static constexpr Compute COMPUTE = C::COMPUTE;
        static constexpr Rounding ROUNDING = C::ROUNDING;
        static constexpr ScaleForm SCALES = C::SCALES;
        static constexpr int OUTPUTS = UNGATED ? C::WIDTH / 2 : C::WIDTH, INPUTS = C::INPUTS, ROWS = C::ROWS;
        static constexpr Norm NORM = C::NORM;
        static constexpr float EPS = C::EPS;
        static constexpr Epilogue EPILOGUE = Epilogue::GATED;
        static constexpr Activation ACTIVATION = C::ACTIVATION;
        static constexpr bool BIAS = false, EVICT_FIRST = C::EVICT_FIRST, ONE_SCALE = true;
        static constexpr Limit LIMIT = Limit::NONE;
        static constexpr int STAGES = 1, STAGE_BYTES = UNIT_BYTES * C::CONSUMER_WARPS, CONSUMER_WARPS = C::CONSUMER_WARPS;
        static constexpr int BLOCKS = ceil_div(OUTPUTS, TILE_ROWS), MULTIPROCESSORS = BLOCKS, LOOKAHEAD = 0, PACE = 1;
    };
    using S = StreamShape<Product>;
    using Who = Choices<C::EXPERTS, C::ACTIVE, C::ROWS, SHARED_OUT<C>>;
    static constexpr int WARPS = C::CONSUMER_WARPS, CONSUMERS = 32 * WARPS, THREADS = CONSUMERS + 32, GROUPS = S::GROUPS;
    static constexpr int TEAM = 2, TEAMS = WARPS / TEAM;   // one or four warps a team are slower by 1 to 15 %
    static constexpr int PAIRS = S::GRANULES, TILES = 2 * PAIRS;   // granules and tiles of an expert
    static constexpr bool SCALED_ROWS = S::ROW_SCALES && C::FORMAT == Format::F16;   // a scale a row; else one an expert's gate, and one its up
    using P = Pieces<C::FORMAT, C::SCALES, SCALED_ROWS, round_up(ceil_div(S::UNITS, TEAM), S::BLOCK_SCALES ? 2 : 1), C::STAGE_BYTES / UNIT_BYTES>;
    using Ring = WarpRing<P, C::STAGES, C::EVICT_FIRST>;

    // ---- Shared memory, in this order ----
    static constexpr int X_AT = WARPS * C::STAGES * P::STAGE;
    static constexpr int GRANULE_PARTIALS = 2 * TEAM * C::ROWS * TILE_ROWS;                    // f32 [tile][warp of the team][row][8 outputs]
    static constexpr int PARTIALS_AT = X_AT + S::X_BYTES;                                      // of every team two granules, used in turn
    static constexpr int SQUARES_AT = PARTIALS_AT + TEAMS * 2 * GRANULE_PARTIALS * 4;
    static constexpr int WHO_AT = SQUARES_AT + S::SQUARES;
    static constexpr int SCALES_AT = WHO_AT + round_up(static_cast<int>(sizeof(Who)), 16);     // f32 [list][gate, up]
    static constexpr int SCALES = S::ROW_SCALES && !SCALED_ROWS ? round_up(8 * Who::MOST, 16) : 0;
    static constexpr int UNSCALES_AT = SCALES_AT + SCALES;                                     // f32 [rows]
    static constexpr int BARRIERS_AT = UNSCALES_AT + round_up(4 * C::ROWS, 16);
    static constexpr int SHARED = BARRIERS_AT + 8 * WARPS * Ring::BARRIERS;
    static constexpr int shared_bytes() { return SHARED; }
    static constexpr int RESIDENT = 1;

    __host__ __device__ static constexpr int first_granule(int granules, int block) {
        return static_cast<int>(static_cast<long long>(granules) * block / C::BLOCKS);
    }
    static_assert(WARPS % TEAM == 0 && 4 + TEAMS <= 16, "a named barrier a team");
};

// The pieces of a warp's granules in order.
template <class C>
struct FewUpPlace {
    using Shape = FewUpShape<C>;
    using P = typename Shape::P;
    int at, pair, left;   // place in the list, granule of the expert, granules to come
    int tile = 0, part = 0;

    __device__ __forceinline__ void next_granule() {
        left--, pair += Shape::TEAMS;
        while (pair >= Shape::PAIRS) pair -= Shape::PAIRS, at++;
    }
    __device__ __forceinline__ void next_piece() {
        if (P::COUNT > 1 && ++part < P::COUNT) return;
        part = 0;
        if (++tile < 2) return;
        tile = 0;
        next_granule();
    }
};

template <class C>
__device__ __forceinline__ void experts_few_up(const Step* step, const float* x, const float* norm, const float* logits, const void* codes, const void* scales,
                                               const float* row_scales, float* inner, float* routing, const World* world) {
    using Shape = FewUpShape<C>;
    using S = typename Shape::S;
    using P = typename Shape::P;
    using Ring = typename Shape::Ring;
    constexpr int WARPS = Shape::WARPS, TEAM = Shape::TEAM, TEAMS = Shape::TEAMS, PAIRS = Shape::PAIRS, GROUPS = Shape::GROUPS, ROWS = C::ROWS;
    launch_dependents();
    MONOMORPH_DYNAMIC_SHARED(experts_shared, 128);
    char* const shared = reinterpret_cast<char*>(experts_shared);
    auto& who = *reinterpret_cast<typename Shape::Who*>(shared + Shape::WHO_AT);
    float* const scale_of = reinterpret_cast<float*>(shared + Shape::SCALES_AT);
    float* const unscale = reinterpret_cast<float*>(shared + Shape::UNSCALES_AT);
    Barrier* const barriers = reinterpret_cast<Barrier*>(shared + Shape::BARRIERS_AT);
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int first = first_expert<C>(world);
    const int team = warp / TEAM, member = warp % TEAM;
    const auto ring_of = [&](int w) { return Ring(shared + w * C::STAGES * P::STAGE, barriers + w * Ring::BARRIERS); };
    const auto place_of = [&](int w) {
        const int granules = who.count * PAIRS, from = Shape::first_granule(granules, blockIdx.x) + w / TEAM, end = Shape::first_granule(granules, blockIdx.x + 1);
        return FewUpPlace<C>{from / PAIRS, from % PAIRS, end > from ? ceil_div(end - from, TEAMS) : 0};
    };
    // The piece of `place` for the `member`-th warp of a team.
    const auto fill = [&](const Ring& ring, const FewUpPlace<C>& place, int member) {
        const int from = member * P::SLICE + place.part * P::PIECE;
        const int units = least(P::PIECE, least((member + 1) * P::SLICE, S::UNITS) - from);
        const long long tile = static_cast<long long>(who.experts[place.at]) * Shape::TILES + place.pair * 2 + place.tile;
        const long long first_scale = P::ROW_SCALES ? tile * TILE_ROWS : tile * S::SCALE_COLUMNS + from / 2;
        ring.fill(static_cast<const char*>(codes), P::ROW_SCALES ? reinterpret_cast<const char*>(row_scales) : static_cast<const char*>(scales), tile * S::UNITS + from, units, first_scale);
    };

    if (warp == WARPS) {
        if (lane == 0) {
            for (int w = 0; w < WARPS; w++) Ring::init(barriers + w * Ring::BARRIERS);
            barrier_init_fence();
        }
        who.clear(lane);
        __syncthreads();
        wait_for_predecessors();
        const int tokens = C::LIMIT == Limit::NONE ? ROWS : least(step->tokens, ROWS);
        named_barrier(2, Shape::THREADS);
        who.gather(tokens, lane);
        if (lane < WARPS) {
            const FewUpPlace<C> place = place_of(lane);
            if (place.left > 0) fill(ring_of(lane), place, lane % TEAM);
        }
        __syncwarp();
        named_barrier_arrive(3, Shape::THREADS);
        return;
    }

    HalfStage<typename Shape::Product> stager;
    stager.before_wait(norm, warp, lane);
    __syncthreads();
    wait_for_predecessors();
    for (int row = warp; row < ROWS; row += WARPS) {
        Choice choice = choose_experts<Routed<C>::COUNT, C::ACTIVE, C::RENORMALISE, false, Scored<C>>(logits + row * Scored<C>::Row::floats(Routed<C>::COUNT), lane);
        choice.expert -= first;
        if (lane < C::ACTIVE) who.chosen[row * C::ACTIVE + lane] = choice.expert;
        // Rows that are not in use are left alone: nobody reads them.
        if (blockIdx.x == 0 && (C::LIMIT == Limit::NONE || row < step->tokens)) store_routing<C::ACTIVE>(routing + row * 2 * C::ACTIVE, choice, lane);
    }
    named_barrier_arrive(2, Shape::THREADS);
    char* const staged = shared + Shape::X_AT;
    stager.run(x, norm, ROWS, staged, reinterpret_cast<float*>(shared + Shape::SQUARES_AT), warp, lane);
    if (warp == 0) {
#pragma unroll
        for (int row = 0; row < ROWS; row++)
            if (lane == row) unscale[row] = stager.unscale[row];
    }
    named_barrier(3, Shape::THREADS);
    Ring ring = ring_of(warp);
    FewUpPlace<C> place = place_of(warp), ahead = place;
    ahead.next_piece();
    ring.fill_others([&] {
        if (ahead.left <= 0) return false;
        if (lane == 0) fill(ring, ahead, member);
        ahead.next_piece();
        return true;
    });
    if constexpr (S::ROW_SCALES && !Shape::SCALED_ROWS) {
        for (int i = threadIdx.x; i < 2 * who.count; i += Shape::CONSUMERS)
            scale_of[i] = load_constant(row_scales + (static_cast<long long>(who.experts[i / 2]) * Shape::TILES + i % 2) * TILE_ROWS);
        named_barrier(1, Shape::CONSUMERS);
    }
    const char* const x_at = staged + ((lane / 16 * ROWS + lane / 4 % 4) * 4 + lane % 4) * 8 * S::PAIR;
    float* const partials = reinterpret_cast<float*>(shared + Shape::PARTIALS_AT) + team * 2 * Shape::GRANULE_PARTIALS;

    for (int odd = 0; place.left > 0; odd ^= 1) {
        const int expert = who.experts[place.at];
        const unsigned rows = who.rows[place.at];
        float* const here = partials + odd * Shape::GRANULE_PARTIALS;
        // The products of the rows of one group of four, the g-th, or of both.
        const auto multiply = [&](auto both, int g) {
            constexpr int N = decltype(both)::GROUPS;
            RowsOfX<N> of_x;
#pragma unroll
            for (int i = 0; i < N; i++) of_x.at[i] = x_at + (g + i) * S::GROUP_BYTES, of_x.live[i] = true;
#pragma unroll 1
            for (int tile = 0; tile < 2; tile++) {
                ExpertSum<C::FORMAT, S::BLOCK_SCALES, N, S::CHUNK_BYTES> sum;
                float row_scale = 1.0f;
#pragma unroll
                for (int part = 0; part < P::COUNT; part++) {
                    const int from = member * P::SLICE + part * P::PIECE;
                    const char* at = ring.wait();
                    const char* scales_at = at + P::CODES;
                    if constexpr (P::BLOCK_SCALES) scales_at += ((expert * Shape::TILES + place.pair * 2 + tile) * S::SCALE_COLUMNS + from / 2) % 4 * 4;
#pragma unroll
                    for (int i = 0; i < P::PIECE; i++) {
                        constexpr bool EVEN = P::SLICE * TEAM == S::UNITS && P::SLICE % P::PIECE == 0;
                        if (!EVEN && (part * P::PIECE + i >= P::SLICE || from + i >= S::UNITS)) break;
                        float block_scale = 1.0f;
                        if constexpr (P::BLOCK_SCALES) block_scale = reinterpret_cast<const float*>(scales_at)[i / 2];
                        sum.add(AllLive(), at + i * UNIT_BYTES, scales_at + i * P::U::SCALE_BYTES, block_scale, of_x, from + i, i, lane, P::begins(i), P::ends(i) || from + i + 1 >= S::UNITS);
                    }
                    if constexpr (P::ROW_SCALES) row_scale = reinterpret_cast<const float*>(scales_at)[lane / 4];
                    ring.release(lane, [&] {
                        if (ahead.left > 0) fill(ring, ahead, member);
                    });
                    ahead.next_piece();
                }
                float* const to = here + ((tile * TEAM + member) * ROWS + 4 * g) * TILE_ROWS + lane / 4;
#pragma unroll
                for (int i = 0; i < N; i++)
#pragma unroll
                    for (int j = 0; j < 2; j++) {
                        const float value = halves(sum.half(i, j, lane)) * row_scale;
                        if (lane % 4 < 2) to[(4 * i + 2 * (lane % 4) + j) * TILE_ROWS] = value;
                    }
            }
        };
        if (GROUPS == 1 || !(rows & 15) || !(rows >> 4)) multiply(Groups<1>(), GROUPS == 1 || rows & 15 ? 0 : 1);
        else multiply(Groups<GROUPS>(), 0);
        named_barrier(4 + team, 32 * TEAM);
#pragma unroll
        for (int output = member * 32 + lane; output < ROWS * TILE_ROWS; output += 32 * TEAM) {
            const int row = output / TILE_ROWS, feature = place.pair * (Shape::UNGATED ? 2 : 1) * TILE_ROWS + output % TILE_ROWS;
            if (!(rows >> row & 1) || feature >= C::WIDTH) continue;
            float value[2];
#pragma unroll
            for (int tile = 0; tile < 2; tile++) {
                value[tile] = 0.0f;
#pragma unroll
                for (int w = 0; w < TEAM; w++) value[tile] += here[(tile * TEAM + w) * ROWS * TILE_ROWS + output];
                value[tile] *= unscale[row];
                if constexpr (S::ROW_SCALES && !Shape::SCALED_ROWS) value[tile] *= scale_of[2 * place.at + tile];
            }
            float* const to = inner + (row * C::ACTIVE + who.slot[place.at * ROWS + row]) * C::WIDTH + feature;
            if constexpr (Shape::UNGATED) to[0] = activate<C::ACTIVATION>(value[0]), to[TILE_ROWS] = activate<C::ACTIVATION>(value[1]);
            else *to = activate<C::ACTIVATION>(value[0]) * value[1];
        }
        place.next_granule();
    }
}

}  // namespace monomorph
