//! The CUDA compiler: found or installed, run on every module, its results kept by what they were made from.

use super::cubin::{self, Usage};
use super::{BuildError, python, write_if_changed};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

/// The release every kernel is written for and checked with.
const RELEASE: &str = "13.0";

/// Options of every module; the architecture comes with the hardware.
const OPTIONS: [&str; 6] = ["-cubin", "-std=c++17", "-O3", "-Werror=all-warnings", "-Xptxas", "-v"];

/// A usable nvcc and the tool that reads what it makes.
#[derive(Clone, Debug)]
pub struct Compiler {
    nvcc: PathBuf,
    cuobjdump: PathBuf,
    /// What `nvcc --version` says.
    version: String,
}

/// A module as machine code.
#[derive(Clone, Debug)]
pub struct Cubin {
    /// The module's name.
    pub module: String,
    /// Where the machine code is kept.
    pub path: PathBuf,
    /// How it was made.
    pub made: Made,
    /// Whether it was there already.
    pub cached: bool,
}

/// What is kept beside a cubin.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Made {
    /// Size of the machine code.
    pub bytes: u64,
    /// Wall seconds of compilation.
    pub seconds: f64,
    /// Resources by kernel.
    pub kernels: BTreeMap<String, Usage>,
}

impl Compiler {
    /// The compiler itself, for programs that are no modules of a server.
    pub fn nvcc(&self) -> &Path {
        &self.nvcc
    }

    /// What it says it is.
    pub fn version(&self) -> &str {
        &self.version
    }

    /// nvcc of the pinned release: one on the path or under `CUDA_HOME`, else installed below `root/target/toolchain`.
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

    /// Compiles `<directory>/<module>.cu` for one architecture (`90a`), as many at a time as there are cores. Every
    /// result is kept in `cache` under a digest of the source, the headers it includes, the options and the compiler.
    ///
    /// # Errors
    /// What nvcc says of the modules it refuses, all of them.
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
        let target = format!("-gencode=arch=compute_{architecture},code=sm_{architecture}");
        let key = self.key(&source, &target)?;
        let (path, record) = (cache.join(format!("{key}.cubin")), cache.join(format!("{key}.json")));
        let known = std::fs::read(&record).ok().and_then(|text| serde_json::from_slice::<Made>(&text).ok());
        if let Some(made) = known.filter(|made| path.metadata().is_ok_and(|it| it.len() == made.bytes)) {
            return Ok(Cubin { module: module.to_owned(), path, made, cached: true });
        }
        std::fs::create_dir_all(cache).map_err(|error| BuildError::Io(cache.to_owned(), error))?;
        // Another build may be at the same module: each writes a file of its own and renames it.
        let fresh = cache.join(format!("{key}.{}.new", std::process::id()));
        let start = Instant::now();
        let mut command = Command::new(&self.nvcc);
        command.arg(&target).args(OPTIONS).arg("-I").arg(directory).arg("-o").arg(&fresh).arg(&source);
        let output = command.output().map_err(|error| {
            BuildError::Tool(format!("{} could not be started: {error}", self.nvcc.display()))
        })?;
        let words = String::from_utf8_lossy(&output.stderr);
        if !output.status.success() {
            let said = format!("{}{words}", String::from_utf8_lossy(&output.stdout));
            return Err(BuildError::Tool(format!("nvcc refuses {}:\n{}", source.display(), said.trim_end())));
        }
        let seconds = start.elapsed().as_secs_f64();
        let mut kernels = cubin::assembler_report(&words);
        let dump = self.inspect(&fresh)?;
        cubin::add_inspection(&mut kernels, &dump).map_err(BuildError::Tool)?;
        let bytes = fresh.metadata().map_err(|error| BuildError::Io(fresh.clone(), error))?.len();
        std::fs::rename(&fresh, &path).map_err(|error| BuildError::Io(path.clone(), error))?;
        let made = Made { bytes, seconds, kernels };
        let text = serde_json::to_string_pretty(&made).expect("numbers and names");
        write_if_changed(&record, text.as_bytes())?;
        Ok(Cubin { module: module.to_owned(), path, made, cached: false })
    }

    /// A digest of everything a cubin is made from.
    fn key(&self, source: &Path, target: &str) -> Result<String, BuildError> {
        let mut hash = Sha256::new();
        let mut part = |bytes: &[u8]| {
            hash.update((bytes.len() as u64).to_le_bytes());
            hash.update(bytes);
        };
        part(self.version.as_bytes());
        part(target.as_bytes());
        OPTIONS.iter().for_each(|option| part(option.as_bytes()));
        let (mut open, mut seen) = (vec![source.to_owned()], BTreeSet::from([source.to_owned()]));
        while let Some(path) = open.pop() {
            let text = std::fs::read_to_string(&path).map_err(|error| BuildError::Io(path.clone(), error))?;
            part(text.as_bytes());
            let here = path.parent().expect("a file stands in a directory");
            let quoted = text.lines().filter_map(|line| line.trim().strip_prefix("#include \""));
            let included = quoted.filter_map(|rest| Some(here.join(rest.split_once('"')?.0)));
            open.extend(included.filter(|path| seen.insert(path.clone())));
        }
        Ok(hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect())
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

/// What `nvcc --version` says, if it is the pinned release.
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
