//! `cargo xtask image`: a target's server as an image that any container engine loads.
//!
//! Written without an engine or a daemon, and bit for bit the same from the same server and libraries.

pub mod layer;
mod layout;
pub mod notices;
mod root;

pub use layout::{ARGUMENTS, Platform, SCRATCH, SERVER, USER, WEIGHTS};
pub use root::platform;

use crate::{BuildOptions, TargetOptions, build, fetch, paths};
use clap::Args;
use layer::Layer;
use layout::{Archive, Image};
use monomorph_compiler::spec::{self, types::HardwareKind, types::Target};
use monomorph_compiler::toolchain;
use serde_json::json;
use std::path::{Path, PathBuf};

/// What other engines' images take, for comparison: llama.cpp's with CUDA, and vLLM's.
const OTHERS: &str = "2.5 GB and 20 GB are usual for engines with CUDA";

#[derive(Args)]
pub struct Options {
    /// hardware/model/quant, once or more. Where there is one for each of amd64 and arm64, an index of both
    /// is written too.
    #[arg(long = "target", required = true, value_name = "TARGET")]
    targets: Vec<String>,
    /// Directory with hardware/ and models/; the project's own supplies what it lacks.
    #[arg(long, value_name = "DIR")]
    targets_dir: Option<PathBuf>,
    #[command(flatten)]
    build: BuildOptions,
    /// Take this server instead of building one: for a GB10's that was linked elsewhere.
    #[arg(long, value_name = "PATH")]
    server: Option<PathBuf>,
    /// Put the weights into the image, below the server, so that another server shares them.
    #[arg(long)]
    with_weights: bool,
    /// Directory for the archives, instead of dist/HW/MODEL/QUANT/.
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
}

pub fn image(options: Options) -> Result<(), String> {
    if options.server.is_some() && options.targets.len() > 1 {
        return Err("--server takes the place of one build: name one --target".to_owned());
    }
    let mut written: Vec<(Target, Image, PathBuf)> = Vec::new();
    for name in &options.targets {
        let of = TargetOptions { target: name.clone(), targets_dir: options.targets_dir.clone() };
        let (target, image) = one(&of, &options)?;
        let directory =
            options.out.clone().unwrap_or_else(|| paths::root().join("dist").join(target.build()));
        let path = match &options.out {
            None => directory.join("image.tar"),
            Some(_) => directory.join(format!("{}.tar", paths::slug(&target.build()))),
        };
        Archive::of(&image).write(&path)?;
        println!(
            "{}  {}  {}, {} of it layers; {OTHERS}",
            path.display(),
            image.name,
            megabytes(size(&path)?),
            megabytes(image.layers())
        );
        written.push((target, image, path));
    }
    if let [(first, one, path), (_, other, _)] = &written[..]
        && one.platform != other.platform
    {
        let name = format!("monomorph/{}:{}", first.model.name, first.quant.name);
        let index = path.with_file_name(format!("{}-{}-index.tar", first.model.name, first.quant.name));
        Archive::index(&name, &[one, other]).write(&index)?;
        println!("{}  {name}  {} and {}", index.display(), one.platform, other.platform);
    }
    Ok(())
}

fn one(of: &TargetOptions, options: &Options) -> Result<(Target, Image), String> {
    let (target, server) = shippable(of, options.build, options.server.as_deref())?;
    let root = root::root(&target, &server)?;
    let mut layers = Vec::new();
    if options.with_weights {
        layers.push(Layer::plain(&root::weights(&fetch::weights(of)?)?)?);
    }
    layers.push(Layer::compressed(&root)?);
    let image = Image {
        name: name(&target),
        platform: platform(&target.hardware),
        labels: labels(&target)?,
        environment: environment(&target),
        layers,
    };
    Ok((target, image))
}

/// Checks that other machines can run a target's server.
pub fn ships(target: &Target) -> Result<(), String> {
    if target.hardware.name != "cpu" {
        return Ok(());
    }
    Err(format!(
        "{} is compiled for this very machine's processor and would not run on others: name x86-64-v3, x86-64-v4 or aarch64",
        target.name()
    ))
}

