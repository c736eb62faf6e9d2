//! Servers of models with vision towers: what they answer about a file is what the reference interpreter
//! computes of the rows that transformers' processor makes of it. The models are those of the goldens
//! (`vision.rs`), with a tokenizer and a chat template that tests make up.

use monomorph_compiler::graph;
use monomorph_compiler::reference::Interpreter;
use monomorph_compiler::spec::types::{BuildOptions, Compute, Target};
use monomorph_tests::emulated;
use monomorph_tests::server::{Serving, build_unoptimised, post, stats};
use monomorph_tests::towers::questions::{EXACT, FLAGS, Prompt, QUESTIONS, computed};
use monomorph_tests::towers::{checkpoint, imported, questions};
use monomorph_weights::Checkpoint;
use serde_json::{Value, json};
use std::path::Path;
use std::process::Command;

/// A golden in f32, for this hardware.
fn target(targets: &Path, hardware: &str, golden: &str) -> Target {
    imported::import_into(targets, &imported::directory(golden), golden, Compute::F32);
    imported::load(targets, hardware, golden, true).unwrap_or_else(|error| panic!("{error}"))
}

/// Ids of an answer, and their log-probabilities.
type Answer = (Vec<u32>, Vec<f32>);

fn asked(address: &str, path: &str, body: &Value) -> Value {
    let (status, text) = post(address, path, &body.to_string()).expect("the server answers");
    assert_eq!(status, 200, "{text}");
    serde_json::from_str(&text).expect("JSON")
}

fn served(serving: &Serving, body: &Value) -> Answer {
    let choice = &asked(&serving.address, "/v1/chat/completions", body)["choices"][0];
    let ids = serde_json::from_value(choice["token_ids"].clone()).expect("ids");
    let told = choice["logprobs"]["content"].as_array().expect("log-probabilities");
    (ids, told.iter().map(|one| one["logprob"].as_f64().expect("a number") as f32).collect())
}

#[test]
fn answers_about_images_are_those_of_the_interpreter() {
    let targets = tempfile::tempdir().expect("temporary directories can be made");
    for name in ["qwen35", "qwen3-vl", "gemma4", "pixtral"] {
        let target = target(targets.path(), "cpu", name);
        let options = BuildOptions { vision: true, ..BuildOptions::default() };
        let server = build_unoptimised(targets.path(), &format!("cpu/{name}/f32"), &options);
        answers(name, &target, Command::new(server));
    }
}

/// Servers of CUDA devices on the emulated card, whose products are f32 too: kernels, chunks, a cache of rows
/// and of prefixes, and steps behind images.
#[test]
fn answers_of_emulated_cards_are_those_of_the_interpreter() {
    let targets = tempfile::tempdir().expect("temporary directories can be made");
    let hardware = emulated::hardware(targets.path(), "h200", Some(emulated::FEW));
    for name in ["qwen35", "gemma4"] {
        let target = target(targets.path(), &hardware, name);
        let server = emulated::build_up_to(&target, 1);
        answers(name, &target, server.command());
    }
}

/// Asks a server of a golden about files, and compares its answers with the interpreter's.
fn answers(name: &str, target: &Target, server: Command) {
    let vision = target.tower.as_ref().expect("it has a tower");
    let weights = tempfile::tempdir().expect("temporary directories can be made");
    checkpoint::write(name, target, weights.path());
    let flags = [&["--threads", "2"], &FLAGS[..]].concat();
    let serving = Serving::start_command(server, weights.path(), &flags);
    let graph = graph::build_with_vision(&target.model, &target.quant, vision);
    let checkpoint = Checkpoint::open(&imported::directory(name).join("f32")).expect("a checkpoint");
    let interpreter = Interpreter::new(&graph, &target.quant, &checkpoint).expect("its tensors fit");
    let mut answers: Vec<Answer> = Vec::new();
    for parts in QUESTIONS {
        let body = questions::body(parts);
        let prompt = Prompt::of(vision, parts);
        let conversation = json!({"messages": body["messages"]});
        let tokens = asked(&serving.address, "/tokenize", &conversation)["tokens"].take();
        assert_eq!(tokens, json!(prompt.ids), "{name} {parts:?}");
        let expected = computed(&interpreter, vision, &prompt, None);
        let found = served(&serving, &body);
        assert_eq!(found.0, expected.ids, "{name} {parts:?}");
        let apart = found.1.iter().zip(&expected.logprobs).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
        println!("{name} {parts:?}: {} tokens, {apart:.1e}", prompt.ids.len());
        assert!(apart <= EXACT, "{name} {parts:?}: {apart:e}");
        // A second time what is kept of the prompt and of its images answers, to the bit.
        assert_eq!(served(&serving, &body), found, "{name} {parts:?}");
        assert!(!answers.contains(&found), "{name} {parts:?}: as if it had not been seen");
        answers.push(found);
    }
    let stats = stats(&serving.address);
    let [seen, passes] = ["images_seen", "image_passes"].map(|name| stats[name].as_u64().expect("a count"));
    // Two of a prompt are new.
    assert!(seen >= 6 && (passes < seen) == target.hardware.cuda().is_some(), "{stats}");
}
