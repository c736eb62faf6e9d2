//! `--version`: which build this is, by everything that two of them may differ in.

use monomorph_abi::cuda::{LEAST_DRIVER, RELEASE};
use monomorph_model::ModelSpec;

/// The compiler, as it names itself.
pub(crate) const RUSTC: &str = env!("MONOMORPH_RUSTC");

/// Version and target, for `-V`.
pub(crate) fn short(spec: &ModelSpec) -> String {
    format!("{} ({})", env!("CARGO_PKG_VERSION"), spec.target)
}

/// The same, and under it a fact a line.
pub(crate) fn long(spec: &ModelSpec, ranks: usize) -> String {
    let mut lines = vec![short(spec)];
    let mut line = |name: &str, value: &str| lines.push(format!("{name:<10} {value}"));
    line("commit", spec.commit.unwrap_or("not said by who built it"));
    line("compiler", RUSTC);
    let features = spec.hardware.features;
    line("processor", &if features.is_empty() { "any of its kind".to_owned() } else { features.join(" ") });
    if let Some(cuda) = &spec.hardware.cuda {
        let (major, minor) = cuda.capability;
        let gpus = if ranks == 1 { "a GPU".to_owned() } else { format!("{ranks} GPUs") };
        line(
            "GPU",
            &format!("{gpus} of compute capability {major}.{minor}, machine code of {}", cuda.architecture),
        );
        line("driver", &format!("{LEAST_DRIVER} or newer (CUDA {RELEASE})"));
    }
    let mut formats: Vec<_> = spec.formats.iter().map(|it| it.stored.name()).collect();
    formats.sort_unstable();
    formats.dedup();
    line("weights", &formats.join(" "));
    line("K/V", &spec.kv_formats.to_string());
    for file in spec.specs {
        line("spec", &format!("{} {}", file.sha256, file.name));
    }
    lines.join("\n")
}
