//! llama.cpp as a peer: a Python process that times it on request, so that runs can alternate, and judges
//! texts with it.

pub mod llama_server;
pub mod machine;

use crate::{ended, paths};
use clap::ValueEnum;
use machine::Build;
use monomorph_compiler::toolchain::python;
use serde::de::DeserializeOwned;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

const SCRIPT: &str = include_str!("llama_cpp.py");

/// Engines to compare with ours.
#[derive(Clone, Copy, ValueEnum)]
pub enum PeerName {
    #[value(name = "llama.cpp")]
    LlamaCpp,
}

/// A running peer with the weights loaded.
pub struct Peer {
    process: Child,
    commands: ChildStdin,
    answers: BufReader<ChildStdout>,
}

impl Peer {
    /// Installs llama-cpp-python at its pin with this build, if it is missing, and loads the weights.
    pub fn start(weights: &Path, threads: usize, build: &Build) -> Result<Peer, String> {
        let requirements = paths::root().join("xtask/src/peer/requirements.txt");
        let python = python::environment_with(
            &paths::root().join("target/venv-peer"),
            &requirements,
            &[("CMAKE_ARGS", &build.flags.join(" "))],
        )?;
        let mut process = Command::new(python)
            .args(["-c", SCRIPT])
            .arg(weights)
            .arg(threads.to_string())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(|error| format!("the peer could not be started: {error}"))?;
        let commands = process.stdin.take().ok_or("the peer has no input")?;
        let answers = BufReader::new(process.stdout.take().ok_or("the peer has no output")?);
        let mut peer = Peer { process, commands, answers };
        peer.answer()
            .and_then(|line| if line == "ready" { Ok(peer) } else { Err(format!("the peer said {line:?}")) })
    }

    /// Tokens per second for a prompt of `tokens`.
    pub fn prefill(&mut self, tokens: usize) -> Result<f64, String> {
        self.ask(&serde_json::json!({ "prefill": tokens }))
    }

    /// Tokens per second for `tokens` single steps after a prompt of `depth`.
    pub fn decode(&mut self, depth: usize, tokens: usize) -> Result<f64, String> {
        self.ask(&serde_json::json!({ "decode": [depth, tokens] }))
    }

    /// Negative logarithms of probabilities, a token, of each window of a text of so many tokens: where it
    /// begins, from which token on it is judged, and where it ends.
    pub fn judge(&mut self, text: &Path, tokens: usize, cut: &[[usize; 3]]) -> Result<Vec<f64>, String> {
        self.ask(&serde_json::json!({ "judge": { "text": text, "tokens": tokens, "cut": cut } }))
    }

    fn ask<T: DeserializeOwned>(&mut self, command: &serde_json::Value) -> Result<T, String> {
        // If the process is gone, the missing answer says so.
        let _ = writeln!(self.commands, "{command}");
        let line = self.answer()?;
        serde_json::from_str(&line).map_err(|_| format!("the peer said {line:?}"))
    }

    fn answer(&mut self) -> Result<String, String> {
        let mut line = String::new();
        match self.answers.read_line(&mut line) {
            Ok(0) => {
                let status = self.process.wait().map_err(|error| format!("the peer is gone: {error}"))?;
                Err(format!("the peer, llama.cpp, {} (what it wrote stands above)", ended::words(status)))
            }
            Ok(_) => Ok(line.trim().to_owned()),
            Err(error) => Err(format!("the peer cannot be read: {error}")),
        }
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        // It has nothing to save; an error means that it has already exited.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
