//! The configs of the hybrid and mixture-of-experts families: their keys and defaults, and what is refused.

mod families;
#[path = "families/gemma.rs"]
mod gemma;
#[path = "families/mistral.rs"]
mod mistral;
#[path = "families/nemotron.rs"]
mod nemotron;
#[path = "families/params.rs"]
mod params;
#[path = "families/vision.rs"]
mod vision;

use families::{moe_text, next, place, read, target, text, with, wrapped};
use monomorph_compiler::blocks::attention::spec::Attention;
use monomorph_compiler::blocks::delta_net::DeltaShape;
use monomorph_compiler::blocks::delta_net::spec::DeltaNet;
use monomorph_compiler::blocks::experts::spec::{Experts, Router};
use monomorph_compiler::blocks::products::spec::Gated;
use monomorph_compiler::import::Seen;
use monomorph_compiler::spec::types::*;
use serde_json::{Value, json};

fn qwen3_moe(changes: Value) -> Value {
    let base = json!({
        "architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "vocab_size": 131, "hidden_size": 64,
        "intermediate_size": 96, "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 2,
        "head_dim": 32, "max_position_embeddings": 256, "max_window_layers": 3, "moe_intermediate_size": 32,
        "num_experts": 8, "num_experts_per_tok": 3, "decoder_sparse_step": 1, "mlp_only_layers": [],
        "rope_theta": 1e6, "sliding_window": null, "use_sliding_window": false, "output_router_logits": false
    });
    with(base, changes)
}

fn renormalises(experts: &Experts) -> bool {
    matches!(experts.router, Router::Softmax { renormalise: true })
}

fn minimax_m2(changes: Value) -> Value {
    let base = json!({
        "architectures": ["MiniMaxM2ForCausalLM"], "model_type": "minimax_m2", "vocab_size": 131, "hidden_size": 64,
        "intermediate_size": 96, "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 2,
        "head_dim": 32, "max_position_embeddings": 256, "num_local_experts": 8, "num_experts_per_tok": 3,
        "attn_type_list": [1, 1, 1], "mtp_transformer_layers": 1, "num_mtp_modules": 3, "qk_norm_type": "per_layer",
        "rope_theta": 5e6, "rotary_dim": 16, "scoring_func": "sigmoid", "shared_intermediate_size": 0,
        "tie_word_embeddings": false, "use_mtp": true, "use_qk_norm": true, "use_routing_bias": true
    });
    with(base, changes)
}

fn qwen3_vl_moe(changes: Value) -> Value {
    let mut text = with(qwen3_moe(json!({ "model_type": "qwen3_vl_moe_text", "rope_theta": 5e6 })), changes);
    let text_only = text.as_object_mut().unwrap();
    text_only.retain(|key, _| {
        !["architectures", "max_window_layers", "use_sliding_window"].contains(&key.as_str())
    });
    text["rope_scaling"] =
        json!({ "mrope_interleaved": true, "mrope_section": [6, 5, 5], "rope_type": "default" });
    json!({
        "architectures": ["Qwen3VLMoeForConditionalGeneration"], "model_type": "qwen3_vl_moe", "image_token_id": 120,
        "text_config": text, "tie_word_embeddings": false, "video_token_id": 121, "vision_config": { "depth": 27 }
    })
}

fn attention(target: &Target) -> &Attention {
    let Mixer::Attention(attention) = &target.model.mixers["attention"] else { panic!("it attends") };
    attention
}

/// Refused with exactly one problem, which names key and value.
fn refused(config: &Value, key: &str, value: &str) {
    let problems = read(config, &Seen::default()).expect_err(key).problems;
    let [problem] = &problems[..] else { panic!("{key}: {problems:?}") };
    assert!(problem.contains(&format!("`{key}`")) && problem.contains(value), "{key}, {value}: {problem}");
}

