//! Signals: what is finished, what is refused, and what happens when it cannot be finished.

use crate::clock;
use crate::lifecycle::{CHAT, begin};
use crate::process::{Server, checkpoint, command};
use serde_json::{Value, json};
use std::io::{BufRead, BufReader};
use std::process::Stdio;
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
    ends_at_another(&mut server, libc::SIGINT);
}

/// Sends a server that drains another signal, which ends it long before it has drained.
fn ends_at_another(server: &mut Server, signal: i32) {
    std::thread::sleep(Duration::from_millis(100));
    server.signal(signal);
    let (status, stderr) = server.wait(Duration::from_secs(5));
    assert_eq!(status.code(), Some(1), "{stderr}");
    assert!(stderr.contains("again"), "{stderr}");
}

/// With 16 slots: 16 run and 8 wait when the signal comes.
///
/// Planted once: a `Drain` command that ends those waiting. Eight of the answers below were an error. Planted
/// as well: a listener that closes at the signal. Nothing answered that the server is draining. And a refusal
/// that says 1 s, whatever is left.
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

/// A step that does not come back holds no drain up for longer than it may take, and a second signal not at
/// all.
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
    let (status, stderr) = server.wait(Duration::from_secs(5));
    assert_eq!(status.code(), Some(1), "after {:?}: {stderr}", again.elapsed());
}

/// Minutes of work between two instructions of the template, which cannot be interrupted.
const ENDLESS: &str = "{% set many = range(100000) | list %}{% for it in range(100000) %}{% if many | sort | length == 0 %}x{% endif %}{% endfor %}";

/// A thread that computes for ever beside the engine, a prompt here, does not keep the process.
///
/// Seen before there was an end to it: neither signal ended the first server, nor did the second one the
/// other.
pub fn while_a_thread_never_ends() {
    let burning = |seconds: &str| {
        let server = Server::start_with_template(ENDLESS, &["--drain-seconds", seconds]);
        let mut client = server.connect();
        let body = json!({"messages": [{"role": "user", "content": "Hi"}]});
        client.send("POST", CHAT, &[], body.to_string().as_bytes());
        let deadline = Instant::now() + Duration::from_secs(10);
        while server.processor_seconds() < 0.5 {
            assert!(Instant::now() < deadline, "the prompt is computed");
            std::thread::sleep(Duration::from_millis(20));
        }
        server.signal(libc::SIGTERM);
        (server, client)
    };
    let (mut server, _client) = burning("1");
    let (status, stderr) = server.wait(Duration::from_secs(7));
    assert!(status.code().is_some(), "{status}: {stderr}");
    let (mut server, _client) = burning("60");
    ends_at_another(&mut server, libc::SIGTERM);
}

/// Its output is not read, a step hangs, and a line of a dump waits for a reader that does not read either:
/// the process ends all the same.
pub fn while_everything_is_stuck() {
    let (weights, directory) = (checkpoint(), tempfile::tempdir().expect("a directory"));
    let pipe = directory.path().join("dump");
    let name = std::ffi::CString::new(pipe.to_str().expect("UTF-8")).expect("no zero");
    // SAFETY: makes a file of that name, which ends with a zero.
    assert_eq!(unsafe { libc::mkfifo(name.as_ptr(), 0o600) }, 0);
    let _reader = std::fs::OpenOptions::new().read(true).write(true).open(&pipe).expect("a pipe");
    for again in [false, true] {
        let mut child = command(&["serve", "--port", "0", "--drain-seconds", if again { "60" } else { "0" }])
            .args(["--log", "trace", "--weights"])
            .arg(weights.path())
            .arg("--dump")
            .arg(&pipe)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the server starts");
        let lines = BufReader::new(child.stdout.take().expect("piped")).lines();
        let address = lines
            .map_while(Result::ok)
            .find_map(|line| line.strip_prefix("OpenAI API: http://")?.strip_suffix("/v1")?.parse().ok());
        let address: std::net::SocketAddr = address.expect("it says its address");
        let try_ask = |content: &str, user: &str| {
            let mut connection = crate::client::Connection::try_open(address, Duration::from_secs(2))?;
            let body = json!({"messages": [{"role": "user", "content": content}], "user": user}).to_string();
            connection.send("POST", CHAT, &[], body.as_bytes());
            Some(connection)
        };
        let ask = |content: &str, user: &str| try_ask(content, user).expect("the server listens");
        // More than a pipe holds, for the dump.
        let long = "x".repeat(200_000);
        let answered = ask("Hi", &long).response();
        assert_eq!(answered.status, 200, "{}", answered.text());
        let _hanging = ask("[[hang 60000]]", "");
        // More than a pipe holds, of what is logged; those who have to wait for that are not answered. When
        // connections are no longer accepted either, their queue fills up.
        let _asked: Vec<_> = (0..300).map_while(|_| try_ask("Hi", "")).collect();
        std::thread::sleep(Duration::from_millis(500));
        let end = |signal| {
            // SAFETY: sends a signal to the child, which has not been waited for and so still has its id.
            assert_eq!(unsafe { libc::kill(child.id() as i32, signal) }, 0);
            Instant::now()
        };
        let mut signalled = end(libc::SIGTERM);
        let mut limit = Duration::from_secs(7);
        if again {
            std::thread::sleep(Duration::from_millis(500));
            signalled = end(libc::SIGTERM);
            limit = Duration::from_secs(5);
        }
        while child.try_wait().expect("a child").is_none() {
            if clock::since(signalled) > limit {
                let _ = child.kill();
                panic!("it did not end within {limit:?}; a second signal: {again}");
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        let _ = child.wait();
    }
}

/// Signals of a closing terminal, and others the server ignores; by default each would kill it.
pub fn other_signals() {
    let mut server = Server::start(&[]);
    for signal in [libc::SIGUSR1, libc::SIGUSR2, libc::SIGALRM, libc::SIGXFSZ] {
        server.signal(signal);
    }
    std::thread::sleep(Duration::from_millis(100));
    let mut running = begin(&server, "[[slow]]");
    // The terminal sends it, and its shell again.
    server.signal(libc::SIGHUP);
    server.wait_for_status("draining", Instant::now());
    server.signal(libc::SIGHUP);
    server.signal(libc::SIGUSR1);
    let rest = running.rest();
    assert!(rest.contains("data: [DONE]"), "{rest}");
    let (status, stderr) = server.wait(Duration::from_secs(5));
    assert!(status.success(), "{status}: {stderr}");
    for words in
        ["SIGUSR1 means nothing", "SIGUSR2 means nothing", "SIGALRM means nothing", "SIGHUP: finishing"]
    {
        assert!(stderr.contains(words), "{words}: {stderr}");
    }
    assert!(!stderr.contains("SIGXFSZ"), "{stderr}");
    // A second signal ends the process.
    let mut server = Server::start(&[]);
    let _running = begin(&server, "[[slow]]");
    server.signal(libc::SIGHUP);
    std::thread::sleep(Duration::from_millis(100));
    server.signal(libc::SIGTERM);
    let (status, stderr) = server.wait(Duration::from_secs(5));
    assert_eq!(status.code(), Some(1), "{stderr}");
}

/// `nohup` says beforehand that the terminal may go.
pub fn nohup() {
    let mut server = Server::start_behind("trap '' HUP", &[]);
    server.signal(libc::SIGHUP);
    std::thread::sleep(Duration::from_millis(100));
    server.wait_for_status("ok", Instant::now());
    server.signal(libc::SIGTERM);
    assert!(server.wait(Duration::from_secs(5)).0.success());
}
