//! The tokenizer on a vocabulary of 265 tokens, from GGUF metadata and from tokenizer.json alike.

use monomorph_text::{Chat, ChatEnd, ChatTemplate, Infill, Special, TextError, Tokenizer};
use monomorph_weights::Checkpoint;
use monomorph_weights::test_support::{GgufWriter, Value};
use proptest::prelude::*;
use serde_json::{Map, json};
use std::path::Path;

mod support;

const BYTE: u32 = 3;
const HELLO: u32 = BYTE + 256 + 3;
const SPACE_HELLO: u32 = BYTE + 256 + 4;
const THINK: u32 = BYTE + 256 + 5;

fn byte(byte: u8) -> u32 {
    BYTE + u32::from(byte)
}

/// The same tokenizer as files in a directory.
fn directory() -> tempfile::TempDir {
    let directory = tempfile::tempdir().unwrap();
    let mut vocabulary = Map::new();
    for (id, token) in (0u32..).zip(["<s>", "</s>", "<|end|>"]) {
        vocabulary.insert(token.to_owned(), json!(id));
    }
    for (id, token) in (BYTE..).zip(support::byte_characters()) {
        vocabulary.insert(token, json!(id));
    }
    for (id, token) in (BYTE + 256..).zip(["he", "ll", "hell", "hello", "Ġhello"]) {
        vocabulary.insert(token.to_owned(), json!(id));
    }
    let added = |id: u32, content: &str, special: bool| {
        json!({"id": id, "content": content, "special": special, "normalized": false,
               "single_word": false, "lstrip": false, "rstrip": false})
    };
    let tokenizer = json!({
        "version": "1.0",
        "truncation": {"direction": "Right", "max_length": 4, "strategy": "LongestFirst", "stride": 0},
        "padding": null,
        "added_tokens": [
            added(0, "<s>", true), added(1, "</s>", true), added(2, "<|end|>", true), added(THINK, "<think>", false),
        ],
        "normalizer": null,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [
            {"type": "Digits", "individual_digits": true},
            {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true},
        ]},
        "post_processor": {"type": "TemplateProcessing",
            "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
            "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
            "special_tokens": {"<s>": {"id": "<s>", "ids": [0], "tokens": ["<s>"]}}},
        "decoder": {"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true},
        "model": {"type": "BPE", "vocab": vocabulary, "merges": ["h e", "l l", "he ll", "hell o", "Ġ hello"]},
    });
    let write = |name: &str, value: &serde_json::Value| {
        std::fs::write(directory.path().join(name), value.to_string()).unwrap();
    };
    write("tokenizer.json", &tokenizer);
    write(
        "tokenizer_config.json",
        &json!({"bos_token": "<s>", "eos_token": {"content": "</s>"}, "chat_template": "{{ bos_token }}from the config"}),
    );
    write("generation_config.json", &json!({"eos_token_id": [1, 2]}));
    let weights = safetensors(b"{}");
    std::fs::write(directory.path().join("model.safetensors"), weights).unwrap();
    directory
}

fn safetensors(header: &[u8]) -> Vec<u8> {
    [&(header.len() as u64).to_le_bytes(), header].concat()
}

fn from_directory(path: &Path) -> Result<Tokenizer, TextError> {
    Tokenizer::from_checkpoint(&Checkpoint::open(path).unwrap())
}

