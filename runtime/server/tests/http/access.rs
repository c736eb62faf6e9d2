//! Who may ask, from which pages, and over how many connections.
//!
//! Planted, and caught here: a route added behind the layer that asks for keys; keys compared by their
//! beginning; `/metrics` that wants a key, and paths open that only begin as it does; a preflight that wants
//! a key; any origin allowed where one is named; the place of a connection kept when it ends; heads that may
//! take for ever, and be of any size.

use crate::client::{Connection, Response};
use crate::clock;
use crate::lifecycle::CHAT;
use crate::process::{Server, checkpoint, run};
use serde_json::json;
use std::os::unix::fs::PermissionsExt;
use std::time::{Duration, Instant};

const TEXT: &str = "/v1/completions";
/// What wants no key, where a server has some.
const OPEN: [(&str, &str); 5] = [
    ("GET", "/health"),
    ("GET", "/health/live"),
    ("GET", "/health/ready"),
    ("GET", "/ping"),
    ("GET", "/metrics"),
];
/// All else: every route, others that are none, and methods that a route does not take.
const CLOSED: [(&str, &str, u16); 22] = [
    ("GET", "/", 200),
    ("GET", "/openapi.json", 200),
    ("GET", "/info", 200),
    ("GET", "/version", 200),
    ("POST", "/tokenize", 200),
    ("POST", "/detokenize", 200),
    ("GET", "/v1/models", 200),
    ("GET", "/v1/models/cpu/echo/none", 200),
    ("POST", CHAT, 200),
    ("POST", TEXT, 200),
    ("POST", "/v1/chat/completions/render", 200),
    ("POST", "/v1/completions/render", 200),
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

/// What a route takes.
fn body_of(method: &str, path: &str) -> String {
    let chat = json!([{"role": "user", "content": "Hi"}]);
    match path {
        _ if method == "GET" => String::new(),
        CHAT | "/v1/chat/completions/render" | "/v1/messages/count_tokens" => {
            json!({ "messages": chat }).to_string()
        }
        "/v1/responses" => json!({"input": "Hi"}).to_string(),
        "/v1/messages" => json!({"max_tokens": 9, "messages": chat}).to_string(),
        "/detokenize" => json!({"tokens": [72, 105]}).to_string(),
        _ => json!({"prompt": "Hi"}).to_string(),
    }
}

/// Every route, with no key, wrong ones and right ones, each shown in every way.
pub fn keys() {
    let directory = tempfile::tempdir().expect("a directory");
    let file = directory.path().join("keys");
    std::fs::write(&file, "# one\nof-the-file\n").expect("writable");
    std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o600)).expect("its owner's");
    let file = file.to_str().expect("UTF-8");
    let server = Server::start(&["--api-key", "of-the-flag", "--api-key-file", file]);
    let ask = |method: &str, path: &str, headers: &[(&str, &str)]| -> Response {
        server.connect().request(method, path, headers, body_of(method, path).as_bytes())
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
    // A browser asks for a key where its user opens the page, a challenge a header, and leaves it to the page
    // where that asks.
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
        (["--allowed-host", "http://chat.example"], "--allowed-host \"http://chat.example\""),
        (["--cors-origin", "https://chat.example/path"], "https://chat.example"),
    ] {
        let output = run(&[&serve[..], &arguments[..]].concat());
        let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(1), "{arguments:?}: {stderr}");
        assert!(stderr.contains(words), "{arguments:?}: {stderr}");
    }
}

/// Pages of other origins: none unless they are named, and then without a key for the question whether they
/// may.
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

