//! From an archive to a server that can be started.

use crate::index::Entry;
use crate::place::Place;
use monomorph_hub::Progress;
use std::fs::File;
use std::io::{self, Read};
use std::path::{Component, Path, PathBuf};

/// Where the server of an entry stands below a cache, once it is installed. Another archive, of the same name
/// too, has another place.
pub fn server(cache: &Path, entry: &Entry) -> PathBuf {
    let digest = &entry.archive.sha256;
    cache.join("servers").join(format!("{}-{}", entry.slug, &digest[..digest.len().min(16)])).join("server")
}

/// Installs the server of an entry, unless it is there, and returns its path. It is there all at once or not
/// at all.
///
/// # Errors
/// When the archive cannot be had, is another than the index says, or holds something else.
pub fn install(
    place: &Place,
    entry: &Entry,
    cache: &Path,
    progress: &mut dyn Progress,
) -> Result<PathBuf, String> {
    let server = server(cache, entry);
    if server.is_file() {
        return Ok(server);
    }
    let io = |path: &Path| {
        let path = path.display().to_string();
        move |error: io::Error| format!("{path}: {error}; another directory can be given with --cache-dir")
    };
    let (own, downloads) = (server.parent().expect("it is in a directory"), cache.join("downloads"));
    let servers = own.parent().expect("that is in the cache");
    for directory in [&downloads, servers] {
        std::fs::create_dir_all(directory).map_err(io(directory))?;
    }
    let file = place.archive(&entry.archive, &downloads, progress)?;
    let fresh = tempfile::tempdir_in(servers).map_err(io(servers))?;
    unpack(&file, entry.unpacked, fresh.path())
        .map_err(|error| format!("{} is no archive of a server: {error}", entry.archive.name))?;
    if !fresh.path().join("server").is_file() {
        return Err(format!("{} has no server in it", entry.archive.name));
    }
    // Another process may have been quicker.
    if let Err(error) = std::fs::rename(fresh.path(), own)
        && !server.is_file()
    {
        return Err(io(own)(error));
    }
    Ok(server)
}

/// Unpacks what stands in the one directory of an archive: files and directories of at most so many bytes.
fn unpack(file: &File, bytes: u64, to: &Path) -> io::Result<()> {
    let wrong = |what: String| io::Error::new(io::ErrorKind::InvalidData, what);
    let tar = zstd::stream::read::Decoder::new(file)?;
    // Beside the files stand their names and the end, by blocks of 512 bytes.
    let most = bytes.saturating_mul(2).saturating_add(1 << 20);
    let mut tar = tar::Archive::new(tar.take(most));
    let mut left = bytes;
    for entry in tar.entries()? {
        let mut entry = entry?;
        let path = entry.path()?.into_owned();
        let mut parts = path.components();
        let top = parts.next();
        let below = parts.as_path().to_owned();
        let plain = |it: Component| matches!(it, Component::Normal(_));
        let kind = entry.header().entry_type();
        let named = kind.is_dir() || below.components().next().is_some();
        if !top.is_some_and(plain) || !below.components().all(plain) || !named {
            return Err(wrong(format!("{} leads elsewhere", path.display())));
        }
        let to = to.join(below);
        if kind.is_dir() {
            std::fs::create_dir_all(to)?;
            continue;
        }
        if !kind.is_file() {
            return Err(wrong(format!("{} is neither a file nor a directory", path.display())));
        }
        left = left
            .checked_sub(entry.size())
            .ok_or_else(|| wrong(format!("it holds more than the {bytes} bytes that the index says")))?;
        entry.set_preserve_mtime(false);
        entry.unpack(to)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Seek, SeekFrom, Write};

    /// What unpacking an archive says that has this entry besides a server, and what is there afterwards.
    fn unpacked(path: &str, kind: tar::EntryType, bytes: u64) -> (Result<(), String>, Vec<String>) {
        let mut builder = tar::Builder::new(Vec::new());
        for (path, kind) in [("it/server", tar::EntryType::Regular), (path, kind)] {
            let mut header = tar::Header::new_gnu();
            // As an attacker writes it: the library would refuse some.
            header.as_old_mut().name[..path.len()].copy_from_slice(path.as_bytes());
            header.set_entry_type(kind);
            header.set_mode(0o755);
            header.set_size(3);
            header.set_cksum();
            builder.append(&header, &b"abc"[..]).expect("memory");
        }
        let tar = builder.into_inner().expect("memory");
        let mut file = tempfile::tempfile().expect("a file");
        file.write_all(&zstd::encode_all(&tar[..], 1).expect("memory")).expect("it is written");
        file.seek(SeekFrom::Start(0)).expect("a file");
        let below = tempfile::tempdir().expect("a directory");
        let to = below.path().join("to");
        std::fs::create_dir(&to).expect("a new directory");
        let result = unpack(&file, bytes, &to).map_err(|error| error.to_string());
        let names = |of: &Path| {
            let entries = std::fs::read_dir(of).expect("it is there");
            entries.map(|it| it.expect("an entry").file_name().display().to_string()).collect::<Vec<_>>()
        };
        let mut left = names(&to);
        left.extend(names(below.path()));
        left.sort();
        (result, left)
    }

    #[test]
    fn an_archive_writes_files_below_its_directory_and_nothing_else() {
        let there = |names: &[&str]| names.iter().map(|it| (*it).to_owned()).collect::<Vec<_>>();
        let (result, left) = unpacked("it/notes", tar::EntryType::Regular, 6);
        assert_eq!((result, left), (Ok(()), there(&["notes", "server", "to"])));
        for (path, kind, bytes, why) in [
            ("it/../../x", tar::EntryType::Regular, 6, "leads elsewhere"),
            ("/it/x", tar::EntryType::Regular, 6, "leads elsewhere"),
            ("x", tar::EntryType::Regular, 6, "leads elsewhere"),
            ("it/x", tar::EntryType::Symlink, 6, "neither a file nor a directory"),
            ("it/x", tar::EntryType::Regular, 5, "more than the 5 bytes"),
        ] {
            let (result, left) = unpacked(path, kind, bytes);
            let said = result.expect_err("it is refused");
            assert!(said.contains(why), "{path}: {said}");
            assert_eq!(left, there(&["server", "to"]), "{path}");
        }
    }
}
