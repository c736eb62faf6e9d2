//! The store: places, transfers and completions.

use crate::backend::{Backend, Kind, PageSlot, Transfer};
use crate::error::{OpenError, PageError};
use crate::file::Named;
use crate::open::{How, Options, prepare, prepare_named};
use crate::page::{Page, PageMemory};
use crate::plain::Plain;
use crate::worker::{Done, Worker};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

/// How long dropping a store waits for transfers. A disk that hangs longer keeps its thread and its pages,
/// but blocks no one.
const GRACE: Duration = Duration::from_secs(2);

/// A completed transfer.
#[derive(Debug)]
pub struct Completion<M = Page> {
    /// The caller's tag.
    pub tag: u64,
    /// The direction.
    pub kind: Kind,
    /// Where the page is in the file.
    pub place: PageSlot,
    /// The checksum of its bytes: of those that were written, or that were to be read.
    pub sum: u64,
    /// The page, returned to the caller. Its contents are undefined after a failed read.
    pub page: M,
    /// Whether the transfer succeeded.
    pub result: Result<(), PageError>,
}

/// A transfer that was refused.
#[derive(Debug)]
pub struct Refused<M = Page> {
    /// The page, returned to the caller.
    pub page: M,
    /// The reason.
    pub why: PageError,
}

/// The state of a place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Free,
    /// A page is being written to it.
    Writing,
    /// Its page could not be written.
    Failed,
    /// It holds a page of this checksum, which is being read so many times.
    Holds {
        sum: u64,
        readers: u32,
    },
    /// It was freed by the caller, and becomes free when so many transfers are done.
    Freed {
        busy: u32,
    },
}

/// Pages in a file. Dropping it waits for transfers and removes the file.
#[derive(Debug)]
pub struct DiskStore<M: PageMemory = Page> {
    page_bytes: usize,
    states: Vec<State>,
    /// Low ones last, so that they go first.
    free: Vec<PageSlot>,
    in_flight: usize,
    inbox: Sender<Transfer<M>>,
    outbox: Receiver<Done<M>>,
    closing: Arc<AtomicBool>,
    thread: Option<std::thread::JoinHandle<()>>,
    how: How,
}

impl<M: PageMemory> DiskStore<M> {
    /// Opens a store in a directory, and removes files that ended processes left there. `report` receives a
    /// line where io_uring or direct I/O is not available.
    ///
    /// # Errors
    /// When the directory does not exist or is not writable, its disk has too little room, or sizes make no
    /// sense.
    pub fn open(
        directory: &Path,
        options: Options,
        report: impl Fn(std::fmt::Arguments),
    ) -> Result<DiskStore<M>, OpenError> {
        let (file, how, ring) = prepare(directory, options, &report)?;
        match ring {
            Some(ring) => DiskStore::start(directory, options, ring, how),
            None => DiskStore::start(directory, options, Plain::new(file), how),
        }
    }

    /// As [`Self::open`], with transfers that fail as `faults` says.
    ///
    /// # Errors
    /// As [`Self::open`].
    #[cfg(feature = "test-support")]
    pub fn open_with_faults(
        directory: &Path,
        options: Options,
        faults: &crate::Faults,
        report: impl Fn(std::fmt::Arguments),
    ) -> Result<DiskStore<M>, OpenError> {
        let (file, how, ring) = prepare(directory, options, &report)?;
        match ring {
            Some(ring) => DiskStore::start(directory, options, faults.around(ring), how),
            None => DiskStore::start(directory, options, faults.around(Plain::new(file)), how),
        }
    }

    /// As [`Self::open`], as if io_uring were forbidden.
    ///
    /// # Errors
    /// As [`Self::open`].
    #[cfg(feature = "test-support")]
    pub fn open_plain(directory: &Path, options: Options) -> Result<DiskStore<M>, OpenError> {
        let (file, how, _) = prepare::<M>(directory, options, &|_| {})?;
        DiskStore::start(directory, options, Plain::new(file), How { ring: false, ..how })
    }

    /// Opens a store on a file that has a name and may hold pages: those of `held`, by their places and
    /// checksums. `report` as of [`Self::open`].
    ///
    /// # Errors
    /// As [`Self::open`].
    pub(crate) fn open_named(
        named: &Named,
        options: Options,
        held: impl IntoIterator<Item = (u32, u64)>,
        report: impl Fn(std::fmt::Arguments),
    ) -> Result<DiskStore<M>, OpenError> {
        let (file, how, ring) = prepare_named(named, options, &report)?;
        let mut store: DiskStore<M> = match ring {
            Some(ring) => DiskStore::start(named.directory, options, ring, how),
            None => DiskStore::start(named.directory, options, Plain::new(file), how),
        }?;
        for (place, sum) in held {
            store.states[place as usize] = State::Holds { sum, readers: 0 };
        }
        store.free.retain(|place| store.states[place.0 as usize] == State::Free);
        Ok(store)
    }

    fn start(
        directory: &Path,
        Options { page_bytes, capacity_bytes, depth }: Options,
        backend: impl Backend<M>,
        how: How,
    ) -> Result<DiskStore<M>, OpenError> {
        let ((inbox, transfers), (done, outbox)) = (channel(), channel());
        let closing = Arc::new(AtomicBool::new(false));
        let depth = depth.max(1) as usize;
        let worker = Worker { backend, depth, inbox: transfers, outbox: done, closing: Arc::clone(&closing) };
        let thread =
            std::thread::Builder::new().name("store".to_owned()).spawn(move || worker.run()).map_err(
                |error| OpenError::Io { what: "starting a thread", directory: directory.to_owned(), error },
            )?;
        // Checked when the file was made.
        let places = (capacity_bytes / page_bytes as u64) as u32;
        Ok(DiskStore {
            page_bytes,
            states: vec![State::Free; places as usize],
            free: (0..places).rev().map(PageSlot).collect(),
            in_flight: 0,
            inbox,
            outbox,
            closing,
            thread: Some(thread),
            how,
        })
    }

