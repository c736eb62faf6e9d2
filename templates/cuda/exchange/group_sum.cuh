// Sums over ranks of values that a kernel computes by groups, made where they are computed:
//
//   out += (value of rank 0 + value of rank 1) + ...      without ADDS: out = that sum
//
// A thread pushes its values of a group to the peers, whose same threads push theirs, and adds up when the next group is computed, or at the
// end: by then the peers' values have arrived, or are on their way while `out` is read. That saves the launch of a sum (sum.cuh) and the
// memory that would hold the parts. How values get there: inbox.cuh.
#pragma once

#include "exchange/inbox.cuh"

namespace monomorph {

// One thread's part of an exchange of rows of WIDTH values. EACH: values of a group.
template <int RANKS, int WIDTH, int INBOX_ROWS, int EACH, bool ADDS>
struct GroupSum {
    using Values = Inbox<RANKS, float, WIDTH, INBOX_ROWS>;
    Values values;
    float mine[EACH];
    int place[EACH];   // in rows of WIDTH; -1: nothing was pushed
    bool pushed = false;

    // Before the wait.
    __device__ __forceinline__ explicit GroupSum(World* world) : values(world, &world->sums) {}
    // Behind the wait, by all threads that push.
    __device__ __forceinline__ void begin() { values.begin(); }

    // Behind a barrier of all threads that push. `value(e)`: this thread's e-th, asked where `place_of(e)` is not -1.
    template <class Place, class Value>
    __device__ __forceinline__ void push(float* out, const Place& place_of, const Value& value) {
        if (pushed) add(out);
#pragma unroll
        for (int e = 0; e < EACH; e++) {
            place[e] = place_of(e);
            if (place[e] < 0) continue;
            mine[e] = as_pushed(value(e));
            values.push(place[e], mine[e]);
        }
        if (!pushed && threadIdx.x == 0) values.end_turn();
        pushed = true;
    }

    // Adds up what was pushed last.
    __device__ __forceinline__ void add(float* out) const {
        float residual[EACH];
        typename Values::template Arrived<EACH> peers;
#pragma unroll
        for (int e = 0; e < EACH; e++) residual[e] = place[e] >= 0 ? residual_of<ADDS>(out + place[e]) : 0.0f;
        values.collect(peers, [&](int e) { return place[e]; }, [&](int e) { return place[e] >= 0; });
#pragma unroll
        for (int e = 0; e < EACH; e++) {
            if (place[e] < 0) continue;
            out[place[e]] = added_to<ADDS>(residual[e], values.sum(mine[e], peers[e]));
            values.empty(place[e]);
        }
    }
};

}  // namespace monomorph
