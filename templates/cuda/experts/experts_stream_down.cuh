// The chosen experts' down products for few tokens, their weighted sum, the shared expert's down product and the residual, at the pace of reading:
//   residual[t] += (sum over slots of weight * down_e inner[t, slot]) + sigmoid(scale[t]) * shared_down shared_inner[t]; REPLACES: = that sum.
//
// A block owns tiles of the output (8 rows of every down matrix) and reduces them over all chosen experts, so that no sum leaves it. The ring
// holds first the shared expert's part of the block's tiles, which no routing tells and which is asked for before the wait, then for every
// group of tiles the pieces of the listed experts one after the other (what a piece is: experts_stream_down_shape.cuh).
//
// Warps share out tiles and the units of K. A warp's sum over its units of one expert's tile is multiplied by the slot's weight (and by the
// expert's scale) and added to the tile's sum in registers; the warps' sums meet when the list has been gone through. Rows that did not choose
// an expert meet zeros in its product, with weight 0, and slots are met in the order of route_choose.cuh: a row's sum is its own.
//
// Arguments: inner f32 [ROWS, ACTIVE * WIDTH]; routing f32 [ROWS, 2 * ACTIVE], weights and ids (of ROUTED, from the rank's first on); shared_inner f32 [ROWS, SHARED_WIDTH]; scale f32
// [ROWS], before the sigmoid; all 16-byte aligned. codes and scales: the planes of the experts' matrices, expert e's at e times one matrix's bytes;
// row_scales f32 [EXPERTS][TILES * 8], but for f16 one value an expert; shared_codes, shared_scales, shared_row_scales as of any packed matrix; residual
// f32 [ROWS, OUTPUTS].
#pragma once

#include "experts/experts_few_down.cuh"
#include "experts/experts_stream_down_epilogue.cuh"
#include "experts/experts_stream_down_stage.cuh"
#include "experts/experts_stream_sum.cuh"

namespace monomorph {

// The stages of a block's tiles in order: the shared expert's, then group by group the experts'.
template <class C>
struct DownFeeder {
    using P = DownShape<C>;
    using Experts = typename P::Experts;
    using Shared = typename P::Shared;
    const char* codes;
    const char* scales;   // SCALED_ROWS: of rows
    const char* shared_codes;
    const char* shared_scales;
    char* ring;
    Barrier* full;
    const int* experts;
    int common, tile, end;   // next tiles of the shared expert and of the experts
    int count = 0, at = 0;   // of the list; place in it
    int filled = 0, stage = 0;
    unsigned long long policy;

    __device__ __forceinline__ bool more_common() const { return P::COMMON && common < end; }
    __device__ __forceinline__ bool more() const { return more_common() || (tile < end && count > 0); }

    __device__ __forceinline__ void fill() {
        if (more_common()) {
            const int tiles = least(Shared::TILES, end - common);
            barrier_expect(full + stage, bytes<Shared>(common, tiles));
            piece<Shared>(shared_codes, shared_scales, common, tiles, 1, 0);
            common += tiles;
        } else {
            const int tiles = least(P::GROUP_TILES, end - tile), pieces = least(Experts::PIECES, count - at);
            int expected = 0;
            for (int p = 0; p < pieces; p++) expected += bytes<Experts>(first(p), tiles);
            barrier_expect(full + stage, expected);
            for (int p = 0; p < pieces; p++) piece<Experts>(codes, scales, first(p), tiles, Experts::PIECES, p);
            at += pieces;
            if (at == count) at = 0, tile += tiles;
        }
        filled++;
        if (++stage == C::STAGES) stage = 0;
    }
    __device__ __forceinline__ void fill_when_empty(Barrier* empty) {
        if (filled >= C::STAGES) barrier_wait(empty + stage, (filled / C::STAGES - 1) & 1);
        fill();
    }
    // First tile of the p-th piece of the next stage, of all experts' tiles.
    __device__ __forceinline__ long long first(int p) const { return static_cast<long long>(experts[at + p]) * P::TILES + tile; }

