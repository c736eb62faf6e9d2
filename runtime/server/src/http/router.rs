//! Which path is answered by what.

use super::app::App;
use super::error::ApiError;
use super::{
    auth, chat, completions, dump, health, messages, metrics, models, page, request_id, responses, tokens,
};
use axum::Router;
use axum::extract::State;
use axum::http::{HeaderValue, Method, StatusCode, Uri};
use axum::middleware::{from_fn, from_fn_with_state, map_response_with_state};
use axum::response::Response;
use axum::routing::{get, post};
use std::sync::Arc;

/// All routes; every other path and method gets OpenAI's error envelope too.
pub(crate) fn router(app: Arc<App>) -> Router {
    Router::new()
        .route("/", get(page::page))
        .route("/health", get(health::ready))
        .route("/health/ready", get(health::ready))
        .route("/health/live", get(health::live))
        .route("/metrics", get(metrics::metrics))
        .route("/info", get(tokens::info))
        .route("/tokenize", post(tokens::tokenize))
        .route("/detokenize", post(tokens::detokenize))
        .route("/v1/models", get(models::list))
        .route("/v1/models/{*id}", get(models::one))
        .route("/v1/chat/completions", post(chat::chat))
        .route("/v1/completions", post(completions::completions))
        .route("/v1/responses", post(responses::create))
        .route("/v1/responses/{id}", get(responses::retrieve).delete(responses::delete))
        .route("/v1/responses/{id}/cancel", post(responses::cancel))
        .route("/v1/responses/{id}/input_items", get(responses::input_items))
        .route(messages::MESSAGES, post(messages::messages))
        .route(messages::COUNT, post(messages::count))
        .fallback(not_found)
        .method_not_allowed_fallback(method_not_allowed)
        .layer(from_fn_with_state(Arc::clone(&app), auth::require))
        .layer(from_fn(request_id::identify))
        .layer(from_fn(messages::in_its_words))
        .layer(from_fn_with_state(Arc::clone(&app), dump::record))
        .layer(map_response_with_state(Arc::clone(&app), mark))
        .with_state(app)
}

/// Marks every response of a server whose answers mean nothing: of made-up weights, or with drafts accepted by rate.
async fn mark(State(app): State<Arc<App>>, mut response: Response) -> Response {
    if app.dummy {
        response.headers_mut().insert("x-monomorph-weights", HeaderValue::from_static("dummy"));
    }
    if let Some(Ok(forced)) = app.forced.as_deref().map(HeaderValue::from_str) {
        response.headers_mut().insert("x-monomorph-drafts", forced);
    }
    response
}

async fn not_found(method: Method, uri: Uri) -> ApiError {
    let message = format!("there is nothing at {method} {}", uri.path());
    ApiError::new(StatusCode::NOT_FOUND, "not_found", message)
}

async fn method_not_allowed(method: Method, uri: Uri) -> ApiError {
    let message = format!("{} does not take {method}", uri.path());
    ApiError::new(StatusCode::METHOD_NOT_ALLOWED, "method_not_allowed", message)
}
