//! Kept prefixes beside what they mean: which records are trusted, by every set of up to three small ones;
//! the index of the files beside a list of whole prefixes, in a random walk; and both indexes together, with
//! memory and files that remember what was written to each block and slot. Snapshots of recurrent states have
//! two parts here, each in a slot of its own.
//!
//! Planted, one at a time, and caught here: a block trusted whose parent is not; two in one slot; a block
//! found before it is written; one evicted that has blocks behind it, or that another is about to follow; a
//! damaged block that goes without those behind it; a copy for a node whose parent the file gave up
//! meanwhile. Of snapshots: a part whose number does not follow, or that names another page before it; two in
//! one slot; two snapshots behind a block; one found before its last part is written, or evicted while it is
//! read; a block that goes before its snapshot, or without its snapshot's slots.

mod random;

use monomorph_cache::{
    Block, Content, KeptId, KeptIndex, KeptPrefix, KeptRecord, Lease, PrefixCache, Reuse, Unkept,
};
use random::Random;
use std::collections::HashMap;
use std::sync::Arc;

/// Tokens of a block.
const SIZE: usize = 2;
const SLOTS: usize = 3;
/// Pages of a snapshot, where there are some.
const PARTS: usize = 2;

fn record(kind: u32, id: u64, parent: Option<u64>, slot: u32, key: &[u32]) -> KeptRecord {
    KeptRecord { id: KeptId(id), parent: parent.map(KeptId), slot, kind, key: key.into() }
}

#[test]
fn every_set_of_three_records_is_trusted_as_far_as_it_makes_whole_prefixes() {
    let keys: [&[u32]; 3] = [&[1, 1], &[1, 2], &[1]];
    let mut all = Vec::new();
    for id in [1, 2, 3] {
        for parent in [None, Some(1), Some(2), Some(3)] {
            for slot in [0, 1, SLOTS as u32] {
                all.extend(keys.map(|key| record(KeptRecord::BLOCK, id, parent, slot, key)));
            }
        }
    }
    for one in &all {
        check(&[one], 0);
        for two in &all {
            check(&[one, two], 0);
            // A third of all, another third each time.
            let from = (one.id.0 as usize + two.slot as usize) % 3;
            all.iter().skip(from).step_by(3).for_each(|three| _ = check(&[one, two, three], 0));
        }
    }
}

#[test]
fn every_set_of_parts_behind_a_block_is_trusted_if_it_is_a_whole_snapshot() {
    let first = record(KeptRecord::BLOCK, 1, None, 0, &[1, 1]);
    let mut parts = Vec::new();
    for id in [1, 2, 3, 4] {
        for parent in [None, Some(1), Some(2), Some(3)] {
            for slot in [0, 1, 2, SLOTS as u32 + 1] {
                for key in [&[0][..], &[1], &[2], &[0, 1]] {
                    parts.push(record(KeptRecord::STATE, id, parent, slot, key));
                }
            }
        }
    }
    // A page of no kind, and a part of a model that has none.
    for kind in [KeptRecord::BLOCK, 2] {
        check(&[&first, &record(kind, 2, Some(1), 1, &[0])], PARTS);
    }
    let more = [
        record(KeptRecord::BLOCK, 2, Some(1), 3, &[1, 2]),
        record(KeptRecord::BLOCK, 3, None, 1, &[1, 2]),
        record(KeptRecord::BLOCK, 4, Some(2), 3, &[1, 2]),
        record(KeptRecord::BLOCK, 4, Some(3), 3, &[1, 2]),
    ];
    let mut whole = 0;
    for one in &parts {
        check(&[one], PARTS);
        check(&[&first, one], 0);
        check(&[&first, one], PARTS);
        for two in &parts {
            whole += check(&[&first, one, two], PARTS);
            more.iter().for_each(|block| _ = check(&[&first, block, one, two], PARTS));
            // Two snapshots behind one block, in slots of their own.
            let again: [KeptRecord; 2] = [(5, 1), (6, 5)].map(|(id, parent)| {
                record(KeptRecord::STATE, id, Some(parent), id as u32 - 2, &[id as u32 - 5])
            });
            check(&[&first, &again[0], one, &again[1], two], PARTS);
        }
    }
    assert!(whole > 3, "{whole}");
}

