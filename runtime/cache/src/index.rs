//! The radix index: which prefixes of token ids have their blocks cached, which have a snapshot, how many
//! sequences use them, and when they were used last.
//!
//! A node is one full block: its parent is the block before it, so a node stands for all tokens from the root
//! to it. A node's tokens and images are compared one by one; hashes only say where to look.

use crate::content::{ImageDigest, key};
use crate::kept::{KeptId, KeptIndex};
use crate::pool::{Block, SlidingBlock};
use crate::reuse::Snapshot;
use std::collections::{BTreeSet, HashMap, VecDeque};
use std::sync::Arc;

/// A prefix that is cached: the last of its blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Node(u32);

type Children = HashMap<Arc<[u32]>, Node>;

#[derive(Debug)]
struct Entry {
    /// Of its tokens and images.
    key: Arc<[u32]>,
    block: Block,
    parent: Option<Node>,
    children: Children,
    /// Blocks from the root to here.
    depth: usize,
    /// Sequences whose path ends here or below.
    pins: u32,
    /// When it was made, or on the path of a sequence that began or ended; no earlier than its children's.
    used: u64,
    /// With the time when it was saved, or a sequence went on from it.
    snapshot: Option<(Snapshot, u64)>,
    /// The same tokens' block of layers with a sliding window, with the time when it was kept, or a sequence
    /// took it.
    window: Option<(SlidingBlock, u64)>,
    /// When it was made. No two entries are made at one time.
    born: u64,
    /// What it is in a file of kept prefixes, if it was once, and is still there.
    kept: Option<KeptId>,
}

impl Entry {
    fn is_free_leaf(&self) -> bool {
        self.pins == 0 && self.children.is_empty()
    }
}

/// What the index has and a file of kept prefixes does not, behind a block that the file has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Unkept {
    /// A block of keys and values.
    Block {
        /// Where it is on the device.
        block: Block,
        /// The block before it in the file; `None` of the first of a prefix.
        parent: Option<KeptId>,
        /// Its ids and images.
        key: Arc<[u32]>,
        /// Blocks of the prefix that it is kept for.
        depth: usize,
    },
    /// The snapshot of a recurrent state.
    State {
        /// Where it is on the device.
        snapshot: Snapshot,
        /// The block in the file that it stands behind.
        block: KeptId,
    },
}

/// The nodes that a file of kept prefixes may not have, each with when it was made, in the order in which
/// they became worth keeping.
#[derive(Debug)]
struct Fresh {
    nodes: VecDeque<(Node, u64)>,
    /// Whether only a node with a snapshot is worth keeping, and its path for it.
    snapshots: bool,
}

/// What was removed from the index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Removed {
    pub block: Block,
    pub depth: usize,
    pub snapshot: Option<Snapshot>,
    pub window: Option<SlidingBlock>,
}

/// All nodes, with their recency.
#[derive(Debug, Default)]
pub(crate) struct Index {
    entries: Vec<Option<Entry>>,
    vacant: Vec<Node>,
    roots: Children,
    /// Nodes without children and pins, least recently used first.
    leaves: BTreeSet<(u64, Node)>,
    /// Nodes with snapshots, likewise.
    snapshots: BTreeSet<(u64, Node)>,
    /// Nodes with a window that no sequence holds, likewise.
    idle_windows: BTreeSet<(u64, Node)>,
    /// The node that each window is kept with.
    windows: HashMap<SlidingBlock, Node>,
    /// Nodes without pins: all of them can be evicted, leaf by leaf.
    unpinned: usize,
    clock: u64,
    /// What became worth keeping; `None` where nothing is kept.
    fresh: Option<Fresh>,
}

impl Index {
    pub fn unpinned(&self) -> usize {
        self.unpinned
    }

    /// All nodes, pinned or not.
    pub fn len(&self) -> usize {
        self.entries.len() - self.vacant.len()
    }

    pub fn snapshots(&self) -> usize {
        self.snapshots.len()
    }

    pub fn block(&self, node: Node) -> Block {
        self.entry(node).block
    }

    pub fn snapshot(&self, node: Node) -> Option<Snapshot> {
        self.entry(node).snapshot.map(|(snapshot, _)| snapshot)
    }

    pub fn parent(&self, node: Node) -> Option<Node> {
        self.entry(node).parent
    }

    pub fn depth(&self, node: Node) -> usize {
        self.entry(node).depth
    }

    pub fn is_pinned(&self, node: Node) -> bool {
        self.entry(node).pins > 0
    }

    /// The node behind `parent` whose block holds exactly these tokens, of these images.
    pub fn child(&self, parent: Option<Node>, tokens: &[u32], images: &[ImageDigest]) -> Option<Node> {
        self.children(parent).get(&*key(tokens, images)).copied()
    }

