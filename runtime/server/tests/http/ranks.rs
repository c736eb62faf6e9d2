//! Several ranks in one process, a thread each: ready when all are, and wrong as soon as one is.

use crate::lifecycle::{CHAT, begin};
use crate::process::{RANKS, Server, command_as};
use crate::scripted::{BROKEN, Echo, GREETING};
use monomorph_world::World;
use serde_json::{Value, json};
use std::time::{Duration, Instant};

/// [`Echo`] on several devices.
pub type EchoRanks = World<Echo>;

fn chat(content: &str) -> Value {
    json!({"messages": [{"role": "user", "content": content}]})
}

/// The last rank takes longer to load than the others.
///
/// Planted once: a server that says so while it loads.
pub fn ready() {
    let server = Server::start_loading_as(RANKS, 1200);
    let begun = Instant::now();
    server.wait_for_status("loading", begun);
    assert_eq!(server.post(CHAT, &chat("Hi")).json()["error"]["code"], "loading");
    server.wait_for_status("ok", Instant::now());
    assert!(begun.elapsed() > Duration::from_millis(600), "{:?}", begun.elapsed());
    assert_eq!(server.post(CHAT, &chat("Hi")).json()["choices"][0]["message"]["content"], GREETING);
    assert_eq!(server.metric("monomorph:ranks"), 6.0);
}

/// A rank that fails while it loads.
///
/// Planted once: its error without its number.
pub fn broken() {
    let seed = format!("dummy:{BROKEN}");
    let output = command_as(RANKS, &["serve", "--port", "0", "--weights", &seed]).output();
    let output = output.expect("the server starts");
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(3), "{stderr}");
    assert!(stderr.contains("rank 5 (GPU 5): it is broken"), "{stderr}");
}

/// All ranks agree on tokens that are none of theirs: their sums are wrong, of which each has the same.
///
/// Planted once: a canary that does not compare.
pub fn wrong() {
    let server = Server::start_as(RANKS, &[]);
    let poisoned = Instant::now();
    let body = json!({"messages": chat("[[poison]]")["messages"], "max_tokens": 1});
    assert_eq!(server.post(CHAT, &body).status, 200, "nothing is known yet");
    let health = server.wait_for_status("poisoned", poisoned);
    assert!(health["reason"].as_str().is_some_and(|it| it.contains("at the start")), "{health}");
    assert_eq!(server.post(CHAT, &chat("Hi")).status, 503);
}

/// One rank alone is wrong, of a server that is busy and of one that only a canary asks.
///
/// Planted once: ids that nobody compares.
pub fn differ() {
    for busy in [true, false] {
        let mut server = Server::start_as(RANKS, &[]);
        let running = busy.then(|| begin(&server, "[[forever]]"));
        let answer = server.post(CHAT, &chat("[[poison 2]]")).json();
        assert_eq!(answer["choices"][0]["message"]["content"], GREETING, "the next prompt is the first");
        // Who hangs up takes the probe's canary along, maybe before it is asked.
        let _probe = if let Some(mut running) = running {
            assert_eq!(server.post(CHAT, &chat("Hi")).status, 500, "it is lost too");
            let rest = running.response_rest();
            assert!(rest.contains("data: {\"error\":") && rest.contains("rank 2 sampled id"), "{rest}");
            None
        } else {
            // The canary of a probe is what the ranks differ in.
            std::thread::sleep(Duration::from_millis(1500));
            let mut probe = server.connect();
            probe.send("GET", "/health/ready", &[], b"");
            Some(probe)
        };
        let (status, stderr) = server.wait(Duration::from_secs(5));
        assert_eq!(status.code(), Some(4), "{stderr}");
        assert!(
            stderr.contains("ranks differ in step ") && stderr.contains("rank 2 sampled id "),
            "{stderr}"
        );
    }
}
