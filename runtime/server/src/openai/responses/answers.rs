//! Responses in OpenAI's wire format, whole and as events.

use super::request::ResponsesRequest;
use super::store::{Store, Stored};
use crate::answer::blocks::{Block, Blocks, Kind, Step};
use crate::answer::part::{End, EndReason, Piece, TokenLogprob, Usage};
use crate::answer::writer::{Writer, named_event};
use crate::error::ApiError;
use crate::openai::logprobs::of_token;
use crate::process::clock::unix_time;
use crate::process::random::random_seed;
use axum::body::Bytes;
use axum::http::StatusCode;
use serde_json::{Map, Value, json};
use std::sync::Arc;

/// Writes the response to one request, and stores it if requested.
pub(crate) struct ResponseWriter {
    id: String,
    created: u64,
    model: String,
    /// Fields of the response that repeat the request.
    said: Map<String, Value>,
    /// Where it is stored, if it is.
    store: Option<Arc<Store>>,
    input: Vec<Value>,
    before: Option<Stored>,
    blocks: Blocks,
    /// The complete items, and the ids of all.
    output: Vec<Value>,
    ids: Vec<String>,
    /// Log-probabilities of the text that is open.
    logprobs: Vec<Value>,
    /// How many events were written.
    events: u64,
}

impl ResponseWriter {
    /// A writer for the response to a request.
    pub(crate) fn new(model: &str, request: &mut ResponsesRequest, store: &Arc<Store>) -> ResponseWriter {
        ResponseWriter {
            id: format!("resp_{:016x}{:016x}", random_seed(), random_seed()),
            created: unix_time(),
            model: model.to_owned(),
            said: std::mem::take(&mut request.said),
            store: request.store.then(|| Arc::clone(store)),
            input: std::mem::take(&mut request.input),
            before: request.before.take(),
            blocks: Blocks::default(),
            output: Vec::new(),
            ids: Vec::new(),
            logprobs: Vec::new(),
            events: 0,
        }
    }

    /// The response so far.
    fn response(&self, status: &str, end: Option<&End>, error: Value) -> Value {
        let cut = end.is_some_and(|end| end.reason == EndReason::Length);
        let mut response = json!({
            "id": self.id, "object": "response", "created_at": self.created, "status": status, "error": error,
            "incomplete_details": if cut { json!({"reason": "max_output_tokens"}) } else { Value::Null },
            "model": self.model, "output": self.output, "usage": end.map(|end| written(end.usage)),
        });
        for (name, value) in &self.said {
            response[name] = value.clone();
        }
        response
    }

    /// The finished response.
    fn finished(&mut self, end: &End) -> Value {
        let cut = end.reason == EndReason::Length;
        if cut && let Some(last) = self.output.last_mut() {
            last["status"] = "incomplete".into();
        }
        self.response(if cut { "incomplete" } else { "completed" }, Some(end), Value::Null)
    }

    /// The response to a whole answer. Requests have one choice.
    fn made(&mut self, pieces: &[Piece]) -> Value {
        for piece in pieces {
            let blocks = Blocks::of(&piece.parts);
            let last = blocks.iter().rposition(|block| matches!(block, Block::Text(_)));
            let mut tokens = piece.logprobs.as_slice();
            for (at, block) in blocks.into_iter().enumerate() {
                let own = if last == Some(at) { tokens } else { own(&block, &mut tokens) };
                let logprobs: Vec<Value> = own.iter().map(of_token).collect();
                let id = self.name(&block);
                self.output.push(item(&id, &block, "completed", &logprobs));
            }
        }
        match pieces.iter().find_map(|piece| piece.end.clone()) {
            Some(end) => self.finished(&end),
            None => self.response("failed", None, Value::Null),
        }
    }

    /// Stores the response, if requested. Returns whether it is kept.
    fn keep(&self, response: &Value) -> bool {
        let Some(store) = &self.store else { return false };
        let before = self.before.iter().flat_map(|before| &before.items);
        let items = before.chain(&self.input).chain(&self.output).cloned().collect();
        store.put(&Stored { response: response.clone(), input: self.input.clone(), items })
    }

    /// The response's id.
    pub(crate) fn id(&self) -> &str {
        &self.id
    }

