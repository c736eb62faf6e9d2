// Grouped products of a mixture's experts (experts_batch.cuh): the products of gemm.cuh with the matrix of the work tile's expert.
//
// The machinery is that of gemm_mma and gemm_wgmma. What differs is where a piece's weights are (GemmWeights<Grouped<C>>), how rows of x
// come to shared memory (ExpertCopier), and where sums go (ExpertEpilogue). Which weights are read is known only after the predecessors
// have finished; the ring then runs ahead across pieces and experts as it does across the rows of one matrix.
#pragma once

#include "experts/experts_batch.cuh"
#include "products/gemm_epilogue.cuh"
#include "products/gemm_weights.cuh"

namespace monomorph {

// Marks a Config whose products are grouped.
template <class C>
struct Grouped : C {};

// The weights of all experts.
struct ExpertPlanes {
    const char* codes;
    const char* scales;
    const float* row_scales;
};

template <class C>
struct GemmWeights<Grouped<C>> : GemmWeights<C> {
    using Base = GemmWeights<C>;
    using S = ExpertShape<C>;
    using U = Unit<C::FORMAT>;
    using Base::TILES, Base::BLOCKS, Base::HELD, Base::SCALE_CHUNKS;
    using Base::ring, Base::first_tile, Base::lane, Base::step, Base::tile, Base::into, Base::codes;
    using Base::scaled_tile, Base::held_blocks, Base::held, Base::upcoming;
    // Block scales come a piece ahead, as the weights do, where the ring does not run further ahead than that.
    static constexpr bool SCALES_AHEAD = S::BLOCK_SCALED && S::STEPS >= C::WEIGHT_STAGES;

    const ExpertPlanes& planes;
    ExpertPieces<C> ahead;  // the piece fetched next
    const char* scales;     // of units, of this lane's chunk of the piece fetched
    float scales_ahead[C::STRIPS];

    // Fills the ring but for one slot. `current`: the planes of the expert being multiplied. Behind the wait.
    __device__ __forceinline__ GemmWeights(const GemmArguments& current, const ExpertPlanes& planes, const GemmPlace<C>& place, const char* lists,
                                           char* weights, int warpgroup, int warp, int lane)
        : Base(current, place, weights, warpgroup, warp, lane), planes(planes), ahead(lists) {
        begin_piece();
#pragma unroll
        for (int i = 0; i < C::WEIGHT_STAGES - 1; i++) fetch();
    }

    // The tile of the warp whose unit scales this lane copies, and their chunk of 16 bytes.
    __device__ __forceinline__ int scale_tile() const { return tile + lane / SCALE_CHUNKS / 2 * 8 + lane / SCALE_CHUNKS % 2; }

    __device__ __forceinline__ void begin_piece() {
        step = 0;
        if (!ahead.exists()) return;
        tile = ahead.row_block() * S::BLOCK_TILES + first_tile;
        const int expert = ahead.expert();
        codes = planes.codes + expert * S::CODE_BYTES + size_t(tile) * S::UNITS * UNIT_BYTES + lane * 16;
        if constexpr (SCALE_CHUNKS > 0) {
            scales = planes.scales + expert * S::SCALE_BYTES + size_t(scale_tile()) * S::UNITS * U::SCALE_BYTES + lane % SCALE_CHUNKS * 16;
        }
        if constexpr (SCALES_AHEAD) load_first_scales(expert, tile, scales_ahead);
    }

    // Scales of the first HELD blocks of columns.
    __device__ __forceinline__ void load_first_scales(int expert, int first, float (&to)[C::STRIPS]) const {
        const float* from = reinterpret_cast<const float*>(planes.scales + expert * S::SCALE_BYTES);
        const int block = lane % HELD;
#pragma unroll
        for (int s = 0; s < C::STRIPS; s++) {
            const int own_tile = first + s * 8 + lane / HELD;
            to[s] = block < BLOCKS && own_tile < S::TILES ? load_constant(from + size_t(own_tile) * BLOCKS + block) : 0.0f;
        }
    }

