//! The store's file: its place, its permissions, and the removal of files that earlier processes left.

use crate::error::OpenError;
use rustix::fs::{FallocateFlags, OFlags, fallocate, fstatvfs};
use rustix::io::Errno;
use rustix::process::geteuid;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
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
    claim(&file, directory, bytes)?;
    Ok(file)
}

/// A file that outlives its store.
pub(crate) struct Named<'a> {
    pub directory: &'a Path,
    pub path: &'a Path,
}

/// Opens a file that outlives its store, or makes it, and claims all of its room; what is behind that is cut
/// off.
pub(crate) fn open_named(named: &Named, bytes: u64, direct: bool) -> Result<File, OpenError> {
    let failed = |what| move |error| OpenError::Io { what, directory: named.directory.to_owned(), error };
    let file = open_private(named.path, if direct { OFlags::DIRECT } else { OFlags::empty() })?;
    if file.metadata().map_err(failed("looking at a file"))?.len() > bytes {
        file.set_len(bytes).map_err(failed("cutting a file"))?;
    }
    claim(&file, named.directory, bytes)?;
    Ok(file)
}

/// Opens a file that holds what people said, or makes it, for its owner alone.
///
/// # Errors
/// Also when what is there is no file, or others may read it or own it.
pub(crate) fn open_private(path: &Path, flags: OFlags) -> Result<File, OpenError> {
    let refused = |why: String| OpenError::Refused { path: path.to_owned(), why };
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600)
        .custom_flags((flags | OFlags::NOFOLLOW).bits().cast_signed())
        .open(path);
    let file = match file {
        // Direct I/O that the file system does not do, for the caller to try without.
        Err(error) if error.kind() == io::ErrorKind::InvalidInput => {
            let directory = path.parent().unwrap_or(path).to_owned();
            return Err(OpenError::Io { what: "opening a file", directory, error });
        }
        file => file.map_err(|error| refused(format!("cannot be opened: {error}")))?,
    };
    let metadata = file.metadata().map_err(|error| refused(format!("cannot be looked at: {error}")))?;
    let (mode, owner) = (metadata.mode() & 0o777, metadata.uid());
    if !metadata.is_file() {
        return Err(refused("is no regular file".to_owned()));
    }
    if mode & 0o077 != 0 || owner != geteuid().as_raw() {
        let why = format!("has mode {mode:04o} and owner {owner}; it must be 0600 and this user's");
        return Err(refused(why));
    }
    Ok(file)
}

/// Claims room for all bytes of a file, those that it has included.
fn claim(file: &File, directory: &Path, bytes: u64) -> Result<(), OpenError> {
    let failed = |what| move |error| OpenError::Io { what, directory: directory.to_owned(), error };
    let has = file.metadata().map_or(0, |metadata| metadata.blocks() * 512);
    let available = fstatvfs(file).map_or(u64::MAX, |disk| disk.f_bavail.saturating_mul(disk.f_frsize));
    let available = available.saturating_add(has);
    let short = || OpenError::Space { directory: directory.to_owned(), needed: bytes, available };
    if bytes > available {
        return Err(short());
    }
    match fallocate(file, FallocateFlags::empty(), 0, bytes) {
        Ok(()) => {}
        Err(Errno::NOSPC | Errno::DQUOT | Errno::FBIG) => return Err(short()),
        // Some file systems cannot allocate ahead: there a write may find the disk full.
        Err(Errno::OPNOTSUPP | Errno::NOSYS) => file.set_len(bytes).map_err(failed("sizing a file"))?,
        Err(error) => return Err(failed("claiming room for a file")(error.into())),
    }
    Ok(())
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
