//! Nemotron-H: `NemotronHModel` of llama.cpp's conversion/nemotron.py, and what it inherits of granite.py and
//! mamba.py.

use super::Piece;
use crate::goldens::FileTensor;
use monomorph_weights::test_support::{GgufWriter, Value};
use serde_json::Value as Json;

/// Names in a layer, of Hugging Face and in the files: gguf-py's tensor_mapping.py.
const IN_LAYERS: [(&str, &str); 21] = [
    ("norm.weight", "attn_norm.weight"),
    ("mixer.in_proj.weight", "ssm_in.weight"),
    ("mixer.conv1d.weight", "ssm_conv1d.weight"),
    ("mixer.conv1d.bias", "ssm_conv1d.bias"),
    ("mixer.dt_bias", "ssm_dt.bias"),
    ("mixer.A_log", "ssm_a"),
    ("mixer.D", "ssm_d"),
    ("mixer.norm.weight", "ssm_norm.weight"),
    ("mixer.out_proj.weight", "ssm_out.weight"),
    ("mixer.q_proj.weight", "attn_q.weight"),
    ("mixer.k_proj.weight", "attn_k.weight"),
    ("mixer.v_proj.weight", "attn_v.weight"),
    ("mixer.o_proj.weight", "attn_output.weight"),
    ("mixer.up_proj.weight", "ffn_up.weight"),
    ("mixer.down_proj.weight", "ffn_down.weight"),
    ("mixer.gate.weight", "ffn_gate_inp.weight"),
    ("mixer.gate.e_score_correction_bias", "exp_probs_b.bias"),
    ("mixer.shared_experts.up_proj.weight", "ffn_up_shexp.weight"),
    ("mixer.shared_experts.down_proj.weight", "ffn_down_shexp.weight"),
    ("mixer.fc1_latent_proj.weight", "ffn_latent_down.weight"),
    ("mixer.fc2_latent_proj.weight", "ffn_latent_up.weight"),
];

/// Those of a draft head, both of whose layers are one block.
const OF_DRAFTS: [(&str, &str); 5] = [
    ("mtp.layers.0.enorm.weight", "nextn.enorm.weight"),
    ("mtp.layers.0.hnorm.weight", "nextn.hnorm.weight"),
    ("mtp.layers.0.eh_proj.weight", "nextn.eh_proj.weight"),
    ("mtp.layers.1.norm.weight", "post_attention_norm.weight"),
    ("mtp.layers.1.final_layernorm.weight", "nextn.shared_head_norm.weight"),
];

fn count(config: &Json, key: &str) -> u32 {
    u32::try_from(config[key].as_u64().unwrap_or_else(|| panic!("no {key}"))).expect("a small number")
}

/// The letters of its layers.
fn pattern(config: &Json) -> &str {
    config["hybrid_override_pattern"].as_str().expect("it has one")
}

