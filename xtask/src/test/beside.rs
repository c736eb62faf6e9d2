//! Compiles the kernels of every GPU target beside the tests. The tests wait for servers, clocks and each
//! other and leave cores idle; nvcc takes those at the lowest priority, so that it delays no test.

use crate::paths;
use std::fs::File;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

/// A running `xtask kernels`.
pub struct Kernels {
    child: Child,
    /// Its output.
    log: PathBuf,
}

/// Starts it. The compiler must have been found or installed before.
pub fn begin(bless: bool) -> Result<Kernels, String> {
    let log = paths::root().join("target/kernels.log");
    let io = |error: std::io::Error| format!("{}: {error}", log.display());
    let output = File::create(&log).map_err(io)?;
    let errors = output.try_clone().map_err(io)?;
    let program = paths::program().map_err(|error| format!("this program is not to be found: {error}"))?;
    let mut command = Command::new("nice");
    command.args(["-n", "19"]).arg(program).arg("kernels").args(bless.then_some("--bless"));
    command.stdin(Stdio::null()).stdout(output).stderr(errors);
    let child = command.spawn().map_err(|error| format!("nice could not be started: {error}"))?;
    Ok(Kernels { child, log })
}

impl Kernels {
    /// Waits for it and prints its findings.
    pub fn end(mut self) -> Result<(), String> {
        let status = self.child.wait().map_err(|error| format!("waiting for the kernels: {error}"))?;
        let said =
            std::fs::read_to_string(&self.log).map_err(|error| format!("{}: {error}", self.log.display()))?;
        eprint!("{said}");
        if status.success() { Ok(()) } else { Err(format!("`xtask kernels` ended with {status}")) }
    }
}
