//! What a server tells those who watch it: health while it loads, metrics, ids, logs.

use crate::lifecycle::{CHAT, begin};
use crate::process::Server;
use crate::scripted::GREETING;
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::time::{Duration, Instant};

fn chat(content: &str) -> Value {
    json!({"messages": [{"role": "user", "content": content}]})
}

pub fn loading() {
    let server = Server::start_loading(600);
    let health = server.wait_for_status("loading", Instant::now());
    assert!(health["total_bytes"].is_number(), "{health}");
    assert_eq!(server.get("/health/live").status, 200);
    assert_eq!(server.metric("monomorph:engine_state{model_name=\"echo\",state=\"loading\"}"), 1.0);
    assert_eq!(server.post(CHAT, &chat("Hi")).json()["error"]["code"], "loading");
    server.wait_for_status("ok", Instant::now());
}

pub fn metrics() {
    let server = Server::start(&["--model-name", "parrot"]);
    let label = |name: &str| format!("{name}{{model_name=\"parrot\"}}");
    let ended = |reason: &str| {
        server.metric(&format!(
            "vllm:request_success_total{{model_name=\"parrot\",finished_reason=\"{reason}\"}}"
        ))
    };
    // Of the canary at the start nothing is counted.
    assert_eq!((server.metric(&label("vllm:generation_tokens_total")), ended("length")), (0.0, 0.0));
    let text = "/v1/completions";
    server.post(text, &json!({"prompt": "[[say abc]]"}));
    server.post(text, &json!({"prompt": "[[say abcdef]]", "max_tokens": 2}));
    server.post(text, &json!({"prompt": "[[say abcdef]]", "stop": "cd"}));
    let mut running = begin(&server, "[[forever]]");
    running.read_until("\"content\":\"a");
    assert_eq!(server.metric(&label("vllm:num_requests_running")), 1.0);
    let usage = server.metric(&label("vllm:kv_cache_usage_perc"));
    assert!(0.0 < usage && usage < 0.1, "{usage}");
    drop(running);
    server.wait_for("it to go", |stats| stats["running"] == 0);
    assert_eq!(["stop", "length", "abort", "error"].map(ended), [2.0, 1.0, 1.0, 0.0]);
    assert_eq!(server.metric(&label("vllm:e2e_request_latency_seconds_count")), 3.0);
    assert_eq!(server.metric(&label("vllm:request_inference_time_seconds_count")), 3.0);
    assert_eq!(server.metric(&label("vllm:request_time_per_output_token_seconds_count")), 3.0);
    let seconds = |name: &str| server.metric(&label(&format!("vllm:request_{name}_time_seconds_sum")));
    assert!((seconds("inference") - seconds("decode")).abs() <= seconds("prefill") + 1e-9);
    let before = server.metric(&label("vllm:time_per_output_token_seconds_count"));
    assert_eq!(before, server.metric(&label("vllm:inter_token_latency_seconds_count")));
    assert_eq!(server.metric(&label("vllm:time_to_first_token_seconds_count")), 4.0);
    assert_eq!(server.metric(&label("vllm:request_queue_time_seconds_count")), 4.0);
    assert_eq!(server.metric(&label("vllm:kv_cache_usage_perc")), 0.0);
    let prompts = "[[say abc]]".len() + 2 * "[[say abcdef]]".len();
    assert!(server.metric(&label("vllm:prompt_tokens_total")) > prompts as f64);
    let answer = server.get("/metrics");
    assert_eq!(
        answer.header("content-type"),
        Some("application/openmetrics-text; version=1.0.0; charset=utf-8")
    );
    assert!(answer.text().ends_with("# EOF\n"));
    // Every metric has a type and a help, once.
    let described = |what: &str| answer.text().lines().filter(|line| line.starts_with(what)).count();
    assert_eq!(described("# TYPE "), described("# HELP "));
    assert!(described("# TYPE ") > 25);
}

