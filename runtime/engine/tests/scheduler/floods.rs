//! Endless requests that try to starve others: every earlier request is answered within the stated bound,
//! clients get their share, and tokens come in time.
//!
//! The world asserts the bound for every request at every turn: `truth::bound`.
//!
//! Planted, with `truth` looking away: no turn goes by age, the oldest running sequence is not ranked first,
//! with `slai` the first in line gets no part of a step. Each time a request exceeded the bound. Planted as
//! well: a deadline that is not looked at, and one that leaves nothing for what no estimate knows (tokens
//! came late); a client that comes back with service saved up, and a least served that never moves on (shares
//! are not alike).

use crate::world::{Request, Rules, World};
use crate::{limits, rules};
use monomorph_engine::scheduler::{AGE_TURN, CLIENTS, Policy, QUANTUM, SchedulerLimits};

/// How each request of a flood tries to overtake those already waiting.
#[derive(Clone, Copy, Debug)]
enum Flood {
    /// Its prompt is as short as can be.
    Short,
    /// Its priority is lower.
    Urgent,
    /// Its priority is lower than that of all before it.
    EverMoreUrgent,
    /// Its client was never seen.
    NewClients,
    /// All of it at once.
    All,
}

const FLOODS: [Flood; 5] =
    [Flood::Short, Flood::Urgent, Flood::EverMoreUrgent, Flood::NewClients, Flood::All];

impl Flood {
    /// The request of this number; its answer takes what the context leaves.
    fn request(self, number: usize, context: usize) -> Request {
        let (prompt, priority, client) = match self {
            Flood::Short => (1, 0, 0),
            Flood::Urgent => (context / 2, -1, 0),
            Flood::EverMoreUrgent => (context / 2, -(number as i64), 0),
            Flood::NewClients => (context / 2, 0, number as u64),
            Flood::All => (1, -(number as i64), number as u64),
        };
        let answer = if number.is_multiple_of(3) { 1 } else { context - prompt };
        Request { prompt, answer, stops: answer, priority, client, ..Request::default() }
    }
}

/// Floods a world, with as many as `most` waiting at every turn, from before a victim comes until it is
/// answered, and again; the steps that took, and the most that one victim waited for.
fn drown(rules: Rules, flood: Flood, most: usize, victims: usize) -> (World, usize) {
    let mut world = World::new(rules);
    let mut sent = 0;
    let mut longest = 0;
    for at in 0..victims {
        let mut wave = |world: &mut World, turns: usize| {
            for _ in 0..turns {
                while world.waiting() < most {
                    sent += 1;
                    world.arrive(flood.request(sent, rules.context));
                }
                world.turn();
            }
        };
        wave(&mut world, 50);
        // The longest prompt of the least urgent, of a client that was seen before.
        let prompt = rules.context - 1 - at % 2;
        let answer = rules.context - prompt;
        let victim = Request { prompt, answer, stops: answer, priority: 9, ..Request::default() };
        let (began, number) = (world.submitted, world.arrive(victim));
        while world.holds(number) {
            wave(&mut world, 1);
        }
        longest = longest.max(world.submitted - began);
    }
    (world, longest)
}

#[test]
fn no_flood_starves_anybody() {
    let (mut steps, mut preemptions) = (0, 0);
    for policy in [Policy::Fifo, Policy::Slai] {
        for flood in FLOODS {
            let mut nearest = 0.0_f64;
            for (block_tokens, step_tokens, sequences, total) in
                [(1, 1, 1, 8), (2, 4, 3, 9), (4, 9, 4, 6), (4, 24, 6, 40), (4, 24, 6, 13)]
            {
                for depth in 1..=2 {
                    for chunk_tokens in [1, 4.min(step_tokens)] {
                        let limits =
                            SchedulerLimits { chunk_tokens, ..limits(block_tokens, step_tokens, sequences) };
                        let context = 24.min(total * block_tokens);
                        let rules = Rules {
                            policy,
                            context,
                            time: (1_000, 90),
                            tbt: 1_200,
                            ..rules(limits, total, depth)
                        };
                        let (world, longest) = drown(rules, flood, 12, 6);
                        let bound = crate::truth::bound(12, limits.running(), context) * depth;
                        nearest = nearest.max(longest as f64 / bound as f64);
                        steps += world.seen.steps;
                        preemptions += world.seen.preemptions;
                    }
                }
            }
            println!("{} {flood:?}: at most {:.0} % of what it may take", policy.name(), 100.0 * nearest);
        }
    }
    println!("{steps} steps, {preemptions} pre-emptions");
    assert!(steps > 100_000 && preemptions > 5_000);
}

