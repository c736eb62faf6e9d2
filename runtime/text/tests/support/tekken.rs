//! A small `tekken.json`.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};
use std::path::Path;

/// Names of the control tokens that the file gives; more have none.
pub const SPECIAL: [&str; 17] = [
    "<unk>",
    "<s>",
    "</s>",
    "[INST]",
    "[/INST]",
    "[AVAILABLE_TOOLS]",
    "[/AVAILABLE_TOOLS]",
    "[TOOL_RESULTS]",
    "[/TOOL_RESULTS]",
    "[TOOL_CALLS]",
    "[THINK]",
    "[/THINK]",
    "[ARGS]",
    "[SYSTEM_PROMPT]",
    "[/SYSTEM_PROMPT]",
    "[MODEL_SETTINGS]",
    "[/MODEL_SETTINGS]",
];

/// How many control tokens there are.
pub const NUMBER: usize = 20;

/// A file of the 256 bytes, then `tokens`, whose pieces are those of `pattern`.
pub fn file(pattern: &str, tokens: &[Vec<u8>]) -> Value {
    let bytes = (0..=255u8).map(|byte| vec![byte]);
    let vocab: Vec<Value> = bytes
        .chain(tokens.iter().cloned())
        .enumerate()
        .map(|(rank, token)| {
            let text = String::from_utf8(token.clone()).ok();
            json!({"rank": rank, "token_bytes": STANDARD.encode(&token), "token_str": text})
        })
        .collect();
    let special: Vec<Value> = SPECIAL
        .iter()
        .enumerate()
        .map(|(rank, name)| json!({"rank": rank, "token_str": name, "is_control": true}))
        .collect();
    json!({
        "config": {
            "pattern": pattern, "num_vocab_tokens": vocab.len(), "default_vocab_size": vocab.len() + NUMBER,
            "default_num_special_tokens": NUMBER, "version": "v15",
        },
        "vocab": vocab, "special_tokens": special, "image": {"image_patch_size": 14},
    })
}

/// Writes the file where a tokenizer is looked for.
pub fn write(directory: &Path, file: &Value) {
    std::fs::write(directory.join("tekken.json"), file.to_string()).expect("written");
}
