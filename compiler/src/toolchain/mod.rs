//! Runs the tools that turn emitted text into a binary: cargo and rustc, and nvcc for kernels.

mod beside_tests;
mod cargo;
mod cross;
pub mod cubin;
mod figures;
pub mod kernels;
mod levels;
pub mod listed;
pub mod modules;
pub mod nvcc;
pub mod python;
pub mod times;

pub use cargo::{cargo, rustc_with};
pub use levels::{Dependencies, Levels};

use crate::emit::{self, File};
use crate::plan::Plan;
use crate::spec::types::{BuildOptions, Cpu, HardwareKind, Target};
use crate::{passes, spec};
use sha2::{Digest, Sha256};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Instant, SystemTime};

/// Why a build failed.
#[derive(Debug)]
pub enum BuildError {
    /// The spec is wrong: rendered, with locations.
    Spec(spec::Diagnostics),
    /// The backend cannot plan the model.
    Pass(passes::PassError),
    /// A file could not be read or written.
    Io(PathBuf, std::io::Error),
    /// A tool failed; its output went to standard error.
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

/// Result of a build.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Built {
    /// The path of a built server.
    Server(PathBuf),
    /// A crate with compiled kernels, to be linked elsewhere.
    Crate {
        /// Directory of the crate.
        directory: PathBuf,
        /// Why it is not a server yet, and how to make it one.
        why: String,
    },
}

/// Builds a target found in the `search` directories with these `options`: writes its crate to
/// `<root>/generated/<build>` ([`Target::build`]), compiles its kernels, if any, compiles the crate, and puts
/// the server at `<root>/dist/<build>/server`. Unchanged files are not rewritten, so a second build costs
/// what cargo takes to see that nothing changed.
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

/// [`build`] for a loaded target.
///
/// # Errors
/// See [`BuildError`].
pub fn build_target(root: &Path, target: &Target) -> Result<Built, BuildError> {
    let _alone = alone(root, target)?;
    let (directory, plan) = write_crate(root, target)?;
    if plan.cuda.is_some() {
        modules::compile(root, &directory, &plan)?;
    }
    let commit = commit(root);
    link(
        root,
        target,
        &directory,
        &Linking { commit: commit.as_deref(), ..Linking::new(&target.hardware.name) },
    )
}

/// The commit that is checked out at `root`, with `+` behind it if files that it has differ; `None` where
/// there is no repository.
pub fn commit(root: &Path) -> Option<String> {
    let git = |arguments: &[&str]| {
        let output = Command::new("git").current_dir(root).args(arguments).output().ok()?;
        output.status.success().then(|| String::from_utf8_lossy(&output.stdout).trim().to_owned())
    };
    let changed = git(&["status", "--porcelain", "--untracked-files=no"])?;
    Some(git(&["rev-parse", "HEAD"])? + if changed.is_empty() { "" } else { "+" })
}

/// Waits until no process builds this target, and keeps others waiting until the returned file is dropped:
/// all builds of a name write the same crate and binary, and two programs of the tests may give different
/// models one name.
///
/// # Errors
/// When there can be no such file.
pub fn alone(root: &Path, target: &Target) -> Result<std::fs::File, BuildError> {
    let path = root.join("target/servers").join(format!("{}.lock", target.build()));
    let io = |error| BuildError::Io(path.clone(), error);
    std::fs::create_dir_all(path.parent().expect("it is in a directory")).map_err(io)?;
    let file = std::fs::File::create(&path).map_err(io)?;
    file.lock().map_err(io)?;
    Ok(file)
}

/// Whether servers for this host can be linked here.
///
/// # Errors
/// Says what is missing, and what would do instead.
pub fn links_for(host: &str) -> Result<(), String> {
    cross::linker(host).map(drop)
}

/// `cargo`, told to compile for this host.
///
/// # Errors
/// As [`links_for`].
pub fn cargo_for(host: &str) -> Result<Command, String> {
    let mut cargo = cargo();
    if let Some(cross) = cross::linker(host)? {
        cross.configure(&mut cargo);
    }
    Ok(cargo)
}