#[test]
fn clients_share_by_service_and_not_by_requests() {
    for policy in [Policy::Fifo, Policy::Slai] {
        let (limits, context) = (limits(16, 64, 8), 256);
        let mut world = World::new(Rules { policy, context, ..rules(limits, 200, 1) });
        // One sends as much as it can; one little at a time, but always something; one long prompts.
        let kinds = [(20, 8, 40), (2, 8, 40), (2, 200, 10)];
        let mut waiting = vec![Vec::new(); kinds.len()];
        for _ in 0..60_000 {
            for (client, (most, prompt, answer)) in kinds.into_iter().enumerate() {
                waiting[client].retain(|number| world.waits(*number));
                while waiting[client].len() < most {
                    let client = client as u64;
                    let request = Request { prompt, answer, stops: answer, client, ..Request::default() };
                    waiting[client as usize].push(world.arrive(request));
                }
            }
            world.turn();
        }
        let total: u64 = world.service.iter().sum();
        let share = total / kinds.len() as u64;
        // What age alone decides, what clients may differ by, and what those that run have not been fed.
        let least = share - share / AGE_TURN as u64 - QUANTUM - (2 * context * limits.running()) as u64;
        println!("{}: {:?} of {total}", policy.name(), &world.service[..kinds.len()]);
        assert!(world.service[..kinds.len()].iter().all(|served| *served >= least), "at least {least}");
        assert!(least > share / 2, "{total} tokens are too few to tell");
        assert!(world.clients.len() <= kinds.len());
    }
}

#[test]
fn clients_that_go_are_forgotten() {
    let mut world = World::new(Rules { context: 48, ..rules(limits(16, 64, 8), 200, 1) });
    let (mut client, mut most) = (0, 0);
    while client < 4 * CLIENTS as u64 {
        while world.waiting() < 10 {
            client += 1;
            world.arrive(Request { prompt: 8, answer: 2, stops: 2, client, ..Request::default() });
        }
        world.turn();
        most = most.max(world.clients.len());
    }
    // It is looked at once a turn.
    assert!((CLIENTS..CLIENTS + 64).contains(&most), "{most}");
}

/// Tokens that come late beside prompts without end, behind so many steps to learn from; steps in all, and
/// tokens of prompts.
fn late(policy: Policy, depth: usize, chunk_tokens: usize) -> (usize, u64) {
    let limits = SchedulerLimits { chunk_tokens, ..limits(16, 512, 32) };
    let (time, tbt) = ((2_000, 100), 20_000);
    let mut world = World::new(Rules { policy, context: 1_024, time, tbt, ..rules(limits, 2_048, depth) });
    for turn in 0..20_000 {
        if turn == 100 {
            world.seen.late = 0;
        }
        while world.waiting() < 4 {
            let prompt = 100 + turn % 7 * 100;
            world.arrive(Request { prompt, answer: 50, stops: 50, ..Request::default() });
        }
        world.turn();
    }
    (world.seen.late, world.service[0])
}

#[test]
fn tokens_come_in_time_and_prompts_go_on() {
    for (depth, chunk) in [(1, 1), (2, 1), (1, 64)] {
        let (fifo, served) = late(Policy::Fifo, depth, chunk);
        let (slai, served_slai) = late(Policy::Slai, depth, chunk);
        println!(
            "{depth} in flight, chunks of {chunk}: {fifo} late by fifo, {slai} by slai; {served} and {served_slai} served"
        );
        // A step full of prompts takes 53 ms, an eighth of one 9 ms, and 20 ms are allowed.
        assert!(fifo > 1_000, "without a deadline many are late: {fifo}");
        assert_eq!(slai, 0);
        assert!(served_slai > served / LEAST, "{served_slai} of {served}");
    }
}

/// What deadlines leave of the service at least, as the share of a step that no deadline cuts.
const LEAST: u64 = monomorph_engine::scheduler::LEAST_PART as u64;
