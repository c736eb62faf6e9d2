//! `serve --supervised`: a process that keeps a server running. It has the socket that clients connect to, so
//! that they wait in its queue while another server loads, and starts one when one ends by a fault or is not
//! heard of. What it decides is [`History::after`].

use super::serve::{ServeArgs, listen};
use super::stopping::{Meaning, Signals};
use crate::failure::Failure;
use crate::process::notify::{self, Notifier};
use crate::process::out;
use crate::process::random::random_seed;
use rustix::process::{Pid, Signal, kill_process};
use std::net::TcpListener;
use std::os::fd::OwnedFd;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};
use tokio::process::Child;

/// How long a server may not be heard of, once it was, and before: devices take their time.
const PATIENCE: Duration = Duration::from_secs(10);
const FIRST: Duration = Duration::from_secs(120);
/// How long the first failure of a start is waited for, and the longest; each is twice the one before.
const WAIT: [Duration; 2] = [Duration::from_millis(250), Duration::from_secs(30)];
/// Starts that may fail in a row, of a server that was ready once.
const STARTS: u32 = 8;
/// The exit code of a process that ended by a signal is so much above the signal, as shells have it.
const OF_SIGNALS: u8 = 128;

/// How a server ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ended {
    Code(u8),
    Signal(u8),
    /// It was not heard of, and was killed.
    Silent,
}

/// What to do then.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Next {
    /// Start another one, after so long.
    Start(Duration),
    /// End with this code.
    End(u8),
}

/// What was seen so far.
#[derive(Clone, Copy, Debug, Default)]
struct History {
    /// Whether a server was ever ready.
    was_ready: bool,
    /// Starts in a row that failed.
    failed: u32,
}

impl History {
    /// What to do after a server that was `ready`, or never was; `stopping` if it was told to end.
    fn after(&mut self, ended: Ended, ready: bool, stopping: bool) -> Next {
        let code = match ended {
            Ended::Code(code) => code,
            Ended::Signal(signal) => OF_SIGNALS.saturating_add(signal),
            Ended::Silent => 1,
        };
        self.was_ready |= ready;
        self.failed = if ready { 0 } else { self.failed + 1 };
        // What was wrong with the first start is wrong with the next: a command line, weights, hardware.
        if stopping || ended == Ended::Code(0) || !self.was_ready || self.failed > STARTS {
            return Next::End(code);
        }
        let doubled = WAIT[0] * 2u32.saturating_pow(self.failed.saturating_sub(1));
        Next::Start(if self.failed == 0 { Duration::ZERO } else { doubled.min(WAIT[1]) })
    }
}

/// Keeps a server running until it is told to end.
///
/// # Errors
/// When the address is taken, or the first server does not become ready.
pub(crate) fn supervise(args: &ServeArgs) -> Result<(), Failure> {
    if !args.processes.is_alone() {
        let message =
            "--supervised: a server of several processes ends as a whole; supervise each with systemd";
        return Err(message.to_owned().into());
    }
    let listener = listen(args)?;
    let cannot = |error: std::io::Error| format!("--supervised: {error}");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(cannot)?;
    runtime.block_on(async {
        let above = Notifier::from_environment()?;
        let name = format!("monomorph-{}-{:016x}", std::process::id(), random_seed());
        let inbox = SocketAddr::from_abstract_name(&name).and_then(|name| UnixDatagram::bind_addr(&name));
        let inbox = inbox.and_then(|inbox| inbox.set_nonblocking(true).map(|()| inbox));
        let inbox = inbox.and_then(tokio::net::UnixDatagram::from_std).map_err(cannot)?;
        let mut supervisor = Supervisor {
            signals: Signals::new().map_err(cannot)?,
            listener,
            name: format!("@{name}"),
            inbox,
            above,
            stopping: false,
        };
        supervisor.run().await
    })
}

struct Supervisor {
    signals: Signals,
    listener: TcpListener,
    /// Where servers tell how they are.
    name: String,
    inbox: tokio::net::UnixDatagram,
    /// The supervisor of this process.
    above: Option<Notifier>,
    /// Whether it was told to end.
    stopping: bool,
}

impl Supervisor {
    async fn run(&mut self) -> Result<(), Failure> {
        let mut history = History::default();
        loop {
            let began = Instant::now();
            let child =
                self.start().map_err(|error| format!("--supervised: cannot start a server: {error}"))?;
            let (ended, ready) = self.watch(child).await.map_err(|error| format!("--supervised: {error}"))?;
            let how = match ended {
                Ended::Code(code) => format!("the server ended with code {code}"),
                Ended::Signal(signal) => format!("the server was ended by signal {signal}"),
                Ended::Silent => "the server was not heard of, and was killed".to_owned(),
            };
            match history.after(ended, ready, self.stopping) {
                Next::End(0) => return Ok(()),
                Next::End(code) => return Err(Failure { message: how, code }),
                Next::Start(wait) => {
                    let lasted = began.elapsed().as_secs();
                    out::say(format_args!("supervised: {how} after {lasted} s: starting another one"));
                    tokio::select! {
                        () = tokio::time::sleep(wait) => {}
                        () = asked_to_end(&mut self.signals) => return Ok(()),
                    }
                }
            }
        }
    }

