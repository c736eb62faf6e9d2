//! Random walks over the cache beside a model that is too simple to be wrong: a map of all prefixes to what
//! they hold.
//!
//! After every step the cache says the same as the map: what there is of a prompt, how many blocks can be
//! had, and, of what had to go, that it was the prefix used longest ago. A memory of what was written where
//! shows that a block or a snapshot handed out holds what it is said to.
//!
//! Planted, one at a time, and caught by these walks: a lease that is released and keeps its pins, or pins no
//! ancestors (`available` differs); eviction of any node without pins, children or not (`evicted` differs); a
//! parent that does not become a leaf when its last child goes (nothing can be evicted, though blocks are
//! available); an index that does not count itself among a block's users (`uses` differs); a prompt matched
//! to its last token (`lookup` differs); children found by their first token alone (`lookup` differs); a
//! snapshot used again that keeps its age (`evicted` differs); a place that is not given back when there is a
//! snapshot of the same tokens (`free_places` differs).

#[path = "../random/mod.rs"]
mod random;
mod truth;

use monomorph_cache::{Match, PrefixCache, Reuse, Shortage};
use random::Random;
use truth::{HeldSequence, Truth};

/// Steps of each walk.
const STEPS: usize = 1_000_000;
/// Different tokens: few, so that prompts begin alike.
const KINDS: usize = 3;
const SEQUENCES: usize = 6;

impl Random {
    fn tokens(&mut self, count: usize) -> impl Iterator<Item = u32> {
        (0..count).map(|_| self.below(KINDS) as u32)
    }
}

/// Counts of the cases that a walk must cover.
#[derive(Debug, Default)]
struct Seen {
    matched: usize,
    evicted: usize,
    short: usize,
    saved: usize,
    restored: usize,
    duplicates: usize,
}

struct Walk {
    random: Random,
    cache: PrefixCache,
    truth: Truth,
    seen: Seen,
}

impl Walk {
    fn new(seed: u64, capacity: usize, size: usize, reuse: Reuse) -> Walk {
        // What is found may have to end at every other block.
        let granule = size * if capacity == 16 { 2 } else { 1 };
        let cache = PrefixCache::new(capacity, size, granule, reuse);
        let truth = Truth::new(capacity, size, granule, reuse);
        Walk { random: Random(seed), cache, truth, seen: Seen::default() }
    }

    /// One that goes on from a prefix or a sequence there is, as often as not.
    fn prompt(&mut self) -> Vec<u32> {
        let Walk { random, truth, .. } = self;
        let mut prompt = Vec::new();
        let (prefixes, sequences) = (truth.known.len(), truth.held.len());
        match random.below(4) {
            0 | 1 if prefixes > 0 => {
                let at = random.below(prefixes);
                prompt.extend(truth.known.keys().nth(at).expect("it is below their number"));
            }
            2 if sequences > 0 => prompt.extend(&truth.held[random.below(sequences)].tokens),
            _ => {}
        }
        prompt.truncate(random.below(2 * prompt.len() + 1));
        let more = 1 + random.below(2 * truth.size + 2);
        prompt.extend(random.tokens(more));
        prompt
    }

    fn begin(&mut self) {
        let prompt = self.prompt();
        // One in four has a copy of its state and restores what is not cached.
        let restores = self.random.below(4) == 0;
        let expected = if restores { self.truth.lookup_blocks(&prompt) } else { self.truth.lookup(&prompt) };
        let found = if restores { self.cache.lookup_blocks(&prompt) } else { self.cache.lookup(&prompt) };
        assert_eq!(found, expected, "{prompt:?} among {:?}", self.truth);
        let before = self.cache.available();
        let admitted = if restores { self.cache.admit_blocks(&prompt) } else { self.cache.admit(&prompt) };
        let (lease, found) = admitted.expect("the books balance");
        assert_eq!(found, expected);
        let Match { tokens, in_use, snapshot } = found;
        let blocks = tokens / self.truth.size;
        assert_eq!(self.cache.available(), before - (blocks - in_use), "what a match costs");
        for (at, block) in lease.blocks().iter().enumerate() {
            let held = &self.truth.memory[block];
            assert_eq!(held, &prompt[..(at + 1) * self.truth.size], "{block:?} holds another prefix");
        }
        self.truth.touch(&prompt[..tokens]);
        if let Some(place) = snapshot {
            assert_eq!(self.truth.states[&place], prompt[..tokens], "{place:?} holds another state");
            let now = self.truth.now();
            let known = self.truth.known.get_mut(&prompt[..tokens]).expect("it was found");
            known.snapshot = Some((place, now));
            self.seen.restored += 1;
        }
        self.seen.matched += blocks;
        let (known, saved) = (tokens, Vec::new());
        self.truth.held.push(HeldSequence { lease, tokens: prompt[..tokens].to_vec(), known, saved });
        self.feed(self.truth.held.len() - 1, &prompt[tokens..]);
    }

