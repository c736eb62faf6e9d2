//! The block memory of a scripted model, and the checks of the step contract.

use super::Script;
use super::cells;
use super::images::{self, Images, id_of};
use super::rows::uses;
use super::windows::Windows;
use monomorph_model::{
    BlockId, ModelSpec, OffloadRoom, OffloadSlot, Output, SequenceImages, SequenceStep, Shown, SlidingId,
    SlidingSpec, SlidingTable, Slot, SnapshotId, StateCopy, StatePlace, Step, Tokens, VisionSpec,
};
use monomorph_sampling::{MAX_BIASES, Sampling, TokenBias, TokenMask, TokenUse};
use std::borrow::Cow;
use std::collections::{HashMap, HashSet, VecDeque};
use std::ops::Range;
use std::sync::Arc;

/// Token ids in place of keys and values, what each slot was fed, and what the steps in flight hold.
#[derive(Debug)]
pub(super) struct Memory {
    block_tokens: usize,
    blocks: usize,
    /// Grown as blocks are first used; `None` where nothing was written.
    cells: Vec<Option<u32>>,
    /// Offloaded blocks: the cells of each place.
    offloaded: HashMap<OffloadSlot, Vec<Option<u32>>>,
    room: Option<OffloadRoom>,
    /// The places that the current step names.
    offloaded_of_step: Vec<OffloadSlot>,
    fed: HashMap<Slot, Vec<u32>>,
    /// Whether what a slot was fed stands for a recurrent state, which a sequence can go on from only where
    /// it was copied to.
    recurrent: bool,
    /// Saved states; `None` where nothing was saved.
    snapshots: Vec<Option<Vec<u32>>>,
    /// Slots that a state was copied to and that no sequence began in since.
    restored: HashSet<Slot>,
    /// The token sampled last for a slot, behind the number of tokens it follows.
    sampled: HashMap<Slot, (usize, u32)>,
    spec: &'static ModelSpec,
    /// What was drafted last for a slot, where the model drafts itself.
    drafted: HashMap<Slot, Vec<u32>>,
    /// The announced next token of a slot.
    following: HashMap<Slot, u32>,
    /// Steps submitted and not collected, oldest first: the last is the current one.
    steps: VecDeque<StepMemory>,
    /// Blocks of layers with a sliding window, if it has such layers.
    windows: Option<Windows>,
    /// Images, if it takes some. Then what is kept of a token is a cell, with its id in it.
    images: Option<Images>,
}

/// What a step holds while it is in flight.
#[derive(Debug, Default)]
struct StepMemory {
    slots: HashSet<Slot>,
    /// Whose rows read each block, and whether they write it too.
    blocks: HashMap<BlockId, Vec<(Slot, bool)>>,
}

impl Memory {
    pub fn new(
        spec: &'static ModelSpec,
        sliding: Option<(SlidingSpec, usize)>,
        vision: Option<VisionSpec>,
        &Script { blocks, snapshots, offload: room, .. }: &Script,
    ) -> Memory {
        Memory {
            block_tokens: spec.block_tokens,
            blocks,
            cells: Vec::new(),
            offloaded: HashMap::new(),
            room,
            offloaded_of_step: Vec::new(),
            fed: HashMap::new(),
            recurrent: spec.state_bytes > 0,
            snapshots: vec![None; if spec.state_bytes > 0 { snapshots } else { 0 }],
            restored: HashSet::new(),
            sampled: HashMap::new(),
            spec,
            drafted: HashMap::new(),
            following: HashMap::new(),
            steps: VecDeque::new(),
            windows: sliding.map(|(sliding, blocks)| Windows::new(spec, sliding, blocks)),
            images: vision.map(|vision| Images::new(spec, vision)),
        }
    }

    /// Sees layers of images.
    pub fn see(&mut self, images: &[Shown], layers: Range<usize>) {
        self.images.as_mut().expect("a model without a vision tower").see(images, layers);
    }

