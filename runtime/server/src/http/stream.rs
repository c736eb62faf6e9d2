//! Answers as server-sent events.

use super::error::ApiError;
use crate::answer::{Answer, Piece};
use crate::openai::answers::AnswerWriter;
use axum::body::{Body, Bytes};
use axum::http::header;
use axum::response::{IntoResponse, Response};
use serde_json::Value;
use std::collections::VecDeque;
use std::convert::Infallible;
use std::time::Duration;

/// After this long without an event, a comment keeps proxies from closing the connection.
const KEEP_ALIVE: Duration = Duration::from_secs(10);

/// The state between two events.
struct Events {
    answer: Answer,
    writer: AnswerWriter,
    /// Written and not yet sent.
    queue: VecDeque<Bytes>,
    ended: bool,
}

/// Streams an answer. When the client goes away the body is dropped, and the generation with it.
pub(crate) fn respond(answer: Answer, writer: AnswerWriter) -> Response {
    let queue = writer.opening().iter().map(event).collect();
    let events = Events { answer, writer, queue, ended: false };
    let body = futures_util::stream::unfold(events, async |mut events| {
        let bytes = events.next().await?;
        Some((Ok::<_, Infallible>(bytes), events))
    });
    let headers = [
        (header::CONTENT_TYPE, "text/event-stream; charset=utf-8"),
        (header::CACHE_CONTROL, "no-cache"),
        // What nginx looks at before it buffers an answer.
        (header::HeaderName::from_static("x-accel-buffering"), "no"),
    ];
    (headers, Body::from_stream(body)).into_response()
}

impl Events {
    /// The bytes of the next event, or of a comment; `None` at the end.
    async fn next(&mut self) -> Option<Bytes> {
        if let Some(bytes) = self.queue.pop_front() {
            return Some(bytes);
        }
        if self.ended {
            return None;
        }
        match tokio::time::timeout(KEEP_ALIVE, self.answer.next()).await {
            Err(_) => Some(Bytes::from_static(b": keep-alive\n\n")),
            Ok(Ok(piece)) => Some(self.write(&piece)),
            Ok(Err(error)) => {
                self.ended = true;
                Some(event(&ApiError::from(error).body()))
            }
        }
    }

    fn write(&mut self, piece: &Piece) -> Bytes {
        let Some(end) = &piece.end else { return event(&self.writer.chunk(piece)) };
        self.ended = true;
        let mut events = Vec::new();
        // Text and end go into two chunks: clients look for the reason in one without content.
        if !piece.text.is_empty() || !piece.logprobs.is_empty() {
            let (text, logprobs) = (piece.text.clone(), piece.logprobs.clone());
            events.push(self.writer.chunk(&Piece { text, logprobs, end: None }));
        }
        let last = Piece { text: String::new(), logprobs: Vec::new(), end: piece.end.clone() };
        events.push(self.writer.chunk(&last));
        events.extend(self.writer.usage_chunk(end.usage));
        self.queue.extend(events.iter().map(event));
        self.queue.push_back(Bytes::from_static(b"data: [DONE]\n\n"));
        self.queue.pop_front().unwrap_or_default()
    }
}

/// One event; JSON never holds a raw line break, so one line is enough.
fn event(value: &Value) -> Bytes {
    Bytes::from(format!("data: {value}\n\n"))
}
