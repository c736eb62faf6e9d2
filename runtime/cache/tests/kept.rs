//! Kept prefixes beside what they mean: which records are trusted, by every set of up to three small ones;
//! the index of the files beside a list of whole prefixes, in a random walk; and both indexes together, with
//! memory and files that remember what was written to each block and slot.
//!
//! Planted, one at a time, and caught here: a block trusted whose parent is not; two in one slot; a block
//! found before it is written; one evicted that has blocks behind it, or that another is about to follow; a
//! damaged block that goes without those behind it; a copy for a node whose parent the file gave up
//! meanwhile.

mod random;

use monomorph_cache::{Block, Content, KeptId, KeptIndex, KeptRecord, Lease, PrefixCache, Reuse};
use random::Random;
use std::collections::HashMap;
use std::sync::Arc;

/// Tokens of a block.
const SIZE: usize = 2;
const SLOTS: usize = 3;

fn record(id: u64, parent: Option<u64>, slot: u32, key: &[u32]) -> KeptRecord {
    KeptRecord { id: KeptId(id), parent: parent.map(KeptId), slot, key: key.into() }
}

#[test]
fn every_set_of_three_records_is_trusted_as_far_as_it_makes_whole_prefixes() {
    let keys: [&[u32]; 3] = [&[1, 1], &[1, 2], &[1]];
    let mut all = Vec::new();
    for id in [1, 2, 3] {
        for parent in [None, Some(1), Some(2), Some(3)] {
            for slot in [0, 1, SLOTS as u32] {
                all.extend(keys.map(|key| record(id, parent, slot, key)));
            }
        }
    }
    for one in &all {
        check(&[one]);
        for two in &all {
            check(&[one, two]);
            // A third of all, another third each time.
            let from = (one.id.0 as usize + two.slot as usize) % 3;
            all.iter().skip(from).step_by(3).for_each(|three| check(&[one, two, three]));
        }
    }
}

/// What is trusted is consistent, and what is refused contradicts it.
fn check(records: &[&KeptRecord]) {
    let records: Vec<KeptRecord> = records.iter().map(|record| (*record).clone()).collect();
    let (index, refused) = KeptIndex::trust(records.clone(), SLOTS, SIZE);
    assert_eq!(index.len() + refused.len(), records.len());
    let mut trusted = records.clone();
    for gone in &refused {
        let at = trusted.iter().position(|one| one == gone).expect("it was given");
        trusted.remove(at);
    }
    trusted.sort_by_key(|one| (one.id, one.slot));
    let fits = |one: &KeptRecord, before: &[KeptRecord]| {
        let alone = one.key.len() == SIZE && (one.slot as usize) < SLOTS;
        let unlike = |other: &KeptRecord| {
            other.id != one.id
                && other.slot != one.slot
                && (&other.parent, &other.key) != (&one.parent, &one.key)
        };
        let behind = one.parent.is_none_or(|parent| before.iter().any(|other| other.id == parent));
        alone && behind && before.iter().all(unlike)
    };
    for (at, one) in trusted.iter().enumerate() {
        assert!(fits(one, &trusted[..at]), "{records:?}: {one:?} is trusted");
        assert!(index.holds(one.id) && index.slot(one.id) == Some(one.slot), "{records:?}");
        assert_eq!(index.child(one.parent, &one.key), Some(one.id), "{records:?}");
    }
    for one in &refused {
        let before: Vec<KeptRecord> =
            trusted.iter().filter(|other| (other.id, other.slot) <= (one.id, one.slot)).cloned().collect();
        assert!(!fits(one, &before), "{records:?}: {one:?} is refused");
    }
}

/// A kept block as the list has it.
#[derive(Clone, Debug)]
struct Known {
    id: KeptId,
    /// The tokens of the whole prefix.
    prefix: Vec<u32>,
    slot: u32,
    written: bool,
    readers: u32,
    used: u64,
}

