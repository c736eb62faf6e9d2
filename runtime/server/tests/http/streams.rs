//! Answers, whole and streamed.

use crate::process::Server;
use crate::scripted::GREETING;
use serde_json::{Value, json};
use std::time::Instant;

const CHAT: &str = "/v1/chat/completions";
const TEXT: &str = "/v1/completions";

fn chat(content: &str, stream: bool) -> Value {
    json!({"model": "echo", "messages": [{"role": "user", "content": content}], "stream": stream})
}

/// The text of a streamed chat.
fn content(events: &[Value]) -> String {
    let delta = |event: &Value| event["choices"][0]["delta"]["content"].as_str().unwrap_or("").to_owned();
    events.iter().map(delta).collect()
}

pub fn whole_answers() {
    let server = Server::start(&[]);
    let mut connection = server.connect();
    // Twice over one connection.
    // The second prompt finds its first block.
    for cached in [0, 16] {
        let answer = connection.post(CHAT, &chat("Hi", false)).json();
        assert!(answer["id"].as_str().is_some_and(|id| id.starts_with("chatcmpl-")));
        assert_eq!(answer["object"], "chat.completion");
        assert_eq!(answer["model"], "echo");
        assert!(answer["created"].as_u64().is_some_and(|created| created > 1_700_000_000));
        let choices = json!([{
            "index": 0, "message": {"role": "assistant", "content": GREETING, "refusal": null},
            "logprobs": null, "finish_reason": "stop",
        }]);
        assert_eq!(answer["choices"], choices);
        // "Hi", and 1+4+1 before, 1+1 after, 1+9+1 to open the answer; the stop id counts as generated.
        let (prompt, completion) = (2 + 6 + 2 + 11, GREETING.len() + 1);
        let usage = json!({
            "prompt_tokens": prompt, "prompt_tokens_details": {"cached_tokens": cached},
            "completion_tokens": completion, "total_tokens": prompt + completion,
            "completion_tokens_details": {"reasoning_tokens": 0},
        });
        assert_eq!(answer["usage"], usage);
    }
    let answer = server.post(TEXT, &json!({"prompt": "Hi", "max_tokens": 5})).json();
    assert_eq!(answer["object"], "text_completion");
    assert_eq!(
        answer["choices"],
        json!([{"index": 0, "text": "Hello", "logprobs": null, "finish_reason": "length"}])
    );
    let usage = json!({
        "prompt_tokens": 2, "prompt_tokens_details": {"cached_tokens": 0}, "completion_tokens": 5, "total_tokens": 7,
    });
    assert_eq!(answer["usage"], usage);
    // OpenAI's default length.
    let answer = server.post(TEXT, &json!({"prompt": "[[forever]]"})).json();
    assert_eq!(answer["usage"]["completion_tokens"], 16);
    // Past the stop id, on request.
    let answer =
        server.post(TEXT, &json!({"prompt": "[[say a]]", "max_tokens": 5, "ignore_eos": true})).json();
    assert_eq!(answer["usage"]["completion_tokens"], 5);
    assert_eq!(answer["choices"][0]["finish_reason"], "length");
    // A stop id of the request.
    let answer = server.post(TEXT, &json!({"prompt": "[[say abc]]", "stop_token_ids": [b'b']})).json();
    assert_eq!(answer["choices"][0]["text"], "a");
    assert_eq!(answer["choices"][0]["finish_reason"], "stop");
    // To the end of the context where no length is asked for.
    let answer = server.post(CHAT, &chat("[[forever]]", false)).json();
    assert_eq!(answer["usage"]["total_tokens"], crate::scripted::CONTEXT);
    assert_eq!(answer["choices"][0]["finish_reason"], "length");
}

