//! K/V offload on real servers: the same ids and log-probabilities as with everything in memory, resident
//! memory that does not grow with the sequence, and no file left behind. For models with keys and values
//! only, and with recurrent state.

use monomorph_compiler::spec;
use monomorph_compiler::spec::types::{BuildOptions, Compute, DraftMethod, DraftOption};
use monomorph_tests::crowd::{Random, with_tokenizer};
use monomorph_tests::goldens::golden;
use monomorph_tests::repeating::{KEPT, repeat};
use monomorph_tests::server::{Serving, build, build_with, metric, post};
use monomorph_tests::{root, smollm2};
use serde_json::{Value, json};
use std::path::Path;
use std::time::Instant;

/// An answer, and how long it took.
struct Answer {
    choice: Value,
    seconds: f64,
}

/// Requests greedy tokens with log-probabilities.
fn ask(serving: &Serving, prompt: &[u32], tokens: usize) -> Answer {
    let body = json!({
        "prompt": prompt, "max_tokens": tokens, "temperature": 0, "logprobs": 3, "ignore_eos": true,
    });
    let began = Instant::now();
    let (status, text) = post(&serving.address, "/v1/completions", &body.to_string()).expect("it answers");
    let answer: Value = serde_json::from_str(&text).expect("answers are JSON");
    assert_eq!(status, 200, "{answer}");
    let choice = answer["choices"][0].clone();
    let count = choice["logprobs"]["token_logprobs"].as_array().map_or(0, Vec::len);
    assert_eq!(count, tokens, "{choice}");
    Answer { choice, seconds: began.elapsed().as_secs_f64() }
}

/// The turns of a growing conversation on both servers: prompts of `lengths` tokens, each a prefix of the
/// next.
fn compare(
    name: &str,
    server: &Path,
    weights: &Path,
    vocabulary: usize,
    lengths: &[usize],
    share: [&str; 4],
    most: u64,
) {
    let context = ["--context", "8192", "--threads", "2", "--request-timeout", "0"];
    let ids = Random(7).ids(*lengths.last().expect("there are turns"), vocabulary);
    let tokens = 40;
    let whole = Serving::start(server, weights, &context);
    let expected: Vec<Answer> = lengths.iter().map(|length| ask(&whole, &ids[..*length], tokens)).collect();
    let all = whole.resident_bytes();
    drop(whole);
    let directory = tempfile::tempdir().expect("temporary directories can be made");
    let path = directory.path().to_str().expect("it is UTF-8");
    let streamed = [&context[..], &share, &["--high-speed-swap", path]].concat();
    let serving = Serving::start(server, weights, &streamed);
    let mut resident = Vec::new();
    for (length, expected) in lengths.iter().zip(&expected) {
        let found = ask(&serving, &ids[..*length], tokens);
        println!(
            "{name}: {length} tokens and {tokens} more in {:.2} s, all resident in {:.2} s",
            found.seconds, expected.seconds
        );
        assert_eq!(found.choice, expected.choice, "{name}, {length} tokens");
        resident.push(serving.resident_bytes());
    }
    let sent = metric(&serving.address, "monomorph:kv_blocks_offloaded");
    println!("{name}: {sent} blocks sent; resident bytes {resident:?}, with everything in memory {all}");
    assert!(sent > 100.0, "{name}: {sent} blocks were sent");
    let grown = resident[resident.len() - 1].saturating_sub(resident[0]);
    assert!(grown <= most, "{name}: {grown} more bytes resident after {lengths:?} tokens");
    drop(serving);
    let left: Vec<_> = directory.path().read_dir().expect("it is there").collect();
    assert!(left.is_empty(), "{left:?}");
}

#[test]
#[cfg_attr(not(smollm2), ignore = "needs SmolLM2's weights: cargo xtask test")]
fn a_long_context_is_answered_as_with_everything_in_memory() {
    let weights = smollm2();
    let server = build(None, "cpu/smollm2-135m/q4_1");
    let share = ["--blocks", "64", "--resident-blocks", "32"];
    // The last five eighths of the conversation take 57 MB of keys and values.
    compare("smollm2", &server, &weights, 49_000, &[1500, 4000], share, 12 << 20);
}

/// A hybrid golden with a long context, with or without drafts.
fn compare_hybrid(name: &str, draft: Option<DraftOption>, lengths: &[usize]) {
    let targets = tempfile::tempdir().expect("temporary directories can be made");
    let long = tempfile::tempdir().expect("temporary directories can be made");
    // With room for the drafts.
    let golden = golden(name).in_a_long_context(8256, long.path());
    golden.import_into(targets.path(), Compute::F32);
    let target = format!("cpu/{name}/f32");
    let search = [targets.path().to_owned(), root().join("targets")];
    let vocabulary = spec::load(&search, &target).unwrap_or_else(|error| panic!("{error}")).model.vocabulary;
    let weights = tempfile::tempdir().expect("temporary directories can be made");
    with_tokenizer(&golden, vocabulary, weights.path());
    // If all drafts are accepted, passes reach as far past a sequence as they ever do.
    draft.iter().for_each(|_| repeat(weights.path(), KEPT));
    let options = BuildOptions { draft, ..BuildOptions::default() };
    let server = build_with(Some(targets.path()), &target, &options);
    let share = ["--blocks", "128", "--resident-blocks", "64"];
    compare(name, &server, weights.path(), vocabulary, lengths, share, 12 << 20);
}

#[test]
fn it_is_so_with_recurrent_state() {
    compare_hybrid("qwen3-next", None, &[1500, 4000]);
}

#[test]
fn it_is_so_with_drafts() {
    // In the second golden two layers attend, and they do so in every pass.
    for (name, method) in [("qwen35-vision", DraftMethod::Mtp), ("qwen35-quarters", DraftMethod::Layers)] {
        let option = DraftOption { method, drafts: 3, vocabulary: None, forced_acceptance: None };
        // Steps of four tokens that meet the end of a block at every offset.
        compare_hybrid(name, Some(option), &[1500, 3997, 3998, 3999, 4000]);
    }
}

#[test]
#[cfg_attr(not(smollm2), ignore = "needs SmolLM2's weights: cargo xtask test")]
fn what_makes_no_sense_is_refused() {
    let weights = smollm2();
    let server = build(None, "cpu/smollm2-135m/q4_1");
    let refused = |arguments: &[&str]| {
        let output = std::process::Command::new(&server)
            .args(["serve", "--port", "0", "--weights"])
            .arg(&weights)
            .args(arguments)
            .output()
            .expect("the server starts");
        assert!(!output.status.success(), "{arguments:?}");
        String::from_utf8_lossy(&output.stderr).into_owned()
    };
    let directory = tempfile::tempdir().expect("temporary directories can be made");
    let path = directory.path().to_str().expect("it is UTF-8");
    for (arguments, word) in [
        (&["--resident-blocks", "8"][..], "--high-speed-swap"),
        (&["--high-speed-swap", "/nowhere/at/all"], "no such directory"),
        (&["--high-speed-swap", path, "--high-speed-swap-space", "0"], "above 0"),
        (&["--high-speed-swap", path, "--high-speed-swap-space", "0.0001"], "bytes are less than"),
        (&["--high-speed-swap", path, "--high-speed-swap-space", "1e5"], "room"),
        (&["--high-speed-swap", path, "--blocks", "64", "--resident-blocks", "65"], "must be at most 64"),
        (&["--high-speed-swap", path, "--blocks", "64", "--resident-blocks", "2"], "at least"),
    ] {
        let said = refused(arguments);
        assert!(said.contains(word), "{arguments:?}: {said}");
    }
}
