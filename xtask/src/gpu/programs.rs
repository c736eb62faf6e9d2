//! The programs of tests/cuda, compiled for a card.

use super::files::copy;
use super::listed::{INSTRUMENTS, PROGRAMS, Program};
use crate::paths;
use monomorph_abi::cuda::RELEASE;
use monomorph_compiler::emit::cuda_templates;
use monomorph_compiler::spec::types::Cuda;
use monomorph_compiler::toolchain::nvcc::Compiler;
use monomorph_compiler::toolchain::python::run;
use monomorph_compiler::toolchain::write_if_changed;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

/// What `run.py` needs to know about the programs.
pub struct Built {
    /// Runs that check.
    pub programs: Vec<Value>,
    /// Runs that measure.
    pub instruments: Vec<Value>,
    /// What nvcc refused.
    pub problems: Vec<String>,
}

/// Compiles into `store/programs/` every program whose source name contains one of `wanted`, and the
/// instruments too if requested. With `there`, only puts the sources into `store/sources/`, and says how they
/// are compiled on the machine with the card.
///
/// # Errors
/// When there is no compiler, a source is missing from the list, or a word of `wanted` matches no name.
pub fn build(
    card: &Cuda,
    store: &Path,
    wanted: &[String],
    instruments: bool,
    there: bool,
) -> Result<Built, String> {
    check_names(wanted, &sources(&paths::root().join("tests/cuda"))?)?;
    let chosen = |programs: &'static [Program]| -> Vec<&'static Program> {
        let named = |it: &&Program| wanted.iter().any(|text| it.source.contains(text.as_str()));
        let (fit, left): (Vec<_>, Vec<_>) =
            programs.iter().filter(named).partition(|it| card.wgmma || !it.wgmma);
        left.iter().for_each(|it| eprintln!("{} is left out, for the card has no wgmma", it.name));
        fit
    };
    let programs = chosen(PROGRAMS);
    let instruments = if instruments { chosen(INSTRUMENTS) } else { Vec::new() };
    let all: Vec<&Program> = programs.iter().chain(&instruments).copied().collect();
    for file in cuda_templates::templates() {
        let path = printed().join(file.path);
        write_if_changed(&path, file.text.as_bytes()).map_err(|error| error.to_string())?;
    }
    carry_files(&all, store)?;
    let measured = |it: &&Program| entry(it, it.name.to_owned(), it.arguments, false, None);
    let mut built = Built {
        programs: programs.iter().flat_map(|program| runs(program)).collect(),
        instruments: instruments.iter().map(measured).collect(),
        problems: Vec::new(),
    };
    if there {
        carry_sources(store)?;
        for entry in built.programs.iter_mut().chain(&mut built.instruments) {
            let program =
                all.iter().find(|it| entry["file"] == file(it)).expect("it has the entries of these");
            let (source, options) =
                (format!("{}/tests/{}.cu", SOURCES, program.source), options(card, program));
            entry["compile"] = json!({ "source": source, "options": options, "nvcc": RELEASE });
        }
        return Ok(built);
    }
    let compiler = Compiler::find(&paths::root()).map_err(|error| error.to_string())?;
    let next = AtomicUsize::new(0);
    let problems = Mutex::new(Vec::new());
    let work = || {
        while let Some(program) = all.get(next.fetch_add(1, Ordering::Relaxed)) {
            if let Err(why) = compile(&compiler, card, program, store) {
                problems.lock().expect("no worker panics").push(format!("{}: {why}", program.name));
            }
        }
    };
    let workers = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| (0..workers).for_each(|_| drop(scope.spawn(work))));
    built.problems = problems.into_inner().expect("no worker panics");
    Ok(built)
}

/// Where sources lie in the store.
const SOURCES: &str = "sources";

