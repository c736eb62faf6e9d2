//! Whatever a client can make grow, grown: texts, conversations, tools, pictures, headers, queries, lists.
//! Each is answered in time, by no error of the server's own, and leaves no memory behind.

use crate::clock;
use crate::process::Server;
use serde_json::{Map, Value, json};
use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::time::{Duration, Instant};

const CHAT: &str = "/v1/chat/completions";
const TEXT: &str = "/v1/completions";
const RESPONSES: &str = "/v1/responses";
const MESSAGES: &str = "/v1/messages";
const JSON: (&str, &str) = ("content-type", "application/json");

/// How long an answer may take: time that the server works, since others work on the machine too. (A client
/// of these tests waits 20 s.)
const PATIENCE: Duration = Duration::from_secs(10);
/// What a server may have grown by some time after all have been answered, in bytes: what its threads keep at
/// hand.
const KEPT: u64 = 96 << 20;
/// How long that time is.
const SOON: Duration = Duration::from_secs(8);
/// The largest body that is taken.
const LARGEST: usize = 4 << 20;

/// Sends what is given and reads what comes until the connection ends, within [`PATIENCE`]; the status, or 0
/// where nothing was said.
fn raw(server: &Server, what: &str, bytes: &[u8]) -> (u16, String) {
    let began = Instant::now();
    let mut stream = TcpStream::connect(server.address).expect("the server listens");
    stream.set_read_timeout(Some(Duration::from_millis(300))).expect("a timeout");
    stream.set_write_timeout(Some(PATIENCE)).expect("a timeout");
    // A server that has heard enough may close before all is said.
    let _ = stream.write_all(bytes);
    let (mut said, mut part) = (Vec::new(), [0; 8192]);
    while clock::since(began) < PATIENCE {
        match stream.read(&mut part) {
            Ok(0) => break,
            Ok(count) => said.extend_from_slice(&part[..count]),
            // It waits for more, of which there is none.
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                let _ = stream.shutdown(Shutdown::Write);
            }
            Err(_) => break,
        }
    }
    assert!(clock::since(began) < PATIENCE, "{what}: took {:?}", began.elapsed());
    let said = String::from_utf8_lossy(&said).into_owned();
    let status = said.split(' ').nth(1).and_then(|status| status.parse().ok()).unwrap_or(0);
    (status, said)
}

/// Asks, and checks the answer: in time, not the server's fault, an error's envelope where it is one, and
/// that short.
fn ask(server: &Server, what: &str, path: &str, body: &[u8]) -> u16 {
    let before = server.worked();
    let response = server.connect().request("POST", path, &[JSON], body);
    let took = server.worked().saturating_sub(before);
    assert!(took < PATIENCE, "{path} {what}: took {took:?}");
    let status = response.status;
    assert!(status == 200 || (400..500).contains(&status), "{path} {what}: {status} {}", response.text());
    if status != 200 {
        let error = response.json()["error"].clone();
        assert!(
            error["message"].as_str().is_some_and(|message| !message.is_empty()),
            "{path} {what}: {error}"
        );
        assert!(response.body.len() < 8192, "{path} {what}: {} bytes are told", response.body.len());
    }
    status
}

/// Responses that are kept take the memory that there is for them, whatever they are made of. Before, they
/// were kept as values, which take a multiple of their text.
pub fn kept_responses() {
    const STORE: u64 = 4 << 20;
    let server = Server::start(&["--response-store", "4"]);
    // Small values are what takes most. Nothing of them is compiled.
    let examples: Vec<Value> = (0..1500).map(|at| json!({"a": at})).collect();
    let schema = json!({"type": "integer", "examples": examples});
    let format = json!({"type": "json_schema", "name": "it", "schema": schema});
    let body = json!({"input": "Hi", "max_output_tokens": 4, "text": {"format": format}});
    let bytes = body.to_string().len() as u64;
    let post = |times: u64| {
        for _ in 0..times {
            assert_eq!(server.post(RESPONSES, &body).status, 200);
        }
    };
    post(8);
    let before = server.resident_bytes();
    post(2 * STORE / bytes);
    let grown = server.resident_bytes().saturating_sub(before);
    assert!(grown < 3 * STORE, "{} MiB more are resident", grown >> 20);
}

