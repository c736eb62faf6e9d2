//! Gemma 4: layers with a window between layers without, whose heads have other widths; norms before and
//! behind every block; in some sizes experts beside the dense block.

use super::{Family, Wrapper};
use crate::blocks::attention::spec::Attention;
use crate::blocks::experts::spec::{Experts, Router, SharedExpert};
use crate::blocks::products::spec::Gated;
use crate::import::dimensions::{activation_named, all_stop_ids, kv_heads};
use crate::import::draft::{
    Draft, DraftHead, DraftNames, ExpertNames, FULL, Layer, Modules, Naming, Projections, Stacked,
};
use crate::import::keys::{Findings, Keys};
use crate::import::quantization;
use crate::import::rotary::Turned;
use crate::spec::types::{
    Activation, Around, Ffn, Mixer, Norm, NormWeight, Rotary, RotaryPairs, RotaryScaling,
};
use monomorph_formats::{Format, decode, encode};
use serde_json::{Value, json};

pub(super) const NAME: &str = "gemma4_text";

/// The multimodal config.
pub(super) const WRAPPER: Wrapper = Wrapper {
    name: "gemma4",
    architecture: "Gemma4ForConditionalGeneration",
    text: NAME,
    others: &[
        "audio_config",
        "audio_token_id",
        "boa_token_id",
        "boi_token_id",
        "eoa_token_id",
        "eoa_token_index",
        "eoi_token_id",
        "vision_soft_tokens_per_image",
    ],
};

/// Defaults of transformers' configuration class.
const DEFAULTS: Family = Family {
    name: NAME,
    architecture: "Gemma4ForCausalLM",
    hidden: 2304,
    layers: 30,
    vocabulary: 262_144,
    width: 9216,
    context: 131_072,
    heads: 8,
    kv_heads: Some(4),
    head_dim: Some(256),
    stop_ids: &[1],
    qk_norm: true,
    turned: Turned::Whole,
    hybrid: None,
    experts: None,
};

/// Width of a head in layers without a window.
const FULL_HEAD_DIM: usize = 512;
const WINDOW: usize = 512;
/// Every sixth layer has no window.
const INTERVAL: usize = 6;
/// Name of mixers with a window in patterns.
const SLIDING: &str = "sliding";
/// Values of `layer_types`, which also name settings of rotary embeddings, and the mixers.
const TYPES: [(&str, &str); 2] = [("sliding_attention", SLIDING), ("full_attention", FULL)];

