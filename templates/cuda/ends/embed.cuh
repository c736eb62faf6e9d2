// Embedding: the token's row of the packed table, decoded to f32, becomes the row of the residual stream.
//
// Config: HIDDEN (rows of a width that is no multiple of 4 are written element by element); FORMAT and SCALES of the table; THREADS; DECODE: row i is the one token of sequence i, otherwise
// rows are `tokens`; optional FACTOR (core/factor.cuh). An id of -1 stands for the one last sampled for the sequence's slot; any other must be a row of the table.
// Grid: (embed_blocks(), rows); rows beyond step->tokens are passed over. No shared memory.
//
// One thread decodes the 16 bytes of one lane of one unit. A row's lanes of a unit are 64 adjacent bytes, so a warp reads eight such
// pieces, and the four lanes of a unit write whole 32-byte sectors between them.
#pragma once

#include "core/async.cuh"
#include "core/factor.cuh"
#include "core/formats.cuh"
#include "core/step.cuh"

namespace monomorph {

template <class C>
struct EmbedShape {
    static constexpr int UNITS = (C::HIDDEN + Unit<C::FORMAT>::COLUMNS - 1) / Unit<C::FORMAT>::COLUMNS;
    static constexpr int PIECES = UNITS * 4;  // lanes that hold a row
    static_assert(C::FORMAT == Format::FP8_E4M3 || C::SCALES != ScaleForm::BLOCK128, "only fp8 has scales of 128 x 128 blocks");
};

template <class C>
constexpr int embed_blocks() {
    return (EmbedShape<C>::PIECES + C::THREADS - 1) / C::THREADS;
}

// Decodes piece `piece` of row `id` of the table; element j stands in column piece / 4 COLUMNS + column(j, piece % 4).
template <class C>
__device__ __forceinline__ void embed_piece(const void* codes, const void* scales, const float* row_scales, int id, int piece,
                                            float (&values)[Unit<C::FORMAT>::ELEMENTS]) {
    using Shape = EmbedShape<C>;
    using U = Unit<C::FORMAT>;
    const int unit = piece / 4, c = piece % 4, g = id % TILE_ROWS;
    const size_t at = static_cast<size_t>(id / TILE_ROWS) * Shape::UNITS + unit;
    const uint4 lane = __ldg(static_cast<const uint4*>(codes) + at * 32 + g * 4 + c);
    decode_floats<C::FORMAT>(lane, static_cast<const unsigned char*>(scales) + at * U::SCALE_BYTES, g, values);
    if constexpr (C::SCALES != ScaleForm::NONE) {
        constexpr int BLOCKS = (C::HIDDEN + 127) / 128;
        float scale = row_scales[id];
        if constexpr (C::SCALES == ScaleForm::BLOCK128)   // the row's is a power of two
            scale *= static_cast<const float*>(scales)[static_cast<size_t>(id / TILE_ROWS) * BLOCKS + unit * U::COLUMNS / 128];
#pragma unroll
        for (int j = 0; j < U::ELEMENTS; ++j) values[j] = __fmul_rn(values[j], scale);
    }
}

template <class C>
__device__ __forceinline__ void embed(const Step* step, const TokenRow* tokens, const int* sampled_ids, const void* codes, const void* scales,
                                      const float* row_scales, float* residual) {
    using Shape = EmbedShape<C>;
    using U = Unit<C::FORMAT>;
    launch_dependents();
    wait_for_predecessors();
    const int row = blockIdx.y, piece = blockIdx.x * C::THREADS + threadIdx.x;
    if (row >= step->tokens || piece >= Shape::PIECES) return;
    const Sequence& sequence = step->sequence[C::DECODE ? row : tokens[row].sequence];
    int id = C::DECODE ? sequence.token : tokens[row].id;
    if (id < 0) id = sampled_ids[sequence.slot];

    float values[U::ELEMENTS];
    embed_piece<C>(codes, scales, row_scales, id, piece, values);
#pragma unroll
    for (int j = 0; j < U::ELEMENTS; ++j) values[j] *= FACTOR_OF<C>;
    const int unit = piece / 4, c = piece % 4;
    float* const out = residual + static_cast<size_t>(row) * C::HIDDEN;
    // Elements at consecutive columns, as far as rows are aligned to them.
    constexpr int ADJACENT = C::HIDDEN % 4 != 0 ? 1 : U::BLOCKED || C::FORMAT == Format::F32 ? 4 : 2;
#pragma unroll
    for (int j = 0; j < U::ELEMENTS; j += ADJACENT) {
        const int column = unit * U::COLUMNS + U::column(j, c);
        if (column >= C::HIDDEN) continue;
        if constexpr (ADJACENT == 4) {
            *reinterpret_cast<float4*>(out + column) = make_float4(values[j], values[j + 1], values[j + 2], values[j + 3]);
        } else if constexpr (ADJACENT == 2) {
            *reinterpret_cast<float2*>(out + column) = make_float2(values[j], values[j + 1]);
        } else {
            out[column] = values[j];
        }
    }
}

}  // namespace monomorph
