//! A thread's reads ahead: the pieces of its plan, several in flight, given up when they were read from.
//!
//! What the system has cached is read through its cache, when it is wanted: that is several times as fast as
//! any disk, and costs a copy. Everything else is read past it, unless the cache [turns out](crate::pace) to
//! be faster on this disk.

use crate::WeightsError;
use crate::channels::{Channel, Counts, Direct, failed_at};
use crate::file::WeightsFile;
use crate::pace::Way;
use crate::pieces::{Piece, Planner, by_cells, is_planned};
use monomorph_store::{Page, PageMemory, Read, is_cached};
use std::collections::VecDeque;
use std::io;
use std::ops::Range;
use std::sync::Arc;

/// Pieces in flight or read, and those to come.
pub(crate) struct Ahead<'a> {
    /// What it reads with; taken away when it ends.
    channel: Option<Channel>,
    /// Where that came from, and goes to.
    direct: Direct,
    files: Vec<&'a WeightsFile>,
    /// Pieces to begin, by their first reads.
    coming: VecDeque<Piece>,
    begun: Vec<Begun>,
    /// The number of the next read that was announced, and of the next that will be.
    next: u64,
    announced: u64,
    /// A read that straddles pieces.
    straddling: Vec<u8>,
    done: Vec<(Read, io::Result<usize>)>,
    tag: u64,
}

/// A piece that has a buffer.
struct Begun {
    piece: Piece,
    tag: u64,
    state: State,
}

enum State {
    InFlight,
    /// Cached, and not read yet.
    Cached(Page),
    /// Not cached, and read through the cache nevertheless, when it is wanted.
    Through(Page),
    Read(Page),
    /// So many of its bytes were read, or none, and why not.
    Partly(Page, io::Result<usize>),
}