/// A tensor as the file has it; experts are merged later.
pub(super) fn piece(config: &Json, tensor: &FileTensor, mut values: Vec<f32>) -> Piece {
    let mut shape = tensor.shape.clone();
    let (block, part) = match &*tensor.name {
        "backbone.embeddings.weight" => return ("token_embd.weight".to_owned(), shape, values),
        "backbone.norm_f.weight" => return ("output_norm.weight".to_owned(), shape, values),
        "lm_head.weight" => return ("output.weight".to_owned(), shape, values),
        name => {
            let of_drafts = name.starts_with("mtp.");
            let rest = name.trim_start_matches("mtp.").trim_start_matches("backbone.");
            let (layer, part) = rest.trim_start_matches("layers.").split_once('.').expect("a layer's number");
            let block = if of_drafts { pattern(config).len().to_string() } else { layer.to_owned() };
            (block, part)
        }
    };
    if let Some(expert) = part.strip_prefix("mixer.experts.") {
        let expert = expert.replace("_proj.weight", "_exps.weight");
        return (format!("blk.{block}.experts.{expert}"), shape, values);
    }
    let own = |table: &[(&str, &'static str)], name: &str| {
        table.iter().find(|(theirs, _)| *theirs == name).map(|(_, own)| *own)
    };
    let own = own(&OF_DRAFTS, &tensor.name).or(own(&IN_LAYERS, part));
    let own = own.unwrap_or_else(|| panic!("no file has {}", tensor.name));
    match own {
        "ssm_a" => {
            values.iter_mut().for_each(|value| *value = -f64::from(*value).exp() as f32);
            shape.push(1);
        }
        "ssm_d" => shape.push(1),
        "ssm_conv1d.weight" => shape.retain(|size| *size != 1),
        "ssm_norm.weight" => {
            let groups = count(config, "n_groups") as usize;
            shape = vec![groups, shape[0] / groups];
        }
        _ => {}
    }
    (format!("blk.{block}.{own}"), shape, values)
}

/// What its metadata says.
pub(super) fn metadata(mut file: GgufWriter, architecture: &str, config: &Json, drafts: u32) -> GgufWriter {
    let count = |key: &str| count(config, key);
    let mixes = architecture == "nemotron_h_moe";
    let letters = pattern(config).chars().chain("B".repeat(drafts as usize).chars()).collect::<Vec<_>>();
    let numbers = |number: u32, of: &[char]| {
        let one = |letter: &char| if of.contains(letter) { number as i32 } else { 0 };
        Value::I32s(letters.iter().map(one).collect())
    };
    let (heads, head_dim) = (count("mamba_num_heads"), count("mamba_head_dim"));
    let width = count(if mixes { "moe_intermediate_size" } else { "intermediate_size" });
    let eps = config["layer_norm_epsilon"].as_f64().expect("it has one") as f32;
    let mut said = vec![
        ("block_count", Value::U32(letters.len() as u32)),
        // Written for all models without rotary embeddings.
        ("context_length", Value::U32(1 << 20)),
        ("embedding_length", Value::U32(count("hidden_size"))),
        ("feed_forward_length", numbers(width, if mixes { &['E', 'B'] } else { &['-'] })),
        ("attention.head_count", Value::U32(count("num_attention_heads"))),
        ("attention.head_count_kv", numbers(count("num_key_value_heads"), &['*', 'B'])),
        ("rope.freq_base", Value::F32(1e4)),
        ("attention.layer_norm_rms_epsilon", Value::F32(eps)),
        ("attention.layer_norm_epsilon", Value::F32(eps)),
        ("vocab_size", Value::U32(count("vocab_size"))),
        ("rope.dimension_count", Value::U32(84)),
        ("ssm.conv_kernel", Value::U32(count("conv_kernel"))),
        ("ssm.state_size", Value::U32(count("ssm_state_size"))),
        ("ssm.group_count", Value::U32(count("n_groups"))),
        ("ssm.inner_size", Value::U32(heads * head_dim)),
        ("ssm.time_step_rank", Value::U32(heads)),
        ("rope.scaling.finetuned", Value::Bool(false)),
        ("attention.key_length", Value::U32(count("head_dim"))),
        ("attention.value_length", Value::U32(count("head_dim"))),
    ];
    if mixes {
        let scale = config["routed_scaling_factor"].as_f64().expect("it has one") as f32;
        said.extend([
            ("expert_used_count", Value::U32(count("num_experts_per_tok"))),
            ("expert_feed_forward_length", Value::U32(width)),
            ("expert_shared_feed_forward_length", Value::U32(count("moe_shared_expert_intermediate_size"))),
            ("expert_count", Value::U32(count("n_routed_experts"))),
            ("expert_shared_count", Value::U32(count("n_shared_experts"))),
            ("expert_weights_norm", Value::Bool(config["norm_topk_prob"] == true)),
            ("expert_weights_scale", Value::F32(scale)),
            ("expert_group_count", Value::U32(count("n_group"))),
            ("expert_group_used_count", Value::U32(count("topk_group"))),
        ]);
        if let Some(latent) = config["moe_latent_size"].as_u64() {
            said.push(("moe_latent_size", Value::U32(u32::try_from(latent).expect("a small number"))));
        }
    }
    if drafts > 0 {
        said.push(("nextn_predict_layers", Value::U32(drafts)));
    }
    for (key, value) in said {
        file = file.metadata(&format!("{architecture}.{key}"), value);
    }
    file.metadata("tokenizer.ggml.eos_token_id", Value::U32(count("eos_token_id")))
}
