//! Required calls, and arguments constrained to their tool's schema. The scripted model says what its prompt
//! tells it to, and where that is not allowed the next allowed byte.
//!
//! Planted, and caught by `kept`: nothing kept; what is kept of other tools or of another choice taken for
//! it.

use crate::corpora::encode;
use crate::deltas::accumulate;
use crate::process::Server;
use serde_json::{Value, json};

const CHAT: &str = "/v1/chat/completions";
const FORMATS: [&str; 6] = ["hermes", "qwen-xml", "mistral", "minimax", "gemma", "bare-json"];

/// Schemas whose every answer ends.
fn schemas() -> [(&'static str, Value); 2] {
    let weather = json!({
        "type": "object", "required": ["city", "days"], "additionalProperties": false,
        "properties": {
            "city": {"type": "string", "maxLength": 3}, "unit": {"enum": ["c", "f"]}, "days": {"type": "integer", "minimum": 1, "maximum": 14},
        },
    });
    [
        ("get_weather", weather),
        ("get_time", json!({"type": "object", "properties": {}, "additionalProperties": false})),
    ]
}

fn tools() -> Value {
    let tool = |(name, schema)| json!({"type": "function", "function": {"name": name, "parameters": schema, "strict": true}});
    schemas().into_iter().map(tool).collect()
}

fn asking(said: &str, fields: &Value) -> Value {
    let message = json!({"role": "user", "content": format!("[[say {said}]]")});
    let mut body = json!({"messages": [message], "tools": tools(), "max_tokens": 600});
    body.as_object_mut().expect("an object").extend(fields.as_object().expect("an object").clone());
    body
}

/// The names of a message's calls, each of which is valid.
fn called(message: &Value) -> Vec<String> {
    let call = |call: &Value| {
        let (name, arguments) = (&call["function"]["name"], &call["function"]["arguments"]);
        let arguments: Value = serde_json::from_str(arguments.as_str().expect("text"))
            .unwrap_or_else(|error| panic!("{error}: {call}"));
        let schemas = schemas();
        let (name, schema) =
            schemas.iter().find(|(known, _)| name == known).unwrap_or_else(|| panic!("{call}"));
        assert!(jsonschema::is_valid(schema, &arguments), "{call}");
        (*name).to_owned()
    };
    message["tool_calls"].as_array().map(|calls| calls.iter().map(call).collect()).unwrap_or_default()
}

/// The first choice, whole and as it comes in a stream.
fn choice(server: &Server, body: &Value) -> Value {
    let answer = server.post(CHAT, body);
    assert_eq!(answer.status, 200, "{body}: {}", answer.text());
    let choice = answer.json()["choices"][0].clone();
    let mut streamed = body.clone();
    streamed["stream"] = json!(true);
    let (message, reason) = accumulate(&server.post(CHAT, &streamed).events(), 0);
    assert_eq!((called(&message), &reason), (called(&choice["message"]), &choice["finish_reason"]), "{body}");
    choice
}

pub fn required() {
    let time = json!({"type": "function", "function": {"name": "get_time"}});
    for format in FORMATS {
        let server = Server::start_talking(format, "-", &[]);
        for said in ["Hello there", "no", "{\"name\": \"get_time\"}", "<tool_call>", ""] {
            for fields in [
                json!({"tool_choice": "required"}),
                json!({"tool_choice": "required", "parallel_tool_calls": false}),
                json!({"tool_choice": time}),
                json!({"tool_choice": {"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": [time]}}}),
            ] {
                let told = format!("{format}: {said:?}, {fields}");
                let choice = choice(&server, &asking(said, &fields));
                let names = called(&choice["message"]);
                assert!(!names.is_empty() && choice["finish_reason"] == "tool_calls", "{told}: {choice}");
                assert!(choice["message"]["content"].is_null(), "{told}: {choice}");
                assert!(names.len() == 1 || fields.get("parallel_tool_calls").is_none(), "{told}: {choice}");
                let named = fields["tool_choice"].is_object();
                assert!(!named || names.iter().all(|name| name == "get_time"), "{told}: {choice}");
            }
        }
        let several = server.post(CHAT, &asking("Hi", &json!({"tool_choice": "required", "n": 3}))).json();
        for choice in several["choices"].as_array().expect("choices") {
            assert!(!called(&choice["message"]).is_empty(), "{format}: {several}");
        }
        server.wait_for("the blocks", |stats| stats["free_blocks"] == stats["total_blocks"]);
    }
    // Behind reasoning, which is free; and where a call ends it.
    let server = Server::start_talking("hermes", "think", &[]);
    for said in ["So {be} it.</think>no", "I forget<tool_call>no"] {
        let choice =
            choice(&server, &asking(said, &json!({"tool_choice": "required", "reasoning_effort": "low"})));
        assert!(!called(&choice["message"]).is_empty(), "{choice}");
        assert!(choice["message"]["reasoning_content"].as_str().is_some_and(|it| it.len() > 7), "{choice}");
    }
}

