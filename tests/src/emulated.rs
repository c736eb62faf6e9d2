//! CUDA servers on a machine without a card: g++ compiles the emitted kernels for an emulated card
//! (tests/emulated), and the server finds its `libcuda.so.1` in place of the real one.
//!
//! The server is the one that a build makes, from the same emitted crate. Only its `cubins/` differ: they
//! hold the modules compiled for this processor instead of machine code for the card.

use crate::{root, server};
use monomorph_compiler::emit::{self, cuda_templates};
use monomorph_compiler::plan::Plan;
use monomorph_compiler::plan::cuda::{CudaPlan, Module, Program, Regime};
use monomorph_compiler::spec;
use monomorph_compiler::spec::types::{Cuda, Target};
use monomorph_compiler::toolchain::{self, BuildError, Built, Levels, Linking, modules, nvcc, times};
use sha2::{Digest, Sha256};
use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// Memory of every card: enough for small models, little enough to be filled quickly.
const MEMORY: u64 = 1 << 30;
const OPTIONS: [&str; 5] =
    ["-std=c++17", "-O1", "-march=native", "-ffp-contract=off", "-fno-strict-aliasing"];

/// How long kernels that poll for another device wait for the host to tell it something, before they are
/// stuck: longer than a server takes between two calls of the driver on a busy machine.
const PATIENCE: Duration = Duration::from_secs(20);

/// How modules are compiled, beside [`OPTIONS`]. Compiling one takes longer than its tests run it: at `-Og` a
/// quarter less than at `-O1`, for kernels that are hardly slower; at `-O0` they take twice as long.
const MODULE: [&str; 5] = ["-Og", "-fPIC", "-shared", "-w", "-fvisibility=hidden"];

const DRIVER: [&str; 4] = ["driver.cpp", "claims.cpp", "streams.cpp", "turns.cpp"];

/// What runs kernels, with or without a driver on top of it.
const ENGINE: [&str; 3] = ["engine.cpp", "launch.cpp", "memory.cpp"];

/// A server, and the directory of its driver.
#[derive(Clone, Debug)]
pub struct Server {
    /// Path of the server's binary.
    pub binary: PathBuf,
    driver: PathBuf,
}

impl Server {
    /// The server's command, still without arguments.
    pub fn command(&self) -> Command {
        let mut command = Command::new(&self.binary);
        command.env("LD_LIBRARY_PATH", &self.driver).stdin(Stdio::null());
        command
    }
}

/// Few enough multiprocessors that even with small models a block wraps around its ring of stages and
/// processes several work items, as full-size models do on many.
pub const FEW: usize = 7;

/// Copies a hardware file into a targets directory as `emulated-<hardware>`, for this machine's host
/// architecture and with that many multiprocessors (`None`: its own).
///
/// # Panics
/// If it cannot be read or written.
pub fn hardware(targets: &Path, hardware: &str, multiprocessors: Option<usize>) -> String {
    let file = root().join("targets/hardware").join(hardware).join("HARDWARE.toml");
    let text = std::fs::read_to_string(&file).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
    let mut others = vec![("host =", format!("host = \"{}-unknown-linux-gnu\"", std::env::consts::ARCH))];
    others.extend(multiprocessors.map(|count| ("multiprocessors =", format!("multiprocessors = {count}"))));
    for (key, _) in &others {
        let lines = text.lines().filter(|line| line.starts_with(key)).count();
        assert_eq!(lines, 1, "{} has one line `{key} …`", file.display());
    }
    let other =
        |line| others.iter().find(|(key, _)| str::starts_with(line, key)).map(|(_, other)| other.as_str());
    let lines: Vec<&str> = text.lines().map(|line| other(line).unwrap_or(line)).collect();
    let name = format!("emulated-{hardware}");
    let directory = targets.join("hardware").join(&name);
    std::fs::create_dir_all(&directory).expect("a temporary directory is writable");
    std::fs::write(directory.join("HARDWARE.toml"), lines.join("\n")).expect("it is writable");
    name
}