/// Reads the config.
pub(super) fn read(keys: &mut Keys, mut outer: Option<&mut Keys>, found: &mut Findings) -> Option<Draft> {
    let hidden = keys.count(found, "hidden_size", DEFAULTS.hidden);
    let count = keys.count(found, "num_hidden_layers", DEFAULTS.layers);
    let vocabulary = keys.count(found, "vocab_size", DEFAULTS.vocabulary);
    let context = keys.count(found, "max_position_embeddings", DEFAULTS.context);
    let eps = keys.number(found, "rms_norm_eps", 1e-6).map(|eps| eps as f32);
    let norm = eps.map(|eps| Norm { eps, weight: NormWeight::Plain });
    let tied = tied(keys, outer.as_deref_mut(), found);
    let activation = activation_of(keys, found);
    let ended_by = all_stop_ids(DEFAULTS.stop_ids, keys, outer.as_deref_mut(), found, vocabulary);
    let layers = layers(keys, found, count);
    let mixers = mixers(keys, found, norm);
    let ffn = ffn(keys, found, (activation, norm));
    let logit_cap = keys.number_or_null(found, "final_logit_softcapping");
    let quantization = match outer.as_deref_mut() {
        Some(outer) => quantization::read(outer, found),
        None => quantization::read(keys, found),
    };
    refuse_variants(keys, found);
    let (hidden, layers, [sliding, full]) = (hidden?, layers?, mixers?);
    Some(Draft {
        family: DEFAULTS.name,
        hidden,
        layers: layers.len(),
        vocabulary: vocabulary?,
        context: context?,
        tied: tied?,
        norm: norm?,
        around: Around {
            embedding_scale: Some(embedding_scale(hidden)),
            post_norms: true,
            layer_scale: true,
            logit_cap: logit_cap?.map(|cap| cap as f32),
        },
        pattern: Layer::pattern(&layers)?,
        mixers: vec![(SLIDING, Mixer::from(sliding)), (FULL, full.into())],
        ffn: ffn?,
        others: Vec::new(),
        head: DraftHead::Never,
        stop_ids: ended_by?,
        naming: Naming {
            prefix: if outer.is_some() { "model.language_model." } else { "model." },
            embedding: "embed_tokens.weight",
            norm: "norm.weight",
            head: "lm_head.weight",
            mixer_norm: "input_layernorm.weight",
            ffn_norm: "pre_feedforward_layernorm.weight",
            modules: Modules {
                experts: ExpertNames {
                    router: "router.proj",
                    stacked: "experts",
                    apart: "moe.experts",
                    shared: "mlp",
                    ..ExpertNames::USUAL
                },
                ..Modules::USUAL
            },
            draft: DraftNames::USUAL,
            projections: Projections::Apart,
            stacked: Stacked::Yes,
            towers: match outer {
                Some(_) => &[
                    "model.vision_tower.*",
                    "model.embed_vision.*",
                    "model.audio_tower.*",
                    "model.embed_audio.*",
                ],
                None => &[],
            },
        },
        gguf: None,
        quantization: quantization?,
        tower: None,
        defaulted: Vec::new(),
        notes: Vec::new(),
    })
}

/// The root of the width in bf16, which is what releases compute in.
fn embedding_scale(hidden: usize) -> f32 {
    let mut rounded = [0.0];
    decode(Format::Bf16, &encode(Format::Bf16, &[(hidden as f64).sqrt() as f32]), &mut rounded);
    rounded[0]
}

/// Whether the head is tied to the embedding, as it is by default.
fn tied(keys: &mut Keys, outer: Option<&mut Keys>, found: &mut Findings) -> Option<bool> {
    let key = "tie_word_embeddings";
    let own = keys.flag(found, key, true)?;
    let Some(outer) = outer else { return Some(own) };
    let tied = outer.flag(found, key, true)?;
    if own != tied {
        found.notes.push(format!("{key} = {tied} goes before text_config.{key}, as in transformers."));
    }
    Some(tied)
}

/// Reads `hidden_activation`, which other families call `hidden_act`.
fn activation_of(keys: &mut Keys, found: &mut Findings) -> Option<Activation> {
    let key = "hidden_activation";
    match keys.get(key) {
        None => Some(Activation::GeluTanh),
        Some(value) => activation_named(&keys.path(key), value, found),
    }
}

/// The mixer of every layer.
fn layers(keys: &mut Keys, found: &mut Findings, count: Option<usize>) -> Option<Vec<Layer>> {
    let count = count?;
    let path = keys.path("layer_types");
    let types: Vec<&'static str> = match keys.given("layer_types") {
        None => {
            found.defaulted.push(path.clone());
            (1..=count)
                .map(|at| if at.is_multiple_of(INTERVAL) || at == count { FULL } else { SLIDING })
                .collect()
        }
        Some(value) => {
            let named = |it: &Value| TYPES.iter().find(|(name, _)| it == name).map(|(_, mixer)| *mixer);
            let types = value.as_array().and_then(|list| list.iter().map(named).collect::<Option<Vec<_>>>());
            let Some(types) = types else {
                let known = "a list of \"sliding_attention\" and \"full_attention\" is known";
                found.problems.push(format!("`{path}` = {value}: {known}"));
                return None;
            };
            types
        }
    };
    if types.len() != count {
        let other = keys.path("num_hidden_layers");
        found.problems.push(format!("`{path}` names {} layers, `{other}` another number", types.len()));
        return None;
    }
    // transformers replaces another one without a word.
    if types.last() != Some(&FULL) {
        found
            .problems
            .push(format!("`{path}` ends with \"sliding_attention\": the last layer has no window"));
        return None;
    }
    Some(types.into_iter().map(|mixer| Layer { mixer, ffn: None }).collect())
}

