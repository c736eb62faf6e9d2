//! `cargo xtask test`: every check, also on a fresh machine.

mod beside;
mod downloads;
mod processor;
mod programs;
mod room;
mod sets;
mod times;

pub use room::NEEDED as TEST_BYTES;

use crate::image::Platform;
use crate::{book, licences, paths, tidy};
use clap::Args;
use monomorph_compiler::toolchain;
use monomorph_compiler::toolchain::python::run;
use sets::Part;
use std::cell::{Cell, OnceCell};
use std::ffi::OsStr;
use std::path::PathBuf;
use std::time::Instant;

#[derive(Args)]
pub struct Options {
    /// Bless: rewrite the committed goldens instead of comparing with them.
    #[arg(long)]
    bless: bool,
}

/// A check's name and its function.
type Check<'a> = (&'static str, Box<dyn Fn() -> Result<Outcome, String> + 'a>);

/// Result of a check that did not fail.
enum Outcome {
    Passed,
    /// Why it could not run here.
    Skipped(&'static str),
}

/// The half of the device crate that CPU builds leave out.
pub const CUDA: &str = "--features=monomorph-device/cuda";

/// The test program of the device crate that has every kernel's tests.
const KERNELS: &str = "kernels";

/// What links and runs servers for another host architecture.
const CROSS_TOOLS: [&str; 2] = ["aarch64-linux-gnu-gcc", "qemu-aarch64"];

pub fn test(options: Options) -> Result<(), String> {
    room::check()?;
    toolchain::times::clear(&paths::root());
    let (downloads, weights) = (Cell::new(Some(downloads::begin())), OnceCell::new());
    let (gpu_kernels, ran) = (Cell::new(None), Cell::new(Vec::new()));
    // Whether there are weights changes how the tests' crate is compiled, so every build of it after the
    // downloads gets this variable.
    let with_weights = || -> Vec<(&str, &OsStr)> {
        weights.get().map(|path: &PathBuf| ("MONOMORPH_TEST_WEIGHTS", path.as_os_str())).into_iter().collect()
    };
    let ignored = |file: &str| ignored(file, &with_weights());
    let checks: Vec<Check> = vec![
        ("format", Box::new(|| cargo(&["fmt", "--all", "--check"], &[]))),
        ("tidy", Box::new(|| tidy::tidy(options.bless).map(passed))),
        (
            "clippy",
            Box::new(|| {
                cargo(
                    &["clippy", "--workspace", "--all-targets", CUDA, "--quiet", "--", "-D", "warnings"],
                    &[],
                )
            }),
        ),
        ("licences", Box::new(|| licences::check().map(passed))),
        ("kernels", Box::new(kernels)),
        (
            "downloads",
            Box::new(|| {
                let (fetched, result) = downloads.take().expect("a check is made once").end();
                fetched.into_iter().for_each(|path| drop(weights.set(path)));
                gpu_kernels.set(Some(beside::begin(options.bless)));
                result.map(passed)
            }),
        ),
        (
            "tests",
            Box::new(|| {
                let mut environment = with_weights();
                if options.bless {
                    environment.push(("MONOMORPH_BLESS", "1".as_ref()));
                }
                let all = programs::run(&[CUDA], &environment)?;
                let failed: Vec<_> = all.iter().filter(|it| !it.passed).map(|it| it.name.clone()).collect();
                ran.set(all);
                let documentation = cargo(&["test", "--workspace", CUDA, "--quiet", "--doc"], &environment);
                if failed.is_empty() { documentation } else { Err(format!("failed: {}", failed.join(", "))) }
            }),
        ),
        ("aarch64", Box::new(|| aarch64(ignored))),
        ("npm clients", Box::new(|| npm_clients(ignored))),
        ("page", Box::new(|| page(ignored))),
        ("agents", Box::new(|| agents(ignored))),
        ("images", Box::new(|| images(ignored))),
        ("fleet", Box::new(|| fleet(ignored))),
        ("book", Box::new(|| book::check().map(passed))),
        (
            "GPU kernels",
            Box::new(|| {
                gpu_kernels.take().expect("they were begun").and_then(beside::Kernels::end).map(passed)
            }),
        ),
    ];
    let (mut failed, mut skipped, mut lines) = (Vec::new(), 0, Vec::new());
    for (name, check) in &checks {
        let (start, spent) = (Instant::now(), processor::processor());
        eprintln!("== {name}");
        let became = match check() {
            Ok(Outcome::Passed) => "passed",
            Ok(Outcome::Skipped(why)) => {
                eprintln!("{name}: skipped: {why}");
                skipped += 1;
                "skipped"
            }
            Err(why) => {
                eprintln!("{name}: {why}");
                failed.push(*name);
                "FAILED"
            }
        };
        let seconds = start.elapsed().as_secs_f64();
        let processor = processor::processor().zip(spent).map(|(now, before)| now - before);
        eprintln!("== {name}: {seconds:.0} s");
        lines.push(times::Line { name, became, seconds, processor });
    }
    times::print(&lines, ran.take());
    println!("{} passed, {} failed, {skipped} skipped", checks.len() - failed.len() - skipped, failed.len());
    if failed.is_empty() { Ok(()) } else { Err(format!("failed: {}", failed.join(", "))) }
}

/// Runs the kernels' own tests once more for each instruction set of this machine that has its own path. The
/// workspace's tests run the portable path, as do the builds of the examples and the documentation. Tests of
/// what is around the kernels are not among them: blocks on disk are the same for every instruction set.
/// Of sets in between only the vectors' own tests run, in which they differ.
///
/// A rustc wrapper, which cargo uses for workspace crates only, sets the instruction set. `RUSTFLAGS` would
/// recompile every dependency and build script for each.
fn kernels() -> Result<Outcome, String> {
    let directory = paths::root().join("target/kernels");
    for (cpu, part) in sets::instruction_sets()? {
        let flags = ["-C".to_owned(), format!("target-cpu={cpu}")];
        let wrapper = toolchain::rustc_with(&directory, &flags).map_err(|error| error.to_string())?;
        let mut command = toolchain::cargo();
        command
            .current_dir(paths::root())
            .args([
                "test",
                "--package",
                "monomorph-device",
                "--lib",
                "--quiet",
                // Here only macros need it, and nothing waits for them.
                "--config=profile.dev.package.\"syn@3\".opt-level=0",
                "--target-dir",
            ])
            .arg(&directory)
            .env("RUSTC_WORKSPACE_WRAPPER", &wrapper);
        if part == Part::All {
            command.args(["--test", KERNELS]);
        }
        run(&mut command)?;
    }
    Ok(Outcome::Passed)
}

/// A server for an Arm host, linked by a cross compiler and run under an emulator. Of a GB10's, which no
/// emulator runs, the half that drives the GPU has to compile.
fn aarch64(ignored: impl Fn(&str) -> Result<Outcome, String>) -> Result<Outcome, String> {
    if !there(&CROSS_TOOLS) {
        return Ok(Outcome::Skipped("no cross compiler and emulator; xtask/cross/debian.sh installs them"));
    }
    let mut check = toolchain::cargo_for(Platform::Arm64.triple())?;
    check.current_dir(paths::root()).args(["check", "--quiet", "--package", "monomorph-device", CUDA]);
    run(&mut check).and_then(|()| ignored("aarch64"))
}

/// Pinned npm clients against the scripted model, and a linter of workflows that npm has.
fn npm_clients(ignored: impl Fn(&str) -> Result<Outcome, String>) -> Result<Outcome, String> {
    if !there(&["npm"]) {
        return Ok(Outcome::Skipped("no npm; xtask/clients/debian.sh installs it"));
    }
    ignored("clients").and_then(|_| ignored("workflows"))
}

/// The chat page in a browser.
fn page(ignored: impl Fn(&str) -> Result<Outcome, String>) -> Result<Outcome, String> {
    if !there(&["npm", "chromium"]) {
        return Ok(Outcome::Skipped("no npm or no Chromium; xtask/clients/debian.sh installs them"));
    }
    ignored("page")
}

/// Pinned coding agents against the scripted model.
fn agents(ignored: impl Fn(&str) -> Result<Outcome, String>) -> Result<Outcome, String> {
    if !cfg!(target_arch = "x86_64") {
        return Ok(Outcome::Skipped("the agents are pinned for x86-64"));
    }
    if !there(&["npm"]) {
        return Ok(Outcome::Skipped("no npm; xtask/clients/debian.sh installs it"));
    }
    ignored("agents")
}

/// An image and a release in the hands of others' tools.
fn images(ignored: impl Fn(&str) -> Result<Outcome, String>) -> Result<Outcome, String> {
    if !cfg!(target_arch = "x86_64") || !there(&["skopeo", "umoci", "bwrap", "zstd", "dpkg-deb"]) {
        return Ok(Outcome::Skipped(
            "no x86-64 Debian with skopeo, umoci, bubblewrap and zstd; xtask/images/debian.sh installs them",
        ));
    }
    ignored("image").and_then(|_| ignored("release"))
}

/// Manifests in the hands of others' tools, and servers behind a router of others.
fn fleet(ignored: impl Fn(&str) -> Result<Outcome, String>) -> Result<Outcome, String> {
    if !cfg!(target_arch = "x86_64") {
        return Ok(Outcome::Skipped("the router is pinned for x86-64"));
    }
    ignored("manifests").and_then(|_| ignored("fleet"))
}

/// Whether all of these programs are installed.
fn there(programs: &[&str]) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let is_there =
        |program: &&str| std::env::split_paths(&path).any(|directory| directory.join(program).is_file());
    programs.iter().all(is_there)
}

/// Runs the ignored tests of this file in `tests/tests`, which need more than a fresh machine has. They are
/// selected from the whole workspace, as the other tests are: a single package unites fewer features, which
/// would recompile most of its dependencies.
fn ignored(file: &str, environment: &[(&str, &OsStr)]) -> Result<Outcome, String> {
    cargo(&["test", "--workspace", CUDA, "--test", file, "--quiet", "--", "--ignored"], environment)
}

fn passed(_: ()) -> Outcome {
    Outcome::Passed
}

fn cargo(arguments: &[&str], environment: &[(&str, &OsStr)]) -> Result<Outcome, String> {
    let mut command = toolchain::cargo();
    command.current_dir(paths::root()).args(arguments).envs(environment.iter().copied());
    run(&mut command).map(passed)
}
