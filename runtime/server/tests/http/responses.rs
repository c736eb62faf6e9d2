//! OpenAI's responses, through the server.
//!
//! Planted, and caught by `answers`: numbers of events that stand still. By `conversations`: a response kept
//! that was not to be; the input left out of what the next one goes on from. By `refusals`: paths of items
//! that count those before. By `background`: one that goes on when it is cancelled; one that outgrows what is
//! kept and stays in progress.

use crate::client::Response;
use crate::clock;
use crate::process::Server;
use serde_json::{Value, json};
use std::time::{Duration, Instant};

const RESPONSES: &str = "/v1/responses";
/// Thinks, speaks, calls.
const SAID: &str =
    "<think>\nHm.\n</think>\n\nI look.<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": 1}}</tool_call>";

fn asking(said: &str, fields: &Value) -> Value {
    let mut body = json!({"model": "talk", "input": format!("[[say {said}]]")});
    body.as_object_mut().expect("an object").extend(fields.as_object().expect("an object").clone());
    body
}

fn tool() -> Value {
    json!({"type": "function", "name": "f", "description": "Does f", "parameters": {"type": "object"}, "strict": false})
}

fn ask(server: &Server, body: &Value) -> Value {
    let response = server.post(RESPONSES, body);
    assert_eq!(response.status, 200, "{}", response.text());
    response.json()
}

/// The events of a stream, each with its name and its number.
fn events(response: &Response) -> Vec<Value> {
    assert_eq!(response.status, 200, "{}", response.text());
    let text = response.text().strip_suffix("\n\n").expect("the last event is ended");
    let event = |(number, event): (usize, &str)| {
        let (name, data) = event.split_once('\n').expect("two lines");
        let data: Value = serde_json::from_str(data.strip_prefix("data: ").expect("data")).expect("JSON");
        assert_eq!(name.strip_prefix("event: "), data["type"].as_str(), "{data}");
        assert_eq!(data["sequence_number"], number, "{data}");
        data
    };
    text.split("\n\n").filter(|event| !event.starts_with(": ")).enumerate().map(event).collect()
}

/// The response that events make. Panics where they are not in order, or the deltas are not what is said at
/// the end.
fn accumulate(events: &[Value]) -> Value {
    assert_eq!(
        (&events[0]["type"], &events[1]["type"]),
        (&json!("response.created"), &json!("response.in_progress"))
    );
    assert_eq!(
        (&events[0]["response"]["status"], &events[0]["response"]["output"]),
        (&json!("in_progress"), &json!([]))
    );
    let (last, between) = events[2..].split_last().expect("events");
    let mut done: Vec<Value> = Vec::new();
    let (mut open, mut text) = (Value::Null, String::new());
    for event in between {
        let kind = event["type"].as_str().expect("a type");
        if kind != "response.output_item.added" {
            assert!(!open.is_null() && event["output_index"] == done.len(), "{event}");
        }
        if kind.contains(".delta") || kind.contains("_part.") || kind.contains("text.done") {
            assert_eq!(event["item_id"], open["id"], "{event}");
        }
        match kind {
            "response.output_item.added" => {
                assert!(open.is_null(), "{event}");
                assert_eq!(event["item"]["status"], "in_progress");
                (open, text) = (event["item"].clone(), String::new());
            }
            "response.output_text.delta"
            | "response.reasoning_text.delta"
            | "response.function_call_arguments.delta" => {
                text += event["delta"].as_str().expect("text");
            }
            "response.output_text.done" | "response.reasoning_text.done" => {
                assert_eq!(event["text"], text.as_str())
            }
            "response.function_call_arguments.done" => assert_eq!(event["arguments"], text.as_str()),
            "response.content_part.added" => assert_eq!(event["part"]["text"], ""),
            "response.content_part.done" => assert_eq!(event["part"]["text"], text.as_str()),
            "response.output_item.done" => {
                assert_eq!(event["item"]["id"], open["id"]);
                open = Value::Null;
                done.push(event["item"].clone());
            }
            other => panic!("{other}"),
        }
    }
    let response = last["response"].clone();
    assert_eq!(last["type"], format!("response.{}", response["status"].as_str().expect("a status")));
    let mut output = response["output"].clone();
    if let (Some(last), "incomplete") =
        (output.as_array_mut().and_then(|all| all.last_mut()), response["status"].as_str().expect("one"))
    {
        last["status"] = "completed".into();
    }
    assert_eq!(output, Value::from(done));
    response
}

