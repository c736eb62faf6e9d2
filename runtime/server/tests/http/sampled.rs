//! What changes which tokens come, and what is told of them: biases, DRY, echoes, ids. What the scripted
//! model says has a logit of 50, all else 0.

use crate::lifecycle::CHAT;
use crate::process::{DRAFTS, Server};
use crate::scripted::{APART, END, GREETING, LETTERS, STOP};
use serde_json::{Value, json};

const TEXT: &str = "/v1/completions";

fn with(mut body: Value, fields: &Value) -> Value {
    body.as_object_mut().expect("an object").extend(fields.as_object().cloned().expect("fields"));
    body
}

fn chat(content: &str, fields: &Value) -> Value {
    with(json!({"messages": [{"role": "user", "content": content}], "max_tokens": 60}), fields)
}

/// What a chat says, whole and streamed alike.
fn said(server: &Server, body: &Value) -> String {
    let response = server.post(CHAT, body);
    assert_eq!(response.status, 200, "{}", response.text());
    let whole = response.json()["choices"][0]["message"]["content"].as_str().expect("text").to_owned();
    let events = server.post(CHAT, &with(body.clone(), &json!({"stream": true}))).events();
    let delta = |event: &Value| event["choices"][0]["delta"]["content"].as_str().unwrap_or("").to_owned();
    assert_eq!(events.iter().map(delta).collect::<String>(), whole);
    whole
}

pub fn biased() {
    for model in [None, Some(DRAFTS)] {
        let server = model.map_or_else(|| Server::start(&[]), |model| Server::start_as(model, &[]));
        // J is never likelier than what is said, but for H, which is not said any more.
        let fields = json!({"logit_bias": {"72": -100, "74": 30}});
        assert_eq!(said(&server, &chat("Hi", &fields)), GREETING.replace('H', "J"));
        assert_eq!(said(&server, &chat("Hi", &json!({"logit_bias": {}}))), GREETING);
        let text = with(json!({"prompt": "Hi", "max_tokens": 3}), &json!({"logit_bias": {"65": 51}}));
        assert_eq!(server.post(TEXT, &text).json()["choices"][0]["text"], "AAA");

        // It would say what its prompt says, which is a repetition.
        let plain = "abcabcabcabc";
        let again = |fields: Value| said(&server, &chat(&format!("[[say {plain}]]"), &fields));
        let dry = json!({"dry_multiplier": 60, "dry_sequence_breakers": []});
        assert_eq!(again(json!({})), plain);
        let changed = again(dry.clone());
        assert!(changed.starts_with("ab") && !changed.contains("abc"), "{changed:?}");
        for free in [
            json!({"dry_multiplier": 0}),
            json!({"dry_allowed_length": 40}),
            json!({"dry_penalty_last_n": 2}),
            json!({"dry_sequence_breakers": ["a", "b", "c"]}),
            // Not enough against 50.
            json!({"dry_multiplier": 5, "dry_base": 1}),
        ] {
            assert_eq!(again(with(dry.clone(), &free)), plain, "{free}");
        }
        // It grows with what is repeated: 5, 10, 20, 40, 80.
        let longer = again(with(dry, &json!({"dry_multiplier": 5, "dry_base": 2})));
        assert!(longer.starts_with("abcab") && longer != plain, "{longer:?}");

        // By compression: of 259 tokens, what followed the last two loses 5.15 times that much.
        let worn = again(json!({"lz_penalty": 10}));
        assert!(worn.starts_with("ab") && !worn.starts_with("abc"), "{worn:?}");
        for free in [
            json!({"lz_penalty": 0}),
            json!({"lz_penalty": 5}),
            json!({"lz_penalty_last_n": 2, "lz_penalty": 10}),
        ] {
            assert_eq!(again(free.clone()), plain, "{free}");
        }
    }
}

/// The texts of an answer's choices.
fn texts(answer: &Value) -> Vec<Value> {
    answer["choices"].as_array().expect("choices").iter().map(|choice| choice["text"].clone()).collect()
}

