//! What llama.cpp's converters make of the checkpoint of a golden: a GGUF file.

mod gemma4;
mod nemotron_h;

use crate::goldens::{FileTensor, Golden, file_tensors};
use monomorph_compiler::spec::types::Target;
use monomorph_formats::{Format, decode, encode};
use monomorph_weights::Checkpoint;
use monomorph_weights::test_support::{GgufWriter, Value};
use std::collections::BTreeMap;
use std::f64::consts::TAU;

/// Architectures with delta-nets.
const DELTA_NETS: [&str; 3] = ["qwen35", "qwen35moe", "qwen3next"];

/// Which of the converter's classes an architecture has.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Form {
    Usual,
    Hybrid,
    Gemma4,
    NemotronH,
}

impl Form {
    fn of(architecture: &str) -> Form {
        match architecture {
            "gemma4" => Form::Gemma4,
            "nemotron_h" | "nemotron_h_moe" => Form::NemotronH,
            _ if DELTA_NETS.contains(&architecture) => Form::Hybrid,
            _ => Form::Usual,
        }
    }
}

/// Names of modules, in the order in which they are to be replaced.
const MODULES: [(&str, &str); 25] = [
    ("model.language_model.", "model."),
    ("model.embed_tokens.", "token_embd."),
    ("model.norm.", "output_norm."),
    ("lm_head.", "output."),
    ("model.layers.", "blk."),
    (".input_layernorm.", ".attn_norm."),
    (".post_attention_layernorm.", ".ffn_norm."),
    (".self_attn.q_norm.", ".attn_q_norm."),
    (".self_attn.k_norm.", ".attn_k_norm."),
    (".self_attn.q_proj.", ".attn_q."),
    (".self_attn.k_proj.", ".attn_k."),
    (".self_attn.v_proj.", ".attn_v."),
    (".self_attn.o_proj.", ".attn_output."),
    (".mlp.gate_proj.", ".ffn_gate."),
    (".mlp.up_proj.", ".ffn_up."),
    (".mlp.down_proj.", ".ffn_down."),
    (".mlp.gate.", ".ffn_gate_inp."),
    (".block_sparse_moe.e_score_correction_bias", ".exp_probs_b.bias"),
    (".block_sparse_moe.gate.", ".ffn_gate_inp."),
    (".block_sparse_moe.", "."),
    (".mlp.experts.", ".experts."),
    ("_proj.weight", "_exps.weight"),
    (".w1.weight", ".gate_exps.weight"),
    (".w2.weight", ".down_exps.weight"),
    (".w3.weight", ".up_exps.weight"),
];
/// Tensors of their layers, of Hugging Face and in the files.
const OF_HYBRIDS: [(&str, &str); 25] = [
    ("input_layernorm.weight", "attn_norm.weight"),
    ("post_attention_layernorm.weight", "post_attention_norm.weight"),
    ("self_attn.q_norm.weight", "attn_q_norm.weight"),
    ("self_attn.k_norm.weight", "attn_k_norm.weight"),
    ("self_attn.q_proj.weight", "attn_q.weight"),
    ("self_attn.k_proj.weight", "attn_k.weight"),
    ("self_attn.v_proj.weight", "attn_v.weight"),
    ("self_attn.o_proj.weight", "attn_output.weight"),
    ("linear_attn.in_proj_z.weight", "attn_gate.weight"),
    ("linear_attn.in_proj_b.weight", "ssm_beta.weight"),
    ("linear_attn.in_proj_a.weight", "ssm_alpha.weight"),
    ("linear_attn.in_proj_ba.weight", "ssm_ba.weight"),
    ("linear_attn.A_log", "ssm_a"),
    ("linear_attn.dt_bias", "ssm_dt.bias"),
    ("linear_attn.norm.weight", "ssm_norm.weight"),
    ("linear_attn.out_proj.weight", "ssm_out.weight"),
    ("mlp.gate_proj.weight", "ffn_gate.weight"),
    ("mlp.up_proj.weight", "ffn_up.weight"),
    ("mlp.down_proj.weight", "ffn_down.weight"),
    ("mlp.gate.weight", "ffn_gate_inp.weight"),
    ("mlp.experts.down_proj", "ffn_down_exps.weight"),
    ("mlp.shared_expert.gate_proj.weight", "ffn_gate_shexp.weight"),
    ("mlp.shared_expert.up_proj.weight", "ffn_up_shexp.weight"),
    ("mlp.shared_expert.down_proj.weight", "ffn_down_shexp.weight"),
    ("mlp.shared_expert_gate.weight", "ffn_gate_inp_shexp.weight"),
];

