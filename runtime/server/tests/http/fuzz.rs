//! Bodies that are nearly right: requests that the OpenAPI document has for examples, with damage done to
//! their structure and to their bytes. Whatever comes is answered, in time, by no error of the server's own;
//! and what was refused leaves nothing behind.
//!
//! Planted, and caught here: a reader that panics where an id is missing (both tests).

use crate::client::Response;
use crate::clock;
use crate::process::Server;
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use serde_json::{Value, json};
use std::cell::Cell;
use std::time::{Duration, Instant};

/// How long an answer may take: that to the largest prompt takes a small part of it.
const PATIENCE: Duration = Duration::from_secs(10);
/// Most memory of a server that has answered all of them, in bytes.
const MEMORY: u64 = 512 << 20;

/// Cases of damaged structure, and of damaged bytes.
const STRUCTURES: u32 = 2500;
const BYTES: u32 = 1500;

/// What stands where something else should.
fn odd_values() -> Vec<Value> {
    let mut deep = json!({"a": 1});
    for _ in 0..100 {
        deep = json!([deep]);
    }
    let schema = json!({"type": "json_schema", "json_schema": {"name": "x", "schema": {
        "type": "array", "minItems": 100_000, "items": {"$ref": "#"},
    }}});
    vec![
        json!(null),
        json!(true),
        json!(0),
        json!(-1),
        json!(1),
        json!(2),
        json!(1.5),
        json!(5.0),
        json!(1e300),
        json!(-1e-300),
        json!(i64::MIN),
        json!(i64::MAX),
        json!(u64::MAX),
        json!(1u64 << 32),
        json!(""),
        json!(" "),
        json!("\u{0}"),
        json!("a"),
        json!("\u{feff}é🦀\r\n\u{2028}"),
        json!("x".repeat(3000)),
        json!("{\"a\":"),
        json!("<think>"),
        json!("<|im_end|>"),
        json!("(a|b)*{1000}["),
        json!("start: start start | \"a\""),
        json!("(a{1,1000}){1,1000}"),
        json!([]),
        json!({}),
        json!([[]]),
        json!([null]),
        json!({"": null}),
        json!({"type": "object", "properties": {"a": {"$ref": "#"}}}),
        deep,
        schema,
        json!("user"),
        json!("assistant"),
        json!("tool"),
        json!("function"),
        json!("text"),
        json!("none"),
        json!("required"),
    ]
}

/// Names that some object has, and some that none has.
const NAMES: [&str; 24] = [
    "model",
    "messages",
    "content",
    "role",
    "tools",
    "type",
    "function",
    "parameters",
    "n",
    "stream",
    "stop",
    "prompt",
    "input",
    "max_tokens",
    "response_format",
    "guided_regex",
    "guided_grammar",
    "guided_json",
    "structured_outputs",
    "chat_template_kwargs",
    "thinking",
    "enable_thinking",
    "logprobs",
    "nobody",
];

