//! A file at an address of its own, of which size and digest are known: no repository's.

use crate::ask::Asker;
use crate::blob::Wanted;
use crate::place::Place;
use crate::{Error, Hub, Limits, Progress, disk, names};
use std::path::{Path, PathBuf};

/// A file, and where it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Known<'a> {
    /// What people call it.
    pub name: &'a str,
    /// Its address.
    pub url: &'a str,
    /// Its size, if known.
    pub bytes: Option<u64>,
    /// Its SHA-256, in lower-case hexadecimal digits.
    pub sha256: &'a str,
}

impl Known<'_> {
    /// Fetches it into a directory, unless it is there, and returns its path, which its digest names. What
    /// was begun is gone on with.
    ///
    /// # Errors
    /// When it cannot be had, is another, or the disk does not take it; what was begun is gone on with by the
    /// next call.
    pub fn fetch(&self, directory: &Path, progress: &mut dyn Progress) -> Result<PathBuf, Error> {
        names::digest("digest", self.sha256)?;
        let hub = Hub {
            endpoint: self.url.to_owned(),
            cache: directory.to_owned(),
            token: None,
            offline: false,
            limits: Limits::default(),
        };
        let (asker, place) = (Asker::new(&hub, "file", "known")?, Place::of_files(directory));
        let wanted = Wanted {
            name: self.name.to_owned(),
            url: self.url.to_owned(),
            etag: self.sha256.to_owned(),
            bytes: self.bytes,
            sha256: None,
        };
        let needed = if wanted.present(&place) { 0 } else { wanted.missing(&place) };
        if let Some(free) = disk::free(directory).filter(|free| *free < needed) {
            return Err(Error::Room { directory: directory.to_owned(), needed, free });
        }
        wanted.fetch(&asker, &place, progress)?;
        Ok(place.blob(self.sha256))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{BufRead, BufReader, Write};
    use std::net::TcpListener;

    const CONTENT: &[u8] = b"0123456789";
    const DIGEST: &str = "84d89877f0d4041efb6bf91a16f0248f2fd573e6af05c19f96bedb9f882f7882";

    /// Serves the content as often as it is asked; the first answer breaks off after four bytes.
    fn serve() -> String {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = format!("http://{}/file", listener.local_addr().unwrap());
        std::thread::spawn(move || {
            for (at, stream) in listener.incoming().enumerate() {
                let mut stream = stream.unwrap();
                let lines = BufReader::new(stream.try_clone().unwrap()).lines();
                let head: Vec<String> = lines.map_while(Result::ok).take_while(|it| !it.is_empty()).collect();
                let range = head
                    .iter()
                    .find_map(|it| it.to_lowercase().strip_prefix("range: bytes=").map(str::to_owned));
                let from: usize = range.map_or(0, |it| it.trim_end_matches('-').parse().unwrap());
                let status = if from > 0 { "206 Partial Content" } else { "200 OK" };
                let (rest, last) = (&CONTENT[from..], CONTENT.len() - 1);
                let head = format!(
                    "HTTP/1.1 {status}\r\ncontent-length: {}\r\ncontent-range: bytes {from}-{last}/10\r\n\
                     connection: close\r\n\r\n",
                    rest.len()
                );
                stream.write_all(head.as_bytes()).unwrap();
                let until = if at == 0 { 4 } else { rest.len() };
                stream.write_all(&rest[..until]).unwrap();
            }
        });
        address
    }

    #[test]
    fn a_file_that_broke_off_is_gone_on_with_and_another_is_not_kept() {
        let (folder, url) = (tempfile::tempdir().unwrap(), serve());
        let known = Known { name: "file", url: &url, bytes: Some(10), sha256: DIGEST };
        let path = known.fetch(folder.path(), &mut ()).unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), CONTENT);
        let nowhere = Known { url: "http://127.0.0.1:9/file", ..known };
        assert_eq!(nowhere.fetch(folder.path(), &mut ()), Ok(path), "it is there");
        let zeros = "0".repeat(64);
        let other = Known { sha256: &zeros, ..known };
        let why = other.fetch(folder.path(), &mut ()).unwrap_err().to_string();
        assert!(why.contains(DIGEST) && why.contains(&zeros), "{why}");
        assert_eq!(std::fs::read_dir(folder.path().join("blobs")).unwrap().count(), 1);
        let leading = Known { sha256: "../../x", ..known };
        assert!(leading.fetch(folder.path(), &mut ()).is_err());
    }
}
