//! A layer: files as a tar, of which two runs write the same bytes.

use flate2::{Compression, GzBuilder};
use sha2::{Digest, Sha256};
use std::collections::BTreeSet;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

/// A file of a layer.
#[derive(Clone, Debug, PartialEq)]
pub struct Entry {
    /// Its path, without a slash at the beginning.
    pub path: String,
    pub content: Content,
}

#[derive(Clone, Debug, PartialEq)]
pub enum Content {
    Directory,
    /// Everybody may write to it, as to /tmp.
    Scratch,
    Text(Vec<u8>),
    /// A copy of a file of this machine.
    File(PathBuf),
    /// The same, to be run.
    Program(PathBuf),
}

impl Entry {
    pub fn text(path: impl Into<String>, text: impl Into<Vec<u8>>) -> Entry {
        Entry { path: path.into(), content: Content::Text(text.into()) }
    }

    /// Bytes that it takes, unpacked.
    pub fn bytes(&self) -> io::Result<u64> {
        match &self.content {
            Content::Directory | Content::Scratch => Ok(0),
            Content::Text(text) => Ok(text.len() as u64),
            Content::File(from) | Content::Program(from) => Ok(std::fs::metadata(from)?.len()),
        }
    }
}

/// Adds the directories that entries stand in, as far as they are not among them.
pub fn with_directories(mut entries: Vec<Entry>) -> Vec<Entry> {
    let mut missing = BTreeSet::new();
    for entry in &entries {
        let above = Path::new(&entry.path).ancestors().skip(1).filter(|it| !it.as_os_str().is_empty());
        missing.extend(above.map(|it| it.display().to_string()));
    }
    for entry in &entries {
        missing.remove(&entry.path);
    }
    entries.extend(missing.into_iter().map(|path| Entry { path, content: Content::Directory }));
    entries
}

/// How much zstd is to try: what its command line takes as -19.
const ZSTD_LEVEL: i32 = 19;

/// A written layer. Its bytes are in an unnamed file, since weights do not fit memory.
pub struct Layer {
    pub media_type: &'static str,
    /// SHA-256 of its bytes, in hex.
    pub digest: String,
    /// SHA-256 of the tar.
    pub uncompressed: String,
    pub bytes: u64,
    file: std::fs::File,
}

impl Layer {
    /// With gzip, which every engine reads.
    pub fn compressed(entries: &[Entry]) -> Result<Layer, String> {
        Layer::of("application/vnd.oci.image.layer.v1.tar+gzip", |file| {
            let hashed = Hashed::new(file);
            let gzip = GzBuilder::new().mtime(0).write(hashed, Compression::best());
            let (gzip, uncompressed) = tar(entries, gzip)?;
            Ok((gzip.finish()?, uncompressed))
        })
    }

    /// With zstd, which is smaller, and which not every engine reads.
    pub fn zstd(entries: &[Entry]) -> Result<Layer, String> {
        Layer::of("application/vnd.oci.image.layer.v1.tar+zstd", |file| {
            let zstd = zstd::stream::write::Encoder::new(Hashed::new(file), ZSTD_LEVEL)?;
            let (zstd, uncompressed) = tar(entries, zstd)?;
            Ok((zstd.finish()?, uncompressed))
        })
    }

    /// As they are: weights do not compress.
    pub fn plain(entries: &[Entry]) -> Result<Layer, String> {
        Layer::of("application/vnd.oci.image.layer.v1.tar", |file| tar(entries, Hashed::new(file)))
    }

    fn of(
        media_type: &'static str,
        write: impl FnOnce(std::fs::File) -> io::Result<(Hashed<std::fs::File>, String)>,
    ) -> Result<Layer, String> {
        let failed = |error: io::Error| format!("writing a layer: {error}");
        let file = tempfile::tempfile().map_err(failed)?;
        let (Hashed { inner: mut file, hash, bytes }, uncompressed) = write(file).map_err(failed)?;
        file.flush().map_err(failed)?;
        Ok(Layer { media_type, digest: hex(hash), uncompressed, bytes, file })
    }

    /// Its bytes, from the first.
    pub fn read(&self) -> io::Result<impl Read + '_> {
        let mut file = &self.file;
        file.seek(SeekFrom::Start(0))?;
        Ok(io::BufReader::new(file))
    }
}

