//! `gpu_ranks OUT`: the checkpoint with which servers of several ranks are checked on a machine with cards
//! and without cargo; `cargo xtask gpu --tp` runs it. Writes `OUT/targets/`, specs; `OUT/stored/`, weights;
//! and `OUT/ranks.json`: where they are, prompts, and the interpreter's greedy continuations.

use monomorph_compiler::reference::Interpreter;
use monomorph_compiler::{graph, spec};
use monomorph_tests::crowd::Random;
use monomorph_tests::greedy::greedy;
use monomorph_tests::root;
use monomorph_tests::served::served;
use monomorph_weights::Checkpoint;
use serde_json::json;
use std::path::Path;

const LENGTHS: [usize; 6] = [1, 17, 64, 100, 130, 257];
const TOKENS: usize = 32;
/// Prompts of requests that are asked many at once.
const CROWD: usize = 8;

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [out] = arguments.as_slice() else {
        eprintln!("usage: gpu_ranks OUT");
        std::process::exit(2);
    };
    let out = Path::new(out);
    let served = served("shared", &out.join("targets"), &out.join("stored"));
    let search = [out.join("targets"), root().join("targets")];
    let target =
        spec::load(&search, &format!("h200/{}", served.name)).unwrap_or_else(|error| panic!("{error}"));
    let graph = graph::build(&target.model, &target.quant);
    let weights = Checkpoint::open(&served.random).unwrap_or_else(|error| panic!("{error}"));
    let interpreter =
        Interpreter::new(&graph, &target.quant, &weights).unwrap_or_else(|error| panic!("{error}"));
    let mut random = Random(19);
    let prompts = LENGTHS.map(|length| random.ids(length, served.vocabulary));
    let found: Vec<_> = std::thread::scope(|scope| {
        let threads = prompts.iter().map(|prompt| scope.spawn(|| greedy(&interpreter, prompt, TOKENS)));
        let threads: Vec<_> = threads.collect();
        threads.into_iter().map(|thread| thread.join().expect("it computes")).collect()
    });
    let (ids, margins): (Vec<_>, Vec<_>) = found.into_iter().unzip();
    let crowd: Vec<_> = (0..CROWD).map(|at| random.ids(5 + 23 * at, served.vocabulary)).collect();
    let ranks = json!({
        "name": served.name, "random": served.random, "repeating": served.repeating,
        "vocabulary": served.vocabulary, "context": served.context, "experts": served.experts,
        "names": LENGTHS.map(|length| format!("prompt of {length}")), "prompts": prompts,
        "ids": ids, "margins": margins, "crowd": crowd,
    });
    std::fs::write(out.join("ranks.json"), ranks.to_string()).expect("the directory is writable");
}
