//! Which targets can be built to draft, and what that costs.

use monomorph_compiler::spec;
use monomorph_compiler::spec::types::{BuildOptions, DraftOption, Target};
use std::path::Path;

const ONE: DraftOption = DraftOption { drafts: 1, vocabulary: None, forced_acceptance: None };

fn load(name: &str, option: &DraftOption) -> Result<Target, String> {
    let targets = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("a workspace").join("targets");
    let options = BuildOptions { draft: Some(*option), ..BuildOptions::default() };
    spec::load_with(&[targets], name, &options).map_err(|error| error.to_string())
}

#[test]
fn what_cannot_draft_is_refused_by_name() {
    let cases = [
        ("h200/llama-3.2-1b/bf16", ONE, "models/llama-3.2-1b/MODEL.toml", "has no draft head"),
        ("h200/qwen3.5-27b/nvfp4", ONE, "h200/qwen3.5-27b/nvfp4", "has no draft head"),
        ("h200/qwen3.5-35b/bf16", DraftOption { drafts: 0, ..ONE }, "--drafts", "1 to 3"),
        ("h200/qwen3.5-35b/bf16", DraftOption { drafts: 4, ..ONE }, "--drafts", "1 to 3"),
        ("h200/qwen3.5-35b/bf16", DraftOption { vocabulary: Some(0), ..ONE }, "--draft-vocabulary", "248320"),
        (
            "h200/qwen3.5-35b/bf16",
            DraftOption { vocabulary: Some(248_321), ..ONE },
            "--draft-vocabulary",
            "is 248321",
        ),
        (
            "h200/qwen3.5-35b/bf16",
            DraftOption { forced_acceptance: Some(1.5), ..ONE },
            "--forced-acceptance",
            "is 1.5",
        ),
    ];
    for (name, option, place, said) in cases {
        let error = load(name, &option).expect_err(name);
        assert!(error.contains(place) && error.contains(said), "{name}, {option:?}: {error}");
    }
}

#[test]
fn builds_of_a_target_have_names_of_their_own() {
    let build = |option: &DraftOption| {
        load("h200/qwen3.6-35b/fp8", option).unwrap_or_else(|error| panic!("{error}")).build()
    };
    let cut = DraftOption { drafts: 2, vocabulary: Some(32_768), forced_acceptance: None };
    assert_eq!(build(&ONE), "h200/qwen3.6-35b/fp8+mtp1");
    assert_eq!(build(&cut), "h200/qwen3.6-35b/fp8+mtp2-of-32768");
    let forced = DraftOption { forced_acceptance: Some(0.8), ..cut };
    assert_eq!(build(&forced), "h200/qwen3.6-35b/fp8+mtp2-of-32768-forced-0.8");
}

#[test]
fn a_draft_head_weighs_what_its_release_says() {
    // Megabytes of the draft layer as releases have it, and a layer of keys and values more.
    for (name, megabytes) in [("h200/qwen3.6-35b/fp8", 853.8), ("h200/qwen3.6-35b/nvfp4", 1689.3)] {
        let target = load(name, &ONE).unwrap_or_else(|error| panic!("{error}"));
        let (model, quant, kind) = (&target.model, &target.quant, &target.hardware.kind);
        let weights = |draft| spec::weight_bytes(model, quant, draft) as f64;
        let found = (weights(true) - weights(false)) / 1e6;
        assert!((found - megabytes).abs() < 1.0, "{name}: {found}");
        let block = |draft| spec::kv_block_bytes(model, quant, kind, draft);
        // 10 of the model's 40 layers attend.
        assert_eq!(block(true) * 10, block(false) * 11, "{name}");
    }
}
