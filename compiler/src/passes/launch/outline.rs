//! Programs before their launches are known, and sites within them.

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
    /// Rows of each sequence in decode: the token sampled last and its drafts.
    pub(crate) tokens: usize,
}

impl Outline {
    /// Rows are padded to a power of two, for which the kernels of few rows are built.
    pub(crate) fn decode(sequences: usize, tokens: usize) -> Outline {
        let rows = (sequences * tokens).next_power_of_two();
        Outline { name: format!("decode_{sequences}"), regime: Regime::Decode, rows, sequences, tokens }
    }

    /// The same for steps that verify drafts, beside programs that do not.
    pub(crate) fn verify(sequences: usize, tokens: usize) -> Outline {
        Outline { name: format!("verify_{sequences}"), ..Outline::decode(sequences, tokens) }
    }

    /// The bucket that tuning files name it by.
    pub(crate) fn bucket(&self) -> Option<usize> {
        (self.regime == Regime::Decode).then_some(self.rows)
    }

    /// Whether the step's outputs, rather than its tokens, bound the rows.
    pub(crate) fn outputs(&self) -> bool {
        self.regime == Regime::Head
    }
}

/// The program, body and phase that a launch belongs to.
#[derive(Clone, Copy)]
pub(crate) struct Site<'a> {
    pub(crate) program: &'a Outline,
    pub(crate) body: usize,
    pub(crate) phase: usize,
    /// The draft pass, from 0, if it is in one.
    pub(crate) pass: Option<usize>,
    /// Header of the step, or of a pass with one row per sequence.
    pub(crate) header: Header,
}
