//! Dummy weights, generated on the device: `templates/cuda/core/fill.cuh`.

use super::arguments::Arguments;
use super::driver::Stream;
use super::fault::Fault;
use super::module::Kernel;
use super::pointer::Pointer;
use super::queue::{Extents, Queue, StepTables};
use super::shape::{MatrixShape, Packing, TILE_ROWS};
use super::weights::Matrix;
use monomorph_abi::fill::FillShape;

/// Blocks that fill a card; the kernels stride over larger inputs.
const GRID: [u32; 3] = [1024, 1, 1];
/// Standard deviation of dummy norm weights and biases.
pub(crate) const VECTOR_DEVIATION: f32 = 0.02;

crate::arguments! {
    /// Arguments of `fill_matrix`.
    FillMatrix { codes, scales, row_scales, shape: FillShape }
    /// Arguments of `fill_vector`.
    FillVector { values, count: i64, centre: f32, deviation: f32, seed: u64 }
}

/// The purpose of a vector, which decides its dummy values.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Purpose {
    /// A bias, or the weights of a norm that adds one: values near zero.
    Bias,
    /// The weights of any other norm: values near one.
    Norm,
    /// The weights of a convolution with this many taps, scaled so that its sums keep the size of its inputs.
    Convolution(usize),
}

impl Purpose {
    /// Mean and standard deviation.
    fn spread(self) -> (f32, f32) {
        match self {
            Purpose::Bias => (0.0, VECTOR_DEVIATION),
            Purpose::Norm => (1.0, VECTOR_DEVIATION),
            Purpose::Convolution(taps) => (0.0, 1.0 / (taps as f32).sqrt()),
        }
    }
}

/// Gives each matrix and vector its own seed.
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
        // The kernels use the upper eight bits for planes.
        (self.seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ self.made) & (u64::MAX >> 8)
    }

    /// Leaves a vector out, whose seed other ranks use.
    pub(crate) fn skip(&mut self) {
        self.next_seed();
    }

    /// Fills each matrix of `shape`.
    pub(crate) fn matrix(
        &mut self,
        stream: &Stream,
        kernel: &Kernel<FillMatrix>,
        shape: &MatrixShape,
        matrix: &Matrix,
    ) -> Result<(), Fault> {
        let gated = shape.packing == Packing::Gated;
        let (launches, rows) = launches(shape);
        for launch in 0..launches {
            let Matrix { codes, scales, row_scales } =
                matrix.starting_at_tile(shape, launch * shape.matrix().tiles());
            let shape = fill_shape(rows, shape.columns, gated, self.next_seed());
            run(stream, kernel, FillMatrix { codes, scales, row_scales, shape })?;
        }
        Ok(())
    }

    /// Values that suit `purpose`.
    pub(crate) fn vector(
        &mut self,
        stream: &Stream,
        kernel: &Kernel<FillVector>,
        values: Pointer,
        length: usize,
        purpose: Purpose,
    ) -> Result<(), Fault> {
        let (centre, deviation) = purpose.spread();
        let seed = self.next_seed();
        run(stream, kernel, FillVector { values, count: length as i64, centre, deviation, seed })
    }
}

/// Weights of deviation `1 / sqrt(columns)`, so that a product keeps the size of its input.
pub fn fill_shape(rows: usize, columns: usize, gated: bool, seed: u64) -> FillShape {
    FillShape {
        rows: rows as i32,
        columns: columns as i32,
        gated: i32::from(gated),
        deviation: 1.0 / (columns as f32).sqrt(),
        seed,
    }
}

/// The launches that fill a matrix, and the rows of each (of one part, where parts alternate). Experts of
/// whole tiles form one matrix of all their rows: their tiles lie exactly where that matrix's would. Other
/// experts have padding of their own and take a launch each.
fn launches(shape: &MatrixShape) -> (usize, usize) {
    let rows: usize = match shape.packing {
        Packing::Gated => shape.parts[0],
        Packing::Stacked => shape.parts.iter().sum(),
    };
    if rows.is_multiple_of(TILE_ROWS) { (1, shape.experts * rows) } else { (shape.experts, rows) }
}

/// Runs a kernel that fills.
pub(crate) fn run<A: Arguments>(stream: &Stream, kernel: &Kernel<A>, arguments: A) -> Result<(), Fault> {
    let mut queue = Queue::new(stream, "fill", false, Extents::default(), StepTables::NONE, None);
    queue.launch(kernel, GRID, arguments);
    queue.finish()
}

#[cfg(test)]
mod tests {
    use super::*;
    use monomorph_formats::Format;

    #[test]
    fn arguments_have_the_order_of_the_parameters() {
        let declared = |of: &[(&'static str, &str)]| of.iter().map(|it| it.0).collect::<Vec<_>>();
        assert_eq!(FillMatrix::NAMES, declared(monomorph_abi::fill::MATRIX));
        assert_eq!(FillVector::NAMES, declared(monomorph_abi::fill::VECTOR));
    }

    #[test]
    fn launches_cover_the_tiles_of_all_experts() {
        let shape = |parts, packing, experts| MatrixShape {
            stored: Format::Bf16,
            halves: false,
            scales: None,
            parts,
            columns: 64,
            packing,
            experts,
        };
        for (shape, wanted) in [
            (shape(&[24, 8], Packing::Stacked, 5), (1, 160)),
            (shape(&[16, 16], Packing::Gated, 5), (1, 80)),
            (shape(&[11, 11], Packing::Gated, 5), (5, 11)),
            (shape(&[13], Packing::Stacked, 1), (1, 13)),
        ] {
            let (count, rows) = launches(&shape);
            assert_eq!((count, rows), wanted);
            let parts = if shape.packing == Packing::Gated { 2 } else { 1 };
            assert_eq!(count * parts * rows.div_ceil(TILE_ROWS), shape.all_tiles(), "{shape:?}");
        }
    }
}
