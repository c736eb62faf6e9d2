//! CUDA servers of two ranks on two emulated cards (tests/emulated): each rank a host thread with its part of
//! the weights, exchanging sums and logits through each other's memory. Logits are the interpreter's, which
//! knows of no ranks, and answers are those of a server of one rank.

use monomorph_compiler::spec;
use monomorph_compiler::spec::types::{BuildOptions, Compute, Target};
use monomorph_formats::Format;
use monomorph_tests::emulated;
use monomorph_tests::feedings::{Case, EXACT, case, run};
use monomorph_tests::goldens::golden;
use monomorph_tests::requantise::{Storage, requantise};
use monomorph_tests::root;
use std::path::Path;

/// Largest distance between rows whose operands are rounded to f16.
const ROUNDED: f32 = 3e-2;

/// A golden on a kind of card: exact, or stored and computed in 16 bits.
struct Kind {
    hardware: &'static str,
    golden: &'static str,
    exact: bool,
}

const fn exact(hardware: &'static str, golden: &'static str) -> Kind {
    Kind { hardware, golden, exact: true }
}

const fn rounded(hardware: &'static str, golden: &'static str) -> Kind {
    Kind { hardware, golden, exact: false }
}

fn load(targets: &Path, name: &str, ranks: usize) -> Target {
    let options = BuildOptions { ranks: Some(ranks), ..BuildOptions::default() };
    let search = [targets.to_owned(), root().join("targets")];
    spec::load_with(&search, name, &options).unwrap_or_else(|error| panic!("{error}"))
}

/// A server of two ranks for a golden of sizes that ranks can share, with the interpreter's logits.
fn two_ranks(directory: &Path, kind: &Kind) -> Case {
    let targets = directory.join("targets");
    let hardware = emulated::hardware(&targets, kind.hardware, Some(emulated::FEW));
    let small = golden(kind.golden);
    let mut golden = small.for_ranks(&directory.join(kind.golden));
    golden.import_into(&targets, Compute::F16);
    let name = |quant: &str| format!("{hardware}/{}/{quant}", golden.name);
    let plain = load(&targets, &name("f32"), 1);
    let (target, weights) = if kind.exact {
        (load(&targets, &name("f32"), 2), golden.directory.join("f32"))
    } else {
        let storage = Storage::ALL.iter().find(|it| it.name == "bf16").expect("there is such a storage");
        let out = directory.join("stored").join(kind.golden);
        let quant = requantise(&golden, &plain, storage, Compute::F16, Format::Bf16, &targets, &out);
        (load(&targets, &name(&quant), 2), out.join("stored"))
    };
    golden.prompts = small.prompts;
    golden.prompts.iter_mut().flatten().for_each(|id| *id %= target.model.vocabulary as u32);
    let case = case(target, &golden, &weights, None, if kind.exact { EXACT } else { ROUNDED });
    case.unwrap_or_else(|| panic!("{} is refused", kind.golden))
}

/// Quick enough for every run of the checks: attention and dense layers, delta-nets and experts.
#[test]
fn two_ranks_agree_with_the_interpreter() {
    let directory = tempfile::tempdir().expect("temporary directories can be made");
    let mut wrong = Vec::new();
    let feedings = ["prompts", "prompts together", "steps behind prompts", "9 and fewer"];
    run(Some(two_ranks(directory.path(), &exact("h200", "llama-aligned"))), &mut wrong, &feedings);
    run(Some(two_ranks(directory.path(), &rounded("h200", "qwen35-moe-text"))), &mut wrong, &feedings[1..]);
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// The other kind of card, Mamba, experts without a shared one, a K/V head that both ranks hold.
/// `MONOMORPH_GOLDENS` as in `emulated.rs`.
#[test]
#[ignore = "minutes"]
fn two_ranks_of_other_goldens_agree_with_the_interpreter() {
    let directory = tempfile::tempdir().expect("temporary directories can be made");
    let wanted = std::env::var("MONOMORPH_GOLDENS").unwrap_or_default();
    let mut wrong = Vec::new();
    let others = [
        exact("gb10", "llama-aligned"),
        rounded("gb10", "qwen3-moe"),
        exact("gb10", "qwen35-quarters"),
        exact("h200", "qwen35-text"),
        rounded("h200", "nemotron-h-mamba"),
        rounded("h200", "qwen3-next"),
        exact("h200", "llama-multi-query"),
    ];
    for kind in others {
        let full = format!("{}/{}", kind.hardware, kind.golden);
        if wanted.is_empty() || wanted.split(',').any(|it| full.contains(it)) {
            run(Some(two_ranks(directory.path(), &kind)), &mut wrong, &[]);
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
