//! The known families: the defaults of transformers' configuration classes, and what distinguishes each
//! family.

mod gemma4;
mod minimax_m2;
pub(super) mod mistral4;
mod nemotron_h;

use super::draft::{Draft, Projections, Stacked};
use super::keys::{Findings, Keys};
use super::rotary::Turned;

/// Reads the config of a family that a [`Family`] cannot describe: its own keys, and those of a wrapper
/// around it.
pub(super) type Reader = fn(&mut Keys, Option<&mut Keys>, &mut Findings) -> Option<Draft>;

/// Families with a reader of their own, by `model_type`.
pub(super) const OWN: [(&str, Reader); 4] = [
    (gemma4::NAME, gemma4::read),
    ("minimax_m2", minimax_m2::read),
    (mistral4::NAME, mistral4::read),
    ("nemotron_h", nemotron_h::read),
];

/// A family of language models, named by a config's `model_type`.
pub(crate) struct Family {
    pub(crate) name: &'static str,
    pub(crate) architecture: &'static str,
    pub(crate) hidden: usize,
    pub(crate) layers: usize,
    pub(crate) vocabulary: usize,
    /// Width of the dense block; unused by families that only have experts.
    pub(crate) width: usize,
    pub(crate) context: usize,
    pub(crate) heads: usize,
    /// Default if the key is absent; `None` means `num_attention_heads`, as `null` always does.
    pub(crate) kv_heads: Option<usize>,
    /// Default if the key is absent; `None` divides `hidden_size` by the heads.
    pub(crate) head_dim: Option<usize>,
    /// Default of the ids that end an answer.
    pub(crate) stop_ids: &'static [u64],
    pub(crate) qk_norm: bool,
    /// How much of a head is rotated.
    pub(crate) turned: Turned,
    /// Delta-nets between gated attention layers that rotate part of each head; norm weights centred on 0; a
    /// draft layer.
    pub(crate) hybrid: Option<Hybrid>,
    /// Experts in place of the dense block.
    pub(crate) experts: Option<Mixture>,
}

/// What distinguishes the hybrid families from one another.
#[derive(Clone, Copy)]
pub(crate) struct Hybrid {
    /// How the projections of delta-nets stand in tensors.
    pub(crate) projections: Projections,
}

/// Defaults of a mixture of experts.
#[derive(Clone, Copy)]
pub(crate) struct Mixture {
    pub(crate) experts: usize,
    pub(crate) active: usize,
    pub(crate) width: usize,
    /// Default width of the shared expert; `None` if the family has none.
    pub(crate) shared: Option<usize>,
    /// Default of `norm_topk_prob`; `None` if the family always divides by the sum.
    pub(crate) renormalise: Option<bool>,
    /// Whether unquantised checkpoints stack the experts of a layer in two tensors.
    pub(crate) stacked: Stacked,
    /// Whether configs may give some layers a dense block instead.
    pub(crate) dense_layers: bool,
}

/// A multimodal config around a text part.
pub(crate) struct Wrapper {
    pub(crate) name: &'static str,
    pub(crate) architecture: &'static str,
    /// Name of the family of `text_config`.
    pub(crate) text: &'static str,
    /// Further keys that do not affect the text part; the tower's reader may read them.
    pub(crate) others: &'static [&'static str],
}

pub(crate) const WRAPPERS: [Wrapper; 5] = [
    gemma4::WRAPPER,
    mistral4::WRAPPER,
    Wrapper {
        name: "qwen3_vl_moe",
        architecture: "Qwen3VLMoeForConditionalGeneration",
        text: "qwen3_vl_moe_text",
        others: &[],
    },
    Wrapper {
        name: "qwen3_5",
        architecture: "Qwen3_5ForConditionalGeneration",
        text: "qwen3_5_text",
        others: &[],
    },
    Wrapper {
        name: "qwen3_5_moe",
        architecture: "Qwen3_5MoeForConditionalGeneration",
        text: "qwen3_5_moe_text",
        others: &[],
    },
];

