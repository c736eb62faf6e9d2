//! Mistral Small 4: attention over latents, and experts beside a shared one in every layer but perhaps the
//! first few, chosen by softmax.

use super::Wrapper;
use crate::blocks::experts::import::active;
use crate::blocks::experts::spec::{Experts, Router, SharedExpert};
use crate::blocks::latent_attention::import as latent_attention;
use crate::blocks::products::spec::Gated;
use crate::import::dimensions::{activation_named, all_stop_ids};
use crate::import::draft::{
    DENSE, Draft, DraftHead, DraftNames, ExpertNames, LatentNames, Layer, Modules, Naming, Projections,
    Stacked,
};
use crate::import::keys::{Findings, Keys};
use crate::import::quantization;
use crate::spec::types::{Activation, Around, Ffn, Norm, NormWeight};
use serde_json::{Value, json};

pub(in crate::import) const NAME: &str = "mistral4";

/// The multimodal config.
pub(super) const WRAPPER: Wrapper = Wrapper {
    name: "mistral3",
    architecture: "Mistral3ForConditionalGeneration",
    text: NAME,
    others: &[
        "image_token_index",
        "multimodal_projector_bias",
        "projector_hidden_act",
        "spatial_merge_size",
        "vision_feature_layer",
    ],
};

/// The mixer's name in patterns.
const LATENT: &str = "latent";

/// Reads the config.
pub(super) fn read(keys: &mut Keys, mut outer: Option<&mut Keys>, found: &mut Findings) -> Option<Draft> {
    let hidden = keys.count(found, "hidden_size", 4096);
    let count = keys.count(found, "num_hidden_layers", 36);
    let vocabulary = keys.count(found, "vocab_size", 131_072);
    let context = keys.count(found, "max_position_embeddings", 1_048_576);
    let eps = keys.number(found, "rms_norm_eps", 1e-6);
    let norm = eps.map(|eps| Norm { eps: eps as f32, weight: NormWeight::Plain });
    let tied = tied(keys, outer.as_deref_mut(), found);
    let activation = match keys.get("hidden_act") {
        None => Some(Activation::Silu),
        Some(value) => activation_named(&keys.path("hidden_act"), value, found),
    };
    let stop_ids = all_stop_ids(&[2], keys, outer.as_deref_mut(), found, vocabulary);
    let attention = latent_attention::read(keys, found, context, norm);
    let experts = experts(keys, found, activation);
    let dense = dense(keys, found, count);
    let width = keys.count(found, "intermediate_size", 12_288);
    let quantization = match outer.as_deref_mut() {
        Some(outer) => quantization::read(outer, found),
        None => quantization::read(keys, found),
    };
    let architectures = [json!(["Mistral4ForCausalLM"]), Value::Null];
    keys.only(found, "architectures", &architectures, "only that is known");
    keys.harmless(&["output_router_logits", "pretraining_tp"]);
    let (count, dense) = (count?, dense?);
    let layer = |at: usize| Layer { mixer: LATENT, ffn: (at < dense).then_some(DENSE) };
    let block = Gated { width: width?, activation: activation?, bias: false };
    Some(Draft {
        family: NAME,
        hidden: hidden?,
        layers: count,
        vocabulary: vocabulary?,
        context: context?,
        tied: tied?,
        norm: norm?,
        around: Around::default(),
        pattern: Layer::pattern(&(0..count).map(layer).collect::<Vec<_>>())?,
        mixers: vec![(LATENT, attention?.into())],
        ffn: experts?.into(),
        others: if dense > 0 { vec![(DENSE, Ffn::from(block))] } else { Vec::new() },
        head: DraftHead::Never,
        stop_ids: stop_ids?,
        naming: Naming {
            prefix: if outer.is_some() { "language_model.model." } else { "model." },
            embedding: "embed_tokens.weight",
            norm: "norm.weight",
            head: if outer.is_some() { "language_model.lm_head.weight" } else { "lm_head.weight" },
            mixer_norm: "input_layernorm.weight",
            ffn_norm: "post_attention_layernorm.weight",
            modules: Modules {
                experts: ExpertNames { shared: "mlp.shared_experts", ..ExpertNames::USUAL },
                ..Modules::USUAL
            },
            draft: DraftNames::USUAL,
            projections: Projections::Apart,
            stacked: Stacked::Yes,
            towers: if outer.is_some() { &["vision_tower.*", "multi_modal_projector.*"] } else { &[] },
        },
        gguf: None,
        quantization: quantization?,
        tower: None,
        defaulted: Vec::new(),
        notes: Vec::new(),
    })
}

