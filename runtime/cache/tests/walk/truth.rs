//! What the cache must be: a plain map of all prefixes that are kept, each with what it holds, and the list
//! of all leases.

use monomorph_abi::sliding::Sliding;
use monomorph_cache::{Block, Evicted, Lease, Match, PrefixCache, Reuse, SlidingBlock, Snapshot};
use std::collections::{BTreeMap, HashMap, HashSet};

/// What is kept of a prefix: of its last block, that is.
#[derive(Clone, Debug)]
pub struct Known {
    pub block: Block,
    pub used: u64,
    pub snapshot: Option<(Snapshot, u64)>,
    pub window: Option<(SlidingBlock, u64)>,
}

/// A sequence.
#[derive(Debug)]
pub struct HeldSequence {
    pub lease: Lease,
    /// Its tokens, all of which were fed.
    pub tokens: Vec<u32>,
    /// How many of them the index knows.
    pub known: usize,
    /// How many are fed for good, when its windows moved on last.
    pub done: usize,
    /// Promised places, each with the number of tokens whose state was saved there.
    pub saved: Vec<(Snapshot, usize)>,
}

/// The map and the list.
#[derive(Debug)]
pub struct Truth {
    pub capacity: usize,
    pub size: usize,
    pub granule: usize,
    pub reuse: Reuse,
    pub known: BTreeMap<Vec<u32>, Known>,
    pub held: Vec<HeldSequence>,
    /// The prefix whose keys and values a block holds.
    pub memory: HashMap<Block, Vec<u32>>,
    /// The tokens whose state a place holds.
    pub states: HashMap<Snapshot, Vec<u32>>,
    /// A sliding window, and the blocks of layers that have it.
    pub sliding: Option<(Sliding, usize)>,
    /// As `memory`, of these blocks.
    pub windows: HashMap<SlidingBlock, Vec<u32>>,
    pub clock: u64,
}

impl Truth {
    pub fn new(
        capacity: usize,
        size: usize,
        granule: usize,
        reuse: Reuse,
        sliding: Option<(Sliding, usize)>,
    ) -> Truth {
        Truth {
            capacity,
            size,
            granule,
            reuse,
            known: BTreeMap::new(),
            held: Vec::new(),
            memory: HashMap::new(),
            states: HashMap::new(),
            sliding,
            windows: HashMap::new(),
            clock: 0,
        }
    }

    pub fn now(&mut self) -> u64 {
        self.clock += 1;
        self.clock
    }

    fn places(&self) -> usize {
        if let Reuse::Snapshots { places } = self.reuse { places } else { 0 }
    }

    pub fn is_pinned(&self, prefix: &[u32]) -> bool {
        self.held.iter().any(|one| one.tokens[..one.known].starts_with(prefix))
    }

    pub fn free(&self) -> usize {
        let held = self.held.iter().flat_map(|one| one.lease.blocks());
        let used: HashSet<_> = held.chain(self.known.values().map(|known| &known.block)).collect();
        self.capacity - used.len()
    }

    pub fn available(&self) -> usize {
        self.free() + self.known.keys().filter(|prefix| !self.is_pinned(prefix)).count()
    }

    pub fn free_places(&self) -> usize {
        let promised = self.held.iter().map(|one| one.saved.len()).sum::<usize>();
        self.places() - promised - self.known.values().filter(|known| known.snapshot.is_some()).count()
    }

    fn is_free_leaf(&self, prefix: &[u32]) -> bool {
        let is_longer = |other: &&Vec<u32>| other.len() > prefix.len() && other.starts_with(prefix);
        !self.is_pinned(prefix) && self.known.keys().find(is_longer).is_none()
    }

    /// The longest of all usable prefixes, by trying each.
    pub fn lookup(&self, prompt: &[u32]) -> Match {
        let usable = |(prefix, known): &(&Vec<u32>, &Known)| {
            prefix.len() < prompt.len()
                && prompt.starts_with(prefix)
                && prefix.len().is_multiple_of(self.granule)
                && (self.reuse == Reuse::Blocks || known.snapshot.is_some())
                && self.attended(prefix).all(|end| self.known[end].window.is_some())
        };
        let Some((prefix, known)) = self.known.iter().filter(usable).max_by_key(|(prefix, _)| prefix.len())
        else {
            return Match::default();
        };
        let ends = (1..=prefix.len() / self.size).map(|blocks| &prefix[..blocks * self.size]);
        let in_use = ends.filter(|end| self.is_pinned(end)).count();
        Match { tokens: prefix.len(), in_use, snapshot: known.snapshot.map(|(place, _)| place) }
    }

