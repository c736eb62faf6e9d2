//! The configs of Nemotron-H: those of both releases of Nemotron 3, and what is refused.

use crate::families::{place, read, target, with};
use monomorph_compiler::blocks::experts::spec::{Router, SharedExpert};
use monomorph_compiler::blocks::products::spec::Ungated;
use monomorph_compiler::graph;
use monomorph_compiler::import::Seen;
use monomorph_compiler::spec::{self, types::*};
use serde_json::{Value, json};

/// Nemotron 3 Nano's config.
fn nano(changes: Value) -> Value {
    let base = json!({
        "architectures": ["NemotronHForCausalLM"], "attention_bias": false, "attention_dropout": 0.0, "bos_token_id": 1,
        "chunk_size": 128, "conv_kernel": 4, "eos_token_id": 2, "expand": 2, "head_dim": 128, "hidden_dropout": 0.0,
        "hidden_size": 2688, "hybrid_override_pattern": "MEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEMEM*EMEMEMEME",
        "initializer_range": 0.02, "intermediate_size": 1856, "layer_norm_epsilon": 1e-5, "mamba_head_dim": 64,
        "mamba_hidden_act": "silu", "mamba_num_heads": 64, "mamba_proj_bias": false, "mamba_ssm_cache_dtype": "float32",
        "max_position_embeddings": 262_144
    });
    let more = json!({
        "mlp_bias": false, "mlp_hidden_act": "relu2", "model_type": "nemotron_h",
        "moe_intermediate_size": 1856, "moe_shared_expert_intermediate_size": 3712, "n_group": 1, "n_groups": 8,
        "n_routed_experts": 128, "n_shared_experts": 1, "norm_eps": 1e-5, "norm_topk_prob": true,
        "num_attention_heads": 32, "num_experts_per_tok": 6, "num_hidden_layers": 52, "num_key_value_heads": 2,
        "num_logits_to_keep": 1, "pad_token_id": 0, "partial_rotary_factor": 1.0, "rescale_prenorm_residual": true,
        "residual_in_fp32": false, "rope_theta": 10000, "routed_scaling_factor": 2.5, "sliding_window": null,
        "ssm_state_size": 128, "tie_word_embeddings": false, "time_step_floor": 0.0001, "time_step_max": 0.1,
        "time_step_min": 0.001, "topk_group": 1, "torch_dtype": "bfloat16", "transformers_version": "4.53.2",
        "use_bias": false, "use_cache": true, "use_conv_bias": true, "use_mamba_kernels": true, "vocab_size": 131_072
    });
    with(with(base, more), changes)
}

/// Nemotron 3 Super's.
fn superior(changes: Value) -> Value {
    let pattern = "MEMEMEM*EMEMEMEM*EMEMEMEM*EMEMEMEMEM*EMEMEMEMEM*EMEMEMEMEM*EMEMEMEMEM*EMEMEMEM*EMEMEMEME";
    let own = nano(json!({
        "dtype": "bfloat16", "hidden_size": 4096, "hybrid_override_pattern": pattern, "intermediate_size": 2688,
        "mamba_num_heads": 128, "moe_intermediate_size": 2688, "moe_latent_size": 1024,
        "moe_shared_expert_intermediate_size": 5376, "moe_shared_expert_overlap": false,
        "mtp_hybrid_override_pattern": "*E", "n_routed_experts": 512, "num_experts_per_tok": 22,
        "num_hidden_layers": 88, "num_nextn_predict_layers": 1, "routed_scaling_factor": 5.0,
        "time_step_limit": [0.0, "inf"], "transformers_version": "4.57.1"
    }));
    with(own, changes)
}

fn parameters(model: &Model) -> u128 {
    let elements =
        |it: &spec::TensorDecl| it.rows as u128 * it.columns.unwrap_or(1) as u128 * it.instances() as u128;
    spec::tensors(model).iter().chain(&spec::draft_tensors(model)).map(elements).sum()
}

