//! Single decisions, worked out by hand.

use crate::world::fresh;
use crate::{drafting, limits};
use monomorph_engine::scheduler::{
    AGE_TURN, CLIENTS, Candidate, Clients, Pace, Policy, QUANTUM, Row, Running, SchedulerLimits, StepPlan,
    Turns, View, Waiting, WholeSpan, WholeSpans, comes, pick, rank, schedule,
};

/// A view with enough slots and nothing in flight.
fn view<'a>(free_blocks: usize, running: &'a [Running], waiting: &'a [Waiting]) -> View<'a> {
    let (policy, pace) = (Policy::Fifo, Pace::default());
    let (free_slots, whole) = (4 - running.len(), &[]);
    View { free_blocks, free_slots, in_flight: false, running, waiting, whole, policy, pace }
}

/// A sequence with `cached` tokens in the cache, ready to be fed the others.
fn running(tokens: usize, cached: usize, limit: usize, blocks: usize) -> Running {
    let (prefill, returns) = (tokens, blocks);
    Running {
        tokens,
        cached,
        prefill,
        drafts: 0,
        ready: true,
        limit,
        blocks,
        returns,
        scored: false,
        priority: 0,
        slack: None,
        whole: WholeSpans::default(),
    }
}

#[test]
fn the_last_is_preempted_and_the_first_goes_on() {
    let limits = limits(2, 8, 4);
    let full = running(5, 4, 9, 2);
    let young = running(2, 1, 9, 1);
    let (running, waiting) = ([full, young], [fresh(1, 2)]);
    let view = view(0, &running, &waiting);
    let plan = schedule(&view, &limits);
    assert_eq!((plan.preempt, plan.admit), (1, 0), "one block came back, and none is left to admit with");
    assert_eq!(plan.rows, [Row { sequence: 0, tokens: 1 }]);
    let plan = schedule(&View { in_flight: true, ..view }, &limits);
    assert_eq!(plan, StepPlan::default(), "its blocks may still be written: collect first");
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
fn chunks_end_where_sums_can_be_taken_up_and_answers_are_decoded_again() {
    let limits = SchedulerLimits { chunk_tokens: 8, ..limits(4, 20, 16) };
    assert_eq!(limits.running(), 13, "behind twelve that decode there is room for a chunk");
    let decode = Running { prefill: 5, ..running(6, 5, 9, 2) };
    let prompt = running(30, 8, 40, 8);
    let plan = schedule(&view(99, &[decode, prompt, prompt], &[]), &limits);
    assert_eq!(
        plan.rows,
        [Row { sequence: 0, tokens: 1 }, Row { sequence: 1, tokens: 16 }],
        "three tokens are left, and no chunk"
    );
    // A pre-empted sequence: a chunk, the rest of the prompt and no token of the answer, then token by token.
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
    // Cached blocks that no sequence holds count as free until they are taken.
    let plan = schedule(&view(3, &[running(20, 19, 20, 5)], &[Waiting { shared: 0, ..cached }]), &limits);
    assert_eq!(plan.admit, 0);
}

#[test]
fn each_that_is_admitted_leaves_less_for_the_next() {
    let limits = limits(4, 64, 4);
    // Of three blocks the first shares two; the second takes what is left.
    let shares = Waiting { cached: 8, shared: 2, ..fresh(12, 12) };
    let admitted = |free, waiting: &[Waiting]| schedule(&view(free, &[], waiting), &limits).admit;
    assert_eq!(admitted(2, &[shares, fresh(4, 4)]), 2);
    assert_eq!(admitted(1, &[shares, fresh(4, 4)]), 1);
    // Two of a block each, and a block for each to grow into.
    let grow = [fresh(3, 40), fresh(3, 40)];
    assert_eq!([2, 3, 4].map(|free| admitted(free, &grow)), [1, 1, 2]);
    // One that ends within its blocks needs none.
    assert_eq!(admitted(2, &[fresh(3, 4), fresh(3, 4)]), 2);
}

#[test]
fn blocks_go_first_to_last_until_there_are_no_more() {
    let limits = limits(2, 8, 4);
    let grows = running(3, 2, 9, 1);
    let kept = |free, running: &[Running]| schedule(&view(free, running, &[]), &limits).preempt;
    assert_eq!(kept(2, &[grows, grows]), 0);
    assert_eq!(kept(1, &[grows, grows]), 1, "the first took the block");
    // Who lacks more blocks than there are goes, and no other for it.
    let full = running(4, 3, 9, 2);
    assert_eq!(kept(0, &[full, running(8, 7, 9, 1)]), 1);
    assert_eq!(kept(0, &[full, full, running(8, 7, 9, 1)]), 1);
}

#[test]
fn what_is_written_behind_the_tokens_counts_where_a_sequence_may_grow() {
    let limits = drafting(limits(2, 9, 4), 2);
    assert_eq!(limits.reach, 3);
    let admitted = |free, one: Running| schedule(&view(free, &[one], &[fresh(3, 3)]), &limits).admit;
    // The one that waits takes three blocks. Another holds five for six tokens and three positions, and may
    // need a sixth.
    let grown = Running { drafts: 2, ..running(6, 5, 8, 5) };
    assert_eq!([3, 4].map(|free| admitted(free, grown)), [0, 1]);
    // With four it takes a fifth now, which is its last, or not.
    let short = Running { blocks: 4, returns: 4, ..grown };
    assert_eq!([3, 4].map(|free| admitted(free, Running { limit: 7, ..short })), [0, 1]);
    assert_eq!([4, 5].map(|free| admitted(free, Running { limit: 13, ..short })), [0, 1]);
    // So may the one that waits, if it goes on to more tokens.
    let grows = |limit, free| schedule(&view(free, &[], &[fresh(3, limit)]), &limits).admit;
    assert_eq!([3, 4].map(|free| grows(4, free)), [0, 1]);
    assert_eq!(grows(3, 3), 1);
    let two = |free| schedule(&view(free, &[], &[fresh(3, 3), fresh(3, 3)]), &limits).admit;
    assert_eq!([5, 6].map(two), [1, 2]);
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

/// A waiting request of client 0.
fn candidate(priority: i64, client: u64, ahead: u64, prompt: usize) -> Candidate {
    Candidate { front: false, priority, client, ahead, prompt, paid: false, taken: false }
}

/// All requests in the order of admission.
fn order(mut candidates: Vec<Candidate>, policy: Policy) -> Vec<usize> {
    let mut turns = Turns::default();
    std::iter::from_fn(|| pick(&mut candidates, policy, &mut turns)).collect()
}

#[test]
fn alike_they_go_by_age_or_by_length() {
    let all: Vec<Candidate> = [30, 5, 20, 5].map(|prompt| candidate(0, 0, 0, prompt)).into();
    assert_eq!(order(all.clone(), Policy::Fifo), [0, 1, 2, 3]);
    assert_eq!(order(all, Policy::Slai), [1, 3, 2, 0]);
}

#[test]
fn priority_goes_before_fairness_and_fairness_before_length() {
    let most = QUANTUM;
    let all = vec![
        candidate(0, 0, most, 1),
        candidate(0, 1, 0, 9),
        candidate(-1, 0, most, 9),
        candidate(0, 1, 0, 5),
    ];
    assert_eq!(order(all.clone(), Policy::Slai), [2, 3, 1, 0]);
    assert_eq!(order(all.clone(), Policy::Fifo), [2, 1, 3, 0]);
    // Those within a quantum are alike.
    let all: Vec<_> = all.into_iter().map(|one| Candidate { ahead: one.ahead / 2, ..one }).collect();
    assert_eq!(order(all, Policy::Fifo), [2, 0, 1, 3]);
}

#[test]
fn who_is_picked_pays_before_the_next_is() {
    let long = QUANTUM as usize;
    let all: Vec<_> = [0, 0, 0, 1].map(|client| candidate(0, client, 0, long)).into();
    assert_eq!(order(all.clone(), Policy::Fifo), [0, 3, 1, 2]);
    // One that was pre-empted has paid.
    let all: Vec<_> = all.into_iter().map(|one| Candidate { paid: true, ..one }).collect();
    assert_eq!(order(all, Policy::Fifo), [0, 1, 2, 3]);
}

#[test]
fn one_turn_in_so_many_goes_by_age_and_canaries_before_all() {
    let mut all = vec![candidate(9, 0, 0, 1)];
    all.extend((0..AGE_TURN).map(|_| candidate(0, 1, 0, 1)));
    let order = order(all.clone(), Policy::Fifo);
    assert_eq!(order.iter().position(|at| *at == 0), Some(AGE_TURN - 1), "{order:?}");
    let canary = Candidate { front: true, ..candidate(99, 7, 0, 99) };
    all.push(canary);
    let turns = (0..AGE_TURN).fold(Vec::new(), |mut seen: Vec<Turns>, _| {
        let mut turns = seen.last().copied().unwrap_or_default();
        turns.took(false);
        seen.push(turns);
        seen
    });
    for mut turns in turns {
        assert_eq!(pick(&mut all.clone(), Policy::Slai, &mut turns), Some(AGE_TURN + 1));
    }
}

#[test]
fn those_that_run_stand_behind_the_oldest_by_priority_and_age() {
    let mut running = [(0, 7), (5, 3), (-1, 9), (0, 4), (-1, 8)];
    rank(&mut running, |one| *one);
    assert_eq!(running, [(5, 3), (-1, 8), (-1, 9), (0, 4), (0, 7)]);
    rank(&mut running[..0], |one: &(i64, u64)| *one);
}

#[test]
fn clients_that_come_late_or_come_back_start_with_the_least_served() {
    let mut clients = Clients::default();
    clients.serve(1, 500);
    clients.serve(2, 800);
    assert_eq!([1, 2, 3].map(|one| clients.ahead(one)), [500, 800, 0]);
    clients.settle([1, 2].into_iter());
    assert_eq!([1, 2, 3].map(|one| clients.ahead(one)), [0, 300, 0], "3 saved nothing up");
    assert_eq!(clients.len(), 1, "who is not ahead need not be remembered");
    assert!(!clients.is_empty());
    clients.serve(3, 10);
    assert_eq!(clients.ahead(3), 10);
    clients.settle([].into_iter());
    assert!(clients.is_empty(), "nobody waits: what was served was taken from nobody");
}

#[test]
fn where_too_many_clients_are_remembered_the_half_served_least_starts_again() {
    let mut clients = Clients::default();
    for client in 0..CLIENTS as u64 {
        clients.serve(client, 10 + client);
    }
    let stranger = u64::MAX;
    clients.settle([stranger].into_iter());
    assert_eq!((clients.len(), clients.ahead(7)), (CLIENTS, 17), "as many as there may be");
    clients.serve(CLIENTS as u64, 10 + CLIENTS as u64);
    clients.settle([stranger].into_iter());
    assert_eq!(clients.len(), CLIENTS / 2);
    let median = CLIENTS as u64 / 2;
    assert_eq!([0, median, median + 1, CLIENTS as u64].map(|one| clients.ahead(one)), [0, 0, 1, median]);
}

#[test]
fn who_waits_for_a_prefix_waits_for_more_than_it_found() {
    let prompt: Vec<u32> = (0..10).collect();
    let differs = |at: usize| {
        let mut other = prompt.clone();
        other[at] = 99;
        other
    };
    let soon =
        |prompt: &[u32], found, known: &[u32], left| comes(prompt.into(), found, known.into(), left, 4);
    assert!(soon(&prompt, 0, &prompt, 0));
    assert!(soon(&prompt, 0, &prompt[..4], 0) && !soon(&prompt, 0, &prompt[..3], 0), "a granule is known");
    assert!(soon(&prompt[..5], 0, &prompt, 0) && !soon(&prompt[..4], 0, &prompt, 0), "a token must be left");
    // More than was found, and than is cached already.
    assert!(soon(&prompt, 3, &prompt[..4], 0));
    assert!(soon(&prompt, 4, &prompt[..8], 0) && !soon(&prompt, 4, &prompt[..7], 0));
    assert!(soon(&prompt, 0, &prompt[..8], 5) && !soon(&prompt, 0, &prompt[..7], 5));
    assert!(!soon(&prompt, 8, &prompt, 0) && !soon(&prompt, 0, &prompt, 8), "the rest is no granule");
    // Only what is the same.
    assert!(soon(&prompt, 0, &differs(4), 0) && !soon(&prompt, 0, &differs(3), 0));
    assert!(!soon(&prompt, 4, &differs(4), 0));
}

#[test]
fn policies_have_the_names_that_are_asked_for() {
    assert_eq!([Policy::Fifo, Policy::Slai].map(Policy::name), ["fifo", "slai"]);
}

/// Prefill of a step with these `limits` and running sequences, `slack` microseconds before a token is late.
fn prompts(policy: Policy, limits: &SchedulerLimits, slack: Option<u64>, pace: Pace) -> (Vec<usize>, bool) {
    let decode = Running { slack, ..running(6, 5, 90, 50) };
    let all = [running(60, 0, 90, 50), decode, running(40, 0, 90, 50), running(20, 10, 90, 50)];
    let plan = schedule(&View { policy, pace, ..view(99, &all, &[]) }, limits);
    let fed = |sequence| plan.rows.iter().find(|row| row.sequence == sequence).map_or(0, |row| row.tokens);
    assert_eq!(fed(1), 1, "decode comes first");
    ([0, 2, 3].map(fed).into(), plan.cut)
}

#[test]
fn prompts_share_a_step_by_the_policy() {
    let limits = limits(16, 65, 8);
    assert_eq!(prompts(Policy::Fifo, &limits, None, Pace::default()), (vec![60, 4, 0], false));
    // An eighth for the first, then the shortest rest.
    assert_eq!(prompts(Policy::Slai, &limits, None, Pace::default()), (vec![14, 40, 10], false));
    let few = SchedulerLimits { prefill_tokens: 24, ..limits };
    assert_eq!(prompts(Policy::Fifo, &few, None, Pace::default()), (vec![24, 0, 0], false));
    assert_eq!(prompts(Policy::Slai, &few, None, Pace::default()), (vec![3, 11, 10], false));
    let chunks = SchedulerLimits { chunk_tokens: 16, ..few };
    assert_eq!(
        prompts(Policy::Slai, &chunks, None, Pace::default()),
        (vec![16, 0, 6], false),
        "three are no chunk"
    );
}

#[test]
fn a_deadline_cuts_prompts_and_never_to_nothing() {
    let limits = limits(16, 65, 8);
    let mut pace = Pace::default();
    pace.observe(0, 1_000);
    pace.observe(100, 11_000);
    // A thousand microseconds and a hundred a token.
    assert_eq!(prompts(Policy::Slai, &limits, Some(4_630), pace), (vec![4, 16, 10], true));
    assert_eq!(prompts(Policy::Slai, &limits, Some(9_500), pace), (vec![14, 40, 10], false));
    assert_eq!(prompts(Policy::Slai, &limits, Some(0), pace), (vec![1, 0, 7], true), "an eighth is left");
    let chunks = SchedulerLimits { chunk_tokens: 16, ..limits };
    assert_eq!(prompts(Policy::Slai, &chunks, Some(0), pace), (vec![16, 0, 0], true), "a chunk is");
    assert_eq!(prompts(Policy::Fifo, &limits, Some(0), pace), (vec![60, 4, 0], false));
}

#[test]
fn the_shortest_rest_goes_first_whatever_is_cached() {
    let limits = limits(16, 65, 8);
    let rows = |running: &[Running], waiting: &[Waiting]| -> Vec<usize> {
        let view = View { policy: Policy::Slai, ..view(99, running, waiting) };
        schedule(&view, &limits).rows.iter().map(|row| row.tokens).collect()
    };
    let first = running(100, 0, 100, 7);
    let nearly = running(90, 85, 90, 6);
    assert_eq!(rows(&[first, running(40, 0, 40, 3), nearly], &[]), [20, 40, 5]);
    let nearly = Waiting { cached: 85, ..fresh(90, 90) };
    assert_eq!(rows(&[first], &[fresh(40, 40), nearly]), [20, 40, 5]);
}

#[test]
fn the_first_goes_on_from_where_its_part_ended() {
    let limits = SchedulerLimits { chunk_tokens: 10, ..limits(16, 65, 8) };
    let all = [running(200, 13, 200, 13), running(300, 0, 300, 19)];
    let plan = schedule(&View { policy: Policy::Slai, ..view(9, &all, &[]) }, &limits);
    // Up to 20 as its part; then up to 70, and eight tokens are no chunk of the other.
    assert_eq!(plan.rows, [Row { sequence: 0, tokens: 57 }]);
}

#[test]
fn only_what_is_left_out_for_a_deadline_counts_as_cut() {
    let limits = limits(16, 65, 8);
    let mut pace = Pace::default();
    pace.observe(0, 1_000);
    pace.observe(100, 11_000);
    let late = Running { slack: Some(0), ..running(6, 5, 90, 6) };
    let fed = |running: &[Running]| {
        let plan = schedule(&View { policy: Policy::Slai, pace, ..view(99, running, &[]) }, &limits);
        (plan.rows.iter().map(|row| row.tokens).collect::<Vec<_>>(), plan.cut)
    };
    assert_eq!(fed(&[late, running(8, 0, 90, 6)]), (vec![1, 8], false), "an eighth is all of it");
    assert_eq!(fed(&[late, running(9, 0, 90, 6)]), (vec![1, 8], true));
    // Who is not fed a token now, or is fed a prompt again, has no deadline.
    assert_eq!(fed(&[Running { ready: false, ..late }, running(60, 0, 90, 6)]), (vec![60], false));
    assert_eq!(fed(&[Running { slack: Some(0), ..running(60, 0, 90, 6) }]), (vec![60], false));
    assert_eq!(
        fed(&[Running { slack: Some(0), ..running(60, 58, 90, 6) }, running(60, 0, 90, 6)]),
        (vec![2, 60], false)
    );
}

#[test]
fn prompts_that_are_scored_share_the_room_for_their_logits() {
    let limits = SchedulerLimits { scored_tokens: 6, ..limits(4, 20, 16) };
    let prompt = running(12, 0, 30, 3);
    let scored = Running { scored: true, ..prompt };
    let fed = |running: &[Running], limits: &SchedulerLimits| -> Vec<(usize, usize)> {
        let plan = schedule(&view(50, running, &[]), limits);
        plan.rows.iter().map(|row| (row.sequence, row.tokens)).collect()
    };
    assert_eq!(fed(&[prompt], &limits), [(0, 12)]);
    assert_eq!(fed(&[scored], &limits), [(0, 6)]);
    assert_eq!(fed(&[scored, prompt, scored], &limits), [(0, 6), (1, 12)], "what others need no logits of");
    // The last token of a prompt takes of that room too: it is no decode, which would have its own.
    let last = Running { cached: 11, ..scored };
    assert_eq!(fed(&[scored, last], &limits), [(0, 6)]);
    assert_eq!(fed(&[last, scored], &limits), [(0, 1), (1, 5)]);
    // A whole chunk fits; less than one is not fed.
    let chunks = SchedulerLimits { chunk_tokens: 6, ..limits };
    assert_eq!(fed(&[scored, scored], &chunks), [(0, 6)]);
    assert_eq!(fed(&[last, scored], &chunks), [(0, 1)]);
}

/// A sequence with these images, the first of which stands at `spans[first]`.
fn seeing(one: Running, first: usize, count: usize) -> Running {
    Running { whole: WholeSpans { first, count }, ..one }
}

#[test]
fn no_chunk_ends_within_an_image_that_is_fed_whole() {
    let limits = SchedulerLimits { prefill_tokens: 16, ..limits(4, 16, 4) };
    let spans = [(3, 9), (1, 6), (6, 12), (20, 30)].map(|(start, end)| WholeSpan { start, end });
    let fed = |one: Running, decodes: usize| {
        let mut all = vec![running(6, 5, 90, 50); decodes];
        all.insert(0, one);
        let plan = schedule(&View { whole: &spans, ..view(99, &all, &[]) }, &limits);
        plan.rows.iter().find(|row| row.sequence == 0).map_or(0, |row| row.tokens)
    };
    let prompt = |cached| seeing(running(40, cached, 90, 50), 1, 3);
    // 16 tokens would end at 16 and 13 at 13, between images; 15 behind 10 tokens would cut the last.
    assert_eq!((fed(prompt(0), 0), fed(prompt(0), 3)), (16, 13));
    assert_eq!((fed(prompt(10), 0), fed(prompt(10), 3)), (10, 10));
    assert_eq!(fed(prompt(20), 0), 16, "an image and what comes behind it");
    // From within an image, as behind a prefix that was found: on to its end at least.
    assert_eq!((fed(prompt(25), 0), fed(prompt(4), 0)), (15, 16));
    // Where the state is to be saved first, or a share of the device ends: before the image.
    let until = |cached, prefill| Running { prefill, ..prompt(cached) };
    assert_eq!([fed(until(0, 8), 0), fed(until(0, 6), 0), fed(until(6, 8), 0)], [6, 6, 0]);
    let other = seeing(running(40, 0, 90, 50), 0, 1);
    assert_eq!([fed(Running { prefill: 4, ..other }, 0), fed(Running { prefill: 9, ..other }, 0)], [3, 9]);
}

#[test]
fn no_deadline_cuts_an_image_of_the_first_prompt() {
    let limits = SchedulerLimits { prefill_tokens: 64, ..limits(4, 64, 4) };
    let mut pace = Pace::default();
    // A token of a prompt takes a millisecond, and nothing is left.
    [0, 64, 0, 64].into_iter().for_each(|tokens| pace.observe(tokens, 1_000 + 1_000 * tokens as u64));
    let spans = [WholeSpan { start: 0, end: 40 }, WholeSpan { start: 0, end: 40 }];
    let late = Running { slack: Some(0), ..running(6, 5, 90, 50) };
    let [first, second] = [0, 1].map(|at| seeing(running(50, 0, 90, 50), at, 1));
    let all = [late, first, second];
    let base = View { whole: &spans, pace, policy: Policy::Slai, ..view(99, &all, &[]) };
    let rows = schedule(&base, &limits).rows;
    assert_eq!(rows, [Row { sequence: 0, tokens: 1 }, Row { sequence: 1, tokens: 40 }]);
}

#[test]
fn one_that_waits_for_rows_is_admitted_and_fed_later() {
    let limits = limits(4, 16, 4);
    let waits = Waiting { ready: false, ..fresh(9, 20) };
    let plan = schedule(&view(9, &[], &[waits, fresh(3, 9)]), &limits);
    assert_eq!((plan.admit, plan.rows), (2, vec![Row { sequence: 1, tokens: 3 }]));
    let plan = schedule(&view(9, &[], &[waits]), &limits);
    assert_eq!((plan.admit, plan.rows), (1, Vec::new()), "nothing can be fed before an image is seen");
}

#[test]
fn an_image_that_is_fed_whole_fits_beside_all_that_others_decode() {
    let most = |sequences, tokens| SchedulerLimits { prefill_tokens: tokens, ..limits(sequences, tokens, 4) };
    assert_eq!(most(4, 16).most_whole(), 13);
    assert_eq!(SchedulerLimits { prefill_tokens: 9, ..most(4, 16) }.most_whole(), 9);
    assert_eq!(SchedulerLimits { drafts: 2, ..most(4, 16) }.most_whole(), 16 - 3 * 3);
}
