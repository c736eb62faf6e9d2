//! The workspace's test programs, two at a time. `cargo test` runs one after the other, and each leaves a
//! core idle while it waits for a server, for a clock, or for the last of its tests.
//!
//! What cargo tells programs that it runs (`OUT_DIR`, its own `CARGO_PKG_*`) is not told here.

use super::processor::processor_of;
use crate::paths;
use monomorph_compiler::toolchain;
use rustix::process::{Pid, WaitId, WaitIdOptions, waitid};
use serde::Deserialize;
use std::ffi::OsStr;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::time::Instant;

/// Programs that run side by side. Each has threads for all cores.
const AT_ONCE: usize = 2;

/// The last lines of a failed program that are said again when all checks have ended.
const SAID_AGAIN: usize = 40;

/// The package whose programs take longest, which are begun first.
const LONGEST: &str = "tests";

/// A program as cargo built it.
#[derive(Clone, Debug, PartialEq)]
pub struct Program {
    name: String,
    executable: PathBuf,
    /// Directory of its package, where it runs.
    package: PathBuf,
}

/// A program that ran.
#[derive(Clone, Debug, PartialEq)]
pub struct Ran {
    pub name: String,
    /// Wall time.
    pub seconds: f64,
    /// Processor time of it and of all programs that it ran and waited for; `None` if the system does not
    /// report it.
    pub processor: Option<f64>,
    /// Its name and the last lines that it printed, if it failed.
    pub failed: Option<String>,
}

/// The part of a message of `cargo --message-format=json` that says what was built.
#[derive(Deserialize)]
struct Message {
    executable: Option<PathBuf>,
    manifest_path: Option<PathBuf>,
    target: Option<Target>,
    profile: Option<Profile>,
}

#[derive(Deserialize)]
struct Target {
    name: String,
}

#[derive(Deserialize)]
struct Profile {
    test: bool,
}

/// The failures among these, each with its last lines; an error if there are any.
pub fn failures(failed: impl IntoIterator<Item = String>) -> Result<(), String> {
    let failed: Vec<_> = failed.into_iter().collect();
    if failed.is_empty() { Ok(()) } else { Err(format!("failed: {}", failed.join("\n"))) }
}

/// Builds the tests of the workspace with these options of cargo's. Tests in documentation are not among
/// them.
pub fn build(options: &[&str], environment: &[(&str, &OsStr)]) -> Result<Vec<Program>, String> {
    let mut command = toolchain::cargo();
    command.current_dir(paths::root()).args(["test", "--workspace", "--no-run", "--quiet"]);
    command.arg("--message-format=json-render-diagnostics").args(options).envs(environment.iter().copied());
    let output = command
        .stderr(Stdio::inherit())
        .output()
        .map_err(|error| format!("cargo could not be started: {error}"))?;
    if !output.status.success() {
        return Err(format!("building the tests ended with {}", output.status));
    }
    let mut programs = built(&String::from_utf8_lossy(&output.stdout))?;
    programs.sort_by_key(|it| !it.package.ends_with(LONGEST));
    Ok(programs)
}

/// Runs all tests of these programs that are not ignored, and prints what each says when it has ended.
pub fn run(programs: &[Program], environment: &[(&str, &OsStr)]) -> Result<Vec<Ran>, String> {
    side_by_side(programs, environment, &logs()?)
}

/// Runs the ignored tests of the one of these programs that is made of this file in `tests/tests`.
/// Tests whose names contain one of `without` are left out.
pub fn run_ignored(
    file: &str,
    without: &[&str],
    programs: &[Program],
    environment: &[(&str, &OsStr)],
) -> Result<Ran, String> {
    let name = format!("{LONGEST}/{file}");
    let program = programs.iter().find(|it| it.name == name);
    let program = program.ok_or_else(|| format!("{name} was not built"))?;
    let mut command = command(program, environment);
    command.arg("--ignored").args(without.iter().flat_map(|name| ["--skip", name]));
    said(&format!("{name}, ignored tests"), command, &logs()?)
}

/// Runs a command in the workspace's root and prints what it says when it has ended.
pub fn run_command(name: &str, mut command: Command) -> Result<Ran, String> {
    command.current_dir(paths::root());
    said(name, command, &logs()?)
}

/// The directory for what programs say.
fn logs() -> Result<PathBuf, String> {
    let logs = paths::root().join("target/test-logs");
    std::fs::create_dir_all(&logs).map_err(|error| format!("{}: {error}", logs.display()))?;
    Ok(logs)
}

