//! Many clients of a server with real weights and far too little memory: prompts with shared prefixes,
//! sequences pre-empted and swapped to memory and to disk, clients that disconnect while queued, during
//! prefill and during the answer. Every completed answer equals that of a server that computes it alone
//! without a cache; afterwards blocks, slots and files are as before.
//!
//! Planted, and caught here: the first block of a copy not restored (an answer differs), and a block restored
//! without its last layer (the server ends).

use monomorph_abi::serve::PROCESS_BYTES;
use monomorph_tests::crowd::{Answer, Random};
use monomorph_tests::server::{Serving, build, metric, post_streamed, stats, verb};
use monomorph_tests::smollm2;
use serde_json::{Value, json};
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

const REQUESTS: usize = 72;
const CLIENTS: usize = 32;
/// Prefixes that prompts share, and their tokens.
const DOCUMENTS: usize = 5;
const DOCUMENT: usize = 128;
/// Tokens of K/V for all sequences together: three or four run at once.
const KV_TOKENS: &str = "512";

/// When a client disconnects.
#[derive(Clone, Copy, Debug)]
enum Leave {
    /// After the whole answer.
    Never,
    /// This long after the request, whatever has arrived: in the queue or during prefill.
    After(Duration),
    /// After this many events with text.
    Events(usize),
}

#[derive(Debug)]
struct Asked {
    body: Value,
    leave: Leave,
}

/// The requests, the same in every run.
fn requests() -> Vec<Asked> {
    let mut random = Random(22);
    let vocabulary = 40_000;
    let documents: Vec<Vec<u32>> = (0..DOCUMENTS).map(|_| random.ids(DOCUMENT, vocabulary)).collect();
    (0..REQUESTS)
        .map(|number| {
            let shared = [0, 40, 90, DOCUMENT][random.within(0..4)];
            let mut prompt = documents[random.within(0..DOCUMENTS)][..shared].to_vec();
            let own = [1..20, 20..60, 60..160][random.within(0..3)].clone();
            let own = random.within(own);
            prompt.extend(random.ids(own, vocabulary));
            let tokens = [2..10, 10..50, 90..150][random.within(0..3)].clone();
            let mut body = json!({
                "prompt": prompt, "max_tokens": random.within(tokens), "ignore_eos": true, "logprobs": 0, "temperature": 0, "stream": true,
            });
            if number % 3 == 1 {
                body["temperature"] = json!(0.9);
                body["seed"] = json!(number);
                body["repetition_penalty"] = json!(1.1);
            }
            let leave = match random.within(0..9) {
                0 => Leave::After(Duration::from_millis(random.within(0..5) as u64)),
                1 => Leave::After(Duration::from_millis(random.within(5..3000) as u64)),
                2 => Leave::Events(random.within(1..30)),
                _ => Leave::Never,
            };
            Asked { body, leave }
        })
        .collect()
}

/// Sends a request and reads to the end, or until it disconnects (`None`).
fn ask(address: &str, asked: &Asked) -> Option<Answer> {
    let body = asked.body.to_string();
    let began = Instant::now();
    let mut stream = post_streamed(address, "/v1/completions", &body);
    if let Leave::After(time) = asked.leave {
        stream.set_read_timeout(Some(Duration::from_millis(2))).expect("timeouts can be set");
        while began.elapsed() < time {
            let mut some = [0; 4096];
            // The content does not matter here, nor does a read that times out.
            if matches!(std::io::Read::read(&mut stream, &mut some), Ok(0)) {
                break;
            }
        }
        return None;
    }
    let (mut answer, mut events, mut done) = (Answer::default(), 0, false);
    for line in BufReader::new(stream).lines() {
        let line = line.expect("the stream ends in good order");
        let Some(event) = line.strip_prefix("data: ") else { continue };
        if event == "[DONE]" {
            done = true;
            continue;
        }
        let event: Value = serde_json::from_str(event).expect("events are JSON");
        assert!(event["error"].is_null(), "{event}");
        answer.push(&event);
        events += 1;
        if matches!(asked.leave, Leave::Events(most) if events >= most) {
            return None;
        }
    }
    assert!(done, "an answer that broke off: {answer:?}");
    Some(answer)
}

/// Sends all requests, `clients` at a time; returns the completed answers and the peak of resident bytes.
fn crowd(serving: &Serving, asked: &[Asked], clients: usize) -> (Vec<Option<Answer>>, u64) {
    let (next, over, most) = (AtomicUsize::new(0), AtomicBool::new(false), AtomicU64::new(0));
    let mut answers: Vec<(usize, Option<Answer>)> = std::thread::scope(|scope| {
        scope.spawn(|| {
            while !over.load(Ordering::Relaxed) {
                most.fetch_max(serving.resident_bytes(), Ordering::Relaxed);
                std::thread::sleep(Duration::from_millis(50));
            }
        });
        let client = || {
            let mut answers = Vec::new();
            loop {
                let at = next.fetch_add(1, Ordering::Relaxed);
                let Some(asked) = asked.get(at) else { return answers };
                answers.push((at, ask(&serving.address, asked)));
            }
        };
        let clients: Vec<_> = (0..clients).map(|_| scope.spawn(client)).collect();
        let answers: Vec<_> = clients.into_iter().map(|client| client.join()).collect();
        over.store(true, Ordering::Relaxed);
        answers.into_iter().flat_map(|answers| answers.expect("every request is answered")).collect()
    });
    answers.sort_by_key(|(at, _)| *at);
    (answers.into_iter().map(|(_, answer)| answer).collect(), most.into_inner())
}

