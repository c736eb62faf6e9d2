// Exchanges of whole rows in pieces of 16 bytes, by kernels of their own (how values get there: inbox.cuh).
//
// Config:
//   RANKS             of the host, 2 to MAX_RANKS
//   WIDTH             values of a row that a rank pushes, a multiple of 4
//   ROWS              most rows of the launch
//   CAPACITY          rows of a slot, the same for all launches that share the inboxes
//   THREADS           of a block; the grid is any number of blocks in x
//   PIECES            that a thread has under way at a time
//   LIMIT             Limit::TOKENS or OUTPUTS: the field of the step that bounds the rows
#pragma once

#include "core/step.cuh"
#include "exchange/inbox.cuh"
#include "products/stream_shape.cuh"

namespace monomorph {

template <class C>
struct ExchangeShape {
    static constexpr int ROW = C::WIDTH / 4;                                  // pieces of a row
    using Pieces = Inbox<C::RANKS, float4, ROW, C::CAPACITY>;
    static_assert(C::WIDTH % 4 == 0, "rows are whole pieces");
    static_assert(C::ROWS <= C::CAPACITY, "a slot holds the rows of every launch");
    static_assert(C::LIMIT != Limit::NONE, "the step bounds the rows");
};

// Pieces of the step's rows: the same on every rank.
template <class C>
__device__ __forceinline__ int exchange_pieces(const Step* step) {
    const int* const rows = C::LIMIT == Limit::OUTPUTS ? &step->outputs : &step->tokens;
    return least(load_activation(rows), C::ROWS) * (C::WIDTH / 4);
}

// One exchange of this rank, as one of its threads sees it: PIECES pieces at a time, in strides of the grid.
template <class C>
struct Packets : ExchangeShape<C>::Pieces {
    using Pieces = typename ExchangeShape<C>::Pieces;
    // What the peers pushed of a thread's pieces.
    using Arrived = typename Pieces::template Arrived<C::PIECES>;
    using Pieces::Pieces;

    __device__ static __forceinline__ int stride() { return gridDim.x * C::THREADS; }
    __device__ static __forceinline__ int first_piece() { return blockIdx.x * C::THREADS + threadIdx.x; }

    // By all threads, once each has pushed its first pieces.
    __device__ __forceinline__ void end_turn() const {
        __syncthreads();
        if (threadIdx.x == 0) Pieces::end_turn();
    }

    // Waits for the peers' pieces `piece`, `piece` + stride(), ..., as far as they are below `pieces`.
    __device__ __forceinline__ void collect(int piece, int pieces, Arrived& got) const {
        Pieces::collect(got, [&](int i) { return piece + i * stride(); }, [&](int i) { return i == 0 || piece + i * stride() < pieces; });
    }

    // Makes the places of these pieces empty.
    __device__ __forceinline__ void empty(int piece, int pieces) const {
#pragma unroll
        for (int i = 0; i < C::PIECES; i++)
            if (i == 0 || piece + i * stride() < pieces) Pieces::empty(piece + i * stride());
    }
};

}  // namespace monomorph