#[test]
fn absent_keys_are_as_in_transformers() {
    let target_of = |family: &str| target(&json!({ "model_type": family }), "bf16");
    for (family, hidden, layers, heads, kv_heads, experts) in [
        ("qwen3_5_text", 4096, 32, 16, 4, None),
        ("qwen3_5_moe_text", 2048, 40, 16, 2, Some((256, 8, 512, true, Some(512)))),
        ("qwen3_next", 2048, 48, 16, 2, Some((512, 10, 512, true, Some(512)))),
        ("qwen3_moe", 2048, 24, 32, 4, Some((128, 8, 768, false, None))),
    ] {
        let it = target_of(family);
        assert_eq!((it.model.hidden, it.model.layers, it.model.context), (hidden, layers, 32768), "{family}");
        assert_eq!((attention(&it).heads, attention(&it).kv_heads), (heads, kv_heads), "{family}");
        match (&it.model.ffn, experts) {
            (Ffn::Gated(Gated { width: 12288, .. }), None) => {}
            (Ffn::Experts(it), Some(expected)) => {
                let shared = it.shared.map(|shared| shared.width);
                assert_eq!((it.experts, it.active, it.width, renormalises(it), shared), expected, "{family}");
            }
            other => panic!("{family}: {other:?}"),
        }
        let hybrid = family != "qwen3_moe";
        let (head_dim, dims) = if hybrid { (256, 64) } else { (64, 64) };
        let it = attention(&it);
        assert_eq!(
            (it.head_dim, it.rotary.as_ref().unwrap().dims, it.rotary.as_ref().unwrap().theta, it.gate),
            (head_dim, dims, 1e4, hybrid)
        );
        let weight = if hybrid { NormWeight::OnePlus } else { NormWeight::Plain };
        assert_eq!(it.qk_norm, Some(Norm { eps: 1e-6, weight }), "{family}");
    }
    let it = target_of("qwen3_next");
    assert_eq!(it.model.norm.weight, NormWeight::OnePlus);
    let shape = DeltaShape { key_heads: 16, value_heads: 32, key_dim: 128, value_dim: 128, taps: 4 };
    let norm = Norm { eps: 1e-6, weight: NormWeight::Plain };
    let delta = DeltaNet { shape, norm, activation: Activation::Silu };
    assert_eq!(it.model.mixers["delta"], Mixer::DeltaNet(delta));
}

#[test]
fn the_text_part_of_a_release_comes_through() {
    let config =
        wrapped(&text(json!({ "tie_word_embeddings": false })), json!({ "tie_word_embeddings": true }));
    let it = target(&config, "bf16");
    assert!(it.model.tied, "the wrapper's key decides");
    let pattern: Vec<String> = it.model.pattern.iter().map(ToString::to_string).collect();
    assert_eq!(pattern, ["delta", "delta", "delta", "attention"]);
    assert_eq!(
        (attention(&it).rotary.as_ref().unwrap().dims, attention(&it).rotary.as_ref().unwrap().theta),
        (8, 1e7)
    );
    assert_eq!(it.model.protocol.stop_ids, [2]);
    let prefix = "model.language_model.layers.{layer}";
    for (name, file, rows) in [
        ("layers.{layer}.attention.q", "self_attn.q_proj.weight", Some([0, 32, 64])),
        ("layers.{layer}.attention.gate", "self_attn.q_proj.weight", Some([32, 64, 64])),
        ("layers.{layer}.delta.q", "linear_attn.in_proj_qkv.weight", Some([0, 32, 256])),
        ("layers.{layer}.delta.k", "linear_attn.in_proj_qkv.weight", Some([32, 64, 256])),
        ("layers.{layer}.delta.v", "linear_attn.in_proj_qkv.weight", Some([64, 256, 256])),
        ("layers.{layer}.delta.z", "linear_attn.in_proj_z.weight", None),
        ("layers.{layer}.delta.a", "linear_attn.in_proj_a.weight", None),
        ("layers.{layer}.delta.a_log", "linear_attn.A_log", None),
        ("layers.{layer}.ffn.down", "mlp.down_proj.weight", None),
    ] {
        assert_eq!(place(&it, name), (format!("{prefix}.{file}"), rows), "{name}");
    }
    assert_eq!(place(&it, "embedding").0, "model.language_model.embed_tokens.weight");
    assert_eq!(it.quant.checkpoint.unused, ["model.visual.*", "lm_head.weight"]);
    assert_eq!(it.model.draft.as_ref().unwrap().name(), "attention");
    assert_eq!(place(&it, "draft.attention.o").0, "mtp.layers.0.self_attn.o_proj.weight");
    let imported = read(&config, &Seen::default()).unwrap().model_toml;
    for note in
        ["vision tower", "draft layer", "three positions", "goes before text_config.tie_word_embeddings"]
    {
        assert!(imported.contains(note), "{note}: {imported}");
    }
    // The same part shipped by itself has shorter names.
    let alone = target(&text(json!({ "architectures": ["Qwen3_5ForCausalLM"] })), "bf16");
    assert_eq!(place(&alone, "layers.{layer}.delta.o").0, "model.layers.{layer}.linear_attn.out_proj.weight");
    assert_eq!(alone.quant.checkpoint.unused, [""; 0]);
    let without = target(&text(json!({ "mtp_num_hidden_layers": 0 })), "bf16");
    assert!(without.model.draft.is_none());
    assert_eq!(without.quant.checkpoint.unused, ["mtp.*"]);
}

