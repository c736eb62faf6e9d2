//! Hugging Face configs to specs and back: the loader reads what transformers means.

use monomorph_compiler::blocks::attention::spec::Attention;
use monomorph_compiler::blocks::products::spec::Gated;
use monomorph_compiler::import::{ImportError, Imported, Seen};
use monomorph_compiler::spec::types::*;
use monomorph_compiler::spec::{self, load};
use serde_json::{Value, json};
use std::fs;
use std::path::Path;

const HARDWARE: &str = r#"
hardware = { kind = "cpu" }
memory = { bytes = 1_000_000_000_000 }
figures = { threads = 2, bandwidth = 30e9, boundary_seconds = 2e-6, copy_bandwidth = 4e9, int8_rate = 1e11, f32_rate = 5e10 }
cpu = { target_cpu = "native" }
"#;

/// Imports a config without its checkpoint.
fn import(config: &str, name: &str, compute: Compute) -> Result<Imported, ImportError> {
    monomorph_compiler::import::import(config, name, compute, &Seen::default())
}

/// Imports a config, writes the files, and loads a target from them.
fn round_trip(config: &Value, quant: &str) -> Target {
    let imported = import(&config.to_string(), "it", Compute::F32).unwrap_or_else(|error| panic!("{error}"));
    let dir = tempfile::tempdir().unwrap();
    let (hardware, model) = (dir.path().join("hardware/big"), dir.path().join("models/it"));
    fs::create_dir_all(&hardware).unwrap();
    fs::create_dir_all(&model).unwrap();
    fs::write(hardware.join("HARDWARE.toml"), HARDWARE).unwrap();
    fs::write(model.join("MODEL.toml"), &imported.model_toml).unwrap();
    for (file, text) in &imported.quants {
        fs::write(model.join(file), text).unwrap();
    }
    let target = format!("big/it/{quant}");
    load(&[dir.path().to_owned()], &target)
        .unwrap_or_else(|errors| panic!("{errors}\n{}", imported.model_toml))
}

fn attention(target: &Target) -> &Attention {
    let Mixer::Attention(attention) = &target.model.mixers["attention"] else { panic!("attention") };
    attention
}

/// A small sound config with `changes` merged over it; `null` stays `null`.
fn with(base: Value, changes: Value) -> Value {
    let mut config = base;
    for (key, value) in changes.as_object().unwrap() {
        config[key] = value.clone();
    }
    config
}

fn llama(changes: Value) -> Value {
    let base = json!({
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": 131, "hidden_size": 60,
        "intermediate_size": 88, "num_hidden_layers": 3, "num_attention_heads": 5,
        "max_position_embeddings": 256
    });
    with(base, changes)
}

fn qwen3(changes: Value) -> Value {
    let base = json!({
        "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "vocab_size": 131, "hidden_size": 60,
        "intermediate_size": 88, "num_hidden_layers": 3, "num_attention_heads": 6, "num_key_value_heads": 2,
        "head_dim": 16, "max_position_embeddings": 256
    });
    with(base, changes)
}

fn problems(config: &Value) -> Vec<String> {
    import(&config.to_string(), "it", Compute::F32).expect_err("refused").problems
}

/// Refused with exactly one problem, which names the key.
fn refused(config: Value, key: &str) {
    let problems = problems(&config);
    assert_eq!(problems.len(), 1, "{problems:?}");
    assert!(problems[0].contains(&format!("`{key}`")), "{key}: {problems:?}");
}

#[test]
fn absent_keys_of_llama_are_as_in_transformers() {
    let target = round_trip(&json!({ "model_type": "llama" }), "f32");
    let model = &target.model;
    assert_eq!((model.hidden, model.layers, model.vocabulary, model.context), (4096, 32, 32000, 2048));
    assert_eq!((model.tied, model.norm.eps, model.norm.weight), (false, 1e-6, NormWeight::Plain));
    assert_eq!(model.ffn, Gated { width: 11008, activation: Activation::Silu, bias: false }.into());
    assert_eq!(model.protocol.stop_ids, [2]);
    let it = attention(&target);
    assert_eq!((it.heads, it.kv_heads, it.head_dim), (32, 32, 128));
    assert_eq!((it.qk_norm, it.qkv_bias, it.output_bias), (None, false, false));
    let rotary = Rotary {
        dims: 128,
        theta: 10000.0,
        pairs: RotaryPairs::Halves,
        turning: None,
        scaling: RotaryScaling::None,
    };
    assert_eq!(it.rotary, Some(rotary));
}

