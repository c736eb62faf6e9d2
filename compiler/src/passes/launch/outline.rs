//! Programs before their launches are known, and places in them.

use crate::kernels::Header;
use crate::plan::cuda::Regime;

/// A program before its launches are known.
pub(crate) struct Outline {
    pub(crate) name: String,
    pub(crate) regime: Regime,
    /// Most rows of its activations.
    pub(crate) rows: usize,
    /// Most sequences.
    pub(crate) sequences: usize,
    /// Rows of each sequence where it decodes: the token sampled last and its drafts.
    pub(crate) tokens: usize,
}

impl Outline {
    /// Rows are filled up to a power of two, which kernels for few rows are made for.
    pub(crate) fn decode(sequences: usize, tokens: usize) -> Outline {
        let rows = (sequences * tokens).next_power_of_two();
        Outline { name: format!("decode_{sequences}"), regime: Regime::Decode, rows, sequences, tokens }
    }

    /// The same of steps that verify, beside programs that do not.
    pub(crate) fn verify(sequences: usize, tokens: usize) -> Outline {
        Outline { name: format!("verify_{sequences}"), ..Outline::decode(sequences, tokens) }
    }

    /// The bucket tuning files know it by.
    pub(crate) fn bucket(&self) -> Option<usize> {
        (self.regime == Regime::Decode).then_some(self.rows)
    }

    /// Which count of the step bounds the rows.
    pub(crate) fn outputs(&self) -> bool {
        self.regime == Regime::Head
    }
}

/// Where a launch is being made.
#[derive(Clone, Copy)]
pub(crate) struct Site<'a> {
    pub(crate) program: &'a Outline,
    pub(crate) body: usize,
    pub(crate) phase: usize,
    /// Of those that draft, from 0.
    pub(crate) pass: Option<usize>,
    /// Of the step, or of the pass whose rows are one a sequence.
    pub(crate) header: Header,
}
