//! The world around the scheduler: requests that come, blocks, slots, steps in flight, and what must hold at
//! every turn.

use crate::truth;
use monomorph_engine::scheduler::{
    Candidate, Clients, GENERATED, Pace, Policy, Row, Running, SchedulerLimits, Turns, View, Waiting,
    WholeSpans, pick, rank, schedule,
};
use std::collections::VecDeque;

/// A request: the turn it arrives at, its prompt and the answer it may get, in tokens.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Request {
    pub(crate) arrives: usize,
    pub(crate) prompt: usize,
    pub(crate) answer: usize,
    /// Tokens of answer after which a stop id ends it.
    pub(crate) stops: usize,
    /// Whether the host must see a token before the next is sampled.
    pub(crate) waits: bool,
    pub(crate) priority: i64,
    pub(crate) client: u64,
}

/// What does not change in a world.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rules {
    pub(crate) limits: SchedulerLimits,
    /// Whether pre-empted sequences decode their answers again.
    pub(crate) invariant: bool,
    /// Number of blocks.
    pub(crate) total: usize,
    /// Steps in flight.
    pub(crate) depth: usize,
    pub(crate) policy: Policy,
    /// Whether all requests have one priority and one client, and none overtakes another.
    pub(crate) alike: bool,
    /// Most tokens of a request, its answer included.
    pub(crate) context: usize,
    /// Microseconds that a step takes, and that each token of a prompt adds.
    pub(crate) time: (u64, u64),
    /// Microseconds from one token of an answer to the next.
    pub(crate) tbt: u64,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Sequence {
    pub(crate) number: usize,
    pub(crate) request: Request,
    /// Tokens when the steps in flight are done.
    tokens: usize,
    cached: usize,
    /// How many tokens are fed as a prompt; `None` for all.
    prompt: Option<usize>,
    drafts: usize,
    limit: usize,
    blocks: usize,
    /// Tokens that steps in flight sample.
    coming: usize,
    /// The last step that feeds it.
    last: usize,
    /// Whether it was admitted before.
    again: bool,
    /// When its last token came.
    heard: Option<u64>,
    /// By which step it has to be answered.
    pub(crate) bound: usize,
}

impl Sequence {
    fn view(&self, now: u64, tbt: u64) -> Running {
        let ready = self.is_ready();
        let Sequence { tokens, cached, drafts, limit, blocks, .. } = *self;
        let since = if self.coming > 0 { Some(0) } else { self.heard.map(|heard| now - heard) };
        let slack = since.map(|since| tbt.saturating_sub(since));
        let (prefill, priority) = (self.prefill(), self.request.priority);
        let (returns, scored) = (blocks, false);
        let whole = WholeSpans::default();
        Running {
            tokens,
            cached,
            prefill,
            drafts,
            ready,
            limit,
            blocks,
            returns,
            scored,
            priority,
            slack,
            whole,
        }
    }

    fn prefill(&self) -> usize {
        self.prompt.unwrap_or(self.tokens)
    }

    fn is_ready(&self) -> bool {
        self.coming == 0 || (!self.request.waits && self.tokens < self.limit)
    }

    fn left(&self) -> usize {
        if self.is_ready() { self.tokens - self.cached } else { 0 }
    }

    pub(crate) fn key(&self) -> (i64, u64) {
        (self.request.priority, self.number as u64)
    }

    pub(crate) fn candidate(&self, ahead: u64) -> Candidate {
        let Request { priority, client, .. } = self.request;
        let (prompt, paid) = (self.tokens, self.again);
        Candidate { front: false, priority, client, ahead, prompt, paid, taken: false }
    }
}

/// One that waits, of whose tokens nothing is cached.
pub(crate) fn fresh(tokens: usize, limit: usize) -> Waiting {
    Waiting {
        tokens,
        cached: 0,
        shared: 0,
        prefill: tokens,
        drafts: 0,
        limit,
        scored: false,
        priority: 0,
        ready: true,
        whole: WholeSpans::default(),
    }
}

/// What a run did, to see that the runs exercise what they claim to.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Seen {
    pub(crate) steps: usize,
    pub(crate) preemptions: usize,
    pub(crate) mixed: usize,
    /// Rows of sequences that had ended.
    pub(crate) discarded: usize,
    /// Accepted drafts.
    pub(crate) accepted: usize,
    /// Turns in which nothing could be planned before a step was collected.
    pub(crate) waits: usize,
    /// Prefill chunks of a batch-invariant model.
    pub(crate) chunks: usize,
    /// Steps whose prefill was cut for a deadline.
    pub(crate) cuts: usize,
    /// Tokens that came late.
    pub(crate) late: usize,
    /// Admissions that overtook an older request.
    pub(crate) overtaken: usize,
}