/// Tensors of draft heads outside their layer.
const OF_DRAFTS: [(&str, &str); 4] = [
    ("fc.weight", "nextn.eh_proj.weight"),
    ("pre_fc_norm_embedding.weight", "nextn.enorm.weight"),
    ("pre_fc_norm_hidden.weight", "nextn.hnorm.weight"),
    ("norm.weight", "nextn.shared_head_norm.weight"),
];

fn own_name<'a>(table: &[(&str, &'a str)], name: &str) -> Option<&'a str> {
    table.iter().find(|(theirs, _)| *theirs == name).map(|(_, own)| *own)
}

/// The config, or the part of it about text.
///
/// # Panics
/// If it has none.
pub fn config(golden: &Golden) -> serde_json::Value {
    let text = std::fs::read_to_string(golden.directory.join("config.json")).expect("a golden has a config");
    let config: serde_json::Value = serde_json::from_str(&text).expect("configs are JSON");
    if config["text_config"].is_object() { config["text_config"].clone() } else { config }
}

/// Value heads of `unit` numbers, grouped by key heads, as one of every key head, then the next of each.
fn tiled(values: &[f32], key_heads: usize, unit: usize) -> Vec<f32> {
    let heads: Vec<&[f32]> = values.chunks(unit).collect();
    let each = heads.len() / key_heads;
    (0..each).flat_map(|at| heads[at..].iter().step_by(each).copied()).flatten().copied().collect()
}

/// A tensor in a file: name, shape, numbers.
type Piece = (String, Vec<usize>, Vec<f32>);

/// A tensor of a hybrid as the converter's classes for these architectures store it. What `older` ones left
/// in one tensor of qwen3next is two now.
fn of_hybrid(
    (architecture, older): (&str, bool),
    config: &serde_json::Value,
    tensor: &FileTensor,
    mut values: Vec<f32>,
) -> Vec<Piece> {
    let count = |key: &str| usize::try_from(config[key].as_u64().expect("it has one")).expect("a small one");
    let name = tensor.name.replace("model.language_model.", "model.");
    let (block, part) = match (name.strip_prefix("mtp."), name.strip_prefix("model.layers.")) {
        (Some(part), _) => (count("num_hidden_layers").to_string(), part.trim_start_matches("layers.0.")),
        (None, Some(part)) => {
            let (layer, part) = part.split_once('.').expect("a layer's number");
            (layer.to_owned(), part)
        }
        (None, None) => (String::new(), &*name),
    };
    let called = |own: &str| format!("blk.{block}.{own}");
    let of_drafts = own_name(&OF_DRAFTS, part).filter(|_| name.starts_with("mtp."));
    if of_drafts.unwrap_or(part).ends_with("norm.weight") && part != "linear_attn.norm.weight" {
        values.iter_mut().for_each(|weight| *weight += 1.0);
    }
    let shape = tensor.shape.clone();
    // Merged later.
    if let Some(expert) = part.strip_prefix("mlp.experts.").filter(|it| it.ends_with("_proj.weight")) {
        let own = expert.replace("_proj.weight", "_exps.weight");
        return vec![(called(&format!("experts.{own}")), shape, values)];
    }
    let wide = shape.last().copied().unwrap_or(1);
    let Some(own) = of_drafts.or(own_name(&OF_HYBRIDS, part)).or(match part {
        "linear_attn.in_proj_qkv.weight" => Some("attn_qkv.weight"),
        "linear_attn.in_proj_qkvz.weight" if older => Some("ssm_in.weight"),
        "linear_attn.in_proj_qkvz.weight" => Some("attn_qkv and attn_gate"),
        "linear_attn.conv1d.weight" => Some("ssm_conv1d.weight"),
        "mlp.experts.gate_up_proj" => Some("ffn_gate_exps and ffn_up_exps"),
        _ => None,
    }) else {
        return vec![(name, shape, values)];
    };
    let keys = count("linear_num_key_heads");
    let [key_dim, value_dim] = ["linear_key_head_dim", "linear_value_head_dim"].map(count);
    // Behind the queries and keys.
    let behind = |values: &[f32], of: usize| {
        let (qk, v) = values.split_at(2 * keys * key_dim * of);
        [qk.to_vec(), tiled(v, keys, value_dim * of)].concat()
    };
    let reorders = architecture != "qwen3next";
    let values = match part {
        "linear_attn.in_proj_qkv.weight" if reorders => behind(&values, wide),
        "linear_attn.conv1d.weight" if reorders => behind(&values, wide),
        "linear_attn.in_proj_z.weight" if reorders => tiled(&values, keys, value_dim * wide),
        "linear_attn.in_proj_b.weight" | "linear_attn.in_proj_a.weight" if reorders => {
            tiled(&values, keys, wide)
        }
        "linear_attn.A_log" | "linear_attn.dt_bias" if reorders => tiled(&values, keys, 1),
        "linear_attn.out_proj.weight" if reorders => {
            values.chunks(wide).flat_map(|row| tiled(row, keys, value_dim)).collect()
        }
        _ => values,
    };
    match part {
        "linear_attn.A_log" => vec![(called(own), shape, values.iter().map(|it| -it.exp()).collect())],
        "linear_attn.conv1d.weight" => vec![(called(own), vec![shape[0], wide], values)],
        "linear_attn.in_proj_qkvz.weight" if !older => {
            let each = count("linear_num_value_heads") / keys * value_dim;
            let groups: Vec<&[f32]> = values.chunks(2 * (key_dim + each) * wide).collect();
            let rows = |first: usize, take: usize| -> Vec<f32> {
                groups.iter().flat_map(|it| &it[first * wide..][..take * wide]).copied().collect()
            };
            let parts = [rows(0, key_dim), rows(key_dim, key_dim), rows(2 * key_dim, each)].concat();
            let z = rows(2 * key_dim + each, each);
            [("attn_qkv.weight", parts), ("attn_gate.weight", z)]
                .map(|(own, values)| (called(own), vec![values.len() / wide, wide], values))
                .to_vec()
        }
        "mlp.experts.gate_up_proj" => {
            let half = shape[1] / 2 * wide;
            let side = |at: usize| values.chunks(half).skip(at).step_by(2).flatten().copied().collect();
            [("ffn_gate_exps.weight", side(0)), ("ffn_up_exps.weight", side(1))]
                .map(|(own, values)| (called(own), vec![shape[0], shape[1] / 2, wide], values))
                .to_vec()
        }
        _ => vec![(called(own), shape, values)],
    }
}

