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
use monomorph_text::{Infill, Tokenizer};
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
    let request = CompletionRequest::read(&body, &app.limits(ready))?;
    let CompletionRequest { mut params, prompts, echo, suffix } = request;
    app.check_model(params.model.as_deref())?;
    if suffix.is_some() {
        params.stop_ids.extend(infill(&ready.text.tokenizer)?.ends());
    }
    let text = Arc::clone(&ready.text);
    let bytes =
        prompts.iter().map(|(_, prompt)| prompt.bytes() + suffix.as_ref().map_or(0, String::len)).sum();
    let prepare = move |(at, prompt): (String, Prompt)| {
        let (echo, ids) = match prompt {
            Prompt::Tokens(ids) => (echo.then(|| text.tokenizer.decode(&ids)), ids),
            Prompt::Text(prompt) => {
                let ids = text.tokenizer.encode_prompt(&prompt)?;
                (echo.then_some(prompt), ids)
            }
        };
        let ids = match &suffix {
            Some(suffix) => infill(&text.tokenizer)?.prompt(&ids, suffix)?,
            None => ids,
        };
        Ok::<_, ApiError>((echo, PromptIds { at: at.into(), ids, images: PromptImages::default() }))
    };
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

/// The form of text to fill in.
fn infill(tokenizer: &Tokenizer) -> Result<Infill<'_>, ApiError> {
    Infill::of(tokenizer).ok_or_else(|| {
        let known: Vec<String> = Infill::known().map(|token| format!("`{token}`")).collect();
        let what = format!("this model has no control token for text to fill in ({})", known.join(", "));
        ApiError::unsupported("suffix", &what)
    })
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
