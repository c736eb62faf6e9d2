//! Memory layouts shared by two sides: the compiler, which plans with their sizes, and the runtime, which
//! fills and reads them. A layout is either arithmetic on dimensions, as const functions, or a struct that
//! host and device share. The defaults of a server, which others print, stand here too. Nothing does I/O.

pub mod cuda;
pub mod cut;
pub mod fill;
mod format;
pub mod images;
pub mod kv;
pub mod packed;
pub mod packed_file;
pub mod serve;
pub mod sliding;
pub mod state;
pub mod step;
pub mod tiles;
mod wire;
mod work;
pub mod world;

pub use format::{ON_CARDS, code_bits, scaled_run};
pub use wire::{Wire, bytes_of};
pub use work::PhaseWork;

/// f32 elements of the widest vector of any CPU. Rows that are read in whole vectors are padded to a multiple
/// of it.
pub const VECTOR: usize = 16;
