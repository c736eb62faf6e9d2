//! Answers to requests, and refusals.

use crate::support::*;
use monomorph_engine::scripted::{Script, Scripted, Shape, Small, Tokens};
use monomorph_engine::{EngineOptions, Event, FinishReason, Health, Request, Stats, SubmitError, start};
use monomorph_model::Model;
use monomorph_sampling::Sampling;
use std::sync::Arc;
use std::time::{Duration, Instant};

at_both_depths!(
    crowded_answers_equal_lone_ones,
    requests_of_equal_length_end_in_the_order_they_came,
    answers_end_by_stop_id_length_and_context,
    what_cannot_be_answered_is_refused,
    events_arrive_in_async_code,
);

fn crowded_answers_equal_lone_ones<const STEPS: usize>() {
    let requests = requests(64);
    for (blocks, crowded) in [(256, false), (14, true)] {
        let (engine, _) = with_blocks::<STEPS>(blocks);
        let running: Vec<_> =
            requests.iter().map(|request| engine.submit(request.clone()).unwrap()).collect();
        for (request, generation) in requests.iter().zip(running) {
            let (ids, end) = answer(generation);
            assert_eq!(ids, expected(request, &Tokens::Hash));
            let end = finished(end);
            assert_eq!(end.reason, FinishReason::Length);
            assert_eq!(end.prompt_tokens, request.prompt.len());
            assert_eq!(end.generated_tokens, request.max_tokens);
        }
        let stats = engine.stats();
        assert!(is_idle(&stats), "{stats:?}");
        assert_eq!(stats.preemptions > 0, crowded, "{stats:?}");
        assert_eq!((stats.finished, stats.cancelled), (64, 0));
        let generated: usize = requests.iter().map(|request| request.max_tokens).sum();
        assert_eq!(stats.tokens_generated, generated as u64, "nothing is sampled twice");
        let prompts: usize = requests.iter().map(|request| request.prompt.len()).sum();
        assert_eq!(stats.tokens_prefilled > prompts as u64, crowded, "{stats:?}");
        if !crowded {
            for request in &requests[..8] {
                let (ids, _) = answer(engine.submit(request.clone()).unwrap());
                assert_eq!(ids, expected(request, &Tokens::Hash), "alone");
            }
        }
    }
}

fn requests_of_equal_length_end_in_the_order_they_came<const STEPS: usize>() {
    let (engine, controls) = with_blocks::<STEPS>(10);
    controls.set_step_time(Duration::from_millis(1));
    let ask = |number: u32| {
        let before = Instant::now();
        let generation = engine.submit(Request::new(vec![5 + number; 16], 60)).unwrap();
        (generation, before, Instant::now())
    };
    let asked: Vec<_> = (0..8).map(ask).collect();
    let ends: Vec<_> = asked
        .into_iter()
        .map(|(generation, before, after)| {
            let timings = finished(answer(generation).1).timings;
            let took = timings.queue + timings.prefill + timings.decode;
            (before + took, after + took)
        })
        .collect();
    assert!(engine.stats().preemptions > 0);
    for (number, pair) in ends.windows(2).enumerate() {
        assert!(pair[0].0 <= pair[1].1, "request {} ended before request {number}", number + 1);
    }
}

