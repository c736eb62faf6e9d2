//! Kept prefixes: which blocks of cached prefixes, and which snapshots of recurrent states behind them, are
//! in a file that outlives the server, and what of it may be trusted at a start. Decisions on plain values,
//! without a disk.
//!
//! A kept page is named by a number that no other ever has. A block's record says which block comes before it
//! and which tokens and images it holds, so a path of records is a prefix, and what is found is compared
//! token by token, as in the index of the device's memory. Blocks go from the ends of paths, the one used
//! longest ago first.
//!
//! A model with recurrent state goes on only from a snapshot. A snapshot takes several pages, its parts,
//! which have numbers in a row; each part's record names the page before it, the first part's the block that
//! the state stands behind. Snapshots come and go whole, the one used longest ago first; blocks that no
//! snapshot is behind are of no use to such a model and go before any.

use crate::content::{Content, DIGEST_WORDS, key};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

/// Most images that have tokens in one kept block; a block with more is not kept.
pub const MOST_IMAGES: usize = 2;

/// Most words of a kept block's key: its ids, and the digests of its images.
pub const fn key_words(block_tokens: usize) -> usize {
    block_tokens + MOST_IMAGES * DIGEST_WORDS
}

/// The number of a kept page, at least 1. Later pages have higher ones, over all starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct KeptId(pub u64);

/// What is written down of a kept page once its bytes are in the file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeptRecord {
    /// Its number.
    pub id: KeptId,
    /// The page before it: the block before a block, `None` before the first of a prefix; before the first
    /// part of a snapshot the block that it stands behind, before another part the part before.
    pub parent: Option<KeptId>,
    /// Its slot in the file.
    pub slot: u32,
    /// What it holds: [`Self::BLOCK`] or [`Self::STATE`].
    pub kind: u32,
    /// Of a block its ids and the words of its images' digests; of a part of a snapshot which of them it is,
    /// from 0 on.
    pub key: Arc<[u32]>,
}

impl KeptRecord {
    /// The page holds a block.
    pub const BLOCK: u32 = 0;
    /// The page holds a part of a snapshot of a recurrent state.
    pub const STATE: u32 = 1;
}

/// A snapshot behind a block.
#[derive(Debug)]
struct State {
    /// The number of its first part; those of the others follow.
    first: KeptId,
    /// Slots of the parts that have one.
    slots: Vec<u32>,
    /// Parts whose bytes are in the file.
    written: usize,
    /// Reads of parts in flight.
    readers: u32,
    used: u64,
}

#[derive(Debug)]
struct Entry {
    parent: Option<KeptId>,
    slot: u32,
    key: Arc<[u32]>,
    children: u32,
    used: u64,
    /// Whether its bytes are in the file.
    written: bool,
    /// Reads in flight.
    readers: u32,
    state: Option<State>,
}

impl Entry {
    fn may_go(&self) -> bool {
        self.children == 0 && self.readers == 0 && self.written && self.state.is_none()
    }
}

/// What the files have of a prompt.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KeptPrefix {
    /// Its blocks, from the first on.
    pub blocks: Vec<KeptId>,
    /// The parts of the snapshot behind the last of them; none of a model without recurrent state.
    pub state: Vec<KeptId>,
}

/// All kept blocks and snapshots.
#[derive(Debug, Default)]
pub struct KeptIndex {
    /// Pages of a snapshot; 0 of a model without recurrent state.
    parts: usize,
    entries: HashMap<KeptId, Entry>,
    /// By the block before and the key.
    children: HashMap<(Option<KeptId>, Arc<[u32]>), KeptId>,
    /// Blocks that may go, least recently used first.
    leaves: BTreeSet<(u64, KeptId)>,
    /// The block of each snapshot, by the number of the first part.
    states: BTreeMap<KeptId, KeptId>,
    /// The first parts of snapshots that may go, least recently used first.
    idle: BTreeSet<(u64, KeptId)>,
    last: u64,
    clock: u64,
}

impl KeptIndex {
    /// An empty index of a model whose snapshots take so many pages; 0 of one without recurrent state.
    pub fn new(parts: usize) -> KeptIndex {
        KeptIndex { parts, ..KeptIndex::default() }
    }