    /// The ids of what is kept of tokens.
    pub fn ids<'a>(&self, context: &'a [u32]) -> Cow<'a, [u32]> {
        match self.images {
            None => Cow::Borrowed(context),
            Some(_) => context.iter().map(|cell| id_of(*cell)).collect(),
        }
    }

    /// What is kept of a token of text behind `context`.
    pub fn behind(&self, context: &[u32], id: u32) -> u32 {
        match (&self.images, context.last()) {
            (Some(_), Some(before)) => images::behind(*before, id),
            _ => id,
        }
    }

    /// What is kept of the tokens that a row is fed.
    fn kept(&self, row: &SequenceStep, ids: &[u32], images: Option<&SequenceImages>) -> Vec<u32> {
        self.images.as_ref().map_or_else(|| ids.to_vec(), |all| all.cells(row, ids, images))
    }

    /// Begins a step that has these groups on disk.
    pub fn begin(&mut self, offloaded: &[OffloadSlot]) {
        let distinct: HashSet<&OffloadSlot> = offloaded.iter().collect();
        assert_eq!(distinct.len(), offloaded.len(), "a step has a place on disk twice: {offloaded:?}");
        self.offloaded_of_step = offloaded.to_vec();
        self.steps.push_back(StepMemory::default());
        if let Some(windows) = &mut self.windows {
            windows.begin();
        }
    }

    /// Writes a group of blocks to disk.
    pub fn offload_blocks(&mut self, blocks: &[BlockId], to: OffloadSlot) {
        let Some(room) = self.room else { panic!("{blocks:?} are sent to {to:?}, and there is no disk") };
        assert!(self.steps.is_empty(), "{blocks:?} are sent to disk with steps in flight");
        assert!(blocks.len() == room.group && (to.0 as usize) < room.places, "{blocks:?} are sent to {to:?}");
        let cells = blocks.iter().flat_map(|block| {
            let start = block.0 as usize * self.block_tokens;
            self.cells[start..start + self.block_tokens].to_vec()
        });
        let cells: Vec<Option<u32>> = cells.collect();
        assert!(cells.iter().all(Option::is_some), "{blocks:?} are sent to disk, and are not full");
        self.offloaded.insert(to, cells);
    }

    /// The place on disk and the first of its cells that a block of the step stands for, if it is one of
    /// those.
    fn on_disk(&self, block: BlockId) -> Option<(OffloadSlot, usize)> {
        let (at, group) = ((block.0 as usize).checked_sub(self.blocks)?, self.room?.group);
        let place = self.offloaded_of_step.get(at / group);
        let place =
            place.unwrap_or_else(|| panic!("{block:?} of {} groups on disk", self.offloaded_of_step.len()));
        Some((*place, at % group * self.block_tokens))
    }

    /// Copies a state, all of which is the tokens that made it.
    pub fn copy(&mut self, copy: StateCopy) {
        assert!(self.recurrent, "{copy:?} of a model without state");
        let state = match copy.from {
            StatePlace::Slot(slot) => self.fed.get(&slot).cloned(),
            StatePlace::Snapshot(SnapshotId(at)) => self.snapshots.get(at as usize).cloned().flatten(),
        };
        let Some(state) = state else { panic!("{copy:?} of a state that is not there") };
        match copy.to {
            StatePlace::Slot(slot) => {
                self.fed.insert(slot, state);
                self.restored.insert(slot);
            }
            StatePlace::Snapshot(SnapshotId(at)) => {
                let snapshots = self.snapshots.len();
                assert!((at as usize) < snapshots, "{copy:?} among {snapshots} snapshots");
                self.snapshots[at as usize] = Some(state);
            }
        }
    }

    /// Ends the oldest step in flight.
    pub fn collect(&mut self) {
        self.steps.pop_front();
        if let Some(windows) = &mut self.windows {
            windows.collect();
        }
    }

    /// Notes the token sampled for a row last, after the first `context` tokens of its sequence, and what was
    /// drafted to come after that. Whatever a step may write behind the context is spoilt: the rest of what
    /// was fed, and what drafting takes.
    pub fn sample(&mut self, row: &SequenceStep, context: usize, id: u32, drafts: &[u32]) {
        self.sampled.insert(row.slot, (context, id));
        self.drafted.insert(row.slot, drafts.to_vec());
        self.fed.entry(row.slot).or_default().truncate(context);
        for position in context..self.reach(row) {
            let cell = self.cell(row.blocks[position / self.block_tokens], position);
            self.cells[cell] = None;
        }
        let reach = self.reach(row);
        if let Some(windows) = &mut self.windows {
            windows.spoil(row.slot, context..reach);
        }
    }

    /// The end of the positions that a row's step may write.
    fn reach(&self, row: &SequenceStep) -> usize {
        reach(row, self.spec)
    }

    /// Writes a row's tokens into its blocks and returns the sequence as read back from them.
    pub fn feed(&mut self, row: &SequenceStep, images: Option<&SequenceImages>) -> Vec<u32> {
        let slot = row.slot;
        let end = row.position + row.tokens.len();
        let needed = self.reach(row).div_ceil(self.block_tokens);
        assert_eq!(row.blocks.len(), needed, "{slot:?} needs {needed} blocks for {end} tokens");
        let distinct: HashSet<BlockId> = row.blocks.iter().copied().collect();
        assert_eq!(distinct.len(), needed, "{slot:?} has a block twice: {:?}", row.blocks);
        for block in &row.blocks {
            let (index, blocks) = (block.0 as usize, self.blocks);
            if self.on_disk(*block).is_some() {
                continue;
            }
            assert!(index < blocks, "{slot:?} has {block:?} of a memory of {blocks} blocks");
            let cells = (index + 1) * self.block_tokens;
            if self.cells.len() < cells {
                self.cells.resize(cells, None);
            }
        }
        self.hold(row);

        // What begins finds what was left for it; all else goes on where the slot was left.
        let mut fed = self.fed.remove(&slot).unwrap_or_default();
        let restored = self.restored.remove(&slot);
        if row.begins {
            let (goes_on, position) = (row.position > 0, row.position);
            assert!(
                restored || !(self.recurrent && goes_on),
                "{slot:?} begins at {position} without a state"
            );
            if !(self.recurrent && goes_on) {
                fed = (0..row.position).map(|position| self.read(row, position)).collect();
            }
            self.drafted.remove(&slot);
            self.following.remove(&slot);
            self.take_back_drafts(row);
        } else {
            assert!(!restored && row.position > 0, "{slot:?} goes on, and was given another state");
        }
        self.check_drafts(row);
        assert_eq!(row.position, fed.len(), "{slot:?} goes on at another position than it was left");
        match &row.tokens {
            Tokens::Known(ids) => fed.extend(self.kept(row, ids, images)),
            Tokens::Sampled => match self.sampled.get(&slot) {
                Some(&(context, id)) if context == row.position => fed.extend(self.kept(row, &[id], images)),
                other => panic!("{slot:?} goes on at {} with what was sampled: {other:?}", row.position),
            },
        }

        for (position, &token) in fed.iter().enumerate().skip(row.position) {
            let cell = self.cell(row.blocks[position / self.block_tokens], position);
            self.cells[cell] = Some(token);
        }
        let read = (0..end).map(|position| {
            let (found, expected) = (self.read(row, position), fed[position]);
            assert_eq!(found, expected, "{slot:?} reads position {position} of {:?}", row.blocks);
            expected
        });
        let context = read.collect();
        self.fed.insert(slot, fed);
        context
    }

    /// As [`Self::feed`], of layers with a sliding window, if there are some; after that, which returned
    /// `context`.
    pub fn feed_sliding(&mut self, row: &SequenceStep, table: Option<&SlidingTable>, context: &[u32]) {
        if let (Some(windows), Some(table)) = (&mut self.windows, table) {
            windows.feed(row, table, context);
        }
    }

    /// Takes over the token and drafts that a sequence brings from another slot.
    fn take_back_drafts(&mut self, row: &SequenceStep) {
        if let (1.., Tokens::Known(ids)) = (row.drafts, &row.tokens) {
            assert!(row.generated && row.position > 0, "{:?} begins with drafts", row.slot);
            self.sampled.insert(row.slot, (row.position, ids[0]));
            self.drafted.insert(row.slot, ids[1..].to_vec());
        }
    }

    /// Checks what drafting wants of a row: after a token was sampled the drafts made then, before that what
    /// comes next.
    fn check_drafts(&mut self, row: &SequenceStep) {
        let slot = row.slot;
        if let (Some(next), Tokens::Known(ids)) = (self.following.remove(&slot), &row.tokens) {
            assert_eq!(ids[0], next, "{slot:?} was told of another token to follow");
        }
        match (&row.output, row.following) {
            (Output::None | Output::Logits, Some(next)) => drop(self.following.insert(slot, next)),
            (Output::None, None) => {
                assert_eq!(self.spec.drafted(), 0, "{slot:?} goes on, and is not told with what");
            }
            (Output::Logits, None) => {}
            (Output::Sample { .. }, following) => {
                assert_eq!(following, None, "{slot:?} is told what its last token is followed by");
            }
        }
        let drafted = self.drafted.get(&slot).map_or(&[][..], Vec::as_slice);
        if self.spec.drafted() > 0 {
            assert_eq!(row.drafts, drafted.len(), "{slot:?} is fed other drafts than were made: {drafted:?}");
        } else {
            let (fed, all) = (row.drafts, self.spec.drafts());
            assert!(fed == 0 || fed == all, "{slot:?} is fed {fed} drafts, and {all} are verified at a time");
        }
        if let (1.., Tokens::Known(ids)) = (row.drafts, &row.tokens) {
            assert_eq!(ids.len(), 1 + row.drafts, "{slot:?} is fed more than a token and its drafts");
            let last = self.sampled.get(&slot).map(|&(_, id)| id);
            assert_eq!(
                last,
                Some(ids[0]),
                "{slot:?} goes on with drafts after another token than was sampled"
            );
            let made = self.spec.drafted() == 0 || &ids[1..] == drafted;
            assert!(made, "{slot:?} is fed other drafts than were made");
        }
    }

    /// Holds a row's slot and blocks until its step is collected. What a sequence writes, no other touches
    /// while a step that does so is in flight, and its slot begins no other sequence. What it only reads, a
    /// later step may write.
    fn hold(&mut self, row: &SequenceStep) {
        let slot = row.slot;
        if row.begins {
            let again = self.steps.iter().any(|step| step.slots.contains(&slot));
            assert!(!again, "{slot:?} begins anew while a step in flight holds it");
        }
        for (index, block) in row.blocks.iter().enumerate() {
            let writes = (index + 1) * self.block_tokens > row.position;
            if self.on_disk(*block).is_some() {
                assert!(!writes, "{slot:?} writes {block:?}, which is on disk");
                continue;
            }
            let last = self.steps.len().saturating_sub(1);
            let uses =
                self.steps.iter().enumerate().filter_map(|(at, step)| Some((at, step.blocks.get(block)?)));
            for (at, &(other, wrote)) in uses.flat_map(|(at, uses)| uses.iter().map(move |it| (at, it))) {
                let sound = other == slot || !(wrote || (writes && at == last));
                assert!(sound, "{slot:?} is given {block:?} while a step in flight holds it for {other:?}");
            }
        }
        let Some(step) = self.steps.back_mut() else { panic!("a row outside a step") };
        step.slots.insert(slot);
        for (index, &block) in row.blocks.iter().enumerate() {
            if block.0 as usize >= self.blocks {
                continue;
            }
            let writes = (index + 1) * self.block_tokens > row.position;
            step.blocks.entry(block).or_default().push((slot, writes));
        }
    }

    /// What a row finds at a position.
    fn read(&self, row: &SequenceStep, position: usize) -> u32 {
        let (slot, block) = (row.slot, row.blocks[position / self.block_tokens]);
        let found = match self.on_disk(block) {
            Some((place, first)) => {
                self.offloaded.get(&place).and_then(|cells| cells[first + position % self.block_tokens])
            }
            None => self.cells[self.cell(block, position)],
        };
        found.unwrap_or_else(|| {
            panic!("{slot:?} reads position {position} from {block:?}, which nobody wrote")
        })
    }

    fn cell(&self, block: BlockId, position: usize) -> usize {
        block.0 as usize * self.block_tokens + position % self.block_tokens
    }
}

