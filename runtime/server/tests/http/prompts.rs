//! Several prompts in one completion, as evaluation harnesses send them: every choice is what its prompt is
//! answered alone.

use crate::process::Server;
use crate::scripted::CONTEXT;
use serde_json::{Map, Value, json};

const TEXT: &str = "/v1/completions";

fn with(mut body: Value, fields: &Value) -> Value {
    body.as_object_mut().expect("an object").extend(fields.as_object().cloned().expect("fields"));
    body
}

fn ask(server: &Server, body: &Value) -> Value {
    let response = server.post(TEXT, body);
    assert_eq!(response.status, 200, "{body}: {}", response.text());
    response.json()
}

/// What a stream's chunks come to: choices in order, and the usage.
fn joined(server: &Server, body: &Value) -> (Vec<Value>, Value) {
    let streamed = json!({"stream": true, "stream_options": {"include_usage": true}});
    let mut events = server.post(TEXT, &with(body.clone(), &streamed)).events();
    let usage = events.pop().expect("the last event has the usage")["usage"].clone();
    let mut choices: Vec<Value> = Vec::new();
    for event in events {
        let [piece] = event["choices"].as_array().expect("choices").as_slice() else { panic!("{event}") };
        let index = piece["index"].as_u64().expect("an index") as usize;
        if choices.len() <= index {
            choices.resize(index + 1, Value::Null);
        }
        add(&mut choices[index], piece);
    }
    (choices, usage)
}

/// Puts a piece of a choice behind those before.
fn add(choice: &mut Value, piece: &Value) {
    match (choice, piece) {
        (Value::Object(all), Value::Object(more)) => {
            for (name, more) in more {
                match all.get_mut(name) {
                    Some(_) if name == "index" => {}
                    Some(one) => add(one, more),
                    None => drop(all.insert(name.clone(), more.clone())),
                }
            }
        }
        (Value::Array(all), Value::Array(more)) => all.extend(more.iter().cloned()),
        (Value::String(all), Value::String(more)) => all.push_str(more),
        (_, Value::Null) => {}
        (choice, piece) => *choice = piece.clone(),
    }
}

/// The choices to each of `prompts` alone, numbered as they are together, and the sum of what they cost.
fn apart(server: &Server, prompts: &[Value], body: &Value) -> (Vec<Value>, Map<String, Value>) {
    let (mut choices, mut usage) = (Vec::new(), Map::new());
    for prompt in prompts {
        let mut alone = ask(server, &with(body.clone(), &json!({"prompt": prompt})));
        for choice in alone["choices"].as_array_mut().expect("choices").drain(..) {
            let index = choices.len();
            choices.push(with(choice, &json!({"index": index})));
        }
        for (name, count) in alone["usage"].as_object().expect("usage") {
            let sum = usage.get(name).and_then(Value::as_u64).unwrap_or_default();
            if let Some(count) = count.as_u64() {
                usage.insert(name.clone(), (sum + count).into());
            }
        }
    }
    (choices, usage)
}

pub fn answers() {
    let server = Server::start(&[]);
    let texts = ["[[say One]]", "Hi", "[[say wörld 🌊 and more]]", "[[say ]]"].map(Value::from);
    let ids = texts.clone().map(|text| json!(text.as_str().expect("a text").as_bytes()));
    // What an evaluation harness asks for with `--batch_size 4`: scores of the prompts, and generations up to
    // a stop string.
    let scores = json!({"temperature": 0, "max_tokens": 1, "logprobs": 1, "seed": 1234, "echo": true});
    let generations = json!({"temperature": 0, "max_tokens": 64, "stop": ["\n\n", "d"], "seed": 1234});
    for fields in [
        json!({}),
        scores.clone(),
        with(scores, &json!({"max_tokens": 0})),
        generations,
        json!({"n": 3, "echo": true, "return_token_ids": true}),
        json!({"n": 2, "logprobs": 2, "max_tokens": 5}),
        json!({"max_tokens": 0}),
        // As the seed says, each prompt from the same on.
        json!({"n": 2, "seed": 7, "temperature": 1.5, "logit_bias": {"65": 49.9, "66": 49.9, "67": 49.9}}),
    ] {
        for prompts in [&texts, &ids] {
            for count in [1, 2, 4] {
                let prompts = &prompts[..count];
                let (expected, usage) = apart(&server, prompts, &fields);
                let body = with(fields.clone(), &json!({"prompt": prompts}));
                let whole = ask(&server, &body);
                assert_eq!(whole["choices"], json!(expected), "{body}");
                for name in ["prompt_tokens", "completion_tokens", "total_tokens"] {
                    assert_eq!(whole["usage"][name], usage[name], "{name} of {body}");
                }
                let (choices, streamed) = joined(&server, &body);
                for (choice, expected) in choices.iter().zip(&expected) {
                    for name in ["index", "text", "finish_reason", "token_ids", "prompt_token_ids"] {
                        assert_eq!(choice.get(name), expected.get(name), "{name} of {body}, streamed");
                    }
                    for (name, list) in expected["logprobs"].as_object().into_iter().flatten() {
                        assert_eq!(&choice["logprobs"][name], list, "{name} of {body}, streamed");
                    }
                }
                assert_eq!(choices.len(), expected.len());
                assert_eq!(streamed["total_tokens"], usage["total_tokens"], "{body}");
            }
        }
    }
    // As many as there may be.
    let body = json!({"prompt": vec!["[[say a]]"; 64], "n": 2});
    let texts = ask(&server, &body)["choices"].as_array().expect("choices").clone();
    assert!(texts.len() == 128 && texts.iter().all(|choice| choice["text"] == "a"), "{texts:?}");
    server.wait_for("all blocks", |stats| stats["free_blocks"] == stats["total_blocks"]);
}