/// Builds the server of a target for such hardware.
///
/// # Panics
/// If any step fails.
pub fn build(target: &Target) -> Server {
    build_up_to(target, usize::MAX)
}

/// The same, but kernels that only decode programs of more sequences launch are left out: compiling kernels
/// takes longer than most tests run them. A server that launches one of them ends, and says which.
///
/// # Panics
/// If any step fails.
pub fn build_up_to(target: &Target, sequences: usize) -> Server {
    let _alone = server::alone(target);
    let (directory, _, driver) = write(target, sequences);
    linked(driver, |linking| toolchain::link(&root(), target, &directory, linking), target)
}

/// Builds another binary around a target's stack: `main` is its `main.rs`, and needs no server. It decodes
/// one sequence at a time.
///
/// # Panics
/// If any step fails.
pub fn build_stack(target: &Target, main: &str) -> Server {
    let _alone = server::alone(target);
    let (written, plan, driver) = write(target, 1);
    let package = format!("stack-{}", emit::package_name(target));
    let directory = root().join("generated/stacks/emulated").join(&package);
    let copied = ["src/spec.rs", "src/stack.rs", "src/arguments.rs"].map(PathBuf::from);
    let modules = plan.cuda.iter().flat_map(|cuda| &cuda.modules);
    let cubins = modules.map(|it| Path::new("cubins").join(&it.name).with_extension("cubin"));
    for file in copied.into_iter().chain(cubins) {
        let content = std::fs::read(written.join(&file)).expect("it was just written");
        write_if_changed(&directory.join(file), &content);
    }
    write_if_changed(&directory.join("src/main.rs"), main.as_bytes());
    let manifest = emit::manifest(&plan, &package);
    let lines: Vec<&str> = manifest.lines().filter(|line| !line.starts_with("monomorph-server")).collect();
    let build = |linking: &Linking| {
        toolchain::workspace(&root(), &directory, &(lines.join("\n") + "\n"))?;
        let built = toolchain::compile(&root(), target, &directory, &package, linking)?;
        Ok(match built {
            Ok(binaries) => Built::Server(binaries.join(&package)),
            Err(why) => Built::Crate { directory: directory.clone(), why },
        })
    };
    linked(driver, build, target)
}

/// Writes a target's crate with kernels for the emulated card, without those that only decode programs of
/// more sequences launch: its directory, its plan, and the directory of the driver.
fn write(target: &Target, sequences: usize) -> (PathBuf, Plan, PathBuf) {
    let (directory, plan) =
        toolchain::write_crate(&root(), target).unwrap_or_else(|error| panic!("{}: {error}", target.name()));
    let card = target.hardware.cuda().expect("an emulated card is CUDA hardware");
    let stage = Stage::new(&directory.join("cuda/lib"));
    let driver = stage.driver(&target.hardware.name, card, target.ranks, PATIENCE);
    let cuda = plan.cuda.as_ref().expect("a CUDA target has a CUDA plan");
    let modules = &cuda.modules;
    let start = Instant::now();
    stage.precompile();
    let images = stage.images(modules, &launched(cuda, sequences), &directory.join("cuda"), &driver);
    times::note(&root(), &format!("modules {}", target.build()), start.elapsed())
        .unwrap_or_else(|error| panic!("{error}"));
    for (module, image) in modules.iter().zip(images) {
        let to = directory.join("cubins").join(&module.name).with_extension("cubin");
        let image = std::fs::read(image).expect("it was just compiled");
        write_if_changed(&to, &image);
    }
    (directory, plan, driver)
}

/// What is built with the options of these tests.
fn linked(
    driver: PathBuf,
    build: impl FnOnce(&Linking) -> Result<Built, BuildError>,
    target: &Target,
) -> Server {
    // Built for this machine's processor, as servers of CPU targets are, so that they share the project's
    // crates. A shipped server for a card is compiled for any processor of its host architecture, and
    // optimised; those are the only differences.
    let processor = this_processor();
    let linking = Linking {
        processor: processor.hardware.cpu(),
        levels: Levels { generated: 0, ..server::LEVELS },
        ..server::linking(&processor.hardware.name)
    };
    match build(&linking).unwrap_or_else(|error| panic!("{}: {error}", target.name())) {
        Built::Server(binary) => Server { binary, driver },
        Built::Crate { why, .. } => panic!("{}: {why}", target.name()),
    }
}