#[test]
fn absent_keys_of_qwen3_are_as_in_transformers() {
    let target = round_trip(&json!({ "model_type": "qwen3" }), "bf16");
    let model = &target.model;
    assert_eq!((model.hidden, model.layers, model.vocabulary, model.context), (4096, 32, 151936, 32768));
    assert_eq!(model.ffn, Gated { width: 22016, activation: Activation::Silu, bias: false }.into());
    assert!(model.protocol.stop_ids.is_empty());
    let it = attention(&target);
    assert_eq!((it.heads, it.kv_heads, it.head_dim), (32, 32, 128));
    assert_eq!(it.qk_norm, Some(Norm { eps: 1e-6, weight: NormWeight::Plain }));
    let null = round_trip(&qwen3(json!({ "num_key_value_heads": null })), "bf16");
    assert_eq!(attention(&null).kv_heads, 6);
}

#[test]
fn dimensions_biases_and_ties_come_through() {
    let changes = json!({
        "num_key_value_heads": 1, "head_dim": 10, "attention_bias": true, "mlp_bias": true,
        "tie_word_embeddings": true, "rms_norm_eps": 1e-5, "hidden_act": "gelu_pytorch_tanh",
        "eos_token_id": [5, 7, 5], "rope_theta": 500000.0, "torch_dtype": "bfloat16", "pretraining_tp": 1
    });
    let target = round_trip(&llama(changes), "bf16");
    let it = attention(&target);
    assert_eq!((it.heads, it.kv_heads, it.head_dim, it.rotary.as_ref().unwrap().dims), (5, 1, 10, 10));
    assert_eq!((it.qkv_bias, it.output_bias, it.rotary.as_ref().unwrap().theta), (true, true, 500000.0));
    assert_eq!(target.model.ffn, Gated { width: 88, activation: Activation::GeluTanh, bias: true }.into());
    assert_eq!((target.model.tied, target.model.norm.eps), (true, 1e-5));
    assert_eq!(target.model.protocol.stop_ids, [5, 7]);
    let names = &target.quant.checkpoint.names;
    assert_eq!(names["layers.{layer}.attention.o.bias"].name, "model.layers.{layer}.self_attn.o_proj.bias");
    assert_eq!(names["layers.{layer}.ffn.down.bias"].name, "model.layers.{layer}.mlp.down_proj.bias");
    assert!(!names.contains_key("head"));
    assert!(target.quant.stored.classes.values().all(|format| format.name() == "bf16"));
    assert_eq!(target.quant.kv_formats.to_string(), "f32");
    assert!(target.quant.compute.classes.values().all(|compute| *compute == Compute::F32));

    let untied = round_trip(&qwen3(json!({ "eos_token_id": 9 })), "f32");
    assert_eq!(untied.quant.checkpoint.names["head"].name, "lm_head.weight");
    assert_eq!(
        untied.quant.checkpoint.names["layers.{layer}.attention.q_norm"].name,
        "model.layers.{layer}.self_attn.q_norm.weight"
    );
    assert!(untied.quant.stored.classes.values().all(|format| format.name() == "f32"));
}

#[test]
fn activations_by_all_their_names() {
    let names = [
        ("silu", Activation::Silu),
        ("swish", Activation::Silu),
        ("gelu", Activation::Gelu),
        ("gelu_new", Activation::GeluTanh),
        ("relu", Activation::Relu),
    ];
    for (name, expected) in names {
        let target = round_trip(&llama(json!({ "hidden_act": name })), "f32");
        let Ffn::Gated(Gated { activation, .. }) = target.model.ffn else { panic!("dense") };
        assert_eq!(activation, expected, "{name}");
    }
    refused(llama(json!({ "hidden_act": "relu2" })), "hidden_act");
    refused(llama(json!({ "hidden_act": null })), "hidden_act");
}

