// The end of a mixture of experts for more than a few tokens where each rank has a part of it: out += the sum of all ranks' parts, made where they
// are computed (how values get there: exchange/inbox.cuh). REPLACES, if there: out = that sum, for the residual is 0 then.
//
// Config: as experts_batch_combine.cuh says, and
//   RANKS, INBOX_ROWS   of the host; rows of a slot of the inboxes
// All blocks of the grid are on the card together.
#pragma once

#include "exchange/inbox.cuh"
#include "experts/experts_batch_combine.cuh"

namespace monomorph {

template <class C>
struct CombineSum {
    using Pieces = Inbox<C::RANKS, float4, C::HIDDEN / 4, C::INBOX_ROWS>;
    static_assert(CombineShape<C>::VECTOR == 4, "rows are whole pieces");
    static_assert(C::STEP_ROWS <= C::INBOX_ROWS, "a slot holds the rows of every launch");

    Pieces pieces;
    __device__ __forceinline__ explicit CombineSum(World* world) : pieces(world, &world->sums) {}
    __device__ __forceinline__ void begin() { pieces.begin(); }
    // Every block ends the turn, or none.
    __device__ __forceinline__ void no_part(int tokens) {
        if (threadIdx.x == 0 && tokens > 0) pieces.end_turn();
    }
    // Thread 0 of every block has columns.
    __device__ __forceinline__ void add(float* out, size_t at, const float (&residual)[4], const float (&sum)[4]) const {
        const int place = static_cast<int>(at / 4);
        const float4 mine = as_pushed(make_float4(sum[0], sum[1], sum[2], sum[3]));
        pieces.push(place, mine);
        if (threadIdx.x == 0) pieces.end_turn();
        typename Pieces::template Arrived<1> peers;
        pieces.collect(peers, [&](int) { return place; }, [](int) { return true; });
        reinterpret_cast<float4*>(out)[place] = plus(make_float4(residual[0], residual[1], residual[2], residual[3]), pieces.sum(mine, peers[0]));
        pieces.empty(place);
    }
};

}  // namespace monomorph
