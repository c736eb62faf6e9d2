//! What one step may carry.

/// Limits of one step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Buckets {
    /// Most tokens over all sequences.
    pub tokens: usize,
    /// Most sequences; also the most rows whose logits are computed at once.
    pub sequences: usize,
    /// Sequences of the decode programs, ascending; empty if one program takes any number.
    pub decode: &'static [usize],
    /// Tokens of the prefill programs below `tokens`, ascending.
    pub prefill: &'static [usize],
}
