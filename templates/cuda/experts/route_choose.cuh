// The choice of experts: a token's router logits become expert ids and weights (by one warp), and the choices of a step's tokens a list
// of distinct experts (by one warp), each expert's rows then read once for all tokens that chose it.
//
// The list is in slot order where a step has one token and in ascending order of ids where it may have more: the order in which a
// token's own experts are met, hence of its sums, does not depend on the other tokens.
//
// Where ranks share out whole experts (ROUTED), a rank's matrices are those of EXPERTS adjacent ones of all that routers choose from. Each rank
// chooses among all; ids then count from its own first, and those outside 0 .. EXPERTS are left to other ranks: they are in no list.
#pragma once

#include "core/async.cuh"
#include "core/replaces.cuh"
#include "core/step.cuh"
#include "exchange/world.cuh"
#include "experts/route_scores.cuh"
#include "products/stream_shape.cuh"

namespace monomorph {

constexpr unsigned NO_SLOT = 0xff;

// Experts that a router chooses from. EXPERTS: whose matrices there are; all of them, unless Config says ROUTED.
template <class C, class = void>
struct Routed {
    static constexpr int COUNT = C::EXPERTS;
};
template <class C>
struct Routed<C, decltype(void(C::ROUTED))> {
    static constexpr int COUNT = C::ROUTED;
};
template <class C>
constexpr bool SHARED_OUT = Routed<C>::COUNT != C::EXPERTS;

// The rank's first expert.
template <class C>
__device__ __forceinline__ int first_expert(const World* world) {
    if constexpr (SHARED_OUT<C>) return world->rank * C::EXPERTS;
    else return 0;
}
// Whether the rank holds an expert whose id counts from its first.
template <int EXPERTS>
__device__ __forceinline__ bool is_held(int expert) { return static_cast<unsigned>(expert) < static_cast<unsigned>(EXPERTS); }

// In the order of floats, -NaN first and NaN last; no logit is 0, which stands for "none".
__device__ __forceinline__ unsigned ordered_bits(float value) {
    const unsigned bits = __float_as_uint(value);
    return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}
__device__ __forceinline__ float from_ordered_bits(unsigned bits) { return __uint_as_float(bits & 0x80000000u ? bits & 0x7fffffffu : ~bits); }

struct Choice {
    int expert;     // slot `lane`'s, in lanes below ACTIVE
    float weight;
};

// softmax over all logits, the ACTIVE largest in descending order, of equals the lower id; divided by their sum where RENORMALISE.
// One warp; lane l looks after the experts l * EACH .. (l + 1) * EACH. EXACT: powers and sums in f64, as the reference interpreter's.
// `logits` are a row of a router (route_scores.cuh): with scores, keys, and weights the scores behind them, divided by their sum; with
// scales, the chosen experts' multiply their weights.
template <int EXPERTS, int ACTIVE, bool RENORMALISE, bool EXACT, class Scores = Scored<void>>
__device__ __forceinline__ Choice choose_experts(const float* logits, int lane) {
    using Row = typename Scores::Row;
    constexpr int EACH = ceil_div(EXPERTS, 32);
    static_assert(ACTIVE >= 1 && ACTIVE <= 32 && ACTIVE <= EXPERTS && EXPERTS <= 1024, "a lane a slot, at most 1024 experts");
    using Sum = typename SumOf<EXACT ? Compute::EXACT : Compute::F16>::Type;
    unsigned keys[EACH];
    if constexpr (EXPERTS % 128 == 0) {
#pragma unroll
        for (int i = 0; i < EACH; i += 4) {
            const float4 v = load_activation(reinterpret_cast<const float4*>(logits + lane * EACH + i));
            keys[i] = ordered_bits(v.x), keys[i + 1] = ordered_bits(v.y), keys[i + 2] = ordered_bits(v.z), keys[i + 3] = ordered_bits(v.w);
        }
    } else {
#pragma unroll
        for (int i = 0; i < EACH; i++) {
            const int expert = lane * EACH + i;
            keys[i] = expert < EXPERTS ? ordered_bits(load_activation(logits + expert)) : 0;
        }
    }

    const auto power = [](float logit, float largest) {
        if constexpr (EXACT) return exp(static_cast<double>(logit) - static_cast<double>(largest));
        else return expf(logit - largest);
    };
    const auto total = [](Sum sum) {
#pragma unroll
        for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(~0u, sum, step);
        return sum;
    };
    const auto first_key = [&keys] {
        unsigned key = keys[0];
#pragma unroll
        for (int i = 1; i < EACH; i++) key = key > keys[i] ? key : keys[i];
        return key;
    };

    Sum all = 0;
    if constexpr (!RENORMALISE && !Row::SCORED) {
        const float largest = from_ordered_bits(__reduce_max_sync(~0u, first_key()));
#pragma unroll
        for (int i = 0; i < EACH; i++)
            if (lane * EACH + i < EXPERTS) all += power(from_ordered_bits(keys[i]), largest);
        all = total(all);
    }
    unsigned mine = 0, top = 0;
    int expert = 0;
#pragma unroll
    for (int slot = 0; slot < ACTIVE; slot++) {
        const unsigned here = first_key(), largest = __reduce_max_sync(~0u, here);
        const int owner = __ffs(__ballot_sync(~0u, here == largest)) - 1;
        int place = 0;
#pragma unroll
        for (int i = EACH - 1; i >= 0; i--)
            if (keys[i] == largest) place = i;
        const int id = __shfl_sync(~0u, lane * EACH + place, owner);
#pragma unroll
        for (int i = 0; i < EACH; i++)
            if (lane == owner && place == i) keys[i] = 0;
        if (slot == 0) top = largest;
        if (lane == slot) mine = largest, expert = least(id, EXPERTS - 1);   // beyond: only where logits are NaN
    }
    float scale = 1.0f;
    if constexpr (Row::SCALED)
        if (lane < ACTIVE) scale = load_activation(logits + Row::scale_at(EXPERTS, expert));
    Sum weight = 0;
    if constexpr (Row::SCORED) {
        if (lane < ACTIVE) weight = load_activation(logits + Row::score_at(EXPERTS, expert));
        all = total(weight) + Sum(1e-20f);
        weight *= Sum(Scores::SCALE);
    } else {
        if (lane < ACTIVE) weight = power(from_ordered_bits(mine), from_ordered_bits(top));
        if constexpr (RENORMALISE) all = total(weight);
    }
    const float share = static_cast<float>(weight / all);
    if constexpr (Row::SCALED) return {expert, __fmul_rn(share, scale)};
    else return {expert, share};
}

// Who chose what in a step, in shared memory. PART: of the experts that the rank holds.
template <int EXPERTS, int ACTIVE, int ROWS, bool PART>
struct Choices {
    static constexpr int SLOTS = ROWS * ACTIVE, MOST = least(SLOTS, EXPERTS), WORDS = ceil_div(EXPERTS, 32);
    int count;                               // distinct experts
    int chosen[SLOTS];                       // [row][slot], by the caller
    int experts[MOST];                       // the list
    unsigned rows[MOST];                     // of each, the rows that chose it, one bit each
    unsigned char slot[MOST * ROWS];         // of each and of each row, the row's slot or NO_SLOT
    unsigned words[WORDS], before[WORDS];    // the set of experts, and how many precede each word

