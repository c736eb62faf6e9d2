//! Sequences with blocks on disk: longer than all blocks, and a disk that fails.
//!
//! Planted, one at a time, and caught here: a row that is lost without ending its answer; rows that are not
//! known to have blocks on disk; groups of the step before that stay in the next; blocks sent with a step in
//! flight (the model sees it). The walks of the loop (`src/forward/walk.rs`) see the last two as well, and
//! that no sequence is pre-empted where no place is left on disk.

use crate::support::*;
use monomorph_engine::scripted::{Controls, Script, Tokens};
use monomorph_engine::{EngineError, EngineHandle, EngineOptions, Event, Health, OffloadShare, Request};
use monomorph_model::OffloadRoom;

at_both_depths!(
    a_sequence_is_longer_than_all_blocks,
    what_cannot_be_written_ends_its_sequence_and_no_other,
    what_cannot_be_read_ends_its_sequence_and_no_other,
);

/// An engine of 12 blocks, 6 of them a sequence's share, and 20 places for groups of two.
fn offloading<const STEPS: usize>() -> (EngineHandle, Controls) {
    let room = OffloadRoom { places: 20, group: 2 };
    let script = Script { blocks: 12, offload: Some(room), ..Script::default() };
    let offload = Some(OffloadShare { room, resident: 6 });
    engine::<STEPS>(script, EngineOptions { offload, ..EngineOptions::new(12, 4096, 16) })
}

fn long() -> Request {
    Request::new((0..400).map(|at| at % 77 + 5).collect(), 200)
}

fn a_sequence_is_longer_than_all_blocks<const STEPS: usize>() {
    let (engine, _) = offloading::<STEPS>();
    assert_eq!(engine.context(), (6 + 40) * 16);
    let whole = Request::new((0..500).map(|at| at % 77 + 5).collect(), 1000);
    let (ids, end) = answer(engine.submit(whole.clone()).unwrap());
    let most = engine.context() - 500;
    assert_eq!(ids, expected(&Request { max_tokens: most, ..whole }, &Tokens::Hash));
    finished(end);
    let stats = wait_for(&engine, "all to come back", is_idle);
    assert_eq!((stats.free_offload_places, stats.blocks_offloaded), (20, 40));
}

fn what_cannot_be_written_ends_its_sequence_and_no_other<const STEPS: usize>() {
    let (engine, controls) = offloading::<STEPS>();
    controls.fail_offload_writes(true);
    let lost = engine.submit(long()).unwrap();
    let short = Request::new(vec![5; 20], 40);
    let other = engine.submit(short.clone()).unwrap();
    let (_, end) = answer(lost);
    assert!(matches!(&end, Event::Failed(EngineError::Lost(why)) if why.contains("told to fail")), "{end:?}");
    assert_eq!(answer(other).0, expected(&short, &Tokens::Hash));
    assert_eq!(engine.health(), Health::Running);
    controls.fail_offload_writes(false);
    assert_eq!(answer(engine.submit(long()).unwrap()).0, expected(&long(), &Tokens::Hash));
    assert_eq!(wait_for(&engine, "all to come back", is_idle).free_offload_places, 20);
}

fn what_cannot_be_read_ends_its_sequence_and_no_other<const STEPS: usize>() {
    let (engine, controls) = offloading::<STEPS>();
    controls.fail_offload_reads(1);
    let lost = engine.submit(long()).unwrap();
    let short = Request::new(vec![5; 20], 60);
    let other = engine.submit(short.clone()).unwrap();
    let (ids, end) = answer(lost);
    assert!(ids.is_empty(), "nothing is sampled from what was lost");
    assert!(matches!(&end, Event::Failed(EngineError::Lost(why)) if why.contains("told to fail")), "{end:?}");
    assert_eq!(answer(other).0, expected(&short, &Tokens::Hash));
    assert_eq!(answer(engine.submit(long()).unwrap()).0, expected(&long(), &Tokens::Hash));
    assert_eq!(wait_for(&engine, "all to come back", is_idle).free_offload_places, 20);
}
