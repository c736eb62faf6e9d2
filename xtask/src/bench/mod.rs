//! `cargo xtask bench`: measured figures beside the predicted ones and the limit, and beside a peer in
//! alternating runs.

mod clients;

use crate::peer::machine::{self, Build};
use crate::peer::{Peer, PeerName, llama_server};
use crate::{BuildOptions, TargetOptions, build, fetch};
use clap::Args;
use clients::{Load, Seen, Serving};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::process::Command;

/// Lengths that everything is measured at: a prompt, and tokens generated after a shorter one.
const PROMPT: usize = 512;
const DEPTH: usize = 32;
const GENERATE: usize = 128;

#[derive(Args)]
pub struct Options {
    #[command(flatten)]
    target: TargetOptions,
    #[command(flatten)]
    build: BuildOptions,
    /// Weights to use instead of fetching them.
    #[arg(long, value_name = "PATH")]
    weights: Option<PathBuf>,
    /// Also measure another engine on the same file and lengths, in alternating runs.
    #[arg(long)]
    peer: Option<PeerName>,
    /// Runs per engine; medians are reported.
    #[arg(long, default_value_t = 5)]
    runs: usize,
    /// Measure servers over HTTP instead, with this many streaming clients at once; the peer is then
    /// llama.cpp's server.
    #[arg(long, value_name = "N,N", value_delimiter = ',')]
    clients: Vec<usize>,
    /// Threads for both engines.
    #[arg(long, default_value_t = 2)]
    threads: usize,
    /// Print one JSON object.
    #[arg(long)]
    json: bool,
}

/// Tokens per second.
#[derive(Default)]
struct Rates {
    prefill: Vec<f64>,
    decode: Vec<f64>,
}

impl Rates {
    fn medians(&self) -> Value {
        json!({ "prefill": median(&self.prefill), "decode": median(&self.decode) })
    }
}

pub fn bench(options: Options) -> Result<(), String> {
    let server = build::server(&options.target, options.build)?;
    let weights = match &options.weights {
        Some(path) => path.clone(),
        None => fetch::weights(&options.target)?,
    };
    let peer_build = options.peer.map(|PeerName::LlamaCpp| machine::here());
    if let Some(note) = peer_build.as_ref().and_then(|build| build.note) {
        eprintln!("{note}");
    }
    if !options.clients.is_empty() {
        return serving(&options, &server, &weights, peer_build.as_ref());
    }
    let mut peer = match &peer_build {
        Some(build) => Some(Peer::start(&weights, options.threads, build)?),
        None => None,
    };
    let (mut ours, mut theirs) = (Rates::default(), Rates::default());
    let mut last = Value::Null;
    if let Some(peer) = &mut peer {
        // Our server warms up by itself in every run.
        peer.prefill(PROMPT)?;
        peer.decode(DEPTH, GENERATE)?;
    }
    for _ in 0..options.runs.max(1) {
        last = run(&server, &weights, options.threads)?;
        ours.prefill.push(figure(&last, "ours", "prefill")?);
        ours.decode.push(figure(&last, "ours", "decode")?);
        if let Some(peer) = &mut peer {
            theirs.prefill.push(peer.prefill(PROMPT)?);
            theirs.decode.push(peer.decode(DEPTH, GENERATE)?);
        }
    }
    let mut report = json!({
        "target": options.target.target,
        "ours": ours.medians(),
        "limit": last["limit"],
        "predicted": last["predicted"],
    });
    if let Some(build) = &peer_build {
        report["peer"] = theirs.medians();
        report["peer_build"] = json!(build.flags);
        report["ratio"] = json!({
            "prefill": median(&ours.prefill) / median(&theirs.prefill),
            "decode": median(&ours.decode) / median(&theirs.decode),
        });
        report["samples"] = json!({
            "ours": { "prefill": ours.prefill, "decode": ours.decode },
            "peer": { "prefill": theirs.prefill, "decode": theirs.decode },
        });
    }
    report["streams"] = last["streams"].clone();
    if options.json {
        println!("{report}");
    } else {
        print(&report);
    }
    Ok(())
}

/// Requests per client, and the size of each.
const REQUESTS: usize = 4;
const WORDS: usize = 96;

