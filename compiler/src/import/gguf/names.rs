//! Names and orders that llama.cpp's converters give to tensors.

use crate::spec::types::{FileTensor, RotaryRows, RowView, ValueHeads};

/// A value of `general.architecture`.
#[derive(Debug)]
pub(in super::super) struct Architecture {
    pub(in super::super) name: &'static str,
    /// The family, as a config's `model_type` names it.
    pub(super) family: &'static str,
    /// Order of the rows of queries and keys.
    pub(in super::super) rotary_rows: RotaryRows,
    pub(super) experts: Mixture,
    /// Of an architecture with delta-nets: the order of their value heads.
    pub(in super::super) delta_net: Option<ValueHeads>,
}

/// The experts of an architecture.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mixture {
    None,
    /// Chosen by softmax.
    Qwen,
    /// The same, beside a shared one.
    QwenShared,
    /// Chosen by sigmoid and a correction.
    MiniMax,
}

const fn known(
    name: &'static str,
    family: &'static str,
    rotary_rows: RotaryRows,
    experts: Mixture,
) -> Architecture {
    Architecture { name, family, rotary_rows, experts, delta_net: None }
}

/// One with delta-nets, whose norms multiply by one plus their weights: the converter adds the one, and
/// stores rates of decays in place of their logarithms.
const fn hybrid(
    name: &'static str,
    family: &'static str,
    experts: Mixture,
    value_heads: ValueHeads,
) -> Architecture {
    let delta_net = Some(value_heads);
    Architecture { delta_net, ..known(name, family, RotaryRows::AsModel, experts) }
}

pub(super) const ARCHITECTURES: [Architecture; 7] = [
    known("llama", "llama", RotaryRows::Interleaved, Mixture::None),
    known("qwen3", "qwen3", RotaryRows::AsModel, Mixture::None),
    known("qwen3moe", "qwen3_moe", RotaryRows::AsModel, Mixture::Qwen),
    known("minimax-m2", "minimax_m2", RotaryRows::AsModel, Mixture::MiniMax),
    hybrid("qwen3next", "qwen3_next", Mixture::QwenShared, ValueHeads::Grouped),
    hybrid("qwen35", "qwen3_5_text", Mixture::None, ValueHeads::Tiled),
    hybrid("qwen35moe", "qwen3_5_moe_text", Mixture::QwenShared, ValueHeads::Tiled),
];

/// Names of Hugging Face's form, and what the converters make of them.
const NAMES: [(&str, &str); 3] = [
    ("model.embed_tokens.weight", "token_embd.weight"),
    ("model.norm.weight", "output_norm.weight"),
    ("lm_head.weight", "output.weight"),
];

/// Those in a layer, without `.weight` or `.bias`.
const IN_LAYERS: [(&str, &str); 31] = [
    ("input_layernorm", "attn_norm"),
    ("self_attn.q_proj", "attn_q"),
    ("self_attn.k_proj", "attn_k"),
    ("self_attn.v_proj", "attn_v"),
    ("self_attn.o_proj", "attn_output"),
    ("self_attn.q_norm", "attn_q_norm"),
    ("self_attn.k_norm", "attn_k_norm"),
    ("mlp.gate_proj", "ffn_gate"),
    ("mlp.up_proj", "ffn_up"),
    ("mlp.down_proj", "ffn_down"),
    ("mlp.gate", "ffn_gate_inp"),
    // Experts one below the other.
    ("mlp.experts.{expert}.gate_proj", "ffn_gate_exps"),
    ("mlp.experts.{expert}.up_proj", "ffn_up_exps"),
    ("mlp.experts.{expert}.down_proj", "ffn_down_exps"),
    ("mlp.shared_expert.gate_proj", "ffn_gate_shexp"),
    ("mlp.shared_expert.up_proj", "ffn_up_shexp"),
    ("mlp.shared_expert.down_proj", "ffn_down_shexp"),
    ("mlp.shared_expert_gate", "ffn_gate_inp_shexp"),
    ("block_sparse_moe.gate", "ffn_gate_inp"),
    ("block_sparse_moe.experts.{expert}.w1", "ffn_gate_exps"),
    ("block_sparse_moe.experts.{expert}.w3", "ffn_up_exps"),
    ("block_sparse_moe.experts.{expert}.w2", "ffn_down_exps"),
    ("linear_attn.in_proj_qkv", "attn_qkv"),
    ("linear_attn.in_proj_z", "attn_gate"),
    ("linear_attn.in_proj_b", "ssm_beta"),
    ("linear_attn.in_proj_a", "ssm_alpha"),
    ("linear_attn.in_proj_qkvz", "ssm_in"),
    ("linear_attn.in_proj_ba", "ssm_ba"),
    ("linear_attn.conv1d", "ssm_conv1d"),
    ("linear_attn.norm", "ssm_norm"),
    ("linear_attn.out_proj", "ssm_out"),
];

