//! The server of the scripted model, which answers whatever a test tells it to: an example of
//! `monomorph-server`.

use crate::program;
use crate::server::Serving;
use std::path::PathBuf;
use std::process::Command;
use tempfile::TempDir;

/// A running server whose model calls tools as Hermes models do and reasons between `<think>` and `</think>`.
pub struct Talking {
    /// The process, with its address.
    pub serving: Serving,
    _weights: TempDir,
}

/// Builds the server beside the calling test, writes its checkpoint, and starts it with these flags.
///
/// # Panics
/// When it cannot be built or started.
pub fn talk(arguments: &[&str]) -> Talking {
    start("talk", arguments)
}

/// The same with a model that has room for the prompts of agents, if `--context` says so.
///
/// # Panics
/// As [`talk`].
pub fn agent(arguments: &[&str]) -> Talking {
    start("agent", arguments)
}

fn start(verb: &str, arguments: &[&str]) -> Talking {
    let server = scripted();
    let weights = tempfile::tempdir().expect("a temporary directory");
    let written = Command::new(&server).arg("talk-checkpoint").arg(weights.path()).status();
    assert!(written.expect("it runs").success());
    let mut command = Command::new(server);
    command.args([verb, "hermes", "think"]);
    Talking { serving: Serving::start_command(command, weights.path(), arguments), _weights: weights }
}

/// The program that these servers are.
///
/// # Panics
/// When it cannot be built.
pub fn scripted() -> PathBuf {
    program(&["--example", "scripted"], "examples/scripted")
}
