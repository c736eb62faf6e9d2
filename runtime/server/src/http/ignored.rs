//! Fields of a request that are ignored because they change no answer: named in the response, and counted.

use axum::http::{HeaderName, HeaderValue};
use axum::response::Response;
use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

/// Header that names the parts of tools' schemas that do not constrain arguments.
const NOT_HELD: HeaderName = HeaderName::from_static("x-monomorph-not-held");
/// Its name among the counts.
const LOOSE: &str = "tools.parameters";
/// Most paths in a header.
const MOST_LOOSE: usize = 16;
const HEADER: HeaderName = HeaderName::from_static("x-monomorph-ignored");

/// Counts by field.
#[derive(Debug, Default)]
pub(crate) struct Ignored(Mutex<BTreeMap<&'static str, u64>>);

impl Ignored {
    /// Counts fields and names them in the response, with the parts of schemas that do not constrain
    /// arguments.
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
