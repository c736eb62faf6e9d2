//! CUDA servers on an emulated card (tests/emulated) with K/V offload: the same ids and log-probabilities as
//! with everything on the card, alone and in a batch; and a failing disk ends the answers that need it, and
//! no others.
//!
//! Planted, one at a time, and caught here: a layer given the previous layer's part; a group given another's
//! slot; the pages of the second window copied over the first's; a slot released before it was copied, at a
//! part's end and at a step's; a half filled while a layer attends to the other step's, or the other layer's;
//! kernels that do not wait for copies (only since the emulated card runs some concurrently); a stale block
//! table; blocks sent before they were fetched; a recorded graph launched all the same; losses not reported,
//! and reported to sequences that lost nothing. Giving the first layer's ids to every layer stops the server
//! at start.

use monomorph_compiler::spec;
use monomorph_compiler::spec::types::{BuildOptions, Compute, DraftMethod, DraftOption};
use monomorph_formats::cached::{Cached, KvFormats};
use monomorph_tests::crowd::{Answer, Random, Request, crowd, with_tokenizer};
use monomorph_tests::emulated;
use monomorph_tests::goldens::golden;
use monomorph_tests::root;
use monomorph_tests::server::{Serving, metric, post};
use serde_json::json;
use std::path::Path;
use std::time::Instant;

/// A card, a golden, its weights, the step width of a batch-invariant server, the number of drafts by lookup,
/// and formats of keys and values, whose static scales are measured.
type Case = (&'static str, &'static str, &'static str, Option<usize>, Option<usize>, Option<&'static str>);

/// Several layers with an odd block size; steps of two parts.
const CASE: Case = ("h200", "qwen3-moe-raw", "bf16", Some(8), None, None);
/// Blocks of codes and their scales, of keys and values of two sizes. Heads are widened to 64.
const GROUPS: Case = ("h200", "qwen35-quarters", "f32", None, None, Some("turbo4/turbo3"));
const OTHERS: [Case; 6] = [
    ("gb10", "qwen3-moe-raw", "bf16", Some(8), None, None),
    ("h200", "qwen35-quarters", "f32", Some(4), None, None),
    ("h200", "qwen3-next", "bf16", Some(8), None, None),
    // A batch of one has the same size with blocks on disk as without.
    ("h200", "qwen3-moe", "bf16", None, None, None),
    ("h200", "qwen35-vision", "f32", None, Some(3), None),
    // Several layers, each with scales in front of its blocks.
    ("h200", "qwen3-moe-raw", "bf16", Some(8), None, Some("fp8")),
];
const SERVER: [&str; 6] = ["--threads", "1", "--context", "250", "--prefix-cache", "off"];
const MEASURED: &[&str] = &["--kv-calibration-tokens", "64"];
/// The same prefill chunks with and without blocks on disk.
const PIECES: [&str; 2] = ["--prefill-tokens", "32"];

/// Long prompts, which have blocks on disk, and short ones, which do not.
fn requests(vocabulary: usize) -> Vec<Request> {
    let mut random = Random(3);
    let sampling = |at: usize| match at {
        0 | 4 => json!({"temperature": 0}),
        // Its steps sample behind a second upload.
        2 => json!({"temperature": 0, "frequency_penalty": 0.4}),
        _ => json!({"temperature": 0.8, "seed": at}),
    };
    let lengths = [215, 20, 163, 5, 141];
    let request = |(at, length)| Request {
        prompt: random.ids(length, vocabulary),
        tokens: 24,
        sampling: sampling(at),
        surplus: 0,
    };
    lengths.into_iter().enumerate().map(request).collect()
}

fn alone(serving: &Serving, requests: &[Request]) -> Vec<Answer> {
    requests.iter().map(|request| request.whole(&serving.address)).collect()
}

/// The error of a request that must fail.
fn refusal(serving: &Serving, request: &Request) -> String {
    let body = json!({"prompt": request.prompt, "max_tokens": 100, "temperature": 0, "ignore_eos": true});
    let (status, text) = post(&serving.address, "/v1/completions", &body.to_string()).expect("it answers");
    assert_eq!(status, 500, "{text}");
    text
}