/// What is trusted is consistent, and what is refused contradicts it. Returns how many snapshots are trusted.
fn check(records: &[&KeptRecord], parts: usize) -> usize {
    let slots = SLOTS + parts;
    let records: Vec<KeptRecord> = records.iter().map(|record| (*record).clone()).collect();
    let (index, refused) = KeptIndex::trust(records.clone(), slots, SIZE, parts);
    let mut trusted = records.clone();
    for gone in &refused {
        let at = trusted.iter().position(|one| one == gone).expect("it was given");
        trusted.remove(at);
    }
    trusted.sort_by_key(|one| (one.id, one.slot));
    assert_eq!(trusted.len(), records.len() - refused.len());
    let blocks = |all: &[KeptRecord]| {
        all.iter().filter(|one| one.kind == KeptRecord::BLOCK).cloned().collect::<Vec<_>>()
    };
    assert_eq!(index.len(), blocks(&trusted).len());
    assert_eq!(trusted.len() - index.len(), index.snapshots() * parts, "{records:?}");
    let unlike = |one: &KeptRecord, other: &KeptRecord| {
        other.id != one.id
            && other.slot != one.slot
            && (&other.parent, &other.key, other.kind) != (&one.parent, &one.key, one.kind)
    };
    let fits = |one: &KeptRecord, before: &[KeptRecord]| {
        let alone = one.kind == KeptRecord::BLOCK && one.key.len() == SIZE && (one.slot as usize) < slots;
        let parent = |parent| blocks(before).iter().any(|other| other.id == parent);
        alone && one.parent.is_none_or(parent) && before.iter().all(|other| unlike(one, other))
    };
    // Parts that make a snapshot behind what is trusted before them.
    let fit = |all: &[KeptRecord], before: &[KeptRecord]| {
        let part = |(at, one): (usize, &KeptRecord)| {
            let before_it = if at == 0 { one.parent } else { Some(all[at - 1].id) };
            let next = at == 0 || one.id.0 == all[at - 1].id.0 + 1;
            one.kind == KeptRecord::STATE
                && *one.key == [at as u32]
                && (one.slot as usize) < slots
                && next
                && one.parent == before_it
                && before.iter().chain(&all[..at]).all(|other| unlike(one, other))
        };
        let behind = |it: &KeptRecord| blocks(before).iter().any(|block| Some(block.id) == it.parent);
        all.len() == parts && all.first().is_some_and(behind) && all.iter().enumerate().all(part)
    };
    let (mut at, mut snapshots) = (0, 0);
    while let Some(one) = trusted.get(at) {
        if one.kind == KeptRecord::BLOCK {
            assert!(fits(one, &trusted[..at]), "{records:?}: {one:?} is trusted");
            assert!(index.holds(one.id) && index.slot(one.id) == Some(one.slot), "{records:?}");
            assert_eq!(index.child(one.parent, &one.key), Some(one.id), "{records:?}");
            at += 1;
            continue;
        }
        let all = &trusted[at..(at + parts).min(trusted.len())];
        assert!(fit(all, &trusted[..at]), "{records:?}: {all:?} are trusted");
        assert!(one.parent.is_some_and(|block| index.has_state(block)), "{records:?}");
        assert!(all.iter().all(|one| index.slot(one.id) == Some(one.slot)), "{records:?}");
        at += parts;
        snapshots += 1;
    }
    let mut sorted = records.clone();
    sorted.sort_by_key(|one| (one.id, one.slot));
    for one in &refused {
        let before: Vec<KeptRecord> =
            trusted.iter().filter(|other| (other.id, other.slot) <= (one.id, one.slot)).cloned().collect();
        assert!(!fits(one, &before), "{records:?}: {one:?} is refused");
        // Parts have numbers in a row, so that nothing stands between them.
        let at = sorted.iter().position(|other| other == one).expect("it was given");
        let all = sorted.get(at..at + parts).unwrap_or_default();
        assert!(!fit(all, &before), "{records:?}: {all:?} are refused");
    }
    snapshots
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
    state: Option<KnownState>,
}

