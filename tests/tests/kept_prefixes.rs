//! Servers that keep prefixes in files, one after another: what a prompt finds there is what would have been
//! computed, to every digit of every log-probability, whatever ended the server before.

use monomorph_tests::crowd::{Random, Request, Served};
use monomorph_tests::server::{Serving, metric, stats};
use serde_json::json;
use std::time::Duration;

/// Conversations, whose second turns go on from the first.
const CONVERSATIONS: usize = 12;

fn back(serving: &Serving) -> f64 {
    metric(&serving.address, "monomorph:kept_prefix_tokens_total")
}

#[test]
fn what_comes_back_from_files_is_what_would_be_computed() {
    let targets = tempfile::tempdir().expect("temporary directories can be made");
    let kept = tempfile::tempdir().expect("temporary directories can be made");
    let Served { server, weights, vocabulary } = Served::build("qwen3-moe", targets.path());
    let start = |threads: &str, more: &[&str]| {
        let arguments = ["--threads", threads, "--context", "512", "--kv-tokens", "8192"];
        Serving::start(&server, weights.path(), &[&arguments, more].concat())
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

    let keep = ["--keep-prefixes", kept.path().to_str().expect("a plain path")];
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
        // All full blocks of the first turn's prompt, at least.
        let whole = (turn[0].prompt.len() / 16 * 16) as f64;
        assert!(back(&second) - before >= whole, "conversation {number}: {} back", back(&second) - before);
    }
    assert_eq!(stats(&second.address)["kept_failures"], 0);

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
    println!("{} tokens came back after a kill", back(&third));
    assert!(back(&third) > 0.0);
}
