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

    /// The same, built and with its weights fetched: several verbs of it do neither again.
    pub fn ready(self) -> Result<Server, String> {
        let (server, weights) = self.paths()?;
        Ok(Server { server: Some(server), weights: Some(weights), ..self })
    }

    /// The server, built if none is given, and its weights, fetched if none are.
    pub fn paths(&self) -> Result<(PathBuf, PathBuf), String> {
        let server = match &self.server {
            Some(server) => server.clone(),
            None => build::server(&self.target, self.build)?,
        };
        let weights = match &self.weights {
            Some(path) => path.clone(),
            None => fetch::weights(&self.target)?,
        };
        Ok((server, weights))
    }
}

/// A verb of the server, on its weights.
pub fn verb(name: &str, options: &Server) -> Result<Command, String> {
    let (server, weights) = options.paths()?;
    let mut command = Command::new(server);
    command.arg(name).arg("--weights").arg(weights);
    Ok(command)
}
