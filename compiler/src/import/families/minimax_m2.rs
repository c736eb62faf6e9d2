//! MiniMax-M2: attention with norms over whole rows, and experts in every layer, chosen by corrected scores.

use super::Family;
use crate::blocks::attention::spec::Attention;
use crate::blocks::experts::import::active;
use crate::blocks::experts::spec::{Experts, Router};
use crate::import::dimensions::{activation, head_dim, kv_heads, stop_ids};
use crate::import::draft::{
    Draft, DraftHead, DraftNames, ExpertNames, FULL, Layer, Modules, Naming, Projections, Stacked,
};
use crate::import::keys::{Findings, Keys};
use crate::import::quantization;
use crate::import::rotary::{self, Turned};
use crate::spec::types::{Activation, Around, Norm, NormWeight};
use serde_json::{Value, json};

/// Defaults of transformers' configuration class.
const DEFAULTS: Family = Family {
    name: "minimax_m2",
    architecture: "MiniMaxM2ForCausalLM",
    hidden: 3072,
    layers: 62,
    vocabulary: 200_064,
    width: 1536,
    context: 196_608,
    heads: 48,
    kv_heads: Some(8),
    head_dim: Some(128),
    stop_ids: &[200_020],
    qk_norm: true,
    turned: Turned::Dimensions,
    hybrid: None,
    experts: None,
};

/// Reads the config.
pub(super) fn read(keys: &mut Keys, _: Option<&mut Keys>, found: &mut Findings) -> Option<Draft> {
    let hidden = keys.count(found, "hidden_size", DEFAULTS.hidden);
    let layers = keys.count(found, "num_hidden_layers", DEFAULTS.layers);
    let vocabulary = keys.count(found, "vocab_size", DEFAULTS.vocabulary);
    let context = keys.count(found, "max_position_embeddings", DEFAULTS.context);
    let tied = keys.flag(found, "tie_word_embeddings", false);
    let eps = keys.number(found, "rms_norm_eps", 1e-6);
    let norm = eps.map(|eps| Norm { eps: eps as f32, weight: NormWeight::Plain });
    let activation = activation(&DEFAULTS, keys, found);
    let stop_ids = stop_ids(DEFAULTS.stop_ids, keys, found, vocabulary);
    let attention = attention(keys, found, (hidden, context, norm));
    let experts = experts(keys, found, activation);
    let quantization = quantization::read(keys, found);
    refuse_variants(keys, found, layers);
    keys.harmless(&["auto_map", "output_router_logits", "router_aux_loss_coef", "router_jitter_noise"]);
    Some(Draft {
        family: DEFAULTS.name,
        hidden: hidden?,
        layers: layers?,
        vocabulary: vocabulary?,
        context: context?,
        tied: tied?,
        norm: norm?,
        around: Around::default(),
        pattern: vec![Layer { mixer: FULL, ffn: None }],
        mixers: vec![(FULL, attention?.into())],
        ffn: experts?.into(),
        others: Vec::new(),
        head: DraftHead::Never,
        stop_ids: stop_ids?,
        naming: Naming {
            prefix: "model.",
            embedding: "embed_tokens.weight",
            norm: "norm.weight",
            head: "lm_head.weight",
            mixer_norm: "input_layernorm.weight",
            ffn_norm: "post_attention_layernorm.weight",
            modules: Modules {
                parts: ["w1", "w3", "w2"],
                experts: ExpertNames {
                    router: "block_sparse_moe.gate",
                    apart: "block_sparse_moe.experts",
                    correction: "block_sparse_moe.e_score_correction_bias",
                    ..ExpertNames::USUAL
                },
                ..Modules::USUAL
            },
            draft: DraftNames::USUAL,
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

fn attention(
    keys: &mut Keys,
    found: &mut Findings,
    (hidden, context, norm): (Option<usize>, Option<usize>, Option<Norm>),
) -> Option<Attention> {
    let heads = keys.count(found, "num_attention_heads", DEFAULTS.heads);
    let kv_heads = kv_heads(&DEFAULTS, keys, found, heads);
    let head_dim = head_dim(&DEFAULTS, keys, found, hidden, heads);
    let rotary = rotary::read(keys, found, head_dim, context, DEFAULTS.turned);
    keys.only(found, "use_qk_norm", &[json!(true), Value::Null], "this family norms queries and keys");
    // transformers knows no other, and norms so whatever the key says.
    let why = "only norms over all heads of a layer (\"per_layer\") are known";
    keys.only(found, "qk_norm_type", &[json!("per_layer"), Value::Null], why);
    keys.only(found, "attention_bias", &[json!(false), Value::Null], "this family's attention has no biases");
    Some(Attention {
        heads: heads?,
        kv_heads: kv_heads?,
        head_dim: head_dim?,
        rotary: Some(rotary?),
        qk_norm: Some(norm?),
        norm_rows: true,
        v_norm: None,
        keys_as_values: false,
        scale: None,
        window: None,
        qkv_bias: false,
        output_bias: false,
        gate: false,
    })
}

fn experts(keys: &mut Keys, found: &mut Findings, activation: Option<Activation>) -> Option<Experts> {
    let experts = keys.count(found, "num_local_experts", 256);
    let active = active(keys, found, 8, experts);
    let width = keys.count(found, "intermediate_size", DEFAULTS.width);
    let why = "only \"sigmoid\" is known of this family";
    keys.only(found, "scoring_func", &[json!("sigmoid"), Value::Null], why);
    let why = "this family corrects what experts are chosen by";
    keys.only(found, "use_routing_bias", &[json!(true), Value::Null], why);
    let why = "no shared expert is known of this family";
    keys.only(found, "shared_intermediate_size", &[json!(0), Value::Null], why);
    Some(Experts {
        experts: experts?,
        active: active?,
        width: width?,
        gated: true,
        latent: None,
        activation: activation?,
        router: Router::Sigmoid { scale: 1.0 },
        router_norm: None,
        expert_scales: false,
        shared: None,
        branch_norms: None,
    })
}

/// Reports every setting that would make it a different model.
fn refuse_variants(keys: &mut Keys, found: &mut Findings, layers: Option<usize>) {
    let architectures = [json!([DEFAULTS.architecture]), Value::Null];
    keys.only(found, "architectures", &architectures, "only that is known");
    keys.only(found, "sliding_window", &[Value::Null], "sliding windows are not known yet");
    if let Some(types) = keys.given("attn_type_list") {
        let path = keys.path("attn_type_list");
        let full = types.as_array().filter(|list| list.iter().all(|it| *it == json!(1)));
        match full {
            None => {
                found.problems.push(format!("`{path}` is {types}: only 1, full attention, is known"));
            }
            Some(list) if layers.is_some_and(|layers| layers != list.len()) => {
                let other = keys.path("num_hidden_layers");
                let count = list.len();
                found.problems.push(format!("`{path}` names {count} layers, `{other}` another number"));
            }
            Some(_) => {}
        }
    }
    keys.harmless(&["use_mtp", "mtp_transformer_layers"]);
    if keys.given("num_mtp_modules").is_some_and(|it| *it != json!(0)) {
        let path = keys.path("num_mtp_modules");
        found.notes.push(format!("{path} promises draft layers, which no release has."));
    }
}
