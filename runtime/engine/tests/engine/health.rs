//! Signs of the engine's health: canaries, progress, and the end of an engine whose answers are wrong.

use crate::support::*;
use monomorph_engine::scripted::Tokens;
use monomorph_engine::{EngineError, EngineOptions, Event, Health, Request};
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::{encoding::text::encode, registry::Registry};
use std::time::Duration;

at_both_depths!(
    a_canary_is_answered_and_counted_nowhere,
    a_step_that_does_not_come_back_shows_its_age,
    a_condemned_engine_tells_everybody_why,
    an_answer_that_is_enough_is_counted_as_finished,
    what_requests_waited_for_is_counted_once_each,
);

/// Count and sum of a distribution, as a scrape reads them.
fn read(histogram: &Histogram) -> (u64, f64) {
    let (mut registry, mut text) = (Registry::default(), String::new());
    registry.register("h", "h", histogram.clone());
    encode(&mut text, &registry).unwrap();
    let figure = |name: &str| text.lines().find_map(|line| line.strip_prefix(name)).unwrap().parse().unwrap();
    let (count, sum): (f64, f64) = (figure("h_count "), figure("h_sum "));
    (count as u64, sum)
}

fn a_canary_is_answered_and_counted_nowhere<const STEPS: usize>() {
    let script = monomorph_engine::scripted::Script { blocks: 64, ..Default::default() };
    let options = EngineOptions::new(64, 4096, 1);
    let (engine, controls) = engine::<STEPS>(script, options);
    let request = Request::new(vec![1, 2, 3], 4);
    // It takes no place in a queue that is full.
    controls.hold();
    let running = engine.submit(Request::new(vec![5; 40], 3)).unwrap();
    assert!(controls.wait_for_steps(1, PATIENCE));
    wait_for(&engine, "the admission", |stats| stats.waiting == 0);
    let waiting = engine.submit(Request::new(vec![6; 40], 3)).unwrap();
    assert!(engine.submit(request.clone()).is_err(), "the queue is full");
    let canary = engine.submit_canary(request.clone()).unwrap();
    assert_eq!(engine.stats().waiting, 1);
    controls.release();
    assert_eq!(answer(canary).0, expected(&request, &Tokens::Hash));
    answer(running);
    answer(waiting);
    let stats = wait_for(&engine, "all to go", is_idle);
    assert_eq!((stats.finished, stats.tokens_generated, stats.prompt_tokens), (2, 6, 80));
    assert_eq!(stats.tokens_prefilled, 80);
    assert_eq!(read(&engine.latencies().end_to_end).0, 2);
    drop(engine.submit_canary(Request::new(vec![5; 40], 900)).unwrap());
    assert_eq!(wait_for(&engine, "the canary to go", is_idle).cancelled, 0);
}

fn a_step_that_does_not_come_back_shows_its_age<const STEPS: usize>() {
    let (engine, controls) = with_blocks::<STEPS>(64);
    let request = Request::new(vec![5; 40], 8);
    answer(engine.submit(request.clone()).unwrap());
    wait_for(&engine, "the thread to sleep", |stats| stats.in_turn.is_none());
    controls.hold();
    let held = engine.submit(request.clone()).unwrap();
    let stats = wait_for(&engine, "the step to age", |stats| stats.in_turn > Some(Duration::from_millis(50)));
    assert_eq!(stats.running, 1);
    controls.release();
    // A step that returns after all has changed nothing.
    assert_eq!(answer(held).0, expected(&request, &Tokens::Hash));
    wait_for(&engine, "the thread to sleep", |stats| stats.in_turn.is_none());
    // One that is slow comes back by itself.
    controls.slow_next(Duration::from_millis(400));
    let slow = engine.submit(request.clone()).unwrap();
    wait_for(&engine, "the step to age", |stats| stats.in_turn > Some(Duration::from_millis(50)));
    assert_eq!(answer(slow).0, expected(&request, &Tokens::Hash));
    // One stalled step does not raise the measure of long steps; two do.
    assert!(engine.stats().long_step >= Duration::from_millis(45), "both of the above: {:?}", engine.stats());
    // Many quick steps are no long one: the age begins anew with each.
    controls.set_step_time(Duration::from_millis(2));
    let answered = engine.stats().finished;
    let busy = engine.submit(Request::new(vec![5; 40], 60)).unwrap();
    let (mut ages, mut oldest) = (Vec::new(), Duration::ZERO);
    wait_for(&engine, "the steps", |stats| {
        ages.extend(stats.in_turn);
        stats.finished > answered
    });
    answer(busy);
    let younger = ages.iter().filter(|age| std::mem::replace(&mut oldest, **age) > **age).count();
    assert!(younger > 2, "{ages:?}");
    // Longer than a busy machine may pause.
    let stall = Duration::from_millis(1500);
    controls.slow_next(stall);
    answer(engine.submit(Request::new(vec![5; 40], 60)).unwrap());
    controls.set_step_time(Duration::ZERO);
    answer(engine.submit(request).unwrap());
    let long = engine.stats().long_step;
    assert!((Duration::from_millis(2)..stall).contains(&long), "{long:?}");
}