#[test]
fn rotary_settings_in_the_style_of_transformers_4_and_5() {
    let scaling = |config| attention(&round_trip(&config, "f32")).rotary.clone().unwrap();
    let linear = RotaryScaling::Linear { factor: 2.5 };
    for config in [
        llama(json!({ "rope_theta": 5e5, "rope_scaling": { "type": "linear", "factor": 2.5 } })),
        llama(json!({ "rope_theta": 5e5, "rope_scaling": { "rope_type": "linear", "factor": 2.5 } })),
        qwen3(json!({ "rope_parameters": { "rope_type": "linear", "factor": 2.5, "rope_theta": 5e5 } })),
        // The inner base takes precedence.
        qwen3(json!({ "rope_theta": 7.0, "rope_parameters": {
            "rope_type": "linear", "factor": 2.5, "rope_theta": 500000 } })),
    ] {
        let rotary = scaling(config);
        assert_eq!((&rotary.scaling, rotary.theta), (&linear, 500000.0));
    }
    let plain = scaling(llama(json!({ "rope_scaling": null, "rope_parameters": {
        "rope_type": "default", "rope_theta": 1e6 } })));
    assert_eq!((plain.scaling, plain.theta), (RotaryScaling::None, 1e6));

    let llama3 = json!({ "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0,
        "high_freq_factor": 4.0, "original_max_position_embeddings": 64 });
    let expected = RotaryScaling::Llama3 { factor: 8.0, low: 1.0, high: 4.0, original: 64.0 };
    assert_eq!(scaling(llama(json!({ "rope_scaling": llama3 }))).scaling, expected);
    // The config's own original context precedes the inner one; the model's context comes last.
    let outer = llama(json!({ "rope_scaling": llama3, "original_max_position_embeddings": 32 }));
    let RotaryScaling::Llama3 { original, .. } = scaling(outer).scaling else { panic!() };
    assert_eq!(original, 32.0);
    let none = llama(json!({ "rope_scaling": { "rope_type": "llama3", "factor": 8.0,
        "low_freq_factor": 1.0, "high_freq_factor": 4.0 } }));
    let RotaryScaling::Llama3 { original, .. } = scaling(none).scaling else { panic!() };
    assert_eq!(original, 256.0);
}

