//! Random walks over pool and tables beside a model that is too simple to be wrong: for every block, the
//! list of tables that hold it.

use monomorph_cache::{Block, BlockPool, BlockTable, Release, Shortage};
use std::collections::{HashMap, HashSet};

const STEPS: usize = 300_000;

/// xorshift64*: the walk is the same on every run and needs no crate.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: usize) -> usize {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 33) as usize % bound
    }
}

/// What the tables must be: ids of blocks per live table.
#[derive(Default)]
struct Truth {
    tables: HashMap<usize, Vec<Block>>,
}

impl Truth {
    fn uses(&self, block: Block) -> usize {
        self.tables.values().filter(|blocks| blocks.contains(&block)).count()
    }

    fn free(&self, capacity: usize) -> usize {
        capacity - self.tables.values().flatten().collect::<HashSet<_>>().len()
    }
}

fn walk(seed: u64, capacity: usize, block_tokens: usize, steps: usize) {
    let mut random = Random(seed);
    let mut pool = BlockPool::new(capacity);
    let mut tables: Vec<(usize, BlockTable)> = Vec::new();
    let mut truth = Truth::default();
    let mut next = 0;
    for step in 0..steps {
        let free = truth.free(capacity);
        assert_eq!(pool.free(), free, "step {step}");
        match random.below(10) {
            0 if tables.len() < 12 => {
                tables.push((next, BlockTable::new(block_tokens)));
                truth.tables.insert(next, Vec::new());
                next += 1;
            }
            1..=5 if !tables.is_empty() => {
                let at = random.below(tables.len());
                let (id, table) = &mut tables[at];
                let had = truth.tables[id].clone();
                let tokens = random.below(table.room() + 3 * block_tokens + 1);
                let needed = tokens.div_ceil(block_tokens).saturating_sub(had.len());
                let result = table.grow(tokens, &mut pool);
                if needed > free {
                    assert_eq!(result, Err(Shortage { needed, free }));
                    assert_eq!(table.blocks(), had);
                    continue;
                }
                assert_eq!(result, Ok(()));
                assert_eq!(table.blocks()[..had.len()], had, "growing moves nothing");
                assert_eq!(table.blocks().len(), had.len() + needed);
                for &block in &table.blocks()[had.len()..] {
                    assert_eq!(truth.uses(block), 0, "block {block:?} was in use, step {step}");
                    truth.tables.get_mut(id).unwrap().push(block);
                }
            }
            6 if !tables.is_empty() => {
                let at = random.below(tables.len());
                let (id, table) = &mut tables[at];
                let tokens = random.below(table.room() + 1);
                let keep = tokens.div_ceil(block_tokens);
                let held = truth.tables.get_mut(id).unwrap();
                assert_eq!(table.shrink(tokens, &mut pool), Ok(held.len() - keep));
                held.truncate(keep);
            }
            7 if !tables.is_empty() && tables.len() < 12 => {
                let (id, table) = &tables[random.below(tables.len())];
                let tokens = random.below(table.room() + 2);
                let whole = (tokens / block_tokens).min(table.blocks().len());
                let shared = table.share_prefix(tokens, &mut pool).unwrap();
                assert_eq!(shared.blocks(), &truth.tables[id][..whole]);
                truth.tables.insert(next, shared.blocks().to_vec());
                tables.push((next, shared));
                next += 1;
            }
            8 if !tables.is_empty() => {
                let (id, mut table) = tables.swap_remove(random.below(tables.len()));
                let held = truth.tables.remove(&id).unwrap();
                assert_eq!(table.release(&mut pool), Ok(held.len()));
            }
            _ => {
                // Single uses, as a prefix index will hold them.
                let block = Block(random.below(capacity) as u32);
                let uses = truth.uses(block);
                assert_eq!(pool.uses(block), Ok(uses as u32));
                assert_eq!(pool.share(block).is_ok(), uses > 0);
                if uses > 0 {
                    assert_eq!(pool.release(block), Ok(Release::Shared { uses: uses as u32 }));
                } else {
                    assert!(pool.release(block).is_err());
                }
            }
        }
        for (id, table) in &tables {
            assert_eq!(table.blocks(), truth.tables[id]);
        }
    }
    for (_, mut table) in tables {
        table.release(&mut pool).unwrap();
    }
    assert_eq!(pool.free(), capacity, "every block came back");
    let all: HashSet<Block> = std::iter::from_fn(|| pool.allocate()).collect();
    assert_eq!(all.len(), capacity, "and none twice");
}

#[test]
fn no_block_leaks_or_is_used_twice() {
    let shapes = [(1, 1), (3, 2), (16, 16), (40, 5), (61, 1)];
    for (seed, (capacity, block_tokens)) in shapes.into_iter().enumerate() {
        walk(seed as u64 * 7919 + 1, capacity, block_tokens, STEPS / shapes.len());
    }
}

#[test]
fn the_prefix_is_exactly_the_blocks_that_tokens_need() {
    let mut pool = BlockPool::new(8);
    let mut table = BlockTable::new(4);
    table.grow(18, &mut pool).unwrap();
    let lengths: Vec<usize> = [0, 1, 4, 5, 18, 20, 99].map(|tokens| table.prefix(tokens).len()).into();
    assert_eq!(lengths, [0, 1, 1, 2, 5, 5, 5]);
    table.release(&mut pool).unwrap();
}
