//! Blocks, slots and snapshots: the device memory of sequences, and what the cache keeps of earlier ones.
//!
//! A block is indexed when the step that filled it is collected, a snapshot when the step that saved it is:
//! what a lookup finds is there, whatever is in flight. Copies of states are part of the next step. The
//! device runs steps in order, so a place may be reused as soon as the step that reads it is planned.

use super::row::Row;
use super::sliding::SlidingWindows;
use crate::options::{EngineOptions, OffloadShare};
use crate::scheduler::comes;
use crate::sequence::Sequence;
use crate::shared::Stats;
use monomorph_cache::{
    Block, Content, Evicted, KeptIndex, Lease, Match, OffloadPlace, PoolError, PrefixCache, Reuse,
    SavePoints, Share, Snapshot, Unkept,
};
use monomorph_model::{BlockId, ModelSpec, Slot, SnapshotId, StateCopy, StatePlace};
use std::time::Instant;

/// Accounts for all device memory; only this module changes the accounts.
pub(super) struct Memory {
    block_tokens: usize,
    cache: PrefixCache,
    windows: SlidingWindows,
    free_slots: Vec<Slot>,
    /// Copies of states that the next step begins with.
    copies: Vec<StateCopy>,
    /// Evictions not yet added to the counters.
    evictions: Evictions,
    /// Where states are saved; `None` where they are not.
    saves: Option<SavePoints>,
    /// Whether blocks can be found as soon as they are computed. Matches end at multiples of `granule`
    /// tokens.
    shares: bool,
    granule: usize,
    /// Whether a pre-empted sequence decodes its generated tokens again, one a step, instead of prefilling
    /// them.
    replays: bool,
}

/// Numbers of evictions not yet added to the counters.
#[derive(Debug, Default)]
struct Evictions {
    blocks: u64,
    snapshots: u64,
}

impl Evictions {
    fn count(&mut self, evicted: &[Evicted]) {
        for one in evicted {
            self.blocks += u64::from(one.block);
            self.snapshots += u64::from(one.snapshot.is_some());
        }
    }
}

impl Memory {
    /// All memory free, for at most so many running sequences.
    pub fn new(spec: &ModelSpec, options: &EngineOptions, sequences: usize) -> Memory {
        let EngineOptions { blocks, ref prefix, offload, sliding, .. } = *options;
        let windows = SlidingWindows::new(spec, sliding, blocks, offload.is_some());
        let reuse = match (prefix.enabled, spec.state_bytes, prefix.snapshots) {
            (true, 0, _) => Reuse::Blocks,
            (true, _, 1..) => Reuse::Snapshots { places: prefix.snapshots },
            (false, ..) | (true, _, 0) => Reuse::Nothing,
        };
        // A reused prefix consists of whole blocks and ends where prefill chunks may.
        let granule =
            spec.block_tokens * spec.chunk_alignment() / gcd(spec.block_tokens, spec.chunk_alignment());
        let points = SavePoints { granule, interval: prefix.snapshot_interval };
        let slots = u32::try_from(sequences).unwrap_or(u32::MAX);
        let cache = windows.of(PrefixCache::new(blocks, spec.block_tokens, granule, reuse));
        let cache = if options.keep.is_some() { cache.with_keeping() } else { cache };
        Memory {
            block_tokens: spec.block_tokens,
            cache: match offload {
                None => cache,
                Some(OffloadShare { room, resident }) => {
                    let (fed, reach) = (spec.step_tokens, spec.reach());
                    let share = Share::new(resident, room.group, spec.block_tokens, fed, reach);
                    cache.with_offload(share, room.places)
                }
            },
            windows,
            free_slots: (0..slots).rev().map(Slot).collect(),
            copies: Vec::new(),
            evictions: Evictions::default(),
            saves: matches!(reuse, Reuse::Snapshots { .. }).then_some(points),
            shares: matches!(reuse, Reuse::Blocks),
            granule,
            replays: spec.batch_invariant.is_some(),
        }
    }

