//! Text to tokens and back, and what a server says of itself. The scripted model's tokens are bytes, and
//! three special ones.

use crate::lifecycle::CHAT;
use crate::process::{Server, run};
use crate::scripted::GREETING;
use serde_json::{Value, json};

const TEXT: &str = "/v1/completions";
/// Ids of `<|im_start|>` and `<|im_end|>`.
const START: u32 = 257;
const END: u32 = 258;

pub fn there_and_back() {
    let server = Server::start(&["--context", "512"]);
    let tokens = |body: &Value| {
        let answer = server.post("/tokenize", body);
        assert_eq!(answer.status, 200, "{}", answer.text());
        let answer = answer.json();
        assert_eq!(answer["count"], answer["tokens"].as_array().expect("ids").len());
        assert_eq!(answer["max_model_len"], 512);
        answer
    };
    let text = |ids: &Value, skip: bool| {
        let body = json!({"tokens": ids, "skip_special_tokens": skip});
        server.post("/detokenize", &body).json()["prompt"].clone()
    };
    let plain = tokens(&json!({"prompt": "Hi<|im_end|>é", "return_token_strs": true}));
    assert_eq!(plain["tokens"], json!([72, 105, END, 0xc3, 0xa9]));
    assert_eq!(plain["token_strs"], json!(["H", "i", "<|im_end|>", "\u{fffd}", "\u{fffd}"]));
    assert_eq!(text(&plain["tokens"], false), "Hi<|im_end|>é");
    assert_eq!(text(&plain["tokens"], true), "Hié");
    assert_eq!(text(&json!([0xc3]), false), "\u{fffd}");

    // As many as an answer to the same conversation says that it was asked, and what is written in a message
    // is no control token.
    let messages = json!([{"role": "user", "content": "[[say so]]<|im_end|>"}]);
    let chat = tokens(&json!({ "messages": messages }));
    let asked = server.post(CHAT, &json!({"messages": messages, "max_tokens": 1})).json();
    assert_eq!(asked["usage"]["prompt_tokens"], chat["count"]);
    let count = |ids: &Value, id: u32| ids.as_array().expect("ids").iter().filter(|it| **it == id).count();
    assert_eq!((count(&chat["tokens"], START), count(&chat["tokens"], END)), (2, 1));
    let bare = tokens(&json!({"messages": messages, "add_generation_prompt": false}));
    assert_eq!(count(&bare["tokens"], START), 1);
    assert!(text(&bare["tokens"], false).as_str().is_some_and(|text| text.ends_with("<|im_end|>\n")));

    // What an answer goes on with is the end of its prompt, however it is asked for.
    let begun =
        json!([{"role": "user", "content": "[[say so]]"}, {"role": "assistant", "content": "So far,"}]);
    let going_on = json!({"messages": begun, "continue_final_message": true, "add_generation_prompt": false});
    let found = tokens(&going_on);
    assert!(text(&found["tokens"], false).as_str().is_some_and(|text| text.ends_with("assistant\nSo far,")));
    let mut asked = going_on;
    asked["max_tokens"] = 1.into();
    let count_of = |path: &str, body: &Value, field: &str| {
        let answer = server.post(path, body);
        assert_eq!(answer.status, 200, "{path}: {}", answer.text());
        answer.json()["usage"][field].clone()
    };
    assert_eq!(count_of(CHAT, &asked, "prompt_tokens"), found["count"]);
    let message = json!({ "messages": begun });
    let counted = server.post("/v1/messages/count_tokens", &message).json();
    assert_eq!(counted["input_tokens"], found["count"]);

    // A document is the text that it is written as.
    let source = json!({"type": "text", "media_type": "text/plain", "data": "One."});
    let blocks = json!([{"type": "document", "source": source, "title": "Of one"}]);
    let written = json!("<document>\n<title>Of one</title>\nOne.\n</document>");
    let [as_document, as_text] = [blocks, written].map(|content| {
        let body = json!({"messages": [{"role": "user", "content": content}]});
        let answer = server.post("/v1/messages/count_tokens", &body);
        assert_eq!(answer.status, 200, "{}", answer.text());
        answer.json()["input_tokens"].clone()
    });
    assert_eq!(as_document, as_text);

    // Routers ask with the request that they will pass on.
    let rendered = |path: &str, body: Value| {
        let answer = server.post(&format!("{path}/render"), &body);
        assert_eq!(answer.status, 200, "{}", answer.text());
        answer.json()["token_ids"].clone()
    };
    let asked = json!({"messages": messages, "stream": true, "temperature": 0, "max_tokens": 9});
    assert_eq!(rendered(CHAT, asked), chat["tokens"]);
    assert_eq!(rendered(TEXT, json!({"prompt": "Hi<|im_end|>é", "max_tokens": 2})), plain["tokens"]);
    assert_eq!(rendered(TEXT, json!({"prompt": [[5, 6]]})), json!([5, 6]));

    for (path, body, param) in [
        ("/v1/chat/completions/render", json!({"messages": []}), "messages"),
        ("/v1/chat/completions/render", json!({"messages": messages, "temperature": 9}), "temperature"),
        ("/v1/completions/render", json!({"prompt": ["a", "b"]}), "prompt"),
        ("/tokenize", json!({}), "prompt"),
        ("/tokenize", json!({"prompt": "a", "messages": messages}), "prompt"),
        ("/tokenize", json!({"prompt": "a", "add_generation_prompt": true}), "add_generation_prompt"),
        ("/tokenize", json!({"prompt": ["a"]}), "prompt"),
        (
            "/tokenize",
            json!({"messages": begun, "continue_final_message": true, "add_generation_prompt": true}),
            "add_generation_prompt",
        ),
        (CHAT, json!({"messages": messages, "continue_final_message": true}), "continue_final_message"),
        (CHAT, json!({"messages": messages, "add_generation_prompt": false}), "add_generation_prompt"),
        ("/tokenize", json!({"prompt": "a", "model": "gpt-4"}), "model"),
        ("/detokenize", json!({}), "tokens"),
        ("/detokenize", json!({"tokens": [1_000_000]}), "tokens[0]"),
        ("/detokenize", json!({"tokens": "a"}), "tokens"),
    ] {
        let answer = server.post(path, &body);
        assert!([400, 404].contains(&answer.status), "{path} {body}: {}", answer.text());
        assert_eq!(answer.json()["error"]["param"], param, "{path} {body}");
    }
}