/// Module and number of the kernels that a server launches if no step decodes more sequences.
fn launched(cuda: &CudaPlan, sequences: usize) -> BTreeSet<(usize, usize)> {
    let decodes = |program: &&Program| matches!(program.regime, Regime::Decode | Regime::Draft);
    let buckets = cuda.programs.iter().filter(decodes).map(|it| it.sequences);
    let bucket = buckets.filter(|it| *it >= sequences).min().unwrap_or(usize::MAX);
    let programs = cuda.programs.iter().filter(|it| !decodes(it) || it.sequences <= bucket);
    let kernels = programs.flat_map(Program::launches).map(|launch| launch.kernel);
    // A server of several ranks times a sum when it starts, of whatever program has one.
    let modules = cuda.modules.iter().enumerate();
    let all = modules.flat_map(|(at, module)| (0..module.kernels.len()).map(move |kernel| (at, kernel)));
    let sums = all.filter(|it| cuda.kernel(*it).function() == "exchange_sum");
    kernels.chain(sums).chain(cuda.fills.iter().copied()).collect()
}

/// The target of this machine's processor.
fn this_processor() -> Target {
    spec::load(&[root().join("targets")], "cpu/smollm2-135m/q4_1").unwrap_or_else(|error| panic!("{error}"))
}

/// Compiles a program of `tests/cuda` with these macros for this machine and returns its path.
///
/// # Panics
/// If g++ refuses it.
pub fn program(name: &str, defines: &[String]) -> PathBuf {
    let stage = Stage::new(&root().join("templates/cuda"));
    let programs = root().join("tests/cuda");
    let mut sources: Vec<PathBuf> = headers(&programs).iter().map(|name| programs.join(name)).collect();
    sources.push(programs.join(name).with_extension("cu"));
    let texts: Vec<Vec<u8>> =
        sources.iter().map(|path| std::fs::read(path).expect("sources are readable")).collect();
    let templates = cuda_templates::templates();
    let printed = templates.iter().map(|file| file.text.as_bytes());
    let parts =
        texts.iter().map(Vec::as_slice).chain(printed).chain(defines.iter().map(|define| define.as_bytes()));
    let program = stage.directory.join(digest(&parts.collect::<Vec<_>>()));
    // The directory's name is a digest of all inputs, as for everything compiled here.
    let kernels = program.with_extension("kernels");
    for file in &templates {
        write_if_changed(&kernels.join(&file.path), file.text.as_bytes());
    }
    let mut command = stage.compiler();
    command.args(["-w", "-fPIE", "-pie", "-x", "c++", "-I"]).arg(&programs).arg("-I").arg(&kernels);
    command
        .args(defines.iter().map(|define| format!("-D{define}")))
        .arg(programs.join(name).with_extension("cu"));
    compile(command.args(["-x", "none"]).args(stage.engine()), &program);
    program
}

/// `tests/emulated/checks/devices.cpp`, a program that uses two devices.
#[derive(Debug)]
pub struct Devices {
    program: PathBuf,
    module: PathBuf,
    driver: PathBuf,
}

impl Devices {
    /// Compiles it, its kernels and a driver of two devices.
    ///
    /// # Panics
    /// If g++ refuses any of them.
    pub fn build() -> Devices {
        let stage = Stage::new(&root().join("templates/cuda"));
        let h200 =
            spec::load_hardware(&[root().join("targets")], "h200").unwrap_or_else(|error| panic!("{error}"));
        let card = h200.cuda().expect("it is CUDA hardware");
        let driver = stage.driver("h200", card, 2, Duration::from_secs(3));
        let checks = root().join("tests/emulated/checks");
        let read = |name: &str| std::fs::read_to_string(checks.join(name)).expect("sources are readable");
        let kernels = ["exchange", "exchange_together", "scale", "shift"].map(|name| (name, 64, 1));
        let module = stage.module(&read("devices_kernels.cu"), kernels.into_iter(), &driver);
        let source = checks.join("devices.cpp");
        let program =
            stage.directory.join(digest(&[read("devices.cpp").as_bytes()])).with_extension("program");
        let mut command = stage.compiler();
        command
            .args(["-Wall", "-Wextra", "-Werror", "-pthread"])
            .arg(source)
            .arg(driver.join("libcuda.so.1"));
        compile(&mut command, &program);
        Devices { program, module, driver }
    }

