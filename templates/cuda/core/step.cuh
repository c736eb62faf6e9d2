// Printed from runtime/abi/src/step.rs: `cargo xtask test --bless` does it again.
//
// The step header: what one forward pass is about. Built on the host, sent in one upload, read by every
// kernel of the step.
//
// Names used by all kernels: a *row* is a row of the activation buffers, one a token of the step.
// A *position* is a token's index in its sequence. A sequence of the step owns rows first_token ..
// first_token + count, at positions position .. position + count.
//
// A step that verifies drafts names every row as a sequence of one token of its own: entries (and rows) i
// TOKENS .. (i + 1) TOKENS are those of one sequence, at consecutive positions and with the same blocks.
// Kernels that take rows one by one need not know. Headers of draft passes (accept.cuh) are made by the
// device; they share the block table of the step they follow.
#pragma once

#include <cstddef>

namespace monomorph {

// Sequences, and outputs, that one step may carry.
constexpr int MAX_SEQUENCES = 128;
// Alternatives that can be reported beside a sampled token.
constexpr int MAX_TOP_LOGPROBS = 20;

struct Sequence {
    int first_token;  // Row of its first token in this step
    int count;  // Tokens fed in this step, at least one
    int position;  // Tokens cached before this step
    int block_start;  // Its K/V block ids start at `blocks()[block_start]`: ceil((position + count) / block_tokens) of them
    int token;  // Decode only: the id fed; -1 is the id last sampled for `slot`
    int slot;  // Row of sampled_ids, or -1
    int drafted;  // Place among the sequences that are drafted for, or -1
    int following;  // The id after its last token, as far as the host knows it; -1 is the one sampled for `slot` in this step
};
static_assert(sizeof(Sequence) == 32, "as the host has it");
static_assert(offsetof(Sequence, first_token) == 0, "as the host has it");
static_assert(offsetof(Sequence, count) == 4, "as the host has it");
static_assert(offsetof(Sequence, position) == 8, "as the host has it");
static_assert(offsetof(Sequence, block_start) == 12, "as the host has it");
static_assert(offsetof(Sequence, token) == 16, "as the host has it");
static_assert(offsetof(Sequence, slot) == 20, "as the host has it");
static_assert(offsetof(Sequence, drafted) == 24, "as the host has it");
static_assert(offsetof(Sequence, following) == 28, "as the host has it");

// How one output row is sampled.
struct Sampling {
    float temperature;
    float top_p;
    float min_p;
    float repetition_penalty;
    float presence_penalty;
    float frequency_penalty;
    unsigned top_k;  // 0 is all
    int top_logprobs;  // -1 is no log-probabilities, 0 the chosen id's only, n those of n alternatives too
    unsigned long long seed;
    unsigned long long draw;  // Place in the random stream of that seed
    int slot;  // sampled_ids[slot] receives the id; -1 is nobody
    int history_start;  // `TokenUse` entries that the penalties look at
    int history_count;
    int mask;  // Where the words of its mask begin, in words from the start of the history; -1 where any id may be chosen
    int bias_start;  // `TokenBias` entries, in places of 8 bytes from the start of the history
    int bias_count;
    float top_n_sigma;  // 0 is all
    int reserved;
};
static_assert(sizeof(Sampling) == 80, "as the host has it");
static_assert(offsetof(Sampling, temperature) == 0, "as the host has it");
static_assert(offsetof(Sampling, top_p) == 4, "as the host has it");
static_assert(offsetof(Sampling, min_p) == 8, "as the host has it");
static_assert(offsetof(Sampling, repetition_penalty) == 12, "as the host has it");
static_assert(offsetof(Sampling, presence_penalty) == 16, "as the host has it");
static_assert(offsetof(Sampling, frequency_penalty) == 20, "as the host has it");
static_assert(offsetof(Sampling, top_k) == 24, "as the host has it");
static_assert(offsetof(Sampling, top_logprobs) == 28, "as the host has it");
static_assert(offsetof(Sampling, seed) == 32, "as the host has it");
static_assert(offsetof(Sampling, draw) == 40, "as the host has it");
static_assert(offsetof(Sampling, slot) == 48, "as the host has it");
static_assert(offsetof(Sampling, history_start) == 52, "as the host has it");
static_assert(offsetof(Sampling, history_count) == 56, "as the host has it");
static_assert(offsetof(Sampling, mask) == 60, "as the host has it");
static_assert(offsetof(Sampling, bias_start) == 64, "as the host has it");
static_assert(offsetof(Sampling, bias_count) == 68, "as the host has it");
static_assert(offsetof(Sampling, top_n_sigma) == 72, "as the host has it");
static_assert(offsetof(Sampling, reserved) == 76, "as the host has it");

// What stands before the block table; of models that have layers with a sliding window with
// `SlidingStarts` behind it.
struct Step {
    int tokens;  // Rows of the activation buffers in use
    int sequences;  // Entries of `sequence` in use; their rows are adjacent and ascending, from row 0 to row `tokens`
    int outputs;  // Entries of `output_rows` and `sampling` in use
    int blocks_at;  // Bytes from here to the block table
    int output_rows[MAX_SEQUENCES];  // Rows whose logits are wanted
    Sequence sequence[MAX_SEQUENCES];
    Sampling sampling[MAX_SEQUENCES];  // One an output
    // The block table: entry i of sequence s at blocks()[sequence[s].block_start + i].
    __device__ __forceinline__ const int* blocks() const { return reinterpret_cast<const int*>(reinterpret_cast<const char*>(this) + blocks_at); }
};
static_assert(sizeof(Step) == 14864, "as the host has it");
static_assert(offsetof(Step, tokens) == 0, "as the host has it");
static_assert(offsetof(Step, sequences) == 4, "as the host has it");
static_assert(offsetof(Step, outputs) == 8, "as the host has it");
static_assert(offsetof(Step, blocks_at) == 12, "as the host has it");
static_assert(offsetof(Step, output_rows) == 16, "as the host has it");
static_assert(offsetof(Step, sequence) == 528, "as the host has it");
static_assert(offsetof(Step, sampling) == 4624, "as the host has it");

// A token of a prefill, a row each. Its position is sequence[s].position + row -
// sequence[s].first_token.
struct TokenRow {
    int id;  // -1 is the id last sampled for the sequence's slot
    int sequence;  // Index into `Step::sequence`
};
static_assert(sizeof(TokenRow) == 8, "as the host has it");
static_assert(offsetof(TokenRow, id) == 0, "as the host has it");
static_assert(offsetof(TokenRow, sequence) == 4, "as the host has it");

// A token that penalties look at. Behind those of a step stand the biases of its rows, and behind these
// their masks: a bit an id, the lowest of a word first, in words of 4 bytes.
struct TokenUse {
    int id;
    int generated;  // 1 is the model's own token, 0 the prompt's
};
static_assert(sizeof(TokenUse) == 8, "as the host has it");
static_assert(offsetof(TokenUse, id) == 0, "as the host has it");
static_assert(offsetof(TokenUse, generated) == 4, "as the host has it");

// What is added to a token's logit.
struct TokenBias {
    int id;
    float bias;
};
static_assert(sizeof(TokenBias) == 8, "as the host has it");
static_assert(offsetof(TokenBias, id) == 0, "as the host has it");
static_assert(offsetof(TokenBias, bias) == 4, "as the host has it");

// What was sampled for one output row.
struct Sampled {
    int id;
    float logprob;
    int top_count;
    int reserved;
    int top_id[MAX_TOP_LOGPROBS];
    float top_logprob[MAX_TOP_LOGPROBS];
};
static_assert(sizeof(Sampled) == 176, "as the host has it");
static_assert(offsetof(Sampled, id) == 0, "as the host has it");
static_assert(offsetof(Sampled, logprob) == 4, "as the host has it");
static_assert(offsetof(Sampled, top_count) == 8, "as the host has it");
static_assert(offsetof(Sampled, reserved) == 12, "as the host has it");
static_assert(offsetof(Sampled, top_id) == 16, "as the host has it");
static_assert(offsetof(Sampled, top_logprob) == 96, "as the host has it");

}  // namespace monomorph