    /// All full blocks that are known, from the first on.
    pub fn lookup_blocks(&self, tokens: &[u32]) -> Match {
        let ends = (1..=tokens.len() / self.size).map(|blocks| &tokens[..blocks * self.size]);
        let known: Vec<&[u32]> = ends.take_while(|end| self.known.contains_key(*end)).collect();
        let in_use = known.iter().filter(|end| self.is_pinned(end)).count();
        Match { tokens: known.len() * self.size, in_use, snapshot: None }
    }

    fn remove(&mut self, prefix: &[u32]) -> Evicted {
        let known = self.known.remove(prefix).expect("it is known");
        let snapshot = known.snapshot.map(|(place, _)| place);
        Evicted { depth: prefix.len() / self.size, block: true, snapshot }
    }

    /// Prefixes that are evicted with one that lost its children.
    fn prune(&mut self, mut prefix: Vec<u32>, evicted: &mut Vec<Evicted>) {
        while self.places() > 0
            && self.known.get(&prefix).is_some_and(|known| known.snapshot.is_none())
            && self.is_free_leaf(&prefix)
        {
            evicted.push(self.remove(&prefix));
            prefix.truncate(prefix.len() - self.size);
        }
    }

    /// The prefixes to evict until so many blocks are free.
    pub fn make_room(&mut self, blocks: usize) -> Vec<Evicted> {
        let mut evicted = Vec::new();
        while self.free() < blocks {
            let leaves = self.known.iter().filter(|(prefix, _)| self.is_free_leaf(prefix));
            let mut oldest = leaves.min_by_key(|(_, known)| known.used).expect("something can go").0.clone();
            evicted.push(self.remove(&oldest));
            oldest.truncate(oldest.len() - self.size);
            self.prune(oldest, &mut evicted);
        }
        evicted
    }

    /// The snapshot to evict for a place; `None` when there is none that can be.
    pub fn make_place(&mut self) -> Option<Vec<Evicted>> {
        let mut evicted = Vec::new();
        if self.free_places() == 0 {
            let saved = self.known.iter_mut().filter(|(_, known)| known.snapshot.is_some());
            let (prefix, known) = saved.min_by_key(|(_, known)| known.snapshot.map(|(_, used)| used))?;
            let snapshot = known.snapshot.take().map(|(place, _)| place);
            let prefix = prefix.clone();
            evicted.push(Evicted { depth: prefix.len() / self.size, block: false, snapshot });
            self.prune(prefix, &mut evicted);
        }
        Some(evicted)
    }

    /// All beginnings of `prefix` count as used now.
    pub fn touch(&mut self, prefix: &[u32]) {
        let now = self.now();
        for (known, it) in &mut self.known {
            if prefix.starts_with(known) {
                it.used = now;
            }
        }
    }

    /// The index comes to know a sequence's blocks below its first `tokens` tokens.
    pub fn learn(&mut self, at: usize, tokens: usize) {
        let now = self.now();
        let one = &mut self.held[at];
        for end in (one.known + self.size..=tokens).step_by(self.size) {
            let block = one.lease.blocks()[end / self.size - 1];
            let fresh = Known { block, used: now, snapshot: None, window: None };
            let known = self.known.entry(one.tokens[..end].to_vec()).or_insert(fresh);
            assert_eq!(known.block, block, "what two computed is kept once");
            one.known = end;
            if let Some(window) = window_of(&one.lease, end / self.size - 1) {
                self.clock += 1;
                let kept = known.window.get_or_insert((window, 0));
                assert_eq!(kept.0, window, "what two computed is kept once, behind windows too");
                kept.1 = self.clock;
            }
        }
    }

    /// Blocks of layers with a sliding window that leases hold.
    pub fn held_windows(&self) -> HashSet<SlidingBlock> {
        self.held.iter().flat_map(|one| one.lease.sliding().1).copied().collect()
    }

    fn known_windows(&self) -> impl Iterator<Item = SlidingBlock> {
        self.known.values().filter_map(|known| known.window.map(|(window, _)| window))
    }

    pub fn free_windows(&self) -> usize {
        let used: HashSet<_> = self.held_windows().into_iter().chain(self.known_windows()).collect();
        self.sliding.map_or(0, |(_, blocks)| blocks) - used.len()
    }

    pub fn available_windows(&self) -> usize {
        let held = self.held_windows();
        self.free_windows() + self.known_windows().filter(|window| !held.contains(window)).count()
    }

