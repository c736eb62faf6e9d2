//! Servers whose pre-empted sequences are swapped to memory and from there to disk: each is answered as in
//! its lone run, to every digit. Delta-net models, so that both blocks and states are swapped, and one with a
//! sliding window, so that blocks of both kinds are.
//!
//! Found here first: a plan that counted states without the padding of their tiles.

use monomorph_formats::cached::{Cached, KvFormats};
use monomorph_tests::crowd::{Random, Request, Served, crowd};
use monomorph_tests::server::{Serving, metric, stats, verb};
use serde_json::json;
use std::path::Path;
use std::process::Command;

/// Goldens, formats of keys and values where they are narrow, GB of memory for copies, and further flags: so
/// little memory that one sequence of ten blocks takes more than the half that must stay free, and always
/// goes to disk.
const SERVERS: [(&str, Option<Cached>, &str, &[&str]); 4] = [
    ("qwen35-moe-text", None, "0.00012", SNAPSHOTS),
    ("qwen35-quarters", None, "0.00028", SNAPSHOTS),
    ("gemma4-few", None, "0.00012", &[]),
    ("gemma4-few", Some(Cached::Fp8), "0.00003", &[]),
];
/// Of narrow formats: every start measures the same scales.
const CALIBRATION: &[&str] = &["--kv-calibration-tokens", "64"];
/// Of models with state.
const SNAPSHOTS: &[&str] = &["--snapshots", "8", "--snapshot-interval", "64"];
/// Tokens that each server has memory for: few, so that sequences lose their blocks.
const MEMORY: &str = "528";
/// Concurrent clients.
const CLIENTS: usize = 24;
const DISK: &str = "0.02";
/// Most rounds of requests: which sequence is swapped, and for how long, depends on the machine.
const ROUNDS: usize = 4;

/// Prompts and answers of very different lengths; some disconnect midway, some are sampled.
fn requests(vocabulary: usize, random: &mut Random) -> Vec<Request> {
    let mut requests: Vec<Request> = Vec::new();
    for number in 0..160 {
        let length = if number % 3 == 0 { random.within(1..20) } else { random.within(20..220) };
        let mut prompt = random.ids(length, vocabulary);
        if number % 5 == 4 {
            let earlier = &requests[number - 1 - random.within(0..4)].prompt;
            prompt.splice(..0, earlier[..earlier.len().min(150)].iter().copied());
        }
        let sampling = match number % 4 {
            1 => json!({"temperature": 0.9, "seed": number}),
            2 => json!({"temperature": 1.2, "seed": number, "top_k": 20, "frequency_penalty": 0.3}),
            _ => json!({"temperature": 0}),
        };
        let surplus = if number % 8 == 7 { 200 } else { 0 };
        requests.push(Request { prompt, tokens: random.within(20..100), sampling, surplus });
    }
    requests
}

fn count(address: &str, key: &str) -> u64 {
    let stats = stats(address);
    stats[key].as_u64().unwrap_or_else(|| panic!("{key} is counted: {stats}"))
}

#[test]
fn sequences_that_are_swapped_are_answered_as_alone() {
    let targets = tempfile::tempdir().expect("temporary directories can be made");
    let mut random = Random(5);
    for (name, kv, space, more) in SERVERS {
        let Served { server, weights, vocabulary } =
            Served::keeping(name, kv.map(KvFormats::both), targets.path());
        let calibration = kv.map_or(&[][..], |_| CALIBRATION);
        println!("{}", verb(&server, &["info"]));
        let disk = tempfile::tempdir().expect("temporary directories can be made");
        let directory = disk.path().to_str().expect("a plain path");
        let start = |threads: &str, memory: &str, more: &[&str]| {
            let arguments = ["--threads", threads, "--context", "512", "--kv-tokens", memory];
            Serving::start(&server, weights.path(), &[&arguments, calibration, more].concat())
        };

        let requests = requests(vocabulary, &mut random);
        let quiet = start("1", "8192", &["--prefix-cache", "off"]);
        let alone: Vec<_> = requests.iter().map(|request| request.whole(&quiet.address)).collect();
        drop(quiet);
        let swap = ["--swap-space", space, "--swap-dir", directory, "--swap-disk", DISK];
        let busy = start("2", MEMORY, &[&swap[..], more].concat());
        let seen = (0..ROUNDS).any(|_| {
            let together = crowd(&busy.address, &requests, CLIENTS);
            for (number, (alone, together)) in alone.iter().zip(&together).enumerate() {
                assert!(alone == together, "{name}, request {number}\n  {alone:?}\n  {together:?}");
            }
            let [out, back, preempted] =
                ["swapped_out", "swapped_in", "preemptions"].map(|key| count(&busy.address, key));
            let [written, read] = ["written", "read"]
                .map(|way| metric(&busy.address, &format!("monomorph:swap_disk_{way}_bytes_total")));
            println!(
                "{name}: {preempted} pre-empted, {out} out, {back} back, {written} bytes written, {read} read"
            );
            out > 5 && back > 3 && written > 0.0 && read > 0.0
        });
        assert!(seen, "{name}: not copied out, or not to disk, or not back");
        assert_eq!(count(&busy.address, "swap_failures"), 0);
        // All clients are done, so nothing is left; a page may still be in transfer.
        let began = std::time::Instant::now();
        while count(&busy.address, "swap_host_bytes") + count(&busy.address, "swap_disk_bytes") > 0 {
            assert!(began.elapsed().as_secs() < 10, "{name}: copies of nobody");
        }
        assert_eq!(std::fs::read_dir(disk.path()).expect("it is there").count(), 0, "the file has a name");
        drop(busy);
        assert_eq!(std::fs::read_dir(disk.path()).expect("it is there").count(), 0, "something is left");
        refusals(&server, weights.path(), directory);
    }
}

/// Invalid options are refused with a message before anything is loaded.
fn refusals(server: &Path, weights: &Path, directory: &str) {
    let refused = |arguments: &[&str]| {
        let mut server = Command::new(server);
        let output = server.args(["serve", "--port", "0", "--weights"]).arg(weights).args(arguments).output();
        let output = output.expect("it starts");
        assert!(!output.status.success(), "{arguments:?}");
        String::from_utf8_lossy(&output.stderr).into_owned()
    };
    for (arguments, said) in [
        (&["--swap-space", "-1"][..], "--swap-space"),
        (&["--swap-space", "nan"], "--swap-space NaN: must be a number of GB"),
        (&["--swap-space", "0.000001"], "the shortest sequence takes"),
        (&["--swap-space", "900000"], "of memory left"),
        (&["--swap-when", "always"], "--swap-space is 0"),
        (&["--swap-space", "1", "--swap-dir", directory], "--swap-disk"),
        (&["--swap-space", "1", "--swap-disk", "1"], "--swap-dir"),
        (&["--swap-dir", directory, "--swap-disk", "1"], "--swap-space is 0"),
        (&["--swap-space", "1", "--swap-dir", "/nowhere/at/all", "--swap-disk", "1"], "/nowhere/at/all"),
        (&["--swap-space", "1", "--swap-dir", directory, "--swap-disk", "15000"], "has room for"),
    ] {
        let text = refused(arguments);
        assert!(text.contains(said), "{arguments:?}: {text}");
    }
}