/// Bytes of the longest texts, which go by two routes only.
const LONG: usize = LARGEST / 16;

/// Texts by what they are of.
fn texts() -> Vec<(String, String)> {
    let units = [
        "x",
        "\u{301}",
        "\u{315}\u{300}\u{5ae}\u{301}",
        " ",
        "\n",
        " \n",
        "7",
        "!",
        "a ",
        "<|im_end|>",
        "<|im_end|",
        "<think>",
        "<tool_call>{",
        "[[say ",
        "{{ messages }}{% for a in b %}",
        "👩\u{200d}",
        "\0\u{feff}\u{200b}\u{202e}",
        "\u{fffd}\u{fffe}\u{10ffff}",
    ];
    let sizes = [1 << 10, 1 << 16, LONG];
    let one =
        |(unit, size): (&str, usize)| (format!("{size} bytes of {unit:?}"), unit.repeat(size / unit.len()));
    units.iter().flat_map(|unit| sizes.map(|size| (*unit, size))).map(one).collect()
}

/// Bodies of texts, by every route that has them cut into tokens.
fn of_texts() -> Vec<(String, &'static str, Vec<u8>)> {
    let mut all = Vec::new();
    let mut add = |what: &str, path, body: Value| {
        let body = body.to_string().into_bytes();
        if body.len() <= LARGEST {
            all.push((what.to_owned(), path, body));
        }
    };
    for (what, text) in texts() {
        let messages = json!([{"role": "user", "content": text}]);
        add(&what, "/tokenize", json!({"prompt": text}));
        add(&what, TEXT, json!({"prompt": text, "max_tokens": 1}));
        if text.len() > LONG / 2 {
            continue;
        }
        add(&what, "/tokenize", json!({"messages": messages}));
        add(&what, TEXT, json!({"prompt": [text, "a"], "max_tokens": 1}));
        add(&what, CHAT, json!({"messages": messages, "max_tokens": 1}));
        add(&what, RESPONSES, json!({"input": text, "max_output_tokens": 1, "store": false}));
        add(&what, MESSAGES, json!({"messages": messages, "max_tokens": 1}));
        add(&what, "/v1/messages/count_tokens", json!({"messages": messages}));
        let short: String = text.chars().take(1000).collect();
        let content = json!([{"role": "user", "content": "[[say a b c]]"}]);
        add(&what, CHAT, json!({"messages": content, "stop": [short], "max_tokens": 9}));
        add(&what, CHAT, json!({"messages": content, "stop": text, "max_tokens": 9}));
        add(&what, CHAT, json!({"messages": content, "user": text, "max_tokens": 1}));
        add(&what, CHAT, json!({"messages": content, "model": text}));
        add(&what, CHAT, json!({"messages": content, "dry_multiplier": 1, "dry_sequence_breakers": [text]}));
    }
    // Halves of pairs are no text, whatever stands beside them.
    for half in ["\\ud800", "\\udc00", "\\udc00\\ud800", "\\ud83c\\ud83c", "\\ud83c\\udf0a", "\\ud83c\\u0041"]
    {
        for times in [1, 1000, 500_000] {
            let text = half.repeat(times);
            let what = format!("{times} times {half}");
            for (path, body) in [
                (TEXT, format!("{{\"prompt\": \"{text}\", \"max_tokens\": 1}}")),
                (
                    CHAT,
                    format!(
                        "{{\"messages\": [{{\"role\": \"user\", \"content\": \"{text}\"}}], \"max_tokens\": 1}}"
                    ),
                ),
                ("/tokenize", format!("{{\"prompt\": \"{text}\"}}")),
            ] {
                if body.len() <= LARGEST {
                    all.push((what.clone(), path, body.into_bytes()));
                }
            }
        }
    }
    // Bytes that are no text at all.
    for bytes in [&b"\xff"[..], b"\xc0\x80", b"\xed\xa0\x80", b"\xf8\x88\x80\x80\x80", b"\xe2\x82"] {
        let body = [&b"{\"prompt\": \""[..], &bytes.repeat(10_000), b"\"}"].concat();
        all.push((format!("{bytes:?}"), TEXT, body));
    }
    all
}

