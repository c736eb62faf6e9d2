//! Small configs of the hybrid and mixture-of-experts families, and targets made from them.

use monomorph_compiler::import::{ImportError, Imported, Seen, import};
use monomorph_compiler::spec;
use monomorph_compiler::spec::types::{Compute, Target};
use serde_json::{Value, json};
use std::fs;

const HARDWARE: &str = r#"
hardware = { kind = "cpu" }
memory = { bytes = 1_000_000_000_000 }
figures = { threads = 2, bandwidth = 30e9, boundary_seconds = 2e-6, copy_bandwidth = 4e9, int8_rate = 1e11, f32_rate = 5e10 }
cpu = { target_cpu = "native" }
"#;

/// A small config of a family, with `changes` merged over it; `null` stays `null`.
pub fn with(mut base: Value, changes: Value) -> Value {
    for (key, value) in changes.as_object().unwrap() {
        base[key] = value.clone();
    }
    base
}

/// Keys of Qwen3.5's text part, as in its releases.
pub fn text(changes: Value) -> Value {
    let base = json!({
        "model_type": "qwen3_5_text", "attention_bias": false, "attention_dropout": 0.0, "attn_output_gate": true,
        "dtype": "bfloat16", "eos_token_id": 2, "full_attention_interval": 4, "head_dim": 32, "hidden_act": "silu",
        "hidden_size": 64, "initializer_range": 0.02, "intermediate_size": 96, "linear_conv_kernel_dim": 4,
        "linear_key_head_dim": 16, "linear_num_key_heads": 2, "linear_num_value_heads": 6,
        "linear_value_head_dim": 32, "max_position_embeddings": 256, "mlp_only_layers": [],
        "mtp_num_hidden_layers": 1, "mtp_use_dedicated_embeddings": false, "num_attention_heads": 4,
        "num_hidden_layers": 8, "num_key_value_heads": 2, "rms_norm_eps": 1e-6, "use_cache": true, "vocab_size": 131,
        "mamba_ssm_dtype": "float32", "rope_parameters": { "mrope_interleaved": true, "mrope_section": [2, 1, 1],
            "rope_type": "default", "rope_theta": 10_000_000, "partial_rotary_factor": 0.25 }
    });
    with(base, changes)
}

pub fn moe_text(changes: Value) -> Value {
    let mut base = text(json!({
        "model_type": "qwen3_5_moe_text", "moe_intermediate_size": 32, "num_experts": 8, "num_experts_per_tok": 3,
        "router_aux_loss_coef": 0.001, "shared_expert_intermediate_size": 48
    }));
    base.as_object_mut().unwrap().remove("intermediate_size");
    with(base, changes)
}

/// A release's config around a text part.
pub fn wrapped(text: &Value, changes: Value) -> Value {
    let moe = text["model_type"] == "qwen3_5_moe_text";
    let (family, architecture) = match moe {
        true => ("qwen3_5_moe", "Qwen3_5MoeForConditionalGeneration"),
        false => ("qwen3_5", "Qwen3_5ForConditionalGeneration"),
    };
    let base = json!({
        "architectures": [architecture], "model_type": family, "image_token_id": 120, "text_config": text,
        "tie_word_embeddings": false, "transformers_version": "4.57.0.dev0", "video_token_id": 121,
        "vision_config": { "depth": 12, "hidden_size": 768 }, "vision_end_token_id": 122,
        "vision_start_token_id": 123
    });
    with(base, changes)
}

pub fn next(changes: Value) -> Value {
    let base = json!({
        "architectures": ["Qwen3NextForCausalLM"], "model_type": "qwen3_next", "vocab_size": 131, "hidden_size": 64,
        "intermediate_size": 96, "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 2,
        "head_dim": 32, "hidden_act": "silu", "max_position_embeddings": 256, "rms_norm_eps": 1e-6,
        "tie_word_embeddings": false, "rope_theta": 10_000_000, "rope_scaling": null, "partial_rotary_factor": 0.25,
        "attention_bias": false, "full_attention_interval": 4, "linear_conv_kernel_dim": 4,
        "linear_key_head_dim": 16, "linear_value_head_dim": 32, "linear_num_key_heads": 2,
        "linear_num_value_heads": 6, "decoder_sparse_step": 1, "mlp_only_layers": [], "moe_intermediate_size": 32,
        "shared_expert_intermediate_size": 48, "num_experts_per_tok": 3, "num_experts": 8, "norm_topk_prob": true,
        "router_aux_loss_coef": 0.001, "bos_token_id": 1, "eos_token_id": 2, "use_sliding_window": false
    });
    with(base, changes)
}

pub fn read(config: &Value, seen: &Seen) -> Result<Imported, ImportError> {
    import(&config.to_string(), "it", Compute::F16, seen)
}

/// Imports a config and loads the target that its files describe.
pub fn loaded(config: &Value, quant: &str, seen: &Seen) -> Target {
    load(&read(config, seen).unwrap_or_else(|error| panic!("{error}")), quant)
}

/// The target that imported files describe.
pub fn load(imported: &Imported, quant: &str) -> Target {
    let dir = tempfile::tempdir().unwrap();
    let model = dir.path().join("models/it");
    fs::create_dir_all(&model).unwrap();
    fs::write(model.join("MODEL.toml"), &imported.model_toml).unwrap();
    for (file, text) in &imported.quants {
        fs::write(model.join(file), text).unwrap();
    }
    fs::create_dir_all(dir.path().join("hardware/big")).unwrap();
    fs::write(dir.path().join("hardware/big/HARDWARE.toml"), HARDWARE).unwrap();
    spec::load(&[dir.path().to_owned()], &format!("big/it/{quant}"))
        .unwrap_or_else(|errors| panic!("{errors}\n{}", imported.model_toml))
}

pub fn target(config: &Value, quant: &str) -> Target {
    loaded(config, quant, &Seen::default())
}

/// A tensor's name in the checkpoint, and the rows `[first, last + 1]` of the total that it takes.
pub fn place(target: &Target, name: &str) -> (String, Option<[usize; 3]>) {
    let file = &target.quant.checkpoint.names[name];
    (file.name.clone(), file.view.map(|view| [view.first, view.first + view.take, view.of]))
}
