//! What a vendor's API makes of an answer, and how an event of a stream is framed.

use super::part::{Piece, Usage};
use crate::error::ApiError;
use axum::body::Bytes;
use serde_json::Value;

/// How a vendor writes answers.
pub(crate) trait Writer: Send + 'static {
    /// Whole answers, of all choices in order.
    fn whole(&mut self, pieces: &[Piece]) -> Value;
    /// What a stream opens with.
    fn opening(&mut self) -> Vec<Bytes>;
    /// More of one choice.
    fn piece(&mut self, choice: usize, piece: &Piece) -> Vec<Bytes>;
    /// What ends a stream.
    fn closing(&mut self, total: Usage) -> Vec<Bytes>;
    /// What ends one instead, when something went wrong.
    fn failure(&mut self, error: &ApiError) -> Bytes;
    /// What is sent when there was nothing to send for long.
    fn idle(&self) -> Bytes {
        Bytes::from_static(b": keep-alive\n\n")
    }
}

/// One event; JSON never holds a raw line break, so one line is enough.
pub(crate) fn event(value: &Value) -> Bytes {
    Bytes::from(format!("data: {value}\n\n"))
}

/// One event with the name that its `type` is.
pub(crate) fn named_event(value: &Value) -> Bytes {
    Bytes::from(format!("event: {}\ndata: {value}\n\n", value["type"].as_str().unwrap_or_default()))
}
