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
//!
//! Images are among the tokens. The map knows each of their tokens by its image and its place in that; the
//! cache is given one id for all of them, and where the images are.
//!
//! Of layers with a sliding window, likewise: a block given back one token too early (what is attended to was
//! given back); a prefix gone on from without its windows (`lookup` differs); a window in use counted as idle
//! (`sliding_available` differs); the window used last evicted first (a block has another use).

#[path = "../random/mod.rs"]
mod random;
mod truth;

use monomorph_abi::sliding::Sliding;
use monomorph_cache::{Content, ImageDigest, Match, PlacedImage, PrefixCache, Reuse, Shortage};
use random::Random;
use truth::{HeldSequence, Truth};

/// Steps of each walk.
const STEPS: usize = 1_000_000;
/// Different tokens: few, so that prompts begin alike.
const KINDS: usize = 3;
const SEQUENCES: usize = 6;

/// The id of all tokens of images.
const IMAGE: u32 = 9;
/// Tokens of each image.
const IMAGES: [u32; 3] = [1, 4, 7];
/// What the map knows an image's token by: this, a number for each image, and its place.
const MARK: u32 = 100;

/// The token at a place of an image, as the map knows it.
fn marked(image: usize, place: u32) -> u32 {
    MARK * (1 + image as u32) + place
}

/// Which image a token is of, and its place there.
fn of_image(token: u32) -> Option<(usize, u32)> {
    token.checked_sub(MARK).map(|it| ((it / MARK) as usize, it % MARK))
}

impl Random {
    /// Tokens to follow these: an image that has begun goes on.
    fn tokens(&mut self, behind: &[u32], count: usize) -> Vec<u32> {
        let mut last = behind.last().copied();
        let next = |_| {
            let on = last.and_then(of_image).filter(|(image, place)| place + 1 < IMAGES[*image]);
            let token = match on {
                Some((image, place)) => marked(image, place + 1),
                None if self.below(6) == 0 => marked(self.below(IMAGES.len()), 0),
                None => self.below(KINDS) as u32,
            };
            last = Some(token);
            token
        };
        (0..count).map(next).collect()
    }
}

/// What the cache is given of tokens that the map knows.
struct Given {
    ids: Vec<u32>,
    images: Vec<PlacedImage>,
}

impl Given {
    fn new(tokens: &[u32]) -> Given {
        let mut images: Vec<PlacedImage> = Vec::new();
        for (at, token) in tokens.iter().enumerate() {
            let Some((image, place)) = of_image(*token) else { continue };
            if place == 0 {
                // They differ in their last bytes only.
                let mut digest = [7; 32];
                digest[31] = image as u8;
                images.push(PlacedImage { digest: ImageDigest(digest), start: at, end: at });
            }
            images.last_mut().expect("an image begins with its first token").end = at + 1;
        }
        let ids = tokens.iter().map(|token| if *token < MARK { *token } else { IMAGE }).collect();
        Given { ids, images }
    }

    fn all(&self) -> Content<'_> {
        Content::new(&self.ids, &self.images)
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
    /// Blocks of layers with a sliding window that were given back, and that there were too few of.
    slid: usize,
    short_windows: usize,
    /// Such blocks that were written from a copy, and that were not because the index kept them.
    copied: [usize; 2],
    /// Prompts of which less was found than the index has blocks of.
    shortened: usize,
}

struct Walk {
    random: Random,
    cache: PrefixCache,
    truth: Truth,
    seen: Seen,
}

impl Walk {
    fn new(seed: u64, capacity: usize, size: usize, reuse: Reuse, sliding: Option<(usize, usize)>) -> Walk {
        // What is found may have to end at every other block.
        let granule = size * if capacity == 16 { 2 } else { 1 };
        let sliding = sliding.map(|(window, blocks)| (Sliding { window, block_tokens: size }, blocks));
        let cache = PrefixCache::new(capacity, size, granule, reuse);
        let cache = match sliding {
            Some((it, blocks)) => cache.with_sliding(it, blocks),
            None => cache,
        };
        let truth = Truth::new(capacity, size, granule, reuse, sliding);
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
        let more = random.tokens(&prompt, more);
        prompt.extend(more);
        prompt
    }