pub fn auto() {
    for (format, call) in [
        (
            "hermes",
            "<tool_call>\n{\"name\": \"get_wether\", \"arguments\": {\"city\": 5, \"days\": 99, \"more\": 1}}\n</tool_call>",
        ),
        (
            "qwen-xml",
            "<tool_call>\n<function=get_wether>\n<parameter=city>\nZ\u{fc}rich\n</parameter>\n</function>\n</tool_call>",
        ),
        ("qwen-xml", "<function=get_time>\n<parameter=zone>\nx\n</parameter>\n</function>"),
        ("mistral", "[TOOL_CALLS]get_wether[ARGS]{\"days\": 99}"),
        ("minimax", "<minimax:tool_call>\n<invoke name=\"f\">\n</invoke>\n</minimax:tool_call>"),
        ("gemma", "<|tool_call>call:get_wether{city:5}<tool_call|>"),
        (
            "bare-json",
            "{\"name\": \"get_weather\", \"parameters\": {\"city\": 5, \"days\": 99, \"more\": 1}}",
        ),
        ("bare-json", "{\"type\": \"function\", \"function\": {\"name\":\"get_weather\", \"arguments\": 5}}"),
    ] {
        let server = Server::start_talking(format, "-", &[]);
        // JSON without a tag is a call at the beginning alone.
        let text = if format == "bare-json" { "" } else { "I look. " };
        let choice = choice(&server, &asking(&format!("{text}{call}"), &json!({})));
        assert!(!called(&choice["message"]).is_empty(), "{format}: {choice}");
        let content = choice["message"]["content"].as_str().unwrap_or_default();
        assert!(content.starts_with(text.trim_end()), "{format}: {choice}");
        assert_eq!(choice["finish_reason"], "tool_calls");
        // Who calls nothing is answered what was said.
        let text = server.post(CHAT, &asking("Just <tool and text", &json!({}))).json();
        assert_eq!(text["choices"][0]["message"]["content"], "Just <tool and text", "{format}");
        assert_eq!(text["choices"][0]["finish_reason"], "stop");
    }
    // Unconstrained calls come as the model writes them, except those of strict tools.
    let server = Server::start_talking("hermes", "-", &["--hold-calls", "off"]);
    let said = "<tool_call>\n{\"name\": \"get_time\", \"arguments\": {\"x\": 1}}\n</tool_call>";
    let mut body = asking(said, &json!({}));
    assert_eq!(called(&choice(&server, &body)["message"]).first().map(String::as_str), Some("get_time"));
    for tool in body["tools"].as_array_mut().expect("tools") {
        tool["function"]["strict"] = json!(false);
    }
    let answer = server.post(CHAT, &body).json();
    assert_eq!(
        answer["choices"][0]["message"]["tool_calls"][0]["function"]["arguments"], "{\"x\": 1}",
        "{answer}"
    );
}

