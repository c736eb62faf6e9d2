//! Attention's kernels.

use crate::kernels::{
    Cache, Counters, Declared, Header, Images, Rotary, Rows, SUM, Tokens, Vector, World, constants, kernels,
    operands,
};

const HEADS: &[Declared] = constants![
    HEADS: int, KV_HEADS: int, HEAD_DIM: int, BLOCK_TOKENS: int, Kv: type, ROTARY_PAIRS: int,
    ROTARY_HALVES: bool, SCALE: float, GATED: bool,
];
const NORMS: &[Declared] = constants![Q_NORM: HeadNorm, Q_EPS: float, K_NORM: HeadNorm, K_EPS: float];
const DECODE: &[Declared] = constants![
    SPLITS: int, DECODE_WARPS: int, MIN_CHUNK: int, CONTEXT_BEFORE_WAIT: bool, ROWS: int, TOKENS: int,
];
/// Norms of values, what they are made of, the positions that a query attends to at most, and whether the
/// layers have blocks of their own, given back behind these.
const VALUES: &[Declared] =
    constants![optional V_EPS: float, KEYS_AS_VALUES: bool, WINDOW: int, SLIDES: bool];
/// Whether the arithmetic is the reference interpreter's.
const EXACT: &[Declared] = constants![EXACT: bool];
/// Values of a row of the inboxes, most rows of the launch, its blocks, and whether keys are a rank's part.
const NORM_OF_RANKS: &[Declared] = constants![INBOX_WIDTH: int, ROWS: int, BLOCKS: int, KEYS_SHARED: bool];
/// Which pairs turn by height and by width of a position, and whether it is a decode step's.
const GRID: &[Declared] = constants![HEIGHT_PAIRS: auto, WIDTH_PAIRS: auto, DECODE: bool];
/// Whether rows are those of a draft pass with a header of its own.
const OF_PASS: &[Declared] = constants![optional PASS: bool];

/// Blocks of the area in which keys and values are widened.
const WIDENED: &[Declared] = constants![WIDENED_BLOCKS: int];

operands! {
    /// Queries after norm and rotary.
    Queries: "AttentionShape<{config}>::Operand";
    /// Keys and values of a layer that are widened for prefill attention.
    Widened: "AttentionShape<{config}>::Operand";
}