/// Names of the makers' own files, which go with a params.json. Rows stand as in those of Hugging Face's
/// form, and experts have a tensor for each matrix.
pub(in crate::import) const OWN_NAMES: Naming = Naming {
    prefix: "",
    embedding: "tok_embeddings.weight",
    norm: "norm.weight",
    head: "output.weight",
    mixer_norm: "attention_norm.weight",
    ffn_norm: "ffn_norm.weight",
    modules: Modules {
        attention: "attention",
        dense: "feed_forward",
        parts: ["w1", "w3", "w2"],
        experts: ExpertNames {
            router: "gate",
            apart: "experts",
            shared: "shared_experts",
            ..ExpertNames::USUAL
        },
        latent: LatentNames {
            q_a: "wq_a",
            q_norm: "q_a_norm",
            q_b: "wq_b",
            q: "wq",
            kv_a: "wkv_a_with_mqa",
            kv_norm: "kv_a_norm",
            kv: "wkv_b",
            o: "wo",
        },
    },
    draft: DraftNames::USUAL,
    projections: Projections::Apart,
    stacked: Stacked::No,
    towers: &[],
};

/// The tower's tensors in those files.
pub(in crate::import) const OWN_TOWERS: &[&str] =
    &["vision_encoder.*", "vision_language_adapter.*", "patch_merger.*", "pre_mm_projector_norm.*"];

/// Whether the head is tied to the embedding: the whole model's key says it, where there is one.
fn tied(keys: &mut Keys, outer: Option<&mut Keys>, found: &mut Findings) -> Option<bool> {
    let key = "tie_word_embeddings";
    let own = keys.flag(found, key, false)?;
    let Some(outer) = outer else { return Some(own) };
    let tied = outer.flag(found, key, true)?;
    if own != tied && keys.given(key).is_some() {
        let path = keys.path(key);
        found.problems.push(format!("`{path}` is {own}, and `{key}` {tied}: keep one"));
    }
    Some(tied)
}

/// How many layers, the first ones, have a dense block instead of experts.
fn dense(keys: &mut Keys, found: &mut Findings, layers: Option<usize>) -> Option<usize> {
    let key = "first_k_dense_replace";
    let Some(value) = keys.given(key) else { return Some(0) };
    let dense = value.as_u64().and_then(|it| usize::try_from(it).ok());
    let dense = dense.filter(|dense| layers.is_none_or(|layers| *dense < layers));
    if dense.is_none() {
        let path = keys.path(key);
        found.problems.push(format!("`{path}` is {value}: a number below that of layers is wanted"));
    }
    dense
}

fn experts(keys: &mut Keys, found: &mut Findings, activation: Option<Activation>) -> Option<Experts> {
    let experts = keys.count(found, "n_routed_experts", 128);
    let active = active(keys, found, 4, experts);
    let width = keys.count(found, "moe_intermediate_size", 2048);
    let shared = keys.count(found, "n_shared_experts", 1);
    let renormalise = keys.flag(found, "norm_topk_prob", true);
    for key in ["n_group", "topk_group"] {
        let why = "experts are chosen from one group of all";
        keys.only(found, key, &[json!(1), Value::Null], why);
    }
    let why = "only weights that are not scaled are known of softmax";
    keys.only(found, "routed_scaling_factor", &[json!(1.0), json!(1)], why);
    let width = width?;
    Some(Experts {
        experts: experts?,
        active: active?,
        width,
        gated: true,
        latent: None,
        activation: activation?,
        router: Router::Softmax { renormalise: renormalise? },
        router_norm: None,
        expert_scales: false,
        shared: Some(SharedExpert { width: shared? * width, gate: false }),
        branch_norms: None,
    })
}
