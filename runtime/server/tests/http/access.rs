//! Who may ask, from which pages, and over how many connections.
//!
//! Planted, and caught here: a route added behind the layer that asks for keys; keys compared by their beginning; `/metrics` that wants
//! a key, and paths open that only begin as it does; a preflight that wants a key; any origin allowed where one is named; the place of a
//! connection kept when it ends; heads that may take for ever, and be of any size.

use crate::client::{Connection, Response};
use crate::lifecycle::CHAT;
use crate::process::{Server, checkpoint, run};
use serde_json::json;
use std::io::Read;
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;
use std::time::{Duration, Instant};

const TEXT: &str = "/v1/completions";
/// What wants no key, where a server has some.
const OPEN: [(&str, &str); 4] =
    [("GET", "/health"), ("GET", "/health/live"), ("GET", "/health/ready"), ("GET", "/metrics")];
/// All else: every route, others that are none, and methods that a route does not take.
const CLOSED: [(&str, &str, u16); 19] = [
    ("GET", "/", 200),
    ("GET", "/openapi.json", 200),
    ("GET", "/info", 200),
    ("POST", "/tokenize", 200),
    ("POST", "/detokenize", 200),
    ("GET", "/v1/models", 200),
    ("GET", "/v1/models/cpu/echo/none", 200),
    ("POST", CHAT, 200),
    ("POST", TEXT, 200),
    ("POST", "/v1/messages", 200),
    ("POST", "/v1/messages/count_tokens", 200),
    ("POST", "/v1/responses", 200),
    ("GET", "/v1/responses/x", 404),
    ("DELETE", "/v1/responses/x", 404),
    ("POST", "/v1/responses/x/cancel", 404),
    ("GET", "/v1/responses/x/input_items", 404),
    ("GET", CHAT, 405),
    ("GET", "/v1/nothing", 404),
    ("GET", "/health/", 404),
];

/// Every route, with no key, wrong ones and right ones, each shown in every way.
pub fn keys() {
    let directory = tempfile::tempdir().expect("a directory");
    let file = directory.path().join("keys");
    std::fs::write(&file, "# one\nof-the-file\n").expect("writable");
    std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o600)).expect("its owner's");
    let file = file.to_str().expect("UTF-8");
    let server = Server::start(&["--api-key", "of-the-flag", "--api-key-file", file]);
    let ask = |method: &str, path: &str, headers: &[(&str, &str)]| -> Response {
        let body = match path {
            _ if method == "GET" => String::new(),
            CHAT => json!({"messages": [{"role": "user", "content": "Hi"}]}).to_string(),
            "/v1/responses" => json!({"input": "Hi"}).to_string(),
            "/v1/messages" => {
                json!({"max_tokens": 9, "messages": [{"role": "user", "content": "Hi"}]}).to_string()
            }
            "/v1/messages/count_tokens" => {
                json!({"messages": [{"role": "user", "content": "Hi"}]}).to_string()
            }
            "/detokenize" => json!({"tokens": [72, 105]}).to_string(),
            _ => json!({"prompt": "Hi"}).to_string(),
        };
        server.connect().request(method, path, headers, body.as_bytes())
    };
    let right: [&[(&str, &str)]; 7] = [
        &[("authorization", "Bearer of-the-flag")],
        &[("authorization", "bearer of-the-file")],
        &[("x-api-key", "of-the-flag")],
        &[("x-api-key", "of-the-file")],
        // Anybody's name, and a key for a password: what a browser sends.
        &[("authorization", "Basic bWU6b2YtdGhlLWZsYWc=")],
        // SDKs of one vendor pointed at another's server send both.
        &[("authorization", "Bearer wrong"), ("x-api-key", "of-the-flag")],
        &[("x-api-key", "wrong"), ("x-api-key", "of-the-file")],
    ];
    let wrong: [&[(&str, &str)]; 9] = [
        &[("authorization", "Bearer wrong")],
        &[("authorization", "Bearer of-the-fla")],
        &[("authorization", "Bearer of-the-flag2")],
        &[("authorization", "Bearer ")],
        &[("authorization", "of-the-flag")],
        &[("x-api-key", "OF-THE-FLAG")],
        &[("x-api-key", "# one")],
        &[("authorization", "Basic b2YtdGhlLWZsYWc6")],
        &[("api-key", "of-the-flag")],
    ];
    // Every operation of the document is among them.
    let document = ask("GET", "/openapi.json", right[0]).json();
    for (path, item) in document["paths"].as_object().expect("paths") {
        for method in item.as_object().expect("operations").keys() {
            let place = if path.starts_with("/v1/models") { "cpu/echo/none" } else { "x" };
            let (method, path) = (method.to_uppercase(), path.replace("{id}", place));
            let tried = CLOSED.iter().map(|(method, path, _)| (*method, *path)).chain(OPEN);
            assert!(
                tried.into_iter().any(|one| one == (method.as_str(), path.as_str())),
                "{method} {path} is not tried"
            );
        }
    }
    for (method, path, status) in CLOSED {
        for headers in right {
            let answer = ask(method, path, headers);
            assert_eq!(answer.status, status, "{method} {path} {headers:?}: {}", answer.text());
        }
        for headers in wrong.into_iter().chain([&[][..]]) {
            let answer = ask(method, path, headers);
            let what = format!("{method} {path} {headers:?}: {}", answer.text());
            assert_eq!(answer.status, 401, "{what}");
            let error = &answer.json()["error"];
            let said = if path.starts_with("/v1/messages") { &error["type"] } else { &error["code"] };
            assert!(said == "invalid_api_key" || said == "authentication_error", "{what}");
            assert!(answer.header("www-authenticate").is_some_and(|it| it.starts_with("Bearer")), "{what}");
            assert!(!answer.text().contains("of-the"), "{what}");
        }
    }
    for (method, path) in OPEN {
        for headers in right.into_iter().chain(wrong).chain([&[][..]]) {
            assert_eq!(ask(method, path, headers).status, 200, "{method} {path} {headers:?}");
        }
    }
    assert_eq!(server.stats()["finished"], 4 * right.len(), "nobody else was served");
    // A browser asks for a key where its user opens the page, a challenge a header, and leaves it to the page where that asks.
    for (mode, challenges) in [("navigate", 2), ("cors", 1)] {
        let answer = ask("GET", "/", &[("sec-fetch-mode", mode)]);
        let found = answer.headers.iter().filter(|(name, _)| name == "www-authenticate");
        assert_eq!(found.count(), challenges, "{mode}");
    }
}

