//! Random walks of the loop itself, turn by turn on one thread: requests come, are cancelled or forgotten and
//! end by stop id or length between any two turns, at every depth of the pipeline and with every number of drafts.

use super::Forward;
use crate::handle::prepare;
use crate::scripted::{Drafting, InFlight, Invariant, Script, Scripted, Shape, Tight, Tokens};
use crate::{EngineOptions, Event, FinishReason, Generation, Request, Stats, SubmitError};
use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

/// The model's stop id turns up about once in this many tokens.
const KINDS: u64 = 24;

/// xorshift64 (Marsaglia 2003): the walk is the same on every run.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 24) % bound
    }
}

/// Tokens that follow from the context alone, a stop id now and then.
fn tokens() -> Tokens {
    Tokens::Function(Arc::new(|context, draw| {
        let hash = context.iter().fold(draw, |hash, &id| {
            (hash ^ u64::from(id)).wrapping_mul(0x9E37_79B9_7F4A_7C15).rotate_left(29)
        });
        (hash % KINDS) as u32
    }))
}

/// What a request is answered with nobody beside it and without drafts, in a context of `most` tokens, and how it ends.
fn lone(request: &Request, most: usize) -> (Vec<u32>, FinishReason) {
    let (tokens, spec) = (tokens(), Tight::SPEC);
    let mut context = request.prompt.clone();
    let most = request.max_tokens.min(most - request.prompt.len());
    for draw in 0..most as u64 {
        let id = tokens.next(&context, &request.sampling, draw, spec);
        if request.stop_ids.contains(&id) || (!request.ignore_eos && spec.protocol.stop_ids.contains(&id)) {
            return (context.split_off(request.prompt.len()), FinishReason::Stop { id });
        }
        context.push(id);
    }
    (context.split_off(request.prompt.len()), FinishReason::Length)
}

/// A client that counts what it hears against what it should.
struct Client {
    generation: Generation,
    answer: Vec<u32>,
    reason: FinishReason,
    heard: usize,
    cancelled: bool,
}

impl Client {
    /// Hears what has been said; true when that was all.
    fn listen(&mut self) -> bool {
        while let Some(event) = self.generation.try_recv() {
            match event {
                Event::Token(sampled) => {
                    assert_eq!(self.answer.get(self.heard), Some(&sampled.id), "token {}", self.heard);
                    self.heard += 1;
                }
                Event::Finished(end) if self.cancelled && end.reason == FinishReason::Cancelled => {
                    return true;
                }
                Event::Finished(end) => {
                    assert_eq!((end.reason, self.heard), (self.reason, self.answer.len()));
                    return true;
                }
                Event::Failed(error) => panic!("{error}"),
            }
        }
        false
    }
}

fn request(random: &mut Random, most: usize) -> Request {
    // Mostly short, so that many run at once; sometimes as long as there is room.
    let bound = if random.below(6) == 0 { most as u64 - 1 } else { 12 };
    let prompt = (0..1 + random.below(bound)).map(|_| random.below(KINDS) as u32).collect();
    let mut request = Request::new(prompt, 1 + random.below(30) as usize);
    request.ignore_eos = random.below(3) == 0;
    request.sampling.presence_penalty = if random.below(4) == 0 { 0.5 } else { 0.0 };
    request
}

/// No block and no slot is held twice, and none is lost.
fn balance(forward: &Forward, blocks: usize) {
    let running = forward.running.iter().map(|one| (one.table.blocks(), one.slot));
    let held: Vec<_> = running.chain(forward.flights.leaving()).collect();
    let uses = held.iter().map(|(blocks, _)| blocks.len()).sum::<usize>();
    let distinct: HashSet<_> = held.iter().flat_map(|(blocks, _)| blocks.iter()).collect();
    assert_eq!(uses, distinct.len(), "a block is held twice");
    assert_eq!(uses + forward.pool.free(), blocks);
    let slots: HashSet<_> =
        held.iter().filter_map(|(_, slot)| *slot).chain(forward.free_slots.clone()).collect();
    assert_eq!(slots.len(), forward.limits.running());
    assert_eq!(held.len() + forward.free_slots.len(), slots.len(), "a slot is held twice");
}

