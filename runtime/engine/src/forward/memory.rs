//! Blocks, slots and snapshots: what sequences hold of the device's memory, and what earlier ones left there.
//!
//! The index comes to know a block when the step that filled it is collected, and a snapshot when the step
//! that saved it is: what a lookup finds is there, whatever is in flight. Copies of states are part of the
//! next step. The device works on steps in their order, so a place may be promised anew as soon as the step
//! that reads it is planned.

use super::row::Row;
use crate::options::{EngineOptions, OffloadShare};
use crate::scheduler::comes;
use crate::sequence::Sequence;
use crate::shared::Stats;
use monomorph_cache::{
    Evicted, Lease, Match, OffloadPlace, PoolError, PrefixCache, Reuse, SavePoints, Share, Snapshot,
};
use monomorph_model::{BlockId, ModelSpec, Slot, SnapshotId, StateCopy, StatePlace};
use std::time::Instant;

/// The memory of all sequences, in the books. What the books say of a block or a slot is decided here alone.
pub(super) struct Memory {
    cache: PrefixCache,
    free_slots: Vec<Slot>,
    /// Copies of states that the next step begins with.
    copies: Vec<StateCopy>,
    /// What was evicted since the counters heard of it last.
    evictions: Evictions,
    /// Where states are saved; `None` where they are not.
    saves: Option<SavePoints>,
    /// Whether blocks are found as soon as they are computed, and at the multiples of how many tokens.
    shares: bool,
    granule: usize,
    /// Whether a sequence that was pre-empted decodes again, a token a step, what it had generated.
    replays: bool,
}

