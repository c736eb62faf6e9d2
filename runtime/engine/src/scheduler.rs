//! What the next step runs: a pure decision on plain values.
//!
//! Policy: first in, first out. Sequences that run are older than all that wait, because requests are admitted
//! in order and the youngest is pre-empted first. Hence nobody overtakes the head of the queue for blocks,
//! and the oldest sequence advances by at least a token a step whatever the others do: a request is
//! answered after at most as many steps as it and the requests before it have tokens.
//!
//! * **Growth.** Every running sequence gets the blocks its known tokens need, oldest first. When blocks run
//!   out, the youngest is pre-empted: its blocks go back, and it is prefilled again later.
//! * **Admission.** The head of the queue is admitted when the blocks of all its tokens are free with one more
//!   for every sequence that can still grow. Its blocks are taken at once, so prefill never runs out.
//! * **Budget.** Sequences that need one token only (decode) come first, one token each and its drafts; what the budget
//!   leaves goes to the others (chunked prefill), oldest first.
//! * **Pieces.** Of a batch-invariant model a prompt's pieces end where its kernels sum alike on both sides, and what a
//!   sequence that was pre-empted had generated is fed again as it was at first: one token a step.
//! * **Drafts.** A step may write behind a sequence's tokens: drafts that it verifies, and some that it makes. Every
//!   sequence holds the blocks of as many positions more, from its admission on.
//! * **Ahead.** While a step is in flight, the next is decided as if each of its rows yielded a token and none
//!   ended its sequence. One whose next token must wait for the host is left out for a turn. Blocks that a step in
//!   flight may write cannot change hands, so nobody is pre-empted then: the plan is empty, which says to
//!   collect first. What was decided for a sequence that turns out to have ended is surplus.

use monomorph_cache::admission::{admission_need, blocks_for};
use monomorph_model::piece;

/// What a step may carry, and what a block holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Tokens of a block; at least 1.
    pub block_tokens: usize,
    /// Tokens of a step over all its sequences; at least 1.
    pub step_tokens: usize,
    /// Sequences of a step; at least 1.
    pub step_sequences: usize,
    /// Most drafts of a sequence; 0 where nothing is drafted.
    pub drafts: usize,
    /// Positions behind a sequence's tokens that a step may write; at least `drafts`.
    pub reach: usize,
    /// Positions whose multiples pieces of a prompt end at, unless with the prompt; from 1 to `step_tokens`.
    pub piece_tokens: usize,
}

impl Limits {
    /// Most sequences that run at once: each must get a token and its drafts in every step, and one that is prefilled beside
    /// the others a piece.
    pub fn running(&self) -> usize {
        let tokens = self.step_tokens.saturating_sub(self.piece_tokens - 1);
        self.step_sequences.min(tokens / (1 + self.drafts))
    }
}

/// A sequence that holds blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Running {
    /// Prompt, and what was generated when the steps in flight are done.
    pub tokens: usize,
    /// How many of them are in the cache by then; below `tokens`.
    pub cached: usize,
    /// How many of them, from the first, may have gone through prefill when this step is done, any number at a time: those behind are
    /// decoded, one at a time, or wait for the state at that point to be saved.
    pub prefill: usize,
    /// Drafts to be fed behind the last of them: above 0 only where that is the one token not in the cache.
    pub drafts: usize,
    /// Whether it may be fed in this step. It need not be when a step in flight samples a token that the host must
    /// see first, or its last.
    pub ready: bool,
    /// Most tokens it can come to have.
    pub limit: usize,
    /// Blocks it holds.
    pub blocks: usize,
    /// How many come back when it is pre-empted, if all younger ones are: those that nobody older shares.
    pub returns: usize,
}

impl Running {
    /// Blocks that it needs besides those it holds, to be fed.
    pub fn missing(&self, limits: &Limits) -> usize {
        let tokens = if self.ready { self.tokens + limits.reach } else { 0 };
        blocks_for(tokens, limits.block_tokens).saturating_sub(self.blocks)
    }
}

/// A sequence that holds no blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Waiting {
    /// Tokens it has.
    pub tokens: usize,
    /// How many of them need not be fed, because their blocks are in the cache; below `tokens`.
    pub cached: usize,
    /// How many of these blocks running sequences hold. The others count among the free ones until it is admitted.
    pub shared: usize,
    /// As [`Running::prefill`].
    pub prefill: usize,
    /// Most tokens it can come to have.
    pub limit: usize,
}

