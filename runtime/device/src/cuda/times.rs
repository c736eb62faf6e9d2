//! Times of launches, taken by the device: in profiling builds alone.

use super::driver::{Claim, Event, Stream};
use super::fault::Fault;
use super::host::Pinned;
use monomorph_model::TimedRow;

/// How much a [`Plug`] copies, in bytes.
const PLUG_BYTES: usize = 32 << 20;
/// Seconds that the host takes for a launch and its two marks, at most.
const LAUNCH_SECONDS: f64 = 10e-6;

/// A copy to the device in front of some launches. While it is under way the host is ahead with these: a
/// device that waited between a mark and its launch for the host would count that as the launch's.
#[derive(Debug)]
struct Plug {
    from: Pinned,
    to: Claim,
    /// How many launches one is enough for.
    launches: usize,
}

impl Plug {
    fn new(stream: &Stream) -> Result<Plug, Fault> {
        let (from, to) = (Pinned::zeroed(PLUG_BYTES)?, Claim::new(PLUG_BYTES as u64)?);
        let mut plug = Plug { from, to, launches: 1 };
        let [begin, end] = [Event::timed()?, Event::timed()?];
        begin.record(stream)?;
        plug.put(stream)?;
        end.record(stream)?;
        stream.wait()?;
        let seconds = 1e-3 * f64::from(begin.until(&end)?);
        plug.launches = ((seconds / LAUNCH_SECONDS) as usize).max(1);
        Ok(plug)
    }

    fn put(&self, stream: &Stream) -> Result<(), Fault> {
        // SAFETY: both are of this size and the plug's own, and nobody writes them.
        unsafe { stream.upload(self.to.start, self.from.bytes()) }
    }
}

/// How long launches took, in rows. While times are taken, steps are launched kernel by kernel in one stream.
#[derive(Debug, Default)]
pub(crate) struct LaunchTimes {
    taken: bool,
    /// Made when times are first taken.
    plug: Option<Plug>,
    /// Marks before and behind a launch, used again for every step.
    marks: Vec<[Event; 2]>,
    /// The row of each launch since they were read; the first of them has the first marks.
    launched: Vec<usize>,
    rows: Vec<TimedRow>,
}

impl LaunchTimes {
    /// Whether times are taken.
    pub(crate) fn are_taken(&self) -> bool {
        self.taken
    }

    /// Marks the beginning of a launch of a row.
    pub(super) fn begin(&mut self, row: usize, stream: &Stream) -> Result<(), Fault> {
        if self.marks.len() == self.launched.len() {
            self.marks.push([Event::timed()?, Event::timed()?]);
        }
        if let Some(plug) = self.plug.as_ref().filter(|it| self.launched.len().is_multiple_of(it.launches)) {
            plug.put(stream)?;
        }
        let [begin, _] = &self.marks[self.launched.len()];
        self.launched.push(row);
        begin.record(stream)
    }

    /// Marks the end of the launch that was begun last.
    pub(super) fn end(&self, stream: &Stream) -> Result<(), Fault> {
        let [_, end] = &self.marks[self.launched.len() - 1];
        end.record(stream)
    }

    /// Adds the times of all launches so far to their rows. The stream has run all of them.
    pub(super) fn read(&mut self) -> Result<(), Fault> {
        for (row, [begin, end]) in self.launched.drain(..).zip(&self.marks) {
            if self.rows.len() <= row {
                self.rows.resize(row + 1, TimedRow::default());
            }
            self.rows[row].count += 1;
            self.rows[row].seconds += 1e-3 * f64::from(begin.until(end)?);
        }
        Ok(())
    }

    /// Begins to take times, or ends that. Returns those read since the last call.
    pub(super) fn take(&mut self, on: bool, stream: &Stream) -> Result<Vec<TimedRow>, Fault> {
        if on && self.plug.is_none() {
            self.plug = Some(Plug::new(stream)?);
        }
        self.taken = on;
        Ok(std::mem::take(&mut self.rows))
    }
}
