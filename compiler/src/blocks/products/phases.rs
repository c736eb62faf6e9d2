//! Phases of matrix products: rules, operands, cost.

use super::super::{Kind, PhaseKind};
use super::kernels::{GemmMma, GemmMmaSum, GemmWgmma, GemmWgmmaSum, StreamBeside, StreamProduct, StreamSum};
use crate::emit::call::Call;
use crate::graph::Op;
use crate::kernels::{Arguments, Signature};
use crate::passes::launch::{Launcher, Site};
use crate::passes::lower::{Fusion, Lowering, SideProduct};
use crate::passes::{PassError, pass_error};
use crate::plan::Packing::{self, Stacked};
use crate::plan::cuda::{Cut, Launch};
use crate::plan::{BufferId, FieldId, Work};
use crate::spec::types::Activation;
use proc_macro2::TokenStream;

/// What cuts a product's kernel.
pub(crate) fn cut(kernel: &Signature) -> Option<Cut> {
    let streams = [StreamProduct::SIGNATURE, StreamSum::SIGNATURE, StreamBeside::SIGNATURE];
    let gemms = [GemmMma::SIGNATURE, GemmMmaSum::SIGNATURE, GemmWgmma::SIGNATURE, GemmWgmmaSum::SIGNATURE];
    match streams.contains(&kernel) {
        true => Some(Cut::Stream),
        false => gemms.contains(&kernel).then_some(Cut::Gemm),
    }
}

/// `out = activation(matrix * round(norm(x)) + bias)`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Project {
    /// Input, before the norm.
    pub x: BufferId,
    /// Norm before the product.
    pub norm: FieldId,
    /// One or more matrices stacked.
    pub matrix: FieldId,
    /// Biases of all of them.
    pub bias: Option<FieldId>,
    /// Activation of the results, if there is one.
    pub activation: Option<Activation>,
    /// Results side by side.
    pub out: BufferId,
}

impl Kind for Project {
    fn name(&self) -> &'static str {
        "project"
    }

    fn buffers(&self) -> (Vec<BufferId>, Vec<BufferId>) {
        (vec![self.x], vec![self.out])
    }

    fn fields(&self) -> Vec<FieldId> {
        [self.norm, self.matrix].into_iter().chain(self.bias).collect()
    }

    fn streams(&self) -> Option<FieldId> {
        Some(self.matrix)
    }

    fn work(&self, work: &mut Work) {
        work.product(self.matrix, work.rows(self.out));
    }

    fn cpu(&self, call: &Call) -> TokenStream {
        self.call(call)
    }

    fn cuda(&self, launcher: &mut Launcher, site: Site, launches: &mut Vec<Launch>) -> Result<(), PassError> {
        launcher.product(site, self.operands(), launches)
    }
}

/// `out[column..] = matrix * round(norm(x)) + bias` of several matrices, in formats of their own. Of CPUs
/// only.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProjectApart {
    /// Input, before the norm.
    pub x: BufferId,
    /// Norm before the products.
    pub norm: FieldId,
    /// In the order of their results; those of one buffer fill it.
    pub products: Vec<SideProduct>,
}

impl Kind for ProjectApart {
    fn name(&self) -> &'static str {
        "project-apart"
    }

    fn buffers(&self) -> (Vec<BufferId>, Vec<BufferId>) {
        let mut written: Vec<BufferId> = self.products.iter().rev().map(|product| product.out).collect();
        written.dedup();
        (vec![self.x], written)
    }

    fn fields(&self) -> Vec<FieldId> {
        let biases = self.products.iter().filter_map(|product| product.bias);
        std::iter::once(self.norm).chain(self.staged()).chain(biases).collect()
    }

    fn streams(&self) -> Option<FieldId> {
        self.products.first().map(|product| product.matrix)
    }

    fn work(&self, work: &mut Work) {
        for product in &self.products {
            work.product(product.matrix, work.rows(product.out));
        }
    }

    fn staged(&self) -> Vec<FieldId> {
        self.products.iter().map(|product| product.matrix).collect()
    }

    fn apart(&self) -> Vec<FieldId> {
        self.staged()
    }

    fn cpu(&self, call: &Call) -> TokenStream {
        self.call(call)
    }

    fn cuda(&self, _: &mut Launcher, _: Site, _: &mut Vec<Launch>) -> Result<(), PassError> {
        Err(pass_error!("no kernel multiplies matrices of several formats as one"))
    }
}

/// `residual += matrix * round(x) + bias`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Accumulate {
    /// Input of the product.
    pub x: BufferId,
    /// Matrix of the product.
    pub matrix: FieldId,
    /// Its bias, if it has one.
    pub bias: Option<FieldId>,
    /// Residual stream, read and written.
    pub residual: BufferId,
}

