//! Fields that a request gave, that are read by nobody and change no answer: told to whoever gave them, and
//! counted.

use axum::http::{HeaderName, HeaderValue};
use axum::response::Response;
use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

/// What of the tools' schemas the arguments of calls are not held to.
const NOT_HELD: HeaderName = HeaderName::from_static("x-monomorph-not-held");
/// What that is counted as.
const LOOSE: &str = "tools.parameters";
/// Most paths that are told.
const MOST_LOOSE: usize = 16;
const HEADER: HeaderName = HeaderName::from_static("x-monomorph-ignored");

/// How often each was given.
#[derive(Debug, Default)]
pub(crate) struct Ignored(Mutex<BTreeMap<&'static str, u64>>);

impl Ignored {
    /// Counts them, and names them in the response; also what arguments are not held to.
    pub(super) fn tell(&self, fields: &[&'static str], loose: &[String], mut response: Response) -> Response {
        if !loose.is_empty() {
            *self.0.lock().unwrap_or_else(PoisonError::into_inner).entry(LOOSE).or_default() += 1;
            let visible = |character: char| if character.is_ascii_graphic() { character } else { '?' };
            let paths: Vec<String> =
                loose.iter().take(MOST_LOOSE).map(|path| path.chars().map(visible).collect()).collect();
            if let Ok(paths) = HeaderValue::try_from(paths.join(", ")) {
                response.headers_mut().insert(NOT_HELD, paths);
            }
        }
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
