//! The files of kept prefixes, and pages in transfer. `monomorph_cache::KeptIndex` decides what is
//! in them.

use super::super::memory::Memory;
use crate::keep::KeepOptions;
use crate::shared::KeptStats;
use monomorph_cache::{Content, KeptId, KeptIndex, KeptRecord, Unkept, key_words};
use monomorph_model::{BlockId, Model, ModelSpec};
use monomorph_store::{Completion, KeptEntry, KeptStore, Kind, OpenError, Page, PageError, PageMemory};
use std::collections::HashMap;
use std::time::{Duration, Instant};

/// How long a disk may make no progress before a sequence that waits for it is computed.
const PATIENCE: Duration = Duration::from_secs(2);
/// Consecutive failed writes after which nothing more is written.
const FAILURES: u32 = 3;

/// What there is for a waiting sequence in the files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Asked {
    /// Nothing beyond what is in memory, or no more than that.
    Nothing,
    /// Blocks, which are being read.
    Comes,
}

/// A prefix that comes back for a waiting sequence, some pages at a time.
#[derive(Debug)]
struct Coming {
    /// The sequence.
    number: u64,
    /// All blocks of the prefix.
    ids: Vec<KeptId>,
    /// Which of them is the first of the pages.
    first: usize,
    pages: Vec<Option<Page>>,
    under_way: usize,
}

/// The files, and what is in transfer.
pub(crate) struct Keeper {
    disk: KeptStore,
    index: KeptIndex,
    /// Blocks that are being written, by their slots.
    writing: HashMap<u32, KeptId>,
    coming: Option<Coming>,
    spare: Vec<Page>,
    /// Most pages that are written at a time, and as many that are read.
    most: usize,
    /// Consecutive writes that failed.
    failures: u32,
    /// When the disk last made progress, or was given work while idle.
    moved: Instant,
    page_bytes: usize,
    block_bytes: usize,
    block_tokens: usize,
    report: fn(std::fmt::Arguments),
    stats: KeptStats,
}

impl Keeper {
    /// Opens the files, and trusts of them what may be trusted.
    ///
    /// # Errors
    /// As [`KeptStore::open`].
    pub fn new(spec: &ModelSpec, options: &KeepOptions, blocks: usize) -> Result<Keeper, OpenError> {
        let of = options.of(spec, blocks);
        let (mut disk, entries) = KeptStore::open(&options.directory, &of, options.report)?;
        let record = |KeptEntry { id, parent, slot, key, .. }: KeptEntry| KeptRecord {
            id: KeptId(id),
            parent: parent.map(KeptId),
            slot,
            key: key.into(),
        };
        let records = entries.into_iter().map(record).collect();
        let (index, refused) = KeptIndex::trust(records, disk.capacity(), spec.block_tokens);
        if !refused.is_empty() {
            let (count, named) = (refused.len(), options.directory.display());
            (options.report)(format_args!(
                "kept prefixes in {named}: {count} blocks follow ones that are gone, and are not used"
            ));
        }
        let mut stats = KeptStats { at_start: index.len(), ..KeptStats::default() };
        for record in refused {
            if let Err(error) = disk.free(record.slot) {
                stats.failures += 1;
                (options.report)(format_args!("kept prefixes: the index cannot be written: {error}"));
            }
        }
        Ok(Keeper {
            disk,
            index,
            writing: HashMap::new(),
            coming: None,
            spare: Vec::new(),
            most: KeepOptions::pages(spec),
            failures: 0,
            moved: Instant::now(),
            page_bytes: of.page_bytes,
            block_bytes: spec.block_bytes,
            block_tokens: spec.block_tokens,
            report: options.report,
            stats,
        })
    }

    /// Whether pages are in transfer.
    pub fn under_way(&self) -> bool {
        self.disk.in_flight() > 0
    }

    /// Whether blocks could be copied out now.
    pub fn may_write(&self) -> bool {
        self.writing.len() < self.most
    }

    /// Pages that could be copied out now.
    pub fn room(&self) -> usize {
        self.most - self.writing.len().min(self.most)
    }

    /// Whether a part of a prefix is in memory and can be copied to the device.
    pub fn has_arrived(&self) -> bool {
        self.coming.as_ref().is_some_and(|coming| coming.under_way == 0)
    }

    /// The sequence that a prefix comes back for.
    pub fn comes_for(&self) -> Option<u64> {
        self.coming.as_ref().map(|coming| coming.number)
    }

