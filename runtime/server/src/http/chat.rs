//! `POST /v1/chat/completions`.

use super::app::App;
use super::asker::Asker;
use super::error::ApiError;
use super::{body, completions};
use crate::openai::answers::Endpoint;
use crate::openai::chat::ChatRequest;
use axum::body::Body;
use axum::extract::State;
use axum::http::Request;
use axum::response::Response;
use std::sync::Arc;

/// Answers a conversation.
pub(crate) async fn chat(State(app): State<Arc<App>>, request: Request<Body>) -> Result<Response, ApiError> {
    let ready = app.ready()?;
    let asker = Asker::of(&request, &app.askers);
    let body = body::read_json(request, app.body_limit).await?;
    let ChatRequest { params, messages, template_variables } = ChatRequest::read(&body, &app.limits(ready))?;
    app.check_model(params.model.as_deref())?;
    let text = Arc::clone(&ready.text);
    let prompt =
        completions::off_the_workers(move || text.encode_chat(&messages, &template_variables)).await??;
    // Without a limit an answer may fill the context; the engine clips.
    let answers = app.begin(ready, prompt, &params, asker, ready.engine.context())?;
    completions::respond(&app, Endpoint::Chat, &params, answers).await
}
