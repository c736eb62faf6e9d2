//! Answers in OpenAI's wire format, whole and in chunks.

use crate::answer::{EndReason, Piece, TokenLogprob, Usage};
use serde_json::{Map, Value, json};
use std::time::{SystemTime, UNIX_EPOCH};

/// Which endpoint's shape an answer takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Endpoint {
    /// `/v1/chat/completions`.
    Chat,
    /// `/v1/completions`.
    Text,
}

/// Writes the answer to one request.
#[derive(Debug)]
pub(crate) struct AnswerWriter {
    endpoint: Endpoint,
    id: String,
    created: u64,
    model: String,
    fingerprint: String,
    logprobs: bool,
    include_usage: bool,
    /// Bytes of text written so far, for `text_offset`.
    offset: usize,
}

impl AnswerWriter {
    /// A writer for a new answer; `logprobs` and `include_usage` as the request had them. What `mark` says of all answers
    /// stands in their fingerprint.
    pub(crate) fn new(
        endpoint: Endpoint,
        model: &str,
        mark: Option<&str>,
        logprobs: bool,
        include_usage: bool,
    ) -> AnswerWriter {
        let prefix = if endpoint == Endpoint::Chat { "chatcmpl" } else { "cmpl" };
        let (high, low) = (super::generation::random_seed(), super::generation::random_seed());
        AnswerWriter {
            endpoint,
            id: format!("{prefix}-{high:016x}{low:016x}"),
            created: unix_time(),
            model: model.to_owned(),
            fingerprint: [concat!("monomorph-", env!("CARGO_PKG_VERSION"))]
                .into_iter()
                .chain(mark)
                .collect::<Vec<_>>()
                .join("-"),
            logprobs,
            include_usage,
            offset: 0,
        }
    }

    /// The whole answer.
    pub(crate) fn whole(&mut self, piece: &Piece) -> Value {
        let mut choice = Map::new();
        choice.insert("index".to_owned(), 0.into());
        match self.endpoint {
            Endpoint::Chat => {
                let message = json!({"role": "assistant", "content": piece.text, "refusal": null});
                choice.insert("message".to_owned(), message);
            }
            Endpoint::Text => {
                choice.insert("text".to_owned(), piece.text.clone().into());
            }
        }
        self.finish_choice(&mut choice, piece);
        let object = if self.endpoint == Endpoint::Chat { "chat.completion" } else { "text_completion" };
        let usage = piece.end.as_ref().map(|end| usage(end.usage));
        self.envelope(object, json!([choice]), Some(usage.unwrap_or(Value::Null)))
    }

    /// What a stream opens with, if anything: a chat says whose turn it is.
    pub(crate) fn opening(&self) -> Option<Value> {
        (self.endpoint == Endpoint::Chat).then(|| {
            let delta = json!({"role": "assistant", "content": "", "refusal": null});
            let choice = json!([{"index": 0, "delta": delta, "logprobs": null, "finish_reason": null}]);
            self.envelope("chat.completion.chunk", choice, self.chunk_usage())
        })
    }

    /// A piece of a streamed answer.
    pub(crate) fn chunk(&mut self, piece: &Piece) -> Value {
        let mut choice = Map::new();
        choice.insert("index".to_owned(), 0.into());
        match self.endpoint {
            Endpoint::Chat => {
                let delta = if piece.text.is_empty() { json!({}) } else { json!({"content": piece.text}) };
                choice.insert("delta".to_owned(), delta);
            }
            Endpoint::Text => {
                choice.insert("text".to_owned(), piece.text.clone().into());
            }
        }
        self.finish_choice(&mut choice, piece);
        let object =
            if self.endpoint == Endpoint::Chat { "chat.completion.chunk" } else { "text_completion" };
        self.envelope(object, json!([choice]), self.chunk_usage())
    }

    /// The chunk with the usage that ends a stream, where asked for.
    pub(crate) fn usage_chunk(&self, total: Usage) -> Option<Value> {
        let object =
            if self.endpoint == Endpoint::Chat { "chat.completion.chunk" } else { "text_completion" };
        self.include_usage.then(|| self.envelope(object, json!([]), Some(usage(total))))
    }

    /// With `include_usage`, every chunk but the last says `"usage": null`.
    fn chunk_usage(&self) -> Option<Value> {
        self.include_usage.then_some(Value::Null)
    }

    fn finish_choice(&mut self, choice: &mut Map<String, Value>, piece: &Piece) {
        let logprobs = match self.endpoint {
            _ if !self.logprobs => Value::Null,
            Endpoint::Chat => json!({
                "content": piece.logprobs.iter().map(chat_logprob).collect::<Vec<_>>(), "refusal": null,
            }),
            Endpoint::Text => self.text_logprobs(&piece.logprobs),
        };
        choice.insert("logprobs".to_owned(), logprobs);
        let reason = piece.end.as_ref().map(|end| match end.reason {
            EndReason::Stop => "stop",
            EndReason::Length => "length",
        });
        choice.insert("finish_reason".to_owned(), reason.into());
    }

    fn text_logprobs(&mut self, tokens: &[TokenLogprob]) -> Value {
        let mut offsets = Vec::new();
        for token in tokens {
            offsets.push(self.offset);
            self.offset += String::from_utf8_lossy(&token.bytes).chars().count();
        }
        let top = |token: &TokenLogprob| {
            let alternatives =
                token.top.iter().map(|(bytes, value)| (spelling(bytes), json!(finite(*value))));
            Value::Object(alternatives.collect())
        };
        json!({
            "tokens": tokens.iter().map(|token| spelling(&token.bytes)).collect::<Vec<_>>(),
            "token_logprobs": tokens.iter().map(|token| finite(token.logprob)).collect::<Vec<_>>(),
            "top_logprobs": tokens.iter().map(top).collect::<Vec<_>>(),
            "text_offset": offsets,
        })
    }

    fn envelope(&self, object: &str, choices: Value, usage: Option<Value>) -> Value {
        let mut envelope = Map::new();
        envelope.insert("id".to_owned(), self.id.clone().into());
        envelope.insert("object".to_owned(), object.into());
        envelope.insert("created".to_owned(), self.created.into());
        envelope.insert("model".to_owned(), self.model.clone().into());
        envelope.insert("system_fingerprint".to_owned(), self.fingerprint.clone().into());
        envelope.insert("choices".to_owned(), choices);
        if let Some(usage) = usage {
            envelope.insert("usage".to_owned(), usage);
        }
        Value::Object(envelope)
    }
}

fn usage(usage: Usage) -> Value {
    let Usage { prompt_tokens, cached_tokens, completion_tokens } = usage;
    json!({
        "prompt_tokens": prompt_tokens,
        "prompt_tokens_details": {"cached_tokens": cached_tokens},
        "completion_tokens": completion_tokens,
        "total_tokens": prompt_tokens + completion_tokens,
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

/// Seconds since 1970.
pub(crate) fn unix_time() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}
