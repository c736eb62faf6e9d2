//! `POST /v1/chat/completions/render`, `POST /v1/completions/render`: the tokens that a model would be fed of
//! a request, by which routers find the server that has its prefix. A request is checked as if it were
//! answered.

use super::app::App;
use super::body;
use crate::error::ApiError;
use crate::openai::chat::ChatRequest;
use crate::openai::completions::{CompletionRequest, Prompt};
use axum::Json;
use axum::body::Body;
use axum::extract::State;
use axum::http::Request;
use serde_json::{Value, json};
use std::sync::Arc;

/// Of a conversation.
pub(crate) async fn chat(
    State(app): State<Arc<App>>,
    request: Request<Body>,
) -> Result<Json<Value>, ApiError> {
    let ready = app.ready()?;
    let body = body::read_json(request, app.body_limit).await?;
    let ChatRequest { params, mut conversation } = ChatRequest::read(&body, &app.limits(ready))?;
    app.check_model(params.model.as_deref())?;
    let (text, mode) = (Arc::clone(&ready.text), app.reasoning.reasoning);
    let room = app.room(ready, &params);
    let _fetched = app.fetch(ready, &mut conversation).await?;
    let reader = ready.images.clone();
    if conversation.images.is_empty() {
        let rendered = app.turns.take(conversation.bytes(), move || conversation.fit(&text, mode, room));
        return Ok(tokens(&rendered.await??.0.ids));
    }
    let rendered =
        app.turns.take(conversation.bytes(), move || conversation.ids(&text, mode, true, reader.as_ref()));
    Ok(tokens(&rendered.await??))
}

/// Of one text.
pub(crate) async fn completion(
    State(app): State<Arc<App>>,
    request: Request<Body>,
) -> Result<Json<Value>, ApiError> {
    let ready = app.ready()?;
    let body = body::read_json(request, app.body_limit).await?;
    let CompletionRequest { params, prompts, .. } = CompletionRequest::read(&body, &app.limits(ready))?;
    app.check_model(params.model.as_deref())?;
    let [(_, prompt)] = <[_; 1]>::try_from(prompts).map_err(|prompts| {
        let message = format!("`prompt` has {} prompts, and one is rendered at a time", prompts.len());
        ApiError::field("prompt", message)
    })?;
    let text = Arc::clone(&ready.text);
    let ids = app.turns.take(prompt.bytes(), move || match prompt {
        Prompt::Tokens(ids) => Ok(ids),
        Prompt::Text(prompt) => text.tokenizer.encode_prompt(&prompt),
    });
    Ok(tokens(&ids.await??))
}

fn tokens(ids: &[u32]) -> Json<Value> {
    Json(json!({ "token_ids": ids }))
}