/// What was evicted, until the counters hear of it.
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
    /// All of it free, for so many sequences at a time.
    pub fn new(spec: &ModelSpec, options: &EngineOptions, sequences: usize) -> Memory {
        let EngineOptions { blocks, ref prefix, offload, .. } = *options;
        let reuse = match (prefix.enabled, spec.state_bytes, prefix.snapshots) {
            (true, 0, _) => Reuse::Blocks,
            (true, _, 1..) => Reuse::Snapshots { places: prefix.snapshots },
            (false, ..) | (true, _, 0) => Reuse::Nothing,
        };
        // What is gone on from holds whole blocks, and ends where prefill chunks may.
        let granule =
            spec.block_tokens * spec.chunk_alignment() / gcd(spec.block_tokens, spec.chunk_alignment());
        let points = SavePoints { granule, interval: prefix.snapshot_interval };
        let slots = u32::try_from(sequences).unwrap_or(u32::MAX);
        let cache = PrefixCache::new(blocks, spec.block_tokens, granule, reuse);
        Memory {
            cache: match offload {
                None => cache,
                Some(OffloadShare { room, resident }) => {
                    let (fed, reach) = (spec.step_tokens, spec.reach());
                    let share = Share::new(resident, room.group, spec.block_tokens, fed, reach);
                    cache.with_offload(share, room.places)
                }
            },
            free_slots: (0..slots).rev().map(Slot).collect(),
            copies: Vec::new(),
            evictions: Evictions::default(),
            saves: matches!(reuse, Reuse::Snapshots { .. }).then_some(points),
            shares: matches!(reuse, Reuse::Blocks),
            granule,
            replays: spec.batch_invariant.is_some(),
        }
    }

    /// The books of blocks and snapshots, to be read.
    pub fn cache(&self) -> &PrefixCache {
        &self.cache
    }

    /// How much of the device a sequence may have.
    pub fn share(&self) -> Share {
        *self.cache.share()
    }

    /// Slots that no sequence has.
    pub fn free_slots(&self) -> &[Slot] {
        &self.free_slots
    }

    /// Whether what a pre-empted sequence had generated is decoded again and not prefilled.
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

    /// What the index has of the blocks of a sequence that goes on from its copy.
    pub fn lookup_copied(&self, sequence: &Sequence) -> Match {
        self.cache.lookup_blocks(sequence.stored(self.replays))
    }

    /// Whether one of `others`, each with the tokens that it is found under so far, is about to leave more of
    /// a sequence's prompt in the cache than was `found` there.
    pub fn is_coming<'a>(
        &self,
        sequence: &Sequence,
        found: usize,
        mut others: impl Iterator<Item = (&'a Sequence, usize)>,
    ) -> bool {
        let prompt = sequence.sought(self.replays);
        // What may come to be on disk nobody finds.
        let known = |one: &Sequence| one.reusable(self.replays).len().min(self.cache.kept_tokens());
        self.shares
            && others.any(|(one, left)| comes(prompt, found, &one.tokens()[..known(one)], left, self.granule))
    }

    /// For each of `leases`, how many blocks come back when it is given up, and all behind it are.
    pub fn returns<'a>(&self, leases: impl Iterator<Item = &'a Lease>) -> Vec<usize> {
        self.cache.returns(leases)
    }

    /// Gives a sequence a slot, and what the cache has of its tokens; returns that.
    ///
    /// # Errors
    /// When the books do not balance.
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

    /// Gives a sequence that was copied a slot again, and those of its blocks that the index knows. The
    /// others are written when it has them.
    ///
    /// # Errors
    /// When the books do not balance.
    pub fn resume(&mut self, sequence: &mut Sequence, now: Instant) -> Result<(), String> {
        let (lease, _) = self.cache.admit_blocks(sequence.stored(self.replays)).map_err(unbalanced)?;
        sequence.slot = self.free_slots.pop();
        sequence.resume(lease, now);
        Ok(())
    }

    /// Gives a sequence the blocks of so many tokens.
    ///
    /// # Errors
    /// When they are not there.
    pub fn grow(&mut self, sequence: &mut Sequence, tokens: usize) -> Result<(), String> {
        let grown = self.cache.grow(&mut sequence.lease, tokens);
        self.evictions.count(&grown.map_err(|error| format!("planned, but {error}"))?);
        Ok(())
    }

    /// Books what a step did for a sequence of which `done` tokens are in the cache by it.
    ///
    /// # Errors
    /// When the books do not balance.
    pub fn book(&mut self, row: &Row, sequence: &mut Sequence, done: usize) -> Result<(), String> {
        let done = done.min(sequence.reusable(self.replays).len());
        let (lease, tokens) = sequence.lease_and_tokens();
        if let Some((snapshot, at)) = row.save {
            self.cache.keep(lease, &tokens[..at], snapshot).map_err(unbalanced)?;
        }
        self.cache.extend(lease, &tokens[..done]).map_err(unbalanced)
    }

    /// Takes back the place of a snapshot that nobody will find.
    pub fn forget(&mut self, snapshot: Snapshot) {
        self.cache.forget(snapshot);
    }

    /// Saves the state of a sequence that is about to be fed, where a save is due: where to, and behind how
    /// many tokens.
    pub fn save(&mut self, sequence: &mut Sequence, slot: Slot) -> Option<(Snapshot, usize)> {
        let most = sequence.reusable(self.replays).len().min(self.cache.kept_tokens());
        let at = sequence.due_save(self.saves.as_ref()?, most)?;
        let snapshot = self.reserve(slot)?;
        sequence.saved(at);
        Some((snapshot, at))
    }

    /// Saves the state of a sequence that is over and that no step in flight feeds, if no step fed it more
    /// than its tokens, and they fill their blocks.
    ///
    /// # Errors
    /// When the books do not balance.
    pub fn save_last(&mut self, sequence: &mut Sequence) -> Result<(), String> {
        let Some(saves) = &self.saves else { return Ok(()) };
        let (Some(slot), Some(at)) = (sequence.slot, sequence.last_save()) else { return Ok(()) };
        if self.replays || at > self.cache.kept_tokens() || !at.is_multiple_of(saves.granule) {
            return Ok(());
        }
        if let Some(snapshot) = self.reserve(slot) {
            let (lease, tokens) = sequence.lease_and_tokens();
            self.cache.keep(lease, &tokens[..at], snapshot).map_err(unbalanced)?;
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

    /// Copies of states that the next step begins with, so far.
    pub fn copies(&mut self) -> &mut Vec<StateCopy> {
        &mut self.copies
    }

    /// The group of a sequence's blocks that goes to disk next, and its place there if one is free; `None`
    /// where none can go, of a sequence of which `done` tokens are fed.
    pub fn departing(&self, lease: &Lease, done: usize) -> Option<(Vec<BlockId>, Option<OffloadPlace>)> {
        let (blocks, place) = self.cache.departing(lease, done)?;
        Some((blocks.iter().map(|block| BlockId(block.0)).collect(), place))
    }

    /// Books the group that [`Memory::departing`] named as written to disk.
    ///
    /// # Errors
    /// When the books do not balance.
    pub fn sent(&mut self, sequence: &mut Sequence) -> Result<(), String> {
        self.cache.sent(&mut sequence.lease).map_err(unbalanced)
    }

    /// Takes blocks and slot back. No step in flight may hold them.
    ///
    /// # Errors
    /// When the books do not know the blocks.
    pub fn release(&mut self, mut lease: Lease, slot: Slot) -> Result<(), String> {
        self.cache.release(&mut lease).map_err(unbalanced)?;
        self.free_slots.push(slot);
        Ok(())
    }

    /// Takes blocks back whatever the books say: after a panic they need not balance, and nobody will
    /// allocate from them again.
    pub fn abandon(&mut self, lease: &mut Lease) {
        let _ = self.cache.release(lease);
    }

    /// Brings the counters of memory up to date.
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

/// Where the model keeps a snapshot.
fn place(snapshot: Snapshot) -> StatePlace {
    StatePlace::Snapshot(SnapshotId(snapshot.0))
}

/// What to say when the books do not know the blocks of a sequence.
fn unbalanced(error: PoolError) -> String {
    format!("the blocks of a sequence cannot come back: {error}")
}

/// The greatest common divisor of two numbers above 0.
fn gcd(a: usize, b: usize) -> usize {
    if b == 0 { a } else { gcd(b, a % b) }
}