    fn begin(&mut self) {
        let prompt = self.prompt();
        // One in four has a copy of its state and restores what is not cached.
        let restores = self.random.below(4) == 0;
        let expected = if restores { self.truth.lookup_blocks(&prompt) } else { self.truth.lookup(&prompt) };
        let given = Given::new(&prompt);
        let given = given.all();
        let found = if restores { self.cache.lookup_blocks(given) } else { self.cache.lookup(given) };
        assert_eq!(found, expected, "{prompt:?} among {:?}", self.truth);
        let before = self.cache.available();
        let admitted = if restores { self.cache.admit_blocks(given) } else { self.cache.admit(given) };
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
        self.seen.shortened +=
            usize::from(!restores && self.truth.lookup_blocks(&prompt[..prompt.len() - 1]).tokens > tokens);
        let (known, done, saved) = (tokens, tokens, Vec::new());
        self.truth.held.push(HeldSequence { lease, tokens: prompt[..tokens].to_vec(), known, done, saved });
        let at = self.truth.held.len() - 1;
        if restores {
            self.restore(at, &prompt);
        } else {
            let ends: Vec<&[u32]> = match self.truth.sliding {
                Some(_) => self.truth.attended(&prompt[..tokens]).collect(),
                None => Vec::new(),
            };
            self.truth.use_windows(ends.into_iter());
            self.feed(at, &prompt[tokens..]);
        }
    }

    /// A sequence goes on from a copy of what it was fed, all of `tokens`.
    fn restore(&mut self, at: usize, tokens: &[u32]) {
        if !self.grow(at, &tokens[self.truth.held[at].tokens.len()..]) {
            return;
        }
        let Walk { cache, truth, seen, .. } = self;
        let Some((it, _)) = truth.sliding else { return };
        let ends: Vec<&[u32]> = truth.attended(tokens).collect();
        let kept: Vec<&[u32]> = ends
            .iter()
            .copied()
            .filter(|end| end.len() <= truth.held[at].known && truth.known[*end].window.is_some())
            .collect();
        // One that is not full yet has no end among these.
        let needed = tokens.len().div_ceil(truth.size) - it.first(tokens.len()) - kept.len();
        let held: std::collections::HashSet<_> = truth.held_windows();
        let of_kept =
            kept.iter().filter(|end| truth.known[**end].window.is_some_and(|(it, _)| !held.contains(&it)));
        if needed > truth.available_windows() - of_kept.count() {
            seen.short_windows += 1;
            return self.end(at);
        }
        truth.use_windows(kept.iter().copied());
        // Those that it takes are held before any is evicted for it.
        let taken: Vec<_> = kept.iter().map(|end| truth.known[*end].window).collect();
        let before = truth.evict_all_but(needed, &taken);
        truth.held[at].done = tokens.len();
        let (first, written) =
            cache.restore_sliding(&mut truth.held[at].lease, tokens.len()).expect("there is room");
        assert_eq!(first, it.first(tokens.len()));
        assert_eq!(written.iter().flatten().count(), needed);
        assert!(
            written.iter().flatten().all(|block| !before.contains(block)),
            "a block that has another use"
        );
        seen.copied[0] += needed;
        seen.copied[1] += kept.len();
        for (index, block) in (first..).zip(written) {
            let Some(block) = block else { continue };
            let end = tokens.len().min((index + 1) * truth.size);
            truth.windows.insert(block, tokens[..end].to_vec());
            if end <= truth.held[at].known {
                let now = truth.now();
                truth.known.get_mut(&tokens[..end]).expect("the lease pins it").window = Some((block, now));
            }
        }
    }

