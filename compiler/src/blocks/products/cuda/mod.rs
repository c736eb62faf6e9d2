//! Matrix products on a CUDA device: the choice of kernel, and the staging of its input.

pub(crate) mod fp8;
pub(crate) mod gemm;
pub(crate) mod stream;

use crate::blocks::products::kernels::Stage;
pub(crate) use crate::blocks::products::operands::Operands;
use crate::blocks::products::{Accumulate, Gated, Linear, Project};
use crate::kernels::{Staged, Vector};
use crate::passes::PassError;
use crate::passes::launch::{
    Instance, Launcher, Matrix, Member, REPLACING, Site, Style, integer, no_kernel, staged_bytes, value,
};
use crate::plan::cuda::{Constant, Launch, Regime};
use crate::plan::{BufferId, FieldId, FieldKind};
use crate::spec::types::{Activation, NormWeight};
use monomorph_abi::world::PIECE;
use monomorph_formats::{Format, ScaleForm};

impl Project {
    pub(super) fn operands(&self) -> Operands {
        let stored = Operands::stored(self.x, self.matrix, self.out).normed(self.norm);
        let stored = Operands { biases: [self.bias, None], ..stored };
        self.activation.map_or(stored, |activation| stored.activated(activation))
    }
}

impl Accumulate {
    pub(super) fn operands(&self) -> Operands {
        let stored = Operands::stored(self.x, self.matrix, self.residual);
        Operands { biases: [self.bias, None], epilogue: "ADD", ..stored }
    }
}

impl Linear {
    pub(super) fn operands(&self) -> Operands {
        Operands { biases: [self.bias, None], ..Operands::stored(self.x, self.matrix, self.out) }
    }
}

impl Gated {
    pub(super) fn operands(&self) -> Operands {
        let biases = [self.biases.map(|it| it.0), self.biases.map(|it| it.1)];
        let stored = Operands::stored(self.x, self.matrix, self.out).normed(self.norm);
        Operands { biases, epilogue: "GATED", activation: self.activation, ..stored }
    }
}