/// What the metadata of a hybrid says besides.
fn metadata_of_hybrid(architecture: &str, config: &serde_json::Value, drafts: u32) -> Vec<(String, Value)> {
    let count = |key: &str| u32::try_from(config[key].as_u64().expect("it has one")).expect("a small one");
    let values = count("linear_num_value_heads");
    let mut said = vec![
        ("ssm.conv_kernel", count("linear_conv_kernel_dim")),
        ("ssm.state_size", count("linear_key_head_dim")),
        ("ssm.group_count", count("linear_num_key_heads")),
        ("ssm.time_step_rank", values),
        ("ssm.inner_size", values * count("linear_value_head_dim")),
        ("full_attention_interval", config["full_attention_interval"].as_u64().map_or(4, |it| it as u32)),
    ];
    if architecture != "qwen35" {
        said.push(("expert_shared_feed_forward_length", count("shared_expert_intermediate_size")));
    }
    if drafts > 0 {
        said.push(("nextn_predict_layers", drafts));
    }
    let mut all: Vec<(&str, Value)> = said.into_iter().map(|(key, count)| (key, Value::U32(count))).collect();
    // As newer converters do.
    if let Some(kinds) = config["layer_types"].as_array() {
        let mut recurrent: Vec<bool> = kinds.iter().map(|kind| kind == "linear_attention").collect();
        recurrent.resize(recurrent.len() + drafts as usize, false);
        all.push(("attention.recurrent_layers", Value::Bools(recurrent)));
    }
    if architecture != "qwen3next" {
        all.push(("rope.dimension_sections", Value::I32s(vec![11, 11, 10, 0])));
    }
    all.into_iter().map(|(key, value)| (format!("{architecture}.{key}"), value)).collect()
}

/// Rows of each head as llama.cpp's converter stores those that are rotated: element `j` of the first half
/// beside element `j` of the second.
fn interleaved(rows: Vec<Vec<f32>>, head_dim: usize) -> Vec<Vec<f32>> {
    let half = head_dim / 2;
    let mut out = Vec::new();
    for head in rows.chunks(head_dim) {
        for j in 0..half {
            out.extend([head[j].clone(), head[half + j].clone()]);
        }
    }
    out
}

/// The golden's f32 checkpoint as a GGUF file, matrices in `stored` where their rows fill its blocks. `plain`
/// is the target of the golden's own import.
///
/// # Panics
/// If the golden says something that no file of the architecture can.
pub fn converted(architecture: &str, golden: &Golden, plain: &Target, stored: Format) -> GgufWriter {
    converted_by(false, architecture, golden, plain, stored)
}

