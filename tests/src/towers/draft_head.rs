//! A golden with a tower and a draft head, which no committed one has: tests make the head up.

use super::imported;
use crate::crowd::Random;
use safetensors::tensor::{Dtype, SafeTensors, TensorView, serialize};
use serde_json::{Value, json};
use std::fs;
use std::path::Path;

/// Writes a Qwen3.5 golden's config and weights to `directory`, as goldens stand, with a draft head.
///
/// # Panics
/// If the golden is of another family, or the directory is not writable.
pub fn write(golden: &str, directory: &Path) {
    let from = imported::directory(golden);
    let config = fs::read_to_string(from.join("config.json")).expect("a golden has a config");
    let mut config: Value = serde_json::from_str(&config).expect("JSON");
    let text = &mut config["text_config"];
    text["mtp_num_hidden_layers"] = json!(1);
    let number = |key: &str| text[key].as_u64().unwrap_or_else(|| panic!("no {key}")) as usize;
    let (hidden, width) = (number("hidden_size"), number("intermediate_size"));
    let head = number("head_dim");
    let [queries, keys] = ["num_attention_heads", "num_key_value_heads"].map(|heads| number(heads) * head);
    let matrices = [
        ("fc", hidden, 2 * hidden),
        // With a gate beside each query.
        ("layers.0.self_attn.q_proj", 2 * queries, hidden),
        ("layers.0.self_attn.k_proj", keys, hidden),
        ("layers.0.self_attn.v_proj", keys, hidden),
        ("layers.0.self_attn.o_proj", hidden, queries),
        ("layers.0.mlp.gate_proj", width, hidden),
        ("layers.0.mlp.up_proj", width, hidden),
        ("layers.0.mlp.down_proj", hidden, width),
    ];
    let norms = [
        ("pre_fc_norm_embedding", hidden),
        ("pre_fc_norm_hidden", hidden),
        ("norm", hidden),
        ("layers.0.input_layernorm", hidden),
        ("layers.0.post_attention_layernorm", hidden),
        ("layers.0.self_attn.q_norm", head),
        ("layers.0.self_attn.k_norm", head),
    ];
    let mut random = Random(77);
    let mut values = |count: usize, scale: f32| -> Vec<u8> {
        let one = |random: &mut Random| random.within(0..1 << 20) as f32 / (1 << 19) as f32 - 1.0;
        (0..count).flat_map(|_| (scale * one(&mut random)).to_le_bytes()).collect()
    };
    // Wide enough that attention is to few tokens, so that what a position says shows in drafts.
    let mut made: Vec<(String, Vec<usize>, Vec<u8>)> = Vec::new();
    for (name, rows, columns) in matrices {
        let scale = 3.0 / (columns as f32).sqrt();
        made.push((format!("mtp.{name}.weight"), vec![rows, columns], values(rows * columns, scale)));
    }
    for (name, width) in norms {
        made.push((format!("mtp.{name}.weight"), vec![width], values(width, 0.3)));
    }
    let bytes = fs::read(from.join("f32/model.safetensors")).expect("a golden has weights");
    let known = SafeTensors::deserialize(&bytes).expect("they are sound");
    let view =
        |shape: &[usize], bytes| TensorView::new(Dtype::F32, shape.to_vec(), bytes).expect("they agree");
    let head = made.iter().map(|(name, shape, bytes)| (name.clone(), view(shape, bytes)));
    let all: Vec<_> = known.tensors().into_iter().chain(head).collect();
    fs::create_dir_all(directory.join("f32")).expect("it is writable");
    fs::write(directory.join("f32/model.safetensors"), serialize(all, None).expect("they are sound"))
        .expect("it is writable");
    fs::write(directory.join("config.json"), config.to_string()).expect("it is writable");
}
