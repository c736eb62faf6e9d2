//! Blocks, the prefixes they hold and snapshots of recurrent state: decisions on plain values, with no device and no input or
//! output.
//!
//! The K/V cache is a fixed number of blocks of `block_tokens` tokens. [`BlockPool`] knows how often each is used, [`BlockTable`]
//! which blocks hold one sequence, and [`admission`] how many blocks a sequence may ask for. [`PrefixCache`] is all of it
//! together with an index of prefixes: what a sequence leaves behind, another that begins alike goes on from. Whoever
//! carries the decisions out (the engine) owns the bytes.
//!
//! Blocks are counted by use and not owned: the index is one more user of what sequences read, and what it alone uses is
//! taken back when sequences need room.

pub mod admission;
mod cache;
mod index;
mod pool;
mod reuse;
mod table;

pub use cache::{Lease, PrefixCache};
pub use pool::{Block, BlockPool, PoolError, Release};
pub use reuse::{Evicted, Match, Reuse, Snapshot};
pub use table::{BlockTable, Shortage};