/// The directories that programs include from, and their names in the store.
fn directories() -> [(PathBuf, &'static str); 3] {
    let root = paths::root();
    [(root.join("tests/cuda"), "tests"), (root.join("templates/cuda"), "templates"), (printed(), "printed")]
}

/// Copies all that any program may include.
fn carry_sources(store: &Path) -> Result<(), String> {
    for (directory, name) in directories() {
        let mut open = vec![directory.clone()];
        while let Some(path) = open.pop() {
            if path.is_dir() {
                open.extend(files(&path)?);
            } else {
                let below = path.strip_prefix(&directory).expect("it was found there");
                copy(&path, &store.join(SOURCES).join(name).join(below))?;
            }
        }
    }
    Ok(())
}

/// The executable of a program in the store.
fn file(program: &Program) -> String {
    format!("programs/{}", program.name)
}

/// nvcc's options for a program, but for directories.
fn options(card: &Cuda, program: &Program) -> Vec<String> {
    let code = card.architecture.trim_start_matches("sm_");
    let mut options = vec!["-O3".to_owned(), "-std=c++17".to_owned()];
    options.push(format!("-gencode=arch=compute_{code},code=sm_{code}"));
    options.extend(program.defines.iter().map(|define| format!("-D{define}")));
    // The programs themselves leave out what the card cannot run.
    for (there, define) in [(card.clusters, "-DMONOMORPH_NO_CLUSTERS"), (card.wgmma, "-DNO_WGMMA")] {
        options.extend((!there).then(|| define.to_owned()));
    }
    options
}

/// The directory of the printed instantiations; builds print theirs from the same declarations.
fn printed() -> PathBuf {
    paths::root().join("target/cuda-programs/printed")
}

/// All runs of a program that checks kernels.
fn runs(program: &Program) -> Vec<Value> {
    let name = program.name;
    let sound = program.alone.then(|| entry(program, name.to_owned(), program.arguments, false, None));
    let planted =
        program.planted.map(|arguments| entry(program, format!("{name}, planted"), arguments, true, None));
    let under = |tool: &&str| entry(program, format!("{name}, {tool}"), program.arguments, false, Some(tool));
    sound.into_iter().chain(planted).chain(program.tools.iter().map(under)).collect()
}

fn entry(program: &Program, name: String, arguments: &[&str], planted: bool, tool: Option<&str>) -> Value {
    json!({ "name": name, "file": file(program), "arguments": arguments, "planted": planted, "tool": tool })
}

/// Copies the files of tests/fixtures/cuda that arguments name.
fn carry_files(programs: &[&Program], store: &Path) -> Result<(), String> {
    let arguments = programs.iter().flat_map(|it| it.arguments);
    for place in arguments.filter_map(|it| it.strip_prefix('@')).collect::<BTreeSet<_>>() {
        let name = Path::new(place).file_name().expect("it is a file");
        copy(&paths::root().join("tests/fixtures/cuda").join(name), &store.join(place))?;
    }
    Ok(())
}

/// The names of all sources, each of which must be listed.
fn sources(tests: &Path) -> Result<BTreeSet<String>, String> {
    let known: BTreeSet<&str> = PROGRAMS.iter().chain(INSTRUMENTS).map(|it| it.source).collect();
    let mut names = BTreeSet::new();
    let mut paths = Vec::new();
    for folder in files(tests)?.into_iter().filter(|path| path.is_dir()) {
        paths.extend(files(&folder)?);
    }
    for path in paths.into_iter().filter(|path| path.extension().is_some_and(|it| it == "cu")) {
        let name =
            path.strip_prefix(tests).unwrap_or(&path).with_extension("").to_string_lossy().into_owned();
        if !known.contains(&*name) {
            return Err(format!("no check runs tests/cuda/{name}.cu; add it to xtask/src/gpu/listed.rs"));
        }
        names.insert(name);
    }
    Ok(names)
}

fn check_names(wanted: &[String], names: &BTreeSet<String>) -> Result<(), String> {
    match wanted.iter().find(|text| !names.iter().any(|name| name.contains(text.as_str()))) {
        Some(text) => {
            let names: Vec<&str> = names.iter().map(String::as_str).collect();
            Err(format!(
                "--programs {text}: no source of tests/cuda has that in its name; there are {}",
                names.join(", ")
            ))
        }
        None => Ok(()),
    }
}

/// Compiles one program, unless its inputs are unchanged.
fn compile(compiler: &Compiler, card: &Cuda, program: &Program, store: &Path) -> Result<(), String> {
    let root = paths::root();
    let directories = directories().map(|(directory, _)| directory);
    let source = directories[0].join(program.source).with_extension("cu");
    let options = options(card, program);

    let mut hash = Sha256::new();
    // Headers that a program includes only when compiled for the emulated card are there too; they are read
    // only for the key.
    let read = directories.iter().cloned().chain([root.join("tests/emulated")]);
    let made_from = read_with_headers(&source, &read.collect::<Vec<_>>())?;
    let said = [compiler.version().as_bytes().to_vec(), options.join(" ").into_bytes()];
    for part in said.iter().chain(&made_from) {
        hash.update((part.len() as u64).to_le_bytes());
        hash.update(part);
    }
    let key: String = hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect();
    let cached = root.join("target/cuda-programs").join(format!("{}-{key}", program.name));
    if !cached.is_file() {
        std::fs::create_dir_all(root.join("target/cuda-programs")).map_err(|error| error.to_string())?;
        let fresh = cached.with_extension("new");
        let mut command = Command::new(compiler.nvcc());
        command.args(&options);
        command.args(directories.iter().flat_map(|directory| [Path::new("-I"), directory]));
        // In a toolkit from a Python package the libraries are next to `bin`.
        if let Some(toolkit) = compiler.nvcc().parent().and_then(Path::parent) {
            command.arg("-L").arg(toolkit.join("lib"));
        }
        let began = Instant::now();
        run(command.arg("-o").arg(&fresh).arg(&source))?;
        eprintln!("compiled {} in {:.0} s", program.name, began.elapsed().as_secs_f64());
        std::fs::rename(&fresh, &cached).map_err(|error| error.to_string())?;
    }
    copy(&cached, &store.join("programs").join(program.name))
}

/// A source and every header of ours that it may include: the key that says whether a program must be
/// recompiled.
fn read_with_headers(source: &Path, directories: &[PathBuf]) -> Result<Vec<Vec<u8>>, String> {
    let (mut open, mut seen, mut texts) = (vec![source.to_owned()], BTreeSet::new(), Vec::new());
    while let Some(path) = open.pop() {
        let text = std::fs::read_to_string(&path).map_err(|error| format!("{}: {error}", path.display()))?;
        for quoted in text.lines().filter_map(|line| line.trim().strip_prefix("#include \"")) {
            let name = quoted.split_once('"').ok_or_else(|| format!("{}: {quoted}", path.display()))?.0;
            let found = directories.iter().map(|directory| directory.join(name)).find(|it| it.is_file());
            let found =
                found.ok_or_else(|| format!("{} includes {name}, which is nowhere", path.display()))?;
            if seen.insert(found.clone()) {
                open.push(found);
            }
        }
        texts.push(text.into_bytes());
    }
    Ok(texts)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_source_is_listed_and_every_listed_source_exists() {
        let names = sources(&paths::root().join("tests/cuda")).unwrap();
        for program in PROGRAMS.iter().chain(INSTRUMENTS) {
            assert!(names.contains(program.source), "{}", program.name);
        }
        let builds: BTreeSet<&str> = PROGRAMS.iter().chain(INSTRUMENTS).map(|it| it.name).collect();
        assert_eq!(
            builds.len(),
            PROGRAMS.len() + INSTRUMENTS.len(),
            "builds of one name overwrite each other"
        );

        let directory = tempfile::tempdir().unwrap();
        std::fs::create_dir(directory.path().join("core")).unwrap();
        std::fs::write(directory.path().join("core/forgotten.cu"), "").unwrap();
        assert!(
            sources(directory.path()).unwrap_err().contains("no check runs tests/cuda/core/forgotten.cu")
        );
    }

    /// Two identical entries would pay for nvcc twice; a run without a build would never happen.
    #[test]
    fn nothing_is_built_twice_and_every_build_is_run() {
        let mut seen = BTreeSet::new();
        for program in PROGRAMS.iter().chain(INSTRUMENTS) {
            assert!(seen.insert((program.source, program.defines)), "{} is built twice", program.name);
        }
        for program in PROGRAMS {
            assert!(program.alone || !program.tools.is_empty(), "{} is never run", program.name);
        }
        let names = |program: &Program| -> Vec<String> {
            runs(program).iter().map(|run| run["name"].as_str().unwrap().to_owned()).collect()
        };
        let of = |name: &str| PROGRAMS.iter().find(|it| it.name == name).unwrap();
        assert_eq!(
            names(of("experts_batch")),
            ["experts_batch", "experts_batch, planted", "experts_batch, memcheck"]
        );
        assert_eq!(names(of("delta-2-every-lane")), ["delta-2-every-lane, racecheck"]);
    }

    #[test]
    fn headers_are_followed_and_a_name_that_is_nowhere_is_refused() {
        let directory = tempfile::tempdir().unwrap();
        let [tests, library] = ["tests", "library"].map(|name| directory.path().join(name));
        for (path, text) in [
            (tests.join("a.cu"), "#include \"a.cuh\"\n#include <vector>\n"),
            (tests.join("a.cuh"), "#pragma once\n  #include \"b.cuh\"\n#include \"a.cuh\"\n"),
            (library.join("b.cuh"), "b"),
            (library.join("c.cuh"), "c"),
        ] {
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        }
        let read = || read_with_headers(&tests.join("a.cu"), &[tests.clone(), library.clone()]);
        let texts = read().unwrap();
        assert!(texts.len() == 3 && texts.contains(&b"b".to_vec()) && !texts.contains(&b"c".to_vec()));
        std::fs::remove_file(library.join("b.cuh")).unwrap();
        assert!(read().unwrap_err().contains("includes b.cuh, which is nowhere"));
    }

    #[test]
    fn programs_are_chosen_by_the_names_of_sources() {
        let names = ["delta", "gemm"].map(str::to_owned).into();
        assert!(check_names(&["delta".to_owned()], &names).is_ok());
        let refused = check_names(&["delta".to_owned(), "detla".to_owned()], &names).unwrap_err();
        assert!(refused.contains("--programs detla") && refused.contains("delta, gemm"), "{refused}");
    }
}
