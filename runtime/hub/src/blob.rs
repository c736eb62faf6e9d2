//! One file's content: resumed where it broke off, and hashed as a whole.

use crate::Progress;
use crate::ask::{Asker, Fault, Follow, Patience};
use crate::disk::{digests, size};
use crate::error::Error;
use crate::names::is_hex;
use crate::place::Place;
use std::fs::File;
use std::io::{ErrorKind, Read, Seek, SeekFrom, Write};
use std::path::Path;
use std::time::Instant;
use ureq::http::Method;

/// A blob as the hub describes it.
pub struct Wanted {
    /// The file and its repository, for people.
    pub name: String,
    /// Address of the bytes.
    pub url: String,
    pub etag: String,
    /// Size, unless the hub does not say.
    pub bytes: Option<u64>,
    /// Hex digest by whom the file is wanted.
    pub sha256: Option<String>,
}

impl Wanted {
    /// Whether the cache has it. Its digest was checked when it was written, so its size is enough, unless
    /// the etag is of another kind than the digest that is known.
    pub fn present(&self, place: &Place) -> bool {
        let path = place.blob(&self.etag);
        let there = size(&path).is_some_and(|it| self.bytes.is_none_or(|bytes| bytes == it));
        there && (self.sha256.is_none() || is_hex(&self.etag, 64) || self.check(&path).is_ok())
    }

    /// Bytes that are still to come.
    pub fn missing(&self, place: &Place) -> u64 {
        let have = size(&place.partial(&self.etag)).unwrap_or(0);
        match self.bytes {
            Some(bytes) if have > bytes => bytes,
            Some(bytes) => bytes - have,
            None => 0,
        }
    }

    /// Compares a whole file with all that is known of it.
    fn check(&self, path: &Path) -> Result<(), Error> {
        let wrong = |why: String| Err(Error::Content { name: self.name.clone(), why });
        if let (Some(found), Some(bytes)) = (size(path), self.bytes)
            && found != bytes
        {
            return wrong(format!("has {found} bytes and should have {bytes}"));
        }
        let (linked, git) = (is_hex(&self.etag, 64), is_hex(&self.etag, 40));
        if !linked && !git && self.sha256.is_none() {
            return Ok(());
        }
        let found = digests(path, git)?;
        let by_etag = linked.then_some(&self.etag);
        for should in self.sha256.iter().chain(by_etag) {
            if !found.sha256.eq_ignore_ascii_case(should) {
                return wrong(format!("has SHA-256 {} and should have {should}", found.sha256));
            }
        }
        if git && !found.git.eq_ignore_ascii_case(&self.etag) {
            return wrong(format!("is git's blob {} and should be {}", found.git, self.etag));
        }
        Ok(())
    }

    /// Puts the blob into the cache, unless it is there.
    pub fn fetch(&self, asker: &Asker, place: &Place, progress: &mut dyn Progress) -> Result<(), Error> {
        if self.present(place) {
            return Ok(());
        }
        let claim = place.claim(&self.etag, progress)?;
        // Another process may have fetched it meanwhile.
        if self.present(place) {
            return Ok(());
        }
        progress.begin(&self.name, self.bytes, size(&claim.partial).unwrap_or(0));
        let received = self.receive(asker, &claim.partial, progress);
        progress.end();
        received?;
        let blob = place.blob(&self.etag);
        std::fs::rename(&claim.partial, &blob).map_err(Error::disk(&blob))
    }

    /// Completes a file that is begun, or begins it.
    fn receive(&self, asker: &Asker, path: &Path, progress: &mut dyn Progress) -> Result<(), Error> {
        let io = Error::disk(path);
        let file = File::options().create(true).truncate(false).write(true).open(path).map_err(&io)?;
        let have = file.metadata().map_err(&io)?.len();
        let mut partial = Partial { wanted: self, file, path, have, ranges: true };
        let limits = &asker.hub.limits;
        let mut patience = Patience::new(limits, &self.url);
        // Progress is what no attempt had before: one that begins anew each time makes none.
        let (mut most, mut again) = (have, true);
        loop {
            if self.bytes.is_some_and(|bytes| partial.have > bytes) {
                partial.clear()?;
            }
            if self.bytes != Some(partial.have)
                && let Err(fault) = partial.append_rest(asker, progress)
            {
                if partial.have >= most.saturating_add(limits.least) {
                    patience.rewarded();
                }
                most = most.max(partial.have);
                patience.failed(fault, progress)?;
                continue;
            }
            partial.file.sync_all().map_err(&io)?;
            match self.check(path) {
                Ok(()) => return Ok(()),
                Err(error @ Error::Content { .. }) => {
                    partial.clear()?;
                    if !again {
                        // Nothing of it is worth keeping.
                        std::fs::remove_file(path).map_err(&io)?;
                        return Err(error);
                    }
                    again = false;
                    progress.note(&format!("{error}; fetching it once more from the beginning"));
                }
                Err(error) => return Err(error),
            }
        }
    }
}