/// Objects in objects.
fn deep(levels: usize) -> Value {
    (0..levels).fold(json!(1), |inner, _| json!({ "a": inner }))
}

/// Maximum counts of every repeatable field.
fn wide(many: usize) -> Vec<(String, &'static str, Value)> {
    let user = |content: &str| json!({"role": "user", "content": content});
    let call = |id: usize, arguments: &str| json!({"id": format!("call_{id}"), "type": "function", "function": {"name": "f", "arguments": arguments}});
    let tool = |name: String, description: &str, schema: Value| json!({"type": "function", "function": {"name": name, "description": description, "parameters": schema}});
    let turn = |at: usize| {
        let role = if at.is_multiple_of(2) { "user" } else { "assistant" };
        json!({"role": role, "content": "a"})
    };
    let chat = |messages: Value, more: Value| {
        let mut body = json!({"messages": messages, "max_tokens": 1});
        body.as_object_mut().expect("an object").extend(more.as_object().expect("an object").clone());
        body
    };
    let one = || json!([user("Hi")]);
    let object: Map<String, Value> = (0..many).map(|at| (format!("k{at}"), json!(at))).collect();
    let properties: Map<String, Value> =
        (0..many.min(200)).map(|at| (format!("k{at}"), json!({"type": "string"}))).collect();
    let ids = |count: usize| (0..count).map(|at| at % 200).collect::<Vec<_>>();
    let biases =
        |count: usize| (0..count).map(|at| (at.to_string(), json!(1))).collect::<Map<String, Value>>();
    let name = "n".repeat(many);
    let what = |name: &str| format!("{many} {name}");
    let arguments = Value::Object(object.clone()).to_string();
    let mut all = vec![
        ("messages", CHAT, chat(json!(vec![user("a"); many]), json!({}))),
        ("messages of two speakers", CHAT, chat((0..many).map(turn).collect(), json!({}))),
        ("parts", CHAT, chat(json!([{"role": "user", "content": vec![json!({"type": "text", "text": "a"}); many]}]), json!({}))),
        ("calls", CHAT, chat((0..2).map(|_| json!({"role": "assistant", "content": null, "tool_calls": (0..many).map(|at| call(at, "{}")).collect::<Vec<_>>()})).collect(), json!({}))),
        ("members of arguments", CHAT, chat(json!([{"role": "assistant", "content": "", "tool_calls": [call(1, &arguments)]}, user("a")]), json!({}))),
        ("levels of arguments", CHAT, chat(json!([{"role": "assistant", "content": "", "tool_calls": [call(1, &format!("{}1{}", "{\"a\":".repeat(many), "}".repeat(many)))]}, user("a")]), json!({}))),
        ("tools", CHAT, chat(one(), json!({"tools": (0..many).map(|at| tool(format!("f{at}"), "", json!({}))).collect::<Vec<_>>()}))),
        ("letters of a tool's name", CHAT, chat(one(), json!({"tools": [tool(name.clone(), "", json!({}))]}))),
        ("letters of what a tool does", CHAT, chat(one(), json!({"tools": [tool("f".to_owned(), &name, json!({}))]}))),
        ("parameters of a tool", CHAT, chat(one(), json!({"tools": [tool("f".to_owned(), "", json!({"type": "object", "properties": properties}))]}))),
        ("template variables", CHAT, chat(one(), json!({"chat_template_kwargs": object}))),
        ("letters of a variable's name", CHAT, chat(one(), json!({"chat_template_kwargs": {name.clone(): 1}}))),
        ("letters of a field's name", CHAT, chat(one(), json!({name.clone(): 1}))),
        ("fields", CHAT, chat(one(), Value::Object(object.clone()))),
        ("members of metadata", CHAT, chat(one(), json!({"metadata": object}))),
        ("letters of a role", CHAT, chat(json!([{"role": name, "content": "a"}]), json!({}))),
        ("letters of a name", CHAT, chat(json!([{"role": "user", "name": name, "content": "a"}]), json!({}))),
        ("letters of an id", CHAT, chat(json!([{"role": "tool", "tool_call_id": name, "content": "a"}]), json!({}))),
        ("stops", CHAT, chat(one(), json!({"stop": vec!["a"; many]}))),
        ("stops in lists", CHAT, chat(one(), json!({"stop": vec![vec!["a"]; many]}))),
        ("stop ids", CHAT, chat(one(), json!({"stop_token_ids": ids(many)}))),
        ("biases", CHAT, chat(one(), json!({"logit_bias": biases(many)}))),
        ("letters of a bias", CHAT, chat(one(), json!({"logit_bias": {name.clone(): 1}}))),
        ("choices", CHAT, chat(one(), json!({"n": many}))),
        ("choices of text", TEXT, json!({"prompt": "a", "n": many, "max_tokens": 1})),
        ("prompts", TEXT, json!({"prompt": vec!["a"; many], "max_tokens": 1})),
        ("prompts of ids", TEXT, json!({"prompt": vec![[1]; many], "max_tokens": 0, "echo": true, "logprobs": 1})),
        ("empty prompts", TEXT, json!({"prompt": vec![json!([]); many]})),
        ("ids", TEXT, json!({"prompt": ids(many), "max_tokens": 1})),
        ("ids echoed", TEXT, json!({"prompt": ids(many), "max_tokens": 0, "echo": true, "logprobs": 5})),
        ("breakers", TEXT, json!({"prompt": "a", "dry_multiplier": 1, "dry_sequence_breakers": vec!["a"; many]})),
        ("ids to be text", "/detokenize", json!({"tokens": ids(many)})),
        ("blocks", MESSAGES, json!({"max_tokens": 1, "messages": [{"role": "user", "content": vec![json!({"type": "text", "text": "abc"}); many]}]})),
        ("messages of one speaker", MESSAGES, json!({"max_tokens": 1, "messages": vec![user("abc"); many]})),
        ("thoughts", MESSAGES, json!({"max_tokens": 1, "messages": [{"role": "assistant", "content": vec![json!({"type": "thinking", "thinking": "abc"}); many]}, user("a")]})),
        ("blocks of instructions", MESSAGES, json!({"max_tokens": 1, "system": vec![json!({"type": "text", "text": "a"}); many], "messages": one()})),
        ("uses", MESSAGES, json!({"max_tokens": 1, "messages": [{"role": "assistant", "content": (0..many).map(|at| json!({"type": "tool_use", "id": format!("c{at}"), "name": "f", "input": {}})).collect::<Vec<_>>()}, user("a")]})),
        ("stop sequences", MESSAGES, json!({"max_tokens": 1, "messages": one(), "stop_sequences": vec!["a"; many]})),
        ("items", RESPONSES, json!({"input": vec![user("abc"); many], "max_output_tokens": 1, "store": false})),
        ("items of the assistant", RESPONSES, json!({"input": vec![json!({"role": "assistant", "content": "abc"}); many], "max_output_tokens": 1, "store": false})),
        ("instructions", RESPONSES, json!({"input": vec![json!({"role": "system", "content": "abc"}); many], "max_output_tokens": 1, "store": false})),
        ("thoughts in items", RESPONSES, json!({"input": vec![json!({"type": "reasoning", "content": "abc"}); many], "max_output_tokens": 1, "store": false})),
        ("letters of an id before", RESPONSES, json!({"input": "a", "previous_response_id": name.clone()})),
    ];
    let picture = format!("data:image/png;base64,{}", "iVBORw0KGgo".repeat(many / 11));
    for (what, part) in [
        ("letters of a picture", json!({"type": "image_url", "image_url": {"url": picture}})),
        ("letters of a picture's kind", json!({"type": picture})),
        (
            "letters of sound",
            json!({"type": "input_audio", "input_audio": {"data": picture, "format": "wav"}}),
        ),
        ("letters of a file", json!({"type": "file", "file": {"file_data": picture}})),
    ] {
        all.push((what, CHAT, chat(json!([{"role": "user", "content": [part]}]), json!({}))));
    }
    let picture = json!({"type": "input_image", "image_url": picture});
    all.push(("letters of a picture", RESPONSES, json!({"input": [{"role": "user", "content": [picture]}]})));
    let picture =
        json!({"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": name}});
    all.push((
        "letters of a picture",
        MESSAGES,
        json!({"max_tokens": 1, "messages": [{"role": "user", "content": [picture]}]}),
    ));
    if many <= 120 {
        let deep = deep(many);
        all.push((
            "levels of a variable",
            CHAT,
            chat(one(), json!({"chat_template_kwargs": {"deep": deep}})),
        ));
        all.push((
            "levels of a schema",
            CHAT,
            chat(one(), json!({"tools": [tool("f".to_owned(), "", deep.clone())]})),
        ));
        all.push(("levels of metadata", CHAT, chat(one(), json!({"metadata": deep}))));
    }
    all.into_iter().map(|(name, path, body)| (what(name), path, body)).collect()
}

