// Sampling: one row of logits -> one token, in the order and with the arithmetic of runtime/sampling (whose page states both): log-
// probabilities of the unmodified logits, the mask, biases, penalties, temperature, top_n_sigma, top_k, top_p, min_p, one draw in order of id.
// Nothing leaves the device but the results.
//
// Config: VOCABULARY; THREADS (256 or 512); SPLITS, blocks a row (<= 32); GROUPS, rows worked on at once (<= 32). Grid: SPLITS x GROUPS
// blocks, which must be resident together (sample_group.cuh says why); dynamic shared memory: sample_shared_bytes(); scratch: one
// SampleScratch for all programs. 512 threads and two blocks a multiprocessor leave a thread 64 registers, and the selections need all of
// them: what can be read again or follows from blockIdx and threadIdx is not kept. One instantiation serves any number of outputs.
//
// A greedy row without log-probabilities costs one pass: each block takes the best of its slice, and the last block to arrive at
// the row's counter takes the best of those. Any other row lies in slices in shared memory and is worked on in phases with a group
// barrier between two: its maximum; one a digit of a selection (top alternatives, top_k, top_p), mostly one digit until few tokens are
// left, which one block then finishes; or one for the draw, where many are left. A thread owns PER_THREAD consecutive tokens
// wherever the order of ids counts (ties, the draw), and strides elsewhere.
//
// Shared memory (SampleShared): the slice, a histogram or a list with the scratch of the selections, a word a warp.
#pragma once

#include "sampling/sample_row.cuh"

namespace monomorph {

template <class C>
struct Sampler : SampleRow<C> {
    using Row = SampleRow<C>;
    using Row::SLICE, Row::PER_THREAD, Row::THREADS, Row::SPLITS;
    using Row::shared, Row::group, Row::scratch, Row::sampled, Row::row, Row::begin;
    using Row::values, Row::load_slice, Row::restrict_to, Row::lean, Row::penalise, Row::slice_best, Row::row_best, Row::streamed_best, Row::greedy;
    using Row::token_of, Row::logprob, Row::finish, Row::alternatives;

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
        const int own = thread_index() * PER_THREAD;
        unsigned rank = 0;
        if (threshold.take < threshold.ties) {
            unsigned ties = 0;
#pragma unroll 4
            for (int i = own; i < own + PER_THREAD; ++i) ties += key_of(i) == threshold.key;
            rank = ties_before(ties);
        }
#pragma unroll 4
        for (int i = own; i < own + PER_THREAD; ++i) {
            const unsigned key = key_of(i);
            bool kept = key > threshold.key;
            if (key == threshold.key) kept = rank++ < threshold.take;
            if (threshold.take == threshold.ties) kept = key >= threshold.key;
            use(i, kept);
        }
    }

    // Lists the finalists of a selection, those with keys from `least` up.
    template <class Key>
    __device__ __forceinline__ void list(unsigned least, Key key_of) {
#pragma unroll 1
        for (int i = thread_index(); i < SLICE; i += THREADS) {
            const unsigned key = key_of(i);
            if (key >= least) group.append(token_entry(key, begin + i));
        }
    }

    // Returns the row's best key. Two barriers; up to three more where many alternatives are all but equal.
    __device__ __forceinline__ unsigned long long log_probabilities(const Sampling& sampling) {
        const int wanted = alternatives(sampling);
        const Slice values = this->values();
        auto key_of = [=](int i) { return total_order(values[i]); };
        unsigned long long best;
        Threshold threshold = {};
        if (wanted > 0) {
            const unsigned long long own = block_maximum<THREADS>(slice_best(), shared.keys);
            threshold = select_by_count<SPLITS, THREADS, SLICE>(group, shared.filter, values, wanted, own, best);
        } else {
            best = row_best();
        }
        const float largest = from_total_order(entry_value(best));
        double sum = 0, total;
#pragma unroll 4
        for (int i = thread_index(); i < SLICE; i += THREADS) sum += weight(values[i], largest, 1.0f);
        block_scan<THREADS>(sum, shared.filter.sums, total);
        if (wanted > 0 && threshold.finalists <= THREADS) {
            list(threshold.key, key_of);
        } else if (wanted > 0) {
            for_each_kept(threshold, key_of, [&](int i, bool kept) {
                if (kept) group.append(token_entry(key_of(i), begin + i));
            });
        }
        if (threadIdx.x == 0) group.post(__double_as_longlong(total));
        group.barrier();
        const double all = __shfl_sync(0xFFFFFFFFu, warp_scan(__longlong_as_double(group.collect())), 31);
        if (threadIdx.x == 0) shared.log_sum = log(all), shared.largest = largest;
        __syncthreads();
        if (wanted == 0 || group.split != 0) return best;
        int count;
        const unsigned long long entry = group.take_list(count);
        const int rank = list_rank<THREADS>(shared.filter, entry, count);
        if (entry != 0 && rank < wanted) {
            sampled[row].top_id[rank] = static_cast<int>(entry_id(entry));
            sampled[row].top_logprob[rank] = logprob(from_total_order(entry_value(entry)));
        }
        __syncthreads();  // the list's shared memory is the next selection's
        return best;
    }

