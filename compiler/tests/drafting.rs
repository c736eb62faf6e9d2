//! Which targets can be built to draft, and the cost.

use monomorph_compiler::plan::Plan;
use monomorph_compiler::plan::cuda::{Argument, Constant, Launch, Regime};
use monomorph_compiler::spec::types::{BuildOptions, DraftMethod, DraftOption, Target};
use monomorph_compiler::{graph, passes, spec};
use std::collections::BTreeSet;
use std::path::Path;

const ONE: DraftOption =
    DraftOption { method: DraftMethod::Mtp, drafts: 1, vocabulary: None, forced_acceptance: None };

fn load(name: &str, option: &DraftOption) -> Result<Target, String> {
    let targets = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("a workspace").join("targets");
    let options = BuildOptions { draft: Some(*option), ..BuildOptions::default() };
    spec::load_with(&[targets], name, &options).map_err(|error| error.to_string())
}

fn plan(target: &Target) -> Plan {
    let plan = passes::assemble::plan(target, &graph::build(&target.model, &target.quant));
    plan.unwrap_or_else(|error| panic!("{error}"))
}

#[test]
fn what_cannot_draft_is_refused_by_name() {
    let cases = [
        ("h200/llama-3.2-1b/bf16", ONE, "models/llama-3.2-1b/MODEL.toml", "has no draft head"),
        ("h200/qwen3.5-27b/nvfp4", ONE, "h200/qwen3.5-27b/nvfp4", "has no draft head"),
        ("h200/llama-3.2-1b/bf16", SKIPPING, "models/llama-3.2-1b/MODEL.toml", "has no recurrent layers"),
        (
            "cpu/smollm2-135m/q4_1",
            SKIPPING,
            "models/smollm2-135m/MODEL.toml",
            "`--draft ngram` drafts for any",
        ),
        ("h200/qwen3.5-35b/bf16", DraftOption { drafts: 8, ..SKIPPING }, "--drafts", "1 to 7"),
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

/// Drafts by the model without its recurrent layers.
const SKIPPING: DraftOption = DraftOption { method: DraftMethod::Layers, drafts: 2, ..ONE };

#[test]
fn a_hybrid_can_be_built_to_draft_without_its_recurrent_layers() {
    for (name, layers) in
        [("h200/qwen3.5-0.8b/bf16", 6), ("h200/qwen3.5-35b/nvfp4", 10), ("h200/qwen3-next-80b/nvfp4", 12)]
    {
        let target = load(name, &SKIPPING).unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(target.build(), format!("{name}+self2"));
        let looked_up =
            load(name, &DraftOption { drafts: 2, ..LOOKED_UP }).unwrap_or_else(|error| panic!("{error}"));
        let (plan, other) = (plan(&target), plan(&looked_up));
        assert_eq!(
            (plan.memory.weights, plan.memory.kv_block, plan.memory.state),
            (other.memory.weights, other.memory.kv_block, other.memory.state),
            "{name}: passes use what is there"
        );
        let cuda = plan.cuda.as_ref().expect("a CUDA target has a CUDA plan");
        let of = |regime: Regime| cuda.programs.iter().filter(move |it| it.regime == regime);
        // All passes are in the programs of passes, which have one pass per draft.
        assert!(of(Regime::Decode).chain(of(Regime::Learn)).all(|it| it.passes.is_empty()), "{name}");
        assert_eq!(of(Regime::Decode).count(), of(Regime::Draft).count(), "{name}");
        let attends = |body: &str| body.contains("attention");
        for program in of(Regime::Draft) {
            let bodies: Vec<&str> =
                program.passes.iter().map(|(body, _)| plan.bodies[body.0].name.as_str()).collect();
            assert_eq!(bodies.len(), 6, "{name}: {bodies:?}");
            for pass in bodies.chunks(3) {
                assert!(
                    pass[0] == "embed" && attends(pass[1]) && pass[2] == "draft_head",
                    "{name}: {pass:?}"
                );
            }
            // Their kernels get no recurrent state, and every header is a pass's.
            for argument in program.launches().flat_map(|launch| &launch.arguments) {
                assert!(!matches!(argument, Argument::State(..) | Argument::Step), "{name}: {argument:?}");
            }
        }
        let attending = plan.attending().count();
        assert_eq!((attending, plan.draft_schedule().len()), (layers, 2 * (2 + layers)), "{name}");
        // A pass attends to K/V that the same graph wrote, so it loads them only after that.
        let kernels = cuda.modules.iter().filter(|module| module.name.starts_with("draft_"));
        let mut attention = 0;
        for kernel in
            kernels.flat_map(|module| &module.kernels).filter(|it| it.function() == "attention_decode")
        {
            let early = kernel.constants.iter().find(|(name, _)| *name == "CONTEXT_BEFORE_WAIT");
            assert_eq!(early.map(|it| &it.1), Some(&Constant::Flag(false)), "{name}: {}", kernel.name);
            attention += 1;
        }
        assert!(attention > 0, "{name}");
    }
}

/// Its layers are built as the model's are: attention, and experts of a width of their own.
#[test]
fn a_draft_head_of_two_layers_runs_the_kernels_of_its_model() {
    let name = "h200/nemotron-3-super/nvfp4";
    let target = load(name, &DraftOption { drafts: 2, ..ONE }).unwrap_or_else(|error| panic!("{error}"));
    let (model, quant, kind) = (&target.model, &target.quant, &target.hardware.kind);
    let plan = plan(&target);
    let pass = |first: &'static str| [first, "draft_attention_none_experts", "draft_head"];
    let bodies: Vec<&str> =
        plan.draft_schedule().iter().map(|body| plan.bodies[body.0].name.as_str()).collect();
    assert_eq!(bodies, [pass("draft_embed"), pass("draft_again")].concat());
    // One of the nine layers that attend is the head's.
    assert_eq!(u128::from(plan.memory.kv_block), spec::kv_block_bytes(model, quant, kind, true));
    assert_eq!(9 * spec::kv_block_bytes(model, quant, kind, false), 8 * u128::from(plan.memory.kv_block));
    let cuda = plan.cuda.as_ref().expect("a CUDA target has a CUDA plan");
    let (mut of_model, mut of_head) = (BTreeSet::new(), BTreeSet::new());
    for program in &cuda.programs {
        let functions = |launches: &[Launch]| {
            launches.iter().map(|it| cuda.kernel(it.kernel).function()).collect::<Vec<_>>()
        };
        of_model.extend(program.bodies.iter().flat_map(|launches| functions(launches)));
        of_model.extend(functions(&program.tail));
        of_head.extend(program.passes.iter().flat_map(|(_, launches)| functions(launches)));
    }
    let own: Vec<&str> = of_head.difference(&of_model).copied().collect();
    assert_eq!(own, ["draft_embed"]);
    assert!(of_head.contains("experts_rings") && of_head.contains("attention_decode"), "{of_head:?}");
}

const LOOKED_UP: DraftOption = DraftOption { method: DraftMethod::Ngram, drafts: 3, ..ONE };

#[test]
fn any_model_can_be_built_to_verify_what_is_looked_up() {
    for name in ["cpu/smollm2-135m/q4_1", "h200/llama-3.2-1b/bf16", "h200/qwen3.5-35b/bf16"] {
        let target = load(name, &LOOKED_UP).unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(target.build(), format!("{name}+ngram3"));
        let (model, quant, kind) = (&target.model, &target.quant, &target.hardware.kind);
        let plan = plan(&target);
        // There is no draft head to hold or read, and it has no keys and values.
        assert!(plan.draft.is_none() && plan.drafts() == 3 && plan.speculation.is_some(), "{name}");
        assert_eq!(
            u128::from(plan.memory.kv_block),
            spec::kv_block_bytes(model, quant, kind, false),
            "{name}"
        );
    }
    for (option, place, said) in [
        (DraftOption { drafts: 0, ..LOOKED_UP }, "--drafts", "1 to 7 with `--draft ngram`"),
        (DraftOption { drafts: 8, ..LOOKED_UP }, "--drafts", "is 8"),
        (DraftOption { vocabulary: Some(9), ..LOOKED_UP }, "--draft-vocabulary", "goes with passes"),
        (
            DraftOption { forced_acceptance: Some(0.5), ..LOOKED_UP },
            "--forced-acceptance",
            "`--draft ngram` has none",
        ),
    ] {
        let error = load("cpu/smollm2-135m/q4_1", &option).expect_err("it is refused");
        assert!(error.contains(place) && error.contains(said), "{option:?}: {error}");
    }
}

#[test]
fn programs_that_verify_stand_beside_those_that_decode() {
    for name in ["h200/llama-3.2-1b/bf16", "h200/qwen3.5-35b/bf16"] {
        let plan = plan(&load(name, &LOOKED_UP).unwrap_or_else(|error| panic!("{error}")));
        let cuda = plan.cuda.as_ref().expect("a CUDA target has a CUDA plan");
        let decode = cuda.programs.iter().filter(|it| it.regime == Regime::Decode);
        let decode: Vec<_> = decode.map(|it| (it.name.as_str(), it.sequences, it.tokens, it.rows)).collect();
        assert_eq!(plan.buckets.sequences, 32, "{name}: four rows each of a header's 128");
        assert_eq!(decode.len(), 12, "{name}");
        assert_eq!((decode[0], decode[6]), (("decode_1", 1, 1, 1), ("verify_1", 1, 4, 4)), "{name}");
        assert_eq!((decode[5], decode[11]), (("decode_32", 32, 1, 32), ("verify_32", 32, 4, 128)), "{name}");
        let kernels = cuda.modules.iter().flat_map(|module| &module.kernels);
        let heads = kernels.filter(|it| ["accept", "draft_embed"].contains(&it.function())).count();
        assert_eq!(heads, 0, "{name}: the host decides which drafts hold");
        // Plain decoding, too, may continue from a state whose drafts were rejected.
        let deltas = cuda
            .modules
            .iter()
            .flat_map(|module| &module.kernels)
            .filter(|it| it.function() == "delta_decode");
        for kernel in deltas {
            let journalled = ("DRAFTS", Constant::Integer(4));
            assert!(kernel.constants.contains(&journalled), "{name}: {}", kernel.name);
        }
    }
}

#[test]
fn builds_of_a_target_have_names_of_their_own() {
    let build = |option: &DraftOption| {
        load("h200/qwen3.6-35b/fp8", option).unwrap_or_else(|error| panic!("{error}")).build()
    };
    let cut = DraftOption {
        method: DraftMethod::Mtp,
        drafts: 2,
        vocabulary: Some(32_768),
        forced_acceptance: None,
    };
    assert_eq!(build(&ONE), "h200/qwen3.6-35b/fp8+mtp1");
    assert_eq!(build(&cut), "h200/qwen3.6-35b/fp8+mtp2-of-32768");
    let forced = DraftOption { forced_acceptance: Some(0.8), ..cut };
    assert_eq!(build(&forced), "h200/qwen3.6-35b/fp8+mtp2-of-32768-forced-0.8");
}

#[test]
fn a_draft_head_weighs_what_its_release_says() {
    // Megabytes of the draft layer as released, and one more layer of keys and values.
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