    /// The response before there is anything of its answer, stored for those who ask for it by its id.
    ///
    /// # Errors
    /// When it is larger than all that is kept.
    pub(crate) fn begun(&self) -> Result<Value, ApiError> {
        let response = self.response("in_progress", None, Value::Null);
        if self.keep(&response) {
            return Ok(response);
        }
        let message =
            "`background`: this response is larger than all that this server keeps (--response-store)";
        Err(ApiError::field("background", message))
    }

    /// Stores how a response that nobody waits for ended.
    pub(crate) fn ended(&mut self, made: Result<Vec<Piece>, ApiError>) {
        let error = match made.map(|pieces| self.made(&pieces)) {
            Ok(response) if self.keep(&response) => return,
            Ok(_) => {
                let message = "the answer is larger than all that this server keeps (--response-store)";
                ApiError::new(StatusCode::BAD_REQUEST, "response_too_large", message)
            }
            Err(error) => error,
        };
        self.output.clear();
        // At no time is it not there, but where even this is too large.
        if !self.keep(&self.response("failed", None, told(&error)))
            && let Some(store) = &self.store
        {
            store.remove(&self.id);
        }
    }

    fn event(&mut self, mut value: Value) -> Bytes {
        value["sequence_number"] = self.events.into();
        self.events += 1;
        named_event(&value)
    }

    /// The id of a new item.
    fn name(&mut self, block: &Block) -> String {
        let prefix = match block {
            Block::Text(_) => "msg",
            Block::Reasoning(_) => "rs",
            Block::Call { .. } => "fc",
        };
        let id = format!("{prefix}_{:016x}{:016x}", random_seed(), random_seed());
        self.ids.push(id.clone());
        id
    }

    /// The events of a step, the first text of which takes the tokens of its piece.
    fn step(&mut self, step: Step, tokens: &mut &[TokenLogprob]) -> Vec<Value> {
        match step {
            Step::Open(index, block) => {
                let id = self.name(&block);
                let mut item = item(&id, &block, "in_progress", &[]);
                if !matches!(block, Block::Call { .. }) {
                    item["content"] = json!([]);
                }
                let opened =
                    json!({"type": "response.output_item.added", "output_index": index, "item": item});
                let part = part(&block, &[]).map(|part| {
                    json!({
                        "type": "response.content_part.added", "item_id": id, "output_index": index, "content_index": 0,
                        "part": part,
                    })
                });
                [opened].into_iter().chain(part).collect()
            }
            Step::More(index, kind, delta) => {
                let mut event = json!({"item_id": self.ids[index], "output_index": index, "delta": delta});
                event["type"] = match kind {
                    Kind::Text => "response.output_text.delta",
                    Kind::Reasoning => "response.reasoning_text.delta",
                    Kind::Call => "response.function_call_arguments.delta",
                }
                .into();
                if kind != Kind::Call {
                    event["content_index"] = 0.into();
                }
                if kind == Kind::Text {
                    let tokens: Vec<Value> = std::mem::take(tokens).iter().map(of_token).collect();
                    event["logprobs"] = json!(tokens);
                    self.logprobs.extend(tokens);
                }
                vec![event]
            }
            Step::Close(index, block) => {
                let id = self.ids[index].clone();
                let of_text = matches!(block, Block::Text(_));
                let logprobs = if of_text { std::mem::take(&mut self.logprobs) } else { Vec::new() };
                let item = item(&id, &block, "completed", &logprobs);
                self.output.push(item.clone());
                let place = json!({"item_id": id, "output_index": index});
                let with = |more: Value| {
                    let mut event = place.clone();
                    more.as_object()
                        .into_iter()
                        .flatten()
                        .for_each(|(name, value)| event[name] = value.clone());
                    event
                };
                let mut events = match &block {
                    Block::Text(text) => vec![with(
                        json!({"type": "response.output_text.done", "content_index": 0, "text": text, "logprobs": logprobs}),
                    )],
                    Block::Reasoning(text) => {
                        vec![with(
                            json!({"type": "response.reasoning_text.done", "content_index": 0, "text": text}),
                        )]
                    }
                    Block::Call { name, arguments, .. } => vec![with(
                        json!({"type": "response.function_call_arguments.done", "name": name, "arguments": arguments}),
                    )],
                };
                if let Some(part) = part(&block, &logprobs) {
                    events.push(with(
                        json!({"type": "response.content_part.done", "content_index": 0, "part": part}),
                    ));
                }
                events
                    .push(json!({"type": "response.output_item.done", "output_index": index, "item": item}));
                events
            }
        }
    }
}

