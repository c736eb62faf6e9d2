//! What does not depend on the recurrence: convolution, decay and step.

use super::super::memory::Memory;
use super::super::recurrent::tile::COLUMNS;
use super::super::recurrent::{inputs, load};
use super::super::simd::{F32s, LANES, TILE, at, exp, softplus};
use super::super::team::Lane;
use super::Work;

/// Room that [`mamba2`](super::mamba2()) works in; layers may share one.
#[derive(Debug)]
pub struct Mamba2Scratch<const HEADS: usize, const HEAD_DIM: usize, const GROUPS: usize, const STATE: usize> {
    /// `[HEADS][capacity]` of: x, rounded up to 32 with zeros; decay and step.
    heads: Memory<f32>,
    /// `[GROUPS][capacity]` of B and of C, each rounded up to 16 with zeros.
    groups: Memory<f32>,
    /// What stands before the first token: a zero for each channel.
    zeros: Memory<f32>,
    capacity: usize,
}

impl<const HEADS: usize, const HEAD_DIM: usize, const GROUPS: usize, const STATE: usize>
    Mamba2Scratch<HEADS, HEAD_DIM, GROUPS, STATE>
{
    /// Heads that share a group.
    pub(super) const SHARED: usize = HEADS / GROUPS;
    /// From x to its decay, behind which the step stands.
    const RATES: usize = HEAD_DIM.next_multiple_of(COLUMNS);
    /// From one token's x to the next.
    const HEAD: usize = Self::RATES + TILE;
    /// From B to C.
    const C: usize = STATE.next_multiple_of(TILE);
    /// From one token's B to the next.
    const GROUP: usize = 2 * Self::C;

    /// Room for steps of up to `capacity` tokens.
    pub fn new(capacity: usize) -> Self {
        Mamba2Scratch {
            heads: Memory::zeroed(HEADS * capacity * Self::HEAD),
            groups: Memory::zeroed(GROUPS * capacity * Self::GROUP),
            zeros: Memory::zeroed(HEADS * HEAD_DIM + 2 * GROUPS * STATE),
            capacity,
        }
    }

    /// Tokens there is room for.
    pub(super) fn capacity(&self) -> usize {
        self.capacity
    }

    /// A token as head `head` sees it.
    ///
    /// # Safety
    /// No lane writes it while the result lives.
    #[inline(always)]
    pub(super) unsafe fn token(&self, head: usize, row: usize) -> Token<'_, STATE> {
        let at_group = (head / Self::SHARED * self.capacity + row) * Self::GROUP;
        // SAFETY: the caller's promise.
        let group = unsafe { self.groups.slice(at_group, Self::GROUP) };
        // SAFETY: as above.
        let head = unsafe { self.heads.slice((head * self.capacity + row) * Self::HEAD, Self::HEAD) };
        Token {
            b: at(group, 0),
            c: at(group, Self::C),
            x: &head[..Self::RATES],
            decay: head[Self::RATES],
            step: head[Self::RATES + 1],
        }
    }
}

/// What the recurrence takes of a token.
#[derive(Clone, Copy)]
pub(super) struct Token<'a, const STATE: usize> {
    pub(super) b: &'a [f32; STATE],
    pub(super) c: &'a [f32; STATE],
    /// Rounded up to 32.
    pub(super) x: &'a [f32],
    /// What is left of the past.
    pub(super) decay: f32,
    /// What x is multiplied by.
    pub(super) step: f32,
}

impl<
    const HEADS: usize,
    const HEAD_DIM: usize,
    const GROUPS: usize,
    const STATE: usize,
    const TAPS: usize,
    const CHANNELS: usize,
    const PROJECTED: usize,
    const INNER: usize,
    const DRAFTS: usize,
> Work<'_, HEADS, HEAD_DIM, GROUPS, STATE, TAPS, CHANNELS, PROJECTED, INNER, DRAFTS>
{
    pub(super) const SHARED: usize = Mamba2Scratch::<HEADS, HEAD_DIM, GROUPS, STATE>::SHARED;
    const RATES: usize = Mamba2Scratch::<HEADS, HEAD_DIM, GROUPS, STATE>::RATES;
    const HEAD: usize = Mamba2Scratch::<HEADS, HEAD_DIM, GROUPS, STATE>::HEAD;
    const C: usize = Mamba2Scratch::<HEADS, HEAD_DIM, GROUPS, STATE>::C;
    const GROUP: usize = Mamba2Scratch::<HEADS, HEAD_DIM, GROUPS, STATE>::GROUP;

    /// Fills the scratch; ends with a barrier.
    pub(super) fn prepare(&self, lane: &Lane) {
        let tokens = self.batch.tokens();
        // Group by group, so that the weights of its channels stay near while the tokens pass.
        for unit in lane.share(tokens * GROUPS) {
            let (group, row) = (unit / tokens, unit % tokens);
            let state = (self.state, self.layer);
            // SAFETY: nobody writes the projections in this phase, and inputs are kept only behind its
            // barrier.
            let inputs =
                unsafe { inputs(self.batch, row, self.projected, INNER, state, &self.scratch.zeros) };
            let start = (group * self.scratch.capacity + row) * Self::GROUP;
            // SAFETY: each group of a token is one lane's, with its heads.
            let group_of = unsafe { self.scratch.groups.slice_mut(start, Self::GROUP) };
            let bias = Some(self.bias.padded());
            for (part, out) in group_of.chunks_exact_mut(Self::C).enumerate() {
                let channel = INNER + (part * GROUPS + group) * STATE;
                self.convolution.apply(&inputs, bias, channel, &mut out[..STATE]);
            }
            for head in group * Self::SHARED..(group + 1) * Self::SHARED {
                let start = (head * self.scratch.capacity + row) * Self::HEAD;
                // SAFETY: as above.
                let x = unsafe { self.scratch.heads.slice_mut(start, HEAD_DIM) };
                self.convolution.apply(&inputs, bias, head * HEAD_DIM, x);
            }
            self.prepare_rates(group, row);
        }
        lane.barrier();
    }

    /// Decays and steps of the heads of a group.
    #[inline(always)]
    fn prepare_rates(&self, group: usize, row: usize) {
        // SAFETY: nobody writes them in this phase.
        let dt = unsafe { self.projected.part(row, INNER + CHANNELS, HEADS) };
        let heads = group * Self::SHARED..(group + 1) * Self::SHARED;
        for first in heads.clone().step_by(LANES) {
            let step = softplus(load(dt, first) + load(self.dt_bias.padded(), first));
            let decay = exp(F32s::zero() - exp(load(self.a_log.padded(), first)) * step).to_array();
            for (head, (decay, step)) in (first..heads.end).zip(decay.into_iter().zip(step.to_array())) {
                let start = (head * self.scratch.capacity + row) * Self::HEAD + Self::RATES;
                // SAFETY: each head of a token is one lane's.
                unsafe { self.scratch.heads.slice_mut(start, 2) }.copy_from_slice(&[decay, step]);
            }
        }
    }
}
