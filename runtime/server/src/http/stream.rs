//! Answers as server-sent events.

use super::error::ApiError;
use crate::answer::{Answer, AnswerError, Piece, Usage};
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
    /// Choices; `None` those that have ended.
    answers: Vec<Option<Answer>>,
    /// What these cost.
    usages: Vec<Usage>,
    writer: AnswerWriter,
    /// Written and not yet sent.
    queue: VecDeque<Bytes>,
    ended: bool,
}

/// Streams the answers to a request, each as it comes. When the client goes away the body is dropped, and the generations with it.
pub(crate) fn respond(answers: Vec<Answer>, writer: AnswerWriter) -> Response {
    let queue = writer.opening().iter().map(event).collect();
    let answers = answers.into_iter().map(Some).collect();
    let events = Events { answers, usages: Vec::new(), writer, queue, ended: false };
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
        match tokio::time::timeout(KEEP_ALIVE, self.piece()).await {
            Err(_) => Some(Bytes::from_static(b": keep-alive\n\n")),
            Ok((choice, Ok(piece))) => Some(self.write(choice, &piece)),
            Ok((_, Err(error))) => {
                self.ended = true;
                Some(event(&ApiError::from(error).body()))
            }
        }
    }

    /// The next piece of any choice, and of which. Cancel-safe, as [`Answer::next`] is.
    async fn piece(&mut self) -> (usize, Result<Piece, AnswerError>) {
        let running = self.answers.iter_mut().enumerate().filter_map(|(choice, answer)| {
            let answer = answer.as_mut()?;
            Some(Box::pin(async move { (choice, answer.next().await) }))
        });
        futures_util::future::select_all(running).await.0
    }

    fn write(&mut self, choice: usize, piece: &Piece) -> Bytes {
        let Some(end) = &piece.end else { return event(&self.writer.chunk(choice, piece)) };
        self.answers[choice] = None;
        self.usages.push(end.usage);
        let mut events = Vec::new();
        // Text and end go into two chunks: clients look for the reason in one without content.
        if !piece.text.is_empty() || !piece.logprobs.is_empty() {
            let (text, logprobs) = (piece.text.clone(), piece.logprobs.clone());
            events.push(self.writer.chunk(choice, &Piece { text, logprobs, end: None }));
        }
        let last = Piece { text: String::new(), logprobs: Vec::new(), end: piece.end.clone() };
        events.push(self.writer.chunk(choice, &last));
        self.ended = self.answers.iter().all(Option::is_none);
        if self.ended {
            events.extend(self.writer.usage_chunk(Usage::of_all(self.usages.iter().copied())));
        }
        self.queue.extend(events.iter().map(event));
        if self.ended {
            self.queue.push_back(Bytes::from_static(b"data: [DONE]\n\n"));
        }
        self.queue.pop_front().unwrap_or_default()
    }
}

/// One event; JSON never holds a raw line break, so one line is enough.
fn event(value: &Value) -> Bytes {
    Bytes::from(format!("data: {value}\n\n"))
}
