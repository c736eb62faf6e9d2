//! Tokenizers with damage, and chat templates that are given anything: read or refused, rendered or refused,
//! in bounded time and memory. (Answers of any kind are given to the readers of tools and reasoning in
//! `answers/fuzz.rs`.)
//!
//! Found here: `tokenizers` panics over a decoder that is none, and over a template that names a token which
//! is not there; a template could write without end. Planted, and caught here: such panics not caught (both
//! tests of `tokenizer.json`), templates that write what they like (`a_template_writes_so_much_and_no_more`:
//! the process runs out of memory).

use monomorph_text::{Chat, ChatEnd, ChatTemplate, Special, Tokenizer};
use monomorph_weights::Checkpoint;
use monomorph_weights::hostile::{Counting, damaged, measured};
use proptest::prelude::*;
use serde_json::{Map, Value, json};
use std::path::Path;
use std::sync::Once;
use std::time::{Duration, Instant};

mod support;
#[path = "support/tekken.rs"]
mod tekken;

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// How long one of them may take, on a machine that others use too.
const PATIENCE: Duration = Duration::from_secs(5);
/// Most bytes that reading a tokenizer claims for each of its file, and for none: patterns are compiled for
/// it.
const FOR_EACH_BYTE: usize = 400;
const FOR_NONE: usize = 8 << 20;
/// Most bytes of a rendered prompt for each of what it was given, and for none: where a list is wanted a
/// string is a list of its characters, each of which gets what stands around a tool.
const RENDERED_FOR_EACH_BYTE: usize = 128;
const RENDERED_FOR_NONE: usize = 4 << 10;

/// A tokenizer as a checkpoint's directory has it.
fn tokenizer_json() -> Value {
    let mut vocabulary = Map::new();
    let names = ["<s>", "</s>"].map(str::to_owned).into_iter().chain(support::byte_characters());
    for (id, token) in (0u32..).zip(names.chain(["he", "ll", "hell"].map(str::to_owned))) {
        vocabulary.insert(token, json!(id));
    }
    let added = |id: u32, content: &str| json!({"id": id, "content": content, "special": true, "normalized": false, "single_word": false, "lstrip": false, "rstrip": false});
    let level =
        json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true});
    let split = json!({"type": "Split", "pattern": {"Regex": "\\p{N}{1,3}| ?[^\\s\\p{L}]+"}, "behavior": "Isolated", "invert": false});
    json!({
        "version": "1.0", "truncation": null, "padding": null, "added_tokens": [added(0, "<s>"), added(1, "</s>")],
        "normalizer": {"type": "NFC"}, "pre_tokenizer": {"type": "Sequence", "pretokenizers": [split, level]},
        "post_processor": {"type": "TemplateProcessing",
            "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
            "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
            "special_tokens": {"<s>": {"id": "<s>", "ids": [0], "tokens": ["<s>"]}}},
        "decoder": level, "model": {"type": "BPE", "vocab": vocabulary, "merges": ["h e", "l l", "he ll"]},
    })
}

/// The same in the form of Mistral's releases.
fn tekken_json() -> Value {
    tekken::file(r"\p{N}| ?[^\s\p{L}]+", &["he", "ll", "hell"].map(|token| token.as_bytes().to_vec()))
}

const CONFIG: &str =
    r#"{"bos_token":"<s>","eos_token":{"content":"</s>"},"chat_template":"{{ messages[0].content }}"}"#;

/// Panics of the library, which the reader catches, say their words and no more: where `RUST_BACKTRACE` is
/// set, finding out where they were would be counted as the reader's time and memory.
fn quiet_panics() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| std::panic::set_hook(Box::new(|panic| eprintln!("{panic}"))));
}

/// Reads and uses what is in a directory or a file; whether there was a tokenizer.
fn try_out(path: &Path) -> bool {
    let Ok(checkpoint) = Checkpoint::open_text(path) else { return false };
    let Ok(tokenizer) = Tokenizer::from_checkpoint(&checkpoint) else { return false };
    if let Ok(ids) = tokenizer.encode("hello <s> wörld 123 🌊", Special::Parse) {
        tokenizer.decode(&ids);
    }
    let last = tokenizer.vocabulary() as u32;
    tokenizer.decode(&[0, 1, 2, last.wrapping_sub(1), last, u32::MAX]);
    let _ = tokenizer.encode_prompt("hello");
    let _ = ChatTemplate::from_checkpoint(&checkpoint, &tokenizer);
    true
}

