//! Images: the memory of pre-empted sequences, in pages of host memory and, behind that, on disk.

use super::super::states::copy_now;
use crate::shared::SwapStats;
use crate::swap::{SwapOptions, page_bytes};
use monomorph_cache::swap::{Image, Pages, Return, Tier, Tiers, is_worth};
use monomorph_cache::{Block, SlidingBlock};
use monomorph_model::{BlockId, Model, ModelSpec, SlidingId, SlidingSpec, Slot, StateCopy, StatePlace};
use monomorph_store::{Completion, DiskStore, Kind, OpenError, Page, PageError, PageMemory, PageSlot};
use std::collections::HashMap;
use std::time::{Duration, Instant};

/// How long a disk may make no progress before a sequence that waits for it is computed again.
const PATIENCE: Duration = Duration::from_secs(2);
/// Consecutive failed writes of images after which no more are written.
const FAILURES: u32 = 3;
/// Bits of the page number in a [`tag`].
const PAGE_BITS: u32 = 24;

/// Whether a sequence can resume from its image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wanted {
    Here,
    Waits,
    /// It is gone.
    Lost,
}

/// Where an image stands, in host memory and on disk.
#[derive(Debug, Default)]
struct ImagePages {
    /// In host memory; `None` where a page is in transfer or on disk.
    pages: Vec<Option<Page>>,
    /// On disk.
    places: Vec<PageSlot>,
    under_way: usize,
    failed: Option<PageError>,
}

/// An order to copy a sequence's blocks and state out.
#[derive(Debug)]
struct Out {
    image: Image,
    blocks: Vec<Block>,
    sliding: Vec<SlidingBlock>,
    slot: Slot,
}

/// An order to copy an image back: its pages from `first` on to `blocks`, then those of layers with a sliding
/// window to `sliding`, of which it skips some, its state to `slot`.
#[derive(Debug)]
struct Back {
    image: Image,
    first: usize,
    blocks: Vec<Block>,
    sliding: Vec<Option<SlidingBlock>>,
    slot: Slot,
}

/// All images.
pub(crate) struct Images {
    tiers: Tiers,
    disk: Option<DiskStore>,
    held: HashMap<Image, ImagePages>,
    /// Free pages, kept for reuse: together with those in use never more than the host tier holds.
    spare: Vec<Page>,
    outs: Vec<Out>,
    backs: Vec<Back>,
    /// Whether an image is ordered for the step being planned.
    promised: bool,
    /// Number of state copies before the step was planned.
    copies: usize,
    /// Bytes of a page, which holds a block, or a part of a block of layers with a sliding window or of a
    /// state.
    page_bytes: usize,
    block_bytes: usize,
    /// A block of layers with a sliding window.
    sliding: Vec<u8>,
    state: Vec<u8>,
    /// Bytes copied per second, by the hardware's specification; infinite where everything is to be copied.
    copied_per_second: f64,
    /// Tokens prefilled per second, as the plan predicts.
    fed_per_second: f64,
    /// When the disk last made progress, or was given work while idle.
    moved: Instant,
    /// Consecutive images that could not be written.
    failures: u32,
    report: fn(std::fmt::Arguments),
    stats: SwapStats,
}

impl Images {
    /// Empty, with the room that the options name.
    ///
    /// # Errors
    /// When the disk lacks that room.
    pub fn new(
        spec: &ModelSpec,
        sliding: Option<SlidingSpec>,
        options: &SwapOptions,
    ) -> Result<Images, OpenError> {
        let page_bytes = page_bytes(spec);
        let host = usize::try_from(options.host_bytes / page_bytes as u64).unwrap_or(usize::MAX);
        let disk = options.open(spec)?;
        let all = Pages { host, disk: disk.as_ref().map_or(0, DiskStore::capacity) };
        let state = if host > 0 { usize::try_from(spec.state_bytes).unwrap_or(usize::MAX) } else { 0 };
        Ok(Images {
            tiers: Tiers::new(all),
            disk,
            held: HashMap::new(),
            spare: Vec::new(),
            outs: Vec::new(),
            backs: Vec::new(),
            promised: false,
            copies: 0,
            page_bytes,
            block_bytes: spec.block_bytes,
            sliding: vec![0; sliding.filter(|_| host > 0).map_or(0, |it| it.block_bytes)],
            state: vec![0; state],
            copied_per_second: if options.always { f64::INFINITY } else { spec.figures.copy_bandwidth },
            fed_per_second: spec.figures.predicted_prefill,
            moved: Instant::now(),
            failures: 0,
            report: options.report,
            stats: SwapStats::default(),
        })
    }