/// The same by an `older` converter, which left the q, k, v and z of qwen3next in one tensor.
///
/// # Panics
/// As [`converted`].
pub fn converted_by(
    older: bool,
    architecture: &str,
    golden: &Golden,
    plain: &Target,
    stored: Format,
) -> GgufWriter {
    converted_in(older, architecture, golden, plain, &|_| stored)
}

/// The same with matrices in the formats that `stored` says of their names in the file.
///
/// # Panics
/// As [`converted`].
pub fn converted_in(
    older: bool,
    architecture: &str,
    golden: &Golden,
    plain: &Target,
    stored: &dyn Fn(&str) -> Format,
) -> GgufWriter {
    let form = Form::of(architecture);
    let drafts = u32::from(form != Form::Usual && plain.quant.has_draft());
    let config = config(golden);
    let file = GgufWriter::new()
        .metadata("general.architecture", architecture)
        .metadata("general.name", golden.name.as_str());
    let mut file = match form {
        Form::Usual | Form::Hybrid => metadata(file, architecture, &golden.name, &config, drafts),
        Form::Gemma4 => gemma4::metadata(file, &config),
        Form::NemotronH => nemotron_h::metadata(file, architecture, &config, drafts),
    };
    let checkpoint = Checkpoint::open(&golden.directory.join("f32")).expect("a golden has a checkpoint");
    let mut experts: BTreeMap<String, (Vec<usize>, Vec<f32>)> = BTreeMap::new();
    let mut pieces: Vec<Piece> = Vec::new();
    for tensor in file_tensors(plain) {
        let found = checkpoint.tensor(&tensor.name).expect("the golden has it");
        let bytes = found.bytes.read().expect("goldens are readable");
        let mut values = vec![0.0; bytes.len() / 4];
        decode(Format::F32, &bytes, &mut values);
        match form {
            Form::Usual => pieces.push((tensor.name, tensor.shape, values)),
            Form::Hybrid => pieces.extend(of_hybrid((architecture, older), &config, &tensor, values)),
            Form::Gemma4 => pieces.push(gemma4::piece(&tensor, values)),
            Form::NemotronH => pieces.push(nemotron_h::piece(&config, &tensor, values)),
        }
    }
    for (name, mut shape, mut values) in pieces {
        let name = match name.starts_with("blk.") {
            true => name,
            false => MODULES.iter().fold(name, |name, (theirs, own)| name.replace(theirs, own)),
        };
        if ["llama", "mistral3"].contains(&architecture)
            && (name.contains("attn_q.") || name.contains("attn_k."))
        {
            let columns = shape.get(1).copied().unwrap_or(1);
            let heads = if name.contains("attn_q.") { "num_attention_heads" } else { "num_key_value_heads" };
            let heads = config[heads].as_u64().or(config["num_attention_heads"].as_u64());
            let head_dim = values.len() / columns / heads.expect("it has some") as usize;
            let rows = values.chunks(columns).map(<[f32]>::to_vec).collect();
            values = interleaved(rows, head_dim).concat();
        }
        if let Some((layer, part)) = name.split_once(".experts.") {
            let (_, part) = part.split_once('.').expect("an expert's number");
            let stacked = experts.entry(format!("{layer}.ffn_{part}")).or_default();
            stacked.0 = [&[stacked.0.first().copied().unwrap_or(0) + 1], &shape[..]].concat();
            stacked.1.extend(values);
            continue;
        }
        let stored = stored(&name);
        let fits = shape.len() > 1 && shape[shape.len() - 1].is_multiple_of(stored.block_elements());
        // What quantises files writes what has one row as a vector.
        if stored.is_quantised() && shape[0] == 1 {
            shape.remove(0);
        }
        // The converter keeps what is no matrix, routers and convolutions as f32; older ones kept what weighs
        // a shared expert as the checkpoint has it. It is not quantised.
        let exact = ["ffn_gate_inp.", "ssm_conv1d", "_norm."].iter().any(|part| name.contains(part))
            || name.contains("ffn_gate_inp_shexp.") && stored.is_quantised();
        let format = if fits && name.ends_with(".weight") && !exact { stored } else { Format::F32 };
        file = file.tensor(&name, &shape, format, encode(format, &values));
    }
    for (name, (shape, values)) in experts {
        let stored = stored(&name);
        let fits = shape[2].is_multiple_of(stored.block_elements());
        let format = if fits { stored } else { Format::F32 };
        file = file.tensor(&name, &shape, format, encode(format, &values));
    }
    file
}

