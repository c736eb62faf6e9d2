//! Servers of models that draft.

use crate::process::{DRAFTS, FORCED, Server, checkpoint, command_as};
use crate::scripted::{Bytes, CONTEXT, GREETING, Loaded};
use monomorph_engine::scripted::{Drafting, Shape};
use monomorph_model::{DraftSpec, Drafter, ModelSpec};
use serde_json::{Value, json};

const CHAT: &str = "/v1/chat/completions";
/// Tokens of a context that two drafts take.
const REACH: usize = 3;

/// [`Bytes`] with two drafts, all of which are said to be accepted by rate.
pub struct ForcedBytes;

impl Shape for ForcedBytes {
    const SPEC: &'static ModelSpec = &ModelSpec {
        draft: Some(DraftSpec {
            method: "script",
            drafter: Drafter::Head,
            drafts: 2,
            vocabulary: 200,
            forced_acceptance: Some(0.8),
        }),
        ..*Bytes::SPEC
    };
}

/// The answers of `Echo`, with two drafts a token.
pub type EchoDrafts = Loaded<Drafting<Bytes, 2>>;
/// A build for measuring speed only.
pub type EchoForced = Loaded<ForcedBytes>;

fn chat(content: &str) -> Value {
    json!({"messages": [{"role": "user", "content": content}]})
}

fn run(model: &str, arguments: &[&str]) -> (bool, String) {
    let output = command_as(model, arguments).output().expect("the verb starts");
    let text = [output.stdout, output.stderr].concat();
    (output.status.success(), String::from_utf8(text).expect("UTF-8"))
}

pub fn answers() {
    let server = Server::start_as(DRAFTS, &[]);
    assert!(
        server.opening.contains("script: 2 tokens after every one sampled, of all ids"),
        "{}",
        server.opening
    );
    for _ in 0..8 {
        let response = server.post(CHAT, &chat("Hi"));
        assert_eq!(response.header("x-monomorph-drafts"), None);
        let answer = response.json();
        assert_eq!(answer["choices"][0]["message"]["content"], GREETING);
        assert_eq!(answer["usage"]["completion_tokens"], GREETING.len() + 1);
        assert_eq!(answer["system_fingerprint"], concat!("monomorph-", env!("CARGO_PKG_VERSION")));
    }
    // The end is between two tokens of a step, or is not; both end the answer where it does.
    for length in 1..=6 {
        let mut body = chat("[[say abcdefghij]]");
        body["max_tokens"] = length.into();
        let said = &server.post(CHAT, &body).json()["choices"][0]["message"]["content"];
        assert_eq!(said, &"abcdefghij"[..length]);
    }
    let health = server.get("/health").json();
    let draft = json!({"method": "script", "drafts": 2, "vocabulary": 259, "forced_acceptance": null});
    assert_eq!(health["draft"], draft);
    let stats = &health["stats"];
    let figure = |name: &str| stats[name].as_f64().unwrap_or_else(|| panic!("{name}: {stats}"));
    let (verified, accepted) = (figure("drafts_verified"), figure("drafts_accepted"));
    let metric = format!("vllm:spec_decode_num_drafts_total{{model_name={}}}", health["model"]);
    assert_eq!(server.metric(&metric) * 2.0, verified, "two at a time");
    assert!(0.0 < accepted && accepted < verified, "{stats}");
    assert_eq!(figure("mean_accepted"), accepted * 2.0 / verified);
    assert!(figure("steps") < figure("tokens_generated"), "{stats}");
    let plain = Server::start(&[]).get("/health").json();
    assert_eq!((&plain["draft"], &plain["stats"]["mean_accepted"]), (&Value::Null, &Value::Null));
    assert_eq!(plain["stats"]["drafts_verified"], 0);
}