/// The test programs among cargo's messages.
fn built(messages: &str) -> Result<Vec<Program>, String> {
    let mut programs = Vec::new();
    for line in messages.lines().filter(|line| line.starts_with('{')) {
        let message: Message =
            serde_json::from_str(line).map_err(|error| format!("a message of cargo's: {error}: {line}"))?;
        let Message { executable: Some(executable), manifest_path, target, profile } = message else {
            continue;
        };
        if !profile.is_some_and(|it| it.test) {
            continue;
        }
        let (Some(manifest), Some(target)) = (manifest_path, target) else {
            return Err(format!("a message of cargo's names no package: {line}"));
        };
        let package = manifest.parent().expect("a manifest is in a directory").to_owned();
        let of = package.file_name().unwrap_or_default().to_string_lossy();
        programs.push(Program { name: format!("{of}/{}", target.name), executable, package });
    }
    Ok(programs)
}

/// Runs programs side by side; an error only if one cannot be started.
fn side_by_side(
    programs: &[Program],
    environment: &[(&str, &OsStr)],
    logs: &Path,
) -> Result<Vec<Ran>, String> {
    let ran = Mutex::new(Vec::new());
    each(programs, |program| {
        let it = said(&program.name, command(program, environment), logs)?;
        ran.lock().expect("nobody panics with it").push(it);
        Ok(())
    })?;
    Ok(ran.into_inner().expect("nobody panics with it"))
}

/// Does this with all of them, in their order and [`AT_ONCE`]; an error ends the thread that meets it.
pub fn each<T: Sync>(all: &[T], work: impl Fn(&T) -> Result<(), String> + Sync) -> Result<(), String> {
    let next = Mutex::new(all.iter());
    let take = || next.lock().expect("nobody panics with it").next();
    let worker = || -> Result<(), String> {
        while let Some(it) = take() {
            work(it)?;
        }
        Ok(())
    };
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..AT_ONCE).map(|_| scope.spawn(worker)).collect();
        workers.into_iter().try_for_each(|worker| worker.join().expect("it returns its errors"))
    })
}

fn command(program: &Program, environment: &[(&str, &OsStr)]) -> Command {
    let mut command = Command::new(&program.executable);
    command.arg("--quiet").current_dir(&program.package).env("CARGO_MANIFEST_DIR", &program.package);
    command.envs(environment.iter().copied());
    command
}

/// Runs one and prints what it said in one piece, so that the words of two do not mix.
fn said(name: &str, command: Command, logs: &Path) -> Result<Ran, String> {
    let (it, said) = one(name, command, logs)?;
    let spent = it.processor.map_or(String::new(), |seconds| format!(", {seconds:.0} processors'"));
    static PRINTS: Mutex<()> = Mutex::new(());
    let _alone = PRINTS.lock().expect("nobody panics with it");
    eprint!("== {name} ({:.0} s{spent})\n{said}", it.seconds);
    Ok(it)
}

/// Runs one, and returns what it printed.
fn one(name: &str, mut command: Command, logs: &Path) -> Result<(Ran, String), String> {
    let log = logs.join(name.replace(['/', ' ', ','], "-")).with_extension("log");
    let io = |error: std::io::Error| format!("{}: {error}", log.display());
    let output = File::create(&log).map_err(io)?;
    let errors = output.try_clone().map_err(io)?;
    let began = Instant::now();
    command.stdin(Stdio::null()).stdout(output).stderr(errors);
    let failed = |error: std::io::Error| format!("{name}: {error}");
    let mut child = command.spawn().map_err(failed)?;
    // What it took is known of one that has ended, until it is waited for.
    let ended = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT;
    waitid(WaitId::Pid(Pid::from_child(&child)), ended).map_err(|error| failed(error.into()))?;
    let processor = processor_of(child.id());
    let status = child.wait().map_err(failed)?;
    let (seconds, mut said) = (
        began.elapsed().as_secs_f64(),
        String::from_utf8_lossy(&std::fs::read(&log).map_err(io)?).into_owned(),
    );
    if !status.success() {
        said += &format!("{name} ended with {status}\n");
    }
    let failed = (!status.success()).then(|| format!("{name}\n{}", last_lines(&said)));
    Ok((Ran { name: name.to_owned(), seconds, processor, failed }, said))
}

