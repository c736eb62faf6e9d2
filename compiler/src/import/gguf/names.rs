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
    pub(super) form: Form,
    /// Names of its own.
    names: &'static Names,
}

/// Which keys its metadata has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Form {
    /// Those of most architectures.
    Usual,
    Gemma4,
    NemotronH,
}

/// The experts of an architecture.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mixture {
    None,
    /// Chosen by softmax.
    Qwen,
    /// The same, of a model that also takes images.
    QwenVision,
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
    let (form, names) = (Form::Usual, &Names::USUAL);
    Architecture { name, family, rotary_rows, experts, delta_net: None, form, names }
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
    let names = &Names { in_layers: &OF_HYBRIDS, ..Names::USUAL };
    Architecture { delta_net, names, ..known(name, family, RotaryRows::AsModel, experts) }
}

/// One with metadata and names of its own.
const fn own(name: &'static str, family: &'static str, form: Form, names: &'static Names) -> Architecture {
    Architecture { form, names, ..known(name, family, RotaryRows::AsModel, Mixture::None) }
}

pub(super) const ARCHITECTURES: [Architecture; 12] = [
    known("llama", "llama", RotaryRows::Interleaved, Mixture::None),
    // Mistral Small 3.1 and later: what sets Ministral 3 apart are keys that are not known.
    known("mistral3", "llama", RotaryRows::Interleaved, Mixture::None),
    known("qwen3", "qwen3", RotaryRows::AsModel, Mixture::None),
    known("qwen3moe", "qwen3_moe", RotaryRows::AsModel, Mixture::Qwen),
    known("qwen3vlmoe", "qwen3_vl_moe_text", RotaryRows::AsModel, Mixture::QwenVision),
    known("minimax-m2", "minimax_m2", RotaryRows::AsModel, Mixture::MiniMax),
    hybrid("qwen3next", "qwen3_next", Mixture::QwenShared, ValueHeads::Grouped),
    hybrid("qwen35", "qwen3_5_text", Mixture::None, ValueHeads::Tiled),
    hybrid("qwen35moe", "qwen3_5_moe_text", Mixture::QwenShared, ValueHeads::Tiled),
    own("gemma4", "gemma4_text", Form::Gemma4, &Names { in_layers: &OF_GEMMA, ..Names::USUAL }),
    own("nemotron_h", "nemotron_h", Form::NemotronH, &OF_NEMOTRON),
    own("nemotron_h_moe", "nemotron_h", Form::NemotronH, &OF_NEMOTRON),
];

/// Architectures of known families whose files no quant spec can tell of, and why.
pub(super) const UNTOLD: [(&str, &str); 1] = [(
    "mistral4",
    "keys and values of a latent are two tensors, of which that of keys has each head's matrix transposed, \
     and a spec names rows of one tensor: import the safetensors",
)];

/// Names of Hugging Face's form, and what the converters make of them.
type Table = &'static [(&'static str, &'static str)];

/// The names of an architecture.
#[derive(Debug)]
struct Names {
    /// Those outside the layers.
    ends: Table,
    /// What is in front of the names in a layer.
    layers: &'static str,
    /// Those in a layer that this architecture has besides [`IN_LAYERS`] and [`WHOLE`], or calls otherwise.
    in_layers: Table,
    /// Those of a draft head, behind `mtp.`, which stand in the block behind the last layer.
    drafts: Table,
    /// What is in front of the names in a layer of a draft head, behind `mtp.`.
    draft_layers: &'static [&'static str],
}

impl Names {
    const USUAL: Names = Names {
        ends: &[
            ("model.embed_tokens.weight", "token_embd.weight"),
            ("model.norm.weight", "output_norm.weight"),
            ("lm_head.weight", "output.weight"),
        ],
        layers: "model.layers.{layer}.",
        in_layers: &[],
        drafts: &[
            ("fc.weight", "nextn.eh_proj.weight"),
            ("pre_fc_norm_embedding.weight", "nextn.enorm.weight"),
            ("pre_fc_norm_hidden.weight", "nextn.hnorm.weight"),
            ("norm.weight", "nextn.shared_head_norm.weight"),
        ],
        draft_layers: &["layers.0."],
    };
}

