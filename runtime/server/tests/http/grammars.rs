//! Grammars that were made to hurt, through every API, whole and streamed: of sizes on both sides of every
//! bound, and put together by chance. Each is followed or refused in time, the server lives on, and what
//! compiling took is given back.
//!
//! By chance for ten minutes: `cargo test -p monomorph-server --test http -- --ignored
//! grammars::by_chance_for_ten_minutes`. A seed and a count of inputs are printed; docs/operating.md has the
//! last count.

use crate::client::Connection;
use crate::clock;
use crate::lifecycle::CHAT;
use crate::process::Server;
use serde_json::{Map, Value, json};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

const TEXT: &str = "/v1/completions";
/// How long an answer may take.
const PATIENCE: Duration = Duration::from_secs(10);
/// Most memory of a server that has answered all of them, in bytes.
const MEMORY: u64 = 768 << 20;
/// Longest body that is made by chance: what a longer one costs is its prompt, with all of its tools.
const LONGEST: usize = 256 << 10;
/// How long what was begun for clients that have gone may go on: the time for a grammar and as much again.
const AFTERWARDS: Duration = Duration::from_secs(20);

/// The answer's grammar.
#[derive(Clone, Debug)]
enum AnswerGrammar {
    Schema(Value),
    Regex(String),
    Lark(String),
}

impl AnswerGrammar {
    /// The requests for it, of all APIs that have words for it.
    fn requests(&self) -> Vec<(&'static str, Value)> {
        let message = json!([{"role": "user", "content": "[[say {\"a\": [1]}]]"}]);
        let chat = |more: Value| with(json!({"messages": message, "max_tokens": 12}), more);
        let text = |more: Value| with(json!({"prompt": "[[say {\"a\": [1]}]]", "max_tokens": 12}), more);
        match self {
            AnswerGrammar::Schema(schema) => {
                let format = json!({"response_format": {"type": "json_schema", "json_schema": {"name": "it", "schema": schema}}});
                let flat = json!({"type": "json_schema", "name": "it", "schema": schema});
                let function = json!({"name": "f", "parameters": schema, "strict": true});
                let tool = json!({"name": "f", "input_schema": schema, "strict": true});
                let output = json!({"format": {"type": "json_schema", "schema": schema}});
                let messages = |more| with(json!({"messages": message, "max_tokens": 12}), more);
                vec![
                    (CHAT, chat(format.clone())),
                    (TEXT, text(format)),
                    (
                        "/v1/responses",
                        json!({"input": "Hi", "max_output_tokens": 20, "text": {"format": flat}}),
                    ),
                    ("/v1/messages", messages(json!({"output_config": output}))),
                    (CHAT, chat(json!({"tools": [{"type": "function", "function": function}]}))),
                    ("/v1/messages", messages(json!({"tools": [tool]}))),
                ]
            }
            AnswerGrammar::Regex(regex) => {
                let held = json!({"structured_outputs": {"regex": regex}});
                vec![(CHAT, chat(held.clone())), (TEXT, text(held))]
            }
            AnswerGrammar::Lark(lark) => {
                let held = json!({"structured_outputs": {"grammar": lark}});
                vec![(CHAT, chat(held.clone())), (TEXT, text(held))]
            }
        }
    }
}

fn with(mut body: Value, more: Value) -> Value {
    if let (Value::Object(body), Value::Object(more)) = (&mut body, more) {
        body.extend(more);
    }
    body
}

/// Asks, and looks at the answer; what was wrong with the request, if anything.
fn ask(server: &Server, path: &str, body: &Value) -> Option<String> {
    let began = Instant::now();
    let response = server.post(path, body);
    let took = clock::since(began);
    let said = response.text();
    let short = || body.to_string().chars().take(600).collect::<String>();
    assert!(took < PATIENCE, "{path} took {took:?}: {}", short());
    match response.status {
        200 => {
            // An answer may be lost where the library gives up on the way, and never otherwise.
            let lost = said.contains("cannot be followed");
            assert!(lost || !said.contains("\"server_error\""), "{path}: {said}: {}", short());
            None
        }
        400 | 413 | 429 => {
            let error = &response.json()["error"];
            assert!(error["message"].is_string(), "{path}: {said}");
            Some(error["message"].as_str().unwrap_or_default().to_owned())
        }
        500 if said.contains("cannot be followed") => None,
        other => panic!("{path}: {other} {said}: {}", short()),
    }
}