    template <class D>
    __device__ __forceinline__ static int scale_bytes(long long tile, int tiles) {
        if constexpr (D::SCALED_ROWS) return tiles * TILE_ROWS * 4;
        else if constexpr (D::BLOCK_SCALES) return (static_cast<int>(tile * D::SCALE_COLUMNS % 4) * 4 + tiles * D::SCALE_COLUMNS * 4 + 15) & ~15;
        else return tiles * D::UNITS * D::U::SCALE_BYTES;
    }
    template <class D>
    __device__ __forceinline__ static int bytes(long long tile, int tiles) { return tiles * D::UNITS * UNIT_BYTES + scale_bytes<D>(tile, tiles); }
    template <class D>
    __device__ __forceinline__ void piece(const char* from, const char* scales_from, long long tile, int tiles, int pieces, int p) const {
        char* at_stage = ring + stage * P::STAGE;
        copy(at_stage + p * D::PIECE_UNITS * UNIT_BYTES, from + tile * D::UNITS * UNIT_BYTES, tiles * D::UNITS * UNIT_BYTES);
        if constexpr (D::PIECE_SCALES > 0) {
            const long long offset = D::SCALED_ROWS ? tile * TILE_ROWS * 4 : D::BLOCK_SCALES ? (tile * D::SCALE_COLUMNS * 4) & ~15ll : tile * D::UNITS * D::U::SCALE_BYTES;
            copy(at_stage + pieces * D::PIECE_UNITS * UNIT_BYTES + p * D::PIECE_SCALES, scales_from + offset, scale_bytes<D>(tile, tiles));
        }
    }
    __device__ __forceinline__ void copy(void* to, const void* from, int bytes) const {
        if constexpr (C::EVICT_FIRST) bulk_copy(to, from, bytes, full + stage, policy);
        else bulk_copy(to, from, bytes, full + stage);
    }
};

// One warp's sum over its units of a tile of one product. `value(g, i)`: this lane's part of its sums of group g.
template <class C, class D, bool EXACT>
struct DownSum {
    ExpertSum<D::FORMAT, D::BLOCK_SCALES, DownShape<C>::GROUPS, D::CHUNK_BYTES> sum;
    template <class Which>
    __device__ __forceinline__ void add(Which live, const char* codes, const char* scales, float block_scale, const RowsOfX<DownShape<C>::GROUPS>& x, int unit, int index, int lane) {
        sum.add(live, codes, scales, block_scale, x, unit, index, lane);
    }
    __device__ __forceinline__ float value(int g, int i, int lane) const { return sum.half(g, i, lane); }
};
template <class C, class D>
struct DownSum<C, D, true> {
    double sum[2] = {};
    __device__ __forceinline__ void add(Live<1>, const char* codes_at, const char* scales, float, const RowsOfX<1>& x, int unit, int, int lane) {
        float values[D::U::ELEMENTS];
        decode_floats<D::FORMAT>(*reinterpret_cast<const uint4*>(codes_at + lane * 16), reinterpret_cast<const unsigned char*>(scales), lane / 4, values);
#pragma unroll
        for (int m = 0; m < D::CHUNKS; m++) {
            float4 a = {0.0f, 0.0f, 0.0f, 0.0f};
            if (x.live[0]) a = *reinterpret_cast<const float4*>(x.at[0] + (unit * D::CHUNKS + m) * D::CHUNK_BYTES);
            mma_f64(sum, a.x, values[4 * m]);
            mma_f64(sum, a.y, values[4 * m + 1]);
            mma_f64(sum, a.z, values[4 * m + 2]);
            mma_f64(sum, a.w, values[4 * m + 3]);
        }
    }
    __device__ __forceinline__ double value(int, int i, int) const { return sum[i]; }
};

// One block: its shared memory, and what its feeder and its consumers do with it.
template <class C>
struct DownBlock {
    using P = DownShape<C>;
    using Experts = typename P::Experts;
    using Shared = typename P::Shared;
    using Sum = typename P::Sum;
    static constexpr int GROUPS = P::GROUPS, SPAN = P::EXACT ? 8 : 4;   // rows of a group
    static constexpr bool ONE = C::ROWS == 1 && !SHARED_OUT<C>;   // the list is the slots
    char* const shared;
    const int from = P::first_tile(blockIdx.x), end = P::first_tile(blockIdx.x + 1);
    Barrier* const full = reinterpret_cast<Barrier*>(shared + P::BARRIERS_AT);
    Barrier* const empty = full + C::STAGES;
    float* const factors = reinterpret_cast<float*>(shared + P::FACTORS_AT);     // of slots: weight * scale (exact: scale)
    float* const unscales = reinterpret_cast<float*>(shared + P::UNSCALES_AT);   // of slots, then of the shared expert's rows
    float* const weights = reinterpret_cast<float*>(shared + P::WEIGHTS_AT);     // exact
    Sum* const partials = reinterpret_cast<Sum*>(shared + P::PARTIALS_AT);
    Sum* const common = reinterpret_cast<Sum*>(shared + P::SHARED_PARTIALS_AT);
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    int stage = 0;   // the consumers' place in the ring
    unsigned parity = 0;

