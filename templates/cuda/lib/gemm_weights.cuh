// The weights of a tensor-core product (gemm.cuh): from packed tiles in memory, by way of a lane's own part of a ring in shared
// memory, to fragments in its registers.
//
// Lane (g, c) of a warp needs exactly the 16 bytes of lane (g, c) of every unit of the warp's tiles (formats.cuh), so it copies
// them itself (cp.async) and waits for its own copies only: no barrier, and nothing a predecessor wrote, so the ring fills before
// the predecessor has finished. Scales that several lanes need, each copies for itself.
// Stage of a warp: [strip][tile 2i, 2i + 1]{[unit][32 lanes][16 bytes], [32 lanes][LANE_SCALE_BYTES]}.
#pragma once

#include "gemm.cuh"

namespace monomorph {

// The m16k16 fragments of a panel of 64 columns: four steps of 16 columns.
using PanelFragments = unsigned[4][4];

template <class C>
struct GemmWeights {
    using S = GemmShape<C>;
    using U = Unit<C::FORMAT>;
    static constexpr Format F = C::FORMAT;
    static constexpr int BLOCKS = ceil_div(C::INPUTS, 128);  // of 128 columns
    // A panel may reach beyond the matrix's last unit; what the ring holds there is not the matrix's.
    static constexpr bool RAGGED = S::UNITS * U::COLUMNS < S::PANELS * STAGED_PANEL;

    static constexpr bool PARTIAL = S::TILES % S::BLOCK_TILES != 0 || S::ROW_BLOCKS % C::MULTICAST != 0;  // blocks with tiles beyond the last

    const GemmArguments& arguments;
    const GemmPlace<C>& place;
    const char* ring;  // the lane's 16 bytes of the first unit of the warp's stage 0
    int first_tile;    // of the warp's first strip, within the block; the next strip's is 8 further
    int lane;
    int slot = 0;      // of the step being multiplied
    // What is fetched next: into which slot, of which piece of work and of which of its steps; from where.
    int pieces, token_blocks, piece, step, tile, into = 0;
    const char* codes;

    __device__ __forceinline__ GemmWeights(const GemmArguments& arguments, const GemmPlace<C>& place, char* weights, int warpgroup,
                                           int warp, int lane)
        : arguments(arguments), place(place),
          ring(weights + (warpgroup * 4 + warp) * (S::WEIGHT_STAGE_BYTES / S::CONSUMER_WARPS) + lane * 16),
          first_tile(warpgroup * C::STRIPS * 8 + warp * 2), lane(lane) {}

    // Fills the ring but for one slot.
    __device__ __forceinline__ void begin(int token_blocks_of_step) {
        token_blocks = token_blocks_of_step;
        pieces = gemm_work<C>(token_blocks);
        piece = place.cluster;
        begin_piece();
#pragma unroll
        for (int i = 0; i < C::WEIGHT_STAGES - 1; i++) fetch();
    }

    __device__ __forceinline__ void begin_piece() {
        step = place.first_step;
        if (piece < pieces) {
            tile = GemmWork<C>(piece, token_blocks, place.row_part).row_block * S::BLOCK_TILES + first_tile;
            codes = arguments.codes + (size_t(tile) * S::UNITS + step * S::STAGE_UNITS) * UNIT_BYTES + lane * 16;
        }
    }

    // The slot read last is free, and the next one's bytes are there.
    __device__ __forceinline__ void advance() {
        if (++slot == C::WEIGHT_STAGES) slot = 0;
    }

    static __device__ __forceinline__ void copy(unsigned to, const char* from) {
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(from) : "memory");
    }
    template <int BYTES>
    static __device__ __forceinline__ void copy_scale(unsigned to, const char* from) {
        asm volatile("cp.async.ca.shared.global [%0], [%1], %2;" ::"r"(to), "l"(from), "n"(BYTES) : "memory");
    }

    // One step of a tile, `ahead` tiles from the warp's first, into the ring.
    __device__ __forceinline__ void fetch_tile(int ahead, unsigned to) const {
        const int first_unit = step * S::STAGE_UNITS;
        const char* from = codes + size_t(ahead) * S::UNITS * UNIT_BYTES;
#pragma unroll
        for (int unit = 0; unit < S::STAGE_UNITS; unit++) {
            if (S::UNITS % S::STAGE_UNITS == 0 || first_unit + unit < S::UNITS) copy(to + unit * UNIT_BYTES, from + unit * UNIT_BYTES);
        }
        if constexpr (S::LANE_SCALE_BYTES > 0) {
            const unsigned own = to + S::STAGE_UNITS * UNIT_BYTES + lane * (S::LANE_SCALE_BYTES - 16);
            if constexpr (S::BLOCK_SCALED) {
#pragma unroll
                for (int i = 0; i < S::LANE_SCALE_BYTES / 4; i++) {
                    const int block = step * C::STAGE_PANELS / 2 + i;
                    if (block < BLOCKS) copy_scale<4>(own + i * 4, arguments.scales + (size_t(tile + ahead) * BLOCKS + block) * 4);
                }
            } else {
                const char* scales = arguments.scales + (size_t(tile + ahead) * S::UNITS + first_unit) * U::SCALE_BYTES + lane / 4 * 8;
#pragma unroll
                for (int unit = 0; unit < S::STAGE_UNITS; unit++) {
                    if (S::UNITS % S::STAGE_UNITS == 0 || first_unit + unit < S::UNITS) copy_scale<8>(own + unit * 8, scales + unit * U::SCALE_BYTES);
                }
            }
        }
    }

