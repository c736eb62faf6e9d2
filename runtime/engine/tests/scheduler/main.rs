//! The scheduler by simulation: every small world exhaustively, then many larger ones at random, with one
//! step in flight or several, with drafts or without, by both policies; `floods` has adversarial floods, and
//! `decisions` single decisions. The world outside the scheduler is small here, so that it cannot share the
//! scheduler's mistakes, and `truth` restates the guarantees plainly.
//!
//! Planted, one at a time, and seen by worlds here: no turn goes by age; the oldest that runs has no place of
//! its own; by `slai` the first in line gets no part of a step; a deadline cuts prompts to nothing;
//! `prefill_tokens` is ignored; prompts are given the room of decoding sequences; a client that comes back
//! has saved service up; the least served never moves on.

mod decisions;
mod floods;
mod truth;
mod world;

use monomorph_engine::scheduler::{Policy, SchedulerLimits};
use world::{Request, Rules, Seen, simulate};

#[test]
fn every_small_world_ends_well() {
    let mut seen = Seen::default();
    let mut worlds = 0;
    for block_tokens in 1..=2 {
        for total in 2..=6 {
            let room = total * block_tokens;
            for (step_tokens, step_sequences) in [(1, 1), (1, 2), (2, 2), (3, 2), (4, 3)] {
                let limits = limits(block_tokens, step_tokens, step_sequences);
                let kinds: Vec<Request> = (1..=3)
                    .flat_map(|prompt| [1, 2, 4, 5].map(|answer| (prompt, answer)))
                    .flat_map(|(prompt, answer)| {
                        let stops = answer;
                        [0, 2].map(|arrives| Request { arrives, prompt, answer, stops, ..Request::default() })
                    })
                    .filter(|one| one.prompt + one.answer <= room)
                    .collect();
                for &a in &kinds {
                    for &b in kinds.iter().filter(|b| b.arrives >= a.arrives) {
                        for &c in kinds.iter().filter(|c| c.arrives >= b.arrives) {
                            simulate(&[a, b, c], rules(limits, total, 1), &mut seen);
                            // One that ends early, one whose tokens the host must see, one as it is: in turn.
                            let mut manners = [a, b, c];
                            let early = &mut manners[worlds % 3];
                            early.stops = early.answer.div_ceil(2);
                            manners[(worlds + 1) % 3].waits = true;
                            simulate(&manners, rules(limits, total, 2 + worlds % 2), &mut seen);
                            // One is more urgent, one is another's.
                            manners[worlds % 3].priority = -1;
                            manners[(worlds + 1) % 3].client = 1;
                            let policy = if worlds % 2 == 0 { Policy::Fifo } else { Policy::Slai };
                            let rules = Rules { policy, ..rules(limits, total, 1 + worlds / 2 % 2) };
                            simulate(&manners, rules, &mut seen);
                            worlds += 1;
                        }
                    }
                }
            }
        }
    }
    let Seen { steps, preemptions, mixed, discarded, waits, .. } = seen;
    println!(
        "{worlds} worlds, {steps} steps, {preemptions} pre-emptions, {discarded} discarded, {waits} waits"
    );
    assert!(worlds > 10_000 && preemptions > 1_000 && mixed > 1_000 && discarded > 1_000 && waits > 1_000);
}

/// Limits of a model that does not draft.
fn limits(block_tokens: usize, step_tokens: usize, step_sequences: usize) -> SchedulerLimits {
    let prefill_tokens = step_tokens;
    SchedulerLimits {
        block_tokens,
        step_tokens,
        step_sequences,
        drafts: 0,
        reach: 0,
        chunk_tokens: 1,
        prefill_tokens,
        scored_tokens: step_tokens,
    }
}

/// Rules of a world in which nothing takes time, of so many blocks and steps in flight.
fn rules(limits: SchedulerLimits, total: usize, depth: usize) -> Rules {
    let context = (total * limits.block_tokens).saturating_sub(limits.reach);
    let (invariant, policy, time, tbt) = (false, Policy::Fifo, (0, 0), 100_000);
    Rules { limits, invariant, total, depth, policy, alike: false, context, time, tbt }
}

/// Limits with what a step writes behind the tokens when so many drafts are verified and made.
fn drafting(limits: SchedulerLimits, drafts: usize) -> SchedulerLimits {
    SchedulerLimits { drafts, reach: (2 * drafts).saturating_sub(1), ..limits }
}