    // By one thread.
    __device__ __forceinline__ void init() const {
        for (int s = 0; s < C::STAGES; s++) {
            barrier_init(full + s, 1);
            barrier_init(empty + s, P::WARPS * WARP_ARRIVALS);
        }
    }
    __device__ __forceinline__ DownFeeder<C> feeder(const void* codes, const void* scales, const float* row_scales, const void* shared_codes, const void* shared_scales, const int* experts) const {
        const void* const of_codes = Experts::SCALED_ROWS ? row_scales : scales;
        DownFeeder<C> feeder{static_cast<const char*>(codes), static_cast<const char*>(of_codes), static_cast<const char*>(shared_codes), static_cast<const char*>(shared_scales),
                             shared, full, experts, from, from, end};
        if constexpr (C::EVICT_FIRST) feeder.policy = evict_first_policy();
        return feeder;
    }
    // What a slot's sums are multiplied by; `expert_scale` as read by `scale_of`.
    __device__ __forceinline__ void set_factor(int slot, float weight, float expert_scale) const {
        factors[slot] = P::EXACT ? expert_scale : weight * expert_scale;
        if constexpr (P::EXACT) weights[slot] = weight;
    }
    __device__ __forceinline__ static float scale_of(const float* row_scales, int expert) { return down_scale<P>(row_scales, expert); }