/// Those in a layer, without `.weight` or `.bias`.
const IN_LAYERS: [(&str, &str); 32] = [
    ("input_layernorm", "attn_norm"),
    ("post_attention_layernorm", "ffn_norm"),
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
    ("mlp.experts.{expert}.gate_proj", GATES),
    ("mlp.experts.{expert}.up_proj", UPS),
    ("mlp.experts.{expert}.down_proj", "ffn_down_exps"),
    ("mlp.shared_expert.gate_proj", "ffn_gate_shexp"),
    ("mlp.shared_expert.up_proj", "ffn_up_shexp"),
    ("mlp.shared_expert.down_proj", "ffn_down_shexp"),
    ("mlp.shared_expert_gate", "ffn_gate_inp_shexp"),
    ("block_sparse_moe.gate", "ffn_gate_inp"),
    ("block_sparse_moe.experts.{expert}.w1", GATES),
    ("block_sparse_moe.experts.{expert}.w3", UPS),
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

/// The projections of experts to what is activated and to what that multiplies.
const GATES: &str = "ffn_gate_exps";
const UPS: &str = "ffn_up_exps";

/// Both, those of an expert one below the other.
pub(in super::super) const FUSED: &str = ".ffn_gate_up_exps.weight";

const OF_HYBRIDS: [(&str, &str); 1] = [("post_attention_layernorm.weight", "post_attention_norm.weight")];

const OF_GEMMA: [(&str, &str); 13] = [
    ("post_attention_layernorm.weight", "post_attention_norm.weight"),
    ("pre_feedforward_layernorm.weight", "ffn_norm.weight"),
    ("post_feedforward_layernorm.weight", "post_ffw_norm.weight"),
    ("pre_feedforward_layernorm_2.weight", "pre_ffw_norm_2.weight"),
    ("post_feedforward_layernorm_1.weight", "post_ffw_norm_1.weight"),
    ("post_feedforward_layernorm_2.weight", "post_ffw_norm_2.weight"),
    ("layer_scalar", "layer_output_scale.weight"),
    ("router.proj.weight", "ffn_gate_inp.weight"),
    ("router.scale", "ffn_gate_inp.scale"),
    // What an expert makes is multiplied by it.
    ("router.per_expert_scale", "ffn_down_exps.scale"),
    ("moe.experts.{expert}.gate_proj.weight", "ffn_gate_exps.weight"),
    ("moe.experts.{expert}.up_proj.weight", "ffn_up_exps.weight"),
    ("moe.experts.{expert}.down_proj.weight", "ffn_down_exps.weight"),
];

const OF_NEMOTRON: Names = Names {
    ends: &[
        ("backbone.embeddings.weight", "token_embd.weight"),
        ("backbone.norm_f.weight", "output_norm.weight"),
        ("lm_head.weight", "output.weight"),
    ],
    layers: "backbone.layers.{layer}.",
    in_layers: &[
        ("norm.weight", "attn_norm.weight"),
        ("mixer.in_proj.weight", "ssm_in.weight"),
        ("mixer.conv1d.weight", "ssm_conv1d.weight"),
        ("mixer.conv1d.bias", "ssm_conv1d.bias"),
        ("mixer.A_log", "ssm_a"),
        ("mixer.D", "ssm_d"),
        ("mixer.dt_bias", "ssm_dt.bias"),
        ("mixer.norm.weight", "ssm_norm.weight"),
        ("mixer.out_proj.weight", "ssm_out.weight"),
        ("mixer.q_proj.weight", "attn_q.weight"),
        ("mixer.k_proj.weight", "attn_k.weight"),
        ("mixer.v_proj.weight", "attn_v.weight"),
        ("mixer.o_proj.weight", "attn_output.weight"),
        ("mixer.up_proj.weight", "ffn_up.weight"),
        ("mixer.up_proj.bias", "ffn_up.bias"),
        ("mixer.down_proj.weight", "ffn_down.weight"),
        ("mixer.down_proj.bias", "ffn_down.bias"),
        ("mixer.gate.weight", "ffn_gate_inp.weight"),
        ("mixer.gate.e_score_correction_bias", "exp_probs_b.bias"),
        ("mixer.experts.{expert}.up_proj.weight", "ffn_up_exps.weight"),
        ("mixer.experts.{expert}.down_proj.weight", "ffn_down_exps.weight"),
        ("mixer.shared_experts.up_proj.weight", "ffn_up_shexp.weight"),
        ("mixer.shared_experts.down_proj.weight", "ffn_down_shexp.weight"),
        ("mixer.fc1_latent_proj.weight", "ffn_latent_down.weight"),
        ("mixer.fc2_latent_proj.weight", "ffn_latent_up.weight"),
    ],
    drafts: &[
        ("layers.0.eh_proj.weight", "nextn.eh_proj.weight"),
        ("layers.0.enorm.weight", "nextn.enorm.weight"),
        ("layers.0.hnorm.weight", "nextn.hnorm.weight"),
        // Both of its layers are one block of the file.
        ("layers.1.norm.weight", "post_attention_norm.weight"),
        ("layers.1.final_layernorm.weight", "nextn.shared_head_norm.weight"),
    ],
    draft_layers: &["layers.0.", "layers.1."],
};

/// Factors that divide rotary frequencies: a scaling of Llama 3, which the converter computed.
pub(in super::super) const FREQUENCIES: &str = "rope_freqs.weight";

/// The q, k, v and z of delta-nets in one tensor: what older converters left as it was.
pub(super) const PROJECTIONS: &str = ".ssm_in.weight";

fn called(table: &[(&str, &str)], name: &str) -> Option<String> {
    table.iter().find(|(theirs, _)| *theirs == name).map(|(_, own)| (*own).to_owned())
}

impl Architecture {
    /// A tensor of Hugging Face's form with so many rows (of an expert), as files of this architecture call
    /// it; of a model with so many layers. The gates and ups of experts may be `fused` in one tensor.
    ///
    /// # Errors
    /// When they have no name for it.
    pub(in super::super) fn file(
        &self,
        file: FileTensor,
        rows: usize,
        layers: usize,
        fused: bool,
    ) -> Result<FileTensor, String> {
        let name = self.called(&file.name, layers).ok_or_else(|| {
            format!("no GGUF file of the {} architecture has a name for {:?}", self.name, file.name)
        })?;
        if !file.name.contains("{expert}") {
            return Ok(FileTensor { name, view: file.view });
        }
        let part = |part: &str| fused.then(|| name.strip_suffix(&format!(".{part}.weight"))).flatten();
        let (name, first, of) = match (part(GATES), part(UPS)) {
            (Some(block), _) => (format!("{block}{FUSED}"), 0, 2 * rows),
            (_, Some(block)) => (format!("{block}{FUSED}"), rows, 2 * rows),
            (None, None) => (name, 0, rows),
        };
        Ok(FileTensor { name, view: Some(RowView { first, take: rows, of }) })
    }

    /// What files of this architecture call a tensor.
    pub(in super::super) fn called(&self, name: &str, layers: usize) -> Option<String> {
        if let Some(part) = name.strip_prefix(self.names.layers) {
            return self.in_layer(part).map(|own| format!("blk.{{layer}}.{own}"));
        }
        let Some(part) = name.strip_prefix("mtp.") else { return called(self.names.ends, name) };
        let in_layer = || {
            let part = self.names.draft_layers.iter().find_map(|prefix| part.strip_prefix(prefix))?;
            self.in_layer(part)
        };
        called(self.names.drafts, part).or_else(in_layer).map(|own| format!("blk.{layers}.{own}"))
    }

    fn in_layer(&self, part: &str) -> Option<String> {
        called(self.names.in_layers, part).or_else(|| called(&WHOLE, part)).or_else(|| {
            let (module, kind) = part.rsplit_once('.')?;
            called(&IN_LAYERS, module).map(|own| format!("{own}.{kind}"))
        })
    }
}
