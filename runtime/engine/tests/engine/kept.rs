//! Prefixes in files, at both depths: one engine after another on the same files, with little memory, so that
//! what one process computed comes back for the next and, evicted, for itself. The scripted model reads a
//! prompt from the blocks that it is given.

use crate::support::*;
use monomorph_engine::scripted::{Pipelined, Recurrent, Script, Shape, Small, Tokens, Windowed};
use monomorph_engine::{EngineOptions, KeepOptions, Request, StartError, Stats};
use std::path::Path;

at_both_depths!(prompts_come_back_and_answers_are_the_same, prompts_longer_than_a_batch_of_pages_come_back);

fn keeping(directory: &Path, bytes: u64) -> KeepOptions {
    let identity = vec![("target".to_owned(), "a test".to_owned())];
    KeepOptions {
        directory: directory.to_owned(),
        bytes: Some(bytes),
        identity,
        report: |line| println!("{line}"),
    }
}

/// Answers all requests at once, of an engine of so many blocks, and ends it. What it counted.
fn run<const STEPS: usize>(directory: &Path, bytes: u64, blocks: usize, requests: &[Request]) -> Stats {
    let script = Script { blocks, ..Script::default() };
    let keep = Some(keeping(directory, bytes));
    let (engine, _) =
        engine::<STEPS>(script, EngineOptions { keep, ..EngineOptions::new(blocks, 4096, 256) });
    let before = engine.stats();
    for part in requests.chunks(40) {
        crowded(&engine, part);
    }
    let stats = wait_for(&engine, "all to come back", is_idle);
    assert_eq!((before.tokens_prefilled, stats.kept.failures), (0, 0));
    engine.drain(PATIENCE);
    engine.wait_stopped();
    stats
}

fn crowded(engine: &monomorph_engine::EngineHandle, requests: &[Request]) {
    let running: Vec<_> = requests.iter().map(|request| engine.submit(request.clone()).unwrap()).collect();
    for (request, generation) in requests.iter().zip(running) {
        let (ids, end) = answer(generation);
        assert_eq!(ids, expected(request, &Tokens::Hash));
        finished(end);
    }
}

fn prompts_come_back_and_answers_are_the_same<const STEPS: usize>() {
    let directory = tempfile::tempdir().unwrap();
    let mut requests = requests(120);
    // Every third begins as the one before does.
    for at in (2..requests.len()).step_by(3) {
        let earlier = requests[at - 1].prompt.clone();
        requests[at].prompt.splice(..0, earlier);
    }
    let mut back = 0;
    // Room for everything, for little of it, and for more again.
    for (bytes, blocks) in [(8 << 20, 40), (8 << 20, 14), (1 << 18, 14), (1 << 18, 400), (8 << 20, 40)] {
        let stats = run::<STEPS>(directory.path(), bytes, blocks, &requests);
        println!("{bytes} bytes, {blocks} blocks: {:?}, {} prefilled", stats.kept, stats.tokens_prefilled);
        back += stats.kept.tokens_back;
    }
    // How many are written before they are evicted is up to the disk and to what else the machine does.
    assert!(back > 0, "nothing came back");
}

fn prompts_longer_than_a_batch_of_pages_come_back<const STEPS: usize>() {
    let directory = tempfile::tempdir().unwrap();
    let long: Vec<u32> = (0..2_500).map(|at| at % 77 + 5).collect();
    let requests = [Request::new(long, 5)];
    let first = run::<STEPS>(directory.path(), 8 << 20, 200, &requests);
    assert_eq!(first.kept.at_start, 0);
    let second = run::<STEPS>(directory.path(), 8 << 20, 200, &requests);
    assert!(second.kept.at_start >= 156, "{:?}", second.kept);
    assert_eq!((second.kept.tokens_back, second.tokens_cached), (2_496, 2_496), "{:?}", second.kept);
    assert_eq!(second.tokens_prefilled, 4);
}

/// What has more to be kept than blocks is refused by name.
#[test]
fn recurrent_states_and_windows_are_not_kept() {
    let directory = tempfile::tempdir().unwrap();
    let keep = keeping(directory.path(), 1 << 20);
    let state = keep.check(Recurrent::<Pipelined<Small, 1>>::SPEC, None).unwrap_err();
    assert!(state.contains("has recurrent state, whose snapshots are not kept"), "{state}");
    let sliding = Windowed::<Pipelined<Small, 1>, 32>::SLIDING;
    let window = keep.check(Small::SPEC, sliding).unwrap_err();
    assert!(window.contains("sliding window, whose blocks are not kept"), "{window}");
    let mut options = EngineOptions { keep: Some(keep), ..EngineOptions::new(8, 64, 8) };
    options.prefix.enabled = false;
    let model = monomorph_engine::scripted::Scripted::<Small>::new(Script::default());
    let refused = monomorph_engine::start(model, options).unwrap_err();
    assert!(matches!(refused, StartError::Options(why) if why.contains("no prefix is cached")));
}