    __device__ __forceinline__ void release() {
        warp_arrive(empty + stage, lane);
        if (++stage == C::STAGES) stage = 0, parity ^= 1;
    }
    // The shared expert's products of the block's tiles, when its rows stand in shared memory.
    __device__ __forceinline__ void multiply_common() {
        if constexpr (P::COMMON) {
            const int k_warp = warp % Shared::K_WARPS, tile_warp = warp / Shared::K_WARPS;
            RowsOfX<GROUPS> x;
            float unscale[GROUPS][2];
#pragma unroll
            for (int g = 0; g < GROUPS; g++) {
                const int fed = row_fed(g, lane);
                x.live[g] = fed < C::ROWS;
                x.at[g] = shared + P::SHARED_X_AT + (x.live[g] ? fed : 0) * Shared::ROW_BYTES + lane_offset<Shared>(lane);
#pragma unroll
                for (int i = 0; i < 2; i++) unscale[g][i] = row_summed(g, i, lane) < C::ROWS ? unscales[P::SLOTS + row_summed(g, i, lane)] : 0.0f;
            }
            for (int first = from; first < end; first += Shared::TILES) {
                const char* codes_at = shared + stage * P::STAGE;
                const char* scales_at = codes_at + Shared::PIECE_UNITS * UNIT_BYTES + (Shared::BLOCK_SCALES ? first * Shared::SCALE_COLUMNS % 4 * 4 : 0);
                barrier_wait(full + stage, parity);
                for (int t = tile_warp; t < least(Shared::TILES, end - first); t += Shared::TILE_WARPS) {
                    DownSum<C, Shared, P::EXACT> sum;
                    multiply<Shared>(sum, codes_at, scales_at, t, x, 3, k_warp, lane);
                    leave(common + (first - from + t) * P::SHARED_TILE_PARTIALS, k_warp, lane, [&](int g, int i) { return sum.value(g, i, lane) * unscale[g][i]; });
                }
                release();
            }
        }
    }
    // The products of one listed expert, the `p`-th of a stage, weighted, are added to the warp's sums of a group's tiles.
    __device__ __forceinline__ void add_piece(Sum (&sums)[Experts::WARP_TILES][GROUPS][2], const typename P::Who& who, int place, const char* stage_at, int p, int first, int tiles, int k_warp,
                                              int tile_warp) const {
        const unsigned rows = ONE ? 1 : who.rows[place], groups = (rows & 15 ? 1 : 0) | (rows >> 4 ? 2 : 0);
        const auto slot_of = [&](int row) {   // among all slots, or -1
            if constexpr (ONE) return row == 0 ? place : -1;
            const unsigned slot = row < C::ROWS ? who.slot[place * C::ROWS + row] : NO_SLOT;
            return slot == NO_SLOT ? -1 : static_cast<int>(row * C::ACTIVE + slot);
        };
        RowsOfX<GROUPS> x;
        Sum factor[GROUPS][2], weight[GROUPS][2];
#pragma unroll
        for (int g = 0; g < GROUPS; g++) {
            const int fed = slot_of(row_fed(g, lane));
            x.live[g] = fed >= 0;
            x.at[g] = shared + P::X_AT + (x.live[g] ? fed : 0) * Experts::ROW_BYTES + lane_offset<Experts>(lane);
#pragma unroll
            for (int i = 0; i < 2; i++) {
                const int summed = slot_of(row_summed(g, i, lane));
                factor[g][i] = summed >= 0 ? factors[summed] * unscales[summed] : 0.0f;
                weight[g][i] = P::EXACT && summed >= 0 ? weights[summed] : 0.0f;
            }
        }
        const char* codes_at = stage_at + p * Experts::PIECE_UNITS * UNIT_BYTES;
        const char* scales_at = stage_at + Experts::PIECES * Experts::PIECE_UNITS * UNIT_BYTES + p * Experts::PIECE_SCALES;
        if constexpr (Experts::BLOCK_SCALES)
            scales_at += static_cast<int>((static_cast<long long>(who.experts[place]) * P::TILES + first) * Experts::SCALE_COLUMNS % 4) * 4;
#pragma unroll
        for (int i = 0; i < Experts::WARP_TILES; i++) {
            const int t = tile_warp + i * Experts::TILE_WARPS;
            if (t >= tiles) break;
            DownSum<C, Experts, P::EXACT> sum;
            multiply<Experts>(sum, codes_at, scales_at, t, x, groups, k_warp, lane);
            const float row_scale = Experts::SCALED_ROWS ? reinterpret_cast<const float*>(scales_at)[t * TILE_ROWS + lane / 4] : 1.0f;
#pragma unroll
            for (int g = 0; g < GROUPS; g++)
#pragma unroll
                for (int j = 0; j < 2; j++) {
                    if constexpr (P::EXACT) sums[i][g][j] += weight[g][j] * static_cast<double>(static_cast<float>(sum.value(g, j, lane) * factor[g][j]));
                    else sums[i][g][j] += factor[g][j] * row_scale * sum.value(g, j, lane);
                }
        }
    }
    // The listed experts' products of a group's tiles, weighted, to the warps' sums at `here`.
    __device__ __forceinline__ void multiply_group(const typename P::Who& who, int first, int tiles, Sum* here) {
        const int count = ONE ? C::ACTIVE : who.count, k_warp = warp % Experts::K_WARPS, tile_warp = warp / Experts::K_WARPS;
        Sum sums[Experts::WARP_TILES][GROUPS][2] = {};
        for (int base = 0; base < count; base += Experts::PIECES) {
            const char* stage_at = shared + stage * P::STAGE;
            barrier_wait(full + stage, parity);
            const auto add = [&](int p) { add_piece(sums, who, base + p, stage_at, p, first, tiles, k_warp, tile_warp); };
            if constexpr (ONE && C::ACTIVE % Experts::PIECES == 0) {   // known to the compiler: one expert's instructions fill another's waits
#pragma unroll
                for (int p = 0; p < Experts::PIECES; p++) add(p);
            } else {
                for (int p = 0; p < least(Experts::PIECES, count - base); p++) add(p);
            }
            release();
        }
#pragma unroll
        for (int i = 0; i < Experts::WARP_TILES; i++) {
            const int t = tile_warp + i * Experts::TILE_WARPS;
            if (t < tiles) leave(here + t * P::TILE_PARTIALS, k_warp, lane, [&](int g, int j) { return sums[i][g][j]; });
        }
    }
    // All groups of the block's tiles, the first of which `epilogue` has been loaded for.
    template <class Epilogue>
    __device__ __forceinline__ void multiply_all(const typename P::Who& who, Epilogue& epilogue, int tokens, float* residual, const float* scale, const float* shared_row_scales) {
        for (int first = from, odd = 0; first < end; first += P::GROUP_TILES, odd ^= 1) {
            const int tiles = least(P::GROUP_TILES, end - first);
            if (first != from) epilogue.load(first, tiles, tokens, residual, scale, shared_row_scales);
            Sum* const here = partials + odd * P::GROUP_TILES * P::TILE_PARTIALS;
            multiply_group(who, first, tiles, here);
            named_barrier(1, P::CONSUMERS);
            epilogue.store(first, tiles, tokens, here, common, from, residual);
        }
        epilogue.end(residual);
    }

