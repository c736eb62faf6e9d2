//! SmolLM2 with drafts by lookup: the same tokens and log-probabilities as without, greedy and sampled, one
//! at a time and many at once; and fewer steps where the answer repeats earlier text.

use monomorph_compiler::spec::types::{BuildOptions, DraftMethod, DraftOption};
use monomorph_tests::server::{Serving, build, build_with, post, stats};
use monomorph_tests::smollm2;
use serde_json::{Value, json};

const TARGET: &str = "cpu/smollm2-135m/q4_1";
const OPTION: DraftOption =
    DraftOption { method: DraftMethod::Ngram, drafts: 4, vocabulary: None, forced_acceptance: None };
const ARGUMENTS: [&str; 6] = ["--threads", "2", "--context", "1024", "--prefix-cache", "off"];

/// Text that the answer repeats with small changes.
const CODE: &str = "def total(prices, tax):\n    result = 0\n    for price in prices:\n        result = result + price\n    \
                    result = result + result * tax\n    return result\n\n\ndef mean(prices):\n    result = 0\n    for price in \
                    prices:\n        result = result + price\n    return result / len(prices)\n";

/// Texts that repeat and texts that do not; greedy, sampled, and with repetition penalties.
fn requests() -> Vec<Value> {
    let rewrite = format!("Write this code again, with `result` called `amount`:\n\n```python\n{CODE}```\n");
    let prompts = [
        rewrite.as_str(),
        "Repeat ten times: the quick brown fox jumps over the lazy dog.",
        "Why is the sky blue?",
        "Count from one to thirty, one number on each line.",
    ];
    let sampling = [
        json!({"temperature": 0}),
        json!({"temperature": 0.8, "seed": 7}),
        json!({"temperature": 0.6, "seed": 8, "frequency_penalty": 0.3}),
    ];
    let request = |prompt: &str, sampling: &Value| {
        let mut body = json!({
            "messages": [{"role": "user", "content": prompt}], "max_tokens": 120, "logprobs": true, "top_logprobs": 2,
        });
        let fields = sampling.as_object().expect("an object").clone();
        body.as_object_mut().expect("an object").extend(fields);
        body
    };
    prompts.iter().flat_map(|prompt| sampling.iter().map(move |it| request(prompt, it))).collect()
}

/// The choices and the usage of an answer.
fn ask(address: &str, body: &Value) -> (Value, Value) {
    let (status, text) = post(address, "/v1/chat/completions", &body.to_string()).expect("it answers");
    assert_eq!(status, 200, "{text}");
    let answer: Value = serde_json::from_str(&text).expect("answers are JSON");
    (answer["choices"].clone(), answer["usage"].clone())
}

fn counts(address: &str) -> impl Fn(&str) -> f64 {
    let stats = stats(address);
    move |key| stats[key].as_f64().unwrap_or_else(|| panic!("{key}: {stats}"))
}

#[test]
#[cfg_attr(not(smollm2), ignore = "needs SmolLM2's weights: cargo xtask test")]
fn answers_are_those_without_drafts_to_the_last_digit() {
    let weights = smollm2();
    let requests = requests();
    let plain = Serving::start(&build(None, TARGET), &weights, &ARGUMENTS);
    let expected: Vec<_> = requests.iter().map(|body| ask(&plain.address, body)).collect();
    let plainly = counts(&plain.address)("steps");
    drop(plain);

    let options = BuildOptions { draft: Some(OPTION), ..BuildOptions::default() };
    let drafting = Serving::start(&build_with(None, TARGET, &options), &weights, &ARGUMENTS);
    let alone: Vec<_> = requests.iter().map(|body| ask(&drafting.address, body)).collect();
    let after = counts(&drafting.address);
    let (verified, accepted, steps) = (after("drafts_verified"), after("drafts_accepted"), after("steps"));
    println!("{accepted} of {verified} drafts held; {steps} steps where {plainly} were taken without");
    let together: Vec<_> = std::thread::scope(|scope| {
        let address = &drafting.address;
        let threads: Vec<_> = requests.iter().map(|body| scope.spawn(move || ask(address, body))).collect();
        threads.into_iter().map(|thread| thread.join().expect("it is answered")).collect()
    });
    for (at, expected) in expected.iter().enumerate() {
        assert_eq!(&alone[at], expected, "request {at}, alone: {}", requests[at]);
        assert_eq!(&together[at], expected, "request {at}, beside the others: {}", requests[at]);
    }
    assert!(verified > 200.0 && accepted > 0.3 * verified && accepted < verified, "{accepted} of {verified}");
    assert!(steps < 0.9 * plainly, "{steps} steps, and {plainly} without drafts");
}