    /// The accounts of blocks and snapshots.
    pub fn cache(&self) -> &PrefixCache {
        &self.cache
    }

    /// What sequences may hold of the blocks of layers with a sliding window.
    pub fn windows(&self) -> &SlidingWindows {
        &self.windows
    }

    /// Most blocks of the device that a sequence may have.
    pub fn share(&self) -> Share {
        *self.cache.share()
    }

    /// Slots that no sequence holds.
    pub fn free_slots(&self) -> &[Slot] {
        &self.free_slots
    }

    /// Whether a pre-empted sequence decodes its generated tokens again instead of prefilling them.
    pub fn replays(&self) -> bool {
        self.replays
    }

    /// Where states are saved; `None` where they are not.
    pub fn saves(&self) -> Option<&SavePoints> {
        self.saves.as_ref()
    }

    /// What the cache has of a waiting sequence's tokens.
    pub fn lookup(&self, sequence: &Sequence) -> Match {
        self.cache.lookup(sequence.sought(self.replays))
    }

    /// What the index has of the blocks of a sequence that resumes from its copy.
    pub fn lookup_copied(&self, sequence: &Sequence) -> Match {
        self.cache.lookup_blocks(sequence.stored(self.replays))
    }

    /// Whether a running sequence will soon cache more of this prompt than `found`. `others` are those
    /// sequences, each with its number of indexed tokens.
    pub fn is_coming<'a>(
        &self,
        sequence: &Sequence,
        found: usize,
        mut others: impl Iterator<Item = (&'a Sequence, usize)>,
    ) -> bool {
        let prompt = sequence.sought(self.replays);
        // Blocks that may be offloaded are not indexed.
        let known = |one: &Sequence| one.reusable(self.replays).len().min(self.cache.kept_tokens());
        self.shares
            && others
                .any(|(one, left)| comes(prompt, found, one.content().first(known(one)), left, self.granule))
    }

