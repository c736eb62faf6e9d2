//! Nemotron-H, so far only with Mamba-2 layers: a layer is a norm and one mixer.

use crate::blocks::mamba2::import as mamba2;
use crate::blocks::products::spec::Nothing;
use crate::import::dimensions::stop_ids;
use crate::import::draft::{Draft, DraftHead, ExpertNames, Layer, Naming, Stacked};
use crate::import::keys::{Findings, Keys};
use crate::import::quantization;
use crate::spec::types::{Norm, NormWeight};
use serde_json::{Value, json};

/// The mixer's name in patterns.
const MAMBA: &str = "mamba";

/// Reads the config.
pub(super) fn read(keys: &mut Keys, found: &mut Findings) -> Option<Draft> {
    let hidden = keys.count(found, "hidden_size", 4096);
    let vocabulary = keys.count(found, "vocab_size", 131_072);
    let context = keys.count(found, "max_position_embeddings", 4096);
    let tied = keys.flag(found, "tie_word_embeddings", false);
    let eps = keys.number(found, "layer_norm_epsilon", 1e-5);
    // Releases give the epsilon twice; transformers reads the other key.
    keys.harmless(&["norm_eps"]);
    let layers = layers(keys, found);
    let mixer = mamba2::read(keys, found, eps);
    let stop_ids = stop_ids(&[2], keys, found, vocabulary);
    let quantization = quantization::read(keys, found);
    keys.only(found, "architectures", &[json!(["NemotronHForCausalLM"]), Value::Null], "only that is known");
    keys.only(found, "residual_in_fp32", &[json!(false)], "only `false` is known");
    keys.only(
        found,
        "num_nextn_predict_layers",
        &[json!(0)],
        "draft layers of this family are not known yet",
    );
    keys.harmless(&["hidden_dropout", "num_logits_to_keep", "rescale_prenorm_residual"]);
    // Keys of attention, expert and dense layers; there are none.
    keys.harmless(&["attention_bias", "head_dim", "intermediate_size", "mlp_bias", "mlp_hidden_act"]);
    keys.harmless(&["num_attention_heads", "num_key_value_heads", "sliding_window"]);
    keys.harmless(&["moe_intermediate_size", "n_routed_experts", "n_shared_experts", "num_experts_per_tok"]);
    Some(Draft {
        family: "nemotron_h",
        hidden: hidden?,
        layers: layers?,
        vocabulary: vocabulary?,
        context: context?,
        tied: tied?,
        norm: Norm { eps: eps? as f32, weight: NormWeight::Plain },
        pattern: vec![Layer { mixer: MAMBA, dense: false }],
        mixers: vec![(MAMBA, mixer?.into())],
        ffn: Nothing.into(),
        dense: None,
        head: DraftHead::Never,
        stop_ids: stop_ids?,
        naming: Naming {
            prefix: "backbone.",
            embedding: "embeddings.weight",
            norm: "norm_f.weight",
            mixer_norm: "norm.weight",
            ffn_norm: "",
            experts: ExpertNames::USUAL,
            fused: false,
            stacked: Stacked::No,
            vision: false,
        },
        quantization: quantization?,
        defaulted: Vec::new(),
        notes: Vec::new(),
    })
}

/// Number of layers: all of them Mamba-2, so far.
fn layers(keys: &mut Keys, found: &mut Findings) -> Option<usize> {
    let key = "hybrid_override_pattern";
    let stated = keys.count_or_null(found, "num_hidden_layers")?;
    let Some(Value::String(pattern)) = keys.given(key) else {
        found.problems.push(format!("`{}` is missing: a letter a layer, such as \"MMMM\"", keys.path(key)));
        return None;
    };
    if let Some(other) = pattern.chars().find(|letter| *letter != 'M') {
        let problem = format!(
            "`{}` has layers `{other}`: only `M`, Mamba-2, is known of this family so far",
            keys.path(key)
        );
        found.problems.push(problem);
        return None;
    }
    let layers = pattern.len();
    if stated.is_some_and(|stated| stated != layers) {
        let (one, other) = (keys.path(key), keys.path("num_hidden_layers"));
        found.problems.push(format!("`{one}` names {layers} layers, `{other}` another number"));
        return None;
    }
    Some(layers)
}
