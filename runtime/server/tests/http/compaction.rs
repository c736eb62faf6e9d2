//! Conversations that are longer than the context.

use crate::client::Response;
use crate::process::Server;
use serde_json::{Value, json};

const CHAT: &str = "/v1/chat/completions";
const ON: &str = "--context-compaction";
const HEADER: &str = "x-monomorph-compacted";
/// The context of a server that is asked much; a token is a byte.
const CONTEXT: usize = 2048;

/// xorshift64 (Marsaglia 2003).
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 24) % bound
    }

    fn text(&mut self, most: u64) -> String {
        "lorem ipsum ".chars().cycle().take(1 + self.below(most) as usize).collect()
    }
}

/// A conversation of calls with their results, longer than the context, that ends with words of the user or
/// with results.
fn conversation(random: &mut Random) -> Vec<Value> {
    let mut messages = vec![json!({"role": "system", "content": "Be brief."})];
    let (mut bytes, mut calls) = (0, 0);
    let least = CONTEXT + random.below(3 * CONTEXT as u64) as usize;
    while bytes < least {
        let said = random.text(100);
        bytes += said.len();
        messages.push(json!({"role": "user", "content": said}));
        for _ in 0..random.below(4) {
            let count = 1 + random.below(3);
            let ids: Vec<String> = (0..count).map(|at| format!("c{}", calls + at)).collect();
            calls += count;
            let call = |id: &String| json!({"id": id, "type": "function", "function": {"name": "f", "arguments": "{}"}});
            let made: Vec<Value> = ids.iter().map(call).collect();
            messages.push(json!({"role": "assistant", "content": "", "tool_calls": made}));
            for id in &ids {
                let result = random.text(300);
                bytes += result.len();
                messages.push(json!({"role": "tool", "tool_call_id": id, "content": result}));
            }
        }
        messages.push(json!({"role": "assistant", "content": "So it is."}));
    }
    messages.push(json!({"role": "user", "content": "[[say Well.]]"}));
    if random.below(2) == 0 {
        let call = json!({"id": "last", "type": "function", "function": {"name": "f", "arguments": "{}"}});
        messages.push(json!({"role": "assistant", "content": "", "tool_calls": [call]}));
        messages.push(json!({"role": "tool", "tool_call_id": "last", "content": "[[say Well.]]"}));
    }
    messages
}

/// What a model is fed of a request.
fn fed(server: &Server, body: &Value) -> String {
    let ids = server.post(&format!("{CHAT}/render"), body).json()["token_ids"].clone();
    let text = server.post("/detokenize", &json!({"tokens": ids, "skip_special_tokens": false})).json();
    text["prompt"].as_str().expect("a text").to_owned()
}

/// Names of calls and of results, in order.
fn calls_and_results(text: &str) -> (Vec<String>, Vec<String>) {
    let after = |mark: &str, end: &[char]| -> Vec<String> {
        text.split(mark).skip(1).filter_map(|rest| rest.split(end).next()).map(str::to_owned).collect()
    };
    (after("{f ", &[' ', '}']), after("<|im_start|>tool f ", &['\n']))
}

fn told(response: &Response) -> (usize, usize, usize) {
    let header = response.header(HEADER).unwrap_or_else(|| panic!("{:?}", response.headers));
    let numbers: Vec<usize> =
        header.split(", ").filter_map(|part| part.split_once('=')?.1.parse().ok()).collect();
    (numbers[0], numbers[1], numbers[2])
}

pub fn overflowing() {
    let server = Server::start_talking("hermes", "-", &[ON, "--context", &CONTEXT.to_string()]);
    let mut random = Random(0x1234_5678_9ABC_DEF1);
    let (mut messages_gone, mut results_gone) = (0, 0);
    for number in 0..200 {
        let body = json!({"messages": conversation(&mut random), "max_tokens": 99});
        let response = server.post(CHAT, &body);
        assert_eq!(response.status, 200, "{number}: {}", response.text());
        let (messages, results, tokens) = told(&response);
        let answer = response.json();
        assert_eq!(answer["choices"][0]["message"]["content"], "Well.", "{number}: {answer}");
        assert_eq!(
            answer["usage"]["prompt_tokens_details"]["compacted_tokens"], tokens,
            "{number}: {answer}"
        );
        assert!(tokens > 0 && messages + results > 0, "{number}: {messages}, {results}, {tokens}");
        let text = fed(&server, &body);
        assert_eq!(
            Some(text.len()),
            answer["usage"]["prompt_tokens"].as_u64().map(|it| it as usize + specials(&text))
        );
        let (calls, answered) = calls_and_results(&text);
        assert_eq!(calls, answered, "{number}: {text}");
        assert!(text.starts_with("<|im_start|>system\nBe brief.<|im_end|>"), "{number}: {text}");
        assert!(text.contains("the conversation is longer than the context.]"), "{number}: {text}");
        messages_gone += messages;
        results_gone += results;
    }
    // Some lose results only, and some their turns.
    assert!(messages_gone > 200 && results_gone > 200, "{messages_gone}, {results_gone}");
    let metrics = server.get("/metrics");
    let count = "monomorph:compacted_requests_total{model_name=\"talk\"} 200";
    assert!(metrics.text().contains(count), "{}", metrics.text());
    assert_eq!(server.get("/info").json()["context_compaction"], true);
}

