//! `[mixer.*]` of the kind `attention`: its keys in MODEL.toml and its tensors.

use crate::blocks::MixerSpec;
use crate::plan::KvHeads;
use crate::spec::diagnostic::Source;
use crate::spec::model::{MAX_CONTEXT, MAX_HEADS, bare_norm, divides, flag, norm, rotary};
use crate::spec::reader::Table;
use crate::spec::types::{Norm, Rotary, TensorClass};
use crate::spec::{LayerTensors, words};

/// Causal grouped-query attention over a paged cache.
#[derive(Clone, Debug, PartialEq)]
pub struct Attention {
    /// Query heads, a multiple of `kv_heads`.
    pub heads: usize,
    /// Key and value heads.
    pub kv_heads: usize,
    /// Width of one head.
    pub head_dim: usize,
    /// Rotary position embedding; without one, attention knows of positions only which come first.
    pub rotary: Option<Rotary>,
    /// RMS norm of queries and keys, before rotary.
    pub qk_norm: Option<Norm>,
    /// Whether that norm is over all heads of a row together, with a weight per element, not over each head.
    pub norm_rows: bool,
    /// Added to the mean square in a norm of value heads, which has no weight.
    pub v_norm: Option<f32>,
    /// Whether values are what keys are made of, before it is normed and rotated: there is no projection v.
    pub keys_as_values: bool,
    /// Multiplies the scores, unless that is one over the root of the head's width.
    pub scale: Option<f32>,
    /// Tokens that a query attends to at most, its own among them: those before it are never read again.
    pub window: Option<usize>,
    /// Whether the q, k and v projections have biases.
    pub qkv_bias: bool,
    /// Whether the output projection has a bias.
    pub output_bias: bool,
    /// Whether every element is multiplied by the sigmoid of a projection of its own before the output
    /// projection.
    pub gate: bool,
}

impl MixerSpec for Attention {
    const KIND: &'static str = "attention";

    fn read(source: &Source, mut table: Table) -> Option<Attention> {
        let mut size = |key: &str, example: u32| {
            table.required(key, &format!("{key} = {example}")).and_then(|it| it.size(1..=MAX_HEADS))
        };
        let heads = size("heads", 16);
        let kv_heads = size("kv_heads", 4);
        let head_dim = size("head_dim", 64);
        divides(source, &table, ("kv_heads", &kv_heads), &heads, "query heads", "K/V head");
        let rotary_example = "rotary = { dims = 64, theta = 10000.0, pairs = \"halves\" }";
        let rotary = table.required("rotary", rotary_example);
        let rotary = rotary.and_then(|value| rotary::or_none(source, value, head_dim.as_ref()));
        let qk_norm = match table.optional("qk_norm") {
            Some(value) => norm(value).map(Some),
            None => Some(None),
        };
        // Without a norm, nothing is over anything: the key is unknown.
        let over = if qk_norm == Some(None) { None } else { table.optional("qk_norm_over") };
        let norm_rows = match over {
            Some(value) => value.choice(&[("heads", false), ("rows", true)]).map(|it| it.value),
            None => Some(false),
        };
        let v_norm = match table.optional("v_norm") {
            Some(value) => bare_norm(value).map(Some),
            None => Some(None),
        };
        let keys_as_values = match table.optional("values") {
            Some(value) => value.choice(&[("keys", true)]).map(|it| it.value),
            None => Some(false),
        };
        let scale = match table.optional("scale") {
            Some(value) => value.positive().map(|it| Some(it.value as f32)),
            None => Some(None),
        };
        let window = match table.optional("window") {
            Some(value) => value.size(1..=MAX_CONTEXT).map(|it| Some(it.value)),
            None => Some(None),
        };
        let qkv_bias = flag(&mut table, "qkv_bias");
        let output_bias = flag(&mut table, "output_bias");
        let gate = match table.optional("gate") {
            Some(value) => value.choice(&[("sigmoid", true)]).map(|it| it.value),
            None => Some(false),
        };
        table.finish();
        Some(Attention {
            heads: heads?.value,
            kv_heads: kv_heads?.value,
            head_dim: head_dim?.value,
            rotary: rotary?,
            qk_norm: qk_norm?,
            norm_rows: norm_rows?,
            v_norm: v_norm?,
            keys_as_values: keys_as_values?,
            scale: scale?,
            window: window?,
            qkv_bias: qkv_bias?,
            output_bias: output_bias?,
            gate: gate?,
        })
    }

    fn write(&self, table: &str) -> String {
        let mut text =
            format!("heads = {}\nkv_heads = {}\nhead_dim = {}\n", self.heads, self.kv_heads, self.head_dim);
        if let Some(norm) = self.qk_norm {
            let over = if self.norm_rows { "\nqk_norm_over = \"rows\"" } else { " # over every head" };
            text += &format!("qk_norm = {}{over}\n", words::norm(norm));
        }
        if let Some(eps) = self.v_norm {
            text += &format!("v_norm = {{ kind = \"rms\", weight = \"none\", eps = {eps:?} }}\n");
        }
        if self.keys_as_values {
            text += "values = \"keys\" # before these are normed and rotated\n";
        }
        if let Some(scale) = self.scale {
            text += &format!("scale = {scale:?} # of scores\n");
        }
        if let Some(window) = self.window {
            text += &format!("window = {window} # tokens, a query's own among them\n");
        }
        if self.qkv_bias {
            text += "qkv_bias = true\n";
        }
        if self.output_bias {
            text += "output_bias = true\n";
        }
        if self.gate {
            text += "gate = \"sigmoid\"\n";
        }
        match &self.rotary {
            None => text + "rotary = \"none\"\n",
            Some(rotary) => text + "\n" + &words::rotary(rotary, &format!("{table}.rotary")),
        }
    }

    fn tensors(&self, list: &mut LayerTensors) {
        let (q, kv) = (self.heads.saturating_mul(self.head_dim), self.kv_heads.saturating_mul(self.head_dim));
        let hidden = list.hidden;
        let parts = [
            ("q", q, hidden, self.qkv_bias, true),
            ("gate", q, hidden, self.qkv_bias, self.gate),
            ("k", kv, hidden, self.qkv_bias, true),
            ("v", kv, hidden, self.qkv_bias, !self.keys_as_values),
            ("o", hidden, q, self.output_bias, true),
        ];
        for (part, rows, columns, bias, _) in parts.into_iter().filter(|(.., there)| *there) {
            let name = format!("attention.{part}");
            list.matrix(&name, TensorClass::Attention, rows, columns);
            if bias {
                list.vector(&format!("{name}.bias"), rows);
            }
        }
        if self.qk_norm.is_some() {
            let of = |row| if self.norm_rows { row } else { self.head_dim };
            list.vector("attention.q_norm", of(q));
            list.vector("attention.k_norm", of(kv));
        }
    }

    fn kv(&self) -> Option<KvHeads> {
        let (heads, head_dim) = (self.kv_heads, self.head_dim);
        Some(KvHeads { heads, head_dim, latent: None, window: self.window })
    }
}
