//! NVIDIA GPUs: their memory, the kernels emitted with the stack, and the steps that run on them.
//!
//! A [`Model`] opens a [`Gpu`], has a generated [`Stack`] load its [`Module`]s, claims [`Memory`] in one
//! piece, has the stack load its weights through a [`Loader`], and records its decode programs as graphs.
//! After that `steps` runs steps: an upload, a graph (or the launches of a prefill), and a copy of the
//! sampled tokens.
//!
//! The driver is libcuda, opened when the server starts; no toolkit is needed. Only `driver`, `host`,
//! `module` and `queue` call it.

mod arguments;
mod aside;
mod carry;
mod driver;
mod executor;
mod fault;
mod fill;
mod gpu;
mod host;
mod kv_offload;
mod load;
pub mod measure;
mod memory;
mod model;
mod module;
mod nccl;
mod pack;
mod pointer;
mod process;
mod queue;
mod ring;
mod rotary;
mod shape;
mod slice;
mod sources;
mod states;
mod static_scales;
mod times;
mod weights;
mod wire;
mod world;

pub use arguments::Arguments;
pub use executor::Programs;
pub use fault::Fault;
pub use fill::{FillMatrix, FillVector};
pub use gpu::Gpu;
pub use load::Loader;
pub use memory::{Memory, Needs};
pub use model::{Decode, Loading, Model, Stack, World};
pub use module::{Kernel, Module};
pub use monomorph_abi::cut::Segment;
pub use monomorph_abi::world::{Exchanged, Traffic};
pub use pointer::{Cache, Pointer};
pub use process::Process;
pub use queue::{Extents, Kept, Queue, StepTables};
pub use shape::{MatrixShape, Packing, vector_bytes};
pub use states::State;
pub use weights::{Matrix, Part, Vector};
pub use world::{Gathered, WorldMemory};
