//! Programs before their launches are known, and places in them.

use crate::kernels::Header;
use crate::plan::cuda::Regime;

/// A program before its launches are known.
pub(super) struct Outline {
    pub(super) name: String,
    pub(super) regime: Regime,
    /// Most rows of its activations.
    pub(super) rows: usize,
    /// Most sequences.
    pub(super) sequences: usize,
    /// Rows of each sequence where it decodes: the token sampled last and its drafts.
    pub(super) tokens: usize,
}

impl Outline {
    /// Rows are filled up to a power of two, which kernels for few rows are made for.
    pub(super) fn decode(sequences: usize, tokens: usize) -> Outline {
        let rows = (sequences * tokens).next_power_of_two();
        Outline { name: format!("decode_{sequences}"), regime: Regime::Decode, rows, sequences, tokens }
    }

    /// The same of steps that verify, beside programs that do not.
    pub(super) fn verify(sequences: usize, tokens: usize) -> Outline {
        Outline { name: format!("verify_{sequences}"), ..Outline::decode(sequences, tokens) }
    }

    /// The bucket tuning files know it by.
    pub(super) fn bucket(&self) -> Option<usize> {
        (self.regime == Regime::Decode).then_some(self.rows)
    }

    /// Which count of the step bounds the rows.
    pub(super) fn outputs(&self) -> bool {
        self.regime == Regime::Head
    }
}

/// Where a launch is being made.
#[derive(Clone, Copy)]
pub(super) struct Site<'a> {
    pub(super) program: &'a Outline,
    pub(super) body: usize,
    pub(super) phase: usize,
    /// Of those that draft, from 0.
    pub(super) pass: Option<usize>,
    /// Of the step, or of the pass whose rows are one a sequence.
    pub(super) header: Header,
}
