//! Attention's kernels.

use crate::kernels::{Cache, Config, Counters, Header, Rotary, Rows, Tokens, Vector, kernels, operands};

const DEFAULTS: Config = Config::Inherits("AttentionDefaults");

operands! {
    /// Queries after norm and rotary.
    Queries: "AttentionShape<{config}>::Operand";
}

kernels! {
    /// Norm, rotary, K/V write and attention of a decode step.
    attention_decode => AttentionDecode in "attention/attention_decode.cuh", DEFAULTS;
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

    /// Attention with f64 sums, over queries that `attention_write` has rotated in place.
    attention_exact => AttentionExact in "attention/attention_exact.cuh", DEFAULTS;
    (step: READ Header, tokens: READ Tokens, qkv: READ Rows, layer: READ Cache, out: WRITE Rows)
    check "EXACT_THREADS == {block} && exact_shared_bytes<{config}>() <= {shared}"
    grid y "{config}::HEADS"
    bytes kv_block "sizeof({config}::Kv) * AttentionShape<{config}>::BLOCK_STRIDE";

    /// Attention of a prompt; `qkv` also holds the gates, if there are any.
    attention_prefill => AttentionPrefill in "attention/attention_prefill.cuh", DEFAULTS;
    (step: READ Header, q: READ Queries, layer: READ Cache, out: WRITE Rows, qkv: READ Rows)
    check "PrefillShape<{config}>::THREADS == {block} && prefill_shared_bytes<{config}>() <= {shared}"
    bytes kv_block "sizeof({config}::Kv) * AttentionShape<{config}>::BLOCK_STRIDE";

    /// The same on warpgroups.
    attention_prefill_wgmma => AttentionPrefillWgmma in "attention/attention_prefill_wgmma.cuh", DEFAULTS;
    (step: READ Header, q: READ Queries, layer: READ Cache, out: WRITE Rows, qkv: READ Rows)
    check "WGMMA_THREADS == {block} && wgmma_prefill_shared_bytes<{config}>() <= {shared}"
    bytes kv_block "sizeof({config}::Kv) * AttentionShape<{config}>::BLOCK_STRIDE";

    /// Norm and rotary of a prompt's queries, and the K/V write of its keys and values.
    attention_write => AttentionWrite in "attention/attention_write.cuh", DEFAULTS;
    (
        step: READ Header, tokens: READ Tokens, qkv: WRITE Rows, q_norm: READ Vector, k_norm: READ Vector,
        rotary: READ Rotary, layer: WRITE Cache, q_out: WRITE Queries,
    )
    check "WRITE_THREADS == {block}"
    bytes kv_block "sizeof({config}::Kv) * AttentionShape<{config}>::BLOCK_STRIDE"
    bytes query_row "sizeof(AttentionShape<{config}>::Operand) * {config}::HEADS * AttentionShape<{config}>::HEAD_DIM_16";
}
