//! `explain` on a GPU decode step: its bytes by part against the checkpoints' own arithmetic, its boundaries,
//! and its speed against measurements.

use monomorph_compiler::passes::assemble;
use monomorph_compiler::plan::{Cost, Given, Plan};
use monomorph_compiler::report::step::{self, StepReport};
use monomorph_compiler::{graph, spec};
use std::path::Path;

fn plan(target: &str) -> Plan {
    let targets = Path::new(env!("CARGO_MANIFEST_DIR")).join("../targets");
    let target = spec::load(&[targets], target).unwrap_or_else(|error| panic!("{error}"));
    assemble::plan(&target, &graph::build(&target.model, &target.quant))
        .unwrap_or_else(|error| panic!("{error}"))
}

fn report(plan: &Plan) -> StepReport {
    step::report(plan).expect("a CUDA target has a step")
}

/// The full-size hybrids and mixtures.
const FULL: [&str; 15] = [
    "gb10/qwen3.5-35b/nvfp4",
    "gb10/qwen3.6-35b/fp8",
    "gb10/qwen3.6-35b/nvfp4",
    "gb10/qwen3.5-122b/nvfp4",
    "gb10/qwen3-next-80b/nvfp4",
    "h200/qwen3.5-35b/nvfp4",
    "h200/qwen3.5-35b/nvfp4-all",
    "h200/qwen3.5-35b/bf16",
    "h200/qwen3.6-35b/fp8",
    "h200/qwen3.6-35b/nvfp4",
    "h200/qwen3.5-27b/nvfp4",
    "h200/qwen3.5-122b/nvfp4",
    "h200/qwen3-next-80b/nvfp4",
    "h200/qwen3-30b-a3b/bf16",
    "h200/qwen3.5-0.8b/bf16",
];

#[test]
fn parts_add_up_to_what_the_phases_read() {
    for target in FULL {
        let plan = plan(target);
        let report = report(&plan);
        let phases = plan.schedule.iter().flat_map(|(body, _)| &plan.bodies[body.0].phases);
        let read: f64 = phases.map(|phase| phase.decode.weight_bytes).sum();
        let parts: f64 = report.weights.values().sum();
        assert!((parts - read).abs() < 1.0, "{target}: {parts} in parts of {read}");
        assert!(report.weights.values().all(|bytes| *bytes > 0.0), "{target}: {:?}", report.weights);
        for it in &report.contexts {
            assert_eq!(it.bytes, parts + report.state + it.kv, "{target} after {}", it.context);
        }
    }
}

/// MB per token of the 35B as shipped, from the parameter counts and the formats of its checkpoint's tensors.
#[test]
fn parts_are_those_of_the_checkpoint() {
    let report = report(&plan("gb10/qwen3.5-35b/nvfp4"));
    let megabytes = [
        ("delta-net", 1509.9 + 503.3),
        ("delta-gates", 7.9),
        ("attention", 106.2 + 47.2),
        ("router", 42.1),
        ("experts", 566.2),
        ("shared", 70.8),
        ("head", 1017.1),
    ];
    for (class, expected) in megabytes {
        // The row that weighs the shared expert fills a tile of eight; row scales are f32.
        let found = report.weights[class] / 1e6;
        assert!((found / expected - 1.0).abs() < 0.03, "{class}: {found:.1} MB against {expected}");
    }
    // 30 layers: matrices of 2 MiB read and written, and a window of four rows of 8,192 f32, one of them
    // written.
    assert_eq!(report.state, 30.0 * (2.0 * 2_097_152.0 + 131_072.0));
}

/// GB per token with state, and K/V after 1,024 tokens: weights as above, state, 10 layers of two heads of
/// 256.
#[test]
fn a_token_of_a_35b_moves_what_its_checkpoints_say() {
    let published = [
        ("h200/qwen3.5-35b/nvfp4", 4.02),
        ("h200/qwen3.6-35b/fp8", 3.63),
        // 1.81 where routers and gates are 4-bit, too: this target keeps 50 MB of them in bf16, as every
        // published checkpoint does.
        ("h200/qwen3.5-35b/nvfp4-all", 1.81 + 0.75 * (0.0421 + 0.0079)),
    ];
    for (target, gigabytes) in published {
        let report = report(&plan(target));
        let at = report.contexts.first().expect("a context");
        let token = at.kv / (at.context + 1) as f64;
        assert_eq!(token, 20_480.0, "{target}");
        let moved = (at.bytes - at.kv + 1_025.0 * token) / 1e9;
        assert!((moved / gigabytes - 1.0).abs() < 0.01, "{target}: {moved:.3} GB against {gigabytes}");
    }
}

