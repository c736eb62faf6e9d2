// sum.cuh for many rows of more than two ranks: each piece is added by one of them, which sends the others the sum.
//
//   one shot    a rank pushes all of its pieces to every peer: (RANKS - 1) x the rows
//   two shots   it pushes each to the rank that adds it, and the sums of its own to every peer: 2 (RANKS - 1) / RANKS x the rows
//
// Of two ranks both are once the rows, and one shot is a way shorter; of four 3 and 1.5. The sum is of the same values in the same order.
//
// A thread has a piece of each rank under way. At a place that a rank adds, its inbox takes its peers' values; everywhere else it takes the
// sum, in the slot of the rank that adds it. So a place of a slot is written once an exchange, as in one shot, and two halves are enough: who
// has a sum knows that every rank has begun the exchange. No thread waits for one that waits for it: a thread pushes its values of a round
// before it asks for any, and the sums of it once it has its peers' values.
#pragma once

#include "core/replaces.cuh"
#include "exchange/packets.cuh"

namespace monomorph {

template <class C>
__device__ __forceinline__ void exchange_sum_two_shot(const Step* step, World* world, float* partial, float* residual) {
    constexpr int RANKS = C::RANKS;
    static_assert(C::PIECES == RANKS, "a thread has a piece of each rank under way");
    launch_dependents();
    Packets<C> packets(world, &world->sums);
    wait_for_predecessors();
    packets.begin();
    const int rank = packets.rank, stride = packets.stride(), pieces = exchange_pieces<C>(step);
    if (pieces == 0) return;
    float4* const partials = reinterpret_cast<float4*>(partial);
    float4* const sums = reinterpret_cast<float4*>(residual);

    float4 mine[RANKS], residuals[RANKS];
    const auto load_and_push = [&](int piece) {
#pragma unroll
        for (int r = 0; r < RANKS; r++) {
            const int at = piece + r * stride;
            if (at >= pieces) break;
            mine[r] = as_pushed(load_activation(partials + at));
            residuals[r] = residual_of<!REPLACED<C>>(sums + at);
        }
#pragma unroll
        for (int r = 0; r < RANKS; r++) packets.push_to(r, piece + r * stride < pieces, piece + r * stride, mine[r]);
    };

    int piece = packets.first_piece();
    load_and_push(piece);
    packets.end_turn();
    while (piece < pieces) {
        float4 added[RANKS], total = make_float4(0, 0, 0, 0);
        if (const int at = piece + rank * stride; at < pieces) {
            typename Packets<C>::Pieces::template Arrived<1> peers;
            packets.Packets<C>::Pieces::collect(peers, [&](int) { return at; }, [](int) { return true; });
            float4 own = mine[0];
#pragma unroll
            for (int r = 1; r < RANKS; r++)
                if (r == rank) own = mine[r];
            total = as_pushed(packets.sum(own, peers[0]));
            packets.push(at, total);
            packets.Packets<C>::Pieces::empty(at);
        }
        packets.collect_each(added, [&](int r) { return piece + r * stride; }, [&](int r) { return piece + r * stride < pieces; });
#pragma unroll
        for (int r = 0; r < RANKS; r++) {
            const int at = piece + r * stride;
            if (at >= pieces) break;
            sums[at] = added_to<!REPLACED<C>>(residuals[r], r == rank ? total : added[r]);
            if constexpr (!REPLACED<C>) partials[at] = make_float4(0, 0, 0, 0);
            if (r != rank) packets.empty_of(r, at);
        }
        piece += RANKS * stride;
        load_and_push(piece);
    }
}

}  // namespace monomorph
