//! Authentication: with keys configured, every route but health, ping and metrics requires one.

use super::app::App;
use super::keys::is_open;
use crate::error::ApiError;
use axum::body::Body;
use axum::extract::State;
use axum::http::{HeaderMap, HeaderValue, Request, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use std::sync::Arc;

/// Challenges, a header each because Chromium reads one per header. A browser that opens the chat page uses
/// the second: the password is the key.
const CHALLENGES: [&str; 2] = ["Bearer realm=\"monomorph\"", "Basic realm=\"monomorph\", charset=\"UTF-8\""];

/// Passes a request on that has a valid key or needs none.
pub(crate) async fn require(State(app): State<Arc<App>>, request: Request<Body>, next: Next) -> Response {
    let open = app.keys.is_empty() || is_open(request.uri().path());
    if open || shown(request.headers()).any(|key| app.keys.admit(&key)) {
        return next.run(request).await;
    }
    let given =
        [header::AUTHORIZATION.as_str(), "x-api-key"].iter().any(|it| request.headers().contains_key(*it));
    let message = if given {
        "the key is not one of this server's"
    } else {
        "this server requires a key: `Authorization: Bearer KEY` or `x-api-key: KEY`"
    };
    let mut response = ApiError::new(StatusCode::UNAUTHORIZED, "invalid_api_key", message).into_response();
    // The chat page's script asks for the key itself, so the browser is not challenged.
    let by_script =
        request.headers().get("sec-fetch-mode").is_some_and(|mode| mode.as_bytes() != b"navigate");
    for challenge in &CHALLENGES[..if by_script { 1 } else { 2 }] {
        response.headers_mut().append(header::WWW_AUTHENTICATE, HeaderValue::from_static(challenge));
    }
    // The body was not read: the connection cannot carry another request.
    response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
    response
}

/// Keys in the headers.
fn shown(headers: &HeaderMap) -> impl Iterator<Item = Vec<u8>> {
    let authorized =
        headers.get_all(header::AUTHORIZATION).iter().filter_map(|value| of_authorization(value.as_bytes()));
    let plain = headers.get_all("x-api-key").iter().map(|value| value.as_bytes().to_vec());
    authorized.chain(plain)
}

/// The key of `Bearer KEY`, or of `Basic` the password; schemes are read in any case.
fn of_authorization(value: &[u8]) -> Option<Vec<u8>> {
    let space = value.iter().position(|byte| *byte == b' ')?;
    let (scheme, rest) = (&value[..space], value[space..].trim_ascii());
    if scheme.eq_ignore_ascii_case(b"bearer") {
        return Some(rest.to_vec());
    }
    if !scheme.eq_ignore_ascii_case(b"basic") {
        return None;
    }
    let mut pair = STANDARD.decode(rest).ok()?;
    let colon = pair.iter().position(|byte| *byte == b':')?;
    Some(pair.split_off(colon + 1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_read_from_each_kind_of_header() {
        let key =
            |value: &str| of_authorization(value.as_bytes()).map(|key| String::from_utf8(key).expect("text"));
        assert_eq!(key("Bearer abc"), Some("abc".to_owned()));
        assert_eq!(key("bearer   abc "), Some("abc".to_owned()));
        assert_eq!(key("Basic dXNlcjphOmI="), Some("a:b".to_owned()));
        for nothing in ["abc", "Bearer", "Digest abc", "Basic !!!", "Basic dXNlcg=="] {
            assert_eq!(key(nothing), None, "{nothing}");
        }
    }
}
