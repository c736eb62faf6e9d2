//! Kernels of mixtures of experts.

use crate::kernels::{
    Codes, Config, Following, Header, Lists, Products, RowScales, Rows, Scales, Staged, Vector, kernels,
};

kernels! {
    /// The router's logits, and beside them the shared expert's gate and up.
    route => Route in "experts/route.cuh", Config::Plain;
    (
        step: READ Header, x: READ Rows, norm: READ Vector, router: READ Codes, codes: READ Codes,
        scales: READ Scales, row_scales: READ RowScales, logits: WRITE Rows, scale: WRITE Rows, inner: WRITE Rows,
        arriving: WRITE Rows,
    )
    check "RouteShape<{config}>::THREADS == {block} && RouteShape<{config}>::SHARED <= {shared}"
    check "{config}::BLOCKS == 0 || {config}::EXPERTS % TILE_ROWS == 0"
        or "the row behind the router's has a tile of its own"
    grid x "RouteShape<{config}>::GRID"
    body "constexpr int SCALE_ROW_AT = {config}::EXPERTS / TILE_ROWS * ceil_div({config}::INPUTS, Unit<{config}::ROUTER>::COLUMNS) * UNIT_BYTES;
    route<{config}>(step, x, norm, router, static_cast<const char*>(router) + SCALE_ROW_AT, codes, scales, row_scales, logits, scale, inner, arriving);";

    /// The router's logits for many tokens, on tensor cores.
    route_batch => RouteBatch in "experts/route_batch.cuh", Config::Plain;
    (step: READ Header, x: READ Rows, norm: READ Vector, router: READ Codes, logits: WRITE Rows)
    check "RouteBatchShape<{config}>::THREADS == {block} && RouteBatchShape<{config}>::SHARED <= {shared}"
    grid x "{config}::BLOCKS";

    /// Gate and up of the chosen experts, then their down products, handed from block to block.
    experts_stream => ExpertsStream in "experts/experts_stream.cuh", Config::Plain;
    (
        step: READ Header, norm: READ Vector, logits: READ Rows, shared_inner: READ Rows, scale: READ Rows,
        codes: READ Codes, scales: READ Scales, row_scales: READ RowScales, down_codes: READ Codes,
        down_scales: READ Scales, down_row_scales: READ RowScales, shared_codes: READ Codes,
        shared_scales: READ Scales, shared_row_scales: READ RowScales, following: READ Following,
        following_end: READ Following, inner: WRITE Rows, residual: WRITE Rows,
    )
    check "{config}Both::THREADS == {block} && {config}Both::SHARED <= {shared}"
    grid x "{config}::BLOCKS"
    declare "struct {config}Down : {config} {
    static constexpr Format FORMAT = {config}::DOWN_FORMAT;
    static constexpr ScaleForm SCALES = {config}::DOWN_SCALES;
    static constexpr int OUTPUTS = {config}::INPUTS, STAGES = {config}::DOWN_STAGES, STAGE_BYTES = {config}::DOWN_STAGE_BYTES;
};
using {config}Both = ExpertsStream<{config}, {config}Down>;
"
    body "{config}Both::run(step, norm, logits, shared_inner, scale, codes, scales, row_scales, down_codes, down_scales, down_row_scales, shared_codes, shared_scales, shared_row_scales, following, following_end, inner, residual);";

    /// Gate and up of the chosen experts.
    experts_stream_up => ExpertsStreamUp in "experts/experts_stream_up.cuh", Config::Plain;
    (
        step: READ Header, x: READ Rows, norm: READ Vector, logits: READ Rows, codes: READ Codes,
        scales: READ Scales, row_scales: READ RowScales, inner: WRITE Rows, routing: WRITE Rows,
    )
    check "UpShape<{config}>::THREADS == {block} && UpShape<{config}>::SHARED <= {shared}"
    grid x "{config}::BLOCKS";

    /// The chosen experts' down products, and the shared expert's, added to the residual stream.
    experts_stream_down => ExpertsStreamDown in "experts/experts_stream_down.cuh", Config::Plain;
    (
        step: READ Header, inner: READ Rows, routing: READ Rows, shared_inner: READ Rows, scale: READ Rows,
        codes: READ Codes, scales: READ Scales, row_scales: READ RowScales, shared_codes: READ Codes,
        shared_scales: READ Scales, shared_row_scales: READ RowScales, residual: WRITE Rows,
    )
    check "DownShape<{config}>::THREADS == {block} && DownShape<{config}>::SHARED <= {shared}"
    grid x "{config}::BLOCKS";

    /// Counts pairs of token and expert, and sorts them if one chunk holds all.
    experts_sort => ExpertsSort in "experts/experts_sort.cuh", Config::Plain;
    (step: READ Header, logits: READ Rows, lists: WRITE Lists)
    check "SortShape<{config}>::THREADS == {block}"
    grid x "SortShape<{config}>::BLOCKS"
    bytes lists "ListsOf<{config}>::BYTES";

    /// Writes pairs to their places in the order of experts.
    experts_place => ExpertsPlace in "experts/experts_sort.cuh", Config::Plain;
    (step: READ Header, lists: WRITE Lists)
    check "SortShape<{config}>::PLACE_THREADS == {block}"
    grid x "SortShape<{config}>::PLACE_BLOCKS"
    bytes lists "ListsOf<{config}>::BYTES";

    /// Stages inner rows of pairs for the down products.
    experts_stage => ExpertsStage in "experts/experts_stage.cuh", Config::Plain;
    (lists: READ Lists, x: READ Rows, out: WRITE Staged)
    check "EXPERTS_STAGE_THREADS == {block}"
    grid x "ceil_div({config}::CAPACITY, EXPERTS_STAGE_THREADS / 32)"
    bytes lists "ListsOf<{config}>::BYTES"
    bytes staged "staged_bytes({config}::CAPACITY, {config}::WIDTH)";

    /// Products of each expert's rows on tensor cores.
    experts_gemm_mma => ExpertsGemmMma in "experts/experts_gemm_mma.cuh", Config::Plain;
    (
        lists: READ Lists, x: READ Staged, codes: READ Codes, scales: READ Scales, row_scales: READ RowScales,
        out: WRITE Products,
    )
    check "ExpertsMma<{config}>::THREADS == {block} && ExpertShape<{config}>::SHARED_BYTES <= {shared} && \
           ExpertShape<{config}>::CLUSTER == {cluster}"
    bytes lists "ListsOf<{config}>::BYTES"
    bytes products "products_bytes<{config}, {config}::OUTPUTS>()";

    /// The same on warpgroups.
    experts_gemm_wgmma => ExpertsGemmWgmma in "experts/experts_gemm_wgmma.cuh", Config::Plain;
    (
        lists: READ Lists, x: READ Staged, codes: READ Codes, scales: READ Scales, row_scales: READ RowScales,
        out: WRITE Products,
    )
    check "ExpertsWgmma<{config}>::THREADS == {block} && ExpertShape<{config}>::SHARED_BYTES <= {shared} && \
           ExpertShape<{config}>::CLUSTER == {cluster}"
    bytes lists "ListsOf<{config}>::BYTES"
    bytes products "products_bytes<{config}, {config}::OUTPUTS>()";

    /// Sums the results of each token's experts.
    experts_batch_combine => ExpertsBatchCombine in "experts/experts_batch_combine.cuh", Config::Plain;
    (
        step: READ Header, lists: READ Lists, products: READ Products, shared: READ Rows, logits: READ Rows,
        out: WRITE Rows,
    )
    check "CombineShape<{config}>::THREADS == {block}"
    grid y "CombineShape<{config}>::BLOCKS"
    bytes lists "ListsOf<{config}>::BYTES"
    bytes products "products_bytes<{config}, {config}::HIDDEN>()"
    body "experts_combine<{config}>(step, lists, products, shared, logits + {config}::EXPERTS, out);";
}
