//! Greedy continuations with the real weights: the server against the interpreter, and against llama.cpp.

use monomorph_compiler::reference::{Cache, Interpreter, Logits};
use monomorph_compiler::spec::{self, types::Target};
use monomorph_compiler::graph;
use monomorph_tests::{check_golden, fixtures, root, server, smollm2};
use monomorph_weights::Checkpoint;
use serde_json::{Value, json};
use std::path::Path;

const STEPS: usize = 128;

/// Prompts and what llama.cpp made of them.
struct Prompt {
    name: String,
    ids: Vec<u32>,
    llama_cpp: Vec<u32>,
    margins: Vec<f64>,
}

fn prompts() -> Vec<Prompt> {
    let text = std::fs::read(fixtures().join("smollm2/llama_cpp.json")).expect("the recording is committed");
    let recording: Value = serde_json::from_slice(&text).expect("it is JSON");
    let ids = |value: &Value| -> Vec<u32> {
        value.as_array().expect("a list").iter().map(|id| id.as_u64().expect("an id") as u32).collect()
    };
    let prompt = |value: &Value| Prompt {
        name: value["name"].as_str().expect("a name").to_owned(),
        ids: ids(&value["prompt"]),
        llama_cpp: ids(&value["ids"]),
        margins: value["margins"].as_array().expect("a list").iter().filter_map(Value::as_f64).collect(),
    };
    recording["prompts"].as_array().expect("a list").iter().map(prompt).collect()
}

fn target() -> Target {
    spec::load(&[root().join("targets")], "cpu/smollm2-135m/q4_1").unwrap_or_else(|error| panic!("{error}"))
}

/// Feeds `forced` if given, else its own choices; returns the chosen ids and their margins.
fn interpret(interpreter: &Interpreter, prompt: &[u32], steps: usize) -> (Vec<u32>, Vec<f32>) {
    let mut cache = Cache::default();
    let mut logits = interpreter.forward(prompt, &mut cache, Logits::Last);
    let (mut ids, mut margins) = (Vec::new(), Vec::new());
    for step in 0..steps {
        let (id, margin) = top(&logits);
        ids.push(id);
        margins.push(margin);
        if step + 1 < steps {
            logits = interpreter.forward(&[id], &mut cache, Logits::Last);
        }
    }
    (ids, margins)
}

/// The largest logit's id (the smallest among equals) and its lead over the second.
fn top(logits: &[f32]) -> (u32, f32) {
    let (mut best, mut second) = (0, f32::NEG_INFINITY);
    for (id, logit) in logits.iter().enumerate().skip(1) {
        if *logit > logits[best] {
            (second, best) = (logits[best], id);
        } else if *logit > second {
            second = *logit;
        }
    }
    (best as u32, logits[best] - second)
}

/// The server's greedy continuations.
fn continuations(weights: &Path, prompts: &[Prompt]) -> Vec<Vec<u32>> {
    let server = server::build(None, "cpu/smollm2-135m/q4_1");
    let directory = tempfile::tempdir().expect("temporary directories can be made");
    let path = directory.path().join("tokens.json");
    let lists: Vec<&[u32]> = prompts.iter().map(|prompt| prompt.ids.as_slice()).collect();
    std::fs::write(&path, json!(lists).to_string()).expect("it is writable");
    let steps = STEPS.to_string();
    let arguments = [
        "generate",
        "--weights",
        weights.to_str().expect("paths are UTF-8"),
        "--tokens",
        path.to_str().expect("paths are UTF-8"),
        "--max-tokens",
        &steps,
        "--temperature",
        "0",
        "--ignore-eos",
    ];
    serde_json::from_str(&server::verb(&server, &arguments)).expect("it prints lists of ids")
}

/// What the interpreter chose for every prompt, as committed.
fn recorded() -> Vec<Vec<u32>> {
    let text = std::fs::read(fixtures().join("smollm2/oracle.json")).expect("the recording is committed");
    let recording: Value = serde_json::from_slice(&text).expect("it is JSON");
    let list = |value: &Value| serde_json::from_value(value["ids"].clone()).expect("a list of ids");
    recording.as_array().expect("a list").iter().map(list).collect()
}