    /// What may be trusted of the records in a file with `slots` slots, of blocks of `block_tokens` tokens
    /// and snapshots of `parts` pages; and the records that may not, whose slots are to be cleared.
    ///
    /// A block is trusted if its slot exists and is no other's, its key has a block's length, its number is
    /// no other's, and the block before it has a lower number and is trusted. A snapshot is trusted if all
    /// its parts are there, in order, behind each other and with numbers in a row, each in a slot of its own,
    /// and the block that it stands behind is trusted. Of two that say the same the older one is. So whatever
    /// is missing, every path that is left is a whole prefix, and every snapshot is whole.
    pub fn trust(
        records: Vec<KeptRecord>,
        slots: usize,
        block_tokens: usize,
        parts: usize,
    ) -> (KeptIndex, Vec<KeptRecord>) {
        let mut records = records;
        records.sort_by_key(|record| (record.id, record.slot));
        let (mut index, mut refused) = (KeptIndex::new(parts), Vec::new());
        let mut taken = BTreeSet::<u32>::new();
        let mut left = &records[..];
        while let Some((record, rest)) = left.split_first() {
            let is_new = |slot: u32| (slot as usize) < slots && !taken.contains(&slot);
            let whole = match record.kind {
                KeptRecord::BLOCK if index.trusts_block(record, block_tokens) => left.get(..1),
                KeptRecord::STATE => left.get(..parts).filter(|all| index.trusts_state(all)),
                _ => None,
            };
            let distinct = |all: &&[KeptRecord]| {
                let own: BTreeSet<u32> = all.iter().map(|one| one.slot).collect();
                own.len() == all.len() && own.into_iter().all(is_new)
            };
            let Some(whole) = whole.filter(distinct) else {
                refused.push(record.clone());
                left = rest;
                continue;
            };
            left = &left[whole.len()..];
            index.last = record.id.0 - 1;
            taken.extend(whole.iter().map(|one| one.slot));
            match (record.kind, record.parent) {
                (KeptRecord::STATE, Some(block)) => {
                    index.add_state(block);
                    for one in whole {
                        index.add_part(one.id, one.slot);
                        index.written(one.id);
                    }
                }
                _ => {
                    let id = index.add(record.parent, Arc::clone(&record.key), record.slot);
                    index.written(id);
                }
            }
        }
        (index, refused)
    }

    /// Whether a record's number is that of no page so far.
    fn is_next(&self, record: &KeptRecord) -> bool {
        record.id.0 > self.last && record.id.0 < u64::MAX
    }

    /// Whether a block may stand where its record says, its slot aside.
    fn trusts_block(&self, record: &KeptRecord, block_tokens: usize) -> bool {
        let images = record.key.len().checked_sub(block_tokens);
        let whole =
            images.is_some_and(|it| it.is_multiple_of(DIGEST_WORDS) && it <= MOST_IMAGES * DIGEST_WORDS);
        whole
            && self.is_next(record)
            && record.parent.is_none_or(|parent| self.entries.contains_key(&parent))
            && !self.children.contains_key(&(record.parent, Arc::clone(&record.key)))
    }

    /// Whether these are all parts of a snapshot that may stand where they say, their slots aside.
    fn trusts_state(&self, all: &[KeptRecord]) -> bool {
        let Some(first) = all.first() else { return false };
        let block = first.parent.and_then(|block| self.entries.get(&block));
        let in_order = |(at, one): (usize, &KeptRecord)| {
            one.kind == KeptRecord::STATE
                && *one.key == [at as u32]
                && self.is_next(one)
                && one.id.0 - first.id.0 == at as u64
                && (at == 0 || one.parent == Some(KeptId(one.id.0 - 1)))
        };
        block.is_some_and(|block| block.state.is_none()) && all.iter().enumerate().all(in_order)
    }

    /// Number of kept blocks, those that are being written included.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Number of kept snapshots, those that are being written included.
    pub fn snapshots(&self) -> usize {
        self.states.len()
    }

    /// Pages of a snapshot; 0 of a model without recurrent state.
    pub fn parts(&self) -> usize {
        self.parts
    }

    /// Whether this block, or the snapshot that has this part, is kept or is being written.
    pub fn holds(&self, id: KeptId) -> bool {
        self.entries.contains_key(&id) || self.part(id).is_some()
    }

    /// Whether the snapshot behind this block is kept, or is being written.
    pub fn has_state(&self, block: KeptId) -> bool {
        self.entries.get(&block).is_some_and(|entry| entry.state.is_some())
    }

    /// The slot of a kept block, or of a part of a snapshot.
    pub fn slot(&self, id: KeptId) -> Option<u32> {
        match self.part(id) {
            Some((block, at)) => self.entries.get(&block)?.state.as_ref()?.slots.get(at).copied(),
            None => self.entries.get(&id).map(|entry| entry.slot),
        }
    }

