//! Everything that can go wrong with an engine, on command: readiness is red within two seconds and says why,
//! no client is left waiting, and an engine that recovers answers as before.

use crate::clock;
use crate::lifecycle::{CHAT, begin};
use crate::process::Server;
use crate::scripted::GREETING;
use serde_json::{Value, json};
use std::time::{Duration, Instant};

fn chat(content: &str) -> Value {
    json!({"messages": [{"role": "user", "content": content}]})
}

/// What the server greets with.
fn greeting(server: &Server) -> Value {
    server.post(CHAT, &chat("Hi")).json()["choices"][0]["message"]["content"].take()
}

/// Checks what every red server does besides: it is not live, metrics name the state, and `reason` tells a
/// person.
fn check_red(server: &Server, health: &Value, reason: &str) {
    assert!(health["reason"].as_str().is_some_and(|it| it.contains(reason)), "{health}");
    let live = server.get("/health/live");
    assert_eq!((live.status, &live.json()["status"]), (503, &health["status"]));
    let state = health["status"].as_str().expect("a word");
    assert_eq!(
        server.metric(&format!("monomorph:engine_state{{model_name=\"echo\",state=\"{state}\"}}")),
        1.0
    );
}

/// A step that hangs and comes back.
///
/// Planted once: `Signs::read` without its look at `in_turn`, a readiness that only says that the engine is
/// alive. This test waited for "hung" in vain.
pub fn hang() {
    let server = Server::start(&[]);
    assert_eq!(greeting(&server), GREETING);
    let mut bystander = begin(&server, "[[forever]]");
    let hung = Instant::now();
    let mut hanging = server.connect();
    hanging.send("POST", CHAT, &[], chat("[[hang 2500]]").to_string().as_bytes());
    let health = server.wait_for_status("hung", hung);
    check_red(&server, &health, "a step has taken");
    // It comes back: nothing was lost meanwhile, and nothing is remembered against it.
    let answer = hanging.response().json();
    assert_eq!(answer["choices"][0]["message"]["content"], GREETING);
    bystander.read_until("\"finish_reason\":\"length\"");
    server.wait_for_status("ok", Instant::now());
    assert_eq!(server.get("/health/live").status, 200);
    assert_eq!(greeting(&server), GREETING);
}

/// A process that is stopped and goes on.
pub fn freeze() {
    let server = Server::start(&[]);
    let mut running = begin(&server, "[[slow]]");
    server.signal(libc::SIGSTOP);
    std::thread::sleep(Duration::from_millis(300));
    server.signal(libc::SIGCONT);
    running.read_until("data: [DONE]");
    server.wait_for_status("ok", Instant::now());
    assert_eq!(greeting(&server), GREETING);
}

/// A process that is killed closes its connections.
pub fn kill() {
    let mut server = Server::start(&[]);
    let mut running = begin(&server, "[[forever]]");
    server.signal(libc::SIGKILL);
    assert!(!running.rest().contains("[DONE]"));
    assert!(!server.wait(Duration::from_secs(5)).0.success());
}

/// Arithmetic that goes wrong, of an engine that is idle otherwise and of one that is busy.
///
/// Planted once: a canary that does not compare; then an engine that does not hear that it is condemned. Both
/// times this test waited for "poisoned" in vain.
pub fn poison() {
    for (how, reason) in [("[[poison]]", "at the start"), ("[[nan]]", "not numbers")] {
        for busy in [false, true] {
            let server = Server::start(&[]);
            // As short as one token can be: the context of this one would be full before a canary is due.
            let bystander = busy.then(|| begin(&server, "[[slow]]"));
            let poisoned = Instant::now();
            let wrong = server.post(CHAT, &json!({"messages": chat(how)["messages"], "max_tokens": 1}));
            assert_eq!(wrong.status, 200, "nothing is known yet");
            let health = server.wait_for_status("poisoned", poisoned);
            check_red(&server, &health, reason);
            if let Some(mut bystander) = bystander {
                let rest = bystander.response_rest();
                assert!(rest.contains("data: {\"error\":") && rest.contains(reason), "{rest}");
            }
            let refused = server.post(CHAT, &chat("Hi"));
            assert_eq!(refused.status, 503);
            assert!(refused.text().contains(reason), "{}", refused.text());
        }
    }
}

pub fn dead_engine() {
    let server = Server::start(&[]);
    let mut bystander = begin(&server, "[[slow]]");
    let body = chat("[[panic]]");
    let told = Instant::now();
    let response = server.post(CHAT, &body);
    assert_eq!(response.status, 500, "{}", response.text());
    assert_eq!(response.json()["error"]["type"], "server_error");
    // Other clients receive an error.
    bystander.read_until("data: {\"error\":");
    let health = server.wait_for_status("dead", told);
    check_red(&server, &health, "told to");
    assert_eq!(server.post(CHAT, &body).status, 503);
    assert_eq!(
        server.metric("vllm:request_success_total{model_name=\"echo\",finished_reason=\"error\"}"),
        2.0
    );
}

pub fn device_fault() {
    let mut server = Server::start(&[]);
    let mut bystander = begin(&server, "[[slow]]");
    let body = chat("[[fault]]");
    let response = server.post(CHAT, &body);
    assert_eq!(response.status, 500, "{}", response.text());
    // Other clients receive an error, and the process ends with a code of its own.
    bystander.read_until("data: {\"error\":");
    let (status, stderr) = server.wait(Duration::from_secs(5));
    assert_eq!(status.code(), Some(4), "{stderr}");
    assert!(stderr.contains("the device was told to fail"), "{stderr}");
}

/// An answer that takes too long ends, even if the engine hangs.
///
/// Planted once: a limit that is not kept. The streamed answer below came to its own end.
pub fn request_timeout() {
    let server = Server::start(&["--request-timeout", "1"]);
    let mut streamed = begin(&server, "[[slow]]");
    let asked = Instant::now();
    let rest = streamed.response_rest();
    assert!(rest.contains("\"code\":\"timeout\""), "{rest}");
    assert!(clock::since(asked) < Duration::from_secs(3), "{:?}", asked.elapsed());
    server.wait_for("it to go", |stats| stats["running"] == 0);
    let asked = Instant::now();
    let response = server.post(CHAT, &chat("[[hang 4000]]"));
    assert_eq!((response.status, &response.json()["error"]["code"]), (504, &json!("timeout")));
    assert!(clock::since(asked) < Duration::from_secs(3), "{:?}", asked.elapsed());
    server.wait_for("all to go", |stats| {
        stats["running"] == 0 && stats["free_blocks"] == stats["total_blocks"]
    });
    assert_eq!(server.stats()["cancelled"], 2);
    assert_eq!(greeting(&server), GREETING);
}
