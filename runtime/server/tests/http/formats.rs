//! Structured output. The scripted model says what its prompt tells it to, and where that is not allowed the
//! next allowed byte.

use crate::lifecycle::CHAT;
use crate::process::{DRAFTS, Server};
use serde_json::{Value, json};

const TEXT: &str = "/v1/completions";

fn chat(content: &str, format: Value) -> Value {
    let mut body = json!({"messages": [{"role": "user", "content": content}], "max_tokens": 200});
    body.as_object_mut().expect("an object").extend(format.as_object().cloned().expect("fields"));
    body
}

fn schema(schema: Value) -> Value {
    json!({"response_format": {"type": "json_schema", "json_schema": {"name": "it", "strict": true, "schema": schema}}})
}

/// The text and the reason for the end of a chat's first choice.
fn said(server: &Server, body: &Value) -> (String, String) {
    let response = server.post(CHAT, body);
    assert_eq!(response.status, 200, "{}", response.text());
    let choice = &response.json()["choices"][0];
    let text = |value: &Value| value.as_str().expect("a string").to_owned();
    (text(&choice["message"]["content"]), text(&choice["finish_reason"]))
}

/// What is asked for, and what is answered.
fn cases() -> Vec<(Value, &'static str)> {
    let point = schema(json!({
        "type": "object", "required": ["x"], "additionalProperties": false,
        "properties": {"x": {"type": "integer", "minimum": 0, "maximum": 99}, "on": {"type": "boolean"}},
    }));
    let flags = json!({"type": "array", "items": {"type": "boolean"}});
    let open = json!({"type": "object", "required": ["on"], "properties": {"on": {"type": "boolean"}}});
    let text = "start: \"(\" WORD (\",\" WORD)* \")\"\nWORD: /[a-z]{1,3}/\n";
    vec![
        // It says what fits, and then something else than the end.
        (chat("[[say {\"x\": 12, \"on\": true} and more]]", point.clone()), "{\"x\": 12, \"on\": true}"),
        // It says what does not fit: of each byte the next that does.
        (chat("[[say no]]", json!({"guided_choice": ["yes", "zero"]})), "yes"),
        (chat("[[say zz]]", json!({"structured_outputs": {"choice": ["yes", "zero"]}})), "zero"),
        (chat("[[say aXb9]]", json!({"structured_outputs": {"regex": "[a-c]{2}[0-9]{2}"}})), "aa09"),
        (chat("[[say (ab,c)]]", json!({"guided_grammar": text})), "(ab,c)"),
        (chat("[[say {\"a\": [1]}]]", json!({"response_format": {"type": "json_object"}})), "{\"a\": [1]}"),
        // Spacing is one space or none, behind commas and colons: none before what begins.
        (chat("[[say [true, false] and]]", json!({"guided_json": flags})), "[true, false]"),
        (chat("[[say [true,false] and]]", json!({"guided_json": flags})), "[true,false]"),
        (chat("[[say   [true]]]", json!({"guided_json": flags})), "[]"),
        // An object that does not say what else it may have has nothing else, where that is strict, and may
        // have it where it is not.
        (chat("[[say {\"on\": true, \"off\": 1}]]", schema(open.clone())), "{\"on\": true}"),
        (
            chat("[[say {\"on\": true, \"off\": 1} and]]", json!({"guided_json": open})),
            "{\"on\": true, \"off\": 1}",
        ),
        // The pointers' escapes, and keywords that say nothing.
        (
            chat(
                "[[say {\"on\": true}]]",
                schema(json!({
                    "type": "object", "properties": {"on": {"$ref": "#/$defs/a~1b%25"}}, "required": ["on"], "then": {"not": {}},
                    "$defs": {"a/b%": {"type": "boolean", "uniqueItems": false}, "unused": {"not": {"$dynamicRef": "#x"}}},
                })),
            ),
            "{\"on\": true}",
        ),
        // A name that comes twice does not count twice.
        (
            chat(
                "[[say {\"a\":1} and]]",
                json!({"guided_json": {"type": "object", "minProperties": 1, "additionalProperties": {"type": "integer", "maximum": 9, "minimum": 0}}}),
            ),
            "{\"a\":1}",
        ),
        // To the last digit.
        (
            chat("[[say 9007199254740991]]", json!({"guided_json": {"const": 9_007_199_254_740_991_i64}})),
            "9007199254740991",
        ),
    ]
}

