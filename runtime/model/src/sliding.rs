//! Layers with a sliding window, which keep only the blocks of a sequence that they still read.

use crate::spec::ModelSpec;
use monomorph_abi::sliding::Sliding;

/// The layers of a model that attend to the last positions of a sequence only. Their keys and values are in
/// blocks of their own; [`ModelSpec::block_bytes`] counts those of the other layers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlidingSpec {
    /// Positions that a token attends to at most, its own among them; the most of all layers.
    pub window: usize,
    /// Bytes of one block of [`ModelSpec::block_tokens`] tokens over all these layers.
    pub block_bytes: usize,
}

impl SlidingSpec {
    /// Which blocks of a sequence are read.
    pub const fn of(&self, spec: &ModelSpec) -> Sliding {
        Sliding { window: self.window, block_tokens: spec.block_tokens }
    }

    /// How many of their blocks there are beside `blocks` of the other layers, for so many `sequences` at a
    /// time of up to `context` tokens: so many that sequences never want for any, however few of the others
    /// they have.
    ///
    /// None of them is on disk. So where sequences may have more blocks than the device, because it
    /// `offloads` those of the other layers, these are not bounded by them.
    pub fn blocks(
        &self,
        spec: &ModelSpec,
        blocks: usize,
        sequences: usize,
        context: usize,
        offloads: bool,
    ) -> usize {
        let it = self.of(spec);
        let most = it.most(context, spec.reach());
        let all = sequences.saturating_mul(most).saturating_add(it.fed(spec.step_tokens));
        if offloads { all } else { all.min(blocks) }
    }
}