/// How many grammars are being compiled.
fn compiling(server: &Server) -> u64 {
    server.metric("monomorph:grammars_compiling") as u64
}

/// No request is left, and no compilation.
fn is_as_before(server: &Server, threads: u64) {
    let began = Instant::now();
    let left = || compiling(server);
    while left() > 0 || server.threads() > threads {
        assert!(
            clock::since(began) < AFTERWARDS,
            "{} grammars are being compiled, by {} threads that were {threads}",
            left(),
            server.threads()
        );
        std::thread::sleep(Duration::from_millis(50));
    }
    assert_eq!(server.get("/health").json()["status"], "ok");
    server.wait_for("nobody is left", |stats| stats["running"] == 0 && stats["waiting"] == 0);
    let memory = server.resident_bytes();
    assert!(memory < MEMORY, "{} MiB are resident", memory >> 20);
}

/// A server that has made what grammars need, and its threads.
fn start() -> (Server, u64) {
    let server = Server::start_talking("hermes", "-", &["--max-body", "3000000"]);
    assert_eq!(ask(&server, CHAT, &AnswerGrammar::Regex("a".to_owned()).requests()[0].1), None);
    server.wait_for("nobody is left", |stats| stats["running"] == 0);
    let threads = server.threads();
    (server, threads)
}

fn definitions(count: usize, link: impl Fn(Value) -> Value) -> Value {
    let next = |at: usize| json!({"$ref": format!("#/$defs/d{at}")});
    let mut all: Map<String, Value> = (1..count).map(|at| (format!("d{at}"), link(next(at + 1)))).collect();
    all.insert(format!("d{count}"), json!({"type": "string"}));
    json!({"$ref": "#/$defs/d1", "$defs": all})
}

fn references(count: usize) -> AnswerGrammar {
    AnswerGrammar::Schema(definitions(count, |next| next))
}

fn arrays(count: usize) -> AnswerGrammar {
    AnswerGrammar::Schema(definitions(count, |next| json!({"type": "array", "items": next})))
}

fn properties(count: usize) -> AnswerGrammar {
    let all: Map<String, Value> =
        (0..count).map(|at| (format!("p{at}"), json!({"type": "integer"}))).collect();
    AnswerGrammar::Schema(json!({"type": "object", "properties": all}))
}

fn patterns(count: usize) -> AnswerGrammar {
    let pattern = |at| (format!("^[a-z]*x{at}[a-z]*$"), json!({"type": "string"}));
    AnswerGrammar::Schema(
        json!({"type": "object", "patternProperties": (0..count).map(pattern).collect::<Map<_, _>>()}),
    )
}

fn all_of(count: usize) -> AnswerGrammar {
    let pattern = |at| json!({"pattern": format!("[a-m]{{{at}}}[b-z]|x.*{at}")});
    AnswerGrammar::Schema(json!({"type": "string", "allOf": (0..count).map(pattern).collect::<Vec<_>>()}))
}

fn lengths(count: usize) -> AnswerGrammar {
    AnswerGrammar::Schema(
        json!({"type": "string", "allOf": (0..count).map(|at| json!({"maxLength": at + 5})).collect::<Vec<_>>()}),
    )
}

fn names(count: usize) -> AnswerGrammar {
    AnswerGrammar::Schema(
        json!({"type": "object", "required": (0..count).map(|at| format!("p{at}")).collect::<Vec<_>>()}),
    )
}

fn options(count: usize) -> AnswerGrammar {
    let all: Vec<String> = (0..count).map(|at| format!("\"{at}\"")).collect();
    AnswerGrammar::Lark(format!("start: {}\n", all.join(" | ")))
}

/// Each twice as large as the one before, where it is written out.
fn doubled(count: usize) -> AnswerGrammar {
    AnswerGrammar::Schema(definitions(count, |next| {
        let mut one = next;
        one["minProperties"] = json!(0);
        json!({"type": "object", "properties": {"a": one, "b": one}})
    }))
}

fn groups(count: usize) -> AnswerGrammar {
    AnswerGrammar::Regex(format!("{}b{}", "(a?".repeat(count), ")".repeat(count)))
}

fn repeats(count: usize) -> AnswerGrammar {
    AnswerGrammar::Regex(format!("(a{{1,100}}){{1,{count}}}"))
}

fn rules(count: usize) -> AnswerGrammar {
    let rules: String = (1..count - 1).map(|at| format!("r{at}: \"a\" r{}\n", at + 1)).collect();
    AnswerGrammar::Lark(format!("start: r1\n{rules}r{}: \"b\"\n", count - 1))
}

