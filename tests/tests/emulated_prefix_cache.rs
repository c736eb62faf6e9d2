//! CUDA servers on an emulated card (tests/emulated) that reuse cached prefixes: blocks, and recurrent states
//! copied on the device. They answer as servers without a cache, with exact products, whose sums hardly
//! depend on where a prompt is cut.

use monomorph_compiler::spec;
use monomorph_compiler::spec::types::{BuildOptions, Compute, DraftMethod, DraftOption};
use monomorph_formats::cached::{Cached, KvFormats};
use monomorph_tests::crowd::{Random, Request, with_tokenizer};
use monomorph_tests::emulated;
use monomorph_tests::goldens::{Golden, golden};
use monomorph_tests::root;
use monomorph_tests::server::{Serving, get};
use serde_json::{Value, json};

const ARGUMENTS: [&str; 6] = ["--threads", "1", "--context", "256", "--kv-tokens", "2048"];
/// Few, so that some are evicted.
const SNAPSHOTS: [&str; 4] = ["--snapshots", "3", "--snapshot-interval", "64"];
/// Tokens per answer.
const TOKENS: usize = 20;

/// Conversations of several turns, each a prefix of the next, and one that branches off another in the
/// middle.
fn requests(vocabulary: usize) -> Vec<Request> {
    let mut random = Random(11);
    let mut requests: Vec<Request> = Vec::new();
    let mut ask = |prompt| {
        requests.push(Request { prompt, tokens: TOKENS, sampling: json!({"temperature": 0}), surplus: 0 })
    };
    for first in [40, 97] {
        let mut prompt = random.ids(first, vocabulary);
        for more in [1, 33, 25] {
            ask(prompt.clone());
            prompt.extend(random.ids(more, vocabulary));
        }
        prompt.truncate(70);
        prompt.extend(random.ids(19, vocabulary));
        ask(prompt);
    }
    requests
}

fn answers_alike(hardware: &str, golden: &Golden, draft: Option<DraftOption>, kv: Option<KvFormats>) {
    let targets = tempfile::tempdir().expect("temporary directories can be made");
    // Its own multiprocessors: with few, attention over one row and over several splits the context
    // differently.
    let hardware = emulated::hardware(targets.path(), hardware, None);
    let name = &golden.name;
    golden.import_into(targets.path(), Compute::F16);
    let search = [targets.path().to_owned(), root().join("targets")];
    let options = BuildOptions { draft, kv, ..BuildOptions::default() };
    let target = spec::load_with(&search, &format!("{hardware}/{name}/f32"), &options);
    let target = target.unwrap_or_else(|error| panic!("{error}"));
    let server = emulated::build_up_to(&target, 1);
    let weights = tempfile::tempdir().expect("temporary directories can be made");
    with_tokenizer(golden, target.model.vocabulary, weights.path());
    let serve = |further: &[&str]| {
        Serving::start_command(server.command(), weights.path(), &[&ARGUMENTS, further].concat())
    };
    let requests = requests(target.model.vocabulary);
    let ask = |serving: &Serving| -> Vec<String> {
        requests.iter().map(|request| request.whole(&serving.address).text).collect()
    };
    let expected = ask(&serve(&["--prefix-cache", "off"]));
    let serving = serve(&SNAPSHOTS);
    let found = ask(&serving);
    let (_, health) = get(&serving.address, "/health").expect("it answers");
    let health: Value = serde_json::from_str(&health).expect("health is JSON");
    let count = |key: &str| health["stats"][key].as_u64().expect("it is counted");
    let [cached, snapshots, evicted] = ["tokens_cached", "snapshots", "snapshots_evicted"].map(count);
    println!("{}: {cached} tokens were there, {snapshots} snapshots, {evicted} evicted", target.build());
    assert_eq!(found, expected, "{}", target.build());
    assert!(cached > 300 && snapshots == 3 && evicted > 0, "{cached} tokens, {snapshots} and {evicted}");
}

#[test]
fn second_turns_are_answered_as_without_a_cache() {
    answers_alike("h200", &golden("qwen35-text"), None, None);
}

#[test]
#[ignore = "minutes"]
fn second_turns_over_codes_are_answered_as_without_a_cache() {
    let directory = tempfile::tempdir().expect("temporary directories can be made");
    let golden = golden("qwen3-next").with_heads_of_64(directory.path());
    answers_alike("h200", &golden, None, Some(KvFormats::both(Cached::Turbo4)));
}

#[test]
#[ignore = "minutes"]
fn second_turns_of_mamba2_are_answered_as_without_a_cache() {
    for name in ["nemotron-h-mamba", "nemotron-h-nano"] {
        answers_alike("h200", &golden(name), None, None);
    }
}

#[test]
#[ignore = "minutes"]
fn second_turns_with_drafts_are_answered_as_without_a_cache() {
    answers_alike(
        "gb10",
        &golden("qwen35-vision"),
        Some(DraftOption { method: DraftMethod::Mtp, drafts: 2, vocabulary: None, forced_acceptance: None }),
        None,
    );
}