    /// Orders an image of a sequence that was fed so many tokens; [`Self::carry`] makes it. `None` where
    /// prefilling again is faster, or there is no room.
    pub fn take(
        &mut self,
        fed: usize,
        blocks: &[Block],
        sliding: Vec<SlidingBlock>,
        slot: Slot,
    ) -> Option<Image> {
        let pages = blocks.len()
            + sliding.len() * self.sliding.len().div_ceil(self.page_bytes)
            + self.state.len().div_ceil(self.page_bytes);
        let bytes = blocks.len() * self.block_bytes + sliding.len() * self.sliding.len() + self.state.len();
        let bytes = bytes as u64;
        if !is_worth(fed, bytes, self.copied_per_second, self.fed_per_second) || pages >= 1 << PAGE_BITS {
            return None;
        }
        let image = self.tiers.make(pages)?;
        self.outs.push(Out { image, blocks: blocks.to_vec(), sliding, slot });
        Some(image)
    }

    /// Begins the orders of a step, which has `copies` copies of states from earlier ones.
    pub fn begin(&mut self, copies: usize) {
        self.copies = copies;
    }

    /// Orders the pages of an image behind the first `known` to be copied to the blocks behind as many, those
    /// of layers with a sliding window to those of `sliding` that are named, and its state to the slot.
    pub fn bring_back(
        &mut self,
        image: Image,
        known: usize,
        blocks: &[Block],
        sliding: Vec<Option<SlidingBlock>>,
        slot: Slot,
    ) {
        let blocks = blocks.get(known..).unwrap_or_default().to_vec();
        self.backs.push(Back { image, first: known, blocks, sliding, slot });
    }

    /// Carries out the orders, copies out first: copies back may go to the same blocks.
    pub fn carry<M: Model>(&mut self, model: &mut M, copies: &mut Vec<StateCopy>) {
        for out in std::mem::take(&mut self.outs) {
            self.copy_out(model, &out);
        }
        if !self.backs.is_empty() && !self.state.is_empty() {
            // Ended sequences may have state copies pending from slots that are overwritten now. The copies
            // of the plan itself come after.
            copy_now(model, copies.drain(..self.copies), &mut self.state);
        }
        for back in std::mem::take(&mut self.backs) {
            self.copy_back(model, &back);
        }
        self.send_away(None);
    }

    fn copy_out<M: Model>(&mut self, model: &mut M, out: &Out) {
        let began = Instant::now();
        let mut pages = Vec::with_capacity(self.tiers.pages(out.image));
        for block in &out.blocks {
            let mut page = self.page();
            model.read_block(BlockId(block.0), &mut page.bytes_mut()[..self.block_bytes]);
            pages.push(Some(page));
        }
        let (mut sliding, mut state) = (std::mem::take(&mut self.sliding), std::mem::take(&mut self.state));
        for block in &out.sliding {
            model.read_sliding(SlidingId(block.0), &mut sliding);
            self.add_pages(&sliding, &mut pages);
        }
        if !state.is_empty() {
            model.read_state(StatePlace::Slot(out.slot), &mut state);
        }
        self.add_pages(&state, &mut pages);
        (self.sliding, self.state) = (sliding, state);
        self.stats.out += 1;
        self.stats.bytes_out += (pages.len() * self.page_bytes) as u64;
        self.stats.time_out += began.elapsed();
        self.held.insert(out.image, ImagePages { pages, ..ImagePages::default() });
    }

    /// Adds pages that hold these bytes.
    fn add_pages(&mut self, bytes: &[u8], pages: &mut Vec<Option<Page>>) {
        for part in bytes.chunks(self.page_bytes) {
            let mut page = self.page();
            page.bytes_mut()[..part.len()].copy_from_slice(part);
            pages.push(Some(page));
        }
    }

