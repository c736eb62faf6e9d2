//! Random walks of sequences that have more blocks than their share of the device, beside a model that is too
//! simple to be wrong: a memory of what is in which block and in which place on disk.
//!
//! After every step every sequence reads its own tokens, whatever other sequences came and went; no sequence
//! holds more than its share; nothing is lost. Planted, one at a time, and caught here: a group taken from
//! the first block in place of the first that is not kept; a block sent that is not full; places that are not
//! given back with the lease; an index that knows blocks behind the kept ones; a lease that takes blocks
//! beyond its share.

mod random;

use monomorph_cache::admission::blocks_for;
use monomorph_cache::{Block, BlockPlace, Lease, OffloadPlace, PrefixCache, Reuse, Share};
use random::Random;
use std::collections::HashMap;

const STEPS: usize = 400_000;
/// Tokens of a block.
const SIZE: usize = 4;
/// Most tokens of a step.
const FED: usize = 14;
const REACH: usize = 1;

struct HeldSequence {
    lease: Lease,
    tokens: Vec<u32>,
}

/// Cells of the device and of the disk.
#[derive(Default)]
struct Memory {
    blocks: HashMap<Block, [u32; SIZE]>,
    places: HashMap<OffloadPlace, Vec<[u32; SIZE]>>,
}

impl Memory {
    fn read(&self, lease: &Lease, tokens: usize) -> Vec<u32> {
        let blocks = lease.prefix(tokens).map(|place| match place {
            BlockPlace::Device(block) => self.blocks[&block],
            BlockPlace::Disk(place, at) => self.places[&place][at],
        });
        let mut all: Vec<u32> = blocks.flatten().collect();
        all.truncate(tokens);
        all
    }

    fn write(&mut self, lease: &Lease, from: usize, tokens: &[u32]) {
        let places: Vec<BlockPlace> = lease.prefix(tokens.len()).collect();
        for (position, token) in tokens.iter().enumerate().skip(from) {
            let BlockPlace::Device(block) = places[position / SIZE] else {
                panic!("{position} is on disk, and written")
            };
            self.blocks.entry(block).or_default()[position % SIZE] = *token;
        }
    }
}

fn walk(seed: u64, blocks: usize, places: usize, group: usize, resident: usize, reuse: Reuse) -> [usize; 3] {
    let share = Share::new(resident, group, SIZE, FED, REACH);
    let mut cache = PrefixCache::new(blocks, SIZE, SIZE, reuse).with_offload(share, places);
    assert_eq!(cache.kept_tokens(), share.kept * SIZE);
    let (mut random, mut memory) = (Random(seed), Memory::default());
    let mut held: Vec<HeldSequence> = Vec::new();
    let [mut sent, mut found, mut longest] = [0; 3];
    for _ in 0..STEPS {
        if held.len() < 5 && random.below(3) == 0 {
            let prompt: Vec<u32> =
                (0..1 + random.below(60)).map(|at| (at / 9 + random.below(2)) as u32).collect();
            let (lease, hit) = cache.admit(&prompt).unwrap();
            assert!(hit.tokens <= share.kept * SIZE, "what may be on disk is not found");
            assert_eq!(memory.read(&lease, hit.tokens), prompt[..hit.tokens]);
            found += hit.tokens;
            held.push(HeldSequence { lease, tokens: prompt[..hit.tokens].to_vec() });
        }
        if held.is_empty() {
            continue;
        }
        let at = random.below(held.len());
        let HeldSequence { lease, tokens } = &mut held[at];
        if random.below(40) == 0 {
            cache.release(lease).unwrap();
            held.swap_remove(at);
        } else {
            let done = tokens.len();
            let fed = 1 + random.below(FED);
            let needed = blocks_for(done + fed + REACH, SIZE);
            // Of a long prompt it is given as many as it may have.
            let ahead = random.below(60);
            if cache.departing(lease, done).is_some() {
                assert!(
                    (share.kept + lease.offloaded_blocks() + group) * SIZE <= done,
                    "a block that is not full"
                );
            }
            // A sequence that began in the cache of another has its first step like all.
            let mut over = needed > share.most(places);
            while !over && share.due(needed, lease.offloaded_blocks()) > 0 {
                let (group, place) = cache.departing(lease, done).expect("a group can always be sent");
                let Some(place) = place else {
                    assert_eq!(cache.free_offload_places(), 0);
                    over = true;
                    continue;
                };
                memory.places.insert(place, group.iter().map(|block| memory.blocks[block]).collect());
                let gone = group.to_vec();
                cache.sent(lease).unwrap();
                for block in gone {
                    assert_eq!(cache.uses(block), Ok(0), "it was the sequence's alone");
                    memory.blocks.remove(&block);
                }
                sent += 1;
            }
            if over || cache.grow(lease, done + fed + REACH + ahead).is_err() {
                cache.release(lease).unwrap();
                held.swap_remove(at);
            } else {
                tokens.extend((done..done + fed).map(|at| (at / 9 + random.below(2)) as u32));
                memory.write(lease, done, tokens);
                cache.extend(lease, &*tokens).unwrap();
                longest = longest.max(lease.offloaded_blocks() + lease.blocks().len());
                assert!(lease.blocks().len() <= resident, "more than its share");
            }
        }
        for HeldSequence { lease, tokens } in &held {
            assert_eq!(memory.read(lease, tokens.len()), *tokens);
        }
        let offloaded: usize = held.iter().map(|one| one.lease.offloaded_blocks() / group).sum();
        assert_eq!(cache.free_offload_places() + offloaded, places);
    }
    for mut one in held {
        cache.release(&mut one.lease).unwrap();
    }
    assert_eq!((cache.available(), cache.free_offload_places()), (blocks, places));
    [sent, found, longest]
}

#[test]
fn every_sequence_reads_its_tokens_wherever_they_are() {
    let least = Share::least(1, SIZE, FED, REACH);
    let worlds = [
        (14, 60, 1, least, Reuse::Blocks),
        (30, 40, 3, least + 2 + 4, Reuse::Blocks),
        (64, 9, 8, least + 7 + 3, Reuse::Nothing),
    ];
    for (seed, (blocks, places, group, resident, reuse)) in (1..).zip(worlds) {
        let [sent, found, longest] = walk(seed * 0x9E37_79B9, blocks, places, group, resident, reuse);
        println!("groups of {group}: {sent} sent, {found} tokens found, {longest} blocks at most");
        assert!(sent > 10_000 && longest > resident + group, "{sent} {longest}");
        assert_eq!(found > 10_000, seed == 2, "{found}");
    }
}