    /// Adds the block behind `parent`, which has no child of these tokens and images. It is not pinned.
    pub fn insert(
        &mut self,
        parent: Option<Node>,
        tokens: &[u32],
        images: &[ImageDigest],
        block: Block,
    ) -> Node {
        let node = self.vacant.pop().unwrap_or_else(|| {
            self.entries.push(None);
            Node((self.entries.len() - 1) as u32)
        });
        let used = self.tick();
        let key: Arc<[u32]> = key(tokens, images).into();
        self.children_mut(parent).insert(Arc::clone(&key), node);
        let mut depth = 1;
        if let Some(parent) = parent {
            let entry = self.entry(parent);
            depth += entry.depth;
            let place = (entry.used, parent);
            self.leaves.remove(&place);
        }
        self.entries[node.0 as usize] = Some(Entry {
            key,
            block,
            parent,
            children: HashMap::new(),
            depth,
            pins: 0,
            used,
            snapshot: None,
            window: None,
            born: used,
            kept: None,
        });
        if let Some(fresh) = self.fresh.as_mut().filter(|fresh| !fresh.snapshots) {
            fresh.nodes.push_back((node, used));
        }
        self.unpinned += 1;
        self.leaves.insert((used, node));
        node
    }

    /// Pins a node and all its ancestors once more; they count as used now.
    pub fn pin(&mut self, node: Node) {
        let now = self.tick();
        let mut next = Some(node);
        while let Some(node) = next {
            next = self.entry(node).parent;
            self.pin_one(node);
            self.entry_mut(node).used = now;
        }
    }

    /// Makes a pin of a node's parent one of the node; of a node without parent it makes a new one.
    pub fn pin_one(&mut self, node: Node) {
        let entry = self.entry_mut(node);
        entry.pins += 1;
        if entry.pins == 1 {
            let place = (entry.used, node);
            self.leaves.remove(&place);
            self.unpinned -= 1;
        }
    }

    /// Ends one pin of a node and of all its ancestors; they count as used now.
    pub fn unpin(&mut self, node: Node) {
        let now = self.tick();
        let mut next = Some(node);
        while let Some(node) = next {
            let entry = self.entry_mut(node);
            next = entry.parent;
            entry.pins -= 1;
            entry.used = now;
            if entry.pins == 0 {
                let is_leaf = entry.is_free_leaf();
                self.unpinned += 1;
                if is_leaf {
                    self.leaves.insert((now, node));
                }
            }
        }
    }

    /// Removes the least recently used node of those without children and pins.
    pub fn evict(&mut self) -> Option<(Removed, Option<Node>)> {
        let &(_, node) = self.leaves.first()?;
        self.remove(node)
    }

    /// Removes a node that has neither pins nor children; what it held, and its parent.
    pub fn remove(&mut self, node: Node) -> Option<(Removed, Option<Node>)> {
        if !self.entry(node).is_free_leaf() {
            return None;
        }
        let entry = self.entries[node.0 as usize].take()?;
        let Entry { key, block, parent, depth, used, snapshot, window, .. } = entry;
        self.leaves.remove(&(used, node));
        if let Some((_, used)) = snapshot {
            self.snapshots.remove(&(used, node));
        }
        if let Some((window, used)) = window {
            self.idle_windows.remove(&(used, node));
            self.windows.remove(&window);
        }
        self.unpinned -= 1;
        self.vacant.push(node);
        self.children_mut(parent).remove(&key);
        if let Some(parent) = parent {
            let entry = self.entry(parent);
            if entry.is_free_leaf() {
                let place = (entry.used, parent);
                self.leaves.insert(place);
            }
        }
        let (snapshot, window) = (snapshot.map(|(snapshot, _)| snapshot), window.map(|(window, _)| window));
        Some((Removed { block, depth, snapshot, window }, parent))
    }

    /// Gives a node that has none a snapshot, used now.
    pub fn attach(&mut self, node: Node, snapshot: Snapshot) {
        let now = self.tick();
        let entry = self.entry_mut(node);
        entry.snapshot = Some((snapshot, now));
        let born = entry.born;
        self.snapshots.insert((now, node));
        if let Some(fresh) = self.fresh.as_mut().filter(|fresh| fresh.snapshots) {
            fresh.nodes.push_back((node, born));
        }
    }

    /// Counts a node's snapshot as used now.
    pub fn touch_snapshot(&mut self, node: Node) {
        let now = self.tick();
        if let Some((_, used)) = &mut self.entry_mut(node).snapshot {
            let before = std::mem::replace(used, now);
            self.snapshots.remove(&(before, node));
            self.snapshots.insert((now, node));
        }
    }