/// Pages of elsewhere that ask in their own name, or in one that they made mean this machine: at every route.
///
/// Seen before: all of them were answered, and the engine generated for them.
pub fn strangers() {
    let server = Server::start(&[]);
    let port = server.address.port();
    let ask = |method: &str, path: &str, headers: &[(&str, &str)]| {
        server.connect().request(method, path, headers, body_of(method, path).as_bytes())
    };
    let own = format!("127.0.0.1:{port}");
    let (page, name) = (format!("http://{own}"), format!("localhost:{port}"));
    let guests: [&[(&str, &str)]; 4] =
        [&[("host", &own)], &[("host", &name)], &[("host", &own), ("origin", &page)], &[("host", "[::1]")]];
    let rebound: &[(&str, &str)] = &[("host", "evil.example"), ("origin", "http://evil.example")];
    let strangers = [
        (rebound, 421, "unknown_host"),
        (&[("host", "evil.example")][..], 421, "unknown_host"),
        (&[("host", own.as_str()), ("origin", "https://evil.example")], 403, "foreign_origin"),
        (&[("host", "")], 400, "invalid_host"),
    ];
    let answered =
        |path: &str| CLOSED.iter().filter(|(_, closed, status)| *closed == path && *status == 200).count();
    for (method, path, status) in CLOSED {
        for headers in guests {
            let answer = ask(method, path, headers);
            assert_eq!(answer.status, status, "{method} {path} {headers:?}: {}", answer.text());
        }
        for (headers, status, code) in strangers {
            let answer = ask(method, path, headers);
            let what = format!("{method} {path} {headers:?}: {}", answer.text());
            assert_eq!(answer.status, status, "{what}");
            assert!(answer.header("x-request-id").is_some(), "{what}");
            let error = &answer.json()["error"];
            if path.starts_with("/v1/messages") {
                let kind = if status == 403 { "permission_error" } else { "invalid_request_error" };
                assert_eq!(error["type"], kind, "{what}");
            } else {
                assert_eq!(error["code"], code, "{what}");
            }
            let right = if status == 403 { "--cors-origin" } else { "host" };
            assert!(error["message"].as_str().is_some_and(|it| it.to_lowercase().contains(right)), "{what}");
        }
    }
    let generating = answered(CHAT) + answered(TEXT) + answered("/v1/messages") + answered("/v1/responses");
    assert_eq!(server.stats()["finished"], generating * guests.len(), "nobody else was served");
    for (method, path) in OPEN {
        for (headers, ..) in strangers {
            assert_eq!(ask(method, path, headers).status, 200, "{method} {path} {headers:?}");
        }
    }
    drop(server);
    let named =
        Server::start(&["--allowed-host", "llm.example.com", "--cors-origin", "https://chat.example"]);
    let status = |headers: &[(&str, &str)]| named.connect().request("GET", "/v1/models", headers, b"").status;
    assert_eq!(status(&[("host", "llm.example.com"), ("origin", "https://chat.example")]), 200);
    assert_eq!(status(&[("host", "llm.example.com:8443"), ("origin", "https://llm.example.com:8443")]), 200);
    assert_eq!(status(&[("host", "evil.example"), ("origin", "https://chat.example")]), 421);
    assert_eq!(status(&[("host", "llm.example.com"), ("origin", "https://evil.example")]), 403);
}

/// Bodies that do not say that they are JSON are those that browsers send for anybody.
///
/// Seen before: an answer was generated to each.
pub fn kinds() {
    let server = Server::start(&[]);
    let posts: Vec<&str> = CLOSED.iter().filter(|it| it.0 == "POST").map(|it| it.1).collect();
    for path in &posts {
        let ask = |kind: &str| {
            server.connect().request(
                "POST",
                path,
                &[("content-type", kind)],
                body_of("POST", path).as_bytes(),
            )
        };
        for kind in ["application/json", "application/json; charset=utf-8", "Application/Vnd.X+JSON"] {
            let answer = ask(kind);
            assert!([200, 404].contains(&answer.status), "{path} {kind}: {}", answer.text());
        }
        for kind in
            ["", "text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x", "json"]
        {
            let answer = ask(kind);
            assert_eq!(answer.status, 415, "{path} {kind}: {}", answer.text());
            let message = answer.json()["error"]["message"].as_str().unwrap_or_default().to_owned();
            assert!(
                message.contains("`Content-Type`") && message.contains("application/json"),
                "{path}: {message}"
            );
            assert!(kind.is_empty() || message.contains(kind), "{path}: {message}");
        }
    }
    assert_eq!(posts.len(), 10);
    assert_eq!(server.stats()["finished"], 4 * 3);
    // A client still sending receives the error.
    let body = "x".repeat(3 << 20);
    let answer = server.connect().request("POST", CHAT, &[("content-type", "text/plain")], body.as_bytes());
    assert_eq!(answer.status, 415);
    // An empty body has no message, with and without a dump.
    let directory = tempfile::tempdir().expect("a directory");
    let file = directory.path().join("dump");
    let copying = Server::start(&["--dump", file.to_str().expect("UTF-8")]);
    for server in [&server, &copying] {
        let nothing = |path| server.connect().request("POST", path, &[("content-type", "")], b"");
        assert_eq!(nothing("/v1/responses/x/cancel").status, 404);
        assert_eq!(nothing(CHAT).json()["error"]["code"], "invalid_json");
    }
}