/// Bytes that special tokens have beyond the one token that each is.
fn specials(text: &str) -> usize {
    ["<|im_start|>", "<|im_end|>"].iter().map(|name| text.matches(name).count() * (name.len() - 1)).sum()
}

pub fn growing() {
    let server = Server::start_talking("-", "-", &[ON]);
    let mut messages = vec![json!({"role": "system", "content": "Be brief."})];
    let (mut fed, mut cached, mut shortened) = (0, 0, 0);
    let mut random = Random(0x9876_5432_1FED_CBA9);
    for turn in 0..80 {
        let content = format!("{turn}: {} [[say Well.]]", random.text(500));
        messages.push(json!({"role": "user", "content": content}));
        let response = server.post(CHAT, &json!({"messages": messages}));
        assert_eq!(response.status, 200, "{turn}: {}", response.text());
        let usage = &response.json()["usage"];
        if response.header(HEADER).is_some() {
            shortened += 1;
            fed += usage["prompt_tokens"].as_u64().expect("a number");
            cached += usage["prompt_tokens_details"]["cached_tokens"].as_u64().expect("a number");
        }
        messages.push(json!({"role": "assistant", "content": "Well."}));
    }
    println!("{shortened} requests shortened: {cached} of {fed} tokens were cached");
    assert!(shortened > 30, "{shortened}");
    assert!(10 * cached > 7 * fed, "{cached} of {fed} tokens were cached");
}

pub fn asked() {
    let long = "word ".repeat(2000);
    let turns = |ends: &str| {
        json!([
            {"role": "user", "content": long}, {"role": "assistant", "content": "Yes."},
            {"role": "user", "content": ends},
        ])
    };
    let off = Server::start_talking("-", "-", &[]);
    let refused = off.post(CHAT, &json!({"messages": turns("[[say Well.]]")}));
    assert_eq!(refused.status, 400, "{}", refused.text());
    assert_eq!(refused.json()["error"]["code"], "context_length_exceeded");
    let response = |server: &Server, fields: Value| {
        let mut body = json!({"input": turns("[[say Well.]]")});
        body.as_object_mut().expect("an object").extend(fields.as_object().expect("an object").clone());
        server.post("/v1/responses", &body)
    };
    let auto = response(&off, json!({"truncation": "auto"}));
    assert_eq!(auto.status, 200, "{}", auto.text());
    let (messages, results, tokens) = told(&auto);
    assert_eq!((messages, results), (2, 0));
    let auto = auto.json();
    assert_eq!(auto["truncation"], "auto");
    assert_eq!(auto["usage"]["input_tokens_details"]["compacted_tokens"], tokens);
    assert_eq!(auto["output"][0]["content"][0]["text"], "Well.");
    assert_eq!(response(&off, json!({})).status, 400);

    let on = Server::start_talking("-", "-", &[ON]);
    assert_eq!(response(&on, json!({})).json()["truncation"], "auto");
    assert_eq!(response(&on, json!({"truncation": "disabled"})).status, 400);
    let stream = on
        .post("/v1/messages", &json!({"messages": turns("[[say Well.]]"), "max_tokens": 9, "stream": true}));
    let (.., tokens) = told(&stream);
    let opening =
        stream.text().lines().find_map(|line| line.strip_prefix("data: ")).expect("an event").to_owned();
    let opening: Value = serde_json::from_str(&opening).expect("JSON");
    assert_eq!(opening["message"]["usage"]["compacted_input_tokens"], tokens, "{opening}");
    // What fits is answered as it is, and so is counted what does not.
    let whole = on.post(CHAT, &json!({"messages": [{"role": "user", "content": "[[say Well.]]"}]}));
    assert!(
        whole.header(HEADER).is_none()
            && whole.json()["usage"]["prompt_tokens_details"]["compacted_tokens"].is_null()
    );
    let counted =
        on.post("/v1/messages/count_tokens", &json!({"messages": turns("Hi"), "model": "talk"})).json();
    assert!(counted["input_tokens"].as_u64() > Some(long.len() as u64), "{counted}");
    // What stays whole does not fit by itself.
    let all = on.post(CHAT, &json!({"messages": turns(&long)}));
    assert_eq!((all.status, all.json()["error"]["code"].as_str()), (400, Some("context_length_exceeded")));
}
