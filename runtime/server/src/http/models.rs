//! `GET /v1/models` and `GET /v1/models/{id}`.

use super::app::App;
use super::parameters::Id;
use crate::error::ApiError;
use crate::request::defaults;
use crate::start::batches;
use crate::start::draft;
use axum::Json;
use axum::extract::State;
use serde_json::{Value, json};
use std::sync::Arc;

/// The one model, in OpenAI's list.
pub(crate) async fn list(State(app): State<Arc<App>>) -> Json<Value> {
    Json(json!({"object": "list", "data": [entry(&app)]}))
}

/// The one model by name.
pub(crate) async fn one(State(app): State<Arc<App>>, Id(id): Id) -> Result<Json<Value>, ApiError> {
    app.check_model(Some(&id))?;
    Ok(Json(entry(&app)))
}

fn entry(app: &App) -> Value {
    json!({
        "id": app.model_name,
        "object": "model",
        "created": app.created,
        "owned_by": "monomorph",
        "target": app.spec.target,
        "weights": if app.dummy { "dummy" } else { "checkpoint" },
        "draft": draft::facts(app.spec),
        "batch_invariant": batches::facts(app.spec),
        "max_model_len": app.ready.get().map(|ready| ready.engine.context()),
        "sampling": defaults::written(&app.sampling),
    })
}