/// The end of the positions that a row's step may write.
fn reach(row: &SequenceStep, spec: &ModelSpec) -> usize {
    let ahead = if matches!(row.output, Output::Sample { .. }) { spec.ahead(row.drafts) } else { 0 };
    row.position + row.tokens.len() + ahead
}

impl Memory {
    /// The ids that a block holds, as bytes.
    pub fn read_block(&self, block: BlockId, into: &mut [u8]) {
        let (at, bytes) = (self.cells_between_steps(block), 4 * self.block_tokens);
        assert_eq!(into.len(), bytes, "{block:?} is of {bytes} bytes");
        let cells = at.map(|cell| self.cells.get(cell).copied().flatten());
        for (out, cell) in into.as_chunks_mut().0.iter_mut().zip(cells) {
            *out = cells::to_bytes(cell);
        }
    }

    /// Makes a block what was read of one.
    pub fn write_block(&mut self, block: BlockId, from: &[u8]) {
        let (at, bytes) = (self.cells_between_steps(block), 4 * self.block_tokens);
        assert_eq!(from.len(), bytes, "{block:?} is of {bytes} bytes");
        if self.cells.len() < at.end {
            self.cells.resize(at.end, None);
        }
        for (cell, id) in self.cells[at].iter_mut().zip(from.as_chunks().0) {
            *cell = cells::from_bytes(*id);
        }
    }