    /// Forgets the windows used longest ago, until so many blocks can be taken, but none of these; returns
    /// the blocks that are in use then.
    pub fn evict_all_but(
        &mut self,
        blocks: usize,
        taken: &[Option<(SlidingBlock, u64)>],
    ) -> HashSet<SlidingBlock> {
        let mut held = self.held_windows();
        held.extend(taken.iter().flatten().map(|(window, _)| *window));
        while self.free_windows() < blocks {
            let idle = self
                .known
                .values_mut()
                .filter(|known| known.window.is_some_and(|(window, _)| !held.contains(&window)));
            let oldest = idle.min_by_key(|known| known.window.map(|(_, used)| used));
            oldest.expect("something can go").window = None;
        }
        held.into_iter().chain(self.known_windows()).collect()
    }

    /// The blocks of a prefix, by where they end, that the token after it attends to: by asking of each of
    /// its positions.
    pub fn attended<'a>(&self, prefix: &'a [u32]) -> impl Iterator<Item = &'a [u32]> + use<'a> {
        let (size, window) = (self.size, self.sliding.map_or(1, |(it, _)| it.window));
        let is_attended =
            move |end: &usize| (end - size..*end).any(|position| position + window > prefix.len());
        (size..=prefix.len()).step_by(size).filter(is_attended).map(|end| &prefix[..end])
    }

    /// A sequence takes these windows of known prefixes now.
    pub fn use_windows<'a>(&mut self, ends: impl Iterator<Item = &'a [u32]>) {
        for end in ends {
            let now = self.now();
            if let Some(known) = self.known.get_mut(end)
                && let Some((_, used)) = &mut known.window
            {
                *used = now;
            }
        }
    }

    pub fn release(&mut self, at: usize) -> HeldSequence {
        let one = self.held.swap_remove(at);
        self.touch(&one.tokens[..one.known]);
        self.prune(one.tokens[..one.known].to_vec(), &mut Vec::new());
        one
    }

    /// Compares the use counts of all blocks.
    pub fn balance(&self, cache: &PrefixCache) {
        for block in (0..self.capacity as u32).map(Block) {
            let held = self.held.iter().filter(|one| one.lease.blocks().contains(&block)).count();
            let known = self.known.values().filter(|known| known.block == block).count();
            assert!(known <= 1, "{block:?} stands in the index twice");
            assert_eq!(cache.uses(block), Ok((held + known) as u32), "uses of {block:?}");
        }
        assert_eq!((cache.available(), cache.indexed()), (self.available(), self.known.len()));
        assert_eq!((cache.capacity(), cache.cached()), (self.capacity, self.available() - self.free()));
        assert_eq!(cache.free_places(), self.free_places());
        let kept = self.known.values().filter(|known| known.snapshot.is_some()).count();
        assert_eq!(cache.snapshots(), kept);
        self.balance_windows(cache);
        for one in &self.held {
            let (lease, fed) = (&one.lease, one.tokens.len());
            assert_eq!(lease.indexed_blocks() * self.size, one.known);
            assert_eq!(lease.on_device(fed), &lease.blocks()[..fed.div_ceil(self.size)]);
        }
    }

    /// The same of the blocks of layers with a sliding window. A sequence has all that it attends to.
    fn balance_windows(&self, cache: &PrefixCache) {
        let Some((it, blocks)) = self.sliding else { return };
        for window in (0..blocks as u32).map(SlidingBlock) {
            let held = self.held.iter().filter(|one| one.lease.sliding().1.contains(&window)).count();
            let known = self.known_windows().filter(|known| *known == window).count();
            assert!(known <= 1, "{window:?} stands in the index twice");
            assert_eq!(cache.sliding_uses(window), Ok((held + known) as u32), "uses of {window:?}");
        }
        assert_eq!((cache.sliding_capacity(), cache.sliding_available()), (blocks, self.available_windows()));
        assert_eq!(cache.sliding_cached(), self.available_windows() - self.free_windows());
        let full: HashSet<_> = self.held.iter().flat_map(|one| one.lease.blocks()).collect();
        assert!(self.held_windows().len() <= full.len(), "more blocks behind windows than of other layers");
        for one in &self.held {
            let ((first, windows), fed) = (one.lease.sliding(), one.tokens.len());
            assert!(first <= it.first(fed), "what is attended to was given back");
            assert_eq!(first + windows.len(), fed.div_ceil(self.size));
            for (at, window) in (first..).zip(windows) {
                let end = fed.min((at + 1) * self.size);
                assert_eq!(self.windows[window], one.tokens[..end], "{window:?} holds another prefix");
            }
        }
    }
}

/// A lease's block of layers with a sliding window, if it has that one still.
fn window_of(lease: &Lease, at: usize) -> Option<SlidingBlock> {
    let (first, windows) = lease.sliding();
    windows.get(at.checked_sub(first)?).copied()
}
