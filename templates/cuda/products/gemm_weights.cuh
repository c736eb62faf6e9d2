// The weights of a tensor-core product (gemm.cuh): from packed tiles in memory, by way of a lane's own part of a ring in shared
// memory, to fragments in its registers.
//
// Lane (g, c) of a warp needs exactly the 16 bytes of lane (g, c) of every unit of the warp's tiles (formats.cuh), so it copies
// them itself (cp.async) and waits for its own copies only: no barrier, and nothing a predecessor wrote, so the ring fills before
// the predecessor has finished. Scales within a unit (nvfp4) are copied once a warp; scales of 128 columns (fp8) are held by the
// warp's lanes, sixteen blocks of both tiles at a time, and handed round by shuffles.
// Stage of a warp: [strip][tile 2i, 2i + 1][unit][32 lanes][16 bytes], then [strip][tile][unit][SCALE_BYTES].
#pragma once

#include "products/gemm.cuh"

namespace monomorph {

// The m16k16 fragments of a panel of 64 columns: four steps of 16 columns.
using PanelFragments = unsigned[4][4];

// A lane's codes of a tile in a panel, as they were packed.
template <int UNIT_COLUMNS>
struct RawPanel;
template <>
struct RawPanel<32> { uint4 codes[2]; };
template <>
struct RawPanel<64> { uint4 codes; };
template <>
struct RawPanel<128> { uint2 codes; unsigned scales; };

template <class C>
struct GemmWeights {
    using S = GemmShape<C>;
    using U = Unit<C::FORMAT>;
    using Raw = RawPanel<U::COLUMNS>[C::STRIPS][2];
    static constexpr Format F = C::FORMAT;
    static constexpr int TILES = 2 * C::STRIPS;              // of a warp
    static constexpr int BLOCKS = ceil_div(C::INPUTS, 128);  // of 128 columns
    static constexpr int HELD = 16;                          // of them, of two tiles, in the lanes of a warp
    // A panel may reach beyond the matrix's last unit; what the ring holds there is not the matrix's.
    static constexpr bool RAGGED = S::UNITS * U::COLUMNS < S::PANELS * STAGED_PANEL;
    // Blocks of rows may reach beyond the last tile.
    static constexpr bool PARTIAL = S::TILES % S::BLOCK_TILES != 0 || S::ROW_BLOCKS % C::MULTICAST != 0;
    static constexpr int SCALE_CHUNKS = S::STAGE_UNITS * U::SCALE_BYTES / 16;  // of a tile in a stage
    static_assert(SCALE_CHUNKS * TILES <= 32, "one lane copies 16 bytes of a stage's scales");

    const GemmArguments& arguments;
    const GemmPlace<C>& place;
    const char* ring;  // the warp's stage 0
    int first_tile;    // of the warp's first strip, within the block; the next strip's is 8 further
    int lane;
    int slot = 0;      // of the step being multiplied
    // What is fetched next: into which slot, of which piece of work and of which of its steps; from where. EVEN: pieces are steps.
    int pieces, token_blocks, piece, step, tile, into = 0;
    const char* codes;
    // Block scales of the product under way: these blocks' and the next ones'.
    int scaled_tile, held_blocks;
    float held[C::STRIPS], upcoming[C::STRIPS];

    __device__ __forceinline__ GemmWeights(const GemmArguments& arguments, const GemmPlace<C>& place, char* weights, int warpgroup,
                                           int warp, int lane)
        : arguments(arguments), place(place),
          ring(weights + (warpgroup * 4 + warp) * (S::WEIGHT_STAGE_BYTES / S::CONSUMER_WARPS)),
          first_tile(warpgroup * C::STRIPS * 8 + warp * 2), lane(lane) {}

    // Fills the ring but for one slot.
    __device__ __forceinline__ void begin(int token_blocks_of_step) {
        token_blocks = token_blocks_of_step;
        pieces = EVEN<C> ? GemmCut<C>::first(place.cluster + 1, place.clusters) : gemm_work<C>(token_blocks);
        piece = EVEN<C> ? GemmCut<C>::first(place.cluster, place.clusters) : place.cluster;
        begin_piece();
        if constexpr (S::BLOCK_SCALED) {
            scaled_tile = -1;
            if (piece < pieces) begin_product(tile, step);
        }
#pragma unroll
        for (int i = 0; i < C::WEIGHT_STAGES - 1; i++) fetch();
    }