    // ---- Random rows ----

    // The last block of the group to arrive draws from the listed finalists; the others go on.
    __device__ __forceinline__ void finish_list(const Sampling& sampling, bool by_logit, float best, float inverse, double target) {
        __syncthreads();
        if (threadIdx.x == 0) shared.arrived = arrive(&scratch->finished[row]);
        __syncthreads();
        if (shared.arrived + 1 != SPLITS) return;
        int count;
        const unsigned long long entry = group.take_list(count);
        const int token = draw_from_list<THREADS>(shared.filter, sampling, entry, count, by_logit, best, inverse, target);
        if (threadIdx.x != 0) return;
        scratch->finished[row] = 0;
        finish(token, sampling);
    }

    __device__ __forceinline__ static bool has_top_k(const Sampling& sampling) { return sampling.top_k >= 1 && sampling.top_k < C::VOCABULARY; }

    // A sum over all blocks of the row, in every thread. One barrier.
    __device__ __forceinline__ double row_sum(double own) {
        double total;
        block_scan<THREADS>(own, shared.filter.sums, total);
        if (threadIdx.x == 0) group.post(__double_as_longlong(total));
        group.barrier();
        return __shfl_sync(0xFFFFFFFFu, warp_scan(__longlong_as_double(group.collect())), 31);
    }

    // top_n_sigma: logits more than so many standard deviations below the largest become minus infinity. Three barriers.
    __device__ __forceinline__ void drop_below_deviations(const Sampling& sampling, unsigned long long best) {
        const float highest = from_total_order(entry_value(best));
        if (!isfinite(highest)) return;  // all blocks of the row see the same
        double count = 0, sum = 0, squares = 0;
#pragma unroll 1
        for (int i = thread_index(); i < SLICE; i += THREADS) {
            if (isfinite(values()[i])) count += 1, sum += values()[i];
        }
        count = row_sum(count);
        const double mean = row_sum(sum) / count;
#pragma unroll 1
        for (int i = thread_index(); i < SLICE; i += THREADS) {
            const double apart = values()[i] - mean;
            if (isfinite(values()[i])) squares += apart * apart;
        }
        const float bound = static_cast<float>(highest - sampling.top_n_sigma * sqrt(row_sum(squares) / count));
#pragma unroll 1
        for (int i = thread_index(); i < SLICE; i += THREADS) {
            if (values()[i] < bound) values()[i] = negative_infinity();
        }
        __syncthreads();
    }

