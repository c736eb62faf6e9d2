//! The walks of `forward/walk.rs` with sequences that are copied out when they have to make room: to memory,
//! through memory to a disk, and to a disk that fails. Every answer is its lone one, and every page comes
//! back.
//!
//! The disk is a real one, so the timing of transfers differs on every run; the answers do not. How much was
//! read back differs too: these walks go on until it is enough.
//!
//! Planted, one at a time, and caught here: a sequence that comes back while a step is in flight; the step's
//! own copies of states made before one comes back; a state not put back; pages put back behind those that
//! the index knew; the copy of a client that left, kept; the last block not copied; a read that failed taken
//! for one that did not; places on disk of what was read, kept. Planted and not seen: drafts that are
//! forgotten, which cost time and no answer; and what `orders.rs` sees.

use crate::forward::walk::walk;
use crate::scripted::{Drafting, Invariant, Pipelined, Recurrent, Shape, Tight, Windowed};
use crate::{Stats, SwapDisk, SwapOptions, SwapStats};
use monomorph_store::{ALIGN, Fault, Faults, Kind};
use std::path::Path;
use std::sync::{Mutex, PoisonError};

/// Pages of what one sequence may hold: the blocks of its context, and a state.
const LARGEST: u64 = 17;
const TURNS: usize = 2_000;

/// Room for so many pages in memory and on disk.
fn room(host: u64, disk: Option<(&Path, u64)>) -> SwapOptions {
    let page = ALIGN as u64;
    let disk =
        disk.map(|(directory, pages)| SwapDisk { directory: directory.to_owned(), bytes: pages * page });
    SwapOptions { host_bytes: host * page, disk, ..SwapOptions::default() }
}

/// Blocks of small pools, with and without a cache of prefixes.
const POOLS: [(usize, bool); 4] = [(17, true), (19, true), (18, false), (22, true)];
/// How often the pools are walked until enough was seen.
const ROUNDS: usize = 6;

/// Walks in each of the pools, and again with other seeds while `enough` does not hold of all that was seen.
fn walks<S: Shape>(swap: &SwapOptions, enough: impl Fn(&SwapStats) -> bool) -> Stats {
    let mut stats = Stats::default();
    for (index, (blocks, enabled)) in std::iter::repeat_n(POOLS, ROUNDS).flatten().enumerate() {
        if index > 0 && index % POOLS.len() == 0 && enough(&stats.swap) {
            break;
        }
        let seed = (index as u64 + 1) * 0x51_7CC1;
        let (one, _) = walk::<S>(swap, seed, TURNS, blocks, 0.6, enabled, None);
        stats.preemptions += one.preemptions;
        stats.swap.out += one.swap.out;
        stats.swap.back += one.swap.back;
        stats.swap.bytes_written += one.swap.bytes_written;
        stats.swap.bytes_read += one.swap.bytes_read;
        stats.swap.failures += one.swap.failures;
    }
    println!("{} preemptions, {:?}", stats.preemptions, stats.swap);
    stats
}

/// Walks with each kind of room.
fn walks_of<S: Shape>() {
    let directory = tempfile::tempdir().unwrap();
    let ample = walks::<S>(&room(40 * LARGEST, None), |_| true);
    assert!(ample.swap.out > 20 && ample.swap.out <= ample.preemptions, "{ample:?}");
    assert!(ample.swap.back > ample.swap.out / 2, "{ample:?}");
    assert_eq!((ample.swap.failures, ample.swap.bytes_written), (0, 0));

    let short = walks::<S>(&room(LARGEST / 2, None), |_| true);
    assert!(short.swap.out > 3 && short.swap.out < short.preemptions, "some do not fit: {short:?}");

    let enough = |swap: &SwapStats| swap.bytes_written > 0 && swap.bytes_read > 20 * ALIGN as u64;
    let disk = walks::<S>(&room(LARGEST + 3, Some((directory.path(), 8 * LARGEST))), enough);
    assert!(enough(&disk.swap), "{disk:?}");
    assert_eq!(disk.swap.failures, 0);
    assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 0);
}

/// Walks with a disk on which everything goes wrong now and then.
fn failing_walks_of<S: Shape>() {
    let directory = tempfile::tempdir().unwrap();
    let faults = Faults::default();
    let mut state = 0x9E37_79B9_7F4A_7C15_u64;
    faults.set(move |_, kind| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        // Pages that are not written close the disk when that happens three times in a row.
        match ((state >> 33) % 100, kind) {
            (0, _) => Some(Fault::FlippedBit),
            (1, _) => Some(Fault::Lost),
            (2, Kind::Read) | (3, Kind::Write) => Some(Fault::Short),
            (3..8, Kind::Read) => Some(Fault::Io),
            _ => None,
        }
    });
    let swap =
        SwapOptions { faults: Some(faults), ..room(LARGEST + 3, Some((directory.path(), 8 * LARGEST))) };
    let enough = |swap: &SwapStats| swap.bytes_read > 0 && swap.failures > 3;
    let stats = walks::<S>(&swap, enough);
    assert!(enough(&stats.swap), "{stats:?}");
}

