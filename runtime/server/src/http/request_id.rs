//! `x-request-id`: the client's own where it is fit to be logged, else a new one; on every response, and on
//! every line that is logged of the request.

use crate::process::random::random_seed;
use axum::body::Body;
use axum::http::{HeaderMap, HeaderName, HeaderValue, Request};
use axum::middleware::Next;
use axum::response::Response;
use tracing::Instrument;

const HEADER: HeaderName = HeaderName::from_static("x-request-id");
/// Longest id that is taken from a client, in bytes.
const LONGEST: usize = 128;

/// Gives a request its id.
pub(crate) async fn identify(request: Request<Body>, next: Next) -> Response {
    let given = request.headers().get(HEADER).filter(|id| is_fit(id)).cloned();
    let id = given.or_else(fresh);
    let name = id.as_ref().and_then(|id| id.to_str().ok()).unwrap_or_default();
    let span =
        tracing::info_span!("request", id = name, method = %request.method(), path = request.uri().path());
    let mut response = next.run(request).instrument(span.clone()).await;
    let status = response.status().as_u16();
    span.in_scope(|| tracing::info!(status, "responded"));
    if let Some(id) = id {
        response.headers_mut().insert(HEADER, id);
    }
    response
}

/// The id that headers name.
pub(super) fn of(headers: &HeaderMap) -> Option<&str> {
    headers.get(HEADER)?.to_str().ok()
}

fn is_fit(id: &HeaderValue) -> bool {
    (1..=LONGEST).contains(&id.len()) && id.as_bytes().iter().all(u8::is_ascii_graphic)
}

fn fresh() -> Option<HeaderValue> {
    HeaderValue::try_from(format!("req-{:016x}", random_seed())).ok()
}
