//! Answers in Anthropic's wire format, whole and as events.

use super::thinking::Display;
use super::{editing, errors};
use crate::answer::blocks::{Block, Blocks, Kind, Step};
use crate::answer::part::{End, EndReason, Piece, Usage};
use crate::answer::writer::{Writer, named_event};
use crate::error::ApiError;
use crate::process::random::random_seed;
use crate::request::generation::GenerationParams;
use axum::body::Bytes;
use serde_json::{Value, json};

/// Writes the answer to one request.
#[derive(Debug)]
pub(crate) struct MessageWriter {
    id: String,
    model: String,
    /// Tokens of the prompt, which the first event reports.
    prompt_tokens: usize,
    /// Those that it leaves out of the conversation.
    compacted_tokens: usize,
    /// What the request's edits took, if it has any.
    applied: Option<Value>,
    /// The requested limit of tokens.
    max_tokens: usize,
    /// The request's stop strings.
    stops: Vec<String>,
    display: Display,
    blocks: Blocks,
}

impl MessageWriter {
    /// A writer for the answer to a prompt of so many tokens.
    pub(crate) fn new(
        model: &str,
        prompt_tokens: usize,
        params: &GenerationParams,
        display: Display,
    ) -> MessageWriter {
        MessageWriter {
            id: format!("msg_{:016x}{:08x}", random_seed(), random_seed() as u32),
            model: model.to_owned(),
            prompt_tokens,
            compacted_tokens: params.compacted.map_or(0, |it| it.tokens),
            applied: params.edited.as_deref().map(editing::applied),
            max_tokens: params.max_tokens.unwrap_or_default(),
            stops: params.stops.clone(),
            display,
            blocks: Blocks::default(),
        }
    }

    fn message(&self, content: Vec<Value>, end: Option<&End>, usage: Usage) -> Value {
        let (reason, sequence) = self.stop(end);
        let mut message = json!({
            "id": self.id, "type": "message", "role": "assistant", "model": self.model, "content": content,
            "stop_reason": reason, "stop_sequence": sequence, "usage": written(usage),
        });
        self.tell_applied(&mut message, end);
        message
    }

    /// What was edited is told with the end.
    fn tell_applied(&self, value: &mut Value, end: Option<&End>) {
        if let (Some(applied), Some(_)) = (&self.applied, end) {
            value["context_management"] = applied.clone();
        }
    }

    /// The stop reason, and the stop string if one ended it.
    fn stop(&self, end: Option<&End>) -> (Option<&'static str>, Option<&str>) {
        let Some(end) = end else { return (None, None) };
        match end.reason {
            EndReason::Length if end.usage.completion_tokens < self.max_tokens => {
                (Some("model_context_window_exceeded"), None)
            }
            EndReason::Length => (Some("max_tokens"), None),
            EndReason::StopString(which) => {
                (Some("stop_sequence"), self.stops.get(which).map(String::as_str))
            }
            EndReason::Stop if end.calls > 0 => (Some("tool_use"), None),
            EndReason::Stop => (Some("end_turn"), None),
        }
    }
}

impl Writer for MessageWriter {
    /// Requests have one choice.
    fn whole(&mut self, pieces: &[Piece]) -> Value {
        let content = pieces.iter().flat_map(|piece| Blocks::of(&piece.parts));
        let content = content.map(|block| whole(&block, self.display)).collect();
        let end = pieces.iter().find_map(|piece| piece.end.as_ref());
        self.message(content, end, end.map_or_else(Usage::default, |end| end.usage))
    }

    fn opening(&mut self) -> Vec<Bytes> {
        let Self { prompt_tokens, compacted_tokens, .. } = *self;
        let usage = Usage { prompt_tokens, compacted_tokens, ..Usage::default() };
        let message = self.message(Vec::new(), None, usage);
        vec![named_event(&json!({"type": "message_start", "message": message})), self.idle()]
    }

    fn piece(&mut self, _: usize, piece: &Piece) -> Vec<Bytes> {
        let mut steps: Vec<Step> = piece.parts.iter().flat_map(|part| self.blocks.take(part)).collect();
        if piece.end.is_some() {
            steps.extend(self.blocks.finish());
        }
        let mut events: Vec<Value> = Vec::new();
        let delta = |index: usize, delta: Value| json!({"type": "content_block_delta", "index": index, "delta": delta});
        for step in steps {
            match step {
                Step::Open(index, block) => {
                    let block = whole(&block, self.display);
                    events
                        .push(json!({"type": "content_block_start", "index": index, "content_block": block}));
                }
                Step::More(_, Kind::Reasoning, _) if self.display == Display::Omitted => {}
                Step::More(index, kind, more) => events.push(delta(
                    index,
                    match kind {
                        Kind::Text => json!({"type": "text_delta", "text": more}),
                        Kind::Reasoning => json!({"type": "thinking_delta", "thinking": more}),
                        Kind::Call => json!({"type": "input_json_delta", "partial_json": more}),
                    },
                )),
                Step::Close(index, block) => {
                    if let Block::Reasoning(text) = &block {
                        let signed =
                            json!({"type": "signature_delta", "signature": self.display.signature(text)});
                        events.push(delta(index, signed));
                    }
                    events.push(json!({"type": "content_block_stop", "index": index}));
                }
            }
        }
        if let Some(end) = &piece.end {
            let (reason, sequence) = self.stop(Some(end));
            let delta = json!({"stop_reason": reason, "stop_sequence": sequence});
            let mut event = json!({"type": "message_delta", "delta": delta, "usage": written(end.usage)});
            self.tell_applied(&mut event, Some(end));
            events.push(event);
        }
        events.iter().map(named_event).collect()
    }

    fn closing(&mut self, _: Usage) -> Vec<Bytes> {
        vec![named_event(&json!({"type": "message_stop"}))]
    }

    fn failure(&mut self, error: &ApiError) -> Bytes {
        named_event(&errors::body(error))
    }

    fn idle(&self) -> Bytes {
        named_event(&json!({"type": "ping"}))
    }
}

/// A block; an empty one is what a stream opens one with.
fn whole(block: &Block, display: Display) -> Value {
    match block {
        Block::Text(text) => json!({"type": "text", "text": text}),
        Block::Reasoning(text) => {
            json!({"type": "thinking", "thinking": display.text(text), "signature": display.signature(text)})
        }
        Block::Call { id, name, arguments } => {
            let input = match serde_json::from_str(arguments) {
                Ok(input @ Value::Object(_)) => input,
                _ if arguments.is_empty() => json!({}),
                // A call that was cut off: its text so far, wrapped so that no tool accepts it as arguments.
                _ => json!({"malformed": arguments}),
            };
            json!({"type": "tool_use", "id": id, "name": name, "input": input})
        }
    }
}

/// Usage; `input_tokens` excludes cached tokens.
fn written(usage: Usage) -> Value {
    let Usage { prompt_tokens, cached_tokens, compacted_tokens, completion_tokens, reasoning_tokens } = usage;
    let mut usage = json!({
        "input_tokens": prompt_tokens - cached_tokens, "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": cached_tokens, "output_tokens": completion_tokens,
        "output_tokens_details": {"thinking_tokens": reasoning_tokens},
    });
    if compacted_tokens > 0 {
        usage["compacted_input_tokens"] = compacted_tokens.into();
    }
    usage
}