#[test]
fn yarn_defaults_are_those_of_transformers() {
    let yarn = |settings: Value| {
        let config = qwen3(json!({ "rope_parameters": settings }));
        attention(&round_trip(&config, "f32")).rotary.as_ref().unwrap().scaling.clone()
    };
    let expected = |factor: f64, attention_factor: f64| RotaryScaling::Yarn {
        factor,
        original: 64.0,
        beta_fast: 32.0,
        beta_slow: 1.0,
        attention_factor,
        truncate: true,
    };
    let base = json!({ "rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64 });
    // 0.1 ln 4 + 1
    assert_eq!(yarn(base.clone()), expected(4.0, 1.138629436111989));
    // The ratio of the contexts, 256 / 64, when the factor is null.
    assert_eq!(yarn(with(base.clone(), json!({ "factor": null }))), expected(4.0, 1.138629436111989));
    let given = with(base.clone(), json!({ "attention_factor": 1.25, "mscale": 3.0, "mscale_all_dim": 1.0 }));
    assert_eq!(yarn(given), expected(4.0, 1.25));
    // (0.2 ln 4 + 1) / (0.1 ln 4 + 1)
    let scales = with(base.clone(), json!({ "mscale": 2.0, "mscale_all_dim": 1.0 }));
    let RotaryScaling::Yarn { attention_factor, .. } = yarn(scales) else { panic!() };
    assert!((attention_factor - 1.277258872223978 / 1.138629436111989).abs() < 1e-15);
    // One of the two alone has no effect, nor does zero.
    assert_eq!(yarn(with(base.clone(), json!({ "mscale": 2.0 }))), expected(4.0, 1.138629436111989));
    let zero = with(base.clone(), json!({ "beta_fast": 0, "mscale": 0, "mscale_all_dim": 1.0 }));
    assert_eq!(yarn(zero), expected(4.0, 1.138629436111989));
    let RotaryScaling::Yarn { truncate, beta_fast, .. } =
        yarn(with(base, json!({ "truncate": false, "beta_fast": 16 })))
    else {
        panic!()
    };
    assert_eq!((truncate, beta_fast), (false, 16.0));
}

#[test]
fn what_is_not_known_is_refused_by_name() {
    refused(json!({ "model_type": "mamba2" }), "model_type");
    refused(json!({ "hidden_size": 64 }), "model_type");
    refused(llama(json!({ "logits_scaling": 8.0 })), "logits_scaling");
    refused(
        llama(json!({ "quantization_config": { "quant_method": "fp8" } })),
        "quantization_config.weight_block_size",
    );
    refused(llama(json!({ "auto_map": {} })), "auto_map");
    refused(llama(json!({ "pretraining_tp": 2 })), "pretraining_tp");
    refused(llama(json!({ "rope_interleaved": true })), "rope_interleaved");
    refused(llama(json!({ "partial_rotary_factor": 0.5 })), "partial_rotary_factor");
    refused(llama(json!({ "sliding_window": 128 })), "sliding_window");
    refused(llama(json!({ "architectures": ["LlamaForSequenceClassification"] })), "architectures");
    refused(llama(json!({ "hidden_size": 60.0 })), "hidden_size");
    refused(llama(json!({ "rms_norm_eps": null })), "rms_norm_eps");
    refused(llama(json!({ "num_key_value_heads": 2 })), "num_key_value_heads");
    refused(llama(json!({ "hidden_size": 61 })), "hidden_size");
    refused(llama(json!({ "head_dim": 15 })), "head_dim");
    refused(llama(json!({ "eos_token_id": "</s>" })), "eos_token_id");
    refused(qwen3(json!({ "use_sliding_window": true })), "use_sliding_window");
    refused(
        qwen3(json!({ "layer_types": ["full_attention", "sliding_attention", "full_attention"] })),
        "layer_types",
    );
    refused(qwen3(json!({ "layer_types": ["full_attention"] })), "layer_types");
    refused(qwen3(json!({ "mlp_bias": true })), "mlp_bias");
    refused(qwen3(json!({ "head_dim": null })), "head_dim");
    for kind in ["dynamic", "longrope", "proportional", "mrope"] {
        refused(
            llama(json!({ "rope_scaling": { "rope_type": kind, "factor": 2.0 } })),
            "rope_scaling.rope_type",
        );
    }
    refused(llama(json!({ "rope_scaling": { "type": "su" } })), "rope_scaling.type");
    refused(llama(json!({ "rope_scaling": { "type": "linear" } })), "rope_scaling.factor");
    refused(
        llama(json!({ "rope_parameters": { "rope_type": "default", "factor": 2.0 } })),
        "rope_parameters.factor",
    );
    let nested = json!({ "full_attention": { "rope_type": "default", "rope_theta": 1e4 } });
    refused(qwen3(json!({ "rope_parameters": nested })), "rope_parameters.full_attention");
}

#[test]
fn several_problems_come_at_once() {
    let config = llama(json!({ "pretraining_tp": 2, "hidden_act": "mish", "foo": 1, "vocab_size": 0 }));
    let problems = problems(&config);
    assert_eq!(problems.len(), 4, "{problems:?}");
    for key in ["pretraining_tp", "hidden_act", "foo", "vocab_size"] {
        assert!(problems.iter().any(|problem| problem.contains(key)), "{key}: {problems:?}");
    }
}

#[test]
fn what_is_assumed_is_written_down() {
    let imported = import(&llama(json!({ "eos_token_id": 151645 })).to_string(), "it", Compute::F32).unwrap();
    let text = &imported.model_toml;
    assert!(text.contains("151645") && text.contains("outside the vocabulary of 131"), "{text}");
    assert!(text.contains("as transformers has it: rms_norm_eps"), "{text}");
}

#[test]
fn bad_json_and_bad_names_are_refused() {
    for text in ["", "[]", "{", "null", "{\"model_type\": 3}"] {
        assert!(import(text, "it", Compute::F32).is_err(), "{text:?}");
    }
    for name in ["", ".", "..", "a/b", "a b", "-x"] {
        assert!(import("{\"model_type\": \"llama\"}", name, Compute::F32).is_err(), "{name:?}");
    }
}

#[test]
fn an_earlier_directory_goes_before_a_later_one() {
    let own = Path::new(env!("CARGO_MANIFEST_DIR")).join("../targets");
    let imported = import(&llama(json!({})).to_string(), "smollm2-135m", Compute::F32).unwrap();
    let dir = tempfile::tempdir().unwrap();
    let model = dir.path().join("models/smollm2-135m");
    fs::create_dir_all(&model).unwrap();
    fs::write(model.join("MODEL.toml"), &imported.model_toml).unwrap();
    for (file, text) in &imported.quants {
        fs::write(model.join(file), text).unwrap();
    }
    // The hardware comes from the later directory, the model from the earlier, with its own quants only.
    let search = [dir.path().to_owned(), own];
    assert_eq!(load(&search, "cpu/smollm2-135m/f32").unwrap().model.hidden, 60);
    assert!(load(&search, "cpu/smollm2-135m/q4_1").is_err());
    let all = spec::list(&search).unwrap();
    assert!(all.contains(&"x86-64-v3/smollm2-135m/f32".to_owned()), "{all:?}");
    assert!(spec::list(&[dir.path().join("nowhere")]).is_err());
}

#[test]
fn drafts_compute_in_f16_where_asked_to() {
    for tied in [true, false] {
        let config = llama(json!({ "tie_word_embeddings": tied })).to_string();
        let drafts =
            |compute| import(&config, "it", compute).unwrap_or_else(|error| panic!("{error}")).quants;
        let (plain, f16) = (drafts(Compute::F32), drafts(Compute::F16));
        assert_eq!(plain[0], f16[0]);
        assert!(!plain[1].1.contains("[compute]") && plain[1].1.contains("[kv]\nformat = \"f32\""));
        assert!(f16[1].1.contains("[kv]\nformat = \"bf16\""), "{}", f16[1].1);
        assert_eq!(f16[1].1.matches(" = \"bf16\"").count(), if tied { 4 + 1 } else { 5 + 1 });
        assert_eq!(f16[1].1.matches(" = \"f16\"").count(), if tied { 3 } else { 4 });
        // A format that only quantised weights can compute in is refused, as by the loader.
        assert!(import(&config, "it", Compute::Int8Block32).is_err());
    }
}

#[test]
fn smollm2_has_its_published_size() {
    let targets = [Path::new(env!("CARGO_MANIFEST_DIR")).join("../targets")];
    // The published parameter count, and the tensor bytes of the published file.
    let target = load(&targets, "cpu/smollm2-135m/q4_1").unwrap();
    let tensors = spec::tensors(&target.model);
    let parameters: usize = tensors.iter().map(|it| it.elements().unwrap() * it.instances()).sum();
    assert_eq!(parameters, 134_515_008);
    assert_eq!(tensors.iter().map(spec::TensorDecl::instances).sum::<usize>(), 272);
    assert_eq!(spec::weight_bytes(&target.model, &target.quant, false), GGUF_TENSOR_BYTES);
    assert_eq!(
        spec::kv_block_bytes(&target.model, &target.quant, &target.hardware.kind, false),
        30 * 2 * 3 * 64 * 16 * 2
    );
}

/// Of SmolLM2-135M-Instruct.Q4_1.gguf: its size without header and metadata.
const GGUF_TENSOR_BYTES: u128 = 96_576_768;