/// Servers under load, in alternating runs.
fn serving(options: &Options, server: &Path, weights: &Path, peer: Option<&Build>) -> Result<(), String> {
    let peer_build = peer.map(|build| json!(build.flags));
    let peer = peer.map(llama_server::install).transpose()?;
    let mut reports = Vec::new();
    for &clients in &options.clients {
        let load = Load { clients, requests: REQUESTS, words: WORDS, generate: GENERATE };
        let (mut ours, mut theirs) = (Vec::new(), Vec::new());
        for _ in 0..options.runs.max(1) {
            let port = clients::free_port()?;
            let mut command = clients::ours(server, weights, options.threads, port);
            ours.push(Serving::start("the server", &mut command, port)?.bear(load)?);
            if let Some(peer) = &peer {
                let port = clients::free_port()?;
                let mut command = llama_server::command(peer, weights, options.threads, clients, port);
                theirs.push(Serving::start("the peer, llama.cpp's server,", &mut command, port)?.bear(load)?);
            }
        }
        let mut report = json!({ "clients": clients, "ours": middle(&ours) });
        if peer.is_some() {
            report["peer"] = middle(&theirs);
            report["peer_build"] = json!(peer_build);
        }
        if !options.json {
            print_clients(&report);
        }
        reports.push(report);
    }
    if options.json {
        println!(
            "{}",
            json!({ "target": options.target.target, "words": WORDS, "generate": GENERATE, "clients": reports })
        );
    }
    Ok(())
}

/// The medians of each figure.
fn middle(runs: &[Seen]) -> Value {
    let reports: Vec<Value> = runs.iter().map(Seen::report).collect();
    let names = reports.first().and_then(Value::as_object).into_iter().flat_map(|report| report.keys());
    let middle = |name: &String| {
        let samples: Vec<f64> = reports.iter().filter_map(|report| report[name].as_f64()).collect();
        (name.clone(), json!(median(&samples)))
    };
    Value::Object(names.map(middle).collect())
}

fn print_clients(report: &Value) {
    println!("{} clients, prompts of {WORDS} words, answers of {GENERATE} tokens", report["clients"]);
    for side in ["ours", "peer"].into_iter().filter(|side| report[side].is_object()) {
        let figure = |name: &str| report[side][name].as_f64().unwrap_or(f64::NAN);
        println!(
            "{side:<6} {:>8.1} tok/s; between tokens {:.1} ms, p99 {:.1}; first {:.0} ms, p99 {:.0}",
            figure("tokens_per_second"),
            figure("between_p50_ms"),
            figure("between_p99_ms"),
            figure("first_p50_ms"),
            figure("first_p99_ms"),
        );
    }
}

/// One run of the server's own bench.
fn run(server: &Path, weights: &Path, threads: usize) -> Result<Value, String> {
    let number = |value: usize| value.to_string();
    let output = Command::new(server)
        .args(["bench", "--json", "--repeat", "1", "--streams", "1,8"])
        .args([
            "--prompt-tokens",
            &number(PROMPT),
            "--depth",
            &number(DEPTH),
            "--generate",
            &number(GENERATE),
        ])
        .args(["--threads", &number(threads), "--weights"])
        .arg(weights)
        .output()
        .map_err(|error| format!("{}: {error}", server.display()))?;
    if !output.status.success() {
        return Err(format!("{} bench: {}", server.display(), String::from_utf8_lossy(&output.stderr)));
    }
    serde_json::from_slice(&output.stdout).map_err(|error| format!("{} bench: {error}", server.display()))
}

fn figure(report: &Value, side: &str, name: &str) -> Result<f64, String> {
    report[side][name].as_f64().ok_or_else(|| format!("the server's bench reports no {side} {name}"))
}

fn print(report: &Value) {
    let rows =
        ["ours", "predicted", "limit", "peer", "ratio"].into_iter().filter(|row| report[row].is_object());
    println!("{}: tokens per second", report["target"].as_str().unwrap_or_default());
    println!(
        "{:<12} {:>14} {:>22}",
        "",
        format!("prefill of {PROMPT}"),
        format!("decode of {GENERATE} after {DEPTH}")
    );
    for row in rows {
        let figure = |name: &str| report[row][name].as_f64().unwrap_or(f64::NAN);
        println!("{row:<12} {:>14.2} {:>22.2}", figure("prefill"), figure("decode"));
    }
    for streams in report["streams"].as_array().into_iter().flatten() {
        println!(
            "{} streams: {:.1} together",
            streams["streams"],
            streams["tokens_per_second"].as_f64().unwrap_or(0.0)
        );
    }
}

fn median(samples: &[f64]) -> f64 {
    let mut sorted = samples.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted.get(sorted.len() / 2).copied().unwrap_or(f64::NAN)
}
