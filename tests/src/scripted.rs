//! The server of the scripted model, which answers whatever a test tells it to: an example of
//! `monomorph-server`.

use crate::program;
use crate::server::Serving;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::Command;
use tempfile::TempDir;

/// A running server: but for [`sees`], its model calls tools as Hermes models do and reasons between
/// `<think>` and `</think>`.
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

/// A server of a model that takes images.
///
/// # Panics
/// As [`talk`].
pub fn sees(arguments: &[&str]) -> Talking {
    let mut command = Command::new(scripted());
    command.arg0("echo-sees");
    begin("sees-checkpoint", command, arguments)
}

fn start(verb: &str, arguments: &[&str]) -> Talking {
    let mut command = Command::new(scripted());
    command.args([verb, "hermes", "think"]);
    begin("talk-checkpoint", command, arguments)
}

/// Starts `command` with the checkpoint that the program writes by that verb.
fn begin(checkpoint: &str, command: Command, arguments: &[&str]) -> Talking {
    let weights = tempfile::tempdir().expect("a temporary directory");
    let written = Command::new(scripted()).arg(checkpoint).arg(weights.path()).status();
    assert!(written.expect("it runs").success());
    Talking { serving: Serving::start_command(command, weights.path(), arguments), _weights: weights }
}

/// The program that these servers are.
///
/// # Panics
/// When it cannot be built.
pub fn scripted() -> PathBuf {
    program(&["--example", "scripted"], "examples/scripted")
}