/// The leads the interpreter had, as committed.
fn recorded_margins() -> Vec<Vec<f64>> {
    let text = std::fs::read(fixtures().join("smollm2/oracle.json")).expect("the recording is committed");
    let recording: Value = serde_json::from_slice(&text).expect("it is JSON");
    let list = |value: &Value| serde_json::from_value(value["margins"].clone()).expect("a list of leads");
    recording.as_array().expect("a list").iter().map(list).collect()
}

/// The whole recording takes the interpreter minutes, so every run makes again the beginning of the three
/// shortest prompts, and `--bless` makes all of it.
#[test]
fn the_interpreter_makes_its_recording_again() {
    let Some(weights) = smollm2() else { return };
    let target = target();
    let graph = graph::build(&target.model, &target.quant);
    let checkpoint = Checkpoint::open(&weights).expect("the weights are sound");
    let interpreter = Interpreter::new(&graph, &target.quant, &checkpoint).expect("its tensors fit");
    let prompts = prompts();
    if std::env::var_os("MONOMORPH_BLESS").is_some() {
        let rows = std::thread::scope(|scope| {
            let interpreter = &interpreter;
            let threads: Vec<_> =
                prompts.iter().map(|prompt| scope.spawn(move || interpret(interpreter, &prompt.ids, STEPS))).collect();
            threads.into_iter().map(|thread| thread.join().expect("the interpreter does not panic")).collect::<Vec<_>>()
        });
        let rows: Vec<String> = prompts
            .iter()
            .zip(rows)
            .map(|(prompt, (ids, margins))| {
                let margins: Vec<f32> = margins.iter().map(|margin| (margin * 1e4).round() / 1e4).collect();
                json!({ "name": prompt.name, "ids": ids, "margins": margins }).to_string()
            })
            .collect();
        check_golden(&fixtures().join("smollm2/oracle.json"), &format!("[\n{}\n]\n", rows.join(",\n")));
        return;
    }
    let mut shortest: Vec<(&Prompt, Vec<u32>)> = prompts.iter().zip(recorded()).collect();
    shortest.sort_by_key(|(prompt, _)| prompt.ids.len());
    for (prompt, ids) in &shortest[..3] {
        assert_eq!(interpret(&interpreter, &prompt.ids, 12).0, ids[..12], "{}", prompt.name);
    }
}

#[test]
fn the_server_continues_as_the_interpreter_does() {
    let Some(weights) = smollm2() else { return };
    let prompts = prompts();
    for ((prompt, found), expected) in prompts.iter().zip(continuations(&weights, &prompts)).zip(recorded()) {
        assert_eq!(found.len(), STEPS, "{}", prompt.name);
        let differs = found.iter().zip(&expected).position(|(a, b)| a != b);
        assert_eq!(differs, None, "{}: differs at step {differs:?}\n{found:?}\n{expected:?}", prompt.name);
    }
}

/// llama.cpp rounds activations by other rules, so its logits are not ours to the last bit. How far that moves
/// the lead of the first logit over the second is seen wherever both chose the same id after the same ids: the
/// largest such difference is what counts as rounding, and where the ids first differ llama.cpp's own lead must
/// lie within it.
#[test]
fn the_server_continues_as_llama_cpp_does_but_for_ties() {
    let Some(weights) = smollm2() else { return };
    let prompts = prompts();
    let found = continuations(&weights, &prompts);
    let shared = |i: usize| found[i].iter().zip(&prompts[i].llama_cpp).take_while(|(a, b)| a == b).count();
    let margins = recorded_margins();
    let rounding = (0..prompts.len())
        .flat_map(|i| (0..shared(i)).map(move |step| (i, step)))
        .map(|(i, step)| (margins[i][step] - prompts[i].margins[step]).abs())
        .fold(0.0, f64::max);
    println!("rounding moves leads by up to {rounding:.3}");
    assert!(rounding < 1.0, "a lead moved by {rounding} is not rounding");
    for (i, prompt) in prompts.iter().enumerate() {
        let step = shared(i);
        if step == STEPS {
            println!("{}: equal for {STEPS} tokens", prompt.name);
            continue;
        }
        let margin = prompt.margins[step];
        println!("{}: equal for {step} tokens, then a lead of {margin}", prompt.name);
        assert!(margin <= rounding, "{}: differs at step {step}, where llama.cpp leads by {margin}", prompt.name);
    }
}
