//! The prefix cache: pool, index and snapshots, accounted for together.

mod keeping;
mod sliding;

use crate::admission::blocks_for;
use crate::content::Content;
use crate::index::{Index, Node, Removed};
use crate::offload::{BlockPlace, OffloadPlace, Share};
use crate::pool::{Block, BlockPool, PoolError};
use crate::reuse::{Evicted, Match, Reuse, Snapshot};
use crate::table::{BlockTable, Shortage};
use sliding::{LeasedWindow, SlidingPool};
use std::collections::HashSet;

/// What a sequence holds: its blocks, and the path in the index that it pins. Returned with
/// [`PrefixCache::release`], not by dropping it.
#[derive(Debug)]
#[must_use = "a lease that is dropped keeps its blocks in use for ever"]
pub struct Lease {
    table: BlockTable,
    /// The last of its blocks that the index knows.
    path: Option<Node>,
    /// How many of its blocks the index knows.
    indexed: usize,
    /// Its groups on disk, in order: they follow the first `kept` blocks of the table.
    offloaded: Vec<OffloadPlace>,
    share: Share,
    /// Its blocks of layers with a sliding window.
    window: LeasedWindow,
}

impl Lease {
    /// An empty lease.
    pub fn new(block_tokens: usize) -> Lease {
        Lease {
            table: BlockTable::new(block_tokens),
            path: None,
            indexed: 0,
            offloaded: Vec::new(),
            share: Share::WHOLE,
            window: LeasedWindow::default(),
        }
    }

    /// The blocks on the device, in the order of the tokens they hold.
    pub fn blocks(&self) -> &[Block] {
        self.table.blocks()
    }

    /// How many blocks are on disk.
    pub fn offloaded_blocks(&self) -> usize {
        self.offloaded.len() * self.share.group
    }

    /// Where the blocks are that hold the first `tokens` tokens, as many of them as there are.
    pub fn prefix(&self, tokens: usize) -> impl Iterator<Item = BlockPlace> {
        let blocks = self.table.blocks();
        // Only blocks behind the kept ones go to disk.
        let (first, rest) = blocks.split_at(self.share.kept.min(blocks.len()));
        let group = |place: &OffloadPlace| {
            let place = *place;
            (0..self.share.group).map(move |at| BlockPlace::Disk(place, at))
        };
        let here = |block: &Block| BlockPlace::Device(*block);
        let all =
            first.iter().map(here).chain(self.offloaded.iter().flat_map(group)).chain(rest.iter().map(here));
        all.take(blocks_for(tokens, self.table.block_tokens()))
    }

    /// The blocks that hold the first `tokens` tokens, as many of them as there are, of a lease that has none
    /// on disk.
    pub fn on_device(&self, tokens: usize) -> &[Block] {
        debug_assert!(self.offloaded.is_empty(), "some are on disk");
        let blocks = self.table.blocks();
        &blocks[..blocks.len().min(blocks_for(tokens, self.table.block_tokens()))]
    }

    /// Tokens whose blocks the index knows.
    pub fn indexed_tokens(&self) -> usize {
        self.indexed * self.table.block_tokens()
    }

    /// Blocks that the index knows, from the first on.
    pub fn indexed_blocks(&self) -> usize {
        self.indexed
    }

    /// Moves everything into another lease, to be released later, and leaves this one empty.
    pub fn take(&mut self) -> Lease {
        let Lease { table, path, indexed, offloaded, share, window } = self;
        let (indexed, offloaded) = (std::mem::take(indexed), std::mem::take(offloaded));
        let window = std::mem::take(window);
        Lease { table: table.take(), path: path.take(), indexed, offloaded, share: *share, window }
    }
}

/// All blocks and all places for snapshots: which are free, which sequences use, and which are kept for
/// prompts that begin alike.
///
/// Blocks that only the index holds count as free: when sequences need blocks they are evicted, the least
/// recently used prefix first and each from its end. What a sequence holds, and everything before it on its
/// path, stays.
#[derive(Debug)]
pub struct PrefixCache {
    pool: BlockPool,
    index: Index,
    reuse: Reuse,
    block_tokens: usize,
    /// Matches end at multiples of it, in tokens.
    granule: usize,
    /// Free places for snapshots.
    places: Vec<Snapshot>,
    /// How much of a sequence is on the device.
    share: Share,
    /// Free slots on disk, low ones last.
    offloaded: Vec<OffloadPlace>,
    /// Blocks of layers with a sliding window, of models that have such layers.
    sliding: Option<SlidingPool>,
}