fn terminals(count: usize) -> AnswerGrammar {
    let all: String = (1..count - 1).map(|at| format!("T{at}: \"a\" T{}\n", at + 1)).collect();
    AnswerGrammar::Lark(format!("start: T1\n{all}T{}: \"b\"\n", count - 1))
}

fn brackets(count: usize) -> AnswerGrammar {
    AnswerGrammar::Lark(format!("start: {}\"b\"{}\n", "(\"a\" ".repeat(count), ")".repeat(count)))
}

/// A source of some size.
type Sized = fn(usize) -> AnswerGrammar;

/// The largest that is taken, and what the refusal of one larger says.
const BOUNDS: &[(Sized, usize, &str)] = &[
    (references, 1023, "at most 1024"),
    (arrays, 512, "at most 1024"),
    (properties, 480, "at most 480"),
    (patterns, 32, "at most 32"),
    (lengths, 128, "at most 128"),
    (names, 4000, "at most 4000"),
    (options, 19_999, "at most 20000"),
    (groups, 31, "64 levels"),
    (repeats, 1000, "at most 100000"),
    (rules, 1024, "at most 1024"),
    (terminals, 1024, "at most 1024"),
    (brackets, 1023, "at most 1024"),
];

pub fn on_both_sides() {
    let (server, threads) = start();
    for (source, most, refusal) in BOUNDS {
        for size in [*most, most + 1] {
            for (at, (path, body)) in source(size).requests().into_iter().enumerate() {
                for stream in [false, true] {
                    let body = with(body.clone(), json!({"stream": stream}));
                    let error = ask(&server, path, &body);
                    let named = error.as_ref().is_some_and(|error| error.contains(refusal));
                    assert_eq!(named, size > *most, "{path} {at} {size}: {error:?}");
                }
            }
        }
    }
    is_as_before(&server, threads);
}

/// What killed a server, or held it up, once.
pub fn that_killed() {
    let (server, threads) = start();
    for held in [
        references(700),
        references(5000),
        arrays(300),
        arrays(2000),
        properties(7000),
        rules(1000),
        terminals(1000),
        rules(5000),
        brackets(50_000),
        patterns(600),
        patterns(30),
        all_of(3000),
        all_of(100),
        doubled(40),
        doubled(500),
        AnswerGrammar::Regex("(a{1,1000}){1,1000}".to_owned()),
        AnswerGrammar::Lark(
            "start: A\nA: /[ab]*a[ab]{22}/ & /[ab]*b[ab]{22}c?/ & /[ab]*a[ab]{21}/\n".to_owned(),
        ),
    ] {
        for (path, body) in held.requests() {
            ask(&server, path, &body);
        }
    }
    // Clients that go away leave nothing behind that goes on.
    for held in [patterns(30), all_of(100), doubled(40), patterns(31)] {
        for (path, body) in held.requests() {
            let mut client = server.connect();
            client.send("POST", path, &[("content-type", "application/json")], body.to_string().as_bytes());
            std::thread::sleep(Duration::from_millis(30));
        }
    }
    is_as_before(&server, threads);
}

/// What is kept for the next turn takes so much and no more, compiled: of four grammars that take 24 MiB each
/// the last two are there, and of small ones all.
pub fn kept() {
    // Each takes over a second where cores are shared, and what is kept does not depend on that.
    let server = Server::start_talking("hermes", "-", &["--grammar-timeout", "20"]);
    let found = |held: &AnswerGrammar| {
        let before = server.metric("monomorph:grammars_found_total");
        let (path, body) = held.requests().remove(0);
        assert_eq!(ask(&server, path, &body), None);
        server.metric("monomorph:grammars_found_total") > before
    };
    let all: Vec<AnswerGrammar> = (0..6).map(|at| options(9_999 - at)).collect();
    let small: Vec<AnswerGrammar> = (1..9).map(references).collect();
    assert!(all.iter().all(|one| !found(one)));
    assert_eq!([5, 4, 0].map(|at| found(&all[at])), [true, true, false]);
    assert!(small.iter().all(|one| !found(one)));
    assert!(small.iter().all(found));
}