    /// The block behind `parent` that has this key.
    pub fn child(&self, parent: Option<KeptId>, key: &Arc<[u32]>) -> Option<KeptId> {
        self.children.get(&(parent, Arc::clone(key))).copied()
    }

    /// The longest kept prefix of a prompt that can be gone on from, in full blocks whose bytes are in the
    /// file, at most `most`: of a model with recurrent state, up to the last whole snapshot.
    pub fn find(&self, content: Content<'_>, block_tokens: usize, most: usize) -> KeptPrefix {
        let mut found: Vec<KeptId> = Vec::new();
        // The blocks up to the last snapshot, and the number of its first part.
        let mut resumable: Option<(usize, KeptId)> = None;
        for at in 0..(content.len() / block_tokens).min(most) {
            let (tokens, images) = content.block(at, block_tokens);
            let place = (found.last().copied(), Arc::from(&*key(tokens, &images)));
            let Some(id) = self.children.get(&place).filter(|id| self.entries[id].written) else { break };
            found.push(*id);
            let state = self.entries[id].state.as_ref().filter(|state| state.written == self.parts);
            resumable = state.map(|state| (found.len(), state.first)).or(resumable);
        }
        match (self.parts, resumable) {
            (0, _) => KeptPrefix { blocks: found, state: Vec::new() },
            (_, None) => KeptPrefix::default(),
            (parts, Some((blocks, first))) => {
                found.truncate(blocks);
                let state = (first.0..).take(parts).map(KeptId).collect();
                KeptPrefix { blocks: found, state }
            }
        }
    }

    /// Adds a block that is being written to a slot. Nothing behind `parent` has this key, and `parent` is
    /// there.
    pub fn add(&mut self, parent: Option<KeptId>, key: Arc<[u32]>, slot: u32) -> KeptId {
        self.last += 1;
        let id = KeptId(self.last);
        let used = self.tick();
        if let Some(parent) = parent {
            self.change(parent, |entry| entry.children += 1);
        }
        self.children.insert((parent, Arc::clone(&key)), id);
        let entry = Entry { parent, slot, key, children: 0, used, written: false, readers: 0, state: None };
        self.entries.insert(id, entry);
        id
    }

    /// Adds the snapshot behind a block that is there and has none; [`Self::add_part`] follows for each of
    /// its parts. Returns the parts' numbers.
    pub fn add_state(&mut self, block: KeptId) -> Vec<KeptId> {
        let parts: Vec<KeptId> = (self.last + 1..).take(self.parts).map(KeptId).collect();
        let Some(first) = parts.first().copied() else { return parts };
        self.last += self.parts as u64;
        let used = self.tick();
        let state = State { first, slots: Vec::new(), written: 0, readers: 0, used };
        self.states.insert(first, block);
        self.change(block, |entry| entry.state = Some(state));
        parts
    }

    /// Adds the next part of a snapshot, which is being written to a slot.
    pub fn add_part(&mut self, id: KeptId, slot: u32) {
        self.change_state(id, |state| state.slots.push(slot));
    }

    /// Records that the bytes of a block, or of a part of a snapshot, are in the file. Returns what to write
    /// down, unless it was removed meanwhile.
    pub fn written(&mut self, id: KeptId) -> Option<KeptRecord> {
        if let Some((block, at)) = self.part(id) {
            self.change_state(id, |state| state.written += 1);
            let (slot, parent) = (self.slot(id)?, if at == 0 { block } else { KeptId(id.0 - 1) });
            let key = Arc::from([at as u32]);
            return Some(KeptRecord { id, parent: Some(parent), slot, kind: KeptRecord::STATE, key });
        }
        self.change(id, |entry| entry.written = true);
        let Entry { parent, slot, key, .. } = self.entries.get(&id)?;
        let (parent, slot, key) = (*parent, *slot, Arc::clone(key));
        Some(KeptRecord { id, parent, slot, kind: KeptRecord::BLOCK, key })
    }

    /// Records that blocks or parts are about to be read, now: they stay until [`Self::was_read`].
    pub fn reads(&mut self, ids: &[KeptId]) {
        for id in ids {
            let now = self.tick();
            self.change(*id, |entry| {
                entry.readers += 1;
                entry.used = now;
            });
            self.change_state(*id, |state| {
                state.readers += 1;
                state.used = now;
            });
        }
    }