    /// Looks for the rest of a prompt of which the first `found` blocks are in memory, up to `most` blocks,
    /// and begins to fetch it.
    pub fn ask(&mut self, number: u64, prompt: Content<'_>, found: usize, most: usize) -> Asked {
        if self.comes_for() == Some(number) {
            if self.moved.elapsed() < PATIENCE || self.has_arrived() {
                return Asked::Comes;
            }
            self.fail(format_args!("the disk does not answer: a prompt is computed"));
            self.give_up();
            return Asked::Nothing;
        }
        let ids = self.index.find(prompt, self.block_tokens, most);
        if ids.len() <= found {
            return Asked::Nothing;
        }
        // Prefixes come one after another.
        if self.coming.is_none() {
            self.coming = Some(Coming { number, ids, first: found, pages: Vec::new(), under_way: 0 });
            self.fetch();
        }
        Asked::Comes
    }

    /// Counts the blocks of a prompt that were found in memory as used.
    pub fn touch(&mut self, prompt: Content<'_>) {
        let ids = self.index.find(prompt, self.block_tokens, usize::MAX);
        self.index.touch(&ids);
    }

    /// Begins to read the next pages of the prefix that comes.
    fn fetch(&mut self) {
        self.begin();
        let Some(coming) = &mut self.coming else { return };
        let ids: Vec<KeptId> = coming.ids[coming.first..].iter().take(self.most).copied().collect();
        coming.pages = (0..ids.len()).map(|_| None).collect();
        for id in ids {
            let page = self.spare.pop().unwrap_or_else(|| Page::zeroed(self.page_bytes));
            // Gone meanwhile: what is behind it is not brought back either.
            let Some(slot) = self.index.slot(id) else { break };
            match self.disk.read(slot, page, id.0) {
                Ok(()) => {
                    self.index.reads(&[id]);
                    if let Some(coming) = &mut self.coming {
                        coming.under_way += 1;
                    }
                }
                Err(refused) => {
                    self.spare.push(refused.page);
                    self.fail(format_args!("reading failed: {}: a prompt is computed", refused.why));
                    break;
                }
            }
        }
    }

    /// Copies what was read to the device, for the sequence with this prompt, and begins to read the rest.
    /// True when there is nothing more to wait for.
    ///
    /// # Errors
    /// On an accounting error.
    pub(in crate::forward) fn bring_in<M: Model>(
        &mut self,
        model: &mut M,
        memory: &mut Memory,
        prompt: Content<'_>,
    ) -> Result<bool, String> {
        let Some(coming) = &mut self.coming else { return Ok(true) };
        let (first, pages) = (coming.first, std::mem::take(&mut coming.pages));
        let whole = pages.iter().take_while(|page| page.is_some()).count();
        let (asked, all) = (pages.len(), coming.ids.len());
        let mut pages: Vec<Page> = pages.into_iter().flatten().collect();
        let mut more = whole == asked && first + whole < all;
        if whole > 0 {
            let blocks = memory.take_back(prompt, first, first + whole, |known, blocks| {
                for (block, page) in blocks[known..].iter().zip(&pages[known - first..]) {
                    model.write_block(BlockId(block.0), &page.bytes()[..self.block_bytes]);
                }
            })?;
            // There is no room, or what is before them went meanwhile.
            more &= blocks.is_some();
            self.stats.tokens_back += (blocks.unwrap_or(0) * self.block_tokens) as u64;
        }
        self.spare.append(&mut pages);
        if !more {
            self.give_up();
            return Ok(true);
        }
        if let Some(coming) = &mut self.coming {
            coming.first += whole;
        }
        self.fetch();
        Ok(false)
    }

    /// No longer waits for the prefix that comes. Pages in transfer come back by themselves.
    pub fn give_up(&mut self) {
        if let Some(coming) = self.coming.take() {
            self.spare.extend(coming.pages.into_iter().flatten());
        }
        self.spare.truncate(2 * self.most);
    }

    /// Copies blocks out that the files do not have, as many as may be written at a time.
    pub(in crate::forward) fn copy_out<M: Model>(&mut self, model: &mut M, memory: &mut Memory) {
        while self.failures < FAILURES && self.may_write() {
            let Some(Unkept { block, parent, key }) = memory.unkept(&self.index) else { return };
            if key.len() > key_words(self.block_tokens) {
                memory.skip_unkept();
                continue;
            }
            if !self.make_room(parent) {
                // What is in transfer may go when that is over.
                if self.under_way() {
                    return;
                }
                memory.skip_unkept();
                continue;
            }
            self.begin();
            let mut page = self.spare.pop().unwrap_or_else(|| Page::zeroed(self.page_bytes));
            model.read_block(BlockId(block.0), &mut page.bytes_mut()[..self.block_bytes]);
            // Of a page that was another block's nothing is left behind this one.
            page.bytes_mut()[self.block_bytes..].fill(0);
            match self.disk.write(page, 0) {
                Ok(slot) => {
                    let id = self.index.add(parent, key, slot);
                    self.writing.insert(slot, id);
                }
                Err(refused) => {
                    self.spare.push(refused.page);
                    memory.skip_unkept();
                    self.write_failed(&refused.why);
                }
            }
        }
        while self.failures >= FAILURES && memory.fresh() > 0 {
            memory.skip_unkept();
        }
    }