    /// The ids that a block of layers with a sliding window holds, as bytes.
    pub fn read_sliding(&self, block: SlidingId, into: &mut [u8]) {
        self.windows.as_ref().expect("a model without a sliding window").read(block, into);
    }

    /// Makes such a block what was read of one.
    pub fn write_sliding(&mut self, block: SlidingId, from: &[u8]) {
        self.windows.as_mut().expect("a model without a sliding window").write(block, from);
    }

    fn cells_between_steps(&self, block: BlockId) -> Range<usize> {
        assert!(self.steps.is_empty(), "{block:?} is copied while a step is in flight");
        let (index, blocks) = (block.0 as usize, self.blocks);
        assert!(index < blocks, "{block:?} of a memory of {blocks} blocks");
        index * self.block_tokens..(index + 1) * self.block_tokens
    }

    /// The tokens that made a state: how many, and they. What is left of `into` stays.
    pub fn read_state(&self, place: StatePlace, into: &mut [u8]) {
        assert!(
            self.recurrent && self.steps.is_empty(),
            "{place:?} is read of a model without state or while a step is in flight"
        );
        let state = match place {
            StatePlace::Slot(slot) => self.fed.get(&slot),
            StatePlace::Snapshot(SnapshotId(at)) => self.snapshots[at as usize].as_ref(),
        };
        let Some(state) = state else { panic!("{place:?} holds no state") };
        let words = std::iter::once(state.len() as u32).chain(state.iter().copied());
        for (out, word) in into.as_chunks_mut().0.iter_mut().zip(words) {
            *out = word.to_le_bytes();
        }
    }

