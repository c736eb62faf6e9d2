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
use programs::Program;
use sets::Part;
use std::cell::{Cell, OnceCell};
use std::ffi::OsStr;
use std::path::PathBuf;
use std::process::Command;
use std::sync::Mutex;
use std::time::Instant;

#[derive(Args)]
pub struct Options {
    /// Bless: rewrite the committed goldens instead of comparing with them.
    #[arg(long)]
    bless: bool,
    /// Also the tests that take minutes each and are of kinds that others are a sample of: more models on the
    /// emulated card, in other storages, cards and work splits, and a server for Arm under an emulator.
    #[arg(long)]
    slow: bool,
}

/// A check's name and its function.
type Check<'a> = (&'static str, Box<dyn Fn() -> Result<Outcome, String> + 'a>);

/// Variables for builds of the tests and for their programs.
type Environment<'a> = Vec<(&'a str, &'a OsStr)>;

/// Result of a check that did not fail.
enum Outcome {
    Passed,
    /// Why it could not run here.
    Skipped(&'static str),
}

/// A check by ignored tests, which need more than a fresh machine has. Most of them wait for tools of others,
/// so two such checks are made at a time.
struct Other {
    name: &'static str,
    /// What has to be there, and where it is to be had.
    lacks: Option<&'static str>,
    /// What is done before the tests.
    before: Option<fn() -> Result<Command, String>>,
    /// The tests' files in `tests/tests`.
    files: &'static [&'static str],
}

/// The half of the device crate that CPU builds leave out.
pub const CUDA: &str = "--features=monomorph-device/cuda";

/// The test program of the device crate that has every kernel's tests.
const KERNELS: &str = "kernels";

/// Files in `tests/tests` with ignored tests that need nothing but time.
const SLOW: [&str; 14] = [
    "calls",
    "dflash",
    "drafting",
    "emulated",
    "emulated_drafting",
    "emulated_offload",
    "emulated_prefix_cache",
    "emulated_scripts",
    "emulated_windows",
    "emulated_world",
    "joins",
    "structured",
    "vision",
    "vision_drafts",
];

/// Ignored tests that no check runs: they take hours.
const HOURS: [&str; 2] = ["every_golden_in_every_format", "many_sequences_of_emulated_cards"];

/// What links and runs servers for another host architecture.
const CROSS_TOOLS: [&str; 2] = ["aarch64-linux-gnu-gcc", "qemu-aarch64"];

pub fn test(options: Options) -> Result<(), String> {
    room::check()?;
    toolchain::times::clear(&paths::root());
    let (downloads, weights) = (Cell::new(Some(downloads::begin())), OnceCell::new());
    let ran = Cell::new(Vec::new());
    // Whether there are weights changes how the tests' crate is compiled, so every build of it after the
    // downloads gets this variable.
    let with_weights = || -> Environment {
        weights.get().map(|path: &PathBuf| ("MONOMORPH_TEST_WEIGHTS", path.as_os_str())).into_iter().collect()
    };
    let (begun, built) = (Cell::new(None), OnceCell::new());
    let before: Vec<Check> = vec![
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
                begun.set(Some(beside::begin(options.bless)));
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
                let programs = built.get_or_init(|| programs::build(&[CUDA], &environment)).as_ref()?;
                let all = programs::run(programs, &environment)?;
                let failed = programs::failures(all.iter().filter_map(|it| it.failed.clone()));
                ran.set(all);
                let documentation = cargo(&["test", "--workspace", CUDA, "--quiet", "--doc"], &environment);
                failed.and(documentation)
            }),
        ),
    ];
    let after: Vec<Check> = vec![
        ("book", Box::new(|| book::check().map(passed))),
        (
            "GPU kernels",
            Box::new(|| begun.take().expect("they were begun").and_then(beside::Kernels::end).map(passed)),
        ),
    ];
    let mut made = Made::default();
    before.iter().for_each(|check| made.make(check));
    made.make_others(
        &others(options.slow),
        built.get().map_or(&[], |it| it.as_deref().unwrap_or(&[])),
        &with_weights(),
    );
    after.iter().for_each(|check| made.make(check));
    times::print(&made.lines, ran.take());
    let Made { lines, failed, skipped } = made;
    // Said again, since what failed stands thousands of lines above.
    failed.iter().for_each(|(name, why)| println!("== {name}: {why}"));
    println!("{} passed, {} failed, {skipped} skipped", lines.len() - failed.len() - skipped, failed.len());
    programs::failures(failed.into_iter().map(|(name, _)| name.to_owned()))
}

/// The checks made so far.
#[derive(Default)]
struct Made {
    lines: Vec<times::Line>,
    /// Names of checks, and why they failed.
    failed: Vec<(&'static str, String)>,
    skipped: usize,
}

impl Made {
    fn make(&mut self, (name, check): &Check) {
        let (start, spent) = (Instant::now(), processor::processor());
        eprintln!("== {name}");
        let became = check();
        let processor = processor::processor().zip(spent).map(|(now, before)| now - before);
        self.end(name, became, start, processor);
    }

    /// Makes these two at a time.
    fn make_others(&mut self, others: &[Other], programs: &[Program], environment: &Environment) {
        let made = Mutex::new(self);
        let make = |it: &Other| {
            let start = Instant::now();
            eprintln!("== {}", it.name);
            let (became, processor) = it.make(programs, environment);
            made.lock().expect("nobody panics with it").end(it.name, became, start, processor);
            Ok(())
        };
        programs::each(others, make).expect("each check tells its own failure");
    }

