// The end of a selection that few tokens are left of: they lie one a thread, and are ordered by comparing each with all.
#pragma once

#include "core/philox.cuh"
#include "sampling/sample_filter.cuh"

namespace monomorph {

// How many of the block's keys are larger; only the first `count` threads' keys (and this one) are not 0.
template <int THREADS>
__device__ __forceinline__ int list_rank(FilterScratch& shared, unsigned long long key, int count) {
    __syncthreads();
    shared.list.keys[threadIdx.x] = key;
    __syncthreads();
    int rank = 0;
    if (key != 0) {
#pragma unroll 4
        for (int i = 0; i < count; i += 2) {
            const ulonglong2 two = *reinterpret_cast<const ulonglong2*>(&shared.list.keys[i]);
            rank += (two.x > key) + (two.y > key);
        }
    }
    return rank;
}

// The token drawn from a list, in every thread. `entry`: this thread's, 0 for none. With `by_logit` the values are total orders of logits,
// of which the top_k best are taken, `best` being the largest; otherwise they are bits of weights, and `target` is what the nucleus
// must reach.
template <int THREADS>
__device__ __forceinline__ int draw_from_list(FilterScratch& shared, const Sampling& sampling, unsigned long long entry, int count, bool by_logit,
                                              float best, float inverse_temperature, double target) {
    const int place = threadIdx.x;
    bool in = entry != 0;
    float value = __uint_as_float(entry_value(entry));
    double total;
    if (by_logit) {
        in = list_rank<THREADS>(shared, entry, count) < sampling.top_k && in;
        value = in ? weight(from_total_order(entry_value(entry)), best, inverse_temperature) : 0.0f;
    }
    if (sampling.top_p < 1.0f) {
        // Heaviest first: in are those before which the sum has not reached the target.
        const int rank = list_rank<THREADS>(shared, in ? token_entry(__float_as_uint(value), entry_id(entry)) : 0, count);
        shared.list.sums[place] = 0;
        __syncthreads();
        if (in) shared.list.sums[rank] = value;
        __syncthreads();
        const double through = block_scan<THREADS>(shared.list.sums[place], shared.sums, total);
        if (by_logit) target = sampling.top_p * total;
        shared.list.sums[place + 1] = through;  // a thread reads its own sum above, before the scan's barriers
        if (place == 0) shared.list.sums[0] = 0;
        __syncthreads();
        in = in && shared.list.sums[rank] < target;
    }
    in = in && value >= sampling.min_p && value > 0;
    // In order of id.
    const int rank = list_rank<THREADS>(shared, in ? entry & 0xFFFFFFFFu : 0, count);
    shared.list.sums[place] = 0;
    if (place == 0) shared.found[0] = THREADS, shared.found[1] = 0;
    __syncthreads();
    if (in) shared.list.sums[rank] = value, shared.list.ids[rank] = entry_id(entry);
    __syncthreads();
    const double own = shared.list.sums[place], through = block_scan<THREADS>(own, shared.sums, total);
    if (own > 0) {
        if (uniform(sampling.seed, sampling.draw) * total < through) atomicMin(&shared.found[0], place);
        atomicMax(&shared.found[1], place);  // where rounding leaves the sum short, the last possible token it is
    }
    __syncthreads();
    return static_cast<int>(shared.list.ids[shared.found[0] < THREADS ? shared.found[0] : shared.found[1]]);
}

}  // namespace monomorph