/// A kept snapshot as the list has it.
#[derive(Clone, Debug)]
struct KnownState {
    parts: Vec<KeptId>,
    slots: Vec<u32>,
    written: usize,
    readers: u32,
    used: u64,
}

#[test]
fn the_index_is_that_of_a_list_of_prefixes() {
    walk_beside_a_list(0);
}

#[test]
fn the_index_with_snapshots_is_that_of_a_list_of_prefixes() {
    walk_beside_a_list(PARTS);
}

fn walk_beside_a_list(parts: usize) {
    let mut random = Random(7);
    let (mut resumed, mut gone_states) = (0, 0);
    for _ in 0..40 {
        let (mut index, mut list): (KeptIndex, Vec<Known>) = (KeptIndex::new(parts), Vec::new());
        let (mut clock, mut slots) = (0, (0..30).rev().collect::<Vec<u32>>());
        for _ in 0..2_000 {
            let prompt: Vec<u32> =
                (0..SIZE * (1 + random.below(5))).map(|_| random.below(2) as u32).collect();
            let content = Content::from(&prompt);
            let found = list_find(&list, &prompt, parts, usize::MAX);
            let expected = list_prefix(&list, &found, parts);
            assert_eq!(index.find(content, SIZE, usize::MAX), expected);
            let short = list_find(&list, &prompt, parts, 1);
            assert_eq!(index.find(content, SIZE, 1), list_prefix(&list, &short, parts));
            resumed += usize::from(!expected.state.is_empty());
            assert_eq!(index.len(), list.len());
            assert_eq!(index.snapshots(), list.iter().filter(|one| one.state.is_some()).count());
            match random.below(if parts > 0 { 16 } else { 9 }) {
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
                        let freed = list_evict(&mut list, parent, parts);
                        gone_states += usize::from(freed.as_ref().is_some_and(|slots| slots.len() > 1));
                        assert_eq!(index.evict(parent), freed);
                        let Some(freed) = freed else { continue };
                        slots.extend(freed);
                    }
                    let slot = slots.pop().expect("there is one");
                    let id = index.add(parent, Arc::from(&prompt[at..at + SIZE]), slot);
                    assert!(list.iter().all(|one| one.id < id), "a number that another had");
                    clock += 1;
                    let prefix = prompt[..at + SIZE].to_vec();
                    let (written, readers, state) = (false, 0, None);
                    list.push(Known { id, prefix, slot, written, readers, used: clock, state });
                }
                2 | 3 => {
                    if let Some(one) = list.iter_mut().find(|one| !one.written) {
                        one.written = true;
                        let record = index.written(one.id).expect("it is there");
                        assert_eq!((record.id, record.slot), (one.id, one.slot));
                        assert!(one.prefix.ends_with(&record.key) && record.kind == KeptRecord::BLOCK);
                    }
                }
                4 => {
                    index.reads(&expected.blocks);
                    for at in found {
                        clock += 1;
                        (list[at].readers, list[at].used) = (list[at].readers + 1, clock);
                    }
                    index.reads(&expected.state);
                    for _ in &expected.state {
                        clock += 1;
                        let state = list_state(&mut list, expected.state[0]);
                        (state.readers, state.used) = (state.readers + 1, clock);
                    }
                }
                5 => {
                    for one in list.iter_mut().filter(|one| one.readers > 0) {
                        index.was_read(one.id);
                        one.readers -= 1;
                    }
                    for state in list.iter_mut().filter_map(|one| one.state.as_mut()) {
                        (0..state.readers).for_each(|_| index.was_read(state.parts[0]));
                        state.readers = 0;
                    }
                }
                6 | 9.. if parts > 0 => {
                    // A snapshot begins, goes on, or is written to its end.
                    let next = random.below(1 + list.len());
                    let Some(one) = list.get_mut(next) else { continue };
                    let Some(state) = &mut one.state else {
                        assert!(!index.has_state(one.id));
                        clock += 1;
                        let ids = index.add_state(one.id);
                        assert!(ids.len() == parts && ids.iter().all(|id| id.0 > one.id.0));
                        let (slots, written, readers) = (Vec::new(), 0, 0);
                        one.state = Some(KnownState { parts: ids, slots, written, readers, used: clock });
                        continue;
                    };
                    assert!(index.has_state(one.id));
                    if state.slots.len() < parts
                        && let Some(slot) = slots.pop()
                    {
                        index.add_part(state.parts[state.slots.len()], slot);
                        state.slots.push(slot);
                    } else if state.written < state.slots.len() {
                        let (at, id) = (state.written, state.parts[state.written]);
                        let record = index.written(id).expect("it is there");
                        let before = if at == 0 { one.id } else { state.parts[at - 1] };
                        let key: &[u32] = &[at as u32];
                        let slot = state.slots[at];
                        let expected = (id, Some(before), slot, KeptRecord::STATE, key);
                        assert_eq!(
                            (record.id, record.parent, record.slot, record.kind, &*record.key),
                            expected
                        );
                        state.written += 1;
                    }
                }
                7 if parts > 0 && random.below(4) == 0 => {
                    // A part is not what it was.
                    let Some(one) = list.iter_mut().find(|one| one.state.is_some()) else { continue };
                    let Some(state) = one.state.take() else { continue };
                    let part = state.parts[random.below(parts)];
                    assert!(index.holds(part));
                    assert_eq!(index.remove(part), state.slots);
                    assert!(!index.holds(part) && !index.has_state(one.id) && index.written(part).is_none());
                    slots.extend(state.slots);
                }
                _ if random.below(8) == 0 && !list.is_empty() => {
                    let gone = list[random.below(list.len())].clone();
                    let (out, rest): (Vec<Known>, Vec<Known>) =
                        list.into_iter().partition(|one| one.prefix.starts_with(&gone.prefix));
                    let mut freed = index.remove(gone.id);
                    freed.sort_unstable();
                    let of_state = |one: &Known| one.state.clone().map_or_else(Vec::new, |state| state.slots);
                    let mut wanted: Vec<u32> = out.iter().map(|one| one.slot).collect();
                    wanted.extend(out.iter().flat_map(of_state));
                    wanted.sort_unstable();
                    assert_eq!(freed, wanted);
                    assert!(out.iter().all(|one| !index.holds(one.id) && index.written(one.id).is_none()));
                    slots.extend(freed);
                    list = rest;
                }
                _ => {
                    index.touch(&expected);
                    for at in found {
                        clock += 1;
                        list[at].used = clock;
                    }
                    if let Some(first) = expected.state.first() {
                        clock += 1;
                        list_state(&mut list, *first).used = clock;
                    }
                }
            }
        }
    }
    println!("{resumed} with a snapshot, {gone_states} snapshots made room");
    assert!(parts == 0 || (resumed > 1_000 && gone_states > 20), "{resumed} {gone_states}");
}

