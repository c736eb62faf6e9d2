// The experts' down products for a few tokens, their weighted sum, the shared expert's down product and the residual: what
// experts_stream_down.cuh computes, with its Config, arguments and epilogue, a warp at a time (experts_few.cuh).
//
// A block owns tiles of the output (8 rows of every down matrix). Its warps take turns with the listed experts, each over
// all of K of all tiles; what a warp finds for a row that chose the expert goes to the place of that row's slot. When all are there they are added in the order
// of slots: a row's sum is its own, whatever the others chose. The shared expert's part, which no routing tells, is in shared memory
// before the wait, and multiplied by all warps together.
//
// Named barriers: 1 consumers, 3 the list, the factors and the staged rows.
#pragma once

#include "experts/experts_few.cuh"
#include "experts/experts_stream_down_epilogue.cuh"
#include "experts/experts_stream_down_stage.cuh"
#include "experts/experts_stream_sum.cuh"

namespace monomorph {

template <class C>
struct FewDown {
    using Shape = DownShape<C>;
    using Experts = typename Shape::Experts;
    using Shared = typename Shape::Shared;
    using P = typename Shape::P;
    using Ring = typename Shape::Ring;
    static constexpr int WARPS = Shape::WARPS, GROUPS = Shape::GROUPS, ROWS = C::ROWS;
    static constexpr int TOGETHER = DownRow<Experts>::WHOLE ? most(1, least(4, 8 / DownRow<Experts>::SLICE)) : 1;   // rows on the way
    char* const shared;
    const int from = Shape::first_tile(blockIdx.x), tiles = Shape::first_tile(blockIdx.x + 1) - from;
    typename Shape::Who& who = *reinterpret_cast<typename Shape::Who*>(shared + Shape::WHO_AT);
    float* const factors = reinterpret_cast<float*>(shared + Shape::FACTORS_AT);     // of slots: weight * scale
    float* const unscales = reinterpret_cast<float*>(shared + Shape::UNSCALES_AT);   // of slots, then of the shared expert's rows
    float* const partials = reinterpret_cast<float*>(shared + Shape::PARTIALS_AT);   // [tile][slot][row][8 outputs]
    float* const common = reinterpret_cast<float*>(shared + Shape::SHARED_PARTIALS_AT);
    Barrier* const barriers = reinterpret_cast<Barrier*>(shared + Shape::BARRIERS_AT);
    Barrier* const common_full = barriers + WARPS * Ring::BARRIERS;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;

