//! The routes.

use super::app::App;
use super::{
    auth, chat, completions, dump, health, large, messages, metrics, models, openapi, page, render,
    request_id, responses, tokens,
};
use crate::error::ApiError;
use axum::Router;
use axum::extract::{Request, State};
use axum::handler::Handler;
use axum::http::{HeaderValue, Method, StatusCode, Uri};
use axum::middleware::{Next, from_fn, from_fn_with_state, map_response_with_state};
use axum::response::{IntoResponse, Response};
use axum::routing::{MethodFilter, MethodRouter, on};
use std::sync::Arc;

/// The handler of a method at a path.
pub(crate) struct Route {
    /// The list that the OpenAPI document is compared with.
    #[cfg(test)]
    pub(crate) method: MethodFilter,
    pub(crate) path: &'static str,
    answer: MethodRouter<Arc<App>>,
}

/// One route.
fn at<H: Handler<T, Arc<App>>, T: 'static>(method: MethodFilter, path: &'static str, answer: H) -> Route {
    Route {
        #[cfg(test)]
        method,
        path,
        answer: on(method, answer),
    }
}

/// All routes; the OpenAPI document has each of them.
pub(crate) fn routes() -> Vec<Route> {
    vec![
        at(MethodFilter::GET, "/", page::page),
        at(MethodFilter::GET, "/openapi.json", openapi::document),
        at(MethodFilter::GET, "/health", health::ready),
        at(MethodFilter::GET, "/health/ready", health::ready),
        at(MethodFilter::GET, "/health/live", health::live),
        at(MethodFilter::GET, "/ping", health::ready),
        at(MethodFilter::GET, "/metrics", metrics::metrics),
        at(MethodFilter::GET, "/version", tokens::version),
        at(MethodFilter::GET, "/info", tokens::info),
        at(MethodFilter::POST, "/tokenize", tokens::tokenize),
        at(MethodFilter::POST, "/detokenize", tokens::detokenize),
        at(MethodFilter::GET, "/v1/models", models::list),
        at(MethodFilter::GET, "/v1/models/{*id}", models::one),
        at(MethodFilter::POST, "/v1/chat/completions", chat::chat),
        at(MethodFilter::POST, "/v1/chat/completions/render", render::chat),
        at(MethodFilter::POST, "/v1/completions", completions::completions),
        at(MethodFilter::POST, "/v1/completions/render", render::completion),
        at(MethodFilter::POST, "/v1/responses", responses::create),
        at(MethodFilter::GET, "/v1/responses/{id}", responses::retrieve),
        at(MethodFilter::DELETE, "/v1/responses/{id}", responses::delete),
        at(MethodFilter::POST, "/v1/responses/{id}/cancel", responses::cancel),
        at(MethodFilter::GET, "/v1/responses/{id}/input_items", responses::input_items),
        at(MethodFilter::POST, messages::MESSAGES, messages::messages),
        at(MethodFilter::POST, messages::COUNT, messages::count),
    ]
}

/// The router of all routes; unknown paths and methods get OpenAI's error envelope, too.
pub(crate) fn router(app: Arc<App>) -> Router {
    let routes = routes().into_iter();
    routes
        .fold(Router::new(), |router, Route { path, answer, .. }| router.route(path, answer))
        .fallback(not_found)
        .method_not_allowed_fallback(method_not_allowed)
        .layer(from_fn_with_state(Arc::clone(&app), auth::require))
        .layer(from_fn_with_state(Arc::clone(&app), check))
        .layer(from_fn(large::give_back))
        .layer(from_fn(request_id::identify))
        .layer(from_fn(messages::in_its_words))
        .layer(from_fn_with_state(Arc::clone(&app), dump::record))
        .layer(map_response_with_state(Arc::clone(&app), mark))
        .with_state(app)
}

/// Marks every response of a server whose answers mean nothing: with random weights, or drafts accepted by
/// force.
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
    let message =
        format!("there is nothing at {method} {}; GET /openapi.json says what there is", uri.path());
    ApiError::new(StatusCode::NOT_FOUND, "not_found", message)
}

async fn method_not_allowed(method: Method, uri: Uri) -> ApiError {
    let message = format!("{} does not take {method}; the header `Allow` says what it takes", uri.path());
    ApiError::new(StatusCode::METHOD_NOT_ALLOWED, "method_not_allowed", message)
}

/// Passes a request on whose origin and host are accepted.
async fn check(State(app): State<Arc<App>>, request: Request, next: Next) -> Response {
    match app.guests.refusal(&request) {
        Some(error) => error.into_response(),
        None => next.run(request).await,
    }
}
