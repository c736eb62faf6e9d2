//! The configs of Gemma 4: those of both releases, and what is refused.

use crate::families::{place, read, target, with};
use monomorph_compiler::blocks::experts::spec::{Experts, Router, SharedExpert};
use monomorph_compiler::blocks::products::spec::Gated;
use monomorph_compiler::graph::{self, Op, RotaryFrequencies};
use monomorph_compiler::import::Seen;
use monomorph_compiler::passes::assemble;
use monomorph_compiler::plan::cuda::{Constant, Kernel};
use monomorph_compiler::spec::{self, types::*};
use serde_json::{Value, json};
use std::path::Path;

/// Gemma 4 31B's text part.
fn text(changes: Value) -> Value {
    let types = ["sliding_attention"; 5].into_iter().chain(["full_attention"]);
    let types: Vec<&str> = types.cycle().take(60).collect();
    let base = json!({
        "attention_bias": false, "attention_dropout": 0.0, "attention_k_eq_v": true, "bos_token_id": 2,
        "dtype": "bfloat16", "enable_moe_block": false, "eos_token_id": 1, "expert_intermediate_size": null,
        "final_logit_softcapping": 30.0, "global_head_dim": 512, "head_dim": 256,
        "hidden_activation": "gelu_pytorch_tanh", "hidden_size": 5376, "hidden_size_per_layer_input": 0,
        "initializer_range": 0.02, "intermediate_size": 21504, "layer_types": types,
        "max_position_embeddings": 262_144, "model_type": "gemma4_text", "moe_intermediate_size": null,
        "num_attention_heads": 32, "num_experts": null, "num_global_key_value_heads": 4, "num_hidden_layers": 60,
        "num_key_value_heads": 16
    });
    let more = json!({
        "num_kv_shared_layers": 0, "pad_token_id": 0, "rms_norm_eps": 1e-6,
        "rope_parameters": {
            "full_attention":
                { "partial_rotary_factor": 0.25, "rope_theta": 1_000_000.0, "rope_type": "proportional" },
            "sliding_attention": { "rope_theta": 10_000.0, "rope_type": "default" }
        },
        "sliding_window": 1024, "tie_word_embeddings": true, "top_k_experts": null,
        "use_bidirectional_attention": "vision", "use_cache": true, "use_double_wide_mlp": false,
        "vocab_size": 262_144, "vocab_size_per_layer_input": 262_144
    });
    with(with(base, more), changes)
}

/// Gemma 4 26B-A4B's.
fn mixture(changes: Value) -> Value {
    let types = ["sliding_attention"; 5].into_iter().chain(["full_attention"]);
    let types: Vec<&str> = types.cycle().take(30).collect();
    let own = text(json!({
        "enable_moe_block": true, "hidden_size": 2816, "intermediate_size": 2112, "layer_types": types,
        "moe_intermediate_size": 704, "num_attention_heads": 16, "num_experts": 128,
        "num_global_key_value_heads": 2, "num_hidden_layers": 30, "num_key_value_heads": 8, "top_k_experts": 8
    }));
    with(own, changes)
}

/// A release's config around a text part.
fn release(text: &Value, changes: Value) -> Value {
    let base = json!({
        "architectures": ["Gemma4ForConditionalGeneration"], "audio_config": null, "audio_token_id": 258_881,
        "boa_token_id": 256_000, "boi_token_id": 255_999, "dtype": "bfloat16", "eoa_token_id": 258_883,
        "eoa_token_index": 258_883, "eoi_token_id": 258_882, "eos_token_id": [1, 106], "image_token_id": 258_880,
        "initializer_range": 0.02, "model_type": "gemma4", "text_config": text, "tie_word_embeddings": true,
        "transformers_version": "5.5.0.dev0", "video_token_id": 258_884, "vision_config": { "hidden_size": 1152 },
        "vision_soft_tokens_per_image": 280
    });
    with(base, changes)
}

fn refused(config: &Value, key: &str, value: &str) {
    let problems = read(config, &Seen::default()).expect_err(key).problems;
    assert!(problems.iter().any(|it| it.contains(key) && it.contains(value)), "{key}: {problems:?}");
}

