//! What each slot was fed last, which both sides keep: the head to send only what is new, a worker to refuse
//! a row that does not follow, and to put the rest of it back.

use crate::call::{self, Answer, Feed, Mask, Place, Row, RowAnswer, SampledBy, StepCall, Want};
use monomorph_model::{
    BlockId, OffloadSlot, Output, SequenceStep, Sliding, SlidingId, SlidingTable, Slot, SnapshotId,
    StateCopy, StatePlace, Step, Tokens,
};
use monomorph_sampling::TokenMask;
use std::collections::VecDeque;

/// What no step exceeds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Limits {
    /// Sequences at a time: a slot each.
    pub sequences: usize,
    /// Places of saved states.
    pub snapshots: usize,
    /// Blocks on the device; those on disk are numbered behind them.
    pub blocks: usize,
    /// Of a model with a sliding window, the window and the blocks of layers that have one.
    pub sliding: Option<(Sliding, usize)>,
    /// How many tokens a block holds.
    pub block_tokens: usize,
    /// Blocks of a group on disk.
    pub group: usize,
    /// Ids lie below it.
    pub vocabulary: usize,
    /// Rows of a step.
    pub step_sequences: usize,
    /// Tokens of a step over all rows.
    pub step_tokens: usize,
}

/// What a slot was fed last.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
struct Last {
    /// Sequences that began here; 0 of a slot that no sequence ever had.
    generation: u64,
    /// Where its next row begins; `None` while drafts are being verified.
    next: Option<u64>,
    blocks: Vec<u32>,
}

/// A row in flight whose drafts decide where its slot goes on.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Drafting {
    row: usize,
    slot: u32,
    generation: u64,
    /// The position behind the token before its drafts.
    known: u64,
}

/// The slots of a world, as one process has them.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Slots {
    limits: Limits,
    slots: Vec<Last>,
    /// Of each step in flight, oldest first.
    drafting: VecDeque<Vec<Drafting>>,
}

impl Slots {
    /// Slots that no sequence has.
    pub fn new(limits: Limits) -> Slots {
        Slots { limits, slots: vec![Last::default(); limits.sequences], drafting: VecDeque::new() }
    }

    /// What is sent of a step.
    ///
    /// # Errors
    /// When a row does not follow its slot's last, or something is out of range: a bug of the caller.
    pub fn send(&mut self, step: &Step) -> Result<StepCall, String> {
        if !step.images.is_empty() {
            return Err("a step has images, which do not go to other processes yet".to_owned());
        }
        let mut rows = Vec::with_capacity(step.sequences.len());
        for (at, row) in step.sequences.iter().enumerate() {
            rows.push(self.new_of(row, step.sliding.get(at))?);
        }
        let call = StepCall {
            copies: step.copies.iter().map(|copy| (place(copy.from), place(copy.to))).collect(),
            offloaded: step.offloaded.iter().map(|it| it.0).collect(),
            sampling_follows: step.sampling_follows,
            rows,
        };
        self.take(&call)?;
        Ok(call)
    }

    /// What is sent of a row.
    fn new_of(&self, row: &SequenceStep, table: Option<&SlidingTable>) -> Result<Row, String> {
        let slot = row.slot.0;
        let last = self.slots.get(slot as usize).ok_or_else(|| self.stranger(slot))?;
        let held = if row.begins { &[][..] } else { &last.blocks[..] };
        let kept = held.iter().zip(&row.blocks).take_while(|(held, block)| **held == block.0).count();
        Ok(Row {
            slot,
            generation: last.generation + u64::from(row.begins),
            position: row.position as u64,
            begins: row.begins,
            tokens: match &row.tokens {
                Tokens::Sampled => Feed::Sampled,
                Tokens::Known(ids) => Feed::Known(ids.clone()),
            },
            drafts: small(row.drafts),
            generated: row.generated,
            following: row.following,
            kept: small(kept),
            added: row.blocks[kept..].iter().map(|block| block.0).collect(),
            sliding: table.map(|it| (it.first as u64, it.blocks.iter().map(|block| block.0).collect())),
            output: match &row.output {
                Output::None => Want::None,
                Output::Logits => Want::Logits,
                Output::Sample { draw, .. } => {
                    Want::Sample(*draw, sampled_by(&row.output).unwrap_or_default())
                }
            },
        })
    }

