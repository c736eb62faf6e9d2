//! Matrix products, and the staging of their inputs.

use crate::kernels::{
    ARITHMETIC, Codes, Declared, EPILOGUE, FP8, GEMM, Header, LIMIT, MATRIX, NORM, Quantised, RING,
    RowScales, Rows, Scales, Staged, Vector, World, constants, kernels,
};

/// A streaming product.
const STREAM: &[Declared] =
    constants![OUTPUTS: int, INPUTS: int, MULTIPROCESSORS: int, LOOKAHEAD: int, PACE: int];
/// The narrow product beside one.
const BESIDE: &[Declared] = constants![
    BESIDE_FORMAT: Format, BESIDE_SCALES: ScaleForm, BESIDE_OUTPUTS: int, BESIDE_BLOCKS: int,
    BESIDE_STAGES: int, BESIDE_PACE: int, SPLIT: int,
];
/// A product on tensor cores whose work is cut evenly.
const EVEN: &[Declared] = constants![EVEN: int];
/// A product whose tiles go in pairs.
const PAIRS: &[Declared] = constants![SPLIT: int];

kernels! {
    /// A product of staged rows on tensor cores.
    gemm_mma => GemmMma in "products/gemm_mma.cuh", [MATRIX, GEMM, EPILOGUE, LIMIT];
    (
        step: READ Header, x: READ Staged, codes: READ Codes, scales: READ Scales, row_scales: READ RowScales,
        bias: READ Vector, up_bias: READ Vector, out: WRITE Rows,
    )
    check "GemmMma<{config}>::THREADS == {block} && GemmShape<{config}>::SHARED_BYTES <= {shared} && \
           GemmShape<{config}>::CLUSTER == {cluster}";

    /// The same on warpgroups.
    gemm_wgmma => GemmWgmma in "products/gemm_wgmma.cuh", [MATRIX, GEMM, EPILOGUE, LIMIT];
    (
        step: READ Header, x: READ Staged, codes: READ Codes, scales: READ Scales, row_scales: READ RowScales,
        bias: READ Vector, up_bias: READ Vector, out: WRITE Rows,
    )
    check "GemmWgmma<{config}>::THREADS == {block} && GemmShape<{config}>::SHARED_BYTES <= {shared} && \
           GemmShape<{config}>::CLUSTER == {cluster}";

    /// The same, its work cut evenly: blocks add what others computed of their rows.
    gemm_wgmma_even => GemmWgmmaEven in "products/gemm_wgmma.cuh", [MATRIX, GEMM, EPILOGUE, LIMIT, EVEN];
    (
        step: READ Header, x: READ Staged, codes: READ Codes, scales: READ Scales, row_scales: READ RowScales,
        bias: READ Vector, up_bias: READ Vector, out: WRITE Rows, parts: WRITE Rows,
    )
    check "GemmWgmma<{config}>::THREADS == {block} && GemmShape<{config}>::SHARED_BYTES <= {shared} && \
           GemmShape<{config}>::CLUSTER == {cluster}"
    grid x "{config}::EVEN"
    bytes parts "gemm_parts_bytes<{config}>()"
    body "gemm_wgmma<{config}>(step, x, codes, scales, row_scales, bias, up_bias, out, nullptr, nullptr, parts);";

    /// A product of quantised rows in fp8.
    gemm_fp8 => GemmFp8 in "products/gemm_fp8.cuh", [MATRIX, FP8, EPILOGUE, LIMIT];
    (
        step: READ Header, x: READ Quantised, codes: READ Codes, scales: READ Scales,
        row_scales: READ RowScales, bias: READ Vector, up_bias: READ Vector, out: WRITE Rows,
    )
    check "GemmFp8<{config}>::THREADS == {block} && GemmFp8<{config}>::SHARED_BYTES <= {shared}";

    /// Quantises a product's input, normed if a norm precedes it, to e4m3, and stages it in f16 if a
    /// product of it is in f16.
    quantise => Quantise in "products/quantise.cuh",
        [NORM, LIMIT, constants![WIDTH: int, CAPACITY: int, HALVES: bool]];
    (step: READ Header, x: READ Rows, norm: READ Vector, out: WRITE Quantised, halves: WRITE Staged)
    check "StageShape<{config}>::THREADS == {block}"
    bytes quantised "quantised_bytes({config}::CAPACITY, {config}::WIDTH)"
    bytes staged "({config}::HALVES ? staged_bytes({config}::CAPACITY, {config}::WIDTH) : 0)";

    /// Stages a product's input, normed if a norm precedes it, as f16 in the tensor cores' order.
    stage => Stage in "products/stage.cuh", [NORM, LIMIT, constants![WIDTH: int, CAPACITY: int]];
    (step: READ Header, x: READ Rows, norm: READ Vector, out: WRITE Staged)
    check "StageShape<{config}>::THREADS == {block}"
    bytes staged "staged_bytes({config}::CAPACITY, {config}::WIDTH)";

    /// A product of few rows that streams its weights.
    stream_product => StreamProduct in "products/stream.cuh",
        [MATRIX, ARITHMETIC, NORM, EPILOGUE, LIMIT, RING, STREAM];
    (
        step: READ Header, x: READ Rows, norm: READ Vector, codes: READ Codes, scales: READ Scales,
        row_scales: READ RowScales, bias: READ Vector, up_bias: READ Vector, out: WRITE Rows,
    )
    check "StreamShape<{config}>::THREADS == {block} && StreamShape<{config}>::SHARED <= {shared}"
    grid x "{config}::BLOCKS";

    /// The same of eight rows, two tiles of weights at a time.
    stream_pairs => StreamPairs in "products/stream_pairs.cuh",
        [MATRIX, ARITHMETIC, NORM, EPILOGUE, LIMIT, RING, STREAM, PAIRS];
    (
        step: READ Header, x: READ Rows, norm: READ Vector, codes: READ Codes, scales: READ Scales,
        row_scales: READ RowScales, bias: READ Vector, up_bias: READ Vector, out: WRITE Rows,
    )
    check "StreamShape<{config}>::THREADS == {block} && StreamShape<{config}>::SHARED <= {shared} && \
           StreamShape<{config}>::SPLIT == {cluster} && StreamShape<{config}>::PAIRED"
    grid x "{config}::BLOCKS";

    /// Two products of the same rows; the narrow second one takes a few of the blocks.
    stream_beside => StreamBeside in "products/stream.cuh",
        [MATRIX, ARITHMETIC, NORM, EPILOGUE, LIMIT, RING, STREAM, BESIDE];
    (
        step: READ Header, x: READ Rows, norm: READ Vector, codes: READ Codes, scales: READ Scales,
        row_scales: READ RowScales, beside_codes: READ Codes, beside_scales: READ Scales,
        beside_row_scales: READ RowScales, out: WRITE Rows, beside_out: WRITE Rows,
    )
    check "StreamShape<{config}>::THREADS == {block} && StreamShape<{config}Beside>::THREADS == {block}"
    check "StreamShape<{config}>::SHARED <= {shared} && StreamShape<{config}Beside>::SHARED <= {shared}"
    grid x "{config}::BLOCKS + {config}::BESIDE_BLOCKS"
    declare "struct {config}Beside : {config} {
    static constexpr Format FORMAT = {config}::BESIDE_FORMAT;
    static constexpr ScaleForm SCALES = {config}::BESIDE_SCALES;
    static constexpr int OUTPUTS = {config}::BESIDE_OUTPUTS, BLOCKS = {config}::BESIDE_BLOCKS, STAGES = {config}::BESIDE_STAGES;
    static constexpr int PACE = {config}::BESIDE_PACE, LOOKAHEAD = 0, SPLIT = 0;
};
"
    body "const int block = blockIdx.x;
    if (block < {config}::BLOCKS) {
        stream_product<{config}>(step, x, norm, codes, scales, row_scales, nullptr, nullptr, out, block);
    } else {
        stream_product<{config}Beside>(step, x, norm, beside_codes, beside_scales, beside_row_scales, nullptr, nullptr, beside_out, block - {config}::BLOCKS);
    }";

    + sums {
        /// A streaming product of which each rank has a part.
        stream_sum => StreamSum of StreamProduct in "products/stream_sum.cuh", "OUTPUTS";
        (world: WRITE World)
        body "stream_product<{config}, StreamSum<{config}>>(step, x, norm, codes, scales, row_scales, bias, up_bias, out, blockIdx.x, world);";

        /// A product on tensor cores of which each rank has a part.
        gemm_mma_sum => GemmMmaSum of GemmMma in "products/gemm_mma.cuh", "OUTPUTS";
        (world: WRITE World, own: WRITE Rows)
        body "gemm_mma<{config}>(step, x, codes, scales, row_scales, bias, up_bias, out, world, own);";

        /// The same on warpgroups.
        gemm_wgmma_sum => GemmWgmmaSum of GemmWgmma in "products/gemm_wgmma.cuh", "OUTPUTS";
        (world: WRITE World, own: WRITE Rows)
        body "gemm_wgmma<{config}>(step, x, codes, scales, row_scales, bias, up_bias, out, world, own);";
    }
}
