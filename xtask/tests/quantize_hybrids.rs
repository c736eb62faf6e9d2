//! `cargo xtask quantize` of models with delta-nets and experts, from a GGUF file and from safetensors: what
//! it writes imports as it was asked for, holds what the formats' encoders make of the source, and a stack
//! computes of it what the interpreter does.

use monomorph_compiler::import::{Seen, import};
use monomorph_compiler::spec::types::{Compute, Target};
use monomorph_formats::{Format, decode, encode};
use monomorph_tests::converted::{config, converted};
use monomorph_tests::gguf_files::{imported, loaded, logits, own, plain, served};
use monomorph_tests::goldens::{Golden, golden, synthetic};
use monomorph_tests::logits::{Logits, distance, rows_apart};
use monomorph_tests::stacks;
use monomorph_weights::Checkpoint;
use serde_json::{Value, json};
use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

/// What was written, its target, and what the interpreter says of it.
struct Made {
    golden: Golden,
    target: Target,
    weights: PathBuf,
    expected: Logits,
    /// What the stack may be from it.
    near: f32,
}

fn prompts() -> Vec<Vec<u32>> {
    vec![(0..20).map(|at| at * 37 % 96).collect(), vec![7]]
}

/// Runs the verb for a target of a CPU in `targets`.
fn quantize(targets: &Path, target: &str, weights: &Path, out: &Path, more: &[&str]) -> String {
    let output = Command::new(env!("CARGO_BIN_EXE_xtask"))
        .args(["quantize", "--target", target, "--targets-dir"])
        .arg(targets)
        .arg("--weights")
        .arg(weights)
        .arg("--out")
        .arg(out)
        .args(more)
        .output()
        .expect("it runs");
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).expect("it prints UTF-8");
    assert!(output.status.success(), "{target}: {}", text(output.stderr));
    text(output.stdout)
}

fn bytes(checkpoint: &Checkpoint, name: &str) -> Vec<u8> {
    checkpoint.tensor(name).expect("it has it").bytes.read().expect("it is readable").to_vec()
}

/// What is lost moves half of the rows by some, and not by as much as other weights would.
fn rounding(name: &str, found: &Logits, original: &Logits, vocabulary: usize) {
    let mut rows = rows_apart(found, original, vocabulary);
    rows.sort_by(f32::total_cmp);
    let half = rows[rows.len() / 2];
    println!("{name}: rounding moves half of the rows by {half:.1e}");
    assert!((5e-3..=0.5).contains(&half), "{name}: {half:e}");
}

