//! `POST /v1/completions`, and what it shares with chats.

use super::app::{App, Begun, PromptIds};
use super::asker::Asker;
use super::{best, body, stream};
use crate::answer::Answer;
use crate::answer::reading::Reading;
use crate::answer::writer::Writer;
use crate::error::ApiError;
use crate::openai::answers::{AnswerWriter, Endpoint, Told};
use crate::openai::completions::{CompletionRequest, Prompt};
use crate::request::conversation::Prepared;
use crate::request::generation::GenerationParams;
use axum::Json;
use axum::body::Body;
use axum::extract::State;
use axum::http::Request;
use axum::response::{IntoResponse, Response};
use monomorph_engine::PromptImages;
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
    let CompletionRequest { params, prompts, echo } = CompletionRequest::read(&body, &app.limits(ready))?;
    app.check_model(params.model.as_deref())?;
    let text = Arc::clone(&ready.text);
    let prepare = move |(at, prompt): (String, Prompt)| {
        let (echo, ids) = match prompt {
            Prompt::Tokens(ids) => (echo.then(|| text.tokenizer.decode(&ids)), ids),
            Prompt::Text(prompt) => {
                let ids = text.tokenizer.encode_prompt(&prompt)?;
                (echo.then_some(prompt), ids)
            }
        };
        Ok::<_, TextError>((echo, PromptIds { at: at.into(), ids, images: PromptImages::default() }))
    };
    let bytes = prompts.iter().map(|(_, prompt)| prompt.bytes()).sum();
    let prepare_all = move || prompts.into_iter().map(prepare).collect::<Result<(Vec<_>, Vec<_>), _>>();
    let (echoes, prompts) = app.turns.take(bytes, prepare_all).await??;
    let (constraint, _) = app.constraint(ready, &params, &Prepared::plain()).await?;
    let begun = Begun { prompts, reading: Reading::plain(), constraint };
    let answers = app.begin(ready, begun, &params, asker, DEFAULT_MAX_TOKENS).await?;
    let writer = AnswerWriter::new(Endpoint::Text, &app.model_name, app.forced.as_deref(), &params);
    let ids = answers.iter().step_by(params.generated()).map(|answer| answer.prompt().cloned());
    let told = echoes.into_iter().zip(ids).map(|(echo, ids)| Told { echo, ids }).collect();
    respond(&app, writer.with_prompts(told), &params, answers).await
}

/// Sends the answers to a request, whole or streamed.
pub(crate) async fn respond(
    app: &App,
    mut writer: impl Writer,
    params: &GenerationParams,
    mut answers: Vec<Answer>,
) -> Result<Response, ApiError> {
    let response = if params.stream {
        stream::respond(answers, params.choices, writer)
    } else {
        // A client that goes away drops this future, and the generations with it; so does an answer that
        // fails.
        let pieces = futures_util::future::try_join_all(answers.iter_mut().map(Answer::collect)).await?;
        let pieces = best::choose(pieces, params.generated(), params.choices);
        Json(writer.whole(&pieces)).into_response()
    };
    Ok(told(app, params, response))
}

/// A response with the headers that tell what of the request was not taken as it stands.
pub(super) fn told(app: &App, params: &GenerationParams, response: Response) -> Response {
    let response = app.ignored.tell(&params.ignored, &params.loose, response);
    app.compactions.tell(params.compacted, response)
}
