//! `[ffn]` of the kinds `gated` and `none`: their keys in MODEL.toml and their tensors.

use crate::blocks::{Built, FfnSpec, Placed};
use crate::graph::{BodyBuilder, Builder, Op, Rows, ValueId};
use crate::import::names::{LayerTensor, whole};
use crate::spec::diagnostic::Source;
use crate::spec::model::{ACTIVATIONS, MAX_WIDTH, flag};
use crate::spec::reader::Table;
use crate::spec::types::{Activation, FileTensor, TensorClass};
use crate::spec::{LayerTensors, words};

/// `down(activation(gate(x)) * up(x))`.
#[derive(Clone, Debug, PartialEq)]
pub struct Gated {
    /// Inner width.
    pub width: usize,
    /// Activation of the gate.
    pub activation: Activation,
    /// Whether all three projections have biases.
    pub bias: bool,
}

impl FfnSpec for Gated {
    const KIND: &'static str = "gated";

    fn read(_: &Source, mut table: Table) -> Option<Gated> {
        let width = table.required("width", "width = 1536").and_then(|it| it.size(1..=MAX_WIDTH));
        let activation =
            table.required("activation", "activation = \"silu\"").and_then(|it| it.choice(&ACTIVATIONS));
        let bias = flag(&mut table, "bias");
        table.finish();
        Some(Gated { width: width?.value, activation: activation?.value, bias: bias? })
    }

    fn write(&self) -> String {
        let bias = if self.bias { "bias = true\n" } else { "" };
        format!("width = {}\nactivation = \"{}\"\n{bias}", self.width, words::activation(self.activation))
    }

    fn tensors(&self, list: &mut LayerTensors) {
        list.gated("ffn", TensorClass::Ffn, self.width, self.bias);
    }
}

impl Placed for Gated {
    fn place(&self, tensor: &LayerTensor) -> Option<FileTensor> {
        let ["ffn", part] = *tensor.stem else { return None };
        Some(whole(format!("mlp.{part}_proj.{}", tensor.kind)))
    }
}

impl Built for Gated {
    fn build(&self, graph: &mut Builder, body: &mut BodyBuilder, x: ValueId) -> ValueId {
        let op = Op::Gate { activation: self.activation };
        gated(graph, body, ("ffn", ""), op, x, self.bias)
    }
}

/// Nothing: a layer ends with its mixer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Nothing;

impl FfnSpec for Nothing {
    const KIND: &'static str = "none";
    const FOLLOWS: bool = false;

    fn read(_: &Source, table: Table) -> Option<Nothing> {
        table.finish();
        Some(Nothing)
    }

    fn write(&self) -> String {
        String::new()
    }

    fn tensors(&self, _: &mut LayerTensors) {}
}

impl Placed for Nothing {
    fn place(&self, _: &LayerTensor) -> Option<FileTensor> {
        None
    }
}

impl Built for Nothing {
    fn build(&self, _: &mut Builder, _: &mut BodyBuilder, x: ValueId) -> ValueId {
        x
    }
}

/// Builds `down(gate(x) .. up(x))`. Weights are named `layers.{layer}.{prefix}.…`, values `{values}gate` and
/// so on.
pub(crate) fn gated(
    graph: &mut Builder,
    body: &mut BodyBuilder,
    (prefix, values): (&str, &str),
    op: Op,
    x: ValueId,
    bias: bool,
) -> ValueId {
    let mut linear = |body: &mut BodyBuilder, part: &str, x| {
        let (value, name) = (format!("{values}{part}"), format!("layers.{{layer}}.{prefix}.{part}"));
        graph.linear(body, &value, &name, x, bias)
    };
    let gate = linear(body, "gate", x);
    let up = linear(body, "up", x);
    let width = body.width(up);
    let inner = body.node(&format!("{values}inner"), Rows::Tokens, width, op, &[gate, up]);
    linear(body, "down", inner)
}
