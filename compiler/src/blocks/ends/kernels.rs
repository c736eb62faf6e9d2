//! The ends of a stack: embedding, selection of rows, sampling.

use crate::kernels::{
    Codes, FACTOR, Header, History, Ids, MATRIX, RowScales, Rows, SampleScratch, Sampled, Scales, Tokens,
    constants, kernels,
};

kernels! {
    /// Looks up rows of the embedding.
    embed => Embed in "ends/embed.cuh", [MATRIX, constants![HIDDEN: int, THREADS: int, DECODE: bool], FACTOR];
    (
        step: READ Header, tokens: READ Tokens, sampled_ids: READ Ids, codes: READ Codes, scales: READ Scales,
        row_scales: READ RowScales, residual: WRITE Rows,
    )
    check "{config}::THREADS == {block}"
    grid x "embed_blocks<{config}>()";

    /// Selects the rows that need logits. The C library has a `select` of its own.
    select => Select in "ends/select.cuh", [constants![HIDDEN: int, THREADS: int]];
    (step: READ Header, residual: READ Rows, out: WRITE Rows)
    check "{config}::THREADS == {block}"
    grid x "select_blocks<{config}>()"
    body "monomorph::select<{config}>(step, residual, out);";

    /// Samples one token per row of logits.
    sample => Sample in "sampling/sample.cuh",
        [constants![VOCABULARY: int, THREADS: int, SPLITS: int, GROUPS: int]];
    (
        step: READ Header, history: READ History, logits: READ Rows, scratch: WRITE SampleScratch,
        sampled_ids: WRITE Ids, sampled: WRITE Sampled,
    )
    check "{config}::THREADS == {block} && sample_shared_bytes<{config}>() <= {shared}"
    grid x "{config}::SPLITS"
    grid y "{config}::GROUPS"
    bytes scratch "sizeof(SampleScratch)";
}
