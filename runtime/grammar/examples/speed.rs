//! What grammars cost with the vocabulary of a checkpoint: `cargo run --release --example speed -- CHECKPOINT`.
//!
//! Over the corpus of schemas (tests/fixtures/schemas): making what all grammars share, compiling each schema once, and the masks of answers that
//! are drawn at random.

use monomorph_grammar::{Grammars, Source, Token};
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