    /// Ends a read of a block or part.
    pub fn was_read(&mut self, id: KeptId) {
        self.change(id, |entry| entry.readers = entry.readers.saturating_sub(1));
        self.change_state(id, |state| state.readers = state.readers.saturating_sub(1));
    }

    /// Counts a prefix as used now.
    pub fn touch(&mut self, prefix: &KeptPrefix) {
        for id in &prefix.blocks {
            let now = self.tick();
            self.change(*id, |entry| entry.used = now);
        }
        if let Some(first) = prefix.state.first() {
            let now = self.tick();
            self.change_state(*first, |state| state.used = now);
        }
    }

    /// Removes what was used longest ago of what may go, and returns its slots: a block that nothing is kept
    /// behind, never `but`, behind which something is to be added; else a snapshot.
    pub fn evict(&mut self, but: Option<KeptId>) -> Option<Vec<u32>> {
        if let Some((_, id)) = self.leaves.iter().find(|(_, id)| Some(*id) != but) {
            let id = *id;
            return Some(self.take(id));
        }
        let (_, first) = *self.idle.first()?;
        Some(self.take_state(first))
    }

    /// Removes a block, because it is not what it was, and all behind it; or a snapshot, of which this is a
    /// part. Returns their slots, last ones first.
    pub fn remove(&mut self, id: KeptId) -> Vec<u32> {
        if self.part(id).is_some() {
            return self.take_state(id);
        }
        // What is behind a block has a higher number.
        let mut behind: Vec<(KeptId, Option<KeptId>)> =
            self.entries.iter().map(|(id, entry)| (*id, entry.parent)).filter(|(one, _)| *one > id).collect();
        behind.sort_unstable();
        let mut doomed = BTreeSet::<KeptId>::new();
        doomed.insert(id);
        for (id, parent) in behind {
            if parent.is_some_and(|parent| doomed.contains(&parent)) {
                doomed.insert(id);
            }
        }
        doomed.into_iter().rev().flat_map(|id| self.take(id)).collect()
    }

    /// Removes a block that nothing is kept behind but a snapshot, which goes too.
    fn take(&mut self, id: KeptId) -> Vec<u32> {
        let first = self.entries.get(&id).and_then(|entry| entry.state.as_ref()).map(|state| state.first);
        let mut slots = first.map_or_else(Vec::new, |first| self.take_state(first));
        let Some(Entry { parent, slot, key, used, .. }) = self.entries.remove(&id) else { return slots };
        self.leaves.remove(&(used, id));
        self.children.remove(&(parent, key));
        if let Some(parent) = parent {
            self.change(parent, |entry| entry.children -= 1);
        }
        slots.push(slot);
        slots
    }

    /// Removes the snapshot that has this part.
    fn take_state(&mut self, id: KeptId) -> Vec<u32> {
        let Some((block, _)) = self.part(id) else { return Vec::new() };
        let mut taken = None;
        self.change(block, |entry| taken = entry.state.take());
        let Some(State { first, slots, used, .. }) = taken else { return Vec::new() };
        self.idle.remove(&(used, first));
        self.states.remove(&first);
        slots
    }

    /// The block whose snapshot has this part, and which of its parts it is.
    fn part(&self, id: KeptId) -> Option<(KeptId, usize)> {
        let (first, block) = self.states.range(..=id).next_back()?;
        let at = usize::try_from(id.0 - first.0).ok().filter(|at| *at < self.parts)?;
        Some((*block, at))
    }

    /// Changes the snapshot that has this part, if there is one, and its place among those that may go.
    fn change_state(&mut self, id: KeptId, change: impl FnOnce(&mut State)) {
        let block = self.part(id).and_then(|(block, _)| self.entries.get_mut(&block));
        let Some(state) = block.and_then(|entry| entry.state.as_mut()) else { return };
        self.idle.remove(&(state.used, state.first));
        change(state);
        if state.written == self.parts && state.readers == 0 {
            self.idle.insert((state.used, state.first));
        }
    }

    /// Changes an entry, if there is one, and its place among those that may go.
    fn change(&mut self, id: KeptId, change: impl FnOnce(&mut Entry)) {
        let Some(entry) = self.entries.get_mut(&id) else { return };
        self.leaves.remove(&(entry.used, id));
        change(entry);
        if entry.may_go() {
            self.leaves.insert((entry.used, id));
        }
    }

    fn tick(&mut self) -> u64 {
        self.clock += 1;
        self.clock
    }
}
