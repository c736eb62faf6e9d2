//! Errors as OpenAI's clients expect them: `{"error": {"message", "type", "param", "code"}}`.

use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use monomorph_engine::{EngineError, SubmitError};
use monomorph_text::TextError;
use serde_json::{Value, json};
use std::borrow::Cow;
use std::fmt::Display;
use std::num::NonZero;

/// A request's error, as it is answered.
#[derive(Debug, Clone)]
pub(crate) struct ApiError {
    /// HTTP status.
    pub(crate) status: StatusCode,
    /// What is wrong, for a person.
    pub(crate) message: String,
    /// The field at fault, as a path such as `messages[0].content`.
    pub(crate) param: Option<String>,
    /// A stable code for programs.
    pub(crate) code: &'static str,
    /// Seconds for `Retry-After`, where known; other errors whose status calls for the header say 1.
    pub(crate) retry_after: Option<NonZero<u32>>,
}

/// [`ApiError::at`] with a message as `format!` takes it.
macro_rules! wrong {
    ($param:expr, $($what:tt)+) => { $crate::error::ApiError::at($param, format_args!($($what)+)) };
}
pub(crate) use wrong;

impl ApiError {
    /// An error with no field at fault.
    pub(crate) fn new(status: StatusCode, code: &'static str, message: impl Into<String>) -> ApiError {
        ApiError { status, message: message.into(), param: None, code, retry_after: None }
    }

    /// 400: a field has a wrong type or value.
    pub(crate) fn field(param: impl Into<String>, message: impl Into<String>) -> ApiError {
        let error = ApiError::new(StatusCode::BAD_REQUEST, "invalid_value", message);
        ApiError { param: Some(param.into()), ..error }
    }

    /// The same, whose message begins with the field.
    pub(crate) fn at(param: impl Into<String>, what: impl Display) -> ApiError {
        let param = param.into();
        let message = format!("`{param}` {what}");
        ApiError::field(param, message)
    }

    /// 400: the body as a whole.
    pub(crate) fn new_body(message: impl Into<String>) -> ApiError {
        ApiError::new(StatusCode::BAD_REQUEST, "invalid_body", message)
    }

    /// 400: a field that would change the answer and that this server does not support.
    pub(crate) fn unsupported(param: impl Into<String>, what: &str) -> ApiError {
        let param = param.into();
        let message = format!("`{param}`: not supported: {what}");
        ApiError { code: "unsupported_parameter", ..ApiError::field(param, message) }
    }

    /// The class of error, in OpenAI's words.
    fn kind(&self) -> &'static str {
        match self.status {
            StatusCode::TOO_MANY_REQUESTS => "rate_limit_error",
            StatusCode::SERVICE_UNAVAILABLE => "service_unavailable_error",
            status if status.is_server_error() => "server_error",
            _ => "invalid_request_error",
        }
    }

    /// The message, shortened: it may quote what a client sent, which may be megabytes.
    pub(crate) fn shortened_message(&self) -> Cow<'_, str> {
        shortened(&self.message, MAX_MESSAGE)
    }

    /// The envelope.
    pub(crate) fn body(&self) -> Value {
        let param = self.param.as_deref().map(|param| shortened(param, MAX_PARAM));
        json!({"error": {
            "message": self.shortened_message(), "type": self.kind(), "param": param, "code": self.code,
        }})
    }
}

/// Most characters of a message.
const MAX_MESSAGE: usize = 1500;
/// Most characters of a field's path.
const MAX_PARAM: usize = 300;

/// A text of at most `most` characters: the two ends of a longer one.
fn shortened(text: &str, most: usize) -> Cow<'_, str> {
    if text.len() <= most {
        return Cow::Borrowed(text);
    }
    let all = text.chars().count();
    if all <= most {
        return Cow::Borrowed(text);
    }
    let half = most / 2;
    let begin: String = text.chars().take(half).collect();
    let end: String = text.chars().skip(all - half).collect();
    Cow::Owned(format!("{begin} [{} characters] {end}", all - 2 * half))
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let mut response = (self.status, axum::Json(self.body())).into_response();
        let headers = response.headers_mut();
        match self.status {
            StatusCode::SERVICE_UNAVAILABLE | StatusCode::TOO_MANY_REQUESTS => {
                let seconds = self.retry_after.map_or(1, NonZero::get);
                headers.insert(header::RETRY_AFTER, HeaderValue::from(seconds));
            }
            // The rest of the body was not read: the connection cannot carry another request.
            StatusCode::PAYLOAD_TOO_LARGE
            | StatusCode::REQUEST_TIMEOUT
            | StatusCode::FORBIDDEN
            | StatusCode::MISDIRECTED_REQUEST
            | StatusCode::UNSUPPORTED_MEDIA_TYPE => {
                headers.insert(header::CONNECTION, HeaderValue::from_static("close"));
            }
            _ => {}
        }
        // For routes that render it in another envelope.
        response.extensions_mut().insert(self);
        response
    }
}