#[test]
#[cfg_attr(not(smollm2), ignore = "needs SmolLM2's weights: cargo xtask test")]
fn a_crowd_with_too_little_memory_is_answered_as_if_each_were_alone() {
    let weights = smollm2();
    let server = build(None, "cpu/smollm2-135m/q4_1");
    let asked = requests();
    let directory = tempfile::tempdir().expect("temporary directories can be made");
    let swap = directory.path().to_str().expect("paths are UTF-8");
    let serving = Serving::start(
        &server,
        &weights,
        &[
            "--context",
            "512",
            "--kv-tokens",
            KV_TOKENS,
            "--threads",
            "2",
            "--swap-space",
            "0.02",
            "--swap-dir",
            swap,
            "--swap-disk",
            "0.5",
        ],
    );
    let before = stats(&serving.address);
    let began = Instant::now();
    let (answers, resident) = crowd(&serving, &asked, CLIENTS);
    let seconds = began.elapsed().as_secs_f64();
    let limit = Duration::from_secs(10);
    let gone = Instant::now();
    let after = loop {
        let after = stats(&serving.address);
        let same = ["free_blocks", "running", "waiting"].iter().all(|name| after[name] == before[name]);
        if same {
            break after;
        }
        assert!(gone.elapsed() < limit, "not as before: {after} after {before}");
        std::thread::sleep(Duration::from_millis(20));
    };
    assert_eq!(after["free_blocks"], after["total_blocks"], "{after}");
    let stayed = answers.iter().flatten().count();
    println!(
        "{REQUESTS} requests, {CLIENTS} at a time, in {seconds:.1} s: {stayed} answered; at most {:.1} MB resident; {after}",
        resident as f64 / 1e6
    );
    assert!(stayed > REQUESTS / 2 && stayed < REQUESTS, "some stay and some leave");
    let count = |name: &str| after[name].as_u64().unwrap_or_else(|| panic!("no {name} in {after}"));
    assert!(count("preemptions") > 0 && count("tokens_cached") > 0 && count("cancelled") > 0, "{after}");
    check_memory(&server, resident);
    swapped(&serving, &after, directory.path());
    drop(serving);

    let alone =
        Serving::start(&server, &weights, &["--context", "512", "--prefix-cache", "off", "--threads", "2"]);
    for (number, (asked, answer)) in asked.iter().zip(&answers).enumerate() {
        let Some(answer) = answer else { continue };
        let lone = ask(&alone.address, asked).expect("whoever stayed then stays now");
        assert_eq!(&lone, answer, "request {number}, {}", asked.body["temperature"]);
    }
}

/// The resident peak is at most what the plan says.
fn check_memory(server: &Path, resident: u64) {
    let info: Value = serde_json::from_str(&verb(server, &["info", "--json"])).expect("info is JSON");
    let bytes = |name: &str| info[name].as_u64().unwrap_or_else(|| panic!("no {name} in {info}"));
    let blocks = KV_TOKENS.parse::<u64>().expect("a number") / bytes("block_tokens");
    let swap = 20_000_000;
    let planned =
        bytes("weight_bytes") + bytes("scratch_bytes") + blocks * bytes("block_bytes") + swap + PROCESS_BYTES;
    println!("planned {:.1} MB", planned as f64 / 1e6);
    assert!(resident <= planned, "{resident} bytes resident, and {planned} are planned");
}

/// Sequences were swapped to memory and to disk and came back, and nothing of them is left.
fn swapped(serving: &Serving, after: &Value, directory: &Path) {
    let count =
        |stats: &Value, name: &str| stats[name].as_u64().unwrap_or_else(|| panic!("no {name} in {stats}"));
    let (out, back) = (count(after, "swapped_out"), count(after, "swapped_in"));
    for way in ["out", "in"] {
        let total = |what: &str| metric(&serving.address, &format!("monomorph:swap_{way}_{what}_total"));
        let (bytes, seconds) = (total("bytes"), total("seconds"));
        println!("swapped {way}: {:.1} MB at {:.2} GB/s", bytes / 1e6, bytes / seconds / 1e9);
    }
    // How many is up to the clock: three were seen, and six or more.
    assert!(out > 0 && back > 0, "{out} copied out, {back} back");
    assert_eq!(count(after, "swap_failures"), 0);
    let began = Instant::now();
    // A page may still be in transfer.
    while count(&stats(&serving.address), "swap_host_bytes")
        + count(&stats(&serving.address), "swap_disk_bytes")
        > 0
    {
        assert!(began.elapsed().as_secs() < 10, "copies of nobody");
    }
    assert_eq!(std::fs::read_dir(directory).expect("it is there").count(), 0, "a file with a name");
}