impl<'a> Ahead<'a> {
    /// With what files of a checkpoint are read directly with.
    ///
    /// # Errors
    /// When the system makes no ring.
    pub(crate) fn new(direct: &Direct) -> io::Result<Ahead<'a>> {
        Ok(Ahead {
            channel: Some(direct.channels.take()?),
            direct: direct.clone(),
            files: Vec::new(),
            coming: VecDeque::new(),
            begun: Vec::new(),
            next: 0,
            announced: 0,
            straddling: Vec::new(),
            done: Vec::new(),
            tag: 0,
        })
    }

    /// Plans reads that will follow those announced before, and begins what there are buffers for.
    pub(crate) fn announce(&mut self, reads: impl Iterator<Item = (&'a WeightsFile, Range<u64>)>) {
        let mut planner = Planner::new(self.announced);
        for (file, bytes) in reads {
            let number = self.number(file).unwrap_or_else(|| {
                self.files.push(file);
                self.files.len() - 1
            });
            planner.read(number, bytes);
        }
        let (announced, pieces) = planner.finish();
        self.announced = announced;
        self.coming.extend(pieces);
        self.begin();
    }

    /// Makes the next read's bytes [ready](Self::bytes), if it was announced, and says whether it was.
    ///
    /// # Errors
    /// When they cannot be read.
    pub(crate) fn prepare(&mut self, file: &WeightsFile, bytes: &Range<u64>) -> Result<bool, WeightsError> {
        let Some(number) = self.number(file) else { return Ok(false) };
        if self.next == self.announced || !is_planned(bytes) {
            return Ok(false);
        }
        self.retire();
        self.begin();
        for part in by_cells(bytes.clone()) {
            let next = self.next;
            let holds = |it: &Begun| it.piece.is_wanted(next) && it.piece.holds(number, &part);
            let Some(at) = self.begun.iter().position(holds) else {
                debug_assert!(false, "{part:?} of {}: other reads were announced", file.path().display());
                return Ok(false);
            };
            self.complete(at)?;
        }
        self.next += 1;
        Ok(true)
    }

    /// What was made ready.
    pub(crate) fn bytes(&mut self, file: &WeightsFile, bytes: Range<u64>) -> &[u8] {
        let number = self.number(file).unwrap_or(usize::MAX);
        let Ahead { begun, straddling, next, .. } = self;
        let wanted = *next - 1;
        let held = |part: &Range<u64>| {
            let begun = begun.iter().find(|it| it.piece.is_wanted(wanted) && it.piece.holds(number, part));
            let Some(Begun { piece, state: State::Read(page), .. }) = begun else {
                unreachable!("{part:?} was made ready");
            };
            let start = (part.start - piece.place.start) as usize;
            &page.bytes()[start..start + (part.end - part.start) as usize]
        };
        let mut parts = by_cells(bytes.clone());
        let first = parts.next().unwrap_or(bytes.clone());
        if first == bytes {
            return held(&first);
        }
        straddling.clear();
        straddling.extend_from_slice(held(&first));
        parts.for_each(|part| straddling.extend_from_slice(held(&part)));
        straddling
    }

    /// The number of a file that something was announced of.
    fn number(&self, file: &WeightsFile) -> Option<usize> {
        self.files.iter().position(|it| std::ptr::eq(*it, file))
    }

    /// Gives back the buffers of pieces that no read to come wants.
    fn retire(&mut self) {
        let Some(channel) = &mut self.channel else { return };
        let next = self.next;
        let mut at = 0;
        while at < self.begun.len() {
            let done = self.begun[at].piece.last < next && !matches!(self.begun[at].state, State::InFlight);
            if !done {
                at += 1;
                continue;
            }
            match self.begun.remove(at).state {
                State::Cached(page) | State::Through(page) | State::Read(page) | State::Partly(page, _) => {
                    channel.free.push(page)
                }
                State::InFlight => {}
            }
        }
    }

    /// Begins pieces, as long as there are buffers.
    fn begin(&mut self) {
        let Some(channel) = &mut self.channel else { return };
        while let Some(page) = channel.free.pop() {
            let Some(piece) = self.coming.pop_front() else {
                channel.free.push(page);
                return;
            };
            let file = self.files[piece.file];
            let len = piece.place.end - piece.place.start;
            let within = piece.place.end.min(file.bytes()).saturating_sub(piece.place.start);
            let tag = self.tag;
            self.tag += 1;
            let through = self.direct.channels.pace.way() == Way::Cache;
            // What the system reads ahead by itself is cached a moment later: it is not asked about.
            let cached = !through && is_cached(file.file(), piece.place.start, within).unwrap_or(false);
            let state = match file.direct() {
                Some(_) if through => State::Through(page),
                Some(direct) if !cached => {
                    let (at, file) = (piece.place.start, Arc::clone(&direct.file));
                    channel.reads.begin(Read { file, at, page, len: len as usize, tag });
                    State::InFlight
                }
                _ => State::Cached(page),
            };
            self.begun.push(Begun { piece, tag, state });
        }
    }

    /// Waits until a piece is read, or reads it.
    fn complete(&mut self, at: usize) -> Result<(), WeightsError> {
        while matches!(self.begun[at].state, State::InFlight) {
            self.collect();
        }
        if matches!(self.begun[at].state, State::Read(_)) {
            return Ok(());
        }
        let Begun { piece, tag, state } = self.begun.swap_remove(at);
        let (file, start) = (self.files[piece.file], piece.place.start);
        let within = (piece.place.end.min(file.bytes()).saturating_sub(start)) as usize;
        let counts = file.counts();
        let (page, outcome) = match state {
            State::Cached(mut page) => {
                let outcome = file.read_uncounted(start, &mut page.bytes_mut()[..within]);
                Counts::add(&counts.cached, within);
                (page, outcome)
            }
            State::Through(mut page) => {
                let outcome = file.read_at(start, &mut page.bytes_mut()[..within]);
                self.arrived(Way::Cache, within, counts);
                (page, outcome)
            }
            State::Partly(mut page, Ok(read)) => {
                let read = read.min(within);
                Counts::add(&counts.direct, read);
                self.arrived(Way::Direct, read, counts);
                // The rest is there, or its error says what is not.
                let rest = &mut page.bytes_mut()[read..within];
                let outcome = if rest.is_empty() { Ok(()) } else { file.read_at(start + read as u64, rest) };
                (page, outcome)
            }
            State::Partly(page, Err(error)) => (page, Err(failed_at(file.path(), start, within, error))),
            State::Read(page) => (page, Ok(())),
            State::InFlight => return Ok(()),
        };
        match (&outcome, &mut self.channel) {
            (Ok(()), _) => self.begun.push(Begun { piece, tag, state: State::Read(page) }),
            (Err(_), Some(channel)) => channel.free.push(page),
            (Err(_), None) => {}
        }
        outcome
    }

    /// Bytes that were not cached came one way.
    fn arrived(&self, by: Way, bytes: usize, counts: &Counts) {
        if let Some(why) = self.direct.channels.pace.arrived(by, bytes) {
            counts.fall_back(why);
        }
    }

    /// Waits until at least one piece in flight is done.
    fn collect(&mut self) {
        let Some(channel) = &mut self.channel else { return };
        channel.reads.finish(&mut self.done);
        for (read, result) in self.done.drain(..) {
            match self.begun.iter_mut().find(|it| it.tag == read.tag) {
                Some(begun) => begun.state = State::Partly(read.page, result),
                None => channel.free.push(read.page),
            }
        }
    }
}

impl Drop for Ahead<'_> {
    fn drop(&mut self) {
        while self.channel.as_ref().is_some_and(|it| it.reads.in_flight() > 0) {
            self.collect();
        }
        let Some(mut channel) = self.channel.take() else { return };
        for Begun { state, .. } in self.begun.drain(..) {
            match state {
                State::Cached(page) | State::Through(page) | State::Read(page) | State::Partly(page, _) => {
                    channel.free.push(page)
                }
                State::InFlight => {}
            }
        }
        self.direct.channels.put(channel);
    }
}

impl std::fmt::Debug for Ahead<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Ahead({} begun, {} to come)", self.begun.len(), self.coming.len())
    }
}
