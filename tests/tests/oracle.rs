//! Greedy continuations with the real weights: the server against the interpreter, and against llama.cpp.

use monomorph_compiler::graph;
use monomorph_compiler::reference::Interpreter;
use monomorph_compiler::spec::{self, types::Target};
use monomorph_tests::greedy::{greedy, top};
use monomorph_tests::logits::read;
use monomorph_tests::{check_golden, fixtures, root, server, smollm2};
use monomorph_weights::Checkpoint;
use serde_json::{Value, json};
use std::path::Path;

const STEPS: usize = 128;

/// Prompts and llama.cpp's continuations.
struct Prompt {
    name: String,
    ids: Vec<u32>,
    llama_cpp: Vec<u32>,
    margins: Vec<f64>,
    noise: f64,
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
        noise: value["noise"].as_f64().expect("a number"),
    };
    recording["prompts"].as_array().expect("a list").iter().map(prompt).collect()
}

fn target() -> Target {
    spec::load(&[root().join("targets")], "cpu/smollm2-135m/q4_1").unwrap_or_else(|error| panic!("{error}"))
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

/// The interpreter's choices for every prompt (`ids`) or its margins (`margins`), as committed.
fn recorded<T: serde::de::DeserializeOwned>(what: &str) -> Vec<Vec<T>> {
    let text = std::fs::read(fixtures().join("smollm2/oracle.json")).expect("the recording is committed");
    let recording: Value = serde_json::from_slice(&text).expect("it is JSON");
    let list = |value: &Value| serde_json::from_value(value[what].clone()).expect("a list of numbers");
    recording.as_array().expect("a list").iter().map(list).collect()
}

/// The whole recording takes the interpreter minutes. Every run repeats the beginning of the three shortest
/// prompts, and `--bless` repeats all of it.
#[test]
#[cfg_attr(not(smollm2), ignore = "needs SmolLM2's weights: cargo xtask test")]
fn the_interpreter_makes_its_recording_again() {
    let weights = smollm2();
    let target = target();
    let graph = graph::build(&target.model, &target.quant);
    let checkpoint = Checkpoint::open(&weights).expect("the weights are sound");
    let interpreter = Interpreter::new(&graph, &target.quant, &checkpoint).expect("its tensors fit");
    let prompts = prompts();
    if std::env::var_os("MONOMORPH_BLESS").is_some() {
        let rows = std::thread::scope(|scope| {
            let interpreter = &interpreter;
            let threads: Vec<_> = prompts
                .iter()
                .map(|prompt| scope.spawn(move || greedy(interpreter, &prompt.ids, STEPS)))
                .collect();
            threads
                .into_iter()
                .map(|thread| thread.join().expect("the interpreter does not panic"))
                .collect::<Vec<_>>()
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
    let mut shortest: Vec<(&Prompt, Vec<u32>)> = prompts.iter().zip(recorded("ids")).collect();
    shortest.sort_by_key(|(prompt, _)| prompt.ids.len());
    for (prompt, ids) in &shortest[..3] {
        assert_eq!(greedy(&interpreter, &prompt.ids, 12).0, ids[..12], "{}", prompt.name);
    }
}

/// Rounding activations to int8 makes a model a discontinuous function: if a value lies on the edge between
/// two codes, the last bit of an f32 sum decides, and thirty layers amplify that. (With one layer the
/// server's and the interpreter's logits agree to 1e-4 until such an edge is met; llama.cpp's margins move by
/// `noise`, up to 0.7, when it merely sums in another order.) So the server must make the interpreter's
/// choice at every step along the interpreter's own continuation, unless the interpreter's margin is smaller
/// than this.
const ROUNDING: f32 = 0.4;

#[test]
#[cfg_attr(not(smollm2), ignore = "needs SmolLM2's weights: cargo xtask test")]
fn the_server_chooses_as_the_interpreter_does_but_for_ties() {
    let weights = smollm2();
    let server = server::build(None, "cpu/smollm2-135m/q4_1");
    let directory = tempfile::tempdir().expect("temporary directories can be made");
    let vocabulary = target().model.vocabulary;
    let (ids, margins): (Vec<Vec<u32>>, Vec<Vec<f64>>) = (recorded("ids"), recorded("margins"));
    let (mut steps, mut ties) = (0, 0);
    for (i, prompt) in prompts().iter().enumerate() {
        let fed: Vec<u32> = prompt.ids.iter().chain(&ids[i][..STEPS - 1]).copied().collect();
        let [tokens, out] = ["tokens.json", "logits.safetensors"].map(|name| directory.path().join(name));
        std::fs::write(&tokens, json!([fed]).to_string()).expect("it is writable");
        let [weights, tokens, path] =
            [&weights, &tokens, &out].map(|it| it.to_str().expect("paths are UTF-8"));
        for mode in [&[][..], &["--decode"]] {
            let mut arguments = vec!["logits", "--weights", weights, "--tokens", tokens, "--out", path];
            arguments.extend(mode);
            server::verb(&server, &arguments);
            let logits = read(&out).remove(0);
            let rows = logits.chunks_exact(vocabulary).skip(prompt.ids.len() - 1);
            let mut differing = Vec::new();
            for (step, row) in rows.enumerate() {
                steps += 1;
                if top(row).0 != ids[i][step] {
                    ties += 1;
                    differing.push((step, margins[i][step]));
                }
            }
            println!("{} {mode:?}: ties decided otherwise at (step, lead) {differing:?}", prompt.name);
            let worst = differing.iter().map(|(_, lead)| *lead as f32).fold(0.0, f32::max);
            assert!(worst <= ROUNDING, "{} {mode:?}: {differing:?}", prompt.name);
        }
    }
    println!("{ties} of {steps} steps are ties decided otherwise");
    assert_eq!(steps, 2 * 8 * STEPS);
    assert!(ties * 20 <= steps, "{ties} of {steps} steps are too many to be ties");
}

/// The server's own greedy continuation equals llama.cpp's up to a margin that llama.cpp itself would
/// overturn by summing in another order (`noise`, measured by tests/reference/llama_cpp_greedy.py).
#[test]
#[cfg_attr(not(smollm2), ignore = "needs SmolLM2's weights: cargo xtask test")]
fn the_server_continues_as_llama_cpp_does_but_for_ties() {
    let weights = smollm2();
    let prompts = prompts();
    for (prompt, found) in prompts.iter().zip(continuations(&weights, &prompts)) {
        assert_eq!(found.len(), STEPS, "{}", prompt.name);
        match found.iter().zip(&prompt.llama_cpp).position(|(a, b)| a != b) {
            None => println!("{}: equal for {STEPS} tokens", prompt.name),
            Some(step) => {
                let margin = prompt.margins[step];
                println!("{}: equal for {step} tokens, then a lead of {margin}", prompt.name);
                assert!(margin <= prompt.noise, "{}: differs at {step}, lead {margin}", prompt.name);
            }
        }
    }
}
