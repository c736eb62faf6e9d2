//! Nemotron-H: a layer is a norm and one block, which is Mamba-2, attention without positions, a mixture of
//! experts or a dense block. Nothing has a gate: what goes up is activated.

use super::Family;
use crate::blocks::attention::spec::Attention;
use crate::blocks::experts::spec::{Experts, Router, SharedExpert};
use crate::blocks::mamba2::import as mamba2;
use crate::blocks::products::spec::{NoMixer, Nothing, Ungated};
use crate::import::dimensions::{kv_heads, stop_ids};
use crate::import::draft::{
    DENSE, Draft, DraftHead, DraftNames, ExpertNames, FULL, Layer, Modules, Naming, Projections, Stacked,
};
use crate::import::keys::{Findings, Keys};
use crate::import::quantization;
use crate::import::rotary::Turned;
use crate::spec::model::ACTIVATIONS;
use crate::spec::types::{Activation, Around, Ffn, Mixer, Norm, NormWeight};
use serde_json::{Value, json};

/// Names in patterns.
const MAMBA: &str = "mamba";
const NONE: &str = "none";
const EXPERTS: &str = "experts";

/// Layers by their letters in configs.
const LETTERS: [(char, Layer); 4] = [
    ('M', Layer { mixer: MAMBA, ffn: None }),
    ('*', Layer { mixer: FULL, ffn: None }),
    ('E', Layer { mixer: NONE, ffn: Some(EXPERTS) }),
    ('-', Layer { mixer: NONE, ffn: Some(DENSE) }),
];

/// The draft head of Nemotron 3 Super, which transformers does not read: attention, then experts. Names and
/// order are those that vLLM reads (nemotron_h_mtp.py).
const DRAFT: DraftNames = DraftNames {
    layers: &[Layer { mixer: FULL, ffn: None }, Layer { mixer: NONE, ffn: Some(EXPERTS) }],
    fc: "mtp.layers.0.eh_proj.weight",
    embedding_norm: "mtp.layers.0.enorm.weight",
    hidden_norm: "mtp.layers.0.hnorm.weight",
    norm: "mtp.layers.1.final_layernorm.weight",
    mixer: "mtp.layers.0.",
    ffn: "mtp.layers.1.",
};
/// Its layers' letters.
const DRAFT_LETTERS: &str = "*E";

/// Defaults of transformers' configuration class.
const DEFAULTS: Family = Family {
    name: "nemotron_h",
    architecture: "NemotronHForCausalLM",
    hidden: 4096,
    layers: 4,
    vocabulary: 131_072,
    width: 21_504,
    context: 4096,
    heads: 32,
    kv_heads: Some(8),
    head_dim: Some(128),
    stop_ids: &[2],
    qk_norm: false,
    turned: Turned::Whole,
    hybrid: None,
    experts: None,
};