    /// Gives a sequence more tokens and the blocks of them; false where there are too few, and it ended.
    fn grow(&mut self, at: usize, more: &[u32]) -> bool {
        let Walk { cache, truth, seen, .. } = self;
        let tokens = truth.held[at].tokens.len() + more.len();

        let had = truth.held[at].lease.blocks().to_vec();
        let (needed, available) = (tokens.div_ceil(truth.size).saturating_sub(had.len()), truth.available());
        if needed > available {
            let short = cache.grow(&mut truth.held[at].lease, tokens);
            assert_eq!(short, Err(Shortage { needed, free: available }));
            assert_eq!(truth.held[at].lease.blocks(), had);
            seen.short += 1;
            self.end(at);
            return false;
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
        true
    }

    /// Feeds a sequence: it ends when there are no blocks for that.
    fn feed(&mut self, at: usize, more: &[u32]) {
        let fed = self.truth.held[at].tokens.len();
        if !self.grow(at, more) || self.truth.sliding.is_none() {
            return;
        }
        let Walk { cache, truth, seen, .. } = self;
        let tokens = fed + more.len();
        let had = truth.held[at].lease.sliding();
        let (first, had) = (had.0, had.1.to_vec());
        let needed = tokens.div_ceil(truth.size).saturating_sub(first + had.len());
        assert_eq!(cache.sliding_due(&truth.held[at].lease, tokens), needed);
        let available = truth.available_windows();
        if needed > available {
            let short = cache.grow_sliding(&mut truth.held[at].lease, tokens);
            assert_eq!(short, Err(Shortage { needed, free: available }));
            seen.short_windows += 1;
            return self.end(at);
        }
        let before = truth.evict_all_but(needed, &[]);
        cache.grow_sliding(&mut truth.held[at].lease, tokens).expect("there is room");
        let one = &truth.held[at];
        let (now_first, now) = one.lease.sliding();
        assert_eq!((now_first, &now[..had.len()]), (first, &had[..]), "growing moves nothing");
        assert!(now[had.len()..].iter().all(|block| !before.contains(block)), "a block that has another use");
        for (index, block) in (first..).zip(now).skip((fed / truth.size).saturating_sub(first)) {
            let end = tokens.min((index + 1) * truth.size);
            truth.windows.insert(*block, one.tokens[..end].to_vec());
        }
    }

    /// Gives back what a sequence attends to no more, as if its last few tokens were drafts that may not
    /// hold.
    fn slide(&mut self, at: usize) {
        let Walk { random, cache, truth, seen } = self;
        let one = &mut truth.held[at];
        let done = one.tokens.len().saturating_sub(random.below(3)).max(one.done);
        one.done = done;
        let before = one.lease.sliding().1.len();
        cache.slide(&mut one.lease, done).expect("the books balance");
        let (first, windows) = one.lease.sliding();
        seen.slid += before - windows.len();
        if let Some((it, _)) = truth.sliding {
            let attended = (done + 1).saturating_sub(it.window);
            assert!(first * truth.size <= attended, "what is attended to was given back");
            assert!(windows.is_empty() || (first + 1) * truth.size > attended, "what is not was kept");
        }
    }

    fn extend(&mut self, at: usize) {
        let Walk { random, cache, truth, .. } = self;
        let tokens = random.below(truth.held[at].tokens.len() + 1);
        let one = &mut truth.held[at];
        let given = Given::new(&one.tokens);
        cache.extend(&mut one.lease, given.all().first(tokens)).expect("the books balance");
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
        let given = Given::new(&one.tokens);
        let kept = cache.keep(&mut one.lease, given.all().first(tokens), place).expect("the books balance");
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
        assert!(one.lease.blocks().is_empty() && one.lease.sliding().1.is_empty());
    }

    fn step(&mut self) {
        let sequences = self.truth.held.len();
        let at = self.random.below(sequences.max(1));
        match self.random.below(14) {
            0..=2 if sequences < SEQUENCES => self.begin(),
            _ if sequences == 0 => {}
            3..=5 => {
                let count = self.random.below(self.truth.size + 2);
                let more = self.random.tokens(&self.truth.held[at].tokens, count);
                self.feed(at, &more);
            }
            6 | 7 => self.extend(at),
            8 => self.save(at),
            9 => self.keep(at),
            10 if self.random.below(4) == 0 => self.end_some(at),
            10 => self.end(at),
            11 | 12 => self.slide(at),
            _ => {
                let prompt = self.prompt();
                let found = self.cache.lookup(Given::new(&prompt).all());
                assert_eq!(found, self.truth.lookup(&prompt), "{prompt:?}");
            }
        }
        self.truth.balance(&self.cache);
    }
}

fn walks(reuse: &[Reuse], slides: bool) {
    // Of each shape: blocks, their tokens, a window, and blocks of layers that have it.
    let windows = [(1, 1), (3, 5), (4, 6), (11, 9), (5, 24)];
    let shapes = [(1, 1), (5, 2), (9, 1), (16, 4), (24, 3)];
    let mut all = Seen::default();
    let each = STEPS / (shapes.len() * reuse.len());
    for (seed, ((capacity, size), window)) in shapes.into_iter().zip(windows).enumerate() {
        for reuse in reuse {
            let mut walk =
                Walk::new(seed as u64 * 7919 + 1, capacity, size, *reuse, slides.then_some(window));
            (0..=each).for_each(|_| walk.step());
            while !walk.truth.held.is_empty() {
                walk.end(0);
            }
            walk.truth.balance(&walk.cache);
            assert_eq!(walk.cache.available(), capacity, "every block came back");
            assert_eq!(
                walk.cache.sliding_available(),
                walk.cache.sliding_capacity(),
                "and behind windows too"
            );
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
            all.slid += walk.seen.slid;
            all.short_windows += walk.seen.short_windows;
            all.shortened += walk.seen.shortened;
            all.copied.iter_mut().zip(walk.seen.copied).for_each(|(all, one)| *all += one);
        }
    }
    println!("{all:?}");
    assert!(all.short > each / 50, "{all:?}");
    let found = reuse.iter().any(|reuse| *reuse != Reuse::Nothing);
    assert_eq!(all.slid > each / 20 && all.short_windows > each / 50, slides, "{all:?}");
    assert_eq!(
        all.shortened > each / 100 && all.copied.iter().all(|it| *it > each / 100),
        slides && found,
        "{all:?}"
    );
    let reused = *reuse != [Reuse::Nothing];
    assert_eq!(all.matched > each / 10 && all.evicted > each / 10, reused, "{all:?}");
    let saves = reuse.iter().any(|reuse| matches!(reuse, Reuse::Snapshots { .. }));
    assert_eq!(all.saved > each / 50 && all.restored > each / 50 && all.duplicates > 0, saves, "{all:?}");
}

#[test]
fn blocks_are_shared_kept_and_taken_back_as_the_map_says() {
    walks(&[Reuse::Blocks], false);
}

#[test]
fn snapshots_are_kept_with_their_blocks_as_the_map_says() {
    walks(
        &[Reuse::Snapshots { places: 1 }, Reuse::Snapshots { places: 3 }, Reuse::Snapshots { places: 40 }],
        false,
    );
}

#[test]
fn blocks_behind_windows_are_given_back_kept_and_taken_back_as_the_map_says() {
    walks(&[Reuse::Blocks, Reuse::Nothing], true);
}

#[test]
fn blocks_behind_windows_are_kept_with_snapshots_as_the_map_says() {
    walks(&[Reuse::Snapshots { places: 3 }, Reuse::Snapshots { places: 40 }], true);
}

#[test]
fn a_cache_that_keeps_nothing_shares_nothing() {
    walks(&[Reuse::Nothing], false);
}