pub fn context() {
    let usable = CONTEXT - REACH;
    let server = Server::start_as(DRAFTS, &[]);
    assert_eq!(server.get("/v1/models").json()["data"][0]["max_model_len"], usable);
    let answer = server.post(CHAT, &chat("[[forever]]")).json();
    assert_eq!(answer["usage"]["total_tokens"], usable);
    let refused = server.post("/v1/completions", &json!({"prompt": vec![1; usable]}));
    assert_eq!(refused.status, 400);
    assert!(refused.text().contains(&usable.to_string()), "{}", refused.text());

    let weights = checkpoint();
    let path = weights.path().to_str().expect("UTF-8");
    let serve = ["serve", "--port", "0", "--weights", path];
    for (arguments, words) in [
        (["--context", "510", "--max-waiting", "9"], ["512", "drafts take 3"]),
        // 29 tokens and three behind them are two blocks; one more is a third.
        (["--context", "30", "--blocks", "2"], ["--context 30", "takes 3"]),
        (["--context", "30", "--kv-tokens", "32"], ["--context 30", "takes 33"]),
    ] {
        let (done, said) = run(DRAFTS, &[&serve[..], &arguments].concat());
        assert!(!done && words.iter().all(|word| said.contains(word)), "{arguments:?}: {said}");
    }
    let server = Server::start_as(DRAFTS, &["--context", "29", "--blocks", "2"]);
    let body = json!({"prompt": "[[forever]]", "max_tokens": 99});
    assert_eq!(server.post("/v1/completions", &body).json()["error"]["param"], "max_tokens");
    let body = json!({"prompt": "[[forever]]", "max_tokens": 18});
    assert_eq!(server.post("/v1/completions", &body).json()["usage"]["total_tokens"], 29);

    let (_, text) = run(DRAFTS, &["info"]);
    for words in ["context 512 tokens, 509 of them usable: drafts take 3", "script: 2 tokens after"] {
        assert!(text.contains(words), "{words}: {text}");
    }
}

pub fn bench() {
    let weights = checkpoint();
    let path = weights.path().to_str().expect("UTF-8");
    let arguments =
        ["bench", "--weights", path, "--prompt-tokens", "100,300", "--generate", "40", "--batch", "1,3"];
    let (_, json) = run(DRAFTS, &[&arguments[..], &["--streams", "2", "--json"]].concat());
    let report: Value = serde_json::from_str(&json).expect("one JSON object");
    assert_eq!(report["draft"]["drafts"], 2);
    assert_eq!(
        (&report["prefills"][0]["tokens"], &report["prefills"][1]["tokens"]),
        (&json!(100), &json!(300))
    );
    for measured in [&report["batches"][0], &report["batches"][1], &report["streams"][0]] {
        let mean = measured["mean_accepted"].as_f64().unwrap_or_else(|| panic!("{report}"));
        // Half of the drafts are right, and the second holds only behind a first that does.
        assert!((0.3..1.3).contains(&mean), "{report}");
    }
    assert!(report["batches"][1]["step_ms"].as_f64().is_some_and(|time| time > 0.0), "{report}");
    let (_, text) = run(DRAFTS, &arguments);
    assert!(text.contains("of 2 drafts accepted a step"), "{text}");
    let (done, said) = run(DRAFTS, &["bench", "--weights", path, "--prompt-tokens", "510"]);
    assert!(!done && said.contains("509"), "{said}");
}

pub fn forced() {
    let server = Server::start_as(FORCED, &[]);
    let words = "one of the first 200 ids each; accepted at a rate of 0.8 whatever was sampled, so answers mean nothing";
    assert!(server.opening.contains(words), "{}", server.opening);
    assert_eq!(server.get("/health").header("x-monomorph-drafts"), Some("forced-acceptance-0.8"));
    let response = server.post(CHAT, &chat("Hi"));
    assert_eq!(response.header("x-monomorph-drafts"), Some("forced-acceptance-0.8"));
    let fingerprint = concat!("monomorph-", env!("CARGO_PKG_VERSION"), "-forced-acceptance-0.8");
    assert_eq!(response.json()["system_fingerprint"], fingerprint);
    let (_, text) = run(FORCED, &["info"]);
    assert!(text.contains(words), "{text}");
    let (_, text) = run(FORCED, &["info", "--json"]);
    let facts: Value = serde_json::from_str(&text).expect("one JSON object");
    assert_eq!(facts["draft"]["forced_acceptance"], 0.8);
    let weights = checkpoint();
    let path = weights.path().to_str().expect("UTF-8");
    let (_, said) = run(FORCED, &["generate", "--weights", path, "--prompt", "Hi"]);
    assert!(said.contains(words), "{said}");
}
