//! Signals, and the end of the process, which comes on time whatever still runs.
//!
//! A thread with its own runtime handles both: steps, HTTP workers, the dump's disk and the reader of
//! standard error may all hang.

use crate::http::app::App;
use crate::process::out;
use monomorph_abi::serve::END_SECONDS;
use std::sync::Arc;
use std::sync::mpsc::sync_channel;
use std::task::Poll;
use std::time::{Duration, Instant};
use tokio::runtime::Builder;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::watch;

/// How much later than the drain's deadline the process ends at the latest. The engine, clients and the dump
/// have their own times before, which are shorter.
const GRACE: Duration = Duration::from_secs(END_SECONDS);
/// How long the last message may take to be written.
const LAST_WORD: Duration = Duration::from_millis(200);
/// Exit code of a server that could not end as it should.
const EXIT_CUT: i32 = 1;

/// The meaning of a signal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Meaning {
    /// Shut down; a second one, at once.
    Stop,
    /// Shut down because something it needs goes away. It may come twice, from a terminal and its shell.
    Going,
    /// Ignored by a server. Its default action would end the process.
    Nothing,
    /// A write beyond the limit of file sizes, which the writer sees as an error.
    Written,
}

/// The signals handled.
const KNOWN: [(i32, &str, Meaning); 9] = [
    (libc::SIGTERM, "SIGTERM", Meaning::Stop),
    (libc::SIGINT, "Ctrl-C", Meaning::Stop),
    (libc::SIGHUP, "SIGHUP", Meaning::Going),
    (libc::SIGPWR, "SIGPWR", Meaning::Going),
    (libc::SIGXCPU, "SIGXCPU", Meaning::Going),
    (libc::SIGUSR1, "SIGUSR1", Meaning::Nothing),
    (libc::SIGUSR2, "SIGUSR2", Meaning::Nothing),
    (libc::SIGALRM, "SIGALRM", Meaning::Nothing),
    (libc::SIGXFSZ, "SIGXFSZ", Meaning::Written),
];

/// State of the server's shutdown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Loading,
    Serving,
    Draining,
}

/// The reaction to a signal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Action {
    /// Ends the process at once.
    Leave,
    /// Finishes what was accepted.
    Drain,
    /// Reports that the signal is ignored.
    Note,
    Nothing,
}

fn action(meaning: Meaning, phase: Phase) -> Action {
    match (meaning, phase) {
        (Meaning::Written, _) => Action::Nothing,
        (Meaning::Nothing, _) | (Meaning::Going, Phase::Draining) => Action::Note,
        (Meaning::Stop | Meaning::Going, Phase::Serving) => Action::Drain,
        (Meaning::Stop | Meaning::Going, Phase::Loading) | (Meaning::Stop, Phase::Draining) => Action::Leave,
    }
}

/// Deadline and exit code of the process, once set.
type End = Option<(Instant, i32)>;

/// Reports when to stop, and ends the process if it does not stop in time.
#[derive(Debug)]
pub(super) struct Stopping {
    begun: watch::Receiver<bool>,
    end: watch::Sender<End>,
}

impl Stopping {
    /// Listens for signals from now on. The first one that means it drains the engine of `app`, which gets
    /// `drain` for it.
    ///
    /// # Errors
    /// When the system refuses a thread, or to hand over signals.
    pub(super) fn listen(app: Arc<App>, drain: Duration) -> Result<Stopping, String> {
        let cannot = |error: std::io::Error| format!("cannot listen for signals: {error}");
        let runtime = Builder::new_current_thread().enable_all().build().map_err(cannot)?;
        let signals = {
            let _inside = runtime.enter();
            Signals::new().map_err(cannot)?
        };
        let (begin, begun) = watch::channel(false);
        let (end, ends) = watch::channel(None);
        let attendant = Attendant { signals, app, drain, begin, end: end.clone(), ends };
        std::thread::Builder::new()
            .name("signals".into())
            .spawn(move || runtime.block_on(attendant.attend()))
            .map_err(cannot)?;
        Ok(Stopping { begun, end })
    }

    /// Waits until a drain has begun.
    pub(super) async fn begun(&self) {
        if self.begun.clone().wait_for(|begun| *begun).await.is_err() {
            // The attendant goes only with the process.
            std::future::pending::<()>().await;
        }
    }

    /// Whether one has.
    pub(super) fn has_begun(&self) -> bool {
        *self.begun.borrow()
    }

    /// Gives the rest of the shutdown so long; then the process ends with `code`. Of two deadlines the
    /// earlier counts.
    pub(super) fn end_within(&self, time: Duration, code: i32) {
        set(&self.end, Instant::now().checked_add(time).map(|at| (at, code)));
    }
}

/// Sets an end, unless an earlier one is set.
fn set(end: &watch::Sender<End>, new: End) {
    end.send_if_modified(|end| {
        let earlier = match (&end, new) {
            (_, None) => false,
            (None, Some(_)) => true,
            (Some((old, _)), Some((new, _))) => new < *old,
        };
        if earlier {
            *end = new;
        }
        earlier
    });
}

/// State of the signal thread.
struct Attendant {
    signals: Signals,
    app: Arc<App>,
    drain: Duration,
    begin: watch::Sender<bool>,
    end: watch::Sender<End>,
    ends: watch::Receiver<End>,
}

impl Attendant {
    async fn attend(mut self) {
        loop {
            let end = *self.ends.borrow_and_update();
            tokio::select! {
                (_, name, meaning) = self.signals.next() => self.answer(name, meaning),
                code = over(end) => {
                    leave(code, "something still runs that does not end: leaving".to_owned());
                }
                _ = self.ends.changed() => {}
            }
        }
    }

