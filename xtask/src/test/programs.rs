//! The workspace's test programs, two at a time. `cargo test` runs one after the other, and each leaves a
//! core idle while it waits for a server, for a clock, or for the last of its tests.

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

/// The package whose programs take longest, which are begun first.
const LONGEST: &str = "tests";

/// A program as cargo built it.
#[derive(Clone, Debug, PartialEq)]
struct Program {
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
    pub passed: bool,
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

/// Builds the tests of the workspace with these options of cargo's, runs all programs and prints what each
/// says when it has ended. Tests in documentation are not among them.
pub fn run(options: &[&str], environment: &[(&str, &OsStr)]) -> Result<Vec<Ran>, String> {
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
    let logs = paths::root().join("target/test-logs");
    std::fs::create_dir_all(&logs).map_err(|error| format!("{}: {error}", logs.display()))?;
    side_by_side(&programs, environment, &logs)
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

/// Runs programs [`AT_ONCE`]; an error only if one cannot be started.
fn side_by_side(
    programs: &[Program],
    environment: &[(&str, &OsStr)],
    logs: &Path,
) -> Result<Vec<Ran>, String> {
    let (next, ran) = (Mutex::new(programs.iter()), Mutex::new(Vec::new()));
    let take = || next.lock().expect("nobody panics with it").next();
    let work = || -> Result<(), String> {
        while let Some(program) = take() {
            let (it, said) = one(program, environment, logs)?;
            let mut ran = ran.lock().expect("nobody panics with it");
            // In one piece, so that the words of two programs do not mix.
            let spent = it.processor.map_or(String::new(), |seconds| format!(", {seconds:.0} processors'"));
            eprint!("== {} ({:.0} s{spent})\n{said}", it.name, it.seconds);
            ran.push(it);
        }
        Ok(())
    };
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..AT_ONCE).map(|_| scope.spawn(work)).collect();
        workers.into_iter().try_for_each(|worker| worker.join().expect("it returns its errors"))
    })?;
    Ok(ran.into_inner().expect("nobody panics with it"))
}

/// Runs one, and returns what it printed.
fn one(program: &Program, environment: &[(&str, &OsStr)], logs: &Path) -> Result<(Ran, String), String> {
    let log = logs.join(program.name.replace('/', "-")).with_extension("log");
    let io = |error: std::io::Error| format!("{}: {error}", log.display());
    let output = File::create(&log).map_err(io)?;
    let errors = output.try_clone().map_err(io)?;
    let began = Instant::now();
    let mut command = Command::new(&program.executable);
    command.arg("--quiet").current_dir(&program.package).env("CARGO_MANIFEST_DIR", &program.package);
    command.envs(environment.iter().copied()).stdin(Stdio::null()).stdout(output).stderr(errors);
    let failed = |error: std::io::Error| format!("{}: {error}", program.executable.display());
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
        said += &format!("{} ended with {status}\n", program.name);
    }
    Ok((Ran { name: program.name.clone(), seconds, processor, passed: status.success() }, said))
}

#[cfg(test)]
mod tests {
    use super::{Program, built, side_by_side};
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

    #[test]
    fn two_programs_run_at_a_time_and_one_that_fails_hides_no_other() {
        let directory = tempfile::tempdir().expect("there is room");
        let at = directory.path();
        // Each waits for the other, and ends in vain after ten seconds.
        let waits = |own: &str, other: &str| {
            format!("touch {own}; for i in $(seq 100); do [ -e {other} ] && exit 0; sleep 0.1; done; exit 1")
        };
        let programs = [
            script(at, "first", &waits("a", "b")),
            script(at, "second", &waits("b", "a")),
            script(at, "fails", "echo why; exit 3"),
            script(at, "last", "i=0; while [ $i -lt 200000 ]; do i=$((i + 1)); done"),
        ];
        let began = Instant::now();
        let mut ran = side_by_side(&programs, &[], at).expect("all are started");
        assert!(began.elapsed().as_secs() < 10);
        ran.sort_by(|a, b| a.name.cmp(&b.name));
        let passed: Vec<_> = ran.iter().map(|it| (it.name.as_str(), it.passed)).collect();
        assert_eq!(passed, [("p/fails", false), ("p/first", true), ("p/last", true), ("p/second", true)]);
        assert!(std::fs::read_to_string(at.join("p-fails.log")).expect("it said so").contains("why"));
        // Two of them only wait; one is busy itself, one says a word.
        let busy =
            |name| ran.iter().find(|it| it.name == name).and_then(|it| it.processor).expect("Linux says");
        assert!(busy("p/last") > busy("p/fails"), "{ran:?}");
        let missing = Program { executable: at.join("none"), ..programs[3].clone() };
        assert!(side_by_side(&[missing], &[], at).is_err());
    }
}
