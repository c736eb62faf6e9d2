//! What a server takes of the machine's memory, and what is computed before its first request.

use crate::lifecycle::CHAT;
use crate::process::{Server, checkpoint, run};
use serde_json::{Value, json};

pub fn too_little() {
    let weights = checkpoint();
    let path = weights.path().to_str().expect("UTF-8");
    let serve = ["serve", "--port", "0", "--weights", path];
    // More than any machine has must stay free: there is room for nothing, asked for or not.
    for cache in [&["--blocks", "64"][..], &["--context", "256"], &["--kv-tokens", "600"], &[]] {
        let output = run(&[&serve[..], cache, &["--memory-guard", "99999999999"]].concat());
        let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(1), "{cache:?}: {stderr}");
        assert!(stderr.contains("--memory-guard") && stderr.contains("does not fit"), "{cache:?}: {stderr}");
    }
}

pub fn few_sequences() {
    let server = Server::start(&["--sequences", "2"]);
    assert!(server.opening.contains("; 2 sequences at a time"), "{}", server.opening);
    assert_eq!(server.get("/info").json()["engine"]["sequences"], 2);
    let server = Server::start(&[]);
    assert!(!server.opening.contains("sequences at a time"), "{}", server.opening);
    let weights = checkpoint();
    let path = weights.path().to_str().expect("UTF-8");
    let output = run(&["serve", "--port", "0", "--weights", path, "--sequences", "9999"]);
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1), "{stderr}");
    assert!(stderr.contains("--sequences 9999: a step of this build takes"), "{stderr}");
}

pub fn warm_up() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let system = "You answer in one word. ".repeat(6);
    let messages = json!([{"role": "system", "content": system}]);
    let write = |name: &str, text: &str| {
        let path = directory.path().join(name);
        std::fs::write(&path, text).expect("written");
        path.to_str().expect("UTF-8").to_owned()
    };
    let list = write("list.json", &messages.to_string());
    let object = write("object.json", &json!({ "messages": messages, "model": "any" }).to_string());
    let asked = json!({"messages": [messages[0], {"role": "user", "content": "Hi"}]});
    let cached = |server: &Server, path: &str, body: &Value| {
        let answer = server.post(path, body).json();
        let usage = &answer["usage"];
        (usage["prompt_tokens_details"]["cached_tokens"].as_u64(), usage["prompt_tokens"].as_u64())
    };
    let (none, whole) = cached(&Server::start(&[]), CHAT, &asked);
    assert_eq!(none, Some(0));
    for file in [&list, &object] {
        let (found, _) = cached(&Server::start(&["--warm-up", file]), CHAT, &asked);
        // All of the system's message but for its last block, which is not full.
        assert!(found > Some(system.len() as u64 - 16) && found < whole, "{found:?} of {whole:?}");
    }
    let text = write("text.txt", &system);
    let (found, _) =
        cached(&Server::start(&["--warm-up", &text]), "/v1/completions", &json!({"prompt": system}));
    assert!(found > Some(system.len() as u64 - 32), "{found:?}");

    let weights = checkpoint();
    let path = weights.path().to_str().expect("UTF-8");
    let long = write("long.txt", &"x".repeat(600));
    let empty = write("empty.json", "[]");
    let broken = write("broken.json", "{");
    for (flags, word) in [
        (&["--warm-up", "/nonexistent"][..], "/nonexistent"),
        (&["--warm-up", &long], "512"),
        (&["--warm-up", &empty], "messages"),
        (&["--warm-up", &broken], "broken.json"),
        (&["--warm-up", &list, "--prefix-cache", "off"], "prefix cache"),
    ] {
        let output = run(&[&["serve", "--port", "0", "--weights", path], flags].concat());
        let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(1), "{flags:?}: {stderr}");
        assert!(stderr.contains(word), "{flags:?}: {stderr}");
    }
}
