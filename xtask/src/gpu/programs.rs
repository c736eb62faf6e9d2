//! The programs of tests/cuda, compiled for a card.

use crate::paths;
use monomorph_compiler::toolchain::nvcc::Compiler;
use monomorph_compiler::toolchain::python::run;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

/// A way to build a program, and how it is run. Arguments that begin with `@` are files of the store.
struct Program {
    name: &'static str,
    source: &'static str,
    defines: &'static [&'static str],
    arguments: &'static [&'static str],
    /// Arguments that plant a defect, which must be seen.
    planted: Option<&'static [&'static str]>,
    /// Whether it runs under compute-sanitizer's racecheck.
    racecheck: bool,
}

/// For racecheck, which follows the arrivals of threads at a barrier but not those of a warp through one lane.
const EVERY_LANE: &str = "MONOMORPH_EVERY_LANE_ARRIVES";

const fn program(name: &'static str, source: &'static str) -> Program {
    Program { name, source, defines: &[], arguments: &[], planted: None, racecheck: false }
}

const PROGRAMS: [Program; 13] = [
    Program { defines: &["PART=0"], ..program("attention-0", "attention") },
    Program { defines: &["PART=1"], ..program("attention-1", "attention") },
    Program { defines: &["PART=2"], ..program("attention-2", "attention") },
    Program { defines: &["PART=3"], ..program("attention-3", "attention") },
    Program { defines: &["SUITE=1"], arguments: &["check"], ..program("stream-1", "stream") },
    Program { defines: &["SUITE=2"], arguments: &["check"], ..program("stream-2", "stream") },
    Program { planted: Some(&["defect"]), ..program("gemm", "gemm") },
    Program { planted: Some(&["planted"]), ..program("embed", "embed") },
    Program {
        arguments: &["@programs/sampling.bin"],
        planted: Some(&["@programs/sampling.bin", "planted"]),
        ..program("sample", "sample")
    },
    Program {
        defines: &["PART=1", EVERY_LANE],
        racecheck: true,
        ..program("attention-1-racecheck", "attention")
    },
    Program {
        defines: &["PART=3", EVERY_LANE],
        racecheck: true,
        ..program("attention-3-racecheck", "attention")
    },
    Program {
        defines: &["SUITE=1", EVERY_LANE],
        arguments: &["check"],
        racecheck: true,
        ..program("stream-1-racecheck", "stream")
    },
    Program { defines: &[EVERY_LANE], racecheck: true, ..program("gemm-racecheck", "gemm") },
];

/// What measures kernels and checks nothing, with the division that docs/performance-h200-kernels.md found best.
const INSTRUMENTS: [Program; 5] = [
    Program { defines: &["SUITE=3"], arguments: &["bench"], ..program("stream-1b", "stream") },
    Program { defines: &["SUITE=4"], arguments: &["bench"], ..program("stream-8b", "stream") },
    program("gemm-bench", "gemm_bench"),
    Program {
        defines: &["SPLIT_COUNT=16", "WARP_COUNT=8", "CHUNK_TOKENS=256", "RESIDENT=1", "BEFORE_WAIT"],
        ..program("attention-decode", "attention_bench")
    },
    Program {
        defines: &["PREFILL", "KEY_COUNT=128", "WGMMA"],
        ..program("attention-prefill", "attention_bench")
    },
];

