//! The CUDA compiler: found or installed, run on every module; its results are cached by their inputs.

use super::cubin::{self, Usage};
use super::{BuildError, digest, fresh, python, replace};
use monomorph_abi::cuda::RELEASE;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

/// Options of every module; the hardware adds the architecture.
const OPTIONS: [&str; 6] = ["-cubin", "-std=c++17", "-O3", "-Werror=all-warnings", "-Xptxas", "-v"];

/// A usable nvcc, and the tool that reads its output.
#[derive(Clone, Debug)]
pub struct Compiler {
    nvcc: PathBuf,
    cuobjdump: PathBuf,
    /// Output of `nvcc --version`.
    version: String,
}

/// A module compiled to machine code.
#[derive(Clone, Debug)]
pub struct Cubin {
    /// The module's name.
    pub module: String,
    /// Path of the machine code in the cache.
    pub path: PathBuf,
    /// Details of its compilation.
    pub made: Made,
    /// Whether it was in the cache.
    pub cached: bool,
}

/// The record beside a cached cubin.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Made {
    /// Size of the machine code.
    pub bytes: u64,
    /// Digest of the machine code.
    pub digest: String,
    /// Wall seconds of compilation.
    pub seconds: f64,
    /// Resources by kernel.
    pub kernels: BTreeMap<String, Usage>,
}

/// Result of one run of nvcc.
pub(super) enum Run {
    /// Machine code.
    Made {
        /// Wall seconds.
        seconds: f64,
        /// Resources by kernel.
        kernels: BTreeMap<String, Usage>,
    },
    /// The source was refused, with nvcc's message.
    Refused(String),
}

impl Compiler {
    /// The compiler itself, for programs that are not modules of a server.
    pub fn nvcc(&self) -> &Path {
        &self.nvcc
    }

    /// Its version, as it reports it.
    pub fn version(&self) -> &str {
        &self.version
    }

    /// Finds nvcc of the pinned release on the path or under `CUDA_HOME`, or installs it below
    /// `root/target/toolchain`.
    ///
    /// # Errors
    /// When there is none and none can be installed.
    pub fn find(root: &Path) -> Result<Compiler, BuildError> {
        let on_path = std::env::var_os("PATH");
        let directories = on_path.iter().flat_map(std::env::split_paths);
        let home = std::env::var_os("CUDA_HOME").map(|home| PathBuf::from(home).join("bin"));
        let installed = directories.chain(home).map(|directory| directory.join("nvcc"));
        let installed =
            installed.filter(|nvcc| nvcc.is_file()).find_map(|nvcc| Some((version(&nvcc)?, nvcc)));
        let (version, nvcc) = match installed {
            Some(found) => found,
            None => {
                let nvcc = install(root, "nvcc", "nvcc").map_err(|why| {
                    BuildError::Tool(format!(
                        "kernels are compiled with nvcc {RELEASE}: none is on the path or under CUDA_HOME, and its \
                         packages could not be installed from PyPI ({why}). Install the CUDA toolkit {RELEASE}, or \
                         give pip a way to PyPI."
                    ))
                })?;
                let version = version(&nvcc).ok_or_else(|| {
                    BuildError::Tool(format!("{} was installed and does not run", nvcc.display()))
                })?;
                (version, nvcc)
            }
        };
        let beside = nvcc.with_file_name("cuobjdump");
        let cuobjdump = if beside.is_file() { Ok(beside) } else { install(root, "inspect", "cuobjdump") };
        let cuobjdump = cuobjdump.map_err(|why| {
            BuildError::Tool(format!(
                "cubins are inspected with cuobjdump, which could not be installed: {why}"
            ))
        })?;
        Ok(Compiler { nvcc, cuobjdump, version })
    }