    /// Feeds a sequence: it ends when there are no blocks for that.
    fn feed(&mut self, at: usize, more: &[u32]) {
        let Walk { cache, truth, seen, .. } = self;
        let tokens = truth.held[at].tokens.len() + more.len();
        let had = truth.held[at].lease.blocks().to_vec();
        let (needed, available) = (tokens.div_ceil(truth.size).saturating_sub(had.len()), truth.available());
        if needed > available {
            let short = cache.grow(&mut truth.held[at].lease, tokens);
            assert_eq!(short, Err(Shortage { needed, free: available }));
            assert_eq!(truth.held[at].lease.blocks(), had);
            seen.short += 1;
            return self.end(at);
        }
        let expected = truth.make_room(needed);
        let held: Vec<_> = truth.held.iter().flat_map(|one| one.lease.blocks()).copied().collect();
        let evicted = cache.grow(&mut truth.held[at].lease, tokens).expect("there is room");
        assert_eq!(evicted, expected);
        seen.evicted += evicted.len();
        let one = &mut truth.held[at];
        assert_eq!(one.lease.blocks()[..had.len()], had, "growing moves nothing");
        assert_eq!(one.lease.blocks().len(), had.len() + needed);
        for (index, block) in one.lease.blocks().iter().enumerate().skip(had.len()) {
            let is_known = truth.known.values().any(|known| known.block == *block);
            assert!(!is_known && !held.contains(block), "{block:?} has another use");
            assert!(!one.lease.blocks()[..index].contains(block), "{block:?} twice");
        }
        let fed = one.tokens.len();
        one.tokens.extend(more);
        for (index, block) in one.lease.blocks().iter().enumerate().skip(fed / truth.size) {
            let end = tokens.min((index + 1) * truth.size);
            truth.memory.insert(*block, one.tokens[..end].to_vec());
        }
    }

    fn extend(&mut self, at: usize) {
        let Walk { random, cache, truth, .. } = self;
        let tokens = random.below(truth.held[at].tokens.len() + 1);
        let one = &mut truth.held[at];
        cache.extend(&mut one.lease, &one.tokens[..tokens]).expect("the books balance");
        if truth.reuse == Reuse::Blocks {
            truth.learn(at, tokens);
        }
    }

    /// Saves the state that a sequence has now.
    fn save(&mut self, at: usize) {
        let tokens = self.truth.held[at].tokens.len();
        if !tokens.is_multiple_of(self.truth.size) || tokens == 0 {
            return;
        }
        let expected = self.truth.make_place();
        let reserved = self.cache.reserve();
        assert_eq!(reserved.as_ref().map(|(_, evicted)| evicted), expected.as_ref());
        if let Some((place, _)) = reserved {
            let one = &mut self.truth.held[at];
            self.truth.states.insert(place, one.tokens.clone());
            one.saved.push((place, tokens));
        }
    }

    /// Keeps or forgets what was saved first.
    fn keep(&mut self, at: usize) {
        let Walk { random, cache, truth, seen } = self;
        let one = &mut truth.held[at];
        if one.saved.is_empty() {
            return;
        }
        let (place, tokens) = one.saved.remove(0);
        if random.below(4) == 0 {
            return cache.forget(place);
        }
        let kept = cache.keep(&mut one.lease, &one.tokens[..tokens], place).expect("the books balance");
        truth.learn(at, tokens);
        let now = truth.now();
        let known = truth.known.get_mut(&truth.held[at].tokens[..tokens]).expect("it was learnt");
        assert_eq!(kept, known.snapshot.is_none());
        known.snapshot.get_or_insert((place, now));
        seen.saved += usize::from(kept);
        seen.duplicates += usize::from(!kept);
    }

