//! What a repository has, before any of it is fetched.

use crate::address::{encoded, same_host};
use crate::ask::{Asker, Fault, Follow};
use crate::names::{digest, file, is_hex};
use crate::{Error, Hub, Progress};
use serde::Deserialize;
use std::io::Read;
use ureq::http::Method;

/// Most pages of a list of files; a page has a thousand.
const PAGES: usize = 100;

/// The files of a commit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tree {
    /// The commit, by which the same files are found again.
    pub commit: String,
    /// Its files, in the hub's order.
    pub files: Vec<Entry>,
}

/// A file of a commit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Path in the repository.
    pub path: String,
    /// Its size in bytes.
    pub size: u64,
    /// Hex digest of a large file; the hub knows no SHA-256 of small ones.
    pub sha256: Option<String>,
}

#[derive(Deserialize)]
struct Revision {
    sha: String,
}

#[derive(Deserialize)]
struct Listed {
    #[serde(rename = "type")]
    kind: String,
    path: String,
    #[serde(default)]
    size: u64,
    lfs: Option<Lfs>,
}

#[derive(Deserialize)]
struct Lfs {
    oid: String,
    size: u64,
}

impl Hub {
    /// The commit of a revision and its files. The hub is always asked.
    ///
    /// # Errors
    /// When there is no such repository or revision, when it may not be read, or when the answer is none that
    /// a hub gives or has names that leave a directory.
    pub fn tree(&self, id: &str, revision: &str, progress: &mut dyn Progress) -> Result<Tree, Error> {
        let asker = Asker::new(self, id, revision)?;
        let api = format!("{}/api/models/{id}", self.endpoint);
        let url = format!("{api}/revision/{}", encoded(revision, false));
        let (Revision { sha: commit }, _) = asker.json(&url, progress)?;
        digest("commit", &commit).map_err(|_| {
            Error::answer(&url, format!("the answer names the commit {commit:?}, which is no digest"))
        })?;
        let mut next = Some(format!("{api}/tree/{commit}?recursive=true"));
        let mut files = Vec::new();
        for _ in 0..PAGES {
            let Some(url) = next else { return Ok(Tree { commit, files }) };
            if !same_host(&url, &self.endpoint) {
                return Err(Error::answer(&url, "the list of files goes on at another host"));
            }
            let (page, further): (Vec<Listed>, _) = asker.json(&url, progress)?;
            for it in page.into_iter().filter(|it| it.kind == "file") {
                file(&it.path)?;
                let sha256 = it.lfs.as_ref().map(|lfs| lfs.oid.clone()).filter(|oid| is_hex(oid, 64));
                files.push(Entry { path: it.path, size: it.lfs.map_or(it.size, |lfs| lfs.size), sha256 });
            }
            next = further;
        }
        Err(Error::answer(&api, format!("the list of files has more than {PAGES} pages")))
    }

    /// The first bytes of a file, at most `bytes` of them, which are kept nowhere.
    ///
    /// # Errors
    /// As those of [`Hub::snapshot`], less those of the disk.
    pub fn beginning(
        &self,
        id: &str,
        revision: &str,
        path: &str,
        bytes: u64,
        progress: &mut dyn Progress,
    ) -> Result<Vec<u8>, Error> {
        file(path)?;
        let asker = Asker::new(self, id, revision)?;
        let url = self.file_url(id, revision, path);
        asker.patiently(&url, progress, |it| {
            let range = Some((0, Some(bytes.max(1))));
            let answer = it.once(Method::GET, &url, range, Follow::Everywhere)?;
            // A host that knows no ranges sends the whole file, of which the rest is not read.
            let begins = answer.header("content-range").is_none_or(|it| it.starts_with("bytes 0-"));
            if !matches!(answer.status(), 200 | 206) || !begins {
                let status = answer.status();
                return Err(Error::answer(
                    &url,
                    format!("the answer has not the first bytes (status {status})"),
                )
                .into());
            }
            let mut begin = Vec::new();
            let mut body = answer.response.into_body();
            let reader = body.with_config().limit(u64::MAX).reader();
            reader.take(bytes).read_to_end(&mut begin).map_err(|error| {
                Fault::passing(format!("{url} broke off after {} bytes: {error}", begin.len()))
            })?;
            Ok(begin)
        })
    }
}
