//! Times of launches, taken by the device: in profiling builds alone.

use super::driver::{Event, Stream};
use super::fault::Fault;
use monomorph_model::TimedRow;

/// How long launches took, in rows. While times are taken, steps are launched kernel by kernel in one stream.
#[derive(Debug, Default)]
pub(crate) struct LaunchTimes {
    taken: bool,
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
    pub(super) fn take(&mut self, on: bool) -> Vec<TimedRow> {
        self.taken = on;
        std::mem::take(&mut self.rows)
    }
}
