//! Products in fp8, codes of weights by codes of activations: the Rust side of
//! templates/cuda/products/gemm_fp8.cuh.

use super::{Operands, epilogue, limit};
use crate::blocks::products::kernels::{GemmFp8, Quantise};
use crate::kernels::{Planes, Quantised, Rows, Staged, Vector};
use crate::passes::PassError;
use crate::passes::launch::{
    Instance, Launcher, Matrix, Member, Site, Style, fits, fixed, integer, no_kernel, quantised_bytes,
    staged_bytes,
};
use crate::plan::cuda::{Constant, Launch};
use crate::plan::packed::TILE_ROWS;
use crate::plan::{BufferId, FieldId, Packing};
use crate::spec::types::Cuda;
use monomorph_formats::{E4M3_GROUP, FP8_BLOCK, Format, ScaleForm};

/// Rows of x of a work tile of experts, and packed rows of a block's tile.
pub(crate) const TOKENS: usize = 128;
const BLOCK_ROWS: usize = 256;
/// The same of other products, unless they are gated: the header says why.
const TALL_TOKENS: usize = BLOCK_ROWS;
const TALL_BLOCK_ROWS: usize = TOKENS;
/// Two warpgroups of consumers, and one that copies.
const THREADS: usize = 384;

/// A product in fp8 that fits the card.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Fp8 {
    /// Panels of 128 columns that the ring holds.
    pub stages: usize,
    pub threads: usize,
    pub shared: usize,
}

fn shape(card: &Cuda) -> Option<Fp8> {
    let of =
        |stages| Fp8 { stages, threads: THREADS, shared: stages * ((TOKENS + BLOCK_ROWS) * E4M3_GROUP + 16) };
    (3..=4).rev().map(of).find(|it| fits(card, it.shared, 1))
}

/// Blocks of packed rows of an expert's matrix.
pub(crate) fn row_blocks(matrix: &Matrix) -> usize {
    let parts = if matrix.packing == Packing::Gated { 2 } else { 1 };
    (matrix.outputs() * parts).div_ceil(BLOCK_ROWS)
}

/// Tiles of a product with so many rows of x.
fn work(matrix: &Matrix, rows: usize) -> usize {
    match matrix.packing {
        Packing::Gated => row_blocks(matrix) * rows.div_ceil(TOKENS),
        _ => matrix.outputs().div_ceil(TALL_BLOCK_ROWS) * rows.div_ceil(TALL_TOKENS),
    }
}

/// What products of a phase read of its rows.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Inputs {
    /// The rows in f16, for [`Style::Gemm`].
    pub staged: Option<Staged>,
    /// The rows in e4m3, for [`Style::Codes`].
    pub quantised: Option<Quantised>,
}

