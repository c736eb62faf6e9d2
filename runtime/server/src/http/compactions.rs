//! Conversations that were shortened: told in the response, and counted.

use crate::request::compaction::Compacted;
use axum::http::{HeaderName, HeaderValue};
use axum::response::Response;
use std::sync::atomic::{AtomicU64, Ordering};

const HEADER: HeaderName = HeaderName::from_static("x-monomorph-compacted");

/// Counts of all requests.
#[derive(Debug, Default)]
pub(crate) struct Compactions {
    requests: AtomicU64,
    tokens: AtomicU64,
}

impl Compactions {
    /// Counts what was left out of a conversation, and says it in the response.
    pub(super) fn tell(&self, compacted: Option<Compacted>, mut response: Response) -> Response {
        let Some(Compacted { messages, results, tokens }) = compacted else { return response };
        self.requests.fetch_add(1, Ordering::Relaxed);
        self.tokens.fetch_add(tokens as u64, Ordering::Relaxed);
        let told = format!("messages={messages}, results={results}, tokens={tokens}");
        if let Ok(told) = HeaderValue::try_from(told) {
            response.headers_mut().insert(HEADER, told);
        }
        response
    }

    /// Requests whose conversation was shortened, and the tokens that were left out of them.
    pub(super) fn counts(&self) -> [u64; 2] {
        [&self.requests, &self.tokens].map(|count| count.load(Ordering::Relaxed))
    }
}
