//! Two servers behind a router that others wrote, on loopback: what clients see when one is killed, told to
//! stop, or found to answer wrongly, and that the router finds the server that has a prompt's prefix.
//!
//! Planted, and caught here: a drain of no seconds (streams end with an event), and a router that does not
//! look at readiness (a server that is not ready is asked).

use monomorph_compiler::toolchain::python;
use monomorph_tests::root;
use monomorph_tests::scripted::{Talking, scripted, talk};
use monomorph_tests::server::{get, metric, post};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::net::TcpListener;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// Requests of a run, and how many are asked at a time.
const REQUESTS: usize = 200;
const CLIENTS: usize = 8;
/// What each answers, at 20 ms a token.
const ANSWER: &str = "whole";
/// What takes a second.
const LONG: &str = "a stream that goes on for so long that it is cut off";
/// How often a client asks again for what it may ask again for.
const AGAIN: usize = 5;
/// Seconds between two looks of the router at a server's readiness.
const LOOKS: u64 = 1;
/// Prompts of the runs about prefixes, and the different prefixes: an odd number, so that a router that takes
/// turns has each of them answered by both servers. Tokens are bytes.
const PROMPTS: usize = 88;
const PREFIXES: usize = 11;
const PREFIX: usize = 480;

/// A running router, ended when dropped.
struct Router {
    process: Child,
    url: String,
}

impl Router {
    /// Starts it in front of these servers and waits until it answers.
    fn start(policy: &str, servers: &[Talking]) -> Router {
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        let requirements = root().join("tests/fleet/requirements.txt");
        let python = python::environment(&root().join("target/venv-fleet"), &requirements)
            .unwrap_or_else(|error| panic!("{error}"));
        let program: PathBuf = python.with_file_name("vllm-router");
        // Below the ports that connections take for themselves.
        let mut free = (20_000 + std::process::id() as u16 % 5_000..32_768)
            .skip(100 * NEXT.fetch_add(1, Ordering::Relaxed))
            .filter(|port| TcpListener::bind(("127.0.0.1", *port)).is_ok());
        let [port, metrics] = [(); 2].map(|()| free.next().expect("a port is free").to_string());
        let urls = servers.iter().map(|it| format!("http://{}", it.serving.address));
        let mut command = Command::new(program);
        command.args(["--host", "127.0.0.1", "--port", &port, "--prometheus-port", &metrics]);
        command.arg("--worker-urls").args(urls);
        command.args(["--policy", policy, "--log-level", "error"]);
        let looks = LOOKS.to_string();
        command.args(["--health-check-interval-secs", &looks, "--health-failure-threshold", "1"]);
        let process = command.stdin(Stdio::null()).stdout(Stdio::null()).spawn().expect("it starts");
        let router = Router { process, url: format!("http://127.0.0.1:{port}") };
        let (address, began) = (format!("127.0.0.1:{port}"), Instant::now());
        while get(&address, "/v1/models").is_none_or(|(status, _)| status != 200) {
            assert!(began.elapsed().as_secs() < 60, "the router does not answer after a minute");
            std::thread::sleep(Duration::from_millis(50));
        }
        router
    }
}

