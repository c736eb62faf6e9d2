//! Requests that are refused, and what they are told.
//!
//! `refused/*.txt` are tables of them, each request with its answer behind it: `POST PATH BODY` and
//! `GET PATH` say what is asked, a line `> FIELDS` asks with these fields put into the body, `= BODY` with
//! another body. An answer is its status, type, code, field and message. With `MONOMORPH_BLESS=1` answers are
//! written instead of compared.

use crate::client::Response;
use crate::process::Server;
use serde_json::{Map, Value, json};
use std::path::Path;

const CHAT: &str = "/v1/chat/completions";
const TEXT: &str = "/v1/completions";
const RESPONSES: &str = "/v1/responses";
const MESSAGES: &str = "/v1/messages";
const COUNT: &str = "/v1/messages/count_tokens";

/// Longest sequence of the model, in tokens, which are bytes.
const CONTEXT: usize = 8192;

/// A request that would be answered.
fn body(path: &str) -> Value {
    let messages = json!([{"role": "user", "content": "Hi"}]);
    match path {
        CHAT => json!({"messages": messages}),
        TEXT => json!({"prompt": "Hi"}),
        RESPONSES => json!({"input": "Hi"}),
        MESSAGES => json!({"messages": messages, "max_tokens": 5}),
        COUNT => json!({"messages": messages}),
        "/tokenize" => json!({"prompt": "Hi"}),
        _ => json!({"tokens": [1]}),
    }
}

