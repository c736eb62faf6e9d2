//! A second stream, whose launches run beside those of the first.

use super::driver::{Event, Stream};
use super::fault::Fault;

/// The second stream and the points at which it and the first wait for each other. Recorded calls become
/// edges of the graph.
#[derive(Debug)]
pub(crate) struct Aside {
    stream: Stream,
    forked: Event,
    joined: Event,
}

impl Aside {
    pub(crate) fn new() -> Result<Aside, Fault> {
        Ok(Aside { stream: Stream::new()?, forked: Event::new()?, joined: Event::new()? })
    }

    pub(crate) fn stream(&self) -> &Stream {
        &self.stream
    }

    /// Makes later work of the second stream wait for all that the first was given so far.
    pub(crate) fn fork(&self, first: &Stream) -> Result<(), Fault> {
        self.forked.record(first)?;
        self.stream.wait_for(&self.forked)
    }

    /// Makes later work of the first stream wait for all that the second was given so far.
    pub(crate) fn join(&self, first: &Stream) -> Result<(), Fault> {
        self.joined.record(&self.stream)?;
        first.wait_for(&self.joined)
    }
}
