//! Reads request bodies: bounded in size and time, and declared as JSON.

use crate::error::ApiError;
use crate::request::fields::no_json;
use axum::body::{Body, BodyDataStream};
use axum::http::{HeaderMap, Request, StatusCode, header};
use futures_util::StreamExt;
use serde_json::Value;
use std::time::Duration;
use tokio::time::{Instant, timeout_at};

/// A body must have arrived within this time.
const BODY_TIME: Duration = Duration::from_secs(60);
/// A body over the limit is read and discarded for this long, and up to [`DISCARD_FACTOR`] limits: a client
/// that is still writing when the connection closes would see a broken pipe instead of the answer.
const DISCARD_TIME: Duration = Duration::from_secs(10);
/// See [`DISCARD_TIME`].
const DISCARD_FACTOR: usize = 16;

/// Reads a body of at most `limit` bytes as JSON. Its media type must be JSON: a foreign page can make a
/// browser send any other type without a preflight.
pub(crate) async fn read_json(request: Request<Body>, limit: usize) -> Result<Value, ApiError> {
    let bytes = read(request, limit).await?;
    serde_json::from_slice(&bytes).map_err(|error| ApiError {
        code: "invalid_json",
        ..ApiError::new_body(format!("the body {}", no_json(&bytes, &error)))
    })
}

/// Reads and discards the body of a request that takes none.
pub(super) async fn read_none(request: Request<Body>, limit: usize) -> Result<(), ApiError> {
    if !has_body(request.headers()) {
        return Ok(());
    }
    read(request, limit).await.map(drop)
}

/// The declared length of a body, if any.
fn announced(headers: &HeaderMap) -> usize {
    let length = headers.get(header::CONTENT_LENGTH);
    length.and_then(|length| length.to_str().ok()?.parse().ok()).unwrap_or(0)
}

/// Whether there is a body: an HTTP/1 request with neither header has none.
fn has_body(headers: &HeaderMap) -> bool {
    announced(headers) > 0 || headers.contains_key(header::TRANSFER_ENCODING)
}

async fn read(request: Request<Body>, limit: usize) -> Result<Vec<u8>, ApiError> {
    let announced = announced(request.headers());
    // The client waits for `100 Continue`, so there is nothing to discard.
    let waits = request.headers().contains_key(header::EXPECT);
    if let Some(refusal) = untold(request.headers()) {
        if !waits {
            discard(&mut request.into_body().into_data_stream(), limit).await;
        }
        return Err(refusal);
    }
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
    discard(&mut stream, limit).await;
    Err(too_large(limit))
}

/// Reads and discards for a while, for a client that is still writing.
async fn discard(stream: &mut BodyDataStream, limit: usize) {
    let deadline = Instant::now() + DISCARD_TIME;
    let mut discarded = 0;
    while let Ok(Some(Ok(chunk))) = timeout_at(deadline, stream.next()).await {
        discarded += chunk.len();
        if discarded > limit.saturating_mul(DISCARD_FACTOR) {
            break;
        }
    }
}

/// Refuses a body whose media type is not JSON. An empty body needs none.
fn untold(headers: &HeaderMap) -> Option<ApiError> {
    if !has_body(headers) {
        return None;
    }
    let mut kinds = headers.get_all(header::CONTENT_TYPE).iter();
    let kind = kinds.next().map(|kind| String::from_utf8_lossy(kind.as_bytes()));
    if kind.as_deref().is_some_and(is_json) && kinds.next().is_none() {
        return None;
    }
    let given = kind.map_or("missing".to_owned(), |kind| format!("{kind:?}"));
    let message = format!(
        "the header `Content-Type` is {given}, and must be `application/json`: bodies are JSON and say so"
    );
    Some(ApiError::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, "unsupported_media_type", message))
}

/// Whether a media type is JSON's own or one made of it (`application/problem+json`), whatever its
/// parameters.
fn is_json(kind: &str) -> bool {
    let essence = kind.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
    let Some((kind, of)) = essence.split_once('/') else { return false };
    kind == "application" && (of == "json" || of.len() > "+json".len() && of.ends_with("+json"))
}

fn too_large(limit: usize) -> ApiError {
    let message = format!("the body is larger than this server's limit of {limit} bytes");
    ApiError::new(StatusCode::PAYLOAD_TOO_LARGE, "body_too_large", message)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_says_so() {
        for kind in [
            "application/json",
            "Application/JSON",
            " application/json ; charset=utf-8",
            "application/vnd.api+json",
        ] {
            assert!(is_json(kind), "{kind}");
        }
        for kind in [
            "",
            "json",
            "text/json",
            "text/plain",
            "text/plain; application/json",
            "application/json-seq",
            "application/+json",
            "application/x-www-form-urlencoded",
            "multipart/form-data; boundary=application/json",
            "application/jsonx",
            "*/*",
        ] {
            assert!(!is_json(kind), "{kind}");
        }
    }

    #[test]
    fn one_type_is_told() {
        let status = |kinds: &[&'static str]| {
            let mut headers = HeaderMap::new();
            assert!(untold(&headers).is_none(), "there is no body");
            headers.insert(header::CONTENT_LENGTH, 2.into());
            for kind in kinds {
                headers.append(header::CONTENT_TYPE, axum::http::HeaderValue::from_static(kind));
            }
            untold(&headers).map(|error| error.status.as_u16())
        };
        assert_eq!(status(&["application/json"]), None);
        assert_eq!(status(&[]), Some(415));
        assert_eq!(status(&["text/plain"]), Some(415));
        assert_eq!(status(&["application/json", "text/plain"]), Some(415));
    }
}
