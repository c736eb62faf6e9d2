//! Files of a revision, all of one commit.

use crate::address::encoded;
use crate::ask::{Asker, Follow};
use crate::blob::Wanted;
use crate::names::{digest, is_hex};
use crate::place::Place;
use crate::{Error, File, Hub, Progress, disk, names};
use std::path::PathBuf;
use ureq::http::Method;

impl Hub {
    /// Fetches files of a repository at a revision (a branch, a tag or a commit) and returns the directory in
    /// which they stand. The hub is asked only if the cache lacks one of them.
    ///
    /// # Errors
    /// When the names are none that a repository has, when the hub does not have or does not give the files,
    /// when they are not what they should be, or when the disk does not take them. Whole files stay, and what
    /// was begun is resumed by the next call.
    pub fn snapshot(
        &self,
        id: &str,
        revision: &str,
        files: &[File],
        progress: &mut dyn Progress,
    ) -> Result<PathBuf, Error> {
        if files.is_empty() {
            return Err(Error::Nothing { id: id.to_owned() });
        }
        if let Some(snapshot) = self.cached(id, revision, files)? {
            return Ok(snapshot);
        }
        let (asker, place) = (Asker::new(self, id, revision)?, Place::of(self, id));
        let mut commit = None;
        let mut wanted = Vec::new();
        for file in files {
            let at = commit.as_deref().unwrap_or(revision);
            let (of, described) = self.describe(&asker, at, file, progress)?;
            if commit.as_ref().is_some_and(|commit| *commit != of) {
                let why =
                    format!("the answer is of commit {of} and should be of {}", commit.unwrap_or_default());
                return Err(Error::answer(&described.url, why));
            }
            commit = Some(of);
            wanted.push((file, described));
        }
        let missing = wanted.iter().filter(|(_, it)| !it.present(&place)).map(|(_, it)| it.missing(&place));
        let needed = missing.fold(0, u64::saturating_add);
        if let Some(free) = disk::free(place.root()).filter(|free| *free < needed) {
            return Err(Error::Room { directory: self.cache.clone(), needed, free });
        }
        let commit = commit.unwrap_or_default();
        for (file, wanted) in &wanted {
            wanted.fetch(&asker, &place, progress)?;
            place.link(&commit, &file.path, &wanted.etag)?;
        }
        place.refer(revision, &commit)?;
        Ok(place.snapshot(&commit))
    }

    /// The directory of files that the cache has, all of them.
    ///
    /// # Errors
    /// When the names are none that a repository has.
    pub fn cached(&self, id: &str, revision: &str, files: &[File]) -> Result<Option<PathBuf>, Error> {
        names::id(id)?;
        names::revision(revision)?;
        files.iter().try_for_each(|file| names::file(&file.path))?;
        let place = Place::of(self, id);
        let commit = place.commit(revision);
        if digest("commit", &commit).is_err() {
            return Ok(None);
        }
        let snapshot = place.snapshot(&commit);
        Ok(files.iter().all(|file| snapshot.join(&file.path).is_file()).then_some(snapshot))
    }

    /// Writes down in the cache which commit a revision is, so that it is found when the hub is not asked.
    /// [`Hub::snapshot`] does so by itself for the revision that it is given.
    ///
    /// # Errors
    /// When the names are none that a repository has, or the disk does not take it.
    pub fn refer(&self, id: &str, revision: &str, commit: &str) -> Result<(), Error> {
        names::id(id)?;
        names::revision(revision)?;
        digest("commit", commit)?;
        let place = Place::of(self, id);
        if place.commit(revision) == commit { Ok(()) } else { place.refer(revision, commit) }
    }

    /// Asks what a file is: its commit, and its blob.
    fn describe(
        &self,
        asker: &Asker,
        revision: &str,
        file: &File,
        progress: &mut dyn Progress,
    ) -> Result<(String, Wanted), Error> {
        let url = self.file_url(asker.id, revision, &file.path);
        let answer =
            asker.patiently(&url, progress, |it| it.once(Method::HEAD, &url, None, Follow::OnTheHub))?;
        let commit = answer.commit.ok_or_else(|| Error::answer(&url, "the answer names no commit"))?;
        let etag = answer.etag.ok_or_else(|| Error::answer(&url, "the answer names no etag"))?;
        let etag = etag.trim_start_matches("W/").trim_matches('"').to_owned();
        for (what, name) in [("commit", &commit), ("etag", &etag)] {
            digest(what, name).map_err(|_| {
                Error::answer(&url, format!("the answer names the {what} {name:?}, which is no digest"))
            })?;
        }
        if is_hex(revision, 40) && revision != commit {
            return Err(Error::answer(&url, format!("the answer is of commit {commit}")));
        }
        let name = format!("{} of {}", file.path, asker.id);
        if let Some(sha256) = &file.sha256
            && is_hex(&etag, 64)
            && !etag.eq_ignore_ascii_case(sha256)
        {
            let why = format!("has SHA-256 {etag} on the hub and should have {sha256}");
            return Err(Error::Content { name, why });
        }
        let url = self.file_url(asker.id, &commit, &file.path);
        Ok((commit, Wanted { name, url, etag, bytes: answer.bytes, sha256: file.sha256.clone() }))
    }

    /// Address of a file at a revision.
    pub(crate) fn file_url(&self, id: &str, revision: &str, path: &str) -> String {
        format!("{}/{id}/resolve/{}/{}", self.endpoint, encoded(revision, false), encoded(path, true))
    }
}
