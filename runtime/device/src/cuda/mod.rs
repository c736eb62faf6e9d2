//! One NVIDIA GPU: its memory, the kernels that were emitted with the stack, and the steps that run on it.
//!
//! A generated stack opens a [`Gpu`], claims its [`Memory`] in one piece, loads its [`Module`]s and, through
//! a [`Loader`], its weights, and records its decode programs as graphs. From then on [`Steps`] carries
//! steps: a step is an upload, a graph (or the launches of a prefill), and a copy of what was sampled.
//!
//! The driver is libcuda, opened when the server starts; no toolkit is needed. All calls of it stand in
//! `driver`, `host`, `module` and `queue`.

mod arguments;
mod carry;
mod driver;
mod far;
mod fault;
mod fill;
mod gpu;
mod host;
mod load;
mod memory;
mod module;
mod pack;
mod queue;
mod rotary;
mod shape;
mod sources;
mod states;
mod step;
mod steps;
mod weights;

pub use arguments::Arguments;
pub use fault::Fault;
pub use fill::{FillMatrix, FillVector};
pub use gpu::Gpu;
pub use load::Loader;
pub use memory::{Cache, Memory, Needs, Pointer};
pub use module::{Kernel, Module};
pub use queue::{Extents, Queue, StepTables};
pub use shape::{MatrixShape, Packing, vector_bytes};
pub use states::State;
pub use steps::{Programs, STEPS_IN_FLIGHT, Steps};
pub use weights::{Matrix, Part, Vector};

/// Puts the table of rotary angles of all positions onto the device: f32 `[positions][pairs][cosine, sine]`,
/// `factor` multiplied in.
///
/// # Errors
/// When the device fails.
pub fn load_rotary(
    gpu: &Gpu,
    memory: &mut Memory,
    inverse_frequencies: &[f32],
    factor: f32,
    threads: usize,
) -> Result<Pointer, Fault> {
    rotary::load(gpu.stream(), memory, inverse_frequencies, factor, threads)
}
