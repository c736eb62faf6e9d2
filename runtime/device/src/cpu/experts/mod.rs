//! Mixture of experts: routing, and products with the chosen experts' matrices.
//!
//! A row of `routing` is written by [`route`]: `ACTIVE` weights in descending order, then the ids of their
//! experts. A *slot* is one choice of a row: slot `s` of row `t` is row `t * ACTIVE + s` of the buffers that
//! have a row per slot.
//!
//! Each lane groups the slots by expert and takes a share of the chosen experts' tiles, so that a tile is
//! read once for all rows that chose it (or once per [`GATHERED`] of them). A slot's products are summed like
//! those of any other row, and a row's slots are added in order: a row's result depends neither on the other
//! rows nor on the number of lanes.

mod down;
mod gated;
mod groups;
mod route;
mod scratch;
mod weights;

pub use down::{NoShared, Shared, SharedTerm, expert_down, expert_sum};
pub use gated::{expert_gated, expert_up};
pub use route::{route, route_by_scores, scale_chosen};
pub use scratch::ExpertScratch;
pub use weights::{Experts, GatedExperts};

/// Rows multiplied with an expert's tiles at a time.
const GATHERED: usize = 96;

/// Number of slots per row if a row of routing has `routing` elements.
const fn active(routing: usize) -> usize {
    assert!(routing > 0 && routing.is_multiple_of(2), "a row of routing holds as many weights as ids");
    routing / 2
}
