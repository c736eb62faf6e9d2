//! The prefetcher: transfers between disk and staging area. One thread at a time uses it.

use super::SLOTS;
use super::staging::{Area, Lent, Staging};
use monomorph_store::{Completion, DiskStore, PageMemory, PageSlot, Refused};
use std::collections::VecDeque;
use std::time::Duration;

/// How long to wait for a page before checking that the store still runs.
const PATIENCE: Duration = Duration::from_secs(1);

#[derive(Debug)]
pub(crate) struct Prefetcher<M: Area> {
    store: DiskStore<Lent<M>>,
    staging: Staging<M>,
    /// The location in the store of each part of each group, if stored.
    places: Vec<Option<PageSlot>>,
    /// Pages per slot. After the slots there are as many pages to write from.
    pages: usize,
    /// The pages of each window of the current pass that has not been requested yet.
    ahead: VecDeque<Vec<usize>>,
    /// Windows requested, and windows released.
    asked: usize,
    released: usize,
    /// Pages of each slot still in transfer.
    left: [usize; SLOTS],
    /// Why a page could not be read.
    failure: Option<String>,
}

impl<M: Area> Prefetcher<M> {
    /// A prefetcher for `parts` parts of groups, with windows of `pages` pages.
    pub(super) fn new(
        store: DiskStore<Lent<M>>,
        staging: Staging<M>,
        parts: usize,
        pages: usize,
    ) -> Prefetcher<M> {
        Prefetcher {
            store,
            staging,
            places: vec![None; parts],
            pages,
            ahead: VecDeque::new(),
            asked: 0,
            released: 0,
            left: [0; SLOTS],
            failure: None,
        }
    }

    /// Begins a pass over windows, given as the pages of each. The previous pass must be over.
    pub fn begin<I: Iterator<Item = usize>>(&mut self, windows: impl Iterator<Item = I>) {
        assert!(self.ahead.is_empty() && self.asked == self.released, "the pass before is not over");
        (self.asked, self.released) = (0, 0);
        self.ahead.extend(windows.map(Iterator::collect));
        while self.asked < SLOTS && self.ask() {}
    }

    /// Requests the next window, whose slot is free; false if there is none.
    fn ask(&mut self) -> bool {
        let Some(pages) = self.ahead.pop_front() else { return false };
        let slot = self.asked % SLOTS;
        self.asked += 1;
        for (at, page) in pages.into_iter().enumerate() {
            // SAFETY: the slot is free: it is not read, and none of its pages is lent.
            let lent = unsafe { self.staging.lend(slot * self.pages + at) };
            let place = self.places[page].filter(|_| self.failure.is_none());
            let refused = match place {
                Some(place) => self.store.read(place, lent, slot as u64).err(),
                None => Some(Refused { page: lent, why: nothing_there() }),
            };
            match refused {
                None => self.left[slot] += 1,
                Some(Refused { page, why }) => self.fail(page, why.to_string()),
            }
        }
        true
    }

    /// Zeroes a page that could not be read.
    fn fail(&mut self, mut page: Lent<M>, why: String) {
        page.bytes_mut().fill(0);
        self.failure.get_or_insert_with(|| format!("K/V blocks could not be read from disk: {why}"));
    }

    /// Waits until window `at` has been read.
    pub fn wait(&mut self, at: usize) {
        assert!(self.released <= at && at < self.asked, "a window that was not asked for");
        while self.left[at % SLOTS] > 0 {
            match self.store.wait(PATIENCE) {
                Some(Completion { tag, page, result, .. }) => {
                    self.left[tag as usize] -= 1;
                    if let Err(why) = result {
                        self.fail(page, why.to_string());
                    }
                }
                None if self.store.in_flight() == 0 => {
                    // The store's thread has ended, and the pages it held are lost.
                    self.left = [0; SLOTS];
                    self.failure.get_or_insert_with(|| "the store of K/V blocks on disk stopped".to_owned());
                }
                None => {}
            }
        }
    }

    /// Releases the oldest window, and requests the next.
    pub fn release(&mut self) {
        self.released += 1;
        self.ask();
    }

    /// Why pages could not be read since the last call, if any failed.
    pub fn take_failure(&mut self) -> Option<String> {
        self.failure.take()
    }

    /// Writes pages, each filled by `fill`, over their previous contents. A page that could not be written is
    /// empty.
    pub fn write(
        &mut self,
        pages: impl Iterator<Item = usize>,
        mut fill: impl FnMut(usize, &mut [u8]),
    ) -> Result<(), String> {
        assert!(self.ahead.is_empty() && self.asked == self.released, "pages are written between steps");
        let mut room: Vec<usize> = (0..self.pages).map(|at| SLOTS * self.pages + at).collect();
        let mut outcome = Ok(());
        for (at, page) in pages.enumerate() {
            if let Some(place) = self.places[page].take() {
                self.store.free(place);
            }
            while room.is_empty() {
                self.written(&mut room, &mut outcome);
            }
            let (Some(from), Ok(())) = (room.pop(), &outcome) else { continue };
            // SAFETY: only this function uses the pages after the slots, and this one is not lent.
            let mut lent = unsafe { self.staging.lend(from) };
            fill(at, lent.bytes_mut());
            match self.store.write(lent, ((page as u64) << 32) | from as u64) {
                Ok(place) => self.places[page] = Some(place),
                Err(Refused { why, .. }) => {
                    room.push(from);
                    outcome = Err(why.to_string());
                }
            }
        }
        while self.store.in_flight() > 0 {
            self.written(&mut room, &mut outcome);
        }
        outcome.map_err(|why| format!("K/V blocks could not be written to disk: {why}"))
    }

    /// Waits for a page to be written.
    fn written(&mut self, room: &mut Vec<usize>, outcome: &mut Result<(), String>) {
        match self.store.wait(PATIENCE) {
            Some(Completion { tag, place, result, .. }) => {
                room.push((tag & u64::from(u32::MAX)) as usize);
                if let Err(why) = result {
                    self.places[(tag >> 32) as usize] = None;
                    self.store.free(place);
                    *outcome = Err(why.to_string());
                }
            }
            None if self.store.in_flight() == 0 => {
                room.extend((0..self.pages).map(|at| SLOTS * self.pages + at));
                *outcome = Err("the store of K/V blocks stopped".to_owned());
            }
            None => {}
        }
    }
}

fn nothing_there() -> monomorph_store::PageError {
    monomorph_store::PageError::Misused("nothing is there")
}
