//! Runs the tools that turn emitted text into a binary: cargo and rustc, and nvcc for kernels.

mod cross;
pub mod cubin;
pub mod modules;
pub mod nvcc;
pub mod python;

use crate::emit::{self, File};
use crate::plan::Plan;
use crate::spec::types::{BuildOptions, Cpu, HardwareKind, Target};
use crate::{passes, spec};
use std::path::{Path, PathBuf};
use std::process::Command;

/// Why a build failed.
#[derive(Debug)]
pub enum BuildError {
    /// The spec is wrong; rendered, with places.
    Spec(spec::Diagnostics),
    /// The backend cannot plan the model.
    Pass(passes::PassError),
    /// A file could not be read or written.
    Io(PathBuf, std::io::Error),
    /// A tool failed; its own words went to standard error.
    Tool(String),
}

impl std::fmt::Display for BuildError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            BuildError::Spec(diagnostics) => write!(f, "{diagnostics}"),
            BuildError::Pass(error) => write!(f, "{error}"),
            BuildError::Io(path, error) => write!(f, "{}: {error}", path.display()),
            BuildError::Tool(what) => f.write_str(what),
        }
    }
}

impl std::error::Error for BuildError {}

impl From<spec::Diagnostics> for BuildError {
    fn from(diagnostics: spec::Diagnostics) -> Self {
        BuildError::Spec(diagnostics)
    }
}

impl From<passes::PassError> for BuildError {
    fn from(error: passes::PassError) -> Self {
        BuildError::Pass(error)
    }
}

/// What a build left behind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Built {
    /// A server.
    Server(PathBuf),
    /// A crate with its kernels compiled, to be linked elsewhere.
    Crate {
        /// Where it stands.
        directory: PathBuf,
        /// Why it is not a server yet, and what would make it one.
        why: String,
    },
}

/// Builds a target found in the `search` directories, as `options` say: writes its crate to `<root>/generated/<build>`
/// ([`Target::build`]), compiles its kernels where it has any, compiles the crate, and puts the server at
/// `<root>/dist/<build>/server`. Files that would not change
/// are not written, so a second build costs what cargo takes to see that nothing changed.
///
/// # Errors
/// See [`BuildError`].
pub fn build(
    root: &Path,
    search: &[PathBuf],
    target: &str,
    options: &BuildOptions,
) -> Result<Built, BuildError> {
    build_target(root, &spec::load_with(search, target, options)?)
}

/// As [`build`], of a target that is loaded.
///
/// # Errors
/// See [`BuildError`].
pub fn build_target(root: &Path, target: &Target) -> Result<Built, BuildError> {
    let (directory, plan) = write_crate(root, target)?;
    if plan.cuda.is_some() {
        modules::compile(root, &directory, &plan)?;
    }
    link(root, target, &directory, &target.hardware.name)
}

/// Compiles a written crate, whose kernels stand in `cubins/` where it has any, below `<root>/target/servers/<below>`, and puts
/// the server where [`build`] does.
///
/// # Errors
/// See [`BuildError`].
pub fn link(root: &Path, target: &Target, directory: &Path, below: &str) -> Result<Built, BuildError> {
    let mut cargo = Command::new("cargo");
    let host = match &target.hardware.kind {
        HardwareKind::Cpu(cpu) => {
            cargo.env("CARGO_ENCODED_RUSTFLAGS", rust_flags(cpu).join("\u{1f}"));
            cpu.host.as_deref()
        }
        HardwareKind::Cuda(cuda) => {
            // A server of a CUDA device runs on any CPU of its host's kind: what a step costs is not spent there.
            cargo.env_remove("CARGO_ENCODED_RUSTFLAGS").env_remove("RUSTFLAGS");
            Some(cuda.host.as_str())
        }
    };
    let target_directory = root.join("target/servers").join(below);
    // Output of another host's kind stands in a directory of its name.
    let mut built = target_directory.clone();
    if let Some(host) = host {
        match cross::linker(host) {
            Ok(None) => {}
            Ok(Some(linker)) => {
                linker.configure(&mut cargo);
                built.push(host);
            }
            Err(why) => return Ok(Built::Crate { directory: directory.to_owned(), why }),
        }
    }
    let status = cargo
        .args(["build", "--release", "--quiet", "--manifest-path"])
        .arg(directory.join("Cargo.toml"))
        .arg("--target-dir")
        .arg(&target_directory)
        .env_remove("CARGO_TARGET_DIR")
        .status()
        .map_err(|error| BuildError::Tool(format!("cargo could not be started: {error}")))?;
    if !status.success() {
        return Err(BuildError::Tool(format!("cargo failed on {}", directory.display())));
    }
    let server = root.join("dist").join(target.build()).join("server");
    install(&built.join("release").join(emit::package_name(target)), &server)?;
    Ok(Built::Server(server))
}

