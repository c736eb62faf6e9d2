//! What this machine has, as its processor, its kernel and the driver's tool say.

use serde::Serialize;
use std::collections::BTreeSet;
use std::process::Command;

/// What servers run on.
#[derive(Clone, Debug)]
pub struct Machine {
    /// As Rust calls it.
    pub architecture: String,
    /// Features of its processor, as Rust calls them.
    pub features: BTreeSet<String>,
    /// Threads that it runs at once.
    pub threads: usize,
    /// Bytes in all, and those that a new process may take.
    pub memory: Option<(u64, u64)>,
    /// Version of NVIDIA's driver.
    pub driver: Option<String>,
    /// Its cards.
    pub gpus: Vec<Gpu>,
}

/// A card.
#[derive(Clone, Debug, PartialEq)]
pub struct Gpu {
    /// As the driver calls it.
    pub name: String,
    /// Compute capability, major and minor.
    pub capability: (u32, u32),
    /// Bytes that it says it has.
    pub memory: u64,
}

/// One thing that was looked at.
#[derive(Debug, PartialEq, Serialize)]
pub struct Finding {
    /// A word for people.
    pub what: &'static str,
    /// How it is here.
    pub found: String,
    /// What it keeps from working, and what to do; none where all is well.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub remedy: Option<String>,
}

impl Finding {
    /// Of what is as it should be.
    pub fn fine(what: &'static str, found: String) -> Finding {
        Finding { what, found, remedy: None }
    }

    /// Of what is not there.
    pub fn lacks(what: &'static str, remedy: String) -> Finding {
        Finding { what, found: "none".to_owned(), remedy: Some(remedy) }
    }
}

impl std::fmt::Display for Finding {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:<14} {}", self.what, self.found)?;
        match &self.remedy {
            Some(remedy) => write!(f, "\n{:<14} -> {remedy}", ""),
            None => Ok(()),
        }
    }
}

impl Machine {
    /// Looks around.
    pub fn look() -> Machine {
        let query = "--query-gpu=name,compute_cap,memory.total,driver_version";
        let cards = said("nvidia-smi", &[query, "--format=csv,noheader,nounits"]).unwrap_or_default();
        let (gpus, drivers): (Vec<Gpu>, Vec<String>) = cards.lines().filter_map(card).unzip();
        Machine {
            architecture: std::env::consts::ARCH.to_owned(),
            features: features(),
            threads: std::thread::available_parallelism().map_or(1, usize::from),
            memory: std::fs::read_to_string("/proc/meminfo").ok().as_deref().and_then(memory),
            driver: drivers.into_iter().next(),
            gpus,
        }
    }

    /// Processor and memory.
    pub fn host(&self) -> Vec<Finding> {
        let gib = |bytes: u64| format!("{:.1} GiB", bytes as f64 / (1u64 << 30) as f64);
        vec![
            Finding::fine("processor", format!("{}, {} threads", self.architecture, self.threads)),
            match self.memory {
                Some((total, free)) => {
                    Finding::fine("memory", format!("{}, {} of it free", gib(total), gib(free)))
                }
                None => Finding::fine("memory", "not known: there is no /proc/meminfo".to_owned()),
            },
        ]
    }

    /// The driver, of which the branch `least` or a newer one is needed, and the cards. `without` is what
    /// cannot be done without a driver.
    pub fn cards(&self, least: u32, without: &str) -> Vec<Finding> {
        let driver = match &self.driver {
            None => Finding::lacks("driver", without.to_owned()),
            Some(driver) if branch(driver) < Some(least) => Finding {
                remedy: Some(format!("servers of GPUs want a newer one: install driver {least} or newer")),
                ..Finding::fine("driver", driver.clone())
            },
            Some(driver) => Finding::fine("driver", driver.clone()),
        };
        let card = |(at, it): (usize, &Gpu)| {
            let ((major, minor), gib) = (it.capability, it.memory as f64 / (1u64 << 30) as f64);
            let found = format!("{at}: {}, compute capability {major}.{minor}, {gib:.1} GiB", it.name);
            Finding::fine("GPU", found)
        };
        std::iter::once(driver).chain(self.gpus.iter().enumerate().map(card)).collect()
    }
}

/// What a program prints; none if it is not there or fails.
pub fn said(program: &str, arguments: &[&str]) -> Option<String> {
    let output = Command::new(program).args(arguments).output().ok()?;
    output.status.success().then(|| String::from_utf8_lossy(&output.stdout).into_owned())
}

/// The features of these names that the processor has.
macro_rules! detected {
    ($detect:ident: $($name:tt)*) => {
        [$(($name, std::arch::$detect!($name))),*].into_iter().filter(|(_, has)| *has).map(|(name, _)| name)
    };
}

/// Features of the processor: those that rustc says of the processors that servers are shipped for.
fn features() -> BTreeSet<String> {
    #[cfg(target_arch = "x86_64")]
    let names = detected! {
        is_x86_feature_detected:
        "avx" "avx2" "avx512bf16" "avx512bitalg" "avx512bw" "avx512cd" "avx512dq" "avx512f" "avx512fp16"
        "avx512ifma" "avx512vbmi" "avx512vbmi2" "avx512vl" "avx512vnni" "avx512vp2intersect" "avx512vpopcntdq"
        "avxifma" "avxneconvert" "avxvnni" "avxvnniint16" "avxvnniint8" "bmi1" "bmi2" "cmpxchg16b" "f16c" "fma"
        "fxsr" "gfni" "kl" "lzcnt" "movbe" "popcnt" "sse" "sse2" "sse3" "sse4.1" "sse4.2" "ssse3" "vaes"
        "vpclmulqdq" "xsave" "adx" "aes" "pclmulqdq" "rdrand" "rdseed" "sha" "sha512" "sm3" "sm4" "sse4a"
        "widekl" "xsavec" "xsaveopt" "xsaves"
    };
    #[cfg(target_arch = "aarch64")]
    let names = detected! {
        is_aarch64_feature_detected:
        "aes" "bf16" "bti" "crc" "dit" "dotprod" "dpb" "dpb2" "fcma" "fhm" "flagm" "fp16" "frintts" "i8mm"
        "jsconv" "lse" "neon" "paca" "pacg" "pmull" "rand" "rcpc" "rcpc2" "rdm" "sb" "sha2" "sha3" "sm4" "ssbs"
        "sve" "sve2"
    };
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    let names = std::iter::empty::<&str>();
    names.map(str::to_owned).collect()
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

    /// rustc asks the same processor. What it says of one with AVX-512 and more must be among the names here.
    #[test]
    #[cfg(target_arch = "x86_64")]
    fn every_feature_that_rustc_says_of_this_processor_is_found() {
        let arguments = ["--print", "cfg", "-Ctarget-cpu=native"];
        let cfg = said("rustc", &arguments).expect("a test is compiled by rustc");
        let names = cfg.lines().filter_map(|line| line.strip_prefix("target_feature=\"")?.strip_suffix('"'));
        let found = features();
        let missing: Vec<&str> = names.filter(|name| !found.contains(*name)).collect();
        assert!(missing.is_empty(), "{missing:?}");
    }
}
