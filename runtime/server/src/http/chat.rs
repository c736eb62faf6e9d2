//! `POST /v1/chat/completions`.

use super::app::{App, Begun, PromptIds, Ready};
use super::asker::Asker;
use super::{body, completions};
use crate::answer::Answer;
use crate::error::ApiError;
use crate::openai::answers::{AnswerWriter, Endpoint, Told};
use crate::openai::chat::ChatRequest;
use crate::request::calls::Wanted;
use crate::request::conversation::{Conversation, Prepared};
use crate::request::generation::GenerationParams;
use axum::body::Body;
use axum::extract::State;
use axum::http::Request;
use axum::response::Response;
use std::num::NonZero;
use std::sync::Arc;

/// Answers a conversation.
pub(crate) async fn chat(State(app): State<Arc<App>>, request: Request<Body>) -> Result<Response, ApiError> {
    let ready = app.ready()?;
    let asker = Asker::of(&request, &app.askers);
    let body = body::read_json(request, app.body_limit).await?;
    let ChatRequest { mut params, conversation } = ChatRequest::read(&body, &app.limits(ready))?;
    app.check_model(params.model.as_deref())?;
    let tools = !conversation.tools.given.is_empty();
    let answers = begin(&app, ready, conversation, &mut params, asker).await?;
    let writer = AnswerWriter::new(Endpoint::Chat, &app.model_name, app.forced.as_deref(), &params);
    let told = Told { echo: None, ids: answers.first().and_then(Answer::prompt).cloned() };
    completions::respond(&app, writer.with_tools(tools).with_prompts(vec![told]), &params, answers).await
}

/// Submits a conversation to the engine.
pub(super) async fn begin(
    app: &App,
    ready: &Ready,
    mut conversation: Conversation,
    params: &mut GenerationParams,
    asker: Asker,
) -> Result<Vec<Answer>, ApiError> {
    let (text, mode) = (Arc::clone(&ready.text), app.reasoning.reasoning);
    if app.reasoning.is_forced_off() {
        params.ignored.extend(conversation.asks_to_reason());
        params.ignored.extend(params.reasoning_budget.take().map(|(field, _)| field));
    }
    let _fetched = app.fetch(ready, &mut conversation).await?;
    let reader = ready.images.clone();
    let bytes = conversation.bytes();
    let room = app.room(ready, params);
    let prepared =
        app.turns.take(bytes, move || conversation.prepare(&text, mode, room, reader.as_ref())).await??;
    params.compacted = prepared.compacted;
    params.edited.clone_from(&prepared.edited);
    if prepared.calls.is_some() {
        // A call that does not end would fill the context.
        params.max_tokens = params.max_tokens.or(app.tool_max_tokens.map(NonZero::get));
    }
    check_calls(params, prepared.calls.as_ref(), ready.text.reasoning.is_some())?;
    let (constraint, loose) = app.constraint(ready, params, &prepared).await?;
    params.loose = loose;
    let Prepared { at, ids, images, reading, .. } = prepared;
    let images = app.decode(ready, at, &ids, images).await?;
    let begun = Begun { prompts: vec![PromptIds { at: at.into(), ids, images }], reading, constraint };
    // Without a limit an answer may fill the context; the engine clips.
    app.begin(ready, begun, params, asker, ready.engine.context()).await
}

/// Refuses contradictory demands on calls.
fn check_calls(params: &GenerationParams, calls: Option<&Wanted>, reasons: bool) -> Result<(), ApiError> {
    let Some(calls) = calls else { return Ok(()) };
    if params.ignore_eos && calls.required {
        let message = "`ignore_eos` cannot be combined with a required call";
        return Err(ApiError::field("ignore_eos", message));
    }
    if calls.required || calls.has_tags() {
        return Ok(());
    }
    if params.format.is_some() {
        let what =
            "tools together with an answer format, because this model writes calls as JSON without a tag";
        return Err(ApiError::unsupported("tools", what));
    }
    // Reasoning that is not parsed would hide the beginning of the answer.
    match calls.tools.iter().find(|tool| tool.strict && reasons) {
        None => Ok(()),
        Some(tool) => {
            let what = "strict arguments of optional calls after reasoning, because this model writes calls as JSON without a tag";
            Err(ApiError::unsupported(&tool.path, what))
        }
    }
}