    fn copy_back<M: Model>(&mut self, model: &mut M, back: &Back) {
        let Some(held) = self.held.get(&back.image) else { return };
        let began = Instant::now();
        let page = |at: usize| held.pages[at].as_ref().expect("what is brought back is there").bytes();
        for (at, block) in back.blocks.iter().enumerate() {
            model.write_block(BlockId(block.0), &page(back.first + at)[..self.block_bytes]);
        }
        let mut next = back.first + back.blocks.len();
        let mut fill = |bytes: &mut [u8]| {
            for part in bytes.chunks_mut(self.page_bytes) {
                part.copy_from_slice(&page(next)[..part.len()]);
                next += 1;
            }
        };
        for block in &back.sliding {
            fill(&mut self.sliding);
            if let Some(block) = block {
                model.write_sliding(SlidingId(block.0), &self.sliding);
            }
        }
        fill(&mut self.state);
        assert_eq!(next, held.pages.len(), "a copy comes back whole");
        if !self.state.is_empty() {
            model.write_state(StatePlace::Slot(back.slot), &self.state);
        }
        self.stats.back += 1;
        self.stats.bytes_back += ((held.pages.len() - back.first) * self.page_bytes) as u64;
        self.stats.time_back += began.elapsed();
        self.drop(back.image);
    }

    fn page(&mut self) -> Page {
        self.spare.pop().unwrap_or_else(|| Page::zeroed(self.page_bytes))
    }

    /// Drops an image.
    pub fn drop(&mut self, image: Image) {
        self.outs.retain(|out| out.image != image);
        self.backs.retain(|back| back.image != image);
        if self.tiers.drop(image) {
            self.clear(image);
        }
    }

    /// Frees the pages and places of an image.
    fn clear(&mut self, image: Image) {
        let Some(held) = self.held.remove(&image) else { return };
        self.spare.extend(held.pages.into_iter().flatten());
        self.give_places_back(held.places);
    }

    fn give_places_back(&mut self, places: Vec<PageSlot>) {
        if let Some(disk) = &mut self.disk {
            places.into_iter().for_each(|place| disk.free(place));
        }
    }

    /// Whether a sequence can resume from its image; starts to fetch one from disk.
    pub fn want(&mut self, image: Image) -> Wanted {
        match self.tiers.come_back(image) {
            Return::Here => {
                self.promised = true;
                return Wanted::Here;
            }
            Return::Begins => {
                self.fetch(image);
                // The read may have failed at once.
                let Some(place) = self.tiers.place(image) else { return Wanted::Lost };
                return if place == Tier::Host { Wanted::Here } else { Wanted::Waits };
            }
            Return::Waits => {}
            // Others make room: then it waits for these. An image that was promised in this turn must not
            // leave in it.
            Return::NoRoom if self.promised && self.tiers.place(image).is_some() => return Wanted::Waits,
            Return::NoRoom if self.send_away(Some(self.tiers.pages(image))) => {}
            Return::NoRoom => {
                if self.tiers.place(image).is_some() {
                    self.lose(image, "no room in the host's memory");
                }
                return Wanted::Lost;
            }
        }
        if self.moved.elapsed() < PATIENCE {
            return Wanted::Waits;
        }
        self.lose(image, "the disk does not answer");
        Wanted::Lost
    }

    fn lose(&mut self, image: Image, why: &str) {
        self.stats.failures += 1;
        (self.report)(format_args!("swap: {why}: a sequence is computed again"));
        self.drop(image);
    }

    /// Starts writing images to disk until so many pages of host memory will be free; returns whether there
    /// was one to write.
    fn send_away(&mut self, wanted: Option<usize>) -> bool {
        let mut any = false;
        while self.failures < FAILURES
            && let Some(image) = self.tiers.leave(wanted)
        {
            any = true;
            self.write(image);
        }
        any
    }

    fn write(&mut self, image: Image) {
        self.touch();
        let (Some(disk), Some(held)) = (&mut self.disk, self.held.get_mut(&image)) else { return };
        for (at, page) in held.pages.iter_mut().enumerate() {
            let Some(bytes) = page.take() else { continue };
            match disk.write(bytes, tag(image, at)) {
                Ok(place) => {
                    held.places.push(place);
                    held.under_way += 1;
                }
                Err(refused) => {
                    *page = Some(refused.page);
                    held.failed = Some(refused.why);
                    break;
                }
            }
        }
        self.written(image);
    }

    fn fetch(&mut self, image: Image) {
        self.touch();
        let count = self.tiers.pages(image);
        let mut pages: Vec<Page> = (0..count).map(|_| self.page()).collect();
        let (Some(disk), Some(held)) = (&mut self.disk, self.held.get_mut(&image)) else { return };
        for (at, place) in held.places.iter().enumerate() {
            let Some(page) = pages.pop() else { break };
            match disk.read(*place, page, tag(image, at)) {
                Ok(()) => held.under_way += 1,
                Err(refused) => {
                    pages.push(refused.page);
                    held.failed = Some(refused.why);
                    break;
                }
            }
        }
        self.spare.append(&mut pages);
        self.fetched(image);
    }

