//! CPU kernels: const-generic over formats and dimensions, compiled for one instruction set.
//!
//! A generated layer [`Stack`] calls *phase functions* (such as [`norm_linear`] and [`attention()`]); a
//! [`Model`] owns the stack and the [`Team`] whose lanes call it. All lanes call the same phases in the same
//! order with the same arguments; each phase splits its work over the lanes and ends with a barrier.
//!
//! A row's results do not depend on the other rows of a step, on the split of a prompt into prefill chunks,
//! or on the number of lanes.

mod arrays;
mod attention;
mod batch;
mod codes;
mod decoded;
mod delta;
mod draft;
mod epilogue;
mod experts;
mod format;
mod gather;
mod integers;
mod keeps;
mod kept;
mod kv;
mod kv_offload;
mod latent;
#[cfg(test)]
mod layout;
mod linear;
mod loader;
mod mamba2;
mod mapped;
mod memory;
mod model;
mod norm;
mod normalise;
mod outputs;
mod pack;
mod recurrent;
mod rotary;
mod rounded;
mod rows;
mod sample;
mod shape;
mod simd;
mod static_scales;
mod team;
mod times;
mod vision;
mod whole;
mod windows;

pub use attention::{
    AttentionScratch, BareNorm, HeadNorm, Seen, SegmentScratch, WholeBlock, WholeImages, attention,
    attention_within, keep_context, norm_rows,
};
pub use batch::Batch;
pub use codes::{Fp8Block128, Fp8Tensor, Nvfp4Groups};
pub use decoded::{Bf16, Decoded, F16, F32};
pub use delta::{DeltaScratch, delta};
#[cfg(feature = "forced-acceptance")]
pub use draft::Forced;
pub use draft::{
    Acceptance, Behind, BlockDrafting, BlockPasses, Drafting, Drafts, Passes, Verify, draft_embed,
    draft_embed_images, keep_tap,
};
pub use epilogue::{
    Activated, Activation, Add, Bias, Epilogue, Gated, GatedBias, GatedEpilogue, Gelu, GeluTanh, Multiply,
    Relu, Relu2, Silu, Store, StoreAt,
};
pub use experts::{
    ExpertScratch, Experts, GatedExperts, NoShared, Shared, SharedTerm, expert_down, expert_gated,
    expert_sum, expert_up, route, route_by_scores, scale_chosen,
};
pub use format::{Input, KvElement, Q4_1, Q8_0, WeightFormat};
pub use gather::{each_row, embed, embed_scaled, gather};
pub use half::{bf16, f16};
pub use integers::{Iq4Nl, Iq4Xs, Q2K, Q3K, Q4_0, Q4K, Q5_0, Q5_1, Q5K, Q6K};
pub use keeps::Keeps;
pub use kept::{Fp8, KvCodes, KvKept, Nvfp4, Turbo3, Turbo4, Turbo8, Unit};
pub use kv::{KvCache, LatentCache, PagedCache};
pub use kv_offload::KvOffload;
pub use latent::{LatentHeads, LatentScratch, QueryScale, latent_attention};
pub use linear::{Staging, linear, norm_gated, norm_linear, norm_linear_top};
pub use loader::{GatedMatrix, Loader, Matrix, Part, Vector};
pub use mamba2::{Mamba2Scratch, mamba2};
pub use model::{Model, Room, Stack};
pub use norm::{NormWeight, OnePlus, Plain, RmsNorm};
pub use normalise::NoNorm;
pub use outputs::Outputs;
pub use recurrent::{Convolution, RecurrentState};
pub use rotary::{Adjacent, Halves, RotaryPairs, rotary_angles};
pub use rounded::{InE4m3, InF16};
pub use rows::{Int8Rows, Rows};
pub use shape::BatchLimits;
pub use team::{Lane, Team};
pub use times::PhaseTimes;
pub use vision::{
    AsPooled, LayerNorm, PatchAttentionScratch, PatchTurn, Patches, PooledRow, Standardise, add_image_rows,
    image_rows, keep_image_rows, merge_channels, merge_patches, norm_in_place, patch_axes, patch_square,
    pool_patches, rotary_grid_angles, segment_attention,
};
pub use whole::{add_normed, cap, scale, scale_by, sum_normed};
