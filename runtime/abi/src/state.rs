//! The memory layout of a layer's recurrent state, for one sequence or snapshot, all f32: a matrix per head,
//! and the last inputs of a short causal convolution.

use crate::VECTOR;

/// Columns of a matrix that a CPU works on at a time; those of one such part are contiguous.
pub const COLUMNS: usize = 32;
/// Bytes of an element.
const F32: usize = 4;

/// The dimensions of a layer's recurrent state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Recurrence {
    /// Number of heads, with one matrix each.
    pub heads: usize,
    /// Rows per matrix.
    pub rows: usize,
    /// Columns per matrix.
    pub columns: usize,
    /// Channels of the convolution.
    pub channels: usize,
    /// Taps of the convolution, including the current token's.
    pub taps: usize,
}

/// Heads and widths of a delta net.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeltaShape {
    /// Number of query and key heads.
    pub key_heads: usize,
    /// Number of value heads, a multiple of `key_heads`; head `j` reads key head
    /// `j * key_heads / value_heads`.
    pub value_heads: usize,
    /// Width of a query or key head.
    pub key_dim: usize,
    /// Width of a value head.
    pub value_dim: usize,
    /// Taps of the convolution, including the current token's.
    pub taps: usize,
}

impl DeltaShape {
    /// Columns of all queries, or of all keys.
    pub const fn key_width(&self) -> usize {
        self.key_heads * self.key_dim
    }

    /// Columns of all values, of the gate, and of the result.
    pub const fn value_width(&self) -> usize {
        self.value_heads * self.value_dim
    }

    /// Channels of the convolution: queries, keys and values.
    pub const fn channels(&self) -> usize {
        2 * self.key_width() + self.value_width()
    }

    /// Its recurrent state: a matrix `[key_dim, value_dim]` per value head.
    pub const fn recurrence(&self) -> Recurrence {
        Recurrence {
            heads: self.value_heads,
            rows: self.key_dim,
            columns: self.value_dim,
            channels: self.channels(),
            taps: self.taps,
        }
    }
}

/// The state on a CPU: matrices, `[versions][heads][parts of 32 columns][rows][32]`, so that the columns
/// worked on at a time are contiguous, followed by the convolution's inputs, `[kept][input_stride]`.
///
/// If steps verify drafts, the matrices have a version after each of the last tokens: position `p` has
/// version `p % versions`. The inputs of position `p` are row `p % kept`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CpuState {
    /// Number of versions of the matrices.
    pub versions: usize,
    /// Floats of one head's matrix.
    pub matrix: usize,
    /// Floats of one version.
    pub version: usize,
    /// Number of tokens whose inputs are kept.
    pub kept: usize,
    /// Floats between the inputs of consecutive tokens: the channels, in whole vectors.
    pub input_stride: usize,
}

impl CpuState {
    /// The layout for steps that verify up to `drafts` drafts.
    pub const fn new(kept: &Recurrence, drafts: usize) -> CpuState {
        let matrix = kept.rows * kept.columns.next_multiple_of(COLUMNS);
        CpuState {
            versions: 1 + drafts,
            matrix,
            version: kept.heads * matrix,
            kept: kept.taps - 1 + drafts,
            input_stride: kept.channels.next_multiple_of(VECTOR),
        }
    }

    /// Floats of all versions; the inputs begin here.
    pub const fn inputs(&self) -> usize {
        self.versions * self.version
    }

    /// Floats of the whole state.
    pub const fn floats(&self) -> usize {
        self.inputs() + self.kept * self.input_stride
    }

    /// Bytes of the whole state.
    pub const fn bytes(&self) -> usize {
        F32 * self.floats()
    }
}

/// The state of a delta net on a CUDA device (templates/cuda/delta_net/delta.cuh), whose parts are separate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CudaState {
    /// Rows of the window: `WINDOW` of the kernels' configurations.
    pub window: usize,
    /// Floats of the window, `[window][channels]`: the raw input of position `p` in row `p % window`.
    pub window_floats: usize,
    /// Floats of the matrices, `[value_heads][key_dim][value_dim]`.
    pub matrix_floats: usize,
    /// Floats of the journals, which record tokens that may be rolled back; 0 if none ever are.
    pub journal_floats: usize,
}

impl CudaState {
    /// The layout for steps that verify up to `drafts` drafts. The window is a ring by position that also
    /// holds the step's inputs, so a token never overwrites a row that a block of the same launch still
    /// reads. A step reads up to as many rows of the journals as it writes others.
    pub const fn new(shape: &DeltaShape, drafts: usize) -> CudaState {
        let window = shape.taps + drafts;
        let width = (shape.key_width() + shape.value_width() + 2 * shape.value_heads).next_multiple_of(4);
        CudaState {
            window,
            window_floats: window * shape.channels(),
            matrix_floats: shape.value_heads * shape.key_dim * shape.value_dim,
            journal_floats: if drafts == 0 { 0 } else { 2 * (1 + drafts) * width },
        }
    }

    /// Bytes of all parts.
    pub const fn bytes(&self) -> u64 {
        (F32 * (self.window_floats + self.matrix_floats + self.journal_floats)) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHAPE: DeltaShape = DeltaShape { key_heads: 2, value_heads: 4, key_dim: 8, value_dim: 12, taps: 4 };

    #[test]
    fn a_cpu_pads_columns_and_channels_and_keeps_a_version_a_draft() {
        let plain = CpuState::new(&SHAPE.recurrence(), 0);
        assert_eq!((SHAPE.channels(), plain.matrix, plain.input_stride), (80, 8 * 32, 80));
        assert_eq!(plain.bytes(), 4 * (4 * 256 + 3 * 80));
        let drafting = CpuState::new(&SHAPE.recurrence(), 2);
        assert_eq!((drafting.versions, drafting.kept, drafting.inputs()), (3, 5, 3 * 1024));
        assert_eq!(drafting.bytes(), 4 * (3 * 4 * 256 + 5 * 80));
    }

    #[test]
    fn a_device_keeps_journals_where_something_may_be_taken_back() {
        let plain = CudaState::new(&SHAPE, 0);
        assert_eq!(plain.bytes(), 4 * (4 * 80 + 4 * 8 * 12));
        let drafting = CudaState::new(&SHAPE, 3);
        assert_eq!((drafting.window, drafting.journal_floats), (7, 2 * 4 * 72));
        assert_eq!(drafting.bytes(), 4 * (7 * 80 + 4 * 8 * 12 + 2 * 4 * 72));
    }
}
