//! Goldens of Mistral Small 4 in the form of its makers' own releases: params.json, and other names of files
//! and tensors. The weights and their logits are the same.

use crate::goldens::{Golden, golden};
use monomorph_formats::Format;
use monomorph_weights::Checkpoint;
use safetensors::tensor::{Dtype, TensorView, serialize};
use serde_json::{Map, Value, json};
use std::path::Path;

/// Goldens that have this form: pairs of neighbours rotate in it.
const NAMES: [&str; 2] = ["mistral4", "mistral4-one"];

/// What a part of a tensor's name is called instead, the first ones first.
const PARTS: [(&str, &str); 20] = [
    ("embed_tokens", "tok_embeddings"),
    ("lm_head", "output"),
    ("post_attention_layernorm", "ffn_norm"),
    ("input_layernorm", "attention_norm"),
    ("self_attn.q_a_proj", "attention.wq_a"),
    ("self_attn.q_a_layernorm", "attention.q_a_norm"),
    ("self_attn.q_b_proj", "attention.wq_b"),
    ("self_attn.q_proj", "attention.wq"),
    ("self_attn.kv_a_proj_with_mqa", "attention.wkv_a_with_mqa"),
    ("self_attn.kv_a_layernorm", "attention.kv_a_norm"),
    ("self_attn.kv_b_proj", "attention.wkv_b"),
    ("self_attn.o_proj", "attention.wo"),
    ("mlp.gate.weight", "gate.weight"),
    ("mlp.shared_experts", "shared_experts"),
    ("mlp.", "feed_forward."),
    ("gate_proj", "w1"),
    ("down_proj", "w2"),
    ("up_proj", "w3"),
    ("vision_tower", "vision_encoder"),
    ("multi_modal_projector.linear_1", "vision_language_adapter.w_in"),
];

/// Every golden that has this form, in it, below `directory`: weights in f32 in one file, in bf16 in two
/// shards under an index.
///
/// # Panics
/// If the directory is not writable.
pub fn in_the_makers_form(directory: &Path) -> Vec<Golden> {
    NAMES.iter().map(|name| written(&golden(name), directory)).collect()
}

fn written(golden: &Golden, directory: &Path) -> Golden {
    let name = format!("{}-makers", golden.name);
    let to = directory.join(&name);
    let config = std::fs::read(golden.directory.join("config.json")).expect("it has a config");
    let params = params(&serde_json::from_slice(&config).expect("configs are JSON"));
    std::fs::create_dir(&to).expect("it is writable");
    std::fs::write(to.join("params.json"), params.to_string()).expect("it is writable");
    std::fs::copy(golden.directory.join("tokens.json"), to.join("tokens.json")).expect("it has tokens");
    for format in ["f32", "bf16"] {
        let (from, to) = (golden.directory.join(format), to.join(format));
        std::fs::create_dir(&to).expect("it is writable");
        std::fs::copy(from.join("logits.safetensors"), to.join("logits.safetensors")).expect("it has logits");
        let tensors = renamed(&Checkpoint::open(&from).expect("it has a checkpoint"));
        if format == "f32" {
            write(&to.join("consolidated.safetensors"), &tensors);
            continue;
        }
        let mut index = Map::new();
        for (at, part) in tensors.chunks(tensors.len().div_ceil(2)).enumerate() {
            let file = format!("consolidated-{:05}-of-00002.safetensors", at + 1);
            write(&to.join(&file), part);
            index.extend(part.iter().map(|tensor| (tensor.name.clone(), json!(file))));
        }
        let index = json!({ "metadata": {}, "weight_map": index }).to_string();
        std::fs::write(to.join("consolidated.safetensors.index.json"), index).expect("it is writable");
    }
    Golden { name, directory: to, prompts: golden.prompts.clone() }
}

/// The params.json that says what a config says.
fn params(config: &Value) -> Value {
    let text = if config["text_config"].is_object() { &config["text_config"] } else { config };
    let rope = &text["rope_parameters"];
    let mut params = json!({
        "dim": text["hidden_size"], "n_layers": text["num_hidden_layers"], "hidden_dim": text["intermediate_size"],
        "n_heads": text["num_attention_heads"], "n_kv_heads": text["num_key_value_heads"],
        "norm_eps": text["rms_norm_eps"], "vocab_size": text["vocab_size"],
        "tied_embeddings": text["tie_word_embeddings"], "rope_theta": rope["rope_theta"],
        "max_position_embeddings": text["max_position_embeddings"], "q_lora_rank": text["q_lora_rank"],
        "kv_lora_rank": text["kv_lora_rank"], "qk_rope_head_dim": text["qk_rope_head_dim"],
        "qk_nope_head_dim": text["qk_nope_head_dim"], "v_head_dim": text["v_head_dim"],
        "moe": {
            "num_experts": text["n_routed_experts"], "num_experts_per_tok": text["num_experts_per_tok"],
            "expert_hidden_dim": text["moe_intermediate_size"], "num_shared_experts": text["n_shared_experts"],
            "first_k_dense_replace": text["first_k_dense_replace"],
        },
        "yarn": {
            "factor": rope["factor"], "beta": rope["beta_fast"], "alpha": rope["beta_slow"], "apply_scale": true,
            "original_max_position_embeddings": rope["original_max_position_embeddings"],
        },
        "llama_4_scaling": {
            "beta": rope["llama_4_scaling_beta"],
            "original_max_position_embeddings": rope["original_max_position_embeddings"],
        },
    });
    if config["vision_config"].is_object() {
        params["vision_encoder"] = json!({});
    }
    params
}

struct Tensor {
    name: String,
    shape: Vec<usize>,
    format: Format,
    bytes: Vec<u8>,
}

/// The tensors of a checkpoint under the makers' names, experts one by one.
fn renamed(checkpoint: &Checkpoint) -> Vec<Tensor> {
    let mut tensors = Vec::new();
    for tensor in checkpoint.tensors() {
        let (format, bytes) = (tensor.format, tensor.bytes.read().expect("it is readable").to_vec());
        let name = tensor.name.trim_start_matches("language_model.").trim_start_matches("model.");
        let Some((layer, stacked)) = name.split_once(".mlp.experts.") else {
            let name = PARTS.iter().fold(name.to_owned(), |name, (from, to)| name.replace(from, to));
            tensors.push(Tensor { name, shape: tensor.shape.to_vec(), format, bytes });
            continue;
        };
        let &[count, rows, columns] = tensor.shape else { panic!("{name} stacks experts") };
        // Rows of the gate go before those of up.
        let parts = if stacked == "gate_up_proj" { &["w1", "w3"][..] } else { &["w2"] };
        let shape = vec![rows / parts.len(), columns];
        for (at, bytes) in bytes.chunks(bytes.len() / count / parts.len()).enumerate() {
            let (expert, part) = (at / parts.len(), parts[at % parts.len()]);
            let name = format!("{layer}.experts.{expert}.{part}.weight");
            tensors.push(Tensor { name, shape: shape.clone(), format, bytes: bytes.to_vec() });
        }
    }
    tensors
}

fn write(path: &Path, tensors: &[Tensor]) {
    let views = tensors.iter().map(|Tensor { name, shape, format, bytes }| {
        let dtype = if *format == Format::Bf16 { Dtype::BF16 } else { Dtype::F32 };
        (name, TensorView::new(dtype, shape.clone(), bytes).expect("shape and bytes agree"))
    });
    let file = serialize(views, None).expect("the tensors are sound");
    std::fs::write(path, file).expect("it is writable");
}