fn refused(config: &Value, key: &str, value: &str) {
    let problems = read(config, &Seen::default()).expect_err(key).problems;
    assert!(problems.iter().any(|it| it.contains(key) && it.contains(value)), "{key}: {problems:?}");
}

#[test]
fn a_layer_of_nano_is_one_block() {
    let it = target(&nano(json!({})), "bf16").model;
    let count = |mixer: &str| (0..it.layers).filter(|layer| it.layer(*layer).to_string() == mixer).count();
    assert_eq!([count("mamba"), count("attention"), count("none/experts"), it.layers], [23, 6, 23, 52]);
    let Mixer::Attention(attention) = &it.mixers["attention"] else { panic!("it attends") };
    assert_eq!((attention.heads, attention.kv_heads, attention.head_dim), (32, 2, 128));
    assert!(attention.rotary.is_none() && attention.qk_norm.is_none());
    let Ffn::Experts(experts) = &it.other_ffns["experts"] else { panic!("it has experts") };
    assert_eq!((experts.experts, experts.active, experts.width, experts.latent), (128, 6, 1856, None));
    assert_eq!(experts.router, Router::Sigmoid { scale: 2.5 });
    assert_eq!(experts.shared, Some(SharedExpert { width: 3712, gate: false }));
    assert!(!experts.gated && experts.activation == Activation::Relu2);
}

#[test]
fn experts_of_super_work_in_a_width_of_their_own() {
    let it = target(&superior(json!({})), "bf16");
    let Ffn::Experts(experts) = &it.model.other_ffns["experts"] else { panic!("it has experts") };
    assert_eq!((experts.experts, experts.active, experts.width), (512, 22, 2688));
    assert_eq!((experts.latent, experts.router), (Some(1024), Router::Sigmoid { scale: 5.0 }));
    let mixer = "backbone.layers.{layer}.mixer";
    for (tensor, name) in [
        ("ffn.router", "gate.weight"),
        ("ffn.router.correction", "gate.e_score_correction_bias"),
        ("ffn.latent.in", "fc1_latent_proj.weight"),
        ("ffn.latent.out", "fc2_latent_proj.weight"),
        ("ffn.experts.{expert}.up", "experts.{expert}.up_proj.weight"),
        ("ffn.experts.{expert}.down", "experts.{expert}.down_proj.weight"),
        ("ffn.shared.up", "shared_experts.up_proj.weight"),
        ("attention.q", "q_proj.weight"),
        ("mamba2.o", "out_proj.weight"),
    ] {
        assert_eq!(place(&it, &format!("layers.{{layer}}.{tensor}")), (format!("{mixer}.{name}"), None));
    }
    let norm = ("backbone.layers.{layer}.norm.weight".to_owned(), None);
    assert_eq!(place(&it, "layers.{layer}.mixer.norm"), norm);
    assert_eq!(place(&it, "layers.{layer}.ffn.norm"), norm);
}

#[test]
fn the_draft_head_of_super_is_attention_and_then_experts() {
    let it = target(&superior(json!({})), "bf16");
    let layers: Vec<String> =
        it.model.draft.iter().flat_map(|it| &it.layers).map(ToString::to_string).collect();
    assert_eq!(layers, ["attention", "none/experts"]);
    for (tensor, name) in [
        ("fc", "0.eh_proj"),
        ("embedding_norm", "0.enorm"),
        ("hidden_norm", "0.hnorm"),
        ("mixer.norm", "0.norm"),
        ("attention.o", "0.mixer.o_proj"),
        ("ffn.norm", "1.norm"),
        ("ffn.router", "1.mixer.gate"),
        ("ffn.latent.out", "1.mixer.fc2_latent_proj"),
        ("ffn.experts.{expert}.up", "1.mixer.experts.{expert}.up_proj"),
        ("norm", "1.final_layernorm"),
    ] {
        assert_eq!(place(&it, &format!("draft.{tensor}")), (format!("mtp.layers.{name}.weight"), None));
    }
    assert!(!it.quant.checkpoint.unused.contains(&"mtp.*".to_owned()));
    for other in [json!({ "mtp_hybrid_override_pattern": "*EE" }), json!({ "num_nextn_predict_layers": 2 })] {
        let it = target(&superior(other), "bf16");
        assert!(it.model.draft.is_none() && it.quant.checkpoint.unused.contains(&"mtp.*".to_owned()));
    }
}

