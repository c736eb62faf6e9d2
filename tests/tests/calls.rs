//! SmolLM2 with twenty tools, in call formats that it was never trained on: every required call parses and
//! has the tool's name and valid arguments, or its schema is refused by name.
//!
//!     cargo test --release -p monomorph-tests --test calls -- --ignored --nocapture

use monomorph_tests::server::{Serving, build, post};
use monomorph_tests::{root, smollm2};
use serde_json::{Value, json};
use std::path::Path;

const ARGUMENTS: [&str; 6] = ["--threads", "2", "--context", "4096", "--kv-tokens", "8192"];
/// The path in refusals of schemas.
const SCHEMA: &str = "tools[0].function.parameters";
/// The call reader gives up on deeper nesting, which a small model produces if it may write an endless tree.
const DEEPEST: usize = 100;
/// Lists the tools, which the checkpoint's own template does not.
const TEMPLATE: &str = "{% for tool in tools or [] %}{{ tool | tojson + '\\n' }}{% endfor %}{% for message in messages %}{{ '<|im_start|>' + \
                        message['role'] + '\\n' + message['content'] + '<|im_end|>\\n' }}{% endfor %}{{ '<|im_start|>assistant\\n' }}";

/// Writes the target of the model with this call format.
fn write_target(targets: &Path, tools: &str) {
    let (from, to) =
        (root().join("targets/models/smollm2-135m"), targets.join(format!("models/calls-{tools}")));
    std::fs::create_dir_all(&to).expect("there is room");
    std::fs::copy(from.join("q4_1.toml"), to.join("q4_1.toml")).expect("copied");
    let model = std::fs::read_to_string(from.join("MODEL.toml")).expect("readable");
    let template = Value::from(TEMPLATE);
    let protocol = format!("[protocol]\ntools = \"{tools}\"\nchat_template = {template}\n");
    std::fs::write(to.join("MODEL.toml"), model.replace("[protocol]\n", &protocol)).expect("written");
}

/// Twenty object schemas of the corpus.
fn schemas() -> Vec<Value> {
    let path = root().join("tests/fixtures/schemas/schemas.jsonl");
    let lines = std::fs::read_to_string(path).expect("the corpus is committed");
    let read =
        |line: &str| serde_json::from_str::<Value>(line).expect("a line of the corpus")["schema"].clone();
    let objects: Vec<Value> = lines.lines().map(read).filter(|schema| schema["type"] == "object").collect();
    let step = objects.len() / 20;
    objects.into_iter().step_by(step).take(20).collect()
}

/// Arrays and objects that a text leaves open; brackets within strings count too.
fn open(text: &str) -> usize {
    text.matches(['{', '[']).count().saturating_sub(text.matches(['}', ']']).count())
}

#[test]
#[ignore = "minutes"]
fn required_calls_are_valid() {
    let weights = smollm2();
    let targets = tempfile::tempdir().expect("temporary directories can be made");
    for tools in ["hermes", "qwen-xml"] {
        write_target(targets.path(), tools);
        let server = build(Some(targets.path()), &format!("cpu/calls-{tools}/q4_1"));
        let serving = Serving::start(&server, &weights, &ARGUMENTS);
        let (mut valid, mut refused, mut cut) = (0, 0, 0);
        for (seed, schema) in schemas().into_iter().enumerate() {
            let function = json!({"name": "make_example", "description": "Makes an example", "parameters": schema, "strict": true});
            let body = json!({
                "messages": [{"role": "user", "content": "Call make_example with an example."}], "tools": [{"type": "function", "function": function}],
                "tool_choice": "required", "parallel_tool_calls": false, "max_tokens": 1500, "temperature": 0.6, "seed": seed,
            });
            let (status, text) =
                post(&serving.address, "/v1/chat/completions", &body.to_string()).expect("it answers");
            let answer: Value = serde_json::from_str(&text).expect("answers are JSON");
            if status == 400 {
                let param = answer["error"]["param"].as_str().unwrap_or_default();
                assert!(param.starts_with(SCHEMA), "{text}");
                refused += 1;
                continue;
            }
            let choice = &answer["choices"][0];
            if choice["finish_reason"] == "length" {
                cut += 1;
                continue;
            }
            assert_eq!(choice["finish_reason"], "tool_calls", "{text}");
            let call = &choice["message"]["tool_calls"][0]["function"];
            let arguments = call["arguments"].as_str().expect("text");
            if open(arguments) == DEEPEST {
                cut += 1;
                continue;
            }
            let arguments: Value =
                serde_json::from_str(arguments).unwrap_or_else(|error| panic!("{error}: {text}"));
            assert_eq!(call["name"], "make_example", "{text}");
            jsonschema::validate(&schema, &arguments).unwrap_or_else(|error| panic!("{error}: {text}"));
            valid += 1;
        }
        println!("{tools}: {valid} valid, {refused} refused by name, {cut} cut off");
        assert!(valid >= 8, "{tools}");
    }
}