    /// Ends the last few sequences: as many blocks come back as was said before.
    fn end_some(&mut self, at: usize) {
        let returns = self.cache.returns(self.truth.held.iter().map(|one| &one.lease));
        assert_eq!(returns.len(), self.truth.held.len());
        for (at, returns) in returns.into_iter().enumerate().skip(at).rev() {
            let before = self.cache.available();
            self.end(at);
            assert_eq!(self.cache.available(), before + returns, "what comes back");
        }
    }

    fn end(&mut self, at: usize) {
        let mut one = self.truth.release(at);
        for (place, _) in one.saved.drain(..) {
            self.cache.forget(place);
        }
        self.cache.release(&mut one.lease).expect("the books balance");
        assert!(one.lease.blocks().is_empty());
    }

    fn step(&mut self) {
        let sequences = self.truth.held.len();
        let at = self.random.below(sequences.max(1));
        match self.random.below(12) {
            0..=2 if sequences < SEQUENCES => self.begin(),
            _ if sequences == 0 => {}
            3..=5 => {
                let count = self.random.below(self.truth.size + 2);
                let more: Vec<u32> = self.random.tokens(count).collect();
                self.feed(at, &more);
            }
            6 | 7 => self.extend(at),
            8 => self.save(at),
            9 => self.keep(at),
            10 if self.random.below(4) == 0 => self.end_some(at),
            10 => self.end(at),
            _ => {
                let prompt = self.prompt();
                assert_eq!(self.cache.lookup(&prompt), self.truth.lookup(&prompt), "{prompt:?}");
            }
        }
        self.truth.balance(&self.cache);
    }
}

fn walks(reuse: &[Reuse]) {
    let shapes = [(1, 1), (5, 2), (9, 1), (16, 4), (24, 3)];
    let mut all = Seen::default();
    let each = STEPS / (shapes.len() * reuse.len());
    for (seed, (capacity, size)) in shapes.into_iter().enumerate() {
        for reuse in reuse {
            let mut walk = Walk::new(seed as u64 * 7919 + 1, capacity, size, *reuse);
            (0..=each).for_each(|_| walk.step());
            while !walk.truth.held.is_empty() {
                walk.end(0);
            }
            walk.truth.balance(&walk.cache);
            assert_eq!(walk.cache.available(), capacity, "every block came back");
            assert_eq!(
                walk.cache.free_places() + walk.cache.snapshots(),
                match reuse {
                    Reuse::Snapshots { places } => *places,
                    Reuse::Nothing | Reuse::Blocks => 0,
                }
            );
            all.matched += walk.seen.matched;
            all.evicted += walk.seen.evicted;
            all.short += walk.seen.short;
            all.saved += walk.seen.saved;
            all.restored += walk.seen.restored;
            all.duplicates += walk.seen.duplicates;
        }
    }
    println!("{all:?}");
    assert!(all.short > each / 50, "{all:?}");
    let reused = *reuse != [Reuse::Nothing];
    assert_eq!(all.matched > each / 10 && all.evicted > each / 10, reused, "{all:?}");
    let saves = reuse.iter().any(|reuse| matches!(reuse, Reuse::Snapshots { .. }));
    assert_eq!(all.saved > each / 50 && all.restored > each / 50 && all.duplicates > 0, saves, "{all:?}");
}

#[test]
fn blocks_are_shared_kept_and_taken_back_as_the_map_says() {
    walks(&[Reuse::Blocks]);
}

#[test]
fn snapshots_are_kept_with_their_blocks_as_the_map_says() {
    walks(&[Reuse::Snapshots { places: 1 }, Reuse::Snapshots { places: 3 }, Reuse::Snapshots { places: 40 }]);
}

#[test]
fn a_cache_that_keeps_nothing_shares_nothing() {
    walks(&[Reuse::Nothing]);
}