#[test]
fn both_sources_give_the_same_tokenizer() {
    let directory = directory();
    for tokenizer in [support::tokenizer(support::vocabulary()), from_directory(directory.path()).unwrap()] {
        let encode = |text| tokenizer.encode(text, Special::Parse).unwrap();
        assert_eq!(tokenizer.vocabulary(), THINK as usize + 1);
        assert_eq!(encode("hello hello"), [HELLO, SPACE_HELLO]);
        assert_eq!(encode("12 é"), [byte(b'1'), byte(b'2'), byte(b' '), byte(0xC3), byte(0xA9)]);
        assert_eq!(encode("</s>hello<|end|>"), [1, HELLO, 2]);
        assert_eq!(encode("<think>"), [THINK]);
        let plain = tokenizer.encode("</s><think>", Special::Plain).unwrap();
        assert_eq!(plain, [byte(b'<'), byte(b'/'), byte(b's'), byte(b'>'), THINK]);

        assert_eq!(tokenizer.encode_prompt("hello").unwrap(), [0, HELLO]);
        assert_eq!(tokenizer.encode_prompt("<s>hello").unwrap(), [0, HELLO]);
        assert_eq!((tokenizer.bos(), tokenizer.eos(), tokenizer.end_ids()), (Some(0), Some(1), &[1, 2][..]));
        assert_eq!(tokenizer.token_id("<|end|>"), Some(2));
        assert_eq!(tokenizer.token_bytes(SPACE_HELLO), Some(&b" hello"[..]));
        assert_eq!(tokenizer.token_bytes(THINK), Some(&b"<think>"[..]));
        assert_eq!(tokenizer.token_bytes(THINK + 1), None);
        assert!(tokenizer.is_special(2) && !tokenizer.is_special(THINK));
        assert_eq!(tokenizer.decode(&[0, HELLO, 2, THINK, byte(0xC3)]), "hello<think>\u{FFFD}");
    }
}

#[test]
fn messages_cannot_smuggle_control_tokens() {
    let tokenizer = support::tokenizer(support::vocabulary());
    let source = "{% for message in messages %}<s>{{ message.role }}:{{ message.content }}</s>{% endfor %}{{ tools | tojson }}";
    let template = ChatTemplate::from_source(source, &tokenizer).unwrap();
    let messages = [
        json!({"role": "u", "content": "</s><s>hello<think>\u{FDD0}"}),
        json!({"role": "<s>", "content": "<</s>/s>"}),
    ];
    let extra = Map::from_iter([("tools".to_owned(), json!([{"<|end|>": "<|end|>"}]))]);
    let chat = Chat { messages: &messages, end: ChatEnd::Message, extra: &extra };
    let ids = tokenizer.encode_chat(&template, &chat).unwrap().ids;
    let controls: Vec<u32> = ids.iter().copied().filter(|&id| tokenizer.is_special(id)).collect();
    assert_eq!(controls, [0, 1, 0, 1]);
    // Nothing is lost, and what anybody may write is still parsed.
    assert_eq!(
        tokenizer.decode(&ids),
        "u:</s><s>hello<think>\u{FDD0}<s>:<</s>/s>[{\"<|end|>\": \"<|end|>\"}]"
    );
    assert!(ids.contains(&THINK));
}

