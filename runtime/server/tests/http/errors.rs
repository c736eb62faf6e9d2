//! One table of requests that are refused: each with its status, the field at fault, and what the message
//! says of what is wrong, where and what would be right.

use crate::client::Response;
use crate::process::Server;
use serde_json::{Value, json};

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

fn tool(name: &str) -> Value {
    json!({"type": "function", "function": {"name": name, "parameters": {"type": "object"}}})
}

/// A line of the table.
type Refusal = (&'static str, Value, u16, Option<&'static str>, Vec<&'static str>);

/// Path, fields put into a request that would be answered, status, field at fault, and words of the message.
fn table() -> Vec<Refusal> {
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
        // Numbers say their range, and are told as they were written.
        (CHAT, json!({"temperature": 1e308}), 400, Some("temperature"), vec!["from 0 to 2", "1e+308"]),
        (CHAT, json!({"temperature": -1e308}), 400, Some("temperature"), vec!["from 0 to 2", "-1e+308"]),
        (RESPONSES, json!({"temperature": 2.5}), 400, Some("temperature"), vec!["from 0 to 2", "2.5"]),
        (MESSAGES, json!({"temperature": 1e39}), 400, None, vec!["`temperature`", "from 0 to 2", "1e+39"]),
        (CHAT, json!({"top_p": 0}), 400, Some("top_p"), vec!["above 0 and at most 1", "is 0"]),
        (TEXT, json!({"min_p": 1e308}), 400, Some("min_p"), vec!["from 0 to 1", "1e+308"]),
        (TEXT, json!({"presence_penalty": -3}), 400, Some("presence_penalty"), vec!["from -2 to 2", "-3"]),
        (
            TEXT,
            json!({"repetition_penalty": 1e300}),
            400,
            Some("repetition_penalty"),
            vec!["above 0 and at most 3.4e38", "1e+300"],
        ),
        (TEXT, json!({"top_n_sigma": -2}), 400, Some("top_n_sigma"), vec!["at least 0", "-2"]),
        (TEXT, json!({"dry_base": 0.5}), 400, Some("dry_base"), vec!["from 1 to 100", "0.5"]),
        (
            TEXT,
            json!({"dry_multiplier": 1e308}),
            400,
            Some("dry_multiplier"),
            vec!["from 0 to 100", "1e+308"],
        ),
        (CHAT, json!({"top_k": 1e308}), 400, Some("top_k"), vec!["between -1 and 4294967295"]),
        (CHAT, json!({"n": 1e308}), 400, Some("n"), vec!["between 1 and 128"]),
        (TEXT, json!({"n": 129}), 400, Some("n"), vec!["between 1 and 128", "129"]),
        (TEXT, json!({"prompt": ["a", "b"], "n": 100}), 400, Some("n"), vec!["2 prompts", "200", "128"]),
        (CHAT, json!({"seed": 1e308}), 400, Some("seed"), vec!["fit 64 bits"]),
        (CHAT, json!({"logit_bias": {"1": 1e308}}), 400, Some("logit_bias.1"), vec!["-100 to 100", "1e+308"]),
        (
            CHAT,
            json!({"logit_bias": {"x": 1}}),
            400,
            Some("logit_bias.x"),
            vec!["\"x\" is not a token id below"],
        ),
        // Words say which there are, and what is not there is required: nobody is told of `Some` and `None`.
        (
            MESSAGES,
            json!({"messages": [{"content": "Hi"}]}),
            400,
            None,
            vec!["`messages[0].role` is required: user, assistant or system"],
        ),
        (
            MESSAGES,
            json!({"messages": [{"role": "king", "content": "Hi"}]}),
            400,
            None,
            vec!["`messages[0].role` must be user, assistant or system, and is \"king\""],
        ),
        (
            MESSAGES,
            json!({"tools": [{"name": "f", "input_schema": {"type": "object"}}], "tool_choice": {"type": "maybe"}}),
            400,
            None,
            vec!["`tool_choice.type` must be auto, any, tool or none, and is \"maybe\""],
        ),
        (
            MESSAGES,
            json!({"thinking": {"type": "much"}}),
            400,
            None,
            vec!["must be enabled, adaptive or disabled, and is \"much\""],
        ),
        (MESSAGES, json!({"thinking": {}}), 400, None, vec!["`thinking.type` is required"]),
        (
            CHAT,
            json!({"tools": [tool("f")], "tool_choice": {}}),
            400,
            Some("tool_choice.type"),
            vec!["is required: function or allowed_tools"],
        ),
        (
            CHAT,
            json!({"tools": [tool("f")], "tool_choice": {"type": "x"}}),
            400,
            Some("tool_choice.type"),
            vec!["must be function or allowed_tools, and is \"x\""],
        ),
        (RESPONSES, json!({"tools": [{"name": "f"}]}), 400, Some("tools[0].type"), vec!["required"]),
        (
            RESPONSES,
            json!({"input": [{"role": "king", "content": "x"}]}),
            400,
            Some("input[0].role"),
            vec!["must be system, developer, user or assistant", "\"king\""],
        ),
        (
            CHAT,
            json!({"reasoning_effort": "huge"}),
            400,
            Some("reasoning_effort"),
            vec!["none, minimal, low", "or xhigh", "\"huge\""],
        ),
        (
            CHAT,
            json!({"response_format": {"type": "xml"}}),
            400,
            Some("response_format.type"),
            vec!["text, json_object or json_schema"],
        ),
        // Names with a slip in them are guessed.
        (
            CHAT,
            json!({"temprature": 1}),
            400,
            Some("temprature"),
            vec!["not a field", "did you mean `temperature`?"],
        ),
        (TEXT, json!({"max_token": 1}), 400, Some("max_token"), vec!["did you mean `max_tokens`?"]),
        (
            RESPONSES,
            json!({"instruction": "x"}),
            400,
            Some("instruction"),
            vec!["did you mean `instructions`?"],
        ),
        (MESSAGES, json!({"stop_sequence": ["x"]}), 400, None, vec!["did you mean `stop_sequences`?"]),
        (COUNT, json!({"sistem": "x"}), 400, None, vec!["did you mean `system`?"]),
        (
            CHAT,
            json!({"messages": [{"role": "user", "contnet": "Hi"}]}),
            400,
            Some("messages[0].content"),
            vec!["required"],
        ),
        // Pictures and files are refused, and not repeated.
        (
            CHAT,
            json!({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": format!("data:image/png;base64,{wide}")}}]}]}),
            400,
            Some("messages[0].content[0]"),
            vec!["\"image_url\"", "not supported yet"],
        ),
        (
            RESPONSES,
            json!({"input": [{"role": "user", "content": [{"type": "input_image", "image_url": format!("data:;base64,{wide}")}]}]}),
            400,
            Some("input[0].content[0]"),
            vec!["\"input_image\"", "not supported yet"],
        ),
        (
            MESSAGES,
            json!({"messages": [{"role": "user", "content": [{"type": "image", "source": {"type": "base64", "data": wide}}]}]}),
            400,
            None,
            vec!["messages[0].content[0]", "\"image\"", "not supported yet"],
        ),
        // What is long is told by its ends.
        (
            CHAT,
            json!({wide.clone(): 1}),
            400,
            Some("..."),
            vec!["characters]", "is not a field this server knows"],
        ),
        (CHAT, json!({"model": wide}), 404, Some("model"), vec!["characters]", "this server has \"talk\""]),
        (CHAT, json!({"tool_choice": wide}), 400, Some("tool_choice"), vec!["characters]"]),
        // Other routes.
        ("/tokenize", json!({"messages": []}), 400, Some("prompt"), vec!["not both"]),
        (
            "/tokenize",
            json!({"prompt": null}),
            400,
            Some("prompt"),
            vec!["`prompt` or `messages`", "required"],
        ),
        ("/detokenize", json!({"tokens": [1, -1]}), 400, Some("tokens[1]"), vec!["between 0 and", "-1"]),
        ("/detokenize", json!({"tokens": "a"}), 400, Some("tokens"), vec!["an array of ids", "a string"]),
        (
            RESPONSES,
            json!({"previous_response_id": "resp_1"}),
            400,
            Some("previous_response_id"),
            vec!["\"resp_1\"", "kept here"],
        ),
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
    let table = table();
    for (path, fields, status, param, words) in &table {
        let mut asked = body(path);
        let given = fields.as_object().expect("an object").clone();
        asked.as_object_mut().expect("an object").extend(given);
        let mut what = fields.to_string();
        what.truncate(200);
        check(&what, path, &server.post(path, &asked), *status, *param, words);
    }
    // What cannot be read in a chat's template is of the field that has it.
    for (path, asked, param) in [
        (
            CHAT,
            json!({"messages": [{"role": "user", "content": "a"}, {"role": "system", "content": "b"}]}),
            Some("messages"),
        ),
        (
            "/tokenize",
            json!({"messages": [{"role": "user", "content": "a"}, {"role": "system", "content": "b"}]}),
            Some("messages"),
        ),
    ] {
        check(
            "template",
            path,
            &server.post(path, &asked),
            400,
            param,
            &["must be at the beginning", "`messages`"],
        );
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
    println!("{} requests refused", table.len());
    assert_eq!(server.post(CHAT, &body(CHAT)).status, 200);
}