    // The next step of this block's work, if there is one, into the slot read longest ago. One committed group either way.
    __device__ __forceinline__ void fetch() {
        if (ahead.exists()) {
            const int first_unit = step * S::STAGE_UNITS;
            const auto exists = [&](int unit) { return S::UNITS % S::STAGE_UNITS == 0 || first_unit + unit < S::UNITS; };
            const unsigned to = shared_address(ring) + into * S::WEIGHT_STAGE_BYTES;
#pragma unroll
            for (int t = 0; t < TILES; t++) {
                const int further = t / 2 * 8 + t % 2;
                if (Base::PARTIAL && tile + further >= S::TILES) continue;
#pragma unroll
                for (int unit = 0; unit < S::STAGE_UNITS; unit++) {
                    if (exists(unit)) copy_16(to + (t * S::STAGE_UNITS + unit) * UNIT_BYTES + lane * 16, codes + (further * S::UNITS + unit) * UNIT_BYTES);
                }
            }
            if constexpr (SCALE_CHUNKS > 0) {
                if (lane < TILES * SCALE_CHUNKS && scale_tile() < S::TILES && exists(lane % SCALE_CHUNKS * 16 / U::SCALE_BYTES)) {
                    copy_16(to + TILES * S::STAGE_UNITS * UNIT_BYTES + lane * 16, scales);
                }
                scales += S::STAGE_UNITS * U::SCALE_BYTES;
            }
            codes += S::STAGE_UNITS * UNIT_BYTES;
            if (++step == S::STEPS) {
                ahead.advance();
                begin_piece();
            }
        }
        copy_commit();
        if (++into == C::WEIGHT_STAGES) into = 0;
    }

    // Of the piece multiplied next; `first`: its first tile of this warp.
    __device__ __forceinline__ void begin_product(int first) {
        if constexpr (S::BLOCK_SCALED) {
            scaled_tile = first;
            held_blocks = 0;
            if constexpr (SCALES_AHEAD) {
#pragma unroll
                for (int s = 0; s < C::STRIPS; s++) held[s] = scales_ahead[s];
            } else {
                Base::load_scales(0, held);
            }
            if constexpr (BLOCKS > HELD) Base::load_scales(1, upcoming);
        }
    }

    // Base::await_step, with this fetch.
    __device__ __forceinline__ void await_step() {
        if constexpr (SCALE_CHUNKS > 0) __syncwarp();
        fetch();
        copy_wait<C::WEIGHT_STAGES - 1>();
        if constexpr (SCALE_CHUNKS > 0) __syncwarp();
    }
};

// The copying warps: rows of x into shared memory, COPIERS of them where rows are gathered, one lane where they stand side by side.
// A gathered row's chunks stand where its token's number puts them (staged.cuh) and must stand where the tile's row does, so each is
// copied by itself. A copying warp waits for its own chunks before it says that they are there, LAG steps after it asked for them: wgmma
// reads by way of the async proxy, and only who has seen the bytes arrive can hand them over.
template <class C, int COPIERS>
struct ExpertCopier {
    using S = ExpertShape<C>;
    static constexpr int LAG = 1;
    static_assert(!C::GATHER || C::STAGES >= LAG + 2, "a consumer frees a stage in the step after it: that step must have been announced");
    static constexpr unsigned ARRIVALS = C::GATHER ? COPIERS * WARP_ARRIVALS : 1;  // at full[stage]
    static constexpr int AT_ONCE = 4 * COPIERS;                                    // rows that all warps copy at a time, eight lanes each
    static constexpr int EACH = ceil_div(C::TOKENS, AT_ONCE);

    const char* lists;
    const char* x;
    char* ring;
    Barrier *full, *empty;
    int warp, lane;  // of the copying warps
    RingPosition<C::STAGES> at, announced;
    int unannounced = 0;

    __device__ __forceinline__ void run() {
        wait_for_predecessors();
        for (ExpertPieces<C> work(lists); work.exists(); work.advance()) {
            if constexpr (C::GATHER) {
                gather(work);
            } else if (warp == 0) {
                copy(work);
            }
        }
        if constexpr (C::GATHER) {
            copy_wait<0>();
            for (; unannounced > 0; unannounced--) announce();
        }
    }

    __device__ __forceinline__ void announce() {
        fence_async_shared();
        warp_arrive(full + announced.stage, lane);
        announced.advance();
    }

    __device__ __forceinline__ void gather(const ExpertPieces<C>& work) {
        const int* pairs = reinterpret_cast<const int*>(lists + S::Lists::PAIR_OF_ROW_AT) + work.first_row();
        const int first = warp * 4 + lane / 8, chunk = lane % 8;
        int token[EACH];
#pragma unroll
        for (int i = 0; i < EACH; i++) {
            const int row = first + i * AT_ONCE;
            token[i] = row < work.rows() ? load_activation(pairs + row) : -1;
        }
        unsigned from[EACH];  // bytes within a panel
        bool exists[EACH];
#pragma unroll
        for (int i = 0; i < EACH; i++) {
            exists[i] = token[i] >= 0;
            token[i] = static_cast<unsigned>(token[i]) / C::ACTIVE;
            from[i] = token[i] * STAGED_ROW_BYTES + (chunk ^ (token[i] & 7)) * 16;
        }
        for (int step = 0; step < S::STEPS; step++) {
            barrier_wait(empty + at.stage, at.parity ^ 1);
            const unsigned to = shared_address(ring) + at.stage * S::STAGE_BYTES;
#pragma unroll
            for (int p = 0; p < C::STAGE_PANELS; p++) {
                const int panel = step * C::STAGE_PANELS + p;
                if (S::PANELS % C::STAGE_PANELS != 0 && panel >= S::PANELS) break;
                const char* source = x + size_t(panel) * C::X_ROWS * STAGED_ROW_BYTES;
#pragma unroll
                for (int i = 0; i < EACH; i++) {
                    const int row = first + i * AT_ONCE;
                    const unsigned there = to + (p * C::TOKENS + row) * STAGED_ROW_BYTES + (chunk ^ (row & 7)) * 16;
                    if (exists[i]) copy_16(there, source + from[i]);
                }
            }
            copy_commit();
            at.advance();
            if (unannounced == LAG) {
                copy_wait<LAG>();
                announce();
            } else {
                unannounced++;
            }
        }
    }