/// A target that others can run, and its server: the one that is given, else it is built.
pub fn shippable(
    of: &TargetOptions,
    build: BuildOptions,
    server: Option<&Path>,
) -> Result<(Target, PathBuf), String> {
    let search = paths::search(of.targets_dir.as_deref());
    let target = spec::load_with(&search, &of.target, &build.asked()?).map_err(|it| it.to_string())?;
    ships(&target)?;
    let server = match server {
        Some(server) => server.to_owned(),
        None => build::server(of, build)?,
    };
    Ok((target, server))
}

/// The formats of a target's weights.
pub fn formats(target: &Target) -> Vec<&'static str> {
    let mut formats: Vec<_> =
        target.quant.formats(target.draft.is_some()).iter().map(|(_, stored, _)| stored.name()).collect();
    formats.sort_unstable();
    formats.dedup();
    formats
}

/// The image's name: its tag says hardware, quantisation and options.
pub fn name(target: &Target) -> String {
    let build = target.build();
    let mut parts = build.splitn(3, '/');
    let (hardware, model, quant) = (parts.next(), parts.next(), parts.next());
    let tag = format!("{}-{}", quant.unwrap_or_default(), hardware.unwrap_or_default());
    let allowed = |c: char| if c.is_ascii_alphanumeric() || "._-".contains(c) { c } else { '-' };
    format!("monomorph/{}:{}", model.unwrap_or_default(), tag.chars().map(allowed).collect::<String>())
}

/// What the image says of itself: OCI's names, and the project's for what those have no name for.
fn labels(target: &Target) -> Result<serde_json::Value, String> {
    let mut labels = json!({
        "org.opencontainers.image.title": target.build(),
        "org.opencontainers.image.version": env!("CARGO_PKG_VERSION"),
        "org.opencontainers.image.source": env!("CARGO_PKG_REPOSITORY"),
        "org.opencontainers.image.licenses": env!("CARGO_PKG_LICENSE"),
        "io.github.monomorph.target": target.name(),
    });
    let mut label = |name: &str, value: String| labels[format!("io.github.monomorph.{name}")] = value.into();
    label("formats", formats(target).join(" "));
    label("kv-format", target.quant.kv_formats.to_string());
    for file in &target.specs {
        label(&format!("spec.{}", file.name), format!("sha256:{}", file.sha256));
    }
    match &target.hardware.kind {
        HardwareKind::Cpu(cpu) => {
            label("cpu-features", toolchain::cpu_features(cpu).map_err(|it| it.to_string())?.join(" "));
        }
        HardwareKind::Cuda(cuda) => {
            label("architecture", cuda.architecture.clone());
            label("least-driver", monomorph_abi::cuda::LEAST_DRIVER.to_string());
            label("gpus", target.ranks.to_string());
        }
    }
    if let Some(commit) = toolchain::commit(&paths::root()) {
        labels["org.opencontainers.image.revision"] = commit.into();
    }
    Ok(labels)
}

/// Variables of the container. Those of a GPU's are read by the NVIDIA runtime, which brings the driver's
/// libraries; where a node mounts them as a directory instead, the loader is told where.
fn environment(target: &Target) -> Vec<String> {
    let mut variables = vec![format!("HOME={SCRATCH}")];
    if target.hardware.cuda().is_some() {
        variables.extend([
            "NVIDIA_VISIBLE_DEVICES=all".to_owned(),
            "NVIDIA_DRIVER_CAPABILITIES=compute,utility".to_owned(),
            format!("NVIDIA_REQUIRE_CUDA=cuda>={}", monomorph_abi::cuda::RELEASE),
            "LD_LIBRARY_PATH=/usr/local/nvidia/lib64".to_owned(),
        ]);
    }
    variables
}

fn size(path: &Path) -> Result<u64, String> {
    Ok(std::fs::metadata(path).map_err(|error| format!("{}: {error}", path.display()))?.len())
}

fn megabytes(bytes: u64) -> String {
    format!("{:.2} MB", bytes as f64 / 1e6)
}
