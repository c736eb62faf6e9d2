//! CUDA servers that draft, on an emulated card (tests/emulated): they answer token for token as servers that
//! do not, and draft what a CPU server drafts.

use monomorph_compiler::spec;
use monomorph_compiler::spec::types::DraftMethod::{Layers, Mtp, Ngram};
use monomorph_compiler::spec::types::{BuildOptions, Compute, DraftMethod, DraftOption, Target};
use monomorph_formats::cached::{Cached, KvFormats};
use monomorph_tests::crowd::{Answer, Random, Request, crowd, with_tokenizer};
use monomorph_tests::emulated::{self, Server};
use monomorph_tests::goldens::{Golden, goldens};
use monomorph_tests::repeating::{KEPT, repeat};
use monomorph_tests::root;
use monomorph_tests::server::{Serving, build_unoptimised, get};
use serde_json::{Value, json};
use std::path::Path;

/// An emulated card, a golden, its weights, its draft method and number of drafts.
type Case = (&'static str, &'static str, &'static str, DraftMethod, usize);

const CASES: [Case; 1] = [("h200", "qwen35-moe-vision", "bf16", Mtp, 2)];
const OTHERS: [Case; 22] = [
    ("h200", "qwen35-vision", "f32", Mtp, 2),
    ("h200", "qwen35-vision", "bf16", Mtp, 1),
    ("h200", "qwen35-vision", "bf16", Mtp, 3),
    ("h200", "qwen35-moe-vision", "bf16", Mtp, 1),
    ("h200", "qwen35-moe-vision", "bf16", Mtp, 3),
    ("gb10", "qwen35-vision", "bf16", Mtp, 2),
    ("gb10", "qwen35-moe-vision", "bf16", Mtp, 2),
    ("h200", "nemotron-h-mtp", "f32", Mtp, 2),
    ("gb10", "nemotron-h-mtp", "bf16", Mtp, 3),
    ("h200", "qwen35-vision", "bf16", Ngram, 3),
    ("h200", "qwen3-tied", "bf16", Ngram, 4),
    ("h200", "qwen35-vision", "f32", Ngram, 7),
    ("h200", "qwen35-moe-vision", "bf16", Ngram, 7),
    ("gb10", "qwen35-vision", "bf16", Ngram, 2),
    ("h200", "nemotron-h-mamba", "f32", Ngram, 3),
    ("gb10", "nemotron-h-mamba", "bf16", Ngram, 7),
    ("gb10", "nemotron-h-few", "bf16", Ngram, 4),
    ("h200", "nemotron-h-nano", "bf16", Layers, 2),
    ("h200", "qwen35-quarters", "f32", Layers, 2),
    ("h200", "qwen35-vision", "bf16", Layers, 1),
    ("h200", "qwen35-moe-vision", "bf16", Layers, 3),
    ("gb10", "qwen35-vision", "bf16", Layers, 2),
];
/// Concurrent clients.
const CLIENTS: usize = 4;
/// No prefix cache: a prompt cut at a different place may round differently, which has nothing to do with
/// drafts.
const ARGUMENTS: [&str; 8] =
    ["--threads", "1", "--context", "256", "--kv-tokens", "2048", "--prefix-cache", "off"];

fn golden(name: &str) -> Golden {
    goldens().into_iter().find(|golden| golden.name == name).expect("it is committed")
}

fn load(targets: &Path, target: &str, draft: Option<DraftOption>, kv: Option<KvFormats>) -> Target {
    let search = [targets.to_owned(), root().join("targets")];
    let options = BuildOptions { draft, kv, ..BuildOptions::default() };
    spec::load_with(&search, target, &options).unwrap_or_else(|error| panic!("{error}"))
}

fn serve(server: &Server, weights: &Path) -> Serving {
    Serving::start_command(server.command(), weights, &ARGUMENTS)
}

/// A golden's weights with a tokenizer.
fn weights(golden: &Golden, quant: &str, vocabulary: usize) -> tempfile::TempDir {
    let directory = tempfile::tempdir().expect("temporary directories can be made");
    with_tokenizer(golden, vocabulary, directory.path());
    let file = "model.safetensors";
    let from = golden.directory.join(quant).join(file);
    std::fs::copy(from, directory.path().join(file)).expect("it is writable");
    directory
}

fn requests(vocabulary: usize, tokens: usize) -> Vec<Request> {
    let mut random = Random(5);
    let sampling = |at: usize| match at {
        0 => json!({"temperature": 0}),
        // The next token depends on the position in the answer, so each draft has its own mask.
        3 => json!({"temperature": 0, "guided_regex": "([!-9][^!-9])*", "ignore_eos": false}),
        1 => json!({"temperature": 0.7, "seed": at, "frequency_penalty": 0.5}),
        _ => json!({"temperature": 0, "presence_penalty": 0.4, "repetition_penalty": 1.2}),
    };
    let request = |at: usize| {
        let prompt = random.ids(1 + 23 * at, vocabulary);
        Request { prompt, tokens, sampling: sampling(at), surplus: 0 }
    };
    (0..4).map(request).collect()
}

/// Whether an answer matches its format, if it has one: characters up to `9` and others alternate.
fn fits(text: &str, request: &Request) -> bool {
    let held = request.sampling.get("guided_regex").is_some();
    !held || text.bytes().enumerate().all(|(at, byte)| (byte <= b'9') == at.is_multiple_of(2))
}

fn alone(serving: &Serving, requests: &[Request]) -> Vec<Answer> {
    requests.iter().map(|request| request.whole(&serving.address)).collect()
}

fn changes_no_answer((hardware, name, quant, method, drafts): Case, kv: Option<KvFormats>) {
    let targets = tempfile::tempdir().expect("temporary directories can be made");
    // Its own multiprocessors: with few, attention over one row and over several splits the context
    // differently, and sums that differ in their last bits may break ties differently.
    let hardware = emulated::hardware(targets.path(), hardware, None);
    let golden = golden(name);
    golden.import_into(targets.path(), Compute::F16);
    let target = format!("{hardware}/{name}/{quant}");
    let plain = load(targets.path(), &target, None, kv);
    let option = DraftOption { method, drafts, vocabulary: None, forced_acceptance: None };
    let drafting = load(targets.path(), &target, Some(option), kv);
    let servers = [&plain, &drafting].map(|target| emulated::build_up_to(target, 4));
    let requests = requests(plain.model.vocabulary, 16);
    for repeats in [false, true] {
        let weights = weights(&golden, quant, plain.model.vocabulary);
        if repeats {
            repeat(weights.path(), KEPT);
        }
        let expected = alone(&serve(&servers[0], weights.path()), &requests);
        let serving = serve(&servers[1], weights.path());
        let found = [alone(&serving, &requests), crowd(&serving.address, &requests, CLIENTS)];
        let (_, health) = get(&serving.address, "/health").expect("it answers");
        let health: Value = serde_json::from_str(&health).expect("health is JSON");
        let count = |key: &str| health["stats"][key].as_f64().expect("it is counted");
        let (verified, held) = (count("drafts_verified"), count("drafts_accepted"));
        println!(
            "{} with weights that repeat: {repeats}: {held} of {verified} drafts held",
            drafting.build()
        );
        for (found, crowded) in found.iter().zip([false, true]) {
            assert!(
                found.iter().zip(&requests).all(|(found, request)| fits(&found.text, request)),
                "{found:?}"
            );
            let texts = |answers: &[Answer]| answers.iter().map(|it| it.text.clone()).collect::<Vec<_>>();
            let (found, expected) = (texts(found), texts(&expected));
            let other = found.iter().zip(&expected).filter(|(found, expected)| found != expected).count();
            // The number of rows per step depends on timing, and with it the program that computes a row: f16
            // products summed in another order may break ties differently. One such answer is no defect; with
            // exact products there is none.
            let most = usize::from(crowded && quant != "f32");
            assert!(
                other <= most,
                "{}, crowded: {crowded}: {found:?}, and without drafts {expected:?}",
                drafting.build()
            );
        }
        let rate = held / verified;
        match (method, repeats) {
            (Mtp, true) => assert!(verified > 60.0 && (0.2..0.97).contains(&rate), "{rate}"),
            (Mtp, false) => assert!(verified > 60.0 && rate < 0.1, "{rate}"),
            (Layers, true) => assert!(verified > 60.0 && rate > 0.2, "{rate}"),
            (Layers, false) => assert!(verified > 60.0 && rate < 0.7, "{rate}"),
            // Few tokens of random weights repeat, so lookup finds little or nothing.
            (Ngram, true) => assert!(verified > 30.0 && (0.2..0.99).contains(&rate), "{held} of {verified}"),
            (Ngram, false) => {}
            (DraftMethod::Dflash { .. }, _) => unreachable!("cards have no passes of blocks"),
        }
    }
}

#[test]
fn drafts_change_no_answer() {
    CASES.into_iter().for_each(|case| changes_no_answer(case, None));
}

#[test]
#[ignore = "minutes each"]
fn drafts_change_no_answer_of_any_kernels() {
    OTHERS.into_iter().for_each(|case| changes_no_answer(case, None));
}

/// A draft head has a cache of its own, with scales in front of its blocks.
#[test]
#[ignore = "minutes"]
fn drafts_change_no_answer_over_fp8() {
    changes_no_answer(("h200", "qwen35-vision", "f32", Mtp, 2), Some(KvFormats::both(Cached::Fp8)));
}

/// Both builds accept drafts whatever is sampled, so that their answers show them, and draft from a part of
/// the vocabulary.
fn drafts_as_a_cpu(hardware: &str, name: &str, method: DraftMethod, drafts: usize) {
    let targets = tempfile::tempdir().expect("temporary directories can be made");
    let quant = "f32";
    // Its own multiprocessors: with few, attention over one row and over several splits the context
    // differently, and sums that differ in their last bits may break ties differently.
    let hardware = emulated::hardware(targets.path(), hardware, None);
    let golden = golden(name);
    golden.import_into(targets.path(), Compute::F16);
    let shown = DraftOption { method, drafts, vocabulary: Some(23), forced_acceptance: Some(0.6) };
    let target = load(targets.path(), &format!("{hardware}/{name}/{quant}"), Some(shown), None);
    let server = emulated::build_up_to(&target, 1);
    let options = BuildOptions { draft: Some(shown), ..BuildOptions::default() };
    let cpu = build_unoptimised(targets.path(), &format!("cpu/{name}/{quant}"), &options);
    let weights = weights(&golden, quant, target.model.vocabulary);
    // An answer of drafts accepted whatever was sampled follows no format.
    let mut requests = requests(target.model.vocabulary, 30);
    requests.retain(|request| request.sampling["guided_regex"].is_null());
    // One at a time, so that both servers use the same slot, which decides what is accepted.
    let expected = alone(&Serving::start(&cpu, weights.path(), &ARGUMENTS), &requests);
    let found = alone(&serve(&server, weights.path()), &requests);
    for (number, (expected, found)) in expected.iter().zip(&found).enumerate() {
        assert_eq!(found.text, expected.text, "{}, request {number}", target.build());
    }
}

#[test]
fn drafts_are_those_of_a_cpu() {
    drafts_as_a_cpu("gb10", "qwen35-vision", Mtp, 3);
}

#[test]
#[ignore = "minutes each"]
fn any_number_of_drafts_is_that_of_a_cpu() {
    [1, 2].into_iter().for_each(|drafts| drafts_as_a_cpu("h200", "qwen35-vision", Mtp, drafts));
    drafts_as_a_cpu("h200", "nemotron-h-mtp", Mtp, 2);
    [1, 3].into_iter().for_each(|drafts| drafts_as_a_cpu("gb10", "qwen35-vision", Layers, drafts));
    // Two of its five layers attend, the first among them.
    drafts_as_a_cpu("h200", "qwen35-quarters", Layers, 2);
}