fn without_ids(mut response: Value) -> Value {
    for name in ["id", "created_at"] {
        assert!(!response[name].take().is_null());
    }
    response["usage"]["input_tokens_details"].take();
    for item in response["output"].as_array_mut().expect("items") {
        assert!(item["id"].take().is_string());
        if item["type"] == "function_call" {
            assert!(item["call_id"].take().is_string());
        }
    }
    response
}

pub fn answers() {
    let server = Server::start_talking("hermes", "think", &["--hold-calls", "off"]);
    for fields in [
        json!({"tools": [tool()]}),
        json!({"tools": [tool()], "max_output_tokens": 30, "metadata": {"a": "b"}, "temperature": 0.5}),
        json!({"tools": [tool()], "tool_choice": "none", "parallel_tool_calls": false, "store": false}),
        json!({"tools": [tool()], "top_logprobs": 2}),
    ] {
        let mut body = asking(SAID, &fields);
        let whole = without_ids(ask(&server, &body));
        body["stream"] = json!(true);
        let streamed = accumulate(&events(&server.post(RESPONSES, &body)));
        assert_eq!(without_ids(streamed), whole);
        for (name, value) in fields.as_object().expect("fields") {
            assert_eq!(&whole[name], value, "what was asked is told");
        }
    }
    let whole = ask(&server, &asking(SAID, &json!({"tools": [tool()]})));
    let output = whole["output"].as_array().expect("items");
    let kinds: Vec<_> = output.iter().map(|item| item["type"].as_str().expect("a type")).collect();
    assert_eq!(kinds, ["reasoning", "message", "function_call"]);
    assert_eq!(output[0]["content"], json!([{"type": "reasoning_text", "text": "Hm."}]));
    assert_eq!(output[1]["content"][0]["text"], "I look.");
    assert_eq!((&output[2]["name"], &output[2]["arguments"]), (&json!("f"), &json!("{\"a\": 1}")));
    assert_eq!((&whole["status"], &whole["object"]), (&json!("completed"), &json!("response")));
    let usage = &whole["usage"];
    assert_eq!(usage["output_tokens"], SAID.len() + 1);
    assert!(usage["output_tokens_details"]["reasoning_tokens"].as_u64() > Some(3), "{usage}");
    let text = |tokens: &Value| -> String {
        tokens.as_array().expect("tokens").iter().filter_map(|token| token["token"].as_str()).collect()
    };
    assert_eq!(output[1]["content"][0]["logprobs"], json!([]), "they were not asked for");
    let mut body = asking(SAID, &json!({"tools": [tool()], "include": ["message.output_text.logprobs"]}));
    let told = ask(&server, &body)["output"][1]["content"][0]["logprobs"].clone();
    assert_eq!((text(&told).as_str(), &told[0]["top_logprobs"]), ("I look.", &json!([])));
    body["top_logprobs"] = json!(3);
    body["stream"] = json!(true);
    let streamed = events(&server.post(RESPONSES, &body));
    let of = |kind: &str| streamed.iter().filter(|event| event["type"] == kind).collect::<Vec<_>>();
    let deltas: String =
        of("response.output_text.delta").iter().map(|event| text(&event["logprobs"])).collect();
    let done = &of("response.output_text.done")[0]["logprobs"];
    assert_eq!((deltas.as_str(), text(done).as_str()), ("I look.", "I look."));
    assert_eq!(done[0]["top_logprobs"].as_array().map(Vec::len), Some(3), "{done}");
    let cut = ask(&server, &asking("Once upon", &json!({"max_output_tokens": 4})));
    assert_eq!(
        (&cut["status"], &cut["incomplete_details"]["reason"]),
        (&json!("incomplete"), &json!("max_output_tokens"))
    );
    assert_eq!(
        (&cut["output"][0]["status"], &cut["output"][0]["content"][0]["text"]),
        (&json!("incomplete"), &json!("Once"))
    );
    // A stream that breaks off.
    let server = Server::start_talking("-", "-", &["--request-timeout", "1"]);
    let body = json!({"input": "[[forever]]", "stream": true});
    let events = events(&server.post(RESPONSES, &body));
    let last = events.last().expect("events");
    assert_eq!(
        (&last["type"], &last["response"]["status"]),
        (&json!("response.failed"), &json!("failed")),
        "{last}"
    );
    assert!(last["response"]["error"]["message"].as_str().is_some_and(|it| it.contains("limit")), "{last}");
}

