// The sum of all ranks' partial sums, added to the residual stream:
//
//   residual += ((partial of rank 0 + partial of rank 1) + partial of rank 2) + ...
//
// in this order on every rank, so that all have the same bits. `partial` [ROWS][WIDTH] is zero afterwards, with DECODE rows beyond the step's
// too. Both in f32, other rows beyond the step's are passed over. Config, grid and how values get there: packets.cuh. No shared memory.
#pragma once

#include "exchange/packets.cuh"

namespace monomorph {

__device__ __forceinline__ float4 plus(float4 a, float4 b) { return make_float4(a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w); }

// In the order of ranks; `peers` have arrived.
template <class C>
__device__ __forceinline__ float4 sum_of_ranks(int rank, float4 own, const float4 (&peers)[C::RANKS - 1]) {
    float4 sum = rank == 0 ? own : peers[0];
#pragma unroll
    for (int r = 1; r < C::RANKS; r++) {
        const float4 before = peers[r - 1], at = peers[least(r, C::RANKS - 2)];
        sum = plus(sum, r < rank ? at : r == rank ? own : before);
    }
    return sum;
}

template <class C>
__device__ __forceinline__ void exchange_sum(const Step* step, World* world, float* partial, float* residual) {
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
            residuals[i] = load_activation(sums + at);
        }
    };
    const auto push = [&](int piece, int pieces) {
#pragma unroll
        for (int i = 0; i < C::PIECES; i++) {
            own[i] = as_pushed(own[i]);
            packets.push(piece + i * stride < pieces, piece + i * stride, own[i]);
        }
    };

    // Asked for before the turn and the step's rows are known, at the same time.
    load(first, C::ROWS * ExchangeShape<C>::ROW);
    const int pieces = exchange_pieces<C>(step);
    push(first, pieces);
    if (pieces == 0) return;
    packets.end_turn();
    for (int piece = first; piece < pieces;) {
        typename Packets<C>::Arrived peers;
        packets.collect(piece, pieces, peers);
#pragma unroll
        for (int i = 0; i < C::PIECES; i++) {
            const int at = piece + i * stride;
            if (at >= pieces) break;
            sums[at] = plus(residuals[i], sum_of_ranks<C>(packets.rank, own[i], peers[i]));
            partials[at] = make_float4(0, 0, 0, 0);
        }
        packets.empty(piece, pieces);
        piece += C::PIECES * stride;
        load(piece, pieces);
        push(piece, pieces);
    }
}

}  // namespace monomorph