#[test]
fn every_answer_is_its_lone_one_with_one_step_in_flight() {
    walks_of::<Tight>();
    failing_walks_of::<Tight>();
}

#[test]
fn every_answer_is_its_lone_one_with_two_steps_in_flight() {
    walks_of::<Pipelined<Tight, 2>>();
    failing_walks_of::<Pipelined<Tight, 2>>();
}

#[test]
fn every_answer_is_its_lone_one_of_a_batch_invariant_model() {
    walks_of::<Pipelined<Invariant<Tight, 8>, 2>>();
}

#[test]
fn every_answer_is_its_lone_plain_one_with_two_drafts() {
    walks_of::<Drafting<Tight, 2>>();
}

#[test]
fn every_answer_of_a_model_with_state_is_its_lone_one() {
    walks_of::<Recurrent<Tight>>();
    failing_walks_of::<Recurrent<Tight>>();
}

#[test]
fn every_answer_of_a_model_with_state_is_its_lone_one_with_two_steps_in_flight() {
    walks_of::<Pipelined<Recurrent<Tight>, 2>>();
    failing_walks_of::<Pipelined<Recurrent<Tight>, 2>>();
}

#[test]
fn every_answer_of_a_model_with_state_is_its_lone_plain_one_with_two_drafts() {
    walks_of::<Drafting<Recurrent<Tight>, 2>>();
    failing_walks_of::<Drafting<Recurrent<Tight>, 2>>();
}

#[test]
fn every_answer_of_a_model_with_a_window_is_its_lone_one() {
    walks_of::<Windowed<Tight, 9>>();
    failing_walks_of::<Windowed<Tight, 9>>();
}

#[test]
fn every_answer_of_a_model_with_a_window_and_state_is_its_lone_one_with_two_steps_in_flight() {
    walks_of::<Pipelined<Recurrent<Windowed<Tight, 6>>, 2>>();
}

#[test]
fn every_answer_of_a_model_with_a_window_is_its_lone_plain_one_with_two_drafts() {
    walks_of::<Drafting<Windowed<Tight, 9>, 2>>();
}

/// A walk with a disk of which `decide` says what goes wrong, with other seeds until `enough` happened: how
/// much is written and read depends on how quick the disk is beside the steps. What was said of the last one.
fn failing(
    decide: impl FnMut(u64, Kind) -> Option<Fault> + Copy + Send + 'static,
    enough: impl Fn(&SwapStats) -> bool,
) -> (Stats, Vec<String>) {
    static LINES: Mutex<Vec<String>> = Mutex::new(Vec::new());
    static ONE: Mutex<()> = Mutex::new(());
    let _one = ONE.lock().unwrap_or_else(PoisonError::into_inner);
    let mut last = None;
    for seed in 77..85 {
        let directory = tempfile::tempdir().unwrap();
        let faults = Faults::default();
        faults.set(decide);
        let report = |line: std::fmt::Arguments| LINES.lock().unwrap().push(line.to_string());
        let room = room(LARGEST + 3, Some((directory.path(), 8 * LARGEST)));
        let swap = SwapOptions { faults: Some(faults), report, ..room };
        let (stats, _) = walk::<Tight>(&swap, seed, 4 * TURNS, 19, 0.5, true, None);
        let lines = std::mem::take(&mut *LINES.lock().unwrap());
        let done = enough(&stats.swap);
        last = Some((stats, lines));
        if done {
            break;
        }
    }
    last.expect("there are seeds")
}

#[test]
fn a_full_disk_is_given_up_with_a_line_and_memory_goes_on() {
    let full = |_, kind| (kind == Kind::Write).then_some(Fault::NoSpace);
    let (stats, lines) = failing(full, |swap| swap.failures == 3 && swap.back > 10);
    assert_eq!((stats.swap.failures, stats.swap.bytes_written), (3, 0), "{stats:?}");
    assert!(stats.swap.back > 10, "{stats:?}");
    assert_eq!(lines.len(), 3, "{lines:?}");
    assert!(lines[2].contains("No space left") && lines[2].contains("no more is written"), "{lines:?}");
}

#[test]
fn a_page_that_comes_back_changed_is_never_gone_on_from() {
    let changed = |_, kind| (kind == Kind::Read).then_some(Fault::FlippedBit);
    let (stats, lines) = failing(changed, |swap| swap.failures > 3);
    assert!(stats.swap.failures > 3 && stats.swap.bytes_read == 0, "{stats:?}");
    let says = |line: &String| line.contains("other bytes than were written: a sequence is computed again");
    assert!(lines.iter().all(says), "{lines:?}");
}