/// Options of [`link`]. [`Linking::new`] is for servers that ship; tests may ask for less.
#[derive(Clone, Copy, Debug)]
pub struct Linking<'a> {
    /// The directory below `<root>/target/servers` with cargo's build output.
    pub below: &'a str,
    /// The processor that a CUDA target's server is compiled for. `None` means any of its host's
    /// architecture, since the CPU matters little to the cost of a step. A CPU target's processor lets both
    /// share the project's crates as they are compiled for it.
    pub processor: Option<&'a Cpu>,
    /// How well its crates are optimised.
    pub levels: Levels,
    /// The directory below `<root>` where the server is put, under the name of its build.
    pub into: &'a str,
    /// The commit that it says it was built from, if any.
    pub commit: Option<&'a str>,
}

impl Linking<'_> {
    /// Options of servers that ship.
    pub fn new(below: &str) -> Linking<'_> {
        Linking { below, processor: None, levels: Levels::SHIPPED, into: "dist", commit: None }
    }
}

/// Compiles a written crate, whose kernels, if any, are in `cubins/`, with the options of `linking`, and puts
/// the server where [`build`] does. [`times`] records how long it took.
///
/// # Errors
/// See [`BuildError`].
pub fn link(root: &Path, target: &Target, directory: &Path, linking: &Linking) -> Result<Built, BuildError> {
    let start = Instant::now();
    let package = emit::package_name(target);
    let binaries = match compile(root, target, directory, &package, linking)? {
        Ok(binaries) => binaries,
        Err(why) => return Ok(Built::Crate { directory: directory.to_owned(), why }),
    };
    times::note(root, &format!("server {}", target.build()), start.elapsed())?;
    let server = root.join(linking.into).join(target.build()).join("server");
    install(&binaries.join(package), &server)?;
    Ok(Built::Server(server))
}

/// Compiles the crate `package` in `directory` for the hardware of `target`, and returns where its binaries
/// are, or why this machine cannot link them and how to.
///
/// # Errors
/// See [`BuildError`].
pub fn compile(
    root: &Path,
    target: &Target,
    directory: &Path,
    package: &str,
    linking: &Linking,
) -> Result<Result<PathBuf, String>, BuildError> {
    let mut cargo = cargo();
    let processor = target.hardware.cpu().or(linking.processor);
    let flags: Vec<String> = processor.map(rust_flags).into_iter().flatten().chain(remapped(root)).collect();
    match linking.commit {
        Some(commit) => cargo.env("MONOMORPH_COMMIT", commit),
        None => cargo.env_remove("MONOMORPH_COMMIT"),
    };
    let (target_directory, profile) = match linking.levels.dependencies {
        Dependencies::All(_) => {
            cargo.args(["build", "--release"]).env("CARGO_ENCODED_RUSTFLAGS", flags.join("\u{1f}"));
            (root.join("target/servers").join(linking.below), "release")
        }
        Dependencies::OfTests => {
            beside_tests::select(&mut cargo, root, directory, package, &flags)?;
            (beside_tests::target(root), "debug")
        }
    };
    // Output for another architecture is in a directory of its name.
    let mut built = target_directory.clone();
    if let Some(host) = target.hardware.host() {
        match cross::linker(host) {
            Ok(None) => {}
            Ok(Some(linker)) => {
                linker.configure(&mut cargo);
                built.push(host);
            }
            Err(why) => return Ok(Err(why)),
        }
    }
    let status = cargo
        .arg("--quiet")
        .args(linking.levels.options(package))
        .arg("--manifest-path")
        .arg(directory.join("Cargo.toml"))
        .arg("--target-dir")
        .arg(&target_directory)
        .env_remove("CARGO_TARGET_DIR")
        .status()
        .map_err(|error| BuildError::Tool(format!("cargo could not be started: {error}")))?;
    if !status.success() {
        return Err(BuildError::Tool(format!("cargo failed on {}", directory.display())));
    }
    Ok(Ok(built.join(profile)))
}

