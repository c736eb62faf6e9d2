//! Answers in OpenAI's wire format, whole and in chunks.

use super::logprobs;
use crate::answer::blocks::{Block, Blocks};
use crate::answer::part::{AnswerPart, Echoed, End, EndReason, Piece, TokenLogprob, Usage};
use crate::answer::writer::{Writer, event};
use crate::error::ApiError;
use crate::process::clock::unix_time;
use crate::process::random::random_seed;
use crate::request::generation::GenerationParams;
use axum::body::Bytes;
use serde_json::{Map, Value, json};
use std::sync::Arc;

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
    /// Whether token ids are returned.
    token_ids: bool,
    /// Of each prompt.
    told: Vec<Told>,
    /// Answers to each prompt.
    each: usize,
    /// Whether tools may be called.
    tools: bool,
    /// Whether a stream has begun.
    begun: bool,
    /// Characters of each choice's text written so far, for `text_offset`.
    offsets: Vec<usize>,
}

/// What answers return of their prompt, if requested.
#[derive(Clone, Debug, Default)]
pub(crate) struct Told {
    /// Its text, if an echo is requested. With log-probabilities the answer's first piece has those of its
    /// tokens.
    pub(crate) echo: Option<String>,
    /// Its ids, if requested.
    pub(crate) ids: Option<Arc<[u32]>>,
}

