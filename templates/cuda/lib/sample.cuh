// Sampling: one row of logits -> one token, in the order and with the arithmetic of runtime/sampling (whose page states both): log-
// probabilities of the unmodified logits, penalties, temperature, top_k, top_p, min_p, one draw in order of id. Nothing leaves the
// device but the results.
//
// Config: VOCABULARY; THREADS (256 or 512); SPLITS, blocks a row (<= 32); GROUPS, rows worked on at once (<= 32). Grid: GROUPS * SPLITS
// blocks, which must be resident together (sample_group.cuh says why); dynamic shared memory: shared_bytes(). One instantiation
// serves any number of outputs.
//
// A greedy row without log-probabilities costs one pass: each block takes the best of its slice, and the last block to arrive at
// the row's counter takes the best of those. Any other row lies in slices in shared memory and is worked on in phases with a group
// barrier between two: its maximum, three a selection (top alternatives, top_k, top_p), one for the draw. A thread owns
// PER_THREAD consecutive tokens wherever the order of ids counts (ties, the draw), and strides elsewhere.
//
// Shared memory (SampleShared): the slice, a histogram with the scratch of the selections, a word a warp.
#pragma once

#include "async.cuh"
#include "philox.cuh"
#include "sample_filter.cuh"

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
    float values[SampleShape<C>::SLICE];  // logits, later weights
    FilterScratch filter;
    unsigned long long keys[32];  // one a warp; the sorted alternatives' keys
    int first, last;              // threads, in the search for the drawn token
};

template <class C>
constexpr int sample_shared_bytes() {
    return static_cast<int>(sizeof(SampleShared<C>));
}

template <class C>
struct Sampler {
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
    double log_sum;       // of the row, where log-probabilities are wanted
    float largest;        // unmodified logit

    // ---- The slice ----

    // Calls `use(index in the slice, logit)` for this thread's tokens below the vocabulary, in ascending order.
    template <class Use>
    __device__ __forceinline__ void for_each_logit(Use use) const {
        constexpr bool VECTORS = C::VOCABULARY % 4 == 0;  // every row starts at a multiple of 16 bytes
        constexpr int COUNT = VECTORS ? PER_THREAD / 4 : PER_THREAD;
        if constexpr (VECTORS) {
            float4 loaded[COUNT];  // all in flight before the first use
#pragma unroll
            for (int i = 0; i < COUNT; ++i) {
                const int at = (i * THREADS + threadIdx.x) * 4;
                if (begin + at < C::VOCABULARY) loaded[i] = __ldcg(reinterpret_cast<const float4*>(logits + begin + at));
            }
#pragma unroll
            for (int i = 0; i < COUNT; ++i) {
                const int at = (i * THREADS + threadIdx.x) * 4;
                if (begin + at >= C::VOCABULARY) continue;
                use(at, loaded[i].x), use(at + 1, loaded[i].y), use(at + 2, loaded[i].z), use(at + 3, loaded[i].w);
            }
        } else {
            float loaded[COUNT];
#pragma unroll
            for (int i = 0; i < COUNT; ++i) {
                const int at = i * THREADS + threadIdx.x;
                if (begin + at < C::VOCABULARY) loaded[i] = __ldcg(logits + begin + at);
            }
#pragma unroll
            for (int i = 0; i < COUNT; ++i) {
                const int at = i * THREADS + threadIdx.x;
                if (begin + at < C::VOCABULARY) use(at, loaded[i]);
            }
        }
    }

    // Into shared memory; tokens beyond the vocabulary are minus infinity, whose weight is nothing and whose ids come last.
    __device__ __forceinline__ void load_slice() {
        if (begin + SLICE > C::VOCABULARY) {
#pragma unroll 1
            for (int i = threadIdx.x; i < SLICE; i += THREADS) {
                if (begin + i >= C::VOCABULARY) shared.values[i] = negative_infinity();
            }
        }
        for_each_logit([&](int at, float logit) { shared.values[at] = without_nan(logit); });
        __syncthreads();
    }

