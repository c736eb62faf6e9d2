//! Kernels of mixtures of experts.

use crate::kernels::{
    ARITHMETIC, Codes, Declared, EPILOGUE, FACTOR, FP8, Following, GEMM, Header, LIMIT, Lists, MATRIX, NORM,
    Products, Quantised, REPLACES, RING, RowScales, Rows, Scales, Staged, Vector, World, constants, kernels,
};

const ROUTER: &[Declared] = constants![
    INPUTS: int, ROWS: int, ROUTER: Format, SCALE: Format, EXPERTS: int, ROUTER_BLOCKS: int,
    ARRIVING: int, BLOCKS: int, CONSUMER_WARPS: int,
];
/// The shared expert's gate and up beside the router's product.
const ROUTE_SHARED: &[Declared] = constants![
    optional FORMAT: Format, SCALES: ScaleForm, OUTPUTS: int, EPILOGUE: Epilogue,
    ACTIVATION: Activation, BIAS: bool, STAGES: int, STAGE_BYTES: int, MULTIPROCESSORS: int,
    EVICT_FIRST: bool, LOOKAHEAD: int, PACE: int,
];
const ROUTE_BATCH: &[Declared] =
    constants![OUTPUTS: int, INPUTS: int, TOKENS: int, TILES: int, K_WARPS: int, BLOCKS: int];
const UP: &[Declared] = constants![
    EXPERTS: int, ACTIVE: int, RENORMALISE: bool, WIDTH: int, INPUTS: int, NORM: Norm, EPS: float,
    ACTIVATION: Activation,
];
/// Where experts have no gates.
const UNGATED: &[Declared] = constants![optional UNGATED: bool];
const DOWN: &[Declared] = constants![EXPERTS: int, ACTIVE: int, WIDTH: int, OUTPUTS: int];
/// The shared expert's down product.
const SHARED: &[Declared] = constants![SHARED_FORMAT: Format, SHARED_SCALES: ScaleForm, SHARED_WIDTH: int];
const BOTH: &[Declared] = constants![
    DOWN_FORMAT: Format, DOWN_SCALES: ScaleForm, DOWN_STAGES: int, DOWN_STAGE_BYTES: int, AHEAD: int,
];
/// Experts that a router chooses from, where `EXPERTS` are a rank's.
const SHARED_OUT: &[Declared] = constants![optional ROUTED: int];
/// What rows of the router hold beside keys: scores, scales.
const SCORES: &[Declared] = constants![optional SCORE_SCALE: float, EXPERT_SCALES: bool];
/// The same where rows are made.
const SCALED: &[Declared] = constants![SCORED: bool, EXPERT_SCALES: bool];
/// `ListsOf` a kernel.
const LISTS: &[Declared] = constants![EXPERTS: int, ACTIVE: int, STEP_ROWS: int, TOKENS: int];
const SORT: &[Declared] = constants![LOGITS: int, RENORMALISE: bool];
const GROUPED: &[Declared] =
    constants![EXPERTS: int, ACTIVE: int, STEP_ROWS: int, GATHER: bool, X_ROWS: int, NARROW: bool];
/// Rings of a grouped product's warps.
const RINGS: &[Declared] = constants![
    OUTPUTS: int, INPUTS: int, CAPACITY: int, TOKENS: int, STAGES: int, STAGE_BYTES: int,
    CONSUMER_WARPS: int, BLOCKS: int,
];
const COMBINE: &[Declared] =
    constants![HIDDEN: int, NARROW: bool, SHARED: bool, SHARED_GATE: bool, GATE_STRIDE: int];

/// Both products of one kernel, the second with the down matrix in place of the first; `$sum` is what makes
/// its sum over ranks.
macro_rules! both {
    ($sum:literal) => {
        concat!(
            "struct {config}Down : {config} {
    static constexpr Format FORMAT = {config}::DOWN_FORMAT;
    static constexpr ScaleForm SCALES = {config}::DOWN_SCALES;
    static constexpr int OUTPUTS = {config}::INPUTS, STAGES = {config}::DOWN_STAGES, STAGE_BYTES = {config}::DOWN_STAGE_BYTES;
};
using {config}Both = ExpertsStream<{config}, {config}Down",
            $sum,
            ">;\n"
        )
    };
}
const BOTH_PRODUCTS: &str = both!("");
const BOTH_AND_SUM: &str = both!(", DownSumOfRanks<{config}Down>");

