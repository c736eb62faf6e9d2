//! Delta-net and expert models on servers: sequences join and leave the batch all the time, and each gets the
//! answer of its lone run from the first token on. Some prompts share prefixes. State left in a slot by an
//! earlier sequence or by a neighbour would show, and so would a cached state of the wrong prefix.

use monomorph_tests::crowd::{Random, Request, Served, crowd};
use monomorph_tests::server::{Serving, stats};
use serde_json::{Value, json};
use std::time::Instant;

/// Goldens, and the tokens that each server's memory holds: little memory makes it pre-empt sequences, which
/// restart in a slot that others have used.
const SERVERS: [(&str, &str); 5] = [
    ("nemotron-h-mamba", "8192"),
    ("nemotron-h-nano", "640"),
    ("qwen3-next", "8192"),
    ("qwen35-moe-text", "640"),
    ("qwen35-quarters", "512"),
];
/// Concurrent clients.
const CLIENTS: usize = 16;
/// Greedy tokens compared, over all servers.
const TOKENS: usize = 10_000;

/// Greedy decoding, because a model's own preset may sample.
fn greedily() -> Value {
    json!({"temperature": 0})
}

/// One server's requests, in order.
fn requests(vocabulary: usize, random: &mut Random) -> Vec<Request> {
    let greedy = |prompt, tokens| Request { prompt, tokens, sampling: greedily(), surplus: 0 };
    let mut requests = Vec::new();
    // Together far more than a step carries, so prompts are cut into chunks wherever there is room.
    for _ in 0..CLIENTS / 2 {
        let length = random.within(300..450);
        requests.push(greedy(random.ids(length, vocabulary), random.within(1..60)));
    }
    // The same tokens in several rows of a batch.
    let prompt = random.ids(70, vocabulary);
    for _ in 0..CLIENTS / 2 {
        requests.push(greedy(prompt.clone(), random.within(1..60)));
    }
    // Short prompts, so they are admitted together; in the end they need more than a small memory holds.
    for _ in 0..3 * CLIENTS {
        let length = random.within(1..16);
        requests.push(greedy(random.ids(length, vocabulary), 60));
    }
    for number in 0..200 {
        let length = random.within(1..151);
        let mut prompt = random.ids(length, vocabulary);
        // One in three shares a prefix with an earlier one.
        if random.within(0..3) == 0 {
            let earlier = &requests[requests.len() - 1 - random.within(0..20)].prompt;
            let alike = earlier.len().min(150);
            prompt.splice(..0, earlier[..alike].iter().copied());
        }
        let mut request = greedy(prompt, random.within(1..61));
        match number % 10 {
            // Disconnects midway.
            0 => request.surplus = 300,
            1 => request.sampling = json!({"temperature": 0.9, "seed": number}),
            2 => {
                request.sampling =
                    json!({"temperature": 1.2, "seed": number, "top_k": 20, "frequency_penalty": 0.3});
            }
            _ => {}
        }
        requests.push(request);
    }
    requests
}

#[test]
fn sequences_that_come_and_go_are_answered_as_alone() {
    let targets = tempfile::tempdir().expect("temporary directories can be made");
    let mut random = Random(35);
    let mut compared = 0;
    for (name, memory) in SERVERS {
        let Served { server, weights, vocabulary } = Served::build(name, targets.path());
        let start = |threads: &str, memory: &str, cache: &[&str]| {
            let arguments = ["--threads", threads, "--context", "512", "--kv-tokens", memory];
            Serving::start(&server, weights.path(), &[&arguments, cache].concat())
        };

        let requests = requests(vocabulary, &mut random);
        let began = Instant::now();
        let quiet = start("1", "8192", &["--prefix-cache", "off"]);
        let alone: Vec<_> = requests.iter().map(|request| request.whole(&quiet.address)).collect();
        drop(quiet);
        let lone_seconds = began.elapsed().as_secs_f64();
        let busy = start("2", memory, &["--snapshots", "40", "--snapshot-interval", "40"]);
        let together = crowd(&busy.address, &requests, CLIENTS);
        let stats = stats(&busy.address);
        println!("{name}: {lone_seconds:.1} s alone, {:.1} s in all", began.elapsed().as_secs_f64());

        for (number, ((request, alone), together)) in requests.iter().zip(&alone).zip(&together).enumerate() {
            assert_eq!(alone.text.len(), request.tokens, "{name}, request {number}");
            assert_eq!(alone.logprobs.len(), request.tokens, "{name}, request {number}");
            let differs = |(at, (a, b)): (usize, (u8, u8))| (a != b).then_some(at);
            let token = alone.text.bytes().zip(together.text.bytes()).enumerate().find_map(differs);
            assert!(
                alone == together,
                "{name}, request {number} ({} tokens, {:?}): token {token:?} is the first that differs\n  \
                 {alone:?}\n  {together:?}",
                request.prompt.len(),
                request.sampling
            );
        }
        let greedy = requests.iter().filter(|request| request.sampling == greedily());
        let tokens: usize = greedy.map(|request| request.tokens).sum();
        compared += tokens;

        // The run was as intended: crowded, with disconnects, and short of memory where it was meant to be.
        let count = |key: &str| stats[key].as_u64().expect("it is counted");
        let [steps, generated, cancelled, preempted, cached] =
            ["steps", "tokens_generated", "cancelled", "preemptions", "tokens_cached"].map(count);
        println!(
            "{name}: {tokens} greedy tokens; {generated} in {steps} steps, {cancelled} left, {preempted} pre-empted, {cached} \
             tokens of prompts were there"
        );
        assert!(cached > 1000, "{name}: {cached} tokens were gone on from");
        assert!(generated >= 2 * steps, "{name}: {generated} tokens in {steps} steps are no crowd");
        assert!(cancelled > 0, "{name}: nobody left midway");
        assert!(memory == SERVERS[0].1 || preempted > 0, "{name}: nobody was pre-empted");
    }
    assert!(compared >= TOKENS, "{compared} tokens compared");
}
