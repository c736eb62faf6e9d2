//! The line to a rank's thread: one call at a time goes over it, and its answer comes back.
//!
//! A call lends what it refers to (a step, a buffer of blocks): [`Lines::carry_out`] does not return before
//! every thread has answered or ended, so nothing is copied for the ranks.

use crate::call::{Answer, Call};
use crate::message;
use crate::wait::{A_STEP, BETWEEN_CALLS, wait};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::{JoinHandle, Thread};
use std::time::{Duration, Instant};

/// How long threads get to end.
const ENDING: Duration = Duration::from_secs(2);

/// What both ends of a line see.
#[derive(Debug, Default)]
struct Line {
    /// Number of the call that was made last.
    called: AtomicU64,
    call: Mutex<Option<Posted>>,
    /// Number of the call that was answered last.
    answered: AtomicU64,
    answer: Mutex<Option<Answer>>,
    /// Whether no more calls will be made.
    closed: AtomicBool,
    /// Why the thread ended.
    ended: OnceLock<String>,
}

/// A call, its number, and who waits for the answer.
#[derive(Debug)]
struct Posted {
    number: u64,
    call: Call<'static>,
    caller: Thread,
}

/// A rank that ended, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Ended {
    pub(crate) rank: usize,
    pub(crate) why: String,
}

/// The lines to all ranks.
#[derive(Debug)]
pub(crate) struct Lines {
    lines: Vec<(Arc<Line>, JoinHandle<()>)>,
    /// Number of the last call.
    calls: u64,
}

impl Lines {
    /// Starts a thread for each rank, which carries out calls as its closure says.
    ///
    /// # Errors
    /// When the system refuses one.
    pub(crate) fn start<W: FnMut(Call) -> Answer + Send + 'static>(
        ranks: impl IntoIterator<Item = W>,
    ) -> std::io::Result<Lines> {
        let mut all = Lines { lines: Vec::new(), calls: 0 };
        for (rank, work) in ranks.into_iter().enumerate() {
            let line = Arc::new(Line::default());
            let served = Arc::clone(&line);
            let builder = std::thread::Builder::new().name(format!("rank {rank}"));
            all.lines.push((line, builder.spawn(move || serve(work, &served))?));
        }
        Ok(all)
    }

    /// Makes a call of every rank, `call(rank)`, and waits for all answers, by rank.
    ///
    /// # Errors
    /// The first rank found to have ended, once the others have answered or ended too.
    pub(crate) fn carry_out<'a>(
        &mut self,
        call: impl FnMut(usize) -> Call<'a>,
    ) -> Result<Vec<Answer>, Ended> {
        self.check()?;
        self.calls += 1;
        let lent = Lent { lines: &self.lines, number: self.calls };
        for ((line, thread), call) in lent.lines.iter().zip((0..lent.lines.len()).map(call)) {
            // SAFETY: `lent` is not dropped, by a return or an unwinding, before every thread that was given
            // this call has answered it or ended, and a thread keeps nothing of a call beyond its answer.
            let call = unsafe { std::mem::transmute::<Call<'a>, Call<'static>>(call) };
            line.post(thread.thread(), lent.number, call);
        }
        drop(lent);
        self.answers()
    }

    /// The same for a step to collect. It is not waited for once a rank has ended: the devices of others may
    /// wait for what that rank was to send them.
    ///
    /// # Errors
    /// The first rank found to have ended.
    pub(crate) fn collect(&mut self, ticket: u64) -> Result<Vec<Answer>, Ended> {
        self.check()?;
        self.calls += 1;
        for (line, thread) in &self.lines {
            line.post(thread.thread(), self.calls, Call::Collect(ticket));
        }
        wait(A_STEP, || {
            let answered = |line: &Line| line.answered.load(Ordering::Acquire) == self.calls;
            self.lines.iter().all(|(line, _)| answered(line))
                || self.lines.iter().any(|(line, _)| line.has_ended())
        });
        self.answers()
    }

    /// What all ranks answered.
    fn answers(&self) -> Result<Vec<Answer>, Ended> {
        self.check()?;
        let answer = |(line, _): &(Arc<Line>, _)| held(&line.answer).take();
        Ok(self.lines.iter().filter_map(answer).collect())
    }

    /// Checks that no rank has ended.
    fn check(&self) -> Result<(), Ended> {
        let ended = |(rank, (line, _)): (usize, &(Arc<Line>, _))| {
            line.ended.get().map(|why| Ended { rank, why: why.clone() })
        };
        self.lines.iter().enumerate().find_map(ended).map_or(Ok(()), Err)
    }
}

impl Drop for Lines {
    fn drop(&mut self) {
        for (line, thread) in &self.lines {
            line.closed.store(true, Ordering::Release);
            thread.thread().unpark();
        }
        // A thread that waits for a device which has failed may not end; the process will.
        let begun = Instant::now();
        while begun.elapsed() < ENDING && !self.lines.iter().all(|(_, thread)| thread.is_finished()) {
            std::thread::sleep(Duration::from_micros(200));
        }
    }
}

/// A call whose references threads may still use.
struct Lent<'a> {
    lines: &'a [(Arc<Line>, JoinHandle<()>)],
    number: u64,
}

impl Drop for Lent<'_> {
    fn drop(&mut self) {
        let returned = |line: &Line| {
            // A line may not have been called: making the call of one before it panicked.
            line.called.load(Ordering::Acquire) != self.number
                || line.answered.load(Ordering::Acquire) == self.number
                || line.has_ended()
        };
        wait(BETWEEN_CALLS, || self.lines.iter().all(|(line, _)| returned(line)));
        // What a thread that has ended did not take.
        self.lines.iter().for_each(|(line, _)| *held(&line.call) = None);
    }
}

