//! The tables and pinned memory of a step in flight, and its results.

use super::super::driver::Event;
use super::super::fault::Fault;
use super::super::host::Pinned;
use super::super::memory::Memory;
use super::super::pointer::Pointer;
use super::super::queue::StepTables;
use super::super::wire::{Header, SampledRow, Tables, read_sampled};
use monomorph_model::{RowOutput, Verified};
use monomorph_sampling::Sampled;

/// The kind of result of a sequence; row numbers index [`StepSlot::sampled`].
#[derive(Debug)]
pub(super) enum Want {
    None,
    Sampled {
        row: usize,
        logprobs: bool,
    },
    /// A row for each accepted draft, and one more.
    Verified {
        /// The first row.
        row: usize,
        logprobs: bool,
        /// Its index among the sequences to draft for.
        place: usize,
        /// The drafts that were fed.
        fed: Vec<u32>,
    },
    Logits(Vec<f32>),
    /// Nothing, because blocks on disk could not be read.
    Lost(String),
}

/// Tables on the device, and the pinned memory that is copied to them or written by kernels.
#[derive(Debug)]
pub(super) struct StepSlot {
    /// On the device, except for the pinned `sampled` and `drafted`.
    pub(super) tables: StepTables,
    pub(super) header: Pinned,
    /// Headers for the second and later groups of output rows.
    pub(super) groups: Pinned,
    pub(super) tokens: Pinned,
    pub(super) history: Pinned,
    sampled: Pinned,
    /// Rows by pass and sequence, followed by the number of accepted drafts of each sequence.
    drafted: Pinned,
    pub(super) uploaded: Event,
    pub(super) done: Event,
    pub(super) program: &'static str,
    /// Whether it is an image's, and gives no rows.
    pub(super) sees: bool,
    /// The result of each sequence, with its index in the step.
    pub(super) wants: Vec<(usize, Want)>,
}

impl StepSlot {
    pub(super) fn new(
        memory: &mut Memory,
        sizes: &Tables,
        ids: Pointer,
        history: u64,
        groups: usize,
        head_rows: usize,
    ) -> Result<StepSlot, Fault> {
        let sampled = Pinned::zeroed(groups * head_rows * size_of::<SampledRow>())?;
        let drafted = Pinned::zeroed((sizes.drafted + sizes.held) as usize)?;
        let passes = memory.take(sizes.passes + sizes.header)?;
        let tokens = memory.take(sizes.tokens)?;
        Ok(StepSlot {
            tables: StepTables {
                passes,
                header: passes.offset(sizes.passes),
                tokens,
                images: tokens.offset(sizes.images_at),
                history: memory.take(sizes.history)?,
                ids,
                sampled: sampled.address()?,
                drafted: drafted.address()?,
                held: drafted.address()?.offset(sizes.drafted),
            },
            header: Pinned::zeroed(sizes.header as usize)?,
            groups: Pinned::zeroed(groups * size_of::<Header>())?,
            tokens: Pinned::zeroed(sizes.tokens as usize)?,
            // Grown when penalties or masks first need more: its largest size is rarely used.
            history: Pinned::zeroed(history as usize)?,
            sampled,
            drafted,
            uploaded: Event::new()?,
            done: Event::new()?,
            program: "",
            sees: false,
            wants: Vec::new(),
        })
    }

    /// The result of each sequence, with its index in the step. The device has finished the step. If the
    /// stack makes `drafts` itself, in passes of up to `sequences`, the device decides which are accepted; if
    /// it makes none, the host decides here. With `forced` acceptance, accepted drafts differ from the
    /// sampled tokens and replace them.
    ///
    /// # Errors
    /// When the device reports more accepted drafts than were fed.
    pub(super) fn results(
        &mut self,
        drafts: usize,
        sequences: usize,
        forced: bool,
    ) -> Result<Vec<(usize, RowOutput)>, Fault> {
        let (sampled, drafted) = (self.sampled.bytes(), self.drafted.bytes());
        let row = |bytes: &[u8], row: usize| read_sampled(&bytes[row * size_of::<SampledRow>()..]);
        let verified = |first: usize, logprobs: bool, place: usize, fed: &[u32]| -> Result<Verified, Fault> {
            if drafts == 0 {
                let id = |at: usize| row(sampled, first + at).id as u32;
                let held = (0..fed.len()).take_while(|at| id(*at) == fed[*at]).count();
                let rows = (0..=held).map(|at| self::sampled(&row(sampled, first + at), logprobs));
                return Ok(Verified { sampled: rows.collect(), drafts: Vec::new() });
            }
            let at = drafts * sequences * size_of::<SampledRow>() + 4 * place;
            let held = drafted[at..].first_chunk().map_or(-1, |bytes| i32::from_le_bytes(*bytes));
            let held = usize::try_from(held).ok().filter(|held| *held <= fed.len()).ok_or_else(|| {
                Fault::new(format!("{held} of {} drafts of a sequence are said to hold", fed.len()))
            })?;
            let mut rows: Vec<Sampled> =
                (0..=held).map(|at| self::sampled(&row(sampled, first + at), logprobs)).collect();
            if forced {
                rows.iter_mut().zip(&fed[..held]).for_each(|(row, draft)| row.id = *draft);
            }
            let of_pass = |pass: usize| row(drafted, pass * sequences + place).id as u32;
            Ok(Verified { sampled: rows, drafts: (0..drafts).map(of_pass).collect() })
        };
        let result = |(at, want): (usize, Want)| {
            let result = match want {
                Want::None => RowOutput::None,
                Want::Logits(logits) => RowOutput::Logits(logits),
                Want::Lost(why) => RowOutput::Lost(why),
                Want::Sampled { row: at, logprobs } => {
                    RowOutput::Sampled(self::sampled(&row(sampled, at), logprobs))
                }
                Want::Verified { row, logprobs, place, fed } => {
                    RowOutput::Verified(verified(row, logprobs, place, &fed)?)
                }
            };
            Ok((at, result))
        };
        self.wants.drain(..).map(result).collect()
    }
}

/// Converts a sampled row to the engine's type.
fn sampled(row: &SampledRow, logprobs: bool) -> Sampled {
    let count = if logprobs { usize::try_from(row.top_count).unwrap_or(0) } else { 0 };
    let top = row.top_id.iter().zip(row.top_logprob).take(count);
    Sampled {
        id: row.id as u32,
        logprob: logprobs.then_some(row.logprob),
        top: top.map(|(id, logprob)| (*id as u32, logprob)).collect(),
    }
}
