//! How answers end: by stop ids and length, when clients leave, in drains and after panics.

use crate::support::*;
use monomorph_engine::scripted::{Script, Tokens};
use monomorph_engine::{EngineError, EngineOptions, Event, FinishReason, Health, Request, SubmitError};
use std::time::{Duration, Instant};

at_both_depths!(
    nothing_is_computed_beyond_a_known_end,
    a_client_that_stops_listening_between_two_tokens_ends_there,
    cancelled_requests_give_everything_back_in_every_phase,
    a_client_that_leaves_the_queue_makes_room_at_once,
    a_storm_of_hangups_leaves_nothing_behind,
    a_panic_fails_every_client_and_hangs_none,
    a_drain_finishes_what_was_accepted,
    a_drain_gives_up_at_its_deadline,
    the_engine_outlives_its_handles_until_it_has_answered,
);

/// Where a sequence ends by count is known ahead, so no step is spent on what comes after; a stop id is not.
fn nothing_is_computed_beyond_a_known_end<const STEPS: usize>() {
    let script = Script { tokens: Tokens::Fixed(vec![7, 8, 9]), blocks: 8, ..Script::default() };
    let (engine, controls) = engine::<STEPS>(script, EngineOptions::new(8, 20, 8));
    let steps = |request: Request| {
        let before = controls.steps();
        answer(engine.submit(request).unwrap());
        wait_for(&engine, "the discarded", is_idle);
        controls.steps() - before
    };
    assert_eq!(steps(Request::new(vec![5; 3], 1)), 1);
    assert_eq!(steps(Request::new(vec![5; 3], 3)), 3);
    let endless = Request { ignore_eos: true, ..Request::new(vec![5; 3], 1000) };
    assert_eq!(steps(endless), 17, "the context is full");
    let discarded = STEPS as u64 - 1;
    assert_eq!(steps(Request::new(vec![5; 3], 9)), 4 + discarded, "ends by the stop id after three tokens");
    let mut penalised = Request::new(vec![5; 3], 9);
    penalised.sampling.presence_penalty = 0.5;
    assert_eq!(steps(penalised), 4 + discarded, "what it is sampled by comes later, and not the step");
    let stats = engine.stats();
    assert_eq!(stats.tokens_generated, 1 + 3 + 17 + 4 + 4, "discarded rows count for nobody");
}

/// A stop string ends the text while later tokens are in flight. Other answers continue.
fn a_client_that_stops_listening_between_two_tokens_ends_there<const STEPS: usize>() {
    let (engine, controls) = with_blocks::<STEPS>(64);
    controls.set_step_time(Duration::from_micros(200));
    let requests = requests(16);
    let mut others: Vec<_> = Vec::new();
    for (number, request) in requests.iter().enumerate() {
        let whole = expected(request, &Tokens::Hash);
        let generation = engine.submit(request.clone()).unwrap();
        if number % 2 == 0 || whole.len() < 3 {
            others.push((whole, generation));
            continue;
        }
        // The string is there when its second token is.
        let ends = [whole[whole.len() / 2 - 1], whole[whole.len() / 2]];
        let mut generation = generation;
        let mut heard = Vec::new();
        while !heard.ends_with(&ends) {
            match generation.blocking_recv() {
                Some(Event::Token(sampled)) => heard.push(sampled.id),
                other => panic!("{other:?}"),
            }
        }
        assert_eq!(heard, whole[..=whole.len() / 2]);
    }
    for (whole, generation) in others {
        assert_eq!(answer(generation).0, whole);
    }
    wait_for(&engine, "all to go", is_idle);
}

fn cancelled_requests_give_everything_back_in_every_phase<const STEPS: usize>() {
    // Decoding.
    let (engine, controls) = with_blocks::<STEPS>(64);
    controls.set_step_time(Duration::from_millis(1));
    let mut decoding = engine.submit(Request::new(vec![5; 20], 900)).unwrap();
    for _ in 0..3 {
        assert!(matches!(decoding.blocking_recv(), Some(Event::Token(_))));
    }
    assert_eq!(engine.stats().running, 1);
    drop(decoding);
    let steps = engine.stats().steps;
    let stats = wait_for(&engine, "the decoding one to go", is_idle);
    assert!(stats.steps <= steps + 1 + STEPS as u64, "within one step of those in flight: {steps} {stats:?}");

    // Prefilling: 1,000 tokens take 16 steps, and the model hangs in the second.
    controls.hold();
    let before = controls.steps();
    let prefilling = engine.submit(Request::new(vec![5; 900], 4)).unwrap();
    assert!(controls.wait_for_steps(before + 1, PATIENCE));
    wait_for(&engine, "the prefill to be in flight", |stats| stats.running == 1);

    // Queued, behind one that takes all the blocks.
    let queued = engine.submit(Request::new(vec![5; 900], 4)).unwrap();
    assert_eq!(engine.stats().waiting, 1);
    let kept = engine.submit(Request::new(vec![6, 7], 3)).unwrap();
    drop(queued);
    drop(prefilling);
    controls.release();
    let (ids, _) = answer(kept);
    assert_eq!(ids, expected(&Request::new(vec![6, 7], 3), &Tokens::Hash));
    let stats = wait_for(&engine, "all to go", is_idle);
    assert_eq!((stats.cancelled, stats.finished), (3, 1));
    assert!(stats.tokens_prefilled < 200, "the prompt of 900 was not worked off: {stats:?}");

    // Cancelled instead of dropped: the end is reported.
    controls.hold();
    let told = engine.submit(Request::new(vec![5], 900)).unwrap();
    told.cancel();
    controls.release();
    assert_eq!(finished(answer(told).1).reason, FinishReason::Cancelled);
    if STEPS == 1 {
        assert!(is_idle(&engine.stats()), "who hears of the end sees the blocks returned");
    }
    wait_for(&engine, "what the steps in flight hold", is_idle);
}

