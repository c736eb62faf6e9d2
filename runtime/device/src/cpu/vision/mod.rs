//! Phases of a vision tower: over rows of the patches of one image, and of the tokens that it becomes.
//!
//! They take [`Patches`] where phases of text take a batch, and keep nothing from one image to the next. A
//! row's results do not depend on the number of lanes.

mod attention;
mod merge;
mod norm;
mod positions;
mod rows;
mod text;

pub use attention::{PatchAttentionScratch, PatchTurn, segment_attention};
pub use merge::{AsPooled, PooledRow, Standardise, merge_channels, merge_patches, pool_patches};
pub use norm::{LayerNorm, norm_in_place};
pub use positions::{patch_axes, patch_square};
pub use rows::{Patches, keep_image_rows};
pub use text::{add_image_rows, image_rows, rotary_grid_angles};