    /// The step that was sent.
    ///
    /// # Errors
    /// When a row does not follow its slot's last, or something is out of range.
    pub fn receive(&mut self, call: &StepCall) -> Result<Step, String> {
        self.take(call)?;
        let words = TokenMask::words_for(self.limits.vocabulary);
        let rows = call.rows.iter().map(|row| {
            Ok(SequenceStep {
                slot: Slot(row.slot),
                position: row.position as usize,
                begins: row.begins,
                tokens: match &row.tokens {
                    Feed::Sampled => Tokens::Sampled,
                    Feed::Known(ids) => Tokens::Known(ids.clone()),
                },
                drafts: row.drafts as usize,
                generated: row.generated,
                following: row.following,
                blocks: self.slots[row.slot as usize].blocks.iter().map(|block| BlockId(*block)).collect(),
                output: match &row.output {
                    Want::None => Output::None,
                    Want::Logits => Output::Logits,
                    Want::Sample(draw, by) => sample(*draw, by, words)?,
                },
            })
        });
        Ok(Step {
            copies: call.copies.iter().map(|(from, to)| copy(*from, *to)).collect(),
            offloaded: call.offloaded.iter().map(|place| OffloadSlot(*place)).collect(),
            sequences: rows.collect::<Result<_, String>>()?,
            sliding: call.rows.iter().filter_map(|row| row.sliding.as_ref()).map(table).collect(),
            images: Vec::new(),
            sampling_follows: call.sampling_follows,
        })
    }

    /// Puts what rows are sampled by into the step submitted last.
    ///
    /// # Errors
    /// When they are not as many as its rows that sample, or something is out of range.
    pub fn receive_sampling(&self, rows: &[SampledBy], step: &mut Step) -> Result<(), String> {
        let words = TokenMask::words_for(self.limits.vocabulary);
        let mut given = rows.iter();
        for row in &mut step.sequences {
            if let Output::Sample { draw, .. } = row.output {
                let by = given.next().ok_or("a step is sampled in fewer rows than it samples")?;
                row.output = sample(draw, by, words)?;
            }
        }
        if given.next().is_some() {
            return Err("a step is sampled in more rows than it samples".to_owned());
        }
        Ok(())
    }

    /// Notes what the oldest step in flight produced: rows that verified drafts go on behind those that held.
    pub fn collected(&mut self, answer: &Answer) {
        let (Some(drafting), Answer::Collected(rows)) = (self.drafting.pop_front(), answer) else { return };
        for Drafting { row, slot, generation, known } in drafting {
            let last = &mut self.slots[slot as usize];
            if let Some(RowAnswer::Verified(sampled, _)) = rows.get(row)
                && last.generation == generation
            {
                last.next = Some(known + (sampled.len() as u64).saturating_sub(1));
            }
        }
    }

