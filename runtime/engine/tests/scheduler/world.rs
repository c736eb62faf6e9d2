//! The world around the scheduler: requests that come, blocks, slots, steps in flight, and what must hold at every turn.

use monomorph_engine::scheduler::{Limits, Row, Running, View, Waiting, schedule};
use std::collections::VecDeque;

/// A request: the step it arrives at, its prompt and the answer it may get, in tokens.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Request {
    pub(crate) arrives: usize,
    pub(crate) prompt: usize,
    pub(crate) answer: usize,
    /// Tokens of answer after which a stop id ends it.
    pub(crate) stops: usize,
    /// Whether the host must see a token before the next is sampled.
    pub(crate) waits: bool,
}

#[derive(Clone, Copy, Debug)]
struct Sequence {
    number: usize,
    /// As many as there will be when the steps in flight are done.
    tokens: usize,
    cached: usize,
    /// How many tokens are fed as a prompt; `None` for all.
    prompt: Option<usize>,
    drafts: usize,
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
        let Sequence { tokens, cached, drafts, limit, blocks, .. } = *self;
        let prefill = self.prefill();
        Running { tokens, cached, prefill, drafts, ready, limit, blocks, returns: blocks }
    }

    fn prefill(&self) -> usize {
        self.prompt.unwrap_or(self.tokens)
    }

    fn left(&self) -> usize {
        if self.view().ready { self.tokens - self.cached } else { 0 }
    }
}

/// One that waits, of whose tokens nothing is cached.
pub(crate) fn fresh(tokens: usize, limit: usize) -> Waiting {
    Waiting { tokens, cached: 0, shared: 0, prefill: tokens, limit }
}

/// What a run did, to see that the runs exercise what they claim to.
#[derive(Default)]
pub(crate) struct Seen {
    pub(crate) steps: usize,
    pub(crate) preemptions: usize,
    pub(crate) mixed: usize,
    /// Rows of sequences that had ended.
    pub(crate) surplus: usize,
    /// Drafts that held.
    pub(crate) accepted: usize,
    /// Turns in which nothing could be planned before a step was collected.
    pub(crate) waits: usize,
    /// Pieces of the prompts of a batch-invariant model.
    pub(crate) pieces: usize,
}

/// `invariant`: the answers of those that were pre-empted are decoded again.
pub(crate) fn simulate(
    requests: &[Request],
    limits: &Limits,
    invariant: bool,
    total: usize,
    depth: usize,
    seen: &mut Seen,
) {
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
                prompt: invariant.then_some(request.prompt),
                drafts: 0,
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
        let as_waiting = |one: &Sequence| Waiting { prefill: one.prefill(), ..fresh(one.tokens, one.limit) };
        let view_waiting: Vec<Waiting> = waiting.iter().map(as_waiting).collect();
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
                (victim.blocks, victim.cached, victim.drafts) = (0, 0, 0);
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
                let needed = (sequence.tokens + limits.reach).div_ceil(limits.block_tokens);
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
                assert!(tokens <= sequence.left() + sequence.drafts, "fed more than there is: {}", what());
                assert!(tokens > sequence.drafts, "some drafts, or no token with them: {}", what());
                let prefill = sequence.prefill().saturating_sub(sequence.cached);
                assert!(!invariant || tokens <= prefill.max(1), "an answer in a piece: {}", what());
                sequence.cached += tokens - sequence.drafts;
                if invariant && sequence.cached < sequence.prefill() {
                    assert_eq!(sequence.cached % limits.piece_tokens, 0, "cut anywhere: {}", what());
                    seen.pieces += 1;
                }
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
                if limits.drafts > 0 {
                    // As many of the drafts fed hold as the place in the answer says, and none behind its end.
                    let sequence = &mut running[at];
                    let end = requests[number].prompt + requests[number].stops;
                    let held =
                        ((5 * sequence.tokens + number) % (1 + sequence.drafts)).min(end - sequence.tokens);
                    seen.accepted += held;
                    sequence.tokens += held;
                    sequence.cached += held;
                    sequence.drafts = limits.drafts;
                }
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