    __device__ __forceinline__ void begin_piece() {
        step = EVEN<C> ? piece % S::STEPS : place.first_step;
        if (piece < pieces) {
            const int row_block = EVEN<C> ? piece / S::STEPS : GemmWork<C>(piece, token_blocks, place.row_part).row_block;
            tile = row_block * S::BLOCK_TILES + first_tile;
            codes = arguments.codes + (size_t(tile) * S::UNITS + step * S::STAGE_UNITS) * UNIT_BYTES + lane * 16;
        }
    }

    // The next step of this block's work, if there is one, into the slot read longest ago. One committed group either way.
    __device__ __forceinline__ void fetch() {
        if (piece < pieces) {
            const int first_unit = step * S::STAGE_UNITS;
            const auto exists = [&](int unit) { return S::UNITS % S::STAGE_UNITS == 0 || first_unit + unit < S::UNITS; };
            const unsigned to = shared_address(ring) + into * S::WEIGHT_STAGE_BYTES;
#pragma unroll
            for (int t = 0; t < TILES; t++) {
                const int ahead = t / 2 * 8 + t % 2;
                if (PARTIAL && tile + ahead >= S::TILES) continue;
#pragma unroll
                for (int unit = 0; unit < S::STAGE_UNITS; unit++) {
                    if (exists(unit)) copy_16(to + (t * S::STAGE_UNITS + unit) * UNIT_BYTES + lane * 16, codes + (ahead * S::UNITS + unit) * UNIT_BYTES);
                }
            }
            if constexpr (SCALE_CHUNKS > 0) {
                const int t = lane / SCALE_CHUNKS, chunk = lane % SCALE_CHUNKS;
                const int own_tile = tile + t / 2 * 8 + t % 2;
                if (t < TILES && own_tile < S::TILES && exists(chunk * 16 / U::SCALE_BYTES)) {
                    copy_16(to + TILES * S::STAGE_UNITS * UNIT_BYTES + lane * 16,
                         arguments.scales + (size_t(own_tile) * S::UNITS + first_unit) * U::SCALE_BYTES + chunk * 16);
                }
            }
            codes += S::STAGE_UNITS * UNIT_BYTES;
            if constexpr (EVEN<C>) {
                piece++;
                if (++step == S::STEPS) begin_piece();
            } else if (++step == place.last_step) {
                piece += place.clusters;
                begin_piece();
            }
        }
        copy_commit();
        if (++into == C::WEIGHT_STAGES) into = 0;
    }

    // Block scales of the product of the tiles from `first` on, whose first step this is.
    __device__ __forceinline__ void begin_product(int first, int first_step) {
        if constexpr (S::BLOCK_SCALED) {
            if (scaled_tile == first) return;
            scaled_tile = first;
            held_blocks = first_step * C::STAGE_PANELS / 2 / HELD;
            load_scales(held_blocks, held);
            load_scales(held_blocks + 1, upcoming);
        }
    }
    __device__ __forceinline__ void load_scales(int blocks, float (&scales)[C::STRIPS]) const {
        const int block = blocks * HELD + lane % HELD;
#pragma unroll
        for (int s = 0; s < C::STRIPS; s++) {
            const int own_tile = scaled_tile + s * 8 + lane / HELD;
            const bool exists = block < BLOCKS && own_tile < S::TILES;
            scales[s] = exists ? load_constant(reinterpret_cast<const float*>(arguments.scales) + size_t(own_tile) * BLOCKS + block) : 0.0f;
        }
    }

    // Before a step: its bytes are there, and those of a later one on their way.
    __device__ __forceinline__ void await_step() {
        if constexpr (SCALE_CHUNKS > 0) __syncwarp();  // all lanes have read the slot that is written now
        fetch();
        copy_wait<C::WEIGHT_STAGES - 1>();
        if constexpr (SCALE_CHUNKS > 0) __syncwarp();
    }
    // After it.
    __device__ __forceinline__ void leave_step() {
        if (++slot == C::WEIGHT_STAGES) slot = 0;
    }