/// Prompts are answered at one time, and each chunk says of which it is.
pub fn interleaved() {
    let server = Server::start(&[]);
    let body = json!({"prompt": ["[[slowly abcdefgh]]", "[[slowly ijklmnop]]"], "stream": true});
    let events = server.post(TEXT, &body).events();
    let indexes: Vec<u64> =
        events.iter().map(|event| event["choices"][0]["index"].as_u64().expect("an index")).collect();
    let changes = indexes.windows(2).filter(|pair| pair[0] != pair[1]).count();
    assert!(changes > 4, "one behind the other: {indexes:?}");
}

pub fn hang_ups() {
    let server = Server::start(&[]);
    for stream in [true, false] {
        let cancelled = server.stats()["cancelled"].as_u64().expect("a count");
        let prompts = ["a[[forever]]", "b[[forever]]", "c[[forever]]"];
        let body = json!({"prompt": prompts, "n": 2, "max_tokens": 400, "stream": stream});
        let mut connection = server.connect();
        connection.send("POST", TEXT, &[("content-type", "application/json")], body.to_string().as_bytes());
        server.wait_for("six to run", |stats| stats["running"] == 6);
        drop(connection);
        server.wait_for("all to go", |stats| {
            stats["running"] == 0
                && stats["free_blocks"] == stats["total_blocks"]
                && stats["cancelled"].as_u64() == Some(cancelled + 6)
        });
    }
}

/// One that cannot be answered is named, and none of the others is begun.
pub fn refusals() {
    let server = Server::start(&[]);
    let long = "x".repeat(CONTEXT);
    let finished = server.stats()["finished"].clone();
    for (prompt, param, words) in [
        (json!(["[[forever]]", ""]), "prompt[1]", &["no tokens"][..]),
        (json!(["[[forever]]", "a", long]), "prompt[2]", &["512 tokens", "too long"]),
        (json!([[1, 2], []]), "prompt[1]", &["no tokens"]),
        (json!([[1, 2], vec![1; CONTEXT]]), "prompt[1]", &["512 tokens", "too long"]),
        (json!([[1, 2], [3, 259]]), "prompt[1][1]", &["259", "258"]),
        (json!(["a", 5]), "prompt[1]", &["a string", "number 5"]),
        (json!(["a", ["b"]]), "prompt[1]", &["a string", "an array"]),
        (json!([[1], "b"]), "prompt[1]", &["an array of token ids", "a string"]),
        (json!([["a"]]), "prompt[0][0]", &["an integer", "a string"]),
        (json!(vec!["a"; 129]), "prompt", &["129", "128"]),
    ] {
        for stream in [false, true] {
            let body = json!({"prompt": prompt, "max_tokens": 400, "stream": stream});
            let response = server.post(TEXT, &body);
            let error = response.json()["error"].clone();
            let message = error["message"].as_str().unwrap_or_default();
            assert_eq!((response.status, error["param"].as_str()), (400, Some(param)), "{error}");
            assert!(words.iter().all(|word| message.contains(word)), "{words:?}: {message}");
            assert!(message.contains(param), "{message}");
        }
    }
    let many = server.post(TEXT, &json!({"prompt": vec!["a"; 65], "n": 2}));
    assert_eq!((many.status, &many.json()["error"]["param"]), (400, &json!("n")), "{}", many.text());
    server.wait_for("nobody is left", |stats| {
        stats["running"] == 0 && stats["waiting"] == 0 && stats["free_blocks"] == stats["total_blocks"]
    });
    assert_eq!(server.stats()["finished"], finished);
}

pub fn fill_in_between() {
    let server = Server::start_talking("-", "-", &[]);
    let [prefix, suffix, middle] = [275, 276, 277];
    let file = tempfile::NamedTempFile::new().expect("a temporary file");
    // The model begins another text.
    std::fs::write(file.path(), json!([72, 105, prefix, 74]).to_string()).expect("written");
    let prompt = format!("[[ids {}]]", file.path().display());
    let end = "<|im_end|>é";
    let body = json!({"prompt": prompt, "suffix": end, "max_tokens": 9, "return_token_ids": true});
    let ids = |text: &str| text.bytes().map(u32::from).collect::<Vec<_>>();
    let asked = [vec![prefix], ids(&prompt), vec![suffix], ids(end), vec![middle]].concat();
    let whole = ask(&server, &body)["choices"][0].clone();
    assert_eq!((&whole["text"], &whole["finish_reason"]), (&json!("Hi"), &json!("stop")));
    assert_eq!(whole["prompt_token_ids"], json!(asked));
    let (choices, _) = joined(&server, &body);
    assert_eq!((&choices[0]["text"], &choices[0]["finish_reason"]), (&json!("Hi"), &json!("stop")));
    // Ids are taken as they are, and nothing behind is no suffix.
    let of_ids = with(body.clone(), &json!({"prompt": ids(&prompt)}));
    assert_eq!(ask(&server, &of_ids)["choices"][0]["prompt_token_ids"], json!(asked));
    let plain = with(body.clone(), &json!({"suffix": ""}));
    assert_eq!(ask(&server, &plain)["choices"][0]["prompt_token_ids"], json!(ids(&prompt)));

    let refused = Server::start(&[]).post(TEXT, &with(body, &json!({"prompt": "a"})));
    assert_eq!(refused.status, 400, "{}", refused.text());
    let error = &refused.json()["error"];
    assert_eq!(error["param"], "suffix");
    let said = error["message"].as_str().expect("a message");
    assert!(said.contains("no control token for text to fill in (`<|fim_prefix|>`, "), "{said}");
}
