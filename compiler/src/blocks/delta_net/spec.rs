//! `[mixer.*]` of the kind `gated-delta-net`: its keys in MODEL.toml and its tensors.

use super::state::DeltaShape;
use crate::blocks::MixerSpec;
use crate::spec::diagnostic::Source;
use crate::spec::model::{ACTIVATIONS, MAX_HEADS, divides, norm};
use crate::spec::reader::Table;
use crate::spec::types::{Activation, Norm, TensorClass};
use crate::spec::{LayerTensors, words};

/// The gated delta-net (Yang et al., 2024) of the Qwen3-Next family: short causal convolutions of q, k and v;
/// a state matrix per value head that decays, is corrected towards the value and is read; a norm over each
/// head; and a gate.
#[derive(Clone, Debug, PartialEq)]
pub struct DeltaNet {
    /// Heads and widths.
    pub shape: DeltaShape,
    /// Norm of every head of the result.
    pub norm: Norm,
    /// Activation of the gate z.
    pub activation: Activation,
}

impl MixerSpec for DeltaNet {
    const KIND: &'static str = "gated-delta-net";
    const DECAYS: bool = true;

    fn read(source: &Source, mut table: Table) -> Option<DeltaNet> {
        let mut size = |key: &str, example: u32, most: u64| {
            table.required(key, &format!("{key} = {example}")).and_then(|it| it.size(1..=most))
        };
        let key_heads = size("key_heads", 16, MAX_HEADS);
        let value_heads = size("value_heads", 32, MAX_HEADS);
        let key_dim = size("key_dim", 128, MAX_HEADS);
        let value_dim = size("value_dim", 128, MAX_HEADS);
        let taps = size("taps", 4, 64);
        divides(source, &table, ("key_heads", &key_heads), &value_heads, "value heads", "key head");
        let example = "norm = { kind = \"rms\", weight = \"plain\", eps = 1e-6 }";
        let norm = table.required("norm", example).and_then(norm);
        let activation =
            table.required("activation", "activation = \"silu\"").and_then(|it| it.choice(&ACTIVATIONS));
        table.finish();
        let shape = DeltaShape {
            key_heads: key_heads?.value,
            value_heads: value_heads?.value,
            key_dim: key_dim?.value,
            value_dim: value_dim?.value,
            taps: taps?.value,
        };
        Some(DeltaNet { shape, norm: norm?, activation: activation?.value })
    }

    fn write(&self, _: &str) -> String {
        let (shape, norm) = (self.shape, words::norm(self.norm));
        format!(
            "key_heads = {}\nvalue_heads = {}\nkey_dim = {}\nvalue_dim = {}\ntaps = {}\n\
             norm = {norm} # over every value head\nactivation = \"{}\"\n",
            shape.key_heads,
            shape.value_heads,
            shape.key_dim,
            shape.value_dim,
            shape.taps,
            words::activation(self.activation)
        )
    }

    fn tensors(&self, list: &mut LayerTensors) {
        let (shape, hidden) = (self.shape, list.hidden);
        let (key, value) = (shape.key_width(), shape.value_width());
        for (part, rows) in [("q", key), ("k", key), ("v", value), ("z", value)] {
            list.matrix(&format!("delta.{part}"), TensorClass::DeltaNet, rows, hidden);
        }
        for part in ["b", "a"] {
            list.matrix(&format!("delta.{part}"), TensorClass::DeltaGates, shape.value_heads, hidden);
        }
        list.convolution("delta.convolution", shape.channels(), shape.taps);
        list.vector("delta.a_log", shape.value_heads);
        list.vector("delta.dt_bias", shape.value_heads);
        list.vector("delta.norm", shape.value_dim);
        list.matrix("delta.o", TensorClass::DeltaNet, hidden, value);
    }
}
