// A tensor-core product of which each rank computes a part, summed over the ranks where it is computed: out += the sum of all ranks' products.
// REPLACES, if there: out = that sum, whatever it was.
//
// A lane pushes its outputs to the peers as it writes them, and keeps its own in `own` f32 [CAPACITY, OUTPUTS], for which there are no registers.
// Behind a piece of work it adds up. That saves the launch of a sum (exchange/sum.cuh). How values get there: exchange/inbox.cuh.
//
// Nor are there registers, while products run, for where values go: the copying warp leaves that in shared memory once it has filled its ring,
// and in the end takes the block's part in the turn. The consumers meet it before their first outputs.
//
// Config: as gemm.cuh says, with EPILOGUE SUM and
//   RANKS, INBOX_ROWS   of the host; rows of a slot of the inboxes
// All blocks of the grid are on the card together.
#pragma once

#include "core/replaces.cuh"
#include "exchange/inbox.cuh"
#include "products/gemm.cuh"

namespace monomorph {

// The copying warp's part of it; with other epilogues there is none. It keeps nothing: that warp may have few registers.
template <class C, bool SUMS = C::EPILOGUE == Epilogue::SUM>
struct GemmTurn {
    static __device__ __forceinline__ void tell(const GemmArguments&, char*, int) {}
    static __device__ __forceinline__ void end(const GemmArguments&, int) {}
};

template <class C>
struct GemmTurn<C, true> {
    using S = GemmShape<C>;
    using Pieces = typename GemmPieces<C>::Pieces;

    // By all lanes; the consumers come with `GemmSum::begin`.
    static __device__ __forceinline__ void tell(const GemmArguments& arguments, char* shared, int lane) {
        if (lane == 0) {
            Pieces pieces(arguments.world, &arguments.world->sums);
            pieces.begin();
            *reinterpret_cast<Pieces*>(shared + S::PIECES_OFFSET) = pieces;
        }
        __syncwarp();
        named_barrier_arrive(4, 32 * (S::CONSUMER_WARPS + 1));
    }
    // Without rows there is no exchange. A block without work has its part in the turn, too.
    static __device__ __forceinline__ void end(const GemmArguments& arguments, int lane) {
        if (lane > 0 || gemm_rows<C>(arguments.step) == 0) return;
        Pieces pieces(arguments.world, &arguments.world->sums);
        pieces.begin();
        pieces.end_turn();
    }
};

// The consumers' part of it.
template <class C, bool SUMS = C::EPILOGUE == Epilogue::SUM>
struct GemmSum {
    __device__ __forceinline__ GemmSum(const GemmArguments&, const float*) {}
    __device__ __forceinline__ void begin() const {}
    __device__ __forceinline__ void push(int, int, float4) const {}
    template <class Epilogue>
    __device__ __forceinline__ void add(const Epilogue&, int, int, int) const {}
};

template <class C>
struct GemmSum<C, true> {
    using S = GemmShape<C>;
    using Pieces = typename GemmPieces<C>::Pieces;
    // Outputs that a lane adds up at a time, in fours, with the ranks' and the residual in registers.
    static constexpr int AT_ONCE = most(1, (C::RESIDENT == 1 ? 12 : 6) / (C::RANKS + 1));
    static_assert(C::OUTPUTS % 4 == 0, "rows are whole pieces");
    static_assert(C::CAPACITY <= round_up(C::INBOX_ROWS, 8), "a slot holds the rows of every launch");

    const Pieces* told;   // in shared memory
    const GemmArguments& arguments;

    __device__ __forceinline__ GemmSum(const GemmArguments& all, const float* strips)
        : told(reinterpret_cast<const Pieces*>(reinterpret_cast<const char*>(strips) - S::SUMS_OFFSET + S::PIECES_OFFSET)), arguments(all) {}

    // By all consumer warps, before the first outputs: the places are known behind it.
    __device__ __forceinline__ void begin() const { named_barrier(4, 32 * (S::CONSUMER_WARPS + 1)); }

    __device__ __forceinline__ static int place(int token, int feature) { return (token * C::OUTPUTS + feature) / 4; }

    __device__ __forceinline__ void push(int token, int feature, float4 value) const {
        value = as_pushed(value);
        reinterpret_cast<float4*>(arguments.own)[place(token, feature)] = value;
        told->push(place(token, feature), value);
    }

    // Behind the pushes of a piece of work: the same lane has the same outputs.
    template <class Epilogue>
    __device__ __forceinline__ void add(const Epilogue& epilogue, int row_block, int first_token, int rows) const {
        const Pieces pieces = *told;
        float4* const own = reinterpret_cast<float4*>(arguments.own);
        float4* const out = reinterpret_cast<float4*>(arguments.out);
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
                    if (live(i)) mine[i] = load_activation(own + at(i)), residual[i] = residual_of<!REPLACED<C>>(out + at(i));
                pieces.collect(peers, at, live);
#pragma unroll
                for (int i = 0; i < AT_ONCE; i++) {
                    if (!live(i)) continue;
                    out[at(i)] = added_to<!REPLACED<C>>(residual[i], pieces.sum(mine[i], peers[i]));
                    pieces.empty(at(i));
                }
            }
        }
    }
};

}  // namespace monomorph