/// Writes a file all at once, which everybody may read.
pub fn save(path: &Path, mut content: impl Read) -> Result<(), String> {
    let failed = |error: io::Error| format!("{}: {error}", path.display());
    let directory = path.parent().expect("a file is in a directory");
    std::fs::create_dir_all(directory).map_err(failed)?;
    let readable = std::fs::Permissions::from_mode(0o644);
    let fresh = tempfile::Builder::new().permissions(readable).tempfile_in(directory);
    let mut fresh = fresh.map_err(failed)?;
    io::copy(&mut content, &mut fresh).map_err(failed)?;
    fresh.persist(path).map_err(|error| failed(error.error))?;
    Ok(())
}

/// Writes a tar of these entries in the order of their paths, all of root's and of the year 1970, and returns
/// its digest.
fn tar<W: Write>(entries: &[Entry], to: W) -> io::Result<(W, String)> {
    let mut entries: Vec<&Entry> = entries.iter().collect();
    entries.sort_by(|a, b| a.path.cmp(&b.path));
    let mut builder = tar::Builder::new(Hashed::new(to));
    for Entry { path, content } in entries {
        let mut header = tar::Header::new_gnu();
        header.set_mtime(0);
        let (kind, mode) = match content {
            Content::Directory => (tar::EntryType::Directory, 0o755),
            Content::Scratch => (tar::EntryType::Directory, 0o1777),
            Content::Program(_) => (tar::EntryType::Regular, 0o755),
            Content::Text(_) | Content::File(_) => (tar::EntryType::Regular, 0o644),
        };
        header.set_entry_type(kind);
        header.set_mode(mode);
        header.set_uid(0);
        header.set_gid(0);
        match content {
            Content::Directory | Content::Scratch => {
                header.set_size(0);
                builder.append_data(&mut header, format!("{path}/"), io::empty())?;
            }
            Content::Text(text) => {
                header.set_size(text.len() as u64);
                builder.append_data(&mut header, path, &text[..])?;
            }
            Content::File(from) | Content::Program(from) => {
                let named =
                    |error: io::Error| io::Error::new(error.kind(), format!("{}: {error}", from.display()));
                let file = std::fs::File::open(from).map_err(named)?;
                header.set_size(file.metadata()?.len());
                builder.append_data(&mut header, path, file)?;
            }
        }
    }
    let Hashed { inner, hash, .. } = builder.into_inner()?;
    Ok((inner, hex(hash)))
}

/// A writer that hashes and counts what goes through it.
struct Hashed<W> {
    inner: W,
    hash: Sha256,
    bytes: u64,
}

impl<W> Hashed<W> {
    fn new(inner: W) -> Self {
        Hashed { inner, hash: Sha256::new(), bytes: 0 }
    }
}

impl<W: Write> Write for Hashed<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.inner.write(bytes)?;
        self.hash.update(&bytes[..written]);
        self.bytes += written as u64;
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.inner.flush()
    }
}

pub fn hex(hash: Sha256) -> String {
    hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entries() -> Vec<Entry> {
        with_directories(vec![Entry::text("b/two", "2"), Entry::text("a", "1")])
    }

    #[test]
    fn a_layer_is_the_same_bytes_whatever_the_order_and_the_hour() {
        let mut turned = entries();
        turned.reverse();
        for write in [Layer::compressed, Layer::zstd] {
            let [first, second] = [&entries(), &turned].map(|it| write(it).expect("it is written"));
            assert_eq!(first.digest, second.digest);
        }
        let first = Layer::compressed(&turned).expect("it is written");
        let plain = Layer::plain(&entries()).expect("it is written");
        assert_eq!(plain.digest, plain.uncompressed);
        assert_eq!(plain.uncompressed, first.uncompressed);
        let mut tar = Vec::new();
        flate2::read::GzDecoder::new(first.read().expect("it is a file"))
            .read_to_end(&mut tar)
            .expect("gzip");
        assert_eq!(hex(Sha256::new_with_prefix(&tar)), first.uncompressed);
        let names = tar::Archive::new(&tar[..]);
        let mut names = names;
        let names: Vec<_> = names
            .entries()
            .expect("a tar")
            .map(|it| it.expect("an entry").path().expect("UTF-8").display().to_string())
            .collect();
        assert_eq!(names, ["a", "b/", "b/two"]);
    }
}
