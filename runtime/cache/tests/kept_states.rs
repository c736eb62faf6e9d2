//! Snapshots of recurrent states between both indexes of kept prefixes: memory and files remember what was
//! written to each block, place and slot; processes are killed between the parts of a snapshot, and prefixes
//! come back in pieces while others need blocks.
//!
//! Planted, one at a time, and caught here: a block evicted before its snapshot; a snapshot of another node
//! than its block.

mod random;

use monomorph_cache::{
    Block, Content, KeptId, KeptIndex, KeptPrefix, KeptRecord, Lease, PrefixCache, Reuse, Snapshot, Unkept,
};
use random::Random;
use std::collections::HashMap;

/// Tokens of a block.
const SIZE: usize = 2;
/// Pages of a snapshot.
const PARTS: usize = 2;
const SLOTS: usize = 24;

/// The device's memory and the files: what a block, place or slot was filled with, from the first token on;
/// and the entries of the files' index, by their slots.
#[derive(Default)]
struct States {
    device: HashMap<Block, Vec<u32>>,
    files: HashMap<u32, Vec<u32>>,
    places: HashMap<Snapshot, Vec<u32>>,
    /// Prefix and part that a slot was filled with.
    parts: HashMap<u32, (Vec<u32>, usize)>,
    entries: HashMap<u32, KeptRecord>,
    free: Vec<u32>,
}

impl States {
    /// Fills blocks of a lease from `known` on, as steps would.
    fn fill(&mut self, lease: &Lease, known: usize, tokens: &[u32]) {
        for at in known..tokens.len() / SIZE {
            self.device.insert(lease.blocks()[at], tokens[..(at + 1) * SIZE].to_vec());
        }
    }

    /// A free slot, whose entry is cleared; `None` where nothing may go.
    fn slot(&mut self, file: &mut KeptIndex, but: Option<KeptId>) -> Option<u32> {
        if self.free.is_empty() {
            for slot in file.evict(but)? {
                self.entries.remove(&slot);
                self.free.push(slot);
            }
        }
        self.free.pop()
    }

    /// Writes what the file lacks next. True where it stopped within a snapshot, as a killed process does.
    fn write(&mut self, file: &mut KeptIndex, cache: &mut PrefixCache, random: &mut Random) -> bool {
        match cache.unkept(file) {
            None => {}
            Some(Unkept::Block { block, parent, key, depth }) => {
                let Some(slot) = self.slot(file, parent).filter(|_| depth + PARTS <= SLOTS) else {
                    cache.skip_unkept();
                    return false;
                };
                let content = self.device[&block].clone();
                let before = parent.map(|id| self.files[&file.slot(id).expect("it is there")].clone());
                let prefix = [before.unwrap_or_default(), key.to_vec()].concat();
                assert_eq!(content, prefix, "another block than its place says");
                assert!(prefix.len() / SIZE <= depth);
                self.files.insert(slot, content);
                let id = file.add(parent, key, slot);
                self.entries.insert(slot, file.written(id).expect("it is there"));
            }
            Some(Unkept::State { snapshot, block }) => {
                let content = self.places[&snapshot].clone();
                let before = &self.files[&file.slot(block).expect("it is there")];
                assert_eq!(content, *before, "another state than its block says");
                for (at, id) in file.add_state(block).into_iter().enumerate() {
                    let Some(slot) = self.slot(file, None) else {
                        for slot in file.remove(id) {
                            self.entries.remove(&slot);
                            self.free.push(slot);
                        }
                        break;
                    };
                    self.parts.insert(slot, (content.clone(), at));
                    file.add_part(id, slot);
                    self.entries.insert(slot, file.written(id).expect("it is there"));
                    if at == 0 && random.below(20) == 0 {
                        return true;
                    }
                }
                cache.skip_unkept();
            }
        }
        false
    }

    /// Brings the longest prefix of a prompt back, two blocks at a time. How many blocks came, and whether
    /// the state did.
    fn back(
        &mut self,
        file: &KeptIndex,
        cache: &mut PrefixCache,
        prompt: &[u32],
        random: &mut Random,
    ) -> (usize, bool) {
        let content = Content::from(prompt);
        let KeptPrefix { blocks: ids, state } = file.find(content, SIZE, usize::MAX);
        if ids.len() * SIZE <= cache.lookup([prompt, &[9]].concat().as_slice()).tokens {
            return (0, false);
        }
        let slots: Vec<u32> = state.iter().map(|id| file.slot(*id).expect("it was found")).collect();
        for (at, slot) in slots.iter().enumerate() {
            assert_eq!(self.parts[slot], (prompt[..ids.len() * SIZE].to_vec(), at), "a part in the files");
        }
        let (mut first, mut back) = (cache.lookup_blocks(content).tokens / SIZE, 0);
        first = first.min(ids.len());
        loop {
            let end = (first + 2).min(ids.len());
            let taken = cache.take_back(content, first, end).expect("balanced");
            let Some((mut lease, _)) = taken else {
                cache.give_up_back(content.first(first * SIZE)).expect("balanced");
                return (back, false);
            };
            let place = if end == ids.len() { cache.reserve() } else { None };
            if end == ids.len() && place.is_none() {
                cache.release(&mut lease).expect("balanced");
                return (back, false);
            }
            for at in lease.indexed_blocks()..end {
                let slot = file.slot(ids[at]).expect("it was found");
                assert_eq!(self.files[&slot], prompt[..(at + 1) * SIZE], "found in the files");
                self.device.insert(lease.blocks()[at], self.files[&slot].clone());
                back += 1;
            }
            let place = place.map(|(place, _)| place);
            if let Some(place) = place {
                self.places.insert(place, self.parts[&slots[0]].0.clone());
            }
            cache.bring_back(lease, content, place).expect("balanced");
            if place.is_some() {
                return (back, true);
            }
            first = end;
            // Others need blocks meanwhile, or nobody waits for the rest.
            match random.below(8) {
                0 => {
                    let other: Vec<u32> = (0..12).map(|_| 2 + random.below(2) as u32).collect();
                    let (mut lease, _) = cache.admit(&other).expect("balanced");
                    if cache.grow(&mut lease, other.len()).is_ok() {
                        self.fill(&lease, lease.indexed_blocks(), &other);
                    }
                    cache.release(&mut lease).expect("balanced");
                }
                1 => {
                    cache.give_up_back(content.first(first * SIZE)).expect("balanced");
                    return (back, false);
                }
                _ => {}
            }
        }
    }
}

