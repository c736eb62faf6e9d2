//! From the state of the engine to a step.

use super::Forward;
use super::flights::Row;
use super::prefix::save;
use crate::scheduler::{Limits, Plan, Row as Planned, View, schedule};
use monomorph_cache::Place;
use monomorph_model::{BlockId, FarId, ModelSpec, Output, SequenceStep, Tokens};
use monomorph_sampling::Sampling;

/// Bytes of logits that a step may hand back for prompts, but for a piece's. Each row is summed up by the
/// forward thread, which keeps the others waiting meanwhile.
const SCORED_BYTES: usize = 16 << 20;

/// What the steps of a model may carry: at most so many `sequences`, and `prefill_tokens` of prompts, where 0
/// is as many as there is room for.
pub(super) fn limits(spec: &ModelSpec, sequences: usize, prefill_tokens: usize) -> Limits {
    let prefill_tokens = if prefill_tokens == 0 { spec.step_tokens } else { prefill_tokens };
    Limits {
        block_tokens: spec.block_tokens,
        step_tokens: spec.step_tokens,
        step_sequences: spec.step_sequences.min(sequences),
        drafts: spec.drafts(),
        reach: spec.reach(),
        piece_tokens: spec.piece_tokens(),
        scored_tokens: (SCORED_BYTES / (size_of::<f32>() * spec.vocabulary.max(1))).max(spec.piece_tokens()),
        prefill_tokens: prefill_tokens.clamp(spec.piece_tokens().min(spec.step_tokens), spec.step_tokens),
    }
}

impl Forward {
    /// Decides the next step of a model that samples `apart` or not, and makes it ready in `self.step` and
    /// `self.rows`. False when a step in flight has to be collected first, or a page from disk waited for.
    ///
    /// # Errors
    /// When there is nothing to run, or the blocks promised are not there: both would be mistakes in here.
    pub(super) fn plan(&mut self, apart: bool) -> Result<bool, String> {
        self.view();
        let view = View {
            free_blocks: self.cache.available(),
            free_slots: self.free_slots.len(),
            in_flight: !self.flights.is_empty(),
            running: &self.running_view,
            waiting: &self.waiting_view,
            policy: self.schedule.policy,
            pace: self.pace,
        };
        let Plan { preempt, admit, rows, cut } = schedule(&view, &self.limits);
        // Blocks are written between steps.
        let resumes = self.picked.iter().take(admit).any(|at| self.waiting[*at].image.is_some());
        if view.in_flight && (rows.is_empty() || resumes) {
            return Ok(false);
        }
        if rows.is_empty() && (self.awaits_pages || !self.has_sequences()) {
            return Ok(false);
        }
        if rows.is_empty() {
            return Err(format!(
                "no step for {} running and {} waiting sequences with {} free blocks",
                self.running.len(),
                self.waiting.len(),
                self.cache.available()
            ));
        }
        self.images.begin(self.step.copies.len());
        for _ in 0..preempt {
            if let Some(mut sequence) = self.running.pop() {
                self.preempt(&mut sequence)?;
                self.wait(sequence);
            }
        }
        self.admit(admit)?;
        self.grow()?;
        self.bring_back();
        if preempt > 0 || admit > 0 || cut {
            let mut counters = self.shared.counters();
            counters.stats.preemptions += preempt as u64;
            counters.stats.prompts_cut += u64::from(cut);
            drop(counters);
            self.publish(None);
        }
        self.build(&rows, apart)?;
        if !self.step.sampling_follows {
            self.tell()?;
        }
        Ok(true)
    }

