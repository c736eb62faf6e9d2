//! Linking for another architecture: a GB10 has an Arm host.

use std::path::{Path, PathBuf};
use std::process::Command;

/// Tools that compile and link for another host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cross {
    /// The host's triple.
    host: String,
    /// A rustc with that host's standard library.
    rustc: PathBuf,
    /// A C compiler that links for the host.
    linker: PathBuf,
}

impl Cross {
    /// Makes a cargo command build for the host.
    pub fn configure(&self, cargo: &mut Command) {
        let variable = self.host.to_uppercase().replace('-', "_");
        cargo
            .env("RUSTC", &self.rustc)
            .env(format!("CARGO_TARGET_{variable}_LINKER"), &self.linker)
            .env("CARGO_BUILD_TARGET", &self.host);
    }
}

/// Tools to link for `host`; `None` if it is this machine's architecture.
///
/// # Errors
/// Says what is missing, and what would do instead.
pub fn linker(host: &str) -> Result<Option<Cross>, String> {
    if host.split('-').next() == Some(std::env::consts::ARCH) {
        return Ok(None);
    }
    let elsewhere = format!("build it on a {host} machine, or install what is missing");
    let prefix = host.replace("-unknown-", "-");
    let path = std::env::var_os("PATH").unwrap_or_default();
    let gcc = format!("{prefix}-gcc");
    let linker =
        std::env::split_paths(&path).map(|directory| directory.join(&gcc)).find(|path| path.is_file());
    let linker = linker.ok_or_else(|| format!("there is no {gcc} to link for {host}: {elsewhere}"))?;
    // A distribution's own rustc may have libraries that the one on the path lacks.
    let candidates = [PathBuf::from("rustc"), PathBuf::from("/usr/bin/rustc")];
    let rustc = candidates.into_iter().find(|rustc| has_library(rustc, host));
    let rustc =
        rustc.ok_or_else(|| format!("no rustc here has the standard library of {host}: {elsewhere}"))?;
    Ok(Some(Cross { host: host.to_owned(), rustc, linker }))
}

fn has_library(rustc: &Path, host: &str) -> bool {
    let output = Command::new(rustc).args(["--print", "target-libdir", "--target", host]).output();
    output.is_ok_and(|output| {
        let directory = PathBuf::from(String::from_utf8_lossy(&output.stdout).trim());
        let entries = std::fs::read_dir(directory).into_iter().flatten().flatten();
        let mut names = entries.map(|entry| entry.file_name().to_string_lossy().into_owned());
        output.status.success() && names.any(|name| name.starts_with("libstd-"))
    })
}