/// What is said of keys at the start, and of having none.
pub fn warnings() {
    let directory = tempfile::tempdir().expect("a directory");
    let file = directory.path().join("keys");
    std::fs::write(&file, "secret\n").expect("writable");
    std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o644)).expect("everybody's");
    let path = file.to_str().expect("UTF-8");
    let said = |arguments: &[&str]| {
        let mut server = Server::start(arguments);
        server.signal(libc::SIGTERM);
        server.wait(Duration::from_secs(10)).1
    };
    let open = said(&["--api-key-file", path]);
    assert!(open.contains("mode 0644") && open.contains("chmod 600") && !open.contains("secret"), "{open}");
    let wide = said(&["--bind", "0.0.0.0"]);
    assert!(wide.contains("warning: --bind 0.0.0.0 without --api-key-file"), "{wide}");
    let guarded = said(&["--bind", "0.0.0.0", "--api-key", "k"]);
    assert!(!guarded.contains("warning"), "{guarded}");
    assert!(!said(&[]).contains("warning"));
    let weights = checkpoint();
    let serve = ["serve", "--port", "0", "--weights", weights.path().to_str().expect("UTF-8")];
    for (arguments, words) in [
        (["--api-key-file", "/nowhere/keys"], "--api-key-file /nowhere/keys"),
        (["--api-key", "two words"], "character 4 of a key"),
        (["--cors-origin", "chat.example"], "--cors-origin \"chat.example\""),
        (["--cors-origin", "https://chat.example/path"], "https://chat.example"),
    ] {
        let output = run(&[&serve[..], &arguments[..]].concat());
        let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(1), "{arguments:?}: {stderr}");
        assert!(stderr.contains(words), "{arguments:?}: {stderr}");
    }
}