/// Of answers that are drawn those come back that are the likeliest a token, and all are counted.
pub fn best() {
    for model in [None, Some(DRAFTS)] {
        let server = model.map_or_else(|| Server::start(&[]), |model| Server::start_as(model, &[]));
        let ask = |seed: u64, fields: Value| {
            let body = json!({"prompt": "[[drawn]]", "temperature": 1, "seed": seed, "max_tokens": 12});
            let response = server.post(TEXT, &with(body, &fields));
            assert_eq!(response.status, 200, "{}", response.text());
            response.json()
        };
        let (mut not_first, mut not_by_sum) = (0, 0);
        for seed in (0..64).step_by(8) {
            let all = ask(seed, json!({"n": 8, "logprobs": 0}));
            let sums = all["choices"].as_array().expect("choices").iter().map(|choice| {
                let of = choice["logprobs"]["token_logprobs"].as_array().expect("a list");
                let of = of.iter().map(|it| f64::from(it.as_f64().expect("a number") as f32));
                (of.len(), of.sum::<f64>())
            });
            let sums: Vec<(usize, f64)> = sums.collect();
            let mean = |at: &usize| match sums[*at] {
                (0, _) => f64::NEG_INFINITY,
                (tokens, sum) => sum / tokens as f64,
            };
            let mut order: Vec<usize> = (0..8).collect();
            order.sort_by(|a, b| mean(b).total_cmp(&mean(a)));
            let said = texts(&all);
            let expected: Vec<Value> = order.iter().map(|at| said[*at].clone()).collect();

            // Nobody asks for log-probabilities here, and it is chosen by them.
            let best = ask(seed, json!({"n": 3, "best_of": 8}));
            assert_eq!(texts(&best), expected[..3], "seed {seed}: {all}");
            assert_eq!(best["usage"]["completion_tokens"], all["usage"]["completion_tokens"]);
            let choices = best["choices"].as_array().expect("choices").iter();
            assert!(choices.enumerate().all(|(at, it)| it["index"] == at && it["logprobs"].is_null()));
            let both = ask(seed, json!({"prompt": ["[[drawn]]", "[[drawn]]"], "best_of": 8}));
            assert_eq!(texts(&both), [expected[0].clone(), expected[0].clone()], "each of its own");

            let by_sum = (0..8).max_by(|a, b| sums[*a].1.total_cmp(&sums[*b].1)).expect("one");
            not_first += usize::from(expected[0] != said[0]);
            not_by_sum += usize::from(expected[0] != said[by_sum]);
        }
        // Another choice than the likeliest a token would be noticed.
        assert!(not_first >= 4 && not_by_sum >= 4, "{not_first} and {not_by_sum} of 8");
    }
}

/// The temperature follows the entropy, as the server or the request has it. All tokens are drawn from one
/// row, so that one temperature does the same.
pub fn adaptive() {
    let given = ["temperature=1", "dynatemp-range=1", "dynatemp-exponent=4"];
    let server = Server::start(&given.map(|one| ["--default", one]).concat());
    let drawn = |fields: Value| {
        let body = json!({"prompt": "[[drawn]]", "seed": 0, "n": 8, "max_tokens": 12});
        let response = server.post(TEXT, &with(body, &fields));
        assert_eq!(response.status, 200, "{}", response.text());
        texts(&response.json())
    };
    let plain = |temperature: f64| drawn(json!({"temperature": temperature, "dynatemp_range": 0}));
    let letters = (0..LETTERS).map(|place| f64::from(-APART * place as f32));
    let weights: Vec<f64> = letters.chain([f64::from(END)]).map(f64::exp).collect();
    let total: f64 = weights.iter().sum();
    let entropy = -weights.iter().map(|weight| weight / total * (weight / total).ln()).sum::<f64>();
    let evenness = entropy / (weights.len() as f64).ln();
    let (of_server, of_request) = (drawn(json!({})), drawn(json!({"dynatemp_exponent": 1})));
    assert_eq!(of_server, plain(2.0 * evenness.powi(4)));
    assert_eq!(of_request, plain(2.0 * evenness));
    let ignored = plain(1.0);
    assert!(ignored != of_server && ignored != of_request && of_server != of_request, "{ignored:?}");
}

