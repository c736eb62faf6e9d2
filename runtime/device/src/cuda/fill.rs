//! Dummy weights, made on the device: `templates/cuda/lib/fill.cuh`.

use super::driver::Stream;
use super::fault::Fault;
use super::memory::Pointer;
use super::module::Kernel;
use super::queue::{Extents, Queue, StepTables};
use super::shape::{MatrixShape, Packing};
use super::weights::Matrix;
use std::ffi::c_void;

/// Blocks that fill a card; the kernels stride over what is more.
const GRID: [u32; 3] = [1024, 1, 1];
/// Standard deviation of made-up norm weights and biases.
const VECTOR_DEVIATION: f32 = 0.02;

/// FillShape.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
struct FillShape {
    rows: i32,
    columns: i32,
    gated: i32,
    deviation: f32,
    seed: u64,
}

const _: () = assert!(size_of::<FillShape>() == 24);

/// What the values of a vector lie about.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Centre {
    /// Biases, and norms that add one.
    Zero,
    /// Other norms.
    One,
}

/// Gives every matrix and vector a seed of its own.
#[derive(Debug)]
pub(crate) struct Filler {
    seed: u64,
    made: u64,
}

impl Filler {
    pub(crate) fn new(seed: u64) -> Filler {
        Filler { seed, made: 0 }
    }

    fn next_seed(&mut self) -> u64 {
        self.made += 1;
        // The kernels keep the upper eight bits for planes.
        (self.seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ self.made) & (u64::MAX >> 8)
    }

    /// Weights of deviation `1 / sqrt(columns)`: a product keeps the size of what it is fed.
    pub(crate) fn matrix(
        &mut self,
        stream: &Stream,
        kernel: &Kernel,
        shape: &MatrixShape,
        matrix: &Matrix,
    ) -> Result<(), Fault> {
        let gated = shape.packing == Packing::Gated;
        let rows: usize = if gated { shape.parts[0] } else { shape.parts.iter().sum() };
        let mut argument = FillShape {
            rows: rows as i32,
            columns: shape.columns as i32,
            gated: i32::from(gated),
            deviation: 1.0 / (shape.columns as f32).sqrt(),
            seed: self.next_seed(),
        };
        let Matrix { mut codes, mut scales, mut row_scales } = *matrix;
        let address = |pointer: &mut Pointer| (&raw mut *pointer).cast::<c_void>();
        let parameters = [
            address(&mut codes),
            address(&mut scales),
            address(&mut row_scales),
            (&raw mut argument).cast::<c_void>(),
        ];
        run(stream, kernel, parameters)
    }

    /// Values about `centre`.
    pub(crate) fn vector(
        &mut self,
        stream: &Stream,
        kernel: &Kernel,
        mut at: Pointer,
        length: usize,
        centre: Centre,
    ) -> Result<(), Fault> {
        let mut count = length as i64;
        let mut centre: f32 = match centre {
            Centre::Zero => 0.0,
            Centre::One => 1.0,
        };
        let (mut deviation, mut seed) = (VECTOR_DEVIATION, self.next_seed());
        let parameters = [
            (&raw mut at).cast::<c_void>(),
            (&raw mut count).cast::<c_void>(),
            (&raw mut centre).cast::<c_void>(),
            (&raw mut deviation).cast::<c_void>(),
            (&raw mut seed).cast::<c_void>(),
        ];
        run(stream, kernel, parameters)
    }
}

fn run<const N: usize>(stream: &Stream, kernel: &Kernel, parameters: [*mut c_void; N]) -> Result<(), Fault> {
    let mut queue = Queue::new(stream, "fill", false, Extents::default(), StepTables::NONE);
    queue.launch_raw(kernel, GRID, parameters);
    queue.finish()
}
