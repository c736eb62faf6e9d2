//! Names and orders that llama.cpp's converters give to tensors.

use crate::spec::types::{FileTensor, RotaryRows, RowView};

/// A value of `general.architecture`.
#[derive(Debug)]
pub(in super::super) struct Architecture {
    pub(in super::super) name: &'static str,
    /// The family, as a config's `model_type` names it.
    pub(super) family: &'static str,
    /// Order of the rows of queries and keys.
    pub(in super::super) rotary_rows: RotaryRows,
    pub(super) experts: Mixture,
}

/// The experts of an architecture.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mixture {
    None,
    /// Chosen by softmax.
    Qwen,
    /// Chosen by sigmoid and a correction.
    MiniMax,
}

const fn known(
    name: &'static str,
    family: &'static str,
    rotary_rows: RotaryRows,
    experts: Mixture,
) -> Architecture {
    Architecture { name, family, rotary_rows, experts }
}

pub(super) const ARCHITECTURES: [Architecture; 4] = [
    known("llama", "llama", RotaryRows::Interleaved, Mixture::None),
    known("qwen3", "qwen3", RotaryRows::AsModel, Mixture::None),
    known("qwen3moe", "qwen3_moe", RotaryRows::AsModel, Mixture::Qwen),
    known("minimax-m2", "minimax_m2", RotaryRows::AsModel, Mixture::MiniMax),
];

/// Names of Hugging Face's form, and what the converters make of them. What is between `{layer}.` and
/// `.weight` or `.bias` stands in the second table.
const NAMES: [(&str, &str); 3] = [
    ("model.embed_tokens.weight", "token_embd.weight"),
    ("model.norm.weight", "output_norm.weight"),
    ("lm_head.weight", "output.weight"),
];
const IN_LAYERS: [(&str, &str); 19] = [
    ("input_layernorm", "attn_norm"),
    ("self_attn.q_proj", "attn_q"),
    ("self_attn.k_proj", "attn_k"),
    ("self_attn.v_proj", "attn_v"),
    ("self_attn.o_proj", "attn_output"),
    ("self_attn.q_norm", "attn_q_norm"),
    ("self_attn.k_norm", "attn_k_norm"),
    ("post_attention_layernorm", "ffn_norm"),
    ("mlp.gate_proj", "ffn_gate"),
    ("mlp.up_proj", "ffn_up"),
    ("mlp.down_proj", "ffn_down"),
    ("mlp.gate", "ffn_gate_inp"),
    // Experts one below the other.
    ("mlp.experts.{expert}.gate_proj", "ffn_gate_exps"),
    ("mlp.experts.{expert}.up_proj", "ffn_up_exps"),
    ("mlp.experts.{expert}.down_proj", "ffn_down_exps"),
    ("block_sparse_moe.gate", "ffn_gate_inp"),
    ("block_sparse_moe.experts.{expert}.w1", "ffn_gate_exps"),
    ("block_sparse_moe.experts.{expert}.w3", "ffn_up_exps"),
    ("block_sparse_moe.experts.{expert}.w2", "ffn_down_exps"),
];

/// Factors that divide rotary frequencies: a scaling of Llama 3, which the converter computed.
pub(in super::super) const FREQUENCIES: &str = "rope_freqs.weight";

impl Architecture {
    /// A tensor of Hugging Face's form with so many rows (of an expert), as files of this architecture call
    /// it.
    ///
    /// # Errors
    /// When they have no name for it.
    pub(in super::super) fn file(&self, file: FileTensor, rows: usize) -> Result<FileTensor, String> {
        let called = |table: &[(&str, &str)], name: &str| {
            table.iter().find(|(theirs, _)| *theirs == name).map(|(_, own)| (*own).to_owned())
        };
        let renamed = match file.name.strip_prefix("model.layers.{layer}.") {
            None => called(&NAMES, &file.name),
            Some("block_sparse_moe.e_score_correction_bias") => {
                Some("blk.{layer}.exp_probs_b.bias".to_owned())
            }
            Some(part) => part.rsplit_once('.').and_then(|(module, kind)| {
                called(&IN_LAYERS, module).map(|own| format!("blk.{{layer}}.{own}.{kind}"))
            }),
        };
        let name = renamed.ok_or_else(|| {
            format!("no GGUF file of the {} architecture has a name for {:?}", self.name, file.name)
        })?;
        let stacked = file.name.contains("{expert}");
        let view = if stacked { Some(RowView { first: 0, take: rows, of: rows }) } else { file.view };
        Ok(FileTensor { name, view })
    }
}
