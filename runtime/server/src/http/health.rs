//! `GET /health/live`: whether the process is alive. `GET /health/ready` and `/health`, the same: 200 only
//! when a request would be answered, and correctly.

use super::app::{App, Ready};
use crate::health::Readiness;
use crate::start::batches;
use crate::start::draft;
use crate::start::schedule;
use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use monomorph_engine::Stats;
use serde_json::{Value, json};
use std::sync::Arc;
use std::time::Duration;

/// How long a probe of an idle engine waits for a canary's answer.
const CANARY_WAIT: Duration = Duration::from_secs(1);
/// How often it checks for other failures meanwhile.
const LOOK: Duration = Duration::from_millis(25);

/// Liveness, without asking the engine anything.
pub(crate) async fn live(State(app): State<Arc<App>>) -> (StatusCode, Json<Value>) {
    let verdict = app.readiness();
    (code(verdict.is_live()), Json(json!({"status": verdict.status(), "reason": verdict.cause()})))
}

/// The state of the server, with the engine's counts.
pub(crate) async fn ready(State(app): State<Arc<App>>) -> (StatusCode, Json<Value>) {
    let verdict = match app.ready.get() {
        Some(ready) => examine(&app, ready).await,
        None => Readiness::Loading,
    };
    let mut body = json!({
        "status": verdict.status(),
        "model": app.model_name,
        "target": app.spec.target,
        "version": env!("CARGO_PKG_VERSION"),
        "weights": if app.dummy { "dummy" } else { "checkpoint" },
        "draft": draft::facts(app.spec),
        "batch_invariant": batches::facts(app.spec),
        "uptime_seconds": app.started.elapsed().as_secs_f64(),
    });
    if let Some(cause) = verdict.cause() {
        body["reason"] = cause.into();
    }
    match app.ready.get() {
        Some(ready) => {
            body["canary"] = json!({
                "seconds_since_answer": ready.canary.age().as_secs_f64(), "known_answers": ready.known,
            });
            body["schedule"] = schedule::facts(ready.engine.schedule());
            body["stats"] = stats(&app, ready, &ready.engine.stats());
        }
        None => {
            let (loaded, total) = app.progress.read();
            body["loaded_bytes"] = loaded.into();
            body["total_bytes"] = total.into();
        }
    }
    (code(verdict.is_ready()), Json(body))
}

/// Readiness after a canary, if one is due. In a busy engine the canary runs among the requests, and the next
/// probe reads its result.
async fn examine(app: &App, ready: &Ready) -> Readiness {
    let verdict = app.readiness();
    if !verdict.is_ready() || !ready.canary.ask(&ready.engine) {
        return verdict;
    }
    let stats = ready.engine.stats();
    if stats.running + stats.waiting > 0 {
        return verdict;
    }
    let mut answers = ready.canary.answers();
    let begun = tokio::time::Instant::now();
    while ready.canary.unanswered().is_some() && begun.elapsed() < CANARY_WAIT && app.readiness().is_ready() {
        // A wrong answer ends the engine.
        tokio::select! {
            _ = answers.changed() => break,
            () = ready.engine.stopped() => break,
            () = tokio::time::sleep(LOOK) => {}
        }
    }
    app.readiness()
}

fn code(good: bool) -> StatusCode {
    if good { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE }
}

fn stats(app: &App, ready: &Ready, stats: &Stats) -> Value {
    let mut counts = json!({
        "waiting": stats.waiting,
        "running": stats.running,
        "free_blocks": stats.free_blocks,
        "total_blocks": stats.total_blocks,
        "cached_blocks": stats.cached_blocks,
        "snapshots": stats.snapshots,
        "total_snapshots": ready.engine.prefix().snapshots,
        "block_tokens": app.spec.block_tokens,
        "context": stats.context,
        "steps": stats.steps,
        "tokens_prefilled": stats.tokens_prefilled,
        "prompt_pieces": stats.prefill_chunks,
        "tokens_cached": stats.tokens_cached,
        "tokens_generated": stats.tokens_generated,
        "drafts_verified": stats.drafts_verified,
        "drafts_accepted": stats.drafts_accepted,
        "mean_accepted": draft::mean_of(app.spec, stats),
        "blocks_evicted": stats.blocks_evicted,
        "snapshots_evicted": stats.snapshots_evicted,
        "images_seen": stats.images_seen,
        "image_passes": stats.image_passes,
        "images_found": stats.images_found,
        "preemptions": stats.preemptions,
        "prompts_cut": stats.prompts_cut,
        "late_tokens": stats.late_tokens,
        "swapped_out": stats.swap.out,
        "swapped_in": stats.swap.back,
        "swap_failures": stats.swap.failures,
        "swap_host_bytes": stats.swap.host_bytes,
        "swap_disk_bytes": stats.swap.disk_bytes,
        "total_swap_host_bytes": ready.engine.swap().host_bytes,
        "total_swap_disk_bytes": ready.engine.swap().disk.as_ref().map_or(0, |disk| disk.bytes),
        "finished": stats.finished,
        "cancelled": stats.cancelled,
        "failed": stats.failed,
        "seconds_since_step": stats.last_step.map(|since| since.as_secs_f64()),
        "seconds_in_step": stats.in_step.map(|since| since.as_secs_f64()),
        "device_seconds": stats.device_time.as_secs_f64(),
        "host_seconds": stats.host_time.as_secs_f64(),
    });
    let kept = &stats.kept;
    for (name, count) in [
        ("kept_blocks", kept.blocks as u64),
        ("kept_blocks_at_start", kept.at_start as u64),
        ("kept_snapshots", kept.snapshots as u64),
        ("kept_snapshots_at_start", kept.snapshots_at_start as u64),
        ("total_kept_blocks", kept.capacity as u64),
        ("kept_tokens_back", kept.tokens_back),
        ("kept_snapshots_back", kept.snapshots_back),
        ("kept_failures", kept.failures),
    ] {
        counts[name] = count.into();
    }
    counts
}