fn a_condemned_engine_tells_everybody_why<const STEPS: usize>() {
    let (engine, controls) = with_blocks::<STEPS>(8);
    controls.set_step_time(Duration::from_millis(1));
    let clients: Vec<_> = (0..6).map(|_| engine.submit(Request::new(vec![5; 40], 80)).unwrap()).collect();
    assert!(controls.wait_for_steps(3, PATIENCE));
    engine.condemn("they are wrong");
    for client in clients {
        let (_, end) = answer(client);
        assert_eq!(end, Event::Failed(EngineError::Fault("they are wrong".to_owned())));
    }
    engine.wait_stopped();
    assert_eq!(engine.health(), Health::Poisoned("they are wrong".to_owned()));
    assert!(engine.submit(Request::new(vec![5], 1)).is_err());
    let stats = engine.stats();
    assert!(is_idle(&stats) && stats.failed == 6, "{stats:?}");
    // One that sleeps wakes up to it.
    let (idle, _) = with_blocks::<STEPS>(8);
    idle.condemn("too");
    idle.wait_stopped();
    assert_eq!(idle.health(), Health::Poisoned("too".to_owned()));
}

fn an_answer_that_is_enough_is_counted_as_finished<const STEPS: usize>() {
    let (engine, controls) = with_blocks::<STEPS>(64);
    controls.set_step_time(Duration::from_millis(1));
    let mut generation = engine.submit(Request::new(vec![5], 900)).unwrap();
    generation.blocking_recv();
    generation.satisfied();
    let stats = wait_for(&engine, "it to go", is_idle);
    assert_eq!((stats.finished, stats.stopped, stats.cancelled), (1, 1, 0));
}

fn what_requests_waited_for_is_counted_once_each<const STEPS: usize>() {
    // So few blocks that some are pre-empted: they queue and begin once all the same.
    let (engine, _) = with_blocks::<STEPS>(14);
    let requests = requests(40);
    let all: Vec<_> = requests.iter().map(|one| engine.submit(one.clone()).unwrap()).collect();
    let tokens: usize = all.into_iter().map(|one| answer(one).0.len()).sum();
    let stats = wait_for(&engine, "all to go", is_idle);
    assert!(stats.preemptions > 0, "{stats:?}");
    let latencies = engine.latencies();
    for count in [&latencies.queue, &latencies.time_to_first_token, &latencies.prefill, &latencies.decode] {
        assert_eq!(read(count).0, 40);
    }
    assert_eq!(read(&latencies.inter_token).0, tokens as u64 - 40);
    assert_eq!(read(&latencies.generated_tokens).1, tokens as f64);
    assert_eq!(stats.prompt_tokens, requests.iter().map(|one| one.prompt.len() as u64).sum::<u64>());
    assert!(stats.tokens_prefilled > stats.prompt_tokens, "pre-empted prompts are fed again");
    assert!(stats.departures_per_second.is_some_and(|rate| rate > 0.0));
}
