//! Streaming clients of a server: their total throughput, and the gaps between tokens that each one sees.

use crate::ended;
use serde_json::{Value, json};
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Barrier;
use std::time::{Duration, Instant};
use tempfile::NamedTempFile;

/// How long a server may take to become ready.
const START_TIME: Duration = Duration::from_secs(120);
/// How long a process may take to exit once its connection has broken.
const END_TIME: Duration = Duration::from_secs(2);
/// Lines of a process's output shown when it has ended.
const LAST_LINES: usize = 8;
/// Words that prompts are made of. Most tokenizers encode each, with the blank before it, as one token.
const WORDS: [&str; 16] = [
    "time", "water", "house", "river", "light", "stone", "paper", "music", "field", "winter", "garden",
    "market", "bridge", "letter", "window", "summer",
];

/// What each client requests, and how often.
#[derive(Clone, Copy, Debug)]
pub struct Load {
    /// Clients; each has one request in flight.
    pub clients: usize,
    /// Requests per client, sent one after another.
    pub requests: usize,
    /// Words per prompt. No two prompts share a prefix.
    pub words: usize,
    /// Tokens per answer.
    pub generate: usize,
}

/// What the clients measured.
#[derive(Clone, Debug, Default)]
pub struct Seen {
    /// Tokens per second over all answers, from the first request to the end of the last answer.
    pub tokens_per_second: f64,
    /// Seconds between consecutive text events of an answer, ascending.
    pub gaps: Vec<f64>,
    /// Seconds from a request to its first text, ascending.
    pub first: Vec<f64>,
}

impl Seen {
    /// The figures to report, times in milliseconds.
    pub fn report(&self) -> Value {
        let ms = |samples: &[f64], share: f64| quantile(samples, share) * 1e3;
        json!({
            "tokens_per_second": self.tokens_per_second,
            "between_p50_ms": ms(&self.gaps, 0.5),
            "between_p99_ms": ms(&self.gaps, 0.99),
            "first_p50_ms": ms(&self.first, 0.5),
            "first_p99_ms": ms(&self.first, 0.99),
        })
    }
}

/// A server's process, ended when dropped.
pub struct Serving {
    /// Its name in messages.
    name: &'static str,
    process: Child,
    /// Its output.
    log: NamedTempFile,
    address: String,
}

