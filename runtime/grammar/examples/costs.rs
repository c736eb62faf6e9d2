//! What grammars cost with the vocabulary of a checkpoint: `cargo run --release --example costs --
//! CHECKPOINT`.
//!
//! Over the corpus of schemas (tests/fixtures/schemas): making what all grammars share, compiling each schema
//! once, and the masks of answers that are drawn at random. Then what a request costs that has tools, in the
//! form of Hermes.

use monomorph_grammar::{Grammars, Opener, Pattern, Schema, Source, Token};
use monomorph_text::Tokenizer;
use monomorph_weights::Checkpoint;
use serde_json::Value;
use std::path::Path;
use std::time::Instant;

fn main() {
    let path = std::env::args().nth(1).expect("usage: speed CHECKPOINT");
    let checkpoint = Checkpoint::open(Path::new(&path)).expect("a checkpoint");
    let tokenizer = Tokenizer::from_checkpoint(&checkpoint).expect("a tokenizer");
    let began = Instant::now();
    let vocabulary = tokenizer.vocabulary();
    let token = |id| Some(Token { bytes: tokenizer.token_bytes(id)?, special: tokenizer.is_special(id) });
    let grammars = Grammars::new(vocabulary, token, tokenizer.end_ids()).expect("a vocabulary");
    println!("{vocabulary} tokens: made in {:.1} ms", milliseconds(began));

    let corpus = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/fixtures/schemas/schemas.jsonl");
    let corpus = std::fs::read_to_string(corpus).expect("the corpus");
    let (mut compiled, mut masks, mut wide) = (Vec::new(), Vec::new(), 0.0);
    let mut state = 1u64;
    for line in corpus.lines() {
        let line: Value = serde_json::from_str(line).expect("a line of the corpus");
        let source = Source::JsonSchema(line["schema"].clone());
        let began = Instant::now();
        let Ok(mut constraint) = grammars.compile(&source) else { continue };
        compiled.push(milliseconds(began));
        if line["name"] == "wide 200" {
            wide = milliseconds(began);
        }
        let mut next = Vec::new();
        constraint.masks(&[], &mut next).expect("something may come");
        for _ in 0..400 {
            let allowed: Vec<u32> = (0..vocabulary as u32).filter(|id| next[0].allows(*id)).collect();
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let id = allowed[(state >> 33) as usize % allowed.len()];
            if constraint.end_ids().contains(&id) {
                break;
            }
            let began = Instant::now();
            constraint.take(id).expect("allowed");
            constraint.masks(&[], &mut next).expect("something may come");
            masks.push(milliseconds(began));
        }
    }
    print("a schema compiled, with its first mask", &mut compiled);
    println!("that of 200 properties: {wide:.2} ms");
    print("a token taken, with the next mask", &mut masks);
    let schema = |line: &str| {
        let line: Value = serde_json::from_str(line).ok()?;
        grammars.compile(&Source::JsonSchema(line["schema"].clone())).ok()?;
        (line["schema"]["type"] == "object").then(|| line["schema"].clone())
    };
    let schemas: Vec<Value> = corpus.lines().filter_map(schema).take(50).collect();
    for count in [1, 20, 50] {
        for required in [false, true] {
            tools(&grammars, &schemas[..count], required);
        }
    }
}

/// What tools cost: medians of eleven.
fn tools(grammars: &Grammars, schemas: &[Value], required: bool) {
    let openers = grammars.openers(&[Opener { text: "<tool_call>", token: None }]);
    let mut times: [Vec<f64>; 5] = Default::default();
    for _ in 0..11 {
        let began = Instant::now();
        let read: Vec<Schema> = schemas.iter().map(|schema| Schema::relaxed(schema).0).collect();
        times[0].push(milliseconds(began));
        let call = |(at, schema): (usize, &Schema)| {
            let begin = Pattern::text(format!("{{\"name\": \"tool_{at}\", \"arguments\": "));
            Pattern::All(vec![begin, Pattern::Json(schema.clone()), Pattern::text("}")])
        };
        let calls = Pattern::OneOf(read.iter().enumerate().map(call).collect());
        let call = Pattern::All(vec![Pattern::text("<tool_call>\n"), calls, Pattern::text("\n</tool_call>")]);
        let pattern = match required {
            true => Pattern::Some(Box::new(call), "\n".to_owned()),
            false => Pattern::Any(Box::new(call)),
        };
        let began = Instant::now();
        let compiled = grammars.compile_pattern(&pattern).expect("it compiles");
        times[1].push(milliseconds(began));
        let began = Instant::now();
        let watched = compiled.watching(&openers, !required);
        times[2].push(milliseconds(began));
        let began = Instant::now();
        watched.clone().masks(&[], &mut Vec::new()).expect("something may come");
        times[3].push(milliseconds(began));
        let began = Instant::now();
        let clone = watched.clone();
        times[4].push(milliseconds(began));
        drop(clone);
    }
    let [read, compiled, forbidden, masked, cloned] = times.map(|mut times| {
        times.sort_by(f64::total_cmp);
        times[times.len() / 2]
    });
    println!(
        "{} tools, required: {required}: schemas read {read:.2} ms, compiled with a mask {compiled:.2}, tags looked at {forbidden:.2}, cloned with a mask {masked:.2}, cloned {cloned:.2}",
        schemas.len()
    );
}

fn milliseconds(since: Instant) -> f64 {
    since.elapsed().as_secs_f64() * 1e3
}

fn print(what: &str, times: &mut [f64]) {
    times.sort_by(f64::total_cmp);
    let at = |part: f64| times[((times.len() - 1) as f64 * part) as usize];
    let mean = times.iter().sum::<f64>() / times.len() as f64;
    println!(
        "{what} ({}): mean {mean:.3} ms, median {:.3}, 99 of 100 {:.3}, most {:.3}",
        times.len(),
        at(0.5),
        at(0.99),
        at(1.0)
    );
}
