//! Log-probabilities in OpenAI's two shapes.

use crate::answer::part::{Echoed, TokenLogprob};
use serde_json::{Map, Value, json};

/// Log-probabilities in the form of chats.
pub(super) fn of_chat(tokens: &[TokenLogprob]) -> Value {
    json!({"content": tokens.iter().map(of_token).collect::<Vec<_>>(), "refusal": null})
}

/// Log-probabilities in the form of text completions. Those of an echoed prompt come first; its first token
/// has none. `offset` counts the characters of text so far and is advanced.
pub(super) fn of_text(echoed: Option<(&Echoed, &str)>, tokens: &[TokenLogprob], offset: &mut usize) -> Value {
    let (echoed, text) = echoed.unzip();
    let first = echoed.map(|echoed| &echoed.first);
    let rest = || echoed.iter().flat_map(|echoed| &echoed.rest).chain(tokens);
    let bytes = || first.into_iter().chain(rest().map(|token| &token.bytes));
    let mut offsets = Vec::new();
    if let Some(text) = text {
        let tokens = bytes().count() - tokens.len();
        offsets = offsets_in(text, bytes().take(tokens).map(Vec::as_slice));
        *offset += text.chars().count();
    }
    for token in tokens {
        offsets.push(*offset);
        *offset += String::from_utf8_lossy(&token.bytes).chars().count();
    }
    let nothing = || first.map(|_| Value::Null).into_iter();
    let top = |token: &TokenLogprob| {
        let alternatives = token.top.iter().map(|(bytes, value)| (spelling(bytes), json!(finite(*value))));
        Value::Object(alternatives.collect())
    };
    json!({
        "tokens": bytes().map(|bytes| spelling(bytes)).collect::<Vec<_>>(),
        "token_logprobs": nothing().chain(rest().map(|token| finite(token.logprob).into())).collect::<Vec<_>>(),
        "top_logprobs": nothing().chain(rest().map(top)).collect::<Vec<_>>(),
        "text_offset": offsets,
    })
}

/// At which characters of a text its tokens begin. Control tokens need not stand in it, and one that begins a
/// text may have a space that the text has not: what is not there takes no room.
fn offsets_in<'a>(text: &str, tokens: impl Iterator<Item = &'a [u8]>) -> Vec<usize> {
    let (bytes, mut at, mut begun) = (text.as_bytes(), 0, 0);
    let offset_of = |token: &[u8]| {
        let left = &bytes[at..];
        let found = [token, token.strip_prefix(b" ").unwrap_or(token)];
        let length = found.iter().find(|token| left.starts_with(token)).map_or(0, |token| token.len());
        // A token that begins inside a character has that character's offset.
        let offset = if text.is_char_boundary(at) { begun } else { begun - 1 };
        begun += left[..length].iter().filter(|byte| !matches!(byte, 0x80..0xC0)).count();
        at += length;
        offset
    };
    tokens.map(offset_of).collect()
}

/// One token, as chats and responses have it.
pub(super) fn of_token(token: &TokenLogprob) -> Value {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn offsets_are_of_characters_of_the_text() {
        let offsets = |text: &str, tokens: &[&[u8]]| offsets_in(text, tokens.iter().copied());
        assert_eq!(offsets("a bc", &[b"a", b" b", b"c"]), [0, 1, 3]);
        // A character of two bytes, in halves and whole.
        assert_eq!(offsets("\u{e9}\u{e9}x", &[b"\xc3", b"\xa9", b"\xc3\xa9", b"x"]), [0, 0, 1, 2]);
        // The token that begins a prompt has no text, unless the text contains it.
        assert_eq!(offsets("ab", &[b"<s>", b" a", b"b"]), [0, 0, 1]);
        assert_eq!(offsets("<s>ab", &[b"<s>", b"a", b"b"]), [0, 3, 4]);
        assert_eq!(offsets("", &[b"<s>"]), [0]);
    }
}
