//! `GET /metrics`: metrics for Prometheus in OpenMetrics' text format. Names are vLLM's where the meaning is
//! the same, and begin with `monomorph:` where it is our own. It is answered in every state of the engine.

use super::app::{App, Ready};
use crate::health::Readiness;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use monomorph_engine::{Latencies, Stats};
use monomorph_model::RankCounts;
use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;
use std::borrow::Cow;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

/// Labels of one sample.
type Labels = Vec<(&'static str, &'static str)>;
/// Those with numbers.
type NumberLabels = Vec<(&'static str, String)>;

/// Sends all metrics. The registry is of this one scrape: the engine keeps the counts.
pub(crate) async fn metrics(State(app): State<Arc<App>>) -> Response {
    let mut text = String::new();
    match encode(&mut text, &registry(&app)) {
        Ok(()) => {
            let kind = "application/openmetrics-text; version=1.0.0; charset=utf-8";
            ([(header::CONTENT_TYPE, kind)], text).into_response()
        }
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, format!("metrics: {error}")).into_response(),
    }
}

fn registry(app: &App) -> Registry {
    let label = |name, value: &str| (Cow::Borrowed(name), Cow::Owned(value.to_owned()));
    let mut registry = Registry::with_labels([label("model_name", &app.model_name)].into_iter());
    let status = app.readiness().status();
    let state = Family::<Labels, Gauge>::default();
    for one in Readiness::STATUSES {
        state.get_or_create(&vec![("state", one)]).set(i64::from(one == status));
    }
    registry.register(
        "monomorph:engine_state",
        "1 for the state that /health names, 0 for the others",
        state,
    );
    gauge(
        &mut registry,
        "monomorph:uptime_seconds",
        "Since the process began to serve",
        app.started.elapsed().as_secs_f64(),
    );
    gauge(
        &mut registry,
        "monomorph:ranks",
        "GPUs that the model is spread over; 1 on a CPU",
        app.ranks as f64,
    );
    let ignored = Family::<Labels, Counter>::default();
    for (field, count) in app.ignored.counts() {
        ignored.get_or_create(&vec![("field", field)]).inc_by(count);
    }
    registry.register("monomorph:ignored_fields", "Ignored request fields", ignored);
    let [requests, tokens] = app.compactions.counts();
    for (name, help, count) in [
        ("monomorph:compacted_requests", "Requests whose conversation was shortened", requests),
        ("monomorph:compacted_tokens", "Tokens that were left out of conversations", tokens),
    ] {
        let counter = Counter::<u64>::default();
        counter.inc_by(count);
        registry.register(name, help, counter);
    }
    if let Some(dump) = &app.dump {
        let lost = Counter::<u64>::default();
        lost.inc_by(dump.lost());
        registry.register(
            "monomorph:dump_lines_lost",
            "Lines of the dump for which the disk was full, failed or was too slow",
            lost,
        );
    }
    if let Some(ready) = app.ready.get() {
        engine(&mut registry, ready, app.spec.block_tokens);
    }
    registry
}

fn engine(registry: &mut Registry, ready: &Ready, block_tokens: usize) {
    let stats = ready.engine.stats();
    gauges(registry, &stats);
    cache_config(registry, block_tokens, &stats);
    let age = ready.canary.age().as_secs_f64();
    gauge(registry, "monomorph:canary_age_seconds", "Since the last right answer of a canary", age);
    counters(registry, &stats);
    ranks(registry, &ready.engine.ranks());
    let compiling = ready.grammars.running() as f64;
    gauge(registry, "monomorph:grammars_compiling", "Grammars being compiled for answers", compiling);
    if let Some(reader) = &ready.images {
        let claimed = reader.room().claimed() as f64;
        let help = "Memory that images take of requests that wait or are answered";
        gauge(registry, "monomorph:image_bytes", help, claimed);
    }
    let [compiled, found] = ready.grammars.counts();
    count(registry, "monomorph:grammars_compiled", "Grammars compiled for answers", compiled);
    count(
        registry,
        "monomorph:grammars_found",
        "Grammars for answers that were kept from earlier ones",
        found,
    );
    let Latencies {
        time_to_first_token,
        inter_token,
        end_to_end,
        queue,
        prefill,
        decode,
        inference,
        per_token,
        prompt_tokens,
        generated_tokens,
    } = ready.engine.latencies();
    for (name, help, histogram) in [
        ("vllm:time_to_first_token_seconds", "From submission to the first token", time_to_first_token),
        ("vllm:inter_token_latency_seconds", "Between a sequence's tokens, step by step", inter_token),
        ("vllm:time_per_output_token_seconds", "The same, by the name that it had before", inter_token),
        ("vllm:e2e_request_latency_seconds", "From submission to the end of a complete answer", end_to_end),
        ("vllm:request_queue_time_seconds", "From submission to the first admission", queue),
        ("vllm:request_prefill_time_seconds", "From the first admission to the first token", prefill),
        ("vllm:request_decode_time_seconds", "From the first token to the end of a complete answer", decode),
        (
            "vllm:request_inference_time_seconds",
            "From the first admission to the end of a complete answer",
            inference,
        ),
        (
            "vllm:request_time_per_output_token_seconds",
            "Mean between two tokens of a complete answer",
            per_token,
        ),
        ("vllm:request_prompt_tokens", "Tokens of the prompts of complete answers", prompt_tokens),
        ("vllm:request_generation_tokens", "Tokens generated for complete answers", generated_tokens),
    ] {
        registry.register(name, help, histogram.clone());
    }
}