    // Each id stands in the history once, so nobody else touches its logit.
    __device__ __forceinline__ void penalise(const Sampling& sampling, const TokenUse* history) {
#pragma unroll 1
        for (int i = threadIdx.x; i < sampling.history_count; i += THREADS) {
            const TokenUse used = history[sampling.history_start + i];
            const int at = used.id - begin;
            if (at < 0 || at >= SLICE || used.id >= C::VOCABULARY) continue;
            float logit = shared.values[at];
            logit = logit > 0 ? __fdiv_rn(logit, sampling.repetition_penalty) : __fmul_rn(logit, sampling.repetition_penalty);
            if (used.generated > 0) {
                logit = __fsub_rn(logit, __fadd_rn(__fmul_rn(sampling.frequency_penalty, static_cast<float>(used.generated)), sampling.presence_penalty));
            }
            shared.values[at] = without_nan(logit);
        }
        __syncthreads();
    }

    __device__ __forceinline__ unsigned long long slice_best() const {
        unsigned long long best = 0;
#pragma unroll 4
        for (int i = threadIdx.x; i < SLICE; i += THREADS) {
            const unsigned long long key = best_key(shared.values[i], begin + i);
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
        return from_total_order(static_cast<unsigned>(key >> 32)) == negative_infinity() ? 0 : static_cast<int>(~static_cast<unsigned>(key));
    }

    // ---- Results: one thread's job ----

    __device__ __forceinline__ float logprob(float logit) const {
        if (!(logit > negative_infinity())) return negative_infinity();
        // The difference of two infinities is not a number.
        if (logit == largest) return static_cast<float>(-log_sum);
        return static_cast<float>(static_cast<double>(logit) - static_cast<double>(largest) - log_sum);
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
                asm volatile("atom.acq_rel.gpu.global.add.u32 %0, [%1], 1;" : "=r"(arrived) : "l"(&scratch->finished[row]) : "memory");
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

    // ---- Log-probabilities ----

    // How many of `ties` equal values lie before this thread's own tokens in the whole row. One barrier.
    __device__ __forceinline__ unsigned ties_before(unsigned own) {
        unsigned in_block;
        const unsigned before = block_scan<THREADS>(own, shared.filter.counts, in_block) - own;
        if (threadIdx.x == 0) group.post(in_block);
        group.barrier();
        const unsigned in_other = static_cast<unsigned>(group.collect());
        return before + __reduce_add_sync(0xFFFFFFFFu, threadIdx.x % 32 < group.split ? in_other : 0);
    }

    // Calls `use(index, kept)` for this thread's own tokens in order; kept are the values above the threshold and those equal to it
    // while `take` lasts.
    template <class Key, class Use>
    __device__ __forceinline__ void for_each_kept(const Threshold& threshold, Key key_of, Use use) {
        const int own = threadIdx.x * PER_THREAD;
        unsigned rank = 0;
        if (threshold.take < threshold.ties) {
            unsigned ties = 0;
#pragma unroll 1
            for (int i = own; i < own + PER_THREAD; ++i) ties += key_of(i) == threshold.key;
            rank = ties_before(ties);
        }
#pragma unroll 1
        for (int i = own; i < own + PER_THREAD; ++i) {
            const unsigned key = key_of(i);
            bool kept = key > threshold.key;
            if (key == threshold.key) kept = rank++ < threshold.take;
            if (threshold.take == threshold.ties) kept = key >= threshold.key;
            use(i, kept);
        }
    }

    // One barrier, and four or five more for the alternatives.
    __device__ __forceinline__ void log_probabilities(const Sampling& sampling) {
        double sum = 0, total;
#pragma unroll 4
        for (int i = threadIdx.x; i < SLICE; i += THREADS) sum += weight(shared.values[i], largest, 1.0f);
        block_scan<THREADS>(sum, shared.filter.sums, total);
        if (threadIdx.x == 0) group.post(__double_as_longlong(total));
        group.barrier();
        log_sum = log(__shfl_sync(0xFFFFFFFFu, warp_scan(__longlong_as_double(group.collect())), 31));

        const int count = alternatives(sampling);
        if (count == 0) return;
        auto key_of = [&](int i) { return total_order(shared.values[i]); };
        const Threshold threshold = select_by_count<SPLITS, THREADS, SLICE>(group, shared.filter, shared.values, count);
        for_each_kept(threshold, key_of, [&](int i, bool kept) {
            if (!kept) return;
            const unsigned place = atomicAdd(&group.scratch->winners, 1u);
            __stcg(&group.scratch->winner[place], static_cast<unsigned long long>(key_of(i)) << 32 | ~static_cast<unsigned>(begin + i));
        });
        group.barrier();
        if (group.split != 0) return;
        // They arrived in any order: each finds its rank.
        if (threadIdx.x < count) shared.keys[threadIdx.x] = __ldcg(&group.scratch->winner[threadIdx.x]);
        __syncthreads();
        if (threadIdx.x < count) {
            const unsigned long long key = shared.keys[threadIdx.x];
            int rank = 0;
#pragma unroll 1
            for (int i = 0; i < count; ++i) rank += shared.keys[i] > key;
            sampled[row].top_id[rank] = static_cast<int>(~static_cast<unsigned>(key));
            sampled[row].top_logprob[rank] = logprob(from_total_order(static_cast<unsigned>(key >> 32)));
        }
        if (threadIdx.x == 0) group.scratch->winners = 0;
        __syncthreads();
    }

    // ---- Random rows ----

    // `best`: the largest logit after penalties.
    __device__ __forceinline__ void choose(const Sampling& sampling, float best) {
        const float inverse = fminf(__frcp_rn(sampling.temperature), 3.40282347e38f);  // the tiniest temperatures have no finite inverse
        float* values = shared.values;
        if (sampling.top_k >= 1 && sampling.top_k < C::VOCABULARY) {
            auto key_of = [=](int i) { return total_order(values[i]); };
            const Threshold threshold = select_by_count<SPLITS, THREADS, SLICE>(group, shared.filter, values, sampling.top_k);
            for_each_kept(threshold, key_of, [=](int i, bool kept) { values[i] = kept ? weight(values[i], best, inverse) : 0.0f; });
        } else {
#pragma unroll 4
            for (int i = threadIdx.x; i < SLICE; i += THREADS) values[i] = weight(values[i], best, inverse);
        }
        __syncthreads();
        // Weights are not negative, so their bits are in their order.
        auto key_of = [=](int i) { return __float_as_uint(values[i]); };
        double sum = 0;
        auto keep = [&](int i, bool kept) {
            const float value = kept && values[i] >= sampling.min_p ? values[i] : 0.0f;
            values[i] = value;
            sum += value;
        };
        if (sampling.top_p < 1.0f) {
            const Threshold threshold = select_by_weight<SPLITS, THREADS, SLICE>(group, shared.filter, values, sampling.top_p);
            for_each_kept(threshold, key_of, keep);
        } else {
#pragma unroll 1
            for (int i = threadIdx.x * PER_THREAD; i < (static_cast<int>(threadIdx.x) + 1) * PER_THREAD; ++i) keep(i, true);
        }
        draw(sampling, sum);
    }

    // The first token, in order of id, with which the weights' sum exceeds a uniform share of the total. `sum`: of this thread's own.
    __device__ __forceinline__ void draw(const Sampling& sampling, double sum) {
        double total;
        if (threadIdx.x == 0) shared.first = THREADS, shared.last = -1;
        const double through = block_scan<THREADS>(sum, shared.filter.sums, total);  // including this thread
        if (threadIdx.x == 0) group.post(__double_as_longlong(total));
        group.barrier();
        const double in_split = __longlong_as_double(group.collect()), through_split = warp_scan(in_split);  // a split a lane
        const double left = uniform(sampling.seed, sampling.draw) * __shfl_sync(0xFFFFFFFFu, through_split, 31);
        // Where rounding lets the walk run past the end, the last possible split, thread and token it is.
        const unsigned possible = __ballot_sync(0xFFFFFFFFu, in_split > 0), within = __ballot_sync(0xFFFFFFFFu, in_split > 0 && left < through_split);
        const int chosen = within != 0 ? __ffs(within) - 1 : 31 - __clz(possible);
        const double left_in_chosen = left - (chosen == 0 ? 0 : __shfl_sync(0xFFFFFFFFu, through_split, chosen - 1));
        if (chosen != group.split) return;  // the whole block returns
        if (sum > 0) {
            if (left_in_chosen < through) atomicMin(&shared.first, static_cast<int>(threadIdx.x));
            atomicMax(&shared.last, static_cast<int>(threadIdx.x));
        }
        __syncthreads();
        if (threadIdx.x != (shared.first < THREADS ? shared.first : shared.last)) return;
        double left_in_own = left_in_chosen - (through - sum);
        int token = 0;
#pragma unroll 1
        for (int i = threadIdx.x * PER_THREAD; i < (static_cast<int>(threadIdx.x) + 1) * PER_THREAD; ++i) {
            if (!(shared.values[i] > 0)) continue;
            token = begin + i;
            left_in_own -= shared.values[i];
            if (left_in_own < 0) break;
        }
        finish(token, sampling);
    }

    __device__ __forceinline__ void sample_row(const Sampling& sampling, const TokenUse* history) {
        const bool random = sampling.temperature > 0;
        const bool wanted = sampling.top_logprobs >= 0;
        const bool penalised = sampling.history_count > 0 && (sampling.repetition_penalty != 1 || sampling.presence_penalty != 0 || sampling.frequency_penalty != 0);
        if (!random && !wanted && !penalised) return greedy(sampling, streamed_best());
        load_slice();
        if (!random && !wanted) {
            penalise(sampling, history);
            return greedy(sampling, slice_best());
        }
        unsigned long long best = 0;
        if (wanted) {
            best = row_best();
            largest = from_total_order(static_cast<unsigned>(best >> 32));
            log_probabilities(sampling);
        }
        if (penalised) penalise(sampling, history);
        if (penalised || !wanted) best = row_best();
        const float highest = from_total_order(static_cast<unsigned>(best >> 32));
        if (random && highest > negative_infinity()) {
            choose(sampling, highest);
        } else if (group.split == 0 && threadIdx.x == 0) {
            finish(token_of(best), sampling);
        }
    }
};

template <class C>
__device__ __forceinline__ void sample(const Step* step, const TokenUse* history, const float* logits, void* scratch, int* sampled_ids, Sampled* sampled) {
    extern __shared__ __align__(16) unsigned char sample_shared[];
    launch_dependents();
    wait_for_predecessors();
    SampleScratch* const places = static_cast<SampleScratch*>(scratch);
    const int index = blockIdx.x / C::SPLITS, split = blockIdx.x % C::SPLITS;
    SampleShared<C>& shared = *reinterpret_cast<SampleShared<C>*>(sample_shared);
    Sampler<C> sampler = {shared, {&places->group[index], split, 0, 0}, places, sampled_ids, sampled, logits, 0, split * SampleShape<C>::SLICE, 0, 0};
    const int outputs = step->outputs;
    for (int row = index; row < outputs; row += C::GROUPS) {
        sampler.row = row;
        sampler.logits = logits + static_cast<size_t>(row) * C::VOCABULARY;
        const Sampling sampling = step->sampling[row];
        sampler.sample_row(sampling, history);
        sampler.group.clear_all();
        __syncthreads();  // shared memory is the next row's
    }
    sampler.group.leave();
}

}  // namespace monomorph
