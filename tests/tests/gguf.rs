//! GGUF files as llama.cpp's converters write them: imported, they are the model that the safetensors were.

use monomorph_compiler::import::{Seen, import_gguf};
use monomorph_compiler::passes::shard::shard;
use monomorph_compiler::spec::types::{
    CheckpointSpec, Compute, Decay, OnePlusNorms, Ranks, Target, ValueHeads,
};
use monomorph_compiler::{graph, toolchain};
use monomorph_formats::Format;
use monomorph_tests::converted::{config, converted, converted_by, converted_in};
use monomorph_tests::gguf_files::{imported, loaded, logits, logits_of, own, plain, served};
use monomorph_tests::goldens::{Golden, golden, synthetic};
use monomorph_tests::logits::{Logits, distance, rows_apart};
use monomorph_tests::stacks;
use monomorph_weights::Checkpoint;
use monomorph_weights::test_support::GgufWriter;
use std::path::{Path, PathBuf};

/// Goldens that the known architectures can say: biases, one K/V head, heads of their own width, scaled
/// frequencies, tied heads.
const SAID: [(&str, &str); 17] = [
    ("gemma4", "gemma4-dense"),
    ("gemma4", "gemma4-few"),
    ("gemma4", "gemma4-wide"),
    ("llama", "llama-aligned"),
    ("llama", "llama-grouped"),
    ("llama", "llama-linear"),
    ("llama", "llama-llama3"),
    ("llama", "llama-multi-query"),
    ("mistral3", "llama-grouped"),
    ("minimax-m2", "minimax-m2"),
    ("minimax-m2", "minimax-m2-few"),
    ("minimax-m2", "minimax-m2-whole"),
    ("qwen3", "qwen3-deep"),
    ("qwen3", "qwen3-multi-query"),
    ("qwen3", "qwen3-tied"),
    ("qwen3", "qwen3-yarn"),
    ("qwen3vlmoe", "qwen3-vl-few"),
];
/// Architectures with delta-nets, and goldens that they can say: tied heads, experts, draft heads, layers in
/// no regular order, a model whose layers are all attention.
const HYBRIDS: [(&str, &str); 6] = [
    ("qwen35", "qwen35-quarters"),
    ("qwen35", "qwen35-text"),
    ("qwen35", "qwen35-vision"),
    ("qwen35moe", "qwen35-moe-text"),
    ("qwen35moe", "qwen35-moe-vision"),
    ("qwen35moe", "qwen35-moe-wide"),
];
/// The logits of a file are the checkpoint's, to the bit: every number is where it was. Planted, and seen
/// here: rows of queries as the model has them, up and gate exchanged, a base of frequencies that is not
/// read, factors of frequencies that are left out; of Gemma the base of layers with a window, half of the
/// pairs that turn.
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
    let mut built = Vec::new();
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
        // A stack reads rows and biases in the file's order, and gates above the ups of an expert.
        if ["gemma4-few", "llama-linear"].contains(&golden.name.as_str()) {
            built.push((own, weights, golden, expected));
        }
    }
    compare_stacks("gguf", built);
}

/// Builds the targets, and compares their stacks with what is expected: target, weights, golden, logits.
fn compare_stacks(name: &str, built: Vec<(Target, PathBuf, Golden, Logits)>) {
    let directory = tempfile::tempdir().expect("temporary directories can be made");
    let targets: Vec<Target> = built.iter().map(|(target, ..)| target.clone()).collect();
    let binaries = stacks::build(name, &targets);
    for (binary, (target, weights, golden, expected)) in binaries.iter().zip(built) {
        let found = served(binary, &weights, &golden, directory.path());
        let expected = expected[..golden.prompts.len()].to_vec();
        let apart = distance(&found, &expected, target.model.vocabulary);
        println!("{} on a CPU: {apart:.1e}", golden.name);
        assert!(apart <= 2e-5, "{}: {apart:e}", golden.name);
    }
}