/// Compiles all into `store/programs/`, instruments too if they are wanted; what `run.py` needs to know of the programs and of
/// the instruments, and what nvcc refused.
///
/// # Errors
/// When there is no compiler, or a source is built by none.
pub fn build(
    architecture: &str,
    store: &Path,
    instruments: bool,
) -> Result<(Value, Value, Vec<String>), String> {
    let tests = paths::root().join("tests/cuda");
    let known: BTreeSet<&str> = PROGRAMS.iter().chain(&INSTRUMENTS).map(|it| it.source).collect();
    for path in files(&tests)? {
        let name = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        if path.extension().is_some_and(|it| it == "cu") && !known.contains(&*name) {
            return Err(format!(
                "tests/cuda/{name}.cu is run by nobody: add it to xtask/src/gpu/programs.rs"
            ));
        }
    }
    let compiler = Compiler::find(&paths::root()).map_err(|error| error.to_string())?;
    let headers = headers(&[paths::root().join("templates/cuda/lib"), tests])?;
    let instruments: &[Program] = if instruments { &INSTRUMENTS } else { &[] };
    let all: Vec<&Program> = PROGRAMS.iter().chain(instruments).collect();
    let next = AtomicUsize::new(0);
    let problems = Mutex::new(Vec::new());
    let work = || {
        while let Some(program) = all.get(next.fetch_add(1, Ordering::Relaxed)) {
            if let Err(why) = compile(&compiler, architecture, program, &headers, store) {
                problems.lock().expect("no worker panics").push(format!("{}: {why}", program.name));
            }
        }
    };
    let workers = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| (0..workers).for_each(|_| drop(scope.spawn(work))));
    let problems = problems.into_inner().expect("no worker panics");
    let sampling = paths::root().join("tests/fixtures/cuda/sampling.bin");
    std::fs::create_dir_all(store.join("programs")).map_err(|error| error.to_string())?;
    std::fs::copy(&sampling, store.join("programs/sampling.bin"))
        .map_err(|error| format!("{}: {error}", sampling.display()))?;
    let entry = |program: &Program, name: String, arguments: &[&str], planted: bool| {
        let file = format!("programs/{}", program.name);
        let racecheck = program.racecheck;
        json!({ "name": name, "file": file, "arguments": arguments, "planted": planted, "racecheck": racecheck })
    };
    let entries = PROGRAMS
        .iter()
        .flat_map(|program| {
            let sound = entry(program, program.name.to_owned(), program.arguments, false);
            let planted = program
                .planted
                .map(|arguments| entry(program, format!("{}, planted", program.name), arguments, true));
            std::iter::once(sound).chain(planted)
        })
        .collect();
    let instruments =
        instruments.iter().map(|it| entry(it, it.name.to_owned(), it.arguments, false)).collect();
    Ok((entries, instruments, problems))
}

/// Compiles one program, unless what it is made from is what it was made from before.
fn compile(
    compiler: &Compiler,
    architecture: &str,
    program: &Program,
    headers: &[u8],
    store: &Path,
) -> Result<(), String> {
    let root = paths::root();
    let source = root.join("tests/cuda").join(program.source).with_extension("cu");
    let text = std::fs::read(&source).map_err(|error| format!("{}: {error}", source.display()))?;
    let code = architecture.trim_start_matches("sm_");
    let mut options = vec!["-O3".to_owned(), "-std=c++17".to_owned()];
    options.push(format!("-gencode=arch=compute_{code},code=sm_{code}"));
    options.extend(program.defines.iter().map(|define| format!("-D{define}")));

    let mut hash = Sha256::new();
    for part in [compiler.version().as_bytes(), &text, headers, options.join(" ").as_bytes()] {
        hash.update((part.len() as u64).to_le_bytes());
        hash.update(part);
    }
    let key: String = hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect();
    let cached = root.join("target/cuda-programs").join(format!("{}-{key}", program.name));
    if !cached.is_file() {
        std::fs::create_dir_all(root.join("target/cuda-programs")).map_err(|error| error.to_string())?;
        let fresh = cached.with_extension("new");
        let mut command = Command::new(compiler.nvcc());
        command
            .args(&options)
            .arg("-I")
            .arg(root.join("templates/cuda/lib"))
            .arg("-I")
            .arg(root.join("tests/cuda"));
        // Where the toolkit comes from a Python package, its libraries stand beside `bin`.
        if let Some(toolkit) = compiler.nvcc().parent().and_then(Path::parent) {
            command.arg("-L").arg(toolkit.join("lib"));
        }
        run(command.arg("-o").arg(&fresh).arg(&source))?;
        std::fs::rename(&fresh, &cached).map_err(|error| error.to_string())?;
    }
    let to = store.join("programs").join(program.name);
    std::fs::create_dir_all(store.join("programs")).map_err(|error| error.to_string())?;
    std::fs::copy(&cached, &to).map(drop).map_err(|error| format!("{}: {error}", to.display()))
}

/// All headers of some directories, one behind the other.
fn headers(directories: &[PathBuf]) -> Result<Vec<u8>, String> {
    let mut all = Vec::new();
    for directory in directories {
        for path in
            files(directory)?.into_iter().filter(|path| path.extension().is_some_and(|it| it == "cuh"))
        {
            all.extend(std::fs::read(&path).map_err(|error| format!("{}: {error}", path.display()))?);
        }
    }
    Ok(all)
}

/// The files of a directory, ascending.
fn files(directory: &Path) -> Result<Vec<PathBuf>, String> {
    let problem = |error: std::io::Error| format!("{}: {error}", directory.display());
    let entries = std::fs::read_dir(directory).map_err(problem)?;
    let mut paths: Vec<PathBuf> =
        entries.map(|entry| entry.map(|it| it.path())).collect::<Result<_, _>>().map_err(problem)?;
    paths.sort();
    Ok(paths)
}
