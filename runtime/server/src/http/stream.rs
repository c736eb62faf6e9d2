//! Answers as server-sent events.

use crate::answer::part::{Piece, Usage};
use crate::answer::writer::Writer;
use crate::answer::{Answer, AnswerError};
use crate::error::ApiError;
use axum::body::{Body, Bytes};
use axum::http::header;
use axum::response::{IntoResponse, Response};
use std::collections::VecDeque;
use std::convert::Infallible;
use std::time::Duration;

/// After this long without an event, a comment keeps proxies from closing the connection.
const KEEP_ALIVE: Duration = Duration::from_secs(10);

/// The state between two events.
struct Events<W> {
    /// Choices; `None` those that have ended.
    answers: Vec<Option<Answer>>,
    /// Their usage.
    usages: Vec<Usage>,
    /// Answers per prompt.
    each: usize,
    writer: W,
    /// Written and not yet sent.
    queue: VecDeque<Bytes>,
    ended: bool,
}

/// Streams the answers to a request as they come, `each` per prompt. When the client leaves, the body is
/// dropped, and the generations with it.
pub(crate) fn respond(answers: Vec<Answer>, each: usize, mut writer: impl Writer) -> Response {
    let queue = writer.opening().into();
    let usages = vec![Usage::default(); answers.len()];
    let answers = answers.into_iter().map(Some).collect();
    let events = Events { answers, usages, each, writer, queue, ended: false };
    let body = futures_util::stream::unfold(events, async |mut events| {
        let bytes = events.next().await?;
        Some((Ok::<_, Infallible>(bytes), events))
    });
    let headers = [
        (header::CONTENT_TYPE, "text/event-stream; charset=utf-8"),
        (header::CACHE_CONTROL, "no-cache"),
        // Tells nginx not to buffer the answer.
        (header::HeaderName::from_static("x-accel-buffering"), "no"),
    ];
    (headers, Body::from_stream(body)).into_response()
}

impl<W: Writer> Events<W> {
    /// The next event, or a keep-alive; `None` at the end.
    async fn next(&mut self) -> Option<Bytes> {
        loop {
            if let Some(bytes) = self.queue.pop_front() {
                return Some(bytes);
            }
            if self.ended {
                return None;
            }
            match tokio::time::timeout(KEEP_ALIVE, self.piece()).await {
                Err(_) => return Some(self.writer.idle()),
                // Not every piece is an event.
                Ok((choice, Ok(piece))) => self.write(choice, &piece),
                Ok((_, Err(error))) => {
                    self.ended = true;
                    return Some(self.writer.failure(&ApiError::from(error)));
                }
            }
        }
    }

    /// The next piece of any choice, with the choice's index. Cancel-safe, as [`Answer::next`] is.
    async fn piece(&mut self) -> (usize, Result<Piece, AnswerError>) {
        let running = self.answers.iter_mut().enumerate().filter_map(|(choice, answer)| {
            let answer = answer.as_mut()?;
            Some(Box::pin(async move { (choice, answer.next().await) }))
        });
        futures_util::future::select_all(running).await.0
    }

    fn write(&mut self, choice: usize, piece: &Piece) {
        self.queue.extend(self.writer.piece(choice, piece));
        let Some(end) = &piece.end else { return };
        self.answers[choice] = None;
        self.usages[choice] = end.usage;
        self.ended = self.answers.iter().all(Option::is_none);
        if self.ended {
            self.queue.extend(self.writer.closing(Usage::of_all(&self.usages, self.each)));
        }
    }
}

#[cfg(test)]
mod tests;
