//! One model on several devices of one machine: a *rank* on each, a thread for each rank.
//!
//! A [`Rank`] is a [`Model`](monomorph_model::Model) that holds its part of the weights and computes its part
//! of every step; ranks exchange what they computed by themselves, on their devices. A [`World`] makes one
//! model of them: every call goes to all ranks in the same order, and all must come to the same ids. So the
//! engine above knows nothing of ranks.
//!
//! Nothing here knows a device. Ranks meet through their [`Seat`] while they load, and not afterwards.

mod agree;
mod call;
mod line;
mod load;
mod meeting;
mod wait;
mod world;

pub use meeting::Seat;
pub use world::World;

use monomorph_model::{LoadError, LoadOptions, Model, Progress, RankMeter, Weights};
use std::sync::Arc;

/// What a panic says.
macro_rules! message {
    ($panic:expr) => {{
        let panic = $panic;
        let text = panic.downcast_ref::<&str>().copied();
        let text = text.or_else(|| panic.downcast_ref::<String>().map(String::as_str));
        text.unwrap_or("no message").to_owned()
    }};
}
pub(crate) use message;

/// A model that computes its part of every step, beside [`RANKS`](Model::RANKS) - 1 others.
///
/// Of what it says of itself only sizes are its own: the bytes of blocks, states, weights and scratch.
pub trait Rank: Model {
    /// Claims memory and loads this rank's part of the weights. All ranks do so at a time, each on a thread
    /// of its own, and meet at `seat`: in the same order, for the same purposes.
    ///
    /// # Errors
    /// As [`Model::load`], and when another rank has failed.
    fn load_rank(
        weights: &Weights,
        options: &LoadOptions,
        progress: &Progress,
        seat: Seat,
    ) -> Result<Self, LoadError>;

    /// Where it counts what it exchanges. Its thread adds the steps and their times.
    fn meter(&self) -> Arc<RankMeter> {
        Arc::default()
    }
}
