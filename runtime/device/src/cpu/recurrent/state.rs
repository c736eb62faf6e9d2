//! The recurrent state of sequences.

use super::super::batch::Batch;
use super::super::keeps::Keeps;
use super::super::memory::Memory;
use super::super::rows::Rows;
use super::super::shape::Sequence;
use monomorph_abi::state::{CpuState, Recurrence};
use monomorph_model::{LoadError, Slot, SnapshotId, StateCopy, StatePlace, States};
use std::ops::Range;

/// The recurrent state of every slot and layer, in f32: a matrix `[ROWS, COLUMNS]` per head, and the
/// convolution's inputs of the last `TAPS - 1` tokens. Pages become resident when first used.
///
/// With `DRAFTS` drafts to verify, a sequence can roll back by that many tokens. The matrices have a version
/// after each of its last `DRAFTS + 1` tokens (position `p` has version `p % (DRAFTS + 1)`), and the inputs
/// of `DRAFTS` more tokens are kept. A sequence that continues at a position reads the version of the
/// position before, so a rollback needs no notification.
#[derive(Debug)]
pub struct RecurrentState<
    const HEADS: usize,
    const ROWS: usize,
    const COLUMNS: usize,
    const CHANNELS: usize,
    const TAPS: usize,
    const DRAFTS: usize = 0,
> {
    /// `[slots, then snapshots][layers]` of [`CpuState`].
    data: Memory<f32>,
    layers: usize,
    states: States,
}

impl<
    const HEADS: usize,
    const ROWS: usize,
    const COLUMNS: usize,
    const CHANNELS: usize,
    const TAPS: usize,
    const DRAFTS: usize,