impl Line {
    fn post(&self, thread: &Thread, number: u64, call: Call<'static>) {
        *held(&self.call) = Some(Posted { number, call, caller: std::thread::current() });
        self.called.store(number, Ordering::Release);
        thread.unpark();
    }

    fn has_ended(&self) -> bool {
        self.ended.get().is_some()
    }
}

/// A rank's thread: carries out the calls of its line until that is closed, or a call unwinds.
fn serve(mut work: impl FnMut(Call) -> Answer, line: &Line) {
    // The number and name of the call at hand, and who waits for it.
    let mut at_hand: Option<(&'static str, Thread)> = None;
    let served = catch_unwind(AssertUnwindSafe(|| {
        let mut last = 0;
        loop {
            wait(BETWEEN_CALLS, || {
                line.called.load(Ordering::Acquire) != last || line.closed.load(Ordering::Acquire)
            });
            let Some(Posted { number, call, caller }) = held(&line.call).take() else {
                return "it was told to end".to_owned();
            };
            at_hand = Some((call.name(), caller.clone()));
            if number != last + 1 {
                return format!("it was given call {number} after call {last}");
            }
            let answer = work(call);
            last = number;
            *held(&line.answer) = Some(answer);
            line.answered.store(number, Ordering::Release);
            caller.unpark();
        }
    }));
    let why = served.unwrap_or_else(|panic| {
        let name = at_hand.as_ref().map_or("a call", |(name, _)| *name);
        format!("{name}: {}", message!(panic))
    });
    // Before the rank is dropped, which may wait for its device.
    let _ = line.ended.set(why);
    if let Some((_, caller)) = at_hand {
        caller.unpark();
    }
}

fn held<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;
    use monomorph_model::BlockId;
    use std::panic::AssertUnwindSafe;

    /// Lines to ranks that write their number into blocks, and panic when block 9 is asked for.
    fn lines(ranks: u8) -> Lines {
        let work = |rank: u8| {
            move |call: Call| match call {
                Call::ReadBlock(BlockId(block), into) => {
                    assert!(block != 9, "there is no block 9");
                    std::thread::sleep(Duration::from_micros(u64::from(rank) * 100));
                    into.fill(rank);
                    Answer::Done
                }
                Call::Collect(ticket) => Answer::Ticket(monomorph_model::Ticket(ticket)),
                other => panic!("{other:?}"),
            }
        };
        Lines::start((0..ranks).map(work)).expect("threads")
    }

    fn read(lines: &mut Lines, block: u32, bytes: &mut [[u8; 4]]) -> Result<(), Ended> {
        let mut parts = bytes.iter_mut();
        lines.carry_out(|_| Call::ReadBlock(BlockId(block), parts.next().expect("a part"))).map(drop)
    }

    #[test]
    fn what_is_lent_has_been_written_when_the_call_returns() {
        let mut lines = lines(4);
        for _ in 0..50 {
            let mut bytes = [[9; 4]; 4];
            assert_eq!(read(&mut lines, 1, &mut bytes), Ok(()));
            assert_eq!(bytes, [[0; 4], [1; 4], [2; 4], [3; 4]]);
        }
        assert_eq!(lines.collect(7).expect("answers").len(), 4);
    }

    #[test]
    fn a_thread_that_ends_is_named_and_the_others_are_waited_for() {
        let mut lines = lines(3);
        let mut bytes = [[9; 4]; 3];
        let mut parts = bytes.iter_mut();
        let call =
            |rank| Call::ReadBlock(BlockId(if rank == 1 { 9 } else { 1 }), parts.next().expect("a part"));
        let ended = lines.carry_out(call).expect_err("rank 1 panics");
        assert_eq!((ended.rank, ended.why.as_str()), (1, "read_block: there is no block 9"));
        assert_eq!(bytes, [[0; 4], [9; 4], [2; 4]]);
        assert_eq!(lines.collect(1).expect_err("nor later"), ended);
    }

    #[test]
    fn what_is_lent_is_waited_for_when_a_call_cannot_be_made() {
        let mut lines = lines(3);
        let mut bytes = [[9; 4]; 2];
        // There is no part for rank 2: making its call panics while those before may be at work.
        let made = catch_unwind(AssertUnwindSafe(|| read(&mut lines, 1, &mut bytes)));
        assert!(made.is_err());
        assert_eq!(bytes, [[0; 4], [1; 4]]);
    }

    #[test]
    fn a_call_that_was_skipped_or_came_out_of_turn_ends_the_thread() {
        for wrong in [2, 5] {
            let mut lines = lines(2);
            assert_eq!(read(&mut lines, 1, &mut [[0; 4]; 2]), Ok(()));
            assert_eq!(read(&mut lines, 1, &mut [[0; 4]; 2]), Ok(()));
            // Rank 1 is given a call that is not its next.
            let (line, thread) = &lines.lines[1];
            line.post(thread.thread(), wrong + 10, Call::Collect(1));
            wait(BETWEEN_CALLS, || line.has_ended());
            let ended = read(&mut lines, 1, &mut [[0; 4]; 2]).expect_err("rank 1 has ended");
            assert_eq!(
                (ended.rank, ended.why),
                (1, format!("it was given call {} after call 2", wrong + 10))
            );
        }
    }
}
