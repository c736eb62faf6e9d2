//! The store's file: its place, its permissions, and the removal of files that earlier processes left.

use crate::error::OpenError;
use rustix::fs::{FallocateFlags, OFlags, fallocate, fstatvfs};
use rustix::io::Errno;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

/// How the names of all files of stores begin and end, for the moment that they have names.
const PREFIX: &str = "monomorph-";
const SUFFIX: &str = ".pages";

/// Stores that this process opened.
static OPENED: AtomicU64 = AtomicU64::new(0);

/// Makes a file of `bytes` in `directory`, without a name, all of its room claimed; past the system's cache
/// where `direct`.
///
/// What has a name like ours is left from a process that ended between making its file and taking the name
/// away, or belongs to one that is about to take it away and needs it no more: it is removed.
pub(crate) fn create(directory: &Path, bytes: u64, direct: bool) -> Result<File, OpenError> {
    let failed = |what| move |error| OpenError::Io { what, directory: directory.to_owned(), error };
    remove_stale(directory).map_err(failed("removing the files of earlier processes"))?;
    let number = OPENED.fetch_add(1, Ordering::Relaxed);
    let path: PathBuf = directory.join(format!("{PREFIX}{}-{number}{SUFFIX}", std::process::id()));
    let flags = if direct { OFlags::DIRECT.bits() } else { 0 };
    // It holds what people said: only the owner may read it.
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .create_new(true)
        .mode(0o600)
        .custom_flags(flags.cast_signed())
        .open(&path);
    let removed = std::fs::remove_file(&path);
    let file = file.map_err(failed("making a file"))?;
    match removed {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            return Err(failed("unlinking a file")(error));
        }
        _ => {}
    }
    let available = fstatvfs(&file).map_or(u64::MAX, |disk| disk.f_bavail.saturating_mul(disk.f_frsize));
    let short = || OpenError::Space { directory: directory.to_owned(), needed: bytes, available };
    if bytes > available {
        return Err(short());
    }
    match fallocate(&file, FallocateFlags::empty(), 0, bytes) {
        Ok(()) => {}
        Err(Errno::NOSPC | Errno::DQUOT | Errno::FBIG) => return Err(short()),
        // Some file systems cannot allocate ahead: there a write may find the disk full.
        Err(Errno::OPNOTSUPP | Errno::NOSYS) => file.set_len(bytes).map_err(failed("sizing a file"))?,
        Err(error) => return Err(failed("claiming room for a file")(error.into())),
    }
    Ok(file)
}

/// Removes what earlier processes left in a directory.
fn remove_stale(directory: &Path) -> io::Result<()> {
    for entry in std::fs::read_dir(directory)? {
        let entry = entry?;
        let name = entry.file_name();
        let ours = name.to_str().is_some_and(is_ours);
        if !ours || !entry.file_type()?.is_file() {
            continue;
        }
        match std::fs::remove_file(entry.path()) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
    }
    Ok(())
}

/// Whether a file of this name is a store's: `monomorph-PID-NUMBER.pages`.
fn is_ours(name: &str) -> bool {
    let numbers = name.strip_prefix(PREFIX).and_then(|rest| rest.strip_suffix(SUFFIX));
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    numbers
        .and_then(|numbers| numbers.split_once('-'))
        .is_some_and(|(pid, number)| is_number(pid) && is_number(number))
}

#[cfg(test)]
mod tests {
    use super::is_ours;

    #[test]
    fn only_names_of_stores_are_ours() {
        assert!(is_ours("monomorph-12-0.pages"));
        for other in [
            "monomorph-12.pages",
            "monomorph-a-0.pages",
            "monomorph-1-2.page",
            "x-monomorph-1-2.pages",
            "monomorph--.pages",
        ] {
            assert!(!is_ours(other), "{other}");
        }
    }
}