pub fn conversations() {
    let server = Server::start_talking("hermes", "think", &["--hold-calls", "off"]);
    let first = ask(&server, &asking(SAID, &json!({"tools": [tool()], "instructions": "Be brief."})));
    let (id, call) = (&first["id"], &first["output"][2]["call_id"]);
    let result = json!({"type": "function_call_output", "call_id": call, "output": "[[say Rain.]]"});
    let body = json!({"input": [result], "previous_response_id": id, "tools": [tool()]});
    let second = ask(&server, &body);
    assert_eq!(second["output"][0]["content"][0]["text"], "Rain.", "{second}");
    assert_eq!(&second["previous_response_id"], id);
    // The same as all items said anew; and a third goes on from both.
    let mut items = vec![json!({"role": "user", "content": format!("[[say {SAID}]]")})];
    items.extend(first["output"].as_array().expect("items").clone());
    items.push(result.clone());
    let anew = ask(&server, &json!({"input": items, "tools": [tool()], "store": false}));
    assert_eq!(anew["usage"]["input_tokens"], second["usage"]["input_tokens"]);
    let third = ask(
        &server,
        &json!({"input": "[[say Sun.]]", "previous_response_id": second["id"], "stream": false}),
    );
    assert_eq!(third["output"][0]["content"][0]["text"], "Sun.");
    // What the chat's words make of it is the same prompt.
    let chat = json!({"tools": [{"type": "function", "function": {"name": "f", "description": "Does f", "parameters": {"type": "object"}}}], "messages": [
        {"role": "user", "content": format!("[[say {SAID}]]")},
        {"role": "assistant", "content": "I look.", "reasoning_content": "Hm.", "tool_calls": [
            {"id": call, "type": "function", "function": {"name": "f", "arguments": "{\"a\": 1}"}}]},
        {"role": "tool", "tool_call_id": call, "content": "[[say Rain.]]"},
    ]});
    let chat = server.post("/v1/chat/completions", &chat).json();
    assert_eq!(chat["usage"]["prompt_tokens"], second["usage"]["input_tokens"]);

    let path = |id: &Value, rest: &str| format!("{RESPONSES}/{}{rest}", id.as_str().expect("an id"));
    assert_eq!(server.get(&path(id, "")).json(), first);
    let listed = server.get(&path(&second["id"], "/input_items")).json();
    assert_eq!(
        (&listed["object"], &listed["data"][0]["output"], &listed["has_more"]),
        (&json!("list"), &json!("[[say Rain.]]"), &json!(false))
    );
    assert_eq!(listed["first_id"], listed["data"][0]["id"]);
    let many: Vec<Value> = ["a", "b", "c"].map(|text| json!({"role": "user", "content": text})).to_vec();
    let many = ask(&server, &json!({"input": many}));
    let texts = |query: &str| -> Vec<Value> {
        let list = server.get(&path(&many["id"], &format!("/input_items{query}"))).json();
        list["data"]
            .as_array()
            .unwrap_or_else(|| panic!("{list}"))
            .iter()
            .map(|item| item["content"].clone())
            .collect()
    };
    assert_eq!(
        (texts(""), texts("?order=asc&limit=2")),
        (vec![json!("c"), json!("b"), json!("a")], vec![json!("a"), json!("b")])
    );
    let all = server.get(&path(&many["id"], "/input_items?order=asc")).json();
    let after = all["first_id"].as_str().expect("an id");
    assert_eq!(texts(&format!("?order=asc&after={after}")), [json!("b"), json!("c")]);

    let cancelled = server.post(&path(id, "/cancel"), &json!({}));
    assert_eq!((cancelled.status, &cancelled.json()["error"]["code"]), (400, &json!("not_in_background")));
    let delete = |id: &Value| server.connect().request("DELETE", &path(id, ""), &[], b"");
    assert_eq!(delete(id).json(), json!({"id": id, "object": "response", "deleted": true}));
    for response in [
        delete(id),
        server.get(&path(id, "")),
        server.get(&path(id, "/input_items")),
        server.post(&path(id, "/cancel"), &json!({})),
    ] {
        assert_eq!((response.status, &response.json()["error"]["code"]), (404, &json!("response_not_found")));
    }
    // What was not to be kept is not.
    assert_eq!(server.get(&path(&anew["id"], "")).status, 404);
    let gone = server.post(RESPONSES, &json!({"input": "Hi", "previous_response_id": id}));
    assert_eq!((gone.status, &gone.json()["error"]["param"]), (400, &json!("previous_response_id")));
    // The second holds all that it goes on from.
    assert_eq!(
        ask(&server, &json!({"input": "[[say On.]]", "previous_response_id": second["id"]}))["status"],
        "completed"
    );
    // Without room nothing is kept, and all is answered.
    let server = Server::start_talking("-", "-", &["--response-store", "0"]);
    let answered = ask(&server, &asking("Hi", &json!({})));
    assert_eq!(answered["output"][0]["content"][0]["text"], "Hi");
    assert_eq!(server.get(&path(&answered["id"], "")).status, 404);
}