    fn answer(&self, name: &str, meaning: Meaning) {
        let phase = match (self.app.ready.get(), *self.begin.borrow()) {
            (None, _) => Phase::Loading,
            (Some(_), false) => Phase::Serving,
            (Some(_), true) => Phase::Draining,
        };
        match (action(meaning, phase), phase) {
            (Action::Leave, Phase::Loading) => leave(EXIT_CUT, format!("{name} while loading: leaving")),
            (Action::Leave, _) => leave(EXIT_CUT, format!("{name} again: leaving")),
            (Action::Drain, _) => self.drain(name),
            (Action::Note, Phase::Draining) => say(format!("{name}: accepted requests are being finished")),
            (Action::Note, _) => say(format!("{name} means nothing to this server, and is ignored")),
            (Action::Nothing, _) => {}
        }
    }

    fn drain(&self, name: &str) {
        let Some(ready) = self.app.ready.get() else { return };
        // Before the engine refuses requests. A deadline that the clock cannot represent is none.
        if let Some(end) = Instant::now().checked_add(self.drain) {
            let _ = self.app.drained.set(end);
            set(&self.end, end.checked_add(GRACE).map(|end| (end, EXIT_CUT)));
        }
        ready.engine.drain(self.drain);
        let seconds = self.drain.as_secs();
        say(format!(
            "{name}: finishing accepted requests, for {seconds} s at most; SIGTERM or Ctrl-C leaves at once"
        ));
        // Logged before the drain begins: an idle server may end at once, and the reason would be lost.
        self.begin.send_replace(true);
    }
}

/// Waits until an end, and for ever where none is set; the exit code.
async fn over(end: End) -> i32 {
    match end {
        Some((at, code)) => {
            tokio::time::sleep_until(at.into()).await;
            code
        }
        None => std::future::pending().await,
    }
}

/// Prints a message, but waits only a moment: its reader may hang.
fn say(text: String) {
    let (done, said) = sync_channel::<()>(1);
    let speak = move || {
        out::say(format_args!("{text}"));
        drop(done);
    };
    if std::thread::Builder::new().name("last word".into()).spawn(speak).is_ok() {
        let _ = said.recv_timeout(LAST_WORD);
    }
}

/// Ends the process now.
fn leave(code: i32, why: String) -> ! {
    say(why);
    // SAFETY: ends the process without running any more of its code: what is registered to run at its end (a
    // device's driver among it) might wait for the threads that do not end.
    unsafe { libc::_exit(code) }
}

/// What is listened for, each with its name and meaning.
pub(super) struct Signals(Vec<(Signal, i32, &'static str, Meaning)>);

impl Signals {
    /// From now on, inside of a runtime.
    ///
    /// # Errors
    /// When the system refuses to hand them over.
    pub(super) fn new() -> std::io::Result<Signals> {
        let ignored = ignored();
        // `nohup` says beforehand that the terminal may go.
        let wanted = KNOWN.iter().filter(|(number, ..)| *number != libc::SIGHUP || !is_in(ignored, *number));
        let listen = |&(number, name, meaning): &(i32, &'static str, Meaning)| {
            Ok((signal(SignalKind::from_raw(number))?, number, name, meaning))
        };
        wanted.map(listen).collect::<Result<_, _>>().map(Signals)
    }

    /// Waits for the next signal: its number, name and meaning.
    pub(super) async fn next(&mut self) -> (i32, &'static str, Meaning) {
        std::future::poll_fn(|context| {
            for (signal, number, name, meaning) in &mut self.0 {
                if signal.poll_recv(context).is_ready() {
                    return Poll::Ready((*number, *name, *meaning));
                }
            }
            Poll::Pending
        })
        .await
    }
}

/// The signals that the process was started to ignore, a bit each.
fn ignored() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or_default()
}

fn is_in(mask: u64, signal: i32) -> bool {
    mask >> (signal - 1) & 1 == 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_asks_again_leaves_and_nothing_else_cuts_a_drain() {
        use Meaning::{Going, Nothing, Stop, Written};
        use Phase::{Draining, Loading, Serving};
        for (meaning, phase, wanted) in [
            (Stop, Loading, Action::Leave),
            (Stop, Serving, Action::Drain),
            (Stop, Draining, Action::Leave),
            (Going, Loading, Action::Leave),
            (Going, Serving, Action::Drain),
            (Going, Draining, Action::Note),
            (Nothing, Loading, Action::Note),
            (Nothing, Serving, Action::Note),
            (Nothing, Draining, Action::Note),
            (Written, Loading, Action::Nothing),
            (Written, Serving, Action::Nothing),
            (Written, Draining, Action::Nothing),
        ] {
            assert_eq!(action(meaning, phase), wanted, "{meaning:?} {phase:?}");
        }
    }

    #[test]
    fn the_earlier_end_counts() {
        let (end, ends) = watch::channel(None);
        let now = Instant::now();
        let at = |seconds| Some((now + Duration::from_secs(seconds), seconds as i32));
        for (new, wanted) in [(None, None), (at(5), at(5)), (at(9), at(5)), (None, at(5)), (at(2), at(2))] {
            set(&end, new);
            assert_eq!(*ends.borrow(), wanted);
        }
    }

    #[test]
    fn a_mask_of_signals_is_read() {
        let hangup = 1 << (libc::SIGHUP - 1);
        assert!(is_in(hangup, libc::SIGHUP) && !is_in(hangup, libc::SIGINT));
        // Rust's runtime ignores this one.
        assert!(is_in(ignored(), libc::SIGPIPE));
    }
}