/// Several answers to one prompt: each whole, told apart by their numbers, paid for together, and none where
/// one is refused.
///
/// Planted, and caught here: the text offsets of one choice gone on with in another; the prompt counted for
/// each; the end of the stream behind the first that ends; the first choice's answers left running where the
/// last was refused.
pub fn choices() {
    let server = Server::start(&["--context", "512", "--kv-tokens", "1024", "--max-waiting", "4"]);
    let body = json!({"prompt": "[[say abc]]", "n": 3, "logprobs": 0, "max_tokens": 8});
    let whole = server.post(TEXT, &body).json();
    let logprobs = |choice: &Value| choice["logprobs"]["text_offset"].clone();
    let found: Vec<_> = whole["choices"].as_array().expect("choices").iter().collect();
    assert_eq!(found.len(), 3, "{whole}");
    for (index, choice) in found.iter().enumerate() {
        assert_eq!((&choice["index"], &choice["text"]), (&json!(index), &json!("abc")), "{whole}");
        assert_eq!((logprobs(choice), &choice["finish_reason"]), (json!([0, 1, 2]), &json!("stop")));
    }
    let usage = &whole["usage"];
    assert_eq!((&usage["prompt_tokens"], &usage["completion_tokens"]), (&json!(11), &json!(3 * 4)));
    assert_eq!(usage["total_tokens"], 11 + 12);

    let mut streamed = chat("[[say Once upon]]", true);
    streamed["n"] = json!(3);
    streamed["stream_options"] = json!({"include_usage": true});
    let events = server.post(CHAT, &streamed).events();
    let (last, pieces) = events.split_last().expect("events");
    assert_eq!((&last["choices"], &last["usage"]["completion_tokens"]), (&json!([]), &json!(3 * 10)));
    for index in 0..3 {
        let own = |event: &&Value| event["choices"][0]["index"] == index;
        let own: Vec<Value> = pieces.iter().filter(own).cloned().collect();
        assert_eq!(own[0]["choices"][0]["delta"]["role"], "assistant");
        assert_eq!(content(&own), "Once upon");
        let reasons: Vec<_> =
            own.iter().filter_map(|it| it["choices"][0]["finish_reason"].as_str()).collect();
        assert_eq!(reasons, ["stop"], "choice {index}");
        assert_eq!(own.last().expect("one")["choices"][0]["finish_reason"], "stop");
    }

    // The best are returned, and all are counted.
    let best = json!({"prompt": "[[say abc]]", "n": 2, "best_of": 4, "max_tokens": 8});
    let whole = server.post(TEXT, &best).json();
    let texts: Vec<_> = whole["choices"].as_array().expect("choices").iter().map(|it| &it["text"]).collect();
    assert_eq!(texts, [&json!("abc"), &json!("abc")], "{whole}");
    assert_eq!((&whole["choices"][0]["logprobs"], &whole["choices"][1]["index"]), (&Value::Null, &json!(1)));
    assert_eq!(whole["usage"]["completion_tokens"], 4 * 4);
    assert_eq!(whole["usage"]["prompt_tokens"], 11);

    // More than can wait: none is answered, and none is left.
    let finished = server.stats()["finished"].clone();
    let refused = server.post(TEXT, &json!({"prompt": "[[forever]]", "n": 128, "max_tokens": 400}));
    assert_eq!(refused.status, 429, "{}", refused.text());
    server.wait_for("all to go", |stats| stats["waiting"] == 0 && stats["running"] == 0);
    let stats = server.stats();
    assert!(stats["finished"] == finished && stats["cancelled"].as_u64() > Some(1), "{stats}");
    // Who goes away takes all of them along.
    let mut connection = server.connect();
    let endless = json!({"prompt": "[[forever]]", "n": 3, "max_tokens": 400, "stream": true});
    connection.send("POST", TEXT, &[], endless.to_string().as_bytes());
    connection.read_until("data: ");
    drop(connection);
    server.wait_for("all to go", |stats| stats["waiting"] == 0 && stats["running"] == 0);
}

