//! Where ranks meet while they load.

use monomorph_model::LoadError;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

/// A rank's place among all while they load.
#[derive(Clone, Copy, Debug)]
pub struct Seat<'a> {
    rank: usize,
    ranks: usize,
    ordinals: &'a [usize],
    /// None of a rank that is alone in its process.
    meeting: Option<&'a Meeting>,
}

impl<'a> Seat<'a> {
    pub(crate) fn new(rank: usize, ordinals: &'a [usize], meeting: &'a Meeting) -> Seat<'a> {
        Seat { rank, ranks: ordinals.len(), ordinals, meeting: Some(meeting) }
    }

    /// The seat of a model that is alone, on the device of this number.
    pub fn alone(ordinal: &'a usize) -> Seat<'a> {
        Seat::of_process(0, 1, ordinal)
    }

    /// The seat of a rank whose process has no other, on the device of this number. What ranks must have in
    /// common is agreed between processes.
    pub fn of_process(rank: usize, ranks: usize, ordinal: &'a usize) -> Seat<'a> {
        Seat { rank, ranks, ordinals: std::slice::from_ref(ordinal), meeting: None }
    }

    /// The rank, below [`Seat::ranks`].
    pub fn rank(&self) -> usize {
        self.rank
    }

    /// Number of ranks, in all processes.
    pub fn ranks(&self) -> usize {
        self.ranks
    }

    /// Number of this rank's device.
    pub fn ordinal(&self) -> usize {
        self.ordinals[if self.meeting.is_some() { self.rank } else { 0 }]
    }

    /// Numbers of the devices of all ranks of this process.
    pub fn ordinals(&self) -> &'a [usize] {
        self.ordinals
    }

    /// Waits until all ranks have come here.
    ///
    /// # Errors
    /// When another rank failed, or came to a meeting for something else.
    pub fn meet(&self, purpose: &'static str) -> Result<(), LoadError> {
        self.exchange(purpose, []).map(drop)
    }

    /// Gives `own` to all ranks, and returns what each gave, by rank.
    ///
    /// # Errors
    /// As [`Seat::meet`].
    ///
    /// # Panics
    /// When another rank gives another number of values.
    pub fn exchange<const N: usize>(
        &self,
        purpose: &'static str,
        own: [u64; N],
    ) -> Result<Vec<[u64; N]>, LoadError> {
        let Some(meeting) = self.meeting else { return Ok(vec![own]) };
        let given = meeting.exchange(self.rank, purpose, own.to_vec())?;
        let array = |values: &Vec<u64>| values[..].try_into().expect("as many values of every rank");
        Ok(given.iter().map(array).collect())
    }

    /// The smallest of what all ranks have of each of these.
    ///
    /// # Errors
    /// As [`Seat::meet`].
    pub fn least<const N: usize>(
        &self,
        purpose: &'static str,
        own: [usize; N],
    ) -> Result<[usize; N], LoadError> {
        let all = self.exchange(purpose, own.map(|value| value as u64))?;
        Ok(std::array::from_fn(|at| all.iter().map(|it| it[at] as usize).min().unwrap_or(own[at])))
    }
}

/// The place where all ranks of a world meet.
#[derive(Debug)]
pub(crate) struct Meeting {
    ranks: usize,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    /// How many meetings have ended.
    ended: u64,
    /// What those who wait came for.
    purpose: &'static str,
    /// What each rank gives, of those who wait.
    given: Vec<(usize, Vec<u64>)>,
    /// What was given at the meeting that ended last, by rank.
    all: Arc<Vec<Vec<u64>>>,
    /// The first rank that failed.
    failed: Option<usize>,
}

impl Meeting {
    pub(crate) fn new(ranks: usize) -> Meeting {
        Meeting { ranks, state: Mutex::default(), changed: Condvar::new() }
    }

    /// Notes that a rank failed, which ends all waiting.
    pub(crate) fn fail(&self, rank: usize) {
        self.state().failed.get_or_insert(rank);
        self.changed.notify_all();
    }

    /// The first rank that failed, if any did.
    pub(crate) fn failed(&self) -> Option<usize> {
        self.state().failed
    }

