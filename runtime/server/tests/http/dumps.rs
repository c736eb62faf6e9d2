//! What a server writes down of what it was asked.
//!
//! Planted, and seen here: a line for who was not let in, a stream kept as text, a client that left taken for
//! one that heard all.

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

/// A file that may be no larger, and then may: a real file system that is full, for a while.
///
/// Seen before: the process died of SIGXFSZ. With that ignored, no line was counted, and the next line that
/// had room was glued to a beginning of another.
pub fn full() {
    const SIZE: u64 = 4096;
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("dump.jsonl");
    let file = path.to_str().expect("UTF-8");
    // In blocks of 512 bytes.
    let mut server = Server::start_behind("ulimit -S -f 8", &["--dump", file]);
    let ask = |count: usize| {
        for _ in 0..count {
            let answer = server.post(CHAT, &json!({"messages": [{"role": "user", "content": "Hi"}]}));
            assert_eq!(answer.status, 200, "no request hears of it");
        }
    };
    let lost = || server.metric("monomorph:dump_lines_lost_total{model_name=\"echo\"}") as usize;
    let text = || std::fs::read_to_string(&path).expect("there is a dump");
    let whole = || text().lines().filter(|line| serde_json::from_str::<Value>(line).is_ok()).count();
    ask(20);
    server.wait_for("the lines", |_| whole() + lost() == 20);
    let before = lost();
    assert!(before > 0 && whole() > 0, "{} whole, {before} lost", whole());
    assert_eq!(text().len() as u64, SIZE, "it is full");
    let room = libc::rlimit { rlim_cur: libc::RLIM_INFINITY, rlim_max: libc::RLIM_INFINITY };
    // SAFETY: reads one limit, of the child's, and writes nothing.
    let raised =
        unsafe { libc::prlimit(server.id() as libc::pid_t, libc::RLIMIT_FSIZE, &room, std::ptr::null_mut()) };
    assert_eq!(raised, 0, "{}", std::io::Error::last_os_error());
    ask(5);
    server.wait_for("the new lines", |_| whole() + before == 25);
    assert_eq!(lost(), before, "what has room is not lost");
    let torn = text().lines().filter(|line| serde_json::from_str::<Value>(line).is_err()).count();
    assert!(torn <= 1, "{}", text());
    server.signal(libc::SIGTERM);
    let (status, stderr) = server.wait(Duration::from_secs(5));
    assert!(status.success(), "{status}: {stderr}");
    for words in ["lines are lost from here on", "lines are written again", &format!("lines lost: {before}")]
    {
        assert!(stderr.contains(words), "{words}: {stderr}");
    }
}

/// A disk that never has room.
pub fn none() {
    let server = Server::start(&["--dump", "/dev/full"]);
    for _ in 0..7 {
        assert_eq!(server.post(CHAT, &json!({"messages": [{"role": "user", "content": "Hi"}]})).status, 200);
    }
    server.wait_for("seven lost lines", |_| {
        server.metric("monomorph:dump_lines_lost_total{model_name=\"echo\"}") == 7.0
    });
}