/// What a router must know to predict which prefixes a server has: a gauge, since the endpoint picker of the
/// Gateway API's inference extension refuses a scrape with a metric of type info.
fn cache_config(registry: &mut Registry, block_tokens: usize, stats: &Stats) {
    let config = Family::<NumberLabels, Gauge>::default();
    let labels =
        [("block_size", block_tokens.to_string()), ("num_gpu_blocks", stats.total_blocks.to_string())];
    config.get_or_create(&labels.to_vec()).set(1);
    registry.register("vllm:cache_config_info", "Tokens of a K/V block, and how many there are", config);
}

fn gauges(registry: &mut Registry, stats: &Stats) {
    let seconds = |time: Option<Duration>| time.unwrap_or_default().as_secs_f64();
    let used = stats.total_blocks - stats.free_blocks;
    let usage = used as f64 / stats.total_blocks.max(1) as f64;
    for (name, help, value) in [
        ("vllm:num_requests_running", "Sequences being answered", stats.running as f64),
        ("vllm:num_requests_waiting", "Requests that wait for blocks or a slot", stats.waiting as f64),
        ("vllm:kv_cache_usage_perc", "Part of the K/V blocks in use, from 0 to 1", usage),
        ("vllm:gpu_cache_usage_perc", "The same, by the name that it had before", usage),
        ("monomorph:kv_blocks_free", "Free K/V blocks", stats.free_blocks as f64),
        ("monomorph:kv_blocks", "All K/V blocks", stats.total_blocks as f64),
        (
            "monomorph:kv_blocks_cached",
            "K/V blocks that hold a prefix a prompt may begin with",
            stats.cached_blocks as f64,
        ),
        ("monomorph:snapshots", "Snapshots of recurrent state that are kept", stats.snapshots as f64),
        ("monomorph:swap_host_bytes", "Memory that holds copies of sequences", stats.swap.host_bytes as f64),
        ("monomorph:swap_disk_bytes", "Disk that holds copies of sequences", stats.swap.disk_bytes as f64),
        ("monomorph:context_tokens", "Tokens a sequence may have", stats.context as f64),
        (
            "monomorph:seconds_in_turn",
            "Without a sign of life of the forward thread; 0 while it sleeps",
            seconds(stats.in_turn),
        ),
        (
            "monomorph:seconds_since_step",
            "Since the last step ended; 0 before the first",
            seconds(stats.last_step),
        ),
    ] {
        gauge(registry, name, help, value);
    }
}