/// Numbers where a number belongs.
fn numbers() -> Vec<(String, &'static str, Vec<u8>)> {
    let given = [
        "0",
        "-1",
        "129",
        "1.5",
        "1e308",
        "-1e308",
        "1e-308",
        "1e400",
        "9223372036854775807",
        "18446744073709551616",
        "99999999999999999999999999",
        "-0",
        "0.0",
        "1e0",
        "NaN",
        "Infinity",
        "true",
        "\"1\"",
        "[1]",
        "{}",
    ];
    let fields = [
        "n",
        "max_tokens",
        "max_completion_tokens",
        "temperature",
        "top_p",
        "top_k",
        "min_p",
        "seed",
        "priority",
        "presence_penalty",
        "repetition_penalty",
        "top_n_sigma",
        "dry_multiplier",
        "dry_base",
        "dry_allowed_length",
        "dry_penalty_last_n",
        "logit_bias",
        "stop_token_ids",
        "best_of",
        "logprobs",
        "echo",
        "stop",
    ];
    let one = |(field, value): (&str, &str)| {
        let limit = if field == "max_tokens" { "" } else { "\"max_tokens\": 2, " };
        (
            format!("{field} {value}"),
            TEXT,
            format!("{{\"prompt\": \"a\", {limit}\"{field}\": {value}}}").into_bytes(),
        )
    };
    fields.iter().flat_map(|field| given.map(|value| (*field, value))).map(one).collect()
}

