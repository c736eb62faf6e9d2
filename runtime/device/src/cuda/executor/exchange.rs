//! What steps exchange with other ranks: counted by the plan's widths and a step's rows, and timed once.

use super::super::driver::Event;
use super::super::fault::Fault;
use super::super::queue::{Extents, Graph, Queue};
use super::super::wire::bytes_of;
use super::{Executor, Programs};
use monomorph_abi::world::{Exchanged, Traffic};
use monomorph_model::RankMeter;
use std::sync::Arc;
use std::time::Duration;

/// Exchanges of a trial.
const TIMED: u32 = 100;
/// One row.
const ROW: Extents = Extents { tokens: 1, sequences: 1, outputs: 1 };

/// Recorded exchanges, and marks before and behind them.
#[derive(Debug)]
pub(crate) struct Trial {
    graph: Graph,
    begin: Event,
    end: Event,
}

impl Executor {
    /// Where the rank counts what it exchanges.
    pub(crate) fn meter(&self) -> Arc<RankMeter> {
        self.exchange.as_ref().map_or_else(Arc::default, |exchange| Arc::clone(&exchange.meter))
    }

    /// Counts what a pass over so many rows exchanges.
    pub(super) fn count(&self, of: impl FnOnce(&Traffic) -> Exchanged, rows: usize) {
        if let Some(exchange) = &self.exchange {
            exchange.count(of(&exchange.traffic), rows);
        }
    }

    /// Records exchanges of one row, one after the other; nothing for a stack that is alone or sums nothing.
    ///
    /// # Errors
    /// When the device refuses it.
    pub(crate) fn record_exchange<P: Programs>(&mut self, programs: &P) -> Result<Option<Trial>, Fault> {
        let Some(exchange) = &self.exchange else { return Ok(None) };
        if exchange.traffic.layers == Exchanged::NONE {
            return Ok(None);
        }
        let (stream, tables) = (self.quiet.gpu.stream(), self.flights[0].tables);
        let mut header = self.buffer.header.clone();
        (header.tokens, header.sequences, header.outputs) = (1, 1, 1);
        // SAFETY: the table was allocated for a whole header, and no step was submitted.
        unsafe { stream.upload(tables.header.0, bytes_of(std::slice::from_ref(&*header))) }?;
        stream.wait()?;
        let record = |queue: &mut Queue| (0..TIMED).for_each(|_| programs.exchange(queue));
        let graph = Graph::record(self.quiet.queue("exchange", true, ROW, tables), record)?;
        Ok(Some(Trial { graph, begin: Event::timed()?, end: Event::timed()? }))
    }

    /// Runs a trial, as every other rank does at the same time. Nothing is added: all parts are zero.
    ///
    /// # Errors
    /// When the device fails.
    pub(crate) fn time_exchange(&mut self, trial: &Trial) -> Result<(), Fault> {
        let Some(exchange) = &self.exchange else { return Ok(()) };
        let stream = self.quiet.gpu.stream();
        // After the first run no rank is late.
        trial.graph.launch(stream)?;
        trial.begin.record(stream)?;
        trial.graph.launch(stream)?;
        trial.end.record(stream)?;
        stream.wait()?;
        let seconds = f64::from(trial.begin.until(&trial.end)?) / 1e3 / f64::from(TIMED);
        exchange.meter.measured(Duration::try_from_secs_f64(seconds).unwrap_or_default());
        Ok(())
    }
}
