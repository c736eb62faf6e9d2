//! The kernels and memory that a generated layer stack calls on its device.
//!
//! No device is chosen at run time. A stack generated for a CPU calls [`cpu`], whose kernels are generic over
//! formats and dimensions and are compiled for one instruction set (`-C target-cpu`). A stack generated for a
//! GPU calls [`cuda`], which launches the kernels that were emitted and compiled with it. A server enables
//! the one feature it needs.

#[cfg(any(feature = "cpu", feature = "cuda"))]
mod companions;
#[cfg(feature = "cpu")]
pub mod cpu;
#[cfg(feature = "cuda")]
pub mod cuda;
#[cfg(any(feature = "cpu", feature = "cuda"))]
mod images;
#[cfg(any(feature = "cpu", feature = "cuda"))]
mod kv_offload;
#[cfg(any(feature = "cpu", feature = "cuda"))]
mod rows_of;
