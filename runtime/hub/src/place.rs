//! Where a repository's files are in the cache: blobs, named by their etags, and links to them.

use crate::{Error, Hub, Progress};
use std::fs::{File, TryLockError, create_dir_all};
use std::path::{Path, PathBuf};

/// A repository's directories in the cache.
pub struct Place {
    root: PathBuf,
    locks: PathBuf,
}

/// A blob that this process alone writes, until this is dropped.
pub struct Claim {
    /// Where to write it.
    pub partial: PathBuf,
    _lock: Option<File>,
}

impl Place {
    pub fn of(hub: &Hub, id: &str) -> Place {
        let name = format!("models--{}", id.replace('/', "--"));
        Place { root: hub.cache.join(&name), locks: hub.cache.join(".locks").join(name) }
    }

    /// Of files that belong to no repository.
    pub fn of_files(directory: &Path) -> Place {
        Place { root: directory.to_owned(), locks: directory.join(".locks") }
    }

    pub fn root(&self) -> &Path {
        &self.root
    }

    pub fn blob(&self, etag: &str) -> PathBuf {
        self.root.join("blobs").join(etag)
    }

    /// Where a blob grows. It is named by its etag, so another content begins anew.
    pub fn partial(&self, etag: &str) -> PathBuf {
        self.blob(&format!("{etag}.incomplete"))
    }

    pub fn snapshot(&self, commit: &str) -> PathBuf {
        self.root.join("snapshots").join(commit)
    }

    /// The commit of a revision when it was fetched last; a revision never fetched may be a commit itself.
    pub fn commit(&self, revision: &str) -> String {
        let found = std::fs::read_to_string(self.root.join("refs").join(revision));
        found.map_or_else(|_| revision.to_owned(), |commit| commit.trim().to_owned())
    }

    /// Waits until no other process fetches the same blob. The lock is the one of the hub's own client.
    pub fn claim(&self, etag: &str, progress: &mut dyn Progress) -> Result<Claim, Error> {
        let blobs = self.root.join("blobs");
        create_dir_all(&blobs).map_err(Error::disk(&blobs))?;
        create_dir_all(&self.locks).map_err(Error::disk(&self.locks))?;
        let path = self.locks.join(format!("{etag}.lock"));
        let lock = File::options().create(true).truncate(false).write(true).open(&path);
        let lock = lock.map_err(Error::disk(&path))?;
        let locked = match lock.try_lock() {
            Err(TryLockError::WouldBlock) => {
                progress.note(&format!("another process fetches {etag}: waiting for it"));
                lock.lock()
            }
            Err(TryLockError::Error(error)) => Err(error),
            Ok(()) => Ok(()),
        };
        match locked {
            Ok(()) => Ok(Claim { partial: self.partial(etag), _lock: Some(lock) }),
            // Some network file systems have no locks: then a file of its own, which nobody resumes.
            Err(error) if error.kind() == std::io::ErrorKind::Unsupported => {
                let own = format!("{etag}.{}", std::process::id());
                Ok(Claim { partial: self.partial(&own), _lock: None })
            }
            Err(error) => Err(Error::disk(&path)(error)),
        }
    }

    /// Links a whole blob into the snapshot of a commit. As the hub's own client links: relatively, so the
    /// cache may be moved, or be mounted elsewhere.
    pub fn link(&self, commit: &str, path: &str, etag: &str) -> Result<(), Error> {
        let target = format!("{}blobs/{etag}", "../".repeat(2 + path.matches('/').count()));
        let link = self.snapshot(commit).join(path);
        let directory = link.parent().unwrap_or(&self.root);
        create_dir_all(directory).map_err(Error::disk(directory))?;
        // Created beside it and renamed, so that an older link is there until the new one is.
        let fresh = tempfile::Builder::new().make_in(directory, |it| std::os::unix::fs::symlink(&target, it));
        let fresh = fresh.map_err(Error::disk(&link))?;
        fresh.into_temp_path().persist(&link).map_err(|error| Error::disk(&link)(error.error))
    }

    /// Writes down which commit a revision is.
    pub fn refer(&self, revision: &str, commit: &str) -> Result<(), Error> {
        if revision == commit {
            return Ok(());
        }
        let path = self.root.join("refs").join(revision);
        let io = Error::disk(&path);
        let directory = path.parent().unwrap_or(&self.root);
        create_dir_all(directory).map_err(&io)?;
        let fresh =
            tempfile::Builder::new().make_in(directory, |it| std::fs::write(it, commit)).map_err(&io)?;
        fresh.into_temp_path().persist(&path).map_err(|error| io(error.error))
    }
}