#[test]
fn layers_have_a_window_and_narrow_heads_or_neither() {
    let it = target(&release(&text(json!({})), json!({})), "bf16");
    let count = |mixer: &str| (0..60).filter(|layer| it.model.layer(*layer).mixer == mixer).count();
    assert_eq!([count("sliding"), count("attention")], [50, 10]);
    let of = |name: &str| match &it.model.mixers[name] {
        Mixer::Attention(attention) => attention.clone(),
        other => panic!("{other:?}"),
    };
    let (sliding, full) = (of("sliding"), of("attention"));
    assert_eq!(
        (sliding.heads, sliding.kv_heads, sliding.head_dim, sliding.window),
        (32, 16, 256, Some(1024))
    );
    assert_eq!((full.heads, full.kv_heads, full.head_dim, full.window), (32, 4, 512, None));
    assert!(!sliding.keys_as_values && full.keys_as_values);
    for attention in [&sliding, &full] {
        assert_eq!((attention.scale, attention.v_norm), (Some(1.0), Some(1e-6)));
        assert!(attention.qk_norm.is_some() && !attention.norm_rows && !attention.qkv_bias);
    }
    let around =
        Around { embedding_scale: Some(73.5), post_norms: true, layer_scale: true, logit_cap: Some(30.0) };
    assert_eq!(it.model.around, around);
    assert_eq!(it.model.ffn, Gated { width: 21504, activation: Activation::GeluTanh, bias: false }.into());
    assert_eq!(it.model.protocol.stop_ids, [1, 106]);
    assert!(it.model.tied);
}

#[test]
fn a_quarter_of_the_pairs_turns_by_frequencies_of_the_whole_head() {
    let it = target(&text(json!({})), "bf16");
    let Mixer::Attention(full) = &it.model.mixers["attention"] else { panic!("it attends") };
    let rotary = full.rotary.as_ref().expect("it is rotated");
    assert_eq!((rotary.dims, rotary.turning, rotary.theta), (512, Some(64), 1e6));
    let RotaryFrequencies { inverse, factor, .. } = RotaryFrequencies::new(rotary);
    assert_eq!((inverse.len(), factor), (256, 1.0));
    assert!(inverse[64..].iter().all(|it| *it == 0.0));
    assert!((f64::from(inverse[63]) / 1e6f64.powf(-126.0 / 512.0) - 1.0).abs() < 1e-6);
    let Mixer::Attention(sliding) = &it.model.mixers["sliding"] else { panic!("it attends") };
    let rotary = sliding.rotary.as_ref().expect("it is rotated");
    assert_eq!((rotary.dims, rotary.turning, rotary.theta), (256, None, 1e4));
}

#[test]
fn experts_stand_beside_the_dense_block() {
    let it = target(&release(&mixture(json!({})), json!({})), "bf16");
    let norm = Norm { eps: 1e-6, weight: NormWeight::Plain };
    let experts = Experts {
        experts: 128,
        active: 8,
        width: 704,
        gated: true,
        activation: Activation::GeluTanh,
        latent: None,
        router: Router::Softmax { renormalise: true },
        router_norm: Some(norm),
        expert_scales: true,
        shared: Some(SharedExpert { width: 2112, gate: false }),
        branch_norms: Some(norm),
    };
    assert_eq!(it.model.ffn, experts.into());
    assert_eq!(it.model.around.embedding_scale, Some(53.0));
    let at = |name: &str| place(&it, &format!("layers.{{layer}}.{name}"));
    let named = |name: &str| format!("model.language_model.layers.{{layer}}.{name}");
    for (tensor, name) in [
        ("mixer.norm", "input_layernorm.weight"),
        ("mixer.post_norm", "post_attention_layernorm.weight"),
        ("attention.v", "self_attn.v_proj.weight"),
        ("attention.k_norm", "self_attn.k_norm.weight"),
        ("ffn.norm", "pre_feedforward_layernorm.weight"),
        ("ffn.post_norm", "post_feedforward_layernorm.weight"),
        ("ffn.router", "router.proj.weight"),
        ("ffn.router.norm", "router.scale"),
        ("ffn.router.scales", "router.per_expert_scale"),
        ("ffn.routed.norm", "pre_feedforward_layernorm_2.weight"),
        ("ffn.routed.post_norm", "post_feedforward_layernorm_2.weight"),
        ("ffn.shared.post_norm", "post_feedforward_layernorm_1.weight"),
        ("ffn.shared.down", "mlp.down_proj.weight"),
        ("scale", "layer_scalar"),
    ] {
        assert_eq!(at(tensor), (named(name), None));
    }
    assert_eq!(at("ffn.experts.{expert}.up"), (named("experts.gate_up_proj"), Some([704, 1408, 1408])));
    assert_eq!(at("ffn.experts.{expert}.down"), (named("experts.down_proj"), Some([0, 2816, 2816])));
    let unused = &it.quant.checkpoint.unused;
    assert!(unused.contains(&"model.vision_tower.*".to_owned()), "{unused:?}");
}