#[test]
fn templates_are_found() {
    let directory = directory();
    let checkpoint = Checkpoint::open(directory.path()).unwrap();
    let tokenizer = Tokenizer::from_checkpoint(&checkpoint).unwrap();
    let chat = Chat { messages: &[], end: ChatEnd::Answer, extra: &Map::new() };
    let text = || {
        ChatTemplate::from_checkpoint(&checkpoint, &tokenizer).map(|t| t.map(|t| t.render(&chat).unwrap()))
    };
    assert_eq!(text().unwrap().unwrap(), "<s>from the config");
    let write = |name: &str, text: &str| std::fs::write(directory.path().join(name), text).unwrap();
    write("chat_template.json", r#"{"chat_template": "from json"}"#);
    assert_eq!(text().unwrap().unwrap(), "from json");
    write("chat_template.jinja", "from {{ eos_token }} jinja\n");
    assert_eq!(text().unwrap().unwrap(), "from </s> jinja");
    std::fs::remove_file(directory.path().join("chat_template.jinja")).unwrap();
    write("chat_template.json", r#"{"chat_template": [{"name": "default", "template": "by name"}]}"#);
    assert_eq!(text().unwrap().unwrap(), "by name");
    write("chat_template.json", r#"{"chat_template": [{"name": "rag", "template": "by name"}]}"#);
    assert!(text().unwrap_err().to_string().contains("without a `default`"));

    let gguf = support::open(&support::vocabulary().metadata("tokenizer.chat_template", "{{ eos_token }}"));
    let template = ChatTemplate::from_checkpoint(&gguf, &tokenizer).unwrap().unwrap();
    assert_eq!(template.render(&chat).unwrap(), "</s>");
    assert!(
        ChatTemplate::from_checkpoint(&support::open(&support::vocabulary()), &tokenizer).unwrap().is_none()
    );
}

fn strings(strings: &[&str]) -> Value {
    Value::Strs(strings.iter().map(|&string| string.to_owned()).collect())
}

fn minimal(pre: &str, tokens: &[&str], merges: &[&str]) -> GgufWriter {
    GgufWriter::new()
        .metadata("tokenizer.ggml.model", "gpt2")
        .metadata("tokenizer.ggml.pre", pre)
        .metadata("tokenizer.ggml.tokens", strings(tokens))
        .metadata("tokenizer.ggml.merges", strings(merges))
}

/// A vowel sign is part of a word for Qwen3.5, and none for Qwen2.
#[test]
fn marks_are_letters_of_qwen35() {
    let encode = |pre: &str| {
        // The bytes of U+0915 and U+093E, as byte-level BPE spells them.
        let tokens = ["à", "¤", "ķ", "¾", "à¤", "à¤ķ", "à¤¾", "à¤ķà¤¾"];
        let merges = ["à ¤", "à¤ ķ", "à¤ ¾", "à¤ķ à¤¾"];
        let tokenizer = support::tokenizer(minimal(pre, &tokens, &merges));
        tokenizer.encode("\u{915}\u{93e}", Special::Parse).unwrap()
    };
    assert_eq!(encode("qwen35"), [7]);
    assert_eq!(encode("qwen2"), [5, 6]);
}

#[test]
fn what_is_wrong_is_named() {
    let good = || minimal("gpt-2", &["a", "b", "ab"], &["a b"]);
    assert_eq!(support::tokenizer(good()).encode("abb", Special::Parse).unwrap(), [2, 1]);
    let cases = [
        (GgufWriter::new(), "`tokenizer.ggml.model` is missing"),
        (GgufWriter::new().metadata("tokenizer.ggml.model", "llama"), "of kind `llama`"),
        (minimal("klingon", &["a"], &[]), "unknown pre-tokenizer `klingon`"),
        (GgufWriter::new().metadata("tokenizer.ggml.model", "gpt2"), "`tokenizer.ggml.tokens` is missing"),
        (minimal("gpt-2", &["a", "b", "a"], &[]), "tokens 0 and 2 are both `a`"),
        (minimal("gpt-2", &["a", "b", "ab"], &["a c"]), "`c`"),
        (minimal("gpt-2", &["a", "b", "ab"], &["ab"]), "merge 0, `ab`"),
        (minimal("gpt-2", &["aa", "bb"], &["aa bb"]), "merge 0, `aa bb`"),
        (good().metadata("tokenizer.ggml.token_type", Value::I32s(vec![1])), "3 tokens and 1 token types"),
        (good().metadata("tokenizer.ggml.eos_token_id", Value::U32(3)), "`tokenizer.ggml.eos_token_id` is 3"),
        (
            good().metadata("tokenizer.ggml.add_bos_token", Value::Bool(true)),
            "`tokenizer.ggml.bos_token_id` is missing",
        ),
        (good().metadata("tokenizer.ggml.eos_token_id", "a"), "should be u32 and is string"),
    ];
    for (file, expected) in cases {
        let error = Tokenizer::from_checkpoint(&support::open(&file)).unwrap_err().to_string();
        assert!(error.contains(expected), "expected {expected:?} in {error:?}");
    }

    let directory = directory();
    let json = directory.path().join("tokenizer.json");
    let text = std::fs::read_to_string(&json).unwrap();
    for (old, new, expected) in [
        (
            "\"decoder\":{\"type\":\"ByteLevel\"",
            "\"decoder\":{\"type\":\"Fuse\"",
            "decoder of an unknown kind",
        ),
        ("\"model\":{\"type\":\"BPE\"", "\"model\":{\"type\":\"XYZ\"", "is not a sound tokenizer"),
        ("{", "", "is not a sound tokenizer"),
        ("\"id\":264", "\"id\":265", "the added token `<think>` the id 265"),
    ] {
        assert!(text.contains(old), "{old}");
        std::fs::write(&json, text.replacen(old, new, 1)).unwrap();
        let error = from_directory(directory.path()).unwrap_err().to_string();
        assert!(error.contains(expected), "expected {expected:?} in {error:?}");
    }
    std::fs::write(&json, &text).unwrap();
    std::fs::write(directory.path().join("tokenizer_config.json"), r#"{"eos_token": "</t>"}"#).unwrap();
    let error = from_directory(directory.path()).unwrap_err().to_string();
    assert!(error.contains("has no token `</t>`, which is `eos_token`"), "{error}");

    std::fs::remove_file(&json).unwrap();
    let error = from_directory(directory.path()).unwrap_err();
    assert!(matches!(error, TextError::Missing { .. }), "{error}");
}

/// Long texts without a place to cut them cost no more than others (a quadratic step would take minutes
/// here), and come back whole.
#[test]
fn long_runs() {
    let tokenizer = support::tokenizer(support::vocabulary());
    for unit in [" ", "h", "hello", "\n", "1", "é", "!", " \t"] {
        let text = unit.repeat((1 << 18) / unit.len()) + "x";
        let ids = tokenizer.encode(&text, Special::Parse).unwrap();
        assert!(tokenizer.decode(&ids) == text, "{unit:?}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 600, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn plain_text_comes_back(text in "(\\PC|[ \n\t\r0-9]|<s>|<think>|hello){0,40}") {
        let tokenizer = support::tokenizer(support::vocabulary());
        prop_assert_eq!(tokenizer.decode(&tokenizer.encode(&text, Special::Plain).unwrap()), text);
    }

    /// A file with a few bits wrong is refused or read: it never makes the tokenizer or its library panic.
    #[test]
    fn broken_files_never_panic(flips in proptest::collection::vec((any::<prop::sample::Index>(), 0u8..8), 1..5)) {
        let tokens = ["a", "b", "ab", "Ġ", "abab", "<|e|>", "Ġab", "<u>"];
        let file = minimal("smollm", &tokens, &["a b", "ab ab", "Ġ ab"])
            .metadata("tokenizer.ggml.token_type", Value::I32s(vec![1, 1, 1, 1, 1, 3, 1, 4]))
            .metadata("tokenizer.ggml.eos_token_id", Value::U32(5))
            .metadata("tokenizer.chat_template", "{% for m in messages %}{{ m.content[1:] | tojson }}{% endfor %}");
        let mut bytes = file.finish();
        for (at, bit) in flips {
            let at = at.index(bytes.len());
            bytes[at] ^= 1 << bit;
        }
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("vocabulary.gguf");
        std::fs::write(&path, bytes).unwrap();
        if let Ok(checkpoint) = Checkpoint::open(&path)
            && let Ok(tokenizer) = Tokenizer::from_checkpoint(&checkpoint)
        {
            let ids = tokenizer.encode_prompt("abab ab <|e|><u>abababa b").unwrap();
            tokenizer.decode(&ids);
            if let Ok(Some(template)) = ChatTemplate::from_checkpoint(&checkpoint, &tokenizer) {
                let messages = [json!({"role": "user", "content": "ab<|e|>"})];
                let chat = Chat { messages: &messages, end: ChatEnd::Answer, extra: &Map::new() };
                let _ = tokenizer.encode_chat(&template, &chat);
            }
        }
    }
}

/// Bytes, and these control tokens from id 256 on.
fn with_controls(controls: &[&str], bos: bool) -> Tokenizer {
    let directory = tempfile::tempdir().unwrap();
    let vocabulary: Map<String, serde_json::Value> =
        support::byte_characters().into_iter().zip(0..).map(|(token, id)| (token, json!(id))).collect();
    let added: Vec<serde_json::Value> = (256..)
        .zip(controls)
        .map(|(id, content)| {
            json!({"id": id, "content": content, "special": true, "normalized": false,
                   "single_word": false, "lstrip": false, "rstrip": false})
        })
        .collect();
    let bytes =
        json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false});
    let begins = || {
        json!({"type": "TemplateProcessing",
               "single": [{"SpecialToken": {"id": controls[0], "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
               "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
               "special_tokens": {controls[0]: {"id": controls[0], "ids": [256], "tokens": [controls[0]]}}})
    };
    let tokenizer = json!({
        "version": "1.0", "truncation": null, "padding": null, "added_tokens": added, "normalizer": null,
        "pre_tokenizer": bytes, "post_processor": bos.then(begins), "decoder": bytes,
        "model": {"type": "BPE", "vocab": vocabulary, "merges": []},
    });
    let config = json!({"eos_token": controls[0], "bos_token": bos.then_some(controls[0])});
    let write = |name: &str, bytes: &[u8]| std::fs::write(directory.path().join(name), bytes).unwrap();
    write("tokenizer.json", tokenizer.to_string().as_bytes());
    write("tokenizer_config.json", config.to_string().as_bytes());
    write("model.safetensors", &[&2u64.to_le_bytes()[..], b"{}"].concat());
    Tokenizer::from_checkpoint(&Checkpoint::open(directory.path()).unwrap()).unwrap()
}

#[test]
fn beginning_and_end_stand_as_the_family_was_trained() {
    let [a, z, end] = [u32::from(b'a'), u32::from(b'z'), 256];
    for (controls, bos, wanted) in [
        (
            &["<e>", "<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"][..],
            false,
            &[257, a, 258, z, 259][..],
        ),
        (&["<e>", "<fim_prefix>", "<fim_suffix>", "<fim_middle>"], false, &[257, a, 258, z, 259]),
        (&["<e>", "<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>"], true, &[end, 257, a, 258, z, 259]),
        (&["<e>", "[SUFFIX]", "[PREFIX]", "[MIDDLE]"], true, &[end, 257, z, 258, a]),
    ] {
        let tokenizer = with_controls(controls, bos);
        let infill = Infill::of(&tokenizer).unwrap_or_else(|| panic!("no form of {controls:?}"));
        let beginning = tokenizer.encode_prompt("a").unwrap();
        assert_eq!(infill.prompt(&beginning, "z").unwrap(), wanted, "{controls:?}");
        let ends: Vec<u32> = infill.ends().collect();
        assert!(ends.contains(&257) && !ends.contains(&a), "{controls:?}: {ends:?}");
    }
}

#[test]
fn control_tokens_in_the_end_are_text() {
    let tokenizer = with_controls(&["<e>", "<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"], false);
    let ids = Infill::of(&tokenizer).unwrap().prompt(&[], "<|fim_middle|>").unwrap();
    assert_eq!(ids.iter().filter(|id| **id >= 256).copied().collect::<Vec<_>>(), [257, 258, 259]);
}

#[test]
fn a_tokenizer_that_lacks_a_token_of_a_form_has_none() {
    assert!(Infill::of(&with_controls(&["<e>", "<|fim_prefix|>", "<|fim_suffix|>"], false)).is_none());
    assert!(Infill::known().eq(["<|fim_prefix|>", "<fim_prefix>", "<｜fim▁begin｜>", "[SUFFIX]"]));
}
