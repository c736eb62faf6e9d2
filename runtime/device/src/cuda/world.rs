//! What ranks exchange through: memory that their kernels write to each other.

use super::fault::Fault;
use super::gpu::Gpu;
use super::host::Pinned;
use super::pointer::Pointer;
use monomorph_abi::bytes_of;
use monomorph_abi::world::{EMPTY, Exchanged, MissingPeer, Traffic, World};
use monomorph_model::{LoadError, RankMeter};
use monomorph_world::Seat;
use std::sync::Arc;

/// How long a kernel waits for what another rank sends. A rank may be late by as long as its host thread, or
/// the disk that it reads blocks from, keeps it; a rank whose thread has ended is not waited for so long.
const DEADLINE_NS: u64 = 10_000_000_000;
/// Bytes that each rank writes to each other one to see them arrive.
const TRIAL: u64 = 16;

/// The memory of a rank's exchanges, in its arena.
#[derive(Clone, Copy, Debug)]
pub struct WorldMemory {
    /// Where the `World` struct goes that the exchange kernels read.
    pub world: Pointer,
    /// The inboxes of partial sums.
    pub sums: Pointer,
    /// Bytes of these.
    pub sums_bytes: u64,
    /// The inboxes of rows to gather.
    pub gathered: Pointer,
    /// Bytes of these.
    pub gathered_bytes: u64,
}

/// Memory that ranks which are processes gather rows of all in.
#[derive(Clone, Copy, Debug)]
pub struct Gathered {
    /// Address of the first rank's rows.
    pub at: Pointer,
    /// Size of all of it.
    pub bytes: u64,
}

/// A rank's exchanges with the others.
#[derive(Debug)]
pub(crate) struct Exchange {
    rank: usize,
    ordinal: usize,
    /// How many others there are.
    peers: u64,
    /// What its programs exchange.
    pub(crate) traffic: Traffic,
    /// Where that is counted.
    pub(crate) meter: Arc<RankMeter>,
    /// Where a kernel writes a `MissingPeer`.
    report: Pinned,
}

impl Exchange {
    /// Introduces the ranks' inboxes to each other and empties them. Every rank's GPU
    /// [reaches](Gpu::reach) the others.
    ///
    /// # Errors
    /// When bytes written to another rank do not arrive, or the device fails.
    pub(crate) fn open(
        gpu: &Gpu,
        memory: WorldMemory,
        traffic: Traffic,
        seat: Seat,
    ) -> Result<Exchange, LoadError> {
        let WorldMemory { world, sums, sums_bytes, gathered, gathered_bytes } = memory;
        let inboxes = seat.exchange("inboxes", [sums.0, gathered.0])?;
        let [of_sums, of_gathers] = [0, 1].map(|kind| inboxes.iter().map(|it| it[kind]).collect::<Vec<_>>());
        try_out(gpu, &of_sums, sums_bytes, seat)?;
        let report = Pinned::zeroed(size_of::<MissingPeer>())?;
        let at = report.address()?.0;
        let filled = World::new(seat.rank(), [&of_sums, &of_gathers], at, DEADLINE_NS);
        let stream = gpu.stream();
        // SAFETY: the stack took these ranges from the arena, which lives as long as the stream, for this; no
        // kernel runs yet, and no rank writes to another before all have met below.
        unsafe {
            stream.set(sums.0, EMPTY, sums_bytes)?;
            stream.set(gathered.0, EMPTY, gathered_bytes)?;
            stream.upload(world.0, bytes_of(&[filled]))?;
        }
        stream.wait()?;
        seat.meet("empty inboxes")?;
        let (rank, ordinal, peers) = (seat.rank(), seat.ordinal(), seat.ranks() as u64 - 1);
        Ok(Exchange { rank, ordinal, peers, traffic, meter: Arc::default(), report })
    }

    /// Counts what a pass over so many rows exchanges.
    pub(crate) fn count(&self, exchanged: Exchanged, rows: usize) {
        self.meter.exchanged(exchanged.exchanges, self.peers * exchanged.bytes(rows));
    }

    /// A fault of this rank: with its number, and with the rank that a kernel waited for in vain, if one did.
    fn explain(&self, fault: Fault) -> Fault {
        let Exchange { rank, ordinal, .. } = self;
        let fault = match missing(self.report.bytes()) {
            Some(peer) => Fault::new(format!("{peer}: {fault}")),
            None => fault,
        };
        fault.at(&format!("rank {rank} (GPU {ordinal})"))
    }
}

/// Ends a step whose device has failed, perhaps while it waited for another rank: see [`Fault::raise`].
pub(crate) fn fail(exchange: Option<&Exchange>, fault: Fault) -> ! {
    match exchange {
        Some(exchange) => exchange.explain(fault).raise(),
        None => fault.raise(),
    }
}

/// Writes bytes to the first inbox of every other rank, and looks for theirs.
fn try_out(gpu: &Gpu, inboxes: &[u64], bytes: u64, seat: Seat) -> Result<(), LoadError> {
    let (rank, ranks, ordinals) = (seat.rank(), seat.ranks(), seat.ordinals());
    let total = TRIAL * ranks as u64;
    assert!(total <= bytes, "an inbox of {bytes} bytes for {ranks} ranks");
    let mark = |rank: usize| 0xa0 + rank as u8;
    for (peer, inbox) in inboxes.iter().enumerate().filter(|(peer, _)| *peer != rank) {
        let place = |fault: Fault| {
            fault.at(&format!("writing from GPU {} to GPU {}", ordinals[rank], ordinals[peer]))
        };
        // SAFETY: within the peer's inbox, where every rank has a range of its own, which this GPU reaches.
        unsafe { gpu.stream().set(inbox + TRIAL * rank as u64, mark(rank), TRIAL) }.map_err(place)?;
        gpu.stream().wait().map_err(place)?;
    }
    seat.meet("trial bytes")?;
    let mut found = vec![0; total as usize];
    // SAFETY: within this rank's inbox, which no rank writes to any more.
    unsafe { gpu.stream().download(inboxes[rank], &mut found) }?;
    gpu.stream().wait()?;
    for (peer, arrived) in found.chunks(TRIAL as usize).enumerate().filter(|(peer, _)| *peer != rank) {
        if arrived.iter().any(|byte| *byte != mark(peer)) {
            return Err(LoadError::Device(format!(
                "bytes that GPU {} wrote to the memory of GPU {} did not arrive",
                ordinals[peer], ordinals[rank]
            )));
        }
    }
    Ok(())
}

/// What a kernel reported, if one did.
fn missing(report: &[u8]) -> Option<MissingPeer> {
    let word = |at: usize| u32::from_ne_bytes(report[4 * at..][..4].try_into().expect("four bytes"));
    let [written, rank, peer, gathers, turn, row] = std::array::from_fn(word);
    let found = MissingPeer { written, rank: rank as i32, peer: peer as i32, gathers, turn, row };
    (found.written != 0).then_some(found)
}

#[cfg(test)]
mod tests;
