//! Errors in Anthropic's envelope: `{"type": "error", "error": {"type", "message"}}`.

use crate::error::ApiError;
use axum::http::StatusCode;
use serde_json::{Value, json};

/// The envelope. The field at fault is named in the message.
pub(crate) fn body(error: &ApiError) -> Value {
    json!({"type": "error", "error": {"type": kind(error.status), "message": error.shortened_message()}})
}

fn kind(status: StatusCode) -> &'static str {
    match status {
        StatusCode::UNAUTHORIZED => "authentication_error",
        StatusCode::FORBIDDEN => "permission_error",
        StatusCode::NOT_FOUND => "not_found_error",
        StatusCode::PAYLOAD_TOO_LARGE => "request_too_large",
        StatusCode::TOO_MANY_REQUESTS => "rate_limit_error",
        StatusCode::SERVICE_UNAVAILABLE => "overloaded_error",
        StatusCode::GATEWAY_TIMEOUT => "timeout_error",
        status if status.is_server_error() => "api_error",
        _ => "invalid_request_error",
    }
}
