//! `POST /v1/completions`, and what it shares with chats.

use super::app::App;
use super::asker::Asker;
use super::body;
use super::error::ApiError;
use super::stream::{self, Writer};
use crate::answer::Answer;
use crate::answer::reading::Reading;
use crate::conversation::Prepared;
use crate::openai::answers::{AnswerWriter, Endpoint};
use crate::openai::completions::{CompletionRequest, Prompt};
use crate::openai::generation::GenerationParams;
use axum::Json;
use axum::body::Body;
use axum::extract::State;
use axum::http::{Request, StatusCode};
use axum::response::{IntoResponse, Response};
use monomorph_text::TextError;
use std::sync::Arc;

/// OpenAI's default for text completions.
const DEFAULT_MAX_TOKENS: usize = 16;

/// Continues a text.
pub(crate) async fn completions(
    State(app): State<Arc<App>>,
    request: Request<Body>,
) -> Result<Response, ApiError> {
    let ready = app.ready()?;
    let asker = Asker::of(&request, &app.askers);
    let body = body::read_json(request, app.body_limit).await?;
    let CompletionRequest { params, prompt, echo } = CompletionRequest::read(&body, &app.limits(ready))?;
    app.check_model(params.model.as_deref())?;
    let text = Arc::clone(&ready.text);
    let prepare = move || {
        Ok::<_, TextError>(match prompt {
            Prompt::Tokens(ids) => (echo.then(|| text.tokenizer.decode(&ids)), ids),
            Prompt::Text(prompt) => {
                let ids = text.tokenizer.encode_prompt(&prompt)?;
                (echo.then_some(prompt), ids)
            }
        })
    };
    let (echoed, ids) = off_the_workers(prepare).await??;
    let prepared = Prepared { ids, reading: Reading::plain(), calls: None, share: None };
    let (constraint, _) = app.constraint(ready, &params, &prepared).await?;
    let answers = app.begin(ready, prepared, &params, constraint, asker, DEFAULT_MAX_TOKENS).await?;
    let writer = AnswerWriter::new(Endpoint::Text, &app.model_name, app.forced.as_deref(), &params);
    let prompt = answers.first().and_then(Answer::prompt).cloned();
    respond(&app, writer.with_echo(echoed).with_prompt(prompt), &params, answers).await
}

/// Sends the answers to a request, whole or streamed.
pub(crate) async fn respond(
    app: &App,
    mut writer: impl Writer,
    params: &GenerationParams,
    mut answers: Vec<Answer>,
) -> Result<Response, ApiError> {
    let response = if params.stream {
        stream::respond(answers, writer)
    } else {
        // A client that goes away drops this future, and the generations with it; so does an answer that fails.
        let pieces = futures_util::future::try_join_all(answers.iter_mut().map(Answer::collect)).await?;
        Json(writer.whole(&pieces)).into_response()
    };
    Ok(app.ignored.tell(&params.ignored, &params.loose, response))
}

/// Runs work that may take milliseconds (tokenising a long prompt) where it holds up no other connection.
pub(crate) async fn off_the_workers<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, ApiError> {
    let failed = |error| {
        ApiError::new(
            StatusCode::INTERNAL_SERVER_ERROR,
            "text",
            format!("preparing the prompt failed: {error}"),
        )
    };
    tokio::task::spawn_blocking(work).await.map_err(failed)
}