/// Heads of requests: lines behind the first, and what the first asks for.
fn heads() -> Vec<(String, Vec<u8>)> {
    let line = |name: &str, value: &[u8]| [name.as_bytes(), b": ", value, b"\r\n"].concat();
    let mut all: Vec<(String, Vec<u8>)> = Vec::new();
    let mut get = |what: String, path: &str, lines: &[u8]| {
        let first = format!("GET {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n");
        all.push((what, [first.as_bytes(), lines, b"\r\n"].concat()));
    };
    for count in [10, 90, 100, 1000, 100_000] {
        get(format!("{count} headers"), "/health", &line("x-a", b"b").repeat(count));
        get(format!("{count} keys"), "/v1/models", &line("authorization", b"Bearer x").repeat(count));
        get(format!("{count} ids"), "/health", &line("x-request-id", b"x").repeat(count));
    }
    for bytes in [100, 8000, 60_000, 70_000, 3 << 20] {
        let long = "x".repeat(bytes);
        for name in [
            "x-a",
            "x-request-id",
            "authorization",
            "x-api-key",
            "accept",
            "cookie",
            "user-agent",
            "content-type",
        ] {
            get(format!("{name} of {bytes}"), "/health", &line(name, long.as_bytes()));
        }
        get(format!("a name of {bytes}"), "/health", &line(&long, b"x"));
        for path in ["/", "/v1/models", "/v1/responses/x/input_items", "/nothing"] {
            get(format!("{path}?{bytes}"), &format!("{path}?{long}"), b"");
            get(format!("{path}? pairs of {bytes}"), &format!("{path}?{}", "a=b&".repeat(bytes / 4)), b"");
            get(format!("{path} of {bytes}"), &format!("{path}/{long}"), b"");
            get(format!("{path} of {bytes} slashes"), &format!("{path}/{}", "/".repeat(bytes)), b"");
        }
    }
    for value in [
        &b""[..],
        b" ",
        b"\t",
        b"\xff\xfe",
        b"\x01",
        b"\x7f",
        b"a\rb",
        b"\"'<>",
        b"..%2f%00",
        b"\xc3\xa9",
        b"{}",
        b"-1",
    ] {
        for name in [
            "x-request-id",
            "authorization",
            "x-api-key",
            "content-length",
            "content-type",
            "transfer-encoding",
            "expect",
            "connection",
            "range",
            "accept-encoding",
        ] {
            get(format!("{name} {value:?}"), "/health", &line(name, value));
        }
    }
    for query in [
        "limit=1",
        "limit=1&limit=2",
        "limit",
        "=",
        "&&&",
        "%",
        "%zz",
        "%ff=%fe",
        "limit=%31",
        "+=+",
        "a[]=1",
        "order=asc#x",
        "\u{e9}",
    ] {
        for path in ["/", "/v1/responses/x", "/v1/responses/x/input_items", "/openapi.json", "/health"] {
            get(format!("{path}?{query}"), &format!("{path}?{query}"), b"");
        }
    }
    for path in [
        "/%",
        "/%00",
        "/%ff",
        "/..",
        "/../../etc/passwd",
        "//",
        "/v1/models/%ff",
        "/v1/responses/%ff",
        "*",
        "http://x/",
        "/v1/models/a%2fb",
    ] {
        get(path.to_owned(), path, b"");
    }
    let post = |lines: &str, body: &str| {
        format!("POST {TEXT} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-type: application/json\r\n{lines}\r\n{body}").into_bytes()
    };
    let body = "{\"prompt\": \"a\", \"max_tokens\": 1}";
    for (what, lines) in [
        ("two lengths", "content-length: 32\r\ncontent-length: 32\r\n"),
        ("two lengths that differ", "content-length: 32\r\ncontent-length: 31\r\n"),
        ("a length in a list", "content-length: 32, 32\r\n"),
        ("a length too long", "content-length: 99999999999999999999\r\n"),
        ("a length of the largest", "content-length: 18446744073709551615\r\n"),
        ("a negative length", "content-length: -1\r\n"),
        ("a length and chunks", "content-length: 32\r\ntransfer-encoding: chunked\r\n"),
        ("chunks twice", "transfer-encoding: chunked, chunked\r\n"),
        ("another encoding", "transfer-encoding: gzip\r\n"),
        ("a packed body", "content-encoding: gzip\r\ncontent-length: 32\r\n"),
        ("another expectation", "expect: 200-ok\r\ncontent-length: 32\r\n"),
        ("no length", ""),
    ] {
        all.push((what.to_owned(), post(lines, body)));
    }
    for size in ["ffffffffffffffff", "fffffffffffffffff", "-1", "zz", "", &"0".repeat(10_000), "1;x=y"] {
        all.push((
            format!("a chunk of {size:.20}"),
            post("transfer-encoding: chunked\r\n", &format!("{size}\r\n{body}\r\n0\r\n\r\n")),
        ));
    }
    let trailers = "x-a: b\r\n".repeat(20_000);
    all.push((
        "trailers".to_owned(),
        post("transfer-encoding: chunked\r\n", &format!("20\r\n{body}\r\n0\r\n{trailers}\r\n")),
    ));
    all
}

