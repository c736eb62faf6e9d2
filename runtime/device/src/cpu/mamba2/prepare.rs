//! The part before the recurrence: convolution, decay and step.

use super::super::memory::Memory;
use super::super::recurrent::tile::COLUMNS;
use super::super::recurrent::{inputs, load};
use super::super::simd::{F32s, LANES, TILE, at, exp, softplus};
use super::super::team::Lane;
use super::Work;

/// Scratch memory of [`mamba2`](super::mamba2()); layers may share one.
#[derive(Debug)]
pub struct Mamba2Scratch<const HEADS: usize, const HEAD_DIM: usize, const GROUPS: usize, const STATE: usize> {
    /// `[HEADS][capacity]` of x, zero-padded to a multiple of 32, and decay and step.
    heads: Memory<f32>,
    /// `[GROUPS][capacity]` of B and C, each zero-padded to a multiple of 16.
    groups: Memory<f32>,
    /// The inputs before the first token: a zero for each channel.
    zeros: Memory<f32>,
    capacity: usize,
}

impl<const HEADS: usize, const HEAD_DIM: usize, const GROUPS: usize, const STATE: usize>
    Mamba2Scratch<HEADS, HEAD_DIM, GROUPS, STATE>
{
    /// Number of heads that share a group.
    pub(super) const SHARED: usize = HEADS / GROUPS;
    /// Offset from x to its decay, which the step follows.
    const RATES: usize = HEAD_DIM.next_multiple_of(COLUMNS);
    /// Elements between the x of consecutive tokens.
    const HEAD: usize = Self::RATES + TILE;
    /// Offset from B to C.
    const C: usize = STATE.next_multiple_of(TILE);
    /// Elements between the B of consecutive tokens.
    const GROUP: usize = 2 * Self::C;

    /// Scratch for steps of up to `capacity` tokens.
    pub fn new(capacity: usize) -> Self {
        Mamba2Scratch {
            heads: Memory::zeroed(HEADS * capacity * Self::HEAD),
            groups: Memory::zeroed(GROUPS * capacity * Self::GROUP),
            zeros: Memory::zeroed(HEADS * HEAD_DIM + 2 * GROUPS * STATE),
            capacity,
        }
    }

    /// Most tokens of a step.
    pub(super) fn capacity(&self) -> usize {
        self.capacity
    }

    /// A token's inputs to the recurrence of head `head`.
    ///
    /// # Safety
    /// No lane writes them while the result lives.
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

/// A token's inputs to the recurrence.
#[derive(Clone, Copy)]
pub(super) struct Token<'a, const STATE: usize> {
    pub(super) b: &'a [f32; STATE],
    pub(super) c: &'a [f32; STATE],
    /// Zero-padded to a multiple of 32.
    pub(super) x: &'a [f32],
    /// The factor of the previous state.
    pub(super) decay: f32,
    /// The factor of x.
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
        // Group by group, so that the weights of its channels stay in cache for all tokens.
        for unit in lane.share(tokens * GROUPS) {
            let (group, row) = (unit / tokens, unit % tokens);
            let state = (self.state, self.layer);
            // SAFETY: no lane writes the projections in this phase, and inputs are kept only after its
            // barrier.
            let inputs =
                unsafe { inputs(self.batch, row, self.projected, INNER, state, &self.scratch.zeros) };
            let start = (group * self.scratch.capacity + row) * Self::GROUP;
            // SAFETY: each group of a token belongs to one lane, with its heads.
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

    /// Computes the decays and steps of a group's heads.
    #[inline(always)]
    fn prepare_rates(&self, group: usize, row: usize) {
        // SAFETY: no lane writes them in this phase.
        let dt = unsafe { self.projected.part(row, INNER + CHANNELS, HEADS) };
        let heads = group * Self::SHARED..(group + 1) * Self::SHARED;
        for first in heads.clone().step_by(LANES) {
            let step = softplus(load(dt, first) + load(self.dt_bias.padded(), first));
            let decay = exp(F32s::zero() - exp(load(self.a_log.padded(), first)) * step).to_array();
            for (head, (decay, step)) in (first..heads.end).zip(decay.into_iter().zip(step.to_array())) {
                let start = (head * self.scratch.capacity + row) * Self::HEAD + Self::RATES;
                // SAFETY: each head of a token belongs to one lane.
                unsafe { self.scratch.heads.slice_mut(start, 2) }.copy_from_slice(&[decay, step]);
            }
        }
    }
}
