//! Mamba-2's phases: rules, operands, cost.

use super::super::{Kind, PhaseKind};
use super::graph;
use super::spec::Shape;
use crate::blocks::products::project;
use crate::blocks::recurrent::CudaState;
use crate::emit::call::Call;
use crate::emit::names::Scratch;
use crate::passes::launch::{Launcher, Site};
use crate::passes::lower::{Fusion, Lowering, Slice};
use crate::passes::{PassError, pass_error};
use crate::plan::Packing::Stacked;
use crate::plan::cuda::Launch;
use crate::plan::{BufferId, FieldId, Keeps, Plan, Work};
use crate::spec::types::Target;
use proc_macro2::TokenStream;

/// Convolution, recurrence, gate, per-group norm.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Mamba2 {
    /// z, x, B, C and dt side by side.
    pub projected: BufferId,
    /// Convolution over x, B and C.
    pub convolution: FieldId,
    /// Bias of the convolution, one per channel.
    pub convolution_bias: FieldId,
    /// Logarithm of the decay rate, one per head.
    pub a_log: FieldId,
    /// Bias of the time step, one per head.
    pub dt_bias: FieldId,
    /// Weight of the skip connection from x, one per head.
    pub d: FieldId,
    /// Norm of the result.
    pub norm: FieldId,
    /// Added to the mean square of a group.
    pub eps: f32,
    /// Heads and widths.
    pub shape: Shape,
    /// One row holds all heads.
    pub out: BufferId,
}

impl Kind for Mamba2 {
    fn name(&self) -> &'static str {
        "mamba-2"
    }

    fn buffers(&self) -> (Vec<BufferId>, Vec<BufferId>) {
        (vec![self.projected], vec![self.out])
    }

    fn fields(&self) -> Vec<FieldId> {
        vec![self.convolution, self.convolution_bias, self.a_log, self.dt_bias, self.d, self.norm]
    }

    fn work(&self, work: &mut Work) {
        let shape = &self.shape;
        // Matrices are read and written once per sequence. All rows of the window but the newest are read,
        // and that one is written. Every token decays, adds and reads.
        let matrices = shape.heads * shape.state * shape.head_dim;
        let window = shape.taps * shape.channels();
        work.cost.state_bytes = (4 * (2 * matrices + window)) as f64;
        if work.target.hardware.cuda().is_none() {
            // One more version of the state for every draft.
            work.cost.state_bytes += (4 * matrices * (work.given.outputs - 1)) as f64;
        }
        work.cost.f32_products = (work.given.tokens * 3 * matrices) as f64;
    }

    fn scratch(&self, plan: &Plan) -> Option<Scratch> {
        Some(Mamba2::scratch(self, plan))
    }

    fn keeps(&self, target: &Target) -> Option<Keeps> {
        let shape = &self.shape;
        Some(Keeps::State(CudaState::kept(&shape.recurrence(), shape.keys(), target)))
    }

    fn cpu(&self, call: &Call) -> TokenStream {
        self.call(call)
    }

    fn cuda(&self, launcher: &mut Launcher, site: Site, launches: &mut Vec<Launch>) -> Result<(), PassError> {
        launcher.mamba2(site, self, launches)
    }
}

/// Mamba-2's fusion rules.
pub const FUSIONS: &[Fusion] = &[
    Fusion {
        name: "project-mamba-2",
        pattern: "n = rms-norm(x); z = linear(n); c = linear(n); d = linear(n) where z feeds mamba-2",
        matrices: &[(&["z", "c", "d"], Stacked)],
        buffers: &[],
        lower: |it| project(it, "z"),
    },
    Fusion { name: "mamba-2", pattern: "u = mamba-2(z, c, d)", matrices: &[], buffers: &[], lower: mamba2 },
];

fn mamba2(it: &Lowering) -> Result<PhaseKind, PassError> {
    let graph::Mamba2 { eps, shape, .. } = *it.block_op("u");
    let projected = it.whole("z")?;
    let expected = [("c", shape.inner()), ("d", shape.inner() + shape.channels())];
    if expected.iter().any(|(name, column)| it.slice(name) != Slice { buffer: projected, column: *column }) {
        return Err(pass_error!("the inputs of `{}` do not stand side by side", it.body.name));
    }
    let [convolution, convolution_bias, a_log, dt_bias, d, norm] = it.own("u");
    let out = it.whole("u")?;
    Ok(Mamba2 { projected, convolution, convolution_bias, a_log, dt_bias, d, norm, eps, shape, out }.into())
}