/// One walk; the counters at its end, and how often a sequence that was over held blocks.
fn walk<S: Shape>(seed: u64, turns: usize, blocks: usize, right_drafts: f64) -> (Stats, usize) {
    let options = EngineOptions { blocks, context: Tight::SPEC.context, max_waiting: 12 };
    let (engine, mut forward) = prepare(S::SPEC, options).unwrap();
    let script = Script { tokens: tokens(), blocks, right_drafts, ..Script::default() };
    let mut model = Scripted::<S>::new(script);
    let mut random = Random(seed);
    let mut clients: Vec<Client> = Vec::new();
    let mut left = 0;
    let mut turn = 0;
    while turn < turns || forward.has_work() || engine.stats().waiting > 0 {
        // Bursts and lulls, so that the engine runs full and runs dry.
        if turn < turns && random.below(if turn / 200 % 2 == 0 { 2 } else { 9 }) == 0 {
            let request = request(&mut random, engine.context());
            let (answer, reason) = lone(&request, engine.context());
            match engine.submit(request) {
                Ok(generation) => {
                    clients.push(Client { generation, answer, reason, heard: 0, cancelled: false });
                }
                Err(SubmitError::QueueFull { .. }) => {}
                Err(other) => panic!("{other}"),
            }
        }
        if !clients.is_empty() && random.below(8) == 0 {
            let at = random.below(clients.len() as u64) as usize;
            if random.below(2) == 0 {
                drop(clients.swap_remove(at));
            } else {
                clients[at].generation.cancel();
                clients[at].cancelled = true;
            }
        }
        forward.take_arrivals();
        forward.sweep().unwrap();
        if forward.has_work() {
            forward.turn(&mut model).unwrap();
        }
        balance(&forward, blocks);
        assert!(forward.flights.len() < S::STEPS_IN_FLIGHT, "a turn leaves room for the next step");
        left += usize::from(forward.flights.leaving().next().is_some());
        clients.retain_mut(|client| !client.listen());
        turn += 1;
        assert!(turn < 4 * turns, "the walk does not end");
    }
    assert!(clients.is_empty(), "{} clients were not told the end", clients.len());
    assert_eq!((forward.pool.free(), forward.free_slots.len()), (blocks, forward.limits.running()));
    engine.drain(Duration::ZERO);
    assert!(!forward.wait_for_work().unwrap());
    (engine.stats(), left)
}

/// Walks in pools from just enough for one to enough for all.
fn walks<S: Shape>() {
    let (mut stats, mut left) = (Stats::default(), 0);
    let worlds = [(16, 0.5), (17, 0.9), (20, 0.1), (26, 0.9), (40, 0.1), (96, 0.5)];
    for (seed, (blocks, right_drafts)) in (1..).zip(worlds) {
        let (one, leaving) = walk::<S>(seed * 0x9E37_79B9, 6_000, blocks, right_drafts);
        stats.steps += one.steps;
        stats.preemptions += one.preemptions;
        stats.finished += one.finished;
        stats.cancelled += one.cancelled;
        stats.tokens_generated += one.tokens_generated;
        stats.drafts_verified += one.drafts_verified;
        stats.drafts_accepted += one.drafts_accepted;
        left += leaving;
    }
    let (steps, drafts) = (S::STEPS_IN_FLIGHT, S::SPEC.drafts());
    println!("{steps} in flight, {drafts} drafts: {left} turns with blocks of ended sequences; {stats:?}");
    assert!(stats.preemptions > 100 && stats.finished > 1_000 && stats.cancelled > 500, "{stats:?}");
    assert_eq!(left > 100, steps > 1, "only a step in flight keeps blocks of sequences that are over");
    if drafts > 0 {
        let (verified, accepted) = (stats.drafts_verified, stats.drafts_accepted);
        assert!(verified > stats.tokens_generated / 4, "drafts are fed: {stats:?}");
        assert!(verified / 8 < accepted && accepted < verified * 7 / 8, "some hold, some do not: {stats:?}");
    }
}

#[test]
fn every_answer_is_its_lone_one_with_one_step_in_flight() {
    walks::<Tight>();
}

#[test]
fn every_answer_is_its_lone_one_with_two_steps_in_flight() {
    walks::<InFlight<Tight, 2>>();
}

#[test]
fn every_answer_is_its_lone_one_with_three_steps_in_flight() {
    walks::<InFlight<Tight, 3>>();
}

#[test]
fn every_answer_is_its_lone_one_where_answers_are_decoded_again() {
    walks::<InFlight<Invariant<Tight, 8>, 2>>();
}

#[test]
fn every_answer_is_its_lone_plain_one_with_one_draft() {
    walks::<Drafting<Tight, 1>>();
}

#[test]
fn every_answer_is_its_lone_plain_one_with_two_drafts() {
    walks::<Drafting<Tight, 2>>();
}

#[test]
fn every_answer_is_its_lone_plain_one_with_three_drafts() {
    walks::<Drafting<Tight, 3>>();
}
