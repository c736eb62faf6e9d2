//! What can be built today, and what was measured of it.
//!
//! Whether a target can be built is found out by planning it, and what was measured stands in `measured.toml`
//! of the targets directory, which whoever measures writes. Neither is guessed from a name.

use crate::spec::{Catalogue, catalogue};
use crate::{graph, passes, spec};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

/// The file beside `hardware/` and `models/` that says what was measured.
pub const MEASURED: &str = "measured.toml";

/// A target, and where it stands.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Listed {
    /// `hardware/model/quant`.
    pub target: String,
    /// Where it stands.
    #[serde(flatten)]
    pub standing: Standing,
}

/// Where a target stands.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(tag = "status", rename_all = "kebab-case")]
pub enum Standing {
    /// It can be built, and its speed was measured.
    Measured {
        /// The newest measurement of it.
        measured: Measurement,
    },
    /// It can be built, and its kernels are inspected as they are compiled. Nobody has measured it.
    Compiled,
    /// It cannot be planned.
    Waiting {
        /// What kind of thing is missing.
        waits_for: Lack,
        /// What is missing, in a sentence that names it.
        reason: String,
    },
}

/// What a target that cannot be planned waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Lack {
    /// A block, shape or format that the hardware's backend has no kernel for.
    Kernels,
    /// Hardware with more memory.
    Memory,
    /// Specs without mistakes.
    Specs,
}

/// One line of what was measured: tokens a second of one sequence.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Measurement {
    /// Tokens a second, one sequence alone, greedy, without drafts.
    pub decode: f64,
    /// Tokens that stood before those that were timed.
    pub after: u32,
    /// Whether the weights were the released ones or made up. What they are changes no speed but that of what
    /// they decide: experts chosen, drafts accepted.
    pub weights: Weights,
    /// Day of the run.
    pub date: String,
    /// The commit that was built.
    pub commit: String,
    /// What it ran on.
    pub machine: String,
}

/// Whose weights were in the server that was measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Weights {
    /// The checkpoint that the quant spec names.
    Released,
    /// Random numbers (`--weights dummy`).
    MadeUp,
}

impl Weights {
    /// In words.
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

/// What `measured.toml` of this targets directory says, by target; nothing where there is none.
///
/// # Errors
/// When it cannot be read or says something else, with its path and line.
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

/// Every target of these directories and where it stands, in the catalogue's order. What an earlier directory
/// puts in the place of hardware or a model was not measured by a later one.
///
/// # Errors
/// When a directory or a `measured.toml` cannot be read, or names a target that there is not.
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

/// Why a target cannot be planned; `None` where it can.
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

/// What all directories say that still holds: of hardware and models that come from the same directory or a
/// later one.
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

/// What `of` makes of each item, in order, on as many threads as there are processors.
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