/// One that takes too long is refused when its time is over, by the flag that says how much it has.
pub fn deadline() {
    let server = Server::start_talking("hermes", "-", &["--grammar-timeout", "0.3"]);
    let threads = server.threads() + 1;
    let mut late = 0;
    // Ten seconds each, on a processor that has nothing else to do.
    let AnswerGrammar::Schema(schema) = doubled(24) else { unreachable!("it is a schema") };
    let lark = AnswerGrammar::Lark(format!("start: %json {schema}\n"));
    for held in [AnswerGrammar::Schema(schema), lark] {
        for (path, body) in held.requests() {
            let began = Instant::now();
            let error = ask(&server, path, &body);
            let took = clock::since(began);
            assert!(took < Duration::from_secs(3), "{path} took {took:?}");
            late += u32::from(error.is_some_and(|error| {
                error.contains("longer than the 300ms") && error.contains("--grammar-timeout")
            }));
        }
    }
    // By six APIs, and by two.
    assert_eq!(late, 8, "were too late");
    is_as_before(&server, threads + 8);
}

/// A failure that shows only while an answer is generated: its client gets an error, and the server stays
/// healthy.
///
/// Seen before: status 500, and in a stream an error of the engine.
pub fn outgrown() {
    let server = Server::start_talking("hermes", "-", &["--grammar-timeout", "20"]);
    let alternatives: Vec<String> = (0..6_000).map(|at| format!("(x{0} y{0})?", at % 50)).collect();
    let terminals: String = (0..50).map(|at| format!("x{at}: \"a{at}\"?\ny{at}: \"b{at}\"?\n")).collect();
    let lark = format!("start: \"z\" body\nbody: {}\n{terminals}", alternatives.join(" | "));
    for (path, body) in AnswerGrammar::Lark(lark).requests() {
        let response = server.post(path, &body);
        let error = &response.json()["error"];
        assert_eq!((response.status, &error["code"]), (400, &json!("unsupported_grammar")), "{error}");
        let message = error["message"].as_str().unwrap_or_default();
        assert!(message.contains("too many of its alternatives"), "{path}: {message}");
        let streamed = server.post(path, &with(body, json!({"stream": true})));
        let events = streamed.text();
        assert!(events.contains("\"code\":\"unsupported_grammar\""), "{path}: {events}");
        assert!(events.contains("too many of its alternatives"), "{path}: {events}");
    }
    assert_eq!(server.get("/health").json()["status"], "ok");
}

/// Asks for one that takes ten seconds, where it may, and goes on once it is being compiled.
fn begin(server: &Server) -> Connection {
    let (path, body) = doubled(24).requests().remove(0);
    let mut client = server.connect();
    client.send("POST", path, &[("content-type", "application/json")], body.to_string().as_bytes());
    let began = Instant::now();
    while compiling(server) == 0 {
        assert!(clock::since(began) < Duration::from_secs(5), "nothing is compiled");
        std::thread::sleep(Duration::from_millis(5));
    }
    // The first makes what all need, before its own.
    std::thread::sleep(Duration::from_millis(200));
    client
}

/// Who hangs up ends what is compiled for him, and so does the end of the server.
pub fn ended() {
    let mut server = Server::start_talking("hermes", "-", &["--grammar-timeout", "120"]);
    assert_eq!(ask(&server, CHAT, &AnswerGrammar::Regex("a".to_owned()).requests()[0].1), None);
    for _ in 0..3 {
        let client = begin(&server);
        assert_eq!(compiling(&server), 1, "it takes its time");
        let gone = Instant::now();
        drop(client);
        while compiling(&server) > 0 {
            assert!(clock::since(gone) < Duration::from_secs(2), "it is compiled for nobody");
            std::thread::sleep(Duration::from_millis(10));
        }
    }
    let mut client = begin(&server);
    server.signal(libc::SIGTERM);
    let (status, stderr) = server.wait(Duration::from_secs(5));
    assert!(status.success(), "{status}: {stderr}");
    let rest = client.rest();
    assert!(rest.contains("503") && rest.contains("stopping"), "{rest}");
}

/// Numbers by chance, the same for the same seed.
struct Dice(u64);

impl Dice {
    fn roll(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, most: usize) -> usize {
        (self.roll() % most.max(1) as u64) as usize
    }

    fn of<T: Clone>(&mut self, all: &[T]) -> T {
        all[self.below(all.len())].clone()
    }

    /// Small mostly, and large at times.
    fn size(&mut self) -> usize {
        let most = self.of(&[2, 3, 5, 9, 30, 200, 2000]);
        self.below(most)
    }