/// Does it twice and looks at the memory, which may not grow with what was asked. Where more is kept than
/// threads usually keep, as on a machine with other things to do, twice more: a leak grows as before.
fn twice(server: &Server, what: &str, inputs: impl Fn() -> usize) {
    let began = Instant::now();
    let mut count = 0;
    let mut two_rounds = || {
        let before = server.resident_bytes();
        count += inputs() + inputs();
        let (most, ended) = (server.resident_bytes(), Instant::now());
        let mut left = most;
        while left > before + KEPT && clock::since(ended) < SOON {
            std::thread::sleep(Duration::from_millis(100));
            left = server.resident_bytes();
        }
        let [before_mib, most, left_mib] = [before, most, left].map(|bytes| bytes >> 20);
        println!("{what}: {before_mib} MiB resident before, {most} at the end, {left_mib} soon after");
        left.saturating_sub(before)
    };
    let grown = two_rounds();
    if grown >= KEPT {
        let more = two_rounds();
        assert!(more < grown / 2, "{what}: {} MiB more are resident, and then {}", grown >> 20, more >> 20);
    }
    println!("{what}: {count} inputs in {:.1?}", began.elapsed());
    server.wait_for("nobody is left", |stats| stats["running"] == 0 && stats["waiting"] == 0);
    assert_eq!(server.get("/health").json()["status"], "ok");
}