/// The goldens of [`HYBRIDS`], and two of qwen3next, each with its architecture and whether an older
/// converter wrote it.
fn hybrids(directory: &Path) -> Vec<(&'static str, bool, Golden)> {
    let mut next = config(&golden("qwen3-next"));
    next["mlp_only_layers"] = serde_json::json!([]);
    next["num_hidden_layers"] = 4.into();
    next["full_attention_interval"] = 2.into();
    let prompts = || vec![vec![1, 5, 9, 40, 3, 8], vec![7]];
    let mut all: Vec<_> = HYBRIDS.map(|(kind, name)| (kind, false, golden(name))).into();
    for (name, older) in [("qwen3-next-all", false), ("qwen3-next-older", true)] {
        // Older converters left draft heads out.
        next["mtp_num_hidden_layers"] = u32::from(!older).into();
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
    assert_eq!(drafted, 3, "three of them have draft heads");
    compare_stacks("gguf-hybrids", built);
}

/// Goldens of Nemotron-H, each with its architecture: mixtures of the width of the model and of latents, a
/// draft head, dense blocks, groups of heads that are one.
fn nemotrons(directory: &Path) -> Vec<(&'static str, Golden)> {
    let of_all =
        ["nano", "super", "mtp"].map(|name| ("nemotron_h_moe", golden(&format!("nemotron-h-{name}"))));
    let mut dense = config(&golden("nemotron-h-few"));
    let keys = dense.as_object_mut().expect("configs are objects");
    // A config that says of experts is one of `nemotron_h_moe`.
    keys.retain(|key, _| !key.contains("expert"));
    dense["hybrid_override_pattern"] = "M-*-M-".into();
    let prompts = vec![vec![1, 5, 9, 40, 3, 8], vec![7]];
    let dense = synthetic(directory, "nemotron-h-dense", &dense, prompts);
    of_all.into_iter().chain([("nemotron_h", dense)]).collect()
}

/// The logits of a file of Nemotron-H, and those of drafts, are the checkpoint's but for the rounding of a
/// decay's rate; so are those of stacks. Where the rates are taken for logarithms they are far from it.
/// Planted, and seen here: the norm of the draft's first layer before its second.
#[test]
fn a_file_of_nemotron_h_is_the_model_that_it_was_converted_from() {
    let directory = tempfile::tempdir().expect("temporary directories can be made");
    let (mut built, mut drafted) = (Vec::new(), 0);
    for (architecture, golden) in nemotrons(directory.path()) {
        let plain = plain(&golden, directory.path());
        let file = converted(architecture, &golden, &plain, Format::F32);
        let imported = imported(&file, &golden.name, directory.path())
            .unwrap_or_else(|error| panic!("{}: {error}", golden.name));
        let own = own(&golden, &imported, directory.path());
        let weights = directory.path().join(format!("{}.gguf", golden.name));
        assert_eq!(own.quant.has_draft(), plain.quant.has_draft(), "{}", golden.name);
        let note = "# The context is what converters write of this family";
        assert!(own.model.context == 1 << 20 && imported.model_toml.contains(note), "{}", golden.name);
        drafted += usize::from(own.quant.has_draft());
        let expected = logits(&plain, &golden.directory.join("f32"), &golden.prompts);
        let found = logits(&own, &weights, &golden.prompts);
        let apart = distance(&found, &expected, own.model.vocabulary);
        println!("{}: {apart:.1e}", golden.name);
        assert!(apart <= 1e-5, "{}: {apart:e}\n{}", golden.name, imported.quants[0].1);
        let mut wrong = own.clone();
        wrong.quant.checkpoint.decay = Decay::default();
        let apart = distance(&logits(&wrong, &weights, &golden.prompts), &expected, own.model.vocabulary);
        println!("{}, rates for logarithms: {apart:.1e}", golden.name);
        assert!(apart > 1e-2, "{apart:e}");
        if golden.name == "nemotron-h-dense" {
            let card = loaded(&format!("h200/{}-gguf/f32", golden.name), directory.path());
            toolchain::plan(&card).unwrap_or_else(|error| panic!("{error}"));
        }
        if golden.name != "nemotron-h-super" {
            built.push((own, weights, golden, expected));
        }
    }
    assert_eq!(drafted, 1, "one of them has a draft head");
    compare_stacks("gguf-nemotron", built);
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
    let mut built = Vec::new();
    // As llama-quantize mixes them: more bits for values, and of delta-nets for q, k and v.
    let more = |name: &str| ["attn_v.", "attn_qkv."].iter().any(|part| name.contains(part));
    let mixed = move |name: &str| if more(name) { Format::Q8_0 } else { Format::Q5_1 };
    let same = |_: &str| Format::Q8_0;
    for format in ["q8_0", "q5_1"] {
        let stored: &dyn Fn(&str) -> Format = if format == "q8_0" { &same } else { &mixed };
        let golden =
            synthetic(directory.path(), &format!("blocks-of-a-hybrid-{format}"), &config, prompts.clone());
        let plain = plain(&golden, directory.path());
        let file = converted_in(false, "qwen35moe", &golden, &plain, stored);
        built.push(in_blocks(&golden, &plain, &file, format, &OF_TILED, directory.path()));
    }
    stacks_are_near("gguf-blocks", built, directory.path());
}

/// The gates and ups of Gemma's experts are rows of one tensor, and so are the projections of Mamba-2: both
/// may be blocks.
#[test]
fn blocks_of_gemma_and_of_nemotron_h_compute_what_the_interpreter_does() {
    let directory = tempfile::tempdir().expect("temporary directories can be made");
    let mut gemma = config(&golden("gemma4-few"));
    let mut nemotron = config(&golden("nemotron-h-super"));
    let of_gemma = [
        ("hidden_size", 64),
        ("intermediate_size", 96),
        ("moe_intermediate_size", 32),
        ("num_attention_heads", 4),
        ("head_dim", 32),
        ("global_head_dim", 64),
        ("num_experts", 4),
        ("top_k_experts", 4),
    ];
    let of_nemotron = [
        ("hidden_size", 64),
        ("head_dim", 32),
        ("mamba_num_heads", 4),
        ("mamba_head_dim", 16),
        ("n_groups", 2),
        ("moe_latent_size", 32),
        ("moe_intermediate_size", 32),
        ("moe_shared_expert_intermediate_size", 64),
        ("n_routed_experts", 4),
        ("num_experts_per_tok", 4),
    ];
    of_gemma.iter().for_each(|(key, size)| gemma[*key] = (*size).into());
    of_nemotron.iter().for_each(|(key, size)| nemotron[*key] = (*size).into());
    let cases: [(&str, serde_json::Value, &[&str]); 2] = [
        ("gemma4", gemma, &["rows = [32, 64], of = 64 }"]),
        ("nemotron_h_moe", nemotron, &["decay = \"negative-rate\"", "mamba-2 = \"q8_0\""]),
    ];
    let prompts = vec![(0..20).map(|at| at * 37 % 71).collect(), vec![7]];
    let mut built = Vec::new();
    for (architecture, config, lines) in cases {
        let golden =
            synthetic(directory.path(), &format!("blocks-of-{architecture}"), &config, prompts.clone());
        let plain = plain(&golden, directory.path());
        let file = converted(architecture, &golden, &plain, Format::Q8_0);
        built.push(in_blocks(&golden, &plain, &file, "q8_0", lines, directory.path()));
    }
    stacks_are_near("gguf-blocks-of-others", built, directory.path());
}

/// What a spec says of value heads in tiled order, and of what else the converter changed.
const OF_TILED: [&str; 3] =
    ["value_heads = \"tiled\"", "one_plus_norms = \"one-added\"", "decay = \"negative-rate\""];

/// The target of a file in blocks, its path, the golden, and what the interpreter says.
type InBlocks = (Target, PathBuf, Golden, Logits);

/// Builds the stacks of files as `name`, and compares them with the interpreter.
fn stacks_are_near(name: &str, files: Vec<InBlocks>, directory: &Path) {
    let targets: Vec<Target> = files.iter().map(|(target, ..)| target.clone()).collect();
    let binaries = stacks::build(name, &targets);
    for (binary, (own, weights, golden, expected)) in binaries.iter().zip(files) {
        let found = served(binary, &weights, &golden, directory);
        let apart = distance(&found, &expected, own.model.vocabulary);
        println!("{}: on a CPU {apart:.1e}", golden.name);
        assert!(apart <= 3e-2, "{}: {apart:e}", golden.name);
    }
}

/// A file in blocks, whose spec has these lines.
fn in_blocks(
    golden: &Golden,
    plain: &Target,
    file: &GgufWriter,
    format: &str,
    lines: &[&str],
    directory: &Path,
) -> InBlocks {
    let imported = imported(file, &golden.name, directory).unwrap_or_else(|error| panic!("{error}"));
    let (name, text) = &imported.quants[0];
    assert_eq!(*name, format!("{format}.toml"));
    for line in lines {
        assert!(text.contains(line), "{line}: {text}");
    }
    let own = own(golden, &imported, directory);
    let weights = directory.join(format!("{}.gguf", golden.name));
    let expected = logits(&own, &weights, &golden.prompts);
    // Of weights alone.
    let mut decoded = own.clone();
    decoded.quant.compute.classes.values_mut().for_each(|compute| *compute = Compute::F32);
    let rounded = logits(&decoded, &weights, &golden.prompts);
    let exact = logits(plain, &golden.directory.join("f32"), &golden.prompts);
    let mut rounded = rows_apart(&rounded, &exact, own.model.vocabulary);
    rounded.sort_by(f32::total_cmp);
    let rounded = rounded[rounded.len() / 2];
    println!("{}: rounding {rounded:.1e}", golden.name);
    let most = if format == "q8_0" { 6e-2 } else { 4e-1 };
    assert!(rounded <= most, "{rounded:e}");
    (own, weights, golden.clone(), expected)
}

#[test]
fn blocks_compute_in_int8_alone() {
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
