//! CUDA servers on an emulated card (tests/emulated) whose layers with a sliding window give back blocks:
//! answers that outgrow the window many times are what their own text says as a prompt, of which a step has
//! all blocks; and many at once, pre-empted and copied out, are answered as each alone.

use monomorph_compiler::spec;
use monomorph_compiler::spec::types::{BuildOptions, Compute};
use monomorph_formats::cached::{Cached, KvFormats};
use monomorph_tests::crowd::{Random, Request, crowd, with_tokenizer};
use monomorph_tests::emulated;
use monomorph_tests::goldens::golden;
use monomorph_tests::root;
use monomorph_tests::server::{Serving, stats};
use serde_json::json;

/// Its window is of 24 tokens, and its blocks of 16. Products are exact: sums hardly depend on the step.
const GOLDEN: &str = "gemma4-dense";
/// Tokens of an answer.
const TOKENS: usize = 120;
/// Sequences at a time where there are several, and tokens that these have memory for: less than they take.
const CLIENTS: usize = 3;
const MEMORY: &str = "288";
/// Most rounds of requests until one was copied out and came back.
const ROUNDS: usize = 4;

fn count(address: &str, key: &str) -> u64 {
    let stats = stats(address);
    stats[key].as_u64().unwrap_or_else(|| panic!("{key} is counted: {stats}"))
}

#[test]
#[ignore = "minutes"]
fn long_answers_from_blocks_given_back_are_what_they_say_as_prompts() {
    answers_are_what_they_say_as_prompts(None);
}

/// Blocks of layers with a window have scales in front of them, too.
#[test]
#[ignore = "minutes"]
fn long_answers_from_blocks_of_fp8_given_back_are_what_they_say_as_prompts() {
    answers_are_what_they_say_as_prompts(Some(KvFormats::both(Cached::Fp8)));
}

fn answers_are_what_they_say_as_prompts(kv: Option<KvFormats>) {
    let targets = tempfile::tempdir().expect("temporary directories can be made");
    // Its own multiprocessors: with few, attention over one row and over several splits the context
    // differently.
    let hardware = emulated::hardware(targets.path(), "h200", None);
    let golden = golden(GOLDEN);
    golden.import_into(targets.path(), Compute::F16);
    let search = [targets.path().to_owned(), root().join("targets")];
    let options = BuildOptions { kv, ..BuildOptions::default() };
    let target = spec::load_with(&search, &format!("{hardware}/{GOLDEN}/f32"), &options);
    let target = target.unwrap_or_else(|error| panic!("{error}"));
    let vocabulary = target.model.vocabulary;
    let server = emulated::build_up_to(&target, CLIENTS);
    let weights = tempfile::tempdir().expect("temporary directories can be made");
    with_tokenizer(&golden, vocabulary, weights.path());
    let serve = |more: &[&str]| {
        let arguments = ["--threads", "1", "--context", "256"];
        Serving::start_command(server.command(), weights.path(), &[&arguments, more].concat())
    };
    let greedy = |prompt, tokens| Request { prompt, tokens, sampling: json!({"temperature": 0}), surplus: 0 };

    let mut random = Random(3);
    let requests = [40, 9, 100].map(|length| greedy(random.ids(length, vocabulary), TOKENS));
    let quiet = serve(&["--sequences", "1", "--kv-tokens", "2048", "--prefix-cache", "off"]);
    let alone = requests.each_ref().map(|request| request.whole(&quiet.address));
    for (request, answer) in requests.iter().zip(&alone) {
        assert_eq!(answer.text.len(), TOKENS, "{}", answer.text);
        for told in [1, 30, TOKENS - 1] {
            // The tokenizer's characters are its ids from '!' on.
            let told_ids = answer.text.bytes().take(told).map(|it| u32::from(it - b'!'));
            let prompt = request.prompt.iter().copied().chain(told_ids).collect();
            let next = greedy(prompt, 1).whole(&quiet.address);
            assert_eq!(next.text, answer.text[told..=told], "behind {told} of {}", answer.text);
        }
    }
    drop(quiet);

    let swap = ["--swap-space", "0.01", "--swap-when", "always"];
    let sequences = CLIENTS.to_string();
    let busy = serve(&[&["--sequences", &sequences, "--kv-tokens", MEMORY], &swap[..]].concat());
    let seen = (0..ROUNDS).any(|_| {
        for (found, alone) in crowd(&busy.address, &requests, CLIENTS).iter().zip(&alone) {
            assert_eq!(found.text, alone.text);
        }
        let [out, back] = ["swapped_out", "swapped_in"].map(|key| count(&busy.address, key));
        println!("{out} out, {back} back");
        back > 0
    });
    assert!(seen, "none was copied out and came back");
}
