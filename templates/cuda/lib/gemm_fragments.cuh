// From packed weights in shared memory to the row operand's registers of a tensor-core product (gemm.cuh).
#pragma once

#include "formats.cuh"
#include "gemm.cuh"

namespace monomorph {

// The m16k16 fragments of a panel of 64 columns: four steps of 16 columns.
using PanelFragments = unsigned[4][4];

// The f32 scales of block-scaled fp8 for the rows g and g + 8 of a warp's sixteen: those of its two tiles.
struct BlockScales {
    float lower = 1.0f, upper = 1.0f;
};

template <class C>
struct GemmFragments {
    using S = GemmShape<C>;
    static constexpr Format F = C::FORMAT;
    static constexpr bool BLOCK_SCALED = C::SCALES == ScaleForm::BLOCK128;
    // A panel may reach beyond the matrix's last unit; what the ring holds there is not the matrix's.
    static constexpr bool RAGGED = S::UNITS * Unit<F>::COLUMNS < S::PANELS * STAGED_PANEL;

    // The scales of tiles `tile`, `tile + 1` for the 128 columns around a panel.
    static __device__ __forceinline__ BlockScales block_scales(const char* scales, int tile, int panel) {
        BlockScales loaded;
        if constexpr (BLOCK_SCALED) {
            constexpr int BLOCKS = ceil_div(C::INPUTS, 128);
            const float* own = reinterpret_cast<const float*>(scales) + size_t(tile) * BLOCKS + panel / 2;
            if (tile < S::TILES) loaded.lower = load_constant(own);
            if (tile + 1 < S::TILES) loaded.upper = load_constant(own + BLOCKS);
        }
        return loaded;
    }

    // Row g of one tile: pair s is {columns 16s + 2c, 2c+1; 16s + 2c+8, 2c+9}. `codes`, `scales`: the tile's in this stage;
    // `panel`: within the stage.
    static __device__ __forceinline__ void tile_panel(const char* codes, const char* scales, int panel, int lane, float block_scale,
                                                      unsigned (&pairs)[8]) {
        const uint2 none = {0, 0};
        if constexpr (Unit<F>::COLUMNS == 32) {
#pragma unroll
            for (int half = 0; half < 2; half++) {
                unsigned own[4];
                const char* unit = codes + (2 * panel + half) * UNIT_BYTES;
                decode_bf16_pairs<F>(*reinterpret_cast<const uint4*>(unit + lane * 16), none, own);
#pragma unroll
                for (int i = 0; i < 4; i++) pairs[4 * half + i] = own[i];
            }
        } else if constexpr (Unit<F>::COLUMNS == 64) {
            decode_bf16_pairs<F>(*reinterpret_cast<const uint4*>(codes + panel * UNIT_BYTES + lane * 16), none, pairs);
            if constexpr (BLOCK_SCALED) {
#pragma unroll
                for (int i = 0; i < 8; i++) {
                    const float low = __uint_as_float(pairs[i] << 16), high = __uint_as_float(pairs[i] & 0xffff0000u);
                    pairs[i] = pack_bf16(low * block_scale, high * block_scale);
                }
            }
        } else {
            // Half a unit: the lane's first or last 8 bytes, and as many groups' scales.
            const int unit = panel / 2, half = panel % 2;
            const uint2 own = *reinterpret_cast<const uint2*>(codes + unit * UNIT_BYTES + lane * 16 + half * 8);
            const unsigned groups = *reinterpret_cast<const unsigned*>(scales + unit * Unit<F>::SCALE_BYTES + lane / 4 * 8 + half * 4);
            unsigned both[16];
            decode_bf16_pairs<F>(make_uint4(own.x, own.y, 0, 0), make_uint2(groups, 0), both);
#pragma unroll
            for (int i = 0; i < 8; i++) pairs[i] = both[i];
        }
    }

    // Rows g and g + 8 of a warp. `tile`: the first of the warp's two tiles, within the block; `panel`: within the stage;
    // `step`: of K.
    static __device__ __forceinline__ void load(const char* stage, int tile, int panel, int step, int lane, BlockScales block_scales,
                                                PanelFragments& fragments) {
        const char* codes = stage + S::X_BYTES + tile * S::TILE_BYTES;
        const char* scales = stage + S::X_BYTES + S::CODE_BYTES + tile * S::TILE_SCALE_BYTES;
        unsigned lower[8], upper[8];
        tile_panel(codes, scales, panel, lane, block_scales.lower, lower);
        tile_panel(codes + S::TILE_BYTES, scales + S::TILE_SCALE_BYTES, panel, lane, block_scales.upper, upper);
#pragma unroll
        for (int s = 0; s < 4; s++) {
            const int column = (step * C::STAGE_PANELS + panel) * STAGED_PANEL + 16 * s;
            const bool inside = !RAGGED || column < S::UNITS * Unit<F>::COLUMNS;
            fragments[s][0] = inside ? lower[2 * s] : 0;
            fragments[s][1] = inside ? upper[2 * s] : 0;
            fragments[s][2] = inside ? lower[2 * s + 1] : 0;
            fragments[s][3] = inside ? upper[2 * s + 1] : 0;
        }
    }
};

}  // namespace monomorph
