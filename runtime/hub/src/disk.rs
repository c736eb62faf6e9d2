//! What the disk has and takes.

use crate::Error;
use sha1::Sha1;
use sha2::{Digest, Sha256};
use std::io::Read;
use std::path::Path;

/// Bytes that are free where this path is, or will be.
pub fn free(path: &Path) -> Option<u64> {
    let path = std::path::absolute(path).ok()?;
    let there = path.ancestors().find(|it| it.exists())?;
    rustix::fs::statvfs(there).ok().map(|it| it.f_bavail.saturating_mul(it.f_frsize))
}

/// Size of a file; none if there is none.
pub fn size(path: &Path) -> Option<u64> {
    std::fs::metadata(path).ok().filter(std::fs::Metadata::is_file).map(|it| it.len())
}

/// The digests of a file.
pub struct Digests {
    /// SHA-256, by which large files are called.
    pub sha256: String,
    /// SHA-1 of a git blob, by which small ones are.
    pub git: String,
}

/// Reads a whole file. The second digest takes as long as the first and is left out unless wanted.
pub fn digests(path: &Path, git: bool) -> Result<Digests, Error> {
    let io = Error::disk(path);
    let mut file = std::fs::File::open(path).map_err(&io)?;
    let length = file.metadata().map_err(&io)?.len();
    let (mut sha256, mut sha1) = (Sha256::new(), Sha1::new());
    sha1.update(format!("blob {length}\0"));
    let mut chunk = vec![0; 1 << 20];
    loop {
        let read = file.read(&mut chunk).map_err(&io)?;
        if read == 0 {
            break;
        }
        sha256.update(&chunk[..read]);
        if git {
            sha1.update(&chunk[..read]);
        }
    }
    Ok(Digests { sha256: hex(&sha256.finalize()), git: hex(&sha1.finalize()) })
}

/// Bytes in hexadecimal digits.
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digests_are_those_of_sha256sum_and_git() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        std::fs::write(&path, "abc").unwrap();
        let found = digests(&path, true).unwrap();
        assert_eq!(found.sha256, "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
        assert_eq!(found.git, "f2ba8f84ab5c1bce84a7b441cb1959cfc7093b7f");
        assert_eq!(size(&path), Some(3));
        assert_eq!(size(folder.path()), None);
        assert!(free(&folder.path().join("not/yet/there")).is_some());
        assert!(free(Path::new("not/yet/there")).is_some(), "below the working directory");
    }
}