/// Emits a CUDA target's crate and compiles its kernels.
///
/// # Errors
/// See [`BuildError`].
pub fn cubins(root: &Path, target: &Target) -> Result<modules::CubinReport, BuildError> {
    let (directory, plan) = write_crate(root, target)?;
    modules::compile(root, &directory, &plan)
}

/// Emits a target's crate to `<root>/generated/<build>` and returns that directory and the plan.
///
/// # Errors
/// When the model cannot be planned or a file cannot be written.
pub fn write_crate(root: &Path, target: &Target) -> Result<(PathBuf, Plan), BuildError> {
    let graph = crate::graph::build(&target.model, &target.quant);
    let plan = passes::assemble::plan(target, &graph)?;
    let features = match &target.hardware.kind {
        HardwareKind::Cpu(cpu) => cpu_features(cpu)?,
        HardwareKind::Cuda(_) => Vec::new(),
    };
    let files = emit::emit(&plan, root, &features);
    let directory = root.join("generated").join(target.build());
    for File { path, text } in &files {
        write_if_changed(&directory.join(path), text.as_bytes())?;
    }
    if plan.cuda.is_some() {
        modules::copy_library(root, &directory)?;
    }
    // The workspace's lock file pins the server's dependencies too; cargo adds the one package to it.
    let lock = directory.join("Cargo.lock");
    if !lock.exists() {
        let pinned = root.join("Cargo.lock");
        let text = std::fs::read(&pinned).map_err(|error| BuildError::Io(pinned, error))?;
        write_if_changed(&lock, &text)?;
    }
    Ok((directory, plan))
}

fn write_if_changed(path: &Path, content: &[u8]) -> Result<(), BuildError> {
    let io = |error| BuildError::Io(path.to_owned(), error);
    if std::fs::read(path).is_ok_and(|old| old == content) {
        return Ok(());
    }
    std::fs::create_dir_all(path.parent().expect("files stand in a directory")).map_err(io)?;
    std::fs::write(path, content).map_err(io)
}

/// Copies the binary beside its destination and renames it, so that a running server is not disturbed.
fn install(built: &Path, server: &Path) -> Result<(), BuildError> {
    let io = |error| BuildError::Io(server.to_owned(), error);
    std::fs::create_dir_all(server.parent().expect("dist is a directory")).map_err(io)?;
    let fresh = server.with_extension("new");
    std::fs::copy(built, &fresh).map_err(io)?;
    std::fs::rename(&fresh, server).map_err(io)
}

fn rust_flags(cpu: &Cpu) -> Vec<String> {
    let mut flags = vec!["-C".to_owned(), format!("target-cpu={}", cpu.target_cpu)];
    if !cpu.features.is_empty() {
        let features: Vec<String> = cpu.features.iter().map(|feature| format!("+{feature}")).collect();
        flags.extend(["-C".to_owned(), format!("target-feature={}", features.join(","))]);
    }
    flags
}

/// The CPU features rustc compiles for, by its own account.
///
/// # Errors
/// When rustc cannot be run or refuses the CPU's name.
pub fn cpu_features(cpu: &Cpu) -> Result<Vec<String>, BuildError> {
    let output = Command::new("rustc")
        .args(["--print", "cfg"])
        .args(cpu.host.iter().flat_map(|host| ["--target", host]))
        .args(rust_flags(cpu))
        .output()
        .map_err(|error| BuildError::Tool(format!("rustc could not be started: {error}")))?;
    if !output.status.success() {
        let words = String::from_utf8_lossy(&output.stderr);
        return Err(BuildError::Tool(format!("rustc does not know CPU `{}`: {words}", cpu.target_cpu)));
    }
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let feature = |line: &str| {
        line.strip_prefix("target_feature=\"").and_then(|rest| rest.strip_suffix('"')).map(str::to_owned)
    };
    Ok(text.lines().filter_map(feature).collect())
}
