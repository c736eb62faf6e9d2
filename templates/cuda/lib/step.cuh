// The step header: what one forward pass is about. Built on the host, sent in one upload, read by every kernel of the step.
// runtime/device mirrors these structs byte for byte; the static_asserts are the other half of that agreement.
//
// Names used by all kernels: a *row* is a row of the activation buffers, one a token of the step. A *position* is a token's index
// in its sequence. A sequence of the step owns rows first_token .. first_token + count, at positions position .. position + count.
//
// A step that verifies drafts names every row as a sequence of one token of its own: entries (and rows) i TOKENS .. (i + 1) TOKENS are
// those of one sequence, at consecutive positions and with the same blocks. Kernels that take rows one by one need not know.
// Headers of draft passes (accept.cuh) are made by the device; they share the block table of the step they follow.
#pragma once

#include <cstddef>

namespace monomorph {

#ifndef MONOMORPH_MAX_SEQUENCES
#define MONOMORPH_MAX_SEQUENCES 128
#endif

// Sequences (and outputs) one step may carry.
constexpr int MAX_SEQUENCES = MONOMORPH_MAX_SEQUENCES;
// Alternatives a Sampled can report.
constexpr int MAX_TOP_LOGPROBS = 20;

struct Sequence {
    int first_token;  // row of its first token in this step
    int count;        // tokens fed in this step, >= 1
    int position;     // tokens cached before this step
    int block_start;  // its K/V block ids start at Step::blocks[block_start]: ceil((position + count) / block_tokens) of them
    int token;        // decode only: the id fed, or -1 = the id last sampled for `slot`
    int slot;         // row of sampled_ids, or -1
    int drafted;      // place among the sequences that are drafted for, or -1
    int following;    // the id after the last of its tokens, as far as the host knows it; -1 = the one sampled for `slot` in this step
};

struct Sampling {
    float temperature, top_p, min_p, repetition_penalty, presence_penalty, frequency_penalty;
    unsigned top_k;    // 0 = all
    int top_logprobs;  // -1 = no log probabilities, 0 = the chosen id's only, n = n alternatives too
    unsigned long long seed, draw;
    int slot;                          // sampled_ids[slot] receives the id; -1 = nobody does
    int history_start, history_count;  // TokenUse entries the penalties look at
    int mask;                          // where the words of its mask begin, in words from the start of the history; -1 = any id may be chosen
    int bias_start, bias_count;        // TokenBias entries, in places of 8 bytes from the start of the history
    float top_n_sigma;                 // 0 = all
    int reserved;
};

struct Step {
    int tokens;     // rows of the activation buffers in use
    int sequences;  // entries of `sequence` in use; their rows are adjacent and ascending, from row 0 to row `tokens`
    int outputs;    // entries of `output_rows` and `sampling` in use
    int blocks_at;  // bytes from here to the block table
    int output_rows[MAX_SEQUENCES];  // rows whose logits are wanted
    Sequence sequence[MAX_SEQUENCES];
    Sampling sampling[MAX_SEQUENCES];  // one an output
    // The block table: entry i of sequence s at blocks()[sequence[s].block_start + i].
    __device__ __forceinline__ const int* blocks() const { return reinterpret_cast<const int*>(reinterpret_cast<const char*>(this) + blocks_at); }
};

// Prefill only: one a row. The row's position is sequence[s].position + row - sequence[s].first_token.
struct TokenRow {
    int id;        // or -1 = the id last sampled for the sequence's slot
    int sequence;  // index into Step::sequence
};

// A token that penalties look at. Behind those of a step stand the biases of its rows, and behind these their masks: a bit an id, the lowest of a word first, in words of 4 bytes.
struct TokenUse {
    int id;
    int generated;  // 1 = the model's own token, 0 = the prompt's
};

// What is added to a token's logit.
struct TokenBias {
    int id;
    float bias;
};

struct Sampled {
    int id;
    float logprob;
    int top_count;
    int reserved;
    int top_id[MAX_TOP_LOGPROBS];
    float top_logprob[MAX_TOP_LOGPROBS];
};

static_assert(sizeof(Sequence) == 32, "mirrored by the host");
static_assert(sizeof(Sampling) == 80, "mirrored by the host");
static_assert(sizeof(Step) == 16 + MAX_SEQUENCES * (4 + 32 + 80), "mirrored by the host");
static_assert(offsetof(Step, sequence) == 16 + 4 * MAX_SEQUENCES, "mirrored by the host");
static_assert(sizeof(Sampled) == 16 + 8 * MAX_TOP_LOGPROBS, "mirrored by the host");

}  // namespace monomorph