    /// Starts the clock of the disk's progress, if it was idle.
    fn touch(&mut self) {
        if self.disk.as_ref().is_some_and(|disk| disk.in_flight() == 0) {
            self.moved = Instant::now();
        }
    }

    /// Handles completed transfers before a step is planned.
    pub fn poll(&mut self) {
        self.promised = false;
        while let Some(done) = self.disk.as_mut().and_then(DiskStore::poll) {
            self.arrived(done);
        }
    }

    /// Waits for a transfer to complete.
    pub fn wait(&mut self, timeout: Duration) {
        if let Some(done) = self.disk.as_mut().and_then(|disk| disk.wait(timeout)) {
            self.arrived(done);
        }
        self.poll();
    }

    /// Whether pages are in transfer.
    pub fn under_way(&self) -> bool {
        self.disk.as_ref().is_some_and(|disk| disk.in_flight() > 0)
    }

    fn arrived(&mut self, Completion { tag, kind, page, result, .. }: Completion) {
        self.moved = Instant::now();
        let (image, at) = (Image(tag >> PAGE_BITS), (tag & ((1 << PAGE_BITS) - 1)) as usize);
        let Some(held) = self.held.get_mut(&image) else { return };
        held.pages[at] = Some(page);
        held.under_way -= 1;
        let bytes = self.page_bytes as u64;
        match (kind, result) {
            (_, Err(error)) => held.failed = Some(error),
            (Kind::Write, Ok(())) => self.stats.bytes_written += bytes,
            (Kind::Read, Ok(())) => self.stats.bytes_read += bytes,
        }
        match kind {
            Kind::Write => self.written(image),
            Kind::Read => self.fetched(image),
        }
    }

    /// Records that all pages of an image are written.
    fn written(&mut self, image: Image) {
        let Some(held) = self.held.get_mut(&image).filter(|held| held.under_way == 0) else { return };
        let failed = held.failed.take();
        self.tiers.left(image, failed.is_none());
        match failed {
            None => self.failures = 0,
            Some(error) => {
                self.failures += 1;
                self.stats.failures += 1;
                let end = if self.failures == FAILURES { "; no more is written to this disk" } else { "" };
                (self.report)(format_args!("swap: writing to disk failed: {error}{end}"));
            }
        }
        let place = self.tiers.place(image);
        let Some(held) = self.held.get_mut(&image) else { return };
        match place {
            None => self.clear(image),
            Some(Tier::Disk) => self.spare.extend(held.pages.iter_mut().filter_map(Option::take)),
            Some(_) => {
                let places = std::mem::take(&mut held.places);
                self.give_places_back(places);
            }
        }
    }

    /// Records that all pages of an image are read.
    fn fetched(&mut self, image: Image) {
        let Some(held) = self.held.get_mut(&image).filter(|held| held.under_way == 0) else { return };
        let (failed, places) = (held.failed.take(), std::mem::take(&mut held.places));
        self.tiers.returned(image, failed.is_none());
        self.give_places_back(places);
        if let Some(error) = &failed {
            self.stats.failures += 1;
            (self.report)(format_args!(
                "swap: reading from disk failed: {error}: a sequence is computed again"
            ));
        }
        if self.tiers.place(image).is_none() {
            self.clear(image);
        }
    }

    /// The counters.
    pub fn count(&mut self) -> SwapStats {
        let (all, free, bytes) = (self.tiers.all(), self.tiers.free(), self.page_bytes as u64);
        self.stats.host_bytes = (all.host - free.host) as u64 * bytes;
        self.stats.disk_bytes = (all.disk - free.disk) as u64 * bytes;
        self.stats.clone()
    }

    /// Pages of images that are in memory.
    #[cfg(test)]
    pub fn in_memory(&self) -> usize {
        self.held.values().flat_map(|held| &held.pages).flatten().count()
    }

    /// Whether every page is free, in memory and on disk, and memory never held more than it may.
    #[cfg(test)]
    pub fn is_empty(&self) -> bool {
        let places = self.disk.as_ref().is_none_or(|disk| disk.free_places() == disk.capacity());
        let bounded = self.spare.len() <= self.tiers.all().host;
        let booked = self.tiers.images() == 0 && self.tiers.free() == self.tiers.all();
        self.held.is_empty() && booked && places && bounded
    }
}

/// The name of a page in the store.
fn tag(image: Image, page: usize) -> u64 {
    image.0 << PAGE_BITS | page as u64
}