/// Attention with a window and without.
fn mixers(keys: &mut Keys, found: &mut Findings, norm: Option<Norm>) -> Option<[Attention; 2]> {
    let heads = keys.count(found, "num_attention_heads", DEFAULTS.heads);
    let few = kv_heads(&DEFAULTS, keys, found, heads);
    let keys_as_values = keys.flag(found, "attention_k_eq_v", false);
    let of_full = keys.count_or_null(found, "num_global_key_value_heads");
    let head_dim = keys.count(found, "head_dim", 256);
    let wide = keys.count(found, "global_head_dim", FULL_HEAD_DIM);
    let window = keys.count(found, "sliding_window", WINDOW);
    let bias = keys.flag(found, "attention_bias", false);
    let [sliding, full] = [(0, head_dim), (1, wide)].map(|(at, dim)| rotary(keys, found, TYPES[at].0, dim?));
    let (heads, bias, norm, keys_as_values) = (heads?, bias?, norm?, keys_as_values?);
    // Without values that are keys, transformers does not read the other number.
    let of_full = of_full?.filter(|_| keys_as_values).or(few)?;
    if heads % of_full != 0 {
        let (few, many) = (keys.path("num_global_key_value_heads"), keys.path("num_attention_heads"));
        found.problems.push(format!("`{few}` = {of_full} does not divide `{many}` = {heads}"));
        return None;
    }
    let sliding = Attention {
        heads,
        kv_heads: few?,
        head_dim: head_dim?,
        rotary: Some(sliding?),
        qk_norm: Some(norm),
        norm_rows: false,
        v_norm: Some(norm.eps),
        keys_as_values: false,
        scale: Some(1.0),
        window: Some(window?),
        qkv_bias: bias,
        output_bias: bias,
        gate: false,
    };
    let full = Attention {
        kv_heads: of_full,
        head_dim: wide?,
        rotary: Some(full?),
        keys_as_values,
        window: None,
        ..sliding.clone()
    };
    Some([sliding, full])
}

/// Reads the settings of one type of layers in `rope_parameters`.
fn rotary(keys: &mut Keys, found: &mut Findings, of: &str, head_dim: usize) -> Option<Rotary> {
    let path = keys.path("rope_parameters");
    let full = of == TYPES[1].0;
    let dims = head_dim;
    if !dims.is_multiple_of(2) {
        found
            .problems
            .push(format!("heads of `{of}` layers are {dims} wide: rotary embeddings need an even width"));
        return None;
    }
    let (mut theta, mut part) = if full { (1e6, Some(0.25)) } else { (1e4, None) };
    match keys.given("rope_parameters") {
        None => found.defaulted.push(path),
        Some(Value::Object(all)) => {
            if let Some(other) = all.keys().find(|key| TYPES.iter().all(|(name, _)| name != key)) {
                found.problems.push(format!("`{path}.{other}`: settings by type of layer are known"));
                return None;
            }
            let Some(Value::Object(settings)) = all.get(of) else {
                found.problems.push(format!("`{path}.{of}` is missing: an object is wanted"));
                return None;
            };
            let mut inner = Keys::new(settings, &format!("{path}.{of}."));
            theta = inner.required_number(found, "rope_theta")?;
            part = match inner.get("rope_type").and_then(Value::as_str) {
                Some("default") => {
                    let why = "only with \"proportional\" rotary embeddings part of a head turns";
                    inner.only(found, "partial_rotary_factor", &[json!(1.0), json!(1), Value::Null], why);
                    None
                }
                Some("proportional") => inner.number_or_null(found, "partial_rotary_factor")?,
                other => {
                    let path = inner.path("rope_type");
                    let shown = other.map_or("missing".to_owned(), |it| format!("{it:?}"));
                    found
                        .problems
                        .push(format!("`{path}` is {shown}: known are `default` and `proportional`"));
                    return None;
                }
            };
            inner.finish(found, "rotary embeddings of this family");
        }
        Some(other) => {
            found.problems.push(format!("`{path}` is {other}: an object is wanted"));
            return None;
        }
    }
    // Truncated, as in transformers.
    let turning = part.map(|part| (part * dims as f64) as usize / 2);
    if let Some(bad) = turning.filter(|turning| !(1..=dims / 2).contains(turning)) {
        found.problems.push(format!("{bad} of {} pairs of `{of}` heads turn: at least one must", dims / 2));
        return None;
    }
    let turning = turning.filter(|turning| *turning < dims / 2);
    Some(Rotary { dims, theta, pairs: RotaryPairs::Halves, turning, scaling: RotaryScaling::None })
}

