//! What handles send to the forward thread.

use crate::sequence::Sequence;
use std::sync::mpsc::{Receiver, TryRecvError};
use std::time::Instant;

/// What a handle sends.
#[derive(Debug)]
pub(crate) enum Command {
    /// A new sequence.
    Submit(Box<Sequence>),
    /// Stop when all accepted sequences are finished, or at the deadline, if there is one.
    Drain {
        /// When unfinished sequences fail.
        deadline: Option<Instant>,
    },
    /// Stop now, because answers are wrong; `cause` says how that is known.
    Condemn(String),
}

/// The receiving end, and the lasting effect of the commands received so far.
pub(super) struct Inbox {
    commands: Receiver<Command>,
    closed: bool,
    deadline: Option<Instant>,
    condemned: Option<String>,
}

impl Inbox {
    pub fn new(commands: Receiver<Command>) -> Inbox {
        Inbox { commands, closed: false, deadline: None, condemned: None }
    }

    /// The next request that has arrived, if there is one.
    pub fn next(&mut self) -> Option<Sequence> {
        loop {
            match self.commands.try_recv() {
                Ok(command) => {
                    if let Some(sequence) = self.receive(command) {
                        return Some(sequence);
                    }
                }
                Err(TryRecvError::Empty) => return None,
                Err(TryRecvError::Disconnected) => {
                    self.closed = true;
                    return None;
                }
            }
        }
    }

    /// Sleeps until a command arrives; returns the request if it was one.
    pub fn sleep(&mut self) -> Option<Sequence> {
        match self.commands.recv() {
            Ok(command) => self.receive(command),
            Err(_) => {
                self.closed = true;
                None
            }
        }
    }

    fn receive(&mut self, command: Command) -> Option<Sequence> {
        match command {
            Command::Submit(sequence) => return Some(*sequence),
            Command::Condemn(cause) => self.condemned = Some(cause),
            Command::Drain { deadline } => {
                self.closed = true;
                self.deadline = match (self.deadline, deadline) {
                    (Some(one), Some(other)) => Some(one.min(other)),
                    (one, other) => one.or(other),
                };
            }
        }
        None
    }

    /// Whether no request will be accepted any more.
    pub fn is_closed(&self) -> bool {
        self.closed
    }

    /// Whether the deadline of a drain has passed.
    pub fn is_overdue(&self) -> bool {
        self.deadline.is_some_and(|deadline| Instant::now() >= deadline)
    }

    /// Why answers are known to be wrong, if they are.
    pub fn condemned(&self) -> Option<&str> {
        self.condemned.as_deref()
    }
}