/// Identifies the world in failures; worlds are the same on every run.
#[derive(Clone, Copy, Debug)]
struct What {
    step: usize,
    rules: Rules,
}

impl std::fmt::Display for What {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "step {} of {:?}", self.step, self.rules)
    }
}

/// A world that requests come to.
pub(crate) struct World {
    pub(crate) rules: Rules,
    pub(crate) seen: Seen,
    free: usize,
    running: Vec<Sequence>,
    /// By number.
    waiting: Vec<Sequence>,
    /// Steps in flight: the numbers of those that sample in them, and how long each takes with how many
    /// tokens of prompts.
    flights: VecDeque<(Vec<usize>, usize)>,
    /// Blocks of the ended: how many, and until which step is collected.
    leaving: Vec<(usize, usize)>,
    pub(crate) submitted: usize,
    collected: usize,
    arrived: usize,
    turns: Turns,
    pub(crate) clients: Clients,
    truth: truth::Counters,
    pace: Pace,
    now: u64,
    /// The step by which earlier requests are answered where none overtakes.
    fifo: usize,
    /// Tokens fed by client, those sampled counted as the scheduler counts them.
    pub(crate) service: Vec<u64>,
}

impl World {
    pub(crate) fn new(rules: Rules) -> World {
        World {
            rules,
            seen: Seen::default(),
            free: rules.total,
            running: Vec::new(),
            waiting: Vec::new(),
            flights: VecDeque::new(),
            leaving: Vec::new(),
            submitted: 0,
            collected: 0,
            arrived: 0,
            turns: Turns::default(),
            clients: Clients::default(),
            truth: truth::Counters::default(),
            pace: Pace::default(),
            now: 0,
            fifo: 0,
            service: vec![0; 8],
        }
    }

    /// The prefix of a failure's message; worlds are the same on every run.
    fn what(&self) -> What {
        What { step: self.submitted, rules: self.rules }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.running.is_empty() && self.waiting.is_empty() && self.flights.is_empty()
    }

    pub(crate) fn waiting(&self) -> usize {
        self.waiting.len()
    }

    pub(crate) fn waits(&self, number: usize) -> bool {
        self.waiting.iter().any(|one| one.number == number)
    }

    pub(crate) fn holds(&self, number: usize) -> bool {
        self.running.iter().chain(&self.waiting).any(|one| one.number == number)
    }

    /// Takes a request; its number.
    pub(crate) fn arrive(&mut self, request: Request) -> usize {
        let Rules { limits, depth, context, alike, .. } = self.rules;
        let Request { prompt, answer, .. } = request;
        assert!(prompt + answer <= context);
        let older = self.waiting.len() + self.running.len() + self.leaving.len();
        self.fifo = self.fifo.max(self.submitted) + (prompt + answer) * depth;
        let bound = self.submitted + truth::bound(older, limits.running(), context) * depth;
        self.waiting.push(Sequence {
            number: self.arrived,
            request,
            tokens: prompt,
            cached: 0,
            prompt: self.rules.invariant.then_some(prompt),
            drafts: 0,
            limit: prompt + answer,
            blocks: 0,
            coming: 0,
            last: 0,
            again: false,
            heard: None,
            bound: if alike { bound.min(self.fifo) } else { bound },
        });
        self.arrived += 1;
        self.arrived - 1
    }

    /// Plans and submits a step, and collects one if no further one may be or can be in flight.
    pub(crate) fn turn(&mut self) {
        let planned = self.plan();
        if !planned || self.flights.len() == self.rules.depth {
            self.collect();
        }
        for one in self.running.iter().chain(&self.waiting) {
            let late = self.submitted >= one.bound + self.rules.depth;
            assert!(!late, "{} is to be answered by step {}: {}", one.number, one.bound, self.what());
        }
        let held: usize =
            self.running.iter().map(|one| one.blocks).chain(self.leaving.iter().map(|one| one.0)).sum();
        assert_eq!(self.free + held, self.rules.total, "blocks leaked: {}", self.what());
    }

