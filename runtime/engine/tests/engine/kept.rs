//! Prefixes in files, at both depths: one engine after another on the same files, with little memory, so that
//! what one process computed comes back for the next and, evicted, for itself. The scripted model reads a
//! prompt from the blocks that it is given, and where it has recurrent state goes on from that of the same
//! tokens only.
//!
//! Planted, one at a time, and caught here: blocks that go between two pieces of a prefix, because no
//! snapshot is behind them yet; the state given to the first piece; a snapshot read before the copy that
//! makes it, or from another place; a part that is not what it was, taken, or waited for; blocks of which one
//! failed, taken for all. Planted and not seen: a state that comes back to a place which a pending copy
//! writes, since what is written to the files makes that copy first in nearly every turn.

use crate::support::*;
use monomorph_engine::scripted::{
    Drafting, Pipelined, Recurrent, Script, Scripted, Shape, Skipping, Small, Tokens, Windowed,
};
use monomorph_engine::{EngineOptions, KeepOptions, PrefixOptions, Request, StartError, Stats};
use std::path::Path;

at_both_depths!(
    prompts_come_back_and_answers_are_the_same,
    prompts_longer_than_a_batch_of_pages_come_back,
    states_come_back_and_answers_are_the_same,
    a_long_prompt_comes_back_with_its_state,
    the_state_at_the_end_of_an_answer_comes_back,
    a_damaged_page_of_a_prefix_costs_what_it_hits,
);

/// Places for snapshots.
const SNAPSHOTS: usize = 5;

/// A model with state, whose snapshots take several pages.
type Hybrid<const STEPS: usize> = Pipelined<Recurrent<Small>, STEPS>;

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
fn run<S: Shape>(directory: &Path, bytes: u64, blocks: usize, requests: &[Request]) -> Stats {
    let stats = run_anyhow::<S>(directory, bytes, blocks, requests, 64);
    assert_eq!(stats.kept.failures, 0);
    stats
}

