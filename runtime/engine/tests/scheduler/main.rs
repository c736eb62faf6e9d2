//! The scheduler by simulation: every small world exhaustively, then many larger ones at random, with one step in
//! flight or several, with drafts or without. The world outside the scheduler is small here, so that it cannot share the scheduler's
//! mistakes.

mod world;

use monomorph_engine::scheduler::{Limits, Plan, Row, Running, View, Waiting, schedule};
use world::{Request, Seen, fresh, simulate};

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
                        [0, 2].map(|arrives| Request { arrives, prompt, answer, stops: answer, waits: false })
                    })
                    .filter(|one| one.prompt + one.answer <= room)
                    .collect();
                for &a in &kinds {
                    for &b in kinds.iter().filter(|b| b.arrives >= a.arrives) {
                        for &c in kinds.iter().filter(|c| c.arrives >= b.arrives) {
                            simulate(&[a, b, c], &limits, false, total, 1, &mut seen);
                            // One that ends early, one whose tokens the host must see, one as it is: in turn.
                            let mut manners = [a, b, c];
                            let early = &mut manners[worlds % 3];
                            early.stops = early.answer.div_ceil(2);
                            manners[(worlds + 1) % 3].waits = true;
                            simulate(&manners, &limits, false, total, 2 + worlds % 2, &mut seen);
                            worlds += 1;
                        }
                    }
                }
            }
        }
    }
    let Seen { steps, preemptions, mixed, surplus, waits, .. } = seen;
    println!("{worlds} worlds, {steps} steps, {preemptions} pre-emptions, {surplus} surplus, {waits} waits");
    assert!(worlds > 10_000 && preemptions > 1_000 && mixed > 1_000 && surplus > 1_000 && waits > 1_000);
}

/// Limits of a model that does not draft.
fn limits(block_tokens: usize, step_tokens: usize, step_sequences: usize) -> Limits {
    Limits { block_tokens, step_tokens, step_sequences, drafts: 0, reach: 0, piece_tokens: 1 }
}

