//! Models whose matrices side by side have formats of their own, as files of llama.cpp do.

use monomorph_compiler::spec::types::Target;
use monomorph_compiler::{report, toolchain};
use monomorph_formats::Format;
use monomorph_tests::converted::converted_in;
use monomorph_tests::gguf_files::{imported, loaded, logits, own, plain, served};
use monomorph_tests::goldens::{Golden, synthetic};
use monomorph_tests::logits::{Logits, distance};
use monomorph_tests::stacks;
use serde_json::{Value, json};
use std::path::{Path, PathBuf};

/// A model in a file, and what the interpreter says of that file.
struct Mixed {
    golden: Golden,
    target: Target,
    weights: PathBuf,
    expected: Logits,
    /// What the stack may be from it.
    near: f32,
}

/// The model of `config` in a file of `architecture`, each tensor in the first format whose part of a name it
/// has; the rest in `rest`.
fn mixed(
    (name, architecture): (&str, &str),
    config: &Value,
    formats: &[(&str, Format)],
    rest: Format,
    directory: &Path,
) -> Mixed {
    let prompts = vec![(0..20).map(|at| at * 37 % 96).collect(), vec![7]];
    let golden = synthetic(directory, name, config, prompts);
    let plain = plain(&golden, directory);
    let stored = |name: &str| {
        let known = formats.iter().find(|(part, _)| name.contains(part));
        known.map_or(rest, |(_, format)| *format)
    };
    let file = converted_in(false, architecture, &golden, &plain, &stored);
    let imported = imported(&file, name, directory).unwrap_or_else(|error| panic!("{name}: {error}"));
    let target = own(&golden, &imported, directory);
    let weights = directory.join(format!("{name}.gguf"));
    let expected = logits(&target, &weights, &golden.prompts);
    let near = if rest.is_quantised() { 3e-2 } else { 2e-5 };
    Mixed { golden, target, weights, expected, near }
}

/// Two layers with biases, of which the first has other formats than the second.
fn dense(directory: &Path) -> Mixed {
    let config = json!({
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": 96, "hidden_size": 64,
        "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
        "head_dim": 16, "hidden_act": "silu", "max_position_embeddings": 256, "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0, "attention_bias": true, "mlp_bias": true, "tie_word_embeddings": false,
        "dtype": "float32",
    });
    let formats = [
        ("blk.0.attn_v.weight", Format::F16),
        ("blk.0.attn_k.weight", Format::Bf16),
        ("blk.0.ffn_gate.weight", Format::Bf16),
        ("blk.1.ffn_up.weight", Format::F16),
    ];
    mixed(("mixed-dense", "llama"), &config, &formats, Format::F32, directory)
}

