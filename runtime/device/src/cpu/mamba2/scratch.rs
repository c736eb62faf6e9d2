//! What is computed of the tokens before the recurrence.

use super::super::memory::Memory;
use super::super::recurrent::tile::COLUMNS;
use super::super::simd::{TILE, at};

/// Scratch memory of [`mamba2`](super::mamba2()); layers may share one.
#[derive(Debug)]
pub struct Mamba2Scratch<const HEADS: usize, const HEAD_DIM: usize, const GROUPS: usize, const STATE: usize> {
    /// `[HEADS][capacity]` of x, zero-padded to a multiple of 32, and decay and step.
    pub(super) heads: Memory<f32>,
    /// `[GROUPS][capacity]` of B and C, each zero-padded to a multiple of 16.
    pub(super) groups: Memory<f32>,
    /// The inputs before the first token: a zero for each channel.
    pub(super) zeros: Memory<f32>,
    pub(super) capacity: usize,
}

impl<const HEADS: usize, const HEAD_DIM: usize, const GROUPS: usize, const STATE: usize>
    Mamba2Scratch<HEADS, HEAD_DIM, GROUPS, STATE>
{
    /// Number of heads that share a group.
    pub(super) const SHARED: usize = HEADS / GROUPS;
    /// Offset from x to its decay, which the step follows.
    pub(super) const RATES: usize = HEAD_DIM.next_multiple_of(COLUMNS);
    /// Elements between the x of consecutive tokens.
    pub(super) const HEAD: usize = Self::RATES + TILE;
    /// Offset from B to C.
    pub(super) const C: usize = STATE.next_multiple_of(TILE);
    /// Elements between the B of consecutive tokens.
    pub(super) const GROUP: usize = 2 * Self::C;

    /// Scratch for steps of up to `capacity` tokens.
    pub fn new(capacity: usize) -> Self {
        Mamba2Scratch {
            heads: Memory::zeroed(HEADS * capacity * Self::HEAD),
            groups: Memory::zeroed(GROUPS * capacity * Self::GROUP),
            zeros: Memory::zeroed(HEADS * HEAD_DIM + 2 * GROUPS * STATE),
            capacity,
        }
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
