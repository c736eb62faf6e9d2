//! How things stand in memory that two sides look at: the compiler, which plans with their sizes, and the
//! runtime, which fills and reads them. Each layout is arithmetic on dimensions, as const functions, or a
//! struct that host and device share; nothing here does I/O.

mod format;
pub mod kv;
pub mod packed;
pub mod state;
pub mod step;
mod wire;

pub use format::{code_bits, scaled_run};
pub use wire::{Wire, bytes_of};

/// f32 elements of the widest vector of any CPU: rows that are read by whole vectors are padded to multiples
/// of it.
pub const VECTOR: usize = 16;
