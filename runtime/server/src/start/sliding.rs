//! Blocks of layers with a sliding window, for what drives a model's steps without an engine.

use monomorph_model::{Model, ModelSpec, SequenceStep, SlidingId, SlidingSpec, SlidingTable};

/// The tables of some sequences, by slot, and the blocks that none of them has.
pub(crate) struct SlidingTables {
    layers: Option<(SlidingSpec, &'static ModelSpec)>,
    tables: Vec<SlidingTable>,
    free: Vec<SlidingId>,
}

impl SlidingTables {
    /// For so many sequences of which nothing is fed.
    pub(crate) fn new<M: Model>(model: &M, sequences: usize) -> SlidingTables {
        SlidingTables {
            layers: M::SLIDING.map(|it| (it, M::SPEC)),
            tables: vec![SlidingTable::default(); sequences],
            free: (0..model.sliding_blocks() as u32).rev().map(SlidingId).collect(),
        }
    }

    /// The tables of a step's rows; none of a model without such layers. What lies behind windows now is
    /// given back, and may be another row's: a device runs steps in order.
    ///
    /// # Errors
    /// When there are too few blocks.
    pub(crate) fn of(&mut self, rows: &[SequenceStep]) -> Result<Vec<SlidingTable>, String> {
        let Some((it, spec)) = self.layers else { return Ok(Vec::new()) };
        let it = it.of(spec);
        for row in rows {
            let table = &mut self.tables[row.slot.0 as usize];
            let passed = it.passed(table.first, table.blocks.len(), row.position);
            self.free.extend(table.blocks.drain(..passed).rev());
            table.first = it.first(row.position);
        }
        let table = |row: &SequenceStep| {
            let table = &mut self.tables[row.slot.0 as usize];
            while table.first + table.blocks.len() < row.blocks.len() {
                let free =
                    self.free.pop().ok_or("there are too few blocks of layers with a sliding window")?;
                table.blocks.push(free);
            }
            Ok(table.clone())
        };
        rows.iter().map(table).collect()
    }
}
