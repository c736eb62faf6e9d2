//! GGUF files as llama.cpp's converters write them: imported, they are the model that the safetensors were.

use monomorph_compiler::graph::Graph;
use monomorph_compiler::import::{ImportError, Imported, Seen, import_gguf};
use monomorph_compiler::passes::shard::shard;
use monomorph_compiler::reference::{Cache, Interpreter, Logits as Which};
use monomorph_compiler::spec::types::{
    CheckpointSpec, Compute, Decay, OnePlusNorms, Ranks, Target, ValueHeads,
};
use monomorph_compiler::{graph, spec, toolchain};
use monomorph_formats::{Format, decode, encode};
use monomorph_tests::goldens::{FileTensor, Golden, file_tensors, golden, synthetic};
use monomorph_tests::logits::{Logits, distance, read, rows_apart};
use monomorph_tests::{root, server, stacks};
use monomorph_weights::Checkpoint;
use monomorph_weights::test_support::{GgufWriter, Value};
use std::collections::BTreeMap;
use std::f64::consts::TAU;
use std::path::Path;

/// Goldens that the known architectures can say: biases, one K/V head, heads of their own width, scaled
/// frequencies, tied heads.
const SAID: [(&str, &str); 12] = [
    ("llama", "llama-aligned"),
    ("llama", "llama-grouped"),
    ("llama", "llama-linear"),
    ("llama", "llama-llama3"),
    ("llama", "llama-multi-query"),
    ("minimax-m2", "minimax-m2"),
    ("minimax-m2", "minimax-m2-few"),
    ("minimax-m2", "minimax-m2-whole"),
    ("qwen3", "qwen3-deep"),
    ("qwen3", "qwen3-multi-query"),
    ("qwen3", "qwen3-tied"),
    ("qwen3", "qwen3-yarn"),
];

