//! Loading all ranks at a time.

use crate::meeting::{Meeting, Seat};
use crate::{Rank, message};
use monomorph_model::{LoadError, LoadOptions, OffloadOptions, Progress, Weights};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::thread::Builder;

/// Loads every rank on a thread of its own.
///
/// # Errors
/// That of the first rank that failed, with its number and device.
pub(crate) fn load<R: Rank>(
    weights: &Weights,
    options: &LoadOptions,
    progress: &Progress,
) -> Result<Vec<R>, LoadError> {
    let ordinals = options.ordinals(R::RANKS)?;
    let options = of_one_rank(options, R::RANKS);
    let meeting = Meeting::new(R::RANKS);
    let load = |rank: usize| {
        let seat = Seat::new(rank, &ordinals, &meeting);
        let loaded = catch_unwind(AssertUnwindSafe(|| R::load_rank(weights, &options, progress, seat)));
        let loaded = loaded.unwrap_or_else(|panic| Err(LoadError::Device(message!(panic))));
        if loaded.is_err() {
            meeting.fail(rank);
        }
        loaded
    };
    let outcomes: Vec<Result<R, LoadError>> = std::thread::scope(|scope| {
        let start = |rank: usize| {
            let named = Builder::new().name(format!("load rank {rank}"));
            let thread = named.spawn_scoped(scope, move || load(rank));
            // Those that were started must not wait for it.
            thread.inspect_err(|_| meeting.fail(rank))
        };
        let threads: Vec<_> = (0..R::RANKS).map(start).collect();
        let joined = threads.into_iter().map(|thread| {
            let thread = thread.map_err(LoadError::Threads)?;
            thread.join().unwrap_or_else(|panic| Err(LoadError::Device(message!(panic))))
        });
        joined.collect()
    });
    let mut ranks = Vec::with_capacity(R::RANKS);
    let mut first = None;
    for (rank, outcome) in outcomes.into_iter().enumerate() {
        match outcome {
            Ok(loaded) => ranks.push(loaded),
            // Others failed because they waited for this one.
            Err(error) if meeting.failed() == Some(rank) => first = Some((rank, error)),
            Err(_) => {}
        }
    }
    match first {
        None => Ok(ranks),
        Some((rank, error)) => Err(LoadError::Rank { rank, ordinal: ordinals[rank], error: Box::new(error) }),
    }
}

/// The part of this machine's threads and disk that is a rank's.
fn of_one_rank(options: &LoadOptions, ranks: usize) -> LoadOptions {
    let offload = options
        .offload
        .as_ref()
        .map(|offload| OffloadOptions { bytes: offload.bytes / ranks as u64, ..offload.clone() });
    LoadOptions { threads: (options.threads / ranks).max(1), offload, ..options.clone() }
}

/// Checks that ranks have room for the same.
///
/// # Errors
/// Says what differs.
pub(crate) fn check_rooms<R: Rank>(ranks: &[R]) -> Result<(), LoadError> {
    let room =
        |rank: &R| (rank.blocks(), rank.sliding_blocks(), rank.sequences(), rank.snapshots(), rank.offload());
    let Some((first, others)) = ranks.split_first() else { return Ok(()) };
    match others.iter().position(|other| room(other) != room(first)) {
        None => Ok(()),
        Some(at) => Err(LoadError::Device(format!(
            "rank {} has room for {:?} (blocks, those of layers with a window, sequences, snapshots, groups of blocks on disk), and rank 0 for {:?}: they \
             must agree",
            at + 1,
            room(&others[at]),
            room(first)
        ))),
    }
}