/// Limits with what a step writes behind the tokens when so many drafts are verified and made.
fn drafting(limits: Limits, drafts: usize) -> Limits {
    Limits { drafts, reach: (2 * drafts).saturating_sub(1), ..limits }
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
                        [0, 2].map(|arrives| Request { arrives, prompt, answer, stops: answer, waits: true })
                    })
                    .filter(|one| one.prompt + one.answer <= room)
                    .collect();
                for &a in &kinds {
                    for &b in kinds.iter().filter(|b| b.arrives >= a.arrives) {
                        for &c in kinds.iter().filter(|c| c.arrives >= b.arrives) {
                            let mut manners = [a, b, c];
                            let early = &mut manners[worlds % 3];
                            early.stops = early.answer.div_ceil(2);
                            simulate(&manners, &limits, false, total, 1, &mut seen);
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
    while seen.steps < 400_000 {
        let limits = limits(1 + below(16), 1 + below(48), 1 + below(12));
        // A batch-invariant model in one world of four: its prompts are cut where it can take up a sum again.
        let invariant = below(4) == 0;
        let piece_tokens = if invariant { 1 + below(limits.step_tokens) } else { 1 };
        let limits = Limits { piece_tokens, ..limits };
        let drafts = if !invariant && below(2) == 0 { below(4) } else { 0 };
        let limits = drafting(Limits { step_tokens: limits.step_tokens + drafts, ..limits }, drafts);
        let total = 2 + below(24);
        let room = (total * limits.block_tokens).saturating_sub(limits.reach);
        if room < 2 {
            continue;
        }
        let mut arrives = 0;
        let requests: Vec<Request> = (0..1 + below(30))
            .map(|_| {
                arrives += below(6);
                let prompt = 1 + below(room - 1) / (1 + below(8));
                let answer = 1 + below(room - prompt);
                let stops = if below(2) == 0 { answer } else { 1 + below(answer) };
                Request { arrives, prompt, answer, stops, waits: below(4) == 0 }
            })
            .collect();
        let depth = if drafts == 0 { 1 + below(3) } else { 1 };
        let before = seen.preemptions;
        simulate(&requests, &limits, invariant, total, depth, &mut seen);
        replays += if invariant { seen.preemptions - before } else { 0 };
    }
    let Seen { steps, preemptions, mixed, surplus, accepted, waits, pieces } = seen;
    println!("batch-invariant: {replays} pre-emptions, {pieces} pieces");
    assert!(replays > 1_000 && pieces > 1_000);
    println!("{steps} steps, {preemptions} pre-emptions, {mixed} mixed, {surplus} surplus, {waits} waits");
    println!("{accepted} drafts accepted");
    assert!(preemptions > 1_000 && mixed > 10_000 && surplus > 1_000 && waits > 1_000 && accepted > 10_000);
}

/// A view with places enough and nothing in flight.
fn view<'a>(free_blocks: usize, running: &'a [Running], waiting: &'a [Waiting]) -> View<'a> {
    View { free_blocks, free_slots: 4 - running.len(), in_flight: false, running, waiting }
}

/// One of which so much is in the cache, ready to be fed all its tokens.
fn running(tokens: usize, cached: usize, limit: usize, blocks: usize) -> Running {
    Running { tokens, cached, prefill: tokens, drafts: 0, ready: true, limit, blocks, returns: blocks }
}

#[test]
fn the_youngest_is_preempted_and_the_oldest_goes_on() {
    let limits = limits(2, 8, 4);
    let full = running(5, 4, 9, 2);
    let young = running(2, 1, 9, 1);
    let (running, waiting) = ([full, young], [fresh(1, 2)]);
    let view = view(0, &running, &waiting);
    let plan = schedule(&view, &limits);
    assert_eq!((plan.preempt, plan.admit), (1, 0), "one block came back, and none is left to admit with");
    assert_eq!(plan.rows, [Row { sequence: 0, tokens: 1 }]);
    let plan = schedule(&View { in_flight: true, ..view }, &limits);
    assert_eq!(plan, Plan::default(), "its blocks may still be written: collect first");
}

#[test]
fn one_that_is_not_ready_is_left_out_and_keeps_its_blocks() {
    let limits = limits(2, 8, 4);
    let waits = Running { ready: false, ..running(5, 4, 9, 2) };
    let other = running(3, 2, 9, 1);
    let running = [waits, other];
    let view = View { in_flight: true, ..view(1, &running, &[]) };
    let plan = schedule(&view, &limits);
    assert_eq!(
        (plan.preempt, plan.rows),
        (0, vec![Row { sequence: 1, tokens: 1 }]),
        "the block is the other's"
    );
}

#[test]
fn decode_comes_before_prefill_and_prefill_takes_the_rest() {
    let limits = limits(4, 6, 4);
    let prefill = running(20, 8, 24, 5);
    let decode = running(6, 5, 9, 2);
    let plan = schedule(&view(9, &[prefill, decode], &[fresh(3, 4)]), &limits);
    assert_eq!(plan.admit, 1);
    assert_eq!(plan.rows, [Row { sequence: 0, tokens: 5 }, Row { sequence: 1, tokens: 1 }]);
}

#[test]
fn the_head_of_the_queue_is_not_overtaken() {
    let limits = limits(4, 64, 4);
    let all = [running(5, 4, 40, 2)];
    let waiting = [fresh(12, 40), fresh(1, 2)];
    let plan = schedule(&view(4, &all, &waiting), &limits);
    assert_eq!(plan.admit, 0, "the head needs 3 blocks and one to grow, and the running one may need one");
    let plan = schedule(&view(5, &all, &waiting), &limits);
    assert_eq!(plan.admit, 1);
    let plan = schedule(&View { free_slots: 0, ..view(99, &all, &waiting) }, &limits);
    assert_eq!(plan.admit, 0, "slots of those that are over count until they are back");
}

#[test]
fn drafts_take_budget_and_blocks() {
    let limits = drafting(limits(2, 9, 4), 2);
    assert_eq!((limits.running(), limits.reach), (3, 3), "nine tokens are three for each of three");
    let decode = Running { drafts: 2, ..running(6, 5, 20, 4) };
    let prefill = running(20, 8, 24, 12);
    let plan = schedule(&view(9, &[decode, prefill], &[]), &limits);
    assert_eq!(plan.rows, [Row { sequence: 0, tokens: 3 }, Row { sequence: 1, tokens: 6 }]);
    // Six tokens and three positions behind them are five blocks.
    let plan = schedule(&view(0, &[decode, Running { blocks: 1, returns: 1, ..decode }], &[]), &limits);
    assert_eq!((plan.preempt, plan.rows), (1, vec![Row { sequence: 0, tokens: 3 }]));
    // Three tokens take three blocks at once, and one more to grow into.
    let waiting = [fresh(3, 9)];
    assert_eq!(schedule(&view(3, &[decode], &waiting), &limits).admit, 0);
    let grown = Running { limit: 7, blocks: 5, returns: 5, ..decode };
    assert_eq!(schedule(&view(3, &[grown], &waiting), &limits).admit, 0);
    assert_eq!(schedule(&view(4, &[grown], &waiting), &limits).admit, 1, "the running one grows no more");
}

#[test]
fn pieces_end_where_sums_can_be_taken_up_and_answers_are_decoded_again() {
    let limits = Limits { piece_tokens: 8, ..limits(4, 20, 16) };
    assert_eq!(limits.running(), 13, "behind twelve that decode there is room for a piece");
    let decode = Running { prefill: 5, ..running(6, 5, 9, 2) };
    let prompt = running(30, 8, 40, 8);
    let plan = schedule(&view(99, &[decode, prompt, prompt], &[]), &limits);
    assert_eq!(
        plan.rows,
        [Row { sequence: 0, tokens: 1 }, Row { sequence: 1, tokens: 16 }],
        "three tokens are left, and no piece"
    );
    // Of one that was pre-empted: a piece, the rest of the prompt and no token of the answer, then token by token.
    for (cached, tokens) in [(0, 19), (16, 3), (19, 1), (20, 1)] {
        let again = Running { tokens: 22, cached, prefill: 19, ..prompt };
        let plan = schedule(&view(99, &[again], &[]), &limits);
        assert_eq!(plan.rows, [Row { sequence: 0, tokens }], "after {cached}");
    }
}

#[test]
fn what_is_cached_is_neither_fed_nor_paid_for_twice() {
    let limits = limits(4, 64, 4);
    // Twelve tokens and one block to grow into are four blocks; two of them a running sequence holds.
    let cached = Waiting { cached: 8, shared: 2, ..fresh(12, 40) };
    let plan = schedule(&view(2, &[running(20, 19, 20, 5)], &[cached]), &limits);
    assert_eq!((plan.admit, &plan.rows[1]), (1, &Row { sequence: 1, tokens: 4 }));
    // What nobody holds counts among the free ones until it is taken.
    let plan = schedule(&view(3, &[running(20, 19, 20, 5)], &[Waiting { shared: 0, ..cached }]), &limits);
    assert_eq!(plan.admit, 0);
}

#[test]
fn what_an_older_sequence_shares_does_not_come_back() {
    let limits = limits(2, 8, 4);
    let old = running(5, 4, 9, 2);
    let sharing = Running { returns: 0, ..running(2, 1, 9, 1) };
    let plan = schedule(&view(0, &[old, running(2, 1, 9, 1), sharing], &[]), &limits);
    assert_eq!((plan.preempt, plan.rows), (2, vec![Row { sequence: 0, tokens: 1 }]));
}

#[test]
fn nobody_is_fed_beyond_where_its_state_is_saved() {
    let limits = limits(4, 64, 4);
    let prefill = Running { prefill: 16, ..running(20, 8, 24, 5) };
    let plan = schedule(&view(9, &[prefill], &[Waiting { prefill: 8, ..fresh(9, 10) }]), &limits);
    assert_eq!(plan.rows, [Row { sequence: 0, tokens: 8 }, Row { sequence: 1, tokens: 8 }]);
}
