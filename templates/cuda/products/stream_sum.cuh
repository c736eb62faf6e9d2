// A stream product of which each rank computes a part, summed over the ranks where it is computed: out += the sum of all ranks' products.
// REPLACES, if there: out = that sum, whatever it was.
//
// Config: as stream_shape.cuh says, with EPILOGUE SUM and
//     static constexpr int RANKS, INBOX_ROWS;   // of the host; rows of a slot of the inboxes
// All blocks of the grid are on the card together.
#pragma once

#include "core/replaces.cuh"
#include "exchange/group_sum.cuh"
#include "products/stream.cuh"

namespace monomorph {

template <class C>
struct StreamSum : StreamEpilogue<C> {
    using Base = StreamEpilogue<C>;
    using Output = typename Base::Output;
    using S = typename Base::S;
    static_assert(C::EPILOGUE == Epilogue::SUM, "a sum over ranks");
    static_assert(C::ROWS <= C::INBOX_ROWS, "a slot holds the rows of every launch");
    static_assert(C::BLOCKS <= S::GRANULES, "every block takes part in the exchange");

    GroupSum<C::RANKS, C::OUTPUTS, C::INBOX_ROWS, Base::EACH, !REPLACED<C>> sum;

    __device__ __forceinline__ explicit StreamSum(World* world) : Base(world), sum(world) {}
    __device__ __forceinline__ void begin() { sum.begin(); }
    __device__ __forceinline__ void store(int first_tile, int tiles, int rows, const typename S::Sum* partials, float* out, int thread) {
        const auto output = [&](int e) { return Output(thread + e * S::CONSUMERS, first_tile, tiles, rows); };
        sum.push(
            out, [&](int e) { return output(e).live ? output(e).row * C::OUTPUTS + output(e).column : -1; },
            [&](int e) { return Base::finished(e, thread + e * S::CONSUMERS, output(e), [&](int tile, int within) { return Base::sum_of(partials, tile, within); }); });
    }
    __device__ __forceinline__ void end(float* out) const { sum.add(out); }
};

}  // namespace monomorph