impl ApiError {
    /// The error for a prompt that the engine refused; `at` is its path in the body.
    pub(crate) fn of_prompt(at: &str, error: SubmitError) -> ApiError {
        let message = error.to_string();
        match error {
            SubmitError::PromptEmpty => ApiError::at(at, "has no tokens; it needs at least one"),
            SubmitError::PromptTooLong { prompt, context } => too_long(at, prompt, context),
            SubmitError::TokenOutOfVocabulary { .. } | SubmitError::Image(_) => {
                ApiError::field(at, format!("`{at}`: {message}"))
            }
            SubmitError::Constraint(_) => {
                ApiError::new(StatusCode::BAD_REQUEST, "unsupported_grammar", message)
            }
            SubmitError::QueueFull { .. } => {
                ApiError::new(StatusCode::TOO_MANY_REQUESTS, "queue_full", message)
            }
            SubmitError::Draining => ApiError::new(StatusCode::SERVICE_UNAVAILABLE, "draining", message),
            SubmitError::Stopped => ApiError::new(StatusCode::SERVICE_UNAVAILABLE, "stopped", message),
        }
    }
}

/// The error for a prompt that leaves no room for an answer; lengths in tokens. Anthropic's clients match its
/// first words and compact the conversation then.
fn too_long(at: &str, prompt: usize, context: usize) -> ApiError {
    let most = context.saturating_sub(1);
    let message = format!(
        "prompt is too long: {prompt} tokens > {most} maximum in `{at}`; this server's context is {context} tokens, and the answer \
         needs at least one of them"
    );
    ApiError { code: "context_length_exceeded", ..ApiError::field(at, message) }
}

impl From<EngineError> for ApiError {
    fn from(error: EngineError) -> ApiError {
        let status = match error {
            EngineError::Fault(_) | EngineError::Lost(_) => StatusCode::INTERNAL_SERVER_ERROR,
            EngineError::Grammar(_) => {
                return ApiError::new(StatusCode::BAD_REQUEST, "unsupported_grammar", error.to_string());
            }
            EngineError::DrainDeadline | EngineError::Stopped => StatusCode::SERVICE_UNAVAILABLE,
        };
        ApiError::new(status, "engine", error.to_string())
    }
}

impl ApiError {
    /// The error for messages that the template refuses; `at` is their path in the body.
    pub(crate) fn of_text(at: &str, error: TextError) -> ApiError {
        match error {
            TextError::Template { .. } => ApiError::field(at, format!("`{at}`: {error}")),
            _ => ApiError::from(error),
        }
    }
}

/// Errors of rendering without a template.
impl From<TextError> for ApiError {
    fn from(error: TextError) -> ApiError {
        ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, "text", error.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_texts_are_told_by_their_ends() {
        assert_eq!(shortened("äbc", 3), "äbc");
        assert_eq!(shortened("äbcdefghij", 4), "äb [6 characters] ij");
        let error =
            ApiError::field("x".repeat(5000), format!("`a` is {:?}, and must be short", "é".repeat(1 << 20)));
        let body = error.body()["error"].clone();
        let message = body["message"].as_str().expect("a message");
        assert!(message.starts_with("`a` is") && message.ends_with("must be short"), "{message}");
        assert!(message.len() < 4000 && body["param"].as_str().is_some_and(|param| param.len() < 400));
    }

    #[test]
    fn a_prompt_is_named_by_where_it_stands() {
        let error =
            ApiError::of_prompt("prompt[3]", SubmitError::PromptTooLong { prompt: 530, context: 512 });
        assert_eq!((error.param.as_deref(), error.code), (Some("prompt[3]"), "context_length_exceeded"));
        assert!(
            error.message.starts_with("prompt is too long: 530 tokens > 511 maximum"),
            "{}",
            error.message
        );
        let error = ApiError::of_prompt("input", SubmitError::PromptEmpty);
        assert_eq!(error.param.as_deref(), Some("input"));
        let template = || TextError::Template { line: None, message: "no".to_owned() };
        assert_eq!(ApiError::of_text("input", template()).param.as_deref(), Some("input"));
    }
}
