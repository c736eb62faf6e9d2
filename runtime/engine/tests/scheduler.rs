//! The scheduler by simulation: every small world exhaustively, then many larger ones at random, with one step in
//! flight or several. The world outside the scheduler is small here, so that it cannot share the scheduler's
//! mistakes.

use monomorph_engine::scheduler::{Limits, Plan, Row, Running, View, Waiting, schedule};
use std::collections::VecDeque;

/// A request: the step it arrives at, its prompt and the answer it may get, in tokens.
#[derive(Clone, Copy, Debug)]
struct Request {
    arrives: usize,
    prompt: usize,
    answer: usize,
    /// Tokens of answer after which a stop id ends it.
    stops: usize,
    /// Whether the host must see a token before the next is sampled.
    waits: bool,
}

#[derive(Clone, Copy, Debug)]
struct Sequence {
    number: usize,
    /// As many as there will be when the steps in flight are done.
    tokens: usize,
    cached: usize,
    limit: usize,
    blocks: usize,
    waits: bool,
    /// Tokens that steps in flight sample.
    coming: usize,
    /// The last step that feeds it.
    last: usize,
}

impl Sequence {
    fn view(&self) -> Running {
        let ready = self.coming == 0 || (!self.waits && self.tokens < self.limit);
        let Sequence { tokens, cached, limit, blocks, .. } = *self;
        Running { tokens, cached, ready, limit, blocks }
    }

    fn left(&self) -> usize {
        if self.view().ready { self.tokens - self.cached } else { 0 }
    }
}

/// What a run did, to see that the runs exercise what they claim to.
#[derive(Default)]
struct Seen {
    steps: usize,
    preemptions: usize,
    mixed: usize,
    /// Rows of sequences that had ended.
    surplus: usize,
    /// Turns in which nothing could be planned before a step was collected.
    waits: usize,
}

