//! What a server writes down of what it was asked.
//!
//! Planted, and seen here: a line for who was not let in, a stream kept as text, a client that left taken for one that heard all.

use crate::lifecycle::CHAT;
use crate::process::{Server, run};
use serde_json::{Value, json};
use std::path::Path;
use std::time::Duration;

fn lines(path: &Path) -> Vec<Value> {
    let text = std::fs::read_to_string(path).expect("there is a dump");
    text.lines().map(|line| serde_json::from_str(line).expect("a line is JSON")).collect()
}

pub fn everything() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("dump.jsonl");
    let file = path.to_str().expect("UTF-8");
    let mut server = Server::start(&["--dump", file, "--api-key", "secret-key"]);
    let bearer = [("authorization", "Bearer secret-key"), ("x-request-id", "mine")];
    let ask = |body: &[u8], headers: &[(&str, &str)]| server.connect().request("POST", CHAT, headers, body);
    let chat = |content: &str, stream: bool| json!({"messages": [{"role": "user", "content": content}], "stream": stream});
    let whole = ask(chat("Hi", false).to_string().as_bytes(), &bearer);
    assert!(whole.header("content-length").is_some(), "a copied answer says how long it is");
    let streamed = ask(chat("Hi", true).to_string().as_bytes(), &bearer);
    assert_eq!(ask(b"{", &bearer).status, 400);
    assert_eq!(ask(b"{}", &[]).status, 401);
    assert_eq!(server.connect().request("GET", "/v1/models", &bearer, b"").status, 200);
    let mut leaving = server.connect();
    leaving.send("POST", CHAT, &bearer, chat("[[forever]]", true).to_string().as_bytes());
    leaving.read_until("data: ");
    drop(leaving);
    server.wait_for("the line of the one that left", |_| lines(&path).len() == 4);
    // An error is what the client saw, in the words of its API, under the id that it was given.
    let refused = server.connect().request("POST", "/v1/messages", &bearer[..1], b"{}");
    // The last answer ends with the server.
    let last = ask(chat("[[say bye]]", false).to_string().as_bytes(), &bearer);
    server.signal(libc::SIGTERM);
    assert!(server.wait(Duration::from_secs(20)).0.success());

    let found = lines(&path);
    assert_eq!(found.len(), 6, "{found:?}");
    assert!(!std::fs::read_to_string(&path).expect("a dump").contains("secret-key"));
    for (at, line) in found.iter().enumerate() {
        let path = if at == 4 { "/v1/messages" } else { CHAT };
        assert_eq!((&line["method"], &line["path"]), (&json!("POST"), &json!(path)));
        let id = if at == 4 { refused.header("x-request-id") } else { Some("mine") };
        assert_eq!(line["id"].as_str(), id);
        assert!(
            line["time"].as_u64() > Some(1_700_000_000) && line["seconds"].as_f64() >= Some(0.0),
            "{line}"
        );
    }
    assert_eq!(found[0]["request"], chat("Hi", false));
    assert_eq!((&found[0]["status"], &found[0]["complete"]), (&json!(200), &json!(true)));
    assert_eq!(found[0]["response"], whole.json());
    let events = found[1]["events"].as_array().expect("events");
    assert_eq!(events.last(), Some(&json!("[DONE]")));
    assert_eq!(events[..events.len() - 1], streamed.events()[..]);
    assert_eq!((&found[2]["request"], &found[2]["status"]), (&json!("{"), &json!(400)));
    assert_eq!(found[3]["complete"], false);
    assert_eq!((&found[4]["status"], &found[4]["response"]), (&json!(400), &refused.json()));
    assert_eq!(found[4]["response"]["type"], "error");
    assert_eq!(found[5]["response"], last.json());
}

pub fn refused() {
    let output = run(&["serve", "--port", "0", "--weights", "dummy", "--dump", "/nonexistent/dump"]);
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1), "{stderr}");
    assert!(stderr.contains("--dump /nonexistent/dump"), "{stderr}");
}