kernels! {
    /// Norms, rotary, K/V write and attention of a decode step.
    attention_decode => AttentionDecode in "attention/attention_decode.cuh", [HEADS, NORMS, VALUES, DECODE];
    (
        step: READ Header, qkv: READ Rows, q_norm: READ Vector, k_norm: READ Vector, rotary: READ Rotary,
        layer: WRITE Cache, partials: WRITE Rows, counters: WRITE Counters, out: WRITE Rows,
    )
    check "DecodeShape<{config}>::THREADS == {block} && decode_shared_bytes<{config}>() <= {shared}"
    grid x "{config}::SPLITS"
    grid y "{config}::KV_HEADS"
    grid z "{config}::ROWS"
    bytes kv_block "sizeof({config}::Kv) * AttentionShape<{config}>::BLOCK_STRIDE"
    bytes partials "decode_partials_bytes<{config}>({config}::ROWS)"
    bytes counters "4 * decode_counters<{config}>({config}::ROWS)";

    /// Norms over all query heads of a row together, and over all its key heads, before what else is done.
    attention_norm => AttentionNorm in "attention/attention_norm.cuh", [HEADS, NORMS, VALUES, EXACT];
    (step: READ Header, qkv: WRITE Rows, q_norm: READ Vector, k_norm: READ Vector)
    check "ATTENTION_NORM_THREADS == {block}"
    grid y "2";

    /// The same of heads that ranks have a part of each, which exchange their sums of squares.
    attention_norm_ranks => AttentionNormRanks in "attention/attention_norm_ranks.cuh",
        [HEADS, NORMS, EXACT, SUM, NORM_OF_RANKS];
    (step: READ Header, world: WRITE World, qkv: WRITE Rows, q_norm: READ Vector, k_norm: READ Vector)
    check "ATTENTION_NORM_THREADS == {block}"
    grid x "{config}::BLOCKS"
    bytes world "sizeof(World)"
    bytes inbox "inbox_bytes({config}::RANKS, {config}::INBOX_WIDTH, {config}::INBOX_ROWS)";

    /// Attention with f64 sums, over queries that `attention_write` has rotated in place.
    attention_exact => AttentionExact in "attention/attention_exact.cuh", [HEADS, NORMS, VALUES, EXACT];
    (step: READ Header, tokens: READ Tokens, qkv: READ Rows, layer: READ Cache, out: WRITE Rows)
    check "EXACT_THREADS == {block} && exact_shared_bytes<{config}>() <= {shared}"
    grid y "{config}::HEADS"
    bytes kv_block "sizeof({config}::Kv) * AttentionShape<{config}>::BLOCK_STRIDE";

    /// Attention of a prompt; `qkv` also holds the gates, if there are any.
    attention_prefill => AttentionPrefill in "attention/attention_prefill.cuh",
        [HEADS, NORMS, VALUES, constants![PREFILL_KEYS: int]];
    (step: READ Header, q: READ Queries, layer: READ Cache, out: WRITE Rows, qkv: READ Rows)
    check "PrefillShape<{config}>::THREADS == {block} && prefill_shared_bytes<{config}>() <= {shared}"
    bytes kv_block "sizeof({config}::Kv) * AttentionShape<{config}>::BLOCK_STRIDE";

    /// The same on warpgroups.
    attention_prefill_wgmma => AttentionPrefillWgmma in "attention/attention_prefill_wgmma.cuh",
        [HEADS, NORMS, VALUES];
    (step: READ Header, q: READ Queries, layer: READ Cache, out: WRITE Rows, qkv: READ Rows)
    check "WGMMA_THREADS == {block} && wgmma_prefill_shared_bytes<{config}>() <= {shared}"
    bytes kv_block "sizeof({config}::Kv) * AttentionShape<{config}>::BLOCK_STRIDE";

    /// The same on warpgroups over a narrow cache, which reads what is widened in place of what is kept.
    attention_prefill_widened => AttentionPrefillWidened in "attention/attention_prefill_widened.cuh",
        [HEADS, NORMS, VALUES, WIDENED];
    (
        step: READ Header, q: READ Queries, layer: READ Cache, widened: READ Widened, out: WRITE Rows,
        qkv: READ Rows,
    )
    check "WGMMA_THREADS == {block} && wgmma_prefill_shared_bytes<{config}>() <= {shared}"
    bytes kv_block "sizeof({config}::Kv) * AttentionShape<{config}>::BLOCK_STRIDE"
    bytes widened "widened_bytes<{config}>()";

    /// Keys and values of a step's prompts, widened for `attention_prefill_widened`.
    attention_widen => AttentionWiden in "attention/attention_widen.cuh", [HEADS, NORMS, VALUES, WIDENED];
    (step: READ Header, layer: READ Cache, widened: WRITE Widened)
    check "WIDEN_THREADS == {block}"
    bytes kv_block "sizeof({config}::Kv) * AttentionShape<{config}>::BLOCK_STRIDE"
    bytes widened "widened_bytes<{config}>()";

    /// Attention of a prompt's images to all of themselves, in the place of what they saw before.
    attend_spans => AttendSpans in "vision/attend_spans.cuh", [HEADS, NORMS, VALUES, EXACT];
    (
        step: READ Header, tokens: READ Tokens, images: READ Images, qkv: READ Rows, q: READ Queries,
        layer: READ Cache, out: WRITE Rows,
    )
    check "SPAN_THREADS == {block}"
    grid y "{config}::HEADS"
    bytes kv_block "sizeof({config}::Kv) * AttentionShape<{config}>::BLOCK_STRIDE";

    /// Norms and rotation of heads where positions have three axes, before what else is done.
    turn_heads => TurnHeads in "vision/turn_heads.cuh", [HEADS, NORMS, VALUES, EXACT, GRID, OF_PASS];
    (
        step: READ Header, images: READ Images, qkv: WRITE Rows, q_norm: READ Vector, k_norm: READ Vector,
        rotary: READ Rotary,
    )
    check "TURN_HEADS_THREADS == {block}";

    /// Norm and rotary of a prompt's queries, and the K/V write of its keys and values.
    attention_write => AttentionWrite in "attention/attention_write.cuh", [HEADS, NORMS, VALUES, EXACT];
    (
        step: READ Header, tokens: READ Tokens, qkv: WRITE Rows, q_norm: READ Vector, k_norm: READ Vector,
        rotary: READ Rotary, layer: WRITE Cache, q_out: WRITE Queries,
    )
    check "WRITE_THREADS == {block}"
    bytes kv_block "sizeof({config}::Kv) * AttentionShape<{config}>::BLOCK_STRIDE"
    bytes query_row "sizeof(AttentionShape<{config}>::Operand) * {config}::HEADS * AttentionShape<{config}>::HEAD_DIM_16";
}
