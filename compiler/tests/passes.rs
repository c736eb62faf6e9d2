//! Graph to plan on the shipped targets: fusion, its refusals, and predictions.

use monomorph_compiler::blocks;
use monomorph_compiler::graph::{self, Graph, Op};
use monomorph_compiler::passes::lower::{Fusion, Lowering};
use monomorph_compiler::passes::{assemble, fuse, rules};
use monomorph_compiler::plan::{PhaseKind, Plan};
use monomorph_compiler::spec;
use monomorph_compiler::spec::types::{Compute, PhaseTuning, Provenance, Quant, Target, TensorClass};
use monomorph_formats::Format;
use std::path::{Path, PathBuf};

/// A rule of these tests that only matches.
fn rule(name: &'static str, pattern: &'static str) -> &'static Fusion {
    let lower = |_: &Lowering| unreachable!("nothing is lowered");
    Box::leak(Box::new(Fusion { name, pattern, matrices: &[], buffers: &[], lower }))
}

/// The error of fusing a graph with these rules.
fn refused(graph: &Graph, fusions: impl IntoIterator<Item = &'static Fusion>) -> String {
    fuse::fuse(graph, &rules::parse(fusions).unwrap()).unwrap_err().0
}

fn targets() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../targets")
}

fn smollm2() -> (Target, Graph) {
    let target =
        spec::load(&[targets()], "x86-64-v4/smollm2-135m/q4_1").unwrap_or_else(|error| panic!("{error}"));
    let graph = graph::build(&target.model, &target.quant);
    (target, graph)
}

fn plan() -> Plan {
    let (target, graph) = smollm2();
    assemble::plan(&target, &graph).unwrap()
}

#[test]
fn a_layer_is_five_phases_and_the_head_two() {
    let plan = plan();
    let phases =
        |body: usize| plan.bodies[body].phases.iter().map(|phase| phase.name.as_str()).collect::<Vec<_>>();
    assert_eq!(phases(0), ["embed"]);
    assert_eq!(phases(1), ["attention_qkv", "attention", "attention_o", "ffn_gate_up", "ffn_down"]);
    assert_eq!(phases(2), ["select", "embedding"]);
    assert_eq!(plan.bodies[1].layers.len(), 30);
}

#[test]
fn every_op_is_covered_once() {
    let (_, graph) = smollm2();
    let fused = fuse::fuse(&graph, &rules::parse(blocks::fusions()).unwrap()).unwrap();
    for (body, groups) in graph.bodies.iter().zip(&fused.bodies) {
        let mut nodes: Vec<usize> = groups.iter().flat_map(|group| &group.nodes).map(|node| node.0).collect();
        nodes.sort();
        assert_eq!(nodes, (0..body.nodes.len()).collect::<Vec<_>>(), "{}", body.name);
    }
}

#[test]
fn a_missing_rule_is_an_error_naming_the_op() {
    let (_, graph) = smollm2();
    let error = refused(&graph, blocks::fusions().filter(|fusion| fusion.name != "gated"));
    assert_eq!(error, "no fusion rule matches `ffn_normed` (rms-norm) of body `attention`");
}

#[test]
fn two_rules_for_one_op_are_an_error_naming_both_whatever_their_order() {
    let (_, graph) = smollm2();
    let lone = rule("lone", "y = linear(x) where x is gate");
    let all: Vec<&Fusion> = blocks::fusions().collect();
    for table in [[&all[..], &[lone]].concat(), [&[lone], &all[..]].concat()] {
        let error = refused(&graph, table);
        assert!(
            error.contains("`lone`") && error.contains("`accumulate`") && error.contains("`down`"),
            "{error}"
        );
    }
}

#[test]
fn a_value_needed_outside_a_pattern_keeps_the_pattern_from_matching() {
    let (_, graph) = smollm2();
    // A norm and one of its three products: the norm is needed by the other two.
    let split = rule("split", "n = rms-norm(x); q = linear(n)");
    let error = refused(&graph, blocks::fusions().chain([split]));
    assert!(error.contains("of body `head`"), "only the head's lone product may match: {error}");
}

#[test]
fn the_residual_stream_stays_in_place() {
    let plan = plan();
    for phase in &plan.bodies[1].phases {
        if let PhaseKind::Accumulate(blocks::Accumulate { residual, .. }) = phase.kind {
            assert_eq!(plan.buffer(residual).name, "residual");
        }
    }
}

