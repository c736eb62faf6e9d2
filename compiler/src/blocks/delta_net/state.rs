//! Dimensions of a delta-net.

use monomorph_abi::state::Recurrence;

/// Heads and widths of a delta net.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeltaShape {
    /// Number of query and key heads.
    pub key_heads: usize,
    /// Number of value heads, a multiple of `key_heads`.
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

#[cfg(test)]
mod tests {
    use super::*;

    const SHAPE: DeltaShape = DeltaShape { key_heads: 2, value_heads: 4, key_dim: 8, value_dim: 12, taps: 4 };

    #[test]
    fn a_matrix_a_value_head_and_channels_of_queries_keys_and_values() {
        let kept = Recurrence { heads: 4, rows: 8, columns: 12, channels: 80, taps: 4 };
        assert_eq!(SHAPE.recurrence(), kept);
    }
}