/// The dense block, or experts beside it.
fn ffn(
    keys: &mut Keys,
    found: &mut Findings,
    (activation, norm): (Option<Activation>, Option<Norm>),
) -> Option<Ffn> {
    let dense = keys.count(found, "intermediate_size", DEFAULTS.width);
    let mixes = keys.flag(found, "enable_moe_block", false)?;
    if !mixes {
        keys.harmless(&["num_experts", "top_k_experts", "moe_intermediate_size", "expert_intermediate_size"]);
        return Some(Gated { width: dense?, activation: activation?, bias: false }.into());
    }
    keys.only(found, "expert_intermediate_size", &[Value::Null], "`moe_intermediate_size` is their width");
    let mut needed = |key: &str| {
        let count = keys.count_or_null(found, key)?;
        if count.is_none() {
            let path = keys.path(key);
            found.problems.push(format!("`{path}` is missing: `enable_moe_block` asks for it"));
        }
        count
    };
    let (experts, active) = (needed("num_experts"), needed("top_k_experts"));
    let width = needed("moe_intermediate_size");
    if let (Some(experts), Some(active)) = (experts, active)
        && active > experts
    {
        let path = keys.path("top_k_experts");
        found.problems.push(format!("`{path}` = {active} is more than the {experts} experts"));
        return None;
    }
    Some(
        Experts {
            experts: experts?,
            active: active?,
            width: width?,
            gated: true,
            activation: activation?,
            latent: None,
            router: Router::Softmax { renormalise: true },
            router_norm: Some(norm?),
            expert_scales: true,
            shared: Some(SharedExpert { width: dense?, gate: false }),
            branch_norms: Some(norm?),
        }
        .into(),
    )
}

/// Reports every setting that would make it a different model.
fn refuse_variants(keys: &mut Keys, found: &mut Findings) {
    let architectures = [json!([DEFAULTS.architecture]), Value::Null];
    keys.only(found, "architectures", &architectures, "only that is known");
    // By default there are such embeddings.
    if keys.get("hidden_size_per_layer_input") != Some(&json!(0)) {
        let path = keys.path("hidden_size_per_layer_input");
        found.problems.push(format!("`{path}` is not 0: embeddings for each layer are not known"));
    }
    keys.harmless(&["vocab_size_per_layer_input"]);
    let why = "layers that read another layer's keys and values are not known";
    keys.only(found, "num_kv_shared_layers", &[json!(0)], why);
    // It is about those layers only.
    keys.harmless(&["use_double_wide_mlp"]);
    let key = "use_bidirectional_attention";
    let why = "only null and \"vision\", which is about images, are known";
    keys.only(found, key, &[json!("vision"), Value::Null], why);
}
