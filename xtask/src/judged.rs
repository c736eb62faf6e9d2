//! A server, built or given, of which a verb says how good its model's answers are.

use crate::{BuildOptions, TargetOptions, build, fetch};
use clap::Args;
pub use monomorph_compiler::toolchain::python::run;
use monomorph_formats::cached::KvFormats;
use std::path::PathBuf;
use std::process::Command;

#[derive(Args, Clone)]
pub struct Server {
    #[command(flatten)]
    pub target: TargetOptions,
    #[command(flatten)]
    build: BuildOptions,
    /// Weights [default: fetched].
    #[arg(long, value_name = "PATH")]
    weights: Option<PathBuf>,
    /// Take this server instead of building one.
    #[arg(long, value_name = "PATH")]
    server: Option<PathBuf>,
}

impl Server {
    /// The same, built with these formats of keys and values.
    pub fn with_kv(&self, formats: KvFormats) -> Server {
        Server { build: self.build.with_kv(formats), server: None, ..self.clone() }
    }
}

/// A verb of the server, on its weights.
pub fn verb(name: &str, options: Server) -> Result<Command, String> {
    let server = match options.server {
        Some(server) => server,
        None => build::server(&options.target, options.build)?,
    };
    let weights = match options.weights {
        Some(path) => path,
        None => fetch::weights(&options.target)?,
    };
    let mut command = Command::new(server);
    command.arg(name).arg("--weights").arg(weights);
    Ok(command)
}
