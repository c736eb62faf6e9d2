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

#[cfg(test)]
mod tests {
    use super::*;

    /// Four matrices of 8 by 12, and 80 channels.
    const SHAPE: Recurrence = Recurrence { heads: 4, rows: 8, columns: 12, channels: 80, taps: 4 };

    #[test]
    fn a_cpu_pads_columns_and_channels_and_keeps_a_version_a_draft() {
        let plain = CpuState::new(&SHAPE, 0);
        assert_eq!((plain.matrix, plain.input_stride), (8 * 32, 80));
        assert_eq!(plain.bytes(), 4 * (4 * 256 + 3 * 80));
        let drafting = CpuState::new(&SHAPE, 2);
        assert_eq!((drafting.versions, drafting.kept, drafting.inputs()), (3, 5, 3 * 1024));
        assert_eq!(drafting.bytes(), 4 * (3 * 4 * 256 + 5 * 80));
    }
}