pub fn prefixes() {
    // Longer than a block with its answer, cut by a stop string.
    let ask = |server: &Server, prompt: &str| {
        let body = json!({"prompt": format!("[[say abcdefgh]]{prompt}"), "stop": "d"});
        let answer = server.post(TEXT, &body).json();
        assert_eq!(answer["choices"][0]["text"], "abc");
        answer["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64()
    };
    let counts = |server: &Server| {
        // The engine may come a little behind a stop string, and holds blocks so long.
        server.wait_for("the engine to be done", |stats| stats["running"] == 0);
        let stats = &server.get("/health").json()["stats"];
        ["tokens_cached", "cached_blocks"].map(|key| stats[key].as_u64().expect("it is counted"))
    };
    let server = Server::start(&[]);
    let asked = ["and so on", "and so on", "and so forth, and more", "and so forth, and more"];
    assert_eq!(asked.map(|prompt| ask(&server, prompt)), [Some(0), Some(16), Some(16), Some(32)]);
    let [tokens, blocks] = counts(&server);
    // How far the engine came behind the stop string, and whether that filled another block, is a matter of
    // time.
    assert!(tokens == 64 && blocks >= 2, "{tokens} tokens, {blocks} blocks");
    let server = Server::start(&["--prefix-cache", "off"]);
    assert_eq!(["and so on", "and so on"].map(|prompt| ask(&server, prompt)), [Some(0), Some(0)]);
    assert_eq!(counts(&server), [0, 0]);
}

pub fn chat_events() {
    let server = Server::start(&[]);
    let mut body = chat("[[say abc]]", true);
    let events = server.post(CHAT, &body).events();
    assert_eq!(events.len(), 5, "the opening, three tokens, the end: {events:?}");
    assert_eq!(
        events[0]["choices"][0]["delta"],
        json!({"role": "assistant", "content": "", "refusal": null})
    );
    assert_eq!(content(&events), "abc");
    for event in &events {
        assert_eq!(event["object"], "chat.completion.chunk");
        assert_eq!(event["id"], events[0]["id"]);
        assert_eq!(event.get("usage"), None);
        assert_eq!(event["choices"][0]["index"], 0);
    }
    let last = &events[4]["choices"][0];
    assert_eq!((&last["delta"], &last["finish_reason"]), (&json!({}), &json!("stop")));

    body["stream_options"] = json!({"include_usage": true});
    let events = server.post(CHAT, &body).events();
    let (usage, others) = events.split_last().expect("events");
    assert!(others.iter().all(|event| event.get("usage") == Some(&Value::Null)));
    assert_eq!(usage["choices"], json!([]));
    assert_eq!(usage["usage"]["completion_tokens"], 4);
}

pub fn text_events() {
    let server = Server::start(&[]);
    let body = json!({"prompt": "[[say abc]]", "stream": true, "stream_options": {"include_usage": true}});
    let events = server.post(TEXT, &body).events();
    assert_eq!(events.len(), 5, "{events:?}");
    let text: String = events.iter().filter_map(|event| event["choices"][0]["text"].as_str()).collect();
    assert_eq!(text, "abc");
    assert_eq!(events[3]["choices"][0]["finish_reason"], "stop");
    assert_eq!(events[4]["usage"]["total_tokens"], 11 + 4);
    assert!(events.iter().all(|event| event["object"] == "text_completion"));
}

pub fn characters_stay_whole() {
    let server = Server::start(&[]);
    let events = server.post(CHAT, &chat("Hi", true)).events();
    assert_eq!(content(&events), GREETING);
    assert!(!content(&events).contains('\u{fffd}'));
    // The opening, one chunk a character (not a byte), the end.
    assert_eq!(events.len(), 1 + GREETING.chars().count() + 1);
    // Half a character at the end is replaced, once.
    let half = content(&server.post(CHAT, &chat("[[half]]", true)).events());
    assert_eq!(half, "Hello, wörld! \u{fffd}");
}

pub fn stop_strings() {
    let server = Server::start(&[]);
    for stream in [false, true] {
        for (stop, expected, reason) in [
            (json!("wör"), "Hello, ", "stop"),
            (json!(["never", "ld", "rl"]), "Hello, wö", "stop"),
            (json!("never"), GREETING, "stop"),
            // What could begin a stop string at the end is given out after all.
            (json!("🌊🌊"), GREETING, "stop"),
            (json!("H"), "", "stop"),
        ] {
            let mut body = chat("Hi", stream);
            body["stop"] = stop.clone();
            let response = server.post(CHAT, &body);
            let (text, found) = if stream {
                let events = response.events();
                let last = events.last().expect("events")["choices"][0]["finish_reason"].clone();
                (content(&events), last)
            } else {
                let answer = response.json();
                let choice = &answer["choices"][0];
                let text = choice["message"]["content"].as_str().expect("text").to_owned();
                (text, choice["finish_reason"].clone())
            };
            assert_eq!((text.as_str(), found), (expected, json!(reason)), "{stop}");
        }
    }
    // An endless answer ends at its stop string, and its blocks come back.
    let mut body = chat("[[forever]]", false);
    body["stop"] = json!("b a");
    assert_eq!(server.post(CHAT, &body).json()["choices"][0]["message"]["content"], "a");
    server.wait_for("the blocks", |stats| stats["free_blocks"] == stats["total_blocks"]);
}

pub fn logprobs() {
    let server = Server::start(&[]);
    let mut body = chat("[[say abc]]", false);
    body["logprobs"] = json!(true);
    body["top_logprobs"] = json!(2);
    let answer = server.post(CHAT, &body).json();
    let tokens = answer["choices"][0]["logprobs"]["content"].as_array().expect("tokens").clone();
    assert_eq!(tokens.len(), 3);
    assert_eq!(tokens[1]["token"], "b");
    assert_eq!(tokens[1]["bytes"], json!([b'b']));
    assert_eq!(tokens[1]["logprob"], -0.5);
    assert_eq!(tokens[1]["top_logprobs"].as_array().map(Vec::len), Some(2));
    // Streamed, the same tokens one chunk at a time.
    body["stream"] = json!(true);
    let events = server.post(CHAT, &body).events();
    let streamed: Vec<Value> = events
        .iter()
        .filter_map(|event| event["choices"][0]["logprobs"]["content"].as_array())
        .flatten()
        .cloned()
        .collect();
    assert_eq!(streamed, tokens);
    // Tokens beyond a stop string are not reported.
    body["stream"] = json!(false);
    body["stop"] = json!("bc");
    let answer = server.post(CHAT, &body).json();
    assert_eq!(answer["choices"][0]["logprobs"]["content"].as_array().map(Vec::len), Some(1));

    let answer = server.post(TEXT, &json!({"prompt": "[[say héb]]", "logprobs": 1})).json();
    let logprobs = &answer["choices"][0]["logprobs"];
    assert_eq!(logprobs["tokens"], json!(["h", "\u{fffd}", "\u{fffd}", "b"]));
    assert_eq!(logprobs["token_logprobs"], json!([-0.5, -0.5, -0.5, -0.5]));
    assert_eq!(logprobs["text_offset"][0], 0);
}

pub fn concurrent_requests() {
    let server = Server::start(&[]);
    let begin = Instant::now();
    std::thread::scope(|scope| {
        for client in 0..24 {
            let server = &server;
            scope.spawn(move || {
                for round in 0..5 {
                    let said = format!("client {client} round {round} {}", "é".repeat(client));
                    let stream = (client + round) % 2 == 0;
                    let response = server.post(CHAT, &chat(&format!("[[say {said}]]"), stream));
                    let text = if stream {
                        content(&response.events())
                    } else {
                        response.json()["choices"][0]["message"]["content"].as_str().expect("text").to_owned()
                    };
                    assert_eq!(text, said);
                }
            });
        }
    });
    server.wait_for("the blocks", |stats| stats["free_blocks"] == stats["total_blocks"]);
    assert_eq!(server.stats()["finished"], 24 * 5, "after {:?}", begin.elapsed());
}
