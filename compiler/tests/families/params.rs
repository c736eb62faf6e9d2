//! The params.json of Mistral's own releases beside the Hugging Face config of the same model. (Its weights
//! are read in `tests/tests/goldens.rs`.)
//!
//! Planted once, and caught here: gate and up exchanged (`it_is_the_target_that_ships`), and scores that are
//! scaled whatever `apply_scale` says.

use crate::families::{load, with};
use monomorph_compiler::import::{ImportError, Imported, Seen, import, import_params};
use monomorph_compiler::spec;
use monomorph_compiler::spec::types::*;
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::path::Path;

/// The release's file, as far as it is known.
fn params(changes: Value) -> Value {
    let base = json!({
        "dim": 4096, "n_layers": 36, "head_dim": 128, "hidden_dim": 12288, "n_heads": 32, "n_kv_heads": 32,
        "norm_eps": 1e-6, "vocab_size": 131_072, "tied_embeddings": false, "rope_theta": 10000.0,
        "max_position_embeddings": 1_048_576, "q_lora_rank": 1024, "kv_lora_rank": 256, "qk_rope_head_dim": 64,
        "qk_nope_head_dim": 64, "v_head_dim": 128, "moe": moe(json!({})), "yarn": yarn(json!({})),
        "llama_4_scaling": { "original_max_position_embeddings": 8192, "beta": 0.1 },
        "quantization": {
            "quant_method": "compressed_tensors", "format": "nvfp4-pack-quantized", "quantization_status": "compressed",
            "config_groups": { "group_0": {
                "targets": ["re:.*experts.*"], "weights": { "num_bits": 4, "type": "float", "group_size": 16 },
            } },
            "ignore": ["output", "re:vision_encoder.*"],
        },
        "vision_encoder": { "hidden_size": 1024, "image_token_id": 10 },
    });
    with(base, changes)
}

fn moe(changes: Value) -> Value {
    let base = json!({
        "num_experts": 128, "num_experts_per_tok": 4, "expert_hidden_dim": 2048, "num_shared_experts": 1,
        "first_k_dense_replace": 0, "routed_scale": 1.0, "num_expert_groups": 1, "num_expert_groups_per_tok": 1,
        "route_every_n": 1, "expert_parallel": 1,
    });
    with(base, changes)
}

fn yarn(changes: Value) -> Value {
    let base = json!({ "factor": 128, "original_max_position_embeddings": 8192, "beta": 32, "alpha": 1,
        "apply_scale": false });
    with(base, changes)
}

fn read(params: &Value) -> Result<Imported, ImportError> {
    import_params(&params.to_string(), "it", Compute::F16, &Seen::default())
}

#[test]
fn its_tower_has_the_makers_names_and_pairs_of_neighbours() {
    let vision = read(&params(json!({}))).unwrap().vision_toml.unwrap();
    for line in [
        "family = \"pixtral\"",
        "depth = 24",
        "pairs = \"adjacent\" # of dimensions of a head that turn together",
        "tokens = { image = 10, end = 13, row_end = 12 }",
        "\"vision.layers.{layer}.attention.q\" = \"vision_encoder.transformer.layers.{layer}.attention.wq.weight\"",
        "\"vision.merger.up\" = \"vision_language_adapter.w_in.weight\"",
    ] {
        assert!(vision.lines().any(|it| it == line), "{line:?}:\n{vision}");
    }
    let clipped = read(&params(json!({ "vision_encoder": { "mm_projector_id": "linear" } }))).unwrap();
    assert_eq!(clipped.vision_toml, None);
    let note = "# The vision tower is left out: `vision_encoder.mm_projector_id` = \"linear\": ";
    assert!(clipped.model_toml.lines().any(|line| line.starts_with(note)), "{}", clipped.model_toml);
}

fn target(params: &Value, quant: &str) -> Target {
    load(&read(params).unwrap_or_else(|error| panic!("{error}")), quant)
}

/// The same model in Hugging Face's words.
fn config(params: &Value, scaled: bool) -> Value {
    let (moe, yarn, growth) = (&params["moe"], &params["yarn"], &params["llama_4_scaling"]);
    let mut rope = json!({
        "rope_type": "yarn", "rope_theta": params["rope_theta"], "factor": yarn["factor"],
        "original_max_position_embeddings": yarn["original_max_position_embeddings"],
        "beta_fast": yarn["beta"], "beta_slow": yarn["alpha"], "llama_4_scaling_beta": growth["beta"],
    });
    let scales = if scaled {
        json!({ "mscale": 1.0, "mscale_all_dim": 1.0 })
    } else {
        json!({ "attention_factor": 1.0 })
    };
    rope = with(rope, scales);
    json!({
        "model_type": "mistral4", "hidden_size": params["dim"], "num_hidden_layers": params["n_layers"],
        "intermediate_size": params["hidden_dim"], "num_attention_heads": params["n_heads"],
        "num_key_value_heads": params["n_kv_heads"], "head_dim": params["head_dim"],
        "rms_norm_eps": params["norm_eps"], "vocab_size": params["vocab_size"],
        "tie_word_embeddings": params["tied_embeddings"],
        "max_position_embeddings": params["max_position_embeddings"], "q_lora_rank": params["q_lora_rank"],
        "kv_lora_rank": params["kv_lora_rank"], "qk_rope_head_dim": params["qk_rope_head_dim"],
        "qk_nope_head_dim": params["qk_nope_head_dim"], "v_head_dim": params["v_head_dim"],
        "n_routed_experts": moe["num_experts"], "num_experts_per_tok": moe["num_experts_per_tok"],
        "moe_intermediate_size": moe["expert_hidden_dim"], "n_shared_experts": moe["num_shared_experts"],
        "first_k_dense_replace": moe["first_k_dense_replace"], "eos_token_id": 2, "rope_parameters": rope,
    })
}