pub fn echoed() {
    let server = Server::start(&[]);
    let text = |fields: Value| {
        let body = with(json!({"prompt": "Hi", "max_tokens": 5, "echo": true}), &fields);
        let whole = server.post(TEXT, &body);
        assert_eq!(whole.status, 200, "{}", whole.text());
        let choices = whole.json()["choices"].as_array().expect("choices").clone();
        let events = server.post(TEXT, &with(body, &json!({"stream": true}))).events();
        let texts: Vec<Value> = choices.iter().map(|choice| choice["text"].clone()).collect();
        for (index, text) in texts.iter().enumerate() {
            let of_it = |event: &&Value| event["choices"][0]["index"] == index;
            let pieces = events.iter().filter(of_it).map(|event| event["choices"][0]["text"].as_str());
            assert_eq!(pieces.map(Option::unwrap_or_default).collect::<String>(), *text);
        }
        texts
    };
    assert_eq!(text(json!({})), ["HiHello"]);
    assert_eq!(text(json!({"n": 2})), ["HiHello", "HiHello"]);
    assert_eq!(text(json!({"prompt": [72, 105, STOP]})), ["HiHello"], "as text, without control tokens");
    assert_eq!(text(json!({"echo": false})), ["Hello"]);
    // Stop strings are looked for in what is new.
    assert_eq!(text(json!({"stop": "Hi"})), ["HiHello"]);
}

/// Prompts come back with the log-probabilities of their tokens, before those of the answer. The scripted
/// model gives what it would say behind a beginning a logit of 1, and all else 0.
pub fn scored() {
    let server = Server::start(&[]);
    let ask = |fields: Value| {
        let body = with(json!({"prompt": "Hi", "max_tokens": 2, "echo": true, "logprobs": 1}), &fields);
        let whole = server.post(TEXT, &body);
        assert_eq!(whole.status, 200, "{}", whole.text());
        let whole = whole.json();
        let events = server.post(TEXT, &with(body, &json!({"stream": true}))).events();
        for choice in whole["choices"].as_array().expect("choices") {
            let of_it = |event: &&Value| event["choices"][0]["index"] == choice["index"];
            let pieces: Vec<&Value> = events.iter().filter(of_it).map(|event| &event["choices"][0]).collect();
            let text = pieces.iter().map(|piece| piece["text"].as_str().unwrap_or_default());
            assert_eq!(text.collect::<String>(), choice["text"]);
            for list in ["tokens", "token_logprobs", "top_logprobs", "text_offset"] {
                let lists = pieces.iter().flat_map(|piece| piece["logprobs"][list].as_array());
                let all: Vec<Value> = lists.flatten().cloned().collect();
                assert_eq!(json!(all), choice["logprobs"][list], "{list} of {pieces:?}");
            }
            let scored =
                pieces.iter().map(|piece| piece["logprobs"]["tokens"].as_array().map_or(0, Vec::len));
            assert!(scored.clone().next() >= Some(1), "the prompt is in the first chunk: {pieces:?}");
        }
        whole
    };
    let likeliest = (1.0 - (1f64.exp() + 258.0).ln()) as f32;
    let close = |value: &Value, expected: f32| {
        assert!((value.as_f64().expect("a number") as f32 - expected).abs() < 1e-5, "{value} and {expected}");
    };

    let choice = ask(json!({}))["choices"][0].clone();
    assert_eq!((&choice["text"], &choice["finish_reason"]), (&json!("HiHe"), &json!("length")));
    let logprobs = &choice["logprobs"];
    assert_eq!(logprobs["tokens"], json!(["H", "i", "H", "e"]));
    assert_eq!(logprobs["text_offset"], json!([0, 1, 2, 3]));
    let of = &logprobs["token_logprobs"];
    assert_eq!((&of[0], &logprobs["top_logprobs"][0]), (&Value::Null, &Value::Null));
    // Behind "H" it says "H": "i" is one of those that it does not say.
    close(&of[1], likeliest - 1.0);
    close(&logprobs["top_logprobs"][1]["H"], likeliest);
    assert_eq!((&of[2], &of[3]), (&json!(-0.5), &json!(-0.5)), "as made up for what is sampled");

    // Alone, as ids, of one token, of many, with alternatives, several, and with a stop id that ends it.
    let alone = |fields: Value| {
        let whole = ask(with(json!({"max_tokens": 0}), &fields));
        assert_eq!(whole["usage"]["completion_tokens"], 0);
        assert_eq!(whole["usage"]["prompt_tokens_details"]["cached_tokens"], 0, "all of it is computed");
        let choice = whole["choices"][0].clone();
        assert_eq!(choice["finish_reason"], "length");
        choice
    };
    let prompt = alone(json!({}));
    assert_eq!((&prompt["text"], &prompt["logprobs"]["tokens"]), (&json!("Hi"), &json!(["H", "i"])));
    assert_eq!(alone(json!({"prompt": [[72, 105]]})), prompt);
    assert_eq!(alone(json!({"prompt": ["Hi"]})), prompt);
    assert_eq!(alone(json!({"prompt": [72, STOP, 105]}))["logprobs"]["text_offset"], json!([0, 1, 1]));
    let one = alone(json!({"prompt": "H"}));
    assert_eq!((&one["text"], &one["logprobs"]["token_logprobs"]), (&json!("H"), &json!([null])));
    let long = alone(json!({"prompt": "\u{e9}".repeat(200), "logprobs": 3}));
    assert_eq!(long["logprobs"]["tokens"].as_array().map(Vec::len), Some(400));
    assert_eq!(long["logprobs"]["top_logprobs"][399].as_object().map(serde_json::Map::len), Some(3));
    assert_eq!(long["logprobs"]["text_offset"][399], 199);
    let none = alone(json!({"logprobs": 0}));
    assert_eq!(none["logprobs"]["top_logprobs"][1], json!({}));
    let several = ask(json!({"n": 2}));
    assert_eq!(several["choices"][0]["logprobs"], several["choices"][1]["logprobs"]);
    let ended = ask(json!({"max_tokens": 60}))["choices"][0].clone();
    assert_eq!(ended["text"], format!("Hi{GREETING}"));
    assert_eq!(ended["finish_reason"], "stop");
    let length = |list: &str| ended["logprobs"][list].as_array().map(Vec::len);
    assert_eq!(length("tokens"), Some(2 + GREETING.len() + 1), "with the id that ends it");
    // Without an echo there may be no tokens either.
    let nothing = server.post(TEXT, &json!({"prompt": "Hi", "max_tokens": 0, "logprobs": 1})).json();
    assert_eq!(
        (&nothing["choices"][0]["text"], &nothing["choices"][0]["finish_reason"]),
        (&json!(""), &json!("length"))
    );
    assert_eq!(nothing["choices"][0]["logprobs"]["tokens"], json!([]));
}

