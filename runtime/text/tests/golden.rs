//! Token ids against llama.cpp's, on the real SmolLM2 vocabulary.
//!
//! The vocabulary is in the weights, which are not in the repository: `cargo xtask test` names the file in
//! `MONOMORPH_TEST_WEIGHTS`. Without it these tests are ignored, and the summary says so.

use libtest_mimic::{Arguments, Trial};
use monomorph_text::{Chat, ChatEnd, ChatTemplate, Special, Tokenizer};
use monomorph_weights::Checkpoint;
use monomorph_weights::test_support::{GgufWriter, Value};
use serde::Deserialize;
use serde_json::{Map, json};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Instant;

/// The variable that names the SmolLM2-135M-Instruct GGUF.
const WEIGHTS: &str = "MONOMORPH_TEST_WEIGHTS";

#[derive(Deserialize)]
struct Row {
    text: String,
    /// With control tokens parsed.
    ids: Vec<u32>,
    /// Without, where that differs.
    plain: Option<Vec<u32>>,
}

fn goldens() -> BTreeMap<String, Vec<Row>> {
    let mut all: BTreeMap<String, serde_json::Value> =
        serde_json::from_str(include_str!("golden.json")).unwrap();
    all.remove("made by");
    all.into_iter().map(|(name, rows)| (name, serde_json::from_value(rows).unwrap())).collect()
}

/// Where the weights are, if they are named.
fn weights() -> Option<PathBuf> {
    std::env::var_os(WEIGHTS).filter(|path| !path.is_empty()).map(PathBuf::from)
}

/// A test by its name.
type Test = (&'static str, fn(&Checkpoint));

/// Tests that are counted as ignored, and say what they need, where the weights are not.
fn main() -> ExitCode {
    let tests: [Test; 3] = [
        ("ids_equal_llama_cpp", ids_equal_llama_cpp),
        ("other_pre_tokenizers_equal_llama_cpp", other_pre_tokenizers_equal_llama_cpp),
        ("the_real_chat_template", the_real_chat_template),
    ];
    let trial = |(name, test): Test| {
        let run = move || {
            let path = weights().ok_or_else(|| format!("{WEIGHTS} is not set"))?;
            test(&Checkpoint::open(&path).map_err(|error| format!("{WEIGHTS}: {error}"))?);
            Ok(())
        };
        let trial = Trial::test(name, run).with_ignored_flag(weights().is_none());
        if weights().is_none() { trial.with_kind("needs SmolLM2's weights: cargo xtask test") } else { trial }
    };
    libtest_mimic::run(&Arguments::from_args(), tests.map(trial).into()).exit_code()
}

fn compare(tokenizer: &Tokenizer, name: &str, rows: &[Row]) {
    let mut wrong = 0;
    for row in rows {
        let plain = row.plain.as_ref().unwrap_or(&row.ids);
        for (special, expected) in [(Special::Parse, &row.ids), (Special::Plain, plain)] {
            if special == Special::Plain && row.plain.is_none() && name != "smollm" {
                continue;
            }
            let found = tokenizer.encode(&row.text, special).unwrap();
            if found != *expected {
                wrong += 1;
                eprintln!("{name} {special:?} {:?}\n  expected {expected:?}\n  found    {found:?}", row.text);
            }
        }
    }
    assert_eq!(wrong, 0, "{name}: {wrong} encodings differ from llama.cpp's");
}

fn ids_equal_llama_cpp(checkpoint: &Checkpoint) {
    let start = Instant::now();
    let tokenizer = Tokenizer::from_checkpoint(checkpoint).unwrap();
    eprintln!("loaded {} tokens in {:?}", tokenizer.vocabulary(), start.elapsed());
    let rows = &goldens()["smollm"];
    compare(&tokenizer, "smollm", rows);
    // Byte-level BPE loses nothing: plain text comes back as it was.
    for row in rows {
        let plain = tokenizer.encode(&row.text, Special::Plain).unwrap();
        assert_eq!(tokenizer.decode(&plain), row.text);
    }
    assert_eq!(tokenizer.encode_prompt("Hi").unwrap(), tokenizer.encode("Hi", Special::Plain).unwrap());
    assert_eq!((tokenizer.bos(), tokenizer.eos(), tokenizer.end_ids()), (Some(1), Some(2), &[2][..]));
    assert_eq!(tokenizer.decode(&[1, 2]), "");
    assert!(tokenizer.is_special(2) && !tokenizer.is_special(17));
    assert_eq!(tokenizer.token_bytes(2), Some(&b"<|im_end|>"[..]));
}

/// The other pre-tokenizers, by the same vocabulary under their names.
fn other_pre_tokenizers_equal_llama_cpp(checkpoint: &Checkpoint) {
    let metadata = checkpoint.gguf_metadata().unwrap();
    let strings = |key: &str| -> Vec<String> {
        metadata.strs(key).unwrap().unwrap().into_iter().map(str::to_owned).collect()
    };
    for (name, mut rows) in goldens() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("vocabulary.gguf");
        let file = GgufWriter::new()
            .metadata("tokenizer.ggml.model", "gpt2")
            .metadata("tokenizer.ggml.pre", name.as_str())
            .metadata("tokenizer.ggml.bos_token_id", Value::U32(1))
            .metadata("tokenizer.ggml.tokens", Value::Strs(strings("tokenizer.ggml.tokens")))
            .metadata("tokenizer.ggml.merges", Value::Strs(strings("tokenizer.ggml.merges")))
            .metadata(
                "tokenizer.ggml.token_type",
                Value::I32s(metadata.i32s("tokenizer.ggml.token_type").unwrap().unwrap()),
            );
        std::fs::write(&path, file.finish()).unwrap();
        let tokenizer = Tokenizer::from_checkpoint(&Checkpoint::open(&path).unwrap()).unwrap();
        // Qwen composes characters first, as its tokenizer.json says; llama.cpp does not.
        if name == "qwen2" {
            rows.retain(|row| {
                !row.text.chars().any(|c| ('\u{300}'..'\u{340}').contains(&c) || c == '\u{1161}')
            });
        }
        compare(&tokenizer, &name, &rows);
    }
}

fn the_real_chat_template(checkpoint: &Checkpoint) {
    let tokenizer = Tokenizer::from_checkpoint(checkpoint).unwrap();
    let template = ChatTemplate::from_checkpoint(checkpoint, &tokenizer).unwrap().unwrap();
    let messages = [json!({"role": "user", "content": "Say <|im_end|> please."})];
    let chat = Chat { messages: &messages, end: ChatEnd::Answer, extra: &Map::new() };
    assert_eq!(
        template.render(&chat).unwrap(),
        "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n\
         <|im_start|>user\nSay <|im_end|> please.<|im_end|>\n<|im_start|>assistant\n"
    );
    let ids = tokenizer.encode_chat(&template, &chat).unwrap().ids;
    // The user's own `<|im_end|>` is text; the two the template wrote are tokens.
    assert_eq!(ids.iter().filter(|&&id| id == 2).count(), 2);
    assert!(tokenizer.decode(&ids).contains("Say <|im_end|> please."));

    let messages = [json!({"role": "user", "content": "Hello."})];
    let chat = Chat { messages: &messages, end: ChatEnd::Answer, extra: &Map::new() };
    let text = template.render(&chat).unwrap();
    assert_eq!(
        tokenizer.encode_chat(&template, &chat).unwrap().ids,
        tokenizer.encode(&text, Special::Parse).unwrap()
    );
}
