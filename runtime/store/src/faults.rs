//! Fault injection: transfers that fail on command.

use crate::backend::{Backend, Kind, Transfer};
use crate::page::PageMemory;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// What goes wrong with a transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The device says that it failed; nothing was moved.
    Io,
    /// The disk is full; nothing was moved. Of a read, as [`Fault::Io`].
    NoSpace,
    /// Less than the page was moved, and the system says so.
    Short,
    /// One bit of the page is flipped silently.
    FlippedBit,
    /// The transfer is lost silently: the place or the memory keeps what it held before.
    Lost,
    /// The transfer takes so much longer.
    Slow(Duration),
}

/// What to do to which transfer: the number of the transfer, from 0, and what it is.
type Decide = Box<dyn FnMut(u64, Kind) -> Option<Fault> + Send>;

/// Decides which transfers fail, from outside, while a store works.
#[derive(Clone, Default)]
pub struct Faults {
    state: Arc<Mutex<State>>,
}

#[derive(Default)]
struct State {
    transfers: u64,
    injected: u64,
    decide: Option<Decide>,
}

impl std::fmt::Debug for Faults {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let state = self.state();
        write!(f, "Faults({} of {} transfers)", state.injected, state.transfers)
    }
}

impl Faults {
    /// From now on `decide` is asked for every transfer, by its number since the store was opened and its
    /// kind.
    pub fn set(&self, decide: impl FnMut(u64, Kind) -> Option<Fault> + Send + 'static) {
        self.state().decide = Some(Box::new(decide));
    }

    /// Lets everything through from now on.
    pub fn clear(&self) {
        self.state().decide = None;
    }

    /// Faults so far.
    pub fn injected(&self) -> u64 {
        self.state().injected
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn next(&self, kind: Kind) -> Option<Fault> {
        let mut state = self.state();
        let number = state.transfers;
        state.transfers += 1;
        let fault = state.decide.as_mut().and_then(|decide| decide(number, kind));
        state.injected += u64::from(fault.is_some());
        fault
    }

    /// A backend whose transfers fail.
    pub(crate) fn around<M, B>(&self, inner: B) -> Faulty<M, B> {
        Faulty { inner, faults: self.clone(), failed: Vec::new(), flips: Vec::new() }
    }
}

/// A backend around another.
pub(crate) struct Faulty<M, B> {
    inner: B,
    faults: Faults,
    failed: Vec<(Transfer<M>, io::Result<()>)>,
    /// Addresses of the pages in transfer in which a bit is to be flipped after the read.
    flips: Vec<usize>,
}

impl<M: PageMemory, B: Backend<M>> Backend<M> for Faulty<M, B> {
    fn begin(&mut self, mut transfer: Transfer<M>) {
        let error = match self.faults.next(transfer.kind) {
            Some(Fault::Io) => Err(io::Error::from(rustix::io::Errno::IO)),
            Some(Fault::NoSpace) if transfer.kind == Kind::Write => {
                Err(io::Error::from(rustix::io::Errno::NOSPC))
            }
            Some(Fault::NoSpace) => Err(io::Error::from(rustix::io::Errno::IO)),
            Some(Fault::Short) => Err(io::Error::from(io::ErrorKind::UnexpectedEof)),
            Some(Fault::Lost) => Ok(()),
            Some(Fault::Slow(time)) => {
                std::thread::sleep(time);
                return self.inner.begin(transfer);
            }
            Some(Fault::FlippedBit) => {
                match transfer.kind {
                    Kind::Write => flip(&mut transfer.page),
                    Kind::Read => self.flips.push(transfer.page.start().addr().get()),
                }
                return self.inner.begin(transfer);
            }
            None => return self.inner.begin(transfer),
        };
        self.failed.push((transfer, error));
    }

    fn in_flight(&self) -> usize {
        self.inner.in_flight() + self.failed.len()
    }

    fn finish(&mut self, done: &mut Vec<(Transfer<M>, io::Result<()>)>) {
        if !self.failed.is_empty() {
            done.append(&mut self.failed);
            return;
        }
        let before = done.len();
        self.inner.finish(done);
        for (transfer, _) in &mut done[before..] {
            let address = transfer.page.start().addr().get();
            if let Some(at) = self.flips.iter().position(|flip| *flip == address) {
                self.flips.swap_remove(at);
                flip(&mut transfer.page);
            }
        }
    }
}

fn flip<M: PageMemory>(page: &mut M) {
    let middle = page.len() / 2;
    page.bytes_mut()[middle] ^= 0x10;
}
