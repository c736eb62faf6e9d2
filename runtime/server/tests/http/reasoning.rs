//! Reasoning, through the server.
//!
//! Planted, and caught by `apart`: log-probabilities of the reasoning among those of the text; tokens of the
//! closing tag not counted. By `switches`: the server's own switch forgotten; an effort passed over and not
//! named. A prompt taken to end within the reasoning because it quotes the tag was seen by `anthropic.rs`
//! alone.

use crate::deltas::accumulate;
use crate::process::Server;
use serde_json::{Value, json};

const CHAT: &str = "/v1/chat/completions";

fn saying(said: &str, fields: &Value) -> Value {
    let mut body = json!({"messages": [{"role": "user", "content": format!("[[say {said}]]")}]});
    body.as_object_mut().expect("an object").extend(fields.as_object().expect("an object").clone());
    body
}

pub fn apart() {
    let server = Server::start_talking("-", "think", &[]);
    let said = "<think>\nHm, héé.\n</think>\n\nYes, <think> is a tag.";
    let whole = server.post(CHAT, &saying(said, &json!({"logprobs": true}))).json();
    let choice = &whole["choices"][0];
    assert_eq!(choice["message"]["reasoning_content"], "Hm, héé.", "{whole}");
    assert_eq!(choice["message"]["content"], "Yes, <think> is a tag.");
    // A token is a byte; the last of the tag that opens is the first that is known to be reasoning.
    let tokens = "\nHm, héé.\n</think>".len() + 1;
    let usage = &whole["usage"];
    assert_eq!(usage["completion_tokens_details"], json!({"reasoning_tokens": tokens}));
    assert_eq!(usage["completion_tokens"], said.len() + 1);
    // Log-probabilities are those of the text.
    let told = choice["logprobs"]["content"].as_array().expect("tokens");
    let text: String = told.iter().filter_map(|token| token["token"].as_str()).collect();
    assert_eq!(text, "Yes, <think> is a tag.");
    let body =
        saying(said, &json!({"stream": true, "stream_options": {"include_usage": true}, "logprobs": true}));
    let events = server.post(CHAT, &body).events();
    let (usage, pieces) = events.split_last().expect("events");
    assert_eq!(usage["usage"]["completion_tokens_details"]["reasoning_tokens"], tokens);
    assert_eq!(accumulate(pieces, 0).0, choice["message"]);
    let streamed: Vec<Value> = pieces
        .iter()
        .filter_map(|event| event["choices"][0]["logprobs"]["content"].as_array())
        .flatten()
        .cloned()
        .collect();
    assert_eq!(&streamed, told);
    // Cut off within it: there is no text.
    let cut = server.post(CHAT, &saying(said, &json!({"max_tokens": 12}))).json();
    let message = &cut["choices"][0]["message"];
    assert_eq!((&message["content"], &message["reasoning_content"]), (&json!(""), &json!("Hm, ")));
    // A prompt that ends within it.
    let opened =
        server.post(CHAT, &saying("So.\n</think>\n\nYes.", &json!({"reasoning_effort": "low"}))).json();
    let message = &opened["choices"][0]["message"];
    assert_eq!((&message["content"], &message["reasoning_content"]), (&json!("Yes."), &json!("So.")));
    // A question about the tag opens nothing.
    let asked = server.post(CHAT, &saying("What is <think>", &json!({}))).json();
    assert_eq!(asked["choices"][0]["message"]["content"], "What is <think>");
    // Text completions are what the model writes.
    let prompt: Vec<u8> = b"[[say <think>a</think>b]]".to_vec();
    let text = server.post("/v1/completions", &json!({"prompt": prompt, "max_tokens": 99})).json();
    assert_eq!(text["choices"][0]["text"], "<think>a</think>b");
}

