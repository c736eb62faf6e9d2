//! CUDA servers of two ranks on two emulated cards (tests/emulated): each rank a host thread with its part of
//! the weights, exchanging sums and logits through each other's memory. Logits are the interpreter's, which
//! knows of no ranks, and answers are those of a server of one rank.

use monomorph_compiler::spec;
use monomorph_compiler::spec::types::{BuildOptions, Compute, Target};
use monomorph_tests::crowd::{Random, Request, crowd, with_tokenizer};
use monomorph_tests::emulated;
use monomorph_tests::feedings::{Case, EXACT, case, run};
use monomorph_tests::goldens::{Golden, golden};
use monomorph_tests::root;
use monomorph_tests::server::{Serving, stats};
use serde_json::json;
use std::path::Path;
use std::time::Instant;

/// What a golden's target is for so many ranks of a kind of card.
fn target(targets: &Path, hardware: &str, golden: &Golden, ranks: usize) -> Target {
    golden.import_into(targets, Compute::F16);
    let search = [targets.to_owned(), root().join("targets")];
    let options = BuildOptions { ranks: Some(ranks), ..BuildOptions::default() };
    let target = spec::load_with(&search, &format!("{hardware}/{}/f32", golden.name), &options);
    target.unwrap_or_else(|error| panic!("{error}"))
}

/// A server of two ranks for a golden of sizes that ranks can share, with the interpreter's logits.
fn two_ranks(directory: &Path, hardware: &str, name: &str) -> Case {
    let targets = directory.join("targets");
    let hardware = emulated::hardware(&targets, hardware, Some(emulated::FEW));
    let golden = golden(name).for_ranks(&directory.join(name));
    let target = target(&targets, &hardware, &golden, 2);
    let case = case(target, &golden, &golden.directory.join("f32"), None, EXACT);
    case.unwrap_or_else(|| panic!("{name} is refused"))
}

/// Quick enough for every run of the checks: attention and dense layers, delta-nets and experts.
#[test]
fn two_ranks_agree_with_the_interpreter() {
    let directory = tempfile::tempdir().expect("temporary directories can be made");
    let mut wrong = Vec::new();
    let feedings = ["prompts", "prompts together", "steps behind prompts", "9 and fewer"];
    run(Some(two_ranks(directory.path(), "h200", "llama-aligned")), &mut wrong, &feedings);
    run(Some(two_ranks(directory.path(), "h200", "qwen35-moe-text")), &mut wrong, &feedings[1..]);
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// The other kind of card, Mamba, layers of experts without a shared one. `MONOMORPH_GOLDENS` as in
/// `emulated.rs`.
#[test]
#[ignore = "minutes"]
fn two_ranks_of_other_goldens_agree_with_the_interpreter() {
    let directory = tempfile::tempdir().expect("temporary directories can be made");
    let wanted = std::env::var("MONOMORPH_GOLDENS").unwrap_or_default();
    let mut wrong = Vec::new();
    let others = [
        ("gb10", "llama-aligned"),
        ("gb10", "qwen3-moe"),
        ("gb10", "qwen35-quarters"),
        ("h200", "nemotron-h-mamba"),
        ("h200", "qwen3-next"),
        ("h200", "llama-multi-query"),
    ];
    for (hardware, name) in others {
        let full = format!("{hardware}/{name}/f32");
        if wanted.is_empty() || wanted.split(',').any(|it| full.contains(it)) {
            run(Some(two_ranks(directory.path(), hardware, name)), &mut wrong, &[]);
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