pub fn beside_a_format() {
    let schema = json!({"type": "object", "required": ["x"], "additionalProperties": false, "properties": {"x": {"type": "boolean"}}});
    let format =
        json!({"response_format": {"type": "json_schema", "json_schema": {"name": "it", "schema": schema}}});
    let server = Server::start_talking("hermes", "-", &[]);
    let said = |text: &str| choice(&server, &asking(text, &format));
    let answer = said("{\"x\": true} and");
    assert_eq!(
        (&answer["message"]["content"], &answer["finish_reason"]),
        (&json!("{\"x\": true}"), &json!("stop"))
    );
    let file = tempfile::NamedTempFile::new().expect("a file");
    let ids = encode("<tool_call>\n{\"name\": \"get_time\", \"arguments\": {}}\n</tool_call>", true);
    std::fs::write(file.path(), json!(ids).to_string()).expect("written");
    let mut body = asking("", &format);
    body["messages"][0]["content"] = format!("[[ids {}]]", file.path().display()).into();
    let call = choice(&server, &body);
    assert_eq!(
        (called(&call["message"]), &call["finish_reason"]),
        (vec!["get_time".to_owned()], &json!("tool_calls"))
    );
    let either = said("Hello");
    let content = either["message"]["content"].as_str();
    let valid =
        content.is_some_and(|text| jsonschema::is_valid(&schema, &serde_json::from_str(text).expect("JSON")));
    assert!(valid || !called(&either["message"]).is_empty(), "{either}");
    let server = Server::start_talking("bare-json", "-", &[]);
    assert_eq!(server.post(CHAT, &asking("x", &format)).json()["error"]["param"], "tools");
}

pub fn in_other_words() {
    let server = Server::start_talking("hermes", "think", &[]);
    let tool = |(name, schema): (&str, Value)| json!({"type": "function", "name": name, "parameters": schema, "strict": true});
    let flat: Value = schemas().into_iter().map(tool).collect();
    for choice in [
        json!("required"),
        json!({"type": "function", "name": "get_weather"}),
        json!({"type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": "get_weather"}]}),
    ] {
        let body = json!({"input": "[[say Hello]]", "tools": flat, "tool_choice": choice, "reasoning": {"effort": "none"}});
        let answer = server.post("/v1/responses", &body).json();
        let call = &answer["output"][0];
        let function =
            json!({"tool_calls": [{"function": {"name": call["name"], "arguments": call["arguments"]}}]});
        assert_eq!((&call["type"], called(&function).len()), (&json!("function_call"), 1), "{answer}");
        assert_eq!(
            (&answer["tool_choice"], &answer["tools"][0]["strict"]),
            (&choice, &json!(true)),
            "{answer}"
        );
    }
    let tool = |(name, schema): (&str, Value)| json!({"name": name, "input_schema": schema, "strict": true});
    let given: Value = schemas().into_iter().map(tool).collect();
    for choice in [
        json!({"type": "any", "disable_parallel_tool_use": true}),
        json!({"type": "tool", "name": "get_weather"}),
    ] {
        let message = json!({"role": "user", "content": "[[say Hello]]"});
        let body = json!({"max_tokens": 500, "messages": [message], "tools": given, "tool_choice": choice});
        let answer = server.post("/v1/messages", &body).json();
        let call = &answer["content"][0];
        let function = json!({"tool_calls": [{"function": {"name": call["name"], "arguments": call["input"].to_string()}}]});
        assert_eq!((&call["type"], called(&function).len()), (&json!("tool_use"), 1), "{answer}");
        assert_eq!(answer["stop_reason"], "tool_use");
    }
}