    /// Compiles `<directory>/<module>.cu` with the headers in `<directory>/lib` for one architecture (`90a`),
    /// as many modules at a time as there are cores. Every result is kept in `cache` under a digest of the
    /// source, the headers it includes, the options and the compiler.
    ///
    /// # Errors
    /// The messages of nvcc for all modules it refuses.
    pub fn compile(
        &self,
        cache: &Path,
        architecture: &str,
        directory: &Path,
        modules: &[String],
    ) -> Result<Vec<Cubin>, BuildError> {
        let next = AtomicUsize::new(0);
        let results: Mutex<Vec<Option<Result<Cubin, String>>>> =
            Mutex::new(modules.iter().map(|_| None).collect());
        let work = || {
            while let Some((index, module)) = {
                let index = next.fetch_add(1, Ordering::Relaxed);
                modules.get(index).map(|module| (index, module))
            } {
                let result =
                    self.module(cache, architecture, directory, module).map_err(|error| error.to_string());
                results.lock().expect("no worker panics")[index] = Some(result);
            }
        };
        let workers = std::thread::available_parallelism().map_or(1, usize::from).min(modules.len());
        std::thread::scope(|scope| (0..workers).for_each(|_| drop(scope.spawn(work))));
        let results = results.into_inner().expect("no worker panics").into_iter().flatten();
        let (made, failed): (Vec<_>, Vec<_>) = results.partition(Result::is_ok);
        if failed.is_empty() {
            return Ok(made.into_iter().flatten().collect());
        }
        let words: Vec<String> = failed.into_iter().filter_map(Result::err).collect();
        Err(BuildError::Tool(words.join("\n")))
    }

    fn module(
        &self,
        cache: &Path,
        architecture: &str,
        directory: &Path,
        module: &str,
    ) -> Result<Cubin, BuildError> {
        let source = directory.join(module).with_extension("cu");
        let library = directory.join("lib");
        let key = self.key(&source, &library, architecture)?;
        let (path, record) = (cache.join(format!("{key}.cubin")), cache.join(format!("{key}.json")));
        let known = std::fs::read(&record).ok().and_then(|text| serde_json::from_slice::<Made>(&text).ok());
        let whole = |made: &Made| std::fs::read(&path).is_ok_and(|code| digest([&code[..]]) == made.digest);
        if let Some(made) = known.filter(whole) {
            return Ok(Cubin { module: module.to_owned(), path, made, cached: true });
        }
        std::fs::create_dir_all(cache).map_err(|error| BuildError::Io(cache.to_owned(), error))?;
        // Another build may compile the same module: each writes a file of its own and renames it.
        let own = fresh(&path);
        let (seconds, kernels) = match self.run(architecture, &library, &source, &own)? {
            Run::Made { seconds, kernels } => (seconds, kernels),
            Run::Refused(words) => {
                return Err(BuildError::Tool(format!("nvcc refuses {}:\n{words}", source.display())));
            }
        };
        let code = std::fs::read(&own).map_err(|error| BuildError::Io(own.clone(), error))?;
        std::fs::rename(&own, &path).map_err(|error| BuildError::Io(path.clone(), error))?;
        let made = Made { bytes: code.len() as u64, digest: digest([&code[..]]), seconds, kernels };
        let text = serde_json::to_string_pretty(&made).expect("numbers and names");
        replace(&record, text.as_bytes())?;
        Ok(Cubin { module: module.to_owned(), path, made, cached: false })
    }

    /// Compiles a source to `cubin`, with includes from `include`, and reads the resources of its kernels.
    ///
    /// # Errors
    /// When a tool does not start, or the two tools disagree on registers.
    /// When a tool does not start, or the two that count registers disagree.
    pub(super) fn run(
        &self,
        architecture: &str,
        include: &Path,
        source: &Path,
        cubin: &Path,
    ) -> Result<Run, BuildError> {
        let start = Instant::now();
        let mut command = Command::new(&self.nvcc);
        command
            .arg(gencode(architecture))
            .args(OPTIONS)
            .arg("-I")
            .arg(include)
            .arg("-o")
            .arg(cubin)
            .arg(source);
        let output = command.output().map_err(|error| {
            BuildError::Tool(format!("{} could not be started: {error}", self.nvcc.display()))
        })?;
        let words = String::from_utf8_lossy(&output.stderr);
        if !output.status.success() {
            let said = format!("{}{words}", String::from_utf8_lossy(&output.stdout));
            return Ok(Run::Refused(said.trim_end().to_owned()));
        }
        let seconds = start.elapsed().as_secs_f64();
        let mut kernels = cubin::assembler_report(&words);
        cubin::add_inspection(&mut kernels, &self.inspect(cubin)?).map_err(BuildError::Tool)?;
        Ok(Run::Made { seconds, kernels })
    }