impl Kind for Accumulate {
    fn name(&self) -> &'static str {
        "accumulate"
    }

    fn buffers(&self) -> (Vec<BufferId>, Vec<BufferId>) {
        (vec![self.x, self.residual], vec![self.residual])
    }

    fn fields(&self) -> Vec<FieldId> {
        std::iter::once(self.matrix).chain(self.bias).collect()
    }

    fn streams(&self) -> Option<FieldId> {
        Some(self.matrix)
    }

    fn sums(&self, launcher: &Launcher, site: Site) -> Result<bool, PassError> {
        Ok(launcher.with_sum(site, self.operands())?.is_some())
    }

    fn work(&self, work: &mut Work) {
        work.product(self.matrix, work.rows(self.residual));
    }

    fn cpu(&self, call: &Call) -> TokenStream {
        self.call(call)
    }

    fn cuda(&self, launcher: &mut Launcher, site: Site, launches: &mut Vec<Launch>) -> Result<(), PassError> {
        let operands = self.operands();
        let operands = launcher.with_sum(site, operands)?.unwrap_or(operands);
        launcher.product(site, operands, launches)
    }
}

/// `out = activation(gate * round(norm(x))) * (up * round(norm(x)))`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gated {
    /// Residual stream.
    pub x: BufferId,
    /// Norm before both products.
    pub norm: FieldId,
    /// Gate and up, [`Packing::Gated`](crate::plan::Packing::Gated); or the gate alone, beside `up`.
    pub matrix: FieldId,
    /// Up, where its format is not the gate's. Of CPUs only.
    pub up: Option<FieldId>,
    /// Biases of gate and up.
    pub biases: Option<(FieldId, FieldId)>,
    /// Activation of the gate.
    pub activation: Activation,
    /// Input of the down product.
    pub out: BufferId,
}

impl Kind for Gated {
    fn name(&self) -> &'static str {
        "gated"
    }

    fn buffers(&self) -> (Vec<BufferId>, Vec<BufferId>) {
        (vec![self.x], vec![self.out])
    }

    fn fields(&self) -> Vec<FieldId> {
        let biases = self.biases.into_iter().flat_map(|(gate, up)| [gate, up]);
        [self.norm, self.matrix].into_iter().chain(self.up).chain(biases).collect()
    }

    fn streams(&self) -> Option<FieldId> {
        Some(self.matrix)
    }

    fn work(&self, work: &mut Work) {
        for matrix in self.staged() {
            work.product(matrix, work.rows(self.out));
        }
    }

    fn staged(&self) -> Vec<FieldId> {
        [self.matrix].into_iter().chain(self.up).collect()
    }

    fn apart(&self) -> Vec<FieldId> {
        self.up.map_or(Vec::new(), |up| vec![self.matrix, up])
    }

    fn cpu(&self, call: &Call) -> TokenStream {
        self.call(call)
    }

    fn cuda(&self, launcher: &mut Launcher, site: Site, launches: &mut Vec<Launch>) -> Result<(), PassError> {
        launcher.product(site, self.operands(), launches)
    }
}

/// `out = matrix * round(x) + bias`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Linear {
    /// Input of the product.
    pub x: BufferId,
    /// Matrix of the product.
    pub matrix: FieldId,
    /// Its bias, if it has one.
    pub bias: Option<FieldId>,
    /// Where the product goes.
    pub out: BufferId,
}

impl Kind for Linear {
    fn name(&self) -> &'static str {
        "linear"
    }

    fn buffers(&self) -> (Vec<BufferId>, Vec<BufferId>) {
        (vec![self.x], vec![self.out])
    }

    fn fields(&self) -> Vec<FieldId> {
        std::iter::once(self.matrix).chain(self.bias).collect()
    }

    fn streams(&self) -> Option<FieldId> {
        Some(self.matrix)
    }

    fn sums(&self, launcher: &Launcher, site: Site) -> Result<bool, PassError> {
        Ok(launcher.with_sum(site, self.operands())?.is_some())
    }

    fn work(&self, work: &mut Work) {
        work.product(self.matrix, work.rows(self.out));
    }

    fn cpu(&self, call: &Call) -> TokenStream {
        self.call(call)
    }

    fn cuda(&self, launcher: &mut Launcher, site: Site, launches: &mut Vec<Launch>) -> Result<(), PassError> {
        let operands = self.operands();
        let operands = launcher.with_sum(site, operands)?.unwrap_or(operands);
        launcher.product(site, operands, launches)
    }
}

