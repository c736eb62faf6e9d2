// One row in the hands of a group of blocks: its slice in shared memory, penalties, its maximum, the results, and greedy rows, which are
// done when that maximum is known. sample.cuh says what Config is and does the rest.
#pragma once

#include "core/async.cuh"
#include "sampling/sample_list.cuh"

namespace monomorph {

template <class C>
struct SampleShape {
    static constexpr int SHARE = (C::VOCABULARY + C::SPLITS - 1) / C::SPLITS;
    static constexpr int PER_THREAD = ((SHARE + C::THREADS - 1) / C::THREADS + 3) / 4 * 4;  // of a slice, in 16-byte vectors
    static constexpr int SLICE = PER_THREAD * C::THREADS;
    static_assert(C::VOCABULARY > MAX_TOP_LOGPROBS && C::VOCABULARY <= 1 << 18, "sums of weights are made for up to 2^18 tokens");
    static_assert(C::SPLITS >= 1 && C::SPLITS <= SAMPLE_MAX_SPLITS && C::GROUPS >= 1 && C::GROUPS <= SAMPLE_MAX_GROUPS, "the scratch has places for so many");
    static_assert(C::THREADS == 256 || C::THREADS == 512, "histograms are read in whole vectors by whole warps");
};

template <class C>
struct alignas(16) SampleShared {
    float values[Slice::padded(SampleShape<C>::SLICE)];  // logits, later weights
    FilterScratch filter;
    unsigned long long keys[32];  // one a warp
    unsigned arrived;             // blocks before this one
    int first, last;              // threads, in the search for the drawn token
    int outputs;                  // of the step
    double log_sum;               // of the row, where log-probabilities are wanted
    float largest;                // unmodified logit
};

template <class C>
constexpr int sample_shared_bytes() {
    return static_cast<int>(sizeof(SampleShared<C>));
}

template <class C>
struct SampleRow {
    using Shape = SampleShape<C>;
    using Group = SampleGroup<C::SPLITS, C::THREADS>;
    static constexpr int SLICE = Shape::SLICE, PER_THREAD = Shape::PER_THREAD, THREADS = C::THREADS, SPLITS = C::SPLITS;

    SampleShared<C>& shared;
    Group group;
    SampleScratch* scratch;
    int* sampled_ids;
    Sampled* sampled;
    const float* logits;  // the row's
    int row, begin;       // output row; first token of this block's slice

    // ---- The slice ----

    __device__ __forceinline__ Slice values() const { return {shared.values}; }

    // Calls `use(index in the slice, logit)` for this thread's part of the slice, in ascending order. Tokens beyond the vocabulary are
    // minus infinity, whose weight is nothing, and their ids come last.
    template <class Use>
    __device__ __forceinline__ void for_each_logit(Use use) const {
        constexpr int WIDTH = C::VOCABULARY % 4 == 0 ? 4 : 1;  // where every row starts at a multiple of 16 bytes, vectors of 16 bytes
        constexpr int BATCHES = (PER_THREAD + 15) / 16, FLIGHT = (PER_THREAD / 4 + BATCHES - 1) / BATCHES * 4;  // up to 16 in flight
#pragma unroll 1
        for (int first = 0; first < PER_THREAD; first += FLIGHT) {
            float loaded[FLIGHT];
            const int thread = thread_index();
            auto index = [=](int i) { return ((first + i) / WIDTH * THREADS + thread) * WIDTH + i % WIDTH; };
#pragma unroll
            for (int i = 0; i < FLIGHT; i += WIDTH) {
                const int at = begin + index(i);
                const bool inside = at < C::VOCABULARY && (PER_THREAD % FLIGHT == 0 || first + i < PER_THREAD);
                if constexpr (WIDTH == 4) {
                    const float none = negative_infinity();
                    const float4 four = inside ? __ldcg(reinterpret_cast<const float4*>(logits + at)) : make_float4(none, none, none, none);
                    loaded[i] = four.x, loaded[i + 1] = four.y, loaded[i + 2] = four.z, loaded[i + 3] = four.w;
                } else {
                    loaded[i] = inside ? __ldcg(logits + at) : negative_infinity();
                }
            }
#pragma unroll
            for (int i = 0; i < FLIGHT; ++i) {
                if (PER_THREAD % FLIGHT == 0 || first + i < PER_THREAD) use(index(i), loaded[i]);
            }
        }
    }

    __device__ __forceinline__ void load_slice() {
        for_each_logit([&](int at, float logit) { values()[at] = without_nan(logit); });
        __syncthreads();
    }

    // Makes all logits but those of the mask's ids minus infinity. Whoever reads a slice at other places than it wrote waits before.
    __device__ __forceinline__ void restrict_to(const Sampling& sampling, const TokenUse* history) {
        const unsigned* const words = reinterpret_cast<const unsigned*>(history) + sampling.mask;
#pragma unroll 1
        for (int i = thread_index(); i < SLICE; i += THREADS) {
            const int id = begin + i;
            if (id < C::VOCABULARY && (__ldcg(words + id / 32) >> id % 32 & 1) == 0) values()[i] = negative_infinity();
        }
        __syncthreads();
    }