/// What vLLM's own dashboard asks for (examples/online_serving/prometheus_grafana/grafana.json of
/// 004f771f), but the longest answer of a request with several, `vllm:request_max_num_generation_tokens`.
const OF_VLLMS_DASHBOARD: [&str; 14] = [
    "vllm:e2e_request_latency_seconds_bucket",
    "vllm:prompt_tokens_total",
    "vllm:generation_tokens_total",
    "vllm:time_per_output_token_seconds_bucket",
    "vllm:num_requests_running",
    "vllm:num_requests_waiting",
    "vllm:time_to_first_token_seconds_bucket",
    "vllm:gpu_cache_usage_perc",
    "vllm:request_prompt_tokens_bucket",
    "vllm:request_generation_tokens_bucket",
    "vllm:request_success_total",
    "vllm:request_queue_time_seconds_sum",
    "vllm:request_prefill_time_seconds_sum",
    "vllm:request_decode_time_seconds_sum",
];

/// The names of metrics in a dashboard's queries.
fn asked_for(dashboard: &Value) -> BTreeSet<String> {
    let panels = dashboard["panels"].as_array().expect("panels").iter();
    let queries = panels.flat_map(|panel| panel["targets"].as_array().expect("queries"));
    let of_query = |query: &Value| {
        let words = query["expr"]
            .as_str()
            .expect("a query")
            .split(|c: char| !(c.is_alphanumeric() || "_:".contains(c)));
        words.filter(|word| word.contains(':')).map(str::to_owned).collect::<Vec<_>>()
    };
    queries.flat_map(of_query).collect()
}

pub fn dashboards() {
    let server = Server::start(&["--model-name", "parrot"]);
    server.post("/v1/completions", &json!({"prompt": "[[say abc]]"}));
    let answer = server.get("/metrics");
    let has = |name: &str| {
        let sample = format!("{name}{{");
        answer.text().lines().any(|line| line.starts_with(&sample) && line.contains("model_name=\"parrot\""))
    };
    for name in OF_VLLMS_DASHBOARD {
        assert!(has(name), "{name} is not there");
    }
    let own = include_str!("../../../../templates/manifests/grafana.json");
    let own = asked_for(&serde_json::from_str(own).expect("JSON"));
    assert!(own.len() > 25, "{own:?}");
    for name in own {
        assert!(has(&name), "a panel would be empty: {name} is not there");
    }
}

pub fn request_ids() {
    let server = Server::start(&[]);
    let mut connection = server.connect();
    let mut ask = |id: &str| {
        let headers: &[(&str, &str)] = if id.is_empty() { &[] } else { &[("x-request-id", id)] };
        let response = connection.request("POST", CHAT, headers, chat("Hi").to_string().as_bytes());
        response.header("x-request-id").expect("an id").to_owned()
    };
    assert_eq!(ask("mine-1"), "mine-1");
    let (one, other) = (ask(""), ask(""));
    assert!(one.starts_with("req-") && one != other, "{one} {other}");
    assert!(ask("two words").starts_with("req-"), "not fit for a log");
    assert!(ask(&"x".repeat(129)).starts_with("req-"), "not fit for a log");
    for response in [server.get("/nowhere"), server.get("/health"), server.post(CHAT, &json!({"x": 1}))] {
        assert!(response.header("x-request-id").is_some());
    }
    let body = json!({"messages": [{"role": "user", "content": "Hi"}], "stream": true});
    assert!(server.post(CHAT, &body).header("x-request-id").is_some());
}

pub fn logs() {
    for (arguments, logged) in [(&["--log", "info"][..], true), (&[], false)] {
        let mut server = Server::start(arguments);
        let headers = [("x-request-id", "mine-2")];
        server.connect().request("POST", CHAT, &headers, chat("Hi").to_string().as_bytes());
        server.signal(libc::SIGTERM);
        let (_, stderr) = server.wait(Duration::from_secs(5));
        let phases = ["queued", "prefill", "decode", "finished", "responded"];
        let found = phases.map(|phase| {
            let of_it = |line: &&str| line.contains("id=\"mine-2\"") && line.contains(&format!(": {phase}"));
            stderr.lines().filter(of_it).count()
        });
        assert_eq!(found, [usize::from(logged); 5], "{stderr}");
        assert_eq!(
            stderr.contains(&format!("generated={}", GREETING.len() + 1)),
            logged,
            "counts are there: {stderr}"
        );
        assert!(logged || stderr.lines().count() == 2, "quiet by default: {stderr}");
    }
}
