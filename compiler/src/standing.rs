//! The status of each target: whether it can be built, and its measured speed.
//!
//! Planning a target shows whether it can be built. Measurements are in `measured.toml` of the targets
//! directory. Neither is guessed from a name.

use crate::spec::{Catalogue, catalogue};
use crate::{graph, passes, spec};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

/// File of measurements, beside `hardware/` and `models/`.
pub const MEASURED: &str = "measured.toml";

/// A target and its status.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Listed {
    /// Name of the target, `hardware/model/quant`.
    pub target: String,
    /// Status of the target.
    #[serde(flatten)]
    pub standing: Standing,
}

/// Status of a target.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(tag = "status", rename_all = "kebab-case")]
pub enum Standing {
    /// It can be built, and its speed was measured.
    Measured {
        /// Its newest measurement.
        measured: Measurement,
    },
    /// It can be built, and its kernels are inspected when they are compiled, but it has not been measured.
    Compiled,
    /// It cannot be planned.
    Waiting {
        /// The kind of thing that is missing.
        waits_for: Lack,
        /// The missing thing, named in a sentence.
        reason: String,
    },
}

impl Standing {
    /// Whether it cannot be planned.
    pub fn is_waiting(&self) -> bool {
        matches!(self, Standing::Waiting { .. })
    }
}

/// The lack that keeps a target from being planned.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Lack {
    /// A block, shape or format without a kernel in the hardware's backend.
    Kernels,
    /// Hardware with more memory.
    Memory,
    /// Specs without mistakes.
    Specs,
}

/// One measurement: tokens per second of one sequence.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Measurement {
    /// Tokens per second of one sequence alone, greedy, without drafts.
    pub decode: f64,
    /// Tokens before those that were timed.
    pub after: u32,
    /// Whether the weights were the released ones or made up. Weights affect speed only through what they
    /// decide: experts chosen, drafts accepted.
    pub weights: Weights,
    /// Day of the run.
    pub date: String,
    /// The commit that was built.
    pub commit: String,
    /// The machine it ran on.
    pub machine: String,
}

/// Origin of the weights in a measured server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Weights {
    /// The checkpoint that the quant spec names.
    Released,
    /// Random numbers (`--weights dummy`).
    MadeUp,
}

impl Weights {
    /// Description for people.
    pub fn words(self) -> &'static str {
        match self {
            Weights::Released => "released weights",
            Weights::MadeUp => "made-up weights",
        }
    }
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    #[serde(default)]
    measured: BTreeMap<String, Measurement>,
}

/// Measurements in `measured.toml` of this targets directory, by target; empty without such a file.
///
/// # Errors
/// When the file cannot be read or parsed, with its path and line.
pub fn measured(targets_dir: &Path) -> Result<BTreeMap<String, Measurement>, String> {
    let path = targets_dir.join(MEASURED);
    let text = match std::fs::read_to_string(&path) {
        Ok(text) => text,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(BTreeMap::new()),
        Err(error) => return Err(format!("{}: {error}", path.display())),
    };
    let file: File = toml::from_str(&text).map_err(|error| format!("{}: {error}", path.display()))?;
    Ok(file.measured)
}

/// Every target of these directories with its status, in the catalogue's order. If an earlier directory
/// replaces hardware or a model, measurements of later directories do not apply to it.
///
/// # Errors
/// When a directory or a `measured.toml` cannot be read, or a `measured.toml` names an unknown target.
pub fn list(search: &[PathBuf]) -> Result<Vec<Listed>, String> {
    let catalogue = catalogue(search).map_err(|error| error.to_string())?;
    let names = catalogue.targets();
    let measured = all_measured(search, &catalogue)?;
    let standings = in_parallel(&names, |name| match missing(search, name) {
        Some((waits_for, reason)) => Standing::Waiting { waits_for, reason },
        None => match measured.get(name) {
            Some(measured) => Standing::Measured { measured: measured.clone() },
            None => Standing::Compiled,
        },
    });
    Ok(names.into_iter().zip(standings).map(|(target, standing)| Listed { target, standing }).collect())
}

/// Why a target cannot be planned; `None` if it can.
fn missing(search: &[PathBuf], name: &str) -> Option<(Lack, String)> {
    let target = match spec::load(search, name) {
        Ok(target) => target,
        Err(diagnostics) => {
            let list = diagnostics.list();
            if list.iter().all(|it| it.too_large) {
                return Some((Lack::Memory, join(list.iter().map(|it| it.message.clone()))));
            }
            let place = |it: &spec::Diagnostic| match it.line {
                Some(line) => format!("{}:{line}: {}", it.file.display(), it.message),
                None => it.message.clone(),
            };
            return Some((Lack::Specs, join(list.iter().map(place))));
        }
    };
    let graph = graph::build(&target.model, &target.quant);
    passes::assemble::plan(&target, &graph).err().map(|error| (Lack::Kernels, error.to_string()))
}

fn join(messages: impl Iterator<Item = String>) -> String {
    messages.collect::<Vec<_>>().join("; ")
}

/// The measurements of all directories that still apply: those of hardware and models that come from the same
/// directory or a later one.
fn all_measured(search: &[PathBuf], catalogue: &Catalogue) -> Result<BTreeMap<String, Measurement>, String> {
    let rank = |dir: &Path| search.iter().position(|it| it == dir);
    let mut all = BTreeMap::new();
    for (at, dir) in search.iter().enumerate() {
        for (name, measurement) in measured(dir)? {
            let mut parts = name.splitn(3, '/');
            let (hardware, model, quant) = (parts.next(), parts.next(), parts.next());
            let hardware = catalogue.hardware.iter().find(|it| Some(it.name.as_str()) == hardware);
            let model = catalogue.models.iter().find(|it| Some(it.name.as_str()) == model);
            let (Some(hardware), Some(model)) = (hardware, model) else {
                return Err(unknown(dir, &name));
            };
            let theirs = [&hardware.targets_dir, &model.targets_dir].iter().all(|dir| rank(dir) >= Some(at));
            if !theirs {
                continue;
            }
            if !model.quants.iter().any(|it| Some(it.as_str()) == quant) {
                return Err(unknown(dir, &name));
            }
            all.entry(name).or_insert(measurement);
        }
    }
    Ok(all)
}

fn unknown(dir: &Path, name: &str) -> String {
    format!("{}: {name:?} is measured, and there is no such target", dir.join(MEASURED).display())
}

/// Applies `of` to each item on as many threads as there are processors; results are in order.
fn in_parallel<T: Sync, R: Send>(items: &[T], of: impl Fn(&T) -> R + Sync) -> Vec<R> {
    let threads = std::thread::available_parallelism().map_or(1, usize::from).min(items.len().max(1));
    let (next, done) = (AtomicUsize::new(0), Mutex::new(Vec::with_capacity(items.len())));
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                while let Some((at, item)) = {
                    let at = next.fetch_add(1, Ordering::Relaxed);
                    items.get(at).map(|item| (at, item))
                } {
                    let result = of(item);
                    done.lock().unwrap_or_else(PoisonError::into_inner).push((at, result));
                }
            });
        }
    });
    let mut done = done.into_inner().unwrap_or_else(PoisonError::into_inner);
    done.sort_by_key(|(at, _)| *at);
    done.into_iter().map(|(_, result)| result).collect()
}