/// The same where pages may fail, with a snapshot of a long prompt every so many tokens.
fn run_anyhow<S: Shape>(
    directory: &Path,
    bytes: u64,
    blocks: usize,
    requests: &[Request],
    interval: usize,
) -> Stats {
    let snapshots = if S::SPEC.state_bytes > 0 { SNAPSHOTS } else { 0 };
    let script = Script { blocks, snapshots, ..Script::default() };
    let keep = Some(keeping(directory, bytes));
    let prefix = PrefixOptions { snapshots, snapshot_interval: interval, ..PrefixOptions::default() };
    let options = EngineOptions { keep, prefix, ..EngineOptions::new(blocks, 4096, 256) };
    let engine = monomorph_engine::start(Scripted::<S>::new(script), options).unwrap();
    let before = engine.stats();
    for part in requests.chunks(40) {
        crowded(&engine, part);
    }
    let stats = wait_for(&engine, "all to come back", is_idle);
    assert_eq!(before.tokens_prefilled, 0);
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

/// Requests of which every third begins as the one before does.
fn alike() -> Vec<Request> {
    let mut requests = requests(120);
    for at in (2..requests.len()).step_by(3) {
        let earlier = requests[at - 1].prompt.clone();
        requests[at].prompt.splice(..0, earlier);
    }
    requests
}

fn prompts_come_back_and_answers_are_the_same<const STEPS: usize>() {
    let directory = tempfile::tempdir().unwrap();
    let requests = alike();
    let mut back = 0;
    // Room for everything, for little of it, and for more again.
    for (bytes, blocks) in [(8 << 20, 40), (8 << 20, 14), (1 << 18, 14), (1 << 18, 400), (8 << 20, 40)] {
        let stats = run::<Pipelined<Small, STEPS>>(directory.path(), bytes, blocks, &requests);
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
    let first = run::<Pipelined<Small, STEPS>>(directory.path(), 8 << 20, 200, &requests);
    assert_eq!(first.kept.at_start, 0);
    let second = run::<Pipelined<Small, STEPS>>(directory.path(), 8 << 20, 200, &requests);
    assert!(second.kept.at_start >= 156, "{:?}", second.kept);
    assert_eq!((second.kept.tokens_back, second.tokens_cached), (2_496, 2_496), "{:?}", second.kept);
    assert_eq!(second.tokens_prefilled, 4);
}

fn states_come_back_and_answers_are_the_same<const STEPS: usize>() {
    come_back::<Hybrid<STEPS>>();
}

/// A draft head's keys and values are a part of the blocks.
#[test]
fn states_come_back_for_a_draft_head() {
    come_back::<Drafting<Recurrent<Small>, 3>>();
}

/// Drafts of the layers that attend leave rows behind what is fed, and nothing of them is kept as such.
#[test]
fn states_come_back_for_layers_that_draft() {
    come_back::<Skipping<Recurrent<Small>, 2>>();
}

fn come_back<S: Shape>() {
    let directory = tempfile::tempdir().unwrap();
    let requests = alike();
    let (mut blocks_back, mut states_back) = (0, 0);
    // Room for everything, for a few prefixes, for hardly one, and for more again.
    for (bytes, blocks) in [(8 << 20, 60), (8 << 20, 40), (1 << 18, 40), (1 << 17, 40), (8 << 20, 60)] {
        let stats = run::<S>(directory.path(), bytes, blocks, &requests);
        println!("{bytes} bytes, {blocks} blocks: {:?}, {} prefilled", stats.kept, stats.tokens_prefilled);
        blocks_back += stats.kept.tokens_back;
        states_back += stats.kept.snapshots_back;
    }
    assert!(blocks_back > 0 && states_back > 0, "{blocks_back} tokens and {states_back} states came back");
}

fn a_long_prompt_comes_back_with_its_state<const STEPS: usize>() {
    let directory = tempfile::tempdir().unwrap();
    let long: Vec<u32> = (0..2_500).map(|at| at % 77 + 5).collect();
    // As many snapshots as there are places for, so that none goes before it is written.
    let run = |prompt: &[u32]| {
        let requests = [Request::new(prompt.to_vec(), 5)];
        let stats = run_anyhow::<Hybrid<STEPS>>(directory.path(), 8 << 20, 200, &requests, 512);
        assert_eq!(stats.kept.failures, 0);
        stats
    };
    let first = run(&long);
    assert_eq!((first.kept.at_start, first.kept.snapshots_at_start), (0, 0));
    // All of it, and the state at its end.
    let second = run(&long);
    let there = (second.kept.at_start, second.kept.snapshots_at_start);
    assert_eq!(there, (156, SNAPSHOTS), "{:?}", second.kept);
    assert_eq!((second.kept.tokens_back, second.tokens_cached), (2_496, 2_496), "{:?}", second.kept);
    assert_eq!((second.kept.snapshots_back, second.tokens_prefilled), (1, 4));
    // One that branches off goes on from the state before.
    let mut branch = long.clone();
    branch[1_700] += 1;
    let third = run(&branch);
    let back = (third.kept.tokens_back, third.kept.snapshots_back);
    assert_eq!(back, (1_536, 1), "{:?}", third.kept);
}

/// It is saved by a copy that waits for the next step, and there may be none before it is written.
fn the_state_at_the_end_of_an_answer_comes_back<const STEPS: usize>() {
    let directory = tempfile::tempdir().unwrap();
    let first = Request::new((0..70).map(|at| at % 77 + 5).collect(), 27);
    let answer = expected(&first, &Tokens::Hash);
    run::<Hybrid<STEPS>>(directory.path(), 8 << 20, 40, std::slice::from_ref(&first));
    // What was sampled last was not fed.
    let fed = first.prompt.len() + answer.len() - 1;
    assert_eq!(fed, 96, "the answer fills its last block");
    let second = Request::new([&first.prompt[..], &answer, &[9; 5]].concat(), 5);
    let stats = run::<Hybrid<STEPS>>(directory.path(), 8 << 20, 40, &[second]);
    assert_eq!((stats.kept.tokens_back, stats.kept.snapshots_back), (96, 1), "{:?}", stats.kept);
}

fn a_damaged_page_of_a_prefix_costs_what_it_hits<const STEPS: usize>() {
    let kept = tempfile::tempdir().unwrap();
    let (bytes, tokens) = (1 << 20, 100);
    let requests = [Request::new((0..tokens).map(|at| at % 77 + 5).collect(), 5)];
    let interval = 64;
    let first = run::<Hybrid<STEPS>>(kept.path(), bytes, 40, &requests);
    assert_eq!((first.kept.blocks, first.kept.snapshots, first.kept.capacity > 40), (6, 2, true));
    let [index, pages] = ["index", "pages"].map(|end| kept.path().join(format!("kept-prefixes.{end}")));
    let (whole_index, whole_pages) = (std::fs::read(&index).unwrap(), std::fs::read(&pages).unwrap());
    let entry = (whole_index.len() - 4096) / first.kept.capacity;
    let taken = whole_index[4096..].chunks(entry).filter(|entry| entry.iter().any(|byte| *byte != 0)).count();
    let parts = (taken - 6) / 2;
    assert!(parts > 1 && taken == 6 + 2 * parts, "a snapshot takes several pages: {taken} in all");
    let kind = |page: usize| whole_index[4096 + page * entry + 40];
    for page in 0..taken {
        let is_state = kind(page) == 1;
        // A bit flips.
        let mut flipped = whole_pages.clone();
        flipped[page * 4096 + 77] ^= 0x10;
        std::fs::write(&index, &whole_index).unwrap();
        std::fs::write(&pages, &flipped).unwrap();
        let stats = run_anyhow::<Hybrid<STEPS>>(kept.path(), bytes, 40, &requests, 64);
        let failures = stats.kept.failures;
        // The state at the end and all blocks are read, the earlier state is not.
        let read = failures > 0;
        assert!(failures <= 1 && (read || is_state), "page {page}: {:?}", stats.kept);
        assert_eq!(stats.kept.snapshots_back, u64::from(!read), "page {page}: {:?}", stats.kept);
        assert_eq!(stats.tokens_cached, if read { 0 } else { 96 }, "page {page}");
        // What was computed again is kept again.
        let again = run::<Hybrid<STEPS>>(kept.path(), bytes, 40, &requests);
        assert_eq!(again.tokens_cached, 96, "page {page}: {:?}", again.kept);
        // An entry is lost: what is behind it is, too.
        let mut torn = whole_index.clone();
        torn[4096 + page * entry..][..entry].fill(0);
        std::fs::write(&index, &torn).unwrap();
        std::fs::write(&pages, &whole_pages).unwrap();
        let stats = run::<Hybrid<STEPS>>(kept.path(), bytes, 40, &requests);
        let (blocks, states) = (stats.kept.at_start, stats.kept.snapshots_at_start);
        assert!(states < 2 && (blocks == 6) == is_state, "page {page}: {:?}", stats.kept);
        let cached = stats.tokens_cached;
        assert!(cached == 0 || cached == interval || (is_state && cached == 96), "page {page}: {cached}");
        assert_eq!(stats.kept.snapshots_back > 0, states > 0, "page {page}: {:?}", stats.kept);
    }
}

/// What cannot be gone on from, and what has other blocks too, is refused by name.
#[test]
fn windows_and_states_that_are_not_saved_are_not_kept() {
    let directory = tempfile::tempdir().unwrap();
    let keep = keeping(directory.path(), 1 << 20);
    let sliding = Windowed::<Pipelined<Small, 1>, 32>::SLIDING;
    let window = keep.check(Small::SPEC, sliding).unwrap_err();
    assert!(window.contains("sliding window, whose blocks are not kept"), "{window}");
    let little = keeping(directory.path(), 10_000).check(Recurrent::<Small>::SPEC, None).unwrap_err();
    assert!(little.contains("10000 bytes hold no block and the state behind it"), "{little}");
    let mut options = EngineOptions { keep: Some(keep), ..EngineOptions::new(8, 64, 8) };
    let refused =
        monomorph_engine::start(Scripted::<Recurrent<Small>>::new(Script::default()), options.clone());
    assert!(matches!(refused.unwrap_err(), StartError::Options(why) if why.contains("no snapshot of")));
    options.prefix.enabled = false;
    let refused = monomorph_engine::start(Scripted::<Small>::new(Script::default()), options).unwrap_err();
    assert!(matches!(refused, StartError::Options(why) if why.contains("no prefix is cached")));
}
