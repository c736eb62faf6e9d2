//! Matrix products: which kernel, and what stages its input.

use super::{
    Instance, Launcher, Matrix, Member, Site, Style, integer, no_kernel, staged_bytes, stream, value,
};
use crate::blocks;
use crate::kernels::{Stage, Staged, Vector};
use crate::passes::PassError;
use crate::plan::cuda::{Constant, Launch, Regime};
use crate::plan::{BufferId, FieldId, FieldKind, PhaseKind};
use crate::spec::types::{Activation, NormWeight};
use monomorph_formats::{Format, ScaleForm};

/// The operands of a product.
#[derive(Clone, Copy)]
pub(super) struct Operands {
    pub x: BufferId,
    pub norm: Option<FieldId>,
    pub matrix: FieldId,
    pub biases: [Option<FieldId>; 2],
    pub epilogue: &'static str,
    pub activation: Activation,
    pub out: BufferId,
}

fn operands(kind: &PhaseKind) -> Option<Operands> {
    let none = Activation::Relu;
    Some(match *kind {
        PhaseKind::Project(blocks::Project { x, norm, matrix, bias, out }) => {
            let (biases, epilogue) = ([bias, None], "STORE");
            Operands { x, norm: Some(norm), matrix, biases, epilogue, activation: none, out }
        }
        PhaseKind::Linear(blocks::Linear { x, matrix, out }) => {
            let (biases, epilogue) = ([None, None], "STORE");
            Operands { x, norm: None, matrix, biases, epilogue, activation: none, out }
        }
        PhaseKind::Accumulate(blocks::Accumulate { x, matrix, bias, residual }) => {
            let (biases, epilogue) = ([bias, None], "ADD");
            Operands { x, norm: None, matrix, biases, epilogue, activation: none, out: residual }
        }
        PhaseKind::Gated(blocks::Gated { x, norm, matrix, biases, activation, out }) => {
            let biases = [biases.map(|it| it.0), biases.map(|it| it.1)];
            Operands { x, norm: Some(norm), matrix, biases, epilogue: "GATED", activation, out }
        }
        PhaseKind::ProjectDelta(blocks::ProjectDelta { x, norm, matrix, out, .. }) => {
            let (biases, epilogue) = ([None, None], "STORE");
            Operands { x, norm: Some(norm), matrix, biases, epilogue, activation: none, out }
        }
        PhaseKind::Propose(blocks::Propose { x, norm, matrix, out }) => {
            let (biases, epilogue) = ([None, None], "STORE");
            Operands { x, norm: Some(norm), matrix, biases, epilogue, activation: none, out }
        }
        PhaseKind::Embed(_)
        | PhaseKind::DraftEmbed(_)
        | PhaseKind::Attention(_)
        | PhaseKind::Delta(_)
        | PhaseKind::Experts(_)
        | PhaseKind::Combine(_)
        | PhaseKind::Select(_) => return None,
    })
}