impl PrefixCache {
    /// A cache of `blocks` free blocks of `block_tokens` (at least 1) tokens. Its matches end at multiples of
    /// `granule` tokens (at least 1).
    pub fn new(blocks: usize, block_tokens: usize, granule: usize, reuse: Reuse) -> PrefixCache {
        let places = match reuse {
            Reuse::Snapshots { places } => u32::try_from(places).unwrap_or(u32::MAX),
            Reuse::Nothing | Reuse::Blocks => 0,
        };
        PrefixCache {
            pool: BlockPool::new(blocks),
            index: Index::default(),
            reuse,
            block_tokens: block_tokens.max(1),
            granule: granule.max(1),
            places: (0..places).rev().map(Snapshot).collect(),
            share: Share::WHOLE,
            offloaded: Vec::new(),
            sliding: None,
        }
    }

    /// The same with K/V offload: each sequence has a share of the device, and the rest is in `places` slots
    /// on disk.
    #[must_use]
    pub fn with_offload(self, share: Share, places: usize) -> PrefixCache {
        let places = u32::try_from(places).unwrap_or(u32::MAX);
        PrefixCache { share, offloaded: (0..places).rev().map(OffloadPlace).collect(), ..self }
    }

    /// How much of a sequence is on the device.
    pub fn share(&self) -> &Share {
        &self.share
    }

    /// Tokens of a sequence that the index may know.
    pub fn kept_tokens(&self) -> usize {
        self.share.kept.saturating_mul(self.block_tokens)
    }

    /// Free slots on disk.
    pub fn free_offload_places(&self) -> usize {
        self.offloaded.len()
    }

    /// All blocks.
    pub fn capacity(&self) -> usize {
        self.pool.capacity()
    }

    /// Blocks that sequences can get: free ones, and those that only the index holds.
    pub fn available(&self) -> usize {
        self.pool.free() + self.index.unpinned()
    }

    /// How many of [`Self::available`] hold prefixes.
    pub fn cached(&self) -> usize {
        self.index.unpinned()
    }

    /// Blocks that the index knows, those that sequences hold too included.
    pub fn indexed(&self) -> usize {
        self.index.len()
    }

    /// Snapshots kept.
    pub fn snapshots(&self) -> usize {
        self.index.snapshots()
    }

    /// Free places for snapshots.
    pub fn free_places(&self) -> usize {
        self.places.len()
    }

    /// How often a block is used, by leases and by the index; 0 for a free one.
    ///
    /// # Errors
    /// When the block is not of this cache.
    pub fn uses(&self, block: Block) -> Result<u32, PoolError> {
        self.pool.uses(block)
    }