#[test]
fn snapshots_go_to_the_files_and_come_back_with_their_blocks() {
    let mut random = Random(12);
    let (mut back, mut states, mut starts, mut found_states) = (0, 0, 0, 0);
    for (blocks, places) in [(5, 1), (9, 3), (24, 6)] {
        let mut all = States { free: (0..SLOTS as u32).collect(), ..States::default() };
        let mut file = KeptIndex::new(PARTS);
        let new = || PrefixCache::new(blocks, SIZE, SIZE, Reuse::Snapshots { places }).with_keeping();
        let mut cache = new();
        let mut held: Vec<(Lease, Vec<u32>)> = Vec::new();
        for _ in 0..30_000 {
            let prompt: Vec<u32> = (0..1 + random.below(11)).map(|_| random.below(2) as u32).collect();
            let mut killed = random.below(600) == 0;
            match random.below(6) {
                0 | 1 => {
                    let (mut lease, found) = cache.admit(&prompt).expect("balanced");
                    for (at, block) in lease.blocks().iter().enumerate() {
                        assert_eq!(all.device[block], prompt[..(at + 1) * SIZE], "found in memory");
                    }
                    if let Some(snapshot) = found.snapshot {
                        assert_eq!(all.places[&snapshot], prompt[..found.tokens], "a state in memory");
                        found_states += 1;
                    }
                    if cache.grow(&mut lease, prompt.len()).is_err() {
                        cache.release(&mut lease).expect("balanced");
                        continue;
                    }
                    all.fill(&lease, found.tokens / SIZE, &prompt);
                    let at = prompt.len() / SIZE * SIZE - SIZE * random.below(2).min(prompt.len() / SIZE);
                    if at > found.tokens
                        && let Some((place, _)) = cache.reserve()
                    {
                        all.places.insert(place, prompt[..at].to_vec());
                        cache.keep(&mut lease, Content::from(&prompt).first(at), place).expect("balanced");
                    }
                    held.push((lease, prompt));
                }
                2 if !held.is_empty() => {
                    let (mut lease, _) = held.swap_remove(random.below(held.len()));
                    cache.release(&mut lease).expect("balanced");
                }
                3 => killed |= all.write(&mut file, &mut cache, &mut random),
                4 => {
                    let (blocks, state) = all.back(&file, &mut cache, &prompt, &mut random);
                    back += blocks;
                    states += usize::from(state);
                    if state {
                        let kept = file.find(Content::from(&prompt), SIZE, usize::MAX).blocks.len() * SIZE;
                        let found = cache.lookup([&prompt[..], &[9]].concat().as_slice());
                        assert!(found.tokens >= kept && found.snapshot.is_some());
                    }
                }
                _ => {
                    let used: usize = held.iter().map(|(lease, _)| lease.blocks().len()).sum();
                    assert!(cache.available() + used >= blocks, "blocks are lost");
                    assert!(cache.snapshots() + cache.free_places() == places, "places are lost");
                    let taken = file.len() + PARTS * file.snapshots();
                    assert!(taken + all.free.len() == SLOTS, "slots are lost");
                }
            }
            if killed {
                // Another process: memory is empty, and the files are what their entries say.
                let records = all.entries.values().cloned().collect();
                let (again, refused) = KeptIndex::trust(records, SLOTS, SIZE, PARTS);
                assert!(refused.len() < PARTS && refused.iter().all(|one| one.kind == KeptRecord::STATE));
                for record in refused {
                    all.entries.remove(&record.slot);
                }
                all.free = (0..SLOTS as u32).filter(|slot| !all.entries.contains_key(slot)).collect();
                file = again;
                held.clear();
                cache = new();
                all.device.clear();
                all.places.clear();
                starts += 1;
            }
        }
    }
    println!("{back} blocks and {states} states back, {found_states} states found, {starts} starts");
    assert!(back > 200 && states > 100 && starts > 30, "{back} {states} {starts}");
}
