//! `GET /openapi.json`: the OpenAPI document.

use super::app::App;
use crate::error::ApiError;
use crate::openapi::{self, Facts};
use axum::Json;
use axum::extract::State;
use serde_json::Value;
use std::sync::Arc;

/// The document, of the model that is served.
pub(super) async fn document(State(app): State<Arc<App>>) -> Result<Json<Value>, ApiError> {
    let context = app.ready()?.engine.context();
    let names = app.names();
    let (vocabulary, images, keys) = (app.spec.vocabulary, app.vision.is_some(), !app.keys.is_empty());
    let facts = Facts { model: &app.model_name, names: &names, context, vocabulary, images, keys };
    Ok(Json(openapi::document(&facts)))
}

#[cfg(test)]
mod tests;