pub fn budgets() {
    // What the model says goes on where it was interrupted: the token that closes took the place of one of
    // its own.
    let said = "0123456789";
    let on = |fields: Value| {
        let mut fields = fields;
        fields["chat_template_kwargs"] = json!({"enable_thinking": true});
        saying(said, &fields)
    };
    let apart = |server: &Server, body: &Value| {
        let answer = server.post(CHAT, body);
        assert_eq!(answer.status, 200, "{}", answer.text());
        let choice = answer.json()["choices"][0].clone();
        let [reasoning, content] = ["reasoning_content", "content"]
            .map(|name| choice["message"][name].as_str().unwrap_or_default().to_owned());
        (reasoning, content, choice["finish_reason"].clone())
    };
    let parts = |reasoning: &str, content: &str, reason: &str| {
        (reasoning.to_owned(), content.to_owned(), json!(reason))
    };
    let server = Server::start_talking("-", "think", &[]);
    assert_eq!(apart(&server, &on(json!({}))), parts(said, "", "stop"), "without a budget");
    assert_eq!(apart(&server, &on(json!({"thinking_token_budget": 4}))), parts("0123", "56789", "stop"));
    assert_eq!(apart(&server, &on(json!({"thinking_token_budget": 0}))), parts("", "123456789", "stop"));
    // Reasoning that ends before is left alone, and so is an answer without any.
    let short = saying("01</think>2", &json!({"thinking_token_budget": 40, "reasoning_effort": "low"}));
    assert_eq!(apart(&server, &short), parts("01", "2", "stop"));
    let none = saying(said, &json!({"thinking_token_budget": 1}));
    assert_eq!(apart(&server, &none), parts("", said, "stop"));
    // A tenth is left for the answer.
    let tight = on(json!({"thinking_token_budget": 99, "max_tokens": 5}));
    assert_eq!(apart(&server, &tight), parts("0123", "", "length"));
    let events = server.post(CHAT, &on(json!({"thinking_token_budget": 4, "stream": true}))).events();
    let message = accumulate(&events, 0).0;
    assert_eq!((&message["reasoning_content"], &message["content"]), (&json!("0123"), &json!("56789")));
    // In Anthropic's words.
    let body = saying(
        said,
        &json!({"max_tokens": 99, "thinking": {"type": "enabled", "budget_tokens": 3}, "stream": false}),
    );
    let message = server.post("/v1/messages", &body).json();
    assert_eq!(message["content"][0]["thinking"], "012", "{message}");
    assert_eq!(message["content"][1]["text"], "456789", "{message}");
    // The server's own.
    let flags = ["--reasoning-budget", "2", "--max-reasoning-budget", "5"];
    let server = Server::start_talking("-", "think", &flags);
    assert_eq!(apart(&server, &on(json!({}))), parts("01", "3456789", "stop"));
    assert_eq!(apart(&server, &on(json!({"thinking_token_budget": 9}))), parts("01234", "6789", "stop"));
    assert_eq!(apart(&server, &on(json!({"ignore_eos": true, "max_tokens": 9}))).0, "012345678");
    // Where it would mean nothing.
    let param = |server: &Server, fields: Value| {
        let answer = server.post(CHAT, &saying(said, &fields));
        assert_eq!(answer.status, 400, "{}", answer.text());
        answer.json()["error"]["param"].clone()
    };
    let budget = json!({"thinking_token_budget": 4});
    assert_eq!(
        param(&server, json!({"thinking_token_budget": 4, "ignore_eos": true})),
        "thinking_token_budget"
    );
    assert_eq!(param(&Server::start_talking("-", "-", &[]), budget.clone()), "thinking_token_budget");
    let off = Server::start_talking("-", "think", &["--reasoning", "off"]);
    assert_eq!(param(&off, budget), "thinking_token_budget");
}

/// What the model is fed behind the question.
fn ending(server: &Server, fields: &Value) -> Result<String, Value> {
    let mut body = json!({"messages": [{"role": "user", "content": "Hi"}], "return_token_strs": true});
    body.as_object_mut().expect("an object").extend(fields.as_object().expect("an object").clone());
    let response = server.post("/tokenize", &body);
    let answer = response.json();
    let Some(texts) = answer["token_strs"].as_array() else { return Err(answer["error"]["param"].clone()) };
    let prompt: String = texts.iter().filter_map(Value::as_str).collect();
    Ok(prompt.split_once("assistant\n").expect("an answer begins").1.to_owned())
}