    /// How much of a prompt is cached and can be gone on from. Changes nothing, not even recency.
    pub fn lookup<'a>(&self, prompt: impl Into<Content<'a>>) -> Match {
        self.find(prompt.into()).0
    }

    /// A lease of what [`Self::lookup`] finds. It takes no other blocks, so it cannot run out of them.
    ///
    /// # Errors
    /// On an accounting error.
    pub fn admit<'a>(&mut self, prompt: impl Into<Content<'a>>) -> Result<(Lease, Match), PoolError> {
        let (found, nodes) = self.find(prompt.into());
        let (mut lease, found) = self.lease(found, &nodes)?;
        self.lease_windows(&mut lease, &nodes)?;
        Ok((lease, found))
    }

    /// How many of the blocks of `tokens` are cached, for a sequence that restores the rest, and its state,
    /// from a copy. Changes nothing.
    pub fn lookup_blocks<'a>(&self, tokens: impl Into<Content<'a>>) -> Match {
        self.find_blocks(tokens.into()).0
    }

    /// A lease of what [`Self::lookup_blocks`] finds; [`Self::restore_sliding`] follows.
    ///
    /// # Errors
    /// On an accounting error.
    pub fn admit_blocks<'a>(&mut self, tokens: impl Into<Content<'a>>) -> Result<(Lease, Match), PoolError> {
        let (found, nodes) = self.find_blocks(tokens.into());
        self.lease(found, &nodes)
    }

    fn lease(&mut self, found: Match, nodes: &[Node]) -> Result<(Lease, Match), PoolError> {
        let mut lease = Lease { share: self.share, ..Lease::new(self.block_tokens) };
        for node in nodes {
            lease.table.share(self.index.block(*node), &mut self.pool)?;
        }
        lease.indexed = nodes.len();
        lease.path = nodes.last().copied();
        if let Some(node) = lease.path {
            self.index.pin(node);
            if found.snapshot.is_some() {
                self.index.touch_snapshot(node);
            }
        }
        Ok((lease, found))
    }

    /// The full blocks of `tokens` that the index knows.
    fn find_blocks(&self, content: Content<'_>) -> (Match, Vec<Node>) {
        let (mut nodes, mut in_use): (Vec<Node>, _) = (Vec::new(), 0);
        for at in 0..content.len() / self.block_tokens {
            let (tokens, images) = content.block(at, self.block_tokens);
            let Some(node) = self.index.child(nodes.last().copied(), tokens, &images) else { break };
            nodes.push(node);
            in_use += usize::from(self.index.is_pinned(node));
        }
        (Match { tokens: nodes.len() * self.block_tokens, in_use, snapshot: None }, nodes)
    }

    /// The match, and the nodes on its path.
    fn find(&self, prompt: Content<'_>) -> (Match, Vec<Node>) {
        let (mut nodes, mut found, mut in_use): (Vec<Node>, _, _) = (Vec::new(), Match::default(), 0);
        // Blocks up to here in a row whose windows are kept.
        let mut windows = 0;
        for at in 0..prompt.len().saturating_sub(1) / self.block_tokens {
            let (tokens, images) = prompt.block(at, self.block_tokens);
            let Some(node) = self.index.child(nodes.last().copied(), tokens, &images) else { break };
            nodes.push(node);
            in_use += usize::from(self.index.is_pinned(node));
            let snapshot = self.index.snapshot(node);
            windows = if self.index.window(node).is_some() { windows + 1 } else { 0 };
            let tokens = nodes.len() * self.block_tokens;
            if tokens.is_multiple_of(self.granule)
                && (self.reuse == Reuse::Blocks || snapshot.is_some())
                && windows >= self.windows_behind(nodes.len())
            {
                found = Match { tokens, in_use, snapshot };
            }
        }
        nodes.truncate(found.tokens / self.block_tokens);
        (found, nodes)
    }

    /// Takes blocks until `tokens` tokens fit, or the sequence has its share; all of them or none. Returns
    /// what was evicted for them, in order.
    ///
    /// # Errors
    /// When there are too few.
    pub fn grow(&mut self, lease: &mut Lease, tokens: usize) -> Result<Vec<Evicted>, Shortage> {
        let (held, offloaded) = (lease.blocks().len(), lease.offloaded_blocks());
        let needed = self.share.held(blocks_for(tokens, self.block_tokens), offloaded).saturating_sub(held);
        if needed > self.available() {
            return Err(Shortage { needed, free: self.available() });
        }
        let mut evicted = Vec::new();
        while self.pool.free() < needed
            && let Some((removed, parent)) = self.index.evict()
        {
            evicted.push(self.dispose(removed));
            self.prune(parent, &mut evicted);
        }
        lease.table.grow(needed, &mut self.pool)?;
        Ok(evicted)
    }

    /// The group that a sequence sends to disk next, and a slot for it if one is free; `None` when no group
    /// is full. The first `done` tokens are in its blocks for good. Nothing changes before it is
    /// [`Self::sent`].
    pub fn departing<'a>(
        &self,
        lease: &'a Lease,
        done: usize,
    ) -> Option<(&'a [Block], Option<OffloadPlace>)> {
        let full =
            (done / self.block_tokens).saturating_sub(lease.offloaded_blocks()).min(lease.blocks().len());
        let group = lease.blocks()[..full].get(self.share.kept..)?.get(..self.share.group)?;
        Some((group, self.offloaded.last().copied()))
    }

    /// Records that the [departing](Self::departing) group is written to its slot, and frees its blocks.
    ///
    /// # Errors
    /// On an accounting error.
    pub fn sent(&mut self, lease: &mut Lease) -> Result<(), PoolError> {
        lease.table.remove(self.share.kept..self.share.kept + self.share.group, &mut self.pool)?;
        lease.offloaded.extend(self.offloaded.pop());
        Ok(())
    }

    /// Indexes the full blocks of `tokens`, the lease's first: each holds their keys and values, and the
    /// sequence writes to it no more. Where the index has a block of these tokens already, the lease takes
    /// that one and its own becomes free: steps submitted before may still read it. Does nothing where only
    /// snapshots can be resumed from: see [`Self::keep`].
    ///
    /// # Errors
    /// On an accounting error.
    pub fn extend<'a>(&mut self, lease: &mut Lease, tokens: impl Into<Content<'a>>) -> Result<(), PoolError> {
        if self.reuse == Reuse::Blocks { self.index_blocks(lease, tokens.into()) } else { Ok(()) }
    }

    fn index_blocks(&mut self, lease: &mut Lease, content: Content<'_>) -> Result<(), PoolError> {
        let size = self.block_tokens;
        // Blocks that may be offloaded are not indexed.
        let full = (content.len() / size).min(lease.blocks().len()).min(self.share.kept);
        while lease.indexed < full {
            let at = lease.indexed;
            let (tokens, images) = content.block(at, size);
            let node = match self.index.child(lease.path, tokens, &images) {
                // Blocks that two sequences computed are stored once.
                Some(node) => {
                    lease.table.replace(at, self.index.block(node), &mut self.pool)?;
                    node
                }
                None => {
                    let block = lease.blocks()[at];
                    self.pool.share(block)?;
                    self.index.insert(lease.path, tokens, &images, block)
                }
            };
            self.index.pin_one(node);
            lease.path = Some(node);
            lease.indexed += 1;
            self.index_window(lease, at, node)?;
        }
        Ok(())
    }

    /// Reserves a place for a snapshot, to be passed to [`Self::keep`] or [`Self::forget`], and returns what
    /// was evicted for it. `None` when all places are reserved.
    pub fn reserve(&mut self) -> Option<(Snapshot, Vec<Evicted>)> {
        let mut evicted = Vec::new();
        if let Some(place) = self.places.pop() {
            return Some((place, evicted));
        }
        let (place, node) = self.index.evict_snapshot()?;
        evicted.push(Evicted { depth: self.index.depth(node), block: false, snapshot: Some(place) });
        self.prune(Some(node), &mut evicted);
        Some((place, evicted))
    }

    /// Keeps a snapshot: the state after exactly `tokens`, the lease's first, which fill their blocks. False
    /// when one of the same tokens exists: then the place is free again.
    ///
    /// # Errors
    /// On an accounting error.
    pub fn keep<'a>(
        &mut self,
        lease: &mut Lease,
        tokens: impl Into<Content<'a>>,
        place: Snapshot,
    ) -> Result<bool, PoolError> {
        let tokens = tokens.into();
        self.index_blocks(lease, tokens)?;
        let node = lease.path.filter(|_| lease.indexed_tokens() == tokens.len());
        let node = node.filter(|node| self.index.snapshot(*node).is_none());
        match node {
            Some(node) => self.index.attach(node, place),
            None => self.forget(place),
        }
        Ok(node.is_some())
    }

    /// Frees a reserved place whose snapshot is not worth keeping.
    pub fn forget(&mut self, place: Snapshot) {
        self.places.push(place);
    }

    /// Releases everything; indexed blocks stay cached until they are evicted.
    ///
    /// # Errors
    /// On an accounting error.
    pub fn release(&mut self, lease: &mut Lease) -> Result<(), PoolError> {
        let end = self.let_go(lease)?;
        self.prune(end, &mut Vec::new());
        Ok(())
    }

    /// As [`Self::release`], but the index keeps all that it knows; returns the end of the lease's path.
    fn let_go(&mut self, lease: &mut Lease) -> Result<Option<Node>, PoolError> {
        let end = lease.path.take();
        if let Some(node) = end {
            self.index.unpin(node);
        }
        lease.indexed = 0;
        // From the end, so that the next sequence gets them in order.
        self.offloaded.extend(lease.offloaded.drain(..).rev());
        lease.table.release(&mut self.pool)?;
        self.release_windows(lease)?;
        Ok(end)
    }

    /// How many blocks become [available](Self::available) as each lease is released, when all later ones
    /// were released before.
    pub fn returns<'a>(&self, leases: impl Iterator<Item = &'a Lease>) -> Vec<usize> {
        let mut seen = HashSet::<Node>::new();
        let returns = |lease: &Lease| {
            // A block of two leases is indexed; it comes back with the first of them, which is released last.
            let mut next = lease.path;
            let mut count = lease.blocks().iter().filter(|block| self.pool.uses(**block) == Ok(1)).count();
            while let Some(node) = next.filter(|node| seen.insert(*node)) {
                count += 1;
                next = self.index.parent(node);
            }
            count
        };
        leases.map(returns).collect()
    }

    /// Where prefixes without a snapshot are useless, removes a node and those of its ancestors that become
    /// leaves.
    fn prune(&mut self, node: Option<Node>, evicted: &mut Vec<Evicted>) {
        if !matches!(self.reuse, Reuse::Snapshots { .. }) {
            return;
        }
        let mut next = node;
        while let Some(node) = next
            && self.index.snapshot(node).is_none()
            && let Some((removed, parent)) = self.index.remove(node)
        {
            evicted.push(self.dispose(removed));
            next = parent;
        }
    }

    fn dispose(&mut self, Removed { block, depth, snapshot, window }: Removed) -> Evicted {
        // The index was one of its users.
        self.pool.release(block).expect("the index holds what it knows");
        self.places.extend(snapshot);
        if let Some(window) = window {
            self.forget_window(window);
        }
        Evicted { depth, block: true, snapshot }
    }
}