    __device__ __forceinline__ void copy(const ExpertPieces<C>& work) {
        const int rows = work.rows();
        for (int step = 0; step < S::STEPS; step++) {
            barrier_wait(empty + at.stage, at.parity ^ 1);
            const int panels = min(C::STAGE_PANELS, S::PANELS - step * C::STAGE_PANELS);
            if (lane == 0) barrier_expect(full + at.stage, rows * panels * STAGED_ROW_BYTES);
            __syncwarp();
            if (lane < panels) {
                const size_t row = size_t(step * C::STAGE_PANELS + lane) * C::X_ROWS + work.first_row();
                bulk_copy(ring + at.stage * S::STAGE_BYTES + lane * C::TOKENS * STAGED_ROW_BYTES, x + row * STAGED_ROW_BYTES,
                          rows * STAGED_ROW_BYTES, full + at.stage);
            }
            at.advance();
        }
    }
};

template <class C>
struct ExpertEpilogue : GemmEpilogue<C> {
    using Base = GemmEpilogue<C>;
    using S = ExpertShape<C>;
    using Base::strips, Base::warpgroup, Base::warp, Base::lane, Base::feature, Base::scale, Base::AHEAD;
    // NARROW: eight lanes have a row's 64 features, each four of either half.
    static constexpr bool IS_NARROW = C::NARROW && !S::GATED;
    static constexpr int LANES = IS_NARROW ? 8 : Base::LANES, AT_ONCE = 32 / LANES, HALF = 32;
    static constexpr bool EARLY = C::STRIPS == 1 && C::TOKENS <= 32;  // there are registers to hold scales while products run

    const char* lists;

    __device__ __forceinline__ ExpertEpilogue(const GemmArguments& current, const char* lists, float* strips, const GemmPlace<C>& place, int warpgroup, int warp,
                                              int lane)
        : Base{current, strips, place, warpgroup, warp, lane}, lists(lists) {}

    __device__ __forceinline__ void begin_strip(int row_block, int strip) {
        if constexpr (IS_NARROW) {
            feature = Base::row_of(row_block, strip) + lane % LANES * 4;
#pragma unroll
            for (int half = 0; half < 2; half++) scale[half] = Base::four(Base::arguments.row_scales, feature + half * HALF, S::TILES * 8, 0.0f);
        } else {
            Base::begin_strip(row_block, strip);
        }
    }

    __device__ __forceinline__ void hold_unscales(int first_row, int rows) {
        Base::hold_unscales(rows, [&](int row) { return unscale_of(first_row + row); });
    }

    // Before the products of a piece: the scales of its rows are on their way while they run.
    __device__ __forceinline__ void begin(int row_block, int first_row, int rows) {
        if constexpr (EARLY) begin_strip(row_block, 0);
        if constexpr (AHEAD) hold_unscales(first_row, rows);
    }

    // A gathered row's x is its token's.
    __device__ __forceinline__ float unscale_of(int row) const {
        if constexpr (C::GATHER) row = static_cast<unsigned>(load_activation(reinterpret_cast<const int*>(lists + S::Lists::PAIR_OF_ROW_AT) + row)) / C::ACTIVE;
        return Base::unscale_of(row);
    }

