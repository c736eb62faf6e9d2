// Where ranks of a host push rows into each other's inboxes, value by value or in pieces of 16 bytes.
//
// An inbox is two halves, which exchanges alternate between; a half has a slot a peer, in the order of ranks; a slot has CAPACITY rows. An
// empty place holds NOT_YET (core/async.cuh), so each value is its own flag: nothing else is said by it, no order between two values matters,
// and there is no fence. Who has read a value makes its place empty again.
//
// Two halves are enough. A rank pushes its exchange k + 2 behind the whole of its k + 1, so it has seen something of each peer's k + 1, and
// a peer pushes that behind the whole of its k, in which it emptied its half. That is why an exchange of no rows is none: it takes no turn.
//
// All blocks of an exchange are on the card together, and each pushes before it asks: none waits for a block that waits for it.
#pragma once

#include "core/async.cuh"
#include "core/peer.cuh"
#include "exchange/world.cuh"

namespace monomorph {

// A value as it is pushed: NOT_YET, which is no value, becomes another NaN.
__device__ __forceinline__ float as_pushed(float value) { return arrived(value) ? value : __uint_as_float(0x7fffffffu); }
__device__ __forceinline__ float4 as_pushed(float4 value) {
    return make_float4(as_pushed(value.x), as_pushed(value.y), as_pushed(value.z), as_pushed(value.w));
}

__device__ __forceinline__ float plus(float a, float b) { return __fadd_rn(a, b); }
__device__ __forceinline__ float4 plus(float4 a, float4 b) { return make_float4(plus(a.x, b.x), plus(a.y, b.y), plus(a.z, b.z), plus(a.w, b.w)); }

// A sum is added to what stands where it goes, the residual, or, without ADDS, takes its place.
template <bool ADDS, class V>
__device__ __forceinline__ V residual_of(const V* place) {
    if constexpr (ADDS) return load_activation(place);
    else return V{};
}
template <bool ADDS, class V>
__device__ __forceinline__ V added_to(V residual, V sum) {
    if constexpr (ADDS) return plus(residual, sum);
    else return sum;
}

// An empty place.
__device__ __forceinline__ void make_empty(float* place) { store_peer(place, not_yet()); }
__device__ __forceinline__ void make_empty(float4* place) { store_peer(place, make_float4(not_yet(), not_yet(), not_yet(), not_yet())); }

// Of one rank's inbox for rows of `width` values.
constexpr size_t inbox_bytes(int ranks, int width, int capacity) { return size_t(2) * (ranks - 1) * capacity * width * sizeof(float); }

// One exchange of this rank, as one of its threads sees it. A place is a V (float or float4) of a slot; a row has ROW places.
template <int RANKS, class V, int ROW, int CAPACITY>
struct Inbox {
    static constexpr int PEERS = RANKS - 1;
    static constexpr int SLOT = CAPACITY * ROW;
    static_assert(RANKS >= 2 && RANKS <= MAX_RANKS, "ranks of one host");
    static_assert(static_cast<long long>(CAPACITY) * ROW < 1ll << 30, "places are counted in an int");
    // What the peers pushed to EACH places.
    template <int EACH>
    using Arrived = V[EACH][PEERS];

    World* world;
    Channel* channel;
    int rank;
    unsigned turn;
    V* to[PEERS];  // this rank's slot at each peer
    V* own;        // the first slot here; the others follow it

    // Before the wait: all that it reads is constant.
    __device__ __forceinline__ Inbox(World* of, Channel* through) : world(of), channel(through), rank(of->rank), turn(0) {
        own = reinterpret_cast<V*>(channel->inboxes[rank]);
#pragma unroll
        for (int j = 0; j < PEERS; j++) {
            const int peer = rank_of(j);
            to[j] = reinterpret_cast<V*>(channel->inboxes[peer]) + size_t(rank < peer ? rank : rank - 1) * SLOT;
        }
    }

    __device__ __forceinline__ int rank_of(int peer) const { return peer < rank ? peer : peer + 1; }
    // The slot here of a rank that is not this one.
    __device__ __forceinline__ int slot_of(int other) const { return other < rank ? other : other - 1; }

    // Behind the wait.
    __device__ __forceinline__ void begin() {
        turn = static_cast<unsigned>(load_activation(reinterpret_cast<const int*>(&channel->turn)));
        const size_t half = turn % 2 == 0 ? 0 : size_t(PEERS) * SLOT;
        own += half;
#pragma unroll
        for (int j = 0; j < PEERS; j++) to[j] += half;
    }