#[test]
fn patterns_are_the_shortest_that_repeat() {
    let pattern = |changes: Value| {
        let model = target(&text(changes), "bf16").model;
        model.pattern.iter().map(ToString::to_string).collect::<Vec<_>>()
    };
    let kinds = |letters: &str| {
        let kind = |letter| if letter == 'F' { "full_attention" } else { "linear_attention" };
        letters.chars().map(kind).collect::<Vec<_>>()
    };
    assert_eq!(pattern(json!({ "full_attention_interval": 2 })), ["delta", "attention"]);
    assert_eq!(pattern(json!({ "num_hidden_layers": 5, "full_attention_interval": 3 })).len(), 5);
    // A per-layer list overrides the interval.
    assert_eq!(pattern(json!({ "layer_types": kinds("LFLFLFLF") })), ["delta", "attention"]);
    assert_eq!(pattern(json!({ "layer_types": kinds("FFFFFFFF") })), ["attention"]);
    assert_eq!(pattern(json!({ "layer_types": kinds("LLLLLLLF") })).len(), 8);
    let fewer = text(json!({ "layer_types": kinds("LF") }));
    refused(&fewer, "layer_types", "2 layers");
    refused(&text(json!({ "layer_types": ["sliding_attention"] })), "layer_types", "sliding_attention");
}

#[test]
fn next_takes_its_projections_apart_by_key_heads() {
    let it = target(&next(json!({})), "bf16");
    // Three value heads of 32 per key head of 16: 16 + 16 + 96 + 96 rows.
    for (part, rows) in
        [("q", [0, 16, 224]), ("k", [16, 32, 224]), ("v", [32, 128, 224]), ("z", [128, 224, 224])]
    {
        let file = "model.layers.{layer}.linear_attn.in_proj_qkvz.weight".to_owned();
        assert_eq!(place(&it, &format!("layers.{{layer}}.delta.{part}")), (file, Some(rows)));
    }
    for (part, rows) in [("b", [0, 3, 6]), ("a", [3, 6, 6])] {
        let file = "model.layers.{layer}.linear_attn.in_proj_ba.weight".to_owned();
        assert_eq!(place(&it, &format!("layers.{{layer}}.delta.{part}")), (file, Some(rows)));
    }
    let expert = "model.layers.{layer}.mlp.experts.{expert}.up_proj.weight".to_owned();
    assert_eq!(place(&it, "layers.{layer}.ffn.experts.{expert}.up"), (expert, None));
    assert_eq!(
        place(&it, "layers.{layer}.ffn.shared.scale").0,
        "model.layers.{layer}.mlp.shared_expert_gate.weight"
    );
    assert_eq!(attention(&it).rotary.as_ref().unwrap().dims, 8);
}

