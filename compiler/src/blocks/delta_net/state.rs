//! Dimensions of a delta-net, and the layout of its state on a CUDA device.

use monomorph_abi::state::Recurrence;

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
        (4 * (self.window_floats + self.matrix_floats + self.journal_floats)) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHAPE: DeltaShape = DeltaShape { key_heads: 2, value_heads: 4, key_dim: 8, value_dim: 12, taps: 4 };

    #[test]
    fn a_matrix_a_value_head_and_channels_of_queries_keys_and_values() {
        let kept = Recurrence { heads: 4, rows: 8, columns: 12, channels: 80, taps: 4 };
        assert_eq!(SHAPE.recurrence(), kept);
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