impl Launcher<'_> {
    /// The shape of products in fp8 with a matrix.
    pub(crate) fn fp8(&self, site: Site, id: FieldId, matrix: &Matrix) -> Result<Fp8, PassError> {
        let refused = |what: &str| Err(no_kernel(site, self.plan, what));
        let Some(shape) = shape(self.card) else {
            return refused(
                "tiles of products in `fp8` do not fit its shared memory: say `f16` in [compute]",
            );
        };
        // The spec has checked the matrix, and a pass the card.
        assert!(self.card.wgmma);
        assert!(matrix.format == Format::Fp8E4m3 && matrix.columns.is_multiple_of(E4M3_GROUP), "{matrix:?}");
        let least = if matrix.scales == Some(ScaleForm::Block128) { FP8_BLOCK } else { TILE_ROWS };
        match self.plan.field(id).parts.iter().find(|part| !part.rows.is_multiple_of(least)) {
            None => Ok(shape),
            Some(part) => refused(&format!(
                "`{}` has {} rows, and products in `fp8` take multiples of {least}: say `f16` in [compute]",
                part.weight, part.rows
            )),
        }
    }

    /// The launch that stages and quantises a phase's rows as products of these styles read them, and what
    /// it makes.
    pub(crate) fn inputs(
        &mut self,
        site: Site,
        x: BufferId,
        norm: Option<FieldId>,
        styles: &[Style],
        launches: &mut Vec<Launch>,
    ) -> Inputs {
        let capacity = site.program.rows.next_multiple_of(8);
        let halves = styles.contains(&Style::Gemm);
        if !styles.contains(&Style::Codes) {
            let (launch, staged) = self.stage(site, x, norm, capacity);
            launches.push(launch);
            return Inputs { staged: Some(staged), quantised: None };
        }
        let (name, width) = (self.plan.buffer(x).name.clone(), self.plan.buffer(x).width);
        let (form, eps) = self.norm(norm);
        let constants = vec![
            ("WIDTH", integer(width)),
            ("CAPACITY", integer(capacity)),
            ("NORM", form),
            ("EPS", Constant::Float(eps)),
            ("LIMIT", limit(site, false)),
            ("HALVES", Constant::Flag(halves)),
        ];
        let chunks = width / 8;
        let threads = if chunks >= 256 { 256 } else { chunks.next_multiple_of(32) };
        let from = self.buffer(site, x);
        let codes = quantised_bytes(capacity, width);
        let out: Quantised = self.scratch(&format!("quantised_{name}"), codes as u64, false);
        let staged = halves.then(|| self.staged(site, x, capacity));
        let arguments = Quantise {
            step: site.header,
            x: from,
            norm: Vector::field(norm),
            out,
            halves: staged.unwrap_or(Staged::NULL),
        };
        let of_halves = if halves { staged_bytes(capacity, width) } else { 0 };
        let bytes = vec![("quantised", codes), ("staged", of_halves)];
        let normed = if norm.is_some() { "_normed" } else { "" };
        let both = if halves { "_and_stage" } else { "" };
        let name = format!("quantise{both}{normed}_{width}");
        let instance = Instance { bytes, ..Instance::new(name, constants, threads) };
        launches.push(self.launch(site, instance, self.grid_of_rows(site, 1), arguments));
        Inputs { staged, quantised: Some(out) }
    }

    /// Launches a product of many rows in the style of its matrix.
    pub(crate) fn product_of_many(
        &mut self,
        site: Site,
        suffix: &str,
        operands: &Operands,
        matrix: &Matrix,
        inputs: Inputs,
        out: Rows,
    ) -> Result<Launch, PassError> {
        match self.style_of(site, matrix)? {
            Style::Codes => {
                let x = inputs.quantised.expect("its rows are quantised");
                self.gemm_fp8(site, suffix, operands, matrix, x, out)
            }
            Style::Gemm | Style::Stream => {
                let x = inputs.staged.expect("its rows are staged");
                self.gemm(site, suffix, operands, matrix, x, out)
            }
        }
    }

    fn gemm_fp8(
        &mut self,
        site: Site,
        suffix: &str,
        operands: &Operands,
        matrix: &Matrix,
        x: Quantised,
        out: Rows,
    ) -> Result<Launch, PassError> {
        let shape = self.fp8(site, operands.matrix, matrix)?;
        let capacity = site.program.rows.next_multiple_of(8);
        let mut constants: Vec<Member> = matrix.names().into();
        constants.extend([
            ("OUTPUTS", integer(matrix.outputs())),
            ("INPUTS", integer(matrix.columns)),
            ("CAPACITY", integer(capacity)),
            ("STAGES", integer(shape.stages)),
        ]);
        constants.extend(epilogue(operands));
        constants.push(("LIMIT", limit(site, false)));
        let Planes { codes, scales, row_scales } = self.planes(operands.matrix);
        let [bias, up_bias] = operands.biases.map(Vector::field);
        let grid = fixed(work(matrix, capacity).min(self.card.multiprocessors as usize), 1, 1);
        let name = self.kernel_name(site, suffix);
        let instance = Instance { shared: shape.shared, ..Instance::new(name, constants, shape.threads) };
        let arguments = GemmFp8 { step: site.header, x, codes, scales, row_scales, bias, up_bias, out };
        Ok(self.launch(site, instance, grid, arguments))
    }
}