#[test]
fn models_have_the_parameters_that_their_shapes_give() {
    let of = |config: &Value| -> u128 {
        let elements = |it: &spec::TensorDecl| {
            it.rows as u128 * it.columns.unwrap_or(1) as u128 * it.instances() as u128
        };
        spec::tensors(&target(config, "bf16").model).iter().map(elements).sum()
    };
    assert_eq!(of(&text(json!({}))), 30_697_345_340);
    assert_eq!(of(&mixture(json!({}))), 25_233_141_790);
}

#[test]
fn codes_of_experts_have_tensors_of_their_own() {
    let quantised = json!({ "quantization_config": {
        "quant_method": "modelopt", "quant_algo": "NVFP4", "group_size": 16,
        "ignore": ["lm_head", "*.self_attn*", "*.mlp*", "*.router*", "model.vision_tower*"]
    }});
    let it = target(&release(&mixture(json!({})), quantised), "nvfp4");
    let up = place(&it, "layers.{layer}.ffn.experts.{expert}.up");
    assert_eq!(
        up,
        ("model.language_model.layers.{layer}.moe.experts.{expert}.up_proj.weight".to_owned(), None)
    );
    let stored = |class| it.quant.stored.classes[&class].name();
    assert_eq!(
        [TensorClass::Experts, TensorClass::Attention, TensorClass::Shared, TensorClass::Router].map(stored),
        ["nvfp4", "bf16", "bf16", "bf16"]
    );
    let bytes = spec::weight_bytes(&it.model, &it.quant, false) as f64;
    // 18.78 GB with a tower of 1.15 GB.
    assert!((bytes / 17.637e9 - 1.0).abs() < 1e-3, "{bytes}");
}

#[test]
fn tensors_of_one_name_have_a_weight_for_each_shape() {
    let it = target(&text(json!({})), "bf16");
    let graph = graph::build(&it.model, &it.quant);
    let shapes = |name: &str| -> Vec<(usize, usize)> {
        let named =
            graph.weights.iter().filter(|weight| weight.name == format!("layers.{{layer}}.attention.{name}"));
        named.map(|weight| (weight.rows, weight.columns)).collect()
    };
    assert_eq!(shapes("q"), [(16384, 5376), (8192, 5376)]);
    assert_eq!(shapes("k"), [(2048, 5376), (4096, 5376)]);
    assert_eq!(shapes("v"), [(4096, 5376)]);
    assert_eq!(shapes("q_norm"), [(512, 1), (256, 1)]);
    // Of layers without a window, what keys are made of is normed twice: as keys and as values.
    let body = graph.bodies.iter().find(|body| body.name == "attention").expect("there is such a body");
    let v =
        body.nodes.iter().find(|node| matches!(node.op, Op::Normalise { .. })).expect("values are normed");
    assert_eq!(body.values[v.inputs[0].0].name, "k");
}