> RecurrentState<HEADS, ROWS, COLUMNS, CHANNELS, TAPS, DRAFTS>
{
    /// The layout of one slot's state in one layer.
    const LAYOUT: CpuState = {
        assert!(TAPS >= 2, "a convolution of one tap keeps nothing");
        let kept = Recurrence { heads: HEADS, rows: ROWS, columns: COLUMNS, channels: CHANNELS, taps: TAPS };
        CpuState::new(&kept, DRAFTS)
    };
    /// Elements of one head's matrix.
    const MATRIX: usize = Self::LAYOUT.matrix;
    /// Number of tokens whose inputs are kept.
    const KEPT: usize = Self::LAYOUT.kept;
    /// Number of versions of each matrix.
    const VERSIONS: usize = Self::LAYOUT.versions;
    /// Elements of one slot's state in one layer.
    const PLACE: usize = Self::LAYOUT.floats();

    /// Bytes of one slot's state in one layer.
    pub const BYTES: usize = Self::LAYOUT.bytes();

    /// Checks that a batch may run on a layer's state and in scratch for `capacity` tokens.
    ///
    /// # Panics
    /// When the batch admits more slots than the state has or more tokens than the scratch holds, two of its
    /// sequences have the same slot, or there is no such layer.
    pub(in super::super) fn check(&self, batch: &Batch, layer: usize, capacity: usize) {
        let limits = batch.limits();
        assert!(
            limits.sequences <= self.states.sequences,
            "the batch admits slots that the state does not have"
        );
        assert!(limits.tokens <= capacity, "the batch admits more tokens than the scratch has room for");
        assert!(layer < self.layers, "the state has no layer {layer}");
        assert!(batch.slots_differ(), "two sequences of the batch have the same slot");
    }

    /// State for `layers` layers, with a slot for each running sequence, and room for snapshots.
    ///
    /// # Errors
    /// When the address space is exhausted.
    pub fn new(layers: usize, states: States) -> Result<Self, LoadError> {
        let States { sequences, snapshots } = states;
        let places = sequences.checked_add(snapshots).and_then(|places| places.checked_mul(layers));
        let data = places
            .and_then(|places| places.checked_mul(Self::PLACE))
            .and_then(Memory::try_zeroed)
            .ok_or_else(|| LoadError::Memory {
                what: format!("recurrent state of {sequences} sequences and {snapshots} snapshots"),
                needed: (places.unwrap_or(usize::MAX) as u64).saturating_mul(Self::BYTES as u64),
                available: 0,
                fits: None,
            })?;
        // Each step streams through the whole state of its sequences.
        data.advise_large_pages();
        Ok(RecurrentState { data, layers, states })
    }

    /// Number of layers.
    pub fn layers(&self) -> usize {
        self.layers
    }

    /// Number of sequences and snapshots.
    pub fn states(&self) -> States {
        self.states
    }

    /// The index of a slot or snapshot.
    fn place(&self, place: StatePlace) -> usize {
        match place {
            StatePlace::Slot(Slot(at)) => {
                assert!((at as usize) < self.states.sequences, "there is no slot {at}");
                at as usize
            }
            StatePlace::Snapshot(SnapshotId(at)) => {
                assert!((at as usize) < self.states.snapshots, "there is no snapshot {at}");
                self.states.sequences + at as usize
            }
        }
    }

    #[inline(always)]
    fn start(&self, layer: usize, slot: usize) -> usize {
        (slot * self.layers + layer) * Self::PLACE
    }

    #[inline(always)]
    fn inputs_start(&self, layer: usize, slot: usize, position: usize) -> usize {
        let row = position % Self::KEPT;
        self.start(layer, slot) + Self::LAYOUT.inputs() + row * Self::LAYOUT.input_stride
    }

    /// A head's matrix after `position`, mutably.
    ///
    /// # Safety
    /// No other lane reads or writes it, and this lane has no other reference to that version of it, while
    /// the result lives.
    #[inline(always)]
    #[expect(clippy::mut_from_ref, reason = "disjointness is the caller's promise")]
    pub(in super::super) unsafe fn matrix_mut(
        &self,
        layer: usize,
        slot: usize,
        head: usize,
        position: usize,
    ) -> &mut [f32] {
        let version = position % Self::VERSIONS;
        let start = self.start(layer, slot) + (version * HEADS + head) * Self::MATRIX;
        // SAFETY: the caller's promise.
        unsafe { self.data.slice_mut(start, Self::MATRIX) }
    }

    /// Calls `each` with rows of a sequence and the position whose version of the matrix they end in.
    /// Accepted tokens all go through the version after the last of them, each draft through its own. A
    /// version is overwritten only when the sequence can no longer return to its position.
    ///
    /// # Safety
    /// No other lane reads or writes this head's matrices of the sequence meanwhile.
    #[inline(always)]
    pub(in super::super) unsafe fn through_versions(
        &self,
        layer: usize,
        sequence: &Sequence,
        head: usize,
        mut each: impl FnMut(Range<usize>, usize),
    ) {
        let (slot, rows) = (sequence.slot, &sequence.rows);
        let held = rows.len() - sequence.drafts;
        let last = sequence.position + held - 1;
        if sequence.position > 0 {
            // SAFETY: the caller's promise.
            unsafe { self.copy_matrix(layer, slot, head, sequence.position - 1, last) };
        }
        each(rows.start..rows.start + held, last);
        for draft in 0..sequence.drafts {
            let (row, position) = (rows.start + held + draft, last + 1 + draft);
            // SAFETY: as above.
            unsafe { self.copy_matrix(layer, slot, head, position - 1, position) };
            each(row..row + 1, position);
        }
    }

    /// Copies a head's matrix after position `from` to its version after `to`.
    ///
    /// # Safety
    /// No lane reads or writes either meanwhile, and no reference to them exists.
    unsafe fn copy_matrix(&self, layer: usize, slot: usize, head: usize, from: usize, to: usize) {
        if from % Self::VERSIONS == to % Self::VERSIONS {
            return;
        }
        // SAFETY: the caller's promise; the two versions differ.
        let [from, to] = [from, to].map(|it| unsafe { self.matrix_mut(layer, slot, head, it) });
        to.copy_from_slice(from);
    }

    /// The inputs under the convolution's taps for row `row`: those of the step from column `from` of
    /// `projected` on, those before it from the state, and `zeros` before the first token.
    ///
    /// # Safety
    /// No lane writes any of them while the results live.
    #[inline(always)]
    pub(in super::super) unsafe fn inputs<'a, const PROJECTED: usize>(
        &'a self,
        layer: usize,
        batch: &Batch,
        row: usize,
        (projected, from): (&'a Rows<PROJECTED>, usize),
        zeros: &'a Memory<f32>,
    ) -> [&'a [f32]; TAPS] {
        let sequence = batch.sequence_of(row);
        let position = batch.positions()[row] as usize;
        std::array::from_fn(|tap| {
            let back = TAPS - 1 - tap;
            // SAFETY: the caller's promise, three times.
            unsafe {
                if back > position {
                    zeros.slice(0, CHANNELS)
                } else if position - back >= sequence.position {
                    projected.part(row - back, from, CHANNELS)
                } else {
                    self.data.slice(self.inputs_start(layer, sequence.slot, position - back), CHANNELS)
                }
            }
        })
    }

    /// Keeps some channels of the convolution's last inputs, which begin at column `from` of `projected`, for
    /// the sequence's next step.
    ///
    /// # Safety
    /// No lane writes `projected`, and none accesses these channels of the kept inputs, meanwhile.
    pub(in super::super) unsafe fn keep<const PROJECTED: usize>(
        &self,
        layer: usize,
        sequence: &Sequence,
        (projected, from): (&Rows<PROJECTED>, usize),
        channels: Range<usize>,
    ) {
        let count = sequence.rows.len();
        for i in count.saturating_sub(Self::KEPT)..count {
            let kept = self.inputs_start(layer, sequence.slot, sequence.position + i) + channels.start;
            // SAFETY: the caller's promise, twice.
            unsafe {
                let x = projected.part(sequence.rows.start + i, from + channels.start, channels.len());
                self.data.slice_mut(kept, channels.len()).copy_from_slice(x);
            }
        }
    }
}

impl<
    const HEADS: usize,
    const ROWS: usize,
    const COLUMNS: usize,
    const CHANNELS: usize,
    const TAPS: usize,
    const DRAFTS: usize,
> Keeps for RecurrentState<HEADS, ROWS, COLUMNS, CHANNELS, TAPS, DRAFTS>
{
    fn copy(&mut self, copy: &StateCopy) {
        let [from, to] = [copy.from, copy.to].map(|place| self.place(place));
        let from = self.start(0, from)..self.start(0, from + 1);
        let to = self.start(0, to);
        self.data.all_mut().copy_within(from, to);
    }

    fn read_state<'a>(&mut self, place: StatePlace, into: &'a mut [u8]) -> &'a mut [u8] {
        let start = self.start(0, self.place(place));
        self.data.read(start, self.layers * Self::PLACE, into)
    }

    fn write_state<'a>(&mut self, place: StatePlace, from: &'a [u8]) -> &'a [u8] {
        let start = self.start(0, self.place(place));
        self.data.write(start, self.layers * Self::PLACE, from)
    }
}