#[test]
fn the_index_is_that_of_a_list_of_prefixes() {
    let mut random = Random(7);
    for _ in 0..40 {
        let (mut index, mut list): (KeptIndex, Vec<Known>) = (KeptIndex::default(), Vec::new());
        let (mut clock, mut slots) = (0, (0..30).rev().collect::<Vec<u32>>());
        for _ in 0..2_000 {
            let prompt: Vec<u32> =
                (0..SIZE * (1 + random.below(5))).map(|_| random.below(2) as u32).collect();
            let content = Content::from(&prompt);
            let found = list_find(&list, &prompt);
            let ids: Vec<KeptId> = found.iter().map(|at| list[*at].id).collect();
            assert_eq!(index.find(content, SIZE, usize::MAX), ids);
            assert_eq!(index.find(content, SIZE, 1), ids[..ids.len().min(1)]);
            assert_eq!(index.len(), list.len());
            match random.below(7) {
                0 | 1 => {
                    // Behind the longest prefix, written or not.
                    let mut at = 0;
                    let mut parent = None;
                    while let Some(one) =
                        list.iter().find(|one| at + SIZE <= prompt.len() && one.prefix == prompt[..at + SIZE])
                    {
                        (parent, at) = (Some(one.id), at + SIZE);
                    }
                    if at == prompt.len() {
                        continue;
                    }
                    if slots.is_empty() {
                        let goes = |one: &&Known| {
                            let behind = list.iter().any(|other| {
                                other.prefix.len() > one.prefix.len() && other.prefix.starts_with(&one.prefix)
                            });
                            one.written && one.readers == 0 && !behind && Some(one.id) != parent
                        };
                        let first = list.iter().filter(goes).min_by_key(|one| (one.used, one.id)).cloned();
                        assert_eq!(index.evict(parent), first.as_ref().map(|one| one.slot));
                        let Some(first) = first else { continue };
                        slots.push(first.slot);
                        list.retain(|one| one.id != first.id);
                    }
                    let slot = slots.pop().expect("there is one");
                    let id = index.add(parent, Arc::from(&prompt[at..at + SIZE]), slot);
                    assert!(list.iter().all(|one| one.id < id), "a number that another had");
                    clock += 1;
                    let prefix = prompt[..at + SIZE].to_vec();
                    list.push(Known { id, prefix, slot, written: false, readers: 0, used: clock });
                }
                2 | 3 => {
                    if let Some(one) = list.iter_mut().find(|one| !one.written) {
                        one.written = true;
                        let record = index.written(one.id).expect("it is there");
                        assert_eq!((record.id, record.slot), (one.id, one.slot));
                        assert!(one.prefix.ends_with(&record.key));
                    }
                }
                4 => {
                    index.reads(&ids);
                    for at in found {
                        clock += 1;
                        (list[at].readers, list[at].used) = (list[at].readers + 1, clock);
                    }
                }
                5 => {
                    for one in list.iter_mut().filter(|one| one.readers > 0) {
                        index.was_read(one.id);
                        one.readers -= 1;
                    }
                }
                _ if random.below(8) == 0 && !list.is_empty() => {
                    let gone = list[random.below(list.len())].clone();
                    let (out, rest): (Vec<Known>, Vec<Known>) =
                        list.into_iter().partition(|one| one.prefix.starts_with(&gone.prefix));
                    let mut freed = index.remove(gone.id);
                    freed.sort_unstable();
                    let mut wanted: Vec<u32> = out.iter().map(|one| one.slot).collect();
                    wanted.sort_unstable();
                    assert_eq!(freed, wanted);
                    assert!(out.iter().all(|one| !index.holds(one.id) && index.written(one.id).is_none()));
                    slots.extend(freed);
                    list = rest;
                }
                _ => {
                    index.touch(&ids);
                    for at in found {
                        clock += 1;
                        list[at].used = clock;
                    }
                }
            }
        }
    }
}

/// Where the blocks of the longest prefix are in the list that are all written.
fn list_find(list: &[Known], prompt: &[u32]) -> Vec<usize> {
    let at = |end: usize| list.iter().position(|one| one.written && one.prefix == prompt[..end]);
    (1..=prompt.len() / SIZE).map_while(|blocks| at(blocks * SIZE)).collect()
}

/// The device's memory and the files: what the block or slot was filled with, from the first token on.
#[derive(Default)]
struct Bytes {
    device: HashMap<Block, Vec<u32>>,
    files: HashMap<u32, Vec<u32>>,
}

impl Bytes {
    /// Fills blocks of a lease from `known` on, as steps would.
    fn fill(&mut self, lease: &Lease, known: usize, tokens: &[u32]) {
        for at in known..tokens.len() / SIZE {
            self.device.insert(lease.blocks()[at], tokens[..(at + 1) * SIZE].to_vec());
        }
    }
}

