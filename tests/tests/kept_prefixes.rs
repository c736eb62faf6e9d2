//! Servers that keep prefixes in files, one after another: what a prompt finds there is what would have been
//! computed, to every digit of every log-probability, whatever ended the server before. Of hybrids it is the
//! recurrent state too, drafts of the layers that attend included.

use monomorph_compiler::spec::types::{BuildOptions, DraftMethod, DraftOption};
use monomorph_tests::crowd::{Random, Request, Served};
use monomorph_tests::server::{Serving, metric, stats};
use serde_json::json;
use std::path::Path;
use std::time::Duration;

/// Conversations, whose second turns go on from the first.
const CONVERSATIONS: usize = 12;

fn back(serving: &Serving) -> f64 {
    metric(&serving.address, "monomorph:kept_prefix_tokens_total")
}

fn states_back(serving: &Serving) -> f64 {
    metric(&serving.address, "monomorph:kept_prefix_snapshots_total")
}

#[test]
fn what_comes_back_from_files_is_what_would_be_computed() {
    comes_back("qwen3-moe", &[], BuildOptions::default());
}

#[test]
fn states_that_come_back_from_files_are_what_would_be_computed() {
    let more = ["--snapshots", "12", "--snapshot-interval", "96"];
    comes_back("qwen35-moe-text", &more, BuildOptions::default());
}

/// The same of a server whose layers that attend draft: what it answers is what one without drafts does.
#[test]
fn states_come_back_to_servers_that_draft_with_the_layers_that_attend() {
    let more = ["--snapshots", "12", "--snapshot-interval", "96"];
    let method = DraftMethod::Layers;
    let draft = DraftOption { method, drafts: 2, vocabulary: None, forced_acceptance: None };
    comes_back("qwen35-quarters", &more, BuildOptions { draft: Some(draft), ..BuildOptions::default() });
}

/// A golden's server with these options, and where it keeps prefixes with `more` arguments.
fn comes_back(golden: &str, more: &[&str], options: BuildOptions) {
    let hybrid = !more.is_empty();
    let targets = tempfile::tempdir().expect("temporary directories can be made");
    let kept = tempfile::tempdir().expect("temporary directories can be made");
    let Served { server, weights, vocabulary } = Served::with(golden, &options, targets.path());
    let start = |threads: &str, own: &[&str]| {
        let arguments = ["--threads", threads, "--context", "504", "--kv-tokens", "8192"];
        Serving::start(&server, weights.path(), &[&arguments, own].concat())
    };
    let mut random = Random(26);
    let request = |prompt: Vec<u32>, number: usize| {
        let sampling = match number % 2 {
            0 => json!({"temperature": 0}),
            _ => json!({"temperature": 0.9, "seed": number}),
        };
        Request { prompt, tokens: 12, sampling, surplus: 0 }
    };
    let turns: Vec<[Request; 2]> = (0..CONVERSATIONS)
        .map(|number| {
            let length = random.within(60..300);
            let first = random.ids(length, vocabulary);
            let second = [first.clone(), random.ids(40, vocabulary)].concat();
            [request(first, number), request(second, number)]
        })
        .collect();
    let forgetful = start("1", &["--prefix-cache", "off"]);
    let alone: Vec<_> =
        turns.iter().map(|turn| turn.each_ref().map(|request| request.whole(&forgetful.address))).collect();
    drop(forgetful);

    let keep = [&["--keep-prefixes", kept.path().to_str().expect("a plain path")], more].concat();
    let first = start("2", &keep);
    for (turn, alone) in turns.iter().zip(&alone) {
        assert_eq!(turn[0].whole(&first.address), alone[0]);
    }
    first.signal("TERM");
    assert_eq!(first.end(Duration::from_secs(20)), Some(0), "told to end, it ends");

    let second = start("2", &keep);
    for (number, (turn, alone)) in turns.iter().zip(&alone).enumerate() {
        let before = back(&second);
        assert_eq!(turn[1].whole(&second.address), alone[1], "conversation {number}");
        // All full blocks of the first turn's prompt, at least; a state stands where a token is left to feed.
        let whole = ((turn[0].prompt.len() - usize::from(hybrid)) / 16 * 16) as f64;
        assert!(back(&second) - before >= whole, "conversation {number}: {} back", back(&second) - before);
    }
    assert_eq!(stats(&second.address)["kept_failures"], 0);
    let states = if hybrid { CONVERSATIONS as f64 } else { 0.0 };
    assert_eq!(states_back(&second), states, "a state for each conversation");

    // Killed while it answers and writes.
    let address = second.address.clone();
    std::thread::scope(|scope| {
        for (number, turn) in turns.iter().enumerate().take(4) {
            let (address, prompt) = (&address, [&turn[1].prompt[..], &turn[0].prompt[..50]].concat());
            scope.spawn(move || {
                let body =
                    json!({"prompt": prompt, "max_tokens": 100 + number, "ignore_eos": true}).to_string();
                // It ends within.
                let _ = std::panic::catch_unwind(|| {
                    monomorph_tests::server::post(address, "/v1/completions", &body)
                });
            });
        }
        std::thread::sleep(Duration::from_millis(60));
        second.signal("KILL");
    });
    drop(second);
    let third = start("2", &keep);
    for (number, (turn, alone)) in turns.iter().zip(&alone).enumerate() {
        for (request, alone) in turn.iter().zip(alone).rev() {
            assert_eq!(request.whole(&third.address), *alone, "conversation {number}");
        }
    }
    println!("{} tokens and {} states came back after a kill", back(&third), states_back(&third));
    assert!(back(&third) > 0.0 && (states_back(&third) > 0.0) == hybrid);
    if !hybrid {
        return;
    }

    // A bit of every page of a state flips: it is found, and the answers are those of before.
    third.signal("TERM");
    assert_eq!(third.end(Duration::from_secs(20)), Some(0));
    let flipped = flip_states(kept.path());
    let fourth = start("2", &keep);
    for (turn, alone) in turns.iter().zip(&alone) {
        assert_eq!(turn[1].whole(&fourth.address), alone[1]);
    }
    let failures = stats(&fourth.address)["kept_failures"].as_u64().expect("it is counted");
    println!("{flipped} pages of states were flipped, {failures} were read");
    assert!(failures >= CONVERSATIONS as u64 && states_back(&fourth) == 0.0, "{failures}");
}

/// Flips a bit in every page of a state; how many those are.
fn flip_states(kept: &Path) -> usize {
    let [index, pages] = ["index", "pages"].map(|end| kept.join(format!("kept-prefixes.{end}")));
    let (entries, mut bytes) =
        (std::fs::read(index).expect("it is there"), std::fs::read(&pages).expect("so"));
    // A header, then an entry of one size for each page; its kind stands in the eleventh word.
    let number = |at: usize| u32::from_le_bytes(entries[at..at + 4].try_into().expect("four bytes")) as usize;
    let (page, words) = (number(20), number(24));
    let states: Vec<usize> = entries[4096..]
        .chunks(44 + 4 * words)
        .enumerate()
        .filter_map(|(at, entry)| (entry[40] == 1).then_some(at))
        .collect();
    states.iter().for_each(|at| bytes[at * page + 9] ^= 4);
    std::fs::write(pages, bytes).expect("written");
    states.len()
}
