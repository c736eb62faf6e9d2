//! `POST /v1/responses`, and the routes of stored responses.

use super::app::App;
use super::asker::Asker;
use super::parameters::{Asked, Id};
use super::{body, chat, completions};
use crate::error::{ApiError, wrong};
use crate::openai::responses::answers::ResponseWriter;
use crate::openai::responses::items::{DEFAULT_LIMIT, LIST_QUERY, MAX_LIMIT};
use crate::openai::responses::request::{ResponsesRequest, TRUNCATIONS};
use crate::openai::responses::store::Stored;
use crate::request::fields::wrong_word;
use axum::Json;
use axum::body::Body;
use axum::extract::State;
use axum::http::{Request, StatusCode};
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Creates a response, whole or streamed.
pub(super) async fn create(
    State(app): State<Arc<App>>,
    request: Request<Body>,
) -> Result<Response, ApiError> {
    let ready = app.ready()?;
    let asker = Asker::of(&request, &app.askers);
    let body = body::read_json(request, app.body_limit).await?;
    let mut request = ResponsesRequest::read(&body, &app.limits(ready), &app.responses)?;
    app.check_model(request.params.model.as_deref())?;
    let truncation = TRUNCATIONS[usize::from(!request.params.compacts.unwrap_or(app.compacts))];
    request.said.insert("truncation".to_owned(), truncation.into());
    let conversation = std::mem::take(&mut request.conversation);
    let answers = chat::begin(&app, ready, conversation, &mut request.params, asker).await?;
    let writer = ResponseWriter::new(&app.model_name, &mut request, &app.responses);
    if request.background {
        let response = Json(app.background.start(writer, answers)?).into_response();
        return Ok(completions::told(&app, &request.params, response));
    }
    completions::respond(&app, writer, &request.params, answers).await
}

/// Returns a stored response.
pub(super) async fn retrieve(
    State(app): State<Arc<App>>,
    Id(id): Id,
    Asked(query): Asked,
) -> Result<Json<Value>, ApiError> {
    known(&query, &[])?;
    Ok(Json(kept(&app, &id)?.response))
}

/// Deletes a stored response.
pub(super) async fn delete(State(app): State<Arc<App>>, Id(id): Id) -> Result<Json<Value>, ApiError> {
    // One in progress may have been given up for newer ones.
    let ended = app.background.cancel(&id, &app.responses);
    if !app.responses.remove(&id) && !ended {
        return Err(missing(&id));
    }
    Ok(Json(json!({"id": id, "object": "response", "deleted": true})))
}

/// Cancels a response in the background; one that is over stays as it is. Others end when their clients hang
/// up.
pub(super) async fn cancel(
    State(app): State<Arc<App>>,
    Id(id): Id,
    request: Request<Body>,
) -> Result<Json<Value>, ApiError> {
    body::read_none(request, app.body_limit).await?;
    let cancelled = app.background.cancel(&id, &app.responses);
    let Stored { response, .. } = kept(&app, &id)?;
    if cancelled || response["background"] == true {
        return Ok(Json(response));
    }
    let message = "only responses made in the background can be cancelled, and this one was not";
    Err(ApiError::new(StatusCode::BAD_REQUEST, "not_in_background", message))
}

/// The input items of a response, newest first by default.
pub(super) async fn input_items(
    State(app): State<Arc<App>>,
    Id(id): Id,
    Asked(query): Asked,
) -> Result<Json<Value>, ApiError> {
    known(&query, &LIST_QUERY)?;
    let stored = kept(&app, &id)?;
    let mut items: Vec<&Value> = stored.input.iter().collect();
    match query.get("order").map(String::as_str) {
        Some("asc") => {}
        None | Some("desc") => items.reverse(),
        Some(other) => {
            return Err(wrong_word("order", &["asc", "desc"], Some(other)));
        }
    }
    let limit = match query.get("limit").map(|limit| limit.parse::<usize>()) {
        None => DEFAULT_LIMIT,
        Some(Ok(limit)) if (1..=MAX_LIMIT).contains(&limit) => limit,
        Some(_) => {
            let given = query.get("limit").map_or("", String::as_str);
            return Err(wrong!("limit", "must be between 1 and {MAX_LIMIT}, and is {given:?}"));
        }
    };
    if let Some(after) = query.get("after") {
        let Some(at) = items.iter().position(|item| item["id"] == after.as_str()) else {
            return Err(ApiError::field(
                "after",
                format!("`after` is {after:?}, which is not the id of an item of this response"),
            ));
        };
        items.drain(..=at);
    }
    let more = items.len() > limit;
    items.truncate(limit);
    let id = |item: Option<&&Value>| item.map(|item| item["id"].clone());
    Ok(Json(json!({
        "object": "list", "first_id": id(items.first()), "last_id": id(items.last()), "has_more": more, "data": items,
    })))
}

fn kept(app: &App, id: &str) -> Result<Stored, ApiError> {
    app.responses.get(id).ok_or_else(|| missing(id))
}

fn missing(id: &str) -> ApiError {
    ApiError::new(StatusCode::NOT_FOUND, "response_not_found", format!("no response {id:?} is kept here"))
}

/// Refuses unknown query parameters.
fn known(query: &BTreeMap<String, String>, names: &[&str]) -> Result<(), ApiError> {
    match query.keys().find(|name| !names.contains(&name.as_str())) {
        None => Ok(()),
        Some(name) => {
            let takes = if names.is_empty() { "none".to_owned() } else { names.join(", ") };
            let message = format!("`{name}` is not a query parameter of this path; it takes {takes}");
            Err(ApiError { code: "unknown_parameter", ..ApiError::field(name, message) })
        }
    }
}