    // The pieces of a warp's experts in order: every tile of one, then of the next.
    struct Place {
        int at;   // in the list
        int tile = 0, part = 0;
    };
    __device__ __forceinline__ Ring ring_of(int w) const { return Ring(shared + w * C::STAGES * P::STAGE, barriers + w * Ring::BARRIERS); }
    __device__ __forceinline__ void next_piece(Place& place) const {
        if (P::COUNT > 1 && ++place.part < P::COUNT) return;
        place.part = 0;
        if (++place.tile < tiles) return;
        place.tile = 0, place.at += WARPS;
    }
    // By one thread, before the wait.
    __device__ __forceinline__ void init(const void* codes, const void* scales) const {
        for (int w = 0; w < WARPS; w++) Ring::init(barriers + w * Ring::BARRIERS);
        barrier_init(common_full, 1);
        barrier_init_fence();
        if constexpr (Shape::COMMON) {
            if (tiles == 0) return;
            const long long unit = static_cast<long long>(from) * Shared::UNITS;
            const int units = tiles * Shared::UNITS;
            char* const at = shared + Shape::COMMON_AT;
            const char* from_scales = static_cast<const char*>(scales) + unit * Shared::U::SCALE_BYTES;
            int bytes = units * Shared::U::SCALE_BYTES;
            if constexpr (Shared::BLOCK_SCALES) {
                const long long first = static_cast<long long>(from) * Shared::SCALE_COLUMNS * 4;
                from_scales = static_cast<const char*>(scales) + (first & ~15ll);
                bytes = (static_cast<int>(first & 15) + tiles * Shared::SCALE_COLUMNS * 4 + 15) & ~15;
            }
            barrier_expect(common_full, units * UNIT_BYTES + bytes);
            bulk_copy(at, static_cast<const char*>(codes) + unit * UNIT_BYTES, units * UNIT_BYTES, common_full);
            if (bytes > 0) bulk_copy(at + Shape::COMMON_CODES, from_scales, bytes, common_full);
        }
    }
    // By one lane.
    __device__ __forceinline__ void fill(const Ring& ring, const Place& place, const char* codes, const char* scales) const {
        const long long tile = static_cast<long long>(who.experts[place.at]) * Shape::TILES + from + place.tile;
        const int first = place.part * P::PIECE, units = least(P::PIECE, Experts::UNITS - first);
        const long long first_scale = P::ROW_SCALES ? tile * TILE_ROWS : tile * Experts::SCALE_COLUMNS + first / 2;
        ring.fill(codes, scales, tile * Experts::UNITS + first, units, first_scale);
    }
    __device__ __forceinline__ void stage_common(const float* shared_inner) const {
        if constexpr (Shape::COMMON) {
#pragma unroll 1
            for (int t = warp; t < ROWS; t += WARPS) {
                DownRow<Shared> row;
                row.begin(shared_inner + t * C::SHARED_WIDTH, lane);
                row.finish(shared_inner + t * C::SHARED_WIDTH, shared + Shape::SHARED_X_AT + t * Shared::ROW_BYTES, unscales + Shape::SLOTS + t, lane);
            }
        }
    }
    // The warps' rows of slots into shared memory, several on the way at a time.
    __device__ __forceinline__ void stage(const float* inner, int slots) const {
#pragma unroll 1
        for (int first = warp; first < slots; first += WARPS * TOGETHER) {
            DownRow<Experts> rows[TOGETHER];
#pragma unroll
            for (int i = 0; i < TOGETHER; i++)
                if (first + i * WARPS < slots) rows[i].begin(inner + (first + i * WARPS) * C::WIDTH, lane);
#pragma unroll
            for (int i = 0; i < TOGETHER; i++) {
                const int slot = first + i * WARPS;
                if (slot < slots) rows[i].finish(inner + slot * C::WIDTH, shared + Shape::X_AT + slot * Experts::ROW_BYTES, unscales + slot, lane);
            }
        }
    }
    template <class D>
    __device__ __forceinline__ static int lane_offset(int lane) { return (lane / 16 * 4 + lane % 4) * 8 * D::PAIR; }