impl Drop for Router {
    fn drop(&mut self) {
        // An error means that it has already ended.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// What a client got.
enum Got {
    /// All of the answer.
    Whole,
    /// An error after which it may ask again.
    Retryable(String),
    /// Anything else, such as a part of an answer that says that it is all.
    Wrong(String),
}

fn agent() -> ureq::Agent {
    let config = ureq::Agent::config_builder();
    config.http_status_as_error(false).timeout_global(Some(Duration::from_secs(60))).build().into()
}

/// Asks for this answer, whole or as a stream.
fn ask(agent: &ureq::Agent, url: &str, answer: &str, streamed: bool) -> Got {
    let prompt = format!("[[slowly {answer}]]");
    let body = json!({"messages": [{"role": "user", "content": prompt}], "stream": streamed});
    let sent = agent.post(format!("{url}/v1/chat/completions")).header("content-type", "application/json");
    let mut response = match sent.send(body.to_string()) {
        Ok(response) => response,
        Err(error) => return Got::Retryable(format!("no answer: {error}")),
    };
    let status = response.status().as_u16();
    // A body that ends before its end is an error of the transport.
    let text = match response.body_mut().read_to_string() {
        Ok(text) => text,
        Err(error) => return Got::Retryable(format!("cut: {error}")),
    };
    match status {
        200 if streamed => stream(&text, answer),
        200 => {
            let said: Value = serde_json::from_str(&text).unwrap_or_default();
            let choice = &said["choices"][0];
            let whole = choice["message"]["content"] == answer && choice["finish_reason"] == "stop";
            if whole { Got::Whole } else { Got::Wrong(text) }
        }
        429 | 500..600 => Got::Retryable(format!("{status}: {text}")),
        _ => Got::Wrong(format!("{status}: {text}")),
    }
}

/// What a stream that ended says.
fn stream(text: &str, answer: &str) -> Got {
    let events = text.lines().filter_map(|line| line.strip_prefix("data: "));
    let (mut said, mut ended, mut done) = (String::new(), false, false);
    for event in events {
        if event == "[DONE]" {
            done = true;
            continue;
        }
        let event: Value = serde_json::from_str(event).unwrap_or_default();
        if event["error"].is_object() {
            return Got::Retryable(format!("an event: {}", event["error"]));
        }
        let choice = &event["choices"][0];
        said += choice["delta"]["content"].as_str().unwrap_or_default();
        ended |= choice["finish_reason"] == "stop";
    }
    if done && ended && said == answer { Got::Whole } else { Got::Wrong(text.to_owned()) }
}

/// Asks `REQUESTS` times and does something once half are answered. Returns how many clients asked again, by
/// the reason.
fn crowd(
    url: &str,
    streamed: impl Fn(usize) -> bool + Sync,
    half: impl FnOnce() + Send,
) -> BTreeMap<String, usize> {
    let (next, answered) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let (half, again) = (Mutex::new(Some(half)), Mutex::new(BTreeMap::new()));
    let client = || {
        let agent = agent();
        loop {
            let request = next.fetch_add(1, Ordering::Relaxed);
            if request >= REQUESTS {
                break;
            }
            for attempt in 0.. {
                match ask(&agent, url, ANSWER, streamed(request)) {
                    Got::Whole => break,
                    Got::Retryable(why) if attempt < AGAIN => {
                        println!("request {request}: {why}");
                        let kind = why.split(':').next().unwrap_or_default().to_owned();
                        *again.lock().expect("nobody panics").entry(kind).or_insert(0) += 1;
                        std::thread::sleep(Duration::from_millis(300));
                    }
                    Got::Retryable(why) | Got::Wrong(why) => panic!("request {request}: {why}"),
                }
            }
            if answered.fetch_add(1, Ordering::Relaxed) + 1 == REQUESTS / 2
                && let Some(half) = half.lock().expect("nobody panics").take()
            {
                half();
            }
        }
    };
    std::thread::scope(|scope| (0..CLIENTS).for_each(|_| drop(scope.spawn(client))));
    assert!(half.into_inner().expect("nobody panics").is_none(), "half were answered");
    again.into_inner().expect("nobody panics")
}

/// Begins so many long streams one after the other, does something while they run, and returns what became of
/// them.
fn long_streams(url: &str, count: usize, meanwhile: impl FnOnce()) -> Vec<Got> {
    std::thread::scope(|scope| {
        let begin = |_| {
            let thread = scope.spawn(|| ask(&agent(), url, LONG, true));
            std::thread::sleep(Duration::from_millis(100));
            thread
        };
        let threads: Vec<_> = (0..count).map(begin).collect();
        meanwhile();
        threads.into_iter().map(|thread| thread.join().expect("it does not panic")).collect()
    })
}

fn pair() -> [Talking; 2] {
    [(); 2].map(|()| talk(&["--drain-seconds", "20"]))
}

/// Whole answers that a server gave.
fn answered(server: &Talking) -> f64 {
    metric(&server.serving.address, "vllm:request_success_total{model_name=\"talk\",finished_reason=\"stop\"")
}

#[test]
#[ignore = "needs packages of pip: cargo xtask test"]
fn who_loses_a_killed_server_is_told_or_answered() {
    let servers = pair();
    let router = Router::start("round_robin", &servers);
    let again = crowd(&router.url, |request| request % 2 == 0, || servers[0].serving.signal("KILL"));
    println!("killed: {REQUESTS} of {REQUESTS} whole, of which asked again: {again:?}");
    assert!(again.values().sum::<usize>() <= 2 * CLIENTS, "more than were in progress: {again:?}");
}

#[test]
#[ignore = "needs packages of pip: cargo xtask test"]
fn a_stream_of_a_killed_server_does_not_look_whole() {
    let servers = pair();
    let router = Router::start("round_robin", &servers);
    let got = long_streams(&router.url, 4, || servers[0].serving.signal("KILL"));
    let whole = got.iter().filter(|it| matches!(it, Got::Whole)).count();
    let cut = got.iter().filter(|it| matches!(it, Got::Retryable(why) if why.starts_with("cut: "))).count();
    println!("killed: of 4 long streams {whole} whole, {cut} cut");
    assert_eq!((whole, cut), (2, 2), "they took turns");
}

#[test]
#[ignore = "needs packages of pip: cargo xtask test"]
fn a_server_that_is_told_to_stop_loses_nobody() {
    let servers = pair();
    let router = Router::start("round_robin", &servers);
    let again = crowd(
        &router.url,
        |_| true,
        || {
            let got = long_streams(&router.url, 4, || servers[0].serving.signal("TERM"));
            assert!(got.iter().all(|it| matches!(it, Got::Whole)), "streams were cut");
        },
    );
    println!("told to stop: {REQUESTS} of {REQUESTS} streams whole, of which asked again: {again:?}");
    assert!(again.is_empty(), "{again:?}");
    let [stopped, other] = servers;
    assert!(answered(&other) >= REQUESTS as f64 / 2.0, "the other one took over");
    assert_eq!(stopped.serving.end(Duration::from_secs(30)), Some(0));
}

#[test]
#[ignore = "needs packages of pip: cargo xtask test"]
fn a_server_that_is_not_ready_is_asked_nothing() {
    let below = tempfile::tempdir().expect("a directory");
    let dump = below.path().join("dump.jsonl");
    // Of requests that it refuses, too, the server writes a line.
    let servers = [talk(&["--dump", dump.to_str().expect("UTF-8")]), talk(&[])];
    let asked = || std::fs::read_to_string(&dump).map_or(0, |text| text.lines().count());
    let router = Router::start("round_robin", &servers);
    let address = &servers[0].serving.address;
    let ready = |port: &str| {
        let output = Command::new(scripted()).args(["health", "--port", port]).output().expect("it runs");
        (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    let port = address.rsplit_once(':').expect("an address").1;
    assert_eq!(ready(port).0, Some(0), "{}", ready(port).1);
    let poison = json!({"messages": [{"role": "user", "content": "[[poison]]"}]}).to_string();
    // Whatever it answers: it is the last one.
    let _ = post(address, "/v1/chat/completions", &poison);
    let began = Instant::now();
    while get(address, "/health/ready").is_none_or(|(status, _)| status == 200) {
        assert!(began.elapsed().as_secs() < 10, "it is still ready");
        std::thread::sleep(Duration::from_millis(20));
    }
    let (code, why) = ready(port);
    assert!(code == Some(1) && why.contains("poisoned"), "{code:?}: {why}");
    assert!(ready("1").1.contains("no server answers at 127.0.0.1:1"), "{}", ready("1").1);
    std::thread::sleep(Duration::from_millis(1000 * LOOKS + 500));
    let before = (asked(), answered(&servers[1]));
    let again = crowd(&router.url, |_| false, || ());
    assert!(again.is_empty(), "{again:?}");
    assert_eq!(answered(&servers[1]) - before.1, REQUESTS as f64, "the other one answered all");
    assert!(before.0 == 1 && asked() == 1, "{} and {} requests", before.0, asked());
}

/// Tokens of prompts, and how many of them were cached.
fn prefixes(policy: &str) -> [u64; 2] {
    let servers = pair();
    let router = Router::start(policy, &servers);
    let (next, sums) = (AtomicUsize::new(0), Mutex::new([0; 2]));
    let client = || {
        let agent = agent();
        loop {
            let at = next.fetch_add(1, Ordering::Relaxed);
            if at >= PROMPTS {
                break;
            }
            let letter = char::from(b'a' + (at % PREFIXES) as u8);
            let document = letter.to_string().repeat(PREFIX);
            let body = json!({"messages": [
                {"role": "system", "content": document},
                {"role": "user", "content": format!("{at} [[say yes]]")},
            ]});
            let url = format!("{}/v1/chat/completions", router.url);
            let sent = agent.post(url).header("content-type", "application/json").send(body.to_string());
            let text = sent.and_then(|mut it| it.body_mut().read_to_string()).expect("it is answered");
            let answer: Value = serde_json::from_str(&text).unwrap_or_default();
            assert_eq!(answer["choices"][0]["message"]["content"], "yes", "{text}");
            let usage = &answer["usage"];
            let counts = [&usage["prompt_tokens"], &usage["prompt_tokens_details"]["cached_tokens"]];
            let mut sums = sums.lock().expect("nobody panics");
            for (sum, count) in sums.iter_mut().zip(counts) {
                *sum += count.as_u64().unwrap_or_else(|| panic!("{text}"));
            }
        }
    };
    std::thread::scope(|scope| (0..CLIENTS / 2).for_each(|_| drop(scope.spawn(client))));
    sums.into_inner().expect("nobody panics")
}

#[test]
#[ignore = "needs packages of pip: cargo xtask test"]
fn a_router_that_looks_for_prefixes_finds_them() {
    let [turns, aware] = ["round_robin", "cache_aware"].map(|policy| {
        let [all, cached] = prefixes(policy);
        let part = cached as f64 / all as f64;
        println!("{policy}: {cached} of {all} tokens of prompts were cached, {:.1} %", 100.0 * part);
        part
    });
    assert!(aware > turns + 0.08, "{aware} against {turns}");
}