impl AnswerWriter {
    /// A writer for the answer to a request of these parameters. `mark` becomes part of the fingerprint of
    /// all answers.
    pub(crate) fn new(
        endpoint: Endpoint,
        model: &str,
        mark: Option<&str>,
        params: &GenerationParams,
    ) -> AnswerWriter {
        let prefix = if endpoint == Endpoint::Chat { "chatcmpl" } else { "cmpl" };
        let (high, low) = (random_seed(), random_seed());
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
            token_ids: params.token_ids,
            told: vec![Told::default()],
            each: params.choices,
            tools: false,
            begun: false,
            offsets: vec![0; params.choices],
        }
    }

    /// A writer for several prompts with their echoes: choices are numbered prompt by prompt.
    pub(crate) fn with_prompts(self, told: Vec<Told>) -> AnswerWriter {
        AnswerWriter { offsets: vec![0; told.len() * self.each], told, ..self }
    }

    /// The echo of the prompt that a choice answers.
    fn told(&self, index: usize) -> &Told {
        static NOTHING: Told = Told { echo: None, ids: None };
        self.told.get(index / self.each.max(1)).unwrap_or(&NOTHING)
    }

    /// A writer whose answers may be calls.
    pub(crate) fn with_tools(self, tools: bool) -> AnswerWriter {
        AnswerWriter { tools, ..self }
    }

    /// A chunk of one choice: its `body` and the common fields.
    fn chunk(&mut self, index: usize, body: Value, beside: Beside<'_>) -> Bytes {
        let name = if self.endpoint == Endpoint::Chat { "delta" } else { "text" };
        let choice = self.choice(index, (name, body), beside);
        event(&self.envelope(self.chunk_object(), json!([choice]), self.chunk_usage()))
    }

    fn chunk_object(&self) -> &'static str {
        if self.endpoint == Endpoint::Chat { "chat.completion.chunk" } else { "text_completion" }
    }

    /// With `include_usage`, every chunk but the last says `"usage": null`.
    fn chunk_usage(&self) -> Option<Value> {
        self.include_usage.then_some(Value::Null)
    }

    /// A choice, or a part of one: its number, its `body` and the common fields.
    fn choice(
        &mut self,
        index: usize,
        (name, body): (&str, Value),
        Beside { echoed, logprobs, ids, end }: Beside<'_>,
    ) -> Value {
        let logprobs = match self.endpoint {
            _ if !self.logprobs => Value::Null,
            Endpoint::Chat => logprobs::of_chat(logprobs),
            Endpoint::Text => {
                let mut offset = self.offsets[index];
                let echoed = echoed.zip(self.told(index).echo.as_deref());
                let logprobs = logprobs::of_text(echoed, logprobs, &mut offset);
                self.offsets[index] = offset;
                logprobs
            }
        };
        let reason = end.map(|end| match end.reason {
            EndReason::Length => "length",
            EndReason::Stop | EndReason::StopString(_) if end.calls > 0 => "tool_calls",
            EndReason::Stop | EndReason::StopString(_) => "stop",
        });
        let mut choice = json!({"index": index, name: body, "logprobs": logprobs, "finish_reason": reason});
        if self.token_ids {
            choice["token_ids"] = ids.into();
        }
        choice
    }

    /// Puts the prompt's ids where vLLM has them: in each choice of a text completion.
    fn tell_prompt(&self, index: usize, choice: &mut Value) {
        if let (Endpoint::Text, Some(prompt)) = (self.endpoint, &self.told(index).ids) {
            choice["prompt_token_ids"] = (**prompt).into();
        }
    }

    /// The echo of a text completion, as a chunk.
    fn echoed(&mut self, index: usize, echoed: Option<&Echoed>) -> Bytes {
        let text = self.told(index).echo.clone().unwrap_or_default();
        let mut choice = self.choice(index, ("text", text.into()), Beside { echoed, ..Beside::default() });
        self.tell_prompt(index, &mut choice);
        event(&self.envelope(self.chunk_object(), json!([choice]), self.chunk_usage()))
    }

    /// A part as a chunk's body; text completions have text only.
    fn delta(&self, part: &AnswerPart) -> Option<Value> {
        match (self.endpoint, part) {
            (Endpoint::Text, AnswerPart::Text(text)) => return Some(text.clone().into()),
            (Endpoint::Text, _) => return None,
            (Endpoint::Chat, _) => {}
        }
        Some(match part {
            AnswerPart::Text(text) => json!({"content": text}),
            AnswerPart::Reasoning(text) => json!({"reasoning_content": text}),
            AnswerPart::Rejected(text) => json!({"rejected_markup": text}),
            AnswerPart::CallBegin { index, id, name } => {
                let function = json!({"name": name, "arguments": ""});
                json!({"tool_calls": [{"index": index, "id": id, "type": "function", "function": function}]})
            }
            AnswerPart::CallArguments { index, delta } => {
                json!({"tool_calls": [{"index": index, "function": {"arguments": delta}}]})
            }
            AnswerPart::ReasoningEnd | AnswerPart::CallEnd { .. } => return None,
        })
    }

    fn usage(&self, usage: Usage) -> Value {
        let Usage { prompt_tokens, cached_tokens, compacted_tokens, completion_tokens, reasoning_tokens } =
            usage;
        let mut value = json!({
            "prompt_tokens": prompt_tokens,
            "prompt_tokens_details": {"cached_tokens": cached_tokens},
            "completion_tokens": completion_tokens,
            "total_tokens": prompt_tokens + completion_tokens,
        });
        if compacted_tokens > 0 {
            value["prompt_tokens_details"]["compacted_tokens"] = compacted_tokens.into();
        }
        if self.endpoint == Endpoint::Chat {
            value["completion_tokens_details"] = json!({"reasoning_tokens": reasoning_tokens});
        }
        value
    }

    fn envelope(&self, object: &str, choices: Value, usage: Option<Value>) -> Value {
        let mut envelope = Map::new();
        envelope.insert("id".to_owned(), self.id.clone().into());
        envelope.insert("object".to_owned(), object.into());
        envelope.insert("created".to_owned(), self.created.into());
        envelope.insert("model".to_owned(), self.model.clone().into());
        envelope.insert("system_fingerprint".to_owned(), self.fingerprint.clone().into());
        envelope.insert("choices".to_owned(), choices);
        // vLLM has them here in chats, and in their first chunk.
        if let (Endpoint::Chat, Some(prompt), true) = (self.endpoint, &self.told(0).ids, !self.begun) {
            envelope.insert("prompt_token_ids".to_owned(), (**prompt).into());
        }
        if let Some(usage) = usage {
            envelope.insert("usage".to_owned(), usage);
        }
        Value::Object(envelope)
    }
}

impl Writer for AnswerWriter {
    fn whole(&mut self, pieces: &[Piece]) -> Value {
        let choices: Vec<Value> = (0..)
            .zip(pieces)
            .map(|(index, piece)| {
                let body = match self.endpoint {
                    Endpoint::Chat => ("message", message(&piece.parts)),
                    Endpoint::Text => {
                        let echo = self.told(index).echo.as_deref().unwrap_or_default();
                        ("text", format!("{echo}{}", piece.text()).into())
                    }
                };
                let mut choice = self.choice(index, body, Beside::of(piece));
                self.tell_prompt(index, &mut choice);
                choice
            })
            .collect();
        let object = if self.endpoint == Endpoint::Chat { "chat.completion" } else { "text_completion" };
        let usages: Vec<Usage> = pieces
            .iter()
            .map(|piece| piece.end.as_ref().map_or_else(Usage::default, |end| end.usage))
            .collect();
        let total = Usage::of_all(&usages, self.each);
        self.envelope(object, choices.into(), Some(self.usage(total)))
    }

