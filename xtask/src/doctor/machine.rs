//! What this machine has, as its own tools say.

use monomorph_abi::cuda::RELEASE;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::Command;

/// Tools that something is done with, and how each is asked for its version.
const TOOLS: [(&str, &str); 11] = [
    ("rustc", "--version"),
    ("cc", "--version"),
    ("python3", "--version"),
    ("g++", "--version"),
    ("aarch64-linux-gnu-gcc", "--version"),
    ("qemu-aarch64", "--version"),
    ("npm", "--version"),
    ("chromium", "--version"),
    ("skopeo", "--version"),
    ("umoci", "--version"),
    ("bwrap", "--version"),
];

pub struct Machine {
    /// As rustc calls it.
    pub architecture: String,
    /// Features of its processor, as rustc calls them.
    pub features: BTreeSet<String>,
    pub threads: usize,
    /// Bytes in all, and those that a new process may take.
    pub memory: Option<(u64, u64)>,
    /// Bytes that are free where builds go.
    pub disk: Option<u64>,
    /// What each tool that is there says of itself.
    pub tools: BTreeMap<&'static str, String>,
    /// The compiler of kernels, if one of the right release is installed.
    pub nvcc: Option<String>,
    /// Version of NVIDIA's driver.
    pub driver: Option<String>,
    pub gpus: Vec<Gpu>,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Gpu {
    pub name: String,
    pub capability: (u32, u32),
    /// Bytes that it says it has.
    pub memory: u64,
}

impl Machine {
    /// Looks around. `root` is where builds go.
    pub fn look(root: &Path) -> Machine {
        let features = said("rustc", &["--print", "cfg", "-Ctarget-cpu=native"]).unwrap_or_default();
        let features =
            features.lines().filter_map(|line| line.strip_prefix("target_feature=\"")?.strip_suffix('"'));
        let tools = TOOLS.iter().filter_map(|(name, flag)| {
            let words = said(name, &[flag])?;
            Some((*name, words.lines().next().unwrap_or_default().trim().to_owned()))
        });
        let query = "--query-gpu=name,compute_cap,memory.total,driver_version";
        let cards = said("nvidia-smi", &[query, "--format=csv,noheader,nounits"]).unwrap_or_default();
        let (gpus, drivers): (Vec<Gpu>, Vec<String>) = cards.lines().filter_map(card).unzip();
        Machine {
            architecture: std::env::consts::ARCH.to_owned(),
            features: features.map(str::to_owned).collect(),
            threads: std::thread::available_parallelism().map_or(1, usize::from),
            memory: std::fs::read_to_string("/proc/meminfo").ok().as_deref().and_then(memory),
            disk: free(root),
            tools: tools.collect(),
            nvcc: nvcc(root),
            driver: drivers.into_iter().next(),
            gpus,
        }
    }

    /// What a tool says of itself, if it is there.
    pub fn tool(&self, name: &str) -> Option<&str> {
        self.tools.get(name).map(String::as_str)
    }
}

/// Bytes that are free on the disk where a path is, or will be.
pub fn free(path: &Path) -> Option<u64> {
    let there = path.ancestors().find(|it| it.exists())?;
    rustix::fs::statvfs(there).ok().map(|it| it.f_bavail * it.f_frsize)
}

/// What a program prints; none if it is not there or fails.
fn said(program: &str, arguments: &[&str]) -> Option<String> {
    let output = Command::new(program).args(arguments).output().ok()?;
    output.status.success().then(|| String::from_utf8_lossy(&output.stdout).into_owned())
}

/// The installed compiler, or the one that an earlier build fetched.
fn nvcc(root: &Path) -> Option<String> {
    let home = std::env::var("CUDA_HOME").map(|home| format!("{home}/bin/nvcc")).ok();
    let fetched = root.join("target/toolchain/nvcc");
    let release = |program: &str| {
        let words = said(program, &["--version"])?;
        words.contains(&format!("release {RELEASE},")).then(|| format!("{RELEASE}, {program}"))
    };
    let fetched = fetched.is_dir().then(|| format!("{RELEASE}, {}", fetched.display()));
    release("nvcc").or_else(|| home.as_deref().and_then(release)).or(fetched)
}

/// Total and available bytes of /proc/meminfo.
fn memory(text: &str) -> Option<(u64, u64)> {
    let of = |name: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
        Some(line.trim().strip_suffix(" kB")?.parse::<u64>().ok()? << 10)
    };
    Some((of("MemTotal")?, of("MemAvailable")?))
}

/// A card of nvidia-smi's list, and the driver's version.
fn card(line: &str) -> Option<(Gpu, String)> {
    let mut fields = line.rsplitn(4, ',').map(str::trim);
    let (driver, memory, capability) = (fields.next()?, fields.next()?, fields.next()?);
    let (major, minor) = capability.split_once('.')?;
    let capability = (major.parse().ok()?, minor.parse().ok()?);
    // A GPU that shares the host's memory has none of its own to tell.
    let memory = memory.parse::<u64>().map_or_else(|_| shared(), |mib| mib << 20);
    Some((Gpu { name: fields.next()?.to_owned(), capability, memory }, driver.to_owned()))
}

/// All memory of the host.
fn shared() -> u64 {
    std::fs::read_to_string("/proc/meminfo").ok().as_deref().and_then(memory).map_or(0, |(total, _)| total)
}

/// The branch of a driver's version, by which releases of CUDA ask for it.
pub fn branch(version: &str) -> Option<u32> {
    version.split('.').next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cards_and_memory_are_read_as_the_system_prints_them() {
        let (gpu, driver) = card("NVIDIA H200, 9.0, 143771, 580.95.05").expect("a card");
        assert_eq!(gpu, Gpu { name: "NVIDIA H200".to_owned(), capability: (9, 0), memory: 143_771 << 20 });
        assert_eq!(branch(&driver), Some(580));
        let shared = card("NVIDIA GB10, 12.1, [N/A], 580.95.05").expect("a card").0;
        assert_eq!(shared.capability, (12, 1));
        assert!(card("No devices were found").is_none());
        assert_eq!(
            memory("MemTotal:  10 kB\nMemFree: 1 kB\nMemAvailable:   4 kB\n"),
            Some((10 << 10, 4 << 10))
        );
        assert_eq!(memory("nothing"), None);
    }
}
