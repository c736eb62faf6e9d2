//! The files of kept prefixes, and pages in transfer. `monomorph_cache::KeptIndex` decides what is
//! in them.

use super::super::memory::{Memory, place};
use super::super::states::copy_now;
use super::state::{Arriving, Leaving};
use crate::keep::{KeepOptions, parts};
use crate::shared::KeptStats;
use monomorph_cache::{
    Block, Content, KeptId, KeptIndex, KeptPrefix, KeptRecord, Snapshot, Unkept, key_words,
};
use monomorph_model::{BlockId, Model, ModelSpec};
use monomorph_store::{Completion, KeptEntry, KeptStore, Kind, OpenError, Page, PageError, PageMemory};
use std::collections::HashMap;
use std::sync::Arc;
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
    /// Blocks, and the state behind them, which are being read.
    Comes,
}

/// A prefix that comes back for a waiting sequence, some pages at a time: first the state behind it, which
/// waits in memory for the blocks.
#[derive(Debug)]
struct Coming {
    /// The sequence.
    number: u64,
    state: Arriving,
    /// Whether a part of the state cannot be had.
    failed: bool,
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
    /// Blocks and parts that are being written, by their slots.
    writing: HashMap<u32, KeptId>,
    /// A snapshot of which not all parts are being written yet.
    leaving: Option<Leaving>,
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
    state_bytes: usize,
    report: fn(std::fmt::Arguments),
    stats: KeptStats,
}

