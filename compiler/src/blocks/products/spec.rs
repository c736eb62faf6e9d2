//! `[ffn]` of the kinds `gated` and `none`: their keys in MODEL.toml and their tensors.

use crate::blocks::{Built, FfnSpec, MixerSpec, Placed};
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
        place(tensor)
    }
}

impl Built for Gated {
    fn build(&self, graph: &mut Builder, body: &mut BodyBuilder, x: ValueId) -> Vec<ValueId> {
        let op = Op::Gate { activation: self.activation };
        vec![gated(graph, body, ("ffn", ""), op, x, self.bias)]
    }
}

/// Finds a projection of a dense block in the checkpoint.
fn place(tensor: &LayerTensor) -> Option<FileTensor> {
    let ["ffn", part] = *tensor.stem else { return None };
    Some(whole(format!("{}.{}.{}", tensor.modules.dense, tensor.modules.part(part)?, tensor.kind)))
}

/// `down(activation(up(x)))`.
#[derive(Clone, Debug, PartialEq)]
pub struct Ungated {
    /// Inner width.
    pub width: usize,
    /// Applied to every inner element.
    pub activation: Activation,
    /// Whether both projections have biases.
    pub bias: bool,
}

impl FfnSpec for Ungated {
    const KIND: &'static str = "ungated";

    fn read(source: &Source, table: Table) -> Option<Ungated> {
        let Gated { width, activation, bias } = Gated::read(source, table)?;
        Some(Ungated { width, activation, bias })
    }

    fn write(&self) -> String {
        let Ungated { width, activation, bias } = *self;
        Gated { width, activation, bias }.write()
    }

    fn tensors(&self, list: &mut LayerTensors) {
        list.ungated("ffn", TensorClass::Ffn, self.width, self.bias);
    }
}

impl Placed for Ungated {
    fn place(&self, tensor: &LayerTensor) -> Option<FileTensor> {
        place(tensor)
    }
}

impl Built for Ungated {
    fn build(&self, graph: &mut Builder, body: &mut BodyBuilder, x: ValueId) -> Vec<ValueId> {
        vec![ungated(graph, body, ("ffn", ""), self.activation, x, self.bias)]
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
    fn build(&self, _: &mut Builder, _: &mut BodyBuilder, _: ValueId) -> Vec<ValueId> {
        Vec::new()
    }
}

/// No mixer: a layer is its feed-forward block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NoMixer;

impl MixerSpec for NoMixer {
    const KIND: &'static str = "none";
    const MIXES: bool = false;

    fn read(_: &Source, table: Table) -> Option<NoMixer> {
        table.finish();
        Some(NoMixer)
    }

    fn write(&self, _: &str) -> String {
        String::new()
    }

    fn tensors(&self, _: &mut LayerTensors) {}
}

impl Placed for NoMixer {
    fn place(&self, _: &LayerTensor) -> Option<FileTensor> {
        None
    }
}

impl Built for NoMixer {
    fn build(&self, _: &mut Builder, _: &mut BodyBuilder, _: ValueId) -> Vec<ValueId> {
        Vec::new()
    }
}

/// Builds `down(activation(up(x)))`, named as in [`gated`].
pub(crate) fn ungated(
    graph: &mut Builder,
    body: &mut BodyBuilder,
    (prefix, values): (&str, &str),
    activation: Activation,
    x: ValueId,
    bias: bool,
) -> ValueId {
    let mut linear = |body: &mut BodyBuilder, part: &str, x| {
        let (value, name) = (format!("{values}{part}"), format!("layers.{{layer}}.{prefix}.{part}"));
        graph.linear(body, &value, &name, x, bias)
    };
    let up = linear(body, "up", x);
    let width = body.width(up);
    let op = Op::Activate { activation };
    let inner = body.node(&format!("{values}inner"), Rows::Tokens, width, op, &[up]);
    linear(body, "down", inner)
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
