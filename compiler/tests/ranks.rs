//! Builds for several ranks: allowed numbers, names, memory, and what stays of one rank's text.

use monomorph_abi::world::Exchanged;
use monomorph_compiler::plan::Plan;
use monomorph_compiler::plan::traffic::traffic;
use monomorph_compiler::report;
use monomorph_compiler::spec::types::{BuildOptions, Target};
use monomorph_compiler::{emit, graph, passes, spec};
use std::path::Path;

fn load(name: &str, ranks: usize) -> Result<Target, String> {
    let targets = Path::new(env!("CARGO_MANIFEST_DIR")).join("../targets");
    let options = BuildOptions { ranks: Some(ranks), ..BuildOptions::default() };
    spec::load_with(&[targets], name, &options).map_err(|error| error.to_string())
}

fn spread(name: &str, ranks: Option<usize>, hosts: usize) -> Result<Target, String> {
    let targets = Path::new(env!("CARGO_MANIFEST_DIR")).join("../targets");
    let options = BuildOptions { ranks, hosts: Some(hosts), ..BuildOptions::default() };
    spec::load_with(&[targets], name, &options).map_err(|error| error.to_string())
}

fn plan(name: &str, ranks: usize) -> Plan {
    planned(&load(name, ranks).unwrap_or_else(|error| panic!("{error}")))
}

fn planned(target: &Target) -> Plan {
    let graph = graph::build(&target.model, &target.quant);
    passes::assemble::plan(target, &graph).unwrap_or_else(|error| panic!("{error}"))
}

#[test]
fn what_cannot_be_built_is_refused_with_what_can() {
    for (target, ranks, message, help) in [
        ("h200/qwen3.5-35b/nvfp4", 0, "`--tp` is 0", "1 to 8"),
        ("h200/qwen3.5-35b/nvfp4", 9, "`--tp` is 9", "1 to 8"),
        ("cpu/smollm2-135m/q4_1", 2, "runs on a CPU, and `--tp 2`", "build it without"),
    ] {
        let error = load(target, ranks).map(|it| it.build()).expect_err("it is refused");
        assert!(error.contains(message) && error.contains(help), "{target}: {error}");
    }
}

#[test]
fn a_process_has_one_rank() {
    for (ranks, hosts, message) in [
        (Some(4), 2, "`--hosts` is 2, and the build has 4 ranks"),
        (None, 2, "`--hosts` is 2, and the build has 1 rank"),
        (Some(2), 0, "`--hosts` is 0, and the build has 2 ranks"),
    ] {
        let error = spread("h200/qwen3.5-35b/nvfp4", ranks, hosts).expect_err("it is refused");
        assert!(error.contains(message) && error.contains("as many as `--tp`"), "{error}");
    }
    let one = spread("h200/qwen3.5-27b/nvfp4", Some(2), 1).expect("it is one process");
    assert_eq!(one.build(), "h200/qwen3.5-27b/nvfp4+tp2");
}

/// Packets reach only GPUs of the process.
#[test]
fn processes_gather_and_push_no_packets() {
    let several = spread("h200/llama-3.2-1b/bf16", Some(2), 2).expect("it is whole");
    assert_eq!(several.build(), "h200/llama-3.2-1b/bf16+tp2+hosts2");
    let text = |plan: &Plan| {
        let files = emit::emit(plan, Path::new("/monomorph"), &[]);
        files.into_iter().map(|file| file.text).collect::<Vec<_>>().join("\n")
    };
    let (one, several) = (text(&plan("h200/llama-3.2-1b/bf16", 2)), text(&planned(&several)));
    for (word, of_one) in
        [("exchange_sum", true), ("WorldMemory", true), ("all_gather", false), ("gathered_sum", false)]
    {
        assert_eq!([one.contains(word), several.contains(word)], [of_one, !of_one], "{word}");
    }
}

#[test]
fn a_build_is_named_after_its_ranks() {
    assert_eq!(plan("h200/qwen3.5-27b/nvfp4", 2).target.build(), "h200/qwen3.5-27b/nvfp4+tp2");
    assert_eq!(plan("h200/qwen3.5-27b/nvfp4", 1).target.build(), "h200/qwen3.5-27b/nvfp4");
}

#[test]
fn ranks_share_the_weights_the_state_and_the_keys() {
    let (one, two) = (plan("h200/qwen3.5-27b/nvfp4", 1), plan("h200/qwen3.5-27b/nvfp4", 2));
    assert_eq!(2 * two.memory.kv_block, one.memory.kv_block);
    assert_eq!(2 * two.memory.state, one.memory.state);
    // The embedding, norms, and scales that are one a row stand on both.
    let (half, embedding) = (one.memory.weights / 2, 248_320 * 5120 * 2);
    assert!((half..half + embedding).contains(&two.memory.weights), "{}", two.memory.weights);
}

/// Two sums a layer and the gather of logits.
#[test]
fn what_ranks_exchange_is_known_of_every_program() {
    let plan = plan("h200/qwen3.5-27b/nvfp4", 2);
    let cuda = plan.cuda.as_ref().expect("a CUDA target");
    let traffic = traffic(&plan, cuda);
    assert_eq!(traffic.layers, Exchanged { exchanges: 2 * 64, row_values: 2 * 64 * 5120 });
    assert_eq!(traffic.head, Exchanged { exchanges: 1, row_values: 248_320 / 2 });
    assert_eq!([traffic.learn, traffic.drafts], [Exchanged::NONE; 2]);
    let ranks = report::report(&plan).ranks.expect("several");
    assert_eq!(ranks.exchanges, 129);
    assert_eq!(ranks.each.iter().map(|it| it.times).sum::<usize>(), 129);
    assert_eq!(ranks.decode_bytes, 4.0 * (2.0 * 64.0 * 5120.0 + 124_160.0));
    let sum: f64 = ranks.each.iter().map(|it| it.times as f64 * it.decode_microseconds).sum();
    assert!((sum - ranks.decode_microseconds).abs() < 1e-6, "{sum} and {}", ranks.decode_microseconds);
    assert!(ranks.decode_microseconds < ranks.rank_decode_microseconds);
}

#[test]
fn one_rank_has_no_trace_of_others() {
    let words = ["World", "RANKS", "TRAFFIC", "exchange", "peer", "Segment", "cut_", "partial_sums", "inbox"];
    let text = |ranks| -> String {
        let plan = plan("h200/qwen3.6-35b/fp8", ranks);
        let files = emit::emit(&plan, Path::new("/monomorph"), &[]);
        // Templates are the same files for all.
        files.into_iter().filter(|file| !file.path.starts_with("cuda/lib")).map(|file| file.text).collect()
    };
    let (one, two) = (text(1), text(2));
    let found = |text: &str| words.into_iter().filter(|word| text.contains(word)).collect::<Vec<_>>();
    assert_eq!(found(&one), [""; 0]);
    assert_eq!(
        found(&two),
        ["World", "RANKS", "TRAFFIC", "exchange", "Segment", "cut_", "partial_sums", "inbox"]
    );
}