    __device__ __forceinline__ void push(int place, V value) const {
#pragma unroll
        for (int j = 0; j < PEERS; j++) store_peer(to[j] + place, value);
    }
    __device__ __forceinline__ void push_if(bool live, int place, V value) const {
#pragma unroll
        for (int j = 0; j < PEERS; j++) store_peer_if(live, to[j] + place, value);
    }

    // To one rank, and nowhere if that is this one.
    __device__ __forceinline__ void push_to(int other, bool live, int place, V value) const {
#pragma unroll
        for (int j = 0; j < PEERS; j++) store_peer_if(live && rank_of(j) == other, to[j] + place, value);
    }

    // By one thread of each block, once all of them know the turn: the last block ends it. The kernels behind read the next one. It takes a way
    // to memory and back: best while values are on the way, behind the first pushes, or by a thread that nobody waits for.
    __device__ __forceinline__ void end_turn() const {
        if (atomicAdd(&channel->blocks, 1u) + 1 != gridDim.x * gridDim.y) return;
        channel->blocks = 0;
        channel->turn = turn + 1;
    }

    // Waits for the peers' values at the places `place(i)`, as far as `live(i)` says.
    template <int EACH, class Place, class Live>
    __device__ __forceinline__ void collect(V (&got)[EACH][PEERS], const Place& place, const Live& live) const {
        until_arrived([&](int& missing, int& at) {
#pragma unroll
            for (int i = 0; i < EACH; i++) {
                if (!live(i)) continue;
#pragma unroll
                for (int j = 0; j < PEERS; j++) got[i][j] = load_peer(own + size_t(j) * SLOT + place(i));
            }
#pragma unroll
            for (int i = 0; i < EACH; i++) {
                if (!live(i)) continue;
#pragma unroll
                for (int j = 0; j < PEERS; j++)
                    if (!arrived(got[i][j])) missing = j, at = place(i);
            }
        });
    }

    // Waits for a value of each rank r, which is not this one, at the place `place(r)`, as far as `live(r)` says.
    template <class Place, class Live>
    __device__ __forceinline__ void collect_each(V (&got)[RANKS], const Place& place, const Live& live) const {
        until_arrived([&](int& missing, int& at) {
#pragma unroll
            for (int r = 0; r < RANKS; r++)
                if (r != rank && live(r)) got[r] = load_peer(own + size_t(slot_of(r)) * SLOT + place(r));
#pragma unroll
            for (int r = 0; r < RANKS; r++)
                if (r != rank && live(r) && !arrived(got[r])) missing = slot_of(r), at = place(r);
        });
    }

    // Makes a place empty for the next but one exchange.
    __device__ __forceinline__ void empty(int place) const {
#pragma unroll
        for (int j = 0; j < PEERS; j++) make_empty(own + size_t(j) * SLOT + place);
    }
    // The same in the slot of one rank, which is not this one.
    __device__ __forceinline__ void empty_of(int other, int place) const { make_empty(own + size_t(slot_of(other)) * SLOT + place); }

    // All ranks' values added in the order of ranks; `peers` have arrived.
    __device__ __forceinline__ V sum(V mine, const V (&peers)[PEERS]) const {
        V sum = rank == 0 ? mine : peers[0];
#pragma unroll
        for (int r = 1; r < RANKS; r++) {
            const V before = peers[r - 1], at = peers[r < PEERS ? r : PEERS - 1];
            sum = plus(sum, r < rank ? at : r == rank ? mine : before);
        }
        return sum;
    }

    // Asks until nothing is missing: `ask` says which peer is, and at which place.
    template <class Ask>
    __device__ __forceinline__ void until_arrived(const Ask& ask) const {
        unsigned long long since = 0;
        for (unsigned asked = 1;; asked++) {
            int missing = -1, at = 0;
            ask(missing, at);
            if (missing < 0) return;
            if (asked % 1024 == 0) since = still_missing(missing, at, since);
        }
    }

    // When waiting began, as far as is known; ends the kernel where that is longer ago than the deadline.
    __device__ __forceinline__ unsigned long long still_missing(int peer, int place, unsigned long long since) const {
        const unsigned long long now = clock_ns();
        if (since == 0) return now;
        // Of threads that have waited so long one reports, and ends the others too.
        if (now - since < world->deadline_ns || atomicOr(&world->failed, 1u) != 0) return since;
        MissingPeer* const report = reinterpret_cast<MissingPeer*>(world->report);
        report->rank = rank;
        report->peer = rank_of(peer);
        report->gathers = channel == &world->gathers;
        report->turn = turn;
        report->row = place / ROW;
        fail(&report->written);
        return now;
    }
};

}  // namespace monomorph