/// Bytes of K/V after 32,768 tokens, from the configs: layers with a window of 1,024 read no more
/// than that and the token itself.
#[test]
fn layers_with_a_window_read_no_more_of_the_cache_than_it() {
    // Layers with and without a window, and bytes of a token in a layer of each: 16 K/V heads of 256 and 4 of
    // 512 that are keys and values in one; of the small one 8 of 256 and 2 of 512.
    let published = [
        ("h200/gemma-4-31b/nvfp4", [(50.0, 16.0 * 256.0), (10.0, 4.0 * 512.0)]),
        ("h200/gemma-4-26b-a4b/nvfp4", [(25.0, 8.0 * 256.0), (5.0, 2.0 * 512.0)]),
    ];
    for (target, [(windowed, windowed_token), (full, full_token)]) in published {
        let report = report(&plan(target));
        let at = report.contexts.iter().find(|it| it.context == 32_768).expect("after 32,768 tokens");
        // Keys and values of two bytes each.
        let expected = 4.0 * (windowed * windowed_token * 1_025.0 + full * full_token * 32_769.0);
        assert_eq!(at.kv, expected, "{target}");
    }
}

/// A prompt over latents is products on tensor cores, as any attention's: it is not predicted at the rate of
/// f32, at which 8,192 tokens of Mistral Small 4 would take a second.
#[test]
fn a_prompt_over_latents_counts_tensor_cores() {
    let plan = plan("h200/mistral-small-4/nvfp4");
    let phases = plan.schedule.iter().flat_map(|(body, _)| &plan.bodies[body.0].phases);
    let given = Given { tokens: 8_192, outputs: 1, context: 0 };
    let cost = phases.fold(Cost::default(), |sum, phase| sum + plan.cost(phase, given));
    let floor = cost.floor(&plan.target.hardware);
    assert!((0.15..0.2).contains(&floor), "{floor} s");
}

#[test]
fn a_layer_is_five_phases_in_at_most_six_launches() {
    for target in FULL {
        for layer in report(&plan(target)).layers {
            let what = format!("{target} {}: {} in {}", layer.name, layer.phases, layer.boundaries);
            assert!((4..=6).contains(&layer.phases), "{what}");
            assert!((4.0..=6.0).contains(&layer.boundaries), "{what}");
        }
    }
}

/// docs/performance-h200.md. The 8B's bytes are fp8, the 1B's bf16.
#[test]
fn predictions_meet_what_was_measured() {
    let measured = [
        ("h200/llama-3.2-1b/bf16", 128, 1520.0),
        ("h200/llama-3.1-8b/fp8", 128, 488.0),
        ("h200/llama-3.1-8b/fp8", 32_768, 317.0),
    ];
    for (target, context, rate) in measured {
        let report = report(&plan(target));
        let at = report.contexts.iter().find(|it| it.context == context).expect("a context");
        assert!(at.predicted < at.limit);
        assert!(
            (at.predicted / rate - 1.0).abs() < 0.09,
            "{target} after {context}: {:.0} for {rate}",
            at.predicted
        );
    }
}

/// nvfp4 runs at the speed of decoding on an H200 and of memory on a GB10.
#[test]
fn nvfp4_is_predicted_at_the_pace_of_decoding() {
    let late = |target: &str| report(&plan(target)).decoding_microseconds;
    let (experts, whole) = (late("h200/qwen3.5-35b/nvfp4"), late("h200/qwen3.5-27b/nvfp4"));
    assert!(experts > 50.0 && whole > 2000.0, "{experts} {whole}");
    assert_eq!(late("gb10/qwen3.5-35b/nvfp4"), 0.0);
    assert_eq!(late("h200/qwen3.6-35b/fp8"), 0.0);
}

/// Weights, the state of every sequence of a step, and the steps' work space leave room for a sequence of a
/// server's default length.
#[test]
fn full_sizes_start_at_the_default_concurrency() {
    for target in FULL {
        let start = report(&plan(target)).start;
        assert!(start.kv_tokens >= Some(start.context as u64), "{target}: {start:?}");
    }
}