fn simulate(requests: &[Request], limits: &Limits, total: usize, depth: usize, seen: &mut Seen) {
    let what = || format!("{requests:?} {limits:?} {total} blocks, {depth} in flight");
    let (mut free, mut done) = (total, 0);
    let mut running: Vec<Sequence> = Vec::new();
    let mut waiting: VecDeque<Sequence> = VecDeque::new();
    // Steps in flight: the numbers of those that sample in them. Then blocks of the ended: how many, and until
    // which step is collected.
    let mut flights: VecDeque<Vec<usize>> = VecDeque::new();
    let mut leaving: Vec<(usize, usize)> = Vec::new();
    let (mut submitted, mut collected) = (0, 0);
    // The stated bound: a request is answered after at most as many steps as it and those before it have
    // tokens, counted from the last of their arrivals; with more steps in flight, each token may take as many.
    let mut bounds: Vec<usize> = Vec::new();
    for request in requests {
        let previous = bounds.last().copied().unwrap_or(0);
        bounds.push(previous.max(request.arrives) + (request.prompt + request.answer) * depth);
    }
    let mut turn = 0;
    while done < requests.len() {
        for (number, request) in requests.iter().enumerate().filter(|(_, one)| one.arrives == turn) {
            let (tokens, limit) = (request.prompt, request.prompt + request.answer);
            waiting.push_back(Sequence {
                number,
                tokens,
                cached: 0,
                limit,
                blocks: 0,
                waits: request.waits,
                coming: 0,
                last: 0,
            });
        }
        turn += 1;
        assert!(turn < 100_000, "no end: {}", what());
        if running.is_empty() && waiting.is_empty() && flights.is_empty() {
            continue;
        }
        let view_running: Vec<Running> = running.iter().map(Sequence::view).collect();
        let view_waiting: Vec<Waiting> =
            waiting.iter().map(|one| Waiting { tokens: one.tokens, limit: one.limit }).collect();
        let view = View {
            free_blocks: free,
            free_slots: limits.running() - running.len() - leaving.len(),
            in_flight: !flights.is_empty(),
            running: &view_running,
            waiting: &view_waiting,
        };
        let plan = schedule(&view, limits);

        if plan.rows.is_empty() {
            assert!(view.in_flight, "no step: {}", what());
            assert_eq!((plan.preempt, plan.admit), (0, 0), "{}", what());
            seen.waits += 1;
        } else {
            submitted += 1;
            seen.steps += 1;
            seen.preemptions += plan.preempt;
            assert!(plan.preempt == 0 || flights.is_empty(), "blocks in flight change hands: {}", what());
            let oldest = running.iter().find(|one| one.left() > 0).or(waiting.front()).map(|one| one.number);
            for _ in 0..plan.preempt {
                let mut victim = running.pop().unwrap_or_else(|| panic!("pre-empts nobody: {}", what()));
                free += victim.blocks;
                (victim.blocks, victim.cached) = (0, 0);
                waiting.push_front(victim);
            }
            for _ in 0..plan.admit {
                running.push(waiting.pop_front().unwrap_or_else(|| panic!("admits nobody: {}", what())));
            }
            assert!(running.len() + leaving.len() <= limits.step_sequences, "{}", what());
            assert!(running.windows(2).all(|pair| pair[0].number < pair[1].number), "{}", what());
            if let (Some(last), Some(next)) = (running.last(), waiting.front()) {
                assert!(last.number < next.number, "the head of the queue was overtaken: {}", what());
            }
            for sequence in running.iter_mut().filter(|one| one.left() > 0) {
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
            let decoding = running.iter().filter(|one| one.left() == 1).count();
            let single = plan.rows.iter().filter(|row| running[row.sequence].left() == 1);
            assert_eq!(single.count(), decoding, "a decoding sequence was left out: {}", what());
            seen.mixed += usize::from(decoding > 0 && fed > decoding);
            let mut samples = Vec::new();
            for &Row { sequence, tokens } in &plan.rows {
                let sequence = &mut running[sequence];
                assert!(tokens >= 1, "an empty row: {}", what());
                assert!(tokens <= sequence.left(), "fed more than there is: {}", what());
                sequence.cached += tokens;
                sequence.last = submitted;
                if sequence.cached == sequence.tokens {
                    assert!(sequence.tokens < sequence.limit, "a token beyond the last: {}", what());
                    sequence.tokens += 1;
                    sequence.coming += 1;
                    samples.push(sequence.number);
                }
            }
            flights.push_back(samples);
        }
        if plan.rows.is_empty() || flights.len() == depth {
            let samples = flights.pop_front().unwrap_or_else(|| panic!("nothing in flight: {}", what()));
            collected += 1;
            leaving.retain(|&(blocks, last)| {
                free += if last <= collected { blocks } else { 0 };
                last > collected
            });
            for number in samples {
                let Some(at) = running.iter().position(|one| one.number == number) else {
                    seen.surplus += 1;
                    continue;
                };
                running[at].coming -= 1;
                let Sequence { tokens, coming, blocks, last, .. } = running[at];
                let answer = tokens - coming - requests[number].prompt;
                if answer == requests[number].stops {
                    running.remove(at);
                    done += 1;
                    assert!(submitted < bounds[number] + depth, "{number} finishes late: {}", what());
                    if last <= collected {
                        free += blocks;
                    } else {
                        leaving.push((blocks, last));
                    }
                }
            }
        }
        let held: usize = running.iter().map(|one| one.blocks).chain(leaving.iter().map(|one| one.0)).sum();
        assert_eq!(free + held, total, "blocks leaked: {}", what());
    }
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
                    .flat_map(|(prompt, answer)| {
                        [0, 2].map(|arrives| Request { arrives, prompt, answer, stops: answer, waits: false })
                    })
                    .filter(|one| one.prompt + one.answer <= room)
                    .collect();
                for &a in &kinds {
                    for &b in kinds.iter().filter(|b| b.arrives >= a.arrives) {
                        for &c in kinds.iter().filter(|c| c.arrives >= b.arrives) {
                            simulate(&[a, b, c], &limits, total, 1, &mut seen);
                            // One that ends early, one whose tokens the host must see, one as it is: in turn.
                            let mut manners = [a, b, c];
                            let early = &mut manners[worlds % 3];
                            early.stops = early.answer.div_ceil(2);
                            manners[(worlds + 1) % 3].waits = true;
                            simulate(&manners, &limits, total, 2 + worlds % 2, &mut seen);
                            worlds += 1;
                        }
                    }
                }
            }
        }
    }
    let Seen { steps, preemptions, mixed, surplus, waits } = seen;
    println!("{worlds} worlds, {steps} steps, {preemptions} pre-emptions, {surplus} surplus, {waits} waits");
    assert!(worlds > 10_000 && preemptions > 1_000 && mixed > 1_000 && surplus > 1_000 && waits > 1_000);
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
                let answer = 1 + below(room - prompt);
                let stops = if below(2) == 0 { answer } else { 1 + below(answer) };
                Request { arrives, prompt, answer, stops, waits: below(4) == 0 }
            })
            .collect();
        simulate(&requests, &limits, total, 1 + below(3), &mut seen);
    }
    let Seen { steps, preemptions, mixed, surplus, waits } = seen;
    println!("{steps} steps, {preemptions} pre-emptions, {mixed} mixed, {surplus} surplus, {waits} waits");
    assert!(preemptions > 1_000 && mixed > 10_000 && surplus > 1_000 && waits > 1_000);
}

