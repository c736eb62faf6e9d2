//! Kernels of attention over latents.

use crate::kernels::{
    Cache, Codes, Declared, Header, Rotary, RowScales, Rows, Tokens, Vector, constants, kernels, operands,
};

const SHAPE: &[Declared] = constants![
    HEADS: int, KEY_DIM: int, VALUE_DIM: int, LATENT: int, ROTATED: int, BLOCK_TOKENS: int, Kv: type,
    TERMS: int, ROWS: int, ROW_TILES: int,
];
/// How a context is divided.
const PARTS: &[Declared] = constants![SPLITS: int, TILE: int];
const QUERIES: &[Declared] = constants![
    ROTARY_HALVES: bool, NORM: HeadNorm, EPS: float, SCALE: float, GROWTH: float, ORIGINAL: int,
];
const HEADER: &[Declared] = constants![CONTEXT_BEFORE_WAIT: bool];
const STEP: &[Declared] = constants![TOKENS: int];

operands! {
    /// Queries that key matrices are multiplied into, each with its rotated part.
    AbsorbedQueries: "{config}::Kv";
}

kernels! {
    /// Norm and rotary, the cache write, and queries times key matrices.
    latent_queries => LatentQueries in "latent/latent_queries.cuh", [SHAPE, PARTS, HEADER, QUERIES];
    (
        step: READ Header, tokens: READ Tokens, q: READ Rows, kv: READ Rows, norm: READ Vector,
        rotary: READ Rotary, codes: READ Codes, row_scales: READ RowScales, layer: WRITE Cache,
        queries: WRITE AbsorbedQueries,
    )
    check "LATENT_QUERY_THREADS<{config}> == {block}"
    grid y "{config}::HEADS + 1"
    bytes kv_block "sizeof({config}::Kv) * LatentShape<{config}>::BLOCK_STRIDE"
    bytes query_row "latent_query_row<{config}>()";

    /// Scores, softmax and sums of latents, of parts of a context.
    latent_decode => LatentDecode in "latent/latent_decode.cuh",
        [SHAPE, PARTS, HEADER, STEP, constants![STAGES: int]];
    (
        step: READ Header, tokens: READ Tokens, queries: READ AbsorbedQueries, layer: READ Cache,
        partials: WRITE Rows,
    )
    check "LATENT_THREADS == {block} && latent_decode_shared_bytes<{config}>() <= {shared}"
    grid y "LatentTile<{config}>::GROUPS"
    grid z "{config}::SPLITS"
    bytes kv_block "sizeof({config}::Kv) * LatentShape<{config}>::BLOCK_STRIDE"
    bytes query_row "latent_query_row<{config}>()"
    bytes partials "latent_partials_bytes<{config}>()";

    /// The same of a decode step, on warpgroups.
    latent_decode_wgmma => LatentDecodeWgmma in "latent/latent_decode_wgmma.cuh", [SHAPE, PARTS, HEADER, STEP];
    (
        step: READ Header, tokens: READ Tokens, queries: READ AbsorbedQueries, layer: READ Cache,
        partials: WRITE Rows,
    )
    check "LATENT_WGMMA_THREADS == {block} && latent_decode_wgmma_shared_bytes<{config}>() <= {shared}"
    grid y "({config}::HEADS + 63) / 64"
    grid z "{config}::SPLITS"
    bytes kv_block "sizeof({config}::Kv) * LatentShape<{config}>::BLOCK_STRIDE"
    bytes query_row "latent_query_row<{config}>()"
    bytes partials "latent_partials_bytes<{config}>()";

    /// The same of a prompt, on warpgroups.
    latent_prefill_wgmma => LatentPrefillWgmma in "latent/latent_prefill_wgmma.cuh", [SHAPE, PARTS];
    (step: READ Header, queries: READ AbsorbedQueries, layer: READ Cache, partials: WRITE Rows)
    check "WGMMA_THREADS == {block} && latent_prefill_shared_bytes<{config}>() <= {shared}"
    bytes kv_block "sizeof({config}::Kv) * LatentShape<{config}>::BLOCK_STRIDE"
    bytes query_row "latent_query_row<{config}>()"
    bytes partials "latent_partials_bytes<{config}>()";

    /// The parts of contexts added up, times value matrices.
    latent_values => LatentValues in "latent/latent_values.cuh", [SHAPE, PARTS, HEADER];
    (
        step: READ Header, tokens: READ Tokens, partials: READ Rows, codes: READ Codes,
        row_scales: READ RowScales, out: WRITE Rows,
    )
    check "VALUES_THREADS == {block}"
    grid y "{config}::HEADS"
    bytes partials "latent_partials_bytes<{config}>()";
}