/// Damage to a value: at some place in it.
#[derive(Clone, Debug)]
enum Damage {
    Replace(prop::sample::Index, Value),
    Remove(prop::sample::Index),
    Add(prop::sample::Index, &'static str, Value),
    Repeat(prop::sample::Index),
    /// What stands at one place, at another.
    Copy(prop::sample::Index, prop::sample::Index),
}

fn damage() -> impl Strategy<Value = Damage> {
    let at = any::<prop::sample::Index>;
    let odd = || prop::sample::select(odd_values());
    prop_oneof![
        4 => (at(), odd()).prop_map(|(at, value)| Damage::Replace(at, value)),
        1 => at().prop_map(Damage::Remove),
        3 => (at(), prop::sample::select(NAMES.to_vec()), odd()).prop_map(|(at, name, value)| Damage::Add(at, name, value)),
        1 => at().prop_map(Damage::Repeat),
        2 => (at(), at()).prop_map(|(from, to)| Damage::Copy(from, to)),
    ]
}

/// Every place in a value.
fn places(value: &Value, at: &str, found: &mut Vec<String>) {
    found.push(at.to_owned());
    match value {
        Value::Array(items) => {
            items.iter().enumerate().for_each(|(index, item)| places(item, &format!("{at}/{index}"), found));
        }
        Value::Object(map) => {
            let escaped = |name: &str| name.replace('~', "~0").replace('/', "~1");
            map.iter().for_each(|(name, item)| places(item, &format!("{at}/{}", escaped(name)), found));
        }
        _ => {}
    }
}

fn damaged(mut body: Value, damage: &[Damage]) -> Value {
    for one in damage {
        let mut all = Vec::new();
        places(&body, "", &mut all);
        let at = |index: &prop::sample::Index| index.get(&all).clone();
        match one {
            Damage::Replace(place, value) => *body.pointer_mut(&at(place)).expect("a place") = value.clone(),
            Damage::Copy(from, to) => {
                let value = body.pointer(&at(from)).expect("a place").clone();
                *body.pointer_mut(&at(to)).expect("a place") = value;
            }
            Damage::Remove(place) => {
                let place = at(place);
                let Some((parent, last)) = place.rsplit_once('/') else { continue };
                match body.pointer_mut(parent) {
                    Some(Value::Object(map)) => drop(map.remove(last)),
                    Some(Value::Array(items)) => drop(last.parse().map(|last: usize| items.remove(last))),
                    _ => {}
                }
            }
            Damage::Add(place, name, value) => match body.pointer_mut(&at(place)).expect("a place") {
                Value::Object(map) => drop(map.insert((*name).to_owned(), value.clone())),
                Value::Array(items) => items.push(value.clone()),
                other => *other = json!({ *name: value }),
            },
            Damage::Repeat(place) => {
                if let Value::Array(items) = body.pointer_mut(&at(place)).expect("a place")
                    && items.len() < 100
                {
                    *items = [items.clone(), items.clone()].concat();
                }
            }
        }
    }
    body
}

/// Damage to bytes: at some place so many are removed, and these put there.
fn byte_damage() -> impl Strategy<Value = Vec<(prop::sample::Index, usize, Vec<u8>)>> {
    let put = prop_oneof![
        prop::collection::vec(any::<u8>(), 0..4),
        prop::sample::select(vec![
            "\"", "{", "}", "[", "]", ",", ":", "\\", "\\u", "\\ud800", "-", "e", "1e999", "null", "\0"
        ])
        .prop_map(|text| text.as_bytes().to_vec()),
        Just(b"[".repeat(10_000)),
        Just(b"9".repeat(5_000)),
    ];
    prop::collection::vec((any::<prop::sample::Index>(), 0usize..8, put), 1..5)
}

fn check(path: &str, body: &[u8], response: &Response, took: Duration) -> Result<(), TestCaseError> {
    let said = String::from_utf8_lossy(&response.body);
    let sent = String::from_utf8_lossy(body);
    prop_assert!(response.status < 500, "{path} {sent}: {} {said}", response.status);
    prop_assert!(took < PATIENCE, "{path} {sent}: took {took:?}");
    let refused = (400..500).contains(&response.status);
    prop_assert!(refused || response.status == 200, "{path} {sent}: {}", response.status);
    let stream = response.header("content-type").is_some_and(|kind| kind.starts_with("text/event-stream"));
    if stream {
        let broken =
            ["\"server_error\"", "\"api_error\"", "response.failed"].iter().any(|word| said.contains(word));
        prop_assert!(!broken, "{path} {sent}: {said}");
    } else {
        let value = serde_json::from_slice::<Value>(&response.body);
        let value = value.map_err(|error| TestCaseError::fail(format!("{path} {sent}: {error}: {said}")))?;
        prop_assert_eq!(refused, value["error"].is_object(), "{} {}: {}", path, sent, value);
    }
    Ok(())
}

/// So many cases of each kind.
fn runner(cases: u32) -> TestRunner {
    let config = Config { cases, failure_persistence: None, max_shrink_iters: 200, ..Config::default() };
    TestRunner::new_with_rng(config, proptest::test_runner::TestRng::deterministic_rng(Default::default()))
}

pub fn bodies() {
    let server = Server::start_talking("hermes", "think", &["--max-body", "1000000"]);
    let document = server.get("/openapi.json").json();
    let mut corpus: Vec<(String, Value)> = Vec::new();
    for (path, item) in document["paths"].as_object().expect("paths") {
        let examples = item["post"]["requestBody"]["content"]["application/json"]["examples"].as_object();
        let examples = examples.into_iter().flatten().map(|(_, example)| example["value"].clone());
        corpus.extend(examples.map(|body| (path.clone(), body)));
    }
    assert!(corpus.len() >= 20, "{corpus:?}");
    let answered = Cell::new(0);
    let ask = |path: &str, body: &[u8]| {
        let began = Instant::now();
        let response = server.connect().request("POST", path, &[("content-type", "application/json")], body);
        answered.set(answered.get() + u32::from(response.status == 200));
        check(path, body, &response, clock::since(began))
    };
    for (path, body) in &corpus {
        ask(path, body.to_string().as_bytes()).unwrap_or_else(|error| panic!("{error}"));
    }
    let one = || prop::sample::select(corpus.clone());
    let structures = (one(), prop::collection::vec(damage(), 1..5));
    runner(STRUCTURES)
        .run(&structures, |((path, body), damage)| ask(&path, damaged(body, &damage).to_string().as_bytes()))
        .unwrap_or_else(|error| panic!("{error}"));
    runner(BYTES)
        .run(&(one(), byte_damage()), |((path, body), damage)| {
            let mut bytes = body.to_string().into_bytes();
            for (at, removed, put) in damage {
                let at = at.index(bytes.len() + 1);
                let end = (at + removed).min(bytes.len());
                bytes.splice(at..end, put);
            }
            ask(&path, &bytes)
        })
        .unwrap_or_else(|error| panic!("{error}"));
    // Damage that everything is refused for would try nothing but the readers.
    assert!(answered.get() > (STRUCTURES + BYTES) / 20, "{} were answered", answered.get());
    assert_eq!(server.get("/health").json()["status"], "ok");
    server.wait_for("nobody is left", |stats| stats["running"] == 0 && stats["waiting"] == 0);
    let memory = server.resident_bytes();
    assert!(memory < MEMORY, "{} MiB are resident", memory >> 20);
}

/// Bodies nested as deep as JSON is read, at every place of every example, are answered too.
pub fn depth() {
    let server = Server::start_talking("hermes", "think", &[]);
    let document = server.get("/openapi.json").json();
    for (path, item) in document["paths"].as_object().expect("paths") {
        let examples = item["post"]["requestBody"]["content"]["application/json"]["examples"].as_object();
        for example in examples.into_iter().flatten().map(|(_, example)| &example["value"]) {
            let mut all = Vec::new();
            places(example, "", &mut all);
            for at in all {
                for (open, close) in
                    [("[", "]"), ("{\"properties\":", "}"), ("{\"items\":", "}"), ("{\"anyOf\":[", "]}")]
                {
                    for depth in [100, 126, 5000] {
                        let mut body = example.clone();
                        *body.pointer_mut(&at).expect("a place") = json!("HERE");
                        let deep = format!("{}{{}}{}", open.repeat(depth), close.repeat(depth));
                        let text = body.to_string().replace("\"HERE\"", &deep);
                        let began = Instant::now();
                        let response = server.connect().request("POST", path, &[], text.as_bytes());
                        check(path, text.as_bytes(), &response, clock::since(began))
                            .unwrap_or_else(|error| panic!("{error}"));
                    }
                }
            }
        }
    }
    assert_eq!(server.get("/health").json()["status"], "ok");
}