/// Reads the config.
pub(super) fn read(keys: &mut Keys, _: Option<&mut Keys>, found: &mut Findings) -> Option<Draft> {
    let hidden = keys.count(found, "hidden_size", DEFAULTS.hidden);
    let vocabulary = keys.count(found, "vocab_size", DEFAULTS.vocabulary);
    let context = keys.count(found, "max_position_embeddings", DEFAULTS.context);
    let tied = keys.flag(found, "tie_word_embeddings", false);
    let eps = keys.number(found, "layer_norm_epsilon", 1e-5);
    // Releases give the epsilon twice; transformers reads the other key.
    keys.harmless(&["norm_eps"]);
    let layers = layers(keys, found);
    let has = |layer: &str| {
        let blocks = layers.iter().flatten().flat_map(|it| [Some(it.mixer), it.ffn]);
        blocks.flatten().any(|it| it == layer)
    };
    let mamba = if has(MAMBA) { mamba2::read(keys, found, eps).map(Some) } else { Some(None) };
    let attention = if has(FULL) { attention(keys, found).map(Some) } else { Some(None) };
    let activation = activation(keys, found);
    let experts = if has(EXPERTS) { experts(keys, found, activation).map(Some) } else { Some(None) };
    let dense = if has(DENSE) { dense(keys, found, activation).map(Some) } else { Some(None) };
    let stop_ids = stop_ids(DEFAULTS.stop_ids, keys, found, vocabulary);
    let quantization = quantization::read(keys, found);
    let head = head(keys, found, has(FULL) && has(EXPERTS));
    keys.only(found, "architectures", &[json!([DEFAULTS.architecture]), Value::Null], "only that is known");
    keys.only(found, "residual_in_fp32", &[json!(false)], "only `false` is known");
    keys.harmless(&["hidden_dropout", "num_logits_to_keep", "rescale_prenorm_residual"]);
    // Keys of layers that there are none of, and of training. What is rotated in other families is not here.
    keys.harmless(&["attention_bias", "head_dim", "num_attention_heads", "num_key_value_heads"]);
    keys.harmless(&["partial_rotary_factor", "rope_theta", "sliding_window"]);
    mamba2::ignore(keys);
    keys.harmless(&["intermediate_size", "mlp_bias", "moe_intermediate_size", "moe_latent_size"]);
    keys.harmless(&["moe_shared_expert_intermediate_size", "moe_shared_expert_overlap", "n_group"]);
    keys.harmless(&["n_routed_experts", "n_shared_experts", "norm_topk_prob", "num_experts_per_tok"]);
    keys.harmless(&["output_router_logits", "routed_scaling_factor", "topk_group"]);
    let mixers = [mamba?.map(|it| (MAMBA, Mixer::from(it))), attention?.map(|it| (FULL, it.into()))];
    let mixers = mixers.into_iter().flatten().chain([(NONE, NoMixer.into())]);
    let others = [experts?.map(|it| (EXPERTS, Ffn::from(it))), dense?.map(|it| (DENSE, it.into()))];
    let layers = layers?;
    Some(Draft {
        family: DEFAULTS.name,
        hidden: hidden?,
        layers: layers.len(),
        vocabulary: vocabulary?,
        context: context?,
        tied: tied?,
        norm: Norm { eps: eps? as f32, weight: NormWeight::Plain },
        around: Around::default(),
        pattern: Layer::pattern(&layers)?,
        mixers: mixers.collect(),
        ffn: Nothing.into(),
        others: others.into_iter().flatten().collect(),
        head: head?,
        stop_ids: stop_ids?,
        naming: Naming {
            prefix: "backbone.",
            embedding: "embeddings.weight",
            norm: "norm_f.weight",
            head: "lm_head.weight",
            // Of two layers that are unlike: a layer has only one of them.
            mixer_norm: "norm.weight",
            ffn_norm: "norm.weight",
            modules: Modules {
                attention: "mixer",
                dense: "mixer",
                experts: ExpertNames {
                    router: "mixer.gate",
                    apart: "mixer.experts",
                    correction: "mixer.gate.e_score_correction_bias",
                    shared: "mixer.shared_experts",
                    latent: ["mixer.fc1_latent_proj", "mixer.fc2_latent_proj"],
                    ..ExpertNames::USUAL
                },
                ..Modules::USUAL
            },
            draft: DRAFT,
            projections: Projections::Apart,
            stacked: Stacked::No,
            towers: &[],
        },
        gguf: None,
        quantization: quantization?,
        tower: None,
        defaulted: Vec::new(),
        notes: Vec::new(),
    })
}

fn attention(keys: &mut Keys, found: &mut Findings) -> Option<Attention> {
    let heads = keys.count(found, "num_attention_heads", DEFAULTS.heads);
    let kv_heads = kv_heads(&DEFAULTS, keys, found, heads);
    let head_dim = keys.count(found, "head_dim", 128);
    keys.only(found, "attention_bias", &[json!(false)], "this family's attention has no biases");
    keys.only(found, "sliding_window", &[Value::Null], "sliding windows are not known yet");
    Some(Attention {
        heads: heads?,
        kv_heads: kv_heads?,
        head_dim: head_dim?,
        rotary: None,
        qk_norm: None,
        norm_rows: false,
        v_norm: None,
        keys_as_values: false,
        scale: None,
        window: None,
        qkv_bias: false,
        output_bias: false,
        gate: false,
    })
}

/// Reads `mlp_hidden_act`.
fn activation(keys: &mut Keys, found: &mut Findings) -> Option<Activation> {
    let Some(value) = keys.get("mlp_hidden_act") else { return Some(Activation::Relu2) };
    let known = ACTIVATIONS.iter().find(|(name, _)| value.as_str() == Some(name));
    if known.is_none() {
        let names = ACTIVATIONS.iter().map(|(name, _)| format!("`{name}`")).collect::<Vec<_>>().join(", ");
        let path = keys.path("mlp_hidden_act");
        found.problems.push(format!("`{path}` = {value}: not a known activation; known are {names}"));
    }
    known.map(|(_, activation)| *activation)
}

