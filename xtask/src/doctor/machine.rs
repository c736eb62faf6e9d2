//! What this machine has for building, as its own tools say.

use monomorph_abi::cuda::RELEASE;
use monomorph_hub::free;
use monomorph_launcher::machine::{Machine, said};
use std::collections::BTreeMap;
use std::path::Path;

/// Tools that something is done with, and how each is asked for its version.
const TOOLS: [(&str, &str); 12] = [
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
    ("zstd", "--version"),
];

/// A machine with what builds on it.
pub struct Workshop {
    /// What servers run on.
    pub machine: Machine,
    /// Bytes that are free where builds go.
    pub disk: Option<u64>,
    /// What each tool that is there says of itself.
    pub tools: BTreeMap<&'static str, String>,
    /// The compiler of kernels, if one of the right release is installed.
    pub nvcc: Option<String>,
}

impl Workshop {
    /// Looks around. `root` is where builds go.
    pub fn look(root: &Path) -> Workshop {
        let tools = TOOLS.iter().filter_map(|(name, flag)| {
            let words = said(name, &[flag])?;
            Some((*name, words.lines().next().unwrap_or_default().trim().to_owned()))
        });
        Workshop { machine: Machine::look(), disk: free(root), tools: tools.collect(), nvcc: nvcc(root) }
    }

    /// What a tool says of itself, if it is there.
    pub fn tool(&self, name: &str) -> Option<&str> {
        self.tools.get(name).map(String::as_str)
    }
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