fn answers_end_by_stop_id_length_and_context<const STEPS: usize>() {
    let script = Script { tokens: Tokens::Fixed(vec![7, 8, 9]), blocks: 4, ..Script::default() };
    let (engine, _) = engine::<STEPS>(script, EngineOptions::new(4, 40, 8));
    let ask = |request: Request| {
        let (ids, end) = answer(engine.submit(request).unwrap());
        (ids, finished(end))
    };
    let (ids, end) = ask(Request::new(vec![5], 10));
    assert_eq!((ids, end.reason, end.generated_tokens), (vec![7, 8, 9], FinishReason::Stop { id: 2 }, 4));
    let (ids, end) = ask(Request { stop_ids: vec![8], ..Request::new(vec![5], 10) });
    assert_eq!((ids, end.reason, end.generated_tokens), (vec![7], FinishReason::Stop { id: 8 }, 2));
    let (ids, end) = ask(Request { ignore_eos: true, ..Request::new(vec![5], 5) });
    assert_eq!((ids, end.reason), (vec![7, 8, 9, 2, 2], FinishReason::Length));
    let (ids, end) = ask(Request::new(vec![5], 2));
    assert_eq!((ids, end.reason), (vec![7, 8], FinishReason::Length));
    let (ids, end) = ask(Request::new(vec![5; 38], 1000));
    assert_eq!((ids, end.reason), (vec![7, 8], FinishReason::Length), "the context of 40 is full");
    let (ids, end) = ask(Request { ignore_eos: true, ..Request::new(vec![5], usize::MAX) });
    assert_eq!((ids.len(), end.reason), (39, FinishReason::Length));
    let (ids, end) = ask(Request::new(vec![5], 0));
    assert_eq!((ids, end.reason, end.generated_tokens), (vec![], FinishReason::Length, 0));
}

fn what_cannot_be_answered_is_refused<const STEPS: usize>() {
    let script = Script { blocks: 4, ..Script::default() };
    let (engine, controls) = engine::<STEPS>(script, EngineOptions::new(4, 9999, 2));
    assert_eq!(engine.context(), 64, "four blocks of 16");
    let refused = |request: Request| engine.submit(request).unwrap_err();
    assert_eq!(refused(Request::new(vec![], 4)), SubmitError::PromptEmpty);
    let long = refused(Request::new(vec![5; 64], 4));
    assert_eq!(long, SubmitError::PromptTooLong { prompt: 64, context: 64 });
    assert!(long.to_string().contains("64 tokens"), "{long}");
    let vocabulary = Small::SPEC.vocabulary;
    let id = vocabulary as u32;
    let unknown = SubmitError::TokenOutOfVocabulary { id, vocabulary };
    assert_eq!(refused(Request::new(vec![5, id], 4)), unknown);
    assert_eq!(refused(Request { stop_ids: vec![id], ..Request::new(vec![5], 4) }), unknown);

    // One in a step that hangs, two waiting, and no place for a fourth.
    controls.hold();
    let first = engine.submit(Request::new(vec![5], 4)).unwrap();
    wait_for(&engine, "the first to run", |stats| stats.running == 1 && stats.in_step.is_some());
    let others = [6, 7].map(|id| engine.submit(Request::new(vec![id], 4)).unwrap());
    assert_eq!(refused(Request::new(vec![8], 4)), SubmitError::QueueFull { waiting: 2, limit: 2 });
    controls.release();
    for generation in [first].into_iter().chain(others) {
        assert_eq!(answer(generation).0.len(), 4);
    }
    assert_eq!(answer(engine.submit(Request::new(vec![8], 4)).unwrap()).0.len(), 4, "places came back");
}

#[test]
fn nonsensical_options_do_not_start() {
    for (blocks, context, max_waiting, named) in
        [(0, 1, 1, "blocks"), (1, 0, 1, "context"), (1, 1, 0, "max_waiting")]
    {
        let model = Scripted::<Small>::new(Script::default());
        let error = start(model, EngineOptions::new(blocks, context, max_waiting)).unwrap_err();
        assert!(error.to_string().contains(named), "{error}");
    }
}

fn events_arrive_in_async_code<const STEPS: usize>() {
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    runtime.block_on(async {
        let (engine, _) = with_blocks::<STEPS>(16);
        let request = Request {
            sampling: Sampling { top_logprobs: Some(3), ..Sampling::default() },
            ..Request::new(vec![5, 6], 5)
        };
        let mut generation = engine.submit(request.clone()).unwrap();
        let mut ids = Vec::new();
        while let Some(event) = generation.recv().await {
            match event {
                Event::Token(sampled) => {
                    assert_eq!((sampled.logprob, sampled.top.len()), (Some(-0.5), 3));
                    ids.push(sampled.id);
                }
                Event::Finished(end) => {
                    assert!(end.timings.queue + end.timings.prefill + end.timings.decode < PATIENCE);
                }
                Event::Prompt(_) => panic!("nobody asked for it"),
                Event::Failed(error) => panic!("{error}"),
            }
        }
        assert_eq!(ids, expected(&request, &Tokens::Hash));
        engine.drain(PATIENCE);
        engine.stopped().await;
        assert_eq!(engine.health(), Health::Stopped);
    });
}