/// Where the blocks of the longest prefix are in the list that are all written, up to `most`; where snapshots
/// have parts, up to a whole one.
fn list_find(list: &[Known], prompt: &[u32], parts: usize, most: usize) -> Vec<usize> {
    let at = |end: usize| list.iter().position(|one| one.written && one.prefix == prompt[..end]);
    let mut found: Vec<usize> =
        (1..=(prompt.len() / SIZE).min(most)).map_while(|blocks| at(blocks * SIZE)).collect();
    let whole = |at: usize| list[at].state.as_ref().is_some_and(|state| state.written == parts);
    while parts > 0 && found.last().is_some_and(|at| !whole(*at)) {
        found.pop();
    }
    found
}

fn list_prefix(list: &[Known], found: &[usize], parts: usize) -> KeptPrefix {
    let state = found.last().filter(|_| parts > 0).and_then(|at| list[*at].state.as_ref());
    KeptPrefix {
        blocks: found.iter().map(|at| list[*at].id).collect(),
        state: state.map_or_else(Vec::new, |state| state.parts.clone()),
    }
}

fn list_state(list: &mut [Known], first: KeptId) -> &mut KnownState {
    let states = list.iter_mut().filter_map(|one| one.state.as_mut());
    states.into_iter().find(|state| state.parts[0] == first).expect("it was found")
}

