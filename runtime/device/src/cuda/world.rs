//! What ranks exchange through: memory that their kernels write to each other.

use super::gpu::Gpu;
use super::pointer::Pointer;
use monomorph_model::LoadError;
use monomorph_world::Seat;

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

/// A rank's exchanges with the others.
#[derive(Debug)]
pub(crate) struct Exchange {}

impl Exchange {
    /// Introduces the ranks' memories to each other.
    ///
    /// # Errors
    /// When bytes of another rank do not arrive, or the device fails.
    pub(crate) fn open(_gpu: &Gpu, memory: WorldMemory, seat: Seat) -> Result<Exchange, LoadError> {
        seat.exchange("inboxes", [memory.sums.0, memory.gathered.0])?;
        Ok(Exchange {})
    }
}
