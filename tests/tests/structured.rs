//! SmolLM2 constrained to schemas of the kinds that agents send (tests/fixtures/schemas): every answer parses
//! and is valid by another implementation, or the schema is refused by name; one at a time, and eight at once
//! with drafts by lookup, with the same answers.
//!
//!     cargo test --release -p monomorph-tests --test structured -- --ignored --nocapture     # all 400
//!
//! A small model may continue what a schema does not bound (digits of a number, a tree) until `max_tokens`
//! cuts it off. So every request uses DRY, which makes repetition unlikely: then no answer is cut off.

use jsonschema::Validator;
use monomorph_compiler::spec::types::{BuildOptions, DraftMethod, DraftOption};
use monomorph_tests::server::{Serving, build, build_with, post, stats};
use monomorph_tests::{root, smollm2};
use serde_json::{Value, json};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

const TARGET: &str = "cpu/smollm2-135m/q4_1";
const OPTION: DraftOption =
    DraftOption { method: DraftMethod::Ngram, drafts: 4, vocabulary: None, forced_acceptance: None };
const ARGUMENTS: [&str; 6] = ["--threads", "2", "--context", "4096", "--kv-tokens", "16384"];
/// The path in refusals of schemas.
const SCHEMA: &str = "response_format.json_schema.schema";

/// A schema, the path that its refusal names, and the request's body.
struct Case {
    name: String,
    schema: Value,
    refused: Option<String>,
    body: String,
}

/// Every `step`th schema.
fn cases(step: usize) -> Vec<Case> {
    let path = root().join("tests/fixtures/schemas/schemas.jsonl");
    let lines = std::fs::read_to_string(path).expect("the corpus is committed");
    let read = |(number, line): (usize, &str)| {
        let line: Value = serde_json::from_str(line).expect("a line of the corpus");
        let (name, schema) = (line["name"].as_str().expect("a name").to_owned(), line["schema"].clone());
        let members = schema["properties"].as_object().into_iter().flat_map(|members| members.keys());
        let members: Vec<&str> = members.take(8).map(String::as_str).collect();
        let question = format!("Give me an example as JSON, of something with: {}.", members.join(", "));
        // Greedy, or sampled.
        let temperature = if number % 2 == 0 { 0.0 } else { 0.8 };
        let format =
            json!({"type": "json_schema", "json_schema": {"name": "it", "strict": true, "schema": schema}});
        let body = json!({
            "messages": [{"role": "user", "content": question}], "max_tokens": 3500, "temperature": temperature, "seed": number,
            "response_format": format, "dry_multiplier": 0.8, "dry_sequence_breakers": [],
        });
        let refused = line["refused"].as_str().map(str::to_owned);
        Case { name, schema, refused, body: body.to_string() }
    };
    lines.lines().enumerate().step_by(step).map(read).collect()
}

/// The answer, and what is wrong with it.
fn ask(address: &str, case: &Case) -> (Option<String>, Result<(), String>) {
    let (status, text) = post(address, "/v1/chat/completions", &case.body).expect("it answers");
    let answer: Value = serde_json::from_str(&text).expect("answers are JSON");
    if let Some(path) = &case.refused {
        let param = answer["error"]["param"].as_str().unwrap_or_default();
        let named = status == 400 && param == format!("{SCHEMA}{path}");
        return (None, if named { Ok(()) } else { Err(format!("{}: {text}", case.name)) });
    }
    let choice = &answer["choices"][0];
    let content = choice["message"]["content"].as_str().unwrap_or_default();
    let validator: Validator = jsonschema::validator_for(&case.schema).expect("a schema");
    let found = match serde_json::from_str::<Value>(content) {
        _ if choice["finish_reason"] == "length" => return (None, Ok(())),
        _ if choice["finish_reason"] != "stop" => {
            Err(format!("ended by {}: {text}", choice["finish_reason"]))
        }
        Err(error) => Err(format!("{error}: {text}")),
        Ok(value) => validator.validate(&value).map_err(|error| format!("{error}: {content}")),
    };
    (Some(content.to_owned()), found.map_err(|why| format!("{}: {why}", case.name)))
}

/// Sends all of them, `clients` at once.
fn ask_all(address: &str, cases: &[Case], clients: usize) -> (Vec<Option<String>>, Vec<String>) {
    let next = AtomicUsize::new(0);
    let client = || {
        let mut found = Vec::new();
        loop {
            let at = next.fetch_add(1, Ordering::Relaxed);
            let Some(case) = cases.get(at) else { return found };
            found.push((at, ask(address, case)));
        }
    };
    let mut found: Vec<_> = std::thread::scope(|scope| {
        let clients: Vec<_> = (0..clients).map(|_| scope.spawn(client)).collect();
        clients.into_iter().flat_map(|client| client.join().expect("it asks")).collect()
    });
    found.sort_by_key(|(at, _)| *at);
    let wrong = found.iter().filter_map(|(_, (_, found))| found.clone().err()).collect();
    (found.into_iter().map(|(_, (answer, _))| answer).collect(), wrong)
}

fn every_answer_is_valid(step: usize) {
    let weights = smollm2();
    let cases = cases(step);
    let mut plain: Option<Vec<Option<String>>> = None;
    let options = BuildOptions { draft: Some(OPTION), ..BuildOptions::default() };
    for (server, clients, name) in [
        (build(None, TARGET), 1, "one at a time"),
        (build_with(None, TARGET, &options), 8, "eight at once, with drafts"),
    ] {
        let serving = Serving::start(&server, &weights, &ARGUMENTS);
        let began = Instant::now();
        let (answers, wrong) = ask_all(&serving.address, &cases, clients);
        let refused = cases.iter().filter(|case| case.refused.is_some()).count();
        let cut = answers.iter().filter(|answer| answer.is_none()).count().saturating_sub(refused);
        let stats = stats(&serving.address);
        for (case, _) in
            cases.iter().zip(&answers).filter(|(case, answer)| answer.is_none() && case.refused.is_none())
        {
            println!("{name}: {} is cut off", case.name);
        }
        println!(
            "{name}: {} answers, {refused} refused by name, {cut} cut off, {} wrong, in {:.0} s; {} tokens, {} drafts verified, {} accepted",
            answers.len() - refused,
            wrong.len(),
            began.elapsed().as_secs_f32(),
            stats["tokens_generated"],
            stats["drafts_verified"],
            stats["drafts_accepted"],
        );
        assert!(cut == 0, "{name}: {cut} cut off");
        assert!(wrong.is_empty(), "{name}:\n{}", wrong.join("\n"));
        match &plain {
            None => plain = Some(answers),
            Some(plain) => {
                for ((case, plain), answer) in cases.iter().zip(plain).zip(&answers) {
                    assert_eq!(answer, plain, "{name}: {}", case.name);
                }
            }
        }
    }
}

#[test]
#[ignore = "minutes"]
fn every_answer_to_a_few_schemas_is_valid() {
    every_answer_is_valid(19);
}

#[test]
#[ignore = "minutes"]
fn every_answer_to_all_schemas_is_valid() {
    every_answer_is_valid(1);
}
