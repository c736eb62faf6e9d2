//! The second turn of a conversation reuses the first from the cache: the answer equals that of a server that
//! computes everything, and its first token comes at once. For models with keys and values only, with
//! recurrent state, and with sliding windows.

use monomorph_compiler::spec;
use monomorph_compiler::spec::types::{BuildOptions, Compute};
use monomorph_formats::cached::{Cached, KvFormats};
use monomorph_tests::crowd::{Random, with_tokenizer};
use monomorph_tests::goldens::goldens;
use monomorph_tests::server::{Serving, build, build_with, post_streamed};
use monomorph_tests::{root, smollm2};
use serde_json::{Value, json};
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::time::Instant;

/// Tokens of the first prompt.
const TOKENS: usize = 4096;
/// Conversations: a minimum, and more until one ran without delays from the rest of the machine.
const ROUNDS: std::ops::Range<usize> = 4..64;
/// Largest ratio of the second turn's first-token time to the first turn's: the fastest of each, as noise
/// only adds.
const BOUND: f64 = 0.1;

/// Path and body of a turn's request, from the previous answer.
type Turn<'a> = &'a dyn Fn(usize, Option<&str>) -> (String, Value);

/// A streamed answer.
#[derive(Debug)]
struct Heard {
    text: String,
    /// Seconds from the request to the first text.
    first_token: f64,
    prompt: u64,
    cached: u64,
}

/// Asks for a streamed answer.
fn ask(address: &str, path: &str, mut body: Value) -> Heard {
    let fields = json!({"stream": true, "stream_options": {"include_usage": true}, "temperature": 0});
    body.as_object_mut().expect("an object").extend(fields.as_object().cloned().expect("an object"));
    let body = body.to_string();
    let began = Instant::now();
    let stream = post_streamed(address, path, &body);
    let mut heard = Heard { text: String::new(), first_token: 0.0, prompt: 0, cached: 0 };
    for line in BufReader::new(stream).lines() {
        let line = line.expect("the stream ends in good order");
        let Some(event) = line.strip_prefix("data: ").filter(|event| *event != "[DONE]") else { continue };
        let event: Value = serde_json::from_str(event).expect("events are JSON");
        assert!(event["error"].is_null(), "{event}");
        let choice = &event["choices"][0];
        let text = choice["text"].as_str().or(choice["delta"]["content"].as_str()).unwrap_or_default();
        if heard.text.is_empty() && !text.is_empty() {
            heard.first_token = began.elapsed().as_secs_f64();
        }
        heard.text.push_str(text);
        let count = |value: &Value| value.as_u64().unwrap_or_default();
        heard.prompt += count(&event["usage"]["prompt_tokens"]);
        heard.cached += count(&event["usage"]["prompt_tokens_details"]["cached_tokens"]);
    }
    assert!(!heard.text.is_empty(), "an answer of nothing");
    heard
}

/// Both turns of a conversation.
fn converse(serving: &Serving, round: usize, turn: Turn) -> [Heard; 2] {
    let ask = |(path, body): (String, Value)| ask(&serving.address, &path, body);
    let first = ask(turn(round, None));
    let second = ask(turn(round, Some(&first.text)));
    [first, second]
}

/// Conversations with two servers, one of them without a cache; `turn` makes a turn's request from the
/// previous answer.
fn compare(name: &str, server: &Path, weights: &Path, arguments: &[&str], turn: Turn) {
    let start = |cache: &str| {
        let cache = ["--prefix-cache", cache];
        Serving::start(server, weights, &[arguments, &cache].concat())
    };
    let forgetful = start("off");
    let expected = converse(&forgetful, 0, turn);
    drop(forgetful);
    let serving = start("on");
    let [one, other] = [0, 1].map(|turn| 1e3 * expected[turn].first_token);
    println!("{name}: first tokens after {one:.1} and {other:.1} ms where nothing is kept");
    let mut quickest = [f64::INFINITY; 2];
    for round in 0..ROUNDS.end {
        let found = converse(&serving, round, turn);
        if round == 0 {
            for (expected, found) in expected.iter().zip(&found) {
                let found = (&found.text, found.prompt, expected.cached);
                assert_eq!((&expected.text, expected.prompt, 0), found, "{name}");
            }
        }
        let [first, second] = &found;
        println!(
            "{name}, round {round}: first tokens after {:.1} ms of {} tokens and {:.2} ms of {} ({} cached)",
            1e3 * first.first_token,
            first.prompt,
            1e3 * second.first_token,
            second.prompt,
            second.cached,
        );
        assert!(first.prompt >= TOKENS as u64 && first.cached < 64, "{name}, round {round}: {first:?}");
        assert!(
            second.cached + 64 > first.prompt,
            "{name}, round {round}: {second:?} after {}",
            first.prompt
        );
        quickest = [0, 1].map(|turn| quickest[turn].min(found[turn].first_token));
        if round + 1 >= ROUNDS.start && quickest[1] <= BOUND * quickest[0] {
            break;
        }
    }
    let ratio = quickest[1] / quickest[0];
    println!("{name}: the second turn's first token takes {ratio:.4} of the first's");
    assert!(ratio <= BOUND, "{name}: {quickest:?} s");
}

