// The sum of all ranks' partial sums, added to the residual stream:
//
//   residual += ((partial of rank 0 + partial of rank 1) + partial of rank 2) + ...
//
// in this order on every rank, so that all have the same bits. `partial` [ROWS][WIDTH] is zero afterwards, with DECODE rows beyond the step's
// too. REPLACES, if there: residual = that sum, and may be where `partial` is, which is left as it was. Both in f32, other rows beyond the step's
// are passed over. Config, grid and how values get there: packets.cuh, inbox.cuh. No shared memory.
#pragma once

#include "exchange/sum_two_shot.cuh"

namespace monomorph {

template <class C>
__device__ __forceinline__ void exchange_sum(const Step* step, World* world, float* partial, float* residual) {
    if constexpr (C::RANKS > 2 && !C::DECODE) return exchange_sum_two_shot<C>(step, world, partial, residual);
    launch_dependents();
    Packets<C> packets(world, &world->sums);
    wait_for_predecessors();
    packets.begin();
    const int stride = packets.stride(), first = packets.first_piece();
    float4* const partials = reinterpret_cast<float4*>(partial);
    float4* const sums = reinterpret_cast<float4*>(residual);

    float4 own[C::PIECES], residuals[C::PIECES];
    const auto load = [&](int piece, int pieces) {
#pragma unroll
        for (int i = 0; i < C::PIECES; i++) {
            const int at = piece + i * stride;
            if (at >= pieces) break;
            own[i] = load_activation(partials + at);
            residuals[i] = residual_of<!REPLACED<C>>(sums + at);
        }
    };
    const auto push = [&](int piece, int pieces) {
#pragma unroll
        for (int i = 0; i < C::PIECES; i++) {
            own[i] = as_pushed(own[i]);
            packets.push_if(piece + i * stride < pieces, piece + i * stride, own[i]);
        }
    };

    // Asked for before the turn and the step's rows are known, at the same time.
    load(first, C::ROWS * ExchangeShape<C>::ROW);
    const int pieces = exchange_pieces<C>(step);
    push(first, pieces);
    // A decode program's products add to all of its rows, and a longer step would find what they left there.
    if constexpr (C::DECODE && !REPLACED<C>)
        for (int at = first; at < C::ROWS * ExchangeShape<C>::ROW; at += stride)
            if (at >= pieces) partials[at] = make_float4(0, 0, 0, 0);
    if (pieces == 0) return;
    packets.end_turn();
    for (int piece = first; piece < pieces;) {
        typename Packets<C>::Arrived peers;
        packets.collect(piece, pieces, peers);
#pragma unroll
        for (int i = 0; i < C::PIECES; i++) {
            const int at = piece + i * stride;
            if (at >= pieces) break;
            sums[at] = added_to<!REPLACED<C>>(residuals[i], packets.sum(own[i], peers[i]));
            if constexpr (!REPLACED<C>) partials[at] = make_float4(0, 0, 0, 0);
        }
        packets.empty(piece, pieces);
        piece += C::PIECES * stride;
        load(piece, pieces);
        push(piece, pieces);
    }
}

}  // namespace monomorph
