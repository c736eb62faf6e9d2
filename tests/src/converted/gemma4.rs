//! Gemma 4: `Gemma4Model` of llama.cpp's conversion/gemma.py, which adds no one to its norms.

use super::Piece;
use crate::goldens::FileTensor;
use monomorph_formats::{Format, encode};
use monomorph_weights::test_support::{GgufWriter, Value};
use serde_json::Value as Json;

/// Parts of names, in the order in which they are to be replaced: gguf-py's tensor_mapping.py.
const PARTS: [(&str, &str); 23] = [
    ("model.language_model.", "model."),
    ("model.embed_tokens.", "token_embd."),
    ("model.norm.", "output_norm."),
    ("lm_head.", "output."),
    ("model.layers.", "blk."),
    (".input_layernorm.", ".attn_norm."),
    (".post_attention_layernorm.", ".post_attention_norm."),
    (".pre_feedforward_layernorm.", ".ffn_norm."),
    (".post_feedforward_layernorm.", ".post_ffw_norm."),
    (".pre_feedforward_layernorm_2.", ".pre_ffw_norm_2."),
    (".post_feedforward_layernorm_", ".post_ffw_norm_"),
    (".self_attn.o_proj.", ".attn_output."),
    (".self_attn.q_proj.", ".attn_q."),
    (".self_attn.k_proj.", ".attn_k."),
    (".self_attn.v_proj.", ".attn_v."),
    (".self_attn.", ".attn_"),
    (".mlp.gate_proj.", ".ffn_gate."),
    (".mlp.up_proj.", ".ffn_up."),
    (".mlp.down_proj.", ".ffn_down."),
    (".router.proj.weight", ".ffn_gate_inp.weight"),
    (".router.scale", ".ffn_gate_inp.scale"),
    (".router.per_expert_scale", ".ffn_down_exps.scale"),
    (".layer_scalar", ".layer_output_scale.weight"),
];

/// A tensor as the file has it.
pub(super) fn piece(tensor: &FileTensor, values: Vec<f32>) -> Piece {
    let name = PARTS.iter().fold(tensor.name.clone(), |name, (theirs, own)| name.replace(theirs, own));
    let name = name.replace(".experts.gate_up_proj", ".ffn_gate_up_exps.weight");
    (name.replace(".experts.down_proj", ".ffn_down_exps.weight"), tensor.shape.clone(), values)
}

/// What its metadata says, and the factors of frequencies, which the converter makes.
pub(super) fn metadata(mut file: GgufWriter, config: &Json) -> GgufWriter {
    let number = |key: &str| config[key].as_u64().map(|it| u32::try_from(it).expect("a small number"));
    let count = |key: &str| number(key).unwrap_or_else(|| panic!("no {key}"));
    let kinds = config["layer_types"].as_array().expect("it has them");
    let sliding: Vec<bool> = kinds.iter().map(|kind| kind == "sliding_attention").collect();
    let (wide, narrow, few) = (count("global_head_dim"), count("head_dim"), count("num_key_value_heads"));
    let few = match number("num_global_key_value_heads") {
        None => Value::U32(few),
        Some(of_full) => {
            let of = |sliding: &bool| if *sliding { few as i32 } else { of_full as i32 };
            Value::I32s(sliding.iter().map(of).collect())
        }
    };
    let rope = |kind: &str, key: &str| config["rope_parameters"][kind][key].as_f64();
    let theta = |kind: &str| Value::F32(rope(kind, "rope_theta").expect("it has one") as f32);
    let mut said = vec![
        ("block_count", Value::U32(count("num_hidden_layers"))),
        ("context_length", Value::U32(count("max_position_embeddings"))),
        ("embedding_length", Value::U32(count("hidden_size"))),
        ("feed_forward_length", Value::U32(count("intermediate_size"))),
        ("attention.head_count", Value::U32(count("num_attention_heads"))),
        ("attention.head_count_kv", few),
        ("rope.freq_base", theta("full_attention")),
        ("rope.freq_base_swa", theta("sliding_attention")),
        (
            "attention.layer_norm_rms_epsilon",
            Value::F32(config["rms_norm_eps"].as_f64().expect("one") as f32),
        ),
        ("attention.sliding_window", Value::U32(count("sliding_window"))),
        ("attention.shared_kv_layers", Value::U32(count("num_kv_shared_layers"))),
        ("embedding_length_per_layer_input", Value::U32(count("hidden_size_per_layer_input"))),
        ("attention.sliding_window_pattern", Value::Bools(sliding)),
    ];
    for (of, width) in [("", wide), ("_swa", narrow)] {
        for key in ["attention.key_length", "attention.value_length", "rope.dimension_count"] {
            file = file.metadata(&format!("gemma4.{key}{of}"), Value::U32(width));
        }
    }
    if let Some(cap) = config["final_logit_softcapping"].as_f64() {
        said.push(("final_logit_softcapping", Value::F32(cap as f32)));
    }
    if let Some(experts) = number("num_experts") {
        said.push(("expert_count", Value::U32(experts)));
        said.push(("expert_used_count", Value::U32(count("top_k_experts"))));
        said.push(("expert_feed_forward_length", Value::U32(count("moe_intermediate_size"))));
    }
    for (key, value) in said {
        file = file.metadata(&format!("gemma4.{key}"), value);
    }
    // The converter needs the factor; 1 is what goes without saying.
    let part = rope("full_attention", "partial_rotary_factor").unwrap_or(1.0);
    let turning = (f64::from(wide) * part / 2.0) as usize;
    let pairs = wide as usize / 2;
    let factors: Vec<f32> = (0..pairs).map(|pair| if pair < turning { 1.0 } else { 1e30 }).collect();
    file.metadata("tokenizer.ggml.eos_token_id", Value::U32(number("eos_token_id").unwrap_or(1))).tensor(
        "rope_freqs.weight",
        &[pairs],
        Format::F32,
        encode(Format::F32, &factors),
    )
}