    /// Runs one of its checks.
    ///
    /// # Panics
    /// If it does not start.
    pub fn run(&self, check: &str) -> Output {
        let mut command = Command::new(&self.program);
        command.env("LD_LIBRARY_PATH", &self.driver).arg(check).arg(&self.module);
        command.output().expect("it starts")
    }
}

/// The headers in the folders of a directory, as `#include` names them.
fn headers(directory: &Path) -> BTreeSet<PathBuf> {
    modules::headers(directory).unwrap_or_else(|error| panic!("{error}"))
}

/// The files of a directory, sorted.
fn files(directory: &Path) -> Vec<PathBuf> {
    let entries =
        std::fs::read_dir(directory).unwrap_or_else(|error| panic!("{}: {error}", directory.display()));
    let paths = entries.map(|entry| entry.expect("directory entries are readable").path());
    let mut files: Vec<PathBuf> = paths.filter(|path| path.is_file()).collect();
    files.sort();
    files
}

/// The library with the emulated card's parts in place, in a directory named by a digest of its content, so
/// that everything there is compiled once.
struct Stage {
    directory: PathBuf,
    include: PathBuf,
}

impl Stage {
    fn new(library: &Path) -> Stage {
        let here = root().join("tests/emulated");
        let mut staged: BTreeMap<PathBuf, Vec<u8>> = BTreeMap::new();
        let mut stage = |to: PathBuf, path: &Path| {
            staged.insert(to, std::fs::read(path).expect("sources are readable"));
        };
        for path in files(&here) {
            stage(path.file_name().expect("a file has a name").into(), &path);
        }
        for from in [library, &here] {
            headers(from).iter().for_each(|name| stage(Path::new("lib").join(name), &from.join(name)));
        }
        let compiler = nvcc::Compiler::find(&root()).unwrap_or_else(|error| panic!("{error}"));
        let include = compiler.nvcc().ancestors().nth(2).expect("it stands in bin").join("include");
        let mut parts: Vec<&[u8]> =
            OPTIONS.iter().chain(&MODULE).chain(&ENGINE).map(|it| it.as_bytes()).collect();
        for (path, content) in &staged {
            parts.extend([path.as_os_str().as_encoded_bytes(), content]);
        }
        let directory = root().join("target/emulated").join(digest(&parts));
        for (path, content) in &staged {
            write_if_changed(&directory.join(path), content);
        }
        Stage { directory, include }
    }

    /// Compiles the header that every module begins with, which is most of the work for a small module. g++
    /// takes it in the header's place where the options are the same.
    fn precompile(&self) {
        let header = self.directory.join("builtin.h");
        let mut command = self.compiler();
        command.args(MODULE).args(["-x", "c++-header"]).arg(&header);
        compile(&mut command, &header.with_extension("h.gch"));
    }

    /// What runs kernels, compiled: the same for every driver and program.
    fn engine(&self) -> [PathBuf; 3] {
        ENGINE.map(|source| {
            let object = self.directory.join(source).with_extension("o");
            compile(self.compiler().args(["-fPIC", "-Wall", "-Wextra", "-Werror", "-c", source]), &object);
            object
        })
    }