    /// Checks a step and notes what its rows were fed.
    fn take(&mut self, call: &StepCall) -> Result<(), String> {
        let (most, rows) = (self.limits.step_sequences, call.rows.len());
        if rows > most {
            return Err(format!("a step has {rows} rows, and takes {most}"));
        }
        let tokens: usize = call.rows.iter().map(|row| row.tokens.count()).sum();
        if tokens > self.limits.step_tokens {
            return Err(format!("a step feeds {tokens} tokens, and takes {}", self.limits.step_tokens));
        }
        for place in call.copies.iter().flat_map(|(from, to)| [from, to]) {
            self.check_place(*place)?;
        }
        let mut drafting = Vec::new();
        let mut seen = vec![false; self.limits.sequences];
        let blocks =
            self.limits.blocks.saturating_add(call.offloaded.len().saturating_mul(self.limits.group));
        for (at, row) in call.rows.iter().enumerate() {
            match seen.get_mut(row.slot as usize) {
                None => return Err(self.stranger(row.slot)),
                Some(true) => return Err(format!("a step has two rows of slot {}", row.slot)),
                Some(seen) => *seen = true,
            }
            self.follow(row)?;
            self.note(row, blocks)?;
            if row.drafts > 0 {
                let known = row.position + (row.tokens.count() as u64).saturating_sub(row.drafts.into());
                self.slots[row.slot as usize].next = None;
                drafting.push(Drafting { row: at, slot: row.slot, generation: row.generation, known });
            }
        }
        self.drafting.push_back(drafting);
        Ok(())
    }

    /// Checks that a row goes on where its slot was left, or begins the next sequence there.
    fn follow(&self, row: &Row) -> Result<(), String> {
        let Row { slot, generation, position, begins, .. } = *row;
        let last = &self.slots[slot as usize];
        if begins {
            let due = last.generation + 1;
            if generation == due {
                return Ok(());
            }
            return Err(format!("sequence {generation} begins in slot {slot}, and the {due}th is due"));
        }
        if last.generation == 0 {
            return Err(format!("a row of slot {slot} goes on, and no sequence ever began there"));
        }
        if (generation, Some(position)) != (last.generation, last.next) {
            let next = last.next.map_or("after its drafts".to_owned(), |next| format!("at {next}"));
            return Err(format!(
                "a row of slot {slot} goes on at {position} of sequence {generation}, and it was left {next} of {}",
                last.generation
            ));
        }
        Ok(())
    }

    /// Notes a row, whose block ids lie below `blocks`.
    fn note(&mut self, row: &Row, blocks: usize) -> Result<(), String> {
        let Limits { block_tokens, vocabulary, .. } = self.limits;
        let (slot, fed) = (row.slot, row.tokens.count());
        let held = if row.begins { 0 } else { self.slots[slot as usize].blocks.len() };
        if row.kept as usize > held {
            return Err(format!("a row of slot {slot} keeps {} blocks of {held}", row.kept));
        }
        if let Some(block) = row.added.iter().find(|block| **block as usize >= blocks) {
            return Err(format!("a row of slot {slot} has block {block} of {blocks}"));
        }
        let end = row.position.checked_add(fed as u64).ok_or("a position is beyond all numbers")?;
        let most = (row.kept as usize + row.added.len()).saturating_mul(block_tokens);
        if fed == 0 || row.drafts as usize >= fed || end > most as u64 {
            let drafts = row.drafts;
            return Err(format!(
                "a row of slot {slot} feeds {fed} tokens, {drafts} of them drafts, up to position {end}, and its \
                 blocks hold {most}"
            ));
        }
        self.check_table(row, end)?;
        if let Feed::Known(ids) = &row.tokens
            && let Some(id) = ids.iter().chain(&row.following).find(|id| **id as usize >= vocabulary)
        {
            return Err(format!("a row of slot {slot} has token {id} of {vocabulary}"));
        }
        let last = &mut self.slots[slot as usize];
        last.blocks.truncate(row.kept as usize);
        last.blocks.extend_from_slice(&row.added);
        (last.generation, last.next) = (row.generation, Some(end));
        Ok(())
    }