    /// Starts a server as this process was started, with the listening socket in place of its input.
    fn start(&self) -> std::io::Result<Child> {
        let mut arguments = std::env::args_os();
        let name = arguments.next().unwrap_or_default();
        let arguments =
            arguments.map(|it| if it == "--supervised" { "--listener-on-stdin".into() } else { it });
        let mut command = Command::new(std::env::current_exe()?);
        command
            .arg0(name)
            .args(arguments)
            .stdin(Stdio::from(OwnedFd::from(self.listener.try_clone()?)))
            .env(notify::SOCKET, &self.name)
            .env(notify::WATCHDOG, PATIENCE.as_micros().to_string())
            .env_remove(notify::WATCHDOG_PROCESS)
            // A terminal's signals come to this process, which passes them on.
            .process_group(0);
        tokio::process::Command::from(command).kill_on_drop(true).spawn()
    }

    /// Waits until a server ends; how, and whether it was ready.
    async fn watch(&mut self, mut child: Child) -> std::io::Result<(Ended, bool)> {
        let mut ready = false;
        let mut silent = Instant::now() + FIRST;
        let mut buffer = [0; 256];
        loop {
            tokio::select! {
                status = child.wait() => return Ok((ended(status?), ready)),
                length = self.inbox.recv(&mut buffer) => {
                    silent = Instant::now() + PATIENCE;
                    let told = String::from_utf8_lossy(&buffer[..length?]).into_owned();
                    ready |= told.lines().any(|line| line == notify::READY);
                    if let Some(above) = &self.above {
                        above.tell(&told);
                    }
                }
                (number, _, meaning) = self.signals.next() => match meaning {
                    Meaning::Stop | Meaning::Going => {
                        self.stopping = true;
                        send(&child, number);
                    }
                    Meaning::Nothing | Meaning::Written => {}
                },
                () = tokio::time::sleep_until(silent.into()) => {
                    child.kill().await?;
                    return Ok((Ended::Silent, ready));
                }
            }
        }
    }
}

/// Waits for a signal that ends the process.
async fn asked_to_end(signals: &mut Signals) {
    while !matches!(signals.next().await.2, Meaning::Stop | Meaning::Going) {}
}

fn ended(status: ExitStatus) -> Ended {
    match (status.code(), status.signal()) {
        (Some(code), _) => Ended::Code(code as u8),
        (None, signal) => Ended::Signal(signal.unwrap_or_default() as u8),
    }
}

/// Passes a signal on; a server that is gone is seen by the wait for it.
fn send(child: &Child, number: i32) {
    let process = child.id().and_then(|id| Pid::from_raw(id as i32));
    if let (Some(process), Some(signal)) = (process, Signal::from_named_raw(number)) {
        let _ = kill_process(process, signal);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const AT_ONCE: Next = Next::Start(Duration::ZERO);

    #[test]
    fn a_server_that_was_ready_is_started_again_whatever_ended_it() {
        for ended in [Ended::Code(1), Ended::Code(4), Ended::Code(101), Ended::Signal(9), Ended::Silent] {
            let mut history = History::default();
            for _ in 0..100 {
                assert_eq!(history.after(ended, true, false), AT_ONCE, "{ended:?}");
            }
        }
        assert_eq!(History::default().after(Ended::Code(0), true, false), Next::End(0));
    }

    #[test]
    fn a_first_start_that_fails_is_the_last() {
        for (ended, code) in [(Ended::Code(3), 3), (Ended::Code(1), 1), (Ended::Signal(6), 134)] {
            assert_eq!(History::default().after(ended, false, false), Next::End(code), "{ended:?}");
        }
    }

    #[test]
    fn later_starts_that_fail_are_waited_for_and_counted() {
        let mut history = History::default();
        assert_eq!(history.after(Ended::Code(4), true, false), AT_ONCE);
        let waits: Vec<Next> = (0..9).map(|_| history.after(Ended::Code(3), false, false)).collect();
        let milliseconds = |it: u64| Next::Start(Duration::from_millis(it));
        let wanted = [250, 500, 1000, 2000, 4000, 8000, 16_000, 30_000].map(milliseconds);
        assert_eq!(waits[..8], wanted);
        assert_eq!(waits[8], Next::End(3));
        // One that is ready again begins the count anew.
        let mut history = History { was_ready: true, failed: 7 };
        assert_eq!(history.after(Ended::Signal(9), true, false), AT_ONCE);
        assert_eq!(history.after(Ended::Code(3), false, false), milliseconds(250));
    }

    #[test]
    fn one_that_was_told_to_end_is_the_last() {
        assert_eq!(History::default().after(Ended::Code(0), true, true), Next::End(0));
        assert_eq!(History::default().after(Ended::Code(1), true, true), Next::End(1));
        assert_eq!(History::default().after(Ended::Signal(15), false, true), Next::End(143));
    }
}