impl Keeper {
    /// Opens the files, and trusts of them what may be trusted.
    ///
    /// # Errors
    /// As [`KeptStore::open`].
    pub fn new(
        spec: &ModelSpec,
        options: &KeepOptions,
        [blocks, snapshots]: [usize; 2],
    ) -> Result<Keeper, OpenError> {
        let of = options.of(spec, blocks, snapshots);
        let (mut disk, entries) = KeptStore::open(&options.directory, &of, options.report)?;
        let record = |KeptEntry { id, parent, slot, kind, key, .. }: KeptEntry| KeptRecord {
            id: KeptId(id),
            parent: parent.map(KeptId),
            slot,
            kind,
            key: key.into(),
        };
        let records = entries.into_iter().map(record).collect();
        let (index, refused) = KeptIndex::trust(records, disk.capacity(), spec.block_tokens, parts(spec));
        if !refused.is_empty() {
            let (count, named) = (refused.len(), options.directory.display());
            (options.report)(format_args!(
                "kept prefixes in {named}: {count} pages follow ones that are gone, and are not used"
            ));
        }
        let (at_start, snapshots_at_start) = (index.len(), index.snapshots());
        let mut stats = KeptStats { at_start, snapshots_at_start, ..KeptStats::default() };
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
            leaving: None,
            coming: None,
            spare: Vec::new(),
            most: KeepOptions::pages(spec),
            failures: 0,
            moved: Instant::now(),
            page_bytes: of.page_bytes,
            block_bytes: spec.block_bytes,
            block_tokens: spec.block_tokens,
            state_bytes: usize::try_from(spec.state_bytes).unwrap_or(usize::MAX),
            report: options.report,
            stats,
        })
    }

    /// Whether pages are in transfer, or wait for others to be.
    pub fn under_way(&self) -> bool {
        self.disk.in_flight() > 0 || self.leaving.is_some()
    }

    /// Whether blocks or a snapshot could be copied out now.
    pub fn may_write(&self) -> bool {
        self.leaving.is_none() && self.may_begin()
    }

    /// Whether another page could be written now.
    fn may_begin(&self) -> bool {
        self.writing.len() < self.most
    }

    /// Pages that could be copied out now.
    pub fn room(&self) -> usize {
        self.most - self.writing.len().min(self.most)
    }

    /// Whether a part of a prefix is in memory and can be copied to the device.
    pub fn has_arrived(&self) -> bool {
        let arrived = |coming: &Coming| coming.under_way == 0 && (coming.failed || coming.state.is_whole());
        self.coming.as_ref().is_some_and(arrived)
    }

    /// The sequence that a prefix comes back for.
    pub fn comes_for(&self) -> Option<u64> {
        self.coming.as_ref().map(|coming| coming.number)
    }

    /// Looks for the rest of a prompt of which the first `found` blocks are in memory and can be gone on
    /// from, and the first `known` are there at all, up to `most` blocks, and begins to fetch it.
    pub fn ask(
        &mut self,
        number: u64,
        prompt: Content<'_>,
        [found, known]: [usize; 2],
        most: usize,
    ) -> Asked {
        if self.comes_for() == Some(number) {
            if self.moved.elapsed() < PATIENCE || self.has_arrived() {
                return Asked::Comes;
            }
            self.fail(format_args!("the disk does not answer: a prompt is computed"));
            self.give_up();
            return Asked::Nothing;
        }
        let KeptPrefix { blocks: ids, state } = self.index.find(prompt, self.block_tokens, most);
        if ids.len() <= found {
            return Asked::Nothing;
        }
        // Prefixes come one after another.
        if self.coming.is_none() {
            self.coming = Some(Coming {
                number,
                state: Arriving::new(state, self.state_bytes),
                failed: false,
                first: known.min(ids.len()),
                ids,
                pages: Vec::new(),
                under_way: 0,
            });
            self.fetch();
        }
        Asked::Comes
    }

    /// Counts the blocks of a prompt that were found in memory as used.
    pub fn touch(&mut self, prompt: Content<'_>) {
        let found = self.index.find(prompt, self.block_tokens, usize::MAX);
        self.index.touch(&found);
    }

    /// Begins to read the next pages of the prefix that comes: of its state, and of its blocks when all of
    /// that is there.
    fn fetch(&mut self) {
        self.begin();
        let Some(coming) = &mut self.coming else { return };
        if !coming.state.is_whole() {
            self.fetch_state();
            return;
        }
        coming.under_way = 0;
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

    /// Begins to read the next parts of the state that comes.
    fn fetch_state(&mut self) {
        while let Some(coming) = self.coming.as_mut().filter(|it| !it.failed && it.under_way < self.most)
            && let Some(id) = coming.state.next()
        {
            let page = self.spare.pop().unwrap_or_else(|| Page::zeroed(self.page_bytes));
            let Some(slot) = self.index.slot(id) else {
                // Gone meanwhile.
                coming.failed = true;
                self.spare.push(page);
                return;
            };
            match self.disk.read(slot, page, id.0) {
                Ok(()) => {
                    coming.under_way += 1;
                    self.index.reads(&[id]);
                }
                Err(refused) => {
                    coming.failed = true;
                    self.spare.push(refused.page);
                    self.fail(format_args!("reading failed: {}: a prompt is computed", refused.why));
                    return;
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
        // What can be gone on from behind its state alone is of use only if all of it comes.
        let state = coming.state.bytes();
        let fails = coming.failed || (state.is_some() && whole < asked);
        let last = whole == asked && first + whole == all;
        let mut more = whole == asked && !last && !fails;
        if !fails && (whole > 0 || (last && state.is_some())) {
            if last && state.is_some() && !memory.copies().is_empty() {
                // A copy may read the place that the state is given.
                copy_now(model, memory.copies().drain(..), &mut vec![0; self.state_bytes]);
            }
            let state = state.filter(|_| last);
            let blocks =
                memory.take_back(prompt, first, first + whole, state.is_some(), |known, blocks, at| {
                    for (block, page) in blocks[known..].iter().zip(&pages[known - first..]) {
                        model.write_block(BlockId(block.0), &page.bytes()[..self.block_bytes]);
                    }
                    if let (Some(at), Some(state)) = (at, state) {
                        model.write_state(at, state);
                    }
                })?;
            // There is no room, or what is before them went meanwhile.
            more &= blocks.is_some();
            self.stats.tokens_back += (blocks.unwrap_or(0) * self.block_tokens) as u64;
            self.stats.snapshots_back += u64::from(state.is_some() && blocks.is_some());
        }
        self.spare.append(&mut pages);
        if !more {
            if self.index.parts() > 0 {
                memory.give_up_back(prompt.first(first * self.block_tokens))?;
            }
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

    /// Copies blocks and snapshots out that the files do not have, as many as may be written at a time.
    pub(in crate::forward) fn copy_out<M: Model>(&mut self, model: &mut M, memory: &mut Memory) {
        while self.failures < FAILURES && self.may_write() {
            match memory.unkept(&self.index) {
                None => return,
                Some(Unkept::Block { block, parent, key, depth }) => {
                    let fits = depth + self.index.parts() <= self.disk.capacity()
                        && key.len() <= key_words(self.block_tokens);
                    if !fits {
                        memory.skip_unkept();
                    } else if self.make_room(parent) {
                        self.write_block(model, memory, block, parent, key);
                    } else if self.under_way() {
                        // What is in transfer may go when that is over.
                        return;
                    } else {
                        memory.skip_unkept();
                    }
                }
                Some(Unkept::State { snapshot, block }) => {
                    self.begin_state(model, memory, snapshot, block);
                    memory.skip_unkept();
                }
            }
        }
        while self.failures >= FAILURES && memory.fresh() > 0 {
            memory.skip_unkept();
        }
    }

    /// Copies a block out, and begins to write it.
    fn write_block<M: Model>(
        &mut self,
        model: &mut M,
        memory: &mut Memory,
        block: Block,
        parent: Option<KeptId>,
        key: Arc<[u32]>,
    ) {
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

    /// Copies a snapshot out, and begins to write it behind a block of the files.
    fn begin_state<M: Model>(
        &mut self,
        model: &mut M,
        memory: &mut Memory,
        snapshot: Snapshot,
        block: KeptId,
    ) {
        let mut state = vec![0; self.state_bytes];
        // The snapshot may be one that the next step would make.
        copy_now(model, memory.copies().drain(..), &mut state);
        model.read_state(place(snapshot), &mut state);
        self.leaving = Some(Leaving::new(self.index.add_state(block), state));
        self.write_parts();
    }

    /// Begins to write parts of the snapshot that was copied out, as many as may be written at a time.
    fn write_parts(&mut self) {
        while let Some(leaving) = &self.leaving
            && self.may_begin()
        {
            if leaving.next(self.page_bytes).is_none() {
                self.leaving = None;
                return;
            }
            if self.failures >= FAILURES || !self.make_room(None) {
                // What is in transfer may go when that is over.
                if self.failures >= FAILURES || self.disk.in_flight() == 0 {
                    self.give_up_state();
                }
                return;
            }
            self.begin();
            let mut page = self.spare.pop().unwrap_or_else(|| Page::zeroed(self.page_bytes));
            let next = self.leaving.as_ref().and_then(|leaving| leaving.next(self.page_bytes));
            let Some((id, part)) = next else { return };
            let (own, rest) = page.bytes_mut().split_at_mut(part.len());
            own.copy_from_slice(part);
            rest.fill(0);
            match self.disk.write(page, 0) {
                Ok(slot) => {
                    self.index.add_part(id, slot);
                    self.writing.insert(slot, id);
                    self.leaving.iter_mut().for_each(Leaving::begin);
                }
                Err(refused) => {
                    self.spare.push(refused.page);
                    self.give_up_state();
                    self.write_failed(&refused.why);
                }
            }
        }
    }

    /// No longer writes the snapshot that was copied out: there is no room for it, or a part failed.
    fn give_up_state(&mut self) {
        if let Some(first) = self.leaving.take().and_then(|leaving| leaving.first()) {
            self.drop(first);
        }
    }

    /// Makes room for a page behind a block; false where there is none.
    fn make_room(&mut self, parent: Option<KeptId>) -> bool {
        while self.disk.free_places() == 0 {
            let Some(slots) = self.index.evict(parent) else { return false };
            slots.into_iter().for_each(|slot| self.free(slot));
        }
        true
    }

    /// Handles completed transfers.
    pub fn poll(&mut self) {
        while let Some(done) = self.disk.poll() {
            self.arrived(done);
        }
        self.write_parts();
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
        let Some(KeptRecord { id, parent, slot, kind, key }) = self.index.written(id) else { return };
        let parent = parent.map(|id| id.0);
        let entry = KeptEntry { id: id.0, parent, slot, sum, kind, key: key.to_vec() };
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
        if self.coming.as_ref().is_some_and(|coming| coming.state.has(id) && !coming.state.is_whole()) {
            self.part_was_read(id, page, result);
            return;
        }
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
                self.read_failed(id, &error);
            }
        }
    }

    /// A part of the state that comes was read, or could not be.
    fn part_was_read(&mut self, id: KeptId, page: Page, result: Result<(), PageError>) {
        let Some(coming) = &mut self.coming else { return };
        coming.under_way = coming.under_way.saturating_sub(1);
        let read = result.is_ok() && coming.state.take(id, page.bytes());
        coming.failed |= !read;
        self.spare.push(page);
        match result {
            Ok(()) => {
                self.stats.bytes_read += self.page_bytes as u64;
                self.fetch();
            }
            Err(error) => self.read_failed(id, &error),
        }
    }

    /// A page is not what it was: whatever was behind it is of no use.
    fn read_failed(&mut self, id: KeptId, error: &PageError) {
        let gone = self.drop(id);
        self.fail(format_args!(
            "reading failed: {error}: {gone} pages are dropped, and what they held is computed"
        ));
    }

    /// Removes a block and all behind it, or a snapshot that has this part; how many pages those were.
    fn drop(&mut self, id: KeptId) -> usize {
        let slots = self.index.remove(id);
        let count = slots.len();
        // A snapshot of which something is gone is written no further.
        let goes_on = |leaving: &Leaving| leaving.first().is_some_and(|first| self.index.holds(first));
        self.leaving = self.leaving.take().filter(goes_on);
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
        self.index = KeptIndex::new(self.index.parts());
        self.writing.clear();
        self.leaving = None;
        self.give_up();
        // Nothing is written any more.
        self.failures = FAILURES;
    }

    /// The counters.
    pub fn count(&self) -> KeptStats {
        let (blocks, snapshots) = (self.index.len(), self.index.snapshots());
        KeptStats { blocks, snapshots, capacity: self.disk.capacity(), ..self.stats }
    }
}