    /// Removes the least recently used snapshot from its node.
    pub fn evict_snapshot(&mut self) -> Option<(Snapshot, Node)> {
        let (_, node) = self.snapshots.pop_first()?;
        let (snapshot, _) = self.entry_mut(node).snapshot.take()?;
        Some((snapshot, node))
    }

    /// The window kept with a node.
    pub fn window(&self, node: Node) -> Option<SlidingBlock> {
        self.entry(node).window.map(|(window, _)| window)
    }

    /// Windows that no sequence holds.
    pub fn idle_windows(&self) -> usize {
        self.idle_windows.len()
    }

    /// Gives a node that has none a window, which a sequence holds.
    pub fn keep_window(&mut self, node: Node, window: SlidingBlock) {
        let now = self.tick();
        self.entry_mut(node).window = Some((window, now));
        self.windows.insert(window, node);
    }

    /// A sequence takes the window of a node, now.
    pub fn use_window(&mut self, node: Node) {
        let now = self.tick();
        if let Some((_, used)) = &mut self.entry_mut(node).window {
            let before = std::mem::replace(used, now);
            self.idle_windows.remove(&(before, node));
        }
    }

    /// No sequence holds this window any more.
    pub fn leave_window(&mut self, window: SlidingBlock) {
        if let Some(node) = self.windows.get(&window)
            && let Some((_, used)) = self.entry(*node).window
        {
            self.idle_windows.insert((used, *node));
        }
    }

    /// Removes the least recently used window that no sequence holds from its node.
    pub fn evict_window(&mut self) -> Option<SlidingBlock> {
        let (_, node) = self.idle_windows.pop_first()?;
        let (window, _) = self.entry_mut(node).window.take()?;
        self.windows.remove(&window);
        Some(window)
    }

    /// From now on remembers which nodes are made, or, where only `snapshots` can be gone on from, are given
    /// one: for [`Self::unkept`].
    pub fn remember_fresh(&mut self, snapshots: bool) {
        self.fresh = Some(Fresh { nodes: VecDeque::new(), snapshots });
    }

    /// Nodes that are remembered and not yet looked at, those that are gone included.
    pub fn fresh(&self) -> usize {
        self.fresh.as_ref().map_or(0, |fresh| fresh.nodes.len())
    }

    /// Passes over the node that [`Self::unkept`] looks at.
    pub fn skip_fresh(&mut self) {
        if let Some(fresh) = &mut self.fresh {
            fresh.nodes.pop_front();
        }
    }

    /// The first block on the path of the oldest fresh node that a file does not have, or the node's
    /// snapshot; passes over nodes that are gone, and those of which it has all.
    pub fn unkept(&mut self, file: &KeptIndex) -> Option<Unkept> {
        while let Some((node, born)) = self.fresh.as_ref()?.nodes.front().copied() {
            let there = self.entries[node.0 as usize].as_ref().is_some_and(|entry| entry.born == born);
            if there && let Some(unkept) = self.unkept_until(node, file) {
                return Some(unkept);
            }
            self.skip_fresh();
        }
        None
    }

    /// The first block on the path to a node that a file does not have, or the snapshot behind it.
    fn unkept_until(&mut self, end: Node, file: &KeptIndex) -> Option<Unkept> {
        let depth = self.depth(end);
        let (mut path, mut next, mut parent) = (Vec::new(), Some(end), None);
        while let Some(node) = next {
            let entry = self.entry(node);
            parent = entry.kept.filter(|id| file.holds(*id));
            if parent.is_some() {
                break;
            }
            path.push(node);
            next = entry.parent;
        }
        while let Some(node) = path.pop() {
            let entry = self.entry_mut(node);
            match file.child(parent, &entry.key) {
                None => {
                    let (block, key) = (entry.block, Arc::clone(&entry.key));
                    return Some(Unkept::Block { block, parent, key, depth });
                }
                kept => {
                    entry.kept = kept;
                    parent = kept;
                }
            }
        }
        let (snapshot, block) = (self.snapshot(end)?, parent?);
        (!file.has_state(block)).then_some(Unkept::State { snapshot, block })
    }

    fn tick(&mut self) -> u64 {
        self.clock += 1;
        self.clock
    }

    fn children(&self, parent: Option<Node>) -> &Children {
        parent.map_or(&self.roots, |parent| &self.entry(parent).children)
    }

    fn children_mut(&mut self, parent: Option<Node>) -> &mut Children {
        match parent {
            None => &mut self.roots,
            Some(parent) => &mut self.entry_mut(parent).children,
        }
    }

    fn entry(&self, node: Node) -> &Entry {
        self.entries[node.0 as usize].as_ref().expect("nodes are used while they are in the index")
    }

    fn entry_mut(&mut self, node: Node) -> &mut Entry {
        self.entries[node.0 as usize].as_mut().expect("nodes are used while they are in the index")
    }
}
