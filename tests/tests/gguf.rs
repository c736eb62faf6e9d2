//! GGUF files as llama.cpp's converters write them: imported, they are the model that the safetensors were.

use monomorph_compiler::import::{ImportError, Imported, Seen, import_gguf};
use monomorph_compiler::reference::{Cache, Interpreter, Logits as Which};
use monomorph_compiler::spec::types::{Compute, Target};
use monomorph_compiler::{graph, spec};
use monomorph_formats::{Format, decode, encode};
use monomorph_tests::goldens::{Golden, file_tensors, golden, synthetic};
use monomorph_tests::logits::{Logits, distance, read};
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

fn config(golden: &Golden) -> serde_json::Value {
    let text = std::fs::read_to_string(golden.directory.join("config.json")).expect("a golden has a config");
    serde_json::from_str(&text).expect("configs are JSON")
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
    let counts = [
        ("embedding_length", count("hidden_size")),
        ("block_count", count("num_hidden_layers")),
        ("context_length", count("max_position_embeddings")),
        ("feed_forward_length", count("intermediate_size")),
        ("attention.head_count", heads),
        ("attention.head_count_kv", number("num_key_value_heads").unwrap_or(heads)),
        ("attention.key_length", head_dim),
        ("attention.value_length", head_dim),
        ("rope.dimension_count", number("rotary_dim").unwrap_or(head_dim)),
    ];
    for (key, value) in counts {
        file = file.metadata(&of(key), Value::U32(value));
    }
    file = file.metadata(&of("attention.layer_norm_rms_epsilon"), Value::F32(eps as f32));
    file = file.metadata(&of("rope.freq_base"), Value::F32(theta as f32));
    if let Some(experts) = number("num_experts").or(number("num_local_experts")) {
        let width = number("moe_intermediate_size").unwrap_or(count("intermediate_size"));
        file = file
            .metadata(&of("expert_count"), Value::U32(experts))
            .metadata(&of("expert_used_count"), Value::U32(count("num_experts_per_tok")))
            .metadata(&of("expert_feed_forward_length"), Value::U32(width));
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
    for tensor in file_tensors(plain) {
        let found = checkpoint.tensor(&tensor.name).expect("the golden has it");
        let bytes = found.bytes.read().expect("goldens are readable");
        let mut values = vec![0.0; bytes.len() / 4];
        decode(Format::F32, &bytes, &mut values);
        let name = MODULES.iter().fold(tensor.name.clone(), |name, (theirs, own)| name.replace(theirs, own));
        if architecture == "llama" && (name.contains("attn_q.") || name.contains("attn_k.")) {
            let columns = tensor.columns.unwrap_or(1);
            let rows = values.chunks(columns).map(<[f32]>::to_vec).collect();
            values = interleaved(rows, head_dim as usize).concat();
        }
        if let Some((layer, part)) = name.split_once(".experts.") {
            let (_, part) = part.split_once('.').expect("an expert's number");
            let stacked = experts.entry(format!("{layer}.ffn_{part}")).or_default();
            stacked.0 = [&[stacked.0.first().copied().unwrap_or(0) + 1], &tensor.shape[..]].concat();
            stacked.1.extend(values);
            continue;
        }
        let fits = tensor.shape.len() == 2 && tensor.shape[1].is_multiple_of(stored.block_elements());
        // The converter keeps what is no matrix, and routers, as f32.
        let format = if fits && !name.contains("ffn_gate_inp") { stored } else { Format::F32 };
        file = file.tensor(&name, &tensor.shape, format, encode(format, &values));
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
    let checkpoint = Checkpoint::open(weights).unwrap_or_else(|error| panic!("{error}"));
    let interpreter = Interpreter::new(&graph, &target.quant, &checkpoint).expect("its tensors fit");
    prompts.iter().map(|prompt| interpreter.forward(prompt, &mut Cache::default(), Which::All)).collect()
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
    let out = directory.path().join("out.safetensors");
    let tokens = golden.directory.join("tokens.json");
    let [weights, tokens, to] = [&weights, &tokens, &out].map(|path| path.to_str().expect("paths are UTF-8"));
    server::verb(binary, &["--weights", weights, "--tokens", tokens, "--out", to]);
    let apart = distance(&read(&out), &expected, target.model.vocabulary);
    assert!(apart <= 2e-5, "{apart:e}");
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
    monomorph_compiler::toolchain::plan(&own).unwrap_or_else(|error| panic!("{error}"));
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
    let vector = |count: usize| encode(Format::F32, &vec![3.0; count]);
    let cases: [(GgufWriter, &str); 6] = [
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
    ];
    for (file, wanted) in cases {
        let error = imported(&file, "refused", directory.path()).expect_err(wanted).to_string();
        assert!(error.contains(wanted), "{wanted}: {error}");
    }
}
