//! Kept prefixes: which blocks of cached prefixes are in a file that outlives the server, and what of it may
//! be trusted at a start. Decisions on plain values, without a disk.
//!
//! A kept block is named by a number that no other ever has. Its record says which block comes before it and
//! which tokens and images it holds, so a path of records is a prefix, and what is found is compared token by
//! token, as in the index of the device's memory. Blocks go from the ends of paths, the one used longest ago
//! first.

use crate::content::{Content, DIGEST_WORDS, key};
use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

/// Most images that have tokens in one kept block; a block with more is not kept.
pub const MOST_IMAGES: usize = 2;

/// Most words of a kept block's key: its ids, and the digests of its images.
pub const fn key_words(block_tokens: usize) -> usize {
    block_tokens + MOST_IMAGES * DIGEST_WORDS
}

/// The number of a kept block, at least 1. Later blocks have higher ones, over all starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct KeptId(pub u64);

/// What is written down of a kept block once its bytes are in the file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeptRecord {
    /// Its number.
    pub id: KeptId,
    /// The block before it; `None` of the first of a prefix.
    pub parent: Option<KeptId>,
    /// Its slot in the file.
    pub slot: u32,
    /// Its ids and the words of its images' digests.
    pub key: Arc<[u32]>,
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
}

impl Entry {
    fn may_go(&self) -> bool {
        self.children == 0 && self.readers == 0 && self.written
    }
}

/// All kept blocks.
#[derive(Debug, Default)]
pub struct KeptIndex {
    entries: HashMap<KeptId, Entry>,
    /// By the block before and the key.
    children: HashMap<(Option<KeptId>, Arc<[u32]>), KeptId>,
    /// Those that may go, least recently used first.
    leaves: BTreeSet<(u64, KeptId)>,
    last: u64,
    clock: u64,
}

impl KeptIndex {
    /// What may be trusted of the records in a file with `slots` slots, of blocks of `block_tokens` tokens;
    /// and the slots of the records that may not, which are to be cleared.
    ///
    /// A record is trusted if its slot exists and is no other's, its key has a block's length, its number is
    /// no other's, and the block before it has a lower number and is trusted. Of two that say the same the
    /// older one is. So whatever is missing, every path that is left is a whole prefix.
    pub fn trust(
        records: Vec<KeptRecord>,
        slots: usize,
        block_tokens: usize,
    ) -> (KeptIndex, Vec<KeptRecord>) {
        let mut records = records;
        records.sort_by_key(|record| (record.id, record.slot));
        let (mut index, mut refused) = (KeptIndex::default(), Vec::new());
        let mut taken = BTreeSet::<u32>::new();
        for record in records {
            let images = record.key.len().checked_sub(block_tokens);
            let whole =
                images.is_some_and(|it| it.is_multiple_of(DIGEST_WORDS) && it <= MOST_IMAGES * DIGEST_WORDS);
            let good = whole
                && record.id.0 > index.last
                && record.id.0 < u64::MAX
                && (record.slot as usize) < slots
                && !taken.contains(&record.slot)
                && record.parent.is_none_or(|parent| index.entries.contains_key(&parent))
                && !index.children.contains_key(&(record.parent, Arc::clone(&record.key)));
            if !good {
                refused.push(record);
                continue;
            }
            taken.insert(record.slot);
            index.last = record.id.0 - 1;
            let id = index.add(record.parent, record.key, record.slot);
            index.written(id);
        }
        (index, refused)
    }

    /// Number of kept blocks, those that are being written included.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Whether this block is kept, or is being written.
    pub fn holds(&self, id: KeptId) -> bool {
        self.entries.contains_key(&id)
    }

    /// The slot of a kept block.
    pub fn slot(&self, id: KeptId) -> Option<u32> {
        self.entries.get(&id).map(|entry| entry.slot)
    }

    /// The block behind `parent` that has this key.
    pub fn child(&self, parent: Option<KeptId>, key: &Arc<[u32]>) -> Option<KeptId> {
        self.children.get(&(parent, Arc::clone(key))).copied()
    }

    /// The longest kept prefix of a prompt, in full blocks whose bytes are in the file, at most `most`.
    pub fn find(&self, content: Content<'_>, block_tokens: usize, most: usize) -> Vec<KeptId> {
        let mut found: Vec<KeptId> = Vec::new();
        for at in 0..(content.len() / block_tokens).min(most) {
            let (tokens, images) = content.block(at, block_tokens);
            let place = (found.last().copied(), Arc::from(&*key(tokens, &images)));
            let Some(id) = self.children.get(&place).filter(|id| self.entries[id].written) else { break };
            found.push(*id);
        }
        found
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
        let entry = Entry { parent, slot, key, children: 0, used, written: false, readers: 0 };
        self.entries.insert(id, entry);
        id
    }

    /// Records that a block's bytes are in the file. Returns what to write down, unless it was removed
    /// meanwhile.
    pub fn written(&mut self, id: KeptId) -> Option<KeptRecord> {
        self.change(id, |entry| entry.written = true);
        let Entry { parent, slot, key, .. } = self.entries.get(&id)?;
        Some(KeptRecord { id, parent: *parent, slot: *slot, key: Arc::clone(key) })
    }

    /// Records that blocks are about to be read, now: they stay until [`Self::was_read`].
    pub fn reads(&mut self, ids: &[KeptId]) {
        for id in ids {
            let now = self.tick();
            self.change(*id, |entry| {
                entry.readers += 1;
                entry.used = now;
            });
        }
    }

    /// Ends a read of a block.
    pub fn was_read(&mut self, id: KeptId) {
        self.change(id, |entry| entry.readers = entry.readers.saturating_sub(1));
    }

    /// Counts blocks as used now.
    pub fn touch(&mut self, ids: &[KeptId]) {
        for id in ids {
            let now = self.tick();
            self.change(*id, |entry| entry.used = now);
        }
    }

    /// Removes the block used longest ago of those that nothing is kept behind, and returns its slot; never
    /// `but`, behind which a block is to be added.
    pub fn evict(&mut self, but: Option<KeptId>) -> Option<u32> {
        let (_, id) = *self.leaves.iter().find(|(_, id)| Some(*id) != but)?;
        self.take(id)
    }

    /// Removes a block, because it is not what it was, and all behind it; returns their slots, last ones
    /// first.
    pub fn remove(&mut self, id: KeptId) -> Vec<u32> {
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
        doomed.into_iter().rev().filter_map(|id| self.take(id)).collect()
    }

    fn take(&mut self, id: KeptId) -> Option<u32> {
        let Entry { parent, slot, key, used, .. } = self.entries.remove(&id)?;
        self.leaves.remove(&(used, id));
        self.children.remove(&(parent, key));
        if let Some(parent) = parent {
            self.change(parent, |entry| entry.children -= 1);
        }
        Some(slot)
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