/// Planted once: a sweep of the running only. The one that left was counted as waiting until the running one
/// was done.
fn a_client_that_leaves_the_queue_makes_room_at_once<const STEPS: usize>() {
    let (engine, controls) = with_blocks::<STEPS>(16);
    controls.set_step_time(Duration::from_millis(3));
    let request = Request::new(vec![5; 150], 100);
    let running = engine.submit(request.clone()).unwrap();
    wait_for(&engine, "it to run", |stats| stats.running == 1);
    let queued = engine.submit(request.clone()).unwrap();
    assert_eq!(engine.stats().waiting, 1);
    let steps = controls.steps();
    drop(queued);
    let stats = wait_for(&engine, "the queue to empty", |stats| stats.waiting == 0);
    assert!(controls.steps() <= steps + 2 + STEPS as u64, "within one step of those in flight");
    assert_eq!((stats.running, stats.cancelled), (1, 1));
    assert_eq!(answer(running).0, expected(&request, &Tokens::Hash));
}

fn a_storm_of_hangups_leaves_nothing_behind<const STEPS: usize>() {
    let (engine, controls) = with_blocks::<STEPS>(20);
    controls.set_step_time(Duration::from_micros(50));
    for (number, request) in requests(300).into_iter().enumerate() {
        let mut generation = loop {
            match engine.submit(request.clone()) {
                Ok(generation) => break generation,
                Err(SubmitError::QueueFull { .. }) => std::thread::sleep(Duration::from_micros(200)),
                Err(other) => panic!("{other}"),
            }
        };
        match number % 4 {
            0 => drop(generation),
            1 => drop(generation.blocking_recv()),
            2 => generation.cancel(),
            _ => {
                std::thread::sleep(Duration::from_micros(number as u64));
            }
        }
    }
    let stats = wait_for(&engine, "the storm to pass", is_idle);
    assert_eq!(stats.finished + stats.cancelled, 300, "{stats:?}");
    let request = Request::new(vec![9; 30], 12);
    assert_eq!(answer(engine.submit(request.clone()).unwrap()).0, expected(&request, &Tokens::Hash));
}

fn a_panic_fails_every_client_and_hangs_none<const STEPS: usize>() {
    for wrong_output in [false, true] {
        let (engine, controls) = with_blocks::<STEPS>(8);
        controls.hold();
        // More than eight blocks hold: some run, some wait, and the last may still be in the channel.
        let clients: Vec<_> =
            (0..12).map(|_| engine.submit(Request::new(vec![5; 40], 20)).unwrap()).collect();
        assert!(controls.wait_for_steps(1, PATIENCE));
        let late = engine.submit(Request::new(vec![5], 20)).unwrap();
        let said = if wrong_output {
            controls.wrong_output_next();
            "the model answered a step of"
        } else {
            controls.panic_next();
            "commanded to panic"
        };
        controls.release();
        for client in clients.into_iter().chain([late]) {
            match answer(client) {
                (ids, Event::Failed(EngineError::Fault(message))) => {
                    assert!(message.contains(said), "{message}");
                    assert!(ids.is_empty());
                }
                other => panic!("{other:?}"),
            }
        }
        engine.wait_stopped();
        assert!(matches!(engine.health(), Health::Dead(message) if message.contains(said)));
        assert_eq!(engine.submit(Request::new(vec![5], 1)).unwrap_err(), SubmitError::Stopped);
        assert!(is_idle(&engine.stats()), "{:?}", engine.stats());
    }
}

fn a_drain_finishes_what_was_accepted<const STEPS: usize>() {
    let (engine, controls) = with_blocks::<STEPS>(14);
    controls.set_step_time(Duration::from_millis(1));
    let requests = requests(12);
    let accepted: Vec<_> = requests.iter().map(|one| engine.submit(one.clone()).unwrap()).collect();
    engine.drain(PATIENCE);
    assert_eq!(engine.health(), Health::Draining);
    assert_eq!(engine.submit(Request::new(vec![5], 1)).unwrap_err(), SubmitError::Draining);
    for (request, generation) in requests.iter().zip(accepted) {
        assert_eq!(answer(generation).0, expected(request, &Tokens::Hash));
    }
    engine.wait_stopped();
    assert_eq!(engine.health(), Health::Stopped);
    assert_eq!(engine.submit(Request::new(vec![5], 1)).unwrap_err(), SubmitError::Stopped);
}

fn a_drain_gives_up_at_its_deadline<const STEPS: usize>() {
    let (engine, controls) = with_blocks::<STEPS>(64);
    controls.set_step_time(Duration::from_millis(5));
    let endless = engine.submit(Request::new(vec![5], 900)).unwrap();
    let began = Instant::now();
    engine.drain(PATIENCE);
    engine.drain(Duration::from_millis(30));
    let (ids, end) = answer(endless);
    assert_eq!(end, Event::Failed(EngineError::DrainDeadline));
    assert!(ids.len() < 900 && began.elapsed() < PATIENCE, "the earlier deadline counts");
    engine.wait_stopped();
    assert!(is_idle(&engine.stats()));
}

fn the_engine_outlives_its_handles_until_it_has_answered<const STEPS: usize>() {
    let (engine, controls) = with_blocks::<STEPS>(64);
    controls.set_step_time(Duration::from_millis(1));
    let request = Request::new(vec![5, 6], 30);
    let generation = engine.submit(request.clone()).unwrap();
    drop(engine);
    assert_eq!(answer(generation).0, expected(&request, &Tokens::Hash));
}
