//! Blocks, the prefixes they hold and snapshots of recurrent state: decisions on plain values, with no device
//! and no input or output.
//!
//! The K/V cache is a fixed number of blocks of `block_tokens` tokens. [`PrefixCache`] knows how often each
//! is used, and the prefixes that they hold: what a sequence leaves behind, another that begins alike goes on
//! from. A [`Lease`] is what one sequence holds, [`admission`] how many blocks it may ask for, [`SavePoints`]
//! where its recurrent state is saved, [`swap`] where it is all kept when it has to make room. Whoever
//! carries the decisions out (the engine) owns the bytes.
//!
//! A sequence may have more blocks than the device: the [`Share`] says what of it is there, and [`FarPlace`]s
//! where the rest is.
//!
//! Blocks are counted by use and not owned: the index is one more user of what sequences read, and what it
//! alone uses is taken back when sequences need room.

pub mod admission;
mod cache;
mod far;
mod index;
mod pool;
mod reuse;
mod saves;
pub mod swap;
mod table;

pub use cache::{Lease, PrefixCache};
pub use far::{FarPlace, Place, Share};
pub use pool::{Block, PoolError};
pub use reuse::{Evicted, Match, Reuse, Snapshot};
pub use saves::SavePoints;
pub use table::Shortage;
