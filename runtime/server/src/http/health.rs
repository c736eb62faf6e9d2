//! `GET /health`: 200 only when a request would be answered.

use super::app::App;
use crate::draft;
use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use monomorph_engine::Health;
use serde_json::{Value, json};
use std::sync::Arc;

/// The state of the server, with the engine's counts.
pub(crate) async fn health(State(app): State<Arc<App>>) -> (StatusCode, Json<Value>) {
    let mut body = json!({
        "status": "loading",
        "model": app.model_name,
        "target": app.spec.target,
        "version": env!("CARGO_PKG_VERSION"),
        "weights": if app.dummy { "dummy" } else { "checkpoint" },
        "draft": draft::facts(app.spec),
        "uptime_seconds": app.started.elapsed().as_secs_f64(),
    });
    let Some(ready) = app.ready.get() else {
        let (loaded, total) = app.progress.read();
        body["loaded_bytes"] = loaded.into();
        body["total_bytes"] = total.into();
        return (StatusCode::SERVICE_UNAVAILABLE, Json(body));
    };
    let status = match ready.engine.health() {
        Health::Running => "ok",
        Health::Draining => "draining",
        Health::Stopped => "stopped",
        Health::Poisoned(reason) => {
            body["reason"] = reason.into();
            "poisoned"
        }
        Health::Dead(reason) => {
            body["reason"] = reason.into();
            "dead"
        }
    };
    body["status"] = status.into();
    let stats = ready.engine.stats();
    body["stats"] = json!({
        "waiting": stats.waiting,
        "running": stats.running,
        "free_blocks": stats.free_blocks,
        "total_blocks": stats.total_blocks,
        "block_tokens": app.spec.block_tokens,
        "context": stats.context,
        "steps": stats.steps,
        "tokens_prefilled": stats.tokens_prefilled,
        "tokens_generated": stats.tokens_generated,
        "drafts_verified": stats.drafts_verified,
        "drafts_accepted": stats.drafts_accepted,
        "mean_accepted": draft::mean_of(app.spec, &stats),
        "preemptions": stats.preemptions,
        "finished": stats.finished,
        "cancelled": stats.cancelled,
        "seconds_since_step": stats.last_step.map(|since| since.as_secs_f64()),
        "seconds_in_step": stats.in_step.map(|since| since.as_secs_f64()),
        "device_seconds": stats.device_time.as_secs_f64(),
        "host_seconds": stats.host_time.as_secs_f64(),
    });
    let code = if status == "ok" { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    (code, Json(body))
}
