//! Grammars are first compiled in a child process that can be killed, and then in the server, where a
//! compilation cannot be ([ADR
//! 0031](../../../../../../docs/adr/0031-a-grammar-is-tried-where-it-can-be-ended.md)).
//!
//! The process is the server's own binary, run with a verb of its own over a socket. What goes over it is a
//! length in four bytes, and so many bytes: first the tokens, then one grammar after another. What comes back
//! is the same: eight bytes with the bytes that it takes compiled, and what is wrong with it, if anything.

mod child;

pub(crate) use child::run;

use crate::request::text::Text;
use monomorph_grammar::{GrammarError, Patience, Trial};
use serde_json::{Value, json};
use std::io::{ErrorKind, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Verb of the server's binary that runs the child process.
pub(crate) const VERB: &str = "try-grammars";
/// How often to check whether the client still waits.
const POLL: Duration = Duration::from_millis(5);
/// How long a process may take to become ready.
const START: Duration = Duration::from_secs(10);
/// Grammars that one process tries: its memory is returned when it ends.
const TRIALS: usize = 256;
/// Idle processes kept for the next grammar.
const KEPT: usize = 1;

/// Processes that try grammars of one vocabulary.
#[derive(Debug)]
pub(crate) struct Trials {
    /// The first message to a process.
    tokens: Vec<u8>,
    idle: Mutex<Vec<Process>>,
}

impl Trials {
    /// For a vocabulary, reduced to single bytes: whether a grammar compiles does not depend on longer
    /// tokens.
    pub(crate) fn new(text: &Text, vocabulary: usize, ends: &[u32]) -> Trials {
        let tokenizer = &text.tokenizer;
        let (mut tokens, mut free) = (Vec::new(), Vec::new());
        let mut missing = [true; 256];
        for id in 0..vocabulary as u32 {
            match tokenizer.token_bytes(id) {
                Some(bytes) if tokenizer.is_special(id) => tokens.push(json!([id, bytes, true])),
                Some(&[byte]) if missing[usize::from(byte)] => {
                    missing[usize::from(byte)] = false;
                    tokens.push(json!([id, [byte], false]));
                }
                _ if free.len() < 256 => free.push(id),
                _ => {}
            }
        }
        let bytes = (0..=255u8).filter(|byte| missing[usize::from(*byte)]);
        tokens.extend(bytes.zip(free).map(|(byte, id)| json!([id, [byte], false])));
        let tokens = json!({"vocabulary": vocabulary, "ends": ends, "tokens": Value::Array(tokens)});
        Trials { tokens: tokens.to_string().into_bytes(), idle: Mutex::default() }
    }

    fn idle(&self) -> std::sync::MutexGuard<'_, Vec<Process>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A process that is ready.
    fn process(&self, patience: &Patience) -> Result<Process, Ended> {
        if let Some(process) = self.idle().pop() {
            return Ok(process);
        }
        let mut process = Process::start().map_err(|error| Ended::Failed(error.to_string()))?;
        process.ask(&self.tokens, Instant::now() + START, patience).map_err(|ended| match ended {
            Ended::Died | Ended::Late => Ended::Failed("the process did not become ready".to_owned()),
            other => other,
        })?;
        Ok(process)
    }
}

impl Trial for Trials {
    fn attempt(&self, grammar: &[u8], until: Instant, patience: &Patience) -> Result<usize, GrammarError> {
        let refused = |message: String| GrammarError { path: String::new(), message };
        let attempt = || {
            let mut process = self.process(patience)?;
            let said = process.ask(grammar, until, patience)?;
            process.tried += 1;
            let mut idle = self.idle();
            if process.tried < TRIALS && idle.len() < KEPT {
                idle.push(process);
            }
            Ok(said)
        };
        match attempt() {
            Ok((bytes, said)) if said.is_empty() => Ok(bytes),
            Ok((_, said)) => Err(refused(said)),
            Err(Ended::Late) => Err(patience.over()),
            Err(Ended::Died) => Err(refused(format!(
                "takes more memory to compile than the {} MiB that a grammar may; make it smaller or simpler",
                child::MEMORY >> 20
            ))),
            Err(Ended::Failed(why)) => Err(refused(format!(
                "cannot be tried before it is used, since no process for that can be run: {why}"
            ))),
        }
    }
}

/// Why a process did not answer.
enum Ended {
    /// The client left, or the time is over.
    Late,
    /// The process died.
    Died,
    /// The process could not be run.
    Failed(String),
}

/// A process; ended when dropped.
#[derive(Debug)]
struct Process {
    child: Child,
    socket: UnixStream,
    tried: usize,
}

impl Process {
    fn start() -> std::io::Result<Process> {
        let (socket, theirs) = UnixStream::pair()?;
        socket.set_read_timeout(Some(POLL))?;
        socket.set_write_timeout(Some(POLL))?;
        // This very binary, even if its file was replaced since.
        let mut command = Command::new("/proc/self/exe");
        command.arg0(std::env::args().next().unwrap_or_default()).arg(VERB);
        // Its own process group: signals from the server's terminal are not for it.
        command.process_group(0);
        command.stdin(Stdio::from(OwnedFd::from(theirs))).stdout(Stdio::null());
        // A stack overflow prints a long message.
        let child = command.stderr(Stdio::null()).spawn()?;
        Ok(Process { child, socket, tried: 0 })
    }

    /// Sends a message and waits for the answer: the bytes taken and the error text. After an error the
    /// process must be discarded.
    fn ask(&mut self, message: &[u8], until: Instant, patience: &Patience) -> Result<(usize, String), Ended> {
        let goes_on =
            || if patience.is_lost() || Instant::now() >= until { Err(Ended::Late) } else { Ok(()) };
        let length = u32::try_from(message.len()).map_err(|_| Ended::Failed("it is too long".to_owned()))?;
        for mut part in [&length.to_le_bytes()[..], message] {
            while !part.is_empty() {
                goes_on()?;
                match self.socket.write(part) {
                    Ok(written) => part = &part[written..],
                    Err(error) if is_timeout(&error) => {}
                    Err(_) => return Err(Ended::Died),
                }
            }
        }
        let mut read = |length: usize| {
            let (mut bytes, mut at) = (vec![0; length], 0);
            while at < length {
                goes_on()?;
                match self.socket.read(&mut bytes[at..]) {
                    Ok(0) => return Err(Ended::Died),
                    Ok(more) => at += more,
                    Err(error) if is_timeout(&error) => {}
                    Err(_) => return Err(Ended::Died),
                }
            }
            Ok(bytes)
        };
        let length = read(4)?;
        let length = length.iter().rev().fold(0usize, |length, byte| length << 8 | usize::from(*byte));
        let answer = read(length)?;
        let (bytes, said) = answer.split_first_chunk().ok_or(Ended::Died)?;
        Ok((u64::from_le_bytes(*bytes) as usize, String::from_utf8_lossy(said).into_owned()))
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // A process that has ended must still be reaped.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn is_timeout(error: &std::io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted)
}