    /// The directory with the `libcuda.so.1` of so many cards of a kind.
    fn driver(&self, hardware: &str, card: &Cuda, devices: usize, patience: Duration) -> PathBuf {
        let patience = patience.as_millis();
        let directory = self.directory.join(format!("{hardware}-x{devices}-{patience}"));
        std::fs::create_dir_all(&directory).expect("the target directory is writable");
        let number = card.architecture.trim_start_matches("sm_").trim_end_matches(char::is_alphabetic);
        let (major, minor) = number.split_at(number.len() - 1);
        let define = |name: &str, value: String| format!("-DCARD_{name}={value}");
        let mut command = self.compiler();
        command.args(["-fPIC", "-shared", "-Wall", "-Wextra", "-Werror", "-Wl,-soname,libcuda.so.1"]).args([
            define("NAME", format!("\"{hardware}\"")),
            define("MAJOR", major.to_owned()),
            define("MINOR", minor.to_owned()),
            define("MEMORY", format!("{MEMORY}ull")),
            define("SHARED", card.shared_per_block.to_string()),
            define("DEVICES", devices.to_string()),
            define("PATIENCE", patience.to_string()),
        ]);
        command.args(DRIVER).args(self.engine());
        compile(&mut command, &directory.join("libcuda.so.1"));
        // What processes of a build for several exchange values through.
        let mut nccl = self.compiler();
        nccl.args([
            "-fPIC",
            "-shared",
            "-Wall",
            "-Wextra",
            "-Werror",
            "-Wl,-soname,libnccl.so.2",
            "nccl.cpp",
        ])
        .args(["MEMORY", "DEVICES", "PATIENCE"].map(|name| format!("-DCARD_{name}={devices}")))
        .arg(directory.join("libcuda.so.1"));
        compile(&mut nccl, &directory.join("libnccl.so.2"));
        // The loader tries this name first; it must not find a real driver.
        let other = directory.join("libcuda.so");
        if !other.exists() {
            // Another process may have created it meanwhile.
            let _ = std::os::unix::fs::symlink("libcuda.so.1", &other);
        }
        assert!(other.exists(), "{}", other.display());
        directory
    }

    /// The compiled modules of a crate with its kernels in the directory `cuda`, in order. They have only the
    /// kernels that are `launched`.
    fn images(
        &self,
        modules: &[Module],
        launched: &BTreeSet<(usize, usize)>,
        cuda: &Path,
        driver: &Path,
    ) -> Vec<PathBuf> {
        let (next, made) = (AtomicUsize::new(0), Mutex::new(vec![PathBuf::new(); modules.len()]));
        let work = || {
            while let Some((index, module)) = {
                let index = next.fetch_add(1, Ordering::Relaxed);
                modules.get(index).map(|module| (index, module))
            } {
                let names = module.kernels.iter().enumerate();
                let absent = names.filter(|(kernel, _)| !launched.contains(&(index, *kernel)));
                let absent: BTreeSet<&str> = absent.map(|(_, kernel)| kernel.name.as_str()).collect();
                let image = self.image(module, &absent, cuda, driver);
                made.lock().expect("no worker panics")[index] = image;
            }
        };
        let workers = std::thread::available_parallelism().map_or(1, usize::from).min(modules.len());
        std::thread::scope(|scope| (0..workers).for_each(|_| drop(scope.spawn(work))));
        made.into_inner().expect("no worker panics")
    }

    fn image(&self, module: &Module, absent: &BTreeSet<&str>, cuda: &Path, driver: &Path) -> PathBuf {
        let source = cuda.join(&module.name).with_extension("cu");
        let source =
            std::fs::read_to_string(&source).unwrap_or_else(|error| panic!("{}: {error}", source.display()));
        let kernels =
            module.kernels.iter().map(|kernel| (kernel.name.as_str(), kernel.block, kernel.cluster));
        self.module(&without(&source, absent), kernels, driver)
    }

    /// A compiled module: its text and its kernels, each with the threads of a block and the blocks of a
    /// cluster.
    fn module<'a>(
        &self,
        source: &str,
        kernels: impl Iterator<Item = (&'a str, u32, u32)>,
        driver: &Path,
    ) -> PathBuf {
        // Comments do not affect the digest.
        let code = source.lines().filter(|line| !line.starts_with("//"));
        let mut text = "#include \"builtin.h\"\n".to_owned();
        code.for_each(|line| text += &format!("{line}\n"));
        for (name, block, cluster) in kernels {
            text += &format!("EMULATED_KERNEL({name}, {block}, {cluster})\n");
        }
        let key = digest(&[text.as_bytes()]);
        let source = self.directory.join(&key).with_extension("cpp");
        write_if_changed(&source, text.as_bytes());
        let mut command = self.compiler();
        command.args(MODULE).arg(&source).arg(driver.join("libcuda.so.1"));
        let image = self.directory.join(&key).with_extension("so");
        compile(&mut command, &image);
        image
    }

