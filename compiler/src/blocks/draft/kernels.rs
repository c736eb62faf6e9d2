//! Kernels of draft passes.

use crate::kernels::{
    Codes, Declared, Header, Held, Ids, Images, MATRIX, NORM, RowScales, Rows, Scales, Tokens, Vector,
    constants, kernels,
};

const ACCEPT: &[Declared] = constants![
    TOKENS: int, PASSES: int, LAYERS: bool, SEQUENCES: int, ROWS_AT: int, DRAFTED_AT: int, FORCED: bool,
    FORCED_BELOW: auto,
];

kernels! {
    /// Accepts or rejects drafts, and writes the headers of the draft passes.
    accept => Accept in "draft/accept.cuh", [ACCEPT];
    (step: READ Header, passes: WRITE Header, ids: WRITE Ids, held: WRITE Held)
    check "MAX_SEQUENCES == {block}" or "a thread for every sequence";

    /// Start of a draft head's pass: normed embedding and hidden state side by side.
    draft_embed => DraftEmbed in "draft/draft_embed.cuh",
        [MATRIX, NORM, constants![HIDDEN: int, THREADS: int, EXACT: bool, DECODE: bool]];
    (
        step: READ Header, tokens: READ Tokens, ids: READ Ids, codes: READ Codes, scales: READ Scales,
        row_scales: READ RowScales, embedding_norm: READ Vector, x: READ Rows, norm: READ Vector,
        hidden_norm: READ Vector, out: WRITE Rows,
    )
    check "{config}::THREADS == {block} && draft_embed_shared_bytes<{config}>() <= {shared}";

    /// The rows of images in place of embeddings, normed, behind the same.
    draft_image_rows => DraftImageRows in "draft/draft_image_rows.cuh",
        [NORM, constants![HIDDEN: int, THREADS: int, EXACT: bool]];
    (
        step: READ Header, tokens: READ Tokens, images: READ Images, kept: READ Rows,
        embedding_norm: READ Vector, out: WRITE Rows,
    )
    check "{config}::THREADS == {block} && draft_image_rows_shared_bytes<{config}>() <= {shared}";
}
