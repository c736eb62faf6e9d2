// accept: which drafts hold, and the headers of the draft passes that follow.
//
// Behind the rows that were sampled. A draft holds where it is the id sampled from the row before it and all drafts before it hold; with FORCED, for
// measuring speed only, where a hash of its slot and position says so, and the drafts then stand in the place of the ids sampled. Row `first + held`
// of a sequence is the last that counts: the first pass of a draft head selects it, and pass j goes on at the position j - 1 behind its own.
// With LAYERS passes are of the model's own layers: pass j stands at the position j behind that row, and finds its token by slot, that of the
// first pass the sequence's and those of the others the place of the sequence, which are counted from where the pass before put its ids.
// After a prefill (TOKENS 1) nothing was drafted: every sequence that is drafted for goes on from the last token it fed.
//
// Config: TOKENS, rows of a sequence: the one sampled last and its drafts; PASSES; bool LAYERS; SEQUENCES, most of a step;
// ROWS_AT, DRAFTED_AT, where two parts of `ids` begin; bool FORCED; unsigned FORCED_BELOW: what 24 bits of the hash are below.
// ids [slots | MAX_SEQUENCES | PASSES SEQUENCES] (abi::step::Ids): last sampled, by slot; sampled, by row of a step that verifies; drafted, by pass and sequence. The
// header's `sampling` says where each row's id goes, and so do the passes' that are made here.
// passes [PASSES]: headers, which share the step's block table. held [SEQUENCES]: how many drafts of each hold, the host's memory.
//
// Launch: one block of MAX_SEQUENCES threads, thread i for the sequence that is drafted for in place i (Sequence::drafted). Predicted: a boundary, and
// two reads of the second-level cache one after another, 1 us; 100 bytes a sequence and pass are written.
#pragma once

#include "core/async.cuh"
#include "core/step.cuh"

namespace monomorph {

// Whether a draft is accepted whatever was sampled.
__device__ __forceinline__ bool forced_to_hold(int slot, int position, unsigned below) {
    unsigned long long h = (static_cast<unsigned long long>(slot) << 32) + static_cast<unsigned>(position) + 0x9e3779b97f4a7c15ull;
    h = (h ^ h >> 30) * 0xbf58476d1ce4e5b9ull;
    h = (h ^ h >> 27) * 0x94d049bb133111ebull;
    h ^= h >> 31;
    return static_cast<unsigned>(h >> 40) < below;
}

template <class C>
__device__ __forceinline__ void accept(const Step* step, Step* passes, int* ids, int* held) {
    static_assert(C::TOKENS >= 1 && C::PASSES >= 1 && C::SEQUENCES * C::TOKENS <= MAX_SEQUENCES, "a row has a place in the header");
    MONOMORPH_SHARED(drafted, int);
    launch_dependents();
    if (threadIdx.x == 0) drafted = 0;
    wait_for_predecessors();
    const int index = threadIdx.x, entry = index * C::TOKENS;
    const bool fed = entry < step->sequences;
    Sequence last = {};
    int place = -1, count = 0;
    if (fed) {
        last = step->sequence[entry];
        place = last.drafted;
        if constexpr (C::TOKENS == 1) {
            last.first_token += last.count - 1, last.position += last.count - 1;
        } else {
            int sampled[C::TOKENS], draft[C::TOKENS];  // draft i was fed after row i
#pragma unroll
            for (int i = 0; i < C::TOKENS; ++i) {
                sampled[i] = __ldcg(ids + C::ROWS_AT + entry + i);
                draft[i] = i + 1 < C::TOKENS ? step->sequence[entry + i + 1].token : -1;
            }
            bool holds = true;
            int id = sampled[0];
#pragma unroll
            for (int i = 0; i + 1 < C::TOKENS; ++i) {
                if constexpr (C::FORCED) {
                    holds = holds && forced_to_hold(last.slot, last.position + i + 1, C::FORCED_BELOW);
                    if (holds) ids[C::ROWS_AT + entry + i] = draft[i];
                } else {
                    holds = holds && sampled[i] == draft[i];
                }
                count += holds;
                if (holds) id = sampled[i + 1];
            }
            ids[last.slot] = id;
            last.first_token += count, last.position += count;
        }
    }
    __syncthreads();
    if (place >= 0) atomicMax(&drafted, place + 1);
    __syncthreads();
    if (index == 0) {
#pragma unroll
        for (int pass = 0; pass < C::PASSES; ++pass) {
            passes[pass].tokens = passes[pass].sequences = passes[pass].outputs = drafted;
            passes[pass].blocks_at = static_cast<int>(reinterpret_cast<const char*>(step->blocks()) - reinterpret_cast<const char*>(passes + pass));
        }
    }
    if (place < 0) return;
    held[place] = count;
#pragma unroll
    for (int pass = 0; pass < C::PASSES; ++pass) {
        Step& to = passes[pass];
        to.output_rows[place] = !C::LAYERS && pass == 0 ? last.first_token : place;
        const int position = last.position + pass + (C::LAYERS ? 1 : 0), slot = C::LAYERS && pass > 0 ? place : last.slot;
        to.sequence[place] = {place, 1, position, last.block_start, -1, slot, place, -1};
        Sampling& largest = to.sampling[place];  // the likeliest, told to nobody but the next pass
        largest.temperature = 0.0f, largest.top_p = 1.0f, largest.min_p = 0.0f;
        largest.repetition_penalty = 1.0f, largest.presence_penalty = largest.frequency_penalty = 0.0f;
        largest.top_k = 0, largest.top_logprobs = -1, largest.seed = largest.draw = 0;
        largest.slot = C::DRAFTED_AT + pass * C::SEQUENCES + place, largest.history_start = largest.history_count = 0, largest.mask = -1;
    }
}

}  // namespace monomorph
