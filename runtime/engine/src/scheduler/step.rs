//! One step: which sequences keep their blocks, which are admitted, and how much each is fed.

use super::{Policy, Row, Running, SchedulerLimits, StepPlan, View, WholeSpan, WholeSpans};
use monomorph_cache::admission::{admission_need, blocks_for};
use monomorph_model::chunk;

/// The fraction of a step's prefill that no deadline cuts and that the first prefilling sequence always gets:
/// one in so many.
pub const LEAST_PART: usize = 8;

/// Decides the next step.
pub fn schedule(view: &View<'_>, limits: &SchedulerLimits) -> StepPlan {
    let SchedulerLimits { block_tokens, reach, .. } = *limits;
    let (kept, mut free) = grow(view, limits);
    let preempt = view.running.len() - kept;
    if preempt > 0 && view.in_flight {
        return StepPlan::default();
    }
    let running = &view.running[..kept];

    // The sequences pre-empted now precede all waiting ones, and do not fit.
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
            true => Due::of(one.tokens, one.cached, one.prefill, one.drafts, one.scored, one.whole),
            false => Due::Nothing,
        })
        .chain(view.waiting[..admit].iter().map(|one| match one.ready {
            true => Due::of(one.tokens, one.cached, one.prefill, one.drafts, one.scored, one.whole),
            false => Due::Nothing,
        }));
    let decodes: usize = due.clone().map(Due::decodes).sum();
    let all = limits.step_tokens.saturating_sub(decodes).min(limits.prefill_tokens);
    let mut rows: Vec<Row> =
        due.clone().enumerate().map(|(sequence, due)| Row { sequence, tokens: due.decodes() }).collect();
    let ranks = running.iter().map(|one| (one.priority, one.tokens - one.cached));
    let ranks = ranks.chain(view.waiting.iter().map(|one| (one.priority, one.tokens - one.cached)));
    let mut prompts: Vec<Prompt> = due
        .zip(ranks)
        .enumerate()
        .filter_map(|(sequence, (due, rank))| match due {
            Due::Prompt { cached, left, scored, whole } => {
                Some(Prompt { sequence, rank, cached, left, scored, whole: whole.of(view.whole) })
            }
            Due::Nothing | Due::Decode { .. } => None,
        })
        .collect();
    let least = prompts.first().map_or(0, Prompt::least);
    let budget = match view.policy {
        Policy::Fifo => all,
        Policy::Slai => in_time(view, running, limits, all, least),
    };
    let mut room = PrefillBudget { tokens: budget, scored: limits.scored_tokens };
    if let (Policy::Slai, Some(first)) = (view.policy, prompts.first_mut()) {
        let part = budget.div_ceil(LEAST_PART).max(limits.chunk_tokens).max(least).min(budget);
        first.feed(part, &mut room, limits, &mut rows);
        prompts.sort_by_key(|one| (one.rank, one.sequence));
    }
    for one in &mut prompts {
        one.feed(room.tokens, &mut room, limits, &mut rows);
    }
    rows.retain(|row| row.tokens > 0);
    let cut = budget < all && prompts.iter().any(|one| one.left > 0);
    StepPlan { preempt, admit, rows, cut }
}

/// A prompt to be fed.
struct Prompt<'a> {
    sequence: usize,
    /// Its priority, and how many of its tokens are not in the cache.
    rank: (i64, usize),
    cached: usize,
    left: usize,
    scored: bool,
    /// Its images that no chunk ends within.
    whole: &'a [WholeSpan],
}

/// What is left of a step for prompts.
struct PrefillBudget {
    tokens: usize,
    /// Of these, tokens whose logits are all returned.
    scored: usize,
}

impl Prompt<'_> {
    /// Fewest tokens that it can be fed: all that are left of an image that is to be fed whole, if one comes
    /// next.
    fn least(&self) -> usize {
        let next = self.whole.iter().find(|span| span.start <= self.cached && self.cached < span.end);
        next.map_or(1, |span| span.end - self.cached)
    }

    /// A chunk of so many tokens, shortened to end before an image that it would end within.
    fn apart(&self, chunk: usize) -> usize {
        let end = self.cached + chunk;
        let within = self.whole.iter().find(|span| span.start < end && end < span.end);
        within.map_or(chunk, |span| span.start.saturating_sub(self.cached))
    }

    /// Feeds it a chunk of at most so many tokens, as the room allows.
    fn feed(&mut self, most: usize, room: &mut PrefillBudget, limits: &SchedulerLimits, rows: &mut [Row]) {
        let most = if self.scored { most.min(room.scored) } else { most };
        let chunk = self.apart(chunk(self.cached, self.left, most, limits.chunk_tokens));
        self.cached += chunk;
        self.left -= chunk;
        rows[self.sequence].tokens += chunk;
        room.tokens -= chunk;
        if self.scored {
            room.scored -= chunk;
        }
    }
}

/// The part of the prefill `room` that leaves every decoding sequence its token in time, but not less than
/// can be fed, which is `least`.
fn in_time(
    view: &View<'_>,
    running: &[Running],
    limits: &SchedulerLimits,
    room: usize,
    least: usize,
) -> usize {
    let decodes = |one: &&Running| one.ready && one.tokens == one.cached + 1;
    let Some(slack) = running.iter().filter(decodes).filter_map(|one| one.slack).min() else { return room };
    let least = room.div_ceil(LEAST_PART).max(limits.chunk_tokens).max(least);
    // An eighth of the time is for what no estimate knows.
    view.pace.fits(slack - slack / 8).max(least).min(room)
}

/// What a sequence is fed next.
#[derive(Clone, Copy)]
enum Due {
    Nothing,
    /// One token, and drafts behind it.
    Decode {
        drafts: usize,
    },
    /// A chunk of the `left` tokens behind the `cached` ones.
    Prompt {
        cached: usize,
        left: usize,
        scored: bool,
        whole: WholeSpans,
    },
}

impl Due {
    fn of(
        tokens: usize,
        cached: usize,
        prefill: usize,
        drafts: usize,
        scored: bool,
        whole: WholeSpans,
    ) -> Due {
        match (tokens.saturating_sub(cached), prefill.saturating_sub(cached)) {
            (0, _) => Due::Nothing,
            // A row of logits takes of the room for these.
            (1, _) | (_, 0) if !scored => Due::Decode { drafts },
            (_, left) => Due::Prompt { cached, left, scored, whole },
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

/// How many running sequences keep running when each ready one gets the blocks for its tokens and its reach,
/// and how many blocks are free afterwards.
fn grow(view: &View<'_>, limits: &SchedulerLimits) -> (usize, usize) {
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