    fn plan(&mut self) -> bool {
        let Rules { limits, policy, tbt, .. } = self.rules;
        rank(&mut self.running, Sequence::key);
        truth::check_rank(&self.running);
        self.clients.settle(self.waiting.iter().map(|one| one.request.client));
        let clients = &self.clients;
        let mut candidates: Vec<Candidate> =
            self.waiting.iter().map(|one| one.candidate(clients.ahead(one.request.client))).collect();
        self.truth.check(&candidates);
        let free_slots = limits.running() - self.running.len() - self.leaving.len();
        let mut turns = self.turns;
        let mut picked = Vec::new();
        while picked.len() < free_slots
            && let Some(next) = pick(&mut candidates, policy, &mut turns)
        {
            picked.push(next);
        }
        let running: Vec<Running> = self.running.iter().map(|one| one.view(self.now, tbt)).collect();
        let as_waiting = |one: &Sequence| Waiting {
            prefill: one.prefill(),
            priority: one.request.priority,
            ..fresh(one.tokens, one.limit)
        };
        let waiting: Vec<Waiting> = picked.iter().map(|at| as_waiting(&self.waiting[*at])).collect();
        let view = View {
            free_blocks: self.free,
            free_slots,
            in_flight: !self.flights.is_empty(),
            running: &running,
            waiting: &waiting,
            whole: &[],
            policy,
            pace: self.pace,
        };
        let plan = schedule(&view, &limits);
        if plan.rows.is_empty() {
            assert!(view.in_flight, "no step: {}", self.what());
            assert_eq!((plan.preempt, plan.admit), (0, 0), "{}", self.what());
            self.seen.waits += 1;
            return false;
        }
        self.submitted += 1;
        self.seen.steps += 1;
        self.seen.preemptions += plan.preempt;
        self.seen.cuts += usize::from(plan.cut);
        assert!(
            plan.preempt == 0 || self.flights.is_empty(),
            "blocks in flight change hands: {}",
            self.what()
        );
        assert!(plan.preempt < running.len().max(1), "the first is pre-empted: {}", self.what());
        for _ in 0..plan.preempt {
            let mut victim = self.running.pop().expect("there are as many");
            self.free += victim.blocks;
            (victim.blocks, victim.cached, victim.drafts) = (0, 0, 0);
            let at = self.waiting.partition_point(|one| one.number < victim.number);
            self.waiting.insert(at, victim);
        }
        assert!(plan.preempt == 0 || plan.admit == 0, "admitted what was taken from others: {}", self.what());
        self.admit(&picked[..plan.admit]);
        self.feed(&plan.rows);
        true
    }

    fn admit(&mut self, picked: &[usize]) {
        let numbers: Vec<usize> = picked.iter().map(|at| self.waiting[*at].number).collect();
        for number in numbers {
            let at = self.waiting.iter().position(|one| one.number == number).expect("it waits");
            self.truth.check_turn(&self.waiting, at, self.rules.policy);
            self.seen.overtaken += usize::from(at > 0);
            let mut sequence = self.waiting.remove(at);
            self.turns.took(false);
            if !sequence.again {
                self.clients.serve(sequence.request.client, sequence.tokens as u64);
                self.truth.serve(sequence.request.client, sequence.tokens as u64);
                *self.served(sequence.request.client) += sequence.tokens as u64;
            }
            sequence.again = true;
            self.running.push(sequence);
        }
        assert!(
            self.running.len() + self.leaving.len() <= self.rules.limits.step_sequences,
            "{}",
            self.what()
        );
    }

    fn feed(&mut self, rows: &[Row]) {
        let Rules { limits, invariant, .. } = self.rules;
        let what = self.what();
        for sequence in self.running.iter_mut().filter(|one| one.left() > 0) {
            let needed = (sequence.tokens + limits.reach).div_ceil(limits.block_tokens);
            let more = needed.saturating_sub(sequence.blocks);
            assert!(more <= self.free, "planned with more blocks than there are: {what}");
            self.free -= more;
            sequence.blocks += more;
        }
        let running = &mut self.running;
        let fed: usize = rows.iter().map(|row| row.tokens).sum();
        assert!(fed <= limits.step_tokens, "over budget: {what}");
        assert!(rows.windows(2).all(|pair| pair[0].sequence < pair[1].sequence), "{what}");
        let first = running.iter().position(|one| one.left() > 0);
        assert_eq!(rows.first().map(|row| row.sequence), first, "the first is not fed: {what}");
        let decoding = running.iter().filter(|one| one.left() == 1).count();
        let single = rows.iter().filter(|row| running[row.sequence].left() == 1);
        assert_eq!(single.count(), decoding, "a decoding sequence was left out: {what}");
        self.seen.mixed += usize::from(decoding > 0 && fed > decoding);
        let (mut samples, mut prompts) = (Vec::new(), 0);
        for &Row { sequence, tokens } in rows {
            let sequence = &mut running[sequence];
            assert!(tokens >= 1, "an empty row: {what}");
            assert!(tokens <= sequence.left() + sequence.drafts, "fed more than there is: {what}");
            assert!(tokens > sequence.drafts, "some drafts, or no token with them: {what}");
            let prefill = sequence.prefill().saturating_sub(sequence.cached);
            assert!(!invariant || tokens <= prefill.max(1), "an answer in a chunk: {what}");
            prompts += if sequence.left() > 1 && prefill > 0 { tokens } else { 0 };
            sequence.cached += tokens - sequence.drafts;
            if invariant && sequence.cached < sequence.prefill() {
                assert_eq!(sequence.cached % limits.chunk_tokens, 0, "cut anywhere: {what}");
                self.seen.chunks += 1;
            }
            sequence.last = self.submitted;
            if sequence.cached == sequence.tokens {
                assert!(sequence.tokens < sequence.limit, "a token beyond the last: {what}");
                sequence.tokens += 1;
                sequence.coming += 1;
                samples.push(sequence.number);
            }
        }
        assert!(prompts <= limits.prefill_tokens, "{prompts} tokens of prompts: {what}");
        self.flights.push_back((samples, prompts));
    }