#[test]
fn layers_that_are_stored_unlike_most_are_named_and_built_apart() {
    let layers = |range: [usize; 6], part: &str| range.map(|it| format!("backbone.layers.{it}.mixer{part}"));
    let before = [4, 11, 18, 25, 32, 41];
    let ignored = [layers(before, "*"), layers(before.map(|it| it + 1), "*")].concat();
    let ignored = [ignored, vec!["lm_head".to_owned(), "*.gate".to_owned()]].concat();
    let quantised = json!({ "quantization_config": {
        "quant_method": "modelopt", "quant_algo": "NVFP4", "group_size": 16, "ignore": ignored
    }});
    let it = target(&nano(quantised), "nvfp4");
    let apart = "layers.{4,11,18,25,32,41}.mamba2.o";
    let stored = |name: &str| it.quant.stored.of(TensorClass::Mamba2, name).map(|it| it.name());
    assert_eq!(stored(apart), Some("bf16"));
    assert_eq!(stored("layers.{layer}.mamba2.o"), Some("nvfp4"));
    let graph = graph::build(&it.model, &it.quant);
    let bodies: Vec<&str> = graph.bodies.iter().map(|body| body.name.as_str()).collect();
    assert_eq!(bodies, ["embed", "attention", "mamba", "mamba_from_4", "none_experts", "head"]);
    let body = |layer: usize| graph.bodies[graph.schedule[1 + layer].body.0].name.as_str();
    assert_eq!(
        [0, 2, 4, 5, 11, 41, 44].map(body),
        ["mamba", "mamba", "mamba_from_4", "attention", "mamba_from_4", "mamba_from_4", "mamba"]
    );
    let bytes = spec::weight_bytes(&it.model, &it.quant, false) as f64;
    // The release has its router in f32, which a config does not say.
    let router = (23 * 128 * 2688 * 2) as f64;
    assert!((bytes + router - 19.34e9).abs() < 0.01e9, "{bytes}");
}

#[test]
fn super_has_its_published_size_with_its_draft_head() {
    assert_eq!(parameters(&target(&superior(json!({})), "bf16").model), 123_611_033_088);
}

#[test]
fn a_dense_block_has_no_gate() {
    let it =
        target(&nano(json!({ "hybrid_override_pattern": "M-*-", "num_hidden_layers": 4 })), "bf16").model;
    let dense = Ungated { width: 1856, activation: Activation::Relu2, bias: false };
    assert_eq!(it.other_ffns["dense"], dense.into());
    assert_eq!(it.other_ffns.len(), 1);
}

#[test]
fn what_is_not_known_is_refused_by_name_and_value() {
    for (key, value) in [
        ("n_group", json!(2)),
        ("topk_group", json!(2)),
        ("norm_topk_prob", json!(false)),
        ("n_shared_experts", json!(2)),
        ("attention_bias", json!(true)),
        ("mlp_bias", json!(true)),
        ("mlp_hidden_act", json!("swish")),
        ("sliding_window", json!(128)),
        ("residual_in_fp32", json!(true)),
        ("routed_scaling_factor", json!(-1.0)),
        ("mamba_hidden_act", json!("gelu")),
        ("num_hidden_layers", json!(51)),
        ("moe_shared_gate", json!(true)),
    ] {
        let shown = if key == "num_hidden_layers" { "52" } else { &value.to_string() };
        refused(&nano(json!({ key: value })), key, if key == "moe_shared_gate" { "" } else { shown });
    }
    refused(&nano(json!({ "hybrid_override_pattern": "MX" })), "hybrid_override_pattern", "`X`");
}
