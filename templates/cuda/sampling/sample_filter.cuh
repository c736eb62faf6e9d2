// Thresholds of a row that lies in slices in the shared memory of a group's blocks: the k-th largest value, and the smallest weight
// of the heaviest tokens that reach a share of the total. Both are radix selections from the most significant digit down: the blocks
// count their values by the next digit, add the counts into a histogram of the group, and all of them find the digit's value in it.
// Nothing is sorted and nothing is rounded: sums of weights are integers (below), so that they depend on no order.
#pragma once

#include "sampling/sample_group.cuh"
#include "sampling/sample_numeric.cuh"

namespace monomorph {

// A slice of a row in shared memory. A word of padding every 32 lets the lanes of a warp meet no bank twice, whether they read side by side
// or each at the start of 4, 8, 16 or 32 values of its own.
struct Slice {
    float* words;
    __device__ __forceinline__ float& operator[](int i) const { return words[i + (i >> 5)]; }
    static constexpr int padded(int values) { return values + values / 32; }
};

// Where a selection ends. With at most THREADS finalists it ends early: those are the values from `key` up, of which one block
// finds the best by comparing all with all. Otherwise all digits are decided: everything above `key` is in, and `take` of the `ties` values equal
// to it, those of the smallest ids.
struct Threshold {
    unsigned key, take, ties, finalists;
};

// Shared memory of the selections.
struct FilterScratch {
    union {
        unsigned bins[SAMPLE_BINS];
        struct {  // a list's tokens, one a thread
            unsigned long long keys[SAMPLE_MAX_LIST];
            double sums[SAMPLE_MAX_LIST + 1];
            unsigned ids[SAMPLE_MAX_LIST];
        } list;
    };
    unsigned counts[32];  // one a warp
    double sums[32];      // one a warp
    unsigned found[4];
    double above;
};

// The `wanted`-th largest of the row's values in total_order; 1 <= wanted <= the values there are. Digits of 11, 11 and 10 bits, each
// with a barrier. `record` is posted with the first; the largest of the group's records becomes `best`.
template <int SPLITS, int THREADS, int SLICE>
__device__ __forceinline__ Threshold select_by_count(SampleGroup<SPLITS, THREADS>& group, FilterScratch& shared, Slice values, unsigned wanted, unsigned long long record,
                                                    unsigned long long& best) {
    constexpr int OWN = SAMPLE_BINS / THREADS;
    static_assert(OWN % 4 == 0, "each thread reads whole 16-byte vectors of bins");
    Threshold threshold = {0, wanted, 0, ~0u};
    if (threadIdx.x == 0) group.post(record);
#pragma unroll 1
    for (int digit = 0; digit < 3 && threshold.finalists > THREADS; ++digit) {
        const int shift = digit == 0 ? 21 : digit == 1 ? 10 : 0;
        const unsigned decided = digit == 0 ? 0 : digit == 1 ? ~0u << 21 : ~0u << 10;
#pragma unroll 1
        for (int i = threadIdx.x; i < SAMPLE_BINS; i += THREADS) shared.bins[i] = 0;
        __syncthreads();
#pragma unroll 4
        for (int i = threadIdx.x; i < SLICE; i += THREADS) {
            const unsigned key = total_order(values[i]);
            if (((key ^ threshold.key) & decided) == 0) atomicAdd(&shared.bins[(key & ~decided) >> shift], 1u);
        }
        __syncthreads();
        unsigned* const histogram = group.histogram();
#pragma unroll 1
        for (int i = threadIdx.x; i < SAMPLE_BINS; i += THREADS) {
            if (shared.bins[i] != 0) atomicAdd(histogram + i, shared.bins[i]);
        }
        group.clear(group.histograms + 1);
        group.barrier();
        ++group.histograms;
        if (digit == 0) best = warp_maximum(group.collect());

        // Thread 0 reads the highest bins, so that a scan over the threads runs from the largest digit down.
        const int lowest = SAMPLE_BINS - (static_cast<int>(threadIdx.x) + 1) * OWN;
        unsigned counts[OWN], sum = 0, total;
#pragma unroll
        for (int i = 0; i < OWN; i += 4) {
            const uint4 four = __ldcg(reinterpret_cast<const uint4*>(histogram + lowest + i));
            counts[i] = four.x, counts[i + 1] = four.y, counts[i + 2] = four.z, counts[i + 3] = four.w;
            sum += four.x + four.y + four.z + four.w;
        }
        unsigned above = block_scan<THREADS>(sum, shared.counts, total) - sum;
#pragma unroll
        for (int i = OWN - 1; i >= 0; --i) {
            if (above < threshold.take && threshold.take - above <= counts[i]) {
                shared.found[0] = lowest + i;
                shared.found[1] = threshold.take - above;
                shared.found[2] = counts[i];
            }
            above += counts[i];
        }
        __syncthreads();
        threshold = {threshold.key | shared.found[0] << shift, shared.found[1], shared.found[2], wanted - shared.found[1] + shared.found[2]};
    }
    return threshold;
}

// The lightest weight among the fewest heaviest that sum to `share` of the row's sum, at least one; the row's weights are 0 or in
// [2^-126, 1] and one of them is 1. Digits of 10 bits, each with a barrier. `target` becomes the sum to reach.
//
// A weight is mantissa * 2^(exponent - 150), and all weights of a bin share the exponent, so a bin's sum is an integer: at most 2^18
// mantissas below 2^24. A slice adds the mantissas' halves of 12 bits apart (32-bit atomics of shared memory are native, 64-bit ones
// are not), which 2^20 of them could not overflow.
template <int SPLITS, int THREADS, int SLICE>
__device__ __forceinline__ Threshold select_by_weight(SampleGroup<SPLITS, THREADS>& group, FilterScratch& shared, Slice weights, double share, double& target) {
    constexpr int BINS = SAMPLE_BINS / 2, OWN = BINS / THREADS;
    static_assert(OWN % 2 == 0, "each thread reads whole 16-byte vectors of bins");
    static_assert(SLICE <= 1 << 20, "a slice's halves of mantissas must not overflow 32 bits");
    unsigned key = 0, many = 0;      // at most so many weights above those that share the bits of `key` decided so far
    double above = 0, in_bin = 0;    // their sum, and the sum of those that share the bits
#pragma unroll 1
    for (int shift = 20; shift >= 0; shift -= 10) {
#pragma unroll 1
        for (int i = threadIdx.x; i < SAMPLE_BINS; i += THREADS) shared.bins[i] = 0;
        __syncthreads();
#pragma unroll 4
        for (int i = threadIdx.x; i < SLICE; i += THREADS) {
            const unsigned bits = __float_as_uint(weights[i]);
            if (bits == 0 || (bits ^ key) >> shift >= BINS) continue;
            const unsigned bin = bits >> shift & (BINS - 1), mantissa = (bits & 0x7FFFFFu) | 0x800000u;
            atomicAdd(&shared.bins[bin], mantissa & 0xFFFu);
            atomicAdd(&shared.bins[BINS + bin], mantissa >> 12);
        }
        __syncthreads();
        unsigned long long* const histogram = reinterpret_cast<unsigned long long*>(group.histogram());
#pragma unroll 1
        for (int i = threadIdx.x; i < BINS; i += THREADS) {
            const unsigned long long sum = (static_cast<unsigned long long>(shared.bins[BINS + i]) << 12) + shared.bins[i];
            if (sum != 0) atomicAdd(histogram + i, sum);
        }
        if (threadIdx.x == 0) shared.found[0] = 0, shared.found[1] = ~0u;
        group.clear(group.histograms + 1);
        group.barrier();
        ++group.histograms;

        const int lowest = BINS - (static_cast<int>(threadIdx.x) + 1) * OWN;  // thread 0 reads the highest bins
        double sums[OWN], sum = 0, total;
        unsigned counts[OWN], count = 0, all;  // at most: a mantissa is at least 2^23
#pragma unroll
        for (int i = 0; i < OWN; i += 2) {
            const ulonglong2 two = __ldcg(reinterpret_cast<const ulonglong2*>(histogram + lowest + i));
            sums[i] = static_cast<double>(two.x), sums[i + 1] = static_cast<double>(two.y);
            counts[i] = static_cast<unsigned>(two.x >> 23), counts[i + 1] = static_cast<unsigned>(two.y >> 23);
            count += counts[i] + counts[i + 1];
        }
#pragma unroll
        for (int i = OWN - 1; i >= 0; --i) {
            const unsigned smallest = key | static_cast<unsigned>(lowest + i) << shift;
            sums[i] *= power_of_two(static_cast<int>(smallest >> 23) - 150);
            sum += sums[i];
        }
        double before = block_scan<THREADS>(sum, shared.sums, total) - sum + above;
        unsigned higher = block_scan<THREADS>(count, shared.counts, all) - count + many;
        if (shift == 20) target = share * total;
        // The highest digit with which the sum reaches the target; where rounding leaves all of them short, the lowest there is.
        unsigned reached = 0, occupied = ~0u;
        double reached_before = 0, occupied_before = 0;
#pragma unroll
        for (int i = OWN - 1; i >= 0; --i) {
            if (sums[i] > 0) {
                occupied = lowest + i, occupied_before = before;
                if (reached == 0 && before + sums[i] >= target) reached = lowest + i + 1, reached_before = before;
            }
            before += sums[i];
        }
        if (reached != 0) atomicMax(&shared.found[0], reached);
        if (occupied != ~0u) atomicMin(&shared.found[1], occupied);
        __syncthreads();
        const bool enough = shared.found[0] != 0;
        const unsigned digit = enough ? shared.found[0] - 1 : shared.found[1];
#pragma unroll
        for (int i = OWN - 1; i >= 0; --i) {
            if (digit == lowest + i) {
                shared.above = enough ? reached_before : occupied_before;
                shared.sums[0] = sums[i];
                shared.found[2] = higher;
                shared.found[3] = higher + counts[i];
            }
            higher += counts[i];
        }
        __syncthreads();
        key |= digit << shift;
        above = shared.above;
        in_bin = shared.sums[0];
        many = shared.found[2];
        if (shared.found[3] <= THREADS) return {key, 0, 0, shared.found[3]};
    }
    // The last digit's bin holds one weight only, so the ties are its sum over the weight, an exact division.
    const double lightest = __uint_as_float(key), missing = target - above;
    const unsigned ties = static_cast<unsigned>(in_bin / lightest);
    unsigned take = missing > 0 ? static_cast<unsigned>(fmin(ceil(missing / lightest), in_bin / lightest)) : 1;
    if (take > 1 && (take - 1) * lightest >= missing) --take;  // the division rounded up across an integer
    if (take < ties && take * lightest < missing) ++take;      // or down
    return {key, take, ties, ~0u};
}

}  // namespace monomorph