impl Serving {
    /// Starts `command`, which is to listen on `127.0.0.1:port`, and waits until `/health` answers 200. If
    /// the process ends by itself, the error shows the last lines of its output.
    ///
    /// # Errors
    /// When it cannot be started, ends, or is not ready within two minutes.
    pub fn start(name: &'static str, command: &mut Command, port: u16) -> Result<Serving, String> {
        let log = NamedTempFile::new().map_err(|error| format!("a file for what {name} writes: {error}"))?;
        let write = || log.reopen().map_err(|error| format!("{}: {error}", log.path().display()));
        let process = command
            .stdin(Stdio::null())
            .stdout(write()?)
            .stderr(write()?)
            .spawn()
            .map_err(|error| format!("{command:?} could not be started: {error}"))?;
        let mut serving = Serving { name, process, log, address: format!("http://127.0.0.1:{port}") };
        let began = Instant::now();
        loop {
            if ureq::get(format!("{}/health", serving.address))
                .call()
                .is_ok_and(|answer| answer.status() == 200)
            {
                return Ok(serving);
            }
            if let Some(end) = serving.end(Duration::ZERO) {
                return Err(format!("{end}\nstarted as {command:?}"));
            }
            if began.elapsed() > START_TIME {
                return Err(format!("{command:?} was not ready after {} s", START_TIME.as_secs()));
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Runs the load against it.
    ///
    /// # Errors
    /// When a request is refused or breaks off, or an answer does not have the requested number of tokens. If
    /// the process has ended, the error says how.
    pub fn bear(&mut self, load: Load) -> Result<Seen, String> {
        // The client sees a broken connection before the process has exited.
        self.put(load).map_err(|error| match self.end(END_TIME) {
            Some(end) => format!("{end}\nwhat a client saw of it: {error}"),
            None => error,
        })
    }

    /// How the process ended, if it does within that time, and the last lines of its output.
    fn end(&mut self, within: Duration) -> Option<String> {
        let began = Instant::now();
        let status = loop {
            match self.process.try_wait() {
                Ok(Some(status)) => break status,
                Ok(None) if began.elapsed() < within => std::thread::sleep(Duration::from_millis(20)),
                Ok(None) | Err(_) => return None,
            }
        };
        let written = std::fs::read(self.log.path()).unwrap_or_default();
        let written = String::from_utf8_lossy(&written);
        let lines: Vec<&str> = written.lines().collect();
        let last = lines[lines.len().saturating_sub(LAST_LINES)..].iter().map(|line| format!("\n  {line}"));
        Some(format!("{} {}{}", self.name, ended::words(status), last.collect::<String>()))
    }

    fn put(&self, load: Load) -> Result<Seen, String> {
        // A warm-up request, not measured: it pays for first-touch costs.
        Client::new(self, usize::MAX >> 1, load).ask(0)?;
        let begin = Barrier::new(load.clients + 1);
        let (answers, seconds) = std::thread::scope(|scope| {
            let clients: Vec<_> = (0..load.clients)
                .map(|client| {
                    let begin = &begin;
                    scope.spawn(move || {
                        let client = Client::new(self, client, load);
                        begin.wait();
                        (0..load.requests).map(|request| client.ask(request)).collect::<Result<Vec<_>, _>>()
                    })
                })
                .collect();
            begin.wait();
            let began = Instant::now();
            let answers: Result<Vec<_>, String> = clients
                .into_iter()
                .map(|client| client.join().map_err(|_| "a client panicked".to_owned())?)
                .collect();
            (answers, began.elapsed().as_secs_f64())
        });
        let answers: Vec<Answer> = answers?.into_iter().flatten().collect();
        let mut seen = Seen {
            tokens_per_second: (answers.len() * load.generate) as f64 / seconds,
            gaps: answers.iter().flat_map(|answer| answer.gaps.iter().copied()).collect(),
            first: answers.iter().map(|answer| answer.first).collect(),
        };
        seen.gaps.sort_by(f64::total_cmp);
        seen.first.sort_by(f64::total_cmp);
        Ok(seen)
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        // An error means that it has already exited.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Times of one answer, in seconds.
struct Answer {
    first: f64,
    gaps: Vec<f64>,
}

struct Client {
    agent: ureq::Agent,
    url: String,
    number: usize,
    load: Load,
}

impl Client {
    fn new(serving: &Serving, number: usize, load: Load) -> Client {
        Client {
            agent: ureq::Agent::new_with_defaults(),
            url: format!("{}/v1/completions", serving.address),
            number,
            load,
        }
    }

    fn ask(&self, request: usize) -> Result<Answer, String> {
        let tokens = self.load.generate;
        let body = json!({
            "prompt": prompt(self.number, request, self.load.words), "max_tokens": tokens, "temperature": 0, "ignore_eos": true,
            "stream": true, "stream_options": { "include_usage": true },
        });
        let what = |error: String| format!("client {}, request {request}: {error}", self.number);
        let began = Instant::now();
        let sent = self
            .agent
            .post(&self.url)
            .header("content-type", "application/json")
            .header("connection", "close")
            .send(body.to_string());
        let mut response = sent.map_err(|error| what(error.to_string()))?;
        let (mut first, mut last, mut gaps, mut usage) = (None, began, Vec::with_capacity(tokens), None);
        for line in BufReader::new(response.body_mut().as_reader()).lines() {
            let line = line.map_err(|error| what(error.to_string()))?;
            let now = Instant::now();
            let Some(event) = line.strip_prefix("data: ").filter(|event| *event != "[DONE]") else {
                continue;
            };
            let event: Value =
                serde_json::from_str(event).map_err(|error| what(format!("{error} in {event}")))?;
            if !event["error"].is_null() {
                return Err(what(event.to_string()));
            }
            usage = event["usage"]["completion_tokens"].as_u64().or(usage);
            if event["choices"][0]["text"].as_str().is_none_or(str::is_empty) {
                continue;
            }
            match first {
                None => first = Some((now - began).as_secs_f64()),
                Some(_) => gaps.push((now - last).as_secs_f64()),
            }
            last = now;
        }
        if usage != Some(tokens as u64) {
            return Err(what(format!("{usage:?} tokens were generated instead of {tokens}")));
        }
        Ok(Answer { first: first.unwrap_or_else(|| began.elapsed().as_secs_f64()), gaps })
    }
}

/// A prompt of that many words, different for each client and request.
fn prompt(client: usize, request: usize, words: usize) -> String {
    let mut state = (client as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(request as u64);
    let mut text = format!("{client} {request}");
    for _ in 0..words {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        text.push(' ');
        text.push_str(WORDS[(state >> 60) as usize]);
    }
    text
}

/// The given quantile of ascending samples.
fn quantile(samples: &[f64], share: f64) -> f64 {
    let at = (samples.len() as f64 * share) as usize;
    samples.get(at.min(samples.len().saturating_sub(1))).copied().unwrap_or(f64::NAN)
}

/// A free port on this machine.
///
/// # Errors
/// When there is none.
pub fn free_port() -> Result<u16, String> {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").map_err(|error| error.to_string())?;
    Ok(listener.local_addr().map_err(|error| error.to_string())?.port())
}

/// Our server with a slot for every client.
pub fn ours(server: &Path, weights: &Path, threads: usize, port: u16) -> Command {
    let mut command = Command::new(server);
    command
        // Short prefill chunks, so that decoding sequences never wait for a whole prompt.
        .args(["serve", "--prefill-tokens", "64", "--port", &port.to_string()])
        .args(["--threads", &threads.to_string(), "--weights"])
        .arg(weights);
    command
}

#[cfg(test)]
mod tests {
    use super::{Load, Serving, free_port};
    use std::process::Command;

    fn script(text: &str) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", text]);
        command
    }

    #[test]
    fn a_server_that_dies_as_it_starts_is_named_with_its_end_and_its_last_words() {
        let mut command = script("echo loading >&2; echo AMX is not ready to be used >&2; kill -SEGV $$");
        let error = Serving::start("the peer", &mut command, free_port().unwrap()).map(drop).unwrap_err();
        assert!(error.starts_with("the peer was ended by SIGSEGV: "), "{error}");
        assert!(error.contains("\n  AMX is not ready to be used\n"), "{error}");
    }

    #[test]
    fn a_server_that_dies_under_its_load_is_named_too() {
        let port = free_port().unwrap();
        // Healthy once, then gone.
        let text = format!(
            "import http.server, os, signal\n\
             class Once(http.server.BaseHTTPRequestHandler):\n\
             \x20   def do_GET(self): self.send_response(200); self.end_headers()\n\
             \x20   def do_POST(self): os.kill(os.getpid(), signal.SIGILL)\n\
             http.server.HTTPServer(('127.0.0.1', {port}), Once).serve_forever()\n"
        );
        let mut command = Command::new("python3");
        command.args(["-c", &text]);
        let mut serving = Serving::start("the peer", &mut command, port).unwrap();
        let error = serving.bear(Load { clients: 1, requests: 1, words: 1, generate: 1 }).unwrap_err();
        assert!(
            error.starts_with("the peer was ended by SIGILL: ") && error.contains("what a client saw"),
            "{error}"
        );
    }
}
