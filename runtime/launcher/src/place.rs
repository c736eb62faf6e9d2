//! Where a release is: a directory, or an address.

use crate::index::{self, Archive, Index};
use monomorph_hub::{Known, Progress, hex};
use sha2::{Digest, Sha256};
use std::fmt;
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Bytes of an index at most.
const LARGEST_INDEX: u64 = 16 << 20;

/// Longest time for a small answer, from the first byte to the last.
const PATIENCE: Duration = Duration::from_secs(60);

/// Where a release is: its index and what stands beside it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    /// A directory, and the name of the index in it.
    Directory(PathBuf, String),
    /// What stands before the names of its files, with the slash, and the name of the index.
    Address(String, String),
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Place::Directory(directory, _) => write!(f, "{}", directory.display()),
            Place::Address(base, _) => f.write_str(base.trim_end_matches('/')),
        }
    }
}

impl Place {
    /// The place that a user names: an index, or a directory or an address with an `index.json`.
    pub fn named(name: &str) -> Place {
        let is_index = name.ends_with(".json");
        if name.starts_with("http://") || name.starts_with("https://") {
            let (base, file) = match name.rsplit_once('/') {
                Some((base, file)) if is_index => (base, file),
                _ => (name.trim_end_matches('/'), index::FILE),
            };
            return Place::Address(format!("{base}/"), file.to_owned());
        }
        let path = Path::new(name.strip_prefix("file://").unwrap_or(name));
        match (is_index, path.parent(), path.file_name()) {
            (true, Some(parent), Some(file)) => {
                Place::Directory(parent.to_owned(), file.to_string_lossy().into_owned())
            }
            _ => Place::Directory(path.to_owned(), index::FILE.to_owned()),
        }
    }

    /// Reads its index.
    ///
    /// # Errors
    /// When there is none or it is wrong; names it.
    pub fn index(&self) -> Result<Index, String> {
        let (name, said) = match self {
            Place::Directory(directory, file) => {
                let path = directory.join(file);
                let mut bytes = Vec::new();
                let read = File::open(&path).and_then(|it| it.take(LARGEST_INDEX).read_to_end(&mut bytes));
                (path.display().to_string(), read.map(|_| bytes).map_err(|error| error.to_string()))
            }
            Place::Address(base, file) => {
                let url = format!("{base}{file}");
                let said = text(&url, None, LARGEST_INDEX);
                (url, said)
            }
        };
        let said = said.map_err(|error| {
            format!("there is no index of a release at {name}: {error}; name another with --index PATH|URL")
        })?;
        Index::read(&said, &name)
    }

    /// Opens an archive that is whole and right. That of an address is fetched below `directory`, where what
    /// an earlier attempt left is gone on with.
    ///
    /// # Errors
    /// When it cannot be had or is another than the index says.
    pub fn archive(
        &self,
        archive: &Archive,
        directory: &Path,
        progress: &mut dyn Progress,
    ) -> Result<File, String> {
        let Archive { name, bytes, sha256 } = archive;
        let path = match self {
            Place::Directory(own, _) => own.join(name),
            Place::Address(base, _) => {
                let url = format!("{base}{name}");
                let known = Known { name, url: &url, bytes: Some(*bytes), sha256 };
                known.fetch(directory, progress).map_err(|error| error.to_string())?
            }
        };
        let io = |error: io::Error| format!("{}: {error}", path.display());
        let mut file = File::open(&path).map_err(io)?;
        let (found, digest) = digest(&mut file).map_err(io)?;
        if (found, &digest) != (*bytes, sha256) {
            return Err(format!(
                "{} has {found} bytes and SHA-256 {digest}, and the index says {bytes} and {sha256}: it is damaged, or of another release",
                path.display()
            ));
        }
        if let Place::Address(..) = self {
            // What is open stays readable, and nobody needs it afterwards.
            std::fs::remove_file(&path).map_err(io)?;
        }
        file.seek(SeekFrom::Start(0)).map_err(io)?;
        Ok(file)
    }
}

/// A small answer, of at most so many bytes.
///
/// # Errors
/// Says why there is none.
pub fn text(url: &str, accept: Option<&str>, most: u64) -> Result<Vec<u8>, String> {
    let agent =
        ureq::Agent::new_with_config(ureq::config::Config::builder().timeout_global(Some(PATIENCE)).build());
    let mut request = agent.get(url);
    if let Some(accept) = accept {
        request = request.header("accept", accept);
    }
    let answer = request.call().map_err(|error| error.to_string());
    answer?.body_mut().with_config().limit(most).read_to_vec().map_err(|error| error.to_string())
}

/// Size and digest of a whole file.
fn digest(file: &mut File) -> io::Result<(u64, String)> {
    let (mut hash, mut chunk, mut bytes) = (Sha256::new(), vec![0; 1 << 16], 0);
    loop {
        let count = file.read(&mut chunk)?;
        if count == 0 {
            return Ok((bytes, hex(&hash.finalize())));
        }
        hash.update(&chunk[..count]);
        bytes += count as u64;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_is_an_index_or_what_it_stands_in() {
        let directory = |path: &str, file: &str| Place::Directory(path.into(), file.to_owned());
        let address = |base: &str, file: &str| Place::Address(base.to_owned(), file.to_owned());
        for (name, place) in [
            ("dist/release", directory("dist/release", "index.json")),
            ("dist/release/", directory("dist/release/", "index.json")),
            ("dist/other.json", directory("dist", "other.json")),
            ("file:///a/b", directory("/a/b", "index.json")),
            ("https://a/b", address("https://a/b/", "index.json")),
            ("http://a/b/", address("http://a/b/", "index.json")),
            ("http://a/b/x.json", address("http://a/b/", "x.json")),
        ] {
            assert_eq!(Place::named(name), place, "{name}");
        }
    }
}
