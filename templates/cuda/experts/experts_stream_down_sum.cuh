// The end of the experts' down products where each rank has a part of them: residual += the sum of all ranks' parts, made where they are computed.
// REPLACES, if there: residual = that sum, whatever it was.
//
// Config: as experts_stream_down_shape.cuh says, and
//     static constexpr int RANKS, INBOX_ROWS;   // of the host; rows of a slot of the inboxes
// All blocks of the grid are on the card together.
#pragma once

#include "exchange/group_sum.cuh"
#include "experts/experts_stream.cuh"

namespace monomorph {

template <class C>
struct DownSumOfRanks : DownEpilogue<C, false> {
    using Base = DownEpilogue<C, false>;
    using Output = typename Base::Output;
    using P = typename Base::P;
    static_assert(C::ROWS <= C::INBOX_ROWS, "a slot holds the rows of every launch");
    static_assert(C::BLOCKS <= P::TILES, "every block takes part in the exchange");

    GroupSum<C::RANKS, C::OUTPUTS, C::INBOX_ROWS, Base::EACH, !REPLACED<C>> sum;

    __device__ __forceinline__ explicit DownSumOfRanks(World* world) : Base(world), sum(world) {}
    __device__ __forceinline__ void begin() { sum.begin(); }
    __device__ __forceinline__ void store(int first, int tiles, int tokens, const typename P::Sum* partials, const typename P::Sum* common, int block_first, float* out) {
        const auto index = [&](int e) { return int(threadIdx.x) + e * P::CONSUMERS; };
        const auto output = [&](int e) { return Output(index(e), first, tiles, tokens); };
        const typename P::Sum* const of_group = common + (first - block_first) * P::SHARED_TILE_PARTIALS;
        sum.push(
            out, [&](int e) { return output(e).live ? output(e).row * C::OUTPUTS + output(e).column : -1; },
            [&](int e) { return Base::finished(e, index(e), output(e), partials, of_group); });
    }
    __device__ __forceinline__ void end(float* out) const { sum.add(out); }
};

}  // namespace monomorph
