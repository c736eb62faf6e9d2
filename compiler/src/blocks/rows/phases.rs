//! Phases on whole rows: rules, operands, cost.

use super::super::{Kind, PhaseKind};
use crate::emit::call::Call;
use crate::graph::Op;
use crate::passes::PassError;
use crate::passes::launch::{Launcher, Site};
use crate::passes::lower::{Fusion, Lowering};
use crate::plan::cuda::Launch;
use crate::plan::{BufferId, FieldId, Work};
use proc_macro2::TokenStream;

/// `residual += norm(x)`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AddNormed {
    /// What is normed.
    pub x: BufferId,
    /// Its weights.
    pub norm: FieldId,
    /// Residual stream, read and written.
    pub residual: BufferId,
}

impl Kind for AddNormed {
    fn name(&self) -> &'static str {
        "add-normed"
    }

    fn buffers(&self) -> (Vec<BufferId>, Vec<BufferId>) {
        (vec![self.x, self.residual], vec![self.residual])
    }

    fn fields(&self) -> Vec<FieldId> {
        vec![self.norm]
    }

    fn work(&self, _: &mut Work) {}

    fn cpu(&self, call: &Call) -> TokenStream {
        self.call(call)
    }

    fn cuda(&self, launcher: &mut Launcher, site: Site, launches: &mut Vec<Launch>) -> Result<(), PassError> {
        launches.push(launcher.add_normed(site, self));
        Ok(())
    }
}

/// `sum = own(sum) + norm(x)`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SumNormed {
    /// What is normed and added.
    pub x: BufferId,
    /// Weights of its norm.
    pub norm: FieldId,
    /// The other summand, which is normed too; then the sum.
    pub sum: BufferId,
    /// The norm of that.
    pub own: FieldId,
}

impl Kind for SumNormed {
    fn name(&self) -> &'static str {
        "sum-normed"
    }

    fn buffers(&self) -> (Vec<BufferId>, Vec<BufferId>) {
        (vec![self.x, self.sum], vec![self.sum])
    }

    fn fields(&self) -> Vec<FieldId> {
        vec![self.norm, self.own]
    }

    fn work(&self, _: &mut Work) {}

    fn cpu(&self, call: &Call) -> TokenStream {
        self.call(call)
    }

    fn cuda(&self, launcher: &mut Launcher, site: Site, launches: &mut Vec<Launch>) -> Result<(), PassError> {
        launches.push(launcher.sum_normed(site, self));
        Ok(())
    }
}

/// `x *= factor`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Scale {
    /// Read and written.
    pub x: BufferId,
    /// One number.
    pub factor: FieldId,
}

impl Kind for Scale {
    fn name(&self) -> &'static str {
        "scale"
    }

    fn buffers(&self) -> (Vec<BufferId>, Vec<BufferId>) {
        (vec![self.x], vec![self.x])
    }

    fn fields(&self) -> Vec<FieldId> {
        vec![self.factor]
    }

    fn work(&self, _: &mut Work) {}

    fn cpu(&self, call: &Call) -> TokenStream {
        self.call(call)
    }

    fn cuda(&self, launcher: &mut Launcher, site: Site, launches: &mut Vec<Launch>) -> Result<(), PassError> {
        launches.extend(launcher.scale(site, self));
        Ok(())
    }
}

/// `x = cap tanh(x / cap)`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Cap {
    /// Read and written.
    pub x: BufferId,
    /// The bound.
    pub cap: f32,
}

impl Kind for Cap {
    fn name(&self) -> &'static str {
        "cap"
    }

    fn buffers(&self) -> (Vec<BufferId>, Vec<BufferId>) {
        (vec![self.x], vec![self.x])
    }

    fn fields(&self) -> Vec<FieldId> {
        vec![]
    }

    fn work(&self, _: &mut Work) {}

    fn cpu(&self, call: &Call) -> TokenStream {
        self.call(call)
    }

    fn cuda(&self, launcher: &mut Launcher, site: Site, launches: &mut Vec<Launch>) -> Result<(), PassError> {
        launches.push(launcher.cap(site, self));
        Ok(())
    }
}

/// Fusion rules of whole rows. What they change stays in its buffer.
pub const FUSIONS: &[Fusion] = &[
    Fusion {
        name: "add-normed",
        pattern: "n = rms-norm(y); out = add(residual, n) where y is linear",
        matrices: &[],
        buffers: &[],
        lower: add_normed,
    },
    Fusion {
        name: "add-normed-sum",
        pattern: "n = rms-norm(y); out = add(residual, n) where y is add",
        matrices: &[],
        buffers: &[],
        lower: add_normed,
    },
    // Of which each rank had a part.
    Fusion {
        name: "add-normed-total",
        pattern: "n = rms-norm(y); out = add(residual, n) where y is total, residual is not rms-norm",
        matrices: &[],
        buffers: &[],
        lower: add_normed,
    },
    // Of two branches.
    Fusion {
        name: "sum-normed",
        pattern: "a = rms-norm(residual); b = rms-norm(y); out = add(a, b) where y is expert-down",
        matrices: &[],
        buffers: &[],
        lower: sum_normed,
    },
    Fusion {
        name: "sum-normed-totals",
        pattern: "a = rms-norm(residual); b = rms-norm(y); out = add(a, b) where y is total",
        matrices: &[],
        buffers: &[],
        lower: sum_normed,
    },
    Fusion {
        name: "scale",
        pattern: "out = scale-by(residual)",
        matrices: &[],
        buffers: &[],
        lower: |it| {
            let [factor] = it.own("out");
            Ok(Scale { x: it.whole("residual")?, factor }.into())
        },
    },
    Fusion {
        name: "cap",
        pattern: "out = cap(residual)",
        matrices: &[],
        buffers: &[],
        lower: |it| {
            let Op::Cap { cap } = *it.op("out") else { unreachable!("the rule says cap") };
            Ok(Cap { x: it.whole("residual")?, cap }.into())
        },
    },
];

fn sum_normed(it: &Lowering) -> Result<PhaseKind, PassError> {
    let (x, sum) = (it.whole("y")?, it.whole("residual")?);
    Ok(SumNormed { x, norm: it.norm("b"), sum, own: it.norm("a") }.into())
}

fn add_normed(it: &Lowering) -> Result<PhaseKind, PassError> {
    Ok(AddNormed { x: it.whole("y")?, norm: it.norm("n"), residual: it.whole("residual")? }.into())
}
