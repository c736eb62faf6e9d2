//! Batch-invariant builds: allowed options, names, and programs.

use monomorph_compiler::plan::cuda::Regime;
use monomorph_compiler::spec::types::{BuildOptions, DraftMethod, DraftOption, Target};
use monomorph_compiler::{graph, passes, spec};
use std::path::Path;

const PLAIN: BuildOptions = BuildOptions {
    draft: None,
    batch_invariant: None,
    ranks: None,
    hosts: None,
    whole_experts: false,
    kv: None,
    vision: false,
    image_patches: None,
    profile: false,
};

fn load(name: &str, options: BuildOptions) -> Result<Target, String> {
    let targets = Path::new(env!("CARGO_MANIFEST_DIR")).join("../targets");
    spec::load_with(&[targets], name, &options).map_err(|error| error.to_string())
}

fn invariant(sequences: usize) -> BuildOptions {
    BuildOptions { batch_invariant: Some(sequences), ..PLAIN }
}

#[test]
fn what_cannot_be_built_is_refused_with_what_can() {
    let draft =
        Some(DraftOption { method: DraftMethod::Mtp, drafts: 1, vocabulary: None, forced_acceptance: None });
    for (target, options, message, help) in [
        (
            "h200/qwen3.5-35b/nvfp4",
            invariant(0),
            "`--batch-invariant` is 0",
            "one of 1, 2, 4, 8, 16, 32, 64, 128",
        ),
        (
            "h200/qwen3.5-35b/nvfp4",
            invariant(12),
            "`--batch-invariant` is 12",
            "one of 1, 2, 4, 8, 16, 32, 64, 128",
        ),
        ("h200/qwen3.5-35b/nvfp4", invariant(256), "`--batch-invariant` is 256", "one of 1, 2, 4, 8"),
        ("cpu/smollm2-135m/q4_1", invariant(8), "runs on a CPU", "build it without"),
        (
            "h200/qwen3.5-35b/nvfp4",
            BuildOptions { draft, ..invariant(8) },
            "`--batch-invariant` and `--draft`",
            "give one of the two",
        ),
    ] {
        let error = load(target, options).map(|it| it.build()).expect_err("it is refused");
        assert!(error.contains(message) && error.contains(help), "{target}: {error}");
    }
}

#[test]
fn it_has_one_program_of_each_kind_and_a_name_of_its_own() {
    for (name, chunk_alignment) in [("h200/qwen3.5-35b/nvfp4", 64), ("h200/llama-3.1-8b/fp8", 1)] {
        let programs = |options: BuildOptions| {
            let target = load(name, options).unwrap_or_else(|error| panic!("{error}"));
            let plan = passes::assemble::plan(&target, &graph::build(&target.model, &target.quant));
            let plan = plan.unwrap_or_else(|error| panic!("{error}"));
            let cuda = plan.cuda.as_ref().expect("a CUDA target has a CUDA plan");
            assert_eq!(cuda.chunk_alignment, chunk_alignment, "{name}");
            let of = |regime| cuda.programs.iter().filter(move |it| it.regime == regime);
            let decode: Vec<usize> = of(Regime::Decode).map(|it| it.sequences).collect();
            (target.build(), plan.buckets.sequences, decode, of(Regime::Prefill).count())
        };
        assert_eq!(programs(invariant(8)), (format!("{name}+invariant8"), 8, vec![8], 1));
        let (build, sequences, decode, prefill) = programs(PLAIN);
        assert_eq!((build.as_str(), sequences, decode.len(), prefill), (name, 128, 8, 3));
    }
}
