//! `[mixer.*]` of the kind `mamba-2`: its keys in MODEL.toml and its tensors.

use crate::blocks::MixerSpec;
use crate::spec::LayerTensors;
use crate::spec::diagnostic::Source;
use crate::spec::model::{MAX_HEADS, divides};
use crate::spec::reader::Table;
use crate::spec::types::TensorClass;
use monomorph_abi::state::Recurrence;

/// Mamba-2 (Dao & Gu, 2024) as in Nemotron-H: a short causal convolution of inputs, `B` and `C`; a state
/// matrix per head that decays, takes in the input and is read; a gate; and a norm over each group of heads.
#[derive(Clone, Debug, PartialEq)]
pub struct Mamba2 {
    /// Heads and widths.
    pub shape: Shape,
    /// Added to the mean square of a group.
    pub eps: f32,
}

/// Heads and widths.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Heads, a multiple of `groups`; head `h` belongs to group `h * groups / heads`.
    pub heads: usize,
    /// Width of a head.
    pub head_dim: usize,
    /// Groups; each has its own `B` and `C` and its own mean square in the norm.
    pub groups: usize,
    /// Width of `B` and `C`: rows of a head's state.
    pub state: usize,
    /// Taps of the convolution, including the current token's.
    pub taps: usize,
}

impl Shape {
    /// Width of all heads.
    pub fn inner(&self) -> usize {
        self.heads * self.head_dim
    }

    /// Width of all groups' `B`, or of their `C`.
    pub fn keys(&self) -> usize {
        self.groups * self.state
    }

    /// Channels of the convolution: inputs, `B` and `C`.
    pub fn channels(&self) -> usize {
        self.inner() + 2 * self.keys()
    }

    /// State it keeps of a sequence: `[state, head_dim]` per head.
    pub(super) fn recurrence(&self) -> Recurrence {
        Recurrence {
            heads: self.heads,
            rows: self.state,
            columns: self.head_dim,
            channels: self.channels(),
            taps: self.taps,
        }
    }
}

impl MixerSpec for Mamba2 {
    const KIND: &'static str = "mamba-2";
    const DECAYS: bool = true;

    fn read(source: &Source, mut table: Table) -> Option<Mamba2> {
        let mut size = |key: &str, example: u32, most: u64| {
            table.required(key, &format!("{key} = {example}")).and_then(|it| it.size(1..=most))
        };
        let heads = size("heads", 64, MAX_HEADS);
        let head_dim = size("head_dim", 64, MAX_HEADS);
        let groups = size("groups", 8, MAX_HEADS);
        let state = size("state", 128, MAX_HEADS);
        let taps = size("taps", 4, 64);
        divides(source, &table, ("groups", &groups), &heads, "heads", "group");
        let small = |it: f64| (0.0..1.0).contains(&it);
        let eps = table.required("eps", "eps = 1e-5").and_then(|it| it.number("from 0 to below 1", small));
        table.finish();
        let shape = Shape {
            heads: heads?.value,
            head_dim: head_dim?.value,
            groups: groups?.value,
            state: state?.value,
            taps: taps?.value,
        };
        Some(Mamba2 { shape, eps: eps?.value as f32 })
    }

    fn write(&self, _: &str) -> String {
        let Shape { heads, head_dim, groups, state, taps } = self.shape;
        format!(
            "heads = {heads}\nhead_dim = {head_dim}\ngroups = {groups}\nstate = {state}\ntaps = {taps}\n\
             eps = {:?} # of the norm over every group\n",
            self.eps
        )
    }

    fn tensors(&self, list: &mut LayerTensors) {
        let (shape, hidden) = (self.shape, list.hidden);
        for (part, rows) in [("z", shape.inner()), ("xbc", shape.channels()), ("dt", shape.heads)] {
            list.matrix(&format!("mamba2.{part}"), TensorClass::Mamba2, rows, hidden);
        }
        list.convolution("mamba2.convolution", shape.channels(), shape.taps);
        list.vector("mamba2.convolution_bias", shape.channels());
        for part in ["a_log", "dt_bias", "d"] {
            list.vector(&format!("mamba2.{part}"), shape.heads);
        }
        list.vector("mamba2.norm", shape.inner());
        list.matrix("mamba2.o", TensorClass::Mamba2, hidden, shape.inner());
    }
}
