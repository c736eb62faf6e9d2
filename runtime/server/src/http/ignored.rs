//! Fields that a request gave, that are read by nobody and change no answer: told to whoever gave them, and counted.

use axum::http::{HeaderName, HeaderValue};
use axum::response::Response;
use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

const HEADER: HeaderName = HeaderName::from_static("x-monomorph-ignored");

/// How often each was given.
#[derive(Debug, Default)]
pub(crate) struct Ignored(Mutex<BTreeMap<&'static str, u64>>);

impl Ignored {
    /// Counts them, and names them in the response.
    pub(super) fn tell(&self, fields: &[&'static str], mut response: Response) -> Response {
        if fields.is_empty() {
            return response;
        }
        let mut counts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        for field in fields {
            *counts.entry(field).or_default() += 1;
        }
        drop(counts);
        if let Ok(names) = HeaderValue::try_from(fields.join(", ")) {
            response.headers_mut().insert(HEADER, names);
        }
        response
    }

    /// The counts so far.
    pub(super) fn counts(&self) -> BTreeMap<&'static str, u64> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}
