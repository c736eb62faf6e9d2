//! Starting, and clients that vanish.

use crate::process::{Server, checkpoint, command_behind, run};
use crate::scripted::GREETING;
use serde_json::json;
use std::net::TcpListener;

pub const CHAT: &str = "/v1/chat/completions";

/// A streamed chat that has begun to be answered.
pub fn begin(server: &Server, content: &str) -> crate::client::Connection {
    let body = json!({"messages": [{"role": "user", "content": content}], "stream": true});
    let mut connection = server.connect();
    connection.send("POST", CHAT, &[], body.to_string().as_bytes());
    connection.read_until("\"finish_reason\":null}]}\n\n");
    connection
}

pub fn vanished_clients() {
    let server = Server::start(&[]);
    let streams: Vec<_> = (0..4).map(|_| begin(&server, "[[forever]]")).collect();
    // One that waits for a whole answer vanishes too.
    let body = json!({"messages": [{"role": "user", "content": "[[forever]]"}]});
    let mut whole = server.connect();
    whole.send("POST", CHAT, &[], body.to_string().as_bytes());
    server.wait_for("five to run", |stats| stats["running"] == 5);
    let stats = server.stats();
    assert!(stats["free_blocks"].as_u64() < stats["total_blocks"].as_u64(), "{stats}");
    drop((streams, whole));
    server.wait_for("the blocks", |stats| {
        stats["running"] == 0 && stats["free_blocks"] == stats["total_blocks"]
    });
    assert_eq!(server.stats()["cancelled"], 5);
}

pub fn dummy_weights() {
    let server = Server::start_dummy(&[]);
    let health = server.get("/health");
    assert_eq!(health.json()["weights"], "dummy");
    // The stand-in tokenizer's tokens are bytes, and so is the scripted answer's text.
    let body = json!({"messages": [{"role": "user", "content": "[[say Hi]]"}]});
    let answer = server.post(CHAT, &body);
    assert_eq!(answer.json()["choices"][0]["message"]["content"], "Hi", "{}", answer.text());
    for response in [health, answer, server.get("/nowhere")] {
        assert_eq!(response.header("x-monomorph-weights"), Some("dummy"));
    }
    let real = Server::start(&[]);
    assert_eq!(real.get("/health").json()["weights"], "checkpoint");
    assert_eq!(real.get("/health").header("x-monomorph-weights"), None);
}

pub fn failed_starts() {
    let weights = checkpoint();
    let path = weights.path().to_str().expect("UTF-8");
    let taken = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let port = taken.local_addr().expect("an address").port().to_string();
    for (arguments, word) in [
        (&["serve", "--port", "0", "--weights", "/nonexistent"][..], "/nonexistent"),
        (&["serve", "--port", &port, "--weights", path], "cannot listen"),
        (&["serve", "--port", "0", "--weights", path, "--context", "513"], "512"),
        (&["serve", "--port", "0", "--weights", "dummy:x"], "the seed"),
        (&["serve", "--port", "0", "--weights", path, "--tokenizer", path], "--tokenizer"),
        (&["serve", "--port", "0", "--weights", path, "--memory-fraction", "1.5"], "--memory-fraction"),
        (&["serve", "--port", "0", "--weights", path, "--context", "400", "--blocks", "24"], "takes 25"),
        (
            &["serve", "--port", "0", "--weights", path, "--context", "400", "--kv-tokens", "200"],
            "--kv-tokens",
        ),
        (
            &["serve", "--port", "0", "--weights", path, "--prefill-tokens", "9999"],
            "a step of this build holds",
        ),
        (&["serve", "--port", "0", "--weights", path, "--snapshots", "3"], "no recurrent state"),
        (&["serve", "--port", "0", "--weights", path, "--snapshot-interval", "99"], "no recurrent state"),
    ] {
        let output = run(arguments);
        let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(1), "{arguments:?}: {stderr}");
        assert!(stderr.contains(word), "{arguments:?}: {stderr}");
    }
}

pub fn models_health_and_page() {
    let server = Server::start(&["--model-name", "parrot", "--context", "200"]);
    let models = server.get("/v1/models").json();
    assert_eq!(models["object"], "list");
    assert_eq!(models["data"][0]["id"], "parrot");
    assert_eq!(models["data"][0]["max_model_len"], 200);
    // Its other names, one of them with slashes in it.
    for name in ["parrot", "echo", "cpu/echo/none"] {
        assert_eq!(server.get(&format!("/v1/models/{name}")).json()["id"], "parrot", "{name}");
    }
    let health = server.get("/health");
    assert_eq!(health.status, 200);
    let health = health.json();
    assert_eq!(health["status"], "ok");
    assert_eq!(health["stats"]["context"], 200);
    assert_eq!(health["stats"]["total_blocks"], 1024);
    let page = server.get("/");
    assert_eq!(page.header("content-type"), Some("text/html; charset=utf-8"));
    assert!(
        page.header("content-security-policy").is_some_and(|policy| policy.starts_with("default-src 'none'"))
    );
    // Nothing is loaded from elsewhere.
    for outside in ["src=\"http", "href=\"http", "@import", "url("] {
        assert!(!page.text().contains(outside), "{outside}");
    }
    let body = json!({"messages": [{"role": "user", "content": "Hi"}]});
    assert_eq!(server.post(CHAT, &body).json()["choices"][0]["message"]["content"], GREETING);
}

/// Where few files may be open, a verb works or says so.
///
/// Seen before: `serve` panicked below 16, where the system gave it no pair of sockets for signals.
pub fn few_descriptors() {
    let weights = checkpoint();
    let path = weights.path().to_str().expect("UTF-8");
    let file = weights.path().join("lists.json");
    std::fs::write(&file, "[[1, 2]]").expect("written");
    let tokens = file.to_str().expect("UTF-8");
    let out = weights.path().join("out.safetensors");
    let verbs: [&[&str]; 5] = [
        &["serve", "--port", "0", "--weights", path],
        &["generate", "Hi", "--weights", path],
        &["logits", "--weights", path, "--tokens", tokens, "--out", out.to_str().expect("UTF-8")],
        &["bench", "--weights", path, "--prompt-tokens", "8", "--generate", "2", "--repeat", "1"],
        &["info"],
    ];
    for most in [4, 5, 6, 7, 8, 10, 12, 16, 20, 32, 47] {
        for verb in verbs {
            let output = command_behind(&format!("ulimit -n {most}"), verb).output().expect("it starts");
            let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
            let what = format!("{most} files, {}: {}: {stderr}", verb[0], output.status);
            assert!(!stderr.contains("panicked"), "{what}");
            if verb[0] == "serve" {
                assert!(
                    stderr.contains(&format!("{most} files open")) && stderr.contains("ulimit -n"),
                    "{what}"
                );
            }
            match output.status.code() {
                Some(0) => assert_ne!(verb[0], "serve", "{what}"),
                // The system's loader finds no file to be had.
                Some(127) => assert!(most < 5, "{what}"),
                code => assert!(code == Some(1) && stderr.contains("error: "), "{what}"),
            }
        }
    }
    // Few connections, and many that want one.
    let server = Server::start_behind("ulimit -n 48", &[]);
    let open: Vec<_> = (0..60).map(|_| server.connect()).collect();
    drop(open);
    let body = json!({"messages": [{"role": "user", "content": "Hi"}]});
    assert_eq!(server.post(CHAT, &body).json()["choices"][0]["message"]["content"], GREETING);
}
