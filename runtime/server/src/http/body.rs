//! Reading a request's body: bounded in size and in time.

use super::error::ApiError;
use axum::body::Body;
use axum::http::{Request, StatusCode, header};
use futures_util::StreamExt;
use serde_json::Value;
use std::time::Duration;
use tokio::time::{Instant, timeout_at};

/// A body must have arrived within this time.
const BODY_TIME: Duration = Duration::from_secs(60);
/// A body over the limit is read on and thrown away for this long, and up to [`DISCARD_FACTOR`] limits: a client that
/// is still writing when the connection closes would see a broken pipe instead of the answer.
const DISCARD_TIME: Duration = Duration::from_secs(10);
/// See [`DISCARD_TIME`].
const DISCARD_FACTOR: usize = 16;

/// Reads a body as JSON, at most `limit` bytes of it. The content type is not looked at.
pub(crate) async fn read_json(request: Request<Body>, limit: usize) -> Result<Value, ApiError> {
    let bytes = read(request, limit).await?;
    serde_json::from_slice(&bytes).map_err(|error| ApiError {
        code: "invalid_json",
        ..ApiError::new_body(format!("the body is not valid JSON: {error}"))
    })
}

async fn read(request: Request<Body>, limit: usize) -> Result<Vec<u8>, ApiError> {
    let announced = request
        .headers()
        .get(header::CONTENT_LENGTH)
        .and_then(|length| length.to_str().ok()?.parse::<usize>().ok())
        .unwrap_or(0);
    // Such a client waits for leave to send: nothing needs to be thrown away.
    let waits = request.headers().contains_key(header::EXPECT);
    if announced > limit && waits {
        return Err(too_large(limit));
    }
    let deadline = Instant::now() + BODY_TIME;
    let mut stream = request.into_body().into_data_stream();
    let mut bytes = Vec::with_capacity(announced.min(limit));
    loop {
        match timeout_at(deadline, stream.next()).await {
            Err(_) => {
                let message = format!("the body did not arrive within {} seconds", BODY_TIME.as_secs());
                return Err(ApiError::new(StatusCode::REQUEST_TIMEOUT, "timeout", message));
            }
            Ok(None) => return Ok(bytes),
            Ok(Some(Err(error))) => return Err(ApiError::new_body(format!("the body broke off: {error}"))),
            Ok(Some(Ok(chunk))) if bytes.len() + chunk.len() > limit => break,
            Ok(Some(Ok(chunk))) => bytes.extend_from_slice(&chunk),
        }
    }
    let deadline = Instant::now() + DISCARD_TIME;
    let mut discarded = 0;
    while let Ok(Some(Ok(chunk))) = timeout_at(deadline, stream.next()).await {
        discarded += chunk.len();
        if discarded > limit.saturating_mul(DISCARD_FACTOR) {
            break;
        }
    }
    Err(too_large(limit))
}

fn too_large(limit: usize) -> ApiError {
    let message = format!("the body is larger than this server's limit of {limit} bytes");
    ApiError::new(StatusCode::PAYLOAD_TOO_LARGE, "body_too_large", message)
}