/// What the metadata of most architectures says.
fn metadata(
    mut file: GgufWriter,
    architecture: &str,
    name: &str,
    config: &serde_json::Value,
    drafts: u32,
) -> GgufWriter {
    let hybrid = DELTA_NETS.contains(&architecture);
    let number = |key: &str| config[key].as_u64().map(|it| u32::try_from(it).expect("a small number"));
    let count = |key: &str| number(key).unwrap_or_else(|| panic!("{}: no {key}", name));
    let heads = count("num_attention_heads");
    let head_dim = number("head_dim").unwrap_or(count("hidden_size") / heads);
    let eps = config["rms_norm_eps"].as_f64().expect("it has one");
    let rope = if config["rope_parameters"].is_object() {
        &config["rope_parameters"]
    } else {
        &config["rope_scaling"]
    };
    let theta = rope["rope_theta"].as_f64().or(config["rope_theta"].as_f64()).expect("it has one");
    file = file.metadata("tokenizer.ggml.eos_token_id", Value::U32(number("eos_token_id").unwrap_or(2)));
    let of = |key: &str| format!("{architecture}.{key}");
    let part = rope["partial_rotary_factor"].as_f64().or(config["partial_rotary_factor"].as_f64());
    let turned = match hybrid {
        true => (f64::from(head_dim) * part.unwrap_or(0.25)) as u32,
        false => number("rotary_dim").unwrap_or(head_dim),
    };
    if let Some(width) = number("intermediate_size") {
        file = file.metadata(&of("feed_forward_length"), Value::U32(width));
    }
    let counts = [
        ("embedding_length", count("hidden_size")),
        ("block_count", count("num_hidden_layers") + drafts),
        ("context_length", count("max_position_embeddings")),
        ("attention.head_count", heads),
        ("attention.head_count_kv", number("num_key_value_heads").unwrap_or(heads)),
        ("attention.key_length", head_dim),
        ("attention.value_length", head_dim),
        ("rope.dimension_count", turned),
    ];
    for (key, value) in counts {
        file = file.metadata(&of(key), Value::U32(value));
    }
    file = file.metadata(&of("attention.layer_norm_rms_epsilon"), Value::F32(eps as f32));
    file = file.metadata(&of("rope.freq_base"), Value::F32(theta as f32));
    if let Some(experts) = number("num_experts").or(number("num_local_experts")) {
        let width = number("moe_intermediate_size").unwrap_or_else(|| count("intermediate_size"));
        file = file
            .metadata(&of("expert_count"), Value::U32(experts))
            .metadata(&of("expert_used_count"), Value::U32(count("num_experts_per_tok")))
            .metadata(&of("expert_feed_forward_length"), Value::U32(width));
    }
    if hybrid {
        let said = metadata_of_hybrid(architecture, config, drafts);
        file = said.into_iter().fold(file, |file, (key, value)| file.metadata(&key, value));
    }
    if architecture == "qwen3vlmoe" {
        file = file
            .metadata(&of("rope.dimension_sections"), Value::I32s(vec![4, 3, 3, 0]))
            .metadata(&of("n_deepstack_layers"), Value::U32(3));
    }
    if architecture == "minimax-m2" {
        file = file.metadata(&of("expert_gating_func"), Value::U32(2));
    }
    let factor = rope["factor"].as_f64().unwrap_or(1.0);
    match rope["rope_type"].as_str() {
        None | Some("default") => {}
        Some("llama3") => {
            // The wavelengths of low and of high frequencies, as the converter compares them.
            let original = rope["original_max_position_embeddings"].as_f64().expect("it has one");
            let (low, high) = (original, original / 4.0);
            let factors: Vec<f32> = (0..head_dim / 2)
                .map(|at| {
                    let wavelength = TAU * theta.powf(f64::from(2 * at) / f64::from(head_dim));
                    let smooth = (original / wavelength - 1.0) / 3.0;
                    if wavelength < high {
                        1.0
                    } else if wavelength > low {
                        factor as f32
                    } else {
                        (1.0 / ((1.0 - smooth) / factor + smooth)) as f32
                    }
                })
                .collect();
            let bytes = encode(Format::F32, &factors);
            file = file.tensor("rope_freqs.weight", &[factors.len()], Format::F32, bytes);
        }
        Some(kind) => {
            file = file.metadata(&of("rope.scaling.type"), kind);
            file = file.metadata(&of("rope.scaling.factor"), Value::F32(factor as f32));
            if let Some(original) = rope["original_max_position_embeddings"].as_u64() {
                let key = of("rope.scaling.original_context_length");
                file = file.metadata(&key, Value::U32(u32::try_from(original).expect("a small number")));
            }
        }
    }
    file
}