    // Codes of a panel of the stage.
    __device__ __forceinline__ void read(int panel, Raw& raw) const {
        const char* stage = ring + slot * S::WEIGHT_STAGE_BYTES;
#pragma unroll
        for (int t = 0; t < TILES; t++) {
            const char* own = stage + t * S::STAGE_UNITS * UNIT_BYTES + lane * 16;
            auto& to = raw[t / 2][t % 2];
            if constexpr (U::COLUMNS == 32) {
                to.codes[0] = *reinterpret_cast<const uint4*>(own + 2 * panel * UNIT_BYTES);
                to.codes[1] = *reinterpret_cast<const uint4*>(own + (2 * panel + 1) * UNIT_BYTES);
            } else if constexpr (U::COLUMNS == 64) {
                to.codes = *reinterpret_cast<const uint4*>(own + panel * UNIT_BYTES);
            } else {  // half a unit: the lane's first or last 8 bytes, and the scales of as many groups
                to.codes = *reinterpret_cast<const uint2*>(own + panel / 2 * UNIT_BYTES + panel % 2 * 8);
                to.scales = *reinterpret_cast<const unsigned*>(stage + TILES * S::STAGE_UNITS * UNIT_BYTES +
                                                               (t * S::STAGE_UNITS + panel / 2) * U::SCALE_BYTES + lane / 4 * 8 + panel % 2 * 4);
            }
        }
    }

    // Rows g and g + 8 of a strip's sixteen rows of this warp, in f16 (nvfp4: times 2^-14). `panel`: of K.
    __device__ __forceinline__ void decode(const Raw& raw, int strip, int panel, PanelFragments& fragments) {
        unsigned pairs[2][8];
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const auto& own = raw[strip][half];
            if constexpr (U::COLUMNS == 32) {
#pragma unroll
                for (int i = 0; i < 2; i++) {
                    const uint4 four = own.codes[i];
                    pairs[half][4 * i] = four.x, pairs[half][4 * i + 1] = four.y, pairs[half][4 * i + 2] = four.z, pairs[half][4 * i + 3] = four.w;
                }
            } else if constexpr (S::BLOCK_SCALED) {
                const int block = panel / 2;
                if (block / HELD != held_blocks) {
                    held_blocks++;
#pragma unroll
                    for (int s = 0; s < C::STRIPS; s++) held[s] = upcoming[s];
                    load_scales(held_blocks + 1, upcoming);
                }
                decode_fp8(own.codes, __shfl_sync(0xffffffff, held[strip], half * HELD + block % HELD), pairs[half]);
            } else if constexpr (U::COLUMNS == 64) {
                const unsigned words[4] = {own.codes.x, own.codes.y, own.codes.z, own.codes.w};
#pragma unroll
                for (int i = 0; i < 4; i++) unpack_e4m3(words[i], pairs[half][2 * i], pairs[half][2 * i + 1]);
            } else {
                const unsigned words[2] = {own.codes.x, own.codes.y};
#pragma unroll
                for (int i = 0; i < 2; i++) {
                    unsigned four[4];
                    decode_nvfp4(words[i], own.scales >> (16 * i), four);
#pragma unroll
                    for (int j = 0; j < 4; j++) pairs[half][4 * i + j] = four[j];
                }
            }
        }
#pragma unroll
        for (int s = 0; s < 4; s++) {
            const bool inside = !RAGGED || panel * STAGED_PANEL + 16 * s < S::UNITS * U::COLUMNS;
#pragma unroll
            for (int i = 0; i < 4; i++) fragments[s][i] = inside ? pairs[i % 2][2 * s + i / 2] : 0;
        }
    }

    // The scales of blocks are no powers of two: their products with the codes are rounded, and so are they where they have more than 11 bits
    // (releases store them in bf16).
    static __device__ __forceinline__ void decode_fp8(uint4 codes, float scale, unsigned (&pairs)[8]) {
        const unsigned words[4] = {codes.x, codes.y, codes.z, codes.w}, scales = pack_f16(scale, scale);
#pragma unroll
        for (int i = 0; i < 4; i++) {
            unpack_e4m3(words[i], pairs[2 * i], pairs[2 * i + 1]);
            pairs[2 * i] = multiply_f16_pairs(pairs[2 * i], scales), pairs[2 * i + 1] = multiply_f16_pairs(pairs[2 * i + 1], scales);
        }
    }
};

}  // namespace monomorph