    fn exchange(
        &self,
        rank: usize,
        purpose: &'static str,
        own: Vec<u64>,
    ) -> Result<Arc<Vec<Vec<u64>>>, LoadError> {
        let mut state = self.state();
        if state.given.is_empty() {
            state.purpose = purpose;
        } else if state.purpose != purpose {
            let others = state.purpose;
            drop(state);
            self.fail(rank);
            return Err(LoadError::Device(format!(
                "rank {rank} came to exchange {purpose} while others exchange {others}"
            )));
        }
        let meeting = state.ended;
        state.given.push((rank, own));
        if state.given.len() == self.ranks {
            let mut given = std::mem::take(&mut state.given);
            given.sort_by_key(|(rank, _)| *rank);
            state.all = Arc::new(given.into_iter().map(|(_, values)| values).collect());
            state.ended += 1;
            self.changed.notify_all();
        }
        while state.ended == meeting && state.failed.is_none() {
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        match state.failed {
            // A rank may have failed after it was here.
            Some(failed) if state.ended == meeting => {
                Err(LoadError::Device(format!("rank {failed} failed, and rank {rank} waited for it")))
            }
            _ => Ok(Arc::clone(&state.all)),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    /// What each of three ranks makes of its seat.
    fn three<T: Send>(work: impl Fn(Seat) -> T + Sync) -> (Vec<T>, Option<usize>) {
        let meeting = Meeting::new(3);
        let ordinals = [4, 5, 7];
        let made = std::thread::scope(|scope| {
            let (meeting, ordinals, work) = (&meeting, &ordinals, &work);
            let threads: Vec<_> =
                (0..3).map(|rank| scope.spawn(move || work(Seat::new(rank, ordinals, meeting)))).collect();
            threads.into_iter().map(|thread| thread.join().expect("no panic")).collect()
        });
        (made, meeting.failed())
    }

    #[test]
    fn every_rank_sees_what_all_gave_at_each_meeting() {
        let (made, failed) = three(|seat| {
            assert_eq!((seat.ranks(), seat.ordinal()), (3, [4, 5, 7][seat.rank()]));
            (0..200u64)
                .map(|turn| {
                    if (turn + seat.rank() as u64).is_multiple_of(7) {
                        std::thread::sleep(Duration::from_micros(50));
                    }
                    seat.exchange("turns", [turn, seat.rank() as u64]).expect("nobody fails")
                })
                .collect::<Vec<_>>()
        });
        let wanted: Vec<_> = (0..200).map(|turn| vec![[turn, 0], [turn, 1], [turn, 2]]).collect();
        assert!(made.iter().all(|it| *it == wanted));
        assert_eq!(failed, None);
    }

    #[test]
    fn the_least_of_every_figure_is_agreed_on() {
        let own = [[9, 4, 1], [8, 5, 1], [10, 3, 0]];
        let (made, _) = three(|seat| seat.least("memory", own[seat.rank()]).expect("nobody fails"));
        assert_eq!(made, [[8, 3, 0]; 3]);
        assert_eq!(Seat::alone(&2).least("memory", [7, 1]).expect("alone"), [7, 1]);
        assert_eq!((Seat::alone(&2).ordinal(), Seat::alone(&2).ranks()), (2, 1));
    }

    #[test]
    fn a_rank_that_fails_ends_the_wait_of_the_others() {
        let meeting = Meeting::new(2);
        let words = std::thread::scope(|scope| {
            let waiting = scope.spawn(|| Seat::new(0, &[0, 1], &meeting).meet("kernels"));
            std::thread::sleep(Duration::from_millis(20));
            meeting.fail(1);
            waiting.join().expect("no panic").expect_err("nobody comes").to_string()
        });
        assert!(words.contains("rank 1 failed, and rank 0 waited"), "{words}");
        assert!(Seat::new(0, &[0, 1], &meeting).meet("graphs").is_err(), "nor does anybody come later");
    }

    #[test]
    fn ranks_that_come_for_different_things_are_told_so() {
        let (made, failed) = three(|seat| match seat.rank() {
            1 => {
                std::thread::sleep(Duration::from_millis(20));
                seat.meet("graphs")
            }
            _ => seat.meet("kernels"),
        });
        assert_eq!(failed, Some(1));
        let words = made[1].as_ref().expect_err("it came too early").to_string();
        assert!(words.contains("rank 1 came to exchange graphs while others exchange kernels"), "{words}");
        assert!(made.iter().all(Result::is_err));
    }
}