pub fn answers() {
    for (model, drafts) in [(None, false), (Some(DRAFTS), true)] {
        let server = match model {
            None => Server::start(&[]),
            Some(model) => Server::start_as(model, &[]),
        };
        for (body, expected) in cases() {
            let ended = (expected.to_owned(), "stop".to_owned());
            assert_eq!(said(&server, &body), ended, "{body}, drafts: {drafts}");
            // Several answers, and with penalties, which take other ways through the engine.
            let mut several = body.clone();
            several["n"] = json!(3);
            several["presence_penalty"] = json!(0.5);
            let answer = server.post(CHAT, &several).json();
            for choice in 0..3 {
                assert_eq!(answer["choices"][choice]["message"]["content"], expected, "{several}: {answer}");
            }
            let mut streamed = body.clone();
            streamed["stream"] = json!(true);
            let streamed = server.post(CHAT, &streamed);
            let events = streamed.text();
            let events =
                events.lines().filter_map(|line| line.strip_prefix("data: ")).filter(|it| *it != "[DONE]");
            let deltas = events.map(|event| serde_json::from_str::<Value>(event).expect("events are JSON"));
            let pieces =
                deltas.filter_map(|event| Some(event["choices"][0]["delta"]["content"].as_str()?.to_owned()));
            assert_eq!(pieces.collect::<String>(), expected, "{body}");
            let mut text = body.clone();
            text["prompt"] = text["messages"][0]["content"].take();
            text.as_object_mut().expect("an object").remove("messages");
            let answer = server.post(TEXT, &text).json();
            assert_eq!(answer["choices"][0]["text"], expected, "{text}: {answer}");
        }
        // Cut off, it is a beginning.
        let mut short = cases().remove(0).0;
        short["max_tokens"] = json!(5);
        assert_eq!(said(&server, &short), ("{\"x\":".to_owned(), "length".to_owned()));
        // Who asks for nothing is answered what was said, beside those that do.
        let plain = chat("[[say no]]", json!({"response_format": {"type": "text"}}));
        assert_eq!(said(&server, &plain).0, "no");
        server.wait_for("all blocks", |stats| stats["free_blocks"] == stats["total_blocks"]);
    }
}

pub fn at_once() {
    let server = Server::start(&[]);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            for (body, expected) in cases() {
                let server = &server;
                scope.spawn(move || assert_eq!(said(server, &body).0, expected, "{body}"));
            }
        }
    });
}

/// In the words of the other APIs; what each is refused for, too.
pub fn in_other_words() {
    let server = Server::start(&[]);
    let point =
        json!({"type": "object", "required": ["x"], "properties": {"x": {"type": "integer", "maximum": 99}}});
    let bad = json!({"type": "object", "properties": {"x": {"uniqueItems": true}}});
    let large = json!({"type": "object", "properties": {"x": {"const": 9_007_199_254_740_993_i64}}});
    let tool = json!([{"type": "function", "name": "f"}]);
    let (schema, flat) =
        ("text.format.schema", json!({"type": "json_schema", "name": "it", "schema": point}));
    let said = |answer: &Value| answer["output"][0]["content"][0]["text"].as_str().map(str::to_owned);
    for (format, param, expected) in [
        (flat.clone(), None, Some("{\"x\": 12}")),
        (json!({"type": "json_object"}), None, Some("{\"x\": 12}")),
        (json!({"type": "text"}), None, Some("{\"x\": 12} and")),
        (
            json!({"type": "json_schema", "schema": bad}),
            Some(format!("{schema}.properties.x.uniqueItems")),
            None,
        ),
        (json!({"type": "json_schema", "schema": large}), Some(format!("{schema}.properties.x.const")), None),
        (json!({"type": "json_schema", "name": "it"}), Some(schema.to_owned()), None),
        (json!({"type": "xml"}), Some("text.format.type".to_owned()), None),
        (json!({"type": "text", "schema": {}}), Some("text.format.schema".to_owned()), None),
    ] {
        let body = json!({"input": "[[say {\"x\": 12} and]]", "text": {"format": format}});
        let answer = server.post("/v1/responses", &body).json();
        assert_eq!(answer["error"]["param"].as_str().map(str::to_owned), param, "{answer}");
        assert_eq!(said(&answer).as_deref(), expected, "{answer}");
        assert!(expected.is_none() || answer["text"]["format"] == format, "{answer}");
    }
    let body = json!({"input": "Hi", "text": {"format": flat}, "tools": tool});
    assert_eq!(server.post("/v1/responses", &body).json()["error"]["param"], "tools");

    let path = "output_config.format";
    for (format, word, expected) in [
        (json!({"type": "json_schema", "schema": point}), None, Some("{\"x\": 12}")),
        (
            json!({"type": "json_schema", "schema": bad}),
            Some(format!("{path}.schema.properties.x.uniqueItems")),
            None,
        ),
        (
            json!({"type": "json_schema", "schema": large}),
            Some(format!("{path}.schema.properties.x.const")),
            None,
        ),
        (json!({"type": "json_schema"}), Some(format!("{path}.schema")), None),
    ] {
        let message = json!({"role": "user", "content": "[[say {\"x\": 12} and]]"});
        let body = json!({"max_tokens": 50, "messages": [message], "output_config": {"format": format}});
        let answer = server.post("/v1/messages", &body).json();
        assert_eq!(answer["content"][0]["text"].as_str(), expected, "{answer}");
        let error = answer["error"]["message"].as_str().unwrap_or_default();
        assert!(word.is_none_or(|word| error.contains(&format!("`{word}`"))), "{answer}");
    }
}