#[test]
fn the_plan_counts_the_bytes_of_the_file() {
    let (target, graph) = smollm2();
    let plan = assemble::plan(&target, &graph).unwrap();
    let stored: usize = graph
        .weights
        .iter()
        .map(|weight| weight.bytes() * if weight.name.contains("{layer}") { 30 } else { 1 })
        .sum();
    // Norms are f32 in the file and in memory, every matrix has whole tiles: packing adds nothing.
    assert_eq!(plan.memory.weights, stored as u64);
    let [limit, predicted, prefill_limit, prefill] = plan.prediction.rates();
    assert!(predicted < limit && prefill < prefill_limit);
    let bytes_a_token = target.hardware.bandwidth / limit;
    assert!((95e6..100e6).contains(&bytes_a_token), "{bytes_a_token}");
}

#[test]
fn a_projection_turned_by_rotary_is_known_and_others_are_not() {
    let (_, graph) = smollm2();
    let turned: Vec<&str> = (0..graph.weights.len())
        .filter(|id| graph.rotary_head_dim(graph::WeightId(*id)).is_some())
        .map(|id| graph.weights[id].name.as_str())
        .collect();
    assert_eq!(turned, ["layers.{layer}.attention.q", "layers.{layer}.attention.k"]);
    assert!(graph.bodies[1].nodes.iter().any(|node| matches!(node.op, Op::Gate { .. })));
}

#[test]
fn a_cpu_refuses_to_compute_otherwise_than_it_does() {
    let (target, _) = smollm2();
    let refusal = |change: &dyn Fn(&mut Quant)| {
        let mut quant = target.quant.clone();
        change(&mut quant);
        assemble::plan(&target, &graph::build(&target.model, &quant)).unwrap_err().0
    };
    let computing = |compute| {
        move |quant: &mut Quant| {
            quant.compute.classes.insert(TensorClass::Ffn, compute);
        }
    };
    let storing = |format| {
        move |quant: &mut Quant| {
            quant.stored.classes.insert(TensorClass::Attention, format);
        }
    };
    for compute in [Compute::F32, Compute::F16] {
        let error = refusal(&computing(compute));
        assert!(error.contains("`ffn`") && error.contains("in `int8-block32` only"), "{error}");
    }
    let error = refusal(&storing(Format::Bf16));
    assert!(error.contains("bf16 weights in `f32` or `f16` only, not in `int8-block32`"), "{error}");
    // Everything missing is named at once, and each class once.
    let error = refusal(&|quant: &mut Quant| {
        quant.stored.classes.insert(TensorClass::Attention, Format::Nvfp4);
        quant.stored.classes.insert(TensorClass::Ffn, Format::F16);
        quant.compute.classes.insert(TensorClass::Ffn, Compute::Fp8);
    });
    let expected = "the CPU backend computes f16 weights in `f32` or `f16` only, not in `fp8` (`ffn`), nvfp4 weights in \
                    `f32` or `f16` only, not in `int8-block32` (`attention`)";
    assert_eq!(error, expected);
}

#[test]
fn a_card_refuses_the_formats_that_it_has_no_kernels_for() {
    let target = spec::load(&[targets()], "h200/smollm2-135m/q4_1").unwrap_or_else(|error| panic!("{error}"));
    let mut quant = target.quant.clone();
    quant.stored.classes.insert(TensorClass::Attention, Format::Q5_0);
    quant.stored.classes.insert(TensorClass::Ffn, Format::Q6K);
    let error = assemble::plan(&target, &graph::build(&target.model, &quant)).unwrap_err().0;
    assert_eq!(error, "the CUDA backend has no kernels for q5_0 (`attention`), q6_k (`ffn`)");
}

#[test]
fn a_tuning_file_for_a_phase_that_is_not_in_the_plan_is_refused() {
    let name = "h200/smollm2-135m/q4_1";
    let mut target = spec::load(&[targets()], name).unwrap_or_else(|error| panic!("{error}"));
    let graph = graph::build(&target.model, &target.quant);
    let tuning = target.tuning.as_mut().expect("CUDA hardware has defaults");
    let (card, date, command) = ("a card".to_owned(), "2026-01-31".to_owned(), "a command".to_owned());
    tuning.provenance = Provenance::Measured { file: "tuning/it.toml".into(), card, date, command };
    tuning.phases.insert("ffn_up".to_owned(), PhaseTuning { line: 7, ..PhaseTuning::default() });
    let error = assemble::plan(&target, &graph).unwrap_err().0;
    assert!(error.starts_with("tuning/it.toml:7: the plan has no phase `ffn_up`"), "{error}");
}