pub(crate) const FAMILIES: [Family; 7] = [
    Family {
        name: "llama",
        architecture: "LlamaForCausalLM",
        hidden: 4096,
        layers: 32,
        vocabulary: 32000,
        width: 11008,
        context: 2048,
        heads: 32,
        kv_heads: None,
        head_dim: None,
        stop_ids: &[2],
        qk_norm: false,
        turned: Turned::Whole,
        hybrid: None,
        experts: None,
    },
    Family {
        name: "qwen3",
        architecture: "Qwen3ForCausalLM",
        hidden: 4096,
        layers: 32,
        vocabulary: 151_936,
        width: 22016,
        context: 32768,
        heads: 32,
        kv_heads: Some(32),
        head_dim: Some(128),
        stop_ids: &[],
        qk_norm: true,
        turned: Turned::Whole,
        hybrid: None,
        experts: None,
    },
    Family {
        name: "qwen3_moe",
        architecture: "Qwen3MoeForCausalLM",
        hidden: 2048,
        layers: 24,
        vocabulary: 151_936,
        width: 6144,
        context: 32768,
        heads: 32,
        kv_heads: Some(4),
        head_dim: None,
        stop_ids: &[],
        qk_norm: true,
        turned: Turned::Whole,
        hybrid: None,
        experts: Some(Mixture {
            experts: 128,
            active: 8,
            width: 768,
            shared: None,
            renormalise: Some(false),
            stacked: Stacked::No,
            dense_layers: true,
        }),
    },
    Family {
        name: "qwen3_vl_moe_text",
        // transformers has no class for the text part alone.
        architecture: "Qwen3VLMoeForConditionalGeneration",
        hidden: 2048,
        layers: 24,
        vocabulary: 151_936,
        width: 5632,
        context: 128_000,
        heads: 16,
        kv_heads: Some(16),
        head_dim: None,
        stop_ids: &[],
        qk_norm: true,
        turned: Turned::WholeWithImages,
        hybrid: None,
        experts: Some(Mixture {
            experts: 60,
            active: 4,
            width: 1408,
            shared: None,
            renormalise: None,
            stacked: Stacked::Transposed,
            dense_layers: true,
        }),
    },
    Family {
        name: "qwen3_next",
        architecture: "Qwen3NextForCausalLM",
        hidden: 2048,
        layers: 48,
        vocabulary: 151_936,
        width: 5632,
        context: 32768,
        heads: 16,
        kv_heads: Some(2),
        head_dim: Some(256),
        stop_ids: &[],
        qk_norm: true,
        turned: Turned::Part,
        hybrid: Some(Hybrid { projections: Projections::Grouped }),
        experts: Some(Mixture {
            experts: 512,
            active: 10,
            width: 512,
            shared: Some(512),
            renormalise: Some(true),
            stacked: Stacked::No,
            dense_layers: true,
        }),
    },
    Family {
        name: "qwen3_5_text",
        architecture: "Qwen3_5ForCausalLM",
        hidden: 4096,
        layers: 32,
        vocabulary: 248_320,
        width: 12288,
        context: 32768,
        heads: 16,
        kv_heads: Some(4),
        head_dim: Some(256),
        stop_ids: &[],
        qk_norm: true,
        turned: Turned::Part,
        hybrid: Some(Hybrid { projections: Projections::Apart }),
        experts: None,
    },
    Family {
        name: "qwen3_5_moe_text",
        architecture: "Qwen3_5MoeForCausalLM",
        hidden: 2048,
        layers: 40,
        vocabulary: 248_320,
        width: 0,
        context: 32768,
        heads: 16,
        kv_heads: Some(2),
        head_dim: Some(256),
        stop_ids: &[],
        qk_norm: true,
        turned: Turned::Part,
        hybrid: Some(Hybrid { projections: Projections::Apart }),
        experts: Some(Mixture {
            experts: 256,
            active: 8,
            width: 512,
            shared: Some(512),
            renormalise: None,
            stacked: Stacked::Yes,
            dense_layers: false,
        }),
    },
];