/// Responses that nobody waits for are had and ended by their ids.
pub fn background() {
    let server = Server::start_talking("-", "-", &[]);
    let path = |id: &Value, rest: &str| format!("{RESPONSES}/{}{rest}", id.as_str().expect("an id"));
    let begin = |server: &Server, said: &str| {
        let begun = ask(server, &json!({"input": said, "background": true}));
        let found = (&begun["status"], &begun["background"], &begun["output"]);
        assert_eq!(found, (&json!("in_progress"), &json!(true), &json!([])), "{begun}");
        begun["id"].clone()
    };
    let over = |server: &Server, id: &Value| {
        let began = Instant::now();
        loop {
            let response = server.get(&path(id, "")).json();
            if response["status"] != "in_progress" {
                return response;
            }
            assert!(clock::since(began) < Duration::from_secs(30), "it does not end: {response}");
            std::thread::sleep(Duration::from_millis(20));
        }
    };
    let id = begin(&server, "[[slowly Once upon a time]]");
    assert_eq!(server.get(&path(&id, "")).json()["status"], "in_progress", "it is told at once");
    let whole = over(&server, &id);
    assert_eq!(whole["output"][0]["content"][0]["text"], "Once upon a time", "{whole}");
    assert_eq!(whole["status"], "completed");
    // Over, it stays as it is, and can be gone on from.
    assert_eq!(server.post(&path(&id, "/cancel"), &json!({})).json(), whole);
    let next = ask(&server, &json!({"input": "[[say On.]]", "previous_response_id": id}));
    assert_eq!(next["output"][0]["content"][0]["text"], "On.");

    let endless = begin(&server, "[[forever]]");
    server.wait_for("it to run", |stats| stats["running"] == 1);
    let early = server.post(RESPONSES, &json!({"input": "Hi", "previous_response_id": endless}));
    assert_eq!((early.status, &early.json()["error"]["param"]), (400, &json!("previous_response_id")));
    let cancelled = server.post(&path(&endless, "/cancel"), &json!({}));
    assert_eq!((cancelled.status, &cancelled.json()["status"]), (200, &json!("cancelled")));
    server.wait_for("it to end", |stats| stats["running"] == 0 && stats["cancelled"] == 1);
    assert_eq!(over(&server, &endless)["status"], "cancelled");
    // So does who deletes one.
    let deleted = begin(&server, "[[forever]]");
    assert_eq!(server.connect().request("DELETE", &path(&deleted, ""), &[], b"").status, 200);
    server.wait_for("it to end", |stats| stats["running"] == 0 && stats["cancelled"] == 2);
    assert_eq!(server.get(&path(&deleted, "")).status, 404);

    let limited = Server::start_talking("-", "-", &["--request-timeout", "1"]);
    let failed = over(&limited, &begin(&limited, "[[forever]]"));
    assert_eq!(failed["status"], "failed");
    assert!(failed["error"]["message"].as_str().is_some_and(|it| it.contains("limit")), "{failed}");
    // What is larger than all that is kept is refused before it begins, or fails when that is known.
    let small = Server::start_talking("-", "-", &["--response-store", "1"]);
    let filled = |kib: usize| json!({"a": "x".repeat(kib << 10)});
    let large = json!({"input": "[[forever]]", "background": true, "metadata": filled(1024)});
    let refused = small.post(RESPONSES, &large);
    assert_eq!((refused.status, &refused.json()["error"]["param"]), (400, &json!("background")));
    small.wait_for("it to end", |stats| stats["running"] == 0 && stats["cancelled"] == 1);
    let grown =
        json!({"input": "[[forever]]", "background": true, "top_logprobs": 20, "max_output_tokens": 700});
    let failed = over(&small, &ask(&small, &grown)["id"]);
    assert_eq!((&failed["status"], &failed["output"]), (&json!("failed"), &json!([])), "{failed}");
    assert_eq!(failed["error"]["code"], "response_too_large");
    // One that was given up for a newer one is still ended by who deletes it.
    let older = json!({"input": "[[forever]]", "background": true, "metadata": filled(600)});
    let older = ask(&small, &older)["id"].clone();
    ask(&small, &json!({"input": "Hi", "metadata": filled(600)}));
    assert_eq!(small.get(&path(&older, "")).status, 404);
    assert_eq!(small.connect().request("DELETE", &path(&older, ""), &[], b"").status, 200);
    small.wait_for("it to end", |stats| stats["running"] == 0 && stats["cancelled"] == 2);
    let keeps_none = Server::start_talking("-", "-", &["--response-store", "0"]);
    let refused = keeps_none.post(RESPONSES, &json!({"input": "Hi", "background": true}));
    assert_eq!((refused.status, &refused.json()["error"]["param"]), (400, &json!("background")));
}