    /// Checks the table of layers with a sliding window of a row that feeds positions up to `end`.
    fn check_table(&self, row: &Row, end: u64) -> Result<(), String> {
        let Row { slot, position, .. } = *row;
        let ((it, _), (first, blocks)) = match (self.limits.sliding, &row.sliding) {
            (None, None) => return Ok(()),
            (Some(layers), Some(table)) => (layers, table),
            (None, Some(_)) => {
                return Err(format!(
                    "a row of slot {slot} has a table of layers with a sliding window, and the model has none"
                ));
            }
            (Some(_), None) => {
                return Err(format!("a row of slot {slot} has no table of layers with a sliding window"));
            }
        };
        blocks.iter().try_for_each(|block| self.check_sliding(*block))?;
        let attended = it.first(usize::try_from(position).unwrap_or(usize::MAX - 1)) as u64;
        let (needed, held) =
            (end.div_ceil(it.block_tokens as u64), first.saturating_add(blocks.len() as u64));
        if *first > attended || held < needed {
            return Err(format!(
                "a row of slot {slot} needs blocks {attended} to {needed} of layers with a sliding window, and has \
                 {first} to {held}"
            ));
        }
        Ok(())
    }

    /// Checks that layers with a sliding window have such a block.
    ///
    /// # Errors
    /// When they have not.
    pub fn check_sliding(&self, block: u32) -> Result<(), String> {
        let most = self.limits.sliding.map_or(0, |(_, blocks)| blocks);
        if (block as usize) < most {
            return Ok(());
        }
        Err(format!("there is no block {block} of layers with a sliding window: there are {most}"))
    }

    /// Checks that there is such a place.
    ///
    /// # Errors
    /// When there is none.
    pub fn check_place(&self, place: Place) -> Result<(), String> {
        let (what, at, most) = match place {
            Place::Slot(at) => ("slot", at, self.limits.sequences),
            Place::Snapshot(at) => ("snapshot", at, self.limits.snapshots),
        };
        if (at as usize) < most {
            return Ok(());
        }
        Err(format!("there is no {what} {at}: there are {most}"))
    }

    /// Checks that there is such a block on the device.
    ///
    /// # Errors
    /// When there is none.
    pub fn check_block(&self, block: u32) -> Result<(), String> {
        let most = self.limits.blocks;
        if (block as usize) < most {
            return Ok(());
        }
        Err(format!("there is no block {block}: there are {most}"))
    }

    fn stranger(&self, slot: u32) -> String {
        format!("there is no slot {slot}: there are {}", self.limits.sequences)
    }
}

/// A number of rows, drafts or blocks. None of them comes near the bound.
fn small(count: usize) -> u32 {
    u32::try_from(count).unwrap_or(u32::MAX)
}

/// What a row is sampled by, if it is.
pub(crate) fn sampled_by(output: &Output) -> Option<SampledBy> {
    let Output::Sample { sampling, history, biases, masks, .. } = output else { return None };
    Some(SampledBy {
        sampling: sampling.into(),
        history: call::history_pairs(history),
        biases: biases.iter().map(|biases| call::bias_bits(biases)).collect(),
        masks: masks.iter().map(Mask::from).collect(),
    })
}

fn sample(draw: u64, by: &SampledBy, words: usize) -> Result<Output, String> {
    Ok(Output::Sample {
        sampling: by.sampling.into(),
        draw,
        history: call::history(&by.history),
        biases: by.biases.iter().map(|bits| call::biases(bits)).collect(),
        masks: by.masks.iter().map(|mask| mask.expand(words)).collect::<Result<_, String>>()?,
    })
}

/// A place as it is sent.
pub(crate) fn place(place: StatePlace) -> Place {
    match place {
        StatePlace::Slot(Slot(at)) => Place::Slot(at),
        StatePlace::Snapshot(SnapshotId(at)) => Place::Snapshot(at),
    }
}

/// A place as models have it.
pub(crate) fn model_place(place: Place) -> StatePlace {
    match place {
        Place::Slot(at) => StatePlace::Slot(Slot(at)),
        Place::Snapshot(at) => StatePlace::Snapshot(SnapshotId(at)),
    }
}

fn table((first, blocks): &(u64, Vec<u32>)) -> SlidingTable {
    SlidingTable { first: *first as usize, blocks: blocks.iter().map(|block| SlidingId(*block)).collect() }
}

fn copy(from: Place, to: Place) -> StateCopy {
    StateCopy { from: model_place(from), to: model_place(to) }
}
