//! Errors as OpenAI's clients expect them: `{"error": {"message", "type", "param", "code"}}`.

use crate::answer::AnswerError;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use monomorph_engine::{EngineError, SubmitError};
use monomorph_text::TextError;
use serde_json::{Value, json};
use std::num::NonZero;

/// An answer that is an error.
#[derive(Debug, Clone)]
pub(crate) struct ApiError {
    /// HTTP status.
    pub(crate) status: StatusCode,
    /// What is wrong, for a person.
    pub(crate) message: String,
    /// The field at fault, as a path such as `messages[0].content`.
    pub(crate) param: Option<String>,
    /// A stable word for programs.
    pub(crate) code: &'static str,
    /// Seconds after which to ask again, where that is worth it and known; otherwise statuses that ask for it say 1.
    pub(crate) retry_after: Option<NonZero<u32>>,
}

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

    /// 400: the body as a whole.
    pub(crate) fn new_body(message: impl Into<String>) -> ApiError {
        ApiError::new(StatusCode::BAD_REQUEST, "invalid_body", message)
    }

    /// 400: a field that would change the answer and that this server does not honour.
    pub(crate) fn unsupported(param: impl Into<String>, what: &str) -> ApiError {
        let param = param.into();
        let message = format!("`{param}`: {what} not supported yet");
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

    /// The envelope.
    pub(crate) fn body(&self) -> Value {
        json!({"error": {
            "message": self.message, "type": self.kind(), "param": self.param, "code": self.code,
        }})
    }
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
            StatusCode::PAYLOAD_TOO_LARGE | StatusCode::REQUEST_TIMEOUT => {
                headers.insert(header::CONNECTION, HeaderValue::from_static("close"));
            }
            _ => {}
        }
        // For routes that say it in other words.
        response.extensions_mut().insert(self);
        response
    }
}

impl From<SubmitError> for ApiError {
    fn from(error: SubmitError) -> ApiError {
        let message = error.to_string();
        match error {
            SubmitError::PromptEmpty => ApiError::field("prompt", "the prompt has no tokens"),
            SubmitError::PromptTooLong { prompt, context } => too_long(prompt, context),
            SubmitError::TokenOutOfVocabulary { .. } => ApiError::field("prompt", message),
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

/// The error for a prompt that leaves no room for an answer; lengths in tokens.
fn too_long(prompt: usize, context: usize) -> ApiError {
    let message = format!(
        "the prompt has {prompt} tokens and this server's context is {context} tokens, of which the answer needs \
         at least one; shorten the prompt"
    );
    ApiError { code: "context_length_exceeded", ..ApiError::field("prompt", message) }
}

impl From<EngineError> for ApiError {
    fn from(error: EngineError) -> ApiError {
        let status = match error {
            EngineError::Fault(_) | EngineError::Lost(_) => StatusCode::INTERNAL_SERVER_ERROR,
            EngineError::DrainDeadline | EngineError::Stopped => StatusCode::SERVICE_UNAVAILABLE,
        };
        ApiError::new(status, "engine", error.to_string())
    }
}

impl From<AnswerError> for ApiError {
    fn from(error: AnswerError) -> ApiError {
        let message = error.to_string();
        match error {
            AnswerError::Engine(error) => ApiError::from(error),
            AnswerError::Timeout(_) => ApiError::new(StatusCode::GATEWAY_TIMEOUT, "timeout", message),
        }
    }
}

impl From<TextError> for ApiError {
    fn from(error: TextError) -> ApiError {
        let message = error.to_string();
        match error {
            TextError::Template { .. } => ApiError::field("messages", message),
            _ => ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, "text", message),
        }
    }
}