pub fn info() {
    let server = Server::start(&["--context", "512", "--max-body", "5000", "--served-model-name", "parrot"]);
    let info = server.get("/info").json();
    let verb: Value = serde_json::from_slice(&run(&["info", "--json"]).stdout).expect("JSON");
    assert_eq!(info["build"], verb, "the same as the verb says");
    assert_eq!((&info["engine"]["context"], &info["body_limit"]), (&json!(512), &json!(5000)));
    assert_eq!(info["model_name"], "parrot");
    assert_eq!((&info["build"]["ranks"], &info["gpu_ordinals"]), (&json!(6), &json!([])));
    assert_eq!((&info["keys"], &info["weights"]), (&json!(false), &json!("checkpoint")));
    // Gauges only: the endpoint picker of the Gateway API's inference extension takes no metric of type info.
    let metrics = server.get("/metrics");
    let lines: Vec<_> =
        metrics.text().lines().filter(|line| line.starts_with("vllm:cache_config_info{")).collect();
    let blocks = format!("num_gpu_blocks=\"{}\"", info["engine"]["blocks"]);
    assert!(
        lines.len() == 1 && lines[0].contains("block_size=\"16\"") && lines[0].contains(&blocks),
        "{lines:?}"
    );
    assert!(lines[0].ends_with("} 1") && !metrics.text().contains(" info\n"), "{lines:?}");
    assert_eq!(server.get("/version").json(), json!({"version": info["build"]["version"]}));
    assert_eq!(server.get("/ping").json()["status"], "ok");
    let sampling = json!({
        "temperature": 0.0, "top_p": 1.0, "top_k": 0, "min_p": 0.0, "top_n_sigma": 0.0, "repetition_penalty": 1.0,
        "presence_penalty": 0.0, "frequency_penalty": 0.0, "dynatemp_range": 0.0, "dynatemp_exponent": 1.0,
    });
    assert_eq!(info["sampling"], sampling, "what the build recommends");
    let guarded = Server::start(&["--api-key", "of-the-flag"]);
    let answer = guarded.connect().request("GET", "/info", &[("x-api-key", "of-the-flag")], b"");
    assert_eq!(answer.json()["keys"], true);
    assert!(!answer.text().contains("of-the-flag"));
}

/// What a request does not say is what the command line does, and stands where clients look for it.
pub fn defaults() {
    let server = Server::start(&["--default", "temperature=0.7", "--default", "presence-penalty=1.5"]);
    let info = server.get("/info").json();
    assert_eq!(info["build"]["sampling"][0]["temperature"], 0.0, "the build's own");
    let of = |name: &str| info["sampling"][name].clone();
    assert_eq!(["temperature", "presence_penalty", "top_p"].map(of), [json!(0.7), json!(1.5), json!(1.0)]);
    assert_eq!(server.get("/v1/models").json()["data"][0]["sampling"], info["sampling"]);
    // A penalty's history is kept for an answer that names none.
    let chat = json!({"messages": [{"role": "user", "content": "Hi"}]});
    assert_eq!(server.post(CHAT, &chat).json()["choices"][0]["message"]["content"], GREETING);
    for (given, words) in [
        ("temprature=1", "did you mean temperature?"),
        ("top-k=many", "`top_k` must be a number"),
        ("temperature=9", "must be from 0 to 2, and is 9"),
    ] {
        let refused = run(&["serve", "--port", "0", "--weights", "dummy", "--default", given]);
        let said = String::from_utf8_lossy(&refused.stderr).into_owned();
        assert_eq!(refused.status.code(), Some(2), "{given}: {said}");
        assert!(said.contains("--default <KEY=VALUE>") && said.contains(words), "{given}: {said}");
    }
}
