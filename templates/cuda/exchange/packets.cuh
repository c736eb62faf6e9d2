// Rows that the ranks of a host push into each other's inboxes, in pieces of 16 bytes.
//
// An inbox is two halves, which exchanges alternate between; a half has a slot a peer, in the order of ranks; a slot has CAPACITY rows. An
// empty place holds NOT_YET (core/async.cuh), so each value is its own flag: nothing else is said by it, no order between two values matters,
// and there is no fence. Who has read a value makes its place empty again.
//
// Two halves are enough. A rank pushes its exchange k + 2 behind the whole of its k + 1, so it has seen something of each peer's k + 1, and
// a peer pushes that behind the whole of its k, in which it emptied its half. That is why an exchange of no rows is none: it takes no turn.
//
// All blocks of an exchange are on the card together, and each pushes before it asks: none waits for a block that waits for it.
//
// Config:
//   RANKS             of the host, 2 to MAX_RANKS
//   WIDTH             values of a row that a rank pushes, a multiple of 4
//   ROWS              most rows of the launch
//   CAPACITY          rows of a slot, the same for all launches that share the inboxes
//   THREADS           of a block; the grid is any number of blocks in x
//   PIECES            that a thread has under way at a time
//   LIMIT             Limit::TOKENS or OUTPUTS: the field of the step that bounds the rows
#pragma once

#include "core/async.cuh"
#include "core/peer.cuh"
#include "core/step.cuh"
#include "exchange/world.cuh"
#include "products/stream_shape.cuh"

namespace monomorph {

template <class C>
struct ExchangeShape {
    static constexpr int PEERS = C::RANKS - 1;
    static constexpr int ROW = C::WIDTH / 4;                                  // pieces of a row
    static constexpr int SLOT = C::CAPACITY * ROW;                            // pieces of a slot
    static_assert(C::RANKS >= 2 && C::RANKS <= MAX_RANKS, "ranks of one host");
    static_assert(C::WIDTH % 4 == 0, "rows are whole pieces");
    static_assert(C::ROWS <= C::CAPACITY, "a slot holds the rows of every launch");
    static_assert(static_cast<long long>(C::CAPACITY) * ROW < 1ll << 30, "pieces are counted in an int");
    static_assert(C::LIMIT != Limit::NONE, "the step bounds the rows");
};

template <class C>
constexpr size_t exchange_inbox_bytes() {
    return size_t(2) * ExchangeShape<C>::PEERS * ExchangeShape<C>::SLOT * sizeof(float4);
}

// Pieces of the step's rows: the same on every rank.
template <class C>
__device__ __forceinline__ int exchange_pieces(const Step* step) {
    const int* const rows = C::LIMIT == Limit::OUTPUTS ? &step->outputs : &step->tokens;
    return least(load_activation(rows), C::ROWS) * ExchangeShape<C>::ROW;
}

// A value as it is pushed: NOT_YET, which is no value, becomes another NaN.
__device__ __forceinline__ float4 as_pushed(float4 value) {
    const auto of = [](float it) { return arrived(it) ? it : __uint_as_float(0x7fffffffu); };
    return make_float4(of(value.x), of(value.y), of(value.z), of(value.w));
}

// One exchange of this rank, as one of its threads sees it: PIECES pieces at a time, in strides of the grid.
template <class C>
struct Packets {
    using Shape = ExchangeShape<C>;
    static constexpr int PEERS = Shape::PEERS;
    // What the peers pushed of a thread's pieces.
    using Arrived = float4[C::PIECES][PEERS];

    World* world;
    Channel* channel;
    int rank;
    unsigned turn;
    float4* to[PEERS];  // this rank's slot at each peer
    float4* own;        // the first slot here; the others follow it