    /// Makes a state what was read of one.
    pub fn write_state(&mut self, place: StatePlace, from: &[u8]) {
        assert!(
            self.recurrent && self.steps.is_empty(),
            "{place:?} is written of a model without state or while a step is in flight"
        );
        let mut words = from.as_chunks().0.iter().map(|word| u32::from_le_bytes(*word));
        let count = words.next().unwrap_or_default() as usize;
        let state: Vec<u32> = words.take(count).collect();
        assert_eq!(state.len(), count, "{place:?} is given a state that is cut off");
        match place {
            StatePlace::Slot(slot) => {
                self.fed.insert(slot, state);
                self.restored.insert(slot);
            }
            StatePlace::Snapshot(SnapshotId(at)) => self.snapshots[at as usize] = Some(state),
        }
    }
}

/// Checks what a step promises about itself to a model with room for so many sequences.
pub(super) fn check_step(step: &Step, spec: &ModelSpec, sequences: usize) {
    let rows = &step.sequences;
    assert!(!rows.is_empty(), "a step without sequences");
    assert!(rows.len() <= sequences, "{} sequences in a step", rows.len());
    let tokens: usize = rows.iter().map(|row| row.tokens.len()).sum();
    assert!(tokens <= spec.step_tokens, "{tokens} tokens in a step of at most {}", spec.step_tokens);
    let slots: HashSet<Slot> = rows.iter().map(|row| row.slot).collect();
    assert_eq!(slots.len(), rows.len(), "a slot stands in a step twice");
    for row in rows {
        let slot = row.slot;
        assert!((slot.0 as usize) < sequences, "{slot:?} of {sequences}");
        assert!(row.tokens.len() > 0, "{slot:?} is fed nothing");
        let end = reach(row, spec);
        assert!(end <= spec.context, "{slot:?} is fed and drafts beyond the context");
        if spec.batch_invariant.is_some() {
            let (position, chunk_alignment) = (row.position, spec.chunk_alignment());
            let sound = if row.generated { row.tokens.len() == 1 } else { position % chunk_alignment == 0 };
            assert!(
                sound,
                "{slot:?} is fed {} tokens at {position}: generated {}",
                row.tokens.len(),
                row.generated
            );
        }
        if let Tokens::Known(ids) = &row.tokens {
            let stranger = ids.iter().find(|&&id| id as usize >= spec.vocabulary);
            assert_eq!(stranger, None, "{slot:?} is fed a token outside the vocabulary");
        }
    }
}

