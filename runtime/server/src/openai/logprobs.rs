//! Log-probabilities in OpenAI's two shapes.

use crate::answer::part::TokenLogprob;
use serde_json::{Map, Value, json};

/// As chats have them.
pub(super) fn of_chat(tokens: &[TokenLogprob]) -> Value {
    json!({"content": tokens.iter().map(chat_logprob).collect::<Vec<_>>(), "refusal": null})
}

/// As text completions have them; `offset` is how many characters of the text came before, and is moved on.
pub(super) fn of_text(tokens: &[TokenLogprob], offset: &mut usize) -> Value {
    let mut offsets = Vec::new();
    for token in tokens {
        offsets.push(*offset);
        *offset += String::from_utf8_lossy(&token.bytes).chars().count();
    }
    let top = |token: &TokenLogprob| {
        let alternatives = token.top.iter().map(|(bytes, value)| (spelling(bytes), json!(finite(*value))));
        Value::Object(alternatives.collect())
    };
    json!({
        "tokens": tokens.iter().map(|token| spelling(&token.bytes)).collect::<Vec<_>>(),
        "token_logprobs": tokens.iter().map(|token| finite(token.logprob)).collect::<Vec<_>>(),
        "top_logprobs": tokens.iter().map(top).collect::<Vec<_>>(),
        "text_offset": offsets,
    })
}

fn chat_logprob(token: &TokenLogprob) -> Value {
    let entry = |bytes: &[u8], logprob: f32| {
        Map::from_iter([
            ("token".to_owned(), json!(spelling(bytes))),
            ("logprob".to_owned(), json!(finite(logprob))),
            ("bytes".to_owned(), json!(bytes)),
        ])
    };
    let mut written = entry(&token.bytes, token.logprob);
    let top: Vec<_> = token.top.iter().map(|(bytes, logprob)| entry(bytes, *logprob)).collect();
    written.insert("top_logprobs".to_owned(), json!(top));
    Value::Object(written)
}

/// A token as text; half characters are replaced, `bytes` has them exactly.
fn spelling(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// JSON has no infinity: an impossible token gets OpenAI's "very unlikely".
fn finite(logprob: f32) -> f32 {
    logprob.max(-9999.0)
}