/// Emits a CUDA target's crate and compiles its kernels.
///
/// # Errors
/// See [`BuildError`].
pub fn cubins(root: &Path, target: &Target) -> Result<modules::CubinReport, BuildError> {
    let _alone = alone(root, target)?;
    let (directory, plan) = write_crate(root, target)?;
    modules::compile(root, &directory, &plan)
}

/// Plans a target.
///
/// # Errors
/// When the model cannot be planned.
pub fn plan(target: &Target) -> Result<Plan, BuildError> {
    let (model, quant) = (&target.model, &target.quant);
    let graph = match (target.tower.as_ref().filter(|_| target.vision), target.drafter()) {
        (Some(tower), _) => crate::graph::build_with_vision(model, quant, tower),
        (None, Some(drafter)) => crate::graph::build_with_dflash(model, quant, drafter),
        (None, None) => crate::graph::build(model, quant),
    };
    Ok(passes::assemble::plan(target, &graph)?)
}

/// Emits a target's crate to `<root>/generated/<build>` and returns that directory and the plan.
///
/// # Errors
/// When the model cannot be planned or a file cannot be written.
pub fn write_crate(root: &Path, target: &Target) -> Result<(PathBuf, Plan), BuildError> {
    let plan = plan(target)?;
    let features = match &target.hardware.kind {
        HardwareKind::Cpu(cpu) => cpu_features(cpu)?,
        HardwareKind::Cuda(_) => Vec::new(),
    };
    let files = emit::emit(&plan, &features);
    let directory = root.join("generated").join(target.build());
    for File { path, text } in &files {
        match path.to_str() {
            Some("Cargo.toml") => workspace(root, &directory, text)?,
            _ => write_if_changed(&directory.join(path), text.as_bytes())?,
        }
    }
    if plan.cuda.is_some() {
        modules::copy_library(root, &directory)?;
    }
    Ok((directory, plan))
}

/// Makes a directory below `root` the workspace of an emitted crate: its `manifest`, and behind that the
/// project's tables that the runtime crates inherit from; a relative link to these, so that they are members;
/// and the project's lock file, which pins a server's dependencies too (cargo adds the package).
///
/// Cargo makes the symbols of a crate differ by its path in its workspace, and by its absolute path where it
/// is in none: crates elsewhere would be other binaries in every checkout.
///
/// # Errors
/// When a file cannot be read or written.
pub fn workspace(root: &Path, directory: &Path, manifest: &str) -> Result<(), BuildError> {
    let read = |name: &str| {
        let path = root.join(name);
        std::fs::read_to_string(&path).map_err(|error| BuildError::Io(path, error))
    };
    let text = format!("{manifest}\n{}", inherited(&read("Cargo.toml")?));
    write_if_changed(&directory.join("Cargo.toml"), text.as_bytes())?;
    linked(root, directory, "runtime")?;
    let lock = directory.join("Cargo.lock");
    if lock.exists() { Ok(()) } else { write_if_changed(&lock, read("Cargo.lock")?.as_bytes()) }
}

/// Makes a relative link in an emitted crate's directory to what has this name in the project.
fn linked(root: &Path, directory: &Path, name: &str) -> Result<(), BuildError> {
    let link = directory.join(name);
    let depth = directory.strip_prefix(root).expect("crates are emitted below the root").components().count();
    let to = (0..depth).map(|_| "..").chain([name]).collect::<PathBuf>();
    if std::fs::read_link(&link).ok().as_ref() == Some(&to) {
        return Ok(());
    }
    let io = |error| BuildError::Io(link.clone(), error);
    if link.is_symlink() {
        std::fs::remove_file(&link).map_err(io)?;
    }
    std::os::unix::fs::symlink(to, &link).map_err(io)
}

/// The tables of a workspace's manifest that its members inherit from.
fn inherited(manifest: &str) -> String {
    String::from("# Of the project's Cargo.toml, for the runtime crates.\n")
        + &tables(manifest, "[workspace.")
}

/// The tables of a manifest whose headings begin like this.
fn tables(manifest: &str, heading: &str) -> String {
    let mut inside = false;
    let lines = manifest.lines().filter(|line| {
        if line.starts_with('[') {
            inside = line.starts_with(heading);
        }
        inside
    });
    lines.fold(String::new(), |text, line| text + line + "\n")
}

