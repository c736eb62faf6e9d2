//! The config of Mistral Small 4, and what is refused.

use crate::families::{read, target, with};
use monomorph_compiler::blocks::experts::spec::{Experts, Router, SharedExpert};
use monomorph_compiler::blocks::latent_attention::spec::QueryScale;
use monomorph_compiler::import::Seen;
use monomorph_compiler::spec::types::*;
use serde_json::{Value, json};

/// The release's text part.
fn text(changes: Value) -> Value {
    let base = json!({
        "model_type": "mistral4", "vocab_size": 131_072, "hidden_size": 4096, "intermediate_size": 12288,
        "moe_intermediate_size": 2048, "num_hidden_layers": 36, "num_attention_heads": 32,
        "num_key_value_heads": 32, "head_dim": 128, "n_shared_experts": 1, "n_routed_experts": 128,
        "num_experts_per_tok": 4, "norm_topk_prob": true, "routed_scaling_factor": 1.0, "n_group": 1,
        "topk_group": 1, "first_k_dense_replace": 0, "kv_lora_rank": 256, "q_lora_rank": 1024,
        "qk_rope_head_dim": 64, "qk_nope_head_dim": 64, "v_head_dim": 128, "rope_interleave": true,
        "hidden_act": "silu", "max_position_embeddings": 1_048_576, "rms_norm_eps": 1e-6,
        "tie_word_embeddings": false, "attention_bias": false, "bos_token_id": 1, "eos_token_id": 2,
        "pad_token_id": 11, "rope_parameters": rope(json!({}))
    });
    with(base, changes)
}

fn rope(changes: Value) -> Value {
    let base = json!({
        "rope_type": "yarn", "rope_theta": 10000.0, "factor": 128.0, "original_max_position_embeddings": 8192,
        "beta_fast": 32.0, "beta_slow": 1.0, "mscale": 1.0, "mscale_all_dim": 1.0,
        "llama_4_scaling_beta": 0.1, "partial_rotary_factor": 0.5
    });
    with(base, changes)
}

/// A release's config around a text part.
fn release(text: &Value) -> Value {
    json!({
        "architectures": ["Mistral3ForConditionalGeneration"], "model_type": "mistral3", "text_config": text,
        "vision_config": { "model_type": "pixtral" }, "spatial_merge_size": 2, "projector_hidden_act": "gelu",
        "multimodal_projector_bias": false, "tie_word_embeddings": false
    })
}

fn refused(config: &Value, key: &str, value: &str) {
    let problems = read(config, &Seen::default()).expect_err(key).problems;
    assert!(problems.iter().any(|it| it.contains(key) && it.contains(value)), "{key}: {problems:?}");
}

#[test]
fn latents_and_experts_are_the_releases() {
    let it = target(&release(&text(json!({}))), "bf16");
    let Mixer::LatentAttention(attention) = &it.model.mixers["latent"] else { panic!("it attends") };
    let widths = (attention.key_dim, attention.rotary.dims, attention.value_dim);
    assert_eq!((attention.heads, widths), (32, (64, 64, 128)));
    assert_eq!((attention.latent, attention.query_latent, attention.width()), (256, Some(1024), 320));
    assert_eq!(attention.query_scale, Some(QueryScale { growth: 0.1, original: 8192 }));
    assert_eq!(attention.rotary.pairs, RotaryPairs::Adjacent);
    // As transformers has it: the root of 128, and what YaRN adds to scores.
    let scale = (0.1 * 128f64.ln() + 1.0).powi(2) / 128f64.sqrt();
    assert!((f64::from(attention.scale.expect("scores are scaled")) / scale - 1.0).abs() < 1e-6);
    let experts = Experts {
        experts: 128,
        active: 4,
        width: 2048,
        gated: true,
        activation: Activation::Silu,
        latent: None,
        router: Router::Softmax { renormalise: true },
        router_norm: None,
        expert_scales: false,
        shared: Some(SharedExpert { width: 2048, gate: false }),
        branch_norms: None,
    };
    assert_eq!(it.model.ffn, experts.into());
    assert!(!it.model.tied && it.model.protocol.stop_ids == [2]);
}

#[test]
fn rows_of_one_tensor_are_queries_and_what_of_them_rotates() {
    let it = target(&release(&text(json!({}))), "bf16");
    let names = |part: &str| it.quant.checkpoint.names[&format!("layers.{{layer}}.latent.{part}")].clone();
    let module = "language_model.model.layers.{layer}.self_attn";
    let place = |part: &str| (names(part).name, names(part).view.map(|it| (it.first, it.take, it.of)));
    assert_eq!(place("q"), (format!("{module}.q_b_proj.weight"), Some((0, 64, 128))));
    assert_eq!(place("q_rotated"), (format!("{module}.q_b_proj.weight"), Some((64, 64, 128))));
    assert_eq!(place("kv_a"), (format!("{module}.kv_a_proj_with_mqa.weight"), Some((0, 256, 320))));
    assert_eq!(place("k_rotated"), (format!("{module}.kv_a_proj_with_mqa.weight"), Some((256, 64, 320))));
    assert_eq!(place("kv"), (format!("{module}.kv_b_proj.weight"), None));
    assert_eq!(it.quant.checkpoint.names["head"].name, "language_model.lm_head.weight");
    let direct = target(&text(json!({ "q_lora_rank": null })), "bf16");
    let q = &direct.quant.checkpoint.names["layers.{layer}.latent.q"];
    assert_eq!(q.name, "model.layers.{layer}.self_attn.q_proj.weight");
}

#[test]
fn what_is_another_model_is_refused() {
    refused(&text(json!({ "attention_bias": true })), "attention_bias", "true");
    refused(&text(json!({ "num_key_value_heads": 8 })), "num_key_value_heads", "8");
    refused(&text(json!({ "n_group": 2 })), "n_group", "2");
    refused(&text(json!({ "routed_scaling_factor": 2.5 })), "routed_scaling_factor", "2.5");
    refused(&text(json!({ "first_k_dense_replace": 36 })), "first_k_dense_replace", "36");
    refused(&text(json!({ "index_topk": 4 })), "index_topk", "4");
    let turned = |changes: Value| text(json!({ "rope_parameters": rope(changes) }));
    refused(&turned(json!({ "rope_type": "default" })), "rope_type", "default");
    refused(&turned(json!({ "llama_4_scaling_beta": null })), "llama_4_scaling_beta", "missing");
    refused(&turned(json!({ "sharpness": 1 })), "sharpness", "1");
    let mut other = release(&text(json!({})));
    other["text_config"]["model_type"] = json!("mistral");
    refused(&other, "text_config.model_type", "mistral");
}