/// The checks of the scripted model can fail: a model handed another's blocks says so.
#[test]
fn the_scripted_model_notices_mixed_up_blocks() {
    use monomorph_model::{BlockId, Output, SequenceStep, Slot, Step, Tokens};
    let row = |slot: u32, position: usize, tokens: Vec<u32>, block: u32| SequenceStep {
        drafts: 0,
        generated: false,
        following: None,
        begins: position == 0,
        slot: Slot(slot),
        position,
        tokens: Tokens::Known(tokens),
        blocks: vec![BlockId(block)],
        output: Output::None,
    };
    let run = |steps: Vec<Vec<SequenceStep>>| {
        std::panic::catch_unwind(move || {
            let mut model = Scripted::<Small>::new(Script::default());
            for sequences in steps {
                let ticket = model.submit(&Step { sequences, ..Step::default() });
                model.collect(ticket);
            }
        })
    };
    let sound = vec![vec![row(0, 0, vec![5], 3), row(1, 0, vec![6], 4)], vec![row(0, 1, vec![7], 3)]];
    assert!(run(sound.clone()).is_ok());
    let with = |last: SequenceStep| {
        let mut steps = sound.clone();
        steps.push(vec![last]);
        steps
    };
    assert!(run(with(row(0, 2, vec![8], 4))).is_err(), "reads another's block");
    assert!(run(with(row(0, 3, vec![8], 3))).is_err(), "skips a position");
    assert!(run(with(row(0, 2, vec![], 3))).is_err(), "feeds nothing");
    assert!(run(with(row(0, 2, vec![8], 999))).is_err(), "no such block");
    assert!(run(vec![vec![row(0, 0, vec![5], 3), row(1, 0, vec![6], 3)]]).is_err(), "one block, two writers");
}

/// A script may be any function, and the context it sees is the one read back from the blocks.
#[test]
fn a_script_sees_the_context() {
    let tokens = Tokens::Function(Arc::new(|context, draw| context[0] + draw as u32));
    let script = Script { tokens, ..Script::default() };
    let (engine, _) = engine::<1>(script, EngineOptions::new(16, 100, 4));
    let (ids, _) = answer(engine.submit(Request::new(vec![100, 7], 4)).unwrap());
    assert_eq!(ids, [100, 101, 102, 103]);
}

/// With two steps in flight the host's work on one hides behind the device's on the other.
#[test]
fn the_host_works_while_the_device_does() {
    const EACH: Duration = Duration::from_millis(4);
    fn elapsed<const STEPS: usize>() -> (Duration, Stats) {
        // What a script's function does, it does while a step is submitted.
        let tokens = Tokens::Function(Arc::new(|_, draw| {
            std::thread::sleep(EACH);
            10 + draw as u32
        }));
        let script = Script { tokens, step_time: EACH, ..Script::default() };
        let (engine, _) = engine::<STEPS>(script, EngineOptions::new(16, 100, 4));
        let began = Instant::now();
        assert_eq!(answer(engine.submit(Request::new(vec![5], 25)).unwrap()).0.len(), 25);
        (began.elapsed(), engine.stats())
    }
    // A busy machine may delay one of the two; without overlap none of five attempts would pass.
    let overlaps = (0..5).any(|_| {
        let (one, _) = elapsed::<1>();
        let (two, stats) = elapsed::<2>();
        println!("25 steps of {EACH:?} on host and device: {one:?} one by one, {two:?} overlapped");
        assert_eq!(stats.steps, 25);
        assert!(stats.device_time <= two, "no time of the device counts twice: {stats:?}");
        two.as_secs_f64() < 0.8 * one.as_secs_f64()
    });
    assert!(overlaps, "two steps in flight take as long as one after the other");
}