    fn number(&mut self) -> Value {
        let small = self.below(10);
        self.of(&[
            json!(small),
            json!(0),
            json!(1),
            json!(-1),
            json!(100),
            json!(5000),
            json!(1e9),
            json!(0.001),
            json!(u64::MAX),
            json!(1e-300),
            json!(7919),
        ])
    }

    fn regex(&mut self) -> String {
        const PIECES: &[&str] = &[
            "a",
            "b",
            "[a-z]",
            "[^a]",
            ".",
            "\\d",
            "\\w",
            "\\p{L}",
            "(",
            ")",
            "(?:",
            "|",
            "*",
            "+",
            "?",
            "{2,9}",
            "{100}",
            "{1,1000}",
            "{3000}",
            "^",
            "$",
            "(a|b)*",
            "(a*)*",
            "(a|a)*",
            "[ab]*a[ab]{22}",
            "((a{100}){100}){9}",
            ".*.*.*",
            "(?i)",
            "é",
            "\\n",
            "\\",
            "(?=",
            "\\1",
            "\"",
            "/",
            " ",
        ];
        (0..self.below(9)).map(|_| self.of(PIECES)).collect()
    }

    fn schema(&mut self, depth: usize) -> Value {
        if depth == 0 || self.below(9) == 0 {
            return match self.below(8) {
                0 => json!(true),
                1 => json!(false),
                2 => {
                    json!({"$ref": self.of(&["#", "#/$defs/a", "#/$defs/b", "#/properties/a", "#/$defs/a/items", "#/$defs/none", "#x"])})
                }
                3 => json!({"pattern": self.regex()}),
                4 => json!({"enum": (0..self.size()).map(|at| json!(at)).collect::<Vec<_>>()}),
                5 => {
                    json!({"const": self.of(&[json!(1), json!("é\"\\"), json!([1, {"a": null}]), json!({"a": [1]})])})
                }
                _ => {
                    json!({"type": self.of(&["string", "integer", "number", "object", "array", "null", "boolean"])})
                }
            };
        }
        let mut map = Map::new();
        for _ in 0..1 + self.below(4) {
            let keyword = self.of(&[
                "type",
                "properties",
                "patternProperties",
                "additionalProperties",
                "required",
                "items",
                "prefixItems",
                "anyOf",
                "oneOf",
                "allOf",
                "$ref",
                "minItems",
                "maxItems",
                "minLength",
                "maxLength",
                "minimum",
                "maximum",
                "exclusiveMinimum",
                "multipleOf",
                "minProperties",
                "maxProperties",
                "pattern",
                "format",
                "$defs",
                "const",
                "enum",
            ]);
            let value = match keyword {
                "type" => self.of(&[
                    json!("object"),
                    json!("array"),
                    json!("string"),
                    json!("number"),
                    json!(["string", "object"]),
                    json!("nobody's"),
                ]),
                "properties" | "$defs" => {
                    let wide = self.below(30) == 0;
                    let (count, name) =
                        (if wide { self.size() } else { self.below(4) }, ["a", "b", "c", "d"]);
                    let member = |dice: &mut Dice, at: usize| {
                        if wide {
                            (format!("p{at}"), json!({"type": "string"}))
                        } else {
                            (name[at].to_owned(), dice.schema(depth - 1))
                        }
                    };
                    Value::Object((0..count).map(|at| member(self, at)).collect())
                }
                "patternProperties" => {
                    let count = if self.below(10) == 0 { self.size() } else { self.below(4) };
                    Value::Object(
                        (0..count)
                            .map(|at| {
                                (
                                    format!("{}{at}", self.regex()),
                                    if at < 4 { self.schema(depth - 1) } else { json!({"type": "null"}) },
                                )
                            })
                            .collect(),
                    )
                }
                "additionalProperties" | "items" => self.schema(depth - 1),
                "required" => {
                    Value::Array((0..self.below(4)).map(|_| json!(self.of(&["a", "b", "z"]))).collect())
                }
                "prefixItems" | "anyOf" | "oneOf" | "allOf" => {
                    if self.below(12) == 0 {
                        let one = self.schema(0);
                        Value::Array(
                            (0..self.size())
                                .map(|at| {
                                    if at % 2 == 0 {
                                        one.clone()
                                    } else {
                                        json!({"pattern": format!("[a-m]*{at}")})
                                    }
                                })
                                .collect(),
                        )
                    } else {
                        Value::Array((0..self.below(4)).map(|_| self.schema(depth - 1)).collect())
                    }
                }
                "$ref" => json!(self.of(&["#", "#/$defs/a", "#/$defs/b", "#/properties/a"])),
                "pattern" => json!(self.regex()),
                "format" => json!(self.of(&["date-time", "email", "uri", "uuid", "ipv6", "nobody's"])),
                "const" => json!({"a": 1}),
                "enum" => json!([1, "a", null, {}, [[]]]),
                _ => self.number(),
            };
            map.insert(keyword.to_owned(), value);
        }
        Value::Object(map)
    }