    // Each id stands in a row's biases once, so nobody else touches its logit.
    __device__ __forceinline__ void lean(const Sampling& sampling, const TokenUse* history) {
        const TokenBias* const biases = reinterpret_cast<const TokenBias*>(history + sampling.bias_start);
#pragma unroll 1
        for (int i = threadIdx.x; i < sampling.bias_count; i += THREADS) {
            const int at = biases[i].id - begin;
            if (at >= 0 && at < SLICE && biases[i].id < C::VOCABULARY) values()[at] = __fadd_rn(values()[at], biases[i].bias);
        }
        __syncthreads();
    }

    // Each id stands in the history once, so nobody else touches its logit.
    __device__ __forceinline__ void penalise(const Sampling& sampling, const TokenUse* history) {
#pragma unroll 1
        for (int i = threadIdx.x; i < sampling.history_count; i += THREADS) {
            const TokenUse used = history[sampling.history_start + i];
            const int at = used.id - begin;
            if (at < 0 || at >= SLICE || used.id >= C::VOCABULARY) continue;
            float logit = values()[at];
            logit = logit > 0 ? __fdiv_rn(logit, sampling.repetition_penalty) : __fmul_rn(logit, sampling.repetition_penalty);
            if (used.generated > 0) {
                logit = __fsub_rn(logit, __fadd_rn(__fmul_rn(sampling.frequency_penalty, static_cast<float>(used.generated)), sampling.presence_penalty));
            }
            values()[at] = without_nan(logit);
        }
        __syncthreads();
    }

    __device__ __forceinline__ unsigned long long slice_best() const {
        unsigned long long best = 0;
#pragma unroll 4
        for (int i = thread_index(); i < SLICE; i += THREADS) {
            const unsigned long long key = best_key(values()[i], begin + i);
            best = key > best ? key : best;
        }
        return best;
    }

    // The row's best key, in every thread of the group. One barrier.
    __device__ __forceinline__ unsigned long long row_best() {
        const unsigned long long best = block_maximum<THREADS>(slice_best(), shared.keys);
        if (threadIdx.x == 0) group.post(best);
        group.barrier();
        return warp_maximum(group.collect());
    }

    // The token of a best key: 0 where no logit is above minus infinity.
    __device__ __forceinline__ static int token_of(unsigned long long key) {
        return from_total_order(entry_value(key)) == negative_infinity() ? 0 : static_cast<int>(entry_id(key));
    }

    // ---- Results: one thread's job ----

    __device__ __forceinline__ float logprob(float logit) const {
        if (!(logit > negative_infinity())) return negative_infinity();
        // The difference of two infinities is not a number.
        if (logit == shared.largest) return static_cast<float>(-shared.log_sum);
        return static_cast<float>(static_cast<double>(logit) - static_cast<double>(shared.largest) - shared.log_sum);
    }

    __device__ __forceinline__ void finish(int id, const Sampling& sampling) const {
        const bool wanted = sampling.top_logprobs >= 0;
        const float chosen = wanted ? logprob(__ldcg(logits + id)) : 0.0f;
        *reinterpret_cast<int4*>(sampled + row) = make_int4(id, __float_as_int(chosen), alternatives(sampling), 0);
        if (sampling.slot >= 0) sampled_ids[sampling.slot] = id;
    }

    __device__ __forceinline__ static int alternatives(const Sampling& sampling) {
        return max(0, min(sampling.top_logprobs, MAX_TOP_LOGPROBS));
    }

    // ---- Greedy rows without log-probabilities: the last block to arrive decides ----

    __device__ __forceinline__ void greedy(const Sampling& sampling, unsigned long long key) {
        key = block_maximum<THREADS>(key, shared.keys);
        if (threadIdx.x >= 32) return;
        if (SPLITS > 1) {
            unsigned arrived = 0;
            if (threadIdx.x == 0) {
                __stcg(&scratch->partial[row][group.split], key);
                arrived = arrive(&scratch->finished[row]);
            }
            if (__shfl_sync(0xFFFFFFFFu, arrived, 0) + 1 != SPLITS) return;
            key = threadIdx.x < SPLITS ? __ldcg(&scratch->partial[row][threadIdx.x]) : 0;
            key = warp_maximum(key);
        }
        if (threadIdx.x == 0) {
            if (SPLITS > 1) scratch->finished[row] = 0;
            finish(token_of(key), sampling);
        }
    }

    __device__ __forceinline__ unsigned long long streamed_best() const {
        float best = negative_infinity();
        int at_best = SLICE;
        for_each_logit([&](int at, float logit) {
            if (logit > best) best = logit, at_best = at;  // the first of equals, and never a NaN
        });
        return best_key(best, begin + at_best);
    }
};

}  // namespace monomorph