fn check((hardware, name, quant, invariant, drafts, kv): Case) {
    let targets = tempfile::tempdir().expect("temporary directories can be made");
    let hardware = emulated::hardware(targets.path(), hardware, Some(emulated::FEW));
    let kv = kv.map(|kv| KvFormats::from_name(kv).unwrap_or_else(|error| panic!("{error}")));
    let grouped = kv.is_some_and(|kv| kv != KvFormats::both(Cached::Fp8));
    let golden = if grouped { golden(name).with_heads_of_64(targets.path()) } else { golden(name) };
    let name = &golden.name;
    golden.import_into(targets.path(), Compute::F16);
    let search = [targets.path().to_owned(), root().join("targets")];
    let draft = drafts.map(|drafts| DraftOption {
        method: DraftMethod::Ngram,
        drafts,
        vocabulary: None,
        forced_acceptance: None,
    });
    let measured = kv.map_or(&[][..], |_| MEASURED);
    let options = BuildOptions { batch_invariant: invariant, draft, kv, ..BuildOptions::default() };
    let target = spec::load_with(&search, &format!("{hardware}/{name}/{quant}"), &options);
    let target = target.unwrap_or_else(|error| panic!("{error}"));
    let begin = Instant::now();
    let server = emulated::build_up_to(&target, 4);
    println!("{} built in {:.1} s", target.build(), begin.elapsed().as_secs_f32());
    let weights = tempfile::tempdir().expect("temporary directories can be made");
    with_tokenizer(&golden, target.model.vocabulary, weights.path());
    let file = "model.safetensors";
    let from = golden.directory.join(quant).join(file);
    std::fs::copy(from, weights.path().join(file)).expect("it is writable");

    let begin = Instant::now();
    let serve = |flags: &[&str]| {
        let flags = [&SERVER[..], &PIECES, measured, flags].concat();
        Serving::start_command(server.command(), weights.path(), &flags)
    };
    let requests = requests(target.model.vocabulary);
    let whole = serve(&["--kv-tokens", "2048"]);
    let expected = alone(&whole, &requests);
    // It is still being answered while a long one has blocks on disk.
    let beside = Request { tokens: 70, ..requests[3].clone() };
    let expected_beside = beside.whole(&whole.address);
    drop(whole);
    println!("all resident: {:.1} s", begin.elapsed().as_secs_f32());

    let disk = tempfile::tempdir().expect("temporary directories can be made");
    let directory = disk.path().to_str().expect("a plain path");
    // Half of the longest sequence is resident; one file serves several; groups of a few blocks, and windows
    // smaller than a sequence.
    let offload = ["--blocks", "21", "--resident-blocks", "7", "--high-speed-swap", directory];
    let file =
        ["--high-speed-swap-space", "0.004", "--high-speed-swap-page", "8", "--high-speed-swap-depth", "2"];
    let offload = serve(&[&offload[..], &file].concat());
    assert_eq!(alone(&offload, &requests), expected, "{}, alone", target.build());
    let sent = metric(&offload.address, "monomorph:kv_blocks_offloaded");
    println!("{sent} blocks sent: {:.1} s", begin.elapsed().as_secs_f32());
    assert!(sent >= 15.0, "{sent} blocks were sent");
    if invariant.is_some() {
        assert_eq!(crowd(&offload.address, &requests, 4), expected, "{}, side by side", target.build());
        println!("side by side: {:.1} s", begin.elapsed().as_secs_f32());
    }
    let found = goes_bad(&offload, &requests[4], &beside, disk.path());
    if invariant.is_some() {
        assert_eq!(found, expected_beside, "beside one whose blocks are lost");
    }
    // Blocks written after the failure are intact.
    assert_eq!(requests[0].whole(&offload.address), expected[0], "after a disk was bad");
    println!("a disk gone bad: {:.1} s", begin.elapsed().as_secs_f32());
}

/// Overwrites the file of a long sequence while it is answered: the sequence fails, and the one beside it is
/// answered.
fn goes_bad(serving: &Serving, long: &Request, beside: &Request, disk: &Path) -> Answer {
    let sent = || metric(&serving.address, "monomorph:kv_blocks_offloaded");
    let before = sent();
    std::thread::scope(|scope| {
        let other = scope.spawn(|| beside.whole(&serving.address));
        let lost = scope.spawn(|| refusal(serving, long));
        let begin = Instant::now();
        // More than it has at its first decoded token: 9 blocks and a token, of which 7 blocks stay resident.
        while sent() < before + 3.0 {
            assert!(begin.elapsed().as_secs() < 60, "nothing is sent to disk");
        }
        assert_eq!(serving.spoil_files(disk), 1, "there is one file");
        assert!(!other.is_finished(), "both are answered at that time");
        let said = lost.join().expect("it is refused");
        assert!(said.contains("could not be read from disk"), "{said}");
        other.join().expect("it is answered")
    })
}

#[test]
fn sequences_longer_than_their_share_are_answered_as_with_everything_on_the_card() {
    check(CASE);
}

#[test]
#[ignore = "minutes"]
fn sequences_of_codes_longer_than_their_share_are_answered_so_too() {
    check(GROUPS);
}

/// The other kind of card, recurrent state, steps of one part, drafts. `MONOMORPH_GOLDENS` as in
/// `emulated.rs`.
#[test]
#[ignore = "minutes"]
fn others_are_so_too() {
    let wanted = std::env::var("MONOMORPH_GOLDENS").unwrap_or_default();
    for case in OTHERS {
        let name = format!("{}/{}/{}", case.0, case.1, case.2);
        if wanted.is_empty() || wanted.split(',').any(|it| name.contains(it)) {
            check(case);
        }
    }
}