/// So many and no more; those that end make room.
pub fn connections() {
    let server = Server::start(&["--max-connections", "3"]);
    for round in 0..3 {
        // Those of the round before are over when the server has seen so.
        let began = Instant::now();
        let mut open: Vec<Connection> = Vec::new();
        while open.len() < 3 {
            assert!(clock::since(began) < Duration::from_secs(5), "round {round}: places come back");
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

/// Clients that send nothing, too much, or no valid HTTP are disconnected in bounded time, with an error.
///
/// Seen before: a status without a message.
pub fn heads() {
    let server = Server::start(&["--head-seconds", "1"]);
    let say = |words: &[u8]| {
        let mut connection = server.connect();
        connection.try_raw(words);
        connection
    };
    let began = Instant::now();
    assert_eq!(say(b"").rest(), "", "who has said nothing is told nothing");
    let mut late = say(b"GET /v1/models HTTP/1.1\r\nhost: localhost\r\n");
    let answer = late.response();
    let waited = began.elapsed().as_secs_f64();
    assert!((1.5..10.0).contains(&waited), "closed after {waited} s");
    assert_eq!(late.rest(), "", "and closed");
    let told = |what: &str, answer: &Response, status: u16, code: &str, words: &[&str]| {
        let error = &answer.json()["error"];
        assert_eq!((answer.status, &error["code"]), (status, &json!(code)), "{what}: {}", answer.text());
        assert_eq!(answer.header("content-type"), Some("application/json"), "{what}");
        assert_eq!(error["type"], "invalid_request_error", "{what}");
        let message = error["message"].as_str().unwrap_or_default();
        assert!(words.iter().all(|word| message.contains(word)), "{what}: {message}");
    };
    told("late", &answer, 408, "timeout", &["1 seconds"]);

    let many: String = (0..200).map(|at| format!("x-{at}: v\r\n")).collect();
    let long = format!("x-long: {}\r\n", "v".repeat(1_000_000));
    for headers in [many, long] {
        let mut connection =
            say(format!("GET /v1/models HTTP/1.1\r\nhost: localhost\r\n{headers}\r\n").as_bytes());
        told(&headers[..9], &connection.response(), 431, "head_too_large", &["100 headers", "65536 bytes"]);
        assert_eq!(connection.rest(), "");
    }
    let path = format!("GET /{} HTTP/1.1\r\nhost: localhost\r\n\r\n", "x".repeat(1_000_000));
    told("path", &say(path.as_bytes()).response(), 431, "head_too_large", &["path"]);
    for words in [
        &b"hello\r\n\r\n"[..],
        b"GET /v1/models\r\n\r\n",
        b"GET /v1/models HTTP/9.9\r\nhost: localhost\r\n\r\n",
        b"GET /v1/models HTTP/1.1\r\nno header\r\n\r\n",
        b"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-length: many\r\n\r\n{}",
        b"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-length: 2\r\ncontent-length: 3\r\n\r\n{}",
        b"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: gzip\r\n\r\n{}",
        // TLS.
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    ] {
        let what = String::from_utf8_lossy(words);
        told(&what, &say(words).response(), 400, "invalid_http", &["HTTP/1.1", "http://"]);
    }
    // Behind requests that are answered, on the same connection.
    let mut connection = say(b"GET /v1/models HTTP/1.1\r\nhost: localhost\r\n\r\nhello\r\n\r\n");
    assert_eq!(connection.response().status, 200);
    told("second", &connection.response(), 400, "invalid_http", &["HTTP/1.1"]);
    assert_eq!(server.get("/v1/models").status, 200);
}