/// The library writes `_total` behind these names.
fn counters(registry: &mut Registry, stats: &Stats) {
    let success = Family::<Labels, Counter>::default();
    for (reason, count) in [
        ("stop", stats.stopped),
        ("length", stats.finished - stats.stopped),
        ("abort", stats.cancelled),
        ("error", stats.failed),
    ] {
        success.get_or_create(&vec![("finished_reason", reason)]).inc_by(count);
    }
    registry.register("vllm:request_success", "Requests that ended, by how", success);
    for (name, help, count) in [
        ("vllm:prompt_tokens", "Tokens of prompts whose answers have begun", stats.prompt_tokens),
        ("vllm:generation_tokens", "Tokens generated", stats.tokens_generated),
        (
            "vllm:prefix_cache_queries",
            "Tokens of admitted prompts, which the cache was asked for",
            stats.tokens_asked,
        ),
        (
            "vllm:prefix_cache_hits",
            "Tokens of admitted prompts that were in the cache and not fed",
            stats.tokens_cached,
        ),
        ("monomorph:kv_blocks_evicted", "Cached K/V blocks given up for others", stats.blocks_evicted),
        (
            "monomorph:kv_blocks_offloaded",
            "K/V blocks written to disk because sequences had more than their share",
            stats.blocks_offloaded,
        ),
        ("monomorph:snapshots_evicted", "Snapshots given up for others", stats.snapshots_evicted),
        ("monomorph:images_seen", "Images that the vision tower has computed", stats.images_seen),
        ("monomorph:image_passes", "Passes in which the vision tower computed them", stats.image_passes),
        (
            "monomorph:images_found",
            "Images that were to be fed and that the vision tower had computed before",
            stats.images_found,
        ),
        ("vllm:num_preemptions", "Sequences that lost their blocks to others", stats.preemptions),
        ("vllm:spec_decode_num_drafts", "Times that a sequence's drafts were verified", stats.drafts),
        (
            "monomorph:swapped_out",
            "Sequences that were copied out when they lost their blocks",
            stats.swap.out,
        ),
        ("monomorph:swapped_in", "Sequences that went on from a copy", stats.swap.back),
        ("monomorph:swap_out_bytes", "Bytes copied out", stats.swap.bytes_out),
        ("monomorph:swap_in_bytes", "Bytes copied back", stats.swap.bytes_back),
        ("monomorph:swap_disk_written_bytes", "Bytes of copies written to disk", stats.swap.bytes_written),
        ("monomorph:swap_disk_read_bytes", "Bytes of copies read from disk", stats.swap.bytes_read),
        (
            "monomorph:swap_failures",
            "Copies that could not be written to disk or had back",
            stats.swap.failures,
        ),
        (
            "monomorph:kept_prefix_tokens",
            "Tokens whose keys and values came back from the files of kept prefixes",
            stats.kept.tokens_back,
        ),
        (
            "monomorph:kept_prefix_snapshots",
            "Snapshots of recurrent states that came back from the files of kept prefixes",
            stats.kept.snapshots_back,
        ),
        ("monomorph:kept_prefix_written_bytes", "Bytes written to these files", stats.kept.bytes_written),
        ("monomorph:kept_prefix_read_bytes", "Bytes read from these files", stats.kept.bytes_read),
        (
            "monomorph:kept_prefix_failures",
            "Pages that could not be written to these files, or were not what had been written",
            stats.kept.failures,
        ),
        ("vllm:spec_decode_num_draft_tokens", "Drafts fed to be verified", stats.drafts_verified),
        (
            "vllm:spec_decode_num_accepted_tokens",
            "Drafts that were the tokens sampled",
            stats.drafts_accepted,
        ),
        (
            "monomorph:prefilled_tokens",
            "Prefilled tokens, those prefilled again after pre-emption included",
            stats.tokens_prefilled,
        ),
        ("monomorph:late_tokens", "Tokens later than --tbt-ms after the previous one", stats.late_tokens),
        ("monomorph:prompts_cut", "Steps with prefill reduced to meet --tbt-ms", stats.prompts_cut),
        ("monomorph:steps", "Forward steps completed", stats.steps),
    ] {
        self::count(registry, name, help, count);
    }
    for (name, help, time) in [
        ("monomorph:device_seconds", "Time that steps took on the device", stats.device_time),
        ("monomorph:host_seconds", "Time that the forward thread took to plan and hand out", stats.host_time),
        ("monomorph:swap_out_seconds", "Time that copying sequences out took", stats.swap.time_out),
        ("monomorph:swap_in_seconds", "Time that copying them back took", stats.swap.time_back),
    ] {
        let counter = Counter::<f64, AtomicU64>::default();
        counter.inc_by(time.as_secs_f64());
        registry.register(name, help, counter);
    }
}

/// What the ranks of a model on several GPUs do, a sample each. Bytes are the plan's widths times the steps'
/// rows.
fn ranks(registry: &mut Registry, ranks: &[RankCounts]) {
    if ranks.is_empty() {
        return;
    }
    for (name, help, count) in [
        ("monomorph:rank_steps", "Steps of a rank", (|it| it.steps) as fn(&RankCounts) -> u64),
        ("monomorph:rank_exchanges", "Sums over ranks and gathers of rows that a rank launched", |it| {
            it.exchanges
        }),
        ("monomorph:rank_sent_bytes", "Bytes that a rank sent to all others in these", |it| it.sent_bytes),
    ] {
        let family = Family::<NumberLabels, Counter>::default();
        for (rank, counts) in ranks.iter().enumerate() {
            family.get_or_create(&vec![("rank", rank.to_string())]).inc_by(count(counts));
        }
        registry.register(name, help, family);
    }
    for (name, help, time) in [
        (
            "monomorph:rank_launch_seconds",
            "Time that the thread of a rank took to launch steps",
            (|it| it.launching) as fn(&RankCounts) -> Duration,
        ),
        ("monomorph:rank_wait_seconds", "Time that it waited for its GPU", |it| it.waiting),
    ] {
        let family = Family::<NumberLabels, Counter<f64, AtomicU64>>::default();
        for (rank, counts) in ranks.iter().enumerate() {
            family.get_or_create(&vec![("rank", rank.to_string())]).inc_by(time(counts).as_secs_f64());
        }
        registry.register(name, help, family);
    }
    let exchange = Family::<NumberLabels, Gauge<f64, AtomicU64>>::default();
    for (rank, counts) in ranks.iter().enumerate() {
        exchange.get_or_create(&vec![("rank", rank.to_string())]).set(counts.exchange.as_secs_f64());
    }
    let help = "Time of one sum over ranks of one row, alone, as measured at the start";
    registry.register("monomorph:rank_exchange_seconds", help, exchange);
}

fn count(registry: &mut Registry, name: &str, help: &str, value: u64) {
    let counter = Counter::<u64>::default();
    counter.inc_by(value);
    registry.register(name, help, counter);
}

fn gauge(registry: &mut Registry, name: &str, help: &str, value: f64) {
    let gauge = Gauge::<f64, AtomicU64>::default();
    gauge.set(value);
    registry.register(name, help, gauge);
}
