//! A rank's place in a collective.

use super::super::driver::{Event, Stream};
use super::super::fault::Fault;
use super::super::gpu::Gpu;
use super::super::pointer::Pointer;
use super::library::{Handle, Library};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::{Duration, Instant};

/// How long joining may take: all ranks have said before that they are about to.
const JOIN: Duration = Duration::from_secs(60);
/// How often a thread that waits for the device asks whether a connection broke.
const ASK: Duration = Duration::from_millis(1);

/// A rank's place in a collective of all ranks.
///
/// NCCL's calls are blocking, which returns as soon as work is in the stream: where they are not, NCCL makes
/// a thread for every call.
#[derive(Debug)]
pub(crate) struct Communicator {
    library: &'static Library,
    handle: Handle,
}

impl Communicator {
    /// Joins the collective of this name.
    ///
    /// # Errors
    /// NCCL's own, or that not all ranks have come in time: then the process has to end, since a thread still
    /// waits.
    pub(crate) fn join(gpu: &Gpu, name: &[u8], rank: usize, ranks: usize) -> Result<Communicator, String> {
        let library = Library::opened()?;
        let (gpu, name) = (gpu.clone(), name.to_vec());
        let (tell, told) = channel();
        let join = move || {
            let joined = gpu.enter().map_err(|fault| fault.to_string());
            // Nobody listens any more behind the deadline.
            let _ = tell.send(joined.and_then(|()| library.join(&name, rank, ranks)));
        };
        let thread = std::thread::Builder::new().name("nccl".into()).spawn(join);
        thread.map_err(|error| format!("a thread could not be started: {error}"))?;
        match told.recv_timeout(JOIN) {
            Ok(joined) => Ok(Communicator { library, handle: joined? }),
            Err(RecvTimeoutError::Disconnected) => Err("joining the collective panicked".to_owned()),
            Err(RecvTimeoutError::Timeout) => Err(format!(
                "joining the collective took more than {} s: NCCL of the other ranks cannot be reached",
                JOIN.as_secs()
            )),
        }
    }

    /// Gathers `values` f32 of every rank to `to`, in the order of ranks: at once, or in the graph that the
    /// stream records.
    pub(crate) fn all_gather(
        &self,
        stream: &Stream,
        from: Pointer,
        to: Pointer,
        values: usize,
    ) -> Result<(), Fault> {
        // SAFETY: both ranges are planned and taken from the arena, which outlives streams and graphs.
        unsafe { self.library.all_gather((from.0, to.0), values, self.handle, stream.handle.cast()) }
    }
}

/// Waits for a mark. What gathers from other processes may wait for one that is gone: the wait also ends
/// when a connection breaks or the process was told that its world ended.
pub(crate) fn wait(mark: &Event, collective: Option<&Communicator>) -> Result<(), Fault> {
    let Some(Communicator { library, handle }) = collective else { return mark.wait() };
    let mut asked = Instant::now();
    while !mark.has_passed()? {
        if asked.elapsed() >= ASK {
            asked = Instant::now();
            if let Some(why) = monomorph_model::device_fault() {
                return Err(Fault::new(why.to_owned()));
            }
            library.broken(*handle)?;
        }
        std::hint::spin_loop();
    }
    Ok(())
}