/// Writes a file, unless it has that content already; then its modification time stays.
///
/// # Errors
/// When it cannot be written.
pub fn write_if_changed(path: &Path, content: &[u8]) -> Result<(), BuildError> {
    let io = |error| BuildError::Io(path.to_owned(), error);
    if std::fs::read(path).is_ok_and(|old| old == content) {
        return Ok(());
    }
    std::fs::create_dir_all(path.parent().expect("files stand in a directory")).map_err(io)?;
    std::fs::write(path, content).map_err(io)
}

/// A unique name beside `path`, which no other thread or process writes to, even if they share the directory.
fn fresh(path: &Path) -> PathBuf {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let count = COUNT.fetch_add(1, Ordering::Relaxed);
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    path.with_extension(format!("{}-{count}-{}.new", std::process::id(), now.as_nanos()))
}

/// Replaces a file atomically: concurrent readers and writers see either the old file or the new one.
fn replace(path: &Path, content: &[u8]) -> Result<(), BuildError> {
    let io = |error| BuildError::Io(path.to_owned(), error);
    std::fs::create_dir_all(path.parent().expect("files stand in a directory")).map_err(io)?;
    let own = fresh(path);
    std::fs::write(&own, content).and_then(|()| std::fs::rename(&own, path)).map_err(io)
}

/// A hexadecimal digest of several texts, including where each ends.
fn digest<'a>(parts: impl IntoIterator<Item = &'a [u8]>) -> String {
    let mut hash = Sha256::new();
    for part in parts {
        hash.update((part.len() as u64).to_le_bytes());
        hash.update(part);
    }
    hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Copies the binary beside its destination and renames it, so that a running server is not disturbed and
/// builds of one target at the same time do not take each other's copy.
fn install(built: &Path, server: &Path) -> Result<(), BuildError> {
    let io = |error| BuildError::Io(server.to_owned(), error);
    std::fs::create_dir_all(server.parent().expect("dist is a directory")).map_err(io)?;
    let own = fresh(server);
    std::fs::copy(built, &own).and_then(|_| std::fs::rename(&own, server)).map_err(io)
}

fn rust_flags(cpu: &Cpu) -> Vec<String> {
    let mut flags = vec!["-C".to_owned(), format!("target-cpu={}", cpu.target_cpu)];
    if !cpu.features.is_empty() {
        let features: Vec<String> = cpu.features.iter().map(|feature| format!("+{feature}")).collect();
        flags.extend(["-C".to_owned(), format!("target-feature={}", features.join(","))]);
    }
    flags
}

/// Flags by which no path of this machine stands in a binary: those of the checkout and of cargo's sources.
pub fn remapped(root: &Path) -> impl Iterator<Item = String> {
    let home = || std::env::var_os("HOME").map(|home| Path::new(&home).join(".cargo"));
    let cargo = std::env::var_os("CARGO_HOME").map(PathBuf::from).or_else(home);
    let to = |from: PathBuf, to| format!("--remap-path-prefix={}={to}", from.display());
    [to(root.to_owned(), "/monomorph")].into_iter().chain(cargo.map(|it| to(it, "/cargo")))
}

/// The CPU features that rustc reports for a CPU.
///
/// # Errors
/// When rustc cannot be run or does not know the CPU.
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

#[cfg(test)]
mod tests {
    use super::*;

    /// Two copies of one name were one once: the first rename took the second's away.
    #[test]
    fn one_server_may_be_installed_by_many_at_once() {
        let directory = tempfile::tempdir().expect("a directory");
        let (built, server) = (directory.path().join("built"), directory.path().join("dist/server"));
        std::fs::write(&built, vec![7; 1 << 20]).expect("it is written");
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| (0..20).for_each(|_| install(&built, &server).expect("it is installed")));
            }
        });
        assert_eq!(std::fs::read(&server).expect("it is there"), vec![7; 1 << 20]);
        assert_eq!(std::fs::read_dir(directory.path().join("dist")).expect("it is there").count(), 1);
    }
}