pub fn refusals() {
    let server = Server::start_talking("hermes", "think", &[]);
    let item = |item: Value| json!({"input": [item]});
    for (fields, param, word) in [
        (json!({"input": null}), "input", "required"),
        (json!({"input": []}), "input", "empty"),
        (json!({"input": 5}), "input", "number 5"),
        (item(json!(5)), "input[0]", "object"),
        (item(json!({"type": "item_reference"})), "input[0]", "item_reference"),
        (item(json!({"role": "king", "content": "x"})), "input[0].role", "king"),
        (item(json!({"role": "user"})), "input[0].content", "required"),
        (
            item(json!({"role": "user", "content": [{"type": "input_image"}]})),
            "input[0].content[0]",
            "images, for which a model has to be built with `--vision on`",
        ),
        (
            item(json!({"type": "function_call_output", "call_id": "x", "output": "y"})),
            "input[0].call_id",
            "\"x\"",
        ),
        (item(json!({"role": "user", "content": "x", "colour": 1})), "input[0].colour", "not a field"),
        (json!({"max_output_tokens": 0}), "max_output_tokens", "at least 1"),
        (json!({"max_output_tokens": 100_000}), "max_output_tokens", "8192"),
        (json!({"temperature": 3}), "temperature", "temperature"),
        (json!({"tools": [{"type": "web_search"}]}), "tools[0].type", "web_search"),
        (
            json!({"tools": [{"type": "function", "name": "f", "strict": true, "parameters": {"not": {}}}]}),
            "tools[0].parameters.not",
            "not supported",
        ),
        (json!({"tool_choice": "required"}), "tool_choice", "none to call"),
        (json!({"reasoning": {"effort": "huge"}}), "reasoning.effort", "huge"),
        (json!({"reasoning": {"summary": "detailed"}}), "reasoning.summary", "summary"),
        (json!({"background": true, "store": false}), "background", "contradicts `store: false`"),
        (json!({"truncation": "middle"}), "truncation", "auto or disabled"),
        (
            json!({"text": {"format": {"type": "json_object"}, "verbosity": "low"}}),
            "text.verbosity",
            "not supported",
        ),
        (json!({"include": ["web_search_call.results"]}), "include", "not supported"),
        (json!({"previous_response_id": "resp_x"}), "previous_response_id", "resp_x"),
        (json!({"colour": 1}), "colour", "not a field"),
    ] {
        let response = server.post(RESPONSES, &asking("Hi", &fields));
        let error = &response.json()["error"];
        assert_eq!((response.status, error["param"].as_str()), (400, Some(param)), "{fields}: {error}");
        assert!(error["message"].as_str().is_some_and(|it| it.contains(word)), "{fields}: {error}");
    }
    // Items that come behind others have the numbers that their author gave them.
    let first = ask(&server, &asking("Hi", &json!({})));
    let bad = json!({"input": [{"role": "king", "content": "x"}], "previous_response_id": first["id"]});
    assert_eq!(server.post(RESPONSES, &bad).json()["error"]["param"], "input[0].role");
    let query = format!("{RESPONSES}/{}?stream=true", first["id"].as_str().expect("an id"));
    assert_eq!(server.get(&query).json()["error"]["param"], "stream");
}
