// Rows put together from the parts of all ranks, on every rank: columns r WIDTH .. (r + 1) WIDTH of `out` [ROWS][RANKS WIDTH] are rank r's
// `part` [ROWS][WIDTH], to the bit (but NOT_YET becomes another NaN). Both in f32, rows beyond the step's are passed over. Config, grid and
// how values get there: packets.cuh. No shared memory.
#pragma once

#include "exchange/packets.cuh"

namespace monomorph {

template <class C>
__device__ __forceinline__ void exchange_gather(const Step* step, World* world, const float* part, float* out) {
    constexpr int ROW = ExchangeShape<C>::ROW;
    launch_dependents();
    Packets<C> packets(world, &world->gathers);
    wait_for_predecessors();
    packets.begin();
    const int stride = packets.stride(), first = packets.first_piece();
    const float4* const parts = reinterpret_cast<const float4*>(part);
    const auto place = [&](int piece, int rank) {
        return reinterpret_cast<float4*>(out) + (size_t(piece / ROW) * C::RANKS + rank) * ROW + piece % ROW;
    };

    float4 own[C::PIECES];
    const auto load = [&](int piece, int pieces) {
#pragma unroll
        for (int i = 0; i < C::PIECES; i++) {
            const int at = piece + i * stride;
            if (at >= pieces) break;
            own[i] = load_activation(parts + at);
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
    load(first, C::ROWS * ROW);
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
            *place(at, packets.rank) = own[i];
#pragma unroll
            for (int j = 0; j < C::RANKS - 1; j++) *place(at, packets.rank_of(j)) = peers[i][j];
        }
        packets.empty(piece, pieces);
        piece += C::PIECES * stride;
        load(piece, pieces);
        push(piece, pieces);
    }
}

}  // namespace monomorph