/// A hybrid whose widths fill blocks of 256. All experts are chosen, so that rounding chooses no others.
fn hybrid(hidden: usize) -> Value {
    json!({
        "architectures": ["Qwen3_5MoeForCausalLM"], "model_type": "qwen3_5_moe_text", "vocab_size": 96,
        "hidden_size": hidden, "num_hidden_layers": 2, "full_attention_interval": 2, "num_attention_heads": 4,
        "num_key_value_heads": 2, "head_dim": 64, "hidden_act": "silu", "max_position_embeddings": 256,
        "rms_norm_eps": 1e-6, "tie_word_embeddings": false, "linear_conv_kernel_dim": 4,
        "linear_key_head_dim": 64, "linear_value_head_dim": 64, "linear_num_key_heads": 2,
        "linear_num_value_heads": 4, "moe_intermediate_size": hidden, "shared_expert_intermediate_size": hidden,
        "num_experts": 4, "num_experts_per_tok": 4, "dtype": "float32", "attn_output_gate": true,
        "rope_parameters": { "rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.25 },
    })
}

/// A GGUF file as `Q4_K_M` mixes formats, of one in f32.
fn of_gguf(directory: &Path) -> Made {
    let golden = synthetic(directory, "quantized-hybrid", &hybrid(256), prompts());
    let file = converted("qwen35moe", &golden, &plain(&golden, directory), Format::F32);
    let read = imported(&file, &golden.name, directory).unwrap_or_else(|error| panic!("{error}"));
    let source = directory.join("quantized-hybrid.gguf");
    let whole = own(&golden, &read, directory);

    // The spec of the file that is wanted: that of the source with other formats.
    let mut text = read.quants[0].1.clone();
    let mut computes = "\n[compute]\n".to_owned();
    for class in ["embedding", "attention", "delta-net", "experts", "shared", "head"] {
        let (was, is) = (format!("\n{class} = \"f32\""), format!("\n{class} = \"q4_k\""));
        assert!(text.contains(&was), "{class}: {text}");
        text = text.replacen(&was, &is, 1);
        writeln!(computes, "{class} = \"int8-block32\"").expect("strings are writable");
    }
    let more = "\"layers.{layer}.attention.v\" = \"q6_k\"\n\"layers.{layer}.delta.v\" = \"q6_k\"\n\
                \"layers.{layer}.delta.q\" = \"q6_k\"\n\"layers.{layer}.delta.k\" = \"q6_k\"\n\
                \"layers.{layer}.ffn.experts.{expert}.down\" = \"q6_k\"\n\"layers.{layer}.ffn.shared.up\" = \"q5_k\"\n";
    let text = text.replacen("\n[kv]\n", &format!("{more}{computes}\n[kv]\n"), 1);
    let models = directory.join("models").join(format!("{}-gguf", golden.name));
    std::fs::write(models.join("wanted.toml"), text).expect("it is writable");
    let wanted = format!("cpu/{}-gguf/wanted", golden.name);
    let out = directory.join("made-gguf");
    quantize(directory, &wanted, &source, &out, &[]);

    // It imports as what was asked for.
    let made = out.join("model.gguf");
    let checkpoint = Checkpoint::open(&made).unwrap_or_else(|error| panic!("{error}"));
    let again = monomorph_compiler::import::import_gguf(
        &checkpoint,
        "quantized-hybrid",
        Compute::F32,
        &Seen::of(&checkpoint),
    )
    .unwrap_or_else(|error| panic!("{error}"));
    let target = own(&golden, &again, directory);
    let wanted = loaded(&wanted, directory);
    let draft = wanted.quant.has_draft();
    let formats = |target: &Target| {
        let tensors = monomorph_compiler::spec::stored_tensors(&target.model, &target.quant);
        let format =
            |name: &str, class| (target.quant.stored.of(class, name), target.quant.compute.of(class, name));
        tensors.iter().map(|it| (it.name.clone(), format(&it.name, it.class))).collect::<Vec<_>>()
    };
    assert_eq!(draft, target.quant.has_draft());
    assert_eq!(formats(&target), formats(&wanted), "{}", again.quants[0].1);

    // Every tensor is what the format's encoder makes of the source's, shapes and all.
    let from = Checkpoint::open(&source).unwrap_or_else(|error| panic!("{error}"));
    let mut kinds = std::collections::BTreeSet::new();
    for tensor in from.tensors() {
        let it = checkpoint.tensor(tensor.name).unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(it.shape, tensor.shape, "{}", tensor.name);
        let mut values = vec![0.0; tensor.shape.iter().product()];
        decode(tensor.format, &bytes(&from, tensor.name), &mut values);
        assert!(bytes(&checkpoint, tensor.name) == encode(it.format, &values), "{}", tensor.name);
        kinds.insert(it.format.name());
    }
    assert_eq!(kinds.into_iter().collect::<Vec<_>>(), ["f32", "q4_k", "q5_k", "q6_k"]);
    let expected = logits(&target, &made, &golden.prompts);
    let original = logits(&whole, &source, &golden.prompts);
    rounding(&golden.name, &expected, &original, target.model.vocabulary);
    // Where a sum differs in its last bit an activation may be rounded to its other neighbour, and these
    // weights make that ten times as large.
    Made { golden, target, weights: made, expected, near: 5e-2 }
}

/// Safetensors in the form that `quantization` of a config says, of those of `config` in f32.
fn of_safetensors(name: &str, config: &Value, quantization: Value, quant: &str, directory: &Path) -> Made {
    let golden = synthetic(directory, name, config, prompts());
    golden.import_into(directory, Compute::F32);
    let source = golden.directory.join("f32");
    std::fs::copy(golden.directory.join("config.json"), source.join("config.json")).expect("it is writable");
    let models = directory.join("models").join(name);
    let read = |config: &str, beside: &Path| {
        let seen = Seen::read(beside).unwrap_or_else(|error| panic!("{name}: {error}"));
        let read =
            import(config, name, Compute::F32, &seen).unwrap_or_else(|error| panic!("{name}: {error}"));
        let (_, text) =
            read.quants.into_iter().find(|(file, _)| *file == format!("{quant}.toml")).expect("its quant");
        std::fs::write(models.join(format!("{quant}.toml")), &text).expect("it is writable");
        text
    };
    let mut quantized = config.clone();
    quantized["quantization_config"] = quantization;
    let alone = tempfile::tempdir().expect("temporary directories can be made");
    std::fs::write(alone.path().join("config.json"), quantized.to_string()).expect("it is writable");
    read(&quantized.to_string(), alone.path());
    let (target, out) = (format!("cpu/{name}/{quant}"), directory.join(format!("made-{name}")));
    let wanted = loaded(&target, directory);
    quantize(directory, &target, &source, &out, &["--from", "f32"]);

    // It imports as what was asked for, by what its own config and tensors say.
    let written = std::fs::read_to_string(out.join("config.json")).expect("it was written");
    let text = read(&written, &out);
    let target = loaded(&target, directory);
    assert_eq!(target.quant.stored, wanted.quant.stored, "{text}");
    assert_eq!(target.quant.scales, wanted.quant.scales, "{text}");
    let expected = logits(&target, &out, &golden.prompts);
    let plain = loaded(&format!("cpu/{name}/f32"), directory);
    let original = logits(&plain, &source, &golden.prompts);
    rounding(name, &expected, &original, target.model.vocabulary);
    Made { golden, target, weights: out, expected, near: 2e-5 }
}

/// Qwen3-Next in fp8 by blocks, whose q, k, v and z stand in one tensor as rows of each key head.
fn of_next(directory: &Path) -> Made {
    let mut next = config(&golden("qwen3-next"));
    for (key, value) in [
        ("mlp_only_layers", json!([])),
        ("num_hidden_layers", 2.into()),
        ("full_attention_interval", 2.into()),
        ("mtp_num_hidden_layers", 0.into()),
        ("hidden_size", 128.into()),
        ("head_dim", 128.into()),
        ("linear_num_key_heads", 1.into()),
        ("linear_num_value_heads", 2.into()),
        ("linear_key_head_dim", 128.into()),
        ("linear_value_head_dim", 128.into()),
        ("moe_intermediate_size", 128.into()),
        ("shared_expert_intermediate_size", 128.into()),
        ("num_experts", 4.into()),
        ("num_experts_per_tok", 4.into()),
        ("vocab_size", 96.into()),
    ] {
        next[key] = value;
    }
    let left = ["linear_attn.in_proj_ba", "linear_attn.conv1d", "mlp.gate", "mlp.shared_expert_gate"];
    let left = (0..2).flat_map(|layer| left.map(|module| format!("model.layers.{layer}.{module}")));
    let left: Vec<String> = left.chain(["lm_head".to_owned()]).collect();
    let fp8 = json!({
        "quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic", "weight_block_size": [128, 128],
        "modules_to_not_convert": left,
    });
    of_safetensors("quantized-next", &next, fp8, "fp8", directory)
}

/// Qwen3.5 with experts in nvfp4, of experts that stand in one tensor.
fn of_stacked(directory: &Path) -> Made {
    let nvfp4 = json!({
        "quant_method": "modelopt", "quant_algo": "NVFP4", "group_size": 16,
        "ignore": ["lm_head", "*.mlp.gate", "*.mlp.shared_expert_gate", "*.linear_attn.in_proj_a",
            "*.linear_attn.in_proj_b", "*.linear_attn.conv1d"],
    });
    of_safetensors("quantized-stacked", &hybrid(128), nvfp4, "nvfp4", directory)
}

/// Formats, bytes and shapes of the GGUF file are compared tensor by tensor, and of all three the logits.
#[test]
fn hybrids_are_quantized_and_compute_what_their_files_say() {
    let directory = tempfile::tempdir().expect("temporary directories can be made");
    let made = [of_gguf(directory.path()), of_next(directory.path()), of_stacked(directory.path())];
    let targets: Vec<Target> = made.iter().map(|it| it.target.clone()).collect();
    let binaries = stacks::build("quantized-hybrids", &targets);
    let mut far = Vec::new();
    for (binary, Made { golden, target, weights, expected, near }) in binaries.iter().zip(&made) {
        let found = served(binary, weights, golden, directory.path());
        let apart = distance(&found, expected, target.model.vocabulary);
        println!("{} on a CPU: {apart:.1e}", golden.name);
        far.extend((apart > *near).then(|| format!("{}: {apart:e}", golden.name)));
    }
    assert!(far.is_empty(), "{far:?}");
}