    /// Writes the planned rows down, reusing the memory of earlier steps: nothing is allocated once the rows
    /// have seen their longest sequence.
    fn build(&mut self, rows: &[Planned], apart: bool) -> Result<(), String> {
        let step = self.flights.next_step();
        self.step.sampling_follows = false;
        self.rows = self.flights.rows();
        self.spare.append(&mut self.step.sequences);
        self.step.far.clear();
        let (blocks, group) = (self.cache.capacity(), self.cache.share().group);
        for &Planned { sequence, tokens } in rows {
            let sequence = &mut self.running[sequence];
            let slot = sequence.slot.ok_or("a sequence runs without a slot")?;
            let prefilled = if sequence.decodes() { 0 } else { tokens };
            let most = sequence.reusable(self.replays).len().min(self.cache.kept_tokens());
            let saves = self.saves.as_ref().filter(|_| sequence.fed <= most);
            let copies = &mut self.step.copies;
            let save = save(saves, sequence, slot, &mut self.cache, copies, &mut self.evictions);
            let (position, drafts) = (sequence.fed, sequence.drafts.len());
            let end = position + tokens - drafts;
            let scores = sequence.scores(end).then_some(position);
            let samples = end == sequence.length() && sequence.scoring.is_none();
            let mut row = self.spare.pop().unwrap_or_else(|| SequenceStep {
                drafts: 0,
                generated: false,
                following: None,
                slot,
                position,
                begins: false,
                tokens: Tokens::Sampled,
                blocks: Vec::new(),
                output: Output::None,
            });
            row.slot = slot;
            row.position = position;
            row.begins = std::mem::take(&mut sequence.begins);
            row.drafts = drafts;
            row.generated = position >= sequence.prompt;
            // `None` behind the last: that is sampled now.
            row.following = sequence.tokens.get(end).copied();
            if let Tokens::Known(ids) = std::mem::replace(&mut row.tokens, Tokens::Sampled) {
                self.spare_ids.push(ids);
            }
            // Beyond the known there is one token to feed, which is the one sampled last.
            if end <= sequence.tokens.len() {
                let mut ids = self.spare_ids.pop().unwrap_or_default();
                ids.clear();
                ids.extend_from_slice(&sequence.tokens[position..end]);
                ids.extend_from_slice(&sequence.drafts);
                row.tokens = Tokens::Known(ids);
            }
            let ahead = if samples { self.contract.ahead(drafts) } else { 0 };
            let held = sequence.lease.prefix(position + tokens + ahead);
            row.blocks.clear();
            let far = &mut self.step.far;
            row.blocks.extend(held.map(|place| match place {
                Place::Here(block) => BlockId(block.0),
                Place::Far(place, at) => {
                    if at == 0 {
                        far.push(FarId(place.0));
                    }
                    BlockId((blocks + (far.len() - 1) * group + at) as u32)
                }
            }));
            let (history, biases, masks) = match std::mem::replace(&mut row.output, Output::None) {
                Output::Sample { history, biases, masks, .. } => (history, biases, masks),
                Output::None | Output::Logits => (Vec::new(), Vec::new(), Vec::new()),
            };
            if samples {
                self.step.sampling_follows |= apart && sequence.is_told_later();
                let (sampling, draw) = (sequence.sampling.clone(), sequence.draw());
                row.output = Output::Sample { sampling, draw, history, biases, masks };
            }
            if scores.is_some() {
                row.output = Output::Logits;
            }
            self.step.sequences.push(row);
            let piece = end < sequence.prompt;
            let far = sequence.lease.far_blocks() > 0;
            self.rows.push(Row { slot, prefilled, piece, samples, scores, end, far, save });
            sequence.fed = end;
            sequence.coming += usize::from(samples);
            sequence.last_step = step;
        }
        Ok(())
    }

    /// Writes down what the rows of the next step, or of the one submitted last, are sampled by. Where no
    /// token may come next the sequence ends, and its row is surplus.
    ///
    /// # Errors
    /// See [`Forward::free`].
    pub(super) fn tell(&mut self) -> Result<(), String> {
        self.find_places();
        let mut lost = Vec::new();
        for row in &mut self.step.sequences {
            let Output::Sample { sampling, history, biases, masks, .. } = &mut row.output else { continue };
            // Of one that ended meanwhile nobody asks what is sampled.
            let told = self.places[row.slot.0 as usize].map_or(Err(None), |index| {
                let told = self.running[index].tell(row.drafts, history, biases, masks);
                told.map_err(|why| Some((index, why)))
            });
            if let Err(end) = told {
                lost.extend(end);
                *sampling = Sampling::default();
                history.clear();
                biases.clear();
                masks.clear();
            }
        }
        // From the end no index moves before its turn.
        lost.sort_unstable_by_key(|(index, _)| *index);
        for (index, why) in lost.into_iter().rev() {
            let sequence = self.running.remove(index);
            self.lose(sequence, why)?;
        }
        Ok(())
    }

    /// Notes where the sequences run that have the slots.
    pub(super) fn find_places(&mut self) {
        self.places.fill(None);
        for (index, sequence) in self.running.iter().enumerate() {
            if let Some(slot) = sequence.slot {
                self.places[slot.0 as usize] = Some(index);
            }
        }
    }
}
