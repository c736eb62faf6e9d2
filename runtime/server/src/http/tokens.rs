//! `POST /tokenize`, `POST /detokenize`, `GET /info`, `GET /version`: the tokenizer, and facts of the build.

use super::app::App;
use super::body;
use crate::error::ApiError;
use crate::openai::tokens::{DetokenizeRequest, Source, TokenizeRequest};
use crate::request::defaults;
use crate::start::reading;
use crate::verbs::info::{Build, facts};
use axum::Json;
use axum::body::Body;
use axum::extract::State;
use axum::http::Request;
use monomorph_text::{ReasoningFormat, Special, ToolFormat};
use serde_json::{Value, json};
use std::sync::Arc;

/// The tokens of a text or a conversation, as a completion would be given them.
pub(crate) async fn tokenize(
    State(app): State<Arc<App>>,
    request: Request<Body>,
) -> Result<Json<Value>, ApiError> {
    let ready = app.ready()?;
    let body = body::read_json(request, app.body_limit).await?;
    let TokenizeRequest { model, mut source, return_token_strs } =
        TokenizeRequest::read(&body, app.vision.is_some())?;
    app.check_model(model.as_deref())?;
    let (text, mode, reader) = (Arc::clone(&ready.text), app.reasoning.reasoning, ready.images.clone());
    let (bytes, _fetched) = match &mut source {
        Source::Prompt { text, .. } => (text.len(), None),
        Source::Chat { conversation, .. } => {
            let fetched = app.fetch(ready, conversation).await?;
            (conversation.bytes(), fetched)
        }
    };
    let tokens = app.turns.take(bytes, move || {
        Ok::<_, ApiError>(match source {
            Source::Prompt { text: prompt, add_special_tokens: true } => {
                text.tokenizer.encode_prompt(&prompt)?
            }
            Source::Prompt { text: prompt, .. } => text.tokenizer.encode(&prompt, Special::Parse)?,
            Source::Chat { conversation, add_generation_prompt } => {
                conversation.ids(&text, mode, add_generation_prompt, reader.as_ref())?
            }
        })
    });
    let tokens = tokens.await??;
    let mut answer =
        json!({"count": tokens.len(), "max_model_len": ready.engine.context(), "tokens": tokens});
    if return_token_strs {
        let bytes = |id: &u32| ready.text.tokenizer.token_bytes(*id).unwrap_or_default();
        let texts = tokens.iter().map(|id| String::from_utf8_lossy(bytes(id)).into_owned());
        answer["token_strs"] = texts.collect::<Vec<_>>().into();
    }
    Ok(Json(answer))
}

/// The text of tokens, the names of special ones in it or not.
pub(crate) async fn detokenize(
    State(app): State<Arc<App>>,
    request: Request<Body>,
) -> Result<Json<Value>, ApiError> {
    let ready = app.ready()?;
    let body = body::read_json(request, app.body_limit).await?;
    let DetokenizeRequest { model, tokens, skip_special_tokens } =
        DetokenizeRequest::read(&body, app.spec.vocabulary)?;
    app.check_model(model.as_deref())?;
    let text = Arc::clone(&ready.text);
    let prompt = app.turns.take(tokens.len(), move || {
        if skip_special_tokens {
            return text.tokenizer.decode(&tokens);
        }
        let bytes = tokens.iter().filter_map(|id| text.tokenizer.token_bytes(*id));
        String::from_utf8_lossy(&bytes.flatten().copied().collect::<Vec<u8>>()).into_owned()
    });
    let prompt = prompt.await?;
    Ok(Json(json!({ "prompt": prompt })))
}

/// The version, where clients of vLLM look for it.
pub(crate) async fn version() -> Json<Value> {
    Json(json!({"version": env!("CARGO_PKG_VERSION")}))
}

/// The build, and the options of this start.
pub(crate) async fn info(State(app): State<Arc<App>>) -> Json<Value> {
    let ready = app.ready.get();
    let engine = ready.map(|ready| {
        let stats = ready.engine.stats();
        json!({
            "context": ready.engine.context(),
            "blocks": stats.total_blocks,
            "sequences": ready.engine.sequences(),
            "snapshots": ready.engine.prefix().snapshots,
            "prefix_cache": ready.engine.prefix().enabled,
            "swap_host_bytes": ready.engine.swap().host_bytes,
            "kept_prefixes": ready.engine.keep().map(|_| json!({
                "blocks": stats.kept.capacity, "blocks_at_start": stats.kept.at_start,
                "snapshots_at_start": stats.kept.snapshots_at_start,
            })),
            "reading": ready.reading.as_ref().map(reading::facts),
            "tools": ready.text.tools.map(ToolFormat::name),
            "reasoning": ready.text.reasoning.map(ReasoningFormat::name),
            "images": ready.images.as_ref().map(|reader| {
                let [most, usual] = reader.most_tokens();
                json!({"most_tokens": most, "max_tokens": usual, "memory_bytes": reader.room().bytes()})
            }),
        })
    });
    let build = Build { spec: app.spec, vision: app.vision, ranks: app.ranks, profiling: app.profiling };
    Json(json!({
        "build": facts(&build),
        "gpu_ordinals": app.gpu_ordinals,
        "model_name": app.model_name,
        "weights": if app.dummy { "dummy" } else { "checkpoint" },
        "body_limit": app.body_limit,
        "request_timeout": app.request_timeout.map(|limit| limit.as_secs_f64()),
        "keys": !app.keys.is_empty(),
        "context_compaction": app.compacts,
        "sampling": defaults::written(&app.sampling),
        "engine": engine,
    }))
}