    /// A digest of all inputs of a cubin.
    fn key(&self, source: &Path, library: &Path, architecture: &str) -> Result<String, BuildError> {
        let texts = with_includes(source, library)?;
        let parts = self.identity(architecture);
        Ok(digest(parts.iter().map(String::as_bytes).chain(texts.iter().map(String::as_bytes))))
    }

    /// Inputs of machine code besides the text: the compiler, the architecture and the options.
    pub(super) fn identity(&self, architecture: &str) -> Vec<String> {
        let options = OPTIONS.iter().map(|option| (*option).to_owned());
        [self.version.clone(), gencode(architecture)].into_iter().chain(options).collect()
    }

    fn inspect(&self, cubin: &Path) -> Result<String, BuildError> {
        let output = Command::new(&self.cuobjdump).arg("--dump-resource-usage").arg(cubin).output().map_err(
            |error| BuildError::Tool(format!("{} did not start: {error}", self.cuobjdump.display())),
        )?;
        if !output.status.success() {
            let words = String::from_utf8_lossy(&output.stderr).into_owned();
            return Err(BuildError::Tool(format!("cuobjdump refuses {}: {words}", cubin.display())));
        }
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }
}

/// The option for machine code of one architecture.
fn gencode(architecture: &str) -> String {
    format!("-gencode=arch=compute_{architecture},code=sm_{architecture}")
}

/// The text of a source and of everything it includes in quotes, each once. Includes name headers relative to
/// `library`.
pub(super) fn with_includes(source: &Path, library: &Path) -> Result<Vec<String>, BuildError> {
    let (mut open, mut seen) = (vec![source.to_owned()], BTreeSet::from([source.to_owned()]));
    let mut texts = Vec::new();
    while let Some(path) = open.pop() {
        let text = std::fs::read_to_string(&path).map_err(|error| BuildError::Io(path.clone(), error))?;
        let quoted = text.lines().filter_map(|line| line.trim().strip_prefix("#include \""));
        let included = quoted.filter_map(|rest| Some(library.join(rest.split_once('"')?.0)));
        open.extend(included.filter(|path| seen.insert(path.clone())));
        texts.push(text);
    }
    Ok(texts)
}

/// The version that `nvcc --version` prints, if it is the pinned release.
fn version(nvcc: &Path) -> Option<String> {
    let output = Command::new(nvcc).arg("--version").output().ok()?;
    let words = String::from_utf8_lossy(&output.stdout).into_owned();
    words.contains(&format!("release {RELEASE},")).then_some(words)
}

/// Installs `templates/cuda/requirements-<name>.txt` and returns one of its programs.
fn install(root: &Path, name: &str, program: &str) -> Result<PathBuf, String> {
    let requirements = root.join("templates/cuda").join(format!("requirements-{name}.txt"));
    let python = python::environment(&root.join("target/toolchain").join(name), &requirements)?;
    let output = Command::new(&python)
        .args(["-c", "import sysconfig; print(sysconfig.get_path('purelib'))"])
        .output()
        .map_err(|error| format!("{}: {error}", python.display()))?;
    let packages = PathBuf::from(String::from_utf8_lossy(&output.stdout).trim());
    let path = packages.join("nvidia/cu13/bin").join(program);
    if path.is_file() { Ok(path) } else { Err(format!("{} is not there", path.display())) }
}

#[cfg(test)]
mod tests {
    use super::with_includes;

    #[test]
    fn headers_are_followed_from_folder_to_folder() {
        let directory = tempfile::tempdir().expect("there is room");
        let library = directory.path().join("lib");
        for (name, text) in [
            ("a.cu", "#include \"products/b.cuh\"\n"),
            ("lib/products/b.cuh", "#include \"core/c.cuh\"\n"),
            ("lib/core/c.cuh", "c"),
            ("lib/core/d.cuh", "d"),
        ] {
            let path = directory.path().join(name);
            std::fs::create_dir_all(path.parent().expect("it is in a folder")).expect("it is writable");
            std::fs::write(path, text).expect("it is writable");
        }
        let texts = with_includes(&directory.path().join("a.cu"), &library).expect("all are there");
        assert_eq!(texts.len(), 3);
        assert_eq!(texts[2], "c");
        std::fs::remove_file(library.join("core/c.cuh")).expect("it is there");
        with_includes(&directory.path().join("a.cu"), &library).expect_err("one is missing");
    }
}
