//! What a generated layer stack calls on its device.
//!
//! There is no device abstraction here to choose from at run time: a stack generated for a CPU calls
//! [`cpu`], whose kernels are generic over formats and dimensions and are compiled for one instruction set
//! (`-C target-cpu`).

pub mod cpu;
