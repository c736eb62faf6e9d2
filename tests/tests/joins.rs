//! Sequences that join and leave batches, on an emulated card (tests/emulated) and on a CPU: ids and
//! log-probabilities are bit for bit those of the lone run.

use monomorph_compiler::spec;
use monomorph_compiler::spec::types::{BuildOptions, Compute};
use monomorph_formats::cached::KvFormats;
use monomorph_tests::emulated;
use monomorph_tests::joins::{Stored, TOKENS, generate, others, store};
use monomorph_tests::{root, server};
use std::process::Command;
use std::time::Instant;

/// Sequences per decode step.
const SEQUENCES: usize = 8;

/// Runs the prompts alone, all at once, and all at once in so little memory that some are pre-empted; returns
/// the differences.
fn check(
    name: &str,
    stored: &Stored,
    count: usize,
    sequences: usize,
    server: impl Fn() -> Command,
) -> Vec<String> {
    let prompts = stored.prompts(count);
    let run = |flags: &[&str]| {
        let begin = Instant::now();
        let generated = generate(server(), stored, &prompts, flags);
        println!("{name} {flags:?}: {:.1} s", begin.elapsed().as_secs_f32());
        generated
    };
    let (roomy, tight) = (sequences * stored.longest().next_multiple_of(16), stored.tight());
    let [roomy, tight] = [roomy, tight].map(|tokens| tokens.to_string());
    let alone = run(&["--kv-tokens", &roomy, "--one-by-one"]);
    let joined = run(&["--kv-tokens", &roomy]);
    let preempted = run(&["--kv-tokens", &tight]);
    let (chunks, sequences) = (joined.chunks + preempted.chunks, preempted.preempted);
    println!("{name}: {chunks} chunks cut off, {sequences} sequences pre-empted");
    assert!(chunks > 0 && sequences > 0, "{name} shows less than it says");
    assert_eq!((alone.chunks, alone.preempted), (0, 0), "{name}: alone is whole");
    let ways = [("joined", &joined), ("pre-empted", &preempted)];
    let differing = ways.map(|(way, found)| (way, others(&alone, found)));
    let differing = differing.into_iter().filter(|(_, others)| !others.is_empty());
    differing
        .map(|(way, others)| {
            format!("{name}, {way}: {} of {count} differ, (prompt, token) {others:?}", others.len())
        })
        .collect()
}

/// Hardware, model, storage and compute format, and how many prompts.
type Emulated = (&'static str, &'static str, &'static str, Compute, usize);

/// Builds batch-invariant servers of the models for an emulated card and checks each. `kv`: another format of
/// keys and values than theirs.
fn on_emulated_cards(cases: &[Emulated], tokens: usize, kv: Option<&str>) {
    let directory = tempfile::tempdir().expect("temporary directories can be made");
    let (targets, out) = (directory.path().join("targets"), directory.path().join("stored"));
    let mut wrong = Vec::new();
    for (hardware, model, storage, compute, count) in cases {
        let hardware = emulated::hardware(&targets, hardware, Some(emulated::FEW));
        let stored = Stored { tokens, ..store(model, storage, *compute, &targets, &out) };
        let kv = kv.map(|kv| KvFormats::from_name(kv).unwrap_or_else(|error| panic!("{error}")));
        let options = BuildOptions { batch_invariant: Some(SEQUENCES), kv, ..BuildOptions::default() };
        let search = [targets.clone(), root().join("targets")];
        let target = spec::load_with(&search, &format!("{hardware}/{}", stored.name), &options);
        let target = target.unwrap_or_else(|error| panic!("{error}"));
        let begin = Instant::now();
        let server = emulated::build(&target);
        println!("{} built in {:.1} s", target.build(), begin.elapsed().as_secs_f32());
        wrong.extend(check(&target.build(), &stored, *count, SEQUENCES, || server.command()));
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Heads of the widths that the fast kernels need, delta-nets in
/// chunks, a mixture.
#[test]
fn sequences_of_an_emulated_card_are_what_they_are_alone() {
    on_emulated_cards(&[("h200", "slim", "bf16", Compute::F16, 8)], 40, None);
}

/// What is widened of a sequence depends on its company and on where its prompt is cut.
#[test]
#[ignore = "minutes"]
fn sequences_whose_keys_and_values_are_widened_are_what_they_are_alone() {
    on_emulated_cards(&[("h200", "slim", "bf16", Compute::F16, 12)], 40, Some("turbo8/turbo4"));
}

/// The rest: dense models, narrow heads, other storages, the other kind of card, more sequences.
/// `MONOMORPH_GOLDENS` as in `emulated.rs`.
#[test]
#[ignore = "hours"]
fn many_sequences_of_emulated_cards_are_what_they_are_alone() {
    let wanted = std::env::var("MONOMORPH_GOLDENS").unwrap_or_default();
    let cases = [
        ("h200", "qwen3-deep", "bf16", Compute::F16, 160),
        ("h200", "qwen3-next", "bf16", Compute::F16, 160),
        ("h200", "qwen35-moe-text", "bf16", Compute::F16, 160),
        ("h200", "slim", "bf16", Compute::F16, 160),
        ("gb10", "slim", "nvfp4-modelopt", Compute::F16, 160),
        ("h200", "wide", "fp8-block128", Compute::F16, 40),
        ("h200", "wide", "fp8-block128", Compute::Fp8, 40),
        ("h200", "wide-mistral", "bf16", Compute::F16, 40),
        ("gb10", "wide-mistral", "bf16", Compute::F16, 40),
    ];
    let is_wanted = |(hardware, model, storage, ..): &&Emulated| {
        let name = format!("{hardware}/{model}/{storage}");
        wanted.is_empty() || wanted.split(',').any(|it| name.contains(it))
    };
    let cases: Vec<_> = cases.iter().filter(is_wanted).copied().collect();
    on_emulated_cards(&cases, TOKENS, None);
}

/// CPU servers are batch-invariant without an option.
#[test]
fn sequences_of_processors_are_what_they_are_alone() {
    let directory = tempfile::tempdir().expect("temporary directories can be made");
    let (targets, out) = (directory.path().join("targets"), directory.path().join("stored"));
    let mut wrong = Vec::new();
    for (model, storage, kv) in [
        ("qwen3-deep", "bf16", None),
        ("qwen3-deep", "f32", None),
        ("qwen3-next", "f32", None),
        ("qwen35-moe-text", "f32", None),
        // Narrow keys and values, of which a sample.
        ("qwen3-deep", "f32", Some("fp8")),
        ("qwen3-next", "f32", Some("turbo8/turbo3")),
    ] {
        let stored = store(model, storage, Compute::F32, &targets, &out);
        let kv = kv.map(|kv| KvFormats::from_name(kv).unwrap_or_else(|error| panic!("{error}")));
        let options = BuildOptions { kv, ..BuildOptions::default() };
        let binary = server::build_with(Some(&targets), &format!("cpu/{}", stored.name), &options);
        let kept = kv.map_or(String::new(), |kv| format!(", K/V in {kv}"));
        let name = format!("{}{kept}", stored.name);
        wrong.extend(check(&name, &stored, 40, 8, || Command::new(&binary)));
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