impl Launcher<'_> {
    /// The matrix of a product, truncated for a draft's head.
    fn matrix_of(&self, operands: &Operands) -> Matrix {
        let matrix = self.matrix(operands.matrix);
        Matrix { rows: operands.rows.unwrap_or(matrix.rows), ..matrix }
    }

    /// How a phase computes a product with this matrix.
    pub(crate) fn style_of(&self, site: Site, matrix: &Matrix) -> Result<Style, PassError> {
        if matrix.exact {
            return Ok(Style::Stream);
        }
        if !matches!(matrix.format, Format::Bf16 | Format::F16 | Format::Fp8E4m3 | Format::Nvfp4) {
            let what = format!("there is no f16 product with {} weights", matrix.format);
            return Err(no_kernel(site, self.plan, &what));
        }
        let (knobs, rows) = (self.knobs(site), site.program.rows);
        if matrix.compute.quantises(rows) {
            return Ok(Style::Codes);
        }
        // More rows than these, so long, need more registers than a thread may have.
        let most = match matrix.columns {
            ..=6144 => knobs.stream_rows,
            6145..=8192 => knobs.stream_rows.min(4),
            _ => knobs.stream_rows.min(2),
        };
        let few = site.program.regime == Regime::Decode && rows <= most as usize;
        let streams = few && stream::shape(matrix, rows, false, &knobs, self.card).is_some();
        Ok(if streams { Style::Stream } else { Style::Gemm })
    }

    /// How a phase computes this product: in pairs of tiles rows may be wider.
    fn style_of_product(&self, site: Site, operands: &Operands) -> Result<Style, PassError> {
        let matrix = self.matrix_of(operands);
        let style = self.style_of(site, &matrix)?;
        let paired = style == Style::Gemm && self.paired(site, operands, &matrix).is_some();
        Ok(if paired { Style::Stream } else { style })
    }

    /// The same product with the sum over ranks that its kernel makes in this program, if it does.
    pub(super) fn with_sum(&self, site: Site, operands: Operands) -> Result<Option<Operands>, PassError> {
        let Some(sum) = self.sum_of(site, operands.out) else { return Ok(None) };
        Ok(self.may_sum(site, &operands)?.then(|| operands.summed(sum.residual, sum.adds())))
    }

    /// Whether a kernel of this product may sum over ranks: all its blocks are on the card together.
    fn may_sum(&self, site: Site, operands: &Operands) -> Result<bool, PassError> {
        let matrix = self.matrix_of(operands);
        Ok(match self.style_of(site, &matrix)? {
            Style::Stream => stream::together(&matrix, site.program.rows, &self.knobs(site), self.card),
            Style::Gemm => matrix.outputs().is_multiple_of(PIECE) && self.gemm_may_sum(site, &matrix),
            Style::Codes => false,
        })
    }

    /// Staged form of a buffer.
    pub(crate) fn staged(&mut self, site: Site, buffer: BufferId, capacity: usize) -> Staged {
        let (name, width) = (self.plan.buffer(buffer).name.clone(), self.plan.buffer(buffer).width);
        debug_assert!(capacity >= site.program.rows, "every row has a place");
        self.scratch(&format!("staged_{name}"), staged_bytes(capacity, width) as u64, false)
    }

    pub(crate) fn product(
        &mut self,
        site: Site,
        operands: Operands,
        launches: &mut Vec<Launch>,
    ) -> Result<(), PassError> {
        self.products(site, &[("", operands)], launches)
    }

    /// Two products of the same rows, the second narrow: one launch if they fit, or else beside each other.
    pub(crate) fn product_beside(
        &mut self,
        site: Site,
        wide: Operands,
        narrow: Operands,
        launches: &mut Vec<Launch>,
    ) -> Result<(), PassError> {
        let matrices = [self.matrix(wide.matrix), self.matrix(narrow.matrix)];
        for (operands, matrix) in [&wide, &narrow].into_iter().zip(&matrices) {
            self.check_scales(site, operands.matrix, matrix)?;
        }
        let [first, second] = &matrices;
        if [self.style_of_product(site, &wide)?, self.style_of_product(site, &narrow)?] == [Style::Stream; 2]
            && let Some(launch) = self.stream_beside(site, [&wide, &narrow], [first, second])
        {
            launches.push(launch);
            return Ok(());
        }
        let first = launches.len();
        self.products(site, &[("", wide), ("_gates", narrow)], launches)?;
        let narrow = launches.pop().filter(|_| launches.len() > first).expect("one of each product");
        launches.push(narrow.aside());
        Ok(())
    }

    /// Products of the same rows; the suffix ends the names of their kernels.
    pub(crate) fn products(
        &mut self,
        site: Site,
        products: &[(&str, Operands)],
        launches: &mut Vec<Launch>,
    ) -> Result<(), PassError> {
        let styles: Vec<Style> = products
            .iter()
            .map(|(_, operands)| self.style_of_product(site, operands))
            .collect::<Result<_, _>>()?;
        let mut inputs = None;
        for ((suffix, operands), style) in products.iter().zip(&styles) {
            let matrix = self.matrix_of(operands);
            self.check_scales(site, operands.matrix, &matrix)?;
            if *style == Style::Stream {
                launches.push(self.stream(site, suffix, operands, &matrix)?);
                continue;
            }
            let of_rows = match inputs {
                Some(inputs) => inputs,
                None => self.inputs(site, operands.x, operands.norm, &styles, launches),
            };
            let out = self.buffer(site, operands.out);
            launches.push(self.product_of_many(site, suffix, operands, &matrix, of_rows, out)?);
            inputs = Some(of_rows);
        }
        Ok(())
    }

    /// Scales of 128 x 128 blocks apply to whole tiles: no tile may hold rows of two blocks or tensors of the
    /// checkpoint.
    pub(crate) fn check_scales(&self, site: Site, id: FieldId, matrix: &Matrix) -> Result<(), PassError> {
        if matrix.scales != Some(ScaleForm::Block128) {
            return Ok(());
        }
        if matrix.exact {
            return Err(no_kernel(
                site,
                self.plan,
                "fp8 weights with scales of 128 x 128 blocks compute in `f16` only",
            ));
        }
        match self.plan.field(id).parts.iter().find(|part| part.rows % 8 != 0) {
            None => Ok(()),
            Some(part) => {
                let what = format!(
                    "`{}` has {} rows, which do not fill tiles of 8 with scales of their own",
                    part.weight, part.rows
                );
                Err(no_kernel(site, self.plan, &what))
            }
        }
    }

    /// The launch that stages a product's input, and its output.
    pub(crate) fn stage(
        &mut self,
        site: Site,
        x: BufferId,
        norm: Option<FieldId>,
        capacity: usize,
    ) -> (Launch, Staged) {
        let width = self.plan.buffer(x).width;
        let (form, eps) = self.norm(norm);
        let constants = vec![
            ("WIDTH", integer(width)),
            ("CAPACITY", integer(capacity)),
            ("NORM", form),
            ("EPS", Constant::Float(eps)),
            ("LIMIT", limit(site, false)),
        ];
        let chunks = width.div_ceil(64) * 8;
        let name = if norm.is_some() { format!("stage_normed_{width}") } else { format!("stage_{width}") };
        let threads = if chunks >= 256 { 256 } else { chunks.next_multiple_of(32) };
        let (from, out) = (self.buffer(site, x), self.staged(site, x, capacity));
        let arguments = Stage { step: site.header, x: from, norm: Vector::field(norm), out };
        let bytes = vec![("staged", staged_bytes(capacity, width))];
        let instance = Instance { bytes, ..Instance::new(name, constants, threads) };
        (self.launch(site, instance, self.grid_of_rows(site, 1), arguments), out)
    }

    /// `Norm::…` and the epsilon added to the mean square.
    pub(crate) fn norm(&self, field: Option<FieldId>) -> (Constant, f32) {
        match field.map(|id| &self.plan.field(id).kind) {
            Some(FieldKind::Norm { eps, form, .. }) => {
                let form = match form {
                    NormWeight::Plain => "PLAIN",
                    NormWeight::OnePlus => "ONE_PLUS",
                };
                (value(format!("Norm::{form}")), *eps)
            }
            _ => (value("Norm::NONE"), 0.0),
        }
    }
}

pub(crate) fn activation(activation: Activation) -> Constant {
    value(match activation {
        Activation::Silu => "Activation::SILU",
        Activation::Gelu => "Activation::GELU",
        Activation::GeluTanh => "Activation::GELU_TANH",
        Activation::Relu => "Activation::RELU",
        Activation::Relu2 => "Activation::RELU2",
    })
}

pub(crate) fn epilogue(operands: &Operands) -> Vec<Member> {
    let mut constants = vec![
        ("EPILOGUE", value(format!("Epilogue::{}", operands.epilogue))),
        ("ACTIVATION", activation(operands.activation)),
        ("BIAS", Constant::Flag(operands.biases[0].is_some())),
    ];
    constants.extend(operands.replaces.then_some(REPLACING));
    constants
}

pub(crate) fn limit(site: Site, all: bool) -> Constant {
    value(match (all, site.program.outputs()) {
        (true, _) => "Limit::NONE",
        (false, true) => "Limit::OUTPUTS",
        (false, false) => "Limit::TOKENS",
    })
}