#[test]
fn every_small_world_with_drafts_ends_well() {
    let mut seen = Seen::default();
    let mut worlds = 0;
    for (drafts, block_tokens) in [(1, 1), (1, 2), (2, 1), (2, 2), (3, 2)] {
        for total in 3..=6 {
            for (step_tokens, step_sequences) in [(4, 1), (4, 2), (6, 2), (9, 3)] {
                let limits = limits(block_tokens, step_tokens, step_sequences);
                let limits = drafting(limits, drafts);
                let room = (total * block_tokens).saturating_sub(limits.reach);
                let kinds: Vec<Request> = (1..=3)
                    .flat_map(|prompt| [1, 2, 4, 5].map(|answer| (prompt, answer)))
                    .flat_map(|(prompt, answer)| {
                        let (stops, waits) = (answer, true);
                        [0, 2].map(|arrives| Request {
                            arrives,
                            prompt,
                            answer,
                            stops,
                            waits,
                            ..Request::default()
                        })
                    })
                    .filter(|one| one.prompt + one.answer <= room)
                    .collect();
                for &a in &kinds {
                    for &b in kinds.iter().filter(|b| b.arrives >= a.arrives) {
                        for &c in kinds.iter().filter(|c| c.arrives >= b.arrives) {
                            let mut manners = [a, b, c];
                            let early = &mut manners[worlds % 3];
                            early.stops = early.answer.div_ceil(2);
                            simulate(&manners, rules(limits, total, 1), &mut seen);
                            worlds += 1;
                        }
                    }
                }
            }
        }
    }
    let Seen { steps, preemptions, mixed, accepted, .. } = seen;
    println!("{worlds} worlds, {steps} steps, {preemptions} pre-emptions, {accepted} accepted");
    assert!(worlds > 10_000 && preemptions > 1_000 && mixed > 1_000 && accepted > 10_000);
}

#[test]
fn random_worlds_end_well() {
    let mut random = 0x2545_F491_4F6C_DD1D_u64;
    let mut below = |bound: usize| {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        (random >> 33) as usize % bound
    };
    let mut seen = Seen::default();
    let mut replays = 0;
    while seen.steps < 1_000_000 {
        let limits = limits(1 + below(16), 1 + below(48), 1 + below(12));
        // A batch-invariant model in one world of four: its prompts are cut where it can take up a sum again.
        let invariant = below(4) == 0;
        let chunk_tokens = if invariant { 1 + below(limits.step_tokens) } else { 1 };
        let prefill_tokens = chunk_tokens + below(limits.step_tokens - chunk_tokens + 1);
        let limits = SchedulerLimits { chunk_tokens, prefill_tokens, ..limits };
        let drafts = if !invariant && below(2) == 0 { below(4) } else { 0 };
        let limits = drafting(SchedulerLimits { step_tokens: limits.step_tokens + drafts, ..limits }, drafts);
        let total = 2 + below(24);
        let room = (total * limits.block_tokens).saturating_sub(limits.reach);
        if room < 2 {
            continue;
        }
        // In half of the worlds all are alike, and a policy has no time to keep.
        let (clients, priorities) = if below(2) == 0 { (1, 1) } else { (1 + below(4), 1 + below(4)) };
        let policy = if below(2) == 0 { Policy::Fifo } else { Policy::Slai };
        let mut arrives = 0;
        let requests: Vec<Request> = (0..1 + below(30))
            .map(|_| {
                arrives += below(6);
                let prompt = 1 + below(room - 1) / (1 + below(8));
                let answer = 1 + below(room - prompt);
                let stops = if below(2) == 0 { answer } else { 1 + below(answer) };
                let (client, priority) = (below(clients) as u64, below(priorities) as i64 - 1);
                Request { arrives, prompt, answer, stops, waits: below(4) == 0, priority, client }
            })
            .collect();
        let depth = if drafts == 0 { 1 + below(3) } else { 1 };
        let before = seen.preemptions;
        let time = (below(4_000) as u64, below(400) as u64);
        let rules = Rules { invariant, policy, time, tbt: 5_000, ..rules(limits, total, depth) };
        simulate(&requests, rules, &mut seen);
        replays += if invariant { seen.preemptions - before } else { 0 };
    }
    let Seen { steps, preemptions, mixed, discarded, accepted, waits, chunks, cuts, overtaken, .. } = seen;
    println!("{cuts} steps cut, {overtaken} overtaken");
    assert!(cuts > 1_000 && overtaken > 10_000);
    println!("batch-invariant: {replays} pre-emptions, {chunks} chunks");
    assert!(replays > 1_000 && chunks > 1_000);
    println!(
        "{steps} steps, {preemptions} pre-emptions, {mixed} mixed, {discarded} discarded, {waits} waits"
    );
    println!("{accepted} drafts accepted");
    assert!(preemptions > 1_000 && mixed > 10_000 && discarded > 1_000 && waits > 1_000 && accepted > 10_000);
}