/// What goes by its length, and is not written down: path, fields put into a request that would be answered,
/// status, field at fault, and words of the message.
type Refusal = (&'static str, Value, u16, Option<&'static str>, Vec<&'static str>);

fn long_ones() -> Vec<Refusal> {
    let long = || "x".repeat(CONTEXT);
    let said = || json!([{"role": "user", "content": long()}]);
    let too_long = || vec!["prompt is too long: 8", "tokens > 8191 maximum", "context is 8192 tokens"];
    let wide = "w".repeat(100_000);
    vec![
        // What a prompt is made of is named as the vendor names it.
        (CHAT, json!({"messages": said()}), 400, Some("messages"), too_long()),
        (TEXT, json!({"prompt": long()}), 400, Some("prompt"), too_long()),
        (TEXT, json!({"prompt": ["a", long()]}), 400, Some("prompt[1]"), too_long()),
        (RESPONSES, json!({"input": long()}), 400, Some("input"), too_long()),
        (RESPONSES, json!({"input": said()}), 400, Some("input"), too_long()),
        (MESSAGES, json!({"messages": said()}), 400, None, too_long()),
        // Pictures and files are refused, and not repeated.
        (
            CHAT,
            json!({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": format!("data:image/png;base64,{wide}")}}]}]}),
            400,
            Some("messages[0].content[0]"),
            vec!["not supported", "images, for which a model has to be built with `--vision on`"],
        ),
        (
            RESPONSES,
            json!({"input": [{"role": "user", "content": [{"type": "input_image", "image_url": format!("data:;base64,{wide}")}]}]}),
            400,
            Some("input[0].content[0]"),
            vec!["not supported", "images, for which a model has to be built with `--vision on`"],
        ),
        (
            MESSAGES,
            json!({"messages": [{"role": "user", "content": [{"type": "image", "source": {"type": "base64", "data": wide}}]}]}),
            400,
            None,
            vec!["messages[0].content[0]", "images, for which a model has to be built with `--vision on`"],
        ),
        // Long values are shortened in the middle.
        (
            CHAT,
            json!({wide.clone(): 1}),
            400,
            Some("..."),
            vec!["characters]", "is not a field this server knows"],
        ),
        (CHAT, json!({"model": wide}), 404, Some("model"), vec!["characters]", "this server has \"talk\""]),
        (CHAT, json!({"tool_choice": wide}), 400, Some("tool_choice"), vec!["characters]"]),
    ]
}

/// Checks an error of either vendor's envelope.
fn check(what: &str, path: &str, response: &Response, status: u16, param: Option<&str>, words: &[&str]) {
    let error = &response.json()["error"];
    let message = error["message"].as_str().unwrap_or_else(|| panic!("{what}: {}", response.text()));
    assert_eq!(response.status, status, "{path} {what}: {message}");
    for word in words {
        assert!(message.contains(word), "{path} {what}: {word:?} is not in {message:?}");
    }
    for word in ["Some(", "None", "recursion", "Extension"] {
        assert!(!message.contains(word), "{path} {what}: {message:?}");
    }
    assert!(response.body.len() < 4096, "{path} {what}: {} bytes are told", response.body.len());
    let found = error["param"].as_str();
    match param {
        Some("...") => assert!(found.is_some_and(|found| found.contains("characters]")), "{found:?}"),
        param => assert_eq!(found, param, "{path} {what}: {message}"),
    }
    let ours = ![MESSAGES, COUNT].contains(&path);
    assert_eq!(error["code"].is_string(), ours, "{path} {what}: {}", response.text());
}

pub fn table_of_refusals() {
    let server = Server::start_talking("hermes", "think", &[]);
    for path in [CHAT, TEXT, RESPONSES, MESSAGES, COUNT, "/tokenize", "/detokenize"] {
        assert_eq!(server.post(path, &body(path)).status, 200, "{path}");
        let post = |bytes: &[u8]| {
            server.connect().request("POST", path, &[("content-type", "application/json")], bytes)
        };
        let deep = format!("{{\"metadata\": {}{}}}", "[".repeat(127), "]".repeat(127));
        let says = ["the body is nested deeper than the 127 levels", "line 1 column"];
        check("deep", path, &post(deep.as_bytes()), 400, None, &says);
        check("endless", path, &post("[".repeat(1 << 20).as_bytes()), 400, None, &says);
        let large = ["number out of range", "line 1 column"];
        check("a number beyond all", path, &post(b"{\"temperature\": 1e400}"), 400, None, &large);
        check("empty", path, &post(b""), 400, None, &["the body is empty, and must be JSON"]);
        check("cut", path, &post(b"{\"a\": "), 400, None, &["not valid JSON", "line 1 column 6"]);
        check("a list", path, &post(b"[1]"), 400, None, &["must be a JSON object", "an array"]);
        check(
            "half a pair",
            path,
            &post(b"{\"prompt\": \"\\ud800\"}"),
            400,
            None,
            &["not valid JSON", "column"],
        );
    }
    for (path, fields, status, param, words) in &long_ones() {
        let mut asked = body(path);
        let given = fields.as_object().expect("an object").clone();
        asked.as_object_mut().expect("an object").extend(given);
        let mut what = fields.to_string();
        what.truncate(200);
        check(&what, path, &server.post(path, &asked), *status, *param, words);
    }
    let id = server.post(RESPONSES, &body(RESPONSES)).json()["id"].as_str().expect("an id").to_owned();
    for (query, param, words) in [
        ("limit=0", "limit", &["between 1 and 100", "\"0\""][..]),
        ("limit=many", "limit", &["between 1 and 100", "\"many\""]),
        ("order=up", "order", &["asc or desc", "\"up\""]),
        ("after=x", "after", &["\"x\"", "not the id of an item"]),
        ("before=x", "before", &["not a query parameter of this path", "limit, order, after"]),
    ] {
        let response = server.get(&format!("{RESPONSES}/{id}/input_items?{query}"));
        check(query, RESPONSES, &response, 400, Some(param), words);
    }
    let kept = server.get(&format!("{RESPONSES}/{id}?include=x"));
    check("query", RESPONSES, &kept, 400, Some("include"), &["it takes none"]);
    tables(&server);
    assert_eq!(server.post(CHAT, &body(CHAT)).status, 200);
}

/// The answer as the tables have it.
fn told(response: &Response) -> String {
    let body = response.json();
    let error = &body["error"];
    let word = |name: &str| error[name].as_str().unwrap_or("-");
    let (kind, code, param, message) = (word("type"), word("code"), word("param"), word("message"));
    let whole = match body.get("type") {
        Some(_) => json!({"type": "error", "error": {"type": kind, "message": message}}),
        None => json!({"error": {"message": message, "type": kind, "param": error["param"], "code": code}}),
    };
    assert_eq!(body, whole, "{}", response.text());
    assert!(response.status >= 400, "{}", response.text());
    format!("{} {kind} {code} {param}: {message}", response.status)
}

/// One table with the answers that `server` gives.
fn asked(server: &Server, table: &str) -> String {
    let (mut path, mut least) = ("", Value::Null);
    let mut found = String::new();
    let post = |path: &str, body: &[u8]| {
        told(&server.connect().request("POST", path, &[("content-type", "application/json")], body))
    };
    for line in table.lines() {
        let (kind, rest) = line.split_once(' ').unwrap_or((line, ""));
        let answer = match kind {
            "#" => None,
            "POST" => {
                let (to, body) = rest.split_once(' ').expect("a path and a body");
                (path, least) = (to, serde_json::from_str(body).expect("JSON"));
                None
            }
            "GET" | "DELETE" => Some(told(&server.connect().request(kind, rest, &[], b""))),
            ">" => {
                let mut body = least.clone();
                let fields: Map<String, Value> = serde_json::from_str(rest).expect("JSON");
                body.as_object_mut().expect("an object").extend(fields);
                let answer = post(path, body.to_string().as_bytes());
                // It is the same before a stream begins.
                if path == CHAT && !rest.contains("\"stream") {
                    body["stream"] = true.into();
                    assert_eq!(post(path, body.to_string().as_bytes()), answer, "{body}");
                }
                Some(answer)
            }
            "=" => Some(post(path, rest.as_bytes())),
            // An answer of before.
            _ => continue,
        };
        found.push_str(line);
        found.push('\n');
        if let Some(answer) = answer {
            found.push_str(&format!("{answer}\n"));
        }
    }
    found
}

fn tables(server: &Server) {
    let bless = std::env::var_os("MONOMORPH_BLESS").is_some_and(|value| value == "1");
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/http/refused");
    let mut wrong = Vec::new();
    for name in ["chat", "conversation", "completions", "responses", "messages", "routes"] {
        let file = folder.join(format!("{name}.txt"));
        let written = std::fs::read_to_string(&file).expect("readable");
        let found = asked(server, &written);
        if bless {
            std::fs::write(&file, found).expect("writable");
            continue;
        }
        for (at, (before, now)) in (1..).zip(written.lines().zip(found.lines())) {
            if before != now {
                wrong.push(format!("refused/{name}.txt:{at}\n  written: {before}\n  now:     {now}"));
            }
        }
        assert_eq!(written.lines().count(), found.lines().count(), "refused/{name}.txt lacks answers");
    }
    assert!(wrong.is_empty(), "{}\nMONOMORPH_BLESS=1 takes these", wrong.join("\n"));
}
