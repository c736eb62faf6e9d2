//! The scheduler by simulation: every small world exhaustively, then many larger ones at random. The world
//! outside the scheduler is ten lines here, so that it cannot share the scheduler's mistakes.

use monomorph_engine::scheduler::{Limits, Row, Running, View, Waiting, schedule};
use std::collections::VecDeque;

/// A request: the step it arrives at, its prompt and the answer it will get, in tokens.
#[derive(Clone, Copy, Debug)]
struct Request {
    arrives: usize,
    prompt: usize,
    answer: usize,
}

#[derive(Clone, Copy, Debug)]
struct Sequence {
    number: usize,
    tokens: usize,
    cached: usize,
    limit: usize,
    blocks: usize,
}

/// What a run did, to see that the runs exercise what they claim to.
#[derive(Default)]
struct Seen {
    steps: usize,
    preemptions: usize,
    mixed: usize,
}

fn simulate(requests: &[Request], limits: &Limits, total: usize, seen: &mut Seen) {
    let what = || format!("{requests:?} {limits:?} {total} blocks");
    let (mut free, mut done) = (total, 0);
    let mut running: Vec<Sequence> = Vec::new();
    let mut waiting: VecDeque<Sequence> = VecDeque::new();
    // The stated bound: a request is answered after at most as many steps as it and those before it have
    // tokens, counted from the last of their arrivals.
    let mut bounds: Vec<usize> = Vec::new();
    for request in requests {
        let previous = bounds.last().copied().unwrap_or(0);
        bounds.push(previous.max(request.arrives) + request.prompt + request.answer);
    }
    let mut step = 0;
    while done < requests.len() {
        for (number, request) in requests.iter().enumerate().filter(|(_, one)| one.arrives == step) {
            let (tokens, limit) = (request.prompt, request.prompt + request.answer);
            waiting.push_back(Sequence { number, tokens, cached: 0, limit, blocks: 0 });
        }
        step += 1;
        if running.is_empty() && waiting.is_empty() {
            continue;
        }
        let view_running: Vec<Running> = running
            .iter()
            .map(|one| Running {
                tokens: one.tokens,
                cached: one.cached,
                limit: one.limit,
                blocks: one.blocks,
            })
            .collect();
        let view_waiting: Vec<Waiting> =
            waiting.iter().map(|one| Waiting { tokens: one.tokens, limit: one.limit }).collect();
        let view = View { free_blocks: free, running: &view_running, waiting: &view_waiting };
        let plan = schedule(&view, limits);

        seen.steps += 1;
        seen.preemptions += plan.preempt;
        let oldest = running.first().or(waiting.front()).map(|one| one.number);
        for _ in 0..plan.preempt {
            let mut victim = running.pop().unwrap_or_else(|| panic!("pre-empts nobody: {}", what()));
            free += victim.blocks;
            (victim.blocks, victim.cached) = (0, 0);
            waiting.push_front(victim);
        }
        for _ in 0..plan.admit {
            running.push(waiting.pop_front().unwrap_or_else(|| panic!("admits nobody: {}", what())));
        }
        assert!(running.len() <= limits.step_sequences, "{}", what());
        assert!(running.windows(2).all(|pair| pair[0].number < pair[1].number), "{}", what());
        if let (Some(last), Some(next)) = (running.last(), waiting.front()) {
            assert!(last.number < next.number, "the head of the queue was overtaken: {}", what());
        }
        for sequence in &mut running {
            let needed = sequence.tokens.div_ceil(limits.block_tokens);
            let more = needed.saturating_sub(sequence.blocks);
            assert!(more <= free, "planned with more blocks than there are: {}", what());
            free -= more;
            sequence.blocks += more;
        }

        let fed: usize = plan.rows.iter().map(|row| row.tokens).sum();
        assert!(fed <= limits.step_tokens, "over budget: {}", what());
        assert!(plan.rows.windows(2).all(|pair| pair[0].sequence < pair[1].sequence), "{}", what());
        assert_eq!(plan.rows.first().map(|row| running[row.sequence].number), oldest, "{}", what());
        let decoding = running.iter().filter(|one| one.tokens - one.cached == 1).count();
        let single =
            plan.rows.iter().filter(|row| running[row.sequence].tokens - running[row.sequence].cached == 1);
        assert_eq!(single.count(), decoding, "a decoding sequence was left out: {}", what());
        seen.mixed += usize::from(decoding > 0 && fed > decoding);
        for &Row { sequence, tokens } in &plan.rows {
            let sequence = &mut running[sequence];
            assert!(tokens >= 1, "an empty row: {}", what());
            sequence.cached += tokens;
            assert!(sequence.cached <= sequence.tokens, "fed more than there is: {}", what());
            if sequence.cached == sequence.tokens {
                sequence.tokens += 1;
            }
        }
        running.retain(|sequence| {
            let finished = sequence.tokens == sequence.limit;
            if finished {
                free += sequence.blocks;
                done += 1;
                assert!(step <= bounds[sequence.number], "{} finishes late: {}", sequence.number, what());
            }
            !finished
        });
        let held: usize = running.iter().map(|one| one.blocks).sum();
        assert_eq!(free + held, total, "blocks leaked: {}", what());
    }
    assert_eq!(free, total, "blocks leaked: {}", what());
}

