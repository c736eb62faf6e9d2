//! Answers in OpenAI's wire format, whole and in chunks.

use super::generation::GenerationParams;
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
    /// Characters of each choice's text written so far, for `text_offset`.
    offsets: Vec<usize>,
}

impl AnswerWriter {
    /// A writer for the answer to a request of these parameters. What `mark` says of all answers stands in their fingerprint.
    pub(crate) fn new(
        endpoint: Endpoint,
        model: &str,
        mark: Option<&str>,
        params: &GenerationParams,
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
            logprobs: params.sampling.top_logprobs.is_some(),
            include_usage: params.include_usage,
            offsets: vec![0; params.choices],
        }
    }

    /// The whole answer, of all choices in order.
    pub(crate) fn whole(&mut self, pieces: &[Piece]) -> Value {
        let choices: Vec<Value> = (0..)
            .zip(pieces)
            .map(|(index, piece)| {
                let body = match self.endpoint {
                    Endpoint::Chat => {
                        ("message", json!({"role": "assistant", "content": piece.text, "refusal": null}))
                    }
                    Endpoint::Text => ("text", piece.text.clone().into()),
                };
                self.choice(index, body, piece)
            })
            .collect();
        let object = if self.endpoint == Endpoint::Chat { "chat.completion" } else { "text_completion" };
        let total = Usage::of_all(pieces.iter().filter_map(|piece| Some(piece.end.as_ref()?.usage)));
        self.envelope(object, choices.into(), Some(usage(total)))
    }

    /// What a stream opens with, if anything: a chat says whose turn it is.
    pub(crate) fn opening(&self) -> Vec<Value> {
        let choices = if self.endpoint == Endpoint::Chat { self.offsets.len() } else { 0 };
        let opening = |index| {
            let delta = json!({"role": "assistant", "content": "", "refusal": null});
            let choice = json!([{"index": index, "delta": delta, "logprobs": null, "finish_reason": null}]);
            self.envelope("chat.completion.chunk", choice, self.chunk_usage())
        };
        (0..choices).map(opening).collect()
    }

    /// A piece of one choice of a streamed answer.
    pub(crate) fn chunk(&mut self, index: usize, piece: &Piece) -> Value {
        let body = match self.endpoint {
            Endpoint::Chat if piece.text.is_empty() => ("delta", json!({})),
            Endpoint::Chat => ("delta", json!({"content": piece.text})),
            Endpoint::Text => ("text", piece.text.clone().into()),
        };
        let choice = self.choice(index, body, piece);
        self.envelope(self.chunk_object(), json!([choice]), self.chunk_usage())
    }

    /// The chunk with the usage that ends a stream, where asked for.
    pub(crate) fn usage_chunk(&self, total: Usage) -> Option<Value> {
        self.include_usage.then(|| self.envelope(self.chunk_object(), json!([]), Some(usage(total))))
    }

    fn chunk_object(&self) -> &'static str {
        if self.endpoint == Endpoint::Chat { "chat.completion.chunk" } else { "text_completion" }
    }

    /// With `include_usage`, every chunk but the last says `"usage": null`.
    fn chunk_usage(&self) -> Option<Value> {
        self.include_usage.then_some(Value::Null)
    }

    /// A choice, or a part of one, with its number, its `body`, and what every piece says.
    fn choice(&mut self, index: usize, (name, body): (&str, Value), piece: &Piece) -> Value {
        let logprobs = match self.endpoint {
            _ if !self.logprobs => Value::Null,
            Endpoint::Chat => json!({
                "content": piece.logprobs.iter().map(chat_logprob).collect::<Vec<_>>(), "refusal": null,
            }),
            Endpoint::Text => self.text_logprobs(index, &piece.logprobs),
        };
        let reason = piece.end.as_ref().map(|end| match end.reason {
            EndReason::Stop => "stop",
            EndReason::Length => "length",
        });
        json!({"index": index, name: body, "logprobs": logprobs, "finish_reason": reason})
    }

    fn text_logprobs(&mut self, index: usize, tokens: &[TokenLogprob]) -> Value {
        let mut offsets = Vec::new();
        for token in tokens {
            offsets.push(self.offsets[index]);
            self.offsets[index] += String::from_utf8_lossy(&token.bytes).chars().count();
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
