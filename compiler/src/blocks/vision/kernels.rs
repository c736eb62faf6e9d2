//! The kernels of towers, and of a text model's rows of images.

use crate::kernels::{
    Codes, Declared, Header, Images, MATRIX, Rotary, RowScales, Rows, Scales, Staged, Vector, constants,
    kernels, operands,
};

/// Heads of patches.
const HEADS: &[Declared] = constants![HEADS: int, HEAD_DIM: int];
/// Norms of heads, and the pairs of a head that turn.
const TURNS: &[Declared] = constants![
    MERGE: int, PAIRS: PatchPairs, ROWS_FIRST: bool, Q_NORM: HeadNorm, Q_EPS: float, K_NORM: HeadNorm,
    K_EPS: float, EXACT: bool,
];
/// The norm of value heads.
const VALUES: &[Declared] = constants![optional V_EPS: float];

operands! {
    /// Heads of patches after norms and rotation, padded.
    Turned: "__half";
}

kernels! {
    /// Norms each patch's row, and merges the rows of a merge block channel by channel.
    norm_patches => NormPatches in "vision/norm_patches.cuh",
        [constants![WIDTH: int, NORM: PatchNorm, EPS: float, MERGED: int, BY_CHANNEL: bool]];
    (step: READ Header, x: READ Rows, weight: READ Vector, bias: READ Vector, out: WRITE Rows)
    check "PATCH_THREADS == {block}";

    /// Norms each patch's row by a layer norm, and stages it for products on tensor cores.
    stage_patches => StagePatches in "vision/stage_patches.cuh",
        [constants![WIDTH: int, CAPACITY: int, EPS: float]];
    (step: READ Header, x: READ Rows, weight: READ Vector, bias: READ Vector, out: WRITE Staged)
    check "StageShape<{config}>::THREADS == {block}"
    bytes staged "staged_bytes({config}::CAPACITY, {config}::WIDTH)";

    /// Adds what a table says of a patch's place.
    place_patches => PlacePatches in "vision/place_patches.cuh",
        [MATRIX, constants![HIDDEN: int, THREADS: int, SIDE: int, SQUARE: bool, MERGE: int]];
    (step: READ Header, codes: READ Codes, scales: READ Scales, row_scales: READ RowScales, x: WRITE Rows)
    check "{config}::THREADS == {block}"
    grid x "embed_blocks<{config}>()";

    /// Norms of heads, and rotation by the places of patches.
    turn_patches => TurnPatches in "vision/turn_patches.cuh", [HEADS, TURNS, VALUES];
    (
        step: READ Header, qkv: WRITE Rows, q_norm: READ Vector, k_norm: READ Vector, angles: READ Rotary,
        turned: WRITE Turned,
    )
    check "TURN_THREADS == {block}";

    /// Attention of patches to those of their segment.
    attend_patches => AttendPatches in "vision/attend_patches.cuh", [HEADS, constants![SCALE: float]];
    (step: READ Header, turned: READ Turned, out: WRITE Rows)
    check "ATTEND_THREADS<{config}> == {block} && attend_shared_bytes<{config}>() <= {shared}";

    /// The same on warpgroups.
    attend_patches_wgmma => AttendPatchesWgmma in "vision/attend_patches_wgmma.cuh",
        [HEADS, constants![SCALE: float]];
    (step: READ Header, turned: READ Turned, out: WRITE Rows)
    check "WGMMA_THREADS == {block} && attend_wgmma_shared_bytes<{config}>() <= {shared}";

    /// The same with f64 sums, over heads that were turned in place.
    attend_patches_exact => AttendPatchesExact in "vision/attend_patches_exact.cuh",
        [HEADS, constants![SCALE: float]];
    (step: READ Header, qkv: READ Rows, out: WRITE Rows)
    check "ATTEND_EXACT_THREADS == {block}"
    grid y "{config}::HEADS";

    /// The mean of a merge block's rows, standardised and normed.
    pool_patches => PoolPatches in "vision/pool_patches.cuh",
        [constants![WIDTH: int, MERGED: int, FACTOR: float, STANDARD: bool, EPS: float]];
    (step: READ Header, x: READ Rows, bias: READ Vector, scale: READ Vector, out: WRITE Rows)
    check "PATCH_THREADS == {block}";

    /// Rows of images in place of embeddings, or added to the residual stream.
    image_rows => ImageRows in "vision/image_rows.cuh",
        [constants![HIDDEN: int, THREADS: int, ADDS: bool, BEHIND: int]];
    (step: READ Header, images: READ Images, kept: READ Rows, x: WRITE Rows)
    check "{config}::THREADS == {block}"
    grid x "image_row_blocks<{config}>()";
}