/// Names of modules, in the order in which they are to be replaced.
const MODULES: [(&str, &str); 24] = [
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

/// Architectures with delta-nets, and goldens that they can say: tied heads, experts, draft heads, a model
/// whose layers are all attention.
const HYBRIDS: [(&str, &str); 5] = [
    ("qwen35", "qwen35-text"),
    ("qwen35", "qwen35-vision"),
    ("qwen35moe", "qwen35-moe-text"),
    ("qwen35moe", "qwen35-moe-vision"),
    ("qwen35moe", "qwen35-moe-wide"),
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
fn config(golden: &Golden) -> serde_json::Value {
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
    let attends = |layers: &Vec<serde_json::Value>| layers.iter().position(|it| it == "full_attention");
    let first = config["layer_types"].as_array().and_then(attends);
    let interval = match first {
        Some(first) => u32::try_from(first + 1).expect("few layers"),
        None => count("full_attention_interval"),
    };
    let values = count("linear_num_value_heads");
    let mut said = vec![
        ("ssm.conv_kernel", count("linear_conv_kernel_dim")),
        ("ssm.state_size", count("linear_key_head_dim")),
        ("ssm.group_count", count("linear_num_key_heads")),
        ("ssm.time_step_rank", values),
        ("ssm.inner_size", values * count("linear_value_head_dim")),
        ("full_attention_interval", interval),
    ];
    if architecture != "qwen35" {
        said.push(("expert_shared_feed_forward_length", count("shared_expert_intermediate_size")));
    }
    if drafts > 0 {
        said.push(("nextn_predict_layers", drafts));
    }
    let mut all: Vec<(&str, Value)> = said.into_iter().map(|(key, count)| (key, Value::U32(count))).collect();
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

/// The golden's f32 checkpoint as a GGUF file, matrices in `stored` where their rows fill its blocks.
fn converted(architecture: &str, golden: &Golden, plain: &Target, stored: Format) -> GgufWriter {
    converted_by(false, architecture, golden, plain, stored)
}

fn converted_by(
    older: bool,
    architecture: &str,
    golden: &Golden,
    plain: &Target,
    stored: Format,
) -> GgufWriter {
    let hybrid = architecture == "qwen3next" || HYBRIDS.iter().any(|(known, _)| *known == architecture);
    let drafts = u32::from(hybrid && plain.quant.has_draft());
    let config = config(golden);
    let number = |key: &str| config[key].as_u64().map(|it| u32::try_from(it).expect("a small number"));
    let count = |key: &str| number(key).unwrap_or_else(|| panic!("{}: no {key}", golden.name));
    let heads = count("num_attention_heads");
    let head_dim = number("head_dim").unwrap_or(count("hidden_size") / heads);
    let eps = config["rms_norm_eps"].as_f64().expect("it has one");
    let rope = if config["rope_parameters"].is_object() {
        &config["rope_parameters"]
    } else {
        &config["rope_scaling"]
    };
    let theta = rope["rope_theta"].as_f64().or(config["rope_theta"].as_f64()).expect("it has one");
    let mut file = GgufWriter::new()
        .metadata("general.architecture", architecture)
        .metadata("general.name", golden.name.as_str())
        .metadata("tokenizer.ggml.eos_token_id", Value::U32(number("eos_token_id").unwrap_or(2)));
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
        let said = metadata_of_hybrid(architecture, &config, drafts);
        file = said.into_iter().fold(file, |file, (key, value)| file.metadata(&key, value));
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
    let checkpoint = Checkpoint::open(&golden.directory.join("f32")).expect("a golden has a checkpoint");
    let mut experts: BTreeMap<String, (Vec<usize>, Vec<f32>)> = BTreeMap::new();
    let mut pieces: Vec<Piece> = Vec::new();
    for tensor in file_tensors(plain) {
        let found = checkpoint.tensor(&tensor.name).expect("the golden has it");
        let bytes = found.bytes.read().expect("goldens are readable");
        let mut values = vec![0.0; bytes.len() / 4];
        decode(Format::F32, &bytes, &mut values);
        match hybrid {
            true => pieces.extend(of_hybrid((architecture, older), &config, &tensor, values)),
            false => pieces.push((tensor.name, tensor.shape, values)),
        }
    }
    for (name, mut shape, mut values) in pieces {
        let name = match name.starts_with("blk.") {
            true => name,
            false => MODULES.iter().fold(name, |name, (theirs, own)| name.replace(theirs, own)),
        };
        if architecture == "llama" && (name.contains("attn_q.") || name.contains("attn_k.")) {
            let columns = shape.get(1).copied().unwrap_or(1);
            let rows = values.chunks(columns).map(<[f32]>::to_vec).collect();
            values = interleaved(rows, head_dim as usize).concat();
        }
        if let Some((layer, part)) = name.split_once(".experts.") {
            let (_, part) = part.split_once('.').expect("an expert's number");
            let stacked = experts.entry(format!("{layer}.ffn_{part}")).or_default();
            stacked.0 = [&[stacked.0.first().copied().unwrap_or(0) + 1], &shape[..]].concat();
            stacked.1.extend(values);
            continue;
        }
        let fits = shape.len() > 1 && shape[shape.len() - 1].is_multiple_of(stored.block_elements());
        // What quantises files writes what has one row as a vector.
        if stored.is_quantised() && shape[0] == 1 {
            shape.remove(0);
        }
        // The converter keeps what is no matrix, and routers, as f32.
        let format = if fits && !name.contains("ffn_gate_inp") { stored } else { Format::F32 };
        file = file.tensor(&name, &shape, format, encode(format, &values));
    }
    for (name, (shape, values)) in experts {
        let fits = shape[2].is_multiple_of(stored.block_elements());
        let format = if fits { stored } else { Format::F32 };
        file = file.tensor(&name, &shape, format, encode(format, &values));
    }
    file
}

fn imported(file: &GgufWriter, name: &str, directory: &Path) -> Result<Imported, ImportError> {
    let path = directory.join(format!("{name}.gguf"));
    std::fs::write(&path, file.finish()).expect("a temporary directory is writable");
    let checkpoint = Checkpoint::open(&path).unwrap_or_else(|error| panic!("{error}"));
    import_gguf(&checkpoint, name, Compute::F32, &Seen::of(&checkpoint))
}

fn loaded(name: &str, directory: &Path) -> Target {
    let search = [directory.to_owned(), root().join("targets")];
    spec::load(&search, name).unwrap_or_else(|error| panic!("{error}"))
}

/// The target of a golden's own import, in f32.
fn plain(golden: &Golden, directory: &Path) -> Target {
    golden.import_into(directory, Compute::F32);
    loaded(&format!("cpu/{}/f32", golden.name), directory)
}

/// The target of a file's import, which is called after the golden and `gguf`.
fn own(golden: &Golden, imported: &Imported, directory: &Path) -> Target {
    let name = format!("{}-gguf", golden.name);
    let models = directory.join("models").join(&name);
    std::fs::create_dir_all(&models).expect("a temporary directory is writable");
    std::fs::write(models.join("MODEL.toml"), &imported.model_toml).expect("it is writable");
    let (file, quant) = &imported.quants[0];
    std::fs::write(models.join(file), quant).expect("it is writable");
    loaded(&format!("cpu/{name}/{}", file.trim_end_matches(".toml")), directory)
}

fn logits(target: &Target, weights: &Path, prompts: &[Vec<u32>]) -> Logits {
    let graph = graph::build(&target.model, &target.quant);
    logits_of(&graph, target, weights, prompts)
}

/// The logits of all prompts; behind them those of drafts, where there is a draft head.
fn logits_of(graph: &Graph, target: &Target, weights: &Path, prompts: &[Vec<u32>]) -> Logits {
    let checkpoint = Checkpoint::open(weights).unwrap_or_else(|error| panic!("{error}"));
    let interpreter = Interpreter::new(graph, &target.quant, &checkpoint).expect("its tensors fit");
    let whole = |prompt: &Vec<u32>| interpreter.forward(prompt, &mut Cache::default(), Which::All);
    let drafted = |prompt: &Vec<u32>| {
        let states = interpreter.forward_with_hidden(prompt, &mut Cache::default(), Which::All).hidden;
        let given = &states[..(prompt.len() - 1) * target.model.hidden];
        interpreter.draft(given, &prompt[1..], &mut Cache::default(), Which::All).logits
    };
    let pairs = prompts.iter().filter(|prompt| target.quant.has_draft() && prompt.len() > 1);
    prompts.iter().map(whole).chain(pairs.map(drafted)).collect()
}

/// The logits of a server's stack, without those of drafts.
fn served(binary: &Path, weights: &Path, golden: &Golden, directory: &Path) -> Logits {
    let (tokens, out) = (golden.directory.join("tokens.json"), directory.join("out.safetensors"));
    let [weights, tokens, to] = [weights, &tokens, &out].map(|path| path.to_str().expect("paths are UTF-8"));
    server::verb(binary, &["--weights", weights, "--tokens", tokens, "--out", to]);
    read(&out)
}

/// The logits of a file are the checkpoint's, to the bit: every number is where it was. Planted, and seen
/// here: rows of queries as the model has them, up and gate exchanged, a base of frequencies that is not
/// read, factors of frequencies that are left out.
#[test]
fn a_file_is_the_model_that_it_was_converted_from() {
    let directory = tempfile::tempdir().expect("temporary directories can be made");
    let mut moe = config(&golden("qwen3-moe"));
    moe["mlp_only_layers"] = serde_json::json!([]);
    moe["num_hidden_layers"] = 2.into();
    let prompts = vec![vec![1, 5, 9, 40, 3], vec![7]];
    let moe = synthetic(directory.path(), "qwen3-moe-all", &moe, prompts);
    let mut said: Vec<(&str, Golden)> = SAID.map(|(kind, name)| (kind, golden(name))).into();
    said.push(("qwen3moe", moe));
    let mut biased = None;
    for (architecture, golden) in said {
        let plain = plain(&golden, directory.path());
        let file = converted(architecture, &golden, &plain, Format::F32);
        let imported = imported(&file, &golden.name, directory.path())
            .unwrap_or_else(|error| panic!("{}: {error}", golden.name));
        let own = own(&golden, &imported, directory.path());
        let weights = directory.path().join(format!("{}.gguf", golden.name));
        let expected = logits(&plain, &golden.directory.join("f32"), &golden.prompts);
        let found = logits(&own, &weights, &golden.prompts);
        assert!(found == expected, "{}: {}", golden.name, imported.model_toml);
        if golden.name == "llama-linear" {
            biased = Some((own, weights, golden, expected));
        }
    }
    // A stack reads rows and biases in the file's order.
    let (target, weights, golden, expected) = biased.expect("it is one of them");
    let binary = &stacks::build("gguf", std::slice::from_ref(&target))[0];
    let found = served(binary, &weights, &golden, directory.path());
    let apart = distance(&found, &expected, target.model.vocabulary);
    assert!(apart <= 2e-5, "{apart:e}");
}

/// The goldens of [`HYBRIDS`], and two of qwen3next, each with its architecture and whether an older converter
/// wrote it.
fn hybrids(directory: &Path) -> Vec<(&'static str, bool, Golden)> {
    let mut next = config(&golden("qwen3-next"));
    next["mlp_only_layers"] = serde_json::json!([]);
    next["num_hidden_layers"] = 4.into();
    next["full_attention_interval"] = 2.into();
    let prompts = || vec![vec![1, 5, 9, 40, 3, 8], vec![7]];
    let mut all: Vec<_> = HYBRIDS.map(|(kind, name)| (kind, false, golden(name))).into();
    for (name, older) in [("qwen3-next-all", false), ("qwen3-next-older", true)] {
        all.push(("qwen3next", older, synthetic(directory, name, &next, prompts())));
    }
    all
}

/// The logits of a hybrid's file, and those of drafts, are the checkpoint's but for the rounding of one plus
/// a weight and of a decay's rate; so are those of stacks.
///
/// A spec that leaves out what the converter changed is far from it. Planted, and seen here: in the CPU's
/// kernels value heads of a key head next to one another.
#[test]
fn a_hybrid_is_the_model_that_it_was_converted_from() {
    let directory = tempfile::tempdir().expect("temporary directories can be made");
    let (mut built, mut drafted) = (Vec::new(), 0);
    for (architecture, older, golden) in hybrids(directory.path()) {
        let plain = plain(&golden, directory.path());
        let file = converted_by(older, architecture, &golden, &plain, Format::F32);
        let imported = imported(&file, &golden.name, directory.path())
            .unwrap_or_else(|error| panic!("{}: {error}", golden.name));
        let own = own(&golden, &imported, directory.path());
        let weights = directory.path().join(format!("{}.gguf", golden.name));
        assert_eq!(own.quant.has_draft(), plain.quant.has_draft(), "{}", golden.name);
        drafted += usize::from(own.quant.has_draft());
        let expected = logits(&plain, &golden.directory.join("f32"), &golden.prompts);
        let found = logits(&own, &weights, &golden.prompts);
        let apart = distance(&found, &expected, own.model.vocabulary);
        println!("{}: {apart:.1e}", golden.name);
        assert!(apart <= 1e-5, "{}: {apart:e}\n{}", golden.name, imported.quants[0].1);
        if golden.name == "qwen35-text" {
            let leave_out: [fn(&mut CheckpointSpec); 3] = [
                |spec| spec.value_heads = ValueHeads::default(),
                |spec| spec.one_plus_norms = OnePlusNorms::default(),
                |spec| spec.decay = Decay::default(),
            ];
            for leave_out in leave_out {
                let mut wrong = own.clone();
                leave_out(&mut wrong.quant.checkpoint);
                let found = logits(&wrong, &weights, &golden.prompts);
                let apart = distance(&found, &expected, own.model.vocabulary);
                println!("{}, one thing left out: {apart:.1e}", golden.name);
                assert!(apart > 1e-2, "{apart:e}");
            }
        }
        if ["qwen35-text", "qwen35-moe-vision", "qwen3-next-all"].contains(&golden.name.as_str()) {
            built.push((own, weights, golden, expected));
        }
    }
    assert_eq!(drafted, 2, "two of them have draft heads");
    let targets: Vec<Target> = built.iter().map(|(target, ..)| target.clone()).collect();
    let binaries = stacks::build("gguf-hybrids", &targets);
    for (binary, (target, weights, golden, expected)) in binaries.iter().zip(built) {
        let found = served(binary, &weights, &golden, directory.path());
        let expected = expected[..golden.prompts.len()].to_vec();
        let apart = distance(&found, &expected, target.model.vocabulary);
        println!("{} on a CPU: {apart:.1e}", golden.name);
        assert!(apart <= 2e-5, "{}: {apart:e}", golden.name);
    }
}

/// Ranks hold key heads with their value heads in tiled order too, and a CUDA device says what it lacks.
#[test]
fn value_heads_in_tiled_order_are_shared_out_and_refused_where_no_kernel_takes_them() {
    let directory = tempfile::tempdir().expect("temporary directories can be made");
    let golden = golden("qwen35-text").for_ranks(directory.path());
    let plain = plain(&golden, directory.path());
    let file = converted("qwen35", &golden, &plain, Format::F32);
    let imported = imported(&file, &golden.name, directory.path()).unwrap_or_else(|error| panic!("{error}"));
    let own = own(&golden, &imported, directory.path());
    let weights = directory.path().join(format!("{}.gguf", golden.name));
    let expected = logits(&plain, &golden.directory.join("f32"), &golden.prompts);
    let graph = graph::build(&own.model, &own.quant);
    for ranks in [2, 3, 8] {
        let cut = shard(&graph, Ranks::tensor_parallel(ranks)).unwrap_or_else(|error| panic!("{error}"));
        let found = logits_of(&cut, &own, &weights, &golden.prompts);
        let apart = distance(&found, &expected, own.model.vocabulary);
        println!("{ranks} ranks: {apart:.1e}");
        assert!(apart <= 3e-5, "{ranks} ranks: {apart:e}");
    }
    let card = loaded(&format!("h200/{}-gguf/f32", golden.name), directory.path());
    let error = toolchain::plan(&card).expect_err("no kernel takes them").to_string();
    assert!(error.contains("value heads in tiled order (`value_heads` of [checkpoint])"), "{error}");
}

/// Blocks of 32 hold columns of two value heads, so these stay in the file's order; an only row may be a
/// vector. All experts are chosen, so that rounding chooses no others.
#[test]
fn blocks_of_a_hybrid_compute_what_the_interpreter_does() {
    let directory = tempfile::tempdir().expect("temporary directories can be made");
    let config = serde_json::json!({
        "architectures": ["Qwen3_5MoeForCausalLM"], "model_type": "qwen3_5_moe_text", "vocab_size": 96,
        "hidden_size": 64, "num_hidden_layers": 2, "full_attention_interval": 2, "num_attention_heads": 2,
        "num_key_value_heads": 1, "head_dim": 32, "hidden_act": "silu", "max_position_embeddings": 256,
        "rms_norm_eps": 1e-6, "tie_word_embeddings": false, "linear_conv_kernel_dim": 4,
        "linear_key_head_dim": 16, "linear_value_head_dim": 16, "linear_num_key_heads": 2,
        "linear_num_value_heads": 4, "moe_intermediate_size": 32, "shared_expert_intermediate_size": 32,
        "num_experts": 4, "num_experts_per_tok": 4, "dtype": "float32", "attn_output_gate": true,
        "rope_parameters": { "rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.25 },
    });
    let prompts = vec![(0..20).map(|at| at * 37 % 96).collect(), vec![7]];
    let golden = synthetic(directory.path(), "blocks-of-a-hybrid", &config, prompts);
    let plain = plain(&golden, directory.path());
    let file = converted("qwen35moe", &golden, &plain, Format::Q8_0);
    let imported = imported(&file, &golden.name, directory.path()).unwrap_or_else(|error| panic!("{error}"));
    let (name, text) = &imported.quants[0];
    assert_eq!(name, "q8_0.toml");
    for line in ["value_heads = \"tiled\"", "one_plus_norms = \"one-added\"", "decay = \"negative-rate\""] {
        assert!(text.contains(line), "{line}: {text}");
    }
    let own = own(&golden, &imported, directory.path());
    let weights = directory.path().join(format!("{}.gguf", golden.name));
    let expected = logits(&own, &weights, &golden.prompts);
    // Of weights alone.
    let mut decoded = own.clone();
    decoded.quant.compute.classes.values_mut().for_each(|compute| *compute = Compute::F32);
    let rounded = logits(&decoded, &weights, &golden.prompts);
    let exact = logits(&plain, &golden.directory.join("f32"), &golden.prompts);
    let mut rounded = rows_apart(&rounded, &exact, own.model.vocabulary);
    rounded.sort_by(f32::total_cmp);
    let rounded = rounded[rounded.len() / 2];
    let binary = &stacks::build("gguf-blocks", std::slice::from_ref(&own))[0];
    let found = served(binary, &weights, &golden, directory.path());
    let apart = distance(&found, &expected, own.model.vocabulary);
    println!("rounding {rounded:.1e}, on a CPU {apart:.1e}");
    assert!(rounded <= 6e-2, "{rounded:e}");
    assert!(apart <= 3e-2, "{apart:e}");
}

/// Matrices of several formats, as `Q4_K_M` and the like have them: what most are of a class is the class's.
#[test]
fn blocks_compute_in_int8_and_mixed_formats_are_named() {
    let directory = tempfile::tempdir().expect("temporary directories can be made");
    let golden = golden("llama-aligned");
    let plain = plain(&golden, directory.path());
    let file = converted("llama", &golden, &plain, Format::Q8_0);
    let imported = imported(&file, "blocks", directory.path()).unwrap_or_else(|error| panic!("{error}"));
    let (name, text) = &imported.quants[0];
    assert_eq!(name, "q8_0.toml");
    for line in
        ["attention = \"q8_0\"", "ffn = \"int8-block32\"", "rotary_rows = \"interleaved\"", "norm = \"f32\""]
    {
        assert!(text.contains(line), "{line}: {text}");
    }
    let own = own(&golden, &imported, directory.path());
    toolchain::plan(&own).unwrap_or_else(|error| panic!("{error}"));
    let checkpoint = Checkpoint::open(&directory.path().join("blocks.gguf")).expect("it was just written");
    let halves = import_gguf(&checkpoint, "blocks", Compute::F16, &Seen::of(&checkpoint));
    let error = halves.expect_err("blocks have no products in f16").to_string();
    assert!(error.contains("--compute f16"), "{error}");
}

#[test]
fn what_is_unknown_of_a_file_is_refused_by_name() {
    let directory = tempfile::tempdir().expect("temporary directories can be made");
    let golden = golden("llama-aligned");
    let plain = plain(&golden, directory.path());
    let sound = || converted("llama", &golden, &plain, Format::F32);
    let hybrid_golden = self::golden("qwen35-vision");
    let hybrid_plain = self::plain(&hybrid_golden, directory.path());
    let hybrid = || converted("qwen35", &hybrid_golden, &hybrid_plain, Format::F32);
    let vector = |count: usize| encode(Format::F32, &vec![3.0; count]);
    let cases: [(GgufWriter, &str); 10] = [
        (GgufWriter::new(), "`general.architecture` is missing; known are `llama`"),
        (
            GgufWriter::new().metadata("general.architecture", "rwkv7"),
            "`general.architecture` = \"rwkv7\": not a known architecture",
        ),
        (
            sound().metadata("llama.expert_count", Value::U32(8)),
            "metadata `llama.expert_count` is not known of the llama architecture",
        ),
        (
            sound().metadata("llama.vocab_size", Value::U32(7)),
            "metadata `llama.vocab_size` is 7: 128, as many as the embedding has rows is known",
        ),
        (
            sound().tensor("blk.1.attn_sinks.weight", &[4], Format::F32, vector(4)),
            "the tensor \"blk.1.attn_sinks.weight\" is no part of the model",
        ),
        (
            sound().tensor("rope_freqs.weight", &[8], Format::F32, vector(8)),
            "\"rope_freqs.weight\" holds other factors than those of Llama 3's scaling",
        ),
        (
            hybrid().metadata("qwen35.ssm.dt_b_c_rms", Value::Bool(true)),
            "metadata `qwen35.ssm.dt_b_c_rms` is not known of the qwen35 architecture",
        ),
        (
            hybrid().tensor("blk.0.ssm_d", &[4], Format::F32, vector(4)),
            "the tensor \"blk.0.ssm_d\" is no part of the model",
        ),
        (
            hybrid().tensor("blk.4.nextn.embed_tokens.weight", &[41, 34], Format::F32, vector(41 * 34)),
            "the tensor \"blk.4.nextn.embed_tokens.weight\" is no part of the model",
        ),
        (
            hybrid().metadata("qwen35.attention.recurrent_layers", Value::I32s(vec![1, 1, 1, 0])),
            "metadata `qwen35.attention.recurrent_layers` is not known of the qwen35 architecture",
        ),
    ];
    for (file, wanted) in cases {
        let error = imported(&file, "refused", directory.path()).expect_err(wanted).to_string();
        assert!(error.contains(wanted), "{wanted}: {error}");
    }
}