/// Those in a layer that get another ending.
const WHOLE: [(&str, &str); 3] = [
    ("block_sparse_moe.e_score_correction_bias", "exp_probs_b.bias"),
    ("linear_attn.A_log", "ssm_a"),
    ("linear_attn.dt_bias", "ssm_dt.bias"),
];

/// Those of a draft head, which stand in the block behind the last layer; what is in its layer is called as
/// in all.
const OF_DRAFTS: [(&str, &str); 4] = [
    ("fc.weight", "nextn.eh_proj.weight"),
    ("pre_fc_norm_embedding.weight", "nextn.enorm.weight"),
    ("pre_fc_norm_hidden.weight", "nextn.hnorm.weight"),
    ("norm.weight", "nextn.shared_head_norm.weight"),
];

/// Factors that divide rotary frequencies: a scaling of Llama 3, which the converter computed.
pub(in super::super) const FREQUENCIES: &str = "rope_freqs.weight";

/// The q, k, v and z of delta-nets in one tensor: what older converters left as it was.
pub(super) const PROJECTIONS: &str = ".ssm_in.weight";

fn called(table: &[(&str, &str)], name: &str) -> Option<String> {
    table.iter().find(|(theirs, _)| *theirs == name).map(|(_, own)| (*own).to_owned())
}

impl Architecture {
    /// A tensor of Hugging Face's form with so many rows (of an expert), as files of this architecture call
    /// it; of a model with so many layers.
    ///
    /// # Errors
    /// When they have no name for it.
    pub(in super::super) fn file(
        &self,
        file: FileTensor,
        rows: usize,
        layers: usize,
    ) -> Result<FileTensor, String> {
        let name = self.called(&file.name, layers).ok_or_else(|| {
            format!("no GGUF file of the {} architecture has a name for {:?}", self.name, file.name)
        })?;
        let stacked = file.name.contains("{expert}");
        let view = if stacked { Some(RowView { first: 0, take: rows, of: rows }) } else { file.view };
        Ok(FileTensor { name, view })
    }

    /// What files of this architecture call a tensor.
    pub(in super::super) fn called(&self, name: &str, layers: usize) -> Option<String> {
        if let Some(part) = name.strip_prefix("model.layers.{layer}.") {
            return self.in_layer(part).map(|own| format!("blk.{{layer}}.{own}"));
        }
        let Some(part) = name.strip_prefix("mtp.") else { return called(&NAMES, name) };
        let own = match part.strip_prefix("layers.0.") {
            Some(part) => self.in_layer(part),
            None => called(&OF_DRAFTS, part),
        };
        own.map(|own| format!("blk.{layers}.{own}"))
    }

    fn in_layer(&self, part: &str) -> Option<String> {
        called(&WHOLE, part).or_else(|| {
            let (module, kind) = part.rsplit_once('.')?;
            let own = match (module, self.delta_net) {
                ("post_attention_layernorm", None) => "ffn_norm".to_owned(),
                ("post_attention_layernorm", Some(_)) => "post_attention_norm".to_owned(),
                _ => called(&IN_LAYERS, module)?,
            };
            Some(format!("{own}.{kind}"))
        })
    }
}
