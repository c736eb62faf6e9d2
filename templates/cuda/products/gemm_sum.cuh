// A tensor-core product of which each rank computes a part, summed over the ranks where it is computed: out += the sum of all ranks' products.
//
// A lane pushes its outputs to the peers as it writes them, and keeps its own in `own` f32 [CAPACITY, OUTPUTS], for which there are no registers.
// Behind a piece of work it adds up. That saves the launch of a sum (exchange/sum.cuh). How values get there: exchange/inbox.cuh.
//
// Config: as gemm.cuh says, with EPILOGUE SUM and
//   RANKS, INBOX_ROWS   of the host; rows of a slot of the inboxes
// All blocks of the grid are on the card together.
#pragma once

#include "exchange/inbox.cuh"
#include "products/gemm.cuh"

namespace monomorph {

// What a sum over ranks does besides; other epilogues do nothing.
template <class C, bool SUMS = C::EPILOGUE == Epilogue::SUM>
struct GemmSum {
    __device__ __forceinline__ explicit GemmSum(const GemmArguments&) {}
    __device__ __forceinline__ void begin(int) const {}
    __device__ __forceinline__ void push(int, int, float4) const {}
    template <class Epilogue>
    __device__ __forceinline__ void add(const Epilogue&, int, int, int) const {}
};

template <class C>
struct GemmSum<C, true> {
    using Pieces = Inbox<C::RANKS, float4, C::OUTPUTS / 4, C::INBOX_ROWS>;
    static constexpr int AT_ONCE = C::RANKS <= 2 ? 4 : C::RANKS <= 4 ? 2 : 1;   // outputs of a lane, as far as there are registers
    static_assert(C::OUTPUTS % 4 == 0, "rows are whole pieces");
    static_assert(C::CAPACITY <= round_up(C::INBOX_ROWS, 8), "a slot holds the rows of every launch");

    Pieces pieces;
    float4* own;
    float4* out;

    __device__ __forceinline__ explicit GemmSum(const GemmArguments& arguments)
        : pieces(arguments.world, &arguments.world->sums), own(reinterpret_cast<float4*>(arguments.own)), out(reinterpret_cast<float4*>(arguments.out)) {}

    // Behind the wait, by all consumer warps. Without rows there is no exchange.
    __device__ __forceinline__ void begin(int rows) {
        pieces.begin();
        named_barrier(3, 32 * GemmShape<C>::CONSUMER_WARPS);
        if (threadIdx.x == 0 && rows > 0) pieces.end_turn();
    }

    __device__ __forceinline__ static int place(int token, int feature) { return (token * C::OUTPUTS + feature) / 4; }

    __device__ __forceinline__ void push(int token, int feature, float4 value) const {
        value = as_pushed(value);
        own[place(token, feature)] = value;
        pieces.push(place(token, feature), value);
    }

    // Behind the pushes of a piece of work: the same lane has the same outputs.
    template <class Epilogue>
    __device__ __forceinline__ void add(const Epilogue& epilogue, int row_block, int first_token, int rows) const {
        constexpr int STRIDE = 4 * Epilogue::AT_ONCE;   // of a warpgroup's lanes over tokens
        const int end = least(first_token + C::TOKENS, rows), first = epilogue.warp * Epilogue::AT_ONCE + epilogue.lane / Epilogue::LANES;
        const auto token = [&](int i) { return first_token + (first + i * STRIDE) * C::SPLIT + epilogue.place.split_part; };
#pragma unroll 1
        for (int s = 0; s < C::STRIPS; s++) {
            const int feature = epilogue.feature_of(row_block, s);
            if (feature >= C::OUTPUTS) continue;
#pragma unroll 1
            for (int from = 0; token(from) < end; from += AT_ONCE) {
                const auto live = [&](int i) { return i == 0 || token(from + i) < end; };
                const auto at = [&](int i) { return place(token(from + i), feature); };
                float4 mine[AT_ONCE], residual[AT_ONCE];
                typename Pieces::template Arrived<AT_ONCE> peers;
#pragma unroll
                for (int i = 0; i < AT_ONCE; i++)
                    if (live(i)) mine[i] = load_activation(own + at(i)), residual[i] = load_activation(out + at(i));
                pieces.collect(peers, at, live);
#pragma unroll
                for (int i = 0; i < AT_ONCE; i++) {
                    if (!live(i)) continue;
                    out[at(i)] = plus(residual[i], pieces.sum(mine[i], peers[i]));
                    pieces.empty(at(i));
                }
            }
        }
    }
};

}  // namespace monomorph