#[test]
fn kernels_of_cards_are_told_of_windows_heads_and_routers() {
    let targets = Path::new(env!("CARGO_MANIFEST_DIR")).join("../targets");
    for name in ["h200/gemma-4-31b/bf16", "h200/gemma-4-26b-a4b/nvfp4", "gb10/gemma-4-26b-a4b/nvfp4"] {
        let it = spec::load(std::slice::from_ref(&targets), name).unwrap_or_else(|error| panic!("{error}"));
        let plan = assemble::plan(&it, &graph::build(&it.model, &it.quant));
        let plan = plan.unwrap_or_else(|error| panic!("{name}: {error}"));
        let cuda = plan.cuda.as_ref().expect("it is for a card");
        let of = |function: &str| -> Vec<&Kernel> {
            let kernels = cuda.modules.iter().flat_map(|module| &module.kernels);
            kernels.filter(|kernel| kernel.signature.function == function).collect()
        };
        let says = |kernel: &Kernel, name: &str, value: Constant| {
            kernel.constants.iter().any(|it| (it.0, &it.1) == (name, &value))
        };
        for function in ["attention_decode", "attention_write", "attention_prefill"] {
            for kernel in of(function) {
                let sliding = says(kernel, "HEAD_DIM", Constant::Integer(256));
                assert_eq!(says(kernel, "WINDOW", Constant::Integer(1024)), sliding, "{name}: {function}");
                assert_eq!(says(kernel, "SLIDES", Constant::Flag(true)), sliding, "{name}: {function}");
                assert_ne!(
                    says(kernel, "KEYS_AS_VALUES", Constant::Flag(true)),
                    sliding,
                    "{name}: {function}"
                );
                assert!(says(kernel, "V_EPS", Constant::Float(1e-6)), "{name}: {function}");
            }
        }
        // Warpgroups multiply heads of 256, and no wider ones.
        let of_warpgroups = of("attention_prefill_wgmma");
        assert_eq!(!of_warpgroups.is_empty(), name.starts_with("h200"), "{name}");
        assert!(of_warpgroups.iter().all(|it| says(it, "WINDOW", Constant::Integer(1024))), "{name}");
        assert!(of_warpgroups.iter().all(|it| says(it, "SLIDES", Constant::Flag(true))), "{name}");
        // What layers with a window keep is counted by itself, as on a CPU.
        let (window, bytes) = plan.sliding().expect("they give back blocks");
        assert!(window == 1024 && bytes > 4 * plan.memory.kv_block, "{name}: {bytes}");
        // The launch that adds a layer's last term multiplies by the layer's number.
        assert!(of("scale_rows").is_empty(), "{name}");
        assert!(of("add_normed").iter().any(|it| says(it, "SCALED", Constant::Flag(true))), "{name}");
        assert!(of("cap_rows").iter().all(|it| says(it, "CAP", Constant::Float(30.0))), "{name}");
        assert!(!of("cap_rows").is_empty(), "{name}");
        let routers = [of("route_scales"), of("route_batch_scales")].concat();
        assert_eq!(!routers.is_empty(), name.contains("26b"), "{name}");
        let factor = Constant::Float(1.0 / 2816f32.sqrt());
        assert!(routers.iter().all(|it| says(it, "FACTOR", factor.clone())), "{name}");
    }
}

#[test]
fn what_is_not_known_is_refused_by_name_and_value() {
    for (key, value) in [
        ("num_kv_shared_layers", json!(20)),
        ("hidden_size_per_layer_input", json!(256)),
        ("use_bidirectional_attention", json!("all")),
        ("hidden_activation", json!("elu")),
        ("layer_types", json!(["linear_attention"])),
        ("sliding_window", json!(0)),
        ("attention_chunk", json!(4)),
    ] {
        let shown = if key == "hidden_size_per_layer_input" { "not 0" } else { &value.to_string() };
        refused(&text(json!({ key: value })), key, shown);
    }
    // Absent, it has a size.
    let mut without = text(json!({}));
    without.as_object_mut().unwrap().remove("hidden_size_per_layer_input");
    refused(&without, "hidden_size_per_layer_input", "not 0");
    let types = ["sliding_attention"; 60];
    refused(&text(json!({ "layer_types": types.to_vec() })), "layer_types", "the last layer has no window");
    refused(
        &text(json!({ "rope_parameters": { "rope_theta": 1e4 } })),
        "rope_parameters.rope_theta",
        "by type",
    );
    refused(&mixture(json!({ "top_k_experts": 129 })), "top_k_experts", "129");
    refused(&mixture(json!({ "num_experts": null })), "num_experts", "missing");
    refused(&text(json!({ "num_global_key_value_heads": 5 })), "num_global_key_value_heads", "5");
}