    fn served(&mut self, client: u64) -> &mut u64 {
        let client = client as usize % self.service.len();
        &mut self.service[client]
    }

    fn collect(&mut self) {
        let what = self.what();
        let (samples, prompts) =
            self.flights.pop_front().unwrap_or_else(|| panic!("nothing in flight: {what}"));
        self.collected += 1;
        let collected = self.collected;
        let (step, token) = self.rules.time;
        // Steps never take the same time twice.
        let took = (step + token * prompts as u64) * (95 + 7 * collected as u64 % 11) / 100;
        self.now += took;
        self.pace.observe(prompts, took);
        self.leaving.retain(|&(blocks, last)| {
            self.free += if last <= collected { blocks } else { 0 };
            last > collected
        });
        for number in samples {
            let Some(at) = self.running.iter().position(|one| one.number == number) else {
                self.seen.discarded += 1;
                continue;
            };
            self.sampled(at);
        }
    }

    /// One or more tokens come for one that runs.
    fn sampled(&mut self, at: usize) {
        let sequence = &mut self.running[at];
        let request = sequence.request;
        let before = sequence.heard.replace(self.now);
        self.seen.late += usize::from(before.is_some_and(|before| self.now - before > self.rules.tbt));
        sequence.coming -= 1;
        let mut taken = 1;
        if self.rules.limits.drafts > 0 {
            // The position in the answer decides how many drafts are accepted; none are behind its end.
            let end = request.prompt + request.stops;
            let place = 5 * sequence.tokens + sequence.number;
            let held = (place % (1 + sequence.drafts)).min(end - sequence.tokens);
            self.seen.accepted += held;
            sequence.tokens += held;
            sequence.cached += held;
            sequence.drafts = self.rules.limits.drafts;
            taken += held;
        }
        let Sequence { number, tokens, coming, blocks, last, bound, .. } = *sequence;
        self.clients.serve(request.client, GENERATED * taken as u64);
        self.truth.serve(request.client, GENERATED * taken as u64);
        *self.served(request.client) += GENERATED * taken as u64;
        if tokens - coming - request.prompt == request.stops {
            assert!(self.submitted < bound + self.rules.depth, "{number}, by {bound}: {}", self.what());
            self.running.remove(at);
            if last <= self.collected {
                self.free += blocks;
            } else {
                self.leaving.push((blocks, last));
            }
        }
    }
}

/// Runs a world until all of `requests`, which stand in the order of their arrival, are answered.
pub(crate) fn simulate(requests: &[Request], rules: Rules, seen: &mut Seen) {
    let [first, others @ ..] = requests else { return };
    let alike = others.iter().all(|one| (one.priority, one.client) == (first.priority, first.client));
    let mut world = World::new(Rules { alike: alike && rules.policy == Policy::Fifo, ..rules });
    world.seen = *seen;
    let mut requests = requests.iter().peekable();
    let mut turn = 0;
    while requests.peek().is_some() || !world.is_empty() {
        while let Some(request) = requests.next_if(|one| one.arrives <= turn) {
            world.arrive(*request);
        }
        turn += 1;
        assert!(turn < 100_000, "no end: {}", world.what());
        if !world.is_empty() {
            world.turn();
        }
    }
    *seen = world.seen;
}