/// A draft without what it says for readers.
fn keys_of(model_toml: &str) -> String {
    model_toml.lines().filter(|line| !line.starts_with('#')).collect::<Vec<_>>().join("\n")
}

#[test]
fn it_is_the_model_of_the_hugging_face_config() {
    for (changes, scaled) in [
        (json!({}), false),
        (json!({ "yarn": yarn(json!({ "apply_scale": true })) }), true),
        (json!({ "q_lora_rank": null, "tied_embeddings": true }), false),
        (json!({ "moe": moe(json!({ "first_k_dense_replace": 3, "num_shared_experts": 2 })) }), false),
    ] {
        let params = params(changes);
        let own = read(&params).unwrap_or_else(|error| panic!("{error}"));
        let theirs = import(&config(&params, scaled).to_string(), "it", Compute::F16, &Seen::default());
        let theirs = theirs.unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(keys_of(&own.model_toml), keys_of(&theirs.model_toml));
        assert!(
            own.model_toml.starts_with("# it: imported from a Mistral params.json"),
            "{}",
            own.model_toml
        );
        assert_eq!(own.model_toml.contains("transformers does"), scaled, "{}", own.model_toml);
    }
}

/// What was written down by hand for the release: how it stores its tensors, and the model.
#[test]
fn it_is_the_target_that_ships() {
    let targets = Path::new(env!("CARGO_MANIFEST_DIR")).join("../targets");
    let shipped =
        spec::load(&[targets], "h200/mistral-small-4/nvfp4").unwrap_or_else(|errors| panic!("{errors}"));
    let it = target(&params(json!({ "max_position_embeddings": shipped.model.context })), "nvfp4");
    assert_eq!((&it.model.mixers, &it.model.ffn), (&shipped.model.mixers, &shipped.model.ffn));
    assert_eq!(it.model.norm, shipped.model.norm);
    let (own, theirs) = (&it.quant, &shipped.quant);
    assert_eq!(own.checkpoint.names, theirs.checkpoint.names);
    let unused = |quant: &Quant| quant.checkpoint.unused.iter().cloned().collect::<BTreeSet<_>>();
    assert_eq!(unused(own), unused(theirs));
    assert_eq!((&own.stored, &own.scales, &own.compute), (&theirs.stored, &theirs.scales, &theirs.compute));
}

fn refused(params: &Value, expected: &str) {
    let problems = read(params).expect_err(expected).problems;
    assert!(problems.iter().any(|it| it.contains(expected)), "{expected}: {problems:?}");
}

#[test]
fn what_is_not_known_is_refused_in_the_words_of_the_file() {
    refused(&params(json!({ "sharpness": 1 })), "`sharpness` = 1: not a known key of params.json");
    refused(&params(json!({ "moe": moe(json!({ "noise": 1 })) })), "`moe.noise` = 1: not a known key");
    refused(&params(json!({ "yarn": yarn(json!({ "gamma": 1 })) })), "`yarn.gamma` = 1: not a known key");
    refused(&params(json!({ "yarn": 3 })), "`yarn` is 3: an object is wanted");
    refused(&params(json!({ "yarn": yarn(json!({ "apply_scale": null })) })), "`yarn.apply_scale` is null");
    let mut without = params(json!({}));
    without["yarn"].as_object_mut().unwrap().remove("apply_scale");
    refused(&without, "`yarn.apply_scale` is missing");
    without.as_object_mut().unwrap().remove("dim");
    refused(&without, "`dim` is missing");
    refused(&params(json!({ "n_heads": "many" })), "`n_heads` is \"many\"");
    refused(
        &params(json!({ "n_kv_heads": 8 })),
        "`n_kv_heads` = 8: every head has keys of its own, as `n_heads`",
    );
    refused(&params(json!({ "moe": moe(json!({ "num_expert_groups": 2 })) })), "`moe.num_expert_groups` = 2");
    refused(&params(json!({ "moe": moe(json!({ "route_every_n": 2 })) })), "`moe.route_every_n` = 2");
    refused(&params(json!({ "moe": moe(json!({ "routed_scale": 2.5 })) })), "`moe.routed_scale` = 2.5");
    refused(&params(json!({ "yarn": yarn(json!({ "beta": -1 })) })), "`yarn.beta` is -1");
    let other = json!({ "original_max_position_embeddings": 4096, "beta": 0.1 });
    refused(
        &params(json!({ "llama_4_scaling": other })),
        "`llama_4_scaling.original_max_position_embeddings` is 4096",
    );
    refused(&params(json!({ "llama_4_scaling": null })), "`llama_4_scaling.beta` is missing");
    refused(
        &params(json!({ "quantization": { "qformat_weight": "fp8_e4m3" } })),
        "`quantization.quant_method` is missing",
    );
}

#[test]
fn formats_of_answers_are_those_of_its_template() {
    let seen = Seen::default().with_formats(Some("mistral"), Some("mistral"));
    let imported = import_params(&params(json!({})).to_string(), "it", Compute::F16, &seen).unwrap();
    let protocol = load(&imported, "nvfp4").model.protocol;
    assert_eq!((protocol.tools, protocol.reasoning), (Some("mistral"), Some("mistral")));
    let protocol = target(&params(json!({})), "nvfp4").model.protocol;
    assert_eq!((protocol.tools, protocol.reasoning), (None, None));
}