#[test]
#[cfg_attr(not(smollm2), ignore = "needs SmolLM2's weights: cargo xtask test")]
fn the_second_turn_begins_where_the_first_ended() {
    let weights = smollm2();
    let server = build(None, "cpu/smollm2-135m/q4_1");
    let turn = |round: usize, answer: Option<&str>| {
        // A different beginning for each conversation: about eleven tokens per line.
        let lines = (0..TOKENS / 11 + 16)
            .map(|line| format!("{round}.{line}: one two three four\n"))
            .collect::<String>();
        let message = |role: &str, content: &str| json!({"role": role, "content": content});
        let mut messages = vec![message("user", &lines)];
        if let Some(answer) = answer {
            messages.extend([message("assistant", answer), message("user", "And what comes after that?")]);
        }
        ("/v1/chat/completions".to_owned(), json!({"messages": messages, "max_tokens": 24}))
    };
    compare("smollm2", &server, &weights, &["--context", "8192", "--threads", "2"], &turn);
}

#[test]
fn it_does_so_with_recurrent_state() {
    compare_golden("qwen3-next", None);
}

#[test]
fn it_does_so_with_sliding_windows() {
    compare_golden("gemma4-few", None);
}

/// Under measured scales, which are the same in both servers.
#[test]
fn it_does_so_with_keys_and_values_of_four_bits() {
    compare_golden("qwen3-next", Some(KvFormats::both(Cached::Turbo4)));
}

/// Conversations of ids with a server of a golden's model in a long context.
fn compare_golden(name: &str, kv: Option<KvFormats>) {
    let targets = tempfile::tempdir().expect("temporary directories can be made");
    let mut golden = goldens().into_iter().find(|golden| golden.name == name).expect("it is committed");
    let long = tempfile::tempdir().expect("temporary directories can be made");
    golden = golden.in_a_long_context(2 * TOKENS, long.path());
    golden.import_into(targets.path(), Compute::F32);
    let target = format!("cpu/{name}/f32");
    let search = [targets.path().to_owned(), root().join("targets")];
    let vocabulary = spec::load(&search, &target).unwrap_or_else(|error| panic!("{error}")).model.vocabulary;
    let weights = tempfile::tempdir().expect("temporary directories can be made");
    with_tokenizer(&golden, vocabulary, weights.path());
    let options = BuildOptions { kv, ..BuildOptions::default() };
    let server = build_with(Some(targets.path()), &target, &options);
    let turn = |round: usize, answer: Option<&str>| {
        let mut random = Random(round as u64);
        let mut prompt = random.ids(TOKENS + round, vocabulary);
        if let Some(answer) = answer {
            // A token is a character, and the first is `!`.
            prompt.extend(answer.bytes().map(|byte| u32::from(byte - b'!')));
            prompt.extend(random.ids(9, vocabulary));
        }
        let body = json!({"prompt": prompt, "max_tokens": 24, "ignore_eos": true});
        ("/v1/completions".to_owned(), body)
    };
    let mut arguments = vec!["--context", "8192", "--threads", "2"];
    if kv.is_some() {
        arguments.extend(["--kv-calibration-tokens", "64"]);
    }
    compare(name, &server, weights.path(), &arguments, &turn);
}