pub fn kept() {
    let server = Server::start_talking("hermes", "-", &[]);
    let counts = || {
        let count = |name| server.metric(name) as u64;
        ["monomorph:grammars_compiled_total", "monomorph:grammars_found_total"].map(count)
    };
    let said = "<tool_call>\n{\"name\": \"get_weather\", \"arguments\": {\"city\": 5, \"days\": 99}}";
    let asked = |fields: Value| {
        let answer = server.post(CHAT, &asking(said, &fields)).json();
        answer["choices"][0]["message"]["tool_calls"][0]["function"].clone()
    };
    let first = asked(json!({}));
    assert_eq!(counts(), [1, 0]);
    assert_eq!((asked(json!({})), counts()), (first.clone(), [1, 1]));
    // What differs in anything that counts is another one, and so is a schema whose members stand in another
    // order.
    let mut turned = tools();
    turned[0]["function"]["parameters"]["properties"] =
        json!({"days": {"type": "integer"}, "city": {"type": "string", "maxLength": 3}});
    let other = json!({"city": {"type": "string", "maxLength": 3}, "days": {"type": "integer"}});
    asked(json!({"tools": turned}));
    assert_eq!(counts(), [2, 1]);
    turned[0]["function"]["parameters"]["properties"] = other;
    asked(json!({"tools": turned}));
    asked(json!({"tool_choice": "required"}));
    asked(json!({"tool_choice": "required", "parallel_tool_calls": false}));
    let only = json!({"mode": "auto", "tools": [{"type": "function", "function": {"name": "get_weather"}}]});
    asked(json!({"tool_choice": {"type": "allowed_tools", "allowed_tools": only}}));
    asked(json!({"response_format": {"type": "json_object"}}));
    assert_eq!(counts(), [7, 1]);
    // Answers at one time, each from its own clone.
    std::thread::scope(|scope| {
        let all: Vec<_> = (0..6).map(|_| scope.spawn(|| asked(json!({})))).collect();
        for answer in all {
            assert_eq!(answer.join().expect("answered"), first);
        }
    });
    assert_eq!(counts(), [7, 7]);
}

pub fn refusals() {
    let server = Server::start_talking("hermes", "-", &[]);
    let bare = Server::start_talking("bare-json", "think", &[]);
    let of = |schema: &Value, strict: bool| json!([{"type": "function", "function": {"name": "f", "parameters": schema, "strict": strict}}]);
    let bad = json!({"type": "object", "properties": {"a": {"type": "array", "uniqueItems": true}}});
    let name = |name: &str| json!({"type": "function", "function": {"name": name}});
    for (server, fields, param, word) in [
        (
            &server,
            json!({"tools": of(&bad, true)}),
            "tools[0].function.parameters.properties.a.uniqueItems",
            "not supported",
        ),
        (
            &server,
            json!({"tools": of(&json!({"type": "strin"}), true)}),
            "tools[0].function.parameters.type",
            "must be one of",
        ),
        (
            &server,
            json!({"tools": of(&json!({"type": "object", "properties": {"n": {"const": 9_007_199_254_740_993_i64}}}), true)}),
            "tools[0].function.parameters.properties.n.const",
            "2^53",
        ),
        (&server, json!({"tools": [], "tool_choice": "required"}), "tool_choice", "none to call"),
        (&server, json!({"tool_choice": name("nope")}), "tool_choice.function.name", "nope"),
        (&server, json!({"tool_choice": {"type": "custom"}}), "tool_choice.type", "custom"),
        (
            &server,
            json!({"tool_choice": {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": []}}}),
            "tool_choice.allowed_tools.tools",
            "empty",
        ),
        (&server, json!({"tool_choice": "required", "ignore_eos": true}), "ignore_eos", "cannot be combined"),
        (&bare, json!({}), "tools[0].function.parameters", "optional calls"),
    ] {
        let response = server.post(CHAT, &asking("Hi", &fields));
        let error = &response.json()["error"];
        assert_eq!((response.status, error["param"].as_str()), (400, Some(param)), "{fields}: {error}");
        assert!(error["message"].as_str().is_some_and(|it| it.contains(word)), "{fields}: {error}");
    }
    // Schema parts that are not enforced are reported.
    let said = "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": [1, 1]}}\n</tool_call>";
    let response = server.post(CHAT, &asking(said, &json!({"tools": of(&bad, false)})));
    let path = "tools[0].function.parameters.properties.a.uniqueItems";
    assert_eq!(response.header("x-monomorph-not-held"), Some(path));
    assert_eq!(
        response.json()["choices"][0]["message"]["tool_calls"][0]["function"]["arguments"],
        "{\"a\": [1, 1]}"
    );
    let metrics = server.get("/metrics");
    let counted = |line: &&str| {
        line.contains("monomorph:ignored_fields_total") && line.contains("\"tools.parameters\"")
    };
    assert!(metrics.text().lines().any(|line| counted(&line) && line.ends_with(" 1")), "{}", metrics.text());
    let response = server.post(CHAT, &asking("Hi", &json!({})));
    assert_eq!(response.header("x-monomorph-not-held"), None);
}
