// What kernels make of rows that were gathered from all processes (ncclAllGather): `gathered` [RANKS][rows][WIDTH] in f32, where rows is ROWS with
// ALL_ROWS, else the step's. The kernel in front is NCCL's, which has ended. No shared memory.
//
// Config:
//   RANKS             2 to MAX_RANKS
//   WIDTH             values of a row of one rank, a multiple of 4
//   ROWS              most rows of the launch
//   ALL_ROWS          whether so many were gathered, whatever the step has
//   THREADS           of a block; the grid is any number of blocks in x
//   LIMIT             Limit::TOKENS or OUTPUTS: the field of the step that bounds the rows
#pragma once

#include "core/replaces.cuh"
#include "exchange/packets.cuh"

namespace monomorph {

template <class C>
struct GatheredShape {
    static constexpr int ROW = C::WIDTH / 4;  // float4 of a row
    static_assert(C::RANKS >= 2 && C::RANKS <= MAX_RANKS, "ranks of one world");
    static_assert(C::WIDTH % 4 == 0, "rows are whole float4");
    static_assert(C::LIMIT != Limit::NONE, "the step bounds the rows");
};

template <class C>
constexpr size_t gathered_bytes() {
    return size_t(C::RANKS) * C::ROWS * C::WIDTH * sizeof(float);
}

// float4 between two ranks' rows.
template <class C>
__device__ __forceinline__ size_t gathered_stride(int pieces) {
    return C::ALL_ROWS ? size_t(C::ROWS) * GatheredShape<C>::ROW : size_t(pieces);
}

// residual += ((partial of rank 0 + partial of rank 1) + partial of rank 2) + ..., in this order on every rank, so that all have the same bits
// as in one process (sum.cuh). `partial` [ROWS][WIDTH] is zero afterwards, with ALL_ROWS rows beyond the step's too; both are in f32.
// REPLACES, if there: residual = that sum, and may be where `partial` is, which is left as it was.
template <class C>
__device__ __forceinline__ void gathered_sum(const Step* step, const float* gathered, float* partial, float* residual) {
    launch_dependents();
    wait_for_predecessors();
    const int pieces = exchange_pieces<C>(step), all = C::ALL_ROWS ? C::ROWS * GatheredShape<C>::ROW : pieces;
    const size_t stride = gathered_stride<C>(pieces);
    const float4* const parts = reinterpret_cast<const float4*>(gathered);
    for (int at = blockIdx.x * C::THREADS + threadIdx.x; at < all; at += gridDim.x * C::THREADS) {
        if (at < pieces) {
            float4 sum = load_activation(parts + at);
#pragma unroll
            for (int rank = 1; rank < C::RANKS; rank++) sum = plus(sum, load_activation(parts + rank * stride + at));
            float4* const to = reinterpret_cast<float4*>(residual) + at;
            *to = added_to<!REPLACED<C>>(residual_of<!REPLACED<C>>(to), sum);
        }
        // A recorded program's products add to all of its rows, and a longer step would find what they left there.
        if constexpr (!REPLACED<C>) reinterpret_cast<float4*>(partial)[at] = make_float4(0, 0, 0, 0);
    }
}

// Columns r WIDTH .. (r + 1) WIDTH of `out` [ROWS][RANKS WIDTH] are rank r's rows, to the bit; rows beyond the step's are passed over.
template <class C>
__device__ __forceinline__ void gathered_rows(const Step* step, const float* gathered, float* out) {
    constexpr int ROW = GatheredShape<C>::ROW;
    launch_dependents();
    wait_for_predecessors();
    const int pieces = exchange_pieces<C>(step);
    const size_t stride = gathered_stride<C>(pieces);
    const float4* const parts = reinterpret_cast<const float4*>(gathered);
    float4* const rows = reinterpret_cast<float4*>(out);
    for (int at = blockIdx.x * C::THREADS + threadIdx.x; at < pieces; at += gridDim.x * C::THREADS) {
#pragma unroll
        for (int rank = 0; rank < C::RANKS; rank++)
            rows[(size_t(at / ROW) * C::RANKS + rank) * ROW + at % ROW] = load_activation(parts + rank * stride + at);
    }
}

}  // namespace monomorph