    // Before the wait: all that it reads is constant.
    __device__ __forceinline__ Packets(World* of, Channel* through) : world(of), channel(through), rank(of->rank), turn(0) {
        own = reinterpret_cast<float4*>(channel->inboxes[rank]);
#pragma unroll
        for (int j = 0; j < PEERS; j++) {
            const int peer = rank_of(j);
            to[j] = reinterpret_cast<float4*>(channel->inboxes[peer]) + size_t(rank < peer ? rank : rank - 1) * Shape::SLOT;
        }
    }

    __device__ __forceinline__ int rank_of(int peer) const { return peer < rank ? peer : peer + 1; }
    __device__ static __forceinline__ int stride() { return gridDim.x * C::THREADS; }
    __device__ static __forceinline__ int first_piece() { return blockIdx.x * C::THREADS + threadIdx.x; }

    // Behind the wait.
    __device__ __forceinline__ void begin() {
        turn = static_cast<unsigned>(load_activation(reinterpret_cast<const int*>(&channel->turn)));
        const size_t half = turn % 2 == 0 ? 0 : size_t(PEERS) * Shape::SLOT;
        own += half;
#pragma unroll
        for (int j = 0; j < PEERS; j++) to[j] += half;
    }

    __device__ __forceinline__ void push(bool live, int piece, float4 value) const {
#pragma unroll
        for (int j = 0; j < PEERS; j++) store_peer_if(live, to[j] + piece, value);
    }

    // By all threads of all blocks, once each has pushed its first pieces: the last block to know the turn ends it. The kernels behind read
    // the next one.
    __device__ __forceinline__ void end_turn() const {
        __syncthreads();
        if (threadIdx.x != 0 || atomicAdd(&channel->blocks, 1u) + 1 != gridDim.x) return;
        channel->blocks = 0;
        channel->turn = turn + 1;
    }

    // Waits for the peers' pieces `piece`, `piece` + stride(), ..., as far as they are below `pieces`.
    __device__ __forceinline__ void collect(int piece, int pieces, Arrived& got) const {
        unsigned long long since = 0;
        for (unsigned asked = 1;; asked++) {
            int missing = -1, at = 0;
#pragma unroll
            for (int i = 0; i < C::PIECES; i++) {
                const int place = piece + i * stride();
                if (i > 0 && place >= pieces) break;
#pragma unroll
                for (int j = 0; j < PEERS; j++) got[i][j] = load_peer(own + size_t(j) * Shape::SLOT + place);
            }
#pragma unroll
            for (int i = 0; i < C::PIECES; i++) {
                const int place = piece + i * stride();
                if (i > 0 && place >= pieces) break;
#pragma unroll
                for (int j = 0; j < PEERS; j++)
                    if (!arrived(got[i][j])) missing = j, at = place;
            }
            if (missing < 0) return;
            if (asked % 1024 == 0) since = still_missing(missing, at, since);
        }
    }

    // Makes the places of these pieces empty for the next but one exchange.
    __device__ __forceinline__ void empty(int piece, int pieces) const {
        const float none = not_yet();
#pragma unroll
        for (int i = 0; i < C::PIECES; i++) {
            const int place = piece + i * stride();
            if (i > 0 && place >= pieces) break;
#pragma unroll
            for (int j = 0; j < PEERS; j++) store_peer(own + size_t(j) * Shape::SLOT + place, make_float4(none, none, none, none));
        }
    }

    // When waiting began, as far as is known; ends the kernel where that is longer ago than the deadline.
    __device__ __forceinline__ unsigned long long still_missing(int peer, int piece, unsigned long long since) const {
        const unsigned long long now = clock_ns();
        if (since == 0) return now;
        // Of threads that have waited so long one reports, and ends the others too.
        if (now - since < world->deadline_ns || atomicOr(&world->failed, 1u) != 0) return since;
        MissingPeer* const report = reinterpret_cast<MissingPeer*>(world->report);
        report->rank = rank;
        report->peer = rank_of(peer);
        report->gathers = channel == &world->gathers;
        report->turn = turn;
        report->row = piece / Shape::ROW;
        fail(&report->written);
        return now;
    }
};

}  // namespace monomorph