/// Fusion rules of matrix products.
pub const FUSIONS: &[Fusion] = &[
    Fusion {
        name: "project",
        pattern: "n = rms-norm(x); q = linear(n); k = linear(n); v = linear(n) where v feeds attention",
        matrices: &[(&["q", "k", "v"], Stacked)],
        buffers: &[],
        lower: |it| project(it, "q"),
    },
    // Values are normed.
    Fusion {
        name: "project-values-normed",
        pattern: "n = rms-norm(x); q = linear(n); k = linear(n); v = linear(n) where v feeds normalise",
        matrices: &[(&["q", "k", "v"], Stacked)],
        buffers: &[],
        lower: |it| project(it, "q"),
    },
    // Values are what keys are made of.
    Fusion {
        name: "project-keys",
        pattern: "n = rms-norm(x); q = linear(n); k = linear(n) where q feeds rms-norm",
        matrices: &[(&["q", "k"], Stacked)],
        buffers: &[],
        lower: |it| project(it, "q"),
    },
    // With a separate projection for the gates.
    Fusion {
        name: "project-gated",
        pattern: "n = rms-norm(x); q = linear(n); g = linear(n); k = linear(n); v = linear(n) \
                  where v feeds attention",
        matrices: &[(&["q", "g", "k", "v"], Stacked)],
        buffers: &[],
        lower: |it| project(it, "q"),
    },
    Fusion {
        name: "accumulate",
        pattern: "y = linear(x); out = add(residual, y)",
        matrices: &[(&["y"], Stacked)],
        buffers: &[],
        lower: |it| {
            let (x, residual) = (it.whole("x")?, it.whole("residual")?);
            Ok(Accumulate { x, matrix: it.matrix("y"), bias: it.bias("y"), residual }.into())
        },
    },
    Fusion {
        name: "gated",
        pattern: "n = rms-norm(x); g = linear(n); u = linear(n); out = gate(g, u)",
        matrices: &[(&["g", "u"], Packing::Gated)],
        buffers: &[],
        lower: |it| {
            let Op::Gate { activation } = *it.op("out") else { unreachable!("the rule says gate") };
            let (x, out) = (it.whole("x")?, it.whole("out")?);
            let (matrix, up, biases) = (it.matrix("g"), it.up("g"), it.bias("g").zip(it.bias("u")));
            Ok(Gated { x, norm: it.norm("n"), matrix, up, biases, activation, out }.into())
        },
    },
    Fusion {
        name: "activated",
        pattern: "n = rms-norm(x); u = linear(n); out = activate(u)",
        matrices: &[(&["u"], Stacked)],
        buffers: &[],
        lower: |it| {
            let Op::Activate { activation } = *it.op("out") else { unreachable!("the rule says activate") };
            let (x, bias, out) = (it.whole("x")?, it.bias("u"), it.whole("out")?);
            let activation = Some(activation);
            Ok(Project { x, norm: it.norm("n"), matrix: it.matrix("u"), bias, activation, out }.into())
        },
    },
    Fusion {
        name: "linear",
        pattern: "out = linear(x) where x is concat",
        matrices: &[(&["out"], Stacked)],
        buffers: &[],
        lower: stored,
    },
    // What a drafter keeps of a token.
    Fusion {
        name: "linear-to-keep",
        pattern: "k = linear(x); v = linear(x) where v feeds keep-context",
        matrices: &[(&["k", "v"], Stacked)],
        buffers: &[],
        lower: |it| {
            let (x, out) = (it.whole("x")?, it.whole("k")?);
            Ok(Linear { x, matrix: it.matrix("k"), bias: it.bias("k"), out }.into())
        },
    },
    // What is normed before it is added to the residual stream.
    Fusion {
        name: "linear-of-attention",
        pattern: "out = linear(x) where x is attention, out feeds rms-norm",
        matrices: &[(&["out"], Stacked)],
        buffers: &[],
        lower: stored,
    },
    Fusion {
        name: "linear-of-gate",
        pattern: "out = linear(x) where x is gate, out feeds rms-norm",
        matrices: &[(&["out"], Stacked)],
        buffers: &[],
        lower: stored,
    },
    // The same, of which each rank has a part.
    Fusion {
        name: "linear-part-of-attention",
        pattern: "out = linear(x) where x is attention, out feeds total",
        matrices: &[(&["out"], Stacked)],
        buffers: &[],
        lower: stored,
    },
    Fusion {
        name: "linear-part-of-gate",
        pattern: "out = linear(x) where x is gate, out feeds total",
        matrices: &[(&["out"], Stacked)],
        buffers: &[],
        lower: stored,
    },
];

/// The products of `n`, where not all that stand side by side are of one matrix.
pub(crate) fn apart(it: &Lowering) -> Result<Option<ProjectApart>, PassError> {
    let products = it.products();
    if products.iter().all(|product| product.column == 0) {
        return Ok(None);
    }
    Ok(Some(ProjectApart { x: it.whole("x")?, norm: it.norm("n"), products }))
}

/// A product that is stored: `out` of `x`.
pub(crate) fn stored(it: &Lowering) -> Result<PhaseKind, PassError> {
    let (x, matrix, bias, out) = (it.whole("x")?, it.matrix("out"), it.bias("out"), it.whole("out")?);
    Ok(Linear { x, matrix, bias, out }.into())
}

/// The projections of `n`, the first of which is `first`.
pub(crate) fn project(it: &Lowering, first: &str) -> Result<PhaseKind, PassError> {
    if let Some(apart) = apart(it)? {
        return Ok(apart.into());
    }
    let (x, out) = (it.whole("x")?, it.whole(first)?);
    let (matrix, bias) = (it.matrix(first), it.bias(first));
    Ok(Project { x, norm: it.norm("n"), matrix, bias, activation: None, out }.into())
}