/// There are biases for the first token and behind every draft, or none at all; each list has tokens of the
/// vocabulary once.
pub(super) fn check_biases(biases: &[Arc<[TokenBias]>], drafts: usize, spec: &ModelSpec) {
    assert!([0, 1 + drafts].contains(&biases.len()), "{} lists of biases for {drafts} drafts", biases.len());
    for list in biases {
        let ids: HashSet<u32> = list.iter().map(|one| one.id).collect();
        assert!(
            ids.len() == list.len() && list.len() <= MAX_BIASES,
            "a token is biased twice, or too many are"
        );
        assert!(ids.iter().all(|id| (*id as usize) < spec.vocabulary), "a bias of no token");
    }
}

/// The masks are for the first token and behind the drafts that they allow, or there are none; and each
/// allows something.
pub(super) fn check_masks(masks: &[TokenMask], drafts: &[u32], spec: &ModelSpec) {
    let words = TokenMask::words_for(spec.vocabulary);
    for mask in masks {
        assert_eq!(mask.words().len(), words, "a mask of another vocabulary");
        assert!(mask.count() > 0, "a mask that allows nothing");
    }
    assert!(masks.len() <= 1 + drafts.len(), "{} masks for {} drafts", masks.len(), drafts.len());
    for (at, (mask, draft)) in masks.iter().zip(drafts).enumerate() {
        // One that ends an answer has none behind it.
        assert!(at + 1 >= masks.len() || mask.allows(*draft), "a mask behind draft {at}, which cannot come");
    }
}

/// Checks the history handed to the sampler against the context, of which `draw` tokens were generated.
pub(super) fn check_history(context: &[u32], draw: u64, sampling: &Sampling, history: &[TokenUse]) {
    if !sampling.needs_history() {
        assert!(history.is_empty(), "a history that the sampler did not ask for");
        return;
    }
    let found: HashMap<u32, u32> = history.iter().map(|seen| (seen.id, seen.generated)).collect();
    assert_eq!(found.len(), history.len(), "a token stands in the history twice");
    assert_eq!(found, uses(context, draw), "the history is not that of the context");
}
