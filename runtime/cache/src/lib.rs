//! Block allocation: decisions on plain values, with no device and no input or output.
//!
//! The K/V cache is a fixed number of blocks of `block_tokens` tokens. [`BlockPool`] knows how often each is
//! used, [`BlockTable`] which blocks hold one sequence, and [`admission`] how many blocks a sequence may ask
//! for. Whoever carries the decisions out (the engine) owns the bytes.
//!
//! Blocks are counted by use and not owned, so that a prefix index can hold blocks that sequences read too:
//! it becomes one more user, and what it alone uses becomes what [`BlockPool::allocate`] may take back.

pub mod admission;
mod pool;
mod table;

pub use pool::{Block, BlockPool, PoolError, Release};
pub use table::{BlockTable, Shortage};