/// A delta-net with so many value heads, attention and a mixture with a shared expert.
fn hybrid(value_heads: usize, directory: &Path) -> Mixed {
    let config = json!({
        "architectures": ["Qwen3_5MoeForCausalLM"], "model_type": "qwen3_5_moe_text", "vocab_size": 96,
        "hidden_size": 64, "num_hidden_layers": 2, "full_attention_interval": 2, "num_attention_heads": 2,
        "num_key_value_heads": 1, "head_dim": 32, "hidden_act": "silu", "max_position_embeddings": 256,
        "rms_norm_eps": 1e-6, "tie_word_embeddings": false, "linear_conv_kernel_dim": 4,
        "linear_key_head_dim": 16, "linear_value_head_dim": 16, "linear_num_key_heads": value_heads / 2,
        "linear_num_value_heads": value_heads, "moe_intermediate_size": 48, "shared_expert_intermediate_size": 40,
        "num_experts": 16, "num_experts_per_tok": 4, "dtype": "float32", "attn_output_gate": true,
        "rope_parameters": { "rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.25 },
    });
    let formats = [
        ("attn_gate", Format::F16),
        ("ssm_alpha", Format::Bf16),
        ("attn_k.", Format::F16),
        ("ffn_up_exps", Format::Bf16),
        ("ffn_gate_shexp", Format::F16),
        ("ffn_gate_inp_shexp", Format::Bf16),
    ];
    mixed(("mixed-hybrid", "qwen35moe"), &config, &formats, Format::F32, directory)
}

/// A mixture in blocks of 256, one matrix of which was left in floats. All experts are chosen, so that
/// rounding chooses no others.
fn blocks(directory: &Path) -> Mixed {
    let config = json!({
        "architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "vocab_size": 96,
        "hidden_size": 256, "intermediate_size": 256, "num_hidden_layers": 2, "num_attention_heads": 4,
        "num_key_value_heads": 2, "head_dim": 64, "hidden_act": "silu", "max_position_embeddings": 256,
        "rms_norm_eps": 1e-6, "rope_theta": 10000.0, "tie_word_embeddings": false, "attention_bias": false,
        "moe_intermediate_size": 256, "num_experts": 4, "num_experts_per_tok": 4, "norm_topk_prob": true,
        "decoder_sparse_step": 1, "mlp_only_layers": [], "dtype": "float32",
    });
    let formats = [
        ("blk.1.attn_v.", Format::Q6K),
        ("blk.0.attn_output.", Format::Bf16),
        ("blk.1.attn_q.", Format::F16),
        ("blk.0.ffn_up_exps", Format::Q5K),
        ("blk.1.ffn_gate_exps", Format::Q3K),
        ("ffn_down_exps", Format::Q6K),
    ];
    mixed(("mixed-blocks", "qwen3moe"), &config, &formats, Format::Q4K, directory)
}

/// Stacks compute what the interpreter does of the same files, each product in its own formats.
///
/// Planted, and seen here: up and gate exchanged where they are two products; sums of up that take the place
/// of gates instead of multiplying them; the row that weighs a shared expert left out.
#[test]
fn stacks_multiply_by_each_format() {
    let directory = tempfile::tempdir().expect("temporary directories can be made");
    let models = [dense(directory.path()), hybrid(16, directory.path()), blocks(directory.path())];
    let targets: Vec<Target> = models.iter().map(|it| it.target.clone()).collect();
    let binaries = stacks::build("mixed-formats", &targets);
    let mut far = Vec::new();
    for (binary, Mixed { golden, target, weights, expected, near }) in binaries.iter().zip(&models) {
        let found = served(binary, weights, golden, directory.path());
        let apart = distance(&found, expected, target.model.vocabulary);
        println!("{}: {apart:.1e}", golden.name);
        far.extend((apart > *near).then(|| format!("{}: {apart:e}", golden.name)));
    }
    assert!(far.is_empty(), "{far:?}");
}

/// `explain` names what is multiplied apart, and says so of layers alone that have two formats.
#[test]
fn a_plan_says_what_it_multiplies_apart() {
    let directory = tempfile::tempdir().expect("temporary directories can be made");
    let plan = toolchain::plan(&dense(directory.path()).target).unwrap_or_else(|error| panic!("{error}"));
    let text = report::text(&plan);
    let said: Vec<&str> =
        text.lines().filter_map(|line| line.split_once("differ: ")).map(|it| it.1).collect();
    assert_eq!(
        said,
        [
            "attention_q in f32, attention_k in bf16, attention_v in f16",
            "ffn_gate in bf16, ffn_up in f32",
            "ffn_gate in f32, ffn_up in f16"
        ],
        "{text}"
    );
    let plan =
        toolchain::plan(&hybrid(16, directory.path()).target).unwrap_or_else(|error| panic!("{error}"));
    let text = report::text(&plan);
    let router = "ffn_router in f32, ffn_shared_scale in bf16";
    assert!(text.contains(router), "{text}");
}

/// What a CPU cannot take and what a card cannot are refused by the tensors' names.
#[test]
fn formats_that_no_kernel_takes_beside_each_other_are_refused_by_name() {
    let directory = tempfile::tempdir().expect("temporary directories can be made");
    let name = dense(directory.path()).target.name().replacen("cpu/", "h200/", 1);
    let card = loaded(&name, directory.path());
    let error = toolchain::plan(&card).expect_err("a card takes one").to_string();
    let wanted = "`layers.{layer}.attention.q` and `layers.{layer}.attention.k` are fused in";
    assert!(error.contains(wanted), "{error}");
    // The second product of gates would begin within a vector.
    let few = hybrid(4, directory.path()).target;
    let error = toolchain::plan(&few).expect_err("heads are few").to_string();
    let wanted = "`layers.{layer}.delta.b` is f32 and `layers.{layer}.delta.a` is bf16: products of several \
                  formats side by side need 16 rows or a multiple each, and the first have 4";
    assert!(error.contains(wanted), "{error}");
}