    // `best`: the largest logit after penalties; `threshold`: of top_k.
    __device__ __forceinline__ void choose(const Sampling& sampling, float best, const Threshold& threshold) {
        const float inverse = fminf(__frcp_rn(sampling.temperature), 3.40282347e38f);  // the tiniest temperatures have no finite inverse
        const Slice values = this->values();
        if (has_top_k(sampling)) {
            auto key_of = [=](int i) { return total_order(values[i]); };
            if (threshold.finalists <= THREADS) {
                list(threshold.key, key_of);
                return finish_list(sampling, true, best, inverse, 0);
            }
            for_each_kept(threshold, key_of, [=](int i, bool kept) { values[i] = kept ? weight(values[i], best, inverse) : 0.0f; });
        } else {
#pragma unroll 4
            for (int i = thread_index(); i < SLICE; i += THREADS) values[i] = weight(values[i], best, inverse);
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
            double target;
            const Threshold nucleus = select_by_weight<SPLITS, THREADS, SLICE>(group, shared.filter, values, sampling.top_p, target);
            if (nucleus.finalists <= THREADS) {
                list(nucleus.key, key_of);
                return finish_list(sampling, false, best, inverse, target);
            }
            for_each_kept(nucleus, key_of, keep);
        } else {
#pragma unroll 4
            for (int own = thread_index() * PER_THREAD, i = own; i < own + PER_THREAD; ++i) keep(i, true);
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
        for (int own = thread_index() * PER_THREAD, i = own; i < own + PER_THREAD; ++i) {
            if (!(values()[i] > 0)) continue;
            token = begin + i;
            left_in_own -= values()[i];
            if (left_in_own < 0) break;
        }
        finish(token, sampling);
    }

    // What a row asks for, read from the step wherever it is needed: kept from a row's start to its end, these would cost the selections
    // registers that they do not have.
    __device__ __forceinline__ static bool is_random(const Sampling& sampling) { return sampling.temperature > 0; }
    __device__ __forceinline__ static bool wants_log_probabilities(const Sampling& sampling) { return sampling.top_logprobs >= 0; }
    __device__ __forceinline__ static bool is_penalised(const Sampling& sampling) {
        return sampling.history_count > 0 && (sampling.repetition_penalty != 1 || sampling.presence_penalty != 0 || sampling.frequency_penalty != 0);
    }
    __device__ __forceinline__ static bool is_changed(const Sampling& sampling) {
        return is_penalised(sampling) || sampling.mask >= 0 || sampling.bias_count > 0;
    }

    // Greedy, and nothing else. All fields are asked for before the first is looked at.
    __device__ __forceinline__ static bool is_plain(const Sampling& sampling) {
        const float temperature = sampling.temperature;
        const int top_logprobs = sampling.top_logprobs, mask = sampling.mask, biases = sampling.bias_count, history = sampling.history_count;
        return !(temperature > 0) & (top_logprobs < 0) & (mask < 0) & (biases <= 0) & (history <= 0 || !is_penalised(sampling));
    }

    __device__ __forceinline__ void sample_row(const Sampling& sampling, const TokenUse* history) {
        if (is_plain(sampling)) return greedy(sampling, streamed_best());
        load_slice();
        unsigned long long best = 0;
        if (wants_log_probabilities(sampling)) best = log_probabilities(sampling);
        if (sampling.mask >= 0) restrict_to(sampling, history);
        if (sampling.bias_count > 0) lean(sampling, history);
        if (is_penalised(sampling)) penalise(sampling, history);
        if (!is_random(sampling) && !wants_log_probabilities(sampling)) return greedy(sampling, slice_best());
        bool stale = is_changed(sampling) || !wants_log_probabilities(sampling);
        if (is_random(sampling) && sampling.top_n_sigma > 0) {
            drop_below_deviations(sampling, row_best());
            stale = true;
        }
        Threshold threshold = {};
        if (is_random(sampling) && has_top_k(sampling)) {
            const unsigned long long own = stale ? block_maximum<THREADS>(slice_best(), shared.keys) : best;
            threshold = select_by_count<SPLITS, THREADS, SLICE>(group, shared.filter, values(), sampling.top_k, own, best);
        } else if (stale) {
            best = row_best();
        }
        const float highest = from_total_order(entry_value(best));
        if (is_random(sampling) && highest > negative_infinity()) {
            choose(sampling, highest, threshold);
        } else if (group.split == 0 && threadIdx.x == 0) {
            finish(token_of(best), sampling);
        }
    }
};

template <class C>
__device__ __forceinline__ void sample(const Step* step, const TokenUse* history, const float* logits, void* scratch, int* sampled_ids, Sampled* sampled) {
    MONOMORPH_DYNAMIC_SHARED(sample_shared, 16);
    launch_dependents();
    wait_for_predecessors();
    SampleScratch* const places = static_cast<SampleScratch*>(scratch);
    const int index = blockIdx.y, split = blockIdx.x;
    SampleShared<C>& shared = *reinterpret_cast<SampleShared<C>*>(sample_shared);
    Sampler<C> sampler = {{shared, {&places->group[index], split, 0, 0}, places, sampled_ids, sampled, logits, 0, split * SampleShape<C>::SLICE}};
    int row = index;
    if (threadIdx.x == 0) shared.outputs = step->outputs;
    if (row >= step->outputs) return;
    do {
        sampler.row = row;
        sampler.logits = logits + static_cast<size_t>(row) * C::VOCABULARY;
        const Sampling& sampling = step->sampling[row];  // a copy would hold 16 registers throughout
        sampler.sample_row(sampling, history);
        __syncthreads();  // shared memory is the next row's
        row += C::GROUPS;
    } while (row < shared.outputs);
    sampler.group.leave(&shared.arrived);
}

}  // namespace monomorph
