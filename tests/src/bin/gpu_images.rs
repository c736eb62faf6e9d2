//! `gpu_images OUT HARDWARE`: questions about images for servers on a machine with a card and without cargo;
//! `cargo xtask gpu` runs it. Writes `OUT/targets/`, the specs of every golden with a vision tower, in f32
//! and with products that round to f16; `OUT/<golden>/weights/`, its checkpoint with a tokenizer and a
//! template; `OUT/<golden>/<compute>.json`, what to ask a server, each question with the interpreter's
//! answer and how far another may be from it; and `OUT/images.json`, which lists them and gives the
//! compiler's reason for every target that it refuses.

use monomorph_compiler::reference::Interpreter;
use monomorph_compiler::spec::types::{Compute, Target};
use monomorph_compiler::{graph, toolchain};
use monomorph_tests::rounding;
use monomorph_tests::towers::questions::{self, Answer, Prompt, QUESTIONS, computed};
use monomorph_tests::towers::{checkpoint, imported};
use monomorph_weights::Checkpoint;
use serde_json::{Value, json};
use std::fs;
use std::path::Path;

const GOLDENS: [&str; 4] = ["qwen35", "qwen3-vl", "gemma4", "pixtral"];

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [out, hardware] = arguments.as_slice() else {
        eprintln!("usage: gpu_images OUT HARDWARE");
        std::process::exit(2);
    };
    let out = Path::new(out);
    let mut images = Vec::new();
    for golden in GOLDENS {
        for compute in [Compute::F32, Compute::F16] {
            images.push(case(out, hardware, golden, compute));
        }
    }
    write(&out.join("images.json"), &json!(images));
}

/// Writes what a server of this golden is asked, and what tells of it.
fn case(out: &Path, hardware: &str, golden: &str, compute: Compute) -> Value {
    let (targets, model) = (out.join("targets"), format!("{golden}-in-{}", compute.name()));
    imported::import_into(&targets, &imported::directory(golden), &model, compute);
    let target = imported::load(&targets, hardware, &model, true);
    let planned = target.and_then(|target| match toolchain::plan(&target) {
        Ok(_) => Ok(target),
        Err(why) => Err(why.to_string()),
    });
    let target = match planned {
        Ok(target) => target,
        Err(why) => return json!({ "name": format!("{hardware}/{model}/f32"), "refused": why }),
    };
    let (weights, asked) = (format!("{golden}/weights"), format!("{golden}/{}.json", compute.name()));
    let directory = out.join(&weights);
    fs::create_dir_all(&directory).expect("it is writable");
    checkpoint::write(golden, &target, &directory);
    let questions = questions(golden, &target, &directory, compute);
    write(&out.join(&asked), &json!(questions));
    json!({ "name": target.name(), "weights": weights, "asked": asked, "flags": questions::FLAGS })
}

/// All questions with the interpreter's answers, and how far log-probabilities may be from them. Where
/// products round, another token may be chosen whose logit is no further below than that: what rounding moves
/// a margin by is in the bound, too.
fn questions(golden: &str, target: &Target, weights: &Path, compute: Compute) -> Vec<Value> {
    let vision = target.tower.as_ref().expect("it has a tower");
    let prompts = QUESTIONS.map(|parts| Prompt::of(vision, parts));
    let answers = answers(target, weights, &prompts, None);
    let exact = compute == Compute::F32;
    let least = if exact { questions::EXACT } else { imported::in_f16(golden) };
    let mut bounds: Vec<Vec<f32>> = answers.iter().map(|answer| vec![least; answer.ids.len()]).collect();
    for variant in rounding::variants(target).iter().filter(|_| !exact) {
        let others = self::answers(variant, weights, &prompts, Some(&answers));
        for ((bounds, answer), other) in bounds.iter_mut().zip(&answers).zip(&others) {
            for values in [(&answer.logprobs, &other.logprobs), (&answer.margins, &other.margins)] {
                for (bound, (a, b)) in bounds.iter_mut().zip(values.0.iter().zip(values.1)) {
                    *bound = bound.max(rounding::TIMES * (a - b).abs());
                }
            }
        }
    }
    let question = |at: usize| {
        let (parts, answer) = (QUESTIONS[at], &answers[at]);
        json!({
            "name": format!("{parts:?}"), "body": questions::body(parts), "prompt": prompts[at].ids, "exact": exact,
            "ids": answer.ids, "logprobs": answer.logprobs, "margins": answer.margins, "bounds": bounds[at],
        })
    };
    (0..QUESTIONS.len()).map(question).collect()
}

/// What the interpreter answers, or says of `given` answers.
fn answers(target: &Target, weights: &Path, prompts: &[Prompt], given: Option<&[Answer]>) -> Vec<Answer> {
    let vision = target.tower.as_ref().expect("it has a tower");
    let graph = graph::build_with_vision(&target.model, &target.quant, vision);
    let checkpoint = Checkpoint::open(weights).unwrap_or_else(|error| panic!("{error}"));
    let interpreter = Interpreter::new(&graph, &target.quant, &checkpoint);
    let interpreter = interpreter.unwrap_or_else(|error| panic!("{}: {error}", target.name()));
    let given = |at: usize| given.map(|given| &given[at].ids[..]);
    let of = |(at, prompt)| computed(&interpreter, vision, prompt, given(at));
    prompts.iter().enumerate().map(of).collect()
}

fn write(path: &Path, value: &Value) {
    fs::write(path, value.to_string()).expect("it is writable");
}