#[test]
fn every_small_world_ends_well() {
    let mut seen = Seen::default();
    let mut worlds = 0;
    for block_tokens in 1..=2 {
        for total in 2..=6 {
            let room = total * block_tokens;
            for (step_tokens, step_sequences) in [(1, 1), (1, 2), (2, 2), (3, 2), (4, 3)] {
                let limits = Limits { block_tokens, step_tokens, step_sequences };
                let kinds: Vec<Request> = (1..=3)
                    .flat_map(|prompt| [1, 2, 4, 5].map(|answer| (prompt, answer)))
                    .flat_map(|(prompt, answer)| [0, 2].map(|arrives| Request { arrives, prompt, answer }))
                    .filter(|one| one.prompt + one.answer <= room)
                    .collect();
                for &a in &kinds {
                    for &b in kinds.iter().filter(|b| b.arrives >= a.arrives) {
                        for &c in kinds.iter().filter(|c| c.arrives >= b.arrives) {
                            simulate(&[a, b, c], &limits, total, &mut seen);
                            worlds += 1;
                        }
                    }
                }
            }
        }
    }
    println!("{worlds} worlds, {} steps, {} pre-emptions", seen.steps, seen.preemptions);
    assert!(worlds > 10_000 && seen.preemptions > 1_000 && seen.mixed > 1_000);
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
    while seen.steps < 400_000 {
        let limits =
            Limits { block_tokens: 1 + below(16), step_tokens: 1 + below(48), step_sequences: 1 + below(12) };
        let total = 2 + below(24);
        let room = total * limits.block_tokens;
        let mut arrives = 0;
        let requests: Vec<Request> = (0..1 + below(30))
            .map(|_| {
                arrives += below(6);
                let prompt = 1 + below(room - 1) / (1 + below(8));
                Request { arrives, prompt, answer: 1 + below(room - prompt) }
            })
            .collect();
        simulate(&requests, &limits, total, &mut seen);
    }
    println!("{} steps, {} pre-emptions, {} mixed", seen.steps, seen.preemptions, seen.mixed);
    assert!(seen.preemptions > 1_000 && seen.mixed > 10_000);
}

#[test]
fn the_youngest_is_preempted_and_the_oldest_goes_on() {
    let limits = Limits { block_tokens: 2, step_tokens: 8, step_sequences: 4 };
    let full = Running { tokens: 5, cached: 4, limit: 9, blocks: 2 };
    let young = Running { tokens: 2, cached: 1, limit: 9, blocks: 1 };
    let view = View { free_blocks: 0, running: &[full, young], waiting: &[Waiting { tokens: 1, limit: 2 }] };
    let plan = schedule(&view, &limits);
    assert_eq!((plan.preempt, plan.admit), (1, 0), "one block came back, and none is left to admit with");
    assert_eq!(plan.rows, [Row { sequence: 0, tokens: 1 }]);
}

#[test]
fn decode_comes_before_prefill_and_prefill_takes_the_rest() {
    let limits = Limits { block_tokens: 4, step_tokens: 6, step_sequences: 4 };
    let prefill = Running { tokens: 20, cached: 8, limit: 24, blocks: 5 };
    let decode = Running { tokens: 6, cached: 5, limit: 9, blocks: 2 };
    let waiting = [Waiting { tokens: 3, limit: 4 }];
    let view = View { free_blocks: 9, running: &[prefill, decode], waiting: &waiting };
    let plan = schedule(&view, &limits);
    assert_eq!(plan.admit, 1);
    assert_eq!(plan.rows, [Row { sequence: 0, tokens: 5 }, Row { sequence: 1, tokens: 1 }]);
}

#[test]
fn the_head_of_the_queue_is_not_overtaken() {
    let limits = Limits { block_tokens: 4, step_tokens: 64, step_sequences: 4 };
    let running = [Running { tokens: 5, cached: 4, limit: 40, blocks: 2 }];
    let waiting = [Waiting { tokens: 12, limit: 40 }, Waiting { tokens: 1, limit: 2 }];
    let plan = schedule(&View { free_blocks: 4, running: &running, waiting: &waiting }, &limits);
    assert_eq!(plan.admit, 0, "the head needs 3 blocks and one to grow, and the running one may need one");
    let plan = schedule(&View { free_blocks: 5, running: &running, waiting: &waiting }, &limits);
    assert_eq!(plan.admit, 1);
}