/// A view with places enough and nothing in flight.
fn view<'a>(free_blocks: usize, running: &'a [Running], waiting: &'a [Waiting]) -> View<'a> {
    View { free_blocks, free_slots: 4 - running.len(), in_flight: false, running, waiting }
}

#[test]
fn the_youngest_is_preempted_and_the_oldest_goes_on() {
    let limits = Limits { block_tokens: 2, step_tokens: 8, step_sequences: 4 };
    let full = Running { tokens: 5, cached: 4, ready: true, limit: 9, blocks: 2 };
    let young = Running { tokens: 2, cached: 1, ready: true, limit: 9, blocks: 1 };
    let (running, waiting) = ([full, young], [Waiting { tokens: 1, limit: 2 }]);
    let view = view(0, &running, &waiting);
    let plan = schedule(&view, &limits);
    assert_eq!((plan.preempt, plan.admit), (1, 0), "one block came back, and none is left to admit with");
    assert_eq!(plan.rows, [Row { sequence: 0, tokens: 1 }]);
    let plan = schedule(&View { in_flight: true, ..view }, &limits);
    assert_eq!(plan, Plan::default(), "its blocks may still be written: collect first");
}

#[test]
fn one_that_is_not_ready_is_left_out_and_keeps_its_blocks() {
    let limits = Limits { block_tokens: 2, step_tokens: 8, step_sequences: 4 };
    let waits = Running { tokens: 5, cached: 4, ready: false, limit: 9, blocks: 2 };
    let other = Running { tokens: 3, cached: 2, ready: true, limit: 9, blocks: 1 };
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
    let limits = Limits { block_tokens: 4, step_tokens: 6, step_sequences: 4 };
    let prefill = Running { tokens: 20, cached: 8, ready: true, limit: 24, blocks: 5 };
    let decode = Running { tokens: 6, cached: 5, ready: true, limit: 9, blocks: 2 };
    let plan = schedule(&view(9, &[prefill, decode], &[Waiting { tokens: 3, limit: 4 }]), &limits);
    assert_eq!(plan.admit, 1);
    assert_eq!(plan.rows, [Row { sequence: 0, tokens: 5 }, Row { sequence: 1, tokens: 1 }]);
}

#[test]
fn the_head_of_the_queue_is_not_overtaken() {
    let limits = Limits { block_tokens: 4, step_tokens: 64, step_sequences: 4 };
    let running = [Running { tokens: 5, cached: 4, ready: true, limit: 40, blocks: 2 }];
    let waiting = [Waiting { tokens: 12, limit: 40 }, Waiting { tokens: 1, limit: 2 }];
    let plan = schedule(&view(4, &running, &waiting), &limits);
    assert_eq!(plan.admit, 0, "the head needs 3 blocks and one to grow, and the running one may need one");
    let plan = schedule(&view(5, &running, &waiting), &limits);
    assert_eq!(plan.admit, 1);
    let plan = schedule(&View { free_slots: 0, ..view(99, &running, &waiting) }, &limits);
    assert_eq!(plan.admit, 0, "slots of those that are over count until they are back");
}
