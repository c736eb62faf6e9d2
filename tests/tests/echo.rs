//! SmolLM2's prompts with log-probabilities (`echo` with `logprobs`), compared with the interpreter's and
//! with those from when the same tokens were generated.

use monomorph_compiler::graph;
use monomorph_compiler::reference::{Cache, Interpreter, Logits};
use monomorph_compiler::spec;
use monomorph_tests::server::{Serving, build, post};
use monomorph_tests::{root, smollm2};
use monomorph_weights::Checkpoint;
use serde_json::{Value, json};

const TARGET: &str = "cpu/smollm2-135m/q4_1";

/// Largest distance between two log-probabilities: activations are rounded to int8, and a different order of
/// summation flips some roundings (oracle.rs, `ROUNDING`).
const APART: f64 = 0.4;
/// Largest average distance.
const USUALLY: f64 = 0.08;

fn ask(serving: &Serving, body: &Value) -> Value {
    let (status, answer) = post(&serving.address, "/v1/completions", &body.to_string()).expect("it answers");
    assert_eq!(status, 200, "{answer}");
    let answer: Value = serde_json::from_str(&answer).expect("answers are JSON");
    answer["choices"][0].clone()
}

fn numbers(list: &Value) -> Vec<f64> {
    list.as_array().expect("a list").iter().filter_map(Value::as_f64).collect()
}

fn ids(list: &Value) -> Vec<u32> {
    numbers(list).into_iter().map(|id| id as u32).collect()
}

/// Both lists are of the same tokens.
fn compare(what: &str, found: &[f64], expected: &[f64]) {
    assert_eq!(found.len(), expected.len(), "{what}");
    let apart: Vec<f64> = found.iter().zip(expected).map(|(a, b)| (a - b).abs()).collect();
    let mean = apart.iter().sum::<f64>() / apart.len() as f64;
    let most = apart.iter().copied().fold(0.0, f64::max);
    println!("{what}: {} tokens, {mean:.1e} apart on average, at most {most:.1e}", apart.len());
    assert!(mean <= USUALLY && most <= APART, "{what}: {found:?} and {expected:?}");
}

#[test]
#[cfg_attr(not(smollm2), ignore = "needs SmolLM2's weights: cargo xtask test")]
fn prompts_have_the_log_probabilities_of_the_interpreter_and_of_answers() {
    let weights = smollm2();
    let serving = Serving::start(&build(None, TARGET), &weights, &["--context", "512"]);
    let text =
        "The sea is the connected body of salty water that covers over 70 percent of the Earth's surface. It";
    let asked = json!({
        "prompt": text, "max_tokens": 48, "temperature": 0, "logprobs": 2, "return_token_ids": true, "ignore_eos": true,
    });
    let generated = ask(&serving, &asked);
    let prompt = ids(&generated["prompt_token_ids"]);
    let whole: Vec<u32> = prompt.iter().copied().chain(ids(&generated["token_ids"])).collect();
    let echo = json!({"prompt": whole, "max_tokens": 0, "echo": true, "logprobs": 2});
    let echoed = ask(&serving, &echo);
    let scores = numbers(&echoed["logprobs"]["token_logprobs"]);
    assert_eq!(scores.len(), whole.len() - 1, "all but the first");

    // At temperature 0 the answer is the likeliest token, except for ties.
    let said = numbers(&generated["logprobs"]["token_logprobs"]);
    compare("generated", &scores[prompt.len() - 1..], &said);

    let target = spec::load(&[root().join("targets")], TARGET).unwrap_or_else(|error| panic!("{error}"));
    let graph = graph::build(&target.model, &target.quant);
    let checkpoint = Checkpoint::open(&weights).expect("the weights are sound");
    let interpreter = Interpreter::new(&graph, &target.quant, &checkpoint).expect("its tensors fit");
    let rows = interpreter.forward(&whole, &mut Cache::default(), Logits::All);
    let score = |(row, id): (&[f32], &u32)| {
        let largest = row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let sum: f64 = row.iter().map(|logit| f64::from(logit - largest).exp()).sum();
        f64::from(row[*id as usize] - largest) - sum.ln()
    };
    let expected: Vec<f64> = rows.chunks_exact(target.model.vocabulary).zip(&whole[1..]).map(score).collect();
    compare("interpreted", &scores, &expected);

    // The answer after an echo is the same as without one.
    let both = json!({
        "prompt": text, "max_tokens": 48, "temperature": 0, "logprobs": 2, "ignore_eos": true, "echo": true,
    });
    let both = ask(&serving, &both);
    let answer = generated["text"].as_str().expect("text");
    assert_eq!(both["text"], format!("{text}{answer}"));
    let of_both = numbers(&both["logprobs"]["token_logprobs"]);
    compare("behind an echo", &of_both[prompt.len() - 1..], &said);
    compare("in pieces", &of_both[..prompt.len() - 1], &scores[..prompt.len() - 1]);
}