/// At most [`SAID_AGAIN`] lines.
fn last_lines(said: &str) -> String {
    let lines: Vec<_> = said.lines().collect();
    lines[lines.len().saturating_sub(SAID_AGAIN)..].join("\n")
}

#[cfg(test)]
mod tests {
    use super::{Program, built, run_ignored, side_by_side};
    use std::os::unix::fs::PermissionsExt;
    use std::path::Path;
    use std::time::Instant;

    #[test]
    fn programs_of_tests_are_found_among_what_cargo_built() {
        let artifact = |executable: &str, test: bool| {
            format!(
                r#"{{"reason":"compiler-artifact","manifest_path":"/w/cache/Cargo.toml","target":{{"name":"pool"}},"profile":{{"test":{test}}},"executable":{executable}}}"#
            )
        };
        let messages = [
            artifact("null", true),
            artifact(r#""/w/target/xtask""#, false),
            "   Compiling words of a build script".to_owned(),
            artifact(r#""/w/target/deps/pool-1""#, true),
            r#"{"reason":"build-finished","success":true}"#.to_owned(),
        ];
        let program = Program {
            name: "cache/pool".to_owned(),
            executable: "/w/target/deps/pool-1".into(),
            package: "/w/cache".into(),
        };
        assert_eq!(built(&messages.join("\n")), Ok(vec![program]));
        assert!(built("{").is_err());
    }

    fn script(directory: &Path, name: &str, text: &str) -> Program {
        let executable = directory.join(name);
        std::fs::write(&executable, format!("#!/bin/sh\n{text}\n")).expect("it is writable");
        std::fs::set_permissions(&executable, std::fs::Permissions::from_mode(0o755)).expect("it is ours");
        Program { name: format!("p/{name}"), executable, package: directory.to_owned() }
    }

    fn numbers(first: u32, last: u32) -> String {
        (first..=last).map(|it| it.to_string()).collect::<Vec<_>>().join("\n")
    }

    #[test]
    fn several_programs_run_at_a_time_and_one_that_fails_hides_no_other() {
        let directory = tempfile::tempdir().expect("there is room");
        let at = directory.path();
        // Each waits for the other, and ends in vain after ten seconds.
        let waits = |own: &str, other: &str| {
            format!("touch {own}; for i in $(seq 100); do [ -e {other} ] && exit 0; sleep 0.1; done; exit 1")
        };
        let programs = [
            script(at, "first", &waits("a", "b")),
            script(at, "second", &waits("b", "a")),
            script(at, "fails", "seq 200; exit 3"),
            script(at, "last", "i=0; while [ $i -lt 200000 ]; do i=$((i + 1)); done"),
        ];
        let began = Instant::now();
        let mut ran = side_by_side(&programs, &[], at).expect("all are started");
        assert!(began.elapsed().as_secs() < 10);
        ran.sort_by(|a, b| a.name.cmp(&b.name));
        let failed: Vec<_> = ran.iter().map(|it| (it.name.as_str(), it.failed.as_deref())).collect();
        let lines = format!("p/fails\n{}\np/fails ended with exit status: 3", numbers(162, 200));
        let why = Some(lines.as_str());
        assert_eq!(failed, [("p/fails", why), ("p/first", None), ("p/last", None), ("p/second", None)]);
        let log = std::fs::read_to_string(at.join("p-fails.log")).expect("it said so");
        assert_eq!(log, numbers(1, 200) + "\n");
        // Two of them only wait; one is busy itself, one says a word.
        let busy =
            |name| ran.iter().find(|it| it.name == name).and_then(|it| it.processor).expect("Linux says");
        assert!(busy("p/last") > busy("p/fails"), "{ran:?}");
        let missing = Program { executable: at.join("none"), ..programs[3].clone() };
        assert!(side_by_side(&[missing], &[], at).is_err());
    }

    #[test]
    fn ignored_tests_of_a_file_are_run_by_its_program() {
        let directory = tempfile::tempdir().expect("there is room");
        let program = script(directory.path(), "of-tools", r#"[ "$*" = "--quiet --ignored --skip hours" ]"#);
        let programs = [Program { name: "tests/of-tools".to_owned(), ..program }];
        assert!(run_ignored("of-tools", &["hours"], &programs, &[]).expect("it starts").failed.is_none());
        assert_eq!(run_ignored("none", &[], &programs, &[]), Err("tests/none was not built".to_owned()));
    }
}