    // The next step of this block's work, if there is one, into the slot read longest ago. One committed group either way.
    __device__ __forceinline__ void fetch() {
        if (piece < pieces) {
            const unsigned to = shared_address(ring) + into * S::WEIGHT_STAGE_BYTES;
#pragma unroll
            for (int s = 0; s < C::STRIPS; s++) {
#pragma unroll
                for (int half = 0; half < 2; half++) {
                    if (!PARTIAL || tile + s * 8 + half < S::TILES) fetch_tile(s * 8 + half, to + (s * 2 + half) * S::TILE_BYTES);
                }
            }
            codes += S::STAGE_UNITS * UNIT_BYTES;
            if (++step == place.last_step) {
                piece += place.clusters;
                begin_piece();
            }
        }
        copy_commit();
        if (++into == C::WEIGHT_STAGES) into = 0;
    }

    // Row g of one tile in a panel of the stage: pair s is {columns 16s + 2c, 2c+1; 16s + 2c+8, 2c+9} in bf16.
    __device__ __forceinline__ void tile_panel(const char* own_codes, int panel, unsigned (&pairs)[8]) const {
        const char* scales = own_codes + S::STAGE_UNITS * UNIT_BYTES + lane * (S::LANE_SCALE_BYTES - 16);
        const uint2 none = {0, 0};
        if constexpr (U::COLUMNS == 32) {
#pragma unroll
            for (int half = 0; half < 2; half++) {
                unsigned own[4];
                decode_bf16_pairs<F>(*reinterpret_cast<const uint4*>(own_codes + (2 * panel + half) * UNIT_BYTES), none, own);
#pragma unroll
                for (int i = 0; i < 4; i++) pairs[4 * half + i] = own[i];
            }
        } else if constexpr (U::COLUMNS == 64) {
            decode_bf16_pairs<F>(*reinterpret_cast<const uint4*>(own_codes + panel * UNIT_BYTES), none, pairs);
            if constexpr (S::BLOCK_SCALED) {
                const float scale = *reinterpret_cast<const float*>(scales + panel / 2 * 4);
#pragma unroll
                for (int i = 0; i < 8; i++) pairs[i] = pack_bf16(bf16_low(pairs[i]) * scale, bf16_high(pairs[i]) * scale);
            }
        } else {
            // Half a unit: the lane's first or last 8 bytes, and as many groups' scales.
            const int unit = panel / 2, half = panel % 2;
            const uint2 own = *reinterpret_cast<const uint2*>(own_codes + unit * UNIT_BYTES + half * 8);
            const unsigned groups = *reinterpret_cast<const unsigned*>(scales + unit * 8 + half * 4);
            unsigned both[16];
            decode_bf16_pairs<F>(make_uint4(own.x, own.y, 0, 0), make_uint2(groups, 0), both);
#pragma unroll
            for (int i = 0; i < 8; i++) pairs[i] = both[i];
        }
    }

    // Rows g and g + 8 of a strip's sixteen rows of this warp. `panel`: within the stage; `at_step`: of K.
    __device__ __forceinline__ void load(int strip, int panel, int at_step, PanelFragments& fragments) const {
        unsigned lower[8], upper[8];
        const char* own_codes = ring + slot * S::WEIGHT_STAGE_BYTES + strip * 2 * S::TILE_BYTES;
        tile_panel(own_codes, panel, lower);
        tile_panel(own_codes + S::TILE_BYTES, panel, upper);
#pragma unroll
        for (int s = 0; s < 4; s++) {
            const int column = (at_step * C::STAGE_PANELS + panel) * STAGED_PANEL + 16 * s;
            const bool inside = !RAGGED || column < S::UNITS * U::COLUMNS;
            fragments[s][0] = inside ? lower[2 * s] : 0;
            fragments[s][1] = inside ? upper[2 * s] : 0;
            fragments[s][2] = inside ? lower[2 * s + 1] : 0;
            fragments[s][3] = inside ? upper[2 * s + 1] : 0;
        }
    }
};

}  // namespace monomorph