    // NARROW: a row's 64 features in f16, under a scale that they have in common. `from`: their sums; all lanes of the warp; `exists`: the row
    // does.
    __device__ __forceinline__ void write_narrow(int row, const float* from, float unscale, bool exists) const {
        const auto has = [&](int at) { return C::OUTPUTS % 64 == 0 || feature + at < C::OUTPUTS; };
        float values[2][4], largest = 0;
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const float4 sum = multiply(*reinterpret_cast<const float4*>(from + half * HALF + lane % LANES * 4), scale[half]);
            values[half][0] = sum.x, values[half][1] = sum.y, values[half][2] = sum.z, values[half][3] = sum.w;
#pragma unroll
            for (int i = 0; i < 4; i++) largest = fmaxf(largest, has(half * HALF + i) ? fabsf(values[half][i]) : 0.0f);
        }
#pragma unroll
        for (int distance = 1; distance < LANES; distance *= 2) largest = fmaxf(largest, __shfl_xor_sync(0xffffffff, largest, distance));
        if (!exists) return;
        const HalfScale by(largest * unscale);
        const float factor = fminf(by.scale * unscale, 0x1p127f);  // finite, for sums that are all 0
        unsigned short* const out = reinterpret_cast<unsigned short*>(Base::arguments.out) + size_t(row) * C::OUTPUTS + feature;
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const float* v = values[half];
            const unsigned low = pack_f16(v[0] * factor, v[1] * factor), high = pack_f16(v[2] * factor, v[3] * factor);
            if constexpr (C::OUTPUTS % 4 == 0) {
                if (has(half * HALF)) *reinterpret_cast<uint2*>(out + half * HALF) = make_uint2(low, high);
            } else {
                const unsigned halves[4] = {low, low >> 16, high, high >> 16};
                for (int i = 0; i < 4 && has(half * HALF + i); i++) out[half * HALF + i] = static_cast<unsigned short>(halves[i]);
            }
        }
        using Narrow = NarrowProducts<C::CAPACITY, C::OUTPUTS>;
        float* const scales = reinterpret_cast<float*>(reinterpret_cast<char*>(Base::arguments.out) + Narrow::SCALES_AT);
        if (lane % LANES == 0 && has(0)) scales[size_t(row) * Narrow::SCALES + feature / Narrow::SPAN] = by.unscale;
    }

    // All consumer warps; GemmEpilogue::run for the rows of a work tile.
    __device__ __forceinline__ void run(const typename Base::Sums& sums, int row_block, int first_row, int rows) {
        float* strip = strips + warpgroup * (S::SUM_BYTES / 4);
        if constexpr (!AHEAD) hold_unscales(first_row, rows);
#pragma unroll
        for (int s = 0; s < C::STRIPS; s++) {
            if constexpr (!EARLY) begin_strip(row_block, s);
#pragma unroll
            for (int first = 0; first < C::TOKENS; first += S::SUM_TOKENS) {
                if (first > 0 && first >= rows) break;  // of the whole block
                named_barrier(1 + warpgroup, 128);
                Base::scatter(strip, sums[s], first);
                Base::leave_held_unscales(strip, first);
                named_barrier(1 + warpgroup, 128);
                constexpr int ROUNDS = ceil_div(S::SUM_TOKENS, 4 * AT_ONCE);
#pragma unroll
                for (int i = 0; i < ROUNDS; i++) {
                    const int within = (i * 4 + warp) * AT_ONCE + lane / LANES;
                    const bool exists = within < S::SUM_TOKENS && first + within < rows;
                    const float* from = strip + (exists ? within : 0) * S::SUM_STRIDE;
                    if constexpr (IS_NARROW) {
                        write_narrow(first_row + first + within, from, from[64], exists);
                    } else if (exists) {
                        from += Base::lane_row();
                        Base::write(first_row + first + within, *reinterpret_cast<const float4*>(from),
                                    *reinterpret_cast<const float4*>(from + (S::GATED ? 8 : 0)), Base::unscale_at(strip, within));
                    }
                }
            }
        }
    }
};

// The work of the eight consumer warps, the same for both engines. `multiply(row_block)` fills the sums.
template <class C, class Multiply>
__device__ __forceinline__ void expert_products(const char* lists, const ExpertPlanes& planes, GemmArguments& current,
                                                const GemmWeights<Grouped<C>>& weights, ExpertEpilogue<C>& epilogue,
                                                const typename GemmEpilogue<C>::Sums& sums, const Multiply& multiply) {
    using S = ExpertShape<C>;
    const auto one = [&](const ExpertPieces<C>& work) {
        const int row_block = work.row_block(), first_row = work.first_row(), rows = work.rows();
        current.scales = planes.scales + work.expert() * S::SCALE_BYTES;
        current.row_scales = planes.row_scales + work.expert() * S::SCALED_ROWS;
        epilogue.begin(row_block, first_row, rows);
        multiply(row_block);
        epilogue.run(sums, row_block, first_row, rows);
    };
    if constexpr (C::STRIPS == 1 && S::STEPS >= C::WEIGHT_STAGES) {
        while (weights.ahead.exists()) one(weights.ahead);  // the ring runs into the next piece while this one is multiplied, not before
    } else {
        for (ExpertPieces<C> work(lists); work.exists(); work.advance()) one(work);
    }
}

}  // namespace monomorph