    /// g++ in the directory, still without arguments.
    fn compiler(&self) -> Command {
        let mut command = Command::new("g++");
        command
            .current_dir(&self.directory)
            .args(OPTIONS)
            .arg("-I")
            .arg(&self.include)
            .args(["-I", "lib", "-I", "."]);
        command
    }
}

/// A module's text with kernels of these names that end the server. A kernel ends with the first brace that
/// begins a line.
fn without(source: &str, absent: &BTreeSet<&str>) -> String {
    let (mut text, mut within, mut seen) = (String::new(), false, 0);
    for line in source.lines() {
        within &= line != "}";
        if within {
            continue;
        }
        text += &format!("{line}\n");
        let head = line.starts_with("extern \"C\"");
        if let Some(name) = absent.iter().find(|name| head && line.contains(&format!(" {name}("))) {
            text += &format!(
                "    card::fail(\"{name} was left out: no step was to decode so many sequences\");\n"
            );
            (within, seen) = (true, seen + 1);
        }
    }
    assert_eq!(seen, absent.len(), "every kernel is printed once");
    text
}

/// Runs a compiler unless its output exists. Another thread or another process that asks for the same file
/// waits for the first.
fn compile(command: &mut Command, to: &Path) {
    if to.exists() {
        return;
    }
    let directory = to.parent().expect("files stand in a directory");
    let name = to.file_name().expect("a file has a name").to_string_lossy();
    let lock =
        File::create(directory.join(format!("{name}.lock"))).expect("the target directory is writable");
    lock.lock().expect("files can be locked");
    if to.exists() {
        return;
    }
    let fresh = directory.join(format!("{name}.new"));
    let output = command.arg("-o").arg(&fresh).output().expect("g++ is there");
    assert!(output.status.success(), "{command:?}:\n{}", String::from_utf8_lossy(&output.stderr));
    std::fs::rename(&fresh, to).expect("it was just written");
}

/// Writes a file in one go: another thread or process sees the old content or the new.
fn write_if_changed(path: &Path, content: &[u8]) {
    if std::fs::read(path).is_ok_and(|old| old == content) {
        return;
    }
    let directory = path.parent().expect("files stand in a directory");
    std::fs::create_dir_all(directory).expect("the target directory is writable");
    let mut fresh = tempfile::NamedTempFile::new_in(directory).expect("the target directory is writable");
    fresh.write_all(content).expect("the target directory is writable");
    fresh.persist(path).expect("it was just written");
}

fn digest(parts: &[&[u8]]) -> String {
    let mut hash = Sha256::new();
    for part in parts {
        hash.update((part.len() as u64).to_le_bytes());
        hash.update(part);
    }
    hash.finalize().iter().take(16).map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::without;
    use std::collections::BTreeSet;

    #[test]
    fn kernels_that_are_left_out_end_the_server_and_others_stay() {
        let kernel = |name: &str, body: &str| {
            format!(
                "extern \"C\" __global__ void __launch_bounds__(32, 1) {name}(const Step* step) {{\n    {body}\n}}\n"
            )
        };
        let source = |second: &str| {
            [
                "struct Config {};\n".to_owned(),
                kernel("norm", "norm<Config>(step);"),
                kernel("norm_2", second),
            ]
            .concat()
        };
        let fails = "card::fail(\"norm_2 was left out: no step was to decode so many sequences\");";
        assert_eq!(without(&source("norm<Other>(step);"), &BTreeSet::from(["norm_2"])), source(fails));
        assert_eq!(without(&source("norm<Other>(step);"), &BTreeSet::new()), source("norm<Other>(step);"));
    }
}
