//! Shared by the tests: engines of two depths, requests, and the answers that a script gives.

use monomorph_engine::scripted::{Controls, Pipelined, Script, Scripted, Shape, Small, Tokens};
use monomorph_engine::{EngineError, EngineHandle, EngineOptions, Event, FinishReason, Finished, Generation};
use monomorph_engine::{Health, Request, Stats, start};
use std::time::{Duration, Instant};

pub(crate) const PATIENCE: Duration = Duration::from_secs(20);

/// Each of these tests twice: with one step in flight, and with two.
macro_rules! at_both_depths {
    ($($name:ident),+ $(,)?) => {
        mod one_in_flight {
            $(#[test] fn $name() { super::$name::<1>() })+
        }
        mod two_in_flight {
            $(#[test] fn $name() { super::$name::<2>() })+
        }
    };
}
pub(crate) use at_both_depths;

pub(crate) fn engine<const STEPS: usize>(script: Script, options: EngineOptions) -> (EngineHandle, Controls) {
    let model = Scripted::<Pipelined<Small, STEPS>>::new(script);
    let controls = model.controls();
    (start(model, options).unwrap(), controls)
}

pub(crate) fn with_blocks<const STEPS: usize>(blocks: usize) -> (EngineHandle, Controls) {
    let script = Script { blocks, ..Script::default() };
    engine::<STEPS>(script, EngineOptions::new(blocks, 4096, 256))
}

/// The whole answer and its end.
pub(crate) fn answer(mut generation: Generation) -> (Vec<u32>, Event) {
    let mut ids = Vec::new();
    loop {
        match generation.blocking_recv().expect("the last event is not a token") {
            Event::Token(sampled) => ids.push(sampled.id),
            end => {
                assert_eq!(generation.blocking_recv(), None, "nothing comes after the end");
                return (ids, end);
            }
        }
    }
}

pub(crate) fn finished(event: Event) -> Finished {
    match event {
        Event::Finished(finished) => finished,
        other => panic!("{other:?}"),
    }
}

pub(crate) fn wait_for(engine: &EngineHandle, what: &str, mut holds: impl FnMut(&Stats) -> bool) -> Stats {
    let began = Instant::now();
    loop {
        let stats = engine.stats();
        if holds(&stats) {
            return stats;
        }
        assert!(began.elapsed() < PATIENCE, "waiting for {what}: {stats:?}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

pub(crate) fn is_idle(stats: &Stats) -> bool {
    stats.waiting == 0 && stats.running == 0 && stats.free_blocks == stats.total_blocks
}

/// Requests of all sorts, the same on every run.
pub(crate) fn requests(count: usize) -> Vec<Request> {
    let mut random = 0x9E37_79B9_7F4A_7C15_u64;
    let mut below = move |bound: u64| {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        (random >> 20) % bound
    };
    let one = |_| {
        let prompt = (0..1 + below(90)).map(|_| below(500) as u32 + 3).collect();
        let mut request = Request::new(prompt, 1 + below(60) as usize);
        request.sampling.temperature = below(2) as f32;
        request.sampling.seed = below(1000);
        request.sampling.frequency_penalty = if below(2) == 0 { 0.5 } else { 0.0 };
        request.sampling.top_logprobs = if below(3) == 0 { Some(2) } else { None };
        request
    };
    (0..count).map(one).collect()
}

/// What the script says the answer to a request is, with no engine at all.
pub(crate) fn expected(request: &Request, tokens: &Tokens) -> Vec<u32> {
    let mut context = request.prompt.clone();
    for draw in 0..request.max_tokens as u64 {
        let id = tokens.next(&context, &request.sampling, draw, Small::SPEC);
        context.push(id);
    }
    context.split_off(request.prompt.len())
}

/// All requests at once: each is answered as the script says, to its length, and nothing is left of them. The
/// counts afterwards.
pub(crate) fn crowded_answers(
    engine: &EngineHandle,
    requests: &[Request],
    tokens: &Tokens,
    what: &str,
) -> Stats {
    let running: Vec<_> = requests.iter().map(|request| engine.submit(request.clone()).unwrap()).collect();
    for (request, generation) in requests.iter().zip(running) {
        let (ids, end) = answer(generation);
        assert_eq!(ids, expected(request, tokens), "{what}");
        let end = finished(end);
        assert_eq!((end.reason, end.generated_tokens), (FinishReason::Length, request.max_tokens));
    }
    let stats = engine.stats();
    assert!(is_idle(&stats), "{stats:?}");
    let generated: usize = requests.iter().map(|request| request.max_tokens).sum();
    assert_eq!(stats.tokens_generated, generated as u64, "what lies behind an end counts for nobody");
    stats
}

/// A request with this prompt fails, and so does the engine; the error contains `word`.
pub(crate) fn check_fault(engine: &EngineHandle, prompt: Vec<u32>, what: &str, word: &str) {
    let (_, end) = answer(engine.submit(Request::new(prompt, 50)).unwrap());
    match end {
        Event::Failed(EngineError::Fault(fault)) => assert!(fault.contains(word), "{what}: {fault}"),
        other => panic!("{what}: {other:?}"),
    }
    assert!(matches!(engine.health(), Health::Dead(fault) if fault.contains(word)), "{what}");
}
