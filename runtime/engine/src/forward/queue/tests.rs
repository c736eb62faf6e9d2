//! What the loop tells the scheduler of those that wait and run, seen in whom it admits and whom it
//! pre-empts.
//!
//! Planted, one at a time, and caught here: tokens of answers, or of prompts, that no client pays for;
//! admissions that are not counted for the turn that goes by age; a canary that is not in front; running
//! sequences in the order of their admission; a prompt of which nothing is known to be in the cache; those
//! picked, admitted at the places they had before others left; a priority that is not passed on; equal
//! prompts that do not wait for each other, and unequal ones that do.

use crate::forward::Forward;
use crate::handle::prepare;
use crate::scheduler::{AGE_TURN, QUANTUM, Turns};
use crate::scripted::{Script, Scripted, Shape, Tight};
use crate::{EngineHandle, EngineOptions, Generation, Policy, Request, ScheduleOptions};

/// An engine whose turns are taken by hand.
struct ByHand {
    engine: EngineHandle,
    forward: Forward,
    model: Scripted<Tight>,
}

impl ByHand {
    fn new(blocks: usize, policy: Policy) -> ByHand {
        let schedule = ScheduleOptions { policy, ..ScheduleOptions::default() };
        let options = EngineOptions { schedule, ..EngineOptions::new(blocks, 64, 32) };
        let (engine, forward) = prepare(Tight::SPEC, options).unwrap();
        ByHand { engine, forward, model: Scripted::new(Script { blocks, ..Script::default() }) }
    }

    /// Submits a request of `prompt` tokens, all alike, that goes on for as long as there is room.
    fn ask(&self, prompt: usize, priority: i64, client: u64) -> Generation {
        let request = Request { priority, client, ..Request::new(vec![5; prompt], 60) };
        self.engine.submit(request).unwrap()
    }

    /// The numbers of those that run after the next turn, in any order.
    fn turn(&mut self) -> Vec<u64> {
        self.forward.take_arrivals();
        self.forward.sweep().unwrap();
        self.forward.turn(&mut self.model).unwrap();
        let mut running: Vec<u64> = self.forward.batch.iter().map(|one| one.number).collect();
        running.sort_unstable();
        running
    }

    /// Ends those that run one by one; in which order others come in their place.
    fn replace(&mut self, running: Vec<Generation>) -> Vec<u64> {
        let mut seen = self.turn();
        let mut order = Vec::new();
        for one in running {
            drop(one);
            let now = self.turn();
            order.extend(now.iter().filter(|number| !seen.contains(number)));
            seen = now;
        }
        order
    }
}

#[test]
fn canaries_then_priorities_then_age() {
    for by_age in [false, true] {
        let mut hand = ByHand::new(96, Policy::Fifo);
        let running: Vec<_> = (0..6).map(|_| hand.ask(1, 0, 0)).collect();
        hand.turn();
        hand.forward.queue.turns = Turns::default();
        // The canary leaves that turn to the oldest of the others.
        (1..AGE_TURN).filter(|_| by_age).for_each(|_| hand.forward.queue.turns.took(false));
        let others = [hand.ask(1, 0, 0), hand.ask(1, -1, 0), hand.ask(1, 0, 0), hand.ask(1, 1, 0)];
        let canary = hand.engine.submit_canary(Request { priority: 9, ..Request::new(vec![5], 60) }).unwrap();
        let [a, urgent, b, c] = others.each_ref().map(Generation::id);
        let expected = if by_age { [a, urgent, b, c] } else { [urgent, a, b, c] };
        assert_eq!(hand.replace(running), [&[canary.id()][..], &expected].concat());
    }
}

#[test]
fn the_shortest_counts_what_is_in_the_cache() {
    let mut hand = ByHand::new(96, Policy::Slai);
    let running: Vec<_> = (0..6).map(|_| hand.ask(20, 0, 0)).collect();
    (0..8).for_each(|_| drop(hand.turn()));
    hand.forward.queue.turns = Turns::default();
    // Of the first, which is like those that run, five blocks but the last are there.
    let request = |id, prompt| hand.engine.submit(Request::new(vec![id; prompt], 40)).unwrap();
    let others = [request(5, 20), request(6, 10), request(6, 3)];
    let expected = [others[2].id(), others[0].id(), others[1].id()];
    assert_eq!(hand.replace(running), expected);
}

#[test]
fn what_another_computes_is_waited_for() {
    let mut hand = ByHand::new(96, Policy::Fifo);
    let request = |prompt: &[u32]| hand.engine.submit(Request::new(prompt.to_vec(), 3)).unwrap();
    // Three alike of 40 tokens, two steps' worth, and one that is so for half of them.
    let long = [7; 40];
    let half = [&long[..20], &[8; 20]].concat();
    let asked = [request(&long), request(&long), request(&half), request(&long), request(&[9, 9])];
    let ids = asked.each_ref().map(Generation::id);
    assert_eq!(hand.turn(), [ids[0]], "it fills the step");
    assert_eq!(hand.turn(), [ids[0], ids[2], ids[4]], "nobody waits for those that are held back");
    assert_eq!(hand.turn(), ids);
    while !hand.forward.batch.is_empty() {
        hand.turn();
    }
    let stats = hand.engine.stats();
    // All but the last block of the others is found.
    assert_eq!((stats.tokens_prefilled, stats.finished), (40 + 4 + 4 + 20 + 2, 5), "{stats:?}");
}

#[test]
fn the_client_that_was_served_least_is_next() {
    let mut hand = ByHand::new(96, Policy::Fifo);
    let running: Vec<_> = (0..6).map(|_| hand.ask(3, 0, 1)).collect();
    let others = [hand.ask(1, 0, 1), hand.ask(1, 0, 2), hand.ask(1, 0, 1), hand.ask(1, 0, 2)];
    hand.turn();
    // Six prompts of three tokens, and a token of each answer that counts two.
    assert_eq!(hand.forward.queue.clients.ahead(1), 6 * (3 + 2));
    hand.forward.queue.clients.serve(1, QUANTUM);
    // The eighth that is admitted, six ran before, is the one that has waited longest.
    let expected = [others[1].id(), others[0].id(), others[3].id(), others[2].id()];
    assert_eq!(hand.replace(running)[..4], expected);
}

#[test]
fn the_least_urgent_is_preempted_and_the_oldest_never() {
    // Room for one at its end and a bit.
    let mut hand = ByHand::new(20, Policy::Fifo);
    let oldest = hand.ask(30, 9, 0);
    hand.turn();
    let _others = [hand.ask(4, 1, 0), hand.ask(4, 0, 0)];
    hand.turn();
    // It is the youngest, and admitted last.
    let urgent = hand.ask(4, -1, 0);
    let ids = [oldest.id(), urgent.id()];
    let mut states = Vec::new();
    while states.last().is_none_or(|running: &Vec<u64>| running.contains(&ids[0])) {
        let running = hand.turn();
        if states.last() != Some(&running) {
            states.push(running);
        }
    }
    let [oldest, urgent] = ids;
    assert!(hand.engine.stats().preemptions > 0);
    assert!(states.iter().rev().skip(1).all(|running| running.contains(&oldest)), "{states:?}");
    let first = states.iter().position(|running| running.contains(&urgent)).unwrap();
    let lost = |running: &[u64]| !running.contains(&urgent) && running.len() > 1;
    assert!(!states[first..].iter().rev().skip(1).any(|running| lost(running)), "{states:?}");
    assert!(states[first].len() > 2, "{states:?}");
}