    // The row of x whose bytes this lane feeds to the tensor cores, in group g; and of which its i-th sum is.
    __device__ __forceinline__ static int row_fed(int g, int lane) { return g * SPAN + (P::EXACT ? lane / 4 : lane / 4 % 4); }
    __device__ __forceinline__ static int row_summed(int g, int i, int lane) { return g * SPAN + (P::EXACT ? lane / 4 : (2 * (lane % 4) + i) % 4); }
    template <class D>
    __device__ __forceinline__ static int lane_offset(int lane) { return P::EXACT ? lane % 4 * 16 : (lane / 16 * 4 + lane % 4) * 8 * D::PAIR; }

    // Sums of tile `t` of a piece whose codes and scales stand at `codes` and `scales`; `column`: of the piece's first scale of blocks.
    template <class D>
    __device__ __forceinline__ static void multiply(DownSum<C, D, P::EXACT>& sum, const char* codes, const char* scales, int t, const RowsOfX<GROUPS>& x, unsigned groups, int k_warp, int lane) {
        codes += t * D::UNITS * UNIT_BYTES;
        scales += D::BLOCK_SCALES ? t * D::SCALE_COLUMNS * 4 : t * D::UNITS * D::U::SCALE_BYTES;
        for_live<D::FORMAT, GROUPS>(groups, [&](auto live) {
#pragma unroll
            for (int i = 0; i < ceil_div(D::UNITS, D::K_WARPS); i++) {
                const int unit = k_warp + i * D::K_WARPS;
                if (D::UNITS % D::K_WARPS != 0 && unit >= D::UNITS) break;
                float block_scale = 1.0f;
                if constexpr (D::BLOCK_SCALES) block_scale = reinterpret_cast<const float*>(scales)[unit / 2];
                sum.add(live, codes + unit * UNIT_BYTES, scales + unit * D::U::SCALE_BYTES, block_scale, x, unit, i, lane);
            }
        });
    }
    // `value(g, i)`: this lane's sums, to [K warp][row][8 outputs].
    template <class Value>
    __device__ __forceinline__ static void leave(Sum* tile, int k_warp, int lane, Value value) {
        const int r = lane / 4, c = lane % 4;
#pragma unroll
        for (int g = 0; g < GROUPS; g++)
#pragma unroll
            for (int i = 0; i < (P::EXACT ? 2 : least(2, C::ROWS)); i++) {
                if constexpr (P::EXACT) {
                    if (r < C::ROWS) tile[(k_warp * C::ROWS + r) * TILE_ROWS + 2 * c + i] = value(g, i);
                } else {
                    const float whole = halves(value(g, i));
                    const int row = 4 * g + 2 * c + i;
                    if (c < 2 && row < C::ROWS) tile[(k_warp * C::ROWS + row) * TILE_ROWS + r] = whole;
                }
            }
    }
};

template <class C, class Epilogue = DownEpilogue<C>>
__device__ __forceinline__ void experts_ring_down(const Step* step, const float* inner, const float* routing, const float* shared_inner, const float* scale, const void* codes,
                                                  const void* scales, const float* row_scales, const void* shared_codes, const void* shared_scales,
                                                  const float* shared_row_scales, float* residual, World* world) {
    using P = DownShape<C>;
    using Experts = typename P::Experts;
    using Shared = typename P::Shared;
    launch_dependents();
    MONOMORPH_DYNAMIC_SHARED(experts_shared, 128);
    DownBlock<C> block{reinterpret_cast<char*>(experts_shared)};
    typename P::Who& who = *reinterpret_cast<typename P::Who*>(block.shared + P::WHO_AT);
    const int warp = block.warp, lane = block.lane;
    const auto rows_in_use = [&] { return C::LIMIT == Limit::NONE ? C::ROWS : least(step->tokens, C::ROWS); };   // after the wait only

    if (warp == P::WARPS) {
        DownFeeder<C> feeder = block.feeder(codes, scales, row_scales, shared_codes, shared_scales, who.experts);
        if (lane == 0) {
            block.init();
            barrier_init_fence();
            while (feeder.more_common() && feeder.filled < C::STAGES) feeder.fill();
        }
        who.clear(lane);
        __syncwarp();
        __syncthreads();
        wait_for_predecessors();
        constexpr int EACH = ceil_div(P::SLOTS, 32);
        const int slots = rows_in_use() * C::ACTIVE;
        float weight[EACH], expert_scale[EACH];
#pragma unroll
        for (int i = 0; i < EACH; i++) {
            const int slot = i * 32 + lane, at = slot / C::ACTIVE * 2 * C::ACTIVE + slot % C::ACTIVE;
            weight[i] = slot < P::SLOTS ? load_activation(routing + at) : 0.0f;
            const float id = slot < P::SLOTS ? load_activation(routing + at + C::ACTIVE) : 0.0f;
            const int expert = slot < slots ? static_cast<int>(id) : 0;   // what stands in rows that are not in use may be anything
            if (slot < P::SLOTS) who.chosen[slot] = expert;
            expert_scale[i] = block.scale_of(row_scales, !SHARED_OUT<C> || is_held<C::EXPERTS>(expert) ? expert : 0);
        }
        __syncwarp();
        who.gather(rows_in_use(), lane);
        feeder.count = who.count;
        if (lane == 0)
            while (feeder.more() && feeder.filled < C::STAGES) feeder.fill();
        __syncwarp();
#pragma unroll
        for (int i = 0; i < EACH; i++) {
            const int slot = i * 32 + lane;
            if (slot < P::SLOTS) block.set_factor(slot, weight[i], expert_scale[i]);
        }
        __syncwarp();
        named_barrier_arrive(3, P::THREADS);
        if (lane == 0)
            while (feeder.more()) feeder.fill_when_empty(block.empty);
        return;
    }

    Epilogue epilogue(world);
    __syncthreads();
    wait_for_predecessors();
    epilogue.begin();
    char* const staged = block.shared + P::X_AT;
    char* const shared_staged = block.shared + P::SHARED_X_AT;
    {   // A warp a row; its first row of either product is on the way before either is staged.
        using Row = typename DownRowOf<C, Experts, P::EXACT>::Type;
        using SharedRow = typename DownRowOf<C, Shared, P::EXACT>::Type;
        Row row;
        SharedRow shared_row;
        const auto stage = [&](int slot) { row.finish(inner + slot * C::WIDTH, staged + slot * Experts::ROW_BYTES, block.unscales + slot, lane); };
        const auto stage_shared = [&](int t) {
            shared_row.finish(shared_inner + t * C::SHARED_WIDTH, shared_staged + t * Shared::ROW_BYTES, block.unscales + P::SLOTS + t, lane);
        };
        if (warp < P::SLOTS) row.begin(inner + warp * C::WIDTH, lane);
        if constexpr (P::COMMON) {
            if (warp < C::ROWS) {
                shared_row.begin(shared_inner + warp * C::SHARED_WIDTH, lane);
                stage_shared(warp);
            }
        }
        if (warp < P::SLOTS) stage(warp);
#pragma unroll 1
        for (int slot = warp + P::WARPS; slot < P::SLOTS; slot += P::WARPS) {
            row.begin(inner + slot * C::WIDTH, lane);
            stage(slot);
        }
        if constexpr (P::COMMON && C::ROWS > P::WARPS) {
#pragma unroll 1
            for (int t = warp + P::WARPS; t < C::ROWS; t += P::WARPS) {
                shared_row.begin(shared_inner + t * C::SHARED_WIDTH, lane);
                stage_shared(t);
            }
        }
    }
    const int tokens = rows_in_use();
    named_barrier(3, P::THREADS);   // the list, the factors and the staged rows
    if (block.from == block.end) return;
    epilogue.load(block.from, least(P::GROUP_TILES, block.end - block.from), tokens, residual, scale, shared_row_scales);
    block.multiply_common();
    block.multiply_all(who, epilogue, tokens, residual, scale, shared_row_scales);
}

// Which of the two a step's rows take.
template <class C, class Epilogue = DownEpilogue<C>>
__device__ __forceinline__ void experts_stream_down(const Step* step, const float* inner, const float* routing, const float* shared_inner, const float* scale, const void* codes,
                                                    const void* scales, const float* row_scales, const void* shared_codes, const void* shared_scales,
                                                    const float* shared_row_scales, float* residual, World* world = nullptr) {
    const auto run = [&](const auto& down) {
        down(step, inner, routing, shared_inner, scale, codes, scales, row_scales, shared_codes, shared_scales, shared_row_scales, residual, world);
    };
    if constexpr (FEW<C>) run(experts_few_down<C, Epilogue>);
    else run(experts_ring_down<C, Epilogue>);
}

}  // namespace monomorph
