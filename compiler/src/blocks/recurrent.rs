//! What the recurrent blocks share on a CUDA device: the layout of their state, their kernels' operands, the
//! chunks of a prefill (`templates/cuda/core/recurrent*.cuh`).

use crate::graph::BodyId;
use crate::kernels::{Declared, Operand, constants, operands};
use crate::passes::launch::{Launcher, Member, Site, integer};
use crate::plan::State;
use crate::plan::cuda::{Argument, Constant, Regime};
use crate::spec::types::Target;
use monomorph_abi::state::Recurrence;

/// Tokens of a chunk.
pub(super) const CHUNK: usize = 64;
/// Bytes of a pair of tokens' f32 factors in a chunk: growth, and what is left at its end.
pub(super) const FACTORS: usize = 2 * CHUNK * 4;
/// Raw inputs the convolution still needs: f32 `[slots][window][channels]`, position `p` in row `p % window`.
const WINDOWS: &str = "windows";
/// State matrices: f32 `[slots][heads][rows][columns]`.
const MATRICES: &str = "matrices";
/// Updates that may be rolled back, in a target that drafts: f32 `[slots][rows][width]`.
const JOURNALS: &str = "journals";

/// Rows of a sequence in a step, and whether they are listed one by one.
pub(super) const VERIFIED: &[Declared] = constants![TOKENS: int, APART: bool];
/// Whether sums are in f64.
pub(super) const EXACT: &[Declared] = constants![EXACT: bool];

operands! {
    /// Matrices of recurrent state.
    States: "float";
    /// Sliding windows of a convolution's raw inputs.
    Windows: "float";
    /// Updates to a state that may be rolled back.
    Journals: "float";
    /// Factors of a prompt's chunks.
    Chunks: "unsigned char";
}

/// The state of a recurrent layer on a CUDA device, whose parts are separate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CudaState {
    /// Rows of the window: `WINDOW` of the kernels' configurations.
    pub window: usize,
    /// Tokens of a step that may be rolled back: `DRAFTS` of the kernels' configurations; 0 if none ever are.
    pub drafts: usize,
    /// Floats of the window, `[window][channels]`: the raw input of position `p` in row `p % window`.
    pub window_floats: usize,
    /// Floats of the matrices, `[heads][rows][columns]`.
    pub matrix_floats: usize,
    /// Floats of the journals, which record tokens that may be rolled back; 0 if none ever are.
    pub journal_floats: usize,
}

impl CudaState {
    /// The layout for steps that verify up to `drafts` drafts, where a token has `keys` floats that its
    /// updates multiply. The window is a ring by position that also holds the step's inputs, so a token never
    /// overwrites a row that a block of the same launch still reads. A step reads up to as many rows of the
    /// journals as it writes others.
    pub const fn new(kept: &Recurrence, keys: usize, drafts: usize) -> CudaState {
        let window = kept.taps + drafts;
        let width = (keys + kept.heads * kept.columns + 2 * kept.heads).next_multiple_of(4);
        let drafts = if drafts == 0 { 0 } else { 1 + drafts };
        CudaState {
            window,
            drafts,
            window_floats: window * kept.channels,
            matrix_floats: kept.heads * kept.rows * kept.columns,
            journal_floats: 2 * drafts * width,
        }
    }

    /// Bytes of all parts.
    pub const fn bytes(&self) -> u64 {
        (4 * (self.window_floats + self.matrix_floats + self.journal_floats)) as u64
    }

    /// The state that a plan keeps of a sequence in a layer.
    pub(super) fn kept(kept: &Recurrence, keys: usize, target: &Target) -> State {
        let of = CudaState::new(kept, keys, target.drafts());
        State::new(kept, target, &[of.windows(), of.matrices(), of.journals()])
    }

    /// A part's name and bytes, as kernels' declarations have them.
    pub(super) fn windows(&self) -> (&'static str, usize) {
        (WINDOWS, 4 * self.window_floats)
    }

    /// See [`CudaState::windows`].
    pub(super) fn matrices(&self) -> (&'static str, usize) {
        (MATRICES, 4 * self.matrix_floats)
    }

    /// See [`CudaState::windows`].
    pub(super) fn journals(&self) -> (&'static str, usize) {
        (JOURNALS, 4 * self.journal_floats)
    }

    /// Where the parts of a body's layers stand.
    pub(super) fn places(&self, body: BodyId) -> (States, Windows, Journals) {
        let journals = match self.drafts {
            0 => Journals::NULL,
            _ => Journals::new(Argument::State(body, JOURNALS)),
        };
        (States::new(Argument::State(body, MATRICES)), Windows::new(Argument::State(body, WINDOWS)), journals)
    }
}

impl Launcher<'_> {
    /// Rows of a sequence, and whether they are listed one by one: those of steps that verify drafts are.
    pub(super) fn verified(&self, site: Site) -> [Member; 2] {
        let verifies = site.program.regime == Regime::Decode && site.program.tokens > 1;
        let tokens = if verifies { site.program.tokens } else { 1 };
        [("TOKENS", integer(tokens)), ("APART", Constant::Flag(verifies))]
    }
}

/// `sizeof(RecurrentChunksShared<S>)`: pieces, and two barriers each. A piece holds a matrix of a chunk's
/// keys in halves, or its P, factors and, of `brought` columns, U.
pub(super) fn chunks_shared(slots: usize, key_dim: usize, brought: usize) -> usize {
    let with_p = CHUNK * CHUNK * 2 + FACTORS + CHUNK * brought * 2;
    (slots * ((CHUNK * key_dim * 2).max(with_p) + 16)).next_multiple_of(128)
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEPT: Recurrence = Recurrence { heads: 4, rows: 8, columns: 12, channels: 80, taps: 4 };

    #[test]
    fn a_device_keeps_journals_where_something_may_be_taken_back() {
        let plain = CudaState::new(&KEPT, 16, 0);
        assert_eq!(plain.bytes(), 4 * (4 * 80 + 4 * 8 * 12));
        let drafting = CudaState::new(&KEPT, 16, 3);
        assert_eq!((drafting.window, drafting.drafts, drafting.journal_floats), (7, 4, 2 * 4 * 72));
        assert_eq!(drafting.bytes(), 4 * (7 * 80 + 4 * 8 * 12 + 2 * 4 * 72));
    }
}
