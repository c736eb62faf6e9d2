//! How a vendor's API renders answers, and the framing of server-sent events.

use super::part::{Piece, Usage};
use crate::error::ApiError;
use axum::body::Bytes;
use serde_json::Value;

/// A vendor's rendering of answers.
pub(crate) trait Writer: Send + 'static {
    /// Whole answers, of all choices in order.
    fn whole(&mut self, pieces: &[Piece]) -> Value;
    /// The events that open a stream.
    fn opening(&mut self) -> Vec<Bytes>;
    /// The events of a piece of one choice.
    fn piece(&mut self, choice: usize, piece: &Piece) -> Vec<Bytes>;
    /// The events that end a stream.
    fn closing(&mut self, total: Usage) -> Vec<Bytes>;
    /// The event that ends a stream after an error.
    fn failure(&mut self, error: &ApiError) -> Bytes;
    /// Sent after a long time without an event.
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