#[test]
fn what_goes_to_the_files_and_comes_back_is_what_it_was() {
    let mut random = Random(11);
    let (mut copied, mut back, mut starts) = (0, 0, 0);
    for blocks in [4, 7, 20] {
        let (mut bytes, mut file) = (Bytes::default(), KeptIndex::default());
        let mut slots: Vec<u32> = (0..12).collect();
        let mut cache = PrefixCache::new(blocks, SIZE, SIZE, Reuse::Blocks).with_keeping();
        let mut held: Vec<(Lease, Vec<u32>)> = Vec::new();
        for _ in 0..30_000 {
            let prompt: Vec<u32> = (0..1 + random.below(9)).map(|_| random.below(2) as u32).collect();
            match random.below(6) {
                0 | 1 => {
                    let (mut lease, found) = cache.admit(&prompt).expect("balanced");
                    for (at, block) in lease.blocks().iter().enumerate() {
                        assert_eq!(bytes.device[block], prompt[..(at + 1) * SIZE], "found in memory");
                    }
                    if cache.grow(&mut lease, prompt.len()).is_err() {
                        cache.release(&mut lease).expect("balanced");
                        continue;
                    }
                    bytes.fill(&lease, found.tokens / SIZE, &prompt);
                    cache.extend(&mut lease, &prompt).expect("balanced");
                    held.push((lease, prompt));
                }
                2 if !held.is_empty() => {
                    let (mut lease, _) = held.swap_remove(random.below(held.len()));
                    cache.release(&mut lease).expect("balanced");
                }
                3 => {
                    let Some(unkept) = cache.unkept(&file) else { continue };
                    if random.below(10) == 0 {
                        cache.skip_unkept();
                        continue;
                    }
                    if slots.is_empty() {
                        match file.evict(unkept.parent) {
                            Some(slot) => slots.push(slot),
                            None => {
                                cache.skip_unkept();
                                continue;
                            }
                        }
                    }
                    let slot = slots.pop().expect("there is one");
                    let content = bytes.device[&unkept.block].clone();
                    let parent =
                        unkept.parent.map(|id| bytes.files[&file.slot(id).expect("it is there")].clone());
                    let prefix = [parent.unwrap_or_default(), unkept.key.to_vec()].concat();
                    assert_eq!(content, prefix, "another block than its place says");
                    bytes.files.insert(slot, content);
                    let id = file.add(unkept.parent, unkept.key, slot);
                    file.written(id);
                    copied += 1;
                }
                4 => {
                    let content = Content::from(&prompt);
                    let ids = file.find(content, SIZE, usize::MAX);
                    let known = cache.lookup_blocks(content).tokens / SIZE;
                    if ids.len() <= known {
                        continue;
                    }
                    let Some((mut lease, _)) = cache.take_back(content, known, ids.len()).expect("balanced")
                    else {
                        continue;
                    };
                    for at in lease.indexed_blocks()..ids.len() {
                        let slot = file.slot(ids[at]).expect("it was found");
                        assert_eq!(bytes.files[&slot], prompt[..(at + 1) * SIZE], "found in the files");
                        bytes.device.insert(lease.blocks()[at], bytes.files[&slot].clone());
                        back += 1;
                    }
                    cache.extend(&mut lease, content.first(ids.len() * SIZE)).expect("balanced");
                    cache.release(&mut lease).expect("balanced");
                    assert!(cache.lookup_blocks(content).tokens / SIZE >= ids.len());
                }
                _ if random.below(200) == 0 => {
                    // Another process: memory is empty, and the files are what was written down of them.
                    let mut records = Vec::new();
                    (1..=copied).for_each(|id| records.extend(file.written(KeptId(id))));
                    let count = records.len();
                    let (again, refused) = KeptIndex::trust(records, 12, SIZE);
                    assert!(again.len() == count && refused.is_empty());
                    file = again;
                    held.clear();
                    cache = PrefixCache::new(blocks, SIZE, SIZE, Reuse::Blocks).with_keeping();
                    bytes.device.clear();
                    starts += 1;
                }
                _ => {
                    let used: usize = held.iter().map(|(lease, _)| lease.blocks().len()).sum();
                    assert!(cache.available() + used >= blocks, "blocks are lost");
                }
            }
        }
    }
    println!("{copied} copied, {back} back, {starts} starts");
    assert!(copied > 2_000 && back > 200 && starts > 10, "{copied} {back} {starts}");
}