impl Launcher<'_> {
    /// The matrix of a product, cut where a draft's head is.
    fn matrix_of(&self, kind: &PhaseKind, operands: &Operands) -> Matrix {
        let matrix = self.matrix(operands.matrix);
        match kind {
            PhaseKind::Propose(blocks::Propose { out, .. }) => {
                Matrix { rows: self.plan.buffer(*out).width, ..matrix }
            }
            _ => matrix,
        }
    }

    /// How a product with this matrix is computed in a phase.
    pub(super) fn style_of(&self, site: Site, matrix: &Matrix) -> Result<Style, PassError> {
        if matrix.exact {
            return Ok(Style::Stream);
        }
        if !matches!(matrix.format, Format::Bf16 | Format::F16 | Format::Fp8E4m3 | Format::Nvfp4) {
            let what = format!("there is no f16 product with {} weights", matrix.format);
            return Err(no_kernel(site, self.plan, &what));
        }
        let (knobs, rows) = (self.knobs(site), site.program.rows);
        // More than two rows that are long, or 4-bit floats to decode beside them, take more registers than a
        // thread may have.
        let two = matrix.format == Format::Nvfp4 || matrix.columns > 8192;
        let most = if two { knobs.stream_rows.min(2) } else { knobs.stream_rows };
        let few = site.program.regime == Regime::Decode && rows <= most as usize;
        let streams = few && stream::shape(matrix, rows, false, &knobs, self.card).is_some();
        Ok(if streams { Style::Stream } else { Style::Gemm })
    }

    /// The staged form of a buffer.
    pub(super) fn staged(&mut self, site: Site, buffer: BufferId, capacity: usize) -> Staged {
        let (name, width) = (self.plan.buffer(buffer).name.clone(), self.plan.buffer(buffer).width);
        debug_assert!(capacity >= site.program.rows, "every row has a place");
        self.scratch(&format!("staged_{name}"), staged_bytes(capacity, width), false)
    }

    pub(super) fn product(&mut self, site: Site, launches: &mut Vec<Launch>) -> Result<(), PassError> {
        let kind = &self.at(site).kind;
        let mut products = vec![("", operands(kind).expect("a product"))];
        if let PhaseKind::ProjectDelta(blocks::ProjectDelta { gates, gates_out, .. }) = *kind {
            products.push(("_gates", Operands { matrix: gates, out: gates_out, ..products[0].1 }));
        }
        if let [(_, wide), (_, narrow)] = &products[..] {
            let matrices = [self.matrix(wide.matrix), self.matrix(narrow.matrix)];
            for (operands, matrix) in [wide, narrow].into_iter().zip(&matrices) {
                self.check_scales(site, operands.matrix, matrix)?;
            }
            let [first, second] = &matrices;
            let styles = [self.style_of(site, first)?, self.style_of(site, second)?];
            let both = if styles == [Style::Stream; 2] {
                self.stream_beside(site, [wide, narrow], [first, second])
            } else {
                None
            };
            if let Some(launch) = both {
                launches.push(launch);
                return Ok(());
            }
        }
        let mut staged = None;
        for (suffix, operands) in products {
            let matrix = self.matrix_of(kind, &operands);
            self.check_scales(site, operands.matrix, &matrix)?;
            if self.style_of(site, &matrix)? == Style::Stream {
                launches.push(self.stream(site, suffix, &operands, &matrix)?);
                continue;
            }
            let capacity = site.program.rows.next_multiple_of(8);
            let x = match staged {
                Some(staged) => staged,
                None => {
                    let (launch, staged) = self.stage(site, operands.x, operands.norm, capacity);
                    launches.push(launch);
                    staged
                }
            };
            let out = self.buffer(site, operands.out);
            launches.push(self.gemm(site, suffix, &operands, &matrix, x, out)?);
            staged = Some(x);
        }
        Ok(())
    }

    /// Scales of 128 x 128 blocks belong to whole tiles: no tile may hold rows of two of the checkpoint's
    /// blocks or tensors.
    pub(super) fn check_scales(&self, site: Site, id: FieldId, matrix: &Matrix) -> Result<(), PassError> {
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

    /// The launch that stages a product's input, and where it leaves it.
    pub(super) fn stage(
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
        let instance = Instance::new(name, constants, threads);
        (self.launch(site, instance, self.grid_of_rows(site, 1), arguments), out)
    }

    /// `Norm::…` and the number added to the mean square.
    pub(super) fn norm(&self, field: Option<FieldId>) -> (Constant, f32) {
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

pub(super) fn activation(activation: Activation) -> Constant {
    value(match activation {
        Activation::Silu => "Activation::SILU",
        Activation::Gelu => "Activation::GELU",
        Activation::GeluTanh => "Activation::GELU_TANH",
        Activation::Relu => "Activation::RELU",
    })
}

pub(super) fn epilogue(operands: &Operands) -> [Member; 3] {
    [
        ("EPILOGUE", value(format!("Epilogue::{}", operands.epilogue))),
        ("ACTIVATION", activation(operands.activation)),
        ("BIAS", Constant::Flag(operands.biases[0].is_some())),
    ]
}

pub(super) fn limit(site: Site, all: bool) -> Constant {
    value(match (all, site.program.outputs()) {
        (true, _) => "Limit::NONE",
        (false, true) => "Limit::OUTPUTS",
        (false, false) => "Limit::TOKENS",
    })
}
