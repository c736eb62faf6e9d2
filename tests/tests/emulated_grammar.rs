//! A CUDA server on an emulated card (tests/emulated) whose answers are constrained to formats. They match
//! the formats and equal a CPU server's, alone and many at once: without drafts, where masks and counts are
//! uploaded after a step has begun; and with drafts that are looked up and verified, where each row has the
//! mask after the drafts before it.
//!
//! Planted, and caught: the late upload left out.

use monomorph_compiler::spec;
use monomorph_compiler::spec::types::{BuildOptions, Compute, DraftMethod, DraftOption};
use monomorph_tests::crowd::{Random, write_tokenizer};
use monomorph_tests::emulated;
use monomorph_tests::goldens::goldens;
use monomorph_tests::root;
use monomorph_tests::server::{Serving, build, post, stats};
use serde_json::{Map, Value, json};

const GOLDEN: &str = "llama-aligned";
const ARGUMENTS: [&str; 6] = ["--threads", "1", "--context", "200", "--kv-tokens", "1600"];

/// Bodies with formats that constrain much, little and not at all, each greedy, sampled, penalised, and with
/// log-probabilities.
fn requests(vocabulary: usize) -> Vec<Value> {
    let mut random = Random(3);
    let formats = [
        json!({"guided_regex": "([%-'][(-+]){3,9}!"}),
        json!({"guided_choice": ["$%&'()*+,-./", "$%&!", "%%%%%%%%%%%%%%"]}),
        json!({"guided_regex": "[$-?]+"}),
        json!({}),
    ];
    let sampling = [
        json!({"temperature": 0}),
        json!({"temperature": 0.9, "seed": 5}),
        json!({"temperature": 0.8, "seed": 6, "top_p": 0.9, "repetition_penalty": 1.2}),
        json!({"temperature": 0.7, "seed": 7, "top_k": 20, "logprobs": 3, "frequency_penalty": 0.3}),
    ];
    let mut bodies = Vec::new();
    for format in &formats {
        for sampling in &sampling {
            let length = random.within(5..60);
            let mut body = json!({"prompt": random.ids(length, vocabulary), "max_tokens": 30});
            for fields in [format, sampling] {
                let fields = fields.as_object().expect("an object").clone();
                body.as_object_mut().expect("an object").extend(fields);
            }
            bodies.push(body);
        }
    }
    bodies
}

fn ask(address: &str, body: &Value) -> (String, String) {
    let (status, text) = post(address, "/v1/completions", &body.to_string()).expect("it answers");
    assert_eq!(status, 200, "{body}: {text}");
    let answer: Value = serde_json::from_str(&text).expect("answers are JSON");
    let choice = &answer["choices"][0];
    let text = |value: &Value| value.as_str().expect("a string").to_owned();
    (text(&choice["text"]), text(&choice["finish_reason"]))
}

/// Whether a text matches the first format: pairs, and a sign at the end.
fn is_of_pairs(text: &str) -> bool {
    let Some(pairs) = text.strip_suffix('!') else { return false };
    let fits = |pair: &[u8]| matches!(pair, [b'%'..=b'\'', b'('..=b'+']);
    (6..=18).contains(&pairs.len()) && pairs.as_bytes().chunks(2).all(fits)
}

/// A token for each id: single characters from `!` on, then pairs of them.
fn tokens(vocabulary: usize) -> Map<String, Value> {
    let pairs = ('!'..='~').map(|letter| format!("%{letter}"));
    let all = ('!'..='~').map(String::from).chain(pairs);
    all.take(vocabulary).enumerate().map(|(id, token)| (token, id.into())).collect()
}

#[test]
fn answers_are_held_to_formats() {
    let targets = tempfile::tempdir().expect("temporary directories can be made");
    let golden = goldens().into_iter().find(|golden| golden.name == GOLDEN).expect("it is committed");
    golden.import_into(targets.path(), Compute::F16);
    let hardware = emulated::hardware(targets.path(), "h200", Some(emulated::FEW));
    let search = [targets.path().to_owned(), root().join("targets")];
    let draft =
        DraftOption { method: DraftMethod::Ngram, drafts: 3, vocabulary: None, forced_acceptance: None };
    let [plain, drafting] = [None, Some(draft)].map(|draft| {
        let options = BuildOptions { draft, ..BuildOptions::default() };
        let target = spec::load_with(&search, &format!("{hardware}/{GOLDEN}/f32"), &options);
        target.unwrap_or_else(|error| panic!("{error}"))
    });
    let weights = tempfile::tempdir().expect("temporary directories can be made");
    write_tokenizer(tokens(plain.model.vocabulary), weights.path());
    let file = "model.safetensors";
    std::fs::copy(golden.directory.join("f32").join(file), weights.path().join(file))
        .expect("it is writable");
    let requests = requests(plain.model.vocabulary);
    let expected: Vec<_> = {
        let server = build(Some(targets.path()), &format!("cpu/{GOLDEN}/f32"));
        let serving = Serving::start(&server, weights.path(), &ARGUMENTS);
        requests.iter().map(|body| ask(&serving.address, body)).collect()
    };
    for (text, reason) in &expected[..4] {
        assert!(is_of_pairs(text) && reason == "stop", "{text:?} {reason}");
    }
    for (text, _) in &expected[4..8] {
        let choices = requests[4]["guided_choice"].as_array().expect("an array");
        assert!(choices.iter().any(|choice| choice == text), "{text:?}");
    }
    assert!(expected[8..12].iter().all(|(text, _)| text.bytes().all(|byte| (b'$'..=b'?').contains(&byte))));
    for target in [plain, drafting] {
        let server = emulated::build_up_to(&target, requests.len());
        let serving = Serving::start_command(server.command(), weights.path(), &ARGUMENTS);
        for (body, expected) in requests.iter().zip(&expected) {
            assert_eq!(&ask(&serving.address, body), expected, "{}: {body}", target.build());
        }
        std::thread::scope(|scope| {
            for (body, expected) in requests.iter().zip(&expected) {
                let (address, build) = (&serving.address, target.build());
                scope.spawn(move || {
                    assert_eq!(&ask(address, body), expected, "at once: {build}: {body}");
                });
            }
        });
        let stats = stats(&serving.address);
        println!("{} drafts verified, {} accepted", stats["drafts_verified"], stats["drafts_accepted"]);
        let drafts = target.draft.is_some();
        assert_eq!(stats["drafts_accepted"].as_u64() > Some(0), drafts, "{stats}");
    }
}