    /// Size of every page, in bytes.
    pub fn page_bytes(&self) -> usize {
        self.page_bytes
    }

    /// Pages it can hold.
    pub fn capacity(&self) -> usize {
        self.states.len()
    }

    /// Free places, without those that still wait for a transfer.
    pub fn free_places(&self) -> usize {
        self.free.len()
    }

    /// Transfers in flight.
    pub fn in_flight(&self) -> usize {
        self.in_flight
    }

    /// How pages are transferred, in words.
    pub fn how(&self) -> &'static str {
        match (self.how.ring, self.how.direct) {
            (true, true) => "io_uring, past the system's cache",
            (true, false) => "io_uring, through the system's cache",
            (false, true) => "plain reads and writes, past the system's cache",
            (false, false) => "plain reads and writes, through the system's cache",
        }
    }

    /// Submits a page to be written to a free place, which the caller owns from now on. It holds the page
    /// once the completion says so.
    ///
    /// # Errors
    /// With the page, when the store is full or has failed.
    pub fn write(&mut self, page: M, tag: u64) -> Result<PageSlot, Refused<M>> {
        if page.len() != self.page_bytes {
            return Err(Refused { page, why: PageError::Misused("memory of another size than a page's") });
        }
        let Some(&place) = self.free.last() else { return Err(Refused { page, why: PageError::Full }) };
        self.hand_over(Transfer { kind: Kind::Write, place, tag, page, sum: 0 })?;
        self.free.pop();
        self.states[place.0 as usize] = State::Writing;
        Ok(place)
    }

    /// Submits a page to be filled with what was written to a place.
    ///
    /// # Errors
    /// With the page, when the place holds none, or the store has failed.
    pub fn read(&mut self, place: PageSlot, page: M, tag: u64) -> Result<(), Refused<M>> {
        if page.len() != self.page_bytes {
            return Err(Refused { page, why: PageError::Misused("memory of another size than a page's") });
        }
        let Some(&State::Holds { sum, readers }) = self.states.get(place.0 as usize) else {
            return Err(Refused { page, why: PageError::Misused("a place that holds no page") });
        };
        self.hand_over(Transfer { kind: Kind::Read, place, tag, page, sum })?;
        self.states[place.0 as usize] = State::Holds { sum, readers: readers + 1 };
        Ok(())
    }

    fn hand_over(&mut self, transfer: Transfer<M>) -> Result<(), Refused<M>> {
        self.inbox.send(transfer).map_err(|gone| Refused { page: gone.0.page, why: PageError::Stopped })?;
        self.in_flight += 1;
        Ok(())
    }

    /// Frees a place, whatever it holds, once its transfers are complete.
    pub fn free(&mut self, place: PageSlot) {
        let Some(state) = self.states.get_mut(place.0 as usize) else { return };
        *state = match *state {
            State::Free | State::Freed { .. } => return,
            State::Writing => State::Freed { busy: 1 },
            State::Failed | State::Holds { readers: 0, .. } => {
                self.free.push(place);
                State::Free
            }
            State::Holds { readers, .. } => State::Freed { busy: readers },
        };
    }

    /// The next completion, in order; `None` when there is none.
    pub fn poll(&mut self) -> Option<Completion<M>> {
        let done = self.outbox.try_recv().ok()?;
        Some(self.complete(done))
    }

    /// As [`Self::poll`], but waits for one until `timeout` has passed. Returns at once when nothing is in
    /// flight.
    pub fn wait(&mut self, timeout: Duration) -> Option<Completion<M>> {
        if self.in_flight == 0 {
            return None;
        }
        match self.outbox.recv_timeout(timeout) {
            Ok(done) => Some(self.complete(done)),
            Err(RecvTimeoutError::Timeout) => None,
            Err(RecvTimeoutError::Disconnected) => {
                // The thread has ended, and its transfers are lost.
                self.in_flight = 0;
                None
            }
        }
    }

    fn complete(&mut self, (transfer, result): Done<M>) -> Completion<M> {
        let Transfer { kind, place, tag, page, sum } = transfer;
        self.in_flight -= 1;
        let state = &mut self.states[place.0 as usize];
        *state = match *state {
            State::Writing if result.is_err() => State::Failed,
            State::Writing => State::Holds { sum, readers: 0 },
            State::Holds { sum, readers } => State::Holds { sum, readers: readers - 1 },
            State::Freed { busy: 1 } => {
                self.free.push(place);
                State::Free
            }
            State::Freed { busy } => State::Freed { busy: busy - 1 },
            State::Free | State::Failed => unreachable!("nothing was on its way there"),
        };
        Completion { tag, kind, place, sum, page, result }
    }
}

impl<M: PageMemory> Drop for DiskStore<M> {
    fn drop(&mut self) {
        self.closing.store(true, Ordering::Relaxed);
        // The thread wakes up because the channel is closed.
        drop(std::mem::replace(&mut self.inbox, channel().0));
        let deadline = Instant::now() + GRACE;
        let ended = loop {
            match self.outbox.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
                Ok(_) => {}
                Err(RecvTimeoutError::Disconnected) => break true,
                Err(RecvTimeoutError::Timeout) => break false,
            }
        };
        if let (true, Some(thread)) = (ended, self.thread.take()) {
            let _ = thread.join();
        }
    }
}