/// Takes out what goes first, and returns its slots.
fn list_evict(list: &mut Vec<Known>, but: Option<KeptId>, parts: usize) -> Option<Vec<u32>> {
    let goes = |one: &&Known| {
        let behind = list
            .iter()
            .any(|other| other.prefix.len() > one.prefix.len() && other.prefix.starts_with(&one.prefix));
        one.written && one.readers == 0 && !behind && one.state.is_none() && Some(one.id) != but
    };
    if let Some(first) = list.iter().filter(goes).min_by_key(|one| (one.used, one.id)).cloned() {
        list.retain(|one| one.id != first.id);
        return Some(vec![first.slot]);
    }
    let idle = |state: &&mut KnownState| state.written == parts && state.readers == 0;
    let first = list.iter_mut().filter_map(|one| one.state.as_mut()).filter(idle).min_by_key(|it| it.used)?;
    let parts = first.parts.clone();
    let one = list.iter_mut().find(|one| one.state.as_ref().is_some_and(|it| it.parts == parts))?;
    one.state.take().map(|state| state.slots)
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
                    let Unkept::Block { block, parent, key, .. } = unkept else {
                        panic!("{unkept:?} of a cache without snapshots")
                    };
                    if random.below(10) == 0 {
                        cache.skip_unkept();
                        continue;
                    }
                    if slots.is_empty() {
                        match file.evict(parent) {
                            Some(freed) => slots.extend(freed),
                            None => {
                                cache.skip_unkept();
                                continue;
                            }
                        }
                    }
                    let slot = slots.pop().expect("there is one");
                    let content = bytes.device[&block].clone();
                    let before = parent.map(|id| bytes.files[&file.slot(id).expect("it is there")].clone());
                    let prefix = [before.unwrap_or_default(), key.to_vec()].concat();
                    assert_eq!(content, prefix, "another block than its place says");
                    bytes.files.insert(slot, content);
                    let id = file.add(parent, key, slot);
                    file.written(id);
                    copied += 1;
                }
                4 => {
                    let content = Content::from(&prompt);
                    let KeptPrefix { blocks: ids, .. } = file.find(content, SIZE, usize::MAX);
                    let known = cache.lookup_blocks(content).tokens / SIZE;
                    if ids.len() <= known {
                        continue;
                    }
                    let Some((lease, _)) = cache.take_back(content, known, ids.len()).expect("balanced")
                    else {
                        continue;
                    };
                    for at in lease.indexed_blocks()..ids.len() {
                        let slot = file.slot(ids[at]).expect("it was found");
                        assert_eq!(bytes.files[&slot], prompt[..(at + 1) * SIZE], "found in the files");
                        bytes.device.insert(lease.blocks()[at], bytes.files[&slot].clone());
                        back += 1;
                    }
                    cache.bring_back(lease, content, None).expect("balanced");
                    assert!(cache.lookup_blocks(content).tokens / SIZE >= ids.len());
                }
                _ if random.below(200) == 0 => {
                    // Another process: memory is empty, and the files are what was written down of them.
                    let mut records = Vec::new();
                    (1..=copied).for_each(|id| records.extend(file.written(KeptId(id))));
                    let count = records.len();
                    let (again, refused) = KeptIndex::trust(records, 12, SIZE, 0);
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