    /// A chat opens with the role, and with empty text unless the answer may be calls only. A text completion
    /// opens with its prompt, if asked for.
    fn opening(&mut self) -> Vec<Bytes> {
        // All prompts are treated alike.
        let Told { echo, ids } = self.told(0);
        let scored = echo.is_some() && self.logprobs;
        let telling = !scored && (echo.is_some() || ids.is_some());
        let opening = |index: usize, writer: &mut AnswerWriter| {
            if writer.endpoint == Endpoint::Text {
                return writer.echoed(index, None);
            }
            let mut delta = json!({"role": "assistant", "content": "", "refusal": null});
            if writer.tools {
                delta["content"] = Value::Null;
            }
            let choice = json!([{"index": index, "delta": delta, "logprobs": null, "finish_reason": null}]);
            event(&writer.envelope("chat.completion.chunk", choice, writer.chunk_usage()))
        };
        let choices = if self.endpoint == Endpoint::Chat || telling { self.offsets.len() } else { 0 };
        let events = (0..choices).map(|index| opening(index, self)).collect();
        self.begun = true;
        events
    }

    /// Every part is a chunk of its own, and so is the end: clients expect the finish reason in a chunk
    /// without content.
    fn piece(&mut self, index: usize, piece: &Piece) -> Vec<Bytes> {
        let echoed = piece.echoed.as_ref().map(|echoed| self.echoed(index, Some(echoed)));
        let mut events: Vec<Bytes> = echoed.into_iter().collect();
        let (mut logprobs, mut ids) = (piece.logprobs.as_slice(), piece.ids.as_slice());
        for part in &piece.parts {
            let text = matches!(part, AnswerPart::Text(_));
            let Some(body) = self.delta(part) else { continue };
            let logprobs = if text { std::mem::take(&mut logprobs) } else { &[] };
            // All tokens of the piece go with its first chunk.
            events.push(self.chunk(
                index,
                body,
                Beside { logprobs, ids: std::mem::take(&mut ids), ..Beside::default() },
            ));
        }
        let empty = if self.endpoint == Endpoint::Chat { json!({}) } else { json!("") };
        if !logprobs.is_empty() {
            let ids = std::mem::take(&mut ids);
            events.push(self.chunk(index, empty.clone(), Beside { logprobs, ids, ..Beside::default() }));
        }
        if piece.end.is_some() {
            events.push(self.chunk(
                index,
                empty,
                Beside { ids, end: piece.end.as_ref(), ..Beside::default() },
            ));
        }
        events
    }

    fn closing(&mut self, total: Usage) -> Vec<Bytes> {
        let usage = || event(&self.envelope(self.chunk_object(), json!([]), Some(self.usage(total))));
        let usage = self.include_usage.then(usage);
        usage.into_iter().chain([Bytes::from_static(b"data: [DONE]\n\n")]).collect()
    }

    fn failure(&mut self, error: &ApiError) -> Bytes {
        event(&error.body())
    }
}

/// The fields beside a choice's text.
#[derive(Clone, Copy, Default)]
struct Beside<'a> {
    echoed: Option<&'a Echoed>,
    logprobs: &'a [TokenLogprob],
    ids: &'a [u32],
    end: Option<&'a End>,
}

impl<'a> Beside<'a> {
    fn of(piece: &'a Piece) -> Beside<'a> {
        let Piece { echoed, logprobs, ids, end, .. } = piece;
        Beside { echoed: echoed.as_ref(), logprobs, ids, end: end.as_ref() }
    }
}

/// A whole chat's message. Absent fields are left out, except the content, which is null if there are only
/// calls.
fn message(parts: &[AnswerPart]) -> Value {
    let (mut content, mut reasoning) = (String::new(), String::new());
    let mut calls: Vec<Value> = Vec::new();
    for block in Blocks::of(parts) {
        match block {
            Block::Text(text) => content.push_str(&text),
            Block::Reasoning(text) => reasoning.push_str(&text),
            Block::Call { id, name, arguments } => {
                let function = json!({"name": name, "arguments": arguments});
                calls.push(json!({"id": id, "type": "function", "function": function}));
            }
        }
    }
    let rejected =
        |part: &AnswerPart| if let AnswerPart::Rejected(text) = part { Some(text.clone()) } else { None };
    let rejected: String = parts.iter().filter_map(rejected).collect();
    let content = if content.is_empty() && !calls.is_empty() { Value::Null } else { content.into() };
    let mut message = json!({"role": "assistant", "content": content, "refusal": null});
    for (name, text) in [("reasoning_content", reasoning), ("rejected_markup", rejected)] {
        if !text.is_empty() {
            message[name] = text.into();
        }
    }
    if !calls.is_empty() {
        message["tool_calls"] = calls.into();
    }
    message
}