/// Pages of other origins: none unless they are named, and then without a key for the question whether they may.
pub fn origins() {
    let ask = |server: &Server, method: &str, origin: &str, key: &str| {
        let headers = [
            ("origin", origin),
            ("x-api-key", key),
            ("access-control-request-method", "POST"),
            ("access-control-request-headers", "authorization"),
        ];
        let few = if method == "OPTIONS" { &headers[..] } else { &headers[..2] };
        server.connect().request(method, "/v1/models", few, b"")
    };
    let allowed = |answer: &Response| answer.header("access-control-allow-origin").map(str::to_owned);
    let (ours, other) = ("https://chat.example", "https://other.example");
    let closed = Server::start(&[]);
    for method in ["GET", "OPTIONS"] {
        assert_eq!(allowed(&ask(&closed, method, ours, "")), None, "{method}");
    }
    drop(closed);
    let named = Server::start(&["--cors-origin", ours, "--api-key", "k"]);
    let preflight = ask(&named, "OPTIONS", ours, "");
    assert_eq!((preflight.status, allowed(&preflight)), (200, Some(ours.to_owned())));
    assert!(preflight.header("access-control-allow-headers").is_some_and(|it| it.contains("authorization")));
    assert_eq!(allowed(&ask(&named, "OPTIONS", other, "")), None);
    let answer = ask(&named, "GET", ours, "k");
    assert_eq!((answer.status, allowed(&answer)), (200, Some(ours.to_owned())));
    // The page is told why, too.
    let refused = ask(&named, "GET", ours, "wrong");
    assert_eq!((refused.status, allowed(&refused)), (401, Some(ours.to_owned())));
    drop(named);
    let all = Server::start(&["--cors-origin", "*"]);
    assert_eq!(allowed(&ask(&all, "GET", other, "")), Some("*".to_owned()));
}

/// So many and no more; those that end make room.
pub fn connections() {
    let server = Server::start(&["--max-connections", "3"]);
    for round in 0..3 {
        // Those of the round before are over when the server has seen so.
        let began = Instant::now();
        let mut open: Vec<Connection> = Vec::new();
        while open.len() < 3 {
            assert!(began.elapsed() < Duration::from_secs(5), "round {round}: places come back");
            let mut one = server.connect();
            if one.request("GET", "/v1/models", &[], b"").status == 200 {
                open.push(one);
            }
        }
        let answer = server.connect().request("GET", "/v1/models", &[], b"");
        assert_eq!(answer.status, 503, "{}", answer.text());
        assert_eq!(answer.json()["error"]["code"], "too_many_connections");
        assert_eq!(answer.header("retry-after"), Some("1"));
        assert_eq!(open[0].request("GET", "/v1/models", &[], b"").status, 200, "the others go on");
    }
}

/// Whoever does not say what it wants is not listened to for ever; nor whoever says too much.
pub fn heads() {
    let server = Server::start(&["--head-seconds", "1"]);
    for beginning in ["", "GET /v1/models HTTP/1.1\r\nhost: test\r\n"] {
        let mut stream = TcpStream::connect(server.address).expect("the server listens");
        stream.set_read_timeout(Some(Duration::from_secs(10))).expect("a timeout");
        std::io::Write::write_all(&mut stream, beginning.as_bytes()).expect("writable");
        let began = Instant::now();
        let mut said = Vec::new();
        stream.read_to_end(&mut said).expect("closed by the server");
        let waited = began.elapsed().as_secs_f64();
        assert!((0.5..5.0).contains(&waited), "{beginning:?}: closed after {waited} s");
    }
    let many: Vec<(String, String)> = (0..200).map(|at| (format!("x-{at}"), "v".to_owned())).collect();
    let many: Vec<(&str, &str)> = many.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
    let long = "v".repeat(1_000_000);
    for headers in [&many[..], &[("x-long", long.as_str())]] {
        let mut stream = TcpStream::connect(server.address).expect("the server listens");
        stream.set_read_timeout(Some(Duration::from_secs(10))).expect("a timeout");
        let lines: String = headers.iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect();
        let head = format!("GET /v1/models HTTP/1.1\r\nhost: test\r\n{lines}\r\n");
        // It may have answered and closed before all of it is there.
        let _ = std::io::Write::write_all(&mut stream, head.as_bytes());
        let mut said = [0; 12];
        stream.read_exact(&mut said).expect("an answer");
        assert_eq!(String::from_utf8_lossy(&said), "HTTP/1.1 431", "{} headers", headers.len());
    }
    assert_eq!(server.get("/v1/models").status, 200);
}
