// A row of logits is sampled by a *group* of SPLITS blocks, each holding one slice of the row in shared memory; this file is how the
// blocks of a group meet. All blocks of the grid (GROUPS * SPLITS) must be resident at once, because they wait for each other: the
// emitter keeps the grid within what the card holds. Group g takes the rows g, g + GROUPS, ...
//
// Exchange: a block posts a record of 8 bytes, all blocks pass a barrier, each warp collects every block's record. A record's place
// goes with the barrier's number and is used again two barriers later, when everybody has read it.
//
// Histograms: three in turn. Before the barrier of histogram h the blocks add to place h % 3, and read it after; meanwhile each
// clears its share of the next place, which everybody finished reading before the barrier of histogram h - 1. The last block to
// leave the launch clears all.
//
// List: the few tokens that a selection leaves, in any order. It is read by one block, and is used again only after a barrier that this
// block arrives at later.
#pragma once

#include "core/async.cuh"
#include "core/step.cuh"

namespace monomorph {

constexpr int SAMPLE_MAX_GROUPS = 32;
constexpr int SAMPLE_MAX_SPLITS = 32;  // one a lane of a warp
constexpr int SAMPLE_MAX_LIST = 512;   // one a thread of a block
constexpr int SAMPLE_BINS = 2048;  // 32-bit bins of a histogram by count; one by weight uses half as many of 64 bits

// Device scratch of the sampler; zero before the first launch, and every launch leaves the counters and histograms zero. The layout
// depends on no Config, so that all programs share one.
struct SampleScratch {
    struct Group {
        unsigned arrived;  // blocks that arrived at this launch's barriers so far
        unsigned left;     // blocks that will read `arrived` no more
        unsigned listed;   // entries of `list` in use
        unsigned reserved[29];
        unsigned bins[3][SAMPLE_BINS];
        unsigned long long records[2][SAMPLE_MAX_SPLITS];
        unsigned long long list[SAMPLE_MAX_LIST];
    };
    Group group[SAMPLE_MAX_GROUPS];
    unsigned finished[MAX_SEQUENCES];  // greedy rows: blocks done with the row
    unsigned long long partial[MAX_SEQUENCES][SAMPLE_MAX_SPLITS];
};

// Blocks of one group, as one of them sees it.
template <int SPLITS, int THREADS>
struct SampleGroup {
    SampleScratch::Group* scratch;
    int split;               // which block of the group this is
    unsigned barriers;       // passed so far in this launch
    unsigned histograms;     // begun so far in this launch

    // One thread's job.
    __device__ __forceinline__ void post(unsigned long long record) { __stcg(&scratch->records[barriers & 1][split], record); }

    // Everything any thread of the group wrote before is seen by every thread of the group after.
    __device__ __forceinline__ void barrier() {
        ++barriers;
        __syncthreads();
        if (threadIdx.x == 0) {
            arrive_release(&scratch->arrived);
            while (arrivals(&scratch->arrived) < barriers * SPLITS) {}
        }
        __syncthreads();
    }

    // After the barrier that followed the posts: in every warp, lane i has the record of split i; lanes beyond the splits have 0.
    __device__ __forceinline__ unsigned long long collect() const {
        const int lane = threadIdx.x % 32;
        return lane < SPLITS ? __ldcg(&scratch->records[(barriers - 1) & 1][lane]) : 0;
    }

    __device__ __forceinline__ unsigned* histogram() { return scratch->bins[histograms % 3]; }

    // Clears this block's share of a histogram.
    __device__ __forceinline__ void clear(unsigned which) {
        unsigned* bins = scratch->bins[which % 3];
#pragma unroll 1
        for (int i = split * THREADS + threadIdx.x; i < SAMPLE_BINS; i += SPLITS * THREADS) __stcg(bins + i, 0u);
    }

    __device__ __forceinline__ void append(unsigned long long entry) {
        __stcg(&scratch->list[atomicAdd(&scratch->listed, 1u)], entry);
    }

    // By the whole block that reads the list, when all appends are visible to it: this thread's entry, 0 for none; empties the list.
    __device__ __forceinline__ unsigned long long take_list(int& count) {
        count = static_cast<int>(__ldcg(&scratch->listed));
        const unsigned long long entry = static_cast<int>(threadIdx.x) < count ? __ldcg(&scratch->list[threadIdx.x]) : 0;
        __syncthreads();
        if (threadIdx.x == 0) __stcg(&scratch->listed, 0u);
        return entry;
    }

    // At the end of the launch, by the whole block: the last one to leave sets everything back to zero. `flag`: shared.
    __device__ __forceinline__ void leave(unsigned* flag) {
        if (barriers == 0) return;
        if (threadIdx.x == 0) *flag = arrive(&scratch->left);
        __syncthreads();
        if (*flag + 1 != SPLITS) return;
        if (histograms > 0) clear_all();
        if (threadIdx.x == 0) scratch->arrived = scratch->left = 0;
    }

    __device__ __forceinline__ void clear_all() {
        uint4* const bins = reinterpret_cast<uint4*>(scratch->bins);
        for (int i = threadIdx.x; i < 3 * SAMPLE_BINS / 4; i += THREADS) __stcg(bins + i, make_uint4(0, 0, 0, 0));
    }
};

// Inclusive scan over the lanes of a warp.
template <class T>
__device__ __forceinline__ T warp_scan(T value) {
#pragma unroll
    for (int distance = 1; distance < 32; distance *= 2) {
        const T other = __shfl_up_sync(0xFFFFFFFFu, value, distance);
        if (threadIdx.x % 32 >= distance) value += other;
    }
    return value;
}

// Inclusive scan over the block's threads in their order; every thread also gets the total. `warps`: shared, one T a warp.
template <int THREADS, class T>
__device__ __forceinline__ T block_scan(T value, T* warps, T& total) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    value = warp_scan(value);
    __syncthreads();  // whoever used `warps` before is done
    if (lane == 31) warps[warp] = value;
    __syncthreads();
    const T through = warp_scan(lane < THREADS / 32 ? warps[lane] : T(0));
    const T before = __shfl_sync(0xFFFFFFFFu, through, warp == 0 ? 0 : warp - 1);
    total = __shfl_sync(0xFFFFFFFFu, through, 31);
    return warp == 0 ? value : before + value;
}

__device__ __forceinline__ unsigned long long warp_maximum(unsigned long long key) {
    const unsigned high = static_cast<unsigned>(key >> 32);
    const unsigned top = __reduce_max_sync(0xFFFFFFFFu, high);
    const unsigned low = __reduce_max_sync(0xFFFFFFFFu, high == top ? static_cast<unsigned>(key) : 0u);
    return static_cast<unsigned long long>(top) << 32 | low;
}

// The largest key of the block, in every thread of the first warp.
template <int THREADS>
__device__ __forceinline__ unsigned long long block_maximum(unsigned long long key, unsigned long long* warps) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    key = warp_maximum(key);
    __syncthreads();
    if (lane == 0) warps[warp] = key;
    __syncthreads();
    if (warp == 0) key = warp_maximum(lane < THREADS / 32 ? warps[lane] : 0ull);
    return key;
}

}  // namespace monomorph