/// A blob that grows.
struct Partial<'a> {
    wanted: &'a Wanted,
    file: File,
    path: &'a Path,
    /// Bytes that are there.
    have: u64,
    /// Whether the rest of a file is to be had at all.
    ranges: bool,
}

impl Partial<'_> {
    fn clear(&mut self) -> Result<(), Error> {
        self.have = 0;
        self.file.set_len(0).map_err(Error::disk(self.path))
    }

    /// Asks for what is missing and appends it.
    fn append_rest(&mut self, asker: &Asker, progress: &mut dyn Progress) -> Result<(), Fault> {
        if !self.ranges {
            self.clear()?;
        }
        let range = (self.have > 0).then_some((self.have, None));
        let answer = asker.once(Method::GET, &self.wanted.url, range, Follow::Everywhere)?;
        let said = answer.header("content-range").unwrap_or("no range").to_owned();
        match (answer.status(), range) {
            (200, _) => self.clear()?,
            (206, Some(_)) if self.continues(&said) => {}
            (206 | 416, Some(_)) => {
                let why = format!(
                    "{}: bytes from {} were asked for, and the answer has {said}",
                    self.wanted.name, self.have
                );
                self.ranges = false;
                self.clear()?;
                return Err(Fault::passing(why));
            }
            (status, _) => {
                return Err(Error::answer(&self.wanted.url, format!("the answer has status {status}")).into());
            }
        }
        let length = answer.header("content-length").and_then(|it| it.parse::<u64>().ok());
        if let (Some(bytes), Some(length)) = (self.wanted.bytes, length)
            && self.have.saturating_add(length) != bytes
        {
            let name = &self.wanted.name;
            return Err(Fault::passing(format!(
                "{name}: {length} bytes were to follow {}, and the file should have {bytes}",
                self.have
            )));
        }
        progress.at(self.have);
        let mut body = answer.response.into_body();
        self.append(&mut body.with_config().limit(u64::MAX).reader(), asker, progress)
    }

    /// Whether a `Content-Range` begins where the file ends, and is of a file as long as this.
    fn continues(&self, said: &str) -> bool {
        let read = || {
            let (range, whole) = said.strip_prefix("bytes ")?.split_once('/')?;
            let (begin, end) = range.split_once('-')?;
            Some((begin.parse::<u64>().ok()?, end.parse::<u64>().ok()?, whole))
        };
        let same = |whole: &str, bytes: u64| whole == "*" || whole.parse() == Ok(bytes);
        read().is_some_and(|(begin, end, whole)| {
            begin == self.have
                && end >= begin
                && self.wanted.bytes.is_none_or(|bytes| same(whole, bytes) && end < bytes)
        })
    }

    fn append(
        &mut self,
        body: &mut impl Read,
        asker: &Asker,
        progress: &mut dyn Progress,
    ) -> Result<(), Fault> {
        let (name, limits) = (&self.wanted.name, &asker.hub.limits);
        let io = Error::disk(self.path);
        self.file.seek(SeekFrom::Start(self.have)).map_err(&io)?;
        let mut chunk = vec![0; 1 << 18];
        let (mut since, mut before) = (Instant::now(), self.have);
        loop {
            let read = match body.read(&mut chunk) {
                Ok(0) => break,
                Ok(read) => read,
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(error) => {
                    return Err(Fault::passing(format!(
                        "{name} broke off after {} bytes: {error}",
                        self.have
                    )));
                }
            };
            if let Some(bytes) = self.wanted.bytes.filter(|bytes| self.have + read as u64 > *bytes) {
                self.have = 0;
                self.file.set_len(0).map_err(&io)?;
                return Err(Fault::passing(format!(
                    "{name} has more than the {bytes} bytes that it should have"
                )));
            }
            self.file.write_all(&chunk[..read]).map_err(&io)?;
            self.have += read as u64;
            progress.at(self.have);
            if since.elapsed() >= limits.silence {
                let came = self.have - before;
                if came < limits.least {
                    let seconds = since.elapsed().as_secs_f64();
                    return Err(Fault::passing(format!("{name}: only {came} bytes came in {seconds:.1} s")));
                }
                (since, before) = (Instant::now(), self.have);
            }
        }
        match self.wanted.bytes {
            Some(bytes) if self.have < bytes => {
                Err(Fault::passing(format!("{name} broke off after {} of {bytes} bytes", self.have)))
            }
            _ => Ok(()),
        }
    }
}