fn experts(keys: &mut Keys, found: &mut Findings, activation: Option<Activation>) -> Option<Experts> {
    let experts = keys.count(found, "n_routed_experts", 8);
    let active = keys.count(found, "num_experts_per_tok", 2);
    let width = keys.count(found, "moe_intermediate_size", 7688);
    let shared = keys.count(found, "moe_shared_expert_intermediate_size", 7688);
    let latent = keys.count_or_null(found, "moe_latent_size");
    let scale = keys.number(found, "routed_scaling_factor", 1.0);
    if let (Some(experts), Some(active)) = (experts, active)
        && active > experts
    {
        let path = keys.path("num_experts_per_tok");
        found.problems.push(format!("`{path}` = {active} is more than the {experts} experts"));
    }
    if let Some(scale) = scale.filter(|scale| *scale <= 0.0) {
        let path = keys.path("routed_scaling_factor");
        found.problems.push(format!("`{path}` is {scale}: a number above 0 is wanted"));
    }
    keys.only(found, "n_shared_experts", &[json!(1)], "this family has one shared expert");
    keys.only(found, "norm_topk_prob", &[json!(true)], "only weights divided by their sum are known");
    for key in ["n_group", "topk_group"] {
        keys.only(found, key, &[json!(1)], "experts are chosen from one group of all");
    }
    keys.only(found, "mlp_bias", &[json!(false)], "experts have no biases");
    Some(Experts {
        experts: experts?,
        active: active?,
        width: width?,
        gated: false,
        latent: latent?,
        activation: activation?,
        router: Router::Sigmoid { scale: scale? as f32 },
        router_norm: None,
        expert_scales: false,
        shared: Some(SharedExpert { width: shared?, gate: false }),
        branch_norms: None,
    })
}

fn dense(keys: &mut Keys, found: &mut Findings, activation: Option<Activation>) -> Option<Ungated> {
    let width = keys.count(found, "intermediate_size", DEFAULTS.width);
    let bias = keys.flag(found, "mlp_bias", false);
    Some(Ungated { width: width?, activation: activation?, bias: bias? })
}

/// Whether there is a draft head: one of [`DRAFT_LETTERS`], whose layers are made of blocks that the model
/// has. transformers does not read it.
fn head(keys: &mut Keys, found: &mut Findings, has_blocks: bool) -> Option<DraftHead> {
    let pattern = keys.given("mtp_hybrid_override_pattern");
    keys.harmless(&["mtp_layers_block_type"]);
    match keys.given("num_nextn_predict_layers").map(Value::as_u64) {
        None | Some(Some(0)) => Some(DraftHead::Never),
        Some(Some(1)) if has_blocks && pattern.is_some_and(|it| it == DRAFT_LETTERS) => {
            Some(DraftHead::Present)
        }
        Some(Some(count)) => {
            let of = pattern.map_or("no pattern".to_owned(), |pattern| format!("the pattern {pattern}"));
            let note = format!("A draft head of {count} times {of} is not known: mtp.* is left out.");
            found.notes.push(note);
            Some(DraftHead::Absent)
        }
        Some(None) => {
            let path = keys.path("num_nextn_predict_layers");
            found.problems.push(format!("`{path}` is no whole number of at least 0"));
            None
        }
    }
}

/// Every layer, by the letters of the pattern.
fn layers(keys: &mut Keys, found: &mut Findings) -> Option<Vec<Layer>> {
    let key = "hybrid_override_pattern";
    let stated = keys.count_or_null(found, "num_hidden_layers")?;
    let Some(Value::String(pattern)) = keys.given(key) else {
        found.problems.push(format!("`{}` is missing: a letter a layer, such as \"ME*E\"", keys.path(key)));
        return None;
    };
    let known = |letter: char| LETTERS.iter().find(|(it, _)| *it == letter).map(|(_, layer)| *layer);
    if let Some(other) = pattern.chars().find(|letter| known(*letter).is_none()) {
        let letters = "`M` (Mamba-2), `*` (attention), `E` (experts) and `-` (dense)";
        found.problems.push(format!("`{}` has layers `{other}`: known are {letters}", keys.path(key)));
        return None;
    }
    let layers: Vec<Layer> = pattern.chars().filter_map(known).collect();
    if stated.is_some_and(|stated| stated != layers.len()) {
        let (one, other, count) = (keys.path(key), keys.path("num_hidden_layers"), layers.len());
        found.problems.push(format!("`{one}` names {count} layers, `{other}` another number"));
        return None;
    }
    Some(layers)
}