    fn lark(&mut self) -> String {
        const PIECES: &[&str] = &[
            "start",
            "a",
            "b",
            "A",
            "B",
            "\"x\"",
            "/[a-z]+/",
            "/(a|b)*/",
            " | ",
            "(",
            ")",
            "[",
            "]",
            "*",
            "+",
            "?",
            "~3",
            "~2..9000",
            "{1,9}",
            "\"\"",
            "%json {\"type\": \"object\"}",
            "%json {\"allOf\": [{\"$ref\": \"#\"}]}",
            "%regex {\"substring_words\": \"a b c\"}",
            "<think>",
            "<[1-5]>",
            "<[*]>",
            "\na: ",
            "\nA: ",
            "\nB: ",
            "\nb: ",
            " & ",
            " ~",
            "\n%ignore /\\s+/\n",
            "%lark {\nstart: \"a\"\n}",
        ];
        let begin = "start: a A\na: \"x\" | a b\nb: \"y\"\nA: /[a-z]/\nB: /[0-9]{1,4}/\n";
        let pieces: String = (0..1 + self.below(30)).map(|_| format!("{} ", self.of(PIECES))).collect();
        if self.below(2) == 0 { format!("start: {pieces}") } else { format!("{begin}{pieces}") }
    }

    fn held(&mut self) -> AnswerGrammar {
        let size = self.size() + 2;
        match self.below(20) {
            0 => self.of(&[
                references as Sized,
                arrays,
                properties,
                patterns,
                all_of,
                doubled,
                groups,
                repeats,
                rules,
                terminals,
                brackets,
            ])(size),
            1..4 => AnswerGrammar::Regex(self.regex()),
            4..8 => AnswerGrammar::Lark(self.lark()),
            _ => {
                let depth = 1 + self.below(5);
                AnswerGrammar::Schema(self.schema(depth))
            }
        }
    }
}

/// So many clients ask for what comes by chance until the time is over; how many asked, and how many were
/// refused.
fn by_chance_for(time: Duration, seed: u64) {
    let (server, threads) = start();
    let (asked, refused, most) = (AtomicU64::new(0), AtomicU64::new(0), AtomicU64::new(0));
    let began = Instant::now();
    std::thread::scope(|scope| {
        for client in 0..4u64 {
            let (server, asked, refused, most) = (&server, &asked, &refused, &most);
            scope.spawn(move || {
                let mut dice = Dice(seed ^ client << 32);
                while began.elapsed() < time {
                    let all = dice.held().requests();
                    let (path, body) = dice.of(&all);
                    let body = with(body, json!({"stream": dice.below(2) == 0}));
                    if body.to_string().len() > LONGEST {
                        continue;
                    }
                    asked.fetch_add(1, Ordering::Relaxed);
                    if dice.below(25) == 0 {
                        let mut gone = server.connect();
                        gone.send(
                            "POST",
                            path,
                            &[("content-type", "application/json")],
                            body.to_string().as_bytes(),
                        );
                        continue;
                    }
                    refused.fetch_add(u64::from(ask(server, path, &body).is_some()), Ordering::Relaxed);
                    if dice.below(20) == 0 {
                        most.fetch_max(server.resident_bytes(), Ordering::Relaxed);
                    }
                }
            });
        }
    });
    let [asked, refused, most] = [asked, refused, most].map(AtomicU64::into_inner);
    println!(
        "seed {seed}: {asked} grammars by chance, {refused} refused, at most {} MiB resident",
        most >> 20
    );
    assert!(asked > 20 && refused < asked, "{refused} of {asked} were refused");
    assert!(most < MEMORY, "{} MiB were resident", most >> 20);
    is_as_before(&server, threads);
}

pub fn by_chance() {
    by_chance_for(Duration::from_secs(5), 20_261_123);
}

pub fn by_chance_for_ten_minutes() {
    let seed =
        std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).map_or(0, |time| time.as_secs());
    by_chance_for(Duration::from_secs(600), seed);
}