fn check(path: &Path, bytes: usize) -> Result<bool, TestCaseError> {
    quiet_panics();
    let began = Instant::now();
    let (read, claimed) = measured(|| try_out(path));
    prop_assert!(began.elapsed() < PATIENCE, "{:?}", began.elapsed());
    prop_assert!(claimed <= FOR_NONE + FOR_EACH_BYTE * bytes, "{claimed} bytes claimed for {bytes}");
    Ok(read)
}

fn write(directory: &Path, tokenizer: &[u8], config: &[u8]) {
    std::fs::write(directory.join("tokenizer.json"), tokenizer).unwrap();
    std::fs::write(directory.join("tokenizer_config.json"), config).unwrap();
    let mut weights = 64u64.to_le_bytes().to_vec();
    weights.extend_from_slice(
        format!("{:64}", r#"{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}"#).as_bytes(),
    );
    weights.extend_from_slice(&[0; 4]);
    std::fs::write(directory.join("model.safetensors"), weights).unwrap();
}

/// Values that stand where another should.
fn odd() -> impl Strategy<Value = Value> {
    prop_oneof![
        prop::sample::select(vec![
            json!(null),
            json!(true),
            json!(-1),
            json!(0),
            json!(1.5),
            json!(u32::MAX),
            json!(u64::MAX),
            json!(1u64 << 31),
            json!(""),
            json!("a"),
            json!("("),
            json!("(a+)+$"),
            json!("\u{0}"),
            json!("x".repeat(2000)),
            json!([]),
            json!({}),
            json!([null]),
            json!({"type": "WordPiece"}),
            json!("BPE"),
            json!("Unigram"),
            json!("system"),
            json!("tool"),
            json!([[[[1]]]]),
            json!({"name": "f", "arguments": {"a": [1, {"b": null}]}}),
            json!({"a": 1e300, "b": "é🦀<think>"}),
        ]),
        any::<i64>().prop_map(Value::from),
        any::<String>().prop_map(Value::from),
    ]
}

/// A value with another at some places in it, or without them.
fn altered(mut value: Value, edits: &[(prop::sample::Index, Option<Value>)]) -> Value {
    fn places(value: &Value, at: &str, found: &mut Vec<String>) {
        found.push(at.to_owned());
        match value {
            Value::Array(items) => {
                items
                    .iter()
                    .enumerate()
                    .for_each(|(index, item)| places(item, &format!("{at}/{index}"), found));
            }
            // Of long maps some entries are enough, or nothing else would be met.
            Value::Object(map) => map.iter().take(40).for_each(|(name, item)| {
                places(item, &format!("{at}/{}", name.replace('~', "~0").replace('/', "~1")), found);
            }),
            _ => {}
        }
    }
    for (at, put) in edits {
        let mut all = Vec::new();
        places(&value, "", &mut all);
        let at = at.get(&all);
        match (put, at.rsplit_once('/')) {
            (Some(put), _) => *value.pointer_mut(at).unwrap() = put.clone(),
            (None, Some((parent, last))) => match value.pointer_mut(parent).unwrap() {
                Value::Object(map) => drop(map.remove(&last.replace("~1", "/").replace("~0", "~"))),
                Value::Array(items) => drop(items.remove(last.parse().unwrap())),
                _ => {}
            },
            (None, None) => {}
        }
    }
    value
}

fn edits() -> impl Strategy<Value = Vec<(prop::sample::Index, Option<Value>)>> {
    prop::collection::vec((any::<prop::sample::Index>(), prop::option::weighted(0.8, odd())), 1..5)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 700, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_tokenizer_of_other_values_is_read_or_refused(edits in edits(), config in any::<bool>()) {
        let directory = tempfile::tempdir().unwrap();
        let (tokenizer, own) = (tokenizer_json(), serde_json::from_str(CONFIG).unwrap());
        let (tokenizer, own) = if config { (tokenizer, altered(own, &edits)) } else { (altered(tokenizer, &edits), own) };
        let (tokenizer, own) = (tokenizer.to_string(), own.to_string());
        write(directory.path(), tokenizer.as_bytes(), own.as_bytes());
        check(directory.path(), tokenizer.len() + own.len())?;
    }

    #[test]
    fn a_tokenizer_of_other_bytes_is_read_or_refused(damage in prop::collection::vec(any::<[u32; 3]>(), 1..4)) {
        let directory = tempfile::tempdir().unwrap();
        let bytes = damaged(tokenizer_json().to_string().as_bytes(), &damage);
        write(directory.path(), &bytes, CONFIG.as_bytes());
        check(directory.path(), bytes.len())?;
    }

    #[test]
    fn a_tekken_file_of_other_values_is_read_or_refused(edits in edits()) {
        let directory = tempfile::tempdir().unwrap();
        let file = altered(tekken_json(), &edits);
        tekken::write(directory.path(), &file);
        check(directory.path(), file.to_string().len())?;
    }

    #[test]
    fn a_tekken_file_of_other_bytes_is_read_or_refused(damage in prop::collection::vec(any::<[u32; 3]>(), 1..4)) {
        let directory = tempfile::tempdir().unwrap();
        let bytes = damaged(tekken_json().to_string().as_bytes(), &damage);
        std::fs::write(directory.path().join("tekken.json"), &bytes).unwrap();
        check(directory.path(), bytes.len())?;
    }

    #[test]
    fn a_vocabulary_of_gguf_is_read_or_refused(damage in prop::collection::vec(any::<[u32; 3]>(), 1..4)) {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("a.gguf");
        let bytes = damaged(&support::vocabulary().finish(), &damage);
        std::fs::write(&path, &bytes).unwrap();
        check(&path, bytes.len())?;
    }

    /// Whatever the messages, tools and variables are.
    #[test]
    fn templates_take_anything(edits in edits(), end in 0usize..3, template in 0usize..TEMPLATES.len()) {
        let conversation = altered(conversation(), &edits);
        let given = conversation.to_string().len();
        let (messages, extra) = (conversation["messages"].as_array(), conversation["extra"].as_object());
        let (messages, extra) = (messages.cloned().unwrap_or_default(), extra.cloned().unwrap_or_default());
        let tokenizer = support::tokenizer(support::vocabulary());
        let template = ChatTemplate::from_source(TEMPLATES[template], &tokenizer).unwrap();
        let end = [ChatEnd::Message, ChatEnd::Answer, ChatEnd::Content][end];
        let chat = Chat { messages: &messages, end, extra: &extra };
        let began = Instant::now();
        let rendered = template.render(&chat);
        prop_assert!(began.elapsed() < PATIENCE, "{:?}", began.elapsed());
        if let Ok(text) = rendered {
            let most = RENDERED_FOR_NONE + RENDERED_FOR_EACH_BYTE * given;
            prop_assert!(text.len() <= most, "{} bytes of {given}", text.len());
        }
    }
}

/// Templates in the ways that models write theirs.
const TEMPLATES: [&str; 3] = [
    include_str!("templates/alternating.jinja"),
    include_str!("templates/python.jinja"),
    include_str!("templates/thinking-tools.jinja"),
];

fn conversation() -> Value {
    json!({
        "messages": [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": "What is the weather?"},
            {"role": "assistant", "content": "I look.", "reasoning_content": "Well.", "tool_calls": [
                {"id": "call_1", "type": "function", "function": {"name": "f", "arguments": {"city": "Paris", "days": [1, 2]}}},
            ]},
            {"role": "tool", "content": "Rain", "tool_call_id": "call_1", "name": "f"},
            {"role": "user", "content": "And then?"},
        ],
        "extra": {
            "tools": [{"type": "function", "function": {"name": "f", "description": "d", "parameters": {"type": "object", "properties": {}}}}],
            "enable_thinking": true, "reasoning_effort": "low", "documents": [], "messages": [],
        },
    })
}

#[test]
fn what_has_no_damage_is_read() {
    let directory = tempfile::tempdir().unwrap();
    write(directory.path(), tokenizer_json().to_string().as_bytes(), CONFIG.as_bytes());
    assert!(check(directory.path(), tokenizer_json().to_string().len()).unwrap());
    let directory = tempfile::tempdir().unwrap();
    tekken::write(directory.path(), &tekken_json());
    assert!(check(directory.path(), tekken_json().to_string().len()).unwrap());
}

/// A template is a program out of a downloaded file: it neither runs nor writes for ever.
#[test]
fn a_template_writes_so_much_and_no_more() {
    let tokenizer = support::tokenizer(support::vocabulary());
    let messages = [json!({"role": "user", "content": "x".repeat(1 << 20)})];
    let chat = Chat { messages: &messages, end: ChatEnd::Answer, extra: &Map::new() };
    for source in [
        "{% for a in range(10000) %}{{ messages[0].content }}{% endfor %}",
        "{% for a in range(10000) %}{% for b in range(10000) %}{{ messages[0].content }}{% endfor %}{% endfor %}",
    ] {
        let template = ChatTemplate::from_source(source, &tokenizer).unwrap();
        let (rendered, claimed) = measured(|| template.render(&chat).map(|text| text.len()));
        let error = rendered.expect_err("too long").to_string();
        assert!(error.contains("bytes"), "{error}");
        assert!(claimed < 512 << 20, "{claimed} bytes claimed");
    }
}