    fn end(
        &mut self,
        name: &'static str,
        became: Result<Outcome, String>,
        start: Instant,
        processor: Option<f64>,
    ) {
        let became = match became {
            Ok(Outcome::Passed) => "passed",
            Ok(Outcome::Skipped(why)) => {
                eprintln!("{name}: skipped: {why}");
                self.skipped += 1;
                "skipped"
            }
            Err(why) => {
                eprintln!("{name}: {why}");
                self.failed.push((name, why));
                "FAILED"
            }
        };
        let seconds = start.elapsed().as_secs_f64();
        eprintln!("== {name}: {seconds:.0} s");
        self.lines.push(times::Line { name, became, seconds, processor });
    }
}

impl Other {
    /// What became of it, and the processors' seconds of what it ran.
    fn make(
        &self,
        programs: &[Program],
        environment: &Environment,
    ) -> (Result<Outcome, String>, Option<f64>) {
        if let Some(why) = self.lacks {
            return (Ok(Outcome::Skipped(why)), None);
        }
        let before = self.before.map(|command| programs::run_command(self.name, command()?));
        let tests = self.files.iter().map(|file| programs::run_ignored(file, &HOURS, programs, environment));
        let (mut processor, mut failed) = (Some(0.0), Vec::new());
        for ran in before.into_iter().chain(tests) {
            match ran {
                Ok(ran) => {
                    processor = processor.zip(ran.processor).map(|(all, more)| all + more);
                    failed.extend(ran.failed);
                }
                Err(why) => failed.push(why),
            }
        }
        (programs::failures(failed).map(|()| Outcome::Passed), processor)
    }
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

/// Checks by ignored tests, those that take longest first; if `slow`, also those that need nothing but time.
fn others(slow: bool) -> Vec<Other> {
    let x86_64 = cfg!(target_arch = "x86_64");
    let lacks = |is_there: bool, why| (!is_there).then_some(why);
    let emulated = slow.then_some(Other { name: "slow", lacks: None, before: None, files: &SLOW });
    let of_tools = [
        // What drives the GPU of a GB10, whose host is an Arm, has to compile for it. If slow, a server for
        // an Arm, linked by a cross compiler, runs under an emulator.
        Other {
            name: "aarch64",
            lacks: lacks(
                there(&CROSS_TOOLS),
                "no cross compiler and emulator; xtask/cross/debian.sh installs them",
            ),
            before: Some(|| {
                let mut check = toolchain::cargo_for(Platform::Arm64.triple())?;
                check.args(["check", "--quiet", "--package", "monomorph-device", CUDA]);
                Ok(check)
            }),
            files: if slow { &["aarch64"] } else { &[] },
        },
        // Manifests in the hands of others' tools, and servers behind a router of others.
        Other {
            name: "fleet",
            lacks: lacks(x86_64, "the router is pinned for x86-64"),
            before: None,
            files: &["manifests", "fleet"],
        },
        // An image and a release in the hands of others' tools.
        Other {
            name: "images",
            lacks: lacks(
                x86_64 && there(&["skopeo", "umoci", "bwrap", "zstd", "dpkg-deb"]),
                "no x86-64 Debian with skopeo, umoci, bubblewrap and zstd; xtask/images/debian.sh installs them",
            ),
            before: None,
            files: &["image", "release"],
        },
        // Pinned npm clients against the scripted model, and a linter of workflows that npm has.
        Other {
            name: "npm clients",
            lacks: lacks(there(&["npm"]), "no npm; xtask/clients/debian.sh installs it"),
            before: None,
            files: &["clients", "workflows"],
        },
        // The chat page in a browser.
        Other {
            name: "page",
            lacks: lacks(
                there(&["npm", "chromium"]),
                "no npm or no Chromium; xtask/clients/debian.sh installs them",
            ),
            before: None,
            files: &["page"],
        },
        // Pinned coding agents against the scripted model.
        Other {
            name: "agents",
            lacks: lacks(x86_64, "the agents are pinned for x86-64")
                .or(lacks(there(&["npm"]), "no npm; xtask/clients/debian.sh installs it")),
            before: None,
            files: &["agents"],
        },
    ];
    emulated.into_iter().chain(of_tools).collect()
}

/// Whether all of these programs are installed.
fn there(programs: &[&str]) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let is_there =
        |program: &&str| std::env::split_paths(&path).any(|directory| directory.join(program).is_file());
    programs.iter().all(is_there)
}

fn passed(_: ()) -> Outcome {
    Outcome::Passed
}

fn cargo(arguments: &[&str], environment: &[(&str, &OsStr)]) -> Result<Outcome, String> {
    let mut command = toolchain::cargo();
    command.current_dir(paths::root()).args(arguments).envs(environment.iter().copied());
    run(&mut command).map(passed)
}

#[cfg(test)]
mod tests {
    use super::{SLOW, paths};

    #[test]
    fn every_file_with_tests_of_minutes_is_run_if_slow() {
        let directory = paths::root().join("tests/tests");
        let entries = std::fs::read_dir(&directory).expect("there are tests");
        let mut slow: Vec<String> = Vec::new();
        for path in entries.map(|entry| entry.expect("entries are readable").path()) {
            let text = std::fs::read_to_string(&path).expect("sources are readable");
            if text.contains("#[ignore = \"minutes") {
                slow.push(path.file_stem().expect("it has a name").to_string_lossy().into_owned());
            }
        }
        slow.sort();
        assert_eq!(slow, SLOW);
    }
}