impl Writer for ResponseWriter {
    fn whole(&mut self, pieces: &[Piece]) -> Value {
        let response = self.made(pieces);
        self.keep(&response);
        response
    }

    fn opening(&mut self) -> Vec<Bytes> {
        ["response.created", "response.in_progress"]
            .map(|kind| {
                let response = self.response("in_progress", None, Value::Null);
                self.event(json!({"type": kind, "response": response}))
            })
            .into()
    }

    fn piece(&mut self, _: usize, piece: &Piece) -> Vec<Bytes> {
        let mut tokens = piece.logprobs.as_slice();
        let steps: Vec<Step> = piece.parts.iter().flat_map(|part| self.blocks.take(part)).collect();
        let mut values: Vec<Value> =
            steps.into_iter().flat_map(|step| self.step(step, &mut tokens)).collect();
        // Tokens without text of their own, such as the one that ends an answer.
        self.logprobs.extend(tokens.iter().map(of_token));
        if let Some(end) = &piece.end {
            let (steps, mut none) = (self.blocks.finish(), [].as_slice());
            values.extend(steps.into_iter().flat_map(|step| self.step(step, &mut none)));
            let response = self.finished(end);
            self.keep(&response);
            let kind = format!("response.{}", response["status"].as_str().unwrap_or_default());
            values.push(json!({"type": kind, "response": response}));
        }
        values.into_iter().map(|value| self.event(value)).collect()
    }

    fn closing(&mut self, _: Usage) -> Vec<Bytes> {
        Vec::new()
    }

    fn failure(&mut self, error: &ApiError) -> Bytes {
        let response = self.response("failed", None, told(error));
        self.event(json!({"type": "response.failed", "response": response}))
    }
}

/// An error as responses have it.
fn told(error: &ApiError) -> Value {
    let code = if error.status.is_server_error() { "server_error" } else { error.code };
    json!({"code": code, "message": error.shortened_message()})
}

/// Takes the tokens of a text behind which another follows: as many as have its bytes, and none of another
/// block.
fn own<'a>(block: &Block, tokens: &mut &'a [TokenLogprob]) -> &'a [TokenLogprob] {
    let Block::Text(text) = block else { return &[] };
    let mut bytes = 0;
    let begins_within = |token: &&TokenLogprob| {
        let within = bytes < text.len();
        bytes += token.bytes.len();
        within
    };
    let count = tokens.iter().take_while(begins_within).count();
    let (own, rest) = tokens.split_at(count);
    *tokens = rest;
    own
}

/// An item of the output.
fn item(id: &str, block: &Block, status: &str, logprobs: &[Value]) -> Value {
    match block {
        Block::Text(_) => {
            json!({"id": id, "type": "message", "status": status, "role": "assistant", "content": [part(block, logprobs)]})
        }
        Block::Reasoning(_) => {
            json!({"id": id, "type": "reasoning", "status": status, "summary": [], "content": [part(block, logprobs)]})
        }
        Block::Call { id: call, name, arguments } => json!({
            "id": id, "type": "function_call", "status": status, "call_id": call, "name": name, "arguments": arguments,
        }),
    }
}

/// The one part of an item's content; calls have none.
fn part(block: &Block, logprobs: &[Value]) -> Option<Value> {
    match block {
        Block::Text(text) => {
            Some(json!({"type": "output_text", "text": text, "annotations": [], "logprobs": logprobs}))
        }
        Block::Reasoning(text) => Some(json!({"type": "reasoning_text", "text": text})),
        Block::Call { .. } => None,
    }
}

fn written(usage: Usage) -> Value {
    let Usage { prompt_tokens, cached_tokens, compacted_tokens, completion_tokens, reasoning_tokens } = usage;
    let mut details = json!({"cached_tokens": cached_tokens, "cache_write_tokens": 0});
    if compacted_tokens > 0 {
        details["compacted_tokens"] = compacted_tokens.into();
    }
    json!({
        "input_tokens": prompt_tokens, "input_tokens_details": details,
        "output_tokens": completion_tokens, "output_tokens_details": {"reasoning_tokens": reasoning_tokens},
        "total_tokens": prompt_tokens + completion_tokens,
    })
}
