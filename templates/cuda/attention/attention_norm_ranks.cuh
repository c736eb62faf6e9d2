// attention_norm where ranks have a part each of a row's heads: the mean is of all parts.
//
//   sum of squares = (that of rank 0 + that of rank 1) + ...      f32, in this order on every rank, so that all have the same bits
//
// The sums go through the inboxes that partial sums of the residual stream use (exchange/inbox.cuh), two values a row: the queries' at its
// first place, the keys' at its second. KEYS_SHARED is false where every rank has all keys. Parts that several ranks have, each as often,
// leave the mean as it is.
//
// Work: a block norms rows blockIdx.x, blockIdx.x + BLOCKS, ...: it pushes the sums of all of them before it asks for the peers' of any, so
// that the ways between cards overlap. Two threads exchange, the queries' and the keys'. Bits of a row depend on no other row.
// Grid: (BLOCKS), all on the card together. A launch without rows takes no turn.
#pragma once

#include "attention/attention_norm.cuh"
#include "exchange/inbox.cuh"
#include "products/stream_shape.cuh"

namespace monomorph {

// qkv f32 [rows, QKV_WIDTH]; q_norm f32 [HEADS * HEAD_DIM], k_norm f32 [KV_HEADS * HEAD_DIM], a rank's.
template <class C>
__device__ __forceinline__ void attention_norm_ranks(const Step* step, World* world, float* qkv, const float* q_norm, const float* k_norm) {
    using A = AttentionShape<C>;
    using Sum = typename RowNorm<C>::Sum;
    using Sums = Inbox<C::RANKS, float, C::INBOX_WIDTH, C::INBOX_ROWS>;
    static_assert(C::ROWS <= C::INBOX_ROWS && C::INBOX_WIDTH >= 2, "a slot holds two sums of every row");
    constexpr int MOST = (C::ROWS + C::BLOCKS - 1) / C::BLOCKS;
    constexpr int WIDTHS[2] = {C::HEADS * C::HEAD_DIM, C::KV_HEADS * C::HEAD_DIM};
    MONOMORPH_SHARED(of_warps, Sum[RowNorm<C>::WARPS]);
    MONOMORPH_SHARED(mine, float[MOST][2]);
    MONOMORPH_SHARED(means, Sum[2]);
    launch_dependents();
    Sums sums(world, &world->sums);
    wait_for_predecessors();
    const int rows = least(step->tokens, C::ROWS);
    if (rows == 0) return;
    const bool exchanges = threadIdx.x < 2;
    if (exchanges) sums.begin();
    const auto part = [&](int row, int which) { return qkv + static_cast<size_t>(row) * A::QKV_WIDTH + (which == 1 ? A::FIRST_KEY * C::HEAD_DIM : 0); };
    for (int row = blockIdx.x, at = 0; row < rows; row += C::BLOCKS, at++) {
#pragma unroll
        for (int which = 0; which < 2; which++) {
            const Sum sum = RowNorm<C>::squares(part(row, which), WIDTHS[which], of_warps);
            if (threadIdx.x == which) {
                mine[at][which] = as_pushed(static_cast<float>(sum));
                sums.push(row * C::INBOX_WIDTH + which, mine[at][which]);
            }
            __syncthreads();
        }
    }
    // Both threads know the turn, also where there was no row.
    __syncthreads();
    if (threadIdx.x == 0) sums.end_turn();
    for (int row = blockIdx.x, at = 0; row < rows; row += C::BLOCKS, at++) {
        if (exchanges) {
            const int which = threadIdx.x, place = row * C::INBOX_WIDTH + which;
            typename Sums::template Arrived<1> peers;
            sums.collect(peers, [&](int) { return place; }, [](int) { return true; });
            sums.empty(place);
            const bool shared = which == 0 || C::KEYS_SHARED;
            const float sum = shared ? sums.sum(mine[at][which], peers[0]) : mine[at][which];
            means[which] = static_cast<Sum>(sum) / static_cast<Sum>((shared ? C::RANKS : 1) * (which == 0 ? WIDTHS[0] : WIDTHS[1]));
        }
        __syncthreads();
        RowNorm<C>::scale(part(row, 0), q_norm, WIDTHS[0], means[0]);
        RowNorm<C>::scale(part(row, 1), k_norm, WIDTHS[1], means[1]);
        __syncthreads();
    }
}

}  // namespace monomorph
