//! The header of a step on a CUDA device, and its results. The header describes one forward pass. The host
//! builds it and sends it in one upload; every kernel of the step reads it. `templates/cuda/core/step.cuh` is
//! printed from here ([`header`]).

use crate::wire::{print, wire};
use std::fmt::Write;

/// Most sequences, and most outputs, of one step.
pub const MAX_SEQUENCES: usize = 128;
/// Most alternatives reported beside a sampled token.
pub const MAX_TOP_LOGPROBS: usize = 20;

wire! {
    SequenceRow as "Sequence" {
        /// Row of its first token in this step.
        first_token: i32,
        /// Tokens fed in this step, at least one.
        count: i32,
        /// Tokens cached before this step.
        position: i32,
        /// Its K/V block ids start at `blocks()[block_start]`: ceil((position + count) / block_tokens) of
        /// them.
        block_start: i32,
        /// Decode only: the id fed; -1 is the id last sampled for `slot`.
        token: i32,
        /// Row of sampled_ids, or -1.
        slot: i32,
        /// Place among the sequences that are drafted for, or -1.
        drafted: i32,
        /// The id after its last token, as far as the host knows it; -1 is the one sampled for `slot` in this
        /// step.
        following: i32,
    }

    /// How one output row is sampled.
    SamplingRow as "Sampling" {
        temperature: f32,
        top_p: f32,
        min_p: f32,
        repetition_penalty: f32,
        presence_penalty: f32,
        frequency_penalty: f32,
        /// 0 is all.
        top_k: u32,
        /// -1 is no log-probabilities, 0 the chosen id's only, n those of n alternatives too.
        top_logprobs: i32,
        seed: u64,
        /// Place in the random stream of that seed.
        draw: u64,
        /// sampled_ids[slot] receives the id; -1 is nobody.
        slot: i32,
        /// `TokenUse` entries that the penalties look at.
        history_start: i32,
        history_count: i32,
        /// Where the words of its mask begin, in words from the start of the history; -1 where any id may be
        /// chosen.
        mask: i32,
        /// `TokenBias` entries, in places of 8 bytes from the start of the history.
        bias_start: i32,
        bias_count: i32,
        /// 0 is all.
        top_n_sigma: f32,
        reserved: i32,
    }

    /// What stands before the block table; of models that have layers with a sliding window with
    /// `SlidingStarts` behind it.
    Header as "Step" {
        /// Rows of the activation buffers in use.
        tokens: i32,
        /// Entries of `sequence` in use; their rows are adjacent and ascending, from row 0 to row `tokens`.
        sequences: i32,
        /// Entries of `output_rows` and `sampling` in use.
        outputs: i32,
        /// Bytes from here to the block table.
        blocks_at: i32,
        /// Rows whose logits are wanted.
        output_rows: [i32; MAX_SEQUENCES],
        sequence: [SequenceRow; MAX_SEQUENCES],
        /// One an output.
        sampling: [SamplingRow; MAX_SEQUENCES],
    }

    /// A token of a prefill, a row each. Its position is sequence[s].position + row -
    /// sequence[s].first_token.
    TokenRow as "TokenRow" {
        /// -1 is the id last sampled for the sequence's slot.
        id: i32,
        /// Index into `Step::sequence`.
        sequence: i32,
    }

    /// A token that penalties look at. Behind those of a step stand the biases of its rows, and behind these
    /// their masks: a bit an id, the lowest of a word first, in words of 4 bytes.
    Use as "TokenUse" {
        id: i32,
        /// 1 is the model's own token, 0 the prompt's.
        generated: i32,
    }

    /// What is added to a token's logit.
    Bias as "TokenBias" {
        id: i32,
        bias: f32,
    }

    /// What was sampled for one output row.
    SampledRow as "Sampled" {
        id: i32,
        logprob: f32,
        top_count: i32,
        reserved: i32,
        top_id: [i32; MAX_TOP_LOGPROBS],
        top_logprob: [f32; MAX_TOP_LOGPROBS],
    }
}

/// The ids that a device keeps, in places of an `i32`: the one sampled last for each slot; then, if steps
/// verify drafts, those sampled for a step's rows; then the drafted ones, by pass and sequence.
#[derive(Clone, Copy, Debug)]
pub struct Ids {
    /// Slots, and most sequences of a step.
    pub sequences: usize,
}

impl Ids {
    /// The place of the id sampled for a row of a step that verifies.
    pub const fn row(self, row: usize) -> usize {
        self.sequences + row
    }

    /// The place of the id that a pass drafted for its first sequence.
    pub const fn drafted(self, pass: usize) -> usize {
        self.row(MAX_SEQUENCES) + pass * self.sequences
    }

    /// Places in all.
    pub const fn count(self, verifies: bool, passes: usize) -> usize {
        match (verifies, passes) {
            (false, 0) => self.sequences,
            _ => self.drafted(passes),
        }
    }
}

impl SamplingRow {
    /// Samples the largest logit, and reports nothing beside it.
    pub const GREEDY: SamplingRow = SamplingRow {
        temperature: 0.0,
        top_p: 1.0,
        min_p: 0.0,
        repetition_penalty: 1.0,
        presence_penalty: 0.0,
        frequency_penalty: 0.0,
        top_k: 0,
        top_logprobs: -1,
        seed: 0,
        draw: 0,
        slot: -1,
        history_start: 0,
        history_count: 0,
        mask: -1,
        bias_start: 0,
        bias_count: 0,
        top_n_sigma: 0.0,
        reserved: 0,
    };
}

impl SequenceRow {
    /// The row of no sequence.
    pub const NONE: SequenceRow = SequenceRow {
        first_token: 0,
        count: 0,
        position: 0,
        block_start: 0,
        token: 0,
        slot: -1,
        drafted: -1,
        following: -1,
    };
}

/// The beginning of the printed header.
const HEAD: &str = "\
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
";

/// The member function that `Step` has besides its fields.
const BLOCKS: &str = "    \
// The block table: entry i of sequence s at blocks()[sequence[s].block_start + i].
    __device__ __forceinline__ const int* blocks() const { return reinterpret_cast<const int*>(reinterpret_cast<const char*>(this) + blocks_at); }
";

/// The text of `templates/cuda/core/step.cuh`.
pub fn header() -> String {
    let names = [("SequenceRow", "Sequence"), ("SamplingRow", "Sampling")];
    let mut out = HEAD.to_owned();
    // Writing to a string cannot fail.
    let _ = writeln!(out, "\n// Sequences, and outputs, that one step may carry.");
    let _ = writeln!(out, "constexpr int MAX_SEQUENCES = {MAX_SEQUENCES};");
    let _ = writeln!(out, "// Alternatives that can be reported beside a sampled token.");
    let _ = writeln!(out, "constexpr int MAX_TOP_LOGPROBS = {MAX_TOP_LOGPROBS};");
    for it in DECLARATIONS {
        out.push('\n');
        print(&mut out, it, &names, if it.name == "Step" { BLOCKS } else { "" });
    }
    out.push_str("\n}  // namespace monomorph\n");
    out
}