/// Flags say in what forms a model writes, whatever its build says.
pub fn forms() {
    let said = "<think>\nHm.\n</think>\n\nYes.";
    let message = |server: &Server| {
        let answer = server.post(CHAT, &saying(said, &json!({}))).json();
        answer["choices"][0]["message"].clone()
    };
    let named = |server: &Server| {
        let engine = server.get("/info").json()["engine"].clone();
        [engine["tools"].clone(), engine["reasoning"].clone()]
    };
    let given = Server::start_talking("-", "-", &["--reasoning-format", "think", "--tool-format", "hermes"]);
    assert_eq!(named(&given), [json!("hermes"), json!("think")]);
    let told = message(&given);
    assert_eq!((&told["reasoning_content"], &told["content"]), (&json!("Hm."), &json!("Yes.")));
    let taken =
        Server::start_talking("hermes", "think", &["--reasoning-parser", "none", "--tool-format", "none"]);
    assert_eq!(named(&taken), [Value::Null, Value::Null]);
    assert_eq!(message(&taken)["content"], said);

    let directory = tempfile::tempdir().expect("a temporary directory");
    let path = directory.path().join("own.jinja");
    let path = path.to_str().expect("UTF-8");
    let written = "{% for message in messages %}{{ message['content'] }}{% endfor %}|";
    std::fs::write(path, written).expect("written");
    let server = Server::start_talking("-", "-", &["--chat-template", path]);
    let body = json!({"messages": [{"role": "user", "content": "Hi"}]});
    let tokens = server.post("/tokenize", &body).json()["tokens"].clone();
    let text = server.post("/detokenize", &json!({ "tokens": tokens })).json()["prompt"].clone();
    assert_eq!(text, "Hi|");
}

pub fn switches() {
    let (open, closed) = ("<think>\n", "<think>\n\n</think>\n\n");
    let on = |effort: &str| Ok(format!("{{effort {effort}}}\n{open}"));
    let off = Ok(format!("{{effort none}}\n{closed}"));
    let kwargs = |on: bool| json!({"chat_template_kwargs": {"enable_thinking": on}});
    let server = Server::start_talking("-", "think", &[]);
    assert_eq!(ending(&server, &json!({})), Ok(String::new()), "the model's own way");
    assert_eq!(ending(&server, &json!({"reasoning_effort": "none"})), off);
    assert_eq!(ending(&server, &json!({"reasoning_effort": "high"})), on("high"));
    assert_eq!(ending(&server, &kwargs(true)), Ok(open.to_owned()));
    assert_eq!(ending(&server, &kwargs(false)), off);
    let server = Server::start_talking("-", "think", &["--reasoning", "off"]);
    for fields in [json!({}), json!({"reasoning_effort": "none"}), kwargs(false)] {
        assert_eq!(ending(&server, &fields), off, "{fields}");
    }
    assert_eq!(ending(&server, &json!({"reasoning_effort": "low"})), Err(json!("reasoning_effort")));
    assert_eq!(ending(&server, &kwargs(true)), Err(json!("chat_template_kwargs.enable_thinking")));
    // What a request says of it is passed over, and named.
    let server = Server::start_talking("-", "think", &["--reasoning", "forced-off"]);
    for fields in [json!({}), json!({"reasoning_effort": "low"}), kwargs(true), kwargs(false)] {
        assert_eq!(ending(&server, &fields), off, "{fields}");
    }
    for (fields, named) in [
        (json!({"reasoning_effort": "low"}), Some("reasoning_effort")),
        (json!({"thinking_token_budget": 9}), Some("thinking_token_budget")),
        (kwargs(true), Some("chat_template_kwargs.enable_thinking")),
        (kwargs(false), None),
    ] {
        let answer = server.post(CHAT, &saying("Yes.", &fields));
        assert_eq!(answer.status, 200, "{}", answer.text());
        assert_eq!(answer.json()["choices"][0]["message"]["content"], "Yes.", "{fields}");
        assert_eq!(answer.header("x-monomorph-ignored"), named, "{fields}");
    }
    // In the words of the other APIs, and where nothing is answered.
    let messages = json!([{"role": "user", "content": "[[say Yes.]]"}]);
    let thinking = json!({"type": "enabled", "budget_tokens": 100});
    for (path, body, named) in [
        (
            "/v1/messages",
            json!({"messages": messages, "max_tokens": 200, "thinking": thinking}),
            Some("thinking, thinking.budget_tokens"),
        ),
        (
            "/v1/responses",
            json!({"input": "[[say Yes.]]", "reasoning": {"effort": "high"}}),
            Some("reasoning.effort"),
        ),
        ("/v1/messages/count_tokens", json!({"messages": messages, "thinking": thinking}), None),
        ("/v1/chat/completions/render", json!({"messages": messages, "reasoning_effort": "high"}), None),
        ("/tokenize", json!({"messages": messages, "reasoning_effort": "high"}), None),
    ] {
        let answer = server.post(path, &body);
        assert_eq!((answer.status, answer.header("x-monomorph-ignored")), (200, named), "{}", answer.text());
    }
    // A model that marks none.
    let server = Server::start_talking("-", "-", &[]);
    assert_eq!(ending(&server, &json!({"reasoning_effort": "none"})), Ok(String::new()));
    assert_eq!(ending(&server, &json!({"reasoning_effort": "low"})), Err(json!("reasoning_effort")));
}
