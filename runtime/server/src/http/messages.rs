//! `POST /v1/messages` and `POST /v1/messages/count_tokens`: Anthropic's API.

use super::app::App;
use super::asker::Asker;
use super::{body, chat, completions};
use crate::answer::Answer;
use crate::anthropic::answers::MessageWriter;
use crate::anthropic::errors;
use crate::anthropic::request::MessagesRequest;
use crate::error::ApiError;
use crate::request::conversation::Conversation;
use axum::Json;
use axum::body::Body;
use axum::extract::State;
use axum::http::{HeaderName, Request, header};
use axum::middleware::Next;
use axum::response::Response;
use serde_json::{Value, json};
use std::sync::Arc;

/// The routes.
pub(super) const MESSAGES: &str = "/v1/messages";
pub(super) const COUNT: &str = "/v1/messages/count_tokens";

/// Answers a conversation.
pub(super) async fn messages(
    State(app): State<Arc<App>>,
    request: Request<Body>,
) -> Result<Response, ApiError> {
    let ready = app.ready()?;
    let asker = Asker::of(&request, &app.askers);
    let body = body::read_json(request, app.body_limit).await?;
    let MessagesRequest { mut params, conversation, display } =
        MessagesRequest::read(&body, &app.limits(ready))?;
    app.check_model(params.model.as_deref())?;
    let answers = chat::begin(&app, ready, conversation, &mut params, asker).await?;
    let prompt_tokens = answers.first().map_or(0, Answer::prompt_tokens);
    let writer = MessageWriter::new(&app.model_name, prompt_tokens, &params, display);
    completions::respond(&app, writer, &params, answers).await
}

/// The tokens that a conversation takes.
pub(super) async fn count(
    State(app): State<Arc<App>>,
    request: Request<Body>,
) -> Result<Json<Value>, ApiError> {
    let ready = app.ready()?;
    let body = body::read_json(request, app.body_limit).await?;
    let (model, mut conversation) = MessagesRequest::read_to_count(&body, app.vision.is_some())?;
    app.check_model(model.as_deref())?;
    let (text, mode) = (Arc::clone(&ready.text), app.reasoning.reasoning);
    let _fetched = app.fetch(ready, &mut conversation).await?;
    let bytes = conversation.bytes();
    let reader = ready.images.clone();
    let count = move || {
        let edits = conversation.edits.is_some();
        let count = |it: Conversation| Ok::<_, ApiError>(it.ids(&text, mode, true, reader.as_ref())?.len());
        let original = edits.then(|| count(conversation.clone())).transpose()?;
        let (_, edited) = conversation.edit(&text, mode)?;
        Ok::<_, ApiError>((count(edited)?, original))
    };
    let (tokens, original) = app.turns.take(bytes, count).await??;
    let mut counted = json!({"input_tokens": tokens});
    if let Some(original) = original {
        counted["context_management"] = json!({"original_input_tokens": original});
    }
    Ok(Json(counted))
}

/// Errors of these routes in Anthropic's envelope, wherever they come from, and the request's id by
/// Anthropic's name.
pub(super) async fn in_its_words(request: Request<Body>, next: Next) -> Response {
    let own = [MESSAGES, COUNT].contains(&request.uri().path());
    let mut response = next.run(request).await;
    if !own {
        return response;
    }
    if let Some(error) = response.extensions().get::<ApiError>() {
        let body = errors::body(error).to_string();
        response.headers_mut().remove(header::CONTENT_LENGTH);
        *response.body_mut() = Body::from(body);
    }
    if let Some(id) = response.headers().get("x-request-id").cloned() {
        response.headers_mut().insert(HeaderName::from_static("request-id"), id);
    }
    response
}