kernels! {
    /// The router's logits, and beside them the shared expert's gate and up.
    route => Route in "experts/route.cuh", [ARITHMETIC, NORM, LIMIT, ROUTER, FACTOR, ROUTE_SHARED];
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

    /// The router's keys and scores.
    route_scores => RouteScores in "experts/route.cuh", [ARITHMETIC, NORM, LIMIT, ROUTER, FACTOR];
    (
        step: READ Header, x: READ Rows, norm: READ Vector, router: READ Codes, logits: WRITE Rows,
        arriving: WRITE Rows, correction: READ Vector,
    )
    check "RouteShape<{config}>::THREADS == {block} && RouteShape<{config}>::SHARED <= {shared}"
    grid x "RouteShape<{config}>::GRID"
    body "route<{config}, true>(step, x, norm, router, nullptr, nullptr, nullptr, nullptr, logits, nullptr, nullptr, arriving, correction);";

    /// The router's keys, scores if it makes such, and the scales of its experts.
    route_scales => RouteScales in "experts/route.cuh", [ARITHMETIC, NORM, LIMIT, ROUTER, FACTOR, SCALED];
    (
        step: READ Header, x: READ Rows, norm: READ Vector, router: READ Codes, logits: WRITE Rows,
        arriving: WRITE Rows, correction: READ Vector, scales: READ Vector,
    )
    check "RouteShape<{config}>::THREADS == {block} && RouteShape<{config}>::SHARED <= {shared}"
    grid x "RouteShape<{config}>::GRID"
    body "route<{config}, {config}::SCORED>(step, x, norm, router, nullptr, nullptr, nullptr, nullptr, logits, nullptr, nullptr, arriving, correction, scales);";

    /// The router's logits for many tokens, on tensor cores.
    route_batch => RouteBatch in "experts/route_batch.cuh", [NORM, LIMIT, ROUTE_BATCH, FACTOR];
    (step: READ Header, x: READ Rows, norm: READ Vector, router: READ Codes, logits: WRITE Rows)
    check "RouteBatchShape<{config}>::THREADS == {block} && RouteBatchShape<{config}>::SHARED <= {shared}"
    grid x "{config}::BLOCKS";

    /// The router's keys and scores for many tokens, on tensor cores.
    route_batch_scores => RouteBatchScores in "experts/route_batch.cuh", [NORM, LIMIT, ROUTE_BATCH, FACTOR];
    (
        step: READ Header, x: READ Rows, norm: READ Vector, router: READ Codes, logits: WRITE Rows,
        correction: READ Vector,
    )
    check "RouteBatchShape<{config}>::THREADS == {block} && RouteBatchShape<{config}>::SHARED <= {shared}"
    grid x "{config}::BLOCKS"
    body "route_batch<{config}, true>(step, x, norm, router, logits, correction);";

    /// The same rows as of route_scales, for many tokens, on tensor cores.
    route_batch_scales => RouteBatchScales in "experts/route_batch.cuh",
        [NORM, LIMIT, ROUTE_BATCH, FACTOR, SCALED];
    (
        step: READ Header, x: READ Rows, norm: READ Vector, router: READ Codes, logits: WRITE Rows,
        correction: READ Vector, scales: READ Vector,
    )
    check "RouteBatchShape<{config}>::THREADS == {block} && RouteBatchShape<{config}>::SHARED <= {shared}"
    grid x "{config}::BLOCKS"
    body "route_batch<{config}, {config}::SCORED>(step, x, norm, router, logits, correction, scales);";

    /// Gate and up of the chosen experts, then their down products, handed from block to block.
    experts_stream => ExpertsStream in "experts/experts_stream.cuh",
        [MATRIX, ARITHMETIC, UP, UNGATED, SCORES, SHARED_OUT, SHARED, LIMIT, RING, BOTH];
    (
        step: READ Header, norm: READ Vector, logits: READ Rows, shared_inner: READ Rows, scale: READ Rows,
        codes: READ Codes, scales: READ Scales, row_scales: READ RowScales, down_codes: READ Codes,
        down_scales: READ Scales, down_row_scales: READ RowScales, shared_codes: READ Codes,
        shared_scales: READ Scales, shared_row_scales: READ RowScales, following: READ Following,
        following_end: READ Following, inner: WRITE Rows, residual: WRITE Rows,
    )
    check "{config}Both::THREADS == {block} && {config}Both::SHARED <= {shared}"
    grid x "{config}::BLOCKS"
    declare BOTH_PRODUCTS
    body "{config}Both::run(step, norm, logits, shared_inner, scale, codes, scales, row_scales, down_codes, down_scales, down_row_scales, shared_codes, shared_scales, shared_row_scales, following, following_end, inner, residual);";

    /// Gate and up of the chosen experts.
    experts_stream_up => ExpertsStreamUp in "experts/experts_stream_up.cuh",
        [MATRIX, ARITHMETIC, UP, UNGATED, SCORES, LIMIT, RING];
    (
        step: READ Header, x: READ Rows, norm: READ Vector, logits: READ Rows, codes: READ Codes,
        scales: READ Scales, row_scales: READ RowScales, inner: WRITE Rows, routing: WRITE Rows,
    )
    check "UpShape<{config}>::THREADS == {block} && UpShape<{config}>::SHARED <= {shared}"
    grid x "{config}::BLOCKS";

    /// The same of the experts that a rank holds.
    experts_stream_up_part => ExpertsStreamUpPart in "experts/experts_stream_up.cuh",
        [MATRIX, ARITHMETIC, UP, UNGATED, SCORES, SHARED_OUT, LIMIT, RING];
    (
        step: READ Header, x: READ Rows, norm: READ Vector, logits: READ Rows, codes: READ Codes,
        scales: READ Scales, row_scales: READ RowScales, inner: WRITE Rows, routing: WRITE Rows,
        world: READ World,
    )
    check "UpShape<{config}>::THREADS == {block} && UpShape<{config}>::SHARED <= {shared}"
    grid x "{config}::BLOCKS"
    body "experts_stream_up<{config}>(step, x, norm, logits, codes, scales, row_scales, inner, routing, world);";

    /// The chosen experts' down products, and the shared expert's, added to the residual stream.
    experts_stream_down => ExpertsStreamDown in "experts/experts_stream_down.cuh",
        [MATRIX, ARITHMETIC, DOWN, REPLACES, SHARED_OUT, SHARED, LIMIT, RING];
    (
        step: READ Header, inner: READ Rows, routing: READ Rows, shared_inner: READ Rows, scale: READ Rows,
        codes: READ Codes, scales: READ Scales, row_scales: READ RowScales, shared_codes: READ Codes,
        shared_scales: READ Scales, shared_row_scales: READ RowScales, residual: WRITE Rows,
    )
    check "DownShape<{config}>::THREADS == {block} && DownShape<{config}>::SHARED <= {shared}"
    grid x "{config}::BLOCKS";

    /// Counts pairs of token and expert, and sorts them if one chunk holds all.
    experts_sort => ExpertsSort in "experts/experts_sort.cuh", [LISTS, LIMIT, SORT, SCORES];
    (step: READ Header, logits: READ Rows, lists: WRITE Lists)
    check "SortShape<{config}>::THREADS == {block}"
    grid x "SortShape<{config}>::BLOCKS"
    bytes lists "ListsOf<{config}>::BYTES";

    /// The same of the experts that a rank holds.
    experts_sort_part => ExpertsSortPart in "experts/experts_sort.cuh", [LISTS, SHARED_OUT, LIMIT, SORT, SCORES];
    (step: READ Header, logits: READ Rows, lists: WRITE Lists, world: READ World)
    check "SortShape<{config}>::THREADS == {block}"
    grid x "SortShape<{config}>::BLOCKS"
    bytes lists "ListsOf<{config}>::BYTES"
    body "experts_sort<{config}>(step, logits, lists, world);";

    /// Writes pairs to their places in the order of experts.
    experts_place => ExpertsPlace in "experts/experts_sort.cuh", [LISTS, SHARED_OUT, LIMIT, SORT, SCORES];
    (step: READ Header, lists: WRITE Lists)
    check "SortShape<{config}>::PLACE_THREADS == {block}"
    grid x "SortShape<{config}>::PLACE_BLOCKS"
    bytes lists "ListsOf<{config}>::BYTES";

    /// Stages inner rows of pairs for the down products.
    experts_stage => ExpertsStage in "experts/experts_stage.cuh",
        [LISTS, constants![WIDTH: int, CAPACITY: int]];
    (lists: READ Lists, x: READ Rows, out: WRITE Staged)
    check "EXPERTS_STAGE_THREADS == {block}"
    grid x "ceil_div({config}::CAPACITY, EXPERTS_STAGE_THREADS / 32)"
    bytes lists "ListsOf<{config}>::BYTES"
    bytes staged "staged_bytes({config}::CAPACITY, {config}::WIDTH)";

    /// Products of each expert's rows on tensor cores.
    experts_gemm_mma => ExpertsGemmMma in "experts/experts_gemm_mma.cuh",
        [MATRIX, GEMM, EPILOGUE, LIMIT, GROUPED];
    (
        lists: READ Lists, x: READ Staged, codes: READ Codes, scales: READ Scales, row_scales: READ RowScales,
        out: WRITE Products,
    )
    check "ExpertsMma<{config}>::THREADS == {block} && ExpertShape<{config}>::SHARED_BYTES <= {shared} && \
           ExpertShape<{config}>::CLUSTER == {cluster}"
    bytes lists "ListsOf<{config}>::BYTES"
    bytes products "products_bytes<{config}, {config}::OUTPUTS>()";

    /// The same on warpgroups.
    experts_gemm_wgmma => ExpertsGemmWgmma in "experts/experts_gemm_wgmma.cuh",
        [MATRIX, GEMM, EPILOGUE, LIMIT, GROUPED];
    (
        lists: READ Lists, x: READ Staged, codes: READ Codes, scales: READ Scales, row_scales: READ RowScales,
        out: WRITE Products,
    )
    check "ExpertsWgmma<{config}>::THREADS == {block} && ExpertShape<{config}>::SHARED_BYTES <= {shared} && \
           ExpertShape<{config}>::CLUSTER == {cluster}"
    bytes lists "ListsOf<{config}>::BYTES"
    bytes products "products_bytes<{config}, {config}::OUTPUTS>()";

    /// The same by warps with rings of their own, of few tokens.
    experts_rings => ExpertsRings in "experts/experts_rings.cuh", [MATRIX, RINGS, EPILOGUE, GROUPED];
    (
        lists: READ Lists, x: READ Staged, codes: READ Codes, scales: READ Scales, row_scales: READ RowScales,
        out: WRITE Products,
    )
    check "RingsShape<{config}>::THREADS == {block} && RingsShape<{config}>::SHARED <= {shared}"
    grid x "{config}::BLOCKS"
    bytes lists "ListsOf<{config}>::BYTES"
    bytes products "products_bytes<{config}, {config}::OUTPUTS>()";

    /// The same of inner rows, which it rounds.
    experts_rings_down => ExpertsRingsDown in "experts/experts_rings.cuh", [MATRIX, RINGS, EPILOGUE, GROUPED];
    (
        lists: READ Lists, x: READ Products, codes: READ Codes, scales: READ Scales,
        row_scales: READ RowScales, out: WRITE Products,
    )
    check "RingsShape<{config}>::THREADS == {block} && RingsShape<{config}>::SHARED <= {shared}"
    grid x "{config}::BLOCKS"
    bytes lists "ListsOf<{config}>::BYTES"
    bytes products "products_bytes<{config}, {config}::OUTPUTS>()"
    body "experts_rings<{config}>(lists, x, codes, scales, row_scales, out);";

    /// Products of each expert's quantised rows in fp8.
    experts_gemm_fp8 => ExpertsGemmFp8 in "experts/experts_gemm_fp8.cuh",
        [MATRIX, FP8, EPILOGUE, LIMIT, GROUPED, constants![TOKENS: int]];
    (
        lists: READ Lists, x: READ Quantised, codes: READ Codes, scales: READ Scales,
        row_scales: READ RowScales, out: WRITE Products,
    )
    check "ExpertsFp8<{config}>::THREADS == {block} && ExpertsFp8<{config}>::SHARED_BYTES <= {shared}"
    bytes lists "ListsOf<{config}>::BYTES"
    bytes products "experts_fp8_bytes<{config}>()";

    /// Sums the results of each token's experts.
    experts_batch_combine => ExpertsBatchCombine in "experts/experts_batch_combine.cuh",
        [LISTS, SHARED_OUT, LIMIT, COMBINE, REPLACES];
    (
        step: READ Header, lists: READ Lists, products: READ Products, shared: READ Rows, logits: READ Rows,
        out: WRITE Rows,
    )
    check "CombineShape<{config}>::THREADS == {block}"
    grid y "CombineShape<{config}>::BLOCKS"
    bytes lists "ListsOf<{config}>::BYTES"
    bytes products "products_bytes<{config}, {config}::HIDDEN>()"
    body "experts_combine<{config}>(step, lists, products, shared, logits + {config}::EXPERTS, out);";

    + sums {
        /// Both products of the chosen experts, of which each rank has a part.
        experts_stream_sum => ExpertsStreamSum of ExpertsStream in "experts/experts_stream_down_sum.cuh", "INPUTS";
        (world: WRITE World)
        declare BOTH_AND_SUM
        body "{config}Both::run(step, norm, logits, shared_inner, scale, codes, scales, row_scales, down_codes, down_scales, down_row_scales, shared_codes, shared_scales, shared_row_scales, following, following_end, inner, residual, world);";

        /// The chosen experts' down products, of which each rank has a part.
        experts_stream_down_sum => ExpertsStreamDownSum of ExpertsStreamDown
            in "experts/experts_stream_down_sum.cuh", "OUTPUTS";
        (world: WRITE World)
        body "experts_stream_down<{config}, DownSumOfRanks<{config}>>(step, inner, routing, shared_inner, scale, codes, scales, row_scales, shared_codes, shared_scales, shared_row_scales, residual, world);";

        /// The results of each token's experts, of which each rank has a part.
        experts_batch_combine_sum => ExpertsBatchCombineSum of ExpertsBatchCombine
            in "experts/experts_batch_combine_sum.cuh", "HIDDEN";
        (world: WRITE World)
        body "experts_combine<{config}, CombineSum<{config}>>(step, lists, products, shared, logits + {config}::EXPERTS, out, world);";
    }
}
