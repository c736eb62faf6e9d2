//! The delta-net's phases: rules, operands, cost.

use super::super::{Kind, PhaseKind};
use super::graph::DeltaNet;
use super::state::DeltaShape;
use crate::blocks::products::apart;
use crate::blocks::products::cuda::Operands;
use crate::blocks::recurrent::CudaState;
use crate::emit::call::Call;
use crate::emit::names::Scratch;
use crate::graph::Op;
use crate::passes::launch::{Launcher, Site};
use crate::passes::lower::{Fusion, Lowering, Slice};
use crate::passes::{PassError, pass_error};
use crate::plan::Packing::Stacked;
use crate::plan::cuda::Launch;
use crate::plan::{BufferId, FieldId, Keeps, Plan, Work};
use crate::spec::types::{Activation, Target, ValueHeads};
use proc_macro2::TokenStream;

/// `out = matrix * round(norm(x))`, `gates_out = gates * round(norm(x))`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProjectDelta {
    /// Residual stream.
    pub x: BufferId,
    /// Norm before both products.
    pub norm: FieldId,
    /// q, k, v and z stacked.
    pub matrix: FieldId,
    /// b and a stacked.
    pub gates: FieldId,
    /// q, k, v and z side by side.
    pub out: BufferId,
    /// b and a side by side.
    pub gates_out: BufferId,
}

impl Kind for ProjectDelta {
    fn name(&self) -> &'static str {
        "project-delta"
    }

    fn buffers(&self) -> (Vec<BufferId>, Vec<BufferId>) {
        (vec![self.x], vec![self.gates_out, self.out])
    }

    fn fields(&self) -> Vec<FieldId> {
        vec![self.norm, self.matrix, self.gates]
    }

    fn streams(&self) -> Option<FieldId> {
        Some(self.matrix)
    }

    fn work(&self, work: &mut Work) {
        work.product(self.matrix, work.given.tokens);
        work.product(self.gates, work.given.tokens);
    }

    fn staged(&self) -> Vec<FieldId> {
        vec![self.matrix, self.gates]
    }

    fn cpu(&self, call: &Call) -> TokenStream {
        self.call(call)
    }

    fn cuda(&self, launcher: &mut Launcher, site: Site, launches: &mut Vec<Launch>) -> Result<(), PassError> {
        let product = |matrix, out| Operands::stored(self.x, matrix, out).normed(self.norm);
        let (wide, narrow) = (product(self.matrix, self.out), product(self.gates, self.gates_out));
        launcher.product_beside(site, wide, narrow, launches)
    }
}

/// Convolution, delta rule, per-head norm, gate.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Delta {
    /// q, k, v and z side by side.
    pub qkvz: BufferId,
    /// b and a side by side.
    pub ba: BufferId,
    /// Convolution over q, k and v.
    pub convolution: FieldId,
    /// Logarithm of the decay rate, one per value head.
    pub a_log: FieldId,
    /// Bias of the decay's time step, one per value head.
    pub dt_bias: FieldId,
    /// Norm of every head of the result.
    pub norm: FieldId,
    /// Activation of z.
    pub activation: Activation,
    /// Heads and widths.
    pub shape: DeltaShape,
    /// Which key head a value head reads.
    pub order: ValueHeads,
    /// One row holds all value heads.
    pub out: BufferId,
}

impl Kind for Delta {
    fn name(&self) -> &'static str {
        "delta"
    }

    fn buffers(&self) -> (Vec<BufferId>, Vec<BufferId>) {
        (vec![self.qkvz, self.ba], vec![self.out])
    }

    fn fields(&self) -> Vec<FieldId> {
        vec![self.convolution, self.a_log, self.dt_bias, self.norm]
    }

    fn work(&self, work: &mut Work) {
        let shape = &self.shape;
        // The matrices are read and written once per sequence. All rows of the window but the newest are
        // read, and that one is written. Every token decays, predicts, corrects and reads.
        let matrices = shape.value_heads * shape.key_dim * shape.value_dim;
        let window = shape.taps * (2 * shape.key_width() + shape.value_width());
        work.cost.state_bytes = (4 * (2 * matrices + window)) as f64;
        if work.target.hardware.cuda().is_none() {
            // One more version of the state for every draft.
            work.cost.state_bytes += (4 * matrices * (work.given.outputs - 1)) as f64;
        }
        work.cost.f32_products = (work.given.tokens * 3 * matrices) as f64;
    }

    fn scratch(&self, plan: &Plan) -> Option<Scratch> {
        Some(Delta::scratch(self, plan))
    }

    fn keeps(&self, target: &Target) -> Option<Keeps> {
        let shape = &self.shape;
        Some(Keeps::State(CudaState::kept(&shape.recurrence(), shape.key_width(), target)))
    }

    fn cpu(&self, call: &Call) -> TokenStream {
        self.call(call)
    }

    fn cuda(&self, launcher: &mut Launcher, site: Site, launches: &mut Vec<Launch>) -> Result<(), PassError> {
        launcher.delta(site, self, launches)
    }
}

/// The delta-net's fusion rules.
pub const FUSIONS: &[Fusion] = &[
    Fusion {
        name: "project-delta",
        pattern: "n = rms-norm(x); q = linear(n); k = linear(n); v = linear(n); z = linear(n); \
                  b = linear(n); a = linear(n)",
        matrices: &[(&["q", "k", "v", "z"], Stacked), (&["b", "a"], Stacked)],
        buffers: &[&["q", "k", "v", "z"], &["b", "a"]],
        lower: |it| {
            if let Some(apart) = apart(it)? {
                return Ok(apart.into());
            }
            Ok(ProjectDelta {
                x: it.whole("x")?,
                norm: it.norm("n"),
                matrix: it.matrix("q"),
                gates: it.matrix("b"),
                out: it.whole("q")?,
                gates_out: it.whole("b")?,
            }
            .into())
        },
    },
    Fusion {
        name: "delta",
        pattern: "r = delta-net(q, k, v, b, a); n = rms-norm(r); out = gate(z, n)",
        matrices: &[],
        buffers: &[],
        lower: delta,
    },
];

fn delta(it: &Lowering) -> Result<PhaseKind, PassError> {
    let DeltaNet { shape, order, .. } = *it.block_op::<DeltaNet>("r");
    let Op::Gate { activation } = *it.op("out") else { unreachable!("the rule says gate") };
    let (qkvz, ba) = (it.whole("q")?, it.whole("b")?);
    let (keys, values) = (shape.key_width(), shape.value_width());
    let expected = [
        ("k", qkvz, keys),
        ("v", qkvz, 2 * keys),
        ("z", qkvz, 2 * keys + values),
        ("a", ba, shape.value_heads),
    ];
    if expected.into_iter().any(|(name, buffer, column)| it.slice(name) != Slice { buffer, column }) {
        return Err(pass_error!("the inputs of `{}` do not stand side by side", it.body.name));
    }
    let [convolution, a_log, dt_bias] = it.own("r");
    let (norm, out) = (it.norm("n"), it.whole("out")?);
    Ok(Delta { qkvz, ba, convolution, a_log, dt_bias, norm, activation, shape, order, out }.into())
}