#[test]
fn experts_are_renormalised_as_the_family_says() {
    let renormalises = |config: &Value| {
        let Ffn::Experts(experts) = target(config, "bf16").model.ffn else { panic!("it has experts") };
        renormalises(&experts)
    };
    let absent = |mut config: Value| {
        config.as_object_mut().unwrap().remove("norm_topk_prob");
        config
    };
    assert!(renormalises(&absent(next(json!({})))) && renormalises(&moe_text(json!({}))));
    assert!(!renormalises(&absent(qwen3_moe(json!({})))));
    assert!(renormalises(&qwen3_moe(json!({ "norm_topk_prob": true }))));
    assert!(!renormalises(&next(json!({ "norm_topk_prob": false }))));
}

#[test]
fn minimax_norms_whole_rows_and_chooses_by_corrected_sigmoids() {
    let absent = target(&json!({ "model_type": "minimax_m2" }), "bf16");
    assert_eq!(
        (attention(&absent).rotary.as_ref().unwrap().dims, attention(&absent).rotary.as_ref().unwrap().theta),
        (128, 5e6)
    );
    assert_eq!(absent.model.protocol.stop_ids, [200_020]);
    let it = target(&minimax_m2(json!({})), "bf16");
    let Ffn::Experts(experts) = &it.model.ffn else { panic!("it has experts") };
    assert_eq!((experts.experts, experts.active, experts.width), (8, 3, 96));
    assert_eq!(experts.router, Router::Sigmoid { scale: 1.0 });
    assert!(attention(&it).norm_rows && attention(&it).rotary.as_ref().unwrap().dims == 16);
    let block = "model.layers.{layer}.block_sparse_moe";
    for (tensor, name) in [
        ("router", "gate.weight"),
        ("router.correction", "e_score_correction_bias"),
        ("experts.{expert}.gate", "experts.{expert}.w1.weight"),
        ("experts.{expert}.up", "experts.{expert}.w3.weight"),
        ("experts.{expert}.down", "experts.{expert}.w2.weight"),
    ] {
        let placed = place(&it, &format!("layers.{{layer}}.ffn.{tensor}"));
        assert_eq!(placed, (format!("{block}.{name}"), None));
    }
    let factor = json!({ "rotary_dim": null, "rope_parameters": { "partial_rotary_factor": 0.25 } });
    assert_eq!(attention(&target(&minimax_m2(factor), "bf16")).rotary.as_ref().unwrap().dims, 8);
    for (key, value) in [
        ("qk_norm_type", json!("per_head")),
        ("use_qk_norm", json!(false)),
        ("use_routing_bias", json!(false)),
        ("scoring_func", json!("softmax")),
        ("shared_intermediate_size", json!(32)),
        ("attn_type_list", json!([1, 0, 1])),
        ("attn_type_list", json!([1, 1])),
        ("rotary_dim", json!(34)),
        ("sliding_window", json!(128)),
        ("layernorm_mlp_beta", json!(2.0)),
    ] {
        let shown = if key == "attn_type_list" { "" } else { &value.to_string() };
        refused(&minimax_m2(json!({ key: value })), key, shown);
    }
    refused(&minimax_m2(json!({ "partial_rotary_factor": 0.25 })), "rotary_dim", "gives 8");
}

#[test]
fn the_text_part_of_qwen3_vl_is_qwen3_moe_with_whole_heads_turned() {
    let it = target(&qwen3_vl_moe(json!({})), "bf16");
    let Ffn::Experts(experts) = &it.model.ffn else { panic!("it has experts") };
    assert!(renormalises(experts) && experts.shared.is_none());
    assert_eq!(
        (attention(&it).rotary.as_ref().unwrap().dims, attention(&it).rotary.as_ref().unwrap().theta),
        (32, 5e6)
    );
    assert_eq!(it.quant.checkpoint.unused[0], "model.visual.*");
    let expert = "model.language_model.layers.{layer}.mlp.experts.{expert}.up_proj.weight".to_owned();
    assert_eq!(place(&it, "layers.{layer}.ffn.experts.{expert}.up"), (expert, None));
}

