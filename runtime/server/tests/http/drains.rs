//! Signals: what is finished, what is refused, and what happens when it cannot be finished.

use crate::lifecycle::{CHAT, begin};
use crate::process::Server;
use serde_json::{Value, json};
use std::time::{Duration, Instant};

pub fn drain_finishes() {
    let mut server = Server::start(&[]);
    let mut running = begin(&server, "[[slow]]");
    let mut idle = server.connect();
    assert_eq!(idle.request("GET", "/health", &[], b"").status, 200);
    server.signal(libc::SIGTERM);
    // The running answer comes to its end.
    let rest = running.rest();
    assert!(rest.contains("\"finish_reason\":\"stop\""), "{rest}");
    assert!(rest.contains("data: [DONE]"), "{rest}");
    let (status, stderr) = server.wait(Duration::from_secs(5));
    assert!(status.success(), "{status}: {stderr}");
    assert!(stderr.contains("SIGTERM"), "{stderr}");
    assert!(std::net::TcpStream::connect(server.address).is_err(), "it listens no more");
}

pub fn drain_deadline() {
    let mut server = Server::start(&["--drain-seconds", "0"]);
    let mut running = begin(&server, "[[forever]]");
    server.signal(libc::SIGINT);
    let (status, stderr) = server.wait(Duration::from_secs(5));
    assert!(status.success(), "{status}: {stderr}");
    let rest = running.rest();
    assert!(rest.contains("data: {\"error\":"), "the client is told: {rest}");
}

pub fn second_signal() {
    let mut server = Server::start(&[]);
    let _running = begin(&server, "[[slow]]");
    server.signal(libc::SIGINT);
    std::thread::sleep(Duration::from_millis(100));
    server.signal(libc::SIGINT);
    let (status, stderr) = server.wait(Duration::from_millis(500));
    assert_eq!(status.code(), Some(1), "{stderr}");
    assert!(stderr.contains("again"), "{stderr}");
}

/// With 16 slots: 16 run and 8 wait when the signal comes.
///
/// Planted once: a `Drain` command that ends those waiting. Eight of the answers below were an error. Planted as well: a listener
/// that closes at the signal. Nobody was there to say that the server is draining. And a refusal that says 1 s, whatever is left.
pub fn under_load() {
    const CLIENTS: usize = 24;
    const TOKENS: usize = 40;
    let mut server = Server::start(&["--drain-seconds", "20", "--schedule", "slai"]);
    let ask = |stream: bool| {
        let mut connection = server.connect();
        let body = json!({"prompt": "[[forever]]", "max_tokens": TOKENS, "stream": stream});
        connection.send("POST", "/v1/completions", &[], body.to_string().as_bytes());
        connection
    };
    let mut clients: Vec<_> = (0..CLIENTS).map(|at| ask(at % 2 == 0)).collect();
    server.wait_for("all to be accepted", |stats| {
        stats["running"].as_u64().zip(stats["waiting"].as_u64()).is_some_and(|(a, b)| a + b == CLIENTS as u64)
    });
    assert!(server.stats()["waiting"].as_u64() > Some(0));
    server.signal(libc::SIGTERM);
    let health = server.wait_for_status("draining", Instant::now());
    assert_eq!(health["schedule"], json!({"policy": "slai", "tbt_ms": 100, "prefill_tokens": null}));
    assert_eq!(health["reason"], Value::Null, "nothing is wrong");
    assert_eq!(server.get("/health/live").status, 200, "a process that drains is worth keeping");
    let refused = server.post(CHAT, &json!({"messages": [{"role": "user", "content": "Hi"}]}));
    assert_eq!((refused.status, &refused.json()["error"]["code"]), (503, &json!("draining")));
    let left: u64 =
        refused.header("retry-after").and_then(|seconds| seconds.parse().ok()).unwrap_or_default();
    assert!((11..=20).contains(&left), "what is left of the drain: {left}");
    for (at, client) in clients.iter_mut().enumerate() {
        let response = client.response();
        let text = if at % 2 == 0 {
            let events = response.events();
            events.iter().filter_map(|event| event["choices"][0]["text"].as_str()).collect()
        } else {
            response.json()["choices"][0]["text"].as_str().unwrap_or_default().to_owned()
        };
        assert_eq!(text, "ab ".repeat(TOKENS)[..TOKENS], "client {at}");
    }
    let (status, stderr) = server.wait(Duration::from_secs(5));
    assert!(status.success(), "{status}: {stderr}");
}

/// A step that does not come back holds no drain up for longer than it may take, and a second signal not at all.
///
/// Planted once: a drain that waits for the engine alone. The first of the servers below did not end.
pub fn while_a_step_hangs() {
    let hanging = |seconds: &str| {
        let server = Server::start(&["--drain-seconds", seconds]);
        let body = json!({"messages": [{"role": "user", "content": "[[hang 20000]]"}]});
        let mut client = server.connect();
        client.send("POST", CHAT, &[], body.to_string().as_bytes());
        server.wait_for("the step", |stats| stats["seconds_in_step"].is_number());
        server.signal(libc::SIGTERM);
        (server, client)
    };
    let (mut server, mut client) = hanging("0");
    let (status, stderr) = server.wait(Duration::from_secs(5));
    assert_eq!(status.code(), Some(1), "{stderr}");
    assert!(stderr.contains("a step has not come back"), "{stderr}");
    assert_eq!(client.rest(), "", "the connection ends with the process");
    let (mut server, _client) = hanging("60");
    server.wait_for_status("draining", Instant::now());
    let again = Instant::now();
    server.signal(libc::SIGTERM);
    let (status, stderr) = server.wait(Duration::from_millis(500));
    assert_eq!(status.code(), Some(1), "after {:?}: {stderr}", again.elapsed());
}
