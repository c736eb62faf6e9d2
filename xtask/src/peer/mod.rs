//! llama.cpp as a peer: a Python process that times it on request, so that runs can alternate.

pub mod llama_server;
pub mod machine;

use crate::{ended, paths};
use machine::Build;
use monomorph_compiler::toolchain::python;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

const SCRIPT: &str = include_str!("llama_cpp.py");

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

    fn ask(&mut self, command: &serde_json::Value) -> Result<f64, String> {
        // If the process is gone, the missing answer says so.
        let _ = writeln!(self.commands, "{command}");
        let line = self.answer()?;
        line.parse().map_err(|_| format!("the peer said {line:?}"))
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