pub fn refusals() {
    let server = Server::start(&[]);
    let of = |inner: Value| schema(json!({"type": "object", "properties": {"a": inner}}));
    let array = |least| json!({"type": "array", "items": {"type": "integer", "minimum": least}});
    let arrays: Vec<Value> = (0..2_000).map(array).collect();
    for (format, param, words) in [
        (
            of(json!({"uniqueItems": true})),
            "response_format.json_schema.schema.properties.a.uniqueItems",
            "not supported",
        ),
        (of(json!({"format": "iri"})), "response_format.json_schema.schema.properties.a.format", "iri"),
        (
            of(json!({"$ref": "file:///etc/passwd"})),
            "response_format.json_schema.schema.properties.a.$ref",
            "leads out",
        ),
        (
            of(json!({"type": "strin"})),
            "response_format.json_schema.schema.properties.a.type",
            "must be one of",
        ),
        (
            of(json!({"const": 9_007_199_254_740_993_i64})),
            "response_format.json_schema.schema.properties.a.const",
            "2^53",
        ),
        (
            of(json!({"type": "integer", "minimum": 10_000_000_000_000_000_001_u64})),
            "response_format.json_schema.schema.properties.a.minimum",
            "2^53",
        ),
        (
            of(json!({"type": "number", "exclusiveMinimum": true})),
            "response_format.json_schema.schema.properties.a.exclusiveMinimum",
            "must be a number",
        ),
        (
            of(json!({"multipleOf": -2})),
            "response_format.json_schema.schema.properties.a.multipleOf",
            "above zero",
        ),
        (
            of(json!({"type": "object", "additionalProperties": true, "minProperties": 2})),
            "response_format.json_schema.schema.properties.a.minProperties",
            "may come twice",
        ),
        (
            of(json!({"pattern": "a("})),
            "response_format.json_schema.schema.properties.a.pattern",
            "unclosed group",
        ),
        (
            of(json!({"oneOf": [{"type": "integer"}, {"type": "number"}]})),
            "response_format.json_schema.schema.properties.a",
            "use `anyOf`",
        ),
        // It was found out when the answer had begun.
        (of(json!({"anyOf": arrays})), "response_format.json_schema.schema.properties.a", "alternatives"),
        (json!({"response_format": {"type": "xml"}}), "response_format.type", "xml"),
        (
            json!({"structured_outputs": {"regex": "a("}}),
            "structured_outputs.regex",
            "unclosed group, at its character 2",
        ),
        (json!({"structured_outputs": {"choice": ["a", ""]}}), "structured_outputs.choice[1]", "empty"),
        (json!({"structured_outputs": {"regex": "a", "json": {}}}), "structured_outputs", "one of"),
        (json!({"guided_grammar": "start: missing"}), "guided_grammar", "cannot be used"),
        (json!({"guided_regex": "a", "ignore_eos": true}), "ignore_eos", "contradicts"),
        (
            json!({"guided_regex": "a", "tools": [{"type": "function", "function": {"name": "f"}}]}),
            "tools",
            "not supported",
        ),
        (json!({"guided_decoding_backend": "outlines"}), "guided_decoding_backend", "not supported"),
    ] {
        let response = server.post(CHAT, &chat("Hi", format.clone()));
        let error = &response.json()["error"];
        let format = format.to_string().chars().take(300).collect::<String>();
        assert_eq!(response.status, 400, "{format}: {error}");
        assert_eq!(error["param"], param, "{format}: {error}");
        let message = error["message"].as_str().expect("a message");
        assert!(message.contains(words), "{format}: {message}");
    }
    assert_eq!(said(&server, &chat("[[say so]]", json!({}))).0, "so");
}

/// Ids of `<think>` and `</think>` where a model marks its reasoning.
const OPEN: u32 = 269;
const CLOSE: u32 = 270;

pub fn behind_reasoning() {
    let server = Server::start_talking("-", "think", &[]);
    let directory = tempfile::tempdir().expect("temporary directories can be made");
    let file = directory.path().join("ids.json");
    let bytes = |text: &str| text.bytes().map(u32::from).collect::<Vec<_>>();
    let numbers = json!({"guided_json": {"type": "array", "items": {"type": "integer"}}});
    for (effort, ids, reasoning) in [
        // It opens its reasoning, finds it open, or has none; and then what it says has to fit.
        (
            None,
            [vec![OPEN], bytes("no {json}"), vec![CLOSE], bytes("\n\n[7, 9]")].concat(),
            json!("no {json}"),
        ),
        (Some("low"), [bytes("So [1]."), vec![CLOSE], bytes("[7, 9]")].concat(), json!("So [1].")),
        (None, bytes("[7, 9]"), json!(null)),
    ] {
        std::fs::write(&file, json!(ids).to_string()).expect("it is writable");
        let mut body = chat(&format!("[[ids {}]]", file.display()), numbers.clone());
        if let Some(effort) = effort {
            body["reasoning_effort"] = json!(effort);
        }
        let answer = server.post(CHAT, &body).json();
        let message = &answer["choices"][0]["message"];
        assert_eq!(
            (&message["content"], &message["reasoning_content"]),
            (&json!("[7, 9]"), &reasoning),
            "{answer}"
        );
        assert_eq!(answer["choices"][0]["finish_reason"], "stop");
    }
}