#[test]
fn what_is_not_known_is_refused_by_name_and_value() {
    refused(&next(json!({ "mlp_only_layers": [4] })), "mlp_only_layers", "below 4");
    refused(&moe_text(json!({ "mlp_only_layers": [1] })), "mlp_only_layers", "[1]");
    refused(&moe_text(json!({ "decoder_sparse_step": 2 })), "decoder_sparse_step", "2");
    refused(&moe_text(json!({ "norm_topk_prob": false })), "norm_topk_prob", "false");
    refused(&moe_text(json!({ "num_experts_per_tok": 9 })), "num_experts_per_tok", "9");
    refused(&text(json!({ "attn_output_gate": false })), "attn_output_gate", "false");
    refused(&text(json!({ "hidden_act": "gelu" })), "hidden_act", "gelu");
    refused(&text(json!({ "linear_num_key_heads": 4 })), "linear_num_key_heads", "4");
    refused(&text(json!({ "num_key_value_heads": null })), "num_key_value_heads", "null");
    refused(&qwen3_moe(json!({ "attn_output_gate": true })), "attn_output_gate", "true");
    refused(&qwen3_moe(json!({ "num_local_experts": 9 })), "num_experts", "9");
    refused(&next(json!({ "partial_rotary_factor": 0.03 })), "partial_rotary_factor", "0.03");
    let inner = json!({ "rope_type": "default", "rope_theta": 1e7, "partial_rotary_factor": 1.5 });
    let config = wrapped(&text(json!({ "rope_parameters": inner })), json!({}));
    refused(&config, "text_config.rope_parameters.partial_rotary_factor", "1.5");
    refused(&wrapped(&text(json!({ "foo": 7 })), json!({})), "text_config.foo", "7");
    refused(&wrapped(&text(json!({})), json!({ "bar": 8 })), "bar", "8");
    refused(
        &wrapped(&moe_text(json!({})), json!({ "model_type": "qwen3_5" })),
        "text_config.model_type",
        "moe_text",
    );
    refused(&wrapped(&text(json!({})), json!({ "text_config": null })), "text_config", "object");
    let quantized = |it: Value| text(json!({ "quantization_config": it }));
    let awq = quantized(json!({ "quant_method": "awq" }));
    refused(&awq, "quantization_config.quant_method", "awq");
    let blocks = quantized(json!({ "quant_method": "fp8", "weight_block_size": [64, 128] }));
    refused(&blocks, "quantization_config.weight_block_size", "[64,128]");
    let int4 = quantized(json!({ "quant_method": "modelopt", "quant_algo": "W4A8_AWQ" }));
    refused(&int4, "quantization_config.quant_algo", "W4A8_AWQ");
    let group = json!({ "group_0": { "targets": ["Linear"], "weights": { "num_bits": 4, "type": "int" } } });
    let packed = json!({ "quant_method": "compressed-tensors", "format": "nvfp4-pack-quantized",
        "config_groups": group });
    refused(&quantized(packed), "quantization_config.config_groups.group_0.weights", "int");
    // A recipe per expert.
    let some = json!({ "quantization_config": { "quant_method": "fp8", "weight_block_size": [128, 128],
        "modules_to_not_convert": ["lm_head", "model.layers.2.mlp.experts.3"] } });
    let problems = read(&moe_text(some), &Seen::default()).expect_err("experts differ").problems;
    assert!(
        problems.iter().all(|it| it.contains("model.layers.2.mlp.experts.3.")) && problems.len() == 3,
        "{problems:?}"
    );
}
