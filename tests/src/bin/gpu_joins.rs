//! `gpu_joins OUT`: test cases for batch-invariant servers on a machine with a card and without cargo; `cargo
//! xtask gpu` runs it. Writes `OUT/targets/`, specs; `OUT/stored/`, checkpoints; and `OUT/joins.json`, which
//! lists them with their prompts.

use monomorph_compiler::spec::types::Compute;
use monomorph_tests::joins::{TOKENS, store};
use serde_json::json;
use std::path::Path;

/// Dense, a mixture of experts, delta-nets with a mixture, and the same in the widths that the fast kernels
/// need.
const MODELS: [(&str, &str, Compute); 7] = [
    ("qwen3-deep", "bf16", Compute::F16),
    ("qwen3-moe", "bf16", Compute::F16),
    ("qwen3-next", "bf16", Compute::F16),
    ("qwen35-moe-text", "bf16", Compute::F16),
    ("wide", "bf16", Compute::F16),
    ("wide", "fp8-block128", Compute::F16),
    ("wide", "fp8-block128", Compute::Fp8),
];
const PROMPTS: usize = 160;

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [out] = arguments.as_slice() else {
        eprintln!("usage: gpu_joins OUT");
        std::process::exit(2);
    };
    let out = Path::new(out);
    let joins = MODELS.map(|(model, storage, compute)| {
        let stored = store(model, storage, compute, &out.join("targets"), &out.join("stored"));
        json!({
            "name": stored.name, "directory": stored.weights, "longest": stored.longest(), "tight": stored.tight(), "tokens": TOKENS,
            "prompts": stored.prompts(PROMPTS),
        })
    });
    std::fs::write(out.join("joins.json"), json!(joins).to_string()).expect("the directory is writable");
}
