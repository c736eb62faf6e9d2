//! `cargo xtask test`: every check there is, on a fresh machine too.

use crate::{TargetOptions, fetch, licences, paths};
use clap::Args;
use monomorph_compiler::toolchain::python::run;
use std::process::Command;
use std::time::Instant;

#[derive(Args)]
pub struct Options {
    /// Accept what changed: rewrite the committed goldens instead of comparing with them.
    #[arg(long)]
    bless: bool,
}

/// One check: its name, and what it does.
type Check<'a> = (&'static str, Box<dyn Fn() -> Result<Outcome, String> + 'a>);

/// What became of a check that did not fail.
enum Outcome {
    Passed,
    /// Why it could not be made here.
    Skipped(&'static str),
}

/// The half of the device crate that CPU builds leave out.
const CUDA: &str = "--features=monomorph-device/cuda";

/// What links and runs servers for another kind of host.
const CROSS_TOOLS: [&str; 2] = ["aarch64-linux-gnu-gcc", "qemu-aarch64"];

pub fn test(options: Options) -> Result<(), String> {
    let target = TargetOptions { target: crate::DEFAULT_TARGET.to_owned(), targets_dir: None };
    let weights = fetch::weights(&target)?;
    let checks: Vec<Check> = vec![
        ("format", Box::new(|| cargo(&["fmt", "--all", "--check"], &[]))),
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
            "tests",
            Box::new(|| {
                let mut environment = vec![("MONOMORPH_TEST_WEIGHTS", weights.as_os_str())];
                if options.bless {
                    environment.push(("MONOMORPH_BLESS", "1".as_ref()));
                }
                cargo(&["test", "--workspace", CUDA, "--quiet", "--no-fail-fast"], &environment)
            }),
        ),
        ("aarch64", Box::new(aarch64)),
        ("npm clients", Box::new(npm_clients)),
        ("page", Box::new(page)),
        ("agents", Box::new(agents)),
    ];
    let (mut failed, mut skipped) = (Vec::new(), 0);
    for (name, check) in &checks {
        let start = Instant::now();
        eprintln!("== {name}");
        match check() {
            Ok(Outcome::Passed) => {}
            Ok(Outcome::Skipped(why)) => {
                eprintln!("{name}: skipped: {why}");
                skipped += 1;
            }
            Err(why) => {
                eprintln!("{name}: {why}");
                failed.push(*name);
            }
        }
        eprintln!("== {name}: {:.0} s", start.elapsed().as_secs_f64());
    }
    println!("{} passed, {} failed, {skipped} skipped", checks.len() - failed.len() - skipped, failed.len());
    if failed.is_empty() { Ok(()) } else { Err(format!("failed: {}", failed.join(", "))) }
}

/// The kernels' own tests once more for each instruction set of this machine that has a path of its own; the
/// workspace's tests run the portable one.
fn kernels() -> Result<Outcome, String> {
    for cpu in instruction_sets() {
        let mut command = Command::new("cargo");
        command
            .current_dir(paths::root())
            .args(["test", "--package", "monomorph-device", "--quiet", "--target-dir"])
            .arg(paths::root().join("target/kernels").join(cpu))
            .env("CARGO_ENCODED_RUSTFLAGS", format!("-C\u{1f}target-cpu={cpu}"));
        run(&mut command)?;
    }
    Ok(Outcome::Passed)
}

/// A server for an Arm host, linked by a cross compiler and run under an emulator.
fn aarch64() -> Result<Outcome, String> {
    if !there(&CROSS_TOOLS) {
        return Ok(Outcome::Skipped("no cross compiler and emulator; xtask/cross/debian.sh installs them"));
    }
    ignored("aarch64")
}

/// Clients that npm has, pinned, against the scripted model.
fn npm_clients() -> Result<Outcome, String> {
    if !there(&["npm"]) {
        return Ok(Outcome::Skipped("no npm; xtask/clients/debian.sh installs it"));
    }
    ignored("clients")
}

/// The chat page in a browser.
fn page() -> Result<Outcome, String> {
    if !there(&["npm", "chromium"]) {
        return Ok(Outcome::Skipped("no npm or no Chromium; xtask/clients/debian.sh installs them"));
    }
    ignored("page")
}

/// Coding agents, pinned, against the scripted model.
fn agents() -> Result<Outcome, String> {
    if !cfg!(target_arch = "x86_64") {
        return Ok(Outcome::Skipped("the agents are pinned for x86-64"));
    }
    if !there(&["npm"]) {
        return Ok(Outcome::Skipped("no npm; xtask/clients/debian.sh installs it"));
    }
    ignored("agents")
}

/// Whether all of these programs are installed.
fn there(programs: &[&str]) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let is_there =
        |program: &&str| std::env::split_paths(&path).any(|directory| directory.join(program).is_file());
    programs.iter().all(is_there)
}

/// The tests of this file in `tests/tests` that want more than a fresh machine has.
fn ignored(file: &str) -> Result<Outcome, String> {
    cargo(&["test", "--package", "monomorph-tests", "--test", file, "--quiet", "--", "--ignored"], &[])
}

fn passed(_: ()) -> Outcome {
    Outcome::Passed
}

#[cfg(target_arch = "x86_64")]
fn instruction_sets() -> Vec<&'static str> {
    let v3 = ["x86-64-v3"]
        .into_iter()
        .filter(|_| is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma"));
    let v4 = ["x86-64-v4"].into_iter().filter(|_| is_x86_feature_detected!("avx512bw"));
    v3.chain(v4).chain(["native"]).collect()
}

#[cfg(not(target_arch = "x86_64"))]
fn instruction_sets() -> Vec<&'static str> {
    vec!["native"]
}

fn cargo(arguments: &[&str], environment: &[(&str, &std::ffi::OsStr)]) -> Result<Outcome, String> {
    let mut command = Command::new("cargo");
    command.current_dir(paths::root()).args(arguments).envs(environment.iter().copied());
    run(&mut command).map(passed)
}