    /// For each of `leases`, how many blocks it frees if it and all after it are given up.
    pub fn returns<'a>(&self, leases: impl Iterator<Item = &'a Lease>) -> Vec<usize> {
        self.cache.returns(leases)
    }

    /// Gives a sequence a slot and the cached prefix of its tokens, and returns that.
    ///
    /// # Errors
    /// On an accounting error.
    pub fn admit(&mut self, sequence: &mut Sequence, now: Instant) -> Result<Match, String> {
        let (lease, found) = self.cache.admit(sequence.sought(self.replays)).map_err(unbalanced)?;
        sequence.slot = self.free_slots.pop();
        sequence.begin(lease, &found, self.replays, now);
        if let (Some(snapshot), Some(slot)) = (found.snapshot, sequence.slot) {
            let (from, to) = (place(snapshot), StatePlace::Slot(slot));
            self.copies.push(StateCopy { from, to });
        }
        Ok(found)
    }

    /// Gives a swapped-out sequence a slot, and those of its blocks that are indexed. The others are written
    /// back once it has blocks for them.
    ///
    /// # Errors
    /// On an accounting error.
    pub fn resume(&mut self, sequence: &mut Sequence, now: Instant) -> Result<(), String> {
        let (mut lease, _) = self.cache.admit_blocks(sequence.stored(self.replays)).map_err(unbalanced)?;
        let (_, restored) = self.cache.restore_sliding(&mut lease, sequence.fed()).map_err(unbalanced)?;
        sequence.slot = self.free_slots.pop();
        sequence.resume(lease, restored, now);
        Ok(())
    }

    /// Gives a sequence blocks for so many tokens.
    ///
    /// # Errors
    /// When there are too few.
    pub fn grow(&mut self, sequence: &mut Sequence, tokens: usize) -> Result<(), String> {
        let grown = self.cache.grow(&mut sequence.lease, tokens);
        self.evictions.count(&grown.map_err(|error| format!("planned, but {error}"))?);
        Ok(())
    }

    /// Gives a sequence blocks of layers with a sliding window for so many tokens.
    ///
    /// # Errors
    /// When there are too few.
    pub fn grow_sliding(&mut self, sequence: &mut Sequence, tokens: usize) -> Result<(), String> {
        let grown = self.cache.grow_sliding(&mut sequence.lease, tokens);
        grown.map_err(|error| format!("planned, but behind windows {error}"))
    }

    /// Records that `done` tokens of a sequence are in the cache: behind their window its layers that have
    /// one give their blocks back.
    ///
    /// # Errors
    /// On an accounting error.
    pub fn book(&mut self, row: &Row, sequence: &mut Sequence, done: usize) -> Result<(), String> {
        let known = done.min(sequence.reusable(self.replays).len());
        let (lease, content) = sequence.lease_and_content();
        if let Some((snapshot, at)) = row.save {
            self.cache.keep(lease, content.first(at), snapshot).map_err(unbalanced)?;
        }
        self.cache.extend(lease, content.first(known)).map_err(unbalanced)?;
        self.cache.slide(lease, done).map_err(unbalanced)
    }

    /// How many tokens fill a block.
    pub fn block_tokens(&self) -> usize {
        self.block_tokens
    }

    /// Blocks or snapshots that the index came to know and that may have to be kept.
    pub fn fresh(&self) -> usize {
        self.cache.fresh()
    }

    /// What to keep next.
    pub fn unkept(&mut self, file: &KeptIndex) -> Option<Unkept> {
        self.cache.unkept(file)
    }

    /// Passes over what is not kept.
    pub fn skip_unkept(&mut self) {
        self.cache.skip_unkept();
    }

    /// Blocks of a prompt that the index knows, whether it can be gone on from them or not.
    pub fn known_blocks(&self, prompt: Content<'_>) -> usize {
        self.cache.lookup_blocks(prompt).tokens / self.block_tokens
    }

    /// Has the first `blocks` blocks of a prompt filled, of which `known` were known to the index, and where
    /// `state` says so a snapshot of the state behind them, and tells the index of them: nobody holds them
    /// afterwards. `fill` is given how many of them it knows, which are full, all of them, and the snapshot.
    /// Returns how many blocks were filled; `None` where there was no room, or fewer were known.
    ///
    /// # Errors
    /// On an accounting error.
    pub fn take_back(
        &mut self,
        prompt: Content<'_>,
        known: usize,
        blocks: usize,
        state: bool,
        fill: impl FnOnce(usize, &[Block], Option<StatePlace>),
    ) -> Result<Option<usize>, String> {
        let Some((mut lease, evicted)) = self.cache.take_back(prompt, known, blocks).map_err(unbalanced)?
        else {
            return Ok(None);
        };
        self.evictions.count(&evicted);
        let snapshot = if state { self.cache.reserve() } else { None };
        if state && snapshot.is_none() {
            self.cache.release(&mut lease).map_err(unbalanced)?;
            return Ok(None);
        }
        let snapshot = snapshot.map(|(snapshot, evicted)| {
            self.evictions.count(&evicted);
            snapshot
        });
        let indexed = lease.indexed_blocks();
        fill(indexed, lease.blocks(), snapshot.map(place));
        self.cache.bring_back(lease, prompt, snapshot).map_err(unbalanced)?;
        Ok(Some(blocks - indexed))
    }

    /// No more follows of a prefix that was taken back up to here.
    ///
    /// # Errors
    /// On an accounting error.
    pub fn give_up_back(&mut self, prompt: Content<'_>) -> Result<(), String> {
        self.cache.give_up_back(prompt).map_err(unbalanced)
    }

    /// Frees a snapshot that was never indexed.
    pub fn forget(&mut self, snapshot: Snapshot) {
        self.cache.forget(snapshot);
    }

    /// Saves the state of a sequence about to be fed, if a save is due; returns where to, and the number of
    /// tokens before it.
    pub fn save(&mut self, sequence: &mut Sequence, slot: Slot) -> Option<(Snapshot, usize)> {
        let most = sequence.reusable(self.replays).len().min(self.cache.kept_tokens());
        let at = sequence.due_save(self.saves.as_ref()?, most)?;
        let snapshot = self.reserve(slot)?;
        sequence.saved(at);
        Some((snapshot, at))
    }

    /// Saves the state of an ended sequence that no step in flight feeds, if no step fed it more than its
    /// tokens, and they fill their blocks.
    ///
    /// # Errors
    /// On an accounting error.
    pub fn save_last(&mut self, sequence: &mut Sequence) -> Result<(), String> {
        let Some(saves) = &self.saves else { return Ok(()) };
        let (Some(slot), Some(at)) = (sequence.slot, sequence.last_save()) else { return Ok(()) };
        if self.replays || at > self.cache.kept_tokens() || !at.is_multiple_of(saves.granule) {
            return Ok(());
        }
        if let Some(snapshot) = self.reserve(slot) {
            let (lease, content) = sequence.lease_and_content();
            self.cache.keep(lease, content.first(at), snapshot).map_err(unbalanced)?;
        }
        Ok(())
    }

    /// A place to which the next step copies the state of a slot.
    fn reserve(&mut self, slot: Slot) -> Option<Snapshot> {
        let (snapshot, evicted) = self.cache.reserve()?;
        self.evictions.count(&evicted);
        self.copies.push(StateCopy { from: StatePlace::Slot(slot), to: place(snapshot) });
        Some(snapshot)
    }

    /// Copies of states collected so far for the next step.
    pub fn copies(&mut self) -> &mut Vec<StateCopy> {
        &mut self.copies
    }

    /// The group of blocks to offload next from a sequence of which `done` tokens are fed, and its place on
    /// disk if one is free; `None` where no group can go.
    pub fn departing(&self, lease: &Lease, done: usize) -> Option<(Vec<BlockId>, Option<OffloadPlace>)> {
        let (blocks, place) = self.cache.departing(lease, done)?;
        Some((blocks.iter().map(|block| BlockId(block.0)).collect(), place))
    }

    /// Records that the group named by [`Memory::departing`] is on disk.
    ///
    /// # Errors
    /// On an accounting error.
    pub fn sent(&mut self, sequence: &mut Sequence) -> Result<(), String> {
        self.cache.sent(&mut sequence.lease).map_err(unbalanced)
    }

    /// Frees a sequence's blocks and slot. No step in flight may hold them.
    ///
    /// # Errors
    /// On an accounting error.
    pub fn release(&mut self, mut lease: Lease, slot: Slot) -> Result<(), String> {
        self.cache.release(&mut lease).map_err(unbalanced)?;
        self.free_slots.push(slot);
        Ok(())
    }

    /// Frees blocks and ignores accounting errors: after a panic the accounts need not balance, and nothing
    /// is allocated from them again.
    pub fn abandon(&mut self, lease: &mut Lease) {
        let _ = self.cache.release(lease);
    }

    /// Updates the memory counters.
    pub fn count(&mut self, stats: &mut Stats) {
        stats.free_blocks = self.cache.available();
        let Evictions { blocks, snapshots } = std::mem::take(&mut self.evictions);
        stats.blocks_evicted += blocks;
        stats.snapshots_evicted += snapshots;
        stats.cached_blocks = self.cache.cached();
        stats.snapshots = self.cache.snapshots();
        stats.free_offload_places = self.cache.free_offload_places();
    }
}

/// The place of a snapshot in the model's terms.
pub(super) fn place(snapshot: Snapshot) -> StatePlace {
    StatePlace::Snapshot(SnapshotId(snapshot.0))
}

/// The message of an accounting error.
fn unbalanced(error: PoolError) -> String {
    format!("the blocks of a sequence cannot come back: {error}")
}

/// The greatest common divisor of two numbers above 0.
fn gcd(a: usize, b: usize) -> usize {
    if b == 0 { a } else { gcd(b, a % b) }
}