    /// Makes room for a block behind another one; false where there is none.
    fn make_room(&mut self, parent: Option<KeptId>) -> bool {
        while self.disk.free_places() == 0 {
            let Some(slot) = self.index.evict(parent) else { return false };
            self.free(slot);
        }
        true
    }

    /// Handles completed transfers.
    pub fn poll(&mut self) {
        while let Some(done) = self.disk.poll() {
            self.arrived(done);
        }
    }

    /// Waits for a transfer to complete.
    pub fn wait(&mut self, timeout: Duration) {
        if let Some(done) = self.disk.wait(timeout) {
            self.arrived(done);
        }
        self.poll();
    }

    fn arrived(&mut self, done: Completion) {
        self.moved = Instant::now();
        match done.kind {
            Kind::Write => self.was_written(done),
            Kind::Read => self.was_read(done),
        }
    }

    fn was_written(&mut self, Completion { place, sum, page, result, .. }: Completion) {
        self.spare.push(page);
        let Some(id) = self.writing.remove(&place.number()) else { return };
        if let Err(error) = result {
            self.drop(id);
            self.write_failed(&error);
            return;
        }
        self.failures = 0;
        // The entry comes behind the page.
        let Some(KeptRecord { id, parent, slot, key }) = self.index.written(id) else { return };
        let entry = KeptEntry { id: id.0, parent: parent.map(|id| id.0), slot, sum, key: key.to_vec() };
        match self.disk.record(&entry) {
            Ok(()) => self.stats.bytes_written += self.page_bytes as u64,
            Err(error) => {
                self.drop(id);
                self.write_failed(&PageError::Io(error));
            }
        }
    }

    fn was_read(&mut self, Completion { tag, page, result, .. }: Completion) {
        let id = KeptId(tag);
        self.index.was_read(id);
        let place = self.coming.as_mut().and_then(|coming| {
            let at = coming.ids.get(coming.first..)?.iter().position(|one| *one == id)?;
            coming.under_way = coming.under_way.saturating_sub(1);
            coming.pages.get_mut(at)
        });
        match (result, place) {
            (Ok(()), Some(place)) => {
                self.stats.bytes_read += self.page_bytes as u64;
                *place = Some(page);
            }
            (Ok(()), None) => self.spare.push(page),
            (Err(error), _) => {
                self.spare.push(page);
                // Whatever was behind a block that is not what it was is of no use.
                let gone = self.drop(id);
                self.fail(format_args!("reading failed: {error}: {gone} blocks are dropped and computed"));
            }
        }
    }

    /// Removes a block and all behind it; how many those were.
    fn drop(&mut self, id: KeptId) -> usize {
        let slots = self.index.remove(id);
        let count = slots.len();
        slots.into_iter().for_each(|slot| self.free(slot));
        count
    }

    fn free(&mut self, slot: u32) {
        if let Err(error) = self.disk.free(slot) {
            self.fail(format_args!("the index cannot be written: {error}"));
        }
    }

    fn write_failed(&mut self, why: &PageError) {
        self.failures += 1;
        let end = if self.failures == FAILURES { "; no more is written to this disk" } else { "" };
        self.fail(format_args!("writing to disk failed: {why}{end}"));
    }

    fn fail(&mut self, what: std::fmt::Arguments) {
        self.stats.failures += 1;
        (self.report)(format_args!("kept prefixes: {what}"));
    }

    /// Starts the clock of the disk's progress, if it was idle.
    fn begin(&mut self) {
        if self.disk.in_flight() == 0 {
            self.moved = Instant::now();
        }
    }

    /// Gives up everything: what was computed is wrong.
    pub fn forget_all(&mut self) {
        if let Err(error) = self.disk.forget_all() {
            self.fail(format_args!("the index cannot be written: {error}"));
        }
        self.index = KeptIndex::default();
        self.writing.clear();
        self.give_up();
        // Nothing is written any more.
        self.failures = FAILURES;
    }

    /// The counters.
    pub fn count(&self) -> KeptStats {
        KeptStats { blocks: self.index.len(), capacity: self.disk.capacity(), ..self.stats }
    }
}