    // Whether the expert that slot `i` of all chose is the rank's.
    __device__ __forceinline__ bool holds(int i) const { return !PART || is_held<EXPERTS>(chosen[i]); }

    // By the warp that will gather, before the ids are known.
    __device__ __forceinline__ void clear(int lane) {
        if constexpr (ROWS > 1) {
            if (lane < WORDS) words[lane] = 0;
            for (int i = lane; i < MOST; i += 32) rows[i] = 0;
            for (int i = lane; i < MOST * ROWS; i += 32) slot[i] = NO_SLOT;
            __syncwarp();
        }
    }
    // By one warp, when it has cleared and the ids of `tokens` rows stand in `chosen`, written by this warp or before a barrier. Ends with __syncwarp.
    __device__ __forceinline__ void gather(int tokens, int lane) {
        if constexpr (ROWS == 1 && PART) {
            const bool held = lane < ACTIVE && tokens > 0 && holds(lane);
            const unsigned all = __ballot_sync(~0u, held);
            if (lane == 0) count = __popc(all);
            const int at = __popc(all & ((1u << lane) - 1));
            if (held) experts[at] = chosen[lane], rows[at] = 1, slot[at] = static_cast<unsigned char>(lane);
        } else if constexpr (ROWS == 1) {
            if (lane == 0) count = tokens > 0 ? ACTIVE : 0;
            if (lane < ACTIVE) experts[lane] = chosen[lane], rows[lane] = 1, slot[lane] = static_cast<unsigned char>(lane);
        } else {
            for (int i = lane; i < tokens * ACTIVE; i += 32)
                if (holds(i)) atomicOr(&words[chosen[i] / 32], 1u << chosen[i] % 32);
            __syncwarp();
            const int here = lane < WORDS ? __popc(words[lane]) : 0;
            int sum = here;
#pragma unroll
            for (int step = 1; step < 32; step *= 2) {
                const int below = __shfl_up_sync(~0u, sum, step);
                if (lane >= step) sum += below;
            }
            if (lane < WORDS) before[lane] = sum - here;
            if (lane == 31) count = sum;
            __syncwarp();
            for (int i = lane; i < tokens * ACTIVE; i += 32) {
                if (!holds(i)) continue;
                const int expert = chosen[i], row = i / ACTIVE;
                const int at = before[expert / 32] + __popc(words[expert / 32] & ((1u << expert % 32) - 1));
                experts[at] = expert;
                atomicOr(&rows[at], 1u << row);
                slot[at * ROWS + row] = static_cast<unsigned char>(i % ACTIVE);
            }
        }
        __syncwarp();
    }
};

// A row of the routing buffer is [ACTIVE weights | ACTIVE expert ids as f32].
template <int ACTIVE>
__device__ __forceinline__ void store_routing(float* row, Choice choice, int lane) {
    if (lane < ACTIVE) row[lane] = choice.weight, row[ACTIVE + lane] = static_cast<float>(choice.expert);
}

}  // namespace monomorph
