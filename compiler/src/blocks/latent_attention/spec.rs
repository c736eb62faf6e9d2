//! `[mixer.*]` of the kind `latent-attention`: its keys in MODEL.toml and its tensors.

use crate::blocks::MixerSpec;
use crate::plan::KvHeads;
use crate::spec::diagnostic::Source;
use crate::spec::model::{MAX_CONTEXT, MAX_HEADS, norm, rotary};
use crate::spec::reader::{Table, Value};
use crate::spec::types::{Norm, Rotary, TensorClass};
use crate::spec::{LayerTensors, words};

/// Multi-head latent attention (DeepSeek-AI, 2024): causal, over a paged cache of one latent and one rotated
/// key a token.
#[derive(Clone, Debug, PartialEq)]
pub struct LatentAttention {
    /// Query heads, each with a key and a value of its own.
    pub heads: usize,
    /// Width of a head's key and query, besides what rotates.
    pub key_dim: usize,
    /// Width of a head's value.
    pub value_dim: usize,
    /// Width of the latent that keys and values are made of.
    pub latent: usize,
    /// Width of the latent that queries are made of, if they are made of one.
    pub query_latent: Option<usize>,
    /// Norm of latents.
    pub norm: Norm,
    /// Rotary position embedding of a further part of keys and queries, all of which rotates; the keys' part
    /// is one for all heads.
    pub rotary: Rotary,
    /// Multiplies the scores, unless that is one over the root of the width of a key.
    pub scale: Option<f32>,
    /// What multiplies queries by their position, if anything does.
    pub query_scale: Option<QueryScale>,
}

/// What multiplies queries: `1 + growth ln(1 + floor(position / original))`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct QueryScale {
    /// Multiplies the logarithm.
    pub growth: f32,
    /// Positions up to which queries stay as they are: the context of pre-training.
    pub original: usize,
}

impl LatentAttention {
    /// Width of a latent and its rotated key: what the cache keeps of a token.
    pub fn width(&self) -> usize {
        self.latent + self.rotary.dims
    }
}

impl MixerSpec for LatentAttention {
    const KIND: &'static str = "latent-attention";

    fn read(source: &Source, mut table: Table) -> Option<LatentAttention> {
        let mut size = |key: &str, example: u32| {
            table.required(key, &format!("{key} = {example}")).and_then(|it| it.size(1..=MAX_HEADS))
        };
        let heads = size("heads", 32);
        let key_dim = size("key_dim", 64);
        let value_dim = size("value_dim", 128);
        let latent = size("latent", 256);
        let query_latent = match table.optional("query_latent") {
            Some(value) => value.size(1..=MAX_HEADS).map(|it| Some(it.value)),
            None => Some(None),
        };
        let example = "norm = { kind = \"rms\", weight = \"plain\", eps = 1e-6 }";
        let norm = table.required("norm", example).and_then(norm);
        let example = "rotary = { dims = 64, theta = 10000.0, pairs = \"adjacent\" }";
        let rotary = table.required("rotary", example);
        let rotary = rotary.and_then(Value::table).and_then(|table| rotary::read(source, table, None));
        let scale = match table.optional("scale") {
            Some(value) => value.positive().map(|it| Some(it.value as f32)),
            None => Some(None),
        };
        let query_scale = match table.optional("query_scale") {
            Some(value) => value.table().and_then(query_scale).map(Some),
            None => Some(None),
        };
        table.finish();
        Some(LatentAttention {
            heads: heads?.value,
            key_dim: key_dim?.value,
            value_dim: value_dim?.value,
            latent: latent?.value,
            query_latent: query_latent?,
            norm: norm?,
            rotary: rotary?,
            scale: scale?,
            query_scale: query_scale?,
        })
    }

    fn write(&self, table: &str) -> String {
        let mut text = format!(
            "heads = {}\nkey_dim = {} # of a head, besides what rotates\nvalue_dim = {}\nlatent = {}\n",
            self.heads, self.key_dim, self.value_dim, self.latent
        );
        if let Some(width) = self.query_latent {
            text += &format!("query_latent = {width}\n");
        }
        text += &format!("norm = {} # of latents\n", words::norm(self.norm));
        if let Some(scale) = self.scale {
            text += &format!("scale = {scale:?} # of scores\n");
        }
        if let Some(QueryScale { growth, original }) = self.query_scale {
            text += &format!(
                "query_scale = {{ growth = {growth:?}, original = {original} }} \
                 # 1 + growth ln(1 + floor(position / original))\n"
            );
        }
        text + "\n" + &words::rotary(&self.rotary, &format!("{table}.rotary"))
    }

    fn tensors(&self, list: &mut LayerTensors) {
        let (hidden, rotated) = (list.hidden, self.rotary.dims);
        let attention = TensorClass::Attention;
        let read = self.query_latent.unwrap_or(hidden);
        if let Some(width) = self.query_latent {
            list.matrix("latent.q_a", attention, width, hidden);
            list.vector("latent.q_norm", width);
        }
        list.matrix("latent.q", attention, self.heads.saturating_mul(self.key_dim), read);
        list.matrix("latent.q_rotated", attention, self.heads.saturating_mul(rotated), read);
        list.matrix("latent.kv_a", attention, self.latent, hidden);
        list.matrix("latent.k_rotated", attention, rotated, hidden);
        list.vector("latent.kv_norm", self.latent);
        let made = self.key_dim + self.value_dim;
        list.matrix("latent.kv", TensorClass::LatentHeads, self.heads.saturating_mul(made), self.latent);
        list.matrix("latent.o", attention, hidden, self.heads.saturating_mul(self.value_dim));
    }

    fn kv(&self) -> Option<KvHeads> {
        Some(KvHeads { heads: 1, head_dim: self.width(), latent: Some(self.latent), window: None })
    }
}

/// Reads a table such as `{ growth = 0.1, original = 8192 }`.
fn query_scale(mut table: Table) -> Option<QueryScale> {
    let growth = table.required("growth", "growth = 0.1").and_then(Value::positive);
    let original = table.required("original", "original = 8192").and_then(|it| it.size(1..=MAX_CONTEXT));
    table.finish();
    Some(QueryScale { growth: growth?.value as f32, original: original?.value })
}