    // The shared expert's products of the block's tiles: a warp's units of every tile.
    __device__ __forceinline__ void multiply_common() const {
        if constexpr (Shape::COMMON) {
            RowsOfX<GROUPS> x;
#pragma unroll
            for (int g = 0; g < GROUPS; g++) {
                x.at[g] = shared + Shape::SHARED_X_AT + (4 * g + lane / 4 % 4) * Shared::ROW_BYTES + lane_offset<Shared>(lane);
                x.live[g] = true;
            }
            const char* const scales = shared + Shape::COMMON_AT + Shape::COMMON_CODES + (Shared::BLOCK_SCALES ? from * Shared::SCALE_COLUMNS % 4 * 4 : 0);
            if (tiles > 0) barrier_wait(common_full, 0);
            for (int t = 0; t < tiles; t++) {
                ExpertSum<Shared::FORMAT, Shared::BLOCK_SCALES, GROUPS, Shared::CHUNK_BYTES> sum;
                for (int unit = warp, i = 0; unit < Shared::UNITS; unit += WARPS, i++) {
                    const int at = t * Shared::UNITS + unit;
                    const float block_scale = Shared::BLOCK_SCALES ? reinterpret_cast<const float*>(scales)[t * Shared::SCALE_COLUMNS + unit / 2] : 1.0f;
                    sum.add(Live<(1u << GROUPS) - 1>(), shared + Shape::COMMON_AT + at * UNIT_BYTES, scales + at * Shared::U::SCALE_BYTES, block_scale, x, unit, 0, lane);
                }
                float* const to = common + t * Shape::SHARED_TILE_PARTIALS + warp * ROWS * TILE_ROWS + lane / 4;
#pragma unroll
                for (int g = 0; g < GROUPS; g++)
#pragma unroll
                    for (int i = 0; i < 2; i++) {
                        const float value = halves(sum.half(g, i, lane));
                        const int row = 4 * g + 2 * (lane % 4) + i;
                        if (lane % 4 < 2) to[row * TILE_ROWS] = value * unscales[Shape::SLOTS + row];
                    }
            }
        }
    }
    // One expert's products of the block's tiles, over rows of one group of four, the g-th, or of both.
    template <int N, class Piece>
    __device__ __forceinline__ void multiply(int at, int g, const Piece& piece) const {
        const unsigned char* const slots = who.slot + at * ROWS + 4 * g;
        RowsOfX<N> x;
        float factor[N][2];
        int to[N][2];
#pragma unroll
        for (int i = 0; i < N; i++) {
            const int fed = lane / 4 % 4;
            const unsigned slot = slots[4 * i + fed];
            x.live[i] = slot != NO_SLOT;
            x.at[i] = shared + Shape::X_AT + (x.live[i] ? (4 * (g + i) + fed) * C::ACTIVE + slot : 0) * Experts::ROW_BYTES + lane_offset<Experts>(lane);
#pragma unroll
            for (int j = 0; j < 2; j++) {
                const int row = 2 * (lane % 4) + j;   // of the group, in the lanes that have whole sums
                const int of_row = lane % 4 < 2 ? slots[4 * i + row] : NO_SLOT;
                const int place = (4 * (g + i) + row) * C::ACTIVE + of_row;
                to[i][j] = of_row == NO_SLOT ? -1 : (of_row * ROWS + 4 * (g + i) + row) * TILE_ROWS + lane / 4;
                factor[i][j] = of_row == NO_SLOT ? 0.0f : factors[place] * unscales[place];
            }
        }
#pragma unroll 1
        for (int t = 0; t < tiles; t++) {
            ExpertSum<C::FORMAT, Experts::BLOCK_SCALES, N, Experts::CHUNK_BYTES> sum;
            float row_scale = 1.0f;
#pragma unroll
            for (int part = 0; part < P::COUNT; part++) {
                const int first = part * P::PIECE;
                piece([&](const char* codes) {
                    const char* scales = codes + P::CODES;
                    if constexpr (P::BLOCK_SCALES)
                        scales += static_cast<int>(((static_cast<long long>(who.experts[at]) * Shape::TILES + from + t) * Experts::SCALE_COLUMNS + first / 2) % 4) * 4;
#pragma unroll
                    for (int i = 0; i < P::PIECE; i++) {
                        if (Experts::UNITS % P::PIECE != 0 && first + i >= Experts::UNITS) break;
                        const float block_scale = P::BLOCK_SCALES ? reinterpret_cast<const float*>(scales)[i / 2] : 1.0f;
                        sum.add(AllLive(), codes + i * UNIT_BYTES, scales + i * P::U::SCALE_BYTES, block_scale, x, first + i, i, lane, P::begins(i),
                                P::ends(i) || first + i + 1 >= Experts::UNITS);
                    }
                    if constexpr (P::ROW_SCALES) row_scale = reinterpret_cast<const float*>(scales)[lane / 4];
                });
            }
#pragma unroll
            for (int i = 0; i < N; i++)
#pragma unroll
                for (int j = 0; j < 2; j++) {
                    const float value = halves(sum.half(i, j, lane)) * row_scale;
                    if (to[i][j] >= 0) partials[t * Shape::TILE_PARTIALS + to[i][j]] = value * factor[i][j];
                }
        }
    }
};

template <class C, class Epilogue = DownEpilogue<C>>
__device__ __forceinline__ void experts_few_down(const Step* step, const float* inner, const float* routing, const float* shared_inner, const float* scale, const void* codes,
                                                 const void* scales, const float* row_scales, const void* shared_codes, const void* shared_scales,
                                                 const float* shared_row_scales, float* residual, World* world) {
    using Few = FewDown<C>;
    using Shape = DownShape<C>;
    launch_dependents();
    MONOMORPH_DYNAMIC_SHARED(experts_shared, 128);
    const Few block{reinterpret_cast<char*>(experts_shared)};
    const int warp = block.warp, lane = block.lane;
    const auto rows_in_use = [&] { return C::LIMIT == Limit::NONE ? C::ROWS : least(step->tokens, C::ROWS); };   // after the wait only
    const char* const of_codes = static_cast<const char*>(codes);
    const char* const of_scales = Few::P::ROW_SCALES ? reinterpret_cast<const char*>(row_scales) : static_cast<const char*>(scales);

    if (warp == Shape::WARPS) {
        if (lane == 0) block.init(shared_codes, shared_scales);
        block.who.clear(lane);
        __syncthreads();
        wait_for_predecessors();
        constexpr int EACH = ceil_div(Shape::SLOTS, 32);
        const int slots = rows_in_use() * C::ACTIVE;
        float weight[EACH], expert_scale[EACH];
#pragma unroll
        for (int i = 0; i < EACH; i++) {
            const int slot = i * 32 + lane, at = slot / C::ACTIVE * 2 * C::ACTIVE + slot % C::ACTIVE;
            weight[i] = slot < Shape::SLOTS ? load_activation(routing + at) : 0.0f;
            const float id = slot < Shape::SLOTS ? load_activation(routing + at + C::ACTIVE) : 0.0f;
            const int expert = slot < slots ? static_cast<int>(id) : 0;   // what stands in rows that are not in use may be anything
            if (slot < Shape::SLOTS) block.who.chosen[slot] = expert;
            expert_scale[i] = down_scale<Shape>(row_scales, !SHARED_OUT<C> || is_held<C::EXPERTS>(expert) ? expert : 0);
        }
        __syncwarp();
        block.who.gather(rows_in_use(), lane);
        if (lane < Shape::WARPS && block.tiles > 0 && lane < block.who.count) block.fill(block.ring_of(lane), {lane}, of_codes, of_scales);
        __syncwarp();
#pragma unroll
        for (int i = 0; i < EACH; i++) {
            const int slot = i * 32 + lane;
            if (slot < Shape::SLOTS) block.factors[slot] = weight[i] * expert_scale[i];
        }
        __syncwarp();
        named_barrier_arrive(3, Shape::THREADS);
        return;
    }

    Epilogue epilogue(world);
    // Slots whose experts other ranks hold add nothing.
    for (int i = threadIdx.x; i < Shape::BLOCK_TILES * Shape::TILE_PARTIALS; i += Shape::CONSUMERS) block.partials[i] = 0.0f;
    __syncthreads();
    wait_for_predecessors();
    epilogue.begin();
    const int tokens = rows_in_use();
    block.stage_common(shared_inner);
    block.stage(inner, tokens * C::ACTIVE);
    named_barrier(3, Shape::THREADS);
    if (block.tiles == 0) return;
    typename Few::Ring ring = block.ring_of(warp);
    const int count = block.who.count;
    typename Few::Place ahead{warp};
    block.next_piece(ahead);
    ring.fill_others([&] {
        if (ahead.at >= count) return false;
        if (lane == 0) block.fill(ring, ahead, of_codes, of_scales);
        block.next_piece(ahead);
        return true;
    });
    epilogue.load(block.from, block.tiles, tokens, residual, scale, shared_row_scales);
    block.multiply_common();
    const auto piece = [&](const auto& use) {
        use(ring.wait());
        ring.release(lane, [&] {
            if (ahead.at < count) block.fill(ring, ahead, of_codes, of_scales);
        });
        block.next_piece(ahead);
    };
#pragma unroll 1
    for (int at = warp; at < count; at += Shape::WARPS) {
        const unsigned rows = block.who.rows[at];
        if (Few::GROUPS == 1 || !(rows & 15) || !(rows >> 4)) block.template multiply<1>(at, Few::GROUPS == 1 || rows & 15 ? 0 : 1, piece);
        else block.template multiply<Few::GROUPS>(at, 0, piece);
    }
    named_barrier(1, Shape::CONSUMERS);
    epilogue.store(block.from, block.tiles, tokens, block.partials, block.common, block.from, residual);
    epilogue.end(residual);
}

}  // namespace monomorph