pub fn ids() {
    let server = Server::start(&[]);
    let wanted = json!({"return_token_ids": true});
    let ids: Vec<Value> = GREETING.bytes().map(Value::from).chain([STOP.into()]).collect();
    let body = chat("Hi", &wanted);
    let prompt = server.post("/tokenize", &json!({"messages": body["messages"]})).json()["tokens"].clone();
    let whole = server.post(CHAT, &body).json();
    assert_eq!((&whole["prompt_token_ids"], &whole["choices"][0]["token_ids"]), (&prompt, &json!(ids)));
    assert_eq!(whole["usage"]["completion_tokens"], ids.len());
    let collected = |path: &str, body: &Value| {
        let events = server.post(path, &with(body.clone(), &json!({"stream": true}))).events();
        let of = |event: &Value| event["choices"][0]["token_ids"].as_array().cloned().unwrap_or_default();
        (events.iter().flat_map(of).collect::<Vec<Value>>(), events)
    };
    let (found, events) = collected(CHAT, &body);
    assert_eq!(found, ids);
    let told: Vec<bool> = events.iter().map(|event| !event["prompt_token_ids"].is_null()).collect();
    assert!(told[0] && !told[1..].contains(&true), "the prompt is told once: {told:?}");
    assert_eq!(events[0]["prompt_token_ids"], prompt);

    let body = with(json!({"prompt": "Hi", "max_tokens": 3}), &wanted);
    let whole = server.post(TEXT, &body).json();
    let choice = &whole["choices"][0];
    assert_eq!(
        (&choice["prompt_token_ids"], &choice["token_ids"]),
        (&json!([72, 105]), &json!([72, 101, 108]))
    );
    let (found, events) = collected(TEXT, &body);
    assert_eq!(found, [72, 101, 108]);
    assert_eq!(events[0]["choices"][0]["prompt_token_ids"], json!([72, 105]));
    // Omitted unless requested.
    let plain = server.post(CHAT, &chat("Hi", &json!({}))).json();
    assert!(plain["prompt_token_ids"].is_null() && plain["choices"][0].get("token_ids").is_none());
    // A stop string ends an answer; all tokens of its last piece are returned, as usage counts them.
    let stopped = server.post(CHAT, &chat("Hi", &with(wanted, &json!({"stop": "lo"})))).json();
    assert_eq!(stopped["choices"][0]["token_ids"].as_array().map(Vec::len), Some(5));
    assert_eq!(
        (&stopped["choices"][0]["message"]["content"], &stopped["usage"]["completion_tokens"]),
        (&json!("Hel"), &json!(5))
    );
}