/// All that a decision depends on.
#[derive(Clone, Copy, Debug)]
pub struct View<'a> {
    /// Blocks no sequence uses.
    pub free_blocks: usize,
    /// How many sequences may run besides.
    pub free_slots: usize,
    /// Whether a step is in flight.
    pub in_flight: bool,
    /// Oldest first.
    pub running: &'a [Running],
    /// Next first; those that cannot be admitted in one step may be left out.
    pub waiting: &'a [Waiting],
}

/// One sequence's part of the step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Row {
    /// Index among the sequences that run after pre-emption and admission.
    pub sequence: usize,
    /// Tokens to feed; at least 1. Beyond those not in the cache they are drafts: all that the sequence has.
    pub tokens: usize,
}

/// What to do, in this order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Plan {
    /// How many of the running to pre-empt, from the end: they become the first of the waiting.
    pub preempt: usize,
    /// How many of the waiting to admit, from the front: they become the last of the running.
    pub admit: usize,
    /// What to feed, in the order of the running, each of which holds the blocks of all its tokens by then. Empty
    /// when a step in flight has to be collected first.
    pub rows: Vec<Row>,
}

/// Decides the next step.
pub fn schedule(view: &View<'_>, limits: &Limits) -> Plan {
    let Limits { block_tokens, reach, .. } = *limits;
    let (kept, mut free) = grow(view, limits);
    let preempt = view.running.len() - kept;
    if preempt > 0 && view.in_flight {
        return Plan::default();
    }
    let running = &view.running[..kept];

    // Those pre-empted now stand before all that wait, and do not fit.
    let mut admit = 0;
    if preempt == 0 {
        let can_grow =
            |held: usize, limit: usize| usize::from(held < blocks_for(limit + reach, block_tokens));
        let held = |one: &Running| one.blocks.max(blocks_for(one.tokens + reach, block_tokens));
        let mut reserved: usize = running.iter().map(|one| can_grow(held(one), one.limit)).sum();
        for next in view.waiting.iter().take(view.free_slots) {
            let need = admission_need(next.tokens + reach, next.limit + reach, block_tokens);
            if need - next.shared + reserved > free {
                break;
            }
            let blocks = blocks_for(next.tokens + reach, block_tokens);
            free -= blocks - next.shared;
            reserved += can_grow(blocks, next.limit);
            admit += 1;
        }
    }

    let due = running
        .iter()
        .map(|one| match one.ready {
            true => Due::of(one.tokens, one.cached, one.prefill, one.drafts),
            false => Due::Nothing,
        })
        .chain(view.waiting[..admit].iter().map(|one| Due::of(one.tokens, one.cached, one.prefill, 0)));
    let mut budget = limits.step_tokens.saturating_sub(due.clone().map(Due::decodes).sum());
    let mut rows = Vec::with_capacity(kept + admit);
    for (sequence, due) in due.enumerate() {
        let tokens = match due {
            Due::Prompt { cached, left } => {
                let piece = piece(cached, left, budget, limits.piece_tokens);
                budget -= piece;
                piece
            }
            Due::Nothing | Due::Decode { .. } => due.decodes(),
        };
        if tokens > 0 {
            rows.push(Row { sequence, tokens });
        }
    }
    Plan { preempt, admit, rows }
}

/// What a sequence is to be fed next.
#[derive(Clone, Copy)]
enum Due {
    Nothing,
    /// One token, and drafts behind it.
    Decode {
        drafts: usize,
    },
    /// A piece of the `left` tokens behind the `cached` ones.
    Prompt {
        cached: usize,
        left: usize,
    },
}

impl Due {
    fn of(tokens: usize, cached: usize, prefill: usize, drafts: usize) -> Due {
        match (tokens.saturating_sub(cached), prefill.saturating_sub(cached)) {
            (0, _) => Due::Nothing,
            (1, _) | (_, 0) => Due::Decode { drafts },
            (_, left) => Due::Prompt { cached, left },
        }
    }

    /// Tokens that it takes of every step's budget.
    fn decodes(self) -> usize {
        match self {
            Due::Decode { drafts } => 1 + drafts,
            Due::Nothing | Due::Prompt { .. } => 0,
        }
    }
}

/// How many of the running keep running when each that is ready is given the blocks its tokens need and those in its reach,
/// and the blocks that are free afterwards.
fn grow(view: &View<'_>, limits: &Limits) -> (usize, usize) {
    let mut kept = view.running.len();
    let mut free = view.free_blocks;
    let mut at = 0;
    while at < kept {
        let missing = view.running[at].missing(limits);
        // The last may be the one that grows: then it is pre-empted itself.
        while missing > free && kept > at {
            kept -= 1;
            free += view.running[kept].returns;
        }
        if at < kept {
            free -= missing;
        }
        at += 1;
    }
    (kept, free)
}