fn start() -> Server {
    let server = Server::start_talking("hermes", "think", &["--response-store", "1"]);
    // What every server makes once.
    assert_eq!(server.post(CHAT, &json!({"messages": [{"role": "user", "content": "Hi"}]})).status, 200);
    assert_eq!(server.get("/openapi.json").status, 200);
    server
}

pub fn long_texts() {
    let server = start();
    let all = of_texts();
    twice(&server, "texts", || {
        for (what, path, body) in &all {
            ask(&server, what, path, body);
        }
        all.len()
    });
}

pub fn many_of_them() {
    let server = start();
    let all: Vec<_> = [1, 17, 120, 1025, 40_000].into_iter().flat_map(wide).collect();
    let all: Vec<(String, &str, Vec<u8>)> = all
        .into_iter()
        .map(|(what, path, body)| (what, path, body.to_string().into_bytes()))
        .filter(|(_, _, body)| body.len() <= LARGEST)
        .chain(numbers())
        .collect();
    twice(&server, "many", || {
        let statuses = all.iter().map(|(what, path, body)| ask(&server, what, path, body));
        let answered = statuses.filter(|status| *status == 200).count();
        assert!(answered > all.len() / 10, "{answered} of {} were answered", all.len());
        all.len()
    });
}

pub fn odd_heads() {
    let server = start();
    let all = heads();
    twice(&server, "heads", || {
        for (what, bytes) in &all {
            let (status, said) = raw(&server, what, bytes);
            assert!(status < 500, "{what}: {said}");
            // What is longer than is read may be cut off while it is still being sent.
            assert!(status != 0 || bytes.len() > 64 << 10, "{what}: nothing was said");
            assert!(said.len() < 128 << 10 || status == 200, "{what}: {} bytes are told", said.len());
        }
        all.len()
    });
}
