//! The engine on a scripted model, which checks every step it is given and samples from what it reads back.

use monomorph_engine::scripted::{Controls, InFlight, Script, Scripted, Shape, Small, Tokens};
use monomorph_engine::{
    EngineError, EngineHandle, EngineOptions, Event, FinishReason, Finished, Generation, Health, Request,
    Stats, SubmitError, start,
};
use monomorph_model::Model;
use monomorph_sampling::Sampling;
use std::sync::Arc;
use std::time::{Duration, Instant};

const PATIENCE: Duration = Duration::from_secs(20);

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

at_both_depths!(
    crowded_answers_equal_lone_ones,
    requests_of_equal_length_end_in_the_order_they_came,
    answers_end_by_stop_id_length_and_context,
    nothing_is_computed_beyond_a_known_end,
    a_client_that_stops_listening_between_two_tokens_ends_there,
    what_cannot_be_answered_is_refused,
    cancelled_requests_give_everything_back_in_every_phase,
    a_storm_of_hangups_leaves_nothing_behind,
    a_panic_fails_every_client_and_hangs_none,
    a_drain_finishes_what_was_accepted,
    a_drain_gives_up_at_its_deadline,
    the_engine_outlives_its_handles_until_it_has_answered,
    events_arrive_in_async_code,
);

fn engine<const STEPS: usize>(script: Script, options: EngineOptions) -> (EngineHandle, Controls) {
    let model = Scripted::<InFlight<Small, STEPS>>::new(script);
    let controls = model.controls();
    (start(model, options).unwrap(), controls)
}

fn with_blocks<const STEPS: usize>(blocks: usize) -> (EngineHandle, Controls) {
    let script = Script { blocks, ..Script::default() };
    engine::<STEPS>(script, EngineOptions { blocks, context: 4096, max_waiting: 256 })
}

/// The whole answer and its end.
fn answer(mut generation: Generation) -> (Vec<u32>, Event) {
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

fn finished(event: Event) -> Finished {
    match event {
        Event::Finished(finished) => finished,
        other => panic!("{other:?}"),
    }
}

fn wait_for(engine: &EngineHandle, what: &str, holds: impl Fn(&Stats) -> bool) -> Stats {
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

fn is_idle(stats: &Stats) -> bool {
    stats.waiting == 0 && stats.running == 0 && stats.free_blocks == stats.total_blocks
}

/// Requests of all sorts, the same on every run.
fn requests(count: usize) -> Vec<Request> {
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
fn expected(request: &Request, tokens: &Tokens) -> Vec<u32> {
    let mut context = request.prompt.clone();
    for draw in 0..request.max_tokens as u64 {
        let id = tokens.next(&context, &request.sampling, draw, Small::SPEC);
        context.push(id);
    }
    context.split_off(request.prompt.len())
}

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
    let (engine, _) = engine::<STEPS>(script, EngineOptions { blocks: 4, context: 40, max_waiting: 8 });
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

/// Where a sequence ends by count is known ahead, so no step is spent on what comes after; a stop id is not.
fn nothing_is_computed_beyond_a_known_end<const STEPS: usize>() {
    let script = Script { tokens: Tokens::Fixed(vec![7, 8, 9]), blocks: 8, ..Script::default() };
    let (engine, controls) =
        engine::<STEPS>(script, EngineOptions { blocks: 8, context: 20, max_waiting: 8 });
    let steps = |request: Request| {
        let before = controls.steps();
        answer(engine.submit(request).unwrap());
        wait_for(&engine, "the surplus", is_idle);
        controls.steps() - before
    };
    assert_eq!(steps(Request::new(vec![5; 3], 1)), 1);
    assert_eq!(steps(Request::new(vec![5; 3], 3)), 3);
    let endless = Request { ignore_eos: true, ..Request::new(vec![5; 3], 1000) };
    assert_eq!(steps(endless), 17, "the context is full");
    let surplus = STEPS as u64 - 1;
    assert_eq!(steps(Request::new(vec![5; 3], 9)), 4 + surplus, "ends by the stop id after three tokens");
    let mut penalised = Request::new(vec![5; 3], 9);
    penalised.sampling.presence_penalty = 0.5;
    assert_eq!(steps(penalised), 4, "the host sees every token before the next");
    let stats = engine.stats();
    assert_eq!(stats.tokens_generated, 1 + 3 + 17 + 4 + 4, "surplus rows count for nobody");
}

/// What a stop string does: the text ends between tokens that are on their way already. The others go on.
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

fn what_cannot_be_answered_is_refused<const STEPS: usize>() {
    let script = Script { blocks: 4, ..Script::default() };
    let (engine, controls) =
        engine::<STEPS>(script, EngineOptions { blocks: 4, context: 9999, max_waiting: 2 });
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
        let error = start(model, EngineOptions { blocks, context, max_waiting }).unwrap_err();
        assert!(error.to_string().contains(named), "{error}");
    }
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

    // By word instead of by leaving: the end is told.
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
        assert!(!engine.is_healthy());
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
    assert!(engine.is_healthy());
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
                let ticket = model.submit(&Step { sequences });
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
    let (engine, _) = engine::<1>(script, EngineOptions { blocks: 16, context: 100, max_waiting: 4 });
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
        let (engine, _) = engine::<STEPS>(script, EngineOptions { blocks: 16, context: 100, max_waiting: 4 });
        let began = Instant::now();
        assert_eq!(answer(engine.submit(Request::new(vec![5], 25)).unwrap()).0.len(), 25);
        (began.elapsed(), engine.stats())
    }
    let (one, _) = elapsed::<1>();
    let (two, stats) = elapsed::<2>();
    println!("25 steps of {EACH:?} on host and device: {one:?} one by one, {two:?} overlapped");
    assert!(two.as_secs_f64() < 0.8 * one.as_secs_f64(), "{two:?} of {one:?}");
    assert_eq!(stats.steps, 25);
    assert!(stats.device_time <= two, "no time of the device counts twice: {stats:?}");
}
