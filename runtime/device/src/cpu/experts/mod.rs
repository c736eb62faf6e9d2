//! Mixture of experts: the router's choice, and products with the matrices of the experts that were chosen.
//!
//! A row of `routing` is what [`route`] writes: `ACTIVE` weights in descending order, then the ids of their
//! experts. A *slot* is one row's choice: slot `s` of row `t` is row `t * ACTIVE + s` of the buffers that
//! hold a row for each slot.
//!
//! Each lane sorts the slots by expert and takes a share of the tiles of the experts that were chosen, so
//! that a tile is read once for all rows that want it (or once for each [`GATHERED`] of them). A slot's
//! products are summed as those of any other row, and a row's slots are added in their order: what a row gets
//! depends neither on the other rows nor on the number of lanes.

mod down;
mod gated;
mod groups;
mod route;
mod scratch;
mod weights;

pub use down::{NoShared, Shared, SharedTerm, expert_down};
pub use gated::expert_gated;
pub use route::route;
pub use scratch::ExpertScratch;
pub use weights::{Experts, GatedExperts};

/// Rows that are multiplied with an expert's tiles at a time.
const GATHERED: usize = 96;

/// Slots of a row whose routing takes `routing` elements.
const fn active(routing: usize) -> usize {
    assert!(routing > 0 && routing.is_multiple_of(2), "a row of routing holds as many weights as ids");
    routing / 2
}
